"""Specification 002, and a test that each weakness of its program is absent."""

from __future__ import annotations

import struct
from collections.abc import Sequence

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
from tests.wal.historic_model import Record, Writer002, decode_002, record_002, table

COLUMNS = ["seqNum", "op", "key", "value"]
BATCH = [("PUT", b"a", b"1"), ("DELETE", b"b", b""), ("PUT", b"c", b"3")]


def read(*files: bytes, strict: bool = True) -> HistoricLog:
    log = decode([(f"{n:06d}.wal", data) for n, data in enumerate(files, 1)], "002")
    if strict:
        log.check()
    return log


def plain(chosen: pa.Table) -> pa.Table:
    op = chosen["op"].cast(pa.string())
    return chosen.set_column(1, "op", op).select(COLUMNS).combine_chunks()


def assert_holds(log: HistoricLog, records: Sequence[Record]) -> None:
    assert plain(log.records).to_pylist() == table(records).to_pylist()


def replayed(log: HistoricLog, after_seq: int = 0) -> list[int]:
    seqs: list[int] = log.replay(after_seq)["seqNum"].to_pylist()
    return seqs


def kinds(log: HistoricLog) -> list[str]:
    return [finding.kind for finding in log.findings]


def only(log: HistoricLog) -> Finding:
    (finding,) = log.findings
    return finding


def puts(count: int, first: int = 1) -> list[bytes]:
    return [record_002(n, "PUT", b"k%d" % n, b"v%d" % n) for n in range(first, first + count)]


def test_record_has_the_documented_bytes() -> None:
    expected = "1700000040d5ecc1010000000000000001010000006b0100000076"
    assert record_002(1, "PUT", b"k", b"v").hex() == expected
    assert_holds(read(bytes.fromhex(expected)), [Record(1, "PUT", b"k", b"v")])


CALLS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["PUT", "DELETE", "CHECKPOINT"]),
            st.binary(max_size=12),
            st.binary(max_size=40),
        ),
        st.lists(
            st.tuples(
                st.sampled_from(["PUT", "DELETE"]), st.binary(max_size=9), st.binary(max_size=9)
            ),
            max_size=5,
        ),
    ),
    max_size=60,
)


@given(CALLS, st.booleans(), st.integers(40, 4_000), st.integers(1, 1 << 40))
def test_decode_equals_plain_decode(
    calls: list[tuple[str, bytes, bytes] | list[tuple[str, bytes, bytes]]],
    marks_batches: bool,
    rotate_bytes: int,
    first_seq: int,
) -> None:
    writer = Writer002(marks_batches=marks_batches, rotate_bytes=rotate_bytes, first_seq=first_seq)
    for call in calls:
        if isinstance(call, list):
            writer.append_batch(call)
        else:
            writer.append(*call)
        writer.rotate()
    files = list(writer.named().values())
    assert decode_002(files) == writer.records
    log = read(*files)
    assert_holds(log, writer.records)
    assert log.findings == ()
    for after_seq in (0, first_seq + len(writer.records) // 2):
        expected = [
            record.seq
            for record in writer.records
            if record.op in ("PUT", "DELETE") and record.seq > after_seq
        ]
        assert replayed(log, after_seq) == expected
    assert sum(file.records for file in log.files) == len(writer.records)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0, 3, 60]))
@settings(max_examples=share_of(15), deadline=None)
def test_decode_of_a_long_log_equals_plain_decode(seed: int, copies: int) -> None:
    # Values that hold records themselves must not mislead the reader.
    rng = np.random.default_rng(seed)
    inner = b"".join(puts(copies, first=int(rng.integers(1, 500))))
    writer = Writer002(marks_batches=True, rotate_bytes=50_000)
    for _ in range(60):
        value = inner + rng.bytes(int(rng.integers(0, 30)))
        batch = [("PUT", rng.bytes(int(rng.integers(0, 20))), value) for _ in range(30)]
        writer.append_batch(batch)
    assert_holds(read(*writer.named().values()), writer.records)


# --- the weaknesses -------------------------------------------------------------------------------


def test_a_tail_torn_at_every_byte_is_left_out_and_reported() -> None:
    intact = b"".join(puts(3))
    last = record_002(4, "PUT", b"key", b"value")
    for cut in range(1, len(last)):
        log = read(intact + last[:cut])
        assert (log.last_seq, log.records.num_rows) == (3, 3)
        found = only(log)
        assert (found.kind, found.byte_offset, found.size_bytes) == ("torn_tail", len(intact), cut)


