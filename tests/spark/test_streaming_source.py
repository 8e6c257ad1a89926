"""The stream reader with Spark's calls, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
)
from pyspark.sql.types import LongType, StringType, StructType

import lakelog
from lakelog import InvalidInputError, StreamMismatchError, VersionNotFoundError
from lakelog.spark.options import parse_options
from lakelog.spark.source import LakelogDataSource
from lakelog.spark.stream_source import StreamReader, stream_reader
from lakelog.spark.types import arrow_schema
from tests.spark.spark_side import SCHEMA, new_table, rows


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """A table with three commits of one row each, after the first."""
    table = new_table(tmp_path / "t")
    for number in range(3):
        table.append(pl.DataFrame(rows(number)))
    return tmp_path / "t"


def reader(where: Path, schema: StructType = SCHEMA, **options: Any) -> StreamReader:
    given = {"path": str(where), **{name: str(value) for name, value in options.items()}}
    return stream_reader(parse_options(given, "stream"), schema, 2)


def batch(made: StreamReader, start: Any, end: Any) -> list[tuple[Any, ...]]:
    """Rows of one batch, read by the tasks' own reader."""
    shares = pickle.loads(cloudpickle.dumps(made.partitions(start, end)))
    task = pickle.loads(cloudpickle.dumps(made))
    batches = [found for share in shares for found in task.read(share)]
    assert all(found.schema.equals(task._arrow) for found in batches)
    return [tuple(row.values()) for found in batches for row in found.to_pylist()]


def ids(made: StreamReader, limit: Any = None) -> list[list[int]]:
    found: list[list[int]] = []
    start = made.initialOffset()
    while True:
        end = made.latestOffset(start, limit or made.getDefaultReadLimit())
        if end == start:
            return found
        found.append(sorted(row[0] for row in batch(made, start, end)))
        start = end


def test_options_set_the_start_of_a_stream_and_the_size_of_batches(where: Path) -> None:
    assert ids(reader(where)) == [[0, 1, 2]]
    assert ids(reader(where, startingVersion=2)) == [[1, 2]]
    assert ids(reader(where, startingVersion=" Latest ")) == []
    assert ids(reader(where, startingTimestamp="2020-01-01")) == [[0, 1, 2]]
    assert ids(reader(where, startingTimestamp="2999-01-01")) == []
    assert ids(reader(where, maxFilesPerTrigger=2)) == [[0, 1], [2]]
    assert ids(reader(where, maxBytesPerTrigger=1)) == [[0], [1], [2]]
    assert ids(reader(where, maxFilesPerTrigger=2, maxBytesPerTrigger=1)) == [[0], [1], [2]]
    assert ids(reader(where, maxFilesPerTrigger=1), ReadAllAvailable()) == [[0, 1, 2]]
    assert reader(where).getDefaultReadLimit() == ReadMaxFiles(1000)
    assert reader(where, maxBytesPerTrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1024)
    with pytest.raises(InvalidInputError, match="startingVersion is malformed"):
        reader(where, startingVersion="first").initialOffset()
    with pytest.raises(VersionNotFoundError):
        reader(where, startingVersion=9).initialOffset()
    with pytest.raises(InvalidInputError, match="wrong type"):
        ids(reader(where), ReadMaxRows(1))


def test_commits_after_the_start_are_left_for_the_next_run(where: Path) -> None:
    made = reader(where)
    made.prepareForTriggerAvailableNow()
    lakelog.open(where).append(pl.DataFrame(rows(3)))
    assert ids(made) == [[0, 1, 2]], "the rows of the version that was the latest"
    late = reader(where, startingVersion="latest")
    late.prepareForTriggerAvailableNow()
    lakelog.open(where).append(pl.DataFrame(rows(4)))
    assert ids(late) == []
    earlier = reader(where, startingVersion=0)
    earlier._last = 3
    assert ids(earlier) == [[0, 1, 2]]
    assert ids(reader(where)) == [[0, 1, 2, 3, 4]]


def test_pickled_reader_contains_only_its_schema(where: Path) -> None:
    made = reader(where, **{"storage.key": "secret"})
    made.initialOffset()
    assert vars(pickle.loads(cloudpickle.dumps(made))) == {"_arrow": arrow_schema(SCHEMA)}


def test_user_schema_is_applied_and_checked(where: Path) -> None:
    day = StructType().add("day", StringType())
    made = reader(where, day)
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    assert sorted(batch(made, start, end)) == [("d0",), ("d0",), ("d1",)]
    assert batch(made, end, end) == []
    for schema in (StructType().add("id", StringType()), StructType().add("none", LongType())):
        with pytest.raises(InvalidInputError, match="column"):
            reader(where, schema).partitions(start, end)


@pytest.mark.parametrize("feed", ["true", "false"])
def test_stream_loaded_before_a_column_was_added_is_refused(where: Path, feed: str) -> None:
    def loaded(**options: str) -> tuple[LakelogDataSource, StructType]:
        source = LakelogDataSource({"path": str(where), "readChangeFeed": feed, **options})
        return source, source.schema()

    def partitions(source: LakelogDataSource, schema: StructType) -> Any:
        made: Any = pickle.loads(cloudpickle.dumps(source)).streamReader(schema)
        start = made.initialOffset()
        return made.partitions(start, made.latestOffset(start, ReadAllAvailable()))

    old, some = loaded(), loaded(columns="id,day")
    lakelog.open(where).alter.add_columns({"more": pl.Int64})
    with pytest.raises(StreamMismatchError, match="loaded without: more") as caught:
        partitions(*old)
    assert "load the stream again" in (caught.value.hint or "")
    unasked = LakelogDataSource(old[0].options)
    for source, schema in (some, loaded(), (unasked, SCHEMA)):
        assert partitions(source, schema)


def test_error_of_changed_rows_names_the_option(where: Path) -> None:
    made = reader(where, startingVersion=4)
    start = made.initialOffset()
    lakelog.open(where).overwrite(pl.DataFrame(rows(7)))
    with pytest.raises(StreamMismatchError, match="skipChangeCommits"):
        made.latestOffset(start, ReadAllAvailable())
    assert ids(reader(where, startingVersion=4, skipChangeCommits="true")) == [[]]


def test_batch_option_is_refused_at_the_first_call_of_the_stream(where: Path) -> None:
    # Spark hides earlier exceptions behind its own error.
    made: Any = LakelogDataSource({"path": str(where), "version": "1"}).streamReader(SCHEMA)
    start = reader(where).initialOffset()
    for ask in (
        made.initialOffset,
        made.getDefaultReadLimit,
        made.prepareForTriggerAvailableNow,
        lambda: made.latestOffset(start, ReadAllAvailable()),
        lambda: made.partitions(start, start),
    ):
        with pytest.raises(InvalidInputError, match="option version does not apply here"):
            ask()
