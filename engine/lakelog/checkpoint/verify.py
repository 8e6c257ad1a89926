"""Verifies an existing checkpoint: reads it completely and compares it with a replay that does not
use it.

===============  ===================================================================================
verdict          meaning
===============  ===================================================================================
``proved``       an older checkpoint and the commits above it, or all commits, give the same state
``unprovable``   it is readable and consistent, but the files to replay it from do not exist, or
                 the commits below are another table's
``wrong``        replay gives another state; `VerifyReport.differences` names files
``broken``       it cannot be read, or contradicts itself
===============  ===================================================================================

Both sides are compared as of now, or as of the checkpoint's own time if that is in the future:
tombstones and transaction identifiers that have expired by then are omitted from both. Only the key
and the time of tombstones are compared, which vacuum reads. Statistics that were encoded again are
compared as typed values; a checkpoint without statistics is noted.

The replay may start from an older checkpoint, which is not verified in turn.

Source: Delta protocol, Action Reconciliation; Checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from lakelog import telemetry
from lakelog.checkpoint.bounded_memory import prefetch
from lakelog.checkpoint.compare import (
    Comparison,
    find_differences,
    no_differences,
    with_protocol,
)
from lakelog.checkpoint.evidence import contradiction, is_refuted
from lakelog.checkpoint.state_source import StateSource
from lakelog.dialects.digest import Digest, digest
from lakelog.dialects.log_content import STRUCT_STATISTICS, Checkpoint, LogListing
from lakelog.display import Displayed
from lakelog.errors import (
    CheckpointCorruptionError,
    CheckpointValidationError,
    CorruptionError,
    LakelogError,
    LogGapError,
    NotFoundError,
    TableNotFoundError,
    VersionNotFoundError,
)
from lakelog.log.context import Log
from lakelog.log.files import file_columns, tombstone_columns
from lakelog.log.opening import (
    fall_back,
    other_table_ids,
    unreadable_protocol,
    with_stable_listing,
)
from lakelog.log.segment import LogSegment, choose_segment
from lakelog.log.state import State
from lakelog.model import actions
from lakelog.model.metadata import honoured_mapping

_STATISTICS = ("stats", STRUCT_STATISTICS)
_TOMBSTONE = ("path", "dvStorageType", "dvPathOrInline", "dvOffset", "deletionTimestamp")
_ORIGIN = frozenset(("version", "position", "timestamp"))
_MOST_DIFFERENCES = 100
_UNDECIDED = (
    "may be damaged; restore the damaged file from a copy, or, if the commits are right, move the "
    "checkpoint out of the log folder"
)


@dataclass(frozen=True)
class VerifyReport(Displayed):
    """Result of verifying a checkpoint.

    Attributes:
        checkpoint: The checkpoint.
        verdict: ``proved``, ``unprovable``, ``wrong`` or ``broken``.
        reason: Why it was not proved, or a note about the comparison; else None.
        files: Paths of its files, relative to the table root.
        replayed: Paths of the files that were replayed; empty without a replay.
        expected: Digest of the replayed state.
        found: Digest of the checkpoint's content.
        doubt: The commits that may be damaged instead of a ``wrong`` checkpoint, where nothing
            decides which; None if a record of the version proves that the checkpoint is wrong.
        differences: The first 100 file actions on one side only: ``side`` (``missing``: not in the
            checkpoint; ``unexpected``: only in the checkpoint), ``actionType``, ``path``, ``dvId``.
        error: The error of reading it, if ``broken``; or of the files to replay it from, if
            ``unprovable`` because they are damaged.
        seconds: Duration in seconds.
    """

    _title = "Verification of a checkpoint"

    checkpoint: Checkpoint
    verdict: str
    reason: str | None = None
    files: tuple[str, ...] = ()
    replayed: tuple[str, ...] = field(default=(), repr=False)
    expected: Digest = field(default_factory=Digest, repr=False)
    found: Digest = field(default_factory=Digest, repr=False)
    doubt: str | None = None
    differences: pl.DataFrame = field(default_factory=no_differences, repr=False, compare=False)
    error: LakelogError | None = field(default=None, repr=False, compare=False)
    seconds: float = 0.0

    @property
    def version(self) -> int:
        """Version of the checkpoint."""
        return self.checkpoint.version

    @property
    def layout(self) -> str:
        """Layout of the checkpoint."""
        return self.checkpoint.layout

    @property
    def is_proved(self) -> bool:
        """Whether replay without it returns the same state."""
        return self.verdict == "proved"

    def raise_for_verdict(self, *, unprovable: bool = False) -> None:
        """Raise an error unless the checkpoint was proved.

        Args:
            unprovable: Whether ``unprovable`` raises too.

        Raises:
            CheckpointCorruptionError: The verdict is ``broken``.
            CheckpointValidationError: The verdict is ``wrong``; or ``unprovable``, if requested.
        """
        path = self.checkpoint.paths[0]
        if self.verdict == "broken":
            raise CheckpointCorruptionError(
                f"the checkpoint of version {self.version} is broken: {self.reason}",
                path=path,
                version=self.version,
                hint="run t.repair()",
            ) from self.error
        if self.verdict == "wrong" or (unprovable and self.verdict == "unprovable"):
            raise CheckpointValidationError(
                f"the checkpoint of version {self.version} is {self.verdict}: {self.reason}",
                path=path,
                version=self.version,
                expected=_counts(self.expected),
                found=_counts(self.found),
                hint=self.doubt or ("repair the table" if self.verdict == "wrong" else None),
            )

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        facts = [
            ("version", str(self.version)),
            ("layout", self.layout),
            ("verdict", self.verdict),
            ("holds", _counts(self.found)),
        ]
        if self.verdict == "wrong":
            facts.append(("replay gives", _counts(self.expected)))
        if self.reason is not None:
            facts.append(("reason", self.reason))
        if self.doubt is not None:
            facts.append(("undecided", self.doubt))
        facts += [
            (row["side"], f"{row['actionType']} {row['path']}")
            for row in self.differences.head(5).iter_rows(named=True)
        ]
        if self.replayed:
            facts.append(("replayed", f"{len(self.replayed)} files"))
        return [*facts, ("took", f"{self.seconds:.2f} s")]


def _counts(held: Digest) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(held.counts.items())) or "nothing"


def verify_checkpoint(
    log: Log, version: int | None = None, *, memory_limit: int | None = None
) -> VerifyReport:
    """Verify a version's checkpoint (None: newest), again after a cleanup; see `Table.verify`."""
    return with_stable_listing(
        log,
        lambda listing: verify_one(log, _in_use(log, listing, version), memory_limit),
        lambda report: report.verdict in {"proved", "wrong"},
    )


