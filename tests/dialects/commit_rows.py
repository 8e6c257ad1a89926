"""Random actions as flattened rows, and the content of a decoded commit as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import polars as pl
from hypothesis import strategies as st

from lakelog.dialects.base import Dialect
from lakelog.dialects.log_content import Actions, CommitContent, CommitFile
from lakelog.model import actions
from lakelog.storage import LogStore
from tests.model.encode import with_written
from tests.model.flatten import REQUIRED, dv_id, wire

Row = dict[str, Any]

FILE_KINDS = {"delta": ["add", "remove", "cdc", "fut ure"], "indextables": ["add", "remove", "x"]}
META_KINDS = {
    "delta": ["protocol", "metaData", "txn", "domainMetadata"],
    "indextables": ["protocol", "metaData", "mergeskip"],
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        "",
        "null",
        '"',
        "\\",
        "\\n",
        "\n\r\t\0\x1f\x7f",
        "\u2028",
        "😀",
        "{",
        '":null',
        "%41 %",
        "a:b",
    ]
)
KEYS = st.sampled_from(["p", "q", "a b", 'k"', "é", "path", "\n"])
MAPS = st.dictionaries(KEYS, st.none() | TEXTS, max_size=3)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXTS,
    "long": st.integers(-(2**63), 2**63 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "boolean": st.booleans(),
    "array": st.lists(st.none() | TEXTS, max_size=3),
    "map": MAPS.map(lambda found: dict(sorted(found.items()))),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, -(2**63), 2**63, 0.1, 1e300]) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
UNKNOWN = st.dictionaries(
    st.sampled_from(["new", "é", "n n", '"']), JSON.filter(lambda v: v is not None), max_size=2
)


def _value(type_: Any) -> st.SearchStrategy[Any]:
    return _VALUES[type_["type"] if isinstance(type_, dict) else type_]


@st.composite
def rows(draw: st.DrawFn, kind: str, dialect: str) -> Row:
    """One row of an action type, with any subset of its fields."""
    slots = wire(dialect).get(kind)
    if slots is None:
        body = draw(JSON.filter(lambda v: v is not None))
        return {"actionType": kind, "extra": json.dumps(body)}
    row: Row = {"actionType": kind}
    vector = draw(st.booleans())
    for slot in slots:
        needed = slot.column in REQUIRED.get(kind, ())
        if slot.column.startswith("dv"):
            if not vector:
                continue
            needed = slot.column in {"dvStorageType", "dvPathOrInline"}
        if needed or draw(st.booleans()):
            row[slot.column] = draw(_value(slot.type))
    extra = draw(UNKNOWN) if draw(st.booleans()) else {}
    for node in sorted({slot.keys[0] for slot in slots if len(slot.keys) > 1}):
        if inner := draw(UNKNOWN):
            extra[node] = inner
    if extra:
        row["extra"] = json.dumps(extra)
    return row


def kinds_of(kinds: Sequence[str], dialect: str) -> st.SearchStrategy[list[Row]]:
    """Some rows of some action types, in any order."""
    return st.lists(st.sampled_from(kinds).flatmap(lambda kind: rows(kind, dialect)), max_size=5)


def frame(found: Sequence[Row]) -> pl.DataFrame:
    """Rows as a narrow flattened frame."""
    present = {name for row in found for name in row}
    schema = {name: dtype for name, dtype in actions.schema().items() if name in present}
    return pl.DataFrame(found, schema=schema, orient="row") if found else actions.concat([])


class OneFile:
    """A store with one commit."""

    root = "one"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_many(self, paths: Sequence[str]) -> Iterator[bytes]:
        return iter([self._data] * len(paths))


def decode(dialect: Dialect, data: bytes, *, files: bool = True) -> Actions:
    """Decode the bytes of one commit, as version 7."""
    commit = CommitFile(7, dialect.commit_path(7), len(data), 0)
    return dialect.decode(cast("LogStore", OneFile(data)), [commit], files=files)


def plain(found: pl.DataFrame) -> list[Row]:
    """Rows without nulls, ``extra`` as JSON."""
    return [as_json(row) for row in found.to_dicts()]


def as_json(row: Row) -> Row:
    """A row without nulls, ``extra`` as JSON."""
    kept = {name: value for name, value in row.items() if value is not None}
    if "extra" in kept:
        kept["extra"] = json.loads(kept["extra"])
    return kept


def expected(found: Iterable[Row], dialect: str, first: int) -> list[Row]:
    """The rows as they are read after being written from position `first` on."""
    out = []
    for position, row in enumerate(found, first):
        read = as_json(with_written(row, dialect)) | {"version": 7, "position": position}
        if dialect == "delta" and (identity := dv_id(row)) is not None:
            read["dvId"] = identity
        out.append(read)
    return out


def content(info: dict[str, Any], meta: Sequence[Row], files: Sequence[Row]) -> CommitContent:
    """A commit of rows."""
    return CommitContent(info, frame(meta), frame(files))
