"""deltalake on every workload: open, and the call with the same result."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from perf.cases.base import ONE_DATE, Answer, Case, WritableCopy, paths_answer
from perf.tables import Table


def _state(path: Path) -> Any:
    return DeltaTable(str(path)).get_add_actions()


def _one_date(path: Path) -> list[str]:
    uris = DeltaTable(str(path)).file_uris(file_pruning_predicate=f"date = '{ONE_DATE}'")
    return [uri.removeprefix(f"{path}/") for uri in uris]


def _protocol_metadata(path: Path) -> tuple[Any, Any]:
    table = DeltaTable(str(path))
    return table.protocol(), table.metadata()


def _opened(table: Table, stack: ExitStack) -> tuple[WritableCopy, DeltaTable]:
    copy = WritableCopy(table, stack)
    opened = DeltaTable(str(copy.path))
    copy.commit()
    return copy, opened


def _update(opened: tuple[WritableCopy, DeltaTable]) -> DeltaTable:
    opened[1].update_incremental()
    return opened[1]


def _update_then_state(opened: tuple[WritableCopy, DeltaTable]) -> Any:
    return _update(opened).get_add_actions()


def _history(path: Path) -> list[dict[str, Any]]:
    return list(DeltaTable(str(path)).history())


def _files_answer(actions: Any) -> Answer:
    import polars as pl

    from perf import answers

    return answers.of_files(
        pl.DataFrame(actions).select(
            "path",
            size="size_bytes",
            modificationTime="modification_time",
            date=pl.col("partition").struct.field("date").dt.to_string("%Y-%m-%d"),
            region=pl.col("partition").struct.field("region"),
        )
    )


def _after_update(actions: Any) -> Answer:
    return {f"{name}_after": value for name, value in _files_answer(actions).items()}


def _stats_answer(actions: Any) -> Answer:
    import polars as pl

    from perf import answers

    frame = pl.DataFrame(actions).select(
        "min", "max", numRecords="num_records", nullCount="null_count"
    )
    return _files_answer(actions) | answers.of_stats(frame)


def _protocol_answer(result: tuple[Any, Any]) -> Answer:
    protocol, metadata = result
    return {
        "reader": protocol.min_reader_version,
        "writer": protocol.min_writer_version,
        "id": str(metadata.id),
        "partitions": ",".join(metadata.partition_columns),
        "configuration": str(sorted(metadata.configuration.items())),
    }


def _history_answer(history: list[dict[str, Any]]) -> Answer:
    import polars as pl

    from perf import answers

    return answers.of_history(
        *(
            pl.Series([commit[key] for commit in history])
            for key in ("version", "operation", "engineInfo")
        )
    )


CASES = {
    "state_1m_files_classic_plus_100_commits": Case(_state, _files_answer),
    "stats_typed_1m": Case(_state, _stats_answer),
    "state_1m_files_disk_cache": Case(_state, _files_answer),
    "files_of_one_date_1m_classic": Case(_one_date, paths_answer),
    "files_of_one_date_1m_disk_cache": Case(_one_date, paths_answer),
    "files_of_one_date_1m": Case(_one_date, paths_answer),
    "protocol_metadata_1m": Case(_protocol_metadata, _protocol_answer),
    "update_by_one_commit_1m": Case(
        _update,
        lambda t: {"version_after": t.version(), "files_after": t.get_add_actions().num_rows},
        _opened,
    ),
    "update_then_state_1m": Case(_update_then_state, _after_update, _opened),
    "state_1m_adds_200_commits": Case(_state, _files_answer),
    "state_10k_small_commits": Case(_state, _files_answer),
    "history_10k_commits": Case(_history, _history_answer),
}
