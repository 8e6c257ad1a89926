"""Rows of a caller, in any supported form, converted to the table's schema, or refused.

Columns are matched by name. A missing column gets its default, the value of its expression if it is
generated, else null; a column that the table lacks is an error, or is added to the table's schema
(`merged_schema`). Types are changed only if no value changes: whole numbers that fit, decimals that
keep every digit, times of another unit or zone at the same instant, dates as midnight without a
zone. Dictionaries, run-end encoded columns, views and extension types are stored as the values that
they represent. Whole columns are converted and checked.

An empty text or binary value of a partition column becomes null here, before any condition is
evaluated: the log has one spelling for both.

The schema of data files has physical names and, if columns are mapped, their ids. All fields are
nullable in Parquet, as Delta writes them: nulls are checked before. Texts, bytes and lists have
wide offsets, so that no chunk is too long; the files are the same.

Source: Delta protocol, Default Columns; Schema Serialization Format; Partition Value Serialization;
Writer Requirements for Column Mapping. Delta Lake, schema evolution on write (``mergeSchema``).
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.arrow_arrays import as_int64, as_lists, nulls_of, numbers_of, unsliced
from lakelog.data.columns import FIELD_ID
from lakelog.data.pandas_frames import OF_INDEX, WITHOUT_INDEX, is_pandas, of_pandas
from lakelog.data.row_rules import IdentityValues, RowRules, default_value
from lakelog.display import path_text
from lakelog.errors import InvalidInputError, LakelogWarning, UnsupportedFeatureError
from lakelog.model import contract
from lakelog.model.contract import (
    Array,
    DataType,
    Decimal,
    Field,
    Map,
    Primitive,
    Struct,
    require_exportable,
    without_metadata,
)

_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class Incoming:
    """Rows to be written, which may be taken once; `again` is an object with the same rows, unless
    the caller's may be read only once too. A stream begins with a batch without rows, so that its
    columns are checked even if it has no other.
    """

    schema: pa.Schema
    batches: Iterator[Rows]
    again: pl.LazyFrame | Rows | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the rows can be taken only once."""
        return self.again is None

    @staticmethod
    def of(rows: Any) -> Incoming:
        """Rows of a caller; of a stream, one batch is in memory."""
        if isinstance(rows, Incoming):
            return rows
        if isinstance(rows, pl.LazyFrame):
            schema = rows.collect_schema()
            empty = pl.DataFrame(schema=schema)
            batches = rows.collect_batches(chunk_size=_BATCH_ROWS, lazy=True)
            return Incoming(_arrow_schema(empty), chain([empty], batches), rows)
        if isinstance(rows, pl.DataFrame):
            return Incoming(_arrow_schema(rows), iter([rows]), rows)
        if isinstance(rows, pa.Table | pa.RecordBatch):
            rows = without_metadata(rows)
            return Incoming(rows.schema, map(require_valid, [rows]), rows)
        if isinstance(rows, pa.RecordBatchReader):
            return Incoming._read(rows)
        if is_pandas(rows):
            table = of_pandas(rows)
            return Incoming(table.schema, map(require_valid, [table]), table)
        if hasattr(rows, "scanner"):  # a dataset of pyarrow
            rows = rows.scanner()
        try:
            if hasattr(rows, "__arrow_c_stream__"):
                return Incoming._read(pa.RecordBatchReader.from_stream(rows))
            if hasattr(rows, "to_reader"):
                return Incoming._read(rows.to_reader())
            if _is_batch(rows):
                return Incoming.of(pa.record_batch(rows))
            if isinstance(rows, list | tuple) and any(map(_is_batch, rows)):
                return Incoming.of(pa.Table.from_batches([pa.record_batch(each) for each in rows]))
        except (pa.ArrowInvalid, TypeError, ValueError) as cause:
            raise _not_rows(rows, str(cause)) from cause
        raise _not_rows(rows)

    def storable(self, others: Container[str]) -> Incoming:
        """The rows without columns of types that no table can have, unless `others` has them."""
        names = [f.name for f in self.schema if f.name in others or has_equivalent(f.type)]
        if len(names) == len(self.schema):
            return self
        schema = pa.schema([self.schema.field(name) for name in names])
        return Incoming(schema, (to_table(batch).select(names) for batch in self.batches))

    @staticmethod
    def _read(reader: pa.RecordBatchReader) -> Incoming:
        schema = contract.schema_without_metadata(reader.schema)
        batches = map(require_valid, map(without_metadata, reader))
        empty = pa.Table.from_batches([], schema)
        return Incoming(schema, chain([empty], batches))


