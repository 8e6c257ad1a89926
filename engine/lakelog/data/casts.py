"""Lossless casts from the types of a data file to those of the table; all others are refused.

A file may hold an older, narrower type (type widening), another unit of time, or another layout of
the same values (dictionary, large, view). Anything else is not the table's column.

Source: Delta protocol, Consistency Between Table Metadata and Data Files; Type Widening.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.errors import CorruptionError
from lakelog.model import contract

Convert = Callable[[pa.Array], pa.Array]

_MICROSECONDS = pa.timestamp("us")
_UTC = pa.timestamp("us", "UTC")


def leaf_cast(source: pa.DataType, target: contract.DataType, name: str) -> Convert | None:
    """What turns arrays of a file's type into those of a column's primitive type."""
    wanted = contract.to_arrow(target)
    if pa.types.is_null(wanted) or pa.types.is_null(source):
        return lambda array: pa.nulls(len(array), wanted)
    if source == wanted:
        return None
    if isinstance(source, pa.BaseExtensionType):
        inner = leaf_cast(source.storage_type, target, name)
        return lambda array: array.storage if inner is None else inner(array.storage)
    if pa.types.is_dictionary(source):
        values = leaf_cast(source.value_type, target, name)
        return lambda array: _decoded(array, values)
    if not _fits(source, wanted):
        raise mismatch(name, target, source)
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(source) and source.unit == "ns":
        return lambda array: _floored(array).cast(wanted)
    return lambda array: array.cast(wanted)


def mismatch(name: str, target: contract.DataType, source: pa.DataType) -> CorruptionError:
    """The error of a file whose column is of a type that the table's cannot have been."""
    return CorruptionError(
        f"a data file's column {name!r} has another type than the table's column",
        expected=str(contract.to_json(target)),
        found=str(source),
        hint="the file was written for another table, or its writer violated the protocol",
    )


def _decoded(array: pa.Array, inner: Convert | None) -> pa.Array:
    values = array.dictionary_decode()
    return values if inner is None else inner(values)


def _floored(array: pa.Array) -> pa.Array:
    """Nanoseconds as the microsecond that they are in; a cast alone would go towards 1970."""
    plain = array.cast(pa.timestamp("ns"))
    return pc.floor_temporal(plain, unit="microsecond").cast(_MICROSECONDS)


def _fits(source: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a value of `source` may be one of `wanted`; the cast then looks at each."""
    types = pa.types
    if types.is_integer(wanted):
        return bool(types.is_integer(source))
    if types.is_float32(wanted):
        return bool(types.is_float16(source))
    if types.is_float64(wanted):
        narrow = types.is_integer(source) and source.bit_width <= 32  # exact in a double
        return bool(narrow or types.is_floating(source))
    if types.is_decimal(wanted):
        return bool(types.is_decimal(source) or types.is_integer(source))
    if types.is_date(wanted):
        return bool(types.is_date(source))
    if wanted == _UTC:
        # Without a zone: INT96, and what writers of old made of instants in UTC.
        return bool(types.is_timestamp(source))
    if wanted == _MICROSECONDS:
        return bool(types.is_date(source) or (types.is_timestamp(source) and source.tz is None))
    if types.is_string(wanted) or types.is_binary(wanted):
        return bool(_is_bytes(source))  # what is not UTF-8 fails in the cast
    return False


def _is_bytes(source: pa.DataType) -> bool:
    types = pa.types
    kinds = (
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        types.is_binary,
        types.is_large_binary,
        types.is_binary_view,
        types.is_fixed_size_binary,
    )
    return any(kind(source) for kind in kinds) and not types.is_decimal(source)
