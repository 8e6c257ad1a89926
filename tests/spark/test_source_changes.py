"""`format("lakelog")` reads the change feed of a table."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from pyspark import cloudpickle

import lakelog
from lakelog.errors import InvalidInputError, StreamMismatchError
from lakelog.log import context
from lakelog.spark.options import parse_options
from lakelog.spark.reading import reader_of, schema_of
from lakelog.spark.stream_planner import Offset
from lakelog.spark.stream_source import stream_reader

COLUMNS = ["id", "x", "_change_type", "_commit_version", "_commit_timestamp"]


@pytest.fixture(scope="module", params=["true", "false"], ids=["feed", "no feed"])
def table(request: Any, tmp_path_factory: pytest.TempPathFactory) -> lakelog.Table:
    path = tmp_path_factory.mktemp("changes") / "t"
    rows = pl.DataFrame({"id": [1, 2, 3], "x": [1.5, None, 3.5]})
    lakelog.write(path, rows, configuration={"delta.enableChangeDataFeed": request.param})
    made = lakelog.open(path, upkeep=False)
    made.update({"x": 0.0}, "id = 2")
    made.delete("id = 3")
    made.append(rows.with_columns(pl.col("id") + 10))
    made.compact()
    return made


def load(spark: Any, made: lakelog.Table, **options: Any) -> list[tuple[Any, ...]]:
    frame = spark.read.format("lakelog").options(**options).load(str(made.path))
    assert frame.columns == COLUMNS
    return sorted(map(tuple, frame.collect()), key=repr)


def ours(
    made: lakelog.Table, start: Any, end: Any = None, where: Any = None
) -> list[tuple[Any, ...]]:
    feed = made.changes(start, end, where).select(COLUMNS).collect()
    naive = feed.with_columns(pl.col("_commit_timestamp").dt.replace_time_zone(None))
    return sorted(naive.rows(), key=repr)


def test_changes_equal_those_of_the_table(spark: Any, table: lakelog.Table) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    every = load(spark, table, readChangeFeed="true", startingVersion=0)
    assert [row[:4] for row in every] == [row[:4] for row in ours(table, 0)]
    assert len({row[4] for row in every}) >= 1
    some = load(spark, table, readChangeFeed="TRUE", startingVersion="1", endingVersion="2")
    assert [row[:4] for row in some] == [row[:4] for row in ours(table, 1, 2)]
    own = load(spark, table, table="changes", startVersion="3", where="id > 11", parallelism="1")
    assert [row[:4] for row in own] == [row[:4] for row in ours(table, 3, where="id > 11")]
    at = table.history().filter(pl.col("version") == 2)["timestamp"][0]
    later = (at + dt.timedelta(milliseconds=1)).isoformat()
    timed = load(spark, table, readChangeFeed="true", startingVersion=0, endingTimestamp=later)
    assert [row[:4] for row in timed] == [row[:4] for row in ours(table, 0, later)]


def test_options_of_the_change_feed_are_checked() -> None:
    def parsed(use: Any = "read", **options: str) -> Any:
        return parse_options({"path": "/t", **options}, use)

    found = parsed(readChangeFeed="true", startingVersion="3", endingTimestamp="2026-01-01")
    assert found.table == "changes"
    assert found.get("startVersion") == 3
    assert parsed(readChangeFeed="false").table == "rows"
    wrong = [
        ({"readChangeFeed": "yes"}, "readChangeFeed is malformed"),
        ({"readChangeFeed": "true"}, "startVersion is missing"),
        ({"readChangeFeed": "true", "startingVersion": "x"}, "startVersion is malformed"),
        ({"readChangeFeed": "true", "startingVersion": "1", "version": "2"}, "does not apply"),
        ({"table": "changes", "startVersion": "1", "startTimestamp": "2026-01-01"}, "not both"),
        ({"startingVersion": "1"}, "startingVersion does not apply"),
    ]
    for options, message in wrong:
        with pytest.raises(InvalidInputError, match=message):
            parsed(**options)
    schema = parsed(None, readChangeFeed="true", startingVersion="latest")
    assert schema.table == "changes"  # of a batch query and of a stream
    stream = parsed("stream", readChangeFeed="true", startingVersion="latest")
    assert stream.get("readChangeFeed") is True
    with pytest.raises(InvalidInputError, match="exclude each other"):
        parsed("stream", readChangeFeed="true", skipChangeCommits="true")
    with pytest.raises(InvalidInputError, match="readChangeFeed does not apply here"):
        parsed("sink", readChangeFeed="true")


def test_times_beyond_the_year_9999_are_taken(tmp_path: Path) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"id": [1]}))

    def rows(**given: str) -> int:
        options = parse_options({"path": str(tmp_path), "table": "changes", **given}, "read")
        reader = reader_of(options, schema_of(options)[0], None, 1)
        return sum(each.num_rows for part in reader.partitions() for each in reader.read(part))

    late = "9" * 18
    assert rows(startVersion="0", endTimestamp=late) == rows(startTimestamp=f"-{late}") == 1
    with pytest.raises(InvalidInputError, match="no commit was made"):
        rows(startTimestamp=late)


def test_changes_between_times_without_a_commit_are_empty(tmp_path: Path) -> None:
    made = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    made.append(pl.DataFrame({"id": [1]}))
    for version in range(2):
        commit = tmp_path / "t" / "_delta_log" / f"{version:020}.json"
        os.utime(commit, (1_700_000_000 + 60 * version,) * 2)
    given = {"startTimestamp": "1700000020000", "endTimestamp": "1700000040000"}
    options = parse_options({"path": str(tmp_path / "t"), "table": "changes", **given}, "read")
    assert list(reader_of(options, schema_of(options)[0], None, 1).partitions()) == []
    assert made.changes("2023-11-14T22:13:40Z", "2023-11-14T22:14:00Z").collect().is_empty()


@pytest.mark.parametrize("name", ["^x$", "^i.*$", "*"])
def test_changes_of_a_column_named_like_a_pattern_are_read(tmp_path: Path, name: str) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"id": [1, 2], name: [3, 4]}))
    for names in ([name], ["id", name]):
        given = {"table": "changes", "startVersion": "0", "columns": json.dumps(names)}
        options = parse_options({"path": str(tmp_path), **given}, "read")
        reader = reader_of(options, schema_of(options)[0], None, 1)
        batches = [each for part in reader.partitions() for each in reader.read(part)]
        assert [row for each in batches for row in each.to_pylist()] == (
            pl.DataFrame({"id": [1, 2], name: [3, 4]})[names].to_dicts()
        )


def test_condition_with_a_clock_is_of_the_moment_when_the_changes_were_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = dt.datetime(2026, 1, 5, tzinfo=dt.UTC)
    clock = [now]
    time = SimpleNamespace(time_ns=lambda: int(clock[0].timestamp()) * 1_000_000_000)
    monkeypatch.setattr(context, "time", time)
    late = now + dt.timedelta(minutes=5)
    lakelog.write(tmp_path, pl.DataFrame({"at": [now, late]}))
    given = {"table": "changes", "startVersion": "0", "where": "at > now()", "columns": "at"}
    options = parse_options({"path": str(tmp_path), **given}, "read")
    reader = reader_of(options, schema_of(options)[0], None, 1)
    [share] = reader.partitions()
    clock[0] += dt.timedelta(minutes=10)
    copy = pickle.loads(cloudpickle.dumps(reader))
    assert [row["at"] for batch in copy.read(share) for row in batch.to_pylist()] == [late]


def test_change_stream_equals_the_changes_of_the_table(
    spark: Any, table: lakelog.Table, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    reader = spark.readStream.format("lakelog").option("readChangeFeed", "true")
    stream = reader.option("startingVersion", "1").option("maxFilesPerTrigger", "1")
    frame = stream.load(str(table.path))
    assert frame.columns == COLUMNS
    batches: list[list[tuple[Any, ...]]] = []

    def run() -> None:
        query = (
            frame.writeStream.foreachBatch(lambda rows, _: batches.append(rows.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    run()
    found = sorted((tuple(row) for batch in batches for row in batch), key=repr)
    assert [row[:4] for row in found] == [row[:4] for row in ours(table, 1)]
    assert [row[4] for row in found] == [row[4] for row in ours(table, 1)]
    assert len([batch for batch in batches if batch]) == 3  # a batch has whole commits
    run()  # nothing is read twice
    assert sum(map(len, batches)) == len(found)


class Streamed:
    """A stream of changes with Spark's calls, without Spark."""

    def __init__(self, made: lakelog.Table, **options: Any) -> None:
        given = {"path": str(made.path), "readChangeFeed": "true", **options}
        schema = schema_of(parse_options(given))[0]
        self.reader = stream_reader(parse_options(given, "stream"), schema, 2)
        self.start = self.reader.initialOffset()

    def batch(self) -> list[tuple[Any, ...]]:
        """The rows of the next batch, without the time of their commits."""
        limit = self.reader.getDefaultReadLimit()
        begin, self.start = self.start, self.reader.latestOffset(self.start, limit)
        shares = pickle.loads(cloudpickle.dumps(self.reader.partitions(begin, self.start)))
        task = pickle.loads(cloudpickle.dumps(self.reader))
        found = [batch for share in shares for batch in task.read(share)]
        rows = [tuple(row.values()) for each in found for row in each.to_pylist()]
        self.times = {row[-1] for row in rows}
        return sorted((row[:-1] for row in rows), key=repr)


