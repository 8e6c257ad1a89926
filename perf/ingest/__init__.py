"""Benchmarks of rows that are durable one by one, and committed in files of a useful size."""
