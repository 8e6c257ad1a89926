"""Rows of files and of standard input, batch by batch, with the position after each batch.

Positions are bytes in NDJSON and CSV, and rows in the other formats. A reader that starts at the
position after a batch continues with the next row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from lakelog.errors import InvalidInputError
from lakelog.ingest.rows import BadRows, TextRows
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
_MAX_ROW_BYTES = 64 << 20
_SHOWN_BYTES = 100
_FILE_MAGIC = b"ARROW1"
_MARK = b"\xef\xbb\xbf"  # byte order mark

# A quote has a meaning only where a field begins, as in pyarrow; a file may begin with a byte order
# mark.
_FIELD = rb'(?>"[^"]*+(?>""[^"]*+)*+"[^,\r\n]*+|(?!")[^,\r\n]*+)'
_END = rb"(?>\r\n|\n|\r(?=[^\n]))"
_ROW = rb"(?>\xef\xbb\xbf)?+%b(?>,%b)*+%b" % (_FIELD, _FIELD, _END)
_ROWS, _HEADER = re.compile(rb"(?>%b)*+" % _ROW), re.compile(rb"(?>%b)*+%b" % (_END, _ROW))


def format_of(path: str) -> Format:
    """The format that the suffix of a file names."""
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
    """Batches of a file, with the position after each; the table's `columns` in CSV are texts."""
    with (
        disk_errors("the file cannot be read", path, missing="file not found"),
        open(path, "rb") as file,
    ):
        yield from _named(path, _read(file, form, columns, start))


def read_stream(
    stream: BinaryIO, form: Format, columns: Sequence[str]
) -> Iterator[tuple[Any, int]]:
    """As `read_file`, of standard input."""
    return _named("standard input", _read(stream, form, columns, 0))


def _read(
    stream: BinaryIO, form: Format, columns: Sequence[str], start: int
) -> Iterator[tuple[Any, int]]:
    if form == "ndjson":
        _skip_to(stream, start)
        yield from _complete(stream, start, lambda data: data.rfind(b"\n") + 1)
        return
    if form == "csv":
        yield from _csv(stream, columns, start)
        return
    position = 0
    for rows in _batches(stream, form):
        skipped = min(max(start - position, 0), len(rows))
        position += len(rows)
        if skipped < len(rows):
            yield rows[skipped:], position
    if position < start:
        raise _shorter(start, position)


def _skip_to(stream: BinaryIO, start: int) -> None:
    if start:
        size = stream.seek(0, os.SEEK_END)
        if size < start:
            raise _shorter(start, size)
        stream.seek(start)


def _complete(
    stream: BinaryIO, position: int, end_of_rows: Callable[[bytes], int]
) -> Iterator[tuple[bytes, int]]:
    """The bytes of complete rows, with the position after them; of a pipe as they arrive."""
    read = getattr(stream, "read1", stream.read)
    rest = b""
    while data := rest or read(_BATCH_BYTES):
        while not (end := end_of_rows(data)) and (more := read(_BATCH_BYTES)):
            data += more
            if len(data) > _MAX_ROW_BYTES:
                raise InvalidInputError(
                    f"the row at byte {position} of the file has no end",
                    expected=f"at most {_MAX_ROW_BYTES} bytes",
                    hint="look for a quote that is not closed, or for a file of another format",
                )
        if not end:
            if not end_of_rows(data + b"\n"):
                raise InvalidInputError(
                    f"the row at byte {position} of the file has a quote that is not closed",
                    expected="a closing quote before the end of the file",
                    found=repr(data[:_SHOWN_BYTES].decode(errors="replace")),
                    hint="correct the row; or continue with --resume when the file is complete",
                )
            end = len(data)
        position += end
        yield data[:end], position
        rest = data[end:]


def _csv(stream: BinaryIO, columns: Sequence[str], start: int) -> Iterator[tuple[TextRows, int]]:
    chunks = _complete(stream, 0, _end_of_csv_rows)
    first, position = next(chunks, (b"", 0))
    header = _HEADER.match(first)
    length = header.end() if header else len(first)
    names = pc.read_csv(pa.BufferReader(first[:length] + b"\n")).column_names
    if len(set(names)) < len(names):
        again = next(name for name in names if names.count(name) > 1)
        raise InvalidInputError(f"the column {again!r} occurs twice", column=again, found=names)
    if start:
        _skip_to(stream, start - 1)
        last = stream.read(1)
        chunks = _complete(stream, start, _end_of_csv_rows)
        chunks = _required_new_row(chunks, last, start)
    else:
        chunks = chain([(first[length:], position)], chunks)
    for rows, end in chunks:
        if rows.strip(b"\r\n"):
            yield _parsed_csv(rows, names, columns), end


def _required_new_row(
    chunks: Iterator[tuple[bytes, int]], last: bytes, start: int
) -> Iterator[tuple[bytes, int]]:
    """Refuse the rest of a row whose beginning was read as the last row of the file; `last` is the
    byte before the chunks.
    """
    for data, end in chunks:
        if last not in b"\r\n" and data[:1] not in b"\r\n":
            raise InvalidInputError(
                "the last row of the ingested part had no line end, and text was added to it",
                expected=f"a line end at byte {start}",
                found=repr(data[:_SHOWN_BYTES].decode(errors="replace")),
                hint="a part of this row was ingested: correct it in the table; end rows with a "
                "newline before they are ingested",
            )
        yield data, end
        last = b"\n"


def _end_of_csv_rows(data: bytes) -> int:
    if b'"' not in data and b"\r" not in data:
        return data.rfind(b"\n") + 1
    found = _ROWS.match(data)
    return found.end() if found else 0


def _parsed_csv(data: bytes, names: list[str], columns: Sequence[str]) -> TextRows:
    ragged: list[Any] = []

    def keep(row: pc.InvalidRow) -> str:
        ragged.append(row.text)
        return "skip"

    if data.startswith(_MARK):  # that of a value: pyarrow takes the first for that of a file
        data = _MARK + data
    table = pc.read_csv(
        pa.BufferReader(data),
        pc.ReadOptions(column_names=names, block_size=len(data) + 1),
        pc.ParseOptions(newlines_in_values=True, invalid_row_handler=keep),
        pc.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=False,
        ),
    )
    if not ragged:
        return TextRows(table)
    error = InvalidInputError(
        "rows have more or fewer values than the header",
        expected=f"{len(names)} values",
        found={"rows": len(ragged), "example": ragged[0][:200]},
    )
    return TextRows(table, BadRows(ragged, error))


def _batches(stream: BinaryIO, form: Format) -> Iterator[Any]:
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
    except (pa.ArrowException, UnicodeDecodeError) as cause:
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
