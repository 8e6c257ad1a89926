"""Expands statistics from their JSON text into the columns of the flattened action table."""

from __future__ import annotations

import json
from typing import Any

MAPS = ("minValues", "maxValues", "nullCount")


class _Digits(str):
    """A number as written in the text."""

    __slots__ = ()


def _text(value: Any, plain: Any) -> str:
    """A value as text: strings and numbers unchanged, other values as JSON."""
    if isinstance(value, str):
        return str(value)
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False)


def spread(stats: str | None) -> dict[str, Any]:
    """``numRecords`` and the three maps of a statistics text; empty if it is not an object."""
    try:
        parsed = json.loads(stats or "null", parse_float=_Digits, parse_int=_Digits)
    except ValueError:
        return {}
    if not isinstance(parsed, dict):
        return {}
    plain = json.loads(stats or "null")
    columns: dict[str, Any] = {}
    if isinstance(parsed.get("numRecords"), _Digits):
        columns["numRecords"] = int(parsed["numRecords"])
    for name in MAPS:
        if isinstance(parsed.get(name), dict):
            columns[name] = {
                key: _text(value, plain[name][key])
                for key, value in parsed[name].items()
                if value is not None
            }
    return columns


def with_statistics(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its statistics expanded, as in ``Table.actions``."""
    return {**row, **spread(row.get("stats"))}
