"""`Ingestor`: when rows are committed, what commits follow, and what readers see meanwhile."""

from __future__ import annotations

import datetime as dt
import decimal
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.errors import (
    ConcurrentTransactionError,
    InvalidInputError,
    LakelogError,
    LogPoisonedError,
    NotFoundError,
    StreamMismatchError,
    TableNotFoundError,
    UnavailableError,
)
from lakelog.ingest.records import HEADER, JSON
from lakelog.wal.disk import LocalDisk, LocalFile
from lakelog.wal.log import WriteAheadLog
from tests.ingest.ingestors import SCHEMA, FailingTable, ids, quiet


def mapped(folder: Path) -> lakelog.Table:
    """A table whose columns can be dropped."""
    properties = {"delta.columnMapping.mode": "name"}
    return lakelog.create(folder / "mapped", SCHEMA, configuration=properties, upkeep=False)


def wait_until_committed(ingestor: lakelog.Ingestor) -> None:
    with ingestor._changed:
        assert ingestor._changed.wait_for(lambda: ingestor._backlog_bytes == 0, 30)


def test_rows_are_committed_after_max_seconds_without_another_call(
    table: lakelog.Table, directory: Path
) -> None:
    with lakelog.Ingestor(table, directory, max_seconds=0.05) as ingestor:
        ingestor.write({"id": 1})
        with ingestor._changed:
            assert ingestor._changed.wait_for(lambda: ingestor._rows_committed == 1, 30)
        assert ids(table.scan()) == [1]
        assert ingestor.status().lag_seconds == 0.0


