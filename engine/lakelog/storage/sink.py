"""`UploadSink`: an upload as the file object that pyarrow writes to."""

from __future__ import annotations

from lakelog.storage.base import Upload


class UploadSink:
    """An upload as the file object that pyarrow writes to; closing it stays with its owner.

    Attributes:
        upload: The upload.
        is_void: Whether nobody wants the file any more, so that what is written goes nowhere.
    """

    closed = False

    def __init__(self, upload: Upload) -> None:
        self.upload = upload
        self.is_void = False

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
