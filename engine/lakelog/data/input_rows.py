"""Rows of a caller, in any supported form, as a stream of batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from lakelog.data.conform import Rows
from lakelog.errors import InvalidInputError
from lakelog.model.contract import require_exportable, without_metadata

_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class Incoming:
    """Rows to be written.

    Attributes:
        schema: Their Arrow schema.
        batches: The rows; may be taken once.
    """

    schema: pa.Schema
    batches: Iterator[Rows]

    @staticmethod
    def of(rows: Any) -> Incoming:
        """Rows of a caller.

        Memory: of streams a batch.
        """
        if isinstance(rows, pl.LazyFrame):
            schema = rows.collect_schema()
            empty = pl.DataFrame(schema=schema)
            batches = rows.collect_batches(chunk_size=_BATCH_ROWS, lazy=True)
            return Incoming(_arrow_schema(empty), iter(batches))
        if isinstance(rows, pl.DataFrame):
            return Incoming(_arrow_schema(rows), iter([rows]))
        if isinstance(rows, pa.Table | pa.RecordBatch):
            rows = without_metadata(rows)
            return Incoming(rows.schema, iter([rows]))
        if isinstance(rows, pa.RecordBatchReader):
            return Incoming._read(rows)
        if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
            table = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata()
            return Incoming(table.schema, iter([table]))
        if hasattr(rows, "__arrow_c_stream__"):
            try:
                reader = pa.RecordBatchReader.from_stream(rows)
            except pa.ArrowInvalid as cause:
                raise _not_rows(rows) from cause
            return Incoming._read(reader)
        raise _not_rows(rows)

    @staticmethod
    def _read(reader: pa.RecordBatchReader) -> Incoming:
        schema = without_metadata(reader.schema.empty_table()).schema
        return Incoming(schema, map(without_metadata, reader))


def _not_rows(rows: object) -> InvalidInputError:
    return InvalidInputError(
        "invalid input: not a table of rows",
        expected="a Polars, pandas or Arrow frame, or an Arrow reader",
        found=type(rows).__name__,
    )


def _arrow_schema(frame: pl.DataFrame) -> pa.Schema:
    require_exportable(frame.columns)
    return frame.clear().to_arrow(compat_level=pl.CompatLevel.oldest()).schema
