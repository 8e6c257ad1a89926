"""Benchmarks of lakelog on Spark, beside Spark itself and Delta Lake on Spark."""
