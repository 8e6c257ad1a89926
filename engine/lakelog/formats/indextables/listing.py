"""What stands in ``_transaction_log/``, by name.

======================================================  ================================
name                                                    meaning
======================================================  ================================
``%020d.json``                                          commit
``%020d.checkpoint.json``                               JSON checkpoint, or the manifest of one
``%020d.checkpoint.<id>.%05d.json``                     part of a JSON checkpoint
``state-v%020d/_manifest.avro``                         Avro state; also how v0.5.4 commits
``manifests/manifest-<hex>.avro``                       entries that Avro states share
``_checkpoints/%020d.checkpoint.parquet``               flattened checkpoint (file or folder)
``_checkpoints/%020d.checkpoint.%010d.%010d.parquet``   part of one: number, count
``_checkpoints/%020d.checkpoint.json``                  what a flattened checkpoint holds
``_last_checkpoint``                                    hint
======================================================  ================================

Everything else (Hadoop's ``.name.crc``, temporary files) is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import orjson

from lakelog.errors import LakelogError
from lakelog.formats.base import Checkpoint, CommitFile, LogListing
from lakelog.formats.indextables.framing import unframe
from lakelog.storage import FileEntry, LogStore

LOG_FOLDER = "_transaction_log"
CHECKPOINT_FOLDER = f"{LOG_FOLDER}/_checkpoints"
STATE_MANIFEST = "_manifest.avro"
LAST_CHECKPOINT = f"{LOG_FOLDER}/_last_checkpoint"

# Among checkpoints of one version: flattened Parquet is read by column and loses nothing; JSON
# carries the protocol and metadata; an Avro state may carry neither and is decoded row by row.
RANK = {"avro-state": 0, "json": 1, "json-multipart": 1, "flattened": 2}
"""Of several checkpoints of one version, the one with the highest rank is read."""

_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)
_JSON_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.json", re.ASCII)
_JSON_PART = re.compile(r"(\d{20})\.checkpoint\.[^.]+\.\d{5,}\.json", re.ASCII)
_STATE_FOLDER = re.compile(r"state-v(\d{20})", re.ASCII)
_PARQUET = re.compile(r"(\d{20})\.checkpoint\.parquet", re.ASCII)
_PARQUET_PART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet", re.ASCII)

_MAX_VERSION = (1 << 63) - 1
# A manifest spends some 60 bytes a part. A larger file is a checkpoint body, and is not read here.
_MAX_MANIFEST_BYTES = 4 * 1024 * 1024


def list_commits(store: LogStore, start: int = 0, end: int | None = None) -> list[CommitFile]:
    """Commits from version `start` to `end` (both inclusive), by version."""
    return _commits(store.list_from(LOG_FOLDER, f"{start:020d}"), end)


def _commits(entries: Iterable[FileEntry], end: int | None = None) -> list[CommitFile]:
    commits = []
    for entry in entries:
        version = _version(_COMMIT, entry.name)
        if version is not None and (end is None or version <= end):
            commits.append(
                CommitFile(
                    version, f"{LOG_FOLDER}/{entry.name}", entry.size_bytes, entry.modified_ms
                )
            )
    return commits


def list_log(store: LogStore, *, hint: bool = True, start: int = 0) -> LogListing:
    """List the log folder; see `lakelog.formats.base.Dialect.list_log`."""
    if hint and (pointed := _read_pointer(store)) is not None:
        near = _list_at_or_above(store, pointed)
        # The pointer is believed only where the checkpoint that it names is really there; all
        # that came later is in the listing then, so the latest version is the same.
        if any(checkpoint.version == pointed for checkpoint in near.checkpoints):
            return near
    return _list_at_or_above(store, 0 if hint else start)


def _read_pointer(store: LogStore) -> int | None:
    try:
        return parse_pointer(store.read(LAST_CHECKPOINT))
    except LakelogError:
        return None


def parse_pointer(data: bytes) -> int | None:
    """The version that a pointer's content names; None where no sense can be made of it."""
    try:
        version = orjson.loads(unframe(data, LAST_CHECKPOINT))["version"]
    except (LakelogError, orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return version if type(version) is int and 0 <= version <= _MAX_VERSION else None


def _list_at_or_above(store: LogStore, start: int) -> LogListing:
    entries = store.list_from(LOG_FOLDER, f"{start:020d}")
    commits = _commits(entries)
    found = _Found()
    _find_json(store, entries, found)
    _find_states(store, start, commits, found)
    _find_flattened(store, start, found)
    return LogListing(
        tuple(commits),
        tuple(sorted(found.checkpoints, key=lambda c: (c.version, c.rank, c.paths))),
        (),
        tuple(found.notes),
    )


@dataclass
class _Found:
    checkpoints: list[Checkpoint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, version: int, layout: str, paths: Iterable[str]) -> None:
        self.checkpoints.append(Checkpoint(version, layout, RANK[layout], tuple(paths)))


def _version(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    if match is None:
        return None
    version = int(match[1])
    return version if version <= _MAX_VERSION else None


def _find_json(store: LogStore, entries: list[FileEntry], found: _Found) -> None:
    names = {entry.name for entry in entries}
    in_parts = {version for name in names if (version := _version(_JSON_PART, name)) is not None}
    for entry in entries:
        version = _version(_JSON_CHECKPOINT, entry.name)
        if version is None:
            continue
        path = f"{LOG_FOLDER}/{entry.name}"
        parts: list[str] | None = None
        # Only where there are parts can the file be a manifest worth reading at this point.
        if version in in_parts and entry.size_bytes <= _MAX_MANIFEST_BYTES:
            parts = read_part_names(store, path)
        if parts is None:
            found.add(version, "json", [path])
        elif missing := [part for part in parts if part not in names]:
            found.notes.append(
                f"checkpoint {entry.name} is incomplete: {', '.join(missing)} is not there"
            )
        else:
            parts_paths = [f"{LOG_FOLDER}/{part}" for part in parts]
            found.add(version, "json-multipart", [path, *parts_paths])


def read_part_names(store: LogStore, path: str) -> list[str] | None:
    """Part names of a multi-part manifest, or None where the file is none (or cannot be read:
    opening it as a checkpoint then says what is wrong).
    """
    try:
        body = orjson.loads(unframe(store.read(path), path))
    except (LakelogError, orjson.JSONDecodeError):
        return None
    return part_names(body)


def part_names(body: object) -> list[str] | None:
    """``parts`` of a parsed multi-part manifest, or None where `body` is something else."""
    if not isinstance(body, dict):
        return None
    parts = body.get("parts")
    if isinstance(parts, list) and parts and all(isinstance(part, str) for part in parts):
        return parts
    return None


def _find_states(store: LogStore, start: int, commits: list[CommitFile], found: _Found) -> None:
    versions = [
        version
        for name in store.list_folders(LOG_FOLDER)
        if (version := _version(_STATE_FOLDER, name)) is not None and version >= start
    ]
    # The manifest is the commit point. A writer that fails between making the folder and writing
    # the manifest leaves the folder; the next writer fills it. So only the last may be empty.
    while versions and store.stat(state_manifest_path(versions[-1])) is None:
        found.notes.append(f"state-v{versions[-1]:020d} holds no {STATE_MANIFEST}: not committed")
        versions.pop()
    # A writer that commits by states numbers a maintenance state after the last JSON commit it
    # sees, however many states there are above: that folder holds a later state than its number
    # says. The table's version of that number is in the JSON commit. Version 0 is always JSON.
    last_json = commits[-1].version if commits else 0
    for version in versions:
        if version == last_json and version != versions[-1]:
            found.notes.append(
                f"state-v{version:020d} is not used: it may have been written after later states"
            )
        else:
            found.add(version, "avro-state", [state_manifest_path(version)])


def state_manifest_path(version: int) -> str:
    """Path of the manifest of one Avro state."""
    return f"{LOG_FOLDER}/state-v{version:020d}/{STATE_MANIFEST}"


def _find_flattened(store: LogStore, start: int, found: _Found) -> None:
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for entry in store.list_from(CHECKPOINT_FOLDER, f"{start:020d}"):
        path = f"{CHECKPOINT_FOLDER}/{entry.name}"
        version = _version(_PARQUET, entry.name)
        if version is not None:
            found.add(version, "flattened", [path])
        elif part := _PARQUET_PART.fullmatch(entry.name):
            key = (int(part[1]), int(part[3]))
            parts.setdefault(key, {})[int(part[2])] = path
    for (version, count), paths in parts.items():
        if sorted(paths) == list(range(1, count + 1)):
            found.add(version, "flattened", [paths[n] for n in range(1, count + 1)])
        else:
            found.notes.append(
                f"flattened checkpoint {version} is incomplete: {len(paths)} of {count} parts"
            )
    # Spark writes a checkpoint as a folder of files, complete once it holds _SUCCESS.
    for name in store.list_folders(CHECKPOINT_FOLDER):
        version = _version(_PARQUET, name)
        if version is None or version < start:
            continue
        folder = f"{CHECKPOINT_FOLDER}/{name}"
        names = [entry.name for entry in store.list_from(folder)]
        data = [n for n in names if n.endswith(".parquet") and n[0] not in "._"]
        if "_SUCCESS" in names and data:
            found.add(version, "flattened", [f"{folder}/{n}" for n in data])
        else:
            found.notes.append(f"flattened checkpoint {name} is incomplete: no _SUCCESS")
