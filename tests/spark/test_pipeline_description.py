"""The description of a pipeline, in Python and in TOML, and the errors of wrong ones."""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lakelog import InvalidInputError, NotFoundError
from lakelog.spark import Pipeline
from lakelog.spark.pipeline import (
    Checkpoint,
    Cleanup,
    Compact,
    Ingest,
    PipelineReport,
    StepReport,
    Target,
    Vacuum,
)

WHOLE = """
name = "clicks"

[table]
path = "lake/clicks"
create = true
partition_by = ["day"]
storage_options = {key = "secret"}

[spark]
master = "local[2]"
"spark.driver.memory" = "2g"

[ingest]
format = "json"
path = "raw"
schema = "id bigint, at timestamp"
select = ["*", "to_date(at) AS day"]
checkpoint = "progress"
options = {maxFilesPerTrigger = 100, recursiveFileLookup = true}

[compact]
target_bytes = "64MB"
cooldown = "2 hours"

[checkpoint]
[cleanup]
retention = "30 days"

[vacuum]
keep_versions = [3]
"""


def from_text(tmp_path: Path, text: str) -> Pipeline:
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    return Pipeline.from_toml(file)


def test_toml_file_supports_all_options_of_python(tmp_path: Path) -> None:
    pipeline = from_text(tmp_path, WHOLE)
    assert pipeline.steps == ("ingest", "compact", "checkpoint", "cleanup", "vacuum")
    assert pipeline.ingest == Ingest(
        format="json",
        path="raw",
        schema="id bigint, at timestamp",
        select=("*", "to_date(at) AS day"),
        checkpoint="progress",
        options={"maxFilesPerTrigger": "100", "recursiveFileLookup": "true"},
    )
    assert pipeline.compact == Compact(target_bytes=64 << 20, cooldown=7_200_000)
    assert pipeline.cleanup == Cleanup(retention=30 * 86_400_000)
    assert pipeline.vacuum == Vacuum(keep_versions=[3])
    assert dict(pipeline.spark) == {"master": "local[2]", "spark.driver.memory": "2g"}
    assert pipeline.table.storage_options == {"key": "secret"}
    assert "secret" not in repr(pipeline)


SECRET = "hunter2"


def test_secrets_of_a_pipeline_are_not_shown() -> None:
    target = Target(path=f"s3://me:{SECRET}@bucket/t")
    options = {"kafka.sasl.jaas.config": f"x {SECRET}", "storage.key": SECRET}
    source = Ingest(format="kafka", checkpoint=f"s3://me:{SECRET}@bucket/c", options=options)
    spark = {"spark.hadoop.fs.s3a.secret.key": SECRET}
    shown = repr(Pipeline("n", target, ingest=source, spark=spark))
    assert SECRET not in shown
    assert "bucket/t" in shown
    report = PipelineReport("n", target.path)
    assert SECRET not in f"{report} {report._repr_html_()}"
    assert report.table == target.path
    wrong: Any = spark | {"x": 1}
    malformed: list[Callable[[], Any]] = [
        lambda: Ingest(format="kafka", checkpoint="c", options={"x": [SECRET], "y": 1}),
        lambda: Pipeline("n", target, vacuum=Vacuum(), spark=wrong),
    ]
    for make, names in zip(malformed, ("x, y", "x"), strict=True):
        with pytest.raises(InvalidInputError) as caught:
            make()
        assert caught.value.found == names
        assert SECRET not in "".join(traceback.format_exception(caught.value))


