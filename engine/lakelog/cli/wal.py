"""The commands for write-ahead logs. Imports nothing heavy.

The exit code is 1 for findings: damage, a torn tail, an unfinished batch or upgrade.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import click

from lakelog.cli import options
from lakelog.cli.options import Output, examples
from lakelog.cli.output import (
    FINDINGS,
    GOOD,
    PLANNED,
    View,
    emit,
    report_schema,
    write_report,
)
from lakelog.cli.text import count
from lakelog.cli.watch import Meter, progress
from lakelog.display import plain
from lakelog.errors import InvalidInputError, LakelogError, LakelogWarning, WalCorruptionError

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from lakelog.wal.historic.log import Finding, HistoricFormat
    from lakelog.wal.historic.upgrade import UpgradeReport
    from lakelog.wal.inspect import SegmentReport, WalReport

_HISTORIC = click.Choice(("002", "003", "003-crc"))


def _named(_context: click.Context, _parameter: click.Parameter, directory: str) -> str:
    """Raise for an empty name, which would be resolved to the working directory."""
    if not directory:
        raise click.BadParameter("it is empty; pass the log's folder")
    return directory


_directory = click.argument(
    "directory", metavar="DIRECTORY", shell_complete=options.paths, callback=_named
)
_format = click.option(
    "--format",
    "form",
    type=_HISTORIC,
    help="Format of a historic log, if it cannot be detected from its files.",
)
_safe = click.option(
    "--safe",
    is_flag=True,
    help="Use the safe part of a damaged log, and exit with code 1, instead of failing.",
)


@click.group(
    epilog=examples(
        "lakelog wal inspect events",
        "lakelog wal replay events --after 1000 --output parquet --to new.parquet",
        "lakelog wal upgrade events",
        "lakelog wal truncate events 1000 --apply",
    )
)
@options.debug
def wal() -> None:
    """Inspect, replay, upgrade or truncate a write-ahead log.

    DIRECTORY is the folder of the log, on local disk. inspect and replay also read the two historic
    formats; upgrade converts them to the current format.
    """


_FINDING = "kind byte_offset size_bytes reason expected found records"
_SEGMENT = "path format status size_bytes records first_seq last_seq created modified problem"
_UPGRADE = "directory format records last_seq segment old_files findings doubts"
_SHOWN_KEY_COLUMNS = ("key", "value")


@options.command(
    "lakelog wal inspect events",
    "lakelog wal inspect events --output json",
    "lakelog wal inspect old/wal.log --format 003",
    group=wal,
)
@_directory
@_format
@options.rows
def inspect(directory: str, form: str | None, output: Output) -> int:
    """List the files of a log: times, sizes, sequence numbers, damage.

    Works on damaged logs and concurrently with a writer. Changes nothing. The exit code is 1 if
    there are findings: damage, a torn tail, an unfinished batch or upgrade. Damage that a historic
    format cannot reveal is listed as a doubt, which is not a finding.
    """
    from lakelog.wal.inspect import inspect as inspect_log

    _check_kind(directory)
    with _hints(), progress("reading", Meter()):
        report = inspect_log(directory, cast("HistoricFormat | None", form))
    rows = _segments(report)
    # The problem is printed in the table, its location below.
    columns = tuple(name for name in _SEGMENT.split() if name != "format")
    shown = View("file", columns, (), lambda _: _summary(report))
    emit(rows.lazy(), output, shown)
    return FINDINGS if report.findings else GOOD


def _finding_list() -> pl.DataType:
    import polars as pl

    from lakelog.wal.historic.log import Finding

    return pl.List(pl.Struct(report_schema(Finding, _FINDING)))


def _segments(report: WalReport) -> pl.DataFrame:
    """One row per file; findings elsewhere, such as in the upgrade marker, have their own rows."""
    import polars as pl

    from lakelog.wal.inspect import SegmentReport

    paths = {segment.path for segment in report.segments}
    rows = [_row(segment, report) for segment in report.segments]
    for finding in report.findings:
        if finding.path not in paths:
            none = SegmentReport(finding.path, "damaged", 0, 0, None, None, None, None)
            rows.append(_row(none, report) | {"status": None})
    time = pl.Datetime("ms", "UTC")
    schema: dict[str, pl.DataType] = {
        **report_schema(SegmentReport, _SEGMENT),
        "created": time,
        "modified": time,
        "findings": _finding_list(),
        "doubts": pl.List(pl.String()),
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def _row(segment: SegmentReport, report: WalReport) -> dict[str, Any]:
    found = [finding for finding in report.findings if finding.path == segment.path]
    return {
        "path": segment.path,
        "format": report.format,
        "status": segment.status,
        "size_bytes": segment.size_bytes,
        "records": segment.records,
        "first_seq": segment.first_seq,
        "last_seq": segment.last_seq,
        "created": segment.created_ms,
        "modified": segment.modified_ms,
        "problem": ", ".join(_words(finding.kind) for finding in found) or None,
        "findings": [_finding(finding) for finding in found],
        "doubts": report.doubts,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    row = {name: getattr(finding, name) for name in _FINDING.split()}
    for name in ("expected", "found"):
        row[name] = None if row[name] is None else str(row[name])
    return row


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _summary(report: WalReport) -> list[str]:
    from lakelog.display import size_text

    form = "format lakelog" if report.format == "lakelog" else f"specification {report.format}"
    parts = [form, size_text(report.size_bytes), count(report.records, "record")]
    if report.safe_seq:
        parts.append(f"safe up to sequence number {report.safe_seq}")
    if report.truncated_to:
        parts.append(f"truncated up to sequence number {report.truncated_to}")
    if report.set_aside:
        parts.append(f"{count(len(report.set_aside), 'file')} set aside earlier")
    # One line per finding and per doubt.
    parts[-1] = "\n".join([parts[-1], *_sentences(report.findings), *map(_in_doubt, report.doubts)])
    return parts


def _in_doubt(doubt: str) -> str:
    return f"in doubt: {doubt}"


def _sentences(findings: Sequence[Finding]) -> list[str]:
    """One sentence per finding."""
    from lakelog.display import size_text

    sentences = []
    for finding in findings:
        position = f"{plain(os.path.basename(finding.path))} at byte {finding.byte_offset}"
        sentence = f"{_words(finding.kind)}: {finding.reason} ({position}"
        if finding.expected is not None:
            sentence += f", expected {finding.expected}"
        if finding.found is not None:
            sentence += f", found {finding.found}"
        sentences.append(f"{sentence}; {size_text(finding.size_bytes)} not read)")
    return sentences


@options.command(
    "lakelog wal replay events",
    "lakelog wal replay events --state --text --output json",
    "lakelog wal replay events --after 1000 --output parquet --to new.parquet",
    group=wal,
)
@_directory
@_format
@click.option(
    "--after",
    "after_seq",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Only records with a higher sequence number.",
)
@click.option("--state", is_flag=True, help="The last value of each key that is not deleted.")
@click.option("--text", is_flag=True, help="Return keys and values as text instead of bytes.")
@_safe
@options.rows
def replay(
    directory: str,
    form: str | None,
    after_seq: int,
    state: bool,
    text: bool,
    safe: bool,
    output: Output,
) -> int:
    """List the PUT and DELETE records of a log, in order.

    Records of unfinished batches are omitted. In JSON and CSV, bytes are base64 unless --text is
    given. Changes nothing.
    """
    import polars as pl

    if state and after_seq:
        raise InvalidInputError(
            "the state is that of the whole log", hint="omit --after or --state"
        )
    _check_kind(directory)
    with _hints(), progress("replaying", Meter()):
        table, damage, doubts = _read(directory, form, after_seq, state=state, safe=safe)
    for note in (*_sentences(damage), *map(_in_doubt, doubts)):
        warnings.warn(note, LakelogWarning, stacklevel=2)
    for name in _SHOWN_KEY_COLUMNS:
        table = _as_text(table, name, is_asked=text, is_shown=output.format == "table")
    rows = cast("pl.DataFrame", pl.from_arrow(table))
    if "op" in rows.columns:
        rows = rows.with_columns(pl.col("op").cast(pl.String))
    noun = "key" if state else "record"
    emit(rows.lazy(), output, View(noun, tuple(rows.columns)))
    return FINDINGS if damage else GOOD


def _read(
    directory: str, form: str | None, after_seq: int, *, state: bool, safe: bool
) -> tuple[pa.Table, list[Finding], tuple[str, ...]]:
    """The rows, the damage at which they end, and the doubts."""
    from lakelog.wal.historic.log import Finding
    from lakelog.wal.historic.reader import read_historic
    from lakelog.wal.log import WriteAheadLog
    from lakelog.wal.reading import state_of

    if form is not None or _is_historic(directory):
        old = read_historic(directory, cast("HistoricFormat | None", form), strict=not safe)
        table = old.replay(after_seq).table
        damage = [finding for finding in old.findings if finding.is_damage]
        return state_of(table) if state else table, damage, old.doubts
    with WriteAheadLog(directory, read_only=True, strict=not safe) as log:
        table = log.state() if state else log.replay(after_seq).table
        report = log.recovery
    if report is None or report.damage is None:
        return table, [], ()
    found = Finding(
        "damage",
        report.path,
        report.byte_offset,
        report.dropped_bytes,
        report.reason,
        report.damage.get("expected"),
        report.damage.get("found"),
        report.dropped_records,
    )
    return table, [found], ()


@contextmanager
def _hints() -> Iterator[None]:
    """Replace the hints of the Python API by hints for the command line."""
    try:
        yield
    except LakelogError as error:
        if isinstance(error, WalCorruptionError):
            error.hint = "restore the file from a copy, or read the safe records with --safe"
        elif error.hint is not None:
            error.hint = error.hint.replace("format='003'", "--format 003")
        raise


def _check_kind(path: str) -> None:
    """Raise for a path that is neither file nor folder: opening a pipe would block."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise InvalidInputError(
            "the path is neither a file nor a folder",
            path=path,
            hint="write its content to a file, and pass that",
        )


