"""Rows of files and of standard input, batch by batch, with the position after each batch.

Positions are bytes in NDJSON and CSV, and rows in the other formats. A reader that starts at the
position after a batch continues with the next row. For a person, rows are named by their lines or
numbers, which are found only if a row is bad.

The fingerprint of a position shows whether a file was replaced: it is a hash of the first bytes of
the file and of those before the position. Files of Parquet and Arrow cannot grow, so that theirs is
of the whole file: its length, its first bytes, and its end with the footer.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.csv as pc

from lakelog.dialects.parquet_files import open_parquet
from lakelog.errors import InvalidInputError
from lakelog.ingest.rows import BadRow, FileRows, TextRows
from lakelog.ingest.texts import is_complete
from lakelog.lazy import cached_property
from lakelog.wal.disk import disk_errors

Format = Literal["ndjson", "csv", "parquet", "arrow"]
FORMATS: tuple[Format, ...] = ("ndjson", "csv", "parquet", "arrow")

_SUFFIXES: dict[str, Format] = {
    **dict.fromkeys((".ndjson", ".jsonl", ".json"), "ndjson"),
    ".csv": "csv",
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".arrows", ".ipc", ".feather"), "arrow"),
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 50_000
_PART_BYTES = 16 << 20
_MAX_ROW_BYTES = 64 << 20
_SHOWN_BYTES = 100
_EDGE_BYTES = 4 << 10
_FOOTER_BYTES = 1 << 20
_FILE_MAGIC = b"ARROW1"
_MARK = b"\xef\xbb\xbf"  # byte order mark
STANDARD_INPUT = "standard input"
_REPLACED = "it was replaced: use another name, or another directory"

# A quote has a meaning only where a field begins, as in pyarrow; a file may begin with a byte order
# mark.
_QUOTED, _PLAIN = rb'[^"]*+(?>""[^"]*+)*+', rb"[^,\r\n]*+"
_FIELD = rb'(?>"%b"%b|(?!")%b)' % (_QUOTED, _PLAIN, _PLAIN)
_END = rb"(?>\r\n|\n|\r(?=[^\n]))"
_ROW = rb"(?>\xef\xbb\xbf)?+%b(?>,%b)*+%b" % (_FIELD, _FIELD, _END)
_LATER_ROW = re.compile(rb"%b(?>,%b)*+%b" % (_FIELD, _FIELD, _END))
_HEADER = re.compile(rb"(?>%b)*+%b" % (_END, _ROW))

_Place = Literal["row", "field", "plain", "quoted"]
_RESTS: dict[_Place, bytes] = {
    "row": rb"(?>\xef\xbb\xbf)?+" + _FIELD,
    "field": _FIELD,
    "plain": _PLAIN,
    "quoted": rb'%b"%b' % (_QUOTED, _PLAIN),
}
"""The rest of a field from its row's beginning, its own, its text, or its text between quotes."""
_ROWS = {
    place: re.compile(rb"%b(?>,%b)*+%b(?>%b)*+" % (rest, _FIELD, _END, _ROW))
    for place, rest in _RESTS.items()
}
_FIELDS = {place: re.compile(rb"%b,(?>%b,)*+" % (rest, _FIELD)) for place, rest in _RESTS.items()}
_QUOTED_TEXT = re.compile(_QUOTED)


def format_of(path: str) -> Format:
    """The format that the suffix of a file names."""
    suffix = os.path.splitext(path)[1].lower()
    found = _SUFFIXES.get(suffix)
    if found is None:
        raise InvalidInputError(
            "the format of the file is unknown",
            path=path,
            expected=", ".join(_SUFFIXES),
            found=os.path.splitext(path)[1] or "no suffix",
            hint="decompress it, and pass its rows on standard input with --format"
            if suffix in _COMPRESSED
            else f"name the format with --format: {', '.join(FORMATS)}",
        )
    return found


