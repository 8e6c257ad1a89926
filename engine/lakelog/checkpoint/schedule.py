"""`Scheduler`: writes checkpoints in the background after commits, one at a time per table.

- A commit neither waits nor fails. Errors are logged, issued as `LakelogWarning`, and kept as
  `Scheduler.last_error`.
- After each run the scheduler pauses for nine times its duration, at most a minute, so that a busy
  table spends a tenth of its time on checkpoints. Requests in the meantime are merged into one, for
  the newest version.
- At exit, the program waits for the current run for a limited time, then asks it to stop. No reader
  reads the files of an unpublished checkpoint, and cleanup deletes them.

`is_due` is pure. The log is listed in the background, and again before a checkpoint is written,
because another writer may have written one.

Source: Delta Lake, Checkpoints (every ``delta.checkpointInterval`` commits, never at 0);
IndexTables4Spark, TransactionLogCheckpoint (an interval after the last one).
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - before what is registered below
import contextlib
import logging
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from lakelog import telemetry
from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.dialects.base import Dialect
from lakelog.errors import InvalidInputError, InvalidPropertyError, LakelogWarning
from lakelog.log.context import Log
from lakelog.threads import ENDING
from lakelog.transaction.runtime import Committed

_EXIT_WAIT_S = 30.0
"""Seconds to wait for running checkpoints at exit before they are asked to stop."""

CLEANUP_PAUSE_S = 3600.0
"""Seconds between two cleanups. The set of deletable files changes at midnight UTC and as files
age.
"""

_STOP_WAIT_S = 5.0
_REST, _LONGEST_REST_S = 9.0, 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 600.0


class Lag(NamedTuple):
    """Version of the last complete checkpoint (None: none), and bytes of commits above it."""

    last_version: int | None = None
    bytes_since: int = 0


class Stopped(Exception):  # noqa: N818 - no error: it was asked to
    """Raised inside a checkpoint that is asked to stop."""


Run = Callable[[int, Callable[[], None]], object]
"""Writes the checkpoint of a version. The second argument is called between steps: it raises
`Stopped` once the writer is asked to stop.
"""


def is_due(
    version: int,
    options: CheckpointOptions,
    dialect: Dialect,
    lag: Lag,
) -> bool:
    """Whether a checkpoint of the just committed `version` is due: at multiples of the interval, or
    an interval after the last one, as the dialect prescribes.
    """
    last = lag.last_version
    if not options.enabled or version <= 0 or (last is not None and last >= version):
        return False
    most_bytes = options.bytes_interval
    if most_bytes is not None and lag.bytes_since >= most_bytes:
        return True
    if dialect.checkpoints_at_multiples and (last is None or version % options.interval == 0):
        return version % options.interval == 0
    return version - (last or 0) >= options.interval


def log_lag(log: Log) -> Lag:
    """The lag, from a listing; raises UnavailableError."""
    listing = log.list_latest()
    last = max((checkpoint.version for checkpoint in listing.checkpoints), default=None)
    above = (c.size_bytes for c in listing.commits if last is None or c.version > last)
    return Lag(last, sum(above))


def start_daemon(work: Callable[[], None]) -> None:
    """Run `work` in a daemon thread, which does not delay the exit."""
    threading.Thread(target=work, name="lakelog-checkpoint", daemon=True).start()


class Scheduler:
    """Decides after each commit whether a checkpoint is due, and writes it in the background;
    thread-safe. The next success clears `last_error`; at exit, the program waits `exit_wait_s`
    before it asks the run to stop.
    """

    def __init__(
        self,
        log: Log,
        run: Run,
        *,
        clean_up: Callable[[], object] | None = None,
        lag_of: Callable[[Log], Lag] = log_lag,
        monotonic: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] = start_daemon,
        exit_wait_s: float = _EXIT_WAIT_S,
    ) -> None:
        self._log, self._run, self._clean_up, self._lag_of = log, run, clean_up, lag_of
        self._monotonic, self._start = monotonic, start
        self.exit_wait_s = exit_wait_s
        self.last_error: Exception | None = None
        self.last_report: object = None
        self._options: tuple[Mapping[str, str | None], CheckpointOptions] | None = None
        self._refused: str | None = None
        self._lag: Lag | None = None
        self._first: int | None = None  # first committed version, while `_lag` is unknown
        self._pauses = 0
        self._not_before_s = float("-inf")
        self._rested_s = float("-inf")
        self._next_cleanup_s = float("-inf")
        self._begin()
        with _GUARD:
            _ALL.add(self)

    def _begin(self) -> None:
        """Create the locks and thread state, which are new in a forked process."""
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._wanted: tuple[int, CheckpointOptions] | None = None
        self._running = False
        self._waiting = 0
        self._closed = False
        self._recent: deque[tuple[int, int]] = deque(maxlen=1 << 16)

    def after_commit(self, committed: Committed) -> None:
        """Record a commit, and start a checkpoint if due; for `Runtime.on_commit`."""
        options = self._options_of(committed.configuration)
        if options is None:
            return
        with self._lock:
            if self._closed or ENDING.is_set():
                return
            self._note(committed, options)
            if not self._may_be_due(committed.version, options):
                return
            if self._monotonic() < self._not_before_s:
                return
            newest = committed.version
            if self._wanted is not None:
                newest = max(newest, self._wanted[0])
            self._wanted = newest, options
            self._wake()

    def _options_of(self, configuration: Mapping[str, str | None]) -> CheckpointOptions | None:
        """The options; None, and one warning, if a property is unknown or malformed."""
        known = self._options
        if known is not None and known[0] == configuration:
            return known[1]
        try:
            options = CheckpointOptions.of(configuration, self._log.dialect)
        except InvalidPropertyError as error:
            if self._refused != str(error):
                self._refused = str(error)
                self._failed("checkpoint.misconfigured", None, error)
            return None
        self._options = dict(configuration), options
        return options

    def _note(self, committed: Committed, options: CheckpointOptions) -> None:
        if options.bytes_interval is None:
            return
        self._recent.append((committed.version, committed.size_bytes))
        if self._lag is not None:
            last, since = self._lag
            self._lag = Lag(last, since + committed.size_bytes)

    def _may_be_due(self, version: int, options: CheckpointOptions) -> bool:
        """Whether a listing is worthwhile: only it shows checkpoints of other processes."""
        if self._lag is not None:
            return is_due(version, options, self._log.dialect, self._lag)
        if not options.enabled or version <= 0:
            return False
        if options.bytes_interval is not None:
            return True
        # If no checkpoint is known, none is due earlier than with one at version 0. On Delta, other
        # writers may commit every multiple of the interval, so the log is listed from time to time:
        # as often as if the first version seen had a checkpoint.
        if self._first is None:
            self._first = version
        dialect = self._log.dialect
        return is_due(version, options, dialect, Lag()) or is_due(
            version, options, dialect, Lag(self._first)
        )

    def _wake(self) -> None:
        if self._running:
            return
        self._running = True
        try:
            self._start(self._work)
        except RuntimeError as error:  # no thread can be started
            self._running = False
            self._wanted = None
            self._failed("checkpoint.not_started", None, error)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._rest()
                wanted, self._wanted = self._wanted, None
                if wanted is None or self._stop.is_set():
                    self._running = False
                    self._idle.notify_all()
                    return
            try:
                self._serve(*wanted)
            except BaseException:
                with self._lock:
                    self._running = False
                    self._idle.notify_all()
                raise

    def _rest(self) -> None:
        """Pause after a run, unless another thread waits for the requested checkpoint."""
        left_s = self._rested_s - self._monotonic()
        if self._wanted is not None and left_s > 0:
            self._idle.wait_for(lambda: self._waiting > 0 or self._stop.is_set(), left_s)

    def _serve(self, version: int, options: CheckpointOptions) -> None:
        try:
            if not self._still_due(version, options):
                return
            with self._turn:
                began_s = self._monotonic()
                self.last_report = self._run(version, self._check)
                ended_s = self._monotonic()
                self._rested_s = ended_s + min(_REST * (ended_s - began_s), _LONGEST_REST_S)
        except Stopped:
            telemetry.event("checkpoint.stopped", version=version, table=self._log.table)
            return
        except Exception as error:  # noqa: BLE001 - nothing of it may reach the committer
            self._pause()
            self._failed("checkpoint.failed", version, error)
            return
        self.checkpointed(version)
        if options.cleanup_enabled and not self._stop.is_set():
            self._run_cleanup(version)

    def _run_cleanup(self, version: int) -> None:
        """Clean up the log after a checkpoint, unless that was done less than an hour ago."""
        now_s = self._monotonic()
        if self._clean_up is None or now_s < self._next_cleanup_s:
            return
        self._next_cleanup_s = now_s + CLEANUP_PAUSE_S
        try:
            self._clean_up()
        except Stopped:
            return
        except Exception as error:  # noqa: BLE001 - nothing of it may reach the committer
            self._failed("cleanup.failed", version, error)

    def _still_due(self, version: int, options: CheckpointOptions) -> bool:
        """List the log again, unless Delta's rule, which needs no listing, decides alone."""
        dialect = self._log.dialect
        known = self._lag or Lag()
        if known.last_version is not None and known.last_version >= version:
            return False  # a thread with an earlier commit reported late
        by_rule = dialect.checkpoints_at_multiples and version % options.interval == 0
        if by_rule and is_due(version, options, dialect, known):
            return True
        last, since = self._lag_of(self._log)
        seen = Lag(max(last or 0, known.last_version or 0), since)
        with self._lock:
            self._lag = seen
        return is_due(version, options, self._log.dialect, seen)

    def checkpointed(self, version: int) -> None:
        """Record a checkpoint that was written otherwise."""
        with self._lock:
            self.last_error = None
            self._pauses = 0
            self._not_before_s = float("-inf")
            while self._recent and self._recent[0][0] <= version:
                self._recent.popleft()
            known = self._lag.last_version if self._lag is not None else None
            last = version if known is None else max(known, version)
            self._lag = Lag(last, sum(size for _, size in self._recent))

    def _pause(self) -> None:
        """After a failure, pause for increasing times before the next attempt."""
        with self._lock:
            pause_s = min(_FIRST_PAUSE_S * 2**self._pauses, _LONGEST_PAUSE_S)
            self._pauses += 1
            self._not_before_s = self._monotonic() + pause_s

    def _failed(self, event: str, version: int | None, error: Exception) -> None:
        self.last_error = error
        telemetry.event(event, logging.WARNING, version=version, table=self._log.table, error=error)
        what = "writing a checkpoint in the background failed"
        if event.startswith("cleanup"):
            what = "cleaning up the log in the background failed"
        # If warnings are errors, this one must not make a commit fail.
        with contextlib.suppress(LakelogWarning):
            warnings.warn(f"{what}: {error}", LakelogWarning, stacklevel=2)

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped

    @property
    def running(self) -> bool:
        """Whether a checkpoint runs or is about to."""
        with self._lock:
            return self._running

    def turn(self) -> threading.Lock:
        """Excludes other checkpoints of the table while an explicit one is written."""
        return self._turn

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs; a pending checkpoint starts at once; False after `timeout`."""
        if timeout is not None and timeout < 0:
            raise InvalidInputError(
                "a time-out must not be negative", found=timeout, expected=">= 0"
            )
        with self._idle:
            self._waiting += 1
            self._idle.notify_all()
            try:
                return self._idle.wait_for(lambda: not self._running, timeout)
            finally:
                self._waiting -= 1

    def close(self, timeout: float | None = None) -> bool:
        """Accept no more commits; wait for the run, then ask it to stop; True if it ended."""
        with self._lock:
            self._closed = True
        if self.wait(timeout):
            return True
        self._stop.set()
        return self.wait(_STOP_WAIT_S)


_ALL: weakref.WeakSet[Scheduler] = weakref.WeakSet()
_GUARD = threading.Lock()


def _close_all() -> None:
    """Close all schedulers at exit, with one common time limit."""
    ENDING.set()
    with _GUARD:
        schedulers = list(_ALL)
    started_s = time.monotonic()
    for scheduler in schedulers:
        left_s = scheduler.exit_wait_s - (time.monotonic() - started_s)
        if not scheduler.close(max(0.0, left_s)):
            telemetry.event("checkpoint.abandoned", logging.WARNING)


def _after_fork() -> None:
    """A forked process has none of its parent's threads, and may inherit locked locks."""
    global _GUARD  # noqa: PLW0603 - the lock is the process's
    _GUARD = threading.Lock()
    for scheduler in list(_ALL):
        scheduler._begin()  # noqa: SLF001 - of this module


# Not atexit, which runs after the pools of concurrent.futures are closed, and a checkpoint needs
# them. Functions registered here run in reverse order, so this one runs before theirs.
with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
    getattr(threading, "_register_atexit")(_close_all)  # noqa: B009 - the type hints lack it
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
