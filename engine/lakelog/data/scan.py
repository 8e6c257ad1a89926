"""`scan_rows`: the rows of a version as a lazy Polars frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from lakelog.data.files import FILE_COLUMNS, ReadPlan
from lakelog.data.read import BATCH_ROWS, read_files
from lakelog.errors import InvalidInputError
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import contract
from lakelog.skipping.prune import referenced_columns

if TYPE_CHECKING:
    import pyarrow as pa

    ReadBatches = Callable[[Sequence[str], pl.Expr | None, int], Iterator[pa.RecordBatch]]


def scan_rows(snapshot: LogSnapshot, condition: pl.Expr | str | None = None) -> pl.LazyFrame:
    """The rows of a version; see `Snapshot.scan`."""
    plan = ReadPlan.of(snapshot, ())  # a column that cannot be read is refused when it is asked for
    where = snapshot.condition(condition)
    store = snapshot.read_state(lambda state: state.log.store)

    def read(
        columns: Sequence[str], predicate: pl.Expr | None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        files = snapshot.files(predicate).select(FILE_COLUMNS).collect()
        reading = plan.select(columns)
        return read_files(reading, files, predicate=predicate, store=store, batch_rows=batch_rows)

    return lazy_rows(plan.schema, read, where, "lakelog rows")


def lazy_rows(
    schema: contract.Struct, read_batches: ReadBatches, where: pl.Expr | None, name: str
) -> pl.LazyFrame:
    """A lazy frame over batches of rows, which hold the columns and match the predicate asked for.

    `read_batches` is called on collect with columns, a predicate over the rows of `schema`, and the
    rows of a batch at most.
    """
    if where is not None:
        referenced_columns(where, schema)  # refuses a wrong one now, not on collect
    types = pl.Schema({f.name: contract.to_polars(f.type) for f in schema.fields})

    def read(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        chosen = list(types) if with_columns is None else with_columns
        asked, rest = where, None
        if predicate is not None:
            if _is_by_row(predicate, schema):
                asked = predicate if where is None else where & predicate
            else:  # no table's predicate, but Polars asks for it
                rest = predicate
        roots = [] if rest is None else rest.meta.root_names()
        rows = min(batch_size or BATCH_ROWS, BATCH_ROWS)
        if n_rows is not None and asked is None and rest is None:
            rows = max(1, min(rows, n_rows))
        yielded = False
        for batch in read_batches([c for c in types if c in chosen or c in roots], asked, rows):
            frame = _frame(batch)
            if rest is not None:
                frame = frame.filter(rest)
            if n_rows is not None:
                frame = frame.head(n_rows)
                n_rows -= frame.height
            if frame.height:
                yielded = True
                yield frame.select(chosen)
            if n_rows == 0:
                break
        if not yielded:
            yield pl.DataFrame(schema={c: types[c] for c in chosen})

    return register_io_source(
        read, schema=types, validate_schema=True, is_pure=True, explain_name=name
    )


def _is_by_row(predicate: pl.Expr, schema: contract.Struct) -> bool:
    try:
        referenced_columns(predicate, schema)
    except InvalidInputError:
        return False
    return True


def _frame(batch: pa.RecordBatch) -> pl.DataFrame:
    if not batch.num_columns:
        return pl.DataFrame(height=batch.num_rows)
    return pl.DataFrame(pl.from_arrow(batch))
