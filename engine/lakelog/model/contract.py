"""Loads ``schemas/`` and translates Spark StructType JSON to Arrow and Polars types.

The schemas are the only definition of field names and types; Python code never repeats them.
Independent of logs and storage. In a checkout, the schemas are in ``schemas/`` next to ``engine/``;
a wheel, and the zip file for Spark's executors, contain the same files in ``lakelog/_schemas/``.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lakelog.display import path_text
from lakelog.errors import InternalError, InvalidInputError
from lakelog.lazy import cached_property

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

SHIPPED = "_schemas"
"""Folder of the contract inside the installed package."""

_CANDIDATES: tuple[Traversable, ...] = (
    resources.files("lakelog") / SHIPPED,
    Path(__file__).resolve().parents[3] / "schemas",
)

TYPE_CHANGES = "delta.typeChanges"
"""Metadata of a field that records how its type was widened."""

COLUMN_ID = "delta.columnMapping.id"
"""Metadata of a field with its id, which does not change when it is renamed."""

PHYSICAL_NAME = "delta.columnMapping.physicalName"
"""Metadata of a field with its name in files and in the log."""

CURRENT_DEFAULT = "CURRENT_DEFAULT"
"""Metadata of a field with the SQL text of its default."""

_TEXTS = (
    *("comment", "delta.generationExpression", "delta.invariants", CURRENT_DEFAULT),
    "__CHAR_VARCHAR_TYPE_STRING",
)
"""Metadata of fields whose values are texts."""

_JSON = tuple(f"delta.identity.{name}" for name in ("start", "step", "allowExplicitInsert"))
"""Metadata of fields whose values are numbers and truth values."""

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_MAX_PRECISION = 38
_MOST_LEVELS = 90
_PRIMITIVES = frozenset(
    "string long integer short byte float double boolean binary date timestamp timestamp_ntz "
    "void variant".split()
)
_STORED_DIGITS = {"byte": 10, "short": 10, "integer": 10, "long": 20}
"""Whole types, narrow to wide, with the digits of their physical type in Parquet."""

_VALUE_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}

_WIDER = {("float", "double"), ("date", "timestamp_ntz")} | {
    (narrow, "double") for narrow in ("byte", "short", "integer")
}


@dataclass(frozen=True)
class Field:
    """One field of a struct: name, type, nullability and metadata, as in StructType JSON."""

    name: str
    type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Primitive:
    """A primitive type by its Spark name, such as ``long`` or ``timestamp_ntz``."""

    name: str


@dataclass(frozen=True)
class Decimal:
    """A signed decimal; ``precision`` digits of which ``scale`` are right of the dot."""

    precision: int
    scale: int


@dataclass(frozen=True)
class Array:
    """A list of ``element``."""

    element: DataType
    contains_null: bool = True


@dataclass(frozen=True)
class Map:
    """A map from ``key`` to ``value``."""

    key: DataType
    value: DataType
    value_contains_null: bool = True


@dataclass(frozen=True)
class Struct:
    """An ordered list of fields; the type of a table."""

    fields: tuple[Field, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Field names, in order."""
        return tuple(f.name for f in self.fields)

    @cached_property
    def _found(self) -> dict[str, Field]:
        times = Counter(f.name.lower() for f in self.fields)
        lower = {f.name.lower(): f for f in self.fields if times[f.name.lower()] == 1}
        return lower | {f.name: f for f in reversed(self.fields)}

    def field(self, name: str) -> Field | None:
        """The field with exactly this name, else the only one that differs in case, else None."""
        return self._found.get(name) or self._found.get(name.lower())

    def __str__(self) -> str:
        """A line per field, nested ones by their path: ``address.zip string not null``."""
        return "\n".join(f"{name} {text}" for name, text in walk_fields(self))


MAX_DEPTH = 200
"""Maximum nesting of arrays and objects in JSON of a log (including a line's own object), and in a
schema. Deeper nesting would overflow the stack of some parser, which kills the process.
"""

DataType = Primitive | Decimal | Array | Map | Struct


