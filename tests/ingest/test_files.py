"""Files that `lakelog ingest` reads: rows, and positions from which a later call continues."""

from __future__ import annotations

import csv
import io
import random
import time
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import InvalidInputError
from lakelog.ingest.files import Format, read_file, read_stream
from tests.budget import rng_of, share_of

COLUMNS = ("a", "b", "c")


def some_csv(rng: random.Random) -> bytes:
    """Rows with quotes and newlines in values, too few or too many values, or a value in Latin-1,
    and blank lines.
    """
    ends = rng.choice(["\n", "\r\n", "\r"])
    latin = rng.choice(["x", "\udce9"])

    def value() -> str:
        text = rng.choice(["", "x", "7", "é", '5" pipe', "two words", latin])
        quoted = rng.choice(["", "a,b", 'say ""no""', "two\nlines", "cr\r\nlf", '""'])
        return rng.choice([text, text, f'"{quoted}"'])

    rows = ['a,"b",c']
    for _ in range(rng.randrange(40)):
        width = rng.choice([3, 3, 3, 3, 2, 4])
        rows.append(rng.choice([",".join(value() for _ in range(width))] * 6 + [""]))
    mark, last = rng.choice(["", "", "\ufeff"]), rng.choice(["", ends])
    return (mark + ends.join(rows) + last).encode(errors="surrogateescape")


Numbered = list[tuple[int, tuple[str, ...]]]


def model(data: bytes) -> tuple[Numbered, Numbered]:
    """The lines and values of good and bad rows, as Python reads them."""
    text = data.decode(errors="surrogateescape").removeprefix("\ufeff")
    reader = csv.reader(io.StringIO(text, newline=""))
    good: Numbered = []
    bad: Numbered = []
    passed = 0
    for row in reader:
        fits = len(row) == len(COLUMNS) and "\udce9" not in "".join(row)
        if row and passed:
            (good if fits else bad).append((passed + 1, tuple(row)))
        passed = reader.line_num
    return good, bad


def read(path: Path, start: int = 0) -> list[tuple[Any, int]]:
    return list(read_file(str(path), "csv", COLUMNS, start))


def rows_of(batches: list[tuple[Any, int]]) -> list[tuple[str, ...]]:
    """The rows; a null is an empty text."""
    found: list[tuple[str, ...]] = []
    for batch, _ in batches:
        found += [tuple(v or "" for v in row.values()) for row in batch.rows.table.to_pylist()]
    return found


def good_of(batches: list[tuple[Any, int]]) -> Numbered:
    """The rows, with their lines."""
    found: Numbered = []
    for batch, position in batches:
        lines = batch.numbers()
        numbers = [lines[number] for number in batch.rows.numbers]
        found += zip(numbers, rows_of([(batch, position)]), strict=True)
    return found


def bad_of(batches: list[tuple[Any, int]]) -> Numbered:
    """The bad rows, as Python reads them, with their lines."""
    return [
        (bad.line, tuple(next(csv.reader(io.StringIO(bad.row, newline="")))))
        for batch, _ in batches
        for bad in batch.located(batch.rows.bad)
    ]


def test_csv_is_read_and_continued_after_any_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    rng = rng_of("csv files")
    for _ in range(share_of(800)):
        data = some_csv(rng)
        path.write_bytes(data)
        monkeypatch.setattr(
            "lakelog.ingest.files._BATCH_BYTES", rng.choice([1, 5, 23, 111, 1 << 22])
        )
        good, bad = model(data)
        shown = [(line, tuple(v.replace("\udce9", "\ufffd") for v in row)) for line, row in bad]
        batches = read(path)
        assert good_of(batches) == good, data
        assert bad_of(batches) == shown, data
        for number, (_, position) in enumerate(batches, 1):
            found_good, found_bad = good_of(batches[:number]), bad_of(batches[:number])
            for batch in read_file(str(path), "csv", COLUMNS, position):
                found_good += good_of([batch])
                found_bad += bad_of([batch])
            assert (found_good, found_bad) == (good, shown), data


