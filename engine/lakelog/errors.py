"""The error classes of lakelog, grouped by how a caller handles them.

Every error has a stable ``kind`` and the structured fields that apply: ``path`` (the file or
table), ``table`` (the location of the table, to which a relative ``path`` belongs), ``column``,
``version``, ``line`` (1-based), ``byte_offset`` (0-based, in the decoded bytes of the file),
``expected``, ``found``, and ``hint`` (the next step). Each group also inherits the builtin
exception that a caller would expect.

Texts are redacted when an error is created (`lakelog.redaction`): messages and fields contain no
credentials. A driver's error that is chained as the cause keeps its type and traceback, and its
texts are redacted; objects that the driver attached to it, such as a response, are not changed.

| group | the caller should | also a |
|---|---|---|
| `InvalidInputError` | fix the call | ``ValueError`` |
| `NotFoundError` | check the location or version | ``FileNotFoundError`` |
| `ConflictError` | read the table again, decide, and retry | ``RuntimeError`` |
| `CorruptionError` | stop and repair the log | ``ValueError`` |
| `UnsupportedError` | upgrade lakelog, or the table | ``NotImplementedError`` |
| `UnavailableError` | retry later | ``OSError`` |
| `OutcomeUnknownError` | check the store before repeating | ``OSError`` |
| `InternalError` | report a bug | ``RuntimeError`` |

An argument of a wrong type raises `ArgumentTypeError`, which is an `InvalidInputError` and a
``TypeError``. Public functions raise nothing outside this tree, except:

- Python's own ``TypeError`` for a missing or unknown argument;
- ``PolarsError``, if a lazy frame or expression of the caller fails when it is executed, possibly
  when the caller collects a result;
- any exception of a function, iterator or stream of the caller;
- ``MemoryError`` and ``KeyboardInterrupt``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from lakelog.redaction import redact, redact_path, redacted

_FIELDS = ("path", "table", "column", "version", "line", "byte_offset", "expected", "found")


class LakelogError(Exception):
    """Base class of all errors that lakelog raises.

    Args:
        message: One sentence that states the problem.
        path: The file or table, as named in the store, or a field of the metadata.
        column: The column, with the names of nested fields after dots.
        version: The table version.
        line: 1-based line in ``path``.
        byte_offset: 0-based offset in the decoded bytes of ``path``.
        expected: The expected value.
        found: The actual value.
        hint: The next step.

    Attributes:
        table: Location of the table, of errors of its methods; shown with a relative `path`.
    """

    kind: ClassVar[str] = "error"
    _own: ClassVar[tuple[str, ...]] = ()  # the fields that only a subclass has
    table: str | None = None

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        column: str | None = None,
        version: int | None = None,
        line: int | None = None,
        byte_offset: int | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        # Foreign texts are possible: a driver's message, a URL, a setting of the caller.
        message = redact(message)
        super().__init__(message)
        self.message = message
        # A local path is kept unchanged: its parts may be partition values, and callers compare it.
        self.path = None if path is None else redact_path(path)
        self.column = column
        self.version = version
        self.line = line
        self.byte_offset = byte_offset
        self.expected = redacted(expected)
        self.found = redacted(found)
        self.hint = None if hint is None else redact(hint)

    def __str__(self) -> str:
        fields = [name for name in _FIELDS if name != "table" or self._is_relative()]
        details = [
            f"{name}={value}" for name in fields if (value := getattr(self, name)) is not None
        ]
        text = self.message
        if details:
            text += f" [{', '.join(details)}]"
        if self.hint:
            text += f" Next: {self.hint}"
        return text

    def _is_relative(self) -> bool:
        path = self.path
        is_absolute = path is None or "://" in path or os.path.isabs(path)
        return not is_absolute and path != self.table

    def as_dict(self) -> dict[str, Any]:
        """``kind``, ``message`` and the structured fields that are set, as plain data."""
        fields = {name: getattr(self, name) for name in (*_FIELDS, "hint", *self._own)}
        present = {name: value for name, value in fields.items() if value is not None}
        return {"kind": self.kind, "message": self.message, **present}


@contextmanager
def naming_table(location: str) -> Iterator[None]:
    """Name the table in errors that leave the block without one."""
    try:
        yield
    except LakelogError as error:
        if error.table is None:
            error.table = redact_path(location)
        raise


@contextmanager
def naming_destination(location: str, options: Mapping[str, Any] | None) -> Iterator[None]:
    """As `naming_table`; if its store fails and was opened without options, the hint names them."""
    try:
        with naming_table(location):
            yield
    except UnavailableError as error:
        if not options and "://" in location:
            hint = (
                f"the options of the source are not used for {redact(location)}: pass "
                "storage_options=, or --to-option on the command line"
            )
            error.hint = f"{error.hint}; {hint}" if error.hint else hint
        raise


class InvalidInputError(LakelogError, ValueError):
    """The call is invalid: fix the call."""

    kind = "invalid_input"


class ArgumentTypeError(InvalidInputError, TypeError):
    """An argument has another type than annotated."""

    kind = "argument_type"


class TableExistsError(InvalidInputError, FileExistsError):
    """A table already exists at the location."""

    kind = "table_exists"


class InvalidTransactionError(InvalidInputError):
    """The transaction would make the table inconsistent; nothing was written."""

    kind = "invalid_transaction"


class InvalidPathError(InvalidTransactionError):
    """A file's path is empty, leads out of the table, or cannot be encoded."""

    kind = "invalid_path"


