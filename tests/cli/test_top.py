"""`lakelog top`: lines for a pipe, a screen for a terminal, and a store that is unreachable."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog as engine
from lakelog.errors import UnavailableError
from lakelog.snapshot import Snapshot
from tests.cli.test_tables import ANSI, on_a_terminal

OPERATIONS = ("CREATE", "WRITE", "WRITE", "WRITE")


def new_table(path: Path) -> engine.Table:
    table = engine.create(path, {"id": pl.Int64}, upkeep=False)
    table.append(pl.DataFrame({"id": [1, 2]}), user_name="loader")
    return table


def test_pipe_gets_one_line_per_commit_and_new_commits_when_they_appear(
    tmp_path: Path, lakelog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path / "t")

    def append(_: float) -> None:
        table.append(pl.DataFrame({"id": [3]}))

    monkeypatch.setattr("lakelog.cli.top.sleep", append)
    header, *lines = lakelog("top", tmp_path / "t", "--count", 3).text.splitlines()
    assert header.split()[:4] == ["version", "timestamp", "operation", "userName"]
    assert {line.index(word) for line, word in zip(lines, OPERATIONS, strict=True)} == {
        header.index("operation")
    }
    assert lines[1].index("output rows 2") == header.index("operationMetrics")
    assert [line.split()[0] for line in lines] == ["0", "1", "2", "3"]
    assert lines[1].index("loader") == header.index("userName")


def test_terminal_shows_table_facts_and_conflicts(tmp_path: Path, repository: Path) -> None:
    table = new_table(tmp_path / "t")
    with table.transaction() as tx:
        tx.append(pl.DataFrame({"id": [9]}))
        table.append(pl.DataFrame({"id": [8]}))
    shown = on_a_terminal(
        repository, "top", str(tmp_path / "t"), "--count", "1", "--window", "5 minutes"
    )
    last = ANSI.sub("", shown)
    assert re.search(r"version +3, committed .* ago", last)
    assert re.search(r"commits +0\.8 per minute over 5 minutes", last)
    assert re.search(r"files +3 \(\+0 since", last)
    assert re.search(r"conflicts +1 commit of 4 rebased", last)


def test_old_commits_are_not_counted_and_the_latest_is_shown(lakelog: Any, table: str) -> None:
    lines = lakelog("top", table, "--count", 1, "--window", "1 second").text.splitlines()
    assert [line.split()[0] for line in lines] == ["version", "59"]
    every = lakelog("top", table, "--count", 1, "--window", "9000 days").text.splitlines()
    assert len(every) == 61


def test_an_unreachable_store_is_reported_and_read_again(
    tmp_path: Path, lakelog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_table(tmp_path / "t")
    read, failures = Snapshot.update, iter([UnavailableError("the store is down"), None, None])

    def update(snapshot: Snapshot) -> Snapshot:
        if (error := next(failures)) is not None:
            raise error
        return read(snapshot)

    monkeypatch.setattr(Snapshot, "update", update)
    monkeypatch.setattr("lakelog.cli.top.sleep", lambda _: None)
    outcome = lakelog("top", tmp_path / "t", "--count", 3)
    assert outcome.code == 0
    assert "unreachable, trying again: the store is down" in outcome.errors
    assert len(outcome.text.splitlines()) == 3


def test_interrupt_exits_with_0(
    tmp_path: Path, lakelog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_table(tmp_path / "t")

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lakelog.cli.top.sleep", interrupted)
    assert lakelog("top", tmp_path / "t").code == 0
    assert threading.active_count() < 50


def test_commits_are_shown_above_one_that_cannot_be_read(tmp_path: Path, lakelog: Any) -> None:
    table = new_table(tmp_path / "t")
    for number in range(4):
        table.append(pl.DataFrame({"id": [number]}))
    table.checkpoint()
    table.append(pl.DataFrame({"id": [9]}))
    commits = [tmp_path / f"t/_delta_log/{version:020d}.json" for version in (1, 3)]
    for commit in commits:
        commit.write_bytes(commit.read_bytes()[:50])
    outcome = lakelog("top", tmp_path / "t", "--count", 1)
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.text.splitlines()[1:]] == ["4", "5", "6"]
    assert f"commits are shown above version 3: _delta_log/{commits[1].name}" in outcome.errors
