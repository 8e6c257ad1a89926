"""Classifies the files of ``_transaction_log/`` by name.

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
``_checkpoints/%020d.checkpoint.json``                  description of a flattened checkpoint
``_last_checkpoint``                                    hint
======================================================  ================================

Everything else (Hadoop's ``.name.crc``, temporary files) is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from lakelog.dialects.indextables.avro import read_state_record
from lakelog.dialects.indextables.framing import unframe
from lakelog.dialects.log_content import Checkpoint, CommitFile, LogListing, RecordedCounts
from lakelog.errors import CorruptionError, LakelogError, NotFoundError
from lakelog.storage import FileEntry, LogStore

LOG_FOLDER = "_transaction_log"
CHECKPOINT_FOLDER = f"{LOG_FOLDER}/_checkpoints"
MANIFEST_FOLDER = f"{LOG_FOLDER}/manifests"
_STATE_MANIFEST = "_manifest.avro"
LAST_CHECKPOINT = f"{LOG_FOLDER}/_last_checkpoint"

# Order among checkpoints of one version: flattened Parquet is read by column and is complete; JSON
# has protocol and metadata; an Avro state may lack both and is decoded row by row.
RANK = {"avro-state": 0, "json": 1, "json-multipart": 1, "flattened": 2}
"""Of several checkpoints of one version, the one with the highest rank is read."""

_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)
_JSON_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.json", re.ASCII)
_JSON_PART = re.compile(r"(\d{20})\.checkpoint\.[^.]+\.\d{5,}\.json", re.ASCII)
_STATE_FOLDER = re.compile(r"state-v(\d{20})", re.ASCII)
_PARQUET = re.compile(r"(\d{20})\.checkpoint\.parquet", re.ASCII)
_PARQUET_PART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet", re.ASCII)

_MAX_VERSION = (1 << 63) - 1
# A manifest needs about 60 bytes per part. A larger file is a checkpoint, and is not read here.
_MAX_MANIFEST_BYTES = 4 * 1024 * 1024
# IndexTables writes one commit per skip, with the reason.
_MAX_SKIP_BYTES = 1024 * 1024
_MAX_SKIP_RATIO = 50  # for a compressed one
# Any other error, such as an unavailable store, says nothing about a file: ignoring it would change
# the answer.
_ABSENT_OR_DAMAGED = (NotFoundError, CorruptionError)
_NO_CONTENT = frozenset({"mergeskip", "skip", "commitInfo"})

FILE_KINDS = (
    ("pointer", "^_last_checkpoint()$"),
    ("commit", "^([0-9]{20})[.]json$"),
    (
        "checkpoint",
        (
            "^(?:_checkpoints/)?([0-9]{20})[.]checkpoint[.]"
            "(?:json|parquet|[0-9]{10}[.][0-9]{10}[.]parquet|[^./]+[.][0-9]{5,}[.]json)$"
        ),
    ),
    ("state", "^state-v([0-9]{20})/"),
    ("state", "^manifests/()"),
)
"""As `lakelog.dialects.base.Dialect.file_kinds`."""


def list_commits(store: LogStore, end: int | None = None) -> list[CommitFile]:
    """Commits up to version `end`, inclusive, by version."""
    return _commits(store.list_from(LOG_FOLDER), end)


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
    """List the log folder; see `lakelog.dialects.base.Dialect.list_log`."""
    pointer: bytes | None = None
    if hint:
        with suppress(LakelogError):
            pointer = read_pointer(store)
    if pointer is not None and (pointed := parse_pointer(pointer)) is not None:
        near = _list_at_or_above(store, pointed)
        # The pointer is used only if its checkpoint exists; the listing then includes everything
        # later, so the latest version is the same.
        if any(checkpoint.version == pointed for checkpoint in near.checkpoints):
            recorded = recorded_counts(pointer, pointed)
            checkpoints = (
                replace(c, recorded=recorded) if c.version == pointed else c
                for c in near.checkpoints
            )
            return replace(near, checkpoints=tuple(checkpoints))
    return _list_at_or_above(store, 0 if hint else start)


def read_pointer(store: LogStore) -> bytes | None:
    """The pointer's content; None if there is none."""
    try:
        return store.read(LAST_CHECKPOINT)
    except _ABSENT_OR_DAMAGED:
        return None


