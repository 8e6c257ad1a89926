"""Chooses the files of a version: a checkpoint, useful compactions, then commits.

Pure: the input is a listing, the output a `LogSegment`, or an error with the versions that can be
rebuilt.

Source: Delta protocol, Checkpoints; Log Compaction Files; Delta Log Entries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from lakelog.dialects.log_content import Checkpoint, CommitFile, CompactionFile, LogListing
from lakelog.errors import LogGapError, TableNotFoundError, VersionNotFoundError

_RESTORE = "restore the missing commits"


@dataclass(frozen=True)
class LogSegment:
    """The files whose replay gives `version`: a checkpoint or None, contiguous commits above it,
    and compactions that may replace some of these without overlap. `checkpoint_commit` is the
    commit of the checkpoint's version, if it was listed.
    """

    version: int
    checkpoint: Checkpoint | None
    commits: tuple[CommitFile, ...]
    compactions: tuple[CompactionFile, ...] = ()
    has_checksum: bool = field(default=False, compare=False)
    checkpoint_commit: CommitFile | None = field(default=None, compare=False)

    @property
    def last_commit(self) -> CommitFile | None:
        """The commit of its version, if it was listed."""
        return self.commits[-1] if self.commits else self.checkpoint_commit

    def __post_init__(self) -> None:
        validate_contiguous(
            (c.version for c in self.commits),
            after=self.checkpoint.version if self.checkpoint else -1,
            last=self.version,
        )


def validate_contiguous(versions: Iterable[int], *, after: int, last: int) -> None:
    """Check that `versions` run from `after` + 1 to `last` without a gap."""
    expected = after + 1
    for version in versions:
        if version != expected:
            raise LogGapError(
                f"{_missing(expected, version - 1)}: attempted to replay version {version}, but "
                f"state is at {expected - 1}",
                version=version,
                expected=expected,
                found=version,
                hint=f"{_RESTORE}, or read a version that can be rebuilt",
            )
        expected += 1
    if expected != last + 1:
        ends = f"the log ends at version {expected - 1}, before version {last}"
        raise LogGapError(
            ends if expected else _missing(0, last),
            version=last,
            expected=expected,
            found=None,
            hint=f"{_RESTORE}, or read a version that can be rebuilt",
        )


def _missing(first: int, last: int) -> str:
    return (
        f"commit {first} is missing" if first == last else f"commits {first} to {last} are missing"
    )


def latest_version(listing: LogListing, table: str) -> int:
    """The greatest version in the listing."""
    candidates = [f[-1].version for f in (listing.commits, listing.checkpoints) if f]
    if not candidates:
        raise TableNotFoundError(
            "the log folder contains no commit and no complete checkpoint",
            path=table,
            hint="check the path; a new table has a commit of version 0",
        )
    return max(candidates)


def has_hole(listing: LogListing, start: int = 0) -> bool:
    """Whether a version is missing among the commits, or below them to the newest checkpoint."""
    commits, checkpoints = listing.commits, listing.checkpoints
    if not commits:
        return False
    first = min(commits[0].version, checkpoints[-1].version + 1) if checkpoints else start
    if commits[-1].version - first + 1 == len(commits):
        return False
    known = {c.version for c in commits} | {c.version for c in checkpoints if c.version >= first}
    return any(b - a > 1 for a, b in pairwise([first - 1, *sorted(known)]))


def rebuildable(listing: LogListing) -> list[tuple[int, int]]:
    """Inclusive ranges of the versions that can be rebuilt from the listed files, ascending."""
    starts = {c.version for c in listing.checkpoints}
    versions = [c.version for c in listing.commits]
    ranges: list[tuple[int, int]] = []

    def extend(version: int) -> None:
        if ranges and version <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], version))
        else:
            ranges.append((version, version))

    for version in sorted(starts | set(versions)):
        follows = bool(ranges) and ranges[-1][1] == version - 1
        if version in starts or version == 0 or follows:
            extend(version)
    return ranges


def ranges_text(ranges: Iterable[tuple[int, int]]) -> str:
    """Ranges of versions, for messages."""
    return ", ".join(f"{a} to {b}" if a != b else str(a) for a, b in ranges)


def choose_segment(
    listing: LogListing,
    version: int | None = None,
    *,
    table: str = "",
    excluded: Iterable[Checkpoint] = (),
) -> LogSegment:
    """Choose the files for a version: the best complete checkpoint at or below it, then commits."""
    latest = latest_version(listing, table)
    target = latest if version is None else version
    barred = set(excluded)
    usable = [c for c in listing.checkpoints if c.version <= target and c not in barred]
    checkpoint = usable[-1] if usable else None
    base = checkpoint.version if checkpoint else -1
    first = bisect_right([c.version for c in listing.commits], base)
    last = bisect_right([c.version for c in listing.commits], target)
    commits = listing.commits[first:last]
    below = listing.commits[first - 1] if first else None
    checkpoint_commit = below if below is not None and below.version == base else None
    try:
        compactions = _usable_compactions(listing, base, target)
        has_checksum = target in listing.checksums
        return LogSegment(target, checkpoint, commits, compactions, has_checksum, checkpoint_commit)
    except LogGapError as gap:
        ranges = rebuildable(listing)
        if version is None:
            gap.path = table or None
            gap.hint = gap.hint if ranges else _RESTORE
            raise
        raise VersionNotFoundError(
            f"version {version} cannot be rebuilt from the remaining files",
            path=table or None,
            version=version,
            expected=ranges_text(ranges) or None,
            found=gap.message,
            hint="choose a version in the range" if ranges else _RESTORE,
        ) from gap


def _usable_compactions(listing: LogListing, base: int, target: int) -> tuple[CompactionFile, ...]:
    """The compactions to use, chosen greedily from the left: the one with the greatest end."""
    covered = base
    chosen: list[CompactionFile] = []
    for compaction in sorted(listing.compactions, key=lambda c: (c.start, -c.end)):
        if compaction.start > covered and compaction.end <= target:
            chosen.append(compaction)
            covered = compaction.end
    return tuple(chosen)
