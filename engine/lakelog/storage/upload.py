"""Uploads: `BufferedUpload`, which sends pieces of one size, and `UploadSink` for pyarrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from lakelog.errors import InvalidInputError, UnavailableError
from lakelog.storage.base import Upload

if TYPE_CHECKING:
    import pyarrow.parquet as pq


class ClosedOrAbandoned(ABC):
    """``with`` for an `Upload`: the file is created at the end, unless an error ended the block."""

    @abstractmethod
    def close(self) -> None:
        """As `Upload.close`."""

    @abstractmethod
    def abandon(self) -> None:
        """As `Upload.abandon`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
        else:
            self.abandon()


class BufferedUpload(ClosedOrAbandoned):
    """An `Upload` that passes on pieces of equal size, and the rest when closed; only an empty file
    has an empty piece. For one thread. Subclasses implement `_send`, `_finish` and `_discard`.
    """

    def __init__(self, path: str, piece_bytes: int) -> None:
        self._path = path
        self._piece_bytes = piece_bytes
        self._buffer = bytearray()
        self._size_bytes = 0
        self._closed = False
        self._failed = False

    def write(self, data: bytes | memoryview) -> int:
        """Append; any object with a buffer will do."""
        if self._failed:
            raise self._gone()
        if self._closed:
            raise InvalidInputError("the upload is closed", path=self._path)
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            # Not before there is more: the last piece is for `_finish`.
            if len(self._buffer) == self._piece_bytes:
                piece, self._buffer = self._buffer, bytearray()
                try:
                    self._send(bytes(piece))
                except BaseException:
                    self.abandon()
                    self._failed = True
                    raise
            taken = view[at : at + self._piece_bytes - len(self._buffer)]
            self._buffer += taken
            at += len(taken)
        self._size_bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def close(self) -> None:
        """Make the file appear; after a write that failed it says so, once."""
        if self._failed:
            self._failed = False
            raise self._gone()
        if self._closed:
            return
        self._closed = True
        rest, self._buffer = self._buffer, bytearray()
        try:
            self._finish(bytes(rest))
        finally:
            self._discard()

    def abandon(self) -> None:
        """Leave nothing behind."""
        if not self._closed:
            self._closed = True
            self._buffer = bytearray()
            self._discard()

    @property
    def closed(self) -> bool:
        """Whether it was closed or abandoned, also by a write that failed."""
        return self._closed

    def _send(self, piece: bytes) -> None:
        """Append a piece to what will be the file."""
        raise NotImplementedError

    def _finish(self, rest: bytes) -> None:
        """Append the rest, and name the file."""
        raise NotImplementedError

    def _discard(self) -> None:
        """Abandon the upload and what was sent; the last call. Never raises errors of the store."""
        raise NotImplementedError

    def _gone(self) -> UnavailableError:
        return UnavailableError(
            "nothing was written: an earlier write of the upload failed",
            path=self._path,
            hint="upload the file again from its beginning",
        )


class UploadSink:
    """An upload as pyarrow's output file; the owner closes the upload. After `is_void`, writes are
    discarded.
    """

    closed = False

    def __init__(self, upload: Upload) -> None:
        self.upload = upload
        self.is_void = False

    def give_up(self, writer: pq.ParquetWriter) -> None:
        """Close the writer of an abandoned file, and discard its writes. pyarrow closes writers
        when they are collected; an error then would hide why the file failed.
        """
        import pyarrow as pa  # the write-ahead log does without

        self.is_void = True
        with suppress(RuntimeError, pa.ArrowException, OSError):
            writer.close()

    def write(self, data: bytes | memoryview) -> int:
        """Append, or throw away what a writer that was given up still says."""
        return len(data) if self.is_void else self.upload.write(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.upload.tell()

    def flush(self) -> None:
        """Nothing: only closing the upload makes it durable."""

    def close(self) -> None:
        """Nothing: an upload that is closed appears."""
