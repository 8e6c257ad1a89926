"""A pipeline on Spark from NDJSON to a partitioned, maintained table, in repeatable steps.

Compaction with concurrent writers and with faults is tested in `test_pipeline_compaction`.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
import math
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import lakelog
from lakelog import CorruptionError, InvalidInputError, StreamMismatchError, UnavailableError
from lakelog.errors import ConcurrentAppendError
from lakelog.spark.options import parse_options
from lakelog.spark.pipeline import Checkpoint, Cleanup, Compact, Ingest, Pipeline, Target, Vacuum
from lakelog.spark.pipeline import pipeline as running
from lakelog.spark.pipeline.ingest import ingest, named, parsed
from lakelog.spark.pipeline.upkeep import list_table
from tests.maintenance.logs import deny
from tests.spark.configured import configured
from tests.spark.pipeline_side import Side, live, on_disk, small_files, some_rows

COLUMNS = "id bigint, at timestamp, who string"
DAYS = ("2026-01-01", "2026-01-02")
STEPS = ("ingest", "compact", "checkpoint", "cleanup", "vacuum")


def write_events(folder: Path, name: str, ids: range) -> None:
    folder.mkdir(exist_ok=True)
    lines = [{"id": n, "at": f"{DAYS[n % 2]}T00:00:00Z", "who": f"u{n}"} for n in ids]
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def described(where: Path, **more: Any) -> Pipeline:
    """A description with two files of events per batch, and every step."""
    ingest = Ingest(
        format="json",
        path=os.fspath(where / "raw"),
        schema=COLUMNS,
        select=["*", "date_format(at, 'yyyy-MM-dd') AS day"],
        checkpoint=os.fspath(where / "progress"),
        options={"maxFilesPerTrigger": 2},
    )
    whole: dict[str, Any] = {
        "table": Target(path=os.fspath(where / "t"), create=True, partition_by=["day"]),
        "ingest": ingest,
        "compact": Compact(target_bytes="1MB"),
        "checkpoint": Checkpoint(),
        "cleanup": Cleanup(),
        "vacuum": Vacuum(),
    }
    return Pipeline("events", **(whole | more))


def ids(where: Path) -> list[int]:
    return lakelog.open(where / "t").snapshot().scan().collect()["id"].sort().to_list()


def test_pipeline_runs_all_steps_and_a_second_run_changes_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = described(tmp_path)
    write_events(tmp_path / "raw", "a.json", range(10))
    (tmp_path / "raw" / "a.json").open("a").write("\n  \n")  # blank lines are ignored
    write_events(tmp_path / "raw", "b.json", range(10, 12))
    write_events(tmp_path / "raw", "c.json", range(12, 14))
    reported: list[tuple[str, int, int | None]] = []

    # It fails before a step, and continues there.
    real: Callable[..., Any] = running._step
    for step in ("compact", "cleanup"):

        def broken(pipeline: Any, name: str, *more: Any, at: str = step) -> Any:
            if name == at:
                raise RuntimeError(f"before {at}")
            return real(pipeline, name, *more)

        monkeypatch.setattr(running, "_step", broken)
        with pytest.raises(RuntimeError, match=f"before {step}") as failure:
            pipeline.run(spark, progress=lambda *each: reported.append(each))
        assert "ingest: " in failure.value.__notes__[0]
        assert ids(tmp_path) == list(range(14))
    monkeypatch.undo()
    assert ("ingest", 14, None) in reported
    assert ("compact", 6, 6) in reported

    report = pipeline.run(spark)
    table = lakelog.open(tmp_path / "t")
    assert [each.step for each in report] == list(STEPS)
    assert {each.status for each in report} == {"nothing to do"}
    assert report.is_complete
    assert report["compact"].version == table.version() == 3
    assert len(live(table)) == 2
    history = table.history().sort("version")["operation"].to_list()
    assert history == ["CREATE TABLE", "STREAMING UPDATE", "STREAMING UPDATE", "OPTIMIZE"]
    assert table.verify().verdict == "proved"
    read = spark.read.format("lakelog").load(os.fspath(tmp_path / "t")).orderBy("id").toArrow()
    assert pl.DataFrame(read)["id"].to_list() == ids(tmp_path)
    assert pl.DataFrame(read)["day"].to_list() == [DAYS[n % 2] for n in range(14)]

    # New rows are ingested once; files that compaction replaced are deleted when they are old.
    write_events(tmp_path / "raw", "d.json", range(14, 15))
    for path in on_disk(table):
        os.utime(tmp_path / "t" / path, (1e9, 1e9))
    week = 8 * 86_400_000
    now = lakelog.open(tmp_path / "t").log.clock() + week
    amount = pipeline.run(spark, ["ingest", "compact", "vacuum"], clock=lambda: now)
    assert [each.rows for each in amount] == [1, 8, 0]
    assert amount["vacuum"].removed == 6
    assert ids(tmp_path) == list(range(15))
    assert on_disk(table) >= set(live(table))

    # A checkpoint of the stream that was lost is noticed.
    assert pipeline.ingest is not None
    lost = described(tmp_path, ingest=replace(pipeline.ingest, checkpoint=f"{tmp_path}/other"))
    with pytest.raises(StreamMismatchError, match="another checkpoint") as mismatch:
        lost.run(spark, ["ingest"])
    assert "old checkpoint" in (mismatch.value.hint or "")
    assert ids(tmp_path) == list(range(15))


def test_malformed_line_is_reported_and_read_once_repaired(spark: Any, tmp_path: Path) -> None:
    pipeline = described(tmp_path, compact=None, checkpoint=None, cleanup=None, vacuum=None)
    raw = tmp_path / "raw"
    write_events(raw, "good one.json", range(2))
    (raw / "bad one.json").write_text('{"id": 7}\n{"id": 3, "wh\n')
    with pytest.raises(CorruptionError, match="not one JSON object") as error:
        pipeline.run(spark)
    assert error.value.path is not None
    assert error.value.path.endswith("raw/bad one.json")
    assert (error.value.line, error.value.found) == (2, '{"id": 3, "wh')
    assert ids(tmp_path) == []
    (raw / "bad one.json").write_text('{"id": 7}\n{"id": 3}\n')
    assert pipeline.run(spark)["ingest"].rows == 4
    assert ids(tmp_path) == [0, 1, 3, 7]


def test_every_malformed_line_is_refused(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.types import StructType

    for line in (
        '{"id": "x"}',
        '{"id": 1}{"id": 2}',
        '{"id": 1}]{"id": 2}',
        '{"id": 1},{"id": 2}',
        '{"id": 1}] x',
        "[1]",
        '{"id": 1.5}',
        "{'id': 1}",
        '{"id": 1, "id": 2}',
        '{"id": 1, "\\u0069d": 2}',
        '{"id": 1, "more": [{"a": 1, "a": 1}]}',
    ):
        (tmp_path / "bad.json").write_text('{"id": 7}\n' + line + "\n")
        rows = parsed(spark.read.text(f"{tmp_path}/bad.json"), StructType.fromDDL(COLUMNS), {})
        with pytest.raises(CorruptionError) as error, named("repair the file"):
            rows.collect()
        assert (error.value.line, error.value.found) == (2, line)


@pytest.mark.parametrize("select", ["day", "1 AS one"])
def test_a_line_is_checked_if_none_of_its_columns_is_selected(
    spark: Any, tmp_path: Path, select: str
) -> None:
    from pyspark.sql.types import StructType

    write_events(tmp_path / "day=1", "a.json", range(2))
    (tmp_path / "day=1" / "a.json").open("a").write("{\n")
    rows = parsed(spark.read.text(os.fspath(tmp_path)), StructType.fromDDL(COLUMNS), {}).selectExpr(
        select
    )
    plan = rows._jdf.queryExecution().optimizedPlan().toString()
    assert "Filter (isnotnull(_lakelog_row" in plan, "the parser does not run for the filter too"
    with pytest.raises(CorruptionError) as error, named("repair the file"):
        rows.collect()
    assert (error.value.line, error.value.found) == (3, "{")


VALUES = (
    "b tinyint, d decimal(10,2), f float, x double, da date, ts timestamp, tn timestamp_ntz, "
    "bs array<tinyint>, bm map<string, tinyint>, st struct<d: decimal(5,1), das: array<date>>, "
    "s string, ss array<string>, sm map<string, string>"
)


def values_of(spark: Any, path: Path, lines: list[str], **options: str) -> list[dict[str, Any]]:
    """The columns that are not null, of lines with the columns `VALUES`."""
    from pyspark.sql.types import StructType

    path.write_text("".join(f"{line}\n" for line in lines))
    with named("repair the file"):
        rows = parsed(spark.read.text(os.fspath(path)), StructType.fromDDL(VALUES), options)
        return [
            {name: value for name, value in row.asDict(recursive=True).items() if value is not None}
            for row in rows.collect()
        ]


@pytest.mark.parametrize(
    "line",
    [
        '{"b": 200}',
        '{"bs": [1, 200]}',
        '{"bm": {"k": 200}}',
        '{"d": 1.239}',
        '{"d": "1.239"}',
        '{"d": 1.239e0}',
        '{"d": "1,23"}',
        '{"st": {"d": 1.55}}',
        '{"f": 1e300}',
        '{"x": -1e400}',
        '{"da": "2026-1-1 junk"}',
        '{"da": "2026-01-01T23:30:00+05:00"}',
        '{"st": {"das": [null, "2026"]}}',
        '{"ts": "2026-01-01T00:00:00.1234567Z"}',
        '{"ts": "10:00:00"}',
        '{"ts": 1767225600000}',
        '{"tn": "2026-01-01T00:00:00.123456789"}',
        '{"s": 0.10}',
        '{"s": true}',
        '{"ss": ["a", {"b": 1.0}]}',
        '{"sm": {"k": 1e400}}',
        '{"s": "a\\ud800b"}',
        '{"s": "\\\\\\ud83d\\\\ude00"}',
        '{"sm": {"\\udc00": "x"}}',
    ],
)
def test_a_line_with_a_value_that_spark_would_change_is_refused(
    spark: Any, tmp_path: Path, line: str
) -> None:
    with pytest.raises(CorruptionError) as error:
        values_of(spark, tmp_path / "bad.json", ['{"b": 7}', line])
    assert (error.value.line, error.value.found) == (2, line)


@pytest.mark.parametrize("multi_line", [False, True], ids=["line", "multiLine"])
@pytest.mark.parametrize(
    ("form", "name", "value"),
    [
        ("json", "spark.sql.legacy.timeParserPolicy", "legacy"),
        ("json", "spark.sql.legacy.json.enableDateTimeParsingFallback", "true"),
        ("json", "spark.sql.legacy.json.allowEmptyString.enabled", "true"),
        ("json", "spark.sql.variant.allowDuplicateKeys", "true"),
        ("csv", "spark.sql.legacy.timeParserPolicy", "legacy"),
        ("csv", "spark.sql.legacy.csv.enableDateTimeParsingFallback", "true"),
    ],
)
def test_settings_with_which_spark_changes_values_are_refused(
    either: Any, tmp_path: Path, form: str, name: str, value: str, multi_line: bool
) -> None:
    table = lakelog.create(tmp_path / "t", {"day": pl.Date, "note": pl.String}, upkeep=False)
    (tmp_path / "b.json").write_text('{"day": "2024-02-30", "note": ""}\n')
    (tmp_path / "b.csv").write_text("2024-02-30,x\n")
    source = Ingest(
        mode="batch",
        batch_id=1,
        format=form,
        path=f"{tmp_path}/b.{form}",
        options={"multiLine": multi_line},
    )
    pipeline = Pipeline("days", Target(path=f"{tmp_path}/t"), ingest=source)
    either.conf.set(name, value)
    try:
        with pytest.raises(InvalidInputError, match=name) as caught:
            pipeline.run(either)
    finally:
        either.conf.unset(name)
    assert "spark.conf.set" in (caught.value.hint or "")
    assert table.version() == 0
    with pytest.raises(CorruptionError, match=r"not one JSON object|does not fit|cannot be read"):
        pipeline.run(either)
    assert table.version() == 0


def test_values_that_fit_are_read_at_every_depth(spark: Any, tmp_path: Path) -> None:
    inf, day, amount = float("inf"), dt.date(2026, 1, 1), Decimal("1.23")
    (single,) = struct.unpack("f", struct.pack("f", 1e38))
    time = dt.datetime(2026, 1, 1, 18, 30, 0, 123456)
    given: list[tuple[str, dict[str, Any]]] = [
        ('{"b": -128, "d": 1.230, "f": 1e38}', {"b": -128, "d": amount, "f": single}),
        ('{"d": "1.23", "x": "-Infinity"}', {"d": amount, "x": -inf}),
        ('{"d": 12345678.1e0, "x": 1e300}', {"d": Decimal("12345678.10"), "x": 1e300}),
        ('{"d": 1e2, "x": 1e-400}', {"d": Decimal("100.00"), "x": 0.0}),
        ('{"da": "2026-01-01", "tn": "2026-01-01"}', {"da": day, "tn": dt.datetime(2026, 1, 1)}),
        ('{"ts": "2026-01-01T23:30:00.123456+05:00"}', {"ts": time}),
        ('{"ts": "2026-01-01 18:30:00.123456"}', {"ts": time}),
        ('{"bs": [1, null], "bm": {"k": 1, "n": null}}',
         {"bs": [1, None], "bm": {"k": 1, "n": None}}),
        ('{"st": {"d": 1.50, "das": ["2026-01-01", null]}}',
         {"st": {"d": Decimal("1.5"), "das": [day, None]}}),
        ('{"s": "0.10", "ss": ["", null], "sm": {"k": "1", "n": null}}',
         {"s": "0.10", "ss": ["", None], "sm": {"k": "1", "n": None}}),
        ('{"s": "\\ud83d\\uDE00 \\\\ud800"}', {"s": "\N{GRINNING FACE} \\ud800"}),
        ('{"s": null}', {}),
        ('{"st": {}}', {"st": {"d": None, "das": None}}),
        ('{"st": null, "bs": [], "b": null}', {"bs": []}),
        ("{}", {}),
    ]  # fmt: skip
    found = values_of(spark, tmp_path / "good.json", [line for line, _ in given])
    for row in found:
        if "ts" in row:  # collected in the zone of this process
            row["ts"] = row["ts"].astimezone(dt.UTC).replace(tzinfo=None)
    assert found == [values for _, values in given]


def test_formats_of_dates_and_numbers_can_be_set(spark: Any, tmp_path: Path) -> None:
    given = {"dateFormat": "dd.MM.yyyy", "timestampFormat": "dd.MM.yyyy HH", "locale": "de-DE"}
    lines = ['{"da": "02.01.2026", "ts": "02.01.2026 10", "d": "1.234,56"}']
    (row,) = values_of(spark, tmp_path / "formats.json", lines, **given)
    assert (row["da"], row["d"]) == (dt.date(2026, 1, 2), Decimal("1234.56"))
    assert row["ts"].astimezone(dt.UTC).hour == 10


CSV = "d decimal(10,2), f float, x double, da date, ts timestamp, tn timestamp_ntz, s string"


def csv_rows(spark: Any, where: Path, values: dict[str, str], **options: Any) -> dict[str, Any]:
    """The row that a pipeline writes for a record of CSV with the columns `CSV`, nulls omitted."""
    names = [each.split()[0] for each in CSV.split(", ")]
    record = ";".join(values.get(name, "") for name in names)
    (where / "raw" / "p=7").mkdir(parents=True, exist_ok=True)
    (where / "raw" / "p=7" / "b.csv").write_text(f"{';'.join(names)}\n{record}\n")
    source = Ingest(
        mode="batch",
        batch_id=1,
        format="csv",
        path=f"{where}/raw",
        schema=CSV,
        options={"header": True, "sep": ";"} | options,
        select=["*", "_metadata.file_name AS file"],
    )
    target = Target(path=f"{where}/t", create=True)
    assert Pipeline("records", target, ingest=source).run(spark)["ingest"].rows == 1
    (row,) = lakelog.open(where / "t").to_polars().to_dicts()
    assert (row.pop("p"), row.pop("file")) == (7, "b.csv")
    return {name: value for name, value in row.items() if value is not None}


@pytest.mark.parametrize(
    ("column", "text", "type_"),
    [
        ("d", "1.239", "decimal(10,2)"),
        ("d", "1,23", "decimal(10,2)"),
        ("d", "123456789.00", "decimal(10,2)"),
        ("f", "1e300", "float"),
        ("x", "-1e400", "double"),
        ("x", "1,5", "double"),
        ("da", "2026-01-01T23:30:00", "date"),
        ("da", "2026-02-30", "date"),
        ("ts", "2026-01-01T00:00:00.1234567Z", "timestamp"),
        ("ts", "10:00:00", "timestamp"),
        ("tn", "2026-01-01T00:00:00.1234567", "timestamp_ntz"),
        ("tn", "2026-01-01T00:00:00Z", "timestamp_ntz"),
    ],
)
def test_a_value_of_csv_that_spark_would_change_is_refused(
    spark: Any, tmp_path: Path, column: str, text: str, type_: str
) -> None:
    with pytest.raises(CorruptionError, match="does not fit its column") as error:
        csv_rows(spark, tmp_path, {column: text})
    found = error.value
    assert (found.column, found.found, found.expected) == (column, text, type_)
    assert str(found.path).endswith("b.csv")


@pytest.mark.parametrize(
    ("form", "text", "options"),
    [
        ("csv", "123,4\n67", {}),
        ("csv", "123,4\n67,bad\n", {}),
        ("json", '[{"id": 1, "n": 2}, {"id": 3, "n": "bad"}]', {"multiLine": True}),
        ("xml", "<r><row><id>1</id><n>bad</n></row></r>", {"rowTag": "row"}),
    ],
    ids=["short csv", "csv", "multiLine", "xml"],
)
def test_a_record_is_checked_whole_if_some_of_its_columns_are_selected(
    spark: Any, tmp_path: Path, form: str, text: str, options: dict[str, Any]
) -> None:
    (tmp_path / f"a.{form}").write_text(text)
    source = Ingest(
        mode="batch",
        batch_id=1,
        format=form,
        path=f"{tmp_path}/a.{form}",
        schema="id bigint, n bigint",
        options=options,
        select=["id"],
    )
    target = Target(path=f"{tmp_path}/t", create=True)
    with pytest.raises(CorruptionError, match="cannot be read") as error:
        Pipeline("records", target, ingest=source).run(spark)
    assert str(error.value.path).endswith(f"/a.{form}")
    assert lakelog.open(tmp_path / "t").to_polars().is_empty()


@pytest.mark.parametrize("mode", ["batch", "available_now"])
def test_columns_of_folders_may_have_any_name(spark: Any, tmp_path: Path, mode: Any) -> None:
    folders = {"day.x": 1, "value": 2, "row": 3, "a`b": 4}
    folder = tmp_path.joinpath("raw", *(f"{name}={value}" for name, value in folders.items()))
    folder.mkdir(parents=True)
    (folder / "a.json").write_text('{"id": 7}\n')
    more = {"batch_id": 1} if mode == "batch" else {"checkpoint": f"{tmp_path}/progress"}
    source = Ingest(mode=mode, format="json", path=f"{tmp_path}/raw", schema="id bigint", **more)
    target = Target(path=f"{tmp_path}/t", create=True)
    Pipeline("lines", target, ingest=source).run(spark)
    assert lakelog.open(tmp_path / "t").to_polars().to_dicts() == [{"id": 7, **folders}]


@pytest.mark.parametrize("mode", ["batch", "available_now"])
@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_column_of_a_folder_has_the_type_of_the_schema(
    spark: Any, tmp_path: Path, form: str, mode: Any
) -> None:
    (tmp_path / "raw" / "code=007").mkdir(parents=True)
    file = tmp_path / "raw" / "code=007" / f"a.{form}"
    file.write_text('{"id": 7}\n' if form == "json" else "7\n")
    more = {"batch_id": 1} if mode == "batch" else {"checkpoint": f"{tmp_path}/progress"}
    columns = "id bigint, code string"
    source = Ingest(mode=mode, format=form, path=f"{tmp_path}/raw", schema=columns, **more)
    Pipeline("lines", Target(path=f"{tmp_path}/t", create=True), ingest=source).run(spark)
    assert lakelog.open(tmp_path / "t").to_polars().to_dicts() == [{"id": 7, "code": "007"}]


@pytest.mark.parametrize("mode", ["batch", "available_now"])
def test_rows_of_another_table_of_lakelog_are_ingested(
    spark: Any, tmp_path: Path, mode: Any
) -> None:
    lakelog.write(tmp_path / "raw", pl.DataFrame({"id": [1, 2]}))
    more = {"batch_id": 1} if mode == "batch" else {"checkpoint": f"{tmp_path}/progress"}
    source = Ingest(mode=mode, format="lakelog", path=f"{tmp_path}/raw", **more)
    pipeline = Pipeline("copy", Target(path=f"{tmp_path}/t", create=True), ingest=source)
    assert pipeline.run(spark)["ingest"].rows == 2
    assert pipeline.run(spark)["ingest"].rows == 0
    assert ids(tmp_path) == [1, 2]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_a_truncated_file_is_refused_whatever_the_session_ignores(
    spark: Any, tmp_path: Path, form: str
) -> None:
    rows = pl.DataFrame({"id": pl.int_range(20_000, eager=True).shuffle(1)})
    if form == "parquet":
        rows.write_parquet(tmp_path / "a.parquet")
    else:
        whole = gzip.compress(
            rows.write_ndjson().encode()
            if form == "json"
            else rows.write_csv(include_header=False).encode()
        )
        (tmp_path / f"a.{form}.gz").write_bytes(whole)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    source = Ingest(mode="batch", batch_id=1, format=form, path=str(path), schema="id bigint")
    target = Target(path=f"{tmp_path}/t", create=True)
    ignored = {"spark.sql.files.ignoreCorruptFiles": "true"}
    with configured(spark, ignored), pytest.raises(CorruptionError, match="cannot be read"):
        Pipeline("records", target, ingest=source).run(spark)
    assert lakelog.open(tmp_path / "t").to_polars().is_empty()


def test_values_of_csv_that_fit_are_read(either: Any, tmp_path: Path) -> None:
    given = {"d": "1.230", "f": "NaN", "x": "-Inf", "da": "2026-01-01", "s": "1.10"}
    times = {"ts": "2026-01-01 10:00:00.123456", "tn": "2026-01-01T10:00"}
    row = csv_rows(either, tmp_path / "a", given | times, timeZone="+02:00")
    assert math.isnan(row.pop("f"))
    assert row == {
        "d": Decimal("1.23"),
        "x": float("-inf"),
        "da": dt.date(2026, 1, 1),
        "ts": dt.datetime(2026, 1, 1, 8, 0, 0, 123456, dt.UTC),
        "tn": dt.datetime(2026, 1, 1, 10),
        "s": "1.10",
    }
    formats = {"dateFormat": "dd.MM.yyyy", "locale": "de-DE", "nanValue": "-"}
    row = csv_rows(
        either, tmp_path / "b", {"da": "02.01.2026", "d": "1.234,56", "x": "-"}, **formats
    )
    assert math.isnan(row.pop("x"))
    assert row == {"da": dt.date(2026, 1, 2), "d": Decimal("1234.56")}


def test_batch_is_written_once_and_with_the_columns_of_the_table(
    spark: Any, tmp_path: Path
) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64, "day": pl.Date}, ["day"])
    (tmp_path / "b.csv").write_text("id,day\n1,2026-01-01\n2,2026-01-02\n")

    def batch(number: int, **more: Any) -> Pipeline:
        source = {"format": "csv", "path": f"{tmp_path}/b.csv", "options": {"header": True}}
        ingest = Ingest(mode="batch", batch_id=number, **(source | more))
        return Pipeline("days", Target(path=f"{tmp_path}/t"), ingest=ingest)

    assert batch(5).run(spark)["ingest"].rows == 2
    again = batch(5).run(spark)["ingest"]
    assert (again.status, again.rows, again.version) == ("already done", 0, 1)
    assert batch(4).run(spark)["ingest"].status == "already done"
    (tmp_path / "b.csv").write_text("id,day\n3,2026-01-01\nx,2026-01-02\n")
    with pytest.raises(CorruptionError, match="cannot be read") as error:
        batch(6).run(spark)
    assert "NumberFormatException" in str(error.value.found)
    assert ids(tmp_path) == [1, 2]
    loose = {"enableDateTimeParsingFallback": True}
    for options in ({"mode": "PERMISSIVE"}, {"MODE": "dropMalformed"}, loose):
        with pytest.raises(InvalidInputError, match=r"option (mode|enabledate)"):
            batch(6, options=options).run(spark)
    refused: tuple[dict[str, Any], ...] = (
        loose,
        {"mode": "PERMISSIVE"},
        {"allowComments": True},
        {"encoding": "UTF-16"},
    )
    for options in refused:
        with pytest.raises(InvalidInputError, match="read strictly"):
            batch(6, format="json", options=options).run(spark)
    with pytest.raises(InvalidInputError, match="columns of the source"):
        batch(6, select="id").run(spark)
    assert table.version() == 1


def test_columns_of_a_created_table_are_nullable_and_keep_only_comments(
    spark: Any, tmp_path: Path
) -> None:
    source = spark.range(2).selectExpr("id", "struct(1 AS one) AS nested")
    kept = source.withMetadata("id", {"comment": "the number", "delta.columnMapping.id": 7})
    kept.write.parquet(f"{tmp_path}/raw")
    select = ["*", "'web' AS source"]
    ingest = Ingest(mode="batch", batch_id=1, format="parquet", path=f"{tmp_path}/raw")
    target = Target(path=f"{tmp_path}/t", create=True, storage_options={"unused": None})
    pipeline = described(tmp_path, table=target, ingest=replace(ingest, select=select))
    assert pipeline.run(spark, ["ingest"])["ingest"].rows == 2
    text = lakelog.open(tmp_path / "t").snapshot().metadata.schema_string
    fields = json.loads(str(text))["fields"]
    assert {f["name"]: f["metadata"] for f in fields} == {
        "id": {"comment": "the number"}, "nested": {}, "source": {}
    }  # fmt: skip
    assert all(f["nullable"] for f in [*fields, *fields[1]["type"]["fields"]])


def test_sink_has_the_options_of_the_store_with_their_types(tmp_path: Path) -> None:
    lakelog.create(tmp_path / "t", {"id": pl.Int64})
    given = {"timeout": 30, "anon": None, "maxRetries": "7", "on": True, "more": {"a": [1.5]}}
    session = MagicMock()
    target = Target(path=f"{tmp_path}/t", storage_options=given)
    step = Ingest(mode="batch", batch_id=1, format="parquet", path=f"{tmp_path}/raw")
    ingest(session, lakelog.open(tmp_path / "t"), step, target, "typed")
    writer = session.read.format.return_value.options.return_value.load.return_value.write
    passed = writer.format.return_value.options.call_args.kwargs
    assert all("secret" in name for name, value in passed.items() if "maxRetries" in value)
    options = parse_options({name.lower(): value for name, value in passed.items()}, "write")
    assert options.storage_options == given


def test_listing_by_executors_equals_the_local_one(spark: Any, tmp_path: Path) -> None:
    paths = ["a.parquet", "d=1/b.parquet", "d=1/e=2/c.parquet", "d=1/e=2/f/g.parquet"]
    paths += ["_change_data/x.parquet", "_delta_log/0.json", "d=\u00fc %/z.parquet"]
    for path in paths:
        file = tmp_path / "t" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "theirs.parquet").write_bytes(b"1")
    (tmp_path / "t" / "link").symlink_to(tmp_path / "elsewhere")
    store = lakelog.storage.open_store(os.fspath(tmp_path / "t"))
    walked = pl.DataFrame(
        [entry for batch in store.walk() for entry in batch],
        schema=["path", "size_bytes", "modified_ms"],
        orient="row",
    )
    expected = walked.filter(~pl.col("path").str.starts_with("_delta_log")).sort("path")
    sessions = [spark, Side(), Side()]
    for depth, session in enumerate(sessions):
        found = list_table(session, store, depth, "_delta_log", {})
        assert_frame_equal(found.sort("path"), expected)


def test_a_listing_by_executors_leaves_out_folders_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("d=1/e=2/a.parquet", "lost+found/x", "d=1/denied/x"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"12345")
    store = lakelog.storage.open_store(os.fspath(tmp_path))
    for folder in ("lost+found", "d=1/denied"):
        deny(monkeypatch, tmp_path / folder)
    for depth in range(4):
        found = list_table(Side(), store, depth, "_delta_log", {})
        assert found["path"].to_list() == ["d=1/e=2/a.parquet"], depth


def test_a_listing_by_executors_leaves_out_names_that_are_not_text(tmp_path: Path) -> None:
    try:
        for path in ("d=1/a.parquet", "d=1/\udcff.parquet", "d=\udcff/x", "d=1/\udcff/x"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(b"12345")
    except OSError:
        pytest.skip("the file system accepts UTF-8 only")
    store = lakelog.storage.open_store(os.fspath(tmp_path))
    for depth in range(4):
        found = list_table(Side(), store, depth, "_delta_log", {})
        assert found["path"].to_list() == ["d=1/a.parquet"], depth


def test_failed_jobs_raise_errors_of_lakelog(spark: Any, tmp_path: Path) -> None:
    table = small_files(tmp_path / "t", [some_rows(1), some_rows(2)])
    with table.transaction() as tx:  # the files are elsewhere, and their folder cannot be made
        files = tx.snapshot.files().collect()
        tx.remove(files)
        tx.add(files.with_columns(pl.format("old/{}", "path").alias("path")))
    (tmp_path / "t" / "old").mkdir()
    (tmp_path / "t" / "day=a").rename(tmp_path / "t" / "old" / "day=a")
    (tmp_path / "t" / "day=a").write_text("a file")
    with pytest.raises(UnavailableError, match=r"could not rewrite the files: .*Error"):
        Pipeline("c", Target(path=table.path), compact=Compact()).run(spark)

    def lost() -> None:
        raise RuntimeError("lost executor")

    with pytest.raises(UnavailableError, match="could not list the table: lost executor"):
        list_table(Side(lost), table.log.store, 1, "_delta_log", {})


def test_an_error_of_lakelog_in_a_process_of_spark_is_raised_as_itself() -> None:
    text = (
        "[STREAM_FAILED] Query terminated: Traceback (most recent call last):\n"
        '  File "x.py", line 30, in wrapped\n'
        "lakelog.errors.InvalidInputError: first\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "lakelog.errors.ConcurrentAppendError: a commit\nadded [path=/t, version=3] Next: retry\n"
        " SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\n\tat org.apache.X\n"
    )
    with pytest.raises(ConcurrentAppendError) as error, named("repair the file"):
        raise RuntimeError(text)
    assert error.value.message == "a commit\nadded [path=/t, version=3]"
    assert error.value.hint == "retry"
    for other in ("lakelog.errors.Unknown: x", "lakelog.errors.LakelogWarning: x", "x"):
        with pytest.raises(RuntimeError, match="x"), named("repair the file"):
            raise RuntimeError(other)


def test_all_steps_run_over_connect_and_the_stream_is_ingested_once(
    connect: Any, tmp_path: Path
) -> None:
    pipeline = described(tmp_path, checkpoint=Checkpoint(executors_from=1))
    raw = tmp_path / "raw"
    for number in range(3):
        write_events(raw, f"{number}.json", range(2 * number, 2 * number + 2))
    reported: list[tuple[str, int, int | None]] = []
    report = pipeline.run(connect, progress=lambda *each: reported.append(each))
    assert [each.step for each in report] == list(STEPS)
    assert (report["ingest"].rows, report["compact"].rows, report["compact"].files) == (6, 6, 2)
    assert "written by executors" in report["checkpoint"].notes[0]
    removed = report["compact"].removed
    assert {("ingest", 6, None), ("compact", removed, removed)} <= set(reported)
    assert ids(tmp_path) == list(range(6))
    assert lakelog.open(tmp_path / "t").verify().verdict == "proved"
    # A bad line stops the batch that it is in, and its repaired file is read once.
    write_events(raw, "3.json", range(6, 8))
    good = (raw / "3.json").read_text()
    (raw / "3.json").write_text(good + "{\n")
    with pytest.raises(CorruptionError, match="not one JSON object") as bad:
        pipeline.run(connect)
    assert (str(bad.value.path).endswith("raw/3.json"), bad.value.line) == (True, 3)
    assert ids(tmp_path) == list(range(6))
    (raw / "3.json").write_text(good)
    assert pipeline.run(connect, ["ingest"])["ingest"].rows == 2
    assert ids(tmp_path) == list(range(8))
    # A checkpoint of the stream that was lost is noticed.
    assert pipeline.ingest is not None
    lost = described(tmp_path, ingest=replace(pipeline.ingest, checkpoint=f"{tmp_path}/other"))
    with pytest.raises(StreamMismatchError, match="another checkpoint"):
        lost.run(connect, ["ingest"])
    assert ids(tmp_path) == list(range(8))


def test_batch_over_connect_is_written_once(connect: Any, tmp_path: Path) -> None:
    write_events(tmp_path / "raw", "a.json", range(2))
    ingest = Ingest(mode="batch", batch_id=1, format="json", path=f"{tmp_path}/raw", schema=COLUMNS)
    pipeline = described(tmp_path, ingest=ingest, table=Target(path=f"{tmp_path}/t", create=True))
    assert pipeline.run(connect, ["ingest"])["ingest"].rows == 2
    assert pipeline.run(connect, ["ingest"])["ingest"].status == "already done"
    assert ids(tmp_path) == [0, 1]


@pytest.mark.reference
def test_delta_reads_compacted_files_without_deleted_rows(delta: Any, tmp_path: Path) -> None:
    path = os.fspath(tmp_path / "t")
    delta.sql(
        f"CREATE TABLE delta.`{path}` (id BIGINT, p STRING) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    for begin in (0, 10):
        delta.range(begin, begin + 10).selectExpr("id", "'x' AS p").coalesce(1).write.format(
            "delta"
        ).mode("append").save(path)
    delta.sql(f"DELETE FROM delta.`{path}` WHERE id % 5 = 0")
    table = lakelog.open(path)
    assert table.snapshot().files().collect()["dvId"].null_count() == 0
    expected = [n for n in range(20) if n % 5]

    report = Pipeline("c", Target(path=path), compact=Compact()).run(delta)["compact"]
    assert (report.rows, report.files, report.removed) == (16, 1, 2)
    reported = table.history(limit=1).row(0, named=True)["operationMetrics"]
    assert reported["numDeletionVectorsRemoved"] == "2"
    read = delta.read.format("delta").load(path).orderBy("id").toArrow()
    assert read["id"].to_pylist() == expected == ids(tmp_path)

    # An unreadable file has a tag, which Delta keeps when it continues the table.
    before = set(live(table))
    delta.sql(f"INSERT INTO delta.`{path}` VALUES (100, 'x')")
    (bad,) = set(live(table)) - before
    whole = Path(path, bad).read_bytes()
    Path(path, bad).write_bytes(whole[:-10])
    pipeline = Pipeline("c", Target(path=path), compact=Compact(), checkpoint=Checkpoint())
    assert pipeline.run(delta)["compact"].skips == 1
    Path(path, bad).write_bytes(whole)
    delta.sql(f"DELETE FROM delta.`{path}` WHERE id = 1")
    read = delta.read.format("delta").load(path).orderBy("id").toArrow()
    assert read["id"].to_pylist() == [*expected[1:], 100] == ids(tmp_path)
    tags = dict(table.snapshot().files().select("path", "tags").collect().iter_rows())
    assert "lakelog.skip" in tags[bad]
    assert pipeline.run(delta)["compact"].skips == 0
    assert bad in live(table)
