"""The error tree: stable kinds, structured fields, and the built-in classes that callers expect."""

from __future__ import annotations

import pickle

import pytest

import lakelog
from lakelog import errors
from lakelog.errors import LakelogError

TREE = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, LakelogError)
]


def test_kinds_are_unique_and_never_change() -> None:
    assert {error.__name__: error.kind for error in TREE} == {
        "LakelogError": "error",
        "InvalidInputError": "invalid_input",
        "ArgumentTypeError": "argument_type",
        "TableExistsError": "table_exists",
        "InvalidTransactionError": "invalid_transaction",
        "InvalidPathError": "invalid_path",
        "ExternalPathError": "external_path",
        "DuplicateFileError": "duplicate_file",
        "PartitionMismatchError": "partition_mismatch",
        "ConstraintViolationError": "constraint_violation",
        "SchemaEvolutionError": "schema_evolution",
        "InvalidMetadataError": "invalid_metadata",
        "InvalidProtocolError": "invalid_protocol",
        "InvalidPropertyError": "invalid_property",
        "UnsafeRetentionError": "unsafe_retention",
        "StreamMismatchError": "stream_mismatch",
        "NotFoundError": "not_found",
        "KeyNotFoundError": "key_not_found",
        "TableNotFoundError": "table_not_found",
        "VersionNotFoundError": "version_not_found",
        "CorruptionError": "corruption",
        "MalformedLogError": "malformed_log",
        "NotRegularFileError": "not_regular_file",
        "CheckpointError": "checkpoint",
        "CheckpointCorruptionError": "checkpoint_corruption",
        "CheckpointValidationError": "checkpoint_validation",
        "UnrepairableError": "unrepairable",
        "InvalidActionError": "invalid_action",
        "LogGapError": "log_gap",
        "MissingActionError": "missing_action",
        "WalCorruptionError": "wal_corruption",
        "ConflictError": "conflict",
        "ProtocolChangedError": "protocol_changed",
        "MetadataChangedError": "metadata_changed",
        "ConcurrentAppendError": "concurrent_append",
        "ConcurrentDeleteReadError": "concurrent_delete_read",
        "ConcurrentDeleteDeleteError": "concurrent_delete_delete",
        "ConcurrentTransactionError": "concurrent_transaction",
        "ConcurrentDomainError": "concurrent_domain",
        "TooManyConflictsError": "too_many_conflicts",
        "UnsupportedError": "unsupported",
        "UnsupportedFeatureError": "unsupported_feature",
        "MissingDependencyError": "missing_dependency",
        "UnavailableError": "unavailable",
        "CheckpointWriteError": "checkpoint_write",
        "LogLockedError": "log_locked",
        "LogPoisonedError": "log_poisoned",
        "ReadTimeoutError": "read_timeout",
        "UnsupportedStoreError": "unsupported_store",
        "OutcomeUnknownError": "outcome_unknown",
        "CommitOutcomeUnknown": "commit_outcome_unknown",
        "InternalError": "internal",
    }


@pytest.mark.parametrize(
    ("branch", "builtin"),
    [
        (errors.InvalidInputError, ValueError),
        (errors.ArgumentTypeError, TypeError),
        (errors.VersionNotFoundError, FileNotFoundError),
        (errors.KeyNotFoundError, KeyError),
        (errors.MalformedLogError, ValueError),
        (errors.UnsupportedFeatureError, NotImplementedError),
        (errors.UnavailableError, OSError),
        (errors.TableExistsError, FileExistsError),
        (errors.InvalidTransactionError, ValueError),
        (errors.ConcurrentAppendError, RuntimeError),
        (errors.CommitOutcomeUnknown, OSError),
        (errors.InternalError, RuntimeError),
    ],
)
def test_each_branch_inherits_the_builtin_that_callers_expect(
    branch: type[LakelogError], builtin: type[Exception]
) -> None:
    with pytest.raises(builtin):
        raise branch("x")


def test_the_errors_of_checkpoints_have_a_common_base() -> None:
    assert {e.__name__ for e in TREE if e.__name__.startswith("Checkpoint")} == {
        e.__name__ for e in TREE if issubclass(e, errors.CheckpointError)
    }


@pytest.mark.parametrize("error", TREE, ids=lambda e: e.__name__)
def test_every_error_is_public_and_shows_its_fields(error: type[LakelogError]) -> None:
    assert getattr(lakelog, error.__name__) is error
    raised = error(
        "broken", path="p", column="c", version=3, line=0, byte_offset=0, found="x", hint="fix it"
    )
    shown = "path=p, column=c, version=3, line=0, byte_offset=0, found=x"
    assert str(raised) == f"broken [{shown}] Next: fix it"
    assert raised.as_dict() == {
        "kind": error.kind,
        "message": "broken",
        "path": "p",
        "column": "c",
        "version": 3,
        "line": 0,
        "byte_offset": 0,
        "found": "x",
        "hint": "fix it",
    }


@pytest.mark.parametrize("error", TREE, ids=lambda e: e.__name__)
def test_error_without_fields_shows_only_its_message(error: type[LakelogError]) -> None:
    raised = error("broken")
    assert str(raised) == "broken"
    assert raised.as_dict() == {"kind": error.kind, "message": "broken"}


@pytest.mark.parametrize("error", TREE, ids=lambda e: e.__name__)
def test_error_is_unchanged_after_pickling(error: type[LakelogError]) -> None:
    raised = error("broken", path="p", version=3, hint="fix it")
    back = pickle.loads(pickle.dumps(raised))
    assert type(back) is error
    assert back.as_dict() == raised.as_dict()
    assert str(back) == str(raised)


@pytest.mark.parametrize(
    "conflict", [e for e in TREE if issubclass(e, errors.ConflictError)], ids=lambda e: e.__name__
)
def test_a_conflict_names_the_commit_its_operation_and_the_rule(
    conflict: type[errors.ConflictError],
) -> None:
    raised = conflict("broken", rule="appended files", operation="WRITE", version=7)
    back = pickle.loads(pickle.dumps(raised))
    assert (back.version, back.operation, back.rule) == (7, "WRITE", "appended files")
    assert back.as_dict()["operation"] == "WRITE"
    assert back.as_dict()["rule"] == "appended files"


def test_wal_corruption_error_has_the_safe_records() -> None:
    raised = errors.WalCorruptionError("broken", path="p", safe_seq=7, safe_records=3)
    back = pickle.loads(pickle.dumps(raised))
    assert (back.safe_seq, back.safe_records) == (7, 3)
    assert back.as_dict()["safe_seq"] == 7
    assert back.as_dict()["safe_records"] == 3


def test_lakelog_warning_is_a_user_warning() -> None:
    assert issubclass(errors.LakelogWarning, UserWarning)
    assert errors.LakelogWarning.__name__ in lakelog.__all__
