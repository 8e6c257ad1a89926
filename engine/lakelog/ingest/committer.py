"""Commits the records of an Ingestor's log to its table, each exactly once.

A commit takes the records up to a sequence number S:

1. The log is synced, and the attempt (S, the table's version) is published in ``ingest.json``.
2. One transaction checks that the table's ``txn`` is the expected one, writes the rows and records
   S as the new ``txn`` version. A commit of the same application id in between is a conflict.
3. The log is truncated up to S.

After a crash or an unknown outcome, `state.committed_seq` decides from the table's ``txn`` whether
step 2 happened. An attempt that did not is repeated with the same S and id, so that a late request
of the store cannot add its rows twice.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from lakelog import telemetry
from lakelog.data.conform import Conform, Incoming
from lakelog.errors import (
    ConflictError,
    ExternalPathError,
    InvalidInputError,
    LakelogError,
    LogPoisonedError,
    OutcomeUnknownError,
    StreamMismatchError,
    TableNotFoundError,
    UnavailableError,
)
from lakelog.ingest.records import Position, Records
from lakelog.ingest.rows import BadRow, RowCodec
from lakelog.ingest.state import (
    Attempt,
    IngestDirectory,
    IngestState,
    TableView,
    committed_seq,
    follows,
    read_state,
)
from lakelog.log.context import list_again
from lakelog.model.contract import Struct, column_named, field_named
from lakelog.snapshot import Snapshot
from lakelog.table import Table
from lakelog.table_transaction import Transaction
from lakelog.wal.encode import RECORD_BYTES
from lakelog.wal.log import WriteAheadLog
from lakelog.wal.placement import LOG_FOLDER
from lakelog.wal.reading import SCHEMA

_ATTEMPTS = 10
"""How often a commit that lost to another writer is repeated at once."""

DELETED = "_lakelog_deleted"
"""The column of changes that is true for deleted keys, if the table has no column of its name."""

UNREACHABLE = (UnavailableError, TableNotFoundError)
"""Errors of a table that exists: its store is down, or its volume is not mounted."""

_RETENTION = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True)
class Codecs:
    """Codecs of rows, and of the keys of deleted rows."""

    rows: RowCodec
    keys: RowCodec

    @staticmethod
    def of(state: IngestState) -> Codecs:
        """For the schema and key of a directory."""
        key, schema = state.key, state.schema
        columns = Struct(tuple(field for field in schema.fields if field.name in key))
        return Codecs(
            RowCodec(schema, state.partition_columns, key, state.rules),
            RowCodec(columns, state.partition_columns, key),
        )

    def of_op(self, op: str) -> RowCodec:
        """The codec of the rows of an operation."""
        return self.rows if op == "PUT" else self.keys


class Appends:
    """Entered by appends, which may be concurrent; `held` waits for them, and holds off others."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count, self._is_held = 0, False

    def __enter__(self) -> None:
        with self._changed:
            while self._is_held:
                self._changed.wait()
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            if self._is_held:
                self._changed.notify_all()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Without an append in progress; one call at a time."""
        try:
            with self._changed:
                self._is_held = True
                self._changed.wait_for(lambda: not self._count)  # the wait may be interrupted
            yield
        finally:
            with self._changed:
                self._is_held = False
                self._changed.notify_all()


@dataclass(frozen=True)
class Committed:
    """One commit of the log, up to `seq`; `version` is None if no row changed, and `rows_diverted`
    are rows that the table no longer accepts.
    """

    seq: int
    records: int
    rows: int
    size_bytes: int
    version: int | None
    rows_diverted: int = 0

    @property
    def size_on_disk(self) -> int:
        """Bytes of the records in the log, about."""
        return self.size_bytes + RECORD_BYTES * self.records


class Committer:
    """Commits records, one call at a time; other threads can read meanwhile."""

    def __init__(
        self,
        table: Table,
        log: WriteAheadLog,
        directory: IngestDirectory,
        state: IngestState,
        *,
        max_rows: int,
        max_bytes: int,
        accept_rollback: bool,
        new_id: Callable[[], str],
        divert: Callable[[Sequence[BadRow]], None] | None,
    ) -> None:
        self.table, self._log, self._directory = table, log, directory
        self.state, self.codecs = state, Codecs.of(state)
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._accept_rollback, self._new_id = accept_rollback, new_id
        self._divert = divert
        self._kept: tuple[str, Records] | None = None
        """The id of an attempt of which rows were diverted, and its other rows."""
        self.mismatch: StreamMismatchError | None = None
        """Why the table's schema, when it was last compared, cannot hold the records; or None."""
        self.appending = Appends()
        """Entered while records are appended: no column that they have is lost meanwhile."""
        self._followed = 0
        self._turn = threading.RLock()
        self._truncating = threading.RLock()

    def drain(self, committed: Callable[[Committed], None], stop: Callable[[], bool]) -> None:
        """Commit the records that are durable now; calls `committed` after each commit."""
        with self._turn:
            self._log.sync()
            last = self._log.current_seq_num()
            for attempt in range(_ATTEMPTS):
                try:
                    self.settle(committed)
                    if last > self._log.truncated_to:
                        self._commit_to(last, committed, stop)
                    return
                except StreamMismatchError:
                    raise
                except (ConflictError, OutcomeUnknownError) as error:
                    is_fenced = getattr(error, "rule", None) == "app_id_written"
                    if attempt == _ATTEMPTS - 1 or (is_fenced and attempt):
                        raise  # the first one may be the late success of an own request
                    telemetry.event("ingest.retried", path=self.table.path, reason=str(error))

    def settle(self, committed: Callable[[Committed], None]) -> None:
        """Compare with the table: truncate committed records, and adopt its schema."""
        with self._turn:
            snapshot = self.table.snapshot()
            seq, txn = self._found(snapshot)
            if seq > self._log.truncated_to:
                done = self.waiting(seq)
                self._confirm(seq, txn)
                committed(replace(done, version=snapshot.version))
            elif txn != self.state.committed:
                self.state = replace(self.state, committed=txn)
            attempt = self.state.attempt
            if attempt is not None and attempt.version > snapshot.version:
                # The table was replaced by an older copy: the commit has a lower version there.
                state = replace(self.state, attempt=replace(attempt, version=snapshot.version))
                self._directory.publish(state)
                self.state = state
            self._followed = 0  # no later version exists, unless the table was replaced
            self.follow(snapshot)

    def follow(self, snapshot: Snapshot) -> None:
        """Adopt the schema and the rules of the table, unless a later version was followed. Raises
        StreamMismatchError if the log has records that the new schema cannot hold,
        UnsupportedFeatureError for a rule that cannot be evaluated.
        """
        if self.state.following(snapshot.table_configuration) == self.state:
            self.mismatch = None
            return
        with self._turn:
            if snapshot.version < self._followed:
                return
            schema, state = snapshot.metadata.schema, self.state
            lost = follows(state.schema.fields, schema)
            lost = lost or next((k for k in state.key if k not in schema.names), None)
            with contextlib.nullcontext() if lost is None else self.appending.held():
                if lost is not None and (
                    lost in state.key or self._log.current_seq_num() > self._log.truncated_to
                ):
                    raise self._lost(lost, snapshot)
                state = state.following(snapshot.table_configuration)
                codecs = Codecs.of(state)
                self._directory.publish(state)
                self.state, self.codecs, self.mismatch = state, codecs, None
                self._followed = snapshot.version

    def lost_by(self, codecs: Codecs) -> str | None:
        """The first column of records of earlier codecs that the schema no longer has, or None."""
        now = self.codecs
        if codecs is now:
            return None
        return follows(codecs.rows.schema.fields, now.rows.schema)

    def _lost(self, column: str, snapshot: Snapshot) -> StreamMismatchError:
        """The error for a column of records that a version lacks; writes are refused until the
        schema holds it again.
        """
        now = snapshot.schema.field(column)
        self.mismatch = StreamMismatchError(
            f"the column {column!r} was removed, renamed or changed in the table, and rows of the "
            "ingest log have it",
            path=self.table.path,
            column=column,
            version=snapshot.version,
            found=None if now is None else now.name,
            hint="restore the column; the rows stay in the log until then. "
            "Ingestor.pending_rows(directory) returns them",
        )
        return self.mismatch

    def _commit_to(
        self, last: int, committed: Callable[[Committed], None], stop: Callable[[], bool]
    ) -> None:
        for records in self._chunks(last):
            done = self._commit(records)
            del records  # so that their memory is free for the next part
            committed(done)
            if stop():
                return

    def _chunks(self, last: int) -> Iterator[Records]:
        """The records up to a sequence number, one part per commit, one of an earlier attempt."""
        held: list[Records] = []
        rows = size = 0
        start = self._log.truncated_to
        attempt = self.state.attempt
        fixed = attempt.seq if attempt is not None and attempt.seq > start else 0
        for table in self._log.iterate(after_seq=start):
            records = Records(table)
            while len(records):
                cut, is_full = self._cut(records, rows, size, fixed, last)
                part, records = records[:cut], records[cut:]
                if len(part):
                    held.append(part)
                    rows += int(part.rows.sum())
                    size += int(part.sizes.sum())
                if is_full:
                    if held:  # the log may have lost the records of the attempt
                        yield Records.concat(held)
                    held, rows, size, fixed = [], 0, 0, 0
                if len(records) and records.seqs[0] > last:
                    break
        if held:
            yield Records.concat(held)

    def _cut(
        self, records: Records, rows: int, size: int, fixed: int, last: int
    ) -> tuple[int, bool]:
        """Number of the next records that belong to the part, and whether it is complete then."""
        if fixed:
            cut = int(np.searchsorted(records.seqs, fixed, "right"))
            return cut, cut < len(records) or int(records.seqs[-1]) == fixed
        within = (rows + np.cumsum(records.rows) <= self._max_rows) & (
            size + np.cumsum(records.sizes) <= self._max_bytes
        )
        cut = len(records) if within.all() else int(np.argmin(within))
        if not cut and not rows and not size:
            cut = 1  # a record that is too large alone
        cut = min(cut, int(np.searchsorted(records.seqs, last, "right")))
        return cut, cut < len(records)

    def _commit(self, records: Records) -> Committed:
        seq, rows = int(records.seqs[-1]), int(records.rows.sum())
        size = int(records.sizes.sum())
        positions = {**self.state.positions, **records.positions()}
        if not rows:
            self.state = replace(self.state, positions=positions)
            self._confirm(seq, None)
            return Committed(seq, records.count, 0, size, None)
        attempt = self.state.attempt
        if attempt is None or attempt.seq != seq:
            version = self.table.snapshot(max_staleness=1.0).version
            attempt = Attempt(seq, version, self._new_id())
            state = replace(self.state, attempt=attempt, positions=positions)
            self._directory.publish(state)
            self.state = state
        with telemetry.span("ingest.commit", path=self.table.path, rows=rows) as work:
            version_written, written = self._write(records, attempt)
            work.set(version=version_written, seq=seq)
        self._confirm(seq, None if version_written is None else seq)
        telemetry.event(
            "ingest.committed",
            path=self.table.path,
            version=version_written,
            seq=seq,
            rows=written,
            size_bytes=size,
            seconds=work.seconds,
        )
        telemetry.count("ingest.rows", written)
        telemetry.record("ingest.commit.duration", work.seconds, "s")
        return Committed(seq, records.count, rows, size, version_written, rows - written)

    def _write(self, records: Records, attempt: Attempt) -> tuple[int | None, int]:
        """The version, None if no row changed, and the number of rows that were not diverted."""
        if self._kept is not None and self._kept[0] == attempt.id:
            records = self._kept[1]
        rows = int(records.rows.sum())
        if not rows:
            return None, 0
        note = {"ingest": self.state.app_id, "lastSeq": attempt.seq, "attempt": attempt.id}
        tx = self.table.transaction(
            app_id=self.state.app_id,
            app_version=attempt.seq,
            user_metadata=orjson.dumps(note).decode(),
        )
        self.follow(tx.snapshot)
        if self._found(tx.snapshot) != (self._log.truncated_to, self.state.committed):
            raise OutcomeUnknownError(  # the next attempt decides
                "an earlier attempt of the commit succeeded late", path=self.table.path
            )
        try:
            if self.state.key:
                changes, deleted = self.changes(records, self.codecs)
                _merge_changes(tx, changes, deleted, self.state)
            else:
                tables = self.codecs.rows.decode(records.of("PUT")[0])
                tx.append(Incoming(tables[0].schema, iter(tables)))
        except InvalidInputError as error:
            if self._divert is not None:
                kept, bad = self.codecs.rows.without_bad(records)
                if bad:
                    self._divert(bad)
                    self._kept = attempt.id, kept
                    return self._write(kept, attempt)
            raise _refused(error, self.table.path) from error
        tx.commit()
        if tx.duplicate:
            raise OutcomeUnknownError(
                "an earlier attempt of the commit succeeded late", path=self.table.path
            )
        return tx.version, rows

    def changes(self, records: Records, codecs: Codecs) -> tuple[pl.DataFrame, str]:
        """The last row of each key, and the name of the column that marks deleted keys."""
        deleted = _unused_name(DELETED, codecs.rows.schema.names)
        keys = [*map(column_named, self.state.key)]
        every = _in_order(codecs, records, deleted)
        return every.unique(keys, keep="last", maintain_order=True), deleted

    def _confirm(self, seq: int, txn: int | None) -> None:
        """Record that the records up to a sequence number are committed; `txn` None: unchanged."""
        self._kept = None
        if txn is None:
            # The truncation point would show that the attempt was committed.
            self._directory.publish(replace(self.state, attempt=None))
        with self._truncating:
            before = self.state.committed if txn is None else txn
            self.state = replace(self.state, committed=before, attempt=None)
            self._directory.with_space(lambda: self._log.truncate(seq))

    def _found(
        self, snapshot: Snapshot, state: IngestState | None = None, start: int | None = None
    ) -> tuple[int, int]:
        return committed_seq(
            state or self.state,
            self._log.truncated_to if start is None else start,
            self._view(snapshot),
            accept_rollback=self._accept_rollback,
        )

    def _view(self, snapshot: Snapshot) -> TableView:
        app_id = self.state.app_id
        own = snapshot.transactions().filter(pl.col("appId") == app_id).collect()

        def find(attempt: Attempt) -> bool | None:
            if attempt.version >= snapshot.version:
                return False
            log, wanted = self.table.log, range(attempt.version + 1, snapshot.version + 1)
            commits = log.list_since(attempt.version).commits
            if [c.version for c in commits if c.version in wanted] != list(wanted):
                return None
            actions = self.table.actions(wanted.start, snapshot.version)
            own = actions.filter(pl.col("extra").str.contains(attempt.id, literal=True))
            return own.select("version").collect().height > 0

        return TableView(
            self.table.path,
            snapshot.metadata.id,
            snapshot.version,
            int(own["txnVersion"][0]) if own.height else None,
            _RETENTION in snapshot.metadata.configuration,
            find,
        )

    def read_your_writes(self) -> pl.LazyFrame:
        """The rows of a version, and those of the records that it lacks."""
        snapshot, lost, records = self._version_and_records()
        rows = snapshot.scan()
        if not records.rows.any():
            return rows
        if lost is not None:
            raise self._lost(lost, snapshot)
        schema = rows.collect_schema()
        codecs = Codecs.of(replace(self.state, schema=snapshot.schema))
        try:
            if not self.state.key:
                return pl.concat([rows, _cast(_appended(codecs.rows, snapshot, records), schema)])
            changes, deleted = self.changes(records, codecs)
            changed = changes.filter(~pl.col(deleted)).drop(deleted)
            puts = _shown(codecs.rows, snapshot).table(changed)
        except InvalidInputError as error:
            raise _refused(error, self.table.path) from error
        keys = list(map(column_named, self.state.key))
        own = changes.lazy().select(keys)
        kept = rows.join(own, on=keys, how="anti")
        new = _cast(pl.DataFrame(puts), schema)
        # The merge replaces each row of a key that the table has several times.
        replaced = rows.select(keys).join(own, on=keys, how="semi")
        return pl.concat([kept, new.join(replaced, on=keys, how="left")])

    def _version_and_records(self) -> tuple[Snapshot, str | None, Records]:
        """A version, a column that it lacks, and the records so far that it lacks. The log is not
        truncated meanwhile; it is held only for reading the records, as long as commits leave time.
        """
        last = self._log.current_seq_num()
        schema = self.state.schema  # after `last`: no later version is needed to read the records
        for attempt in range(_ATTEMPTS):
            with self._truncating if attempt == _ATTEMPTS - 1 else contextlib.nullcontext():
                start = self._log.truncated_to
                snapshot = self.table.snapshot()
                with self._truncating:
                    state = self.state  # after the snapshot: it has the attempts of its commits
                    if self._log.truncated_to != start:
                        continue
                seq, _ = self._found(snapshot, state, start)
                with self._truncating:
                    if self._log.truncated_to == start:
                        records = _records_after(self._log, seq)
                        cut = int(np.searchsorted(records.seqs, last, "right"))
                        return snapshot, follows(schema.fields, snapshot.schema), records[:cut]
        raise AssertionError("unreachable: nothing is truncated in the last attempt")

    def waiting(self, last: int | None = None) -> Committed:
        """The number and sizes of the records that are not committed, up to a sequence number."""
        found = Committed(last or self._log.current_seq_num(), 0, 0, 0, None)
        for records in _parts_after(self._log, self._log.truncated_to):
            cut = len(records) if last is None else np.searchsorted(records.seqs, last, "right")
            part = records[: int(cut)]
            found = replace(
                found,
                records=found.records + part.count,
                rows=found.rows + int(part.rows.sum()),
                size_bytes=found.size_bytes + int(part.sizes.sum()),
            )
        return found

    def positions(self) -> dict[str, Position]:
        """The last durable position of each source."""
        with self._truncating:
            found = dict(self.state.positions)
            for records in _parts_after(self._log, self._log.truncated_to):
                found.update(records.positions())
            return found


