"""Each command in each machine-readable format, parsed and compared with the Python API."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import lakelog as engine

FORMATS = ("json", "ndjson", "csv", "parquet", "arrow")

API: dict[str, Callable[[engine.Table], pl.DataFrame]] = {
    "files": lambda t: t.snapshot().files().collect(),
    "files --stats --flatten": lambda t: t.snapshot().files(stats=True, flatten=True).collect(),
    "history": lambda t: t.history(),
    "actions": lambda t: t.actions().collect(),
    "diff 10 30": lambda t: t.diff(10, 30),
}


def words_of(command: str, table: str) -> list[str]:
    name, *rest = command.split()
    return [name, table, *rest]


def frame_of(raw: bytes, form: str) -> pl.DataFrame:
    if form == "parquet":
        return pl.read_parquet(io.BytesIO(raw))
    opened = pa.ipc.open_file if raw.startswith(b"ARROW1") else pa.ipc.open_stream
    return pl.DataFrame(opened(raw).read_all())


def rows_of(raw: bytes, form: str) -> list[dict[str, Any]]:
    match form:
        case "json":
            rows: list[dict[str, Any]] = json.loads(raw)
            return rows
        case "ndjson":
            return [json.loads(line) for line in raw.splitlines()]
        case "csv":
            return pl.read_csv(io.BytesIO(raw), infer_schema=False).to_dicts()
        case _:
            return frame_of(raw, form).to_dicts()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("command", API)
def test_every_format_has_the_rows_of_the_python_api(
    lakelog: Any, table: str, command: str, form: str
) -> None:
    expected = API[command](engine.open(table))
    outcome = lakelog(*words_of(command, table), "--output", form)
    assert (outcome.code, outcome.errors) == (0, "")
    if form in ("parquet", "arrow"):
        assert_frame_equal(frame_of(outcome.raw, form), expected)
    found = rows_of(outcome.raw, form)
    assert len(found) == expected.height > 0
    assert list(found[0]) == expected.columns
    column = "path" if "path" in expected.columns else expected.columns[0]
    assert [str(r[column]) for r in found] == [str(v) for v in expected[column].to_list()]


def test_json_has_maps_as_objects_and_times_in_iso_8601(lakelog: Any, table: str) -> None:
    (row,) = json.loads(lakelog("history", table, "-o", "json", "--limit", 1).raw)
    assert row["operationParameters"]["mode"] == "Append"
    assert row["timestamp"] == "2026-01-03T11:00:00.000Z"


def test_json_has_one_object_per_line(lakelog: Any, table: str) -> None:
    lines = lakelog("history", table, "-o", "json", "-n", 3).text.splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("[", "]", 5)
    assert [json.loads(line.rstrip(","))["version"] for line in lines[1:-1]] == [59, 58, 57]


def test_not_a_number_and_infinity_are_null_in_json_only(lakelog: Any, tmp_path: Path) -> None:
    values = pl.DataFrame({"x": [1.5, math.nan, math.inf]})
    table = str(tmp_path / "t")
    engine.write(table, values)
    found = json.loads(lakelog("rows", table, "-o", "json").raw)
    assert found == [{"x": 1.5}, {"x": None}, {"x": None}]
    assert lakelog("rows", table, "-o", "csv").text.split() == ["x", "1.5", "NaN", "inf"]


def test_json_of_no_rows_is_an_empty_array(lakelog: Any, table: str) -> None:
    assert json.loads(lakelog("files", table, "-o", "json", "-n", 0).raw) == []


def test_csv_has_maps_and_structs_as_json_text(lakelog: Any, table: str) -> None:
    outcome = lakelog("files", table, "--stats", "-o", "csv", "-n", 1)
    (row,) = pl.read_csv(io.BytesIO(outcome.raw), infer_schema=False).to_dicts()
    assert set(json.loads(row["partitionValues"])) == {"day", "region"}
    assert json.loads(row["min"])["quantity"] == 1


def test_bytes_are_base64_in_text(lakelog: Any, corpus: Path) -> None:
    path = corpus / "delta" / "dat__multi_partitioned"
    for form in ("json", "csv"):
        outcome = lakelog("files", path, "--flatten", "-o", form, "--columns", "partition.data")
        assert outcome.code == 0
        assert {row["partition.data"] for row in rows_of(outcome.raw, form)} == {
            "aGVsbG8=",
            "8J+YiA==",
        }


@pytest.mark.parametrize("form", FORMATS)
def test_info_gives_one_row(lakelog: Any, table: str, form: str) -> None:
    (row,) = rows_of(lakelog("info", table, "-o", form).raw, form)
    snapshot = engine.open(table).snapshot()
    assert int(row["version"]) == snapshot.version == 59
    assert int(row["numFiles"]) == snapshot.num_files()
    assert int(row["checkpointVersion"]) == 40
    assert int(row["commitsReplayed"]) == 19


@pytest.mark.parametrize("form", FORMATS)
def test_blame_lists_the_actions_of_a_file(lakelog: Any, table: str, form: str) -> None:
    path = engine.open(table).diff(40, 50).filter(pl.col("change") == "removed")["name"][0]
    found = rows_of(lakelog("blame", table, path, "-o", form).raw, form)
    assert [row["actionType"] for row in found] == ["add", "remove"]


@pytest.mark.parametrize("form", FORMATS)
def test_replay_lists_its_parts(lakelog: Any, table: str, tmp_path: Path, form: str) -> None:
    out = tmp_path / "state"
    found = rows_of(lakelog("replay", table, "--out", out, "-o", form).raw, form)
    assert [row["path"] for row in found] == [str(p) for p in sorted(out.glob("*.parquet"))]
    adds = pl.scan_parquet(out / "*.parquet").filter(pl.col("actionType") == "add").collect()
    live = engine.open(table).snapshot().state.to_polars()
    assert sorted(adds["path"]) == sorted(live["path"])


@pytest.mark.parametrize("form", FORMATS)
def test_file_suffix_selects_the_format(
    lakelog: Any, table: str, tmp_path: Path, form: str
) -> None:
    target = tmp_path / f"files.{form}"
    outcome = lakelog("files", table, "--to", target)
    assert (outcome.code, outcome.raw) == (0, b"")
    assert len(rows_of(target.read_bytes(), form)) == engine.open(table).snapshot().num_files()


@pytest.mark.parametrize("options", [(), ("--output", "arrow")])
def test_a_file_named_arrow_has_the_file_format_and_others_the_stream(
    lakelog: Any, table: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    for command in ("files", "rows"):
        file, stream = tmp_path / "f.arrow", tmp_path / "f.arrows"
        for target in (file, stream):
            assert lakelog(command, table, "--to", target, *options).code == 0
        assert_frame_equal(pl.read_ipc(file), pl.read_ipc_stream(stream))
        assert pl.read_ipc(file).height > 0
    assert lakelog("files", table, "--to", tmp_path / "f", "--output", "arrow").code == 0
    assert pl.read_ipc_stream(tmp_path / "f").height > 0


def test_columns_option_selects_and_orders_columns(lakelog: Any, table: str) -> None:
    outcome = lakelog("files", table, "-o", "csv", "--columns", "size, path", "--limit", 2)
    assert outcome.text.splitlines()[0] == "size,path"
    assert len(outcome.text.splitlines()) == 3


def test_column_with_a_comma_is_selected_in_double_quotes(lakelog: Any, tmp_path: Path) -> None:
    engine.write(
        tmp_path,
        pl.DataFrame({"a,b": [1], "c": [2]}),
        configuration={"delta.columnMapping.mode": "name"},
    )
    chosen = lakelog("rows", tmp_path, "--columns", 'c,"a,b"', "-o", "csv")
    assert chosen.text.splitlines() == ['c,"a,b"', "2,1"]
    refused = lakelog("rows", tmp_path, "--columns", "a,b")
    assert (refused.code, 'did you mean "a,b"?' in refused.errors) == (2, True)


def test_column_with_a_line_break_is_selected_in_double_quotes(
    lakelog: Any, tmp_path: Path
) -> None:
    engine.write(
        tmp_path,
        pl.DataFrame({"a\nb": [1], "c": [2]}),
        configuration={"delta.columnMapping.mode": "name"},
    )
    chosen = lakelog("rows", tmp_path, "--columns", 'c,"a\nb"', "-o", "ndjson")
    assert json.loads(chosen.text) == {"c": 2, "a\nb": 1}
    for names in ("a\nb", "a\rb"):
        refused = lakelog("rows", tmp_path, "--columns", names)
        assert (refused.code, "line break" in refused.errors) == (2, True)


@pytest.mark.parametrize("to", [True, False])
def test_error_of_the_table_is_not_one_of_the_output(
    lakelog: Any, tmp_path: Path, *, to: bool
) -> None:
    engine.write(tmp_path / "t", pl.DataFrame({"n": [1]}))
    next((tmp_path / "t").glob("*.parquet")).unlink()
    target = ("--to", tmp_path / "out.csv") if to else ("--output", "csv")
    outcome = lakelog("rows", tmp_path / "t", *target)
    assert outcome.code != 0
    assert "a data file" in outcome.errors
    assert "was not found" in outcome.errors
    assert "output" not in outcome.errors
    assert not (tmp_path / "out.csv").exists()


def test_suffix_of_another_format_is_refused(lakelog: Any, table: str, tmp_path: Path) -> None:
    for suffix, form in (("jsonl", "ndjson"), ("pq", "parquet"), ("arrows", "arrow")):
        assert lakelog("files", table, "--to", tmp_path / f"f.{suffix}").code == 0
        assert len(rows_of((tmp_path / f"f.{suffix}").read_bytes(), form)) > 0
    for name in ("f.xlsx", "f.json.gz", "f.xyz"):
        refused = lakelog("files", table, "--to", tmp_path / name)
        suffix = name.rpartition(".")[2]
        assert (refused.code, f"no format for .{suffix}" in refused.errors) == (2, True)
        assert not (tmp_path / name).exists()
    for name in ("f.txt", "f", "v1.5/f"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        assert lakelog("files", table, "--to", tmp_path / name).code == 0


def test_characters_that_the_locale_lacks_are_escaped(tmp_path: Path) -> None:
    engine.write(tmp_path, pl.DataFrame({"x": ["ü日"]}))
    for form, expected in (("table", "ü\\u65e5"), ("csv", "ü日")):
        shown = subprocess.run(
            [sys.executable, "-m", "lakelog", "rows", str(tmp_path), "-o", form],
            capture_output=True,
            env=dict(os.environ) | {"PYTHONIOENCODING": "latin-1"},
            check=True,
        )
        encoding = "latin-1" if form == "table" else "utf-8"
        assert shown.stdout.decode(encoding).splitlines()[1].strip() == expected
        assert shown.stderr == b""


def test_actions_are_filtered_by_range_and_type(lakelog: Any, table: str) -> None:
    words = ("--start", 20, "--end", 30, "--type", "remove", "--type", "txn", "-o", "json")
    rows = json.loads(lakelog("actions", table, *words).raw)
    assert {row["actionType"] for row in rows} == {"remove", "txn"}
    assert {row["version"] for row in rows} <= set(range(20, 31))


def test_time_travel_by_version_and_by_timestamp_agree(lakelog: Any, table: str) -> None:
    by_version = lakelog("files", table, "--version", 20, "-o", "csv")
    by_time = lakelog("files", table, "--timestamp", "2026-01-01T20:30:00", "-o", "csv")
    assert by_version.raw == by_time.raw
    assert by_version.raw != lakelog("files", table, "-o", "csv").raw


def test_replay_of_an_earlier_version(lakelog: Any, table: str, tmp_path: Path) -> None:
    outcome = lakelog("replay", table, "--version", 20, "--out", tmp_path / "a")
    assert outcome.code == 0
    manifest = json.loads((tmp_path / "a" / "_manifest.json").read_text())
    assert manifest["version"] == 20


def test_table_is_opened_by_url_with_storage_options(lakelog: Any, table: str) -> None:
    outcome = lakelog(
        "info", f"local://{table}", "--storage-option", "auto_mkdir=false", "-o", "json"
    )
    assert outcome.code == 0
    assert json.loads(outcome.raw)[0]["version"] == 59


def test_changes_are_filtered_by_range_and_condition(lakelog: Any, tmp_path: Path) -> None:
    table = engine.create(tmp_path, {"n": pl.Int64, "day": pl.Date}, upkeep=False)
    for number in range(3):
        table.append(pl.DataFrame({"n": [number, 10], "day": [dt.date(2026, 1, 5)] * 2}))
    words = ("--start", 2, "--where", "n < 10 and day = '2026-01-05'", "-o", "json")
    found = json.loads(lakelog("changes", tmp_path, *words).raw)
    assert [(row["n"], row["_change_type"], row["_commit_version"]) for row in found] == [
        (1, "insert", 2),
        (2, "insert", 3),
    ]
    text = lakelog("changes", tmp_path, "--start", "2020-01-01", "--end", 1).text
    assert "2 changes" in text
    assert "2 insert" in text
    assert lakelog("changes", tmp_path, "--start", "monday").code == 2


def test_rows_are_shown_by_condition_columns_and_version(lakelog: Any, tmp_path: Path) -> None:
    table = engine.create(tmp_path, {"n": pl.Int64, "day": pl.String}, ["day"], upkeep=False)
    for day in ("a", "b"):
        table.append(pl.DataFrame({"n": range(60), "day": [day] * 60}))
    words = ("--where", "day = 'b' and n < 2", "--columns", "n", "--output", "json")
    assert sorted(row["n"] for row in json.loads(lakelog("rows", tmp_path, *words).raw)) == [0, 1]
    text = lakelog("rows", tmp_path).text
    assert "50 rows" in text
    assert "of 120 rows in the table" in text
    frame = pl.read_csv(lakelog("rows", tmp_path, "--version", 1, "--output", "csv").raw)
    assert frame.height == 60
    assert "3 rows" in lakelog("rows", tmp_path, "--limit", 3).text
    engine.write(tmp_path / "u", pl.DataFrame({"id": [1234567], "size_bytes": [2048]}))
    assert lakelog("rows", tmp_path / "u").text.splitlines()[1].split() == ["1234567", "2048"]
    assert lakelog("rows", tmp_path, "--where", "nothing = 1").code == 2


def test_nulls_and_empty_values_of_rows_are_shown_differently(lakelog: Any, tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "l": [None, [], [None], [""]],
        "s": [None, {"x": None}, {"x": ""}, {"x": "q"}],
    }
    engine.write(tmp_path, pl.DataFrame(columns))
    lines = lakelog("rows", tmp_path).text.splitlines()[1:5]
    shown = [line.split(maxsplit=1) for line in lines]
    assert shown == [
        ["null", "null"],
        ["[]", "{x: null}"],
        ["[null]", '{x: ""}'],
        ['[""]', "{x: q}"],
    ]


def test_columns_without_values_of_a_users_table_are_shown(lakelog: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    engine.write(
        path, pl.DataFrame({"id": [1], "coupon": [None]}, {"id": pl.Int64, "coupon": pl.String})
    )
    head, row, _ = lakelog("rows", path).text.splitlines()
    assert (head.split(), row.split()) == (["id", "coupon"], ["1", "null"])


def test_a_table_of_many_columns_names_the_first_that_are_hidden(
    lakelog: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    engine.write(path, pl.DataFrame({f"column_number_{i:03}": [i] for i in range(300)}))
    monkeypatch.setenv("COLUMNS", "80")
    text = " ".join(lakelog("rows", path).text.split())
    assert "--columns shows column_number_004, column_number_005," in text
    assert text.endswith("column_number_013 and 286 more")


def test_columns_named_like_patterns_are_shown(lakelog: Any, tmp_path: Path) -> None:
    rows = pa.table({"*": pa.nulls(1, pa.int64()), "^a$": [[b"x"]], "a": [3], "b[c]": [4]})
    engine.write(tmp_path, rows)
    header, values, _ = lakelog("rows", tmp_path).text.splitlines()
    assert header.split() == ["*", "^a$", "a", "b[c]"]
    assert values.split() == ["null", "[b'x']", "3", "4"]
    raw = lakelog("rows", tmp_path, "--columns", "^a$", "--output", "csv").raw
    assert raw == b'^a$\n"[""eA==""]"\n'
    raw = lakelog("rows", tmp_path, "--output", "json").raw
    assert json.loads(raw) == [{"*": None, "^a$": ["eA=="], "a": 3, "b[c]": 4}]


def damaged(path: Path, rows: int = 5) -> None:
    """A table of two files, the second of which is damaged."""
    table = engine.create(path, {"n": pl.Int64}, upkeep=False)
    for number in range(2):
        table.append(pl.DataFrame({"n": [number] * rows}))
    last = path / table.snapshot().files().collect().sort("version")["path"][-1]
    last.write_bytes(b"PAR1" + bytes(last.stat().st_size - 8) + b"PAR1")


def test_rows_are_written_as_they_are_read(lakelog: Any, tmp_path: Path) -> None:
    damaged(tmp_path, 70_000)  # more than are read at once
    outcome = lakelog("rows", tmp_path, "--output", "ndjson")
    assert (outcome.code, outcome.raw) == (1, b'{"n":0}\n' * 65_536)


@pytest.mark.parametrize("form", FORMATS)
def test_file_of_rows_is_complete_or_unchanged(lakelog: Any, tmp_path: Path, form: str) -> None:
    path, out = tmp_path / "t", tmp_path / f"out.{form}"
    damaged(path)
    assert lakelog("rows", path, "--version", 1, "--to", out).code == 0
    before = out.read_bytes()
    assert [int(row["n"]) for row in rows_of(before, form)] == [0] * 5
    assert lakelog("rows", path, "--to", out).code == 1
    assert out.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == sorted([path, out])
    assert lakelog("rows", path, "--version", 0, "--to", out).code == 0
    assert rows_of(out.read_bytes(), form) == []


@pytest.mark.parametrize("form", ["json", "csv"])
def test_nested_bytes_times_and_keys_of_maps_are_text(
    lakelog: Any, tmp_path: Path, form: str
) -> None:
    time, text = dt.datetime(2026, 1, 2, 3, 4, 5, 678901), "2026-01-02T03:04:05.678901"
    types = {
        "time": pa.timestamp("us"),
        "bytes": pa.list_(pa.struct([("b", pa.binary())])),
        "map": pa.map_(pa.timestamp("us"), pa.binary()),
        "nested": pa.map_(pa.string(), pa.list_(pa.timestamp("us", "UTC"))),
    }
    first = {
        "time": time,
        "bytes": [{"b": b"x"}, None],
        "map": [(time, b"x")],
        "nested": [("k", [time])],
    }
    nulls = dict.fromkeys(types)
    engine.write(tmp_path, pa.Table.from_pylist([first, nulls], pa.schema(types)))
    found = rows_of(lakelog("rows", tmp_path, "--output", form).raw, form)
    if form == "csv":
        nested = ("bytes", "map", "nested")
        found[0] |= {name: json.loads(found[0][name]) for name in nested}
    assert found == [
        {
            "time": text,
            "bytes": [{"b": "eA=="}, None],
            "map": {text: "eA=="},
            "nested": {"k": [f"{text}Z"]},
        },
        nulls,
    ]


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_times_beyond_the_years_of_python_and_polars_are_exact(
    lakelog: Any, tmp_path: Path, form: str
) -> None:
    """A time has 64 bits of microseconds; Python's end with the year 9999, Polars' with 262,142."""
    texts = {
        253_402_300_799_999_999: "9999-12-31T23:59:59.999999Z",
        253_402_300_800_000_000: "+10000-01-01T00:00:00.000000Z",
        8_210_266_876_799_999_999: "+262142-12-31T23:59:59.999999Z",
        8_210_266_876_800_000_000: "+262143-01-01T00:00:00.000000Z",
        (1 << 63) - 1: "+294247-01-10T04:00:54.775807Z",
        -1 << 63: "-290308-12-21T19:59:05.224192Z",
    }
    times = pa.array(list(texts), pa.timestamp("us", "UTC"))
    maps = pa.MapArray.from_arrays(range(len(texts) + 1), ["k"] * len(texts), times)
    rows = pa.table({"n": range(len(texts)), "at": times, "all": [[t] for t in times], "map": maps})
    days = pa.array([-1 << 31, (1 << 31) - 1] * 3, pa.date32())
    engine.write(tmp_path, rows.append_column("day", days))
    out = lakelog("rows", tmp_path, "--columns", "n,at,all,map,day", "--output", form).raw
    for text in texts.values():
        assert out.count(text.encode()) == 3
    assert out.count(b"-5877641-06-23") == out.count(b"+5881580-07-11") == 3


def test_changes_of_columns_with_names_of_the_log_are_shown(lakelog: Any, tmp_path: Path) -> None:
    engine.write(tmp_path, pl.DataFrame({"operationMetrics": [5], "after": [6], "size": [2048]}))
    text = lakelog("changes", tmp_path, "--start", 0).text
    assert text.splitlines()[1].split()[-3:] == ["5", "6", "2048"]
