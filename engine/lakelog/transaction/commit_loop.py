"""The retry loop that writes a pending commit as the next version, exactly once or not at all.

An attempt writes the version after the log tail with put-if-absent. It has one of three outcomes:

- Written: the log tail advances by the commit; nothing is read.
- The name is taken: the file is read back. If its ``txnId`` is ours (a driver repeated a request
  whose response was lost), it was written. Otherwise all commits since the log tail are decoded at
  once and checked in order, and the pending commit is rebased or refused.
- Unknown: the version is read until it appears, and the same bytes are put again while it is
  missing, so that only one commit can result. `CommitOutcomeUnknown` is raised only if it cannot be
  read.

A version is attempted only if the previous version is known to be the end of the log, so the log
has no gaps. The next version is attempted only if this version is known to be another writer's, so
a transaction is never written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from lakelog.dialects.commit_reader import with_count
from lakelog.dialects.log_content import Actions, CommitContent, CommitFile, CommitInfo
from lakelog.errors import (
    CommitOutcomeUnknown,
    ConflictError,
    InvalidInputError,
    InvalidPropertyError,
    LakelogError,
    MalformedLogError,
    NotFoundError,
    NotRegularFileError,
    OutcomeUnknownError,
    TableExistsError,
    TooManyConflictsError,
    UnavailableError,
)
from lakelog.log.context import Log
from lakelog.model import actions
from lakelog.model.metadata import in_any_case
from lakelog.storage import LogStore
from lakelog.storage.base import StoreWrapper
from lakelog.storage.bounded import on_local_disk
from lakelog.transaction import commit_content
from lakelog.transaction.commit_content import CommitBase, Description, build_content
from lakelog.transaction.conflict_fast_path import (
    CommitEffect,
    effects_of,
    own_paths,
    read_files_only,
)
from lakelog.transaction.conflicts import find_conflict, rebase
from lakelog.transaction.log_tail import LogTail, LogTails, commits_after
from lakelog.transaction.operations import app_versions
from lakelog.transaction.pending_commit import PendingCommit, Winner
from lakelog.transaction.runtime import Runtime

_RETRY = "spark.indextables.transaction.retry."
_MAX_ATTEMPTS = 1000
"""Default number of attempts of a transaction. Each lost attempt is another writer's commit, so
many are lost only with many concurrent writers.
"""

_OUTCOME_READS = 6
"""Maximum number of reads of a version with an unknown outcome, and of puts of the same bytes."""

_LEAST_DELAY_S, _LONGEST_MEASURED_S = 0.001, 0.1
_DOUBLINGS = 3  # a writer that waits longer than others need for a commit only falls further behind


@dataclass(frozen=True)
class Retry:
    """Retry policy; `base_s` None is the store's response time."""

    attempts: int = _MAX_ATTEMPTS
    base_s: float | None = None
    cap_s: float = 5.0

    @staticmethod
    def of(configuration: Mapping[str, str | None], attempts: int | None = None) -> Retry:
        """From the table's ``spark.indextables.transaction.retry.*`` properties."""
        if attempts is not None and (type(attempts) is not int or attempts < 1):
            raise InvalidInputError(
                "max_attempts must be at least 1", expected="an integer >= 1", found=attempts
            )
        tries = _number(configuration, "maxAttempts")
        base_ms, cap_ms = (_number(configuration, key) for key in ("baseDelayMs", "maxDelayMs"))
        return Retry(
            attempts or tries or _MAX_ATTEMPTS,
            None if base_ms is None else base_ms / 1000,
            5.0 if cap_ms is None else cap_ms / 1000,
        )


def _number(configuration: Mapping[str, str | None], key: str) -> int | None:
    text = in_any_case(configuration, _RETRY + key)
    if text is None:
        return None
    if not (text.strip().isascii() and text.strip().isdigit()) or int(text) < 1:
        raise InvalidPropertyError(
            f"the value of {_RETRY}{key} is not an integer >= 1",
            expected="an integer >= 1",
            found=text,
        )
    return int(text)


@dataclass(frozen=True)
class Plan:
    """A checked transaction. `check` repeats the checks after another commit changed protocol or
    metadata; `app` (application, version) prevents duplicates; a commit above `columnar_above`
    bytes of JSON is written as Parquet.
    """

    log: Log
    pending: PendingCommit
    description: Description
    check: Callable[[PendingCommit], None]
    app: tuple[str, int] | None = None
    columnar_above: int | None = None
    retry: Retry = Retry()


@dataclass(frozen=True)
class Outcome:
    """The version written, or that of the application's duplicate, and the bytes written."""

    version: int
    duplicate: bool = False
    size_bytes: int = 0


