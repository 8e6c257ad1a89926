"""The findings of `Table.doctor`: a pure function of what was measured.

`findings` takes `TableFacts` and returns what needs doing, with the command that does it. It reads
nothing, so that each threshold is tested without a table. `lakelog.health.survey` measures.

An **error** is damage: a reader may fail or read too much. A **warning** costs time or space now. A
note (**info**) needs nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from lakelog.display import LOG_ONLY, ROWS_NOT_COUNTED, Displayed, argument, size_text
from lakelog.model.durations import duration_text
from lakelog.redaction import redact

ERROR, WARNING, INFO = "error", "warning", "info"
"""Severities, the most severe first."""

_CHECKPOINT_OVERDUE_INTERVALS = 2
_CHECKPOINT_OVERDUE_BYTES = 64 << 20
"""Commits above the newest checkpoint, in checkpoint intervals (writers leave less than one) and in
bytes: 64 MiB of JSON take about a second to decode.
"""

_SMALL_FILES_LEAST = 100
_SMALL_FILES_SHARE = 0.5
"""Small files that could be merged: fewer than these cost little, whatever their share."""

_TOMBSTONES_LEAST = 10_000
_TOMBSTONES_PER_FILE = 1.0
"""Tombstones are read with every live file: more of them than files double the work."""

_DELETED_ROWS_SHARE = 0.1
"""Rows that deletion vectors hide are still stored and read."""

_CLEANUP_FILES_LEAST = 1_000
_CLEANUP_BYTES_LEAST = 256 << 20
"""Deletable log files: every listing of the log passes over them."""

_VACUUM_SHARE = 0.25
"""Unused data files, compared with the live ones."""

_SKEW_PARTITIONS_LEAST = 10
_SKEW_RATIO = 10.0
_SKEW_BYTES_LEAST = 1 << 30
"""The largest partition, compared with the median one: below 1 GiB, skew costs little."""


UNCHECKED = "external-unchecked"
INCOMPLETE, BLOCKED = "checkpoint-incomplete", "version-blocked"
COMPACTION = "compaction-ignored"
_FILE_KINDS = (
    "data-missing",
    "data-length",
    "data-unreadable",
    "vector-missing",
    "vector-length",
    UNCHECKED,
)
"""Kinds of `Damage` of data files and deletion vectors; the others are of the log."""


_FINDINGS_SCHEMA = pl.Schema(
    {
        **dict.fromkeys(("severity", "kind", "problem", "remedy"), pl.String()),
        "num_files": pl.Int64(),
        "paths": pl.List(pl.String()),
    }
)


class Damage(NamedTuple):
    """Something wrong in the log or the data. `kind` is as in `lakelog.maintenance.diagnose`; `why`
    is the reason if it cannot be repaired automatically, else None; `num_files` and `paths`: number
    of files, where files were counted, and examples of them.
    """

    kind: str
    problem: str
    why: str | None = None
    num_files: int | None = None
    paths: tuple[str, ...] = ()


class Refusal(NamedTuple):
    """A client that cannot ``read`` or ``write`` the table, and the features that it lacks."""

    client: str
    action: str
    features: tuple[str, ...]


@dataclass(frozen=True)
class TableFacts:
    """Measurements of one version of a table. Sizes are in bytes, durations in milliseconds.

    Attributes:
        table: Location of the table.
        version: The version that was measured.
        damage: What is wrong in the log.
        checkpoint_version: Version of the checkpoint that replay started from, or None.
        tail_commits: Commits that readers replay above it.
        tail_bytes: Their size, in bytes.
        checkpoint_interval: Commits between checkpoints, by the table's properties.
        writes_checkpoints: Whether lakelog can write checkpoints of the table.
        num_files: Live files.
        size_bytes: Their size.
        small_bytes: Files below this size are small.
        small_files: Small files in partitions that have two or more of them.
        small_total_bytes: Their size.
        compacts: Whether lakelog can rewrite the data files.
        tombstones: Removed files that the log still records.
        expired_tombstones: Those older than the retention of removed files.
        deleted_file_retention_ms: That retention.
        vector_files: Files with a deletion vector.
        deleted_rows: Rows that deletion vectors hide.
        stored_rows: All rows of the files with a deletion vector and of the others, where known.
        partitions: Number of partitions; 0 for a table without.
        largest_partition: Values of the largest partition, as text.
        largest_partition_bytes: Its size.
        median_partition_bytes: Size of the median partition.
        cleanup_files: Log files that cleanup would delete.
        cleanup_bytes: Their size.
        cleanup_blocked: Why cleanup keeps everything because of a problem, or None.
        vacuum_files: Data files that vacuum would delete; None if the data was not listed, or
            lakelog cannot write the table.
        vacuum_bytes: Their size, or None.
        unchecked_files: Live files and files of deletion vectors outside of the table's folder that
            were not checked; None if the data was not listed.
        external_folders: Folders outside of the table's folder whose files may be checked.
        refusals: Clients that are known not to support a feature of the table.
        ambiguous_rules: Constraints and generated columns that engines read differently, with their
            texts.
        feature_removal: How a feature is removed from the table; None if it cannot be.
    """

    table: str
    version: int = 0
    damage: tuple[Damage, ...] = ()
    checkpoint_version: int | None = None
    tail_commits: int = 0
    tail_bytes: int = 0
    checkpoint_interval: int = 10
    writes_checkpoints: bool = True
    num_files: int = 0
    size_bytes: int = 0
    small_bytes: int = 0
    small_files: int = 0
    small_total_bytes: int = 0
    compacts: bool = True
    tombstones: int = 0
    expired_tombstones: int = 0
    deleted_file_retention_ms: int = 0
    vector_files: int = 0
    deleted_rows: int = 0
    stored_rows: int | None = None
    partitions: int = 0
    largest_partition: str = ""
    largest_partition_bytes: int = 0
    median_partition_bytes: int = 0
    cleanup_files: int = 0
    cleanup_bytes: int = 0
    cleanup_blocked: str | None = None
    vacuum_files: int | None = None
    vacuum_bytes: int | None = None
    unchecked_files: int | None = None
    external_folders: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    ambiguous_rules: tuple[str, ...] = ()
    feature_removal: str | None = None

    def command(self, name: str, *options: str) -> str:
        """A command line for this table."""
        words = (name, argument(redact(self.table)), *map(shlex.quote, options))
        return " ".join(("lakelog", *words))


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        severity: ``error``, ``warning`` or ``info``.
        kind: Its stable name.
        problem: A sentence.
        remedy: The command that repairs it, or lists all files with the problem; None if none does.
        num_files: Number of files with the problem; None if the problem is not one of files.
        paths: Some of these files, as the log names them.
    """

    severity: str
    kind: str
    problem: str
    remedy: str | None = None
    num_files: int | None = None
    paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class HealthReport(Displayed):
    """What should be done for a table; see `lakelog.table.Table.doctor`.

    Attributes:
        table: Location of the table.
        version: The version that was examined.
        findings: The findings, the most severe first.
        measures: The measurements that they were derived from.
    """

    _title = "Health"

    table: str
    version: int
    findings: tuple[Finding, ...]
    measures: TableFacts

    @property
    def is_examined(self) -> bool:
        """Whether the log could be read; if not, nothing but the damage was measured."""
        return all(each.kind != "log" for each in self.measures.damage)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Findings that need something done: errors and warnings."""
        return tuple(each for each in self.findings if each.severity != INFO)

    def to_polars(self) -> pl.DataFrame:
        """One row per finding: ``severity``, ``kind``, ``problem``, ``remedy`` (String),
        ``num_files`` (Int64), ``paths`` (List(String)); see `Finding`.
        """
        rows = [
            (each.severity, each.kind, each.problem, each.remedy, each.num_files, list(each.paths))
            for each in self.findings
        ]
        return pl.DataFrame(rows, schema=_FINDINGS_SCHEMA, orient="row")

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        rows = [("path", redact(self.table)), ("version", str(self.version))]
        for each in self.findings:
            rows.append((each.severity, each.problem))
            if each.remedy is not None:
                rows.append(("", each.remedy))
        if not self.problems:
            unlisted = self.measures.unchecked_files is None
            rows.append(
                ("result", f"nothing needs doing{LOG_ONLY if unlisted else ROWS_NOT_COUNTED}")
            )
        return rows


def findings(facts: TableFacts) -> list[Finding]:
    """The findings for a table's measurements, the most severe first.

    >>> [found.kind for found in findings(TableFacts("orders", tail_commits=20))]
    ['checkpoint-missing']
    """
    found = [each for rule in _RULES for each in rule(facts)]
    return sorted(found, key=lambda each: (ERROR, WARNING, INFO).index(each.severity))


def _damage(facts: TableFacts) -> Iterator[Finding]:
    for kind, problem, why, num_files, paths in facts.damage:
        text = problem if why is None else f"{problem}; {why}"
        if kind in _FILE_KINDS:
            is_unchecked = kind == UNCHECKED
            allowed = [f"--allow-external={folder}" for folder in facts.external_folders]
            listing = facts.command("repair", "--check-files", *allowed)
            severity, remedy = (WARNING, None) if is_unchecked else (ERROR, listing)
            yield Finding(severity, kind, text, remedy, num_files, paths)
        elif kind == INCOMPLETE:
            more = "readers use other files, and cleanup deletes it when its version expires"
            yield Finding(INFO, kind, f"{text}; {more}")
        elif kind == COMPACTION:
            more = "its commits are read instead; if it is truncated, delete it for other readers"
            yield Finding(INFO, kind, f"{text}; {more}")
        elif kind == BLOCKED:
            yield Finding(ERROR, kind, text)
        else:
            severity = ERROR if kind in {"log", "checkpoint", "property", "files"} else WARNING
            command = facts.command("repair", "--apply") if why is None else None
            yield Finding(severity, f"{kind}-damaged", text, command)


def _checkpoint(facts: TableFacts) -> Iterator[Finding]:
    due = facts.checkpoint_interval * _CHECKPOINT_OVERDUE_INTERVALS
    if not facts.writes_checkpoints:
        return
    if facts.tail_commits < due and facts.tail_bytes < _CHECKPOINT_OVERDUE_BYTES:
        return
    read = f"{facts.tail_commits:,} commits ({size_text(facts.tail_bytes)})"
    remedy = facts.command("checkpoint")
    if facts.checkpoint_version is None:
        problem = f"the table has no checkpoint, so every reader replays {read}"
        yield Finding(WARNING, "checkpoint-missing", problem, remedy)
    else:
        problem = (
            f"the newest checkpoint has version {facts.checkpoint_version:,}, so every reader "
            f"replays {read} above it; one is due every {facts.checkpoint_interval:,} commits"
        )
        yield Finding(WARNING, "checkpoint-overdue", problem, remedy)


def _small_files(facts: TableFacts) -> Iterator[Finding]:
    if facts.small_files < _SMALL_FILES_LEAST:
        return
    problem = (
        f"{facts.small_files:,} of {facts.num_files:,} files "
        f"({_percent(facts.small_files, facts.num_files)}) are smaller than "
        f"{size_text(facts.small_bytes)} and could be merged with others of their partition; "
        f"together they have {size_text(facts.small_total_bytes)}"
    )
    many = facts.small_files >= _SMALL_FILES_SHARE * facts.num_files
    if not facts.compacts:
        problem += "; merge them with the program that writes the table"
        yield Finding(INFO, "small-files", problem)
    else:
        severity = WARNING if many else INFO
        yield Finding(severity, "small-files", problem, facts.command("compact"))


def _tombstones(facts: TableFacts) -> Iterator[Finding]:
    limit = max(_TOMBSTONES_LEAST, _TOMBSTONES_PER_FILE * facts.num_files)
    if facts.tombstones < limit:
        return
    problem = f"the log records {facts.tombstones:,} removed files next to {facts.num_files:,} live"
    if facts.tombstones - facts.expired_tombstones < limit and facts.writes_checkpoints:
        problem += f"; a checkpoint would drop the {facts.expired_tombstones:,} that have expired"
        yield Finding(WARNING, "tombstones", problem, facts.command("checkpoint"))
    else:
        kept = duration_text(facts.deleted_file_retention_ms)
        problem += f" ones; the table keeps them for {kept} (delta.deletedFileRetentionDuration)"
        yield Finding(INFO, "tombstones", problem)


def _deletion_vectors(facts: TableFacts) -> Iterator[Finding]:
    if not facts.stored_rows or not facts.deleted_rows:
        return
    problem = (
        f"deletion vectors of {facts.vector_files:,} files hide {facts.deleted_rows:,} of "
        f"{facts.stored_rows:,} rows ({_percent(facts.deleted_rows, facts.stored_rows)}), which "
        "are still stored and read"
    )
    many = facts.deleted_rows >= _DELETED_ROWS_SHARE * facts.stored_rows
    remedy = facts.command("compact") if many else None
    yield Finding(WARNING if many else INFO, "deleted-rows", problem, remedy)


def _cleanup(facts: TableFacts) -> Iterator[Finding]:
    if facts.cleanup_blocked is not None:
        problem = f"cleanup keeps all log files: {facts.cleanup_blocked}"
        yield Finding(WARNING, "cleanup-blocked", problem, facts.command("repair"))
    if not facts.cleanup_files:
        return
    problem = (
        f"no retained version needs {facts.cleanup_files:,} log files "
        f"({size_text(facts.cleanup_bytes)})"
    )
    many = (
        facts.cleanup_files >= _CLEANUP_FILES_LEAST or facts.cleanup_bytes >= _CLEANUP_BYTES_LEAST
    )
    severity = WARNING if many else INFO
    yield Finding(
        severity, "log-files", problem, facts.command("cleanup", "--apply", "--quarantine")
    )


def _vacuum(facts: TableFacts) -> Iterator[Finding]:
    if not facts.vacuum_files or facts.vacuum_bytes is None:
        return
    problem = (
        f"no version within the retention needs {facts.vacuum_files:,} data files "
        f"({size_text(facts.vacuum_bytes)}, next to {size_text(facts.size_bytes)} of live files)"
    )
    severity = WARNING if facts.vacuum_bytes >= _VACUUM_SHARE * facts.size_bytes else INFO
    yield Finding(severity, "data-files", problem, facts.command("vacuum", "--apply"))


def _skew(facts: TableFacts) -> Iterator[Finding]:
    largest, median = facts.largest_partition_bytes, facts.median_partition_bytes
    if facts.partitions < _SKEW_PARTITIONS_LEAST or largest < _SKEW_BYTES_LEAST:
        return
    if largest < _SKEW_RATIO * max(median, 1):
        return
    problem = (
        f"partition {facts.largest_partition} has {size_text(largest)}, the median of "
        f"{facts.partitions:,} partitions {size_text(median)}: tasks that read one partition each "
        "take unequal times"
    )
    yield Finding(INFO, "partition-skew", problem)


def _ambiguous_rules(facts: TableFacts) -> Iterator[Finding]:
    for rule in facts.ambiguous_rules:
        problem = (
            f"{rule} has the name of a column in double quotes, which delta-rs reads as the column "
            "and Spark as a string; lakelog writes no rows to the table. Write the column in "
            "backquotes, or the string in single quotes"
        )
        yield Finding(WARNING, "rule-ambiguous", problem)


def _clients(facts: TableFacts) -> Iterator[Finding]:
    if not facts.refusals:
        return
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for client, action, features in facts.refusals:
        alike.setdefault((action, features), []).append(client)
    texts = [
        f"{', '.join(clients)} cannot {action} it ({', '.join(features)})"
        for (action, features), clients in alike.items()
    ]
    problem = f"the table has features that some clients lack: {'; '.join(texts)}"
    if facts.feature_removal is not None:
        problem += f". {facts.feature_removal}"
    yield Finding(INFO, "client-features", problem, facts.command("compat"))


_RULES: Sequence[Callable[[TableFacts], Iterator[Finding]]] = (
    _damage,
    _checkpoint,
    _small_files,
    _deletion_vectors,
    _tombstones,
    _cleanup,
    _vacuum,
    _skew,
    _ambiguous_rules,
    _clients,
)


def _percent(part: int, whole: int) -> str:
    """A share as text."""
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 1 else "under 1 %"
