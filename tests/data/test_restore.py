"""`Table.restore`: an earlier version becomes the state of the table."""

from __future__ import annotations

import json
from pathlib import Path

import deltalake
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import lakelog
from lakelog import Snapshot, Table
from lakelog.errors import (
    ConflictError,
    InvalidInputError,
    InvalidTransactionError,
    NotFoundError,
    VersionNotFoundError,
)
from tests.budget import rng_of, share_of
from tests.data.vector_writer import inline, vector_file
from tests.handmade import Handmade, field, metadata, protocol, set_in_commit

SCHEMA = {"id": pl.Int64, "p": pl.String}


def new_table(root: Path | str, **properties: str) -> Table:
    configuration = {k.replace("__", "."): v for k, v in properties.items()}
    return lakelog.create(root, SCHEMA, ["p"], configuration=configuration, upkeep=False)


def rows(*ids: int, p: str = "a") -> pl.DataFrame:
    return pl.DataFrame({"id": ids, "p": [p] * len(ids)}, schema=SCHEMA)


def state(snapshot: Snapshot) -> object:
    """The part of a state that a restore replaces."""
    files = snapshot.files().select("path", "dvId", "partitionValues", "stats").collect()
    live = snapshot.scan().collect()
    return (
        sorted(map(repr, files.iter_rows())),
        sorted(map(repr, live.iter_rows())),
        snapshot.schema,
        snapshot.metadata.partition_columns,
    )


@pytest.mark.parametrize("number", range(share_of(8, 4)))
def test_any_version_of_a_random_history_can_be_restored(tmp_path: Path, number: int) -> None:
    rng = rng_of(f"restore {number}")
    table = new_table(
        tmp_path, delta__enableDeletionVectors="true", delta__enableChangeDataFeed="true"
    )
    states, columns = [state(table.snapshot())], 0
    while len(states) < 14:
        choice = rng.random()
        snapshot = table.snapshot()
        if choice < 0.35 or not snapshot.num_files():
            given = rows(*range(len(states) * 10, len(states) * 10 + 8), p=rng.choice("abc"))
            if rng.random() < 0.3:
                columns += 1
                given = given.with_columns(pl.lit(columns).alias(f"c{columns}"))
            table.append(given, schema_mode="merge")
        elif choice < 0.5:
            table.overwrite(rows(), pl.col("p") == rng.choice("ab"))
        elif choice < 0.6:
            with table.transaction() as tx:
                tx.set_metadata(configuration={"x": str(len(states))})
        elif choice < 0.8:
            files = snapshot.files().filter(pl.col("dvId").is_null()).collect()
            if files.height:
                file = files[rng.randrange(files.height)]
                with table.transaction() as tx:
                    tx.remove(file)
                    tx.replace_rows()
                    deleted = inline({rng.randrange(8)})
                    fields = file.row(0, named=True)
                    kept = {k: fields[k] for k in ("path", "size", "stats", "partitionValues")}
                    tx.add(**kept, deletionVector=deleted)
        else:
            version = rng.randrange(len(states))
            before = snapshot.scan().collect()
            report = table.restore(version)
            assert state(table.snapshot()) == states[version]
            assert table.snapshot().metadata.configuration.get("x") == (
                table.snapshot(version).metadata.configuration.get("x")
            )
            if report.version is not None:
                assert report.num_files == table.snapshot().num_files()
                assert report.num_bytes == table.snapshot().total_size()
                feed = table.changes(report.version).collect()
                kinds = feed.group_by("id").agg(
                    (pl.col("_change_type") == "insert").sum().cast(pl.Int64)
                    - (pl.col("_change_type") == "delete").sum().cast(pl.Int64)
                )
                now = set(table.snapshot().scan().collect()["id"])
                was = set(before["id"])
                expected = {i: (i in now) - (i in was) for i in now ^ was}
                assert {i: n for i, n in kinds.iter_rows() if n} == expected
        if table.version() == len(states):
            states.append(state(table.snapshot()))