def _appended(codec: RowCodec, snapshot: Snapshot, records: Records) -> pl.DataFrame:
    """The rows of records in the schema of a version, in the order of the log."""
    puts, _ = records.of("PUT")
    rows = codec.concat(codec.decode(puts))
    order = np.argsort(puts.numbers(), kind="stable")
    return pl.DataFrame(_shown(codec, snapshot).table(rows.take(pa.array(order))))


def _shown(codec: RowCodec, snapshot: Snapshot) -> Conform:
    """Brings rows under the schema of a version; values that a commit generates are null."""
    fields = [
        replace(field, nullable=True) if field.name in codec.computed else field
        for field in snapshot.schema.fields
    ]
    return Conform(fields, snapshot.metadata.partition_columns)


def pending_rows(directory: str) -> pl.DataFrame:
    """The rows in the log of a directory, with a column that marks deleted keys if it has a key."""
    read_state(directory)  # first: other directories have logs too
    with WriteAheadLog(f"{directory}/{LOG_FOLDER}", read_only=True) as log:
        records = _records_after(log, log.truncated_to)
        state = read_state(directory)  # later: it has the columns of all records
        deleted = _unused_name(DELETED, state.schema.names)
        rows = _in_order(Codecs.of(state), records, deleted)
    return rows if state.key else rows.drop(deleted)


