"""lakelog on every workload of rows, through its public API only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlglot.dialects.spark  # noqa: F401 - SQL text imports it

import lakelog
import lakelog.data.change_feed  # imported before the measurement, like every module
import lakelog.data.compact
import lakelog.data.merge
import lakelog.data.scan
import lakelog.sql.translation
import lakelog.table
import lakelog.table_functions
from perf.rows import calls
from perf.rows.generate import rows, schema_string
from perf.rows.workloads import MEMORY_LIMIT
from perf.writing.base import Case, Figures, Job


def case(call: Callable[[Job, Any], Any], given: Callable[[Job], Any] = lambda _: None) -> Case:
    """A case whose call gets the job and the result of `given`."""

    def run(prepared: tuple[Job, Any]) -> Figures:
        job, argument = prepared
        return calls.timed(job, lambda: call(job, argument))

    return Case(lambda job: (job, given(job)), run)


def _open(job: Job) -> lakelog.Table:
    return lakelog.open(job.path, upkeep=False)


def _merge(job: Job, source: Any, memory_limit: int | None = None) -> Any:
    merge = _open(job).merge(source, on="id", memory_limit=memory_limit)
    return merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _empty(job: Job) -> Any:
    lakelog.create(job.path, schema_string(), upkeep=False)
    return rows(0, job.size)


def _scan(job: Job, _: Any) -> Any:
    low, high = calls.selected(job.facts["rows"])
    return _open(job).snapshot().scan(f"id BETWEEN {low} AND {high}").collect()


def _changes(job: Job, _: Any) -> Any:
    return _open(job).changes(1).collect()


_APPEND = case(lambda job, rows: _open(job).append(rows), _empty)
CASES: dict[str, dict[str, Any]] = {
    "rows_delete_vectors_10m": {"lakelog": case(lambda job, _: _open(job).delete(calls.DELETED))},
    "rows_update_copy_10m": {
        "lakelog": case(lambda job, _: _open(job).update({"price": calls.PRICE}, calls.UPDATED))
    },
    "rows_merge_100k_into_10m": {"lakelog": case(_merge, calls.source)},
    "rows_merge_vectors_100k_into_10m": {"lakelog": case(_merge, calls.source)},
    "rows_merge_512mb_5gb": {
        "lakelog": case(lambda job, rows: _merge(job, rows, MEMORY_LIMIT), calls.source)
    },
    "rows_compact_1000_files": {"lakelog": case(lambda job, _: _open(job).compact())},
    "rows_append_10m": {"lakelog": _APPEND},
    "rows_append_1m": {"lakelog": _APPEND},
    "rows_scan_10k_files": {"lakelog": case(_scan)},
    "rows_changes_1000_commits": {"lakelog": case(_changes)},
}
