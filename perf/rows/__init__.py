"""Benchmarks of the calls that write, change and read rows."""
