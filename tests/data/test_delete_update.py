"""`Table.delete` and `Table.update`: read files, written files, and errors."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import lakelog
from lakelog import ConflictError, Table
from lakelog.data.row_commit import WriteReport
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    InvalidTransactionError,
    UnsupportedFeatureError,
)
from lakelog.transaction.row_tracking import ROW_ID_COLUMN
from tests.data.rows import changes_of, commit_info, data_files
from tests.data.test_append import frame, new_table

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
ROWS = frame(*((p, n, n / 2) for p in "ab" for n in range(0 if p == "a" else 100, 200, 2)))


FAR = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)


def ids(table: Table) -> list[int]:
    return sorted(table.snapshot().scan().collect()["id"].to_list())


def adds(path: Path, version: int) -> list[dict[str, Any]]:
    lines = (path / "_delta_log" / f"{version:020}.json").read_text("utf-8").splitlines()
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


@pytest.mark.parametrize("vectors", [False, True])
def test_files_with_no_or_only_matching_rows_are_not_opened(tmp_path: Path, vectors: bool) -> None:
    table = new_table(tmp_path, **(VECTORS if vectors else {}))
    table.append(frame(("a", 1, 0.0), ("b", 2, 0.0), ("c", 3, 0.0), ("d", 4, 0.0), ("d", 5, 0.0)))
    for partition in "abc":
        (file,) = tmp_path.glob(f"p={partition}/*.parquet")
        file.unlink()
    report = table.delete("p = 'a' OR id = 2 OR id > 4")
    assert (report.num_removed_files, report.num_deleted_rows) == (2 + (not vectors), 3)
    live = table.snapshot().files().collect()
    assert [dict(p)["p"] for p in live["partitionValues"]] == ["c", "d"]


@pytest.mark.parametrize(
    "matches",
    [
        ~pl.col("id").is_between(None, -3),
        ~pl.col("id").is_between(pl.lit(None, dtype=pl.Int8), -3),
        ~pl.col("id").is_between(4, pl.lit(None) + 1),
        ~((pl.col("id") > 1) & pl.lit(None)),
        (pl.col("id") > 1) | pl.lit(None),
        pl.col("id").is_between(None, -3).is_null(),
        ~pl.col("x").struct.field("y").is_between(None, -3),
        ~pl.col("p").is_between(None, pl.lit("a")),
    ],
    ids=str,
)
def test_null_operand_selects_the_rows_to_replace_and_delete_as_in_polars(
    tmp_path: Path, matches: pl.Expr
) -> None:
    files = [[-5, -3], [7, 8], [1, 2], [-4, 5]]
    rows = pl.concat(
        pl.DataFrame({"id": ids, "p": [chr(ids[1] + 100)] * 2, "x": [{"y": n} for n in ids]})
        for ids in files
    )
    table = lakelog.create(tmp_path, rows.schema, partition_by="p")
    for number in range(len(files)):
        table.append(rows[2 * number : 2 * number + 2])
    matching = rows.filter(rows.select(outcome=matches)["outcome"])
    assert_frame_equal(table.scan(matches).collect(), matching, check_row_order=False)
    table.overwrite(matching, matches)
    assert_frame_equal(table.to_polars(), rows, check_row_order=False)
    assert table.delete(matches).num_deleted_rows == matching.height
    left = rows.join(matching, on="id", how="anti")
    assert_frame_equal(table.to_polars(), left, check_row_order=False)


def without_statistics(path: Path, version: int) -> None:
    """Remove the statistics of a commit's files from the log."""
    commit = path / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in commit.read_text("utf-8").splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    commit.write_text("\n".join(map(json.dumps, actions)), "utf-8")


@pytest.mark.parametrize("vectors", [False, True])
def test_rows_of_removed_files_without_statistics_are_counted_by_their_footers(
    tmp_path: Path, vectors: bool
) -> None:
    new_table(tmp_path, **(VECTORS if vectors else {})).append(ROWS)
    without_statistics(tmp_path, 1)
    table = lakelog.open(tmp_path, upkeep=False)
    if vectors:
        table.delete("id = 2")
    report = table.delete("p = 'a'")
    assert report.num_deleted_rows == 100 - vectors
    metrics = commit_info(tmp_path, table.version())["operationMetrics"]
    assert metrics["numDeletedRows"] == str(report.num_deleted_rows)


