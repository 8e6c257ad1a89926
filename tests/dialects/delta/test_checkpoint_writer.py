"""Checkpoints that lakelog writes are read back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.delta import checkpoint_rows
from lakelog.dialects.delta.checkpoint import DeltaCheckpointReader
from lakelog.dialects.delta.checkpoint_schema import classic_schema, file_columns
from lakelog.dialects.delta.checkpoint_writer import DeltaCheckpointWriter
from lakelog.dialects.delta.dialect import DIALECT
from lakelog.dialects.delta.last_checkpoint import checksum, read_last_checkpoint
from lakelog.dialects.delta.murmur3 import part_of, part_of_others
from lakelog.dialects.digest import digest
from lakelog.dialects.log_content import CheckpointPlan, SidecarFile, StagedCheckpoint
from lakelog.errors import InvalidInputError, OutcomeUnknownError, UnavailableError
from lakelog.model import actions, contract
from lakelog.storage import LogStore, open_store
from lakelog.testing import Fault, InjectingStore, Rule
from tests import loggen
from tests.budget import share_of
from tests.model import replay

SCHEMA = contract.parse_schema(loggen.SCHEMA)
LAYOUTS = {
    "classic": {},
    "multipart": {"parts": 3},
    "v2-json": {"part_actions": 4},
    "v2-parquet": {"part_actions": 4},
    "v2-json inline": {"parts": 0},
    "v2-parquet inline": {"parts": 0},
}
NOT_COMPARED = ("version", "position", "timestamp", "dataChange", "extra")
"""Columns of a row that no checkpoint keeps, or that it replaces."""


def plan_of(version: int, layout: str = "classic", **more: Any) -> CheckpointPlan:
    given = {"parts": 1, **LAYOUTS.get(layout, {}), **more}
    return CheckpointPlan(
        version, layout.split(maxsplit=1)[0], **given, schema=SCHEMA, partition_columns=("p", "q")
    )


def frame_of(rows: Iterable[dict[str, Any]]) -> pl.DataFrame:
    """Flattened rows for the writer: paths decoded, without all-null columns."""
    frame = pl.DataFrame(list(rows), schema=actions.schema())
    return frame.select(s.name for s in frame if s.null_count() < frame.height)


META = frame_of(
    [
        {"actionType": "protocol", "minReaderVersion": 1, "minWriterVersion": 2},
        {"actionType": "metaData", "metadataId": "t", "schemaString": loggen.SCHEMA},
    ]
)


def write(
    store: LogStore, state: replay.State, plan: CheckpointPlan, batch_rows: int = 3
) -> StagedCheckpoint:
    writer = DIALECT.checkpoint_writer(store, plan)
    meta = [state.protocol, state.metadata, *state.domains.values(), *state.transactions.values()]
    writer.write_meta(frame_of(row for row in meta if row is not None))
    for files in (state.files, state.tombstones):
        for batch in frame_of(files.values()).iter_slices(batch_rows):
            writer.write_files(batch)
    return writer.finish()


def publish(store: LogStore, staged: StagedCheckpoint) -> None:
    for file in staged.files:
        if file.path != file.target:
            store.move(file.path, file.target)
    assert staged.pointer is not None
    store.put(*staged.pointer)


def as_rows(frames: Iterable[pl.DataFrame], removes_lack: tuple[str, ...] = ()) -> list[str]:
    """Rows and maps in canonical order, absent columns as nulls."""
    whole = actions.conform(actions.concat(frames)).drop(NOT_COMPARED)
    rows = []
    for found in whole.iter_rows(named=True):
        lacking = removes_lack if found["actionType"] == "remove" else ()
        row = found | dict.fromkeys(lacking)
        rows.append(json.dumps(row, sort_keys=True, default=str))
    return sorted(rows)


def rows_read(reader: DeltaCheckpointReader) -> tuple[list[str], list[str]]:
    columns = tuple(actions.schema())
    return as_rows([reader.read_meta()]), as_rows(reader.iter_files(columns))


def given_rows(state: replay.State) -> tuple[list[str], list[str]]:
    meta = [state.protocol, state.metadata, *state.domains.values(), *state.transactions.values()]
    files = [*state.files.values(), *state.tombstones.values()]
    return (
        as_rows([frame_of(row for row in meta if row is not None)]),
        as_rows([frame_of(files)], removes_lack=("stats", "tags")),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@given(seed=st.integers(0, 10**6), group=st.sampled_from([1, 4, 50_000]))
@settings(max_examples=share_of(8), deadline=None)
def test_written_checkpoint_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, layout: str, seed: int, group: int
) -> None:
    root = loggen.generate(
        tmp_path_factory.mktemp("log") / "t", seed, loggen.Options(layouts=(), noise=False)
    )
    state = replay.replay(root)
    store = open_store(str(root))
    staged = write(store, state, plan_of(state.version, layout, row_group_rows=group))

    assert rows_read(DIALECT.open_checkpoint(store, staged.checkpoint)) == given_rows(state)
    assert DIALECT.list_log(store, hint=False).checkpoints == ()
    publish(store, staged)
    (listed,) = DIALECT.list_log(store).checkpoints
    assert listed.version == state.version
    assert listed.layout == staged.checkpoint.layout
    assert listed.rank == staged.checkpoint.rank
    assert rows_read(DIALECT.open_checkpoint(store, listed)) == given_rows(state)
    assert read_last_checkpoint(store).version == state.version
    assert staged.pointer is not None
    pointer = json.loads(staged.pointer[1])
    assert pointer["numOfAddFiles"] == len(state.files)


def test_unknown_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="unknown checkpoint layout"):
        DIALECT.checkpoint_writer(open_store(str(tmp_path)), plan_of(1, "flattened"))


def test_action_that_checkpoints_do_not_contain_is_refused(tmp_path: Path) -> None:
    writer = DIALECT.checkpoint_writer(open_store(str(tmp_path)), plan_of(1))
    with pytest.raises(InvalidInputError, match="cannot contain this action"):
        writer.write_meta(frame_of([{"actionType": "mergeskip", "path": "a"}]))
    writer.abandon()


def test_paths_are_encoded_and_data_change_is_false(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    writer = DIALECT.checkpoint_writer(store, plan_of(1))
    writer.write_meta(META)
    row = {"actionType": "add", "path": "a b%", "size": 1, "dataChange": True}
    writer.write_files(frame_of([row | {"extra": '{"deletionVector":{"maxRowIndex":7},"x":1}'}]))
    (file,) = writer.finish().files
    found = pq.read_table(tmp_path / file.path)["add"].drop_null().to_pylist()[0]
    assert found["path"] == "a%20b%25"
    assert found["dataChange"] is False
    assert found["deletionVector"] is None


def adds(count: int, **more: Any) -> pl.DataFrame:
    rows = [{"actionType": "add", "path": f"{n:05}", "size": n, **more} for n in range(count)]
    return frame_of(rows)


def begin(tmp_path: Path, plan: CheckpointPlan) -> tuple[LogStore, DeltaCheckpointWriter]:
    store = open_store(str(tmp_path))
    writer = DIALECT.checkpoint_writer(store, plan)
    writer.write_meta(META)
    return store, writer


def test_row_groups_have_the_requested_number_of_rows(tmp_path: Path) -> None:
    _, writer = begin(tmp_path, plan_of(1, row_group_rows=10))
    for batch in adds(35).iter_slices(7):
        writer.write_files(batch)
    (file,) = writer.finish().files
    footer = pq.ParquetFile(tmp_path / file.path).metadata
    groups = [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]
    assert groups == [10, 10, 10, 7]
    assert file.num_actions == 37


def test_sidecars_are_split_by_action_count_in_the_given_order(tmp_path: Path) -> None:
    store, writer = begin(tmp_path, plan_of(1, "v2-json", part_actions=10, created_ms=17))
    for batch in adds(25).iter_slices(7):
        writer.write_files(batch)
    writer.write_files(frame_of([{"actionType": "remove", "path": "z"}]))
    staged = writer.finish()
    *sidecars, manifest = staged.files
    assert [file.num_actions for file in sidecars] == [10, 10, 6]
    assert all(file.path == file.target for file in sidecars)
    found = [
        row["path"]
        for file in sidecars
        for kind in ("add", "remove")
        for row in pq.read_table(tmp_path / file.path)[kind].drop_null().to_pylist()
    ]
    assert found == [f"{n:05}" for n in range(25)] + ["z"]

    lines = [json.loads(line) for line in (tmp_path / manifest.path).read_text().splitlines()]
    assert list(lines[0]) == ["checkpointMetadata"]
    assert lines[0]["checkpointMetadata"]["version"] == 1
    tags = lines[0]["checkpointMetadata"]["tags"]
    assert (tags["sidecarNumActions"], tags["numOfAddFiles"]) == ("26", "25")
    assert tags["sidecarSizeInBytes"] == str(sum(file.size_bytes for file in sidecars))
    named = [line["sidecar"] for line in lines if "sidecar" in line]
    assert [(s["sizeInBytes"], s["modificationTime"]) for s in named] == [
        (file.size_bytes, 17) for file in sidecars
    ]
    assert staged.pointer is not None
    pointer = json.loads(staged.pointer[1])
    assert (pointer["size"], pointer["numOfAddFiles"]) == (26 + 1 + 3 + META.height, 25)
    assert pointer["sizeInBytes"] == sum(file.size_bytes for file in staged.files)
    assert pointer["v2Checkpoint"]["path"] == manifest.target.rpartition("/")[2]
    assert pointer["checksum"] == checksum(pointer)
    assert store.stat(manifest.target) is None


@pytest.mark.parametrize("recorded", [True, False])
def test_kept_sidecars_are_named_and_counted(tmp_path: Path, recorded: bool) -> None:
    plan = plan_of(1, "v2-parquet", part_actions=10)
    store, writer = begin(tmp_path, plan)
    if recorded:
        writer.digest_of = digest
    writer.write_files(adds(20))
    first = DIALECT.open_checkpoint(store, writer.finish().checkpoint)
    rows = first.read_meta(["sidecar"])
    kept = tuple(
        SidecarFile(f"_delta_log/_sidecars/{path}", size, time, dict(tags or {}))
        for path, size, time, tags in actions.conform(
            rows, ("path", "size", "modificationTime", "tags")
        ).iter_rows()
    )
    assert [bool(file.tags) for file in kept] == [recorded] * 2

    again = DIALECT.checkpoint_writer(store, plan_of(2, "v2-json", parts=0, kept=kept[:1]))
    again.write_meta(META)
    staged = again.finish()
    (manifest,) = staged.files
    reader = DIALECT.open_checkpoint(store, staged.checkpoint)
    assert reader.files_read() == (manifest.path, kept[0].path)
    assert sum(frame.height for frame in reader.iter_files(["size"])) == 10
    assert staged.pointer is not None
    assert json.loads(staged.pointer[1])["numOfAddFiles"] == 10

    more = DIALECT.checkpoint_writer(store, plan_of(3, "v2-json", kept=kept))
    more.write_meta(META)
    more.write_files(adds(5))
    more.abandon()
    left = {entry.name for batch in store.walk("_delta_log/_sidecars") for entry in batch}
    assert left == {file.path.rpartition("/")[2] for file in kept}


def test_files_are_assigned_to_parts_by_path_and_deletion_vector(tmp_path: Path) -> None:
    vector = {"dvStorageType": "u", "dvPathOrInline": "ab", "dvSizeInBytes": 1, "dvCardinality": 1}
    files = adds(300, **vector).with_columns(dvId=pl.format("uab@{}", pl.col("size")))
    files = files.with_columns(dvOffset=pl.col("size").cast(pl.Int32))
    plan = plan_of(1, "multipart", parts=3, deletion_vectors=True, row_group_rows=50)
    _, writer = begin(tmp_path, plan)
    assert "dvId" in writer.columns
    for batch in files.iter_slices(64):
        writer.write_files(batch)
    staged = writer.finish()
    part = part_of(files, 3, deletion_vectors=True)
    assert part.to_list() != part_of(files, 3, deletion_vectors=False).to_list()
    for number, file in enumerate(staged.files):
        table = pq.read_table(tmp_path / file.path)
        paths = [row["path"] for row in table["add"].drop_null().to_pylist()]
        assert paths == files.filter(part == number)["path"].to_list()
        assert file.target.endswith(f"checkpoint.{number + 1:010}.0000000003.parquet")
        others = table["protocol"].drop_null()
        assert len(others) == (number == part_of_others(3))


def test_max_row_index_of_a_deletion_vector_is_kept(tmp_path: Path) -> None:
    vector = {"dvStorageType": "u", "dvPathOrInline": "ab", "dvSizeInBytes": 1, "dvCardinality": 1}
    extra = [None, '{"deletionVector":{"maxRowIndex":7},"x":1}', '{"maxRowIndex":3}']
    _, writer = begin(tmp_path, plan_of(1))
    writer.write_files(adds(3, **vector).with_columns(extra=pl.Series(extra)))
    (file,) = writer.finish().files
    found = pq.read_table(tmp_path / file.path)["add"].drop_null().to_pylist()
    assert [row["deletionVector"]["maxRowIndex"] for row in found] == [None, 7, None]


def test_texts_larger_than_an_arrow_array_are_sliced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.dialects.delta.checkpoint_files._MOST_TEXT_BYTES", 100)
    files = adds(50, stats='{"numRecords":1}')
    store, writer = begin(tmp_path, plan_of(1, stats_as_struct=True))
    writer.write_files(files)
    reader = DIALECT.open_checkpoint(store, writer.finish().checkpoint)
    found = actions.concat(reader.iter_files(["size", "stats"]))
    assert found.select("path", "size", "stats").equals(files.select("path", "size", "stats"))


@pytest.mark.parametrize("fault", ["fail", "lost"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_failed_writer_leaves_no_file(tmp_path: Path, layout: str, fault: Fault) -> None:
    for nth in range(1, 20):
        below = open_store(str(tmp_path / str(nth)))
        store = InjectingStore(below, [Rule(fault, "upload", nth=nth)])
        plan = plan_of(1, layout, row_group_rows=10, part_actions=20)
        writer = DIALECT.checkpoint_writer(store, plan)
        try:
            writer.write_meta(META)
            for batch in adds(40).iter_slices(10):
                writer.write_files(batch)
            writer.finish()
        except (UnavailableError, OutcomeUnknownError):
            writer.abandon()
            assert not [entry for batch in below.walk() for entry in batch]
        else:
            assert nth > 1
            return
    pytest.fail("the writer never succeeds")


@pytest.mark.parametrize(
    ("layout", "more", "message"),
    [
        ("multipart", {"parts": 1}, "more parts"),
        ("classic", {"parts": 0}, "more parts"),
        ("classic", {"kept": (SidecarFile("a", 1, 1),)}, "only V2"),
    ],
)
def test_invalid_plan_is_refused(
    tmp_path: Path, layout: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        DIALECT.checkpoint_writer(open_store(str(tmp_path)), plan_of(1, layout, **more))


@pytest.mark.parametrize("height", [0, 1, 8, 1_000])
def test_null_columns_of_shared_memory_equal_those_of_arrow(height: int) -> None:
    types = [field.type for field in classic_schema(file_columns())]
    types += [pa.decimal128(38, 2), pa.binary(), pa.date32(), pa.timestamp("us", "UTC")]
    for type_ in types:
        found = checkpoint_rows._nulls(height, type_)
        found.validate(full=True)
        assert found.equals(pa.nulls(height, type_))
        assert found.null_count == height
