"""The step ``compact``: `lakelog.data.compact`, with executors that rewrite the bins.

A killed run leaves complete commits, and files that are in no commit, which vacuum deletes; the
next run plans from the latest version. If a task fails, the files of finished tasks are deleted.
Spark does not wait for the other tasks: files that they create later are left for vacuum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from lakelog.data.bin_rewrite import BinResult, BinRewriter
from lakelog.data.compact import Compaction, CompactReport, compact_bins
from lakelog.data.row_commit import discard_unnamed
from lakelog.errors import LakelogError, UnavailableError
from lakelog.log.context import Log
from lakelog.model.durations import to_duration_ms
from lakelog.spark.error_display import job_failure
from lakelog.spark.pipeline.steps import Compact, StepReport, to_bytes
from lakelog.spark.reading import serialize_frame, unpack
from lakelog.storage.bounded import open_bounded
from lakelog.table import Table

if TYPE_CHECKING:
    from lakelog.telemetry import Progress

STEP = "compact"
_BIN = "bin"
_SHOWN = 5

_REWRITTEN_SCHEMA = "bin int, done boolean, adds binary, unread binary, rows long"
"""Result of a task per bin, as Spark's schema: whether it was rewritten, the new files, and the
files that could not be read, both as Arrow bytes.
"""

_ANSWER = pa.schema(
    [
        ("bin", pa.int32()),
        ("done", pa.bool_()),
        ("adds", pa.binary()),
        ("unread", pa.binary()),
        ("rows", pa.int64()),
    ]
)


@dataclass(frozen=True)
class _RewriteTask:
    """Called by Spark with batches of ``bin`` (int32) and ``files`` (Arrow bytes)."""

    rewriter: BinRewriter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row per bin."""
        source = self.rewriter.source
        store = open_bounded(source.location, source.storage_options, source.limits)
        for batch in batches:
            for number, files in zip(*(column.to_pylist() for column in batch), strict=True):
                made = self.rewriter.rewrite(number, unpack(files), store)
                adds = b"" if made.adds is None else serialize_frame(made.adds)
                row = (number, made.adds is not None, adds, serialize_frame(made.unread), made.rows)
                columns = [pa.array([v], f.type) for v, f in zip(row, _ANSWER, strict=True)]
                yield pa.record_batch(columns, schema=_ANSWER)


def compact(
    spark: Any,
    table: Table,
    step: Compact,
    storage_options: Mapping[str, Any],
    progress: Progress | None = None,
) -> StepReport:
    """Rewrite the current small files until no candidate is left; the driver lists live files."""

    def run(
        rewriter: BinRewriter, parts: Sequence[tuple[int, pl.DataFrame]]
    ) -> Mapping[int, BinResult]:
        """Run the rewrite on executors with one Spark action: a second one would repeat it."""
        numbers = [number for number, _ in parts]
        columns = rewriter.source.file_columns
        work = pa.table(
            {
                _BIN: pa.array(numbers, pa.int32()),
                "files": pa.array(
                    [serialize_frame(part.select(columns)) for _, part in parts], pa.binary()
                ),
                "part": pa.array(range(len(parts)), pa.int32()),
            }
        )
        dealt = spark.createDataFrame(work).repartitionById(len(parts), "part").drop("part")
        job = dealt.mapInArrow(_RewriteTask(rewriter), _REWRITTEN_SCHEMA)
        try:
            answers = job.toArrow().to_pylist()
        except Exception as cause:
            _discard(table.log, rewriter)
            if isinstance(cause, LakelogError):
                raise
            raise UnavailableError(
                f"executors could not rewrite the files: {job_failure(cause)}",
                path=table.path,
                version=rewriter.source.version,
                hint="earlier commits of the run are kept; the next run continues",
            ) from cause
        return {
            answer[_BIN]: BinResult(
                unpack(answer["adds"]) if answer["done"] else None,
                unpack(answer["unread"]),
                answer["rows"],
            )
            for answer in answers
        }

    request = Compaction(
        target_bytes=None if step.target_bytes is None else to_bytes(step.target_bytes),
        small_bytes=None if step.small_bytes is None else to_bytes(step.small_bytes),
        deleted_share=step.deleted_share,
        where=step.where,
        cooldown_ms=to_duration_ms(step.cooldown),
        commit_bytes=to_bytes(step.commit_bytes),
        storage_options=storage_options,
    )
    report = compact_bins(table.log, table.transaction, request, run, progress)
    return StepReport(
        STEP,
        "incomplete"
        if not report.is_complete
        else "done"
        if report.num_commits
        else "nothing to do",
        rows=report.num_rows,
        files=report.num_files,
        bytes=report.num_bytes,
        removed=report.num_removed_files,
        skips=len(report.skipped),
        version=table.version(),
        notes=_notes(report),
    )


def _discard(log: Log, rewriter: BinRewriter) -> None:
    """Delete the files that a failed job wrote; those that cannot be listed are left for vacuum."""
    version, token = rewriter.source.version, rewriter.target.token
    assert version is not None, "the plan of a version has its number"
    with suppress(LakelogError):
        new = [e.name for entries in log.store.walk() for e in entries if token in e.name]
        discard_unnamed(log, new, version)


def _notes(report: CompactReport) -> tuple[str, ...]:
    notes = [f"{path}: {reason}" for path, reason in list(report.skipped.items())[:_SHOWN]]
    if len(report.skipped) > _SHOWN:
        notes.append(f"and {len(report.skipped) - _SHOWN} more skipped files")
    if report.was_overtaken:
        notes.append("other writers kept changing the remaining files; the next run continues")
    return tuple(notes)
