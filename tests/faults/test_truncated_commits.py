"""Commits and V2 manifests that lost lines: counts of actions are used, and never a hint alone."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import CorruptionError, LakelogWarning, MalformedLogError
from tests.handmade import Handmade, add, info, remove


def cuts(data: bytes) -> list[int]:
    return [match.end() for match in re.finditer(b"\n", data)][:-1]


@pytest.mark.parametrize("format_", ["delta", "indextables"])
@pytest.mark.parametrize("query", ["files", "metadata", "history", "actions"])
def test_truncated_commit_of_lakelog_is_refused(tmp_path: Path, format_: str, query: str) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, format=format_)
    with table.transaction() as tx:
        for number in range(4):
            tx.add(path=f"f{number}", size=5, modificationTime=1)
    folder = tmp_path / "t" / table.log.dialect.log_folder
    for file in sorted(folder.glob("*.json")):
        data = file.read_bytes()
        assert b'"lakelogActions":' in data.splitlines()[0]
        for length in cuts(data):
            file.write_bytes(data[:length])
            opened = lakelog.open(tmp_path / "t")
            with pytest.raises(
                MalformedLogError, match="number of actions in the commit differs"
            ) as refused:
                run_query(opened, query)
            assert refused.value.path is not None
            assert refused.value.path.endswith(file.name)
        file.write_bytes(data)
    assert lakelog.open(tmp_path / "t").snapshot().num_files() == 4


def table_of_commits(where: Path, format_: str) -> tuple[lakelog.Table, Callable[[int], Path]]:
    table = lakelog.create(where, {"id": pl.Int64}, format=format_, upkeep=False)
    for number in range(1, 7):
        with table.transaction() as tx:
            tx.add(path=f"f{number}", size=5, modificationTime=1)
    return table, lambda version: where / table.log.dialect.commit_path(version)


@pytest.mark.parametrize("format_", ["delta", "indextables"])
@pytest.mark.parametrize("query", ["files", "metadata", "history", "actions"])
@pytest.mark.parametrize(("version", "other"), [(2, 5), (5, 2), (6, 0)])
def test_commit_of_lakelog_that_was_overwritten_with_another_is_refused(
    tmp_path: Path, format_: str, query: str, version: int, other: int
) -> None:
    table, path = table_of_commits(tmp_path / "t", format_)
    path(version).write_bytes(path(other).read_bytes())
    with pytest.raises(MalformedLogError, match="overwritten with that of another") as refused:
        run_query(lakelog.open(tmp_path / "t"), query)
    assert refused.value.version == version
    assert refused.value.path == table.log.dialect.commit_path(version)


def test_commit_that_was_overwritten_with_version_0_is_refused_above_a_checkpoint(
    tmp_path: Path,
) -> None:
    table, path = table_of_commits(tmp_path / "t", "delta")
    table.checkpoint(3)
    path(5).write_bytes(path(0).read_bytes())
    with pytest.raises(MalformedLogError, match="a commit without readVersion"):
        lakelog.open(tmp_path / "t").snapshot()


def test_swapped_commits_of_lakelog_are_refused_and_those_above_them_are_read(
    tmp_path: Path,
) -> None:
    table, path = table_of_commits(tmp_path / "t", "delta")
    table.checkpoint()
    contents = path(3).read_bytes(), path(4).read_bytes()
    path(4).write_bytes(contents[0])
    path(3).write_bytes(contents[1])
    table = lakelog.open(tmp_path / "t", upkeep=False)
    assert table.snapshot().num_files() == 6
    with pytest.raises(MalformedLogError, match="commit 3 has the readVersion 3"):
        table.snapshot(4).num_files()
    assert table.verify().verdict == "unprovable"


def run_query(table: lakelog.Table, query: str) -> object:
    if query == "history":
        return table.history()
    if query == "actions":
        return table.actions().collect()
    snapshot = table.snapshot()
    return snapshot.metadata if query == "metadata" else snapshot.files().collect()


def test_number_of_actions_is_not_part_of_the_history(tmp_path: Path) -> None:
    lakelog.create(tmp_path / "t", {"id": pl.Int64})
    history = lakelog.open(tmp_path / "t").history()
    assert "lakelogActions" not in str(history.to_dicts())


# --- commits of other writers, and a version checksum ------------------------------------------


def write_table(root: Path, metrics: dict[str, str] | None = None) -> Handmade:
    """Version 1 removes a file and adds three; its checksum is right."""
    log = Handmade(root).start(add("f0", size=5))
    extra = {"operationMetrics": metrics} if metrics is not None else {}
    log.commit(
        1,
        info("WRITE", txnId="id-1", **extra),
        remove("f0"),
        *(add(f"f{n}", size=5) for n in (1, 2, 3)),
    )
    write_checksum(log, 1, numFiles=3, tableSizeBytes=15)
    return log


def write_checksum(log: Handmade, version: int, **fields: Any) -> Path:
    body = {"txnId": f"id-{version}", "numMetadata": 1, "numProtocol": 1, **fields}
    return log.write(f"{version:020d}.crc", json.dumps(body).encode() + b"\n")


def outcome(log: Handmade, query: str = "files") -> str:
    """The result of a query: ``refused``, ``warned`` or ``silent``, and the files."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            snapshot = log.table.snapshot()
            if query == "files":
                found = snapshot.files().collect().height
            elif query == "num_files":
                found = snapshot.num_files()
            else:
                found = snapshot.total_size() // 5
        except CorruptionError:
            return "refused"
    return f"{'warned' if any(w.category is LakelogWarning for w in caught) else 'silent'} {found}"