def read_file(
    path: str,
    form: Format,
    columns: Sequence[str],
    start: int = 0,
    fingerprint: str | None = None,
) -> Iterator[tuple[FileRows, int]]:
    """Batches of a file, with the position after each; the table's `columns` in CSV are texts. A
    file that does not have the `fingerprint` of the position `start` is refused.
    """
    with (
        disk_errors("the file cannot be read", path, missing="file not found"),
        open(path, "rb") as file,
    ):
        yield from _named(path, _read(path, file, form, columns, start, fingerprint))


def read_stream(
    stream: BinaryIO, form: Format, columns: Sequence[str]
) -> Iterator[tuple[FileRows, int]]:
    """As `read_file`, of standard input."""
    return _named(STANDARD_INPUT, _read(None, stream, form, columns, 0))


def _read(
    name: str | None,
    stream: BinaryIO,
    form: Format,
    columns: Sequence[str],
    start: int,
    fingerprint: str | None = None,
) -> Iterator[tuple[FileRows, int]]:
    if form == "ndjson":
        _skip_to(stream, start, fingerprint)
        lines = _Lines(stream, start, _num_newlines)
        for data, end in _complete(stream, start, _JsonRows().end, lines):
            numbers = partial(_json_lines, data, lines.of(data))
            mark = _fingerprint(name, stream, end)
            grows = mark is not None and not data.endswith(b"\n") and bool(data.strip())
            is_cut = grows and not is_complete(data)
            yield FileRows(data, name, "line", numbers, mark, is_cut), end
        return
    if form == "csv":
        yield from _csv(name, stream, columns, start, fingerprint)
        return
    position = 0
    for rows, mark in _parts(_batches(name, stream, form)):
        first = max(start, position) + 1
        skipped = min(max(start - position, 0), len(rows))
        if position < start <= position + len(rows):
            _require_same(mark, fingerprint, start)
        position += len(rows)
        if skipped < len(rows):
            of_rows = partial(range, first, position + 1)
            yield FileRows(rows[skipped:], name, "row", of_rows, mark), position
    if position < start:
        raise _shorter(start, position)


def _skip_to(stream: BinaryIO, start: int, fingerprint: str | None) -> None:
    if start:
        size = stream.seek(0, os.SEEK_END)
        if size < start:
            raise _shorter(start, size)
        stream.seek(start)
        if fingerprint is not None:
            _require_same(_hash_of(stream, start, _EDGE_BYTES), fingerprint, start)


def _fingerprint(name: str | None, stream: BinaryIO, end: int) -> str | None:
    """A hash of the length, the beginning and the end of a file up to a byte; None for a stream or
    a pipe.
    """
    return None if name is None or not stream.seekable() else _hash_of(stream, end, _EDGE_BYTES)


def _fingerprint_of_all(name: str | None, stream: BinaryIO) -> str | None:
    if name is None:
        return None
    return _hash_of(stream, os.fstat(stream.fileno()).st_size, _FOOTER_BYTES)


def _hash_of(stream: BinaryIO, end: int, end_bytes: int) -> str:
    position = stream.tell()
    found = hashlib.sha256(b"%d" % end)
    for start, size in ((0, _EDGE_BYTES), (max(end - end_bytes, 0), end_bytes)):
        stream.seek(start)
        found.update(stream.read(min(size, end - start)))
    stream.seek(position)
    return found.hexdigest()


def _require_same(found: str | None, fingerprint: str | None, start: int) -> None:
    if fingerprint is not None and found != fingerprint:
        raise InvalidInputError(
            "the ingested part of the file has changed",
            expected=f"the content that it had up to position {start}",
            hint=_REPLACED,
        )


class _Lines:
    """Numbers of the lines of a text that is read from an offset. The lines before it are counted
    only if a number is needed.
    """

    def __init__(self, stream: BinaryIO, start: int, ends: Callable[[bytes], int]) -> None:
        self._stream, self._start, self._ends = stream, start, ends
        self._passed = 0

    def of(self, data: bytes) -> Callable[[], int]:
        """The number of the line where the next bytes begin, when it is called."""
        passed = self._passed
        self._passed += self._ends(data)
        return lambda: self._skipped + passed + 1

    @cached_property
    def _skipped(self) -> int:
        if not self._start:
            return 0
        position = self._stream.tell()
        count, left = 0, self._start
        self._stream.seek(0)
        while data := self._stream.read(min(left, _BATCH_BYTES)):
            while data.endswith(b"\r") and len(data) < left and (more := self._stream.read(1)):
                data += more  # one line end may have both
            left -= len(data)
            count += self._ends(data)
        self._stream.seek(position)
        return count


