"""The benchmarks of states and checkpoints on Spark at a small scale, in the tests' session.

Every contender runs, and returns the state that was written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perf import answers
from perf.spark import check_states, large_states, sessions
from perf.spark.states import STATE_CASES
from perf.spark.workloads import SPARK_WORKLOADS
from perf.writing.base import Job

NAMES = [w.name for w in SPARK_WORKLOADS if w.name in STATE_CASES]
FILES = 2_000


@pytest.mark.reference
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_every_contender_returns_the_written_state(
    name: str, delta: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKELOG_BENCH_DIR", str(tmp_path / "bench"))
    monkeypatch.setattr(sessions, "start", lambda *_, **__: delta)
    (workload,) = (w for w in SPARK_WORKLOADS if w.name == name)
    assert set(workload.contenders) == set(STATE_CASES[name])
    for contender, case in STATE_CASES[name].items():
        path = tmp_path / contender
        path.mkdir()
        job = Job(str(path), FILES, {})
        assert case.run(case.prepare(job))["seconds"] > 0
        answers.check(check_states.given(job, 1))


def test_state_with_missing_files_is_a_wrong_answer(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKELOG_BENCH_DIR", str(tmp_path / "bench"))
    monkeypatch.setattr(sessions, "start", lambda *_, **__: spark)
    case = STATE_CASES["spark_state_5m_files_1000_commits"]["lakelog"]
    path = tmp_path / "t"
    path.mkdir()
    prepared = case.prepare(Job(str(path), FILES, {}))
    prepared.facts["files"] += 1
    with pytest.raises(answers.WrongAnswerError, match="the state"):
        case.run(prepared)
    assert len(large_states.parts(path)) == 2
