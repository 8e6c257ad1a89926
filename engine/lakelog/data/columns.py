"""Maps the columns of a data file to those of the table.

Columns, and the fields of structs at any depth, are found by name, by physical name or by field id,
as the table's column mapping requires. A column that the file lacks is null; a column that the
table lacks is not read. The leaves that are read, and their conversions, depend on the file's
schema alone, so they are computed once for all files with one schema.

A file may hold an older, narrower type (type widening), another unit of time, or another layout of
the same values (dictionary, large, view). Any other type is refused.

Source: Delta protocol, Reader Requirements for Column Mapping; Type Widening; Consistency Between
Table Metadata and Data Files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakelog.arrow_arrays import as_lists
from lakelog.dialects.legacy_calendar import Calendar
from lakelog.errors import CorruptionError, UnsupportedFeatureError
from lakelog.model import contract

FIELD_ID = b"PARQUET:field_id"
_HINT = "the file was written for another table, or its writer violated the protocol"


@dataclass(frozen=True)
class Columns:
    """How the columns of files of one schema become the table's: the `leaves` to read, ascending;
    each column's position in a batch of them and its conversion (None where the file lacks it); the
    leaf of each column that needs no conversion; and the physical paths of missing columns and
    fields.
    """

    leaves: tuple[int, ...]
    found: tuple[tuple[int, Convert | None] | None, ...]
    plain: Mapping[str, int]
    absent: tuple[tuple[str, ...], ...]
    _fields: tuple[pa.Field, ...]

    @staticmethod
    def of(
        schema: pa.Schema,
        fields: Sequence[contract.Field],
        mapping: str,
        calendar: Calendar = Calendar(),  # noqa: B008 - it is immutable
    ) -> Columns:
        """The columns of a file with this schema and calendar."""
        if mapping == "id" and fields and not any(FIELD_ID in (f.metadata or {}) for f in schema):
            raise CorruptionError(
                "the table maps columns by field id, and a data file has no field ids",
                expected="a field_id for each column",
                hint=_HINT,
            )
        rules = _Rules(mapping, calendar)
        children = _children(schema, 0)
        matches = [_match(children, field, rules, field.name) for field in fields]
        resolved = [
            None if m is None else _resolve(m.field.type, m.first_leaf, f.type, rules, f.name)
            for f, m in zip(fields, matches, strict=True)
        ]
        used = sorted({m.first_leaf for m in matches if m is not None})
        positions = {first: position for position, first in enumerate(used)}
        leaves = {leaf for r in resolved if r is not None for leaf in r.leaves}
        return Columns(
            tuple(sorted(leaves)),
            tuple(
                None if m is None or r is None else (positions[m.first_leaf], r.convert)
                for m, r in zip(matches, resolved, strict=True)
            ),
            {
                f.name: m.first_leaf
                for f, m, r in zip(fields, matches, resolved, strict=True)
                if m is not None and r == _Resolved((m.first_leaf,), None)
            },
            _absent(children, fields, rules),
            tuple(
                pa.field(f.name, contract.to_arrow(f.type), f.nullable or _is_void(f.type))
                for f in fields
            ),
        )

    def convert(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The table's columns from a batch of `leaves`."""
        arrays: list[pa.Array] = []
        for field, found in zip(self._fields, self.found, strict=True):
            if found is None:
                array = pa.nulls(batch.num_rows, field.type)
            else:
                position, convert = found
                array = batch.column(position)
                if convert is not None:
                    array = convert(array)
            require_values(array, field)
            arrays.append(array)
        return arrays


def require_values(array: pa.Array, field: pa.Field, parent: pa.Array | None = None) -> None:
    """Refuse nulls of a field that may not be null."""
    if field.nullable or not array.null_count:
        return
    if parent is not None and not pc.any(pc.and_(array.is_null(), parent.is_valid())).as_py():
        return
    raise CorruptionError(
        f"the column {field.name!r} is NOT NULL, and a data file contains nulls",
        expected="NOT NULL",
        found="null",
        hint=_HINT,
    )


@dataclass(frozen=True)
class _Rules:
    """The column mapping mode, and the file's calendar."""

    mapping: str
    calendar: Calendar


