"""The condition of a merge: columns that are compared, and further conditions over both sides.

The equalities of a target's column with a source's column, joined by AND, are the keys: rows are
joined by them. Fields of structs are keys too, if both sides are numbers or have one type. The
other parts of the condition are evaluated for pairs of rows with equal keys. Those over the target
alone also choose the files of the target that are read.

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
from lakelog.display import path_text
from lakelog.errors import InvalidInputError
from lakelog.input_validation import as_names
from lakelog.model.column_names import field_at, spelled, struct_path
from lakelog.model.contract import (
    VOID,
    DataType,
    Decimal,
    Field,
    Struct,
    expression_of,
    field_of,
    from_arrow,
    to_arrow,
    to_polars,
    tree_of,
    type_name,
)
from lakelog.sql.condition import condition, parts_of
from lakelog.sql.sql_text import quoted, sql_text

SOURCE, TARGET = "source", "target"

_OF_TARGET = re.compile(rf"^(?:{TARGET}|`{TARGET}`)\.", re.IGNORECASE)

_INEXACT = float(1 << 53), float(1 << 63)
"""Doubles that equal several whole numbers, because those are rounded to doubles in SQL."""


Path = tuple[str, ...]
"""A column, or a field of a struct: the names down to it."""


@dataclass(frozen=True)
class MergeCondition:
    """Compared columns and fields, target to source, and the condition as SQL (None: only them)."""

    keys: Mapping[Path, Path]
    text: str | None = None

    @staticmethod
    def of(
        on: str | Sequence[str] | Mapping[str, str], target: Struct, source: pa.Schema
    ) -> MergeCondition:
        """The condition of a caller, with the names that both sides have."""
        known = _Schemas(target, _known(source))
        if isinstance(on, str) and _found(on, target) is None:
            found = _of_text(on, known)
        else:
            given = on if isinstance(on, Mapping) else {n: n for n in as_names(on)}
            keys = [known.key(ours, own) for ours, own in given.items()]
            found = MergeCondition(dict(keys))
            twice = [pair for pair in keys if found.keys[pair[0]] != pair[1]]
            if twice:
                raise InvalidInputError(
                    "a column of the target is compared twice",
                    column=path_text(twice[0][0]),
                    found=on,
                )
        if not found.keys:
            raise InvalidInputError(
                "a merge needs a column to compare", expected="on=['id']", found=on
            )
        return found

    @property
    def columns(self) -> dict[str, str]:
        """The keys that are columns on both sides."""
        pairs = self.keys.items()
        return {ours[0]: own[0] for ours, own in pairs if len(ours) == len(own) == 1}

    @property
    def parameter(self) -> str:
        """The ``predicate`` of ``operationParameters``."""
        text = None if self.text is None else sql_text(self.text)
        keys = " AND ".join(
            f"({TARGET}.{_quoted(ours)} = {SOURCE}.{_quoted(own)})"
            for ours, own in self.keys.items()
        )
        return orjson.dumps([text or keys]).decode()

    def keys_of(self, source: Sequence[pl.DataFrame], target: Struct) -> pl.DataFrame:
        """The keys of the source's rows by `key_name`, in the types in which they are compared with
        those of the target; numbers that match nothing are null.
        """

        def key(ours: Path, own: Path) -> pl.Series:
            values = pl.concat([values_of(rows, own) for rows in source])
            if values.dtype.is_numeric():
                field = field_at(target, ours)
                assert field is not None, "keys are paths of the target"
                values = _as_numbers(values, to_polars(field.type))
            return values.alias(key_name(ours))

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


def key_name(path: Path) -> str:
    """The name of the column of keys for a column or field of the target."""
    return path[0] if len(path) == 1 else path_text(path, quote=True)


def values_of(rows: pl.DataFrame, path: Path) -> pl.Series:
    """The values of a column or field, without its name, because Polars reads some as patterns."""
    return reduce(field_of, path[1:], rows[path[0]].alias(""))


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
    return _type_of(given) if has_equivalent(given) else None


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


@dataclass(frozen=True)
class _Schemas:
    """The columns of both sides; those of the source that a table cannot have are void."""

    target: Struct
    source: Struct

    def key(self, ours: str, own: str) -> tuple[Path, Path]:
        """The paths of a key; refuses fields of types that are not compared as they are."""
        of_target = _required(ours, self.target, TARGET)
        of_source = _required(own, self.source, SOURCE)
        types = of_target[-1].type, of_source[-1].type
        is_column = len(of_target) == len(of_source) == 1  # its values are converted
        is_same = to_polars(types[0]) == to_polars(types[1])
        if not (is_column or is_same or all(_kind_of_number(to_arrow(t)) for t in types)):
            raise InvalidInputError(
                f"the key {path_text(_path(of_source))!r} of the merge's source has another type "
                f"than {path_text(_path(of_target))!r}",
                column=path_text(_path(of_source)),
                expected=type_name(types[0]),
                found="a type that no table has" if types[1] == VOID else type_name(types[1]),
                hint="cast the source's values",
            )
        return _path(of_target), _path(of_source)


def _of_text(text: str, known: _Schemas) -> MergeCondition:
    keys: dict[Path, Path] = {}
    is_more, refused = False, None
    parts = parts_of(text)
    for part in parts:
        sides = {path[0].lower(): path[1:] for path in part.columns if len(path) > 1}
        is_key = part.is_equality and sides.keys() == {SOURCE, TARGET}
        if is_key:
            # In quotes, because a column may have the text of the path as its name.
            texts = [path_text(p, quote=len(p) > 1) for p in (sides[TARGET], sides[SOURCE])]
            try:
                ours, own = known.key(*texts)
            except InvalidInputError as error:
                if sides[TARGET][1:] == sides[SOURCE][1:] == []:
                    raise
                is_key, refused = False, error
        if is_key and ours not in keys:
            keys[ours] = own
        else:
            is_more = True
    if refused is not None and not keys:
        raise refused
    if keys and {path[0].lower() for part in parts for path in part.columns} == {SOURCE, TARGET}:
        return MergeCondition(keys, text if is_more else None)
    raise InvalidInputError(
        "the condition of the merge cannot be used",
        expected="a column, a list of columns, or a condition with an equality of both sides, "
        "such as 'target.id = source.id AND target.day > source.day'",
        found=text,
        hint="join at least one equality by AND, and write each column as target.x or source.x",
    )


def _known(source: pa.Schema) -> Struct:
    """The columns of the source; those of types that no table can have are void."""
    types = [VOID if not has_equivalent(f.type) else _type_of(f.type) for f in source]
    return Struct(tuple(map(Field, source.names, types)))


def _required(given: str, schema: Struct, side: str) -> tuple[Field, ...]:
    found = _found(given, schema)
    if found is None:
        raise InvalidInputError(
            f"the {side} of the merge has no column {given!r}",
            column=given,
            expected=", ".join(schema.names),
            found=given,
        )
    return found


def _found(given: str, schema: Struct) -> tuple[Field, ...] | None:
    """The column that is given, else the fields down to a field of a struct."""
    field = schema.field(_named(given, schema.names))
    if field is not None:
        return (field,)
    try:
        return struct_path(schema, given)
    except InvalidInputError:
        return None


def _path(fields: Sequence[Field]) -> Path:
    return tuple(field.name for field in fields)


def _quoted(path: Path) -> str:
    return ".".join(map(quoted, path))


def _type_of(type_: pa.DataType) -> DataType:
    return from_arrow(pa.schema([("", type_)])).fields[0].type


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
