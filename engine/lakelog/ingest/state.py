"""The state of an Ingestor's directory, and which of its records are committed.

``ingest.json`` has the application id of the directory, the schema of its records, the positions of
committed sources, and the commit that was attempted last. It is replaced atomically, and is durable
before the attempt that it describes. ``rejected.ndjson`` has the rows that were diverted.

The table's ``txn`` has the last committed sequence number. Together with the attempt and the
truncation point of the log it shows which records are committed (`committed_seq`).
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import datetime as dt
import errno
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import polars as pl

from lakelog.data.row_rules import Identity, RowRules, Rule
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.display import Displayed
from lakelog.errors import (
    ConcurrentTransactionError,
    CorruptionError,
    InvalidInputError,
    LakelogError,
    LogLockedError,
    NotFoundError,
    StreamMismatchError,
    UnavailableError,
    UnsupportedError,
)
from lakelog.ingest.records import Position
from lakelog.ingest.rows import BadRow
from lakelog.model import contract
from lakelog.model.contract import (
    Array,
    DataType,
    Field,
    Map,
    Struct,
    parse_schema,
    to_json,
)
from lakelog.transaction.metadata_changes import without_identity_marks
from lakelog.wal.disk import (
    Disk,
    LocalDisk,
    WritableFile,
    disk_errors,
    local_directory,
)
from lakelog.wal.frames import Op
from lakelog.wal.log import Sync, WriteAheadLog, require_lock
from lakelog.wal.placement import (
    INGEST_FILE,
    INGEST_FORMAT,
    LOG_FOLDER,
    has_segments,
    names_in,
    require_owner,
)
from lakelog.wal.writer import write_all

_REJECTED_NAME = "rejected.ndjson"
_RESERVE_NAMES = ("reserve-1", "reserve-2")
_RESERVE_BYTES = 64 << 10
_BLOCK_BYTES = 1 << 20
_NAMED_FILE = re.compile(rb'"file"\s*:\s*("(?:[^"\\]|\\.)*+")')
_RENAMES = 10
"""How often diverted rows are appended again because their file was renamed meanwhile."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORMAT_VERSION = 1
_REJECTED = {
    "time": pl.String(),
    "kind": pl.String(),
    "reason": pl.String(),
    "column": pl.String(),
    "file": pl.String(),
    "line": pl.Int64(),
    "row_number": pl.Int64(),
    "op": pl.String(),
    "row": pl.String(),
}
"""The columns of the file of diverted rows."""

_LOST = (
    "restore the whole directory from a copy. If there is none, write the rows of "
    "Ingestor.pending_rows(directory) that the table lacks through another directory; other rows "
    "that were only in this log are lost"
)


def require_log_of(state: IngestState, log: WriteAheadLog) -> None:
    """Refuse a log without the records of the last commit: its next records would have their
    sequence numbers, and count as committed.
    """
    attempted = state.attempt.seq if state.attempt is not None else 0
    last, expected = log.current_seq_num(), max(state.committed, attempted)
    if last < expected:
        raise CorruptionError(
            "the log of the ingest directory is older than its state, or was created again",
            path=log.directory,
            expected=f"sequence numbers up to at least {expected}",
            found=last,
            hint=_LOST,
        )


def opened_log(path: str, sync: Sync, disk: Disk) -> WriteAheadLog:
    """The write-ahead log of a directory, locked."""
    log_directory = f"{path}/{LOG_FOLDER}"
    with disk_errors("the ingest directory cannot be read", path):
        require_owner(disk, path, INGEST_FILE)
        if INGEST_FILE in names_in(disk, path) and not has_segments(disk, log_directory):
            raise CorruptionError(
                "the log of the ingest directory is missing",
                path=log_directory,
                expected="at least one segment of the log",
                found=f"no segment, but {INGEST_FILE}",
                hint=_LOST,
            )
    try:
        return WriteAheadLog(log_directory, sync, disk=disk)
    except LogLockedError as error:
        error.hint = "close the other Ingestor, or use another directory"
        raise


