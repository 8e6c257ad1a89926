"""`files(where=)` over a flattened checkpoint: its parts, and their records in the metadata."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.dialects.row_group_records import RECORD_KEY
from tests.log.test_row_group_skipping import (
    FLATTENED,
    adds,
    by_number,
    commit,
    created,
    paths,
    sixty_files,
    write_small_groups,
)

FOLDER = "_transaction_log"
CHECKPOINTS = f"{FOLDER}/_checkpoints"


@pytest.fixture(params=FLATTENED)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> lakelog.Table:
    return sixty_files(tmp_path, request.param)


EXPECTED = [f"{n:03d}" for n in range(30, 40)]
WHERE = pl.col("q") == 3


def parts_of(table: lakelog.Table) -> list[Path]:
    return sorted((Path(table.path) / CHECKPOINTS).glob("*.parquet"))


def test_part_that_cannot_match_is_not_opened(tmp_path: Path) -> None:
    made = created(tmp_path, "flattened 1")
    commit(tmp_path, 1, adds(by_number(60)))
    write_small_groups(made, "flattened", 1, ordered=True, parts=12)
    snapshot = lakelog.open(tmp_path).snapshot()
    where = pl.col("i") == 33
    plan = snapshot.plan(where)
    assert (plan.checkpoint_files, plan.checkpoint_files_read) == (12, 1)
    left = 0
    for path in parts_of(made)[1:]:  # the first part contains protocol and metadata
        held = pq.read_table(path, columns=["path"])["path"].to_pylist()
        if "033" not in held:
            left += 1
            path.write_bytes(bytes(path.stat().st_size))
    assert paths(lakelog.open(tmp_path).snapshot(), where) == ["033"]


def damage_footers(parts: Sequence[Path]) -> None:
    for path in parts:
        flip(path, b'"minValues":{', 24)


def flip(path: Path, after: bytes, distance: int) -> None:
    data = path.read_bytes()
    at = data.rindex(after) + len(after) + distance
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def falsify_records(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the metadata's records, with checksums that match."""
    (path,) = (root / CHECKPOINTS).glob("*.json")
    body = json.loads(path.read_bytes())
    for each in body["lakelog.files"]:
        content = json.loads(each[RECORD_KEY][8:])
        change(content)
        text = json.dumps(content)
        each[RECORD_KEY] = f"{zlib.crc32(text.encode()):08x}{text}"
    path.write_text(json.dumps(body))


def test_damaged_records_disable_skipping_but_lose_no_file(table: lakelog.Table) -> None:
    root = Path(table.path)
    damage_footers(parts_of(table))
    (described,) = (root / CHECKPOINTS).glob("*.json")
    flip(described, b"minValues", 24)
    damaged = lakelog.open(root).snapshot()
    assert damaged.plan(WHERE).reason is not None
    assert paths(damaged, WHERE) == EXPECTED


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"lakelog.files":[1]}', '{"lakelog.files":3}'])
def test_footers_are_used_if_the_metadata_is_missing(table: lakelog.Table, text: str) -> None:
    (described,) = (Path(table.path) / CHECKPOINTS).glob("*.json")
    described.write_text(text)
    opened = lakelog.open(table.path).snapshot()
    assert opened.plan(WHERE).reason is None
    assert paths(opened, WHERE) == EXPECTED


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(file="another.parquet"),
        lambda content: content.update(rows=[1]),
        lambda content: content.update(adds="x"),
        lambda content: content.update(columns=3),
        lambda content: content.update(partitionColumns=None),
        lambda content: content.update(bounds={"numRecords": [1]}),
        lambda content: content.pop("rows"),
        lambda content: content["bounds"].pop("minValues"),
        lambda content: content["bounds"]["minValues"].update(q=["x"] * len(content["rows"])),
    ],
)
def test_malformed_metadata_records_are_ignored_and_lose_no_file(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    sixty_files(tmp_path, "flattened 3")
    falsify_records(tmp_path, change)
    opened = lakelog.open(tmp_path).snapshot()
    assert opened.plan(WHERE).reason is None  # from the footers
    assert paths(opened, WHERE) == EXPECTED


def test_metadata_of_other_parts_is_ignored(tmp_path: Path) -> None:
    for name, count in (("one", 60), ("two", 40)):
        root = tmp_path / name
        made = created(root, "flattened 3")
        commit(root, 1, adds(by_number(count)))
        write_small_groups(made, "flattened 3", 5, ordered=True)
    name = f"{CHECKPOINTS}/{1:020d}.checkpoint.json"
    shutil.copyfile(tmp_path / "two" / name, tmp_path / "one" / name)
    opened = lakelog.open(tmp_path / "one").snapshot()
    last = pl.col("q") == 5
    assert len(paths(opened, last)) == 10
    assert opened.plan(last).reason is None


def test_bounds_of_a_column_changed_to_a_number_are_not_compared_as_text(tmp_path: Path) -> None:
    names = [("i", "string"), ("j", "string")]
    first, later = (
        {"type": "struct", "fields": [
            {"name": n, "type": type_ or old, "nullable": True, "metadata": {}} for n, old in names
        ]}
        for type_ in (None, "long")
    )  # fmt: skip
    made = lakelog.create(tmp_path, json.dumps(first), partition_by=["j"], format="indextables")
    bounds = [("9", "9"), ("10", "10"), ("100", "100")]
    rows = [
        {"add": {"path": f"{n}", "partitionValues": {"j": low}, "size": 1, "modificationTime": 0,
                 "dataChange": True, "numRecords": 1, "minValues": {"i": low},
                 "maxValues": {"i": high}}}
        for n, (low, high) in enumerate(bounds)
    ]  # fmt: skip
    commit(tmp_path, 1, rows)
    write_small_groups(made, "flattened", 3, ordered=True, parts=1)
    below = json.loads((tmp_path / FOLDER / f"{0:020d}.json").read_text().splitlines()[1])
    below["metaData"]["schemaString"] = json.dumps(later)
    commit(tmp_path, 2, [below])
    snapshot = lakelog.open(tmp_path).snapshot()
    assert paths(snapshot, pl.col("i") == 9) == ["0"]
    assert paths(snapshot, pl.col("j") == 100) == ["2"]
    assert snapshot.plan(pl.col("i") == 9).row_groups_read == 1
