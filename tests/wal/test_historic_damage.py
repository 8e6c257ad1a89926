"""The reader of historic logs finds what the plain model finds, also in damaged bytes."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from lakelog.wal.historic import reader
from lakelog.wal.historic.reader import decode
from tests.wal.historic_model import (
    Record,
    decode_003,
    record_002,
    record_003,
    table,
    valid_prefix_002,
    valid_prefix_003,
)

SEEDS = range(24)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks, so that a small log has many, and records longer than one."""
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 4_000)


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
    """No damage, a few changed bytes, a hole of zeros, a missing or a repeated piece."""
    damaged = bytearray(data)
    at = rng.randrange(100, len(data))  # the first record's number is kept
    kind = rng.randrange(6)
    if kind == 1:
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(100, len(data))] ^= 1 << rng.randrange(8)
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


def rows(records: pa.Table) -> list[dict[str, object]]:
    op = records["op"].cast(pa.string())
    found: list[dict[str, object]] = (
        records.set_column(1, "op", op).drop_columns(["isCommitted"]).to_pylist()
    )
    return found


def plain_002(data: bytes) -> tuple[list[Record], bool]:
    """The records of a file up to the first wrong number; whether there is one."""
    found: list[Record] = []
    at = 0
    while at < len(data):
        records, size = valid_prefix_002(data[at:])
        for record in records:
            expected = found[-1].seq + 1 if found else 1 if at else record.seq
            if record.seq != expected:
                return found, True
            found.append(record)
        at += size or 1
    return found, False


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_file_of_002_is_decoded_like_the_model(seed: int) -> None:
    rng = random.Random(seed)
    first = rng.randint(1, 1 << 40)
    ops = ["PUT", "DELETE", "COMMIT", "CHECKPOINT"]
    data = b"".join(
        record_002(seq, rng.choice(ops), key, value)
        for seq, (key, value) in enumerate(contents(rng), first)
    )
    data = damage(rng, data)
    records, is_damaged = plain_002(data)
    log = decode([("000001.wal", data)], "002")
    assert rows(log.records) == table(records).to_pylist()
    assert (log.damage is not None) == is_damaged
    # Every byte is in a record or in a finding.
    whole = sum(len(record_002(each.seq, each.op, each.key, each.value)) for each in records)
    assert whole + sum(finding.size_bytes for finding in log.findings) == len(data)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_checked_file_of_003_is_decoded_like_the_model(seed: int) -> None:
    rng = random.Random(seed)
    data = b"".join(record_003(key, value, is_checked=True) for key, value in contents(rng))
    data = damage(rng, data)
    records, end = valid_prefix_003(data)
    log = decode([("wal.log", data)], "003-crc")
    assert rows(log.records) == table(records).to_pylist()
    assert [finding.byte_offset for finding in log.findings] == [end] * (end < len(data))


@pytest.mark.parametrize("seed", SEEDS)
def test_torn_plain_file_of_003_is_decoded_like_the_model(seed: int) -> None:
    rng = random.Random(seed)
    pairs = [(b"k" + key.hex().encode(), value) for key, value in contents(rng)]
    data = b"".join(record_003(key, value, is_checked=False) for key, value in pairs)
    data += b"\1\0\0\2k"[: rng.randint(0, 5)]
    log = decode([("wal.log", data)], "003")
    whole = b"".join(record_003(key, value, is_checked=False) for key, value in pairs)
    assert rows(log.records) == table(decode_003(whole, is_checked=False)).to_pylist()
    assert sum(finding.size_bytes for finding in log.findings) == len(data) - len(whole)
