"""deltalake on the workloads of rows, and Polars on those of which it has a counterpart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable, Schema, write_deltalake

from perf.rows import calls
from perf.rows.generate import rows, schema_string
from perf.rows.ours import case
from perf.writing.base import Job


def _merge(job: Job, source: Any) -> None:
    merge = DeltaTable(job.path).merge(
        source, "target.id = source.id", source_alias="source", target_alias="target"
    )
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _empty(job: Job) -> Any:
    DeltaTable.create(job.path, Schema.from_json(schema_string()))
    return rows(0, job.size)


def _write(job: Job, frame: pl.DataFrame) -> None:
    frame.write_parquet(Path(job.path) / calls.PARQUET, compression="snappy")


def _scan(job: Job, _: Any) -> pl.DataFrame:
    low, high = calls.selected(job.facts["rows"])
    return pl.scan_delta(job.path).filter(pl.col("id").is_between(low, high)).collect()


def _changes(job: Job, _: Any) -> pl.DataFrame:
    return pl.DataFrame(DeltaTable(job.path).load_cdf(starting_version=1).read_all())


_APPEND = {
    "deltalake": case(lambda job, rows: write_deltalake(job.path, rows, mode="append"), _empty),
    "polars": case(_write, lambda job: pl.DataFrame(rows(0, job.size))),
}
CASES: dict[str, dict[str, Any]] = {
    "rows_delete_vectors_10m": {
        "deltalake": case(lambda job, _: DeltaTable(job.path).delete(calls.DELETED))
    },
    "rows_update_copy_10m": {
        "deltalake": case(
            lambda job, _: DeltaTable(job.path).update({"price": calls.PRICE}, None, calls.UPDATED)
        )
    },
    "rows_merge_100k_into_10m": {"deltalake": case(_merge, calls.source)},
    "rows_merge_vectors_100k_into_10m": {"deltalake": case(_merge, calls.source)},
    "rows_compact_1000_files": {
        "deltalake": case(lambda job, _: DeltaTable(job.path).optimize.compact())
    },
    "rows_append_10m": _APPEND,
    "rows_append_1m": _APPEND,
    "rows_scan_10k_files": {"polars": case(_scan)},
    "rows_changes_1000_commits": {"deltalake": case(_changes)},
}
