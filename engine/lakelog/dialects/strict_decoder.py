"""The line-by-line NDJSON decoder, which checks every rule and locates every error.

It defines the correct result. `lakelog.dialects.ndjson` is the columnar decoder, which must return
the same frames, and delegates to this one what it cannot decide: unknown shapes, ambiguous nulls,
malformed lines. The loop over rows here is therefore the exception.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
import polars as pl

from lakelog.dialects.exact_json import exact_object, has_double, json_text
from lakelog.dialects.json_layout import ALIASES, FILE_WRAPPERS, META_WRAPPERS, Leaf, Node, Wire
from lakelog.dialects.log_content import Actions, CommitInfo
from lakelog.errors import InvalidActionError, MalformedLogError
from lakelog.model import actions, contract
from lakelog.model.contract import MAX_DEPTH

_MAX_BLANK_LINES = 10_000
"""Maximum number of blank lines in a file, or in 8 MB of a longer one. Writers leave no blank
lines, and a compressed file could have hundreds of millions.
"""

_SEARCHED_BYTES = 8 << 20

_INT_BITS = {"long": 64, "integer": 32}


class Blob(NamedTuple):
    """Bytes of one log file (decompressed), or whole lines of them from the 0-based `first_line`
    and `offset`; a tuple, because a log has tens of thousands. A `whole` file without actions is a
    torn write, and raises.
    """

    version: int | None
    path: str
    data: bytes | memoryview
    first_line: int = 0
    offset: int = 0
    whole: bool = True


@dataclass
class _Rows:
    files: list[dict[str, Any]] = field(default_factory=list)
    meta: list[dict[str, Any]] = field(default_factory=list)
    other: list[dict[str, Any]] = field(default_factory=list)
    commit_infos: list[CommitInfo] = field(default_factory=list)
    count: int = 0


def decode_exact(blobs: Iterable[Blob], wire: Wire, *, files: bool = True) -> Actions:
    """Decode NDJSON actions line by line."""
    rows = _Rows()
    for blob in blobs:
        before = rows.count
        for line in _lines(blob):
            try:
                parsed = parse_object(line)
            except MalformedLogError as error:
                _refuse_line_breaks(line, blob, error)
                raise
            _decode_object(parsed, line, wire, rows, files)
        if blob.whole and rows.count == before:
            raise no_action(blob)
    return Actions(
        _frame(rows.files), _frame(rows.meta), _frame(rows.other), tuple(rows.commit_infos)
    )


def no_action(blob: Blob) -> MalformedLogError:
    """The error for a file without actions."""
    return MalformedLogError(
        "the file contains no action",
        path=blob.path,
        version=blob.version,
        expected="at least one action",
        found=f"{len(blob.data)} bytes",
        hint="the write was incomplete: restore the file from a copy",
    )


class Line(NamedTuple):
    """One line of a log file; `number` and `offset` (decompressed) are 0-based."""

    text: bytes
    path: str
    version: int | None
    number: int
    offset: int

    def refuse(self, message: str, at: int = 0, **fields: Any) -> MalformedLogError:
        """The error for a problem of the line, `at` bytes into it."""
        return MalformedLogError(
            message,
            path=self.path,
            version=self.version,
            line=self.number + 1,
            byte_offset=self.offset + at,
            **{"hint": "restore the file from a copy; reading stopped here", **fields},
        )


def parse_object(line: Line) -> dict[str, Any]:
    """Parse one line strictly."""
    text = line.text
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as cause:
        at = len(cause.doc[: cause.pos].encode("utf-8", "surrogatepass"))
        raise line.refuse(
            f"the line is not valid JSON: {cause.msg}",
            at,
            expected="one JSON object",
            found=text[max(0, at - 20) : at + 20].decode("utf-8", "replace"),
        ) from cause
    if not isinstance(parsed, dict):
        raise line.refuse(
            "the line is not a JSON object",
            expected="one JSON object",
            found=text[:40].decode("utf-8", "replace"),
        )
    # A shallow line that encodes to the same text has lost nothing: no key was repeated.
    if not (_is_shallow(text) and orjson.dumps(parsed) == text):
        _check_keys(parsed, line)
    return parsed


def parse_objects(texts: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """Parse many short lines, or return None if one may need `parse_object`."""
    # Each level takes at least two bytes.
    if any(len(text) > 2 * MAX_DEPTH and not _is_shallow(text) for text in texts):
        return None
    try:
        parsed = list(map(orjson.loads, texts))
    except orjson.JSONDecodeError:
        return None
    # If the list encodes to the same text, so does each element: a JSON object is never a prefix of
    # another. Blanks between keys and values do not count; without those inside texts, a key that
    # is repeated still is.
    spelled, text = orjson.dumps(parsed), b"[" + b",".join(texts) + b"]"
    if spelled not in {text, text.replace(b", ", b",").replace(b": ", b":")}:
        return None
    return parsed if all(type(value) is dict for value in parsed) else None


def _is_shallow(text: bytes) -> bool:
    return text.count(b"{") + text.count(b"[") <= MAX_DEPTH


def _check_keys(parsed: dict[str, Any], line: Line) -> None:
    """Raise for deep nesting or a repeated key, of which orjson keeps the last."""
    try:
        keys = _count_keys(parsed)
    except RecursionError as cause:
        raise line.refuse(
            "the line is nested too deeply", expected=f"arrays and objects at most {MAX_DEPTH} deep"
        ) from cause
    if line.text.count(b'":') - line.text.count(b'\\":') != keys:
        _refuse_duplicates(line)


def _count_keys(value: dict[str, Any] | list[Any], depth: int = 1) -> int:
    if depth > MAX_DEPTH:
        raise RecursionError
    # Descends only into containers: every commitInfo is checked here, and most values are scalars.
    children: Iterable[Any] = value
    count = 0
    if isinstance(value, dict):
        children = value.values()
        count = len(value)
    for child in children:
        if isinstance(child, dict | list):
            count += _count_keys(child, depth + 1)
    return count


def _refuse_duplicates(line: Line) -> None:
    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise line.refuse(
                "a key occurs twice in a JSON object", expected="each key once", found=twice
            )
        return seen

    json.loads(line.text, object_pairs_hook=check)


def _lines(blob: Blob) -> Iterable[Line]:
    """All non-blank lines."""
    offset = blob.offset
    blank = 0
    for number, line in enumerate(bytes(blob.data).split(b"\n"), blob.first_line):
        if line.strip(b" \t\r"):
            yield Line(line, blob.path, blob.version, number, offset)
        else:
            blank += 1
            if blank > _MAX_BLANK_LINES:
                raise Line(line, blob.path, blob.version, number, offset).refuse(
                    "the file has too many blank lines", expected=f"at most {_MAX_BLANK_LINES}"
                )
        offset += len(line) + 1


def _refuse_line_breaks(line: Line, blob: Blob, error: MalformedLogError) -> None:
    """Raise if the line is the first one of a JSON value, as an editor or a formatter writes it."""
    begin = line.offset - blob.offset
    text = bytes(blob.data[begin : begin + _SEARCHED_BYTES]).decode("utf-8", "replace")
    start = len(text) - len(text.lstrip())
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return
    if breaks := text.count("\n", start, end):
        raise line.refuse(
            f"a JSON value is written over {breaks + 1} lines",
            expected="each action on one line, as one JSON object without line breaks",
            found=" ".join(text[start : start + 40].split()),
            hint="restore the file from a copy, or write each action on a line of its own; "
            "reading stopped here",
        ) from error


def _decode_object(
    parsed: dict[str, Any],
    line: Line,
    wire: Wire,
    rows: _Rows,
    files: bool,
) -> None:
    for wrapper, body in parsed.items():
        if body is None:
            continue
        rows.count += 1
        if wrapper == "commitInfo":
            rows.commit_infos.append(
                CommitInfo(line.version, line.number, _object(body, (wrapper, line)))
            )
            continue
        node = wire.wrappers.get(wrapper)
        if not files and (node is None or wrapper not in META_WRAPPERS):
            continue
        action_type = ALIASES.get(wrapper, wrapper)
        row: dict[str, Any] = {"actionType": action_type}
        if line.version is not None:
            row |= {"version": line.version, "position": line.number}
        if node is None:
            row["extra"] = json_text(body, lambda: exact_object(line.text)[wrapper])  # noqa: B023
            rows.other.append(row)
            continue
        where = (wrapper, line)
        try:
            extra = _flatten(_object(body, where), node, row, where)
        except _InexactError:
            extra = _flatten(exact_object(line.text)[wrapper], node, row, where)
        if extra:
            row["extra"] = orjson.dumps(extra).decode()
        for column in wire.required.get(action_type, ()):
            if row.get(column) is None:
                raise _invalid(f"{wrapper} lacks a required field", where, column, None)
        if wrapper in FILE_WRAPPERS:
            rows.files.append(row)
        elif wrapper in META_WRAPPERS:
            rows.meta.append(row)
        else:
            rows.other.append(row)


class _InexactError(Exception):
    """A number that is kept as text has become a double."""


_Where = tuple[str, Line]


def _invalid(message: str, where: _Where, expected: object, found: object) -> InvalidActionError:
    _, line = where
    return InvalidActionError(
        message,
        path=line.path,
        version=line.version,
        line=line.number + 1,
        byte_offset=line.offset,
        expected=expected,
        found=None if found is None else _shown(found)[:80],
        hint="restore the file from a copy; reading stopped here",
    )


def _shown(value: object) -> str:
    return orjson.dumps(value).decode() if isinstance(value, orjson.Fragment) else repr(value)


def _object(body: Any, where: _Where) -> dict[str, Any]:
    if isinstance(body, dict):
        return body
    raise _invalid(f"{where[0]} is not an object", where, "a JSON object", body)


def _flatten(
    body: dict[str, Any], node: Node, row: dict[str, Any], where: _Where
) -> dict[str, Any]:
    """Fill `row` with the known fields of `body`; return the unknown non-null ones."""
    extra: dict[str, Any] = {}
    for name, value in body.items():
        if value is None:
            continue
        child = node.fields.get(name)
        if child is None:
            extra[name] = _exact(value)
        elif isinstance(child, Leaf):
            row[child.column] = _value(value, child, where)
        elif isinstance(value, dict):
            inner = _flatten(value, child, row, where)
            if inner:
                extra[name] = inner
        else:
            raise _invalid(f"{where[0]}.{name} has the wrong type", where, "object", value)
    return extra


def _value(value: Any, leaf: Leaf, where: _Where) -> Any:
    match leaf.type:
        case contract.Primitive("string"):
            if isinstance(value, str):
                return value
            if leaf.lenient:
                return orjson.dumps(_exact(value)).decode()
        case contract.Primitive("boolean"):
            if isinstance(value, bool):
                return value
        case contract.Primitive(name):
            bits = _INT_BITS[name]
            if type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1:
                return value
        case contract.Map():
            if isinstance(value, dict):
                # Objects are unordered.
                return {k: text_of(_exact(value[k])) for k in sorted(value)}
        case contract.Array():
            if isinstance(value, list) and all(v is None or isinstance(v, str) for v in value):
                return value
    raise _invalid(
        f"{where[0]} has a field of the wrong type",
        where,
        f"{leaf.column}: {contract.to_json(leaf.type)}",
        value,
    )


def _exact(value: Any) -> Any:
    """A value that is kept as JSON text; raises if it may have lost digits."""
    if not isinstance(value, str) and has_double(value):
        raise _InexactError
    return value


def text_of(value: Any) -> str | None:
    """The text of a map's value: null and strings unchanged, other values as JSON text."""
    if type(value) is int:
        return str(value)  # an integer of any length
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    if not rows:
        return actions.concat([])
    present = {column for row in rows for column in row}
    columns = {c: dtype for c, dtype in actions.schema().items() if c in present}
    return pl.DataFrame(rows, schema=columns, orient="row")
