"""Reads the segments of a log, and classifies their contents as valid, torn or damaged.

A crash can only tear bytes that were not yet durable. Therefore the frames after a break decide its
classification: every frame records how many bytes before it were not known to be durable when it
was written. A whole frame that records the broken position as durable proves damage. Without such a
frame, nothing after the break was acknowledged as durable, and it is a torn tail.

Pure: works on segments that were read, and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lakelog.errors import UnsupportedError, WalCorruptionError
from lakelog.wal.disk import Disk
from lakelog.wal.frames import (
    CODEC_ZSTD,
    FLAG_BATCH,
    FLAG_CONTINUES,
    FLAG_JUMP,
    FRAME_HEADER_BYTES,
    ID_OFFSET,
    KIND_RECORDS,
    KIND_SEAL,
    KIND_TRUNCATION,
    KNOWN_FLAGS,
    MAX_SEQ,
    SEGMENT_HEADER_BYTES,
    SEQ_OFFSET,
    Seal,
    SegmentHeader,
    aligned,
)
from lakelog.wal.scan import Frames, scan, unproved_frames, whole_frames
from lakelog.wal.segments import Segment, is_historic, named_seq, of_segments, segment_name


@dataclass(frozen=True)
class Tail:
    """Bytes that a crash left after the last whole record, from `offset` on (0: the segment has no
    header). `frames` and `records` count whole but never durable frames; `is_plain` is false if
    they may be unprovable damage of durable records.
    """

    path: str
    offset: int
    size_bytes: int
    frames: int
    records: int
    reason: str
    is_plain: bool = True


@dataclass(frozen=True)
class Verdict:
    """Classification of a log's segments: `live` ones with their valid frames, `truncated` ones, an
    `unfinished` last one without a header, the torn `tail`, and `damage` of durable records. After
    damage, the rest describes the valid part, `lost` the segments from there on, and `next_seq`
    exceeds every number seen.
    """

    log_id: bytes | None
    live: tuple[Segment, ...]
    truncated: tuple[Segment, ...]
    truncated_to: int
    next_seq: int
    unfinished: Segment | None = None
    tail: Tail | None = None
    damage: WalCorruptionError | None = None
    lost: tuple[Segment, ...] = ()

    @property
    def records(self) -> int:
        """Number of valid records, including control marks."""
        return sum(_records(each.frames, self.truncated_to) for each in self.live)

    @property
    def safe_seq(self) -> int:
        """The last sequence number that is safe."""
        for each in reversed(self.live):
            if each.header is not None:
                return max(each.next_seq - 1, self.truncated_to)
        return self.truncated_to


def judge(segments: Sequence[Segment], after_seq: int = 0) -> Verdict:
    """Classify a log's segments."""
    segments = list(segments)
    log_id = _id_of(segments)
    unfinished, tail = None, None
    if segments and segments[-1].header is None and _is_unfinished_header(segments):
        unfinished = segments.pop()
        tail = Tail(unfinished.path, 0, unfinished.data.size, 0, 0, "the segment has no header")
    if not segments:
        return Verdict(None, (), (), 0, 1, unfinished, tail)
    truncated_to = max(_truncated_to(each, log_id) for each in segments)
    truncated = 0
    while truncated + 1 < len(segments) and _begins_at(segments[truncated + 1]) - 1 <= truncated_to:
        truncated += 1
    kept = segments[truncated:]
    live: list[Segment] = []
    lost: list[Segment] = []
    damage = None
    for place, each in enumerate(kept):
        damage = _header_problem(live, each, log_id, max(truncated_to, after_seq))
        if damage is not None:
            # Records missing between two segments may be in the remaining bytes of the first one.
            lost = kept[place - 1 if live and damage.path == live[-1].path else place :]
            break
        safe, damage, tail = _examine(each, tail, is_last=place == len(kept) - 1)
        live.append(safe)
        if damage is not None:
            lost = kept[place:]
            break
    verdict = Verdict(
        log_id,
        tuple(live),
        tuple(segments[:truncated]),
        truncated_to,
        live[-1].next_seq if live else truncated_to + 1,
        unfinished,
        tail,
        damage,
        tuple(lost),
    )
    if damage is None:
        return verdict
    # Truncated segments remain truncated, although no other data after the damage is used.
    durable = max(_durable_behind(each, log_id) for each in lost)
    verdict = replace(verdict, truncated_to=max(truncated_to, durable))
    damage.safe_seq, damage.safe_records = verdict.safe_seq, verdict.records
    damage.hint = damage.hint or (
        "restore the file from a copy; or open the log with strict=False, which "
        "continues after the last safe record and moves the damaged files aside"
    )
    if unfinished is not None:
        lost.append(unfinished)
    seen = [verdict.next_seq, *(_seen(each, log_id) for each in lost)]
    return replace(verdict, next_seq=max(seen), unfinished=None, tail=None, lost=tuple(lost))