QUERIES = ["files", "num_files", "total_size"]


@pytest.mark.parametrize("query", QUERIES)
def test_truncated_commit_is_refused_by_its_checksum_and_metrics_together(
    tmp_path: Path, query: str
) -> None:
    log = write_table(tmp_path / "t", {"numFiles": "3", "numRemovedFiles": "1"})
    assert outcome(log, query) == "silent 3"
    commit = log.log / f"{1:020d}.json"
    data = commit.read_bytes()
    for length in cuts(data):
        commit.write_bytes(data[:length])
        assert outcome(log, query) == "refused", length


@pytest.mark.parametrize("query", QUERIES)
def test_difference_from_a_checksum_alone_causes_a_warning(tmp_path: Path, query: str) -> None:
    log = write_table(tmp_path / "t")
    assert outcome(log, query) == "silent 3"
    commit = log.log / f"{1:020d}.json"
    data = commit.read_bytes()
    commit.write_bytes(data[: cuts(data)[-1]])
    assert outcome(log, query) == "warned 2"
    commit.write_bytes(data)
    write_checksum(log, 1, numFiles=9, tableSizeBytes=15)
    assert outcome(log, query) == "warned 3"


def test_metrics_alone_are_ignored(tmp_path: Path) -> None:
    log = write_table(tmp_path / "t", {"numFiles": "7"})
    assert outcome(log) == "silent 3"
    (log.log / f"{1:020d}.crc").unlink()
    assert outcome(log) == "silent 3"


def test_checksum_that_is_invalid_or_of_another_commit_is_ignored(tmp_path: Path) -> None:
    log = write_table(tmp_path / "t", {"numFiles": "4"})
    write_checksum(log, 1, txnId="another", numFiles=4)
    assert outcome(log) == "silent 3"
    for content in (
        b"",
        b"{",
        b"[]",
        b'{"numFiles":"4"}',
        b'{"numFiles":null}',
        b'{"numFiles":true}',
    ):
        log.write(f"{1:020d}.crc", content)
        assert outcome(log) == "silent 3", content


