"""The section "Reading" of ``schemas/wal.md``, one step after another, damage included.

The model for `lakelog.wal.recovery`. Imports nothing of lakelog.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from tests.wal import plain

CONTINUES, BATCH, JUMP = 1, 2, 4
RECORDS, TRUNCATION, SEAL = 1, 2, 3
ALL_ONES = 0xFFFFFFFF * 8


class DamagedError(Exception):
    """Damage by the definition of the page."""


class Header(NamedTuple):
    log_id: bytes
    first: int
    follows: int
    truncated_to: int


@dataclass
class Log:
    """The content of a log."""

    records: list[plain.Record] = field(default_factory=list)
    next_seq: int = 1
    truncated_to: int = 0
    torn_bytes: int = 0


def header_of(data: bytes) -> Header | None:
    """None if the header is incomplete."""
    if len(data) < 64 or data[:4] != b"\x89LKW":
        return None
    if google_crc32c.value(data[:60]).to_bytes(4, "little") != data[60:64]:
        return None
    return Header(*plain.read_header(data)[:4])


def read(directory: Path) -> Log:
    """All of a log.

    Raises:
        DamagedError: It is damaged.
    """
    names = sorted(directory.glob("[0-9]" * 20 + ".wal"))
    data = {path: path.read_bytes() for path in names}
    heads = {path: header_of(data[path]) for path in names}
    frames = {
        path: plain.read_frames(data[path], head.log_id) if head else []
        for path, head in heads.items()
    }
    log = Log()
    # 6: a segment that was never begun
    if names and heads[names[-1]] is None:
        last = data[names[-1]]
        if len(last) <= 64 or not any(last):
            before = names[-2] if len(names) > 1 else None
            is_sealed = before is not None and any(each.kind == SEAL for each in frames[before])
            if is_sealed or (before is None and int(names[-1].stem) != 1):
                raise DamagedError("a header is lost")
            names.pop()
    # 1: truncated records
    for path in names:
        head = heads[path]
        if head is not None:
            marks = [each.payload for each in frames[path] if each.kind == TRUNCATION]
            marked = [int.from_bytes(mark, "little") for mark in marks]
            log.truncated_to = max(log.truncated_to, head.truncated_to, *marked)
    while len(names) > 1:
        head = heads[names[1]]
        if head is None or head.follows - 1 > log.truncated_to:
            break
        del names[0]
    # 2: segments follow one another
    expected, log_id = None, None
    for path in names:
        head = heads[path]
        if head is None:
            raise DamagedError("a header")
        log_id = log_id or head.log_id
        if head.log_id != log_id or int(path.stem) != head.first:
            raise DamagedError("a segment of another log, or a wrong name")
        if head.follows > log.truncated_to + 1 if expected is None else head.follows != expected:
            raise DamagedError("records between segments are missing or duplicated")
        is_last = path == names[-1]
        _read_segment(log, head, data[path], frames[path], is_last=is_last)
        expected = log.next_seq
    log.records = [each for each in log.records if each.seq > log.truncated_to]
    return log


def _read_segment(
    log: Log, head: Header, data: bytes, frames: list[plain.Frame], *, is_last: bool
) -> None:
    log.next_seq = head.first
    safe = at = 64  # end of the accepted frames, and of all frames
    safe_seq, batch, is_open, is_sealed = head.first, [], False, False
    for frame in frames:
        is_jump = bool(frame.flags & JUMP) and frame.first_seq > log.next_seq
        if is_sealed or (frame.first_seq != log.next_seq and not is_jump):
            raise DamagedError("a frame does not follow")
        if is_open and not frame.flags & BATCH:
            raise DamagedError("a batch is not continued")
        if frame.kind == RECORDS:
            batch += plain.frame_records(frame)
        is_sealed = frame.kind == SEAL
        is_open = bool(frame.flags & CONTINUES)
        log.next_seq, at = frame.first_seq + frame.records, frame.end
        if not is_open:
            if frame.flags & BATCH and [each.op for each in batch[-1:]] != ["COMMIT"]:
                raise DamagedError("a batch without its COMMIT")
            log.records += batch
            batch, safe, safe_seq = [], at, log.next_seq
    missing, log.next_seq = log.next_seq, safe_seq
    if not is_last:
        if is_open:
            raise DamagedError("a batch is not finished")
        return
    if is_sealed:
        raise DamagedError("the last segment is missing")
    for place in range((at + 7) // 8 * 8, len(data) - 39, 8):
        if _proves(data, place, head.log_id, missing, at):
            raise DamagedError("a later frame proves it durable")
    log.torn_bytes = len(data) - safe


def _proves(data: bytes, place: int, log_id: bytes, missing: int, at: int) -> bool:
    if struct.unpack_from("<I", data, place)[0] != 0xF7A3514B:
        return False
    found = plain.read_frames(data[place - 64 :], log_id)[:1]  # it skips the length of a header
    return any(
        each.first_seq >= missing
        and each.unsynced_bytes != ALL_ONES
        and place - each.unsynced_bytes > at
        for each in found
    )
