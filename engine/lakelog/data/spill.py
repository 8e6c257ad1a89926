"""Rows that wait on local disk, in one nameless file, so that a killed writer leaves nothing."""

from __future__ import annotations

import os
import tempfile
from typing import IO, NamedTuple

import pyarrow as pa

from lakelog.errors import UnavailableError


class Place(NamedTuple):
    """Where a batch of rows stands.

    Attributes:
        at: Byte offset.
        size_bytes: Length.
    """

    at: int
    size_bytes: int


class RowSpill:
    """Batches of rows of one schema, written at the end and read anywhere; ``TMPDIR`` says where.

    For one thread when writing, for several when reading.

    Args:
        schema: Of the rows.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file: IO[bytes] | None = None
        self._size_bytes = 0

    def append(self, rows: pa.Table) -> list[Place]:
        """Write rows; gives their places.

        Raises:
            UnavailableError: There is no room.
        """
        places = []
        try:
            if self._file is None:
                # Unbuffered: what is written is whole batches.
                self._file = tempfile.TemporaryFile(buffering=0, prefix="lakelog-")  # noqa: SIM115 - closed by `close`
            for batch in rows.to_batches():
                data = memoryview(batch.serialize())
                places.append(Place(self._size_bytes, len(data)))
                self._size_bytes += len(data)
                while data:
                    data = data[self._file.write(data) :]
        except OSError as cause:
            raise UnavailableError(
                f"rows that memory has no room for cannot be written to disk: {cause}",
                path=tempfile.gettempdir(),
                hint="make room there, set TMPDIR to a larger place, or write fewer partitions",
            ) from cause
        return places

    def read(self, places: list[Place]) -> pa.Table:
        """The rows that stand at some places."""
        batches = [
            pa.ipc.read_record_batch(pa.py_buffer(self._bytes(place)), self._schema)
            for place in places
        ]
        return pa.Table.from_batches(batches, self._schema)

    def _bytes(self, place: Place) -> bytes:
        assert self._file is not None
        pieces, at, left = [], place.at, place.size_bytes
        # At its own offset: several threads read at once.
        while left and (piece := os.pread(self._file.fileno(), left, at)):
            pieces.append(piece)
            at, left = at + len(piece), left - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Give the room back."""
        if self._file is not None:
            self._file.close()
            self._file = None
