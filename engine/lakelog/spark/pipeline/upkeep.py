"""The steps ``checkpoint``, ``cleanup`` and ``vacuum``.

The driver lists the folders above the partition folders, and the files directly in them. Executors
list everything below the partition folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from lakelog.errors import LakelogError, UnavailableError
from lakelog.spark.error_display import job_failure
from lakelog.spark.pipeline.steps import StepReport
from lakelog.storage import LogStore, open_store
from lakelog.storage.base import FileEntry, absolute_root_of, is_denied, tree_of
from lakelog.storage.bounded import unbounded
from lakelog.storage.local import LocalStore
from lakelog.table import Table

if TYPE_CHECKING:
    from lakelog.spark.pipeline.steps import Checkpoint, Cleanup, Vacuum
    from lakelog.telemetry import Progress


_LISTED_SCHEMA = "path string, size_bytes long, modified_ms long"
_ARROW = pa.schema([("path", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())])
_FOLDERS_A_TASK = 64
_MOST_TASKS = 1_000


@dataclass(frozen=True)
class Lister:
    """Lists folders; Spark calls it with batches of their names."""

    location: str
    storage_options: Mapping[str, Any] = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Files, relative to the table. Memory: a batch of some thousand."""
        store = open_store(self.location, dict(self.storage_options))
        for batch in batches:
            for folder in batch.column(0).to_pylist():
                # The driver reports the folders that cannot be read.
                for part in tree_of(store, folder):
                    yield _batch(part.files, f"{folder}/")


def _batch(entries: Iterable[FileEntry], prefix: str) -> pa.RecordBatch:
    # A name that is not valid text cannot be in a log, and cannot be sent to the driver.
    rows = [(prefix + e.name, e.size_bytes, e.modified_ms) for e in entries if _is_text(e.name)]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)]
    return pa.record_batch(arrays, schema=_ARROW)


def _is_text(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name)


def list_table(
    spark: Any, store: LogStore, depth: int, log_folder: str, storage_options: Mapping[str, Any]
) -> pl.DataFrame:
    """Every file of a table's folder except its log; on the driver about 150 bytes per file."""
    own = unbounded(store)
    leaves, above = _folders(own, depth, log_folder)
    listed = [
        pa.Table.from_batches([_batch(own.list_from(f), f"{f}/" if f else "")]) for f in above
    ]
    if leaves:
        location = absolute_root_of(own)
        frame = spark.createDataFrame(pa.table({"folder": pa.array(leaves, pa.string())}))
        tasks = min(_MOST_TASKS, -(-len(leaves) // _FOLDERS_A_TASK))
        found = frame.repartition(tasks).mapInArrow(
            Lister(location, dict(storage_options)), _LISTED_SCHEMA
        )
        try:
            files = found.toArrow()
        except LakelogError:
            raise
        except Exception as cause:
            raise UnavailableError(
                f"executors could not list the table: {job_failure(cause)}",
                path=location,
                hint="nothing was deleted; try again",
            ) from cause
        listed.append(files.cast(_ARROW))
    return pl.DataFrame(pa.concat_tables(listed))


def _folders(store: LogStore, depth: int, log_folder: str) -> tuple[list[str], list[str]]:
    """Folders that executors list recursively, and the folders above them."""
    above, level = [], [""]
    for _ in range(max(1, depth)):
        named = [
            (folder, names) for folder in level if (names := _names(store, folder)) is not None
        ]
        above += [folder for folder, _ in named]
        level = [
            path
            for folder, names in named
            for name in names
            if (path := f"{folder}/{name}" if folder else name) != log_folder
            and _is_text(name)
            and not _is_link(store, path)
        ]
    return level, above


def _names(store: LogStore, folder: str) -> list[str] | None:
    """The folders in a folder; None if it cannot be read, which the plan reports."""
    try:
        return store.list_folders(folder)
    except UnavailableError as error:
        if folder and is_denied(error):
            return None
        raise


def _is_link(store: LogStore, folder: str) -> bool:
    """Whether a local folder is a symbolic link; links are never followed."""
    return isinstance(store, LocalStore) and os.path.islink(store.path_of(folder))


_SHOWN = 5


def checkpoint(
    spark: Any,
    table: Table,
    step: Checkpoint,
    storage_options: Mapping[str, Any],
    progress: Progress | None = None,
) -> StepReport:
    """Write the checkpoint of the latest version, unless a valid one exists."""
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
    """Delete log files that no version within the retention needs."""
    plan = table.cleanup(retention=step.retention, quarantine=step.quarantine)
    report = plan.apply(progress) if (plan.files["action"] != "keep").any() else None
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
    notes = (
        f"{inventory.height:,} files listed",
        *(f"not readable: {folder}" for folder in plan.unreadable),
    )
    if not plan.files.height:
        return StepReport("vacuum", "nothing to do", version=plan.version, notes=notes)
    report = plan.apply(progress)
    return StepReport(
        "vacuum",
        "done",
        bytes=report.size_bytes,
        removed=report.deleted,
        skips=len(report.errors),
        version=report.version,
        notes=notes + _errors(report.errors),
    )


def _errors(errors: tuple[LakelogError, ...]) -> tuple[str, ...]:
    return tuple(f"not deleted: {error.path}: {error.message}" for error in errors[:_SHOWN])
