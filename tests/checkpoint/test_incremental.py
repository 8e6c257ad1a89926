"""Incremental checkpoints, case by case: kept sidecars, cost, and detected damage."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.checkpoint import incremental as checkpoint_sidecars
from lakelog.checkpoint.incremental import Incremental, Unfit, plan_incremental
from lakelog.dialects.delta import path_filters, sidecar_fingerprints
from lakelog.dialects.delta.path_filters import PathFilter
from lakelog.dialects.delta.sidecar_fingerprints import FINGERPRINT_TAG, TOTAL_TAG
from lakelog.errors import CheckpointCorruptionError, CheckpointValidationError, UnavailableError
from lakelog.log.opening import open_state
from lakelog.storage import open_store
from lakelog.testing import InjectingStore, Rule
from tests.checkpoint.incremental_tables import (
    DAY_MS,
    NOW_MS,
    Table,
    checkpoint,
    names,
    old_remove,
    open_log,
    plan_of,
    stage,
)
from tests.handmade import add, remove
from tests.model import replay

SIDECARS = "_delta_log/_sidecars"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three sidecars of ten files each, under a full checkpoint of version 0."""
    table = Table(tmp_path / "t")
    table.create(*(add(path) for path in names("base", 30)))
    written = checkpoint(open_log(open_store(str(table.root))), full=True, part_actions=10)
    assert len(written.staged.files) == 4
    return table


def logged(table: Table) -> Any:
    return open_log(open_store(str(table.root)))


def keys(root: Path) -> list[tuple[str, str, str | None]]:
    """Every row of every sidecar in the newest manifest."""
    found: list[tuple[str, str, str | None]] = []
    for path in sidecars(root):
        for row in pq.read_table(root / path).to_pylist():
            for kind in ("add", "remove"):
                if row[kind] is not None:
                    dv = row[kind]["deletionVector"]
                    found.append((kind, row[kind]["path"], dv and dv["pathOrInlineDv"]))
    return sorted(found, key=str)


def manifest(root: Path) -> Path:
    return root / replay.list_log(root).candidates[-1].paths[0]


def sidecars(root: Path) -> list[str]:
    lines = manifest(root).read_text().splitlines()
    bodies = [json.loads(line) for line in lines]
    return [f"{SIDECARS}/{b['sidecar']['path']}" for b in bodies if "sidecar" in b]


# --- what is kept ----------------------------------------------------------------------------


def test_commit_without_files_writes_only_a_manifest(table: Table) -> None:
    before = sidecars(table.root)
    table.commit({"txn": {"appId": "a", "version": 5}})
    written = checkpoint(logged(table))
    assert sidecars(table.root) == before
    assert [f.path.startswith(SIDECARS) for f in written.staged.files] == [False]
    assert replay.replay(table.root).transactions["a"]["txnVersion"] == 5


def test_small_sidecars_are_merged_when_they_accumulate(table: Table) -> None:
    large = sidecars(table.root)
    for number in range(12):
        table.commit(add(f"new-{number}"))
        assert set(large) <= set(checkpoint(logged(table), part_actions=16).kept)
        assert len(sidecars(table.root)) <= 3 + 3
    assert len(keys(table.root)) == 42


# --- tombstones ------------------------------------------------------------------------------


def test_expired_tombstones_are_dropped_when_their_sidecar_is_rewritten(table: Table) -> None:
    paths = names("base", 30)
    table.commit(*(old_remove(path, 6.5) for path in paths[:2]))
    checkpoint(logged(table))
    table.commit(old_remove(paths[2], -1))
    written = stage(logged(table), now_ms=NOW_MS + DAY_MS)
    assert written.digest is not None
    assert written.digest.counts == {"add": 27, "remove": 1}


def test_sidecar_of_expired_tombstones_is_dropped(table: Table) -> None:
    paths = names("base", 30)
    table.commit(*(old_remove(path, 6.5) for path in paths[:20]))
    checkpoint(logged(table))
    table.commit(add("new"))
    written = stage(logged(table), now_ms=NOW_MS + DAY_MS)
    assert written.digest is not None
    assert written.digest.counts["add"] == 11
    assert written.digest.counts.get("remove", 0) < 10


# --- what it costs ---------------------------------------------------------------------------


def counted(table: Table, **more: Any) -> tuple[InjectingStore, Any]:
    store = InjectingStore(open_store(str(table.root)))
    return store, stage(open_log(store), **more)


