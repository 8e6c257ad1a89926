"""The one error tree of lakelog, grouped by what the caller does about it.

Every error carries a stable ``kind`` and the structured fields that apply: ``path`` (the file or
table concerned), ``version``, ``line`` (1-based), ``byte_offset`` (0-based, in the file's decoded
bytes), ``expected``, ``found``, and ``hint``: what to do next. Each branch also inherits the
builtin that a caller would expect to catch.

Texts are redacted as an error is made (`lakelog.redaction`): no message or field holds credentials.
A driver's error that is chained as the cause keeps its type, its traceback and its texts without
credentials; what else a driver attaches to it, such as a response, is as the driver made it.

========================  ==========================================  =====================
branch                    the caller should                           also a
========================  ==========================================  =====================
`InvalidInputError`       fix the call                                ``ValueError``
`NotFoundError`           look elsewhere                              ``FileNotFoundError``
`ConflictError`           read the table again, decide, and retry     ``RuntimeError``
`CorruptionError`         stop, and repair the log                    ``ValueError``
`UnsupportedError`        upgrade lakelog, or the table               ``NotImplementedError``
`UnavailableError`        retry later                                 ``OSError``
`OutcomeUnknownError`     look before doing it again                  ``OSError``
`InternalError`           report it                                   ``RuntimeError``
========================  ==========================================  =====================

An argument of a wrong type is an `ArgumentTypeError`, which is an `InvalidInputError` and a
``TypeError``. Public functions raise nothing outside this tree, except:

- Python's own ``TypeError``, of a call with a missing or an unknown argument;
- ``PolarsError``, of a lazy frame or an expression that the caller passed and that fails as it is
  run, which may be where the caller collects a result;
- whatever a function, an iterator or a stream that the caller passed raises;
- ``MemoryError``, where memory ends, and ``KeyboardInterrupt``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from lakelog.redaction import redact, redacted

_FIELDS = ("path", "version", "line", "byte_offset", "expected", "found")


class LakelogError(Exception):
    """Root of everything that lakelog raises on purpose.

    Args:
        message: One sentence that says what is wrong.
        path: The file or table concerned, as the store spells it.
        version: The table version concerned.
        line: 1-based line in ``path``.
        byte_offset: 0-based offset in the decoded bytes of ``path``.
        expected: What should have been there.
        found: What was there instead.
        hint: What to do next.
    """

    kind: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        version: int | None = None,
        line: int | None = None,
        byte_offset: int | None = None,
        expected: object = None,
        found: object = None,
        hint: str | None = None,
    ) -> None:
        # Foreign text comes in here: a driver's message, a URL, a setting of the caller.
        message = redact(message)
        super().__init__(message)
        self.message = message
        # A file's own path is kept as it is: its parts may be partition values, and it is compared.
        self.path = redact(path) if path is not None and "://" in path else path
        self.version = version
        self.line = line
        self.byte_offset = byte_offset
        self.expected = redacted(expected)
        self.found = redacted(found)
        self.hint = None if hint is None else redact(hint)

    def __str__(self) -> str:
        details = [
            f"{name}={value}" for name in _FIELDS if (value := getattr(self, name)) is not None
        ]
        text = self.message
        if details:
            text += f" [{', '.join(details)}]"
        if self.hint:
            text += f" Next: {self.hint}"
        return text

    def as_dict(self) -> dict[str, Any]:
        """The structured fields as plain data, for machines (``kind``, ``message``, the rest)."""
        fields = {name: getattr(self, name) for name in (*_FIELDS, "hint")}
        present = {name: value for name, value in fields.items() if value is not None}
        return {"kind": self.kind, "message": self.message, **present}


class InvalidInputError(LakelogError, ValueError):
    """The call is wrong: fix the call."""

    kind = "invalid_input"


class ArgumentTypeError(InvalidInputError, TypeError):
    """An argument is of another type than annotated."""

    kind = "argument_type"


class TableExistsError(InvalidInputError, FileExistsError):
    """A table is to be created where one is."""

    kind = "table_exists"


class InvalidTransactionError(InvalidInputError):
    """A transaction would leave the table inconsistent, so nothing of it is written."""

    kind = "invalid_transaction"


class InvalidPathError(InvalidTransactionError):
    """A file's path is empty, leaves the table, or cannot be spelled."""

    kind = "invalid_path"


