"""The commands that delete files, or simulate deletion. Imports nothing heavy.

`cleanup` and `vacuum` only plan without ``--apply``. The exit code is 1 for findings: a file that
could not be deleted or restored.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from lakelog.cli import options
from lakelog.cli.options import Output, Target
from lakelog.cli.output import (
    FINDINGS,
    GOOD,
    PLANNED,
    View,
    emit,
    read_inventory,
    show_errors,
    write_report,
)
from lakelog.cli.text import count, time_text
from lakelog.cli.watch import open_metered, open_with_progress, progress

if TYPE_CHECKING:
    import polars as pl

    from lakelog.errors import LakelogError
    from lakelog.maintenance.cleanup import CleanupPlan, CleanupReport
    from lakelog.table import Table

_force = click.option(
    "--force", is_flag=True, help="Accept a retention shorter than the table's own."
)

_EXPIRED = (
    "the next checkpoint deletes expired files again; to keep them, raise "
    "delta.logRetentionDuration, or set delta.enableExpiredLogCleanup to false"
)
_DELETED = "version deleted size_bytes spared errors unreadable"

_SHOWN = (
    "proposal",
    *(f"{kind}_retention" for kind in ("log", "checkpoint", "deleted_file")),
    "broken_consumers",
    "nothing_deleted_because",
    "oldest_version",
    "versions_lost",
    "log_bytes",
    "data_bytes",
    "stream_from",
)


@options.command(
    "lakelog cleanup orders",
    'lakelog cleanup orders --retention "60 days" --all --output csv',
    "lakelog cleanup orders --apply --quarantine",
)
@options.target
@options.apply
@click.option(
    "--quarantine",
    is_flag=True,
    help="Move the files to quarantine; `lakelog undo` moves them back.",
)
@click.option(
    "--retention",
    type=options.Duration(),
    help="How long replaced versions remain readable; by default the table's retention.",
)
@click.option(
    "--checkpoint-retention",
    type=options.Duration(),
    help="How long replaced checkpoints are kept; by default the table's retention.",
)
@_force
@click.option(
    "--all", "keep", is_flag=True, help="Also show the files that are kept, with the reason."
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first file that cannot be deleted.")
@options.rows
def cleanup(
    target: Target,
    apply: bool,
    quarantine: bool,
    retention: int | None,
    checkpoint_retention: int | None,
    force: bool,
    keep: bool,
    fail_fast: bool,
    output: Output,
) -> int:
    """Find and delete log files that no retained version needs.

    Each file is reported with the checkpoint that replaces it. The checkpoint is verified before
    any file is deleted. Every version within the retention remains readable.
    """
    from lakelog.display import argument, size_text
    from lakelog.maintenance.cleanup import CleanupPlan

    with open_with_progress(target, "cleanup") as (table, watch):
        found = table.cleanup(
            not apply,
            quarantine=quarantine,
            retention=retention,
            checkpoint_retention=checkpoint_retention,
            force=force,
            keep=keep,
            failure_policy="fail" if fail_fast else None,
            progress=watch.show_step,
        )
    columns: tuple[str, ...] = ("path", "kind", "version", "size_bytes")
    errors: Sequence[LakelogError] = ()
    if isinstance(found, CleanupPlan):
        columns = (*columns, "action", "why", "covered_by")
        summary = [size_text(found.size_bytes) + " deletable", *_promise(found), PLANNED]
    else:
        errors = found.errors
        became = "freed" if found.quarantine is None else "in quarantine"
        summary = [f"{size_text(found.size_bytes)} {became}", *_promise(found)]
        if errors:
            summary.insert(1, f"{count(len(errors), 'file')} not deleted")
        if found.quarantine is not None:
            summary.append(f"to undo: lakelog undo {argument(target.path)} {found.quarantine}")
    if found.checkpoint is not None:
        summary.insert(1, f"covered by {found.checkpoint}")
    shown = View("file", columns, (), lambda rows: [*_reason(rows), *summary], _all_alike)
    emit(found.files.lazy(), output, shown)
    return show_errors(errors)


def _all_alike(shown: pl.DataFrame) -> tuple[str, ...]:
    """Columns with the same value in all rows."""
    known = {"action", "why", "covered_by"} & set(shown.columns)
    return tuple(name for name in known if shown.height and shown[name].n_unique() == 1)


def _reason(rows: pl.DataFrame) -> list[str]:
    """The reason that all rows have, whose column is hidden."""
    if "why" not in rows.columns or not rows.height or rows["why"].n_unique() > 1:
        return []
    return [str(rows["why"][0])]


def _promise(found: CleanupPlan | CleanupReport) -> list[str]:
    oldest = found.oldest_promised
    texts = ["every version is kept" if oldest is None else f"versions from {oldest} on are kept"]
    if found.gate is not None:
        return [*texts, f"all files are kept: {found.why}"]
    return [*texts, f"more files are kept: {found.why}"] if found.why else texts


@options.command(
    "lakelog vacuum orders",
    'lakelog vacuum orders --retention "14 days" --output parquet --to unused.parquet',
    "lakelog vacuum orders --apply --keep-version 10",
)
@options.target
@options.apply
@click.option(
    "--retention",
    type=options.Duration(),
    help="How long removed files are kept; by default the table's retention.",
)
@_force
@click.option(
    "--keep-version",
    "keep_versions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Keep the files of this version, whatever its age; repeatable.",
)
@click.option(
    "--keep-history", is_flag=True, help="Keep the files of every version that can be rebuilt."
)
@options.inventory
@options.rows
def vacuum(
    target: Target,
    apply: bool,
    retention: int | None,
    force: bool,
    keep_versions: tuple[int, ...],
    keep_history: bool,
    inventory: str | None,
    output: Output,
) -> int:
    """Find and delete data files that no retained version needs."""
    import polars as pl

    from lakelog.display import size_text
    from lakelog.maintenance.vacuum import VacuumPlan

    with open_with_progress(target, "vacuum") as (table, watch):
        found = table.vacuum(
            not apply,
            retention=retention,
            force=force,
            keep_versions=keep_versions,
            keep_history=keep_history,
            inventory=read_inventory(inventory),
            progress=watch.show_step,
        )
    if isinstance(found, VacuumPlan):
        cutoff = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=found.cutoff_ms)
        summary = [
            size_text(found.size_bytes),
            f"unused since {time_text(cutoff)}",
            *(f"{number:,} stay: {why}" for why, number in found.kept.items() if number),
            *(f"not readable: {folder}" for folder in found.unreadable),
            PLANNED,
        ]
        columns = ("path", "kind", "size_bytes", "modified_ms", "why")
        shown = View("file", columns, (), lambda rows: [*_reason(rows), *summary], _all_alike)
        emit(found.files.lazy(), output, shown)
        return GOOD
    facts = [
        ("version", str(found.version)),
        ("deleted", f"{count(found.deleted, 'file')}, {size_text(found.size_bytes)}"),
        ("spared", f"{found.spared:,}, which a commit since the plan refers to"),
        ("not deleted", f"{len(found.errors):,}"),
        *([("not readable", ", ".join(found.unreadable))] if found.unreadable else []),
    ]
    errors = (pl.List(pl.String()), [str(error) for error in found.errors])
    write_report(found, facts, _DELETED, output, errors=errors)
    return show_errors(found.errors)


@options.command(
    'lakelog simulate orders --log-retention "7 days" --consumer billing=120',
    "lakelog simulate orders --log-retention 7d --log-retention 14d --output json",
    'lakelog simulate orders --deleted-file-retention "1 day" --checkpoint-retention 1h',
)
@options.target
@click.option(
    "--log-retention",
    type=options.Duration(),
    multiple=True,
    help="Proposed time for which replaced versions remain readable; repeatable.",
)
@click.option(
    "--deleted-file-retention",
    type=options.Duration(),
    multiple=True,
    help="Proposed time for which removed data files are kept; repeatable.",
)
@click.option(
    "--checkpoint-retention",
    type=options.Duration(),
    multiple=True,
    help="Proposed time for which replaced checkpoints are kept; repeatable.",
)
@click.option(
    "--consumer",
    "consumers",
    type=options.Consumer(),
    multiple=True,
    help="A reader of the table's changes, and the version that it reads next; repeatable.",
)
@options.rows
def simulate(
    target: Target,
    log_retention: tuple[int, ...],
    deleted_file_retention: tuple[int, ...],
    checkpoint_retention: tuple[int, ...],
    consumers: tuple[tuple[str, int], ...],
    output: Output,
) -> None:
    """Compare the effects of other retentions.

    Shows readable versions, freed bytes and readers that would fail. Nothing is deleted. The first
    row is the current retention, followed by one row per proposal.
    """
    next_versions: dict[str, int] = {}
    for name, version in consumers:  # keep the older of two versions of one reader
        next_versions[name] = min(version, next_versions.get(name, version))
    with open_with_progress(target, "simulating") as (table, _):
        rows = table.simulate_retention(
            log_retention=list(log_retention) or None,
            deleted_file_retention=list(deleted_file_retention) or None,
            checkpoint_retention=list(checkpoint_retention) or None,
            consumers=next_versions,
        )
    if output.format == "table":
        rows = _readable(rows)
    summary = ["nothing is changed"]
    emit(rows.lazy(), output, View("setting", _SHOWN, (), lambda _: summary, _same_retentions))


def _same_retentions(shown: pl.DataFrame) -> tuple[str, ...]:
    """Retentions that no proposal changes."""
    names = [name for name in shown.columns if name.endswith("_retention")]
    return tuple(name for name in names if shown[name].n_unique() == 1)


def _readable(rows: pl.DataFrame) -> pl.DataFrame:
    """Add durations, names and reasons as text columns."""
    import polars as pl

    from lakelog.maintenance.retention_bounds import GATES
    from lakelog.model.durations import duration_text

    lengths = [name for name in rows.columns if name.endswith("_retention_ms")]
    return rows.with_columns(
        pl.Series(name.removesuffix("_ms"), map(duration_text, rows[name]), pl.String)
        for name in lengths
    ).with_columns(
        pl.col("broken_consumers").list.join(", ").replace("", None),
        nothing_deleted_because=pl.col("gate").replace(dict(GATES)),
    )


@options.command(
    "lakelog undo orders",
    "lakelog undo orders 20260105T101500Z-3f9ac2d1",
    'lakelog undo orders --purge "7 days"',
)
@options.target
@click.argument("quarantine", metavar="[ID]", required=False)
@click.option(
    "--purge",
    type=options.Duration(),
    help="Permanently delete files that have been in quarantine for longer than this, at once.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Replace the files that the repair wrote, which move to a quarantine of their own; those "
    "that changed since are kept.",
)
@options.rows
def undo(
    target: Target, quarantine: str | None, purge: int | None, replace: bool, output: Output
) -> int:
    """Restore files from the quarantine of a cleanup or repair.

    Without an ID, lists the quarantines.
    """
    if quarantine is not None and purge is not None:
        raise click.UsageError("give an ID or --purge, not both")
    from lakelog.display import argument

    table, meter = open_metered(target)
    summary = []
    with progress("undo", meter):
        if quarantine is not None:
            by = dict(table.quarantines().select("id", "by").iter_rows()).get(quarantine)
            rows = table.undo_cleanup(quarantine, replace=replace)
            if by == "cleanup" and _is_automatic(table):
                summary = [_EXPIRED]
            summary += [
                f"to undo: lakelog undo {argument(target.path)} {id_} --replace"
                for id_ in rows["quarantine"].drop_nulls().unique()
            ]
        elif purge is not None:
            rows = table.purge_quarantines(dt.timedelta(milliseconds=purge))
            summary = ["deleted permanently"]
        else:
            rows = table.quarantines()
    noun = "quarantine" if quarantine is None else "file"
    emit(rows.lazy(), output, View(noun, tuple(rows.columns), (), lambda _: summary))
    lost = quarantine is not None and not rows["outcome"].is_in(["back", "there"]).all()
    return FINDINGS if lost else GOOD


def _is_automatic(table: Table) -> bool:
    """Whether a checkpoint of the table is followed by a cleanup."""
    from lakelog.checkpoint.plan import CheckpointOptions

    configuration = table.snapshot().metadata.configuration
    return CheckpointOptions.of(configuration, table.log.dialect).cleanup_enabled


COMMANDS = (cleanup, vacuum, simulate, undo)
