"""The columns that callers name: exactly, else in any case, as in Delta on Spark. A name, or a part
of a path, may be in backquotes.

`known_name` finds one of several names, `column_path` a column or a field inside one, `struct_path`
only those outside of lists and maps; a name that fits several is refused. `field_at` finds one by
its exact names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from lakelog.display import path_text
from lakelog.errors import InvalidInputError
from lakelog.model.contract import Array, DataType, Field, Map, Struct

_MOST_SHOWN = 20
_FORMS: tuple[Callable[[str], str], ...] = (str, str.lower)
_LAST_PART = re.compile(r"(?:(?<=\.)|^)(?:`(?:[^`]|``)+`|[^.]+)$")


def known_name(
    given: str, names: Collection[str], message: str | None = None, **fields: Any
) -> str:
    """The name of these that is given; raises InvalidInputError with a message and fields."""
    if given in names:
        return given
    for form in _FORMS:
        found = [name for name in names if form(given) in _texts(name, form)]
        if len(found) == 1:
            return found[0]
        if found:
            raise _ambiguous(given, found, **fields)
    raise _not_found(given, names, message, **fields)


def spelled(given: Iterable[str], names: Collection[str]) -> list[str]:
    """Names as these have them; those that are not found, or ambiguous, are as they are given."""
    lower: dict[str, list[str]] = {}
    for name in names:
        for text in _texts(name, str.lower):
            lower.setdefault(text, []).append(name)
    found = ((name, lower.get(name.lower(), ())) for name in given)
    return [alike[0] if len(alike) == 1 else name for name, alike in found]


def new_path(text: str) -> tuple[str, str]:
    """The path to the struct of a new field (empty for a column), and the name of the field."""
    last = _LAST_PART.search(text)
    name = text if last is None else last[0]
    above = text[: -len(name) - 1]
    is_quoted = len(name) > 2 and name[0] == name[-1] == "`"
    return above, name[1:-1].replace("``", "`") if is_quoted else name


def column_path(schema: Struct, given: str) -> tuple[str, ...]:
    """The names down to a column or to a field inside one, with ``element``, ``key`` and ``value``
    for lists and maps, from the text with dots between them. Names may be in backquotes.
    """
    column = schema.field(given)
    if column is not None and not ("." in given or "`" in given):
        return (column.name,)  # no other path has this text, so it is found without a search
    for form in _FORMS:
        found = list(dict.fromkeys(_paths(schema, form(given), form)))
        if len(found) == 1:
            return found[0]
        if found:
            raise _ambiguous(given, [path_text(path, quote=len(found) > 1) for path in found])
    raise _not_found(given, _names_near(schema, given.lower()), None)


def struct_path(schema: Struct, given: str, hint: str = "") -> tuple[Field, ...]:
    """The column that is given as for `column_path`, or the fields down to a field of a struct. The
    `hint` of the error for one inside a list or map has ``{}`` for that.
    """
    path: list[Field] = []
    type_: DataType = schema
    for name in column_path(schema, given):
        if not isinstance(type_, Struct):
            above = path_text([each.name for each in path])
            raise InvalidInputError(
                f"{given!r} is inside a list or a map",
                column=given,
                expected="a column, or a field of a struct",
                hint=hint.format(repr(above)) or None,
            )
        path.append(type_.fields[type_.names.index(name)])
        type_ = path[-1].type
    return tuple(path)


def field_at(schema: Struct, path: Sequence[str]) -> Field | None:
    """A column, or a field of one, by its exact names."""
    type_: DataType = schema
    field = None
    for name in path:
        field = type_.field(name) if isinstance(type_, Struct) else None
        if field is None or field.name != name:
            return None
        type_ = field.type
    return field


def _paths(type_: DataType, rest: str, form: Callable[[str], str]) -> Iterator[tuple[str, ...]]:
    """The paths whose text this is."""
    for name, inner in _inside(type_):
        for text in _texts(name, form):
            if rest == text:
                yield (name,)
            elif rest.startswith(f"{text}."):
                for path in _paths(inner, rest[len(text) + 1 :], form):
                    yield (name, *path)


def _texts(name: str, form: Callable[[str], str]) -> set[str]:
    """The texts of a name."""
    return {form(name), form(path_text((name,), quote=True))}


def _inside(type_: DataType) -> list[tuple[str, DataType]]:
    match type_:
        case Struct(fields):
            return [(field.name, field.type) for field in fields]
        case Array(element):
            return [("element", element)]
        case Map(key, value):
            return [("key", key), ("value", value)]
    return []


def _names_near(schema: Struct, given: str) -> list[str]:
    """The columns, or the fields of the innermost column of a path that is not found."""
    ends = [at for at, letter in enumerate(given) if letter == "."]
    for end in reversed(ends):
        for path in _paths(schema, given[:end], str.lower):
            type_: DataType = schema
            for name in path:
                type_ = dict(_inside(type_))[name]
            return [path_text((*path, name)) for name, _ in _inside(type_)]
    return [path_text((name,)) for name in schema.names]


def close_names(given: str, names: Collection[str], text: Callable[[str], str] = str) -> str | None:
    """A hint with the names that are most like one that is not found; None if none is."""
    folded = {name.lower(): name for name in names}
    close = difflib.get_close_matches(given.lower(), folded, n=3, cutoff=0.5)
    return f"did you mean {', '.join(text(folded[name]) for name in close)}?" if close else None


def _not_found(
    given: str, names: Collection[str], message: str | None, **fields: Any
) -> InvalidInputError:
    shown = [*names][:_MOST_SHOWN]
    more = [f"and {len(names) - len(shown)} more"] if len(names) > len(shown) else []
    fields = {"hint": close_names(given, names)} | fields
    return InvalidInputError(
        message or f"the table has no column {given!r}",
        column=given,
        expected=", ".join((*shown, *more)) or None,
        found=given,
        **fields,
    )


def _ambiguous(given: str, found: Collection[str], **fields: Any) -> InvalidInputError:
    fields["hint"] = "write the name exactly, each part with a dot or a backquote in backquotes"
    return InvalidInputError(
        f"{given!r} is ambiguous", column=given, expected=" or ".join(found), **fields
    )
