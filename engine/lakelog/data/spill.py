"""Rows that wait on local disk, in one unlinked file that disappears with the process."""

from __future__ import annotations

import pyarrow as pa

from lakelog.storage.scratch import ScratchFile, ScratchRange


class RowSpill:
    """Batches of rows of one schema, written at the end and read anywhere; ``TMPDIR`` says where.

    For one thread when writing, for several when reading.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = ScratchFile(instead="write fewer partitions")

    def append(self, rows: pa.Table) -> list[ScratchRange]:
        """Write rows; gives their places."""
        return [self._file.append(batch.serialize(), "rows") for batch in rows.to_batches()]

    def read(self, places: list[ScratchRange]) -> pa.Table:
        """The rows that are at some places."""
        batches = [
            pa.ipc.read_record_batch(pa.py_buffer(self._file.read(place)), self._schema)
            for place in places
        ]
        return pa.Table.from_batches(batches, self._schema)

    def close(self) -> None:
        """Give the room back."""
        self._file.close()
