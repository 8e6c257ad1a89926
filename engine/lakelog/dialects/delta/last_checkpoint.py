"""Reads the hints of a Delta log: ``_last_checkpoint`` and version checksums (``.crc``).

A hint may make a read faster, but never decides its result: one that is missing, stale or damaged
costs time, and is reported.

Source: Delta protocol, Last Checkpoint File Schema; JSON checksum; Version Checksum File.
"""

from __future__ import annotations

import hashlib
import json
import string
from dataclasses import dataclass, replace
from typing import Any

from lakelog.dialects.delta.names import LAST_CHECKPOINT, LOG_FOLDER
from lakelog.dialects.log_content import Checkpoint, RecordedCounts
from lakelog.errors import LakelogError, NotFoundError
from lakelog.storage import LogStore

_COUNT_DIGITS = 20
_OF_FLINK = "io.delta.flink.sink.checkpoint"
"""Tag of Delta's Flink sink, whose ``size`` is that of the pointer before, also of another writer,
and the files that were added since, which can be more than there are.
"""
_NOTHING = RecordedCounts()


@dataclass(frozen=True)
class LastCheckpoint:
    """The content of ``_last_checkpoint``; `version` is None if it is unusable, see `note`."""

    version: int | None
    note: str | None = None
    recorded: RecordedCounts = _NOTHING
    name: str | None = None
    parts: int | None = None

    def counts_of(self, checkpoint: Checkpoint) -> RecordedCounts | None:
        """The recorded counts; for another checkpoint of the version, only that of live files."""
        if checkpoint.version != self.version:
            return None
        if self.name is not None:
            is_named = checkpoint.paths[0].endswith(f"/{self.name}")
        elif self.parts is not None:
            is_named = checkpoint.layout == "multipart" and len(checkpoint.paths) == self.parts
        else:
            is_named = checkpoint.layout == "classic"
        if is_named:
            return self.recorded
        return replace(self.recorded, actions=None, size_bytes=None)


class _Number(str):
    """A JSON number as written, which is its canonical form."""

    __slots__ = ()


def read_last_checkpoint(store: LogStore) -> LastCheckpoint:
    """Read the pointer; never raises, even if it is missing or malformed."""
    try:
        data = store.read(LAST_CHECKPOINT)
    except NotFoundError:
        return LastCheckpoint(None)
    except LakelogError as error:
        return LastCheckpoint(None, f"{LAST_CHECKPOINT} cannot be read: {error.message}")
    return parse_last_checkpoint(data)


def parse_last_checkpoint(data: bytes) -> LastCheckpoint:
    """Parse the pointer's content; never raises."""
    try:
        pointer = json.loads(data, parse_int=_Number, parse_float=_Number, object_pairs_hook=_once)
        version = int(pointer["version"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return LastCheckpoint(None, f"{LAST_CHECKPOINT} is damaged and was ignored")
    if not 0 <= version < 10**20:
        return LastCheckpoint(None, f"{LAST_CHECKPOINT} names the invalid version {version}")
    written = pointer.get("checksum")
    if isinstance(written, str) and written != checksum(pointer):
        return LastCheckpoint(None, f"{LAST_CHECKPOINT} does not match its own checksum")
    v2 = pointer.get("v2Checkpoint")
    tags = pointer.get("tags")
    is_estimate = isinstance(tags, dict) and _OF_FLINK in tags
    recorded = RecordedCounts(
        actions=None if is_estimate else _count(pointer.get("size")),
        adds=_count(pointer.get("numOfAddFiles")),
        size_bytes=_count(pointer.get("sizeInBytes")),
        is_checked=isinstance(written, str),
    )
    name = str(v2.get("path")) if isinstance(v2, dict) else None
    return LastCheckpoint(version, None, recorded, name, _count(pointer.get("parts")))


def _count(value: object) -> int | None:
    if isinstance(value, _Number) and value.isdecimal() and len(value) < _COUNT_DIGITS:
        return int(value)
    return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def checksum(pointer: dict[str, Any]) -> str:
    """MD5 of the canonical form without ``checksum``; numbers must be `int` or texts as written.

    >>> checksum({"k0": "'v 0'", "checksum": "x", "k1": {"k2": 2}})
    '26459e653aae98d5eecb188e130a5dc3'
    """
    body = {name: value for name, value in pointer.items() if name != "checksum"}
    return hashlib.md5(canonical(body).encode(), usedforsecurity=False).hexdigest()


def canonical(value: dict[str, Any] | list[Any]) -> str:
    """Canonical form of a JSON object or array.

    >>> canonical({"b": {"y": None, "x": "https://delta.io"}, "a": 10})
    '"a"=10,"b"+"x"="https%3A%2F%2Fdelta.io","b"+"y"=null'
    """
    leaves = sorted(_leaves(value, ""), key=lambda leaf: leaf[0].encode())
    return ",".join(f"{path}={leaf}" for path, leaf in leaves)


_KEPT = frozenset(string.ascii_letters + string.digits + "-._~")
_QUOTED = {byte: chr(byte) if chr(byte) in _KEPT else f"%{byte:02X}" for byte in range(256)}


def _quote(text: str) -> str:
    """Percent-encode all but letters, digits and ``-._~``, byte by byte, without a loop."""
    return text.encode().decode("latin-1").translate(_QUOTED)


def _leaves(value: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        members = [(f'"{_quote(name)}"', child) for name, child in value.items()]
    elif isinstance(value, list):
        members = [(str(index), child) for index, child in enumerate(value)]
    else:
        return [(path, _leaf(value))]
    found: list[tuple[str, str]] = []
    for name, child in members:
        found += _leaves(child, f"{path}+{name}" if path else name)
    return found


def _leaf(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case _Number():
            return str(value)
        case str():
            return f'"{_quote(value)}"'
        case _:
            return json.dumps(value)


def read_version_checksum(store: LogStore, version: int) -> dict[str, Any] | None:
    """The version checksum of a version; None if it is missing or not a JSON object."""
    try:
        found = json.loads(store.read(f"{LOG_FOLDER}/{version:020d}.crc"))
    except (LakelogError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
