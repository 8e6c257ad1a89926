"""`convert`: makes a Delta table of a folder of Parquet files, in place.

The folder is listed, the footers are read in parallel, and one commit names the files. No file is
modified, moved or copied. The schema is that of all footers; a column that has several types gets
the widest, if every reader reads narrower files as that type. A column without a type, because a
file holds nulls only, has that of the other files. Statistics are taken from the footers where they
are certain.

Folders such as ``day=2026-01-01`` are partitions. Files and folders whose name begins with ``_`` or
``.`` are hidden, except folders of partition columns; those with ``.`` have to be given.

Source: Delta Lake, CONVERT TO DELTA (ConvertToDeltaCommand). Delta protocol, Partition Value
Serialization; Per-file Statistics.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.data.file_opening import Sources
from lakelog.data.layout import partition_texts
from lakelog.data.row_rules import require_valid_rules
from lakelog.data.stats import StatsPlan, footer_statistics, logical_type
from lakelog.dialects.base import Dialect
from lakelog.dialects.parquet_footers import require_valid_chunks
from lakelog.display import Displayed, size_text
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    InvalidPropertyError,
    LakelogError,
    LakelogWarning,
    NotFoundError,
    UnsupportedFeatureError,
)
from lakelog.input_validation import is_unicode
from lakelog.log.context import Log
from lakelog.model import contract
from lakelog.model.contract import Array, DataType, Field, Map, Primitive, Struct
from lakelog.skipping.values import HIVE_NULL, parse_text
from lakelog.storage import FileEntry
from lakelog.threads import Pool
from lakelog.transaction.create import NewTable, TableDefinition, refuse_existing
from lakelog.transaction.file_rules import table_folders
from lakelog.transaction.operations import CommitArguments, Operation
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.schema_conversion import struct_of

_THREADS = 16
_WHOLE = ("byte", "short", "integer", "long")
_FLOATS = ("float", "double")
_NUMBER = r"^(?:0|-?[1-9][0-9]{0,18})$"
_DATE = r"^\d{4}-\d{2}-\d{2}$"
_MAP = pl.Map(pl.String, pl.String)

PartitionBy = Sequence[str] | Mapping[str, Any] | None


@dataclass(frozen=True)
class ConvertReport(Displayed):
    """The result of `lakelog.convert`, or its plan.

    Attributes:
        version: The version that was committed; None if nothing was.
        num_files: Parquet files of the table.
        num_rows: Their rows.
        num_bytes: Their length.
        num_other_files: Other files of the folder that are not hidden; the table ignores them.
        schema: The table's schema, as StructType JSON.
        partition_by: Its partition columns.
    """

    version: int | None
    num_files: int = 0
    num_rows: int = 0
    num_bytes: int = 0
    num_other_files: int = 0
    schema: str = ""
    partition_by: tuple[str, ...] = ()

    _title = "Convert"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        columns = contract.parse_schema(self.schema).fields if self.schema else ()
        return [
            ("version", "nothing was written" if self.version is None else str(self.version)),
            ("files", f"{self.num_files:,}, {size_text(self.num_bytes)}"),
            ("rows", f"{self.num_rows:,}"),
            ("other files", f"{self.num_other_files:,}"),
            ("columns", ", ".join(f"{f.name} {contract.type_text(f.type)}" for f in columns)),
            ("partitioned by", ", ".join(self.partition_by) or "no column"),
        ]


@dataclass(frozen=True)
class _Footer:
    """Facts from the footer of one file."""

    schema: Struct
    rows: int
    stats: str


def convert(
    log: Log,
    runtime: Runtime,
    dialects: Sequence[Dialect],
    partition_by: PartitionBy,
    definition: TableDefinition,
    commit: CommitArguments,
    *,
    plan: bool,
) -> ConvertReport:
    """Convert a folder; see `lakelog.convert`."""
    refuse_existing(log.store, dialects)
    files, others = _listed(log, frozenset(partition_by or ()))
    partitions, texts = _partitions(files["path"], partition_by)
    keys = [field.name for field in partitions.fields]
    footers = _footers(log, files, keys, definition.configuration or {})
    columns = _typed(_without(_merged(files["path"], footers), keys))
    schema = Struct((*columns.fields, *partitions.fields))
    definition = replace(definition, schema=schema, partition_by=keys, has_files=True)
    new = NewTable(log, runtime, dialects, definition)
    require_valid_rules(new.table)
    if new.table.column_mapping == "id":
        raise InvalidPropertyError(
            "the columns of the files have no ids",
            path="delta.columnMapping.mode",
            expected="name",
            found="id",
        )
    report = ConvertReport(
        None,
        files.height,
        sum(footer.rows for footer in footers),
        int(files["size"].sum()),
        others,
        new.table.metadata.schema_string or "",
        tuple(keys),
    )
    if plan:
        return report
    adds = files.with_columns(
        _partition_values(files["path"], partitions, texts),
        pl.Series("stats", [footer.stats for footer in footers], dtype=pl.String),
    )
    parameters = {
        "numFiles": files.height,
        "partitionedBy": orjson.dumps(keys).decode(),
        "collectStats": True,
        "sourceFormat": "parquet",
    }
    metrics = {"numConvertedFiles": files.height}
    new.commit(adds, operation=Operation("CONVERT", parameters), metrics=metrics, commit=commit)
    return replace(report, version=0)


def _listed(log: Log, given: frozenset[str]) -> tuple[pl.DataFrame, int]:
    """The Parquet files of the folder, and the number of other files that are not hidden; partition
    columns are `given`.
    """
    entries = [entry for batch in log.store.walk() for entry in batch]
    visible = [entry for entry in entries if not _is_hidden(entry, given)]
    found = [entry for entry in visible if entry.name.endswith(".parquet")]
    if not found:
        raise NotFoundError(
            "the folder has no Parquet file",
            path=log.table,
            expected="files whose names end with .parquet",
            found=f"{len(visible):,} other files" if entries else "no file",
            hint="check the path; lakelog.create creates a table without files",
        )
    names = pl.Series([each.name for each in entries if is_unicode(each.name)], dtype=pl.String)
    for folder in sorted(table_folders(names)):
        if any(entry.name.startswith(f"{folder}/") for entry in found):
            raise InvalidInputError(
                "the folder contains another table, whose log may have removed some of its files",
                path=folder,
                expected="Parquet files without a log",
                hint="move the other table out of the folder",
            )
    for entry in found:
        if not is_unicode(entry.name):
            raise InvalidInputError("the name of a file is not valid UTF-8", path=repr(entry.name))
    columns = {"path": pl.String, "size": pl.Int64, "modificationTime": pl.Int64}
    return pl.DataFrame(found, columns, orient="row").sort("path"), len(visible) - len(found)


def _is_hidden(entry: FileEntry, given: frozenset[str]) -> bool:
    *folders, name = entry.name.split("/")
    return name.startswith(("_", ".")) or any(
        folder.startswith(("_", "."))
        and not (folder.startswith("_") and "=" in folder)
        and given.isdisjoint(_folder_values(f"{folder}/"))
        for folder in folders
    )


def _footers(
    log: Log, files: pl.DataFrame, keys: Sequence[str], configuration: Mapping[str, str | None]
) -> list[_Footer]:
    sources = Sources(log.allowed_locations, log.store)

    def read(file: tuple[str, int]) -> _Footer:
        path, size = file
        try:
            opened, _ = sources.parquet(path, size)
            try:
                return _footer(path, opened, keys, configuration)
            finally:
                opened.close(force=True)
        except (pa.ArrowException, OSError, ValueError) as cause:
            if isinstance(cause, LakelogError):
                raise
            raise CorruptionError(
                f"the file is not a valid Parquet file: {cause}",
                path=path,
                hint="repair the file, or remove it from the folder",
            ) from cause

    with Pool(_THREADS, thread_name_prefix="lakelog-convert") as pool:
        return list(pool.map(read, files.select("path", "size").iter_rows()))


def _footer(
    path: str,
    file: pq.ParquetFile,
    keys: Sequence[str],
    configuration: Mapping[str, str | None],
) -> _Footer:
    footer = file.metadata
    leaves = range(footer.num_columns)
    require_valid_chunks(footer, range(footer.num_row_groups), leaves)
    parquet = [footer.schema.column(number) for number in leaves]
    for column in parquet:
        if logical_type(column).get("timeUnit") == "nanoseconds":
            raise _refused(
                path,
                column.path,
                "a timestamp with nanoseconds, which Delta tables cannot store",
                expected="microseconds",
                hint="write the file again with microseconds, such as pyarrow's "
                "coerce_timestamps='us'",
            )
    kinds = iter([column.physical_type for column in parquet])
    schema = pa.schema([_with_instants(field, kinds) for field in file.schema_arrow])
    try:
        columns = contract.from_arrow(contract.schema_without_metadata(schema), void=True)
    except InvalidInputError as cause:
        raise InvalidInputError(
            cause.message, path=path, expected=cause.expected, found=cause.found
        ) from cause
    plan = StatsPlan.of(_without(columns, keys).fields, configuration, "none")
    plan = plan.only(columns.fields, "none")  # with the positions in the file
    plan = replace(plan, leaves=tuple(leaf for leaf in plan.leaves if leaf.type != contract.VOID))
    nullable = Struct(tuple(map(contract.nullable, columns.fields)))
    return _Footer(nullable, footer.num_rows, footer_statistics(plan, footer))


def _with_instants(field: pa.Field, kinds: Iterator[str]) -> pa.Field:
    """The field with INT96 as instants, as Spark reads them."""
    type_ = field.type
    if pa.types.is_struct(type_):
        inner = pa.struct([_with_instants(each, kinds) for each in type_.fields])
    elif pa.types.is_map(type_):
        inner = pa.map_(
            _with_instants(type_.key_field, kinds), _with_instants(type_.item_field, kinds)
        )
    elif contract.is_list(type_):
        inner = pa.list_(_with_instants(type_.value_field, kinds))
    else:
        # Parquet has the storage of an extension type, such as the bytes of `arrow.bool8`.
        stored = getattr(type_, "storage_type", type_)
        inner = pa.timestamp("us", "UTC") if next(kinds) == "INT96" else stored
    return field.with_type(inner)


def _merged(paths: pl.Series, footers: Sequence[_Footer]) -> Struct:
    """The schema of all files; each distinct one is merged once."""
    merged, seen = Struct(()), set[Struct]()
    for path, footer in zip(paths, footers, strict=True):
        if footer.schema not in seen:
            seen.add(footer.schema)
            merged = _merged_struct(merged, footer.schema, "", path)
    return merged


def _merged_struct(old: Struct, new: Struct, above: str, path: str) -> Struct:
    known = {field.name: field for field in old.fields}
    lower = {field.name.lower(): field.name for field in old.fields}
    here: set[str] = set()
    for field in new.fields:
        name = f"{above}{field.name}"
        if field.name in here:
            raise _refused(path, name, "two columns of one name")
        here.add(field.name)
        if lower.setdefault(field.name.lower(), field.name) != field.name:
            raise _refused(
                path,
                name,
                "a column whose name differs from that of another column in case only",
                expected=lower[field.name.lower()],
            )
        before = known.get(field.name)
        type_ = field.type if before is None else _wider(before.type, field.type, name, path)
        known[field.name] = Field(field.name, type_)
    return Struct(tuple(known.values()))


def _wider(old: DataType, new: DataType, name: str, path: str) -> DataType:
    """The type that has the values of both."""
    if new in (old, contract.VOID):
        return old
    if old == contract.VOID:
        return new
    match old, new:
        case Struct(), Struct():
            return _merged_struct(old, new, f"{name}.", path)
        case Array(), Array():
            return Array(_wider(old.element, new.element, f"{name}.element", path))
        case Map(), Map():
            return Map(
                _wider(old.key, new.key, f"{name}.key", path),
                _wider(old.value, new.value, f"{name}.value", path),
            )
        case Primitive(a), Primitive(b):
            for order in (_WHOLE, _FLOATS):
                if a in order and b in order:
                    return max(old, new, key=lambda type_: order.index(type_.name))
    raise _refused(
        path,
        name,
        "a column of another type than other files",
        expected=_shown(old),
        found=_shown(new),
        hint="only byte, short, integer and long, and float and double can be mixed: write the "
        "file again with the other type",
    )


def _typed(schema: Struct) -> Struct:
    """The schema without columns that have no type in any file."""
    for field in schema.fields:
        if field.type != contract.VOID and contract.VOID in contract.leaf_types(field.type):
            raise InvalidInputError(
                f"the column {field.name!r} has a part without a type: it holds nulls only, or "
                "nothing, in all files",
                column=field.name,
                found=_shown(field.type),
                hint="write a file again with a type for it",
            )
    typed = tuple(field for field in schema.fields if field.type != contract.VOID)
    untyped = [field.name for field in schema.fields if field.type == contract.VOID]
    if untyped and not typed:
        raise InvalidInputError(
            "no column of the files has a type that a table can store",
            expected="a data column with a type",
            found=", ".join(f"{name!r}: only nulls" for name in untyped),
            hint="write a file again with a type for a column",
        )
    if untyped:
        warnings.warn(
            f"{', '.join(map(repr, untyped))}: a column that holds nulls only in all files has no "
            "type, and is not a column of the table; add it with Table.alter.add_columns",
            LakelogWarning,
            stacklevel=2,
        )
    return Struct(typed)


def _without(schema: Struct, keys: Sequence[str]) -> Struct:
    """The schema without partition columns, whose values are those of the folders."""
    folded = {key.lower() for key in keys}
    return Struct(tuple(field for field in schema.fields if field.name.lower() not in folded))


def _refused(path: str, column: str, what: str, **fields: Any) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"a file has {what}", path=path, column=column, **fields)


def _shown(type_: DataType) -> str:
    text = contract.to_json(type_)
    return text if isinstance(text, str) else orjson.dumps(text).decode()


def _folder_values(path: str) -> dict[str, str | None]:
    """Partition columns of a path, in order, with their texts."""
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        key, is_partition, text = folder.partition("=")
        if not (is_partition and key):
            continue
        try:
            key, text = unquote(key, errors="strict"), unquote(text, errors="strict")
        except UnicodeDecodeError as cause:
            raise InvalidInputError(
                "the name of a partition folder is not valid UTF-8", path=path, found=folder
            ) from cause
        if key in found:
            raise InvalidInputError(
                "a partition column occurs twice in a path", path=path, column=key
            )
        found[key] = None if text in {"", HIVE_NULL} else text
    return found


def _partitions(paths: pl.Series, given: PartitionBy) -> tuple[Struct, pl.DataFrame]:
    """The typed partition columns, and their texts by file. A type that is not given is ``long`` or
    ``date`` if all folder names are the usual text of such values, else ``string``.
    """
    typed = struct_of(given) if isinstance(given, Mapping) else None
    if typed is not None:
        keys = list(typed.names)
    else:
        keys = list(_folder_values(paths[0])) if given is None else list(given)
    rows = []
    for path in paths:
        values = _folder_values(path)
        if list(values) != keys:
            raise InvalidInputError(
                "the folders of a file are not those of the partition columns",
                path=path,
                expected="/".join(f"{key}=..." for key in keys) or "no folder name=value",
                found="/".join(values) or "no folder name=value",
                hint="pass the names of the folders as partition_by, in their order",
            )
        rows.append(tuple(values.values()))
    texts = pl.DataFrame(rows, dict.fromkeys(keys, pl.String), orient="row")
    if typed is None:
        typed = Struct(tuple(Field(key, _inferred(texts[key])) for key in keys))
    return typed, texts


def _inferred(texts: pl.Series) -> DataType:
    known = texts.alias("").drop_nulls().unique()
    for pattern, type_ in ((_NUMBER, Primitive("long")), (_DATE, Primitive("date"))):
        is_usual = known.len() > 0 and known.str.contains(pattern).all()
        if is_usual and not parse_text(known, type_).null_count():
            return type_
    return Primitive("string")


def _partition_values(paths: pl.Series, partitions: Struct, found: pl.DataFrame) -> pl.Series:
    """``partitionValues`` of the files, as the log writes them."""
    columns: list[Sequence[str | None]] = []
    for field in partitions.fields:
        texts = found[field.name].alias("")
        values = parse_text(texts, field.type)
        lost = values.is_null() & texts.is_not_null()
        if lost.any():
            row = int(lost.arg_true()[0])
            raise InvalidInputError(
                "the name of a partition folder is not a value of the column's type",
                path=paths[row],
                column=field.name,
                expected=_shown(field.type),
                found=texts[row],
                hint="pass another type for the column, such as pl.String",
            )
        columns.append(partition_texts(values.alias(field.name), field.type).to_list())
    names = [field.name for field in partitions.fields]
    maps = [dict(zip(names, texts, strict=True)) for texts in zip(*columns, strict=True)]
    return pl.Series("partitionValues", maps or [{}] * paths.len(), dtype=_MAP)
