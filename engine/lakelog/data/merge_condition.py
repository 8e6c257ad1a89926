"""The condition of a merge: columns that are compared, and further conditions over both sides.

The equalities of a target's column with a source's column, joined by AND, are the keys: rows are
joined by them. The other parts of the condition are evaluated for pairs of rows with equal keys.
Those over the target alone also choose the files of the target that are read.

Source: Delta Lake, MERGE INTO (MergeIntoCommand).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from lakelog.data.conform import has_equivalent
from lakelog.errors import InvalidInputError
from lakelog.input_validation import as_names
from lakelog.model.column_names import spelled
from lakelog.model.contract import (
    DataType,
    Decimal,
    Field,
    Struct,
    expression_of,
    from_arrow,
    to_arrow,
    to_polars,
    tree_of,
)
from lakelog.sql.condition import condition, parts_of
from lakelog.sql.sql_text import quoted, sql_text

SOURCE, TARGET = "source", "target"

_OF_TARGET = re.compile(rf"^(?:{TARGET}|`{TARGET}`)\.", re.IGNORECASE)

_INEXACT = float(1 << 53), float(1 << 63)
"""Doubles that equal several whole numbers, because those are rounded to doubles in SQL."""


@dataclass(frozen=True)
class MergeCondition:
    """Compared columns, target to source, and the condition as SQL (None: only the keys)."""

    keys: Mapping[str, str]
    text: str | None = None

    @staticmethod
    def of(
        on: str | Sequence[str] | Mapping[str, str], target: Sequence[str], source: Sequence[str]
    ) -> MergeCondition:
        """The condition of a caller, with the column names of both sides."""
        if isinstance(on, str) and _named(on, target) not in target:
            found = _of_text(on, target, source)
        else:
            given = on if isinstance(on, Mapping) else {n: n for n in as_names(on)}
            keys = [(_named(ours, target), _named(own, source)) for ours, own in given.items()]
            found = MergeCondition(dict(keys))
            twice = [pair for pair in keys if found.keys[pair[0]] != pair[1]]
            if twice:
                raise InvalidInputError(
                    "a column of the target is compared twice", column=twice[0][0], found=on
                )
        for side, names, known in (
            (TARGET, found.keys, target),
            (SOURCE, found.keys.values(), source),
        ):
            for name in names:
                if name not in known:
                    raise InvalidInputError(
                        f"the {side} of the merge has no column {name!r}",
                        column=str(name),
                        expected=", ".join(known),
                        found=name,
                    )
        if not found.keys:
            raise InvalidInputError(
                "a merge needs a column to compare", expected="on=['id']", found=on
            )
        return found

    @property
    def parameter(self) -> str:
        """The ``predicate`` of ``operationParameters``."""
        text = None if self.text is None else sql_text(self.text)
        keys = " AND ".join(
            f"({TARGET}.{quoted(t)} = {SOURCE}.{quoted(s)})" for t, s in self.keys.items()
        )
        return orjson.dumps([text or keys]).decode()

    def keys_of(self, source: Sequence[pl.DataFrame], target: Struct) -> pl.DataFrame:
        """The keys of the source's rows in the types in which they are compared with those of the
        target; numbers that match nothing are null.
        """
        types = {f.name: to_polars(f.type) for f in target.fields if f.name in self.keys}

        def key(ours: str, theirs: str) -> pl.Series:
            # Without the names, some of which Polars reads as patterns.
            values = pl.concat([rows[theirs].alias("") for rows in source])
            if values.dtype.is_numeric():
                values = _as_numbers(values, types[ours])
            return values.alias(ours)

        return pl.DataFrame([key(*each) for each in self.keys.items()])

    def of_pairs(self, target: Struct, source: Struct, now_us: int) -> PairCondition | None:
        """The condition that pairs of rows with equal keys must satisfy; None if all match."""
        if self.text is None:
            return None
        sides = Struct((Field(TARGET, target), Field(SOURCE, source)))
        where = condition(self.text, sides, now_us)
        assert where is not None
        plain = [
            found
            for part, node in _parts(where, tree_of(where))
            if set(part.meta.root_names()) == {TARGET} and (found := _plain(node)) is not None
        ]
        return PairCondition(
            where,
            frozenset(_fields(tree_of(where), target.names)),
            reduce(lambda a, b: a & b, plain) if plain else None,
        )


def require_known(except_cols: Iterable[str], target: Sequence[str], source: Sequence[str]) -> None:
    """Refuse names, in any case, that are columns of neither side."""
    known = {name.lower() for name in (*target, *source)}
    for name in except_cols:
        if known.isdisjoint(_named(name, side).lower() for side in (target, source)):
            raise InvalidInputError(
                f"except_cols: source and target of the merge have no column {name!r}",
                column=name,
                expected=", ".join(source),
                found=name,
            )


def without_side(
    values: Mapping[str, Any] | None, target: Sequence[str]
) -> Mapping[str, Any] | None:
    """New values by column, without the ``target.`` before a column, unless the target has a column
    with the whole name.
    """
    known = {name.lower() for name in target}
    if values is None or TARGET in known:
        return values
    found: dict[str, Any] = {}
    for name, value in values.items():
        plain = name if str(name).lower() in known else _OF_TARGET.sub("", str(name))
        if plain in found:
            raise InvalidInputError(f"the column {plain!r} has two new values", column=plain)
        found[plain] = value
    return found


def type_of_numbers(type_: DataType, given: pa.DataType) -> DataType | None:
    """The type of a key's values if both types have numbers."""
    if pa.types.is_dictionary(given) or pa.types.is_run_end_encoded(given):
        given = given.value_type
    kinds = {_kind_of_number(to_arrow(type_)), _kind_of_number(given)}
    if None in kinds:
        return None
    if pa.types.is_uint64(given):
        return Decimal(20, 0)
    return from_arrow(pa.schema([("", given)])).fields[0].type if has_equivalent(given) else None


