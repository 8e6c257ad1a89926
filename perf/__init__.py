"""Benchmarks: lakelog beside deltalake and beside the raw decode of the same bytes.

``python -m perf`` makes its tables once, measures every workload in fresh processes, checks that
all contenders give the same answer, and only then prints ratios. Workloads are named by shape.
"""
