"""The rows of a version: a lazy Polars frame, an Arrow stream, their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
from polars.io.plugins import register_io_source

from lakelog.data.files import ReadPlan, require_single, require_single_files
from lakelog.data.read import BATCH_ROWS, read_files
from lakelog.data.targets import live_rows
from lakelog.errors import InvalidInputError, naming_table
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import contract
from lakelog.model.contract import column_named
from lakelog.skipping.prune import referenced_columns
from lakelog.threads import read_by_polars

if TYPE_CHECKING:
    import pyarrow as pa

    ReadBatches = Callable[[Sequence[str], pl.Expr | None, int], Iterator[pa.RecordBatch]]


_UNREAD = "\0row"
"""The first column of a lazy frame of rows, hidden from the caller. Polars requests the first
column of a source if a query needs only the number of rows.
"""
_ROW_IDS = tuple(
    contract.Field(name, contract.Primitive("long")) for name in ("_row_id", "_row_commit_version")
)
_MOST_COUNTED = 1 << 30  # rows of a frame without values; Polars limits frames to 2^32


def scan_rows(
    snapshot: LogSnapshot,
    condition: pl.Expr | str | None = None,
    columns: Sequence[str] | None = None,
    *,
    row_ids: bool = False,
) -> pl.LazyFrame:
    """The rows of a version; see `Snapshot.scan`."""
    where = snapshot.condition(condition)
    # Without columns, so that a column that cannot be read raises only if it is selected.
    plan = ReadPlan.of(snapshot, columns or (), row_ids=row_ids)
    if row_ids:
        _require_row_ids(plan)

    def read(
        columns: Sequence[str], predicate: pl.Expr | None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        files = snapshot.files(predicate)
        names = [field.name for field in added]
        own = [name for name in columns if name not in names]
        chosen = plan.select(own)
        if len(own) == len(columns):
            return _batches(snapshot, replace(chosen, row_ids=None), files, predicate, batch_rows)
        batches = _batches(snapshot, chosen, files, predicate, batch_rows)
        return (batch.rename_columns([*own, *names]) for batch in batches)

    added = _ROW_IDS if row_ids else ()
    rows = lazy_rows(
        plan.schema, read, where, "lakelog rows", snapshot.path, lambda: num_rows(snapshot), added
    )
    return rows if columns is None else rows.select(map(column_named, plan.columns))


def _require_row_ids(plan: ReadPlan) -> None:
    if plan.row_ids is None:
        raise InvalidInputError(
            "the rows of the table have no row ids",
            path=plan.location,
            version=plan.version,
            expected="a table with row tracking (delta.enableRowTracking)",
            found="row_ids=True",
        )
    for name in (field.name for field in _ROW_IDS):
        if plan.schema.field(name) is not None:
            raise InvalidInputError(
                "row ids cannot be shown, because a column of the table has their name",
                path=plan.location,
                column=name,
                found="row_ids=True",
            )


def read_rows(
    snapshot: LogSnapshot,
    condition: pl.Expr | str | None = None,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatchReader:
    """The rows of a version as a stream of batches; see `Snapshot.to_arrow`."""
    import pyarrow as pa

    where = snapshot.condition(condition)
    plan = ReadPlan.of(snapshot, columns)
    batches = _batches(snapshot, plan, snapshot.files(where), where)
    return pa.RecordBatchReader.from_batches(plan.arrow_schema, batches)


def num_rows(snapshot: LogSnapshot) -> int:
    """The number of rows of a version; see `Snapshot.num_rows`."""
    recorded = snapshot.read_state(lambda state: state.num_rows)
    if recorded is not None:
        return recorded
    table = snapshot.table_configuration
    if table.supports("deletionVectors"):
        require_single_files(snapshot)
    files = snapshot.files(stats=True)
    counted = pl.col("numRecords").is_not_null()
    if table.dialect.has_deletion_vectors:
        counted &= pl.col("dvStorageType").is_null()
    counts = files.select(pl.when(counted).then("numRecords")).collect().to_series()
    found = int(counts.cast(pl.Int128).sum())
    if counts.null_count():
        keys = ["path", "dvId"]
        others = snapshot.files().join(
            files.filter(~counted).select(keys), on=keys, how="semi", nulls_equal=True
        )
        store = snapshot.read_state(lambda state: state.log.store)
        found += int(live_rows(snapshot, others.collect(), store).cast(pl.Int128).sum())
    return found


def _batches(
    snapshot: LogSnapshot,
    plan: ReadPlan,
    files: pl.LazyFrame,
    where: pl.Expr | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    rows = files.select(plan.file_columns).collect()
    require_single(rows, plan.version)
    store = snapshot.read_state(lambda state: state.log.store)
    return read_files(plan, rows, predicate=where, store=store, batch_rows=batch_rows)


def lazy_rows(
    schema: contract.Struct,
    read_batches: ReadBatches,
    where: pl.Expr | None,
    name: str,
    location: str,
    count: Callable[[], int] | None = None,
    added: Sequence[contract.Field] = (),
) -> pl.LazyFrame:
    """A lazy frame over batches with the columns asked for, of rows that match the predicate.
    `count` replaces `read_batches` where only the number of all rows is needed. The columns `added`
    follow those of `schema`; predicates over them are not pushed down.
    """
    if where is not None:
        referenced_columns(where, schema)  # raises now for a wrong one, not on collect
    types = pl.Schema(
        {
            _UNREAD: pl.Null(),
            **{f.name: contract.to_polars(f.type) for f in (*schema.fields, *added)},
        }
    )

    def read(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        chosen = list(types) if with_columns is None else with_columns
        asked, rest = where, None
        if predicate is not None:
            # With `n_rows`, the predicate applies to these rows: Polars does not push down a limit
            # that follows a filter.
            if n_rows is None and _is_by_row(predicate, schema):
                asked = predicate if where is None else where & predicate
            else:  # Polars pushes down predicates that the table's files cannot answer
                rest = predicate
        roots = [] if rest is None else rest.meta.root_names()
        wanted = [c for c in types if c != _UNREAD and (c in chosen or c in roots)]
        if count is not None and asked is None and rest is None and not wanted:
            left = count() if n_rows is None else min(count(), n_rows)
            for first in range(0, max(left, 1), _MOST_COUNTED):
                yield _unread(min(left - first, _MOST_COUNTED)).select(chosen)
            return
        rows = min(batch_size or BATCH_ROWS, BATCH_ROWS)
        if n_rows is not None and asked is None:
            rows = max(1, min(rows, n_rows))
        yielded = False
        for batch in read_batches(wanted, asked, rows):
            frame = _frame(batch, has_rows=_UNREAD in chosen)
            if n_rows is not None:
                frame = frame.head(n_rows)
                n_rows -= frame.height
            if rest is not None:
                frame = frame.filter(rest)
            if frame.height:
                yielded = True
                yield frame if frame.columns == chosen else frame.select(map(column_named, chosen))
            if n_rows == 0:
                break
        if not yielded:
            yield pl.DataFrame(schema={c: types[c] for c in chosen})

    def named(*asked: Any) -> Iterator[pl.DataFrame]:
        with naming_table(location):
            yield from read_by_polars(read(*asked))

    rows = register_io_source(
        named, schema=types, validate_schema=True, is_pure=True, explain_name=name
    )
    return rows.drop(_UNREAD)


def _is_by_row(predicate: pl.Expr, schema: contract.Struct) -> bool:
    try:
        referenced_columns(predicate, schema)
    except InvalidInputError:
        return False
    return True


def _frame(batch: pa.RecordBatch, *, has_rows: bool) -> pl.DataFrame:
    """A batch as a frame, with the column `_UNREAD` if requested or the only one."""
    frame = pl.DataFrame(pl.from_arrow(batch)) if batch.num_columns else None
    if frame is not None and not has_rows:
        return frame
    unread = _unread(batch.num_rows)
    return unread if frame is None else unread.hstack(frame)


def _unread(num_rows: int) -> pl.DataFrame:
    return pl.Series(_UNREAD, [None], dtype=pl.Null).new_from_index(0, num_rows).to_frame()
