"""Lazy frames over the log: what a query asks for reaches the reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import polars as pl
from polars.io.plugins import register_io_source


def lazy_frame(
    schema: pl.Schema,
    read: Callable[[Sequence[str]], Iterator[pl.DataFrame]],
    name: str,
    *,
    is_pure: bool = False,
) -> pl.LazyFrame:
    """A lazy frame that reads on collect, and only the columns that the query needs."""

    def scan(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        _batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        chosen = list(schema) if with_columns is None else with_columns
        roots = [] if predicate is None else predicate.meta.root_names()
        yielded = False
        for batch in read([c for c in schema if c in chosen or c in roots]):
            frame = batch if predicate is None else batch.filter(predicate)
            if n_rows is not None:
                frame = frame.head(n_rows)
                n_rows -= frame.height
            if frame.height or not yielded:
                yielded = True
                yield frame.select(chosen)
            if n_rows == 0:
                return

    return register_io_source(
        scan, schema=schema, validate_schema=True, is_pure=is_pure, explain_name=name
    )
