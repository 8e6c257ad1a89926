"""`ScratchFile`: a temporary local file that is removed when the process ends."""

from __future__ import annotations

import os
import tempfile
from typing import IO, NamedTuple

import polars as pl
import pyarrow as pa

from lakelog.errors import UnavailableError


class ScratchRange(NamedTuple):
    """Byte offset and length of a range."""

    at: int
    size_bytes: int


class ScratchFile:
    """An anonymous temporary file (see ``TMPDIR``) with one writer and any number of readers."""

    def __init__(
        self,
        error: type[UnavailableError] = UnavailableError,
        instead: str = "raise the memory limit",
    ) -> None:
        self._error = error
        self._instead = instead
        self._file: IO[bytes] | None = None
        self.size_bytes = 0

    def append(self, data: bytes | memoryview, what: str) -> ScratchRange:
        """Write at the end; return the range."""
        place = ScratchRange(self.size_bytes, len(data))
        rest = memoryview(data)
        try:
            if self._file is None:
                # Unbuffered, because whole batches are written.
                self._file = tempfile.TemporaryFile(buffering=0, prefix="lakelog-")  # noqa: SIM115 - closed by `close`
            self._file.seek(place.at)  # overwrites the rest of a failed append
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as cause:
            raise self._error(
                f"{what} that does not fit in memory cannot be written to disk: {cause}",
                path=tempfile.gettempdir(),
                hint=f"free disk space there, set TMPDIR to a larger disk, or {self._instead}",
            ) from cause
        self.size_bytes += place.size_bytes
        return place

    def read(self, place: ScratchRange) -> bytes:
        """The bytes of a range."""
        assert self._file is not None, "not a location that this file returned"
        pieces, (at, left) = [], place
        # Reads at an offset, so that several threads can read concurrently.
        while left and (piece := os.pread(self._file.fileno(), left, at)):
            pieces.append(piece)
            at, left = at + len(piece), left - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def append_rows(self, rows: pa.Table) -> ScratchRange:
        """Write rows at the end, as a compressed Arrow stream; return the range."""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            writer.write_table(rows)
        return self.append(memoryview(sink.getvalue()), "rows")

    def read_rows(self, place: ScratchRange) -> pl.DataFrame:
        """The rows of a range that `append_rows` returned."""
        with pa.ipc.open_stream(pa.py_buffer(self.read(place))) as reader:
            frame = pl.from_arrow(reader.read_all())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def close(self) -> None:
        """Free the disk space."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.size_bytes = 0
