"""Updates that copy the column chunks of other columns as they are encoded."""

from __future__ import annotations

import datetime as dt
import json
import random
import subprocess
import sys
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
from lakelog.dialects.thrift_compact import (
    Value,
    read_list,
    read_struct,
    write_list,
    write_number,
    write_struct,
)
from lakelog.errors import CorruptionError, LakelogError
from lakelog.model import contract
from tests.budget import rng_of, share_of
from tests.footers import rewritten_footer

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


def test_update_encodes_only_the_columns_with_new_values(tmp_path: Path, copied: list[str]) -> None:
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


def test_file_that_lacks_new_columns_and_has_dropped_ones_is_copied(
    tmp_path: Path, copied: list[str]
) -> None:
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
    def new_table(name: str, metadata: dict[str, str] | None = None, **more: Any) -> Table:
        path = tmp_path / name
        path.mkdir()
        frame = ROWS.to_arrow(compat_level=pl.CompatLevel.oldest())
        pq.write_table(frame.replace_schema_metadata(metadata), path / "rows.parquet")
        lakelog.convert(path, **more)
        return lakelog.open(path, upkeep=False)

    old = new_table("calendar", {"org.apache.spark.version": "2.4.8"})
    update(old)
    marked = new_table("vectors", configuration={"delta.enableDeletionVectors": "true"})
    marked.delete("id = 5")
    marked.alter.set_properties({"delta.enableDeletionVectors": "false"})
    update(marked)
    update(new_table("codec"), compression="zstd")
    assert copied == []
    assert old.to_polars().equals(UPDATED.select(old.to_polars().columns))
    assert marked.to_polars().height == COUNT - 1


def test_many_short_chunks_are_decoded(
    tmp_path: Path, copied: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.data.rewrite._COPIED_BYTES", 1 << 12)
    pq.write_table(ROWS.select("id", "x").to_arrow(), tmp_path / "rows.parquet", row_group_size=2)
    lakelog.convert(tmp_path)
    update(lakelog.open(tmp_path, upkeep=False))
    assert copied == []


@pytest.mark.parametrize("mode", ["id", "none"])
def test_columns_with_other_names_in_the_file_are_decoded(
    tmp_path: Path, copied: list[str], mode: str
) -> None:
    schema = {"k": pl.Int64, "a": pl.Int64, "b": pl.Int64}
    properties = {"delta.columnMapping.mode": mode, "delta.dataSkippingStatsColumns": "k"}
    table = lakelog.create(tmp_path, schema, configuration=properties, upkeep=False)
    # By their ids, "x" is "a" and "a" is "b".
    names = ["k", "x", "a"] if mode == "id" else ["K", "a", "b"]
    fields = [
        pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)})
        for number, name in enumerate(names, 1)
    ]
    columns = [pa.array(range(n, n + 9)) for n in (0, 10, 20)]
    rows = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    pq.write_table(rows, tmp_path / "rows.parquet")
    physical = {
        f.name: f.metadata.get("delta.columnMapping.physicalName", f.name)
        for f in table.snapshot().schema.fields
    }
    least = {"k": 0, "a": 10} if mode == "id" else {"k": 0}
    stats = {
        "numRecords": 9,
        "minValues": {physical[name]: bound for name, bound in least.items()},
        "maxValues": {physical[name]: bound + 8 for name, bound in least.items()},
    }
    size = (tmp_path / "rows.parquet").stat().st_size
    with table.transaction() as tx:
        tx.add(path="rows.parquet", size=size, partitionValues={}, stats=json.dumps(stats))
    table.update({"a": 99_999})
    assert copied == []
    assert table.to_polars("a > 5000").height == 9
    assert table.to_polars()["b"].to_list() == list(range(20, 29))
    found = json.loads(table.snapshot().files().collect()["stats"][0])
    assert found["maxValues"] == {physical["k"]: 8}


NESTED = ROWS.with_columns(
    inside=pl.struct("inside", deep=pl.concat_list(pl.struct(n="id", t="s"))),
    named=pl.lit({"a": {"n": 1}}, dtype=pl.Map(pl.String, pl.Struct({"n": pl.Int64}))),
)


def ids_of(type_: pa.DataType, path: str = "") -> dict[str, str]:
    """The field ids of an Arrow type, by path."""
    found = {}
    for field in (type_.field(n) for n in range(type_.num_fields)):
        name = f"{path}.{field.name}"
        if (number := (field.metadata or {}).get(b"PARQUET:field_id")) is not None:
            found[name] = number.decode()
        found |= ids_of(field.type, name)
    return found


