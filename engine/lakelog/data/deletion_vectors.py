"""Reads and writes deletion vectors: the deleted rows of a data file.

A vector is a set of 64-bit row indexes: a magic number, then 32-bit Roaring bitmaps, one for each
distinct upper half. It is in the log itself, or in a file with others, each preceded by its size
and followed by its CRC-32. Any difference from the log is damage: deleted rows would be visible
again, or other rows missing.

`VectorWriter` stores a short vector in the log, and all others of a commit in one file. Each
container has the shortest of the three encodings.

Source: Delta protocol, Deletion Vectors; Deletion Vector Format. RoaringFormatSpec, portable
serialisation and its 64-bit extension. Z85: ZeroMQ RFC 32.
"""

from __future__ import annotations

import struct
import threading
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import polars as pl

from lakelog.dialects.delta.deletion_vectors import decode_z85, encode_z85, vector_paths
from lakelog.errors import CorruptionError, InvalidActionError, NotFoundError
from lakelog.model.actions import DV_COLUMNS
from lakelog.storage import LogStore
from lakelog.storage.base import Upload
from lakelog.storage.upload import close_before_commit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.uint64]

MAGIC = 1_681_511_377
_FILE_VERSION = 1

# The format before the portable serialisation: a count, and bitmaps of the keys from 0 on, each
# preceded by its size. Delta on Spark still reads it, and the protocol's inline example has it.
_EARLY_MAGIC = 1_681_511_376

_PLAIN_COOKIE = 12_346
_RUN_COOKIE = 12_347
_NO_OFFSETS_BELOW = 4
_ARRAY_MOST = 4_096
_BITMAP_BYTES = 8_192
_MOST_INLINE_BYTES = 128
"""Maximum length of a vector in the log, because every reader of the log reads it."""

_KEPT_FILES = 8
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Vector:
    """A deletion vector in the log: the file that holds it at `offset`, or the vector in Z85
    (`inline`).
    """

    path: str | None
    inline: str | None
    offset: int
    size_bytes: int
    cardinality: int

    @staticmethod
    def of(files: pl.DataFrame) -> list[Vector | None]:
        """The vector of each file, None for those without one."""
        if files["dvStorageType"].null_count() == files.height:
            return [None] * files.height
        vectors: list[Vector | None] = []
        rows = files.select("path", *DV_COLUMNS).with_columns(vector_paths(files).alias("file"))
        for row in rows.iter_rows(named=True):
            if row["dvStorageType"] is None:
                vectors.append(None)
                continue
            if row["dvSizeInBytes"] is None or row["dvCardinality"] is None:
                raise CorruptionError(
                    "a deletion vector lacks its size or its cardinality",
                    path=row["path"],
                    expected="sizeInBytes and cardinality",
                    hint=(
                        "repair the log; without these fields the file's deleted rows are unknown"
                    ),
                )
            vectors.append(
                Vector(
                    row["file"],
                    row["dvPathOrInline"] if row["file"] is None else None,
                    int(row["dvOffset"] or 0),
                    int(row["dvSizeInBytes"]),
                    int(row["dvCardinality"]),
                )
            )
        return vectors


class VectorReader:
    """Reads deletion vectors, in several threads; keeps a few files, or blocks of them, open."""

    def __init__(self, open_file: Callable[[str], BinaryIO]) -> None:
        self._open_file = open_file
        self._files: OrderedDict[str, _Shared] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, vector: Vector, rows: int | None = None) -> Rows:
        """The row indexes that a vector deletes, ascending and distinct."""
        if rows is not None and vector.cardinality > rows:
            # Checked before it is read, because a few bytes may represent any number of rows.
            raise _wrong(
                "a deletion vector deletes more rows than the data file has",
                vector.path,
                None,
                f"at most {rows} rows",
                vector.cardinality,
            )
        if vector.path is None:
            data = _inline(vector)
            return _counted(decode_vector(data, vector.cardinality), vector)
        data = self._stored(vector.path, vector)
        try:
            return _counted(decode_vector(data, vector.cardinality), vector)
        except CorruptionError as error:
            error.path = vector.path
            error.byte_offset = vector.offset + 4 + (error.byte_offset or 0)
            raise

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            files = list(self._files.values())
            self._files.clear()
        for file in files:
            file.close()

    def _stored(self, path: str, vector: Vector) -> bytes:
        version, framed = self._shared(path).read((0, 1), (vector.offset, vector.size_bytes + 8))
        if version != bytes([_FILE_VERSION]):
            raise _wrong(
                "a deletion vector file has an unknown format version",
                path,
                0,
                _FILE_VERSION,
                version[0] if version else "an empty file",
            )
        size = int.from_bytes(framed[:4], "big")
        if len(framed) >= 4 and size != vector.size_bytes:
            raise _wrong(
                "the size of a deletion vector differs from the log",
                path,
                vector.offset,
                vector.size_bytes,
                size,
            )
        if len(framed) < vector.size_bytes + 8:
            raise _wrong(
                "a deletion vector is truncated",
                path,
                vector.offset,
                f"{vector.size_bytes + 8} bytes",
                f"{len(framed)} bytes",
            )
        data = framed[4:-4]
        checksum = int.from_bytes(framed[-4:], "big")
        if (found := zlib.crc32(data)) != checksum:
            raise _wrong(
                "the checksum of a deletion vector does not match",
                path,
                vector.offset,
                f"{checksum:#010x}",
                f"{found:#010x}",
            )
        return data

    def _shared(self, path: str) -> _Shared:
        with self._lock:
            if path not in self._files:
                self._files[path] = _Shared(path, self._open_file)
            self._files.move_to_end(path)
            found = self._files[path]
            dropped = [self._files.popitem(last=False)[1]] if len(self._files) > _KEPT_FILES else []
        for file in dropped:
            file.close()
        return found