def test_rows_of_a_removed_file_that_cannot_be_read_are_unknown(tmp_path: Path) -> None:
    new_table(tmp_path).append(ROWS)
    without_statistics(tmp_path, 1)
    (file,) = tmp_path.glob("p=a/*.parquet")
    file.unlink()
    table = lakelog.open(tmp_path, upkeep=False)
    report = table.delete("p = 'a'")
    assert (report.num_removed_files, report.num_deleted_rows) == (1, None)
    assert ("deleted rows", "unknown") in report.facts
    metrics = commit_info(tmp_path, table.version())["operationMetrics"]
    assert "numDeletedRows" not in metrics
    assert min(ids(table)) >= 100


def test_deletes_write_deletion_vectors_and_merge_them(tmp_path: Path) -> None:
    table = new_table(tmp_path, **VECTORS)
    table.append(ROWS)
    before = data_files(tmp_path)
    stats = {add["path"]: json.loads(add["stats"]) for add in adds(tmp_path, 1)}
    assert table.delete(pl.col("id") % 3 == 0).num_deletion_vectors == 2
    assert table.delete(pl.col("id") % 5 == 0).num_deletion_vectors == 2
    assert data_files(tmp_path) == before
    assert ids(table) == sorted(n for n in ROWS["id"] if n % 3 and n % 5)
    for add in adds(tmp_path, 3):
        assert json.loads(add["stats"]) == {**stats[add["path"]], "tightBounds": False}
        assert add["dataChange"]
    info = commit_info(tmp_path, 3)["operationMetrics"]
    assert info["numDeletionVectorsAdded"] == "2"
    assert info["numDeletionVectorsRemoved"] == "2"
    assert info["numDeletionVectorsUpdated"] == "2"
    assert table.delete(pl.col("p") == "a").num_removed_files == 1
    assert table.delete(pl.col("id") % 2 == 0).num_removed_files == 1
    assert not table.snapshot().num_files()


def test_decimal_statistics_that_were_rounded_to_doubles_exclude_no_row(tmp_path: Path) -> None:
    texts = ["123456789012345678.0000000001", "-9999999999999999999999999999.9999999999", "1.5"]
    rows = pl.DataFrame({"m": texts}).cast(pl.Decimal(38, 10))
    for n in range(rows.height):
        deltalake.write_deltalake(tmp_path, rows[n : n + 1].to_arrow(), mode="append")
    table = lakelog.open(tmp_path, upkeep=False)
    for row in rows["m"]:
        assert table.to_polars(pl.col("m") == row)["m"].to_list() == [row]
    assert table.delete(f"m < {texts[0]}").num_deleted_rows == 2
    assert table.to_polars()["m"].to_list() == [rows["m"][0]]


def test_rows_that_are_copied_and_updated_keep_their_order(tmp_path: Path) -> None:
    table = new_table(tmp_path, by=())
    for start in range(0, 6_000, 2_000):
        table.append(frame(*(("a", start + n, 0.0) for n in range(2_000))))
    table.update({"x": -0.0, "p": "CASE WHEN id % 2 = 0 THEN 'b' END"}, "id % 7 = 3")
    merge = table.merge(frame(("m", 6, 6.5), ("m", 4_000, 7.5), ("m", 5_000, 8.5)), on="id")
    merge.when_matched_delete("source.id = 4000").when_matched_update_all().execute()
    rows = table.to_polars()
    assert rows["id"].to_list() == [n for n in range(6_000) if n != 4_000]
    expected = [
        ("m", 6.5 if n == 6 else 8.5)
        if n in {6, 5_000}
        else ({0: "b", 1: None}[n % 2], -0.0)
        if n % 7 == 3
        else ("a", 0.0)
        for n in rows["id"]
    ]
    assert list(map(repr, rows.select("p", "x").rows())) == list(map(repr, expected))


def test_files_of_updated_rows_keep_their_place_in_the_order(tmp_path: Path) -> None:
    table = new_table(tmp_path, by=())
    for start in (0, 10):
        table.append(frame(*(("a", start + n, 0.0) for n in range(10))))
    table.update({"x": 1.5}, "id >= 5")  # all rows of the second file, some of the first
    assert table.to_polars()["id"].to_list() == list(range(20))


