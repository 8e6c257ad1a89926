"""The commands that write, verify, repair and copy the files of a log. Imports nothing heavy.

The exit code is 1 for findings: a wrong checkpoint, an unrepaired problem, a checksum that differs.
`repair` only plans without ``--apply``.
"""

from __future__ import annotations

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
    report_row,
    write_report,
    write_text,
)
from lakelog.cli.text import count, seconds_text
from lakelog.cli.watch import open_with_progress
from lakelog.display import argument
from lakelog.errors import NotFoundError

if TYPE_CHECKING:
    from lakelog.checkpoint.job import CheckpointReport
    from lakelog.checkpoint.verify import VerifyReport

_CHECKPOINT = (
    "version layout paths size_bytes num_adds num_removes num_actions reused_files verified "
    "pointer_moved reused seconds verify_seconds notes"
)
_VERIFY = "version layout verdict reason files replayed seconds"
_COMPACTION = "start end path written size_bytes commit_bytes num_adds num_removes num_others"
_CHECKSUM = "version path written disagreements body"
_REPLICA = "location version layout paths copied size_bytes verdict pointer_moved"
_COUNTED = (("files", "numFiles"), ("bytes", "tableSizeBytes"))


def _layouts() -> list[str]:
    from lakelog.dialects.registry import registered

    return ["auto", "v2", *(layout for dialect in registered() for layout in dialect.layouts)]


@options.command(
    "lakelog checkpoint orders",
    "lakelog checkpoint orders --layout v2 --memory-limit 512MB",
    "lakelog checkpoint orders --version 10 --output json",
)
@options.target
@options.version("The latest by default.")
@click.option(
    "--layout",
    default="auto",
    show_default=True,
    shell_complete=options.completed(_layouts),
    help="classic, multipart, v2, v2-json or v2-parquet for Delta; json, json-multipart or "
    "flattened for IndexTables; auto selects by protocol, properties and size.",
)
@options.memory
@click.option("--no-verify", is_flag=True, help="Skip the verification.")
@options.output
def checkpoint(
    target: Target,
    version: int | None,
    layout: str,
    memory_limit: int | None,
    no_verify: bool,
    output: Output,
) -> None:
    """Write a checkpoint, verify it, publish it.

    The checkpoint is read back and compared with replay before publication. The pointer is written
    last, and only moves forward.
    """
    with open_with_progress(target, "checkpoint") as (table, watch):
        report = table.checkpoint(
            version, layout, memory_limit, not no_verify, progress=watch.show_step
        )
    write_report(report, _checkpoint_facts(report), _CHECKPOINT, output)


def _checkpoint_facts(report: CheckpointReport) -> list[tuple[str, str]]:
    from lakelog.display import size_text

    kept = f", {report.reused_files:,} of them kept" if report.reused_files else ""
    files, size = count(report.parts, "file"), size_text(report.size_bytes)
    written = f"nothing, it existed: {files}, {size}" if report.reused else f"{files}{kept}, {size}"
    proved = f"verified against replay in {seconds_text(report.verify_seconds)}"
    others = report.num_actions - report.num_adds - report.num_removes
    return [
        ("version", str(report.version)),
        ("layout", report.layout),
        ("live files", f"{report.num_adds:,}"),
        ("tombstones", f"{report.num_removes:,}"),
        ("other actions", f"{others:,}"),
        ("written", written),
        ("verified", proved if report.verified else "no"),
        ("pointer", "updated" if report.pointer_moved else "unchanged"),
        ("cost", seconds_text(report.seconds)),
        *(("note", note) for note in report.notes),
    ]


