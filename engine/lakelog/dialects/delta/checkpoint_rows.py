"""Converts flattened actions to checkpoint rows: structs of Arrow columns.

``dataChange`` is false in every file action: a checkpoint changes no data. ``remove`` has neither
statistics nor tags. Of ``extra``, the fields that the contract does not name, only what Spark's
schema holds is kept (``deletionVector.maxRowIndex``); the others are dropped, as Spark drops them:
readers of a table must work without them (Delta protocol, Protocol Evolution).

Source: Delta protocol, Checkpoints; Checkpoint Schema.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from lakelog.dialects.arrow_texts import text_array
from lakelog.dialects.delta.paths import spell_paths
from lakelog.dialects.json_layout import Leaf, Node, Wire

_WIRE = Wire.of("delta")
_OLDEST = pl.CompatLevel.oldest()
_MAX_ROW_INDEX = "maxRowIndex"
_VERSION = "version"
_PRESENT = {"deletionVector": "dvStorageType"}
"""Structs that are null where this column is; others are there in every row."""


def columns_of(kind: str, schema: pa.Schema) -> tuple[str, ...]:
    """Flattened columns that the rows of an action type are made from."""
    struct = schema.field(kind).type
    known = {
        leaf.column
        for position, leaf in _WIRE.wrappers[kind].leaves()
        if struct.get_field_index(position[0]) >= 0
    }
    extra = ("extra",) if struct.get_field_index("deletionVector") >= 0 else ()
    return (*sorted(known - {"dataChange"}), *extra)


def encoded(files: pl.DataFrame) -> pl.DataFrame:
    """File actions with their paths as they are in the log, and nothing that changes data."""
    return files.with_columns(
        spell_paths(files).alias("path"), pl.lit(value=False).alias("dataChange")
    )


def action_rows(
    rows: pl.DataFrame,
    kind: str,
    schema: pa.Schema,
    derived: dict[str, pa.Array] | None = None,
) -> pa.Table:
    """Rows of one action type as a checkpoint has them; all other columns are null.

    Memory: the rows, once more.
    """
    height = rows.height
    field = schema.field(kind)
    struct = _struct(rows, _WIRE.wrappers[kind], field.type, None, derived or {})
    arrays = [struct if f.name == kind else pa.nulls(height, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


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
        return pa.nulls(rows.height, type_)
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
        else:
            children.append(_leaf(rows, known, field.type))
    mask = None
    if present is not None and rows[present].null_count():
        mask = to_arrow(rows[present].is_null(), pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _leaf(rows: pl.DataFrame, known: Leaf | None, type_: pa.DataType) -> pa.Array:
    if known is None or known.column not in rows.columns:
        return pa.nulls(rows.height, type_)
    return to_arrow(rows[known.column], type_)


def to_arrow(values: pl.Series, type_: pa.DataType) -> pa.Array:
    """A column in `type_`; null as a whole where all of it is null, which Arrow writes faster."""
    if values.null_count() == values.len():
        return pa.nulls(values.len(), type_)
    text = values.dtype == pl.String
    array = text_array(values) if text else values.rechunk().to_arrow(compat_level=_OLDEST)
    return array if array.type == type_ else array.cast(type_)


def _max_row_index(rows: pl.DataFrame, type_: pa.DataType) -> pa.Array:
    if "extra" not in rows.columns:
        return pa.nulls(rows.height, type_)
    texts = rows["extra"]
    named = texts.str.contains(f'"{_MAX_ROW_INDEX}"', literal=True).fill_null(value=False)
    if not named.any():
        return pa.nulls(rows.height, type_)
    found = texts.set(~named, None).str.json_path_match(f"$.deletionVector.{_MAX_ROW_INDEX}")
    return to_arrow(found.cast(pl.Int64, strict=False), type_)


def _version(rows: pl.DataFrame, type_: pa.DataType) -> pa.Array:
    """The version that a checkpointMetadata action names: it has no column of its own."""
    found = rows["extra"].str.json_path_match(f"$.{_VERSION}")
    return to_arrow(found.cast(pl.Int64), type_)