def _id_of(segments: Sequence[Segment]) -> bytes | None:
    """The id of the log in most of its segments; None if none of them can be read."""
    ids = Counter(each.header.log_id for each in segments if each.header is not None)
    return ids.most_common(1)[0][0] if ids else None


def _is_unfinished_header(segments: Sequence[Segment]) -> bool:
    """Whether the last segment, whose header cannot be read, was only being created."""
    last = segments[-1]
    if not last.is_blank:
        return False
    if len(segments) == 1:
        return last.named_seq == 1
    # A seal is written after the following segment is durable.
    return not (segments[-2].frames.kinds == KIND_SEAL).any()


def _truncated_to(segment: Segment, log_id: bytes | None) -> int:
    if segment.header is None or segment.header.log_id != log_id:
        return 0
    return max(segment.header.truncated_to, _marked(segment, segment.frames))


def _durable_behind(segment: Segment, log_id: bytes | None) -> int:
    """The highest number in truncation frames after a break."""
    if segment.header is not None and segment.header.log_id != log_id:
        return 0
    return _marked(segment, segment.followers)


def _marked(segment: Segment, frames: Frames) -> int:
    """The highest number in truncation frames; 0 without any."""
    marks = frames.offsets[frames.kinds == KIND_TRUNCATION].tolist()
    return max((_mark(segment, at) for at in marks), default=0)


def _mark(segment: Segment, offset: int) -> int:
    """The number in a mark."""
    start = offset + FRAME_HEADER_BYTES
    return int.from_bytes(segment.data[start : start + 8].to_pybytes(), "little")


def _begins_at(segment: Segment) -> int:
    return segment.named_seq if segment.header is None else segment.header.follows_seq


def _seen(segment: Segment, log_id: bytes | None) -> int:
    """One more than the highest sequence number in a segment."""
    if segment.header is not None and segment.header.log_id != log_id:
        return 0
    both = Frames.concat([segment.frames, segment.followers])
    top = int(both.next_seq.max()) if len(both) else 0
    # lakelog writes no greater name.
    return max(segment.named_seq if segment.named_seq < MAX_SEQ else 0, top)


def _records(frames: Frames, truncated_to: int) -> int:
    first = np.maximum(frames.first_seq, truncated_to + 1)
    return int(np.maximum(frames.next_seq - first, 0).sum())


def _header_problem(
    live: Sequence[Segment], each: Segment, log_id: bytes | None, done_seq: int
) -> WalCorruptionError | None:
    """The problem of a segment's header, also next to the previous segment, or None."""
    header = each.header
    if header is None:
        return each.header_error
    if header.log_id != log_id:
        message = "a segment belongs to another write-ahead log"
        ids = ((log_id or b"").hex(), header.log_id.hex())
        return _differs(each, ID_OFFSET, message, "log id", *ids)
    if header.first_seq != each.named_seq:
        message = "a segment has the file name of another one"
        names = (segment_name(header.first_seq), segment_name(each.named_seq))
        return _differs(each, SEQ_OFFSET, message, "name", *names)
    expected = live[-1].next_seq if live else done_seq + 1
    if header.follows_seq == expected or (not live and header.follows_seq < expected):
        return None
    is_gap = header.follows_seq > expected
    if is_gap and live and live[-1].gap:
        return _broken(live[-1])
    message = (
        "a segment is missing before this one"
        if is_gap
        else "two segments contain the same sequence numbers"
    )
    numbers = (expected, header.follows_seq)
    return _differs(each, SEQ_OFFSET, message, "sequence number", *numbers)


def _differs(
    each: Segment, offset: int, message: str, what: str, expected: object, found: object
) -> WalCorruptionError:
    """An error about a value at an offset of a segment."""
    return WalCorruptionError(
        message,
        path=each.path,
        byte_offset=offset,
        expected=f"{what} {expected}",
        found=f"{what} {found}",
    )


_MESSAGES = {
    "zeros": "records were overwritten with zero bytes",
    "short": "a frame does not end at its recorded length",
    "magic": "no frame begins at the expected position",
    "checksum": "a frame's checksum does not match",
}


def _broken(segment: Segment) -> WalCorruptionError:
    gap = segment.gap
    assert gap is not None
    return WalCorruptionError(
        _MESSAGES[gap.reason],
        path=segment.path,
        byte_offset=gap.offset,
        expected=gap.expected,
        found=gap.found,
    )


