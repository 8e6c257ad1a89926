"""Decodes the frames of a recovered log to Arrow tables: records and state.

`lakelog.wal.encode` describes the parts of a payload. In frames of equal layout, such as appends of
equal size, each part is a column with a constant stride: a million records are copied in a few
calls.

The columns of a large frame are used without copying. Small frames are gathered: an Arrow column
over the whole segment is created, in which every other element is a key (or a value) and the
elements between are the bytes between them; Arrow's ``take`` then copies the keys (or values).
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.arrow_arrays import array_of, as_mask
from lakelog.errors import WalCorruptionError
from lakelog.wal.frames import CODEC_NONE, COMMIT, FLAG_NULLS, FRAME_HEADER_BYTES, KIND_RECORDS, OPS
from lakelog.wal.recovery import Verdict
from lakelog.wal.scan import Frames, word_rows
from lakelog.wal.segments import Segment, are_small, of_segments, parts_of

_Ops = npt.NDArray[np.uint8]
_Seqs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordColumns:
    """Contiguous records as columns: sequence numbers, operation codes, keys and values."""

    seqs: _Seqs
    ops: _Ops
    keys: pa.BinaryArray
    values: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.ops)

    def slice(self, start: int, length: int) -> RecordColumns:
        """Some of the records, without copying."""
        end = start + length
        return RecordColumns(
            self.seqs[start:end],
            self.ops[start:end],
            self.keys.slice(start, length),
            self.values.slice(start, length),
        )

    def data_only(self) -> RecordColumns:
        """Without COMMIT and CHECKPOINT."""
        controls = np.flatnonzero(self.ops >= COMMIT)
        if not len(controls):
            return self
        if controls[0] == len(self) - len(controls):  # all control records are at the end
            return self.slice(0, int(controls[0]))
        mask = self.ops < COMMIT
        arrow = as_mask(mask)
        return RecordColumns(
            self.seqs[mask], self.ops[mask], self.keys.filter(arrow), self.values.filter(arrow)
        )


def _layout_of(count: Any, key_bytes: Any, has_nulls: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Offsets of payload parts: key offsets, value offsets, value validity, keys, values."""
    key_offsets = count + 7 & -8
    offsets_bytes = 4 * (count + 1) + 7 & -8
    value_offsets = key_offsets + offsets_bytes
    validity = value_offsets + offsets_bytes
    keys = validity + (count + 63 >> 6 << 3) * has_nulls
    return key_offsets, value_offsets, validity, keys, keys + (key_bytes + 7 & -8)


def check(
    ops: _Ops, key_ends: Any, value_ends: Any, key_bytes: int, room: int, place: tuple[str, int]
) -> None:
    """Raise for offsets or codes with which Arrow would read outside the frame."""
    if (
        key_ends[0] == value_ends[0] == 0
        and key_ends[-1] == key_bytes
        and value_ends[-1] <= room
        and (key_ends[1:] >= key_ends[:-1]).all()
        and (value_ends[1:] >= value_ends[:-1]).all()
        and _are_known(ops)
    ):
        return
    raise contradiction(*place, "ascending offsets and known operations", "others")


def _are_known(ops: _Ops) -> bool:
    """Whether all codes are known operations."""
    return not len(ops) or bool(ops.min() >= 1 and ops.max() <= len(OPS))


def contradiction(path: str, offset: int, expected: str, found: str) -> WalCorruptionError:
    """The error for a whole frame with inconsistent parts."""
    return WalCorruptionError(
        "a frame of a write-ahead log is inconsistent",
        path=path,
        byte_offset=offset,
        expected=expected,
        found=found,
        hint="its checksum matches, so this is a bug of the program that wrote it",
    )


MOST_BYTES = 1 << 30
"""Maximum bytes to gather at once, so that 32-bit offsets suffice."""

LARGE_PAGE_BYTES = 1 << 21
"""Usual size of a large page of the processor, in bytes."""

_ALIKE_WORDS = (0, 2, 3)  # words of a header, except its sequence number