def test_cost_of_an_append_does_not_grow_with_the_table(tmp_path: Path) -> None:
    written: list[int] = []
    for size in (1_000, 8_000):
        table = Table(tmp_path / str(size))
        table.create(*(add(path) for path in names("base", size)))
        checkpoint(logged(table), full=True, part_actions=size // 4)
        table.commit(add("new"))
        _, done = counted(table, part_actions=size // 4)
        assert len(done.kept) == 4
        written.append(sum(f.size_bytes for f in done.staged.files))
        new = [f for f in done.staged.files if f.path.startswith(SIDECARS)]
        assert [f.num_actions for f in new] == [1]
    assert abs(written[0] - written[1]) < 200  # counts and sizes have more digits


def test_kept_sidecars_are_opened_once_and_their_rows_are_not_read(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is opened twice more, for the common columns and the types of their bounds."""
    table.commit(add("new"))
    read: list[str] = []
    inner = pq.ParquetFile.iter_batches

    def iter_batches(self: pq.ParquetFile, *args: Any, **more: Any) -> Any:
        read.append(str(self.metadata.num_rows))
        return inner(self, *args, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    store, done = counted(table)
    assert read == ["1"]  # the new one is read back
    opened = [path for kind, path in store.operations if kind == "open"]
    first, *others = done.kept
    assert opened.count(first) == 3
    assert others
    assert all(opened.count(path) == 1 for path in others)
    uploaded = {path for kind, path in store.operations if kind in ("upload", "put")}
    assert not uploaded & set(done.kept)


def test_false_positive_of_a_filter_keeps_the_sidecar(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hits_always(self: PathFilter, hashes: Any) -> Any:
        return hashes >= 0

    monkeypatch.setattr(PathFilter, "may_hold", hits_always)
    before = sidecars(table.root)
    table.commit(add("new"))
    assert stage(logged(table)).kept == before


def test_many_keys_are_searched_in_the_paths_instead_of_the_filters(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_sidecars, "_MOST_PROBES", 1)
    before = sidecars(table.root)
    table.commit(add("new"), add("newer"), old_remove(names("base", 30)[14]))
    assert checkpoint(logged(table)).kept == [before[0], before[2]]
    assert len(keys(table.root)) == 32


def test_paths_are_read_if_filters_cannot_be_read(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older pyarrow cannot read filters, including those that a newer one wrote."""
    disable_filters(monkeypatch)
    table.commit(old_remove(names("base", 30)[14]))
    assert len(checkpoint(logged(table)).kept) == 2
    assert len(keys(table.root)) == 30


def disable_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (path_filters, sidecar_fingerprints):
        monkeypatch.setattr(module, "CAN_READ", False)


def test_filters_without_a_record_are_not_used(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        disable_filters(older)
        again = Table(table.root.parent / "again")
        again.create(*(add(path) for path in names("base", 30)))
        checkpoint(logged(again), full=True, part_actions=10)
    monkeypatch.setattr(PathFilter, "may_hold", None)  # fails if a filter is used
    again.commit(old_remove(names("base", 30)[14]))
    assert len(checkpoint(logged(again)).kept) == 2
    assert len(keys(again.root)) == 30


# --- no sidecar can be kept ------------------------------------------------------------------


def test_first_v2_checkpoint_is_full(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    table.create(add("a"))
    assert stage(logged(table)).reason == "the previous checkpoint is not a V2 checkpoint"
    assert stage(logged(table), layout="classic").reason == "only V2 checkpoints share sidecars"


@pytest.mark.parametrize("tag", [FINGERPRINT_TAG, TOTAL_TAG])
def test_checkpoint_after_one_of_another_writer_is_full_once(table: Table, tag: str) -> None:
    path = manifest(table.root)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for body in lines:
        for action in body.values():
            action.get("tags", {}).pop(tag, None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table.commit(add("new"))
    assert "record" in (checkpoint(logged(table)).reason or "")
    table.commit(add("newer"))
    assert checkpoint(logged(table)).reason is None


def test_sidecars_of_another_shape_are_not_kept(table: Table) -> None:
    table.commit(add("new"))
    assert "format of their statistics" in (stage(logged(table), stats_as_json=False).reason or "")


def test_digests_of_another_algorithm_are_not_compared(table: Table) -> None:
    path = manifest(table.root)
    path.write_text(path.read_text().replace("lakelog-1-", "lakelog-0-"))
    table.commit(add("new"))
    assert "no record" in (stage(logged(table)).reason or "")


def test_only_the_newest_checkpoint_is_extended(table: Table) -> None:
    log = logged(table)
    table.commit(add("new"))
    table.commit(add("newer"))
    checkpoint(log)
    assert "concurrent cleanup" in (stage(log, 1).reason or "")


def test_version_derived_from_another_checkpoint_is_not_planned(table: Table) -> None:
    log = logged(table)
    state = open_state(log)
    assert state.base is not None
    below = state.base.checkpoint
    table.commit(add("new"))
    checkpoint(log)
    state = open_state(log)
    decided = plan_incremental(log, state, below, plan_of(state), now_ms=NOW_MS)
    assert decided == Unfit("the version was not derived from that checkpoint")


def test_no_sidecar_is_kept_if_all_have_changed(table: Table) -> None:
    table.commit(*(old_remove(path) for path in names("base", 30)[::9]))
    assert "every sidecar" in (stage(logged(table)).reason or "")


# --- damage ----------------------------------------------------------------------------------


def test_damaged_filter_of_a_kept_sidecar_is_refused(table: Table) -> None:
    path = table.root / sidecars(table.root)[0]
    at = pq.ParquetFile(path).metadata.row_group(0).column(0).bloom_filter_offset + 20
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes(20) + data[at + 20 :])
    table.commit(add("new"))
    with pytest.raises(CheckpointCorruptionError) as caught:
        stage(logged(table))
    assert caught.value.path == sidecars(table.root)[0]


def without_counts(manifest: str) -> str:
    """A manifest's text without the tags by which readers detect a missing action."""
    return re.sub(r'"(lakelog\.actions|sidecarSizeInBytes)"', r'"x\1"', manifest)


def test_manifest_that_lost_a_sidecar_is_refused(table: Table) -> None:
    path = manifest(table.root)
    lines = path.read_text().splitlines(keepends=True)
    lost = next(n for n, line in enumerate(lines) if "sidecar" in json.loads(line))
    path.write_text(without_counts("".join(lines[:lost] + lines[lost + 1 :])))
    table.commit(add("new"))
    with pytest.raises(CheckpointCorruptionError, match="differ from those that were written"):
        stage(logged(table))


def test_rewritten_sidecar_must_have_the_recorded_rows(table: Table) -> None:
    path = manifest(table.root)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    tags = [body["sidecar"]["tags"] for body in lines if "sidecar" in body]
    recorded = [json.loads(tag[FINGERPRINT_TAG]) for tag in tags]
    digests = [body["digest"] for body in recorded]
    # Digests of other sidecars: the numbers of rows and the total stay the same.
    for tag, body, digest in zip(tags, recorded, [*digests[1:], digests[0]], strict=True):
        tag[FINGERPRINT_TAG] = json.dumps(body | {"digest": digest})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table.commit(add("new"))
    assert len(stage(logged(table)).kept) == 3  # rows that are not read are not checked
    table.commit(old_remove(names("base", 30)[0]))
    with pytest.raises(CheckpointCorruptionError, match="the rows that its manifest records"):
        stage(logged(table))


def test_store_failure_is_not_reported_as_damage(table: Table) -> None:
    table.commit(add("new"))
    for kind in ("open", "list"):
        rule = Rule("fail", kind, path="*_sidecars*", times=None)
        with pytest.raises(UnavailableError):
            stage(open_log(InjectingStore(open_store(str(table.root)), [rule])))


# --- verification ----------------------------------------------------------------------------


def staged(table: Table) -> tuple[Incremental, Any]:
    table.commit(add("new"), old_remove(names("base", 30)[0]))
    written = stage(logged(table))
    assert isinstance(written.plan, Incremental)
    assert written.digest == written.plan.expected
    return written.plan, written.staged


def change_manifest(table: Table, staged: Any, change: Any) -> None:
    path = table.root / staged.checkpoint.paths[0]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(without_counts("".join(json.dumps(line) + "\n" for line in change(lines))))


def without_tags(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines[0]["checkpointMetadata"]["tags"] = {}
    return lines


@pytest.mark.parametrize(
    ("change", "what"),
    [
        pytest.param(lambda lines: [*lines, lines[1]], "sidecars of the manifest", id="twice"),
        pytest.param(lambda lines: [lines[0], *lines[2:]], "sidecars of the manifest", id="lost"),
        pytest.param(without_tags, "total", id="no total"),
    ],
)
def test_manifest_with_wrong_content_is_not_published(table: Table, change: Any, what: str) -> None:
    plan, checkpoint_ = staged(table)
    change_manifest(table, checkpoint_, change)
    with pytest.raises(CheckpointValidationError, match=what):
        plan.verify(checkpoint_)


def test_rows_lost_by_the_writer_are_detected(table: Table) -> None:
    plan, checkpoint_ = staged(table)
    for _ in plan.files(plan._comparison.columns):
        break  # fewer rows were handed out than are expected
    with pytest.raises(CheckpointValidationError, match="new sidecars"):
        plan.verify(checkpoint_)


def test_kept_sidecar_deleted_meanwhile_is_detected(table: Table) -> None:
    plan, checkpoint_ = staged(table)
    (table.root / plan.plan.kept[0].path).unlink()
    with pytest.raises(CheckpointValidationError, match="bytes of"):
        plan.verify(checkpoint_)


def test_new_sidecar_with_other_columns_is_detected(table: Table) -> None:
    plan, checkpoint_ = staged(table)
    plan._schema = pa.schema([("add", pa.int64())])
    with pytest.raises(CheckpointValidationError, match="columns"):
        plan.verify(checkpoint_)


def test_remove_without_a_time_is_expired(table: Table) -> None:
    table.commit(remove("x"), add("new"))
    written = checkpoint(logged(table))
    assert written.digest is not None
    assert written.digest.counts == {"add": 31}
