"""Schema evolution: which schemas may replace one while its files stay in the table."""

from __future__ import annotations

from typing import Any

import pytest

from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import SchemaEvolutionError
from lakelog.model.contract import TYPE_CHANGES, DataType, Decimal, Primitive, is_widening
from lakelog.model.metadata import Metadata, Protocol
from lakelog.transaction.schema_evolution import check_evolution
from tests.transaction.builders import V12, column, mapped, struct, table

MAPPED = Protocol(2, 5)
WIDENING = DELTA.protocol_rules.upgrade(None, ["typeWidening"])
WIDE = {"delta.enableTypeWidening": "true"}
BY_NAME = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}


def evolve(old: Metadata, new: Metadata, protocol: Protocol = V12, **more: Any) -> None:
    check_evolution(old, TableConfiguration(DELTA, protocol, new), **more)


def assert_invalid(old: Metadata, new: Metadata, why: str, protocol: Protocol = V12) -> Any:
    with pytest.raises(SchemaEvolutionError, match=why) as refused:
        check_evolution(old, TableConfiguration(DELTA, protocol, new))
    return refused.value


def array(element: Any, nulls: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": nulls}


def map_of(key: Any, value: Any, nulls: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nulls}


def recorded(name: str, type_: Any, *changes: tuple[str, str, str]) -> dict[str, Any]:
    """A column that records its changes of type: from, to, field path."""
    entries = [
        {"fromType": old, "toType": new, **({"fieldPath": path} if path else {})}
        for old, new, path in changes
    ]
    return column(name, type_, meta={TYPE_CHANGES: entries})


ID, NAME = column("id"), column("name", "string")


@pytest.mark.parametrize(
    "new",
    [
        table(ID, NAME),
        table(ID, NAME, column("more", "double")),
        table(column("more"), NAME, ID),
        table(column("id", comment="the key"), NAME),
        table(ID, NAME, column("s", struct(column("x", nullable=False)))),
        table(ID, NAME, description="described"),
        table(ID, NAME, properties={"owner": "us"}),
    ],
)
def test_compatible_schema_change_is_valid(new: Metadata) -> None:
    evolve(table(ID, NAME), new)


def test_not_null_may_be_dropped_and_not_added() -> None:
    strict = table(column("id", nullable=False), column("a", array("long", False)),
                   column("m", map_of("string", "long", False)))  # fmt: skip
    loose = table(ID, column("a", array("long")), column("m", map_of("string", "long")))
    evolve(strict, loose)
    assert assert_invalid(loose, strict, "becomes NOT NULL").column == "id"
    assert assert_invalid(
        table(ID, column("a", array("long"))), table(ID, column("a", array("long", False))),
        "nulls are no longer allowed",
    ).column == "a.element"  # fmt: skip
    assert_invalid(
        table(ID, column("m", map_of("string", "long"))),
        table(ID, column("m", map_of("string", "long", False))),
        "nulls are no longer allowed",
    )


def test_new_not_null_column_raises() -> None:
    error = assert_invalid(table(ID), table(ID, column("more", nullable=False)), "must be nullable")
    assert error.column == "more"


@pytest.mark.parametrize(
    "key",
    ["CURRENT_DEFAULT", "delta.generationExpression", "delta.invariants", "delta.identity.start"],
)
def test_new_column_with_a_rule_on_rows_raises(key: str) -> None:
    assert_invalid(table(ID), table(ID, column("more", meta={key: "1"})), "cannot be added with")


@pytest.mark.parametrize("key", ["delta.generationExpression", "delta.invariants"])
def test_rule_on_rows_may_be_dropped_and_not_added(key: str) -> None:
    ruled = table(column("id", meta={key: "a"}), NAME)
    evolve(ruled, table(ID, NAME))
    assert_invalid(table(ID, NAME), ruled, "cannot check existing rows")
    assert_invalid(ruled, table(column("id", meta={key: "b"}), NAME), "cannot check existing rows")


def test_default_may_be_added_to_an_existing_column() -> None:
    evolve(table(ID, NAME), table(column("id", CURRENT_DEFAULT="1"), NAME))


@pytest.mark.parametrize(
    ("new", "why", "path"),
    [
        (table(ID), "the column was removed", "name"),
        (table(ID, column("Name", "string")), "letter case", "name"),
        (table(ID, column("renamed", "string")), "the column was removed", "name"),
        (table(column("id", "string"), NAME), "type changes", "id"),
        (table(column("id", "integer"), NAME), "type changes", "id"),
    ],
)
def test_removed_renamed_or_retyped_column_raises(new: Metadata, why: str, path: str) -> None:
    assert assert_invalid(table(ID, NAME), new, why).column == path


def test_nested_columns_follow_the_same_rules() -> None:
    def within(*inside: dict[str, Any]) -> Metadata:
        return table(ID, column("s", array(struct(*inside))))

    evolve(within(column("x")), within(column("x"), column("y")))
    removed = assert_invalid(within(column("x"), column("y")), within(column("x")), "was removed")
    assert removed.column == "s.element.y"
    changed = assert_invalid(within(column("x")), within(column("x", "string")), "type changes")
    assert changed.column == "s.element.x"


def test_void_column_may_get_a_type() -> None:
    evolve(table(ID, column("v", "void")), table(ID, column("v", struct(column("x")))))


def test_changed_partition_columns_raise() -> None:
    old = table(ID, NAME, column("day", "date"), by=["day"])
    for by in ([], ["name"], ["day", "name"]):
        new = table(ID, NAME, column("day", "date"), by=by)
        assert assert_invalid(old, new, "partition columns change").path == "partitionColumns"
        evolve(old, new, replaced=True)


def test_any_change_is_valid_if_every_file_is_replaced() -> None:
    new = table(column("other", nullable=False), column("id", "string"))
    evolve(table(ID, NAME), new, replaced=True)


def test_invalid_schema_may_be_replaced() -> None:
    evolve(table(schema_string="{"), table(ID))


class TestWidening:
    def test_wider_type_is_valid_if_enabled_and_recorded(self) -> None:
        new = recorded("n", "long", ("integer", "long", ""))
        evolve(table(column("n", "integer"), NAME), table(new, NAME, properties=WIDE), WIDENING)

    def test_wider_type_needs_the_feature_the_property_and_the_record(self) -> None:
        old = table(column("n", "integer"), NAME)
        new = recorded("n", "long", ("integer", "long", ""))
        assert_invalid(old, table(new, NAME, properties=WIDE), "type changes", V12)
        assert_invalid(old, table(new, NAME), "type changes", WIDENING)
        bare = table(column("n", "long"), NAME, properties=WIDE)
        assert assert_invalid(old, bare, "not recorded", WIDENING).column == "n"
        wrong = table(recorded("n", "long", ("short", "long", "")), NAME, properties=WIDE)
        assert_invalid(old, wrong, "not recorded", WIDENING)

    def test_narrower_type_raises(self) -> None:
        new = table(recorded("n", "integer", ("long", "integer", "")), properties=WIDE)
        assert_invalid(table(column("n", "long")), new, "type changes", WIDENING)

    def test_record_of_a_nested_change_requires_its_field_path(self) -> None:
        deep = map_of("float", array("decimal(6,2)"))
        wider = map_of("double", array("decimal(10,4)"))
        where = (("float", "double", "key"), ("decimal(6, 2)", "decimal(10, 4)", "value.element"))
        evolve(
            table(ID, column("m", deep)),
            table(ID, recorded("m", wider, *where), properties=WIDE),
            WIDENING,
        )
        assert_invalid(
            table(ID, column("m", deep)),
            table(ID, recorded("m", wider, where[0]), properties=WIDE),
            "not recorded",
            WIDENING,
        )

    def test_field_inside_a_struct_records_its_own_change(self) -> None:
        old = table(ID, column("s", struct(column("x", "byte"))))
        new = column("s", struct(recorded("x", "short", ("byte", "short", ""))))
        evolve(old, table(ID, new, properties=WIDE), WIDENING)

    def test_lost_record_of_a_type_change_raises(self) -> None:
        old = table(recorded("n", "long", ("integer", "long", "")), NAME, properties=WIDE)
        lost = table(column("n", "long"), NAME, properties=WIDE)
        assert_invalid(old, lost, "loses entries", WIDENING)
        evolve(old, lost, WIDENING, replaced=True)

    def test_iceberg_compatibility_allows_fewer_type_changes(self) -> None:
        protocol = DELTA.protocol_rules.upgrade(WIDENING, ["icebergCompatV2"])
        keys = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "n"}
        change = {TYPE_CHANGES: [{"fromType": "integer", "toType": "double"}]}
        assert_invalid(
            table(column("n", "integer", meta=keys), properties=WIDE),
            table(column("n", "double", meta={**keys, **change}), properties=WIDE),
            "type changes",
            protocol,
        )

    @pytest.mark.parametrize(
        ("old", "new", "plain", "iceberg"),
        [
            (Primitive("byte"), Primitive("long"), True, True),
            (Primitive("long"), Primitive("integer"), False, False),
            (Primitive("integer"), Primitive("integer"), False, False),
            (Primitive("integer"), Primitive("double"), True, False),
            (Primitive("long"), Primitive("double"), False, False),
            (Primitive("float"), Primitive("double"), True, True),
            (Primitive("integer"), Primitive("float"), False, False),
            (Primitive("date"), Primitive("timestamp_ntz"), True, False),
            (Primitive("date"), Primitive("timestamp"), False, False),
            (Primitive("integer"), Decimal(10, 0), True, False),
            (Primitive("integer"), Decimal(12, 2), True, False),
            (Primitive("integer"), Decimal(10, 1), False, False),
            (Primitive("long"), Decimal(19, 0), False, False),
            (Primitive("long"), Decimal(20, 0), True, False),
            (Primitive("string"), Decimal(20, 0), False, False),
            (Decimal(10, 2), Decimal(12, 2), True, True),
            (Decimal(10, 2), Decimal(12, 4), True, False),
            (Decimal(10, 2), Decimal(11, 4), False, False),
            (Decimal(10, 2), Decimal(12, 1), False, False),
            (Decimal(10, 2), Primitive("double"), False, False),
        ],
    )
    def test_wider_types_are_those_of_the_protocol(
        self, old: DataType, new: DataType, plain: bool, iceberg: bool
    ) -> None:
        assert is_widening(old, new) is plain
        assert is_widening(old, new, iceberg=True) is iceberg