def _is_historic(directory: str) -> bool:
    """Whether a path has a historic log. A file always does: current logs are folders."""
    from lakelog.wal.disk import LocalDisk
    from lakelog.wal.historic.reader import historic_names

    try:
        return bool(historic_names(LocalDisk().list(directory)))
    except NotADirectoryError:
        return True
    except OSError:
        return False


def _as_text(table: pa.Table, name: str, *, is_asked: bool, is_shown: bool) -> pa.Table:
    """Keys or values as text if requested; in text tables also if possible."""
    import pyarrow as pa

    if not (is_asked or is_shown):
        return table
    try:
        column = table[name].cast(pa.string())
    except pa.ArrowInvalid as cause:
        if not is_asked:
            return table
        raise InvalidInputError(
            f"a {name} is not valid UTF-8", hint="omit --text: bytes are then base64"
        ) from cause
    return table.set_column(table.column_names.index(name), name, column)


@options.command(
    "lakelog wal upgrade old", "lakelog wal upgrade old --format 003 --remove-old", group=wal
)
@_directory
@_format
@click.option(
    "--remove-old",
    is_flag=True,
    help="Delete the old files once the new log is durable and verified. Without this option, or "
    "if some of their bytes are not in any record, they are kept with the suffix .upgraded.",
)
@_safe
@options.output
def upgrade(directory: str, form: str | None, remove_old: bool, safe: bool, output: Output) -> int:
    """Upgrade a historic log to the current format, in place.

    No crash loses a record, and records keep their sequence numbers. An interrupted upgrade
    continues when it is called again. First stop the program that writes the old log, because it
    does not use a lock.
    """
    from lakelog.wal.historic.upgrade import upgrade as upgrade_log

    with _hints(), progress("upgrading", Meter()):
        report = upgrade_log(
            directory,
            cast("HistoricFormat | None", form),
            strict=not safe,
            keep_old=not remove_old,
        )
    findings = (_finding_list(), [_finding(finding) for finding in report.findings])
    write_report(report, _upgrade_facts(report), _UPGRADE, output, findings=findings)
    return FINDINGS if report.findings else GOOD


