"""The executor's part of compaction: writes the rows of a group of files to new ones.

A file that cannot be read is skipped: the other files are rewritten, and the result reports the
file and the reason. New files that were started before are deleted: a new file with only some rows
of a source file must never be committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from lakelog.data.files import ReadPlan
from lakelog.data.read import read_files
from lakelog.data.write import DataFileWriter, WritePlan
from lakelog.errors import CorruptionError, LakelogError, NotFoundError, UnavailableError
from lakelog.spark.reading import serialize_frame, unpack
from lakelog.storage import LogStore
from lakelog.storage.bounded import open_bounded

REWRITTEN_SCHEMA = "bin int, done boolean, adds binary, unread binary, rows long"
"""What a task answers of each bin, as Spark's schema: whether it was rewritten, the new files, and
those that could not be read (`_UNREAD_SCHEMA`), both as Arrow bytes.
"""

_UNREAD_SCHEMA = pl.Schema({"path": pl.String(), "reason": pl.String(), "lasting": pl.Boolean()})
"""A file that could not be read: whether it is damaged or gone, or its store did not answer."""

_ANSWER = pa.schema(
    [
        ("bin", pa.int32()),
        ("done", pa.bool_()),
        ("adds", pa.binary()),
        ("unread", pa.binary()),
        ("rows", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Rewritten:
    """The result of one bin: `adds` for `lakelog.Transaction.add` (empty if no row was left, None
    if no rewrite was needed), files that could not be read, and rows written.
    """

    adds: pl.DataFrame | None
    unread: pl.DataFrame
    rows: int


@dataclass(frozen=True)
class Rewriter:
    """Rewrites bins; Spark calls it with batches of ``bin`` (int32) and ``files`` (Arrow bytes)."""

    source: ReadPlan
    target: WritePlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row per bin. Memory: that of a reader and of a writer."""
        store = open_bounded(self.source.location, self.source.storage_options)
        for batch in batches:
            for number, files in zip(*(column.to_pylist() for column in batch), strict=True):
                made = self.rewrite(number, unpack(files), store)
                adds = b"" if made.adds is None else serialize_frame(made.adds)
                row = (number, made.adds is not None, adds, serialize_frame(made.unread), made.rows)
                columns = [pa.array([v], f.type) for v, f in zip(row, _ANSWER, strict=True)]
                yield pa.record_batch(columns, schema=_ANSWER)

    def rewrite(self, number: int, files: pl.DataFrame, store: LogStore) -> Rewritten:
        """Rewrite one bin."""
        unread = pl.DataFrame(schema=_UNREAD_SCHEMA)
        while True:
            left = files.filter(~pl.col("path").is_in(unread["path"].implode()))
            if not left.height or (left.height == 1 and left["dvStorageType"].null_count()):
                return Rewritten(None, unread, 0)
            try:
                with DataFileWriter(self.target, number=number, store=store) as writer:
                    for batch in read_files(self.source, left, store=store):
                        writer.write(batch)
                    return Rewritten(writer.finish(), unread, writer.num_rows)
            except (NotFoundError, CorruptionError, UnavailableError):
                found = self._unreadable(left, store)
                if not found.height:
                    raise  # all files can be read: the error came from writing
                unread = pl.concat([unread, found])

    def _unreadable(self, files: pl.DataFrame, store: LogStore) -> pl.DataFrame:
        """Read each file separately, to its end."""
        found = []
        for file in files.iter_slices(1):
            try:
                for _ in read_files(self.source, file, store=store):
                    pass
            except (NotFoundError, CorruptionError, UnavailableError) as error:
                lasting = not isinstance(error, UnavailableError)
                found.append((file["path"][0], _reason(error, file["path"][0]), lasting))
        return pl.DataFrame(found, schema=_UNREAD_SCHEMA, orient="row")


def _reason(error: LakelogError, file: str) -> str:
    where = f" ({error.path})" if error.path not in {None, file} else ""
    return f"{error.kind}: {error.message}{where}"
