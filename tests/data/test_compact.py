"""`Table.compact`: fewer files, the same rows.

Skips and bins are tested in `test_pipeline_compaction`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import lakelog
from lakelog import Table
from lakelog.data import bin_rewrite
from lakelog.data.bin_rewrite import zorder_keys
from lakelog.data.read import read_files
from lakelog.errors import InvalidInputError, LakelogWarning
from lakelog.log.context import Log
from lakelog.model import contract
from lakelog.storage import open_store
from lakelog.testing import InjectingStore, Rule
from tests.budget import rng_of, share_of
from tests.handmade import Handmade, field, metadata, protocol

SCHEMA = {"id": pl.Int64, "p": pl.String, "v": pl.Float64, "d": pl.Date}


def new_table(root: Path | str, count: int = 8, **properties: str) -> Table:
    """A table of small files in three partitions."""
    configuration = {k.replace("__", "."): v for k, v in properties.items()}
    table = lakelog.create(root, SCHEMA, ["p"], configuration=configuration, upkeep=False)
    rng = rng_of(f"compact {root}")
    for number in range(count):
        ids = [rng.choice([None, *range(50)]) for _ in range(20)]
        table.append(
            pl.DataFrame(
                {
                    "id": ids,
                    "p": ["abc"[number % 3]] * 20,
                    "v": [rng.choice([None, rng.random(), float("nan")]) for _ in ids],
                    "d": [dt.date(2026, 1, 1 + (n or 0) % 28) for n in ids],
                },
                schema=SCHEMA,
            )
        )
    return table


def rows(table: Table) -> pl.DataFrame:
    return table.snapshot().scan().collect().sort(list(SCHEMA))


@pytest.mark.parametrize("number", range(share_of(8, 4)))
def test_compaction_keeps_the_rows_in_fewer_files(tmp_path: Path, number: int) -> None:
    rng = rng_of(f"compact {number}")
    vectors = str(number % 2 == 0).lower()
    table = new_table(tmp_path, 9, delta__enableDeletionVectors=vectors)
    table.delete(pl.col("id") % rng.randrange(2, 6) == 0)
    before, files = rows(table), table.snapshot().num_files()
    options: dict[str, Any] = rng.choice(
        [{}, {"order_by": "id"}, {"order_by": ["d", "v"]}, {"zorder_by": ["id", "v", "d"]}]
    )
    sizes: dict[str, Any] = {
        "sort_bytes": rng.choice([1, 1 << 20]),
        "commit_bytes": rng.choice([1, 1 << 30]),
    }
    report = table.compact(**options, **(sizes if options else {"commit_bytes": 1}))
    assert_frame_equal(rows(table), before)
    after = table.snapshot().files().collect()
    assert after["dvStorageType"].null_count() == after.height
    assert (report.num_rows, report.num_removed_files) == (before.height, files)
    assert report.num_files == after.height
    if not options or sizes["sort_bytes"] != 1:
        assert after.height == 3
    commits = table.actions(report.version or 0).filter(pl.col("actionType") != "commitInfo")
    assert not commits.collect()["dataChange"].any()
    assert table.compact(**options).version is None
    if vectors == "false":
        peer = pl.DataFrame(deltalake.DeltaTable(tmp_path).to_pyarrow_table()).select(list(SCHEMA))
        assert_frame_equal(peer.sort(list(SCHEMA)), before)


@pytest.mark.parametrize("columns", [["id"], ["p2", "id"], ["v", "d"]])
def test_rows_are_in_order_within_each_file(tmp_path: Path, columns: list[str]) -> None:
    table = lakelog.create(tmp_path, {**SCHEMA, "p2": pl.String}, ["p"], upkeep=False)
    source = new_table(tmp_path / "source")
    frame = rows(source).with_columns(p2=pl.col("p"), p=pl.lit("x"))
    for part in frame.sample(fraction=1, shuffle=True, seed=1).iter_slices(50):
        table.append(part)
    table.compact(order_by=columns)
    found = table.snapshot().scan().collect()
    expected = frame.sort(columns, nulls_last=False)
    assert_frame_equal(found.select(columns), expected.select(columns))
    (operation,) = table.history(1).to_dicts()
    assert operation["operation"] == "OPTIMIZE"


def test_order_by_a_name_with_a_comma_is_not_that_by_two_columns(tmp_path: Path) -> None:
    mapped = {"delta.columnMapping.mode": "name"}
    schema = {"a": pl.Int64, "b": pl.Int64, "a,b": pl.Int64}
    table = lakelog.create(tmp_path, schema, configuration=mapped, upkeep=False)
    table.append(pl.DataFrame({"a": [1, 2], "b": [1, 2], "a,b": [2, 1]}))
    for columns, expected in ((["a", "b"], [2, 1]), (["a,b"], [1, 2])):
        table.compact(order_by=columns)
        assert table.to_arrow()["a,b"].to_pylist() == expected


@pytest.mark.parametrize("mode", ["none", "name"])
def test_rows_are_sorted_by_fields_of_structs(tmp_path: Path, mode: str) -> None:
    inner = pl.Struct({"x": pl.Int64, "l": pl.List(pl.Int64)})
    schema: dict[str, pl.DataType | type[pl.DataType]] = {"a.x": pl.Int64, "a": inner}
    table = lakelog.create(
        tmp_path, schema, configuration={"delta.columnMapping.mode": mode}, upkeep=False
    )
    fields = [{"x": x, "l": [x or 0]} for x in (2, 3, None)]
    table.append(pl.DataFrame({"a.x": [1, 2, 3, 4], "a": [*fields, None]}, schema))
    orders: list[tuple[dict[str, Any], list[int]]] = [
        ({"order_by": "`a.x`"}, [1, 2, 3, 4]),
        ({"order_by": "`a`.X"}, [3, 4, 1, 2]),
        ({"zorder_by": ["`a`.x", "`a.x`"]}, [1, 2, 3, 4]),
    ]
    for order, expected in orders:
        assert table.compact(**order).num_files == 1
        assert table.to_polars()["a.x"].to_list() == expected
        assert table.compact(**order).version is None, "the files are in this order"
    parameters = json.loads(table.history(1)["operationParameters"].item()["zOrderBy"])
    assert parameters == ["a.x", "`a.x`"]
    with pytest.raises(InvalidInputError, match="inside a list or a map"):
        table.compact(order_by="a.l.element")
    if mode == "name":  # the names change places
        for old, new in (("`a`.x", "y"), ("`a.x`", "x"), ("`a`.y", "`z.z`")):
            table.alter.rename_column(old, new)
        assert table.compact(zorder_by=["`a`.`z.z`", "x"]).version is None, "as before"
        assert table.compact(order_by="x").num_files == 1


def test_zorder_keys_interleave_the_bits_of_ranks() -> None:
    side = [0, 1, 2, 3]
    grid = pl.DataFrame(list(itertools.product(side, side)), schema=["a", "b"], orient="row")

    def plain(a: int, b: int) -> int:
        return sum(((a >> n & 1) << 2 * n) | ((b >> n & 1) << (2 * n + 1)) for n in range(2))

    assert zorder_keys(grid).to_list() == [plain(a, b) for a, b in grid.iter_rows()]
    # Texts, dates, nulls and one value of many are ranked too.
    odd = pl.DataFrame(
        {
            "s": ["b", None, "a", "b"],
            "d": [dt.date(2026, 1, 1)] * 4,
            "f": [float("nan"), -1.0, None, 0.0],
        }
    )
    assert zorder_keys(odd).n_unique() == 4
    many = pl.DataFrame({"a": range(1 << 12), "b": range(1 << 12)})
    assert zorder_keys(many).is_sorted()
    wide = pl.DataFrame({str(n): range(300) for n in range(40)})
    assert zorder_keys(wide).is_sorted()


def test_zorder_lets_conditions_on_each_column_skip_files(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"x": pl.Int64, "y": pl.Int64}, upkeep=False)
    size = 512
    frame = pl.DataFrame(
        {"x": [n % size for n in range(size**2)], "y": [n // size for n in range(size**2)]}
    ).sample(fraction=1, shuffle=True, seed=3)
    for part in frame.iter_slices(1 << 16):
        table.append(part)
    table.compact(zorder_by=["x", "y"], target_bytes=20_000)
    files = table.snapshot().num_files()
    assert files >= 4
    for column in ("x", "y"):
        kept = table.snapshot().files(pl.col(column) == 5).collect().height
        assert kept <= files // 2 + 1, (column, kept, files)


def test_only_partitions_of_the_condition_are_compacted(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    report = table.compact(where="p = 'a'")
    assert (report.num_removed_files, report.num_files) == (3, 1)
    parameters = table.history(1)["operationParameters"].item()
    assert dict(parameters)["predicate"] == "[\"p = 'a'\"]"


def test_file_that_cannot_be_read_is_skipped_with_a_warning(tmp_path: Path) -> None:
    table = new_table(tmp_path, 6)
    path = table.snapshot().files(pl.col("p") == "a").collect()["path"][0]
    (tmp_path / path).write_bytes(b"damaged")
    with pytest.warns(LakelogWarning, match="was not compacted"):
        report = table.compact()
    assert list(report.skipped) == [path]
    assert (report.num_removed_files, report.num_files) == (4, 2)
    assert table.compact().version is None, "the file is in cooldown for a day"


def test_compaction_replans_if_files_are_removed_concurrently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = new_table(tmp_path, 9), lakelog.open(tmp_path, upkeep=False)
    real, done = read_files, list[int]()

    def meanwhile(*args: Any, **more: Any) -> Any:
        if not done:
            done.append(1)
            other.delete(pl.col("p") == "a")
            other.append(rows(other).head(1).with_columns(p=pl.lit("b")))
        return real(*args, **more)

    monkeypatch.setattr(bin_rewrite, "read_files", meanwhile)
    before = rows(table)
    report = table.compact()
    now = rows(table)
    added = before.filter(pl.col("p") == "b").clear()
    kept = before.filter(pl.col("p") != "a")
    assert now.height == kept.height + 1 + added.height
    assert report.is_complete
    live = set(table.snapshot().files().collect()["path"])
    written = {str(f.relative_to(tmp_path)) for f in tmp_path.glob("p=*/*.parquet")}
    named = set(table.actions().collect()["path"].drop_nulls())
    assert written <= named, "files of the dropped group are deleted"
    assert live <= written


def test_removed_files_have_the_row_ids_of_a_concurrent_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removes repeat those of the last add: Delta protocol, Writer Requirements, Row Tracking."""
    table, other = new_table(tmp_path, 6), lakelog.open(tmp_path, upkeep=False)
    table.alter.upgrade(["rowTracking"])
    real, done = read_files, list[int]()

    def meanwhile(*args: Any, **more: Any) -> Any:
        if not done:
            done.append(1)
            with other.transaction() as tx:
                tx.add(tx.read().collect(), dataChange=False)
        return real(*args, **more)

    monkeypatch.setattr(bin_rewrite, "read_files", meanwhile)
    before = table.version()
    assert table.compact().num_removed_files == 6
    ids = ["path", "baseRowId", "defaultRowCommitVersion"]
    added = table.snapshot(before + 1).files().select(ids).sort("path").collect()
    assert added["baseRowId"].null_count() == 0
    assert_frame_equal(table.snapshot().tombstones().select(ids).sort("path").collect(), added)


