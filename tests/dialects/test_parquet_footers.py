"""Parquet files of a log with far more rows or text than their length allows are rejected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.dialects import parquet_footers
from lakelog.dialects.parquet_footers import Bound
from lakelog.errors import CheckpointCorruptionError
from tests.dialects.indextables.writing import PROTOCOL, Log
from tests.dialects.indextables.writing import metadata as index_meta
from tests.handmade import Handmade, add, metadata, protocol
from tests.limited import outcomes

_GROUP_ROWS = 1 << 16
_ROWS = 6 * _GROUP_ROWS


def _repeat(path: Path, row: int, copies: int) -> None:
    """Rewrite a file with one of its rows repeated `copies` times at the end."""
    table = pq.read_table(path)
    repeated = table.slice(row, 1).take(pa.array(np.zeros(_GROUP_ROWS, np.int64)))
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        writer.write_table(table)
        for _ in range(-(-copies // _GROUP_ROWS)):
            writer.write_table(repeated, row_group_size=_GROUP_ROWS)


def _delta(root: Path) -> Handmade:
    made = Handmade(root)
    made.commit(0, protocol(), metadata())
    made.commit(1, add("x"))
    return made


def _bomb(row: int, copies: int, **more: Any) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        made = _delta(root)
        path = made.checkpoint(1, protocol(), metadata(), add("b", **more))
        made.forget(0, 1)
        _repeat(path, row, copies)

    return write


def _sidecar(root: Path) -> None:
    made = _delta(root)
    named = made.sidecar("s.parquet", add("b"))
    _repeat(made.log / "_sidecars" / "s.parquet", 0, _ROWS)
    features = protocol(3, 7, readerFeatures=["v2Checkpoint"], writerFeatures=["v2Checkpoint"])
    meta = {"checkpointMetadata": {"version": 1}}
    uuid = "80a083e8-7026-4e79-81be-64bd76c43a11"
    made.commit(2, features, metadata(), named, meta)
    (made.log / f"{2:020d}.json").rename(made.log / f"{1:020d}.checkpoint.{uuid}.json")
    made.forget(0, 1)


def _index(write: Callable[[Log, pl.DataFrame], None]) -> Callable[[Path], None]:
    def make(root: Path) -> None:
        log = Log(root)
        log.commit(0, [PROTOCOL, index_meta()])
        rows = pl.DataFrame(
            {"actionType": ["add"], "path": ["a"], "size": [1], "modificationTime": [1]}
        )
        write(log, rows)

    return make


def _flattened(log: Log, rows: pl.DataFrame) -> None:
    _repeat(log.flattened(f"{0:020d}.checkpoint.parquet", rows), 0, _ROWS)


def _columnar(log: Log, rows: pl.DataFrame) -> None:
    path = log.write(f"{1:020d}.json", b"")
    rows.write_parquet(path)
    _repeat(path, 0, _ROWS)


BOMBS: dict[str, Callable[[Path], None]] = {
    "one file many times": _bomb(2, _ROWS),
    "one metadata many times": _bomb(1, _ROWS),
    "one long text in every row": _bomb(2, _ROWS, stats="x" * 2_000),
    "a sidecar": _sidecar,
    "flattened": _index(_flattened),
    "a columnar commit": _index(_columnar),
}


def test_file_of_repeated_rows_is_refused_with_little_memory(tmp_path: Path) -> None:
    for name, write in BOMBS.items():
        write(tmp_path / name)
    found = outcomes({name: tmp_path / name for name in BOMBS}, mebibytes=500)
    expected = dict.fromkeys(BOMBS, "CheckpointCorruptionError")
    expected["flattened"] = "0"  # the covered commit is present
    expected["a columnar commit"] = "MalformedLogError"
    assert found == expected


def test_checkpoint_of_ascending_paths_is_read(tmp_path: Path) -> None:
    """Ascending paths need the fewest bytes: far fewer than one per path, without other columns."""
    made = _delta(tmp_path / "t")
    path = made.checkpoint(1, protocol(), metadata(), add("b"))
    table = pq.read_table(path)
    files = 200_000
    texts = pa.array([f"part-{number:08d}" for number in range(files)])
    rows = table.slice(2, 1).take(pa.array(np.zeros(files, np.int64)))
    index = rows.schema.get_field_index("add")
    struct = rows.column(index).combine_chunks()
    names = [struct.type.field(i).name for i in range(struct.type.num_fields)]
    columns = [texts if n == "path" else struct.field(n) for n in names]
    counted = rows.set_column(
        index,
        rows.schema.field(index),
        pa.StructArray.from_arrays(columns, fields=list(struct.type)),
    )
    whole = pa.concat_tables([table.slice(0, 2), counted])
    pq.write_table(
        whole,
        path,
        compression="gzip",
        use_dictionary=False,
        column_encoding={"add.path": "DELTA_BYTE_ARRAY"},
    )
    assert path.stat().st_size < files
    made.forget(0, 1)
    assert made.table.snapshot().files().collect().height == files


def test_memory_of_file_actions_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = _delta(tmp_path / "t")
    made.checkpoint(1, protocol(), metadata(), *(add(f"{n}", stats="x" * 99) for n in range(999)))
    made.forget(0, 1)
    assert made.table.snapshot().files().collect().height == 999
    monkeypatch.setattr(parquet_footers, "FREE_BYTES", 10_000)
    monkeypatch.setattr(parquet_footers, "MAX_RATIO", 1)
    with pytest.raises(CheckpointCorruptionError, match="more than their length allows"):
        made.table.snapshot().files().collect()


def test_impossible_row_count_is_refused_without_reading(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"a": pa.nulls(10_000_000, pa.int8())}), path)
    with pytest.raises(ValueError, match="declare 10000000 rows"):
        Bound(pq.read_metadata(path), path.stat().st_size)
