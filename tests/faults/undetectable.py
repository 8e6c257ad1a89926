"""Mutations that no reader can detect, with the argument for each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.mutations import Mutation


@dataclass(frozen=True)
class Case:
    """A mutation whose result is not the truth."""

    subject: str
    root: Path
    path: Path
    kind: str
    before: bytes
    mutation: Mutation
    truth: Any
    found: Any
    warned: bool


@dataclass(frozen=True)
class Undetectable:
    """A class of mutations.

    Attributes:
        name: Name of the class.
        argument: Why no reader can detect them.
        holds: Whether a case is one of them.
    """

    name: str
    argument: str
    holds: Callable[[Case], bool]


_JSON = {"commit", "compaction", "JSON manifest", "JSON checkpoint"}


def _actions(data: bytes) -> list[Any] | None:
    """The actions of a text file; None if it does not contain JSON objects."""
    try:
        if data[:2] in {b"\x1f\x8b", b"\x01\x01"}:
            data = gzip.decompress(data[2:] if data[:2] == b"\x01\x01" else data)
        found = [json.loads(line) for line in data.decode().splitlines() if line.strip()]
    except (ValueError, OSError, EOFError):
        return None
    if not all(isinstance(action, dict) for action in found):
        return None
    listed = [body for action in found for body in action.values() if isinstance(body, list)]
    return found + [entry for body in listed for entry in body]


def _another_value(case: Case) -> bool:
    if case.kind not in _JSON:
        return False
    before, after = _actions(case.before), _actions(case.mutation.data)
    return before is not None and after is not None and len(before) == len(after)


def _fewer_actions(case: Case) -> bool:
    if case.kind != "commit":
        return False
    after = _actions(case.mutation.data)
    if after is None or any("lakelogActions" in action.get("commitInfo", {}) for action in after):
        return False
    return case.warned or not _contradicted(case)


def _contradicted(case: Case) -> bool:
    """Whether the checksum of the latest version shows that files are missing."""
    for path in (case.root / "_delta_log").glob("*.crc"):
        recorded = json.loads(path.read_bytes())
        files = case.found["files"]
        if int(path.name[:20]) == case.found["version"] and (
            recorded["numFiles"] != len(files)
            or recorded["tableSizeBytes"] != sum(file["size"] for file in files)
        ):
            return True
    return False


def _name_in_avro(case: Case) -> bool:
    """The header of an Avro file, with its schema as JSON, ends at the first marker."""
    marker = case.before.find(b"0123456789abcdef")
    return case.kind == "Avro" and case.mutation.start < marker


def _value_in_avro(case: Case) -> bool:
    if case.kind != "Avro" or _name_in_avro(case):
        return False
    found, truth = len(case.found["files"]), len(case.truth["files"])
    keeps_length = len(case.mutation.data) == len(case.before)
    is_count_kept = found == truth or (found < truth and keeps_length)
    return is_count_kept and _size(case.found) <= _size(case.truth)


def _size(content: Any) -> int:
    return sum(file.get("size", 0) for file in content["files"])


def _no_protocol(case: Case) -> bool:
    """Another writer's checkpoint lost a line, and no file."""
    return (
        case.kind == "JSON checkpoint"
        and "own" not in case.subject
        and case.found["files"] == case.truth["files"]
    )


def _value_in_a_page(case: Case) -> bool:
    """Without its writer's checksum, any bytes with the right number of rows are a valid page."""
    return (
        case.kind == "data file"
        and case.path.name == "0.parquet"
        and len(case.found["rows"]) == len(case.truth["rows"])
    )


def _torn_tail(case: Case) -> bool:
    if case.kind != "WAL segment" or case.path != max(case.path.parent.glob("*.wal")):
        return False
    lost = len(case.truth) - len(case.found)
    to_the_end = case.mutation.end == len(case.before)
    shifts = len(case.mutation.data) != len(case.before)
    return set(case.found) <= set(case.truth) and (to_the_end or shifts or lost == 1)


UNDETECTABLE: tuple[Undetectable, ...] = (
    Undetectable(
        "another value in JSON text",
        "In these formats, JSON files have no checksum. A text that is still JSON, with the same"
        " number of actions, has another value or name, which may have been written.",
        _another_value,
    ),
    Undetectable(
        "a commit with fewer actions",
        "Only a commitInfo of lakelog has the number of the other actions. Without it, a text that"
        " ends at the end of a line is a commit. A version checksum that contradicts it may be the"
        " one that is wrong: the reader warns.",
        _fewer_actions,
    ),
    Undetectable(
        "a name in an Avro schema",
        "The header of an Avro file has no checksum. A schema that is still valid, without a field"
        " that has a default, may have been written by an older version.",
        _name_in_avro,
    ),
    Undetectable(
        "a value in an Avro block",
        "An Avro block has no checksum, and neither has its zstd frame if the writer omitted it."
        " The state records the number of entries, of which two may have one path, and their size,"
        " which writers subtract only on compaction: a smaller one may be right.",
        _value_in_avro,
    ),
    Undetectable(
        "another writer's JSON checkpoint without its protocol",
        "The pointer's count of actions counts files that are listed twice, so that one action less"
        " proves nothing; and a checkpoint without a protocol, which is 1/1 then, is allowed.",
        _no_protocol,
    ),
    Undetectable(
        "a value in a page without a checksum",
        "Parquet's page checksums are optional. lakelog writes them; a page of a writer that does"
        " not has another value.",
        _value_in_a_page,
    ),
    Undetectable(
        "the torn tail of a write-ahead log",
        "Damage to the last frame of the last segment, a cut in that segment, and inserted or"
        " deleted bytes that move all later frames off their boundaries, look like a write that a"
        " crash interrupted: no intact frame follows.",
        _torn_tail,
    ),
)


def argument(case: Case) -> str | None:
    """The name of the class that a case belongs to; None if no class lists it."""
    return next((entry.name for entry in UNDETECTABLE if entry.holds(case)), None)
