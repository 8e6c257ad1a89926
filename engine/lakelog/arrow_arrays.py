"""Arrow arrays from Python values, and from and to numpy without pandas. Arrow's own conversions of
numpy import pandas if it is installed, which takes a quarter of a second in every process.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Data = TypeVar("_Data", "pa.Array", "pa.ChunkedArray")


def array_of(type_: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    """Numbers as an Arrow array whose values have the same bytes, without a copy."""
    contiguous = np.ascontiguousarray(values)
    return pa.Array.from_buffers(type_, len(contiguous), [None, pa.py_buffer(contiguous)])


def as_int64(values: npt.NDArray[Any]) -> pa.Array:
    """Whole numbers as an Arrow array, without a copy for int64."""
    return array_of(pa.int64(), np.ascontiguousarray(values, np.int64))


def as_mask(which: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """Booleans as an Arrow array."""
    packed = pa.py_buffer(np.packbits(which, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(which), [None, packed])


def numbers_of(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Numbers without nulls, without a copy if they are in one chunk."""
    import polars as pl  # imported here, because a write-ahead log does not need it

    return pl.Series(column).to_numpy()


def valid_mask(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values are not null."""
    buffer = column.buffers()[0]
    if buffer is None or not column.null_count:
        return np.full(len(column), not column.null_count)
    byte, first = divmod(column.offset, 8)  # without unpacking the bits before a slice
    bits = np.frombuffer(buffer, np.uint8, offset=byte)
    bits = np.unpackbits(bits, count=first + len(column), bitorder="little")
    return bits[first:].view(np.bool_)


def from_python(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Python values in their own types; dicts and lists of pairs are maps if `type_` is one, NaT
    and NA of pandas are null, and floats are rounded where it has 32 bits, as Python has no others.

    Raises ArrowException, TypeError, ValueError and OverflowError for values of no common type, and
    for times with nanoseconds, which Arrow would cut.
    """
    if not pa.types.is_map(type_):
        try:
            array = pa.array(values)
        except (pa.ArrowException, ValueError):
            plain = [without_missing(value) for value in values]
            if all(map(operator.is_, plain, values)):
                raise
            array, values = pa.array(plain), plain
        if "timestamp" in str(array.type) and any(map(_has_nanoseconds, values)):
            raise ValueError("a time has nanoseconds, beyond microseconds")
        return _with_floats(array, type_)
    starts: list[int | None] = []
    keys: list[Any] = []
    items: list[Any] = []
    for value in map(without_missing, values):
        starts.append(None if value is None else len(keys))
        pairs = list(value.items() if isinstance(value, Mapping) else value or ())
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a map has a key twice")
        keys += [key for key, _ in pairs]
        items += [item for _, item in pairs]
    return pa.MapArray.from_arrays(
        pa.array([*starts, len(keys)], pa.int32()),
        from_python(keys, type_.key_type) if keys else pa.array([], type_.key_type),
        from_python(items, type_.item_type),
    )


def _with_floats(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """The array with doubles rounded where a type has 32 bits, except for those that are too large:
    they keep their type, and the column refuses them.
    """
    import pyarrow.compute as pc

    own = array.type
    if pa.types.is_float64(own) and pa.types.is_float32(type_):
        rounded = array.cast(type_)
        is_too_large = pc.and_(pc.is_inf(rounded), pc.invert(pc.is_inf(array)))
        return array if pc.any(is_too_large).as_py() else rounded
    if pa.types.is_list(own) and (pa.types.is_list(type_) or pa.types.is_large_list(type_)):
        values = _with_floats(array.values, type_.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, mask=array.is_null())
    if pa.types.is_struct(own) and own.num_fields and pa.types.is_struct(type_):
        known = {field.name: field.type for field in type_}
        fields = [
            _with_floats(array.field(at), known.get(field.name, field.type))
            for at, field in enumerate(own)
        ]
        names = [field.name for field in own]
        return pa.StructArray.from_arrays(fields, names, mask=array.is_null())
    return array


def without_missing(value: Any) -> Any:
    """A value with None in place of NaT and NA of pandas, also inside lists and dicts."""
    if type(value) in (list, tuple):
        inner = [without_missing(each) for each in value]
        return value if all(map(operator.is_, inner, value)) else inner
    if type(value) is dict:
        found = {key: without_missing(each) for key, each in value.items()}
        return value if all(found[key] is value[key] for key in value) else found
    is_missing = type(value).__name__ in {"NaTType", "NAType"}
    return None if is_missing and type(value).__module__.startswith("pandas.") else value


def _has_nanoseconds(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return any(map(_has_nanoseconds, value))
    return bool(getattr(value, "nanosecond", 0))  # of pandas.Timestamp


def as_lists(lists: pa.Array, type_: pa.DataType) -> pa.Array:
    """Lists of any layout as lists or large lists of the same elements. Arrow's own cast gives list
    views wrong offsets, and refuses nulls of a required field under a struct that is null.
    """
    import pyarrow.compute as pc

    if pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type):
        offsets, values = lists.offsets, lists.values
    else:
        lengths = numbers_of(pc.fill_null(pc.list_value_length(lists), 0))
        offsets, values = as_int64(np.concatenate([[0], np.cumsum(lengths)])), lists.flatten()
    large = pa.types.is_large_list(type_)
    kind, width = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
    nulls = lists.is_null() if lists.null_count else None
    return kind.from_arrays(offsets.cast(width), values, type=type_, mask=nulls)


def retyped(data: _Data, type_: pa.DataType) -> _Data:
    """The same memory under a type of the same layout, with other names, metadata or nullability at
    any depth. Arrow's cast refuses nulls of a required field under a struct that is null.
    """
    if data.type.equals(type_, check_metadata=True):
        return data
    if isinstance(data, pa.ChunkedArray):
        return pa.chunked_array([retyped(chunk, type_) for chunk in data.chunks], type_)
    return pa.array(_Retyped(data, type_))


def renamed(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """An array whose struct fields have other names, without void fields; no value is copied."""
    if array.type.equals(type_) or not pa.types.is_nested(type_):
        return array
    nulls = nulls_of(array)
    if pa.types.is_struct(type_):
        fields = [type_.field(index) for index in range(type_.num_fields)]
        own = (n for n in range(array.type.num_fields) if not pa.types.is_null(array.type[n].type))
        children = [renamed(array.field(n), f.type) for n, f in zip(own, fields, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
    if array.offset:
        array = unsliced(array)
    if pa.types.is_map(type_):
        keys, items = renamed(array.keys, type_.key_type), renamed(array.items, type_.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=type_, mask=nulls)
    values = renamed(array.values, type_.value_type)
    return pa.LargeListArray.from_arrays(array.offsets, values, type=type_, mask=nulls)


def unsliced(array: pa.Array) -> pa.Array:
    """The array from offset 0, as masks of nested arrays need it, and nothing but its values."""
    return pa.concat_arrays([array, array[:0]])


def nulls_of(array: pa.Array) -> pa.Array | None:
    """Which values are null; None if none is."""
    return array.is_null() if array.null_count else None


@dataclass(frozen=True)
class _Retyped:
    array: pa.Array
    type_: pa.DataType

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.type_.__arrow_c_schema__(), self.array.__arrow_c_array__()[1]
