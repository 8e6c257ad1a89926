"""`WritePlan`: schema and layout of new data files, and whether rows may be written.

A table with a rule that lakelog cannot evaluate (`lakelog.data.row_rules`) is refused by the rule's
name before anything is written.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from lakelog.data import layout, stats
from lakelog.data.files import MAPPING_MODE, TablePlan
from lakelog.data.row_rules import RowRules
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import CorruptionError, UnsupportedFeatureError
from lakelog.lazy import cached_property
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import contract
from lakelog.model.metadata import CLUSTERING, Metadata, clustering_paths, honoured_mapping
from lakelog.skipping.indexed_columns import NUM_INDEXED_COLUMNS
from lakelog.transaction import write_support

CHANGE_TYPE = "_change_type"
"""The column of change data files with the kind of change."""


@dataclass(frozen=True)
class WritePlan(TablePlan):
    """How all files of one write are written; small and picklable; made by `of`.

    Attributes:
        token: Unique to the write, and part of every file's name.
        clustering: Physical paths of the columns that the table is clustered by.
        change_data: Whether the files are of change data, with the kind of change in a column of
            its own.
        rules: The rules of new rows; None for rows that the table has.
        row_ids: Columns that are not columns of the table; see `with_row_ids`.
        columns: Columns that are written; None is all. See `of_columns`.
    """

    target_file_bytes: int
    compression: str
    token: str
    clustering: tuple[tuple[str, ...], ...] = ()
    change_data: bool = False
    rules: RowRules | None = None
    row_ids: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None

    @staticmethod
    def of(
        snapshot: LogSnapshot,
        storage_options: Mapping[str, Any] | None = None,
        *,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        token: str | None = None,
        data_change: bool = True,
    ) -> WritePlan:
        """The plan for rows that are written after a version."""
        return WritePlan.under(
            snapshot.read_state(lambda state: state.log).location,
            snapshot.table_configuration,
            storage_options,
            clustering=clustering_columns(snapshot),
            target_file_bytes=target_file_bytes,
            compression=compression,
            token=token,
            data_change=data_change,
        )

    @staticmethod
    def under(
        location: str,
        table: TableConfiguration,
        storage_options: Mapping[str, Any] | None = None,
        *,
        clustering: tuple[tuple[str, ...], ...] = (),
        target_file_bytes: int | None = None,
        compression: str | None = None,
        token: str | None = None,
        data_change: bool = True,
        new_rows: bool = True,
    ) -> WritePlan:
        """As `of`, under metadata that are not yet the table's; `new_rows` applies their rules."""
        _require_rows_writable(location, table, data_change=data_change)
        rules = RowRules.of(table) if data_change and new_rows else None
        if rules is not None:
            rules.require_supported()
        metadata = table.metadata
        kept = metadata.configuration
        codec = compression or kept.get(layout.CODEC_PROPERTY) or layout.DEFAULT_CODEC
        layout.codec_of(codec)
        size = target_file_bytes or layout.size_of(kept.get(layout.SIZE_PROPERTY))
        mapping = table.column_mapping
        configuration = {k: v for k in stats.PROPERTIES if (v := kept.get(k)) is not None}
        if mapping != "none":
            configuration[MAPPING_MODE] = mapping
        return WritePlan(
            location=location,
            storage_options=None if storage_options is None else dict(storage_options),
            schema_json=metadata.schema_json,
            partition_columns=metadata.partition_columns,
            configuration=configuration,
            target_file_bytes=size,
            compression=codec.lower(),
            token=token or str(uuid.uuid4()),
            clustering=clustering,
            rules=rules,
        )

    def of_changes(self) -> WritePlan:
        """The plan for change data of the same write: rows with a `CHANGE_TYPE` (Delta protocol,
        Change Data Files).
        """
        kind = contract.Field(CHANGE_TYPE, contract.Primitive("string"), nullable=False)
        columns = contract.Struct((*self.schema.fields, kind))
        return replace(
            self,
            schema_json=json.dumps(contract.to_json(columns)),
            configuration={**self.configuration, NUM_INDEXED_COLUMNS: "0"},
            clustering=(),
            change_data=True,
            rules=None,
        )

    def with_row_ids(self, columns: tuple[str, str] | None) -> WritePlan:
        """The plan for files whose rows end with row id and row commit version, null in rows that
        lack them (Delta protocol, Writer Requirements for Row Tracking).
        """
        if columns is None:
            return self
        ids = (contract.Field(name, contract.Primitive("long")) for name in columns)
        schema = contract.Struct((*self.schema.fields, *ids))
        return replace(self, schema_json=json.dumps(contract.to_json(schema)), row_ids=columns)

    def of_columns(self, columns: Sequence[str]) -> WritePlan:
        """The plan for some columns of files whose other columns are copied from another file."""
        return replace(self, columns=tuple(columns))

    @cached_property
    def partition_fields(self) -> tuple[contract.Field, ...]:
        """The partition columns, in order."""
        fields = {f.name: f for f in self.schema.fields}
        return tuple(fields[name] for name in self.partition_columns)

    @cached_property
    def row_fields(self) -> tuple[contract.Field, ...]:
        """The columns that are written, including partition columns."""
        columns = self.columns
        return tuple(f for f in self.schema.fields if columns is None or f.name in columns)

    @cached_property
    def file_fields(self) -> tuple[contract.Field, ...]:
        """The columns in files: without partition columns and columns that are always null."""
        return _of_files(self.row_fields, self.partition_columns)

    @cached_property
    def stats(self) -> stats.StatsPlan:
        """The statistics of its files."""
        fields = _of_files(self.schema.fields, (*self.partition_columns, *self.row_ids))
        plan = stats.StatsPlan.of(fields, self.configuration, self.mapping, self.clustering)
        return plan if self.columns is None else plan.only(self.file_fields, self.mapping)


