"""The benchmarks of rows at a small scale: all contenders run, and write the same rows."""

from __future__ import annotations

from typing import Any

import pytest

import lakelog
from perf import answers
from perf.rows.workloads import ROW_WORKLOADS
from perf.writing import worker

SCALE = 0.001


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [w.name for w in ROW_WORKLOADS])
def test_every_contender_gives_the_same_rows(name: str) -> None:
    workload = next(w for w in ROW_WORKLOADS if w.name == name)
    measured = {who: worker.measure(who, name, SCALE) for who in workload.contenders}
    for figures in measured.values():
        assert {c.figure for c in workload.comparisons} <= set(figures)
    answers.check((who, figures["answer"]) for who, figures in measured.items())


def test_a_row_that_was_not_updated_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "rows_update_copy_10m"
    right: Any = worker.measure("deltalake", name, SCALE)["answer"]
    monkeypatch.setattr(lakelog.Table, "update", lambda *_: None)
    wrong: Any = worker.measure("lakelog", name, SCALE)["answer"]
    with pytest.raises(answers.WrongAnswerError, match="hash"):
        answers.check([("deltalake", right), ("lakelog", wrong)])
