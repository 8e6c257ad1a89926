"""`files(where=)` reads the row groups that can match, and returns the same rows as a full read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import lakelog
from lakelog.checkpoint.plan import CheckpointOptions, plan_checkpoint
from lakelog.dialects.delta import parquet
from lakelog.errors import NotFoundError
from lakelog.log import state as log_state
from lakelog.log.file_order import FileOrder
from lakelog.log.files import find_files
from lakelog.log.opening import open_state
from lakelog.model import actions
from lakelog.skipping.prune import keep_mask
from lakelog.skipping.statistics import map_stats, stats_from_maps
from lakelog.skipping.values import typed_partitions
from tests.budget import share_of
from tests.handmade import vector
from tests.skipping.test_prune import PARTITIONS, SCHEMA, Written, files, keep, predicates

LAYOUTS = ("classic", "multipart", "v2-json", "v2-parquet")
FLATTENED = ("flattened 1", "flattened 3")
"""Layouts of IndexTables, with the number of parts."""


def created(root: Path, layout: str) -> lakelog.Table:
    """A table with the schema of the random files."""
    v2 = layout.startswith("v2-")
    return lakelog.create(
        root,
        SCHEMA,
        partition_by=PARTITIONS,
        format="indextables" if layout in FLATTENED else "delta",
        configuration={"delta.checkpointPolicy": "v2"} if v2 else {},
    )


def commit(root: Path, version: int, lines: Sequence[dict[str, Any]]) -> None:
    """Write a commit like another program, with any statistics."""
    (folder,) = root.glob("_*_log")
    if folder.name == "_transaction_log":
        lines = with_maps(lines)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"{version:020d}.json").write_text(text, "utf-8")


def with_maps(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds with the statistics of IndexTables, in maps."""
    texts = [line.get("add", {}).get("stats") for line in lines]
    maps = map_stats(pl.Series(texts, dtype=pl.String)).drop("nullCount").to_dicts()
    found = []
    for line, stats in zip(lines, maps, strict=True):
        known = {name: value for name, value in stats.items() if value is not None}
        add = {name: value for name, value in line.get("add", {}).items() if name != "stats"}
        found.append({"add": add | known} if add else line)
    return found


def adds(
    written: Sequence[Written], start: int = 0, name: Callable[[int], str] = "{:03d}".format
) -> list[dict[str, Any]]:
    shared = {"modificationTime": 0, "dataChange": True}
    return [
        {
            "add": {
                "path": name(n),
                "partitionValues": partition,
                "stats": stats,
                "size": 1 + n,
                **shared,
            }
        }
        for n, (_, partition, stats) in enumerate(written, start)
    ]


def removes(
    numbers: Sequence[int], name: Callable[[int], str] = "{:03d}".format
) -> list[dict[str, Any]]:
    return [
        {"remove": {"path": name(n), "deletionTimestamp": 0, "dataChange": True}} for n in numbers
    ]


def write_small_groups(
    table: lakelog.Table,
    layout: str,
    group_rows: int,
    *,
    ordered: bool,
    typed: bool = True,
    parts: int | None = None,
) -> None:
    """Write a checkpoint of the latest version with tiny row groups, in `parts` (None: few)."""
    if layout in FLATTENED:
        layout, count = layout.split()
        parts = int(count)
    log = table.log
    state = open_state(log)
    every = [*actions.schema()]
    live, tombstones = (actions.concat(state.iter_live(kind, every)) for kind in ("add", "remove"))
    options = CheckpointOptions(stats_as_struct=typed)
    plan = plan_checkpoint(
        state.table_configuration, ".", state.version, options, num_files=live.height, layout=layout
    )
    parts = min(plan.parts, 2) if parts is None else parts
    plan = replace(plan, row_group_rows=group_rows, part_actions=7, parts=parts)
    writer = log.dialect.checkpoint_writer(log.store, plan)
    writer.write_meta(state.meta)
    for rows in (live, tombstones):
        if ordered and rows.height:
            order = FileOrder.of_plan(plan, state.meta, log.dialect)
            writer.write_files(rows[order.positions(order.keys(rows), rows["path"])])
        elif rows.height:
            writer.write_files(rows)
    for file in writer.finish().files:
        if file.path != file.target:
            log.store.move(file.path, file.target)


def paths(snapshot: lakelog.Snapshot, where: pl.Expr) -> list[str]:
    return sorted(snapshot.files(where=where).select("path").collect()["path"])


