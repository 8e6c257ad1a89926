"""`overwrite_partitions`: the partitions that have rows in the input are replaced."""

from __future__ import annotations

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakelog
from lakelog import (
    ConflictError,
    ConstraintViolationError,
    DuplicateFileError,
    InvalidInputError,
    InvalidTransactionError,
    LakelogWarning,
    Table,
    UnsupportedFeatureError,
)
from tests.budget import share_of
from tests.data.rows import changes_of, commit_info, data_files
from tests.handmade import Handmade, add, field, metadata, protocol

SCHEMA = {"p": pl.String, "id": pl.Int64}


def frame(*rows: tuple[str | None, int]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=SCHEMA, orient="row")


ROWS = frame(("a", 1), ("b", 2), ("a", 3), (None, 4))


def new_table(path: Path, by: Iterable[str] = ("p",), **configuration: str) -> Table:
    table = lakelog.create(path, SCHEMA, list(by), configuration=configuration, upkeep=False)
    table.append(ROWS)
    return table


def ids(table: Table) -> list[int]:
    return sorted(table.to_polars()["id"])


@pytest.mark.parametrize("mapped", ["none", "name"])
def test_partitions_of_the_rows_are_replaced_and_others_are_kept(
    tmp_path: Path, mapped: str
) -> None:
    table = new_table(tmp_path, **{"delta.columnMapping.mode": mapped})
    report = table.overwrite_partitions(frame(("a", 5), (None, 6), ("new", 7)))
    assert (report.version, report.num_rows, report.num_files) == (2, 3, 3)
    assert (report.num_removed_files, report.num_copied_rows) == (2, 0)
    assert ids(table) == [2, 5, 6, 7]
    info = commit_info(tmp_path, 2)
    assert info["operation"] == "WRITE"
    assert info["operationParameters"] == {
        "mode": "Overwrite",
        "partitionBy": '["p"]',
        "isDynamicPartitionOverwrite": "true",
    }
    assert info["operationMetrics"]["numRemovedFiles"] == "2"
    assert not info["isBlindAppend"]


@pytest.mark.parametrize("rows", [ROWS.clear(), ROWS.lazy().filter(pl.col("id") > 9)])
def test_without_rows_no_partition_is_replaced(tmp_path: Path, rows: Any) -> None:
    table = new_table(tmp_path)
    assert table.overwrite_partitions(rows).version is None
    assert ids(table) == [1, 2, 3, 4]


def test_table_without_partition_columns_is_replaced_completely(tmp_path: Path) -> None:
    table = new_table(tmp_path, by=())
    table.overwrite_partitions(frame(("a", 5)))
    assert ids(table) == [5]
    assert "isDynamicPartitionOverwrite" not in commit_info(tmp_path, 2)["operationParameters"]
    table.overwrite_partitions(ROWS.clear())
    assert ids(table) == []


def test_write_creates_the_table_and_then_replaces_partitions(tmp_path: Path) -> None:
    for rows in (ROWS, frame(("a", 5))):
        lakelog.write(tmp_path, rows, "overwrite_partitions", "p")
    assert ids(lakelog.open(tmp_path)) == [2, 4, 5]
    with pytest.raises(InvalidInputError, match="partitioned by other columns"):
        lakelog.write(tmp_path, ROWS, "overwrite_partitions", "id")
    with pytest.raises(InvalidInputError, match="where needs mode 'overwrite'"):
        lakelog.write(tmp_path, ROWS, "overwrite_partitions", where="id = 1")


PARTS: dict[Any, list[Any]] = {
    pl.Int32(): [None, 0, -3, 1 << 30],
    pl.Boolean(): [None, True, False],
    pl.Date(): [None, dt.date(1969, 12, 31), dt.date(2026, 1, 2)],
    pl.Datetime("us", "UTC"): [
        None,
        *(dt.datetime(2026, 1, 1, 12, 0, 0, n, dt.UTC) for n in (0, 1, 120_000)),
        dt.datetime(1960, 1, 1, tzinfo=dt.UTC),
    ],
    pl.Datetime("us"): [None, dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, 0, 0, 0, 1)],
    pl.Decimal(10, 3): [None, Decimal("1.5"), Decimal("-0.25"), Decimal(0)],
    pl.String(): [None, "a", "A", "a/b=ü %", "null", "1"],
    pl.Binary(): [None, b"a", "ü".encode()],
    pl.Float64(): [None, 0.0, -0.0, 0.1, float("nan"), -float("nan"), float("inf"), 1e300],
    pl.Float32(): [None, 0.0, -0.0, 0.5, float("nan"), float("-inf")],
}


