"""Rows that lakelog writes, compared with the same rows written by Delta Lake on Spark."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pytest

import lakelog

pytestmark = pytest.mark.reference

FEED = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
MOMENT = dt.datetime(2026, 3, 29, 1, 30, 0, 123000, tzinfo=dt.UTC)
TEXTS = ["a" * 40, "é" * 40, "\U0001f600" * 40, "plain", "", "a" * 31 + "\U0001f600" * 9]
PARTITIONS = ["a b", "50%/x=1", "ü'\"{}[]^", None, "#?:\\*", "plain"]


def rows(count: int = 6) -> pl.DataFrame:
    """Rows of every kind of column."""
    numbers = range(count)
    return pl.DataFrame(
        {
            "id": list(numbers),
            "p": PARTITIONS,
            "d": pl.Series([1, -1, None, 20_000, 0, 5]).cast(pl.Date),
            "i": pl.Series([None, 5, -5, 7, None, 1], dtype=pl.Int32),
            "b": pl.Series([1, 5, -5, 7, None, 1], dtype=pl.Int8),
            "x": [1.5, float("nan"), None, -2.25, float("inf"), 1e300],
            "f": pl.Series([0.1, 1e20, None, -3.5, 2.0, 1e-7], dtype=pl.Float32),
            "t": TEXTS,
            "c": pl.Series([Decimal(n) / 4 for n in numbers], dtype=pl.Decimal(10, 2)),
            "w": pl.Series([-Decimal(n) / 4 for n in numbers], dtype=pl.Decimal(30, 4)),
            "at": [MOMENT + dt.timedelta(seconds=n) for n in numbers],
            "micro": [MOMENT + dt.timedelta(microseconds=n) for n in numbers],
            "ntz": [MOMENT.replace(tzinfo=None) - dt.timedelta(days=n) for n in numbers],
            "yes": [True, False, None, True, None, False],
            "bin": [b"x", None, b"", b"y", b"z", b"\xff"],
            "l": [[1, None], None, [], [2], [3], [4]],
            "m": pl.Series([{"k": n} for n in numbers], dtype=pl.Map(pl.String, pl.Int64)),
            "s": [{"a": n, "in": {"t": f"é{n}"}} if n % 2 else None for n in numbers],
            "part": [1] * count,
        }
    )


def files_of(path: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Partition values and statistics of the live files, by folder; one file each."""
    frame = lakelog.open(path).snapshot().files().collect()
    found = {}
    for file in frame.select("path", "stats", pl.col("partitionValues").map.get("p")).rows():
        folder = unquote(file[0].rsplit("/", 1)[0])  # each engine escapes as it likes
        assert folder not in found
        found[folder] = ({"p": file[2]}, json.loads(file[1], parse_float=Decimal))
    return found


def comparable(stats: dict[str, Any]) -> tuple[dict[str, Any], dt.datetime | None]:
    """Statistics with floats as numbers, and separately the upper bound that is rounded up."""
    text = json.dumps(stats, default=float, sort_keys=True)
    plain = json.loads(text)
    micro = plain.get("maxValues", {}).pop("micro", None)
    return plain, None if micro is None else dt.datetime.fromisoformat(micro)


def test_delta_reads_the_rows_and_writes_the_same_statistics(delta: Any, tmp_path: Path) -> None:
    ours, theirs, whole = tmp_path / "ours", tmp_path / "theirs", tmp_path / "whole"
    given = rows()
    for path, by in ((ours, ["p"]), (theirs, ["p"]), (whole, [])):
        lakelog.create(path, given.schema, by, configuration=FEED, upkeep=False)
    lakelog.open(ours).append(given)
    lakelog.open(whole).append(given)

    read = delta.read.format("delta").load(str(ours))
    read.coalesce(1).write.format("delta").mode("append").save(str(theirs))
    # Both tables, written by either, are the same rows to lakelog.
    for path in (ours, theirs, whole):
        assert lakelog.open(path).snapshot().scan().collect().sort("id").equals(given)

    lakelog_files, reference = files_of(ours), files_of(theirs)
    assert lakelog_files.keys() == reference.keys()
    for folder, (values, stats) in lakelog_files.items():
        assert values == reference[folder][0]
        (found, micro), (expected, below) = comparable(stats), comparable(reference[folder][1])
        assert found == expected, folder
        assert micro is not None
        assert below is not None
        assert dt.timedelta(0) <= micro - below <= dt.timedelta(milliseconds=1)

    # All rows in one file, so that bounds and counts cover many rows.
    delta.read.format("delta").load(str(whole)).coalesce(1).write.format("delta").mode(
        "overwrite"
    ).save(str(whole))
    files = [
        json.loads(lakelog.open(whole).snapshot(v).files().collect()["stats"][0]) for v in (1, 2)
    ]
    (found, _), (expected, _) = map(comparable, files)
    assert found == expected
