"""Updates that copy the column chunks of other columns as they are encoded."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog import Table
from lakelog.data.parquet_file import ParquetCopy
from lakelog.errors import CorruptionError, LakelogError
from tests.budget import rng_of, share_of

COUNT = 4_000
ROWS = pl.DataFrame(
    {
        "id": np.arange(COUNT),
        "s": [f"text {n % 700}" if n % 9 else None for n in range(COUNT)],
        "x": np.arange(COUNT) / 7,
        "at": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(0, n) for n in range(COUNT)],
        "m": [Decimal(n) / 4 for n in range(COUNT)],
        "inside": [{"a": n, "b": [str(n)] * (n % 3)} for n in range(COUNT)],
        "many": [list(range(n % 4)) if n % 5 else None for n in range(COUNT)],
    },
    schema_overrides={"m": pl.Decimal(18, 2), "at": pl.Datetime("us", "UTC")},
)
UPDATED = ROWS.with_columns(x=pl.when(pl.col("id") % 10 == 3).then(pl.col("x") * 2).otherwise("x"))


@pytest.fixture(autouse=True)
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Copies columns of small files too; gives the paths of copies."""
    monkeypatch.setattr("lakelog.data.rewrite._COPIED_BYTES", 0)
    paths: list[str] = []
    close = ParquetCopy.close

    def counted(copy: ParquetCopy) -> str:
        paths.append(copy.path)
        return close(copy)

    monkeypatch.setattr(ParquetCopy, "close", counted)
    return paths


def update(table: Table, **more: Any) -> None:
    report = table.update({"x": pl.col("x") * 2}, pl.col("id") % 10 == 3, **more)
    assert report.num_updated_rows == COUNT // 10


def data_file(path: Path) -> Path:
    """The only live data file."""
    (name,) = lakelog.open(path, upkeep=False).snapshot().files().collect()["path"]
    return path / str(name)


def chunks(path: Path) -> dict[str, list[bytes]]:
    """The encoded chunks of every leaf."""
    data, metadata = path.read_bytes(), pq.read_metadata(path)
    found: dict[str, list[bytes]] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for leaf in range(metadata.num_columns):
            chunk = group.column(leaf)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            chunk_bytes = data[start : start + chunk.total_compressed_size]
            found.setdefault(chunk.path_in_schema, []).append(chunk_bytes)
    return found


def test_an_update_encodes_only_the_columns_with_new_values(
    tmp_path: Path, copied: list[str]
) -> None:
    lakelog.write(tmp_path, ROWS)
    table = lakelog.open(tmp_path, upkeep=False)
    before = data_file(tmp_path)
    old, add = chunks(before), table.snapshot().files().collect()
    update(table)
    after = data_file(tmp_path)
    new = chunks(after)
    assert copied == [after.name]
    assert old.pop("x") != new.pop("x")
    assert old == new
    assert table.to_polars().equals(UPDATED.select(table.to_polars().columns))
    stats, expected = (
        json.loads(text)
        for text in (table.snapshot().files().collect()["stats"][0], add["stats"][0])
    )
    high = UPDATED["x"].max()
    assert stats == expected | {"maxValues": expected["maxValues"] | {"x": high}}


def mixed(rows: pl.DataFrame, path: Path) -> None:
    """Several row groups, indexes, a sort order, and the metadata of pandas."""
    frame = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    pq.write_table(
        pa.Table.from_pandas(frame.to_pandas(), frame.schema),
        path,
        row_group_size=999,
        write_page_index=True,
        sorting_columns=[pq.SortingColumn(0)],
        data_page_size=500,
    )


def arrow(**options: Any) -> Callable[[pl.DataFrame, Path], None]:
    def write(rows: pl.DataFrame, path: Path) -> None:
        frame = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
        pq.write_table(frame, path, **options)

    return write


WRITERS: dict[str, Callable[[pl.DataFrame, Path], None]] = {
    "mixed": mixed,
    "old pages": arrow(version="1.0", use_dictionary=False, compression="gzip"),
    "new pages": arrow(data_page_version="2.0", compression="zstd", row_group_size=1_500),
    "int96": arrow(use_deprecated_int96_timestamps=True, compression="none"),
    "other encodings": arrow(
        use_dictionary=False,
        column_encoding={"id": "DELTA_BINARY_PACKED", "s": "DELTA_BYTE_ARRAY"},
    ),
    "no statistics": arrow(write_statistics=False),
    "polars": lambda rows, path: rows.write_parquet(path, row_group_size=700),
}


@pytest.mark.parametrize("writer", [*WRITERS, "deltalake"])
def test_files_of_other_writers_are_copied(tmp_path: Path, copied: list[str], writer: str) -> None:
    if writer == "deltalake":
        deltalake.write_deltalake(tmp_path, ROWS)
    else:
        WRITERS[writer](ROWS, tmp_path / "rows.parquet")
        lakelog.convert(tmp_path)
    table = lakelog.open(tmp_path, upkeep=False)
    before = table.snapshot().files().collect()["stats"][0]
    update(table)
    assert len(copied) == 1
    expected = UPDATED.select(table.to_polars().columns)
    assert table.to_polars().sort("id").equals(expected)
    assert (
        pl.read_parquet(data_file(tmp_path))
        .sort("id")
        .select(expected.columns)
        .drop("at", "m", "inside", "many")
        .equals(expected.drop("at", "m", "inside", "many"))
    )
    peer = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(tmp_path))
    rows = pl.DataFrame(pa.table(peer.execute("select * from t"))).sort("id")
    assert rows.cast(expected.schema).equals(expected)
    stats = json.loads(table.snapshot().files().collect()["stats"][0])
    for section in ("minValues", "maxValues", "nullCount"):
        old = json.loads(before).get(section, {})
        assert {k: v for k, v in stats[section].items() if k != "x"} == {
            k: v for k, v in old.items() if k != "x"
        }
    assert stats["maxValues"]["x"] == expected["x"].max()
    # The copy is copied again, and its statistics skip row groups.
    update(table)
    assert len(copied) == 2
    found = table.scan(pl.col("id").is_between(5, 6)).collect()
    assert found["id"].to_list() == [5, 6]


