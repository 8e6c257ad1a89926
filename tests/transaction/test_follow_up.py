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
from tests.transaction.tables import location, new_table

FORMATS = ("delta", "indextables")


def watched(table: Table, *rules: Rule) -> tuple[Table, list[Committed]]:
    """The same table, and the list of its callbacks' arguments."""
    told: list[Committed] = []
    log = table.log
    if rules:
        log = replace(log, store=InjectingStore(log.store, rules))
    return Table(log, Runtime(lambda _: None, on_commit=told.append)), told


def append(table: Table, name: str) -> int | None:
    with table.transaction() as tx:
        tx.add(path=name, size=1, modificationTime=1)
    return tx.version


@pytest.mark.parametrize("form", FORMATS)
def test_each_commit_is_told_with_its_size(tmp_path: Path, form: str) -> None:
    where = location("local", tmp_path)
    table, told = watched(new_table(where, form, configuration={"owner": "us"}))
    for number in range(3):
        append(table, f"f{number}")
    assert [each.version for each in told] == [1, 2, 3]
    for each in told:
        entry = table.log.store.stat(table.log.dialect.commit_path(each.version))
        assert entry is not None
        assert each.size_bytes == entry.size_bytes
        assert each.configuration["owner"] == "us"


def test_the_properties_are_those_after_the_commit_and_behind_the_others(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    table, told = watched(new_table(where, configuration={"owner": "us"}))
    with table.transaction() as tx:
        tx.set_metadata(configuration={"owner": "them"})
    assert told[-1].configuration["owner"] == "them"


def test_what_commits_nothing_is_not_told(tmp_path: Path) -> None:
    where = location("local", tmp_path)
    table, told = watched(new_table(where))
    with table.transaction():
        pass
    for _ in range(2):
        with table.transaction(app_id="a", app_version=1) as tx:
            tx.add(path="f", size=1, modificationTime=1)
    assert [each.version for each in told] == [1]
    with pytest.raises(lakelog.InvalidInputError), table.transaction() as tx:
        tx.add(path="g")
    assert len(told) == 1


def test_an_error_of_what_follows_is_logged_and_the_commit_stands(
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
def test_a_commit_whose_answer_was_lost_is_told_once(tmp_path: Path, fault: Fault) -> None:
    rule = Rule(fault, "put_if_absent")
    table, told = watched(new_table(location("local", tmp_path)), rule)
    assert append(table, "f") == 1
    assert [each.version for each in told] == [1]