@dataclass(frozen=True)
class Attempt:
    """A commit that may have been written: its last sequence number, which is its ``txn`` version,
    the table version that it read, and a random id, which is in the commit's ``userMetadata``.
    """

    seq: int
    version: int
    id: str


@dataclass(frozen=True)
class IngestState:
    """The content of ``ingest.json``.

    Attributes:
        app_id: The application id of all commits of this directory.
        table_id: ``id`` of the table's metadata.
        key: Key columns; empty for an append table.
        schema: The columns of the records, without high water marks of identity columns.
        partition_columns: The table's.
        committed: The ``txn`` version that the table had before the attempt; 0 if none.
        attempt: The last attempt; None if nothing was attempted after `committed`.
        positions: The last position of each source in committed records.
        rules: The table's rules of rows; None if it has none.
    """

    app_id: str
    table_id: str | None
    key: tuple[str, ...]
    schema: Struct
    partition_columns: tuple[str, ...]
    committed: int = 0
    attempt: Attempt | None = None
    positions: Mapping[str, Position] = field(default_factory=dict)
    rules: RowRules | None = None

    def following(self, table: TableConfiguration) -> IngestState:
        """The state with the columns and rules of a version of the table."""
        metadata = table.metadata
        schema = without_identity_marks(metadata.schema)
        rules = RowRules.of(table)
        identities = tuple(replace(each, mark=None) for each in rules.identities)
        return replace(
            self,
            schema=schema,
            partition_columns=metadata.partition_columns,
            rules=replace(rules, schema=schema, identities=identities) if rules.names else None,
        )

    def encode(self) -> bytes:
        """The bytes of the file."""
        attempt = self.attempt
        return orjson.dumps(
            {
                "format": INGEST_FORMAT,
                "version": _FORMAT_VERSION,
                "appId": self.app_id,
                "tableId": self.table_id,
                "key": self.key,
                "schema": to_json(self.schema),
                "partitionColumns": self.partition_columns,
                "committed": self.committed,
                "attempt": attempt
                and {"seq": attempt.seq, "version": attempt.version, "id": attempt.id},
                "offsets": {name: each.offset for name, each in self.positions.items()},
                "fingerprints": {
                    name: each.fingerprint
                    for name, each in self.positions.items()
                    if each.fingerprint is not None
                },
                "rules": self.rules and _encoded_rules(self.rules),
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )


@dataclass(frozen=True)
class IngestStatus(Displayed):
    """The progress of an `Ingestor`.

    Attributes:
        durable_seq: The last sequence number in the log.
        committed_seq: The last sequence number that the table has.
        rows_durable: Rows that this object wrote to the log.
        rows_committed: Rows that it committed, including those of earlier processes.
        rows_diverted: Rows that it diverted.
        backlog_bytes: Bytes in the log that are not committed.
        lag_seconds: Age of the oldest row that is not committed; 0.0 if all are.
        version: The table version of its last commit; None before the first.
        error: Why the last attempt to commit failed; None if it succeeded.
    """

    durable_seq: int
    committed_seq: int
    rows_durable: int
    rows_committed: int
    rows_diverted: int
    backlog_bytes: int
    lag_seconds: float
    version: int | None
    error: LakelogError | None


def decode(data: bytes, path: str) -> IngestState:
    """The state in the bytes of a file."""
    try:
        fields = orjson.loads(data)
        version = fields["version"]
        if version == _FORMAT_VERSION:
            attempt = fields["attempt"]
            schema = parse_schema(orjson.dumps(fields["schema"]).decode())
            rules = fields.get("rules")
            partitions = tuple(fields["partitionColumns"])
            marks = fields.get("fingerprints", {})
            return IngestState(
                fields["appId"],
                fields["tableId"],
                tuple(fields["key"]),
                schema,
                partitions,
                fields["committed"],
                attempt and Attempt(attempt["seq"], attempt["version"], attempt["id"]),
                {name: Position(each, marks.get(name)) for name, each in fields["offsets"].items()},
                rules and _decoded_rules(rules, schema, partitions),
            )
    except (ValueError, LookupError, TypeError, AttributeError) as cause:
        raise CorruptionError(
            "the state of the ingest directory is damaged",
            path=path,
            hint="restore the file from a copy of the whole directory",
        ) from cause
    raise UnsupportedError(
        "the ingest directory was written by a later version of lakelog",
        path=path,
        expected=f"format version {_FORMAT_VERSION}",
        found=version,
        hint="upgrade lakelog",
    )


def _encoded_rules(rules: RowRules) -> dict[str, Any]:
    names = ("checks", "generated", "identities")
    return {name: [asdict(each) for each in getattr(rules, name)] for name in names}


def _decoded_rules(
    fields: Mapping[str, Any], schema: Struct, partition_columns: tuple[str, ...]
) -> RowRules:
    return RowRules(
        schema,
        tuple(Rule(**each) for each in fields["checks"]),
        tuple(Rule(**each) for each in fields["generated"]),
        tuple(Identity(**each) for each in fields["identities"]),
        partition_columns,
    )


def read_state(directory: str) -> IngestState:
    """The state of an existing directory."""
    path = local_directory(directory)
    state = IngestDirectory(path, LocalDisk()).read()
    if state is None:
        raise NotFoundError("ingest directory not found", path=path)
    return state


class IngestDirectory:
    """The files of a directory next to its log. Its owner has the lock of the log."""

    def __init__(self, directory: str, disk: Disk, log: WriteAheadLog | None = None) -> None:
        self.path, self._disk, self._log = directory, disk, log
        self._guard = threading.Lock()
        self._written: dict[str, set[tuple[Any, ...]]] = {}
        self._named: set[bytes] | None = None
        """The files with rows that earlier processes diverted, as JSON; None before it is read."""
        self._reserve_paths = [f"{directory}/{name}" for name in _RESERVE_NAMES]
        self._has_reserve = False

    @property
    def state_path(self) -> str:
        """Path of the state."""
        return f"{self.path}/{INGEST_FILE}"

    @property
    def rejected_path(self) -> str:
        """Path of the diverted rows."""
        return f"{self.path}/{_REJECTED_NAME}"

    def read(self) -> IngestState | None:
        """The state; None if the directory is new."""
        with disk_errors("the ingest directory cannot be read", self.path):
            try:
                data = self._disk.read(self.state_path)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return decode(data.to_pybytes(), self.state_path)

    def publish(self, state: IngestState) -> None:
        """Replace the state, durably."""
        self.with_space(lambda: self._publish(state))

    def with_space(self, write: Callable[[], object]) -> None:
        """Run what a commit has to write; on a full disk, free the reserve for it.

        Rows that wait could otherwise fill the disk so that they can never be committed, which is
        what frees their space.
        """
        for path in (*self._reserve_paths, None):
            try:
                write()
                break
            except UnavailableError as error:
                cause = error.__cause__
                is_full = isinstance(cause, OSError) and cause.errno in _FULL
                if path is None or not is_full:
                    raise
                self._has_reserve = False
                with contextlib.suppress(OSError):
                    self._disk.remove(path)
        if not self._has_reserve:
            self._reserve()

    def _reserve(self) -> None:
        """Create the missing files of the reserve, if there is space."""
        with contextlib.suppress(OSError):
            for path in self._reserve_paths:
                with contextlib.suppress(FileNotFoundError):
                    if self._disk.size(path) == _RESERVE_BYTES:
                        continue
                    self._disk.remove(path)  # a crash or a full disk left a part of it
                file = self._disk.open_append(path, create=True)
                try:
                    write_all(file, [bytes(_RESERVE_BYTES)])
                    file.sync()
                finally:
                    file.close()
            self._has_reserve = True

    def _publish(self, state: IngestState) -> None:
        temporary = f"{self.state_path}.tmp"
        with disk_errors("the state of the ingest directory cannot be written", self.path):
            with contextlib.suppress(FileNotFoundError):  # of a crash
                self._disk.remove(temporary)
            file = self._disk.open_append(temporary, create=True)
            try:
                write_all(file, [state.encode()])
                file.sync()
            finally:
                file.close()
            self._require_lock()
            self._disk.rename(temporary, self.state_path)
            self._disk.sync_directory(self.path)

    def _require_lock(self) -> None:
        """Raise if another process may write to the directory."""
        if self._log is not None:
            require_lock(self._log)

    def reject(self, op: Op, bad: Sequence[BadRow]) -> int:
        """Append diverted rows, or keys of rows to delete, durably; returns their number. Rows of a
        file are not repeated if their batch is read again, because it was not written after they
        were diverted.
        """
        now = dt.datetime.now(dt.UTC).isoformat()
        rows: list[dict[str, Any]] = [
            {
                "time": now,
                "kind": each.reason.kind,
                "reason": str(each.reason),
                "column": each.reason.column,
                "file": each.file,
                "line": each.line,
                "row_number": each.row_number,
                "op": op,
                "row": each.row if isinstance(each.row, str) else _row_text(each.row),
            }
            for each in bad
        ]
        with self._guard, disk_errors("diverted rows cannot be written", self.rejected_path):
            new: list[bytes] | None = None
            for _ in range(_RENAMES):
                file = self._open_rejected()
                try:
                    self._cut_torn_line(file)
                    if new is None:
                        new = [_line(row) for row in rows if not self._is_written(row, file)]
                    self._append(file, new)
                    # If the file was renamed meanwhile, its reader may have missed the rows.
                    if not new or file.is_at(self.rejected_path):
                        return len(rows)
                finally:
                    file.close()
        raise UnavailableError(
            "the file of diverted rows is renamed too often",
            path=self.rejected_path,
            expected="the name while rows are appended",
            found=f"another file of that name, {_RENAMES} times",
            hint="rename it once, and read the renamed file; the rows may be in several of them",
        )

    def _append(self, file: WritableFile, lines: Sequence[bytes]) -> None:
        """Append lines durably, or none."""
        start = file.size()
        try:
            write_all(file, lines)
            file.sync()
            self._disk.sync_directory(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                self._require_lock()
                file.truncate(start)
            raise

    def rejected(self) -> pl.DataFrame:
        """The diverted rows, without a last line that a crash has cut."""
        with disk_errors("diverted rows cannot be read", self.rejected_path):
            try:
                data = self._disk.read(self.rejected_path).to_pybytes()
            except FileNotFoundError:
                data = b""
        lines = data[: data.rfind(b"\n") + 1]
        if not lines.strip():
            return pl.DataFrame(schema=_REJECTED)
        try:
            return pl.read_ndjson(lines, schema=_REJECTED)
        except pl.exceptions.PolarsError as cause:
            number = _first_damaged(lines.split(b"\n"))
            raise _damaged_line(self.rejected_path, number, cause) from cause

    def _open_rejected(self) -> WritableFile:
        """The file of diverted rows, opened by name each time: it may be moved or removed, also
        between the two calls.
        """
        while True:
            with contextlib.suppress(FileExistsError):
                return self._disk.open_append(self.rejected_path, create=True)
            with contextlib.suppress(FileNotFoundError):
                return self._disk.open_append(self.rejected_path)

    def _cut_torn_line(self, file: WritableFile) -> None:
        """Remove a last line that a crash has cut."""
        ends = (start + lines.rfind(b"\n") + 1 for start, lines in _blocks(file) if b"\n" in lines)
        end = next(ends, 0)
        if end < file.size():
            self._require_lock()
            file.truncate(end)

    def _is_written(self, row: Mapping[str, Any], file: WritableFile) -> bool:
        """Whether an earlier process diverted a row of a file."""
        name = row["file"]
        if name is None:
            return False
        if self._named is None:
            blocks = _blocks(file)
            self._named = {each for _, block in blocks for each in _NAMED_FILE.findall(block)}
        if name not in self._written:  # it is the first bad row of the file in this process
            is_named = orjson.dumps(name) in self._named
            self._written[name] = self._places_from(row, file) if is_named else set()
        return _place(row) in self._written[name]

    def _places_from(self, first: Mapping[str, Any], file: WritableFile) -> set[tuple[Any, ...]]:
        """The places of the last diverted rows of a file that are not before a row."""
        found: set[tuple[Any, ...]] = set()
        name = orjson.dumps(first["file"])
        for start, block in _blocks(file):
            lines = block.split(b"\n") if name in block else []
            for number, line in zip(range(len(lines), 0, -1), reversed(lines), strict=True):
                try:
                    if name in line and (row := orjson.loads(line)).get("file") == first["file"]:
                        if _number(row) < _number(first):
                            return found
                        found.add(_place(row))
                except (ValueError, TypeError, AttributeError) as cause:
                    before = file.read_part(0, start).count(b"\n")
                    raise _damaged_line(self.rejected_path, before + number, cause) from cause
        return found


def _blocks(file: WritableFile) -> Iterator[tuple[int, bytes]]:
    """The lines of a file in blocks with their offsets, the last block first."""
    rest, end = b"", file.size()
    while end:
        start = max(end - _BLOCK_BYTES, 0)
        data = file.read_part(start, end - start) + rest
        cut = (data.find(b"\n") + 1 or len(data)) if start else 0
        yield start + cut, data[cut:]
        rest, end = data[:cut], start


def _line(row: Mapping[str, Any]) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def _first_damaged(lines: Sequence[bytes]) -> int:
    """The number of the first line that cannot be read, from 1."""

    def is_damaged(count: int) -> bool:
        try:
            pl.read_ndjson(b"{}\n" + b"\n".join(lines[:count]), schema=_REJECTED)
        except pl.exceptions.PolarsError:
            return True
        return False

    return bisect.bisect_left(range(len(lines)), True, key=is_damaged)


def _damaged_line(path: str, number: int, cause: Exception) -> CorruptionError:
    return CorruptionError(
        "a line of the diverted rows is damaged",
        path=path,
        line=number,
        expected="a JSON object",
        found=str(cause).split("\n", 1)[0],
        hint="correct the line, or remove it",
    )


def _number(row: Mapping[str, Any]) -> int:
    return int(row.get("line") or row.get("row_number"))  # type: ignore[arg-type] # TypeError


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["file"], row.get("line"), row.get("row_number"), row.get("row")


def _row_text(row: Any) -> str:
    """A row as JSON that `Ingestor.write` reads; with NaN and Infinity, as it accepts them."""
    text = json.dumps(_json_value(row), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate, escaped


def _json_value(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            return f"{value:f}"
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case dt.date() | dt.time():
            return value.isoformat()
        case Mapping():
            return {str(_json_value(name)): _json_value(each) for name, each in value.items()}
        case list() | tuple():
            return [_json_value(each) for each in value]
        case np.ndarray() | np.generic():
            return _json_value(value.tolist())
    return repr(value)


@dataclass(frozen=True)
class TableView:
    """What a version of the table shows about a directory. `txn` is the version of the directory's
    application id, which may have expired with `txn_expires`. `find` returns whether a commit after
    a version, up to this one, has the application id and the text of an attempt: its id; None if
    commits are no longer in the log.
    """

    path: str
    table_id: str | None
    version: int
    txn: int | None
    txn_expires: bool
    find: Callable[[Attempt], bool | None]


def committed_seq(
    state: IngestState, truncated_to: int, view: TableView, *, accept_rollback: bool = False
) -> tuple[int, int]:
    """Decide which records the table has: the last sequence number that is committed, and the txn
    version to expect in the table. `truncated_to` is the truncation point of the log: records up to
    it are committed. Raises StreamMismatchError if it is another table, or an older copy of it
    (unless `accept_rollback`), or if the commits that would show whether an attempt succeeded are
    no longer in the log; ConcurrentTransactionError if another process committed under this
    application id: the directory was copied.
    """
    if state.table_id != view.table_id:
        raise StreamMismatchError(
            "the ingest directory belongs to another table",
            path=view.path,
            expected=f"the table with id {state.table_id}",
            found=view.table_id,
            hint="use another directory for this table",
        )
    attempt, before = state.attempt, state.committed
    if attempt is not None and attempt.seq <= truncated_to:
        before = attempt.seq  # it was confirmed before the truncation
        attempt = None
    found = view.txn or 0
    if attempt is not None and found == attempt.seq:
        if view.find(attempt) is False:
            raise _fenced(view, attempt.seq)
        return attempt.seq, attempt.seq
    if found == before:
        if attempt is None or found or not view.txn_expires:
            return max(truncated_to, before), before
    elif found > before:
        raise _fenced(view, before)
    # The txn expired, or the table is an older copy of itself.
    if view.txn is None and view.txn_expires:
        if attempt is None:
            return max(truncated_to, before), before
        was_written = view.find(attempt)
        if was_written:
            return attempt.seq, attempt.seq
        if was_written is False:
            return max(truncated_to, before), before
        raise StreamMismatchError(
            "it cannot be decided whether the last commit of the ingest log succeeded: its "
            "transaction identifier may have expired, and the commits are no longer in the log",
            path=view.path,
            version=view.version,
            expected=f"the commits after version {attempt.version}",
            hint="check whether the table has the rows of the directory; then write the "
            "missing ones through a new directory",
        )
    if accept_rollback:
        return max(truncated_to, found), found
    raise StreamMismatchError(
        "the table lacks commits of the ingest log: it is an older copy, or was created again",
        path=view.path,
        version=view.version,
        expected=f"txn version {before}",
        found=view.txn,
        hint=f"rows with sequence numbers {found + 1} to {before} are missing in the table; to "
        "continue with the later ones, pass accept_rollback=True",
    )


def _fenced(view: TableView, before: int) -> ConcurrentTransactionError:
    return ConcurrentTransactionError(
        "another process committed rows under the application id of this ingest directory",
        path=view.path,
        version=view.version,
        rule="app_id_written",
        expected=f"txn version {before or None}",
        found=view.txn,
        hint="the directory was copied, or its log restored from a copy: stop one of the two, and "
        "write the rows that only this log has through a new directory",
    )


def key_names(key: object) -> tuple[str, ...]:
    """The key columns that a caller names."""
    if key is None:
        return ()
    names: tuple[object, ...] = (
        tuple(key) if isinstance(key, Sequence) and not isinstance(key, str) else (key,)
    )
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(
            "key must be a column name or a list of column names", expected="a str", found=repr(key)
        )
    if len(set(names)) < len(names):
        raise InvalidInputError("key names a column twice", found=repr(key))
    return tuple(str(name) for name in names)


def follows(old: Iterable[Field], new: Struct) -> str | None:
    """The first column that rows of an older schema have, and the new one lacks, or has under
    another id or in a type that does not hold all of its values; None if there is none.
    """
    for column in old:
        now = new.field(column.name)
        if now is None or now.name != column.name or not _is_same(column, now):
            return column.name
        if not _holds(column.type, now.type):
            return column.name
    return None


def _is_same(old: Field, new: Field) -> bool:
    """Whether two fields of one name are the same column. A column that had no id before column
    mapping was enabled keeps its name as physical name; one that was created later has another.
    """
    ids = old.metadata.get(contract.COLUMN_ID), new.metadata.get(contract.COLUMN_ID)
    if ids[0] is None:
        return contract.physical_name(new, "name") == old.name
    return bool(ids[0] == ids[1])


def _holds(old: DataType, new: DataType) -> bool:
    match old, new:
        case Struct(fields), Struct():
            return follows(fields, new) is None
        case Array(a, _), Array(b, _):
            return _holds(a, b)
        case Map(key, value, _), Map(new_key, new_value, _):
            return _holds(key, new_key) and _holds(value, new_value)
    return old == new or contract.is_widening(old, new)
