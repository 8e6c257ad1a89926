"""What the commands that look after a log do, once their options are understood.

Each gives its exit code: 0 for good, 1 for findings (a checkpoint that is wrong, something that is
not mended, a file that could not be deleted).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.checkpoint.report import CheckpointReport
from lakelog.cli import view
from lakelog.cli.commands import seconds_text
from lakelog.cli.options import Output, Target
from lakelog.cli.output import View, check, emit, write_text
from lakelog.cli.view import count, time_text
from lakelog.cli.watch import open_metered, progress
from lakelog.errors import InvalidInputError
from lakelog.log.display import size_text
from lakelog.repair.mend import RepairPlan
from lakelog.retention.cleanup import CleanupPlan
from lakelog.retention.vacuum import VacuumPlan

if TYPE_CHECKING:
    from lakelog.checkpoint.verify import VerifyReport
    from lakelog.errors import LakelogError
    from lakelog.retention.cleanup import CleanupReport

GOOD, FINDINGS = 0, 1

_PLANNED = "nothing is changed without --apply"
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
_DELETED_SCHEMA = {
    "version": pl.Int64(),
    "deleted": pl.Int64(),
    "size_bytes": pl.Int64(),
    "spared": pl.Int64(),
    "errors": pl.List(pl.String()),
}
_READERS: dict[str, Callable[[str], pl.DataFrame]] = {
    "parquet": pl.read_parquet,
    "csv": pl.read_csv,
    "json": pl.read_json,
}


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
    if output.format == "table":
        facts = _checkpoint_facts(report)
        write_text(view.facts_text(facts, to_file=output.to is not None), output)
        return
    row = {name: getattr(report, name) for name in _CHECKPOINT_SCHEMA}
    emit(_one(row, _CHECKPOINT_SCHEMA), output, View("checkpoint", ()))


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
        row = {name: getattr(report, name) for name in _VERIFY_SCHEMA}
        rows = _one(row, _VERIFY_SCHEMA).with_columns(
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
            inventory=_read_inventory(inventory),
            strict=strict,
            progress=watch.tell,
        )
    columns: tuple[str, ...] = ("action", "kind", "path", "version", "problem", "why")
    if isinstance(found, RepairPlan):
        sound = found.is_sound
        summary = ["nothing is wrong" if sound else _PLANNED]
        rows = found.findings
    else:
        sound = not found.left.height
        rows = pl.concat(
            [
                found.mended.with_columns(outcome=pl.lit("mended")),
                found.left.with_columns(outcome=pl.lit("left")),
            ]
        )
        columns = ("outcome", *columns)
        summary = [f"{found.mended.height:,} mended", f"{found.left.height:,} left"]
        if found.quarantine is not None:
            summary.append(f"what was moved away: {found.quarantine}")
        if found.version is not None:
            summary.append(f"missing files removed in version {found.version}")
    emit(rows.lazy(), output, View("finding", columns, (), lambda _: summary))
    return GOOD if sound else FINDINGS


def cleanup(target: Target, output: Output, *, apply: bool, **asked: Any) -> int:
    """``lakelog cleanup``; `asked` is for `Table.cleanup`."""
    check(output)
    table, meter = open_metered(target)
    with progress("cleanup", meter) as watch:
        found = table.cleanup(not apply, progress=watch.tell, **asked)
    columns: tuple[str, ...] = ("path", "kind", "version", "size_bytes")
    errors: Sequence[LakelogError] = ()
    if isinstance(found, CleanupPlan):
        columns = (*columns, "action", "gate", "covered_by")
        summary = [size_text(found.size_bytes) + " may go", *_promise(found), _PLANNED]
    else:
        errors = found.errors
        became = "freed" if found.quarantine is None else "in quarantine"
        summary = [f"{size_text(found.size_bytes)} {became}", *_promise(found)]
        if found.quarantine is not None:
            summary.append(f"to undo: lakelog undo {target.path} {found.quarantine}")
    if found.checkpoint is not None:
        summary.insert(1, f"covered by {found.checkpoint}")
    shown = View("file", columns, (), lambda _: summary, _all_alike)
    emit(found.files.lazy(), output, shown)
    return _tell_errors(errors)


def _all_alike(shown: pl.DataFrame) -> tuple[str, ...]:
    """Columns that tell no file from another."""
    known = {"action", "gate", "covered_by"} & set(shown.columns)
    return tuple(name for name in known if shown.height and shown[name].n_unique() == 1)


def _promise(found: CleanupPlan | CleanupReport) -> list[str]:
    oldest = found.oldest_promised
    told = ["every version stays" if oldest is None else f"versions from {oldest} on stay"]
    return told if found.gate is None else [*told, f"kept by {found.gate}: {found.why}"]


def vacuum(
    target: Target,
    inventory: str | None,
    output: Output,
    *,
    apply: bool,
    retention_ms: int | None,
    force: bool,
    keep_versions: tuple[int, ...],
    keep_history: bool,
) -> int:
    """``lakelog vacuum``."""
    check(output)
    table, meter = open_metered(target)
    with progress("vacuum", meter) as watch:
        found = table.vacuum(
            not apply,
            retention=retention_ms,
            force=force,
            keep_versions=keep_versions,
            keep_history=keep_history,
            inventory=_read_inventory(inventory),
            progress=watch.tell,
        )
    if isinstance(found, VacuumPlan):
        cutoff = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=found.cutoff_ms)
        summary = [
            size_text(found.size_bytes),
            f"unused since {time_text(cutoff)}",
            *(f"{number:,} stay: {why}" for why, number in found.kept.items() if number),
            _PLANNED,
        ]
        columns = ("path", "kind", "size_bytes", "modified_ms", "why")
        emit(found.files.lazy(), output, View("file", columns, (), lambda _: summary))
        return GOOD
    if output.format == "table":
        facts = [
            ("version", str(found.version)),
            ("deleted", f"{count(found.deleted, 'file')}, {size_text(found.size_bytes)}"),
            ("spared", f"{found.spared:,}, which a commit since the plan refers to"),
            ("not deleted", f"{len(found.errors):,}"),
        ]
        write_text(view.facts_text(facts, to_file=output.to is not None), output)
    else:
        row = {name: getattr(found, name) for name in _DELETED_SCHEMA}
        row["errors"] = [str(error) for error in found.errors]
        emit(_one(row, _DELETED_SCHEMA), output, View("vacuum", ()))
    return _tell_errors(found.errors)


def compact(target: Target, a: int, b: int, memory_limit: int | None, output: Output) -> None:
    """``lakelog compact``."""
    check(output)
    table, meter = open_metered(target)
    with progress("compacting", meter):
        report = table.compact_log(a, b, memory_limit=memory_limit)
    if output.format != "table":
        row = {name: getattr(report, name) for name in _COMPACTION_SCHEMA}
        emit(_one(row, _COMPACTION_SCHEMA), output, View("compaction", ()))
        return
    before, after = size_text(report.commit_bytes), size_text(report.size_bytes)
    files = f"{report.num_adds:,} added, {report.num_removes:,} removed"
    facts = [
        ("versions", f"{report.start} to {report.end}"),
        ("path", report.path),
        ("written", after if report.written else "no, it was there already"),
        ("stands for", f"commits of {before}"),
        ("files", files),
        ("other actions", f"{report.num_others:,}"),
    ]
    write_text(view.facts_text(facts, to_file=output.to is not None), output)


def undo(target: Target, quarantine: str | None, purge_ms: int | None, output: Output) -> int:
    """``lakelog undo``."""
    check(output)
    table, meter = open_metered(target)
    with progress("undo", meter):
        if quarantine is not None:
            rows = table.undo_cleanup(quarantine)
        elif purge_ms is not None:
            rows = table.purge_quarantines(dt.timedelta(milliseconds=purge_ms))
        else:
            rows = table.quarantines()
    noun = "quarantine" if quarantine is None else "file"
    summary = ["gone for good"] if purge_ms is not None else []
    emit(rows.lazy(), output, View(noun, tuple(rows.columns), (), lambda _: summary))
    lost = quarantine is not None and not rows["outcome"].is_in(["back", "there"]).all()
    return FINDINGS if lost else GOOD


def _read_inventory(path: str | None) -> pl.DataFrame | None:
    """An inventory by its suffix.

    Raises:
        InvalidInputError: It is no Parquet, CSV or JSON file.
    """
    if path is None:
        return None
    suffix = path.rpartition(".")[2].lower()
    reader = _READERS.get(suffix)
    if reader is None:
        raise InvalidInputError(
            "the inventory's format is told by its suffix",
            path=path,
            expected=", ".join(f".{known}" for known in _READERS),
        )
    try:
        return reader(path)
    except (OSError, pl.exceptions.PolarsError) as cause:
        reason = (str(cause).splitlines() or [""])[0]
        raise InvalidInputError(f"the inventory cannot be read: {reason}", path=path) from cause


def _tell_errors(errors: Sequence[LakelogError]) -> int:
    import click

    for error in errors[:10]:
        click.echo(
            f"{click.style('not deleted:', fg='red')} {error.path}: {error.message}", err=True
        )
    if len(errors) > 10:
        click.echo(f"and {len(errors) - 10:,} more", err=True)
    return FINDINGS if errors else GOOD


def _one(row: dict[str, Any], schema: dict[str, pl.DataType]) -> pl.LazyFrame:
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in row.items()}
    return pl.LazyFrame([plain], schema=schema)