@pytest.mark.parametrize("form", ["row", "rows", "frame"])
@pytest.mark.parametrize("is_durable", [False, True])
def test_row_of_an_interrupted_write_is_committed_after_max_seconds_if_it_is_durable(
    table: lakelog.Table,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    *,
    is_durable: bool,
) -> None:
    def rows(number: int) -> Any:
        frame = pa.table({"id": [number], "name": ["a"]})
        return {"row": {"id": number}, "rows": [{"id": number}] * 2, "frame": frame}[form]

    with lakelog.Ingestor(table, directory, max_seconds=0.1, sync="none") as ingestor:
        write = WriteAheadLog._write

        def interrupted(log: WriteAheadLog, entry: Any) -> int:
            if is_durable:
                write(log, entry)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(WriteAheadLog, "_write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ingestor.write(rows(1))
        wait_until_committed(ingestor)
        assert set(ids(table.scan())) == ({1} if is_durable else set())
        ingestor.write(rows(2))
        wait_until_committed(ingestor)
        assert set(ids(table.scan())) == ({1, 2} if is_durable else {2})
        assert ingestor.status().lag_seconds == 0


def test_rows_are_accepted_after_an_interrupt_while_a_flush_waits_for_writers(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = mapped(tmp_path)

    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    ingestor = quiet(table, directory)
    lakelog.open(table.path, upkeep=False).alter.drop_column("name")
    with monkeypatch.context() as patch:
        patch.setattr(ingestor._committer.appending._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ingestor.flush()
    writer = threading.Thread(target=ingestor.write, args=({"id": 1},), daemon=True)
    writer.start()
    writer.join(60)
    assert not writer.is_alive()
    ingestor.close(flush=False)


def test_log_that_a_write_poisoned_is_the_reason_that_later_writes_raise(
    table: lakelog.Table, directory: Path
) -> None:
    class Interrupted(LocalDisk):
        def open_append(self, path: str, *, create: bool = False) -> LocalFile:
            file = super().open_append(path, create=create)
            if path.endswith(".wal"):
                file.sync = self.interrupted  # type: ignore[method-assign]
            return file

        def interrupted(self) -> None:
            if armed:
                raise KeyboardInterrupt

    armed: list[bool] = []
    ingestor = lakelog.Ingestor(table, str(directory), max_seconds=0.05, disk=Interrupted())
    armed.append(True)
    with pytest.raises(KeyboardInterrupt):
        ingestor.write({"id": 1})
    with ingestor._changed:
        assert ingestor._changed.wait_for(lambda: ingestor._error is not None, 30)
    with pytest.raises(LogPoisonedError):
        ingestor.write({"id": 2})
    with pytest.raises(LogPoisonedError):
        ingestor.close()


def test_rows_are_committed_when_max_rows_are_pending(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory, max_rows=3, max_seconds=float("inf")) as ingestor:
        for number in range(7):
            ingestor.write({"id": number})
        with ingestor._changed:
            assert ingestor._changed.wait_for(lambda: ingestor._rows_committed >= 3, 30)
    assert ids(table.scan()) == list(range(7))
    rows = table.history()["operationMetrics"].to_list()
    written = [int(dict(each)["numOutputRows"]) for each in rows if dict(each or {})]
    assert max(written) <= 3


def test_rows_that_were_not_committed_are_committed_by_the_next_ingestor(
    table: lakelog.Table, directory: Path
) -> None:
    first = quiet(table, directory)
    first.write({"id": 1})
    first.write(pl.DataFrame({"id": [2, 3]}))
    first.close(flush=False)
    assert ids(table.scan()) == []
    with quiet(table, directory) as second:
        assert ids(second.read_your_writes()) == [1, 2, 3]
        assert second.app_id == first.app_id
        assert second.write({"id": 4}) == 3
    assert ids(table.scan()) == [1, 2, 3, 4]


def test_readers_see_rows_before_and_after_their_commit_once(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1})
        assert ids(ingestor.read_your_writes()) == [1]
        ingestor.flush()
        ingestor.write({"id": 2})
        rows = ingestor.read_your_writes()
        assert rows.collect_schema() == table.scan().collect_schema()
        assert ids(rows) == [1, 2]
        assert ids(rows.filter(pl.col("id") == 2)) == [2]


def test_readers_see_every_row_once_during_commits(table: lakelog.Table, directory: Path) -> None:
    with quiet(table, directory, max_rows=5, max_seconds=0.0) as ingestor:
        written: list[int] = []

        def write() -> None:
            for number in range(150):
                ingestor.write({"id": number})
                written.append(number)

        thread = threading.Thread(target=write)
        thread.start()
        while thread.is_alive():
            before = list(written)
            seen = ids(ingestor.read_your_writes())
            assert len(seen) == len(set(seen))
            assert set(before) <= set(seen)
        thread.join()
    assert ids(table.scan()) == list(range(150))


@pytest.mark.parametrize("key", [None, "id"])
@pytest.mark.parametrize("change", ["commit", "column"])
def test_readers_see_every_row_once_whatever_happens_while_they_read_the_version(
    table: lakelog.Table,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
    change: str,
) -> None:
    with quiet(table, directory, key=key) as ingestor:
        ingestor.write({"id": 1})
        snapshot = lakelog.Table.snapshot

        def slow(self: lakelog.Table) -> lakelog.Snapshot:
            monkeypatch.undo()
            if change == "commit":
                ingestor.flush()
                return snapshot(self)
            found = snapshot(self)
            lakelog.open(table.path, upkeep=False).alter.add_columns({"later": pl.Int64})
            ingestor.write({"id": 2, "later": 3})
            return found

        monkeypatch.setattr(lakelog.Table, "snapshot", slow)
        assert ids(ingestor.read_your_writes()) == [1]
        assert ids(ingestor.read_your_writes()) == ([1] if change == "commit" else [1, 2])


def test_added_column_is_written_by_an_open_ingestor(table: lakelog.Table, directory: Path) -> None:
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1})
        table.alter.add_columns({"size": pl.Int64})
        ingestor.write({"id": 2, "size": 20})
        assert ids(ingestor.read_your_writes()) == [1, 2]
        ingestor.close(flush=False)
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 3})
    assert table.to_polars().sort("id")["size"].to_list() == [None, 20, None]


def test_dropped_column_raises_until_it_is_restored(tmp_path: Path, directory: Path) -> None:
    table = mapped(tmp_path)
    ingestor = quiet(table, directory)
    ingestor.write({"id": 1, "name": "a"})
    version = table.version()
    table.alter.drop_column("name")
    with pytest.raises(StreamMismatchError, match="'name'") as caught:
        ingestor.flush()
    assert caught.value.column == "name"
    with pytest.raises(StreamMismatchError, match="'name'"):
        ingestor.write({"id": 2})
    with pytest.raises(StreamMismatchError, match="'name'"):
        ingestor.read_your_writes()
    table.restore(version)
    ingestor.flush()
    ingestor.write({"id": 2})
    ingestor.close()
    assert ids(table.scan()) == [1, 2]