@pytest.mark.parametrize("verb", ["append", "update", "merge", "delete", "create"])
def test_large_files_have_ranges_that_do_not_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr("lakelog.data.write._ROW_GROUP_ROWS", 1 << 10)
    monkeypatch.setattr("lakelog.data.write._PIECE_ROWS", 1 << 8)
    monkeypatch.setattr("lakelog.data.rewrite.BATCH_ROWS", 1 << 8)
    monkeypatch.setattr("lakelog.data.row_commit.os.cpu_count", lambda: 4)
    rows = pl.DataFrame({"id": range(10_000)}, schema={"id": pl.Int64})
    rows = rows.select(p=pl.lit("a"), id="id", x=pl.lit(0.5))
    if verb == "create":
        lakelog.write(tmp_path / "t", rows)
        table = lakelog.open(tmp_path / "t", upkeep=False)
    else:
        table = new_table(tmp_path, by=())
        for part in [rows] if verb == "append" else rows.iter_slices(1_000):
            table.append(part)
    expected = rows["id"].to_list()
    if verb == "update":
        table.update({"x": 1.5}, "id % 100 = 3")
    elif verb == "merge":
        table.upsert(rows.gather_every(7).with_columns(x=2.5), on=["id"])
    elif verb == "delete":
        table.delete("id % 100 = 3")
        expected = [n for n in expected if n % 100 != 3]
    assert table.to_polars()["id"].to_list() == expected
    bounds = [json.loads(text) for text in table.snapshot().files().collect()["stats"]]
    assert len(bounds) == 4
    ranges = sorted((b["minValues"]["id"], b["maxValues"]["id"]) for b in bounds)
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(ranges))


def test_short_vectors_are_in_the_log_and_long_ones_in_one_file(tmp_path: Path) -> None:
    table = new_table(tmp_path, by=(), **VECTORS)
    for start in (0, 10_000, 20_000):
        table.append(frame(*(("a", start + n, 0.5) for n in range(5_000))))
    table.delete(pl.col("id") % 10_000 == 7)
    kinds = [add["deletionVector"]["storageType"] for add in adds(tmp_path, 4)]
    assert kinds == ["i"] * 3
    assert not list(tmp_path.glob("*.bin"))
    table.delete(pl.col("id") % 3 == 0)
    vectors = [add["deletionVector"] for add in adds(tmp_path, 5)]
    assert [v["storageType"] for v in vectors] == ["u"] * 3
    assert len({v["pathOrInlineDv"] for v in vectors}) == len(list(tmp_path.glob("*.bin"))) == 1
    assert sum(v["cardinality"] for v in vectors) == 15_000 - len(ids(table))
    table.vacuum(retention="200 hours").apply()
    assert len(ids(table)) == 9_998


def test_rows_of_small_files_around_files_that_match_whole_are_copied(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"delta.dataSkippingNumIndexedCols": "0"})
    table.append(frame(*((f"{n // 3:02}", n, 0.5) for n in range(60))))  # three rows per file
    kept = [n for n in range(60) if n % 6 in {3, 4}]
    report = table.delete(~pl.col("id").is_in(kept))
    assert ids(table) == kept
    assert report.num_copied_rows == len(kept)


@pytest.mark.parametrize("where", [None, "true", pl.lit(True)])
def test_delete_of_all_rows_needs_an_explicit_argument(tmp_path: Path, where: Any) -> None:
    table = new_table(tmp_path)
    table.append(ROWS)
    with pytest.raises(TypeError):
        table.delete()  # type: ignore[call-arg]
    assert table.delete(where).num_deleted_rows == ROWS.height
    assert ids(table) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda table, app: table.delete("id = 99", **app),
        lambda table, app: table.update({"id": 98}, "id = 99", **app),
        lambda table, app: (
            table.merge(pl.DataFrame({"id": [99]}), "id", **app).when_matched_delete().execute()
        ),
    ],
    ids=["delete", "update", "merge"],
)
def test_an_application_version_is_recorded_if_no_row_changes(
    tmp_path: Path, change: Callable[[Table, dict[str, Any]], WriteReport]
) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"id": [1]}))
    table = lakelog.open(tmp_path, upkeep=False)
    app = {"app_id": "job", "app_version": 1}
    assert change(table, app).version == 1
    table.append(pl.DataFrame({"id": [99]}))
    assert change(table, app).duplicate
    assert change(table, {}).version == 3


