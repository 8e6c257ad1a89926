"""Opens a version of a log as a state, replaces broken checkpoints, and updates states."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import polars as pl

from lakelog import telemetry
from lakelog.dialects.log_content import (
    Checkpoint,
    CommitFile,
    LogListing,
    RecordMismatchError,
    cause_text,
)
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    CheckpointCorruptionError,
    CorruptionError,
    LakelogWarning,
    LogGapError,
    NotFoundError,
    UnsupportedError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakelog.log.base_checkpoint import Base
from lakelog.log.context import Log, list_again
from lakelog.log.repeated_files import resolve_repeated_files
from lakelog.log.replay import Layers, reconcile_meta
from lakelog.log.segment import LogSegment, choose_segment
from lakelog.log.state import Past, State
from lakelog.model import actions
from lakelog.model.metadata import last_metadata, last_protocol

_T = TypeVar("_T")


def open_state(log: Log, version: int | None = None) -> State:
    """The state of a version (None: latest), read now if cheap; lists again after a cleanup."""
    segment: LogSegment | None = None

    def attempt() -> State:
        nonlocal segment
        segment = None
        listing, segment = choose(log, version, hint=version is None)
        return open_segment(log, segment, listing.notes)

    return list_again(
        attempt, lambda error: segment is not None and is_outdated(log, segment, error)
    )


def latest_configuration(log: Log) -> TableConfiguration:
    """Protocol and metadata of the latest version, also if lakelog cannot read the table."""
    listing, segment = choose(log, None, hint=True)
    return State.of(log, segment, listing.notes).stated_configuration


def stamped_from(log: Log) -> int | None:
    """`Metadata.stamped_from` of the latest version; 0 if that is damaged, because an in-commit
    timestamp is more exact than a file time.
    """
    try:
        return latest_configuration(log).metadata.stamped_from
    except (CorruptionError, NotFoundError):
        return 0


def reopened(state: State, error: CorruptionError | NotFoundError, *, may_list: bool) -> State:
    """Another state of the version after reading `state` failed: from a new listing if files were
    removed and `may_list`, else without the damaged checkpoint; otherwise raises `error`.
    """
    if may_list and is_outdated(state.log, state.segment, error):
        return open_state(state.log, state.version)
    if isinstance(error, CheckpointCorruptionError) and state.base is not None:
        return fall_back(state, error)
    raise error


def is_outdated(log: Log, segment: LogSegment, error: BaseException) -> bool:
    """Whether files are missing because of cleanup; those of a listed checkpoint are damaged."""
    # An error can be its own cause, because `fall_back` raises such errors again.
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__
    return any(isinstance(each, FileNotFoundError) for each in causes) and has_lost_files(
        log, segment
    )


def has_lost_files(log: Log, segment: LogSegment) -> bool:
    """Whether the log no longer lists all files that were chosen for a version."""
    there = _log_paths(log.list_all())
    chosen = [c.path for c in segment.commits] + [c.path for c in segment.compactions]
    if segment.checkpoint is not None:
        chosen += segment.checkpoint.paths
    return not there.issuperset(chosen)


def _log_paths(listing: LogListing) -> set[str]:
    """Paths of the files of a listing that a version may depend on."""
    paths = {path for c in listing.checkpoints for path in c.paths}
    paths.update(c.path for c in listing.commits)
    paths.update(c.path for c in listing.compactions)
    return paths


def with_stable_listing(
    log: Log, read: Callable[[LogListing], _T], is_final: Callable[[_T], bool] = lambda _: True
) -> _T:
    """Call `read` with a listing of the whole log; again, a limited number of times, if cleanup
    deleted listed files and `read` failed or its result is not final.
    """
    listed: set[str] = set()

    def attempt() -> _T:
        nonlocal listed
        listing = log.list_all()
        listed = _log_paths(listing)
        return read(listing)

    def is_outdated() -> bool:
        return not listed <= _log_paths(log.list_all())

    return list_again(
        attempt,
        lambda _: is_outdated(),
        is_final=lambda found: is_final(found) or not is_outdated(),
    )


def choose(log: Log, version: int | None, *, hint: bool) -> tuple[LogListing, LogSegment]:
    """List the log, and choose the files for a version (None: the latest)."""
    listing = log.list_latest() if hint else log.list_all()
    try:
        return listing, choose_segment(listing, version, table=log.table)
    except LogGapError:
        if not hint:
            raise
    # The pointer may be too new, so that the listing begins too late: list the whole log.
    whole = log.list_all()
    return replace(whole, notes=listing.notes), choose_segment(whole, version, table=log.table)


def open_segment(
    log: Log, segment: LogSegment, notes: tuple[str, ...] = (), base: Base | None = None
) -> State:
    """The state of these files; read immediately if that is cheap."""
    source = "json" if segment.checkpoint is None else "checkpoint"
    facts = {"source": source, "format": log.dialect.name, "stage": "open"}
    commits = len(segment.commits)
    own = {"path": log.table, "version": segment.version, "commits": commits}
    with telemetry.span("load", **own, **facts) as work:
        if base is None:
            state = State.of(log, segment, notes)
        else:
            state = State(log, segment, base, None, segment.commits, notes)
        try:
            if state.is_cheap:
                state.ensure_readable()
        except CheckpointCorruptionError as error:
            if is_outdated(log, segment, error):
                raise
            state = fall_back(state, error)
            work.set(passed_over=error.path)
    telemetry.record("load.duration", work.seconds, "s", **facts)
    return state


def fall_back(state: State, error: CheckpointCorruptionError) -> State:
    """The version without its damaged checkpoint, or with it if its repeated files can be
    decided.

    Older files are used only if commits are contiguous from 0 or from an older complete checkpoint,
    give the table id of each damaged checkpoint that has a readable one, and have protocols that
    can be read. Otherwise a truncated or dropped table could reappear.
    """
    settled = None if state.settled.height else resolve_repeated_files(state)
    if settled is not None:
        warnings.warn(settled.note, LakelogWarning, stacklevel=2)
        past = state.past
        if past is not None:
            past = replace(past, layers=Layers((*settled.layers.frames, *past.layers.frames)))
        notes = (*state.notes, settled.note)
        return replace(state, past=past, notes=notes, settled=settled.layers)
    listing = state.log.list_all()
    excluded = state.excluded
    broken = error.__cause__
    accepted = _despite_records(state, error) or state.last_resort
    damaged: list[Base] = []
    while True:
        assert state.segment.checkpoint is not None
        assert state.base is not None
        damaged.append(state.base)
        # Checkpoints found broken earlier remain excluded; otherwise two of them would alternate
        # forever.
        excluded = (*excluded, state.segment.checkpoint)
        try:
            segment = choose_segment(
                listing, state.version, table=state.log.table, excluded=excluded
            )
        except VersionNotFoundError as gap:
            if accepted is not None:
                return _warned(accepted)
            error.hint = (
                f"older files cannot rebuild this version ({gap.found}); restore the checkpoint"
            )
            raise error from broken
        note = (
            f"the checkpoint {excluded[-1].paths[0]} was ignored (see lakelog repair): "
            f"{cause_text(error.message)}"
        )
        candidate = State.of(state.log, segment, (*state.notes, note), excluded)
        candidate = replace(candidate, last_resort=accepted)  # other files of it may be damaged
        try:
            candidate.ensure_readable()
            refused = unreadable_protocol(candidate)
        except CheckpointCorruptionError as another:
            state, broken = candidate, another
            continue
        ids = next(filter(None, (other_table_ids(candidate, base) for base in damaged)), None)
        if ids is not None or refused is not None:
            if accepted is not None:
                return _warned(accepted)
            what = f"belong to another table ({ids})"
            if refused is not None:
                what = f"are of a protocol that lakelog cannot replay ({refused})"
            error.hint = f"the older files {what}; restore the checkpoint"
            raise error from broken
        warnings.warn(note, LakelogWarning, stacklevel=2)
        return candidate


def _despite_records(state: State, error: CheckpointCorruptionError) -> State | None:
    """The state to use if older files decide nothing and only a hint contradicts the checkpoint."""
    cause = error.__cause__
    if not isinstance(cause, RecordMismatchError) or cause.accepted is None:
        return None
    note = (
        f"{cause_text(error.message)} (expected {error.expected}, found {error.found}); the "
        "checkpoint is used"
    )
    segment = replace(state.segment, checkpoint=cause.accepted)
    return State.of(state.log, segment, (*state.notes, note), state.excluded)


def _warned(state: State) -> State:
    warnings.warn(state.notes[-1], LakelogWarning, stacklevel=4)
    return state


def other_table_ids(replayed: State, base: Base) -> str | None:
    """The ids that show that the files of a replay, or the checkpoint that it starts from, are
    another table's: an id by replay differs from that of a checkpoint of the version. None if they
    are equal, or cannot be compared.

    An id that commits change proves nothing: ``CREATE OR REPLACE TABLE`` does, and the last
    metaData is the table's.
    """
    rows = actions.conform(_all_of(replayed, "metaData"), ("metadataId",))
    ids = set(rows["metadataId"].to_list())
    try:
        own = last_metadata(base.pair)
    except (CorruptionError, NotFoundError, UnsupportedError):
        own = None
    if own is not None:
        if ids == {own.id}:
            return None
        found = last_metadata(_all_of(_earlier(replayed, base.checkpoint.version), "metaData"))
        if found is None or found.id != own.id:
            there = None if found is None else found.id
            return f"id {there} in version {base.checkpoint.version}, not {own.id}"
    if replayed.base is None:
        return None
    below, excluded = replayed.base, (*replayed.excluded, replayed.base.checkpoint)
    try:
        older = choose_segment(replayed.log.list_all(), below.checkpoint.version, excluded=excluded)
        return other_table_ids(State.of(replayed.log, older, (), excluded), below)
    except (CorruptionError, NotFoundError):
        return None


def _earlier(state: State, version: int) -> State:
    """The state of a version between the checkpoint and the version of another state."""
    segment = state.segment
    if version == segment.version:
        return state
    commits = tuple(c for c in segment.commits if c.version <= version)
    return State.of(state.log, LogSegment(version, segment.checkpoint, commits))


def unreadable_protocol(state: State) -> str | None:
    """Why a protocol in the state's files cannot be read, or None. A feature that was dropped may
    give earlier commits a meaning that only later checkpoints record (Delta protocol, Checkpoint
    Protection).
    """
    try:
        state.log.check_protocols(_all_of(state, "protocol"))
    except UnsupportedFeatureError as error:
        return error.message
    return None


def _all_of(state: State, kind: str) -> pl.DataFrame:
    base = [state.base.pair] if state.base is not None else []
    return actions.of_type(actions.concat([*base, *(p.meta for p in state.meta_parts)]), kind)


def update_state(state: State, version: int | None = None) -> State:
    """The state of a later version (None: the latest) by the commits between, or opened again, also
    if the log was replaced: then it may be a lower version.
    """
    if state.base is not None and state.base.checkpoint.layout == "avro-state":
        # Skips that apply to a state may have any version, also a lower one.
        return open_state(state.log, version)
    listing = state.log.list_since(state.version)
    if not _is_listed(state.segment, listing):
        return open_state(state.log, version)
    commits = [
        c
        for c in listing.commits
        if c.version > state.version and (version is None or c.version <= version)
    ]
    found = max(
        [state.version, *(c.version for c in commits), *(c.version for c in listing.checkpoints)]
    )
    target = found if version is None else version
    if target == state.version:
        return state
    run = [c for n, c in enumerate(commits, state.version + 1) if c.version == n]
    later = [c for c in listing.checkpoints if state.version < c.version <= target]
    if not run or run[-1].version != target or any(c.layout == "avro-state" for c in later):
        return open_state(state.log, version)
    has_checksum = target in listing.checksums
    known = (*state.segment.commits, *run)
    segment = LogSegment(target, state.segment.checkpoint, known, has_checksum=has_checksum)
    updated = replace(state, segment=segment, past=_past(state), new_commits=tuple(run))
    try:
        updated.ensure_readable()
        agrees = not later or _agrees(updated, later[-1])
    except (CorruptionError, NotFoundError) as error:
        used = [segment, *(LogSegment(c.version, c, ()) for c in later[-1:])]
        if not any(is_outdated(state.log, each, error) for each in used):
            raise
        agrees = False
    return updated if agrees else open_state(state.log, version)


def _is_listed(segment: LogSegment, listing: LogListing) -> bool:
    """Whether a log still has the last commit of a segment, or its checkpoint if that replaced it.
    A table that was deleted and created again, or restored, has commits of the same names.
    """
    listed = next((c for c in listing.commits if c.version == segment.version), None)
    if listed is not None or segment.last_commit is not None:
        return listed == segment.last_commit
    checkpoints = ((c, c.sizes_bytes) for c in listing.checkpoints)
    own = segment.checkpoint
    return own is not None and (own, own.sizes_bytes) in checkpoints


def extend_state(
    state: State, commits: Sequence[CommitFile], *, has_checksum: bool = False
) -> State:
    """The state of a later version whose commits are known; reads nothing until it is used. Without
    commits, the same version, whose checksum has appeared or was deleted.
    """
    before = state.segment
    if not commits:
        if has_checksum == before.has_checksum:
            return state
        same = replace(state, segment=replace(before, has_checksum=has_checksum))
        vars(same).update({name: vars(state)[name] for name in _DECODED if name in vars(state)})
        return same
    is_decoded = "tail" in vars(state)
    segment = replace(
        before,
        version=commits[-1].version,
        commits=(*before.commits, *commits),
        compactions=() if is_decoded else before.compactions,
        has_checksum=has_checksum,
    )
    if is_decoded:
        return replace(state, segment=segment, past=_past(state), new_commits=tuple(commits))
    return replace(state, segment=segment, new_commits=(*state.new_commits, *commits))


_DECODED = ("tail", "layers", "tail_meta", "meta_parts")
"""Cached properties of a state with what was read from its commits."""


def _past(state: State) -> Past:
    """The parts of a decoded state that a later state reuses."""
    before = state.past
    return Past(
        state.layers,
        state.tail_meta,
        (*(before.compactions if before else ()), *state.tail.compactions),
        (*(before.commits if before else ()), *state.tail.commits),
        (*(before.warnings if before else ()), *state.tail.warnings),
        state.commits_may_be_cut,
    )


def _agrees(state: State, checkpoint: Checkpoint) -> bool:
    """Whether a later checkpoint has the protocol and metadata of an update. If a table was
    overwritten, its checkpoint differs from its commits, and readers start from the checkpoint.
    """
    base = Base(state.log.dialect.open_checkpoint(state.log.store, checkpoint))
    try:
        theirs = base.pair
    except CheckpointCorruptionError:
        return True  # a process that starts from it ignores it
    own = actions.concat(part.meta for part in state.meta_parts)
    if "version" in own.columns:
        own = own.filter(pl.col("version") <= checkpoint.version)
    past = [state.past.meta] if state.past is not None else []
    under = [state.base.pair] if state.base is not None else []
    ours = reconcile_meta([*under, *past, own])
    for last in (last_protocol, last_metadata):
        our_last, other = last(ours), last(theirs)
        if other is None or (our_last is not None and our_last != other):
            return False
    return True
