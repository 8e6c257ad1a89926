"""Converts maps to structs and back, because Arrow's JSON reader has no maps."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog.dialects.decoder_fallback import NotProvenError
from lakelog.dialects.json_layout import Wire

_PLAIN_KEY = re.compile(r"[ !#-.0-\[\]-~]+")  # ASCII that JSON writers never escape


def null_entries(table: pa.Table, wire: Wire, text: bytes) -> frozenset[str]:
    """Keys of maps whose nulls are entries with a null value, rather than absent keys.

    A struct has lost the difference, so the text that was parsed decides: the key followed by null
    is there as often as nulls were read (all are entries), or never (all are absent). Anything
    between, or a key that may be spelled in another way, is not proven.
    """
    nulls: dict[str, int] = {}
    keys: list[str] = []
    for path, leaf in (
        found
        for wrapper, node in wire.wrappers.items()
        if wrapper != "commitInfo" and wrapper in table.column_names
        for found in node.leaves((wrapper,))
    ):
        if not leaf.is_map:
            continue
        column = _descend(table[path[0]].combine_chunks(), path[1:])
        if column is None:
            continue
        for index, child in enumerate(column.flatten()):
            name = column.type.field(index).name
            keys.append(name)
            if missing := child.null_count - column.null_count:
                nulls[name] = nulls.get(name, 0) + missing
    entries: set[str] = set()
    names = nested_names(table.schema) if nulls else []
    for name, count in nulls.items():
        if name in wire.names or not _PLAIN_KEY.fullmatch(name) or b"\\u" in text:
            raise NotProvenError
        if names.count(name) != keys.count(name):
            raise NotProvenError  # an unknown field is called the same
        pattern = b'"' + re.escape(name.encode()) + rb'"\s*:\s*null'
        spelled = sum(1 for _ in re.finditer(pattern, text))
        if spelled == count:
            entries.add(name)
        elif spelled:
            raise NotProvenError
    return frozenset(entries)


def nested_names(schema: pa.Schema) -> list[str]:
    """Names of all fields, at every depth."""
    names: list[str] = []
    level = list(schema)
    while level:
        names += (field.name for field in level)
        level = [f.type.field(i) for f in level for i in range(f.type.num_fields)]
    return names


def _descend(column: pa.StructArray, names: Sequence[str]) -> pa.StructArray | None:
    """The struct at the end of `names`, or None where the parse met none."""
    for name in names:
        index = column.type.get_field_index(name)
        if index < 0 or not pa.types.is_struct(column.type.field(index).type):
            return None
        column = column.flatten()[index]
    return column


def map_array(column: pa.StructArray, entries: frozenset[str]) -> pa.MapArray:
    """Turn a struct of texts back into the map that the JSON object was."""
    type_ = column.type
    names = [type_.field(i).name for i in range(type_.num_fields)]
    children = column.flatten()
    valid = validity(column)
    present = np.repeat(valid[:, None], len(names), axis=1)
    for index, (name, child) in enumerate(zip(names, children, strict=True)):
        if name not in entries and child.null_count > column.null_count:
            present[:, index] &= validity(child)
    row, key = np.nonzero(present)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(present.sum(axis=1), out=offsets[1:])
    texts = [child.cast(pa.string()) for child in children] or [pa.nulls(0, pa.string())]
    return pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)]),
        pl.Series(names, dtype=pl.String).to_arrow().cast(pa.string()).take(as_int64(key)),
        pa.concat_arrays(texts).take(as_int64(key * len(column) + row)),
        mask=column.is_null(),
    )


def validity(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Which rows are not null, as Booleans."""
    # Through Polars: Arrow's own to_numpy imports pandas, wherever it is installed.
    return pl.Series(column.is_valid()).to_numpy()


def as_int64(values: np.ndarray) -> pa.Array:
    """Whole numbers as an Arrow array, without a copy where they are int64 already."""
    # pa.array would import pandas, wherever it is installed, to see whether this is one of its own,
    # and pl.Series numpy.ma.
    contiguous = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(contiguous), [None, pa.py_buffer(contiguous)])
