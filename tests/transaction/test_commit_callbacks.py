"""Callbacks after a commit: each is called once, and its errors do not affect the commit."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

import lakelog
from lakelog import Table
from lakelog.testing import Fault, InjectingStore, Rule
from lakelog.transaction.runtime import Committed, Runtime
from tests.transaction.tables import append, each_format, location, new_table


def watched(table: Table, *rules: Rule) -> tuple[Table, list[Committed]]:
    """The same table, and the list of its callbacks' arguments."""
    calls: list[Committed] = []
    log = table.log
    if rules:
        log = replace(log, store=InjectingStore(log.store, rules))
    return Table(log, Runtime(lambda _: None, on_commit=calls.append)), calls


@each_format
def test_callback_receives_the_version_and_size_of_each_commit(tmp_path: Path, form: str) -> None:
    where = location("local", tmp_path)
    table, calls = watched(new_table(where, form, configuration={"owner": "us"}))
    for number in range(3):
        append(table, f"f{number}")
    assert [each.version for each in calls] == [1, 2, 3]
    for each in calls:
        entry = table.log.store.stat(table.log.dialect.commit_path(each.version))
        assert entry is not None
        assert each.size_bytes == entry.size_bytes
        assert each.configuration["owner"] == "us"


def test_callback_receives_the_properties_after_the_commit(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    table, calls = watched(new_table(where, configuration={"owner": "us"}))
    with table.transaction() as tx:
        tx.set_metadata(configuration={"owner": "them"})
    assert calls[-1].configuration["owner"] == "them"


def test_callback_is_not_called_without_a_commit(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    table, calls = watched(new_table(where))
    with table.transaction():
        pass
    for _ in range(2):
        with table.transaction(app_id="a", app_version=1) as tx:
            tx.add(path="f", size=1, modificationTime=1)
    assert [each.version for each in calls] == [1]
    with pytest.raises(lakelog.InvalidInputError), table.transaction() as tx:
        tx.add(path="g")
    assert len(calls) == 1


def test_error_of_a_callback_is_logged_and_the_commit_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = new_table(location("local", tmp_path))

    def fail(_: Committed) -> None:
        raise RuntimeError("no room")

    table = Table(table.log, Runtime(lambda _: None, on_commit=fail))
    with caplog.at_level(logging.ERROR, "lakelog"):
        assert append(table, "f") == 1
    assert "commit.follow_up_failed version=1" in caplog.text
    assert "no room" in caplog.text


@pytest.mark.parametrize("fault", ["lost", "lost_taken", "unknown"])
def test_callback_is_called_once_after_a_lost_response(tmp_path: Path, fault: Fault) -> None:
    rule = Rule(fault, "put_if_absent")
    table, calls = watched(new_table(location("local", tmp_path)), rule)
    assert append(table, "f") == 1
    assert [each.version for each in calls] == [1]
