"""Finds the problems of a log, and determines whether they can be repaired. Changes nothing.

==================  =======================================  ======================================
kind                problem                                  repaired by
==================  =======================================  ======================================
``log``             the latest version cannot be read        not repaired: the finding names the
                                                             file to restore
``checkpoint``      it cannot be read, or differs from       writing it again from replay, if the
                    replay                                   older files are valid
``pointer``         it is damaged, behind, names a version   naming the newest valid checkpoint
                    without a complete checkpoint, or
                    records other counts than that has
``checksum``        it is damaged, or differs from replay    writing it again
``data-missing``    a live file does not exist               removing it from the table, on request
``data-length``     a live file has another length than the  not repaired
                    log records
``vector-missing``  a deletion vector's file does not exist  not repaired
==================  =======================================  ======================================

A checkpoint can be written again if commits are contiguous from 0, or from an older checkpoint, and
they and the checkpoint have the same table id. Otherwise replay could restore a truncated log, or a
table that was overwritten.

Source: Delta protocol, Checkpoints; Last Checkpoint File; Version Checksum File.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import polars as pl
import polars.selectors as cs

from lakelog.checkpoint.verify import VerifyReport, independent_state, verify_one
from lakelog.dialects.delta.deletion_vectors import vector_paths
from lakelog.dialects.log_content import Checkpoint, LogListing
from lakelog.errors import (
    CorruptionError,
    InvalidPathError,
    LakelogError,
    NotFoundError,
    UnsupportedError,
)
from lakelog.log.context import Log
from lakelog.log.opening import table_ids, unreadable_protocol
from lakelog.log.repeated_files import resolve_repeated_files
from lakelog.log.segment import LogSegment, choose_segment, latest_version
from lakelog.log.snapshot import LogSnapshot
from lakelog.log.state import State
from lakelog.log.version_checksum import compare_checksum_file
from lakelog.model import actions
from lakelog.model.metadata import last_protocol
from lakelog.storage.containment import ABSOLUTE
from lakelog.telemetry import Progress
from lakelog.threads import Pool

WRITE, DELETE, REMOVE, REFUSE, KEEP = "write", "delete", "remove", "refuse", "keep"
_THREADS = 16
_DEPENDS = (CorruptionError, NotFoundError, UnsupportedError)
_WHY_KEPT = (
    "the rows of its data files cannot be read: restore it from a copy, or the table to a version "
    "before it; no repair drops it, because the rows that it deletes would be visible again"
)


class Finding(NamedTuple):
    """One problem. `kind`: see the module; `action`: ``write`` (write again), ``delete``,
    ``remove`` (from the table), ``refuse`` (no correct repair) or ``keep`` (nothing to do); `why`:
    reason for the action.
    """

    kind: str
    path: str
    version: int | None
    problem: str
    action: str
    why: str
    checkpoint: Checkpoint | None = None


def diagnose_log(log: Log) -> Iterator[Finding]:
    """Check that the latest version can be read."""
    try:
        LogSnapshot.open(log).num_files()
    except _DEPENDS as error:
        path = error.path or log.dialect.log_folder
        why = error.hint or "restore the file from a copy"
        yield Finding("log", path, error.version, error.message, REFUSE, why)


def diagnose_checkpoints(log: Log, listing: LogListing, progress: Progress) -> Iterator[Finding]:
    """Verify every complete checkpoint, newest first."""
    count = len(listing.checkpoints)
    for done, checkpoint in enumerate(reversed(listing.checkpoints)):
        progress("verify", done, count)
        report = verify_one(log, checkpoint)
        path, version = checkpoint.paths[0], checkpoint.version
        reason = report.reason or "its content differs"
        if report.verdict == "unprovable":
            why = "it is valid, and the files that would verify it were not found"
            yield Finding("checkpoint", path, version, reason, KEEP, why, checkpoint)
        elif report.verdict != "proved":
            problem = f"it is {report.verdict}: {reason}"
            invalid = _why_refused(log, report)
            action = WRITE if invalid is None else REFUSE
            why = invalid or "replay of older files rebuilds its version, with one table id"
            yield Finding("checkpoint", path, version, problem, action, why, checkpoint)
    progress("verify", count, count)


def _why_refused(log: Log, report: VerifyReport) -> str | None:
    """Why a checkpoint cannot be written again from older files; None if it can."""
    if report.layout not in log.dialect.layouts:
        return f"lakelog does not write the layout {report.layout}"
    state = independent_state(log, report.version)
    if state is None:
        alone = LogSegment(report.version, report.checkpoint, ())
        if resolve_repeated_files(State.of(log, alone)) is not None:
            return None  # a checkpoint needs no older file to be verified against itself
        return "commits that are needed to replay it are missing; restore them, or the checkpoint"
    try:
        ids = table_ids(state)
        state.ensure_readable()
    except _DEPENDS as error:
        return f"the files that are needed to replay it are damaged: {error.message}"
    try:
        own = log.dialect.open_checkpoint(log.store, report.checkpoint).read_meta(("metaData",))
        ids |= set(actions.conform(own, ("metadataId",))["metadataId"].to_list())
    except _DEPENDS:
        pass  # a damaged checkpoint has no id to compare
    if (refused := unreadable_protocol(state)) is not None:
        return f"older files are of a protocol that lakelog cannot replay: {refused}"
    if len(ids) > 1:
        return (
            f"replay found the table ids {', '.join(sorted(map(str, ids)))}: files of another table"
        )
    return None


def diagnose_pointer(
    log: Log,
    listing: LogListing,
    invalid: Collection[Checkpoint],
    wrong: Collection[Checkpoint],
) -> Iterator[Finding]:
    """Compare the pointer with the newest checkpoint that is valid, or will be after the repair."""
    path = log.dialect.pointer_path
    readable = [c for c in listing.checkpoints if c not in invalid]
    valid = [c for c in readable if c not in wrong]
    newest = next((c for c in reversed(readable) if _may_be_named(log, c)), None)
    try:
        content: bytes | None = log.store.read(path)
    except NotFoundError:
        content = None
    pointed = None if content is None else log.dialect.pointed_version(content)
    versions = {c.version for c in readable}
    if content is None:
        if newest is None:
            return
        problem = "it was not found"
    elif pointed is None:
        problem = "it is damaged"
    elif pointed not in versions:
        problem = f"it names version {pointed}, which has no complete valid checkpoint"
    elif not any(_may_be_named(log, c) for c in readable if c.version == pointed):
        problem = (
            f"it names version {pointed}, whose checkpoint layout not all readers of the "
            "table support"
        )
    elif newest is not None and pointed < newest.version:
        problem = (
            f"it names version {pointed}, but the newest checkpoint has version {newest.version}"
        )
    elif (contradiction := _contradiction(log, valid, pointed, content)) is not None:
        problem = contradiction
        if independent_state(log, pointed) is None:
            why = "the checkpoint may have lost actions: restore it, or delete the pointer"
            yield Finding("pointer", path, pointed, problem, REFUSE, why)
            return
    else:
        return
    if newest is None:
        why = "no checkpoint was found; readers begin with the first commit"
        yield Finding("pointer", path, pointed, problem, DELETE, why)
    elif newest.layout not in log.dialect.layouts:
        why = f"lakelog does not write pointers to the layout {newest.layout}"
        yield Finding("pointer", path, pointed, problem, REFUSE, why)
    else:
        why = "the pointer is only a hint, and the checkpoint that it will name is complete"
        yield Finding("pointer", path, newest.version, problem, WRITE, why, newest)


def _contradiction(
    log: Log, readable: Collection[Checkpoint], pointed: int, content: bytes
) -> str | None:
    """The difference of the pointer from the checkpoints that it may name, or None."""
    named = (c for c in readable if c.version == pointed)
    found = (log.dialect.pointer_contradiction(log.store, c, content) for c in named)
    return next((problem for problem in found if problem is not None), None)


def _may_be_named(log: Log, checkpoint: Checkpoint) -> bool:
    """Whether the pointer may name a checkpoint; all readers must support its layout."""
    dialect = log.dialect
    if dialect.may_be_pointed_to(checkpoint, None):
        return True
    try:
        reader = dialect.open_checkpoint(log.store, checkpoint)
        return dialect.may_be_pointed_to(checkpoint, last_protocol(reader.read_meta(("protocol",))))
    except _DEPENDS:
        pass  # damaged: it will be written again from replay
    try:
        state = independent_state(log, checkpoint.version)
        return state is not None and dialect.may_be_pointed_to(checkpoint, state.protocol)
    except _DEPENDS:
        return False


def diagnose_checksums(
    log: Log, listing: LogListing, invalid: Collection[Checkpoint]
) -> Iterator[Finding]:
    """Compare the checksums of the latest version and of versions with checkpoints with replay."""
    if log.dialect.checksum_path(0) is None:
        return
    folder = log.dialect.log_folder
    entries = log.store.list_from(folder)
    recorded = {
        int(e.name[:20])
        for e in entries
        if len(e.name) == 24 and e.name.endswith(".crc") and e.name[:20].isdigit()
    }
    latest = latest_version(listing, log.table)
    asked = {latest, *(c.version for c in listing.checkpoints)}
    for version in sorted(asked & recorded):
        path = f"{folder}/{version:020d}.crc"
        try:
            segment = choose_segment(listing, version, table=log.table, excluded=invalid)
            state = State.of(log, segment, excluded=tuple(invalid))
            compared = compare_checksum_file(LogSnapshot(state))
        except LakelogError as error:
            why = f"the version cannot be read: {error.message}"
            yield Finding("checksum", path, version, "it cannot be checked", REFUSE, why)
            continue
        if compared is None:
            problem = "it is damaged"
        else:
            wrong = compared.filter(~pl.col("agrees"))
            if not wrong.height:
                continue
            field, found, replayed = wrong.select("field", "recorded", "found").row(0)
            problem = f"it records {field} {found}, but replay returns {replayed}"
        yield Finding(
            "checksum", path, version, problem, WRITE, "replay returns the correct values"
        )


def diagnose_files(log: Log, listed: pl.DataFrame, *, remove: bool) -> Iterator[Finding]:
    """Live files that do not exist or have another length, and missing deletion vectors.

    The `listed_files` may be older than the version: what they lack is looked up.
    """
    snapshot = LogSnapshot.open(log)
    columns = ("path", "size", "dvStorageType", "dvPathOrInline")
    files = snapshot.files().select(cs.by_name(columns, require_all=False)).collect()
    live = actions.conform(files, columns)  # IndexTables have no deletion vectors
    vectors = vector_paths(live)
    listed = listed.select("path", "size_bytes").unique("path", keep="last")
    data = _doubtful(log, live.select("path", "size"), listed)
    why = (
        "its rows are lost in any case; readers fail until it is removed"
        if remove
        else "restore it, or request its removal: its rows are then permanently lost"
    )
    copy = "restore it from a copy, or the table to a version before it"
    version = snapshot.version
    missing = data.filter(pl.col("found").is_null())["path"]
    for path in missing:
        action = REMOVE if remove else REFUSE
        yield Finding("data-missing", path, version, "a live file was not found", action, why)
    for path, recorded, found in data.drop_nulls("found").rows():
        problem = f"a live file has {found:,} bytes, and the log records {recorded:,}"
        why_not = f"its rows cannot be read: {copy}"
        yield Finding("data-length", path, version, problem, REFUSE, why_not)
    used = pl.DataFrame({"path": vectors.filter(~live["path"].is_in(missing.implode()))})
    used = used.drop_nulls().unique().with_columns(size=pl.lit(None, pl.Int64))
    for path in _doubtful(log, used, listed)["path"]:
        problem = "the deletion vector of a live file was not found"
        yield Finding("vector-missing", path, version, problem, REFUSE, _WHY_KEPT)


def _doubtful(log: Log, wanted: pl.DataFrame, listed: pl.DataFrame) -> pl.DataFrame:
    """The files below the table's folder that do not exist, or not with the recorded ``size``, and
    the length that was ``found``; files with null as size have any length.
    """

    def length(path: str) -> int | None:
        try:
            entry = log.store.stat(path)
        except InvalidPathError:
            return None
        return None if entry is None else entry.size_bytes

    differs = pl.col("found").is_null() | (pl.col("found") != pl.col("size")).fill_null(value=False)
    wanted = wanted.filter(~pl.col("path").str.contains(ABSOLUTE))
    found = wanted.join(listed.rename({"size_bytes": "found"}), on="path", how="left")
    candidates = found.filter(differs).sort("path")
    with Pool(_THREADS, thread_name_prefix="lakelog-repair") as pool:
        lengths = list(pool.map(length, candidates["path"]))
    return candidates.with_columns(found=pl.Series(lengths, dtype=pl.Int64)).filter(differs)
