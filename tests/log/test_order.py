"""File actions are written by partition values, minimum values, then path, in every layout."""

from __future__ import annotations

import itertools
import json
import random
import re
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakelog
from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.checkpoint.write import write_checkpoint
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.delta.paths import encode_paths
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.errors import UnavailableError
from lakelog.log import file_order
from lakelog.log.context import Log
from lakelog.log.file_order import FileOrder, in_order, leading_columns
from lakelog.model import contract
from lakelog.storage import open_store
from tests.budget import seeded
from tests.handmade import Handmade, add, metadata, protocol

NUMBERS = (None, "", "9", "10", "-1", "100", "2")
NAMES = ("b", "a", "c z", "B")
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
    files: list[dict[str, Any]] = [
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
                    **_statistics(format, _min_id_of(file["path"])),
                )
    with table.transaction() as tx:
        for file in files[:40]:
            values = {"n": file["n"], "s": file["s"]}
            tx.remove(path=file["path"], deletionTimestamp=1 << 50, partitionValues=values)
    return table


def _min_id_of(path: str) -> int | None:
    """The minimum ``id`` in the statistics of a file: of few values, so that some tie."""
    number = int(re.findall(r"\d+", path.replace("%20", " "))[-1])
    return None if number % 5 == 0 else 9 + number * 37 % 3


def _statistics(format: str, least: int | None) -> dict[str, Any]:
    if least is None:
        return {}
    if format == "delta":
        bounds = {"numRecords": 1, "minValues": {"id": least}, "maxValues": {"id": 99}}
        return {"stats": json.dumps(bounds)}
    return {"numRecords": 1, "minValues": {"id": str(least)}, "maxValues": {"id": "99"}}


def _expected(
    files: list[tuple[str | None, str | None, str]], kind: str = "add"
) -> list[tuple[Any, ...]]:
    """The model: integers by value, texts by bytes, nulls first, then minimum id of adds, then
    path.
    """

    def key(file: tuple[str | None, str | None, str]) -> tuple[Any, ...]:
        n, s, path = file
        number = (False, 0) if not n else (True, int(n))
        least = _min_id_of(path) if kind == "add" else None
        by_least = (least is not None, least or 0)
        return (number, (s is not None, (s or "").encode()), by_least, path.encode())

    return sorted(files, key=key)


def _files_of_checkpoint(log: Log, kind: str) -> list[list[tuple[Any, ...]]]:
    """File actions of each file of the newest checkpoint, in stored order."""
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


@pytest.mark.sampled(4, keep=("layout",))
@pytest.mark.parametrize("bounded", [False, True], ids=["unbounded", "bounded"])
@pytest.mark.parametrize(
    ("format", "layout", "properties", "reader"), LAYOUTS, ids=[each[1] for each in LAYOUTS]
)
def test_file_actions_of_a_checkpoint_are_sorted_by_partition_values_statistics_and_path(
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
    limit = 8 << 30 if bounded else None
    write_checkpoint(log, layout=layout, options=_SMALL, memory_limit=limit)
    for kind, count in (("add", 72), ("remove", 40)):
        found = _files_of_checkpoint(log, kind)
        assert sum(map(len, found)) == count
        for rows in found:
            assert rows == _expected(rows, kind)


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
                **_statistics("delta", _min_id_of(str(number))),
            )
    report = write_checkpoint(log, layout="v2-json", options=options)
    assert report.reused_files
    (new,) = [p for p in report.paths if "_sidecars" in p][: -report.reused_files]
    adds = pq.read_table(tmp_path / "t" / new)["add"].drop_null().to_pylist()
    paths = encode_paths(pl.Series([unquote(a["path"]) for a in adds]))
    values = [dict(a["partitionValues"]) for a in adds]
    rows = [(value["n"], value["s"], path) for value, path in zip(values, paths, strict=True)]
    assert {path for _, _, path in rows} >= {f"new-{number}" for number in range(1, 6)}
    assert rows == _expected(rows)