def test_a_tail_of_zero_bytes_is_left_out_and_reported() -> None:
    intact = b"".join(puts(3))
    for count in (1, 24, 25, 5_000):
        log = read(intact + bytes(count))
        assert log.last_seq == 3
        assert (only(log).kind, only(log).size_bytes) == ("torn_tail", count)
        assert "zero" in only(log).reason


def test_append_after_a_torn_tail_is_read() -> None:
    # The program did not trim on opening: it appended after the torn bytes, and read no further.
    one, two, torn, three = puts(4)
    again = record_002(3, "PUT", b"again", b"v")
    for cut in range(1, len(torn)):
        log = read(one + two + torn[:cut] + again + three)
        assert log.records["seqNum"].to_pylist() == [1, 2, 3, 4]
        assert log.records["key"][2].as_py() == b"again"
        found = only(log)
        assert (found.kind, found.byte_offset) == ("torn_append", len(one + two))
        assert found.size_bytes == cut
        assert not found.is_damage


def test_append_after_a_torn_first_append_is_read() -> None:
    (record,) = puts(1)
    log = read(record[:20] + record)
    assert (log.last_seq, kinds(log)) == (1, ["torn_append"])


def test_a_log_whose_first_records_are_cut_off_is_damaged() -> None:
    log = read(b"".join(puts(3))[5:], strict=False)
    assert log.records.num_rows == 0
    assert (only(log).is_damage, only(log).expected, only(log).found) == (True, 1, 2)


def test_gap_after_a_torn_tail_in_a_middle_file_raises_corruption_error() -> None:
    one, two, three, four = puts(4)
    with pytest.raises(WalCorruptionError) as caught:
        read(one + two[:-1], three + four)
    error = caught.value
    assert (error.path, error.byte_offset) == ("000001.wal", len(one))
    assert (error.expected, error.found) == (2, 3)
    assert (error.safe_seq, error.safe_records) == (1, 1)
    log = read(one + two[:-1], three + four, strict=False)
    assert replayed(log) == [1]
    assert only(log).size_bytes == len(two) - 1 + len(three + four)


def test_torn_tail_in_a_middle_file_loses_nothing_if_numbers_continue() -> None:
    one, two, three, _ = puts(4)
    log = read(one + two[:-1], two + three)
    assert replayed(log) == [1, 2, 3]
    assert kinds(log) == ["torn_append"]


@pytest.mark.parametrize("at", range(4, 16), ids=lambda at: "crc" if at < 8 else "seq")
def test_flipped_byte_of_checksum_or_sequence_number_is_detected(at: int) -> None:
    records = puts(5)
    for index in range(5):
        data = bytearray(b"".join(records))
        offset = len(records[0]) * index
        data[offset + at] ^= 0x40
        log = read(bytes(data), strict=False)
        if index == 4 and at < 8:
            # The last record, with a checksum that does not agree, is a state that a crash may
            # leave.
            assert (log.last_seq, kinds(log)) == (4, ["torn_tail"])
            continue
        assert log.records.num_rows == index
        assert only(log).is_damage
        assert only(log).byte_offset == offset
        with pytest.raises(WalCorruptionError):
            log.check()


@pytest.mark.parametrize("at", [0, 1, 2, 3, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26, 27, 28])
def test_flipped_byte_of_length_operation_key_or_value_is_detected(at: int) -> None:
    records = puts(4)
    for bit in (1, 0x10, 0x80):
        data = bytearray(b"".join(records))
        data[len(records[0]) + at] ^= bit
        log = read(bytes(data), strict=False)
        assert log.records.num_rows == 1
        assert (only(log).is_damage, only(log).byte_offset) == (True, len(records[0]))
        assert (only(log).expected, only(log).found) == (2, 3)


@pytest.mark.parametrize("length", range(22))
def test_length_that_is_too_small_is_reported_as_damage(length: int) -> None:
    one, two, three, four = puts(4)
    short = struct.pack("<I", length) + two[4:]
    with pytest.raises(WalCorruptionError, match="missing"):
        read(one + short + three + four)
    log = read(one + short)
    assert (log.last_seq, kinds(log)) == (1, ["torn_tail"])


