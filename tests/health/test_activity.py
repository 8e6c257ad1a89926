"""The activity of a table: sizes after each commit equal those of a snapshot of its version."""

from __future__ import annotations

import warnings
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog import LakelogWarning
from lakelog.demo import make_table
from lakelog.health.activity import Activity, bucket, in_buckets, main_values, read_activity
from tests import loggen
from tests.budget import seed_of
from tests.handmade import Handmade, add, field, info, metadata, remove, vector


def activity_of(table: lakelog.Table) -> Activity:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        return read_activity(table.log, table.snapshot())


def test_sizes_after_each_commit_equal_its_snapshot(tmp_path: Path) -> None:
    table = lakelog.open(make_table(tmp_path / "t", commits=80))
    found = activity_of(table).commits
    for version, files, size_bytes in found.select("version", "files", "size_bytes").iter_rows():
        snapshot = table.snapshot(version)
        assert (snapshot.num_files(), snapshot.total_size()) == (files, size_bytes)


# Some logs have wrong checksums, which are ignored with a warning.
@pytest.mark.filterwarnings("ignore:.* differs from the log:lakelog.LakelogWarning")
@pytest.mark.parametrize("number", range(4))
def test_file_counts_of_random_logs_equal_their_snapshots(tmp_path: Path, number: int) -> None:
    seed = seed_of(f"activity {number}")
    options = loggen.Options(commits=15, layouts=())
    table = lakelog.open(loggen.generate(tmp_path / "t", seed, options))
    found = activity_of(table).commits
    for version, files in found.select("version", "files").iter_rows():
        assert table.snapshot(version).num_files() == files


def test_commit_is_counted_by_its_effect_on_the_data(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start(add("a", 10), add("b", 20))
    made.commit(1, info("OPTIMIZE"), add("c", 30, dataChange=False))
    made.commit(2, info("DELETE"), remove("c"))
    found = activity_of(made.table)
    columns = ["added_bytes", "rewritten_bytes", "deleted_files", "deleted_bytes", "size_bytes"]
    assert found.commits.select(columns).rows() == [
        (30, 0, 0, 0, 30),
        (30, 30, 0, 0, 60),
        (0, 0, 1, 30, 30),
    ]
    assert found.rewrite_amplification == 2.0


def test_file_with_another_deletion_vector_is_neither_written_nor_deleted(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start(add("a", 10), add("b", 20))
    made.commit(1, info("DELETE"), remove("a"), add("a", 10, **vector("v")), remove("b"))
    found = activity_of(made.table)
    columns = ["added_files", "added_bytes", "deleted_files", "deleted_bytes", "files"]
    assert found.commits.select(columns).row(1) == (0, 0, 1, 20, 1)
    assert found.rewrite_amplification == 1.0


def test_schema_and_property_changes_are_described(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start()
    made.commit(1, metadata(field("id", "string"), field("day", "date"), properties={"a": "1"}))
    made.commit(2, metadata(field("id", "string"), field("day", "date"), partitioned=["day"]))
    nested = {"type": "struct", "fields": [field("x", "long")]}
    made.commit(3, metadata(field("id", "string"), field("day", "date"), field("s", nested)))
    found = activity_of(made.table).schemas
    assert found.select("version", "changes").rows() == [
        (0, "2 columns"),
        (1, "column day added (date); column name dropped; column id: long to string; a = 1"),
        (2, "partitioned by day; a unset"),
        (3, "column s added (struct<x:long>); partitioned by nothing"),
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "second"), (80, "second"), (600, "10 seconds"), (86_400, "hour"), (10**9, "year")],
)
def test_a_time_axis_has_at_most_ninety_buckets(seconds: int, words: str) -> None:
    times = pl.Series("timestamp", [0, seconds * 1000]).cast(pl.Datetime("ms", "UTC"))
    every, found = bucket(times.to_frame())
    assert found == words
    assert in_buckets(times.to_frame())["bucket"].len() == 2, every


def test_buckets_cover_times_of_commits_that_are_not_in_order() -> None:
    times = pl.Series("timestamp", [10**9, *range(0, 10**9, 10**6)]).cast(pl.Datetime("ms", "UTC"))
    assert in_buckets(times.to_frame())["bucket"].n_unique() <= 90


@pytest.mark.parametrize("name", ["operation", "userName"])
def test_rare_operations_and_users_are_grouped_as_other(name: str) -> None:
    values = [f"v{n}" for n in range(10) for _ in range(10 - n)] + [None]
    counts = dict(main_values(pl.DataFrame({name: values}), name)[name].value_counts().iter_rows())
    assert len(counts) == 8
    assert counts["other"] == 3 + 2 + 1 + 1