def _upgrade_facts(report: UpgradeReport) -> list[tuple[str, str]]:
    facts = [("new log", report.segment)]
    if report.format is None:
        facts.append(("written", "earlier"))
    else:
        facts += [
            ("old format", f"specification {report.format}"),
            ("records", f"{report.records:,}"),
            ("last sequence number", f"{report.last_seq:,}"),
        ]
    facts += [("old file", path) for path in report.old_files]
    facts += [("finding", sentence) for sentence in _sentences(report.findings)]
    return [*facts, *(("in doubt", doubt) for doubt in report.doubts)]


@options.command(
    "lakelog wal truncate events 1000", "lakelog wal truncate events 1000 --apply", group=wal
)
@_directory
@click.argument("up_to_seq", metavar="SEQ", type=click.IntRange(min=0))
@options.apply
@options.rows
def truncate(directory: str, up_to_seq: int, apply: bool, output: Output) -> None:
    """Truncate records up to SEQ, and delete files without later records.

    Use it after the records were stored elsewhere. Sequence numbers continue.
    """
    import polars as pl

    from lakelog.wal.disk import local_directory
    from lakelog.wal.inspect import inspect as inspect_log
    from lakelog.wal.log import WriteAheadLog

    if os.path.isfile(directory):
        raise InvalidInputError(
            "the path is a file, and a log is truncated in its folder",
            path=directory,
            hint="pass the folder",
        )
    if _is_historic(directory):
        raise InvalidInputError(
            "a historic log cannot be truncated",
            path=directory,
            hint=f"lakelog wal upgrade {directory}",
        )
    before = inspect_log(local_directory(directory))
    damage = next((finding for finding in before.findings if finding.is_damage), None)
    if damage is not None:
        raise damage.error(
            before.safe_seq,
            before.records,
            f"a damaged log cannot be truncated; lakelog wal replay {directory} --safe reads "
            "the safe records",
        )
    if up_to_seq > before.safe_seq:
        raise InvalidInputError(
            "a log cannot be truncated after its last record",
            path=directory,
            expected=f"0 to {before.safe_seq}",
            found=up_to_seq,
        )
    if apply:
        with WriteAheadLog(directory) as log:
            deleted_paths = set(log.truncate(up_to_seq).removed)
        after = inspect_log(directory)
        summary = [
            f"truncated up to sequence number {after.truncated_to}",
            count(after.records, "record") + " left",
        ]
        outcome = "removed"
    else:
        deleted_paths = {
            segment.path
            for segment in before.segments
            if segment.last_seq is not None and segment.last_seq <= up_to_seq
        }
        num_records = min(max(up_to_seq - before.truncated_to, 0), before.records)
        summary = [f"{count(num_records, 'record')} would be truncated", PLANNED]
        outcome = "would be removed"
    rows = _segments(before).filter(pl.col("path").is_in(sorted(deleted_paths)))
    rows = rows.with_columns(outcome=pl.lit(outcome)).drop("problem", "findings", "doubts")
    columns = ("outcome", "path", "size_bytes", "records", "first_seq", "last_seq")
    emit(rows.lazy(), output, View("file", columns, (), lambda _: summary))