class TestMapping:
    OLD = table(mapped("id", 1), mapped("name", 2, "string"), properties=BY_NAME)

    def new(self, *columns: dict[str, Any], **more: Any) -> Metadata:
        greatest = max(c["metadata"]["delta.columnMapping.id"] for c in columns)
        key = "delta.columnMapping.maxColumnId"
        return table(*columns, properties={**BY_NAME, key: str(max(greatest, 2))}, **more)

    def test_mapped_columns_may_be_renamed_and_dropped(self) -> None:
        evolve(self.OLD, self.new(mapped("key", 1), mapped("name", 2, "string")), MAPPED)
        evolve(self.OLD, self.new(mapped("id", 1)), MAPPED)
        evolve(self.OLD, self.new(mapped("name", 1), mapped("id", 2, "string")), MAPPED)

    def test_dropped_column_may_be_added_again_with_a_new_id(self) -> None:
        evolve(self.OLD, self.new(mapped("id", 1), mapped("name", 3)), MAPPED)

    def test_reused_column_id_raises(self) -> None:
        old = table(mapped("id", 1), properties=BY_NAME)
        new = self.new(mapped("id", 1), mapped("more", 2))
        assert assert_invalid(old, new, "reuses a column id", MAPPED).found == 2
        with pytest.raises(SchemaEvolutionError, match="reuses a column id"):
            evolve(old, new, MAPPED, replaced=True)

    def test_changed_physical_name_raises(self) -> None:
        new = self.new(mapped("id", 1, physical="other"), mapped("name", 2, "string"))
        assert_invalid(self.OLD, new, "physical name of a column must not change", MAPPED)

    def test_type_follows_its_id_and_not_its_name(self) -> None:
        new = self.new(mapped("name", 1), mapped("id", 2))
        assert_invalid(self.OLD, new, "type changes", MAPPED)

    def test_partition_column_may_be_renamed_and_not_dropped(self) -> None:
        old = table(mapped("id", 1), mapped("day", 2, "date"), properties=BY_NAME, by=["day"])
        evolve(old, self.new(mapped("id", 1), mapped("date", 2, "date"), by=["date"]), MAPPED)
        assert_invalid(old, self.new(mapped("id", 1)), "partition columns change", MAPPED)

    def test_enabled_mapping_requires_the_column_names_in_the_files(self) -> None:
        first = table(mapped("id", 1, physical="id"), properties=BY_NAME)
        evolve(table(ID), first, MAPPED)
        other = table(mapped("id", 1), properties=BY_NAME)
        assert_invalid(table(ID), other, "becomes its physical name", MAPPED)

    @pytest.mark.parametrize(("old", "new"), [("none", "id"), ("name", "id"), ("id", "name"),
                                              ("name", "none")])  # fmt: skip
    def test_mapping_mode_may_change_only_from_none_to_name(self, old: str, new: str) -> None:
        def of(mode: str) -> Metadata:
            properties = {**BY_NAME, "delta.columnMapping.mode": mode}
            return table(mapped("id", 1, physical="id"), properties=properties)

        error = assert_invalid(of(old), of(new), "mapping mode", MAPPED)
        assert error.path == "delta.columnMapping.mode"
        evolve(of(old), of(new), MAPPED, replaced=True)
