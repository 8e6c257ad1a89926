"""Rows and reports as text tables, JSON, CSV, Parquet or Arrow, in the format of the options.

Polars and rich are imported when a command runs, so that help is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import click

from lakelog.cli.options import Output, name_text
from lakelog.cli.text import count
from lakelog.errors import InvalidInputError, LakelogError, NotFoundError, UnavailableError

if TYPE_CHECKING:
    import polars as pl

GOOD, FINDINGS, NOT_EXAMINED = 0, 1, 3
"""Exit codes: findings are a checkpoint that is wrong, a problem that is not repaired, a file
that could not be deleted. Not examined: `doctor` could not read the table.
"""

PLANNED = "nothing is changed without --apply"

TABLE_ROWS = 50
"""Number of rows of a text table without ``--limit``."""

_PIPE_CLOSED = "Broken pipe"


def _nothing(_rows: pl.DataFrame) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class View:
    """The text table of a command's rows. Without ``--columns``, columns without values and
    `redundant` ones are omitted; an empty `sort` keeps the order. `exact`: columns and values of
    the user's table, all of them, without units and separators.
    """

    noun: str
    columns: tuple[str, ...]
    sort: tuple[str, ...] = ()
    summary: Callable[[pl.DataFrame], Sequence[str]] = _nothing
    redundant: Callable[[pl.DataFrame], Sequence[str]] = _nothing
    exact: bool = False


def emit(rows: pl.LazyFrame, output: Output, shown: View) -> None:
    """`collect`, then `write`."""
    write(collect(rows, output, shown), output, shown)


def collect(rows: pl.LazyFrame, output: Output, shown: View) -> pl.DataFrame:
    """The rows and columns that `write` needs; no others are read."""
    from lakelog.model.contract import column_named

    known = rows.collect_schema().names()
    columns = chosen_columns(known, output)
    if output.format == "table":
        # A text table is sorted, counted and summarised, so it needs all rows, but few columns.
        wanted = (*columns, *shown.columns, *shown.sort)
        return rows.select(column_named(c) for c in dict.fromkeys(wanted) if c in known).collect()
    if columns:
        rows = rows.select(map(column_named, columns))
    if output.limit is not None:
        rows = rows.head(output.limit)
    return rows.collect()


def chosen_columns(known: Collection[str], output: Output) -> tuple[str, ...]:
    """The ``--columns``; refuses those that are unknown or repeated."""
    from lakelog.model.column_names import close_names, known_name

    message = "--columns names a column that the output does not have"
    found = tuple(
        known_name(name, known, message, hint=close_names(name, known, name_text))
        for name in output.columns
    )
    if len(set(found)) < len(found):
        raise InvalidInputError(
            "a column is requested twice", expected="each once", found=", ".join(output.columns)
        )
    return found


def write(frame: pl.DataFrame, output: Output, shown: View) -> None:
    """Write the result of `collect` in the format of the options."""
    if output.format == "table":
        write_text(_table(frame, output, shown), output)
    else:
        write_frames([frame], output)


def write_frames(frames: Iterable[pl.DataFrame], output: Output) -> None:
    """Write frames of one schema, at least one, in a format other than a text table."""
    from lakelog.cli.rendering import WRITERS

    with _sink(output) as sink:
        WRITERS[output.format](frames, sink)


def _table(frame: pl.DataFrame, output: Output, shown: View) -> str:
    from lakelog.cli import rendering
    from lakelog.model.contract import column_named

    chosen = chosen_columns(frame.columns, output)
    chosen = chosen or tuple(c for c in shown.columns if c in frame.columns)
    if shown.sort:
        frame = frame.sort(*map(column_named, shown.sort))
    limit = TABLE_ROWS if output.limit is None else output.limit
    top = frame.head(limit).select(map(column_named, chosen))
    if not output.columns and not shown.exact:
        # Computed from all rows, so that another limit shows the same columns.
        empty = [c for c in chosen if frame.height and frame[c].null_count() == frame.height]
        hidden = {*empty, *shown.redundant(top)}
        top = top.select(column_named(c) for c in chosen if c not in hidden)
    parts = [count(frame.height, shown.noun)]
    if top.height < frame.height:
        parts = [f"{top.height:,} of {parts[0]} shown", f"--limit {frame.height} shows all"]
    return rendering.table_text(
        top,
        [*parts, *shown.summary(frame)],
        to_file=output.to is not None,
        may_hide=not output.columns,
        exact=shown.exact,
    )


def write_facts(facts: Sequence[tuple[str, str]], output: Output) -> None:
    """Write labels and values as text."""
    from lakelog.cli import rendering

    write_text(rendering.facts_text(facts, to_file=output.to is not None), output)


def write_text(text: str, output: Output) -> None:
    """Write text to the output."""
    if output.to is None:
        click.echo(text, color=True)
        return
    with _sink(output) as sink:
        sink.write(text.encode() + b"\n")


def write_report(
    report: Any,
    facts: Sequence[tuple[str, str]],
    columns: str,
    output: Output,
    **values: tuple[pl.DataType, Any],
) -> None:
    """Write a report as text facts, or as the machine-readable row of `report_row`."""
    if output.format == "table":
        write_facts(facts, output)
        return
    emit(report_row(report, columns, **values), output, View("report", ()))


def report_row(report: Any, columns: str, **values: tuple[pl.DataType, Any]) -> pl.LazyFrame:
    """A report as one row; `values` overrides the type and value of attributes."""
    import polars as pl

    schema = report_schema(type(report), columns) | {k: type_ for k, (type_, _) in values.items()}
    row = {k: values[k][1] if k in values else getattr(report, k) for k in schema}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in row.items()}
    return pl.LazyFrame([plain], schema=schema)


def report_schema(report: type, columns: str) -> dict[str, pl.DataType]:
    """Polars types of a report's attributes, by their annotations; else text."""
    import polars as pl

    types = {"int": pl.Int64(), "float": pl.Float64(), "bool": pl.Boolean()}
    annotations = {field.name: str(field.type) for field in fields(report)}
    for name, value in vars(report).items():
        if isinstance(value, property) and value.fget is not None:
            annotations[name] = str(value.fget.__annotations__.get("return"))
    schema: dict[str, pl.DataType] = {}
    for name in columns.split():
        annotation = annotations.get(name, "str").removesuffix(" | None")
        is_list = annotation.startswith("tuple[")
        schema[name] = pl.List(pl.String()) if is_list else types.get(annotation, pl.String())
    return schema