@dataclass(frozen=True)
class _Child:
    """A field of the file, where its leaves begin, and its position among its siblings."""

    field: pa.Field
    first_leaf: int
    position: int


@dataclass(frozen=True)
class _Children:
    """Siblings by field id, by name, and by name in lower case: so a file with thousands of
    columns is matched in linear time.
    """

    by_id: dict[bytes | None, list[_Child]]
    by_name: dict[str, list[_Child]]
    by_lower: dict[str, list[_Child]]


@dataclass(frozen=True)
class _Resolved:
    """The leaves that a column needs, and the conversion after only these are read."""

    leaves: tuple[int, ...]
    convert: Convert | None


def _is_void(type_: contract.DataType) -> bool:
    return bool(pa.types.is_null(contract.to_arrow(type_)))


def _children(fields: Iterable[pa.Field], first_leaf: int) -> _Children:
    children = _Children({}, {}, {})
    for position, field in enumerate(fields):
        child = _Child(field, first_leaf, position)
        children.by_id.setdefault((field.metadata or {}).get(FIELD_ID), []).append(child)
        children.by_name.setdefault(field.name, []).append(child)
        children.by_lower.setdefault(field.name.lower(), []).append(child)
        first_leaf += _leaf_count(field.type)
    return children


def _leaf_count(type_: pa.DataType) -> int:
    if isinstance(type_, pa.BaseExtensionType):
        return _leaf_count(type_.storage_type)
    if type_.num_fields and not pa.types.is_dictionary(type_):
        return sum(_leaf_count(type_.field(i).type) for i in range(type_.num_fields))
    return 1


def _match(children: _Children, field: contract.Field, rules: _Rules, name: str) -> _Child | None:
    if rules.mapping == "id" and contract.COLUMN_ID in field.metadata:
        found = children.by_id.get(str(field.metadata.get(contract.COLUMN_ID)).encode(), [])
    else:
        key = contract.physical_name(field, rules.mapping)
        # A table's names differ case-insensitively, so the second is unambiguous.
        found = children.by_name.get(key) or children.by_lower.get(key.lower(), [])
    if len(found) > 1:
        raise CorruptionError(
            f"several columns of a data file match {name!r}",
            expected="one",
            found=", ".join(c.field.name for c in found),
            hint=_HINT,
        )
    return found[0] if found else None


def _absent(
    children: _Children, fields: Sequence[contract.Field], rules: _Rules
) -> tuple[tuple[str, ...], ...]:
    """Physical paths of the fields without a match, also inside structs."""
    found: list[tuple[str, ...]] = []
    for field in fields:
        name = contract.physical_name(field, rules.mapping)
        match = _match(children, field, rules, field.name)
        if match is None:
            found += [] if _is_void(field.type) else [(name,)]
        elif isinstance(field.type, contract.Struct) and pa.types.is_struct(match.field.type):
            source = match.field.type
            inner = _children([source.field(i) for i in range(source.num_fields)], 0)
            found += [(name, *path) for path in _absent(inner, field.type.fields, rules)]
    return tuple(found)


def _resolve(
    source: pa.DataType, first_leaf: int, target: contract.DataType, rules: _Rules, name: str
) -> _Resolved:
    if target == contract.VARIANT:
        _require_unshredded(source, name)
        target = contract.stored(target)
    if isinstance(source, pa.BaseExtensionType) and not isinstance(target, contract.Primitive):
        inner = _resolve(source.storage_type, first_leaf, target, rules, name)
        return _Resolved(inner.leaves, lambda a: _apply(inner.convert, a.storage))
    if pa.types.is_null(source) and contract.is_nested(target):  # a file with nulls only
        wanted = contract.to_arrow(target)
        return _Resolved((first_leaf,), lambda a: pa.nulls(len(a), wanted))
    match target:
        case contract.Struct():
            return _resolve_struct(source, first_leaf, target, rules, name)
        case contract.Array():
            return _resolve_list(source, first_leaf, target, rules, name)
        case contract.Map():
            return _resolve_map(source, first_leaf, target, rules, name)
        case _:
            if not _is_void(target) and source.num_fields and not pa.types.is_dictionary(source):
                raise mismatch(name, target, source)
            return _Resolved((first_leaf,), _leaf(source, target, rules, name))