def parse_schema(text: str) -> Struct:
    """Parse Spark StructType JSON; raises InvalidInputError (Delta protocol, Schema Serialization
    Format).

    >>> parse_schema('{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,'
    ...              '"metadata":{}}]}').names
    ('id',)
    """
    try:
        raw = json.loads(text)
        parsed = parse_type(raw)
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise InvalidInputError(
            "schema is not Spark StructType JSON",
            found=text[:200],
            expected=f'{{"type":"struct","fields":[...]}}, nested at most {_MOST_LEVELS} deep',
            hint="check metaData.schemaString of the table",
        ) from cause
    if not isinstance(parsed, Struct):
        raise InvalidInputError("schema is not a struct", found=text[:200], expected="struct")
    return parsed


def parse_type(raw: Any, levels: int = _MOST_LEVELS + 1) -> DataType:
    """A type of StructType JSON, parsed: its name, or an object of not more than these levels."""
    if levels < 0:
        raise RecursionError  # Arrow and Polars have such a limit, too
    if isinstance(raw, str):
        if raw == "decimal":
            return Decimal(10, 0)
        if match := _DECIMAL.fullmatch(raw):
            precision, scale = int(match[1]), int(match[2])
            if 0 <= scale <= precision and 1 <= precision <= _MAX_PRECISION:
                return Decimal(precision, scale)
        if raw == "null":
            return Primitive("void")
        # An unknown type (a collated string, a geometry, a decimal of 40 digits) is opaque: only
        # rows depend on it, never the file-level state.
        return Primitive(raw)
    kind = raw["type"]
    if kind == "struct":
        return Struct(
            tuple(
                Field(
                    str(f["name"]),
                    parse_type(f["type"], levels - 1),
                    bool(f.get("nullable", True)),
                    f.get("metadata") or {},
                )
                for f in raw["fields"]
            )
        )
    if kind == "array":
        return Array(
            parse_type(raw["elementType"], levels - 1), bool(raw.get("containsNull", True))
        )
    if kind == "map":
        return Map(
            parse_type(raw["keyType"], levels - 1),
            parse_type(raw["valueType"], levels - 1),
            bool(raw.get("valueContainsNull", True)),
        )
    if kind == "udt":
        return parse_type(raw["sqlType"], levels - 1)
    raise ValueError(f"unknown type {kind!r}")


def walk_fields(type_: DataType) -> Iterator[tuple[str, str]]:
    """The path of each field, at any depth, and its type, nullability and comment as text."""
    return ((path_text(at.path), _field_text(at.field)) for at in fields_of(type_))


def _field_text(field: Field) -> str:
    match field.type:
        case Array(element, _):
            name = f"array<{type_name(element)}>"
        case Map(key, value, _):
            name = f"map<{type_name(key)},{type_name(value)}>"
        case _:
            name = type_name(field.type)
    comment = field.metadata.get("comment")
    return name + ("" if field.nullable else " not null") + (f" -- {comment}" if comment else "")


def type_text(type_: DataType) -> str:
    """A type with the types inside it, by the names of StructType JSON.

    >>> type_text(Map(Primitive("string"), Struct((Field("a", Array(Primitive("long"))),))))
    'map<string,struct<a:array<long>>>'
    """
    match type_:
        case Struct(fields):
            inside = ",".join(f"{field.name}:{type_text(field.type)}" for field in fields)
            return f"struct<{inside}>"
        case Array(element, _):
            return f"array<{type_text(element)}>"
        case Map(key, value, _):
            return f"map<{type_text(key)},{type_text(value)}>"
        case _:
            return type_name(type_)


def type_name(type_: DataType) -> str:
    """The name of a type as StructType JSON has it, without the types inside it.

    >>> type_name(Primitive("long")), type_name(Array(Primitive("long")))
    ('long', 'array')
    """
    raw = to_json(type_)
    return raw if isinstance(raw, str) else str(raw["type"])


def to_json(type_: DataType) -> Any:
    """The StructType JSON value (not text) of a type; the inverse of `parse_schema`."""
    match type_:
        case Primitive(name):
            return name
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Array(element, contains_null):
            return {
                "type": "array",
                "elementType": to_json(element),
                "containsNull": contains_null,
            }
        case Map(key, value, contains_null):
            return {
                "type": "map",
                "keyType": to_json(key),
                "valueType": to_json(value),
                "valueContainsNull": contains_null,
            }
        case Struct(fields):
            return {
                "type": "struct",
                "fields": [
                    {
                        "name": f.name,
                        "type": to_json(f.type),
                        "nullable": f.nullable,
                        "metadata": dict(f.metadata),
                    }
                    for f in fields
                ],
            }