def test_change_stream_follows_every_commit_from_its_start(tmp_path: Path) -> None:
    made = lakelog.create(tmp_path / "t", {"id": pl.Int64, "x": pl.Int64}, upkeep=False)
    made.append(pl.DataFrame({"id": [1, 2], "x": [1, 2]}))
    late = Streamed(made, startingVersion="latest")
    every = Streamed(made, startingVersion="0")
    assert late.batch() == []
    assert every.batch() == [(1, 1, "insert", 1), (2, 2, "insert", 1)]
    made.delete("id = 1")
    made.overwrite(pl.DataFrame({"id": [3], "x": [3]}))
    removed = [(1, 1, "delete", 2), (2, 2, "delete", 3), (2, 2, "delete", 2), (2, 2, "insert", 2)]
    assert set(every.batch()) - set(removed) == {(3, 3, "insert", 3)}
    assert late.batch() == sorted(
        (row[:-1] for row in made.changes(2).select("id", "x", *COLUMNS[2:]).collect().rows()),
        key=repr,
    )
    # A first batch that Spark repeats has the rows of the first attempt.
    again = Streamed(made, startingVersion="latest")
    end = again.reader.latestOffset(again.start, again.reader.getDefaultReadLimit())
    made.append(pl.DataFrame({"id": [4], "x": [4]}))
    repeated = Streamed(made, startingVersion="latest")
    assert repeated.reader.partitions(repeated.start, end) == []
    # An added column ends the stream, after everything before it was read.
    made.alter.add_columns({"more": pl.String})
    assert every.batch() == [(4, 4, "insert", 4)]
    with pytest.raises(StreamMismatchError, match="more"):
        every.batch()
    assert Streamed(made, startingVersion="4").batch() == [(4, 4, None, "insert", 4)]
    # The checkpoint of a stream of rows is not that of a stream of changes.
    rows = stream_reader(
        parse_options({"path": str(made.path)}, "stream"),
        schema_of(parse_options({"path": str(made.path)}))[0],
        2,
    )
    with pytest.raises(StreamMismatchError, match="another kind of stream"):
        rows.latestOffset(every.start, rows.getDefaultReadLimit())
    with pytest.raises(StreamMismatchError, match="another kind of stream"):
        every.reader.latestOffset(rows.initialOffset(), every.reader.getDefaultReadLimit())


