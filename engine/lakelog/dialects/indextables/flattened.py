"""Reads flattened Parquet checkpoints: one row per action, in ``_checkpoints/``.

Two schemas are read: lakelog's own (``schemas/actions.json``) and the plain ``CheckpointEntry`` of
spec 004, whose metadata rows have ``actionType`` ``metadata`` and a ``format`` map, and which
holds neither protocol nor skips (they come from the commits that the checkpoint covers).

The ``<v>.checkpoint.json`` next to them is a hint: which parts belong together is in their
names, and whether they are whole in their footers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.indextables.commits import (
    compose_meta,
    meta_at_or_below,
    missing_file,
    one_protocol,
    project,
    wire,
)
from lakelog.dialects.indextables.docmapping import registry_of_meta, resolve_references
from lakelog.dialects.indextables.listing import list_commits
from lakelog.dialects.log_content import CHECKPOINT_META, Checkpoint
from lakelog.dialects.parquet_footers import Bound
from lakelog.errors import InvalidActionError, LakelogError, MalformedLogError, NotFoundError
from lakelog.lazy import cached_property
from lakelog.model import actions
from lakelog.model.contract import without_metadata
from lakelog.storage import LogStore

_BATCH_ROWS = 1 << 16
_TYPE = "actionType"
_FORMAT = "format"
_ROW_COLUMNS = ("version", "position", "timestamp", "extra")
_STATE_TYPES = (*actions.FILE_ACTIONS, *CHECKPOINT_META)
_SPEC_NAMES = {"metadata": "metaData"}


class FlattenedReader:
    """Reads one flattened checkpoint, column by column.

    Memory: one batch of at most 65,536 rows of the wanted columns.
    """

    def __init__(self, store: LogStore, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._store = store

    def read_meta(self, kinds: Sequence[str] = CHECKPOINT_META) -> pl.DataFrame:
        """Protocol, metaData, skips; those that a plain checkpoint lacks come from the JSON
        commits that it covers, where they are on disk (protocol: else 1/1).
        """
        own: list[pl.DataFrame] = []
        for path in self.checkpoint.paths:
            with self._parquet(path) as (file, _):
                own.extend(self._read_meta_rows(file, path, kinds))
        return compose_meta(
            actions.concat(own),
            kinds,
            lambda: meta_at_or_below(self._store, self.checkpoint.version),
            one_protocol(),
            skips_complete=self._is_complete,
        )

    @cached_property
    def _is_complete(self) -> bool:
        """Whether every part has lakelog's schema, which keeps what spec 004's leaves out."""
        for path in self.checkpoint.paths:
            with self._parquet(path) as (file, _):
                if "skipTimestamp" not in file.schema_arrow.names:
                    return False
        return True

    def iter_files(
        self, columns: Sequence[str], kinds: Sequence[str] = actions.FILE_ACTIONS
    ) -> Iterator[pl.DataFrame]:
        """File actions in batches, in the order of the parts."""
        wanted = {_TYPE, "path", *columns}
        registry: dict[str, str] = {}
        if "docMappingJson" in wanted:
            wanted.add("docMappingRef")
            registry = registry_of_meta(self.read_meta(("metaData",)))
        for path in self.checkpoint.paths:
            with self._parquet(path) as (file, bound):
                names = [n for n in file.schema_arrow.names if n in wanted]
                rows_read = 0
                for batch in file.iter_batches(_BATCH_ROWS, columns=names):
                    rows_read += batch.num_rows
                    frame = self._frame(pa.Table.from_batches([batch]), path)
                    rows = resolve_references(frame, registry)
                    for part in project([rows], columns, kinds):
                        _require_path(part, path)
                        bound.check(part)
                        if part.height:
                            yield part
                self._check_rows(path, file.metadata.num_rows, rows_read)

    def files_read(self) -> tuple[str, ...]:
        """The parts, in order; below a plain checkpoint also the commits that it covers."""
        if self._is_complete:
            return self.checkpoint.paths
        below = list_commits(self._store, end=self.checkpoint.version)
        return (*self.checkpoint.paths, *(commit.path for commit in below))

    def is_reconciled(self) -> bool:
        """See `CheckpointReader`; the dialect's writers repeat files."""
        return False

    def struct_statistics(self) -> pa.DataType | None:
        """None: statistics are as text."""
        return None

    def _read_meta_rows(
        self, file: pq.ParquetFile, path: str, kinds: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """Rows of `kinds`; the other columns of a row group are read only if it has such rows."""
        names = file.schema_arrow.names
        if _TYPE not in names:
            self._frame(pa.table({}), path)
        for group in range(file.num_row_groups):
            found: set[str] = set()
            for types in self._batches(file, group, [_TYPE], path):
                found |= set(types[_TYPE].unique()).intersection(kinds)
            if not found:
                continue
            wanted = {_TYPE, *_ROW_COLUMNS}.union(*(_columns_of(kind) for kind in found))
            columns = [name for name in names if name in wanted]
            for frame in self._batches(file, group, columns, path):
                yield actions.of_type(frame, *kinds)

    def _batches(
        self, file: pq.ParquetFile, group: int, columns: list[str], path: str
    ) -> Iterator[pl.DataFrame]:
        rows_read = 0
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns):
            rows_read += batch.num_rows
            yield self._frame(pa.Table.from_batches([batch]), path)
        self._check_rows(path, file.metadata.row_group(group).num_rows, rows_read)

    def _check_rows(self, path: str, expected: int, found: int) -> None:
        # Arrow ends a read early, without a word, where a damaged page header makes a column short.
        if expected != found:
            raise MalformedLogError(
                "the checkpoint has fewer rows than its footer records",
                path=path,
                version=self.checkpoint.version,
                expected=f"{expected} rows",
                found=f"{found} rows",
            )

    def _frame(self, table: pa.Table, path: str) -> pl.DataFrame:
        """Arrow to the contract's columns and dtypes, with spec 004's spelling repaired."""
        table.validate(full=True)  # Arrow does not check that Parquet's text is UTF-8
        frame = pl.DataFrame(pl.from_arrow(without_metadata(table)))
        if _TYPE not in frame.columns or frame[_TYPE].null_count():
            raise InvalidActionError(
                "a row of the checkpoint has no action type",
                path=path,
                version=self.checkpoint.version,
                expected=_TYPE,
            )
        if _FORMAT in frame.columns:
            frame = _with_format(frame)
        schema = actions.schema()
        try:
            rows = frame.with_columns(
                pl.col(_TYPE).cast(pl.String).replace(_SPEC_NAMES),
                *(
                    pl.col(name).cast(schema[name])
                    for name, dtype in frame.schema.items()
                    if name != _TYPE and dtype != schema[name]
                ),
            )
        except pl.exceptions.PolarsError as cause:
            raise InvalidActionError(
                "a column of the checkpoint has the wrong type",
                path=path,
                version=self.checkpoint.version,
                found=str(cause).splitlines()[0][:200],
            ) from cause
        # History has no place in a state, so a row of another type is damage and not the future.
        found = rows[_TYPE].unique(maintain_order=True)
        if strange := [kind for kind in found if kind not in _STATE_TYPES]:
            raise InvalidActionError(
                "a row of the checkpoint has an action type that cannot be in a state",
                path=path,
                version=self.checkpoint.version,
                expected=", ".join(_STATE_TYPES),
                found=strange[0],
            )
        return rows

    @contextmanager
    def _parquet(self, path: str) -> Iterator[tuple[pq.ParquetFile, Bound]]:
        version = self.checkpoint.version
        try:
            with self._store.open(path) as source:
                size_bytes = source.seek(0, os.SEEK_END)
                file = pq.ParquetFile(source, page_checksum_verification=True)
                yield file, Bound(file.metadata, size_bytes)
        except NotFoundError as cause:
            raise missing_file(
                "a file of the checkpoint was not found", path, version, cause
            ) from cause
        except LakelogError:
            raise
        except (
            pa.ArrowException,
            pl.exceptions.PolarsError,
            pl.exceptions.PanicException,
            OSError,
            ValueError,
            MemoryError,
        ) as cause:
            raise MalformedLogError(
                "the checkpoint is not a complete Parquet file",
                path=path,
                version=version,
                found=str(cause)[:200],
                hint="restore the file, or remove it if the commits below it exist",
            ) from cause


@cache
def _columns_of(kind: str) -> frozenset[str]:
    """Flattened columns that an action type fills."""
    columns = {leaf.column for _, leaf in wire().wrappers[kind].leaves()}
    return frozenset(columns | ({_FORMAT} if kind == "metaData" else set()))


def _with_format(frame: pl.DataFrame) -> pl.DataFrame:
    """Spec 004 keeps the format as one map: its ``provider``, and the options next to it."""
    # One metaData row per checkpoint: a loop costs nothing.
    formats = frame[_FORMAT].to_list()
    schema = actions.schema()
    options = [
        None if f is None else {k: v for k, v in f.items() if k not in {"provider", "options"}}
        for f in formats
    ]
    return frame.drop(_FORMAT).with_columns(
        pl.Series("formatProvider", [f and f.get("provider") for f in formats], dtype=pl.String),
        pl.Series("formatOptions", options, dtype=schema["formatOptions"]),
    )


def _require_path(frame: pl.DataFrame, path: str) -> None:
    if frame.height and ("path" not in frame.columns or frame["path"].null_count()):
        raise InvalidActionError(
            "a file action of the checkpoint lacks its path", path=path, expected="path"
        )
