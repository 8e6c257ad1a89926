"""Telemetry of lakelog: log lines, and spans and metrics if OpenTelemetry is configured."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import lakelog
from lakelog import telemetry


@pytest.fixture(scope="module")
def readers() -> tuple[InMemorySpanExporter, InMemoryMetricReader]:
    """A program's providers can be set only once."""
    spans, numbers = InMemorySpanExporter(), InMemoryMetricReader()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(tracing)
    metrics.set_meter_provider(MeterProvider([numbers]))
    return spans, numbers


@pytest.fixture
def spans(
    readers: tuple[InMemorySpanExporter, InMemoryMetricReader],
) -> Iterator[InMemorySpanExporter]:
    yield readers[0]
    readers[0].clear()


def points(reader: InMemoryMetricReader, name: str) -> dict[tuple[tuple[str, object], ...], Any]:
    """Data points of one metric, by attributes."""
    data = reader.get_metrics_data()
    assert data is not None
    found = [
        point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]
    return {tuple(sorted((point.attributes or {}).items())): point for point in found}


def test_an_event_is_one_structured_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lakelog"):
        telemetry.event("checkpoint.created", version=10, path="a b=c", seconds=0.5, parts=None)
    (record,) = caplog.records
    assert record.getMessage() == 'checkpoint.created version=10 path="a b=c" seconds=0.5'
    assert record.__dict__["event"] == "checkpoint.created"
    assert record.__dict__["fields"] == {"version": 10, "path": "a b=c", "seconds": 0.5}
    assert record.filename == "test_telemetry.py"


def test_a_value_with_a_line_break_stays_on_one_line() -> None:
    assert telemetry.line("x", {"why": 'a\n"b"', "empty": ""}) == 'x why="a\\n\\"b\\"" empty=""'


def test_telemetry_prints_nothing_and_does_not_import_opentelemetry_by_default() -> None:
    program = (
        "import logging, sys; from lakelog import telemetry;"
        "telemetry.event('x', logging.ERROR, a=1);"
        "telemetry.count('x'); telemetry.record('y', 1.0, 's');\n"
        "with telemetry.span('z'): pass\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_provider_in_the_environment_enables_telemetry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(telemetry._API, "trace", ("no.such.module", "LAKELOG_TEST_PROVIDER"))
    assert not telemetry._listens("trace")
    monkeypatch.setenv("LAKELOG_TEST_PROVIDER", "sdk")
    assert not telemetry._listens("trace")  # a missing package is not an error
    monkeypatch.setitem(telemetry._API, "trace", ("opentelemetry.trace", "LAKELOG_TEST_PROVIDER"))
    assert telemetry._listens("trace")


def test_span_records_its_attributes_and_duration(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "lakelog"), telemetry.span("outer", version=1) as outer:
        with telemetry.span("inner"):
            pass
        outer.set(size_bytes=5, path=None, ranges=[1, 2])
    inner_span, outer_span = spans.get_finished_spans()
    assert (inner_span.name, outer_span.name) == ("lakelog.inner", "lakelog.outer")
    assert inner_span.parent is not None
    assert inner_span.parent.span_id == outer_span.context.span_id
    assert dict(outer_span.attributes or {}) == {"version": 1, "size_bytes": 5, "ranges": "[1, 2]"}
    assert outer.seconds > 0
    assert caplog.messages[1].startswith('outer version=1 size_bytes=5 ranges="[1, 2]" seconds=')


def test_span_records_the_error_and_does_not_suppress_it(
    spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        with telemetry.span("work"):
            raise KeyError("x")

    with caplog.at_level(logging.DEBUG, "lakelog"), pytest.raises(KeyError):
        fail()
    (finished,) = spans.get_finished_spans()
    assert not finished.status.is_ok
    assert caplog.messages[0].endswith("error=KeyError")


def test_span_contains_no_secret_of_an_error(spans: InMemorySpanExporter) -> None:
    text = "GET https://user:S3cr3t@host?sig=S3cr3t failed"

    def fail() -> None:
        with telemetry.span("work", path="s3://user:S3cr3t@bucket/t"):
            raise PermissionError(text)

    with pytest.raises(PermissionError):
        fail()
    (finished,) = spans.get_finished_spans()
    assert not finished.status.is_ok
    assert "S3cr3t" not in finished.to_json()


def test_counters_add_up_by_attribute(
    readers: tuple[InMemorySpanExporter, InMemoryMetricReader],
) -> None:
    telemetry.count("test.files", 2, kind="commit")
    telemetry.count("test.files", kind="commit")
    telemetry.count("test.files", 5, kind="crc", note=None)
    found = points(readers[1], "lakelog.test.files")
    assert found[("kind", "commit"),].value == 3
    assert found[("kind", "crc"),].value == 5


def test_histograms_keep_count_and_sum(
    readers: tuple[InMemorySpanExporter, InMemoryMetricReader],
) -> None:
    telemetry.record("test.duration", 0.5, "s", source="json")
    telemetry.record("test.duration", 1.5, "s", source="json")
    point = points(readers[1], "lakelog.test.duration")[("source", "json"),]
    assert (point.count, point.sum) == (2, 2.0)


def test_table_records_spans_metrics_and_log_lines(
    tmp_path: Path,
    readers: tuple[InMemorySpanExporter, InMemoryMetricReader],
    spans: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = lakelog.create(tmp_path / "t", pl.Schema({"id": pl.Int64()}))
    for version in range(3):
        with table.transaction() as tx:
            tx.add(path=f"f{version}", size=1, modificationTime=1)
    with caplog.at_level(logging.INFO, "lakelog"):
        table.snapshot().files().collect()
        table.checkpoint()
        table.snapshot().files().collect()
        table.snapshot()
    names = {span.name for span in spans.get_finished_spans()}
    assert {"lakelog.load", "lakelog.load.files", "lakelog.checkpoint.write"} <= names
    loads = points(readers[1], "lakelog.load.duration")
    kinds = {(dict(key)["source"], dict(key)["stage"]) for key in loads}
    assert kinds == {(s, t) for s in ("json", "checkpoint") for t in ("open", "files")}
    lookups = points(readers[1], "lakelog.cache.lookups")
    assert {dict(key)["cache"] for key in lookups} >= {"protocol", "metadata", "versions"}
    for name in ("created", "duration", "size", "compression_ratio"):
        assert points(readers[1], f"lakelog.checkpoint.{name}"), name
    (finished,) = [line for line in caplog.messages if line.startswith("checkpoint.created ")]
    assert " version=3 " in f"{finished} "