@pytest.mark.parametrize("verb", ["update", "merge"])
def test_files_without_field_ids_get_them_when_they_are_copied(
    tmp_path: Path, copied: list[str], verb: str
) -> None:
    def change() -> dict[str, str]:
        if verb == "update":
            update(table)
        else:
            source = pl.DataFrame({"id": [5], "x": [0.5]})
            table.merge(source, on="id").when_matched_update({"x": "source.x"}).execute()
        return ids_of(pa.struct(list(pq.read_schema(data_file(tmp_path)))))

    lakelog.write(tmp_path, NESTED)
    table = lakelog.open(tmp_path, upkeep=False)
    assert change() == {}
    assert len(copied) == 1
    table.alter.rename_column("s", "text", enable=True)
    rows = table.to_polars().drop("x")
    expected = {
        located.field.metadata["delta.columnMapping.id"]
        for located in contract.fields_of(table.snapshot().schema)
    }
    ids = change()
    assert len(copied) == 1
    assert sorted(map(int, ids.values())) == sorted(expected)
    assert change() == ids  # now they are copied
    assert len(copied) == 2
    table.compact(order_by="id")
    assert ids_of(pa.struct(list(pq.read_schema(data_file(tmp_path))))) == ids
    assert table.to_polars().drop("x").equals(rows)


@pytest.mark.parametrize("path", ["s", "inside.a", "many"])
def test_files_with_other_field_ids_are_decoded(
    tmp_path: Path, copied: list[str], path: str
) -> None:
    lakelog.write(tmp_path, ROWS, configuration={"delta.columnMapping.mode": "name"})
    table = lakelog.open(tmp_path, upkeep=False)
    top, *inner = path.split(".")
    schema = pq.read_schema(data_file(tmp_path))
    physical = {
        f.name: f.metadata["delta.columnMapping.physicalName"]
        for f in table.snapshot().schema.fields
    }
    index = schema.names.index(physical[top])
    wrong = {"PARQUET:field_id": "77"}
    field = schema.field(index)
    if inner:
        first, *others = field.type.fields
        field = field.with_type(pa.struct([first.with_metadata(wrong), *others]))
    else:
        field = field.with_metadata(wrong)
    rows = pq.read_table(data_file(tmp_path)).cast(schema.set(index, field))
    pq.write_table(rows, tmp_path / "other.parquet", store_schema=False)
    size = (tmp_path / "other.parquet").stat().st_size
    before = table.snapshot().files().collect()
    with table.transaction() as tx:
        tx.remove(path=before["path"][0])
        tx.add(path="other.parquet", size=size, partitionValues={}, stats=before["stats"][0])
    update(table)
    assert copied == []
    assert "77" not in ids_of(pa.struct(list(pq.read_schema(data_file(tmp_path))))).values()
    assert table.to_polars().equals(UPDATED.select(table.to_polars().columns))


def test_fields_with_negative_numbers_are_kept() -> None:
    fields = {-3: write_number(4), 2: write_number(-5), 300: write_number(6)}
    assert read_struct(write_struct(fields)) == fields


def overlapping_chunk(fields: dict[int, Value]) -> None:
    """Make the chunk of the first column end after that of the second."""
    (encoded,) = read_list(fields[4])
    group = read_struct(encoded)
    first, *others = read_list(group[1])
    chunk = read_struct(first)
    metadata = read_struct(chunk[3].data)
    metadata[7] = write_number(20_000)
    chunk[3] = Value(chunk[3].type, write_struct(metadata))
    group[1] = write_list([write_struct(chunk), *others])
    fields[4] = write_list([write_struct(group)])


ODD_FOOTERS: dict[str, Callable[[dict[int, Value]], object]] = {
    "key-value metadata of another type": lambda fields: fields.update({5: write_number(1)}),
    "column orders of another type": lambda fields: fields.update({7: write_number(1)}),
    "overlapping chunks": overlapping_chunk,
}


@pytest.mark.parametrize("odd", ODD_FOOTERS)
def test_files_with_odd_footers_are_decoded(tmp_path: Path, copied: list[str], odd: str) -> None:
    rows = ROWS.select("id", "m", "x")
    pq.write_table(rows.to_arrow(), tmp_path / "rows.parquet", use_dictionary=False)
    rewritten_footer(tmp_path / "rows.parquet", ODD_FOOTERS[odd])
    lakelog.convert(tmp_path)
    table = lakelog.open(tmp_path, upkeep=False)
    update(table)
    assert copied == []
    assert table.to_polars().equals(UPDATED.select(rows.columns))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('"\\ud83d"', None),
        ("[" * 400 + "]" * 400, "[" * 400 + "]" * 400),
        ("[1, 2.50]", "[1,2.50]"),
        ('{"a": 1e-7}', '{"a":1e-7}'),
        ('"\\ud840\\udc00"', '"\U00020000"'),  # delta-rs decodes these escapes to U+10000
    ],
)
def test_unusual_statistics_are_kept_or_dropped(
    tmp_path: Path, copied: list[str], text: str, kept: str | None
) -> None:
    pq.write_table(ROWS.select("id", "s", "x").to_arrow(), tmp_path / "rows.parquet")
    size = (tmp_path / "rows.parquet").stat().st_size
    schema = {"id": pl.Int64, "s": pl.String, "x": pl.Float64}
    table = lakelog.create(tmp_path, schema, upkeep=False)
    stats = f'{{"numRecords": {COUNT}, "minValues": {{"s": {text}}}}}'
    add = {"path": "rows.parquet", "size": size, "partitionValues": {}, "modificationTime": 0}
    line = json.dumps({"add": {**add, "dataChange": True, "stats": stats}})
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(line)
    update(table)
    assert len(copied) == 1
    (found,) = table.snapshot().files().collect()["stats"]
    assert (f'"s":{kept}' in found) == (kept is not None)


