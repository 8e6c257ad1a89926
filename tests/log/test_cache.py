"""A handle with cached answers gives the same answers as a new one, with fewer reads."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import polars as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import lakelog
from lakelog import Table
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.errors import InvalidInputError, LakelogError, LakelogWarning, MalformedLogError
from lakelog.log.base_checkpoint import Projections
from lakelog.log.cache import StateCache
from lakelog.log.context import Log
from lakelog.log.state import State
from lakelog.snapshot import Snapshot
from lakelog.storage import open_store
from lakelog.testing import InjectingStore
from tests.budget import share_of
from tests.handmade import FIRST_MS, Action, Handmade, add, info, metadata, protocol, remove

LATER_MS = FIRST_MS * 2
HOUR_S = 3600.0


@pytest.fixture
def made(tmp_path: Path) -> Handmade:
    log = Handmade(tmp_path / "t").start()
    for version in range(1, 5):
        log.commit(version, add(f"f{version}"))
    return log


class Watched:
    """A cache over a store that records its requests."""

    def __init__(self, made: Handmade, **more: Any) -> None:
        self.present_s = 0.0
        self.store = InjectingStore(open_store(made.root))
        self.cache = StateCache(
            replace(made.context(), store=self.store),
            monotonic=lambda: self.present_s,
            clock=lambda: LATER_MS,
            **more,
        )

    def read(self, work: Callable[[], object]) -> list[str]:
        """Names of the files that `work` reads."""
        before = len(self.store.operations)
        work()
        made = self.store.operations[before:]
        return [path.rsplit("/", 1)[-1] for kind, path in made if kind in {"read", "open"}]

    def count_operations(self, work: Callable[[], object]) -> int:
        """Number of operations of `work`."""
        before = len(self.store.operations)
        work()
        return len(self.store.operations) - before


def commit(version: int) -> str:
    return f"{version:020d}.json"


def paths(version: State | Snapshot) -> list[str]:
    snapshot = version if isinstance(version, Snapshot) else Snapshot(version)
    return sorted(snapshot.files().select("path").collect()["path"])


# --- what is read ---------------------------------------------------------------------------------


def test_repeated_snapshot_reads_no_commit(made: Handmade) -> None:
    watched = Watched(made)
    assert watched.read(lambda: paths(watched.cache.state()))[-4:] == list(map(commit, range(1, 5)))
    again = watched.read(lambda: paths(watched.cache.state()))
    assert again == ["_last_checkpoint"]


def test_only_a_new_commit_is_read(made: Handmade) -> None:
    watched = Watched(made)
    first = watched.cache.state()
    made.commit(5, add("f5"), remove("f1"))
    second = watched.cache.state()
    made.commit(6, add("f6"))
    assert watched.read(lambda: paths(watched.cache.state())) == ["_last_checkpoint", commit(6)]
    assert paths(first) == ["f1", "f2", "f3", "f4"]
    assert paths(second) == ["f2", "f3", "f4", "f5"]
    assert paths(watched.cache.state()) == ["f2", "f3", "f4", "f5", "f6"]


def write_checksum(made: Handmade, version: int, num_files: int) -> str:
    body = {"txnId": f"id-{version}", "numMetadata": 1, "numProtocol": 1, "numFiles": num_files}
    made.write(f"{version:020d}.crc", json.dumps(body).encode())
    return f"{version:020d}.crc"


@pytest.mark.parametrize("is_late", [False, True], ids=["with the commit", "later"])
def test_version_checksum_is_compared_as_by_a_new_handle(made: Handmade, is_late: bool) -> None:
    watched = Watched(made)
    paths(watched.cache.state())
    metrics = {"operationMetrics": {"numFiles": "2"}}
    made.commit(5, info("WRITE", txnId="id-5", **metrics), add("f5"))  # and lost an add
    if is_late:
        assert len(paths(watched.cache.state())) == 5
    write_checksum(made, 5, 6)
    for cache in (watched.cache, Watched(made).cache):
        with pytest.raises(MalformedLogError, match="fewer files than its metrics"):
            paths(cache.state())


def test_version_checksum_that_appears_is_the_only_file_that_is_read(made: Handmade) -> None:
    made.commit(5, info("WRITE", txnId="id-5"), add("f5"))
    watched = Watched(made)
    before = watched.cache.state()
    assert len(paths(before)) == 5
    checksum = write_checksum(made, 5, 5)
    assert watched.read(lambda: paths(watched.cache.state())) == ["_last_checkpoint", checksum]
    assert watched.read(lambda: paths(watched.cache.state())) == ["_last_checkpoint"]
    assert watched.cache.state().last_commit_info == before.last_commit_info


def test_time_travel_starts_from_the_nearest_lower_version(made: Handmade) -> None:
    watched = Watched(made)
    assert paths(watched.cache.state(2)) == ["f1", "f2"]
    assert watched.read(lambda: watched.cache.state(4)) == [commit(3), commit(4)]
    assert watched.read(lambda: watched.cache.state(2)) == []
    assert watched.read(lambda: watched.cache.state(3)) == [commit(3)]
    at = FIRST_MS + 2 * 60_000
    assert watched.cache.state_at(at).version == 2


def test_versions_with_the_same_checkpoint_read_it_once(made: Handmade) -> None:
    made.checkpoint(2, protocol(), metadata(), add("f1"), add("f2"))
    os.utime(made.log / f"{2:020d}.checkpoint.parquet", (1, 1))
    watched = Watched(made)
    assert f"{2:020d}.checkpoint.parquet" in watched.read(lambda: watched.cache.state(4))
    assert watched.read(lambda: watched.cache.state(3)) == [commit(3)]
    assert paths(watched.cache.state(3)) == ["f1", "f2", "f3"]


def test_recently_written_commit_is_read_again(made: Handmade) -> None:
    made.commit(5, add("f5"), at_ms=LATER_MS - 50)
    watched = Watched(made)
    paths(watched.cache.state(4))
    paths(watched.cache.state())
    made.commit(5, add("g5"), at_ms=LATER_MS - 50)  # as long, and within one tick of the clock
    assert watched.read(watched.cache.state) == ["_last_checkpoint", commit(5)]
    assert paths(watched.cache.state()) == ["f1", "f2", "f3", "f4", "g5"]


@pytest.mark.parametrize(
    ("at_ms", "age_ms", "again"),
    [(0, 150, True), (0, 3_000, True), (0, 3_001, False), (1, 100, True), (1, 101, False)],
)
def test_modification_times_in_whole_seconds_are_trusted_later(
    made: Handmade, at_ms: int, age_ms: int, again: bool
) -> None:
    made.commit(5, add("f5"), at_ms=LATER_MS + at_ms)
    watched = Watched(made)
    watched.cache._clock = lambda: LATER_MS + at_ms + age_ms
    watched.cache.state()
    assert (commit(5) in watched.read(watched.cache.state)) == again


def test_broken_checkpoint_is_reported_each_time(made: Handmade) -> None:
    made.write(f"{3:020d}.checkpoint.parquet", b"PAR1 not really PAR1")
    table = Table(made.context())
    for _ in range(2):
        with pytest.warns(LakelogWarning, match="was ignored"):
            assert paths(table.snapshot()) == ["f1", "f2", "f3", "f4"]


def test_warnings_are_those_of_the_current_listing(made: Handmade) -> None:
    table = Table(made.context())
    assert table.snapshot().provenance.warnings == ()
    made.write("_last_checkpoint", b'{"version": 2}')
    (note,) = table.snapshot().provenance.warnings
    assert "_last_checkpoint is invalid" in note
    (made.log / "_last_checkpoint").unlink()
    assert table.snapshot().provenance.warnings == ()


def test_compaction_gives_the_answers_of_a_new_handle(made: Handmade) -> None:
    made.compaction(1, 3, add("f1"), add("f2"), add("f3"))
    table = Table(made.context())
    assert len(table.snapshot().provenance.compactions) == 1
    made.commit(5, add("f5"))
    assert paths(table.snapshot()) == ["f1", "f2", "f3", "f4", "f5"]
    made.compaction(1, 3, add("f1"), add("f2"), add("f3"), add("wrong"))
    assert paths(table.snapshot()) == paths(Table(made.context()).snapshot())


# --- staleness ------------------------------------------------------------------------------------


def test_no_listing_runs_within_max_staleness(made: Handmade) -> None:
    watched = Watched(made)
    watched.cache.state()
    made.commit(5, add("f5"))
    watched.present_s = 5.0
    assert watched.count_operations(lambda: watched.cache.state(max_staleness_s=5.0)) == 0
    assert watched.cache.state(max_staleness_s=5.0).version == 4
    assert watched.cache.state(max_staleness_s=4.9).version == 5
    assert watched.cache.state(3, max_staleness_s=HOUR_S).version == 3
    assert watched.count_operations(lambda: watched.cache.state(3, max_staleness_s=HOUR_S)) == 0


def test_own_commits_are_visible_within_max_staleness(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", pl.Schema({"id": pl.Int64()}))
    for version in range(1, 4):
        assert table.snapshot(max_staleness=HOUR_S).version == version - 1
        with table.transaction() as tx:
            tx.add(path=f"f{version}", size=1, modificationTime=1)
        assert table.snapshot(max_staleness=dt.timedelta(hours=1)).version == version
    assert len(paths(table.snapshot(max_staleness=HOUR_S))) == 3


@pytest.mark.parametrize("staleness", [-1.0, float("nan")])
def test_invalid_max_staleness_is_refused(made: Handmade, staleness: float) -> None:
    with pytest.raises(InvalidInputError, match=r"invalid max_staleness|max_staleness must be"):
        made.table.snapshot(max_staleness=staleness)


# --- bounds ---------------------------------------------------------------------------------------


def test_state_is_read_again_after_its_time_to_live(made: Handmade) -> None:
    watched = Watched(made, ttl_s=10.0)
    snapshot = watched.cache.state()
    watched.present_s = 9.0
    made.commit(5, add("f5"))
    assert commit(1) not in watched.read(watched.cache.state)
    watched.present_s = 10.0  # the age of the first state counts, not of its update
    assert commit(1) in watched.read(watched.cache.state)
    assert snapshot.version == 4


def test_cache_of_size_0_holds_nothing_and_gives_the_same_answers(made: Handmade) -> None:
    watched = Watched(made, max_bytes=0)
    for _ in range(3):
        assert paths(watched.cache.state()) == ["f1", "f2", "f3", "f4"]
    stats = watched.cache.stats()
    assert (stats.states, stats.size_bytes) == (0, 0)
    assert stats.versions.hits == 0


def test_least_recently_used_state_is_evicted_first(made: Handmade) -> None:
    watched = Watched(made)
    watched.cache.state(1)
    one = watched.cache.stats().size_bytes
    watched = Watched(made, max_bytes=int(one * 2.1))
    for version in (1, 2, 1, 4):
        watched.cache.state(version)
    stats = watched.cache.stats()
    assert stats.size_bytes <= one * 2.1
    assert 0 < stats.states < 3
    assert watched.read(lambda: watched.cache.state(4)) == []
    assert watched.read(lambda: watched.cache.state(2)) != []


def test_clear_drops_all_states(made: Handmade) -> None:
    watched = Watched(made)
    watched.cache.state()
    watched.cache.clear()
    assert watched.cache.stats().states == 0
    assert commit(1) in watched.read(lambda: watched.cache.state(max_staleness_s=HOUR_S))


def test_cache_statistics_count_hits_and_misses(made: Handmade) -> None:
    table = Table(made.context())
    table.snapshot()
    made.commit(5, metadata(table_id="id-0", name="renamed"), add("f5"))
    table.snapshot()
    table.snapshot()
    table.snapshot(max_staleness=HOUR_S)
    stats = table.cache_stats()
    assert (stats.protocol.hits, stats.protocol.misses) == (3, 1)
    assert (stats.metadata.hits, stats.metadata.misses) == (2, 2)
    assert (stats.versions.hits, stats.versions.misses) == (5 + 6 + 6, 5 + 1)
    assert (stats.versions_list.hits, stats.versions_list.misses) == (1, 0)
    assert stats.files.rate is None
    assert stats.protocol.rate == 0.75
    assert str(stats.protocol) == "3 of 4 (75%)"
    frame = stats.to_polars()
    assert frame["cache"].to_list() == [
        "protocol",
        "metadata",
        "versions",
        "files",
        "versions_list",
        "disk",
    ]
    assert "versions_list" in stats._repr_html_()
    table.clear_cache()
    assert table.cache_stats().states == 0


# --- columns of a checkpoint ----------------------------------------------------------------------


def test_columns_are_cached_after_the_second_read(made: Handmade) -> None:
    made.checkpoint(3, protocol(), metadata(), add("f1"), add("f2"), add("f3"))
    os.utime(made.log / f"{3:020d}.checkpoint.parquet", (1, 1))
    table = Table(made.context())
    for hits in (0, 0, 1, 2):
        assert paths(table.snapshot()) == ["f1", "f2", "f3", "f4"]
        assert table.cache_stats().files.hits == hits
    made.commit(5, remove("f1"), add("f5"))
    assert paths(table.snapshot()) == ["f2", "f3", "f4", "f5"]
    assert paths(table.snapshot(4)) == ["f1", "f2", "f3", "f4"]
    stats = table.cache_stats()
    assert (stats.files.hits, stats.files.misses) == (4, 2)


def frames(count: int) -> Iterator[pl.DataFrame]:
    for index in range(count):
        yield pl.DataFrame({"path": [f"{index}" * 100]})


def test_columns_larger_than_the_bound_are_not_kept() -> None:
    owner = Handmade.__new__(Handmade)
    hits: list[bool] = []
    kept = Projections(1_000, hits.append)
    for _ in range(3):
        assert len(list(kept.iter_files(owner, ["path"], ("add",), lambda: frames(20)))) == 20
    assert hits == [False] * 3
    assert kept.size_bytes == 0
    for _ in range(3):
        assert len(list(kept.iter_files(owner, ["size"], ("add",), lambda: frames(5)))) == 5
    assert hits[3:] == [False, False, True]
    for _ in range(3):
        assert len(list(kept.iter_files(owner, ["path"], ("add",), lambda: frames(5)))) == 5
    assert hits[6:] == [False] * 3  # too large before, so not cached again


def test_columns_are_dropped_with_their_checkpoint_and_oldest_first() -> None:
    first, second = Handmade.__new__(Handmade), Handmade.__new__(Handmade)
    kept = Projections(1_500, lambda _: None)
    for owner in (first, second, first, second):
        list(kept.iter_files(owner, ["path"], ("add",), lambda: frames(8)))
    assert 0 < kept.size_bytes <= 1_500
    del first, second, owner
    assert kept.size_bytes == 0


# --- IndexTables ----------------------------------------------------------------------------------


def test_changes_of_commits_that_a_checkpoint_needs_are_detected(tmp_path: Path) -> None:
    root = tmp_path / "t"
    log = root / "_transaction_log"
    log.mkdir(parents=True)

    def write(name: str, *actions: Action) -> None:
        (log / name).write_text("".join(json.dumps(each) + "\n" for each in actions))
        os.utime(log / name, ns=(FIRST_MS * 1_000_000 + len(name), FIRST_MS * 1_000_000))

    write(commit(0), protocol(), metadata(table_id="id-0"))
    write(commit(1), add("a"))
    write(f"{1:020d}.checkpoint.json", add("a"))  # of an early writer, with files only
    write(commit(2), add("b"))
    write("_last_checkpoint", {"version": 1})
    cache = StateCache(Log(open_store(root), INDEXTABLES))
    for _ in range(3):
        assert cache.state().metadata.id == "id-0"
    assert cache.stats().versions.hits > 0
    write(commit(0), protocol(), metadata(table_id="id-00"))
    assert cache.state().metadata.id == "id-00"


# --- against a fresh handle -----------------------------------------------------------------------


def observed(snapshot_of: Callable[[], Snapshot]) -> dict[str, Any]:
    """All answers of a snapshot, or the error instead."""
    try:
        snapshot = snapshot_of()
        provenance = snapshot.provenance
        return {
            "version": snapshot.version,
            "id": snapshot.metadata.id,
            "protocol": snapshot.protocol,
            "timestamp": snapshot.timestamp_ms,
            "files": sorted(snapshot.files().select("path", "size", "version").collect().rows()),
            "counts": (snapshot.num_files(), snapshot.total_size()),
            "tombstones": sorted(snapshot.tombstones().select("path").collect()["path"]),
            "transactions": sorted(
                snapshot.transactions().select("appId", "txnVersion").collect().rows()
            ),
            "provenance": provenance,
        }
    except LakelogError as error:
        return {"error": error.kind, "message": error.message}


class CachedHandleMachine(RuleBasedStateMachine):
    """One handle with a cache, whose log is changed in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(mkdtemp()) / "t"
        self.now_ms = FIRST_MS + 1
        self.generation = 0
        self.store = open_store(self.root)

    @initialize()
    def begin(self) -> None:
        self.made = Handmade(self.root)
        log = replace(self.made.context(), store=self.store)
        self.cache = StateCache(log, clock=lambda: self.now_ms)
        self.create()

    def create(self) -> None:
        self.commits: list[list[Action]] = []
        self.floor = 0
        self.generation += 1
        self.write(0, [protocol(), metadata(table_id=f"id-{self.generation % 10}")])

    def write(self, version: int, actions: list[Action]) -> None:
        self.commits[version:] = [actions]
        self.made.commit(version, *actions, at_ms=self.now_ms)

    @property
    def latest(self) -> int:
        return len(self.commits) - 1

    @rule(wait_ms=st.sampled_from([7, 60, 150, 4_000]))
    def advance_clock(self, wait_ms: int) -> None:
        self.now_ms += wait_ms

    @rule(name=st.integers(0, 5), kind=st.sampled_from([add, remove]), count=st.integers(1, 3))
    def commit_by_others(self, name: int, kind: Any, count: int) -> None:
        for _ in range(count):
            txn = {"txn": {"appId": f"a{name}", "version": self.latest}}
            more = {"deletionTimestamp": 5} if kind is remove else {}
            self.write(self.latest + 1, [kind(f"f{name}", **more), txn])

    @precondition(lambda self: self.latest > 0)
    @rule(name=st.integers(0, 5))
    def overwrite_last_commit(self, name: int) -> None:
        self.write(self.latest, [add(f"f{name}")])

    @precondition(lambda self: self.latest > self.floor)
    @rule()
    def lose_last_commit(self) -> None:
        (self.made.log / commit(self.latest)).unlink()
        self.commits.pop()

    @rule(pointed=st.booleans(), back=st.integers(0, 2))
    def write_checkpoint(self, pointed: bool, back: int) -> None:
        version = max(self.floor, self.latest - back)
        last: dict[tuple[str, str], Action] = {}
        for action in (a for actions in self.commits[: version + 1] for a in actions):
            ((kind, body),) = action.items()
            key = "file" if kind in {"add", "remove"} else kind
            last[key, str(body.get("path") or body.get("appId"))] = action
        path = self.made.checkpoint(version, *last.values())
        os.utime(path, ns=(self.now_ms * 1_000_000, self.now_ms * 1_000_000))
        self.floor = version
        if pointed:
            self.made.write("_last_checkpoint", json.dumps({"version": version}).encode())

    @rule(keep=st.booleans())
    def clean_up_old_commits(self, keep: bool) -> None:
        for path in self.made.log.glob("*.json"):
            if int(path.stem) < self.floor + (not keep):
                path.unlink()

    @rule()
    def recreate_table(self) -> None:
        shutil.rmtree(self.made.log)
        self.made = Handmade.__new__(Handmade)
        self.made.root, self.made.log = self.root, self.root / "_delta_log"
        self.made.log.mkdir()
        self.create()

    @rule()
    def drop_cached_states(self) -> None:
        self.cache.clear()

    @rule(back=st.integers(0, 3))
    def read_version(self, back: int) -> None:
        version = max(0, self.latest - back)
        context = self.made.context()
        expected = observed(lambda: Snapshot.open(context, version))
        assert observed(lambda: Snapshot(self.cache.state(version))) == expected

    @invariant()
    def latest_version_equals_that_of_a_new_handle(self) -> None:
        context = self.made.context()
        expected = observed(lambda: Snapshot.open(context))
        assert observed(lambda: Snapshot(self.cache.state())) == expected

    def teardown(self) -> None:
        shutil.rmtree(self.root.parent)