@pytest.mark.parametrize("nth", range(1, 26, 3))
def test_failed_write_keeps_the_rows_and_leaves_no_orphan_file(nth: int) -> None:
    location = f"memory://compact-{nth}"
    table = new_table(location, 6)
    before = rows(table)
    store = InjectingStore(
        open_store(location), [Rule("fail", ("upload", "put_if_absent"), nth=nth)]
    )
    with contextlib.suppress(lakelog.LakelogError):
        Table(Log(store, table.log.dialect)).compact(commit_bytes=1)
    fresh = lakelog.open(location, upkeep=False)
    assert_frame_equal(rows(fresh), before)
    named = set(fresh.actions().collect()["path"].drop_nulls())
    present = {e.name for batch in open_store(location).walk() for e in batch}
    assert {n for n in present if not n.startswith("_delta_log/")} <= named


@pytest.mark.parametrize("step", ["_counted", "_metrics", "_still_there"])
def test_interrupt_after_files_were_written_leaves_no_orphan_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, other = new_table(tmp_path, 6), lakelog.open(tmp_path, upkeep=False)
    real = read_files

    def meanwhile(*args: Any, **more: Any) -> Any:
        other.delete(pl.col("p") == "a")
        return real(*args, **more)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bin_rewrite, "read_files", meanwhile)
    monkeypatch.setattr(f"lakelog.data.compact.{step}", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.compact()
    named = set(table.actions().collect()["path"].drop_nulls())
    assert {str(f.relative_to(tmp_path)) for f in tmp_path.glob("p=*/*.parquet")} <= named


def test_invalid_order_raises(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t", 2)
    for columns, text in (("p", "partition column"), ("nope", "no column 'nope'")):
        with pytest.raises(InvalidInputError, match=text):
            table.compact(order_by=columns)
    with pytest.raises(InvalidInputError, match="either order_by or zorder_by"):
        table.compact(order_by="id", zorder_by="v")


def test_clustered_tables_and_variants_are_not_sorted_along_a_curve(tmp_path: Path) -> None:
    handmade = Handmade(tmp_path)
    columns = '{"clusteringColumns":[["id"]]}'
    domain = {"domain": "delta.clustering", "configuration": columns, "removed": False}
    handmade.commit(
        0,
        protocol(1, 7, writerFeatures=["clustering", "domainMetadata"]),
        metadata(field("id", "long"), field("x", "long")),
        {"domainMetadata": domain},
    )
    table = handmade.table
    for number in range(2):
        table.append(pl.DataFrame({"id": [number], "x": [1]}))
    with pytest.raises(InvalidInputError, match="clustered table"):
        table.compact(zorder_by="x")
    assert table.compact().num_removed_files == 2
    variant = lakelog.create(
        tmp_path / "v", contract.Struct((contract.Field("v", contract.VARIANT),))
    )
    orders: list[dict[str, Any]] = [{"zorder_by": "v"}, {"order_by": "v"}]
    for order in orders:
        with pytest.raises(InvalidInputError, match="cannot be sorted by this column"):
            variant.compact(**order)
