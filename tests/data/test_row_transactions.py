"""Rows read and written by one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pytest

import lakelog
from lakelog import Table, Transaction
from lakelog.errors import (
    ConflictError,
    DuplicateFileError,
    InvalidInputError,
    LakelogError,
    OutcomeUnknownError,
)
from lakelog.storage import open_store
from lakelog.testing import InjectingStore, Rule
from tests.data.rows import commit_info, data_files

ROWS = pl.DataFrame({"id": [1, 2, 3], "x": [10, 20, 30], "p": ["a", "b", "c"]})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    created = lakelog.create(tmp_path / "t", ROWS.schema, ["p"], upkeep=False)
    created.append(ROWS)
    return created


def values(table: Table) -> dict[int, int]:
    return dict(table.to_polars().sort("id").select("id", "x").rows())


def test_several_calls_are_one_commit(table: Table) -> None:
    with table.transaction(operation="JOB", user_name="ann") as tx:
        most = tx.scan("p = 'c'").select(pl.col("x").max()).collect().item()
        tx.append(pl.DataFrame({"id": [4], "x": [most + 1], "p": ["d"]}))
        tx.delete("p = 'a'")
        report = tx.update({"x": "x * 2"}, "id = 2")
        assert (report.version, report.num_updated_rows) == (None, 1)
        assert values(table) == {1: 10, 2: 20, 3: 30}  # not yet
    assert tx.version == 2
    assert values(table) == {2: 40, 3: 30, 4: 31}
    assert commit_info(table.path, 2)["operation"] == "JOB"


def test_single_call_has_the_commit_info_of_the_table_method(table: Table) -> None:
    with table.transaction() as tx:
        tx.delete("id = 1")
    with table.transaction() as tx:
        tx.overwrite(ROWS.tail(1), "p = 'c'")
    assert commit_info(table.path, 2)["operation"] == "DELETE"
    assert commit_info(table.path, 2)["operationParameters"] == {"predicate": '["id = 1"]'}
    written = commit_info(table.path, 3)
    assert written["operationParameters"]["mode"] == "Overwrite"
    assert written["operationMetrics"]["numOutputRows"] == "1"
    with table.transaction() as tx:
        tx.upsert(ROWS.tail(1).with_columns(x=pl.lit(31, pl.Int64)), "id")
    written = commit_info(table.path, 4)
    assert written["operation"] == "MERGE"
    assert written["operationMetrics"]["numTargetRowsUpdated"] == "1"
    assert values(table) == {2: 20, 3: 31}


def test_commit_that_changed_the_read_rows_is_a_conflict(table: Table) -> None:
    before = data_files(Path(table.path))
    tx = table.transaction()
    found = tx.scan("p = 'b'").collect()
    table.update({"x": "x + 1"}, "p = 'b'")
    theirs = data_files(Path(table.path))
    tx.append(found.with_columns(pl.lit("z").alias("p")))
    assert len(data_files(Path(table.path))) == len(theirs) + 1
    with pytest.raises(ConflictError):
        tx.commit()
    assert data_files(Path(table.path)) == theirs != before
    assert values(table) == {1: 10, 2: 21, 3: 30}


def test_commit_to_other_rows_is_not_a_conflict(table: Table) -> None:
    with table.transaction() as tx:
        found = tx.scan("p = 'b'").collect()
        table.update({"x": "x + 1"}, "p = 'c'")
        tx.append(found.with_columns(id=pl.lit(9)))
    assert values(table) == {1: 10, 2: 20, 3: 31, 9: 20}


@pytest.mark.parametrize("vectors", ["false", "true"])
@pytest.mark.parametrize("condition", ["p = 'a'", "id = 2", "id = 2 OR p = 'a'", "id = 99"])
def test_change_feed_of_several_calls_has_the_changes_of_each(
    tmp_path: Path, condition: str, vectors: str
) -> None:
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": vectors}
    table = lakelog.create(tmp_path, ROWS.schema, ["p"], configuration=properties, upkeep=False)
    table.append(pl.concat([ROWS, ROWS.with_columns(pl.col("id") + 10)]), target_file_bytes=1 << 20)
    before = table.to_polars()
    deleted = before.filter(pl.sql_expr(condition))
    with table.transaction() as tx:
        tx.append(ROWS.head(1).with_columns(id=pl.lit(7)))
        tx.delete(condition)
        tx.overwrite(ROWS.tail(1), "p = 'c'")
        tx.append(ROWS.head(1).with_columns(id=pl.lit(8)))
    changes = table.changes(2).collect()
    kinds = changes.group_by("_change_type").agg(pl.col("id").sort())
    assert dict(kinds.rows()) == {
        "insert": [3, 7, 8],
        "delete": sorted([*deleted["id"], 3, 13]),
    }
    peer = deltalake.DeltaTable(tmp_path).load_cdf(starting_version=2).read_all()
    assert (
        pl.DataFrame(peer)
        .select("_change_type", "id")
        .sort("id", "_change_type")
        .equals(changes.select("_change_type", "id").sort("id", "_change_type"))
    )


@pytest.mark.parametrize("keeps_changes", ["true", "false"])
def test_schema_overwrite_after_an_append_raises(tmp_path: Path, keeps_changes: str) -> None:
    feed = {"delta.enableChangeDataFeed": keeps_changes}
    table = lakelog.create(tmp_path, ROWS.schema, configuration=feed, upkeep=False)
    tx = table.transaction()
    tx.append(ROWS)
    with pytest.raises(InvalidInputError, match="under two schemas"):
        tx.overwrite(ROWS.drop("x"), schema_mode="overwrite")
    with table.transaction() as tx:
        tx.overwrite(ROWS, schema_mode="overwrite")
        tx.append(ROWS)
    assert table.changes(1).collect().height == 6


def test_two_changes_of_one_file_raise(table: Table) -> None:
    before = data_files(Path(table.path))
    tx = table.transaction()
    tx.update({"x": "1"}, "id = 2")
    tx.update({"x": "2"}, "id = 2")
    with pytest.raises(DuplicateFileError):
        tx.commit()
    assert data_files(Path(table.path)) == before
    assert values(table) == {1: 10, 2: 20, 3: 30}


def test_error_in_the_block_leaves_no_file(table: Table) -> None:
    before = data_files(Path(table.path))

    def interrupted() -> None:
        with table.transaction() as tx:
            tx.append(ROWS)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert data_files(Path(table.path)) == before
    assert table.version() == 1


def test_failed_call_ends_the_transaction(table: Table) -> None:
    before = data_files(Path(table.path))
    calls: list[Callable[[Transaction], Any]] = [
        lambda tx: tx.append(ROWS.with_columns(q=1)),
        lambda tx: tx.upsert(ROWS, ["q"]),
    ]
    for call in calls:
        tx = table.transaction()
        tx.append(ROWS)
        with pytest.raises(InvalidInputError, match="no column 'q'"):
            call(tx)
        assert data_files(Path(table.path)) == before
        with pytest.raises(InvalidInputError, match="a call of the transaction failed"):
            tx.commit()


def test_leaving_a_transaction_after_a_failed_call_raises(table: Table) -> None:
    before = data_files(Path(table.path))

    def leave() -> None:
        with table.transaction() as tx:
            tx.append(ROWS)
            with suppress(InvalidInputError):
                tx.append(ROWS.with_columns(q=1))

    with pytest.raises(InvalidInputError, match="nothing was committed") as caught:
        leave()
    assert "no column 'q'" in str(caught.value.__cause__)
    assert data_files(Path(table.path)) == before
    assert table.version() == 1


def test_append_after_a_schema_merge_in_the_transaction_raises(table: Table) -> None:
    tx = table.transaction()
    tx.append(ROWS.with_columns(more=1), schema_mode="merge")
    with pytest.raises(InvalidInputError, match="metadata was changed"):
        tx.append(ROWS)
    assert tx.commit() == 2


CHANGES: dict[str, Callable[[Transaction], object]] = {
    "schema": lambda tx: tx.set_metadata(schema={"id": pl.String, "x": pl.Int64, "p": pl.String}),
    "partitioning": lambda tx: tx.set_metadata(partition_by=[]),
    "constraint": lambda tx: tx.set_metadata(configuration={"delta.constraints.c": "id > 10"}),
    "feature": lambda tx: tx.set_metadata(configuration={"delta.columnMapping.mode": "id"}),
    "restored schema": lambda tx: tx.restore(1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_metadata_of_rows_are_not_changed_after_rows_were_written(
    table: Table, change: Callable[[Transaction], object]
) -> None:
    table.alter.add_columns({"y": pl.Int64})
    with table.transaction() as tx:
        tx.overwrite(ROWS.tail(1))
        with pytest.raises(InvalidInputError, match="after rows were written"):
            change(tx)
        tx.set_metadata(description="one row", configuration={"loader.position": "7"})
    metadata = table.snapshot().metadata
    assert (metadata.description, metadata.configuration) == ("one row", {"loader.position": "7"})
    assert values(table) == {3: 30}


def test_the_same_schema_in_another_text_and_comments_may_be_set_after_rows_were_written(
    table: Table,
) -> None:
    text = json.dumps(json.loads(table.snapshot().metadata.schema_json), indent=1)
    with table.transaction() as tx:
        tx.overwrite(ROWS.tail(1))
        tx.set_metadata(schemaString=text, description="one row")
    with table.transaction() as tx:
        tx.append(ROWS.head(1))
        tx.set_metadata(schema=table.snapshot().schema, description="two rows")
    with table.transaction() as tx:
        tx.append(ROWS[1:2])
        tx.set_metadata(schemaString=text.replace('"metadata": {}', '"metadata": {"comment": "c"}'))
    assert values(table) == {1: 10, 2: 20, 3: 30}
    assert [field.metadata for field in table.snapshot().schema.fields] == [{"comment": "c"}] * 3


def test_merge_is_committed_with_the_transaction(table: Table) -> None:
    newer = pl.DataFrame({"id": [2, 4], "x": [21, 40], "p": ["b", "d"]})
    with table.transaction() as tx:
        merge = tx.merge(newer, "id").when_matched_update({"x": "source.x"})
        report = merge.when_not_matched_insert_all().execute()
        assert (report.version, report.num_updated_rows, report.num_rows) == (None, 1, 1)
        tx.delete("id = 1")
        assert values(table) == {1: 10, 2: 20, 3: 30}  # not yet
    assert tx.version == 2
    assert values(table) == {2: 21, 3: 30, 4: 40}


@pytest.mark.parametrize("fault", ["fail", "lost", "unknown"])
def test_all_or_nothing_is_written_after_a_failure_of_any_operation(
    tmp_path: Path, fault: Any
) -> None:
    for nth in range(1, 90):
        root = tmp_path / str(nth)
        lakelog.create(root, ROWS.schema, ["p"], upkeep=False).append(ROWS)
        store = InjectingStore(open_store(str(root)), [Rule(fault, nth=nth)])
        try:
            with lakelog.open(store=store, upkeep=False).transaction() as tx:
                tx.append(ROWS.head(1).with_columns(id=pl.lit(9)))
                tx.delete("id = 3")
                tx.upsert(ROWS.head(1).with_columns(x=pl.lit(11, pl.Int64)), "id")
        except (LakelogError, OSError, OutcomeUnknownError):
            pass
        table = lakelog.open(root)
        assert values(table) in ({1: 10, 2: 20, 3: 30}, {1: 11, 2: 20, 9: 10})
        if len(store.operations) < nth:
            assert table.version() == 2
            return
    pytest.fail("a transaction has fewer operations")
