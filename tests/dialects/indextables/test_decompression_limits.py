"""Small IndexTables log files that decompress to too much are rejected, with little memory."""

from __future__ import annotations

import bz2
import gzip
import importlib
import json
import lzma
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakelog.dialects.indextables import framing
from lakelog.dialects.indextables.avro import Container
from lakelog.dialects.indextables.framing import Framer, frame_as, unframe
from lakelog.errors import MalformedLogError
from tests.dialects.indextables.writing import PROTOCOL, Log, add, lines, metadata
from tests.limited import outcomes

_MANIFEST = "manifests/manifest-0123abcd.avro"
_SYNC = b"0123456789abcdef"
_MEBIBYTE = 1 << 20
_ENTRY = [
    {"name": "path", "type": "string"},
    {"name": "size", "type": "long"},
    {"name": "modificationTime", "type": "long"},
]
_ZEROS = b"\0" * _MEBIBYTE
_COPIES = 80  # of streams that expand to a mebibyte each: more than any short file may


def _long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _text(data: bytes) -> bytes:
    return _long(len(data)) + data


def _container(
    fields: object, count: int, block: bytes, codec: str = "null", size: int | None = None
) -> bytes:
    """An Avro container with one block, whose count and size may be false."""
    schema = {"type": "record", "name": "R", "fields": fields}
    pairs = {"avro.schema": json.dumps(schema), "avro.codec": codec}
    metadata = b"".join(_text(k.encode()) + _text(v.encode()) for k, v in pairs.items())
    head = b"Obj\x01" + _long(len(pairs)) + metadata + b"\0" + _SYNC
    return head + _long(count) + _long(len(block) if size is None else size) + block + _SYNC


def _deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def _zstandard(data: bytes) -> bytes:
    module = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return bytes(importlib.import_module(module).compress(data))


def _nested(fields: list[Any]) -> list[Any]:
    return [{"name": "x", "type": {"type": "record", "name": "R2", "fields": fields}}, *_ENTRY]


_ITEMS = {"name": "x", "type": {"type": "array", "items": "null"}}
MANIFESTS: dict[str, tuple[int, Callable[[], bytes]]] = {
    "records of no bytes": (10_000_000, lambda: _container([], 10_000_000, b"")),
    "null records": (
        10_000_000,
        lambda: _container([{"name": "x", "type": "null"}], 10_000_000, b""),
    ),
    "more records than bytes": (10_000_000, lambda: _container(_ENTRY, 10_000_000, b"\2a\2\2")),
    "more records than the state counts": (
        1,
        lambda: _container(_ENTRY, 2 << 20, b"\2a\2\2" * (2 << 20)),
    ),
    "a negative count": (1, lambda: _container(_ENTRY, -1, b"\2a\2\2")),
    "a negative size": (1, lambda: _container(_ENTRY, 1, b"\2a\2\2", size=-4)),
    "a size beyond the file": (1, lambda: _container(_ENTRY, 1, b"\2a\2\2", size=1 << 40)),
    "a text beyond the block": (1, lambda: _container(_ENTRY, 1, _long(1 << 40) + b"a\2\2")),
    "an array of nulls": (
        1,
        lambda: _container([_ITEMS, *_ENTRY], 1, _long(1 << 40) + b"\0\2a\2\2"),
    ),
    "a type that contains itself": (
        1,
        lambda: _container(_nested([{"name": "y", "type": "R2"}]), 1, b"a"),
    ),
    "a type that may contain itself": (
        1,
        lambda: _container(
            _nested([{"name": "y", "type": ["null", "R2"]}]), 1, b"\2" * 1_000_000 + b"\0"
        ),
    ),
    "deflate": (1, lambda: _container(_ENTRY, 1, _deflate(_ZEROS * _COPIES), "deflate")),
    "bzip2": (1, lambda: _container(_ENTRY, 1, bz2.compress(_ZEROS) * _COPIES, "bzip2")),
    "zstandard": (1, lambda: _container(_ENTRY, 1, _zstandard(_ZEROS) * _COPIES, "zstandard")),
    "xz": (1, lambda: _container(_ENTRY, 1, lzma.compress(_ZEROS, preset=0) * _COPIES, "xz")),
    "snappy": (1, lambda: _container(_ENTRY, 1, b"\xff\xff\xff\xff\x0f" + b"\0" * 50, "snappy")),
}


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    roots = {}
    for name, (count, make) in MANIFESTS.items():
        log = Log(tmp_path_factory.mktemp("avro") / "t")
        log.commit(0, [PROTOCOL, metadata()])
        log.write(_MANIFEST, make())
        log.state(1, {_MANIFEST: count})
        roots[name] = log.root
    return outcomes(roots, mebibytes=700)