def test_nothing_is_committed_if_no_row_matches(tmp_path: Path) -> None:
    table = new_table(tmp_path, **VECTORS)
    table.append(ROWS)
    for where in ("id = 1", "id = -1", "p = 'z'", "id = 3 AND p = 'a'"):
        assert table.delete(where).version is None
        assert table.update({"x": 1.0}, where).version is None
    assert table.version() == 1


def test_commit_info_of_deletes_and_updates_has_the_fields_of_delta(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(ROWS)
    table.delete((pl.col("id") > 150) & (pl.col("p") == "a"), user_metadata="by hand")
    info = commit_info(tmp_path, 2)
    assert (info["operation"], info["userMetadata"]) == ("DELETE", "by hand")
    assert info["operationParameters"] == {"predicate": "[\"((`id` > 150) AND (`p` = 'a'))\"]"}
    metrics = {key: info["operationMetrics"][key] for key in ("numDeletedRows", "numCopiedRows")}
    assert metrics == {"numDeletedRows": "24", "numCopiedRows": "76"}
    assert not info["isBlindAppend"]
    table.update({"x": 0.0})
    info = commit_info(tmp_path, 3)
    assert (info["operation"], info["operationParameters"]) == ("UPDATE", {"predicate": "[]"})
    assert info["operationMetrics"]["numUpdatedRows"] == str(ROWS.height - 24)


def test_update_of_a_partition_column_moves_rows(tmp_path: Path) -> None:
    table = new_table(tmp_path, **FEED)
    table.append(frame(("a", 1, 0.5), ("b", 2, 1.5)))
    report = table.update({"p": "'b'", "x": pl.col("x") + pl.col("id")}, "id = 1")
    assert (report.num_updated_rows, report.num_removed_files, report.num_files) == (1, 1, 1)
    found = table.snapshot().scan().sort("id").collect()
    assert found.rows() == [("b", 1, 1.5), ("b", 2, 1.5)]
    assert changes_of(tmp_path, 2) == [("update_postimage", 1), ("update_preimage", 1)]


@pytest.mark.parametrize(
    "where",
    [
        "id % 5 = 1 AND day = '2026-01-01'",
        "day IN ('2026-01-01', '2027-01-01') AND CAST(s AS INT) = 7",
        "at >= TIMESTAMP '2026-01-01 00:00:00' AND id BETWEEN 2 AND 0 OR id % 5 = 1",
        "id BETWEEN 0 AND 2 AND at <> TIMESTAMP '2025-01-01 00:00:00' AND NOT id % 2 = 0",
    ],
)
def test_literals_get_the_type_of_their_column_next_to_expressions_that_can_fail(
    tmp_path: Path, where: str
) -> None:
    day = dt.date(2026, 1, 1)
    rows = pl.DataFrame({"id": [1], "day": [day], "s": ["7"], "at": [FAR]})
    table = lakelog.create(tmp_path, rows.schema, upkeep=False)
    table.append(pl.concat([rows, rows.with_columns(pl.col("id") + 2, s=pl.lit("8"))]))
    assert table.delete(where).num_deleted_rows == 1
    assert ids(table) == [3]


def test_columns_of_an_update_are_found_in_any_case(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(("a", 1, 0.5), ("b", 2, 1.5)))
    table.update({"ID": "X * 2", "X": "ID"}, "P = 'b'")
    assert table.to_polars().sort("id").rows() == [("a", 1, 0.5), ("b", 3, 2.0)]
    with pytest.raises(InvalidInputError, match="the column 'x' has two new values"):
        table.update({"X": 1.0, "x": 2.0})
    with pytest.raises(InvalidInputError, match="no column 'Y'"):
        table.update({"Y": 1.0})


def test_literals_of_sql_text_get_the_type_of_their_column(tmp_path: Path) -> None:
    schema: dict[str, Any] = {
        "d": pl.Date,
        "t": pl.Datetime("us", "UTC"),
        "x": pl.Float64,
        "f": pl.Float32,
    }
    table = new_table(tmp_path, schema, by=())
    table.append(pl.DataFrame({name: [None] for name in schema}, schema=schema))
    table.update({"d": "'2026-01-05'", "t": "'2026-01-05T01:00:00Z'", "x": "1.5", "f": "2"})
    (row,) = table.snapshot().scan().collect().rows()
    moment = dt.datetime(2026, 1, 5, 1, tzinfo=dt.UTC)
    assert row == (dt.date(2026, 1, 5), moment, 1.5, 2.0)
    with pytest.raises(InvalidInputError, match="the string 'tomorrow' as date"):
        table.update({"d": "'tomorrow'"})


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("big", "-9223372036854775808", -(2**63)),
        ("big", "CAST(s AS BIGINT) - 1", 6),
        ("price", f"-{'9' * 20}.{'9' * 18}", Decimal(f"-{'9' * 20}.{'9' * 18}")),
        ("big", "big * 9223372036854775807", "an overflow of bigint"),
        ("at", "'2026-01-06T10:00:00+02:00'", dt.datetime(2026, 1, 6, 8, tzinfo=dt.UTC)),
        ("at", "'06.01.2026'", "the string '06.01.2026' as timestamp"),
        ("at", "s", "a string that is not a time such as"),
        ("day", "'x'", "the string 'x' as date"),
    ],
)
def test_new_value_of_sql_text_is_written_exactly_or_refused(
    tmp_path: Path, name: str, text: str, expected: Any
) -> None:
    rows = pl.DataFrame(
        {"big": [2], "s": ["7"], "price": [Decimal(1)], "at": [FAR], "day": [FAR.date()]},
        schema_overrides={"price": pl.Decimal(38, 18)},
    )
    lakelog.write(tmp_path, rows)
    table = lakelog.open(tmp_path)
    if isinstance(expected, str):
        with pytest.raises(InvalidInputError, match=expected):
            table.update({name: text})
        expected = rows[name][0]
    else:
        table.update({name: text})
    assert table.to_polars()[name].to_list() == [expected]


