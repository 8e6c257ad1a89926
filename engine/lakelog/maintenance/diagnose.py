"""Finds the problems of a log, and determines whether they can be repaired. Changes nothing.

==================  =======================================  ======================================
kind                problem                                  repaired by
==================  =======================================  ======================================
``log``             the latest version cannot be read        not repaired: the finding names the
                                                             file to restore
``version``         a directory or a dangling link has the   not repaired
                    name of the next commit
``checkpoint``      it cannot be read, or differs from       writing it again from replay, if the
                    replay                                   older files are valid and records of
                                                             the version agree with them
``pointer``         it is damaged, behind, names a version   naming the newest valid checkpoint
                    without a complete checkpoint, or
                    records other counts than that has
``checksum``        it is damaged, or differs from replay    writing it again, if its checkpoint is
                                                             proved
``files``           reading refuses a live file because of   not repaired
                    what the log records of it
``data-missing``    a live file does not exist               removing it from the table, on request
``data-length``     a live file has another length than the  not repaired
                    log records
``data-             a live file, or a deletion vector's, is  not repaired
unreadable``        in a folder that cannot be read
``vector-missing``  a deletion vector's file does not exist  not repaired
``vector-length``   it is too short for the vectors that     not repaired
                    the log records in it
``external-         files outside of the table's folder      not repaired: the caller has to allow
unchecked``         were not checked                         their location
==================  =======================================  ======================================

A checkpoint can be written again if commits are contiguous from 0, or from an older checkpoint, and
give the checkpoint's table id at its version. Otherwise replay could restore a truncated log, or a
table whose folder was written over.

Source: Delta protocol, Checkpoints; Last Checkpoint File; Version Checksum File.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import polars as pl
import polars.selectors as cs

from lakelog.checkpoint.evidence import denial
from lakelog.checkpoint.plan import check_writers
from lakelog.checkpoint.verify import VerifyReport, independent_state, verify_one
from lakelog.dialects.delta.deletion_vectors import vector_paths
from lakelog.dialects.log_content import Checkpoint, LogListing
from lakelog.errors import (
    CorruptionError,
    ExternalPathError,
    InvalidActionError,
    LakelogError,
    NotFoundError,
    NotRegularFileError,
    UnavailableError,
    UnsupportedError,
    UnsupportedFeatureError,
)
from lakelog.input_validation import is_unicode
from lakelog.log.base_checkpoint import Base
from lakelog.log.context import Log
from lakelog.log.opening import other_table_ids, unreadable_protocol
from lakelog.log.repeated_files import resolve_repeated_files
from lakelog.log.segment import LogSegment, choose_segment, latest_version
from lakelog.log.snapshot import LogSnapshot
from lakelog.log.state import State
from lakelog.log.version_checksum import compare_checksum_file, contradicts_itself
from lakelog.maintenance.vacuum import Listing, inside, of_entries
from lakelog.model import actions
from lakelog.model.metadata import last_protocol
from lakelog.storage.base import is_denied
from lakelog.storage.bounded import FileLocator
from lakelog.storage.containment import SCHEME
from lakelog.telemetry import Progress
from lakelog.threads import Pool
from lakelog.transaction.write_support import check_actions, check_writable

WRITE, DELETE, REMOVE, REFUSE, KEEP = "write", "delete", "remove", "refuse", "keep"
CHECK = "check"
_THREADS = 16
_DEPENDS = (CorruptionError, NotFoundError, UnsupportedError)
_WHY_MISSING = (
    "restore it, or remove it from the table with remove_missing=True, or --remove-missing on the "
    "command line: its rows are then permanently lost"
)
_WHY_REMOVED = "its rows are lost in any case; readers fail until it is removed"
_WHY_UNREACHED = (
    "it is behind a symbolic link that leads nowhere, or its folder is outside of the table's "
    "folder, and no file was found in it: it may not be reachable from here; restore the file, or "
    "remove it with Transaction.remove"
)
_WHY_UNCHECKED = (
    "if you trust their location, allow it: lakelog.open(…, allow_external=[…]), or "
    "--allow-external on the command line; paths with a part '..' are always refused"
)
_WHY_DENIED = "try again with the permission to read it"
_COPY = "restore it from a copy, or the table to a version before it"
_WHY_UNREADABLE = f"its rows cannot be read: {_COPY}"
_WHY_KEPT = (
    f"the rows of its data files cannot be read: {_COPY}; no repair drops it, because the rows "
    "that it deletes would be visible again"
)
_ABSOLUTE_FOLDER = f"(?s)^((?:{SCHEME})?/(?:.*/)?)"
_NOT_CHECKED = -1
"""In place of the length of a file that may not be opened."""

_DENIED = -2
"""In place of the length of a file in a folder that may not be read."""

_VECTOR_COLUMNS = actions.DV_COLUMNS[:4]  # without the number of deleted rows
_VECTOR_END = (
    pl.col("dvOffset").fill_null(0).cast(pl.Int64)
    + pl.col("dvSizeInBytes").fill_null(0).cast(pl.Int64)
    + 8
)
"""Length of a file up to the end of a vector: at its offset are four bytes of size, the vector, and
four bytes of checksum (Delta protocol, Deletion Vector File Storage Format).
"""


class Finding(NamedTuple):
    """One problem. `kind`: see the module; `action`: ``write`` (write again), ``delete``,
    ``remove`` (from the table), ``refuse`` (no correct repair), ``check`` (not checked, as it is
    not allowed) or ``keep`` (nothing to do); `why`:
    reason for the action; `is_undecided`: a readable checkpoint, or the commits that contradict it,
    are damaged; `num_files`: number of data files and files of deletion vectors.
    """

    kind: str
    path: str
    version: int | None
    problem: str
    action: str
    why: str
    num_files: int | None = None
    checkpoint: Checkpoint | None = None
    is_undecided: bool = False


def diagnose_log(log: Log) -> Iterator[Finding]:
    """Check that the latest version can be read."""
    try:
        LogSnapshot.open(log).num_files()
    except _DEPENDS as error:
        path = error.path or log.dialect.log_folder
        why = error.hint or "restore the file from a copy"
        yield Finding("log", path, error.version, error.message, REFUSE, why)


def diagnose_next_version(log: Log, version: int) -> Iterator[Finding]:
    """Check that the name of the commit after `version` is free, or is that of a commit."""
    path = log.dialect.commit_path(version + 1)
    try:
        log.store.read(path)
    except NotFoundError as error:
        if error.found is not None:
            problem = f"{error.found} has the name of the next commit, so nothing can be written"
            yield Finding("version", path, version + 1, problem, REFUSE, "remove it")


class Checkpoints(NamedTuple):
    """Result of verifying all checkpoints: the findings, newest first, and the `doubtful`: those
    that are not repaired, and those that were only compared with a doubtful one.
    """

    findings: list[Finding]
    doubtful: set[Checkpoint]


def diagnose_checkpoints(log: Log, listing: LogListing, progress: Progress) -> Checkpoints:
    """Verify every complete checkpoint. They are verified from the oldest, so that none is compared
    with one that is known to be wrong, or replayed from one that is doubtful.
    """
    count = len(listing.checkpoints)
    found: list[Finding] = []
    wrong: list[Checkpoint] = []
    doubtful: set[Checkpoint] = set()
    for done, checkpoint in enumerate(listing.checkpoints):
        progress("verify", done, count)
        report = verify_one(log, checkpoint, excluded=wrong)
        if report.verdict == "wrong" and report.doubt is None:
            wrong.append(checkpoint)
        written = [f.checkpoint for f in found if f.action == WRITE and f.checkpoint]
        findings = list(_of_checkpoint(log, checkpoint, report, written, doubtful))
        found += findings
        sources = {path for c in doubtful for path in c.paths}
        is_refused = any(f.action == REFUSE and f.checkpoint is not None for f in findings)
        if is_refused or not sources.isdisjoint(report.replayed):
            doubtful.add(checkpoint)
    progress("verify", count, count)
    return Checkpoints(found[::-1], doubtful)


def _of_checkpoint(
    log: Log,
    checkpoint: Checkpoint,
    report: VerifyReport,
    written: Collection[Checkpoint],
    doubtful: Collection[Checkpoint],
) -> Iterator[Finding]:
    path, version = checkpoint.paths[0], checkpoint.version
    reason = report.reason or "its content differs"
    if report.verdict == "unprovable" and report.error is not None:
        why = "the checkpoint is readable; restore the damaged file from a copy, to verify it"
        yield Finding("checkpoint", report.error.path or path, version, reason, REFUSE, why)
    elif report.verdict == "unprovable":
        why = "it is valid, and the files that would verify it were not found"
        yield Finding("checkpoint", path, version, reason, KEEP, why, checkpoint=checkpoint)
    elif report.doubt is not None:
        problem = f"replay of the commits gives another state: {reason}"
        yield Finding(
            "checkpoint", path, version, problem, REFUSE, report.doubt, None, checkpoint, True
        )
    elif report.verdict != "proved":
        problem = f"it is {report.verdict}: {reason}"
        invalid = _why_refused(log, report, written, doubtful)
        action = WRITE if invalid is None else REFUSE
        why = invalid or "replay of older files rebuilds its version"
        yield Finding("checkpoint", path, version, problem, action, why, checkpoint=checkpoint)


def _why_refused(
    log: Log,
    report: VerifyReport,
    written: Collection[Checkpoint],
    doubtful: Collection[Checkpoint],
) -> str | None:
    """Why a checkpoint cannot be written again from older files; None if it can. Those that will be
    `written` again before it may be damaged now; it would copy the damage of a `doubtful` one.
    """
    if report.layout not in log.dialect.layouts:
        return f"lakelog does not write the layout {report.layout}"
    state = independent_state(log, report.version, written)
    state = state or independent_state(log, report.version)  # one may be its own source
    if state is None:
        own = State.of(log, LogSegment(report.version, report.checkpoint, ()))
        if resolve_repeated_files(own) is not None:
            return _why_unwritable(own)  # it is verified against itself, without older files
        return "commits that are needed to replay it are missing; restore them, or the checkpoint"
    source = state.segment.checkpoint
    if source is not None and source in doubtful:
        return (
            f"it would be replayed from the checkpoint of version {source.version}, which may be "
            "damaged: repair that first"
        )
    try:
        state.ensure_readable()
        if report.verdict == "broken" and (why := denial(log, report.checkpoint, state)):
            return f"the commits that would rebuild it may be damaged too: {why}"
    except _DEPENDS as error:
        return f"the files that are needed to replay it are damaged: {error.message}"
    if (refused := unreadable_protocol(state)) is not None:
        return f"older files are of a protocol that lakelog cannot replay: {refused}"
    base = Base(log.dialect.open_checkpoint(log.store, report.checkpoint))
    ids = other_table_ids(state, base)
    if ids is not None:
        return f"the older files belong to another table ({ids})"
    return _why_unwritable(state)


def _why_unwritable(state: State) -> str | None:
    """Why lakelog must not write checkpoints and checksums of a version; None if it may."""
    try:
        check_writers(state.table_configuration, state.log.table)
    except (CorruptionError, UnsupportedFeatureError) as error:
        return f"{error.message}: {error.found}"
    return None


def diagnose_pointer(
    log: Log,
    listing: LogListing,
    invalid: Collection[Checkpoint],
    wrong: Collection[Checkpoint],
    undecided: Collection[Checkpoint] = (),
    *,
    is_verified: bool = True,
) -> Iterator[Finding]:
    """Compare the pointer with the newest checkpoint that is valid, or will be after the repair. It
    is not moved to one that is undecided, or above the last commit unless checkpoints are verified.
    """
    path = log.dialect.pointer_path
    readable = [c for c in listing.checkpoints if c not in invalid]
    valid = [c for c in readable if c not in wrong]
    decided = [c for c in readable if c not in undecided] or readable
    newest = next((c for c in reversed(decided) if _may_be_named(log, c)), None)
    content: bytes | None = None
    try:
        content = log.store.read(path)
    except (NotFoundError, NotRegularFileError) as error:
        if error.found is not None:
            problem = f"{error.found} has its name"
            why = "remove it; writers cannot name a checkpoint until then"
            yield Finding("pointer", path, None, problem, REFUSE, why)
            return
    pointed = None if content is None else log.dialect.pointed_version(content)
    versions = {c.version for c in readable}
    if content is None:
        if newest is None:
            return
        problem = "it was not found"
    elif pointed is None:
        problem = "it is damaged"
    elif _is_written_since(log, listing, pointed):
        return
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
        last = listing.commits[-1].version if listing.commits else newest.version
        if not is_verified and last < newest.version:
            why = f"the last commit has version {last}: `lakelog repair` verifies the checkpoint"
            yield Finding("pointer", path, pointed, problem, REFUSE, why)
            return
    elif (
        any(c.version == pointed for c in undecided)
        or (contradiction := _contradiction(log, valid, pointed, content)) is None
    ):
        return
    else:
        problem = contradiction
        if independent_state(log, pointed) is None:
            why = "the checkpoint may have lost actions: restore it, or delete the pointer"
            yield Finding("pointer", path, pointed, problem, REFUSE, why)
            return
    is_last_record = pointed in {c.version for c in invalid} - versions
    yield _of_pointer(log, pointed, problem, newest, is_last_record=is_last_record)


def _is_written_since(log: Log, listing: LogListing, version: int) -> bool:
    """Whether a version has a checkpoint that another program wrote after the listing."""
    before = {c.version for c in listing.checkpoints}
    return version not in before and any(c.version == version for c in log.list_all().checkpoints)


def _of_pointer(
    log: Log,
    pointed: int | None,
    problem: str,
    newest: Checkpoint | None,
    *,
    is_last_record: bool,
) -> Finding:
    path = log.dialect.pointer_path
    if is_last_record:
        why = "it may be the last record of what its checkpoint had: restore that, or delete both"
        return Finding("pointer", path, pointed, problem, REFUSE, why)
    with suppress(*_DEPENDS):  # `diagnose_log` reports it
        if refused := LogSnapshot.open(log).read_state(_why_unwritable):
            return Finding("pointer", path, pointed, problem, REFUSE, refused)
    if newest is None:
        why = "no checkpoint was found; readers begin with the first commit"
        return Finding("pointer", path, pointed, problem, DELETE, why)
    if newest.layout not in log.dialect.layouts:
        why = f"lakelog does not write pointers to the layout {newest.layout}"
        return Finding("pointer", path, pointed, problem, REFUSE, why)
    why = "the pointer is only a hint, and the checkpoint that it will name is complete"
    return Finding("pointer", path, newest.version, problem, WRITE, why, checkpoint=newest)


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
    log: Log, listing: LogListing, invalid: Collection[Checkpoint], proved: Collection[int]
) -> Iterator[Finding]:
    """Compare the checksums of the latest version and of versions with checkpoints with the state.
    One that differs is written again if the checkpoint of its version is `proved`, or if it
    contradicts itself; otherwise it may be right, and a commit wrong.
    """
    if log.dialect.checksum_path(0) is None:
        return
    folder = log.dialect.log_folder
    entries = log.store.list_from(folder)
    names = [e.name for e in entries if len(e.name) == 24 and e.name.endswith(".crc")]
    recorded = {int(n[:20]) for n in names if n[:20].isascii() and n[:20].isdigit()}
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
        action, why = WRITE, "replay returns the correct values"
        if compared is None:
            problem = "it is damaged"
        else:
            wrong = compared.filter(~pl.col("agrees"))
            if not wrong.height:
                continue
            field, found, replayed = wrong.select("field", "recorded", "found").row(0)
            problem = f"it records {field} {found}, but replay returns {replayed}"
            recorded_body = log.dialect.version_checksum(log.store, version) or {}
            if version not in proved and not contradicts_itself(recorded_body):
                first = segment.checkpoint.version + 1 if segment.checkpoint else 0
                action, why = REFUSE, _why_checksum(first, version)
        if action == WRITE and (refused := _why_unwritable(state)):
            action, why = REFUSE, refused
        yield Finding("checksum", path, version, problem, action, why)


def _why_checksum(first: int, version: int) -> str:
    """The files of which one is damaged, if a checksum differs from replay."""
    commits = f"one of the commits {first} to {version}" if first <= version else "the checkpoint"
    return (
        f"either it or {commits} may be damaged; restore the damaged file from a copy, or "
        "delete the checksum if the rows are complete"
    )


def diagnose_records(refused: Iterable[LakelogError]) -> Iterator[Finding]:
    """The errors of live files that reading refuses because of what the log records of them."""
    for error in refused:
        why = error.hint or _COPY
        path = error.path or ""
        yield Finding("files", path, error.version, error.message, REFUSE, why, 1)


def diagnose_files(log: Log, listed: Listing, *, remove: bool) -> Iterator[Finding]:
    """Live files that do not exist or have another length, deletion vectors whose file does not
    exist or is too short for them, and how many files were not checked; ordered by kind.

    The listing may be older than the version: what they lack is looked up. Files outside of
    the table's folder are looked up if the log's `External` allows them.
    """
    snapshot = LogSnapshot.open(log)
    version = snapshot.version
    columns = ("path", "size", *_VECTOR_COLUMNS)
    files = snapshot.files().select(cs.by_name(columns, require_all=False)).collect()
    live = actions.conform(files, columns)  # IndexTables have no deletion vectors
    try:
        files_of_vectors = vector_paths(live)
    except InvalidActionError:  # `diagnose_records` reports it
        files_of_vectors = pl.Series([None] * live.height, dtype=pl.String)
    vectors = live.select(
        files_of_vectors.alias("path"), _VECTOR_END.alias("size"), pl.col("path").alias("of")
    ).drop_nulls("path")
    wanted = [
        live.select("path", "size", is_vector=pl.lit(value=False)),
        vectors.group_by("path").agg(pl.max("size"), is_vector=pl.lit(value=True)),
    ]
    deviating = _deviating(log, pl.concat(wanted), listed)
    is_unchecked = (pl.col("found") == _NOT_CHECKED).fill_null(value=False)
    unchecked, found = deviating.filter(is_unchecked), deviating.filter(~is_unchecked)
    is_denied = (pl.col("found") == _DENIED).fill_null(value=False)
    folder = pl.col("path").str.replace("[^/]*$", "")
    denied = found.filter(is_denied).group_by(folder.alias("folder"))
    for path, count in (
        denied.agg(pl.min("path"), pl.len()).sort("path").select("path", "len").rows()
    ):
        what = "the file was" if count == 1 else f"{count:,} files in it were"
        problem = f"its folder cannot be read, so {what} not checked"
        yield Finding("data-unreadable", path, version, problem, REFUSE, _WHY_DENIED, count)
    found = found.filter(~is_denied)
    data, short = found.filter(~pl.col("is_vector")), found.filter("is_vector")
    absent = data.filter(pl.col("found").is_null())
    missing = absent["path"]
    refused = _why_unremovable(snapshot) if remove and absent.height else None
    for path, is_reached in absent.select("path", "is_reached").rows():
        action, why = REFUSE, _WHY_MISSING
        if remove and refused is not None:
            why = refused
        elif remove:
            action, why = (REMOVE, _WHY_REMOVED) if is_reached else (REFUSE, _WHY_UNREACHED)
        yield Finding("data-missing", path, version, "a live file was not found", action, why, 1)
    for path, size, length in data.select("path", "size", "found").drop_nulls().rows():
        problem = f"a live file has {length:,} bytes, and the log records {size:,}"
        if not length:
            problem = f"a live file is empty, and the log records {size:,} bytes"
        yield Finding("data-length", path, version, problem, REFUSE, _WHY_UNREADABLE, 1)
    # Without its data file, a vector does not matter.
    used = vectors.filter(~pl.col("of").is_in(missing.implode()))["path"]
    short = short.filter(pl.col("path").is_in(used.implode()))
    for path in short.filter(pl.col("found").is_null())["path"]:
        problem = "the deletion vector of a live file was not found"
        yield Finding("vector-missing", path, version, problem, REFUSE, _WHY_KEPT, 1)
    for path, size, length in short.select("path", "size", "found").drop_nulls().rows():
        problem = (
            f"a file of deletion vectors has {length:,} bytes, and the vectors that the log "
            f"records in it need {size:,}"
        )
        yield Finding("vector-length", path, version, problem, REFUSE, _WHY_KEPT, 1)
    if unchecked.height:
        num_vectors = int(unchecked["is_vector"].sum())
        counts = {"live": unchecked.height - num_vectors, "deletion vector": num_vectors}
        texts = (
            f"{count:,} {what} file{'' if count == 1 else 's'}"
            for what, count in counts.items()
            if count
        )
        were = "was" if unchecked.height == 1 else "were"
        problem = f"{' and '.join(texts)} outside of the table's folder {were} not checked"
        yield Finding(
            "external-unchecked",
            unchecked["path"][0],
            version,
            problem,
            CHECK,
            _WHY_UNCHECKED,
            unchecked.height,
        )


def _why_unremovable(snapshot: LogSnapshot) -> str | None:
    """Why files cannot be removed from the table; None if they can."""
    kind, fields = ["remove"], ("dataChange", "extendedFileMetadata")
    sample = pl.DataFrame({"actionType": kind, "path": "-", **dict.fromkeys(fields, True)})
    table = snapshot.table_configuration
    try:
        check_writable(table, snapshot.path)
        check_actions(table, sample, pl.DataFrame(), snapshot.path)
    except LakelogError as error:
        return f"{error.message}: {error.found}"
    return None


def _deviating(log: Log, wanted: pl.DataFrame, listed: Listing) -> pl.DataFrame:
    """The files that do not exist, or not with the recorded ``size``, which vectors may exceed; and
    the length that was ``found``, or `_NOT_CHECKED`. A file that does not exist may be removed from
    the table if ``is_reached``. Sorted by path.
    """
    locator = FileLocator(log.allowed_locations, log.store)

    def length(path: str) -> int | None:
        try:
            entry = locator.stat(path)
        except ExternalPathError:
            return _NOT_CHECKED
        except UnavailableError as error:
            if is_denied(error):
                return _DENIED
            raise
        return None if entry is None else entry.size_bytes

    def list_folder(folder: str) -> _Folder:
        try:
            store, name = locator.locate(f"{folder}file")
        except ExternalPathError:
            return _Folder(folder, None, False, None)
        inside = name.removesuffix("file")
        if store is log.store:
            return _Folder(folder, inside, True, None)
        files = of_entries(store.list_from(inside.rstrip("/")))
        return _Folder(
            folder, folder, files.height > 0, files.with_columns(path=folder + pl.col("path"))
        )

    path, size, found = pl.col("path"), pl.col("size"), pl.col("found")
    # Some writers record 0 or -1 for an unknown size, which reading accepts.
    is_length = (found == size) | (size <= 0)
    agrees = pl.when("is_vector").then(found >= size).otherwise(is_length & (found > 0))
    differs = found.is_null() | ~agrees.fill_null(value=True)
    wanted = wanted.with_columns(folder=path.str.extract(_ABSOLUTE_FOLDER))
    with Pool(_THREADS, thread_name_prefix="lakelog-repair") as pool:
        folders = list(pool.map(list_folder, wanted["folder"].drop_nulls().unique()))
        outside = [each.files for each in folders if each.files is not None]
        entries = pl.concat([listed.files, *outside]).select("path", found="size_bytes")
        known = pl.DataFrame([each[:3] for each in folders], schema=_FOLDERS, orient="row")
        name = pl.col("prefix") + path.str.strip_prefix(pl.col("folder"))
        doubtful = (
            wanted.join(known, on="folder", how="left")
            .with_columns(pl.col("is_reached").fill_null(value=True), name=name.fill_null(path))
            .join(entries.unique("path", keep="last"), left_on="name", right_on="path", how="left")
            .filter(differs)
            .sort("path")
        )
        if doubtful.height:
            dangling = [link.name for link in listed.links if not link.exists]
            is_lost = inside(doubtful["name"], [each for each in dangling if is_unicode(each)])
            doubtful = doubtful.with_columns(pl.col("is_reached") & ~is_lost)
        is_closed = pl.col("folder").is_not_null() & pl.col("prefix").is_null()
        closed = doubtful.filter(is_closed).with_columns(found=pl.lit(_NOT_CHECKED, pl.Int64))
        doubtful = doubtful.filter(~is_closed)
        lengths = pl.Series(list(pool.map(length, doubtful["path"])), dtype=pl.Int64)
    still = differs | found.is_in([_NOT_CHECKED, _DENIED])
    return pl.concat([doubtful.with_columns(found=lengths).filter(still), closed]).sort("path")


class _Folder(NamedTuple):
    """A folder of absolute paths in the log. `prefix`: of its files in the listings, None if it may
    not be opened; `is_reached`: a file that it lacks does not exist; `files`: of an external one.
    """

    folder: str
    prefix: str | None
    is_reached: bool
    files: pl.DataFrame | None


_FOLDERS = {"folder": pl.String(), "prefix": pl.String(), "is_reached": pl.Boolean()}