@pytest.mark.parametrize("format", ["delta", "indextables"])
def test_write_parquet_sorts_files_by_partition_values_statistics_and_path(
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
        assert found == _expected(found, kind)


@pytest.mark.parametrize("copies", ["text", "typed", "both"])
def test_minimum_values_are_used_in_every_form_that_a_checkpoint_keeps(
    tmp_path: Path, copies: str
) -> None:
    properties = {
        "delta.checkpoint.writeStatsAsJson": str(copies != "typed").lower(),
        "delta.checkpoint.writeStatsAsStruct": str(copies != "text").lower(),
    }
    table = _table(tmp_path / "t", "delta", properties, None)
    table.checkpoint()
    with table.transaction() as tx:
        tx.add(path="x/part 7", partitionValues={"n": "9", "s": "a"}, size=1, modificationTime=1)
    table.checkpoint()
    log = Log(open_store(str(tmp_path / "t")), DELTA)
    checkpoint = log.list_since(0).checkpoints[-1]
    assert checkpoint.version == table.snapshot().version
    adds = pq.read_schema(tmp_path / "t" / checkpoint.paths[0]).field("add").type
    kept = {field.name for field in adds}
    forms = {"text": {"stats"}, "typed": {"stats_parsed"}, "both": {"stats", "stats_parsed"}}
    assert kept & forms["both"] == forms[copies]
    (rows,) = _files_of_checkpoint(log, "add")
    expected = _expected([row for row in rows if row[2] != "x/part%207"])
    assert [row for row in rows if row[2] != "x/part%207"] == expected
    assert rows != sorted(rows, key=lambda row: row[2])


def _field(name: str, type_: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": True, "metadata": {}}


@pytest.mark.parametrize("indexed", ["32", "0"])
def test_files_of_a_clustered_table_are_sorted_by_its_clustering_columns(
    tmp_path: Path, indexed: str
) -> None:
    made = Handmade(tmp_path / "t")
    domain = {"clusteringColumns": [["d"], ["b", "c"]]}
    clustered = {"domain": "delta.clustering", "configuration": json.dumps(domain)}
    inner = {"type": "struct", "fields": [_field("c", "string")]}
    fields = [_field("a", "long"), _field("b", inner), _field("d", "date")]
    bounds = {"a": (3, 1, 2, 4), "c": ("x", "y", "é", None), "d": (5, 10, 5, 5)}
    files = []
    for number, (a, c, d) in enumerate(zip(*bounds.values(), strict=True)):
        least = {"a": a, "b": {"c": c}, "d": f"2026-01-{d:02}"}
        stats = {"numRecords": 1, "minValues": least, "maxValues": least}
        files.append(add(f"{9 - number}", stats=json.dumps(stats)))
    features = ["clustering", "domainMetadata"]
    made.commit(
        0,
        protocol(1, 7, writerFeatures=features),
        metadata(*fields, properties={"delta.dataSkippingNumIndexedCols": indexed}),
        {"domainMetadata": {**clustered, "removed": False}},
        *files,
    )
    made.table.checkpoint()
    log = Log(open_store(str(tmp_path / "t")), DELTA)
    reader = log.dialect.open_checkpoint(log.store, log.list_since(0).checkpoints[-1])
    paths = pl.concat(reader.iter_files(("path",), ("add",)))["path"].to_list()
    assert paths == ["6", "9", "7", "8"]


@pytest.mark.parametrize("held_bytes", [None, 2_000])
def test_first_column_with_bounds_leads_if_the_table_is_not_clustered(
    held_bytes: int | None,
) -> None:
    flag, number = contract.Primitive("binary"), contract.Primitive("double")
    inner = contract.Struct((contract.Field("x", flag), contract.Field("y", number)))
    fields = (contract.Field("p", number), contract.Field("s", inner), contract.Field("z", number))
    schema = contract.Struct(fields)
    leading = leading_columns(schema, ("p",), "none", pl.DataFrame({"actionType": ["protocol"]}))
    assert leading == (("s", "y"),)
    rng = random.Random(3)
    least = [rng.choice([None, -1.5, 2.0, 10.0, 1e300]) for _ in range(500)]
    rows = pl.DataFrame(
        {
            "actionType": "add",
            "path": [f"{rng.randrange(100):02}-{number}" for number in range(500)],
            "stats": [
                None if each is None else json.dumps({"minValues": {"s": {"y": each}, "z": 1}})
                for each in least
            ],
        }
    )
    order = FileOrder(schema, (), leading=leading)
    found = pl.concat(in_order(rows.iter_slices(40), order, held_bytes=held_bytes))
    expected = rows.with_columns(y=pl.Series(least)).sort("y", "path", nulls_last=False)
    assert found["path"].to_list() == expected["path"].to_list()
    assert found.columns == rows.columns


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
def test_merge_from_disk_equals_one_sort_in_memory(held_bytes: int) -> None:
    frames = _random_frames(seeded(), 3_000, 37)
    order = _order(("x", "double"))
    whole = pl.concat(frames, how="diagonal")
    whole = whole[order.positions(order.keys(whole), whole["path"])]
    found = pl.concat(in_order(frames, order, held_bytes=held_bytes), how="diagonal")
    assert found.equals(whole.select(found.columns))
    assert set(found.columns) == set(whole.columns)


def test_adds_and_removes_are_sorted_separately() -> None:
    order = _order()
    adds = pl.DataFrame({"actionType": "add", "path": ["b", "d", "a"]})
    removes = pl.DataFrame({"actionType": "remove", "path": ["c", "a"]})
    found = pl.concat(in_order([adds[:1], adds[1:], removes], order, held_bytes=1))
    assert found["path"].to_list() == ["a", "b", "d", "a", "c"]
    assert found["actionType"].to_list() == ["add"] * 3 + ["remove"] * 2


def test_sort_without_disk_space_raises_the_requested_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoRoomError(UnavailableError):
        pass

    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    frames = _random_frames(random.Random(1), 100, 50)
    with pytest.raises(NoRoomError):
        list(in_order(frames, _order(), held_bytes=1, error=NoRoomError))


_DAYS = st.dates(date(1, 1, 1), date(9999, 12, 31))
_KEYS = (
    (pl.Int64(), st.integers(-3, 3) | st.integers(-(1 << 63), (1 << 63) - 1)),
    (pl.Int32(), st.integers(-3, 3) | st.integers(-(1 << 31), (1 << 31) - 1)),
    (pl.Boolean(), st.booleans()),
    (pl.String(), st.sampled_from(["", "a", "B", "é", "a\U00010348", "\uffff"])),
    (pl.Date(), st.sampled_from([date(1970, 1, 1), date(2024, 2, 29)]) | _DAYS),
    (pl.Datetime("us"), st.datetimes()),
    (pl.Float64(), st.floats(-1, 1)),
    (pl.Decimal(20, 2), st.decimals(-1, 1, places=2)),
)


@st.composite
def _keyed(draw: st.DrawFn) -> pl.DataFrame:
    chosen = draw(st.lists(st.sampled_from(_KEYS), min_size=1, max_size=4))
    height = draw(st.integers(1, 12))
    return pl.DataFrame(
        [
            pl.Series(
                f"order.{number}",
                draw(st.lists(st.none() | values, min_size=height, max_size=height)),
                dtype=dtype,
            )
            for number, (dtype, values) in enumerate(chosen)
        ]
    )


@given(_keyed(), st.randoms(use_true_random=False))
def test_packed_keys_give_the_order_of_the_keys(keys: pl.DataFrame, rng: random.Random) -> None:
    paths = [f"part {number}" for number in range(keys.height)]
    rng.shuffle(paths)
    order = FileOrder(contract.Struct(()), ("n",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_order, "_FEW_ROWS", 0)
        found = order.positions(keys, pl.Series(paths)).tolist()

    def model(row: int) -> tuple[Any, ...]:
        values = [(value is not None, value) for value in keys.row(row)]
        return (*((known, value) if known else (known,) for known, value in values), paths[row])

    assert found == sorted(range(keys.height), key=model)


def test_keys_beyond_the_range_of_one_integer_are_not_packed() -> None:
    wide = pl.DataFrame({"order.0": [-(1 << 63), (1 << 63) - 1], "order.1": [1, 2]})
    assert file_order._packed(wide).columns == wide.columns
    narrow = pl.DataFrame({"order.0": [None, 7], "order.1": ["b", "a"]})
    assert file_order._packed(narrow).width == 1
