"""Rows of JSON, and texts as in CSV, in the types of a table."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lakelog.data.conform import find_invalid, wide_field
from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.model.contract import Array, DataType, Decimal, Map, Primitive, Struct

# A line that is not a JSON object with a column; a file may begin with a byte order mark.
_NO_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r]*(?:[^{ \t\r\xef]|\{[ \t\r]*\})")
# An infinity as a value, and in a text what looks like one.
_INFINITY = re.compile(rb"(?<=[:\[,])(\s*)-?Inf(?:inity)?(?=\s*[,\]}])")
_COLUMN = re.compile(r"Column\(/(.*?)\) (?:changed|was)")
_ZONED = r"[T ]\d.*(?:Z|[+-]\d\d(?::?\d\d)?)$"
_BINARY = Primitive("binary")


class _BadValue(pa.ArrowInvalid):  # type: ignore[misc]
    """A value of a column that cannot be read."""

    def __init__(self, column: str, reason: object) -> None:
        super().__init__(f"in {column!r}: {str(reason).split(chr(10), 1)[0]}")
        self.column = column


class JsonReader:
    """Reads rows of JSON in the types of a schema: `names` are the columns that JSON can have."""

    def __init__(self, schema: Struct) -> None:
        self._schema = schema
        self._base64 = [field.name for field in schema.fields if field.type == _BINARY]
        readable = [f for f in schema.fields if _is_readable(f.type) or f.name in self._base64]
        self.names = [field.name for field in readable]
        self._json_schema = pa.schema([pa.field(f.name, _json_type(f.type)) for f in readable])
        self._types = {field.name: wide_field(field).type for field in readable}

    def stored(self, lines: bytes | pa.Buffer) -> pa.Table:
        """Lines that were checked before."""
        size = max(1 << 20, len(lines) + 1)  # of one block: a row is never cut
        options = pj.ParseOptions(
            explicit_schema=self._json_schema, unexpected_field_behavior="error"
        )
        read = pj.ReadOptions(block_size=min(size, 1 << 30), use_threads=False)
        table = pj.read_json(pa.BufferReader(lines), read_options=read, parse_options=options)
        columns = []
        for name, type_ in self._types.items():
            try:
                columns.append(table[name].cast(type_))
            except pa.ArrowException as cause:
                raise _BadValue(name, cause) from cause
        return pa.Table.from_arrays(columns, names=self.names) if columns else table

    def read(self, lines: Sequence[bytes]) -> pa.Table:
        """Lines of a caller; InvalidInputError for one that does not fit."""
        try:
            for line in lines:
                if line[:2] != b'{"' and _NO_OBJECT.match(line):  # Arrow makes nulls, or crashes
                    raise pa.ArrowInvalid("a line is not an object, or one without columns")
            data = b"\n".join(lines)
            table = self.stored(data)
            if len(table) != len(lines):
                raise pa.ArrowInvalid(f"{len(table)} objects in {len(lines)} lines")
            for name in self._base64:
                table = _without_base64(table, name)
            if found := find_invalid(table):
                raise _BadValue(*found)
            finite = self.stored(_INFINITY.sub(rb"\g<1>0", data)) if b"Inf" in data else table
            for name in finite.column_names:
                if type_ := _overflow(finite[name]):
                    raise _BadValue(name, f"a number is too large for {type_}")
            return table
        except pa.ArrowException as cause:
            column, reason = self._reason(lines, cause)
            raise InvalidInputError(
                "a line is not a JSON object with values of the table's columns",
                column=column,
                expected=f"an object per line, with {', '.join(self.names)}",
                found=reason,
                hint="dates and times are ISO 8601 text, and binary values base64; maps, and "
                "binary values in structs or lists, cannot be read from JSON",
            ) from cause

    def _reason(self, lines: Sequence[bytes], cause: pa.ArrowException) -> tuple[str | None, str]:
        """The column and the reason of an error, as exactly as they are known."""
        text = re.sub(r"\.? in row \d+$", "", str(cause).split("\n", 1)[0])
        if isinstance(cause, _BadValue):
            return cause.column, text
        if found := _COLUMN.search(text):
            return found[1], text
        if "unexpected field" in text and len(lines) == 1:
            column = _unknown_field(_python_value(lines[0]), self._schema, self.names)
            if column in self._schema.names:
                return column, f"the column {column!r} cannot be read from JSON"
            if column is not None:
                return column, f"the table has no column {column!r}"
        return None, text


def _overflow(values: pa.ChunkedArray) -> pa.DataType | None:
    """The type of floating-point values, also nested ones, of which one is infinite; else None."""
    type_ = values.type
    if pa.types.is_floating(type_):
        return type_ if pc.any(pc.is_inf(values)).as_py() else None
    if pa.types.is_struct(type_):
        return next(filter(None, map(_overflow, values.flatten())), None)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _overflow(pc.list_flatten(values))
    return None


def _python_value(line: bytes) -> Any:
    try:
        return json.loads(line.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        return None


def is_complete(line: bytes) -> bool:
    """Whether a line is a JSON object or array, which cannot have a continuation."""
    value = _python_value(line)
    return isinstance(value, dict | list) or (
        not _NO_OBJECT.match(line) and bool(column_names(line))
    )


def column_names(line: bytes) -> Sequence[str]:
    """The columns of a line that may have NaN, Infinity or a byte order mark, which `JsonReader`
    takes; none of a line that it refuses.
    """
    value = _python_value(line)
    if isinstance(value, dict):
        return list(value)
    try:
        names: list[str] = pj.read_json(pa.BufferReader(line)).column_names  # `Inf`
    except pa.ArrowException:
        return ()
    return names


def _unknown_field(
    value: Any, type_: DataType, readable: Sequence[str] | None = None
) -> str | None:
    """The path of the first field of a value that a type lacks."""
    if isinstance(type_, Struct) and isinstance(value, dict):
        for name, each in value.items():
            field = type_.field(name)
            if field is None or field.name != name or name not in (readable or type_.names):
                return str(name)
            if (found := _unknown_field(each, field.type)) is not None:
                return f"{name}.{found}"
    if isinstance(type_, Array) and isinstance(value, list):
        for each in value:
            if (found := _unknown_field(each, type_.element)) is not None:
                return f"element.{found}"
    return None


def read_texts(texts: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Texts in a type; an empty one, which only quotes tell from a null, is null if it must be."""
    try:
        values = _cast(texts, type_)
    except pa.ArrowException:
        is_empty = pc.equal(texts, "")
        if not pc.any(is_empty).as_py():
            raise
        values = _cast(pc.if_else(is_empty, pa.scalar(None, texts.type), texts), type_)
    if pa.types.is_floating(type_):
        beyond = pc.and_(pc.is_inf(values), pc.match_substring_regex(texts, "[0-9]"))
        if pc.any(beyond).as_py():
            raise pa.ArrowInvalid(f"{texts.filter(beyond)[0]} is beyond the range of {type_}")
    return values