def read_inventory(path: str | None) -> pl.DataFrame | None:
    """Read an inventory; the suffix gives the format."""
    if path is None:
        return None
    import polars as pl

    suffix = path.rpartition(".")[2].lower()
    readers: dict[str, Callable[[str], pl.DataFrame]] = {
        "parquet": partial(pl.read_parquet, glob=False),
        "csv": partial(pl.read_csv, glob=False),
        "json": pl.read_json,
    }
    reader = readers.get(suffix)
    if reader is None:
        raise InvalidInputError(
            "the suffix decides the format of the inventory",
            path=path,
            expected=", ".join(f".{known}" for known in readers),
        )
    try:
        return reader(path)
    except FileNotFoundError as cause:
        raise NotFoundError("the inventory was not found", path=path) from cause
    except (OSError, pl.exceptions.PolarsError) as cause:
        reason = (str(cause).splitlines() or [""])[0]
        raise InvalidInputError(f"the inventory cannot be read: {reason}", path=path) from cause


def show_errors(errors: Sequence[LakelogError]) -> int:
    """Report the first error; returns the exit code."""
    for error in errors[:10]:
        click.echo(
            f"{click.style('not deleted:', fg='red')} {error.path}: {error.message}", err=True
        )
    if len(errors) > 10:
        click.echo(f"and {len(errors) - 10:,} more", err=True)
    return FINDINGS if errors else GOOD


@contextmanager
def _sink(output: Output) -> Iterator[IO[bytes]]:
    import polars as pl

    if output.to is None:
        stream = sys.stdout.buffer
        try:
            yield stream
            stream.flush()
        except LakelogError:  # of the table, whose rows are read while they are written
            raise
        except (OSError, pl.exceptions.ComputeError) as cause:
            # Polars writes the output itself, and reports a closed pipe only in its error message.
            if _PIPE_CLOSED in str(cause):
                raise BrokenPipeError from cause
            raise UnavailableError(f"the output cannot be written: {cause}") from cause
        return
    from lakelog.storage.durable import replaced

    try:
        with replaced(output.to) as file:
            yield file
    except LakelogError:
        raise
    except OSError as cause:
        raise UnavailableError(
            f"the output cannot be written: {cause.strerror or cause}",
            path=output.to,
            hint="check the folder and its permissions",
        ) from cause
