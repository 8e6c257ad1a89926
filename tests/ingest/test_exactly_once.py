"""Each acknowledged row is in the table exactly once, whichever operation fails."""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import (
    LakelogError,
    OutcomeUnknownError,
    StreamMismatchError,
    UnavailableError,
    WalCorruptionError,
)
from lakelog.ingest.state import Attempt, IngestState, TableView, committed_seq
from lakelog.storage import open_store
from lakelog.storage.base import LogStore
from lakelog.testing import InjectingStore, Rule
from lakelog.wal.disk import LocalDisk
from lakelog.wal.frames import SEGMENT_HEADER_BYTES
from tests.budget import points, rng_of, share_of
from tests.ingest.ingestors import ids, quiet
from tests.wal.crash_disk import Counting, Crash, CrashDisk, Operation, crash, fail

SCHEMA = {"id": pl.Int64, "name": pl.String}
DIRECTORY = "ingest"
SEEDS = share_of(4) * max(1, int(os.environ.get("LAKELOG_ROUNDS", "1")))

_numbers = iter(range(1 << 30))


@pytest.fixture
def store() -> LogStore:
    return new_store()


def new_store() -> LogStore:
    """The store of an empty table."""
    store = open_store(f"memory://ingest-{os.getpid()}-{next(_numbers)}")
    lakelog.create(None, SCHEMA, store=store, upkeep=False)
    return store


class Workload:
    """Rows written through successive Ingestors of one directory, and the acknowledged ones."""

    def __init__(self, store: LogStore, *, key: str | None = None) -> None:
        self.store, self.key = store, key
        self.acknowledged: list[int] = []
        self.attempted: list[int] = []
        self.faulty = InjectingStore(store)

    def open(self, disk: CrashDisk, *rules: Rule) -> lakelog.Ingestor:
        self.faulty = InjectingStore(self.store, rules)
        table = lakelog.open(store=self.faulty, upkeep=False)
        return lakelog.Ingestor(table, DIRECTORY, disk=disk, max_seconds=3600, key=self.key)

    def write(self, ingestor: lakelog.Ingestor, rows: int = 1) -> None:
        first = len(self.attempted)
        own = list(range(first, first + rows))
        self.attempted += own
        values = [{"id": number, "name": f"row {number}"} for number in own]
        try:
            ingestor.write(values[0] if rows == 1 else values)
        except OutcomeUnknownError:
            raise
        except UnavailableError:
            del self.attempted[first:]  # certainly not written
            raise
        self.acknowledged += own

    def run(self, ingestor: lakelog.Ingestor) -> None:
        """Write and flush a few times; rows of a failed commit are committed by a later one."""
        for rows in (1, 3, 1, 2):
            self.write(ingestor)
            self.write(ingestor, rows)
            with suppress(LakelogError):
                ingestor.flush()

    def check(self) -> None:
        table = lakelog.open(store=self.store, upkeep=False)
        found = table.to_polars()["id"].to_list()
        assert len(found) == len(set(found)), "a row is duplicated"
        assert set(self.acknowledged) <= set(found), "an acknowledged row is missing"
        assert set(found) <= set(self.attempted), "a rejected row is in the table"


def commit_rest_and_check(workload: Workload, disk: CrashDisk) -> None:
    """Commit the pending rows as the next process does, and check the table."""
    with workload.open(disk) as ingestor:
        pending = ingestor.read_your_writes().select("id").collect()["id"].to_list()
        assert len(pending) == len(set(pending))
        assert set(workload.acknowledged) <= set(pending)
    workload.check()


def operations_of_store() -> list[tuple[str, str]]:
    store = new_store()
    counting = InjectingStore(store)
    table = lakelog.open(store=counting, upkeep=False)
    disk = CrashDisk()
    with lakelog.Ingestor(table, DIRECTORY, disk=disk, max_seconds=3600) as ingestor:
        Workload(store).run(ingestor)
    return list(counting.operations)


STORE_POINTS = points(operations_of_store(), share=8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["fail", "unknown", "lost", "late", "lost_taken"])
def test_rows_are_committed_once_after_a_failure_of_any_store_operation(fault: Any) -> None:
    for nth in STORE_POINTS:
        workload, disk = Workload(new_store()), CrashDisk()
        try:
            with workload.open(disk, Rule(fault, nth=nth)) as ingestor:
                workload.run(ingestor)
                workload.faulty.arrive()
        except LakelogError:
            disk.unlock()
        commit_rest_and_check(workload, disk)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["fail", "unknown", "lost", "late"])
