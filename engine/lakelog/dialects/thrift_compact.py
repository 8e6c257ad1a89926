"""Reads and writes structs of Thrift's compact protocol, in which Parquet footers are encoded.

A struct is read one level deep: its fields keep their encoded values, so that unchanged fields,
including unknown ones, are written unchanged. Lengths are checked against the data.

Source: Apache Thrift, Thrift Compact protocol encoding. Apache Parquet, parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

_TRUE, _FALSE, _I8, _I16, _I32, I64, _DOUBLE, BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)
_FIXED = {_TRUE: 0, _FALSE: 0, _I8: 1, _DOUBLE: 8}
_NUMBERS = (_I16, _I32, I64)
_LONG_LIST = 15
_MAX_DEPTH, _MAX_BITS = 32, 64
_SHIFT, _MORE = 7, 0x80


class Value(NamedTuple):
    """A field of a struct: its type, and its encoded value."""

    type: int
    data: bytes


def read_struct(data: bytes) -> dict[int, Value]:
    """The fields of a struct by their ids; a struct that is cut short raises ValueError."""
    fields, _ = _fields(data, 0, 0)
    return fields


def write_struct(fields: Mapping[int, Value]) -> bytes:
    """The struct with these fields."""
    parts = []
    last = 0
    for number, value in sorted(fields.items()):
        step = number - last
        short = 0 < step <= _LONG_LIST
        parts.append(bytes([(step << 4 if short else 0) | value.type]))
        parts += [value.data] if short else [write_number(number).data, value.data]
        last = number
    return b"".join([*parts, b"\0"])


def read_list(value: Value) -> list[bytes]:
    """The encoded elements of a list."""
    if value.type != LIST:
        raise ValueError("a field is not a list")
    type_, count, at = _list_head(value.data, 0)
    items = []
    for _ in range(count):
        end = _skip(value.data, at, type_, 0, is_element=True)
        items.append(value.data[at:end])
        at = end
    return items


def write_list(items: Iterable[bytes]) -> Value:
    """A list of encoded structs."""
    items = list(items)
    if len(items) < _LONG_LIST:
        head = bytes([len(items) << 4 | STRUCT])
    else:
        head = bytes([_LONG_LIST << 4 | STRUCT]) + _varint(len(items))
    return Value(LIST, head + b"".join(items))


def read_number(value: Value | None) -> int:
    """A whole number; 0 for a field that is missing."""
    if value is None:
        return 0
    if value.type not in _NUMBERS:
        raise ValueError("a field is not a number")
    number, _ = _read_varint(value.data, 0)
    return number >> 1 ^ -(number & 1)


def write_number(number: int, type_: int = I64) -> Value:
    """A whole number."""
    return Value(type_, _varint(number << 1 ^ (number >> _MAX_BITS)))


def read_binary(value: Value | None) -> bytes:
    """Bytes, or a text in UTF-8; empty for a field that is missing."""
    if value is None:
        return b""
    if value.type != BINARY:
        raise ValueError("a field is not binary")
    _, start = _read_varint(value.data, 0)
    return value.data[start:]


def _fields(data: bytes, at: int, depth: int) -> tuple[dict[int, Value], int]:
    """The fields of a struct that begins at an offset, and its end."""
    fields: dict[int, Value] = {}
    number = 0
    while True:
        head = _byte(data, at)
        at += 1
        if not head:
            return fields, at
        type_ = head & 0x0F
        if head >> 4:
            number += head >> 4
        else:
            coded, at = _read_varint(data, at)
            number = coded >> 1 ^ -(coded & 1)
        end = _skip(data, at, type_, depth)
        fields[number] = Value(type_, data[at:end])
        at = end


def _skip(data: bytes, at: int, type_: int, depth: int, *, is_element: bool = False) -> int:
    """The end of a value that begins at an offset."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"structs are nested more than {_MAX_DEPTH} deep")
    if type_ in _FIXED:
        # A Boolean field has its value in its type, an element of a list a byte of its own.
        at += _FIXED[type_] or int(is_element)
    elif type_ in _NUMBERS:
        _, at = _read_varint(data, at)
    elif type_ == BINARY:
        length, at = _read_varint(data, at)
        at += length
    elif type_ in {LIST, _SET}:
        element, count, at = _list_head(data, at)
        for _ in range(count):
            at = _skip(data, at, element, depth + 1, is_element=True)
    elif type_ == _MAP:
        count, at = _read_varint(data, at)
        kinds = _byte(data, at) if count else 0
        at += bool(count)
        _require_room(data, at, count)
        for _ in range(count):
            at = _skip(data, at, kinds >> 4, depth + 1, is_element=True)
            at = _skip(data, at, kinds & 0x0F, depth + 1, is_element=True)
    elif type_ == STRUCT:
        _, at = _fields(data, at, depth + 1)
    else:
        raise ValueError(f"unknown type {type_}")
    _require_room(data, at, 0)
    return at


def _list_head(data: bytes, at: int) -> tuple[int, int, int]:
    """Type and number of the elements of a list, and the offset of the first."""
    head = _byte(data, at)
    at += 1
    count = head >> 4
    if count == _LONG_LIST:
        count, at = _read_varint(data, at)
    _require_room(data, at, count)  # an element has a byte at least
    return head & 0x0F, count, at


def _byte(data: bytes, at: int) -> int:
    _require_room(data, at, 1)
    return data[at]


def _require_room(data: bytes, at: int, length: int) -> None:
    if at + length > len(data):
        raise ValueError("the data is cut short")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = _byte(data, at)
        at += 1
        number |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return number, at
        shift += _SHIFT
        if shift > _MAX_BITS:
            raise ValueError("a number has more than 64 bits")


def _varint(number: int) -> bytes:
    """A number from 0 on, seven bits a byte, the last ones first."""
    out = bytearray()
    while number >= _MORE:
        out.append(number & 0x7F | _MORE)
        number >>= _SHIFT
    out.append(number)
    return bytes(out)
