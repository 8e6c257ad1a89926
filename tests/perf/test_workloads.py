"""The benchmarks at a small scale: every contender runs, the answers agree, and a wrong one is
found: rows, ingestion, the write-ahead log, checkpoints, cleanup, and tables of many files.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lakelog
from perf import answers, scale, tables
from perf.checkpoints import check
from perf.checkpoints.workloads import CHECKPOINT_WORKLOADS
from perf.ingest.workloads import INGEST_WORKLOADS
from perf.measure import run_worker
from perf.rows.workloads import ROW_WORKLOADS
from perf.wal import records, threads
from perf.wal.workloads import WAL_WORKLOADS
from perf.writing import worker
from perf.writing.base import Job
from perf.writing.workloads import Limit

SCALE = 0.001
LONG_HISTORIES = ("_1000", "_10000")
"""These do not scale: with 5 ms per request, they take a minute."""
LOGGING = [(w.name, contender) for w in WAL_WORKLOADS for contender in w.contenders]
INGESTING = [(w.name, contender) for w in INGEST_WORKLOADS for contender in w.contenders]


# --- rows and ingestion --------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [w.name for w in ROW_WORKLOADS])
def test_every_contender_returns_the_same_rows(name: str) -> None:
    workload = next(w for w in ROW_WORKLOADS if w.name == name)
    measured = {
        contender: worker.measure(contender, name, SCALE) for contender in workload.contenders
    }
    for figures in measured.values():
        assert {c.figure for c in workload.comparisons} <= set(figures)
    answers.check((contender, figures["answer"]) for contender, figures in measured.items())


def test_row_that_was_not_updated_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "rows_update_copy_10m"
    right: Any = worker.measure("deltalake", name, SCALE)["answer"]
    monkeypatch.setattr(lakelog.Table, "update", lambda *_: None)
    wrong: Any = worker.measure("lakelog", name, SCALE)["answer"]
    with pytest.raises(answers.WrongAnswerError, match="hash"):
        answers.check([("deltalake", right), ("lakelog", wrong)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "contender"), INGESTING)
def test_contender_writes_each_row_once(name: str, contender: str) -> None:
    workload = next(w for w in INGEST_WORKLOADS if w.name == name)
    measured = worker.measure(contender, name, SCALE)
    assert {c.figure for c in workload.comparisons} <= set(measured)
    assert measured["answer"] == {"missing": 0, "twice": 0}


def test_row_that_was_not_written_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    write = lakelog.Ingestor.write
    monkeypatch.setattr(
        lakelog.Ingestor, "write", lambda self, row: row["id"] == 7 or write(self, row)
    )
    with pytest.raises(answers.WrongAnswerError, match="missing"):
        worker.measure("lakelog", "ingest_single_rows_8_threads", SCALE)


# --- the write-ahead log and the keyed store -----------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "contender"), LOGGING)
def test_contender_writes_all_records(name: str, contender: str) -> None:
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


def test_records_have_distinct_keys_and_are_deterministic() -> None:
    one, other = records.pairs(500), records.pairs(500)
    assert one.equals(other)
    assert one["key"].n_unique() == 500
    assert set(one["value"].bin.size()) == {records.VALUE_BYTES}


# --- checkpoints, cleanup and scale --------------------------------------------------------------


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [w.name for w in CHECKPOINT_WORKLOADS])
def test_every_contender_leaves_the_table_unchanged(name: str) -> None:
    workload = next(w for w in CHECKPOINT_WORKLOADS if w.name == name)
    # A limit on memory holds for the whole process, and this one has run many tests.
    limited = any(isinstance(c, Limit) and c.figure == "peak_mb" for c in workload.comparisons)
    measure = partial(run_worker, worker.__name__) if limited else worker.measure
    contenders = [
        contender for contender in workload.contenders if not contender.endswith(LONG_HISTORIES)
    ]
    measured = {contender: measure(contender, name, SCALE) for contender in contenders}
    for figures in measured.values():
        assert {c.figure for c in workload.comparisons} & set(figures)
    for table in {workload.tables[contender] for contender in contenders}:
        ours = [contender for contender in measured if workload.tables[contender] == table]
        answers.check((contender, measured[contender]["answer"]) for contender in ours)


def test_checkpoint_with_missing_files_is_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    read_back = check.read_back

    def less(job: Job) -> list[tuple[str, answers.Answer]]:
        (first, one), (second, other) = read_back(job)
        return [(first, one), (second, other | {"files": 0})]

    monkeypatch.setattr(check, "read_back", less)
    with pytest.raises(answers.WrongAnswerError, match="files"):
        worker.measure("lakelog", "checkpoint_1m_files", SCALE)


def test_limit_applies_to_the_largest_value() -> None:
    limit = Limit("peak", "mb", ("a", "b"), 5, "MB")
    assert limit.reached({"a": {"mb": 4.0}, "b": {"mb": 6.0}}) == 6
    assert limit.kept(5.0) is True
    assert limit.kept(5.1) is False
    assert (limit.target, limit.as_text(4)) == ("<= 5 MB", "4.00 MB")


def test_every_operation_is_measured_on_a_copy(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    scale.build(folder, 800)
    before = sorted(path.name for path in (folder / "_delta_log").iterdir())
    rows = {name: scale.measure(folder, name, 0.001) for name in scale.OPERATIONS}
    answers = {name: row["answer"] for name, row in rows.items()}
    assert answers == {
        "files of one day of 365": 3,
        "files that can hold one of ten ids of one day": 1,
        "number of files": 800,
        "one commit": 102,
        "checkpoint after one commit": 801,
        "cleanup plan": 0,
        "path and size of all files": 800,
    }
    writing = {name for name, row in rows.items() if row["writes"]}
    assert writing == {"one commit", "checkpoint after one commit"}
    assert sorted(path.name for path in (folder / "_delta_log").iterdir()) == before


def test_requests_during_a_round_trip_count_as_one_trip() -> None:
    assert scale.count_trips([0.0, 0.1, 0.5, 0.6, 1.2], 0.5) == 3
    assert scale.count_trips([], 0.5) == 0
