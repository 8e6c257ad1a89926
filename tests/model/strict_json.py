"""Strict newline-delimited JSON, one line at a time: the rules for every decoder of lakelog.

A line is one JSON object in UTF-8, whitespace aside; blank lines are ignored. Refused are bytes
that are not UTF-8, a byte order mark, unescaped control characters, lone surrogates, the same key
twice in one object, ``NaN`` and ``Infinity``, and anything before or after the object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

WHITESPACE = b" \t\r"


class RefusedError(Exception):
    """The plain replay defines no state for these bytes."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        raise ValueError("the same key twice in one object")
    return built


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse(text: str) -> Any:
    """One JSON value, strictly."""
    value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    # An escaped lone surrogate is not valid Unicode: it cannot be encoded as UTF-8.
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def parse_lines(data: bytes, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's object with its 0-based line number.

    Raises:
        RefusedError: With the file and the line.
    """
    for number, line in enumerate(data.split(b"\n")):
        stripped = line.strip(WHITESPACE)
        if not stripped:
            continue
        try:
            value = parse(stripped.decode("utf-8"))
        except (ValueError, RecursionError) as cause:
            raise RefusedError(f"{where} line {number + 1}: {cause}") from cause
        if not isinstance(value, dict):
            raise RefusedError(f"{where} line {number + 1}: not an object")
        yield number, value
