"""The settings and the report of each step.

Sizes are bytes, or strings such as ``128MB``; durations are milliseconds, a timedelta, or strings
such as ``24 hours``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import polars as pl

from lakelog.display import parse_size, size_text
from lakelog.errors import InvalidInputError
from lakelog.model.column_names import close_names
from lakelog.model.durations import to_duration_ms
from lakelog.redaction import redact_path, redacted

Status = Literal["done", "nothing to do", "already done", "incomplete"]

_REPORT_SCHEMA = pl.Schema(
    {
        "step": pl.String(),
        "status": pl.String(),
        "rows": pl.Int64(),
        "files": pl.Int64(),
        "bytes": pl.Int64(),
        "removed": pl.Int64(),
        "skips": pl.Int64(),
        "seconds": pl.Float64(),
        "version": pl.Int64(),
        "notes": pl.List(pl.String()),
    }
)
"""Columns of `PipelineReport.to_polars`."""


@dataclass(frozen=True)
class StepReport:
    """The result of one step.

    Attributes:
        step: Name of the step.
        status: ``done``; ``nothing to do``; ``already done``, for a batch that the table contains;
            ``incomplete``, if it could not finish; the next run continues.
        rows: Number of rows written.
        files: Number of files written.
        bytes: Total size of the files written, in bytes.
        removed: Number of files removed from the table (``compact``) or deleted.
        skips: Number of files that could not be read or deleted, and were skipped.
        seconds: Duration in seconds.
        version: Version of the table after the step.
        notes: Notes for the user, one sentence each.
    """

    step: str
    status: Status
    rows: int = 0
    files: int = 0
    bytes: int = 0
    removed: int = 0
    skips: int = 0
    seconds: float = 0.0
    version: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PipelineReport:
    """The result of a run, step by step.

    Attributes:
        name: Name of the pipeline.
        table: Location of the table.
        steps: One report per step that ran, in order.
    """

    name: str
    table: str
    steps: tuple[StepReport, ...] = field(default=())

    def __getitem__(self, step: str) -> StepReport:
        """The report of a step by its name."""
        for each in self.steps:
            if each.step == step:
                return each
        raise KeyError(step)

    def __iter__(self) -> Iterator[StepReport]:
        """The steps that ran, in order."""
        return iter(self.steps)

    @property
    def is_complete(self) -> bool:
        """Whether every step finished and skipped nothing."""
        return not any(each.skips or each.status == "incomplete" for each in self.steps)

    def to_polars(self) -> pl.DataFrame:
        """One row per step.

        Columns: ``step``, ``status`` (String), ``rows``, ``files``, ``bytes``, ``removed``,
        ``skips`` (Int64), ``seconds`` (Float64), ``version`` (Int64), ``notes`` (List of String).
        """
        names = list(_REPORT_SCHEMA)
        rows = [{name: getattr(each, name) for name in names} for each in self.steps]
        plain = [row | {"notes": list(row["notes"])} for row in rows]
        return pl.DataFrame(plain, schema=_REPORT_SCHEMA)

    def _cells(self) -> list[list[str]]:
        return [
            [
                each.step,
                each.status,
                f"{each.rows:,}",
                f"{each.files:,}",
                size_text(each.bytes),
                f"{each.removed:,}",
                f"{each.skips:,}",
                f"{each.seconds:.1f}",
                "" if each.version is None else str(each.version),
            ]
            for each in self.steps
        ]

    @property
    def _title(self) -> str:
        return f"Pipeline {self.name}: {redact_path(self.table)}"

    def _notes(self) -> list[str]:
        return [f"{each.step}: {note}" for each in self.steps for note in each.notes]

    def __str__(self) -> str:
        rows = [_HEAD, *self._cells()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines = [
            "  ".join(
                cell.ljust(width) if column < _TEXTS else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        return "\n".join([self._title, *(f"  {line.rstrip()}" for line in lines), *self._notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        import html

        def line(cells: list[str], tag: str) -> str:
            return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)

        body = "".join(f"<tr>{line(cells, 'td')}</tr>" for cells in self._cells())
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        caption = html.escape(self._title)
        head = f"<tr>{line(_HEAD, 'th')}</tr>"
        return f"<table><caption>{caption}</caption>{head}{body}</table>{notes}"


_HEAD = ["step", "status", "rows", "files", "bytes", "removed", "skips", "seconds", "version"]
_TEXTS = 2

STEPS = ("ingest", "compact", "checkpoint", "cleanup", "vacuum")
"""Steps in the order in which they run."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(value)
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_text(value),)
    if not isinstance(value, Sequence):
        raise ValueError(value)
    return tuple(_text(each) for each in value)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(value)
    return MappingProxyType(dict(value))


def _options(value: Any) -> Mapping[str, str]:
    """Options for Spark, as strings."""
    spelled = {}
    for key, each in _mapping(value).items():
        if not isinstance(each, str | bool | int | float):
            raise ValueError(value)
        spelled[key] = str(each).lower() if isinstance(each, bool) else str(each)
    return MappingProxyType(spelled)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _positive(value: Any) -> int:
    if _count(value) < 1:
        raise ValueError(value)
    return int(value)


