"""Rows as text tables, JSON, CSV, Parquet and Arrow; facts as text.

A text table has readable units and one line per row, fitted to the terminal.

On a terminal, long texts are clipped (paths in the middle, where they differ least), and sentences
are wrapped. In a pipe or a file, no text is clipped.
"""

from __future__ import annotations

import datetime as dt
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import polars as pl
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lakelog.cli.options import ARROW_FILE, name_text
from lakelog.cli.text import colour_wanted, time_text
from lakelog.display import plain, size_text
from lakelog.model import contract
from lakelog.model.contract import column_named, field_named

if TYPE_CHECKING:
    import pyarrow as pa
    from polars._typing import PolarsDataType

_CHUNK_ROWS = 65_536
_UNCLIPPED_WIDTH = 100_000
_LEAST_WIDTH = 6
_WORD_WIDTH = 20
_GAP = 2
_NAMED_COLUMNS = 10
_CLIPPED_IN_THE_MIDDLE = frozenset(("path", "name"))
_WRAPPED = frozenset(("problem", "why"))
_SIZE_TEXT = re.compile(r"(\d+) bytes")
_CAPITAL = re.compile(r"([A-Z]+)")
_EMPTY = '""'  # an empty text inside a list or a struct
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY_SECONDS = 86_400
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # after which the calendar repeats
_NEAR_CYCLES = 600
_FIRST_DAY, _LAST_DAY = (
    (day - _EPOCH.date()).days for day in (dt.date(1, 1, 2), dt.date(9999, 12, 30))
)
_EXACT = ("version", "position", "Version")
_STYLES = {
    "version": "cyan",
    "add": "green",
    "added": "green",
    "remove": "red",
    "removed": "red",
    "changed": "yellow",
    "renamed": "yellow",
}


def _console(*, to_file: bool) -> Console:
    """A console that writes to a buffer, with the settings of the real output."""
    terminal = sys.stdout.isatty() and not to_file
    measured = terminal or ("COLUMNS" in os.environ and not to_file)
    return Console(
        file=io.StringIO(),
        width=None if measured else _UNCLIPPED_WIDTH,
        force_terminal=False if to_file else _forced(terminal=terminal),
        highlight=False,
    )


def _forced(*, terminal: bool) -> bool | None:
    """Whether styles are forced on or off; with None, FORCE_COLOR decides."""
    wanted = colour_wanted()
    return (terminal or None) if wanted is None else wanted


def clip(text: str, width: int, *, middle: bool = False) -> str:
    """The text in at most `width` cells, with an ellipsis for omitted characters.

    >>> clip("part-00000-c000.parquet", 11, middle=True), clip("a long text", 6)
    ('part-…rquet', 'a lon…')
    """
    if cell_len(text) <= width:
        return text
    if width < 2:
        return "…"[:width]
    end = (width - 1) // 2 + (width - 1) % 2 if middle else 0
    start = width - 1 - end
    return text[:start].rstrip() + "…" + (text[len(text) - end :] if end else "")


