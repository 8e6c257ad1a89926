"""Converts between contract types, Spark types and Arrow types.

Spark accepts a batch only if its Arrow schema equals the one that it derives from the schema of the
source, in order, types and nullability.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, MapType, StructType

from lakelog.data.conform import merged_schema
from lakelog.errors import CorruptionError, InvalidInputError, UnsupportedFeatureError
from lakelog.model import contract

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN_METADATA = ("comment",)
"""Metadata of a column for display. The rest is for writers of the log (column mapping, generated
and default values), and Spark would interpret some of it.
"""


def spark_schema(struct: contract.Struct, columns: Sequence[str] | None = None) -> StructType:
    """Columns of a table in Spark's types; ``char`` and ``varchar`` are strings."""
    names = {field.name: field for field in struct.fields}
    wanted = list(names) if columns is None else list(columns)
    for name in wanted:
        if name not in names:
            raise InvalidInputError(
                f"column {name!r} not found", expected=", ".join(names), found=name
            )
    if len(set(wanted)) < len(wanted):
        raise InvalidInputError("a column is requested twice", found=", ".join(wanted))
    fields = tuple(_for_spark(names[name], name) for name in wanted)
    return StructType.fromJson(contract.to_json(contract.Struct(fields)))


def new_schema(schema: StructType) -> contract.Struct:
    """The columns of a new table for a dataframe, all nullable, because the nullability of a
    dataframe's column depends on its query; a column of nulls is left out with a warning.
    """
    kept = merged_schema(None, arrow_schema(schema)).names
    fields = (f for f in contract.parse_schema(schema.json()).fields if f.name in kept)
    return contract.Struct(tuple(contract.nullable(field, _SHOWN_METADATA) for field in fields))


def _shown(field: contract.Field) -> dict[str, Any]:
    return {key: field.metadata[key] for key in _SHOWN_METADATA if key in field.metadata}


def _for_spark(field: contract.Field, path: str) -> contract.Field:
    return contract.Field(
        field.name, _type_for_spark(field.type, path), field.nullable, _shown(field)
    )


def _type_for_spark(type_: contract.DataType, path: str) -> contract.DataType:
    match type_:
        case contract.Array(element, contains_null):
            return contract.Array(_type_for_spark(element, f"{path}.element"), contains_null)
        case contract.Map(key, value, contains_null):
            keys = _type_for_spark(key, f"{path}.key")
            return contract.Map(keys, _type_for_spark(value, f"{path}.value"), contains_null)
        case contract.Struct(fields):
            return contract.Struct(tuple(_for_spark(f, f"{path}.{f.name}") for f in fields))
        case contract.Primitive(name) if name.startswith(("char", "varchar", "string")):
            return contract.Primitive("string")
        case contract.Primitive(name) if not contract.is_known(type_):
            raise UnsupportedFeatureError(
                f"column {path!r} has a type that cannot be read: {name}",
                found=name,
                hint="list the needed columns in option columns",
            )
        case _:
            return type_


def check_asked(asked: StructType, own: StructType) -> None:
    """Check the user's schema: it may omit and reorder columns, and make them nullable."""
    if not asked.names:  # Arrow has no rows without columns, so they would not be counted
        raise InvalidInputError("the schema has no column", expected=", ".join(own.names))
    columns = {field.name: field for field in own}
    for field in asked:
        there = columns.get(field.name)
        if there is None:
            raise InvalidInputError(
                f"column {field.name!r} not found", expected=", ".join(columns), found=field.name
            )
        if not _fits(there.dataType, there.nullable, field.dataType, field.nullable):
            raise InvalidInputError(
                f"column {field.name!r} has another type",
                expected=_described(there),
                found=_described(field),
                hint="read it with its own type, and cast it",
            )


def _described(field: Any) -> str:
    return f"{field.dataType.simpleString()}{'' if field.nullable else ' not null'}"


def _fits(there: Any, may_be_null: bool, asked: Any, asked_null: bool) -> bool:
    """Whether values of one type are values of another that differs only in nullability."""
    if may_be_null and not asked_null:
        return False
    if type(there) is not type(asked):
        return False
    if isinstance(there, ArrayType):
        one, other = there.containsNull, asked.containsNull
        return _fits(there.elementType, one, asked.elementType, other)
    if isinstance(there, MapType):
        one, other = there.valueContainsNull, asked.valueContainsNull
        keys = _fits(there.keyType, False, asked.keyType, False)
        return keys and _fits(there.valueType, one, asked.valueType, other)
    if isinstance(there, StructType):
        return there.names == asked.names and all(
            _fits(a.dataType, a.nullable, b.dataType, b.nullable)
            for a, b in zip(there, asked, strict=True)
        )
    return bool(there == asked)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a source with this schema."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_schema

    def is_known(field: Any) -> bool:
        try:
            to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkTypeError:
            return False
        return True

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except PySparkTypeError as cause:
        unknown = next((each for each in schema if not is_known(each)), None)
        if unknown is None:
            raise
        raise InvalidInputError(
            f"the type of {unknown.name!r} has no equivalent in Arrow, and cannot be written",
            column=unknown.name,
            found=unknown.dataType.simpleString(),
            hint="cast it, such as an interval of months to a number or to a string",
        ) from cause


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with exactly this schema; columns are found by name."""
    import pyarrow as pa

    if batch.schema.equals(schema):
        columns = batch.columns
    else:
        # The nullability of nested types is part of the type; all columns are cast.
        columns = [batch.column(field.name).cast(field.type) for field in schema]
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            raise CorruptionError(
                f"column {field.name!r} is NOT NULL in the table's schema, and contains a null",
                hint="the writer of the file violated the schema; check the file, or the schema",
            )
    return pa.RecordBatch.from_arrays(columns, schema=schema)