def plain(snapshot: lakelog.Snapshot, where: pl.Expr) -> list[str]:
    """The same from all files, each tested individually."""
    rows = snapshot.files().collect()
    if "minValues" in rows.columns:
        mask = keep_mask(
            where,
            schema=snapshot.schema,
            partition_columns=PARTITIONS,
            partitions=typed_partitions(
                rows["partitionValues"], snapshot.schema, PARTITIONS, hive_null=True
            ),
            stats=stats_from_maps(
                rows["numRecords"], rows["minValues"], rows["maxValues"], snapshot.schema
            ),
        )
        return sorted(rows.filter(mask)["path"])
    kept = keep(where, rows["partitionValues"].to_list(), rows["stats"].to_list())
    return sorted(rows.filter(pl.Series(kept, dtype=pl.Boolean))["path"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", [*LAYOUTS, *FLATTENED])
@settings(max_examples=share_of(60))
@given(data=st.data())
def test_reading_some_row_groups_gives_the_rows_of_a_full_read(
    layout: str, data: st.DataObject
) -> None:
    most = "isfgtdmb" if layout in FLATTENED else "isfgtdmbx"
    few = data.draw(st.sampled_from([most, "i", "s", "t", "f"]))
    below = data.draw(st.lists(files(few), min_size=1, max_size=24))
    above = data.draw(st.lists(files(few), max_size=3))
    numbers = st.lists(st.integers(0, len(below) - 1), max_size=3, unique=True)
    removed_below, removed = data.draw(numbers), data.draw(numbers)
    conditions = data.draw(st.lists(predicates(few + "pq"), min_size=4, max_size=8))
    with TemporaryDirectory() as folder:
        root = Path(folder)
        table = created(root, layout)
        commit(root, 1, adds(below))
        if removed_below:
            commit(root, 2, removes(removed_below))
        rows = data.draw(st.integers(1, 4))
        write_small_groups(table, layout, rows, ordered=data.draw(st.booleans()))
        if removed or above:
            later = [*removes(removed), *adds(above, len(below))]
            commit(root, 2 + bool(removed_below), later)
        snapshot = lakelog.open(root).snapshot()
        left = len(below) - len({*removed_below, *removed})
        assert snapshot.num_files() == left + len(above)
        for where in conditions:
            assert paths(snapshot, where) == plain(snapshot, where), str(where)
            assert snapshot.plan(where).reason is None or not left


@pytest.mark.parametrize("layout", [*LAYOUTS, *FLATTENED])
def test_comparison_of_an_absent_partition_value_with_null_selects_no_file(
    layout: str, tmp_path: Path
) -> None:
    table = created(tmp_path, layout)
    commit(tmp_path, 1, adds([(pl.DataFrame(), {"q": None}, None)]))
    where = pl.col("p") < pl.lit(None, dtype=pl.Date)
    from_commits = lakelog.open(tmp_path).snapshot()
    assert (paths(from_commits, where), plain(from_commits, where)) == ([], [])
    write_small_groups(table, layout, 1, ordered=False)
    from_checkpoint = lakelog.open(tmp_path).snapshot()
    assert (paths(from_checkpoint, where), plain(from_checkpoint, where)) == ([], [])


def odd_name(number: int) -> str:
    """A path in a log; some are long or have an escape, and their order is not numeric."""
    start = f"{number % 5}/{'%F4%8F%BF%BF' if number % 3 else 'x'}"
    return start * (1 + 20 * (number % 2)) + f"{number:03d}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=share_of(60))
@given(data=st.data())
def test_lookup_by_path_and_totals_equal_a_full_read(layout: str, data: st.DataObject) -> None:
    few = data.draw(st.sampled_from(["i", "s"]))
    below = data.draw(st.lists(files(few), min_size=1, max_size=24))
    above = data.draw(st.lists(files(few), max_size=3))
    removed = data.draw(st.lists(st.integers(0, len(below) - 1), max_size=3, unique=True))
    again = data.draw(st.lists(st.integers(0, len(below) - 1), max_size=2, unique=True))
    numbers = data.draw(st.lists(st.integers(0, 40), max_size=8))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_state, "_SMALL_SHARE", data.draw(st.sampled_from([0.0, 0.5, 1.0])))
        root = Path(folder)
        table = created(root, layout)
        commit(root, 1, adds(below, name=odd_name))
        rows = data.draw(st.integers(1, 4))
        typed = data.draw(st.booleans())
        write_small_groups(table, layout, rows, ordered=data.draw(st.booleans()), typed=typed)
        restored = [line for n in again for line in adds(below[n : n + 1], n, odd_name)]
        removed_lines = removes([n for n in removed if n not in again], odd_name)
        if lines := [*removed_lines, *restored, *adds(above, len(below), odd_name)]:
            commit(root, 2, lines)
        every = lakelog.open(root).snapshot().files().collect()
        snapshot = lakelog.open(root).snapshot()
        wanted = [unquote(odd_name(number)) for number in numbers] + ["", "x", "zz"]
        found = find_files(snapshot, wanted, ("path", "size", "partitionValues"))
        expected = every.filter(pl.col("path").is_in(wanted)).select(found.columns)
        assert_frame_equal(found.sort("path"), expected.sort("path"))
        for predicate in (
            pl.col("path").is_in(wanted),
            (pl.col("size") > 9) & (pl.col("path") == wanted[0]),
            (pl.lit(wanted[0]) == pl.col("path")) | (pl.col("size") > 9),
            ~pl.col("path").is_in([*wanted, None], nulls_equal=True),
        ):
            kept = snapshot.files().filter(predicate).collect()
            assert_frame_equal(kept.sort("path"), every.filter(predicate).sort("path"))
        assert snapshot.num_files() == every.height
        assert snapshot.total_size() == every["size"].sum()


def test_lookup_by_path_reads_row_groups_that_may_contain_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sixty_files(tmp_path, "classic")
    commit(tmp_path, 2, removes([7]))
    decoded = Leaves(monkeypatch)
    snapshot = lakelog.open(tmp_path).snapshot()
    assert find_files(snapshot, ["033"], ("path", "size"))["size"].to_list() == [34]
    assert decoded.count("add.path") == 1
    decoded.clear()
    lazy = lakelog.open(tmp_path).snapshot().files().filter(pl.col("path") == "033")
    assert lazy.select("size").collect().item() == 34
    assert decoded.count("add.path") == 1
    decoded.clear()
    assert (snapshot.num_files(), snapshot.total_size()) == (59, sum(range(1, 61)) - 8)
    assert decoded.count("add.path") == 1  # of the removed file's row group
    decoded.clear()
    blamed = lakelog.open(tmp_path).blame("033")
    assert blamed["size"].to_list() == [34]
    assert decoded.count("add.path") <= 2


def test_recorded_row_count_excludes_deleted_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"delta.enableDeletionVectors": "true"}
    made = lakelog.create(tmp_path, SCHEMA, partition_by=PARTITIONS, configuration=properties)
    lines = adds([(f, p, '{"numRecords":10,"tightBounds":false}') for f, p, _ in by_number(20)])
    for line in lines[:4]:
        line["add"] |= vector("vBn[lx{q8@P<9BNH/isA", 3)
    commit(tmp_path, 1, lines)
    made.checkpoint()
    decoded = Leaves(monkeypatch)
    assert lakelog.open(tmp_path).snapshot().num_rows() == 20 * 10 - 4 * 3
    assert decoded.count("add.path") == 0
    commit(tmp_path, 2, removes([5]))
    assert lakelog.open(tmp_path).snapshot().num_rows() == 19 * 10 - 4 * 3
    lines[0]["add"]["stats"] = '{"numRecords":7}'  # without the deleted rows, as Trino's ANALYZE
    commit(tmp_path, 3, lines[:1])
    made.checkpoint()
    with pytest.raises(NotFoundError):  # the file is needed
        lakelog.open(tmp_path).snapshot().num_rows()


