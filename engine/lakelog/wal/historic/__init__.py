"""The two historic write-ahead logs, specifications 002 and 003: read, told apart, upgraded."""