def has_equivalent(type_: pa.DataType) -> bool:
    """Whether a table can have a column of an Arrow type."""
    try:
        contract.from_arrow(pa.schema([("", type_)]))
    except InvalidInputError:
        return False
    return True


def find_invalid(rows: pa.Table | pa.RecordBatch) -> tuple[str, str] | None:
    """A column with a value that its type does not allow, and why, or None: where data is made,
    Arrow does not check that text is UTF-8, that decimals fit their digits, nor nested columns.
    """
    for number, field in enumerate(rows.schema):
        if not pa.types.is_primitive(field.type):
            try:
                rows.column(number).validate(full=True)
            except pa.ArrowException as cause:
                return field.name, str(cause).split("\n", 1)[0]
    return None


def require_valid(rows: _ArrowRows) -> _ArrowRows:
    """The rows; InvalidInputError for what `find_invalid` finds."""
    if found := find_invalid(rows):
        name, why = found
        raise InvalidInputError(
            f"the column {name!r} has a value that its type does not allow",
            column=name,
            expected=f"values of {rows.schema.field(name).type}; text is UTF-8",
            found=why,
        )
    return rows


def _is_batch(rows: object) -> bool:
    return hasattr(rows, "__arrow_c_array__")


def _not_rows(rows: object, reason: str = "") -> InvalidInputError:
    return InvalidInputError(
        ": ".join(filter(None, ("invalid input: not a table of rows", reason))),
        expected="a Polars, pandas or Arrow frame, an Arrow reader, or a list of record batches",
        found=type(rows).__name__,
        hint=_as_rows(rows),
    )


def _as_rows(rows: object) -> str | None:
    """The next step for rows in another form."""
    match rows:
        case [pl.DataFrame() | pl.LazyFrame(), *_]:
            return "pass polars.concat(rows)"
        case [pa.Table() | pa.RecordBatch(), *_]:
            return "pass one table: pyarrow.concat_tables, with promote_options for other schemas"
        case list() | tuple() | dict():
            return "pass polars.DataFrame(rows)"
        case np.ndarray():
            return "pass polars.DataFrame(rows, schema=[the names of the columns])"
        case str() | bytes() | os.PathLike():
            return "pass the rows of the file, such as polars.scan_parquet(path)"
        case Iterator():
            return "pass pyarrow.RecordBatchReader.from_batches(schema, batches)"
    return "pass rows.to_frame()" if hasattr(rows, "to_frame") else None


def _arrow_schema(frame: pl.DataFrame) -> pa.Schema:
    require_exportable(frame.schema)
    return frame.clear().to_arrow(compat_level=pl.CompatLevel.oldest()).schema


_CHAR_VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
_LENGTH = re.compile(r"(?:var)?char\(\s*(\d+)\s*\)", re.IGNORECASE)

_ArrowRows = TypeVar("_ArrowRows", "pa.Table", "pa.RecordBatch")
Rows: TypeAlias = "pa.Table | pa.RecordBatch | pl.DataFrame"


def to_table(rows: Rows) -> pa.Table:
    """Rows as an Arrow table; values are shared where they can be."""
    if isinstance(rows, pl.DataFrame):
        require_exportable(rows.schema)
        return rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


def unknown_column(given: pa.Field, known: Struct) -> InvalidInputError:
    """The error for a column that a table lacks."""
    of_index = (given.metadata or {}).items() >= OF_INDEX.items()
    column, drop = (
        ("column of the frame's index", WITHOUT_INDEX) if of_index else ("column", "drop it")
    )
    return InvalidInputError(
        f"the table has no {column} {given.name!r}",
        column=given.name,
        expected=", ".join(known.names),
        found=given.name,
        hint=f'{drop}, or add it: schema_mode="merge" of Table.append and Table.merge does',
    )


