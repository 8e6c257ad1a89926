"""Iterates over the fields of a schema, at any depth, with their paths.

Source: Delta protocol, Field Path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lakelog.model import contract


class Located(NamedTuple):
    """One struct field, and where it is.

    Attributes:
        path: Names from the schema's root; ``element``, ``key`` and ``value`` lead through arrays
            and maps.
        field: The field.
    """

    path: tuple[str, ...]
    field: contract.Field

    @property
    def text(self) -> str:
        """The path as one text, parts joined by dots."""
        return ".".join(self.path)


def fields_of(type_: contract.DataType, prefix: tuple[str, ...] = ()) -> Iterator[Located]:
    """Every struct field of a type, each before the fields inside it, in schema order."""
    match type_:
        case contract.Struct(fields):
            for field in fields:
                path = (*prefix, field.name)
                yield Located(path, field)
                yield from fields_of(field.type, path)
        case contract.Array(element, _):
            yield from fields_of(element, (*prefix, "element"))
        case contract.Map(key, value, _):
            yield from fields_of(key, (*prefix, "key"))
            yield from fields_of(value, (*prefix, "value"))


def leaf_types(type_: contract.DataType) -> Iterator[contract.DataType]:
    """Every primitive and decimal type that occurs in a type."""
    match type_:
        case contract.Struct(fields):
            for field in fields:
                yield from leaf_types(field.type)
        case contract.Array(element, _):
            yield from leaf_types(element)
        case contract.Map(key, value, _):
            yield from leaf_types(key)
            yield from leaf_types(value)
        case _:
            yield type_


def is_nested(type_: contract.DataType) -> bool:
    """Whether a type is a struct, an array or a map."""
    return isinstance(type_, contract.Struct | contract.Array | contract.Map)