def _records_after(log: WriteAheadLog, seq: int) -> Records:
    return Records.concat([Records(SCHEMA.empty_table()), *_parts_after(log, seq)])


def _parts_after(log: WriteAheadLog, seq: int) -> Iterator[Records]:
    """The records after a sequence number, one part in memory at a time."""
    return map(Records, log.iterate(after_seq=seq))


def _in_order(codecs: Codecs, records: Records, deleted: str) -> pl.DataFrame:
    """Rows and deleted keys in the order of the log; the column `deleted` marks the keys."""
    order = _unused_name("_lakelog_order", [*codecs.rows.schema.names, deleted])
    parts = []
    for op, codec in (("PUT", codecs.rows), ("DELETE", codecs.keys)):
        own, places = records.of(op)
        frame = pl.DataFrame(codec.concat(codec.decode(own))).with_columns(
            pl.Series(order, places[own.numbers()])
        )
        parts.append(frame.with_columns(pl.lit(op == "DELETE").alias(deleted)))
    return pl.concat(parts, how="diagonal").sort(order, maintain_order=True).drop(order)


def new_state(table: Table, key: tuple[str, ...]) -> tuple[IngestState, Snapshot]:
    """The state of a new directory, and the version of the table that it follows."""
    tried = table.snapshot()

    def attempt() -> tuple[IngestState, Snapshot]:
        nonlocal tried
        tried = table.snapshot()
        metadata = tried.metadata
        for name in key:
            if name not in metadata.schema.names:
                raise InvalidInputError(
                    f"the table has no key column {name!r}",
                    path=table.path,
                    column=name,
                    expected=", ".join(metadata.schema.names),
                    found=name,
                )
        stream = f"lakelog-ingest-{uuid.uuid4()}"
        state = IngestState(stream, metadata.id, key, Struct(()), ())
        state = state.following(tried.table_configuration)
        _require_writable(table, state)
        return state, tried

    # The check of the rows reads the latest version, in which a column may have another name.
    return list_again(
        attempt, lambda _: table.snapshot().metadata != tried.metadata, (InvalidInputError,)
    )