def require_decodable(files: pl.DataFrame, version: int | None) -> None:
    """Refuse an invalid descriptor of a deletion vector, and decode the vectors in the log."""
    marked = files.filter(pl.col("dvStorageType").is_not_null())
    try:
        stored = vector_paths(marked)
    except InvalidActionError as error:
        text = str(error.found)
        is_found = (pl.col("dvStorageType") == text) | pl.col("dvPathOrInline").str.ends_with(text)
        error.path = next(iter(marked.filter(is_found)["path"].to_list()), None)
        error.version = version
        error.hint = "repair the log: without the vector the file's deleted rows are unknown"
        raise
    in_log = marked.filter(stored.is_null()).unique(DV_COLUMNS, maintain_order=True)
    incomplete = pl.any_horizontal(pl.col("dvSizeInBytes", "dvCardinality").is_null())
    Vector.of(marked.filter(incomplete).head(1))
    reader = VectorReader(_no_file)
    for path, vector in zip(in_log["path"], Vector.of(in_log), strict=True):
        assert vector is not None
        try:
            reader.read(vector)
        except CorruptionError as error:
            error.path, error.version = path, version
            raise


def _no_file(path: str) -> BinaryIO:
    raise AssertionError(path)


class _Shared:
    """A file of vectors, opened by its first reader."""

    def __init__(self, path: str, open_file: Callable[[str], BinaryIO]) -> None:
        self._path = path
        self._open_file = open_file
        self._file: BinaryIO | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def read(self, *ranges: tuple[int, int]) -> list[bytes]:
        """The bytes at these offsets, of these lengths, up to the end of the file."""
        with self._lock:
            if self._file is None:
                try:
                    self._file = self._open_file(self._path)
                except NotFoundError as error:
                    raise NotFoundError(
                        "a deletion vector's file was not found",
                        path=self._path,
                        hint="restore the file: without it, deleted rows would be visible again",
                    ) from error
            try:
                return [_read_at(self._file, offset, size) for offset, size in ranges]
            finally:
                if self._is_closed:  # since `_shared` returned it
                    self._drop()

    def close(self) -> None:
        """Close the file, once no reader uses it."""
        with self._lock:
            self._is_closed = True
            self._drop()

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def decode_vector(data: bytes, most: int | None = None) -> Rows:
    """Decode row indexes; nothing is expanded if more than `most` would result."""
    cursor = _Cursor(data, most)
    magic = cursor.number("<I")
    if magic == MAGIC:
        count, key_form, bitmap_form = cursor.number("<Q"), "<I", None
    elif magic == _EARLY_MAGIC:
        count, key_form, bitmap_form = cursor.number("<I"), None, "<I"
    elif int.from_bytes(magic.to_bytes(4, "little"), "big") == _EARLY_MAGIC:
        count, key_form, bitmap_form = cursor.number(">I"), None, ">I"
    else:
        raise _wrong("a deletion vector lacks its magic number", None, 0, MAGIC, magic)
    parts: list[Rows] = []
    last = -1
    for index in range(count):
        at = cursor.at
        key = index if key_form is None else cursor.number(key_form)
        if not last < key < 1 << 31:
            raise _wrong(
                "a deletion vector's keys are not ascending", None, at, f"above {last}", key
            )
        last = key
        size = None if bitmap_form is None else cursor.number(bitmap_form)
        at = cursor.at
        low = _decode_bitmap(cursor)
        if size is not None and cursor.at - at != size:
            raise _wrong(
                "the size of a bitmap differs from its header", None, at, size, cursor.at - at
            )
        parts.append(low | np.uint64(key << 32))
    if cursor.at != len(data):
        raise _wrong(
            "unexpected bytes follow a deletion vector",
            None,
            cursor.at,
            f"{cursor.at} bytes",
            len(data),
        )
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