def test_commit_equals_that_of_delta(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows(1, 2))
    table.overwrite(rows(3))
    report = table.restore(1)
    assert (report.version, report.num_restored_files, report.num_removed_files) == (3, 1, 1)
    (commit,) = table.history(1).to_dicts()
    assert (commit["operation"], commit["operationParameters"]) == ("RESTORE", {"version": "1"})
    peer = deltalake.DeltaTable(tmp_path)
    peer.restore(2)
    theirs = peer.history(1)[0]
    assert theirs["operation"] == commit["operation"]
    ours = set(commit["operationMetrics"])
    assert ours == {
        *("numRestoredFiles", "restoredFilesSize", "numRemovedFiles", "removedFilesSize"),
        *("numOfFilesAfterRestore", "tableSizeAfterRestore"),
    }
    assert table.snapshot().scan().collect()["id"].to_list() == [3]
    at = table.history().filter(pl.col("version") == 1)["timestamp"].item()
    table.restore(timestamp=at)
    assert_frame_equal(pl.DataFrame(deltalake.DeltaTable(tmp_path).to_pyarrow_table()), rows(1, 2))
    assert list(table.history(1)["operationParameters"].item()) == ["timestamp"]


def test_plan_and_restore_of_the_current_version_commit_nothing(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows(1))
    table.append(rows(2))
    plan = table.restore(1, plan=True)
    assert str(plan).splitlines()[0] == "Restore plan"
    assert (plan.version, plan.num_removed_files, table.version()) == (None, 1, 2)
    assert table.restore(2).version is None
    assert table.version() == 2


def test_mapped_columns_and_their_ids_are_restored(tmp_path: Path) -> None:
    table = new_table(tmp_path, delta__columnMapping__mode="name")
    table.append(rows(1))
    table.append(rows(2).with_columns(x=pl.lit("x")), schema_mode="merge")
    greatest = int(table.snapshot().metadata.configuration["delta.columnMapping.maxColumnId"] or 0)
    table.restore(1)
    assert state(table.snapshot()) == state(table.snapshot(1))
    properties = table.snapshot().metadata.configuration
    assert properties["delta.columnMapping.maxColumnId"] == str(greatest)
    table.restore(2)
    assert state(table.snapshot()) == state(table.snapshot(2))


def test_mapped_columns_are_restored_after_a_version_without_column_mapping(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"id": pl.Int64, "x": pl.Int64}, upkeep=False)
    table.append(pl.DataFrame({"id": [1], "x": [1]}))
    table.alter.drop_column("x", enable=True)
    table.alter.add_columns({"x": pl.Int64})
    table.append(pl.DataFrame({"id": [2], "x": [20]}))
    before = table.snapshot()
    table.restore(1)
    assert table.to_polars().rows() == [(1, 1)]
    table.restore(before.version)
    assert table.to_polars().rows() == before.to_polars().rows() == [(1, None), (2, 20)]


def test_files_of_a_version_that_ignored_the_mode_of_mapping_are_restored_by_their_names(
    tmp_path: Path,
) -> None:
    log = Handmade(tmp_path)
    mode = {"delta.columnMapping.mode": "name"}
    log.commit(0, protocol(), metadata(field("id"), properties=mode))
    table = log.table
    table.append(pl.DataFrame({"id": [1]}))
    table.alter.upgrade(["columnMapping"])
    table.alter.rename_column("id", "key")
    table.restore(1)
    assert table.to_polars().rows(named=True) == [{"id": 1}]


def test_properties_that_the_version_ignored_are_restored_and_stay_ignored(tmp_path: Path) -> None:
    log = Handmade(tmp_path)
    ignored = {"delta.constraints.c": "id > 5", "delta.enableChangeDataFeed": "true"}
    log.commit(0, protocol(), metadata(field("id"), properties=ignored))
    table = log.table
    table.append(pl.DataFrame({"id": [1]}))
    table.alter.unset_properties(list(ignored))
    table.restore(1)
    assert table.snapshot().metadata.configuration == ignored
    assert table.snapshot().protocol == table.snapshot(1).protocol


