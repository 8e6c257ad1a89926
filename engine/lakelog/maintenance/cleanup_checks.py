"""The conditions for deleting log files; each function raises if one does not hold.

The cut-off checkpoint replaces all files below it. Every complete checkpoint of its version is
compared with a replay of the files below it, because other engines may choose another one. If an
earlier cleanup deleted those, a checkpoint is accepted if it can be read completely, has protocol,
metadata and all its sidecars, and matches the version's ``.crc``, if any.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import polars as pl

from lakelog.checkpoint.verify import independent_state, verify_one
from lakelog.dialects.commit_info import in_commit_timestamp
from lakelog.dialects.delta.names import SIDECAR_FOLDER
from lakelog.dialects.digest import Digest, digest
from lakelog.dialects.log_content import Checkpoint, LogListing
from lakelog.errors import (
    CorruptionError,
    LakelogError,
    NotFoundError,
    UnavailableError,
    UnsafeRetentionError,
    UnsupportedError,
    VersionNotFoundError,
)
from lakelog.log.context import Log
from lakelog.log.opening import open_state
from lakelog.log.segment import LogSegment, latest_version, rebuildable
from lakelog.log.snapshot import LogSnapshot
from lakelog.log.state import State
from lakelog.log.version_checksum import compare_checksum_file
from lakelog.maintenance.inventory import HidingStore
from lakelog.maintenance.retention_bounds import Commits, Horizon, first_gap

_CHECKED = (
    "numFiles",
    "tableSizeBytes",
    "metadata.id",
    "protocol.minReaderVersion",
    "protocol.minWriterVersion",
)


def whole_problem(log: Log, checkpoint: Checkpoint, sidecars: Collection[str]) -> str | None:
    """Why protocol, metadata or sidecar names show that a checkpoint is incomplete, or None."""
    reader = log.dialect.open_checkpoint(log.store, checkpoint)
    try:
        pair = reader.read_meta(("protocol", "metaData"))
        files = reader.files_read()
    except (CorruptionError, NotFoundError, UnsupportedError) as error:
        return error.message
    wanted = {"metaData"} if log.dialect.default_protocol is not None else {"metaData", "protocol"}
    missing = wanted - set(pair["actionType"] if pair.height else ())
    if missing:
        return f"it has no {' and no '.join(sorted(missing))}"
    named = [path for path in files if path.startswith(f"{SIDECAR_FOLDER}/")]
    missing_sidecars = [path for path in named if path not in sidecars]
    return f"its sidecar {missing_sidecars[0]} was not found" if missing_sidecars else None


def prove_checkpoint(log: Log, horizon: Horizon) -> str:
    """Verify every complete checkpoint of the cut-off version; memory as `verify_one`."""
    verdicts = {_prove_one(log, checkpoint) for checkpoint in horizon.checkpoints}
    return "proved" if verdicts == {"proved"} else "unprovable"


def _prove_one(log: Log, checkpoint: Checkpoint) -> str:
    report = verify_one(log, checkpoint)
    if report.is_proved:
        return "proved"
    # If the older files exist but cannot be read, the checkpoint is not accepted: they may be the
    # only evidence that it is wrong.
    if report.verdict != "unprovable" or independent_state(log, checkpoint.version) is not None:
        raise _not_proved(log, checkpoint, report.verdict, report.reason)
    try:
        _read_whole(log, checkpoint)
    except UnavailableError:
        raise
    except LakelogError as error:
        raise _not_proved(log, checkpoint, "broken", error.message) from error
    return "unprovable"


def _not_proved(
    log: Log, checkpoint: Checkpoint, verdict: str, found: str | None
) -> UnsafeRetentionError:
    return UnsafeRetentionError(
        f"nothing was cleaned up: the cut-off checkpoint is {verdict}",
        path=f"{log.table}/{checkpoint.paths[0]}",
        version=checkpoint.version,
        expected="the result of replaying the files below it",
        found=found,
        hint="write the checkpoint again (t.repair() returns the steps); the versions up to "
        "it can be rebuilt only from the commits below it",
    )


def _read_whole(log: Log, checkpoint: Checkpoint) -> None:
    """Read every row of a checkpoint, and compare it with the version checksum."""
    state = State.of(log, LogSegment(checkpoint.version, checkpoint, ()))
    state.ensure_readable()
    snapshot = LogSnapshot(state)
    state_digest(snapshot, log.clock())
    _ = state.base_is_unique
    compared = compare_checksum_file(snapshot)
    if compared is None:
        return
    wrong = compared.filter(~pl.col("agrees") & pl.col("field").is_in(list(_CHECKED)))
    if wrong.height:
        field, recorded, found = wrong.select("field", "recorded", "found").row(0)
        raise CorruptionError(
            f"{field} differs from the version checksum",
            path=checkpoint.paths[0],
            version=checkpoint.version,
            expected=recorded,
            found=found,
        )


def check_times(log: Log, listing: LogListing, commits: Commits, horizon: Horizon) -> None:
    """Check that in-commit timestamps increase up to the cut-off commit, because bisection searches
    them; otherwise a version within the retention could be deleted.
    """
    if commits.timed_from is None or horizon.commit is None:
        return
    timed = [c for c in listing.commits if commits.timed_from <= c.version <= horizon.commit]
    if not timed:
        return
    infos = log.dialect.decode(log.store, timed, files=False).commit_infos
    times = [(in_commit_timestamp(info), info.version) for info in infos]
    late = [version for at, version in times if at is not None and at > horizon.cutoff_ms]
    if late or len({version for _, version in times}) != len(timed):
        raise UnsafeRetentionError(
            "nothing was cleaned up: in-commit timestamps do not increase",
            path=log.table,
            version=late[0] if late else None,
            expected=f"every commit up to {horizon.commit} at or before {horizon.cutoff_ms} ms",
            found=f"{len(late)} later ones, and {len(timed) - len(times)} commits without one",
            hint="run the cleanup when these commits are older than the retention, too",
        )


def check_reopens(log: Log, hidden: frozenset[str], oldest: int) -> None:
    """Check that all versions within the retention are readable without the files `hidden`, and
    that the oldest and the latest have the same state. Memory: one batch of a snapshot.
    """
    after = replace(log, store=HidingStore(log.store, hidden))
    now, then = log.list_all(), after.list_all()
    latest = latest_version(now, log.table)
    lost = first_gap(rebuildable(now), rebuildable(then), oldest)
    if lost is not None or not then.commits or latest_version(then, log.table) != latest:
        version = latest if lost is None else lost
        raise _lost_version_error(log, version, "it could no longer be rebuilt")
    for version in sorted({oldest, latest}):
        try:
            left = open_state(after, version)
        except (VersionNotFoundError, CorruptionError) as error:
            raise _lost_version_error(log, version, error.message) from error
        held = open_state(log, version)
        now_ms = log.clock()
        found = state_digest(LogSnapshot(left), now_ms)
        if held.segment == left.segment and log.dialect.checkpoints_are_complete:
            # The same files give the same state. (IndexTables' checkpoints omit actions of commits
            # below them that still apply.)
            continue
        differences = state_digest(LogSnapshot(held), now_ms).differences(found)
        if differences:
            what = ", ".join(f"{d.found} {d.action_type} of {d.expected}" for d in differences)
            raise _lost_version_error(log, version, f"it would contain {what}")


def _lost_version_error(log: Log, version: int, why: str) -> UnsafeRetentionError:
    return UnsafeRetentionError(
        "nothing was cleaned up: a version within the retention would be lost",
        path=log.table,
        version=version,
        found=why,
        hint="run t.verify(), and report a bug with the history of this log",
    )


def state_digest(snapshot: LogSnapshot, now_ms: int) -> Digest:
    """Digest of a state, without skips whose cooldown has passed."""
    total = Digest()
    for batch in snapshot.iter_state():
        rows = batch
        if "retryAfter" in batch.columns:
            lasts = (pl.col("retryAfter") > now_ms).fill_null(value=False)
            is_over = (pl.col("actionType") == "mergeskip") & ~lasts
            rows = batch.filter(~is_over)
        total = total + digest(rows)
    return total
