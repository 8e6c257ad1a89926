"""Single changes of a schema: columns added, renamed, dropped, widened, made nullable, commented.
Pure.

A column is given by its name, or by a dotted path: names of fields of structs, and ``element``,
``key`` and ``value`` in lists and maps. Whether existing files can be read with the new schema is
checked by `schema_evolution`.

Source: Delta protocol, Schema Serialization Format; Column Mapping; Type Widening.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lakelog.errors import InvalidInputError, SchemaEvolutionError
from lakelog.model import contract
from lakelog.model.contract import Array, DataType, Field, Map, Struct

_Edit = Callable[[tuple[Field, ...], int], tuple[Field, ...]]
_WHOLE = tuple(map(contract.Primitive, ("byte", "short", "integer", "long")))
_NAMES_INSIDE: dict[type, tuple[str, ...]] = {Array: ("element",), Map: ("key", "value")}


def add_fields(schema: Struct, fields: Sequence[Field], after: str | None = None) -> Struct:
    """The schema with new columns, last or after a column. Fields of structs in lists and
    maps are below ``element`` and ``value``.
    """
    for field in fields:
        path = _new_path(schema, field.name)
        new = replace(field, name=path[-1])
        sibling = None
        if after is not None:
            *parents, sibling = path_of(schema, after)
            if parents != list(path[:-1]):
                raise _not_found(after, schema.names)
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

    return _edited(schema, path_of(schema, column), column, edit)


def drop_field(schema: Struct, column: str) -> Struct:
    """The schema without a column."""

    def edit(fields: tuple[Field, ...], at: int) -> tuple[Field, ...]:
        if len(fields) == 1:
            raise SchemaEvolutionError(
                "the last column cannot be dropped", column=column, expected="another column"
            )
        return (*fields[:at], *fields[at + 1 :])

    return _edited(schema, path_of(schema, column), column, edit)


def widen_field(schema: Struct, column: str, type_: DataType) -> Struct:
    """The schema with a wider type for a column, or for the ``element``, ``key`` or ``value`` of
    one; the metadata of the column record the change.
    """
    path = path_of(schema, column)
    own = _field_path(schema, path, column)
    below = path[len(own) :]

    def edit(field: Field) -> Field:
        old = _inner(field.type, below, column)
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
            type=_changed_at(field.type, below, column, lambda _: type_),
            metadata={**field.metadata, contract.TYPE_CHANGES: record},
        )

    return _changed(schema, own, column, edit)


def wider_types(
    table: DataType, rows: DataType, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, DataType]]:
    """Columns that rows have with a wider type, for `widen_field`. Whole numbers are not widened to
    decimals or floats, nor fields of structs whose path has a name with a dot.
    """
    match table, rows:
        case Struct(fields), Struct():
            for field in fields:
                given = rows.field(field.name)
                if given is not None and not (path and "." in field.name):
                    yield from wider_types(field.type, given.type, (*path, field.name))
        case Array(element), Array(wider):
            yield from wider_types(element, wider, (*path, "element"))
        case Map(key, value), Map(wider_key, wider_value):
            yield from wider_types(key, wider_key, (*path, "key"))
            yield from wider_types(value, wider_value, (*path, "value"))
        case _ if contract.is_widening(table, rows) and (table not in _WHOLE or rows in _WHOLE):
            yield ".".join(path), rows


def _field_path(type_: DataType, path: tuple[str, ...], column: str) -> tuple[str, ...]:
    """The beginning of a path up to its last field of a struct."""
    end = 0
    for at, name in enumerate(path):
        if isinstance(type_, Struct):
            field = type_.field(name)
            if field is None:
                return path
            type_, end = field.type, at + 1
        else:
            type_ = _inner(type_, (name,), column)
    return path[:end]


def _inner(type_: DataType, path: Sequence[str], column: str) -> DataType:
    """The type of an ``element``, ``key`` or ``value``."""
    for name in path:
        match type_, name:
            case Array(element, _), "element":
                type_ = element
            case Map(key, _, _), "key":
                type_ = key
            case Map(_, value, _), "value":
                type_ = value
            case _:
                raise _not_found(column, _NAMES_INSIDE.get(type(type_), ()))
    return type_


def allow_nulls(schema: Struct, column: str) -> Struct:
    """The schema with nulls allowed in a column."""
    path = path_of(schema, column)
    return _changed(schema, path, column, lambda field: replace(field, nullable=True))


def comment_on(schema: Struct, column: str, comment: str | None) -> Struct:
    """The schema with the comment of a column; None removes it."""

    def edit(field: Field) -> Field:
        kept = {key: value for key, value in field.metadata.items() if key != "comment"}
        return replace(field, metadata=kept if comment is None else {**kept, "comment": comment})

    return _changed(schema, path_of(schema, column), column, edit)


def path_of(schema: Struct, column: str) -> tuple[str, ...]:
    """The names on the path to a column."""
    return (column,) if column in schema.names else tuple(column.split("."))


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
            known = _NAMES_INSIDE.get(type(type_), ())  # which have no name and no metadata
            raise _not_found(column, () if name in known else known)
        return Struct(edit(type_.fields, _position(type_.fields, name, column)))

    changed = _changed_at(schema, above, column, change)
    assert isinstance(changed, Struct)
    return changed


def _changed_at(
    type_: DataType, path: Sequence[str], column: str, change: Callable[[DataType], DataType]
) -> DataType:
    """The type with a change of the one at a path inside it."""
    if not path:
        return change(type_)
    name, *rest = path
    match type_, name:
        case Struct(fields), _:
            at = _position(fields, name, column)
            inner = _changed_at(fields[at].type, rest, column, change)
            return Struct((*fields[:at], replace(fields[at], type=inner), *fields[at + 1 :]))
        case Array(element, _), "element":
            return replace(type_, element=_changed_at(element, rest, column, change))
        case Map(key, _, _), "key":
            return replace(type_, key=_changed_at(key, rest, column, change))
        case Map(_, value, _), "value":
            return replace(type_, value=_changed_at(value, rest, column, change))
    raise _not_found(column, _NAMES_INSIDE.get(type(type_), ()))


def _position(fields: Sequence[Field], name: str, column: str) -> int:
    for at, field in enumerate(fields):
        if field.name == name:
            return at
    raise _not_found(column, [field.name for field in fields])


def _not_found(column: str, names: Sequence[str]) -> InvalidInputError:
    return InvalidInputError(
        "column not found", column=column, expected=", ".join(names) or None, found=column
    )