def test_rows_are_committed_once_after_a_store_failure_and_a_crash(fault: Any) -> None:
    """The second process starts from the disk after a crash; a late request arrives meanwhile."""
    for nth in STORE_POINTS:
        rng = rng_of(f"{fault} {nth}")
        workload, disk = Workload(new_store()), CrashDisk()
        with suppress(LakelogError):
            ingestor = workload.open(disk, Rule(fault, nth=nth))
            workload.write(ingestor, 3)
            ingestor.flush()
            workload.write(ingestor)
            workload.write(ingestor, 2)
            ingestor.flush()
        clone, late = disk.clone(rng), workload.faulty
        with suppress(LakelogError):
            second = workload.open(clone)
            late.arrive()
            workload.write(second)
            second.flush()
            second.close()
        clone.unlock()
        commit_rest_and_check(workload, clone)


def operations_of_disk(key: str | None = None) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    counting = Counting(0, lambda _: None)

    def watch(operation: Operation) -> None:
        if operation.kind in counting.kinds:
            seen.append((operation.kind, operation.path))

    workload = Workload(new_store(), key=key)
    with workload.open(CrashDisk(watch=watch)) as ingestor:
        workload.run(ingestor)
    return seen


DISK_POINTS = points(operations_of_disk(), share=8)


def test_rows_are_committed_although_the_log_lost_those_of_the_attempt(
    store: LogStore, tmp_path: Path
) -> None:
    failing = lakelog.open(store=InjectingStore(store, [Rule("fail", "put_if_absent", times=None)]))
    ingestor = quiet(failing, tmp_path / "i", sync="sync")
    for number in range(5):
        ingestor.write({"id": number})
    with pytest.raises(UnavailableError):
        ingestor.flush()
    ingestor.close(flush=False)
    (segment,) = (tmp_path / "i" / "wal").glob("*.wal")
    data = bytearray(segment.read_bytes())
    data[SEGMENT_HEADER_BYTES + 40] ^= 255
    segment.write_bytes(data)
    table = lakelog.open(store=store, upkeep=False)
    with pytest.raises(WalCorruptionError, match="strict=False"):
        quiet(table, tmp_path / "i")
    with lakelog.WriteAheadLog(tmp_path / "i" / "wal", strict=False) as log:
        assert log.current_seq_num() == 5
        assert len(log.replay()) == 0
    with quiet(table, tmp_path / "i") as ingestor:
        assert ingestor.write({"id": 10}) == ingestor.flush() == 6
    assert ids(table.scan()) == [10]


@pytest.mark.parametrize("key", [None, "id"])
def test_rows_are_committed_once_after_a_crash_at_any_disk_operation(key: str | None) -> None:
    for nth in DISK_POINTS:
        for seed in range(SEEDS):
            rng = random.Random(f"{nth} {seed}")
            workload = Workload(new_store(), key=key)
            disk = CrashDisk(watch=Counting(nth, crash))
            with suppress(Crash, LakelogError), workload.open(disk) as ingestor:
                workload.run(ingestor)
            disk.watch = lambda _: None
            commit_rest_and_check(workload, disk.clone(rng if seed else None))


ERRORS = [errno.ENOSPC, errno.EIO]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("error", ERRORS, ids=["full", "broken"])
@pytest.mark.parametrize("times", [1, 1000])
def test_rows_are_committed_once_after_a_failure_of_any_disk_operation(
    error: int, times: int
) -> None:
    for nth in DISK_POINTS[:: 1 if times == 1 else 2]:
        workload = Workload(new_store())
        disk = CrashDisk(watch=Counting(nth, fail(error, share=0.5), times=times))
        with suppress(LakelogError), workload.open(disk) as ingestor:
            with suppress(LakelogError):
                workload.run(ingestor)
            with suppress(LakelogError):
                workload.write(ingestor)
        disk.unlock()
        disk.watch = lambda _: None
        commit_rest_and_check(workload, disk)