def test_rows_are_committed_after_column_mapping_was_enabled(
    tmp_path: Path, directory: Path
) -> None:
    schema = {"id": pl.Int64, "at": pl.Struct({"x": pl.Int64}), "name": pl.String}
    table = lakelog.create(tmp_path / "plain", schema, upkeep=False)
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1, "at": {"x": 1}, "name": "a"})
        table.alter.rename_column("name", "title", enable=True)
        with pytest.raises(StreamMismatchError, match="'name'"):
            ingestor.flush()
        table.alter.rename_column("title", "name")
        assert ids(ingestor.read_your_writes()) == [1]
        ingestor.flush()
        assert table.to_polars().rows() == [(1, {"x": 1}, "a")]


def test_column_created_again_under_a_new_column_mapping_is_another_column(
    tmp_path: Path, directory: Path
) -> None:
    table = lakelog.create(tmp_path / "plain", SCHEMA, upkeep=False)
    ingestor = quiet(table, directory)
    ingestor.write({"id": 1, "name": "a"})
    version = table.version()
    table.alter.drop_column("name", enable=True)
    table.alter.add_columns({"name": pl.String})
    with pytest.raises(StreamMismatchError, match="'name'"):
        ingestor.flush()
    ingestor.close(flush=False)
    table.restore(version)
    ingestor = quiet(table, directory)
    table.alter.rename_column("name", "title", enable=True)
    table.alter.add_columns({"name": pl.String})
    for rows in ({"id": 2, "name": "b"}, b'{"id": 2}', {"id": 2}):
        with pytest.raises(StreamMismatchError, match="'name'"):
            ingestor.read_your_writes()
        with pytest.raises(StreamMismatchError, match="'name'"):
            ingestor.write(rows)
    assert ingestor.status().durable_seq == 1
    table.alter.drop_column("name")
    table.alter.rename_column("title", "name")
    ingestor.write({"id": 2, "name": "b"})
    assert ids(ingestor.read_your_writes()) == [1, 2]
    ingestor.close()
    assert sorted(table.to_polars().select("id", "name").rows()) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("key", [None, "id"])
def test_rows_that_the_table_does_not_accept_are_read_from_the_directory(
    tmp_path: Path, directory: Path, key: str | None
) -> None:
    table = mapped(tmp_path)
    with quiet(table, directory, key=key) as ingestor:
        ingestor.write({"id": 1, "name": "a"})
        ingestor.flush()
        assert lakelog.Ingestor.pending_rows(directory).is_empty()
        ingestor.write(pl.DataFrame({"id": [2, 3], "name": ["b", "c"]}))
        ingestor.write({"id": 4})
        if key:
            ingestor.delete({"id": 1})
        ingestor.close(flush=False)
    table.alter.drop_column("name")
    with pytest.raises(StreamMismatchError, match="'name'") as caught:
        quiet(table, directory, key=key)
    assert "pending_rows" in str(caught.value)
    rows = lakelog.Ingestor.pending_rows(directory)
    expected = [(2, "b", None), (3, "c", None), (4, None, None)]
    if key is None:
        assert rows.rows() == expected
    else:
        deleted = [(*row, False) for row in expected] + [(1, None, None, True)]
        assert (rows.columns[-1], rows.rows()) == ("_lakelog_deleted", deleted)
    with pytest.raises(NotFoundError):
        lakelog.Ingestor.pending_rows(tmp_path / "missing")
    lakelog.KeyedStore(tmp_path / "keyed").close()
    with pytest.raises(NotFoundError, match="ingest directory"):
        lakelog.Ingestor.pending_rows(tmp_path / "keyed")


@pytest.mark.parametrize("on_bad_row", ["raise", "divert"])
def test_row_that_fits_the_changed_table_is_accepted_at_once(
    tmp_path: Path, directory: Path, on_bad_row: str
) -> None:
    widening = {"delta.enableTypeWidening": "true"}
    rule = {"delta.constraints.positive": "id > 0"}
    table = lakelog.create(
        tmp_path / "table", {"id": pl.Int32}, configuration={**widening, **rule}, upkeep=False
    )
    other = lakelog.open(tmp_path / "table", upkeep=False)
    with quiet(table, directory, on_bad_row=on_bad_row) as ingestor:
        ingestor.write({"id": 1})
        other.alter.add_columns({"size": pl.Int64})
        ingestor.write({"id": 2, "size": 20})
        other.alter.drop_constraint("positive")
        ingestor.write([{"id": 3}, {"id": -1}])
        other.alter.widen_column("id", "long")
        ingestor.write({"id": 1 << 40})
        assert ingestor.status().rows_diverted == 0
    assert ids(table.scan()) == [-1, 1, 2, 3, 1 << 40]