def _require_writable(table: Table, state: IngestState) -> None:
    """Refuse a table to which such rows cannot be written, before one is acknowledged."""
    codec = Codecs.of(state).rows
    nothing = pl.DataFrame(codec.empty())
    if not state.key:
        table.append(nothing.drop(codec.computed))
        return
    if state.rules is not None:
        state.rules.require_insertable(state.key)
    if table.snapshot().table_configuration.is_active("appendOnly"):
        raise StreamMismatchError(
            "rows of an append-only table cannot be replaced by key",
            path=table.path,
            hint="omit key, or set delta.appendOnly to false",
        )
    deleted = _unused_name(DELETED, nothing.columns)
    changes = nothing.with_columns(pl.lit(value=False).alias(deleted))
    _merge_changes(table, changes, deleted, state)


def compacted(table: Table) -> bool:
    """Compact the small files of a table; whether that succeeded."""
    try:
        report = table.compact()
    except Exception as error:  # noqa: BLE001 - compaction is repeated later
        telemetry.event("ingest.compaction_failed", path=table.path, reason=str(error))
        return False
    telemetry.event(
        "ingest.compacted",
        path=table.path,
        files=report.num_files,
        removed_files=report.num_removed_files,
    )
    return True


def lost_between_parts(column: str, path: str) -> StreamMismatchError:
    """The error for a batch whose first parts are in the log, and whose other rows do not fit."""
    return StreamMismatchError(
        f"the column {column!r} was removed, renamed or changed in the table while a batch was "
        "written in parts",
        path=path,
        column=column,
        hint="write the other rows with the table's columns",
    )


