"""`StateCache`: the cached state of one table handle, updated by listing the log.

Each check lists the log, and chooses the files of the version as opening does. A cached state is
used if it was read from the same files (names, lengths, times). Later commits are decoded on top of
it; another checkpoint is opened. The result therefore equals that of a new handle, even if the
table was replaced, a commit overwritten or the log cleaned up. `max_staleness` allows results
without a check.

File times distinguish two contents only if the clock ticked in between. A state is therefore reused
only if its files were older than one tick when they were read: 0.1 seconds, or 3 if times are whole
seconds. This assumes that a remote store's clock is at most seconds behind; a file replaced by one
of equal length and time is detected after the time to live.
"""

from __future__ import annotations

import threading
import time
import weakref
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from lakelog import telemetry
from lakelog.dialects.log_content import Checkpoint, CommitFile, LogListing
from lakelog.errors import InvalidInputError
from lakelog.log.base_checkpoint import Projections
from lakelog.log.context import Log, list_again, now_ms, version_at
from lakelog.log.opening import choose, extend_state, is_outdated, open_segment
from lakelog.log.replay import last_of
from lakelog.log.segment import LogSegment
from lakelog.log.state import State
from lakelog.storage import LogStore, StoreWrapper
from lakelog.storage.base import FileEntry

if TYPE_CHECKING:
    from lakelog.log.disk_cache import CachedColumns, DiskCache

_TTL_S = 300.0
"""Seconds after which a state is read again instead of updated."""

_MAX_BYTES = 256 << 20
"""Maximum size of the states that a handle caches, in bytes."""

_MOST_VERSIONS = 64
_TICK_MS = 100
_COARSE_TICK_MS = 3_000
_INFO_BYTES = 1 << 10  # approximate size of a parsed commitInfo
_COMMIT_BYTES = 1 << 8  # approximate size of a commit's name, length and time
_READER_BYTES = 64 << 20  # size of a remote checkpoint's files, which its reader keeps in memory
_NEEDS_COMMITS = ("json", "json-multipart", "avro-state")
"""Layouts that may lack protocol and metadata: the commits below them are then read."""

_CACHES = ("protocol", "metadata", "versions", "files", "versions_list", "disk")
"""Caches with hit counts."""