_Bytes = npt.NDArray[np.uint8]


def repeated(data: pa.Buffer, frames: Frames, path: str) -> RecordColumns | None:
    """The records of consecutive frames with equal layout; None for others."""
    first = frames[:1]
    times, start = len(frames), int(first.offsets[0])
    step = int(first.ends[0]) - start
    if (
        first.flags[0] & FLAG_NULLS
        or times * step > MOST_BYTES
        or int(frames.offsets[-1]) - start != (times - 1) * step
        or any((frames.headers[:, n] != first.headers[0, n]).any() for n in _ALIKE_WORDS)
    ):
        return None
    count, key_bytes = int(first.counts[0]), int(first.key_bytes[0])
    at = _layout_of(count, key_bytes, False)
    room = int(first.payload_bytes[0]) - at[4]
    if room < 0:
        raise contradiction(path, start, "parts that fit in their frames", "others")

    def rows(part: int, size: int) -> _Bytes:
        place = start + FRAME_HEADER_BYTES + part
        return np.ndarray((times, size), np.uint8, data, place, (step, 1))

    offsets = rows(at[0], at[2] - at[0]).view("<u8")
    if (offsets != offsets[0]).any():
        return None
    key_ends, value_ends = offsets[0].view("<i4").reshape(2, -1)[:, : count + 1]
    ops = rows(0, count).ravel()
    check(ops, key_ends, value_ends, key_bytes, room, (path, start))
    seqs = frames.first_seq
    if count != 1:
        seqs = np.add.outer(seqs, np.arange(count)).ravel()
    value_bytes = int(value_ends[-1])
    both = _new(times * (key_bytes + value_bytes))
    keys, values = both[: times * key_bytes], both[times * key_bytes :]
    for target, part, size in ((keys, at[3], key_bytes), (values, at[4], value_bytes)):
        if size:
            row = np.dtype(f"V{size}")  # one item per row, so that a row is copied in one call
            target.view(row)[:] = rows(part, size).view(row)[:, 0]
    return RecordColumns(
        seqs, ops, _binary(key_ends, times, keys), _binary(value_ends, times, values)
    )


def _binary(ends: npt.NDArray[np.int32], times: int, data: _Bytes) -> pa.BinaryArray:
    """Elements with these offsets, repeated."""
    each = len(ends) - 1
    offsets = np.empty(times * each + 1, dtype=np.int32)
    starts = np.arange(times, dtype=np.int32) * ends[-1]
    np.add(starts[:, None], ends[:-1], out=offsets[:-1].reshape(times, each))
    offsets[-1] = len(data)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), times * each, buffers, 0)


