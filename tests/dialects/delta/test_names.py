"""File names of a Delta log: exact matches only."""

from __future__ import annotations

import pytest

from lakelog.dialects.delta.names import commit_name, parse_listing
from lakelog.dialects.log_content import LogListing
from lakelog.storage import FileEntry

V = f"{7:020d}"
UUID = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"


def listing(*names: str, size_bytes: int = 1) -> LogListing:
    return parse_listing(FileEntry(name, size_bytes, 5) for name in names)


def test_commits_are_sorted_by_version() -> None:
    found = listing(commit_name(10), commit_name(9), commit_name(0))
    assert [c.version for c in found.commits] == [0, 9, 10]
    assert found.commits[0].path == f"_delta_log/{0:020d}.json"
    assert (found.commits[0].size_bytes, found.commits[0].modified_ms) == (1, 5)


def test_number_beyond_64_bits_is_not_a_version() -> None:
    last, beyond = (1 << 63) - 1, 1 << 63
    suffixes = ("json", "checkpoint.parquet", f"checkpoint.{UUID}.json")
    found = listing(*(f"{v:020d}.{suffix}" for v in (last, beyond) for suffix in suffixes))
    assert [c.version for c in found.commits] == [last]
    assert [c.version for c in found.checkpoints] == [last, last]


def test_checkpoints_of_one_version_rank_v2_above_parts_above_classic() -> None:
    found = listing(
        f"{V}.checkpoint.{UUID}.parquet",
        f"{V}.checkpoint.parquet",
        *(f"{V}.checkpoint.{n:010d}.{2:010d}.parquet" for n in (1, 2)),
        *(f"{V}.checkpoint.{n:010d}.{3:010d}.parquet" for n in (3, 1, 2)),
    )
    assert [(c.layout, len(c.paths)) for c in found.checkpoints] == [
        ("classic", 1),
        ("multipart", 2),
        ("multipart", 3),
        ("v2-parquet", 1),
    ]
    parts = found.checkpoints[2].paths
    assert [int(p.split(".")[2]) for p in parts] == [1, 2, 3]


def test_newer_version_ranks_above_any_layout() -> None:
    found = listing(f"{V}.checkpoint.{UUID}.json", f"{8:020d}.checkpoint.parquet")
    assert [(c.version, c.layout) for c in found.checkpoints] == [(7, "v2-json"), (8, "classic")]


def test_checkpoint_with_a_missing_part_is_ignored_with_a_note() -> None:
    found = listing(f"{V}.checkpoint.{1:010d}.{2:010d}.parquet")
    assert found.checkpoints == ()
    assert found.notes == ("the checkpoint of version 7 in 2 parts has only 1 and was ignored",)


@pytest.mark.parametrize(
    "name", [f"{V}.checkpoint.parquet", f"{V}.checkpoint.{UUID}.json"], ids=["classic", "v2"]
)
def test_empty_checkpoint_is_ignored_with_a_note(name: str) -> None:
    found = listing(name, size_bytes=0)
    assert found.checkpoints == ()
    assert "is empty" in found.notes[0]


def test_empty_part_makes_its_checkpoint_incomplete() -> None:
    parts = [FileEntry(f"{V}.checkpoint.{n:010d}.{2:010d}.parquet", n - 1, 5) for n in (1, 2)]
    assert parse_listing(parts).checkpoints == ()


def test_compactions_span_two_versions_or_more() -> None:
    found = listing(
        f"{V}.{9:020d}.compacted.json",
        f"{3:020d}.{5:020d}.compacted.json",
        f"{V}.{V}.compacted.json",
        f"{9:020d}.{V}.compacted.json",
    )
    assert [(c.start, c.end) for c in found.compactions] == [(3, 5), (7, 9)]


@pytest.mark.parametrize(
    "name",
    [
        f".{V}.json.crc",
        f"._{V}.json",
        f"{V}.json.tmp",
        f"{V}.JSON",
        f"{V}.json\n",
        f"{V[1:]}.json",
        f"0{V}.json",
        f"{V}.{UUID}.json",
        f"{V}.checkpoint.parquet.tmp",
        f".{V}.checkpoint.parquet.crc",
        f"{V}.checkpoint.json",
        f"{V}.checkpoint.{UUID}.avro",
        f"{V}.checkpoint.not-a-uuid.parquet",
        f"{V}.checkpoint.{0:010d}.{1:010d}.parquet",
        f"{V}.checkpoint.{2:010d}.{1:010d}.parquet",
        f"{V}.checkpoint.{0:010d}.{0:010d}.parquet",
        f"{V}.checkpoint.1.1.parquet",
        "\u0660" * 20 + ".json",
        "_last_checkpoint",
        "00000000000000000007.00000000000000000009.compacted.json.tmp",
    ],
)
def test_inexact_name_is_ignored(name: str) -> None:
    assert listing(name) == LogListing()
