"""Reads are counted correctly, and progress bars are shown only on terminals."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

import lakelog as engine
from lakelog.cli import watch
from lakelog.cli.options import Target
from lakelog.cli.watch import Meter, open_metered, progress
from tests.cli.conftest import wait_for


def test_metered_table_returns_the_same_as_a_plain_one(table: str) -> None:
    metered, meter = open_metered(Target(table, {}))
    plain = engine.open(table)
    assert metered.snapshot().state.to_polars().equals(plain.snapshot().state.to_polars())
    assert metered.history().equals(plain.history())
    assert meter.files > 60


def test_the_meter_counts_files_and_bytes(table: str) -> None:
    metered, meter = open_metered(Target(table, {}))
    metered.history()
    commits = sorted(Path(table, "_delta_log").glob("*.json"))
    assert meter.files == len(commits) == 60
    assert meter.size_bytes == sum(path.stat().st_size for path in commits)


def test_an_update_reads_the_new_commit_only(tmp_path: Path) -> None:
    from lakelog.demo import append_commit, make_table

    path = make_table(tmp_path / "t", commits=40)
    metered, meter = open_metered(Target(path, {}))
    snapshot = metered.snapshot()
    snapshot.num_files()
    files = meter.files
    append_commit(path, 40)
    later = snapshot.update()
    assert meter.files == files + 1
    assert later.num_files() > snapshot.num_files()


def test_no_progress_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working", Meter()):
        time.sleep(0.01)
    assert capsys.readouterr().err == ""


def test_short_work_shows_no_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("working", Meter()):
        pass
    assert capsys.readouterr().err == ""


def test_long_work_shows_a_bar_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(watch, "_PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(watch, "_REFRESH_SECONDS", 0.01)
    meter = Meter()
    with progress("replaying", meter) as bar:
        bar.expect(2048)
        meter.add(files=3, size_bytes=1024)
        shown = wait_for("3 files, 1.0 KiB read", capsys)
    assert "replaying" in shown
    assert capsys.readouterr().out == ""


def test_an_error_ends_the_bar(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(watch, "_PATIENCE_SECONDS", 0.0)
    with pytest.raises(RuntimeError, match="stop"), progress("working", Meter()):
        raise RuntimeError("stop")


def test_progress_bar_never_exceeds_its_total() -> None:
    meter = Meter()
    meter.add(size_bytes=10)
    bar = watch.Watch(meter)
    bar.expect(5)
    meter.add(size_bytes=100)
    assert bar.done_bytes == 5
