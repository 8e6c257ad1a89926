"""Records of an Ingestor's log, as columns.

The key of a record is a header: its form (u8) and number of rows (u32, little-endian), then the
position of a source as JSON ``[source, offset]``, if the caller gave one, of files that `lakelog
ingest` read with a fingerprint of what was read: ``[source, offset, fingerprint]``. The value is
one of

- ``JSON``: one object per line, with the table's column names. Dates and times are ISO 8601 text.
  It is the form of rows of plain Python values, which costs microseconds to validate and encode.
- ``ARROW``: an Arrow IPC stream, in the schema of `Conform`: the form of everything else. It lacks
  identity columns whose values are generated on commit, and what is computed from them.
- ``EMPTY``: no rows, only a position.

``PUT`` records hold rows, ``DELETE`` records hold only key columns.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.errors import LakelogError, OutcomeUnknownError

EMPTY, JSON, ARROW = 0, 1, 2
HEADER = struct.Struct("<BI")
_HEADER_DTYPE = np.dtype([("form", "u1"), ("rows", "<u4")])
ONE_ROW = HEADER.pack(JSON, 1)
"""The key of a record of one row without a position."""

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

RECORD_BYTES = 8 << 20
"""Approximate bytes of rows per record."""


class Position(NamedTuple):
    """A position in a source, with a fingerprint of what was read up to it, if it is a file."""

    offset: int
    fingerprint: str | None = None


@dataclass(frozen=True)
class Record:
    """A record to append: key, value, and number of rows."""

    key: bytes
    value: bytes
    rows: int


class DurableRows:
    """Counts the first rows of a call, which is written in parts, that are durable or diverted.
    Errors of later parts name their number: the caller must not write these rows again.
    """

    def __init__(self) -> None:
        self._earlier = self._rows = 0

    def add_part(self, rows: int, diverted: Sequence[int]) -> None:
        """The first `rows` good rows of a batch are durable, and the rows with the ascending
        numbers `diverted` are not among them.
        """
        for number in diverted:
            rows += number <= rows
        self._rows = self._earlier + rows

    def end_batch(self, rows: int) -> None:
        """All rows of a batch are durable or diverted."""
        self._rows = self._earlier = self._earlier + rows

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Name the rows in errors that leave the block."""
        try:
            yield
        except Exception as error:
            if self._rows:
                text = f"rows 1 to {self._rows} of the call are durable"
                if not isinstance(error, OutcomeUnknownError):  # else the later ones may be, too
                    text += ": write only the later ones"
                if isinstance(error, LakelogError):
                    error.hint = f"{error.hint}; {text}" if error.hint else text
                else:
                    error.add_note(f"lakelog: {text}")
            raise


