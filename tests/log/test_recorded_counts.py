"""A Delta checkpoint that holds other live files than the pointer or a version checksum records."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from lakelog import Snapshot, Table
from lakelog.errors import CheckpointCorruptionError, LakelogWarning
from tests.handmade import Handmade, add, metadata, protocol

FILES = ("a", "b", "c")


@pytest.fixture
def made(tmp_path: Path) -> Handmade:
    """Versions 0 to 3 with one file more each, a checkpoint of version 2 and its checksum."""
    made = Handmade(tmp_path / "t")
    made.start(add("a"))
    made.commit(1, add("b"))
    made.commit(2, add("c"))
    made.table.checkpoint(layout="classic")
    made.commit(3, add("d"))
    return made


def paths(snapshot: Snapshot) -> list[str]:
    return sorted(snapshot.files().collect()["path"])


def replace_checkpoint(made: Handmade, *files: str) -> None:
    """Put a checkpoint of other files in its place, as another program may."""
    made.checkpoint(2, protocol(), metadata(), *map(add, files))


def checksum(made: Handmade) -> Path:
    (path,) = made.root.rglob("*.crc")
    return path


def pointer(made: Handmade) -> Path:
    return made.root / "_delta_log" / "_last_checkpoint"


@pytest.mark.parametrize("files", [("a", "b"), ("a", "b", "c", "x")])
@pytest.mark.parametrize("kept", ["pointer", "checksum"])
def test_commits_replace_a_checkpoint_of_other_files_than_recorded(
    made: Handmade, kept: str, files: tuple[str, ...]
) -> None:
    replace_checkpoint(made, *files)
    (checksum if kept == "pointer" else pointer)(made).unlink()
    snapshot = made.table.snapshot()
    with pytest.warns(LakelogWarning, match="number of files in the checkpoint differs"):
        assert paths(snapshot) == ["a", "b", "c", "d"]
    assert snapshot.num_files() == 4
    assert snapshot.provenance.checkpoint is None


@pytest.mark.parametrize(
    ("read", "expected"),
    [(Snapshot.num_files, 4), (paths, ["a", "b", "c", "d"]), (Snapshot.total_size, 4)],
)
def test_every_read_of_files_compares_the_recorded_count(
    made: Handmade, read: Callable[[Snapshot], object], expected: object
) -> None:
    replace_checkpoint(made, "a")
    with pytest.warns(LakelogWarning, match="number of files in the checkpoint differs"):
        assert read(made.table.snapshot()) == expected


def test_without_commits_the_pointers_count_is_required(made: Handmade) -> None:
    replace_checkpoint(made, "a")
    made.forget(0, 1, 2)
    with pytest.raises(
        CheckpointCorruptionError, match="number of files in the checkpoint differs"
    ) as caught:
        paths(made.table.snapshot())
    assert caught.value.expected == "3 add actions"
    assert str(caught.value.found).startswith("1 in ")


def test_without_commits_a_checksum_alone_warns(made: Handmade) -> None:
    """The checksum may be the wrong one: writers derive it from the one before."""
    body = json.loads(checksum(made).read_bytes())
    checksum(made).write_text(json.dumps(body | {"numFiles": 7}))
    pointer(made).unlink()
    made.forget(0, 1, 2)
    snapshot = made.table.snapshot()
    with pytest.warns(LakelogWarning, match="the checkpoint is used"):
        assert paths(snapshot) == ["a", "b", "c", "d"]
    assert "7 add actions" in " ".join(snapshot.provenance.warnings)


@pytest.mark.parametrize("count", [1 << 70, -3, "3", None, 3.0, True, [3]])
def test_a_count_that_no_checksum_covers_is_ignored(made: Handmade, count: object) -> None:
    checksum(made).unlink()
    pointer(made).write_text(json.dumps({"version": 2, "size": 9, "numOfAddFiles": count}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert paths(made.table.snapshot()) == ["a", "b", "c", "d"]


def test_a_v2_manifest_cut_at_a_line_end_is_not_used(tmp_path: Path) -> None:
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
    with pytest.warns(LakelogWarning, match="number of files in the checkpoint differs"):
        assert paths(made.table.snapshot()) == list(FILES)


def test_other_tombstones_than_recorded_are_no_contradiction(made: Handmade) -> None:
    """Writers that checkpoint one version at different times keep different tombstones."""
    body = {"path": "gone", "deletionTimestamp": 1, "dataChange": False}
    made.checkpoint(2, protocol(), metadata(), *map(add, FILES), {"remove": body})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snapshot = made.table.snapshot()
        assert paths(snapshot) == ["a", "b", "c", "d"]
        assert snapshot.tombstones().select(pl.len()).collect().item() == 1