VARIANT, VOID = Primitive("variant"), Primitive("void")
_STORED_VARIANT = Struct(
    tuple(Field(name, Primitive("binary"), nullable=False) for name in ("value", "metadata"))
)


def stored(type_: DataType) -> DataType:
    """The type in files: a variant is a struct (Delta protocol, Variant data in Parquet)."""
    return _STORED_VARIANT if type_ == VARIANT else type_


def to_polars(type_: DataType) -> pl.DataType:
    """The Polars type; ``Null`` for opaque and void types and map keys; variants as `stored`."""
    import polars as pl

    match stored(type_):
        case Decimal(precision, scale):
            return pl.Decimal(precision, scale)
        case Array(element, _):
            return pl.List(to_polars(element))
        case Map(key, value, _):
            keys = to_polars(key)
            return pl.Null() if keys == pl.Null() else pl.Map(keys, to_polars(value))
        case Struct(fields):
            return pl.Struct([pl.Field(f.name, to_polars(f.type)) for f in fields])
        case Primitive(name):
            return _primitive_to_polars(name)


@cache
def _primitive_to_polars(name: str) -> pl.DataType:
    import polars as pl

    primitives: dict[str, pl.DataType] = {
        "string": pl.String(),
        "long": pl.Int64(),
        "integer": pl.Int32(),
        "short": pl.Int16(),
        "byte": pl.Int8(),
        "float": pl.Float32(),
        "double": pl.Float64(),
        "boolean": pl.Boolean(),
        "binary": pl.Binary(),
        "date": pl.Date(),
        "timestamp": pl.Datetime("us", "UTC"),
        "timestamp_ntz": pl.Datetime("us"),
    }
    if name.startswith(("string", "char", "varchar")):
        return pl.String()
    return primitives.get(name, pl.Null())


def to_arrow(type_: DataType) -> pa.DataType:
    """The Arrow type, with Parquet's MAP and Spark's nullability; opaque types become nulls, and
    variants what they are in files.
    """
    import pyarrow as pa

    match stored(type_):
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Array(element, contains_null):
            return pa.list_(_arrow_field("element", element, nullable=contains_null))
        case Map(key, value, contains_null):
            keys = to_arrow(key)
            if pa.types.is_null(keys):
                return keys
            return pa.map_(keys, _arrow_field("value", value, nullable=contains_null))
        case Struct(fields):
            return pa.struct([_arrow_field(f.name, f.type, nullable=f.nullable) for f in fields])
        case Primitive(name):
            return _primitive_to_arrow(name)


