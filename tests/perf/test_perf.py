"""The benchmarks at a small scale: all contenders run and agree, and the judgement is correct."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from perf import __main__, answers, generate, report, tables, worker
from perf.measure import FailedRunError, Result, Runs
from perf.workloads import WORKLOADS, Workload

SCALE = 0.001
ROOT = Path(__file__).parents[2]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_all_contenders_return_the_same_answer(workload: Workload) -> None:
    facts = tables.ensure(workload.table, SCALE).facts
    given: list[tuple[str, Any]] = [("the generator", facts)]
    given += (
        (contender, worker.measure(contender, workload.name, SCALE)["answer"])
        for contender in workload.contenders
    )
    answers.check(given)
    ours = dict(given)["lakelog"]
    if "deltalake" in workload.peers:
        assert set(ours) == set(dict(given)["deltalake"]), "the peer answers less than lakelog"


def test_the_command_prints_and_writes_every_figure(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "perf", "--scale", str(SCALE), "--runs", "1"]
    command += ["--only", "state_1m_files_classic_plus_100_commits", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "state_1m_files_classic_plus_100_commits" in done.stdout
    assert "deltalake 1." in done.stdout
    (workload,) = json.loads(out.read_text())["workloads"]
    assert set(workload["contenders"]) == {"lakelog", "deltalake", "raw_polars", "raw_pyarrow"}
    for contender in workload["contenders"].values():
        assert contender["median_seconds"] > 0
        assert contender["runs"][0]["base_mb"] <= contender["median_peak_mb"]


def test_generated_table_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in generate.TABLES:
        made = []
        for turn in ("first", "second"):
            folder = tmp_path / f"{name}-{turn}"
            facts = generate.generate(name, folder, SCALE)
            log = sorted((folder / "_delta_log").iterdir())
            made.append((facts, [(f.name, f.read_bytes()) for f in log]))
        assert made[0] == made[1], name


def test_changed_recipe_generates_a_new_table(monkeypatch: pytest.MonkeyPatch) -> None:
    first = tables.ensure("small_commits", SCALE).path
    monkeypatch.setattr(tables, "_RECIPE", ("columns.py",))
    assert tables._folder("small_commits", SCALE) != first.parent


def test_fingerprint_ignores_row_order_and_depends_on_every_value() -> None:
    frame = pl.DataFrame({"path": ["a", "b", "c"], "size": [1, 2, 3]})
    of = answers.of_files
    assert of(frame) == of(frame.reverse())
    assert of(frame) != of(frame.with_columns(path=pl.Series(["a", "b", "d"])))
    swapped = of(frame.with_columns(size=pl.Series([2, 1, 3])))
    assert swapped["bytes"] == of(frame)["bytes"]
    assert swapped != of(frame)
    assert of(pl.concat([frame, frame[:1]])) != of(frame)


def test_wrong_answer_is_refused_and_names_the_contender() -> None:
    with pytest.raises(answers.WrongAnswerError, match="files: lakelog says 2, the generator"):
        answers.check([("the generator", {"files": 3, "adds": 9}), ("lakelog", {"files": 2})])


def test_peak_memory_includes_allocations_of_the_run() -> None:
    code = (
        "from perf.worker import peak_memory_mb as p; a = p(); b = bytearray(10**8)[:]; "
        "print(p() - a)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert 190 < float(done.stdout) < 230


def test_target_is_missed_by_speed_raw_or_memory() -> None:
    workload = Workload("w", "small_commits", faster=2, raw=1.3, memory=0.5)

    def judged(seconds: float, peak_mb: float) -> list[str]:
        runs = {
            "lakelog": _runs(seconds, peak_mb),
            "deltalake": _runs(4, 100),
            "raw_polars": _runs(9, 1),
            "raw_pyarrow": _runs(1, 1),
        }
        return Result(workload, {"files": 1}, runs).missed

    assert judged(1.3, 50) == []
    assert judged(1.4, 50) == ["raw"]
    assert judged(2.1, 51) == ["speed", "raw", "memory"]


def test_median_is_computed_over_runs() -> None:
    measured = [_run(s, 10) for s in (1.0, 50.0, 2.0)]
    assert Runs(measured).seconds == 2.0


def test_report_shows_a_workload_without_peers(capsys: pytest.CaptureFixture[str]) -> None:
    alone = Result(
        Workload("alone", "small_commits", peers=()),
        {"files": 10, "log_bytes": 5_000_000},
        {"lakelog": _runs(0.5, 10)},
    )
    report.show([alone], report.environment(1.0, 1))
    assert "alone" in capsys.readouterr().out


def test_completed_measurements_are_printed_after_a_failure_or_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(workload: Workload, *_: object) -> Result:
        match workload.name:
            case "stats_typed_1m":
                raise FailedRunError("deltalake crashed")
            case "update_by_one_commit_1m":
                raise KeyboardInterrupt
        return Result(workload, {"files": 10, "log_bytes": 5}, {"lakelog": _runs(0.5, 10)})

    monkeypatch.setattr(__main__, "measure", measured)
    names = [workload.name for workload in WORKLOADS[:3]]
    assert names[1] == "stats_typed_1m"
    assert __main__.main([f"--only={name}" for name in names]) == 2
    shown = capsys.readouterr()
    assert names[0] in shown.out
    assert names[2] in shown.out
    assert shown.err == "stats_typed_1m: FailedRunError: deltalake crashed\n"
    assert __main__.main([]) == 130
    assert names[2] in capsys.readouterr().out


def test_sigterm_prints_the_completed_measurements(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(workload: Workload, *_: object) -> Result:
        if workload.name == WORKLOADS[1].name:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the signal did not end the measurement")
        return Result(workload, {"files": 10, "log_bytes": 5}, {"lakelog": _runs(0.5, 10)})

    monkeypatch.setattr(__main__, "measure", measured)
    before = signal.getsignal(signal.SIGTERM)
    assert __main__.main([]) == 143
    shown = capsys.readouterr().out
    assert WORKLOADS[0].name in shown
    assert WORKLOADS[2].name not in shown
    assert signal.getsignal(signal.SIGTERM) == before


def _run(seconds: float, peak_mb: float) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "cpu_seconds": seconds,
        "base_mb": 5.0,
        "peak_mb": peak_mb,
        "result_mb": None,
    }


def _runs(seconds: float, peak_mb: float) -> Runs:
    return Runs([_run(seconds, peak_mb)])