def test_an_unfinished_batch_at_the_end_is_never_replayed() -> None:
    writer = Writer002(marks_batches=True)
    writer.append_batch(BATCH)
    end = len(writer.files[0])
    for count in range(1, 4):
        data = bytes(writer.files[0]) + record_002(6, "BEGIN")
        data += b"".join(puts(count, first=7))
        for tail in (b"", record_002(7 + count, "PUT", b"x" * 9)[:-3]):
            log = read(data + tail)
            assert replayed(log) == [2, 3, 4]
            assert log.last_seq == 6 + count
            found = next(finding for finding in log.findings if finding.kind != "torn_tail")
            assert (found.kind, found.records) == ("unfinished_batch", count)
            assert (found.byte_offset, found.size_bytes) == (end, len(data) - end)


def test_after_seq_inside_an_unfinished_batch_skips_the_batch() -> None:
    data = b"".join([*puts(2), record_002(3, "BEGIN"), *puts(5, first=4)])
    log = read(data)
    for after_seq in range(10):
        assert replayed(log, after_seq) == [n for n in (1, 2) if n > after_seq]


def test_after_seq_inside_a_finished_batch_returns_its_rest() -> None:
    data = b"".join([record_002(1, "BEGIN"), *puts(3, first=2), record_002(5, "COMMIT")])
    assert replayed(read(data), 3) == [4]


def test_an_unfinished_batch_before_a_torn_append_ends_there() -> None:
    data = b"".join([record_002(1, "BEGIN"), *puts(2, first=2), record_002(4, "PUT")[:-1]])
    log = read(data + b"".join(puts(3, first=4)))
    assert replayed(log) == [4, 5, 6]
    assert kinds(log) == ["unfinished_batch", "torn_append"]


@pytest.mark.parametrize("mark", ["BEGIN", "CHECKPOINT"])
def test_batch_without_a_known_end_is_damage(mark: str) -> None:
    # The single records after it may be part of it, or not: replaying them may replay half of a
    # batch, leaving them out may lose what was acknowledged.
    before = b"".join(puts(2))
    data = before + b"".join([record_002(3, "BEGIN"), *puts(2, first=4)])
    data += b"".join([record_002(6, mark), *puts(1, first=7), record_002(8, "COMMIT")])
    log = read(data + b"torn", strict=False)
    assert replayed(log) == [1, 2]
    assert (only(log).is_damage, only(log).byte_offset, only(log).records) == (True, len(before), 6)
    assert log.files[0].records == 2


def test_batch_without_records_is_ignored() -> None:
    data = b"".join([record_002(1, "BEGIN"), record_002(2, "BEGIN"), *puts(1, first=3)])
    log = read(data + record_002(4, "COMMIT"))
    assert (replayed(log), log.findings) == ([3], ())


def test_unfinished_batch_without_begin_is_counted_as_undecided() -> None:
    writer = Writer002(marks_batches=False)
    writer.append_batch(BATCH)
    assert read(*writer.named().values()).undecided_records == 0
    writer.append_batch(BATCH, is_finished=False)
    log = read(*writer.named().values())
    assert not log.marks_batches
    assert (log.undecided_records, log.findings) == (3, ())
    assert replayed(log) == [1, 2, 3, 5, 6, 7]


def test_unfinished_batches_end_where_the_log_was_opened_again() -> None:
    ops = ["BEGIN", "PUT", "COMMIT", "PUT", "BEGIN", "DELETE", "BEGIN", "PUT", "PUT", "CHECKPOINT"]
    ops += ["BEGIN", "PUT"]
    records = [record_002(n, op, b"k") for n, op in enumerate(ops, 1)]
    log = read(b"".join(records), strict=False)
    assert (replayed(log), kinds(log), only(log).records) == ([2, 4], ["damage"], 8)
    # Torn bytes before records 7 and 9 prove that the batches before them ended there.
    records[6] = records[6][:-1] + records[6]
    records[8] = records[8][:-1] + records[8]
    log = read(b"".join(records))
    unfinished = [found for found in log.findings if found.kind == "unfinished_batch"]
    assert [found.records for found in unfinished] == [1, 1, 1]
    assert unfinished[1].byte_offset == sum(map(len, records[:6])) + len(records[6]) // 2
    assert replayed(log) == [2, 4, 9]