def _num_newlines(data: bytes) -> int:
    return data.count(b"\n")


def _num_line_ends(data: bytes) -> int:
    lone = data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else 0
    return data.count(b"\n") + lone


def _json_lines(data: bytes, first: Callable[[], int]) -> list[int]:
    lines = enumerate(data.split(b"\n"), first())
    return [number for number, line in lines if line.strip()]


class _JsonRows:
    """Finds where complete rows end in bytes that begin with a row. As long as none does, the next
    call gets the same bytes and more, of which only the new ones are read.
    """

    def __init__(self) -> None:
        self._passed = 0

    def end(self, data: bytes | bytearray) -> int:
        """The end of the last complete row; 0 if there is none."""
        end = data.rfind(b"\n", self._passed) + 1
        self._passed = 0 if end else len(data)
        return end


class _CsvRows:
    """As `_JsonRows`, of CSV."""

    def __init__(self) -> None:
        self._passed = 0
        self._place: _Place = "row"

    def end(self, data: bytes | bytearray) -> int:
        """As `_JsonRows.end`."""
        if self._place == "row" and b'"' not in data and b"\r" not in data:
            found = data.rfind(b"\n") + 1
        else:
            match = _ROWS[self._place].match(data, self._passed)
            found = match.end() if match else 0
        if found:
            self._passed, self._place = 0, "row"
        elif len(data) > len(_MARK):
            self._pass(data)
        return found

    def _pass(self, data: bytes | bytearray) -> None:
        """Pass the beginning of an incomplete row."""
        fields = _FIELDS[self._place].match(data, self._passed)
        if fields:
            self._passed, self._place = fields.end(), "field"
        elif self._place == "row" and data.startswith(_MARK):
            self._passed = len(_MARK)
        if self._place in {"row", "field"} and self._passed < len(data):
            is_quoted = data.startswith(b'"', self._passed)
            self._passed += is_quoted
            self._place = "quoted" if is_quoted else "plain"
        if self._place == "plain":
            self._passed = len(data) - data.endswith(b"\r")
        elif self._place == "quoted" and (text := _QUOTED_TEXT.match(data, self._passed)):
            self._passed = text.end()


def _complete(
    stream: BinaryIO, position: int, end_of_rows: Callable[[bytes | bytearray], int], lines: _Lines
) -> Iterator[tuple[bytes, int]]:
    """The bytes of complete rows, with the position after them; of a pipe as they arrive. `lines`
    has passed those before the next ones.
    """
    data: bytes | bytearray
    read = getattr(stream, "read1", stream.read)
    rest = b""
    while data := rest or read(_BATCH_BYTES):
        while not (end := end_of_rows(data)) and (more := read(_BATCH_BYTES)):
            data = data if isinstance(data, bytearray) else bytearray(data)
            data += more
            if len(data) > _MAX_ROW_BYTES:
                raise InvalidInputError(
                    "a row has no end",
                    line=lines.of(b"")(),
                    expected=f"at most {_MAX_ROW_BYTES} bytes",
                    hint="look for a quote that is not closed, or for a file of another format",
                )
        if not end:
            if not end_of_rows(data + b"\n"):
                raise InvalidInputError(
                    "a row has a quote that is not closed",
                    line=lines.of(b"")(),
                    expected="a closing quote before the end of the file",
                    found=repr(data[:_SHOWN_BYTES].decode(errors="replace")),
                    hint="correct the row; or continue with --resume when the file is complete",
                )
            end = len(data)
        position += end
        rest = bytes(data[end:])
        yield bytes(data) if end == len(data) else bytes(data[:end]), position


