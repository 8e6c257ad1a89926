"""Helpers of the maintenance commands: reports as rows or facts, inventories, errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
import polars as pl

from lakelog.cli import view
from lakelog.cli.options import Output
from lakelog.cli.output import View, emit, write_text
from lakelog.errors import InvalidInputError

if TYPE_CHECKING:
    from lakelog.errors import LakelogError

GOOD, FINDINGS = 0, 1
"""Exit codes: findings are a checkpoint that is wrong, something that is not repaired, a file that
could not be deleted.
"""

PLANNED = "nothing is changed without --apply"

_READERS: dict[str, Callable[[str], pl.DataFrame]] = {
    "parquet": pl.read_parquet,
    "csv": pl.read_csv,
    "json": pl.read_json,
}


def tell(
    report: Any,
    facts: Sequence[tuple[str, str]],
    schema: dict[str, pl.DataType],
    output: Output,
    **more: Any,
) -> None:
    """A report as text facts, or as one machine-readable row."""
    if output.format == "table":
        write_text(view.facts_text(facts, to_file=output.to is not None), output)
        return
    emit(one_row(report, schema, **more), output, View("report", ()))


def one_row(report: Any, schema: dict[str, pl.DataType], **more: Any) -> pl.LazyFrame:
    """A report as one row; see `tell`."""
    row = {name: more[name] if name in more else getattr(report, name) for name in schema}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in row.items()}
    return pl.LazyFrame([plain], schema=schema)


def read_inventory(path: str | None) -> pl.DataFrame | None:
    """Read an inventory; the suffix gives the format."""
    if path is None:
        return None
    suffix = path.rpartition(".")[2].lower()
    reader = _READERS.get(suffix)
    if reader is None:
        raise InvalidInputError(
            "the suffix decides the format of the inventory",
            path=path,
            expected=", ".join(f".{known}" for known in _READERS),
        )
    try:
        return reader(path)
    except (OSError, pl.exceptions.PolarsError) as cause:
        reason = (str(cause).splitlines() or [""])[0]
        raise InvalidInputError(f"the inventory cannot be read: {reason}", path=path) from cause


def tell_errors(errors: Sequence[LakelogError]) -> int:
    """Report the first error; returns the exit code."""
    for error in errors[:10]:
        click.echo(
            f"{click.style('not deleted:', fg='red')} {error.path}: {error.message}", err=True
        )
    if len(errors) > 10:
        click.echo(f"and {len(errors) - 10:,} more", err=True)
    return FINDINGS if errors else GOOD