WIDER: list[tuple[Any, str, Any]] = [
    (pl.Decimal(10, 2), "decimal(14,4)", decimal.Decimal("1.25")),
    (pl.Int32, "decimal(12,1)", decimal.Decimal(5)),
    (pl.Int64, "decimal(20,0)", decimal.Decimal(5)),
    (pl.Int8, "double", 5.0),
    (pl.Float32, "double", 1.5),
    (pl.Date, "timestamp_ntz", dt.date(2026, 1, 5)),
]


@pytest.mark.parametrize("key", [None, "id"])
@pytest.mark.parametrize(("narrow", "wide", "value"), WIDER)
def test_rows_of_a_narrower_type_are_committed_and_read(
    tmp_path: Path, directory: Path, narrow: Any, wide: str, value: Any, key: str | None
) -> None:
    schema = {"id": pl.Int64, "x": narrow, "s": pl.Struct({"x": narrow})}
    table = lakelog.create(tmp_path / "narrow", schema, upkeep=False)
    (given,) = pl.Series([value]).cast(narrow)
    with quiet(table, directory, key=key) as ingestor:
        ingestor.write({"id": 1, "x": given})
        rows = {"id": [2], "x": [given], "s": [{"x": given}]}
        ingestor.write(pl.DataFrame(rows, schema=schema))
        for name in ("x", "s.x"):
            table.alter.widen_column(name, wide, enable=True)
        if isinstance(value, dt.date):
            value = dt.datetime.combine(value, dt.time())
        expected = [(1, value, None), (2, value, {"x": value})]
        assert ingestor.read_your_writes().sort("id").collect().rows() == expected
        ingestor.write({"id": 3, "x": value, "s": {"x": value}})
    assert table.to_polars().sort("id").rows() == [*expected, (3, value, {"x": value})]


def drop_a_column_while_a_write_waits(table: lakelog.Table, ingestor: lakelog.Ingestor) -> None:
    """Another thread finds the change while the next write waits for space."""
    reserve = ingestor._reserve

    def follow_first(count: int, size: int) -> None:
        ingestor._reserve = reserve  # type: ignore[method-assign]
        table.alter.drop_column("name")
        ingestor._follow()
        reserve(count, size)

    ingestor._reserve = follow_first  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("given", ["row", "rows", "frame", "joined"])
def test_row_is_checked_again_if_its_column_is_dropped_before_it_is_durable(
    tmp_path: Path, directory: Path, given: str
) -> None:
    table = lakelog.create(
        tmp_path / "t",
        {"id": pl.Int64, "name": pl.String},
        configuration={"delta.columnMapping.mode": "name"},
        upkeep=False,
    )
    one = {"id": 2, "name": "b"}
    arrow = pa.table({"id": [2], "name": ["b"]})
    rows = {"row": one, "rows": [one], "frame": pl.DataFrame([one]), "joined": arrow}[given]
    with quiet(table, directory) as ingestor:
        ingestor.write(arrow.slice(0, 1))
        ingestor.flush()
        drop_a_column_while_a_write_waits(table, ingestor)
        with pytest.raises(InvalidInputError, match="no column 'name'"):
            ingestor.write(rows)
        ingestor.write({"id": 3})
        assert ids(ingestor.read_your_writes()) == [2, 3]
        assert ingestor.status().backlog_bytes < 100
    assert ids(table.scan()) == [2, 3]


@pytest.mark.parametrize("position", [{}, {"source": "a", "offset": 4}])
def test_bad_rows_are_diverted_once_if_a_column_is_dropped_before_the_others_are_durable(
    tmp_path: Path, directory: Path, position: Any
) -> None:
    table = mapped(tmp_path)
    rows = [{"id": 1}, {"id": 2, "name": 5}, {"id": "x"}, {"id": 3, "name": "c"}]
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        drop_a_column_while_a_write_waits(table, ingestor)
        ingestor.write(rows, **position)
        assert ingestor.rejected()["row"].to_list() == [
            '{"id":2,"name":5}',
            '{"id":"x"}',
            '{"id":3,"name":"c"}',
        ]
        assert ingestor.status().rows_diverted == 3
    assert ids(table.scan()) == [1]


