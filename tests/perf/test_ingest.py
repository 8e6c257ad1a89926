"""The benchmarks of ingestion at a small scale: all run, and no row is missing or there twice."""

from __future__ import annotations

import pytest

import lakelog
from perf import answers
from perf.ingest.workloads import INGEST_WORKLOADS
from perf.writing import worker

SCALE = 0.001
CASES = [(w.name, contender) for w in INGEST_WORKLOADS for contender in w.contenders]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "contender"), CASES)
def test_a_contender_leaves_each_row_once(name: str, contender: str) -> None:
    workload = next(w for w in INGEST_WORKLOADS if w.name == name)
    measured = worker.measure(contender, name, SCALE)
    assert {c.figure for c in workload.comparisons} <= set(measured)
    assert measured["answer"] == {"missing": 0, "twice": 0}


def test_a_row_that_was_not_written_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    write = lakelog.Ingestor.write
    monkeypatch.setattr(
        lakelog.Ingestor, "write", lambda self, row: row["id"] == 7 or write(self, row)
    )
    with pytest.raises(answers.WrongAnswerError, match="missing"):
        worker.measure("lakelog", "ingest_single_rows_8_threads", SCALE)
