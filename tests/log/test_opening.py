"""Opening a table, ignoring a broken checkpoint if other files suffice, and updating."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.dialects.delta.protocol import READER_FEATURES, REFUSED
from lakelog.errors import (
    CheckpointCorruptionError,
    CorruptionError,
    InvalidInputError,
    LakelogWarning,
    LogGapError,
    MissingActionError,
    TableNotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakelog.snapshot import Snapshot
from lakelog.storage import LogStore
from tests.handmade import FIRST_MS, Handmade, add, info, metadata, protocol, remove
from tests.replaced_tables import WRITERS, replaced

BASE = (protocol(), metadata())


def paths(snapshot: Snapshot) -> list[str]:
    return sorted(snapshot.files().select("path").collect()["path"])


def tear(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def record_reads(store: LogStore) -> list[str]:
    """Names of the log files that are requested from a store from this call on."""
    seen: list[str] = []

    def note(method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(path: str, *rest: Any) -> Any:
            seen.append(path.rsplit("/", 1)[-1])
            return method(path, *rest)

        return noted

    for name in ("read", "open"):
        setattr(store, name, note(getattr(store, name)))
    return seen


# --- broken checkpoints --------------------------------------------------------------------------


def contiguous(made: Handmade) -> Path:
    """Commits 0 to 3, with a checkpoint at 2."""
    made.start(add("a"))
    made.commit(1, add("b"))
    made.commit(2, remove("a"))
    made.commit(3, add("c"))
    return made.checkpoint(2, *BASE, add("b"), remove("a"))


def test_broken_checkpoint_is_ignored_if_all_commits_exist(made: Handmade) -> None:
    tear(contiguous(made))
    with pytest.warns(LakelogWarning, match=r"checkpoint\.parquet was ignored"):
        snapshot = made.table.snapshot()
    assert paths(snapshot) == ["b", "c"]
    found = snapshot.provenance
    assert found.checkpoint is None
    assert len(found.commits) == 4
    assert "was ignored" in " ".join(found.warnings)


def test_two_broken_checkpoints_are_ignored_for_a_third(made: Handmade) -> None:
    tear(contiguous(made))
    tear(made.checkpoint(1, *BASE, add("a"), add("b")))
    made.checkpoint(0, *BASE, add("a"))
    made.forget(0)
    with pytest.warns(LakelogWarning):
        snapshot = made.table.snapshot()
    assert paths(snapshot) == ["b", "c"]
    assert snapshot.provenance.checkpoint is not None
    assert snapshot.provenance.checkpoint.version == 0


def test_broken_checkpoint_is_replaced_by_another_layout_of_the_version(made: Handmade) -> None:
    contiguous(made)
    tear(made.checkpoint(2, *BASE, add("b"), suffix=".0000000001.0000000001"))
    made.forget(0, 1)
    with pytest.warns(LakelogWarning):
        snapshot = made.table.snapshot()
    assert paths(snapshot) == ["b", "c"]
    assert snapshot.provenance.checkpoint is not None
    assert snapshot.provenance.checkpoint.layout == "classic"


def test_broken_checkpoint_of_a_truncated_log_is_refused(made: Handmade) -> None:
    tear(contiguous(made))
    made.forget(0)
    with pytest.raises(CheckpointCorruptionError) as refused:
        made.table.snapshot()
    assert refused.value.version == 2
    assert refused.value.hint is not None
    assert "older files cannot rebuild" in refused.value.hint


@pytest.mark.parametrize("writer", WRITERS)
def test_commits_that_replace_the_table_replace_a_broken_checkpoint(
    tmp_path: Path, writer: str
) -> None:
    table = replaced(tmp_path, writer)
    before = paths(table.snapshot())
    for version in (3, 2):
        tear(tmp_path / table.checkpoint(version).paths[0])
        with pytest.warns(LakelogWarning, match="was ignored"):
            snapshot = lakelog.open(tmp_path, upkeep=False).snapshot()
        assert paths(snapshot) == before
        assert snapshot.provenance.checkpoint is None


def test_commits_of_another_table_do_not_replace_a_broken_checkpoint(made: Handmade) -> None:
    contiguous(made).unlink()
    made.commit(1, metadata(table_id="another"), add("b"))
    made.commit(3, metadata(), add("c"))  # the last id says nothing about version 2
    manifest = ({"checkpointMetadata": {"version": 2}}, *BASE, made.sidecar("s.parquet", add("b")))
    made.write(
        f"{2:020d}.checkpoint.00000000-0000-0000-0000-000000000000.json",
        "".join(json.dumps(a) + "\n" for a in manifest).encode(),
    )
    tear(made.log / "_sidecars" / "s.parquet")
    with pytest.raises(CheckpointCorruptionError) as refused:
        made.table.snapshot().num_files()
    assert "another table (id another in version 2, not id-0)" in str(refused.value.hint)
    finding = made.table.repair().findings.row(0, named=True)
    assert finding["action"] == "refuse"
    assert "another table (id another in version 2, not id-0)" in finding["why"]


def test_older_checkpoint_of_another_table_does_not_replace_a_broken_one(made: Handmade) -> None:
    tear(contiguous(made))
    made.checkpoint(1, protocol(), metadata(table_id="another"), add("z"))
    made.commit(3, metadata(), add("c"))
    with pytest.raises(CheckpointCorruptionError, match="cannot be read"):
        made.table.snapshot()
    findings = made.table.repair().findings.filter(pl.col("kind") == "checkpoint")
    assert set(findings["action"]) <= {"keep", "refuse"}


def test_commits_of_an_unknown_protocol_do_not_replace_a_broken_checkpoint(made: Handmade) -> None:
    """A feature that was dropped may give commits a meaning that only the checkpoint records."""
    broken = contiguous(made)
    odd = {name: ["futureReader"] for name in ("readerFeatures", "writerFeatures")}
    made.commit(1, protocol(3, 7, **odd), add("b"))
    made.commit(2, protocol(), remove("a"))
    assert paths(made.table.snapshot()) == ["b", "c"]
    tear(broken)
    with pytest.raises(CheckpointCorruptionError) as refused:
        made.table.snapshot()
    assert "futureReader" in str(refused.value.hint)
    made.checkpoint(2, *BASE, add("z"), remove("a"))  # may be right
    assert made.table.verify(2).verdict == "unprovable"
    assert "checkpoint" not in made.table.repair().apply().repaired["kind"].to_list()
    assert paths(made.table.snapshot()) == ["c", "z"]


def test_damaged_sidecar_is_replaced_by_another_layout_when_it_is_read(made: Handmade) -> None:
    contiguous(made)
    sidecar = made.sidecar("s.parquet", add("b"), remove("a"))
    manifest = ({"checkpointMetadata": {"version": 2}}, *BASE, sidecar)
    made.write(
        f"{2:020d}.checkpoint.00000000-0000-0000-0000-000000000000.json",
        "".join(json.dumps(a) + "\n" for a in manifest).encode(),
    )
    tear(made.log / "_sidecars" / "s.parquet")
    snapshot = made.table.snapshot()
    assert snapshot.metadata.id == "id-0"
    with pytest.warns(LakelogWarning, match=r"s\.parquet|checkpoint"):
        assert paths(snapshot) == ["b", "c"]
    assert snapshot.provenance.checkpoint is not None
    assert snapshot.provenance.checkpoint.layout == "classic"


def test_valid_checkpoint_causes_no_warning(made: Handmade) -> None:
    contiguous(made)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snapshot = made.table.snapshot()
        assert paths(snapshot) == ["b", "c"]
    assert snapshot.provenance.warnings == ()


@pytest.mark.parametrize("missing", ["protocol", "metaData"])
def test_checkpoint_without_protocol_or_metadata_is_refused_even_if_commits_have_both(
    made: Handmade, missing: str
) -> None:
    made.start()
    made.commit(1)
    made.commit(2, *BASE)
    made.checkpoint(1, *(a for a in BASE if missing not in a), add("a"))
    with pytest.raises(MissingActionError) as refused:
        made.table.snapshot()
    assert refused.value.expected == missing
    assert refused.value.path is not None
    assert refused.value.path.endswith("checkpoint.parquet")


@pytest.mark.parametrize("missing", ["protocol", "metaData"])
def test_log_without_protocol_or_metadata_is_refused(made: Handmade, missing: str) -> None:
    made.commit(0, *(a for a in BASE if missing not in a))
    with pytest.raises(MissingActionError) as refused:
        made.table.snapshot()
    assert refused.value.expected == missing


def test_gap_above_the_checkpoint_is_refused_and_a_gap_below_is_ignored(made: Handmade) -> None:
    contiguous(made)
    made.forget(1)
    assert paths(made.table.snapshot()) == ["b", "c"]
    made.commit(5, add("e"))
    with pytest.raises(LogGapError) as refused:
        made.table.snapshot()
    assert (refused.value.expected, refused.value.found) == (4, 5)


def test_error_for_a_version_in_a_gap_names_the_readable_versions(made: Handmade) -> None:
    contiguous(made)
    made.forget(1)
    with pytest.raises(VersionNotFoundError) as refused:
        made.table.snapshot(1)
    assert refused.value.expected == "0, 2 to 3"


def test_empty_log_raises_table_not_found_error(made: Handmade) -> None:
    with pytest.raises(TableNotFoundError):
        made.table.snapshot()


# --- the pointer, a hint -------------------------------------------------------------------------

POINTERS = {
    "right": b'{"version":2,"size":4}',
    "too new": b'{"version":9,"size":4}',
    "too old": b'{"version":0,"size":4}',
    "of a version without a checkpoint": b'{"version":1}',
    "of the commit above": b'{"version":3}',
    "negative": b'{"version":-1}',
    "beyond any number": b'{"version":' + b"9" * 400 + b"}",
    "beyond twenty digits": b'{"version":100000000000000000000}',
    "a fraction": b'{"version":2.0}',
    "a text": b'{"version":"2"}',
    "true": b'{"version":true}',
    "a list": b"[2]",
    "null": b"null",
    "empty": b"",
    "torn": b'{"version":2,"si',
    "NUL": b"\0" * 30,
    "not UTF-8": b'{"version":2,"\xff":1}',
    "nested beyond any stack": b"[" * 100_000,
}


@pytest.mark.parametrize("pointer", POINTERS.values(), ids=POINTERS)
@pytest.mark.filterwarnings("ignore::lakelog.errors.LakelogWarning")
def test_pointer_content_never_changes_the_answer(made: Handmade, pointer: bytes) -> None:
    contiguous(made)
    made.write("_last_checkpoint", pointer)
    snapshot = made.table.snapshot()
    assert (snapshot.version, paths(snapshot)) == (3, ["b", "c"])
    assert snapshot.provenance.checkpoint is not None
    assert snapshot.provenance.checkpoint.version == 2
    assert made.table.version() == 3


# --- compactions ---------------------------------------------------------------------------------


def test_valid_compaction_replaces_its_commits(made: Handmade) -> None:
    made.start(add("a"))
    made.commit(1, add("b"))
    made.commit(2, remove("b"), add("c"), {"txn": {"appId": "x", "version": 2}})
    made.commit(3, add("d"))
    txn = {"txn": {"appId": "x", "version": 2}}
    made.compaction(1, 2, remove("b"), add("c"), txn)
    snapshot = made.table.snapshot()
    assert paths(snapshot) == ["a", "c", "d"]
    assert snapshot.transactions().collect()["txnVersion"].to_list() == [2]
    found = snapshot.provenance
    assert [name.rsplit("/", 1)[-1][:41] for name in found.compactions] == [f"{1:020d}.{2:020d}"]
    assert [int(name.rsplit("/", 1)[-1][:20]) for name in found.commits] == [0, 3]
    assert snapshot.timestamp_ms is not None


@pytest.mark.parametrize(
    "lines",
    [
        [add("c"), remove("b"), add("b")],
        [{"txn": {"appId": "x", "version": 2}}, {"txn": {"appId": "x", "version": 1}}],
        [{"add": {"path": 1}}],
    ],
    ids=["a file twice", "a transaction twice", "malformed"],
)
def test_invalid_compaction_is_ignored_and_reported(
    made: Handmade, lines: list[dict[str, Any]]
) -> None:
    made.start(add("a"))
    made.commit(1, add("b"))
    made.commit(2, remove("b"), add("c"))
    made.compaction(1, 2, *lines)
    snapshot = made.table.snapshot()
    assert paths(snapshot) == ["a", "c"]
    assert snapshot.provenance.compactions == ()
    assert len(snapshot.provenance.commits) == 3
    assert "was ignored" in " ".join(snapshot.provenance.warnings)


@pytest.mark.parametrize(
    "span", [(1, 3), (0, 2)], ids=["beyond the target", "below the checkpoint"]
)
def test_compaction_with_versions_outside_the_range_is_not_read(
    made: Handmade, span: tuple[int, int]
) -> None:
    contiguous(made)
    made.compaction(*span, add("wrong"))
    assert paths(made.table.snapshot(2)) == ["b"]


# --- updates -------------------------------------------------------------------------------------


def test_update_reads_the_new_commits_only(made: Handmade) -> None:
    contiguous(made)
    context = made.context()
    snapshot = Snapshot.open(context)
    assert paths(snapshot) == ["b", "c"]
    made.commit(4, add("d"), remove("b"))
    seen = record_reads(context.store)
    later = snapshot.update()
    assert (later.version, later.metadata.id) == (4, "id-0")
    assert seen == [f"{4:020d}.json"]
    assert paths(later) == ["c", "d"]
    assert paths(snapshot) == ["b", "c"]


def test_update_without_new_commits_returns_the_same_snapshot(made: Handmade) -> None:
    contiguous(made)
    snapshot = made.table.snapshot()
    assert snapshot.update() is snapshot
    assert snapshot.update(3) is snapshot


def test_update_may_stop_at_a_version(made: Handmade) -> None:
    contiguous(made)
    snapshot = made.table.snapshot(0)
    assert paths(snapshot.update(1)) == ["a", "b"]
    assert snapshot.update(1).update(2).version == 2
    assert paths(snapshot.update(1).update()) == ["b", "c"]
    with pytest.raises(InvalidInputError, match="older version"):
        made.table.snapshot(2).update(1)
    with pytest.raises(VersionNotFoundError):
        snapshot.update(9)


def test_update_opens_the_table_again_if_intermediate_commits_are_missing(made: Handmade) -> None:
    contiguous(made)
    snapshot = made.table.snapshot(0)
    made.forget(1)
    later = snapshot.update()
    assert paths(later) == ["b", "c"]
    assert later.provenance.checkpoint is not None


def test_update_starts_from_a_later_checkpoint_of_another_table(made: Handmade) -> None:
    contiguous(made)
    snapshot = made.table.snapshot(1)
    made.checkpoint(2, protocol(), metadata(table_id="other"), add("z"))
    later = snapshot.update()
    assert (later.metadata.id, paths(later)) == ("other", ["c", "z"])
    assert paths(later) == paths(made.table.snapshot())


def test_update_ignores_a_broken_later_checkpoint(made: Handmade) -> None:
    broken = contiguous(made)
    snapshot = made.table.snapshot(1)
    tear(broken)
    assert paths(snapshot.update()) == ["b", "c"]


def test_update_refuses_a_feature_that_was_added_meanwhile(made: Handmade) -> None:
    contiguous(made)
    snapshot = made.table.snapshot()
    made.commit(4, protocol(3, 7, readerFeatures=["catalogManaged"], writerFeatures=[]))
    with pytest.raises(UnsupportedFeatureError):
        snapshot.update()


def test_update_across_a_gap_is_refused(made: Handmade) -> None:
    contiguous(made)
    snapshot = made.table.snapshot()
    made.commit(5, add("e"))
    with pytest.raises(LogGapError):
        snapshot.update()


def test_update_of_a_table_that_was_created_again_reads_it_again(made: Handmade) -> None:
    contiguous(made)
    old = made.table.snapshot(1)
    latest = made.table.snapshot()
    shutil.rmtree(made.log)
    again = Handmade(made.root).start(add("x"), table_id="other")
    for snapshot in (old, latest):
        found = snapshot.update()
        assert (found.version, found.metadata.id, paths(found)) == (0, "other", ["x"])
    with pytest.raises(VersionNotFoundError):
        latest.update(3)
    for version in range(1, 5):
        again.commit(version, add(f"x{version}"))
    for snapshot in (old, latest):
        found = snapshot.update()
        assert (found.version, found.metadata.id, found.num_files()) == (4, "other", 5)
    assert paths(old.update(1)) == ["x", "x1"]


def test_update_of_a_table_that_was_restored_from_a_backup_reads_it_again(made: Handmade) -> None:
    contiguous(made)
    snapshot = made.table.snapshot()
    made.forget(3)
    made.commit(3, add("other"), at_ms=FIRST_MS)
    assert paths(snapshot.update(3)) == ["b", "other"]
    made.commit(4, add("d"))
    assert (snapshot.update().num_files(), paths(snapshot.update())) == (3, ["b", "d", "other"])


def test_update_after_a_cleanup_of_its_commit_starts_from_its_checkpoint(made: Handmade) -> None:
    contiguous(made)
    made.checkpoint(3, *BASE, add("b"), add("c"))
    made.forget(0, 1, 2, 3)
    snapshot = made.table.snapshot()
    assert snapshot.update() is snapshot
    made.commit(4, add("d"))
    context = made.context()
    held = Snapshot.open(context, 3)
    assert paths(held) == ["b", "c"]
    seen = record_reads(context.store)
    assert held.update().metadata.id == "id-0"
    assert seen == [f"{4:020d}.json"]
    made.checkpoint(3, *BASE, add("of another length, by which it is detected"))
    assert held.update().num_files() == 2


# --- features ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_reader_version_before_features_is_opened(made: Handmade, version: int) -> None:
    made.commit(0, protocol(version, 2), metadata())
    assert made.table.snapshot().protocol.min_reader_version == version


@pytest.mark.parametrize("feature", sorted(READER_FEATURES))
def test_table_with_a_supported_reader_feature_is_opened(made: Handmade, feature: str) -> None:
    made.commit(0, protocol(3, 7, readerFeatures=[feature], writerFeatures=[feature]), metadata())
    assert made.table.snapshot().protocol.reader_features == (feature,)


@pytest.mark.parametrize("feature", [*sorted(REFUSED), "fromTheFuture", "", "DeletionVectors"])
def test_unsupported_reader_feature_is_refused_by_name(made: Handmade, feature: str) -> None:
    made.commit(0, protocol(3, 7, readerFeatures=[feature], writerFeatures=[feature]), metadata())
    with pytest.raises(UnsupportedFeatureError) as refused:
        made.table.snapshot()
    assert refused.value.found == feature
    assert repr(feature) in refused.value.message
    assert refused.value.hint


def test_reader_version_3_without_a_feature_list_is_refused(made: Handmade) -> None:
    made.commit(0, protocol(3, 7), metadata())
    with pytest.raises(CorruptionError, match="but no"):
        made.table.snapshot()


def test_table_with_an_unknown_writer_feature_is_opened(made: Handmade) -> None:
    made.commit(0, protocol(1, 7, writerFeatures=["fromTheFuture"]), info(), metadata())
    assert made.table.snapshot().version == 0


@pytest.mark.parametrize("version", [-1, 4, 99])
def test_unknown_reader_version_is_refused(made: Handmade, version: int) -> None:
    made.commit(0, protocol(version, 7), metadata())
    with pytest.raises(UnsupportedFeatureError, match="newer reader") as refused:
        made.table.snapshot()
    assert refused.value.found == version


def test_protocol_and_metadata_are_read_without_file_rows(
    made: Handmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakelog.dialects.delta.checkpoint import DeltaCheckpointReader

    contiguous(made)

    def never(*_: object, **__: object) -> Any:
        raise AssertionError("file rows were read")

    monkeypatch.setattr(DeltaCheckpointReader, "iter_files", never)
    snapshot = made.table.snapshot()
    assert snapshot.protocol.min_reader_version == 1
    assert snapshot.metadata.id == "id-0"
    assert snapshot.facts()["version"] == 3
