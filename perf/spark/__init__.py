"""Benchmarks of lakelog on Spark, compared with Spark itself and Delta Lake on Spark."""
