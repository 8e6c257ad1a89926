"""Files that `lakelog ingest` reads: rows, and positions from which a later call continues."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path
from typing import Any

import pytest

from lakelog.errors import InvalidInputError
from lakelog.ingest.files import read_file
from tests.budget import rng_of, share_of

COLUMNS = ("a", "b", "c")


def some_csv(rng: random.Random) -> str:
    """Rows with quotes and newlines in values, too few or too many values, and blank lines."""
    ends = rng.choice(["\n", "\r\n", "\r"])

    def value() -> str:
        text = rng.choice(["", "x", "7", "é", '5" pipe', "two words"])
        quoted = rng.choice(["", "a,b", 'say ""no""', "two\nlines", "cr\r\nlf", '""'])
        return rng.choice([text, text, f'"{quoted}"'])

    rows = ['a,"b",c']
    for _ in range(rng.randrange(40)):
        width = rng.choice([3, 3, 3, 3, 2, 4])
        rows.append(rng.choice([",".join(value() for _ in range(width))] * 6 + [""]))
    mark, last = rng.choice(["", "", "\ufeff"]), rng.choice(["", ends])
    return mark + ends.join(rows) + last


def model(text: str) -> tuple[list[tuple[str, ...]], int]:
    """The rows with three values, and the number of others, as Python reads them."""
    rows = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline="")))[1:]
    full = [tuple(row) for row in rows if len(row) == len(COLUMNS)]
    return full, sum(len(row) not in {0, len(COLUMNS)} for row in rows)


def read(path: Path, start: int = 0) -> list[tuple[Any, int]]:
    return list(read_file(str(path), "csv", COLUMNS, start))


def rows_of(batches: list[tuple[Any, int]]) -> list[tuple[str, ...]]:
    """The rows; a null is an empty text."""
    found: list[tuple[str, ...]] = []
    for batch, _ in batches:
        found += [tuple(v or "" for v in row.values()) for row in batch.table.to_pylist()]
    return found


def num_bad(batches: list[tuple[Any, int]]) -> int:
    return sum(len(batch.bad.rows) for batch, _ in batches if batch.bad is not None)


def test_csv_is_read_and_continued_after_any_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    rng = rng_of("csv files")
    for _ in range(share_of(800)):
        text = some_csv(rng)
        path.write_bytes(text.encode())
        monkeypatch.setattr("lakelog.ingest.files._BATCH_BYTES", rng.choice([5, 23, 111, 1 << 22]))
        expected, ragged = model(text)
        batches = read(path)
        assert rows_of(batches) == expected, text
        assert num_bad(batches) == ragged, text
        for number, (_, position) in enumerate(batches, 1):
            rest = read(path, position)
            assert rows_of(batches[:number]) + rows_of(rest) == expected, text
            assert num_bad([*batches[:number], *rest]) == ragged, text


@pytest.mark.parametrize("tail", ['4,5,"open', '4,5,"open\n7,8,9\n', '4,5,"a"",6\n'])
def test_quote_that_is_not_closed_is_refused_and_its_row_not_read(
    tmp_path: Path, tail: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"a,b,c\n1,2,3\n{tail}")
    batches = read_file(str(path), "csv", COLUMNS)
    rows, position = next(batches)
    assert (rows_of([(rows, position)]), position) == ([("1", "2", "3")], 12)
    with pytest.raises(InvalidInputError, match="at byte 12 of the file has a quote that is"):
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
    assert batch.table.to_pylist() == [{"a,\n": 1, "b": "2", "c": "3"}]


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
    with pytest.raises(InvalidInputError, match="the row at byte 12 of the file has no end"):
        read(path)
