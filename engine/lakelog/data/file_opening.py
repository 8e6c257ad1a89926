"""Opens the data file of a path in the log, and compares the file with its add action.

A path is relative to the table, or absolute, as in a shallow clone: a URL, or a path on the table's
own store. It is already decoded and not decoded again. `lakelog.storage.containment` decides which
paths may be opened.

A replaced or damaged file may still be valid Parquet. Its length, its number of rows and the
columns that it lacks are compared with ``size`` and ``stats`` of its add action before a row is
returned. A statistic that is missing or malformed proves nothing.

Source: Delta protocol, Add File and Remove File; Per-file Statistics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NoReturn

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.parquet_files import open_parquet
from lakelog.errors import (
    CorruptionError,
    ExternalPathError,
    LakelogError,
    NotFoundError,
    UnavailableError,
)
from lakelog.redaction import redact_path
from lakelog.storage.bounded import FileLocator, on_local_disk, unbounded
from lakelog.storage.local import LocalStore, read_small, unavailable

_SMALL_BYTES = 1 << 18
"""Maximum length of a local file that is read completely before its footer is parsed."""

_BUFFER_BYTES = 1 << 20  # per column that is being read


class Sources(FileLocator):
    """Opens the data files of a table; safe to use from several threads."""

    @property
    def is_local(self) -> bool:
        """Whether the table is on local disk."""
        return on_local_disk(self._own)

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """A seekable reader over a file, by its path in the log; errors as `LogStore.open`."""
        store, name = self.locate(path)
        return store.open(name, size_bytes)

    def parquet(self, path: str, size_bytes: int | None) -> tuple[pq.ParquetFile, bool]:
        """A Parquet file, and whether it is best read a row group at a time; close it with
        ``force=True``. A remote file's columns are fetched together, and kept until the read ends.
        """
        store, name = self.locate(path)
        source: Any
        disk = unbounded(store)
        is_local = isinstance(disk, LocalStore)
        if isinstance(disk, LocalStore):
            local = disk.path_of(name)
            try:
                # With its actual length, because the log's may be wrong.
                content = read_small(local, path, _SMALL_BYTES)
                source = pa.OSFile(local) if content is None else pa.BufferReader(content)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as cause:
                raise NotFoundError("the file was not found", path=path) from cause
            except OSError as cause:
                raise unavailable(path, cause) from cause
        else:
            source = store.open(name, size_bytes)
        try:
            _require_size(size_bytes, source.size() if is_local else None)
            file = open_parquet(
                source,
                buffer_size=_BUFFER_BYTES if is_local else 0,
                pre_buffer=not is_local,
                page_checksum_verification=True,
                # As nanoseconds, times after 2262 in files of Spark would overflow.
                coerce_int96_timestamp_unit="us",
            )
        except BaseException:
            source.close()
            raise
        return file, not is_local

    def size(self, path: str) -> int | None:
        """Actual length of a file; None if unknown."""
        try:
            entry = self.stat(path)
        except LakelogError:
            return None
        return None if entry is None else entry.size_bytes

    def is_own(self, path: str) -> bool:
        """Whether a file is inside the table's folder, under this relative path."""
        try:
            return self._locations.resolve(path) == path
        except ExternalPathError:
            return False

    def name(self, path: str) -> str:
        """The file's name in its store, as in the store's errors."""
        try:
            return self.locate(path)[1]
        except LakelogError:
            return path


def raise_explained(
    error: Exception, path: str, version: int | None, sources: Sources, size_bytes: int | None
) -> NoReturn:
    """Raise an error of a data file as one that names it; other errors are raised unchanged."""
    match error:
        case NotFoundError():
            if error.path not in {None, path, sources.name(path)}:  # of its deletion vector
                error.version = version
                raise error
            raise NotFoundError(
                "a data file that the log refers to was not found",
                path=path,
                version=version,
                hint="the file was deleted: check for a recent vacuum, and restore the file; "
                "repair(check_files=True), or lakelog repair --check-files, lists all such files",
            ) from error
        case LakelogError():
            if error.path in {None, sources.name(path)}:
                error.path = redact_path(path)
            error.version = version if error.version is None else error.version
        case MemoryError():  # encoded repeated values expand
            raise UnavailableError(
                "a data file needs more memory than is available",
                path=path,
                version=version,
                found=None if size_bytes is None else f"{size_bytes} bytes of Parquet",
                hint="read fewer columns, use smaller batches, or allow more memory",
            ) from error
        case pa.ArrowException() | OSError() | ValueError() | IndexError():
            found = sources.size(path)
            short = found is not None and size_bytes is not None and found != size_bytes
            text = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise CorruptionError(
                f"a data file cannot be read: {text}",
                path=path,
                version=version,
                expected=f"{size_bytes} bytes of Parquet" if short else "whole Parquet",
                found=f"{found} bytes" if short else None,
                hint="restore the file from a copy; its rows cannot be read",
            ) from error
    raise error


_HINT = (
    "the file was replaced or damaged after its commit: restore it from a copy, or "
    "restore the table to a version before the file"
)

Path = tuple[str, ...]


def _require_size(recorded: int | None, found: int | None) -> None:
    """Refuse a file of another length than the log records."""
    if recorded is None or found is None or found == recorded:
        return
    raise CorruptionError(
        "the length of a data file differs from the log",
        expected=f"{recorded} bytes of Parquet",
        found=f"{found} bytes",
        hint=_HINT,
    )


def require_contents(
    stats: str | None, num_rows: int, num_deleted: int, absent: Collection[Path]
) -> None:
    """Refuse a file whose rows and columns contradict the statistics that the log records."""
    recorded = _parsed(stats)
    records, is_tight = recorded.get("numRecords"), recorded.get("tightBounds") is not False
    # Trino's ANALYZE counts the rows that are not deleted.
    counts = {num_rows, num_rows - num_deleted} if is_tight else {num_rows}
    if type(records) is int and records not in counts:
        raise CorruptionError(
            "the number of rows of a data file differs from the log",
            expected=f"{records} rows",
            found=f"{num_rows} rows",
            hint=_HINT,
        )
    # The null count of a file with deleted rows, or with wide bounds, may omit nulls.
    most = num_rows if is_tight and not num_deleted else 1
    for column in absent if num_rows > num_deleted else ():
        for path, evidence in _values(recorded, column, most):
            raise CorruptionError(
                f"a data file has no column {'.'.join(path)!r}, but the log records values of it",
                expected=evidence,
                found="no such column",
                hint=_HINT,
            )


def _parsed(stats: str | None) -> dict[str, Any]:
    try:
        found = orjson.loads(stats) if stats else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _values(recorded: dict[str, Any], column: Path, most: int) -> Iterator[tuple[Path, str]]:
    """The leaves at and below a column with a value, and the statistic that proves it."""
    for path, nulls in _leaves(_below(recorded.get("nullCount"), column), column):
        if type(nulls) is int and nulls < most:
            yield path, f"nullCount {nulls}"
    for kind in ("minValues", "maxValues"):
        for path, bound in _leaves(_below(recorded.get(kind), column), column):
            if bound is not None:
                yield path, f"{kind} {bound}"


def _below(tree: Any, path: Path) -> Any:
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _leaves(tree: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(tree, dict):
        for name, below in tree.items():
            yield from _leaves(below, (*path, name))
    else:
        yield path, tree
