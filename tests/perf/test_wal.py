"""The benchmarks of the log and the keyed store at a small scale: all run, and agree."""

from __future__ import annotations

import pytest

from perf import answers, tables
from perf.wal import records, threads
from perf.wal.workloads import WAL_WORKLOADS
from perf.writing import worker

SCALE = 0.001
CASES = [(w.name, contender) for w in WAL_WORKLOADS for contender in w.contenders]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "contender"), CASES)
def test_a_contender_leaves_what_was_to_be_written(name: str, contender: str) -> None:
    workload = next(w for w in WAL_WORKLOADS if w.name == name)
    measured = worker.measure(contender, name, SCALE)
    assert {c.figure for c in workload.comparisons} <= set(measured)
    seconds = measured["seconds"]
    assert isinstance(seconds, float)
    assert seconds > 0
    expected = records.answer(records.pairs(workload.scaled(SCALE)))
    answers.check([("expected", expected), (contender, measured["answer"])])
    assert list(tables.cache_directory().glob("write-*")) == []


def test_a_lost_record_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = records.rows
    monkeypatch.setattr(records, "rows", lambda count: rows(count)[1:])
    with pytest.raises(answers.WrongAnswerError, match="records"):
        worker.measure("lakelog", "wal_durable_appends_8_threads", SCALE)


def test_a_thread_that_fails_fails_the_run() -> None:
    def append(key: bytes, value: bytes) -> None:
        raise OSError("nothing can be written")

    with pytest.raises(RuntimeError, match="8 of 8 threads failed"):
        threads.run(lambda: append, records.rows(64))


def test_every_row_is_appended_once() -> None:
    seen: list[bytes] = []
    figures = threads.run(lambda: lambda key, value: seen.append(key), records.rows(100))
    assert sorted(seen) == sorted(key for key, _ in records.rows(100))
    assert figures["seconds"] > 0


def test_keys_are_distinct_and_values_the_same_each_time() -> None:
    one, other = records.pairs(500), records.pairs(500)
    assert one.equals(other)
    assert one["key"].n_unique() == 500
    assert set(one["value"].bin.size()) == {records.VALUE_BYTES}