def _examine(
    each: Segment, tail: Tail | None, *, is_last: bool
) -> tuple[Segment, WalCorruptionError | None, Tail | None]:
    """The valid frames of a segment whose header is valid, its damage, and its torn tail."""
    _check_known(each)
    for check in (_out_of_sequence, _after_its_end, _without_end):
        at = check(each)
        if at is not None:
            safe = _cut(each, _complete(each.frames[: at[0]]))
            return safe, at[1], tail
    if is_last and each.gap is not None and _is_proved_durable(each):
        return _cut(each, _complete(each.frames)), _broken(each), tail
    complete = _complete(each.frames)
    unfinished = len(complete) < len(each.frames)
    if not is_last:
        if not unfinished:
            return each, None, tail
        at_byte = int(each.frames.offsets[len(complete)])
        return _cut(each, complete), _missing_end(each, at_byte), tail
    seal = np.flatnonzero(each.frames.kinds == KIND_SEAL)
    if len(seal):
        offset = int(each.frames.offsets[seal[0]])
        damage = WalCorruptionError(
            "the last segment is missing",
            path=each.path,
            byte_offset=offset,
            expected=segment_name(_mark(each, offset)),
            found="no such file",
        )
        return each, damage, tail
    safe = _cut(each, complete)
    if safe.end < each.data.size:
        tail = _torn(each, safe)
    return safe, None, tail


def _check_known(each: Segment) -> None:
    frames = each.frames
    strange = (
        (frames.kinds < KIND_RECORDS)
        | (frames.kinds > KIND_SEAL)
        | (frames.codecs > CODEC_ZSTD)
        | ((frames.flags & ~np.uint16(KNOWN_FLAGS)) != 0)
    )
    if strange.any():
        at = int(strange.argmax())
        raise UnsupportedError(
            "a later version of lakelog wrote to this log",
            path=each.path,
            byte_offset=int(frames.offsets[at]),
            found=(f"kind {frames.kinds[at]}, codec {frames.codecs[at]}, flags {frames.flags[at]}"),
            hint="upgrade lakelog",
        )


_Fault = tuple[int, WalCorruptionError] | None


def _out_of_sequence(each: Segment) -> _Fault:
    """The first frame whose sequence number is not contiguous."""
    frames = each.frames
    if each.header is None or not len(frames):
        return None
    expected = np.append(each.header.first_seq, frames.next_seq[:-1])
    wrong = frames.first_seq != expected
    if wrong.any():
        wrong &= ((frames.flags & FLAG_JUMP) == 0) | (frames.first_seq < expected)
    if not wrong.any():
        return None
    at = int(wrong.argmax())
    message = "sequence numbers are not contiguous"
    numbers = (expected[at], frames.first_seq[at])
    return at, _differs(each, int(frames.offsets[at]), message, "sequence number", *numbers)


def _after_its_end(each: Segment) -> _Fault:
    """The first frame after a seal."""
    seals = np.flatnonzero(each.frames.kinds == KIND_SEAL)
    if not len(seals) or seals[0] == len(each.frames) - 1:
        return None
    at = int(seals[0]) + 1
    return at, WalCorruptionError(
        "data follows the end of a segment",
        path=each.path,
        byte_offset=int(each.frames.offsets[at]),
        expected="the end of the file",
        found="a frame",
    )


def _without_end(each: Segment) -> _Fault:
    """The first frame that should continue a batch, but does not."""
    flags = each.frames.flags
    wrong = ((flags[:-1] & FLAG_CONTINUES) != 0) & ((flags[1:] & FLAG_BATCH) == 0)
    if not wrong.any():
        return None
    at = int(wrong.argmax()) + 1
    return at, _missing_end(each, int(each.frames.offsets[at]))


def _missing_end(each: Segment, offset: int) -> WalCorruptionError:
    return WalCorruptionError(
        "a batch is not continued at the expected position",
        path=each.path,
        byte_offset=offset,
        expected="a frame of the same batch",
        found="other data",
    )


def _is_proved_durable(each: Segment) -> bool:
    """Whether a frame after the break claims that the broken position is durable. A frame of this
    log may also be stored as a value in it; its older sequence number distinguishes it.
    """
    assert each.gap is not None
    after = each.followers
    was_recorded = (after.first_seq >= each.next_seq) & (after.durable_bytes > each.gap.offset)
    return bool(was_recorded.any())


def _complete(frames: Frames) -> Frames:
    """The frames without those of an unfinished batch."""
    if not len(frames) or not frames.flags[-1] & FLAG_CONTINUES:
        return frames
    ends = np.flatnonzero((frames.flags & FLAG_CONTINUES) == 0)
    return frames[: int(ends[-1]) + 1 if len(ends) else 0]


def _cut(each: Segment, frames: Frames) -> Segment:
    if len(frames) == len(each.frames):
        return each
    end = int(each.frames.offsets[len(frames)])
    return replace(each, frames=frames, end=end)


