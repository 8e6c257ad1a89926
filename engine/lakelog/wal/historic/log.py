"""The result of reading a historic log: records as columns, and findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.errors import WalCorruptionError
from lakelog.wal.records import WalRecords

HistoricFormat = Literal["002", "003", "003-crc"]
"""The formats, by the number of their specification; 003 without and with checksums."""

FORMATS: tuple[HistoricFormat, ...] = ("002", "003", "003-crc")

PUT, DELETE, COMMIT, CHECKPOINT, BEGIN = 1, 2, 3, 4, 5
"""Operation codes of specification 002."""

_OPERATIONS = ("PUT", "DELETE", "COMMIT", "CHECKPOINT", "BEGIN")

RECORDS_SCHEMA = pa.schema(
    [
        pa.field("seqNum", pa.int64(), nullable=False),
        pa.field("op", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("isCommitted", pa.bool_(), nullable=False),
    ]
)
"""Schema of `HistoricLog.records`."""

ZERO_BYTES = "zero bytes follow in the file"
"""Reason of a `Finding` for a torn tail of zero bytes, which a crash left."""

FindingKind = Literal[
    "torn_tail", "torn_append", "unfinished_batch", "unfinished_upgrade", "damage"
]


@dataclass(frozen=True)
class Finding:
    """A part of a log that is not a complete, committed record.

    Attributes:
        kind: ``torn_tail``: bytes after the last whole record, from an append that a crash
            interrupted; ``torn_append``: the same before further records, whose sequence numbers
            prove that nothing is missing; ``unfinished_batch``: a batch without its COMMIT, which
            is never replayed; ``unfinished_upgrade``: an upgrade that was interrupted; ``damage``:
            anything else.
        path: Path of the file.
        byte_offset: Offset in the file, in bytes.
        size_bytes: Number of bytes; for damage, all bytes that are not read because of it.
        reason: Description of the problem.
        expected: Expected content, if known.
        found: Content that was found instead.
        records: Number of whole records that are omitted from replay.
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
        """Whether a completely written record is lost or doubtful."""
        return self.kind == "damage"

    def error(self, safe_seq: int, safe_records: int, hint: str) -> WalCorruptionError:
        """The finding as an error."""
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
    """A file of a historic log, and the range of its sequence numbers; None without records."""

    path: str
    size_bytes: int
    records: int
    first_seq: int | None
    last_seq: int | None


@dataclass(frozen=True)
class HistoricLog:
    """The records of a log in a historic format.

    Attributes:
        format: The format.
        records: Every whole record up to the first damage, including control marks, in log order:
            ``seqNum`` (int64), ``op`` (dictionary of strings), ``key`` and ``value`` (binary),
            ``isCommitted`` (bool; false for the records of an unfinished batch).
        files: The files, in log order.
        findings: Parts of the files that are not complete, committed records.
        marks_batches: Whether a BEGIN was found, so that an unfinished batch can be determined.
        is_checked: Whether the format has checksums. Without them, changed bytes are not detected
            if the lengths remain consistent.
        undecided_records: Number of PUT and DELETE records at the end that may be the first ones of
            an unfinished batch, if no BEGIN was found. They are replayed.
    """

    format: HistoricFormat
    records: pa.Table
    files: tuple[HistoricFile, ...]
    findings: tuple[Finding, ...]
    marks_batches: bool
    is_checked: bool
    undecided_records: int = 0

    def replay(self, after_seq: int = 0) -> WalRecords:
        """PUT and DELETE records above a sequence number, without unfinished batches. The whole log
        decides whether a batch is finished, so no `after_seq` returns a part of one.
        """
        chosen = self.records
        ops = pa.chunked_array([chunk.indices for chunk in chosen["op"].chunks], pa.int8())
        mask = pc.and_(
            pc.and_(pc.less(ops, DELETE), chosen["isCommitted"]),
            pc.greater(chosen["seqNum"], after_seq),
        )
        chosen = chosen.drop_columns(["isCommitted"])
        return WalRecords(chosen if pc.all(mask, min_count=0).as_py() else chosen.filter(mask))

    @property
    def doubts(self) -> tuple[str, ...]:
        """Properties of the log that cannot be verified, one sentence each."""
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
        """Whether some bytes of the files are in no record, so that the files are worth keeping."""
        return any(each.kind != "unfinished_batch" for each in self.findings)

    @property
    def last_seq(self) -> int:
        """The last sequence number that was read; 0 without records."""
        return int(self.records["seqNum"][-1].as_py()) if self.records.num_rows else 0

    @property
    def damage(self) -> Finding | None:
        """The damage at which reading ended, if any."""
        return next((finding for finding in self.findings if finding.is_damage), None)

    def check(self) -> None:
        """Raise for a damaged log."""
        damage = self.damage
        if damage is not None:
            raise damage.error(
                self.last_seq,
                self.records.num_rows,
                "restore the file from a copy, or read the safe records with strict=False",
            )


def op_column(codes: npt.NDArray[np.uint8]) -> pa.DictionaryArray:
    """Operation codes as the column ``op`` of records."""
    indices = pa.array((codes - 1).astype(np.int8))
    return pa.DictionaryArray.from_arrays(indices, pa.array(_OPERATIONS))