@pytest.mark.parametrize("tail", ['4,5,"open', '4,5,"open\n7,8,9\n', '4,5,"a"",6\n'])
def test_quote_that_is_not_closed_is_refused_and_its_row_not_read(
    tmp_path: Path, tail: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"a,b,c\n1,2,3\n{tail}")
    batches = read_file(str(path), "csv", COLUMNS)
    rows, position = next(batches)
    assert (rows_of([(rows, position)]), position) == ([("1", "2", "3")], 12)
    with pytest.raises(InvalidInputError, match=r"a row has a quote that is not closed .*line=3"):
        next(batches)
    path.write_text('a,b,c\n1,2,3\n4,5,"open\n7"')
    assert rows_of(read(path, position)) == [("4", "5", "open\n7")]


def test_byte_order_mark_that_begins_a_later_row_is_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.ingest.files._BATCH_BYTES", 1)
    path = tmp_path / "a.csv"
    path.write_text('\ufeff"a",b,c\n\ufeff,2,3\n\ufeffx,5,6\n', "utf-8")
    batches = read(path)
    assert rows_of(batches) == [("\ufeff", "2", "3"), ("\ufeffx", "5", "6")]
    assert rows_of(read(path, batches[0][1])) == [("\ufeffx", "5", "6")]


def test_newline_in_the_first_header_after_a_byte_order_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakelog.ingest.files._BATCH_BYTES", 5)
    path = tmp_path / "a.csv"
    path.write_text('\ufeff"a,\n",b,c\n1,2,3\n', "utf-8")
    (batch, _), *_ = read(path)
    assert batch.rows.table.to_pylist() == [{"a,\n": 1, "b": "2", "c": "3"}]


def test_text_that_was_added_to_an_ingested_row_raises(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\n1,2,3")
    ((_, position),) = read(path)
    assert not read(path, position)
    path.write_text("a,b,c\n1,2,34\n5,6,7\n")
    with pytest.raises(InvalidInputError, match="had no line end") as caught:
        read(path, position)
    assert caught.value.expected == "a line end at byte 11"
    path.write_text("a,b,c\n1,2,3\n5,6,7\n")
    assert rows_of(read(path, position)) == [("5", "6", "7")]


def test_unterminated_row_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakelog.ingest.files._BATCH_BYTES", 100)
    monkeypatch.setattr("lakelog.ingest.files._MAX_ROW_BYTES", 1_000)
    path = tmp_path / "a.csv"
    path.write_text('a,b,c\n1,2,3\n4,"never closed,\n' + "5,6,7\n" * 1_000)
    with pytest.raises(InvalidInputError, match=r"a row has no end .*line=3"):
        read(path)


class Pipe(io.RawIOBase):
    """Bytes that arrive in small parts."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._data.read(min(len(buffer), 512))
        buffer[: len(part)] = part
        return len(part)


@pytest.mark.parametrize(
    ("form", "begin", "text", "end"),
    [
        ("ndjson", b'{"a": "', b"x" * 64, b'"}\n'),
        ("csv", b"a,b,c\n1,", b"x" * 64, b",\n"),
        ("csv", b'a,b,c\n1,"', b'{""x"": ""y""},\n' * 4, b'",\n'),
    ],
    ids=["ndjson", "csv", "csv with quotes"],
)
def test_long_row_of_a_pipe_is_read_in_linear_time(
    form: Format, begin: bytes, text: bytes, end: bytes
) -> None:
    def seconds(parts: int) -> float:
        stream: Any = io.BufferedReader(Pipe(begin + text * parts + end))
        begin_s = time.process_time()
        ((rows, _),) = read_stream(stream, form, COLUMNS)
        passed_s = time.process_time() - begin_s
        assert len(rows.rows) == (1 if form == "csv" else len(begin + end) + 64 * parts)
        return passed_s

    short_s = min(seconds(16_000) for _ in range(3))
    long_s = min(seconds(64_000) for _ in range(3))
    assert long_s < 9 * short_s  # 4 times the bytes; 16 if each part were read with all before it