class _Cell:
    """One line of text that can be shortened; the common suffix of a column is dropped first."""

    def __init__(self, text: str, style: str, *, middle: bool, common: int = 0) -> None:
        self._text, self._style, self._middle = plain(text), style, middle
        self._common = common

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self._text)
        return Measurement(min(width, _LEAST_WIDTH), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self._text
        if self._common and cell_len(text) > options.max_width:
            text = text[: -self._common] + "…"
        text = clip(text, options.max_width, middle=self._middle)
        yield Text(text, style=self._style, no_wrap=True, overflow="crop")


def rich_table(frame: pl.DataFrame, *, exact: bool = False) -> Table:
    """A frame as a rich table, one line per row unless a sentence is wrapped; `exact`: values of a
    user's table, which have no units and no separators.
    """
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    columns: list[Sequence[RenderableType]] = []
    for name, dtype in frame.schema.items():
        values = _values_of(frame[name])
        texts = [_value_text(name, value, exact=exact) for value in values]
        right = dtype.is_numeric() and (exact or _unit(name) != "ms")
        # Numbers, times and words are shown completely; only long texts are shortened.
        long = _is_long(texts, dtype)
        table.add_column(Text(plain(name)), justify="right" if right else "left", no_wrap=not long)
        middle = name in _CLIPPED_IN_THE_MIDDLE
        common = _common_suffix(texts) if middle and long else 0
        if name in _WRAPPED and not exact:
            columns.append([Text(plain(text), overflow="fold") for text in texts])
            continue
        styles = (_STYLES.get(str(v), _STYLES.get(name, "")) for v in values)
        columns.append(
            [
                _Cell(text, style, middle=middle, common=common)
                for text, style in zip(texts, styles, strict=True)
            ]
        )
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    return table


def fitting(frame: pl.DataFrame, width: int, *, exact: bool = False) -> pl.DataFrame:
    """The frame without the last columns that a terminal of this width has no space for."""
    kept: list[str] = []
    used = 0
    for name, dtype in frame.schema.items():
        texts = [_value_text(name, value, exact=exact) for value in _values_of(frame[name])]
        widest = max(map(cell_len, texts), default=0)
        used += max(cell_len(name), _WORD_WIDTH if _is_long(texts, dtype) else widest)
        if kept and used > width:
            break
        kept.append(name)
        used += _GAP
    return frame.select(map(column_named, kept))


def row_texts(row: pl.DataFrame) -> list[str]:
    """The values of a frame of one row as text; nulls are empty."""
    return [plain(_value_text(name, _values_of(row[name])[0])) for name in row.columns]


def _is_long(texts: Sequence[str], dtype: pl.DataType) -> bool:
    """Whether the texts of a column may be shortened; times never are."""
    return not dtype.is_temporal() and max(map(cell_len, texts), default=0) > _WORD_WIDTH


def _common_suffix(texts: Sequence[str]) -> int:
    """Length of the common suffix of the texts, from a dot on; 0 for one non-empty text."""
    texts = [text for text in texts if text]
    if len(texts) < 2:
        return 0
    least, most = min(text[::-1] for text in texts), max(text[::-1] for text in texts)
    length = next((i for i, c in enumerate(least) if most[i : i + 1] != c), len(least))
    suffix = least[:length][::-1]
    return len(suffix) - suffix.find(".") if "." in suffix else 0


def table_text(
    frame: pl.DataFrame,
    summary: Sequence[str],
    *,
    to_file: bool = False,
    may_hide: bool = False,
    exact: bool = False,
) -> str:
    """A frame as text, with a summary line below it; with `may_hide`, columns that do not fit are
    hidden, and the first of them named; `exact` as `rich_table`.
    """
    if may_hide:
        whole = frame.columns
        frame = fitting(frame, _console(to_file=to_file).width, exact=exact)
        if hidden := whole[frame.width :]:
            named = ", ".join(map(name_text, hidden[:_NAMED_COLUMNS]))
            others = f" and {len(hidden) - _NAMED_COLUMNS:,} more" * (len(hidden) > _NAMED_COLUMNS)
            summary = [*summary, f"--columns shows {named}{others}"]
    return render(
        [rich_table(frame, exact=exact), Text(" · ".join(summary), style="dim")], to_file=to_file
    )


def facts_text(facts: Sequence[tuple[str, str]], *, to_file: bool = False) -> str:
    """Labels and values as text; values are wrapped next to their labels."""
    return render([facts_table(facts)], to_file=to_file)


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Labels and values as a rich table."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in facts:
        grid.add_row(label, Text(plain(value)))
    return grid


def render(things: Iterable[Any], *, to_file: bool = False) -> str:
    """Rich renderables as text for the output; colours on a terminal only."""
    buffer = _console(to_file=to_file)
    for thing in things:
        buffer.print(thing)
    assert isinstance(buffer.file, io.StringIO)
    return "\n".join(line.rstrip() for line in buffer.file.getvalue().splitlines())


def _unit(name: str) -> str | None:
    """The unit of a column, ``bytes`` or ``ms``, from the contract or the end of its name."""
    if name == "bytes" or name.endswith(("_bytes", "_ms")):
        return name.rpartition("_")[2]
    known = contract.load("actions").field(name)
    if known is None or known.name != name:
        return None
    unit = str(known.metadata.get("unit", ""))
    if unit.startswith("milliseconds since"):
        return "ms"
    return "bytes" if unit == "bytes" else None


def _value_text(name: str, value: Any, *, exact: bool = False) -> str:
    if exact:
        return _exact_value(value)
    unit = _unit(name)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and unit == "bytes":
        return size_text(value)
    if isinstance(value, int) and unit == "ms":
        return _since_epoch(value)
    if name == "operationMetrics":
        return ", ".join(_metric_text(k, v) for k, v in sorted(value.items(), key=_by_weight))
    if name in {"before", "after"} and (size := _SIZE_TEXT.fullmatch(value)):
        return size_text(int(size[1]))
    return _plain_value(name, value)


def _exact_value(value: Any, empty: str = "") -> str:
    """A value of a row as text, so that nulls and empty values differ at every level."""
    match value:
        case "":
            return empty
        case dict():
            fields = (f"{key}: {_exact_value(inner, _EMPTY)}" for key, inner in value.items())
            return f"{{{', '.join(fields)}}}"
        case list():
            return f"[{', '.join(_exact_value(inner, _EMPTY) for inner in value)}]"
        case _:
            return _plain_value("version", value)


def _by_weight(metric: tuple[str, str | None]) -> tuple[int, str]:
    """Sort key: rows first, then files, then bytes, then the other metrics."""
    name = metric[0].lower()
    order = ("row", "file", "byte")
    return next((i for i, word in enumerate(order) if word in name), len(order)), name


def _metric_text(name: str, value: str | None) -> str:
    """One operation metric as text.

    >>> _metric_text("numAddedBytes", "923352"), _metric_text("executionTimeMs", "12")
    ('added bytes 901.7 KiB', 'execution time ms 12')
    """
    words = _CAPITAL.sub(r" \1", name.removeprefix("num")).strip().lower()
    if value is None or not value.isdecimal():
        return f"{words} {value}"
    return f"{words} {size_text(int(value)) if 'bytes' in words else f'{int(value):,}'}"


def _plain_value(name: str, value: Any) -> str:
    match value:
        case None:
            return "null"
        case dt.datetime():
            return time_text(value) if value.tzinfo else time_text(value).removesuffix("Z")
        case int() if not isinstance(value, bool) and not name.endswith(_EXACT):
            return f"{value:,}"
        case dict():
            parts = (f"{k}={_plain_value('version', v)}" for k, v in value.items() if v is not None)
            return ", ".join(parts)
        case list():
            return ", ".join(_plain_value("version", v) for v in value)
        case _:
            return str(value)


def _since_epoch(value_ms: int) -> str:
    try:
        return time_text(_EPOCH + dt.timedelta(milliseconds=value_ms))
    except OverflowError:
        return f"{value_ms} ms"  # Real logs contain times outside the range of datetime.


def _textual(frame: pl.DataFrame) -> pl.DataFrame:
    """Types that JSON lacks, as text: times in ISO 8601, bytes in base64, keys of maps."""
    return frame.with_columns(
        _as_text(column_named(name), dtype).alias(name) for name, dtype in frame.schema.items()
    )


def _as_text(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    match dtype:
        case pl.Datetime():
            digits = {"ms": 3, "us": 6, "ns": 9}[dtype.time_unit]
            zone = "Z" if dtype.time_zone else ""
            pattern = f"-%m-%dT%H:%M:%S%.{digits}f{zone}"
            return _time_text(values, dtype, pattern, _DAY_SECONDS * 10**digits)
        case pl.Date():
            return _time_text(values, dtype, "-%m-%d", 1)
        case pl.Binary():
            return values.bin.encode("base64")
        case pl.Struct() if dtype.fields:
            fields = (
                _as_text(field_named(values, f.name), _instance(f.dtype)).alias(f.name)
                for f in dtype.fields
            )
            return pl.when(values.is_not_null()).then(pl.struct(fields))
        case pl.List():
            element = pl.element()
            text = _as_text(element, _instance(dtype.inner))
            return values if text is element else values.list.eval(text)
        case pl.Map():
            key, value = pl.element().struct.field("key"), pl.element().struct.field("value")
            key_text = _as_text(key, _instance(dtype.key))
            if dtype.key.is_nested():
                key_text = _json_of(key_text)
            text = _as_text(value, _instance(dtype.value))
            entry = pl.struct(key_text.cast(pl.String).alias("key"), text.alias("value"))
            made = (
                pl.Series("", dtype=dtype.value)
                .to_frame()
                .select(_as_text(pl.col(""), _instance(dtype.value)))
            )
            return values.map.entries().list.eval(entry).cast(pl.Map(pl.String, made.dtypes[0]))
        case _:
            return values


def _time_text(values: pl.Expr, dtype: pl.DataType, pattern: str, day: int) -> pl.Expr:
    """Times as ISO 8601; `pattern` follows the year, and `day` is a day in their unit.

    Polars panics for years beyond 262,142, so far ones are moved by cycles of 400 years.
    """
    number, cycle = values.to_physical().cast(pl.Int64), _CYCLE_DAYS * day
    is_near = number.is_between(-_NEAR_CYCLES * cycle, _NEAR_CYCLES * cycle)
    near = pl.when(is_near).then(values).dt.to_string(f"%Y{pattern}")
    cycles = number // cycle
    moved = (number - cycles * cycle).cast(pl.Int32 if dtype == pl.Date else pl.Int64).cast(dtype)
    year = moved.dt.year() + _CYCLE_YEARS * cycles
    sign = pl.when(year > 0).then(pl.lit("+")).otherwise(pl.lit(""))
    far = pl.concat_str(sign, year.cast(pl.String), moved.dt.to_string(pattern))
    return pl.when(is_near).then(near).otherwise(far)


def _values_of(values: pl.Series) -> list[Any]:
    """The values; times as text in a column with one that Python cannot represent."""
    if _is_far(values):
        values = _textual(values.to_frame()).to_series()
    return values.to_list()


def _is_far(values: pl.Series) -> bool:
    """Whether a time at any level is outside the years of Python."""
    match values.dtype:
        case pl.List():
            return _is_far(values.alias("").explode())  # other names could be patterns
        case pl.Map():
            return _is_far(values.to_frame("").select(pl.col("").map.entries()).to_series())
        case pl.Struct():
            return any(map(_is_far, values.struct.unnest()))
        case pl.Datetime():
            day = _DAY_SECONDS * {"ms": 10**3, "us": 10**6, "ns": 10**9}[values.dtype.time_unit]
        case pl.Date():
            day = 1
        case _:
            return False
    days = values.to_physical() // day
    return not days.is_between(_FIRST_DAY, _LAST_DAY).all()


def _instance(dtype: PolarsDataType) -> pl.DataType:
    return dtype if isinstance(dtype, pl.DataType) else dtype()


def _write_ndjson(frames: Iterable[pl.DataFrame], sink: IO[bytes]) -> None:
    """One JSON object per line; maps are objects."""
    for frame in frames:
        _textual(frame).write_ndjson(sink)


def _write_json(frames: Iterable[pl.DataFrame], sink: IO[bytes]) -> None:
    """A JSON array with one object per line; maps are objects."""
    separator = opening = b"[\n"
    for frame in frames:
        for chunk in _textual(frame).iter_slices(_CHUNK_ROWS):
            if chunk.height:
                buffer = io.BytesIO()
                chunk.write_ndjson(buffer)
                # JSON text contains no raw line break, so each line break ends an object.
                lines = buffer.getvalue().rstrip(b"\n").replace(b"\n", b",\n")
                sink.write(separator + lines)
                separator = b",\n"
    sink.write(b"[]\n" if separator is opening else b"\n]\n")


def _write_csv(frames: Iterable[pl.DataFrame], sink: IO[bytes]) -> None:
    """CSV with a header; maps, structs and lists as JSON text."""
    for number, frame in enumerate(frames):
        flat = _textual(frame)
        nested = [n for n, t in flat.schema.items() if t.is_nested() or isinstance(t, pl.Map)]
        flat = flat.with_columns(_json_text(name) for name in nested)
        flat.write_csv(sink, include_header=not number)


def _json_text(name: str) -> pl.Expr:
    column = column_named(name)
    return pl.when(column.is_not_null()).then(_json_of(column)).alias(name)


def _json_of(values: pl.Expr) -> pl.Expr:
    wrapped = pl.struct(values.alias("v")).struct.json_encode()
    return wrapped.str.slice(5).str.head(-1)


def _write_parquet(frames: Iterable[pl.DataFrame], sink: IO[bytes]) -> None:
    import pyarrow.parquet as pq

    _write_arrow_tables(frames, lambda schema: pq.ParquetWriter(sink, schema, compression="zstd"))


def _write_arrow(frames: Iterable[pl.DataFrame], sink: IO[bytes]) -> None:
    """An Arrow IPC stream, with types that older readers support."""
    import pyarrow as pa

    _write_arrow_tables(frames, lambda schema: pa.ipc.new_stream(sink, schema))


def _write_arrow_file(frames: Iterable[pl.DataFrame], sink: IO[bytes]) -> None:
    """An Arrow IPC file, with the types of `_write_arrow`."""
    import pyarrow as pa

    _write_arrow_tables(frames, lambda schema: pa.ipc.new_file(sink, schema))


def _write_arrow_tables(frames: Iterable[pl.DataFrame], begin: Callable[[pa.Schema], Any]) -> None:
    tables = (frame.to_arrow(compat_level=pl.CompatLevel.oldest()) for frame in frames)
    first = next(tables)
    with begin(first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


WRITERS: dict[str, Callable[[Iterable[pl.DataFrame], IO[bytes]], None]] = {
    "ndjson": _write_ndjson,
    "json": _write_json,
    "csv": _write_csv,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    ARROW_FILE: _write_arrow_file,
}
