"""The sidecars of incremental checkpoints remain ranges of partition values."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from tests.budget import share_of

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": type_, "nullable": True, "metadata": {}}
            for name, type_ in (("q", "integer"), ("r", "string"), ("i", "long"))
        ],
    }
)
TARGET = 50


class Files:
    """A table with a V2 checkpoint with sidecars of fifty files, and its expected content."""

    def __init__(self, root: Path, seed: int, partition_by: tuple[str, ...] = ("q",)) -> None:
        self.random = random.Random(seed)
        self.root = root
        self.partition_by = partition_by
        self.live: dict[str, int | None] = {}
        self.version = 0
        self.count = 0
        lakelog.create(
            root,
            SCHEMA,
            partition_by=partition_by,
            configuration={
                "delta.checkpointPolicy": "v2",
                "spark.indextables.checkpoint.actionsPerPart": str(TARGET),
                "spark.indextables.checkpoint.enabled": "false",
            },
        )

    def some(self, count: int) -> list[str]:
        """Some live files, chosen at random."""
        return self.random.sample(sorted(self.live), count)

    def commit(self, values: Sequence[int | None], removed: Sequence[str] = ()) -> None:
        """Add a file per value, and remove some."""
        lines: list[dict[str, Any]] = []
        for path in removed:
            del self.live[path]
            lines.append({"remove": {"path": path, "deletionTimestamp": 0, "dataChange": True}})
        for value in values:
            path = f"{self.count:06d}"
            self.count += 1
            self.live[path] = value
            partition = {"q": None if value is None else str(value), "r": str(self.count % 3)}
            own = {name: partition[name] for name in self.partition_by}
            bound = {"i": self.count} if "q" in self.partition_by else {"q": value}
            stats = {"numRecords": 1, "minValues": bound, "maxValues": bound}
            body = {"path": path, "partitionValues": own, "size": 1, "modificationTime": 0}
            lines.append({"add": body | {"dataChange": True, "stats": json.dumps(stats)}})
        self.version += 1
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.root / "_delta_log" / f"{self.version:020d}.json").write_text(text)

    def checkpoint(self) -> int:
        """Write a checkpoint; return the number of kept sidecars."""
        return lakelog.open(self.root).checkpoint().reused_files

    def read(self, value: int) -> int:
        """Number of sidecars that a query for one value reads; all its files must be found."""
        snapshot = lakelog.open(self.root).snapshot()
        where = pl.col("q") == value
        found = snapshot.files(where=where).select("path").collect()["path"]
        expected = {path for path, own in self.live.items() if own == value}
        assert expected <= set(found) <= expected | {p for p, v in self.live.items() if v is None}
        return snapshot.plan(where).checkpoint_files_read

    def total(self) -> int:
        return len(lakelog.open(self.root).snapshot().provenance.checkpoint_files) - 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize("partition_by", [("q",), ("q", "r"), ()])
def test_files_in_order_leave_each_value_in_few_sidecars(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    table = Files(tmp_path, 1, partition_by)
    table.commit([n // 10 for n in range(1000)])
    table.checkpoint()
    for day in range(100, 106):
        table.commit([day] * 10, table.some(3))
        assert table.checkpoint() >= table.total() - 5
    assert max(table.read(value) for value in (0, 17, 50, 99, 102, 105)) <= 3


def test_new_files_are_added_to_a_rewritten_sidecar_of_their_range(tmp_path: Path) -> None:
    table = Files(tmp_path, 2)
    table.commit([n // 10 for n in range(1000)])
    table.checkpoint()
    first = table.total()
    for _ in range(8):
        table.commit([52] * 20, [next(path for path, own in table.live.items() if own == 52)])
        assert table.checkpoint() >= first - 2
    # It is split when it grows: 160 more files give three more sidecars.
    assert first + 2 <= table.total() <= first + 4
    assert table.read(10) == 1
    assert table.read(90) == 1


def test_unordered_files_are_sorted_when_too_many_sidecars_overlap(
    tmp_path: Path,
) -> None:
    table = Files(tmp_path, 3)
    table.commit([n // 10 for n in range(1000)])
    table.checkpoint()
    kept, shares = [], []
    for _ in range(12):
        table.commit([table.random.randrange(100) for _ in range(60)], table.some(1))
        kept.append(table.checkpoint())
        shares.append(table.read(42) / table.total())
    assert max(shares) <= 0.5
    assert kept.count(0) in {1, 2}
    assert shares[kept.index(0)] <= 0.15


@pytest.mark.parametrize("seed", range(share_of(6)))
def test_chain_of_checkpoints_equals_the_commits(seed: int, tmp_path: Path) -> None:
    table = Files(tmp_path, seed, [("q",), ("q", "r"), ()][seed % 3])
    rng = table.random
    table.commit([n // 9 for n in range(rng.randrange(200, 600))])
    table.checkpoint()
    for _ in range(6):
        middle = rng.randrange(70)
        count = rng.randrange(60)
        values = [rng.choice([None, middle, rng.randrange(70)]) for _ in range(count)]
        table.commit(values, table.some(rng.randrange(9)))
        table.checkpoint()
        opened = lakelog.open(table.root)
        assert opened.snapshot().num_files() == len(table.live)
        assert set(opened.snapshot().files().collect()["path"]) == set(table.live)
        for value in rng.sample(range(70), 3):
            table.read(value)
    assert lakelog.open(table.root).verify().verdict == "proved"
