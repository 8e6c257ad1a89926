"""Deletion vectors: decoded as the format specifies, and rejected if they are invalid."""

from __future__ import annotations

import io
import random
import struct
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from lakelog.data import deletion_vectors
from lakelog.data.deletion_vectors import Vector, VectorReader, VectorWriter, decode_vector
from lakelog.errors import CorruptionError, InvalidActionError, NotFoundError
from lakelog.storage import open_store
from tests.data.vector_writer import MAGIC, framed, runs, serialised, serialised_early, z85

EXAMPLE = [3, 4, 7, 11, 18, 29]


def stored(data: bytes, cardinality: int, offset: int = 1) -> Vector:
    return Vector("v.bin", None, offset, len(data), cardinality)


def read(content: bytes, vector: Vector) -> list[int]:
    reader = VectorReader(lambda _path: io.BytesIO(content))
    try:
        return [int(row) for row in reader.read(vector)]
    finally:
        reader.close()


def test_example_of_the_protocol_is_decoded() -> None:
    text = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    assert read(b"", Vector(None, text, 0, 40, 6)) == EXAMPLE


@pytest.mark.parametrize("seed", range(8))
def test_written_vectors_are_read_back(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sets: list[list[int]] = []
    for _ in range(4):
        rows: set[int] = set()
        for _ in range(rng.randrange(1, 5)):
            base = rng.choice([0, 1 << 16, 5 << 16, 3 << 32])
            step, count = rng.choice([1, 2, 7]), rng.choice([1, 9, 5_000, 60_000])
            rows.update(base + rng.randrange(9) + step * n for n in range(count))
        sets.append(sorted(rows))
    writer = VectorWriter(open_store(tmp_path), lambda: str(uuid.UUID(int=rng.getrandbits(128))))
    added = [writer.add(np.array(values, np.uint64)) for values in sets]
    writer.finish()
    files = pl.DataFrame(added, schema_overrides={"dvOffset": pl.Int32}).with_columns(
        path=pl.lit("data.parquet")
    )
    reader = VectorReader(lambda path: (tmp_path / path).open("rb"))
    found = [reader.read(vector) for vector in Vector.of(files) if vector is not None]
    reader.close()
    assert [rows.tolist() for rows in found] == sets
    for values, size in zip(sets, files["dvSizeInBytes"], strict=True):
        assert size <= len(serialised(values))


def test_inline_vector_in_the_portable_format_is_decoded() -> None:
    # Golden bytes in the form that Delta's tests use: little-endian magic, one bucket, one array.
    text = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    assert read(b"", Vector(None, text, 0, 44, 6)) == EXAMPLE
    assert z85(serialised(EXAMPLE)) == text


@pytest.mark.parametrize("seed", range(8))
def test_any_set_in_any_encoding_is_decoded(seed: int) -> None:
    random.seed(seed)
    values: set[int] = set()
    for _ in range(random.randrange(8)):
        base = random.choice([0, 1 << 16, 5 << 16, 7 << 32, (1 << 63) - (1 << 16)])
        match random.randrange(4):
            case 0:
                values |= {base + random.randrange(1 << 16) for _ in range(50)}
            case 1:
                values |= {base + n for n in random.sample(range(1 << 16), 9000)}
            case 2:
                start = random.randrange(60_000)
                values |= set(range(base + start, base + start + random.randrange(1, 5_000)))
            case 3:
                values |= {base, base + (1 << 16) - 1}
    expected = sorted(values)
    assert decode_vector(serialised(values)).tolist() == expected, f"seed {seed}"

    def mixed(key: int, values_of_key: list[int]) -> str:
        return "run" if key % 2 == 0 or len(runs(values_of_key)) < 3 else "plain"

    assert decode_vector(serialised(values, mixed)).tolist() == expected, f"seed {seed}"
    if all(value < 2 << 32 for value in values):
        assert decode_vector(serialised_early(values)).tolist() == expected, f"seed {seed}"


def test_full_container_is_decoded_in_both_encodings() -> None:
    values = range(1 << 16)
    assert decode_vector(serialised(values)).tolist() == list(values)
    assert decode_vector(serialised(values, lambda *_: "run")).tolist() == list(values)


def test_one_file_holds_many_vectors() -> None:
    first, second = serialised([1]), serialised(range(5000))
    content = b"\x01" + framed(first) + framed(second)
    assert read(content, stored(first, 1)) == [1]
    assert read(content, stored(second, 5000, offset=1 + len(framed(first)))) == list(range(5000))


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "vector", "message"),
    [
        (flip(-1 % 49), {}, "checksum"),
        (flip(20), {}, "checksum"),
        (flip(0), {}, "unknown format version"),
        (flip(4), {}, "size of a deletion vector differs from the log"),
        (lambda content: content[:-3], {}, "is truncated"),
        (lambda _: b"", {}, "unknown format version"),
        (lambda content: content, {"cardinality": 5}, "more rows than the log records"),
        (
            lambda content: content,
            {"size_bytes": 12},
            "size of a deletion vector differs from the log",
        ),
        (lambda content: content, {"offset": 2}, "size of a deletion vector differs from the log"),
    ],
)
def test_damaged_stored_vector_raises_corruption_error(
    damage: Callable[[bytes], bytes], vector: dict[str, Any], message: str
) -> None:
    data = serialised(EXAMPLE)
    content = b"\x01" + framed(data)
    assert len(content) == 53
    known = Vector("v.bin", None, 1, 44, 6)
    with pytest.raises(CorruptionError, match=message) as caught:
        read(damage(content), replace(known, **vector))
    if "cardinality" not in vector:
        assert caught.value.path == "v.bin"
        assert caught.value.byte_offset is not None


