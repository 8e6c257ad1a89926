"""Reads the segments of a log from disk for `lakelog.wal.recovery`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from lakelog.errors import UnsupportedError, WalCorruptionError
from lakelog.wal.disk import Disk
from lakelog.wal.frames import (
    ID_OFFSET,
    KIND_RECORDS,
    SEGMENT_HEADER_BYTES,
    Seal,
    SegmentHeader,
    aligned,
)
from lakelog.wal.recovery import Verdict, id_of, judge
from lakelog.wal.scan import scan, unproved_frames, whole_frames
from lakelog.wal.segments import Segment, is_historic, named_seq
from lakelog.wal.threads import of_segments

# A reader's, next to a writer who rotates and truncates.
_ATTEMPTS = 200
_ATTEMPTS_OF_SAME = 5  # while segments neither came nor went


def survey(
    disk: Disk,
    directory: str,
    after_seq: int = 0,
    *,
    alone: bool = False,
    before: Callable[[Sequence[Segment]], None] = lambda _: None,
) -> Verdict:
    """Read a log and judge it."""
    known: set[str] = set()
    same = 0
    for _ in range(0 if alone else _ATTEMPTS):
        names = set(disk.list(directory))
        same = same + 1 if names == known else 0
        if same == _ATTEMPTS_OF_SAME:
            break
        known = names
        try:
            verdict = judge(read_segments(disk, directory, after_seq), after_seq)
        except FileNotFoundError:
            continue
        if verdict.damage is None:
            return verdict
    return judge(read_segments(disk, directory, after_seq, alone=alone, before=before), after_seq)


def read_segments(
    disk: Disk,
    directory: str,
    after_seq: int = 0,
    *,
    alone: bool = False,
    before: Callable[[Sequence[Segment]], None] = lambda _: None,
) -> list[Segment]:
    """A log's segments in order, as they are."""
    names = disk.list(directory)
    old = sorted(filter(is_historic, names))
    if old:
        raise UnsupportedError(
            "the directory contains a write-ahead log of an earlier program",
            path=f"{directory}/{old[0]}",
            hint="lakelog wal upgrade",
        )
    found = sorted((seq, name) for name in names if (seq := named_seq(name)) is not None)
    # The last segment may be cut while it is read, and so may the one before it, which is the last
    # one again if the last one is truncated to nothing. Reading a page of a mapped file that was
    # cut ends the process.
    settled = {seq for seq, _ in (found if alone else found[:-2])}

    def read(seq: int, name: str) -> Segment:
        path = f"{directory}/{name}"
        return with_header(Segment(path, seq, disk.read(path, mapped=seq in settled)))

    begun = [n for n, (seq, _) in enumerate(found) if seq <= after_seq + 1]
    first = begun[-1] if begun else 0
    segments = [read(*each) for each in found[first:]]
    if first and all(each.header is None for each in segments):
        # Whether the last segment was ever begun, the one before it says.
        segments.insert(0, read(*found[first - 1]))
    before(segments)
    log_id = id_of(segments) or _unproved_id(segments)
    if log_id is None:
        return list(map(_with_unproved_frames, segments))
    return of_segments(partial(with_frames, log_id=log_id), segments)


def with_header(segment: Segment) -> Segment:
    """A segment with the header of its data."""
    head = segment.data[:SEGMENT_HEADER_BYTES].to_pybytes()
    try:
        header = SegmentHeader.parse(head, segment.path)
    except WalCorruptionError as error:
        return replace(segment, header_error=error)
    return replace(segment, header=header)


def _unproved_id(segments: list[Segment]) -> bytes | None:
    """The id in a damaged header, if there are frames that prove it."""
    for each in segments:
        log_id: bytes = each.data[ID_OFFSET : ID_OFFSET + 16].to_pybytes()
        if len(log_id) == 16 and len(
            whole_frames(each.data, Seal.of(log_id), SEGMENT_HEADER_BYTES)
        ):
            return log_id
    return None


def _with_unproved_frames(segment: Segment) -> Segment:
    """A segment with the frames that it seems to hold, where nothing says of which log they are:
    none of their records counts, but no process may use their sequence numbers again.
    """
    found = unproved_frames(segment.data, SEGMENT_HEADER_BYTES)
    follow = found.first_seq == np.append(segment.named_seq, found.next_seq)[: len(found)]
    count = len(found) if follow.all() else int(follow.argmin())
    found = found[:count]
    return replace(segment, followers=found[found.kinds == KIND_RECORDS])


def with_frames(segment: Segment, log_id: bytes) -> Segment:
    """A segment with the frames of its data; without its header it is searched for them."""
    seal = Seal.of(log_id)
    if segment.header is None:
        followers = whole_frames(segment.data, seal, SEGMENT_HEADER_BYTES)
        return replace(segment, followers=followers)
    found = scan(segment.data, seal)
    followers = segment.followers
    if found.gap is not None:
        followers = whole_frames(segment.data, seal, aligned(found.end + 1))
    return replace(segment, frames=found.frames, end=found.end, gap=found.gap, followers=followers)
