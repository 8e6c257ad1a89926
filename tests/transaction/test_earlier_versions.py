"""Transactions that start from an earlier version, for work that began in another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lakelog
from lakelog import (
    ConcurrentDeleteDeleteError,
    ConcurrentTransactionError,
    ConflictError,
    InvalidInputError,
    MetadataChangedError,
    Table,
)
from lakelog.log.context import Log
from lakelog.log.snapshot import LogSnapshot
from lakelog.storage.base import FileEntry, StoreWrapper
from lakelog.transaction import log_tail
from tests.transaction.tables import DIALECTS, append, each_format, new_table, paths


def add(table: Table, path: str, version: int | None, **kwargs: Any) -> lakelog.Transaction:
    with table.transaction(version=version, **kwargs) as tx:
        tx.add(path=path, size=1)
    return tx


@each_format
def test_transaction_from_an_earlier_version_is_rebased_on_later_commits(
    tmp_path: Path, form: str
) -> None:
    table = new_table(str(tmp_path), form)
    append(table, "a")
    append(table, "b")
    tx = add(lakelog.open(table.path), "c", 1)
    assert tx.version == 3
    assert paths(table) == ["a", "b", "c"]


def test_transaction_reads_its_version_and_conflicts_with_later_changes(tmp_path: Path) -> None:
    table = new_table(str(tmp_path))
    append(table, "a")
    append(table, "b")
    with table.transaction() as tx:
        tx.remove(path="a")
    assert paths(table) == ["b"]
    late = table.transaction(version=1)
    assert late.snapshot.version == 1
    late.remove(late.snapshot.files())
    with pytest.raises(ConcurrentDeleteDeleteError):
        late.commit()
    with table.transaction() as tx:
        tx.set_metadata(configuration={"delta.appendOnly": "true"})
    with pytest.raises(MetadataChangedError):
        add(table, "c", 2)
    assert table.version() == 4


def test_later_commit_of_the_same_application_is_detected(tmp_path: Path) -> None:
    table = new_table(str(tmp_path))
    add(table, "a", None, app_id="x", app_version=5)
    again = add(table, "a2", 0, app_id="x", app_version=5)
    assert again.duplicate
    with pytest.raises(ConcurrentTransactionError):
        add(table, "b", 0, app_id="x", app_version=6)
    assert paths(table) == ["a"]


@pytest.mark.parametrize("version", [-1, 1])
def test_missing_version_raises(tmp_path: Path, version: int) -> None:
    table = new_table(str(tmp_path))
    with pytest.raises(InvalidInputError, match=r"version not found|an int >= 0"):
        table.transaction(version=version)


class CleansUp(StoreWrapper):
    """Cleanup deletes versions 0 and 1 before the first check of a name."""

    cleaned_up = False

    def stat(self, path: str) -> FileEntry | None:
        if not self.cleaned_up:
            self.cleaned_up = True
            for version in range(2):
                self.delete(f"_delta_log/{version:020}.json")
        return super().stat(path)


def test_concurrent_cleanup_is_not_mistaken_for_the_end_of_the_log(
    tmp_path: Path,
) -> None:
    table = new_table(str(tmp_path))
    append(table, "a")
    append(table, "b")
    log = Log(CleansUp(table.log.store), DIALECTS["delta"])
    first, last = (
        log_tail.LogTail(log, LogSnapshot.open(table.log, version)) for version in (0, 2)
    )
    assert log_tail._commits_from(log, first) is None
    assert log_tail._commits_from(table.log, last) == []


def test_cleanup_of_later_commits_is_a_conflict(tmp_path: Path) -> None:
    table = new_table(str(tmp_path))
    append(table, "a")
    tx = lakelog.open(table.path).transaction()
    tx.add(path="é +", size=1)  # its text in the log is looked up in the version that was read
    append(table, "b")
    table.checkpoint()
    (tmp_path / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(ConflictError, match="some commits after version 1 were removed"):
        tx.commit()
    assert paths(table) == ["a", "b"]
