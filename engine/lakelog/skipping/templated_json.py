"""Parses JSON texts of one template with a regular expression instead of a JSON parser.

A writer gives every file of a table statistics of one shape: the same keys in the same order, no
blanks. One text is taken as the pattern: its keys and braces represent themselves, and each value
becomes the grammar of a JSON value of the schema's type. A text that matches is that very object,
so its values are the groups; one that does not match proves nothing, and is left to the parser.
This takes a third of the parser's time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

_MOST_GROUPS = 15  # Beyond 16 groups the engine leaves its fast one-pass automaton.
_MOST_SHAPES = 4
_LEAST_ROWS = 64
_LEAST_SHARE = 0.2

_TEXT = r'[^"\\\x00-\x1f]*'
_INTEGER = r"0|-?[1-9][0-9]*"
# Without the plus that an exponent may have: with it the automaton takes a third longer.
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE]-?[0-9][0-9]?)?"
_SCALAR = rf'(?:null|true|false|{_NUMBER}|"{_TEXT}")'

_Path = tuple[str, ...]


def decode_alike(texts: pl.Series, schema: pa.Schema) -> tuple[pl.DataFrame, pl.Series] | None:
    """Read the texts that have one of a few shapes."""
    frames: list[pl.DataFrame] = []
    found: list[pl.Series] = []
    waiting = pl.int_range(texts.len(), dtype=pl.UInt32, eager=True)
    for _ in range(_MOST_SHAPES):
        if texts.len() < _LEAST_ROWS:
            break
        shape = _Shape.of(texts.drop_nulls().first(), schema)
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
    """The shape of one text.

    Attributes:
        patterns: Regular expressions to match one after another; each but the last has as its last
            group the rest of the text, which the next one continues with.
        slots: The groups of each pattern: the field that a group holds.
        structs: Fields that are objects in the text.
    """

    patterns: tuple[str, ...]
    slots: tuple[tuple[_Path, ...], ...]
    structs: frozenset[_Path]

    @staticmethod
    def of(text: Any, schema: pa.Schema) -> _Shape | None:
        """The shape of `text`, or None where a pattern cannot say it."""
        try:
            parsed = orjson.loads(text) if text is not None else None
            if not isinstance(parsed, dict):
                return None
            structs: set[_Path] = set()
            tokens = list(_tokens(parsed, {f.name: f.type for f in schema}, (), structs))
        except (orjson.JSONDecodeError, _NoPatternError):
            return None
        patterns = [""]
        slots: list[list[_Path]] = [[]]
        for pattern, path in tokens:
            if path is not None and len(slots[-1]) == _MOST_GROUPS:
                patterns.append("")
                slots.append([])
            patterns[-1] += pattern
            if path is not None:
                slots[-1].append(path)
        ends = [r"(.*)$"] * (len(patterns) - 1) + [r"()$"]
        whole = tuple(f"^{p}{end}" for p, end in zip(patterns, ends, strict=True))
        return _Shape(whole, tuple(map(tuple, slots)), frozenset(structs))

    def match(self, texts: pl.Series) -> pl.DataFrame:
        """Texts of the values, by number, and `_END`, which is null where a text does not match."""
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
    """The text holds what a pattern cannot say."""


def _tokens(
    value: dict[str, Any], types: Mapping[str, pa.DataType], above: _Path, structs: set[_Path]
) -> Iterator[tuple[str, _Path | None]]:
    """Patterns that make up an object, with the field that a pattern's group holds."""
    yield r"\{", None
    for number, (name, child) in enumerate(value.items()):
        path = (*above, name)
        if orjson.dumps(name) != f'"{name}"'.encode():
            raise _NoPatternError
        yield ("," if number else "") + re.escape(f'"{name}":'), None
        type_ = types.get(name)
        if isinstance(child, dict):
            if type_ is not None and not pa.types.is_struct(type_):
                raise _NoPatternError
            fields = {f.name: f.type for f in type_.fields} if type_ is not None else {}
            if type_ is not None:
                structs.add(path)
            yield from _tokens(child, fields, path, structs)
        elif isinstance(child, list):
            raise _NoPatternError
        elif type_ is None:
            yield _SCALAR, None
        elif child is None and pa.types.is_struct(type_):
            yield "null", None
        else:
            yield _grammar(type_), path
    yield r"\}", None


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
