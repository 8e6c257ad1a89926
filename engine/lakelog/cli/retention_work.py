"""Implementations of the commands that delete files or simulate deletion.

Each returns its exit code: 0 for success, 1 for findings (a file that could not be deleted or
restored).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.cli.options import Output, Target
from lakelog.cli.output import View, check, emit
from lakelog.cli.reports import FINDINGS, GOOD, PLANNED, read_inventory, tell, tell_errors
from lakelog.cli.view import count, time_text
from lakelog.cli.watch import open_metered, progress
from lakelog.log.display import size_text
from lakelog.log.properties import duration_text
from lakelog.maintenance.cleanup import CleanupPlan
from lakelog.maintenance.vacuum import VacuumPlan

if TYPE_CHECKING:
    from lakelog.errors import LakelogError
    from lakelog.maintenance.cleanup import CleanupReport

_DELETED_SCHEMA = {
    "version": pl.Int64(),
    "deleted": pl.Int64(),
    "size_bytes": pl.Int64(),
    "spared": pl.Int64(),
    "errors": pl.List(pl.String()),
}
_SHOWN = (
    "proposal",
    *(f"{kind}_retention" for kind in ("log", "checkpoint", "deleted_file")),
    "gate",
    "oldest_version",
    "versions_lost",
    "log_bytes",
    "data_bytes",
    "stream_from",
    "broken_consumers",
)


def cleanup(target: Target, output: Output, *, apply: bool, **asked: Any) -> int:
    """``lakelog cleanup``; `asked` are arguments of `Table.cleanup`."""
    check(output)
    table, meter = open_metered(target)
    with progress("cleanup", meter) as watch:
        found = table.cleanup(not apply, progress=watch.tell, **asked)
    columns: tuple[str, ...] = ("path", "kind", "version", "size_bytes")
    errors: Sequence[LakelogError] = ()
    if isinstance(found, CleanupPlan):
        columns = (*columns, "action", "gate", "covered_by")
        summary = [size_text(found.size_bytes) + " may go", *_promise(found), PLANNED]
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
    return tell_errors(errors)


def _all_alike(shown: pl.DataFrame) -> tuple[str, ...]:
    """Columns with the same value in all rows."""
    known = {"action", "gate", "covered_by"} & set(shown.columns)
    return tuple(name for name in known if shown.height and shown[name].n_unique() == 1)


def _promise(found: CleanupPlan | CleanupReport) -> list[str]:
    oldest = found.oldest_promised
    told = ["every version stays" if oldest is None else f"versions from {oldest} on stay"]
    if found.gate is not None:
        return [*told, f"kept by {found.gate}: {found.why}"]
    return [*told, f"more is kept: {found.why}"] if found.why else told


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
            inventory=read_inventory(inventory),
            progress=watch.tell,
        )
    if isinstance(found, VacuumPlan):
        cutoff = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=found.cutoff_ms)
        summary = [
            size_text(found.size_bytes),
            f"unused since {time_text(cutoff)}",
            *(f"{number:,} stay: {why}" for why, number in found.kept.items() if number),
            PLANNED,
        ]
        columns = ("path", "kind", "size_bytes", "modified_ms", "why")
        emit(found.files.lazy(), output, View("file", columns, (), lambda _: summary))
        return GOOD
    facts = [
        ("version", str(found.version)),
        ("deleted", f"{count(found.deleted, 'file')}, {size_text(found.size_bytes)}"),
        ("spared", f"{found.spared:,}, which a commit since the plan refers to"),
        ("not deleted", f"{len(found.errors):,}"),
    ]
    tell(found, facts, _DELETED_SCHEMA, output, errors=[str(error) for error in found.errors])
    return tell_errors(found.errors)


def simulate(
    target: Target,
    consumers: Sequence[tuple[str, int]],
    output: Output,
    **proposed: Sequence[int],
) -> None:
    """``lakelog simulate``; `proposed` are retentions in milliseconds, for
    `Table.simulate_retention`.
    """
    check(output)
    next_versions: dict[str, int] = {}
    for name, version in consumers:  # of two versions of one reader, keep the older
        next_versions[name] = min(version, next_versions.get(name, version))
    table, meter = open_metered(target)
    with progress("simulating", meter):
        rows = table.simulate_retention(
            **{name: list(given) or None for name, given in proposed.items()},
            consumers=next_versions,
        )
    if output.format == "table":
        rows = _readable(rows)
    summary = ["nothing is changed"]
    emit(rows.lazy(), output, View("proposal", _SHOWN, (), lambda _: summary, _same_retentions))


def _same_retentions(shown: pl.DataFrame) -> tuple[str, ...]:
    """Retentions that no proposal changes."""
    given = [name for name in shown.columns if name.endswith("_retention")]
    return tuple(name for name in given if shown[name].n_unique() == 1)


def _readable(rows: pl.DataFrame) -> pl.DataFrame:
    """With durations and names as text columns, next to their source columns."""
    lengths = [name for name in rows.columns if name.endswith("_retention_ms")]
    return rows.with_columns(
        pl.Series(name.removesuffix("_ms"), map(duration_text, rows[name]), pl.String)
        for name in lengths
    ).with_columns(pl.col("broken_consumers").list.join(", ").replace("", None))


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