class ExternalPathError(InvalidInputError):
    """A path leads out of the table's folder: to an external file that ``allow_external`` does not
    include, through ``..``, or, for a write, through a symbolic link.
    """

    kind = "external_path"


class DuplicateFileError(InvalidTransactionError):
    """A transaction contains two actions for the same logical file."""

    kind = "duplicate_file"


class PartitionMismatchError(InvalidTransactionError):
    """A file's partition values do not match the partition columns or their types."""

    kind = "partition_mismatch"


class ConstraintViolationError(InvalidTransactionError):
    """New rows violate a CHECK constraint, an invariant or a generated column; nothing was
    written.
    """

    kind = "constraint_violation"


class SchemaEvolutionError(InvalidTransactionError):
    """Existing files cannot be read with the new schema."""

    kind = "schema_evolution"


class InvalidMetadataError(InvalidTransactionError):
    """Invalid metadata, such as a partition column that the schema lacks."""

    kind = "invalid_metadata"


class InvalidProtocolError(InvalidTransactionError):
    """An invalid protocol, or one that removes a feature that the table uses."""

    kind = "invalid_protocol"


class InvalidPropertyError(InvalidTransactionError):
    """An unknown table property, or an invalid value of one."""

    kind = "invalid_property"


class UnsafeRetentionError(InvalidInputError):
    """The request would delete files that the table's retention protects; nothing was deleted."""

    kind = "unsafe_retention"


class StreamMismatchError(InvalidInputError):
    """A stream does not match its table: another checkpoint location uses the same name, or the
    table's rows or schema changed in a way that a stream cannot follow.
    """

    kind = "stream_mismatch"


class NotFoundError(LakelogError, FileNotFoundError):
    """A file, version, table or key was not found."""

    kind = "not_found"


class KeyNotFoundError(NotFoundError, KeyError):
    """A keyed store has no value for the key."""

    kind = "key_not_found"


class TableNotFoundError(NotFoundError):
    """The location has no log of a known dialect."""

    kind = "table_not_found"


class VersionNotFoundError(NotFoundError):
    """The version cannot be read from the remaining files; ``expected`` gives the readable
    range.
    """

    kind = "version_not_found"


class CorruptionError(LakelogError, ValueError):
    """The log is damaged: stop and repair it. No state is returned."""

    kind = "corruption"


class MalformedLogError(CorruptionError):
    """A log file's bytes cannot be decoded (bad JSON, truncated Parquet, broken gzip or Avro)."""

    kind = "malformed_log"


class NotRegularFileError(CorruptionError):
    """A FIFO, socket or device (``found``) is in place of a file. It was not read, because such a
    read may never end.
    """

    kind = "not_regular_file"


class CheckpointError(LakelogError):
    """A checkpoint could not be read, verified or written. Each subclass also belongs to the group
    that determines the next step.
    """

    kind = "checkpoint"


class CheckpointCorruptionError(CheckpointError, CorruptionError):
    """A checkpoint cannot be read, and no older files replace it."""

    kind = "checkpoint_corruption"


class CheckpointValidationError(CheckpointError, CorruptionError):
    """A checkpoint differs from replay (``expected`` and ``found``). If it was just written, it was
    not published.
    """

    kind = "checkpoint_validation"


class UnrepairableError(CorruptionError):
    """The damage cannot be repaired from the remaining files; ``hint`` lists the files to restore.
    Nothing was changed.
    """

    kind = "unrepairable"


class InvalidActionError(CorruptionError):
    """An action lacks a required field, or has a value of the wrong type."""

    kind = "invalid_action"


class LogGapError(CorruptionError):
    """Versions are not contiguous; ``expected`` and ``found`` are the two versions."""

    kind = "log_gap"


