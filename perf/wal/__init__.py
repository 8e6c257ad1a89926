"""Benchmarks of the write-ahead log and of the keyed store."""
