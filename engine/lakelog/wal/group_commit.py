"""Group commit: one write and one sync for the records of many threads.

The first thread leads: it writes. Other threads wait in a queue. When the leader is done, the first
thread in the queue becomes the leader and writes the requests of the whole queue. Concurrent
appends therefore share one write and one fsync, without a dedicated thread.

An interrupt (``KeyboardInterrupt``) can occur anywhere. The interrupted thread passes on leadership
and wakes the threads that it serves, so that none waits forever; doing so twice is harmless.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, TypeAlias, TypeVar

from lakelog.errors import InvalidInputError, LakelogError, OutcomeUnknownError
from lakelog.wal.disk import Bytes
from lakelog.wal.encode import (
    FEW_RECORDS,
    RECORD_BYTES,
    Columns,
    check_columns,
    check_size,
    columns_of,
    pack_columns,
    pack_records,
)
from lakelog.wal.frames import COMMIT
from lakelog.wal.writer import UNKNOWN_HINT, Writer

_LEADING_SECONDS = 0.001
"""Seconds for which a leader continues to write the requests of others after its own is done,
because handing over takes longer than an fsync of a fast disk.
"""
_SLOW_SECONDS = 0.0005
_GATHERING_SHARE = 0.5
_MOST_GATHERING_SECONDS = 0.001
_STEP_SECONDS = 0.00003
"""After requests that took `_SLOW_SECONDS` or longer, the leader waits for the threads that were
served, for a share of this time at most: they often write again at once, and one fsync then serves
all. Otherwise a group of seven waits for the fsync of the first thread that came back.
"""


class QueuedRequest:
    """A request that waits until it is served; used once."""

    # A class attribute, because most requests never wait.
    gate: threading.Lock | None = None
    is_done = False
    thread = 0


T = TypeVar("T", bound=QueuedRequest)


class CommitQueue(Generic[T]):
    """The queue of requests."""

    def __init__(self, serve: Callable[[Sequence[T]], None]) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._leader: T | None = None  # the request of the thread that writes, or will
        self._waiting: list[T] = []
        self._serving: list[T] = []  # the requests that the leader serves
        self._served: set[int] = set()  # the threads that were served last
        self._served_s = self._served_at_s = 0.0

    def take(self, request: T) -> None:
        """Return once the work is done, by this thread or another."""
        request.thread = threading.get_ident()
        leader = self._leader
        if leader is not None and leader.thread == request.thread:
            raise InvalidInputError(
                "this thread already uses the log",
                hint="in a signal handler only set a flag, and check it where the log is used",
            )
        try:
            with self._lock:
                if self._leader is None:
                    self._leader = request
                    self._serving = [request]
                else:
                    request.gate = threading.Lock()
                    request.gate.acquire()
                    self._waiting.append(request)
            if request.gate is None or not self._wait(request, request.gate):
                self._lead(request)
        except BaseException:
            self._give_up(request)
            raise

    def _wait(self, request: T, gate: threading.Lock) -> bool:
        """Wait until the work is done (True), or this thread must lead (False)."""
        while True:
            gate.acquire()
            if request.is_done:
                return True
            with self._lock:
                if self._leader is request:
                    self._waiting.remove(request)
                    self._serving = [request]
                    return False

    def _lead(self, request: T) -> None:
        """Serve all waiting requests, until there are none or another thread leads."""
        until = time.perf_counter() + _LEADING_SECONDS
        while self._leader is request:
            self._gather()
            with self._lock:
                self._serving, self._waiting = [*self._serving, *self._waiting], []
            begin_s = time.perf_counter()
            self._serve(self._serving)
            self._served_at_s = time.perf_counter()
            self._served_s = self._served_at_s - begin_s
            self._served = {each.thread for each in self._serving}
            self._release()
            if self._served_at_s > until:
                self._pass_on(request)
                return
            with self._lock:
                self._serving = []
                if not self._waiting:
                    self._leader = None

    def _gather(self) -> None:
        """Wait briefly for the threads that were served last."""
        now_s = time.perf_counter()
        if self._served_s < _SLOW_SECONDS or now_s - self._served_at_s > self._served_s:
            return
        until = now_s + min(self._served_s * _GATHERING_SHARE, _MOST_GATHERING_SECONDS)
        coming = self._served - {threading.get_ident()}
        while time.perf_counter() < until and not coming <= {t.thread for t in self._waiting}:
            time.sleep(_STEP_SECONDS)

    def _release(self) -> None:
        """Wake the threads whose work is done."""
        for each in self._serving:
            each.is_done = True
            _wake(each)

    def _pass_on(self, request: T) -> None:
        """Make the first waiting thread the leader, if this thread still leads."""
        with self._lock:
            if self._leader is request:
                self._serving = []
                if self._waiting:
                    _wake(self._waiting[0])  # it wakes, and waits for the lock held here
                self._leader = self._waiting[0] if self._waiting else None

    def _give_up(self, request: T) -> None:
        """After an interrupt: withdraw a request that was not started, else stop waiting."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
            is_leader = self._leader is request
        if is_leader:
            self._release()
            self._pass_on(request)


