"""Implementations of the commands for checkpoints, compactions, checksums and repair.

Each returns its exit code: 0 for success, 1 for findings (a wrong checkpoint, a problem that is not
repaired, a checksum that differs).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import polars as pl

from lakelog.checkpoint.report import CheckpointReport
from lakelog.cli import view
from lakelog.cli.commands import seconds_text
from lakelog.cli.options import Output, Target
from lakelog.cli.output import View, check, emit, write_text
from lakelog.cli.reports import FINDINGS, GOOD, PLANNED, one_row, read_inventory, tell
from lakelog.cli.view import count
from lakelog.cli.watch import open_metered, progress
from lakelog.log.display import size_text
from lakelog.maintenance.repair import RepairPlan

if TYPE_CHECKING:
    from lakelog.checkpoint.verify import VerifyReport

_CHECKPOINT_SCHEMA = {
    "version": pl.Int64(),
    "layout": pl.String(),
    "paths": pl.List(pl.String()),
    "size_bytes": pl.Int64(),
    "num_adds": pl.Int64(),
    "num_removes": pl.Int64(),
    "num_actions": pl.Int64(),
    "reused_files": pl.Int64(),
    "verified": pl.Boolean(),
    "pointer_moved": pl.Boolean(),
    "reused": pl.Boolean(),
    "seconds": pl.Float64(),
    "verify_seconds": pl.Float64(),
    "notes": pl.List(pl.String()),
}
_VERIFY_SCHEMA = {
    "version": pl.Int64(),
    "layout": pl.String(),
    "verdict": pl.String(),
    "reason": pl.String(),
    "files": pl.List(pl.String()),
    "replayed": pl.List(pl.String()),
    "seconds": pl.Float64(),
}
_COMPACTION_SCHEMA = {
    "start": pl.Int64(),
    "end": pl.Int64(),
    "path": pl.String(),
    "written": pl.Boolean(),
    "size_bytes": pl.Int64(),
    "commit_bytes": pl.Int64(),
    "num_adds": pl.Int64(),
    "num_removes": pl.Int64(),
    "num_others": pl.Int64(),
}


_CHECKSUM_SCHEMA = {
    "version": pl.Int64(),
    "path": pl.String(),
    "written": pl.Boolean(),
    "disagreements": pl.List(pl.String()),
    "body": pl.String(),
}
_REPLICA_SCHEMA = {
    "location": pl.String(),
    "version": pl.Int64(),
    "layout": pl.String(),
    "paths": pl.List(pl.String()),
    "copied": pl.Int64(),
    "size_bytes": pl.Int64(),
    "verdict": pl.String(),
    "pointer_moved": pl.Boolean(),
}
_COUNTED = (("files", "numFiles"), ("bytes", "tableSizeBytes"))


def checkpoint(
    target: Target,
    version: int | None,
    layout: str,
    memory_limit: int | None,
    output: Output,
    *,
    verify: bool,
) -> None:
    """``lakelog checkpoint``."""
    check(output)
    table, meter = open_metered(target)
    with progress("checkpoint", meter) as watch:
        report = table.checkpoint(version, layout, memory_limit, verify, progress=watch.tell)
    tell(report, _checkpoint_facts(report), _CHECKPOINT_SCHEMA, output)


def _checkpoint_facts(report: CheckpointReport) -> list[tuple[str, str]]:
    kept = f", {report.reused_files:,} of them kept" if report.reused_files else ""
    files, size = count(report.parts, "file"), size_text(report.size_bytes)
    written = (
        f"nothing, it was there: {files}, {size}" if report.reused else f"{files}{kept}, {size}"
    )
    proved = f"proved against replay in {seconds_text(report.verify_seconds)}"
    others = report.num_actions - report.num_adds - report.num_removes
    return [
        ("version", str(report.version)),
        ("layout", report.layout),
        ("live files", f"{report.num_adds:,}"),
        ("tombstones", f"{report.num_removes:,}"),
        ("other actions", f"{others:,}"),
        ("written", written),
        ("verified", proved if report.verified else "no"),
        ("pointer", "moved here" if report.pointer_moved else "left where it was"),
        ("cost", seconds_text(report.seconds)),
        *(("note", note) for note in report.notes),
    ]


def verify(
    target: Target,
    version: int | None,
    memory_limit: int | None,
    output: Output,
    *,
    strict: bool,
) -> int:
    """``lakelog verify``."""
    check(output)
    table, meter = open_metered(target)
    with progress("proving", meter):
        report = table.verify(version, memory_limit=memory_limit)
    if output.format == "table":
        facts = _verify_facts(report)
        text = view.facts_text(facts, to_file=output.to is not None)
        if report.differences.height:
            more = [count(report.differences.height, "difference") + " at least"]
            text += "\n\n" + view.table_text(
                report.differences, more, to_file=output.to is not None
            )
        write_text(text, output)
    else:
        rows = one_row(report, _VERIFY_SCHEMA).with_columns(
            differences=pl.lit(report.differences.to_struct("differences")).implode()
        )
        emit(rows, output, View("checkpoint", ()))
    wrong = report.verdict in {"wrong", "broken"}
    return FINDINGS if wrong or (strict and not report.is_proved) else GOOD


def _verify_facts(report: VerifyReport) -> list[tuple[str, str]]:
    facts = [
        ("version", str(report.version)),
        ("layout", report.layout),
        ("verdict", report.verdict),
        ("reason", report.reason or ""),
        ("files", ", ".join(report.files)),
        ("replayed", count(len(report.replayed), "file")),
        ("cost", seconds_text(report.seconds)),
    ]
    return [(name, text) for name, text in facts if text]


def repair(
    target: Target,
    inventory: str | None,
    output: Output,
    *,
    apply: bool,
    check_files: bool,
    remove_missing: bool,
    strict: bool,
) -> int:
    """``lakelog repair``."""
    check(output)
    table, meter = open_metered(target)
    with progress("repair", meter) as watch:
        found = table.repair(
            plan=not apply,
            check_files=check_files or remove_missing,
            remove_missing=remove_missing,
            inventory=read_inventory(inventory),
            strict=strict,
            progress=watch.tell,
        )
    columns: tuple[str, ...] = ("action", "kind", "path", "version", "problem", "why")
    if isinstance(found, RepairPlan):
        sound = found.is_sound
        summary = ["nothing is wrong" if sound else PLANNED]
        rows = found.findings
    else:
        sound = not found.left.height
        rows = pl.concat(
            [
                found.repaired.with_columns(outcome=pl.lit("repaired")),
                found.left.with_columns(outcome=pl.lit("left")),
            ]
        )
        columns = ("outcome", *columns)
        summary = [f"{found.repaired.height:,} repaired", f"{found.left.height:,} left"]
        if found.quarantine is not None:
            summary.append(f"what was moved away: {found.quarantine}")
        if found.version is not None:
            summary.append(f"missing files removed in version {found.version}")
    emit(rows.lazy(), output, View("finding", columns, (), lambda _: summary))
    return GOOD if sound else FINDINGS


def compact(target: Target, a: int, b: int, memory_limit: int | None, output: Output) -> None:
    """``lakelog compact``."""
    check(output)
    table, meter = open_metered(target)
    with progress("compacting", meter):
        report = table.compact_log(a, b, memory_limit=memory_limit)
    before, after = size_text(report.commit_bytes), size_text(report.size_bytes)
    files = f"{report.num_adds:,} added, {report.num_removes:,} removed"
    facts = [
        ("versions", f"{report.start} to {report.end}"),
        ("path", report.path),
        ("written", after if report.written else "no, it was there already"),
        ("replaces", f"commits of {before}"),
        ("files", files),
        ("other actions", f"{report.num_others:,}"),
    ]
    tell(report, facts, _COMPACTION_SCHEMA, output)


def checksum(target: Target, version: int | None, memory_limit: int | None, output: Output) -> int:
    """``lakelog checksum``."""
    check(output)
    table, meter = open_metered(target)
    with progress("checksum", meter):
        report = table.write_checksum(version, memory_limit=memory_limit)
    wrong = [name or "all of it" for name in report.disagreements]
    facts = [
        ("version", str(report.version)),
        ("path", report.path),
        ("written", "yes" if report.written else "no, it was there already"),
        ("disagrees on", ", ".join(wrong) or "nothing"),
        *((label, f"{report.body[name]:,}") for label, name in _COUNTED if name in report.body),
    ]
    body = orjson.dumps(report.body).decode()
    tell(report, facts, _CHECKSUM_SCHEMA, output, disagreements=wrong, body=body)
    return FINDINGS if wrong else GOOD


def replicate(target: Target, location: Target, version: int | None, output: Output) -> None:
    """``lakelog replicate``."""
    check(output)
    table, meter = open_metered(target)
    with progress("replicating", meter) as watch:
        report = table.replicate(
            location.path,
            version,
            storage_options=location.storage_options,
            progress=watch.tell,
        )
    facts = [
        ("location", report.location),
        ("version", str(report.version)),
        ("layout", report.layout),
        ("original", report.verdict),
        ("files", f"{len(report.paths):,}, {report.copied:,} of them copied"),
        ("size", size_text(report.size_bytes)),
        ("pointer", "moved here" if report.pointer_moved else "left where it was"),
    ]
    tell(report, facts, _REPLICA_SCHEMA, output)
