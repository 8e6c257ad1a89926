"""The columns that have statistics, by the properties of the table."""

from __future__ import annotations

import pytest

from lakelog.errors import InvalidPropertyError
from lakelog.model.contract import Field, Map, Primitive, Struct
from lakelog.skipping.indexed_columns import indexed_columns


def struct(**types: Primitive | Map | Struct) -> Struct:
    return Struct(tuple(Field(name, type_) for name, type_ in types.items()))


LONG, TEXT = Primitive("long"), Primitive("string")
SCHEMA = struct(
    a=LONG,
    S=struct(x=TEXT, **{"y z": Primitive("date")}, e=Struct(())),
    m=Map(TEXT, LONG),
    p=LONG,
    when=Primitive("timestamp"),
    **{"o`d,e": struct(**{"f.g": LONG})},
)


def leaves(type_: Struct) -> list[str]:
    found = []
    for f in type_.fields:
        if isinstance(f.type, Struct):
            found += [f"{f.name}.{inner}" for inner in leaves(f.type)] or [f"{f.name}."]
        else:
            found.append(f.name)
    return found


ALL = ["a", "S.x", "S.y z", "S.e.", "m", "when", "o`d,e.f.g"]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ALL),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, ALL),
        ({"delta.dataSkippingNumIndexedCols": "0"}, []),
        ({"delta.dataSkippingNumIndexedCols": "2"}, ["a", "S.x"]),
        ({"delta.dataSkippingNumIndexedCols": "4"}, ALL[:5]),
        ({"delta.dataSkippingStatsColumns": ""}, []),
        ({"delta.dataSkippingStatsColumns": " A , s.`Y Z` "}, ["a", "S.y z"]),
        ({"delta.dataSkippingStatsColumns": "s . y z"}, ["S.y z"]),
        ({"delta.dataSkippingStatsColumns": "`o``d,e`.`f.g`"}, ["o`d,e.f.g"]),
        ({"delta.dataSkippingStatsColumns": "s"}, ["S.x", "S.y z", "S.e."]),
        ({"delta.dataSkippingStatsColumns": "s.x,s,unknown,a.b,p"}, ["S.x"]),
        (
            {"delta.dataSkippingStatsColumns": "when", "delta.dataSkippingNumIndexedCols": "1"},
            ["when"],
        ),
    ],
)
def test_properties_choose_the_columns_with_statistics(
    properties: dict[str, str | None], expected: list[str]
) -> None:
    assert leaves(indexed_columns(SCHEMA, ("P",), properties)) == expected


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.dataSkippingNumIndexedCols": "many"},
        {"delta.dataSkippingStatsColumns": "a,,b"},
        {"delta.dataSkippingStatsColumns": "a."},
        {"delta.dataSkippingStatsColumns": "a` b"},
        {"delta.dataSkippingStatsColumns": "`a"},
    ],
)
def test_malformed_property_raises(properties: dict[str, str | None]) -> None:
    with pytest.raises(InvalidPropertyError, match=r"cannot be parsed|not an integer"):
        indexed_columns(SCHEMA, (), properties)