def _require_unshredded(source: pa.DataType, name: str) -> None:
    """Refuse variants with parts of their values in typed columns (Parquet, VariantShredding)."""
    layout = source.storage_type if isinstance(source, pa.BaseExtensionType) else source
    if pa.types.is_struct(layout) and layout.get_field_index("typed_value") >= 0:
        raise UnsupportedFeatureError(
            f"the column {name!r} has shredded variants in a data file",
            expected="the fields value and metadata",
            found=str(layout),
            hint="select other columns, or rewrite the file without shredding",
        )


def _leaf(
    source: pa.DataType, target: contract.DataType, rules: _Rules, name: str
) -> Convert | None:
    convert = _leaf_cast(source, target, name)
    calendar = rules.calendar
    if calendar.is_old and pa.types.is_date(source):
        return lambda array: _apply(convert, calendar.rebased(source, array))
    # Types without a zone are newer than the writers of the Julian calendar.
    has_zone = target != contract.Primitive("timestamp_ntz")
    if calendar.is_old and pa.types.is_timestamp(source) and has_zone:
        return lambda array: calendar.rebased(source, _apply(convert, array))
    return convert


def _apply(convert: Convert | None, array: pa.Array) -> pa.Array:
    return array if convert is None else convert(array)


def _resolve_struct(
    source: pa.DataType, first_leaf: int, target: contract.Struct, rules: _Rules, name: str
) -> _Resolved:
    if not pa.types.is_struct(source):
        raise mismatch(name, target, source)
    wanted = contract.to_arrow(target)
    children = _children([source.field(i) for i in range(source.num_fields)], first_leaf)
    matches = [_match(children, f, rules, f"{name}.{f.name}") for f in target.fields]
    resolved = [
        None
        if m is None
        else _resolve(m.field.type, m.first_leaf, f.type, rules, f"{name}.{f.name}")
        for f, m in zip(target.fields, matches, strict=True)
    ]
    leaves = {leaf for r in resolved if r is not None for leaf in r.leaves}
    if not leaves:
        leaves = {first_leaf}  # any leaf shows whether the struct itself is null
    used = sorted({m.position for m in matches if m is not None})
    positions = {position: index for index, position in enumerate(used)}
    found = [
        None if m is None or r is None else (positions[m.position], r.convert)
        for m, r in zip(matches, resolved, strict=True)
    ]
    straight = [(index, None) for index in range(len(target.fields))]
    # If leaves were omitted, the struct would be read with another type.
    if found == straight and len(used) == source.num_fields and source == wanted:
        return _Resolved(tuple(sorted(leaves)), None)

    def convert(array: pa.Array) -> pa.Array:
        mask = array.is_null() if array.null_count else None
        parts = []
        for index, each in enumerate(found):
            field = wanted.field(index)
            part = (
                pa.nulls(len(array), field.type)
                if each is None
                else _apply(each[1], array.field(each[0]))
            )
            require_values(part, field, array)
            parts.append(part)
        return pa.StructArray.from_arrays(
            parts, fields=[wanted.field(i) for i in range(wanted.num_fields)], mask=mask
        )

    return _Resolved(tuple(sorted(leaves)), convert)


def _resolve_list(
    source: pa.DataType, first_leaf: int, target: contract.Array, rules: _Rules, name: str
) -> _Resolved:
    if not contract.is_list(source):
        raise mismatch(name, target, source)
    wanted = contract.to_arrow(target)
    inner = _resolve(source.value_type, first_leaf, target.element, rules, f"{name}.element")
    plain = pa.types.is_list(source)
    if inner.convert is None and source == wanted:
        return inner

    def convert(array: pa.Array) -> pa.Array:
        if not plain:
            array = as_lists(array, pa.list_(array.type.value_field))
        values = _apply(inner.convert, array.values)
        _require_elements(values, array, wanted.value_field, name)
        return _rebuilt(array, wanted, values)

    return _Resolved(inner.leaves, convert)


