"""The columnar decode of the historic formats is the plain one, also where bytes are damaged."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from lakelog.wal.historic import log, spec002, spec003
from lakelog.wal.historic.log import OPERATIONS
from tests.wal.historic_model import (
    Record,
    decode_003,
    record_002,
    record_003,
    sound_002,
    sound_003,
    table,
)

SEEDS = range(24)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small log has many, and records that are longer than one."""
    monkeypatch.setattr(log, "_CACHED_BYTES", 2_000)
    monkeypatch.setattr(log, "_PIECE_BYTES", 9_000)


def content(rng: random.Random, longest: int) -> bytes:
    size = rng.choice([0, rng.randint(0, 9), rng.randint(0, longest)])
    return bytes(size) if rng.random() < 0.1 else rng.randbytes(size)


def contents(rng: random.Random) -> list[tuple[bytes, bytes]]:
    """Keys and values: most of them short, in some logs all of one length."""
    if rng.random() < 0.3:
        key, value = rng.randint(0, 30), rng.randint(0, 60)
        return [(rng.randbytes(key), rng.randbytes(value)) for _ in range(800)]
    longest = rng.choice([20, 20, 900])
    found = [(content(rng, longest), content(rng, 60)) for _ in range(600)]
    for _ in range(rng.randint(0, 2)):
        found[rng.randrange(600)] = (content(rng, 600), rng.randbytes(5_000))
    return found


def damage(rng: random.Random, data: bytes) -> bytes:
    """No damage, a few changed bytes, a hole of zeros, a piece that is missing or there twice."""
    damaged = bytearray(data)
    at = rng.randrange(len(data))
    kind = rng.randrange(6)
    if kind == 1:
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        size = rng.randint(1, 4_000)
        damaged[at : at + size] = bytes(len(damaged[at : at + size]))
    elif kind == 3:
        del damaged[at : at + rng.randint(1, 200)]
    elif kind == 4:
        damaged[at:at] = damaged[at : at + rng.randint(1, 200)]
    elif kind == 5:
        del damaged[at:]
    return bytes(damaged)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_of_002_is_what_the_plain_decode_takes(seed: int) -> None:
    rng = random.Random(seed)
    first = rng.randint(1, 1 << 40)
    data = b"".join(
        record_002(seq, rng.choice(OPERATIONS), key, value)
        for seq, (key, value) in enumerate(contents(rng), first)
    )
    data = damage(rng, data)
    records, end = sound_002(data)
    run = spec002.read_run(np.frombuffer(data, np.uint8), 0)
    expected = table(records)
    assert run.end == end
    assert run.seqs.tolist() == expected["seqNum"].to_pylist()
    assert [OPERATIONS[op - 1] for op in run.ops] == expected["op"].to_pylist()
    assert (run.keys, run.values) == (expected["key"], expected["value"])


def rows(records: pa.Table) -> list[dict[str, object]]:
    op = records["op"].cast(pa.string())
    found: list[dict[str, object]] = (
        records.set_column(1, "op", op).drop_columns(["isCommitted"]).to_pylist()
    )
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_checked_file_of_003_is_what_the_plain_decode_takes(seed: int) -> None:
    rng = random.Random(seed)
    data = b"".join(record_003(key, value, is_checked=True) for key, value in contents(rng))
    data = damage(rng, data)
    records, end = sound_003(data)
    log = spec003.decode("wal.log", np.frombuffer(data, np.uint8), is_checked=True)
    assert rows(log.records) == table(records).to_pylist()
    assert [finding.byte_offset for finding in log.findings] == [end] * (end < len(data))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plain_file_of_003_is_what_the_plain_decode_takes(seed: int) -> None:
    rng = random.Random(seed)
    pairs = [(b"k" + key.hex().encode(), value) for key, value in contents(rng)]
    data = b"".join(record_003(key, value, is_checked=False) for key, value in pairs)
    data += b"\1\0\0\2k"[: rng.randint(0, 5)]
    log = spec003.decode("wal.log", np.frombuffer(data, np.uint8), is_checked=False)
    whole = b"".join(record_003(key, value, is_checked=False) for key, value in pairs)
    assert rows(log.records) == table(decode_003(whole, is_checked=False)).to_pylist()
    assert sum(finding.size_bytes for finding in log.findings) == len(data) - len(whole)


def test_damage_in_two_records_that_differ_alike_is_seen() -> None:
    # What one changes in a checksum over both must not be what the other changes back.
    for distance in (1, 2, 7, 64):
        records = [record_002(n, "PUT", b"key", bytes([n] * 40)) for n in range(1, 80)]
        plain = [record_003(b"key", bytes([n] * 40), is_checked=True) for n in range(1, 80)]
        for made, decode, at in ((records, sound_002, 40), (plain, sound_003, 30)):
            changed = [bytearray(record) for record in made]
            for index in (10, 10 + distance):
                changed[index][at] ^= 0xFF
            data = b"".join(changed)
            assert decode(data)[0] == decode(b"".join(made[:10]))[0]
            array = np.frombuffer(data, np.uint8)
            if made is records:
                assert len(spec002.read_run(array, 0).seqs) == 10
            else:
                log = spec003.decode("wal.log", array, is_checked=True)
                assert log.records.num_rows == 10


def test_two_values_that_changed_places_are_seen() -> None:
    one, two = record_002(1, "PUT", b"k", b"a" * 30), record_002(2, "PUT", b"k", b"b" * 30)
    changed = one[:-30] + two[-30:] + two[:-30] + one[-30:]
    assert sound_002(changed) == ([], 0)
    assert len(spec002.read_run(np.frombuffer(changed, np.uint8), 0).seqs) == 0
    assert sound_002(one + two)[0] == [
        Record(1, "PUT", b"k", b"a" * 30),
        Record(2, "PUT", b"k", b"b" * 30),
    ]


def test_records_behind_two_gibibytes_are_read() -> None:
    data = np.zeros((1 << 31) + 100, dtype=np.uint8)  # of which no more is there than is written to
    data[-10:] = np.frombuffer(b"keyx.value", np.uint8)
    at = len(data) - 10
    bounds = np.array([[at, at + 3, at + 5, at + 10]], dtype=np.int64)
    keys, values = log.binary_columns(data, bounds)
    assert (keys.to_pylist(), values.to_pylist()) == ([b"key"], [b"value"])
