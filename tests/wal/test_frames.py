"""The bytes of the log; the fast readers and writers equal the plain ones."""

from __future__ import annotations

import struct
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from lakelog.errors import WalCorruptionError
from lakelog.wal import encode, frames, reading, scan
from lakelog.wal.encode import Framing, columns_of, pack_columns, pack_records
from lakelog.wal.frames import FLAG_BATCH, FrameHeader, Seal, SegmentHeader, frame_pieces
from lakelog.wal.log import WriteAheadLog
from tests.budget import share_of
from tests.wal import plain
from tests.wal.damage import settings

LOG_ID = bytes(range(16))
SEAL = Seal.of(LOG_ID)
HEADER = SegmentHeader(LOG_ID, 7, 5, 3, 1_700_000_000_000)
FRAMING = Framing(SEAL, "none", 1 << 20)

texts = st.binary(max_size=24) | st.just(frames.FRAME_MAGIC.to_bytes(4, "little") * 4)
records = st.tuples(st.integers(1, 4), texts, st.none() | texts)
batches = st.lists(records, min_size=1, max_size=70)


def joined(pieces: list[Any]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)


def test_segment_header_bytes_are_unchanged() -> None:
    assert len(HEADER.pack()) == 64
    assert SegmentHeader.parse(HEADER.pack() + b"more", "p") == HEADER
    assert HEADER.pack().hex() == (
        "894c4b5701000000000102030405060708090a0b0c0d0e0f0700000000000000"
        "050000000000000003000000000000000068e5cf8b01000000000000c6e66525"
    )


def test_short_header_raises_corruption_error() -> None:
    with pytest.raises(WalCorruptionError, match="too short"):
        SegmentHeader.parse(HEADER.pack()[:63], "p")


def test_frame_of_a_40_byte_record_has_104_bytes() -> None:
    (frame,) = pack_records(b"\1", [b"k" * 16], [b"v" * 24], 1, 0, FRAMING)
    assert len(frame) == 104


def test_bytes_of_a_one_record_frame_are_unchanged() -> None:
    frame = joined(pack_records(b"\1", [b"key"], [b"value"], 7, 16, FRAMING, is_batch=True))
    assert frame.hex() == (
        "4b51a3f728000000070000000000000001000000010002002800000003000000"
        "010000000000000000000000030000000000000005000000"
        "6b6579000000000076616c7565000000"
        "02000000" + frame[-4:].hex()
    )
    crc = google_crc32c.extend(SEAL.start, frame[:-4]) ^ SEAL.mark
    assert frame[-4:] == crc.to_bytes(4, "little")


@given(st.lists(st.binary(max_size=40), max_size=20), st.binary(min_size=16, max_size=16))
def test_checksum_over_complete_frames_returns_to_its_start_value(
    payloads: list[bytes], log_id: bytes
) -> None:
    seal = Seal.of(log_id)
    run = b"".join(joined(frame_pieces(FrameHeader(len(p), 1, 0), [p], 0, seal)) for p in payloads)
    assert google_crc32c.extend(seal.start, run) == seal.start


@given(batches, st.booleans())
def test_packing_by_record_and_by_column_gives_the_same_bytes(
    batch: list[tuple[int, bytes, bytes | None]], compressed: bool
) -> None:
    framing = Framing(SEAL, "zstd" if compressed else "none", 1 << 20)
    ops = bytes(op for op, _, _ in batch)
    keys, values = [key for _, key, _ in batch], [value for _, _, value in batch]
    one = joined(pack_records(ops, keys, values, 9, 24, framing, is_batch=True))
    ((pieces, count),) = pack_columns(columns_of(ops, keys, values), 9, 24, framing)
    assert count == len(batch)
    assert joined(pieces) == one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "LARGE_BYTES", 0)
        large = pack_records(ops, keys, values, 9, 24, framing, is_batch=True)
    assert len(large) > 1
    assert joined(large) == one