_REASONS = {
    "zeros": "zero bytes up to the end of the file",
    "short": "a frame that was not written completely",
    "magic": "bytes that are not a frame",
    "checksum": "a frame that was not written completely",
}


def _torn(each: Segment, safe: Segment) -> Tail:
    # An older frame of the same log, stored as a value in a torn frame, is excluded.
    behind = each.followers[each.followers.first_seq >= each.next_seq]
    dropped = Frames.concat([each.frames[len(safe.frames) :], behind])
    if each.gap is not None and each.gap.offset == safe.end:
        reason = _REASONS[each.gap.reason]
    else:
        reason = "a batch that was not written completely"
    return Tail(
        each.path,
        safe.end,
        each.data.size - safe.end,
        len(dropped),
        int(dropped.counts.sum()),
        reason,
        is_plain=not len(behind) and (each.gap is None or each.gap.reason in {"zeros", "short"}),
    )


# Of a reader, while a writer rotates and truncates.
_ATTEMPTS = 200
_ATTEMPTS_OF_SAME = 5  # while the list of segments is unchanged


def survey(
    disk: Disk,
    directory: str,
    after_seq: int = 0,
    *,
    alone: bool = False,
    before: Callable[[Sequence[Segment]], None] = lambda _: None,
) -> Verdict:
    """Read a log and classify it."""
    known: set[str] = set()
    same = 0
    for _ in range(0 if alone else _ATTEMPTS):
        names = set(disk.list(directory))
        same = same + 1 if names == known else 0
        if same == _ATTEMPTS_OF_SAME:
            break
        known = names
        try:
            verdict = judge(_read_segments(disk, directory, after_seq), after_seq)
        except FileNotFoundError:
            continue
        if verdict.damage is None:
            return verdict
    return judge(_read_segments(disk, directory, after_seq, alone=alone, before=before), after_seq)


def _read_segments(
    disk: Disk,
    directory: str,
    after_seq: int = 0,
    *,
    alone: bool = False,
    before: Callable[[Sequence[Segment]], None] = lambda _: None,
) -> list[Segment]:
    """A log's segments in order, as read."""
    names = disk.list(directory)
    old = sorted(filter(is_historic, names))
    if old:
        raise UnsupportedError(
            "the directory contains a write-ahead log of an earlier program",
            path=f"{directory}/{old[0]}",
            hint="lakelog wal upgrade",
        )
    found = sorted((seq, name) for name in names if (seq := named_seq(name)) is not None)
    # The last segment may be truncated while it is read. So may the one before it, which becomes
    # the last one again if the last one is removed. Reading a page of a truncated mapped file kills
    # the process.
    settled = {seq for seq, _ in (found if alone else found[:-2])}

    def read(seq: int, name: str) -> Segment:
        path = f"{directory}/{name}"
        return with_header(Segment(path, seq, disk.read(path, mapped=seq in settled)))

    begun = [n for n, (seq, _) in enumerate(found) if seq <= after_seq + 1]
    first = begun[-1] if begun else 0
    segments = [read(*each) for each in found[first:]]
    if first and all(each.header is None for each in segments):
        # The previous segment shows whether the last segment was ever begun.
        segments.insert(0, read(*found[first - 1]))
    before(segments)
    log_id = _id_of(segments) or _unproved_id(segments)
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
    """The id in a damaged header, if frames confirm it."""
    for each in segments:
        log_id: bytes = each.data[ID_OFFSET : ID_OFFSET + 16].to_pybytes()
        if len(log_id) == 16 and len(
            whole_frames(each.data, Seal.of(log_id), SEGMENT_HEADER_BYTES)
        ):
            return log_id
    return None


def _with_unproved_frames(segment: Segment) -> Segment:
    """A segment of an unknown log; its frames only show which sequence numbers were used."""
    found = unproved_frames(segment.data)
    follow = found.first_seq == np.append(segment.named_seq, found.next_seq)[: len(found)]
    count = len(found) if follow.all() else int(follow.argmin())
    found = found[:count]
    return replace(segment, followers=found[found.kinds == KIND_RECORDS])


def with_frames(segment: Segment, log_id: bytes) -> Segment:
    """A segment with the frames of its data, searched for if it has no valid header."""
    seal = Seal.of(log_id)
    if segment.header is None:
        followers = whole_frames(segment.data, seal, SEGMENT_HEADER_BYTES)
        return replace(segment, followers=followers)
    found = scan(segment.data, seal)
    followers = segment.followers
    if found.gap is not None:
        followers = whole_frames(segment.data, seal, aligned(found.end + 1))
    return replace(segment, frames=found.frames, end=found.end, gap=found.gap, followers=followers)
