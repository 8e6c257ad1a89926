"""The error tree: stable kinds, structured fields, and the built-in classes that callers expect."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
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


def _merged(table: Any) -> Any:
    merge = table.merge(pl.DataFrame({"id": [1]}), "id")
    return merge.when_matched_delete().execute()


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.to_polars(),
        lambda table: table.scan().collect(),
        lambda table: table.to_arrow(),
        lambda table: table.changes(0).collect(),
        lambda table: table.delete("id = 1"),
        lambda table: table.update({"id": "2"}),
        _merged,
        lambda table: table.transaction().delete("id = 1"),
    ],
)
def test_errors_with_a_relative_path_name_the_table(
    tmp_path: Path, call: Callable[[Any], Any]
) -> None:
    lakelog.write(tmp_path / "t", pl.DataFrame({"id": [1, 2]}))
    table = lakelog.open(tmp_path / "t", upkeep=False)
    (file,) = (tmp_path / "t").glob("*.parquet")
    file.unlink()
    with pytest.raises(lakelog.NotFoundError) as caught:
        call(table)
    assert caught.value.path == file.name
    assert caught.value.table == caught.value.as_dict()["table"] == table.path
    assert f"[path={file.name}, table={table.path}, " in str(caught.value)


def test_errors_of_the_log_name_the_table(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    (tmp_path / "t/_delta_log/00000000000000000001.json").write_text("{")
    calls: list[Callable[[], object]] = [
        lambda: lakelog.open(tmp_path / "t").snapshot().schema,
        lambda: table.actions().collect(),
        table.history,
    ]
    for call in calls:
        with pytest.raises(lakelog.CorruptionError, match="table=") as caught:
            call()
        assert caught.value.table == table.path


def test_tables_in_errors_are_redacted_and_absolute_paths_stand_alone() -> None:
    error = LakelogError("broken", path="a.parquet")
    with pytest.raises(LakelogError), errors.naming_table("s3://me:secret@bucket/t"):
        raise error
    assert str(error) == "broken [path=a.parquet, table=s3://[redacted]@bucket/t]"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    for path in ("/t/a.parquet", "s3://bucket/t", "t", None):
        other = LakelogError("broken", path=path)
        with pytest.raises(LakelogError), errors.naming_table("t"):
            raise other
        assert "table=" not in str(other)
        assert other.table == "t"
