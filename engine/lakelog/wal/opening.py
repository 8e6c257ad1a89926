"""Opens a log for writing: truncates a torn tail, and refuses or moves aside damaged files.

A crash is possible after every step; opening again then leads to the same state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c

from lakelog.display import Displayed
from lakelog.errors import UnavailableError
from lakelog.telemetry import event
from lakelog.threads import Pool
from lakelog.wal.disk import Disk, WritableFile, require_held
from lakelog.wal.encode import Compression, Framing
from lakelog.wal.frames import SEGMENT_HEADER_BYTES, Seal, SegmentHeader
from lakelog.wal.recovery import Verdict, survey
from lakelog.wal.scan import Frames
from lakelog.wal.segments import (
    DAMAGED_SUFFIX,
    TEMPORARY_SUFFIX,
    Segment,
    named_seq,
    segment_name,
)
from lakelog.wal.writer import SegmentRef, Writer, begin_segment, write_new

_TAIL = ".tail"
_WORK = "opening the write-ahead log"
_MANY_BYTES = 1 << 20


@dataclass(frozen=True)
class RecoveryReport(Displayed):
    """Description of the data that was dropped when a log was opened.

    Attributes:
        path: Path of the segment.
        byte_offset: Offset of the dropped bytes in the segment.
        dropped_bytes: Number of dropped bytes, in this segment and the following ones.
        dropped_records: Number of dropped records in whole frames: of a torn tail those that were
            never durable, of damage those after the last safe record.
        safe_seq: Last sequence number that was kept.
        reason: Description of the problem.
        damage: The damage, as `LakelogError.as_dict` returns it; None for a torn tail, which every
            crash can leave.
        set_aside: Files with the dropped data: of damage, and of a torn tail that is more than an
            incomplete append.
    """

    path: str
    byte_offset: int
    dropped_bytes: int
    dropped_records: int
    safe_seq: int
    reason: str
    damage: dict[str, Any] | None = None
    set_aside: tuple[str, ...] = ()


def report_of(verdict: Verdict, set_aside: tuple[str, ...] = ()) -> RecoveryReport | None:
    """The report of the data that a verdict drops; None if there is none."""
    if verdict.damage is not None:
        damage = verdict.damage
        kept = {each.path: each for each in verdict.live}
        first = verdict.lost[0]
        sizes = [
            each.data.size - (kept[each.path].end if each.path in kept else 0)
            for each in verdict.lost
        ]
        records = [
            int(each.frames.counts.sum() + each.followers.counts.sum())
            - (int(kept[each.path].frames.counts.sum()) if each.path in kept else 0)
            for each in verdict.lost
        ]
        return RecoveryReport(
            damage.path or first.path,
            damage.byte_offset or 0,
            sum(sizes),
            sum(records),
            verdict.safe_seq,
            damage.message,
            damage.as_dict(),
            set_aside,
        )
    tail = verdict.tail
    if tail is None:
        return None
    return RecoveryReport(
        tail.path,
        tail.offset,
        tail.size_bytes,
        tail.records,
        verdict.safe_seq,
        tail.reason,
        set_aside=set_aside,
    )


@dataclass(frozen=True)
class Opened:
    """A log opened for writing: its writer, the recovered log, and the report of dropped data."""

    writer: Writer
    verdict: Verdict
    report: RecoveryReport | None


def open_for_writing(
    disk: Disk,
    directory: str,
    *,
    strict: bool,
    was_closed_cleanly: bool,
    compression: Compression,
    frame_bytes: int,
    clock: Callable[[], int],
    new_id: Callable[[], bytes],
    is_locked: Callable[[], bool],
) -> Opened:
    """Recover a log, and open it at its end. The caller has its lock, as `is_locked` verifies."""
    verdict = _surveyed(disk, directory, is_locked, was_closed_cleanly=was_closed_cleanly)
    if verdict.damage is not None and strict:
        raise verdict.damage
    names = set(disk.list(directory))
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX) and named_seq(name.removesuffix(TEMPORARY_SUFFIX)):
            disk.remove(f"{directory}/{name}")
    log_id = verdict.log_id or new_id()
    rewritten = 0
    places = [SegmentRef(each.named_seq, each.path) for each in verdict.live]
    set_aside: tuple[str, ...] = ()
    file: WritableFile
    next_seq = verdict.next_seq
    if verdict.damage is not None:
        lost = {each.path for each in verdict.lost}
        if verdict.live and verdict.live[-1].path not in lost:
            # The following segments may belong to another log.
            last = verdict.live[-1]
            _made_durable(disk, directory, last, Seal.of(log_id), again=True, cut=False).close()
        place, file, set_aside = _set_aside(disk, directory, verdict, log_id, clock(), names)
        unreadable = {each.path for each in verdict.lost if not _keeps(verdict, each)}
        places = [*(each for each in places if each.path not in unreadable), place]
        end, next_seq = SEGMENT_HEADER_BYTES, place.first_seq
    else:
        if verdict.unfinished is not None:
            disk.remove(verdict.unfinished.path)
            disk.sync_directory(directory)
        if verdict.live:
            last = verdict.live[-1]
            if verdict.tail is not None and not verdict.tail.is_plain:
                set_aside = (_keep_tail(disk, directory, last, names),)
            end = last.end
            rewritten = 0 if was_closed_cleanly else end - last.durable_end
            file = _made_durable(
                disk, directory, last, Seal.of(log_id), again=not was_closed_cleanly
            )
        else:
            places = [SegmentRef(1, f"{directory}/{segment_name(1)}")]
            header = SegmentHeader(log_id, 1, 1, 0, clock())
            file, end = begin_segment(disk, directory, places[0], header), SEGMENT_HEADER_BYTES
    with _closed_on_error(file):
        require_held(is_locked, directory, _WORK)
        left = _remove(disk, directory, verdict, names)
    set_aside += tuple(target for _, target in left)
    report = report_of(verdict, set_aside)
    if report is None and left:
        report = _left_behind([each for each, _ in left], verdict, set_aside)
    if report is not None:
        event(
            "wal.recovered",
            path=report.path,
            byte_offset=report.byte_offset,
            dropped_bytes=report.dropped_bytes,
            dropped_records=report.dropped_records,
            reason=report.reason,
        )
    writer = Writer(
        disk=disk,
        directory=directory,
        log_id=log_id,
        framing=Framing(Seal.of(log_id), compression, frame_bytes),
        clock=clock,
        places=places,
        file=file,
        end=end,
        durable_end=end,
        next_seq=next_seq,
        truncated_to=verdict.truncated_to,
        is_locked=is_locked,
    )
    if rewritten > _MANY_BYTES:
        with _closed_on_error(file), contextlib.suppress(UnavailableError):
            writer.mark_durable()
    return Opened(writer, replace(verdict, truncated=()), report)


def _surveyed(
    disk: Disk, directory: str, is_locked: Callable[[], bool], *, was_closed_cleanly: bool
) -> Verdict:
    """A log as `survey` reads it, while a large last segment is synced."""
    with Pool(1, thread_name_prefix="lakelog-wal") as pool:
        syncing: list[Future[None]] = []

        def begin(segments: Sequence[Segment]) -> None:
            if was_closed_cleanly and segments and segments[-1].data.size >= _MANY_BYTES:
                with contextlib.suppress(RuntimeError):  # no thread can be started
                    syncing.append(pool.submit(_sync, disk, segments[-1].path))

        verdict = survey(disk, directory, alone=True, before=begin)
        for each in syncing:
            each.result()
    require_held(is_locked, directory, _WORK)
    return verdict


def _sync(disk: Disk, path: str) -> None:
    file = disk.open_append(path)
    try:
        file.sync()
    finally:
        file.close()


@contextlib.contextmanager
def _closed_on_error(file: WritableFile) -> Any:
    try:
        yield
    except BaseException:
        file.close()
        raise


def _keep_tail(disk: Disk, directory: str, last: Segment, names: set[str]) -> str:
    """Write the bytes that will be truncated to a separate file."""
    target = _free_name(f"{last.path}{_TAIL}", names, directory)
    write_new(disk, target, [last.data.slice(last.end)])
    disk.sync_directory(directory)
    return target


def _made_durable(
    disk: Disk, directory: str, last: Segment, seal: Seal, *, again: bool, cut: bool = True
) -> WritableFile:
    """Truncate the last segment to its whole frames, and make it durable, because later frames will
    claim that it is. The process that wrote it may not have synced it; after a failed sync, only
    rewriting helps. The content does not change, so an interruption is harmless.
    """
    file = disk.open_append(last.path)
    with _closed_on_error(file):
        if cut and last.end < last.data.size:
            file.truncate(last.end)
        if not last.durable_end:
            disk.sync_directory(directory)
        if again:
            _write_again(disk, last, seal)
        file.sync()
    return file


def _write_again(disk: Disk, last: Segment, seal: Seal) -> None:
    """Rewrite the part of the last segment that its own frames do not prove to be durable."""
    assert last.header is not None
    start = last.durable_end
    if not start:
        start = SEGMENT_HEADER_BYTES
        disk.rewrite(last.path, 0, last.header.pack())
    for low in range(start, last.end, _MANY_BYTES):
        disk.rewrite(last.path, low, last.data.slice(low, min(_MANY_BYTES, last.end - low)))
    # Data of a failed sync may be lost between reading and writing.
    rest = last.data.slice(start, last.end - start)
    if google_crc32c.extend(seal.start, rest) != seal.start:
        raise UnavailableError(
            "the end of the write-ahead log was removed while it was opened",
            path=last.path,
            byte_offset=start,
            hint="the disk lost data of a failed sync; open the log again",
        )


def _remove(
    disk: Disk, directory: str, verdict: Verdict, names: set[str]
) -> list[tuple[Segment, str]]:
    """Delete files of an interrupted truncation; rename and return those of a recovery."""
    truncated = [
        each
        for each in verdict.truncated
        if each.header is not None and each.header.log_id == verdict.log_id
    ]
    left = []
    for each in truncated:
        if _has_untruncated_records(each, verdict.truncated_to):
            target = _free_name(each.path, names, directory)
            disk.rename(each.path, target)
            left.append((each, target))
        else:
            disk.remove(each.path)
    if truncated:
        disk.sync_directory(directory)
    return left


def _has_untruncated_records(segment: Segment, truncated_to: int) -> bool:
    """Whether a segment contains records that were not truncated. If nothing before the damage
    remains, the segment that continues from it follows truncated ones.
    """
    frames = Frames.concat([segment.frames, segment.followers])
    last_seq = int(frames.next_seq.max()) - 1 if len(frames) else 0
    return last_seq > truncated_to or (segment.gap is not None and segment.next_seq > truncated_to)


def _left_behind(
    left: Sequence[Segment], verdict: Verdict, set_aside: tuple[str, ...]
) -> RecoveryReport:
    """The report of segments that a continuation after damage left."""
    frames = Frames.concat([part for each in left for part in (each.frames, each.followers)])
    return RecoveryReport(
        left[0].path,
        left[0].end,
        sum(each.data.size for each in left),
        int(frames.counts[frames.next_seq - 1 > verdict.truncated_to].sum()),
        verdict.safe_seq,
        "a damaged segment could not be moved aside",
        set_aside=set_aside,
    )


def _follows(verdict: Verdict) -> int:
    """The end that a continuation after damage follows: the last remaining segment's, or the
    truncation. A segment without a valid frame is removed, with the numbers in its header.
    """
    lost = {each.path for each in verdict.lost}
    stay = [each for each in verdict.live if each.path not in lost or len(each.frames)]
    return max([verdict.truncated_to + 1, *(each.next_seq for each in stay[-1:])])


def _keeps(verdict: Verdict, lost: Segment) -> bool:
    """Whether a damaged segment has safe records."""
    return any(each.path == lost.path and len(each.frames) for each in verdict.live)


def _set_aside(
    disk: Disk, directory: str, verdict: Verdict, log_id: bytes, now_ms: int, names: set[str]
) -> tuple[SegmentRef, WritableFile, tuple[str, ...]]:
    """Continue in a new segment, numbered after every number ever used, and rename damaged files.
    Until the last step, the log looks damaged or has all valid records.
    """
    next_seq = verdict.next_seq
    while segment_name(next_seq) in names:
        next_seq += 1
    place = SegmentRef(next_seq, f"{directory}/{segment_name(next_seq)}")
    header = SegmentHeader(log_id, next_seq, _follows(verdict), verdict.truncated_to, now_ms)
    file = begin_segment(disk, directory, place, header)
    with _closed_on_error(file):
        moved = []
        for lost in reversed(verdict.lost):
            target = _free_name(lost.path, names, directory)
            moved.append(target)
            if not _keeps(verdict, lost):
                disk.rename(lost.path, target)
                continue
            safe = next(each for each in verdict.live if each.path == lost.path)
            write_new(disk, target, [lost.data])
            # Not truncated in place, because another process may be reading its pages.
            temporary = f"{lost.path}{TEMPORARY_SUFFIX}"
            write_new(disk, temporary, [lost.data.slice(0, safe.end)])
            disk.sync_directory(directory)
            disk.rename(temporary, lost.path)
        disk.sync_directory(directory)
    return place, file, tuple(reversed(moved))


def _free_name(path: str, names: set[str], directory: str) -> str:
    target, tries = f"{path}{DAMAGED_SUFFIX}", 1
    while target[len(directory) + 1 :] in names:
        tries += 1
        target = f"{path}.{tries}{DAMAGED_SUFFIX}"
    return target
