"""File actions are written by partition values, then by path, in every layout."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog import contract
from lakelog.checkpoint.options import CheckpointOptions
from lakelog.checkpoint.write import write_checkpoint
from lakelog.errors import UnavailableError
from lakelog.formats.delta import DIALECT as DELTA
from lakelog.formats.delta.paths import encode_paths
from lakelog.formats.indextables import DIALECT as INDEXTABLES
from lakelog.log.context import Log
from lakelog.log.order import FileOrder, in_order
from lakelog.storage import open_store

NUMBERS = (None, "", "9", "10", "-1", "100", "2")
NAMES = ("b", "a", "é z", "B")
_SMALL = CheckpointOptions(part_actions=25, max_file_bytes=6_000, compression="snappy")
_V2 = {"delta.checkpointPolicy": "v2"}

LAYOUTS: tuple[tuple[str, str, dict[str, str], int | None], ...] = (
    ("delta", "classic", {}, None),
    ("delta", "multipart", {}, 1),
    ("delta", "v2-json", _V2, None),
    ("delta", "v2-parquet", _V2, None),
    ("indextables", "json", {}, 2),
    ("indextables", "json-multipart", {}, 3),
    ("indextables", "flattened", {}, 3),
)


def _table(
    root: Path, format: str, properties: dict[str, str], reader: int | None
) -> lakelog.Table:
    table = lakelog.create(
        root,
        {"n": pl.Int64, "s": pl.String, "id": pl.Int64},
        partition_by=("n", "s"),
        format=format,
        configuration=properties,
    )
    rng = random.Random(7)
    files = [
        {"path": f"{name}/part {number}.parquet", "n": n, "s": s}
        for number, (n, s, name) in enumerate(itertools.product(NUMBERS, NAMES, NAMES))
    ]
    rng.shuffle(files)
    for count, share in enumerate((files[:60], files[60:])):
        with table.transaction() as tx:
            if count == 0 and format == "indextables" and reader is not None:
                tx.set_protocol(minReaderVersion=reader, minWriterVersion=reader)
            for file in share:
                tx.add(
                    path=file["path"],
                    partitionValues={"n": file["n"], "s": file["s"]},
                    size=1,
                    modificationTime=1,
                )
    with table.transaction() as tx:
        for file in files[:40]:
            values = {"n": file["n"], "s": file["s"]}
            tx.remove(path=file["path"], deletionTimestamp=1 << 50, partitionValues=values)
    return table


def _expected(files: list[tuple[str | None, str | None, str]]) -> list[tuple[Any, ...]]:
    """The model: integers by value, texts by bytes, nulls first, then the path."""

    def key(file: tuple[str | None, str | None, str]) -> tuple[Any, ...]:
        n, s, path = file
        number = (False, 0) if not n else (True, int(n))
        return (number, (s is not None, (s or "").encode()), path.encode())

    return sorted(files, key=key)


def _files_of_checkpoint(log: Log, kind: str) -> list[list[tuple[Any, ...]]]:
    """File actions of each file of the newest checkpoint, in the order in which they are stored."""
    checkpoint = log.list_since(0).checkpoints[-1]
    reader = log.dialect.open_checkpoint(log.store, checkpoint)
    rows: list[tuple[Any, ...]] = []
    for frame in reader.iter_files(("path", "partitionValues"), (kind,)):
        paths = encode_paths(frame["path"]) if log.dialect is DELTA else frame["path"]
        for path, values in zip(paths, frame["partitionValues"], strict=True):
            rows.append((values.get("n"), values.get("s"), path))
    parts = {"multipart", "flattened"}
    if checkpoint.layout not in parts or len(checkpoint.paths) == 1:
        return [rows]
    counts = []
    for path in checkpoint.paths:
        with log.store.open(path) as source:
            table = pq.read_table(source)
        if checkpoint.layout == "multipart":
            counts.append(len(table) - table[kind].null_count)
        else:
            counts.append(table["actionType"].to_pylist().count(kind))
    cuts = [0, *itertools.accumulate(counts)]
    return [rows[first:last] for first, last in itertools.pairwise(cuts)]


@pytest.mark.parametrize("bounded", [False, True], ids=["unbounded", "bounded"])
@pytest.mark.parametrize(
    ("format", "layout", "properties", "reader"), LAYOUTS, ids=[each[1] for each in LAYOUTS]
)
def test_file_actions_of_a_checkpoint_are_sorted_by_partition_values_then_path(
    tmp_path: Path,
    format: str,
    layout: str,
    properties: dict[str, str],
    reader: int | None,
    bounded: bool,
) -> None:
    _table(tmp_path / "t", format, properties, reader)
    dialect = DELTA if format == "delta" else INDEXTABLES
    log = Log(open_store(str(tmp_path / "t")), dialect)
    limit = 4 << 30 if bounded else None
    write_checkpoint(log, layout=layout, options=_SMALL, memory_limit=limit)
    for kind, count in (("add", 72), ("remove", 40)):
        found = _files_of_checkpoint(log, kind)
        assert sum(map(len, found)) == count
        for rows in found:
            assert rows == _expected(rows)


def test_new_sidecars_of_an_incremental_checkpoint_are_sorted(tmp_path: Path) -> None:
    table = _table(tmp_path / "t", "delta", _V2, None)
    log = Log(open_store(str(tmp_path / "t")), DELTA)
    options = CheckpointOptions(part_actions=30)
    write_checkpoint(log, layout="v2-json", options=options)
    with table.transaction() as tx:
        for number in range(5, 0, -1):
            tx.add(
                path=f"new-{number}",
                partitionValues={"n": str(number), "s": "a"},
                size=1,
                modificationTime=1,
            )
    report = write_checkpoint(log, layout="v2-json", options=options)
    assert report.reused_files
    (new,) = [p for p in report.paths if "_sidecars" in p][: -report.reused_files]
    adds = pq.read_table(tmp_path / "t" / new)["add"].drop_null().to_pylist()
    rows = [
        (dict(a["partitionValues"])["n"], dict(a["partitionValues"])["s"], a["path"]) for a in adds
    ]
    assert {path for _, _, path in rows} >= {f"new-{number}" for number in range(1, 6)}
    assert rows == _expected(rows)


@pytest.mark.parametrize("format", ["delta", "indextables"])
def test_write_parquet_sorts_files_by_partition_values_then_path(
    tmp_path: Path, format: str
) -> None:
    table = _table(tmp_path / "t", format, {}, None)
    table.snapshot().write_parquet(tmp_path / "out", max_part_bytes=4_000)
    rows = pl.concat(
        pl.read_parquet(part, columns=["actionType", "partitionValues", "path"])
        for part in sorted((tmp_path / "out").glob("*.parquet"))
    )
    for kind, count in (("add", 72), ("remove", 40)):
        found = []
        for values, path in rows.filter(actionType=kind).select("partitionValues", "path").rows():
            found.append((values.get("n"), values.get("s"), path))
        assert len(found) == count
        assert found == _expected(found)


# --- sorting ---------------------------------------------------------------------------------


def _order(*columns: tuple[str, str]) -> FileOrder:
    schema = contract.Struct(
        tuple(contract.Field(name, contract.Primitive(type_)) for name, type_ in columns)
    )
    return FileOrder(schema, tuple(name for name, _ in columns))


def _random_frames(rng: random.Random, rows: int, batch: int) -> list[pl.DataFrame]:
    frames = []
    for start in range(0, rows, batch):
        count = min(batch, rows - start)
        values = [{"x": rng.choice(["1", "2", "10", "1e3", "nan", "", None])} for _ in range(count)]
        paths = [f"{rng.randrange(10**9)}-{start + number}" for number in range(count)]
        columns: dict[str, Any] = {
            "actionType": ["add"] * count,
            "path": paths,
            "partitionValues": pl.Series(values, dtype=pl.Map(pl.String, pl.String)),
        }
        if start % (2 * batch):
            columns["stats"] = [f"of {path}" for path in paths]
        frames.append(pl.DataFrame(columns))
    return frames


@pytest.mark.parametrize("held_bytes", [1, 3_000, 30_000, 10_000_000])
def test_what_waits_on_disk_is_merged_to_what_one_sort_in_memory_gives(held_bytes: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    frames = _random_frames(random.Random(seed), 3_000, 37)
    order = _order(("x", "double"))
    whole = order.sorted(pl.concat(frames, how="diagonal"))
    found = pl.concat(in_order(frames, order, held_bytes=held_bytes), how="diagonal")
    assert found.equals(whole.select(found.columns))
    assert set(found.columns) == set(whole.columns)


def test_adds_and_removes_are_sorted_apart() -> None:
    order = _order()
    adds = pl.DataFrame({"actionType": "add", "path": ["b", "d", "a"]})
    removes = pl.DataFrame({"actionType": "remove", "path": ["c", "a"]})
    found = pl.concat(in_order([adds[:1], adds[1:], removes], order, held_bytes=1))
    assert found["path"].to_list() == ["a", "b", "d", "a", "c"]
    assert found["actionType"].to_list() == ["add"] * 3 + ["remove"] * 2


def test_sorting_that_has_no_room_on_disk_raises_the_error_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoRoomError(UnavailableError):
        pass

    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    frames = _random_frames(random.Random(1), 100, 50)
    with pytest.raises(NoRoomError):
        list(in_order(frames, _order(), held_bytes=1, error=NoRoomError))
