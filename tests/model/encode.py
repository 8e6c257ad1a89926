"""Flattened rows to the JSON objects of a commit, one by one, according to the contract's file.

The plain counterpart of `lakelog.dialects.encode`: it reads ``schemas/actions.json`` itself.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from tests.model.flatten import CONTRACT, wire

Row = Mapping[str, Any]
Json = dict[str, Any]

_ENCODED = {"add", "remove", "cdc"}
_MARKS = "-_.!~*'():@&=+$,;/"


def percent_encoded(path: str) -> str:
    """The path as Java's ``URI`` encodes it; a colon that would end a scheme is encoded too."""
    scheme, colon, rest = path.partition(":")
    is_url = bool(colon) and rest.startswith("/") and _is_scheme(scheme)
    first_segment = "" if is_url else path.split("/", maxsplit=1)[0]
    return "".join(
        quote(char, safe="") if _quoted(char) or (char == ":" and at < len(first_segment)) else char
        for at, char in enumerate(path)
    )


def percent_encoded_by_writers(path: str) -> str:
    """As `percent_encoded`, and with deltalake's encoding of non-ASCII characters and ``*``."""
    encoded = percent_encoded(path)
    return "".join(quote(c, safe="") if not c.isascii() or c == "*" else c for c in encoded)


def _is_scheme(text: str) -> bool:
    ascii_text = text.isascii() and text != ""
    return ascii_text and text[0].isalpha() and all(c.isalnum() or c in "+-." for c in text)


def _quoted(char: str) -> bool:
    if char.isascii():
        return not (char.isalnum() or char in _MARKS)
    return unicodedata.category(char) in {"Cc", "Zs", "Zl", "Zp"}


def with_written(row: Row, dialect: str) -> Json:
    """The row with the defaults that the contract writes if an action lacks a field."""
    filled = {name: value for name, value in row.items() if value is not None}
    columns = {slot.column for slot in wire(dialect).get(row["actionType"], ())}
    for field in json.loads(CONTRACT.read_text())["fields"]:
        written = field["metadata"].get("written", {})
        if field["name"] in columns and row["actionType"] in written:
            filled.setdefault(field["name"], written[row["actionType"]])
    return filled


def encode_row(row: Row, dialect: str) -> Json:
    """The JSON object of one row."""
    kind = row["actionType"]
    if kind not in wire(dialect):
        return {kind: json.loads(row["extra"])}
    filled = with_written(row, dialect)
    body: Json = {}
    for slot in wire(dialect)[kind]:
        value = filled.get(slot.column)
        if value is None:
            continue
        if slot.column == "path" and dialect == "delta" and kind in _ENCODED:
            value = percent_encoded_by_writers(value)
        target = body
        for key in slot.keys[:-1]:
            target = target.setdefault(key, {})
        target[slot.keys[-1]] = value
    _merge(body, json.loads(filled.get("extra", "{}")))
    return {kind: body}


def _merge(body: Json, extra: Json) -> None:
    for key, value in extra.items():
        if isinstance(body.get(key), dict) and isinstance(value, dict):
            _merge(body[key], value)
        else:
            body[key] = value


def in_order(meta: Iterable[Row]) -> list[Row]:
    """Rows that are not file actions, in the order in which they are written."""
    kinds = ("protocol", "metaData", "domainMetadata", "txn", "mergeskip")
    return sorted(meta, key=lambda row: kinds.index(row["actionType"]))


def encode(info: Json, meta: Iterable[Row], files: Iterable[Row], dialect: str) -> list[Json]:
    """The objects of a commit, in the order of its lines."""
    lines = [encode_row(row, dialect) for row in (*in_order(meta), *files)]
    if not info:
        return lines
    if dialect == "delta" or not lines:
        return [{"commitInfo": info}, *lines]
    return [{"commitInfo": info, **lines[0]}, *lines[1:]]