class MissingActionError(CorruptionError):
    """The reconciled log has no protocol or no metadata (``expected`` is its action type)."""

    kind = "missing_action"


class WalCorruptionError(CorruptionError):
    """A write-ahead log is damaged before its end: durable records are lost or changed.

    Args:
        message: One sentence that states the problem.
        safe_seq: Last sequence number before the damage; 0 if there is none.
        safe_records: Number of readable records before the damage.
        fields: As `LakelogError`; ``path`` is the segment, ``byte_offset`` the position in it.
    """

    kind = "wal_corruption"
    _own = ("safe_seq", "safe_records")

    def __init__(
        self,
        message: str,
        *,
        safe_seq: int | None = None,
        safe_records: int | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(message, **fields)
        self.safe_seq = safe_seq
        self.safe_records = safe_records


class ConflictError(LakelogError, RuntimeError):
    """A concurrent commit conflicts with this transaction; nothing was written.

    Args:
        message: One sentence that states the problem.
        rule: Name of the violated rule.
        operation: Operation of the concurrent commit, from its commitInfo.
        fields: As `LakelogError`; ``version`` is that of the concurrent commit.
    """

    kind = "conflict"
    _own = ("rule", "operation")

    def __init__(
        self,
        message: str,
        *,
        rule: str | None = None,
        operation: str | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(message, **fields)
        self.rule = rule
        self.operation = operation


class ProtocolChangedError(ConflictError):
    """A concurrent commit changed the protocol."""

    kind = "protocol_changed"


class MetadataChangedError(ConflictError):
    """A concurrent commit changed the metadata."""

    kind = "metadata_changed"


class ConcurrentAppendError(ConflictError):
    """A concurrent commit added files that this transaction would have read."""

    kind = "concurrent_append"


class ConcurrentDeleteReadError(ConflictError):
    """A concurrent commit removed files that this transaction has read."""

    kind = "concurrent_delete_read"


class ConcurrentDeleteDeleteError(ConflictError):
    """A concurrent commit removed files that this transaction also removes."""

    kind = "concurrent_delete_delete"


class ConcurrentTransactionError(ConflictError):
    """A concurrent commit wrote a txn of an appId that this transaction reads or writes."""

    kind = "concurrent_transaction"


class ConcurrentDomainError(ConflictError):
    """A concurrent commit wrote a metadata domain that this transaction also writes."""

    kind = "concurrent_domain"


class TooManyConflictsError(ConflictError):
    """Every attempt lost its version to another writer; the transaction can be repeated
    unchanged.
    """

    kind = "too_many_conflicts"


class UnsupportedError(LakelogError, NotImplementedError):
    """This version of lakelog does not support the request."""

    kind = "unsupported"


class UnsupportedFeatureError(UnsupportedError):
    """The table needs a protocol version or feature (``found``) that lakelog does not support."""

    kind = "unsupported_feature"


class MissingDependencyError(UnsupportedError):
    """An optional package is needed; ``hint`` gives the command that installs it."""

    kind = "missing_dependency"


class UnavailableError(LakelogError, OSError):
    """The store did not respond, or failed: retry later."""

    kind = "unavailable"


class CheckpointWriteError(CheckpointError, UnavailableError):
    """A checkpoint could not be written; the previous one is unchanged."""

    kind = "checkpoint_write"


class LogLockedError(UnavailableError):
    """Another writer holds the lock of the log; ``found`` identifies it."""

    kind = "log_locked"


class LogPoisonedError(UnavailableError):
    """The state of the log on disk is unknown after a failed write or fsync: close and reopen
    it.
    """

    kind = "log_poisoned"


class ReadTimeoutError(UnavailableError, TimeoutError):
    """Files were not read in time; ``found`` lists them."""

    kind = "read_timeout"


class UnsupportedStoreError(UnsupportedError):
    """The store has no atomic put-if-absent, so lakelog does not write to it."""

    kind = "unsupported_store"


class OutcomeUnknownError(LakelogError, OSError):
    """The store did not report whether a write succeeded: check before repeating it."""

    kind = "outcome_unknown"


class CommitOutcomeUnknown(OutcomeUnknownError):  # noqa: N818 - the name is fixed by the design
    """The store did not report whether the commit succeeded, and it could not be read back."""

    kind = "commit_outcome_unknown"


class InternalError(LakelogError, RuntimeError):
    """A bug in lakelog: please report it."""

    kind = "internal"


class LakelogWarning(UserWarning):
    """The result is correct, but the log needs attention."""