class Conform:
    """Brings rows under a schema; with `rules`, computes and checks values of new rows. Of rows
    that the table may have, null structs with NOT NULL fields are kept unless they are `new`.
    """

    def __init__(
        self,
        columns: Sequence[Field],
        partition_columns: Sequence[str] = (),
        rules: RowRules | None = None,
        identities: IdentityValues | None = None,
        *,
        new: bool = False,
    ) -> None:
        self._is_new = new or rules is not None
        self._rules, self._identities = rules, identities
        self._now_us = time.time_ns() // 1000 if rules is None else rules.now_us
        generated = () if rules is None else rules.generated
        self._generated = frozenset(rule.column for rule in generated)
        self._automatic = frozenset(i.column for i in rules.identities) if rules else frozenset()
        self._columns = tuple(columns)
        self._partition_columns = frozenset(partition_columns)
        self._has_warned = False
        self._struct = Struct(self._columns)
        self.schema = pa.schema([wide_field(column) for column in columns])
        """Of what `table` gives: logical names, all nullable, wide offsets."""

    @property
    def numbers_rows(self) -> bool:
        """Whether rows get values of identity columns, in the order in which they are given."""
        return bool(self._automatic)

    def table(self, rows: Rows) -> pa.Table:
        """The rows in the schema, in their order.

        Warns:
            LakelogWarning: Once: an empty value of a partition column is stored as null.

        Memory: the columns whose types differ.
        """
        given = to_table(rows)
        positions = self._positions(given.schema)
        if self._rules is not None:
            self._rules.require_insertable(positions)
        columns = [
            self._missing(column, given.num_rows)
            if (position := positions.get(column.name)) is None
            else self._fitted(given.column(position), column)
            for column in self._columns
        ]
        table = pa.Table.from_arrays(columns, schema=self.schema)
        if self._rules is not None:
            table = self._ruled(table, self._rules, positions)
        if self._is_new:
            for values, column in zip(table.columns, self._columns, strict=True):
                _check_null_structs(values, column.type, (column.name,))
        return table

    def _ruled(self, table: pa.Table, rules: RowRules, given: Mapping[str, int]) -> pa.Table:
        """The rows with generated values, checked."""
        computed = [f for f in self._columns if f.name in self._generated and f.name not in given]
        table = rules.completed(table, [f.name for f in computed])
        for field in computed:
            position = table.column_names.index(field.name)
            values = self._fitted(table.column(position), field)
            table = table.set_column(position, table.schema.field(position), values)
        rules.check(table, [f.name for f in computed])
        return table

    def _positions(self, given: pa.Schema) -> dict[str, int]:
        found: dict[str, int] = {}
        for position, name in enumerate(given.names):
            column = self._struct.field(name)
            if column is None:
                raise unknown_column(given.field(position), self._struct)
            if column.name in found:
                raise InvalidInputError(
                    f"the column {column.name!r} occurs twice", column=column.name, found=name
                )
            found[column.name] = position
        return found

    def _fitted(self, values: pa.ChunkedArray, column: Field) -> pa.ChunkedArray:
        fitted = fit(values, column)
        if column.name in self._partition_columns and _is_texts(fitted.type):
            fitted = self._without_empty(fitted, column)
        _check(fitted, column, column.name)
        return fitted

    def _without_empty(self, values: pa.ChunkedArray, column: Field) -> pa.ChunkedArray:
        lengths = pc.binary_length(values)
        if pc.min(lengths).as_py() != 0:
            return values
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"empty values of the partition column {column.name!r} are stored as "
                "null: the Delta protocol encodes both the same way",
                LakelogWarning,
                stacklevel=2,
            )
        return pc.if_else(pc.equal(lengths, 0), pa.scalar(None, values.type), values)

    def _missing(self, column: Field, count: int) -> pa.ChunkedArray:
        if column.name in self._automatic:
            array = self._next(column, count)
        elif (value := _default(column, self._now_us)) is not None:
            array = pa.repeat(value, count)
        elif column.nullable or column.name in self._generated:
            array = pa.nulls(count, _wide_type(column.type))
        else:
            raise InvalidInputError(
                f"the column {column.name!r} is NOT NULL, and is missing", column=column.name
            )
        return pa.chunked_array([array])

    def _next(self, column: Field, count: int) -> pa.Array:
        if self._identities is not None:
            return self._identities.next(column.name, count)
        raise UnsupportedFeatureError(
            f"values of the identity column {column.name!r} cannot be generated by parallel tasks",
            column=column.name,
            expected="rows with values of the column",
            found="identityColumns",
            hint="use lakelog.Table.append",
        )


def _default(column: Field, now_us: int) -> pa.Scalar | None:
    """The default of a column; None where it is null."""
    if column.metadata.get(contract.CURRENT_DEFAULT) is None:
        return None
    value = default_value(column, now_us)
    return None if value is None else pa.scalar(value, _wide_type(column.type))


