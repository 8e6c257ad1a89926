"""The position of each flattened column in a dialect's JSON, from the contract.

``metadata.delta`` and ``metadata.indextables`` of ``schemas/actions.json`` list positions such as
``add.deletionVector.offset``; this module converts them to one tree per wrapper key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from lakelog.model import contract

ALIASES = {"skip": "mergeskip"}
"""Wrapper keys that are synonyms."""

FILE_WRAPPERS = frozenset({"add", "remove"})
META_WRAPPERS = frozenset(
    {"protocol", "metaData", "txn", "domainMetadata", "mergeskip", "skip"}
    | {"sidecar", "checkpointMetadata"}
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field in the log; `lenient`: numbers, objects and arrays are read as JSON text."""

    column: str
    type: contract.DataType
    lenient: bool

    @property
    def is_map(self) -> bool:
        """Whether the value is a JSON object of strings."""
        return isinstance(self.type, contract.Map)


@dataclass(frozen=True)
class Node:
    """A JSON object: its fields, each a leaf or another object."""

    fields: Mapping[str, Leaf | Node]

    def leaves(self, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
        """Every leaf below, with its path of names."""
        for name, child in self.fields.items():
            if isinstance(child, Leaf):
                yield (*prefix, name), child
            else:
                yield from child.leaves((*prefix, name))


@dataclass(frozen=True)
class Wire:
    """A dialect's JSON names: bodies by wrapper key, required columns, and all field names."""

    wrappers: Mapping[str, Node]
    required: Mapping[str, tuple[str, ...]]
    names: frozenset[str]

    @staticmethod
    @cache
    def of(dialect: str) -> Wire:
        """The JSON names in the contract for ``delta`` or ``indextables``."""
        tree: dict[str, Any] = {}
        required: dict[str, list[str]] = {}
        names: set[str] = set()
        for field in contract.load("actions").fields:
            leaf = Leaf(field.name, field.type, bool(field.metadata.get("lenientText")))
            for position in field.metadata.get(dialect, ()):
                *parents, last = position.split(".")
                names.update((*parents[1:], last))
                node = tree
                for parent in parents:
                    node = node.setdefault(parent, {})
                node[last] = leaf
            for action_type in field.metadata.get("required", ()):
                required.setdefault(action_type, []).append(field.name)
        wrappers = {name: _freeze(fields) for name, fields in tree.items()}
        return Wire(wrappers, {k: tuple(v) for k, v in required.items()}, frozenset(names))


def _freeze(fields: Mapping[str, Any]) -> Node:
    return Node(
        {
            name: child if isinstance(child, Leaf) else _freeze(child)
            for name, child in fields.items()
        }
    )
