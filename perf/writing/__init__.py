"""Benchmarks of commits: lakelog beside deltalake writing the same actions, and beside itself.

Each run writes to a fresh copy of a table, in a folder on the disk that `perf.tables` uses, in a
process of its own. What the run has written is then read back through lakelog and, for a Delta
log, through deltalake, and compared with what was to be written.
"""
