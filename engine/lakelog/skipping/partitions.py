"""Partition values: from maps of text to typed columns.

Values are parsed under the current schema: a file written when a column was ``integer`` holds
``"1"``, which may now denote a ``decimal(12,2)``. Unknown (no such key, or a text that the type
does not admit) is kept apart from null, because an unknown value must never prune a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from lakelog.model import contract
from lakelog.skipping.values import parse_text

PREFIX = "partition."
"""Typed partition columns are called ``partition.<logical name>``."""

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""How IndexTables spells a null or empty partition value."""

_STRING = contract.Primitive("string")


class TypedPartitions(NamedTuple):
    """Typed partition values of files, and which of them are known.

    Attributes:
        values: One ``partition.<logical>`` column a partition column, in the current schema's
            dtype; null where the value is null or unknown.
        known: The same columns as non-null Booleans: False where the value is unknown (key
            missing, text unparsable).
    """

    values: pl.DataFrame
    known: pl.DataFrame


def typed_partitions(
    partition_values: pl.Series,
    schema: contract.Struct,
    partition_columns: Sequence[str],
    *,
    mapping: str = "none",
    dialect: str = "delta",
) -> TypedPartitions:
    """Parse ``partitionValues`` under the current schema.

    An empty text is null for any type. A timestamp without a zone is taken as UTC. A binary value
    is the UTF-8 bytes of its text, as Delta on Spark, both kernels and deltalake read it.

    Source: Delta protocol, Partition Value Serialization; Column Mapping.

    >>> maps = pl.Series([{"n": "1"}, {"n": ""}, {}], dtype=pl.Map(pl.String, pl.String))
    >>> schema = contract.Struct((contract.Field("n", contract.Primitive("long")),))
    >>> values, known = typed_partitions(maps, schema, ["n"])
    >>> values["partition.n"].to_list(), known["partition.n"].to_list()
    ([1, None, None], [True, True, False])
    """
    values: list[pl.Series] = []
    known: list[pl.Series] = []
    for column in partition_columns:
        field = schema.field(column)
        key = column if field is None else contract.physical_name(field, mapping)
        texts, present = _lookup(partition_values, key)
        empty = texts.is_null() | (texts == "")  # never null: true or null is true
        if dialect == "indextables":
            empty |= texts == HIVE_NULL
        if empty.any():
            texts = texts.set(empty & texts.is_not_null(), None)
        type_ = _STRING if field is None else field.type
        parsed = parse_text(texts, type_)
        valid = present & (empty | parsed.is_not_null())
        values.append(parsed.alias(PREFIX + column))
        known.append(valid.alias(PREFIX + column))
    if not values:
        # A frame without columns still counts its files.
        none = pl.DataFrame(height=partition_values.len())
        return TypedPartitions(none, none)
    return TypedPartitions(pl.DataFrame(values), pl.DataFrame(known))


def _lookup(maps: pl.Series, key: str) -> tuple[pl.Series, pl.Series]:
    """The texts under `key`, and whether each map holds the key (a null map does not)."""
    texts, present = _exact(maps, key)
    if present.all():
        return texts, present
    for other in _keys(maps):
        if other != key and other.lower() == key.lower():
            more, there = _exact(maps, other)
            take = there & ~present
            texts = texts.zip_with(~take, more)
            present |= there
    return texts, present


def _exact(maps: pl.Series, key: str) -> tuple[pl.Series, pl.Series]:
    column = pl.col("maps")
    found = (
        maps.alias("maps")
        .to_frame()
        .select(
            texts=column.map.get(key),
            present=column.map.contains_key(key).fill_null(False),
        )
    )
    return found["texts"], found["present"]


def _keys(maps: pl.Series) -> list[str]:
    keys = maps.alias("maps").to_frame().select(pl.col("maps").map.keys()).to_series()
    return keys.explode().drop_nulls().unique().to_list()