def _resolve_map(
    source: pa.DataType, first_leaf: int, target: contract.Map, rules: _Rules, name: str
) -> _Resolved:
    wanted = contract.to_arrow(target)
    if not pa.types.is_map(source) or not pa.types.is_map(wanted):
        raise mismatch(name, target, source)
    key_leaves = _leaf_count(source.key_type)
    keys = _resolve(source.key_type, first_leaf, target.key, rules, f"{name}.key")
    first_value = first_leaf + key_leaves
    values = _resolve(source.item_type, first_value, target.value, rules, f"{name}.value")
    leaves = tuple(sorted((*keys.leaves, *values.leaves)))
    if keys.convert is None and values.convert is None and source == wanted:
        return _Resolved(leaves, None)

    def convert(array: pa.Array) -> pa.Array:
        new_keys = _apply(keys.convert, array.keys)
        new_values = _apply(values.convert, array.items)
        _require_elements(new_values, array, wanted.item_field, name)
        entries = pa.StructArray.from_arrays(
            [new_keys, new_values], fields=[wanted.key_field, wanted.item_field]
        )
        return _rebuilt(array, wanted, entries)

    return _Resolved(leaves, convert)


def _require_elements(values: pa.Array, array: pa.Array, field: pa.Field, name: str) -> None:
    """As `require_values`, for elements of lists; those outside of all lists may be null."""
    if field.nullable or not values.null_count:
        return
    shown = array.flatten() if not pa.types.is_map(array.type) else array.items
    require_values(shown, field.with_name(f"{name}.{field.name}"))


def _rebuilt(array: pa.Array, wanted: pa.DataType, child: pa.Array) -> pa.Array:
    """The same lists or maps with other elements; nothing is copied."""
    return pa.Array.from_buffers(
        wanted, len(array), array.buffers()[:2], array.null_count, array.offset, [child]
    )


Convert = Callable[[pa.Array], pa.Array]

_MICROSECONDS = pa.timestamp("us")
_UTC = pa.timestamp("us", "UTC")


def _leaf_cast(source: pa.DataType, target: contract.DataType, name: str) -> Convert | None:
    """The conversion from a file's type to a column's primitive type."""
    wanted = contract.to_arrow(target)
    if pa.types.is_null(wanted) or pa.types.is_null(source):
        return lambda array: pa.nulls(len(array), wanted)
    if source == wanted:
        return None
    if isinstance(source, pa.BaseExtensionType):
        inner = _leaf_cast(source.storage_type, target, name)
        return lambda array: array.storage if inner is None else inner(array.storage)
    if pa.types.is_dictionary(source):
        values = _leaf_cast(source.value_type, target, name)
        return lambda array: _decoded(array, values)
    if not _fits(source, wanted):
        raise mismatch(name, target, source)
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(source) and source.unit == "ns":
        return lambda array: _floored(array).cast(wanted)
    return lambda array: array.cast(wanted)


def mismatch(name: str, target: contract.DataType, source: pa.DataType) -> CorruptionError:
    """The error for a file's column of a type that the table's never was."""
    return CorruptionError(
        f"a data file's column {name!r} has another type than the table's column",
        expected=contract.type_text(target),
        found=str(source),
        hint="the file was written for another table, or its writer violated the protocol",
    )


def _decoded(array: pa.Array, inner: Convert | None) -> pa.Array:
    values = array.dictionary_decode()
    return values if inner is None else inner(values)


def _floored(array: pa.Array) -> pa.Array:
    """Nanoseconds rounded down to microseconds; a cast alone would round towards 1970."""
    plain = array.cast(pa.timestamp("ns"))
    return pc.floor_temporal(plain, unit="microsecond").cast(_MICROSECONDS)


def _fits(source: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a value of `source` may be one of `wanted`; the cast then checks each."""
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
        # Without a zone: INT96, and instants in UTC of older writers.
        return bool(types.is_timestamp(source))
    if wanted == _MICROSECONDS:
        return bool(types.is_date(source) or (types.is_timestamp(source) and source.tz is None))
    if types.is_string(wanted) or types.is_binary(wanted):
        return bool(_is_bytes(source))  # the cast rejects invalid UTF-8
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
