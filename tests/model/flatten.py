"""Flattens one action to one row, field by field, according to ``schemas/actions.json``.

Reads the contract's file itself, independently of the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from tests.model.strict_json import RefusedError

CONTRACT = Path(__file__).resolve().parents[2] / "schemas" / "actions.json"

REQUIRED = {
    "add": ("path", "size"),
    "remove": ("path",),
    "txn": ("appId", "txnVersion"),
    "domainMetadata": ("domain",),
    "protocol": ("minReaderVersion",),
    "cdc": ("path",),
    "sidecar": ("path",),
    "mergeskip": ("path",),
}


LENIENT = ("stats", "timeRangeStart", "timeRangeEnd")
"""Text columns whose values are JSON text if they are not strings."""


def _is_int(value: Any, bits: int) -> bool:
    limit = 1 << (bits - 1)
    return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit


_CONFORMS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "long": lambda value: _is_int(value, 64),
    "integer": lambda value: _is_int(value, 32),
    "array": lambda value: (
        isinstance(value, list) and all(v is None or isinstance(v, str) for v in value)
    ),
    "map": lambda value: (
        isinstance(value, dict) and all(v is None or isinstance(v, str) for v in value.values())
    ),
}


@dataclass(frozen=True)
class Slot:
    """The location of one column in an action: the keys to follow, the column, and its type."""

    keys: tuple[str, ...]
    column: str
    type: Any


@cache
def wire(dialect: str) -> dict[str, tuple[Slot, ...]]:
    """Wrapper key to its slots, from the contract."""
    found: dict[str, list[Slot]] = {}
    for field in json.loads(CONTRACT.read_text())["fields"]:
        for place in field["metadata"].get(dialect, ()):
            wrapper, *keys = place.split(".")
            found.setdefault(wrapper, []).append(Slot(tuple(keys), field["name"], field["type"]))
    found.setdefault("checkpointMetadata", [])
    return {wrapper: tuple(slots) for wrapper, slots in found.items()}


@cache
def columns() -> tuple[str, ...]:
    """Every column of the flattened schema, in order."""
    return tuple(f["name"] for f in json.loads(CONTRACT.read_text())["fields"])


def decode_path(path: str) -> str:
    """Percent-decode exactly once; a path whose bytes would not be UTF-8 is unchanged."""
    try:
        return unquote_to_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        return path


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _convert(value: Any, type_: Any, column: str, where: str) -> Any:
    """The value if it has the contract's type; otherwise an error.

    Values of maps that are not text become JSON text, and so do those of `LENIENT`.
    """
    kind = type_["type"] if isinstance(type_, dict) else type_
    if value is None or _CONFORMS[kind](value):
        return value
    if kind == "map" and isinstance(value, dict):
        return {k: v if v is None or isinstance(v, str) else _json(v) for k, v in value.items()}
    if column in LENIENT:
        return _json(value)
    raise RefusedError(f"{where}: {column} contains {value!r}, which is not a {type_}")


def _as_text(value: Any) -> str:
    """A value without a JSON type, as text."""
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def dv_id(row: Mapping[str, Any]) -> str | None:
    """Unique id of the deletion vector (Delta protocol, Deletion Vectors, Derived Fields)."""
    if row.get("dvStorageType") is None:
        return None
    offset = row.get("dvOffset")
    return f"{row['dvStorageType']}{row['dvPathOrInline']}" + (
        "" if offset is None else f"@{offset}"
    )


def flatten(wrapper: str, body: Any, where: str, dialect: str = "delta") -> dict[str, Any]:
    """The flattened row of one action; ``extra`` has the fields that the contract does not name.

    Raises:
        RefusedError: A required field is missing, or a known one has another type.
    """
    known = wire(dialect).get(wrapper)
    row: dict[str, Any] = {"actionType": "mergeskip" if wrapper == "skip" else wrapper}
    if known is None:
        return row | {"extra": json.dumps(body)}
    for slot in known:
        row[slot.column] = None
    extra = _fill(row, body, {slot.keys: slot for slot in known}, (), where)
    row["extra"] = json.dumps(extra, default=_as_text) if extra else None
    for column in REQUIRED.get(row["actionType"], ()):
        if row.get(column) is None:
            raise RefusedError(f"{where}: {wrapper} without {column}")
    if dialect == "delta":
        _finish_delta(row, where)
    return row


def _fill(
    row: dict[str, Any],
    body: Any,
    slots: Mapping[tuple[str, ...], Slot],
    prefix: tuple[str, ...],
    where: str,
) -> dict[str, Any]:
    """Fill `row` from an object and its nested objects; return the other fields without nulls."""
    if not isinstance(body, dict):
        raise RefusedError(f"{where}: {'.'.join(prefix) or 'the action'} is not an object")
    extra: dict[str, Any] = {}
    for key, value in body.items():
        keys = (*prefix, key)
        if value is None:
            continue
        if keys in slots:
            slot = slots[keys]
            try:
                row[slot.column] = _convert(value, slot.type, slot.column, where)
            except RefusedError:
                if row["actionType"] != "commitInfo":
                    raise
                extra[key] = value  # a commitInfo may contain any JSON with any name
        elif any(known[: len(keys)] == keys for known in slots):
            if inner := _fill(row, value, slots, keys, where):
                extra[key] = inner
        else:
            extra[key] = value
    return extra


def _finish_delta(row: dict[str, Any], where: str) -> None:
    if row.get("path") is not None:
        row["path"] = decode_path(row["path"])
    if row["actionType"] in {"add", "remove"}:
        vector = [value for column, value in row.items() if column.startswith("dv")]
        if any(value is not None for value in vector) and (
            row["dvStorageType"] is None or row["dvPathOrInline"] is None
        ):
            raise RefusedError(f"{where}: a deletion vector without storageType or pathOrInlineDv")
        row["dvId"] = dv_id(row)
