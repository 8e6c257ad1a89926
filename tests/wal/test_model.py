"""Any interleaving of operations, faults and crashes agrees with a plain list of records."""

from __future__ import annotations

import errno
import random
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lakelog.errors import InvalidInputError, LogLockedError, UnavailableError
from lakelog.wal.frames import FRAME_MAGIC
from lakelog.wal.log import WriteAheadLog
from tests.budget import share_of
from tests.wal.crash_disk import Counting, CrashDisk, fail

DIRECTORY = "somewhere/log"

keys = st.binary(max_size=6) | st.sampled_from([b"a", b"b", b"c"])
values = (
    st.binary(max_size=30)
    | st.binary(min_size=1, max_size=3).map(lambda part: part * 150)
    | st.just(FRAME_MAGIC.to_bytes(4, "little") * 12)
)


def records(*ops: str) -> st.SearchStrategy[tuple[str, bytes, bytes | None]]:
    """Records of these operations; all but PUT may have no value."""
    return st.sampled_from(ops).flatmap(
        lambda op: st.tuples(st.just(op), keys, values if op == "PUT" else st.none() | values)
    )


batches = st.lists(records("PUT", "PUT", "DELETE"), max_size=60)

Record = tuple[int, str, bytes, bytes | None]


class LogMachine(RuleBasedStateMachine):
    """A log on a disk in memory, and the expected list.

    ``model`` has every record that was ever appended. ``ends`` are the ends of the calls' appends.
    Records up to ``truncated_to`` are truncated; those up to ``durable`` survive a crash.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = CrashDisk()
        self.model: list[Record] = []
        self.ends = {0}
        self.truncated_to = self.durable = 0

    @initialize(
        sync=st.sampled_from(["sync", "batch", "none"]),
        compression=st.sampled_from(["none", "zstd"]),
        segment_bytes=st.sampled_from([1, 400, 2000, 1 << 20]),
        frame_bytes=st.sampled_from([1, 200, 1 << 20]),
    )
    def begin(self, **how: Any) -> None:
        self.how = {**how, "batch_appends": 3}
        self.open()
        self.reader = self.opened(read_only=True)

    def opened(self, **settings: Any) -> WriteAheadLog:
        return WriteAheadLog(DIRECTORY, disk=self.disk, **{**self.how, **settings})

    def open(self) -> None:
        self.log = self.opened()
        self.durable = len(self.model)

    def add(self, *records: tuple[str, bytes, bytes | None]) -> int:
        """Append to the model; returns the last record's number."""
        for record in records:
            self.model.append((len(self.model) + 1, *record))
        self.ends.add(len(self.model))
        if self.how["sync"] == "sync":
            self.durable = len(self.model)
        return len(self.model)

    @property
    def live(self) -> list[Record]:
        return self.model[self.truncated_to :]

    # --- appends

    @rule(record=records("PUT", "DELETE", "COMMIT", "CHECKPOINT"))
    def append(self, record: tuple[Any, bytes, bytes | None]) -> None:
        assert self.log.append(*record) == self.add(record)

    @rule(batch=batches)
    def append_batch(self, batch: list[tuple[str, bytes, bytes | None]]) -> None:
        assert self.log.append_batch(batch) == self.add(*batch, ("COMMIT", b"", None))

    @rule(batch=batches, polars=st.booleans(), slices=st.booleans())
    def append_table(
        self, batch: list[tuple[str, bytes, bytes | None]], polars: bool, slices: bool
    ) -> None:
        extra = batch[:1] if slices else []
        columns = list(zip(*extra, *batch, strict=True)) or [(), (), ()]
        types = {"op": pa.string(), "key": pa.binary(), "value": pa.binary()}
        table: Any = pa.table(
            {
                name: pa.array(column, kind)
                for (name, kind), column in zip(types.items(), columns, strict=True)
            }
        ).slice(len(extra))
        if polars:
            table = pl.from_arrow(table)
        assert self.log.append_table(table) == self.add(*batch, ("COMMIT", b"", None))

    @rule()
    def checkpoint(self) -> None:
        assert self.log.checkpoint() == self.add(("CHECKPOINT", b"", None))
        if self.how["sync"] != "none":
            self.durable = len(self.model)

    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.durable = len(self.model)

    # --- refused and failing calls

    @rule(batch=batches)
    def append_a_batch_with_a_mark(self, batch: list[Any]) -> None:
        with pytest.raises(InvalidInputError):
            self.log.append_batch([*batch, ("COMMIT", b"", None)])

    @rule()
    def open_a_second_writer(self) -> None:
        with pytest.raises(LogLockedError):
            self.opened()

    @rule(batch=batches.filter(bool), share=st.floats(0, 1))
    def append_without_room(self, batch: list[Any], share: float) -> None:
        kinds = frozenset({"write"})
        self.disk.watch = Counting(1, fail(errno.ENOSPC, share), kinds=kinds)
        with pytest.raises(UnavailableError):
            self.log.append_batch(batch)
        self.disk.watch = lambda operation: None

    # --- truncation

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        up_to = round(len(self.model) * share)
        report = self.log.truncate(up_to)
        self.truncated_to = max(self.truncated_to, up_to)
        self.durable = max(self.durable, self.truncated_to)
        assert report.truncated_to == self.truncated_to
        assert not set(report.removed) & set(self.disk.names)

    @rule()
    def truncate_beyond_the_end(self) -> None:
        with pytest.raises(InvalidInputError):
            self.log.truncate(len(self.model) + 1)

    # --- closing, opening, crashes

    @rule()
    def reopen(self) -> None:
        self.log.close()
        with pytest.raises(InvalidInputError):
            self.log.append("PUT", b"closed", b"")
        self.open()
        assert self.log.recovery is None

    @rule(seed=st.integers(0, 1 << 32))
    def crash(self, seed: int) -> None:
        self.disk = self.disk.clone(random.Random(seed))
        self.log = self.opened()
        last = self.log.current_seq_num()
        assert self.durable <= last <= len(self.model)
        assert last in self.ends, "a batch is incomplete"
        self.ends = {end for end in self.ends if end <= last}
        del self.model[last:]
        self.durable = last
        self.reader = self.opened(read_only=True)

    # --- reads

    @rule(share=st.floats(0, 1), reads=st.booleans())
    def replay(self, share: float, reads: bool) -> None:
        after = round(len(self.model) * share)
        log = self.reader if reads else self.log
        expected = [
            record
            for record in self.model[max(after, self.truncated_to) :]
            if record[1] in {"PUT", "DELETE"}
        ]
        table = log.replay(after)
        assert [tuple(row.values()) for row in table.to_pylist()] == expected
        records = [tuple(record)[:4] for record in log.records(after)]
        assert records == self.model[max(after, self.truncated_to) :]

    @rule(reads=st.booleans())
    def state(self, reads: bool) -> None:
        expected: dict[bytes, Record] = {}
        for record in self.live:
            if record[1] in {"PUT", "DELETE"}:
                expected.pop(record[2], None)
            if record[1] == "PUT":
                expected[record[2]] = record
        found = (self.reader if reads else self.log).state()
        assert [tuple(row.values()) for row in found.to_pylist()] == [
            (key, value, seq) for seq, _, key, value in expected.values()
        ]

    @rule()
    def iterate_while_more_is_written(self) -> None:
        expected = self.live
        tables = self.reader.iterate()
        first = next(tables, None)
        self.append(("PUT", b"meanwhile", b""))
        self.truncate(1.0)
        parts = [*([first] if first is not None else []), *tables]
        if first is None:
            return  # the log was empty
        assert [tuple(row.values()) for part in parts for row in part.to_pylist()] == expected

    @precondition(lambda self: hasattr(self, "log"))
    @invariant()
    def all_agree_on_the_last_number(self) -> None:
        assert self.log.current_seq_num() == len(self.model)
        assert self.reader.current_seq_num() == len(self.model)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            assert [tuple(record)[:4] for record in self.log.records()] == self.live
            self.log.close()
            with self.opened() as log:
                assert [tuple(record)[:4] for record in log.records()] == self.live


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=share_of(60), stateful_step_count=25, deadline=None)


def test_empty_segment_is_not_followed_by_one_of_the_same_name() -> None:
    disk = CrashDisk()
    with WriteAheadLog(DIRECTORY, disk=disk, segment_bytes=64) as log:
        for seq in range(1, 4):
            assert log.append("PUT", b"k", b"v") == seq
        log.truncate(3)
        assert log.append("PUT", b"k", b"v") == 4
    assert [int(path[-24:-4]) for path in disk.names] == [4]
