"""What a state reads, when, and what it shares with later states."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pytest

from lakelog import Table
from lakelog.dialects.log_content import Checkpoint
from lakelog.errors import CheckpointCorruptionError, MalformedLogError
from lakelog.log import state as module
from lakelog.log.base_checkpoint import broken_checkpoint
from lakelog.log.opening import open_state, update_state
from lakelog.log.replay import Layers, retained_tombstones
from lakelog.log.segment import choose_segment
from lakelog.log.state import State
from lakelog.model import actions
from lakelog.storage.base import StoreWrapper
from tests.handmade import Handmade, add, info, metadata, protocol, remove, vector

BASE = (protocol(), metadata())


@pytest.fixture
def made(tmp_path: Path) -> Handmade:
    log = Handmade(tmp_path / "t")
    log.checkpoint(1, *BASE, add("a", 1), add("b", 2), add("v", 3, **vector("1")), remove("z"))
    log.commit(
        2, info("MERGE"), remove("a"), add("v", 3, **vector("2")), remove("v", **vector("1"))
    )
    log.commit(3, info("WRITE"), add("c", 4), add("z", 5))
    return log


def live(state: State, kind: str) -> list[tuple[str, str | None]]:
    frames = state.live(kind, ["path", "dvId"], lambda f: actions.conform(f, actions.KEY))
    return sorted(pl.concat(frames).rows(), key=str)


def test_creating_a_state_reads_nothing(made: Handmade) -> None:
    log = made.context()
    segment = choose_segment(log.list_all())
    for path in made.log.iterdir():
        path.write_bytes(b"damaged")
    state = State.of(log, segment)
    assert (state.version, state.base is not None) == (3, True)
    with pytest.raises(CheckpointCorruptionError):
        _ = state.protocol


def test_batches_of_the_checkpoint_are_returned_first(made: Handmade) -> None:
    state = open_state(made.context())
    batches = list(state.iter_live("add", ["path"]))
    assert [sorted(b["path"]) for b in batches] == [["b"], ["c", "v", "z"]]


def test_update_shares_the_checkpoint_and_leaves_the_state_as_it_was(made: Handmade) -> None:
    state = open_state(made.context())
    before = live(state, "add")
    made.commit(4, remove("b"))
    later = update_state(state)
    assert later.base is state.base
    assert ("b", None) not in live(later, "add")
    assert live(state, "add") == before
    assert update_state(later) is later
    assert [c.version for c in later.new_commits] == [4]


def test_number_of_layers_above_a_checkpoint_stays_logarithmic() -> None:
    layers = Layers()
    for n in range(500):
        layers = layers.push(pl.DataFrame({"actionType": ["add"], "path": [f"f{n}"]}))
    assert layers.height == 500
    assert len(layers.frames) <= 9


def test_tombstones_without_a_column_of_times_count_from_zero() -> None:
    """The removes that a checkpoint copies from commits may all lack a time."""
    rows = pl.DataFrame({"path": ["a"]})
    assert [retained_tombstones(rows, ms).height for ms in (None, -1, 0)] == [1, 1, 0]


def test_provenance_names_every_file_once(made: Handmade) -> None:
    state = open_state(made.context())
    made.commit(4, remove("b"))
    for found in (update_state(state).provenance, open_state(made.context()).provenance):
        names = [name.rsplit("/", 1)[-1] for name in found.files]
        assert names == [f"{1:020d}.checkpoint.parquet", *(f"{v:020d}.json" for v in (2, 3, 4))]
        assert (found.version, found.warnings) == (4, ())


def test_large_tail_gives_protocol_and_metadata_without_its_files(
    made: Handmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SMALL_TAIL_BYTES", 0)
    made.commit(4, metadata(table_id="id-0", name="new"), add("d"))
    state = open_state(made.context())
    assert state.metadata.name == "new"
    assert "tail" not in state.__dict__
    assert ("d", None) in live(state, "add")


def test_last_commit_info_is_that_of_the_commit_of_the_version(made: Handmade) -> None:
    def operation(version: int) -> object:
        found = open_state(made.context(), version).last_commit_info
        return found.body["operation"] if found else None

    assert [operation(v) for v in (1, 2, 3)] == [None, "MERGE", "WRITE"]
    made.commit(4, add("d"))
    assert operation(4) is None


def test_compaction_does_not_hide_the_last_commits_info(made: Handmade) -> None:
    rows = (remove("a"), add("v", 3, **vector("2")), remove("v", **vector("1")))
    made.compaction(2, 3, *rows, add("c", 4), add("z", 5))
    state = open_state(made.context())
    assert state.tail.compactions != ()
    found = state.last_commit_info
    assert found is not None
    assert found.body["operation"] == "WRITE"


def test_error_within_a_checkpoint_is_reported_as_checkpoint_corruption(made: Handmade) -> None:
    checkpoint = Checkpoint(7, "classic", 0, ("c",))
    with pytest.raises(CheckpointCorruptionError) as refused, broken_checkpoint(checkpoint):
        raise MalformedLogError("torn", path="part", line=3, byte_offset=9, hint="repair")
    error = refused.value
    assert (error.version, error.path, error.line, error.byte_offset) == (7, "part", 3, 9)
    assert isinstance(error.__cause__, MalformedLogError)


def test_damaged_commit_is_not_reported_as_checkpoint_corruption(made: Handmade) -> None:
    made.write(f"{3:020d}.json", b'{"add":')
    with pytest.raises(MalformedLogError) as refused:
        open_state(made.context())
    assert refused.value.version == 3


def test_table_whose_store_hangs_does_not_block_another_table(made: Handmade) -> None:
    released = threading.Event()
    reading = threading.Event()

    class Hangs(StoreWrapper):
        def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
            reading.set()
            released.wait()
            return super().open(path, size_bytes)

    log = made.context()
    with ThreadPoolExecutor(2) as pool:
        hanging = Table(replace(log, store=Hangs(log.store)))
        first = pool.submit(lambda: hanging.snapshot().files().collect())
        reading.wait()
        try:
            answer = pool.submit(lambda: Table(log).snapshot().files().collect())
            assert sorted(answer.result(timeout=30)["path"]) == ["b", "c", "v", "z"]
        finally:
            released.set()
        assert first.result().height == 4
