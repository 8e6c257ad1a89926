"""Converts flattened actions to checkpoint rows, with typed copies of statistics and partitions.

``dataChange`` is false in every file action: a checkpoint changes no data. ``remove`` has neither
statistics nor tags. Of the unknown fields in ``extra``, only those in Spark's schema are kept
(``deletionVector.maxRowIndex``); the others are dropped, as by Spark: readers of a table must work
without them (Delta protocol, Protocol Evolution).

The types of typed copies are derived from the table's schema as in Spark: statistics of the indexed
columns except partition columns, bounds if data skipping supports the type, a null count for every
column, all under physical names. Texts are parsed by `lakelog.skipping`: exactly, or to null.

Source: Delta protocol, Checkpoints; Checkpoint Schema. Delta protocol, Checkpoints; Per-file
Statistics; Column Mapping. `StatisticsCollection` of Delta Lake on Spark, for which columns are
indexed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import polars as pl
import pyarrow as pa

from lakelog.dialects.delta.checkpoint_schema import PARTITIONS_PARSED, file_columns
from lakelog.dialects.delta.paths import spell_paths, text_array
from lakelog.dialects.json_layout import Node, Wire
from lakelog.dialects.log_content import STRUCT_STATISTICS, TYPED_STATISTICS, CheckpointPlan
from lakelog.model import actions, contract
from lakelog.skipping.indexed_columns import indexed_columns
from lakelog.skipping.statistics import (
    has_bounds,
    stats_from_either,
    stats_from_json,
    struct_of_leaves,
)
from lakelog.skipping.values import typed_partitions

_WIRE = Wire.of("delta")
_OLDEST = pl.CompatLevel.oldest()
_MAX_ROW_INDEX = "maxRowIndex"
_VERSION = "version"
_MOST_VALUE_BYTES = 8  # of the types that `_nulls` builds
_PRESENT = {"deletionVector": "dvStorageType"}
"""Structs that are null if this column is null; others exist in every row."""


def columns_of(kind: str, schema: pa.Schema) -> tuple[str, ...]:
    """Flattened columns that the rows of an action type are derived from."""
    struct = schema.field(kind).type
    known = {
        leaf.column
        for position, leaf in _WIRE.wrappers[kind].leaves()
        if struct.get_field_index(position[0]) >= 0
    }
    extra = ("extra",) if struct.get_field_index("deletionVector") >= 0 else ()
    return (*sorted(known - {"dataChange"}), *extra)


def encoded(files: pl.DataFrame) -> pl.DataFrame:
    """File actions with their paths as in the log, and ``dataChange`` false."""
    return files.with_columns(
        spell_paths(files).alias("path"), pl.lit(value=False).alias("dataChange")
    )


def action_rows(
    rows: pl.DataFrame,
    kind: str,
    schema: pa.Schema,
    derived: dict[str, pa.Array] | None = None,
) -> pa.Table:
    """Rows of one action type as in a checkpoint, with all other columns null."""
    height = rows.height
    field = schema.field(kind)
    struct = _struct(rows, _WIRE.wrappers[kind], field.type, None, derived or {})
    arrays = [struct if f.name == kind else _nulls(height, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _nulls(height: int, type_: pa.DataType) -> pa.Array:
    """As `pyarrow.nulls`, but all null columns share the memory of one buffer of zeros."""
    zeros = _zeros(1 << height.bit_length())
    if pa.types.is_struct(type_):
        children = [_nulls(height, field.type) for field in type_]
        return pa.Array.from_buffers(type_, height, [zeros], height, children=children)
    if pa.types.is_string(type_):
        return pa.Array.from_buffers(type_, height, [zeros, zeros, zeros], height)
    if pa.types.is_map(type_):
        entries = [pa.nulls(0, pa.struct([type_.key_field, type_.item_field]))]
        return pa.Array.from_buffers(type_, height, [zeros, zeros], height, children=entries)
    if pa.types.is_list(type_):
        elements = [pa.nulls(0, type_.value_type)]
        return pa.Array.from_buffers(type_, height, [zeros, zeros], height, children=elements)
    if pa.types.is_primitive(type_):
        return pa.Array.from_buffers(type_, height, [zeros, zeros], height)
    return pa.nulls(height, type_)


@lru_cache(maxsize=4)
def _zeros(height: int) -> pa.Buffer:
    """Zeros for the validity, offsets or values of at most this number of rows."""
    return pa.py_buffer(bytes(height * _MOST_VALUE_BYTES + _MOST_VALUE_BYTES))


def _struct(
    rows: pl.DataFrame,
    node: Node,
    type_: pa.StructType,
    present: str | None,
    derived: dict[str, pa.Array],
) -> pa.Array:
    if present is not None and (
        present not in rows.columns or rows[present].null_count() == rows.height
    ):
        return _nulls(rows.height, type_)
    fields = [type_.field(index) for index in range(type_.num_fields)]
    children = []
    for field in fields:
        known = node.fields.get(field.name)
        if field.name in derived:
            children.append(derived[field.name])
        elif isinstance(known, Node):
            inner = _PRESENT.get(field.name)
            children.append(_struct(rows, known, field.type, inner, {}))
        elif field.name == _MAX_ROW_INDEX:
            children.append(_max_row_index(rows, field.type))
        elif field.name == _VERSION and known is None:
            children.append(_version(rows, field.type))
        elif known is None or known.column not in rows.columns:
            children.append(_nulls(rows.height, field.type))
        else:
            children.append(to_arrow(rows[known.column], field.type))
    mask = None
    if present is not None and rows[present].null_count():
        mask = to_arrow(rows[present].is_null(), pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def to_arrow(values: pl.Series, type_: pa.DataType) -> pa.Array:
    """A column in `type_`; if all values are null, as a null array, which Arrow writes faster."""
    if values.null_count() == values.len():
        return _nulls(values.len(), type_)
    text = values.dtype == pl.String
    array = text_array(values) if text else values.rechunk().to_arrow(compat_level=_OLDEST)
    return array if array.type == type_ else array.cast(type_)


def _max_row_index(rows: pl.DataFrame, type_: pa.DataType) -> pa.Array:
    if "extra" not in rows.columns:
        return _nulls(rows.height, type_)
    texts = rows["extra"]
    named = texts.str.contains(f'"{_MAX_ROW_INDEX}"', literal=True).fill_null(value=False)
    if not named.any():
        return _nulls(rows.height, type_)
    found = texts.set(~named, None).str.json_path_match(f"$.deletionVector.{_MAX_ROW_INDEX}")
    return to_arrow(found.cast(pl.Int64, strict=False), type_)


def _version(rows: pl.DataFrame, type_: pa.DataType) -> pa.Array:
    """The version of a checkpointMetadata action, which has no column of its own."""
    found = rows["extra"].str.json_path_match(f"$.{_VERSION}")
    return to_arrow(found.cast(pl.Int64), type_)


Name = Callable[[contract.Field], str]


def file_action_columns(plan: CheckpointPlan) -> tuple[list[pa.Field], TypedCopies | None]:
    """The columns of file actions for a plan, and the typed copies, if any."""
    typed = TypedCopies.of(plan) if plan.stats_as_struct else None
    columns = file_columns(
        stats_as_json=plan.stats_as_json,
        partitions=typed.partitions if typed is not None else None,
        statistics=typed.statistics if typed is not None else None,
    )
    return columns, typed


@dataclass(frozen=True)
class TypedCopies:
    """Indexed columns of a table, and the types of its typed statistics and partition values."""

    indexed: contract.Struct
    statistics: pa.StructType
    partitions: pa.StructType | None
    plan: CheckpointPlan

    @staticmethod
    def of(plan: CheckpointPlan) -> TypedCopies:
        """The typed copies of a table."""
        indexed = indexed_columns(plan.schema, plan.partition_columns, plan.configuration)
        bounds = struct_of_leaves(indexed, plan.mapping, _bound_type)
        counts = struct_of_leaves(indexed, plan.mapping, lambda _: pa.int64())
        fields = [pa.field("numRecords", pa.int64())]
        if bounds is not None:
            fields += [pa.field("minValues", bounds), pa.field("maxValues", bounds)]
        if counts is not None:
            fields.append(pa.field("nullCount", counts))
        if plan.deletion_vectors:
            fields.append(pa.field("tightBounds", pa.bool_()))
        return TypedCopies(indexed, pa.struct(fields), _partitions_type(plan), plan)

    def columns(self, files: pl.DataFrame) -> dict[str, pa.Array]:
        """The typed copies of live files; texts are parsed only for rows without typed values."""
        typed = {STRUCT_STATISTICS: self._statistics(files)}
        if self.partitions is not None:
            typed[PARTITIONS_PARSED] = self._partitions(files)
        return typed

    def _statistics(self, files: pl.DataFrame) -> pa.Array:
        height = files.height
        texts = actions.conform(files, ("stats",)).to_series()
        known = texts.is_not_null()
        mapping = self.plan.mapping
        if STRUCT_STATISTICS in files.columns:
            structs = files[STRUCT_STATISTICS]
            known |= structs.is_not_null()
            frame = stats_from_either(structs, texts, self.indexed, mapping=mapping)
        elif TYPED_STATISTICS in files.columns:
            frame = files[TYPED_STATISTICS].struct.unnest()
        else:
            frame = stats_from_json(texts, self.indexed, mapping=mapping)
        if not known.any():
            return _nulls(height, self.statistics)
        frame = frame.rename({"min": "minValues", "max": "maxValues"})
        children = [
            _tree(frame[field.name], self.indexed, field.type, self._name)
            if pa.types.is_struct(field.type)
            else to_arrow(frame[field.name], field.type)
            for field in self.statistics
        ]
        mask = None if known.all() else to_arrow(~known, pa.bool_())
        return pa.StructArray.from_arrays(children, fields=list(self.statistics), mask=mask)

    def _partitions(self, files: pl.DataFrame) -> pa.Array:
        assert self.partitions is not None
        if "partitionValues" not in files.columns:
            return _struct_of(
                [_nulls(files.height, f.type) for f in self.partitions], self.partitions
            )
        plan = self.plan
        names = [name for name in plan.partition_columns if _has_type(plan.schema, name)]
        values, _ = typed_partitions(
            files["partitionValues"], plan.schema, names, mapping=plan.mapping
        )
        pairs = zip(values.get_columns(), self.partitions, strict=True)
        return _struct_of(
            [to_arrow(column, field.type) for column, field in pairs], self.partitions
        )

    def _name(self, field: contract.Field) -> str:
        return contract.physical_name(field, self.plan.mapping)


def _bound_type(type_: contract.DataType) -> pa.DataType | None:
    return contract.to_arrow(type_) if has_bounds(type_) else None


def _partitions_type(plan: CheckpointPlan) -> pa.StructType | None:
    fields = []
    for name in plan.partition_columns:
        field = plan.schema.field(name)
        if field is None:
            fields.append(pa.field(name, pa.string()))
        elif _has_type(plan.schema, name):
            type_ = contract.to_arrow(field.type)
            fields.append(pa.field(contract.physical_name(field, plan.mapping), type_))
    return pa.struct(fields) if fields else None


def _has_type(schema: contract.Struct, name: str) -> bool:
    """Whether Parquet can store the column's type."""
    field = schema.field(name)
    return field is None or not pa.types.is_null(contract.to_arrow(field.type))


def _tree(
    values: pl.Series, schema: contract.Struct, type_: pa.StructType, name_of: Name
) -> pa.Array:
    """Convert a struct with logical names to one with physical names, field by field."""
    frame = values.struct.unnest()
    by_name = {name_of(field): field for field in schema.fields}
    children = []
    for field in type_:
        logical = by_name[field.name]
        if logical.name not in frame.columns:
            children.append(_nulls(len(values), field.type))
        elif isinstance(logical.type, contract.Struct):
            children.append(_tree(frame[logical.name], logical.type, field.type, name_of))
        else:
            children.append(to_arrow(frame[logical.name], field.type))
    return _struct_of(children, type_)


def _struct_of(children: Sequence[pa.Array], type_: pa.StructType) -> pa.Array:
    return pa.StructArray.from_arrays(list(children), fields=list(type_))
