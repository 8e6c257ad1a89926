"""Rows of files and of standard input, batch by batch, with the position after each batch.

Positions are bytes in NDJSON, and rows in the other formats. A reader that starts at the position
after a batch continues with the next row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from lakelog.errors import InvalidInputError
from lakelog.ingest.rows import TextRows
from lakelog.wal.disk import disk_errors

Format = Literal["ndjson", "csv", "parquet", "arrow"]
FORMATS: tuple[Format, ...] = ("ndjson", "csv", "parquet", "arrow")

_SUFFIXES: dict[str, Format] = {
    **dict.fromkeys((".ndjson", ".jsonl", ".json"), "ndjson"),
    ".csv": "csv",
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".arrows", ".ipc", ".feather"), "arrow"),
}
_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 50_000
_FILE_MAGIC = b"ARROW1"


def format_of(path: str) -> Format:
    """The format that the suffix of a file names.

    >>> format_of("events.jsonl")
    'ndjson'
    """
    found = _SUFFIXES.get(os.path.splitext(path)[1].lower())
    if found is None:
        raise InvalidInputError(
            "the format of the file is unknown",
            path=path,
            expected=", ".join(_SUFFIXES),
            found=os.path.splitext(path)[1] or "no suffix",
            hint=f"name the format: {', '.join(FORMATS)}",
        )
    return found


def read_file(
    path: str, form: Format, columns: Sequence[str], start: int = 0
) -> Iterator[tuple[Any, int]]:
    """Batches of a file from a position on, each with the position after it.

    Args:
        path: The file.
        form: Its format.
        columns: The table's columns; a CSV file's values of them are read as text.
        start: The position; not after the end of the file.
    """
    with (
        disk_errors("the file cannot be read", path, missing="file not found"),
        open(path, "rb") as file,
    ):
        yield from _named(path, read_stream(file, form, columns, start))


def read_stream(
    stream: BinaryIO, form: Format, columns: Sequence[str], start: int = 0
) -> Iterator[tuple[Any, int]]:
    """As `read_file`, of an open file or of standard input (`start` is 0)."""
    if form == "ndjson":
        yield from _lines(stream, start)
        return
    position = 0
    for rows in _batches(stream, form, columns, start):
        if form == "csv":  # which skips rows itself, and does not report how many
            position = max(position, start) + len(rows)
            yield rows, position
            continue
        skipped = min(max(start - position, 0), len(rows))
        position += len(rows)
        if skipped < len(rows):
            yield rows[skipped:], position
    if form != "csv" and position < start:
        raise _shorter(start, position)


def _lines(stream: BinaryIO, start: int) -> Iterator[tuple[bytes, int]]:
    """Complete lines. Those of a pipe are returned as they arrive."""
    if start:
        size = stream.seek(0, os.SEEK_END)
        if size < start:
            raise _shorter(start, size)
        stream.seek(start)
    read = getattr(stream, "read1", stream.read)
    position, rest = start, b""
    while data := read(_BATCH_BYTES):
        lines, feed, rest = (rest + data).rpartition(b"\n")
        if feed:
            position += len(lines) + 1
            yield lines, position
    if rest:
        yield rest, position + len(rest)


def _batches(stream: BinaryIO, form: Format, columns: Sequence[str], start: int) -> Iterator[Any]:
    if form == "csv":
        options = pc.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=False,
        )
        parse = pc.ParseOptions(newlines_in_values=True)
        read = pc.ReadOptions(block_size=_BATCH_BYTES, skip_rows_after_names=start)
        with pc.open_csv(stream, read, parse, options) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield TextRows(pa.Table.from_batches([batch]))
        return
    if form == "parquet":
        yield from pq.ParquetFile(stream).iter_batches(_BATCH_ROWS)
        return
    peeked = stream.peek(len(_FILE_MAGIC)) if hasattr(stream, "peek") else b""
    if peeked.startswith(_FILE_MAGIC):
        with pa.ipc.open_file(stream) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
        return
    with pa.ipc.open_stream(stream) as batches:
        yield from batches


@contextmanager
def _arrow_errors(path: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as cause:
        raise InvalidInputError(
            "the file cannot be read in its format",
            path=path,
            found=str(cause).split("\n", 1)[0],
        ) from cause


def _named(path: str, batches: Iterator[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    """The batches; errors of their format name the file."""
    while True:
        with _arrow_errors(path):
            found = next(batches, None)
        if found is None:
            return
        yield found


def _shorter(start: int, size: int) -> InvalidInputError:
    return InvalidInputError(
        "the file is shorter than its ingested part",
        expected=f"at least {start} bytes or rows",
        found=size,
        hint="it was replaced: use another name, or another directory",
    )
