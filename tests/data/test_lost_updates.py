"""`append` and `overwrite` with `version=`: rows that were derived from an earlier version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import (
    ConcurrentAppendError,
    ConcurrentDeleteReadError,
    ConflictError,
    InvalidInputError,
    MetadataChangedError,
    Table,
    VersionNotFoundError,
)

SCHEMA = {"p": pl.String, "id": pl.Int64, "n": pl.Int64}
HOT = pl.col("id") == 1


def new_table(path: Path, **configuration: str) -> Table:
    table = lakelog.create(path, SCHEMA, ["p"], configuration=configuration, upkeep=False)
    table.append(frame(("a", 1, 10), ("b", 2, 20)))
    return table


def frame(*rows: tuple[str, int, int]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=SCHEMA, orient="row")


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return table.snapshot().scan().sort("id", "n").collect().rows()


def incremented(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(pl.col("n") + 1)


@pytest.mark.parametrize("where", [HOT, pl.col("p") == "a", None], ids=["row", "partition", "all"])
def test_update_by_another_writer_after_the_rows_were_read_is_a_conflict(
    tmp_path: Path, where: pl.Expr | None
) -> None:
    table = new_table(tmp_path)
    read = table.snapshot()
    rows = read.scan(where).collect()
    table.overwrite(incremented(rows), where)  # the other writer
    after = rows_of(table)
    with pytest.raises(ConflictError) as caught:
        lakelog.open(tmp_path).overwrite(incremented(rows), where, version=read.version)
    assert caught.value.version == 2
    assert rows_of(table) == after
    assert table.overwrite(incremented(table.snapshot().scan(where).collect()), where).version == 3


def test_two_counters_that_retry_lose_no_update(tmp_path: Path) -> None:
    table, other = new_table(tmp_path), lakelog.open(tmp_path, upkeep=False)
    for _ in range(3):
        reads = [(each, each.snapshot()) for each in (table, other)]
        for each, read in reads:
            rows = incremented(read.scan(HOT).collect())
            try:
                each.overwrite(rows, HOT, version=read.version)
            except ConflictError:
                again = each.snapshot()
                each.overwrite(incremented(again.scan(HOT).collect()), HOT, version=again.version)
    assert rows_of(table)[0] == ("a", 1, 16)


def test_commits_to_other_rows_since_the_version_do_not_conflict(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    read = table.snapshot()
    rows = read.scan(HOT).collect()
    table.overwrite(frame(("b", 2, 21)), pl.col("p") == "b")
    where = (pl.col("p") == "a") & HOT
    assert table.overwrite(incremented(rows), where, version=read.version).version == 3
    assert rows_of(table) == [("a", 1, 11), ("b", 2, 21)]


def test_later_blind_append_conflicts_only_if_the_table_is_serializable(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path / "write", **{"delta.isolationLevel": "WriteSerializable"})
    table.append(frame(("a", 1, 99)))
    table.overwrite(frame(("a", 1, 11)), HOT, version=1)
    assert rows_of(table) == [("a", 1, 11), ("a", 1, 99), ("b", 2, 20)]
    strict = new_table(tmp_path / "strict", **{"delta.isolationLevel": "Serializable"})
    strict.append(frame(("a", 1, 99)))
    with pytest.raises(ConcurrentAppendError):
        strict.overwrite(frame(("a", 1, 11)), HOT, version=1)


def test_append_with_a_version_is_not_blind_and_conflicts_with_deleted_files(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path)
    report = table.append(frame(("sum", 3, 30)), version=1)
    assert report.version == 2
    info = table.history(1).row(0, named=True)
    assert info["isBlindAppend"] is False
    table.overwrite(frame(("a", 1, 11)), pl.col("p") == "a")
    with pytest.raises(ConcurrentDeleteReadError) as caught:
        table.append(frame(("sum", 4, 60)), version=2)
    assert caught.value.version == 3
    assert sorted(p.parent.name for p in tmp_path.glob("p=sum/*")) == ["p=sum"]
    assert table.append(frame(("blind", 5, 0))).version == 4


def test_append_with_a_version_conflicts_with_a_later_append_with_a_version(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(("sum", 3, 30)), version=1)
    with pytest.raises(ConcurrentAppendError):
        table.append(frame(("sum", 3, 30)), version=1)


def test_later_schema_change_is_a_conflict(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(("c", 3, 1)).with_columns(new=pl.lit("x")), schema_mode="merge")
    with pytest.raises(MetadataChangedError):
        table.overwrite(frame(("a", 1, 11)), HOT, version=1)


def test_files_that_were_vacuumed_after_the_version_are_reported_as_a_conflict(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path)
    vacuumed = next(tmp_path.glob("p=a/*.parquet"))
    table.overwrite(frame(("a", 1, 11)), HOT)
    vacuumed.unlink()
    read = pl.col("id") % 10 == 1  # statistics do not show that it is true for all rows
    with pytest.raises(ConcurrentDeleteReadError):
        table.overwrite(frame(("a", 1, 12)), read, version=1)


@pytest.mark.parametrize("version", [-1, 7, True, "1", 1.0])
def test_invalid_version_raises(tmp_path: Path, version: Any) -> None:
    table = new_table(tmp_path)
    for write in (table.append, table.overwrite):
        with pytest.raises(InvalidInputError, match="version"):
            write(frame(("a", 1, 11)), version=version)


def test_version_that_cleanup_removed_raises(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(("a", 3, 1)))
    table.checkpoint()
    (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(VersionNotFoundError):
        lakelog.open(tmp_path).overwrite(frame(("a", 1, 11)), HOT, version=1)
