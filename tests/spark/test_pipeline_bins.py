"""Which files compaction combines."""

from __future__ import annotations

from typing import Any

import polars as pl

from lakelog.data.compact import COMPACTED, SKIP, Sizes, find_bins, first_bins, skipped, with_marks

MAP = pl.Map(pl.String, pl.String)
SIZES = Sizes(target_bytes=100, small_bytes=75, deleted_share=0.05)


def files(*given: dict[str, Any]) -> pl.DataFrame:
    rows = [
        {
            "path": f"{number}",
            "partitionValues": {},
            "size": 10,
            "modificationTime": number,
            "tags": None,
            "dvStorageType": None,
            "dvCardinality": None,
            "numRecords": 100,
            **each,
        }
        for number, each in enumerate(given)
    ]
    schema: dict[str, Any] = {
        "path": pl.String,
        "partitionValues": MAP,
        "size": pl.Int64,
        "modificationTime": pl.Int64,
        "tags": MAP,
        "dvStorageType": pl.String,
        "dvCardinality": pl.Int64,
        "numRecords": pl.Int64,
    }
    return with_marks(pl.DataFrame(rows, schema=schema))


def bins(found: pl.DataFrame) -> list[list[str]]:
    return [part["path"].to_list() for part in found.partition_by("bin", maintain_order=True)]


def chosen(*given: dict[str, Any], keys: tuple[str, ...] = (), now_ms: int = 0) -> list[list[str]]:
    return bins(find_bins(files(*given), keys, SIZES, now_ms))


def test_small_files_are_combined_by_age_up_to_the_target() -> None:
    assert chosen(*[{"size": 50, "modificationTime": -n} for n in range(4)]) == [
        ["3", "2"],
        ["1", "0"],
    ]


def test_large_and_single_files_are_not_compacted() -> None:
    assert chosen({"size": 75}, {"size": 1000}, {"size": 10}) == []


def test_bin_has_files_of_one_partition_and_empty_equals_null() -> None:
    values = [{"p": "x"}, {"p": ""}, {"p": None}, {"p": "x"}, {"p": "y"}]
    found = chosen(*[{"partitionValues": v} for v in values], keys=("p",))
    assert sorted(found) == [["0", "3"], ["1", "2"]]


def test_file_with_enough_deleted_rows_is_compacted_at_any_size() -> None:
    vector = {"size": 1000, "dvStorageType": "u"}
    assert chosen(vector | {"dvCardinality": 6}) == [["0"]]
    assert chosen(vector | {"dvCardinality": 5}) == []
    assert chosen(vector | {"dvCardinality": 5, "numRecords": None}) == [["0"]]


def test_compacted_files_are_compacted_only_with_others_or_to_a_larger_target() -> None:
    done = {"tags": {COMPACTED: "100"}}
    assert chosen(done, done) == []
    assert chosen(done, done, {}) == [["0", "1", "2"]]
    assert chosen({"tags": {COMPACTED: "99"}}, done) == [["0", "1"]]
    assert chosen({"tags": {COMPACTED: "no number"}}, done) == [["0", "1"]]


def test_file_in_cooldown_is_skipped_until_it_ends() -> None:
    one = files({"tags": {"other": "stays"}}, {})
    reasons = pl.DataFrame({"path": ["0"], "reason": ['is "gone"']})
    again = skipped(one.head(1), reasons, now_ms=1_000, cooldown_ms=500)
    marked = with_marks(again)
    assert marked.select("retryAfter", "skipCount").row(0) == (1_500, 1)
    assert marked["tags"][0]["other"] == "stays"
    assert '"reason":"is \\"gone\\""' in marked["tags"][0][SKIP]
    both = pl.concat([marked, one.tail(1)])
    assert bins(find_bins(both, (), SIZES, 1_499)) == []
    assert bins(find_bins(both, (), SIZES, 1_500)) == [["0", "1"]]
    twice = with_marks(skipped(marked, reasons, now_ms=1_500, cooldown_ms=1))
    assert twice["skipCount"].to_list() == [2]


def test_commit_has_complete_bins_and_at_least_one() -> None:
    found = find_bins(files(*[{"size": 50}] * 6), (), SIZES, 0)
    assert bins(first_bins(found, 1)) == [["0", "1"]]
    assert bins(first_bins(found, 101)) == [["0", "1"], ["2", "3"]]
    assert bins(first_bins(found, 1_000)) == bins(found)
