"""`JoinedRecords`: records of the tables that threads write to an Ingestor at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakelog.ingest.rows import ARROW, END_OF_STREAM, HEADER, RECORD_BYTES, size_of


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

    def of(self, tables: Sequence[pa.Table]) -> Iterator[tuple[int, bytes, pa.Buffer]]:
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
                yield len(held), HEADER.pack(ARROW, rows), self._stream_of(held, size)
                held, rows, size = [], 0, 0
            held.append(table)
            rows, size = rows + table.num_rows, size + own
        yield len(held), HEADER.pack(ARROW, rows), self._stream_of(held, size)
        self._row_bytes = size / rows

    def _stream_of(self, tables: Sequence[pa.Table], size: int) -> pa.Buffer:
        schema = tables[0].schema
        value = self._unused(len(schema.serialize()) + size + len(END_OF_STREAM))
        sink = pa.FixedSizeBufferWriter(value)
        with pa.ipc.new_stream(sink, schema) as writer:
            for table in tables:
                writer.write_table(table)
        return value.slice(0, sink.tell())

    def _unused(self, size: int) -> pa.Buffer:
        """Memory to which no buffer refers."""
        if size > 2 * RECORD_BYTES:
            return pa.py_buffer(bytearray(size))
        try:
            self._memory.append(0)  # refused while a buffer refers to it
            self._memory.pop()
        except BufferError:
            self._memory = bytearray()
        if len(self._memory) < size:
            self._memory = bytearray(size)
        return pa.py_buffer(self._memory)
