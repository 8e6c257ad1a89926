"""Moves the files of a quarantine back, so that every version that can be read stays readable.

Existing files are never replaced, except on request those that the repair itself wrote in the place
of the files that it moved: the record has their digests, and a file that was changed since is kept.
A replaced file is copied to a quarantine of its own first, which can be undone likewise.

A checkpoint is moved back only if its version can be read afterwards: from other files, or from the
checkpoint itself. If it replaces a file, the version is read as it would be; otherwise it is enough
that the commits of the version exist, because readers then ignore a damaged checkpoint.

The order is the reverse of a cleanup's: sidecars, then checkpoints, then commits from the newest.
No intermediate state shows an incomplete log, or a checkpoint with files of another one: if several
files of a checkpoint are replaced, the one that completes it is deleted first, and moved back last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from lakelog import telemetry
from lakelog.checkpoint.verify import independent_state
from lakelog.dialects.log_content import Checkpoint, LogListing
from lakelog.errors import LakelogError, NotFoundError, UnavailableError, UnsupportedError
from lakelog.log.context import Log
from lakelog.log.segment import LogSegment, rebuildable
from lakelog.log.snapshot import LogSnapshot
from lakelog.log.state import State
from lakelog.maintenance.cleanup_checks import state_digest
from lakelog.maintenance.inventory import ListedStore, RenamedStore, walk_log
from lakelog.maintenance.quarantine import (
    Quarantine,
    file_digest,
    move_all,
    moved,
    recorded_files,
)
from lakelog.storage.base import FileEntry

UNDONE_SCHEMA = pl.Schema(
    {
        "path": pl.String,
        "kind": pl.String,
        "size_bytes": pl.Int64,
        "outcome": pl.String,
        "why": pl.String,
        "quarantine": pl.String,
    }
)
"""Columns of `undo`: ``outcome`` is ``back`` (restored), ``kept`` (the file remains in quarantine),
``damaged`` (likewise, because its length is not the recorded one), ``there`` (the file was never
moved) or ``missing`` (the file is in neither folder); ``why`` is the reason why a file is not back;
``quarantine`` is the id of the quarantine of the file that it replaced.
"""

_FIRST_BACK = ("sidecar", "checkpoint", "commit", "checksum")
_EXISTS = "another file has the name"
_CHANGED = "the file with the name was not written by the repair, or was changed since"
_PARTIAL = "other files of the checkpoint cannot be moved back"


@dataclass
class _Plan:
    """Outcomes by path: of files that stay, with the reason if any, and of files to be moved."""

    staying: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    moving: dict[str, str] = field(default_factory=dict)  # places in quarantine
    replaced: dict[str, str] = field(default_factory=dict)  # digests of the files to be replaced
    first: list[str] = field(default_factory=list)  # replaced files that complete a checkpoint

    def keep(self, paths: Collection[str], why: str) -> None:
        """Leave files in quarantine."""
        for path in paths:
            self.staying[path] = "kept", why
            del self.moving[path]
            self.replaced.pop(path, None)


def undo(log: Log, quarantine: str, *, replace: bool = False) -> pl.DataFrame:
    """Move the files of a quarantine back, also after an interruption; with `replace` also over the
    files that the repair wrote. Returns the columns `UNDONE_SCHEMA`.
    """
    files, written = recorded_files(log, quarantine)
    held = Quarantine(log, quarantine)
    plan = _planned(held, files, written, replace=replace)
    displaced = _copied(held, files, plan)
    present = plan.replaced.keys() - set(plan.first)
    outcomes = dict(plan.staying)
    for phase in _restore_order(files):
        waiting = [path for path in phase if path in plan.moving]
        errors = move_all(log, lambda path: _moved_back(held, path, present), waiting)
        for path, error in zip(waiting, errors, strict=True):
            if isinstance(error, _TakenError):
                outcomes[path] = "kept", _EXISTS
                continue
            if error is not None and not isinstance(error, NotFoundError):
                raise error
            # Another process has moved it back, or has purged it.
            is_back = error is None or log.store.stat(path) is not None
            outcomes[path] = ("back" if is_back else "missing"), None
    if {outcome for outcome, _ in outcomes.values()} <= {"back", "there"}:
        held.delete_record()
    telemetry.event("cleanup.undone", quarantine=quarantine, files=len(outcomes))
    rows = [
        (*row, *outcomes[row[0]], displaced if row[0] in plan.replaced else None)
        for row in files.select("path", "kind", "size_bytes").iter_rows()
    ]
    return pl.DataFrame(rows, schema=UNDONE_SCHEMA, orient="row")


def _planned(
    held: Quarantine, files: pl.DataFrame, written: Mapping[str, str], *, replace: bool
) -> _Plan:
    """Decide for each file whether it is moved back; changes nothing."""
    log = held.log
    folder = log.dialect.log_folder
    entries = walk_log(log)
    sizes = {f"{folder}/{e.name}": e.size_bytes for e in entries}
    plan = _Plan()
    foreign: set[str] = set()
    for path, recorded in files.select("path", "size_bytes").iter_rows():
        place = held.place_of(path)
        size = sizes.get(place)
        if size is None and path not in sizes and (entry := log.store.stat(place)) is not None:
            size = entry.size_bytes  # a listing omits what is behind links, which moving refuses
        if size is None:
            plan.staying[path] = ("there" if path in sizes else "missing"), None
            if path in sizes and path in written and file_digest(log, path) == written[path]:
                foreign.add(path)
        elif recorded is not None and size != recorded:
            why = f"its length is {size:,} bytes, and the record has {recorded:,}"
            plan.staying[path] = "damaged", why
            foreign.add(path)
        elif path not in sizes:
            plan.moving[path] = place
        else:
            digest = file_digest(log, path)
            if replace and digest is not None and written.get(path) == digest:
                plan.moving[path] = place
                plan.replaced[path] = digest
                continue
            plan.staying[path] = "kept", _CHANGED if replace else _EXISTS
            if digest != file_digest(log, place):  # an interrupted move may have copied it
                foreign.add(path)
    complete = _keep_unreadable(log, entries, plan, foreign)
    checkpoints = files.filter(kind="checkpoint")["path"]
    plan.keep([p for p in checkpoints if p in plan.replaced and p not in complete], _PARTIAL)
    return plan


def _keep_unreadable(
    log: Log, entries: Sequence[FileEntry], plan: _Plan, foreign: Collection[str]
) -> set[str]:
    """Keep the checkpoints in quarantine with which their version could not be read; returns the
    files of the complete ones that are moved back.
    """
    accepted: set[Checkpoint] = set()
    is_decided = False
    while not is_decided:
        after = _after(log, entries, plan)
        listing = after.list_all()
        back = [c for c in listing.checkpoints if not plan.moving.keys().isdisjoint(c.paths)]
        is_decided = True
        for checkpoint in [c for c in back if c not in accepted]:
            waiting = [c for c in back if c not in accepted]
            why = _why_kept(after, listing, checkpoint, waiting, plan.replaced, foreign)
            if why is not None:
                plan.keep([path for path in checkpoint.paths if path in plan.moving], why)
                is_decided = False  # a file that it would have replaced stays
                break
            accepted.add(checkpoint)
    plan.first = [c.paths[0] for c in back if len(c.paths) > 1 and c.paths[0] in plan.replaced]
    return {path for checkpoint in back for path in checkpoint.paths}


def _why_kept(
    after: Log,
    listing: LogListing,
    checkpoint: Checkpoint,
    waiting: Collection[Checkpoint],
    replaced: Collection[str],
    foreign: Collection[str],
) -> str | None:
    """Why a checkpoint must not be moved back; None if its version can be read afterwards."""
    if not set(foreign).isdisjoint(checkpoint.paths):
        return _PARTIAL
    is_replacing = not set(replaced).isdisjoint(checkpoint.paths)
    version = checkpoint.version
    if not is_replacing:
        others = tuple(c for c in listing.checkpoints if c not in waiting)
        ranges = rebuildable(dataclasses.replace(listing, checkpoints=others))
        if any(first <= version <= last for first, last in ranges):
            return None
    without = independent_state(after, version)
    why: str | None = "its version cannot be read from other files"
    if without is not None and (why := _error_of(after, without)) is None:
        return None
    if is_replacing and len(checkpoint.paths) > 1:
        # It is incomplete while its files are replaced, one by one.
        return f"the table must be readable without the checkpoint while it is replaced: {why}"
    own = _error_of(after, State.of(after, LogSegment(version, checkpoint, ())))
    return None if own is None else f"version {version} could not be read: {own}"


def _error_of(after: Log, state: State) -> str | None:
    """The error of reading a state completely, or None. Memory: one batch."""
    try:
        state.ensure_readable()
        state_digest(LogSnapshot(state), after.clock())
    except UnavailableError:
        raise
    except UnsupportedError:  # of a newer protocol, not damaged
        return None
    except LakelogError as error:
        return error.message
    return None


def _after(log: Log, entries: Sequence[FileEntry], plan: _Plan) -> Log:
    """The log with the moved files in their places."""
    folder = log.dialect.log_folder
    names = {place: path for path, place in plan.moving.items()}
    there = []
    for entry in entries:
        path = f"{folder}/{entry.name}"
        if path in names:
            there.append(entry._replace(name=names[path].removeprefix(f"{folder}/")))
        elif path not in plan.moving:
            there.append(entry)
    there.sort()
    store = ListedStore(RenamedStore(log.store, plan.moving), folder, there)
    return dataclasses.replace(log, store=store)


def _copied(held: Quarantine, files: pl.DataFrame, plan: _Plan) -> str | None:
    """Copy the files that will be replaced to a quarantine, and return its id; then delete those
    that complete a checkpoint of several files.
    """
    if not plan.replaced:
        return None
    log = held.log
    rows = files.filter(pl.col("path").is_in(list(plan.replaced)))
    sizes = [(e.size_bytes if (e := log.store.stat(p)) else None) for p in rows["path"]]
    found = rows.with_columns(pl.Series("size_bytes", sizes, dtype=pl.Int64))
    digests = ((path, file_digest(log, plan.moving[path])) for path in plan.replaced)
    written = {path: digest for path, digest in digests if digest is not None}
    own = Quarantine.begin(log, found, "undo", written)
    for path, digest in plan.replaced.items():
        own.copy(path, digest)
    for path in plan.first:
        log.store.delete(path)
    return own.id


class _TakenError(LakelogError):
    """Another file has the name: it was written after the log was listed."""


def _moved_back(held: Quarantine, path: str, present: Collection[str]) -> LakelogError | None:
    place = held.place_of(path)
    stat = held.log.store.stat
    # Not moved back by another undo.
    if path not in present and stat(path) is not None and stat(place) is not None:
        return _TakenError(_EXISTS, path=path)
    return moved(held.log, place, path)


def _restore_order(files: pl.DataFrame) -> list[list[str]]:
    """Paths in the order of restoring; within a phase the order is free."""
    kind = pl.col("kind")
    is_checkpoint, leads = kind == "checkpoint", pl.col("leads").fill_null(value=False)
    parts = (
        kind == "sidecar",
        is_checkpoint & ~leads,
        is_checkpoint & leads,
        kind.is_in(["commit", "checksum"]),
        ~kind.is_in(list(_FIRST_BACK)),
    )
    ordered = files.sort("version", descending=True, nulls_last=True)
    return [ordered.filter(part)["path"].to_list() for part in parts]