def test_protected_checkpoints_stay_protected_but_not_in_a_clone(tmp_path: Path) -> None:
    key, feature = "delta.requireCheckpointProtectionBeforeVersion", "checkpointProtection"
    table = new_table(tmp_path / "table")

    def protected(table: Table) -> str | None:
        return table.snapshot().metadata.configuration.get(key)

    with table.transaction() as tx:
        tx.set_protocol(features=[feature])
        tx.set_metadata(configuration={key: "9"})
    table.append(rows(1))
    table.restore(0)
    assert protected(table) == "9"
    table.alter.set_properties({key: "20"})
    table.restore(1)
    assert protected(table) == "20"
    assert protected(table.clone(tmp_path / "clone")) is None
    lakelog.create(tmp_path / "table", SCHEMA, mode="overwrite")
    assert protected(table) == "20"


def test_protocol_is_not_downgraded(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows(1))
    with table.transaction() as tx:
        tx.set_metadata(configuration={"delta.enableDeletionVectors": "true"})
    protocol = table.snapshot().protocol
    table.restore(1)
    assert table.snapshot().protocol == protocol
    assert "delta.enableDeletionVectors" not in table.snapshot().metadata.configuration


@pytest.mark.parametrize("other", ["restore", "unset"])
def test_columns_of_row_ids_keep_their_names(tmp_path: Path, other: str) -> None:
    table = new_table(tmp_path, delta__feature__rowTracking="supported")
    table.append(rows(1, 2))
    table.alter.set_properties({"delta.enableRowTracking": "true"})
    table.update({"id": "id + 10"}, "id = 1")
    kept = table.version()
    ids = table.scan(row_ids=True).collect().sort("id")
    if other == "restore":
        table.restore(1)
        assert table.restore(1).version is None
    else:
        table.alter.set_properties({"delta.enableRowTracking": "false"})
        names = [key for key in table.snapshot().metadata.configuration if "materialized" in key]
        assert len(names) == 2
        table.alter.unset_properties(names)
    table.alter.set_properties({"delta.enableRowTracking": "true"})
    table.restore(kept)
    assert_frame_equal(table.scan(row_ids=True).collect().sort("id"), ids)


def test_files_of_a_version_without_row_ids_are_restored_with_those_that_they_have_got(
    tmp_path: Path,
) -> None:
    """Delta protocol, Writer Requirements for Row Tracking: the ids of the path's last add."""
    table = new_table(tmp_path)
    table.append(rows(1))
    table.append(rows(2))
    table.alter.upgrade(["rowTracking"])
    with table.transaction() as tx:
        tx.add(tx.read().collect(), dataChange=False)
    columns = ["path", "baseRowId", "defaultRowCommitVersion"]
    ids = table.snapshot().files().select(columns).sort("path").collect()
    table.delete("id = 1")
    table.restore(2)
    assert_frame_equal(table.snapshot().files().select(columns).sort("path").collect(), ids)


def test_definitions_that_only_other_writers_allow_are_restored_and_cloned(tmp_path: Path) -> None:
    """Properties of Fabric and XTable, a name that deltalake allows, a type that has no values."""
    odd = {"delta.parquet.vorder.enabled": "true", "delta.minReaderVersion": "1"}
    columns = (field("a b"), field("span", "interval day to second"))
    log = Handmade(tmp_path / "table")
    log.commit(0, protocol(), metadata(*columns, properties=odd))
    log.commit(1, metadata(columns[0] | {"name": "ab"}))
    table = lakelog.open(log.root, upkeep=False)
    table.restore(0)
    for found in (table, table.clone(tmp_path / "clone")):
        assert found.snapshot().metadata.configuration == odd
        assert found.snapshot().schema == table.snapshot(version=0).schema