TestCachedHandleMachine = CachedHandleMachine.TestCase
TestCachedHandleMachine.settings = settings(
    max_examples=share_of(25), stateful_step_count=20, deadline=None
)


# --- threads --------------------------------------------------------------------------------------


def test_threads_share_a_handle_while_others_commit(made: Handmade) -> None:
    table = Table(made.context())
    written = [4]
    stop = threading.Event()

    def read(_: int) -> int:
        rounds = 0
        while not stop.is_set() or not rounds:
            least = written[0]
            snapshot = table.snapshot(max_staleness=0.0 if rounds % 2 else 0.001)
            assert rounds % 2 == 0 or snapshot.version >= least
            assert snapshot.num_files() == snapshot.version
            past = table.snapshot(rounds % 5)
            assert paths(past) == [f"f{n}" for n in range(1, past.version + 1)]
            if rounds % 7 == 6:
                table.clear_cache()
            rounds += 1
        return rounds

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(read, n) for n in range(6)]
        try:
            for version in range(5, 40):
                data = json.dumps(add(f"f{version}")).encode()
                # Like a writer: the file is renamed when it is complete.
                made.write(".staged", data, FIRST_MS + version)
                (made.log / ".staged").rename(made.log / commit(version))
                written[0] = version
        finally:
            stop.set()
        assert all(reader.result() for reader in readers)
    assert table.snapshot().num_files() == 39