FULL_DISK = """
import resource, signal, sys, threading
import polars as pl, lakelog

table = lakelog.open(sys.argv[1], upkeep=False)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
for _ in range(5):
    try:
        table.update({"x": pl.col("x") + 1}, "id % 1000 = 0")
    except lakelog.UnavailableError as error:
        print(error.message)
print([each.name for each in threading.enumerate() if "lakelog-rows" in each.name])
"""


def test_no_thread_is_left_when_the_disk_is_full(tmp_path: Path) -> None:
    """Otherwise garbage collection closes the reader, in any thread, and waits for its threads."""
    count = 60_000
    random_ = np.random.default_rng(0)
    for _ in range(3):
        columns = {name: random_.random(count) for name in ("v", "w", "x")}
        lakelog.write(tmp_path, pl.DataFrame({"id": range(count), **columns}))
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    *failures, threads = done.stdout.splitlines()
    assert len(failures) == 5
    assert threads == "[]"


def test_merge_with_only_updates_copies_columns(tmp_path: Path, copied: list[str]) -> None:
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


def test_merge_copies_keys_that_keep_their_values(tmp_path: Path, copied: list[str]) -> None:
    lakelog.write(tmp_path, ROWS, compression="zstd")
    table = lakelog.open(tmp_path, upkeep=False)
    source = ROWS.filter(pl.col("id") % 9 == 1).with_columns(x=-pl.col("x"), s=pl.lit("new"))
    done = table.upsert(source.rename({"id": "ID"}), on="id")
    assert (done.num_updated_rows, len(copied)) == (source.height, 1)
    group = pq.read_metadata(data_file(tmp_path)).row_group(0)
    leaves = [group.column(leaf) for leaf in range(group.num_columns)]
    assert [leaf.path_in_schema for leaf in leaves if leaf.compression == "ZSTD"] == ["id"]
    expected = ROWS.update(source, on="id")
    assert table.to_polars().equals(expected.select(table.to_polars().columns))


@pytest.mark.parametrize("key", ["P", "q"])
def test_copies_have_the_partition_of_their_source(
    tmp_path: Path, copied: list[str], key: str
) -> None:
    rows = ROWS.select("id", "x", p=pl.lit("a"))
    lakelog.write(tmp_path, rows, partition_by=["p"])
    commit = tmp_path / "_delta_log/00000000000000000000.json"
    written = '"partitionValues":{"p":"a"}'
    assert written in commit.read_text()
    commit.write_text(commit.read_text().replace(written, written.replace('"p"', f'"{key}"')))
    table = lakelog.open(tmp_path, upkeep=False)
    if key == "q":
        with pytest.raises(CorruptionError, match="partition value"):
            update(table)
        return
    update(table)
    assert copied
    assert table.to_polars("p = 'a'").height == COUNT
    (values,) = table.snapshot().files().collect()["partitionValues"].to_list()
    assert dict(values) == {"p": "a"}


@pytest.mark.parametrize("key", ["id", "x"])
def test_merge_writes_keys_that_may_change(tmp_path: Path, copied: list[str], key: str) -> None:
    lakelog.write(tmp_path, ROWS)
    table = lakelog.open(tmp_path, upkeep=False)
    source = pl.DataFrame({"id": [-7], "x": [-0.0], "other": [0]})  # 0.0 and -0.0 are equal keys
    merge = table.merge(source, {"id": "other"} if key == "id" else "x")
    merge.when_matched_update({"s": "'never'"}, "source.other = 1").when_matched_update_all(
        except_cols=["other"]
    ).execute()
    assert copied
    first = table.to_polars(pl.col("x") == 0)["id", "x"].row(0)
    assert str(first) == "(-7, -0.0)"


def test_decimals_of_statistics_keep_their_digits(tmp_path: Path) -> None:
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


def test_column_that_disappeared_from_the_file_raises(tmp_path: Path) -> None:
    lakelog.write(tmp_path, ROWS)
    table = lakelog.open(tmp_path, upkeep=False)
    file = data_file(tmp_path)
    size = file.stat().st_size
    pq.write_table(pq.read_table(file).drop_columns(["s"]), file, compression="zstd")
    data = file.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    assert len(data) <= size
    # The same length as before: bytes between the last chunk and the footer belong to neither.
    file.write_bytes(data[:-footer] + bytes(size - len(data)) + data[-footer:])
    with pytest.raises(CorruptionError, match="has no column 's'"):
        update(table)
    assert table.version() == 0


def test_update_of_a_damaged_file_gives_correct_rows_or_raises(tmp_path: Path) -> None:
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
                # The damaged bytes may not be in the copy.
                rows = table.snapshot(0).scan().collect() if before is None else before
                hit = pl.col("id") % 10 == 3
                expected = rows.with_columns(x=pl.when(hit).then(pl.col("x") * 2).otherwise("x"))
                assert after.equals(expected)
            file.write_bytes(whole)
            table.restore(version)
    assert outcomes == {"refused", "updated"}
