"""Specification 002: files of runs, joined by their sequence numbers.

Sequence numbers go up by one from record to record, over all files. So they prove what the
format's checksums cannot: that nothing is missing, doubled or out of order. They also prove that
nothing is missing where a crash cut an append and the log was written on behind it: the record
behind has the number that the cut one would have had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.errors import UnsupportedError
from lakelog.wal.historic.log import (
    BEGIN,
    COMMIT,
    DELETE,
    PUT,
    RECORDS_SCHEMA,
    Finding,
    HistoricFile,
    HistoricLog,
    op_column,
)
from lakelog.wal.historic.spans import Bytes
from lakelog.wal.historic.spec002 import Run, explain, may_be_torn, next_record, read_run
from lakelog.wal.threads import in_threads

_REOPENED = 0  # next to the operations: here the log was opened again


def decode(files: Sequence[tuple[str, Bytes]]) -> HistoricLog:
    """A log of specification 002."""
    joined = _Join(files, in_threads(lambda file: _run(*file, 0), files))
    joined.read()
    return joined.log()


def _run(path: str, data: Bytes, start: int) -> Run:
    try:
        return read_run(data, start)
    except UnsupportedError as error:
        error.path = path
        raise


class _Join:
    """A walk over the files, run by run."""

    def __init__(self, files: Sequence[tuple[str, Bytes]], first_runs: Sequence[Run]) -> None:
        self._files = files
        self._first_runs = first_runs
        self._runs: list[tuple[int, Run]] = []
        self._reopened: list[int] = []  # rows before which the log was opened again
        self._rows = 0
        self._next_seq: int | None = None
        self._torn: list[tuple[int, int, int]] = []  # file, offset, bytes; not yet explained
        self._findings: list[Finding] = []

    def read(self) -> None:
        """Go over all files, up to the first damage."""
        for index, run in enumerate(self._first_runs):
            if not self._read_file(index, run):
                return
        self._close()

    def _read_file(self, index: int, run: Run) -> bool:
        data = self._files[index][1]
        while True:
            if len(run.seqs) and not self._take(index, run):
                return False
            if run.end == len(data):
                return True
            following = next_record(data, run.end + 1)
            end = len(data) if following is None else following
            self._torn.append((index, run.end, end - run.end))
            if following is None:
                return True
            run = _run(self._files[index][0], data, following)

    def _take(self, index: int, run: Run) -> bool:
        """Add a run; False where its sequence numbers show damage."""
        seqs = run.seqs
        jumps = np.flatnonzero(np.diff(seqs) != 1)
        first, expected = int(seqs[0]), self._next_seq
        if expected is None:
            # Of a log whose beginning was truncated, any number may be the first. That it is the
            # first that changed, and not the second, shows in the ones behind.
            is_odd = len(seqs) > 2 and len(jumps) > 0 and jumps[0] == 0 and seqs[2] - seqs[1] == 1
            if is_odd or first < 1:
                expected = int(seqs[1]) - 1 if is_odd else 1
            elif self._torn:
                expected = 1  # only the very first append may be cut without a loss
        if expected is not None and first != expected:
            self._lost(index, int(run.positions[0]), expected, first)
            return False
        self._findings += [self._torn_finding("torn_append", *torn) for torn in self._torn]
        if self._torn:
            self._reopened.append(self._rows)
            self._torn = []
        count = int(jumps[0]) + 1 if len(jumps) else len(seqs)
        self._runs.append((index, run if count == len(seqs) else run.head(count)))
        self._rows += count
        self._next_seq = int(seqs[count - 1]) + 1
        if count < len(seqs):
            at = int(run.positions[count])
            self._lost(index, at, self._next_seq, int(seqs[count]))
            return False
        return True

    def _lost(self, index: int, at: int, expected: int, found: int) -> None:
        """Note that sequence numbers do not continue; where bytes are left over, it is because of
        them.
        """
        reason = "the sequence numbers of the log are not contiguous"
        if self._torn:
            index, at, _ = self._torn[0]
            reason = f"{explain(self._files[index][1], at)[0]}, and records after it are missing"
        self._damage(index, at, reason, expected, found)

    def _damage(
        self, index: int, at: int, reason: str, expected: object, found: object, records: int = 0
    ) -> None:
        rest = sum(len(data) for _, data in self._files[index:]) - at
        path = self._files[index][0]
        self._findings.append(Finding("damage", path, at, rest, reason, expected, found, records))

    def _torn_finding(
        self, kind: Literal["torn_tail", "torn_append"], index: int, at: int, size: int
    ) -> Finding:
        path, data = self._files[index]
        reason, expected, found = explain(data, at)
        return Finding(kind, path, at, size, reason, expected, found)

    def _close(self) -> None:
        """Say what is left over behind the last record."""
        for index, at, size in self._torn:
            data = self._files[index][1]
            if at == 0 and not may_be_torn(data):
                reason = "the file does not begin with a record"
                self._damage(index, 0, reason, "a record of specification 002", None)
                return
            self._findings.append(self._torn_finding("torn_tail", index, at, size))

    def log(self) -> HistoricLog:
        """What was read."""
        ops = np.concatenate([np.empty(0, np.uint8), *(run.ops for _, run in self._runs)])
        marks_batches = bool((ops == BEGIN).any())
        committed = np.ones(len(ops), dtype=bool)
        rows = rows_read = len(ops)
        if marks_batches:
            for low, high, is_decided in unfinished_batches(ops, self._reopened):
                if not is_decided:
                    rows = low
                    self._undecidable(low, rows_read - low)
                    break
                committed[low:high] = False
                self._findings.append(self._unfinished(low, high))
        return HistoricLog(
            "002",
            self._table(ops[:rows], committed[:rows]),
            tuple(self._file(index, rows) for index in range(len(self._files))),
            tuple(sorted(self._findings, key=self._order)),
            marks_batches,
            is_checked=True,
            undecided_records=0 if marks_batches else rows - _trailing(ops),
        )

    def _table(self, ops: npt.NDArray[np.uint8], committed: npt.NDArray[np.bool_]) -> pa.Table:
        batches = []
        low = 0
        for _, run in self._runs:
            high = min(low + len(run.seqs), len(ops))
            part = run.head(high - low)
            columns = [
                pa.chunked_array([pa.array(part.seqs)]),
                pa.chunked_array([op_column(part.ops)]),
                part.keys,
                part.values,
                pa.chunked_array([pa.array(committed[low:high])]),
            ]
            batches.append(pa.Table.from_arrays(columns, schema=RECORDS_SCHEMA))
            low = high
        return pa.concat_tables([RECORDS_SCHEMA.empty_table(), *batches])

    def _file(self, index: int, rows: int) -> HistoricFile:
        """What came of one file, of so many rows of the log."""
        seqs = []
        for of_file, run in self._runs:
            if of_file == index:
                seqs.append(run.seqs[:rows])
            rows = max(rows - len(run.seqs), 0)
        path, data = self._files[index]
        every = np.concatenate([np.empty(0, np.int64), *seqs])
        if not len(every):
            return HistoricFile(path, len(data), 0, None, None)
        return HistoricFile(path, len(data), len(every), int(every[0]), int(every[-1]))

    def _place(self, row: int) -> tuple[int, int]:
        """The file, and the offset in it, at which a row's record begins or the last one ends."""
        index, at = 0, 0
        for index, run in self._runs:
            if row < len(run.seqs):
                return index, int(run.positions[row])
            row -= len(run.seqs)
            at = run.end
        return index, at

    def _unfinished(self, low: int, high: int) -> Finding:
        index, at = self._place(low)
        last, end = self._place(high)
        size = end - at + sum(len(data) for _, data in self._files[index:last])
        path = self._files[index][0]
        records = high - low - 1  # without BEGIN itself
        reason = "a batch has no COMMIT"
        return Finding("unfinished_batch", path, at, size, reason, "COMMIT", None, records)

    def _undecidable(self, row: int, records: int) -> None:
        """Note a batch of which it is unknown where it ended: what is behind it may belong to
        it, and must not be replayed, or may not, and must.
        """
        index, at = self._place(row)
        reason = "a batch has no COMMIT, and more records follow"
        before = [finding for finding in self._findings if self._order(finding) < (index, at)]
        self._findings = before
        self._damage(index, at, reason, "COMMIT", None, records)

    def _order(self, finding: Finding) -> tuple[int, int]:
        return [path for path, _ in self._files].index(finding.path), finding.byte_offset


def unfinished_batches(
    ops: npt.NDArray[np.uint8], reopened: Sequence[int]
) -> list[tuple[int, int, bool]]:
    """The batches that begin and are not committed."""
    marked = np.flatnonzero(ops >= COMMIT)
    # Where two are at one row, the opening again came first.
    rows = np.concatenate([np.asarray(reopened, dtype=np.int64), marked])
    kinds = np.concatenate([np.full(len(reopened), _REOPENED, np.uint8), ops[marked]])
    order = np.argsort(rows, kind="stable")
    rows, kinds = np.append(rows[order], len(ops)), np.append(kinds[order], np.uint8(_REOPENED))
    is_open = (kinds[:-1] == BEGIN) & (kinds[1:] != COMMIT) & (np.diff(rows) > 1)
    return [
        (int(rows[at]), int(rows[at + 1]), bool(kinds[at + 1] == _REOPENED))
        for at in np.flatnonzero(is_open).tolist()
    ]


def _trailing(ops: npt.NDArray[np.uint8]) -> int:
    """The first of the PUT and DELETE records at the end."""
    marks = np.flatnonzero((ops != PUT) & (ops != DELETE))
    return int(marks[-1]) + 1 if len(marks) else 0