def test_full_disk_rejects_rows_until_there_is_space(store: LogStore) -> None:
    workload, disk = Workload(store), CrashDisk()
    with workload.open(disk) as ingestor:
        workload.write(ingestor)
        disk.watch = Counting(
            1, fail(errno.ENOSPC, share=0.5), times=1 << 30, kinds=frozenset(("write", "create"))
        )
        for _ in range(3):
            with pytest.raises(UnavailableError):
                workload.write(ingestor)
        assert ingestor.status().durable_seq == 1
        disk.watch = lambda _: None
        workload.write(ingestor)
    workload.check()
    assert workload.acknowledged == workload.attempted == [0, 1]


class SmallDisk(LocalDisk):
    """A folder whose files have a limited total size."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def open_append(self, path: str, *, create: bool = False) -> Any:
        file, disk = super().open_append(path, create=create), self

        class Limited:
            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def write(self, data: Any) -> int:
                used = sum(each.stat().st_size for each in disk.folder.rglob("*") if each.is_file())
                if used + len(data) > disk.most_bytes:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return file.write(data)

        return Limited()


def test_rows_that_fill_the_disk_are_committed(store: LogStore, tmp_path: Path) -> None:
    """A commit writes a few bytes itself before it can free the space of its rows."""
    table = lakelog.open(store=store, upkeep=False)
    disk = SmallDisk(tmp_path, 400_000)
    acknowledged: list[int] = []
    with lakelog.Ingestor(table, tmp_path / "i", disk=disk, max_seconds=3600) as ingestor:

        def fill(size: int) -> None:
            while True:
                number = len(acknowledged)
                ingestor.write({"id": number, "name": "x" * size})
                acknowledged.append(number)

        for _ in range(3):
            for size in (20_000, 1_000, 1):  # until no byte is free
                with pytest.raises(UnavailableError):
                    fill(size)
            ingestor.flush()
            assert ingestor.status().backlog_bytes == 0
    assert table.to_polars()["id"].sort().to_list() == acknowledged


# --- state of the table ----------------------------------------------------------------------


def test_rows_are_not_committed_again_after_their_txn_expired(store: LogStore) -> None:
    """The property drops the txn from checkpoints; the truncation point of the log is enough."""
    workload, disk = Workload(store), CrashDisk()
    table = lakelog.open(store=store, upkeep=False)
    table.alter.set_properties({"delta.setTransactionRetentionDuration": "interval 0 seconds"})
    for _ in range(2):
        with workload.open(disk) as ingestor:
            workload.write(ingestor)
            ingestor.flush()
            workload.write(ingestor)
            table.checkpoint()
    workload.check()


@pytest.mark.parametrize("keeps_commits", [True, False])
def test_attempt_with_expired_txn_is_decided_by_the_commits_or_raises(
    store: LogStore, keeps_commits: bool
) -> None:
    workload, disk = Workload(store), CrashDisk()
    table = lakelog.open(store=store, upkeep=False)
    table.alter.set_properties({"delta.setTransactionRetentionDuration": "interval 0 seconds"})
    ingestor = workload.open(disk)
    workload.write(ingestor)
    disk.watch = crash_when_truncating
    with suppress(Crash):
        ingestor.flush()
    disk.watch = lambda _: None
    left = disk.clone(None)
    table.append(pl.DataFrame({"id": [1000], "name": ["other"]}))
    workload.attempted.append(1000)
    table.checkpoint()
    assert table.snapshot().transactions().collect().height == 0
    if keeps_commits:
        commit_rest_and_check(workload, left)
        return
    for version in range(table.version()):
        store.delete(f"_delta_log/{version:020}.json")
    with pytest.raises(StreamMismatchError, match="cannot be decided"):
        workload.open(left)
    assert table.to_polars()["id"].to_list().count(0) == 1


def crash_when_truncating(operation: Operation) -> None:
    if operation.kind == "create" and operation.path.endswith(".wal"):
        raise Crash


def test_older_copy_of_the_table_raises_unless_rollback_is_accepted(store: LogStore) -> None:
    workload, disk = Workload(store), CrashDisk()
    with workload.open(disk) as ingestor:
        workload.write(ingestor)
        ingestor.flush()
        workload.write(ingestor)
        ingestor.flush()
        workload.write(ingestor)
        ingestor.close(flush=False)
    store.delete("_delta_log/00000000000000000002.json")
    with pytest.raises(StreamMismatchError, match="older copy") as caught:
        workload.open(disk)
    assert (caught.value.expected, caught.value.found) == ("txn version 2", 1)
    disk.unlock()
    table = lakelog.open(store=store, upkeep=False)
    with lakelog.Ingestor(table, DIRECTORY, disk=disk, accept_rollback=True, max_seconds=3600) as i:
        workload.write(i)
    assert sorted(table.to_polars()["id"]) == [0, 2, 3]
    finished_ids = sorted(table.to_polars()["id"])
    with workload.open(disk):
        pass
    assert sorted(table.to_polars()["id"]) == finished_ids


def test_attempt_repeated_on_an_older_copy_is_found_there(store: LogStore) -> None:
    workload, disk = Workload(store), CrashDisk()
    with workload.open(disk, Rule("fail", kinds="put_if_absent", nth=4, times=None)) as ingestor:
        for _ in range(3):
            workload.write(ingestor)
            ingestor.flush()
        workload.write(ingestor)
        with pytest.raises(UnavailableError):
            ingestor.flush()  # the attempt is published, and not written
        ingestor.close(flush=False)
    for version in (2, 3):
        store.delete(f"_delta_log/{version:020}.json")
    table = lakelog.open(store=store, upkeep=False)
    ingestor = lakelog.Ingestor(table, DIRECTORY, disk=disk, accept_rollback=True, max_seconds=3600)
    disk.watch = crash_when_truncating
    with suppress(Crash):
        ingestor.flush()
    disk.watch = lambda _: None
    with workload.open(disk.clone(None)) as ingestor:
        workload.write(ingestor)
    assert sorted(table.to_polars()["id"]) == [0, 3, 4]


A, B = Attempt(9, 5, "id"), Attempt(7, 5, "id")

DECISIONS: list[tuple[str, int, Attempt | None, int, int | None, bool, bool | None, Any]] = [
    # name, committed, attempt, truncated to, txn, txn expires, attempt's commit found, outcome
    ("new", 0, None, 0, None, False, None, (0, 0)),
    ("first attempt failed", 0, A, 0, None, False, None, (0, 0)),
    ("first attempt succeeded", 0, A, 0, 9, False, True, (9, 9)),
    ("commits were cleaned up", 0, A, 0, 9, False, None, (9, 9)),
    ("another process committed the same number", 0, A, 0, 9, False, False, "application id"),
    ("attempt failed", 7, A, 7, 7, False, None, (7, 7)),
    ("attempt succeeded", 7, A, 7, 9, False, True, (9, 9)),
    ("attempt was confirmed", 7, A, 9, 9, False, None, (9, 9)),
    ("not truncated after the commit", 7, None, 3, 7, False, None, (7, 7)),
    ("another process committed", 7, A, 7, 8, False, None, "application id"),
    ("another process committed later", 7, None, 7, 12, False, None, "application id"),
    ("older copy", 7, None, 7, 3, False, None, "older copy"),
    ("older copy without txn", 7, None, 7, None, False, None, "older copy"),
    ("older copy and attempt", 7, A, 7, 3, False, None, "older copy"),
    ("expired", 7, None, 7, None, True, None, (7, 7)),
    ("expired, attempt succeeded", 7, A, 7, None, True, True, (9, 9)),
    ("expired, attempt failed", 7, A, 7, None, True, False, (7, 7)),
    ("expired, undecidable", 7, A, 7, None, True, None, "cannot be decided"),
    ("first attempt, may have expired", 0, A, 0, None, True, None, "cannot be decided"),
]


@pytest.mark.parametrize("case", DECISIONS, ids=[case[0] for case in DECISIONS])
def test_txn_of_the_table_determines_which_records_are_committed(case: Any) -> None:
    _, committed, attempt, truncated_to, txn, txn_expires, found, outcome = case
    state = IngestState("app", "t", (), lakelog.model.contract.Struct(()), (), committed, attempt)
    view = TableView("table", "t", 6, txn, txn_expires, lambda _: found)
    if isinstance(outcome, str):
        with pytest.raises(LakelogError, match=outcome):
            committed_seq(state, truncated_to, view)
    else:
        assert committed_seq(state, truncated_to, view) == outcome
