"""Parses many small JSON texts into columns at once; an invalid text affects only its own row.

A writer's statistics of all files of a table have one shape: the same keys in the same order, and
no blanks or, as from Python, one after each comma and colon. Texts of one shape are read with a
regular expression, in a third of the parser's time: one text is the template, and each of its
values is replaced by the grammar of a JSON value of the schema's type. A text that does not match
is parsed.

The parser reads 64 Ki rows as one NDJSON buffer with an explicit schema: pyarrow's reader is the
fastest at this and keeps decimal digits exact (Polars' reader passes them through floats). It
rejects the whole buffer for one bad value, so a rejected buffer is split, and pieces that are
rejected again are read row by row.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.json as pj

from lakelog.model import contract
from lakelog.model.contract import MAX_DEPTH
from lakelog.skipping.values import fit_decimal
from lakelog.threads import WORKERS, Pool

CHUNK_ROWS = 65_536
"""Number of texts that are joined and parsed at a time."""

_LEAST_CHUNK_ROWS = 4_096
_PIECES = 16
_BY_ROW_BELOW = 512
_BLOCK_BYTES = 1 << 20


def decode(texts: pl.Series, schema: pa.Schema, *, to_end: bool = True) -> pl.DataFrame:
    """Decode JSON objects to rows of `schema`; without `to_end`, up to the last of its fields."""
    if not texts.len():
        # Not schema.empty_table(), which imports pandas if it is installed.
        return _to_polars(pa.Table.from_batches([], schema=schema))
    rows = max(_LEAST_CHUNK_ROWS, min(CHUNK_ROWS, -(-texts.len() // WORKERS)))
    chunks = [texts.slice(start, rows) for start in range(0, texts.len(), rows)]
    if len(chunks) == 1:
        return _chunk(texts, schema, to_end=to_end)
    with Pool(min(WORKERS, len(chunks)), thread_name_prefix="lakelog-json") as pool:
        frames = [pool.submit(_chunk, chunk, schema, to_end=to_end) for chunk in chunks]
        return pl.concat([frame.result() for frame in frames], rechunk=True)


def _chunk(texts: pl.Series, schema: pa.Schema, *, to_end: bool) -> pl.DataFrame:
    """Decode one chunk: texts of a common shape by patterns, the others by the parser."""
    alike = decode_alike(texts, schema, to_end=to_end)
    if alike is None:
        return _parsed(texts, schema)
    frame, rows = alike
    if frame.height == texts.len():
        return frame if rows.is_sorted() else _placed([(frame, rows)])
    every = pl.int_range(texts.len(), dtype=pl.UInt32, eager=True)
    others = every.filter(~every.is_in(rows.implode()))
    return _placed([(frame, rows), (_parsed(texts.gather(others), schema), others)])


def _placed(parts: Sequence[tuple[pl.DataFrame, pl.Series]]) -> pl.DataFrame:
    """Stack frames, with each row at the position given in its part."""
    positions = pl.concat([rows for _, rows in parts])
    return pl.concat([frame for frame, _ in parts])[positions.arg_sort()]


def _parsed(texts: pl.Series, schema: pa.Schema) -> pl.DataFrame:
    """Parse texts, one by one if they may not be one object on one line."""
    plain = are_lines(texts).fill_null(True)
    lines = texts.fill_null("{}")  # null texts are replaced by an empty object
    if plain.all():
        return _lines(lines, schema)
    frame = _lines(lines.set(~plain, "{}"), schema)
    odd = (~plain).arg_true()
    by_row = _rows(texts.gather(odd), schema)
    order = pl.int_range(texts.len(), eager=True, dtype=pl.Int64)
    order = order.scatter(odd, pl.int_range(odd.len(), eager=True) + texts.len())
    return pl.concat([frame, by_row])[order]


def are_lines(texts: pl.Series) -> pl.Series:
    """Which texts `read_lines` accepts: one object on one line, not nested too deeply."""
    text = pl.col("t")
    plain = (
        text.str.starts_with("{") & text.str.ends_with("}") & ~text.str.contains_any(["\n", "\r"])
    )
    longest = texts.str.len_bytes().max()
    if isinstance(longest, int) and longest > 2 * MAX_DEPTH:
        # Arrow's reader recurses per level, and a stack overflow kills the process.
        brackets = [text.str.count_matches(bracket, literal=True) for bracket in "{["]
        plain &= pl.sum_horizontal(brackets) <= MAX_DEPTH
    return texts.alias("t").to_frame().select(plain).to_series()


def read_lines(
    lines: pl.Series, schema: pa.Schema | None, *, unexpected: str = "ignore"
) -> pl.DataFrame | None:
    """Read lines as one NDJSON buffer; None if the reader rejects any of them."""
    joined = lines.str.join("\n").to_arrow(compat_level=pl.CompatLevel.oldest())
    longest = lines.str.len_bytes().max()
    assert isinstance(longest, int)
    try:
        table = pj.read_json(
            pa.BufferReader(joined.buffers()[2]),
            # A line longer than two blocks would be rejected.
            read_options=pj.ReadOptions(block_size=max(_BLOCK_BYTES, longest + 1)),
            parse_options=pj.ParseOptions(
                explicit_schema=schema,
                unexpected_field_behavior="infer" if schema is None else unexpected,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return _to_polars(table) if table.num_rows == lines.len() else None


def _lines(lines: pl.Series, schema: pa.Schema) -> pl.DataFrame:
    """Read lines in ever smaller pieces while they are rejected, finally row by row."""
    frame = read_lines(lines, schema)
    if frame is not None:
        return frame
    if lines.len() <= _BY_ROW_BELOW:
        return _rows(lines, schema)
    step = -(-lines.len() // _PIECES)
    return pl.concat(
        [_lines(lines.slice(start, step), schema) for start in range(0, lines.len(), step)]
    )


def _to_polars(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _rows(texts: pl.Series, schema: pa.Schema) -> pl.DataFrame:
    """Row by row: only for rows that the columnar reader rejected."""
    exact = _holds_decimals(schema)
    rows = [_fit_struct(_parse(text, exact), schema) for text in texts]
    return _to_polars(pa.Table.from_pylist(rows, schema=schema))


def _holds_decimals(fields: Iterable[pa.Field]) -> bool:
    return any(
        pa.types.is_decimal(f.type) or (pa.types.is_struct(f.type) and _holds_decimals(f.type))
        for f in fields
    )


def _parse(text: str | None, exact: bool) -> Any:
    if text is None:
        return None
    try:
        # orjson validates: unlike json, it rejects NaN, lone surrogates and raw control characters.
        loose = orjson.loads(text)
        return json.loads(text, parse_float=decimal.Decimal) if exact else loose
    except (ValueError, RecursionError):
        return None


def _fit_struct(value: Any, fields: Iterable[pa.Field]) -> dict[str, Any]:
    there = value if isinstance(value, dict) else {}
    return {f.name: _fit(there.get(f.name), f.type) for f in fields}


def _fit(value: Any, type_: pa.DataType) -> Any:
    """`value` if it is one of `type_` exactly, else None."""
    if pa.types.is_struct(type_):
        return _fit_struct(value, type_)
    if pa.types.is_string(type_):
        return value if isinstance(value, str) else None
    if pa.types.is_boolean(type_):
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or value is None:
        return None
    if pa.types.is_integer(type_):
        limit = 1 << (type_.bit_width - 1)
        return value if isinstance(value, int) and -limit <= value < limit else None
    if pa.types.is_decimal(type_):
        return _fit_decimal(value, contract.Decimal(type_.precision, type_.scale))
    if isinstance(value, int | float | decimal.Decimal):
        try:
            return float(value)
        except OverflowError:
            return None
    return None


def _fit_decimal(value: Any, type_: contract.Decimal) -> decimal.Decimal | None:
    try:
        number = decimal.Decimal(value) if isinstance(value, int | str) else value
    except decimal.InvalidOperation:
        return None
    return fit_decimal(number, type_) if isinstance(number, decimal.Decimal) else None


_MOST_GROUPS = 15  # With more than 16 groups, the engine leaves its fast one-pass automaton.
_MOST_SHAPES = 4
_LEAST_ROWS = 64
_LEAST_SHARE = 0.2

_TEXT = r'[^"\\\x00-\x1f]*'
_INTEGER = r"0|-?[1-9][0-9]*"
# Without the optional plus of an exponent, with which the automaton takes a third longer.
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE]-?[0-9][0-9]?)?"
# The values of a column have one kind. The automaton of all kinds is too large to be fast.
_SCALARS = {
    type(None): rf'(?:null|true|false|{_NUMBER}|"{_TEXT}")',
    bool: "(?:null|true|false)",
    int: f"(?:null|{_NUMBER})",
    float: f"(?:null|{_NUMBER})",
    str: f'(?:null|"{_TEXT}")',
}

_Path = tuple[str, ...]


def decode_alike(
    texts: pl.Series, schema: pa.Schema, *, to_end: bool = True
) -> tuple[pl.DataFrame, pl.Series] | None:
    """Read the texts that have one of a few shapes; `to_end` as in `decode`."""
    frames: list[pl.DataFrame] = []
    found: list[pl.Series] = []
    waiting = pl.int_range(texts.len(), dtype=pl.UInt32, eager=True)
    for _ in range(_MOST_SHAPES):
        if texts.len() < _LEAST_ROWS:
            break
        shape = _Shape.of(texts.drop_nulls().first(), schema, to_end=to_end)
        if shape is None:
            break
        groups = shape.match(texts)
        hit = groups[_END].is_not_null()
        if hit.sum() < _LEAST_SHARE * texts.len():
            break
        whole = bool(hit.all())
        frames.append(shape.columns(groups if whole else groups.filter(hit), schema))
        found.append(waiting if whole else waiting.filter(hit))
        if whole:
            break
        texts, waiting = texts.filter(~hit), waiting.filter(~hit)
    return (pl.concat(frames), pl.concat(found)) if frames else None


_END = "end"


@dataclass(frozen=True)
class _Shape:
    """The shape of one text: consecutive regular expressions (the last group of each is the rest),
    the fields of their groups, and the fields that are objects.
    """

    patterns: tuple[str, ...]
    slots: tuple[tuple[_Path, ...], ...]
    structs: frozenset[_Path]

    @staticmethod
    def of(text: Any, schema: pa.Schema, *, to_end: bool) -> _Shape | None:
        """The shape of `text`; None if a pattern cannot express it."""
        try:
            parsed = orjson.loads(text) if text is not None else None
            if not isinstance(parsed, dict):
                return None
            structs: set[_Path] = set()
            types = {f.name: f.type for f in schema}
            blank = " " if text.startswith(f'{{"{next(iter(parsed), "")}": ') else ""
            tokens = list(_tokens(parsed, types, (), structs, blank))
        except (orjson.JSONDecodeError, _NoPatternError):
            return None
        end = r"()$"
        needed = set() if to_end else {*_leaf_paths(schema)}
        # A field that this text lacks may be anywhere in the others.
        if needed and needed <= {path for _, path in tokens}:
            while tokens[-1][1] is None:
                tokens.pop()
            end = r"[,}]()"
        patterns = [""]
        slots: list[list[_Path]] = [[]]
        for pattern, path in tokens:
            if path is not None and len(slots[-1]) == _MOST_GROUPS:
                patterns.append("")
                slots.append([])
            patterns[-1] += pattern
            if path is not None:
                slots[-1].append(path)
        ends = [r"(.*)$"] * (len(patterns) - 1) + [end]
        whole = tuple(f"^{p}{end}" for p, end in zip(patterns, ends, strict=True))
        return _Shape(whole, tuple(map(tuple, slots)), frozenset(structs))

    def match(self, texts: pl.Series) -> pl.DataFrame:
        """Texts of the values, by number, and `_END`, which is null if a text does not match."""
        columns: list[pl.Series] = []
        rest = texts
        for pattern in self.patterns:
            *values, rest = rest.str.extract_groups(pattern).struct.unnest().get_columns()
            columns += values
        named = [c.alias(str(number)) for number, c in enumerate(columns)]
        return pl.DataFrame([*named, rest.alias(_END)])

    def columns(self, groups: pl.DataFrame, schema: pa.Schema) -> pl.DataFrame:
        """The groups as columns of `schema`; a field that the shape lacks is null."""
        paths = (path for slots in self.slots for path in slots)
        values = {path: groups[str(number)] for number, path in enumerate(paths)}
        series = [self._field(f, (f.name,), values, groups.height) for f in schema]
        return pl.DataFrame(series, height=groups.height)

    def _field(
        self, field: pa.Field, path: _Path, values: Mapping[_Path, pl.Series], height: int
    ) -> pl.Series:
        if path in self.structs:
            fields = (field.type.field(i) for i in range(field.type.num_fields))
            inner = [self._field(f, (*path, f.name), values, height) for f in fields]
            return pl.DataFrame(inner, height=height).to_struct(field.name)
        if path in values:
            return _typed(values[path], field.type).alias(field.name)
        return pl.Series(field.name, pa.nulls(1, field.type)).new_from_index(0, height)


class _NoPatternError(Exception):
    """The text has content that a pattern cannot express."""


def _tokens(
    value: dict[str, Any],
    types: Mapping[str, pa.DataType],
    above: _Path,
    structs: set[_Path],
    blank: str,
) -> Iterator[tuple[str, _Path | None]]:
    """Patterns that make up an object, with the field of each pattern's group."""
    yield r"\{", None
    for number, (name, child) in enumerate(value.items()):
        path = (*above, name)
        if orjson.dumps(name) != f'"{name}"'.encode():
            raise _NoPatternError
        yield (f",{blank}" if number else "") + re.escape(f'"{name}":') + blank, None
        type_ = types.get(name)
        if isinstance(child, dict):
            if type_ is not None and not pa.types.is_struct(type_):
                raise _NoPatternError
            fields = {f.name: f.type for f in type_.fields} if type_ is not None else {}
            if type_ is not None:
                structs.add(path)
            yield from _tokens(child, fields, path, structs, blank)
        elif isinstance(child, list):
            raise _NoPatternError
        elif type_ is None:
            yield _SCALARS[type(child)], None
        elif child is None and pa.types.is_struct(type_):
            yield "null", None
        else:
            yield _grammar(type_), path
    yield r"\}", None


def _leaf_paths(fields: Iterable[pa.Field], above: _Path = ()) -> Iterator[_Path]:
    for field in fields:
        path = (*above, field.name)
        if pa.types.is_struct(field.type):
            yield from _leaf_paths(field.type, path)
        else:
            yield path


def _grammar(type_: pa.DataType) -> str:
    """The JSON values of a type, or null, with one group for the value."""
    if pa.types.is_string(type_):
        return rf'(?:null|"({_TEXT})")'
    if pa.types.is_boolean(type_):
        return "(?:null|(true|false))"
    if pa.types.is_integer(type_):
        return f"(?:null|({_INTEGER}))"
    if pa.types.is_floating(type_):
        return f"(?:null|({_NUMBER}))"
    raise _NoPatternError


def _typed(texts: pl.Series, type_: pa.DataType) -> pl.Series:
    if pa.types.is_string(type_):
        return texts
    if pa.types.is_boolean(type_):
        return texts == "true"
    dtype = pl.Series(pa.nulls(0, type_)).dtype
    return texts.cast(dtype, strict=False)
