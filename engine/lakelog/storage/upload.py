"""Uploads: `BufferedUpload`, which sends pieces of one size, and `UploadSink` for pyarrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Self

from lakelog.errors import InvalidInputError, OutcomeUnknownError, UnavailableError
from lakelog.storage.base import Upload

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def close_before_commit(upload: Upload, path: str) -> None:
    """Create a file that no commit names yet: if its outcome is unknown, nothing was committed.

    Raises:
        UnavailableError: The file may not exist.
    """
    try:
        upload.close()
    except OutcomeUnknownError as cause:
        raise UnavailableError(
            f"nothing was committed, because a new file may not exist: {cause.message}",
            path=path,
            hint="try again",
        ) from cause


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
    """An `Upload` in pieces of equal size and a rest, for one thread; only an empty file has an
    empty piece.
    """

    _sends_views: ClassVar[bool] = False
    """Whether data of a piece's size or more is sent as it is, without a copy."""

    def __init__(self, path: str, piece_bytes: int) -> None:
        self._path = path
        self._piece_bytes = piece_bytes
        self._buffer = bytearray()
        self._size_bytes = 0
        self._closed = False
        self._failed = False

    def write(self, data: bytes | memoryview) -> int:
        """Append; accepts any object with a buffer."""
        if self._failed:
            raise self._lost_upload()
        if self._closed:
            raise InvalidInputError("the upload is closed", path=self._path)
        view = memoryview(data).cast("B")
        try:
            self._take(view)
        except BaseException:
            self.abandon()
            self._failed = True
            raise
        self._size_bytes += len(view)
        return len(view)

    def _take(self, view: memoryview) -> None:
        """Send what fills a piece, and keep the rest."""
        if self._sends_views and len(view) >= self._piece_bytes:
            if self._buffer:
                self._send_buffer()
            self._send(view)
            return
        at = 0
        while at < len(view):
            # A full piece is sent only if more data follows: the last piece is for `_finish`.
            if len(self._buffer) == self._piece_bytes:
                self._send_buffer()
            taken = view[at : at + self._piece_bytes - len(self._buffer)]
            self._buffer += taken
            at += len(taken)

    def _send_buffer(self) -> None:
        piece, self._buffer = self._buffer, bytearray()
        self._send(memoryview(piece))

    def tell(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def close(self) -> None:
        """Create the file; raises once if a write has failed."""
        if self._failed:
            self._failed = False
            raise self._lost_upload()
        if self._closed:
            return
        self._closed = True
        rest, self._buffer = self._buffer, bytearray()
        try:
            self._finish(bytes(rest))
        finally:
            self._discard()

    def abandon(self) -> None:
        """Discard the upload."""
        if not self._closed:
            self._closed = True
            self._buffer = bytearray()
            self._discard()

    @property
    def closed(self) -> bool:
        """Whether it was closed or abandoned, also by a failed write."""
        return self._closed

    def _send(self, piece: memoryview) -> None:
        """Append a piece to the file; a view is valid during the call."""
        raise NotImplementedError

    def _finish(self, rest: bytes) -> None:
        """Append the rest, and create the file."""
        raise NotImplementedError

    def _discard(self) -> None:
        """Abandon the upload and its pieces, as the last call, without errors of the store."""
        raise NotImplementedError

    def _lost_upload(self) -> UnavailableError:
        return UnavailableError(
            "nothing was written: an earlier write of the upload failed",
            path=self._path,
            hint="upload the file again from its beginning",
        )


class UploadSink:
    """An upload as pyarrow's file, closed by its owner; `is_discarded` discards writes."""

    closed = False

    def __init__(self, upload: Upload) -> None:
        self.upload = upload
        self.is_discarded = False

    def give_up(self, writer: pq.ParquetWriter) -> None:
        """Close an abandoned file's writer and discard its writes: pyarrow closes writers when they
        are garbage-collected, and an error then would hide the original one.
        """
        import pyarrow as pa  # the write-ahead log does not need pyarrow

        self.is_discarded = True
        with suppress(RuntimeError, pa.ArrowException, OSError):
            writer.close()

    def write(self, data: bytes | memoryview) -> int:
        """Append; discarded after `give_up`."""
        return len(data) if self.is_discarded else self.upload.write(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.upload.tell()

    def flush(self) -> None:
        """Does nothing: only closing the upload makes it durable."""

    def close(self) -> None:
        """Does nothing: closing the upload creates the file."""
