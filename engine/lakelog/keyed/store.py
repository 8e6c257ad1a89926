"""`KeyedStore`: keys and values on local disk, durable through the write-ahead log.

A record is durable in the log before it is acknowledged, and in the memtable before the call
returns. A flush freezes the memtable, writes it as a sorted Parquet file, adds the file to the
manifest, and then truncates the log. After a crash, the manifest records up to which sequence
number the files are complete, and the log has the later records.

The files contain exactly the records up to ``flushedSeqNum``. Sequence numbers ascend from file to
file and to the memtable, so the newest source with a key wins. Readers use an immutable view and
never wait for a writer's I/O.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import polars as pl

from lakelog import telemetry
from lakelog.dialects.log_folders import require_outside_tables
from lakelog.display import Displayed, size_text
from lakelog.errors import (
    InvalidInputError,
    KeyNotFoundError,
    LakelogError,
    UnavailableError,
)
from lakelog.input_validation import require_bool, require_int
from lakelog.keyed import manifest, opening, rows, sorted_file
from lakelog.keyed.manifest import StoreDirectory, store_errors
from lakelog.keyed.memtable import Memtable
from lakelog.keyed.sorted_file import GroupCache, SortedFile
from lakelog.wal.disk import Access, Closing, Disk, LocalDisk, local_directory
from lakelog.wal.log import WriteAheadLog, require_lock
from lakelog.wal.placement import LOG_FOLDER, require_owner
from lakelog.wal.records import data_of


class SharedLock:
    """A lock that writers share, and that a flush takes exclusively while it replaces the memtable.
    Between append and insertion, a record is only in the log: a flush that replaced the memtable
    and truncated the log at that time would lose it. New writers wait while a flush waits, so that
    it cannot starve.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closing = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Held by a writer from before its append until its record is in the memtable."""
        with self._changed:
            while self._closing:
                self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Held exclusively, without writers."""
        with self._changed:
            while self._closing:
                self._changed.wait()
            self._closing = True
        try:
            with self._changed:
                while self._inside:
                    self._changed.wait()  # the wait may be interrupted
            yield
        finally:
            with self._changed:
                self._closing = False
                self._changed.notify_all()


_CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FileReport(Displayed):
    """A sorted file, written by a flush or a compaction.

    Attributes:
        path: The file.
        rows: Number of rows, one per key.
        tombstones: Number of rows that record a deleted key.
        size_bytes: Size of the file, in bytes.
        flushed_seq_num: All records up to this sequence number are in the store's files.
    """

    path: str
    rows: int
    tombstones: int
    size_bytes: int
    flushed_seq_num: int