@given(st.lists(st.none() | st.binary() | st.integers(250, 300).map(bytes)))
def test_column_equals_the_arrow_array(items: list[bytes | None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "pandas", raising=False)
        column = encode.column_of(items)
    column.validate(full=True)
    assert column.equals(pa.array(items, pa.large_binary()))


@given(batches, st.integers(10, 200), st.integers(0, 3))
def test_batch_split_into_frames_has_all_records(
    batch: list[tuple[int, bytes, bytes | None]], frame_bytes: int, skipped: int
) -> None:
    framing = Framing(SEAL, "none", frame_bytes)
    ops, keys, values = zip(*batch, strict=True)
    columns = columns_of(bytes(ops), keys, values)
    # A column that is part of a larger one.
    sliced = encode.Columns(
        columns.ops[skipped:], columns.keys.slice(skipped), columns.values.slice(skipped)
    )
    found = list(pack_columns(sliced, 1, 0, framing, commit=3))
    data = HEADER.pack() + b"".join(joined(pieces) for pieces, _ in found)
    read = plain.read_frames(data, LOG_ID)
    assert [frame.records for frame in read] == [count for _, count in found]
    assert [bool(frame.flags & 1) for frame in read] == [True] * (len(read) - 1) + [False]
    assert all(frame.flags & FLAG_BATCH for frame in read)
    assert [frame.unsynced_bytes for frame in read] == list(
        accumulate((frame.end - frame.offset for frame in read[:-1]), initial=0)
    )
    got = [record[1:] for frame in read for record in plain.frame_records(frame)]
    names = [(plain.OPS[op], key, value) for op, key, value in batch[skipped:]]
    assert got == [*names, ("COMMIT", b"", None)]


def build(
    groups: list[tuple[list[tuple[int, bytes, bytes | None]], int, bool]],
) -> tuple[bytes, list[plain.Record]]:
    """A segment of frames: each a list of records, with or without compression."""
    data = SegmentHeader(LOG_ID, 1, 1, 0, 0).pack()
    model = []
    seq = 1
    for batch, times, compressed in groups:
        framing = Framing(SEAL, "zstd" if compressed else "none", 1 << 20)
        ops, keys, values = zip(*batch, strict=True)
        for _ in range(times):
            data += joined(pack_records(bytes(ops), keys, values, seq, 0, framing))
            for op, key, value in batch:
                model.append(plain.Record(seq, plain.OPS[op], key, value))
                seq += 1
    return data, model


groups_of_frames = st.lists(
    st.tuples(
        st.lists(records, min_size=1, max_size=8), st.sampled_from([1, 3, 20, 140]), st.booleans()
    ),
    min_size=1,
    max_size=6,
)


def fast(data: bytes, after_seq: int = 0, *, controls: bool = True) -> list[tuple[Any, ...]]:
    buffer = pa.py_buffer(data)
    found = scan.scan(buffer, SEAL)
    assert found.gap is None
    parts = reading.pieces(buffer, found.frames, "p", after_seq, controls=controls)
    table = reading.table(list(parts))
    table.validate(full=True)
    return [tuple(row.values()) for row in table.to_pylist()]


@given(groups_of_frames, st.integers(0, 300))
@hypothesis_settings(max_examples=share_of(60), deadline=None)
def test_fast_decode_equals_plain_decode(
    groups: list[tuple[list[tuple[int, bytes, bytes | None]], int, bool]], after_seq: int
) -> None:
    data, model = build(groups)
    read = [r for f in plain.read_frames(data, LOG_ID) for r in plain.frame_records(f)]
    assert read == model
    assert fast(data) == read
    later = [record for record in read if record.seq > after_seq]
    assert fast(data, after_seq) == later
    assert fast(data, after_seq, controls=False) == [
        record for record in later if record.op in {"PUT", "DELETE"}
    ]


@st.composite
def similar_frames(draw: st.DrawFn) -> list[Any]:
    """Frames of a few sizes at most, often with one change to one of them."""
    shape = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=3))
    numbers = st.integers(0, 255)
    found: list[Any] = []
    for first in range(draw(st.sampled_from([2, 14, 40, 150]))):
        batch = [
            (1 + (first + n) % 4, bytes([first]) * k, b"v" * v) for n, (k, v) in enumerate(shape)
        ]
        found.append((batch, 1, False))
    at = draw(st.integers(0, len(found) - 1))
    op, key, value = found[at][0][0]
    change = draw(st.sampled_from(["none", "longer", "moved", "null", "other", "more"]))
    changed = found[at][0]
    if change == "longer":
        changed[0] = (op, key, value + b"+" * draw(st.integers(1, 9)))
    elif change == "moved":  # as long as before, most likely
        changed[0] = (op, key + b"+", value[1:])
    elif change == "null":
        changed[0] = (op, key, None)
    elif change == "other":
        changed[0] = (op % 4 + 1, bytes([draw(numbers)]) * len(key), value)
    elif change == "more":
        changed.append(changed[0])
    return found


@given(similar_frames(), st.integers(0, 100))
@hypothesis_settings(max_examples=share_of(80), deadline=None)
def test_fast_decode_of_similar_frames_equals_plain_decode(
    groups: list[Any], after_seq: int
) -> None:
    data, model = build(groups)
    assert fast(data) == model
    later = [record for record in model if record.seq > after_seq]
    assert fast(data, after_seq, controls=False) == [
        record for record in later if record.op in {"PUT", "DELETE"}
    ]


def test_similar_frames_in_large_pages_are_decoded_correctly() -> None:
    count, value = 1500, bytes(range(250)) * 6
    singles: list[Any] = [([(1, b"%06d" % n, value)], 1, False) for n in range(count)]
    data, model = build(singles)
    assert len(data) > reading.LARGE_PAGE_BYTES
    assert fast(data) == model