@pytest.mark.parametrize("seed", range(3))
def test_changed_byte_without_checksum_raises_or_gives_a_valid_set(seed: int) -> None:
    random.seed(seed)
    data = serialised({*EXAMPLE, *range(70_000, 75_000), 9 << 32}, lambda k, _: "run" if k else "")
    outcomes = set()
    for at in range(0, len(data), 1 if len(data) < 200 else 37):
        changed = bytearray(data)
        changed[at] ^= random.randrange(1, 256)
        try:
            rows = decode_vector(bytes(changed)).tolist()
        except CorruptionError:
            outcomes.add("refused")
        else:
            # A different valid set: only the checksum can detect it.
            assert rows == sorted(set(rows)), f"seed {seed}, byte {at}"
            outcomes.add("different")
    assert "refused" in outcomes


@pytest.mark.parametrize("seed", range(3))
def test_truncated_vector_raises_corruption_error(seed: int) -> None:
    random.seed(seed)
    data = serialised({*EXAMPLE, *range(70_000, 72_000, 3)})
    for length in random.sample(range(len(data)), 60):
        with pytest.raises(CorruptionError):
            decode_vector(data[:length])
    with pytest.raises(CorruptionError, match="bytes follow"):
        decode_vector(data + b"\0")


@pytest.mark.parametrize("text", ["wi5b", "wi5b\\", "é" * 55, "0" * 50, ""])
def test_inline_vector_that_is_not_z85_or_too_short_raises(text: str) -> None:
    with pytest.raises(CorruptionError):
        read(b"", Vector(None, text, 0, 44, 6))


def test_inline_vector_may_have_a_short_last_group_as_of_rust() -> None:
    """Rust's crate z85 writes ``#`` for each missing byte, and then the others in base 85."""
    data = serialised(EXAMPLE[:1])
    assert len(data) % 4 == 2
    start, end = z85(data[:-2]), z85(b"\0\0" + data[-2:])
    assert end.startswith("00")
    assert read(b"", Vector(None, f"{start}##{end[2:]}", 0, len(data), 1)) == EXAMPLE[:1]
    for wrong in ("##%%%", "#####"):
        with pytest.raises(CorruptionError):
            read(b"", Vector(None, start + wrong, 0, len(data), 1))