def test_missing_files_raise_before_anything_is_written(tmp_path: Path) -> None:
    table = new_table(tmp_path, delta__enableDeletionVectors="true")
    for number in range(2):
        table.append(rows(number))
    first, second = table.snapshot().files().sort("version").collect()["path"]
    table.overwrite(rows(9))
    (tmp_path / second).unlink()
    table.restore(1)
    with pytest.raises(NotFoundError, match="1 of its files") as caught:
        table.restore(2)
    assert (caught.value.path, caught.value.version, caught.value.found) == (second, 2, [second])
    assert table.version() == 4
    # The file of a deletion vector counts too.
    vectors = vector_file(tmp_path, {"a": {0}})
    with table.transaction() as tx:
        tx.remove(tx.snapshot.files())
        tx.add(
            path=first,
            size=(tmp_path / first).stat().st_size,
            partitionValues={"p": "a"},
            stats='{"numRecords":1}',
            deletionVector=vectors["a"],
        )
    table.overwrite(rows())
    (name,) = tmp_path.glob("deletion_vector_*.bin")
    name.unlink()
    with pytest.raises(NotFoundError) as caught:
        table.restore(5)
    assert caught.value.path == name.name


@pytest.mark.parametrize("stats", [None, '{"minValues":{"id":1},"maxValues":{"id":3}}'])
def test_row_counts_of_files_with_deletion_vectors_are_read_from_footers(
    tmp_path: Path, stats: str | None
) -> None:
    """A file with a deletion vector may only be added with ``numRecords``."""
    table = new_table(tmp_path / "t", delta__enableDeletionVectors="true")
    table.append(rows(1, 2, 3))
    table.delete("id = 2")
    set_in_commit(tmp_path / "t", 2, "add", stats=stats)
    table = lakelog.open(tmp_path / "t", upkeep=False)
    clone = table.clone(tmp_path / "clone")
    table.overwrite(rows(9))
    table.restore(2)
    for each in (table, clone):
        assert each.to_polars()["id"].sort().to_list() == [1, 3]
        (found,) = each.snapshot().files().collect()["stats"]
        assert json.loads(found) == {"numRecords": 3, "tightBounds": False}


def test_deletion_vectors_are_restored_and_cloned_after_new_ones_were_disabled(
    tmp_path: Path,
) -> None:
    """They are not new ones: Delta protocol, Deletion Vectors."""
    table = new_table(tmp_path / "t", delta__enableDeletionVectors="true")
    table.append(rows(1, 2, 3))
    table.delete("id = 1")
    table.alter.set_properties({"delta.enableDeletionVectors": "false"})
    before = table.version()
    table.delete("id = 2")
    table.restore(before)
    clone = table.clone(tmp_path / "clone")
    for each in (table, clone):
        assert each.to_polars()["id"].sort().to_list() == [2, 3]
        assert each.snapshot().files().collect()["dvCardinality"].to_list() == [1]
        each.delete("id = 3")
        assert each.snapshot().files().collect()["dvCardinality"].to_list() == [None]