def test_condition_that_a_value_makes_fail_raises_and_nothing_is_written(tmp_path: Path) -> None:
    table = new_table(tmp_path, {"s": pl.String}, by=())
    table.append(pl.DataFrame({"s": ["7", "x"]}))
    where = "CAST(s AS INT) = 7"
    for call in (table.delete, table.to_polars, lambda w: table.update({"s": None}, w)):
        with pytest.raises(InvalidInputError, match="condition cannot be computed") as raised:
            call(where)
        assert raised.value.found is None  # not the expression into which the text was translated
    merge = table.merge(pl.DataFrame({"s": ["x"]}), on="s")
    with pytest.raises(InvalidInputError, match="condition cannot be computed"):
        merge.when_matched_delete("CAST(source.s AS INT) = 7").execute()
    assert table.version() == 1
    assert table.delete("TRY_CAST(s AS INT) = 7").num_deleted_rows == 1


def test_change_data_is_written_unless_whole_files_are_removed(tmp_path: Path) -> None:
    table = new_table(tmp_path, **FEED, **VECTORS)
    table.append(frame(("a", 1, 0.5), ("b", 2, 1.5), ("b", 3, 1.5)))
    table.delete("p = 'a'")
    assert not (tmp_path / "_change_data").exists()
    assert changes_of(tmp_path, 2) == [("delete", 1)]
    table.append(frame(("a", 1, 0.5)))
    table.delete("p = 'a' OR id = 2")
    assert changes_of(tmp_path, 4) == [("delete", 1), ("delete", 2)]


def test_change_that_could_lose_row_ids_raises(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"delta.enableRowTracking": "true"})
    table.append(ROWS)
    log = tmp_path / "_delta_log"
    actions = map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
    (metadata,) = (action for action in actions if "metaData" in action)
    del metadata["metaData"]["configuration"][ROW_ID_COLUMN]
    (log / f"{2:020}.json").write_text(json.dumps(metadata))
    before = data_files(tmp_path)
    changes: list[Callable[[], Any]] = [
        lambda: table.delete("id % 3 = 0"),
        lambda: table.update({"x": 1.0}),
        lambda: table.upsert(ROWS.head(1), "id"),
        lambda: table.overwrite(ROWS.head(1), "id = 0"),
        lambda: table.compact(order_by="id"),
        lambda: table.scan(row_ids=True),
    ]
    for change in changes:
        with pytest.raises(UnsupportedFeatureError) as refused:
            change()
        assert (refused.value.expected, refused.value.found) == (ROW_ID_COLUMN, "rowTracking")
    assert data_files(tmp_path) == before
    assert table.delete("p = 'a'").version == 3


