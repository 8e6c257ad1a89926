"""`ReadPlan`: schema and columns of one version, shared by all of its files; `pack`: files assigned
to tasks.

A plan is small and picklable: it is sent to the process that reads. The files are sent separately,
as rows of `lakelog.Snapshot.files` with at least the columns `FILE_COLUMNS`.

Source: Delta protocol, Column Mapping; Type Widening; Timestamp without timezone; Variant Data
Type.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.errors import CorruptionError, InvalidInputError, UnsupportedFeatureError
from lakelog.lazy import cached_property
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import actions, contract
from lakelog.model.column_names import known_name
from lakelog.model.metadata import honoured_mapping
from lakelog.storage.bounded import DEFAULT_LIMITS, ReadLimits, limits_of
from lakelog.storage.containment import NOTHING, AllowedLocations, External
from lakelog.transaction.row_tracking import MATERIALIZED

if TYPE_CHECKING:
    import pyarrow as pa

FILE_COLUMNS = (
    "path",
    "partitionValues",
    "size",
    "stats",
    "dvStorageType",
    "dvPathOrInline",
    "dvOffset",
    "dvSizeInBytes",
    "dvCardinality",
)
"""Columns that reading requires: without its deletion vector a file would return deleted rows,
without its statistics it could be another file.
"""

MAPPING_MODE = "delta.columnMapping.mode"


@dataclass(frozen=True)
class TablePlan:
    """A table as plans describe it; pickled without derived attributes, so that it is small.

    Attributes:
        location: Path or URL of the table; a local one is absolute.
        storage_options: For the store, as `lakelog.open` takes them.
        schema_json: StructType JSON of the whole table, with the metadata of column mapping.
        configuration: The properties that decide how files are read or written;
            ``delta.columnMapping.mode`` only where the protocol honours it.
    """

    location: str
    storage_options: Mapping[str, Any] | None = field(repr=False)  # may hold credentials
    schema_json: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]

    @cached_property
    def schema(self) -> contract.Struct:
        """The schema of the whole table."""
        return contract.parse_schema(self.schema_json)

    @property
    def mapping(self) -> str:
        """Column mapping mode: ``none``, ``name`` or ``id``."""
        return self.configuration.get(MAPPING_MODE, "none")

    def __getstate__(self) -> dict[str, Any]:
        given = {field.name for field in fields(self)}
        return {name: value for name, value in self.__dict__.items() if name in given}


@dataclass(frozen=True)
class ReadPlan(TablePlan):
    """How the rows of all files of one version are read; made by `of`.

    Attributes:
        columns: Logical names of the columns to read, in order; without any, rows are only counted.
        version: Version of the table, for messages.
        row_ids: Names of the columns of row id and row commit version, as `row_id_columns`, with
            which the rows end; None omits them.
        limits: Limits of reads.
    """

    columns: tuple[str, ...]
    version: int | None = None
    external: External = NOTHING
    row_ids: tuple[str, str] | None = None
    limits: ReadLimits = DEFAULT_LIMITS

    @staticmethod
    def of(
        snapshot: LogSnapshot,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        row_ids: bool = False,
    ) -> ReadPlan:
        """The plan of a version; with `row_ids`, rows have their ids if row tracking is enabled."""
        metadata = snapshot.metadata
        if not snapshot.table_configuration.dialect.has_rows:
            raise UnsupportedFeatureError(
                "the table's rows are not in Parquet files",
                path=snapshot.path,
                version=snapshot.version,
                expected="a Delta table",
                found=snapshot.format,
                hint="read the live files with Snapshot.state or Snapshot.files, and the rows with "
                "the engine that wrote them",
            )
        if (metadata.format_provider or "parquet").lower() != "parquet":
            raise UnsupportedFeatureError(
                "the table's data files are not Parquet",
                path=snapshot.path,
                version=snapshot.version,
                expected="parquet",
                found=metadata.format_provider,
                hint="read them with the engine that wrote them",
            )
        schema = snapshot.schema
        _check_widenings(schema, snapshot)
        mode = honoured_mapping(snapshot.protocol, metadata)
        log = snapshot.read_state(lambda state: state.log)
        if storage_options is None:
            storage_options = log.storage_options
        plan = ReadPlan(
            location=log.location,
            storage_options=None if storage_options is None else dict(storage_options),
            schema_json=metadata.schema_json,
            partition_columns=tuple(
                name if (known := schema.field(name)) is None else known.name
                for name in metadata.partition_columns
            ),
            configuration={} if mode == "none" else {MAPPING_MODE: mode},
            columns=(),
            version=snapshot.version,
            external=log.external,
            row_ids=row_id_columns(snapshot) if row_ids else None,
            limits=limits_of(log.store),
        )
        return plan.select(plan.schema.names if columns is None else columns)

    def select(self, columns: Sequence[str]) -> ReadPlan:
        """The same plan for other columns; errors as `of`."""
        columns = [
            known_name(name, self.fields, path=self.location, version=self.version)
            for name in columns
        ]
        for name in columns:
            _check_type(self.fields[name].type, name, self)
        if len(set(columns)) < len(columns):
            raise InvalidInputError(
                "a column is requested twice", found=", ".join(columns), expected="each once"
            )
        return replace(self, columns=tuple(columns))

    @cached_property
    def fields(self) -> Mapping[str, contract.Field]:
        """Every column of the table by its logical name."""
        return {f.name: f for f in self.schema.fields}

    @property
    def allowed_locations(self) -> AllowedLocations:
        """The files that paths in the table's log may refer to."""
        return AllowedLocations(self.location, self.external, self.storage_options)

    @property
    def file_columns(self) -> tuple[str, ...]:
        """The columns of files that reading requires."""
        return FILE_COLUMNS if self.row_ids is None else FILE_COLUMNS + actions.ROW_IDS

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of `read_files`: logical names, timestamps in microseconds, and ``char``
        values without the blanks with which Spark pads them as it reads.
        """
        import pyarrow as pa

        wanted = contract.Struct(tuple(self.fields[name] for name in self.columns))
        ids = (pa.field(name, pa.int64()) for name in self.row_ids or ())
        return pa.schema([*contract.to_arrow(wanted), *ids])


def row_id_columns(snapshot: LogSnapshot) -> tuple[str, str] | None:
    """The columns of data files with row ids and row commit versions of copied and updated rows
    (Delta protocol, Row Tracking); None without row tracking.
    """
    if not snapshot.table_configuration.is_active("rowTracking"):
        return None
    names = [snapshot.metadata.configuration.get(key) for key in MATERIALIZED]
    for key, name in zip(MATERIALIZED, names, strict=True):
        if not name:
            raise UnsupportedFeatureError(
                "the table has row tracking, but does not name the columns in which copied rows "
                "keep their row ids",
                path=snapshot.path,
                version=snapshot.version,
                expected=key,
                found="rowTracking",
                hint="set the property to a name that no column has or had",
            )
    return str(names[0]), str(names[1])


def require_single(files: pl.DataFrame, version: int | None) -> None:
    """Refuse files that are live with two vectors (Delta protocol, Action Reconciliation)."""
    if files["dvStorageType"].null_count() == files.height:
        return
    again = files["path"].is_duplicated()
    if again.any():
        path = files["path"].filter(again)[0]
        raise CorruptionError(
            "the table contains a data file more than once, with different deletion vectors",
            path=path,
            version=version,
            expected="one live add per path",
            found=int((files["path"] == path).sum()),
            hint="a writer removed the file without its deletion vector, as Trino does; remove the "
            "older ones with Transaction.remove, one per commit",
        )


def require_single_files(snapshot: LogSnapshot) -> None:
    """`require_single` for all files of a version. Memory: the paths of files with a vector."""
    if not snapshot.table_configuration.dialect.has_deletion_vectors:
        return
    files = snapshot.files().select("path", "dvStorageType")
    marked = files.filter(pl.col("dvStorageType").is_not_null()).collect()["path"]
    if not marked.is_empty():
        same = files.filter(pl.col("path").is_in(marked.implode())).collect()
        require_single(same, snapshot.version)


def _check_type(type_: contract.DataType, name: str, plan: ReadPlan) -> None:
    match type_:
        case contract.Array(element, _):
            _check_type(element, name, plan)
        case contract.Map(key, value, _):
            _check_type(key, name, plan)
            _check_type(value, name, plan)
        case contract.Struct(fields):
            for child in fields:
                _check_type(child.type, f"{name}.{child.name}", plan)
        case contract.Primitive(kind):
            texts = kind.startswith(("string", "char", "varchar"))
            if not (texts or contract.is_known(type_)):
                raise UnsupportedFeatureError(
                    f"the column {name!r} has a type that lakelog does not read: {kind}",
                    path=plan.location,
                    version=plan.version,
                    found=kind,
                    hint="select other columns",
                )


def _check_widenings(schema: contract.Struct, snapshot: LogSnapshot) -> None:
    for at in contract.fields_of(schema):
        for change in at.field.metadata.get(contract.TYPE_CHANGES) or ():
            before, after = str(change.get("fromType")), str(change.get("toType"))
            if not contract.keeps_values(*map(contract.parse_type, (before, after))):
                raise UnsupportedFeatureError(
                    f"the column {at.text!r} has an unknown type change",
                    path=snapshot.path,
                    version=snapshot.version,
                    expected="a type change of the Delta protocol",
                    found=f"{before} to {after}",
                    hint="upgrade lakelog",
                )


_TARGET_BYTES = 134_217_728
OPEN_COST_BYTES = 4_194_304


def pack(
    sizes: pl.Series,
    *,
    target_bytes: int = _TARGET_BYTES,
    open_cost_bytes: int = OPEN_COST_BYTES,
    at_least: int = 1,
) -> pl.Series:
    """The bin of each file. Bins are contiguous ranges of the files, cut where the bytes reach the
    target; if that gives too few bins, the largest files are assigned first, each to the smallest
    bin.

    >>> pack(pl.Series([60, 60, 60, 60]), target_bytes=120, open_cost_bytes=0).to_list()
    [0, 0, 1, 1]
    >>> pack(pl.Series([100, 1, 1]), open_cost_bytes=0, at_least=2).to_list()
    [0, 1, 1]
    """
    if target_bytes < 1 or open_cost_bytes < 0 or at_least < 1:
        raise InvalidInputError(
            "invalid sizes for bin packing",
            expected="target_bytes > 0, at_least > 0, open_cost_bytes >= 0",
            found=f"{target_bytes}, {at_least}, {open_cost_bytes}",
        )
    weights = sizes.fill_null(0).cast(pl.Int64).clip(0) + open_cost_bytes
    wanted = min(at_least, weights.len())
    total = int(weights.sum())
    bin_bytes = min(target_bytes, total // at_least + 1)
    # A file is in the bin that contains its middle byte; empty bins get no number.
    bins = ((weights.cum_sum() - weights + weights // 2) // bin_bytes).rle_id().cast(pl.UInt32)
    if bins.n_unique() < wanted:
        bins = _largest_first(weights.to_list(), max(wanted, -(-total // target_bytes)))
    return bins.alias("bin")


def _largest_first(weights: list[int], count: int) -> pl.Series:
    """Assign the largest files first, each to the smallest bin; files are few."""
    heap = [(0, number) for number in range(min(count, len(weights)))]
    bins = [0] * len(weights)
    for index in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        weight, number = heapq.heappop(heap)
        bins[index] = number
        heapq.heappush(heap, (weight + max(1, weights[index]), number))
    return pl.Series(bins, dtype=pl.UInt32)