def fit(values: pa.ChunkedArray, column: Field) -> pa.ChunkedArray:
    """A column's values in the type of the table's column; errors as `Conform.table`, without those
    of nulls and lengths.
    """
    given, type_ = values.type, column.type
    if not (
        pa.types.is_null(given)
        or _is_encoded(given)
        or contract.is_nested(contract.stored(type_))
        or contract.is_opaque(type_)
    ):
        return _fit(values, type_, column.name)  # all chunks in one call
    chunks = [_fit(chunk, type_, column.name) for chunk in values.chunks]
    return pa.chunked_array(chunks, type=_wide_type(type_))


def _is_texts(type_: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(type_) or pa.types.is_large_binary(type_))


def _check(values: Any, column: Field, path: str) -> None:
    """Nulls and lengths that the column does not admit."""
    if not column.nullable and values.null_count:
        raise InvalidInputError(
            f"the column {path!r} is NOT NULL, and the data contains nulls",
            column=path,
            expected="no nulls",
            found=f"{values.null_count} nulls",
        )
    limit = _LENGTH.fullmatch(str(column.metadata.get(_CHAR_VARCHAR) or _name(column.type)))
    if limit is None:
        if "char(" in str(column.metadata.get(_CHAR_VARCHAR)) and values.null_count < len(values):
            raise UnsupportedFeatureError(
                f"the column {path!r} has texts of limited length inside, which are not checked",
                column=path,
                found=column.metadata[_CHAR_VARCHAR],
                hint="write this column with Spark, or omit it; its values will be null",
            )
        return
    longest = pc.max(pc.utf8_length(values)).as_py()
    if longest is not None and longest > int(limit[1]):
        raise InvalidInputError(
            f"a string of the column {path!r} is too long",
            column=path,
            expected=limit[0],
            found=f"{longest} characters",
        )


def _name(type_: DataType) -> str:
    return type_.name if isinstance(type_, Primitive) else ""


def _fit(array: pa.Array, type_: DataType, path: str) -> pa.Array:
    target = _wide_type(type_)
    if pa.types.is_null(array.type) or (
        contract.is_opaque(type_) and array.null_count == len(array)
    ):
        return pa.nulls(len(array), target)
    while _is_encoded(array.type):
        array = _decoded(array, type_, path)
    match type_:
        case Struct():
            return _fit_struct(array, type_, path)
        case Array():
            return _fit_list(array, type_, path)
        case Map():
            return _fit_map(array, type_, path)
        case contract.VARIANT:
            return _fit_variant(array, path)
    if array.type.equals(target) and not contract.is_opaque(type_):
        return array
    _require_kin(array.type, type_, path)
    try:
        return _cast(array, target)
    except pa.ArrowException as cause:
        raise InvalidInputError(
            f"a value of {path!r} cannot be cast to the table's type without loss",
            column=path,
            expected=contract.type_text(type_),
            found=str(cause).split("\n", 1)[0],
            hint="cast the column before the write if the loss is acceptable",
        ) from cause


def _is_encoded(type_: pa.DataType) -> bool:
    """Whether values of another type represent those of an Arrow type."""
    return (
        pa.types.is_dictionary(type_)
        or pa.types.is_run_end_encoded(type_)
        or isinstance(type_, pa.BaseExtensionType)
    )


def _decoded(array: pa.Array, type_: DataType, path: str) -> pa.Array:
    """The values of an encoded array."""
    if isinstance(array, pa.ExtensionArray):
        if array.type.extension_name == "pandas.period":
            raise InvalidInputError(
                f"the column {path!r} has periods of pandas, whose numbers alone have no meaning",
                column=path,
                expected="times or texts",
                found=str(array.type),
                hint="convert them with pandas: .dt.to_timestamp() or .astype(str)",
            )
        is_truth = array.type.extension_name == "arrow.bool8" and _name(type_) == "boolean"
        return array.storage.cast(pa.bool_()) if is_truth else array.storage
    if pa.types.is_run_end_encoded(array.type):
        # Arrow's own function does not decode all types, and nothing decodes one slice only.
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(numbers_of(array.run_ends), rows, side="right")
        array = pa.DictionaryArray.from_arrays(as_int64(runs), array.values)
    try:
        return array.dictionary_decode()
    except pa.ArrowNotImplementedError:  # of values with views
        values = _fit(array.dictionary, type_, path)
        return pa.DictionaryArray.from_arrays(array.indices, values).dictionary_decode()


