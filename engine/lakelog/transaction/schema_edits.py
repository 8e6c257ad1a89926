"""Single changes of a schema: columns added, renamed, dropped, widened, made nullable, commented.
Pure.

A column is given as `model.column_names.column_path` takes it. Whether existing files can be read
with the new schema is checked by `schema_evolution`.

Source: Delta protocol, Schema Serialization Format; Column Mapping; Type Widening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lakelog.display import path_text
from lakelog.errors import InvalidInputError, SchemaEvolutionError
from lakelog.model import contract
from lakelog.model.column_names import column_path, new_path
from lakelog.model.contract import Array, DataType, Field, Map, Struct

_Edit = Callable[[tuple[Field, ...], int], tuple[Field, ...]]
_WHOLE = tuple(map(contract.Primitive, ("byte", "short", "integer", "long")))


def add_fields(schema: Struct, fields: Sequence[Field], after: str | None = None) -> Struct:
    """The schema with new columns, last or after a column. Fields of structs in lists and
    maps are below ``element`` and ``value``.
    """
    for field in fields:
        path = _new_path(schema, field.name)
        new = replace(field, name=path[-1])
        sibling = None
        if after is not None:
            *parents, sibling = column_path(schema, after)
            if parents != list(path[:-1]):
                raise InvalidInputError(
                    "the column is not in the struct of the new one",
                    column=after,
                    expected=f"a name that begins with {path_text(path[:-1])}."
                    if path[:-1]
                    else "a column of the table",
                    found=after,
                )
            after = path_text(path)
        changed = _with_field(schema, path[:-1], new, sibling)
        assert isinstance(changed, Struct)
        schema = changed
    return schema


def _new_path(schema: Struct, name: str) -> tuple[str, ...]:
    """The names on the path to a new column."""
    above, last = new_path(name)
    if not above:
        return (last,)
    try:
        return (*column_path(schema, above), last)
    except InvalidInputError as error:
        error.hint = error.hint or f"write one name with dots as {path_text((name,))}"
        raise


def _with_field(
    type_: DataType, parents: tuple[str, ...], new: Field, sibling: str | None
) -> DataType:
    match parents, type_:
        case (), Struct(fields):
            if type_.field(new.name) is not None:
                raise SchemaEvolutionError(
                    "the table has a column with this name",
                    column=new.name,
                    expected="another name",
                    found=new.name,
                )
            at = len(fields) if sibling is None else type_.names.index(sibling) + 1
            return Struct((*fields[:at], new, *fields[at:]))
        case (name, *rest), Struct(fields):
            at = type_.names.index(name)
            changed = _with_field(fields[at].type, tuple(rest), new, sibling)
            return Struct((*fields[:at], replace(fields[at], type=changed), *fields[at + 1 :]))
        case ("element", *rest), Array():
            return replace(type_, element=_with_field(type_.element, tuple(rest), new, sibling))
        case ("value", *rest), Map():
            return replace(type_, value=_with_field(type_.value, tuple(rest), new, sibling))
    raise InvalidInputError(
        "columns can only be added to a table or to a struct",
        column=new.name,
        expected="a path such as address.zip, lines.element.tax or labels.value.text",
        found=".".join((*parents, new.name)),
    )


def rename_field(schema: Struct, column: str, to: str) -> Struct:
    """The schema with another name for a column."""

    def edit(fields: tuple[Field, ...], at: int) -> tuple[Field, ...]:
        if any(f.name.lower() == to.lower() for n, f in enumerate(fields) if n != at):
            raise SchemaEvolutionError(
                "the table has a column with this name",
                column=column,
                expected="another name",
                found=to,
            )
        return (*fields[:at], replace(fields[at], name=to), *fields[at + 1 :])

    return _edited(schema, column_path(schema, column), column, edit)


def drop_field(schema: Struct, column: str) -> Struct:
    """The schema without a column."""

    def edit(fields: tuple[Field, ...], at: int) -> tuple[Field, ...]:
        if len(fields) == 1:
            raise SchemaEvolutionError(
                "the last column cannot be dropped", column=column, expected="another column"
            )
        return (*fields[:at], *fields[at + 1 :])

    return _edited(schema, column_path(schema, column), column, edit)


def widen_field(schema: Struct, column: str, type_: DataType) -> Struct:
    """The schema with a wider type for a column, or for the ``element``, ``key`` or ``value`` of
    one; the metadata of the column record the change.
    """
    path = column_path(schema, column)
    own = _field_path(schema, path)
    below = path[len(own) :]

    def edit(field: Field) -> Field:
        old = _inner(field.type, below)
        if old == type_:
            return field
        if not contract.is_widening(old, type_):
            raise SchemaEvolutionError(
                "the new type is not wider than the old one",
                column=column,
                expected=f"a type that holds all values of {contract.type_text(old)}",
                found=contract.type_text(type_),
            )
        change = {"fromType": contract.to_json(old), "toType": contract.to_json(type_)}
        if below:
            change["fieldPath"] = ".".join(below)
        record = [*(field.metadata.get(contract.TYPE_CHANGES) or ()), change]
        return replace(
            field,
            type=_changed_at(field.type, below, lambda _: type_),
            metadata={**field.metadata, contract.TYPE_CHANGES: record},
        )

    return _changed(schema, own, column, edit)


def wider_types(
    table: DataType, rows: DataType, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, DataType]]:
    """Columns that rows have with a wider type, for `widen_field`. Whole numbers are not widened to
    decimals or floats.
    """
    match table, rows:
        case Struct(fields), Struct():
            for field in fields:
                given = rows.field(field.name)
                if given is not None:
                    yield from wider_types(field.type, given.type, (*path, field.name))
        case Array(element), Array(wider):
            yield from wider_types(element, wider, (*path, "element"))
        case Map(key, value), Map(wider_key, wider_value):
            yield from wider_types(key, wider_key, (*path, "key"))
            yield from wider_types(value, wider_value, (*path, "value"))
        case _ if contract.is_widening(table, rows) and (table not in _WHOLE or rows in _WHOLE):
            yield path_text(path), rows


def _field_path(schema: Struct, path: tuple[str, ...]) -> tuple[str, ...]:
    """The beginning of a path up to its last field of a struct."""
    known = {at.path for at in contract.fields_of(schema)}
    return next(path[:end] for end in range(len(path), 0, -1) if path[:end] in known)


def _inner(type_: DataType, path: Sequence[str]) -> DataType:
    """The type of an ``element``, ``key`` or ``value``."""
    for name in path:
        match type_, name:
            case Array(element), _:
                type_ = element
            case Map(key, value), _:
                type_ = key if name == "key" else value
    return type_


def allow_nulls(schema: Struct, column: str) -> Struct:
    """The schema with nulls allowed in a column."""
    path = column_path(schema, column)
    return _changed(schema, path, column, lambda field: replace(field, nullable=True))


def comment_on(schema: Struct, column: str, comment: str | None) -> Struct:
    """The schema with the comment of a column; None removes it."""

    def edit(field: Field) -> Field:
        kept = {key: value for key, value in field.metadata.items() if key != "comment"}
        return replace(field, metadata=kept if comment is None else {**kept, "comment": comment})

    return _changed(schema, column_path(schema, column), column, edit)


def _changed(
    schema: Struct, path: tuple[str, ...], column: str, change: Callable[[Field], Field]
) -> Struct:
    return _edited(
        schema,
        path,
        column,
        lambda fields, at: (*fields[:at], change(fields[at]), *fields[at + 1 :]),
    )


def _edited(schema: Struct, path: tuple[str, ...], column: str, edit: _Edit) -> Struct:
    """The schema with an edit of the struct that contains the field at a path."""
    *above, name = path

    def change(type_: DataType) -> DataType:
        if not isinstance(type_, Struct):
            raise InvalidInputError(
                f"{column!r} is not a column or a field of a struct", column=column
            )
        return Struct(edit(type_.fields, type_.names.index(name)))

    changed = _changed_at(schema, above, change)
    assert isinstance(changed, Struct)
    return changed


def _changed_at(
    type_: DataType, path: Sequence[str], change: Callable[[DataType], DataType]
) -> DataType:
    """The type with a change of the one at a path inside it, which exists."""
    if not path:
        return change(type_)
    name, *rest = path
    match type_:
        case Struct(fields):
            at = type_.names.index(name)
            inner = _changed_at(fields[at].type, rest, change)
            return Struct((*fields[:at], replace(fields[at], type=inner), *fields[at + 1 :]))
        case Array(element):
            return replace(type_, element=_changed_at(element, rest, change))
        case Map(key) if name == "key":
            return replace(type_, key=_changed_at(key, rest, change))
        case Map(_, value):
            return replace(type_, value=_changed_at(value, rest, change))
    return type_