def _wake(request: QueuedRequest) -> None:
    if request.gate is not None and request.gate.locked():
        request.gate.release()


_COMMIT = bytes((COMMIT,))

Encode: TypeAlias = Callable[[Sequence[Any]], Iterable[tuple[int, bytes, Bytes]]]
"""Makes records of parts that threads append at the same time. For each record: how many of the
next parts it has, its key and its value.
"""


class Entry(QueuedRequest):
    """A request with its result: records (`ops`, `keys`, `values`, or `columns`), a `part` of a
    record that the writing thread encodes, or an `action` that it runs. `seq` is 0 until the
    outcome is known; `changes`: the action modifies the log.
    """

    # Every append creates an entry, so rarely used attributes are class attributes.
    columns: Sequence[Columns] | None = None
    is_batch = False
    is_urgent = False
    encode: Encode | None = None
    part: Any = None
    action: Callable[[], object] | None = None
    changes = True
    seq = 0
    result: Any = None
    error: BaseException | None = None

    def __init__(
        self,
        ops: bytes = b"",
        keys: Sequence[bytes] = (),
        values: Sequence[bytes | None] = (),
        size_bytes: int = 0,
    ) -> None:
        self.ops = ops
        self.keys = keys
        self.values = values
        self.size_bytes = size_bytes

    def outcome(self) -> Any:
        """The result: the last sequence number, or the return value of the action."""
        if self.error is not None:
            raise self.error
        if not self.seq:
            raise OutcomeUnknownError(
                "a write to the write-ahead log was interrupted",
                hint=UNKNOWN_HINT,
            )
        return self.seq if self.action is None else self.result

    @classmethod
    def of_columns(cls, columns: Sequence[Columns]) -> Entry:
        """A batch in columns, which ends with its COMMIT."""
        entry = cls()
        entry.columns = columns
        entry.is_batch = True
        return entry

    @classmethod
    def of_part(cls, ops: bytes, part: object, encode: Encode) -> Entry:
        """A part of a record, which `encode` makes of this part and others."""
        entry = cls(ops)
        entry.part, entry.encode = part, encode
        entry.columns, entry.is_batch = (), True  # `_pack` treats it with the batches
        return entry

    @classmethod
    def of_action(cls, action: Callable[[], object], *, changes: bool = True) -> Entry:
        """An action that the writing thread runs."""
        entry = cls()
        entry.action = action
        entry.changes = changes
        return entry

    @classmethod
    def batch(
        cls, ops: bytes, keys: list[bytes], values: list[bytes | None], frame_bytes: int
    ) -> Entry:
        """A batch, which ends with its COMMIT."""
        size = len(ops) * RECORD_BYTES + sum(map(len, keys)) + sum(map(len, filter(None, values)))
        if len(ops) > FEW_RECORDS or size > frame_bytes:
            columns = columns_of(ops, keys, values)
            check_columns(columns)
            return cls.of_columns([columns])
        entry = cls(ops + _COMMIT, [*keys, b""], [*values, None], size)
        entry.is_batch = True
        return entry


@dataclass
class Committer:
    """Writes requests in order; an fsync per `sync_every` requests (0: never)."""

    writer: Writer
    segment_bytes: int
    sync_every: int
    waiting: int = 0

    def serve(self, entries: Sequence[Entry]) -> None:
        """Execute all entries; each gets its result."""
        try:
            for entry in entries:  # not `any`, because every append runs through here
                if entry.action is not None:
                    break
            else:
                self._commit(entries)
                return
            for run in _runs(entries):
                self._serve_run(run)
        except BaseException:
            # The outcome of the current operation is unknown.
            if any(entry.changes for entry in entries):
                self.writer.poison = self.writer.poison or "the operation was interrupted"
            raise

    def _serve_run(self, entries: Sequence[Entry]) -> None:
        entry = entries[0]
        if entry.action is None:
            self._commit(entries)
            return
        try:
            entry.result = entry.action()
            entry.seq = -1
        except Exception as error:  # noqa: BLE001 - it is raised in the thread of the request
            entry.error = error

    def _commit(self, entries: Sequence[Entry]) -> None:
        writer = self.writer
        next_seq = writer.next_seq
        try:
            self._write(entries)
        except Exception as error:  # noqa: BLE001 - it is raised where the record was appended
            if len(entries) == 1 or writer.poison is not None or writer.next_seq != next_seq:
                _fail(entries, error)
                return
            # Nothing was written. Separately, the entry that fails does not affect the others:
            # one may exceed the free disk space, or be too large.
            for entry in entries:
                self._commit([entry])

    def _write(self, entries: Sequence[Entry]) -> None:
        writer = self.writer
        writer.check()
        if writer.end >= self.segment_bytes and writer.has_records:
            writer.rotate()
        pieces, seqs = _pack(entries, writer)
        writer.write(pieces, seqs[-1] + 1 - writer.next_seq)
        self.waiting += len(entries)
        if self.sync_every and (
            self.waiting >= self.sync_every or any(entry.is_urgent for entry in entries)
        ):
            writer.sync()
            self.waiting = 0
        for entry, seq in zip(entries, seqs, strict=True):
            entry.seq = seq


