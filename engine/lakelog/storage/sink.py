"""`UploadSink`: an upload as a file object for pyarrow."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.storage.base import Upload


class UploadSink:
    """An upload as the file object that pyarrow writes to; closing it stays with its owner.

    Attributes:
        upload: The upload.
        is_void: Whether the file was given up; later writes are discarded.
    """

    closed = False

    def __init__(self, upload: Upload) -> None:
        self.upload = upload
        self.is_void = False

    def give_up(self, writer: pq.ParquetWriter) -> None:
        """Close the writer of a file that was given up; what it still writes is discarded.

        pyarrow closes its writers when they are collected, whatever became of the file. What it
        raises then about a file that failed would hide why the file failed.
        """
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
