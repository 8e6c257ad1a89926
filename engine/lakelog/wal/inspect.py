"""Reports on a write-ahead log of any format, valid or damaged: files, contents, problems. Read-
only, without a lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lakelog.display import Displayed
from lakelog.errors import InvalidInputError, NotFoundError
from lakelog.input_validation import local_path
from lakelog.wal.disk import Disk, LocalDisk, disk_errors
from lakelog.wal.historic.log import Finding, HistoricFormat
from lakelog.wal.historic.reader import historic_names, names_in, read_historic
from lakelog.wal.historic.upgrade import MARKER_NAME, UPGRADED_SUFFIX
from lakelog.wal.opening import report_of
from lakelog.wal.recovery import Verdict, survey
from lakelog.wal.scan import Frames
from lakelog.wal.segments import DAMAGED_SUFFIX, Segment, named_seq

WalFormat = Literal["lakelog", "002", "003", "003-crc"]
"""lakelog's own format, and the historic ones."""

SegmentStatus = Literal["live", "truncated", "damaged"]


@dataclass(frozen=True)
class SegmentReport:
    """One file of a log. ``truncated``: a truncation did not delete it, and readers ignore it;
    ``damaged``: itself or after damage, so records may be invalid.
    """

    path: str
    status: SegmentStatus
    size_bytes: int
    records: int
    first_seq: int | None
    last_seq: int | None
    created_ms: int | None
    modified_ms: int | None


@dataclass(frozen=True)
class WalReport(Displayed):
    """Files and findings of a log. `records` counts valid records, control marks included; a torn
    tail of a log in use may be an append in progress.
    """

    directory: str
    format: WalFormat
    log_id: str | None
    segments: tuple[SegmentReport, ...]
    records: int
    truncated_to: int
    safe_seq: int
    findings: tuple[Finding, ...]
    set_aside: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Total size of all files, in bytes."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def is_damaged(self) -> bool:
        """Whether durable data is lost or changed."""
        return any(finding.is_damage for finding in self.findings)


def modified_ms(path: str) -> int | None:
    """Modification time of a file, in milliseconds since 1970; None if unknown."""
    try:
        return os.stat(path).st_mtime_ns // 1_000_000
    except OSError:
        return None


def inspect(
    directory: str | os.PathLike[str],
    format: HistoricFormat | None = None,
    *,
    disk: Disk | None = None,
    modified: Callable[[str], int | None] = modified_ms,
) -> WalReport:
    """Inspect a log of any format. Damage is reported in the result, never raised. Raises
    NotFoundError without a log, UnsupportedError for a log of a later version of lakelog.
    """
    path = local_path(directory)
    disk = disk or LocalDisk()
    names = names_in(disk, path)
    if names is None:
        return _historic(path, format, disk, modified, [])
    names.sort()
    if historic_names(names):
        return _historic(path, format, disk, modified, names)
    if format is not None:
        raise InvalidInputError("historic log not found", path=path, expected=format)
    if not any(named_seq(name) is not None for name in names):
        hint = (
            "pass the folder that contains the log's files; in a keyed store and in the directory "
            "of an ingest it is named wal"
        )
        raise NotFoundError("write-ahead log not found", path=path, hint=hint)
    with disk_errors("the log cannot be read", path):
        verdict = survey(disk, path)
    segments = _segments(verdict, modified)
    return WalReport(
        path,
        "lakelog",
        None if verdict.log_id is None else verdict.log_id.hex(),
        segments,
        verdict.records,
        verdict.truncated_to,
        verdict.safe_seq,
        _findings(verdict),
        _set_aside(path, names),
    )


def _set_aside(directory: str, names: list[str]) -> tuple[str, ...]:
    suffixes = (DAMAGED_SUFFIX, UPGRADED_SUFFIX)
    return tuple(f"{directory}/{name}" for name in names if name.endswith(suffixes))


def _segments(verdict: Verdict, modified: Callable[[str], int | None]) -> tuple[SegmentReport, ...]:
    damaged = {segment.path for segment in verdict.lost}
    found = [_segment(segment, "truncated", modified) for segment in verdict.truncated]
    found += [
        _segment(segment, "live", modified)
        for segment in verdict.live
        if segment.path not in damaged
    ]
    found += [_segment(segment, "damaged", modified) for segment in verdict.lost]
    tail = verdict.tail
    if tail is not None and tail.path not in {segment.path for segment in found}:
        # A segment without its header, left by a crash.
        size, when = tail.size_bytes, modified(tail.path)
        found.append(SegmentReport(tail.path, "live", size, 0, None, None, None, when))
    return tuple(found)


def _segment(
    segment: Segment, status: SegmentStatus, modified: Callable[[str], int | None]
) -> SegmentReport:
    frames = segment.frames
    if status == "damaged":
        frames = Frames.concat([frames, segment.followers])
    frames = frames[np.flatnonzero(frames.counts)]
    return SegmentReport(
        segment.path,
        status,
        segment.data.size,
        int(frames.counts.sum()),
        int(frames.first_seq.min()) if len(frames) else None,
        int(frames.next_seq.max()) - 1 if len(frames) else None,
        None if segment.header is None else segment.header.created_ms,
        modified(segment.path),
    )


def _findings(verdict: Verdict) -> tuple[Finding, ...]:
    report = report_of(verdict)
    if report is None:
        return ()
    damage = verdict.damage
    return (
        Finding(
            "torn_tail" if damage is None else "damage",
            report.path,
            report.byte_offset,
            report.dropped_bytes,
            report.reason,
            None if damage is None else damage.expected,
            None if damage is None else damage.found,
            report.dropped_records,
        ),
    )


def _historic(
    path: str,
    format: HistoricFormat | None,
    disk: Disk,
    modified: Callable[[str], int | None],
    names: list[str],
) -> WalReport:
    log = read_historic(path, format, strict=False, disk=disk)
    findings = list(log.findings)
    if MARKER_NAME in names or any(named_seq(name) is not None for name in names):
        marker = f"{path}/{MARKER_NAME}"
        reason = "an upgrade of this log was interrupted; lakelog wal upgrade continues it"
        findings.append(Finding("unfinished_upgrade", marker, 0, 0, reason))
    damage = log.damage
    is_damaged = False
    segments = []
    for file in log.files:
        is_damaged |= damage is not None and damage.path == file.path
        segments.append(
            SegmentReport(
                file.path,
                "damaged" if is_damaged else "live",
                file.size_bytes,
                file.records,
                file.first_seq,
                file.last_seq,
                None,
                modified(file.path),
            )
        )
    return WalReport(
        path,
        log.format,
        None,
        tuple(segments),
        log.records.num_rows,
        0,
        log.last_seq,
        tuple(findings),
        _set_aside(path, names),
        log.doubts,
    )
