"""`lakelog spark run`: output and exit codes; the pipeline itself is tested on Spark."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lakelog import MissingDependencyError, TableNotFoundError, create
from lakelog.spark.pipeline import Pipeline, PipelineReport, StepReport
from lakelog.spark.session import errors_unlogged
from tests.cli.conftest import Call

# `lakelog.spark.session` is also the name of a function.
SESSIONS = importlib.import_module("lakelog.spark.session")
TOML = 'name = "n"\n[table]\npath = "{path}"\n[compact]\n[vacuum]\n'


class Session:
    """A session that records whether it was stopped."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """The session of a pipeline without an existing session."""
    made = Session()
    monkeypatch.setattr(SESSIONS, "active_session", lambda: None)
    monkeypatch.setattr(Pipeline, "session", lambda *_: made)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "pipeline.toml"
    create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)
    file.write_text(TOML.format(path=tmp_path / "t"))
    return file


def stub_run(monkeypatch: pytest.MonkeyPatch, *steps: StepReport) -> list[Any]:
    asked: list[Any] = []

    def run(self: Pipeline, spark: Any, only: Any, progress: Any) -> PipelineReport:
        assert isinstance(spark, Session)
        progress("compact", 1, 2)
        asked.append(only)
        return PipelineReport(self.name, self.table.path, steps)

    monkeypatch.setattr(Pipeline, "run", run)
    return asked


def test_run_is_reported_as_a_table_and_as_json(
    lakelog: Call, session: Session, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = StepReport(
        "compact", "done", rows=9, files=1, bytes=2048, removed=3, version=4, notes=("well",)
    )
    asked = stub_run(monkeypatch, done)
    outcome = lakelog("spark", "run", file)
    assert outcome.code == 0
    assert "compact: well" in outcome.text
    assert "1 step" in outcome.text
    assert "2.0 KiB" in outcome.text
    assert session.stopped
    outcome = lakelog("spark", "run", file, "--only", "compact", "--output", "json")
    (row,) = json.loads(outcome.text)
    assert (row["step"], row["rows"], row["version"], row["notes"]) == ("compact", 9, 4, ["well"])
    assert asked == [None, ("compact",)]


def test_skipped_file_is_a_finding(
    lakelog: Call, session: Session, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_run(monkeypatch, StepReport("compact", "done", skips=1))
    assert lakelog("spark", "run", file).code == 1


def test_missing_pipeline_file_exits_with_1_and_an_invalid_one_with_2(
    lakelog: Call, session: Session, tmp_path: Path
) -> None:
    outcome = lakelog("spark", "run", tmp_path / "none.toml")
    assert (outcome.code, "not found" in outcome.errors) == (1, True)
    (tmp_path / "p.toml").write_text(TOML + "[compakt]")
    outcome = lakelog("spark", "run", tmp_path / "p.toml")
    assert (outcome.code, "did you mean compact" in outcome.errors) == (2, True)


def test_a_missing_table_is_reported_before_a_session_starts(
    lakelog: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: Any) -> None:
        pytest.fail("a session was started")

    monkeypatch.setattr(SESSIONS, "active_session", started)
    monkeypatch.setattr(Pipeline, "session", started)
    file = tmp_path / "pipeline.toml"
    file.write_text(TOML.format(path=tmp_path / "missing"))
    outcome = lakelog("spark", "run", file)
    assert (outcome.code, "the folder does not exist or is empty" in outcome.errors) == (1, True)
    pipeline = Pipeline.from_toml(file)
    with pytest.raises(TableNotFoundError):
        pipeline.run()


def test_missing_pyspark_is_reported_with_the_install_command(
    lakelog: Call, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingDependencyError(
            "PySpark is not installed", hint="pip install 'lakelog[spark]'"
        )

    monkeypatch.setattr(SESSIONS, "active_session", missing)
    outcome = lakelog("spark", "run", file)
    assert (outcome.code, "lakelog[spark]" in outcome.errors) == (1, True)


@pytest.mark.parametrize(
    ("name", "text", "code", "expected"),
    [
        (
            "AnalysisException",
            "[UNRESOLVED_COLUMN] There is no `idd`. SQLSTATE: 42703; line 1\n'Project ['idd]",
            2,
            "Spark cannot run the pipeline: [UNRESOLVED_COLUMN] There is no `idd`.",
        ),
        (
            "Py4JJavaError",
            "An error occurred.\n: java.X: no jsonn. SQLSTATE: 42K02\n\tat a.b",
            2,
            "Spark cannot run the pipeline: java.X: no jsonn.",
        ),
        (
            "PythonException",
            "It failed:\nTraceback (most recent call last):\n  File\nNotFoundError: gone [p]\n",
            1,
            "Spark failed: NotFoundError: gone [p]",
        ),
        ("Py4JNetworkError", "", 1, "Spark failed: Py4JNetworkError"),
    ],
)
def test_spark_error_is_reported_in_one_sentence(
    name: str,
    text: str,
    code: int,
    expected: str,
    lakelog: Call,
    session: Session,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind = type(name, (Exception,), {"__module__": "pyspark.errors"})

    def run(*_: Any) -> None:
        error: Exception = kind(text)
        error.add_note("lakelog: steps before compact: ingest: done")
        raise error

    monkeypatch.setattr(Pipeline, "run", run)
    outcome = lakelog("spark", "run", file)
    assert (outcome.code, session.stopped) == (code, True)
    assert f"lakelog: {expected}" in outcome.errors
    assert "steps before compact: ingest: done" in outcome.errors
    assert "unexpected" not in outcome.errors


def test_failed_session_start_is_reported_in_one_sentence(
    lakelog: Call, session: Session, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any) -> None:
        kind = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
        failed: Exception = kind("An error occurred.\n: org.X: Could not parse Master URL: 'loco'")
        raise failed

    monkeypatch.setattr(Pipeline, "session", start)
    outcome = lakelog("spark", "run", file)
    assert (outcome.code, session.stopped) == (1, False)
    assert "Spark failed: org.X: Could not parse Master URL: 'loco'" in outcome.errors


def test_reported_spark_error_is_not_logged_too(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    with errors_unlogged():
        assert logger.disabled
        logger.error("hidden")
    assert not logger.disabled
    assert "hidden" not in capsys.readouterr().err


def test_the_help_of_run_explains_every_option(lakelog: Call) -> None:
    outcome = lakelog("spark", "run", "--help")
    assert outcome.code == 0
    for words in ("FILE", "--only", "--output", "pipeline.toml"):
        assert words in outcome.text