def _in_use(log: Log, listing: LogListing, version: int | None) -> Checkpoint:
    there = [c for c in listing.checkpoints if version is None or c.version == version]
    if not there:
        raise NotFoundError(
            "no complete checkpoint was found" + ("" if version is None else " of that version"),
            path=log.table,
            version=version,
            expected=", ".join(str(v) for v in sorted({c.version for c in listing.checkpoints}))
            or None,
            hint="write one with Table.checkpoint, or the command lakelog checkpoint",
        )
    return there[-1]


def verify_one(
    log: Log,
    checkpoint: Checkpoint,
    memory_limit: int | None = None,
    excluded: Collection[Checkpoint] = (),
) -> VerifyReport:
    """Verify one listed checkpoint, without using the `excluded`; errors as `verify_checkpoint`."""
    begin = time.perf_counter()
    # The verification is a replay, and shows which files differ; recorded counts are not needed.
    checkpoint = checkpoint.without_records()
    with telemetry.span("checkpoint.verify", path=log.table, version=checkpoint.version) as span:
        # Tombstones that had expired when it was written are not in it, even if the clock was set
        # back since.
        file = log.store.stat(checkpoint.paths[0])
        now_ms = max(log.clock(), file.modified_ms if file is not None else 0)
        report = _Proof(log, checkpoint, memory_limit, now_ms, tuple(excluded)).run()
        span.set(verdict=report.verdict)
    report = replace(report, seconds=time.perf_counter() - begin)
    telemetry.event(
        "checkpoint.verified",
        path=log.table,
        version=report.version,
        layout=report.layout,
        verdict=report.verdict,
        reason=report.reason,
        seconds=report.seconds,
    )
    return report