class ExternalPathError(InvalidInputError):
    """A path leads out of the table's folder: to a file elsewhere that `lakelog.open` was not
    allowed to open (``allow_external``), through ``..``, or, for a change, through a link.
    """

    kind = "external_path"


class DuplicateFileError(InvalidTransactionError):
    """One transaction speaks of the same logical file twice."""

    kind = "duplicate_file"


class PartitionMismatchError(InvalidTransactionError):
    """A file's partition values are not those of the partition columns, or not of their types."""

    kind = "partition_mismatch"


class SchemaEvolutionError(InvalidTransactionError):
    """A new schema is not one that the files already there can be read under."""

    kind = "schema_evolution"


class InvalidMetadataError(InvalidTransactionError):
    """Metadata that no table may have, such as a partition column that the schema lacks."""

    kind = "invalid_metadata"


class InvalidProtocolError(InvalidTransactionError):
    """A protocol that no table may have, or one that takes back what the table uses."""

    kind = "invalid_protocol"


class InvalidPropertyError(InvalidTransactionError):
    """A table property that is unknown, or whose value is not of its kind."""

    kind = "invalid_property"


class UnsafeRetentionError(InvalidInputError):
    """What is asked would delete what the table's retention promises to keep; nothing was
    deleted.
    """

    kind = "unsafe_retention"


class StreamMismatchError(InvalidInputError):
    """A stream and a table do not go together, or no longer do: another checkpoint writes under the
    same name, or the table's rows or schema changed in a way that a stream cannot follow.
    """

    kind = "stream_mismatch"


class NotFoundError(LakelogError, FileNotFoundError):
    """What was asked for is not there."""

    kind = "not_found"


class TableNotFoundError(NotFoundError):
    """The location holds no log that any dialect knows."""

    kind = "table_not_found"


class VersionNotFoundError(NotFoundError):
    """The version cannot be rebuilt from what is on disk; ``expected`` gives the range that can."""

    kind = "version_not_found"


class CorruptionError(LakelogError, ValueError):
    """The log breaks its own rules: stop, and repair it. No state is returned."""

    kind = "corruption"


class MalformedLogError(CorruptionError):
    """A log file's bytes cannot be decoded (bad JSON, truncated Parquet, broken gzip or Avro)."""

    kind = "malformed_log"


class NotRegularFileError(CorruptionError):
    """A log names a FIFO, a socket or a device (``found``) in the place of a file: it was not
    read, since a read of it may wait for ever or never end.
    """

    kind = "not_regular_file"


class CheckpointError(LakelogError):
    """A checkpoint could not be read, proved or written. The common base of these errors: each of
    them also belongs to the branch that says what to do next.
    """

    kind = "checkpoint"


class CheckpointCorruptionError(CheckpointError, CorruptionError):
    """A checkpoint cannot be read, and no older files give the version soundly."""

    kind = "checkpoint_corruption"


class CheckpointValidationError(CheckpointError, CorruptionError):
    """A checkpoint can be read, and is not what replay gives (``expected`` and ``found``). One that
    was just written has not been published.
    """

    kind = "checkpoint_validation"


class UnsoundRepairError(CorruptionError):
    """What is broken cannot be made again from what is left; ``hint`` says what would have to be
    restored. Nothing was changed.
    """

    kind = "unsound_repair"


class InvalidActionError(CorruptionError):
    """An action decodes but lacks a required field, or holds a value of the wrong type."""

    kind = "invalid_action"


class LogGapError(CorruptionError):
    """Versions are not contiguous; ``expected`` and ``found`` name both."""

    kind = "log_gap"


class MissingActionError(CorruptionError):
    """The reconciled log has no protocol or no metadata (``expected`` says which)."""

    kind = "missing_action"