class Records:
    """Records as columns: `forms` (uint8) is 0 in control records, `sizes` are of key and value."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.seqs = table["seqNum"].to_numpy()
        self.ops = table["op"].cast(pa.string()).to_numpy()
        self.keys, self.values = table["key"], table["value"]
        is_data = np.isin(self.ops, ("PUT", "DELETE"))
        self.forms = np.zeros(len(self.ops), np.uint8)
        self.rows = np.zeros(len(self.ops), np.int64)
        if is_data.any():
            keys = self.keys.combine_chunks().filter(pa.array(is_data))
            heads = pc.binary_slice(keys, 0, HEADER.size).cast(pa.binary(HEADER.size))
            read = np.frombuffer(_bytes_of(heads), _HEADER_DTYPE)
            self.forms[is_data], self.rows[is_data] = read["form"], read["rows"]
        lengths = pc.add(
            pc.binary_length(self.keys), pc.fill_null(pc.binary_length(self.values), 0)
        )
        self.sizes = lengths.to_numpy().astype(np.int64)

    def __len__(self) -> int:
        return len(self.seqs)

    @property
    def count(self) -> int:
        """Number of records that are not control records."""
        return int((self.sizes > 0).sum())

    def __getitem__(self, part: slice) -> Records:
        start, stop, _ = part.indices(len(self))
        return Records(self.table.slice(start, stop - start))

    def of(self, op: str) -> tuple[Records, np.ndarray[Any, Any]]:
        """The records of one operation, and their positions."""
        mask = self.ops == op
        if mask.all():
            return self, np.arange(len(self))
        return Records(self.table.filter(pa.array(mask))), np.flatnonzero(mask)

    def numbers(self) -> np.ndarray[Any, Any]:
        """The number of the record of each row, in the order in which rows are decoded: JSON rows
        come first.
        """
        places = [np.flatnonzero(self.forms == form) for form in (JSON, ARROW)]
        return np.concatenate([np.repeat(each, self.rows[each]) for each in places])

    def replaced(self, by: Sequence[Record]) -> Records:
        """This record with other rows, as several ones of its sequence number."""
        columns: list[Any] = [each.combine_chunks() for each in self.table.columns[:2]]
        same = [column.take(pa.array(np.zeros(len(by), np.int64))) for column in columns]
        keys, values = [record.key for record in by], [record.value for record in by]
        return Records(pa.table([*same, keys, values], schema=self.table.schema))

    def positions(self) -> dict[str, Position]:
        """The last position of each source."""
        long = pc.greater(pc.binary_length(self.keys), HEADER.size)
        found: dict[str, Position] = {}
        for key in self.keys.filter(long).to_pylist():
            source, *position = orjson.loads(key[HEADER.size :])
            found[source] = Position(*position)
        return found

    @staticmethod
    def concat(parts: Sequence[Records]) -> Records:
        """Concatenated records."""
        return Records(pa.concat_tables([part.table for part in parts]))


def _bytes_of(heads: pa.FixedSizeBinaryArray) -> bytes:
    """The bytes of a column of fixed size."""
    width = heads.type.byte_width
    data: bytes = heads.buffers()[1][heads.offset * width :][: len(heads) * width].to_pybytes()
    return data


def with_position(records: list[Record], source: str, position: Position) -> list[Record]:
    """The records of one write, the last of which has a position."""
    records = records or [Record(HEADER.pack(EMPTY, 0), b"", 0)]
    last = records[-1]
    key = last.key + orjson.dumps([source, *(each for each in position if each is not None)])
    return [*records[:-1], replace(last, key=key)]


def records_of_lines(lines: Sequence[bytes]) -> Iterator[Record]:
    """Lines of JSON as records."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size >= RECORD_BYTES:
            yield Record(HEADER.pack(JSON, len(part)), b"".join(part), len(part))
            part, size = [], 0
    if part:
        yield Record(HEADER.pack(JSON, len(part)), b"".join(part), len(part))


def records_of_table(table: pa.Table) -> Iterator[Record]:
    """Rows in the schema as records."""
    rows = table.num_rows
    step = max(1, rows * RECORD_BYTES // max(size_of(table), RECORD_BYTES))
    schema = table.schema.serialize()
    for start in range(0, rows, step):
        part = table.slice(start, step)
        # The messages of an IPC stream; the schema of the table's types has no dictionaries.
        batches = [batch.serialize() for batch in part.to_batches()]
        value = b"".join([schema, *batches, END_OF_STREAM])
        yield Record(HEADER.pack(ARROW, part.num_rows), value, part.num_rows)


def size_of(table: pa.Table) -> int:
    """The bytes of a record of rows, without its schema; `nbytes` costs tenfold."""
    return sum(map(pa.ipc.get_record_batch_size, table.to_batches()))


def filtered(values: pa.ChunkedArray, mask: np.ndarray[Any, Any]) -> pa.ChunkedArray:
    """Values for which the mask is true; not copied if all are."""
    return values if mask.all() else values.filter(pa.array(mask))


def data_of(values: pa.Array) -> pa.Buffer:
    """The concatenated bytes of all values of a column."""
    ends, data = _ends_of(values)
    return data.slice(int(ends[0]), int(ends[-1] - ends[0]))


def buffers_of(values: pa.ChunkedArray) -> Iterator[pa.Buffer]:
    """The bytes of each value of a column without nulls; a scalar would be a copy."""
    for chunk in values.chunks:
        ends, data = _ends_of(chunk)
        for start, end in itertools.pairwise(ends.tolist()):
            part = data.slice(start, end - start)
            yield part if part.address % 8 == 0 else pa.py_buffer(part.to_pybytes())


def _ends_of(values: pa.Array) -> tuple[np.ndarray[Any, Any], pa.Buffer]:
    """The offsets of the values of a column, and the bytes that they point into."""
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    return np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1], data