def test_bad_rows_are_diverted_once_if_a_column_is_added_between_batches_of_a_position(
    table: lakelog.Table, directory: Path
) -> None:
    other = lakelog.open(table.path, upkeep=False)
    batches = [pa.record_batch({"id": ids_}) for ids_ in ([0.5, 1.0], [2.0, 2.5], [3.0])]
    stream = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        follow, calls = ingestor._follow, iter(range(10))

        def add_second() -> None:
            """Another process adds a column between the checks of two batches."""
            if next(calls) == 1:
                other.alter.add_columns({"size": pl.Int64})
            follow()

        ingestor._follow = add_second  # type: ignore[method-assign]
        ingestor.write(stream, source="a", offset=5)
        assert ingestor.rejected()["row"].to_list() == ['{"id":0.5}', '{"id":2.5}']
        assert ingestor.status().rows_diverted == 2
    assert ids(table.scan()) == [1, 2, 3]


def test_no_row_is_diverted_if_there_is_no_space_for_the_others(
    table: lakelog.Table, directory: Path
) -> None:
    options: Any = {"max_backlog_bytes": 1, "write_timeout": 0, "on_bad_row": "divert"}
    failing = FailingTable(table)
    with quiet(failing.table, directory, **options) as ingestor:
        failing.fails = True
        ingestor.write({"id": 1})
        with pytest.raises(UnavailableError, match="backlog"):
            ingestor.write([{"id": 2}, {"id": "x"}])
        assert ingestor.rejected().height == 0
        failing.fails = False
    assert ids(table.scan()) == [1]


@pytest.mark.parametrize("key", [None, "id"])
def test_record_with_an_unknown_column_is_reported_or_diverted(
    table: lakelog.Table, directory: Path, key: str | None
) -> None:
    """Earlier versions could write one while a column was dropped."""
    with quiet(table, directory, key=key) as ingestor:
        ingestor.write({"id": 1})
        line = b'{"id":2,"gone":"b"}\n'
        ingestor._log.append("PUT", HEADER.pack(JSON, 1), line)
        for call in (ingestor.read_your_writes, ingestor.flush):
            with pytest.raises(StreamMismatchError, match="cannot be read"):
                call()
        ingestor.close(flush=False)
    with quiet(table, directory, key=key, on_bad_row="divert") as ingestor:
        ingestor.flush()
        assert ingestor.rejected()["row"].to_list() == [line.decode().strip()]
    assert ids(table.scan()) == [1]


def test_older_version_is_not_followed_after_a_later_one(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory) as ingestor:
        older = table.snapshot()
        table.alter.add_columns({"size": pl.Int64})
        follow = ingestor._follow

        def followed_by_another_thread() -> None:
            follow()
            ingestor._committer.follow(older)
            follow()

        ingestor._follow = followed_by_another_thread  # type: ignore[method-assign]
        ingestor.write({"id": 1, "size": 5})
        ingestor._committer.follow(older)
        assert ingestor._committer.state.schema.names[-1] == "size"
    assert table.to_polars()["size"].to_list() == [5]


def test_writer_that_waits_for_space_gets_the_reason_why_there_is_none(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory, max_backlog_bytes=100, write_timeout=None) as ingestor:
        ingestor.write({"id": -1, "name": "x" * 50})
        table.alter.add_constraint("positive", "id > 0")
        found: list[LakelogError] = []

        def write() -> None:
            try:
                ingestor.write({"id": 1, "name": "y" * 50})
            except LakelogError as error:
                found.append(error)

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        with pytest.raises(StreamMismatchError, match="positive"):
            ingestor.flush()
        thread.join(30)
        assert [type(each) for each in found] == [StreamMismatchError]
        ingestor.close(flush=False)


def test_offsets_do_not_wait_for_a_store_that_a_reader_waits_for(
    table: lakelog.Table, directory: Path
) -> None:
    waits, ends = threading.Event(), threading.Event()
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1}, source="s", offset=7)
        snapshot = table.snapshot

        def slow(**options: Any) -> Any:
            waits.set()
            assert ends.wait(60)
            return snapshot(**options)

        table.snapshot = slow  # type: ignore[method-assign, assignment]
        reader = threading.Thread(target=ingestor.read_your_writes)
        reader.start()
        assert waits.wait(60)

        def ask() -> None:
            ingestor.offsets()
            ends.set()

        others = threading.Thread(target=ask)
        others.start()
        others.join(30)
        in_time = ends.is_set()
        ends.set()
        reader.join()
        assert in_time