@dataclass(frozen=True)
class Lookups:
    """Counts of hits and misses."""

    hits: int = 0
    misses: int = 0

    @property
    def rate(self) -> float | None:
        """Share of hits, 0 to 1; None before the first lookup."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None

    def __str__(self) -> str:
        rate = "" if self.rate is None else f" ({self.rate:.0%})"
        return f"{self.hits:,} of {self.hits + self.misses:,}{rate}"


@dataclass(frozen=True)
class CacheStats:
    """Content and hit counts of a handle's cache.

    Attributes:
        protocol: Reads of the protocol.
        metadata: Reads of the metadata.
        versions: Reads of commits; a miss decodes the commit.
        files: Reads of a checkpoint's file columns.
        versions_list: Snapshots returned without a check, because `max_staleness` allowed it.
        disk: Reads of a checkpoint's file columns from the disk cache; no lookups without a disk
            cache.
        states: Number of cached states.
        size_bytes: Approximate size of the cached states, in bytes.
    """

    protocol: Lookups
    metadata: Lookups
    versions: Lookups
    files: Lookups
    versions_list: Lookups
    disk: Lookups
    states: int
    size_bytes: int

    def to_polars(self) -> pl.DataFrame:
        """One row per cache: ``cache`` (String), ``hits``, ``misses`` (Int64), ``rate`` (Float64:
        hits divided by lookups).
        """
        found: list[Lookups] = [getattr(self, name) for name in _CACHES]
        return pl.DataFrame(
            {
                "cache": list(_CACHES),
                "hits": [each.hits for each in found],
                "misses": [each.misses for each in found],
                "rate": [each.rate for each in found],
            },
            schema_overrides={"hits": pl.Int64, "misses": pl.Int64, "rate": pl.Float64},
        )

    def _repr_html_(self) -> str:
        return self.to_polars()._repr_html_()


@dataclass(frozen=True)
class _ListedVersion:
    """The files of a version in a listing: `marks` are length and time of checkpoint and compaction
    files, `below` the commits that the checkpoint may depend on (None: not listed).
    """

    segment: LogSegment
    notes: tuple[str, ...]
    marks: Mapping[str, FileEntry | None]
    below: tuple[CommitFile, ...] | None
    now_ms: int

    def is_settled(self, times_ms: Iterable[int]) -> bool:
        """Whether files with these times would have other times now if overwritten since."""
        return all(
            at + (_TICK_MS if at % 1_000 else _COARSE_TICK_MS) < self.now_ms for at in times_ms
        )


@dataclass(frozen=True)
class _CachedState:
    """A state, and the listing that it was read from."""

    listed: _ListedVersion
    state: weakref.ref[State]
    born_s: float


class StateCache:
    """The states that one table handle caches. Thread-safe."""

    def __init__(
        self,
        log: Log,
        *,
        ttl_s: float = _TTL_S,
        max_bytes: int = _MAX_BYTES,
        disk: DiskCache | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._log = log
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._disk = disk
        self._monotonic = monotonic
        self._clock = clock
        self._lock = threading.Lock()  # protects the attributes below
        self._checking = threading.Lock()  # held while the latest version is determined
        self._held: OrderedDict[int, _CachedState] = OrderedDict()
        self._strong: dict[int, State] = {}
        self._checked: dict[int | None, tuple[float, weakref.ref[State]]] = {}
        self._committed_s = float("-inf")
        self._begun = self._ended = 0  # number of begun and ended checks for the latest version
        self._needs_whole = False
        self._counts = {name: [0, 0] for name in _CACHES}
        self._projections = Projections(max_bytes // 2, lambda hit: self._count("files", hit=hit))

    def state(self, version: int | None = None, max_staleness_s: float = 0.0) -> State:
        """The state of a version (None: the latest); errors as `Table.snapshot`."""
        if not max_staleness_s >= 0:
            raise InvalidInputError(
                "invalid max_staleness",
                expected="at least 0 seconds",
                found=max_staleness_s,
            )
        state: State | None = None
        if max_staleness_s:
            state = self._recent(version, self._monotonic() - max_staleness_s)
            self._count("versions_list", hit=state is not None)
        if state is None and version is None:
            begun = self._begun
            with self._checking:
                # A check of another thread that began after this call is as current as one of its
                # own.
                if self._ended > begun:
                    state = self._recent(version, float("-inf"))
                if state is None:
                    self._begun = turn = self._begun + 1
                    state = self._check(version)
                    self._ended = turn
        return state or self._check(version)

    def state_at(self, timestamp_ms: int, max_staleness_s: float = 0.0) -> State:
        """The latest version at or before a time; `max_staleness_s` applies only to the version."""
        version = version_at(self._log, timestamp_ms, lambda: self.state().metadata)
        return self.state(version, max_staleness_s)

    def committed(self) -> None:
        """Discard the latest version: this process has just committed a later one."""
        with self._lock:
            self._committed_s = self._monotonic()

    def clear(self) -> None:
        """Discard all states; hit counts remain."""
        with self._lock:
            self._held.clear()
            self._strong.clear()
            self._checked.clear()
            self._projections.clear()

    def stats(self) -> CacheStats:
        """Content of the cache, and its hits and misses."""
        with self._lock:
            states = list(self._strong.values())
            counts = {name: Lookups(*both) for name, both in self._counts.items()}
        weigher = _Weigher(self._projections.size_bytes)
        for state in states:
            weigher.add(state)
        return CacheStats(**counts, states=len(states), size_bytes=weigher.size_bytes)

    def _recent(self, version: int | None, least_s: float) -> State | None:
        """The cached state of the last check, if that began at `least_s` or later."""
        with self._lock:
            checked = self._checked.get(version)
            if checked is None or checked[0] < least_s:
                return None
            if version is None and checked[0] <= self._committed_s:
                return None
            state = checked[1]()
        if state is not None:
            self._count_state(state, len(state.segment.commits), read=0)
        return state

    def _check(self, version: int | None) -> State:
        segment: LogSegment | None = None
        began_s = 0.0

        def attempt() -> State:
            nonlocal segment, began_s
            segment = None
            began_s, now = self._monotonic(), self._clock()
            seen = _RecordingStore(self._log.store)
            log = replace(self._log, store=seen)
            hint = version is None and not self._needs_whole
            listing, segment = choose(log, version, hint=hint)
            listed = self._describe(listing, segment, seen, now, hint=hint)
            with self._lock:
                held = [(each, state) for each in self._held.values() if (state := each.state())]
            known = [pair for pair in held if began_s - pair[0].born_s < self._ttl_s]
            known.sort(key=lambda pair: -pair[1].version)
            return self._resolve(listed, known, began_s)

        state = list_again(
            attempt, lambda error: segment is not None and is_outdated(self._log, segment, error)
        )
        with self._lock:
            if began_s >= self._checked.get(version, (began_s,))[0]:
                self._checked[version] = (began_s, weakref.ref(state))
            # After an error, only the result of this check can be trusted.
            self._checked = {k: v for k, v in self._checked.items() if v[1]() is not None}
        return state

    def _describe(
        self,
        listing: LogListing,
        segment: LogSegment,
        seen: _RecordingStore,
        now: int,
        *,
        hint: bool,
    ) -> _ListedVersion:
        checkpoint = segment.checkpoint
        paths = [c.path for c in listing.compactions]
        below: tuple[CommitFile, ...] | None = ()
        if checkpoint is not None:
            paths += checkpoint.paths
            if checkpoint.layout in _NEEDS_COMMITS:
                # A first call reads the table as usual; from the second call on, the whole log is
                # listed.
                self._needs_whole = True
                below = tuple(c for c in listing.commits if c.version <= checkpoint.version)
                below += listing.apart
                below = None if hint else below
        marks = {path: seen.entry(path) for path in paths}
        return _ListedVersion(segment, listing.notes, marks, below, now)

    def _on_disk(self, checkpoint: Checkpoint, listed: _ListedVersion) -> CachedColumns | None:
        """The disk cache's entry of a checkpoint whose length and times identify its content."""
        marks = [listed.marks.get(path) for path in checkpoint.paths]
        if self._disk is None or not listed.is_settled(
            m.modified_ms for m in marks if m is not None
        ):
            return None
        from lakelog.log.disk_cache import columns_of

        table = self._log.location
        return columns_of(
            self._disk, table, checkpoint, listed.marks, lambda hit: self._count("disk", hit=hit)
        )

    def _resolve(
        self, listed: _ListedVersion, known: Iterable[tuple[_CachedState, State]], began_s: float
    ) -> State:
        """The state for a check, based on cached states if their files still exist."""
        alike = [pair for pair in known if _same_checkpoint(pair[0].listed, listed)]
        best = next((pair for pair in alike if _is_below(*pair, listed)), None)
        commits = listed.segment.commits
        if best is None:
            sharing = min(alike, key=lambda pair: pair[0].born_s, default=None)
            shared = sharing[1].base if sharing is not None else None
            born_s = sharing[0].born_s if sharing is not None and shared is not None else began_s
            state = open_segment(self._log, listed.segment, listed.notes, shared)
            for cache, times in (("protocol", 1), ("metadata", 1), ("versions", len(commits))):
                self._count(cache, hit=False, times=times)
            if state.base is not None:
                state.base.projections = self._projections
                state.base.disk = self._on_disk(state.base.checkpoint, listed)
            self._keep(listed, state, born_s, began_s)
            return state
        held, known_state = best
        kept = len(held.listed.segment.commits)
        has_checksum = listed.segment.has_checksum
        state = extend_state(known_state, commits[kept:], has_checksum=has_checksum)
        if state is known_state:
            with self._lock:
                if state.version in self._held:
                    self._held.move_to_end(state.version)
        else:
            if state.is_cheap:
                state.ensure_readable()
            self._keep(listed, state, held.born_s, began_s)
        self._count_state(state, kept, read=len(commits) - kept)
        return state

    def _keep(self, listed: _ListedVersion, state: State, born_s: float, began_s: float) -> None:
        if state.excluded:
            return  # a checkpoint was ignored, and the older files were not listed
        held = _CachedState(listed, weakref.ref(state), born_s)
        with self._lock:
            self._held.pop(state.version, None)
            self._held[state.version] = held
            self._evict(began_s)

    def _evict(self, present_s: float) -> None:
        """Evict old states, then the least recently used; an undecoded state is held weakly."""
        weigher = _Weigher(self._projections.size_bytes)
        strong: dict[int, State] = {}
        for version, held in reversed(list(self._held.items())):
            state = held.state()
            if state is None or present_s - held.born_s >= self._ttl_s:
                del self._held[version]
            elif (
                len(strong) < _MOST_VERSIONS
                and (state.is_cheap or "tail" in vars(state))
                and weigher.add(state) <= self._max_bytes
            ):
                strong[version] = state
        self._strong = strong

    def _count_state(self, state: State, kept: int, *, read: int) -> None:
        changed = {"protocol": False, "metaData": False}
        if read and ("tail" in vars(state) or state.is_cheap):
            metas = [part.meta for part in state.meta_parts]
            changed = {kind: any(last_of(m, kind).height for m in metas) for kind in changed}
        self._count("protocol", hit=not changed["protocol"])
        self._count("metadata", hit=not changed["metaData"])
        self._count("versions", hit=True, times=kept)
        self._count("versions", hit=False, times=read)

    def _count(self, cache: str, *, hit: bool, times: int = 1) -> None:
        if not times:
            return
        with _COUNTING:
            self._counts[cache][not hit] += times
        telemetry.count("cache.lookups", times, cache=cache, hit=hit)


