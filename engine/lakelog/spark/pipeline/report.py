"""`PipelineReport`: the result of each step, as a dataframe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from lakelog.log.display import size_text

Status = Literal["done", "nothing to do", "already done", "incomplete"]

REPORT_SCHEMA = pl.Schema(
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
        step: Its name.
        status: ``done``; ``nothing to do``; ``already done``, for a batch that the table contains;
            ``incomplete``, if it could not finish; the next run continues.
        rows: Rows written.
        files: Files written.
        bytes: Bytes in them.
        removed: Files removed from the table (``compact``) or deleted.
        skips: Files that could not be read or deleted, and were skipped.
        seconds: Duration.
        version: The table's version after it.
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
        name: The pipeline.
        table: Location of the table.
        steps: One per step that ran, in order.
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
        """One row per step; see `REPORT_SCHEMA`."""
        names = list(REPORT_SCHEMA)
        rows = [{name: getattr(each, name) for name in names} for each in self.steps]
        plain = [row | {"notes": list(row["notes"])} for row in rows]
        return pl.DataFrame(plain, schema=REPORT_SCHEMA)

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
        title = f"Pipeline {self.name}: {self.table}"
        return "\n".join([title, *(f"  {line.rstrip()}" for line in lines), *self._notes()])

    def _repr_html_(self) -> str:
        import html

        def line(cells: list[str], tag: str) -> str:
            return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)

        body = "".join(f"<tr>{line(cells, 'td')}</tr>" for cells in self._cells())
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        caption = html.escape(f"Pipeline {self.name}: {self.table}")
        head = f"<tr>{line(_HEAD, 'th')}</tr>"
        return f"<table><caption>{caption}</caption>{head}{body}</table>{notes}"


_HEAD = ["step", "status", "rows", "files", "bytes", "removed", "skips", "seconds", "version"]
_TEXTS = 2
