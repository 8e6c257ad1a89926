"""Commits: bytes to actions, with the defaults of the format.

Paths are not percent-encoded in an IndexTables log: the writers put the name that the file has on
disk (whose partition folders may themselves hold Hive's ``%XX`` escapes), and the readers use it
as it is. Decoding it would name another file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from lakelog import actions
from lakelog.formats.base import Actions, CommitFile
from lakelog.formats.commits import read_commits
from lakelog.formats.indextables.docmapping import registry_of_meta, resolve_references
from lakelog.formats.indextables.framing import unframe
from lakelog.formats.indextables.listing import list_commits
from lakelog.formats.ndjson import Blob, decode_lines
from lakelog.formats.wire import Wire
from lakelog.storage import LogStore

_FILE_DEFAULTS: dict[str, object] = {"dataChange": True}
_SKIP_DEFAULTS: dict[str, object] = {"skipCount": 1, "skipOperation": ""}


def wire() -> Wire:
    """The JSON spelling of IndexTables."""
    return Wire.of("indextables")


def decode_commits(
    store: LogStore, commits: Sequence[CommitFile], *, files: bool = True
) -> Actions:
    """Read and decode commits; see `lakelog.formats.base.Dialect.decode`.

    A ``docMappingRef`` is resolved where the mapping is registered in one of these commits.
    """
    return decode_blobs(read_commits(store, commits, _unframe), files=files)


def _unframe(data: bytes, commit: CommitFile) -> bytes:
    return unframe(data, commit.path, commit.version)


def decode_blobs(blobs: Iterable[Blob], *, files: bool = True) -> Actions:
    """Decode unframed NDJSON and fill in what the format says of absent fields."""
    decoded = decode_lines(blobs, wire(), files=files)
    meta = _fill_skips(decoded.meta)
    rows = _fill(decoded.files, _FILE_DEFAULTS)
    rows = resolve_references(rows, registry_of_meta(meta))
    return Actions(rows, meta, decoded.other, decoded.commit_infos)


def meta_at_or_below(store: LogStore, version: int) -> pl.DataFrame:
    """Protocol, metaData and mergeskip rows of every JSON commit up to `version` that is on disk.

    Checkpoints of other writers leave out skips, and an Avro state may leave out protocol and
    metadata; these commits are where they still stand.
    """
    commits = list_commits(store, end=version)
    if not commits:
        return actions.concat([])
    return decode_commits(store, commits, files=False).meta


def _fill(frame: pl.DataFrame, defaults: dict[str, object]) -> pl.DataFrame:
    if not frame.height:
        return frame
    schema = actions.schema()
    return frame.with_columns(
        pl.col(column).fill_null(pl.lit(value, dtype=schema[column]))
        if column in frame.columns
        else pl.lit(value, dtype=schema[column]).alias(column)
        for column, value in defaults.items()
    )


def _fill_skips(meta: pl.DataFrame) -> pl.DataFrame:
    is_skip = pl.col("actionType") == "mergeskip"
    if not meta.height or not meta.select(is_skip.any()).item():
        return meta
    schema = actions.schema()
    return meta.with_columns(
        pl.when(is_skip)
        .then(
            pl.coalesce(column, pl.lit(value, dtype=schema[column]))
            if column in meta.columns
            else pl.lit(value, dtype=schema[column])
        )
        .alias(column)
        for column, value in _SKIP_DEFAULTS.items()
    )
