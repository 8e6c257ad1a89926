"""Benchmarks of a log's life: checkpoints and cleanup, lakelog beside deltalake on the same table.

Runs as those of `perf.writing` do: a fresh process, a fresh copy of the table, and what was written
read back through lakelog and through deltalake, and compared with what the table holds.
"""