def independent_state(
    log: Log, version: int, excluded: Collection[Checkpoint] = (), *, at: int | None = None
) -> State | None:
    """The state of a version, or of the earlier version `at`, from older files than its
    checkpoints, without the `excluded`; None if commits are missing.
    """
    listing = log.list_all()
    barred = tuple(c for c in listing.checkpoints if c.version >= version or c in excluded)
    try:
        segment = choose_segment(
            listing, version if at is None else at, table=log.table, excluded=barred
        )
    except (VersionNotFoundError, LogGapError, TableNotFoundError):
        return None
    return State.of(log, segment, listing.notes, barred)


@dataclass(frozen=True)
class _Side:
    """Digests of one side, with and without statistics, and the columns of adds with values."""

    whole: Digest
    bare: Digest
    columns: frozenset[str]

    def only(self, kinds: Collection[str]) -> _Side:
        """The same for some action types."""
        return _Side(self.whole.only(kinds), self.bare.only(kinds), self.columns)


@dataclass(frozen=True)
class _Proof:
    log: Log
    checkpoint: Checkpoint
    memory_limit: int | None
    now_ms: int
    excluded: tuple[Checkpoint, ...] = ()

    def run(self) -> VerifyReport:
        report = VerifyReport(self.checkpoint, "broken")
        own = State.of(self.log, LogSegment(self.checkpoint.version, self.checkpoint, ()))
        try:
            comparison = self._comparison(own)
            found = self._side(own, comparison)
            report = replace(report, files=self._files_of(own), found=found.whole)
        except (CorruptionError, NotFoundError) as error:
            return replace(report, reason=error.message, error=error)
        other = independent_state(self.log, self.checkpoint.version, self.excluded)
        if other is None:
            if (lost := self._lost_files(own)) is not None:
                return replace(report, verdict="wrong", reason=lost[0], doubt=lost[1])
            return replace(
                report,
                verdict="unprovable",
                reason="commits that are needed to replay the checkpoint are missing",
            )
        while True:
            try:
                assert own.base is not None
                if (ids := other_table_ids(other, own.base)) is not None:
                    # The folder was written over: readers start from the checkpoint.
                    reason = f"the commits below belong to another table ({ids})"
                    return replace(report, verdict="unprovable", reason=reason)
                if (refused := unreadable_protocol(other)) is not None:
                    reason = (
                        f"the commits below are of a protocol that lakelog cannot replay: {refused}"
                    )
                    return replace(report, verdict="unprovable", reason=reason)
                expected = self._side(other, comparison)
                replayed = other.provenance.files
                break
            except CheckpointCorruptionError as error:
                if other.base is None:
                    return replace(report, verdict="unprovable", reason=error.message)
                try:
                    other = fall_back(other, error)
                except LakelogError as failure:
                    return replace(report, verdict="unprovable", reason=failure.message)
            except (CorruptionError, NotFoundError) as error:
                return replace(
                    report,
                    verdict="unprovable",
                    reason=f"the files that are needed to replay it are damaged: {error.message}",
                    error=error,
                )
        report = replace(report, expected=expected.whole, replayed=replayed)
        return self._verdict(report, comparison, (own, found), (other, expected))

    def _verdict(
        self,
        report: VerifyReport,
        comparison: Comparison,
        own: tuple[State, _Side],
        other: tuple[State, _Side],
    ) -> VerifyReport:
        found, expected = own[1], other[1]
        note = None
        if self._keeps_no_tombstones(found.whole):
            kinds = (set(expected.whole.counts) | set(found.whole.counts)) - {"remove"}
            if "remove" in expected.whole.counts:
                note = (
                    "it has no tombstones, because the reference implementation's writer keeps none"
                )
            expected = expected.only(kinds)
        difference = self.log.dialect.checkpoint_difference(
            own[0].table_configuration, other[0].table_configuration
        )
        if difference.wrong is not None:
            return self._weighed(report, difference.wrong, own, other)
        if difference.ignored:
            note = difference.note
            kinds = {*found.whole.counts, *expected.whole.counts} - difference.ignored
            found, expected = found.only(kinds), expected.only(kinds)
        if found.whole == expected.whole:
            return replace(report, verdict="proved", reason=note)
        if found.bare == expected.bare:
            if not found.columns & {*_STATISTICS}:
                return replace(report, verdict="proved", reason="it has no statistics")
            typed = replace(comparison, typed=True, kept=self._kept_statistics(own[0], comparison))
            if self._digest(own[0], typed) == self._digest(other[0], typed):
                reason = "statistics are encoded differently, with equal values"
                return replace(report, verdict="proved", reason=reason)
            reason, shown = "statistics differ", typed
        else:
            bare = _without_statistics(comparison)
            reason, shown = self._reason(expected.bare, found.bare, own, other, bare), bare
        rows = find_differences(
            shown,
            lambda: self._files(other[0], shown),
            lambda: self._files(own[0], shown),
            _MOST_DIFFERENCES,
        )
        return self._weighed(replace(report, differences=rows), reason, own, other)

    def _weighed(
        self,
        report: VerifyReport,
        reason: str,
        own: tuple[State, _Side],
        other: tuple[State, _Side],
    ) -> VerifyReport:
        """The report of a difference from replay; records may decide which side is wrong."""
        report = replace(report, verdict="wrong", reason=reason)
        sides = [(state, side.whole) for state, side in (own, other)]
        if is_refuted(self.log, self.checkpoint, sides[0], sides[1]):
            return report
        segment = other[0].segment
        first = segment.checkpoint.version + 1 if segment.checkpoint is not None else 0
        found = contradiction(other[0])
        commits = _commits(first, segment.version) + (f" ({found})" if found else "")
        return replace(report, doubt=f"either the checkpoint or {commits} {_UNDECIDED}")

    def _lost_files(self, own: State) -> tuple[str, str] | None:
        """The difference from the last commit of a checkpoint above it, and what helps; None if
        commits that are missing may explain it: files that they removed are tombstones, if the
        dialect's checkpoints keep those.
        """
        if not self.log.dialect.checkpoints_keep_tombstones:
            return None
        listing = self.log.list_all()
        last = listing.commits[-1].version if listing.commits else self.checkpoint.version
        if last >= self.checkpoint.version:
            return None
        below = independent_state(self.log, last + 1, self.excluded, at=last)
        try:
            if below is None or below.metadata.id != own.metadata.id:
                return None
            live = self._paths(below, ("add",))
            lost = live.join(self._paths(own, ("add", "remove")), on="path", how="anti").height
        except LakelogError:
            return None
        if not lost:
            return None
        missing = _commits(last + 1, self.checkpoint.version)
        reason = (
            f"files that are live in version {last} are neither live nor removed in it "
            f"({lost:,}), and {missing} cannot be found"
        )
        return reason, f"move the checkpoint out of the log folder, or restore {missing}"

    def _paths(self, state: State, kinds: Collection[str]) -> pl.DataFrame:
        with StateSource(state, memory_limit=self.memory_limit, now_ms=0) as source:
            frames = [
                frame.select("path")
                for frame in source.files(("path",))
                if frame["actionType"][0] in kinds
            ]
        return pl.concat([pl.DataFrame(schema={"path": pl.String}), *frames])

    def _kept_statistics(self, own: State, comparison: Comparison) -> pl.DataType | None:
        """Type of the checkpoint's typed statistics, if it has no others."""
        for frame in self._files(own, comparison):
            if STRUCT_STATISTICS in frame.columns:
                texts = actions.conform(frame, ("stats",)).to_series()
                return frame.schema[STRUCT_STATISTICS] if texts.null_count() == len(texts) else None
        return None

    def _reason(
        self,
        expected: Digest,
        found: Digest,
        own: tuple[State, _Side],
        other: tuple[State, _Side],
        comparison: Comparison,
    ) -> str:
        """The differences by action type, and by column if the number of adds is equal."""
        differences = expected.differences(found)
        problems = [
            f"{d.found} {d.action_type} where replay gives {d.expected}"
            for d in differences
            if d.expected != d.found
        ]
        changed = [d.action_type for d in differences if d.expected == d.found]
        for kind in changed:
            columns = ""
            if kind == "add":
                wrong = self._columns_that_differ(own[0], other[0], comparison)
                columns = f" in {', '.join(wrong)}" if wrong else ""
            problems.append(f"{kind} differs{columns}")
        return "; ".join(problems)

    def _columns_that_differ(self, own: State, other: State, comparison: Comparison) -> list[str]:
        """The columns of adds that differ per file, or, if the files differ, in all files."""
        key = _TOMBSTONE[:4]
        counted = [c for c in comparison.counted["add"] if c not in actions.KEY]
        groups: list[tuple[str, ...]] = [(*key, column) for column in counted]
        if self._groups_that_differ(own, other, comparison, [key]):
            groups = [(column,) for column in ("path", *counted)]
        return [each[-1] for each in self._groups_that_differ(own, other, comparison, groups)]

    def _groups_that_differ(
        self,
        own: State,
        other: State,
        comparison: Comparison,
        groups: Sequence[tuple[str, ...]],
    ) -> list[tuple[str, ...]]:
        """The groups of columns in which the adds of two states differ."""
        sums: list[dict[tuple[str, ...], Digest]] = []
        for state in (own, other):
            total = dict.fromkeys(groups, Digest())
            for frame in self._files(state, comparison):
                if frame["actionType"][0] == "add":
                    rows = comparison.prepared(frame)
                    for columns in groups:
                        total[columns] += digest(rows, columns)
            sums.append(total)
        return [columns for columns in groups if sums[0][columns] != sums[1][columns]]

    def _keeps_no_tombstones(self, found: Digest) -> bool:
        return not self.log.dialect.checkpoints_keep_tombstones and "remove" not in found.counts

    def _files_of(self, own: State) -> tuple[str, ...]:
        """Its files, with sidecars, without the commits that a JSON checkpoint's reader needs."""
        if not self.log.dialect.checkpoints_are_complete or own.base is None:
            return self.checkpoint.paths
        return own.base.files

    def _comparison(self, state: State) -> Comparison:
        dialect = self.log.dialect
        columns = dict.fromkeys((*file_columns(dialect), *tombstone_columns(dialect)))
        if not dialect.map_statistics:
            columns |= dict.fromkeys(_STATISTICS)
        kept = tuple(c for c in columns if c not in _ORIGIN)
        mapping = "none"
        if "columnMapping" in dialect.protocol_rules.features:
            mapping = honoured_mapping(state.protocol, state.metadata)
        return Comparison(
            dialect,
            kept,
            state.metadata.schema,
            mapping,
            tombstone=_TOMBSTONE,
            empty_tags=False,
            alike=True,
        )

    def _source(self, state: State) -> StateSource:
        return StateSource(state, memory_limit=self.memory_limit, now_ms=self.now_ms)

    def _side(self, state: State, comparison: Comparison) -> _Side:
        bare = _without_statistics(comparison)
        with self._source(state) as source:
            meta = comparison.digest(with_protocol(source.meta, self.log.dialect.default_protocol))
            whole, without = meta, meta
            columns: set[str] = set()

            def hashed() -> Iterable[tuple[frozenset[str], Digest, Digest]]:
                for frame in source.files(comparison.columns):
                    there = frozenset(
                        s.name for s in frame.get_columns() if s.null_count() < s.len()
                    )
                    yield there, comparison.digest(frame), bare.digest(frame)

            for there, each, each_bare in prefetch(hashed()):
                columns |= there
                whole += each
                without += each_bare
        return _Side(whole, without, frozenset(columns))

    def _digest(self, state: State, comparison: Comparison) -> Digest:
        total = Digest()
        for each in prefetch(comparison.digest(f) for f in self._files(state, comparison)):
            total += each
        return total

    def _files(self, state: State, comparison: Comparison) -> Iterable[pl.DataFrame]:
        with self._source(state) as source:
            yield from source.files(comparison.columns)


def _commits(first: int, last: int) -> str:
    return f"commit {first}" if first == last else f"commits {first} to {last}"


def _without_statistics(comparison: Comparison) -> Comparison:
    kept = tuple(c for c in comparison.columns if c not in _STATISTICS)
    return replace(comparison, columns=kept)