def clustering_columns(snapshot: LogSnapshot) -> tuple[tuple[str, ...], ...]:
    """Physical paths of the clustering columns, whose statistics a table must have (Delta protocol,
    Writer Requirements for Clustered Table).
    """
    if not snapshot.table_configuration.supports("clustering"):
        return ()
    found = snapshot.domains().filter(pl.col("domain") == CLUSTERING).collect()
    text = found["domainConfiguration"].item() if found.height else "{}"
    try:
        return clustering_paths(text)
    except (ValueError, TypeError, AttributeError) as cause:
        raise CorruptionError(
            "the clustering columns of the table cannot be read",
            path=snapshot.path,
            version=snapshot.version,
            expected=f"clusteringColumns in the domain {CLUSTERING}",
            found=text,
        ) from cause


def is_clusterable(metadata: Metadata, clustering: Iterable[Sequence[str]]) -> bool:
    """Whether a table has all columns of these physical paths."""

    def has(type_: contract.DataType, path: Sequence[str]) -> bool:
        fields = type_.fields if isinstance(type_, contract.Struct) else ()
        mapping = metadata.column_mapping_mode
        names = {contract.physical_name(f, mapping): f.type for f in fields}
        return not path or (path[0] in names and has(names[path[0]], path[1:]))

    return all(has(metadata.schema, path) for path in clustering)


def _of_files(
    fields: Sequence[contract.Field], others: Sequence[str]
) -> tuple[contract.Field, ...]:
    kept = (f for f in fields if f.name not in others and not contract.is_opaque(f.type))
    return tuple(replace(f, type=_without_void(f.type)) for f in kept)


def _without_void(type_: contract.DataType) -> contract.DataType:
    """The type in files, whose structs lack void fields."""
    if not isinstance(type_, contract.Struct):
        return type_
    kept = (f for f in type_.fields if f.type != contract.VOID)
    return contract.Struct(tuple(replace(f, type=_without_void(f.type)) for f in kept))


def _require_rows_writable(
    location: str, table: TableConfiguration, *, data_change: bool = True
) -> None:
    """Refuse a table to which rows cannot be written; `data_change` as in `WritePlan.of`."""
    metadata, dialect = table.metadata, table.dialect
    provider = metadata.format_provider or "parquet"
    if not dialect.has_rows or provider.lower() != "parquet":
        raise UnsupportedFeatureError(
            "the table's data files are not Parquet files",
            path=location,
            expected="a Delta table of Parquet files",
            found=provider if dialect.has_rows else dialect.name,
            hint="write rows with the engine that created the table, and commit the files "
            "with Table.transaction",
        )
    write_support.check_writable(table, location)
    honoured_mapping(table.protocol, metadata)
    unknown = set(metadata.partition_columns).difference(metadata.schema.names)
    if unknown:
        raise CorruptionError(
            "a partition column is not in the schema",
            path=location,
            expected=", ".join(metadata.schema.names),
            found=", ".join(sorted(unknown)),
            hint="repair the metadata: other engines cannot read the table",
        )
    # Rules for a new file are checked now, with a sample action.
    row = pl.DataFrame(
        {
            "actionType": ["add"],
            "path": ["-"],
            "dataChange": [data_change],
            "stats": ['{"numRecords":1}'],
        }
    )
    write_support.check_actions(table, row, pl.DataFrame(), location, checked=row["path"])
    for column in metadata.schema.fields:
        if contract.is_nested(column.type) and _is_unwritable(column.type):
            raise UnsupportedFeatureError(
                f"the column {column.name!r} has a type that lakelog does not write",
                path=location,
                found=contract.type_text(column.type),
            )


def _is_unwritable(type_: contract.DataType, *, in_collection: bool = False) -> bool:
    """Whether files cannot have a type: void in a list or map, a struct without other fields
    (Delta protocol, Void Type), or a nested type that lakelog does not know.
    """
    match type_:
        case contract.Struct(fields):
            types = [field.type for field in fields]
            is_void = all(each == contract.VOID for each in types)
            return is_void or any(_is_unwritable(t, in_collection=in_collection) for t in types)
        case contract.Array(element, _):
            return _is_unwritable(element, in_collection=True)
        case contract.Map(key, value, _):
            return any(_is_unwritable(each, in_collection=True) for each in (key, value))
    return contract.is_opaque(type_) and (in_collection or type_ != contract.VOID)