def test_background_thread_survives_any_failure_of_compaction(
    table: lakelog.Table, directory: Path
) -> None:
    failed = threading.Event()

    def compact() -> None:
        failed.set()
        raise ValueError("of a library")

    table.compact = compact  # type: ignore[method-assign, assignment]
    with quiet(table, directory, compact_after_seconds=0.0, max_rows=3) as ingestor:
        for number in range(2):
            ingestor.write({"id": number})
            ingestor.flush()
        assert failed.wait(30)
        ingestor.write([{"id": 2}, {"id": 3}, {"id": 4}])
        with ingestor._changed:
            assert ingestor._changed.wait_for(lambda: ingestor._rows_committed == 5, 20)


def test_rows_are_committed_after_an_interrupt_in_a_query_of_the_background_thread(
    table: lakelog.Table, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polars raises KeyboardInterrupt in every thread that collects a query."""
    collect, interrupted = pl.LazyFrame.collect, threading.Event()

    def interrupted_once(self: pl.LazyFrame, *args: Any, **options: Any) -> Any:
        in_background = threading.current_thread().name == "lakelog-ingest"
        if in_background and not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        return collect(self, *args, **options)

    monkeypatch.setattr(pl.LazyFrame, "collect", interrupted_once)
    with lakelog.Ingestor(table, directory, max_seconds=0.01) as ingestor:
        ingestor.write({"id": 1})
        wait_until_committed(ingestor)
        assert interrupted.is_set()
        assert ids(table.scan()) == [1]


def test_rows_are_committed_during_a_compaction(table: lakelog.Table, directory: Path) -> None:
    begins, ends = threading.Event(), threading.Event()

    def compact() -> None:
        begins.set()
        ends.wait(60)
        raise ValueError("of a library")

    table.compact = compact  # type: ignore[method-assign, assignment]
    ingestor = quiet(table, directory, compact_after_seconds=0.0, max_rows=3)
    for number in range(2):
        ingestor.write({"id": number})
        ingestor.flush()
    assert begins.wait(30)
    ingestor.write([{"id": 2}, {"id": 3}, {"id": 4}])
    with ingestor._changed:
        assert ingestor._changed.wait_for(lambda: ingestor._rows_committed == 5, 30)
    closing = threading.Thread(target=ingestor.close)
    closing.start()
    until_s = time.monotonic() + 30
    while True:  # the directory is free before the compaction ends
        try:
            quiet(table, directory).close()
            break
        except lakelog.LogLockedError:
            assert time.monotonic() < until_s
            time.sleep(0.01)
    assert closing.is_alive()
    ends.set()
    closing.join()


def test_schema_change_while_the_log_is_empty_is_adopted(tmp_path: Path, directory: Path) -> None:
    table = mapped(tmp_path)
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1, "name": "a"})
        ingestor.flush()
        table.alter.drop_column("name")
        assert ids(ingestor.read_your_writes()) == [1]
        table.alter.add_columns({"name": pl.Int64})
        ingestor.write({"id": 2, "name": 5})
    assert table.to_polars().sort("id")["name"].to_list() == [None, 5]


def test_rows_are_committed_next_to_other_writers(table: lakelog.Table, directory: Path) -> None:
    with quiet(table, directory) as ingestor:
        for number in range(1, 4):
            ingestor.write({"id": number})
            ingestor.flush()
        table.append(pl.DataFrame({"id": [10]}))
        ingestor.write({"id": 4})
        table.delete("id = 2")
        table.compact()
        table.checkpoint()
        ingestor.flush()
        before = table.version()
        ingestor.write({"id": 5})
        table.restore(1)
        ingestor.flush()
        assert before < table.version()
    # The restore removed rows that were committed: they are not written again.
    assert ids(table.scan()) == [1, 5]


def test_writes_continue_while_the_table_is_unavailable(
    table: lakelog.Table, directory: Path
) -> None:
    failing = FailingTable(table)
    with quiet(failing.table, directory, max_backlog_bytes=500, write_timeout=0.05) as ingestor:
        failing.fails = True
        with pytest.raises(UnavailableError):
            ingestor.flush()
        accepted: list[int] = []

        def write_without_end() -> None:
            for number in range(100):
                ingestor.write({"id": number})
                accepted.append(number)

        with pytest.raises(UnavailableError, match="backlog"):
            write_without_end()
        assert 5 < len(accepted) < 40
        assert ingestor.status().backlog_bytes <= 500
        assert ingestor.status().error is not None
        with pytest.raises(UnavailableError):
            ingestor.read_your_writes()
        failing.fails = False
        ingestor.flush()
        assert ingestor.status().error is None
        accepted.append(ingestor.write({"id": 100}) and 100)
    assert ids(table.scan()) == accepted


def test_writer_waits_for_space_in_the_backlog(table: lakelog.Table, directory: Path) -> None:
    with lakelog.Ingestor(
        table, directory, max_seconds=0.0, max_backlog_bytes=200, sync="none"
    ) as ingestor:
        for number in range(60):
            ingestor.write({"id": number})
            assert ingestor.status().backlog_bytes <= 200
    assert ids(table.scan()) == list(range(60))


def test_ingestor_opens_while_the_table_is_unavailable(
    table: lakelog.Table, directory: Path
) -> None:
    failing = FailingTable(table)
    with quiet(failing.table, directory) as ingestor:
        ingestor.write({"id": 1})
        ingestor.close(flush=False)
    failing.fails = True
    with quiet(failing.table, directory) as ingestor:
        ingestor.write({"id": 2})
        failing.fails = False
    assert ids(table.scan()) == [1, 2]


def test_small_files_are_compacted_when_the_table_is_idle(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory, compact_after_seconds=0.0) as ingestor:
        for number in range(3):
            ingestor.write({"id": number})
            ingestor.flush()
        with ingestor._changed:
            assert ingestor._changed.wait_for(lambda: ingestor._small_commits < 2, 30)
    assert table.snapshot().num_files() < 3
    assert ids(table.scan()) == [0, 1, 2]


def test_commits_and_failures_are_logged(
    table: lakelog.Table, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="lakelog")
    failing = FailingTable(table)
    with quiet(failing.table, directory) as ingestor:
        ingestor.write([{"id": 1}, {"id": 2}])
        failing.fails = True
        with pytest.raises(UnavailableError):
            ingestor.flush()
        failing.fails = False
    lines: dict[str, dict[str, Any]] = {
        record.event: record.fields  # type: ignore[attr-defined]
        for record in caplog.records
        if hasattr(record, "event")
    }
    failed, committed = lines["ingest.failed"], lines["ingest.committed"]
    assert failed["error"] == "unavailable"
    assert failed["backlog_bytes"] > 0
    assert failed["retry_after_seconds"] > 0
    assert {name: committed[name] for name in ("version", "seq", "rows")} == {
        "version": 1,
        "seq": 1,
        "rows": 2,
    }


def test_copied_directory_is_detected(
    table: lakelog.Table, directory: Path, tmp_path: Path
) -> None:
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 1})
        ingestor.flush()
        ingestor.write({"id": 2})
        ingestor.close(flush=False)
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    with quiet(table, directory) as first, quiet(table, copy) as second:
        first.write({"id": 3})
        second.write({"id": 30})  # both commit up to sequence number 3
        first.flush()
        with pytest.raises(ConcurrentTransactionError, match="application id"):
            second.flush()
        with pytest.raises(ConcurrentTransactionError, match="application id"):
            second.write({"id": 31})
        second.close(flush=False)
    with pytest.raises(ConcurrentTransactionError):
        quiet(table, copy)
    assert ids(table.scan()) == [1, 2, 3]


def test_rows_are_accepted_while_the_volume_of_the_table_is_not_mounted(
    table: lakelog.Table, directory: Path, tmp_path: Path
) -> None:
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write({"id": 1})
        (tmp_path / "table").rename(tmp_path / "away")
        (tmp_path / "table").mkdir()
        with pytest.raises(TableNotFoundError):
            ingestor.flush()
        ingestor.write([{"id": 2}, {"id": "x"}])
        ingestor.close(flush=False)
    with quiet(table, directory) as ingestor:
        ingestor.write({"id": 3})
        (tmp_path / "table").rmdir()
        (tmp_path / "away").rename(tmp_path / "table")
        assert ingestor.flush() == 3
    assert ids(table.scan()) == [1, 2, 3]
