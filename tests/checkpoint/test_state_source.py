"""The rows of a checkpoint by every replay mode: without a limit, within a limit in memory, and on
disk. A failure names its seed; `generate(path, seed)` of `tests.loggen` writes the same log again.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.checkpoint.bounded_memory import (
    LEAST_RESIDENT_BYTES,
    LEAST_WORK_BYTES,
    Budget,
    resident_bytes,
)
from lakelog.checkpoint.state_source import (
    ReplayMode,
    StateSource,
    choose_replay_mode,
    count_partitions,
)
from lakelog.dialects.log_content import STRUCT_STATISTICS, statistics_text
from lakelog.errors import CheckpointCorruptionError, CheckpointWriteError, InvalidInputError
from lakelog.log.opening import open_state
from lakelog.model import actions
from lakelog.model.actions import PATH_TEXT
from tests import handmade
from tests.dialects.indextables import writing
from tests.handmade import Handmade
from tests.log.test_indextables_properties import generate as generate_indextables
from tests.loggen import FIRST_COMMIT_MS, Options, generate
from tests.model import indextables, replay
from tests.model.compare import Row, differences, normal, rows_of

pytestmark = pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")

EXAMPLES = int(os.environ.get("LAKELOG_EXAMPLES", "8"))
NOW_MS = FIRST_COMMIT_MS + 604_800_000 + 500_000  # half of the generated tombstones are expired
# Rows of a compaction do not record which commit wrote them.
COLUMNS = [c for c in actions.schema() if c not in ("timestamp", "position", "version")]
FREE = None
LAYERS = Budget(1 << 12, 300, 1 << 30, 1 << 20, 1 << 20, 1 << 10, 64, 1 << 30)
SPILL = Budget(1 << 12, 300, -1, 2_000, 4_000, 1 << 5, 64, 1 << 30)
REPLAY_MODES = {"free": FREE, "layers": LAYERS, "spill": SPILL}


def source_of(root: Path, budget: Budget | None, version: int | None = None) -> StateSource:
    state = open_state(lakelog.open(root).log, version)
    return StateSource(state, memory_limit=None, now_ms=NOW_MS, budget=budget)


def file_rows(source: StateSource) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {"add": [], "remove": []}
    order = []
    for frame in source.files([*COLUMNS, STRUCT_STATISTICS]):
        (kind,) = frame["actionType"].unique()
        order.append(kind)
        assert 0 < frame.height <= 65_536
        assert not frame["dataChange"].any()
        rows = frame.drop(PATH_TEXT, strict=False)
        if STRUCT_STATISTICS in rows.columns:
            rows = rows.with_columns(statistics_text(rows)).drop(STRUCT_STATISTICS)
        found[kind] += [normal(row) for row in rows_of(rows)]
    assert order == sorted(order)  # adds are first
    return found


def expected_files(state: replay.State) -> dict[str, list[Row]]:
    bound = NOW_MS - 604_800_000
    kept = [r for r in state.tombstones.values() if (r["deletionTimestamp"] or 0) > bound]
    bare = [{k: v for k, v in r.items() if k not in ("stats", "tags")} for r in kept]
    columns = {*COLUMNS, "extra"}
    return {
        "add": [normal(row, columns) for row in state.files.values()],
        "remove": [normal(row, columns) for row in bare],
    }


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_every_replay_mode_equals_the_plain_replay(seed: int, tmp_path: Path) -> None:
    root = generate(tmp_path / "t", seed, Options(commits=10, actions=8))
    for hint in (*root.rglob("*.crc"), *root.rglob("_last_checkpoint")):
        hint.unlink()  # with random counts, for which the checkpoint is ignored
    for version in replay.list_log(root).rebuildable()[-3:]:
        state = replay.replay(root, version)
        expected = expected_files(state)
        for name, budget in REPLAY_MODES.items():
            with source_of(root, budget, version) as source:
                assert source.replay_mode is ReplayMode(name)
                found = file_rows(source)
                for kind in ("add", "remove"):
                    problems = differences(expected[kind], found[kind], ("path", "dvId"))
                    assert problems == [], (seed, version, name, kind)
                assert meta_rows(source.meta) == expected_meta(state), (seed, version, name)
                assert file_rows(source) == found  # a second read gives the same rows


def meta_rows(meta: pl.DataFrame) -> list[tuple[str, Any]]:
    assert [k for k, _ in _runs(meta["actionType"].to_list())] == sorted(
        set(meta["actionType"]),
        key=["protocol", "metaData", "domainMetadata", "txn", "mergeskip"].index,
    )
    return sorted(_meta_key(row) for row in rows_of(meta))


def _runs(values: list[str]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for value in values:
        if not runs or runs[-1][0] != value:
            runs.append((value, 0))
    return runs


def _meta_key(row: Row) -> tuple[str, str]:
    names = {
        "protocol": ("minReaderVersion", "readerFeatures", "writerFeatures"),
        "metaData": ("metadataId", "schemaString", "configuration", "partitionColumns"),
        "txn": ("appId", "txnVersion", "lastUpdated"),
        "domainMetadata": ("domain", "domainConfiguration"),
    }[row["actionType"]]
    return row["actionType"], json.dumps({n: row.get(n) for n in names}, sort_keys=True)


def expected_meta(state: replay.State) -> list[tuple[str, Any]]:
    assert state.protocol is not None
    assert state.metadata is not None
    rows = [state.protocol, state.metadata, *state.domains.values(), *state.transactions.values()]
    return sorted(_meta_key(row) for row in rows)


@pytest.mark.parametrize("seed", range(EXAMPLES // 4))
def test_every_replay_mode_equals_the_plain_replay_of_an_indextables_log(
    seed: int, tmp_path: Path
) -> None:
    root = generate_indextables(tmp_path / "t", seed)
    state = indextables.replay(root)
    for name, budget in REPLAY_MODES.items():
        found: dict[str, list[str]] = {kind: [] for kind in actions.FILE_ACTIONS}
        with source_of(root, budget) as source:
            for frame in source.files(["size", "stats", "partitionValues", "deletionTimestamp"]):
                found[frame["actionType"][0]] += frame["path"].to_list()
            skips = source.meta.filter(pl.col("actionType") == "mergeskip")
        assert sorted(found["add"]) == sorted(state.files), (seed, name)
        assert skips.height == len(state.skips), (seed, name)


@pytest.mark.parametrize("budget", REPLAY_MODES.values(), ids=REPLAY_MODES)
def test_last_row_counts_where_a_checkpoint_may_repeat_a_file(
    budget: Budget | None, tmp_path: Path
) -> None:
    log = writing.Log(tmp_path / "t")
    rows = [("a", "add", 1), ("b", "add", 1), ("a", "remove", 2), ("b", "add", 3), ("c", "add", 1)]
    flat: list[dict[str, Any]] = [
        {"actionType": "protocol", "minReaderVersion": 4, "minWriterVersion": 4},
        {"actionType": "metaData", "metadataId": "m", "schemaString": writing.SCHEMA_STRING},
        *(
            {"actionType": kind, "path": path, "size": size, "deletionTimestamp": NOW_MS}
            for path, kind, size in rows
        ),
    ]
    log.flattened(f"{1:020d}.checkpoint.parquet", writing.flat_rows(flat))
    log.commit(2, [writing.remove("c"), writing.add("d", size=4)])
    found = file_sizes(source_of(tmp_path / "t", budget))
    assert found == {("add", "b", 3), ("add", "d", 4), ("remove", "a", 2)}


def file_sizes(source: StateSource) -> set[tuple[str, str, int]]:
    return {
        row
        for frame in source.files(["size"])
        for row in frame.select("actionType", "path", "size").iter_rows()
    }


# --- what a checkpoint omits -----------------------------------------------------------------


@pytest.mark.parametrize("budget", REPLAY_MODES.values(), ids=REPLAY_MODES)
def test_tombstone_as_old_as_the_retention_is_omitted(
    budget: Budget | None, tmp_path: Path
) -> None:
    log = Handmade(tmp_path / "t")
    retention = {"delta.deletedfileRetentionDuration": "interval 1 hour"}  # in any case
    log.commit(0, handmade.protocol(), handmade.metadata(properties=retention))
    bound = NOW_MS - 3_600_000
    ages = {"old": bound, "young": bound + 1, "timeless": None}
    log.commit(1, *(handmade.remove(path, deletionTimestamp=at) for path, at in ages.items()))
    assert [row["path"] for row in file_rows(source_of(tmp_path / "t", budget))["remove"]] == [
        "young"
    ]


@pytest.mark.parametrize("budget", REPLAY_MODES.values(), ids=REPLAY_MODES)
def test_expired_transaction_is_omitted(budget: Budget | None, tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t")
    retention = {"delta.setTransactionRetentionDuration": "interval 1 hour"}
    log.commit(0, handmade.protocol(), handmade.metadata(properties=retention))
    bound = NOW_MS - 3_600_000
    ages = {"old": bound, "young": bound + 1, "timeless": None}
    log.commit(1, *({"txn": {"appId": a, "version": 1, "lastUpdated": t}} for a, t in ages.items()))
    meta = source_of(tmp_path / "t", budget).meta
    assert meta.filter(pl.col("actionType") == "txn")["appId"].to_list() == ["young"]


# --- choice of the replay mode -----------------------------------------------------------------


def test_fastest_replay_mode_is_used_without_a_limit() -> None:
    assert choose_replay_mode(None, 1 << 40, repeats=True) is ReplayMode.FREE


def test_commits_are_spilled_to_disk_if_they_do_not_fit() -> None:
    budget = replace(SPILL, tail=1000)
    assert choose_replay_mode(budget, 1000, repeats=False) is ReplayMode.LAYERS
    assert choose_replay_mode(budget, 1001, repeats=False) is ReplayMode.SPILL
    assert choose_replay_mode(budget, 0, repeats=True) is ReplayMode.SPILL


def test_number_of_partitions_depends_on_the_rows() -> None:
    assert count_partitions(0, 100) == 1
    assert count_partitions(100, 100) == 1
    assert count_partitions(101, 100) == 2


def test_limit_below_the_minimum_is_refused_with_the_minimum(tmp_path: Path) -> None:
    least = LEAST_RESIDENT_BYTES + LEAST_WORK_BYTES
    with pytest.raises(InvalidInputError) as raised:
        Budget.of(least - 1, 100)
    assert raised.value.expected == f"at least {least >> 20} MiB"
    assert Budget.of(least, 100).filter.bit_count() == 1
    with pytest.raises(InvalidInputError):
        Budget.of(least, LEAST_RESIDENT_BYTES + 1)
    state = open_state(lakelog.open(generate(tmp_path / "t", 1)).log)
    with pytest.raises(InvalidInputError, match="memory limit"):
        StateSource(state, memory_limit=1 << 20, now_ms=NOW_MS)


def test_resident_memory_is_measured() -> None:
    assert 50 << 20 < resident_bytes() < 50 << 30


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", REPLAY_MODES.values(), ids=REPLAY_MODES)
def test_checkpoint_that_repeats_a_file_is_refused(budget: Budget | None, tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t")
    log.checkpoint(1, handmade.add("a"), handmade.add("b"), suffix=".0000000001.0000000003")
    log.checkpoint(1, handmade.add("b"), handmade.add("c"), suffix=".0000000002.0000000003")
    log.checkpoint(1, handmade.protocol(), handmade.metadata(), suffix=".0000000003.0000000003")
    log.commit(2, handmade.remove("b"))
    with pytest.raises(CheckpointCorruptionError, match="twice") as raised:
        file_rows(source_of(tmp_path / "t", budget))
    assert raised.value.found == "b"


@pytest.mark.parametrize("budget", REPLAY_MODES.values(), ids=REPLAY_MODES)
def test_path_may_occur_in_a_checkpoint_with_several_deletion_vectors(
    budget: Budget | None, tmp_path: Path
) -> None:
    log = Handmade(tmp_path / "t")
    log.checkpoint(
        1,
        handmade.protocol(),
        handmade.metadata(),
        handmade.remove("a", deletionTimestamp=NOW_MS),
        handmade.remove("a", deletionTimestamp=NOW_MS, **handmade.vector("x")),
        handmade.add("a", **handmade.vector("y")),
        handmade.add("b"),
    )
    log.commit(2, handmade.remove("b", deletionTimestamp=NOW_MS), handmade.add("c"))
    found = file_rows(source_of(tmp_path / "t", budget))
    keys = {k: sorted((r["path"], r.get("dvId", "")) for r in rows) for k, rows in found.items()}
    assert keys == {
        "add": [("a", "uy@1"), ("c", "")],
        "remove": [("a", ""), ("a", "ux@1"), ("b", "")],
    }


def test_full_disk_raises_checkpoint_write_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = generate(tmp_path / "t", 5, Options(layouts=()))

    class Full:
        def seek(self, *_: int) -> int:
            return 0

        def tell(self) -> int:
            return 0

        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            return None

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(CheckpointWriteError, match="No space left"):
        file_rows(source_of(root, SPILL))


def test_no_file_is_left_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    root = generate(tmp_path / "t", 7, Options(layouts=()))
    source = source_of(root, SPILL)
    rows = source.files(["size"])
    next(rows)
    assert list(spare.iterdir()) == []  # even while it is being read
    del rows, source  # dropped without being closed
    gc.collect()
    assert list(spare.iterdir()) == []


def test_manifest_that_cannot_be_read_in_batches_is_refused_within_a_limit(
    tmp_path: Path,
) -> None:
    root = generate(
        tmp_path / "t", 2, Options(commits=4, layouts=("v2-json",), forced=(2,), checkpoints=0)
    )
    with pytest.raises(InvalidInputError, match="read as a whole"):
        file_rows(source_of(root, replace(SPILL, whole=10)))