@options.command("lakelog verify orders", "lakelog verify orders --version 10 --output json")
@options.target
@options.version("The newest checkpoint by default.")
@options.memory
@click.option("--strict", is_flag=True, help="Treat an unprovable checkpoint as a finding.")
@options.output
def verify(
    target: Target,
    version: int | None,
    memory_limit: int | None,
    strict: bool,
    output: Output,
) -> int:
    """Verify a checkpoint by a replay that does not use it.

    The result is proved, unprovable (the commits below it were deleted), wrong or broken. The exit
    code is 1 for wrong and broken.
    """
    import polars as pl

    from lakelog.cli import rendering

    with open_with_progress(target, "proving") as (table, _):
        try:
            report = table.verify(version, memory_limit=memory_limit)
        except NotFoundError as error:
            if type(error) is NotFoundError:  # of a checkpoint
                of = "" if version is None else f" --version {version}"
                error.hint = f"lakelog checkpoint {argument(target.path)}{of}"
            raise
    if output.format == "table":
        facts = _verify_facts(report)
        if report.verdict in {"wrong", "broken"}:
            facts.append(("next", f"lakelog repair {argument(target.path)}"))
        text = rendering.facts_text(facts, to_file=output.to is not None)
        if report.differences.height:
            more = [count(report.differences.height, "difference") + " at least"]
            text += "\n\n" + rendering.table_text(
                report.differences, more, to_file=output.to is not None
            )
        write_text(text, output)
    else:
        rows = report_row(report, _VERIFY).with_columns(
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


@options.command(
    "lakelog repair orders",
    "lakelog repair orders --check-files --output json",
    "lakelog repair orders --apply",
)
@options.target
@options.apply
@click.option(
    "--check-files",
    is_flag=True,
    help="Search for live files that are missing or have another length, and for missing or "
    "truncated deletion vectors.",
)
@options.external
@click.option(
    "--remove-missing",
    is_flag=True,
    help="Remove missing files from the table, in one commit; their rows are lost.",
)
@options.inventory
@click.option("--strict", is_flag=True, help="Repair nothing if any problem cannot be repaired.")
@options.rows
def repair(
    target: Target,
    apply: bool,
    check_files: bool,
    remove_missing: bool,
    inventory: str | None,
    strict: bool,
    output: Output,
) -> int:
    """Find and repair problems of the log.

    Checkpoints, the pointer and checksums are rewritten if that is provably correct. Other problems
    are reported with the reason. The exit code is 1 if any problem remains.
    """
    import polars as pl

    from lakelog.maintenance.repair import RepairPlan

    with open_with_progress(target, "repair") as (table, watch):
        found = table.repair(
            plan=not apply,
            check_files=check_files or remove_missing,
            remove_missing=remove_missing,
            inventory=read_inventory(inventory),
            strict=strict,
            progress=watch.show_step,
        )
    columns: tuple[str, ...] = ("action", "kind", "path", "version", "problem", "why")
    if isinstance(found, RepairPlan):
        is_clean = found.is_clean
        summary = [dict(found.facts)["result"] if is_clean else PLANNED]
        rows = found.findings
    else:
        is_clean = not found.left.height
        rows = pl.concat(
            [
                found.repaired.with_columns(outcome=pl.lit("repaired")),
                found.left.with_columns(outcome=pl.lit("left")),
            ]
        )
        columns = ("outcome", *columns)
        summary = [f"{found.repaired.height:,} repaired", f"{found.left.height:,} left"]
        if found.quarantine is not None:
            summary.append(f"moved to quarantine: {found.quarantine}")
        if found.version is not None:
            summary.append(f"missing files removed in version {found.version}")
    emit(rows.lazy(), output, View("finding", columns, (), lambda _: summary))
    return GOOD if is_clean else FINDINGS


@options.command(
    "lakelog compact-log orders 10 19",
    "lakelog compact-log orders 0 99 --output json",
    name="compact-log",
)
@options.target
@click.argument("a", type=click.IntRange(min=0), metavar="A")
@click.argument("b", type=click.IntRange(min=0), metavar="B")
@options.memory
@options.output
def compact_log(target: Target, a: int, b: int, memory_limit: int | None, output: Output) -> None:
    """Write the log compaction file of versions A to B.

    Readers may use it instead of the commits, which are kept. It is read back and compared with
    the commits before publication. Delta only.
    """
    from lakelog.display import size_text

    with open_with_progress(target, "compacting") as (table, _):
        report = table.compact_log(a, b, memory_limit=memory_limit)
    before, after = size_text(report.commit_bytes), size_text(report.size_bytes)
    files = f"{report.num_adds:,} added, {report.num_removes:,} removed"
    facts = [
        ("versions", f"{report.start} to {report.end}"),
        ("path", report.path),
        ("written", after if report.written else "no, it existed"),
        ("replaces", f"commits of {before}"),
        ("files", files),
        ("other actions", f"{report.num_others:,}"),
    ]
    write_report(report, facts, _COMPACTION, output)


@options.command("lakelog checksum orders", "lakelog checksum orders --version 10 --output json")
@options.target
@options.version("The latest by default.")
@options.memory
@options.output
def checksum(target: Target, version: int | None, memory_limit: int | None, output: Output) -> int:
    """Write the checksum file of a version, unless it exists.

    An existing checksum is compared with replay and not changed. The exit code is 1 if they differ.
    Delta only.
    """
    import orjson
    import polars as pl

    with open_with_progress(target, "checksum") as (table, _):
        report = table.write_checksum(version, memory_limit=memory_limit)
    wrong = [name or "all of it" for name in report.disagreements]
    facts = [
        ("version", str(report.version)),
        ("path", report.path),
        ("written", "yes" if report.written else "no, it existed"),
        ("differs in", ", ".join(wrong) or "nothing"),
        *((label, f"{report.body[name]:,}") for label, name in _COUNTED if name in report.body),
    ]
    body = (pl.String(), orjson.dumps(report.body).decode())
    differing = (pl.List(pl.String()), wrong)
    write_report(report, facts, _CHECKSUM, output, disagreements=differing, body=body)
    return FINDINGS if wrong else GOOD


@options.command(
    "lakelog replicate orders /mnt/backup/orders",
    "lakelog replicate orders s3://backup/orders --to-option anon=false --version 10",
)
@options.target
@options.version("The newest checkpoint by default.")
@options.destination
@options.output
def replicate(
    target: Target,
    version: int | None,
    destination: Target,
    output: Output,
) -> None:
    """Copy a checkpoint to another location.

    The checkpoint is verified first. The copy is read back before publication, and its pointer is
    written last. LOCATION is a folder, as a path or an fsspec URL, that contains no
    table, or a replica of TABLE. A copy of TABLE with commits of its own is refused.
    """
    from lakelog.display import size_text

    with open_with_progress(target, "replicating") as (table, watch):
        report = table.replicate(
            destination.path,
            version,
            storage_options=destination.storage_options,
            progress=watch.show_step,
        )
    facts = [
        ("location", report.location),
        ("version", str(report.version)),
        ("layout", report.layout),
        ("original", report.verdict),
        ("files", f"{len(report.paths):,}, {report.copied:,} of them copied"),
        ("size", size_text(report.size_bytes)),
        ("pointer", "updated" if report.pointer_moved else "unchanged"),
    ]
    write_report(report, facts, _REPLICA, output)


COMMANDS = (checkpoint, verify, repair, compact_log, checksum, replicate)
