"""Reading checkpoints of every layout, leaf by leaf."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from lakelog.dialects.checkpoint_sources import CheckpointSources, unreadable_is_malformed
from lakelog.dialects.delta import parquet
from lakelog.dialects.delta.checkpoint import DeltaCheckpointReader
from lakelog.dialects.log_content import STRUCT_STATISTICS
from lakelog.errors import CorruptionError, InvalidActionError, MalformedLogError, NotFoundError
from lakelog.model import actions
from lakelog.storage import open_store
from tests.handmade import Handmade, add, metadata, protocol, remove, vector

UUID = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"
META = (protocol(), metadata(properties={"k": "v"}), {"txn": {"appId": "x", "version": 4}})
FILES = (add("a%20b", 1, tags={"t": None}), add("b", 2, **vector("v")), remove("z"))
CHECKPOINT_METADATA = {"checkpointMetadata": {"version": 5}}


@pytest.fixture
def made(tmp_path: Path) -> Handmade:
    return Handmade(tmp_path / "t")


def reader(made: Handmade) -> DeltaCheckpointReader:
    """A reader over the best listed checkpoint."""
    best = made.context().list_all().checkpoints[-1]
    return DeltaCheckpointReader(open_store(made.root), best)


def json_manifest(made: Handmade, *rows: dict[str, Any]) -> None:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    made.write(f"{5:020d}.checkpoint.{UUID}.json", data)


def write(made: Handmade, layout: str) -> None:
    def sidecars() -> list[dict[str, Any]]:
        return [made.sidecar("1.parquet", *FILES[:1]), made.sidecar("2.parquet", *FILES[1:])]

    match layout:
        case "classic":
            made.checkpoint(5, *META, *FILES)
        case "multipart":
            for n, part in enumerate([(*META, FILES[0]), FILES[1:]], 1):
                made.checkpoint(5, *part, suffix=f".{n:010d}.{2:010d}")
        case "v2-parquet":
            made.checkpoint(5, CHECKPOINT_METADATA, *META, *sidecars(), suffix=f".{UUID}")
        case "v2-parquet inline":
            made.checkpoint(5, CHECKPOINT_METADATA, *META, *FILES, suffix=f".{UUID}")
        case "v2-json":
            json_manifest(made, CHECKPOINT_METADATA, *META, *sidecars())
        case "v2-json inline":
            json_manifest(made, CHECKPOINT_METADATA, *META, *FILES)
        case "classic with sidecars":
            made.checkpoint(5, CHECKPOINT_METADATA, *META, *sidecars())


KINDS = ("add", "remove")
LAYOUTS = [
    *("classic", "multipart", "classic with sidecars"),
    *("v2-parquet", "v2-parquet inline", "v2-json", "v2-json inline"),
]


def files_of(made: Handmade, columns: Sequence[str], *kinds: str) -> pl.DataFrame:
    return actions.concat(reader(made).iter_files(columns, kinds or actions.FILE_ACTIONS))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_rows(made: Handmade, layout: str) -> None:
    write(made, layout)
    found = files_of(made, ["size", "dvId", "tags"])
    frame = actions.conform(found, ["actionType", "path", "size", "dvId", "tags"]).sort("path")
    assert frame.rows() == [
        ("add", "a b", 1, None, {"t": None}),
        ("add", "b", 2, "uv@1", None),
        ("remove", "z", None, None, None),
    ]
    meta = reader(made).read_meta()
    assert sorted(meta["actionType"]) == ["metaData", "protocol", "txn"]
    (row,) = meta.filter(pl.col("actionType") == "metaData").rows(named=True)
    assert row["configuration"] == {"k": "v"}
    assert meta["txnVersion"].drop_nulls().to_list() == [4]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_action_type_is_read_alone(made: Handmade, layout: str) -> None:
    write(made, layout)
    assert files_of(made, ["size"], "remove")["path"].to_list() == ["z"]
    assert sorted(files_of(made, ["size"], "add")["path"]) == ["a b", "b"]
    assert reader(made).read_meta(["protocol"])["actionType"].to_list() == ["protocol"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_read_are_all_files_of_the_checkpoint(made: Handmade, layout: str) -> None:
    write(made, layout)
    named = reader(made).files_read()
    on_disk = [p for p in made.log.rglob("*") if p.is_file()]
    assert sorted(named) == sorted(p.relative_to(made.root).as_posix() for p in on_disk)


def test_projection_reads_only_its_leaves(made: Handmade, monkeypatch: pytest.MonkeyPatch) -> None:
    write(made, "classic")
    seen: list[str] = []
    iter_batches = pq.ParquetFile.iter_batches

    def spy(self: Any, *args: Any, columns: list[str], **more: Any) -> Any:
        seen.extend(columns)
        return iter_batches(self, *args, columns=columns, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    found = files_of(made, ["size"], "add")
    assert set(found.columns) == {"actionType", "path", "size"}
    assert {s for s in seen if not s.startswith("add.deletionVector")} == {"add.path", "add.size"}


def test_statistics_are_read_as_text_or_struct_as_requested(made: Handmade) -> None:
    bounds = {"minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": {"id": 0}}
    made.checkpoint(
        5, *META, add("a", stats="{}"), add("b", stats_parsed={"numRecords": 3, **bounds})
    )
    text = files_of(made, ["stats"], "add")
    assert text["stats"].to_list() == ["{}", None]
    assert STRUCT_STATISTICS not in text.columns
    struct = files_of(made, [STRUCT_STATISTICS], "add")[STRUCT_STATISTICS]
    assert struct.struct.field("numRecords").to_list() == [None, 3]
    type_ = reader(made).struct_statistics()
    assert type_ is not None
    assert pa.types.is_struct(type_)


def test_int96_times_outside_the_nanosecond_range_are_read(made: Handmade) -> None:
    times = [datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)]
    type_ = pa.struct({"minValues": pa.struct({"t": pa.timestamp("us", "UTC")})})
    structs = pa.array([{"minValues": {"t": time}} for time in times], type_)
    add_type = pa.struct({"path": pa.string(), "size": pa.int64(), STRUCT_STATISTICS: type_})
    children = [pa.array(["a", "b"]), pa.array([1, 2]), structs]
    path = Path(made.root) / "_delta_log" / f"{5:020d}.checkpoint.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    column = pa.StructArray.from_arrays(children, fields=list(add_type))
    pq.write_table(pa.table({"add": column}), path, use_deprecated_int96_timestamps=True)
    (frame,) = reader(made).iter_files([STRUCT_STATISTICS], ("add",))
    found = frame[STRUCT_STATISTICS].struct.field("minValues").struct.field("t")
    assert found.to_list() == [time.replace(tzinfo=None) for time in times]


@pytest.mark.parametrize("is_old", [True, False])
def test_early_bounds_in_the_julian_calendar_are_unknown(made: Handmade, is_old: bool) -> None:
    # Days of the year 1 in both calendars: Databricks writes checkpoints in the Julian one.
    days = [-719_164 if is_old else -719_162, 0]
    bounds = {
        "d": pa.array(days, pa.int32()).cast(pa.date32()),
        "t": pa.array([day * 86_400_000_000 for day in days]).cast(pa.timestamp("us", "UTC")),
        "n": pa.array([1, 2]),
    }
    nested = pa.StructArray.from_arrays([bounds["d"]], ["d"])
    least = pa.StructArray.from_arrays(
        [bounds["d"], bounds["t"], bounds["n"], nested], ["d", "t", "n", "s"]
    )
    structs = pa.StructArray.from_arrays(
        [pa.array([5, 6]), least, least], ["numRecords", "minValues", "maxValues"]
    )
    children = [pa.array(["a", "b"]), pa.array([1, 2]), structs]
    names = ["path", "size", STRUCT_STATISTICS]
    table = pa.table({"add": pa.StructArray.from_arrays(children, names)})
    marks = {"version": "3.4.1", "legacyDateTime": "", "legacyINT96": "", "timeZone": "Etc/UTC"}
    marks = marks if is_old else {"version": "3.4.1"}
    metadata = {f"org.apache.spark.{name}": text for name, text in marks.items()}
    path = made.log / f"{5:020d}.checkpoint.parquet"
    pq.write_table(table.replace_schema_metadata(metadata), path)
    (frame,) = reader(made).iter_files([STRUCT_STATISTICS], ("add",))
    found = frame[STRUCT_STATISTICS].struct.unnest()
    assert found["numRecords"].to_list() == [5, 6]
    first, epoch = None if is_old else date(1, 1, 1), date(1970, 1, 1)
    for name in ("minValues", "maxValues"):
        values = found[name].struct.unnest()
        assert values["d"].to_list() == [first, epoch]
        assert values["t"].dt.date().to_list() == [first, epoch]
        assert values["s"].to_list() == [{"d": first}, {"d": epoch}]
        assert values["n"].to_list() == [1, 2]


def test_without_struct_statistics_there_is_no_type(made: Handmade) -> None:
    made.checkpoint(5, *META, add("a"), without=["stats_parsed"])
    assert reader(made).struct_statistics() is None


@pytest.mark.parametrize("layout", ["multipart", "v2-parquet"])
def test_file_without_a_column_of_adds_has_none(made: Handmade, layout: str) -> None:
    write(made, layout)
    path = min(made.log.glob("*.checkpoint.*.parquet"))
    if layout == "multipart":
        made.checkpoint(5, *META, suffix=f".{1:010d}.{2:010d}")
    pq.write_table(pq.read_table(path).drop_columns(["add"]), path)
    expected = ["b"] if layout == "multipart" else ["a b", "b"]
    for where in (pl.col("id") > 0, None):
        found = made.table.snapshot().files(where)
        assert sorted(found.collect()["path"]) == expected


def test_columns_missing_in_the_checkpoint_are_omitted(made: Handmade) -> None:
    lacking = ["stats", "tags", "deletionVector", "partitionValues", "dataChange"]
    made.checkpoint(5, *META, add("a"), without=lacking)
    found = files_of(made, ["size", "dvId", *lacking[:2]], "add")
    assert set(found.columns) == {"actionType", "path", "size"}


def test_metadata_of_nulls_is_one_row(made: Handmade) -> None:
    made.checkpoint(5, protocol(), {"metaData": {}}, *FILES)
    meta = reader(made).read_meta()
    assert meta.filter(pl.col("actionType") == "metaData").height == 1
    assert actions.conform(meta).height == 2
    assert meta.schema.get("extra", pl.String) == pl.String


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        ([(1, "a")], pa.map_(pa.int32(), pa.string()), '{"odd":{"1":"a"}}'),
        ([(b"\xff", "a")], pa.map_(pa.binary(), pa.string()), None),
        (pa.scalar(3_000_000, pa.date32()), pa.date32(), '{"odd":"[10183-09-21]"}'),
    ],
    ids=["map of numbers", "map of bytes", "late date"],
)
def test_unknown_fields_of_any_type_do_not_stop_a_read(
    made: Handmade, value: Any, type_: pa.DataType, text: str | None
) -> None:
    odd = pa.array([value], type_)
    children = [pa.array(["a"]), pa.array([1]), odd]
    table = pa.table({"add": pa.StructArray.from_arrays(children, ["path", "size", "odd"])})
    pq.write_table(table, made.checkpoint(5, *META))
    (found,) = files_of(made, ("path", "extra"), "add")["extra"]
    assert text is None or found == text


def test_unknown_fields_are_kept_in_extra(made: Handmade) -> None:
    def rows(path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"add": {"path": path, "size": 1, "deletionVector": None, "odd": None, **body}}

    dv = {"storageType": "u", "pathOrInlineDv": "v", "maxRowIndex": 9}
    dv |= {"offset": 1, "sizeInBytes": 2, "cardinality": 1}
    table = [
        rows("plain", {}),
        rows("odd", {"odd": {"a": [1, 2]}}),
        rows("both", {"odd": {"a": []}, "deletionVector": dv}),
    ]
    columns = {
        kind: pa.array([row.get(kind) for row in table])
        for kind in dict.fromkeys(kind for row in table for kind in row)
    }
    path = made.checkpoint(5, *META)
    pq.write_table(pa.table(columns), path)
    files = files_of(made, ("path", "extra"), "add")
    assert dict(files.select("path", "extra").iter_rows()) == {
        "plain": None,
        "odd": '{"odd":{"a":[1,2]}}',
        "both": '{"deletionVector":{"maxRowIndex":9},"odd":{"a":[]}}',
    }
    assert "extra" not in files_of(made, ("path",), "add").columns


def test_checkpoint_of_many_batches_is_read_completely(
    made: Handmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 7)
    made.checkpoint(5, *(add(f"f{n}", n) for n in range(100)), *META)
    found = files_of(made, ["size"], "add")
    assert found["size"].to_list() == list(range(100))
    assert reader(made).read_meta().height == 3


@pytest.mark.parametrize("statistics", [True, False, ["remove.path"]], ids=["all", "none", "one"])
def test_row_groups_without_an_action_type_are_skipped_if_all_have_statistics(
    made: Handmade, statistics: bool | list[str]
) -> None:
    files = [
        *[add(f"a{n}", n) for n in range(5)],
        remove("z", deletionTimestamp=4),
        *[add(f"b{n}", n) for n in range(3)],
        *[remove(f"y{n}", deletionTimestamp=n) for n in range(7)],
    ]
    path = made.checkpoint(5, *META, *files)
    plain = {kind: files_of(made, ["size", "deletionTimestamp"], kind) for kind in KINDS}
    pq.write_table(pq.read_table(path), path, row_group_size=2, write_statistics=statistics)
    file = pq.ParquetFile(path)
    assert file.num_row_groups == 10
    left_out = statistics is True
    assert parquet.groups_with(file, ["remove"]) == ([4, 6, 7, 8, 9] if left_out else [*range(10)])
    assert parquet.groups_with(file, ["add"]) == ([*range(1, 6)] if left_out else [*range(10)])
    for kind in KINDS:
        assert_frame_equal(files_of(made, ["size", "deletionTimestamp"], kind), plain[kind])


def test_small_file_is_read_without_threads_and_with_the_same_rows(
    made: Handmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 7)
    made.checkpoint(5, *(add(f"f{n}", n, stats="{}") for n in range(100)), *META)
    columns = ["size", "stats", "partitionValues"]

    def read() -> list[pl.DataFrame]:
        return [reader(made).read_meta(), *reader(made).iter_files(columns)]

    class NoThreads:
        def __init__(self, *_: object) -> None:
            raise AssertionError("a thread was started")

    with monkeypatch.context() as alone:
        alone.setattr(threading, "Thread", NoThreads)
        few = read()
    monkeypatch.setattr(parquet, "_FEW_PROMISED", 0)
    monkeypatch.setattr(parquet, "_MANY_ROWS", 7)
    many = read()
    assert len(few) == len(many) > 2
    for one, other in zip(few, many, strict=True):
        assert_frame_equal(one, other, check_column_order=False)


def test_file_is_not_closed_while_a_thread_reads_it(
    made: Handmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 7)
    monkeypatch.setattr(parquet, "_MANY_ROWS", 7)
    monkeypatch.setattr(parquet, "_FEW_PROMISED", 7)
    made.checkpoint(5, *(add(f"f{n}", n) for n in range(100)), *META)
    parse, read_parts = CheckpointSources._parsed, parquet._read_parts
    sources: dict[int, Any] = {}
    closed: list[bool] = []

    def parsed(self: CheckpointSources, source: Any, *rest: Any) -> Any:
        file = parse(self, source, *rest)
        sources[id(file)] = source
        return file

    def slow(file: Any, *rest: Any, **more: Any) -> Iterator[Any]:
        for part in read_parts(file, *rest, **more):
            time.sleep(0.02)
            closed.append(sources[id(file)].closed)
            yield part

    monkeypatch.setattr(CheckpointSources, "_parsed", parsed)
    monkeypatch.setattr(parquet, "_read_parts", slow)
    files = reader(made).iter_files(["size", "stats"], ("add",))
    assert isinstance(files, Generator)
    next(files)
    files.close()
    assert len(closed) > 2
    assert not any(closed)


# --- damage --------------------------------------------------------------------------------------


def read_all(made: Handmade) -> None:
    reader(made).read_meta()
    files_of(made, ["size", "partitionValues", "dvId"])


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.99])
def test_truncated_parquet_file_is_refused(made: Handmade, keep: float) -> None:
    path = made.checkpoint(5, *META, *FILES)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(MalformedLogError, match="cannot be read") as refused:
        read_all(made)
    assert refused.value.path == path.relative_to(made.root).as_posix()


@pytest.mark.parametrize("data", [b"x", b"PAR1", b"PAR1PAR1", b"\0" * 100])
def test_bytes_that_are_not_parquet_are_refused(made: Handmade, data: bytes) -> None:
    made.checkpoint(5, *META).write_bytes(data)
    with pytest.raises(MalformedLogError):
        read_all(made)


def test_missing_sidecar_is_named_in_the_error(made: Handmade) -> None:
    write(made, "v2-json")
    (made.log / "_sidecars" / "2.parquet").unlink()
    with pytest.raises(MalformedLogError, match="was not found") as refused:
        read_all(made)
    assert refused.value.path == "_delta_log/_sidecars/2.parquet"


@pytest.mark.parametrize(
    "recorded",
    [(), (CHECKPOINT_METADATA, CHECKPOINT_METADATA), ({"checkpointMetadata": {"version": 4}},)],
    ids=["missing", "twice", "of another version"],
)
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_manifest_that_does_not_record_its_version_once_is_refused(
    made: Handmade, recorded: tuple[dict[str, Any], ...], form: str
) -> None:
    if form == "json":
        json_manifest(made, *recorded, *META)
    else:
        made.checkpoint(5, *recorded, *META, suffix=f".{UUID}")
    with pytest.raises(MalformedLogError, match="does not record its version"):
        read_all(made)


@pytest.mark.parametrize(
    "rows",
    [
        {"path": pa.array(["a"]), "size": pa.array(["1"])},
        {"path": pa.array(["a"]), "size": pa.array([1.5])},
        {"path": pa.array(["a"]), "size": pa.array([True])},
        {"path": pa.array([1]), "size": pa.array([1])},
        {"path": pa.array([[1]]), "size": pa.array([1])},
        {"path": pa.array([None], pa.string()), "size": pa.array([1])},
        {"path": pa.array(["a"]), "size": pa.array([None], pa.int64())},
        {"path": pa.array(["a"])},
    ],
    ids=[
        "a text for a size",
        "a fraction for a size",
        "a boolean for a size",
        "a number for a path",
        "a list for a path",
        "no path",
        "no size",
        "no column of sizes",
    ],
)
def test_column_of_a_wrong_type_or_without_a_required_value_is_refused(
    made: Handmade, rows: dict[str, pa.Array]
) -> None:
    struct = pa.StructArray.from_arrays(list(rows.values()), list(rows))
    pq.write_table(pa.table({"add": struct}), made.log / f"{5:020d}.checkpoint.parquet")
    with pytest.raises(CorruptionError):
        read_all(made)


@pytest.mark.parametrize("type_", [pa.int8(), pa.uint32(), pa.int32(), pa.int64()], ids=str)
@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.binary()], ids=str)
def test_integers_and_strings_of_other_arrow_types_are_read(
    made: Handmade, type_: pa.DataType, text: pa.DataType
) -> None:
    arrays = [pa.array([b"a%20b"], pa.binary()).cast(text), pa.array([7], type_)]
    struct = pa.StructArray.from_arrays(arrays, ["path", "size"])
    pq.write_table(pa.table({"add": struct}), made.log / f"{5:020d}.checkpoint.parquet")
    assert files_of(made, ["size"]).select("path", "size").rows() == [("a b", 7)]


def with_string_type(type_: pa.DataType, text: pa.DataType) -> pa.DataType:
    """The type with another string type, except for map keys, which have one type in Arrow."""
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(with_string_type(f.type, text)) for f in type_])
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, with_string_type(type_.item_type, text))
    if pa.types.is_list(type_):
        return pa.list_(with_string_type(type_.value_type, text))
    return text if pa.types.is_string(type_) else type_


@pytest.mark.parametrize(
    "text", [pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=["view", "dictionary"]
)
def test_string_view_and_dictionary_columns_are_read_as_strings(
    made: Handmade, text: pa.DataType
) -> None:
    bounds = {"id": 1, "name": "n"}
    parsed = {"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": None}
    rows = (*META, add("a%20b", 1, tags={"t": None}, stats_parsed=parsed), *FILES[1:])
    path = made.checkpoint(5, *rows)
    columns = (STRUCT_STATISTICS, *actions.schema())
    plain = files_of(made, columns), reader(made).read_meta(), reader(made).struct_statistics()
    table = pq.read_table(path)
    types = [with_string_type(column.type, text) for column in table.columns]
    arrays = [
        pa.array(column.to_pylist(), type_)
        for column, type_ in zip(table.columns, types, strict=True)
    ]
    pq.write_table(pa.table(arrays, table.column_names), path)
    assert str(text) in str(pq.read_schema(path))
    found = files_of(made, columns), reader(made).read_meta(), reader(made).struct_statistics()
    assert found[0].equals(plain[0], null_equal=True)
    assert found[1].equals(plain[1], null_equal=True)
    assert found[2] == plain[2]


def test_action_column_that_is_not_a_struct_is_refused(made: Handmade) -> None:
    pq.write_table(pa.table({"protocol": [1]}), made.log / f"{5:020d}.checkpoint.parquet")
    with pytest.raises(InvalidActionError):
        read_all(made)


def test_text_that_is_not_utf_8_is_refused(made: Handmade) -> None:
    path = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    struct = pa.StructArray.from_arrays([path, pa.array([1])], ["path", "size"])
    pq.write_table(pa.table({"add": struct}), made.log / f"{5:020d}.checkpoint.parquet")
    with pytest.raises(CorruptionError):
        read_all(made)


def test_deletion_vector_without_its_path_is_refused(made: Handmade) -> None:
    made.checkpoint(5, *META, add("a", deletionVector={"storageType": "u"}))
    with pytest.raises(InvalidActionError, match="deletion vector"):
        files_of(made, ["size", "dvId"])


def test_sidecar_is_read_from_the_sidecar_folder_of_the_table_whatever_its_path(
    made: Handmade,
) -> None:
    made.sidecar("s%20.parquet", *FILES)
    (made.log / "_sidecars" / "s%20.parquet").rename(made.log / "_sidecars" / "s .parquet")
    for path in ("s%20.parquet", "_delta_log/_sidecars/s%20.parquet", "s3://b/t/s%20.parquet"):
        sidecar = {"sidecar": {"path": path, "sizeInBytes": 1, "modificationTime": 1}}
        json_manifest(made, CHECKPOINT_METADATA, *META, sidecar)
        assert files_of(made, ["size"]).height == 3


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (NotFoundError("gone"), "a file of the checkpoint was not found"),
        (OSError("first\nsecond"), "the checkpoint cannot be read: first"),
        (MemoryError(), "the checkpoint cannot be read: MemoryError"),
    ],
)
def test_every_read_error_is_reported_with_file_and_version(
    cause: Exception, expected: str
) -> None:
    with pytest.raises(MalformedLogError) as caught, unreadable_is_malformed("part", 7):
        raise cause
    assert (caught.value.message, caught.value.path, caught.value.version) == (expected, "part", 7)
    assert caught.value.__cause__ is cause
