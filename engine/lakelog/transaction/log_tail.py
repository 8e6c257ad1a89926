"""`LogTail`: the end of a log, for writers; `LogTails` caches and refreshes it.

A log tail has a version, its protocol and metadata, and the facts that the next commit depends on.
It advances commit by commit, at their cost; file actions are read only if its state is used.

**It must be current.** Put-if-absent separates two writers only while all commits exist. Cleanup
deletes old commits, so a writer far behind could reuse a deleted version, and its commit would be
lost below a checkpoint. Therefore a log tail is confirmed when a transaction begins and before it
is written, by a listing from its version. On local disk two reads are enough: the next commit does
not exist, its own does, and it was known to be the end less than a minute ago. Cleanup deletes
oldest first, so it would have deleted the tail's own commit; the minute covers a cleanup in
progress. On other stores, a confirmation is valid for one second, because no cleanup removes
commits that young, and for that version only.

**It must be of the same log.** A table that was deleted and created again, or replaced by a copy,
has commits of the same names. Therefore each confirmation compares length and time of the last
commit that was listed (`seen`). If only the time differs, as after a backup that touches files, its
commitInfo decides, where the commit itself was read before. A commit that this process has written
is listed by the next confirmation, which begins at `seen`: while that is unchanged, the log was not
replaced. Not detected: a commit of equal length and time, and on stores other than local disk, a
log replaced within a second of a confirmation, or replaced only above `seen` by a commit of equal
length.

**It must be complete.** Its snapshot may read files long after it was created. Therefore the oldest
files that it depends on are checked once per minute, and the table is opened again after a cleanup,
or after `MOST_STEPS` commits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import polars as pl

from lakelog.dialects.commit_info import in_commit_timestamp
from lakelog.dialects.log_content import CommitFile, CommitInfo
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import CorruptionError, InvalidInputError, MalformedLogError
from lakelog.lazy import cached_property
from lakelog.log.context import Log
from lakelog.log.opening import extend_state
from lakelog.log.replay import reconcile_meta
from lakelog.log.snapshot import LogSnapshot
from lakelog.model.metadata import last_metadata, last_protocol
from lakelog.storage.base import FileEntry
from lakelog.storage.bounded import on_local_disk
from lakelog.transaction import write_support
from lakelog.transaction.conflict_fast_path import CommitEffect, effects_of, read_files_only
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.small_commit import PlainTable

_CONFIRMED_S = 60.0  # seconds for which two reads may replace a listing
_FRESH_S = 1.0  # seconds for which a listing is valid if another one costs a round trip
MOST_STEPS = 10_000
"""Number of commits of files after which the table is opened again; about 16 MB."""

META_STEPS = 16
"""Weight of a commit with other actions, whose frames are kept."""

_LOOK_AHEAD = 256  # number of names to check one by one before a listing is cheaper


class LogTail:
    """The immutable end of a log: of a snapshot, or `after` another one. `steps` is the number of
    commits since the table was opened; `oldest` are the files that cleanup removes first; `seen` is
    the last commit that was listed.
    """

    def __init__(
        self, log: Log, source: LogSnapshot | LogTail, step: CommitEffect | None = None
    ) -> None:
        self.log = log
        # One attribute, because threads share a log tail: its snapshot, or the log tail before it.
        self._source = source
        self._step = step
        if isinstance(source, LogSnapshot):
            self.version = source.version
            self.steps = 0
            self.protocol, self.metadata = source.protocol, source.metadata
            segment = source.read_state(lambda state: state.segment)
            base = segment.checkpoint
            self.oldest = (
                *(base.paths[:1] if base is not None else ()),
                *(commit.path for commit in segment.commits[:1]),
            )
            self._commits_above = bool(segment.commits)
            self.seen = segment.last_commit
        else:
            assert step is not None
            self.version = step.commit.version
            self.seen = step.commit if step.commit.modified_ms else source.seen
            self.steps = source.steps + (META_STEPS if step.meta.height else 1)
            first = () if source._commits_above else (step.commit.path,)  # noqa: SLF001 - its own kind
            self.oldest = (*source.oldest, *first)
            self._commits_above = True
            self.protocol = last_protocol(step.meta) or source.protocol
            self.metadata = last_metadata(step.meta) or source.metadata

    def after(self, step: CommitEffect) -> LogTail:
        """The log tail after the next commit."""
        assert step.commit.version == self.version + 1
        return LogTail(self.log, self, step)

    def may_be(self, listed: CommitFile) -> bool:
        """Whether a listed commit of its version can be its own, which it may have written."""
        if listed.version != self.version:
            return False
        return self._step is None or self._step.commit.size_bytes == listed.size_bytes

    def is_touched(self, listed: CommitFile) -> bool:
        """Whether a listed commit is its own, of which only the time was changed since."""
        seen = self.seen
        if seen is None or seen.version != self.version:
            return False
        if seen._replace(modified_ms=listed.modified_ms) != listed or self._read_info is None:
            return False
        try:
            decoded = self.log.dialect.decode(self.log.store, [listed], files=False)
        except CorruptionError:
            return False
        return any(_is_same_commit(self._read_info, info) for info in decoded.commit_infos)

    @cached_property
    def _read_info(self) -> CommitInfo | None:
        """The commitInfo of its own commit, if that was read before."""
        if self._step is not None:
            return self._step.info
        return self.snapshot.read_state(lambda state: state.decoded_commit_info)

    @cached_property
    def table(self) -> TableConfiguration:
        """Protocol and metadata under the rules of the dialect."""
        return TableConfiguration(self.log.dialect, self.protocol, self.metadata)

    @cached_property
    def meta(self) -> pl.DataFrame:
        """Reconciled non-file actions, including removed domains."""
        parts: list[pl.DataFrame] = []
        tail, source = self, self._source
        while "meta" not in tail.__dict__ and isinstance(source, LogTail):
            assert tail._step is not None
            if tail._step.meta.height:
                parts.append(tail._step.meta)
            tail, source = source, source._source  # noqa: SLF001 - its own kind
        if "meta" not in tail.__dict__ and isinstance(source, LogSnapshot):
            below = source.read_state(lambda state: state.meta)
        else:
            below = tail.__dict__["meta"]
        return reconcile_meta([below, *reversed(parts)]) if parts else below

    @cached_property
    def in_commit_timestamp(self) -> int | None:
        """The in-commit timestamp of the log tail's own commit; None if it has none. If the commit
        was deleted below a checkpoint, that in its version checksum.
        """
        if self._step is not None:
            info = self._step.info
        else:
            info = self.snapshot.read_state(lambda state: state.last_commit_info)
        if info is None and self.table.is_active("inCommitTimestamp"):
            recorded = self.log.dialect.version_checksum(self.log.store, self.version) or {}
            at = recorded.get("inCommitTimestampOpt")
            return at if type(at) is int else None
        return in_commit_timestamp(info) if info is not None else None

    @property
    def snapshot(self) -> LogSnapshot:
        """The version as a snapshot; reads commits on demand."""
        tail, source = self, self._source
        if isinstance(source, LogSnapshot):
            return source
        commits: list[CommitFile] = []
        while isinstance(source, LogTail):
            assert tail._step is not None
            commits.append(tail._step.commit)
            tail, source = source, source._source  # noqa: SLF001 - its own kind
        commits.reverse()
        # The warnings of the older snapshot are included, so it is not needed any longer.
        self._source = LogSnapshot(source.read_state(lambda state: extend_state(state, commits)))
        return self._source


def commits_after(log: Log, tail: LogTail, *, confirmed: bool) -> list[CommitFile] | None:
    """The commits after a log tail, contiguous; empty if it is the end of the log; None if some
    were removed, or if the log was replaced.
    """
    if confirmed and on_local_disk(log.store):
        found = _commits_from(log, tail)
        if found is not None:
            return found
    version, seen = tail.version, tail.seen
    start = version if seen is None else seen.version
    folder, _, first = log.dialect.commit_path(start).rpartition("/")
    commits = [c for e in log.store.list_from(folder, first) if (c := _commit(log, folder, e))]
    later = [c for c in commits if c.version > version]
    if [c.version for c in later] != list(range(version + 1, version + 1 + len(later))):
        return None
    if commits and commits[0].version == start:
        if seen is not None and commits[0] != seen and not tail.is_touched(commits[0]):
            return None
        own = commits[version - start] if len(commits) > version - start else None
        if own is None or not tail.may_be(own):
            return None
        tail.seen = own
        return later
    # Its commit was deleted, but the version may still be the end of the log if a checkpoint has
    # it.
    checkpoints = log.list_since(version).checkpoints
    if not any(c.version == version for c in checkpoints):
        return None
    return None if any(c.version > version for c in checkpoints) else later


def _is_same_commit(one: CommitInfo, other: CommitInfo) -> bool:
    """Whether two commitInfos have the same transaction, or are equal if they name none."""
    ids = one.body.get("txnId"), other.body.get("txnId")
    return ids[0] == ids[1] if any(ids) else one.body == other.body


def _commit(log: Log, folder: str, entry: FileEntry) -> CommitFile | None:
    """A listed file as a commit, or None."""
    digits = entry.name[:20]
    if not (digits.isascii() and digits.isdigit()):
        return None
    version = int(digits)
    path = f"{folder}/{entry.name}"
    if path != log.dialect.commit_path(version):
        return None
    return CommitFile(version, path, entry.size_bytes, entry.modified_ms)


def _commits_from(log: Log, tail: LogTail) -> list[CommitFile] | None:
    """As `commits_after`, by checking one name after another; None if that is not conclusive."""
    path_of, stat, version, seen = log.dialect.commit_path, log.store.stat, tail.version, tail.seen
    if seen is None or seen.version != version:
        return None
    found: list[CommitFile] = []
    for following in range(version + 1, version + 1 + _LOOK_AHEAD):
        path = path_of(following)
        entry = stat(path)
        if entry is None:
            # The commit still exists, so the log was not replaced, and cleanup, which deletes
            # oldest first, has not deleted later ones.
            own = stat(seen.path)
            unchanged = own is not None and own[1:] == (seen.size_bytes, seen.modified_ms)
            return found if unchanged else None
        found.append(CommitFile(following, path, entry.size_bytes, entry.modified_ms))
    return None


class LogTails:
    """Keeps the latest log tail for all transactions of a table; thread-safe."""

    def __init__(
        self,
        log: Log,
        runtime: Runtime,
        on_commit: Callable[[], object] = lambda: None,
        open_latest: Callable[[], LogSnapshot] | None = None,
    ) -> None:
        self._log = log
        self._runtime = runtime
        self._on_commit = on_commit
        self._open_latest = open_latest or (lambda: LogSnapshot.open(log))
        self._lock = threading.Lock()
        self._tail: LogTail | None = None
        self._confirmed_s = 0.0
        self._whole_s = 0.0
        self._checked: tuple[TableConfiguration, PlainTable | None] | None = None
        self._opened_with_states = False

    def is_recent(self) -> bool:
        """Whether the log tail was confirmed so recently that reads may replace a listing."""
        return self._runtime.monotonic() - self._confirmed_s < _CONFIRMED_S

    def needs_confirming(self, tail: LogTail) -> bool:
        """Whether the end of the log must be confirmed before a log tail is used."""
        age_s = self._runtime.monotonic() - self._confirmed_s
        confirmed = self._tail
        return (
            on_local_disk(self._log.store)
            or age_s >= _FRESH_S
            or confirmed is None
            or (confirmed.version, confirmed.seen) != (tail.version, tail.seen)
        )

    def has_states(self, *, new: bool = False) -> bool:
        """Whether only opening the table finds the last version; cached like a listing."""
        folder, store = self._log.dialect.states_folder, self._log.store
        if folder is None or (new and self._opened_with_states):
            return False
        if not on_local_disk(store) and self.is_recent():
            return self._opened_with_states
        return store.has_folders([folder])[0]

    def _is_whole(self, tail: LogTail) -> bool:
        """Whether the files that a log tail depends on still exist; checked once per minute."""
        now_s = self._runtime.monotonic()
        if now_s - self._whole_s >= _CONFIRMED_S:
            if any(self._log.store.stat(path) is None for path in tail.oldest):
                return False
            self._whole_s = now_s
        return True

    def latest(self) -> LogTail:
        """The current log tail; reads the commits since the last call."""
        tail = self._tail
        if self.has_states():
            tail = None
        if tail is not None and tail.steps < MOST_STEPS and self._is_whole(tail):
            before = self._runtime.monotonic()
            commits = commits_after(self._log, tail, confirmed=self.is_recent())
            if commits is not None:
                try:
                    tail = self._moved(tail, commits)
                except MalformedLogError:
                    tail = None  # deleted by a cleanup, or damaged: opening decides
                if tail is not None:
                    self.remember(tail, before)
                    return tail
        before = self._runtime.monotonic()
        self._opened_with_states = self.has_states()
        tail = LogTail(self._log, self._open_latest())
        with self._lock:
            # Even if it is older than the cached one: the table may have been created again.
            self._tail, self._confirmed_s, self._whole_s = tail, before, before
        return tail

    def at(self, version: int) -> LogTail:
        """The log tail at an earlier version; later commits are read when it is used."""
        tail = self.latest()
        if version == tail.version:
            return tail
        if not 0 <= version < tail.version:
            raise InvalidInputError(
                "version not found",
                path=self._log.table,
                expected=f"0 to {tail.version}",
                found=version,
            )
        return LogTail(self._log, LogSnapshot.open(self._log, version))

    def _moved(self, tail: LogTail, commits: Sequence[CommitFile]) -> LogTail:
        if not commits:
            return tail
        files_only = read_files_only(self._log, commits)
        if files_only is not None:
            for each in files_only:
                tail = tail.after(each.step)
            return tail
        decoded = self._log.dialect.decode(self._log.store, commits, files=False)
        for step in effects_of(commits, decoded):
            tail = tail.after(step)
        if last_protocol(decoded.meta) is not None:
            self._log.dialect.protocol_rules.check_readable(tail.protocol, self._log.table)
        return tail

    def remember(self, tail: LogTail, confirmed_s: float | None = None) -> None:
        """Cache a log tail that is known to be the end of the log, unless a later one is cached."""
        if confirmed_s is None:
            confirmed_s = self._runtime.monotonic()
            self._on_commit()
        with self._lock:
            if self._tail is None or tail.version >= self._tail.version:
                self._tail, self._confirmed_s = tail, confirmed_s

    def check_writable(self, table: TableConfiguration) -> PlainTable | None:
        """`write_support.check_writable`, once per configuration, except for lists of features."""
        checked = self._checked
        if (
            checked is not None
            and checked[0].protocol is table.protocol
            and checked[0].metadata is table.metadata
        ):
            return checked[1]
        write_support.check_writable(table, self._log.table, lists=False)
        plain = PlainTable.of(table)
        self._checked = table, plain
        return plain

    def discard(self) -> None:
        """Discard the cached log tail."""
        with self._lock:
            self._tail = None