def _counts(value: Any) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError(value)
    return tuple(_count(each) for each in value)


def to_bytes(value: Any) -> int:
    """Parse a size; raises ValueError if invalid."""
    return _positive(parse_size(value) if isinstance(value, str) else value)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(value)
    return float(value)


def _mode(value: Any) -> str:
    if value not in {"available_now", "batch"}:
        raise ValueError(value)
    return str(value)


_KINDS = {
    "text": (_text, "a string"),
    "texts": (_texts, "a string, or a list of strings"),
    "mapping": (_mapping, "names and values"),
    "options": (_options, "names and plain values"),
    "flag": (_flag, "true or false"),
    "count": (_count, "an integer >= 0"),
    "positive": (_positive, "an integer >= 1"),
    "counts": (_counts, "a list of integers >= 0"),
    "size": (to_bytes, 'a number of bytes, or a string such as "128MB"'),
    "share": (_share, "a number from 0 to 1"),
    "duration": (to_duration_ms, 'milliseconds, or a string such as "24 hours"'),
    "mode": (_mode, '"available_now" or "batch"'),
}


def _is(kind: str, default: Any = dataclasses.MISSING, *, secret: bool = False) -> Any:
    """A field of a kind; without a default it is required, except mappings."""
    if kind in {"mapping", "options"}:
        return field(default_factory=dict, metadata={"kind": kind}, repr=not secret)
    return field(default=default, metadata={"kind": kind}, repr=not secret)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of the sections of a pipeline: validates the kind of each field."""

    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value is None and each.default is None:
                continue
            read, expected = _KINDS[each.metadata["kind"]]
            try:
                settled = read(value)
            except (ValueError, TypeError) as cause:
                raise InvalidInputError(
                    f"[{self.section}] {each.name} is malformed",
                    expected=expected,
                    found=repr(value) if each.repr else _names(value),
                ) from (cause if each.repr else None)
            object.__setattr__(self, each.name, settled)
        self.check()

    def __repr__(self) -> str:
        shown = [
            (each.name, getattr(self, each.name)) for each in dataclasses.fields(self) if each.repr
        ]
        return f"{type(self).__name__}({', '.join(f'{n}={redacted(v)!r}' for n, v in shown)})"

    def check(self) -> None:
        """Raise for fields that are valid, but not in combination."""

    @classmethod
    def of(cls, given: Any) -> Self:
        """Settings from a section of a file; InvalidInputError for an invalid or missing key."""
        if not isinstance(given, Mapping):
            raise InvalidInputError(
                f"{cls.section} must be a section", expected=f"[{cls.section}]", found=repr(given)
            )
        known = {each.name: each for each in dataclasses.fields(cls)}
        require_known(given, known, f"[{cls.section}]")
        for name, each in known.items():
            has_default = each.default is not dataclasses.MISSING
            has_default |= each.default_factory is not dataclasses.MISSING
            if not has_default and name not in given:
                raise InvalidInputError(f"[{cls.section}] lacks a required key", expected=name)
        return cls(**given)


def _names(value: Any) -> str | None:
    """The names of options, whose values may be secret."""
    return ", ".join(map(str, value)) if isinstance(value, Mapping) else None


def require_known(given: Mapping[str, Any], known: Mapping[str, Any], place: str) -> None:
    """Raise InvalidInputError for unknown keys; the hint is the nearest known key."""
    for key in given:
        if key not in known:
            raise InvalidInputError(
                f"{place} has an unknown key {key}",
                expected=", ".join(known),
                found=key,
                hint=close_names(key, known) or "remove it",
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class Target(Settings):
    """The table that a pipeline fills and maintains.

    Attributes:
        path: Path or URL.
        storage_options: For the fsspec filesystem, as in `lakelog.open`.
        allow_external: URLs and paths of folders outside the table's folder whose files may be
            read, as in `lakelog.open`.
        create: Whether a missing table is created, with the ingested columns.
        partition_by: Partition columns of a created table, in order.
        properties: Properties of a created table.
    """

    section: ClassVar[str] = "table"

    path: str = _is("text")
    storage_options: Mapping[str, Any] = _is("mapping", secret=True)
    allow_external: Sequence[str] = _is("texts", ())
    create: bool = _is("flag", default=False)
    partition_by: Sequence[str] = _is("texts", ())
    properties: Mapping[str, Any] = _is("options")

    def check(self) -> None:
        """Raise for options that apply only to a new table."""
        if not self.create and (self.partition_by or self.properties):
            raise InvalidInputError(
                (
                    "[table] partition_by and properties apply only to a table that the "
                    "pipeline creates"
                ),
                expected="create = true",
                hint="or remove them: the existing table has its own",
            )


INGEST_LOG = "lakelog-ingest"
"""The format of the directory of an `Ingestor`."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Ingest(Settings):
    """Ingests the rows of any Spark source, each exactly once.

    Attributes:
        format: Format of the source, as Spark names it: ``json`` (NDJSON), ``csv``, ``parquet``,
            ``kafka``, ``delta``, ``lakelog``…; or ``lakelog-ingest``: `path` is the directory of a
            `lakelog.Ingestor` of this table, which no process has open, and all other keys must be
            omitted.
        path: Path or paths of the source, if it has any.
        schema: Columns of the source in Spark's DDL (``id bigint, at timestamp``); None: the
            table's columns for files, and the source's for others.
        options: Options of the source.
        select: SQL expressions that compute the table's columns from the source's.
        mode: ``available_now`` reads the data that was added since the last run, and needs
            `checkpoint`; ``batch`` reads all data, and needs `batch_id`.
        checkpoint: Folder in which Spark records the position in the source.
        batch_id: Number of the batch, higher than all earlier ones; a batch that the table contains
            is not written again.
    """

    section: ClassVar[str] = "ingest"

    format: str = _is("text")
    path: Sequence[str] = _is("texts", ())
    schema: str | None = _is("text", None)
    options: Mapping[str, Any] = _is("options", secret=True)
    select: Sequence[str] = _is("texts", ())
    mode: str = _is("mode", "available_now")
    checkpoint: str | None = _is("text", None)
    batch_id: int | None = _is("count", None)

    def check(self) -> None:
        """Require the fields with which the mode writes each row once."""
        if self.format == INGEST_LOG:
            others = (self.checkpoint, self.schema, self.options, self.select)
            if len(self.path) != 1 or any(others) or self.batch_id is not None:
                raise InvalidInputError(
                    f"[ingest] format {INGEST_LOG} takes path only: one directory of an Ingestor",
                    expected="path",
                    hint="the directory records itself which rows are committed",
                )
            return
        needed, other = (
            ("checkpoint", "batch_id")
            if self.mode == "available_now"
            else ("batch_id", "checkpoint")
        )
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise InvalidInputError(
                f"[ingest] mode {self.mode} needs {needed}, and does not allow {other}",
                expected=needed,
                hint="checkpoint records which files were read, and batch_id identifies the "
                "batch; without them, rows would be written twice",
            )
        if self.mode == "available_now" and len(self.path) > 1:
            raise InvalidInputError(
                "[ingest] a stream must read one path",
                found=", ".join(self.path),
                hint="use a pattern such as raw/*/events, or one pipeline per path",
            )