@pytest.mark.parametrize(
    ("start", "first"),
    [("2026-01-01T00:00:02", 2), ("2026-01-01T00:00:02.000001", 3), ("2026-01-01T00:00:02.999", 3)],
)
def test_a_start_time_is_the_first_version_at_or_after_it_in_a_batch_and_in_a_stream(
    tmp_path: Path, start: str, first: int
) -> None:
    made = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    for number in range(1, 4):
        made.append(pl.DataFrame({"id": [number]}))
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp()
    for version in range(4):
        commit = tmp_path / "t" / "_delta_log" / f"{version:020}.json"
        os.utime(commit, (begin + version, begin + version))
    given = {"path": str(tmp_path / "t"), "readChangeFeed": "true", "startingTimestamp": start}
    options = parse_options(given, "read")
    batch = reader_of(options, schema_of(options)[0], None, 1)
    rows = [r for part in batch.partitions() for each in batch.read(part) for r in each.to_pylist()]
    versions = sorted(row["_commit_version"] for row in rows)
    assert versions == list(range(first, 4))
    assert [row[-1] for row in Streamed(made, startingTimestamp=start).batch()] == versions


def test_change_stream_without_a_start_begins_with_the_rows_as_inserts(tmp_path: Path) -> None:
    made = lakelog.create(tmp_path / "t", {"id": pl.Int64, "day": pl.String}, ["day"], upkeep=False)
    for number in range(3):
        made.append(pl.DataFrame({"id": [number], "day": ["a"]}))
    made.delete("id = 1")
    limited = {"maxFilesPerTrigger": "1"}
    stream = Streamed(made, **limited)
    narrow = Streamed(made, columns="_change_type")
    made.delete("id = 2")
    first = stream.batch()
    assert stream.times == {made.history().filter(pl.col("version") == 4)["timestamp"][0]}
    assert stream.start["isChangeFeed"] is True
    rest = stream.batch()
    assert sorted(first + rest) == [(0, "a", "insert", 4), (2, "a", "insert", 4)]
    assert stream.batch() == [(2, "a", "delete", 5)]
    assert stream.batch() == []
    assert len(narrow.batch()) == 2
    # Spark repeats the first batch, and asks for the first offset again.
    again = Streamed(made, **limited)
    end = Offset.of(stream.reader.initialOffset()).past(1).as_json()
    assert len(stream.reader.partitions(again.start, end)) == 1
    lakelog.create(tmp_path / "empty", {"id": pl.Int64}, upkeep=False)
    assert Streamed(lakelog.open(tmp_path / "empty")).batch() == []