def _csv(
    name: str | None,
    stream: BinaryIO,
    columns: Sequence[str],
    start: int,
    fingerprint: str | None,
) -> Iterator[tuple[FileRows, int]]:
    _skip_to(stream, start, fingerprint)
    if start:
        stream.seek(0)
    lines = _Lines(stream, 0, _num_line_ends)
    chunks = _complete(stream, 0, _CsvRows().end, lines)
    first, position = next(chunks, (b"", 0))
    header = _HEADER.match(first)
    length = header.end() if header else len(first)
    names = _header_names(first[:length])
    if start:
        stream.seek(start - 1)
        last = stream.read(1)
        lines = _Lines(stream, start, _num_line_ends)
        chunks = _complete(stream, start, _CsvRows().end, lines)
        chunks = _required_new_row(chunks, last, start, lines)
    else:
        lines.of(first[:length])
        chunks = chain([(first[length:], position)], chunks)
    for data, end in chunks:
        number = lines.of(data)
        if data.strip(b"\r\n"):
            numbers = partial(_csv_lines, data, number)
            rows = _parsed_csv(data, names, columns)
            yield FileRows(rows, name, "line", numbers, _fingerprint(name, stream, end)), end


def _header_names(header: bytes) -> list[str]:
    row = header.removeprefix(_MARK).lstrip(b"\r\n")
    if not row:
        raise InvalidInputError(
            "the file is empty", expected="a header: a line with the names of the columns"
        )
    try:
        row.decode()
    except UnicodeDecodeError as cause:
        line = _num_line_ends(header[: len(header) - len(row)]) + 1
        raise _not_utf_8("the header is not UTF-8 text", cause, line) from cause
    names = pc.read_csv(pa.BufferReader(header + b"\n")).column_names
    if len(set(names)) < len(names):
        again = next(name for name in names if names.count(name) > 1)
        raise InvalidInputError(f"the column {again!r} occurs twice", column=again, found=names)
    return list(names)


def _required_new_row(
    chunks: Iterator[tuple[bytes, int]], last: bytes, start: int, lines: _Lines
) -> Iterator[tuple[bytes, int]]:
    """Refuse the rest of a row whose beginning was read as the last row of the file; `last` is the
    byte before the chunks.
    """
    for data, end in chunks:
        if last not in b"\r\n" and data[:1] not in b"\r\n":
            raise InvalidInputError(
                "the last row of the ingested part had no line end, and text was added to it",
                line=lines.of(b"")(),
                expected=f"a line end at byte {start}",
                found=repr(data[:_SHOWN_BYTES].decode(errors="replace")),
                hint="a part of this row was ingested: correct it in the table; end rows with a "
                "newline before they are ingested",
            )
        yield data, end
        last = b"\n"


