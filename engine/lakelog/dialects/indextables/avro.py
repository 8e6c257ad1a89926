"""Reads Avro containers with fastavro, within limits that are checked first.

fastavro does not validate a file: it decompresses blocks of any size, creates as many records as a
block declares, and overflows the stack on a recursive type. The container is therefore checked
here, and fastavro gets decompressed blocks with enough bytes for their records.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from itertools import islice
from typing import Any

import orjson

from lakelog.dialects.indextables.framing import TooLargeError, decompress, most_decompressed
from lakelog.dialects.thrift_compact import write_number
from lakelog.errors import MalformedLogError, MissingDependencyError

_MAX_STATE_BYTES = 8 * 1024 * 1024
"""Maximum decompressed size of a state manifest of any length, in bytes: it is one record that no
count of the log bounds, and that takes 100 times its size as Python objects.
"""
_MAX_STATE_RATIO = 50
"""Maximum decompressed bytes per byte of a state manifest, beyond `_MAX_STATE_BYTES`."""
_MAX_SCHEMA_DEPTH = 32
"""Maximum nesting of the types of an Avro schema."""

_BATCH_RECORDS = 8_192
_SYNC_BYTES = 16
_LZMA_BYTES = 80 << 20  # xz at its highest level needs 65 MiB
_RAW_DEFLATE = -15
_FIXED_SIZES = {"null": 0, "float": 4, "double": 8}


class Container:
    """One Avro container file of records, decompressed and checked, but not decoded."""

    def __init__(self, data: bytes, path: str, version: int, most_bytes: int | None = None) -> None:
        try:
            import fastavro
        except ImportError as cause:
            raise _missing("fastavro", path, version) from cause
        self._path, self._version = path, version
        if most_bytes is None:
            most_bytes = most_decompressed(len(data))
        with self._malformed():
            source = BytesIO(data)
            reader = fastavro.reader(source)
            self._schema = orjson.loads(reader.metadata["avro.schema"])
            least = _least_bytes(reader.writer_schema, {}, 0)
            if not isinstance(self._schema, dict) or "fields" not in self._schema:
                raise ValueError("it does not contain records")
            codec = reader.metadata.get("avro.codec", "null")
            blocks = _Blocks(data, source.tell(), codec, least, most_bytes)
            plain: list[bytes | memoryview] = [
                _head(reader.metadata | {"avro.codec": "null"}, blocks.sync)
            ]
            for count, block in blocks:
                plain += (_long(count), _long(len(block)), block, blocks.sync)
            self._data = data if codec == "null" else b"".join(plain)
        self.records = blocks.records
        """Number of records."""

    def batches(self, fields: Collection[str] | None = None) -> Iterator[list[dict[str, Any]]]:
        """The records in batches of 8,192."""
        import fastavro

        schema = None
        if fields is not None:
            wanted = [field for field in self._schema["fields"] if field["name"] in fields]
            schema = {**self._schema, "fields": wanted}
        with self._malformed():
            reader = fastavro.reader(BytesIO(self._data), reader_schema=schema)
        while True:
            with self._malformed():
                batch: list[Any] = list(islice(reader, _BATCH_RECORDS))
            if not batch:
                return
            yield batch

    @contextmanager
    def _malformed(self) -> Iterator[None]:
        # With damaged bytes, fastavro raises whatever error its C code encounters: EOFError,
        # ValueError, KeyError, UnicodeDecodeError, the codec's own errors and more.
        try:
            yield
        except TooLargeError as cause:
            raise MalformedLogError(
                "the Avro file decompresses to more bytes than its length allows",
                path=self._path,
                version=self._version,
                expected=str(cause).replace("more than", "at most"),
                hint="restore the file from a copy; reading stopped here",
            ) from cause
        except _CodecMissingError as cause:
            raise _missing(f"the Avro codec {cause}", self._path, self._version) from cause
        except Exception as cause:
            raise MalformedLogError(
                "the file is not a complete Avro container",
                path=self._path,
                version=self._version,
                found=f"{type(cause).__name__}: {cause}"[:200],
                hint="restore the file from a copy; reading stopped here",
            ) from cause


def read_state_record(
    data: bytes, path: str, version: int, fields: Collection[str] | None = None
) -> dict[str, Any]:
    """The record of a state manifest; arguments and errors as `Container`."""
    most = max(_MAX_STATE_BYTES, _MAX_STATE_RATIO * len(data))
    container = Container(data, path, version, min(most, most_decompressed(len(data))))
    if container.records != 1:
        raise MalformedLogError(
            "a state manifest must contain one record",
            path=path,
            version=version,
            expected=1,
            found=container.records,
        )
    return next(container.batches(fields))[0]


class _CodecMissingError(Exception):
    """A codec's library is not installed."""