def _new(size_bytes: int) -> _Bytes:
    """Memory, in huge pages if large: mapping small pages takes longer than filling them."""
    if size_bytes < LARGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(size_bytes, dtype=np.uint8)
    whole_pages = -(-size_bytes // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
    room = mmap.mmap(-1, whole_pages, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # for kernels without huge pages
        room.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(room, dtype=np.uint8)[:size_bytes]


SCHEMA = pa.schema(
    [
        pa.field("seqNum", pa.int64(), nullable=False),
        pa.field("op", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
"""Schema of replayed records, which are ordered by sequence number."""

_SMALL_RECORDS = 128
_SMALL_BYTES = 8192
_FEW_FRAMES = 12
_SINGLE_BYTES = 24  # bytes of one record's operation and offsets
_GATHER_FRAMES = 1 << 15  # so that intermediate arrays fit in the CPU cache


def pieces(
    data: pa.Buffer, frames: Frames, path: str, after_seq: int = 0, *, controls: bool = False
) -> Iterator[RecordColumns]:
    """The records of a segment's frames, in order."""
    for piece in _raw(data, _wanted(frames, after_seq), path):
        skipped = int(np.searchsorted(piece.seqs, after_seq, side="right"))
        rest = piece.slice(skipped, len(piece) - skipped) if skipped else piece
        if not controls:
            rest = rest.data_only()
        if len(rest):
            yield rest


def _wanted(frames: Frames, after_seq: int) -> Frames:
    is_wanted = frames.kinds == KIND_RECORDS
    if len(frames) and frames.headers[0, 1] <= after_seq:  # the sequence number of the first frame
        is_wanted &= frames.next_seq > after_seq + 1
    if is_wanted.all():
        return frames
    wanted = np.flatnonzero(is_wanted)
    if len(wanted) and wanted[-1] - wanted[0] == len(wanted) - 1:
        return frames[wanted[0] : wanted[-1] + 1]  # a slice, without copying
    return frames[wanted]


def table(parts: list[RecordColumns]) -> pa.Table:
    """Pieces as one table of `SCHEMA`, without copying keys and values."""
    if not parts:
        return pa.Table.from_batches([], SCHEMA)
    ops = np.concatenate([part.ops for part in parts])
    ops -= np.uint8(1)
    seqs = [part.seqs for part in parts]
    return pa.Table.from_arrays(
        [
            array_of(pa.int64(), seqs[0] if len(seqs) == 1 else np.concatenate(seqs)),
            pa.DictionaryArray.from_arrays(array_of(pa.int8(), ops), _names()),
            pa.chunked_array([part.keys for part in parts], pa.binary()),
            pa.chunked_array([part.values for part in parts], pa.binary()),
        ],
        schema=SCHEMA,
    )


@cache
def _names() -> pa.StringArray:
    """Names of the operations."""
    offsets = np.cumsum([0, *map(len, OPS)], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer("".join(OPS).encode())]
    return pa.Array.from_buffers(pa.string(), len(OPS), buffers, 0)


def _raw(data: pa.Buffer, frames: Frames, path: str) -> Iterator[RecordColumns]:
    if len(frames) > _FEW_FRAMES and _are_small(frames[:1])[0]:
        alike = repeated(data, frames, path)
        if alike is not None:
            yield alike
            return
    small = _are_small(frames)
    changes = np.flatnonzero(small[1:] != small[:-1]) + 1
    limits = [0, *changes.tolist(), len(frames)] if len(frames) else []
    for low, high in pairwise(limits):
        run = frames[low:high]
        if small[low] and high - low > _FEW_FRAMES:
            yield from _gathered(data, run, path)
        else:
            yield from _one_by_one(data, run, path)


def _are_small(frames: Frames) -> npt.NDArray[np.bool_]:
    """Whether each frame is cheaper to gather with others than to read separately."""
    is_short: npt.NDArray[np.bool_] = frames.counts < _SMALL_RECORDS
    is_short &= frames.payload_bytes < _SMALL_BYTES
    is_short &= frames.codecs == CODEC_NONE
    return is_short


def _one_by_one(data: pa.Buffer, frames: Frames, path: str) -> Iterator[RecordColumns]:
    columns = (
        frames.offsets,
        frames.payload_bytes,
        frames.first_seq,
        frames.counts,
        frames.codecs,
        frames.flags,
        frames.raw_bytes,
        frames.key_bytes,
    )
    for offset, size, first, count, codec, flags, raw, key_bytes in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        payload = data.slice(offset + FRAME_HEADER_BYTES, size)
        if codec != CODEC_NONE:
            payload = _unpacked(payload, raw, path, offset)
        has_nulls = bool(flags & FLAG_NULLS)
        at = _layout_of(count, key_bytes, has_nulls)
        if payload.size < at[4]:
            raise contradiction(path, offset, f"at least {at[4]} bytes", f"{payload.size}")
        ops = np.frombuffer(payload, dtype=np.uint8, count=count)
        key_ends = np.frombuffer(payload, dtype="<i4", count=count + 1, offset=at[0])
        value_ends = np.frombuffer(payload, dtype="<i4", count=count + 1, offset=at[1])
        check(ops, key_ends, value_ends, key_bytes, payload.size - at[4], (path, offset))
        keys = pa.Array.from_buffers(
            pa.binary(), count, [None, payload.slice(at[0]), payload.slice(at[3], key_bytes)], 0
        )
        validity = payload.slice(at[2]) if has_nulls else None
        values = pa.Array.from_buffers(
            pa.binary(),
            count,
            [validity, payload.slice(at[1]), payload.slice(at[4])],
            -1 if has_nulls else 0,
        )
        yield RecordColumns(np.arange(first, first + count), ops, keys, values)


def _unpacked(payload: pa.Buffer, raw_bytes: int, path: str, offset: int) -> pa.Buffer:
    try:
        return pa.decompress(payload, raw_bytes, codec="zstd")
    except (OSError, ValueError) as cause:
        raise contradiction(path, offset, "a zstd frame", str(cause)) from cause


def _gathered(data: pa.Buffer, frames: Frames, path: str) -> Iterator[RecordColumns]:
    ends = frames.ends
    low = 0
    while low < len(frames):
        limit = int(frames.offsets[low]) + MOST_BYTES
        high = int(np.searchsorted(ends, limit, side="right"))
        high = min(max(low + 1, high), low + _GATHER_FRAMES)
        yield _gather(data, frames[low:high], path)
        low = high


def _gather(data: pa.Buffer, frames: Frames, path: str) -> RecordColumns:
    base = int(frames.offsets[0])
    data = data.slice(base, int(frames.ends[-1]) - base)
    counts = frames.counts
    payload = frames.offsets - base + FRAME_HEADER_BYTES
    has_nulls = (frames.flags & FLAG_NULLS) != 0
    layout = _layout_of(counts, frames.key_bytes, has_nulls)
    key_offsets, value_offsets, validity, keys, values = (payload + part for part in layout)
    sizes = np.asarray(layout[4])
    if not (sizes <= frames.payload_bytes).all():
        raise contradiction(path, base, "parts that fit in their frames", "others")
    if (counts == 1).all():
        return _gather_single(data, frames, (payload, keys, values), has_nulls, path)
    total = int(counts.sum())
    # Per record: its frame's columns, and its index in the frame.
    spread: Callable[[Any], Any] = lambda column: np.repeat(column, counts)
    within = np.arange(total) - spread(np.cumsum(counts) - counts)
    seqs = spread(frames.first_seq) + within
    array = np.frombuffer(data, dtype=np.uint8)
    words = np.frombuffer(data, dtype="<i4", count=data.size // 4)
    ops = array[spread(payload) + within]
    key_at = spread(key_offsets >> 2) + within
    value_at = spread(value_offsets >> 2) + within
    key_low, key_high = words[key_at], words[key_at + 1]
    value_low, value_high = words[value_at], words[value_at + 1]
    room = spread(frames.payload_bytes - sizes)
    if not (
        (words[key_offsets >> 2] == 0).all()
        and (words[value_offsets >> 2] == 0).all()
        and (key_low <= key_high).all()
        and (key_high <= spread(frames.key_bytes)).all()
        and (value_low <= value_high).all()
        and (value_high <= room).all()
        and _are_known(ops)
    ):
        raise contradiction(path, base, "ascending offsets and known operations", "others")
    is_there = None
    if has_nulls.any():
        bits = array[np.minimum(spread(validity) + (within >> 3), len(array) - 1)]
        is_there = ((bits >> (within & 7)) & 1).astype(bool) | ~spread(has_nulls)
    return RecordColumns(
        seqs,
        ops,
        _taken(data, spread(keys), key_low, key_high, None),
        _taken(data, spread(values), value_low, value_high, is_there),
    )


def _gather_single(
    data: pa.Buffer,
    frames: Frames,
    places: tuple[Any, Any, Any],
    has_nulls: npt.NDArray[np.bool_],
    path: str,
) -> RecordColumns:
    """As `_gather`, for frames of one record: the first three payload parts have eight bytes."""
    words = np.frombuffer(data, dtype="<u8", count=data.size // 8)
    payload, keys, values = places
    parts = word_rows(words, payload >> 3, 3)
    offsets = parts.view("<i4")
    ops = parts.view(np.uint8)[:, 0].copy()
    key_high, value_high = offsets[:, 3].astype(np.int64), offsets[:, 5].astype(np.int64)
    if not (
        not (offsets[:, 2] | offsets[:, 4]).any()
        and np.array_equal(key_high, frames.key_bytes)
        and value_high.min() >= 0
        and (values + value_high <= payload + frames.payload_bytes).all()
        and _are_known(ops)
    ):
        at = int(frames.offsets[0])
        raise contradiction(path, at, "ascending offsets and known operations", "others")
    is_there = None
    if has_nulls.any():
        is_there = ~has_nulls
        is_there[has_nulls] = words[(payload[has_nulls] + _SINGLE_BYTES) >> 3] & np.uint64(1)
    return RecordColumns(
        frames.first_seq,
        ops,
        _taken(data, keys, 0, key_high, None),
        _taken(data, values, 0, value_high, is_there),
    )


def _taken(
    data: pa.Buffer, at: Any, low: Any, high: Any, is_there: npt.NDArray[np.bool_] | None
) -> pa.BinaryArray:
    """The ascending spans of the data from `at` + `low` to `at` + `high`, as a column."""
    count = len(at)
    limits = np.empty(2 * count + 1, dtype=np.int32)
    limits[0:-1:2] = at + low
    limits[1:-1:2] = at + high
    limits[-1] = limits[-2]
    spans = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(limits), data], 0)
    taken = spans.take(array_of(pa.int32(), np.arange(0, 2 * count, 2, dtype=np.int32)))
    if is_there is None or is_there.all():
        return taken
    bits = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), count, [bits, *taken.buffers()[1:]])


_STATE_SCHEMA = pa.schema([SCHEMA.field("key"), SCHEMA.field("value"), SCHEMA.field("seqNum")])
"""Schema of `state_of`."""

_PUT_INDEX = 0  # index of PUT among the names of the operations


def tables_of(verdict: Verdict, after_seq: int = 0) -> Iterator[pa.Table]:
    """A log's records, control marks included, one table per segment."""
    after_seq = max(after_seq, verdict.truncated_to)
    segments = list(reversed(verdict.live))
    del verdict  # so that a segment is released once the caller has no table of it
    while segments:
        found = _table_of_one(segments.pop(), after_seq, controls=True)
        if found.num_rows:
            yield found


def table_of(verdict: Verdict, after_seq: int = 0) -> pa.Table:
    """A log's PUT and DELETE records as one table."""
    after_seq = max(after_seq, verdict.truncated_to)
    decode = partial(_table_of_one, after_seq=after_seq)
    if are_small(verdict.live):
        found = of_segments(decode, [part for each in verdict.live for part in parts_of(each)])
    else:
        found = list(map(decode, verdict.live))
    return pa.concat_tables([pa.Table.from_batches([], SCHEMA), *found])


def _table_of_one(segment: Segment, after_seq: int, *, controls: bool = False) -> pa.Table:
    found = pieces(segment.data, segment.frames, segment.path, after_seq, controls=controls)
    return table(list(found))


def state_of(records: pa.Table) -> pa.Table:
    """The state of PUT and DELETE records: the last value of each key that was not deleted."""
    import polars as pl  # imported here, because a log that is only written does not need it

    from lakelog.model.reconcile import last_wins

    keys = pl.DataFrame({"key": pl.from_arrow(records["key"])}).with_row_index("row")
    last = last_wins(keys, ["key"])["row"].to_numpy()
    indices = (chunk.indices for chunk in records["op"].chunks)
    parts = (np.frombuffer(i.buffers()[1], np.int8)[i.offset :][: len(i)] for i in indices)
    codes = np.concatenate([np.empty(0, np.int8), *parts])
    kept = np.zeros(len(codes), dtype=bool)
    kept[last] = True
    kept &= codes == _PUT_INDEX
    rows = records if kept.all() else records.filter(as_mask(kept))
    return rows.select(_STATE_SCHEMA.names).cast(_STATE_SCHEMA)
