"""Batches of a stream: each is in the table exactly once, whichever process runs it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import ConflictError, InvalidInputError, LakelogWarning, StreamMismatchError
from lakelog.spark import stream_sink, task_commit
from lakelog.spark.stream_sink import StreamWriter, is_repetition, own_id
from lakelog.spark.writing import Message
from tests.spark.spark_side import ids, new_table, orphans, rows, sink, task

APP: dict[str, Any] = {"txnAppId": "app"}


@pytest.fixture
def where(tmp_path: Path) -> Path:
    new_table(tmp_path / "t")
    return tmp_path / "t"


@pytest.fixture(autouse=True)
def query(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The query whose tasks run; the last one decides."""
    queries = ["one"]
    monkeypatch.setattr(stream_sink, "query_of_task", lambda: queries[-1])
    return queries


def planned(made: StreamWriter, *numbers: int) -> list[Message | None]:
    return [task(made, rows(number)) for number in numbers]


def write(where: Path, batch: int, *numbers: int, **options: Any) -> None:
    """A batch as Spark runs it; its driver creates a separate writer to commit it."""
    messages = planned(sink(where, **options), *numbers)
    try:
        sink(where, **options).commit(messages, batch)
    except lakelog.LakelogError:
        sink(where, **options).abort(messages, batch)
        raise


@pytest.mark.parametrize("options", [{}, APP], ids=["by query", "by txnAppId"])
def test_a_batch_that_is_run_again_is_recognised(where: Path, options: dict[str, str]) -> None:
    write(where, 0, 0, 1, **options)
    write(where, 0, 0, 1, **options)
    write(where, 1, 2, **options)
    write(where, 1, 2, **options)
    write(where, 4, 3, **options)  # batches without rows may leave no trace
    assert ids(where) == [0, 1, 2, 3]
    assert orphans(where) == set()
    table = lakelog.open(where)
    recorded = dict(table.snapshot().transactions().select("appId", "txnVersion").collect().rows())
    assert recorded == ({"app": 4, "app@one": 4} if options else {"one": 4})
    [latest] = table.history(limit=1).to_dicts()
    assert latest["operation"] == "STREAMING UPDATE"
    assert dict(latest["operationParameters"]) == {
        "outputMode": "Append",
        "queryId": "one",
        "epochId": "4",
    }


def test_new_checkpoint_under_the_same_name_is_refused(where: Path, query: list[str]) -> None:
    write(where, 0, 0, **APP)
    write(where, 1, 1, **APP)
    query.append("two")
    for batch in (0, 1, 2):
        with pytest.raises(StreamMismatchError, match="another checkpoint") as caught:
            write(where, batch, 7, **APP)
        assert "txnAppId" in (caught.value.hint or "")
    assert ids(where) == [0, 1]
    assert orphans(where) == set()
    # Without a name of its own, or with another one, it is another stream.
    write(where, 0, 8)
    query.append("three")
    write(where, 0, 9, txnAppId="other")
    assert ids(where) == [0, 1, 8, 9]
    # The old query continues.
    query.append("one")
    write(where, 2, 2, **APP)
    assert ids(where) == [0, 1, 2, 8, 9]