def test_missing_vector_file_raises_not_found_error() -> None:
    def missing(path: str) -> io.BytesIO:
        raise NotFoundError("the file was not found", path=path)

    with pytest.raises(NotFoundError, match="deletion vector") as caught:
        VectorReader(missing).read(Vector("v.bin", None, 1, 44, 6))
    assert caught.value.path == "v.bin"


def descriptors(**columns: Any) -> pl.DataFrame:
    known = {
        "path": "a.parquet",
        "dvStorageType": "u",
        "dvPathOrInline": "ab^-aqEH.-t@S}K{vb[*k^",
        "dvOffset": 4,
        "dvSizeInBytes": 40,
        "dvCardinality": 6,
    }
    types = {"dvOffset": pl.Int32, "dvSizeInBytes": pl.Int32, "dvCardinality": pl.Int64}
    return pl.DataFrame([{**known, **columns}], schema_overrides=types)


def test_descriptors_give_the_locations_of_vectors() -> None:
    name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    assert Vector.of(descriptors()) == [Vector(f"ab/{name}", None, 4, 40, 6)]
    url = f"s3://mytable/a%20b/{name}"
    assert Vector.of(descriptors(dvStorageType="p", dvPathOrInline=url, dvOffset=None)) == [
        Vector(f"s3://mytable/a b/{name}", None, 0, 40, 6)
    ]
    text = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    assert Vector.of(descriptors(dvStorageType="i", dvPathOrInline=text, dvOffset=None)) == [
        Vector(None, text, 0, 40, 6)
    ]
    assert Vector.of(descriptors(dvStorageType=None, dvPathOrInline=None)) == [None]


def test_incomplete_or_unknown_descriptor_raises() -> None:
    with pytest.raises(CorruptionError, match="size or its cardinality"):
        Vector.of(descriptors(dvCardinality=None))
    with pytest.raises(InvalidActionError, match="unknown storage type"):
        Vector.of(descriptors(dvStorageType="x"))


def bomb(containers: int) -> bytes:
    """A set of 65,536 rows per container, in 12 bytes each."""
    count = struct.pack("<HH", 12347, containers - 1) + b"\xff" * -(-containers // 8)
    header = b"".join(struct.pack("<HH", key, 0xFFFF) for key in range(containers))
    body = struct.pack("<HHH", 1, 0, 0xFFFF) * containers
    return struct.pack("<IQI", MAGIC, 1, 0) + count + header + bytes(4 * containers) + body


def test_small_vector_of_many_rows_raises_before_it_is_expanded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = bomb(3000)
    assert len(data) < 50_000  # 196,608,000 rows: 1.5 GB
    expanded: list[int] = []
    whole = deletion_vectors._decode_container

    def counted(cursor: Any, size: int, is_run: bool) -> Any:
        expanded.append(size)
        return whole(cursor, size, is_run)

    monkeypatch.setattr(deletion_vectors, "_decode_container", counted)
    with pytest.raises(CorruptionError, match="more rows than the log records"):
        read(framed_file(data), stored(data, 5))
    reader = VectorReader(lambda _path: io.BytesIO(framed_file(data)))
    with pytest.raises(CorruptionError, match="more rows than the data file has"):
        reader.read(stored(data, 3000 << 16), rows=1000)
    assert not expanded
    small = bomb(4)
    assert len(read(framed_file(small), stored(small, 4 << 16))) == 4 << 16


def test_vector_of_an_impossible_size_is_not_allocated() -> None:
    data = serialised(EXAMPLE)
    huge = replace(stored(data, 6), size_bytes=1 << 50)
    with pytest.raises(CorruptionError):
        read(framed_file(data), huge)


def framed_file(data: bytes) -> bytes:
    return b"\x01" + framed(data)
