"""Any interleaving of operations, compared with a dictionary."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lakelog.keyed.store import KeyedStore
from tests.budget import share_of
from tests.wal.crash_disk import CrashDisk

KEYS = st.sampled_from([b"", b"a", b"a\0", b"ab", b"b", b"\xff", b"\xff\xff"]) | st.binary(
    max_size=2
)
VALUES = st.sampled_from([b"", b"1", b"longer than the others"])


class Store(RuleBasedStateMachine):
    """A store in memory and a dictionary as its model; crashes keep acknowledged writes."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = CrashDisk()
        self.store = self.opened()
        self.model: dict[bytes, bytes] = {}

    def opened(self) -> KeyedStore:
        return KeyedStore("store", disk=self.disk, memtable_bytes=150)

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.store.put(key, value)
        self.model[key] = value

    @rule(items=st.dictionaries(KEYS, VALUES, max_size=4))
    def put_many(self, items: dict[bytes, bytes]) -> None:
        self.store.put_many(items)
        self.model |= items

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.store.delete(key)
        self.model.pop(key, None)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete_existing_key(self, data: st.DataObject) -> None:
        self.delete(data.draw(st.sampled_from(sorted(self.model))))

    @rule()
    def flush(self) -> None:
        self.store.flush()
        assert self.store.flush() is None

    @rule()
    def compact(self) -> None:
        report = self.store.compact()
        assert (report.rows if report else 0) == len(self.model)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()

    @rule(seed=st.none() | st.integers(0, 2**32))
    def crash(self, seed: int | None) -> None:
        self.disk = self.disk.clone(None if seed is None else random.Random(seed))
        self.store = self.opened()

    @rule(key=KEYS)
    def get(self, key: bytes) -> None:
        assert self.store.get(key) == self.model.get(key)

    @rule(start=st.none() | KEYS, end=st.none() | KEYS)
    def scan(self, start: bytes | None, end: bytes | None) -> None:
        found = self.store.scan(start, end)
        expected = [
            (key, value)
            for key, value in sorted(self.model.items())
            if (start is None or key >= start) and (end is None or key < end)
        ]
        assert found.select("key", "value").rows() == expected

    @invariant()
    def upkeep_has_not_failed(self) -> None:
        assert self.store.upkeep_error is None


Store.TestCase.settings = settings(max_examples=share_of(60), stateful_step_count=30, deadline=None)
test_store_equals_a_dictionary_after_any_steps = Store.TestCase