def _require_kin(given: pa.DataType, type_: DataType, path: str) -> None:
    """Refuse a type whose values mean something else than the table's."""
    is_ = pa.types
    name = _name(type_)
    if contract.is_opaque(type_):
        raise UnsupportedFeatureError(
            f"the column {path!r} has a type that lakelog does not write: {name}",
            column=path,
            found=name,
            hint="omit the column; its values will be null"
            + (', or pass schema_mode="merge" to give it the type of the rows' * (name == "void")),
        )
    number = is_.is_integer(given) or is_.is_floating(given)
    if isinstance(type_, Decimal):
        kin = is_.is_integer(given) or is_.is_decimal(given)
    elif name in {"long", "integer", "short", "byte"}:
        kin = number or is_.is_decimal(given)
    elif name in {"float", "double"}:
        kin = number
    elif name == "boolean":
        kin = is_.is_boolean(given)
    elif name == "date":
        kin = is_.is_date(given)
    elif name in {"timestamp", "timestamp_ntz"}:
        kin = is_.is_timestamp(given) and (given.tz is None) == (name == "timestamp_ntz")
        kin = kin or (name == "timestamp_ntz" and is_.is_date(given))  # as Type Widening
    elif name == "binary":
        kin = is_.is_binary(given) or is_.is_large_binary(given) or is_.is_binary_view(given)
        kin = kin or is_.is_fixed_size_binary(given)
    else:
        kin = is_.is_string(given) or is_.is_large_string(given) or is_.is_string_view(given)
    if not kin:
        _refuse(given, type_, path)


_FROM_TEXT = {
    "date": ".str.to_date()",
    "timestamp": '.str.to_datetime(time_zone="UTC")',
    "timestamp_ntz": ".str.to_datetime()",
    "long": ".cast(pl.Int64)",
    "integer": ".cast(pl.Int32)",
    "double": ".cast(pl.Float64)",
}


def _refuse(given: pa.DataType, type_: DataType, path: str) -> NoReturn:
    hint = None
    if type_ == contract.VARIANT:
        hint = "pass a struct of the variant's encoded value and metadata, both binary"
    elif pa.types.is_timestamp(given) and _name(type_) in {"timestamp", "timestamp_ntz"}:
        hint = "set the time zone of the times, or remove it"
    elif isinstance(type_, contract.Decimal) and pa.types.is_floating(given):
        cast = f".cast(pl.Decimal({type_.precision}, {type_.scale}))"
        hint = f"pass values of decimal.Decimal, or, with Polars: pl.col({path!r}){cast}"
    elif "." not in path:
        name, cast = _name(type_), None
        if pa.types.is_string(given) or pa.types.is_large_string(given):
            cast = _FROM_TEXT.get(name, ".cast(...)")
        elif name == "string" and pa.types.is_primitive(given):
            cast = ".cast(pl.String)"
        elif name == "date" and pa.types.is_timestamp(given):
            cast = ".dt.date()"
        hint = cast and f"convert the values, with Polars: pl.col({path!r}){cast}"
    raise InvalidInputError(
        f"the column {path!r} has another type",
        column=path,
        expected=contract.type_text(type_),
        found=str(given),
        hint=hint,
    )


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(target) and pa.types.is_integer(array.type):
        # Arrow requires a precision that fits every number of the type, whatever the values.
        array = array.cast(pa.decimal128(20, 0))
    cast = array.cast(target)
    if pa.types.is_float32(target) and pa.types.is_float64(array.type):
        same = pc.or_(pc.equal(cast.cast(array.type), array), pc.is_nan(array))
        if not pc.all(same).as_py() and len(array) > array.null_count:
            raise pa.ArrowInvalid("a number has more digits than a float can represent")
    return cast


def _check_null_structs(values: pa.ChunkedArray, type_: DataType, path: tuple[str, ...]) -> None:
    """Refuse null structs that have NOT NULL fields, outside of lists and maps. Delta on Spark
    reads such a field as null, and could not write the row again.

    Source: Delta Lake, Invariants.getFromSchema, which does not go into lists and maps.
    """
    if not isinstance(type_, Struct) or (required := required_field(type_, path)) is None:
        return
    if values.null_count:
        name, struct = path_text(required), path_text(path)
        raise InvalidInputError(
            f"the column {name!r} is NOT NULL, and the struct {struct!r} around it is null",
            column=name,
            expected="no null structs, as Delta on Spark could not write these rows again",
            found=f"{values.null_count} nulls",
            hint="give a value, or allow nulls in the field: alter.set_nullable, or a nullable "
            "field in the schema of a new table",
        )
    for index, field in enumerate(type_.fields):
        _check_null_structs(pc.struct_field(values, [index]), field.type, (*path, field.name))


