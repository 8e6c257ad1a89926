"""A checkpoint's Parquet as flattened rows, by Spark alone.

Spark reads the files itself, so a query costs the columns that it names. Each column of the
flattened schema is an expression over ``add`` and ``remove``; what only lakelog can say (statistics
spread into maps, or made into text from another type than Spark spells alike) is a function over
Arrow that no query pays for unless it asks.

A row that is no sound file action fails the query, as it fails lakelog's own readers.

Source: Delta protocol, Checkpoint Schema; ``schemas/checkpoint.md``, Flattened Parquet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import polars as pl
import pyarrow as pa

from lakelog import actions, contract
from lakelog.formats.base import CHECKPOINT_META, STRUCT_STATISTICS
from lakelog.formats.delta.checkpoint_schema import spark_schema
from lakelog.formats.delta.paths import encode_path
from lakelog.formats.wire import Leaf, Node, Wire
from lakelog.spark.footers import Footers
from lakelog.statistics.maps import map_stats
from lakelog.statistics.text import stats_text_from_struct

DERIVED = ("numRecords", "minValues", "maxValues", "nullCount")
"""Columns that Delta's statistics are spread into."""

_SPREAD = "spread"
_WIRE = Wire.of("delta")
_STRICT = {
    # Whatever the session says: nothing is passed over, and no time is shifted.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
_JSON = {
    "ignoreNullFields": "true",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS",
}
_ESCAPED = r"(?<!\\)(\\\\)*\\u00"
_DV = ("dvStorageType", "dvPathOrInline", "dvOffset", "dvSizeInBytes", "dvCardinality")


def read_base(
    spark: Any,
    paths: Sequence[str],
    footers: Footers,
    columns: Sequence[str],
    *,
    format: str,
    registry: Mapping[str, str],
) -> Any:
    """The file actions of a checkpoint, as a lazy DataFrame.

    Args:
        spark: The session, classic or Connect.
        paths: Its Parquet files, as Spark takes them.
        footers: What their footers say; without an obstacle.
        columns: Flattened columns wanted, in order; ``actionType``, ``path`` and ``dvId`` among
            them.
        format: ``delta`` or ``indextables``.
        registry: Document mappings of an IndexTables table, by hash.

    Returns:
        Rows with `columns`, in no order, paths decoded, ``dataChange`` false. A query over them
        fails where a file is gone or damaged, or a row lacks what the protocol demands.
    """
    if format == "delta":
        return _delta(spark, paths, footers, columns)
    return _flattened(spark, paths, columns, registry)


def has_vectors(footers: Footers) -> bool:
    """Whether a checkpoint of Delta's may hold a deletion vector."""
    known = (
        ((kind, *position), leaf.column)
        for kind in actions.FILE_ACTIONS
        for position, leaf in _WIRE.wrappers[kind].leaves()
    )
    return any(column in _DV and position not in footers.absent for position, column in known)


def spark_type(type_: contract.DataType) -> Any:
    """A contract type as Spark's."""
    from pyspark.sql.types import StructType

    whole = contract.Struct((contract.Field("value", type_),))
    return StructType.fromJson(contract.to_json(whole))["value"].dataType


def decoded_path(path: Any) -> Any:
    """A column of paths as they stand in the log, percent-decoded exactly once.

    What `lakelog.formats.delta.paths.decode_paths` gives: ``+`` stays, ``%`` without two hex
    digits stays, and a path whose bytes are no UTF-8 stays as it is.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody has it

    # Java's decoder refuses a lone %, makes a blank of +, and U+FFFD of each broken sequence:
    # where it made more of these than the path says, the path stays.
    guarded = F.regexp_replace(F.replace(path, F.lit("+"), F.lit("%2B")), _LONE_PERCENT, "%25")
    decoded = F.try_url_decode(guarded)
    made = F.length(decoded) - F.length(F.replace(decoded, F.lit(_REPLACEMENT), F.lit("")))
    said = F.regexp_count(path, F.lit(f"(?i)%EF%BF%BD|{_REPLACEMENT}"))
    sound = F.when(made == said, decoded).otherwise(path)
    return F.when(F.contains(path, F.lit("%")), sound).otherwise(path)


def encoded_path(path: Any) -> Any:
    """A column of paths as they stand in the log that lakelog writes: what
    `lakelog.formats.delta.paths.encode_paths` gives, letter by letter where there is a need.
    """
    from pyspark.sql import functions as F  # noqa: N812

    pairs = [F.lit(text) for char in QUOTED for text in (char, encode_path(char))]
    escapes = F.create_map(*pairs)
    each = F.transform(F.split(path, ""), lambda c: F.coalesce(F.try_element_at(escapes, c), c))
    odd = path.rlike("[" + "".join(f"\\x{{{ord(char):x}}}" for char in QUOTED) + "]")
    encoded = F.when(odd, F.array_join(each, "")).otherwise(path)
    # A colon in the first segment would make a scheme of what precedes it.
    colon = encoded.rlike("^[^/:]*:") & ~encoded.rlike("^[A-Za-z][A-Za-z0-9+.-]*:/")
    first = F.replace(F.regexp_extract(encoded, "^[^/]*", 0), F.lit(":"), F.lit("%3A"))
    rest = F.regexp_extract(encoded, "^[^/]*(.*)$", 1)
    return F.when(colon, F.concat(first, rest)).otherwise(encoded)


QUOTED = "".join(c for c in map(chr, range(0x3001)) if c != ":" and encode_path(c) != c)
"""Characters that are quoted wherever they stand."""

_LONE_PERCENT = "%(?![0-9A-Fa-f]{2})"
_REPLACEMENT = "�"


# --- Delta ----------------------------------------------------------------------------------------


def _delta(spark: Any, paths: Sequence[str], footers: Footers, columns: Sequence[str]) -> Any:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(contract.to_json(_read_schema(footers)))
    files = spark.read.schema(schema).options(**_STRICT).parquet(*paths)
    made = _Columns(footers)
    files = files.filter(made.is_file_action())
    spread = [name for name in DERIVED if name in columns]
    kept = dict.fromkeys(name for name in columns if name not in spread)
    kept |= {"stats": None} if spread else {}
    rows = files.select(*(made.column(name).alias(name) for name in kept))
    # In steps of their own, for else what is used several times is worked out as often.
    rows = rows.withColumn("path", decoded_path(F.col("path")))
    if spread:
        rows = rows.withColumn(_SPREAD, _spread()(F.col("stats")))
    return rows.select(*(_taken(name).alias(name) for name in columns))


def _taken(name: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(_SPREAD).getField(name) if name in DERIVED else F.col(name)


def _read_schema(footers: Footers) -> contract.Struct:
    """What Spark is to read: every known field, and those that nobody knows but that hold some
    value.
    """
    kinds = []
    for kind in _held_kinds(footers):
        fields = list(_fields(_WIRE.wrappers[kind], (kind,), footers))
        if kind == "add" and footers.statistics is not None:
            raw = spark_schema(pa.schema([(STRUCT_STATISTICS, footers.statistics)]))
            fields += contract.parse_schema(_text(raw)).fields
        kinds.append(contract.Field(kind, contract.Struct(tuple(fields))))
    return contract.Struct(tuple(kinds))


def _held_kinds(footers: Footers) -> tuple[str, ...]:
    """``add``, and ``remove`` where any file has one."""
    # A tombstone has a path.
    return ("add",) if ("remove", "path") in footers.absent else actions.FILE_ACTIONS


def _text(raw: Mapping[str, Any]) -> str:
    import json

    return json.dumps(raw)


def _fields(node: Node, above: tuple[str, ...], footers: Footers) -> Iterable[contract.Field]:
    for name, child in node.fields.items():
        if isinstance(child, Leaf):
            if (*above, name) not in footers.absent:
                yield contract.Field(name, child.type)
        elif inner := tuple(_fields(child, (*above, name), footers)):
            yield contract.Field(name, contract.Struct(inner))
    for position, type_ in footers.unknown:
        if position[:-1] == above:
            raw = spark_schema(pa.schema([(position[-1], type_)]))
            yield contract.parse_schema(_text(raw)).fields[0]


class _Columns:
    """The flattened columns as expressions over ``add`` and ``remove``."""

    def __init__(self, footers: Footers) -> None:
        self._footers = footers
        self._positions: dict[str, list[str]] = {}
        self._kinds = _held_kinds(footers)
        for kind in self._kinds:
            for position, leaf in _WIRE.wrappers[kind].leaves((kind,)):
                if position not in footers.absent:
                    self._positions.setdefault(leaf.column, []).append(_quoted(position))

    def is_file_action(self) -> Any:
        """Whether a row is an add or a remove."""
        from pyspark.sql import functions as F  # noqa: N812

        there = [F.col(kind).isNotNull() for kind in self._kinds]
        return reduce(lambda one, other: one | other, there)

    def column(self, name: str) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        match name:
            case "actionType":
                return self._action_type()
            case "path":
                return self._path()
            case "size":
                return self._size()
            case "dataChange":
                return F.lit(False)
            case "dvId":
                return self._dv_id()
            case "stats":
                return self._statistics()
            case "extra":
                return self._extra()
        return self._raw(name)

    def _raw(self, name: str) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        if name not in self._positions:
            return null_column(name)
        found = [F.col(position) for position in self._positions[name]]
        return found[0] if len(found) == 1 else F.coalesce(*found)

    def _action_type(self) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        if self._kinds == ("add",):
            return F.lit("add")
        add, remove = F.col("add").isNotNull(), F.col("remove").isNotNull()
        both = "a row of the checkpoint is an add and a remove at once"
        return F.when(add & remove, _fail(both)).when(add, F.lit("add")).otherwise(F.lit("remove"))

    def _path(self) -> Any:
        path = self._raw("path")
        return _require(path, "a file action of the checkpoint lacks its path")

    def _size(self) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        lacking = F.col("add").isNotNull() & F.col("add.size").isNull()
        what = "an add of the checkpoint lacks its size"
        return F.when(lacking, _fail(what)).otherwise(self._raw("size"))

    def _dv_id(self) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        if not any(name in self._positions for name in _DV):
            return null_column("dvId")
        parts = [self._raw(name) for name in _DV]
        there = reduce(lambda one, other: one | other, (part.isNotNull() for part in parts))
        storage, path, offset = parts[:3]
        suffix = F.coalesce(F.concat(F.lit("@"), offset.cast("string")), F.lit(""))
        lacking = there & (storage.isNull() | path.isNull())
        what = "a deletion vector of the checkpoint lacks a required field"
        return F.when(lacking, _fail(what)).otherwise(F.concat(storage, path, suffix))

    def _statistics(self) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        text = self._raw("stats")
        type_ = self._footers.statistics
        if type_ is None:
            return text
        struct = F.col(f"add.{STRUCT_STATISTICS}")
        if self._footers.plain_statistics:
            return F.coalesce(text, _json(struct))
        typed = F.when(text.isNull(), struct)
        return F.coalesce(text, _written()(typed))

    def _extra(self) -> Any:
        unknown = self._footers.unknown
        objects = [_object(kind, (kind,), unknown) for kind in self._kinds]
        from pyspark.sql import functions as F  # noqa: N812

        found = [_json(struct) for struct in objects if struct is not None]
        return F.coalesce(*found) if found else null_column("extra")


def _object(kind: str, above: tuple[str, ...], unknown: Sequence[tuple[Any, Any]]) -> Any:
    """A struct of the unknown fields below a position; null where all of them are."""
    from pyspark.sql import functions as F  # noqa: N812

    depth = len(above)
    names = dict.fromkeys(p[depth] for p, _ in unknown if p[:depth] == above)
    if not names:
        return None
    members = []
    for name in names:
        position = (*above, name)
        leaf = any(p == position for p, _ in unknown)
        member = F.col(_quoted(position)) if leaf else _object(kind, position, unknown)
        members.append(member.alias(name))
    there = reduce(lambda one, other: one | other, (member.isNotNull() for member in members))
    return F.when(there, F.struct(*members))


def _json(struct: Any) -> Any:
    """A struct as compact JSON without nulls, in lakelog's spelling."""
    from pyspark.sql import functions as F  # noqa: N812

    text = F.to_json(struct, _JSON)
    what = "a text holds a control character, which Spark spells in its own way; take strategy hash"
    return F.when(text.rlike(_ESCAPED), _fail(what)).otherwise(text)


# --- flattened ------------------------------------------------------------------------------------


def _flattened(
    spark: Any, paths: Sequence[str], columns: Sequence[str], registry: Mapping[str, str]
) -> Any:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(contract.to_json(contract.load("actions")))
    rows = spark.read.schema(schema).options(**_STRICT).parquet(*paths)
    kind = _require(F.col("actionType"), "a row of the checkpoint has no action type")
    known = kind.isin(*actions.FILE_ACTIONS, *CHECKPOINT_META)
    kind = F.when(~known, _fail("a row has an action type that no state holds")).otherwise(kind)
    rows = rows.filter(kind.isin(*actions.FILE_ACTIONS))
    made = {
        "path": _require(F.col("path"), "a file action of the checkpoint lacks its path"),
        "dataChange": F.lit(False),
        "timestamp": null_column("timestamp"),
    }
    if registry:
        pairs = [F.lit(text) for pair in registry.items() for text in pair]
        mapped = F.element_at(F.create_map(*pairs), F.col("docMappingRef"))
        made["docMappingJson"] = F.coalesce(F.col("docMappingJson"), mapped)
    return rows.select(*(made.get(name, F.col(name)).alias(name) for name in columns))


# --- helpers --------------------------------------------------------------------------------------


def _quoted(position: Sequence[str]) -> str:
    return ".".join(f"`{name}`" for name in position)


def null_column(name: str) -> Any:
    """A null of a flattened column's type."""
    from pyspark.sql import functions as F  # noqa: N812

    field = contract.load("actions").field(name)
    assert field is not None, "a column of the contract"
    return F.lit(None).cast(spark_type(field.type))


def _fail(what: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.raise_error(F.lit(f"lakelog: {what}"))


def _require(column: Any, what: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(column.isNull(), _fail(what)).otherwise(column)


def _spread() -> Callable[[Any], Any]:
    """Text of statistics to the columns that the flattened schema spreads them into."""
    from pyspark.sql.functions import arrow_udf

    fields = [f for f in contract.load("actions").fields if f.name in DERIVED]
    type_ = contract.Struct(tuple(contract.Field(f.name, f.type) for f in fields))
    return arrow_udf(_spread_batch, spark_type(type_))  # type: ignore[no-any-return]


def _spread_batch(texts: pa.Array) -> pa.Array:
    frame = map_stats(pl.Series("stats", texts, dtype=pl.String))
    arrow = {f.name: contract.to_arrow(f.type) for f in contract.load("actions").fields}
    names = [name for name in arrow if name in DERIVED]
    children = [
        frame[name].rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).cast(arrow[name])
        for name in names
    ]
    return pa.StructArray.from_arrays(children, fields=[pa.field(n, arrow[n]) for n in names])


def _written() -> Callable[[Any], Any]:
    """Typed statistics to their text."""
    from pyspark.sql.functions import arrow_udf
    from pyspark.sql.types import StringType

    return arrow_udf(_written_batch, StringType())  # type: ignore[no-any-return]


def _written_batch(structs: pa.Array) -> pa.Array:
    texts = stats_text_from_struct(pl.Series(STRUCT_STATISTICS, structs))
    return texts.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())
