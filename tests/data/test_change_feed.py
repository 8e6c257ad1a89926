"""`Table.changes` and `Table.follow`: the rows that commits changed."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import lakelog
from lakelog import Table
from lakelog.errors import (
    CorruptionError,
    DuplicateFileError,
    InvalidInputError,
    InvalidMetadataError,
    NotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakelog.transaction.runtime import Runtime
from tests.budget import rng_of, share_of
from tests.data.vector_writer import inline
from tests.handmade import Handmade, add, field, metadata, protocol, remove

FEED = {"delta.enableChangeDataFeed": "true"}
SCHEMA = {"id": pl.Int64, "p": pl.String}
KIND, VERSION, TIME = "_change_type", "_commit_version", "_commit_timestamp"
Change = tuple[int, str, str, int]


def new_table(root: Path, properties: dict[str, str] | None = None) -> Table:
    """An empty table, partitioned by ``p``."""
    configuration = FEED if properties is None else properties
    return lakelog.create(root, SCHEMA, ["p"], configuration=configuration, upkeep=False)


def rows(*ids: int, p: str = "a") -> pl.DataFrame:
    return pl.DataFrame({"id": ids, "p": [p] * len(ids)}, schema=SCHEMA)


def mark(table: Table, path: str, deleted: set[int]) -> None:
    """Give a file another deletion vector, or none without deleted rows."""
    with table.transaction(operation="DELETE") as tx:
        (file,) = tx.snapshot.files().filter(pl.col("path") == path).collect().iter_slices(1)
        tx.remove(file)
        tx.replace_rows()
        fields = {"path": path, "size": file["size"][0], "stats": '{"numRecords":8}'}
        if deleted:
            fields["deletionVector"] = inline(deleted)
        tx.add(partitionValues=file["partitionValues"][0], **fields)


def changed(frame: pl.LazyFrame) -> list[Change]:
    found = frame.select("id", "p", KIND, VERSION).collect()
    return sorted(found.iter_rows())


def only_path(table: Table) -> str:
    return str(table.snapshot().files().collect()["path"].item())


def test_change_data_files_and_added_and_removed_files_give_the_changes(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows(1, 2, 3))
    table.append(rows(4, p="ä b/%"))
    table.overwrite(rows(10), pl.col("id").is_in([1, 10]) & (pl.col("p") == "a"))
    table.overwrite(rows(5), pl.col("p") == "a")
    feed = table.changes(0)
    assert dict(feed.collect_schema()) == {
        **SCHEMA,
        KIND: pl.String,
        VERSION: pl.Int64,
        TIME: pl.Datetime("us", "UTC"),
    }
    expected = [
        *((n, "a", "insert", 1) for n in (1, 2, 3)),
        (4, "ä b/%", "insert", 2),
        (1, "a", "delete", 3),
        (10, "a", "insert", 3),
        *((n, "a", "delete", 4) for n in (2, 3, 10)),
        (5, "a", "insert", 4),
    ]
    assert changed(feed) == sorted(expected)
    assert changed(table.changes(2, 3)) == sorted(c for c in expected if c[3] in {2, 3})
    _require_times_of_history(table)


def _require_times_of_history(table: Table) -> None:
    times = table.history().select(pl.col("version").alias(VERSION), "timestamp")
    joined = table.changes(0).collect().join(times, on=VERSION)
    assert (joined[TIME].dt.cast_time_unit("ms") == joined["timestamp"]).all()


def test_the_feed_has_file_times_after_in_commit_timestamps_were_disabled(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for setting in ("true", "false", "true"):
        table.alter.set_properties({"delta.enableInCommitTimestamps": setting})
        table.append(rows(1))
        _require_times_of_history(table)


def test_vector_that_grows_deletes_rows_and_one_that_shrinks_inserts_them(tmp_path: Path) -> None:
    table = new_table(tmp_path, {"delta.enableDeletionVectors": "true"})
    table.append(rows(*range(8)))
    path = only_path(table)
    for deleted in ({0, 3}, {3, 4, 5}, set()):
        mark(table, path, deleted)
    assert changed(table.changes(2)) == sorted(
        [
            (0, "a", "delete", 2),
            (3, "a", "delete", 2),
            (0, "a", "insert", 3),
            (4, "a", "delete", 3),
            (5, "a", "delete", 3),
            *((n, "a", "insert", 4) for n in (3, 4, 5)),
        ]
    )


@pytest.mark.parametrize(
    "properties",
    [{}, {"delta.enableDeletionVectors": "true"}, {"delta.enableChangeDataFeed": "true"}],
)
def test_changes_applied_in_their_order_give_the_rows(
    properties: dict[str, str], tmp_path: Path
) -> None:
    table = lakelog.create(
        tmp_path / "t", {"id": pl.Int64, "v": pl.Int64}, configuration=properties, upkeep=False
    )
    table.append(pl.DataFrame({"id": [1, 2, 3], "v": [0, 0, 0]}))
    table.update({"v": 9}, "id = 1")
    table.upsert(pl.DataFrame({"id": [2, 4], "v": [5, 5]}), on="id")
    table.delete("id = 3")
    replica: dict[int, int] = {}
    for change in table.changes(0).collect().iter_rows(named=True):
        if change["_change_type"] in {"insert", "update_postimage"}:
            replica[change["id"]] = change["v"]
        else:
            replica.pop(change["id"], None)
    assert replica == dict(table.to_polars().rows()) == {1: 9, 2: 5, 4: 5}


def test_row_groups_without_a_changed_row_are_not_read(tmp_path: Path) -> None:
    table = new_table(tmp_path, {"delta.enableDeletionVectors": "true"})
    table.append(pl.DataFrame({"id": range(300_000), "p": "a"}, schema=SCHEMA))
    path = only_path(table)
    with table.transaction() as tx:
        file = tx.snapshot.files().collect()
        tx.remove(file)
        fields = {"path": path, "size": file["size"][0], "partitionValues": {"p": "a"}}
        fields["stats"] = file["stats"][0]
        tx.add(**fields, deletionVector=inline({1, 150_000, 299_999}))
    expected = [(n, "a", "delete", 2) for n in (1, 150_000, 299_999)]
    assert changed(table.changes(2)) == expected


@pytest.mark.parametrize("has_feed", [True, False])
@pytest.mark.parametrize("number", range(share_of(8, 4)))
def test_changes_of_each_version_give_its_rows(tmp_path: Path, number: int, has_feed: bool) -> None:
    rng = rng_of(f"changes {number} {has_feed}")
    properties = {"delta.enableDeletionVectors": "true", **(FEED if has_feed else {})}
    table = new_table(tmp_path, properties)
    next_id = 0
    for _ in range(12):
        choice = rng.random()
        if choice < 0.4 or not table.snapshot().num_files():
            given = pl.DataFrame(
                {
                    "id": range(next_id, next_id + 8),
                    "p": [rng.choice("abc")] * 8,
                },
                schema=SCHEMA,
            )
            next_id += 8
            table.append(given)
        elif choice < 0.6:
            where = (pl.col("id") % rng.randrange(2, 5) == 0) & (pl.col("p") == "a")
            table.overwrite(table.snapshot().scan(where).collect().head(2), where)
        else:
            files = table.snapshot().files().collect()
            eight = files.filter(pl.col("stats").str.contains('"numRecords":8'))
            if eight.height:
                path = eight["path"][rng.randrange(eight.height)]
                try:
                    mark(table, path, set(rng.sample(range(8), rng.randrange(8))))
                except DuplicateFileError:
                    continue  # the same vector as before
    seen: dict[tuple[int, str], int] = {}
    feed = table.changes(0).collect()
    for version in range(1, table.version() + 1):
        for id_, p, kind, _ in changed(feed.lazy().filter(pl.col(VERSION) == version)):
            seen[id_, p] = seen.get((id_, p), 0) + (1 if kind == "insert" else -1)
        live = sorted(key for key, count in seen.items() for _ in range(count))
        assert live == sorted(table.snapshot(version).scan().collect().iter_rows()), version
        assert min(seen.values()) >= 0
    for query in (
        pl.col(VERSION) == rng.randrange(1, 13),
        (pl.col(KIND) == "delete") | (pl.col("p") == "b"),
        (pl.col(VERSION) > 4) & (pl.col("id") < next_id // 2),
        pl.col(TIME) > feed[TIME].sort()[0],
    ):
        picked = table.changes(0).filter(query).select(VERSION, "id", KIND).collect()
        whole = feed.filter(query).select(VERSION, "id", KIND)
        assert_frame_equal(picked, whole, check_row_order=False)
        counted = table.changes(0).filter(query).select(pl.len()).collect().item()
        assert counted == whole.height
    assert table.changes(0).head(3).collect().height == min(3, feed.height)


def test_changes_equal_those_of_deltalake(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows(1, 2, 3))
    table.append(rows(4, 5, p="b"))
    peer = deltalake.DeltaTable(tmp_path)
    peer.update({"id": "id + 100"}, predicate="id = 2")
    peer.delete("id = 5")
    peer.delete("p = 'b'")
    table.append(rows(7))
    theirs = pl.DataFrame(peer.load_cdf(starting_version=0, ending_version=6).read_all())
    ours = table.changes(0).collect()
    theirs = theirs.cast({VERSION: pl.Int64})
    columns = ["id", "p", KIND, VERSION]
    assert_frame_equal(ours.select(columns), theirs.select(columns), check_row_order=False)
    assert {"update_preimage", "update_postimage"} < set(ours[KIND])


def test_times_bound_the_range_like_versions(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for number in range(3):
        table.append(rows(number))
    at = dict(table.history().select("version", "timestamp").iter_rows())
    just_after = at[1] + dt.timedelta(milliseconds=1)
    if just_after < at[2]:
        assert {c[3] for c in changed(table.changes(just_after, at[2]))} == {2}
        after = at[1] + dt.timedelta(microseconds=1)
        assert {c[3] for c in changed(table.changes(after, at[2]))} == {2}
    assert {c[3] for c in changed(table.changes(at[2]))} == {2, 3}
    assert {c[3] for c in changed(table.changes("2020-01-01"))} == {1, 2, 3}
    with pytest.raises(InvalidInputError, match="no commit was made"):
        table.changes("2199-01-01")


def test_times_without_a_commit_in_between_have_no_changes(tmp_path: Path) -> None:
    table = new_table(tmp_path, {"delta.enableInCommitTimestamps": "true"})
    table.append(rows(1))
    time.sleep(0.05)
    table.append(rows(2))
    (at,) = table.history().filter(pl.col("version") == 1)["timestamp"]
    start, end = (at + dt.timedelta(milliseconds=n) for n in (10, 20))
    for since, until in ((start, end), (str(start), str(end)), (start, start)):
        found = table.changes(since, until).collect()
        assert found.schema == table.changes(0).collect_schema()
        assert found.is_empty()
    for since, until in ((end, start), (2, start), (2, 1)):
        with pytest.raises(InvalidInputError, match="range of versions is empty"):
            table.changes(since, until)


def test_columns_added_and_renamed_in_the_range_have_the_last_schema(tmp_path: Path) -> None:
    table = new_table(tmp_path, {"delta.columnMapping.mode": "name", **FEED})
    table.append(rows(1))
    table.append(rows(2).with_columns(extra=pl.lit("x")), schema_mode="merge")
    with table.transaction() as tx:
        text = tx.snapshot.metadata.schema_string or ""
        tx.set_metadata(schema=text.replace('"name":"id"', '"name":"number"'))
    table.overwrite(rows(3).rename({"id": "number"}), pl.col("number").is_in([1, 3]))
    found = table.changes(0).select("number", "extra", KIND, VERSION).collect()
    expected = [(1, None, "insert", 1), (2, "x", "insert", 2)]
    expected += [(1, None, "delete", 4), (3, None, "insert", 4)]
    assert sorted(found.iter_rows(), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("feed", [{}, FEED])
@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_condition_chooses_among_all_changes_under_each_column_mapping(
    tmp_path: Path, mode: str, feed: dict[str, str]
) -> None:
    table = new_table(tmp_path, feed | {"delta.columnMapping.mode": mode})
    table.append(rows(1, 2, 3))
    table.append(rows(4, 5, p="b"))
    if mode != "none":
        table.alter.rename_column("id", "number")
    name = "id" if mode == "none" else "number"
    table.update({name: 9}, f"{name} = 2")
    table.delete("p = 'b'")
    every = table.changes(0).collect()
    assert every.height == (9 if feed else 13)
    for where in (
        f"{name} = 9",
        f"{name} < 3 AND p = 'a'",
        "p = 'b'",
        f"{KIND} = 'delete'",
        f"{VERSION} = 2",
        f"{KIND} <> 'insert' AND {name} > 3 OR {VERSION} < 2",
    ):
        expected = every.sql(f"SELECT * FROM self WHERE {where}")
        assert expected.height
        found = table.changes(0, where=where).collect()
        assert_frame_equal(found, expected, check_row_order=False)


def test_incompatible_schema_change_raises_with_column_and_version(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path)
    table.append(rows(1))
    with table.transaction() as tx:
        tx.remove(tx.snapshot.files())
        tx.replace_rows()
        tx.set_metadata(schema={"id": pl.String, "p": pl.String})
    table.append(pl.DataFrame({"id": ["x"], "p": ["a"]}))
    with pytest.raises(UnsupportedFeatureError, match="schema changed") as caught:
        table.changes(1).collect()
    assert (caught.value.column, caught.value.version) == ("id", 2)
    assert caught.value.hint == (
        "leave out version 2: read the versions 1 to 1 and 3 to 3 separately"
    )
    assert changed(table.changes(1, 1)) == [(1, "a", "insert", 1)]
    assert table.changes(3).collect()["id"].to_list() == ["x"]
    with pytest.raises(UnsupportedFeatureError, match="schema changed"):
        table.changes(2).collect()
    with pytest.raises(UnsupportedFeatureError, match="leave out version 2: start at the next"):
        table.changes(2, 2).collect()
    followed = []
    for version, changes in table.follow(0, stop=lambda: True):
        with contextlib.suppress(UnsupportedFeatureError):
            followed.append((version, changes.collect().height))
    assert followed == [(0, 0), (1, 1), (3, 1)]
    # A condition chooses commits; their schema may be that of a commit that it does not choose.
    with pytest.raises(UnsupportedFeatureError, match="schema changed"):
        table.changes(0).filter(pl.col(VERSION) == 1).collect()
    assert table.changes(0, where=f"{VERSION} = 3").collect()["id"].to_list() == ["x"]


def test_commits_of_an_unknown_protocol_that_was_dropped_later_are_refused(tmp_path: Path) -> None:
    log = Handmade(tmp_path)
    odd = {name: ["futureReader"] for name in ("readerFeatures", "writerFeatures")}
    for version, name in enumerate("abcd"):
        pl.DataFrame({"id": [version]}).write_parquet(tmp_path / name)
        head = {0: [protocol(3, 7, **odd), metadata(field("id"))], 2: [protocol()]}
        size = (tmp_path / name).stat().st_size
        log.commit(version, *head.get(version, []), add(name, size))
    assert log.table.changes(3).collect()["id"].to_list() == [3]
    for refused in (
        log.table.changes(0),
        log.table.changes(1),
        log.table.changes(1).filter(pl.col(VERSION) == 1),
        log.table.changes(0).filter(pl.col(VERSION).is_in([0, 3])),
    ):
        with pytest.raises(UnsupportedFeatureError, match="futureReader"):
            refused.collect()


def test_changes_over_a_new_partitioning_have_null_in_its_columns_for_earlier_files(
    tmp_path: Path,
) -> None:
    first, second = (pl.DataFrame({"id": [n], name: [n]}) for n, name in ((1, "a"), (2, "b")))
    deltalake.write_deltalake(tmp_path, first.to_arrow(), partition_by=["a"])
    new: Any = {"mode": "overwrite", "schema_mode": "overwrite", "partition_by": ["b"]}
    deltalake.write_deltalake(tmp_path, second.to_arrow(), **new)
    lakelog.open(tmp_path).append(second)
    feed = lakelog.open(tmp_path).changes(0)
    expected = [(1, None, "insert", 0), (1, None, "delete", 1), (2, 2, "insert", 1)]
    expected.append((2, 2, "insert", 2))
    assert feed.select("id", "b", KIND, VERSION).collect().rows() == expected
    assert feed.filter(pl.col("b").is_null()).collect()["id"].to_list() == [1, 1]
    assert feed.filter(pl.col("b") == 2).collect()[VERSION].to_list() == [1, 2]


def test_removes_without_partition_values_of_a_table_that_is_partitioned_later_are_read(
    tmp_path: Path,
) -> None:
    log = Handmade(tmp_path)
    for name, frame in {"a": pl.DataFrame({"id": [1]}), "b": pl.DataFrame({"id": [2]})}.items():
        frame.write_parquet(tmp_path / name)
    size = (tmp_path / "a").stat().st_size
    log.commit(0, protocol(), metadata(field("id")), add("a", size))
    columns = field("id"), field("p", "string")
    added = add("b", size, partitionValues={"p": "x"})
    log.commit(1, metadata(*columns, partitioned=["p"]), remove("a"), added)
    removed = (1, None, "delete", 1), (2, "x", "insert", 1)
    for first, expected in ((0, ((1, None, "insert", 0), *removed)), (1, removed)):
        feed = log.table.changes(first).select("id", "p", KIND, VERSION)
        assert feed.collect().rows() == list(expected)


def test_partition_value_that_a_file_of_the_same_schema_lacks_is_an_error(tmp_path: Path) -> None:
    log = Handmade(tmp_path)
    pl.DataFrame({"id": [1]}).write_parquet(tmp_path / "a")
    columns = field("id"), field("p", "string")
    log.commit(0, protocol(), metadata(field("id")))
    added = add("a", (tmp_path / "a").stat().st_size)
    log.commit(1, metadata(*columns, partitioned=["p"]), added)
    with pytest.raises(CorruptionError, match="'p' is missing"):
        log.table.changes(0).collect()


def test_partition_column_of_a_chosen_commit_that_became_a_data_column_raises(
    tmp_path: Path,
) -> None:
    log, columns = Handmade(tmp_path), (field("id"), field("p", "string"))
    frames = {"a": pl.DataFrame({"id": [1]}), "b": pl.DataFrame({"id": [2], "p": ["y"]})}
    for version, (name, frame) in enumerate(frames.items()):
        frame.write_parquet(tmp_path / name)
        values = {"partitionValues": {} if version else {"p": "x"}}
        added = add(name, (tmp_path / name).stat().st_size, **values)
        partitioned = [] if version else ["p"]
        log.commit(2 * version, protocol(), metadata(*columns, partitioned=partitioned))
        log.commit(2 * version + 1, added)
    with pytest.raises(UnsupportedFeatureError, match="schema changed"):
        log.table.changes(0, where=f"{VERSION} = 1").collect()
    assert changed(log.table.changes(0, where=f"{VERSION} = 3")) == [(2, "y", "insert", 3)]


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(("mode", "name"), [("none", "id"), ("name", "col-2")])
def test_columns_with_other_names_in_earlier_files_are_refused(
    tmp_path: Path, mode: str, name: str, is_nested: bool
) -> None:
    """Mapping was removed, or the table replaced: null is not the value of the earlier row."""
    log = Handmade(tmp_path)
    for version, (own, at) in enumerate([("name", "col-1"), (mode, name), (mode, name)]):
        keys = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": at}
        column = field("id", **({} if own == "none" else keys))
        row: dict[str, Any] = {at: [version]}
        if is_nested:
            keys = {"delta.columnMapping.id": 2, "delta.columnMapping.physicalName": "s"}
            column = field("s", {"type": "struct", "fields": [column]}, **keys)
            row = {"s": [{at: version}]}
        path = tmp_path / f"{version}.parquet"
        pl.DataFrame(row).write_parquet(path)
        head = [protocol(2, 5), metadata(column, properties={"delta.columnMapping.mode": own})]
        log.commit(version, *(head if version < 2 else []), add(path.name, path.stat().st_size))
    for first, last in ((0, 0), (2, 2)):
        (found,) = log.table.changes(first, last).collect().to_series()
        assert found == ({"id": first} if is_nested else first)
    for first in (0, 1):  # a change of version 1 may be in a file of version 0
        with pytest.raises(UnsupportedFeatureError, match="schema changed") as caught:
            log.table.changes(first).collect()
        assert caught.value.column == ("s.id" if is_nested else "id")


def test_first_version_without_a_schema_has_no_columns(tmp_path: Path) -> None:
    made = Handmade(tmp_path).start(schemaString=None)
    table = made.table
    assert table.changes(0, 0).collect().columns == [KIND, VERSION, TIME]
    assert table.to_polars().shape == (0, 0)
    made.commit(1, metadata(field("id", "long")))
    table.append(pl.DataFrame({"id": [1]}))
    assert table.changes(0).select("id", VERSION).collect().rows() == [(1, 2)]
    assert [frame.collect().height for _, frame in table.follow(0, stop=lambda: True)] == [0, 0, 1]


def test_table_with_files_and_without_a_schema_is_not_changed(tmp_path: Path) -> None:
    table = Handmade(tmp_path).start(add("a"), schemaString=None).table
    rows = pl.DataFrame({"id": [1]})
    for change in (
        lambda: table.append(rows, schema_mode="merge"),
        lambda: table.alter.add_columns({"id": pl.Int64}),
        lambda: table.alter.set_properties({"delta.columnMapping.mode": "name"}),
    ):
        with pytest.raises((CorruptionError, InvalidMetadataError), match="has no schema"):
            change()
    assert table.version() == 0


def test_deleted_file_raises_with_file_and_version(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for number in range(3):
        table.append(rows(number, p=f"p{number}"))
    (path,) = table.snapshot().files(pl.col("p") == "p1").collect()["path"]
    (tmp_path / path).unlink()
    with pytest.raises(NotFoundError, match="change feed") as caught:
        table.changes(0).collect()
    assert (caught.value.path, caught.value.version) == (path, 2)
    # Files that a condition excludes are not opened.
    for where in (pl.col(VERSION) == 3, pl.col("p") == "p0", pl.col("id") > 1):
        assert table.changes(0).filter(where).collect().height == 1
    assert table.changes(0).filter(pl.col(KIND) == "delete").collect().height == 0


def test_remove_without_null_partition_values_as_of_spark_is_read(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path, {"delta.enableDeletionVectors": "true"})
    table.append(pl.concat([rows(1, 2), rows(3).with_columns(p=pl.lit(None, pl.String))]))
    table.delete("id = 3 OR id = 1")
    log = tmp_path / "_delta_log" / f"{2:020}.json"
    text = log.read_text()
    assert '"partitionValues":{"p":null}' in text
    log.write_text(text.replace('"partitionValues":{"p":null}', '"partitionValues":{}'))
    feed = table.changes(2)
    assert sorted(feed.select("id", "p", KIND).collect().rows()) == [
        (1, "a", "delete"),
        (3, None, "delete"),
    ]
    assert feed.filter(pl.col("p").is_null()).collect()["id"].to_list() == [3]


def test_remove_without_partition_values_has_those_of_its_add(tmp_path: Path) -> None:
    log = Handmade(tmp_path)
    for n, name in enumerate("abc"):
        pl.DataFrame({"id": [n]}).write_parquet(tmp_path / name)
    size = (tmp_path / "a").stat().st_size
    columns = field("id"), field("p", "string")
    adds = [add(name, size, partitionValues={"p": name}) for name in "abc"]
    log.commit(0, protocol(), metadata(*columns, partitioned=["p"]), *adds[:2])
    log.commit(1, remove("a"), adds[2])
    log.commit(2, remove("b"), remove("c"))
    deletes = [(0, "a", "delete", 1), (1, "b", "delete", 2), (2, "c", "delete", 2)]
    inserts = [(0, "a", "insert", 0), (1, "b", "insert", 0), (2, "c", "insert", 1)]
    expected = sorted(inserts + deletes, key=lambda row: (row[3], row[2], row[0]))
    wanted = ("id", "p", KIND, VERSION)
    for start in range(3):
        found = log.table.changes(start).select(wanted).collect().rows()
        assert sorted(found, key=lambda row: (row[3], row[2], row[0])) == [
            row for row in expected if row[3] >= start
        ]
    some = log.table.changes(0).filter(pl.col(VERSION).is_in([0, 2]), pl.col("p") == "c")
    assert some.select(wanted).collect().rows() == [(2, "c", "delete", 2)]
    log.table.checkpoint(2)
    log.forget(0, 1)
    with pytest.raises(UnsupportedFeatureError, match="were deleted") as refused:
        log.table.changes(2).collect()
    assert refused.value.version == 2


def test_invalid_or_deleted_range_raises(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for number in range(3):
        table.append(rows(number))
    for start, end in ((4, None), (2, 1), (-1, None)):
        with pytest.raises(InvalidInputError):
            table.changes(start, end).collect()
    table.checkpoint()
    for version in range(2):
        (tmp_path / f"_delta_log/{version:020d}.json").unlink()
    with pytest.raises(VersionNotFoundError, match="0 to 1"):
        table.changes(0).collect()
    assert changed(table.changes(2)) == [(1, "a", "insert", 2), (2, "a", "insert", 3)]


def test_column_name_reserved_by_the_feed_raises(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {KIND: pl.String})
    with pytest.raises(UnsupportedFeatureError, match=KIND):
        table.changes(0)


def test_followers_get_every_version_once_and_wait_for_new_ones(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(rows(1))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        table.append(rows(10 + len(waits)))

    runtime = Runtime(sleep=wait)
    reader = Table(table.log, runtime)
    found: list[Any] = []
    for version, frame in reader.follow(1, interval_s=5, stop=lambda: len(waits) == 2):
        found.append((version, *frame.collect()["id"]))
    assert (found, waits) == ([(1, 1), (2, 11), (3, 12)], [5, 5])
    assert list(reader.follow(stop=lambda: True)) == []
    with pytest.raises(InvalidInputError, match="interval_s"):
        table.follow(interval_s=0)
