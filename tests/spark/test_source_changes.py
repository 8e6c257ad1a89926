"""`format("lakelog")` reads the change feed of a table."""

from __future__ import annotations

import datetime as dt
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import InvalidInputError
from lakelog.spark.options import parse_options

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


def test_changes_are_those_of_the_table(spark: Any, table: lakelog.Table) -> None:
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
    with pytest.raises(InvalidInputError, match="only a batch query"):
        parsed("stream", readChangeFeed="true", startingVersion="1")