@cache
def _primitive_to_arrow(name: str) -> pa.DataType:
    import pyarrow as pa

    primitives = {
        "string": pa.string(),
        "long": pa.int64(),
        "integer": pa.int32(),
        "short": pa.int16(),
        "byte": pa.int8(),
        "float": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    if name.startswith(("string", "char", "varchar")):
        return pa.string()
    return primitives.get(name, pa.null())


def _arrow_field(name: str, type_: DataType, *, nullable: bool) -> pa.Field:
    import pyarrow as pa

    arrow = to_arrow(type_)
    # Opaque types become Arrow's null type, and Arrow allows no field of that type to be required.
    return pa.field(name, arrow, nullable or pa.types.is_null(arrow))


@cache
def _names_by_arrow() -> dict[pa.DataType, str]:
    import pyarrow as pa

    return {
        pa.int8(): "byte",
        pa.int16(): "short",
        pa.int32(): "integer",
        pa.int64(): "long",
        pa.uint8(): "short",
        pa.uint16(): "integer",
        pa.uint32(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.bool_(): "boolean",
        pa.string(): "string",
        pa.large_string(): "string",
        pa.string_view(): "string",
        pa.binary(): "binary",
        pa.large_binary(): "binary",
        pa.binary_view(): "binary",
        pa.date32(): "date",
        pa.date64(): "date",
    }


def from_arrow(schema: pa.Schema, *, void: bool = False) -> Struct:
    """The columns of an Arrow schema, with the metadata of fields that creators of a Delta table
    define. A type without an equivalent raises InvalidInputError, and so does Arrow's null type
    without `void`.

    >>> import pyarrow as pa
    >>> from_arrow(pa.schema([("n", pa.uint8())])).fields[0].type
    Primitive(name='short')
    """
    return Struct(tuple(_from_arrow_field(field, void) for field in schema))


def _from_arrow_field(field: pa.Field, void: bool, above: str = "") -> Field:
    type_ = _from_arrow(above + field.name, field.type, void)
    given = {name: (field.metadata or {}).get(name.encode()) for name in (*_TEXTS, *_JSON)}
    known = {name: text for name, text in given.items() if text is not None}
    try:
        metadata = {
            n: json.loads(text) if n in _JSON else text.decode() for n, text in known.items()
        }
    except ValueError as cause:
        raise InvalidInputError(
            f"the metadata of {above + field.name!r} is not valid",
            column=above + field.name,
            found=known,
        ) from cause
    return Field(field.name, type_, bool(field.nullable), metadata)


def _from_arrow(path: str, type_: pa.DataType, void: bool) -> DataType:
    import pyarrow as pa
    import pyarrow.types as kinds

    if isinstance(type_, pa.BaseExtensionType):  # first, because those of users have no hash
        values = pa.bool_() if type_.extension_name == "arrow.bool8" else type_.storage_type
        return _from_arrow(path, values, void)
    if type_ in _names_by_arrow():
        return Primitive(_names_by_arrow()[type_])
    if kinds.is_timestamp(type_):
        return Primitive("timestamp_ntz" if type_.tz is None else "timestamp")
    if kinds.is_decimal(type_) and 0 <= type_.scale <= type_.precision <= _MAX_PRECISION:
        return Decimal(type_.precision, type_.scale)
    if kinds.is_struct(type_):
        return Struct(tuple(_from_arrow_field(field, void, f"{path}.") for field in type_.fields))
    if kinds.is_map(type_):
        key = _from_arrow(f"{path}.key", type_.key_type, void)
        value = _from_arrow(f"{path}.value", type_.item_type, void)
        return Map(key, value, bool(type_.item_field.nullable))
    if is_list(type_):
        element = _from_arrow(f"{path}.element", type_.value_type, void)
        return Array(element, bool(type_.value_field.nullable))
    if kinds.is_fixed_size_binary(type_):
        return Primitive("binary")
    if kinds.is_dictionary(type_) or kinds.is_run_end_encoded(type_):
        return _from_arrow(path, type_.value_type, void)
    if kinds.is_null(type_) and void:
        return Primitive("void")
    raise InvalidInputError(
        f"the type of {path!r} has no equivalent in a table's schema",
        column=path,
        expected="Spark's types: signed integers of up to 64 bits, floats of 32 and 64 bits, "
        "decimals, strings, binary, dates, timestamps, arrays, maps, structs",
        found=str(type_),
        hint=_cast_hint(type_),
    )


def is_list(type_: pa.DataType) -> bool:
    """Whether the values of an Arrow type are lists, in any layout."""
    import pyarrow.types as kinds

    return bool(
        kinds.is_list(type_)
        or kinds.is_large_list(type_)
        or kinds.is_fixed_size_list(type_)
        or kinds.is_list_view(type_)
        or kinds.is_large_list_view(type_)
    )


def _cast_hint(type_: pa.DataType) -> str:
    """Hint for a type that a table cannot have."""
    import pyarrow.types as kinds

    if kinds.is_null(type_):
        return "it holds nulls only: cast it to the type of its values, such as pl.String"
    if kinds.is_duration(type_):
        return "convert the durations to numbers, such as .dt.total_microseconds() of Polars"
    if kinds.is_time(type_):
        return "convert the times of day to text or numbers, such as .dt.to_string() of Polars"
    if kinds.is_interval(type_):
        return "pass months, days and nanoseconds as columns of their own"
    if kinds.is_union(type_):
        return "pass a struct with a field for each type of the union"
    if kinds.is_float16(type_):
        return "cast the column to pl.Float32, which has all its values"
    if kinds.is_decimal(type_):
        return "cast the column to pl.Decimal of at most 38 digits, with a scale of at least 0"
    return "cast the column first, such as uint64 to pl.Int64 or pl.Decimal(20, 0)"


def nullable(field: Field, keeps: Collection[str] | None = ()) -> Field:
    """A field that may be null, with everything in it; of the metadata, the keys `keeps` remain
    (None: all).
    """
    kept = {k: v for k, v in field.metadata.items() if keeps is None or k in keeps}
    return Field(field.name, nullable_type(field.type, keeps), True, kept)


def nullable_type(type_: DataType, keeps: Collection[str] | None = ()) -> DataType:
    """A type all of whose values may be null; `keeps` as in `nullable`."""
    match type_:
        case Struct(fields):
            return Struct(tuple(nullable(field, keeps) for field in fields))
        case Array(element):
            return Array(nullable_type(element, keeps))
        case Map(key, value):
            return Map(nullable_type(key, keeps), nullable_type(value, keeps))
    return type_


_AnyArrow = TypeVar("_AnyArrow", "pa.Table", "pa.RecordBatch")


def require_exportable(schema: Mapping[str, pl.DataType]) -> None:
    """Raise InvalidInputError for columns that Polars cannot export to Arrow correctly: names with
    NUL, Python objects, and integers of 128 bits.
    """
    import polars as pl

    for name, dtype in schema.items():
        if "\0" in name:
            raise InvalidInputError(
                "a column's name contains a NUL character",
                expected="names without NUL characters",
                found=repr(name),
            )
        if any(leaf in (pl.Object, pl.Int128, pl.UInt128) for leaf in _leaf_types(dtype)):
            raise InvalidInputError(
                "a column has a type that Arrow does not have",
                column=name,
                found=str(dtype),
                hint="cast the column, integers to pl.Int64 or pl.Decimal(38, 0)",
            )


def _leaf_types(dtype: object) -> Iterator[object]:
    import polars as pl

    match dtype:
        case pl.Struct():
            for field in dtype.fields:
                yield from _leaf_types(field.dtype)
        case pl.List() | pl.Array():
            yield from _leaf_types(dtype.inner)
        case pl.Map():
            yield from _leaf_types(dtype.key)
            yield from _leaf_types(dtype.value)
        case _:
            yield dtype


def column_named(name: str) -> pl.Expr:
    """The column of exactly that name; ``pl.col`` reads ``*`` and ``^...$`` as patterns."""
    import polars as pl

    return _literally(pl.col(name), lambda: {"Column": name})


def field_named(struct: pl.Expr, name: str) -> pl.Expr:
    """The field of exactly that name; ``struct.field`` reads patterns as ``pl.col`` does."""
    function = {"StructExpr": {"FieldByName": name}}
    return _literally(
        struct.struct.field(name),
        lambda: {"Function": {"input": [tree_of(struct)], "function": function}},
    )


def field_of(structs: pl.Series, name: str) -> pl.Series:
    """A field of a struct column, without its name, because Polars reads ``*`` and ``^...$`` as
    patterns in ``struct.field`` and in most methods of a series of that name.
    """
    return structs.struct.unnest()[name].alias("")


def _literally(expr: pl.Expr, tree: Callable[[], Any]) -> pl.Expr:
    return expression_of(tree()) if expr.meta.has_multiple_outputs() else expr


def tree_of(expr: pl.Expr) -> Any:
    """The expression as JSON data; errors of Polars for a Python function."""
    return json.loads(expr.meta.serialize(format="json"))


def expression_of(tree: Any) -> pl.Expr:
    """The expression from JSON data, as `tree_of` returns it."""
    import polars as pl

    return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")


def without_metadata(data: _AnyArrow) -> _AnyArrow:
    """The data without metadata of schema and fields, because Polars panics on metadata that is not
    UTF-8.
    """
    from lakelog.arrow_arrays import retyped

    schema = schema_without_metadata(data.schema)
    if data.schema.equals(schema, check_metadata=True):
        return data
    # A nested array has its own type, with its fields' metadata.
    columns = [retyped(c, field.type) for c, field in zip(data.columns, schema, strict=True)]
    return type(data).from_arrays(columns, schema=schema)


def schema_without_metadata(schema: pa.Schema) -> pa.Schema:
    """The schema of `without_metadata`."""
    import pyarrow as pa

    return pa.schema([_plain_field(field) for field in schema])


def _plain_field(field: pa.Field) -> pa.Field:
    import pyarrow as pa

    return pa.field(field.name, _plain_type(field.type), field.nullable)


def _plain_type(type_: pa.DataType) -> pa.DataType:
    if not type_.num_fields:
        return type_
    import pyarrow as pa

    if pa.types.is_struct(type_):
        return pa.struct([_plain_field(type_.field(i)) for i in range(type_.num_fields)])
    if pa.types.is_map(type_):
        return pa.map_(
            _plain_field(type_.key_field), _plain_field(type_.item_field), type_.keys_sorted
        )
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_plain_field(type_.value_field), type_.list_size)
    for is_list, make in (
        (pa.types.is_list, pa.list_),
        (pa.types.is_large_list, pa.large_list),
        (pa.types.is_list_view, pa.list_view),
        (pa.types.is_large_list_view, pa.large_list_view),
    ):
        if is_list(type_):
            return make(_plain_field(type_.value_field))
    return type_


def physical_name(field: Field, mapping: str) -> str:
    """A field's name in files and log (Delta protocol, Column Mapping)."""
    if mapping == "none":
        return field.name
    return str(field.metadata.get(PHYSICAL_NAME, field.name))


class Located(NamedTuple):
    """A struct field and its path, with ``element``, ``key`` and ``value`` for arrays and maps."""

    path: tuple[str, ...]
    field: Field

    @property
    def text(self) -> str:
        """The path as dotted text."""
        return ".".join(self.path)


def fields_of(type_: DataType, prefix: tuple[str, ...] = ()) -> Iterator[Located]:
    """Every struct field of a type, each before its nested fields, in schema order."""
    match type_:
        case Struct(fields):
            for field in fields:
                path = (*prefix, field.name)
                yield Located(path, field)
                yield from fields_of(field.type, path)
        case Array(element, _):
            yield from fields_of(element, (*prefix, "element"))
        case Map(key, value, _):
            yield from fields_of(key, (*prefix, "key"))
            yield from fields_of(value, (*prefix, "value"))


def leaf_types(type_: DataType) -> Iterator[DataType]:
    """Every primitive and decimal type that occurs in a type."""
    match type_:
        case Struct(fields):
            for field in fields:
                yield from leaf_types(field.type)
        case Array(element, _):
            yield from leaf_types(element)
        case Map(key, value, _):
            yield from leaf_types(key)
            yield from leaf_types(value)
        case _:
            yield type_


def is_nested(type_: DataType) -> bool:
    """Whether a type is a struct, an array or a map."""
    return isinstance(type_, Struct | Array | Map)


def is_opaque(type_: DataType) -> bool:
    """Whether a primitive type has no values in files: void, and what lakelog does not know."""
    import pyarrow as pa

    return isinstance(type_, Primitive) and pa.types.is_null(to_arrow(type_))


def is_known(type_: DataType) -> bool:
    """Whether `type_` is a primitive type of the protocol, or not a primitive."""
    return not isinstance(type_, Primitive) or type_.name in _PRIMITIVES


def is_widening(old: DataType, new: DataType, *, iceberg: bool = False) -> bool:
    """Whether Type Widening supports a type change (Delta protocol, Type Widening).

    >>> is_widening(Primitive("integer"), Primitive("long"))
    True
    """
    match old, new:
        case Decimal(p, s), Decimal(wider, scale):
            more_scale = scale - s
            return 0 <= more_scale <= wider - p and not (iceberg and more_scale)
        case Primitive(name), Decimal(precision, scale):
            digits = _STORED_DIGITS.get(name)
            return not iceberg and digits is not None and 0 <= scale <= precision - digits
        case Primitive(name), Primitive(wider_name):
            order = list(_STORED_DIGITS)
            if name in order and wider_name in order:
                return order.index(name) < order.index(wider_name)
            if iceberg:
                return (name, wider_name) == ("float", "double")
            return (name, wider_name) in _WIDER
    return False


def keeps_values(old: DataType, new: DataType) -> bool:
    """Whether files of the old type can be read as the new one: type changes of the protocol, and
    whole numbers as shorter decimals, which other writers make of them.
    """
    if old == new or is_widening(old, new):
        return True
    match old, new:
        case Primitive(name), Decimal(precision, scale) if name in _VALUE_DIGITS:
            return 0 <= scale <= precision - _VALUE_DIGITS[name]
    return False


@cache
def schema_directory() -> Traversable:
    """The folder of the contract: the package's (possibly in a zip file), else the checkout's."""
    for candidate in _CANDIDATES:
        if (candidate / "actions.json").is_file():
            return candidate
    raise InternalError(
        "the contract files are missing from this installation",
        expected=" or ".join(str(c) for c in _CANDIDATES),
        hint="reinstall lakelog",
    )


@cache
def load(name: str) -> Struct:
    """Load ``schemas/<name>.json``."""
    return parse_schema((schema_directory() / f"{name}.json").read_text("utf-8"))