class _Cursor:
    """A position in bytes, which raises at their end."""

    def __init__(self, data: bytes, most: int | None = None) -> None:
        self.data = data
        self.at = 0
        self.left = most

    def spend(self, values: int) -> None:
        """Count values before they are expanded."""
        if self.left is None:
            return
        self.left -= values
        if self.left < 0:
            raise _wrong(
                "a deletion vector contains more rows than the log records",
                None,
                self.at,
                "a number of rows equal to its cardinality",
                f"at least {-self.left} more",
            )

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise _wrong(
                "a deletion vector is truncated",
                None,
                self.at,
                f"{size} bytes more",
                f"{len(self.data) - self.at} bytes",
            )
        found = self.data[self.at : end]
        self.at = end
        return found

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        return np.frombuffer(self.take(np.dtype(dtype).itemsize * count), dtype)


def _decode_bitmap(cursor: _Cursor) -> Rows:
    """The lower halves in a 32-bit Roaring bitmap."""
    at = cursor.at
    cookie = cursor.number("<I")
    runs: NDArray[np.uint8] | None = None
    if cookie & 0xFFFF == _RUN_COOKIE:
        count = (cookie >> 16) + 1
        flags = np.frombuffer(cursor.take(-(-count // 8)), np.uint8)
        runs = np.unpackbits(flags, bitorder="little", count=count)
    elif cookie == _PLAIN_COOKIE:
        count = cursor.number("<I")
        if count > 1 << 16:
            raise _wrong("a bitmap has too many containers", None, at, "65536 at most", count)
    else:
        raise _wrong(
            "a bitmap does not begin with its cookie (magic number)",
            None,
            at,
            _PLAIN_COOKIE,
            cookie,
        )
    header = cursor.array("<u2", 2 * count).astype(np.uint32)
    keys, sizes = header[::2], header[1::2] + 1
    if (np.diff(keys.astype(np.int64)) <= 0).any():
        raise _wrong(
            "a bitmap's containers are not ascending", None, at, "ascending keys", "others"
        )
    if runs is None or count >= _NO_OFFSETS_BELOW:
        cursor.take(4 * count)  # offsets, which reading in order does not need
    cursor.spend(int(sizes.sum()))
    parts = [
        _decode_container(cursor, int(size), bool(runs is not None and runs[index]))
        | np.uint64(int(key) << 16)
        for index, (key, size) in enumerate(zip(keys, sizes, strict=True))
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _decode_container(cursor: _Cursor, size: int, is_run: bool) -> Rows:
    """The lower 16 bits in a container."""
    at = cursor.at
    if is_run:
        pairs = cursor.array("<u2", 2 * cursor.number("<H")).astype(np.int64)
        starts, lengths = pairs[::2], pairs[1::2] + 1
        ends = starts + lengths
        is_valid = bool((starts[1:] >= ends[:-1]).all() and (ends <= 1 << 16).all())
        if not is_valid:
            raise _wrong("a bitmap's runs overlap", None, at, "ascending runs", "others")
        before = np.cumsum(lengths) - lengths
        # At most 65,536, because the runs do not overlap.
        values = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
    elif size <= _ARRAY_MOST:
        values = cursor.array("<u2", size).astype(np.int64)
        if (np.diff(values) <= 0).any():
            raise _wrong(
                "a bitmap's values are not ascending", None, at, "ascending values", "others"
            )
    else:
        bits = np.frombuffer(cursor.take(_BITMAP_BYTES), np.uint8)
        values = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    if len(values) != size:
        raise _wrong(
            "the number of values in a bitmap's container differs from its header",
            None,
            at,
            size,
            len(values),
        )
    rows: Rows = values.astype(np.uint64)
    return rows


class VectorWriter:
    """Writes the deletion vectors of one commit, one vector at a time; for one thread."""

    def __init__(self, store: LogStore, new_id: Callable[[], str]) -> None:
        self._store, self._new_id = store, new_id
        self._upload: Upload | None = None
        self._identifier = ""
        self.paths: list[str] = []
        """The file, once it was created."""

    def add(self, rows: Rows) -> dict[str, Any]:
        """Store ascending, distinct row indexes; returns their flattened descriptor columns."""
        data = _encode_vector(rows)
        found = {
            "dvStorageType": "i",
            "dvPathOrInline": "",
            "dvOffset": None,
            "dvSizeInBytes": len(data),
            "dvCardinality": len(rows),
        }
        if len(data) <= _MOST_INLINE_BYTES:
            return found | {"dvPathOrInline": encode_z85(data)}
        upload = self._upload or self._begin()
        found |= {
            "dvStorageType": "u",
            "dvPathOrInline": self._identifier,
            "dvOffset": upload.tell(),
        }
        upload.write(len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big"))
        return found

    def _begin(self) -> Upload:
        name = uuid.UUID(self._new_id())
        self._identifier = encode_z85(name.bytes)
        self.paths.append(f"deletion_vector_{name}.bin")
        self._upload = self._store.upload(self.paths[0])
        self._upload.write(bytes([_FILE_VERSION]))
        return self._upload

    def finish(self) -> None:
        """Publish the file, durably."""
        if self._upload is not None:
            close_before_commit(self._upload, self.paths[0])

    def abort(self) -> None:
        """Delete the file, which no log may name."""
        if self._upload is not None:
            self._upload.abandon()
            self._store.delete_many(self.paths)


def _encode_vector(rows: Rows) -> bytes:
    """Serialise row indexes, ascending and distinct, in the portable format."""
    highs, starts = np.unique(rows >> np.uint64(32), return_index=True)
    parts = [struct.pack("<IQ", MAGIC, len(highs))]
    for high, lows in zip(highs, np.split(rows, starts[1:]), strict=True):
        parts += [struct.pack("<I", int(high)), _encode_bitmap(lows.astype(np.uint32))]
    return b"".join(parts)


def _encode_bitmap(values: NDArray[np.uint32]) -> bytes:
    """A 32-bit Roaring bitmap of ascending, distinct values, at least one."""
    keys, starts = np.unique(values >> np.uint32(16), return_index=True)
    pieces = np.split((values & np.uint32(0xFFFF)).astype(np.uint16), starts[1:])
    encoded = [_encode_container(piece) for piece in pieces]
    is_run = np.array([run for _, run in encoded])
    if is_run.any():
        flags = np.packbits(is_run, bitorder="little").tobytes()
        head = struct.pack("<I", _RUN_COOKIE | (len(keys) - 1) << 16) + flags
    else:
        head = struct.pack("<II", _PLAIN_COOKIE, len(keys))
    sizes = np.array([len(piece) - 1 for piece in pieces])
    head += np.column_stack([keys, sizes]).astype("<u2").tobytes()
    bodies = [body for body, _ in encoded]
    if not is_run.any() or len(keys) >= _NO_OFFSETS_BELOW:
        lengths = np.array([len(body) for body in bodies])
        offsets = len(head) + 4 * len(keys) + np.cumsum(lengths) - lengths
        head += offsets.astype("<u4").tobytes()
    return head + b"".join(bodies)


def _encode_container(values: NDArray[np.uint16]) -> tuple[bytes, bool]:
    """The shortest encoding of values with one upper half, and whether it is of runs."""
    breaks = np.flatnonzero(np.diff(values) != 1)
    plain = min(2 * len(values), _BITMAP_BYTES)
    if 2 + 4 * (len(breaks) + 1) < plain:
        starts = values[np.concatenate([[0], breaks + 1])]
        ends = values[np.concatenate([breaks, [len(values) - 1]])]
        pairs = np.column_stack([starts, ends - starts]).astype("<u2")
        return struct.pack("<H", len(pairs)) + pairs.tobytes(), True
    if len(values) <= _ARRAY_MOST:
        return values.astype("<u2").tobytes(), False
    bits = np.zeros(1 << 16, np.uint8)
    bits[values] = 1
    return np.packbits(bits, bitorder="little").tobytes(), False


def _inline(vector: Vector) -> bytes:
    data = decode_z85(vector.inline or "")
    if data is None or not 0 <= len(data) - vector.size_bytes < 4:
        raise _wrong(
            "an inline deletion vector has another length than recorded, or is not valid Z85",
            None,
            None,
            f"{vector.size_bytes} bytes",
            (vector.inline or "")[:80],
        )
    return data[: vector.size_bytes]  # without the padding of Z85


def _counted(rows: Rows, vector: Vector) -> Rows:
    if len(rows) != vector.cardinality:
        raise _wrong(
            "the number of rows that a deletion vector deletes differs from the log",
            None,
            None,
            vector.cardinality,
            len(rows),
        )
    return rows


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    parts: list[bytes] = []
    # In pieces, because the log's size may be wrong, and a single read would allocate it.
    while size > 0 and (part := file.read(min(size, _PIECE_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _wrong(
    message: str, path: str | None, at: int | None, expected: object, found: object
) -> CorruptionError:
    return CorruptionError(
        message,
        path=path,
        byte_offset=at,
        expected=expected,
        found=found,
        hint="restore the file or the log from a copy: without it the deleted rows are unknown",
    )
