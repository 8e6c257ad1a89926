"""Machine-readable output (JSON, CSV, Parquet, Arrow) and the selection of the format."""

from __future__ import annotations

import difflib
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import click
import polars as pl

from lakelog.cli import view
from lakelog.cli.options import Output
from lakelog.errors import InvalidInputError, UnavailableError

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

TABLE_ROWS = 50
"""Number of rows of a text table without ``--limit``."""

_CHUNK_ROWS = 65_536
_PIPE_CLOSED = "Broken pipe"


def _nothing(_rows: pl.DataFrame) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class View:
    """The text table of a command's rows.

    Attributes:
        noun: Name of one row.
        columns: The columns without ``--columns``; columns without a value are omitted.
        sort: Order of the rows; empty: the order in which they are read.
        summary: Additional text for the line below the table, from all rows.
        redundant: Columns, among those that are not selected by name, that the shown rows make
            redundant.
    """

    noun: str
    columns: tuple[str, ...]
    sort: tuple[str, ...] = ()
    summary: Callable[[pl.DataFrame], Sequence[str]] = _nothing
    redundant: Callable[[pl.DataFrame], Sequence[str]] = _nothing


def check(output: Output) -> None:
    """Refuse binary output to a terminal, before any work is done."""
    if output.format in ("parquet", "arrow") and output.to is None and sys.stdout.isatty():
        raise InvalidInputError(
            f"{output.format} is binary and would garble the terminal",
            hint=f"add --to FILE, or pipe the output: ... --output {output.format} > FILE",
        )


def emit(rows: pl.LazyFrame, output: Output, shown: View) -> None:
    """`collect`, then `write`."""
    write(collect(rows, output, shown), output, shown)


def collect(rows: pl.LazyFrame, output: Output, shown: View) -> pl.DataFrame:
    """The rows and columns that `write` needs; no others are read."""
    known = rows.collect_schema().names()
    for name in output.columns:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            raise InvalidInputError(
                f"there is no column {name}",
                found=name,
                expected=", ".join(known),
                hint=f"did you mean {', '.join(close)}?" if close else None,
            )
    if output.format == "table":
        # A text table is sorted, counted and summarised, so it needs all rows, but few columns.
        wanted = (*output.columns, *shown.columns, *shown.sort)
        return rows.select(c for c in dict.fromkeys(wanted) if c in known).collect()
    if output.columns:
        rows = rows.select(output.columns)
    if output.limit is not None:
        rows = rows.head(output.limit)
    return rows.collect()


def write(frame: pl.DataFrame, output: Output, shown: View) -> None:
    """Write the result of `collect` in the format of the options."""
    check(output)
    if output.format == "table":
        write_text(_table(frame, output, shown), output)
        return
    with _sink(output) as sink:
        _WRITERS[output.format](frame, sink)


def _table(frame: pl.DataFrame, output: Output, shown: View) -> str:
    chosen = output.columns or tuple(c for c in shown.columns if c in frame.columns)
    if shown.sort:
        frame = frame.sort(shown.sort)
    limit = TABLE_ROWS if output.limit is None else output.limit
    top = frame.head(limit).select(chosen)
    if not output.columns:
        # Computed from all rows, so that another limit shows the same columns.
        empty = [c for c in chosen if frame.height and frame[c].null_count() == frame.height]
        top = top.drop(*empty, *shown.redundant(top))
    parts = [view.count(frame.height, shown.noun)]
    if top.height < frame.height:
        parts = [f"{top.height:,} of {parts[0]} shown", f"--limit {frame.height} shows all"]
    return view.table_text(top, [*parts, *shown.summary(frame)], to_file=output.to is not None)


def write_text(text: str, output: Output) -> None:
    """Write text to the output."""
    if output.to is None:
        click.echo(text, color=True)
        return
    with _sink(output) as sink:
        sink.write(text.encode() + b"\n")


@contextmanager
def _sink(output: Output) -> Iterator[IO[bytes]]:
    if output.to is None:
        stream = sys.stdout.buffer
        try:
            yield stream
            stream.flush()
        except (OSError, pl.exceptions.ComputeError) as cause:
            # Polars writes the output itself, and reports a closed pipe only in its error message.
            if _PIPE_CLOSED in str(cause):
                raise BrokenPipeError from cause
            raise UnavailableError(f"the output cannot be written: {cause}") from cause
        return
    try:
        with open(output.to, "wb") as file:
            yield file
    except OSError as cause:
        raise UnavailableError(
            f"the output cannot be written: {cause.strerror or cause}",
            path=output.to,
            hint="check the folder and its permissions",
        ) from cause


def _textual(frame: pl.DataFrame) -> pl.DataFrame:
    """Types that JSON lacks, as text: times in ISO 8601, to the millisecond; bytes in base64."""
    return frame.with_columns(
        _as_text(pl.col(name), dtype).alias(name) for name, dtype in frame.schema.items()
    )


def _as_text(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    match dtype:
        case pl.Datetime():
            zone = "Z" if dtype.time_zone else ""
            return values.dt.to_string(f"%Y-%m-%dT%H:%M:%S%.3f{zone}")
        case pl.Binary():
            return values.bin.encode("base64")
        case pl.Struct() if dtype.fields:
            fields = (
                _as_text(values.struct.field(f.name), _instance(f.dtype)).alias(f.name)
                for f in dtype.fields
            )
            return pl.when(values.is_not_null()).then(pl.struct(fields))
        case _:
            return values


def _instance(dtype: PolarsDataType) -> pl.DataType:
    return dtype if isinstance(dtype, pl.DataType) else dtype()


def _write_json(frame: pl.DataFrame, sink: IO[bytes]) -> None:
    """A JSON array with one object per line; maps are objects."""
    sink.write(b"[")
    separator = b"\n"
    for chunk in _textual(frame).iter_slices(_CHUNK_ROWS):
        buffer = io.BytesIO()
        chunk.write_ndjson(buffer)
        # JSON text contains no raw line break, so each line break ends an object.
        sink.write(separator + buffer.getvalue().rstrip(b"\n").replace(b"\n", b",\n"))
        separator = b",\n"
    sink.write(b"\n]\n" if frame.height else b"]\n")


def _write_csv(frame: pl.DataFrame, sink: IO[bytes]) -> None:
    """CSV with a header; maps, structs and lists as JSON text."""
    flat = _textual(frame)
    nested = [name for name, dtype in flat.schema.items() if dtype.is_nested() or _is_map(dtype)]
    flat.with_columns(_json_text(name) for name in nested).write_csv(sink)


def _is_map(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.Map)


def _json_text(name: str) -> pl.Expr:
    wrapped = pl.struct(pl.col(name).alias("v")).struct.json_encode()
    return pl.when(pl.col(name).is_not_null()).then(wrapped.str.slice(5).str.head(-1)).alias(name)


def _write_parquet(frame: pl.DataFrame, sink: IO[bytes]) -> None:
    frame.write_parquet(sink)


def _write_arrow(frame: pl.DataFrame, sink: IO[bytes]) -> None:
    """An Arrow IPC stream, with types that older readers support."""
    frame.write_ipc_stream(sink, compat_level=pl.CompatLevel.oldest())


_WRITERS: dict[str, Callable[[pl.DataFrame, IO[bytes]], None]] = {
    "json": _write_json,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
}