# --- files ----------------------------------------------------------------------------------------


FILES = [b"".join(puts(3)), b"".join(puts(3, first=4)), b"".join(puts(3, first=7))]


def test_a_missing_first_file_is_a_log_that_was_truncated() -> None:
    log = read(*FILES[1:])
    assert (replayed(log), log.findings) == ([4, 5, 6, 7, 8, 9], ())
    assert [(file.first_seq, file.last_seq) for file in log.files] == [(4, 6), (7, 9)]


@pytest.mark.parametrize(
    ("files", "safe", "expected", "found"),
    [
        pytest.param([FILES[0], FILES[2]], 3, 4, 7, id="missing"),
        pytest.param([FILES[0], FILES[0], FILES[1]], 3, 4, 1, id="doubled"),
        pytest.param([FILES[0], FILES[2], FILES[1]], 3, 4, 7, id="out of order"),
    ],
)
def test_files_with_noncontiguous_numbers_are_damage(
    files: list[bytes], safe: int, expected: int, found: int
) -> None:
    with pytest.raises(WalCorruptionError) as caught:
        read(*files)
    error = caught.value
    assert (error.path, error.byte_offset) == ("000002.wal", 0)
    assert (error.safe_seq, error.expected, error.found) == (safe, expected, found)
    log = read(*files, strict=False)
    assert replayed(log) == [1, 2, 3]
    assert only(log).size_bytes == sum(map(len, files[1:]))


def test_empty_file_is_ignored_at_any_position() -> None:
    for at in range(4):
        log = read(*FILES[:at], b"", *FILES[at:])
        assert (replayed(log), log.findings) == (list(range(1, 10)), ())
        assert log.files[at].first_seq is None
    assert (read(b"").records.num_rows, read(b"").last_seq) == (0, 0)
    assert read().records.num_rows == 0


def test_foreign_file_is_damage_and_not_a_torn_tail() -> None:
    foreign = b"this is a text that somebody left, and no log"
    for files, expected in (([*FILES, foreign], 9), ([foreign], 0)):
        log = read(*files, strict=False)
        assert log.last_seq == expected
        assert only(log).is_damage
        assert only(log).reason == "the file does not begin with a record"
    with pytest.raises(WalCorruptionError):
        read(foreign, *FILES[1:])


def test_a_last_file_with_a_torn_first_record_is_a_torn_tail() -> None:
    (record,) = puts(1, first=10)
    for cut in range(1, len(record)):
        log = read(*FILES, record[:cut])
        assert (log.last_seq, kinds(log)) == (9, ["torn_tail"])


def test_torn_tail_may_span_files() -> None:
    (record,) = puts(1, first=10)
    log = read(*FILES[:2], FILES[2] + record[:-1], b"", bytes(100))
    assert (log.last_seq, kinds(log)) == (9, ["torn_tail", "torn_tail"])


def test_the_safe_prefix_of_a_log_damaged_anywhere_is_exact() -> None:
    rng = np.random.default_rng(5)
    records = puts(400)
    data = b"".join(records)
    starts = np.cumsum([0, *map(len, records)])
    for _ in range(60):
        at = int(rng.integers(0, len(data) - len(records[-1])))
        damaged = bytearray(data)
        damaged[at] ^= int(rng.integers(1, 256))
        index = int(np.searchsorted(starts, at, side="right")) - 1
        log = read(bytes(damaged), strict=False)
        assert log.records.num_rows == index, at
        assert_holds(log, [Record(n, "PUT", b"k%d" % n, b"v%d" % n) for n in range(1, index + 1)])
        assert only(log).is_damage
        assert only(log).byte_offset == starts[index]


def test_damage_followed_by_many_bytes_is_found() -> None:
    one = record_002(1, "PUT", b"k", bytes(300_000))
    two, three = puts(2, first=2)
    damaged = bytearray(one + two + three)
    damaged[100_000] = 1
    log = read(bytes(damaged), strict=False)
    assert only(log).is_damage
    assert only(log).found == 2


def test_value_too_large_for_arrow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_LONGEST_VALUE_BYTES", 1_000)
    with pytest.raises(UnsupportedError, match="2 GiB") as caught:
        read(b"".join(puts(3)), record_002(4, "PUT", b"k", bytes(2_000)))
    assert (caught.value.path, caught.value.byte_offset) == ("000002.wal", 0)