@given(groups_of_frames, st.data())
@hypothesis_settings(max_examples=share_of(60), deadline=None)
def test_flipped_bit_ends_the_scan_at_its_frame(
    groups: list[tuple[list[tuple[int, bytes, bytes | None]], int, bool]], choose: st.DataObject
) -> None:
    whole, _ = build(groups)
    data = bytearray(whole)
    at = choose.draw(st.integers(64, len(data) - 1))
    data[at] ^= 1 << choose.draw(st.integers(0, 7))
    before = [f.end for f in plain.read_frames(whole, LOG_ID) if f.end <= at]
    found = scan.scan(pa.py_buffer(bytes(data)), SEAL)
    assert found.frames.ends.tolist() == before
    assert found.gap is not None
    assert found.gap.offset == found.end == [64, *before][-1]
    # The frames after the damage are found again.
    rest = scan.whole_frames(pa.py_buffer(bytes(data)), SEAL, found.end + 8)
    after = [f for f in plain.read_frames(whole, LOG_ID) if f.offset > at]
    assert [n for n in rest.offsets.tolist() if n > at] == [f.offset for f in after]


def test_small_frames_are_found_despite_frame_headers_in_values() -> None:
    decoy = FrameHeader(16, 1, 1).pack() + bytes(24)
    groups: list[Any] = [([(1, b"k", decoy)], 300, False), ([(1, b"k", b"v")], 300, False)]
    data, model = build([*groups, ([(1, b"k", b"v" * 5000)], 70, False), *groups])
    assert fast(data) == model


def test_inconsistent_frame_with_a_valid_checksum_is_refused() -> None:
    def segment(ends: tuple[int, int], op: int, times: int) -> pa.Buffer:
        payload = struct.pack("<B7x4i", op, 0, ends[0], 0, ends[1]) + bytes(16)
        header = FrameHeader(len(payload), 1, 1, raw_bytes=len(payload), key_bytes=8)
        frame = joined(frame_pieces(header, [payload], 0, SEAL))
        return pa.py_buffer(HEADER.pack() + frame * times)

    for times in (1, 40):
        for ends, op in (((8, 8), 1), ((9, 8), 1), ((8, 9), 1), ((8, -1), 1), ((8, 8), 5)):
            buffer = segment(ends, op, times)
            found = scan.scan(buffer, SEAL)
            assert len(found.frames) == times
            if (ends, op) == ((8, 8), 1):
                assert sum(map(len, reading.pieces(buffer, found.frames, "p"))) == times
                continue
            with pytest.raises(WalCorruptionError, match="inconsistent"):
                list(reading.pieces(buffer, found.frames, "p"))


def test_one_inconsistent_frame_among_many_is_refused() -> None:
    def frame(key_bytes: int) -> bytes:
        payload = struct.pack("<B7x4i", 1, 0, 8, 0, 8) + bytes(16)
        header = FrameHeader(len(payload), 1, 1, raw_bytes=len(payload), key_bytes=key_bytes)
        return joined(frame_pieces(header, [payload], 0, SEAL))

    buffer = pa.py_buffer(HEADER.pack() + frame(8) * 20 + frame(7) + frame(8) * 20)
    with pytest.raises(WalCorruptionError, match="inconsistent"):
        list(reading.pieces(buffer, scan.scan(buffer, SEAL).frames, "p"))


def test_mark_among_similar_frames_is_not_read_as_a_record() -> None:
    for marks in (1, 2):
        data, model = build([([(1, b"key", b"value")], 60, False)])
        size = (len(data) - 64) // 60
        mark = frames.mark_frame(frames.KIND_TRUNCATION, 31, 0, 0, SEAL) * marks
        at = 64 + 30 * size
        assert fast(data[:at] + mark + data[at:]) == model


def test_frames_shorter_than_their_content_are_refused() -> None:
    header = FrameHeader(8, 1, 1, raw_bytes=8, key_bytes=0)
    frame = joined(frame_pieces(header, [b"\1" + bytes(7)], 0, SEAL))
    for times in (1, 40):
        buffer = pa.py_buffer(HEADER.pack() + frame * times)
        frames = scan.scan(buffer, SEAL).frames
        assert len(frames) == times
        with pytest.raises(WalCorruptionError, match="inconsistent"):
            list(reading.pieces(buffer, frames, "p"))


def test_columns_of_a_large_frame_are_not_copied(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path, **settings()) as log:
        log.append_table(pa.table({"op": ["PUT"] * 500, "key": ["k"] * 500, "value": ["v"] * 500}))
        before = pa.total_allocated_bytes()
        table = log.replay()
        assert table["value"].nbytes > 2000
        assert pa.total_allocated_bytes() - before < 2000
        np.testing.assert_array_equal(table["seqNum"], np.arange(1, 501))