class CommitLoop:
    """One run of the loop; `outcome` is set, even if interrupted, once a commit is written."""

    def __init__(self, plan: Plan, tail: LogTail | None, tails: LogTails, runtime: Runtime) -> None:
        self.outcome: Outcome | None = None
        self._plan = plan
        self._pending = plan.pending
        self._tail = tail
        self._tails = tails
        self._runtime = runtime
        self._store = plan.log.store
        self._dialect = plan.log.dialect
        self._put_s = 0.0
        self._own_paths = own_paths(plan.pending)
        self._encoded: tuple[CommitContent, bytes] | None = None

    def run(self) -> Outcome:
        """Write the commit; return the outcome."""
        if self._tail is not None and self._tails.needs_confirming(self._tail):
            self._catch_up()
        attempts = self._plan.retry.attempts
        for attempt in range(1, attempts + 1):
            if self.outcome is None and not self._attempt():
                self._catch_up()
            if self.outcome is not None:
                return self.outcome
            if attempt < attempts:
                self._wait(attempt, self._put_s)
        raise TooManyConflictsError(
            f"all {attempts} attempts found their version taken",
            path=self._plan.log.table,
            version=self._version - 1,
            rule="too_many_attempts",
            hint="nothing was written; try again later, or with fewer writers",
        )

    @property
    def configuration(self) -> Mapping[str, str | None]:
        """The table's properties after the log tail."""
        return commit_content.after(self._pending).metadata.configuration

    @property
    def _version(self) -> int:
        """The version of the next attempt."""
        return 0 if self._tail is None else self._tail.version + 1

    def _attempt(self) -> bool:
        """Attempt the version after the log tail; False if another writer has it."""
        version = self._version
        path = self._dialect.commit_path(version)
        content, data = self._encode()
        started_s = self._runtime.monotonic()
        try:
            won = self._put(path, data)
        except BaseException as interrupt:
            if not isinstance(interrupt, LakelogError):
                self._settle_interrupted(path, data, interrupt, content)
            raise
        self._put_s = self._runtime.monotonic() - started_s
        if won:
            self._committed(CommitFile(version, path, len(data), 0), content)
        return won

    def _encode(self) -> tuple[CommitContent, bytes]:
        """The commit for the next attempt, and its bytes."""
        if self._encoded is not None:
            return self._encoded
        content = build_content(
            self._pending,
            self._plan.description,
            self._base(),
            self._plan.log.clock(),
        )
        data = self._dialect.encode(
            with_count(content),
            columnar_above=self._plan.columnar_above,
            configuration=self.configuration,
        )
        if not commit_content.depends_on_base(self._pending):
            # The bytes do not depend on the version.
            self._encoded = content, data
        return content, data

    def _base(self) -> CommitBase:
        tail = self._tail
        if tail is None or self._pending.small is not None:
            return CommitBase()
        meta = actions.concat([])
        if commit_content.needs_meta(self._pending):
            meta = tail.meta
        modified_ms = None
        if commit_content.turns_on_timestamps(self._pending):
            entry = self._store.stat(self._dialect.commit_path(tail.version))
            modified_ms = entry.modified_ms if entry is not None else None
        at = (
            tail.in_commit_timestamp
            if "inCommitTimestamp" in self._dialect.protocol_rules.features
            else None
        )
        return CommitBase(tail.version, tail.protocol, tail.metadata, meta, at, modified_ms)

    def _committed(self, commit: CommitFile, content: CommitContent) -> None:
        self.outcome = Outcome(commit.version, size_bytes=commit.size_bytes)
        if self._tail is None:
            return
        meta = content.meta if self._pending.small is None else self._pending.meta
        if meta.height:
            meta = meta.with_columns(pl.lit(commit.version, dtype=pl.Int64).alias("version"))
        info = CommitInfo(commit.version, 0, dict(content.info))
        commit = self._with_time(commit)
        self._tails.remember(self._tail.after(CommitEffect(commit, meta, info)))

    def _with_time(self, commit: CommitFile) -> CommitFile:
        """A written commit with its time, on local disk, where that costs no request."""
        try:
            entry = self._store.stat(commit.path) if on_local_disk(self._store) else None
        except LakelogError:
            return commit
        if entry is None or entry.size_bytes != commit.size_bytes:
            return commit
        return commit._replace(modified_ms=entry.modified_ms)

    def _put(self, path: str, data: bytes) -> bool:
        """Repeat the put until the writer of the version is known: True if it is this one."""
        doubt: LakelogError | None = None
        obstacle: object = None
        for attempt in range(_OUTCOME_READS):
            if attempt:
                self._wait(attempt, _LEAST_DELAY_S)
            try:
                if self._store.put_if_absent(path, data):
                    return True
            except OutcomeUnknownError as unknown:
                doubt = unknown
            except UnavailableError as cause:
                if doubt is not None:
                    raise self._unknown(path, "and then the store failed") from cause
                raise
            try:
                found = self._read_back(path, doubt)
            except NotFoundError as error:
                obstacle = error.found
            else:
                return self._is_ours(path, found, data)
            # The file is missing, and a request may still be in progress: putting the same bytes is
            # safe.
        if doubt is None and obstacle is not None:
            raise NotRegularFileError(
                f"{obstacle} has the name of the next version, and nothing was written",
                path=path,
                version=self._version,
                expected="no file",
                found=obstacle,
                hint="remove it",
            )
        if doubt is None:
            raise UnavailableError(
                "the store reports both that the version exists and that it was not found",
                path=path,
                version=self._version,
                hint="nothing was written; try again later",
            )
        what = f"and {_OUTCOME_READS - 1} more requests did not determine it"
        raise self._unknown(path, what) from doubt

    def _read_back(self, path: str, doubt: LakelogError | None) -> bytes:
        """The version's bytes; NotFoundError if it does not exist."""
        failure: LakelogError | None = None
        for attempt in range(_OUTCOME_READS):
            if attempt:
                self._wait(attempt, _LEAST_DELAY_S)
            try:
                return self._store.read(path)
            except UnavailableError as cause:
                failure = cause
        assert failure is not None
        what = "and the version cannot be read back"
        raise self._unknown(path, what) from doubt or failure

    def _unknown(self, path: str, what: str) -> CommitOutcomeUnknown:
        return CommitOutcomeUnknown(
            f"the outcome of version {self._version} is unknown: the store did not "
            f"report whether it was written, {what}",
            path=path,
            version=self._version,
            expected=f"commitInfo.txnId {self._plan.description.txn_id}",
            hint=f"check whether {path} exists and contains this txnId: if so, the "
            "transaction is committed; if not, a request may still be in progress, so "
            "repeat the write only with app_id and app_version",
        )

    def _is_ours(self, path: str, found: bytes, data: bytes) -> bool:
        if found == data:
            return True
        store = _Known(self._store, path, found)
        commit = CommitFile(self._version, path, len(found), 0)
        infos = self._dialect.decode(store, [commit], files=False).commit_infos
        return any(info.body.get("txnId") == self._plan.description.txn_id for info in infos)

    def _settle_interrupted(
        self, path: str, data: bytes, interrupt: BaseException, content: CommitContent
    ) -> None:
        """After an interrupt or an error of a driver: determine whether the commit was written."""
        version = self._version
        try:
            found: bytes | None = self._store.read(path)
            ours = found is not None and self._is_ours(path, found, data)
        except NotFoundError:
            found, ours = None, False
        except LakelogError as error:
            interrupt.add_note(
                f"lakelog: the outcome of version {version} is unknown (txnId "
                f"{self._plan.description.txn_id}): {error}"
            )
            return
        if ours:
            self._committed(CommitFile(version, path, len(data), 0), content)
            interrupt.add_note(f"lakelog: the transaction was committed as version {version}")
        elif found is not None:
            interrupt.add_note("lakelog: the transaction was not committed")
        else:
            interrupt.add_note(
                f"lakelog: version {version} was not found; a request for it may still "
                f"be in progress (txnId {self._plan.description.txn_id})"
            )

    def _catch_up(self) -> None:
        """Advance the log tail over the commits of other writers, or raise a conflict."""
        tail = self._tail
        if tail is None:
            raise TableExistsError(
                "another writer has created the table",
                path=self._plan.log.table,
                version=0,
                hint="open it",
            )
        log = self._plan.log
        before_s = self._runtime.monotonic()
        commits = commits_after(log, tail, confirmed=self._tails.is_recent())
        if commits is None or self._tails.has_states(new=True):
            raise self._overtaken(tail, states=commits is not None)
        if not commits:
            return
        if self._advanced_over_other_files(tail, commits, before_s):
            return
        try:
            decoded = self._dialect.decode(self._store, commits)
        except MalformedLogError as cause:
            if isinstance(cause.__cause__, NotFoundError):
                raise self._overtaken(tail) from cause
            raise
        if self._pending.reads.nothing and not decoded.meta.height and len(commits) > 1:
            # These actions conflict only by path, so one check of all commits together is enough.
            together = Winner(commits[-1].version, decoded)
            if find_conflict(self._pending, together) is None:
                for step in effects_of(commits, decoded):
                    tail = tail.after(step)
                self._moved(tail, before_s)
                return
        changed = False
        for winner, step in zip(
            _winners(commits, decoded), effects_of(commits, decoded), strict=True
        ):
            if self._is_duplicate(step.meta):
                self.outcome = Outcome(winner.version, duplicate=True)
                return
            conflict = find_conflict(self._pending, winner)
            if conflict is not None:
                conflict.path = conflict.path or log.table
                raise conflict
            if step.meta.height:
                self._pending = rebase(self._pending, winner)
                self._encoded = None
                changed |= bool(step.meta["actionType"].is_in(["protocol", "metaData"]).any())
            tail = tail.after(step)
        self._moved(tail, before_s)
        if changed:
            self._plan.check(self._pending)

    def _advanced_over_other_files(
        self, tail: LogTail, commits: Sequence[CommitFile], before_s: float
    ) -> bool:
        """Advance over commits that only contain other files; False if they must be decoded."""
        if self._own_paths is None:
            return False
        files_only = read_files_only(self._plan.log, commits)
        if files_only is None or not all(
            self._own_paths.isdisjoint(each.paths) for each in files_only
        ):
            return False
        for each in files_only:
            tail = tail.after(each.step)
        self._moved(tail, before_s)
        return True

    def _moved(self, tail: LogTail, confirmed_s: float) -> None:
        self._tail = tail
        self._tails.remember(tail, confirmed_s)

    def _is_duplicate(self, meta: pl.DataFrame) -> bool:
        if self._plan.app is None:
            return False
        app_id, app_version = self._plan.app
        return any(row["txnVersion"] >= app_version for row in app_versions(meta, app_id))

    def _overtaken(self, tail: LogTail, *, states: bool = False) -> ConflictError:
        """The error if conflicts cannot be checked: the log was replaced, commits were removed, or
        are Avro states.
        """
        self._tails.discard()
        if states:
            rule = "avro_states"
            what = (
                f"another writer has committed by Avro states since version {tail.version}, "
                "and lakelog's commits cannot exclude those"
            )
        elif self._is_replaced(tail):
            rule = "table_replaced"
            what = (
                f"version {tail.version} is not the commit that was read: the table was "
                "deleted, created again, or replaced by a copy"
            )
        else:
            rule = "commits_cleaned_up"
            what = (
                f"some commits after version {tail.version} were removed, so conflicts with "
                "them cannot be checked"
            )
        return ConflictError(
            what,
            path=self._plan.log.table,
            version=tail.version + 1,
            rule=rule,
            hint="read the table again, recompute the changes, and retry",
        )

    def _is_replaced(self, tail: LogTail) -> bool:
        """Whether the log has another commit in place of the last one seen, or ends before it."""
        seen = tail.seen
        listing = self._plan.log.list_since(tail.version if seen is None else seen.version)
        found = [c for c in listing.commits if seen is not None and c.version == seen.version]
        if found:
            return found != [seen] and not tail.is_touched(found[0])
        later = [c.version for c in listing.commits] + [c.version for c in listing.checkpoints]
        return max(later, default=-1) <= tail.version

    def _wait(self, attempt: int, elapsed_s: float) -> None:
        """Wait a random time, doubled per lost attempt, so that writers do not collide again."""
        retry = self._plan.retry
        measured_s = min(max(elapsed_s, _LEAST_DELAY_S), _LONGEST_MEASURED_S)
        base_s = measured_s if retry.base_s is None else retry.base_s
        longest_s = min(retry.cap_s, base_s * 2 ** min(attempt - 1, _DOUBLINGS))
        self._runtime.sleep(self._runtime.rng.random() * longest_s)


class _Known(StoreWrapper):
    """A store with one file already read."""

    def __init__(self, store: LogStore, path: str, data: bytes) -> None:
        super().__init__(store)
        self._path, self._data = path, data

    def read(self, path: str) -> bytes:
        return self._data if path == self._path else super().read(path)

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        return [self.read(path) for path in paths]


def _winners(commits: Sequence[CommitFile], decoded: Actions) -> Iterator[Winner]:
    """The commits one by one, from actions that were decoded together."""
    if len(commits) == 1:
        yield Winner(commits[0].version, decoded)
        return

    def of(frame: pl.DataFrame, version: int) -> pl.DataFrame:
        return frame.filter(pl.col("version") == version) if frame.height else frame

    for commit in commits:
        yield Winner(
            commit.version,
            replace(
                decoded,
                files=of(decoded.files, commit.version),
                meta=of(decoded.meta, commit.version),
                other=of(decoded.other, commit.version),
                commit_infos=tuple(i for i in decoded.commit_infos if i.version == commit.version),
            ),
        )
