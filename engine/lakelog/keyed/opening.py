"""Opens a keyed store: checks that manifest, files and log match; the immutable view of readers.

A writer has the log's lock, so nothing changes during opening. A reader may run concurrently with a
writer that flushes, merges and removes files: a mismatch may be a mix of two states, so it retries
as long as the manifest changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import polars as pl

from lakelog.errors import CorruptionError, InvalidInputError, NotFoundError, UnavailableError
from lakelog.keyed import manifest, rows
from lakelog.keyed.manifest import StoreDirectory, StoreManifest
from lakelog.keyed.memtable import Memtable
from lakelog.keyed.sorted_file import SortedFile
from lakelog.wal.disk import Disk
from lakelog.wal.log import WriteAheadLog
from lakelog.wal.placement import has_segments, names_in, require_owner, segments_in


@dataclass(frozen=True, slots=True)
class View:
    """The sources of records, newest first: `active`, `frozen` ones without a file, and `files`."""

    active: Memtable
    frozen: tuple[Memtable, ...]
    frozen_seq_num: int
    files: tuple[SortedFile, ...]
    manifest: StoreManifest

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it does not exist."""
        places: Iterator[Memtable | SortedFile] = chain(
            (self.active,), reversed(self.frozen), reversed(self.files)
        )
        for place in places:
            found = place.get(key)
            if found is not None:
                return found[1]
        return None

    def scan(self, start: bytes | None, end: bytes | None) -> pl.DataFrame:
        """Keys with ``start <= key < end``, sorted by key, without tombstones: `rows.SCHEMA`."""
        frames = [file.between(start, end) for file in self.files]
        for memtable in (*self.frozen, self.active):
            frames += memtable.between(start, end)
        return rows.live(rows.newest(frames))


_ATTEMPTS = 100  # each attempt found a new manifest


def check_place(disk: Disk, directory: str, log_directory: str, *, read_only: bool) -> None:
    """Before a log is opened or created: raise if it is that of another owner, or is missing."""
    require_owner(disk, directory, manifest.NAME)
    names = names_in(disk, directory)
    has_files = any(name == manifest.NAME or manifest.DATA_NAME.fullmatch(name) for name in names)
    strays = segments_in(names)
    if strays and segments_in(names_in(disk, log_directory)):
        raise InvalidInputError(
            "the directory of the keyed store contains the files of another write-ahead log",
            path=directory,
            found=", ".join(strays),
            hint="move these files to a directory of their own, or delete them if no record in "
            "them is needed; the store's own log is in its folder wal",
        )
    if strays:
        raise InvalidInputError(
            "the directory contains a write-ahead log, not a keyed store",
            path=directory,
            hint=(
                "the log of a keyed store is in its folder wal; pass the folder above it, "
                "or another one"
            ),
        )
    if has_segments(disk, log_directory):
        return
    if has_files:
        raise CorruptionError(
            "the log of the keyed store is missing",
            path=log_directory,
            expected="at least one segment of the log",
            found="no segment, but files of the store",
            hint=_RESTORE,
        )
    if read_only:
        raise NotFoundError(
            "keyed store not found",
            path=directory,
            hint="pass the directory of a keyed store; without read_only a new one is created",
        )


def read_view(directory: StoreDirectory, log: WriteAheadLog) -> View:
    """The complete state of a store that no process changes. Changes nothing."""
    return _view(directory.manifest(), directory, log, ())


def read_during_writes(
    directory: StoreDirectory, log: WriteAheadLog, known: Iterable[SortedFile] = ()
) -> View:
    """As `read_view`, while another process may write."""
    known = tuple(known)
    found = directory.manifest()
    for _ in range(_ATTEMPTS):
        try:
            return _view(found, directory, log, known)
        except CorruptionError:
            before, found = found, directory.manifest()
            if found == before:
                raise
    raise UnavailableError(
        "the keyed store changes too fast to be opened for reading",
        path=directory.manifest_path,
        hint="try again",
    )


def _view(
    found: StoreManifest, directory: StoreDirectory, log: WriteAheadLog, known: Iterable[SortedFile]
) -> View:
    files = directory.opened(found, known)
    active = Memtable()
    active.add_replayed(log.replay(after_seq=found.flushed_seq_num).table)
    # After the replay: if the log is not truncated further now, it was not during the replay.
    _check_log(found, directory.manifest_path, log)
    return View(active, (), found.flushed_seq_num, files, found)


def _check_log(found: StoreManifest, manifest_path: str, log: WriteAheadLog) -> None:
    """Check that manifest and log belong together: otherwise records may be in neither."""
    truncated_to = log.truncated_to
    if found.flushed_seq_num < truncated_to:
        raise CorruptionError(
            "the manifest of the keyed store is missing, or older than its log",
            path=manifest_path,
            expected=f"flushedSeqNum at least {truncated_to}",
            found=found.flushed_seq_num,
            hint=(
                "restore the manifest and the files that it names; the log no longer contains them"
            ),
        )
    last = log.current_seq_num()
    if last < found.flushed_seq_num:
        raise CorruptionError(
            "the log of the keyed store is older than its files, or belongs to another store",
            path=log.directory,
            expected=f"sequence numbers up to at least {found.flushed_seq_num}",
            found=last,
            hint=_RESTORE,
        )


_RESTORE = (
    "restore the log and the files from copies made together; any Parquet reader can "
    "read the files (see schemas/keyed.md)"
)
