"""The result of reading a historic log: records as columns, and warnings."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.errors import WalCorruptionError
from lakelog.wal.records import WalRecords

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

LONGEST_VALUE_BYTES = (1 << 31) - 1
"""What a value of Arrow's ``binary`` can have."""

_PIECE_BYTES = 1 << 24
_CACHED_BYTES = 1 << 19


def unaligned(data: Bytes, dtype: str) -> npt.NDArray[Any]:
    """The integer that begins at each byte, where there is one; no copy is made."""
    size = np.dtype(dtype).itemsize
    return np.ndarray((max(len(data) - size + 1, 0),), dtype, data, 0, (1,))


def binary_columns(
    data: Bytes, bounds: Offsets, is_null: npt.NDArray[np.bool_] | None = None
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Two byte strings of each record, as Arrow ``binary``."""
    firsts, seconds = [], []
    low = 0
    while low < len(bounds):
        base = int(bounds[low, 0])
        high = max(low + 1, int(np.searchsorted(bounds[:, 3], base + (1 << 30), side="right")))
        part = bounds[low:high]
        count = len(part)
        offsets = np.empty(4 * count + 1, dtype=np.int32)
        np.subtract(part, base, out=offsets[:-1].reshape(part.shape), casting="same_kind")
        offsets[-1] = offsets[-2]
        # Every second element is what is between: it is never taken.
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data[base : base + int(offsets[-1])])]
        every = pa.Array.from_buffers(pa.binary(), 4 * count, buffers)
        chosen = np.arange(0, 4 * count, 4, dtype=np.int32 if count < 1 << 29 else np.int64)
        firsts.append(every.take(pa.array(chosen)))
        mask = None if is_null is None else is_null[low:high]
        seconds.append(every.take(pa.array(chosen + 2, mask=mask)))
        low = high
    return pa.chunked_array(firsts, pa.binary()), pa.chunked_array(seconds, pa.binary())


def first_wrong(
    positions: Offsets,
    ends: Offsets,
    agree_as_one: Callable[[slice, Bytes], bool],
    agree: Callable[[slice], npt.NDArray[np.bool_]],
) -> int:
    """How many records there are before the first one whose checksum does not agree."""
    if not len(positions):
        return 0
    room = np.empty(_CACHED_BYTES, dtype=np.uint8)
    for part in pieces(positions, int(ends[-1]), _CACHED_BYTES // 2):
        fits = ends[part.stop - 1] - positions[part.start] <= len(room)
        if fits and agree_as_one(part, room):
            continue
        agrees = agree(part)
        if not agrees.all():
            return int(np.argmin(agrees)) + int(part.start)
    return len(positions)


def pieces(positions: Offsets, end: int, piece_bytes: int | None = None) -> list[slice]:
    """Records in pieces, by default such as are worth a thread each."""
    piece_bytes = piece_bytes or _PIECE_BYTES
    if not len(positions):
        return []
    cuts = np.searchsorted(positions, np.arange(positions[0], end, piece_bytes)[1:])
    limits = np.unique(np.concatenate([[0], cuts, [len(positions)]])).tolist()
    return [slice(low, high) for low, high in itertools.pairwise(limits)]


HistoricFormat = Literal["002", "003", "003-crc"]
"""The formats by the number of their specification; 003 without and with checksums."""

FORMATS: tuple[HistoricFormat, ...] = ("002", "003", "003-crc")

PUT, DELETE, COMMIT, CHECKPOINT, BEGIN = 1, 2, 3, 4, 5
"""Operations, as specification 002 numbers them."""

OPERATIONS = ("PUT", "DELETE", "COMMIT", "CHECKPOINT", "BEGIN")

RECORDS_SCHEMA = pa.schema(
    [
        pa.field("seqNum", pa.int64(), nullable=False),
        pa.field("op", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("isCommitted", pa.bool_(), nullable=False),
    ]
)
"""Of `HistoricLog.records`."""

ZERO_BYTES = "zero bytes follow in the file"
"""Of a `Finding`, the reason of a torn tail that a crash left, and nothing else."""

FindingKind = Literal[
    "torn_tail", "torn_append", "unfinished_batch", "unfinished_upgrade", "damage"
]


@dataclass(frozen=True)
class Finding:
    """Something in a log that is not a whole, committed record.

    Attributes:
        kind: ``torn_tail``: bytes after the last whole record, of an append that a crash cut;
            ``torn_append``: the same before further records, whose sequence numbers prove that
            nothing is missing; ``unfinished_batch``: a batch without its COMMIT, which is never
            replayed; ``unfinished_upgrade``: an upgrade that was interrupted; ``damage``: anything
            else.
        path: The file.
        byte_offset: Where in it.
        size_bytes: How many bytes it is about; for damage, all that is not read because of it.
        reason: What is wrong, in words.
        expected: What should have been there, where that can be said.
        found: What was there instead.
        records: How many whole records are left out of replay.
    """

    kind: FindingKind
    path: str
    byte_offset: int
    size_bytes: int
    reason: str
    expected: object = None
    found: object = None
    records: int = 0

    @property
    def is_damage(self) -> bool:
        """Whether something that had been written whole is lost or in doubt."""
        return self.kind == "damage"

    def error(self, safe_seq: int, safe_records: int, hint: str) -> WalCorruptionError:
        """It as an error."""
        return WalCorruptionError(
            self.reason,
            path=self.path,
            byte_offset=self.byte_offset,
            expected=self.expected,
            found=self.found,
            safe_seq=safe_seq,
            safe_records=safe_records,
            hint=hint,
        )


@dataclass(frozen=True)
class HistoricFile:
    """One file of a historic log.

    Attributes:
        path: Where it is.
        size_bytes: How long it is.
        records: Number of records read from it.
        first_seq: Sequence number of the first of them; None without any.
        last_seq: Sequence number of the last of them.
    """

    path: str
    size_bytes: int
    records: int
    first_seq: int | None
    last_seq: int | None


@dataclass(frozen=True)
class HistoricLog:
    """The records of a log in one of the historic formats.

    Attributes:
        format: Which one.
        records: Every whole record up to the first damage, control marks included, in the order
            of the log, in `RECORDS_SCHEMA`. ``isCommitted`` is false for the records of a batch
            that is known not to be finished.
        files: The files, in the order of the log.
        findings: What else is in them.
        marks_batches: Whether a BEGIN was found, so that an unfinished batch can be determined.
        undecided_records: How many PUT and DELETE records at the end may be the first ones of an
            unfinished batch, where no BEGIN was found: cannot be known. They are replayed.
        is_checked: Whether the format has checksums. Without them, a change of bytes that leaves
            the lengths in order is not seen.
    """

    format: HistoricFormat
    records: pa.Table
    files: tuple[HistoricFile, ...]
    findings: tuple[Finding, ...]
    marks_batches: bool
    is_checked: bool
    undecided_records: int = 0

    def replay(self, after_seq: int = 0) -> WalRecords:
        """PUT and DELETE records above a sequence number, without those of unfinished batches.

        Whether a batch is finished is decided by the whole log, so that no ``after_seq`` lets a
        part of one through.
        """
        chosen = self.records
        mask = pc.and_(
            pc.and_(pc.less(_op_indices(chosen), DELETE), chosen["isCommitted"]),
            pc.greater(chosen["seqNum"], after_seq),
        )
        chosen = chosen.drop_columns(["isCommitted"])
        return WalRecords(chosen if pc.all(mask, min_count=0).as_py() else chosen.filter(mask))

    @property
    def doubts(self) -> tuple[str, ...]:
        """What cannot be known of this log, whether anything is wrong with it or not."""
        doubts = []
        if not self.is_checked:
            doubts.append(
                "without checksums, a changed byte is not detected if the lengths "
                "remain consistent, nor a length that covers all later records"
            )
        if self.format == "002" and not self.records.num_rows:
            doubts.append("no record contains the sequence numbers that were used before")
        if self.format == "002" and self.records.num_rows == 1:
            doubts.append("no second record confirms the sequence number of the only one")
        if self.undecided_records:
            doubts.append(
                "batches have no BEGIN here: the records from number "
                f"{self.last_seq - self.undecided_records + 1} on may be an incomplete "
                "batch"
            )
        if any(each.kind == "torn_tail" and each.reason != ZERO_BYTES for each in self.findings):
            doubts.append(
                "the torn tail may have been a complete record that was changed, "
                "because no later record confirms it"
            )
        return tuple(doubts)

    @property
    def leaves_bytes(self) -> bool:
        """Whether bytes of the files are in no record, so that the files are worth keeping."""
        return any(each.kind != "unfinished_batch" for each in self.findings)

    @property
    def last_seq(self) -> int:
        """The last sequence number read, of whatever record; 0 without any."""
        return last_seq(self.records)

    @property
    def damage(self) -> Finding | None:
        """The damage that reading ended at."""
        return next((finding for finding in self.findings if finding.is_damage), None)

    def check(self) -> None:
        """Refuse a damaged log."""
        damage = self.damage
        if damage is not None:
            raise damage.error(
                self.last_seq,
                self.records.num_rows,
                "restore the file from a copy, or read the safe records with strict=False",
            )


def last_seq(records: pa.Table) -> int:
    """The last sequence number of a table in `RECORDS_SCHEMA`; 0 without rows."""
    return int(records["seqNum"][-1].as_py()) if records.num_rows else 0


def op_codes(records: pa.Table) -> npt.NDArray[np.int8]:
    """The operations of a table in `RECORDS_SCHEMA` as numbers: `PUT`, `DELETE` and so on."""
    codes: npt.NDArray[np.int8] = _op_indices(records).to_numpy() + np.int8(PUT)
    return codes


def _op_indices(records: pa.Table) -> pa.ChunkedArray:
    """The operations as places in `OPERATIONS`."""
    indices = [chunk.indices for chunk in records["op"].unify_dictionaries().chunks]
    return pa.chunked_array(indices, pa.int8())


def op_column(codes: npt.NDArray[np.uint8]) -> pa.DictionaryArray:
    """Operations by number as a column of `RECORDS_SCHEMA`."""
    indices = pa.array((codes - 1).astype(np.int8))
    return pa.DictionaryArray.from_arrays(indices, pa.array(OPERATIONS))