def test_commit_reduced_to_its_commit_info_is_refused_by_the_metadata_of_its_checksum(
    tmp_path: Path,
) -> None:
    log = Handmade(tmp_path / "t").start(add("f0", size=5))
    before = log.table.snapshot().metadata
    log.commit(1, info("SET TBLPROPERTIES", txnId="id-1"))
    metadata: dict[str, Any] = {
        "id": before.id,
        "schemaString": before.schema_string,
        "partitionColumns": [],
        "configuration": {"a": "b"},
    }
    write_checksum(log, 1, numFiles=1, metadata=metadata)
    assert outcome(log) == "refused"
    log.commit(1, info("SET TBLPROPERTIES", txnId="id-1"), add("f1", size=5))
    write_checksum(log, 1, numFiles=2, metadata=metadata)
    assert outcome(log) == "warned 2"
    assert before.schema_string is not None
    spaced = json.dumps(json.loads(before.schema_string), indent=1)
    write_checksum(log, 1, numFiles=2, metadata={**metadata, "configuration": {}})
    assert outcome(log) == "silent 2"
    equal = {**metadata, "configuration": {}, "schemaString": spaced}
    write_checksum(log, 1, numFiles=2, metadata=equal)
    assert outcome(log) == "silent 2"  # schemas are compared as JSON, not as texts


def test_no_checkpoint_is_written_after_a_refused_commit(tmp_path: Path) -> None:
    log = write_table(tmp_path / "t", {"numFiles": "3"})
    commit = log.log / f"{1:020d}.json"
    data = commit.read_bytes()
    commit.write_bytes(data[: cuts(data)[-1]])
    with pytest.raises(CorruptionError):
        log.table.checkpoint()
    assert not list(log.log.glob("*.checkpoint*"))


def v2_table(root: Path, paths: list[str]) -> tuple[Path, list[str]]:
    """The JSON manifest of a table with an application's transaction, and its lines."""
    properties = {"delta.checkpointPolicy": "v2"}
    table = lakelog.create(root, {"id": pl.Int64}, configuration=properties, upkeep=False)
    with table.transaction("app", 1) as tx:
        for path in paths:
            tx.add(path=path, size=1, modificationTime=1)
    table.checkpoint(layout="v2-json")
    (manifest,) = (root / "_delta_log").glob("*.checkpoint.*.json")
    return manifest, manifest.read_text().splitlines(keepends=True)


def remove_commits(root: Path) -> None:
    for file in (root / "_delta_log").glob(f"{'[0-9]' * 20}.json"):
        file.unlink()


@pytest.mark.parametrize("paths", [["f"], []], ids=["sidecar", "no files"])
def test_manifest_of_lakelog_that_lost_an_action_is_not_used(
    tmp_path: Path, paths: list[str]
) -> None:
    manifest, lines = v2_table(tmp_path, paths)
    for number in range(len(lines)):
        manifest.write_text("".join(lines[:number] + lines[number + 1 :]))
        with pytest.warns(LakelogWarning, match=manifest.name):
            snapshot = lakelog.open(tmp_path).snapshot()
        assert snapshot.num_files() == len(paths)
        assert snapshot.transactions().collect()["txnVersion"].to_list() == [1]
    manifest.write_text("".join(lines))
    remove_commits(tmp_path)
    assert lakelog.open(tmp_path).snapshot().num_files() == len(paths)


def test_manifest_of_another_writer_that_lost_a_sidecar_is_not_used(tmp_path: Path) -> None:
    manifest, lines = v2_table(tmp_path, ["f"])
    others = [re.sub(r',"lakelog\.actions":"\d+"', "", line) for line in lines]
    assert others != lines
    manifest.write_text("".join(others))
    assert lakelog.open(tmp_path).snapshot().num_files() == 1
    manifest.write_text("".join(line for line in others if '{"sidecar"' not in line))
    with pytest.warns(LakelogWarning, match=manifest.name):
        assert lakelog.open(tmp_path).snapshot().num_files() == 1
    remove_commits(tmp_path)
    with pytest.raises(lakelog.LakelogError, match="sidecarSizeInBytes"):
        lakelog.open(tmp_path).snapshot().num_files()
