"""KeyedStore: keys and values on local disk, durable through the write-ahead log.

The flush protocol of specification 003, with its gaps closed. A record is durable in the log before
it is acknowledged, and in the memtable before the caller hears of it. A flush takes the memtable
aside, writes it as a sorted Parquet file, makes the manifest name it, and only then lets the log
forget what the file holds. Whatever step a crash comes at, the manifest tells up to which record
the files stand, and the log has the rest.

Invariants:

- The files hold exactly the records up to the manifest's ``flushedSeqNum``; sequence numbers ascend
  from file to file, and the memtable's lie above them. So the newest place that has a key decides.
- Readers take the state in one look and never wait for the disk of a writer.

Owns: the order of steps, and who may do them at the same time. Leaves to others: the log, the
memtable's and the files' insides.

Source: specification 003, LSMTree._flush and WAL.replay.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from types import TracebackType
from typing import Literal, Self

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog import telemetry
from lakelog.errors import CorruptionError, InvalidInputError, LakelogError
from lakelog.keyed import given, plan, rows
from lakelog.keyed.latch import Latch
from lakelog.keyed.manifest import Manifest
from lakelog.keyed.memtable import Memtable
from lakelog.keyed.publish import FileRoom
from lakelog.keyed.sorted_file import GroupCache, SortedFile
from lakelog.wal.disk import Disk, LocalDisk
from lakelog.wal.log import WriteAheadLog

_LOG_FOLDER = "wal"
_CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FileReport:
    """A sorted file that a flush or a compaction has left.

    Attributes:
        path: The file.
        rows: Its rows, one a key.
        tombstones: Those of them that say that a key was deleted.
        size_bytes: Of the file.
        flushed_seq_num: All records up to it are in the store's files.
    """

    path: str
    rows: int
    tombstones: int
    size_bytes: int
    flushed_seq_num: int


@dataclass(frozen=True, slots=True)
class _State:
    """What readers see. Replaced as a whole, oldest records last to be looked at."""

    active: Memtable
    frozen: tuple[Memtable, ...]
    frozen_seq_num: int
    files: tuple[SortedFile, ...]
    manifest: Manifest


class KeyedStore:
    """Keys and values on local disk.

    Keys and values are bytes; text is encoded as UTF-8 on the way in and comes back as bytes. Keys
    order as unsigned bytes. An empty value is a value. All methods may be called by many threads;
    one process has the store at a time.

    Args:
        directory: Where it is; made where it is missing.
        sync: When a write counts as done: ``sync`` once it is fsynced (writers at the same time
            share one), ``batch`` every hundred, ``none`` when the operating system likes.
        memtable_bytes: Bytes of keys and values, repeats counted, after which a write flushes.
        disk: The filesystem; that of the operating system where it is None.

    Raises:
        CorruptionError: Log, manifest and files do not fit together, or one is damaged.
        LogLockedError: Another process has the store.
        UnavailableError: The disk failed.

    Opening reads the log and the footers of the files. Memory grows with what is not flushed.

    Example:
        >>> with KeyedStore("store") as store:
        ...     seq_num = store.put("user/7", "Ada")
        ...     _ = store.put("user/8", b"")
        ...     _ = store.delete("user/7")
        ...     print(store.get("user/7"), store.get("user/8"), store.scan("user/").height)
        None b'' 1
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        sync: Literal["sync", "batch", "none"] = "sync",
        memtable_bytes: int = 64 << 20,
        disk: Disk | None = None,
    ) -> None:
        if memtable_bytes < 1:
            raise InvalidInputError(
                "A memtable holds at least a byte.", expected=">= 1", found=memtable_bytes
            )
        self._directory = os.fspath(directory)
        self._memtable_bytes = memtable_bytes
        disk = disk or LocalDisk()
        # The log's lock is the store's: it comes before anything else is looked at.
        self._wal = WriteAheadLog(f"{self._directory}/{_LOG_FOLDER}", sync=sync, disk=disk)
        self._latch = Latch()
        self._upkeep = threading.Lock()
        self._closed = False
        self._upkeep_error: LakelogError | None = None
        self._room = FileRoom(self._directory, disk, GroupCache(_CACHE_BYTES))
        try:
            manifest, files = self._room.open()
            self._check_against_log(manifest)
            self._room.tidy()
            active = Memtable()
            active.add_replayed(self._wal.replay(after_seq=manifest.flushed_seq_num))
        except BaseException:
            self._wal.close()
            raise
        self._state = _State(active, (), manifest.flushed_seq_num, files, manifest)
        self._truncated_seq_num = manifest.flushed_seq_num

    def put(self, key: bytes | str, value: bytes | str) -> int:
        """Write one key; durable, as `sync` says, when this returns.

        Returns:
            The record's sequence number.

        Raises:
            InvalidInputError: Key or value is neither bytes nor text.
            UnavailableError: The record was not written.
            OutcomeUnknownError: Nobody knows whether it was; the store has to be opened again.
        """
        return self._write(rows.PUT, given.encode(key, "key"), given.encode(value, "value"))

    def delete(self, key: bytes | str) -> int:
        """Delete a key, whether or not it is there; durable, as `sync` says, when this returns.

        Returns:
            The tombstone's sequence number.

        Raises:
            As `put`.
        """
        return self._write(rows.DELETE, given.encode(key, "key"), None)

    def put_many(self, items: given.Items) -> int:
        """Write several keys as one batch: after a crash all of them are there, or none.

        Args:
            items: Keys and values; of a key that comes twice, the last one counts.

        Returns:
            The sequence number of the batch's end; 0 where there are no items.

        Raises:
            As `put`.
        """
        pairs = list(items.items() if isinstance(items, Mapping) else items)
        keys = [given.encode(key, "key") for key, _ in pairs]
        values = [given.encode(value, "value") for _, value in pairs]
        return self.put_table(pl.DataFrame({"key": keys, "value": values}, given.PAIRS))

    def put_table(self, table: pa.Table | pl.DataFrame) -> int:
        """Write a table of records as one batch: after a crash all of them are there, or none.

        Args:
            table: Columns ``key`` and ``value``, binary or text, and perhaps ``op``: ``PUT`` or
                ``DELETE``, in the order in which they count. Without it all are put. Only the value
                of a DELETE may be null.

        Returns:
            The sequence number of the batch's end; 0 where the table has no rows.

        Raises:
            InvalidInputError: A column is missing or of another type, or a null stands where none
                may.
            UnavailableError: As `put`; so `OutcomeUnknownError`.
        """
        batch = given.batch(table)
        if not batch.height:
            return 0
        with self._latch.passing():
            self._check_open()
            end = self._wal.append_table(batch)
            numbers = np.arange(end - batch.height, end, dtype=np.int64)
            self._state.active.add(rows.of_log(batch.with_columns(seqNum=numbers)))
        self._flush_if_full()
        return end

    def get(self, key: bytes | str) -> bytes | None:
        """The value of a key; None where it was never put, or deleted.

        Raises:
            CorruptionError: The part of a file that would hold it is damaged.

        Costs a look into the memtable, and in each file that may have the key one row group, which
        is kept for the next.
        """
        sought = given.encode(key, "key")
        self._check_open()
        state = self._state
        places: Iterator[Memtable | SortedFile] = chain(
            (state.active,), reversed(state.frozen), reversed(state.files)
        )
        for place in places:
            found = place.get(sought)
            if found is not None:
                return found[1]
        return None

    def scan(
        self, start: bytes | str | None = None, end: bytes | str | None = None
    ) -> pl.DataFrame:
        """The keys of a range as they were at one moment.

        Args:
            start: First key, inclusive; None begins at the first there is.
            end: Where to stop, exclusive; None goes on to the last.

        Returns:
            ``key`` and ``value``, binary, and ``seqNum``, int64, sorted by key, one row a key.

        Raises:
            CorruptionError: A part of a file that holds some of them is damaged.

        Memory grows with the records in the range; files are read only where it lies.
        """
        low = None if start is None else given.encode(start, "key")
        high = None if end is None else given.encode(end, "key")
        self._check_open()
        state = self._state
        frames = [file.between(low, high) for file in state.files]
        for memtable in (*state.frozen, state.active):
            frames += memtable.between(low, high)
        return rows.live(rows.newest(frames)).select("key", "value", "seqNum")

    def flush(self) -> FileReport | None:
        """Write what only the log has as a sorted file, and let the log forget it.

        Writers and readers go on meanwhile.

        Returns:
            The new file, which may have been merged with others since; None where there was nothing
            to write.

        Raises:
            UnavailableError: The disk failed; no record is lost, and it may be tried again.
            OutcomeUnknownError: The log could not be synced; the store has to be opened again.
        """
        with self._upkeep:
            self._check_open()
            return self._flush_and_merge()

    def compact(self) -> FileReport | None:
        """Flush, and merge all files into one without tombstones: what it holds is the state.

        Returns:
            The one file; None where no key is there.

        Raises:
            CorruptionError: A file is damaged; all is as it was.
            UnavailableError: As `flush`; so `OutcomeUnknownError`.

        Memory is bounded: files are merged a range of keys at a time.
        """
        with self._upkeep:
            self._check_open()
            self._flush()
            files = self._state.files
            if len(files) > 1 or any(file.facts.tombstones for file in files):
                self._merge(0)
            return self._report(self._state.files[0]) if self._state.files else None

    def close(self) -> None:
        """Let go of the store. Nothing is flushed: the log has it. Twice does no harm."""
        with self._upkeep, self._latch.closed():
            if not self._closed:
                self._closed = True
                self._wal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def upkeep_error(self) -> LakelogError | None:
        """Why the last flush that a write began by itself failed; None where it did not. The write
        itself was done: its record is in the log.
        """
        return self._upkeep_error

    @property
    def files(self) -> list[FileReport]:
        """The sorted files, oldest first: those that the manifest names, and no others."""
        return [self._report(file) for file in self._state.files]

    def _write(self, op: Literal["PUT", "DELETE"], key: bytes, value: bytes | None) -> int:
        with self._latch.passing():
            self._check_open()
            seq_num = self._wal.append(op, key, value)
            self._state.active.put(seq_num, key, value)
        self._flush_if_full()
        return seq_num

    def _flush_if_full(self) -> None:
        if self._state.active.size_bytes < self._memtable_bytes:
            return
        if not self._upkeep.acquire(blocking=False):
            return  # somebody is at it
        try:
            if not self._closed and self._state.active.size_bytes >= self._memtable_bytes:
                self._flush_and_merge()
                self._upkeep_error = None
        except LakelogError as error:
            # The write is done, and must not seem to have failed. All that is unflushed stays in
            # memory and in the log, for the next attempt.
            self._upkeep_error = error
            telemetry.event("keyed.flush_failed", logging.WARNING, error=str(error))
        finally:
            self._upkeep.release()

    def _flush_and_merge(self) -> FileReport | None:
        report = self._flush()
        first = plan.compaction([file.facts.size_bytes for file in self._state.files])
        if first is not None:
            self._merge(first)
        return report

    def _flush(self) -> FileReport | None:
        self._freeze()
        state = self._state
        made = None
        if state.frozen:
            # Else a crash could leave the log behind the manifest, and its next records hidden.
            self._wal.sync()
            made = self._room.write([rows.newest(part.newest() for part in state.frozen)])
            assert made is not None, "a memtable that was frozen has records"
            self._publish((*state.files, made), state.frozen_seq_num, frozen=())
            telemetry.event(
                "keyed.flushed",
                rows=made.facts.rows,
                size_bytes=made.facts.size_bytes,
                flushed_seq_num=state.frozen_seq_num,
            )
        if self._truncated_seq_num < self._state.manifest.flushed_seq_num:
            self._wal.truncate(self._state.manifest.flushed_seq_num)
            self._truncated_seq_num = self._state.manifest.flushed_seq_num
        self._room.remove(())
        return None if made is None else self._report(made)

    def _freeze(self) -> None:
        """Take the memtable aside, at a sequence number that no write lies across."""
        with self._latch.closed():
            state = self._state
            if state.active.records:
                self._state = replace(
                    state,
                    active=Memtable(),
                    frozen=(*state.frozen, state.active),
                    frozen_seq_num=self._wal.current_seq_num(),
                )

    def _merge(self, first: int) -> None:
        """Merge the files from an index on into one."""
        state = self._state
        stay, go = state.files[:first], state.files[first:]
        made = self._room.write(_merged(go, oldest=not stay))
        files = stay if made is None else (*stay, made)
        self._publish(files, state.manifest.flushed_seq_num, frozen=state.frozen)
        telemetry.event(
            "keyed.merged",
            files=len(go),
            rows=made.facts.rows if made else 0,
            size_bytes=made.facts.size_bytes if made else 0,
        )
        self._room.remove(go)

    def _publish(
        self, files: tuple[SortedFile, ...], flushed_seq_num: int, *, frozen: tuple[Memtable, ...]
    ) -> None:
        named = tuple((file.name, file.facts) for file in files)
        manifest = Manifest(self._state.manifest.generation + 1, flushed_seq_num, named)
        self._room.publish(manifest)
        self._state = replace(self._state, files=files, manifest=manifest, frozen=frozen)

    def _report(self, file: SortedFile) -> FileReport:
        return FileReport(
            path=f"{self._directory}/{file.name}",
            rows=file.facts.rows,
            tombstones=file.facts.tombstones,
            size_bytes=file.facts.size_bytes,
            flushed_seq_num=self._state.manifest.flushed_seq_num,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInputError(
                "The keyed store is closed.", path=self._directory, hint="open it again"
            )

    def _check_against_log(self, manifest: Manifest) -> None:
        """Manifest and log have to be of one store: records that neither has would be missing."""
        truncated_to = self._wal.truncate(0).truncated_to  # changes nothing, and tells it
        if manifest.flushed_seq_num < truncated_to:
            raise CorruptionError(
                "The manifest of the keyed store is missing, or older than its log.",
                path=self._room.manifest_path,
                expected=f"flushedSeqNum {truncated_to} at least",
                found=manifest.flushed_seq_num,
                hint="restore the manifest and the files that it names; the log no longer has them",
            )
        last = self._wal.current_seq_num()
        if last < manifest.flushed_seq_num:
            raise CorruptionError(
                "The log of the keyed store is older than its files, or of another store.",
                path=f"{self._directory}/{_LOG_FOLDER}",
                expected=f"sequence numbers up to {manifest.flushed_seq_num} at least",
                found=last,
                hint="restore the log and the files from copies made together",
            )


def _merged(files: tuple[SortedFile, ...], *, oldest: bool) -> Iterator[pl.DataFrame]:
    """The newest record of each key of some files that follow each other, a range at a time.

    Args:
        files: The files.
        oldest: Nothing is older than they are, so their tombstones have nothing to hide.
    """
    for start, end in plan.ranges([file.groups for file in files]):
        merged = rows.newest(file.between(start, end) for file in files)
        yield rows.live(merged) if oldest else merged
