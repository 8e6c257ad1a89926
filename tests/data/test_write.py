"""`DataFileWriter`: rows by partition, in bounded memory, and no files left after an error."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog import Table
from lakelog.data.conform import Conform
from lakelog.data.parquet_file import ParquetGroups
from lakelog.data.write import DataFileWriter, WritePlan
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    UnavailableError,
    UnsupportedFeatureError,
)
from lakelog.storage import LogStore, open_store
from lakelog.storage.base import StoreWrapper, Upload
from lakelog.testing import InjectingStore, Rule
from tests.data.rows import data_files
from tests.handmade import Handmade, field, metadata, protocol

SCHEMA = {"p": pl.String, "id": pl.Int64, "x": pl.Float64}


def table_at(
    path: Path,
    schema: Any = None,
    by: Sequence[str] = ("p",),
    **configuration: str,
) -> Table:
    return lakelog.create(
        path, schema or SCHEMA, by, configuration=configuration or None, upkeep=False
    )


def frame(count: int, partitions: int = 3) -> pl.DataFrame:
    rng = random.Random(count)
    return pl.DataFrame(
        {
            "p": [f"p{rng.randrange(partitions)}" for _ in range(count)],
            "id": range(count),
            "x": [rng.random() for _ in range(count)],
        },
        schema=SCHEMA,
    )


def write_now(writer: DataFileWriter, rows: pl.DataFrame) -> None:
    """Write rows and distribute them immediately, as the writer does with a million rows."""
    writer.write(rows)
    writer._split()


def commit(table: Table, files: pl.DataFrame) -> pl.DataFrame:
    """The table's rows after the files are committed."""
    with table.transaction() as tx:
        tx.add(files)
    return table.snapshot().scan().collect()


class OpenFiles(StoreWrapper):
    """A store that counts open uploads, and their maximum."""

    def __init__(self, store: LogStore) -> None:
        super().__init__(store)
        self.uploads: list[Upload] = []
        self.most = 0

    def upload(self, path: str) -> Upload:
        self.uploads.append(super().upload(path))
        self.most = max(self.most, sum(not upload.closed for upload in self.uploads))
        return self.uploads[-1]