_COUNTING = threading.Lock()


class _RecordingStore(StoreWrapper):
    """A store that records listed entries."""

    def __init__(self, store: LogStore) -> None:
        super().__init__(store)
        self._lists: dict[str, list[FileEntry]] = {}

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        entries = self._store.list_from(folder, start)
        self._lists[folder] = entries
        return entries

    def entry(self, path: str) -> FileEntry | None:
        """A file's listed entry, or the store's if it was not listed."""
        folder, _, name = path.rpartition("/")
        entries = self._lists.get(folder, [])
        at = bisect_left(entries, name, key=lambda e: e.name)
        if at < len(entries) and entries[at].name == name:
            return entries[at]
        return self._store.stat(path)


def _same_checkpoint(one: _ListedVersion, other: _ListedVersion) -> bool:
    """Whether two listings have the same checkpoint with the same content."""
    checkpoint = one.segment.checkpoint
    if checkpoint != other.segment.checkpoint or one.below is None or one.below != other.below:
        return False
    marks = [one.marks[path] for path in _paths(checkpoint)]
    times = [mark.modified_ms for mark in marks if mark is not None]
    return (
        len(times) == len(marks)
        and marks == [other.marks[path] for path in _paths(checkpoint)]
        and one.is_settled((*times, *(c.modified_ms for c in one.below)))
    )