def refusal(error: LakelogError) -> LakelogError:
    """An error of the background thread, for a caller."""
    keeps_kind = isinstance(error, (ConflictError, LogPoisonedError))
    kind = type(error) if keeps_kind else StreamMismatchError
    return kind(
        error.message,
        path=error.path,
        column=error.column,
        version=error.version,
        expected=error.expected,
        found=error.found,
        hint=error.hint,
    )


def is_fatal(error: LakelogError | None) -> bool:
    """Whether writes are refused until a commit succeeds; after other errors it is only retried."""
    if isinstance(error, ConflictError):
        return error.kind == "concurrent_transaction"
    is_passing = isinstance(error, (*UNREACHABLE, OutcomeUnknownError))
    return error is not None and (isinstance(error, LogPoisonedError) or not is_passing)


def _merge_changes(
    target: Table | Transaction, changes: pl.DataFrame, deleted: str, state: IngestState
) -> None:
    """Merge rows by key; those whose column `deleted` is true are deleted. Identity columns of rows
    that are replaced keep their values; those of new rows are generated where they are null.
    """
    row = pl.col("source")
    is_deleted = field_named(row, deleted)
    identities = () if state.rules is None else state.rules.identities
    columns = {each.column for each in identities}
    merge = target.merge(changes, list(state.key)).when_matched_delete(is_deleted)
    merge.when_matched_update_all(except_cols=[deleted, *columns])
    chosen = [each.column for each in identities if each.allows_values]
    for count in range(len(chosen), -1, -1):
        for given in itertools.combinations(chosen, count):
            predicate = pl.all_horizontal(
                ~is_deleted, *(field_named(row, name).is_not_null() for name in given)
            )
            left_out = [deleted, *columns.difference(given)]
            merge.when_not_matched_insert_all(predicate, except_cols=left_out)
    merge.execute()


def _cast(rows: pl.DataFrame, schema: pl.Schema) -> pl.LazyFrame:
    """The rows in the types of a schema with the same columns, none of them read as a pattern."""
    return pl.DataFrame([rows[name].cast(dtype) for name, dtype in schema.items()]).lazy()


def _unused_name(name: str, taken: Sequence[str]) -> str:
    """A name that is not taken."""
    while name in taken:
        name += "_"
    return name


def _refused(error: LakelogError, path: str) -> StreamMismatchError:
    is_external = isinstance(error, ExternalPathError)
    changes = "change the table so that it accepts them (alter.set_nullable, alter.drop_constraint)"
    todo = error.hint if is_external else f'{changes}, or divert them (on_bad_row="divert")'
    return StreamMismatchError(
        f"the table does not accept rows of the ingest log: {error.message}",
        path=path,
        column=error.column,
        expected=error.expected,
        found=error.found,
        hint=f"{todo}; the rows stay in the log until then. Ingestor.pending_rows(directory) "
        "returns them",
    )
