"""Benchmarks of rows that become durable one by one, and are committed in larger files."""