def test_threads_read_different_versions_and_columns_of_one_checkpoint(made: Handmade) -> None:
    made.checkpoint(3, protocol(), metadata(), *(add(f"f{n}", 2) for n in range(1, 4)))
    os.utime(made.log / f"{3:020d}.checkpoint.parquet", (1, 1))
    table = Table(replace(made.context(), store=InjectingStore(open_store(made.root))))
    table.snapshot()

    def read(turn: int) -> object:
        if turn % 10 == 9:
            table.clear_cache()
        files = table.snapshot(3 + turn % 2).files(stats=turn % 3 == 0)
        columns = ["path", "size"] if turn % 3 else ["path", "size", "numRecords"]
        return sorted(row[:2] for row in files.select(columns).collect().rows())

    below = [("f1", 2), ("f2", 2), ("f3", 2)]
    with ThreadPoolExecutor(8) as pool:
        for turn, found in enumerate(pool.map(read, range(80))):
            assert found == ([*below, ("f4", 1)] if turn % 2 else below)


def test_diff_and_transaction_use_cached_states(made: Handmade) -> None:
    table = Table(made.context())
    table.snapshot()
    table.snapshot(2)
    before = table.cache_stats().versions.misses
    assert table.diff(2, 4).height == 2
    assert table.blame("f1").height == 1
    with table.transaction() as tx:
        tx.add(path="f5", size=1, modificationTime=1)
    assert table.cache_stats().versions.misses == before
    assert paths(table.snapshot()) == ["f1", "f2", "f3", "f4", "f5"]


def test_concurrent_snapshots_share_one_listing(made: Handmade) -> None:
    slow = InjectingStore(open_store(made.root), latency_s=0.05)
    table = Table(replace(made.context(), store=slow))
    table.snapshot()
    before = len(slow.operations)
    with ThreadPoolExecutor(12) as pool:
        versions = {s.version for s in pool.map(lambda _: table.snapshot(), range(12))}
    assert versions == {4}
    assert len(slow.operations) - before <= 2 * 3  # the first listing, and one for all others


def test_lazily_decoded_state_is_cached_only_while_a_caller_holds_it(
    made: Handmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.log.state._SMALL_TAIL_BYTES", 0)
    watched = Watched(made)
    snapshot = watched.cache.state()
    assert watched.cache.stats().states == 0
    assert paths(snapshot) == paths(watched.cache.state())
    assert watched.read(lambda: paths(watched.cache.state())) == ["_last_checkpoint"]
    del snapshot
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert paths(watched.cache.state()) == ["f1", "f2", "f3", "f4"]