class _Blocks:
    """The decompressed blocks of a container: number of records and bytes of each. Raises
    ValueError for an inconsistent count or length, TooLargeError above `most_bytes` altogether.
    """

    def __init__(self, data: bytes, start: int, codec: str, least: int, most_bytes: int) -> None:
        self.sync = data[start - _SYNC_BYTES : start]
        self.records = 0
        self._data = data
        self._at = start
        self._expand = _codec(codec)
        self._least = least
        self._room = most_bytes

    def __iter__(self) -> Iterator[tuple[int, bytes | memoryview]]:
        view = memoryview(self._data)
        while self._at < len(view):
            count, size = self._take(), self._take()
            end = self._at + size
            if size < 0 or self._data[end : end + _SYNC_BYTES] != self.sync:
                raise ValueError(f"a block of {size} bytes does not end at a sync marker")
            block = self._expand(view[self._at : end], self._room)
            self._room -= len(block)
            if count < 0 or count * self._least > len(block):
                raise ValueError(f"a block of {len(block)} bytes records {count} records")
            self.records += count
            self._at = end + _SYNC_BYTES
            yield count, block

    def _take(self) -> int:
        """The next variable-length integer."""
        value = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 63:
                raise EOFError("a block's header is truncated")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7


def _codec(name: str) -> Callable[[memoryview, int], bytes | memoryview]:
    """A function that decompresses one block of a codec, up to a limit."""
    match name:
        case "null":
            return lambda data, _: data
        case "deflate":
            # fastavro leaves a part of zlib's checksum after the stream.
            return lambda data, most: decompress(
                lambda: zlib.decompressobj(_RAW_DEFLATE), data, most, only_first=True
            )
        case "bzip2":
            return lambda data, most: decompress(bz2.BZ2Decompressor, data, most)
        case "xz":
            return lambda data, most: decompress(
                lambda: lzma.LZMADecompressor(memlimit=_LZMA_BYTES), data, most
            )
        case "zstandard":
            zstd = _first_of("zstandard", "compression.zstd", "backports.zstd")
            return lambda data, most: decompress(zstd.ZstdDecompressor, data, most)
        case "snappy":
            return _Snappy(_first_of("snappy", "cramjam")).expand
    raise ValueError(f"unknown codec {name!r}")


class _Snappy:
    """Raw snappy blocks, each followed by a CRC-32: their length is checked, then allocated."""

    _MOST_RATIO = 32  # a copy of up to 64 bytes takes 3

    def __init__(self, cramjam: Any) -> None:
        self._cramjam = cramjam

    def expand(self, data: memoryview, most_bytes: int) -> bytes:
        """One block, decompressed."""
        packed, crc = bytes(data[:-4]), data[-4:]
        promised = shift = 0
        for byte in packed[:5]:
            promised |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if promised > most_bytes:
            raise TooLargeError(f"more than {most_bytes} bytes")
        if promised > self._MOST_RATIO * len(packed):
            raise ValueError(f"{len(packed)} bytes of snappy declare {promised}")
        found = bytes(self._cramjam.snappy.decompress_raw(packed))
        if zlib.crc32(found) != int.from_bytes(crc, "big"):
            raise ValueError("the checksum of a block does not match")
        return found


def _first_of(codec: str, *modules: str) -> Any:
    for module in modules:
        try:
            return importlib.import_module(module)
        except ImportError:
            continue
    raise _CodecMissingError(codec)


def _least_bytes(schema: Any, named: dict[str, int | None], depth: int) -> int:
    """Minimum encoded size of a value of a parsed schema, in bytes."""
    if depth > _MAX_SCHEMA_DEPTH:
        raise ValueError(f"the schema nests deeper than {_MAX_SCHEMA_DEPTH} types")
    if isinstance(schema, list):
        for branch in schema:
            if branch != "null":
                _least_bytes(branch, named, depth + 1)
        return 1  # the number of the branch
    if isinstance(schema, str):
        if schema not in named:
            return _some(_FIXED_SIZES.get(schema, 1), schema)
        size = named[schema]
        if size is None:
            raise ValueError(f"the type {schema} contains itself")
        return size
    kind = schema["type"]
    match kind:
        case "record" | "error":
            named[schema["name"]] = None
            fields = [_least_bytes(field["type"], named, depth + 1) for field in schema["fields"]]
            size = _some(sum(fields), kind)
            named[schema["name"]] = size
            return size
        case "fixed":
            size = named[schema["name"]] = _some(schema["size"], kind)
            return size
        case "enum":
            named[schema["name"]] = 1
        case "array":
            _least_bytes(schema["items"], named, depth + 1)
        case "map":
            _least_bytes(schema["values"], named, depth + 1)
        case _:
            return _least_bytes(kind, named, depth + 1)
    return 1


def _some(size: int, kind: str) -> int:
    if size < 1:
        raise ValueError(f"a {kind} of the schema has zero bytes")
    return size


def _long(value: int) -> bytes:
    """A count or a length in Avro's encoding, which is also Thrift's."""
    return write_number(value).data


def _head(metadata: Mapping[str, str], sync: bytes) -> bytes:
    """The head of a container."""
    texts = [text.encode() for pair in metadata.items() for text in pair]
    pairs = b"".join(_long(len(text)) + text for text in texts)
    return b"Obj\x01" + _long(len(metadata)) + pairs + b"\0" + sync


def _missing(what: str, path: str, version: int) -> MissingDependencyError:
    return MissingDependencyError(
        f"reading an Avro state needs {what}",
        path=path,
        version=version,
        hint="pip install 'lakelog[avro]'",
    )
