"""A Delta checkpoint whose content differs from the pointer or from a version checksum."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog import Snapshot, Table
from lakelog.dialects.delta.last_checkpoint import checksum as pointer_checksum
from lakelog.errors import CheckpointCorruptionError, LakelogWarning
from lakelog.storage import open_store
from lakelog.testing import InjectingStore
from tests.handmade import Action, Handmade, add, metadata, protocol

FILES = ("a", "b", "c")
TXN = {"txn": {"appId": "app", "version": 7}}
DOMAIN = {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}}
TOMBSTONE = {"remove": {"path": "gone", "deletionTimestamp": 1 << 60, "dataChange": False}}


@pytest.fixture
def made(tmp_path: Path) -> Handmade:
    """Versions 0 to 3 with one more file each, a checkpoint of version 2 and its checksum."""
    made = Handmade(tmp_path / "t")
    made.start(add("a"), TXN, DOMAIN)
    made.commit(1, add("b"), TOMBSTONE)
    made.commit(2, add("c"))
    made.table.checkpoint(layout="classic")
    made.commit(3, add("d"))
    return made


def paths(snapshot: Snapshot) -> list[str]:
    return sorted(snapshot.files().collect()["path"])


def txns(snapshot: Snapshot) -> list[str]:
    return sorted(snapshot.transactions().collect()["appId"])


def read_all(made: Handmade) -> Snapshot:
    """A snapshot whose files, transaction identifiers and domains were read."""
    snapshot = made.table.snapshot()
    paths(snapshot)
    txns(snapshot)
    snapshot.domains().collect()
    return snapshot


def replace_checkpoint(made: Handmade, *files: str, others: tuple[Action, ...] = ()) -> None:
    """Replace a checkpoint with one of other actions, as another program can."""
    made.checkpoint(2, protocol(), metadata(), *others, *map(add, files))


def checksum(made: Handmade) -> Path:
    (path,) = made.root.rglob("*.crc")
    return path


def pointer(made: Handmade) -> Path:
    return made.root / "_delta_log" / "_last_checkpoint"


def point(made: Handmade, body: dict[str, Any], *, checked: bool = False) -> None:
    """Write another pointer to version 2."""
    body = {"version": 2, **body}
    if checked:
        body["checksum"] = pointer_checksum(body)
    pointer(made).write_text(json.dumps(body))


def length(made: Handmade) -> int:
    (path,) = made.root.rglob("*.checkpoint.parquet")
    return path.stat().st_size


@pytest.mark.parametrize("files", [("a", "b"), ("a", "b", "c", "x")])
@pytest.mark.parametrize("kept", ["pointer", "checksum"])
def test_commits_replace_a_checkpoint_of_other_files_than_recorded(
    made: Handmade, kept: str, files: tuple[str, ...]
) -> None:
    replace_checkpoint(made, *files, others=(TXN, DOMAIN, TOMBSTONE))
    (checksum if kept == "pointer" else pointer)(made).unlink()
    with pytest.warns(LakelogWarning, match="in the checkpoint differs"):
        snapshot = read_all(made)
    assert paths(snapshot) == ["a", "b", "c", "d"]
    assert snapshot.num_files() == 4
    assert snapshot.provenance.checkpoint is None


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (Snapshot.num_files, 4),
        (paths, ["a", "b", "c", "d"]),
        (Snapshot.total_size, 4),
        (lambda s: s.files(where=pl.col("id") > 0).collect().height, 4),
    ],
)
@pytest.mark.parametrize("version", [None, 3])
def test_every_read_of_files_compares_the_recorded_count(
    made: Handmade, read: Callable[[Snapshot], object], expected: object, version: int | None
) -> None:
    """Time travel, which lists the whole log, reads the pointer with the files."""
    checksum(made).unlink()
    replace_checkpoint(made, "a")
    with pytest.warns(LakelogWarning, match="in the checkpoint differs"):
        assert read(made.table.snapshot(version=version)) == expected


@pytest.mark.parametrize(
    ("lost", "kept"),
    [
        ("txn", "pointer"),
        ("domainMetadata", "pointer"),
        ("remove", "pointer"),
        ("txn", "checksum"),
        ("domainMetadata", "checksum"),
    ],
)
def test_commits_replace_a_checkpoint_that_lost_other_actions(
    made: Handmade, lost: str, kept: str
) -> None:
    """Without its transaction identifier, a stream would write its rows again. A checksum does not
    record tombstones.
    """
    others = tuple(action for action in (TXN, DOMAIN, TOMBSTONE) if lost not in action)
    replace_checkpoint(made, *FILES, others=others)
    (checksum if kept == "pointer" else pointer)(made).unlink()
    with pytest.warns(LakelogWarning, match="in the checkpoint differs"):
        snapshot = read_all(made)
    assert txns(snapshot) == ["app"]
    assert snapshot.domains().collect().height == 1
    assert snapshot.tombstones().collect().height == 1
    assert paths(snapshot) == ["a", "b", "c", "d"]


def test_file_replaced_by_a_larger_one_is_detected_by_the_checksum(
    made: Handmade,
) -> None:
    pointer(made).unlink()
    made.checkpoint(
        2, protocol(), metadata(), TXN, DOMAIN, TOMBSTONE, add("a"), add("b"), add("x", 9)
    )
    snapshot = made.table.snapshot()
    with pytest.warns(LakelogWarning, match="number of bytes of the files in the checkpoint"):
        assert snapshot.total_size() == 4
    assert paths(snapshot) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("part", [1, 2, 3])
def test_commits_replace_a_part_rewritten_with_fewer_rows(tmp_path: Path, part: int) -> None:
    """Like a program whose pointer has no checksum and that writes no `.crc`."""
    properties = {"spark.indextables.checkpoint.actionsPerPart": "12"}
    made = Handmade(tmp_path / "t")
    made.start(*(add(f"f{n}") for n in range(30)), properties=properties)
    made.table.checkpoint(layout="multipart")
    body = json.loads(pointer(made).read_bytes())
    body.pop("checksum")
    pointer(made).write_text(json.dumps(body))
    checksum(made).unlink()
    (path,) = made.log.glob(f"*.{part:010d}.0000000003.parquet")
    rows = pq.read_table(path)
    pq.write_table(rows.slice(0, rows.num_rows - 1), path)
    with pytest.warns(LakelogWarning, match="number of actions in the checkpoint differs"):
        assert len(paths(made.table.snapshot())) == 30


# --- without older files --------------------------------------------------------------------------


def test_pointer_with_a_checksum_fails_the_read_if_commits_are_missing(made: Handmade) -> None:
    replace_checkpoint(made, "a")
    checksum(made).unlink()
    made.forget(0, 1, 2)
    with (
        pytest.warns(LakelogWarning, match="number of actions"),
        pytest.raises(CheckpointCorruptionError, match="number of files") as caught,
    ):
        paths(made.table.snapshot())
    assert caught.value.expected == "3 add actions"
    assert str(caught.value.found).startswith("1 in ")


@pytest.mark.parametrize(
    ("body", "checksum_files", "is_refused"),
    [
        # The pointer alone, whose bytes no checksum covers, may be wrong.
        ({"size": 5, "numOfAddFiles": 3}, None, False),
        # It records another length too: the checkpoint was replaced.
        ({"size": 5, "numOfAddFiles": 3, "sizeInBytes": 1}, None, True),
        # It was written for exactly these files, and counts them in another way.
        ({"size": 5, "numOfAddFiles": 3, "sizeInBytes": ...}, None, False),
        # The checksum records the same number.
        ({"size": 5, "numOfAddFiles": 3}, 3, True),
        # The checksum agrees with the checkpoint.
        ({"size": 5, "numOfAddFiles": 3, "sizeInBytes": 1}, 2, False),
        # Three different numbers.
        ({"size": 5, "numOfAddFiles": 3}, 4, False),
        ({"size": 5, "numOfAddFiles": 3, "sizeInBytes": 1}, 4, True),
        # Only a checksum, which writers derive from the previous one.
        ({}, 3, False),
        # The Java Kernel's `size` is the number of files, others' that of actions.
        ({"size": 6}, None, False),
    ],
)
def test_recorded_counts_decide_if_commits_are_missing(
    made: Handmade, body: dict[str, Any], checksum_files: int | None, is_refused: bool
) -> None:
    replace_checkpoint(made, "a", "b")
    point(made, {k: length(made) if v is ... else v for k, v in body.items()})
    recorded = json.loads(checksum(made).read_bytes())
    if checksum_files is None:
        checksum(made).unlink()
    else:
        text = {"numFiles": checksum_files, "tableSizeBytes": checksum_files}
        checksum(made).write_text(json.dumps({"metadata": recorded["metadata"], **text}))
    made.forget(0, 1, 2)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            found = paths(made.table.snapshot())
        except CheckpointCorruptionError:
            found = []
    assert found == ([] if is_refused else ["a", "b", "d"])
    assert is_refused or given or checksum_files == 2


def test_checkpoint_that_differs_only_from_a_checksum_is_reported(made: Handmade) -> None:
    body = json.loads(checksum(made).read_bytes())
    checksum(made).write_text(json.dumps(body | {"numFiles": 7}))
    pointer(made).unlink()
    made.forget(0, 1, 2)
    snapshot = made.table.snapshot()
    with pytest.warns(LakelogWarning, match="the checkpoint is used"):
        assert paths(snapshot) == ["a", "b", "c", "d"]
    assert "7 add actions" in " ".join(snapshot.provenance.warnings)


# --- hints that agree with the checkpoint ---------------------------------------------------------


def read_without_warning(made: Handmade) -> Snapshot:
    """A snapshot, read without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snapshot = read_all(made)
    assert paths(snapshot) == ["a", "b", "c", "d"]
    return snapshot


