"""Parses the file names of a Delta log; all other names are ignored.

Source: Delta protocol, Delta Log Entries, Checkpoint Naming Scheme, Log Compaction Files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from lakelog.dialects.log_content import Checkpoint, CommitFile, CompactionFile, LogListing
from lakelog.storage import FileEntry

LOG_FOLDER = "_delta_log"
SIDECAR_FOLDER = "_delta_log/_sidecars"
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"

_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)
_COMPACTION = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json", re.ASCII)
_CLASSIC = re.compile(r"(\d{20})\.checkpoint\.parquet", re.ASCII)
_PART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet", re.ASCII)
_V2 = re.compile(rf"(\d{{20}})\.checkpoint\.({_UUID})\.(json|parquet)", re.ASCII)

_CHECKSUM = re.compile(r"(\d{20})\.crc", re.ASCII)

_LAST = f"{(1 << 63) - 1:020d}"  # a version is a Long, which is less than 20 digits can express
_CLASSIC_RANK = 0
_V2_RANK = 1 << 40  # greater than any number of parts

_VERSION = "([0-9]{20})"
FILE_KINDS = (
    ("pointer", "^_last_checkpoint()$"),
    ("commit", rf"^{_VERSION}[.]json$"),
    ("checksum", rf"^{_VERSION}[.]crc$"),
    ("compaction", rf"^{_VERSION}[.]{_VERSION}[.]compacted[.]json$"),
    (
        "checkpoint",
        (
            rf"^{_VERSION}[.]checkpoint[.]"
            rf"(?:[0-9]{{10}}[.][0-9]{{10}}[.]parquet|parquet|{_UUID}[.](?:json|parquet))$"
        ),
    ),
    ("sidecar", r"^_sidecars/()[^/]+[.]parquet$"),
    ("staged-commit", rf"^_staged_commits/{_VERSION}[.]{_UUID}[.]json$"),
)
"""As `lakelog.dialects.base.Dialect.file_kinds`."""


def commit_name(version: int) -> str:
    """Name of the commit file of `version`."""
    return f"{version:020d}.json"


def classic_name(version: int) -> str:
    """Name of a checkpoint of one file."""
    return f"{version:020d}.checkpoint.parquet"


def part_name(version: int, part: int, parts: int) -> str:
    """Name of part `part` (from 1) of `parts` of a multi-part checkpoint."""
    return f"{version:020d}.checkpoint.{part:010d}.{parts:010d}.parquet"


def manifest_name(version: int, unique: UUID, extension: str) -> str:
    """Name of a V2 manifest; `extension` is ``json`` or ``parquet``."""
    return f"{version:020d}.checkpoint.{unique}.{extension}"


def checksum_name(version: int) -> str:
    """Name of the version checksum of `version`."""
    return f"{version:020d}.crc"


def compaction_name(start: int, end: int) -> str:
    """Name of the log compaction file of commits `start` to `end`."""
    return f"{start:020d}.{end:020d}.compacted.json"


def rank_of(layout: str, parts: int = 1) -> int:
    """`Checkpoint.rank` of a layout: V2, then by number of parts, then classic."""
    if layout.startswith("v2-"):
        return _V2_RANK
    return parts if layout == "multipart" else _CLASSIC_RANK


def parse_listing(entries: Iterable[FileEntry]) -> LogListing:
    """Parse a log listing; empty and incomplete checkpoints are noted and omitted."""
    commits: list[CommitFile] = []
    checkpoints: list[Checkpoint] = []
    compactions: list[CompactionFile] = []
    parts: dict[tuple[int, int], dict[int, tuple[str, int]]] = {}
    notes: list[str] = []
    checksums: set[int] = set()
    has_pointer = False
    for entry in entries:
        name, size_bytes, modified_ms = entry
        path = f"{LOG_FOLDER}/{name}"
        if name[:20] > _LAST:
            has_pointer = has_pointer or path == LAST_CHECKPOINT
            continue
        if match := _COMMIT.fullmatch(name):
            commits.append(CommitFile(int(match[1]), path, size_bytes, modified_ms))
            continue
        size = (size_bytes,)
        if match := _COMPACTION.fullmatch(name):
            if int(match[1]) < int(match[2]):
                compactions.append(CompactionFile(int(match[1]), int(match[2]), path, size_bytes))
        elif ".checkpoint." not in name:
            if match := _CHECKSUM.fullmatch(name):
                checksums.add(int(match[1]))
        elif not size_bytes:
            notes.append(f"{path} is empty and was ignored")
        elif match := _CLASSIC.fullmatch(name):
            checkpoints.append(Checkpoint(int(match[1]), "classic", _CLASSIC_RANK, (path,), size))
        elif match := _PART.fullmatch(name):
            number, total = int(match[2]), int(match[3])
            if 1 <= number <= total:
                parts.setdefault((int(match[1]), total), {})[number] = (path, *size)
        elif match := _V2.fullmatch(name):
            layout = f"v2-{match[3]}"
            checkpoints.append(Checkpoint(int(match[1]), layout, _V2_RANK, (path,), size))
    for (version, total), found in parts.items():
        if len(found) == total:
            paths, sizes = zip(*(found[number] for number in sorted(found)), strict=True)
            checkpoints.append(Checkpoint(version, "multipart", total, paths, sizes))
        else:
            notes.append(
                f"the checkpoint of version {version} in {total} parts has only "
                f"{len(found)} and was ignored"
            )
    newest = max((c.version for c in checkpoints), default=None)
    checkpoints = [
        replace(
            c,
            checksum_path=(
                f"{LOG_FOLDER}/{checksum_name(c.version)}" if c.version in checksums else None
            ),
            pointer_path=LAST_CHECKPOINT if has_pointer and c.version == newest else None,
        )
        for c in checkpoints
    ]
    return LogListing(
        tuple(sorted(commits, key=lambda c: c.version)),
        tuple(sorted(checkpoints, key=lambda c: (c.version, c.rank, c.paths))),
        tuple(sorted(compactions, key=lambda c: (c.start, c.end))),
        tuple(notes),
        checksums=frozenset(checksums),
    )
