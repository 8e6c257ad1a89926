"""Benchmarks of commits: lakelog compared with deltalake on the same actions, and with itself.

Each run writes to a new copy of a table, in a folder on the disk that `perf.tables` uses, in a
separate process. The result is read back with lakelog and, for a Delta log, with deltalake, and
compared with the expected content.
"""