@dataclass(frozen=True, kw_only=True)
class Compact(Settings):
    """Rewrites small files, and files with deleted rows, to files of a target size, by partition.

    Attributes:
        target_bytes: Target size of a file in bytes; None: the table's own
            (``delta.targetFileSize``), else 128 MiB.
        small_bytes: Files below this size in bytes are small; None: three quarters of the target.
        deleted_share: Larger files are rewritten too if more than this share (0 to 1) of their rows
            is deleted.
        where: SQL condition; only files that may contain matching rows are rewritten.
        cooldown: Duration for which a file that cannot be read is skipped.
        commit_bytes: Approximate size of the files that are rewritten per commit, in bytes.
    """

    section: ClassVar[str] = "compact"

    target_bytes: int | str | None = _is("size", None)
    small_bytes: int | str | None = _is("size", None)
    deleted_share: float = _is("share", 0.05)
    where: str | None = _is("text", None)
    cooldown: dt.timedelta | int | str = _is("duration", 24 * 3_600_000)  # noqa: RUF009 - makes a field
    commit_bytes: int | str = _is("size", 16 << 30)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Settings):
    """Writes a verified checkpoint of the latest version.

    Attributes:
        layout: As in `lakelog.table.Table.checkpoint`.
        executors_from: Number of files in the table from which on executors write the parts; with
            fewer files, the driver writes the checkpoint, which is faster.
    """

    section: ClassVar[str] = "checkpoint"

    layout: str = _is("text", "auto")
    executors_from: int = _is("count", 2_000_000)


@dataclass(frozen=True, kw_only=True)
class Cleanup(Settings):
    """Deletes log files that no version within the retention needs.

    Attributes:
        retention: Duration for which replaced versions remain readable; None: the table's own.
        quarantine: Whether the files are moved to quarantine instead of deleted.
    """

    section: ClassVar[str] = "cleanup"

    retention: dt.timedelta | int | str | None = _is("duration", None)  # noqa: RUF009 - makes a field
    quarantine: bool = _is("flag", default=False)


@dataclass(frozen=True, kw_only=True)
class Vacuum(Settings):
    """Deletes data files that no retained version needs; executors list the folders.

    Attributes:
        retention: Duration for which removed files are kept; None: the table's own.
        keep_versions: Versions whose files are kept at any age.
        keep_history: Whether the files of every version that can be rebuilt are kept.
    """

    section: ClassVar[str] = "vacuum"

    retention: dt.timedelta | int | str | None = _is("duration", None)  # noqa: RUF009 - makes a field
    keep_versions: Sequence[int] = _is("counts", ())
    keep_history: bool = _is("flag", default=False)
