"""The benchmarks of checkpoints and cleanup at a small scale: all run, no table is changed."""

from __future__ import annotations

from functools import partial

import pytest

from perf import answers
from perf.checkpoints import check
from perf.checkpoints.workloads import CHECKPOINT_WORKLOADS
from perf.measure import run_worker
from perf.writing import worker
from perf.writing.base import Job
from perf.writing.workloads import Limit

SCALE = 0.001
LONG_HISTORIES = ("_1000", "_10000")
"""They do not scale: with 5 ms per request, they take a minute."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [w.name for w in CHECKPOINT_WORKLOADS])
def test_every_contender_leaves_the_table_as_it_was(name: str) -> None:
    workload = next(w for w in CHECKPOINT_WORKLOADS if w.name == name)
    # A limit on memory holds for the whole process, and this one has run many tests.
    limited = any(isinstance(c, Limit) and c.figure == "peak_mb" for c in workload.comparisons)
    measure = partial(run_worker, worker.__name__) if limited else worker.measure
    contenders = [who for who in workload.contenders if not who.endswith(LONG_HISTORIES)]
    measured = {who: measure(who, name, SCALE) for who in contenders}
    for figures in measured.values():
        assert {c.figure for c in workload.comparisons} & set(figures)
    for table in {workload.tables[who] for who in contenders}:
        mine = [who for who in measured if workload.tables[who] == table]
        answers.check((who, measured[who]["answer"]) for who in mine)


def test_a_checkpoint_that_lost_files_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    read_back = check.read_back

    def less(job: Job) -> list[tuple[str, answers.Answer]]:
        (first, one), (second, other) = read_back(job)
        return [(first, one), (second, other | {"files": 0})]

    monkeypatch.setattr(check, "read_back", less)
    with pytest.raises(answers.WrongAnswerError, match="files"):
        worker.measure("lakelog", "checkpoint_1m_files", SCALE)


def test_a_limit_is_held_by_whoever_needs_most() -> None:
    limit = Limit("peak", "mb", ("a", "b"), 5, "MB")
    assert limit.reached({"a": {"mb": 4.0}, "b": {"mb": 6.0}}) == 6
    assert limit.kept(5.0) is True
    assert limit.kept(5.1) is False
    assert (limit.target, limit.as_text(4)) == ("<= 5 MB", "4.00 MB")
