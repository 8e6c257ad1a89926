"""Reads a checkpoint's Parquet as flattened rows, with Spark expressions only.

Each flattened column is an expression over ``add`` and ``remove``, so a query reads only the
columns that it names. Columns that Spark cannot compute (statistics as maps, or as text that Spark
encodes differently) are Arrow functions, which run only if a query uses them. An invalid file
action fails the query.

Source: Delta protocol, Checkpoint Schema; ``schemas/checkpoint.md``, Flattened Parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce
from typing import Any

import polars as pl
import pyarrow as pa

from lakelog.dialects.base import Dialect
from lakelog.dialects.delta.checkpoint_schema import spark_schema
from lakelog.dialects.delta.paths import encode_path
from lakelog.dialects.json_layout import Leaf, Node, Wire
from lakelog.dialects.log_content import CHECKPOINT_META, STRUCT_STATISTICS
from lakelog.model import actions, contract
from lakelog.model.actions import PATH_TEXT
from lakelog.skipping.statistics import map_stats, stats_text_from_struct
from lakelog.spark.footers import Footers
from lakelog.spark.sql_functions import arrow_function, functions_of
from lakelog.storage.containment import SCHEME

DERIVED = ("numRecords", "minValues", "maxValues", "nullCount")
"""Columns derived from Delta's statistics."""