def test_rows_are_distributed_by_partition(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    rows = frame(1000)
    with DataFileWriter(WritePlan.of(table.snapshot()), number=7) as writer:
        for part in rows.iter_slices(100):
            writer.write(part.to_arrow().to_batches()[0])
        files = writer.finish()
    assert files["path"].to_list() == data_files(tmp_path)
    assert [path.split("/")[0] for path in files["path"]] == ["p=p0", "p=p1", "p=p2"]
    assert all("/part-00007-" in path for path in files["path"])
    assert files["size"].to_list() == [(tmp_path / p).stat().st_size for p in files["path"]]
    values = files.select(pl.col("partitionValues").map.get("p")).to_series()
    assert values.to_list() == ["p0", "p1", "p2"]
    schema = pq.read_schema(tmp_path / files["path"][0])
    assert (schema.names, schema.metadata) == (["id", "x"], None)
    assert commit(table, files).sort("id").equals(rows)


def test_rows_of_a_partition_keep_their_order(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    with DataFileWriter(WritePlan.of(table.snapshot())) as writer:
        writer.write(frame(500))
        files = writer.finish()
    for path in files["path"]:
        ids = pq.read_table(tmp_path / path, partitioning=None)["id"].to_pylist()
        assert ids == sorted(ids)


def test_interrupt_after_all_files_were_written_deletes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lakelog.data.write._frame", interrupted)
    table = table_at(tmp_path)
    with DataFileWriter(WritePlan.of(table.snapshot())) as writer:
        writer.write(frame(50))
        with pytest.raises(KeyboardInterrupt):
            writer.finish()
        assert len(data_files(tmp_path)) == 3
    assert data_files(tmp_path) == []


def test_rows_of_many_partitions_are_spilled_to_disk_if_few_files_may_be_open(
    tmp_path: Path,
) -> None:
    table = table_at(tmp_path)
    rows = frame(20_000, partitions=50)
    store = OpenFiles(open_store(str(tmp_path)))
    writer = DataFileWriter(
        WritePlan.of(table.snapshot()), store=store, memory_bytes=50_000, open_files=4
    )
    with writer:
        for part in rows.iter_slices(1000):
            write_now(writer, part)
        files = writer.finish()
    assert files.height == 50
    assert store.most <= 4 + 8  # files that are finished concurrently
    assert commit(table, files).sort("id").equals(rows)


def test_files_have_about_the_target_size(tmp_path: Path) -> None:
    table = table_at(tmp_path, by=())
    plan = WritePlan.of(table.snapshot(), target_file_bytes=20_000)
    rows = frame(10_000)
    with DataFileWriter(plan, memory_bytes=30_000) as writer:
        for part in rows.iter_slices(500):
            writer.write(part)
        files = writer.finish()
    assert files.height > 3
    assert (files["size"] < 60_000).all()
    assert commit(table, files).sort("id").equals(rows)
    # Also if all rows fit into memory.
    with DataFileWriter(plan) as writer:
        writer.write(rows)
        assert (writer.finish()["size"] < 60_000).all()


def test_properties_set_the_size_and_the_compression_of_files(tmp_path: Path) -> None:
    properties = {"delta.targetFileSize": "5mb", "delta.parquet.compression.codec": "ZSTD"}
    table = table_at(tmp_path, by=(), **properties)
    plan = WritePlan.of(table.snapshot())
    assert (plan.target_file_bytes, plan.compression) == (5 << 20, "zstd")
    with DataFileWriter(plan) as writer:
        writer.write(frame(10))
        files = writer.finish()
    assert files["path"][0].endswith(".zstd.parquet")
    footer = pq.read_metadata(tmp_path / files["path"][0])
    assert footer.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("codec", ["snappy", "gzip", "lz4_raw", "none", "zstd"])
def test_every_codec_is_read_back(tmp_path: Path, codec: str) -> None:
    table = table_at(tmp_path)
    with DataFileWriter(WritePlan.of(table.snapshot(), compression=codec)) as writer:
        writer.write(frame(20))
        files = writer.finish()
    assert commit(table, files).sort("id").equals(frame(20))


def test_several_files_are_written_at_the_same_time_and_none_is_lost(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    rows = frame(5000, partitions=40)
    plan = WritePlan.of(table.snapshot(), target_file_bytes=2000)
    with DataFileWriter(plan, workers=4, memory_bytes=40_000) as writer:
        for part in rows.iter_slices(700):
            write_now(writer, part)
        files = writer.finish()
    assert files["path"].is_unique().all()
    assert files.height > 40
    assert commit(table, files).sort("id").equals(rows)


def test_files_of_a_table_without_partitions_are_written_concurrently(tmp_path: Path) -> None:
    table = table_at(tmp_path, by=())
    rows = frame(10_000)
    store = OpenFiles(open_store(str(tmp_path)))
    plan = WritePlan.of(table.snapshot())
    with DataFileWriter(plan, store=store, workers=3, memory_bytes=100_000) as writer:
        for part in rows.iter_slices(200):
            writer.write(part)
        files = writer.finish()
    assert files.height == store.most == 3
    assert commit(table, files).sort("id").equals(rows)
    with DataFileWriter(plan, workers=3) as writer:
        writer.write(rows)
        assert writer.finish().height == 1  # few rows are not scattered


@pytest.mark.parametrize(
    ("workers", "batch", "limit"), [(2, 10_000, 0), (2, 90, 0), (1, 333, 0), (3, 130, 4000)]
)
def test_no_row_group_is_much_shorter_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, batch: int, limit: int
) -> None:
    if not limit:
        monkeypatch.setattr("lakelog.data.write._ROW_GROUP_ROWS", 200)
    monkeypatch.setattr("lakelog.data.write._PIECE_ROWS", 50)
    plan = WritePlan.of(table_at(tmp_path, by=()).snapshot())
    for count in (201, 299, 301, 420, 1001, 1290):
        with DataFileWriter(
            plan, workers=workers, memory_bytes=2 * workers * limit or 1 << 20
        ) as w:
            for part in frame(count).iter_slices(batch):
                w.write(part)
            files = w.finish()["path"].to_list()
        read = [pq.ParquetFile(tmp_path / path) for path in files]
        groups = [file.read_row_group(n) for file in read for n in range(file.num_row_groups)]
        lengths = [len(group) for group in groups]
        assert sum(lengths) == count
        assert max(lengths) <= 3 * min(lengths), (count, lengths)
        assert len(files) <= workers
        for group in groups:  # of neighbouring rows
            ids = group["id"].to_pylist()
            assert ids == list(range(ids[0], ids[0] + len(ids)))


@pytest.mark.parametrize("seed", range(8))
def test_a_file_encoded_by_several_threads_is_that_of_one_thread(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.data.write._LEAST_GROUP_ROWS", 10)
    rng = random.Random(seed)
    count = rng.randrange(20, 90)
    rows = pl.DataFrame(
        {
            "id": range(count),
            "x": [rng.choice([None, float("nan"), -0.0, 2.5]) for _ in range(count)],
            "text": ["é" * rng.randrange(120) for _ in range(count)],
            "nested": [{"a": [n] * (n % 3), "b": str(n)} if n % 4 else None for n in range(count)],
            "money": pl.Series(range(count)).cast(pl.Decimal(18, 2)),
        }
    )
    table = table_at(tmp_path, rows.schema, by=())
    plan = WritePlan.of(table.snapshot())
    written = []
    for workers in (1, 4):
        with DataFileWriter(plan, workers=workers) as writer:
            writer.write(rows)
            written.append(writer.finish())
    one, many = (tmp_path / files["path"][0] for files in written)
    assert json.loads(written[0]["stats"][0]) == json.loads(written[1]["stats"][0])
    assert pq.read_metadata(one).num_row_groups == 1
    assert pq.read_metadata(many).num_row_groups == min(4, count // 10)
    assert pq.read_schema(many).equals(pq.read_schema(one), check_metadata=True)
    assert pq.read_table(many, page_checksum_verification=True).num_rows == count
    assert pl.read_parquet(many).equals(pl.read_parquet(one))
    query = f"select id, text, nested.b, money from read_parquet('{many}')"
    found = pl.DataFrame(duckdb.connect().sql(query).to_arrow_table())
    assert found.equals(rows.select("id", "text", pl.col("nested").struct.field("b"), "money"))
    assert commit(table, written[1]).sort("id").equals(rows)


def test_failed_encoding_by_one_of_several_threads_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.data.write._LEAST_GROUP_ROWS", 10)
    encode = ParquetGroups.encode

    def failing(file: ParquetGroups, rows: pa.Table) -> Any:
        if rows["id"][0].as_py():
            raise MemoryError
        return encode(file, rows)

    monkeypatch.setattr(ParquetGroups, "encode", failing)
    table = table_at(tmp_path, by=())
    with DataFileWriter(WritePlan.of(table.snapshot()), workers=3) as writer:
        writer.write(frame(40))
        with pytest.raises(MemoryError):
            writer.finish()
    assert data_files(tmp_path) == []


def test_aborted_write_leaves_no_file(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    plan = WritePlan.of(table.snapshot(), target_file_bytes=1000)
    with DataFileWriter(plan, memory_bytes=1000) as writer:
        write_now(writer, frame(1000))
        assert data_files(tmp_path)
    assert data_files(tmp_path) == []


def test_abort_deletes_finished_files_too(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    with DataFileWriter(WritePlan.of(table.snapshot())) as writer:
        writer.write(frame(10))
        writer.finish()
    assert data_files(tmp_path) == sorted(writer.paths)
    writer.abort()
    assert data_files(tmp_path) == []
    with pytest.raises(InvalidInputError, match="finished"):
        writer.write(frame(1))


def test_two_attempts_of_a_task_write_different_files(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    plan = WritePlan.of(table.snapshot())
    first, second = (DataFileWriter(plan, number=1) for _ in range(2))
    for writer in (first, second):
        writer.write(frame(10))
    kept = second.finish()
    first.finish()
    first.abort()
    assert data_files(tmp_path) == kept["path"].to_list()


def test_names_and_times_are_those_of_the_given_functions(tmp_path: Path) -> None:
    table = table_at(tmp_path, by=())
    plan = WritePlan.of(table.snapshot(), token="write")
    with DataFileWriter(plan, new_id=lambda: "0123-4567-89ab-cdef", clock=lambda: 42) as writer:
        writer.write(frame(1))
        files = writer.finish()
    assert files["path"].to_list() == ["part-00000-write-0123456789ab.c000.snappy.parquet"]
    assert files["modificationTime"].to_list() == [42]


def test_plan_is_small_and_can_be_pickled(tmp_path: Path) -> None:
    plan = WritePlan.of(table_at(tmp_path).snapshot(), {"key": "secret"}, token="t")
    assert plan.stats.leaves
    data = pickle.dumps(plan)
    assert len(data) < 2000
    assert pickle.loads(data) == plan
    assert "secret" not in repr(plan)


def test_mapped_columns_are_stored_with_their_physical_names_and_ids(tmp_path: Path) -> None:
    schema = {**SCHEMA, "s": pl.Struct({"a": pl.List(pl.Struct({"b": pl.Int64}))})}
    table = table_at(tmp_path, schema, **{"delta.columnMapping.mode": "name"})
    rows = frame(5).with_columns(
        s=pl.Series([{"a": [{"b": 1}, None]}, None, {"a": None}, {"a": []}, {"a": [{"b": None}]}])
    )
    with DataFileWriter(WritePlan.of(table.snapshot())) as writer:
        writer.write(rows)
        files = writer.finish()
    fields = {f.name: f for f in table.snapshot().schema.fields}
    physical = {n: f.metadata["delta.columnMapping.physicalName"] for n, f in fields.items()}
    written = pq.read_schema(tmp_path / files["path"][0])
    assert written.names == [physical[n] for n in ("id", "x", "s")]
    ids = {f.name: int(f.metadata[b"PARQUET:field_id"]) for f in written}
    assert ids == {
        physical[n]: fields[n].metadata["delta.columnMapping.id"] for n in ("id", "x", "s")
    }
    assert files["path"][0].startswith(f"{physical['p']}=")
    assert commit(table, files).sort("id").equals(rows)


def test_nested_columns_of_a_mapped_table_keep_their_rows_in_slices(tmp_path: Path) -> None:
    inner = pl.Struct({"b": pl.Int64})
    schema: dict[str, pl.DataType] = {
        "id": pl.Int64(),
        "m": pl.Map(pl.String, inner),
        "l": pl.List(inner),
        "s": inner,
    }
    table = table_at(tmp_path, schema, by=(), **{"delta.columnMapping.mode": "name"})
    rows = pl.DataFrame(
        {
            "id": range(6),
            "m": [{"k": {"b": 1}}, None, {}, {"z": None, "y": {"b": 2}}, {"x": {"b": None}}, {}],
            "l": [None, [], [{"b": 1}], [None, {"b": 2}], [{"b": None}], None],
            "s": [{"b": 1}, None, {"b": None}, {"b": 4}, {"b": 5}, None],
        },
        schema=schema,
    )
    # Arrow slices in the exact types of the files, so that no conversion copies them.
    arrow = Conform(table.snapshot().schema.fields).table(rows)
    with DataFileWriter(WritePlan.of(table.snapshot())) as writer:
        for start in (0, 1, 4):
            writer.write(arrow.slice(start, {0: 1, 1: 3, 4: 2}[start]))
        files = writer.finish()
    assert commit(table, files).sort("id").equals(rows)


def test_large_frames_are_written_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.data.write._SPLIT_ROWS", 64)
    rows = frame(1000)
    for name, given in (("polars", rows), ("arrow", rows.to_arrow())):
        table = table_at(tmp_path / name)
        with DataFileWriter(WritePlan.of(table.snapshot())) as writer:
            writer.write(given)
            files = writer.finish()
        assert commit(table, files).sort("id").equals(rows)


def test_rows_are_appended_to_tables_with_columns_that_are_never_written(tmp_path: Path) -> None:
    Handmade(tmp_path).commit(0, protocol(), metadata(field("a"), field("v", "void")))
    table = lakelog.open(tmp_path)
    table.append(pl.DataFrame({"a": [1, 2]}))
    table.upsert(pl.DataFrame({"a": [3]}), on=["a"])
    assert sorted(table.to_polars(columns=["a"])["a"]) == [1, 2, 3]
    assert {*pq.read_schema(tmp_path / data_files(tmp_path)[0]).names} == {"a"}
    table.append(table.to_polars())
    table.update({"a": 5}, pl.col("a") == 1)
    table.delete(pl.col("a") == 2)
    table.upsert(pl.DataFrame({"a": [3, 4]}), on=["a"])
    table.compact()
    assert sorted(table.to_polars().rows()) == [(3, None)] * 2 + [(4, None)] + [(5, None)] * 2


@pytest.mark.parametrize("mode", ["none", "name"])
def test_void_fields_of_structs_are_left_out_of_files(tmp_path: Path, mode: str) -> None:
    """As the protocol demands (Void Type); readers find null."""
    inner = {"type": "struct", "fields": [field("w", "void"), field("b", "string")]}
    outer = {"type": "struct", "fields": [field("u", "void"), field("i", inner), field("c")]}
    schema = json.dumps({"type": "struct", "fields": [field("id"), field("s", outer)]})
    properties = {"delta.columnMapping.mode": mode, "delta.enableChangeDataFeed": "true"}
    table = lakelog.create(tmp_path, schema, configuration=properties, upkeep=False)
    full = {"u": None, "i": {"w": None, "b": "x"}, "c": 1}
    table.append(pl.DataFrame({"id": [1, 2, 3], "s": [{"i": {"b": "x"}, "c": 1}, None, full]}))
    written = pq.read_schema(tmp_path / data_files(tmp_path)[0]).field(1).type
    assert [written.field(n).type.num_fields for n in range(written.num_fields)] == [1, 0]
    if mode == "none":
        stats = json.loads(table.snapshot().files().collect()["stats"][0])
        assert stats["nullCount"] == {"id": 0, "s": {"i": {"b": 1}, "c": 1}}
        assert stats["minValues"] == {"id": 1, "s": {"i": {"b": "x"}, "c": 1}}
    table.append(table.to_arrow())
    table.update({"id": 4}, "id = 2")
    table.delete("id = 3")
    table.upsert(table.to_polars().head(1).with_columns(id=pl.lit(9, pl.Int64)), on=["id"])
    table.compact()
    rows = table.to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": n, "s": None if n == 4 else full} for n in (1, 1, 4, 4, 9)]
    assert table.changes(0).collect().height == 6 + 4 + 2 + 1


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_failed_background_upload_raises_and_leaves_no_file(tmp_path: Path, nth: int) -> None:
    table = table_at(tmp_path, by=())
    store = InjectingStore(open_store(str(tmp_path)), [Rule("fail", "upload", nth=nth)])
    plan = WritePlan.of(table.snapshot(), target_file_bytes=2000)

    def written() -> None:
        with DataFileWriter(plan, store=store, workers=2, memory_bytes=20_000) as writer:
            for part in frame(10_000).iter_slices(100):
                writer.write(part)  # fails some parts later

    with pytest.raises(OSError, match="injected"):
        written()
    assert data_files(tmp_path) == []


def test_full_local_disk_raises_unavailable_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_at(tmp_path)

    def full(**_: Any) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    writer = DataFileWriter(WritePlan.of(table.snapshot()), memory_bytes=100, open_files=1)
    with writer, pytest.raises(UnavailableError, match="full"):
        write_now(writer, frame(100))
    assert data_files(tmp_path) == []


@pytest.mark.parametrize("spelled", ['"last"', '["last"]'])
def test_clustering_columns_always_have_statistics(tmp_path: Path, spelled: str) -> None:
    handmade = Handmade(tmp_path)
    features = ["clustering", "domainMetadata"]
    names = [f"c{number:02}" for number in range(40)]
    domain = {
        "domain": "delta.clustering",
        "configuration": f'{{"clusteringColumns":[{spelled}]}}',
        "removed": False,
    }
    handmade.commit(
        0,
        protocol(1, 7, writerFeatures=features),
        metadata(*(field(name) for name in (*names, "last"))),
        {"domainMetadata": domain},
    )
    table = handmade.table
    table.append(pl.DataFrame({name: [1] for name in (*names, "last")}))
    stats = json.loads(table.snapshot().files().collect()["stats"].item())
    assert list(stats["minValues"]) == [*names[:32], "last"]


def test_invalid_clustering_domain_raises_corruption_error(tmp_path: Path) -> None:
    features = ["clustering", "domainMetadata"]
    handmade = Handmade(tmp_path)
    domain = {"domain": "delta.clustering", "configuration": "[", "removed": False}
    handmade.commit(
        0,
        protocol(1, 7, writerFeatures=features),
        metadata(field("a")),
        {"domainMetadata": domain},
    )
    with pytest.raises(CorruptionError, match="clustering columns"):
        WritePlan.of(handmade.table.snapshot())


@pytest.mark.parametrize(
    "type_",
    [
        {"type": "map", "keyType": "string", "valueType": "void", "valueContainsNull": True},
        {"type": "struct", "fields": [field("v", "void")]},
        {"type": "struct", "fields": []},
        {"type": "array", "elementType": {"type": "struct", "fields": []}, "containsNull": True},
    ],
)
def test_unsupported_nested_type_raises(tmp_path: Path, type_: dict[str, Any]) -> None:
    handmade = Handmade(tmp_path)
    handmade.commit(0, protocol(1, 2), metadata(field("a"), field("odd", type_)))
    with pytest.raises(UnsupportedFeatureError, match="'odd' has a type"):
        WritePlan.of(handmade.table.snapshot())


def test_unknown_column_mapping_mode_raises_before_a_row_is_written(tmp_path: Path) -> None:
    unknown = {"delta.columnMapping.mode": "index"}
    Handmade(tmp_path).commit(0, protocol(2, 5), metadata(field("a"), properties=unknown))
    table = lakelog.open(tmp_path)
    with pytest.raises(UnsupportedFeatureError, match="unknown column mapping mode"):
        table.append(pl.DataFrame({"a": [1]}))
    assert data_files(tmp_path) == []


def test_table_without_stored_columns_raises(tmp_path: Path) -> None:
    handmade = Handmade(tmp_path)
    handmade.commit(0, protocol(1, 2), metadata(field("v", "void")))
    with pytest.raises(InvalidInputError, match="no column"):
        DataFileWriter(WritePlan.of(handmade.table.snapshot()))


def test_indextables_raise(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, SCHEMA, format="indextables", upkeep=False)
    with pytest.raises(UnsupportedFeatureError, match="Parquet"):
        WritePlan.of(table.snapshot())


def test_change_data_files_are_stored_in_their_own_folder(tmp_path: Path) -> None:
    table = table_at(tmp_path, **{"delta.enableChangeDataFeed": "true"})
    plan = WritePlan.of(table.snapshot()).of_changes()
    with DataFileWriter(plan) as writer:
        writer.write(frame(4).with_columns(_change_type=pl.lit("insert")))
        files = writer.finish()
    assert files.columns == ["path", "partitionValues", "size", "dataChange"]
    assert not files["dataChange"].any()
    assert all(path.startswith("_change_data/p=") for path in files["path"])
    assert pq.read_schema(tmp_path / files["path"][0]).names == ["id", "x", "_change_type"]


def test_partitions_of_every_type_are_read_back(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {
            "i": [1, None, -3],
            "f": [0.1, float("nan"), None],
            "d": pl.Series([1, 2, None]).cast(pl.Date),
            "t": pl.Series([1, 2_000_000, None]).cast(pl.Datetime("us", "UTC")),
            "n": pl.Series([1, 2_000_000, None]).cast(pl.Datetime("us")),
            "b": [True, None, False],
            "c": pl.Series(["1.5", None, "-0.25"]).cast(pl.Decimal(10, 3)),
            "s": ["a/b=ü %", None, "x"],
            "id": [1, 2, 3],
        }
    )
    table = table_at(tmp_path, rows.schema, by=list("ifdtnbcs"))
    with DataFileWriter(WritePlan.of(table.snapshot())) as writer:
        writer.write(rows)
        files = writer.finish()
    found = commit(table, files).sort("id")
    assert found.equals(rows)


@pytest.mark.filterwarnings("ignore:empty values:lakelog.LakelogWarning")
def test_empty_texts_are_nulls_and_share_their_partition(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    with DataFileWriter(WritePlan.of(table.snapshot())) as writer:
        writer.write(pl.DataFrame({"p": ["", None, ""], "id": [1, 2, 3]}))
        files = writer.finish()
    assert Counter(path.split("/")[0] for path in files["path"]) == {
        "p=__HIVE_DEFAULT_PARTITION__": 1
    }
    assert commit(table, files)["p"].null_count() == 3