def _kind_of_number(type_: pa.DataType) -> str | None:
    is_ = pa.types
    kinds = {"whole": is_.is_integer, "float": is_.is_floating, "decimal": is_.is_decimal}
    return next((name for name, is_kind in kinds.items() if is_kind(type_)), None)


def _as_numbers(values: pl.Series, type_: pl.DataType) -> pl.Series:
    """Numbers in the type in which SQL compares them with those of another type: doubles if one
    side has floats, else the other type. Those that it lacks are null.
    """
    is_float = values.dtype.is_float()
    if is_float != type_.is_float() and (values.dtype.is_decimal() or type_.is_decimal()):
        return values.cast(pl.Float64)
    if is_float and type_.is_integer() and values.abs().is_between(*_INEXACT).any():
        return values.cast(pl.Float64)
    found = values.cast(type_, strict=False)
    if values.dtype.is_integer() and type_.is_float():
        return found
    return found.set(found.cast(values.dtype, strict=False).ne_missing(values), None)


@dataclass(frozen=True)
class PairCondition:
    """A condition over ``target`` and ``source``, the columns of the target that it reads, and its
    parts over the target alone.
    """

    where: pl.Expr
    columns: frozenset[str]
    of_target: pl.Expr | None


def _of_text(text: str, target: Sequence[str], source: Sequence[str]) -> MergeCondition:
    keys: dict[str, str] = {}
    is_more = False
    parts = parts_of(text)
    for part in parts:
        sides = {path[0].lower(): path[1] for path in part.columns if len(path) == 2}
        both = part.is_equality and sides.keys() == {SOURCE, TARGET}
        key = _named(sides[TARGET], target) if both else ""
        if both and key not in keys:
            keys[key] = _named(sides[SOURCE], source)
        else:
            is_more = True
    if keys and {path[0].lower() for part in parts for path in part.columns} == {SOURCE, TARGET}:
        return MergeCondition(keys, text if is_more else None)
    fields = [".".join(path) for part in parts if part.is_equality for path in part.columns[:2]]
    fields = [each for each in fields if each.count(".") > 1]
    if fields and not keys:
        raise InvalidInputError(
            "the condition of the merge compares fields of structs, and no columns",
            column=fields[0],
            expected="an equality of a column of both sides, such as 'target.id = source.id'",
            found=text,
            hint="join an equality of columns by AND; equalities of fields can be further "
            "conditions",
        )
    raise InvalidInputError(
        "the condition of the merge cannot be used",
        expected="a column, a list of columns, or a condition with an equality of both sides, "
        "such as 'target.id = source.id AND target.day > source.day'",
        found=text,
        hint="join at least one equality by AND, and write each column as target.x or source.x",
    )


def _named(name: str, names: Sequence[str]) -> str:
    return spelled((name,), names)[0]


def _parts(expr: pl.Expr, node: Any) -> Iterator[tuple[pl.Expr, Any]]:
    """The parts that are joined by AND."""
    match node:
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
            second, first = expr.meta.pop()
            yield from _parts(first, left)
            yield from _parts(second, right)
        case _:
            yield expr, node


def _side(node: Any) -> tuple[str, str] | None:
    """Side and name of a column."""
    match node:
        case {
            "Function": {
                "input": [{"Column": str(side)}],
                "function": {"StructExpr": {"FieldByName": str(name)}},
            }
        }:
            return side, name
    return None


def _fields(node: Any, names: Sequence[str]) -> Iterator[str]:
    """The columns of the target that an expression reads."""
    match _side(node), node:
        case (str(side), str(name)), _:
            yield from [name] if side == TARGET else []
        case None, {"Column": str(side)} if side == TARGET:
            yield from names
        case None, dict():
            for inner in node.values():
                yield from _fields(inner, names)
        case None, list():
            for inner in node:
                yield from _fields(inner, names)


def _plain(node: Any) -> pl.Expr | None:
    """An expression over the target's columns instead of its struct; None for the whole struct, and
    for infinite numbers and NaN, which JSON cannot hold.
    """

    def renamed(node: Any) -> Any:
        match _side(node), node:
            case (_, name), _:
                return {"Column": name}
            case None, {"Column": _}:
                raise LookupError
            case None, dict():
                return {key: renamed(inner) for key, inner in node.items()}
            case None, list():
                return [renamed(inner) for inner in node]
        return node

    try:
        return expression_of(renamed(node))
    except (LookupError, pl.exceptions.PolarsError):
        return None
