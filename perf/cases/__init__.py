"""The cases of each contender: one module per contender, each with a dictionary `CASES`."""

from __future__ import annotations

from importlib import import_module

from perf.cases.base import Case

MODULES = {
    "lakelog": "perf.cases.ours",
    "deltalake": "perf.cases.peer",
    "raw_polars": "perf.cases.raw_polars",
    "raw_pyarrow": "perf.cases.raw_pyarrow",
}


def load(contender: str, workload: str) -> Case:
    """Import a contender with its dependencies, and return its case of `workload`."""
    cases: dict[str, Case] = import_module(MODULES[contender]).CASES
    return cases[workload]