def test_many_files_are_checked_in_one_listing(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    frame = pl.DataFrame({"id": range(300), "p": [f"p{n}" for n in range(300)]}, schema=SCHEMA)
    table.append(frame)
    table.overwrite(rows())
    paths = table.snapshot(1).files().collect()["path"]
    assert table.restore(1, plan=True).num_restored_files == 300
    (tmp_path / paths[77]).unlink()
    with pytest.raises(NotFoundError) as caught:
        table.restore(1)
    assert caught.value.path == paths[77]


def test_invalid_restore_raises(tmp_path: Path) -> None:
    table = new_table(tmp_path, delta__appendOnly="true")
    table.append(rows(1))
    with pytest.raises(InvalidInputError, match="either version or timestamp"):
        table.restore()
    with pytest.raises(VersionNotFoundError):
        table.restore(9)
    with pytest.raises(InvalidTransactionError, match="append-only"):
        table.restore(0)


def test_restore_removes_no_rows_of_an_append_only_table(tmp_path: Path) -> None:
    """Also if the version is from before the table was one."""
    table = new_table(tmp_path)
    table.append(rows(1))
    table.alter.set_properties({"delta.appendOnly": "true"})
    table.append(rows(2))
    with pytest.raises(InvalidTransactionError, match="append-only"):
        table.restore(1)
    tx = table.transaction()
    tx.set_metadata(configuration={"delta.appendOnly": "false"})
    tx.remove(tx.read().collect())
    with pytest.raises(InvalidTransactionError, match="append-only"):
        tx.commit()
    table.alter.set_properties({"delta.appendOnly": "false"})
    assert table.restore(3).num_removed_files == 0
    assert table.snapshot().metadata.configuration["delta.appendOnly"] == "true"
    table.alter.set_properties({"delta.appendOnly": "false"})
    table.append(rows(3))
    assert table.restore(3).num_removed_files == 1
    assert table.to_polars()["id"].sort().to_list() == [1, 2]


def test_concurrent_commit_is_a_conflict(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows(1))
    table.append(rows(2))

    other = lakelog.open(tmp_path, upkeep=False)
    tx = table.transaction(isolation="Serializable")
    tx.restore(1)
    other.append(rows(3))
    with pytest.raises(ConflictError):
        tx.commit()
    assert sorted(table.snapshot().scan().collect()["id"]) == [1, 2, 3]


@pytest.mark.parametrize("key", ["P", "p and more"])
def test_files_with_other_keys_of_partition_values_are_added_again(
    tmp_path: Path, key: str
) -> None:
    table = new_table(tmp_path / "t", delta__enableDeletionVectors="true")
    others = pl.concat([rows(3, p="b"), pl.DataFrame({"id": [4], "p": [None]}, schema=SCHEMA)])
    table.append(pl.concat([rows(1, 2), others]))
    commit = tmp_path / "t/_delta_log/00000000000000000001.json"
    written, given = (
        '"partitionValues":{"p":"a"}',
        {"P": "a"} if key == "P" else {"p": "a", "q": "1"},
    )
    assert written in commit.read_text()
    other = f'"partitionValues":{json.dumps(given)}'
    commit.write_text(commit.read_text().replace(written, other))
    table = lakelog.open(tmp_path / "t", upkeep=False)
    table.clone(tmp_path / "clone")
    clone = lakelog.open(tmp_path / "clone", allow_external=True)
    assert clone.to_polars("p = 'a'").height == 2
    assert table.delete("id = 1").num_deleted_rows == 1
    assert table.delete("id > 2").num_deleted_rows == 2
    assert table.to_polars().rows() == [(2, "a")]
    assert table.restore(1).version == 4
    assert table.to_polars().sort("id").rows() == [(1, "a"), (2, "a"), *others.rows()]
    for each in (table, clone):
        values = each.snapshot().files().collect()["partitionValues"]
        assert sorted(map(str, map(dict, values))) == ["{'p': 'a'}", "{'p': 'b'}", "{'p': None}"]


@pytest.mark.parametrize("stats", ["null", "", '""', "[]", "{bad"])
def test_files_with_unreadable_statistics_are_added_again_without_them(
    tmp_path: Path, stats: str
) -> None:
    table = new_table(tmp_path / "t")
    table.append(rows(1, 2))
    set_in_commit(tmp_path / "t", 1, "add", stats=stats)
    table = lakelog.open(tmp_path / "t", upkeep=False)
    clone = table.clone(tmp_path / "clone")
    table.delete(None)
    table.restore(1)
    for each in (table, clone):
        assert each.to_polars("id > 1")["id"].to_list() == [2]
        assert each.snapshot().files().collect()["stats"].to_list() == [None]
