"""The public interface of ingestion: `Ingestor`."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import pyarrow as pa

from lakelog import telemetry
from lakelog.dialects.log_folders import require_outside_tables
from lakelog.errors import (
    CorruptionError,
    InternalError,
    InvalidInputError,
    LakelogError,
    StreamMismatchError,
    UnavailableError,
)
from lakelog.ingest.background import BackgroundWork, limited
from lakelog.ingest.committer import (
    UNREACHABLE,
    Codecs,
    Committed,
    Committer,
    compacted,
    is_fatal,
    lost_between_parts,
    new_state,
    pending_rows,
    refusal,
)
from lakelog.ingest.joined_records import JoinedRecords
from lakelog.ingest.records import (
    ONE_ROW,
    RECORD_BYTES,
    DurableRows,
    Position,
    Record,
    with_position,
)
from lakelog.ingest.rows import BadRow, FileRows, Given, batches_of
from lakelog.ingest.state import (
    IngestDirectory,
    IngestState,
    IngestStatus,
    key_names,
    opened_log,
    require_log_of,
)
from lakelog.input_validation import (
    checked_methods,
    require_bool,
    require_choice,
    require_int,
    require_seconds,
    require_text,
)
from lakelog.table import Table
from lakelog.table_functions import open as open_table
from lakelog.wal.disk import Access, Closing, Disk, LocalDisk, local_directory
from lakelog.wal.encode import RECORD_BYTES as RECORD_OVERHEAD_BYTES
from lakelog.wal.log import Sync, append_part

if TYPE_CHECKING:
    from lakelog.snapshot import Snapshot

OnBadRow = Literal["raise", "divert"]
Op = Literal["PUT", "DELETE"]

_LEAST_DELAY_S = 0.2
_MOST_DELAY_S = 30.0
_ATOMIC_BYTES = 64 << 20
_SHARE_OF_COMMIT = 16  # a record shared by threads has a small part of a commit's rows


@checked_methods("write", "delete")
class Ingestor(Closing):
    """Makes rows durable in a local write-ahead log, and commits them to a table in files of a
    useful size, each row exactly once.

    A row is durable when `write` returns, and `read_your_writes` shows it at once. A background
    thread commits when `max_rows` or `max_bytes` wait, or the oldest row has waited `max_seconds`.
    Each commit records the application id of the directory and the last sequence number in the
    table (``txn``), so that a crash at any point neither loses nor repeats a row. A new `Ingestor`
    of the same directory continues where the last one stopped.

    If the table cannot be reached, writes continue until `max_backlog_bytes` wait; the commit is
    retried with growing delays. If the table no longer accepts the rows of the log (a column was
    dropped, a constraint was added), or another process uses a copy of the directory, writes and
    `flush` raise the reason, and the rows stay in the log. New columns of the table are followed;
    rows that were written before have nulls, or the default, there.

    All methods are thread-safe; concurrent writes share one fsync. One process uses a directory at
    a time. `lakelog.AsyncIngestor` is its asyncio face.

    Args:
        table_or_location: A table, or its location as `lakelog.open` takes it.
        directory: Directory on local disk; created if it does not exist. It belongs to one table.
        key: Key columns. If given, a written row replaces the row of the table with the same key,
            `delete` removes it, and the last change of a key wins. None appends.
        max_rows: Rows per commit.
        max_bytes: Bytes of the log per commit, about.
        max_seconds: Longest time that a row waits before its commit begins.
        sync: Durability of a row when `write` returns, as for `WriteAheadLog`.
        on_bad_row: Whether a row that does not fit the table raises an error, in which case no row
            of the batch is written; or is written, with the reason, to the file `rejected_path`,
            while the other rows are accepted. A durable row that the table no longer accepts
            when it is committed blocks the commit, or is diverted.
        max_backlog_bytes: Bytes of rows that may wait for their commit. A larger write with a
            position is accepted if no other row waits. Disk use can exceed it by two segments of
            the log of 64 MiB.
        write_timeout: Seconds that a write waits while the backlog is full; None waits without
            limit.
        compact_after_seconds: Compact the table's small files when no row was written for this
            many seconds and the log is empty; None never does.
        accept_rollback: Continue if the table was replaced by an older copy of itself.
        disk: The filesystem of the directory.
        clock: Seconds, monotonic.

    Raises:
        LogLockedError: Another process uses the directory.
        StreamMismatchError: The directory belongs to another table or has another key; the table
            is an older copy of itself; it no longer accepts rows of the log; or it cannot be
            decided whether the last commit of an earlier process succeeded.
        ConcurrentTransactionError: A copy of the directory was used for the same table.
        CorruptionError: The directory is damaged.
        InvalidInputError: A key column does not exist, or the directory is inside the table.
        UnsupportedFeatureError: lakelog cannot write rows to the table, or a constraint depends on
            an identity column.
        UnavailableError: The disk failed, or the table cannot be reached and the directory is new.

    Memory: the rows of one commit, at most `max_bytes` of the log and their Arrow form.

    Source: ``schemas/ingest.md``. Delta protocol, Transaction Identifiers.

    Example:
        >>> with Ingestor("events", "events-ingest") as ingestor:  # doctest: +SKIP
        ...     ingestor.write({"id": 1, "kind": "click"})
        1
    """

    def __init__(
        self,
        table_or_location: Table | str | os.PathLike[str],
        directory: str | os.PathLike[str],
        *,
        key: Sequence[str] | str | None = None,
        max_rows: int = 1_000_000,
        max_bytes: int = 128 << 20,
        max_seconds: float = 10.0,
        sync: Sync = "sync",
        on_bad_row: OnBadRow = "raise",
        max_backlog_bytes: int = 4 << 30,
        write_timeout: float | None = 60.0,
        compact_after_seconds: float | None = None,
        accept_rollback: bool = False,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        require_choice("on_bad_row", on_bad_row, ("raise", "divert"))
        require_bool("accept_rollback", accept_rollback)
        self._max_rows = require_int("max_rows", max_rows, least=1)
        self._max_bytes = require_int("max_bytes", max_bytes, least=1)
        self._max_backlog_bytes = require_int("max_backlog_bytes", max_backlog_bytes, least=1)
        for name, seconds in (
            ("max_seconds", max_seconds),
            ("write_timeout", write_timeout),
            ("compact_after_seconds", compact_after_seconds),
        ):
            require_seconds(name, seconds, may_be_none=name != "max_seconds")
        self._max_seconds, self._write_timeout = max_seconds, write_timeout
        self._compact_after_s = compact_after_seconds
        self._joined = JoinedRecords(
            self._max_rows // _SHARE_OF_COMMIT, self._max_bytes // _SHARE_OF_COMMIT
        )
        self._diverts = on_bad_row == "divert"
        self._clock = clock
        path = local_directory(directory) if disk is None else os.fsdecode(directory)
        disk = disk or LocalDisk()
        self._table = (
            table_or_location
            if isinstance(table_or_location, Table)
            else open_table(table_or_location)
        )
        require_outside_tables(path, "ingest directory")
        self._access = Access("ingestor", path, is_read_only=False, pid=os.getpid())
        self._log = opened_log(path, sync, disk)
        try:
            self._directory = IngestDirectory(path, disk, self._log)
            state, snapshot = self._opened_state(key_names(key))
            self._committer = Committer(
                self._table,
                self._log,
                self._directory,
                state,
                max_rows=max_rows,
                max_bytes=max_bytes,
                accept_rollback=accept_rollback,
                new_id=lambda: uuid.uuid4().hex,
                divert=partial(self._divert, "PUT") if self._diverts else None,
            )
            self._changed, self._closing = threading.Condition(), threading.Lock()
            self._rows_durable = self._rows_committed = self._rows_diverted = 0
            self._backlog_rows = self._backlog_bytes = 0
            self._reserving: set[int] = set()  # threads between a reservation and its append's end
            self._oldest_s = self._last_write_s = clock()
            self._version: int | None = None
            self._error: LakelogError | None = None
            self._delay_s = 0.0
            self._retry_at_s = self._compact_at_s = 0.0
            self._small_commits = 0
            if snapshot is not None:
                self._committer.settle(self._note)
            waiting = self._committer.waiting()
            self._backlog_rows, self._backlog_bytes = waiting.rows, waiting.size_on_disk
        except BaseException:
            self._log.close()
            raise
        self._start()

    def _opened_state(self, key: tuple[str, ...] | None) -> tuple[IngestState, Snapshot | None]:
        """The state of the directory, and the table's; None if the table cannot be reached."""
        state = self._directory.read()
        if state is None and self._log.current_seq_num():
            raise CorruptionError(
                "the state of the ingest directory is missing",
                path=self._directory.state_path,
                hint="restore the directory from a copy; if it is a keyed store, choose another",
            )
        if state is not None and key != state.key:
            raise StreamMismatchError(
                "the ingest directory was made with another key",
                path=self._directory.path,
                expected=", ".join(state.key) or "no key",
                found=", ".join(key or ()) or "no key",
                hint="pass the same key, or use another directory",
            )
        if state is not None:
            require_log_of(state, self._log)
        try:
            snapshot = self._table.snapshot()
        except UNREACHABLE:
            if state is None:
                raise
            return state, None
        if state is None:
            state, snapshot = new_state(self._table, key or ())
            self._directory.publish(state)
        return state, snapshot

    @property
    def directory(self) -> str:
        """The directory."""
        return self._directory.path

    @property
    def table(self) -> Table:
        """The table."""
        return self._table

    @property
    def app_id(self) -> str:
        """The application id of all commits of this directory (``txn.appId``)."""
        return self._committer.state.app_id

    @property
    def rejected_path(self) -> str:
        """The NDJSON file of diverted rows; it exists once a row was diverted."""
        return self._directory.rejected_path

    @property
    def is_closed(self) -> bool:
        """Whether the Ingestor is closed."""
        return self._access.is_closed

    def status(self) -> IngestStatus:
        """Durable and committed sequence numbers, and the lag. Reads neither disk nor table."""
        self._access.check()
        with self._changed:
            waits = self._backlog_rows > 0
            return IngestStatus(
                self._log.current_seq_num(),
                self._log.truncated_to,
                self._rows_durable,
                self._rows_committed,
                self._rows_diverted,
                max(self._backlog_bytes, 0),
                max(self._clock() - self._oldest_s, 0.0) if waits else 0.0,
                self._version,
                self._error,
            )

    def write(self, rows: Any, *, source: str | None = None, offset: int | None = None) -> int:
        """Write rows; returns when they are durable.

        Args:
            rows: One row as a dict, a list of dicts, NDJSON as bytes (dates and times as ISO 8601
                text, binary values as base64), or rows as `Table.append` takes them: a Polars,
                pandas or Arrow frame, an Arrow reader, any object with an Arrow stream. Columns
                are matched by name. Missing columns are null or have their default. Only lossless
                casts are applied.
            source: Name of the source of the rows, such as a file or a Kafka partition.
            offset: Position in the source after these rows. It is recorded atomically with them:
                `offsets` returns it after a crash if, and only if, the rows are durable.

        Returns:
            The sequence number of the last record. Commits follow the order of sequence numbers.
            Threads that write at the same time can share a record. If all rows were diverted, the
            last number of the log.

        Raises:
            InvalidInputError: A row does not fit the table (``on_bad_row="raise"``), or the call or
                its Arrow data is invalid. Of the batch, nothing was written.
            StreamMismatchError: The table does not accept rows of the log; nothing was written.
            ConcurrentTransactionError: A copy of the directory is in use; nothing was written.
            UnavailableError: The backlog stayed full for `write_timeout`, or the disk failed, for
                example because it is full. Writes can be repeated, of a batch that is written in
                parts only the rows that the hint does not name as durable.
            OutcomeUnknownError: An fsync failed, or the thread that wrote for this one was
                interrupted; the rows may be durable. The Ingestor must be closed and opened again.
            LogPoisonedError: As `WriteAheadLog.append`, also after an interrupt of a write.
            KeyboardInterrupt: The rows may be durable. If they are, they are committed as others.

        The rows of a call with a position are atomic, and in memory together. Without one, a batch
        is atomic up to 64 MiB: a longer frame, and each batch of a stream, is written in parts, of
        which the first ones remain if a later one fails; the hint of the error names their rows.
        """
        if type(rows) is dict and source is None and offset is None:
            codecs = self._committer.codecs
            if (value := codecs.rows.encode_row(rows)) is not None:
                seq = self._append("PUT", [Record(ONE_ROW, value, 1)], codecs)
                if seq:
                    return seq
        return self._write("PUT", rows, source, offset)

    def delete(self, keys: Any) -> int:
        """Delete the rows with these keys; returns when the deletion is durable. A key that the
        table lacks is accepted.

        Args:
            keys: Rows with the key columns only, as `write` takes them.

        Returns:
            The sequence number of the last record.

        Raises:
            InvalidInputError: The Ingestor has no key, or a key does not fit the table.
            StreamMismatchError, ConcurrentTransactionError, UnavailableError, OutcomeUnknownError:
                As `write`.
        """
        if not self._committer.state.key:
            raise InvalidInputError(
                "rows can be deleted only by key",
                path=self.directory,
                hint="make the Ingestor with key=[...]",
            )
        return self._write("DELETE", keys, None, None)

    def _write(self, op: Op, rows: Any, source: Any, offset: Any) -> int:
        if (source is None) != (offset is None):
            raise InvalidInputError(
                "pass source and offset together", found=f"source={source!r}, offset={offset!r}"
            )
        position: tuple[str, Position] | None = None
        if source is not None:
            fingerprint = rows.fingerprint if isinstance(rows, FileRows) else None
            source = require_text("source", source)
            offset = require_int("offset", offset, least=0)
            position = source, Position(offset, fingerprint)
        self._access.check(to_write=True)
        codecs = self._committer.codecs
        if (
            position is None
            and codecs.of_op(op).is_joined(rows)
            and (seq := self._append_part(op, rows, codecs))
        ):
            return seq
        if position is not None:
            return self._write_together(op, list(batches_of(rows)), position)
        last, done = 0, DurableRows()
        with done.named():
            for batch in batches_of(rows):
                last = self._write_together(op, [batch], done=done) or last
                done.end_batch(len(batch))
        return last or self._log.current_seq_num()

    def _write_together(
        self,
        op: Op,
        batches: list[Given | FileRows],
        position: tuple[str, Position] | None = None,
        done: DurableRows | None = None,
    ) -> int:
        """Write batches, in one batch of the log if they have a position: a crash must not leave
        rows whose source is read again. 0 if nothing is left to write.
        """
        while True:
            found = [self._checked(op, batch) for batch in batches]
            codecs = found[0][0] if found else self._committer.codecs
            if any(used is not codecs for used, _, _ in found):
                continue  # the table's columns changed in between
            records = [record for _, good, _ in found for record in good]
            bad = [row for _, _, refused in found for row in refused]
            if position is not None:
                records = with_position(records, *position)
            if not records:
                self._divert(op, bad)
                return 0
            if seq := self._append(op, records, codecs, bad, done):
                return seq

    def _checked(self, op: Op, rows: Given | FileRows) -> tuple[Codecs, list[Record], list[BadRow]]:
        """What encodes a batch, its records, and the rows to divert; else bad rows are raised."""
        codecs = self._committer.codecs
        codec = codecs.of_op(op)
        try:
            return codecs, list(codec.records(rows)), []
        except InvalidInputError as error:
            self._follow()
            if self._committer.codecs is not codecs:  # another thread may have followed
                return self._checked(op, rows)
            if not self._diverts:
                error = codec.first_error(rows, error, of_keys=op == "DELETE")
                raise error from error.__cause__
        return codecs, *codec.checked(rows)

    def _follow(self) -> None:
        """Adopt what other processes changed in the table, if it can be reached."""
        with contextlib.suppress(*UNREACHABLE):
            self._committer.follow(self._table.snapshot())

    def _divert(self, op: Op, bad: Sequence[BadRow]) -> None:
        if not bad:
            return
        count = self._directory.reject(op, bad)
        with self._changed:
            self._rows_diverted += count
        telemetry.count("ingest.rows_diverted", count)

    def _append(
        self,
        op: Op,
        records: list[Record],
        codecs: Codecs,
        bad: Sequence[BadRow] = (),
        done: DurableRows | None = None,
    ) -> int:
        """Append records in one batch of the log, or in parts that `done` counts, and divert bad
        rows before it; 0 if the table's columns changed, so that all rows must be checked again.
        """
        seq = rows = 0
        diverted = sorted(row.number for row in bad)
        while records:
            part, size = 0, 0
            while part < len(records) and (not part or done is None or size < _ATOMIC_BYTES):
                record = records[part]
                size += len(record.value) + len(record.key) + RECORD_OVERHEAD_BYTES
                part += 1
            now, records = records[:part], records[part:]
            count = now[0].rows if part == 1 else sum(record.rows for record in now)
            self._reserve(count, size)
            try:
                with self._committer.appending:
                    lost = self._committer.lost_by(codecs)
                    if lost is None and bad:
                        self._divert(op, bad)
                        bad = ()
                    if lost is None and part == 1:
                        seq = self._log.append(op, now[0].key, now[0].value)
                    elif lost is None:
                        seq = self._log.append_batch([(op, r.key, r.value) for r in now])
                    else:
                        self._release(count, size)
            except Exception:  # after an interrupt the rows may be durable
                self._release(count, size)
                raise
            finally:
                self._reserving.discard(threading.get_ident())
            if lost is not None:
                if seq:
                    raise lost_between_parts(lost, self._table.path)
                return 0
            rows += count
            if done is not None:
                done.add_part(rows, diverted)
        return seq

    def _append_part(self, op: Op, rows: pa.Table, codecs: Codecs) -> int:
        """Append rows that share a record with those of other threads; 0 if they are too large, or
        the table's columns changed.
        """
        size = self._joined.estimate(rows)
        if size >= RECORD_BYTES:
            return 0
        self._reserve(rows.num_rows, size)
        try:
            with self._committer.appending:
                if self._committer.lost_by(codecs) is not None:
                    self._release(rows.num_rows, size)
                    return 0
                seq, stored = append_part(self._log, op, rows, self._joined.of)
            with self._changed:
                self._backlog_bytes += stored - size
            return seq
        except Exception as error:  # as in `_append`
            self._release(rows.num_rows, size)
            if isinstance(error, InvalidInputError):  # the size was far from the estimate
                return 0
            raise
        finally:
            self._reserving.discard(threading.get_ident())

    def _release(self, rows: int, size_bytes: int) -> None:
        """Release reserved space."""
        with self._changed:
            self._backlog_rows -= rows
            self._backlog_bytes -= size_bytes
            self._rows_durable -= rows

    def _reserve(self, rows: int, size_bytes: int) -> None:
        """Wait for space in the backlog, and reserve it."""
        self._access.check(to_write=True)
        if self._committer.mismatch is not None:
            self._follow()
            if self._committer.mismatch is not None:
                raise refusal(self._committer.mismatch)
        with self._changed:
            if self._backlog_bytes > 0 and (
                self._backlog_bytes + size_bytes > self._max_backlog_bytes
            ):
                self._wait_for_room(size_bytes)
            if self._error is not None and is_fatal(self._error):
                raise refusal(self._error)
            if self._backlog_rows <= 0:
                self._oldest_s = self._clock()
                self._changed.notify_all()
            self._last_write_s = self._clock()
            self._backlog_rows += rows
            self._backlog_bytes += size_bytes
            self._rows_durable += rows
            self._reserving.add(threading.get_ident())
            if self._is_full:
                self._changed.notify_all()

    def _wait_for_room(self, size_bytes: int) -> None:
        def has_room() -> bool:
            held = self._backlog_bytes
            has_space = held <= 0 or held + size_bytes <= self._max_backlog_bytes
            return has_space or self._is_closing or is_fatal(self._error)

        self._changed.notify_all()
        if not self._changed.wait_for(has_room, limited(self._write_timeout)):
            raise UnavailableError(
                "the backlog of the ingest log is full: the table does not accept rows fast enough",
                path=self.directory,
                expected=f"at most {self._max_backlog_bytes} bytes",
                found=f"{self._backlog_bytes} bytes",
                hint="try again later"
                if self._error is None
                else f"the last commit failed: {self._error}",
            ) from self._error
        self._access.check(to_write=True)

    @property
    def _is_full(self) -> bool:
        return self._backlog_rows >= self._max_rows or self._backlog_bytes >= self._max_bytes

    def read_your_writes(self) -> pl.LazyFrame:
        """The rows of the table's latest version, and the rows of the log that it does not have:
        all rows that were durable when this was called, each once.

        Returns:
            A lazy frame with the table's columns. Filters and column selection reach the scan of
            the table. With a key, the log's last change of each key replaces the table's row. The
            order is undefined.

        Raises:
            StreamMismatchError, ConcurrentTransactionError: As the constructor.
            InvalidInputError: The Ingestor is closed.
            UnavailableError: The table cannot be reached.

        Memory: the rows of the log that are not committed.
        """
        self._access.check()
        return self._committer.read_your_writes()

    def offsets(self) -> dict[str, int]:
        """The last durable offset of each source that `write` was given.

        Raises:
            InvalidInputError: The Ingestor is closed.
            UnavailableError: The disk failed.
        """
        return {source: each.offset for source, each in self.positions().items()}

    def positions(self) -> dict[str, Position]:
        """As `offsets`, with the fingerprints of the files that `lakelog ingest` read."""
        self._access.check()
        return self._committer.positions()

    @staticmethod
    def pending_rows(directory: str | os.PathLike[str]) -> pl.DataFrame:
        """The rows of a directory that are not known to be committed, without its table: to write
        them elsewhere, if the table no longer accepts them. The directory is not changed.

        Returns:
            The columns of the table that the Ingestor knew last, in the order of the log; identity
            values are null. With a key, also ``_lakelog_deleted``, which is true for deleted keys.
            Rows of a commit whose outcome was not reported are included.

        Raises:
            NotFoundError: The directory does not exist, or no Ingestor made it.
            CorruptionError: The directory is damaged.

        Memory: the rows.
        """
        return pending_rows(local_directory(directory))

    def rejected(self) -> pl.DataFrame:
        """The diverted rows of this directory, in the order in which they were written.

        Returns:
            ``time`` (ISO 8601), ``kind`` and ``reason`` of the error, ``column``, ``op`` (``PUT``,
            or ``DELETE`` for keys that `delete` was given), and ``row``, the text of a row of
            NDJSON or CSV, or the row as NDJSON (String). Of rows that `lakelog ingest` read,
            ``file`` (String) and ``line`` or, if it is not text, ``row_number`` (Int64, from 1).
            After a crash, or a write that failed, another row may occur twice, or be accepted
            later.
        """
        return self._directory.rejected()

    def flush(self) -> int:
        """Commit all rows that are durable when this is called.

        Returns:
            The last committed sequence number.

        Raises:
            StreamMismatchError, ConcurrentTransactionError: As `write`.
            ConflictError: Other writers changed the same rows, in every attempt.
            OutcomeUnknownError: A commit may have succeeded; the next one settles it.
            UnavailableError, TableNotFoundError: The store failed, or the table's volume is not
                mounted. The rows stay in the log, and the commit is retried.
        """
        self._access.check(to_write=True)
        self._background[0].wait()  # an interrupt can end it, unlike the wait for a lock
        self._drain()
        return self._log.truncated_to

    def _drain(self, stop: Callable[[], bool] = lambda: False) -> None:
        begin_s = self._clock()
        with telemetry.span("ingest.flush", path=self._table.path) as work:
            try:
                self._committer.drain(self._note, stop)
            except LakelogError as error:
                self._failed(error)
                raise
            except Exception as cause:
                message = f"a commit of the ingest log failed: {cause}"
                internal = InternalError(message, path=self._table.path)
                self._failed(internal)
                raise internal from cause
        with self._changed:
            lag_s = self._clock() - self._oldest_s
            self._error, self._delay_s, self._retry_at_s = None, 0.0, 0.0
            self._oldest_s = max(self._oldest_s, begin_s)
            if not self._reserving and self._log.current_seq_num() == self._log.truncated_to:
                self._backlog_rows = self._backlog_bytes = 0  # what interrupted writes reserved
        telemetry.record("ingest.lag", lag_s, "s")
        telemetry.record("ingest.flush.duration", work.seconds, "s")

    def _failed(self, error: LakelogError) -> None:
        with self._changed:
            self._error = error
            self._delay_s = min(max(self._delay_s * 2, _LEAST_DELAY_S), _MOST_DELAY_S)
            self._retry_at_s = self._clock() + self._delay_s
            delay_s, backlog = self._delay_s, self._backlog_bytes
            self._changed.notify_all()
        telemetry.event(
            "ingest.failed",
            path=self._table.path,
            error=error.kind,
            reason=error.message,
            backlog_bytes=backlog,
            retry_after_seconds=delay_s,
        )

    def _note(self, done: Committed) -> None:
        """Update the counters after a commit."""
        with self._changed:
            self._backlog_rows -= done.rows
            self._backlog_bytes -= done.size_on_disk
            self._rows_committed += done.rows - done.rows_diverted
            if done.version is not None:
                self._version = done.version
                self._small_commits += done.rows < self._max_rows
            self._changed.notify_all()

    def _start(self) -> None:
        """Start the background threads."""
        self._is_closing = False
        work = (
            (self._seconds_until_commit, lambda: self._drain(lambda: self._is_closing)),
            (self._seconds_until_compact, self._compact),
        )
        self._background = [
            BackgroundWork(self._changed, *each)
            for each in work[: 1 if self._compact_after_s is None else 2]
        ]

    def _seconds_until_commit(self) -> float | None:
        if self._is_closing or (self._backlog_rows <= 0 and self._backlog_bytes <= 0):
            return None
        now = self._clock()
        due = now if self._is_full else self._oldest_s + self._max_seconds
        return max(due, self._retry_at_s) - now

    def _seconds_until_compact(self) -> float | None:
        is_busy = self._is_closing or self._backlog_rows > 0 or self._small_commits < 2
        if is_busy or self._compact_after_s is None:
            return None
        return max(self._last_write_s + self._compact_after_s, self._compact_at_s) - self._clock()

    def _compact(self) -> None:
        small, is_done = self._small_commits, compacted(self._table)
        with self._changed:
            self._small_commits -= small if is_done else 0
            self._compact_at_s = self._clock() + (0.0 if is_done else _MOST_DELAY_S)
            self._changed.notify_all()

    def close(self, *, flush: bool = True) -> None:
        """Commit the durable rows, release the directory, and wait for a compaction that has begun.
        Can be called repeatedly. If its wait for a commit of the background thread is interrupted,
        the Ingestor stays open.

        Args:
            flush: False leaves the rows in the log; a later Ingestor commits them.

        Raises:
            LakelogError: As `flush`. The Ingestor is closed nevertheless, and the rows stay in the
                log.
        """
        if self._access.is_elsewhere:
            self._access.is_closed = True
            return
        self._begin_closing()
        with self._closing:
            if not self._access.is_closed:
                self._close(flush=flush)

    def _begin_closing(self) -> None:
        """Writers no longer wait for space, and only `close` commits."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def _close(self, *, flush: bool) -> None:
        try:
            self._background[0].wait()
        except BaseException:
            with self._changed:
                self._is_closing = False
                self._changed.notify_all()
            raise
        try:
            if flush and self._log.current_seq_num() > self._log.truncated_to:
                self._drain()
        except LakelogError as error:
            error.add_note(
                f"lakelog: the rows are durable in {self.directory}; the next Ingestor of this "
                "directory commits them"
            )
            raise
        finally:
            self._access.is_closed = True
            for each in self._background:
                each.end()
            self._log.close()
            for each in self._background:
                each.join()

    def __repr__(self) -> str:
        return f"Ingestor({self._table.path!r}, {self.directory!r})"

    def _open_facts(self) -> list[tuple[str, str]]:
        return [("table", self._table.path), *self.status().facts]