def rewrite_like_another_program(root: Path, data: st.DataObject) -> None:
    """Rewrite the files of a checkpoint without lakelog's records."""
    # By rows, because the names of sidecars differ from run to run.
    found = (root / "_delta_log").rglob("*.parquet")
    for path in sorted(found, key=lambda each: pq.read_metadata(each).num_rows):
        rows = pq.read_table(path).replace_schema_metadata(None)
        order = data.draw(st.permutations(range(len(rows))))
        pq.write_table(
            rows.take(pa.array(order, pa.int64())),
            path,
            row_group_size=data.draw(st.integers(1, 12)),
            use_dictionary=data.draw(st.booleans()),
            dictionary_pagesize_limit=data.draw(st.sampled_from([1, 1 << 20])),
            write_statistics=data.draw(st.booleans()),
            compression=data.draw(st.sampled_from(["snappy", "none"])),
        )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=share_of(60))
@given(data=st.data())
def test_filter_over_a_checkpoint_of_another_program_equals_a_full_read(
    layout: str, data: st.DataObject
) -> None:
    few = data.draw(st.sampled_from(["isfgtdmbx", "i", "s", "t", "f"]))
    below = data.draw(st.lists(files(few), min_size=1, max_size=40))
    above = data.draw(st.lists(files(few), max_size=3))
    removed_below = data.draw(st.lists(st.integers(0, len(below) - 1), max_size=3, unique=True))
    removed = data.draw(st.lists(st.integers(0, len(below) - 1), max_size=3, unique=True))
    conditions = data.draw(st.lists(predicates(few + "pq"), min_size=2, max_size=3))
    conditions += data.draw(st.lists(predicates("pq"), min_size=1, max_size=2))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_BATCH_ROWS", data.draw(st.sampled_from([3, 1 << 16])))
        patch.setattr(parquet, "_MANY_ROWS", data.draw(st.sampled_from([1, 1 << 17])))
        root = Path(folder)
        table = created(root, layout)
        commit(root, 1, adds(below))
        if removed_below:
            commit(root, 2, removes(removed_below))
        version = 2 + bool(removed_below)
        typed = data.draw(st.booleans())
        write_small_groups(table, layout, 5, ordered=False, typed=typed)
        rewrite_like_another_program(root, data)
        if removed or above:
            commit(root, version, [*removes(removed), *adds(above, len(below))])
        every = lakelog.open(root).snapshot().files().collect()
        for where in conditions:
            kept = keep(where, every["partitionValues"].to_list(), every["stats"].to_list())
            expected = every.filter(pl.Series(kept, dtype=pl.Boolean)).sort("path")
            snapshot = lakelog.open(root).snapshot()  # without cached columns
            assert snapshot.plan(where).row_groups_read is None
            assert_frame_equal(snapshot.files(where=where).collect().sort("path"), expected)
            for _ in range(3):
                assert paths(snapshot, where) == expected["path"].to_list()


