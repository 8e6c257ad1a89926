"""Benchmarks of checkpoints and cleanup, compared with deltalake on the same table.

A run is like one of `perf.writing`: a new process, and a new copy of the table. The result is read
back with lakelog and with deltalake, and compared with the content of the table.
"""
