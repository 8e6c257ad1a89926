"""`DiskCache`: decoded file columns of checkpoints, kept in a local folder for other processes.

An entry is a folder named after a checkpoint's identity: location, paths, lengths and modification
times of its files, and the versions of lakelog and Polars. It has one Arrow IPC file per column,
with the reader's batches, which reads map into memory without copying.

Each file ends with its length and a CRC-32C over its name and content. A file with a wrong
checksum, of another kind, or of another owner is deleted, and the checkpoint is read. Files are
created atomically, and deleted or replaced but never changed, because processes map them. There are
no locks and no fsyncs: a lost file is decoded again. A failure of the cache never makes a read
fail.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import secrets
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import google_crc32c
import orjson
import polars as pl
import pyarrow as pa

from lakelog import telemetry
from lakelog.dialects.log_content import Checkpoint
from lakelog.display import Displayed, size_text
from lakelog.errors import InvalidInputError
from lakelog.input_validation import checked_methods, local_path, require_int, require_path
from lakelog.redaction import redact
from lakelog.storage.base import FileEntry
from lakelog.version import __version__

_DEFAULT_MAX_BYTES = 10 << 30
"""Default size in bytes after which entries are evicted."""

_FORMAT = 1  # must be increased if decoded columns change and the version does not
_ALWAYS = ("actionType", "path")
_DESCRIPTION = "checkpoint.json"
_ENTRY = re.compile(r"[0-9a-f]{32}")
_TEMPORARY = ".tmp"
_ABANDONED_S = 3600.0  # seconds after which a temporary file belongs to a process that has ended
_TRAILER = struct.Struct("<8sQI")
_MAGIC = b"lakelog\x01"
_CHUNK_BYTES = 1 << 20
_OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_NEWEST = pl.CompatLevel.newest()


@checked_methods()
class DiskCache(Displayed):
    """Decoded columns of checkpoints in a folder of local disk, for `lakelog.open(cache=)`.

    Args:
        directory: The folder; created for this user alone. It may be shared by any number of
            tables and processes.
        max_bytes: Size in bytes after which the least recently used entries are deleted. Larger
            columns of one checkpoint are not stored.

    Raises:
        InvalidInputError: `directory` cannot be created, is not a folder, belongs to another user,
            or can be written by others.

    Example:
        >>> import tempfile
        >>> cache = DiskCache(tempfile.mkdtemp(), max_bytes=1 << 30)
        >>> cache.entries().columns
        ['table', 'version', 'columns', 'size_bytes', 'used_at']
        >>> cache.clear()
        0
    """

    def __init__(
        self, directory: str | os.PathLike[str], max_bytes: int = _DEFAULT_MAX_BYTES
    ) -> None:
        require_path("directory", directory)
        self.directory = os.path.abspath(_made_private(directory))
        self.max_bytes = require_int("max_bytes", max_bytes, 1, 1 << 62)

    def __repr__(self) -> str:
        return f"DiskCache({self.directory!r}, max_bytes={self.max_bytes})"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        used = int(self.entries()["size_bytes"].sum())
        return [
            ("directory", self.directory),
            ("used", f"{size_text(used)} of {size_text(self.max_bytes)}"),
        ]

    def __fspath__(self) -> str:
        return self.directory

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskCache, (self.directory, self.max_bytes)

    def entries(self) -> pl.DataFrame:
        """One row per checkpoint, most recently used first.

        Returns:
            ``table`` (String, its location), ``version`` (Int64), ``columns`` (Int64, number of the
            entry's files), ``size_bytes`` (Int64), ``used_at`` (Datetime in milliseconds, UTC).
        """
        found = sorted(_scan(self.directory), key=lambda entry: -entry.used_s)
        described = [entry.describe() for entry in found]
        return pl.DataFrame(
            {
                "table": [table for table, _ in described],
                "version": [version for _, version in described],
                "columns": [entry.columns for entry in found],
                "size_bytes": [entry.size_bytes for entry in found],
                "used_at": [int(entry.used_s * 1000) for entry in found],
            },
            schema={
                "table": pl.String,
                "version": pl.Int64,
                "columns": pl.Int64,
                "size_bytes": pl.Int64,
                "used_at": pl.Datetime("ms", "UTC"),
            },
        )

    @property
    def size_bytes(self) -> int:
        """Total size of all entries, in bytes."""
        return sum(entry.size_bytes for entry in _scan(self.directory))

    def clear(self) -> int:
        """Delete all entries; other files in the folder are kept. Return the deleted bytes.

        Processes that have mapped an entry can continue to read it.
        """
        return sum(entry.delete() for entry in _scan(self.directory))


def columns_of(
    cache: DiskCache,
    table: str,
    checkpoint: Checkpoint,
    files: Mapping[str, FileEntry | None],
    count: Callable[[bool], None],
) -> CachedColumns | None:
    """The entry of a checkpoint, possibly empty; None if one of its files is not listed."""
    entries = [files.get(path) for path in checkpoint.paths]
    if not entries or None in entries:
        return None
    marks = [(e.size_bytes, e.modified_ms) for e in entries if e is not None]
    identity = orjson.dumps(
        [
            [_FORMAT, __version__, pl.__version__],
            [table, checkpoint.layout, checkpoint.version],
            [[path, *mark] for path, mark in zip(checkpoint.paths, marks, strict=True)],
        ]
    )
    name = sha256(identity).hexdigest()[:32]
    described = {"table": redact(table), "version": checkpoint.version}
    folder = os.path.join(cache.directory, name)
    return CachedColumns(cache, folder, orjson.dumps(described), count)


def _scan(directory: str) -> list[_Entry]:
    found = []
    with suppress(OSError), os.scandir(directory) as folders:
        for folder in folders:
            if _ENTRY.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                with suppress(OSError):  # another process has deleted it
                    found.append(_Entry.of(folder))
    return found


def _evict(cache: DiskCache) -> None:
    """Delete temporary files of killed processes, then the least recently used entries."""
    found = sorted(_scan(cache.directory), key=lambda entry: entry.used_s)
    total = sum(entry.size_bytes for entry in found)
    for entry in found:
        total -= entry.delete_temporary(time.time() - _ABANDONED_S)
        if total > cache.max_bytes:
            total -= entry.delete()


@dataclass(frozen=True)
class CachedColumns:
    """The entry of one checkpoint, by its `description`; the first column creates the folder."""

    cache: DiskCache
    folder: str
    description: bytes
    count: Callable[[bool], None]

    def iter_files(
        self,
        columns: Sequence[str],
        kinds: Sequence[str],
        read: Callable[[], Iterable[pl.DataFrame]],
    ) -> Iterator[pl.DataFrame]:
        """File actions from the entry if it has all columns, else from `read`, then stored."""
        wanted = list(dict.fromkeys((*_ALWAYS, *columns)))
        found = self._load(wanted, kinds)
        self.count(found is not None)
        if found is not None:
            with suppress(OSError):
                os.utime(self.folder)  # marks the entry as used
            yield from found
            return
        with ExitStack() as stack:
            writer: _Writer | None = None
            for number, frame in enumerate(read()):
                if not number:
                    writer = self._begin(wanted, kinds, stack)
                if writer is not None and not self._attempt(writer.add, frame):
                    writer = None
                yield frame
            if writer is not None and self._attempt(writer.finish):
                _evict(self.cache)

    def _begin(
        self, columns: Sequence[str], kinds: Sequence[str], stack: ExitStack
    ) -> _Writer | None:
        names = {c: n for c, n in _names(columns, kinds).items() if not self._has(n)}
        writer = _Writer(self.folder, names, self.cache.max_bytes)
        stack.callback(writer.abandon)
        return writer if self._attempt(lambda: writer.begin(self.description)) else None

    def _attempt(self, write: Callable[..., bool], *args: object) -> bool:
        """Whether a step of writing succeeded; reads continue without the cache if not."""
        try:
            return write(*args)
        except (OSError, ValueError, pa.ArrowException, pl.exceptions.PolarsError) as error:
            telemetry.event(
                "cache.write_failed", logging.WARNING, cache=self.folder, error=str(error)
            )
            return False

    def _load(self, columns: Sequence[str], kinds: Sequence[str]) -> Iterator[pl.DataFrame] | None:
        """The frames of the columns, if all are complete and have equally many rows."""
        loaded: list[tuple[str, list[pl.Series]]] = []
        rows: list[int] | None = None
        names = _names(columns, kinds)
        if not all(map(self._has, names.values())):
            return None
        for column, name in names.items():
            try:
                batches = _read_column(self.folder, name)
            except (OSError, ValueError, pa.ArrowException, pl.exceptions.PolarsError) as error:
                self._drop(name, str(error))
                return None
            lengths = [batch.num_rows for batch in batches]
            if rows is not None and sum(lengths) != sum(rows):
                self._drop(name, f"{sum(lengths)} rows instead of {sum(rows)}")
                return None
            rows = lengths if rows is None else rows
            if batches and batches[0].num_columns:
                series = [pl.Series(column, pl.from_arrow(batch.column(0))) for batch in batches]
                loaded.append((column, series))
        assert rows is not None
        return _frames(loaded, rows)

    def _has(self, name: str) -> bool:
        return os.path.lexists(os.path.join(self.folder, name))

    def _drop(self, name: str, reason: str) -> None:
        path = os.path.join(self.folder, name)
        if self._has(name):
            telemetry.event("cache.dropped", logging.WARNING, path=path, reason=reason)
        with suppress(OSError):
            os.unlink(path)


def _frames(
    columns: Sequence[tuple[str, list[pl.Series]]], rows: Sequence[int]
) -> Iterator[pl.DataFrame]:
    if all([len(series) for series in batches] == rows for _, batches in columns):
        for number in range(len(rows)):
            yield pl.DataFrame([batches[number] for _, batches in columns])
        return
    # They were read at different times, in batches of different length.
    whole = pl.DataFrame([pl.concat(batches) for _, batches in columns])
    start = 0
    for length in rows:
        yield whole.slice(start, length)
        start += length


class _Writer:
    """Writes the columns of batches to temporary files, and renames them at the end."""

    def __init__(self, folder: str, names: Mapping[str, str], max_bytes: int) -> None:
        self._folder = folder
        self._names = dict(names)
        self._max_bytes = max_bytes
        self._token = f".{secrets.token_hex(8)}{_TEMPORARY}"
        self._sinks: dict[str, tuple[Any, pa.ipc.RecordBatchFileWriter]] = {}
        self._dtypes: dict[str, pl.DataType | None] = {}

    def begin(self, description: bytes) -> bool:
        """Create the folder; the cache's own too, if it was deleted."""
        for folder in (os.path.dirname(self._folder), self._folder):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        path = os.path.join(self._folder, _DESCRIPTION)
        if not os.path.lexists(path):
            with open(_create(path + self._token), "wb") as file:
                file.write(description)
            os.replace(path + self._token, path)
        return True

    def add(self, frame: pl.DataFrame) -> bool:
        """Write a batch; False if the columns are too large to keep."""
        for column in list(self._names):
            series = frame[column] if column in frame.columns else None
            dtype = None if series is None else series.dtype
            if column not in self._dtypes:
                self._dtypes[column] = dtype
                if dtype is not None and not _is_kept_as_it_is(dtype):
                    self._give_up(column)
                    continue
            if self._dtypes[column] != dtype:
                self._give_up(column)  # one file cannot have batches of different types
                continue
            self._write(column, _to_batch(series, frame.height))
        written = sum(int(file.tell()) for file, _ in self._sinks.values())
        return written <= self._max_bytes

    def _write(self, column: str, batch: pa.RecordBatch) -> None:
        if column not in self._sinks:
            file = open(_create(self._temporary(column)), "wb")  # noqa: SIM115 - closed by `finish`
            self._sinks[column] = file, pa.ipc.new_file(file, batch.schema)
        self._sinks[column][1].write_batch(batch)

    def _give_up(self, column: str) -> None:
        self._names.pop(column)
        self._discard(column)

    def _temporary(self, column: str) -> str:
        return os.path.join(self._folder, _file_name(column) + self._token)

    def finish(self) -> bool:
        """Append the checksums to the files, and rename them."""
        for column, name in self._names.items():
            file, writer = self._sinks.pop(column)
            with file:
                writer.close()
            path = self._temporary(column)
            with _mapped(path) as content:
                trailer = _TRAILER.pack(
                    _MAGIC, len(content), _checksum(self._folder, name, content)
                )
            with open(path, "ab") as file:
                file.write(trailer)
            os.replace(path, os.path.join(self._folder, name))
        return True

    def abandon(self) -> None:
        """Delete the temporary files."""
        for column in list(self._sinks):
            self._discard(column)
        paths = [self._temporary(column) for column in self._names]
        for path in (*paths, os.path.join(self._folder, _DESCRIPTION + self._token)):
            with suppress(OSError):
                os.unlink(path)

    def _discard(self, column: str) -> None:
        if column in self._sinks:
            file, writer = self._sinks.pop(column)
            with suppress(OSError, pa.ArrowException):
                writer.close()
            with suppress(OSError):
                file.close()
        with suppress(OSError):
            os.unlink(self._temporary(column))


@dataclass(frozen=True)
class _Entry:
    """The folder of one checkpoint, as it was listed."""

    folder: str
    files: Mapping[str, os.stat_result]
    used_s: float

    @staticmethod
    def of(folder: os.DirEntry[str]) -> _Entry:
        with os.scandir(folder.path) as files:
            found = {file.name: file.stat(follow_symlinks=False) for file in files}
        return _Entry(folder.path, found, folder.stat(follow_symlinks=False).st_mtime)

    @property
    def size_bytes(self) -> int:
        return sum(status.st_size for status in self.files.values())

    @property
    def columns(self) -> int:
        return sum(name.endswith(".arrow") for name in self.files)

    def describe(self) -> tuple[str | None, int | None]:
        """Location of the table and version of the checkpoint; None if they cannot be read."""
        try:
            with open(os.open(os.path.join(self.folder, _DESCRIPTION), _OPEN), "rb") as file:
                body = orjson.loads(file.read(_CHUNK_BYTES))
            return str(body["table"]), int(body["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return None, None

    def delete(self) -> int:
        """Delete it; return its bytes."""
        for name in self.files:
            with suppress(OSError):
                os.unlink(os.path.join(self.folder, name))
        with suppress(OSError):
            os.rmdir(self.folder)  # fails if another process has just written to it
        return self.size_bytes

    def delete_temporary(self, before_s: float) -> int:
        """Delete temporary files last written before a time; return their bytes."""
        deleted = 0
        for name, status in self.files.items():
            if name.endswith(_TEMPORARY) and status.st_mtime < before_s:
                with suppress(OSError):
                    os.unlink(os.path.join(self.folder, name))
                    deleted += status.st_size
        return deleted


def _names(columns: Sequence[str], kinds: Sequence[str]) -> dict[str, str]:
    """Names of the files of columns; each action type and choice of types has its own."""
    kind = "+".join(sorted(kinds))
    return {column: f"{kind}-{_file_name(column)}.arrow" for column in columns}


def _file_name(column: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", lambda found: f"%{ord(found[0]):x}", column)


def _to_batch(series: pl.Series | None, height: int) -> pa.RecordBatch:
    if series is None:  # a column that the checkpoint lacks; the rows are counted nevertheless
        rows = pa.Array.from_buffers(pa.struct([]), height, [None])
        return pa.RecordBatch.from_struct_array(rows)
    return pa.RecordBatch.from_arrays([series.to_arrow(compat_level=_NEWEST)], [series.name])


def _is_kept_as_it_is(dtype: pl.DataType) -> bool:
    """Whether a dtype survives the conversion to Arrow and back."""
    empty = pl.Series("", [], dtype=dtype)
    back = pl.from_arrow(empty.to_arrow(compat_level=_NEWEST))
    return isinstance(back, pl.Series) and back.dtype == dtype


def _read_column(folder: str, name: str) -> list[pa.RecordBatch]:
    """The batches of a column; raises `ValueError` if the file differs from the written one."""
    content = memoryview(_mapped(os.path.join(folder, name)))
    body, trailer = content[: -_TRAILER.size], content[-_TRAILER.size :]
    if len(trailer) != _TRAILER.size:
        raise ValueError("the file is truncated")
    if _TRAILER.unpack(trailer) != (_MAGIC, len(body), _checksum(folder, name, body)):
        raise ValueError("the checksum does not match")
    file = pa.ipc.open_file(pa.py_buffer(body))
    return [file.get_batch(number) for number in range(file.num_record_batches)]


def _checksum(folder: str, name: str, content: mmap.mmap | memoryview) -> int:
    """CRC-32C of a column's file, and of the names of its entry and itself."""
    found = google_crc32c.value(f"{os.path.basename(folder)}/{name}".encode())
    for start in range(0, len(content), _CHUNK_BYTES):
        found = google_crc32c.extend(found, bytes(content[start : start + _CHUNK_BYTES]))
    return int(found)


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)


def _mapped(path: str) -> mmap.mmap:
    """The content of a regular file of this user; raises OSError, or ValueError for others."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _OPEN)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or not _is_own(found):
            raise ValueError("it is not a regular file of this user")
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def _is_own(found: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def _made_private(path: str | os.PathLike[str]) -> str:
    """Create the cache's folder; refuse one of other writers, because its content is trusted."""
    directory = os.fsdecode(path)
    if not directory:
        raise InvalidInputError("the cache folder must not be empty", expected="a local folder")
    try:
        directory = local_path(directory)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.stat(directory)
    except (OSError, ValueError) as cause:
        raise InvalidInputError(
            "the cache folder cannot be created",
            path=directory,
            found=getattr(cause, "strerror", None) or str(cause),
        ) from cause
    others = found.st_mode & 0o022 if hasattr(os, "geteuid") else 0
    if not _is_own(found) or others:
        raise InvalidInputError(
            "other users can write to the cache folder",
            path=directory,
            expected="a folder that only this user can write to",
            found=f"mode {stat.S_IMODE(found.st_mode):04o}, owner {found.st_uid}",
            hint="choose another folder, or run chmod 700 on this one",
        )
    return directory
