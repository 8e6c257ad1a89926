"""``lakelog ingest``: rows of files and of standard input, each exactly once."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog as library
from lakelog.errors import UnavailableError

SCHEMA = {"id": pl.Int64, "name": pl.String, "day": pl.Date, "price": pl.Decimal(10, 2)}


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> library.Table:
    monkeypatch.chdir(tmp_path)
    return library.create(tmp_path / "events", SCHEMA, upkeep=False)


def ids(table: library.Table) -> list[int]:
    return sorted(table.to_polars()["id"].to_list())


def test_files_of_every_format_are_read(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    (tmp_path / "a.ndjson").write_text('{"id": 1, "day": "2026-01-05", "price": 1.25}\n{"id": 2}')
    (tmp_path / "b.csv").write_text(
        'id,name,day,price\n3,"a, ""b""\nc",2026-01-06,2.50\n4,"",,\n5,,,\n'
    )
    rows = pa.table({"id": [6, 7], "name": ["x", None]})
    pq.write_table(rows, tmp_path / "c.parquet")
    for name, make in (("d.arrow", pa.ipc.new_file), ("e.arrows", pa.ipc.new_stream)):
        with make(tmp_path / name, rows.schema) as writer:
            writer.write_table(rows)
    files = [tmp_path / name for name in ("a.ndjson", "b.csv", "c.parquet", "d.arrow", "e.arrows")]
    done = lakelog("ingest", "events", *files, "--output", "json")
    assert done.code == 0, done.errors
    (report,) = json.loads(done.text)
    assert (report["rows_durable"], report["rows_committed"]) == (11, 11)
    assert ids(events) == [1, 2, 3, 4, 5, 6, 6, 6, 7, 7, 7]
    found = {row[0]: row[1:] for row in events.to_polars().filter(pl.col("id") < 6).rows()}
    assert [str(value) for value in found[3]] == ['a, "b"\nc', "2026-01-06", "2.50"]
    assert found[4][0] == ""
    assert found[5] == (None, None, None)
    assert str(found[1][2]) == "1.25"


def test_standard_input_is_read(
    lakelog: Any, events: library.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b'{"id": 1}\n{"id": 2}\n'))
    monkeypatch.setattr(sys, "stdin", stdin)
    done = lakelog("ingest", "events", "--directory", "log")
    assert done.code == 0, done.errors
    assert "2 rows" in done.text
    assert ids(events) == [1, 2]


def test_a_file_is_continued_after_its_last_durable_row(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    (tmp_path / "a.ndjson").write_text('{"id": 1}\n{"id": 2}\n')
    (tmp_path / "b.csv").write_text("id\n10\n11\n")
    names = ("a.ndjson", "b.csv")
    assert lakelog("ingest", "events", *names).code == 0
    with (tmp_path / "a.ndjson").open("a") as file:
        file.write('{"id": 3}\n')
    with (tmp_path / "b.csv").open("a") as file:
        file.write("12\n")
    again = lakelog("ingest", "events", *names)
    assert again.code == 2
    assert "--resume" in again.errors
    for _ in range(2):
        assert lakelog("ingest", "events", *names, "--resume").code == 0
        assert ids(events) == [1, 2, 3, 10, 11, 12]
    (tmp_path / "a.ndjson").write_text("")
    assert "shorter" in lakelog("ingest", "events", *names, "--resume").errors


def test_a_file_is_continued_if_the_table_is_named_in_another_way(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    (tmp_path / "a.ndjson").write_text('{"id": 1}\n')
    (tmp_path / "link").symlink_to("events")
    for name in ("events", (tmp_path / "events").as_uri(), "link/", tmp_path / "link"):
        assert lakelog("ingest", name, "a.ndjson", "--resume").code == 0
    assert ids(events) == [1]


def test_parquet_is_continued_by_row(
    lakelog: Any, events: library.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"id": list(range(10))}), tmp_path / "a.parquet")
    monkeypatch.setattr("lakelog.ingest.files._BATCH_ROWS", 4)
    with library.Ingestor(events, "log") as ingestor:
        ingestor.write(
            [{"id": 0}, {"id": 1}, {"id": 2}], source=str(tmp_path / "a.parquet"), offset=3
        )
    done = lakelog("ingest", "events", "a.parquet", "--directory", "log", "--resume")
    assert done.code == 0, done.errors
    assert ids(events) == list(range(10))


def write_rows(path: Path, ids: list[int]) -> None:
    """Write ids to a file in the format of its suffix."""
    rows = pa.table({"id": ids})
    match path.suffix:
        case ".parquet":
            pq.write_table(rows, path)
        case ".arrow":
            with pa.ipc.new_file(path, rows.schema) as file:
                file.write_table(rows, max_chunksize=2)
        case ".arrows":
            with pa.ipc.new_stream(path, rows.schema) as stream:
                stream.write_table(rows, max_chunksize=2)
        case ".csv":
            path.write_text("\n".join(["id", *map(str, ids), ""]))
        case _:
            path.write_text("".join(f'{{"id": {each}}}\n' for each in ids))


@pytest.mark.parametrize("form", ["ndjson", "csv", "parquet", "arrow", "arrows"])
@pytest.mark.parametrize("later", [[3, 4], [3, 4, 5], [3, 4, 5, 6, 7]])
def test_a_replaced_file_is_not_continued(
    lakelog: Any, events: library.Table, tmp_path: Path, form: str, later: list[int]
) -> None:
    path = tmp_path / f"a.{form}"
    write_rows(path, [1, 2])
    call = ("ingest", "events", path, "--directory", "log", "--resume")
    assert lakelog(*call).code == 0
    (tmp_path / "link").symlink_to(path)
    kind = "arrow" if form == "arrows" else form
    again = ("ingest", "events", tmp_path / "link", "--format", kind, *call[3:])
    assert lakelog(*again).code == 0
    path.rename(tmp_path / "old")
    write_rows(path, later)
    refused = lakelog(*call)
    assert refused.code == 2
    assert "the ingested part of the file has changed" in refused.errors
    assert "it was replaced: use another name, or another directory" in refused.errors
    assert ids(events) == [1, 2]


@pytest.mark.parametrize("form", ["ndjson", "csv", "arrows"])
def test_a_file_that_grew_is_continued(
    lakelog: Any, events: library.Table, tmp_path: Path, form: str
) -> None:
    path = tmp_path / f"a.{form}"
    numbers = list(range(4_000))  # more than the first and the last bytes of the fingerprint
    call = ("ingest", "events", path, "--directory", "log", "--resume")
    for count in (3_000, 4_000, 4_000):
        write_rows(path, numbers[:count])
        assert lakelog(*call).code == 0
    assert ids(events) == numbers


@pytest.mark.parametrize("form", ["ndjson", "csv", "arrows"])
def test_a_named_pipe_is_read(
    lakelog: Any, events: library.Table, tmp_path: Path, form: str
) -> None:
    write_rows(tmp_path / f"a.{form}", [1, 2])
    os.mkfifo(tmp_path / f"pipe.{form}")
    data = (tmp_path / f"a.{form}").read_bytes()
    write_rows(tmp_path / f"b.{form}", [3, 4, 5])
    other = (tmp_path / f"b.{form}").read_bytes()
    # A pipe has no position: another one of the same name, as of a shell, is read whole.
    for content, more in ((data, ()), (other, ()), (data, ("--resume",))):
        writer = threading.Thread(target=(tmp_path / f"pipe.{form}").write_bytes, args=[content])
        writer.start()
        done = lakelog("ingest", "events", f"pipe.{form}", "--directory", "log", *more)
        writer.join()
        assert done.code == 0, done.errors
    assert ids(events) == [1, 1, 2, 2, 3, 4, 5]
    refused = lakelog("ingest", "events", f"pipe.{form}", "--format", "parquet")
    assert (refused.code, "Parquet cannot be read from a pipe" in refused.errors) == (2, True)


@pytest.mark.parametrize("data", ["file", "cut stream", "no Arrow at all, not even a bit"])
def test_arrow_of_a_pipe_that_cannot_be_read_is_refused_with_the_reason(
    lakelog: Any, events: library.Table, tmp_path: Path, data: str
) -> None:
    write_rows(tmp_path / "a.arrow", [1, 2])
    write_rows(tmp_path / "a.arrows", [1, 2])
    content = {
        "file": (tmp_path / "a.arrow").read_bytes(),
        "cut stream": (tmp_path / "a.arrows").read_bytes()[:200],
    }.get(data, data.encode())
    os.mkfifo(tmp_path / "pipe.arrow")
    writer = threading.Thread(target=(tmp_path / "pipe.arrow").write_bytes, args=[content])
    writer.start()
    refused = lakelog("ingest", "events", "pipe.arrow")
    writer.join()
    assert refused.code == 2
    reason = "an Arrow IPC file cannot be read from a pipe" if data == "file" else "in its format"
    assert reason in refused.errors
    assert ("name the file, or let the writer use the" in refused.errors) == (data == "file")


def test_a_name_that_is_not_utf_8_is_refused_before_rows_are_read(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    write_rows(tmp_path / "a.ndjson", [1])
    name = b"b\xff.ndjson".decode(errors="surrogateescape")
    (tmp_path / name).write_text('{"id": 2}\n')
    for more in ((), ("--on-bad-row", "divert")):
        refused = lakelog("ingest", "events", "a.ndjson", name, *more)
        assert refused.code == 2
        assert "the name of the file is not UTF-8" in refused.errors
        assert "rename the file" in refused.errors
    assert ids(events) == []


def test_a_position_without_a_fingerprint_is_continued(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    write_rows(tmp_path / "a.ndjson", [1, 2])
    call = ("ingest", "events", "a.ndjson", "--directory", "log")
    assert lakelog(*call).code == 0
    path = tmp_path / "log" / "ingest.json"
    state = json.loads(path.read_text())
    assert list(state.pop("fingerprints")) == [str(tmp_path / "a.ndjson")]
    path.write_text(json.dumps(state))
    write_rows(tmp_path / "a.ndjson", [3, 4, 5])
    assert lakelog(*call, "--resume").code == 0
    assert ids(events) == [1, 2, 5]


@pytest.mark.parametrize(
    ("text", "reason", "kept", "rejected"),
    [
        ("id,day\n1,2026-01-05\n2,soon\n3,\n", "'day'", [1, 3], {"column": ["day"]}),
        (
            'id,name\n1,"a\nb"\n2\n\n3,c,d\n4,e\n',
            "the row has more or fewer values than the header",
            [1, 4],
            {"row": ["2", "3,c,d"]},
        ),
    ],
    ids=["value", "number of values"],
)
def test_a_bad_row_ends_the_command_or_is_diverted(
    lakelog: Any,
    events: library.Table,
    tmp_path: Path,
    text: str,
    reason: str,
    kept: list[int],
    rejected: dict[str, list[str]],
) -> None:
    (tmp_path / "a.csv").write_text(text)
    refused = lakelog("ingest", "events", "a.csv")
    assert refused.code == 2
    assert reason in refused.errors
    assert "--on-bad-row divert" in refused.errors
    assert ids(events) == []
    diverted = lakelog("ingest", "events", "a.csv", "--on-bad-row", "divert")
    assert diverted.code == 1
    ((column, values),) = rejected.items()
    assert f"{len(values)} row" in diverted.text
    assert ids(events) == kept
    (folder,) = (tmp_path / "lakelog-ingest").iterdir()
    assert pl.read_ndjson(folder / "rejected.ndjson")[column].to_list() == values


CSV = b"""id,name,day