def test_size_that_the_flink_sink_estimates_is_ignored(made: Handmade) -> None:
    """It adds the files since the last pointer to that pointer's size, also of another writer."""
    checksum(made).unlink()
    tags = {"io.delta.flink.sink.checkpoint": "true", "io.delta.flink.num_sidecar": "1"}
    point(made, {"size": 100, "tags": tags})
    read_without_warning(made)


def test_warning_about_a_checkpoint_that_is_used_does_not_call_it_unreadable(
    made: Handmade,
) -> None:
    checksum(made).unlink()
    point(made, {"size": 100})
    with pytest.warns(LakelogWarning, match="^the checkpoint .* was ignored"):
        made.table.snapshot().files().collect()
    made.forget(0, 1, 2)
    with pytest.warns(LakelogWarning, match="^the number of .* the checkpoint is used$"):
        snapshot = read_all(made)
    assert paths(snapshot) == ["a", "b", "c", "d"]
    assert "cannot be read" not in " ".join(snapshot.provenance.warnings)


@pytest.mark.parametrize("count", [1 << 70, -3, "3", None, 3.0, True, [3]])
def test_value_that_is_not_a_count_is_ignored(made: Handmade, count: object) -> None:
    checksum(made).unlink()
    keys = ("size", "numOfAddFiles", "sizeInBytes", "parts", "v2Checkpoint")
    point(made, dict.fromkeys(keys, count))
    read_without_warning(made)