def _csv_rows(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The rows that are not blank, with the number of line ends before each."""
    passed = 0
    for found in _LATER_ROW.finditer(data if data.endswith(b"\n") else data + b"\n"):
        row = found[0]
        if row.strip(b"\r\n"):
            yield passed, row
        passed += _num_line_ends(row)


def _csv_lines(data: bytes, first: Callable[[], int]) -> list[int]:
    number = first()
    return [number + passed for passed, _ in _csv_rows(data)]


def _csv_texts(data: bytes) -> list[str]:
    return [_csv_text(row) for _, row in _csv_rows(data)]


def _csv_text(row: bytes) -> str:
    return row.rstrip(b"\r\n").decode(errors="replace")


def _parsed_csv(data: bytes, names: list[str], columns: Sequence[str]) -> TextRows:
    texts = partial(_csv_texts, data)
    try:
        return TextRows(_csv_table(data, names, columns), texts)
    except pa.ArrowInvalid:  # a row that is not text, or has too few or too many values
        rows = [row for _, row in _csv_rows(data)]
    bad: dict[int, BadRow] = {}
    for number, row in enumerate(rows):
        try:
            row.decode()
        except UnicodeDecodeError as cause:
            bad[number] = BadRow(
                _csv_text(row), _not_utf_8("the row is not UTF-8 text", cause), number
            )
    kept = [number for number in range(len(rows)) if number not in bad]

    def keep(row: pc.InvalidRow) -> str:
        number = kept[row.number - 1]
        reason = InvalidInputError(
            "the row has more or fewer values than the header",
            expected=f"{row.expected_columns} values",
            found=f"{row.actual_columns} values",
        )
        bad[number] = BadRow(_csv_text(rows[number]), reason, number)
        return "skip"

    table = _csv_table(b"".join(rows[number] for number in kept), names, columns, keep)
    numbers = [number for number in kept if number not in bad]
    assert len(numbers) == len(table)
    return TextRows(table, texts, numbers, [bad[number] for number in sorted(bad)])


def _csv_table(
    data: bytes,
    names: list[str],
    columns: Sequence[str],
    keep: Callable[[pc.InvalidRow], str] | None = None,
) -> pa.Table:
    if not data:
        return pa.schema([(name, pa.string()) for name in names]).empty_table()
    known = {name.lower() for name in columns}
    if data.startswith(_MARK):  # that of a value: pyarrow takes the first for that of a file
        data = _MARK + data
    return pc.read_csv(
        pa.BufferReader(data),
        pc.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=keep is None),
        pc.ParseOptions(newlines_in_values=True, invalid_row_handler=keep),
        pc.ConvertOptions(
            column_types={name: pa.string() for name in names if name.lower() in known},
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=False,
        ),
    )


def _not_utf_8(
    message: str, cause: UnicodeDecodeError, line: int | None = None
) -> InvalidInputError:
    return InvalidInputError(
        message,
        line=line,
        expected="UTF-8",
        found=f"the byte 0x{cause.object[cause.start]:02x} after {cause.start} bytes",
        hint="convert the file, such as with iconv -f latin1 -t utf-8",
    )


def _batches(name: str | None, stream: BinaryIO, form: Format) -> Iterator[tuple[Any, str | None]]:
    """The batches with the fingerprint of the whole file, or of a stream up to the batch."""
    if form == "parquet":
        mark = _fingerprint_of_all(name, stream)
        for batch in open_parquet(stream).iter_batches(_BATCH_ROWS):
            yield batch, mark
        return
    peeked = stream.peek(len(_FILE_MAGIC)) if hasattr(stream, "peek") else b""
    if peeked.startswith(_FILE_MAGIC):
        if not stream.seekable():
            raise InvalidInputError(
                "an Arrow IPC file cannot be read from a pipe, because its index is at its end",
                expected="the Arrow IPC stream format",
                found="the Arrow IPC file format",
                hint="name the file, or let the writer use the stream format, such as "
                "write_ipc_stream of Polars",
            )
        mark = _fingerprint_of_all(name, stream)
        with pa.ipc.open_file(stream) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number), mark
        return
    with pa.ipc.open_stream(stream) as batches:
        for batch in batches:
            end = stream.tell() if stream.seekable() else 0
            yield batch, _fingerprint(name, stream, end)


def _parts(batches: Iterator[tuple[Any, str | None]]) -> Iterator[tuple[Any, str | None]]:
    """Parts of batches, because the rows of one write are in memory in all their forms."""
    for batch, mark in batches:
        step = max(1, len(batch) * _PART_BYTES // max(batch.nbytes, _PART_BYTES))
        for first in range(0, len(batch), step):
            yield batch[first : first + step], mark


@contextmanager
def _format_errors(path: str) -> Iterator[None]:
    try:
        yield
    except InvalidInputError as error:
        error.path = error.path or path
        raise
    except (pa.ArrowException, UnicodeDecodeError, OSError) as cause:
        if isinstance(cause, OSError) and cause.errno is not None:  # not of Arrow
            raise
        raise InvalidInputError(
            "the file cannot be read in its format",
            path=path,
            found=str(cause).split("\n", 1)[0],
        ) from cause


def _named(path: str, batches: Iterator[tuple[FileRows, int]]) -> Iterator[tuple[FileRows, int]]:
    """The batches; errors name the file."""
    while True:
        with _format_errors(path):
            found = next(batches, None)
        if found is None:
            return
        yield found


def _shorter(start: int, size: int) -> InvalidInputError:
    return InvalidInputError(
        "the file is shorter than its ingested part",
        expected=f"at least {start} bytes or rows",
        found=size,
        hint=_REPLACED,
    )
