"""The position of each column in each dialect's JSON, as in the contract."""

from __future__ import annotations

import pytest

from lakelog.dialects.json_layout import ALIASES, FILE_WRAPPERS, META_WRAPPERS, Leaf, Node, Wire
from lakelog.model import actions, contract

DIALECTS = ["delta", "indextables"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_leaves_are_exactly_the_positions_of_the_contract(dialect: str) -> None:
    wire = Wire.of(dialect)
    found = {
        (".".join(path), leaf.column)
        for wrapper, node in wire.wrappers.items()
        for path, leaf in node.leaves((wrapper,))
    }
    expected = {
        (position, field.name)
        for field in contract.load("actions").fields
        for position in field.metadata.get(dialect, ())
    }
    assert found == expected


def test_nested_positions_are_nodes() -> None:
    add = Wire.of("delta").wrappers["add"]
    vector = add.fields["deletionVector"]
    assert isinstance(vector, Node)
    assert vector.fields["offset"] == Leaf("dvOffset", contract.Primitive("integer"), False)


def test_leaves_record_maps_and_leniency() -> None:
    add = Wire.of("delta").wrappers["add"]
    tags, stats, path = (add.fields[name] for name in ("tags", "stats", "path"))
    assert isinstance(tags, Leaf)
    assert isinstance(stats, Leaf)
    assert isinstance(path, Leaf)
    assert (tags.is_map, stats.is_map) == (True, False)
    assert (stats.lenient, path.lenient) == (True, False)


def test_required_fields_are_those_of_the_contract() -> None:
    required = Wire.of("delta").required
    assert set(required["add"]) == {"path", "size"}
    assert set(required["txn"]) == {"appId", "txnVersion"}
    assert "cdc" in required
    assert "commitInfo" not in required


@pytest.mark.parametrize("dialect", DIALECTS)
def test_names_contain_every_field_below_a_wrapper(dialect: str) -> None:
    wire = Wire.of(dialect)
    assert {"path", "partitionValues", "minReaderVersion", "configuration"} <= wire.names
    assert "add" not in wire.names
    assert ("deletionVector" in wire.names) == (dialect == "delta")


def test_layout_of_a_dialect_is_built_once() -> None:
    assert Wire.of("delta") is Wire.of("delta")


def test_every_leaf_fills_a_column_of_the_flattened_table() -> None:
    full = actions.schema()
    for dialect in DIALECTS:
        for node in Wire.of(dialect).wrappers.values():
            assert {leaf.column for _, leaf in node.leaves()} <= set(full)


def test_file_and_meta_wrappers_are_disjoint_and_aliases_are_meta_wrappers() -> None:
    assert not FILE_WRAPPERS & META_WRAPPERS
    assert set(ALIASES) | set(ALIASES.values()) <= META_WRAPPERS
