"""Upkeep: handles whose commits trigger checkpoints, which trigger cleanup."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import LakelogWarning, Table
from tests.transaction.tables import new_table, paths

DAY_S = 86_400


def commit(table: Table, first: int, count: int) -> None:
    for n in range(first, first + count):
        with table.transaction() as tx:
            tx.add(path=f"f{n}", size=n)


def _commit_and_settle(table: Table, number: int) -> None:
    commit(table, number, 1)
    settled(table)


def settled(table: Table) -> None:
    assert table.scheduler is not None
    assert table.scheduler.wait(120)


def checkpoints(table: Table) -> list[int]:
    return [c.version for c in table.log.list_all().checkpoints]


@pytest.mark.parametrize("form", ["delta", "indextables"])
def test_every_ten_commits_are_followed_by_a_checkpoint(tmp_path: Path, form: str) -> None:
    table = new_table(str(tmp_path / "table"), form)
    commit(table, 1, 10)
    settled(table)
    assert checkpoints(table) == [10]
    again = lakelog.open(str(tmp_path / "table"))
    commit(again, 11, 10)
    settled(again)
    assert checkpoints(again)[-1] == 20
    assert again.verify().is_proved
    assert len(paths(lakelog.open(str(tmp_path / "table")))) == 20


def test_checkpoint_properties_of_the_table_are_used(tmp_path: Path) -> None:
    often = {"delta.checkpointInterval": "3"}
    table = new_table(str(tmp_path / "table"), configuration=often)
    for n in (1, 2, 3):
        commit(table, n, 1)
        settled(table)
        assert checkpoints(table) == ([3] if n == 3 else [])
    with table.transaction() as tx:
        tx.set_metadata(configuration={"spark.indextables.checkpoint.enabled": "false"})
    commit(table, 4, 8)
    settled(table)
    assert checkpoints(table) == [3]


def test_table_can_be_opened_without_upkeep(tmp_path: Path) -> None:
    where = str(tmp_path / "table")
    lakelog.create(where, {"id": pl.Int64}, upkeep=False)
    table = lakelog.open(where, upkeep=False)
    assert table.scheduler is None
    commit(table, 1, 12)
    assert checkpoints(table) == []
    assert table.checkpoint().version == 12


def test_failed_checkpoint_is_reported_and_does_not_fail_the_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = new_table(str(tmp_path / "table"), configuration={"delta.checkpointInterval": "2"})
    commit(table, 1, 1)
    first = tmp_path / "table" / "_delta_log" / "00000000000000000000.json"
    first.rename(first.with_suffix(".away"))
    with pytest.warns(LakelogWarning, match="writing a checkpoint in the background failed"):
        _commit_and_settle(table, 2)
    assert table.scheduler is not None
    assert table.scheduler.last_error is not None
    assert "checkpoint.failed version=2" in caplog.text
    assert checkpoints(table) == []
    first.with_suffix(".away").rename(first)
    assert table.checkpoint().version == 2
    assert table.scheduler.last_error is None


def test_requested_and_background_checkpoints_do_not_conflict(
    tmp_path: Path,
) -> None:
    table = new_table(str(tmp_path / "table"), configuration={"delta.checkpointInterval": "1"})
    for n in range(1, 16):
        commit(table, n, 1)
        assert table.checkpoint(n).version == n
    settled(table)
    assert table.scheduler is not None
    assert table.scheduler.last_error is None
    assert table.verify().is_proved


def make_old(where: Path) -> None:
    """Set the time of every file of the log to two months ago."""
    old = time.time() - 60 * DAY_S
    for file in (where / "_delta_log").iterdir():
        os.utime(file, (old, old))


def test_old_commits_are_deleted_after_a_checkpoint(tmp_path: Path) -> None:
    where = tmp_path / "table"
    table = new_table(str(where), configuration={"delta.checkpointInterval": "5"})
    commit(table, 1, 5)
    settled(table)
    make_old(where)
    # A handle cleans up once per hour, and this one has already done so.
    table = lakelog.open(str(where))
    commit(table, 6, 5)
    settled(table)
    assert table.scheduler is not None
    assert table.scheduler.last_error is None
    versions = [c.version for c in table.log.list_all().commits]
    assert versions == list(range(5, 11))
    assert len(paths(lakelog.open(str(where)))) == 10


def test_script_that_exits_immediately_leaves_a_valid_table(tmp_path: Path) -> None:
    where = str(tmp_path / "table")
    new_table(where)
    script = (
        "import sys, lakelog\n"
        "table = lakelog.open(sys.argv[1])\n"
        "for n in range(20):\n"
        "    with table.transaction() as tx:\n"
        "        tx.add(path=f'f{n}', size=n)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, where],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    table = lakelog.open(where)
    assert 20 in checkpoints(table)
    assert table.verify().is_proved
    assert len(paths(table)) == 20


def test_every_plan_and_report_has_text_and_html(tmp_path: Path) -> None:
    table = new_table(str(tmp_path / "table"))
    commit(table, 1, 3)
    reports: dict[str, Any] = {
        "live files": table.checkpoint(),
        "verdict": table.verify(),
        "differs in": table.write_checksum(2),
        "commits": table.compact_log(0, 2),
        "no, it existed": table.compact_log(0, 2),
        "deletable": table.cleanup(),
        "older than": table.vacuum(),
        "no problem was found": table.repair(),
        "copied": table.replicate(str(tmp_path / "replica")),
        "nothing needs doing": table.doctor(),
        "tombstones": table.snapshot().write_parquet(str(tmp_path / "state")),
        "needs doing  nothing": table.report(tmp_path / "report.html"),
    }
    for words, report in reports.items():
        assert words in str(report)
        assert repr(report) == str(report)  # at a prompt
        assert words.split("  ")[0] in report._repr_html_()


def test_logs_stores_and_their_reports_have_html(tmp_path: Path) -> None:
    with lakelog.WriteAheadLog(tmp_path / "wal") as log:
        log.append("PUT", "a", "1")
        assert "last sequence number" in log._repr_html_()
        removed = log.truncate(1)
        assert "<caption>Truncate report" in removed._repr_html_()
    assert "<td style='text-align:left'>closed</td>" in log._repr_html_()
    with lakelog.KeyedStore(tmp_path / "store") as store:
        store.put("a", "1")
        flushed = store.flush()
        assert "1, 1 rows" in store._repr_html_()
        assert "flushed seq num" in str(flushed)
    table = new_table(str(tmp_path / "<b>"))
    with lakelog.Ingestor(table, tmp_path / "ingest") as ingestor:
        assert "rows durable" in ingestor._repr_html_()
        assert "&lt;b&gt;" in ingestor._repr_html_()
        assert "lag seconds" in ingestor.status()._repr_html_()
    with table.transaction() as tx:
        assert "<td style='text-align:left'>open</td>" in tx._repr_html_()
    assert "<caption>Disk cache" in lakelog.DiskCache(tmp_path / "cache")._repr_html_()
