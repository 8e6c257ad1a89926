"""Opens Parquet files, also those with a known fault of their writer in the footer.

parquet-mr 1.11.0 gives the group of keys and values in a map, annotated as MAP_KEY_VALUE, the
logical type of null columns, UNKNOWN, too (PARQUET-1879). pyarrow refuses the file; parquet-mr and
others ignore the logical type. It is removed from the footer in memory, and the data are unchanged.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.thrift_compact import (
    read_list,
    read_struct,
    write_list,
    write_struct,
)

MAGIC = b"PAR1"
"""First and last bytes of a file."""
_KNOWN = inspect.signature(pq.ParquetWriter.__init__).parameters
DECIMALS_AS_INTEGERS = dict.fromkeys({"store_decimal_as_integer"} & _KNOWN.keys(), True)
"""Option of a writer to store decimals of up to 18 digits as integers, as Spark does; empty before
pyarrow 20.
"""
LENGTH_BYTES = 4
"""Length of the field that records the footer's length."""

_REFUSED = "Logical type Null cannot be applied to group"
_SCHEMA = 2  # field of FileMetaData
_NUM_CHILDREN, _LOGICAL_TYPE = 5, 10  # fields of SchemaElement
_UNKNOWN = 11  # field of the union LogicalType


def open_parquet(source: Any, kind: Any = pq.ParquetFile, **options: Any) -> Any:
    """Open a file as pyarrow's `ParquetFile`, or a subclass, with its options."""
    try:
        return kind(source, **options)
    except (pa.ArrowException, OSError) as error:
        if _REFUSED not in str(error):
            raise
    return kind(source, **options | {"metadata": parse_footer(_corrected(_read_footer(source)))})


def parse_footer(footer: bytes) -> pq.FileMetaData:
    """The metadata in an encoded footer."""
    length = len(footer).to_bytes(LENGTH_BYTES, "little")
    return pq.read_metadata(pa.BufferReader(MAGIC + footer + length + MAGIC))


def leaf_paths(path: str, type_: pa.DataType) -> Iterator[str]:
    """Parquet's paths of the leaves of a column, as pyarrow names them."""
    if pa.types.is_struct(type_):
        for number in range(type_.num_fields):
            field = type_.field(number)
            yield from leaf_paths(f"{path}.{field.name}", field.type)
    elif pa.types.is_map(type_):
        yield from leaf_paths(f"{path}.key_value.key", type_.key_type)
        yield from leaf_paths(f"{path}.key_value.value", type_.item_type)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        yield from leaf_paths(f"{path}.list.element", type_.value_type)
    else:
        yield path


def _read_footer(source: BinaryIO) -> bytes:
    """The encoded footer of a file that pyarrow has found to have one."""
    end = source.seek(-LENGTH_BYTES - len(MAGIC), os.SEEK_END)
    length = int.from_bytes(source.read(LENGTH_BYTES), "little")
    source.seek(end - length)
    return source.read(length)


def _corrected(footer: bytes) -> bytes:
    """The footer without logical types of null columns at groups."""
    fields = read_struct(footer)
    elements = [read_struct(element) for element in read_list(fields[_SCHEMA])]
    for element in elements:
        type_ = element.get(_LOGICAL_TYPE)
        if _NUM_CHILDREN in element and type_ and _UNKNOWN in read_struct(type_.data):
            del element[_LOGICAL_TYPE]
    return write_struct(fields | {_SCHEMA: write_list(map(write_struct, elements))})