def of_model(rows: list[tuple[Any, ...]], new: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows that a dynamic overwrite leaves, one by one."""

    def partition(row: tuple[Any, ...]) -> list[str]:  # zero and negative zero are two
        return [str(value).replace("-nan", "nan") for value in row[1:]]

    replaced = [partition(row) for row in new]
    return [row for row in rows if partition(row) not in replaced] + new


@settings(max_examples=share_of(40), deadline=None)
@given(st.data())
def test_any_rows_replace_the_partitions_of_a_plain_model(data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(PARTS)), min_size=1, max_size=3))
    by = [f"p{number}" for number in range(len(types))]
    schema = {"id": pl.Int64(), **dict(zip(by, types, strict=True))}
    table = lakelog.create(f"memory://{uuid.uuid4().hex}", schema, by, upkeep=False)
    row = st.tuples(st.integers(0, 9), *(st.sampled_from(PARTS[each]) for each in types))
    model: list[tuple[Any, ...]] = []
    for rows in data.draw(st.lists(st.lists(row, max_size=6), min_size=1, max_size=4)):
        given_rows = pl.DataFrame(rows, schema=schema, orient="row")
        table.overwrite_partitions(given_rows)
        model = of_model(model, rows)
    found = table.to_polars()
    assert Counter(map(str, found.rows())) == Counter(
        map(str, pl.DataFrame(model, schema=schema, orient="row").rows())
    )


def test_empty_text_replaces_the_partition_of_null(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    with pytest.warns(LakelogWarning, match="empty values of the partition column"):
        table.overwrite_partitions(frame(("", 5)))
    assert ids(table) == [1, 2, 3, 5]


def test_timestamps_that_another_writer_formatted_otherwise_are_the_same_partition(
    tmp_path: Path,
) -> None:
    handmade = Handmade(tmp_path)
    handmade.commit(
        0,
        protocol(1, 2),
        metadata(field("p", "timestamp"), field("id"), partitioned=["p"]),
        add("a.parquet", 5, partitionValues={"p": "2026-01-01 00:00:00"}),
        add("b.parquet", 5, partitionValues={"p": "2026-01-01T00:00:00.000000Z"}),
        add("c.parquet", 5, partitionValues={"p": "2026-01-01 00:00:01"}),
    )
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    report = handmade.table.overwrite_partitions(pl.DataFrame({"p": [at], "id": [1]}))
    assert report.num_removed_files == 2
    assert "c.parquet" in set(handmade.table.snapshot().files().collect()["path"])


def test_file_with_an_invalid_partition_value_is_refused(tmp_path: Path) -> None:
    handmade = Handmade(tmp_path)
    handmade.commit(
        0,
        protocol(1, 2),
        metadata(field("p"), field("id"), partitioned=["p"]),
        add("a.parquet", 5, partitionValues={"p": "one"}),
    )
    with pytest.raises(UnsupportedFeatureError, match="is unknown"):
        handmade.table.overwrite_partitions(pl.DataFrame({"p": [1], "id": [1]}))
    assert data_files(tmp_path) == []


def test_partitions_of_generated_columns_are_replaced(tmp_path: Path) -> None:
    day = {"delta.generationExpression": "CAST(at AS DATE)"}
    fields = [
        {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
        {"name": "day", "type": "date", "nullable": True, "metadata": day},
    ]
    table = lakelog.create(tmp_path, {"type": "struct", "fields": fields}, "day", upkeep=False)
    first, second = (dt.datetime(2026, 1, day, 5, tzinfo=dt.UTC) for day in (1, 2))
    table.append(pl.DataFrame({"at": [first, second]}))
    later = second + dt.timedelta(hours=1)
    assert table.overwrite_partitions(pl.DataFrame({"at": [later]})).num_removed_files == 1
    assert sorted(table.to_polars()["at"]) == [first, later]


WIDER: list[tuple[Any, list[Any], Any, list[Any]]] = [
    (pl.Int32(), [1, 2], pl.Int64(), [1, 1 << 40]),
    (pl.Float32(), [0.5, 2.0], pl.Float64(), [0.5, 0.1]),
    (pl.Decimal(5, 2), [Decimal(1), Decimal(2)], pl.Decimal(8, 3), [Decimal(1), Decimal("0.125")]),
    (
        pl.Date(),
        [dt.date(2026, 1, 1), dt.date(2026, 1, 2)],
        pl.Datetime("us"),
        [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2, 1)],
    ),
]


@pytest.mark.parametrize(("narrow", "old", "wide", "new"), WIDER)
def test_new_columns_and_wider_types_are_added_in_the_same_commit(
    tmp_path: Path, narrow: Any, old: list[Any], wide: Any, new: list[Any]
) -> None:
    widens = {"delta.enableTypeWidening": "true", "delta.feature.timestampNtz": "supported"}
    schema = {"id": pl.Int64, "p": narrow}
    table = lakelog.create(tmp_path, schema, "p", configuration=widens, upkeep=False)
    table.append(pl.DataFrame({"id": [1, 2, 3], "p": [*old, None]}, schema=schema))
    rows = pl.DataFrame({"id": [4, 5], "p": pl.Series(new, dtype=wide), "note": ["n", "n"]})
    assert table.overwrite_partitions(rows, schema_mode="merge").num_removed_files == 1
    found = table.to_polars().sort("id")
    assert found.schema == {"id": pl.Int64, "p": wide, "note": pl.String}
    assert found["id"].to_list() == [2, 3, 4, 5]


def test_columns_are_not_replaced(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    with pytest.raises(InvalidInputError, match="replaces all rows"):
        table.overwrite_partitions(ROWS, schema_mode="overwrite")
    assert ids(table) == [1, 2, 3, 4]


def test_readers_of_the_change_feed_derive_the_changes(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"delta.enableChangeDataFeed": "true"})
    table.overwrite_partitions(frame(("a", 5), ("c", 6)))
    expected = [("delete", 1), ("delete", 3), ("insert", 5), ("insert", 6)]
    assert changes_of(tmp_path, 2) == expected
    changes = table.changes(2).collect().select("_change_type", "id")
    assert sorted(changes.rows()) == expected
    assert not list(tmp_path.glob("_change_data/**/*.parquet"))


def test_transaction_replaces_partitions_next_to_other_changes(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"delta.enableChangeDataFeed": "true"})
    with table.transaction() as tx:
        tx.overwrite_partitions(frame(("a", 5)))
        tx.delete("p = 'b'")
    assert ids(table) == [4, 5]
    assert changes_of(tmp_path, 2) == [("delete", 1), ("delete", 2), ("delete", 3), ("insert", 5)]
    tx = table.transaction()
    tx.overwrite_partitions(frame(("a", 6)))
    tx.overwrite_partitions(frame(("a", 7)))
    with pytest.raises(DuplicateFileError):
        tx.commit()
    assert ids(table) == [4, 5]


def test_append_only_table_gets_new_partitions_only(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"delta.appendOnly": "true"})
    table.overwrite_partitions(frame(("c", 5)))
    before = data_files(tmp_path)
    with pytest.raises(InvalidTransactionError):
        table.overwrite_partitions(frame(("c", 6)))
    assert ids(table) == [1, 2, 3, 4, 5]
    assert data_files(tmp_path) == before


def test_row_that_violates_a_constraint_replaces_nothing(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.alter.add_constraint("positive", "id > 0")
    before = data_files(tmp_path)
    with pytest.raises(ConstraintViolationError):
        table.overwrite_partitions(frame(("a", 5), ("b", -1)))
    assert data_files(tmp_path) == before


def test_commit_to_a_replaced_partition_since_the_version_is_a_conflict(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    read = table.version()
    table.overwrite(frame(("b", 9)), "p = 'b'")
    assert table.overwrite_partitions(frame(("a", 5)), version=read).version == 3
    before = data_files(tmp_path)
    with pytest.raises(ConflictError) as caught:
        table.overwrite_partitions(frame(("b", 6)), version=read)
    assert caught.value.version == 2
    assert data_files(tmp_path) == before
    assert ids(table) == [4, 5, 9]


def test_commit_to_another_combination_of_partition_values_is_no_conflict(tmp_path: Path) -> None:
    schema = {"p": pl.String, "q": pl.Int64, "id": pl.Int64}
    table = lakelog.create(tmp_path, schema, ["p", "q"], upkeep=False)

    def rows(*rows: tuple[str | None, int | None, int]) -> pl.DataFrame:
        return pl.DataFrame(list(rows), schema=schema, orient="row")

    table.append(rows(("a", 1, 1), ("b", 2, 2), ("a", 2, 3), (None, None, 4)))
    table.overwrite(rows(("a", 2, 5)), "p = 'a' AND q = 2")
    report = table.overwrite_partitions(rows(("a", 1, 6), ("b", 2, 7)), version=1)
    assert (report.version, report.num_removed_files) == (3, 2)
    with pytest.raises(ConflictError):
        table.overwrite_partitions(rows(("a", 2, 8), (None, None, 9)), version=1)
    assert ids(table) == [4, 5, 6, 7]


def test_repeated_write_of_an_application_does_nothing(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.overwrite_partitions(frame(("a", 5)), app_id="job", app_version=1)
    table.append(frame(("a", 6)))
    assert table.overwrite_partitions(frame(("a", 5)), app_id="job", app_version=1).duplicate
    assert ids(table) == [2, 4, 5, 6]


def test_other_readers_read_the_new_rows(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.overwrite_partitions(frame(("a", 5)))
    found = pl.DataFrame(deltalake.DeltaTable(tmp_path).to_pyarrow_table())
    assert sorted(found["id"]) == [2, 4, 5]