def _cast(texts: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Texts in a type. Times without a zone are UTC, as in JSON."""
    if pa.types.is_integer(type_):
        hexadecimal = pc.starts_with(texts, "0x", ignore_case=True)
        if pc.any(hexadecimal).as_py():
            raise pa.ArrowInvalid(f"{texts.filter(hexadecimal)[0]} is not a decimal number")
    if not pa.types.is_timestamp(type_) or type_.tz is None:
        return texts.cast(type_)
    is_zoned, null = pc.match_substring_regex(texts, _ZONED), pa.scalar(None, texts.type)
    local = pc.if_else(is_zoned, null, texts).cast(pa.timestamp(type_.unit))
    return pc.coalesce(pc.if_else(is_zoned, texts, null).cast(type_), local.cast(type_))


def _without_base64(table: pa.Table, name: str) -> pa.Table:
    """The rows, with the bytes of a column of base64 text."""
    try:
        values = pl.Series(table[name]).bin.decode("base64")
    except pl.exceptions.ComputeError as cause:
        raise _BadValue(name, "a text is not base64") from cause
    position = table.column_names.index(name)
    field = table.schema.field(name)
    return table.set_column(position, field, pa.chunked_array(values.to_arrow().cast(field.type)))


def _is_readable(type_: DataType) -> bool:
    """Whether values of a type can be read from JSON."""
    match type_:
        case Struct(fields):
            return all(_is_readable(field.type) for field in fields)
        case Array(element, _):
            return _is_readable(element)
        case Map():
            return False
        case Decimal():
            return True
    return contract.is_known(type_) and type_.name not in {"binary", "variant", "void"}


def _json_type(type_: DataType) -> pa.DataType:
    """The type in which Arrow's reader of JSON reads values of a type. It would convert a time with
    an offset to one without a zone.
    """
    match type_:
        case Struct(fields):
            return pa.struct([pa.field(f.name, _json_type(f.type)) for f in fields])
        case Array(element, _):
            return pa.list_(pa.field("element", _json_type(element)))
        case Primitive("date" | "timestamp_ntz"):
            return pa.string()
    return contract.to_arrow(type_)