def _paths(checkpoint: Checkpoint | None) -> tuple[str, ...]:
    return checkpoint.paths if checkpoint is not None else ()


def _is_below(held: _CachedState, state: State, listed: _ListedVersion) -> bool:
    """Whether exactly the commits that a state depends on exist, up to its version."""
    own = held.listed.segment.commits
    past = state.past.compactions if state.past is not None else ()
    marks = [(held.listed.marks.get(c.path), c) for c in (*state.segment.compactions, *past)]
    return (
        held.listed.notes == listed.notes
        and own == listed.segment.commits[: len(own)]
        and all(mark is not None and mark == listed.marks.get(c.path) for mark, c in marks)
        and held.listed.is_settled(
            (*(c.modified_ms for c in own), *(m.modified_ms for m, _ in marks if m is not None))
        )
    )


class _Weigher:
    """Approximate size of states in bytes; shared parts are counted once."""

    def __init__(self, size_bytes: int = 0) -> None:
        self.size_bytes = size_bytes
        self._counted: set[int] = set()

    def add(self, state: State) -> int:
        """Count another state; return the sum so far."""
        own = vars(state)
        frames: list[pl.DataFrame] = [own[k] for k in ("tail_meta", "meta") if k in own]
        if "layers" in own:
            frames += state.layers.frames
        for part in own["tail"].parts if "tail" in own else own.get("meta_parts", ()):
            frames += [part.files, part.meta, part.other]
            self.size_bytes += len(part.commit_infos) * _INFO_BYTES
        if state.past is not None:
            frames += [*state.past.layers.frames, state.past.meta]
        if state.base is not None and self._is_new(state.base):
            base = vars(state.base)
            frames += [base[k] for k in ("pair", "rest") if k in base]
            if "tally" in base:
                frames.append(state.base.tally.hashes)
            self.size_bytes += min(_READER_BYTES, sum(state.base.checkpoint.sizes_bytes))
        for frame in frames:
            if self._is_new(frame):
                self.size_bytes += int(frame.estimated_size())
        self.size_bytes += _COMMIT_BYTES * len(state.segment.commits)
        return self.size_bytes

    def _is_new(self, thing: object) -> bool:
        new = id(thing) not in self._counted
        self._counted.add(id(thing))
        return new
