"""Specification 003 without and with checksums, and which of its weaknesses can be repaired."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.errors import UnsupportedError, WalCorruptionError
from lakelog.wal.historic import reader
from lakelog.wal.historic.log import Finding, HistoricLog
from lakelog.wal.historic.reader import decode
from tests.budget import share_of
from tests.wal.historic_model import decode_003, file_003, record_003, table

BOTH = pytest.mark.parametrize("is_checked", [False, True], ids=["plain", "checked"])
RECORDS = [(b"key-%d" % n, b"value-%d" % n) for n in range(20)]


def read(data: bytes, *, is_checked: bool, strict: bool = True) -> HistoricLog:
    log = decode([("wal.log", data)], "003-crc" if is_checked else "003")
    if strict:
        log.check()
    return log


def rows(log: HistoricLog) -> list[dict[str, Any]]:
    chosen = log.records.drop_columns(["isCommitted"])
    found: list[dict[str, Any]] = chosen.set_column(
        1, "op", chosen["op"].cast(pa.string())
    ).to_pylist()
    return found


def only(log: HistoricLog) -> Finding:
    (finding,) = log.findings
    return finding


def pairs(log: HistoricLog) -> list[tuple[bytes, bytes]]:
    return [(row["key"], row["value"] or b"") for row in rows(log)]


KEYS = st.text(min_size=1, max_size=12).map(lambda text: text.encode())


@BOTH
@given(st.lists(st.tuples(KEYS, st.binary(max_size=30))))
def test_decode_equals_plain_decode(is_checked: bool, records: list[tuple[bytes, bytes]]) -> None:
    data = file_003(records, is_checked=is_checked)
    log = read(data, is_checked=is_checked)
    assert rows(log) == table(decode_003(data, is_checked=is_checked)).to_pylist()
    assert log.findings == ()
    assert (log.is_checked, log.marks_batches) == (is_checked, False)
    assert log.replay(1).num_rows == max(len(records) - 1, 0)
    assert log.last_seq == len(records)


@BOTH
@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 4, 40]))
@settings(max_examples=share_of(10), deadline=None)
def test_decode_of_a_long_file_equals_plain_decode(
    is_checked: bool, seed: int, copies: int
) -> None:
    # Values that hold records themselves must not mislead the reader.
    rng = np.random.default_rng(seed)
    inner = file_003(RECORDS[:copies], is_checked=is_checked)
    records = [(b"%d" % n, inner + rng.bytes(int(rng.integers(0, 40)))) for n in range(2_000)]
    data = file_003(records, is_checked=is_checked)
    assert pairs(read(data, is_checked=is_checked)) == records


@BOTH
def test_an_empty_value_is_a_tombstone(is_checked: bool) -> None:
    data = file_003([(b"a", b"1"), (b"a", b"")], is_checked=is_checked)
    assert rows(read(data, is_checked=is_checked)) == [
        {"seqNum": 1, "op": "PUT", "key": b"a", "value": b"1"},
        {"seqNum": 2, "op": "DELETE", "key": b"a", "value": None},
    ]


@BOTH
def test_a_tail_torn_at_every_byte_is_left_out_and_reported(is_checked: bool) -> None:
    intact = file_003(RECORDS, is_checked=is_checked)
    last = record_003(b"the last key", b"the last value", is_checked=is_checked)
    for cut in range(1, len(last)):
        log = read(intact + last[:cut], is_checked=is_checked)
        assert pairs(log) == RECORDS
        found = only(log)
        assert (found.kind, found.byte_offset, found.size_bytes) == ("torn_tail", len(intact), cut)


@BOTH
@pytest.mark.parametrize("count", [1, 7, 8, 12, 4_096, 100_000])
def test_tail_of_zero_bytes_is_not_read_as_a_tombstone(is_checked: bool, count: int) -> None:
    intact = file_003(RECORDS, is_checked=is_checked)
    log = read(intact + bytes(count), is_checked=is_checked)
    assert pairs(log) == RECORDS
    assert (only(log).kind, only(log).size_bytes) == ("torn_tail", count)
    assert "zero" in only(log).reason
    assert read(bytes(count), is_checked=is_checked).records.num_rows == 0


def test_zero_bytes_do_not_turn_a_cut_put_into_a_tombstone() -> None:
    intact = file_003(RECORDS, is_checked=False)
    cut = struct.pack(">I", 3) + b"key" + bytes(200)
    log = read(intact + cut, is_checked=False, strict=False)
    assert pairs(log) == RECORDS
    assert (only(log).is_damage, only(log).byte_offset) == (True, len(intact))


def test_incomplete_length_after_a_tombstone_does_not_affect_it() -> None:
    intact = file_003([*RECORDS, (b"gone", b"")], is_checked=False)
    for cut in range(1, 4):
        log = read(intact + record_003(b"key", b"value", is_checked=False)[:cut], is_checked=False)
        assert pairs(log) == [*RECORDS, (b"gone", b"")]
        assert (only(log).kind, only(log).size_bytes) == ("torn_tail", cut)


@pytest.mark.parametrize("kept", range(4))
@pytest.mark.parametrize("value", [b"v", b"val"])
def test_length_lost_at_a_sector_boundary_is_not_read_as_a_tombstone(
    value: bytes, kept: int
) -> None:
    # `kept` bytes of the value's length are before the sector boundary.
    key = b"k" * (512 - kept - 4)
    whole = record_003(key, value, is_checked=False)
    log = read(whole[:512] + bytes(len(whole) - 512), is_checked=False, strict=False)
    assert only(log).is_damage
    assert pairs(log) == []


def test_zero_bytes_between_records_are_damage() -> None:
    data = file_003(RECORDS[:10], is_checked=False)
    log = read(
        data + bytes(512) + file_003(RECORDS[10:], is_checked=False), is_checked=False, strict=False
    )
    assert only(log).is_damage
    # The record before them is not safe: its length may be wrong.
    assert pairs(log) == RECORDS[:9]
    assert (only(log).records, only(log).byte_offset) == (1, len(data) - len(data) // 10)


@BOTH
def test_append_after_a_torn_tail_is_damage(is_checked: bool) -> None:
    # Without sequence numbers, records may be missing in between.
    intact = file_003(RECORDS[:5], is_checked=is_checked)
    torn = record_003(b"torn", b"value", is_checked=is_checked)[:-2]
    with pytest.raises(WalCorruptionError):
        read(intact + torn + file_003(RECORDS[5:], is_checked=is_checked), is_checked=is_checked)


def test_every_flipped_byte_of_a_checked_file_is_found() -> None:
    data = file_003(RECORDS[:4], is_checked=True)
    size = len(data) // 4
    for at in range(len(data)):
        for bit in (1, 0x80):
            damaged = bytearray(data)
            damaged[at] ^= bit
            log = read(bytes(damaged), is_checked=True, strict=False)
            assert pairs(log) == RECORDS[: at // size]
            found = only(log)
            assert found.byte_offset == at // size * size
            # A crash may leave this in the last record; elsewhere complete records follow.
            assert found.kind == ("torn_tail" if at >= 3 * size else "damage")


def test_a_flipped_length_in_a_plain_file_never_gives_a_wrong_record() -> None:
    data = file_003(RECORDS[:8], is_checked=False)
    size = len(data) // 8
    for index in range(6):
        # Except a length that covers complete records up to the last one: that is undetectable.
        for at in (0, 1, 2, 3, 9, 10, 11, 12):
            damaged = bytearray(data)
            damaged[index * size + at] ^= 4
            log = read(bytes(damaged), is_checked=False, strict=False)
            assert only(log).is_damage
            found = pairs(log)
            assert found == RECORDS[: len(found)]
            assert len(found) >= index - 1


def test_changed_value_in_a_plain_file_is_undetected_and_is_checked_is_false() -> None:
    data = bytearray(file_003(RECORDS, is_checked=False))
    data[-1] ^= 1
    log = read(bytes(data), is_checked=False)
    assert (log.findings, log.is_checked) == ((), False)


def test_checksum_is_verified_before_the_key_is_decoded() -> None:
    # The program decoded the key first, so that a flipped byte was an error of the wrong kind.
    data = bytearray(file_003(RECORDS, is_checked=True))
    data[8] = 0xFF
    with pytest.raises(WalCorruptionError, match="checksum"):
        read(bytes(data), is_checked=True)


def test_key_that_is_not_utf8_is_kept_if_its_checksum_is_valid() -> None:
    data = file_003([(b"\xff", b"v")], is_checked=True)
    assert pairs(read(data, is_checked=True)) == [(b"\xff", b"v")]


def test_key_that_is_not_utf8_is_damage_without_checksums() -> None:
    data = file_003([*RECORDS, (b"\xff", b"v"), (b"k", b"v")], is_checked=False)
    with pytest.raises(WalCorruptionError, match="UTF-8") as caught:
        read(data, is_checked=False)
    assert caught.value.safe_records == 19


def test_records_far_after_the_damage_are_found() -> None:
    for is_checked in (False, True):
        data = bytearray(file_003(RECORDS[:2], is_checked=is_checked))
        data[len(data) // 2 + 4 * is_checked] = 0x80  # the key's length
        data += file_003([(b"k", bytes([255]) * 3_000)], is_checked=is_checked)
        log = read(bytes(data), is_checked=is_checked, strict=False)
        assert only(log).is_damage
        # If the last record is torn, no complete record follows the damage.
        log = read(bytes(data)[:-1], is_checked=is_checked, strict=False)
        assert only(log).kind == "torn_tail"


def test_value_too_large_for_arrow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_LONGEST_VALUE_BYTES", 1_000)
    for is_checked in (False, True):
        data = file_003([(b"k", bytes(2_000) + b"v")], is_checked=is_checked)
        with pytest.raises(UnsupportedError, match="2 GiB") as caught:
            read(data, is_checked=is_checked)
        assert caught.value.path == "wal.log"