1,"a
b",2026-01-05
2,x
3,\xe4,2026-01-05
4,c,soon
"5",d,2026-01-05

six,"e
f",2026-01-05
7,g,2026-01-05,h
"""


def rejected_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rejected.ndjson").read_text().splitlines()]


def test_bad_rows_of_csv_are_diverted_in_order_with_their_reasons_and_lines(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    call = ("ingest", "events", "a.csv", "--directory", "log", "--on-bad-row", "divert")
    assert lakelog(*call).code == 1
    rows = rejected_rows(tmp_path / "log")
    assert {row["file"] for row in rows} == {str(tmp_path / "a.csv")}
    assert [(row["line"], row["row"]) for row in rows] == [
        (5, "2,x"),
        (6, "3,\ufffd,2026-01-05"),
        (7, "4,c,soon"),
        (10, 'six,"e\nf",2026-01-05'),
        (12, "7,g,2026-01-05,h"),
    ]
    ends = ["found=2 values", "after 2 bytes", "type date32", "type int64", "found=4 values"]
    assert all(end in row["reason"] for end, row in zip(ends, rows, strict=True)), rows
    assert ids(events) == [1, 5]
    with (tmp_path / "a.csv").open("a") as file:
        file.write("8,i,2026-01-05\nnine,j,2026-01-05\n")
    assert lakelog(*call, "--resume").code == 1
    assert [row["line"] for row in rejected_rows(tmp_path / "log")] == [5, 6, 7, 10, 12, 14]
    (tmp_path / "b.csv").write_text(
        "id,name,day\n"
        + "".join(row["row"] + "\n" for row in rows)
        .replace("2,x", "2,x,")
        .replace("six", "6")
        .replace("soon", "")
        .replace(",h", "")
    )
    assert lakelog(*call[:2], "b.csv", *call[3:]).code == 0
    assert ids(events) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_numbers_of_csv_beyond_the_range_of_floats_are_bad_rows(
    lakelog: Any, tmp_path: Path
) -> None:
    schema = {"id": pl.Int64, "x": pl.Float64, "y": pl.Float32}
    table = library.create(tmp_path / "floats", schema, upkeep=False)
    text = "id,x,y\n1,1e308,1e38\n2,-1e400,1\n3,1,1e39\n4,inf,-Infinity\n5,nan,\n"
    (tmp_path / "a.csv").write_text(text)
    call = ("ingest", tmp_path / "floats", tmp_path / "a.csv", "--directory", tmp_path / "log")
    refused = lakelog(*call)
    assert (refused.code, "-1e400 is beyond the range of double" in refused.errors) == (2, True)
    assert lakelog(*call, "--on-bad-row", "divert").code == 1
    assert [row["line"] for row in rejected_rows(tmp_path / "log")] == [3, 4]
    assert table.to_polars().sort("id").select("id", "x").rows()[:2] == [(1, 1e308), (4, math.inf)]
    assert ids(table) == [1, 4, 5]


def test_times_without_a_zone_are_utc_and_hexadecimal_numbers_are_bad_rows_of_csv(
    lakelog: Any, tmp_path: Path
) -> None:
    schema = {"id": pl.Int64, "at": pl.Datetime("us", "UTC")}
    table = library.create(tmp_path / "times", schema, upkeep=False)
    texts = ["2026-01-05T12:00:00", "2026-01-05 12:00", "2026-01-05", "2026-01-05T12:00:00-02:00"]
    texts += ["2026-01-05T12:00:00.5Z", "", '""', "2026-01-05 12:00+0200"]
    lines = ["id,at", *(f"{number},{text}" for number, text in enumerate(texts))]
    (tmp_path / "a.csv").write_text("\n".join([*lines, "8,soon", "0x10,", "0X11,"]))
    rows = [{"id": n, "at": text or None} for n, text in enumerate(texts) if text != '""']
    (tmp_path / "a.ndjson").write_text("\n".join(map(json.dumps, rows)))
    call = ("ingest", tmp_path / "times", "--directory", tmp_path / "log", "--on-bad-row", "divert")
    assert lakelog(*call, tmp_path / "a.csv").code == 1
    bad = rejected_rows(tmp_path / "log")
    assert [(row["column"], row["row"]) for row in bad] == [
        ("at", "8,soon"),
        ("id", "0x10,"),
        ("id", "0X11,"),
    ]
    assert "0x10 is not a decimal number" in bad[1]["reason"]
    found = table.to_polars().sort("id")
    hours = found["at"].dt.hour().to_list()
    assert (hours, found["id"].to_list()) == ([12, 12, 0, 14, 12, None, None, 10], list(range(8)))
    assert lakelog(*call, tmp_path / "a.ndjson").code == 0
    later = table.to_polars().unique().sort("id")
    assert later.equals(found)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_bad_lines_of_ndjson_are_named_by_their_lines(
    lakelog: Any,
    events: library.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    monkeypatch.setattr("lakelog.ingest.files._BATCH_BYTES", 20)
    lines = ['{"id": 1}', "", '{"id": 2}', '{"id": "x"}', '{"id": 3}', "", '{"id": 4}', "y", ""]
    text = end.join(lines).encode()
    (tmp_path / "a.ndjson").write_bytes(text)
    refused = lakelog("ingest", "events", "a.ndjson", "--directory", "log", "--output", "json")
    assert refused.code == 2
    assert "line      4\n" in refused.errors
    assert "rows before line 3 are durable" in refused.errors
    assert str(tmp_path / "a.ndjson") in refused.errors
    call = ("ingest", "events", "a.ndjson", "--directory", "log", "--on-bad-row", "divert")
    assert lakelog(*call, "--resume").code == 1
    places = [(row["line"], row["row"].strip()) for row in rejected_rows(tmp_path / "log")]
    assert places == [(4, '{"id": "x"}'), (8, "y")]
    assert ids(events) == [1, 2, 3, 4]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    piped = lakelog("ingest", "events", "--directory", "log")
    assert "path      standard input\n" in piped.errors
    assert "line      4\n" in piped.errors
    assert "--resume" not in piped.errors


@pytest.mark.parametrize(
    ("cut", "rest", "kept"),
    [('{"id": 4, "name": "d', '"}', [4]), ("{", '"id": 4}', [4]), ("tr", "ue", [])],
)
def test_last_line_of_ndjson_without_its_end_waits_for_it(
    lakelog: Any, events: library.Table, tmp_path: Path, cut: str, rest: str, kept: list[int]
) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text(f'{{"id": 1}}\nbad\n{{"id": 2}}\n{cut}')
    write_rows(tmp_path / "b.ndjson", [3])
    call = ("ingest", "events", "a.ndjson", "b.ndjson", "--directory", "log", "--resume")
    diverting = (*call, "--on-bad-row", "divert")
    for _ in range(2):
        done = lakelog(*diverting, "--output", "json")
        assert (done.code, json.loads(done.text)[0]["incomplete_files"]) == (1, [str(path)])
    assert f"the last line of {path}: continue with --resume" in lakelog(*diverting).text
    assert [row["line"] for row in rejected_rows(tmp_path / "log")] == [2]
    assert ids(events) == [1, 2, 3]
    refused = lakelog(*call)
    assert (refused.code, "line      4\n" in refused.errors) == (2, True)
    assert "rows before line 4 are durable: pass --resume when this line is com" in refused.errors
    path.write_text(path.read_text() + rest)
    assert lakelog(*diverting).code == (0 if kept else 1)
    path.write_text(path.read_text() + "\n")
    assert lakelog(*diverting).code == (0 if kept else 1)
    assert ids(events) == [1, 2, 3, *kept]
    assert [row["row"] for row in rejected_rows(tmp_path / "log")][1:] == [cut + rest][len(kept) :]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.arrows"])
def test_bad_rows_of_parquet_and_arrow_are_named_by_their_numbers(
    lakelog: Any,
    events: library.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr("lakelog.ingest.files._BATCH_ROWS", 4)
    rows = pa.table({"id": [0.0, 1.0, 2.0, 3.0, 4.0, 5.5, 6.0, 7.5]})
    if name == "a.parquet":
        pq.write_table(rows, name)
    else:
        make = pa.ipc.new_file if name == "a.arrow" else pa.ipc.new_stream
        with make(name, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=4)
    refused = lakelog("ingest", "events", name, "--directory", "log")
    assert "row 6: {'id': 5.5}: " in refused.errors
    assert "rows before row 5 are durable" in refused.errors
    call = ("ingest", "events", name, "--directory", "log", "--on-bad-row", "divert")
    assert lakelog(*call, "--resume").code == 1
    found = [(row["row_number"], row["line"], row["row"]) for row in rejected_rows(Path("log"))]
    assert found == [(6, None, '{"id":5.5}'), (8, None, '{"id":7.5}')]
    assert ids(events) == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize(
    ("rows", "line", "found"),
    [
        (b"1,x\n2,\xe4\nz,y\n", 3, "the byte 0xe4 after 2 bytes"),
        (b"1,x\n2\n3,\xe4\n", 3, "2: 1 values"),
        (b"1,x\nz,y\n3\n", 3, "z,y: "),
        (b"1,x\n\n2\n", 4, "2: 1 values"),
    ],
)
def test_error_of_csv_names_the_first_bad_row(
    lakelog: Any, events: library.Table, tmp_path: Path, rows: bytes, line: int, found: str
) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,name\n" + rows)
    refused = lakelog("ingest", "events", "a.csv")
    assert refused.code == 2
    assert f"line      {line}\n" in refused.errors
    assert found in refused.errors


def test_csv_of_bad_rows_only_is_diverted(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,name\n1,\xe4\n2,\xe4\n")
    (tmp_path / "b.csv").write_text("id,other\n1,x\n2,y\n")
    call = ("ingest", "events", "a.csv", "b.csv", "--directory", "log", "--on-bad-row", "divert")
    assert lakelog(*call).code == 1
    places = [(Path(row["file"]).name, row["line"]) for row in rejected_rows(Path("log"))]
    assert places == [("a.csv", 2), ("a.csv", 3), ("b.csv", 2), ("b.csv", 3)]
    assert lakelog(*call, "--resume").code == 0
    assert len(rejected_rows(Path("log"))) == 4


def test_columns_of_csv_are_found_in_any_case_and_unknown_ones_are_the_reason(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("ID,Name\n1,2\n3,04\n")
    call = ("ingest", "events", "a.csv", "--directory", "log", "--on-bad-row", "divert")
    assert lakelog(*call).code == 0
    assert events.to_polars()["name"].sort().to_list() == ["04", "2"]
    (tmp_path / "a.csv").write_text("id,zz\n5,2\nx,3\n")
    other = ("ingest", "events", "a.csv", "--directory", "other", "--on-bad-row", "divert")
    assert lakelog(*other).code == 1
    reasons = [row["reason"] for row in rejected_rows(Path("other"))]
    assert len(reasons) == 2
    assert all("no column 'zz'" in reason for reason in reasons)
    (tmp_path / "b.csv").write_text("id,zz\n5,2,6\n")
    assert lakelog("ingest", "events", "b.csv", *other[3:]).code == 1
    assert "more or fewer values" in rejected_rows(Path("other"))[2]["reason"]


@pytest.mark.parametrize("sizes", [[12] * 3, [1 << 22] * 3, [12, 1 << 22, 12], [30, 12, 1 << 22]])
def test_rows_of_a_batch_that_was_diverted_but_not_written_are_diverted_once(
    lakelog: Any,
    events: library.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
) -> None:
    lines = ["id", *map(str, range(4)), "x", "4", "y", "5", "x", *map(str, range(6, 9)), "z"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    call = ("ingest", "events", "a.csv", "--directory", "log", "--on-bad-row", "divert", "--resume")
    append = library.WriteAheadLog.append
    monkeypatch.setattr("lakelog.ingest.state._BLOCK_BYTES", sizes[0])
    for number, size in enumerate(sizes):
        failing = 2 if number and size < 100 else 1  # a large batch has all rows
        calls = iter(range(1, 100))

        def fails(*args: Any, calls: Any = calls, failing: int = failing) -> int:
            if next(calls) == failing:
                raise UnavailableError("the disk is full")
            return append(*args)

        monkeypatch.setattr("lakelog.ingest.files._BATCH_BYTES", size)
        monkeypatch.setattr(library.WriteAheadLog, "append", fails)
        assert "the disk is full" in lakelog(*call).errors
    monkeypatch.setattr("lakelog.ingest.files._BATCH_BYTES", 1 << 22)
    monkeypatch.setattr(library.WriteAheadLog, "append", append)
    assert lakelog(*call).code in {0, 1}
    places = [(row["line"], row["row"]) for row in rejected_rows(Path("log"))]
    assert places == [(6, "x"), (8, "y"), (10, "x"), (14, "z")]
    assert ids(events) == list(range(9))
    for _ in range(2):  # a stream is not a file
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\n")))
        assert lakelog("ingest", "events", *call[3:-1]).code == 1
    assert [row["line"] for row in rejected_rows(Path("log"))] == [6, 8, 10, 14, 1, 1]


@pytest.mark.parametrize(
    "line",
    ['{"file": "PATH", "line": 2', '{"file": "PATH"}', '["PATH"]', '{"file": "PATH", "row":'],
)
def test_damaged_line_of_diverted_rows_is_named_if_rows_of_its_file_are_diverted(
    lakelog: Any,
    events: library.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
) -> None:
    path, rejected = tmp_path / "a.ndjson", tmp_path / "log" / "rejected.ndjson"
    path.write_text("x\n")
    monkeypatch.setattr("lakelog.ingest.state._BLOCK_BYTES", 16)
    call = ("ingest", "events", path, "--directory", "log", "--on-bad-row", "divert", "--resume")
    assert lakelog(*call).code == 1
    rejected.write_text(rejected.read_text() + line.replace("PATH", str(path)) + "\n")
    path.write_text("x\ny\n")
    refused = lakelog(*call)
    assert "a line of the diverted rows is damaged" in refused.errors
    assert f"path      {rejected}\n  line      2\n" in refused.errors
    rejected.write_text(rejected.read_text().splitlines()[0] + "\n")
    assert lakelog(*call).code == 1
    assert [row["row"] for row in rejected_rows(tmp_path / "log")] == ["x", "y"]


def test_quoted_empty_value_is_text_or_null(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text('id,name,day,price\n1,"","",""\n2,,,\n"","x",,"1.5"\n')
    assert lakelog("ingest", "events", "a.csv").code == 0
    found = [row[:3] for row in events.to_polars().sort("id", nulls_last=True).rows()]
    assert found == [(1, "", None), (2, None, None), (None, "x", None)]
    assert [str(value) for value in events.to_polars()["price"].drop_nulls()] == ["1.50"]


def test_csv_with_blank_lines_is_continued_without_repeated_rows(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n\n2\n\n\n3\n")
    assert lakelog("ingest", "events", "a.csv").code == 0
    with (tmp_path / "a.csv").open("a") as file:
        file.write("\n4\n")
    assert lakelog("ingest", "events", "a.csv", "--resume").code == 0
    assert ids(events) == [1, 2, 3, 4]


def test_rows_replace_rows_with_the_same_key(
    lakelog: Any, events: library.Table, tmp_path: Path
) -> None:
    (tmp_path / "a.ndjson").write_text('{"id": 1, "name": "a"}\n{"id": 1, "name": "b"}\n')
    assert lakelog("ingest", "events", "a.ndjson", "--key", "id").code == 0
    assert events.to_polars()["name"].to_list() == ["b"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["nope.ndjson"], "not found"),
        (["events.xyz"], "name the format with --format"),
        (["events.ndjson.gz"], "decompress it"),
        (["--format", "parquet"], "Parquet cannot be read from standard input"),
        (["a.ndjson", "a.ndjson"], "named twice"),
        (["."], "the path is a folder, not a file"),
        (["events", "--format", "csv"], "name the files in it, such as events/*.ndjson"),
        (["bad.parquet"], "cannot be read in its format"),
        (["--format", "arrow"], "cannot be read in its format"),
        (["--format", "csv"], "the file is empty"),
        (["mark.csv"], "the file is empty"),
        (["twice.csv"], "the column 'id' occurs twice"),
        (["header.csv"], "the header is not UTF-8 text"),
    ],
)
def test_invalid_call_is_reported_with_the_reason(
    lakelog: Any,
    events: library.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    reason: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    (tmp_path / "bad.parquet").write_text("no parquet")
    (tmp_path / "twice.csv").write_text("id,id\n1,2\n")
    (tmp_path / "header.csv").write_text("id,straße\n1,2\n", "latin-1")
    (tmp_path / "mark.csv").write_text("\ufeff\n", "utf-8")
    done = lakelog("ingest", "events", *words)
    assert done.code in {1, 2}
    assert reason in done.errors


def test_an_interrupt_commits_what_was_read(events: library.Table, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lakelog", "ingest", "events", "--directory", "log"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
    )
    assert process.stdin is not None
    process.stdin.write(b'{"id": 1}\n{"id": 2}\n{"id":')
    process.stdin.flush()
    log = tmp_path / "log" / "wal" / "00000000000000000001.wal"
    until = time.monotonic() + 120
    while not log.exists() or log.stat().st_size < 100:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert b"2 rows" in output
    assert errors == b""
    assert ids(events) == [1, 2]


def test_unknown_name_in_the_header_of_csv_is_an_error_of_its_line(
    lakelog: Any, tmp_path: Path
) -> None:
    library.create(tmp_path / "t", {"a": pl.Int64}, upkeep=False)
    (tmp_path / "f.csv").write_text("nope\n1\n")
    (tmp_path / "f.ndjson").write_text('{"nope":1}\n')
    for name, hint in (
        ("f.csv", "correct the header, and repeat"),
        ("f.ndjson", "correct the row"),
    ):
        words = ("ingest", tmp_path / "t", tmp_path / name, "--directory", tmp_path / f"{name}-log")
        outcome = lakelog(*words)
        assert outcome.code == 2
        assert re.search(r"line +1\n", outcome.errors)
        assert hint in outcome.errors
        assert "alter.add_columns" in outcome.errors
        assert "schema_mode" not in outcome.errors