def pointer_body(data: bytes) -> dict[str, Any]:
    """The fields of a pointer's content; empty if it cannot be parsed."""
    try:
        body = orjson.loads(unframe(data, LAST_CHECKPOINT))
    except (LakelogError, orjson.JSONDecodeError):
        return {}
    return body if isinstance(body, dict) else {}


def parse_pointer(data: bytes) -> int | None:
    """The version in a pointer's content; None if it is malformed."""
    version = pointer_body(data).get("version")
    return version if type(version) is int and 0 <= version <= _MAX_VERSION else None


def recorded_counts(data: bytes, version: int) -> RecordedCounts | None:
    """The counts of a version's checkpoint in a pointer's content; None if there are none."""
    body = pointer_body(data)
    size, files = body.get("size"), body.get("numFiles")
    if body.get("version") != version or type(size) is not int or type(files) is not int:
        return None
    return RecordedCounts(size, files)


def _list_at_or_above(store: LogStore, start: int) -> LogListing:
    entries = store.list_from(LOG_FOLDER, f"{start:020d}")
    commits = _commits(entries)
    found = _Found()
    _find_json(store, entries, found)
    last_state = _find_states(store, start, commits, found)
    _find_flattened(store, start, found)
    apart: list[CommitFile] = []
    if (
        last_state is not None
        and commits
        and not _starts_elsewhere(store, start, last_state, found)
    ):
        apart = commits_apart(store, commits)
        commits = commits[: len(commits) - len(apart)]
    return LogListing(
        tuple(commits),
        tuple(sorted(found.checkpoints, key=lambda c: (c.version, c.rank, c.paths))),
        (),
        tuple(found.notes),
        tuple(apart),
    )


def commits_apart(store: LogStore, commits: Sequence[CommitFile]) -> list[CommitFile]:
    """The commits at the end of a log with Avro states that have only skips: IndexTables numbers
    them independently, and they are not versions. Version 0, and commits below one with other
    actions, are.
    """
    found: list[CommitFile] = []
    ahead = [c for c in commits if c.version > 0]
    while ahead:
        commit = ahead.pop()
        if not _holds_only_skips(store, commit):
            break
        found.append(commit)
    return found[::-1]


def _holds_only_skips(store: LogStore, commit: CommitFile) -> bool:
    if commit.size_bytes > _MAX_SKIP_BYTES:
        return False
    try:
        data = unframe(store.read(commit.path), commit.path, commit.version)
        if len(data) > _MAX_SKIP_RATIO * _MAX_SKIP_BYTES:
            return False
        lines = [orjson.loads(line) for line in data.split(b"\n") if line.strip()]
    except (*_ABSENT_OR_DAMAGED, orjson.JSONDecodeError):
        return False  # the decoder reports the error
    # A commit without an action is torn.
    return bool(lines) and all(
        isinstance(line, dict) and not {k for k, v in line.items() if v is not None} - _NO_CONTENT
        for line in lines
    )


def _starts_elsewhere(store: LogStore, start: int, last_state: int, found: _Found) -> bool:
    """Whether the latest version starts from a checkpoint that is not an Avro state."""
    near = found
    if last_state < start:
        near = _Found()
        _find_json(store, store.list_from(LOG_FOLDER, f"{last_state:020d}"), near)
        _find_flattened(store, last_state, near)
    return any(c.version > last_state for c in near.checkpoints if c.layout != "avro-state")


@dataclass
class _Found:
    checkpoints: list[Checkpoint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, version: int, layout: str, paths: Iterable[str], sizes_bytes: Iterable[int] = ()
    ) -> None:
        self.checkpoints.append(
            Checkpoint(version, layout, RANK[layout], tuple(paths), tuple(sizes_bytes))
        )


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
        # Only if parts exist can the file be a manifest that must be read here.
        if version in in_parts and entry.size_bytes <= _MAX_MANIFEST_BYTES:
            parts = _read_part_names(store, path)
        if parts is None:
            found.add(version, "json", [path])
        elif missing := [part for part in parts if part not in names]:
            found.notes.append(
                f"checkpoint {entry.name} is incomplete: {', '.join(missing)} was not found"
            )
        else:
            parts_paths = [f"{LOG_FOLDER}/{part}" for part in parts]
            found.add(version, "json-multipart", [path, *parts_paths])


def _read_part_names(store: LogStore, path: str) -> list[str] | None:
    """Part names of a multi-part manifest; None for another file, or a damaged one."""
    try:
        body = orjson.loads(unframe(store.read(path), path))
    except (*_ABSENT_OR_DAMAGED, orjson.JSONDecodeError):
        return None
    return part_names(body)