def _runs(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Groups of entries that can be written together; an action is alone."""
    runs: list[list[Entry]] = []
    for entry in entries:
        if runs and entry.action is None and runs[-1][0].action is None:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs


def _fail(entries: Sequence[Entry], error: Exception) -> None:
    """Set an error for all entries; each gets a copy, because each is raised in another thread."""
    entries[0].error = error
    for entry in entries[1:]:
        if isinstance(error, LakelogError):
            own: Exception = type(error)(error.message, path=error.path, hint=error.hint)
            own.__cause__ = error
        else:
            own = error
        entry.error = own


def _pack(entries: Sequence[Entry], writer: Writer) -> tuple[list[Bytes], list[int]]:
    """Frames of all entries, in pieces, and each entry's last sequence number."""
    framing = writer.framing
    if len(entries) == 1 and entries[0].columns is None:
        entry = entries[0]
        pieces = pack_records(
            entry.ops,
            entry.keys,
            entry.values,
            writer.next_seq,
            writer.unsynced_bytes,
            framing,
            is_batch=entry.is_batch,
        )
        return pieces, [writer.next_seq + len(entry.ops) - 1]
    next_seq = writer.next_seq
    size = 0
    ops, keys, values = b"", [], []
    for entry in entries:
        if entry.is_batch:
            break
        size += entry.size_bytes
        ops += entry.ops
        keys.append(entry.keys[0])
        values.append(entry.values[0])
    else:
        if size <= framing.frame_bytes:
            unsynced_bytes = writer.unsynced_bytes
            pieces = pack_records(ops, keys, values, next_seq, unsynced_bytes, framing)
            return pieces, list(range(next_seq, next_seq + len(entries)))
    if any(entry.encode is not None for entry in entries):
        encoded, places = _encoded(entries)
        pieces, seqs = _pack(encoded, writer)
        return pieces, [seqs[place] for place in places]
    packer = _Packer(writer)
    seqs = []
    for entry in entries:
        if entry.columns is not None:
            packer.add_columns(entry.columns)
        elif entry.is_batch:
            packer.flush()
            packer.add(entry)
            packer.flush(is_batch=True)
        else:
            if packer.held_bytes + entry.size_bytes > framing.frame_bytes:
                packer.flush()
            packer.add(entry)
        seqs.append(packer.next_seq - 1)
    packer.flush()
    return packer.pieces, seqs


def _encoded(entries: Sequence[Entry]) -> tuple[list[Entry], list[int]]:
    """The entries with records in place of parts, and each entry's index among them; the first
    entry of a record gets its size as the result.
    """
    found: list[Entry] = []
    places: list[int] = []
    for (encode, ops), run in groupby(entries, key=lambda entry: (entry.encode, entry.ops)):
        parts = list(run)
        if encode is None:
            places += range(len(found), len(found) + len(parts))
            found += parts
            continue
        for count, key, value in encode([entry.part for entry in parts]):
            size = len(key) + len(value) + RECORD_BYTES
            check_size(size)
            for entry in parts[:count]:
                entry.result = 0
            parts[0].result = size
            places += [len(found)] * count
            found.append(Entry(ops, (key,), (value,), size))
            parts = parts[count:]
    return found, places


class _Packer:
    """Collects records into frames."""

    def __init__(self, writer: Writer) -> None:
        self._framing = writer.framing
        self._unsynced_bytes = writer.unsynced_bytes
        self._ops = bytearray()
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self.pieces: list[Bytes] = []
        self.next_seq = writer.next_seq
        self.held_bytes = 0

    def add(self, entry: Entry) -> None:
        """Add the records of an entry to the frame."""
        self._ops += entry.ops
        self._keys += entry.keys
        self._values += entry.values
        self.held_bytes += entry.size_bytes
        self.next_seq += len(entry.ops)

    def flush(self, *, is_batch: bool = False) -> None:
        """End the frame, if it has records."""
        if not self._ops:
            return
        pieces = pack_records(
            bytes(self._ops),
            self._keys,
            self._values,
            self.next_seq - len(self._ops),
            self._unsynced_bytes,
            self._framing,
            is_batch=is_batch,
        )
        self._emit(pieces)
        self._ops, self._keys, self._values = bytearray(), [], []
        self.held_bytes = 0

    def add_columns(self, chunks: Sequence[Columns]) -> None:
        """Add a batch in columns, in frames of its own."""
        self.flush()
        for n, columns in enumerate(chunks):
            is_last = n == len(chunks) - 1
            for pieces, records in pack_columns(
                columns,
                self.next_seq,
                self._unsynced_bytes,
                self._framing,
                commit=COMMIT if is_last else None,
                continues=not is_last,
            ):
                self._emit(pieces)
                self.next_seq += records

    def _emit(self, pieces: list[Bytes]) -> None:
        self.pieces += pieces
        self._unsynced_bytes += sum(map(len, pieces))
