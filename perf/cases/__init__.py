"""What each contender does for each workload: one module a contender, one `CASES` in each."""

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
    """Import a contender (and with it all that it needs) and give its way of doing `workload`."""
    cases: dict[str, Case] = import_module(MODULES[contender]).CASES
    return cases[workload]
