"""Checkpoints that are written, and read again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog import actions, contract
from lakelog.errors import InvalidInputError
from lakelog.formats.base import CheckpointPlan, StagedCheckpoint
from lakelog.formats.delta.checkpoint import DeltaCheckpointReader
from lakelog.formats.delta.dialect import DIALECT
from lakelog.formats.delta.hints import read_last_checkpoint
from lakelog.storage import LogStore, open_store
from tests import loggen
from tests.model import replay

SCHEMA = contract.parse_schema(loggen.SCHEMA)
LAYOUTS = {
    "classic": {},
    "multipart": {"parts": 3},
    "v2-json": {"part_actions": 4},
    "v2-parquet": {"part_actions": 4},
    "classic-v2": {"part_actions": 4},
    "v2-json inline": {"parts": 0},
    "v2-parquet inline": {"parts": 0},
    "classic-v2 inline": {"parts": 0},
}
KEPT_NOWHERE = ("version", "position", "timestamp", "dataChange", "extra")
"""What no checkpoint keeps of a row, or replaces."""


def plan_of(version: int, layout: str = "classic", **more: Any) -> CheckpointPlan:
    given = {"parts": 1, **LAYOUTS.get(layout, {}), **more}
    return CheckpointPlan(
        version, layout.split(maxsplit=1)[0], **given, schema=SCHEMA, partition_columns=("p", "q")
    )


def frame_of(rows: Iterable[dict[str, Any]]) -> pl.DataFrame:
    """Flattened rows as the writer is given them: paths decoded, without columns of nulls."""
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
    """Rows in no order, maps in no order, absent columns as nulls."""
    whole = actions.conform(actions.concat(frames)).drop(KEPT_NOWHERE)
    rows = []
    for found in whole.iter_rows(named=True):
        lacking = removes_lack if found["actionType"] == "remove" else ()
        row = found | dict.fromkeys(lacking)
        rows.append(json.dumps(row, sort_keys=True, default=str))
    return sorted(rows)


def held(reader: DeltaCheckpointReader) -> tuple[list[str], list[str]]:
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
@settings(max_examples=8, deadline=None)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, layout: str, seed: int, group: int
) -> None:
    root = loggen.generate(
        tmp_path_factory.mktemp("log") / "t", seed, loggen.Options(layouts=(), noise=False)
    )
    state = replay.replay(root)
    store = open_store(str(root))
    staged = write(store, state, plan_of(state.version, layout, row_group_rows=group))

    assert held(DIALECT.open_checkpoint(store, staged.checkpoint)) == given_rows(state)
    assert DIALECT.list_log(store, hint=False).checkpoints == ()
    publish(store, staged)
    (listed,) = DIALECT.list_log(store).checkpoints
    assert listed.version == state.version
    assert listed.layout == staged.checkpoint.layout
    assert listed.rank == staged.checkpoint.rank
    assert held(DIALECT.open_checkpoint(store, listed)) == given_rows(state)
    assert read_last_checkpoint(store).version == state.version
    assert staged.pointer is not None
    pointer = json.loads(staged.pointer[1])
    assert pointer["numOfAddFiles"] == len(state.files)


def test_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such checkpoint layout"):
        DIALECT.checkpoint_writer(open_store(str(tmp_path)), plan_of(1, "flattened"))


def test_an_action_that_no_checkpoint_holds_is_refused(tmp_path: Path) -> None:
    writer = DIALECT.checkpoint_writer(open_store(str(tmp_path)), plan_of(1))
    with pytest.raises(InvalidInputError, match="holds such an action"):
        writer.write_meta(frame_of([{"actionType": "mergeskip", "path": "a"}]))
    writer.abandon()


def test_what_is_abandoned_is_gone(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    writer = DIALECT.checkpoint_writer(store, plan_of(1, row_group_rows=1))
    writer.write_meta(META)
    writer.write_files(frame_of([{"actionType": "add", "path": "a", "size": 1}]))
    writer.abandon()
    assert not [entry for batch in store.walk() for entry in batch]


def test_paths_are_encoded_and_files_change_no_data(tmp_path: Path) -> None:
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
