"""`Ingestor`: rows that are diverted to a file are read, corrected and written again."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.ingest import state
from lakelog.ingest.rows import FileRows
from tests.ingest.ingestors import ids, quiet
from tests.wal import crash_disk
from tests.wal.crash_disk import CHANGES, Counting, CrashDisk, Node, Operation


def test_diverted_rows_are_read_although_a_crash_cut_the_last_line(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write({"id": "x"})
    with (directory / "rejected.ndjson").open("ab") as file:
        file.write(b'{"time":"2026')
    with quiet(table, directory) as ingestor:
        assert ingestor.rejected().height == 1


def test_bad_rows_are_diverted_with_their_reason(table: lakelog.Table, directory: Path) -> None:
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write({"id": "x"})
        ingestor.write([{"id": 1}, {"id": "y", "name": "n"}, {"id": 2}])
        ingestor.write(pl.DataFrame({"id": [3, 4], "other": [0, 0]}))
        ingestor.write(pl.DataFrame({"id": [5.0, 6.5, 7.0]}))
        ingestor.write(b'{"id": 8}\nnot json\n{"id": 9}')
        assert ingestor.status().rows_diverted == 6
        rejected = ingestor.rejected()
    assert ids(table.scan()) == [1, 2, 5, 7, 8, 9]
    assert rejected["row"].to_list() == [
        '{"id":"x"}',
        '{"id":"y","name":"n"}',
        '{"id":3,"other":0}',
        '{"id":4,"other":0}',
        '{"id":6.5}',
        "not json",
    ]
    assert rejected["column"].to_list() == ["id", "id", "other", "other", "id", None]
    assert set(rejected["kind"]) == {"invalid_input"}
    assert pl.read_ndjson(directory / "rejected.ndjson").height == 6


@pytest.mark.parametrize(
    "form",
    [
        list,
        lambda rows: [{**row, "id": decimal.Decimal(row["id"])} for row in rows],
        lambda rows: "\n".join(f'{{"id": {row["id"]}}}' for row in rows).encode(),
        pl.DataFrame,
    ],
    ids=["dicts", "decimals", "NDJSON", "frame"],
)
def test_good_rows_between_bad_ones_are_one_record(
    table: lakelog.Table, directory: Path, form: Callable[[list[dict[str, Any]]], Any]
) -> None:
    rows = [{"id": number if number % 2 else number + 0.5} for number in range(20)]
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        assert ingestor.write(form(rows)) == 1
        assert ingestor.status().rows_durable == 10
        assert ingestor.rejected().height == 10
    assert ids(table.scan()) == list(range(1, 20, 2))


def test_diverted_deletion_is_corrected_and_deletes_its_row(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory, key="id", on_bad_row="divert") as ingestor:
        ingestor.write([{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}, {"id": "3"}])
        ingestor.delete([{"id": "2"}, {"id": 4}])
        rejected = ingestor.rejected().select("op", "row")
        assert rejected.rows() == [("PUT", '{"id":"3"}'), ("DELETE", '{"id":"2"}')]
        for op, row in rejected.iter_rows():
            again = ingestor.write if op == "PUT" else ingestor.delete
            again(row.replace('"2"', "2").replace('"3"', "3").encode())
    assert ids(table.scan()) == [1, 3]


@pytest.mark.parametrize("form", [list, pa.Table.from_pylist], ids=["dicts", "Arrow"])
def test_row_of_rejected_ndjson_is_accepted_when_it_is_corrected(
    tmp_path: Path, directory: Path, form: Callable[[list[dict[str, Any]]], Any]
) -> None:
    time = dt.datetime(2026, 1, 5, 1, 2, 3, 4, ZoneInfo("UTC"))
    row = {
        "f64": float("nan"),
        "more": [float("inf"), float("-inf"), -0.0, 1e-300, None],
        "dec": decimal.Decimal("12345678901234567.89"),
        "bytes": bytes(range(256)),
        "text": "é\0\u2028\\",
        "day": dt.date(1, 1, 1),
        "time": time,
        "naive": time.replace(tzinfo=None),
        "struct": {"x": dt.date(2026, 1, 5), "d": decimal.Decimal("-0.50")},
    }
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("f64", pa.float64()),
            ("more", pa.list_(pa.float64())),
            ("dec", pa.decimal128(19, 2)),
            ("bytes", pa.binary()),
            ("text", pa.string()),
            ("day", pa.date32()),
            ("time", pa.timestamp("us", "UTC")),
            ("naive", pa.timestamp("us")),
            ("struct", pa.struct([("x", pa.date32()), ("d", pa.decimal128(4, 2))])),
        ]
    )
    table = lakelog.create(tmp_path / "all", schema, upkeep=False)
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write(form([{"id": "one", **row}]))
        (rejected,) = ingestor.rejected()["row"]
        ingestor.write(rejected.replace('"one"', "1").encode())
        assert ingestor.status().rows_diverted == 1
    assert '"dec":"12345678901234567.89","bytes":"AAEC' in rejected
    (found,) = table.to_arrow().to_pylist()
    assert repr(found) == repr({"id": 1, **row})


def test_values_without_a_form_in_json_are_diverted(table: lakelog.Table, directory: Path) -> None:
    late = pa.array([253402300800000000], pa.timestamp("us", "UTC"))  # Python has no year 10000
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write([{"id": 1 << 80}, {"name": "\ud800"}, {"name": dt.timedelta(1)}])
        ingestor.write([{"id": {(1, 2): np.int8(3), "x": np.arange(2)}}])
        ingestor.write(
            pa.table({"at": late, "id": ["x"], "more": pa.ListArray.from_arrays([0, 1], late)})
        )
        rejected = ingestor.rejected()["row"].to_list()
    assert rejected == [
        '{"id":1208925819614629174706176}',
        '{"name":"\\ud800"}',
        '{"name":"datetime.timedelta(days=1)"}',
        '{"id":{"[1, 2]":3,"x":[0,1]}}',
        '{"at":"10000-01-01 00:00:00.000000Z","id":"x","more":["10000-01-01 00:00:00.000000Z"]}',
    ]


def test_base64_that_is_not_valid_is_refused(tmp_path: Path, directory: Path) -> None:
    table = lakelog.create(tmp_path / "b", {"b": pl.Binary}, upkeep=False)
    with quiet(table, directory) as ingestor:
        ingestor.write(b'{"b": "aGk="}\n{"b": ""}\n{"b": null}')
        with pytest.raises(InvalidInputError, match="in 'b': a text is not base64"):
            ingestor.write(b'{"b": "aGk="}\n{"b": "a"}')
        assert ingestor.read_your_writes().collect()["b"].to_list() == [b"hi", b"", None]


def test_diverted_rows_are_appended_after_a_torn_line(
    table: lakelog.Table, directory: Path
) -> None:
    for _ in range(2):
        with quiet(table, directory, on_bad_row="divert") as ingestor:
            ingestor.write({"id": "x"})
        with (directory / "rejected.ndjson").open("ab") as file:
            file.write(b'{"time": "20')
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write({"id": "z"})
        assert ingestor.rejected()["row"].to_list() == ['{"id":"x"}', '{"id":"x"}', '{"id":"z"}']


def test_diverted_rows_are_in_a_new_file_after_the_old_one_was_moved_or_removed(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write({"id": "x"})
        moved = (directory / "rejected.ndjson").rename(directory / "rejected.1")
        ingestor.write({"id": "y"})
        assert ingestor.rejected()["row"].to_list() == ['{"id":"y"}']
        (directory / "rejected.ndjson").unlink()
        ingestor.write({"id": "z"})
        assert ingestor.rejected()["row"].to_list() == ['{"id":"z"}']
    assert pl.read_ndjson(moved)["row"].to_list() == ['{"id":"x"}']


@pytest.mark.parametrize("creates", [False, True])
def test_no_diverted_row_is_lost_whenever_a_program_renames_the_file(
    table: lakelog.Table, *, creates: bool
) -> None:
    """It renames the file, may create an empty one, and reads the renamed one at once."""
    values, nth, has_acted = ["a", "b", "c", "d"], 0, True
    while has_acted:
        nth, disk = nth + 1, CrashDisk()
        processed: list[tuple[Node, bytes]] = []

        with quiet(table, Path("ingest"), disk=disk, on_bad_row="divert") as ingestor:
            path = ingestor.rejected_path

            def rotate(
                _: Operation, disk: CrashDisk = disk, path: str = path, processed: Any = processed
            ) -> None:
                if node := disk.names.get(path):
                    processed.append((node, bytes(node.data)))
                    disk.put(path, b"" if creates else None)

            counting = Counting(nth, rotate, times=2, kinds=CHANGES | {"read"})
            ingestor.write([{"id": each} for each in values[:2]])
            disk.watch = counting
            ingestor.write({"id": values[2]})
            ingestor.write({"id": values[3]})
            disk.watch, has_acted = crash_disk.quiet, counting.has_acted
            left = ingestor.rejected()["row"].to_list()
        texts = b"".join(data[: data.rfind(b"\n") + 1] for _, data in processed)
        found = [json.loads(line)["row"] for line in texts.splitlines()] + left
        assert {json.loads(row)["id"] for row in found} == set(values), nth
        for node, data in processed:
            assert bytes(node.data).startswith(data), nth


def test_write_ends_although_a_program_renames_the_file_without_pause(
    table: lakelog.Table,
) -> None:
    disk = CrashDisk()
    renamed: list[Node] = []

    def rotate(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path == path and len(renamed) < 100:
            renamed.append(disk.names[path])
            disk.put(path, None)

    with quiet(table, Path("ingest"), disk=disk, on_bad_row="divert") as ingestor:
        path = ingestor.rejected_path
        disk.watch = rotate
        with pytest.raises(UnavailableError, match="is renamed too often"):
            ingestor.write([{"id": "x"}, {"id": 1}])
        disk.watch = crash_disk.quiet
        ingestor.write([{"id": "x"}, {"id": 1}])
        assert ids(ingestor.read_your_writes()) == [1]


def test_earlier_diverted_rows_are_searched_once_for_files_that_had_none(
    table: lakelog.Table,
) -> None:
    disk = CrashDisk()
    reads: list[Operation] = []

    def bad(file: str, line: int) -> FileRows:
        return FileRows(b"x", file, "line", lambda: [line])

    with quiet(table, Path("ingest"), disk=disk, on_bad_row="divert") as ingestor:
        ingestor.write({"id": "x" * 1000})
        for line in (1, 2):
            ingestor.write(bad("/a\\b.ndjson", line))
        node = disk.names[ingestor.rejected_path]
    node.data[:0] = node.data * 3_000
    before = node.data.count(b"\n")
    with quiet(table, Path("ingest"), disk=disk, on_bad_row="divert") as ingestor:
        disk.watch = lambda operation: reads.append(operation) if operation.kind == "read" else None
        for number in range(20):
            ingestor.write(bad(f"/{number}.ndjson", 1))
        disk.watch = crash_disk.quiet
        assert node.data.count(b"\n") == before + 20
        for line, is_new in ((2, False), (3, True)):
            ingestor.write(bad("/a\\b.ndjson", line))
            assert node.data.count(b"\n") == before + 20 + is_new
    assert len(reads) < 3 * 20


def test_diverted_rows_of_a_file_are_compared_with_earlier_ones_in_bounded_memory(
    table: lakelog.Table, directory: Path
) -> None:
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write({"id": "x" * 1000})
    path = directory / "rejected.ndjson"
    path.write_bytes(path.read_bytes() * 16_000)
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        tracemalloc.start()
        ingestor.write(FileRows(b"x", "/a.ndjson", "line", lambda: [1]))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert ingestor.rejected()["file"].drop_nulls().to_list() == ["/a.ndjson"]
    assert peak < 8 << 20 < path.stat().st_size


@pytest.mark.parametrize(
    ("line", "place"),
    [("x", 1), ("[1]", 2), ('{"line": "one"}', 3), ('{"time": "t"', 1), ("\udcff", 3)],
)
def test_damaged_line_of_diverted_rows_is_named(
    table: lakelog.Table, directory: Path, line: str, place: int
) -> None:
    with quiet(table, directory, on_bad_row="divert") as ingestor:
        ingestor.write([{"id": "x"}, {"id": "y"}])
        path = directory / "rejected.ndjson"
        lines = path.read_bytes().splitlines(keepends=True)
        lines.insert(place - 1, line.encode(errors="surrogateescape") + b"\n")
        path.write_bytes(b"".join(lines))
        with pytest.raises(CorruptionError, match="a line of the diverted rows is dam") as raised:
            ingestor.rejected()
        assert (raised.value.path, raised.value.line) == (str(path), place)
        assert raised.value.hint == "correct the line, or remove it"


@pytest.mark.parametrize("is_open", [False, True])
def test_ingestor_without_its_lock_does_not_cut_the_diverted_rows_of_the_next(
    table: lakelog.Table, directory: Path, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    rejected, row = directory / "rejected.ndjson", b"a row of the next process, not yet complete"
    first = quiet(table, directory, on_bad_row="divert")

    def lose(*_: Any) -> None:
        """Another process has the lock, and diverts; this one cannot write."""
        (directory / "wal" / "wal.lock").unlink()
        with rejected.open("ab") as file:
            file.write(row)
        raise OSError("the disk failed")

    if is_open:
        first.write({"id": "x"})
        monkeypatch.setattr(state, "write_all", lose)
    else:
        with pytest.raises(OSError, match="failed"):
            lose()
    with pytest.raises((UnavailableError, OutcomeUnknownError), match=r"the disk failed|lock file"):
        first.write({"id": "y"})
    first.close(flush=False)
    assert rejected.read_bytes().endswith(row)