@pytest.mark.parametrize("name", MANIFESTS)
def test_avro_manifest_that_expands_too_much_is_refused(
    manifests: dict[str, str], name: str
) -> None:
    without_codec = {"MissingDependencyError"} if name == "snappy" else set()
    assert manifests[name] in {"CheckpointCorruptionError"} | without_codec


def test_state_manifest_that_expands_too_much_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / "t")
    log.commit(0, [PROTOCOL, metadata()])
    data = _container([{"name": "x", "type": "null"}], 100_000_000, b"")
    log.write(f"state-v{1:020d}/_manifest.avro", data)
    assert outcomes({"state": log.root}) == {"state": "CheckpointCorruptionError"}


def test_decompressed_size_of_an_avro_file_is_bounded_by_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framing, "FREE_BYTES", 1_000)
    monkeypatch.setattr(framing, "MAX_RATIO", 20)
    record = _text(b"a" * 990) + b"\2\2"
    for copies, refused in ((1, False), (400, True)):
        data = _container(_ENTRY, copies, _deflate(record * copies), "deflate")
        if refused:
            with pytest.raises(MalformedLogError, match="decompresses to more"):
                Container(data, "m", 1)
        else:
            assert Container(data, "m", 1).records == copies


def _gzip_logs(folder: Path) -> dict[str, Path]:
    newlines = gzip.compress(b"\n" * (_COPIES * _MEBIBYTE), 1, mtime=0)
    member = gzip.compress(b"\n" * _MEBIBYTE, 9, mtime=0)
    whole = lines([PROTOCOL, metadata()])
    contents = {
        "newlines": newlines,
        "newlines behind the codec header": b"\x01\x01" + newlines,
        "members of newlines": member * _COPIES,
        "newlines after actions": gzip.compress(whole, mtime=0) + member * 60,
        "blanks after actions": gzip.compress(whole + b" \t\n" * _MEBIBYTE, mtime=0),
        "plain newlines after actions": whole + b"\n" * (10 * _MEBIBYTE),
        "plain newlines": b"\n" * (10 * _MEBIBYTE),
    }
    roots = {}
    for number, (name, data) in enumerate(contents.items()):
        log = Log(folder / str(number))
        log.write(f"{0:020d}.json", data)
        roots[name] = log.root
    return roots


def test_newlines_in_gzip_and_blank_lines_are_refused(tmp_path: Path) -> None:
    roots = _gzip_logs(tmp_path)
    assert outcomes(roots, mebibytes=700) == dict.fromkeys(roots, "MalformedLogError")


def test_few_blank_lines_are_ignored(tmp_path: Path) -> None:
    log = Log(tmp_path / "t")
    log.write(f"{0:020d}.json", lines([PROTOCOL, metadata()]) + b"\n \t\r\n" * 4_000)
    log.commit(1, [add("a")])
    assert outcomes({"blank": log.root}) == {"blank": "1"}


def test_data_above_the_decompression_ratio_is_not_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framing, "FREE_BYTES", 1_000)
    on = {"spark.indextables.transaction.compression.enabled": "true"}
    assert frame_as(b"a" * 1_000, on)[:2] == b"\x01\x01"
    assert frame_as(b"a" * 1_000_000, on) == b"a" * 1_000_000
    framer = Framer(6)
    packed = framer.add(b"a" * 1_000_000) + framer.end()
    assert framer.most_bytes is not None
    assert framer.plain_bytes > framer.most_bytes
    with pytest.raises(MalformedLogError):
        unframe(packed, "f")