TABLE = 'name = "n"\n[table]\npath = "t"\n'
STREAM = '[ingest]\nformat = "json"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "not valid TOML"),
        ('[table]\npath = "t"\n[vacuum]', "lacks a required key.*expected=name"),
        ('name = "n"\n[vacuum]', "lacks a required key.*expected=table"),
        ('name = ""\n[table]\npath = "t"\n[vacuum]', "has no name"),
        (TABLE, "no step"),
        (TABLE + "[vacum]", "the pipeline has an unknown key vacum.*did you mean vacuum"),
        ('name = "n"\ntable = "t"\n[vacuum]', r"table must be a section"),
        ('name = "n"\n[table]\n[vacuum]', r"\[table\] lacks a required key.*expected=path"),
        (TABLE + 'partition_by = ["a"]\n[vacuum]', "create = true"),
        (TABLE + "storage_options = 7\n[vacuum]", r"\[table\] storage_options is malformed"),
        (TABLE + '[compact]\ntarget = "1MB"', "unknown key target.*did you mean target_bytes"),
        (TABLE + '[compact]\ntarget_bytes = "much"', r"\[compact\] target_bytes is malformed"),
        (TABLE + "[compact]\ntarget_bytes = 0", "target_bytes is malformed"),
        (TABLE + "[compact]\ndeleted_share = 2", "deleted_share is malformed"),
        (TABLE + '[compact]\ncooldown = "soon"', "cooldown is malformed"),
        (TABLE + "[vacuum]\nkeep_history = 1", "keep_history is malformed"),
        (TABLE + '[vacuum]\nkeep_versions = "1"', "keep_versions is malformed"),
        (TABLE + STREAM, "needs checkpoint"),
        (TABLE + STREAM + 'checkpoint = "c"\nbatch_id = 1', "does not allow batch_id"),
        (TABLE + STREAM + 'checkpoint = "c"\npath = ["a", "b"]', "one path"),
        (TABLE + STREAM + 'mode = "batch"', "needs batch_id"),
        (TABLE + STREAM + 'mode = "often"', "mode is malformed"),
        (TABLE + STREAM + 'checkpoint = "c"\noptions = {a = []}', "options is malformed"),
        (TABLE + "[spark]\na = 1\n[vacuum]", r"\[spark\] must contain strings"),
        ('spark = "s"\n' + TABLE + "[vacuum]", "spark must be a section"),
    ],
)
def test_error_of_an_invalid_file_names_the_problem(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message) as error:
        from_text(tmp_path, text)
    assert error.value.path is not None
    assert error.value.path.endswith("pipeline.toml")


def test_missing_file_raises_not_found_error() -> None:
    with pytest.raises(NotFoundError, match="pipeline was not found"):
        Pipeline.from_toml("nowhere.toml")


def test_store_options_that_spark_cannot_hold_are_refused_without_their_values() -> None:
    options = {"account_name": "a", "nested": {"credential": b"Zm9vYmFy"}}
    target = Target(path="t", storage_options=options)
    source = Ingest(format="csv", path="raw", mode="batch", batch_id=1)
    with pytest.raises(InvalidInputError, match="storage_options nested") as error:
        Pipeline("n", target, ingest=source)
    assert "a value of type dict" in str(error.value)
    assert "Zm9vYmFy" not in str(error.value)
    assert Pipeline("n", target, compact=Compact()).table.storage_options == options


def test_unknown_step_is_refused_before_a_session_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = importlib.import_module("lakelog.spark.session")  # not the function of that name
    monkeypatch.setattr(session, "active_session", pytest.fail)
    pipeline = Pipeline("n", Target(path="t"), vacuum=Vacuum())
    with pytest.raises(InvalidInputError, match="no such step"):
        pipeline.run(only=["compact"])
    with pytest.raises(InvalidInputError, match="found=compact"):
        pipeline.run(only="compact")
    assert pipeline.chosen("vacuum") == pipeline.chosen(["vacuum"]) == ("vacuum",)


def test_report_has_text_html_and_a_frame() -> None:
    skip = StepReport("compact", "done", 10, 2, 2048, 5, 1, 0.25, 7, ("a.parquet: is <gone>",))
    report = PipelineReport("n", "t", (StepReport("ingest", "nothing to do", version=6), skip))
    assert report["compact"] is skip
    with pytest.raises(KeyError):
        report["vacuum"]
    assert not report.is_complete
    lines = str(report).splitlines()
    assert lines[0] == "Pipeline n: t"
    assert lines[3].split() == ["compact", "done", "10", "2", "2.0", "KiB", "5", "1", "0.2", "7"]
    assert lines[4] == "compact: a.parquet: is <gone>"
    assert "is &lt;gone&gt;" in report._repr_html_()
    frame = report.to_polars()
    assert frame.select("step", "skips", "notes").rows() == [
        ("ingest", 0, []),
        ("compact", 1, ["a.parquet: is <gone>"]),
    ]
    assert PipelineReport("n", "t").to_polars().schema == frame.schema
    assert frame.schema["notes"] == pl.List(pl.String)


def test_page_lists_exactly_the_supported_keys(repository: Path) -> None:
    page = (repository / "schemas" / "pipeline.md").read_text("utf-8")
    for section in (Target, Ingest, Compact, Checkpoint, Cleanup, Vacuum):
        table = page.partition(f"| `[{section.section}]` |")[2].partition("\n\n")[0]
        named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
        assert named == [field.name for field in fields(section)]