def part_names(body: object) -> list[str] | None:
    """``parts`` of a parsed multi-part manifest, names of files in the log folder; None for another
    body.
    """
    parts = body.get("parts") if isinstance(body, dict) else None
    if isinstance(parts, list) and parts and all(map(_is_file_name, parts)):
        return parts
    return None


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and "/" not in name and name not in {"", ".", ".."}


def _find_states(
    store: LogStore, start: int, commits: list[CommitFile], found: _Found
) -> int | None:
    """Find the states at `start` and above; return the last state of the log."""
    versions = state_versions(store)
    # The manifest completes a state. A writer that fails between creating the folder and writing
    # the manifest leaves the folder, which the next writer fills. Therefore only the last may be
    # empty.
    while versions and store.stat(state_manifest_path(versions[-1])) is None:
        found.notes.append(f"state-v{versions[-1]:020d} has no {_STATE_MANIFEST}: not committed")
        versions.pop()
    listed = [version for version in versions if version >= start]
    late = _late_states(store, listed, commits)
    for version in listed:
        if version in late:
            found.notes.append(
                f"state-v{version:020d} is ignored: it was written after later states"
            )
        else:
            found.add(version, "avro-state", [state_manifest_path(version)])
    return versions[-1] if versions else None


def state_versions(store: LogStore) -> list[int]:
    """The versions of all state folders, ascending; the last ones may have no manifest."""
    return [
        version
        for name in store.list_folders(LOG_FOLDER)
        if (version := _version(_STATE_FOLDER, name)) is not None
    ]


def _late_states(
    store: LogStore, versions: Sequence[int], commits: Sequence[CommitFile]
) -> set[int]:
    """States whose version is later than their number: maintenance numbers a state after the last
    JSON commit. Manifests, whose times show this, are read only if the numbers allow it.
    """
    numbered = {0, *(commit.version for commit in commits)}
    suspects: set[int] = set()
    for version in versions[:-1]:
        if version in numbered or version - 1 in suspects:
            suspects.add(version)
    if not suspects:
        return set()
    ahead = [version for version in versions if version >= min(suspects)]
    created = {v: at for v in ahead if (at := _created_ms(store, v)) is not None}
    late: set[int] = set()
    least: int | None = None  # the earliest time of the states above
    for version in reversed(created):
        if least is not None and created[version] > least and version in suspects:
            late.add(version)
        least = created[version] if least is None else min(least, created[version])
    return late


def _created_ms(store: LogStore, version: int) -> int | None:
    """Creation time of a state, or None if its manifest does not record it."""
    path = state_manifest_path(version)
    try:
        record = read_state_record(store.read(path), path, version, ("createdAt",))
    except _ABSENT_OR_DAMAGED:
        return None
    created = record.get("createdAt")
    return created if type(created) is int else None


def state_manifest_path(version: int) -> str:
    """Path of the manifest of one Avro state."""
    return f"{LOG_FOLDER}/state-v{version:020d}/{_STATE_MANIFEST}"


def metadata_path(version: int) -> str:
    """Path of the file that describes a flattened checkpoint."""
    return f"{CHECKPOINT_FOLDER}/{version:020d}.checkpoint.json"


def _find_flattened(store: LogStore, start: int, found: _Found) -> None:
    parts: dict[tuple[int, int], dict[int, str]] = {}
    sizes: dict[str, int] = {}
    for entry in store.list_from(CHECKPOINT_FOLDER, f"{start:020d}"):
        path = f"{CHECKPOINT_FOLDER}/{entry.name}"
        sizes[path] = entry.size_bytes
        version = _version(_PARQUET, entry.name)
        if version is not None:
            found.add(version, "flattened", [path], [entry.size_bytes])
        elif part := _PARQUET_PART.fullmatch(entry.name):
            key = (int(part[1]), int(part[3]))
            parts.setdefault(key, {})[int(part[2])] = path
    for (version, count), paths in parts.items():
        if sorted(paths) == list(range(1, count + 1)):
            ordered = [paths[n] for n in range(1, count + 1)]
            found.add(version, "flattened", ordered, [sizes[path] for path in ordered])
        else:
            found.notes.append(
                f"flattened checkpoint {version} is incomplete: {len(paths)} of {count} parts"
            )
    # Spark writes a checkpoint as a folder of files, complete once it contains _SUCCESS.
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