def required_field(type_: Struct, path: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """The path of the first NOT NULL field, outside of lists and maps."""
    for field in type_.fields:
        here = (*path, field.name)
        if not field.nullable:
            return here
        if isinstance(field.type, Struct) and (found := required_field(field.type, here)):
            return found
    return None


def _fit_struct(array: pa.Array, type_: Struct, path: str) -> pa.Array:
    if not pa.types.is_struct(array.type):
        _refuse(array.type, type_, path)
    given: dict[str, int] = {}
    for position in range(array.type.num_fields):
        name = array.type.field(position).name
        known = type_.field(name)
        if known is None or known.name in given:
            raise InvalidInputError(
                f"{path!r} has no field {name!r}" if known is None else f"{name!r} occurs twice",
                column=f"{path}.{name}",
                expected=", ".join(type_.names),
                found=name,
            )
        given[known.name] = position
    if not type_.fields:
        return array  # because Arrow makes an array without children one without rows
    children = []
    for field in type_.fields:
        here = f"{path}.{field.name}"
        if field.name in given:
            child = _fit(array.field(given[field.name]), field.type, here)
            # A field of a struct that is null is not a value.
            _check(child.filter(array.is_valid()) if array.null_count else child, field, here)
        else:
            if not field.nullable and len(array) > array.null_count:
                raise InvalidInputError(
                    f"the column {here!r} is NOT NULL, and is missing", column=here
                )
            child = pa.nulls(len(array), _wide_type(field.type))
        children.append(child)
    target = _wide_type(type_)
    fields = [target.field(i) for i in range(target.num_fields)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls_of(array))


def _fit_variant(array: pa.Array, path: str) -> pa.Array:
    type_ = contract.stored(contract.VARIANT)
    if not pa.types.is_struct(array.type):
        _refuse(array.type, contract.VARIANT, path)
    assert isinstance(type_, Struct)
    fitted = _fit_struct(array, type_, path)
    # Under nulls too, because Arrow writes no nulls of a field that is required.
    children = [pc.fill_null(child, b"") for child in fitted.flatten()]
    fields = list(_wide_type(contract.VARIANT))
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls_of(array))


def _fit_list(array: pa.Array, type_: Array, path: str) -> pa.Array:
    if not contract.is_list(array.type):
        _refuse(array.type, type_, path)
    array = unsliced(array)
    if not pa.types.is_large_list(array.type):
        array = as_lists(array, pa.large_list(array.type.value_field))
    here = f"{path}.element"
    values = _fit(array.values, type_.element, here)
    fitted = pa.LargeListArray.from_arrays(
        array.offsets, values, type=_wide_type(type_), mask=nulls_of(array)
    )
    element = Field("element", type_.element, type_.contains_null)
    if not element.nullable:
        _check(fitted.flatten(), element, here)
    return fitted


def _fit_map(array: pa.Array, type_: Map, path: str) -> pa.Array:
    if not pa.types.is_map(array.type):
        _refuse(array.type, type_, path)
    array = unsliced(array)
    keys = _fit(array.keys, type_.key, f"{path}.key")
    _check(keys, Field("key", type_.key, nullable=False), f"{path}.key")
    items = _fit(array.items, type_.value, f"{path}.value")
    _check(items, Field("value", type_.value, type_.value_contains_null), f"{path}.value")
    return pa.MapArray.from_arrays(
        array.offsets, keys, items, type=_wide_type(type_), mask=nulls_of(array)
    )


def given_part(type_: DataType, given: pa.DataType) -> DataType:
    """A type without the struct fields that an Arrow type lacks, at any depth; with void ones."""
    if isinstance(given, pa.BaseExtensionType):
        return given_part(type_, given.storage_type)
    if _is_encoded(given):
        return given_part(type_, given.value_type)
    match type_:
        case Struct(fields) if pa.types.is_struct(given):
            found = {each.name.lower(): each.type for each in given.fields}
            kept = ((f, found.get(f.name.lower())) for f in fields)
            return Struct(
                tuple(
                    field if own is None else replace(field, type=given_part(field.type, own))
                    for field, own in kept
                    if own is not None or field.type == contract.VOID
                )
            )
        case Array(element) if contract.is_list(given):
            return replace(type_, element=given_part(element, given.value_type))
        case Map(key, value) if pa.types.is_map(given):
            key, value = given_part(key, given.key_type), given_part(value, given.item_type)
            return replace(type_, key=key, value=value)
    return type_


