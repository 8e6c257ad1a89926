"""JSON checkpoints: one object, lines, and parts named by a manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lakelog.dialects.indextables import DIALECT, doc_mapping_hash
from lakelog.dialects.log_content import Checkpoint
from lakelog.errors import CorruptionError, MalformedLogError, UnsupportedError
from lakelog.storage import FileEntry, LogStore, StoreWrapper
from tests.dialects.indextables.writing import (
    FRAMINGS,
    PROTOCOL,
    JsonObject,
    Log,
    add,
    frame_bytes,
    lines,
    metadata,
    paths,
    read_files,
    remove,
    skip,
)

_VERSION = 10
_BASE = f"{_VERSION:020d}.checkpoint"
_MAPPING = '[{"name":"id"}]'
_REF = doc_mapping_hash(_MAPPING)
_ADDS = [add("a", size=1, docMappingRef=_REF), add("b", size=2), add("c", size=3)]
_METADATA = metadata(configuration={f"docMappingSchema.{_REF}": _MAPPING})
_FORMS = ("object", "pretty object", "lines", "parts")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "t")


def write_json_checkpoint(
    log: Log, version: int, form: str, rows: list[JsonObject], framing: str = "plain"
) -> list[Path]:
    """One checkpoint in one of the forms; its files, the manifest first."""
    base = f"{version:020d}.checkpoint"
    if form == "lines":
        return [log.write(f"{base}.json", frame_bytes(lines(rows), framing))]
    if form == "parts":
        # The head and the first add, then two adds per part, as the writer fills parts in order.
        head = next((n for n, row in enumerate(rows) if "add" in row), len(rows) - 1) + 1
        cuts = [0, *range(head, len(rows), 2), len(rows)]
        names = [f"{base}.0123456789ab.{n:05d}.json" for n in range(1, len(cuts))]
        made = [
            log.write(name, frame_bytes(lines(rows[a:b]), framing))
            for name, a, b in zip(names, cuts, cuts[1:], strict=False)
        ]
        body = {"version": version, "checkpointId": "0123456789ab", "parts": names}
        manifest = json.dumps(body | {"createdTime": 1, "format": "json"}).encode()
        return [log.write(f"{base}.json", manifest), *made]
    whole: JsonObject = {"add": [row["add"] for row in rows if "add" in row]}
    for row in rows:
        whole |= {key: value for key, value in row.items() if key != "add"}
    indent = 2 if form.startswith("pretty") else None
    return [
        log.write(f"{base}.json", frame_bytes(json.dumps(whole, indent=indent).encode(), framing))
    ]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("form", _FORMS)
def test_every_form_and_framing_gives_the_same_state(log: Log, form: str, framing: str) -> None:
    write_json_checkpoint(log, _VERSION, form, [PROTOCOL, _METADATA, *_ADDS], framing)
    reader = log.checkpoint(_VERSION)
    assert reader.checkpoint.layout == ("json-multipart" if form == "parts" else "json")
    files = read_files(reader, ["path", "size", "docMappingJson", "dataChange", "version"])
    assert files.sort("path").rows() == [
        ("add", "a", 1, _MAPPING, True, None),
        ("add", "b", 2, None, True, None),
        ("add", "c", 3, None, True, None),
    ]
    meta = reader.read_meta()
    assert meta["actionType"].to_list() == ["protocol", "metaData"]
    assert meta["minReaderVersion"].to_list() == [2, None]
    assert meta["metadataId"].to_list() == [None, "table-1"]
    assert "version" not in meta.columns
    assert reader.files_read() == reader.checkpoint.paths
    assert reader.struct_statistics() is None


class CleanupAfterListing(StoreWrapper):
    """A store that deletes some listed commits after each listing."""

    def __init__(self, store: LogStore, to_delete: list[list[Path]]) -> None:
        super().__init__(store)
        self._to_delete = to_delete

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        entries = super().list_from(folder, start)
        for path in self._to_delete.pop() if self._to_delete else ():
            path.unlink()
        return entries


class ListsMissingCommit(StoreWrapper):
    """A store that lists a commit that does not exist."""

    def __init__(self, store: LogStore, version: int) -> None:
        super().__init__(store)
        self._entry = FileEntry(f"{version:020d}.json", 10, 1)

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        return sorted([*super().list_from(folder, start), self._entry], key=lambda e: e.name)


@pytest.mark.parametrize("deleted", [{0}, {0, 1}, {0, 1, 2}, {1}, {2}])
def test_cleanup_of_covered_commits_during_the_read_is_not_an_error(
    log: Log, deleted: set[int]
) -> None:
    write_json_checkpoint(log, _VERSION, "lines", [PROTOCOL, _METADATA, *_ADDS])
    commits = [log.commit(version, [skip(str(version))]) for version in range(3)]
    (checkpoint,) = log.checkpoints()
    store = CleanupAfterListing(log.store, [[commits[version] for version in deleted]])
    meta = DIALECT.open_checkpoint(store, checkpoint).read_meta(["mergeskip"])
    assert (paths(meta) if meta.height else []) == [str(v) for v in range(3) if v not in deleted]


def test_listed_but_missing_covered_commit_raises_malformed_log_error(log: Log) -> None:
    write_json_checkpoint(log, _VERSION, "lines", [PROTOCOL, _METADATA, *_ADDS])
    (checkpoint,) = log.checkpoints()
    reader = DIALECT.open_checkpoint(ListsMissingCommit(log.store, 3), checkpoint)
    with pytest.raises(MalformedLogError, match="was deleted while"):
        reader.read_meta()


def test_only_requested_columns_and_action_types_are_returned(log: Log) -> None:
    rows = [PROTOCOL, _METADATA, *_ADDS, remove("gone")]
    write_json_checkpoint(log, _VERSION, "lines", rows)
    reader = log.checkpoint(_VERSION)
    (frame,) = reader.iter_files(["size"], ["add"])
    assert set(frame.columns) == {"actionType", "path", "size"}
    assert paths(frame) == ["a", "b", "c"]
    (removed,) = reader.iter_files(["deletionTimestamp"], ["remove"])
    assert removed["deletionTimestamp"].to_list() == [7]


@pytest.mark.parametrize("form", _FORMS)
def test_duplicate_path_counts_once_with_its_last_entry(log: Log, form: str) -> None:
    rows = [PROTOCOL, metadata(), add("a", size=1), add("b", size=2), add("c"), add("a", size=9)]
    write_json_checkpoint(log, _VERSION, form, rows)
    files = read_files(log.checkpoint(_VERSION))
    assert sorted(zip(files["path"], files["size"], strict=True)) == [("a", 9), ("b", 2), ("c", 10)]


@pytest.mark.parametrize("form", _FORMS)
def test_checkpoint_without_files_is_empty(log: Log, form: str) -> None:
    write_json_checkpoint(log, _VERSION, form, [PROTOCOL, metadata()])
    assert read_files(log.checkpoint(_VERSION)).is_empty()


def test_skips_missing_in_the_checkpoint_are_read_from_the_covered_commits(log: Log) -> None:
    log.commit(0, [PROTOCOL, metadata()])
    log.commit(3, [skip("a"), skip("b", skipCount=1)])
    log.commit(5, [skip("b", skipCount=2)])
    log.commit(11, [skip("later")])
    write_json_checkpoint(log, _VERSION, "lines", [PROTOCOL, metadata(id="own")])
    meta = log.checkpoint(_VERSION).read_meta()
    assert meta["actionType"].to_list() == ["protocol", "metaData", "mergeskip", "mergeskip"]
    skips = meta.filter(pl.col("actionType") == "mergeskip")
    assert skips.select("path", "skipCount", "version").rows() == [("a", 1, 3), ("b", 2, 5)]
    assert meta["metadataId"].drop_nulls().to_list() == ["own"]


def test_skips_in_the_checkpoint_take_precedence_over_commits(log: Log) -> None:
    log.commit(3, [skip("a"), skip("b")])
    write_json_checkpoint(log, _VERSION, "lines", [PROTOCOL, metadata(), skip("a", skipCount=7)])
    skips = log.checkpoint(_VERSION).read_meta(("mergeskip",))
    assert skips.select("path", "skipCount").rows() == [("a", 7), ("b", 1)]


def test_missing_protocol_is_read_from_the_commits_and_defaults_to_1(log: Log) -> None:
    write_json_checkpoint(log, _VERSION, "lines", [metadata(), add("a")])
    assert log.checkpoint(_VERSION).read_meta(("protocol",))["minReaderVersion"].to_list() == [1]
    log.commit(4, [PROTOCOL])
    assert log.checkpoint(_VERSION).read_meta(("protocol",))["minReaderVersion"].to_list() == [2]


def test_covered_commits_are_not_read_if_the_checkpoint_suffices(log: Log) -> None:
    log.write(f"{3:020d}.json", b"damaged")
    write_json_checkpoint(log, _VERSION, "lines", [PROTOCOL, metadata(), add("a")])
    reader = log.checkpoint(_VERSION)
    assert reader.read_meta(("protocol", "metaData")).height == 2
    with pytest.raises(MalformedLogError):
        reader.read_meta()


def _manifest(log: Log, **fields: Any) -> None:
    write_json_checkpoint(log, _VERSION, "parts", [PROTOCOL, metadata(), *_ADDS])
    target = log.folder / f"{_BASE}.json"
    target.write_text(json.dumps(json.loads(target.read_text()) | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 11},
        {"parts": [f"{_BASE}.0123456789ab.00001.json"] * 2},
        {"parts": []},
        {"parts": "all"},
        {"parts": [1]},
        {"parts": ["../other.json"]},
        {"parts": [".."]},
    ],
)
def test_inconsistent_manifest_raises_corruption_error(log: Log, fields: Any) -> None:
    _manifest(log, **fields)
    with pytest.raises(CorruptionError):
        read_files(log.checkpoint(_VERSION))


def test_parts_of_an_unknown_format_are_refused(log: Log) -> None:
    _manifest(log, format="msgpack")
    with pytest.raises(UnsupportedError) as caught:
        log.checkpoint(_VERSION).read_meta()
    assert caught.value.found == "msgpack"


def test_missing_part_is_named_in_the_error(log: Log) -> None:
    _, first, *_ = write_json_checkpoint(log, _VERSION, "parts", [PROTOCOL, metadata(), *_ADDS])
    reader = log.checkpoint(_VERSION)
    first.unlink()
    with pytest.raises(MalformedLogError) as caught:
        read_files(reader)
    assert caught.value.path == f"_transaction_log/{first.name}"


def test_manifest_without_any_of_its_parts_is_refused_when_opened(log: Log) -> None:
    _, *parts = write_json_checkpoint(log, _VERSION, "parts", [PROTOCOL, metadata(), *_ADDS])
    for part in parts:
        part.unlink()
    with pytest.raises(MalformedLogError, match="part"):
        read_files(log.checkpoint(_VERSION))


def test_parts_are_read_if_the_manifest_is_recognised_only_when_opened(log: Log) -> None:
    made = write_json_checkpoint(log, _VERSION, "parts", [PROTOCOL, metadata(), *_ADDS])
    path = f"_transaction_log/{made[0].name}"
    reader = DIALECT.open_checkpoint(log.store, Checkpoint(_VERSION, "json", 1, (path,)))
    assert paths(read_files(reader)) == ["a", "b", "c"]
    assert len(reader.files_read()) == len(made)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"3",
        b'{"add":[1]}',
        b'{"add":"x"}',
        b'{"protocol":{"minReaderVersion":2},"add":[{"path":"a"',
        b'{"add":[{"path":"a","size":1}],"add":[]}',
        b'{"add":[{"size":1}]}',
        b'{"metaData":{}}\n{"add":\n',
    ],
)
def test_damaged_body_is_refused_with_its_path(log: Log, body: bytes) -> None:
    log.write(f"{_BASE}.json", body)
    with pytest.raises(CorruptionError) as caught:
        read_files(log.checkpoint(_VERSION))
    assert caught.value.path == f"_transaction_log/{_BASE}.json"