@pytest.mark.parametrize(("before", "after"), [({}, APP), (APP, {}), (APP, {"txnAppId": "other"})])
def test_repeated_batch_under_another_application_id_is_refused(
    where: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    write(where, 0, 0, **before)
    write(where, 1, 1, **before)
    for batch in (0, 1):
        with pytest.raises(StreamMismatchError, match="written twice") as caught:
            write(where, batch, 1, **after)
        assert "txnAppId" in (caught.value.hint or "")
    assert orphans(where) == set()
    write(where, 2, 2, **after)
    write(where, 2, 2, **after)
    assert ids(where) == [0, 1, 2]


def test_outdated_checkpoint_is_refused(where: Path) -> None:
    for batch in range(3):
        write(where, batch, batch)
    with pytest.raises(StreamMismatchError, match="older than the last"):
        write(where, 1, 1)
    assert ids(where) == [0, 1, 2]


def test_repetition_with_different_rows_issues_a_warning(where: Path) -> None:
    write(where, 0, 0, 1)
    with pytest.warns(LakelogWarning, match="with 2 rows, and now has 3"):
        write(where, 0, 0, 1, 2)
    assert ids(where) == [0, 1]
    # There is no warning if the log no longer has the commit.
    table = lakelog.open(where)
    table.checkpoint()
    for version in range(2):
        (where / f"_delta_log/{version:020}.json").unlink()
    write(where, 0, 5)
    assert ids(where) == [0, 1]


def test_records_of_other_writers_are_not_treated_as_batches(where: Path) -> None:
    with lakelog.open(where).transaction("app", 5) as tx:
        tx.add(path="day=d0/other.parquet", partitionValues={"day": "d0"}, size=1)
    with pytest.raises(StreamMismatchError):
        write(where, 0, 0, **APP)


def test_two_drivers_of_one_query_write_a_batch_once(where: Path) -> None:
    first, second = sink(where), sink(where)
    one, two = planned(first, 0), planned(second, 0)
    first.commit(one, 0)
    second.commit(two, 0)
    assert ids(where) == [0]
    early = planned(sink(where), 1)
    write(where, 1, 1)
    write(where, 2, 2)
    with pytest.raises(StreamMismatchError):
        first.commit(early, 1)
    assert ids(where) == [0, 1, 2]
    assert orphans(where) == set()


@pytest.mark.parametrize("faster", ["one", "two"])
def test_driver_overtaken_during_its_commit_detects_the_other_query(
    where: Path, query: list[str], faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = planned(sink(where, **APP), 0)
    query.append(faster)
    publish = task_commit.publish

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(stream_sink, "publish", publish)
        write(where, 0, 0, **APP)
        return publish(*args, **kwargs)

    monkeypatch.setattr(stream_sink, "publish", overtaken)
    if faster == "one":
        sink(where, **APP).commit(messages, 0)
    else:
        with pytest.raises(StreamMismatchError):
            sink(where, **APP).commit(messages, 0)
    assert ids(where) == [0]
    assert orphans(where) == set()


def test_complete_batch_replaces_the_previous_one(where: Path) -> None:
    for batch, numbers in enumerate(([0, 1], [2], [])):
        messages = planned(sink(where, overwrite=True), *numbers)
        messages = messages or [task(sink(where, overwrite=True), rows())]
        sink(where, overwrite=True).commit(messages, batch)
        assert ids(where) == numbers
    messages = planned(sink(where, overwrite=True), 5)
    lakelog.open(where).append(pl.DataFrame(rows(6)))
    with lakelog.open(where).transaction() as tx:
        tx.set_metadata(configuration={"delta.dataSkippingNumIndexedCols": "1"})
    with pytest.raises(ConflictError):
        sink(where, overwrite=True).commit(messages, 3)


def test_batches_without_rows_or_tasks_change_nothing(where: Path) -> None:
    sink(where).commit([], 0)
    assert lakelog.open(where).version() == 0
    sink(where).commit([task(sink(where), rows())], 1)
    write(where, 2, 2)
    sink(where).abort([None, *planned(sink(where), 4)], 3)
    sink(where).abort([None], 3)
    assert ids(where) == [2]
    assert orphans(where) == set()


def test_tasks_without_a_query_id_are_refused(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_sink, "query_of_task", lambda: None)
    with pytest.raises(InvalidInputError, match="query id"):
        write(where, 0, 0)


def test_repetition_is_determined_from_the_recorded_versions() -> None:
    def judged(recorded: dict[str, int], batch: int, app: str = "app") -> bool | None:
        try:
            return is_repetition(recorded, app, "q", batch, "t")
        except StreamMismatchError:
            return None

    own = own_id("app", "q")
    assert [judged({}, batch) for batch in (0, 3)] == [False, False]
    both = {"app": 3, own: 3}
    assert [judged(both, batch) for batch in (2, 3, 4)] == [None, True, False]
    assert [judged({"app": 3}, batch) for batch in (2, 3, 4)] == [None, None, None]
    assert [judged({"app": 3, own: 2}, batch) for batch in (2, 3, 4)] == [None, None, None]
    assert [judged({"q": 3}, batch, "q") for batch in (2, 3, 4)] == [None, True, False]
