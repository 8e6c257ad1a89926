"""The columns of a table that have statistics.

Source: Delta protocol, Per-file Statistics. Delta Lake, StatisticsCollection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lakelog.errors import InvalidPropertyError
from lakelog.model import contract

NUM_INDEXED_COLUMNS = "delta.dataSkippingNumIndexedCols"
STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns"

_INDEXED_BY_DEFAULT = 32
_WITHOUT_BOUNDS = frozenset({"binary", "boolean", "void"})
_NAME = re.compile(r"\s*+(?:`((?:[^`]|``)*+)`\s*+|([^`.,]++))([.](?=.)|,|$)")


def indexed_columns(
    schema: contract.Struct,
    partition_columns: Sequence[str],
    configuration: Mapping[str, str | None],
) -> contract.Struct:
    """The columns with statistics: those in ``delta.dataSkippingStatsColumns``, at any depth and in
    any case, else the first ``delta.dataSkippingNumIndexedCols`` leaves (default 32, negative:
    all).
    """
    partitions = {name.lower() for name in partition_columns}
    own = contract.Struct(tuple(f for f in schema.fields if f.name.lower() not in partitions))
    named = configuration.get(STATISTICS_COLUMNS)
    if named is not None:
        return _named(own, [[part.lower() for part in name] for name in _names(named)])
    count = whole_number(configuration, NUM_INDEXED_COLUMNS, _INDEXED_BY_DEFAULT)
    return own if count < 0 else _first(own, count)[0]


def require_statistics_columns(
    schema: contract.Struct, partition_columns: Sequence[str], text: str
) -> None:
    """Refuse statistics columns that are repeated, nested in each other, not in files, or of a type
    that Delta on Spark refuses; within structs it takes all types.

    Source: Delta Lake, StatisticsCollection.validateDeltaStatsColumns.
    """
    partitions = {name.lower() for name in partition_columns}
    seen: set[tuple[str, ...]] = set()
    for parts in _names(text):
        type_: contract.DataType | None = schema
        for part in parts:
            field = type_.field(part) if isinstance(type_, contract.Struct) else None
            type_ = None if field is None else field.type
        path = tuple(part.lower() for part in parts)
        is_repeated = any(path[: len(other)] == other[: len(path)] for other in seen)
        if type_ is None or is_repeated or path[0] in partitions:
            raise InvalidPropertyError(
                "the list of statistics columns names a column twice"
                if is_repeated
                else "the list of statistics columns names a column that data files do not have",
                path=STATISTICS_COLUMNS,
                column=".".join(parts),
                expected="columns of the table, each once, without partition columns",
                found=text,
            )
        if len(parts) == 1 and not _has_bounds(type_):
            raise InvalidPropertyError(
                "the list of statistics columns names a column of a type without bounds",
                path=STATISTICS_COLUMNS,
                column=parts[0],
                expected="numbers, strings, dates, times and structs",
                found=f"{parts[0]}: {contract.type_text(type_)}",
            )
        seen.add(path)


def _has_bounds(type_: contract.DataType) -> bool:
    named = isinstance(type_, contract.Primitive) and type_.name not in _WITHOUT_BOUNDS
    return named or isinstance(type_, contract.Struct | contract.Decimal)


def whole_number(configuration: Mapping[str, str | None], key: str, default: int) -> int:
    """A property that is an integer; `default` if it is not set."""
    text = configuration.get(key)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError as cause:
        raise InvalidPropertyError(
            f"{key} is not an integer", path=key, expected="an integer", found=text
        ) from cause


def _names(text: str) -> list[list[str]]:
    """Columns separated by commas, each of parts separated by dots, quoted by backticks or not."""
    names: list[list[str]] = [[]]
    position = 0 if text.strip() else len(text)
    while position < len(text):
        match = _NAME.match(text, position)
        if match is None:
            raise InvalidPropertyError(
                "the list of statistics columns cannot be parsed",
                path=STATISTICS_COLUMNS,
                expected="comma-separated names, such as id,`odd name`,place.city",
                found=text,
            )
        quoted, bare, end = match.groups()
        names[-1].append(bare.rstrip() if quoted is None else quoted.replace("``", "`"))
        if end == ",":
            names.append([])
        position = match.end()
    return [name for name in names if name]


def _named(schema: contract.Struct, names: Sequence[Sequence[str]]) -> contract.Struct:
    found = []
    for field in schema.fields:
        below = [name[1:] for name in names if name[0] == field.name.lower()]
        if not below:
            continue
        if not any(below):
            found.append(field)
        elif isinstance(field.type, contract.Struct):
            inner = _named(field.type, [name for name in below if name])
            found.append(contract.Field(field.name, inner, field.nullable, field.metadata))
    return contract.Struct(tuple(found))


def _first(schema: contract.Struct, count: int) -> tuple[contract.Struct, int]:
    """The first leaves of a schema, and their number; a type other than a struct is one leaf."""
    found: list[contract.Field] = []
    taken = 0
    for field in schema.fields:
        if taken >= count:
            break
        if isinstance(field.type, contract.Struct):
            inner, leaves = _first(field.type, count - taken)
            found.append(contract.Field(field.name, inner, field.nullable, field.metadata))
            taken += leaves
        else:
            found.append(field)
            taken += 1
    return contract.Struct(tuple(found)), taken
