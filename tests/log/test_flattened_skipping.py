"""`files(where=)` over a flattened checkpoint reads the row groups and parts that can match.

It returns the same rows as a read of all.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakelog
from lakelog.dialects.row_group_records import RECORD_KEY
from lakelog.skipping.prune import keep_mask
from lakelog.skipping.statistics import map_stats, stats_from_maps
from lakelog.skipping.values import typed_partitions
from tests.budget import share_of
from tests.log.test_row_group_skipping import by_number, commit, paths, removes, write_small_groups
from tests.skipping.test_prune import PARTITIONS, SCHEMA, Written, files, predicates

FOLDER = "_transaction_log"
CHECKPOINTS = f"{FOLDER}/_checkpoints"


def created(root: Path) -> lakelog.Table:
    """A table with the schema of the random files."""
    return lakelog.create(root, SCHEMA, partition_by=PARTITIONS, format="indextables")


def adds(written: Sequence[Written], start: int = 0) -> list[dict[str, Any]]:
    shared = {"size": 1, "modificationTime": 0, "dataChange": True}
    texts = pl.Series([stats for _, _, stats in written], dtype=pl.String)
    statistics = map_stats(texts).drop("nullCount").to_dicts()
    found = []
    for number, ((_, partition, _), stats) in enumerate(
        zip(written, statistics, strict=True), start
    ):
        known = {name: value for name, value in stats.items() if value is not None}
        body = {"path": f"{number:03d}", "partitionValues": partition, **shared, **known}
        found.append({"add": body})
    return found


def plain(snapshot: lakelog.Snapshot, where: pl.Expr) -> list[str]:
    """The same from all files, each tested individually."""
    rows = snapshot.files().collect()
    schema = snapshot.schema
    mask = keep_mask(
        where,
        schema=schema,
        partition_columns=PARTITIONS,
        partitions=typed_partitions(rows["partitionValues"], schema, PARTITIONS, hive_null=True),
        stats=stats_from_maps(rows["numRecords"], rows["minValues"], rows["maxValues"], schema),
    )
    return sorted(rows.filter(mask)["path"])


@pytest.mark.parametrize("parts", [1, 3])
@settings(max_examples=share_of(60))
@given(data=st.data())
def test_reading_some_row_groups_gives_the_rows_of_a_full_read(
    parts: int, data: st.DataObject
) -> None:
    few = data.draw(st.sampled_from(["isfgtdmb", "i", "s", "t", "f"]))
    below = data.draw(st.lists(files(few), min_size=1, max_size=24))
    above = data.draw(st.lists(files(few), max_size=3))
    removed_below = data.draw(st.lists(st.integers(0, len(below) - 1), max_size=3, unique=True))
    removed = data.draw(st.lists(st.integers(0, len(below) - 1), max_size=3, unique=True))
    conditions = data.draw(st.lists(predicates(few + "pq"), min_size=4, max_size=8))
    with TemporaryDirectory() as folder:
        root = Path(folder)
        table = created(root)
        commit(root, 1, [*adds(below), *removes(removed_below)])
        rows = data.draw(st.integers(1, 4))
        write_small_groups(table, "flattened", rows, ordered=data.draw(st.booleans()), parts=parts)
        if removed or above:
            commit(root, 2, [*removes(removed), *adds(above, len(below))])
        snapshot = lakelog.open(root).snapshot()
        left = len(below) - len({*removed_below, *removed})
        assert snapshot.num_files() == left + len(above)
        for where in conditions:
            assert paths(snapshot, where) == plain(snapshot, where), str(where)
            reason = snapshot.plan(where).reason
            assert reason is None or left == 0


@pytest.fixture(params=[1, 3])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> lakelog.Table:
    """A table of 60 files in a checkpoint with row groups of five."""
    made = created(tmp_path)
    commit(tmp_path, 1, adds(by_number(60)))
    write_small_groups(made, "flattened", 5, ordered=True, parts=request.param)
    return lakelog.open(tmp_path)


EXPECTED = [f"{n:03d}" for n in range(30, 40)]
WHERE = pl.col("q") == 3


def parts_of(table: lakelog.Table) -> list[Path]:
    return sorted((Path(table.path) / CHECKPOINTS).glob("*.parquet"))


def test_partition_filter_reads_only_its_row_groups(table: lakelog.Table) -> None:
    plan = table.snapshot().plan(WHERE)
    assert paths(table.snapshot(), WHERE) == EXPECTED
    assert plan.reason is None
    assert plan.actions_read is not None
    assert plan.actions_read <= 15 * len(parts_of(table))
    assert plan.bytes_read is not None
    assert plan.size_bytes == sum(path.stat().st_size for path in parts_of(table))
    assert plan.bytes_read < plan.size_bytes


def test_range_filter_on_the_first_column_reads_only_its_row_groups(table: lakelog.Table) -> None:
    where = pl.col("i").is_between(20, 22)
    assert paths(table.snapshot(), where) == ["020", "021", "022"]
    read = table.snapshot().plan(where).actions_read
    assert read is not None
    assert read <= 15


def test_part_that_cannot_match_is_not_opened(tmp_path: Path) -> None:
    made = created(tmp_path)
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
    made = created(tmp_path)
    commit(tmp_path, 1, adds(by_number(60)))
    write_small_groups(made, "flattened", 5, ordered=True, parts=3)
    falsify_records(tmp_path, change)
    opened = lakelog.open(tmp_path).snapshot()
    assert opened.plan(WHERE).reason is None  # from the footers
    assert paths(opened, WHERE) == EXPECTED


def test_metadata_of_other_parts_is_ignored(tmp_path: Path) -> None:
    for name, count in (("one", 60), ("two", 40)):
        root = tmp_path / name
        made = created(root)
        commit(root, 1, adds(by_number(count)))
        write_small_groups(made, "flattened", 5, ordered=True, parts=3)
    name = f"{CHECKPOINTS}/{1:020d}.checkpoint.json"
    shutil.copyfile(tmp_path / "two" / name, tmp_path / "one" / name)
    opened = lakelog.open(tmp_path / "one").snapshot()
    last = pl.col("q") == 5
    assert len(paths(opened, last)) == 10
    assert opened.plan(last).reason is None


def test_file_rewritten_by_another_program_has_no_record(table: lakelog.Table) -> None:
    for path in parts_of(table):
        rows = pq.read_table(path)
        pq.write_table(rows.take(list(range(len(rows)))[::-1]), path, row_group_size=5)
    opened = lakelog.open(table.path).snapshot()
    assert opened.plan(WHERE).row_groups_read is None
    assert paths(opened, WHERE) == EXPECTED


def test_files_removed_or_added_after_the_checkpoint_are_applied(table: lakelog.Table) -> None:
    commit(Path(table.path), 2, [*removes([31]), *adds(by_number(61)[60:], 60)])
    later = lakelog.open(table.path).snapshot()
    assert paths(later, WHERE) == [path for path in EXPECTED if path != "031"]
    assert paths(later, pl.col("q") == 6) == ["060"]
    assert later.plan(pl.col("q") == 6).row_groups_read == 0


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