class KeyedStore(Closing):
    """A key-value store on local disk.

    Keys and values are bytes; text is encoded as UTF-8 and returned as bytes. Keys are ordered as
    unsigned bytes. An empty value is a value. All methods are thread-safe. One process writes at a
    time. Other processes can read concurrently (``read_only=True``): they see the store as of
    opening or the last `refresh`.

    Args:
        directory: Directory of the store; created if it does not exist.
        sync: When a write is acknowledged. ``sync``: after an fsync (concurrent writers share one).
            ``batch``: one fsync per hundred writes. ``none``: when the operating system syncs.
        memtable_bytes: Bytes of keys and values, including overwritten ones, at which a write
            triggers a flush.
        memtable_entries: Number of records, including overwritten ones, at which a write triggers a
            flush; None is unlimited.
        read_only: Open for reading, concurrently with a writer: takes no lock, changes nothing.
        disk: The filesystem; None is the operating system's.

    Raises:
        InvalidInputError: The directory is a file, inside a table, or contains another log, such as
            that of an Ingestor.
        CorruptionError: Log, manifest and files contradict each other, or one is damaged.
        LogLockedError: Another process writes to the store.
        NotFoundError: `read_only`, and the store does not exist.
        UnavailableError: The disk failed.

    Opening reads the log and the footers of the files. Memory grows with the unflushed records.

    Example:
        >>> with KeyedStore("store") as store:
        ...     seq_num = store.put("user/7", "Ada")
        ...     _ = store.put("user/8", b"")
        ...     _ = store.delete("user/7")
        ...     print(store.get("user/7"), store.get("user/8"), store.scan(prefix="user/").height)
        None b'' 1
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        sync: Literal["sync", "batch", "none"] = "sync",
        *,
        memtable_bytes: int = 64 << 20,
        memtable_entries: int | None = None,
        read_only: bool = False,
        disk: Disk | None = None,
    ) -> None:
        memtable_bytes = require_int("memtable_bytes", memtable_bytes, least=1)
        if memtable_entries is not None:
            memtable_entries = require_int("memtable_entries", memtable_entries, least=1)
        require_bool("read_only", read_only)
        self._directory = local_directory(directory) if disk is None else os.fsdecode(directory)
        self._memtable_bytes = memtable_bytes
        self._memtable_entries = memtable_entries
        disk = disk or LocalDisk()
        log_directory = f"{self._directory}/{LOG_FOLDER}"
        if not read_only:
            require_outside_tables(self._directory, "keyed store")
        with store_errors("be opened", self._directory):
            opening.check_place(disk, self._directory, log_directory, read_only=read_only)
        # The log's lock is the store's: it is acquired before reading anything that another writer
        # may change.
        self._wal = WriteAheadLog(log_directory, sync=sync, read_only=read_only, disk=disk)
        self._memtable_lock = SharedLock()
        self._upkeep = threading.Lock()
        self._access = Access("keyed store", self._directory, read_only, os.getpid())
        self._upkeep_error: LakelogError | None = None
        self._truncated_seq_num = 0
        self._log_may_have_more = False
        self._files_directory = StoreDirectory(
            self._directory, disk, GroupCache(_CACHE_BYTES), lambda: require_lock(self._wal)
        )
        try:
            if read_only:
                self._view = opening.read_during_writes(self._files_directory, self._wal)
            else:
                require_owner(disk, self._directory, manifest.NAME)  # it may be new
                self._view = opening.read_view(self._files_directory, self._wal)
                self._files_directory.take_over(self._view.manifest)
                self._truncated_seq_num = self._wal.truncated_to
        except BaseException:
            self._wal.close()
            raise

    def put(self, key: bytes | str, value: bytes | str) -> int:
        """Write one key. Durable on return, as `sync` specifies.

        Returns:
            The sequence number of the record.

        Raises:
            InvalidInputError: Key or value is neither bytes nor text, or the store is read-only.
            UnavailableError: The record was not written.
            OutcomeUnknownError: The record may have been written; the store must be reopened.
        """
        return self._write(rows.PUT, data_of(key), data_of(value, "value"))

    def delete(self, key: bytes | str) -> int:
        """Delete a key, whether or not it exists. Durable on return, as `sync` specifies.

        Returns:
            The sequence number of the tombstone.

        Raises:
            LakelogError: As `put`.
        """
        return self._write(rows.DELETE, data_of(key), None)

    def put_many(self, items: rows.Items) -> int:
        """Write several keys atomically: after a crash either all of them exist or none.

        Args:
            items: Pairs of key and value; the last pair of a key wins.

        Returns:
            The sequence number of the end of the batch; 0 if there are no items.

        Raises:
            LakelogError: As `put`.
        """
        return self.put_table(rows.pairs(items))

    def put_table(self, table: Any) -> int:
        """Write the records of a table atomically: after a crash either all of them exist or none.

        Args:
            table: An Arrow, Polars or pandas table, or any object with an Arrow stream, with the
                columns ``key`` and ``value`` (binary or text), and optionally ``op`` (``PUT`` or
                ``DELETE``; the default is ``PUT``). Rows are applied in order. Only the value of a
                DELETE may be null.

        Returns:
            The sequence number of the end of the batch; 0 if the table has no rows.

        Raises:
            InvalidInputError: The argument is not a table, a column is missing or has the wrong
                type, or a required value is null.
            UnavailableError, OutcomeUnknownError: As `put`.
        """
        batch = rows.batch(table)
        if not batch.height:
            return 0
        with self._writing():
            end = self._wal.append_table(batch)
            numbers = np.arange(end - batch.height, end, dtype=np.int64)
            self._view.active.add(rows.of_log(batch.with_columns(seqNum=numbers)))
        self._flush_if_full()
        return end

    def get(self, key: bytes | str) -> bytes | None:
        """The value of a key; None if it was never written, or deleted.

        Raises:
            CorruptionError: The part of a file that would contain the key is damaged.

        Reads the memtable, and one row group in each file that may contain the key. The row group
        is cached.
        """
        sought = data_of(key)
        self._access.check()
        return self._view.get(sought)

    def get_many(self, keys: Iterable[bytes | str]) -> list[bytes | None]:
        """The values of keys, in their order; None for a key that does not exist.

        Raises:
            InvalidInputError: `keys` is not a list, or a key is neither bytes nor text.
            CorruptionError: As `get`.

        The row groups that may contain the keys are read in key order, each once.
        """
        if isinstance(keys, bytes | str) or not isinstance(keys, Iterable):
            raise InvalidInputError(
                "keys must be a list of bytes or text",
                expected="list of bytes or str",
                found=type(keys).__name__,
            )
        sought = [data_of(key) for key in keys]
        self._access.check()
        view = self._view
        found = {key: view.get(key) for key in sorted(set(sought))}
        return [found[key] for key in sought]

    def __contains__(self, key: object) -> bool:
        """Whether a key exists; one that is neither bytes nor text does not."""
        is_key = isinstance(key, bytes | bytearray | memoryview | str)
        return is_key and self.get(cast("bytes | str", key)) is not None

    def __getitem__(self, key: bytes | str) -> bytes:
        """The value of a key.

        Raises:
            KeyNotFoundError: The key was never written, or deleted. It is a ``KeyError``.
            LakelogError: As `get`.
        """
        value = self.get(key)
        if value is None:
            raise KeyNotFoundError("key not found", path=self._directory, found=data_of(key))
        return value

    def __setitem__(self, key: bytes | str, value: bytes | str) -> None:
        """Write one key, as `put`."""
        self.put(key, value)

    def __delitem__(self, key: bytes | str) -> None:
        """Delete a key, as `delete`.

        Raises:
            KeyNotFoundError: The key does not exist. `delete` does not look.
            LakelogError: As `get` and `delete`.
        """
        self[key]
        self.delete(key)

    def __len__(self) -> int:
        """Number of keys, at one point in time. Reads the whole store, as `scan` does."""
        return self.scan().height

    def __bool__(self) -> bool:
        """True: whether an open store has keys is ``len(store) > 0``, which reads all of them."""
        return True

    def __iter__(self) -> Iterator[bytes]:
        """The keys in order, at one point in time. Memory grows with the store, as for `scan`."""
        return iter(self.scan()["key"].to_list())

    def scan(
        self,
        start: bytes | str | None = None,
        end: bytes | str | None = None,
        *,
        prefix: bytes | str | None = None,
    ) -> pl.DataFrame:
        """The keys of a range, or those that begin with a prefix, at one point in time.

        Args:
            start: First key, inclusive; None starts at the first key.
            end: End of the range, exclusive; None is unbounded.
            prefix: Only keys that begin with it; not with `start` or `end`.

        Returns:
            ``key`` and ``value`` (binary) and ``seqNum`` (int64), sorted by key, one row per key.

        Raises:
            InvalidInputError: `prefix` is combined with `start` or `end`.
            CorruptionError: A part of a file that contains some of the keys is damaged.

        Memory grows with the records in the range; only the matching parts of the files are read.
        """
        if prefix is not None:
            if start is not None or end is not None:
                raise InvalidInputError(
                    "prefix cannot be combined with start or end",
                    expected="a prefix or a range",
                    found="both",
                )
            start, end = data_of(prefix), rows.after_prefix(data_of(prefix))
        low = None if start is None else data_of(start)
        high = None if end is None else data_of(end)
        self._access.check()
        return self._view.scan(low, high).select("key", "value", "seqNum")

    def __repr__(self) -> str:
        return f"KeyedStore({self._directory!r})"

    def _open_facts(self) -> list[tuple[str, str]]:
        files = self.files
        rows = sum(file.rows for file in files)
        size_bytes = sum(file.size_bytes for file in files)
        return [("files", f"{len(files)}, {rows:,} rows, {size_text(size_bytes)}")]

    def refresh(self) -> None:
        """Update a read-only store to the current state. Has no effect on a store that writes.

        Raises:
            CorruptionError: As on opening; the previous state remains readable.
            UnavailableError: The disk failed.
        """
        with self._upkeep:
            self._access.check()
            if self._access.is_read_only:
                self._view = opening.read_during_writes(
                    self._files_directory, self._wal, self._view.files
                )

    def flush(self) -> FileReport | None:
        """Write the unflushed records as a sorted file, and truncate the log.

        Writers and readers continue during the flush.

        Returns:
            The new file, which may since have been merged with others; None if there was nothing to
            write.

        Raises:
            UnavailableError: The disk failed. No record is lost, and the flush can be repeated.
            CorruptionError: The file was written, but could not be merged with a damaged file.
            OutcomeUnknownError: The log could not be synced; the store must be reopened.
        """
        with self._upkeep:
            self._access.check(to_write=True)
            return self._flush_and_merge()

    def compact(self) -> FileReport | None:
        """Flush, then merge all files into one without tombstones.

        Returns:
            The file; None if the store has no keys.

        Raises:
            CorruptionError: A file is damaged; nothing was changed.
            UnavailableError, OutcomeUnknownError: As `flush`.

        Memory is bounded: files are merged one key range at a time.
        """
        with self._upkeep:
            self._access.check(to_write=True)
            self._flush()
            files = self._view.files
            if len(files) > 1 or any(file.facts.tombstones for file in files):
                self._merge(0)
            return self._report(self._view.files[0]) if self._view.files else None

    def close(self) -> None:
        """Close the store. Does not flush: the log has the records. Can be called repeatedly."""
        if self._access.is_elsewhere:
            self._access.is_closed = True
            return
        with self._upkeep, self._memtable_lock.exclusive():
            if not self._access.is_closed:
                self._access.is_closed = True
                self._wal.close()

    @property
    def upkeep_error(self) -> LakelogError | None:
        """The error of the last flush that a write triggered; None if it succeeded. The write
        itself
        succeeded: its record is in the log.
        """
        return self._upkeep_error

    @property
    def files(self) -> list[FileReport]:
        """The sorted files in the manifest, oldest first."""
        return [self._report(file) for file in self._view.files]

    def _write(self, op: Literal["PUT", "DELETE"], key: bytes, value: bytes | None) -> int:
        with self._writing():
            seq_num = self._wal.append(op, key, value)
            self._view.active.put(seq_num, key, value)
        self._flush_if_full()
        return seq_num

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Held from before an append until its records are in the memtable."""
        with self._memtable_lock.shared():
            self._access.check(to_write=True)
            try:
                yield
            except (InvalidInputError, UnavailableError):
                raise  # nothing was written
            except BaseException:
                # Probably an interrupt: its records may be in the log, so no flush may truncate
                # them.
                self._log_may_have_more = True
                raise

    def _flush_if_full(self) -> None:
        if not self._is_full():
            return
        if not self._upkeep.acquire(blocking=False):
            return  # another thread is flushing
        try:
            if not self._access.is_closed and self._is_full():
                self._flush_and_merge()
                self._upkeep_error = None
        except LakelogError as error:
            # The write succeeded, so the call must not fail. All unflushed records remain in memory
            # and in the log, for the next attempt.
            self._upkeep_error = error
            telemetry.event("keyed.flush_failed", logging.WARNING, error=str(error))
        finally:
            self._upkeep.release()

    def _is_full(self) -> bool:
        active, most = self._view.active, self._memtable_entries
        if most is not None and active.records >= most:
            return True
        return active.size_bytes >= self._memtable_bytes

    def _flush_and_merge(self) -> FileReport | None:
        report = self._flush()
        first = sorted_file.compaction([file.facts.size_bytes for file in self._view.files])
        if first is not None:
            self._merge(first)
        return report

    def _flush(self) -> FileReport | None:
        self._freeze()
        view = self._view
        made = None
        if view.frozen:
            # Otherwise a crash could leave the log behind the manifest, and hide its next records.
            self._wal.sync()
            made = self._files_directory.write([rows.newest(part.newest() for part in view.frozen)])
            assert made is not None, "a memtable that was frozen has records"
            self._publish((*view.files, made), view.frozen_seq_num, frozen=())
            telemetry.event(
                "keyed.flushed",
                rows=made.facts.rows,
                size_bytes=made.facts.size_bytes,
                flushed_seq_num=view.frozen_seq_num,
            )
        if self._truncated_seq_num < self._view.manifest.flushed_seq_num:
            self._wal.truncate(self._view.manifest.flushed_seq_num)
            self._truncated_seq_num = self._view.manifest.flushed_seq_num
        self._files_directory.remove(())
        return None if made is None else self._report(made)

    def _freeze(self) -> None:
        """Replace the memtable, at a sequence number that no write spans."""
        with self._memtable_lock.exclusive():
            view = self._view
            active = view.active
            if self._log_may_have_more:
                active = Memtable()
                active.add_replayed(self._wal.replay(after_seq=view.frozen_seq_num).table)
            if active.records:
                self._view = replace(
                    view,
                    active=Memtable(),
                    frozen=(*view.frozen, active),
                    frozen_seq_num=self._wal.current_seq_num(),
                )
            self._log_may_have_more = False

    def _merge(self, first: int) -> None:
        """Merge the files from an index on into one."""
        view = self._view
        stay, go = view.files[:first], view.files[first:]
        made = self._files_directory.write(_merged(go, oldest=not stay))
        files = stay if made is None else (*stay, made)
        self._publish(files, view.manifest.flushed_seq_num, frozen=view.frozen)
        telemetry.event(
            "keyed.merged",
            files=len(go),
            rows=made.facts.rows if made else 0,
            size_bytes=made.facts.size_bytes if made else 0,
        )
        self._files_directory.remove(go)

    def _publish(
        self, files: tuple[SortedFile, ...], flushed_seq_num: int, *, frozen: tuple[Memtable, ...]
    ) -> None:
        manifest = self._files_directory.publish(flushed_seq_num, files)
        self._view = replace(self._view, files=files, manifest=manifest, frozen=frozen)

    def _report(self, file: SortedFile) -> FileReport:
        return FileReport(
            path=f"{self._directory}/{file.name}",
            rows=file.facts.rows,
            tombstones=file.facts.tombstones,
            size_bytes=file.facts.size_bytes,
            flushed_seq_num=self._view.manifest.flushed_seq_num,
        )


def _merged(files: tuple[SortedFile, ...], *, oldest: bool) -> Iterator[pl.DataFrame]:
    """The newest records of consecutive files, by key range, without tombstones of the `oldest`."""
    for start, end in sorted_file.ranges([file.groups for file in files]):
        merged = rows.newest(file.between(start, end) for file in files)
        yield rows.live(merged) if oldest else merged
