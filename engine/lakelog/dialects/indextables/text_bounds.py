"""Bounds of row groups, from the maps of texts of the flattened layout.

The texts are typed by the table's schema when a checkpoint is written. The record contains these
types: a reader whose schema has another type for a column converts the bounds, not the texts, which
may have another order.

Source: ``schemas/checkpoint.md``, Flattened Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from lakelog.dialects.row_group_records import (
    BOUNDS,
    NULL_COUNT,
    ONE,
    RECORDS,
    bound_of,
    encode_record,
    has_partition_bounds,
    partition_bound,
)
from lakelog.model import contract
from lakelog.model.actions import FILE_ACTIONS
from lakelog.model.contract import field_of
from lakelog.skipping.statistics import has_bounds, stats_from_maps
from lakelog.skipping.values import PREFIX, typed_partitions

_COLUMNS = "columns"
_PARTITIONS = "partitionColumns"
_STATISTICS = ("numRecords", *BOUNDS)


class TextBoundsRecorder:
    """Collects the record of one file while it is written."""

    def __init__(self, schema: contract.Struct, partition_columns: tuple[str, ...]) -> None:
        self._schema = schema
        self._partitions = tuple(
            name
            for name in partition_columns
            if (field := schema.field(name)) is not None
            and field.name == name
            and has_bounds(field.type)
            and has_partition_bounds(contract.to_arrow(field.type))
        )
        self._others = tuple(
            f.name for f in schema.fields if f.name not in partition_columns and has_bounds(f.type)
        )
        self._counts: list[tuple[int, int, int]] = []
        self._bounds: list[dict[tuple[str, str], pa.Scalar]] = []

    def add(self, rows: pl.DataFrame) -> None:
        """Add the rows of the next row group."""
        kinds = rows["actionType"]
        adds, removes = (int((kinds == kind).sum()) for kind in FILE_ACTIONS)
        self._counts.append((rows.height, adds, removes))
        live = rows.filter(kinds == "add") if 0 < adds < rows.height else rows
        self._bounds.append(self._bounds_of(live) if adds else {})

    def _bounds_of(self, live: pl.DataFrame) -> dict[tuple[str, str], pa.Scalar]:
        """The known bounds of live files, by kind and column."""
        found: dict[tuple[str, str], pa.Scalar | None] = {}
        if self._partitions and "partitionValues" in live.columns:
            values, _ = typed_partitions(
                live["partitionValues"], self._schema, self._partitions, hive_null=True
            )
            for name in self._partitions:
                typed = self._arrow(values[PREFIX + name], name)
                for kind in (*BOUNDS, NULL_COUNT):
                    found[kind, name] = partition_bound(kind, typed)
        if self._others and not {*_STATISTICS} - {*live.columns}:
            # A bound that one file lacks is unknown, so columns that the first file lacks are
            # omitted.
            first = live["minValues"].head(1).to_list()[0] or {}
            columns = [name for name in self._others if name in first]
            counts, least, greatest = live.select(_STATISTICS).get_columns()
            stats = stats_from_maps(counts, least, greatest, self._schema, columns=columns)
            for kind, side in zip(BOUNDS, ("min", "max"), strict=True):
                for name in columns:
                    typed = self._arrow(field_of(stats[side], name), name)
                    found[kind, name] = bound_of(kind, typed)
        return {key: value for key, value in found.items() if value is not None}

    def _arrow(self, values: pl.Series, name: str) -> pa.ChunkedArray:
        field = self._schema.field(name)
        assert field is not None
        plain = values.to_arrow(compat_level=pl.CompatLevel.oldest())
        return pa.chunked_array([plain.cast(contract.to_arrow(field.type))])

    def record(self, name: str, end: int, schema: pa.Schema) -> str:
        """See `lakelog.dialects.row_group_records.encode_record`."""
        known = {column for bounds in self._bounds for _, column in bounds}
        columns = contract.Struct(
            tuple(contract.Field(f.name, f.type) for f in self._schema.fields if f.name in known)
        )
        partitions = [column for column in self._partitions if column in known]
        more = {_COLUMNS: contract.to_json(columns), _PARTITIONS: partitions}
        type_ = bounds_type(more)
        bounds = pa.StructArray.from_arrays(
            [self._column(field) for field in type_], fields=list(type_)
        )
        return encode_record(name, end, schema, self._counts, bounds, **more)

    def _column(self, field: pa.Field) -> pa.Array:
        if field.name == RECORDS:
            return pa.repeat(ONE, len(self._bounds)).cast(field.type)
        columns = []
        for child in field.type:
            own = [bounds.get((field.name, child.name)) for bounds in self._bounds]
            parts = [
                pa.nulls(1, child.type) if value is None else pa.repeat(value, 1).cast(child.type)
                for value in own
            ]
            columns.append(pa.concat_arrays(parts) if parts else pa.nulls(0, child.type))
        return pa.StructArray.from_arrays(columns, fields=list(field.type))


def bounds_type(content: Mapping[str, Any]) -> pa.StructType:
    """Type of the bounds in a record; a malformed record raises one of `_MALFORMED`."""
    columns = contract.parse_schema(orjson.dumps(content[_COLUMNS]).decode())
    fields = [pa.field(f.name, contract.to_arrow(f.type)) for f in columns.fields]
    bounds = [pa.field(name, pa.struct(fields)) for name in BOUNDS if fields]
    counts = [pa.field(name, pa.int64()) for name in content[_PARTITIONS]]
    nulls = [pa.field(NULL_COUNT, pa.struct(counts))] if counts else []
    return pa.struct([pa.field(RECORDS, pa.int64()), *bounds, *nulls])