def test_different_tombstone_count_is_accepted(made: Handmade) -> None:
    """Writers that checkpoint one version at different times keep different tombstones."""
    late = {"remove": {"path": "late", "deletionTimestamp": 1 << 60, "dataChange": False}}
    replace_checkpoint(made, *FILES, others=(TXN, DOMAIN, TOMBSTONE, late))
    assert read_without_warning(made).tombstones().collect().height == 2


@pytest.mark.parametrize("size", ["adds", "bytes", "actions of these files"])
def test_counting_methods_of_other_writers_are_accepted(made: Handmade, size: str) -> None:
    """The Java Kernel records the adds, old versions of deltalake the bytes."""
    checksum(made).unlink()
    bodies: dict[str, dict[str, Any]] = {
        "adds": {"size": len(FILES)},
        "bytes": {"parts": None, "size": length(made)},
        "actions of these files": {"size": 99, "sizeInBytes": length(made), "numOfAddFiles": 3},
    }
    point(made, bodies[size])
    read_without_warning(made)


def test_counts_of_a_pointer_to_another_checkpoint_are_ignored(
    made: Handmade,
) -> None:
    checksum(made).unlink()
    counts = {"size": 99, "sizeInBytes": 1, "numOfAddFiles": 3}
    for other in ({"parts": 3}, {"v2Checkpoint": {"path": "x"}}):
        point(made, counts | other, checked=True)
        read_without_warning(made)


def test_expired_transactions_in_a_checksum_are_accepted(made: Handmade) -> None:
    body = json.loads(checksum(made).read_bytes())
    body["metadata"]["configuration"] = {"delta.setTransactionRetentionDuration": "1 day"}
    checksum(made).write_text(json.dumps(body))
    replace_checkpoint(made, *FILES, others=(DOMAIN, TOMBSTONE))
    point(made, {})
    assert txns(read_without_warning(made)) == []


def test_query_without_files_reads_no_recorded_counts(made: Handmade) -> None:
    store = InjectingStore(open_store(made.root))
    snapshot = Table(replace(made.context(), store=store)).snapshot(version=3)
    assert snapshot.metadata.id == "id-0"
    hints = {f"_delta_log/{path.name}" for path in (pointer(made), checksum(made))}
    assert not hints & {path for _, path in store.operations}
    paths(snapshot)
    assert hints <= {path for _, path in store.operations}


def test_v2_manifest_truncated_at_a_line_end_is_not_used(tmp_path: Path) -> None:
    """Other writers do not record how many actions the sidecars hold."""
    made = Handmade(tmp_path / "t")
    feature = {"readerFeatures": ["v2Checkpoint"], "writerFeatures": ["v2Checkpoint"]}
    made.commit(0, protocol(3, 7, **feature), metadata(), *map(add, FILES))
    table: Table = made.table
    table.checkpoint(layout="v2-json")
    (manifest,) = (made.root / "_delta_log").glob("*.checkpoint.*.json")
    lines = [json.loads(line) for line in manifest.read_bytes().splitlines()]
    for line in lines:
        line.get("checkpointMetadata", {}).pop("tags", None)
    kept = [line for line in lines if "sidecar" not in line]
    assert len(kept) < len(lines)
    manifest.write_text("".join(f"{json.dumps(line)}\n" for line in kept))
    with pytest.warns(LakelogWarning, match="in the checkpoint differs"):
        assert paths(made.table.snapshot()) == list(FILES)


def test_repair_rewrites_a_pointer_with_wrong_counts(made: Handmade) -> None:
    point(made, {"size": 9, "numOfAddFiles": 4, "sizeInBytes": 1}, checked=True)
    checksum(made).unlink()
    table = lakelog.open(made.root, upkeep=False)
    with pytest.warns(LakelogWarning, match="differs from"):
        table.repair(plan=False)
    read_without_warning(made)
