"""IndexTables checkpoints are read back as written, and are not visible before publication."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.indextables import DIALECT, framing
from lakelog.dialects.indextables.checkpoint_writer import LAYOUTS, checkpoint_writer
from lakelog.dialects.indextables.flattened_writer import FOOTER_KEY
from lakelog.dialects.log_content import (
    CHECKPOINT_META,
    CheckpointPlan,
    CheckpointWriter,
    StagedCheckpoint,
)
from lakelog.errors import (
    InvalidInputError,
    InvalidTransactionError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.model import actions, contract
from lakelog.storage import LogStore, open_store
from lakelog.testing import Fault, InjectingStore, Rule
from tests.budget import share_of
from tests.conftest import find_corpus, missing_corpus_reason
from tests.dialects.indextables.writing import (
    SCHEMA_STRING,
    Log,
    add,
    flat_rows,
    metadata,
    read_files,
    remove,
    skip,
)

VERSION = 12
FOLDER = "_transaction_log"
NAME = f"{VERSION:020d}"
PLANS: dict[str, dict[str, Any]] = {
    "json": {"layout": "json"},
    "json-multipart": {"layout": "json-multipart", "part_actions": 3},
    "flattened": {"layout": "flattened"},
    "flattened in parts": {"layout": "flattened", "parts": 3, "row_group_rows": 2},
}
CONFIGURATION = {"docMappingSchema.h": "[1]", "owner": None}
META: list[dict[str, Any]] = [
    {
        "actionType": "protocol",
        "minReaderVersion": 3,
        "minWriterVersion": 3,
        "readerFeatures": ["multiPartCheckpoint"],
    },
    {
        "actionType": "metaData",
        "metadataId": "t-1",
        "schemaString": SCHEMA_STRING,
        "partitionColumns": ["p"],
        "configuration": CONFIGURATION,
        "formatProvider": "indextables",
        "formatOptions": {"k": "v"},
        "createdTime": 3,
        "version": 2,
        "position": 1,
    },
    {
        "actionType": "mergeskip",
        "path": "s",
        "skipTimestamp": 1,
        "skipReason": "broken",
        "skipOperation": "merge",
        "skipCount": 3,
        "version": 7,
        "position": 0,
    },
]
LAKELOG_ONLY: list[dict[str, Any]] = [
    META[0] | {"readerFeatures": ["multiPartCheckpoint", "columnarCommits"]},
    *META[1:],
]
"""The same rows for a table that only lakelog reads."""
FILES: list[dict[str, Any]] = [
    {
        "actionType": "add",
        "path": "p=1/a%20b.split",
        "partitionValues": {"p": "1", "q": None},
        "size": 9,
        "modificationTime": 5,
        "stats": '{"n":1}',
        "numRecords": 2**53 + 1,
        "minValues": {"id": "0"},
        "maxValues": {"id": "\u00e9\u2028"},
        "tags": {"a": "b"},
        "timeRangeStart": "2024-01-01T00:00:00Z",
        "splitTags": ["x", "y"],
        "hasFooterOffsets": True,
        "footerStartOffset": 4,
        "docMappingRef": "h",
        "docMappingJson": "[1]",
        "companionSourceFiles": ["f.parquet"],
        "companionDeltaVersion": 7,
        "extra": '{"zeta":{"deep":[1,null]}}',
        "version": 3,
        "position": 1,
    },
    {
        "actionType": "add",
        "path": "b",
        "partitionValues": {},
        "size": 0,
        "docMappingRef": "h",
        "docMappingJson": "[2]",
        "version": 4,
        "position": 0,
    },
    {"actionType": "add", "path": "c", "partitionValues": {}, "size": 1, "docMappingRef": "no"},
    {"actionType": "remove", "path": "z", "deletionTimestamp": 8, "size": 4, "version": 9},
    {"actionType": "remove", "path": "y", "partitionValues": {"p": "2"}, "deletionTimestamp": 9},
]


def plan(**settings_: Any) -> CheckpointPlan:
    base = CheckpointPlan(
        VERSION, "json", 1, contract.parse_schema(SCHEMA_STRING), ("p",), created_ms=1_234
    )
    return replace(base, **settings_)


def batches(files: pl.DataFrame, rows: int = 2) -> Iterator[pl.DataFrame]:
    """The rows for a checkpoint: adds, then removes; narrow."""
    for kind in actions.FILE_ACTIONS:
        selected = files.filter(pl.col("actionType") == kind)
        for part in selected.iter_slices(rows) if selected.height else ():
            yield part.select(c for c in part.columns if part[c].null_count() < part.height)


def fill(writer: CheckpointWriter, meta: pl.DataFrame, files: pl.DataFrame) -> None:
    writer.write_meta(meta)
    for batch in batches(files):
        writer.write_files(batch)


def stage(
    store: LogStore,
    layout: str = "json",
    *,
    meta: list[dict[str, Any]] | None = None,
    files: list[dict[str, Any]] | None = None,
    **more: Any,
) -> StagedCheckpoint:
    writer = checkpoint_writer(store, plan(**{**PLANS[layout], **more}))
    fill(
        writer,
        flat_rows(META if meta is None else meta),
        flat_rows(FILES if files is None else files),
    )
    return writer.finish()


def publish(store: LogStore, staged: StagedCheckpoint) -> None:
    for file in staged.files:
        if file.path != file.target:
            store.move(file.path, file.target)
    if staged.pointer is not None:
        store.put(*staged.pointer)


def rows_of(frame: pl.DataFrame, origin: bool) -> list[dict[str, Any]]:
    columns = [c for c in actions.schema() if origin or c not in actions.ORDER]
    rows = actions.conform(frame, columns).to_dicts()
    # As dicts, because the order of a map's keys is not significant.
    return sorted(rows, key=lambda row: (row["actionType"], row["path"] or ""))


def expected_files(files: list[dict[str, Any]], *, filled: bool) -> pl.DataFrame:
    rows = flat_rows(files).with_columns(dataChange=pl.lit(value=False))
    if filled:
        lacking = (pl.col("actionType") == "add") & pl.col("partitionValues").is_null()
        empty = pl.lit(pl.Series([{}], dtype=actions.schema()["partitionValues"])).first()
        values = pl.when(lacking).then(empty).otherwise("partitionValues")
        rows = rows.with_columns(values.alias("partitionValues"))
    return rows


def assert_read_back(
    store: LogStore,
    staged: StagedCheckpoint,
    meta: list[dict[str, Any]],
    files: list[dict[str, Any]],
) -> None:
    """As staged, and as listed once its files are renamed."""
    flat = staged.checkpoint.layout == "flattened"
    columns = [c for c in actions.schema() if c != "actionType"]
    wanted = expected_files(files, filled=not flat)
    current = [staged.checkpoint]
    for round_ in range(2):
        reader = DIALECT.open_checkpoint(store, current[0])
        assert rows_of(read_files(reader, columns), flat) == rows_of(wanted, flat)
        found = reader.read_meta(CHECKPOINT_META)
        assert rows_of(found, flat) == rows_of(flat_rows(meta), flat)
        if round_ == 0:
            assert DIALECT.list_log(store, hint=False).checkpoints == ()
            publish(store, staged)
            (listed,) = DIALECT.list_log(store).checkpoints
            assert (listed.version, listed.layout) == (VERSION, staged.checkpoint.layout)
            current = [listed]


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return open_store(str(tmp_path))


@pytest.mark.parametrize("layout", PLANS)
def test_checkpoint_is_read_back_both_staged_and_published(store: LogStore, layout: str) -> None:
    assert_read_back(store, stage(store, layout), META, FILES)


_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
_maps = st.dictionaries(_text, _text | st.none(), max_size=3)
_int64 = st.integers(-(2**63), 2**63 - 1)
_origin = {"version": st.integers(0, VERSION), "position": st.integers(0, 2**31 - 1)}
_adds = st.fixed_dictionaries(
    {"actionType": st.just("add"), "partitionValues": _maps, "size": _int64},
    optional={
        **_origin,
        "modificationTime": _int64,
        "stats": _text,
        "numRecords": _int64,
        "minValues": _maps,
        "maxValues": _maps,
        "tags": _maps,
        "hasFooterOffsets": st.booleans(),
        "numMergeOps": st.integers(-(2**31), 2**31 - 1),
        "splitTags": st.lists(_text, max_size=2),
        "docMappingRef": st.sampled_from(["h", "no", ""]),
        "timeRangeEnd": _text,
        "extra": st.sampled_from(['{"a":1}', '{"a":{"b":[null,"é"]}}']),
    },
)
_removes = st.fixed_dictionaries(
    {"actionType": st.just("remove")},
    optional={
        **_origin,
        "deletionTimestamp": _int64,
        "partitionValues": _maps,
        "size": _int64,
        "extendedFileMetadata": st.booleans(),
    },
)
_skips = st.fixed_dictionaries(
    {
        "actionType": st.just("mergeskip"),
        "skipOperation": _text,
        "skipCount": st.integers(0, 2**31 - 1),
    },
    optional={**_origin, "skipTimestamp": _int64, "skipReason": _text, "retryAfter": _int64},
)
_states = st.tuples(
    st.dictionaries(_text, _adds | _removes, max_size=9),
    st.dictionaries(_text, _skips, max_size=3),
    st.sampled_from([{}, {"spark.indextables.checkpoint.compression.enabled": "true"}]),
)


@settings(max_examples=share_of(40), deadline=None)
@given(_states, st.sampled_from(sorted(PLANS)))
def test_any_state_is_read_back(
    state: tuple[dict[str, Any], dict[str, Any], dict[str, str]], layout: str
) -> None:
    files = [row | {"path": path} for path, row in state[0].items()]
    for row in files:
        if row.get("docMappingRef") == "h":
            row["docMappingJson"] = "[1]"  # a state's references are resolved
    table = META[1] | {"configuration": CONFIGURATION | state[2]}
    skips = [row | {"path": path} for path, row in state[1].items()]
    memory = open_store(f"memory://checkpoints-{uuid.uuid4().hex}")
    meta = [META[0], table, *skips]
    assert_read_back(memory, stage(memory, layout, meta=meta, files=files), meta, files)


def test_json_checkpoint_contains_the_lines_of_a_commit(store: LogStore) -> None:
    staged = stage(store)
    (file,) = staged.files
    assert file.target == f"{FOLDER}/{NAME}.checkpoint.json"
    lines = [json.loads(line) for line in store.read(file.path).split(b"\n")[:-1]]
    assert lines[0].pop("lakelogBegin") == {"name": f"{NAME}.checkpoint"}
    assert lines[-1].pop("lakelogEnd")["lines"] == len(lines)
    wrappers = [wrapper for line in lines for wrapper in line]
    assert wrappers == ["protocol", "metaData", "mergeskip", *["add"] * 3, *["remove"] * 2]
    assert lines[3]["add"]["zeta"] == {"deep": [1, None]}
    assert "docMappingJson" not in lines[3]["add"]
    assert lines[4]["add"]["docMappingJson"] == "[2]"
    assert {line["add"]["dataChange"] for line in lines if "add" in line} == {False}
    assert file.num_actions == len(lines)
    assert file.size_bytes == len(store.read(file.path))


def test_manifest_is_the_last_file_and_names_all_parts(store: LogStore) -> None:
    staged = stage(store, "json-multipart")
    *parts, manifest = staged.files
    assert manifest.target == f"{FOLDER}/{NAME}.checkpoint.json"
    body = orjson.loads(store.read(manifest.path))
    names = [part.target.removeprefix(f"{FOLDER}/") for part in parts]
    assert body == {
        "version": VERSION,
        "checkpointId": body["checkpointId"],
        "parts": names,
        "createdTime": 1_234,
        "format": "json",
    }
    assert len(body["checkpointId"]) == 12
    assert names == [
        f"{NAME}.checkpoint.{body['checkpointId']}.{number:05d}.json" for number in (1, 2, 3)
    ]
    assert [part.num_actions for part in parts] == [3, 3, 2]
    assert all(part.path == part.target for part in parts)
    assert staged.checkpoint.paths == (manifest.path, *(part.path for part in parts))


def test_two_attempts_never_share_a_part(store: LogStore) -> None:
    first = stage(store, "json-multipart")
    second = stage(store, "json-multipart")
    assert not {f.path for f in first.files} & {f.path for f in second.files}
    publish(store, second)
    publish(store, first)
    (listed,) = DIALECT.list_log(store).checkpoints
    assert listed.paths[1:] == first.checkpoint.paths[1:]


@pytest.mark.parametrize("layout", PLANS)
def test_staged_names_begin_with_a_dot(store: LogStore, layout: str) -> None:
    for file in stage(store, layout).files:
        folder, _, name = file.path.rpartition("/")
        if file.path == file.target:
            assert layout == "json-multipart"
            continue
        assert folder == FOLDER
        assert name.startswith(".lakelog-")
        assert name.endswith(".tmp")
        assert len(name) == len(".lakelog-.tmp") + 32


def test_part_is_closed_before_it_is_too_large_to_decompress(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.dialects.indextables.checkpoint_writer._PART_BYTES", 700)
    monkeypatch.setattr("lakelog.dialects.indextables.checkpoint_writer._SLICE_ROWS", 1)
    staged = stage(store, "json-multipart", part_actions=100)
    assert len(staged.files) > 2
    assert_read_back(store, staged, META, FILES)


@pytest.mark.parametrize("layout", ["json", "json-multipart"])
@pytest.mark.parametrize(
    ("properties", "head"),
    [
        ({}, b'{"'),
        ({"spark.indextables.transaction.compression.enabled": "true"}, b"\x01\x01\x1f\x8b"),
        ({"spark.indextables.checkpoint.compression.enabled": "true"}, b"\x01\x01\x1f\x8b"),
        ({"spark.indextables.CHECKPOINT.Compression.enabled": "TRUE"}, b"\x01\x01\x1f\x8b"),
        (
            {
                "spark.indextables.checkpoint.compression.enabled": "false",
                "spark.indextables.transaction.compression.enabled": "true",
            },
            b'{"',
        ),
        (
            {
                "spark.indextables.checkpoint.compression.enabled": "true",
                "spark.indextables.transaction.compression.codec": "none",
            },
            b'{"',
        ),
    ],
)
def test_json_checkpoint_is_compressed_according_to_the_properties(
    store: LogStore, layout: str, properties: dict[str, str], head: bytes
) -> None:
    meta = [META[0], META[1] | {"configuration": CONFIGURATION | properties}, META[2]]
    staged = stage(store, layout, meta=meta)
    assert store.read(staged.files[0].path).startswith(head)
    assert_read_back(store, staged, meta, FILES)


def test_compressed_file_above_the_decompression_limit_is_refused(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing, "MAX_DECOMPRESSED_BYTES", 600)
    properties = {"spark.indextables.checkpoint.compression.enabled": "true"}
    meta = [META[0], META[1] | {"configuration": properties}]
    writer = checkpoint_writer(store, plan())
    with pytest.raises(InvalidInputError, match="too large") as refused:
        fill(writer, flat_rows(meta), flat_rows(FILES))
    assert "multipart" in str(refused.value.hint)
    writer.abandon()
    assert store.list_from(FOLDER) == []


@pytest.mark.parametrize("layout", PLANS)
def test_pointer_has_the_fields_that_readers_of_the_format_use(
    store: LogStore, layout: str
) -> None:
    staged = stage(store, layout, meta=LAKELOG_ONLY if layout.startswith("flattened") else META)
    assert staged.pointer is not None
    path, data = staged.pointer
    assert path == f"{FOLDER}/_last_checkpoint"
    body = orjson.loads(data)
    more = {
        "json": {},
        "json-multipart": {"parts": 3, "checkpointId": body.get("checkpointId")},
        "flattened": {"format": "flattened"},
        "flattened in parts": {"parts": 3, "format": "flattened"},
    }
    assert body == {
        "version": VERSION,
        "size": 8,
        "sizeInBytes": sum(f.size_bytes for f in staged.files if f.num_actions or layout[0] == "j"),
        "numFiles": 3,
        "createdTime": 1_234,
        **more[layout],
    }


@pytest.mark.parametrize("layout", PLANS)
def test_pointer_of_a_table_with_avro_states_is_not_replaced(store: LogStore, layout: str) -> None:
    meta = [META[0] | {"minReaderVersion": 4}, *META[1:]]
    assert stage(store, layout, meta=meta).pointer is None
    old = orjson.dumps({"version": 3, "format": "avro-state", "stateDir": "state-v3"})
    store.put(f"{FOLDER}/_last_checkpoint", old)
    assert stage(store, layout).pointer is None
    unread = InjectingStore(store, [Rule("fail", "read")])
    assert stage(unread, layout).pointer is None
    store.put(f"{FOLDER}/_last_checkpoint", b"torn")
    assert stage(store, layout, meta=LAKELOG_ONLY).pointer is not None


@pytest.mark.parametrize("layout", PLANS)
def test_pointer_never_names_a_layout_that_other_readers_of_the_table_cannot_read(
    store: LogStore, layout: str
) -> None:
    staged = stage(store, layout)
    assert (staged.pointer is None) == layout.startswith("flattened")
    assert stage(store, layout, meta=LAKELOG_ONLY).pointer is not None


@pytest.mark.parametrize("lakelog_only", [True, False])
@pytest.mark.parametrize("layout", PLANS)
def test_pointer_to_an_existing_checkpoint_equals_the_pointer_of_its_writer(
    store: LogStore, layout: str, lakelog_only: bool
) -> None:
    staged = stage(store, layout, meta=LAKELOG_ONLY if lakelog_only else META)
    for file in staged.files:
        if file.path != file.target:
            store.move(file.path, file.target)
    (existing,) = DIALECT.list_log(store).checkpoints
    later = DIALECT.pointer_to(store, existing, 1_234)
    if staged.pointer is None:
        assert later is None
    else:
        assert later is not None
        assert orjson.loads(later[1]) == orjson.loads(staged.pointer[1])


def test_flattened_files_have_the_schema_of_the_contract(store: LogStore) -> None:
    staged = stage(store, "flattened in parts")
    manifest, *parts = staged.files
    for number, part in enumerate(parts, 1):
        with store.open(part.path) as source:
            file = pq.ParquetFile(source)
            assert file.schema_arrow.names == list(actions.schema())
            assert not file.schema_arrow.field("actionType").nullable
            footer = orjson.loads(file.metadata.metadata[FOOTER_KEY.encode()])
            assert footer == {
                "version": VERSION,
                "part": number,
                "parts": 3,
                "numActions": file.metadata.num_rows,
            }
            assert file.metadata.row_group(0).column(0).compression == "ZSTD"
            kinds = [
                set(file.read_row_group(group, columns=["actionType"])["actionType"].to_pylist())
                for group in range(file.num_row_groups)
            ]
        # Rows of other actions have separate row groups; a row group of file actions has one type.
        types = {"add", "remove"}
        assert all(len(group) == 1 for group in kinds if group & types)
        assert any(not group & types for group in kinds) == (number == 1)
        assert part.target == (
            f"{FOLDER}/_checkpoints/{NAME}.checkpoint.{number:010d}.{3:010d}.parquet"
        )
    assert manifest.target == f"{FOLDER}/_checkpoints/{NAME}.checkpoint.json"
    described = orjson.loads(store.read(manifest.path))
    files = described.pop("lakelog.files")
    assert [each["sizeInBytes"] for each in files] == [part.size_bytes for part in parts]
    assert described == {
        "version": VERSION,
        "size": 3,
        "parts": 3,
        "createdTime": 1_234,
        "numActions": 8,
        "sizeInBytes": sum(part.size_bytes for part in parts),
    }


def test_parts_of_two_writers_can_be_mixed(store: LogStore) -> None:
    files: list[dict[str, Any]] = [
        {"actionType": "add", "path": f"f{n}", "size": n} for n in range(40)
    ]
    one = stage(store, "flattened in parts", files=files)
    two = stage(store, "flattened in parts", files=files[::-1])
    publish(store, one)
    for file in (two.files[2], two.files[1]):
        store.move(file.path, file.target)
    (listed,) = DIALECT.list_log(store).checkpoints
    found = read_files(DIALECT.open_checkpoint(store, listed))
    assert sorted(found["path"]) == sorted(row["path"] for row in files)


@settings(max_examples=share_of(15), deadline=None)
@given(st.permutations([0] * 4 + [1] * 4), st.sampled_from(sorted(PLANS)))
def test_readers_see_all_or_nothing_while_two_writers_publish(
    turns: list[int], layout: str
) -> None:
    store = open_store(f"memory://checkpoints-{uuid.uuid4().hex}")
    other = FILES[::-1]
    writers = [stage(store, layout), stage(store, layout, files=other)]
    steps = [iter(staged.files) for staged in writers]
    wanted = rows_of(expected_files(FILES, filled=False), False)
    seen = 0
    for turn in turns:
        file = next(steps[turn], None)
        if file is not None and file.path != file.target:
            store.move(file.path, file.target)
        for listed in DIALECT.list_log(store).checkpoints:
            reader = DIALECT.open_checkpoint(store, listed)
            columns = [c for c in actions.schema() if c != "actionType"]
            assert rows_of(read_files(reader, columns), False) == wanted
            assert reader.read_meta().height == len(META)
            seen += 1
    assert seen


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd"])
def test_flattened_files_have_the_codec_of_the_plan(store: LogStore, codec: str) -> None:
    staged = stage(store, "flattened", compression=codec)
    with store.open(staged.checkpoint.paths[0]) as source:
        found = pq.ParquetFile(source).metadata.row_group(0).column(0).compression
    assert found == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
    assert_read_back(store, staged, META, FILES)


@pytest.mark.parametrize("fault", ["fail", "unknown", "lost"])
@pytest.mark.parametrize("layout", PLANS)
def test_failure_at_any_write_leaves_no_file(store: LogStore, layout: str, fault: Fault) -> None:
    for nth in range(1, 100):
        flaky = InjectingStore(store, [Rule(fault, ("upload", "put"), nth=nth)])
        writer = checkpoint_writer(flaky, plan(**PLANS[layout]))
        try:
            fill(writer, flat_rows(META), flat_rows(FILES))
            writer.finish()
        except (UnavailableError, OutcomeUnknownError):
            done = False
        else:
            done = True
        writer.abandon()
        assert DIALECT.list_log(store, hint=False).checkpoints == ()
        assert store.list_from(FOLDER) == store.list_from(f"{FOLDER}/_checkpoints") == []
        if done:
            break
    assert nth > 1


def test_other_layouts_are_refused(store: LogStore) -> None:
    with pytest.raises(InvalidInputError, match="unknown checkpoint layout") as refused:
        checkpoint_writer(store, plan(layout="avro-state"))
    assert refused.value.expected == ", ".join(LAYOUTS)
    assert DIALECT.checkpoint_writer(store, plan()) is not None


@pytest.mark.parametrize("layout", ["json", "flattened"])
def test_actions_of_another_format_are_refused(store: LogStore, layout: str) -> None:
    writer = checkpoint_writer(store, plan(layout=layout))
    strange = [{"actionType": "cdc", "path": "c"}]
    with pytest.raises((InvalidInputError, InvalidTransactionError)):
        writer.write_meta(flat_rows([*META, *strange]))
    writer.abandon()


def test_parts_are_flushed_at_the_limit_of_pending_rows(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.dialects.indextables.flattened_writer._PENDING_ROWS", 5)
    files = [{"actionType": "add", "path": f"f{n}", "size": n} for n in range(60)]
    staged = stage(store, "flattened in parts", files=files, row_group_rows=1000)
    assert_read_back(store, staged, META, files)


def test_explicit_nulls_of_the_scala_writer_are_read_back_from_every_layout(
    tmp_path: Path,
) -> None:
    absent = dict.fromkeys(
        ["stats", "tags", "minValues", "maxValues", "numRecords", "timeRangeStart", "splitTags",
         "docMappingJson", "docMappingRef", "numMergeOps", "companionSourceFiles"]
    )  # fmt: skip
    rows = [
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 2, "readerFeatures": None}},
        metadata(partitionColumns=["d"], configuration={"k": "v"}),
        add("d=2024-01-01/x.split", **absent | {"minValues": {"id": "1"}, "dataChange": True}),
        add("d=2024-01-02/y.split", **absent | {"timeRangeStart": 5, "numRecords": 3}),
        skip("d=2024-01-01/w.split", partitionValues=None, size=None, retryAfter=None),
        remove("d=2024-01-01/v.split", dataChange=True, extendedFileMetadata=None, size=None),
    ]
    log = Log(tmp_path / "scala")
    log.commit(0, rows)
    commits = DIALECT.list_log(log.store, hint=False).commits
    decoded = DIALECT.decode(log.store, commits)
    assert_read_back_from_every_layout(tmp_path, decoded.meta, decoded.files)


def assert_read_back_from_every_layout(
    folder: Path, meta: pl.DataFrame, files: pl.DataFrame
) -> None:
    columns = [c for c in actions.schema() if c not in {"actionType", "dataChange"}]
    for layout, settings_ in PLANS.items():
        store = open_store(str(folder / layout.replace(" ", "-")))
        writer = checkpoint_writer(store, plan(**settings_))
        fill(writer, meta, actions.conform(files))
        publish(store, writer.finish())
        (listed,) = DIALECT.list_log(store).checkpoints
        reader = DIALECT.open_checkpoint(store, listed)
        origin = listed.layout == "flattened"
        found = read_files(reader, columns)
        assert rows_of(found, origin) == rows_of(files.drop("dataChange"), origin)
        assert rows_of(reader.read_meta(), origin) == rows_of(meta, origin)


def _corpus_tables() -> list[Any]:
    root = find_corpus()
    names = sorted(p.name for p in (root / "indextables").iterdir()) if root else []
    return [*names] or [pytest.param("", marks=pytest.mark.skip(missing_corpus_reason()))]


@pytest.mark.corpus
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", _corpus_tables())
def test_real_table_is_read_back_from_every_layout(corpus: Path, tmp_path: Path, name: str) -> None:
    store = open_store(str(corpus / "indextables" / name))
    listed = DIALECT.list_log(store).checkpoints
    if not listed:
        pytest.skip("the table has no state")
    reader = DIALECT.open_checkpoint(store, listed[-1])
    columns = [c for c in actions.schema() if c != "actionType"]
    assert_read_back_from_every_layout(tmp_path, reader.read_meta(), read_files(reader, columns))
