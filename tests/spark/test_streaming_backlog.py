"""The unread part of a stream, offset by offset, without Spark."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import (
    CorruptionError,
    InvalidInputError,
    LakelogWarning,
    LogGapError,
    StreamMismatchError,
    Table,
    TableNotFoundError,
    VersionNotFoundError,
)
from lakelog.spark.stream_planner import Limit, Offset, StreamPlanner
from tests.handmade import Handmade, field, metadata, protocol
from tests.handmade import add as added

EVERYTHING = Limit()


def new_table(where: Path, **kwargs: Any) -> Table:
    return lakelog.create(where, {"id": pl.Int64, "day": pl.String}, upkeep=False, **kwargs)


def add(table: Table, *names: str, remove: Sequence[str] = (), **fields: Any) -> int:
    with table.transaction() as tx:
        for number, name in enumerate(names):
            tx.add(path=name, size=10, modificationTime=number, **fields)
        for name in remove:
            tx.remove(path=name, **fields)
    assert tx.version is not None
    return tx.version


def read_all(
    backlog: StreamPlanner, offset: Offset, limit: Limit
) -> tuple[list[list[str]], Offset]:
    """Batches of paths up to the end, each planned twice, as after a restart."""
    batches: list[list[str]] = []
    while True:
        end = backlog.advance(offset, limit)
        if not offset < end:
            return batches, offset
        found = backlog.files(offset, end)
        again = StreamPlanner(backlog._table, skip_change_commits=backlog._skips)
        assert again.files(Offset.of(offset.as_json()), Offset.of(end.as_json())).equals(found)
        batches.append(found["path"].to_list())
        offset = end


def test_stream_reads_existing_files_and_then_new_ones(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    add(table, "a", "b")
    add(table, "c")
    backlog = StreamPlanner(table)
    start = backlog.beginning()
    table_id = table.snapshot().metadata.id or ""
    assert start == Offset.beginning(table_id, 2, is_initial=True)
    add(table, "d", "e", "f")
    batches, end = read_all(backlog, start, Limit(files=2))
    # By modification time and path first, then as the commit has them.
    assert batches == [["a", "c"], ["b", "d"], ["e", "f"]]
    assert end == start.next_version().next_version()
    assert read_all(backlog, end, EVERYTHING) == ([], end)
    assert read_all(backlog, start, EVERYTHING)[0] == [["a", "c", "b", "d", "e", "f"]]


def test_byte_limit_applies_to_a_batch_of_at_least_one_file(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    add(table, *"abcde")
    backlog = StreamPlanner(table)
    start = backlog.from_version(0)
    assert read_all(backlog, start, Limit(size_bytes=20))[0] == [["a", "b"], ["c", "d"], ["e"]]
    assert read_all(backlog, start, Limit(size_bytes=1))[0] == [[c] for c in "abcde"]
    both = Limit(files=3, size_bytes=20)
    assert read_all(backlog, start, both)[0] == [["a", "b"], ["c", "d"], ["e"]]


def test_stream_starts_at_the_requested_offset(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for name in "abc":
        add(table, name)
    backlog = StreamPlanner(table)
    times = table.history().sort("version")["timestamp"].dt.epoch("ms").to_list()

    def from_(offset: Offset) -> list[str]:
        return [path for batch in read_all(backlog, offset, EVERYTHING)[0] for path in batch]

    assert from_(backlog.from_version(2)) == ["b", "c"]
    assert from_(backlog.from_version(4)) == []
    assert from_(backlog.from_now()) == []
    assert from_(backlog.from_time(times[2])) == ["b", "c"]
    assert from_(backlog.from_time(times[2] + 1)) == ["c"]
    assert from_(backlog.from_time(0)) == ["a", "b", "c"]
    assert from_(backlog.from_time(times[3] + 10_000)) == []
    with pytest.raises(VersionNotFoundError, match="cannot start at version 5"):
        backlog.from_version(5)
    # Nothing after the last version of the run.
    start = backlog.from_version(0)
    end = backlog.advance(start, EVERYTHING, last=2)
    assert backlog.files(start, end)["path"].to_list() == ["a", "b"]
    assert backlog.advance(end, EVERYTHING, last=2) == end
    initial = backlog.beginning()
    assert backlog.advance(initial, EVERYTHING, last=2) == initial


def test_commits_without_data_change_add_no_rows(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    add(table, "a", "b")
    add(table, "ab", remove=["a", "b"], dataChange=False)
    add(table, "c")
    backlog = StreamPlanner(table)
    assert read_all(backlog, backlog.from_version(0), EVERYTHING)[0] == [["a", "b", "c"]]


@pytest.mark.parametrize("changes", [False, True])
def test_stream_refuses_a_starting_version_with_a_file_that_is_live_twice(
    tmp_path: Path, changes: bool
) -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1}
    vector |= {"sizeInBytes": 40, "cardinality": 1}
    log = Handmade(tmp_path)
    log.commit(0, protocol(3, 7, readerFeatures=["deletionVectors"]), metadata(field("id")))
    log.commit(1, added("a"), added("b"))
    log.commit(2, added("a", deletionVector=vector))
    planner = StreamPlanner(log.table, changes=changes)
    plan = planner.advance_commits if changes else planner.advance
    with pytest.raises(CorruptionError, match="more than once") as caught:
        plan(planner.beginning(), EVERYTHING)
    assert (caught.value.version, caught.value.found) == (2, 2)


def test_changed_rows_raise_an_error_unless_they_are_skipped(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path)
    add(table, "a")
    add(table, "b")
    changed = add(table, "a2", remove=["a"])
    add(table, "c")
    backlog = StreamPlanner(table)
    start = backlog.from_version(0)
    end = backlog.advance(start, EVERYTHING)
    assert backlog.files(start, end)["path"].to_list() == ["a", "b"], "earlier files are read"
    with pytest.raises(StreamMismatchError, match=f"version {changed} .WRITE") as caught:
        backlog.advance(end, EVERYTHING)
    assert "skipChangeCommits" in str(caught.value)
    skipping = StreamPlanner(table, skip_change_commits=True)
    assert read_all(skipping, start, Limit(files=1))[0] == [["a"], ["b"], ["c"]]
    # The version that it begins with has no history.
    assert read_all(backlog, backlog.beginning(), EVERYTHING)[0] == [["a2", "b", "c"]]


def test_restarted_stream_reads_rows_of_an_earlier_narrower_schema(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path)
    add(table, "a")
    running = StreamPlanner(table)
    start = running.from_version(0)
    assert running.snapshot.version == 1
    with table.transaction() as tx:
        tx.set_metadata(schema={"id": pl.Int64, "day": pl.String, "more": pl.Int64})
    add(table, "b")
    end = running.advance(start, EVERYTHING)
    with pytest.raises(StreamMismatchError, match="it has a column more") as caught:
        running.advance(end, EVERYTHING)
    assert caught.value.version == 2
    restarted = StreamPlanner(table)
    assert read_all(restarted, end, EVERYTHING)[0] == [["b"]]
    # The schemas before the one that it was started with are fewer columns, and can be read.
    assert read_all(restarted, start, EVERYTHING)[0] == [["a", "b"]]


def test_rows_of_an_incompatible_earlier_schema_are_refused(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path)
    for name in "ab":
        add(table, name)
    started = StreamPlanner(table)
    inside = started.beginning().past(1)
    with table.transaction() as tx:
        tx.remove(tx.read())
        tx.set_metadata(schema={"other": pl.Int64, "day": pl.String})
    add(table, "c")
    # The commit that changed the schema is read by none of them, or not yet.
    for start in (started.from_version(2), started.from_version(2).past(1), inside):
        with pytest.raises(StreamMismatchError, match="it has a column id") as caught:
            StreamPlanner(table, skip_change_commits=True).advance(start, EVERYTHING)
        assert caught.value.version == 2
        assert "from a version that has that schema" in str(caught.value.hint)
    restarted = StreamPlanner(table)
    assert read_all(restarted, restarted.from_version(4), EVERYTHING)[0] == [["c"]]


def test_rows_of_files_that_name_a_column_otherwise_are_refused(tmp_path: Path) -> None:
    """A stream reads all files with one schema, which would find null in them."""
    names = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    mapped = metadata(field("id", **names), properties={"delta.columnMapping.mode": "name"})
    log = Handmade(tmp_path)
    log.commit(0, protocol(2, 5), mapped, added("a"))
    running = StreamPlanner(log.table)
    start = running.from_version(0)
    log.commit(1, metadata(field("id"), properties={"delta.columnMapping.mode": "none"}))
    log.commit(2, added("b"))
    for planner, at in (
        (running, running.advance(start, EVERYTHING)),
        (StreamPlanner(log.table), start),
    ):
        with pytest.raises(StreamMismatchError, match="id has another name in files"):
            planner.advance(at, EVERYTHING)
    assert read_all(StreamPlanner(log.table), running.from_version(2), EVERYTHING)[0] == [["b"]]


@pytest.mark.parametrize("dropped", ["day", "place.city"])
@pytest.mark.parametrize("changes", [False, True], ids=["rows", "changes"])
def test_column_dropped_under_a_running_stream_ends_it_at_that_version(
    tmp_path: Path, dropped: str, changes: bool
) -> None:
    place = pl.Struct({"city": pl.String, "zip": pl.String})
    columns = {"id": pl.Int64, "day": pl.String, "place": place}
    table = lakelog.create(
        tmp_path, columns, configuration={"delta.columnMapping.mode": "name"}, upkeep=False
    )
    running = StreamPlanner(table, changes=changes)
    start = running.from_version(0)
    table.append(pl.DataFrame({"id": [1]}))
    table.alter.drop_column(dropped)
    table.append(pl.DataFrame({"id": [2]}))
    advance = running.advance_commits if changes else running.advance
    end = advance(start, EVERYTHING)
    assert end.version == 2, "everything before it is read"
    with pytest.raises(StreamMismatchError, match=f"it has no column {dropped}") as caught:
        advance(end, EVERYTHING)
    assert caught.value.version == 2
    table.alter.add_columns({"more": pl.String})
    restarted = StreamPlanner(table)
    rest = restarted.advance(restarted.from_version(3), EVERYTHING)
    assert rest.version == 5, "an added column is not missing in earlier versions"


def test_commits_that_were_cleaned_up_are_reported_or_skipped(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for name in "abcd":
        add(table, name)
    table.checkpoint()
    backlog = StreamPlanner(table)
    start = backlog.from_version(1)
    for version in range(3):
        (tmp_path / f"_delta_log/{version:020}.json").unlink()
    with pytest.raises(VersionNotFoundError, match="commits 1 to 2 were cleaned up") as caught:
        backlog.advance(start, EVERYTHING)
    assert caught.value.found == "commit 3 is the first"
    assert "failOnDataLoss" in str(caught.value)
    lenient = StreamPlanner(table, fail_on_data_loss=False)
    with pytest.warns(LakelogWarning, match="cleaned up"):
        end = lenient.advance(start, EVERYTHING)
    with pytest.warns(LakelogWarning, match="cleaned up"):
        assert lenient.files(start, end)["path"].to_list() == ["c", "d"]
    with pytest.raises(VersionNotFoundError, match="not read its starting version"):
        backlog.advance(Offset.beginning(start.table_id, 2, is_initial=True), EVERYTHING)
    (tmp_path / f"_delta_log/{3:020}.json").unlink()
    (tmp_path / f"_delta_log/{4:020}.json").unlink()
    with pytest.raises(VersionNotFoundError, match="commits 1 to the latest"):
        StreamPlanner(table).advance(start, EVERYTHING)


@pytest.mark.parametrize("changes", [False, True], ids=["rows", "changes"])
def test_schema_that_skipped_commits_changed_is_refused(tmp_path: Path, changes: bool) -> None:
    table = new_table(tmp_path, configuration={"delta.columnMapping.mode": "name"})
    running = StreamPlanner(table, fail_on_data_loss=False, changes=changes)
    start = running.from_version(1)
    table.alter.drop_column("day")
    table.checkpoint()
    add(table, "a")
    for version in range(2):
        (tmp_path / f"_delta_log/{version:020}.json").unlink()
    advance = running.advance_commits if changes else running.advance
    with (
        pytest.warns(LakelogWarning, match="cleaned up"),
        pytest.raises(StreamMismatchError, match="it has no column day"),
    ):
        advance(start, EVERYTHING)


def test_damaged_checkpoint_below_the_start_is_not_needed(
    tmp_path: Path,
) -> None:
    table = new_table(tmp_path)
    for name in "abc":
        add(table, name)
    table.checkpoint()
    for name in "def":
        add(table, name)
    table.checkpoint()
    for version in range(4):
        (tmp_path / f"_delta_log/{version:020}.json").unlink()
    for file in tmp_path.glob(f"_delta_log/{3:020}.checkpoint*"):
        file.write_bytes(file.read_bytes()[:-9])
    fresh = lakelog.open(tmp_path)
    with pytest.raises(CorruptionError):
        fresh.snapshot(4)
    assert read_all(StreamPlanner(fresh), StreamPlanner(fresh).from_version(4), EVERYTHING)[0] == [
        list("def")
    ]


@pytest.mark.parametrize("commits", [2, 3, 4, 6])
def test_table_recreated_under_a_running_stream_is_detected(tmp_path: Path, commits: int) -> None:
    where = tmp_path / "t"
    table = new_table(where)
    for name in "abc":
        add(table, name)
    backlog = StreamPlanner(table)
    _, slow = backlog.beginning(), backlog.from_version(1)
    slow = backlog.advance(slow, Limit(files=1))
    _, quick = read_all(backlog, slow, EVERYTHING)
    where.rename(tmp_path / "old")
    other = new_table(where)
    for number in range(commits):
        add(other, f"other-{number}")
    # File times are coarse, so the recreated table gets clearly later ones.
    for file in where.glob("_delta_log/*.json"):
        later = (tmp_path / "old/_delta_log" / f"{0:020}.json").stat().st_mtime + 60
        os.utime(file, (later, later))
    for offset in (quick, slow):
        with pytest.raises(StreamMismatchError, match=r"another table|do not exist"):
            backlog.advance(offset, EVERYTHING)
        with pytest.raises(StreamMismatchError, match=r"another table|do not exist"):
            backlog.files(offset, offset.next_version())


def replace_last_commit(where: Path, name: str) -> None:
    """Another commit of the last version, as after a rollback of the log."""
    table = lakelog.open(where, upkeep=False)
    (where / f"_delta_log/{table.version():020}.json").unlink()
    for crc in where.glob("_delta_log/*.crc"):
        crc.unlink()
    time.sleep(0.02)  # else both files may have one time, by which they are compared
    add(lakelog.open(where, upkeep=False), name)


@pytest.mark.parametrize("later", [0, 1])
@pytest.mark.parametrize("begin", ["from_version", "beginning", "from_now"])
@pytest.mark.parametrize("changes", [False, True], ids=["rows", "changes"])
def test_log_rolled_back_under_a_running_stream_is_detected(
    tmp_path: Path, begin: str, later: int, changes: bool
) -> None:
    table = new_table(tmp_path)
    add(table, "a")
    add(table, "b")
    backlog = StreamPlanner(table, changes=changes)
    advance = backlog.advance_commits if changes else backlog.advance
    start = backlog.from_version(0) if begin == "from_version" else getattr(backlog, begin)()
    end = advance(start, EVERYTHING)
    assert end.version == 3
    replace_last_commit(tmp_path, "c")
    for number in range(later):
        add(lakelog.open(tmp_path, upkeep=False), f"d{number}")
    for _ in range(2):
        with pytest.raises(StreamMismatchError, match="version 2 is another commit") as caught:
            advance(end, EVERYTHING)
        assert "restored to an earlier state" in str(caught.value.hint)
        assert caught.value.version == 2


def test_commit_whose_file_was_only_touched_is_the_same(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    add(table, "a")
    backlog = StreamPlanner(table)
    _, end = read_all(backlog, backlog.from_version(0), EVERYTHING)
    file = tmp_path / f"_delta_log/{1:020}.json"
    os.utime(file, (0, file.stat().st_mtime + 60))
    add(table, "b")
    assert read_all(backlog, end, EVERYTHING)[0] == [["b"]]


def test_missing_commit_raises_log_gap_error(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    for name in "abcd":
        add(table, name)
    backlog = StreamPlanner(table)
    start = backlog.from_version(1)
    (tmp_path / f"_delta_log/{3:020}.json").unlink()
    with pytest.raises(LogGapError):
        backlog.advance(start, EVERYTHING)


def test_an_offset_of_another_table_or_of_the_future_is_refused(tmp_path: Path) -> None:
    table = new_table(tmp_path / "one")
    backlog = StreamPlanner(table)
    with pytest.raises(StreamMismatchError, match="another table"):
        backlog.advance(Offset.beginning("other", 0), EVERYTHING)
    with pytest.raises(StreamMismatchError, match="do not exist"):
        backlog.advance(backlog.from_version(0).next_version().next_version(), EVERYTHING)
    own = backlog.beginning().as_json()
    of_delta = {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": 1, "index": -1}
    unknown: list[Any] = [own | {"sourceVersion": 2}, of_delta, own | {"version": "x"}, []]
    for each in unknown:
        with pytest.raises(InvalidInputError, match="unknown offset"):
            Offset.of(each)
    with pytest.raises(TableNotFoundError):
        lakelog.open(tmp_path / "none")


@pytest.mark.parametrize("begin", ["beginning", "from_now"])
def test_repeated_first_batch_has_the_same_files(tmp_path: Path, begin: str) -> None:
    table = new_table(tmp_path)
    add(table, "a", "b")
    backlog = StreamPlanner(table)
    start = getattr(backlog, begin)()
    add(table, "c")
    for limit in (Limit(files=1), EVERYTHING):
        end = backlog.advance(start, limit)
        found = backlog.files(start, end)["path"].to_list()
        assert found
        add(table, "d")
        again = StreamPlanner(lakelog.open(tmp_path))
        restarted = getattr(again, begin)()
        assert start < restarted
        assert again.files(restarted, end)["path"].to_list() == found
        with table.transaction() as tx:
            tx.remove(path="d")


@pytest.mark.parametrize("seed", range(6))
def test_every_added_file_is_read_once_with_any_limits(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    table = new_table(tmp_path)
    expected: list[str] = []
    begins = rng.randrange(8)
    backlog, start = StreamPlanner(table), None
    for version in range(12):
        if version == begins:
            start = backlog.beginning()
            expected = table.snapshot().files().collect()["path"].sort().to_list()
        names = [f"{version}-{i}" for i in range(rng.randrange(4))]
        rearranges = rng.random() < 0.2
        if not names:
            with table.transaction() as tx:
                tx.set_txn(appId="x", version=version)
            continue
        add(table, *names, dataChange=not rearranges)
        if not rearranges:
            expected += names
    assert start is not None
    limit = Limit(rng.choice([None, 1, 2, 5]), rng.choice([None, 1, 25]))
    batches, _ = read_all(backlog, start, limit)
    assert sorted(p for batch in batches for p in batch) == sorted(expected)
