"""Reads flattened Parquet checkpoints: one row per action, in ``_checkpoints/``.

Two schemas are read: lakelog's own (``schemas/actions.json``), and the plain ``CheckpointEntry`` of
specification 004, whose metadata rows have ``actionType`` ``metadata`` and a ``format`` map, and
which has neither protocol nor skips (they are read from the commits that the checkpoint covers).

The ``<v>.checkpoint.json`` next to them is a hint: the names of the parts show which belong
together, and their footers whether they are complete. Its records of the row groups of a part
(`lakelog.dialects.row_group_records`) are used if the part has the recorded length; a condition
then opens only parts that can contain a match.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache

import orjson
import polars as pl
import pyarrow as pa

from lakelog.dialects.checkpoint_sources import CheckpointParquet, CheckpointSources
from lakelog.dialects.indextables.columnar import lacking_field, with_unknown
from lakelog.dialects.indextables.commits import (
    compose_meta,
    meta_at_or_below,
    one_protocol,
    project,
    wire,
)
from lakelog.dialects.indextables.docmapping import registry_of_meta, resolve_references
from lakelog.dialects.indextables.listing import list_commits, metadata_path
from lakelog.dialects.indextables.text_bounds import bounds_type
from lakelog.dialects.log_content import CHECKPOINT_META, Checkpoint, CheckpointReader, RowGroups
from lakelog.dialects.parquet_footers import Bound, chunk_ranges
from lakelog.dialects.row_group_records import (
    RECORD_KEY,
    groups_of,
    groups_of_others,
    parse_records,
    require_held,
    require_row_groups,
)
from lakelog.dialects.row_validation import exact_casts
from lakelog.errors import InvalidActionError, LakelogError, MalformedLogError
from lakelog.lazy import cached_property
from lakelog.model import actions
from lakelog.model.contract import without_metadata
from lakelog.storage import LogStore

_BATCH_ROWS = 1 << 16
_TYPE = "actionType"
_FORMAT = "format"
_ROW_COLUMNS = ("version", "position", "timestamp", "extra")
FILES_KEY = "lakelog.files"
"""Key of the metadata with a description of each Parquet file of the checkpoint, in order."""
_STATE_TYPES = (*actions.FILE_ACTIONS, *CHECKPOINT_META)
_SPEC_NAMES = {"metadata": "metaData"}


class FlattenedReader(CheckpointReader):
    """Reads one flattened checkpoint. Memory: a batch of at most 65,536 rows, and the footers."""

    def __init__(
        self, store: LogStore, checkpoint: Checkpoint, batch_bytes: int | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self._store = store
        self._sizes = checkpoint.size_bytes_by_path
        self._sources = CheckpointSources(store, checkpoint, batch_bytes, lambda _: bounds_type)

    def read_meta(self, kinds: Sequence[str] = CHECKPOINT_META) -> pl.DataFrame:
        """Non-file actions; those that other writers omit come from the commits below."""
        own: list[pl.DataFrame] = []
        for path in self.checkpoint.paths:
            if path in self._described and not groups_of_others(self._described[path].frame):
                continue
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
        """Whether every part has lakelog's schema, which alone has skips."""
        for path in self.checkpoint.paths:
            if path in self._described:
                continue
            with self._parquet(path) as (file, _):
                if "skipTimestamp" not in file.schema_arrow.names:
                    return False
        return True

    def iter_files(
        self, columns: Sequence[str], kinds: Sequence[str] = actions.FILE_ACTIONS
    ) -> Iterator[pl.DataFrame]:
        """File actions in batches, in the order of the parts."""
        registry = self._registry(columns)
        for path in self.checkpoint.paths:
            with self._parquet(path) as (file, bound):
                groups: Sequence[int] = range(file.num_row_groups)
                if file.record is not None:
                    groups = groups_of(file.record, kinds)
                yield from self._read_files(file, path, bound, columns, kinds, groups, registry)

    def _registry(self, columns: Sequence[str]) -> dict[str, str]:
        """Document mappings that rows refer to, if `columns` needs them."""
        if "docMappingJson" not in columns:
            return {}
        return registry_of_meta(self.read_meta(("metaData",)))

    def _read_files(
        self,
        file: CheckpointParquet,
        path: str,
        bound: Bound,
        columns: Sequence[str],
        kinds: Sequence[str],
        groups: Sequence[int],
        registry: Mapping[str, str],
    ) -> Iterator[pl.DataFrame]:
        wanted = {_TYPE, "path", *columns}
        if "docMappingJson" in wanted:
            wanted.add("docMappingRef")
        names = _held(file.schema_arrow.names, wanted)
        for frame in self._batches(file, groups, names, path):
            rows = resolve_references(frame, registry)
            for part in project([rows], columns, kinds):
                _require_fields(part, path, kinds, wanted)
                bound.check(part)
                if part.height:
                    yield part

    def row_groups(self) -> tuple[RowGroups, ...]:
        """See `lakelog.dialects.log_content.SkippingReader`."""
        found: list[RowGroups] = []
        for path in self.checkpoint.paths:
            known = self._described.get(path)
            if known is None:
                with self._parquet(path) as (file, _):
                    if file.record is None or "bounds" not in file.record.columns:
                        return ()
                    known = RowGroups(path, self._sizes.get(path, 0), file.record)
            found.append(known)
        return tuple(found)

    def iter_row_groups(
        self, columns: Sequence[str], chosen: Iterable[tuple[RowGroups, Sequence[int]]], kind: str
    ) -> Iterator[pl.DataFrame]:
        """See `lakelog.dialects.log_content.SkippingReader`. Memory: as `iter_files`."""
        registry = self._registry(columns)
        for recorded, groups in chosen:
            path = recorded.path
            with self._parquet(path) as (file, bound):
                require_row_groups(recorded, file, self.checkpoint.version)
                held = 0
                for frame in self._read_files(
                    file, path, bound, columns, (kind,), groups, registry
                ):
                    held += frame.height
                    yield frame
                require_held(recorded, groups, kind, held, self.checkpoint.version)

    @cached_property
    def _described(self) -> Mapping[str, RowGroups]:
        """Row groups of several parts from the metadata file, if it describes all of them."""
        parts = self.checkpoint.paths
        if len(parts) < 2 or len(self._sizes) < len(parts):
            return {}
        try:
            body = orjson.loads(self._store.read(metadata_path(self.checkpoint.version)))
            described = body[FILES_KEY]
            sizes = [each["sizeInBytes"] for each in described]
            records = [str(each[RECORD_KEY]) for each in described]
        except (LakelogError, ValueError, TypeError, KeyError):
            return {}
        if sizes != [self._sizes[path] for path in parts]:
            return {}
        found: dict[str, RowGroups] = {}
        for path, size, record in zip(parts, sizes, records, strict=True):
            # One at a time, because parts may have bounds of different columns.
            frames = parse_records({path: record}, bounds_type)
            if frames is None:
                return {}
            found[path] = RowGroups(path, size, frames[path])
        return found

    def files_read(self) -> tuple[str, ...]:
        """The parts, in order; for a plain checkpoint also the commits that it covers."""
        if self._is_complete:
            return self.checkpoint.paths
        below = list_commits(self._store, end=self.checkpoint.version)
        return (*self.checkpoint.paths, *(commit.path for commit in below))

    def _read_meta_rows(
        self, file: CheckpointParquet, path: str, kinds: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """Rows of `kinds`; the other columns of a row group are read only if it has such rows."""
        names = file.schema_arrow.names
        if _TYPE not in names:
            self._frame(pa.table({}), path)
        groups = range(file.num_row_groups)
        for group in groups if file.record is None else groups_of_others(file.record):
            found: set[str] = set()
            for types in self._batches(file, [group], [_TYPE], path):
                found |= set(types[_TYPE].unique()).intersection(kinds)
            if not found:
                continue
            wanted = {_TYPE, *_ROW_COLUMNS}.union(*(_columns_of(kind) for kind in found))
            columns = _held(names, wanted)
            for frame in self._batches(file, [group], columns, path):
                rows = actions.of_type(frame, *kinds)
                _require_fields(rows, path, kinds)
                yield rows

    def _batches(
        self, file: CheckpointParquet, groups: Sequence[int], columns: list[str], path: str
    ) -> Iterator[pl.DataFrame]:
        rows_read = 0
        if file.prefetch is not None:
            file.prefetch(chunk_ranges(file.metadata, groups, columns))
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=columns):
            rows_read += batch.num_rows
            yield self._frame(pa.Table.from_batches([batch]), path)
        expected = sum(file.metadata.row_group(group).num_rows for group in groups)
        self._check_rows(path, expected, rows_read)

    def _check_rows(self, path: str, expected: int, found: int) -> None:
        # If a damaged page header makes a column short, Arrow ends the read early without an error.
        if expected != found:
            raise MalformedLogError(
                "the checkpoint has fewer rows than its footer records",
                path=path,
                version=self.checkpoint.version,
                expected=f"{expected} rows",
                found=f"{found} rows",
            )

    def _frame(self, table: pa.Table, path: str) -> pl.DataFrame:
        """Convert Arrow to the contract's columns and dtypes, and rename other writers'."""
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
        try:
            rows = with_unknown(frame.with_columns(exact_casts(frame)))
        except pl.exceptions.PolarsError as cause:
            raise InvalidActionError(
                "a column of the checkpoint has the wrong type",
                path=path,
                version=self.checkpoint.version,
                found=str(cause).splitlines()[0][:200],
            ) from cause
        rows = rows.with_columns(pl.col(_TYPE).replace(_SPEC_NAMES))
        # A state has no history, so a row of another type is damage, not a later format.
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
    def _parquet(self, path: str) -> Iterator[tuple[CheckpointParquet, Bound]]:
        with self._sources.opened(path) as (_, file):
            yield file, Bound(file.metadata, file.size_bytes)


@cache
def _columns_of(kind: str) -> frozenset[str]:
    """Flattened columns of an action type."""
    columns = {leaf.column for _, leaf in wire().wrappers[kind].leaves()}
    return frozenset(columns | ({_FORMAT} if kind == "metaData" else set()))


def _held(names: Sequence[str], wanted: Collection[str]) -> list[str]:
    """The wanted columns of a file; unknown ones are a part of ``extra``."""
    known = {*actions.schema(), _FORMAT} if "extra" in wanted else set(names)
    return [name for name in names if name in wanted or name not in known]


def _with_format(frame: pl.DataFrame) -> pl.DataFrame:
    """Specification 004 stores the format as one map: its ``provider``, and the options."""
    # One metaData row per checkpoint, so a loop costs nothing.
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


def _require_fields(
    frame: pl.DataFrame, path: str, kinds: Sequence[str], columns: Iterable[str] | None = None
) -> None:
    if lacking := lacking_field(frame, kinds, columns):
        kind, column = lacking
        raise InvalidActionError(f"{kind} lacks a required field", path=path, expected=column)