def test_row_ids_without_row_tracking_raise(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    with pytest.raises(InvalidInputError, match="no row ids"):
        table.scan(row_ids=True)
    tracked = {"delta.enableRowTracking": "true"}
    named = new_table(tmp_path / "named", {"_row_id": pl.Int64}, (), **tracked)
    with pytest.raises(InvalidInputError, match="has their name"):
        named.scan(row_ids=True)


def test_changes_of_append_only_tables_and_indextables_raise(tmp_path: Path) -> None:
    table = new_table(tmp_path / "delta", **{"delta.appendOnly": "true"})
    table.append(ROWS)
    changes: list[Callable[[], Any]] = [
        lambda: table.delete("id % 3 = 0"),
        lambda: table.delete(None),
        lambda: table.update({"x": 1.0}),
        lambda: table.overwrite(ROWS),
    ]
    files = data_files(tmp_path)
    for change in changes:
        with pytest.raises(InvalidTransactionError, match="append-only"):
            change()
    assert data_files(tmp_path) == files
    index = lakelog.create(tmp_path / "index", {"id": pl.Int64}, format="indextables")
    with pytest.raises(UnsupportedFeatureError, match="not in Parquet files"):
        index.delete(None)


def test_double_as_a_decimal_is_refused_with_the_cast(tmp_path: Path) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"m": [Decimal("1.00")]}, {"m": pl.Decimal(10, 2)}))
    table = lakelog.open(tmp_path)
    with pytest.raises(InvalidInputError, match=r"pl\.col\('m'\)\.cast\(pl\.Decimal\(10, 2\)\)"):
        table.update({"m": 1.5})
    table.update({"m": Decimal("1.5")})
    assert table.to_polars()["m"].to_list() == [Decimal("1.50")]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "at least one column"),
        ({"y": 1}, "no column 'y'"),
        ({"x": pl.col("y")}, "the new value of 'x' uses a column"),
        ({"x": pl.col("x").sum()}, "row by row"),
        (
            {"x": pl.col("x").map_batches(lambda v: v - v.min(), return_dtype=pl.Int64)},
            "row by row",
        ),
        ({"x": "not sql ("}, "text that cannot be parsed"),
        ({"x": "'text'"}, "'x'"),
        ({"id": 1.5}, "without loss"),
        ({"id": pl.col("x")}, "without loss"),
        ({"id": None}, "NOT NULL"),
        ({"id": "id * 9223372036854775807"}, "cannot be computed"),
    ],
)
def test_invalid_values_raise_before_anything_is_written(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    schema = lakelog.model.contract.parse_schema(
        '{"type":"struct","fields":['
        '{"name":"id","type":"long","nullable":false,"metadata":{}},'
        '{"name":"x","type":"double","nullable":true,"metadata":{}}]}'
    )
    table = lakelog.create(tmp_path, schema, upkeep=False)
    table.append(pl.DataFrame({"id": [1, 2], "x": [0.5, 1.0]}))
    files = data_files(tmp_path)
    with pytest.raises(InvalidInputError, match=message):
        table.update(values)
    assert data_files(tmp_path) == files
    assert table.version() == 1


@pytest.mark.parametrize("vectors", [False, True])
def test_writers_on_the_same_file_conflict_and_on_others_do_not(
    tmp_path: Path, vectors: bool
) -> None:
    table = new_table(tmp_path, **(VECTORS if vectors else {}))
    table.append(ROWS)
    table.delete("id % 3 = 0 AND p = 'a'")
    others = table.update({"x": 0.0}, "id % 3 = 0 AND p = 'b'", version=1)
    assert others.version == 3
    changes: list[Callable[[], Any]] = [
        lambda: table.delete("id % 5 = 0 AND p = 'a'", version=1),
        lambda: table.update({"x": 0.0}, "id % 5 = 0 AND p = 'a'", version=1),
    ]
    for change in changes:
        kept = data_files(tmp_path)
        with pytest.raises(ConflictError):
            change()
        assert data_files(tmp_path) == kept


def test_damaged_deletion_vector_raises_and_nothing_is_written(tmp_path: Path) -> None:
    table = new_table(tmp_path, by=(), **VECTORS)
    table.append(frame(*(("a", n, 0.5) for n in range(5_000))))
    table.delete("id % 3 = 0")
    (vector,) = tmp_path.glob("*.bin")
    vector.write_bytes(vector.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptionError, match="checksum"):
        lakelog.open(tmp_path).delete("id % 5 = 0")
    assert list(tmp_path.glob("*.bin")) == [vector]
    assert table.version() == 2


@pytest.mark.parametrize("as_json", ["true", "false"])
def test_recorded_counts_without_the_deleted_rows_lose_no_row(tmp_path: Path, as_json: str) -> None:
    """Trino's ANALYZE records the rows that a deletion vector leaves as ``numRecords``."""
    typed = {"writeStatsAsStruct": "true", "writeStatsAsJson": as_json}
    columns = {f"delta.checkpoint.{name}": value for name, value in typed.items()}
    table = new_table(tmp_path, **VECTORS, **columns)
    table.append(frame(*(("a", n, float(n)) for n in range(10))))
    table.delete("id IN (1, 2, 3)")
    (add,) = adds(tmp_path, 2)
    add["stats"] = '{"numRecords":7,"minValues":{"id":0},"maxValues":{"id":9},"nullCount":{"id":0}}'
    analyzed = json.dumps({"add": add | {"dataChange": False}})
    (tmp_path / "_delta_log" / f"{3:020}.json").write_text(analyzed, "utf-8")
    lakelog.open(tmp_path).checkpoint()
    table = lakelog.open(tmp_path)
    assert table.snapshot().num_rows() == 7
    # Seven less three would make it look as if all rows matched.
    assert table.delete("id >= 6").num_deleted_rows == 4
    assert ids(table) == [0, 4, 5]
    table.restore(version=3)
    assert table.compact().num_removed_files == 1
    assert ids(table) == [0, 4, 5, 6, 7, 8, 9]
    table.restore(version=3)
    assert table.delete("p = 'a'").num_removed_files == 1
    assert table.snapshot().num_rows() == 0


@pytest.mark.parametrize("feed", ["false", "true"])
def test_every_column_is_replaced_with_deletion_vectors(tmp_path: Path, feed: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("by", pa.string())])
    configuration = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": feed}
    table = lakelog.create(tmp_path, schema, ["by"], configuration=configuration, upkeep=False)
    table.append(pa.table({"id": [1, 2, 3], "by": ["a", "a", "b"]}, schema))
    assert table.update({"id": 7, "by": "'c'"}, "by = 'a'").num_updated_rows == 2
    assert table.update({"id": 9}, "id = 3").num_updated_rows == 1
    assert sorted(table.to_polars().rows()) == [(7, "c"), (7, "c"), (9, "b")]
    assert table.update({"id": 8, "by": "'d'"}, None).num_updated_rows == 3
    assert table.to_polars().rows() == [(8, "d")] * 3


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("f", 0.1),
        ("s", {"x": 0.1, "y": 0.1, "n": 1}),
        ("l", [0.1, None]),
        ("l", (0.1, float("nan"), float("inf"))),
        ("m", {"a": [0.1]}),
    ],
)
def test_floats_of_python_have_the_precision_of_the_column_at_every_depth(
    tmp_path: Path, column: str, value: Any
) -> None:
    schema: dict[str, Any] = {
        "f": pl.Float32,
        "s": pl.Struct({"x": pl.Float32, "y": pl.Float64, "n": pl.Int64}),
        "l": pl.List(pl.Float32),
        "m": pl.Map(pl.String, pl.List(pl.Float32)),
    }
    table = lakelog.create(tmp_path, schema, upkeep=False)
    table.append(pl.DataFrame({"f": [0.5]}, {"f": pl.Float32}))
    table.update({column: value})
    wanted = pl.Series(column, [value], schema[column])
    assert table.to_polars()[column].equals(wanted)
    for large in ({"f": 1e300}, {"l": [1e300]}, {"l": [pl.lit(0.1)]}):
        with pytest.raises(InvalidInputError):
            table.update(large)