def by_number(count: int) -> list[Written]:
    """Files 0 to `count`, whose ``i`` is their number, ten of each partition."""
    frame = pl.DataFrame()
    stats = '{"numRecords":1,"minValues":{"i":%d},"maxValues":{"i":%d},"nullCount":{"i":0}}'
    return [
        (frame, {"p": "2024-01-01", "q": str(number // 10)}, stats % (number, number))
        for number in range(count)
    ]


@cache
def _made(layout: str, *, typed: bool) -> Path:
    root = Path(mkdtemp()) / "t"
    made = created(root, layout)
    commit(root, 1, adds(by_number(60)))
    write_small_groups(made, layout, 5, ordered=True, typed=typed)
    return root


def sixty_files(root: Path, layout: str, *, typed: bool = True) -> lakelog.Table:
    """A table of 60 files in a checkpoint with row groups of five."""
    shutil.copytree(_made(layout, typed=typed), root, dirs_exist_ok=True)
    return lakelog.open(root)


@pytest.fixture(params=[*LAYOUTS, *FLATTENED])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> lakelog.Table:
    return sixty_files(tmp_path, request.param)


def test_partition_filter_reads_only_its_row_groups(table: lakelog.Table) -> None:
    plan = table.snapshot().plan(pl.col("q") == 3)
    assert paths(table.snapshot(), pl.col("q") == 3) == [f"{n:03d}" for n in range(30, 40)]
    assert plan.reason is None
    assert plan.actions_read is not None
    flattened = table.format == "indextables"
    # Two parts of a multi-part checkpoint have some, and each part of a flattened one.
    assert 10 <= plan.actions_read <= (15 * len(checkpoint_files(table)) if flattened else 20)
    assert plan.bytes_read is not None
    assert plan.size_bytes is not None
    assert plan.bytes_read < plan.size_bytes / (1 if flattened else 2)
    assert plan.row_groups is not None
    assert f"{plan.row_groups_read} of {plan.row_groups}" in str(plan)


def test_range_filter_on_the_first_column_reads_only_its_row_groups(table: lakelog.Table) -> None:
    where = pl.col("i").is_between(20, 22)
    assert paths(table.snapshot(), where) == ["020", "021", "022"]
    read = table.snapshot().plan(where).actions_read
    assert read is not None
    assert read <= (15 if table.format == "indextables" else 10)


def test_number_of_files_is_recorded(table: lakelog.Table) -> None:
    assert table.snapshot().num_files() == 60
    commit(Path(table.path), 2, removes([31]))
    assert lakelog.open(table.path).snapshot().num_files() == 59
    lakelog.open(table.path).checkpoint()  # with a tombstone
    assert lakelog.open(table.path).snapshot().num_files() == 59


def test_no_row_group_is_read_if_nothing_can_match(table: lakelog.Table) -> None:
    plan = table.snapshot().plan(pl.col("q") == 99)
    assert (plan.row_groups_read, plan.checkpoint_files_read) == (0, 0)
    assert paths(table.snapshot(), pl.col("q") == 99) == []


def test_files_removed_or_added_after_the_checkpoint_are_applied(table: lakelog.Table) -> None:
    commit(Path(table.path), 2, [*removes([31]), *adds(by_number(61)[60:], 60)])
    later = lakelog.open(table.path).snapshot()
    assert paths(later, pl.col("q") == 3) == [f"{n:03d}" for n in range(30, 40) if n != 31]
    assert paths(later, pl.col("q") == 6) == ["060"]
    assert later.plan(pl.col("q") == 6).row_groups_read == 0
    assert later.plan(pl.col("q") == 6).commits == 1


def checkpoint_files(table: lakelog.Table) -> list[Path]:
    found = sorted(Path(table.path).rglob("*.parquet"))
    return [p for p in found if pq.ParquetFile(p).metadata.num_rows > 3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_flipped_bit_in_a_record_disables_skipping_but_loses_no_file(
    tmp_path: Path, layout: str
) -> None:
    table = sixty_files(tmp_path, layout)
    expected = paths(table.snapshot(), pl.col("q") == 3)
    for path in checkpoint_files(table):
        data = path.read_bytes()
        at = data.rindex(b'"minValues":{') + len(b'"minValues":{') + 8
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    damaged = lakelog.open(table.path).snapshot()
    assert damaged.plan(pl.col("q") == 3).reason is not None
    assert paths(damaged, pl.col("q") == 3) == expected


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("layout", ["multipart", "v2-parquet"])
def test_part_copied_over_another_part_is_refused(layout: str, typed: bool, tmp_path: Path) -> None:
    table = sixty_files(tmp_path, layout, typed=typed)
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    first, second = checkpoint_files(table)[:2]
    shutil.copyfile(first, second)
    for number in range(6):
        with pytest.raises(lakelog.LakelogError):
            paths(lakelog.open(tmp_path).snapshot(), pl.col("q") == number)


def test_checkpoint_without_typed_statistics_is_read_completely(tmp_path: Path) -> None:
    snapshot = sixty_files(tmp_path, "classic", typed=False).snapshot()
    assert paths(snapshot, pl.col("q") == 3) == [f"{n:03d}" for n in range(30, 40)]
    assert "typed statistics" in str(snapshot.plan(pl.col("q") == 3))


class Leaves(list[str]):
    """Columns of which pyarrow decodes batches."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        read = pq.ParquetFile.iter_batches

        def noted(file: pq.ParquetFile, *rest: Any, columns: Sequence[str], **more: Any) -> Any:
            self.extend(columns)
            return read(file, *rest, columns=columns, **more)

        patch.setattr(pq.ParquetFile, "iter_batches", noted)


def test_columns_of_row_groups_without_a_match_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sixty_files(tmp_path, "classic", typed=False)
    decoded = Leaves(monkeypatch)

    def times(where: pl.Expr, found: int) -> tuple[int, int]:
        snapshot = lakelog.open(tmp_path).snapshot()
        decoded.clear()
        assert snapshot.files(where=where).collect().height == found
        return decoded.count("add.path"), decoded.count("add.stats")

    every, read = times(pl.col("q") == 99, 0)
    assert every >= 12  # paths of all row groups, for repeats
    assert read == 0
    assert times(pl.col("q") == 3, 10) in {(every, 2), (every, 3)}
    assert decoded.count("add.partitionValues") == 0  # read as dictionaries
    assert times(pl.col("i") == 33, 1) == (every, every)
    assert decoded.count("add.size") == 1


@pytest.mark.parametrize("layout", ["classic", *FLATTENED])
def test_file_rewritten_by_another_program_has_no_record(tmp_path: Path, layout: str) -> None:
    for path in checkpoint_files(sixty_files(tmp_path, layout)):
        rows = pq.read_table(path)
        pq.write_table(rows.take(list(range(len(rows)))[::-1]), path, row_group_size=5)
    snapshot = lakelog.open(tmp_path).snapshot()
    assert snapshot.plan(pl.col("q") == 3).row_groups_read is None
    assert len(paths(snapshot, pl.col("q") == 3)) == 10


def test_plan_without_a_checkpoint_gives_the_reason(tmp_path: Path) -> None:
    created(tmp_path, "classic")
    commit(tmp_path, 1, adds(by_number(3)))
    plan = lakelog.open(tmp_path).snapshot().plan(pl.col("q") == 0)
    assert plan.reason == "the state has no checkpoint: all commits are read"
    assert (plan.checkpoint_files, plan.commits) == (0, 2)


def test_condition_over_an_unknown_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lakelog.InvalidInputError, match="does not have"):
        created(tmp_path, "classic").snapshot().plan(pl.col("nothing") == 1)


def test_files_with_invalid_partition_values_are_kept(tmp_path: Path) -> None:
    made = created(tmp_path, "classic")
    odd: list[Written] = [(pl.DataFrame(), {"p": None, "q": text}, None) for text in ("x", "", "7")]
    commit(tmp_path, 1, adds([*by_number(20), *odd]))
    write_small_groups(made, "classic", 1, ordered=True)
    snapshot = lakelog.open(tmp_path).snapshot()
    assert paths(snapshot, pl.col("q") == 7) == ["020", "022"]
    assert paths(snapshot, pl.col("q").is_null()) == ["020", "021"]


@pytest.fixture(params=["json", "parquet"])
def ranges(request: pytest.FixtureRequest, tmp_path: Path) -> lakelog.Table:
    """A table of 60 files whose V2 checkpoint has one sidecar per ten files."""
    made = lakelog.create(
        tmp_path,
        SCHEMA,
        partition_by=PARTITIONS,
        configuration={
            "delta.checkpointPolicy": "v2",
            "spark.indextables.checkpoint.actionsPerPart": "10",
        },
    )
    commit(tmp_path, 1, adds(by_number(60)))
    made.checkpoint(layout=f"v2-{request.param}")
    return lakelog.open(tmp_path)


def test_sidecar_that_cannot_match_is_not_opened(ranges: lakelog.Table) -> None:
    where = pl.col("q") == 3
    plan = ranges.snapshot().plan(where)
    assert (plan.row_groups_read, plan.checkpoint_files_read) == (1, 1)
    expected = [f"{n:03d}" for n in range(30, 40)]
    assert paths(ranges.snapshot(), where) == expected
    for number, path in enumerate(sidecars(ranges)):
        if number not in {0, 3}:  # the first is opened for its schema
            path.write_bytes(b"")
    assert paths(lakelog.open(ranges.path).snapshot(), where) == expected


def sidecars(table: lakelog.Table) -> list[Path]:
    """The sidecars, in the order of the manifest."""
    root = Path(table.path)
    return [root / p for p in table.snapshot().provenance.files if "_sidecars" in p]


def test_sidecar_with_other_row_groups_than_its_manifest_records_is_refused(
    ranges: lakelog.Table,
) -> None:
    (Path(ranges.path) / "_delta_log" / f"{1:020d}.json").unlink()
    for path in sidecars(ranges):
        pq.write_table(pq.read_table(path), path, row_group_size=4)
    with pytest.raises(lakelog.CheckpointCorruptionError, match="was replaced"):
        paths(lakelog.open(ranges.path).snapshot(), pl.col("q") == 3)


def test_incremental_checkpoint_keeps_the_records_of_its_sidecars(ranges: lakelog.Table) -> None:
    commit(Path(ranges.path), 2, [*removes([31]), *adds(by_number(61)[60:], 60)])
    report = lakelog.open(ranges.path).checkpoint()
    assert report.reused_files > 0
    later = lakelog.open(ranges.path).snapshot()
    plan = later.plan(pl.col("q") == 2)
    assert (plan.commits, plan.row_groups_read) == (0, 1)
    assert paths(later, pl.col("q") == 2) == [f"{n:03d}" for n in range(20, 30)]
    assert paths(later, pl.col("q") == 3) == [f"{n:03d}" for n in range(30, 40) if n != 31]
    assert paths(later, pl.col("q") == 6) == ["060"]