def require_fields(field: Field, given: pa.DataType, what: str, hint: str | None = None) -> None:
    """Refuse an Arrow type that lacks fields of a column's structs; `what` names its values."""
    part = given_part(field.type, given)
    if part == field.type:
        return
    found = [each.text for each in contract.fields_of(part, (field.name,))]
    expected = [each.text for each in contract.fields_of(field.type, (field.name,))]
    missing = next(name for name in expected if name not in found)
    raise InvalidInputError(
        f"{what} lacks the field {missing!r}",
        column=missing,
        expected=", ".join(expected),
        found=", ".join(found) or "no fields",
        hint=hint,
    )


def _wide_type(type_: contract.DataType, mapping: str | None = None) -> pa.DataType:
    """The Arrow type of a type, with wide offsets and nulls everywhere."""
    match type_:
        case contract.Array(element, _):
            return pa.large_list(pa.field("element", _wide_type(element, mapping)))
        case contract.Map(key, value, _):
            return pa.map_(_wide_type(key, mapping), _wide_type(value, mapping))
        case contract.Struct(fields):
            return pa.struct([wide_field(field, mapping) for field in fields])
        case contract.VARIANT:  # of fields that are required, as Spark reads no others
            names = [field.name for field in contract.to_arrow(type_)]
            return pa.struct([pa.field(name, pa.large_binary(), False) for name in names])
    arrow = contract.to_arrow(type_)
    if pa.types.is_string(arrow):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary(arrow) else arrow


def wide_field(field: contract.Field, mapping: str | None = None) -> pa.Field:
    """A field of `_wide_type`; under a mapping with its physical name and its id."""
    arrow = _wide_type(field.type, mapping)
    if mapping is None:
        return pa.field(field.name, arrow)
    number = field.metadata.get(contract.COLUMN_ID) if mapping != "none" else None
    metadata = None if number is None else {FIELD_ID: str(number)}
    return pa.field(contract.physical_name(field, mapping), arrow, metadata=metadata)


def merged_schema(table: Struct | None, rows: pa.Schema) -> Struct:
    """The schema of files and new rows; a new column of nulls is left out with a warning. The
    columns that it adds to a table are nullable, as its files lack them; those of a new table
    (None) are as in the rows.
    """
    known = [field for field in rows if not pa.types.is_null(field.type)]
    if table is None and rows.names and not known:
        raise InvalidInputError(
            "no column of the rows has a type that a table can store",
            expected="a data column with a type",
            found=", ".join(f"{name!r}: only nulls" for name in rows.names),
            hint="cast it, such as pl.col(...).cast(pl.String), or create the table first",
        )
    old = table or Struct(())
    untyped = [f.name for f in rows if f not in known and old.field(f.name) is None]
    if untyped and known:
        warnings.warn(
            f"{', '.join(map(repr, untyped))}: a column that holds nulls only has no type, and is "
            "not added to the table; cast it, such as pl.col(...).cast(pl.String), to keep it",
            LakelogWarning,
            stacklevel=2,
        )
    new = contract.from_arrow(pa.schema(known))
    merged = new if table is None else _merged(table, new)
    assert isinstance(merged, Struct)
    return merged


def _merged(old: DataType, new: DataType) -> DataType:
    match old, new:
        case contract.VOID, _:
            return new
        case Struct(fields), Struct():
            given: dict[str, Field] = {}
            added = []
            for field in new.fields:
                match = old.field(field.name)
                if match is None:
                    added.append(contract.nullable(field))
                else:
                    given[match.name] = field
            kept = [
                replace(f, type=_merged(f.type, contract.nullable_type(given[f.name].type)))
                if f.name in given
                else f
                for f in fields
            ]
            return Struct((*kept, *added))
        case Array(), Array():
            return replace(old, element=_merged(old.element, new.element))
        case Map(), Map():
            return replace(old, key=_merged(old.key, new.key), value=_merged(old.value, new.value))
    return old