def test_columns_that_the_file_lacks_or_the_table_lost(tmp_path: Path, copied: list[str]) -> None:
    lakelog.write(tmp_path, ROWS, configuration={"delta.columnMapping.mode": "name"})
    table = lakelog.open(tmp_path, upkeep=False)
    table.alter.add_columns({"new": pl.Int64, "other": pl.Int64})
    table.alter.drop_column("m")
    table.alter.rename_column("s", "text")
    table.update({"new": "id"}, "id < 5")
    assert len(copied) == 1
    expected = ROWS.rename({"s": "text"}).with_columns(
        new=pl.when(pl.col("id") < 5).then("id"), other=pl.lit(None, pl.Int64)
    )
    rows = table.to_polars()
    assert rows.equals(expected.select(rows.columns))
    assert len(pq.read_schema(data_file(tmp_path)).names) == len(rows.columns) - 1


def test_rows_that_cannot_be_copied_are_decoded(tmp_path: Path, copied: list[str]) -> None:
    def made(name: str, metadata: dict[str, str] | None = None, **more: Any) -> Table:
        path = tmp_path / name
        path.mkdir()
        frame = ROWS.to_arrow(compat_level=pl.CompatLevel.oldest())
        pq.write_table(frame.replace_schema_metadata(metadata), path / "rows.parquet")
        lakelog.convert(path, **more)
        return lakelog.open(path, upkeep=False)

    old = made("calendar", {"org.apache.spark.version": "2.4.8"})
    update(old)
    marked = made("vectors", configuration={"delta.enableDeletionVectors": "true"})
    marked.delete("id = 5")
    marked.alter.set_properties({"delta.enableDeletionVectors": "false"})
    update(marked)
    update(made("codec"), compression="zstd")
    assert copied == []
    assert old.to_polars().equals(UPDATED.select(old.to_polars().columns))
    assert marked.to_polars().height == COUNT - 1


def test_a_merge_that_only_updates_copies_too(tmp_path: Path, copied: list[str]) -> None:
    lakelog.write(tmp_path, ROWS)
    table = lakelog.open(tmp_path, upkeep=False)
    source = pl.DataFrame({"key": [1, 2, COUNT + 1], "y": [10.0, 20.0, 30.0]})
    merge = table.merge(source, {"id": "key"}).when_matched_update({"x": "target.x + source.y"})
    assert merge.execute().num_updated_rows == 2
    assert len(copied) == 1
    hit = pl.col("id").is_in([1, 2])
    expected = ROWS.with_columns(
        x=pl.when(hit).then(pl.col("x") + pl.col("id") * 10).otherwise("x")
    )
    assert table.to_polars().equals(expected.select(table.to_polars().columns))


def test_decimals_of_statistics_stay_as_they_are_spelled(tmp_path: Path) -> None:
    exact = Decimal("1234567890123456789012345678.9012345678")
    rows = pl.DataFrame(
        {"id": [1], "m": [exact], "x": [1.5]}, schema_overrides={"m": pl.Decimal(38, 10)}
    )
    lakelog.write(tmp_path, rows)
    table = lakelog.open(tmp_path, upkeep=False)
    table.update({"x": "x + 1"})
    (stats,) = table.snapshot().files().collect()["stats"]
    assert f'"m":{exact}' in stats
    assert table.to_polars(f"m = {exact}").height == 1


def test_a_column_that_vanished_is_not_copied_as_nulls(tmp_path: Path) -> None:
    lakelog.write(tmp_path, ROWS)
    table = lakelog.open(tmp_path, upkeep=False)
    file = data_file(tmp_path)
    size = file.stat().st_size
    pq.write_table(pq.read_table(file).drop_columns(["s"]), file, compression="zstd")
    data = file.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    assert len(data) <= size
    # As long as before: bytes between the last chunk and the footer belong to neither.
    file.write_bytes(data[:-footer] + bytes(size - len(data)) + data[-footer:])
    with pytest.raises(CorruptionError, match="has no column 's'"):
        update(table)
    assert table.version() == 0


def test_a_damaged_file_gives_the_rows_or_an_error(tmp_path: Path) -> None:
    lakelog.write(tmp_path, ROWS.select("id", "s", "x", "inside"))
    table = lakelog.open(tmp_path, upkeep=False)
    file = data_file(tmp_path)
    whole = file.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    rng: random.Random = rng_of("damaged files")
    outcomes = set()
    for _ in range(share_of(400)):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 1, 3])):
            end = rng.choice([footer, footer, len(whole)])
            damaged[len(whole) - 1 - rng.randrange(end)] = rng.randrange(256)
        file.write_bytes(damaged)
        try:
            before = table.to_polars()
        except LakelogError:
            before = None
        version = table.version()
        try:
            update(table)
        except LakelogError:
            outcomes.add("refused")
        else:
            outcomes.add("updated")
            try:
                after = table.to_polars()
            except LakelogError:
                assert before is None
            else:
                file.write_bytes(whole)
                # What is damaged may be no part of the copy.
                rows = table.snapshot(0).scan().collect() if before is None else before
                hit = pl.col("id") % 10 == 3
                expected = rows.with_columns(x=pl.when(hit).then(pl.col("x") * 2).otherwise("x"))
                assert after.equals(expected)
            file.write_bytes(whole)
            table.restore(version)
    assert outcomes == {"refused", "updated"}
