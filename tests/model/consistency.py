"""Which file actions a commit may contain, one row at a time: the model for `check_files`."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

REQUIRED = {
    "add": ("path", "partitionValues", "size", "modificationTime", "dataChange"),
    "remove": ("path", "dataChange"),
    "cdc": ("path", "partitionValues", "size", "dataChange"),
}
NUMBERS = (
    *("size", "modificationTime", "deletionTimestamp", "dvOffset", "dvSizeInBytes"),
    *("dvCardinality", "baseRowId", "defaultRowCommitVersion"),
)


def _is_date(text: str) -> bool:
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_long(text: str) -> bool:
    return bool(re.fullmatch(r"-?[0-9]+", text)) and -(2**63) <= int(text) < 2**63


PARSES = {"string": lambda _: True, "long": _is_long, "date": _is_date}


def vector_id(row: Row) -> str | None:
    """The identifier of a row's deletion vector."""
    if row.get("dvStorageType") is None:
        return None
    offset = "" if row.get("dvOffset") is None else f"@{row['dvOffset']}"
    return f"{row['dvStorageType']}{row.get('dvPathOrInline')}{offset}"


def _path_is_wrong(row: Row, removed: set[str], columns: Mapping[str, Any]) -> bool:
    path, kind = row["path"], row["actionType"]
    if path == "":
        return True
    if kind == "remove":
        return False
    if path.startswith("/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", path):
        return path not in removed
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\x00" in path:
        return True
    folders = parts[:-1]
    if kind == "cdc" and folders[:1] == ["_change_data"]:
        folders = folders[1:]
    return any(
        folder.startswith("_") and not any(folder.startswith(f"{c}=") for c in columns)
        for folder in folders
    )


def _statistics_are_wrong(text: str | None) -> bool:
    if text is None:
        return False
    try:
        parsed = json.loads(text, parse_constant=lambda name: float(f"not {name}"))
    except ValueError:
        return True
    if not isinstance(parsed, dict):
        return True
    count = parsed.get("numRecords")
    return count is not None and (type(count) is not int or not 0 <= count < 2**63)


def _vector_is_wrong(row: Row) -> bool:
    names = ("dvStorageType", "dvPathOrInline", "dvOffset", "dvSizeInBytes", "dvCardinality")
    values = {name: row.get(name) for name in names}
    if all(value is None for value in values.values()):
        return False
    if any(value is None for name, value in values.items() if name != "dvOffset"):
        return True
    kind, where = values["dvStorageType"], str(values["dvPathOrInline"])
    if kind not in {"u", "i", "p"} or where == "":
        return True
    return (kind == "u" and len(where) < 20) or (kind == "i" and values["dvOffset"] is not None)


def _partition_is_wrong(row: Row, columns: Mapping[str, tuple[str, bool]]) -> bool:
    values = row["partitionValues"]
    if set(values) != set(columns):
        return True
    for name, (type_, nullable) in columns.items():
        text = values[name]
        if text is None or text == "":
            if not nullable:
                return True
        elif not PARSES[type_](text):
            return True
    return False


def problems(rows: Sequence[Row], columns: Mapping[str, tuple[str, bool]]) -> set[str]:
    """Kinds of the errors that apply to one commit; an empty set if it may be written.

    `columns` are the partition columns: name to type and whether it may be null.
    """
    found = set()
    removed = {row["path"] for row in rows if row["actionType"] == "remove"}
    for row in rows:
        kind = row["actionType"]
        if any(row.get(name) is None for name in REQUIRED[kind]):
            return {"invalid_transaction"}
        if kind == "cdc" and row["dataChange"]:
            found.add("invalid_transaction")
        if _path_is_wrong(row, removed, columns):
            found.add("invalid_path")
        if any((row.get(name) or 0) < 0 for name in NUMBERS) or _vector_is_wrong(row):
            found.add("invalid_transaction")
        if kind != "remove":
            if _statistics_are_wrong(row.get("stats")):
                found.add("invalid_transaction")
            if _partition_is_wrong(row, columns):
                found.add("partition_mismatch")
    for kind in REQUIRED:
        paths = [row["path"] for row in rows if row["actionType"] == kind]
        if len(paths) != len(set(paths)):
            found.add("duplicate_file")
    identities = {
        kind: {(r["path"], vector_id(r)) for r in rows if r["actionType"] == kind}
        for kind in ("add", "remove")
    }
    if identities["add"] & identities["remove"]:
        found.add("duplicate_file")
    return found
