"""Benchmarks of lakelog, compared with deltalake and with the raw decode of the same bytes.

``python -m perf`` creates its tables once, measures every workload in new processes, checks that
all contenders give the same answer, and then prints ratios. Workloads are named by shape.
"""