_SPREAD = "spread"
_WIRE = Wire.of("delta")
_STRICT = {
    # Independent of the session's settings: no file is skipped, and no time is shifted.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "recursiveFileLookup": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
_JSON = {"ignoreNullFields": "true"}
_ESCAPED = r"(?<!\\)(\\\\)*\\u00"
_DV = ("dvStorageType", "dvPathOrInline", "dvOffset", "dvSizeInBytes", "dvCardinality")


def read_base(
    spark: Any,
    paths: Sequence[str],
    footers: Footers,
    columns: Sequence[str],
    *,
    dialect: Dialect,
    registry: Mapping[str, str],
    odd_paths: bool = True,
    exact_times: bool = False,
) -> Any:
    """The file actions of a checkpoint, as a lazy DataFrame; `exact_times` as `statistics_text`."""
    if not dialect.flattened_checkpoints:
        made = _Columns(footers, exact_times)
        return _delta(spark, paths, footers, columns, made, odd_paths=odd_paths)
    return _flattened(spark, paths, columns, registry)


def carried_columns(columns: Sequence[str], dialect: Dialect) -> tuple[str, ...]:
    """The columns from which `with_statistics` derives `columns`, in order."""
    if dialect.map_statistics or not set(columns) & {*DERIVED}:
        return tuple(columns)
    return tuple(dict.fromkeys((*(name for name in columns if name not in DERIVED), "stats")))


def with_statistics(
    rows: Any, held: Sequence[str], columns: Sequence[str], dialect: Dialect
) -> Any:
    """Rows with all of `columns`; ``stats`` is parsed only if the query uses the statistics."""
    if dialect.map_statistics or "stats" not in held or not set(columns) & {*DERIVED}:
        return with_nulls(rows, held, columns)
    rows = rows.withColumn(_SPREAD, _spread(functions_of(rows).col("stats")))
    made = {name: f"{_SPREAD}.{name}" for name in DERIVED} | {name: f"`{name}`" for name in held}
    return _select(rows, {name: made.get(name) or _null_of(name) for name in columns})


def held_columns(footers: Footers, dialect: Dialect) -> frozenset[str]:
    """Flattened columns that some row of a checkpoint may have; the others are null in all rows."""
    if dialect.flattened_checkpoints:
        return frozenset(actions.schema())
    return _Columns(footers).held


def has_vectors(footers: Footers) -> bool:
    """Whether a Delta checkpoint may have deletion vectors."""
    known = (
        ((kind, *position), leaf.column)
        for kind in actions.FILE_ACTIONS
        for position, leaf in _WIRE.wrappers[kind].leaves()
    )
    return any(column in _DV and position not in footers.absent for position, column in known)


def _spark_type(type_: contract.DataType) -> Any:
    """A contract type as Spark's."""
    from pyspark.sql.types import StructType

    whole = contract.Struct((contract.Field("value", type_),))
    return StructType.fromJson(contract.to_json(whole))["value"].dataType


def decoded_path(path: str) -> str:
    """Percent-decoded paths in SQL, as `decode_paths`: ``+``, malformed escapes and paths that
    decode to invalid UTF-8 are unchanged.
    """
    # Java's decoder rejects a lone %, converts + to a blank, and broken sequences to U+FFFD: if the
    # result has more U+FFFD than the path, the path is unchanged.
    guarded = f"regexp_replace(replace({path}, '+', '%2B'), '{_LONE_PERCENT}', '%25')"
    decoded = f"try_url_decode({guarded})"
    made = f"length({decoded}) - length(replace({decoded}, '{_REPLACEMENT}', ''))"
    escaped = f"regexp_count({path}, '(?i)%EF%BF%BD|{_REPLACEMENT}')"
    valid = f"CASE WHEN {made} = {escaped} THEN {decoded} ELSE {path} END"
    return f"CASE WHEN contains({path}, '%') THEN {valid} ELSE {path} END"


def decoded_valid_path(path: str) -> str:
    """As `decoded_path`, but the query fails on malformed paths. Spark compiles a query into one
    method, which the handling of malformed paths would slow down for all rows.
    """
    decoded = f"CAST(url_decode(replace({path}, '+', '%2B')) AS STRING)"
    odd = _fail("a path has an unusual percent-encoding; use strategy hash")
    valid = f"CASE WHEN {path} RLIKE '{_VALID_PATH}' THEN {decoded} ELSE {odd} END"
    return f"CASE WHEN contains({path}, '%') THEN {valid} ELSE {path} END"


def encoded_path(path: Any) -> Any:
    """Paths encoded as by `encode_paths`, character by character if necessary."""
    sql = functions_of(path)
    quoted = _quoted_characters()
    pairs = [sql.lit(text) for char in quoted for text in (char, encode_path(char))]
    escapes = sql.create_map(*pairs)
    each = sql.transform(
        sql.split(path, ""), lambda c: sql.coalesce(sql.try_element_at(escapes, c), c)
    )
    odd = path.rlike("[" + "".join(f"\\x{{{ord(char):x}}}" for char in quoted) + "]")
    encoded = sql.when(odd, sql.array_join(each, "")).otherwise(path)
    # A colon in the first segment would end a scheme.
    colon = encoded.rlike("^[^/:]*:") & ~encoded.rlike(f"^{SCHEME}/")
    first = sql.replace(sql.regexp_extract(encoded, "^[^/]*", 0), sql.lit(":"), sql.lit("%3A"))
    rest = sql.regexp_extract(encoded, "^[^/]*(.*)$", 1)
    return sql.when(colon, sql.concat(first, rest)).otherwise(encoded)


@cache
def _quoted_characters() -> str:
    """Characters that are always quoted."""
    return "".join(c for c in map(chr, range(0x3001)) if c != ":" and encode_path(c) != c)


_PLAIN_PATH = "^[A-Za-z0-9_./=-]*+$"
"""Texts that equal `encode_paths` of their paths."""
_LONE_PERCENT = "%(?![0-9A-Fa-f]{2})"
_REPLACEMENT = "�"
_H, _NEXT = "[0-9A-Fa-f]", "%[89ABab][0-9A-Fa-f]"
_VALID_PATH = (
    f"^(?:[^%]++|%[0-7]{_H}|%(?:[Cc][2-9A-Fa-f]|[Dd]{_H}){_NEXT}"
    f"|%[Ee]0%[ABab]{_H}{_NEXT}|%[Ee][1-9A-Ca-cEFef]{_NEXT}{_NEXT}|%[Ee][Dd]%[89]{_H}{_NEXT}"
    f"|%[Ff]0%[9ABab]{_H}{_NEXT}{_NEXT}|%[Ff][1-3]{_NEXT}{_NEXT}{_NEXT}|%[Ff]4%8{_H}{_NEXT}{_NEXT})*+$"
)
"""Pattern of percent-encoded UTF-8 (Unicode, table 3-7); without quotes or backslashes, as
`_fail`.
"""


def _delta(
    spark: Any,
    paths: Sequence[str],
    footers: Footers,
    columns: Sequence[str],
    made: _Columns,
    *,
    odd_paths: bool,
) -> Any:
    from pyspark.sql.types import StructType

    sql = functions_of(spark)
    schema = StructType.fromJson(contract.to_json(_read_schema(footers)))
    files = spark.read.schema(schema).options(**_STRICT).parquet(*paths)
    rows = _select(files.filter(made.is_file_action()), {n: made.column(n, sql) for n in columns})
    # In a separate step, because Spark would otherwise compute repeated expressions repeatedly.
    decoded = decoded_path("path") if odd_paths else decoded_valid_path("path")
    return rows.selectExpr(*(f"{decoded} AS path" if n == "path" else f"`{n}`" for n in columns))


def _select(frame: Any, columns: Mapping[str, Any]) -> Any:
    """Columns by name, from SQL or Column objects; SQL only needs one call to the JVM."""
    if all(isinstance(column, str) for column in columns.values()):
        return frame.selectExpr(*(f"{column} AS `{name}`" for name, column in columns.items()))
    sql = functions_of(frame)
    made = {n: sql.expr(c) if isinstance(c, str) else c for n, c in columns.items()}
    return frame.select(*(column.alias(name) for name, column in made.items()))


def _read_schema(footers: Footers) -> contract.Struct:
    """The schema for Spark: every known field, and unknown fields with values."""
    kinds = []
    for kind in _held_kinds(footers):
        fields = list(_fields(_WIRE.wrappers[kind], (kind,), footers))
        if kind == "add" and footers.statistics is not None:
            raw = spark_schema(pa.schema([(STRUCT_STATISTICS, footers.statistics)]))
            fields += contract.parse_schema(_text(raw)).fields
        kinds.append(contract.Field(kind, contract.Struct(tuple(fields))))
    return contract.Struct(tuple(kinds))


def _held_kinds(footers: Footers) -> tuple[str, ...]:
    """``add``, and ``remove`` if any file has one."""
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
    """The flattened columns as expressions over ``add`` and ``remove``, in SQL where possible."""

    def __init__(self, footers: Footers, exact_times: bool = False) -> None:
        self._footers = footers
        self._exact_times = exact_times
        self._positions: dict[str, list[str]] = {}
        self._kinds = _held_kinds(footers)
        for kind in self._kinds:
            for position, leaf in _WIRE.wrappers[kind].leaves((kind,)):
                if position not in footers.absent:
                    self._positions.setdefault(leaf.column, []).append(_quoted(position))

    @property
    def held(self) -> frozenset[str]:
        """Columns that some row may have."""
        found = {"actionType", "path", PATH_TEXT, "size", "dataChange", *self._positions}
        if found & {*_DV}:
            found.add("dvId")
        if self._footers.statistics is not None or "stats" in found:
            found.add("stats")
        if self._footers.unknown:
            found.add("extra")
        return frozenset(found)

    def is_file_action(self) -> str:
        """Whether a row is an add or a remove."""
        return " OR ".join(f"{kind} IS NOT NULL" for kind in self._kinds)

    def column(self, name: str, sql: Any) -> Any:
        """One column."""
        match name:
            case "actionType":
                return self._action_type()
            case "path":
                return _require(self._raw("path"), "a file action of the checkpoint lacks its path")
            case "pathText":
                text = self._raw("path")
                return f"CASE WHEN NOT {text} RLIKE '{_PLAIN_PATH}' THEN {text} END"
            case "size":
                return self._size()
            case "dataChange":
                return "false"
            case "dvId":
                return self._dv_id()
            case "stats":
                return self._statistics(sql)
            case "extra":
                return self._extra(sql)
        return self._raw(name)

    def _raw(self, name: str) -> str:
        if name not in self._positions:
            return _null_of(name)
        found = self._positions[name]
        return found[0] if len(found) == 1 else f"coalesce({', '.join(found)})"

    def _action_type(self) -> str:
        if self._kinds == ("add",):
            return "'add'"
        both = _fail("a row of the checkpoint is both an add and a remove")
        add, remove = "add IS NOT NULL", "remove IS NOT NULL"
        return f"CASE WHEN {add} AND {remove} THEN {both} WHEN {add} THEN 'add' ELSE 'remove' END"

    def _size(self) -> str:
        lacking = "add IS NOT NULL AND add.size IS NULL"
        fail = _fail("an add of the checkpoint lacks its size")
        return f"CASE WHEN {lacking} THEN {fail} ELSE {self._raw('size')} END"

    def _dv_id(self) -> str:
        if not any(name in self._positions for name in _DV):
            return _null_of("dvId")
        parts = [self._raw(name) for name in _DV]
        there = " OR ".join(f"{part} IS NOT NULL" for part in parts)
        storage, path, offset = parts[:3]
        lacking = f"({there}) AND ({storage} IS NULL OR {path} IS NULL)"
        fail = _fail("a deletion vector of the checkpoint lacks a required field")
        suffix = f"coalesce(concat('@', CAST({offset} AS STRING)), '')"
        return f"CASE WHEN {lacking} THEN {fail} ELSE concat({storage}, {path}, {suffix}) END"

    def _statistics(self, sql: Any) -> Any:
        text = self._raw("stats")
        if self._footers.statistics is None:
            return text
        struct = sql.col(f"add.{STRUCT_STATISTICS}")
        if self._footers.plain_statistics:
            return sql.coalesce(sql.expr(text), _json(sql, struct))
        typed = sql.when(sql.expr(text).isNull(), struct)
        return sql.coalesce(sql.expr(text), _written(typed, self._exact_times))

    def _extra(self, sql: Any) -> Any:
        unknown = self._footers.unknown
        objects = [_object(sql, kind, (kind,), unknown) for kind in self._kinds]
        found = [_json(sql, struct) for struct in objects if struct is not None]
        return sql.coalesce(*found) if found else _null_of("extra")


def _object(sql: Any, kind: str, above: tuple[str, ...], unknown: Sequence[tuple[Any, Any]]) -> Any:
    """A struct of the unknown fields at a position; null if all of them are null."""
    depth = len(above)
    names = dict.fromkeys(p[depth] for p, _ in unknown if p[:depth] == above)
    if not names:
        return None
    members = []
    for name in names:
        position = (*above, name)
        leaf = any(p == position for p, _ in unknown)
        member = sql.col(_quoted(position)) if leaf else _object(sql, kind, position, unknown)
        members.append(member.alias(name))
    there = reduce(lambda one, other: one | other, (member.isNotNull() for member in members))
    return sql.when(there, sql.struct(*members))


def _json(sql: Any, struct: Any) -> Any:
    """A struct as compact JSON without nulls, in lakelog's encoding."""
    text = sql.to_json(struct, _JSON)
    what = "a text contains a control character, which Spark encodes differently; use strategy hash"
    return sql.when(text.rlike(_ESCAPED), sql.expr(_fail(what))).otherwise(text)


def _flattened(
    spark: Any, paths: Sequence[str], columns: Sequence[str], registry: Mapping[str, str]
) -> Any:
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(contract.to_json(contract.load("actions")))
    rows = spark.read.schema(schema).options(**_STRICT).parquet(*paths)
    kind = _require("actionType", "a row of the checkpoint has no action type")
    rows = rows.filter(f"{_known_kind(kind)} IN ({_texts(actions.FILE_ACTIONS)})")
    made: dict[str, Any] = {
        "path": _require("path", "a file action of the checkpoint lacks its path"),
        "dataChange": "false",
        "timestamp": _null_of("timestamp"),
    }
    if registry:
        sql = functions_of(spark)
        pairs = [sql.lit(text) for pair in registry.items() for text in pair]
        mapped = sql.element_at(sql.create_map(*pairs), sql.col("docMappingRef"))
        made["docMappingJson"] = sql.coalesce(sql.col("docMappingJson"), mapped)
    return _select(rows, {name: made.get(name, f"`{name}`") for name in columns})


def _known_kind(kind: str) -> str:
    fail = _fail("a row has an action type that cannot be in a state")
    known = _texts((*actions.FILE_ACTIONS, *CHECKPOINT_META))
    return f"CASE WHEN NOT {kind} IN ({known}) THEN {fail} ELSE actionType END"


def _texts(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _quoted(position: Sequence[str]) -> str:
    return ".".join(f"`{name}`" for name in position)


def with_nulls(frame: Any, held: Sequence[str], columns: Sequence[str]) -> Any:
    """A frame of the flattened columns `held`, extended to all of `columns`, in their order."""
    return _select(frame, {n: f"`{n}`" if n in held else _null_of(n) for n in columns})


def _null_of(name: str) -> str:
    """A null of a flattened column's type, in SQL."""
    return f"CAST(NULL AS {_spark_type(actions.fields()[name].type).simpleString()})"


def _fail(what: str) -> str:
    # Without quotes and backslashes, whose interpretation depends on the session.
    return f"raise_error('lakelog: {what}')"


def _require(column: str, what: str) -> str:
    return f"CASE WHEN {column} IS NULL THEN {_fail(what)} ELSE {column} END"


def _spread(texts: Any) -> Any:
    """A column of statistics' texts as the columns derived from it."""
    fields = [f for f in contract.load("actions").fields if f.name in DERIVED]
    type_ = contract.Struct(tuple(contract.Field(f.name, f.type) for f in fields))
    return arrow_function(texts, _spread_batch, _spark_type(type_))(texts)


def _spread_batch(texts: pa.Array) -> pa.Array:
    frame = map_stats(pl.Series("stats", texts, dtype=pl.String))
    arrow = {f.name: contract.to_arrow(f.type) for f in contract.load("actions").fields}
    names = [name for name in arrow if name in DERIVED]
    children = [
        frame[name].rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).cast(arrow[name])
        for name in names
    ]
    return pa.StructArray.from_arrays(children, fields=[pa.field(n, arrow[n]) for n in names])


def _written(structs: Any, exact_times: bool) -> Any:
    """A column of typed statistics as their text."""
    from pyspark.sql.types import StringType

    function = _exact_texts if exact_times else _texts_in_ms
    return arrow_function(structs, function, StringType())(structs)


def _texts_in_ms(structs: pa.Array) -> pa.Array:
    return _statistics_texts(structs, exact_times=False)


def _exact_texts(structs: pa.Array) -> pa.Array:
    return _statistics_texts(structs, exact_times=True)


def _statistics_texts(structs: pa.Array, *, exact_times: bool) -> pa.Array:
    column = pl.Series(STRUCT_STATISTICS, structs)
    texts = stats_text_from_struct(column, exact_times=exact_times)
    return texts.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest()).cast(pa.string())
