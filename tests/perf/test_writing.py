"""The benchmarks of commits at a small scale: all run and are verified, and targets are judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perf import report as reading_report
from perf import tables
from perf.answers import WrongAnswerError
from perf.writing import base, contended, contents, report, syncs, worker
from perf.writing.measure import WriteResult
from perf.writing.workloads import WRITE_WORKLOADS, Ratio, Spread, WriteWorkload

SCALE = 0.001
ROOT = Path(__file__).parents[2]
CASES = [(w.name, contender) for w in WRITE_WORKLOADS for contender in w.contenders]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "contender"), CASES)
def test_contender_writes_the_expected_content(
    name: str, contender: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", os.fsync)  # one contender replaces it
    measured = worker.measure(contender, name, SCALE)
    compared = next(w for w in WRITE_WORKLOADS if w.name == name).comparisons
    seconds = measured["seconds"]
    assert isinstance(seconds, float)
    assert seconds > 0
    assert {c.figure for c in compared} & set(measured)
    assert list(tables.cache_directory().glob("write-*")) == []


def test_a_lost_commit_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    adds = contents.single_adds
    monkeypatch.setattr(contents, "single_adds", lambda start, count: adds(start, count - 1))
    with pytest.raises(WrongAnswerError, match="version: lakelog, reading says 11"):
        worker.measure("lakelog", "commits_small_local", SCALE)


def test_a_writer_that_fails_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contended, "WRITERS", 2)  # each is a process
    with pytest.raises(RuntimeError, match="2 of 2 writers failed"):
        contended.run(contended.Writers(_refuse, str(tmp_path), 16))


def test_every_writer_gets_its_own_files() -> None:
    shares = list(contended.Writers(_refuse, "", 30).shares())
    files = [first + k for first, count in shares for k in range(count)]
    assert files == list(range(30))


def test_run_leaves_the_copied_table_unchanged() -> None:
    table = tables.ensure("checkpoint_1k_files", SCALE)
    before = _contents(table.path)
    with base.fresh_copy(table) as copy:
        assert _contents(copy) == before
        for file in copy.rglob("*.json"):
            file.write_bytes(b"")
    assert _contents(table.path) == before


def test_the_command_prints_and_writes_every_figure(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "perf", "--scale", str(SCALE), "--runs", "1"]
    command += ["--only", "commit_100k_adds", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "commit_100k_adds (100)" in done.stdout
    assert "both from Arrow" in done.stdout
    assert "written to" in done.stdout
    found = json.loads(out.read_text())
    assert found["workloads"] == []
    (workload,) = found["writing"]["workloads"]
    assert set(workload["contenders"]) == {"lakelog", "deltalake", "deltalake_from_arrow"}
    for contender in workload["contenders"].values():
        assert contender["medians"]["seconds"] > 0


def test_targets_compare_the_best_peer_with_the_worst_lakelog_result() -> None:
    figures = {"ours": {"s": 2.0}, "slow": {"s": 30.0}, "fast": {"s": 11.0}}
    ratio = Ratio("", "s", ("ours",), ("slow", "fast"), 5.5)
    assert ratio.reached(figures) == 5.5
    assert ratio.kept(5.5) is True
    assert ratio.kept(5.4) is False
    spread = Spread("", "s", ("ours", "fast"), 1.5)
    assert spread.reached(figures) == 5.5
    assert spread.kept(5.5) is False
    assert spread.kept(1.5) is True
    assert Spread("", "s", ("ours",)).kept(1.0) is None


def test_report_shows_figures_targets_and_fsync_counts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    compared = (
        Ratio("both fsync", "seconds", ("lakelog",), ("deltalake",), 5),
        Ratio("as they are", "seconds", ("lakelog",), ("deltalake",)),
    )
    tables_ = {"lakelog": "empty", "deltalake": "empty"}
    workload = WriteWorkload("commits_small_local", tables_, 10, 1, compared)
    runs = {"lakelog": [_run(1.0), _run(1.5), _run(9.0)], "deltalake": [_run(3.0)]}
    result = WriteResult(workload, 10, runs)
    assert result.missed == ["both fsync"]
    counts: dict[str, Callable[[str], float | None]] = {
        "lakelog 2.00, deltalake 2.00": lambda _: 2.0,
        "strace is not available": lambda _: None,
    }
    for note, count in counts.items():
        notes = report.durability_notes([result], count)
        report.show([result], reading_report.environment(1.0, 3), notes)
        printed = capsys.readouterr().out
        assert "both fsync     2.00x    >= 5x    no" in printed
        assert note in printed
    json.dumps(report.as_json([result], notes))


def test_time_of_fsyncs_is_measured_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])

    def fsync(fd: int) -> None:
        del fd
        now_s[0] += 2

    def commit() -> None:
        now_s[0] += 3
        os.fsync(0)
        os.fsync(0)

    monkeypatch.setattr(os, "fsync", fsync)
    with syncs.disk_waits() as waited_s:
        commit()
        figures = base.timed([commit] * 3, waited_s)
    assert os.fsync is fsync
    assert figures == {"seconds": 21, "commit_ms": 7000, "p99_ms": 7000, "own_ms": 3000}
    assert base.timed([commit]) == {"seconds": 7, "commit_ms": 7000, "p99_ms": 7000}


def test_filesystem_is_that_of_the_longest_mount_point(tmp_path: Path) -> None:
    assert syncs.filesystem(Path("/proc/self")) == "proc"
    assert syncs.filesystem(tmp_path) not in {"", "proc"}


def _run(seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, "commit_ms": 1.0, "p99_ms": 2.0, "peak_mb": 3.0, "answer": {}}


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def _refuse(path: str, first: int, count: int) -> Iterator[Callable[[], None]]:
    raise OSError(f"nothing at {path} for {first}, {count}")
