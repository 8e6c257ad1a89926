"""`JoinedRecords`: records of the tables that threads write to an Ingestor at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakelog.ingest.records import ARROW, END_OF_STREAM, HEADER, RECORD_BYTES, size_of

_OPTIONS = pa.ipc.IpcWriteOptions()


class JoinedRecords:
    """Makes records of tables that threads write at the same time; one call of `of` at a time.

    Memory: the largest record, of `RECORD_BYTES` as a rule. It is kept, because writing to new
    memory takes longer.
    """

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows, self._most_bytes = most_rows, min(most_bytes, RECORD_BYTES)
        self._memory = bytearray()
        self._row_bytes = 0.0

    def estimate(self, table: pa.Table) -> int:
        """The approximate bytes of a table in a record, from those of the last record."""
        return int(self._row_bytes * table.num_rows) or size_of(table)

    def of(self, tables: Sequence[pa.Table]) -> Iterator[tuple[int, bytes, memoryview]]:
        """Tables of one schema as records: the number of tables, key and value of each."""
        held: list[pa.Table] = []
        rows = size = 0
        for table in tables:
            own = size_of(table)
            if held and (
                rows + table.num_rows > self._most_rows
                or size + own > self._most_bytes
                or not table.schema.equals(held[0].schema, check_metadata=True)
            ):
                yield len(held), HEADER.pack(ARROW, rows), self._stream_of(held)
                held, rows, size = [], 0, 0
            held.append(table)
            rows, size = rows + table.num_rows, size + own
        yield len(held), HEADER.pack(ARROW, rows), self._stream_of(held)
        self._row_bytes = size / rows

    def _stream_of(self, tables: Sequence[pa.Table]) -> memoryview:
        # One batch, because a flush takes longer for many small ones.
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
        size = len(table.schema.serialize()) + size_of(table) + len(END_OF_STREAM)
        memory = self._unused(size)
        sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
        with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
            writer.write_table(table)
        return memoryview(memory)[: sink.tell()]

    def _unused(self, size: int) -> bytearray:
        """Memory to which no buffer refers."""
        if size > 2 * RECORD_BYTES:
            return bytearray(size)
        try:
            self._memory.append(0)  # refused while a buffer refers to it
            self._memory.pop()
        except BufferError:
            self._memory = bytearray()
        if len(self._memory) < size:
            self._memory = bytearray(size)
        return self._memory
