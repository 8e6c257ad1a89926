"""Single changes of a schema: columns added, renamed, dropped, widened, made nullable, commented.
Pure.

A column is given by its name, or by the dotted names of nested structs. Whether
existing files can be read with the new schema is checked by `schema_evolution`.

Source: Delta protocol, Schema Serialization Format; Column Mapping; Type Widening.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lakelog.errors import InvalidInputError, SchemaEvolutionError
from lakelog.model import contract
from lakelog.model.contract import Array, DataType, Field, Map, Struct

_Edit = Callable[[tuple[Field, ...], int], tuple[Field, ...]]


def add_fields(schema: Struct, fields: Sequence[Field], after: str | None = None) -> Struct:
    """The schema with new nullable columns, last or after a column. Fields of structs in lists and
    maps are below ``element`` and ``value``.
    """
    for field in fields:
        path = _new_path(schema, field.name)
        new = replace(field, name=path[-1], nullable=True)
        sibling = None
        if after is not None:
            *parents, sibling = path_of(schema, after)
            if parents != list(path[:-1]):
                raise _not_found(after, schema.fields)
            after = field.name
        changed = _with_field(schema, path[:-1], new, sibling)
        assert isinstance(changed, Struct)
        schema = changed
    return schema


def _new_path(schema: Struct, name: str) -> tuple[str, ...]:
    """The names on the path to a new column: several only where the first is a nested column."""
    path = tuple(name.split("."))
    parent = schema.field(path[0])
    is_plain = parent is None or not isinstance(parent.type, Struct | Array | Map)
    return (name,) if is_plain or name in schema.names else path


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
            at = len(fields) if sibling is None else _position(fields, sibling, sibling) + 1
            return Struct((*fields[:at], new, *fields[at:]))
        case (name, *rest), Struct(fields):
            at = _position(fields, name, name)
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

    return _edited(schema, column, edit)


def drop_field(schema: Struct, column: str) -> Struct:
    """The schema without a column."""

    def edit(fields: tuple[Field, ...], at: int) -> tuple[Field, ...]:
        if len(fields) == 1:
            raise SchemaEvolutionError(
                "the last column cannot be dropped", column=column, expected="another column"
            )
        return (*fields[:at], *fields[at + 1 :])

    return _edited(schema, column, edit)


def widen_field(schema: Struct, column: str, type_: DataType) -> Struct:
    """The schema with a wider type for a column, and the change recorded in its metadata."""

    def edit(field: Field) -> Field:
        if field.type == type_:
            return field
        if not contract.is_widening(field.type, type_):
            raise SchemaEvolutionError(
                "the new type is not wider than the old one",
                column=column,
                expected=f"a type that holds all values of {contract.to_json(field.type)}",
                found=contract.to_json(type_),
            )
        change = {"fromType": contract.to_json(field.type), "toType": contract.to_json(type_)}
        record = [*(field.metadata.get(contract.TYPE_CHANGES) or ()), change]
        return replace(
            field, type=type_, metadata={**field.metadata, contract.TYPE_CHANGES: record}
        )

    return _changed(schema, column, edit)


def allow_nulls(schema: Struct, column: str) -> Struct:
    """The schema with nulls allowed in a column."""
    return _changed(schema, column, lambda field: replace(field, nullable=True))


def comment_on(schema: Struct, column: str, comment: str | None) -> Struct:
    """The schema with the comment of a column; None removes it."""

    def edit(field: Field) -> Field:
        kept = {key: value for key, value in field.metadata.items() if key != "comment"}
        return replace(field, metadata=kept if comment is None else {**kept, "comment": comment})

    return _changed(schema, column, edit)


def path_of(schema: Struct, column: str) -> tuple[str, ...]:
    """The names on the path to a column."""
    return (column,) if column in schema.names else tuple(column.split("."))


def _changed(schema: Struct, column: str, change: Callable[[Field], Field]) -> Struct:
    return _edited(
        schema, column, lambda fields, at: (*fields[:at], change(fields[at]), *fields[at + 1 :])
    )


def _edited(schema: Struct, column: str, edit: _Edit) -> Struct:
    """The schema with an edit of the struct that contains a column."""

    def inside(struct: Struct, path: tuple[str, ...]) -> Struct:
        at = _position(struct.fields, path[0], column)
        if len(path) == 1:
            return Struct(edit(struct.fields, at))
        field = struct.fields[at]
        if not isinstance(field.type, Struct):
            raise _not_found(column, struct.fields)
        nested = replace(field, type=inside(field.type, path[1:]))
        return Struct((*struct.fields[:at], nested, *struct.fields[at + 1 :]))

    return inside(schema, path_of(schema, column))


def _position(fields: Sequence[Field], name: str, column: str) -> int:
    for at, field in enumerate(fields):
        if field.name == name:
            return at
    raise _not_found(column, fields)


def _not_found(column: str, fields: Sequence[Field]) -> InvalidInputError:
    return InvalidInputError(
        "column not found",
        column=column,
        expected=", ".join(field.name for field in fields),
        found=column,
    )
