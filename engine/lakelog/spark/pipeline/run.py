"""Runs the steps of a pipeline in order."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakelog import telemetry
from lakelog.errors import TableNotFoundError
from lakelog.spark.pipeline.compact import compact
from lakelog.spark.pipeline.ingest import ingest
from lakelog.spark.pipeline.report import PipelineReport, StepReport
from lakelog.spark.pipeline.upkeep import checkpoint, cleanup, vacuum
from lakelog.spark.session import register
from lakelog.table import Table
from lakelog.table import open as open_table

if TYPE_CHECKING:
    from lakelog.spark.pipeline.description import Pipeline
    from lakelog.telemetry import Progress


def run(
    pipeline: Pipeline,
    spark: Any,
    only: tuple[str, ...],
    progress: Progress | None,
    clock: Callable[[], int] | None,
) -> PipelineReport:
    """Run steps of a pipeline; see `lakelog.spark.pipeline.Pipeline.run`."""
    register(spark)
    done: list[StepReport] = []
    for step in pipeline.steps:
        if step in only:
            begin = time.perf_counter()
            try:
                report = _step(pipeline, step, spark, progress, clock)
            except Exception as error:
                if done:
                    told = ", ".join(f"{each.step}: {each.status}" for each in done)
                    error.add_note(f"lakelog: steps before {step}: {told}")
                raise
            report = replace(report, seconds=round(time.perf_counter() - begin, 3))
            telemetry.event(
                "pipeline.step",
                pipeline=pipeline.name,
                step=step,
                status=report.status,
                rows=report.rows,
                files=report.files,
                size_bytes=report.bytes,
                skips=report.skips,
                seconds=report.seconds,
            )
            done.append(report)
    return PipelineReport(pipeline.name, pipeline.table.path, tuple(done))


def _step(
    pipeline: Pipeline,
    step: str,
    spark: Any,
    progress: Progress | None,
    clock: Callable[[], int] | None,
) -> StepReport:
    target = pipeline.table
    options = dict(target.storage_options)
    if step == "ingest":
        assert pipeline.ingest is not None
        return ingest(
            spark, _there(pipeline, clock), pipeline.ingest, target, pipeline.name, progress
        )
    table = _opened(pipeline, clock)
    if step == "compact":
        assert pipeline.compact is not None
        return compact(spark, table, pipeline.compact, options, progress)
    if step == "checkpoint":
        assert pipeline.checkpoint is not None
        return checkpoint(spark, table, pipeline.checkpoint, options, progress)
    if step == "cleanup":
        assert pipeline.cleanup is not None
        return cleanup(table, pipeline.cleanup, progress)
    assert pipeline.vacuum is not None
    return vacuum(spark, table, pipeline.vacuum, options, progress)


def _opened(pipeline: Pipeline, clock: Callable[[], int] | None) -> Table:
    # The steps maintain the log themselves.
    target = pipeline.table
    table = open_table(
        target.path,
        dict(target.storage_options),
        upkeep=False,
        allow_external=target.allow_external,
    )
    return table if clock is None else Table(replace(table.log, clock=clock))


def _there(pipeline: Pipeline, clock: Callable[[], int] | None) -> Table | None:
    """The table, or None if the pipeline will create it."""
    try:
        return _opened(pipeline, clock)
    except TableNotFoundError as error:
        if pipeline.table.create:
            return None
        error.hint = "set create = true in [table] to create it with the ingested columns"
        raise
