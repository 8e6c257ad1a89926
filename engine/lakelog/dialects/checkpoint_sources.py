"""Opens the Parquet files of a checkpoint, and keeps footers and ranges fetched from remote stores.

A length from a listing or a manifest is a hint: if the file cannot be opened with it, the length is
requested from the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from typing import BinaryIO, NamedTuple, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.log_content import Checkpoint
from lakelog.dialects.parquet_files import open_parquet
from lakelog.dialects.row_group_records import BoundsType, read_record
from lakelog.errors import LakelogError, MalformedLogError, NotFoundError
from lakelog.storage import LogStore
from lakelog.storage.ranged import Range, RangedFile

_BUFFER_BYTES = 1 << 18  # per column, if no column is read whole
_FOOTER_BYTES = 4 << 20  # of cached footers; parsed, they take several times as much
_KEPT_BYTES = 64 << 20  # of files on a remote store, while the reader lives
_KEPT_FILES = 32

_Identity = tuple[int, ...] | None
"""Identity of an opened file; None if the store has none."""


class FileTotals(NamedTuple):
    """Number of rows, or lines, in files of a checkpoint, and total length of these files."""

    actions: int
    size_bytes: int


def add_up(totals: Mapping[str, FileTotals], paths: Sequence[str]) -> FileTotals | None:
    """The sum for several files; None if one of them was not opened."""
    found = [totals[path] for path in paths if path in totals]
    if len(found) < len(paths):
        return None
    return FileTotals(sum(each.actions for each in found), sum(each.size_bytes for each in found))


Prefetch = Callable[[Iterable[Range]], None]
"""Fetches ranges of a file in one round trip."""


@dataclass(frozen=True)
class _Footer:
    identity: _Identity
    metadata: pq.FileMetaData
    record: pl.DataFrame | None


class CheckpointParquet(pq.ParquetFile):  # type: ignore[misc] # pyarrow has no types
    """A file of a checkpoint; `prefetch` fetches ranges ahead if that saves round trips."""

    record: pl.DataFrame | None = None
    size_bytes = 0
    prefetch: Prefetch | None = None


class CheckpointSources:
    """The files of one checkpoint; with `batch_bytes`, memory is bounded and nothing is cached."""

    def __init__(
        self,
        store: LogStore,
        checkpoint: Checkpoint,
        batch_bytes: int | None,
        bounds_type: Callable[[pa.Schema], BoundsType],
    ) -> None:
        self._store = store
        self._version = checkpoint.version
        self._is_bounded = batch_bytes is not None
        self._bounds_type = bounds_type
        self._sizes = checkpoint.size_bytes_by_path
        self._recorded: dict[str, int] = {}
        self._sources: dict[str, RangedFile] = {}
        self._footers: dict[str, _Footer] = {}
        self.totals: dict[str, FileTotals] = {}

    def expect(self, sizes: Mapping[str, int]) -> None:
        """Open these files with recorded lengths, while that works: it saves requests."""
        self._recorded = {path: size for path, size in sizes.items() if size > 0}

    @contextmanager
    def parquet(self, path: str) -> Iterator[CheckpointParquet]:
        """Open a file."""
        with self.opened(path) as (_, file):
            yield file

    @contextmanager
    def twin(
        self,
        path: str,
        source: BinaryIO,
        file: pq.ParquetFile,
        dictionaries: Sequence[str] | None = None,
    ) -> Iterator[pq.ParquetFile]:
        """Open a file for another thread with its parsed footer, leaves as `dictionaries`."""
        if isinstance(source, pa.NativeFile):
            # Not by its name, under which another checkpoint writer may have published another
            # file.
            yield self._parsed(source, file.metadata, dictionaries)
            return
        with self.opened(path, file.metadata) as (other, twin):
            yield twin if dictionaries is None else self._parsed(other, file.metadata, dictionaries)

    @contextmanager
    def opened(
        self, path: str, footer: pq.FileMetaData | None = None
    ) -> Iterator[tuple[BinaryIO, CheckpointParquet]]:
        """Open a file as source and Parquet; `footer` is its own, if already parsed."""
        source: BinaryIO | None = None
        try:
            with unreadable_is_malformed(path, self._version):
                source, file = self._open(path, footer)
                yield source, file
        finally:
            if source is not None:
                source.close()

    def _open(
        self, path: str, footer: pq.FileMetaData | None
    ) -> tuple[BinaryIO, CheckpointParquet]:
        """A file of the checkpoint, and its source; cached ranges are not fetched again."""
        recorded = self._recorded.get(path)
        size = self._sizes.get(path, recorded)
        kept = self._sources.get(path)
        try:
            if kept is None:
                opened = self._store.open(path, size)
                identity = _identity(opened)
                source = _read_by_arrow(opened)
            else:
                source, identity = cast("BinaryIO", kept.reopen()), (id(kept),)
            try:
                return source, self._file(path, source, identity, footer)
            except BaseException:
                source.close()
                raise
        except (pa.ArrowException, LakelogError) as error:
            if size is None or (recorded is None and isinstance(error, LakelogError)):
                raise
            # The file may have been replaced since it was listed: a hint never decides.
            self._sizes.pop(path, None)  # another thread may have removed it
            self._recorded.pop(path, None)
            self._sources.pop(path, None)
            return self._open(path, footer)

    def _file(
        self, path: str, source: BinaryIO, identity: _Identity, footer: pq.FileMetaData | None
    ) -> CheckpointParquet:
        remote = source if isinstance(source, RangedFile) and not self._is_bounded else None
        before = self._footers.get(path)
        if before is not None and before.identity == identity:
            file = self._parsed(source, before.metadata)
            file.record = before.record
        else:
            file = self._parsed(source, footer)
            file.record = read_record(file, path, self._bounds_type(file.schema_arrow))
            if remote is not None and len(self._sources) < _KEPT_FILES:
                identity = (id(self._sources.setdefault(path, remote)),)
            self._keep_footer(path, _Footer(identity, file.metadata, file.record))
        file.size_bytes = _length(source)
        self.totals[path] = FileTotals(file.metadata.num_rows, file.size_bytes)
        if remote is not None:
            remote.keep_at_most(_KEPT_BYTES // _KEPT_FILES)
            file.prefetch = remote.prefetch
        return file

    def _keep_footer(self, path: str, footer: _Footer) -> None:
        """Cache a footer while the reader lives, if there is space."""
        held = sum(other.metadata.serialized_size for other in tuple(self._footers.values()))
        if footer.identity is not None and held + footer.metadata.serialized_size <= _FOOTER_BYTES:
            self._footers[path] = footer

    def _parsed(
        self,
        source: BinaryIO,
        footer: pq.FileMetaData | None,
        dictionaries: Sequence[str] | None = None,
    ) -> CheckpointParquet:
        file: CheckpointParquet = open_parquet(
            source,
            CheckpointParquet,
            metadata=footer,
            read_dictionary=dictionaries,
            buffer_size=_BUFFER_BYTES if self._is_bounded else 0,
            pre_buffer=not self._is_bounded,  # otherwise whole columns are read anyway
            page_checksum_verification=True,
            # As nanoseconds, times after 2262 in files of Spark would overflow.
            coerce_int96_timestamp_unit="us",
        )
        return file


@contextmanager
def unreadable_is_malformed(path: str, version: int) -> Iterator[None]:
    """Convert errors of reading a checkpoint's file to errors of the log."""
    hint = "restore the file, or remove the checkpoint's files if its commits exist"
    try:
        yield
    except NotFoundError as cause:
        raise MalformedLogError(
            "a file of the checkpoint was not found", path=path, version=version, hint=hint
        ) from cause
    except LakelogError:
        raise
    except (
        pa.ArrowException,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,  # for example, of metadata that is not UTF-8
        OSError,
        ValueError,
        MemoryError,
    ) as cause:
        reason = next(iter(str(cause).splitlines()), type(cause).__name__)[:200].rstrip(".")
        raise MalformedLogError(
            f"the checkpoint cannot be read: {reason}",
            path=path,
            version=version,
            expected="whole Parquet",
            hint=hint,
        ) from cause


def _length(source: BinaryIO) -> int:
    """Length of an open file, in bytes."""
    if isinstance(source, pa.NativeFile):
        return int(source.size())
    return source.size_bytes if isinstance(source, RangedFile) else source.seek(0, os.SEEK_END)


def _identity(source: BinaryIO) -> _Identity:
    """Identity of an open local file, independent of its name; None for other files."""
    if not isinstance(source, FileIO):
        return None
    status = os.fstat(source.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_by_arrow(source: BinaryIO) -> BinaryIO:
    """The same local file opened by Arrow, because reads through Python wait for its lock."""
    if not isinstance(source, FileIO) or not isinstance(source.name, str):
        return source
    try:
        opened = pa.OSFile(source.name)
    except OSError:  # deleted since, so the open file is read
        return source
    source.close()
    return cast("BinaryIO", opened)
