"""The steps ``checkpoint``, ``cleanup`` and ``vacuum``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakelog.spark.pipeline.listing import list_table
from lakelog.spark.pipeline.report import StepReport
from lakelog.table import Table

if TYPE_CHECKING:
    from lakelog.errors import LakelogError
    from lakelog.spark.pipeline.steps import Checkpoint, Cleanup, Vacuum
    from lakelog.telemetry import Progress

_SHOWN = 5


def checkpoint(
    spark: Any,
    table: Table,
    step: Checkpoint,
    storage_options: Mapping[str, Any],
    progress: Progress | None = None,
) -> StepReport:
    """Write the checkpoint of the latest version, unless a valid one is there."""
    files = table.snapshot().num_files()
    if files >= step.executors_from:
        from lakelog.spark.checkpoint import checkpoint as distributed

        report = distributed(
            spark, table, layout=step.layout, storage_options=dict(storage_options)
        )
    else:
        report = table.checkpoint(layout=step.layout, progress=progress)
    if report.reused:
        return StepReport("checkpoint", "nothing to do", version=report.version)
    where = "by executors" if files >= step.executors_from else "by the driver"
    return StepReport(
        "checkpoint",
        "done",
        rows=report.num_actions,
        files=report.parts - report.reused_files,
        bytes=report.size_bytes,
        version=report.version,
        notes=(f"{report.layout}, written {where}", *report.notes),
    )


def cleanup(table: Table, step: Cleanup, progress: Progress | None = None) -> StepReport:
    """Delete log files that no promised version needs."""
    plan = table.cleanup(retention=step.retention, quarantine=step.quarantine)
    report = plan.apply(progress) if _may_go(plan.files) else None
    notes: tuple[str, ...] = ()
    if plan.gate is not None:
        notes = (f"{plan.gate}: {plan.why}",)
    if report is None:
        return StepReport("cleanup", "nothing to do", version=table.version(), notes=notes)
    if report.quarantine is not None:
        notes += (f"moved to quarantine {report.quarantine}",)
    return StepReport(
        "cleanup",
        "done" if report.files.height else "nothing to do",
        bytes=report.size_bytes,
        removed=report.files.height,
        skips=len(report.errors),
        version=table.version(),
        notes=notes + _errors(report.errors),
    )


def _may_go(files: Any) -> bool:
    return bool(files.height) and bool((files["action"] != "keep").any())


def vacuum(
    spark: Any,
    table: Table,
    step: Vacuum,
    storage_options: Mapping[str, Any],
    progress: Progress | None = None,
) -> StepReport:
    """Delete data files that no retained version needs; executors list them."""
    depth = len(table.snapshot().metadata.partition_columns)
    log = table.log
    inventory = list_table(spark, log.store, depth, log.dialect.log_folder, storage_options)
    plan = table.vacuum(
        retention=step.retention,
        keep_versions=tuple(step.keep_versions),
        keep_history=step.keep_history,
        inventory=inventory,
        progress=progress,
    )
    note = f"{inventory.height:,} files listed"
    if not plan.files.height:
        return StepReport("vacuum", "nothing to do", version=plan.version, notes=(note,))
    report = plan.apply(progress)
    return StepReport(
        "vacuum",
        "done",
        bytes=report.size_bytes,
        removed=report.deleted,
        skips=len(report.errors),
        version=report.version,
        notes=(note, *_errors(report.errors)),
    )


def _errors(errors: tuple[LakelogError, ...]) -> tuple[str, ...]:
    return tuple(f"not deleted: {error.path}: {error.message}" for error in errors[:_SHOWN])