class WalCorruptionError(CorruptionError):
    """A write-ahead log is damaged before its end: what it gave out as durable is lost or changed.

    Args:
        message: One sentence that says what is wrong.
        safe_seq: Last sequence number before the damage; 0 where nothing is safe.
        safe_records: Number of records before the damage that are still to be had.
        fields: As `LakelogError`; ``path`` is the segment, ``byte_offset`` where in it.
    """

    kind = "wal_corruption"

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

    def as_dict(self) -> dict[str, Any]:
        """As `LakelogError.as_dict`, with ``safe_seq`` and ``safe_records``."""
        own = {"safe_seq": self.safe_seq, "safe_records": self.safe_records}
        return {**super().as_dict(), **{k: v for k, v in own.items() if v is not None}}


class ConflictError(LakelogError, RuntimeError):
    """Another commit came first and took away what this transaction rests on; nothing of the
    transaction was written.

    Args:
        message: One sentence that says what is wrong.
        rule: Name of the rule that was broken.
        operation: Operation of the commit that came first, as its commitInfo says.
        fields: As `LakelogError`; ``version`` is that commit's.
    """

    kind = "conflict"

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

    def as_dict(self) -> dict[str, Any]:
        """As `LakelogError.as_dict`, with ``rule`` and ``operation``."""
        own = {"rule": self.rule, "operation": self.operation}
        return {**super().as_dict(), **{k: v for k, v in own.items() if v is not None}}


class ProtocolChangedError(ConflictError):
    """The other commit changed the protocol."""

    kind = "protocol_changed"


class MetadataChangedError(ConflictError):
    """The other commit changed the metadata."""

    kind = "metadata_changed"


class ConcurrentAppendError(ConflictError):
    """The other commit added files that this transaction would have read."""

    kind = "concurrent_append"


class ConcurrentDeleteReadError(ConflictError):
    """The other commit removed files that this transaction has read."""

    kind = "concurrent_delete_read"


class ConcurrentDeleteDeleteError(ConflictError):
    """The other commit removed files that this transaction removes too."""

    kind = "concurrent_delete_delete"


class ConcurrentTransactionError(ConflictError):
    """The other commit wrote a transaction identifier that this one has read or writes."""

    kind = "concurrent_transaction"


class ConcurrentDomainError(ConflictError):
    """The other commit wrote a metadata domain that this transaction writes too."""

    kind = "concurrent_domain"


class TooManyConflictsError(ConflictError):
    """Every attempt found its version taken; the transaction may be tried again as it is."""

    kind = "too_many_conflicts"


class UnsupportedError(LakelogError, NotImplementedError):
    """This version of lakelog cannot do that rightly, so it refuses."""

    kind = "unsupported"


class UnsupportedFeatureError(UnsupportedError):
    """The table needs a protocol version or a feature (``found``) that would change the answer."""

    kind = "unsupported_feature"


class MissingDependencyError(UnsupportedError):
    """An optional package is needed; ``hint`` gives the command that installs it."""

    kind = "missing_dependency"


class UnavailableError(LakelogError, OSError):
    """The store did not answer, or answered with a fault: retry later."""

    kind = "unavailable"


class CheckpointWriteError(CheckpointError, UnavailableError):
    """A checkpoint could not be written; the one before it is as it was."""

    kind = "checkpoint_write"


class LogLockedError(UnavailableError):
    """Another writer has the log; ``found`` says who."""

    kind = "log_locked"


class LogPoisonedError(UnavailableError):
    """The log no longer knows what the disk holds, since a write or an fsync failed: close it, and
    open it again.
    """

    kind = "log_poisoned"


class ReadTimeoutError(UnavailableError, TimeoutError):
    """Files were not read in time; ``found`` names those still missing."""

    kind = "read_timeout"


class UnsupportedStoreError(UnsupportedError):
    """The store cannot create a file only if it is absent, so nothing can be committed safely."""

    kind = "unsupported_store"


class OutcomeUnknownError(LakelogError, OSError):
    """The store did not say whether it wrote: look before doing it again."""

    kind = "outcome_unknown"


class CommitOutcomeUnknown(OutcomeUnknownError):  # noqa: N818 - the name is fixed by the design
    """The store did not say whether the commit was written, and it could not be read back."""

    kind = "commit_outcome_unknown"


class InternalError(LakelogError, RuntimeError):
    """lakelog contradicts itself: please report it."""

    kind = "internal"


class LakelogWarning(UserWarning):
    """A read was answered rightly, but something in the log deserves attention."""
