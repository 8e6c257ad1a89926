"""The two historic write-ahead logs, specifications 002 and 003: read, told apart, upgraded.

| module | owns |
|---|---|
| `detect`, `read` | which format a log has; read from where it lies |
| `log` | what reading gives: records, and what is to be said about them |
| `spec002`, `continuity` | specification 002: runs of records; runs joined by their numbers |
| `spec003`, `places003` | specification 003: keys and values; where the records are |
| `spans` | integers and byte strings at many places, as columns |
| `upgrade` | an old log becomes one of today, where it lies |
"""
