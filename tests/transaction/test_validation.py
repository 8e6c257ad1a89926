"""Metadata and files that a table may have: one test per rule, and a plain loop as the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.dialects.registry import named
from lakelog.errors import (
    DuplicateFileError,
    InvalidMetadataError,
    InvalidPathError,
    InvalidPropertyError,
    InvalidProtocolError,
    InvalidTransactionError,
    PartitionMismatchError,
    SchemaEvolutionError,
    UnsupportedFeatureError,
)
from lakelog.model.metadata import Metadata, Protocol
from lakelog.transaction import file_rules, row_tracking
from lakelog.transaction.validation import check_files, check_metadata
from tests.budget import share_of
from tests.model.consistency import problems
from tests.steps import assert_columnar
from tests.transaction.builders import (
    V12,
    add,
    cdc,
    column,
    mapped,
    remove,
    rows,
    struct,
    table,
    vector,
)

MAPPED = Protocol(2, 5)
BY_NAME = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
BY_DAY = table(column("id"), column("day", "date"), by=["day"])


def check(new: Metadata, old: Metadata | None = None, protocol: Protocol = V12) -> None:
    check_metadata(TableConfiguration(DELTA, protocol, new), old)


def assert_invalid(new: Metadata, why: str, protocol: Protocol = V12) -> InvalidMetadataError:
    with pytest.raises(InvalidMetadataError, match=why) as refused:
        check(new, None, protocol)
    return refused.value


def check_actions(
    *given_rows: dict[str, Any], metadata: Metadata | None = None, **more: Any
) -> None:
    protocol = more.get("protocol", V12)
    check_files(
        rows(*given_rows),
        TableConfiguration(named(more.get("format_", "delta")), protocol, metadata or table()),
    )


class TestMetadata:
    def test_plain_table_is_valid(self) -> None:
        check(table())
        check(BY_DAY)
        check(table(schema_string='{"type":"struct","fields":[]}'))
        check(table(), table(properties={"owner": "us"}))

    def test_table_id_is_required_and_must_not_change(self) -> None:
        assert_invalid(table(id=None), "no table id")
        with pytest.raises(InvalidMetadataError, match="id must not change") as refused:
            check(table(id="id-1"), table())
        assert (refused.value.expected, refused.value.found) == ("id-0", "id-1")

    @pytest.mark.parametrize("text", [None, "", "{", "[]", '{"type":"struct"}', '"long"'])
    def test_invalid_schema_text_raises(self, text: str | None) -> None:
        assert assert_invalid(table(schema_string=text), "schema").path == "schemaString"

    def test_format_provider_must_be_that_of_the_dialect_or_unchanged(self) -> None:
        assert_invalid(table(format_provider="orc"), "provider")
        assert_invalid(table(format_provider=None), "provider")
        check(table(format_provider="orc"), table(format_provider="orc"))
        check_metadata(
            TableConfiguration(INDEXTABLES, Protocol(2, 2), table(format_provider="indextables")),
            None,
        )
        with pytest.raises(InvalidMetadataError, match="provider"):
            check_metadata(TableConfiguration(INDEXTABLES, Protocol(2, 2), table()), None)

    @pytest.mark.parametrize(
        "columns",
        [
            (column("a"), column("A")),
            (column("a"), column("s", struct(column("x"), column("X")))),
            (column("l", {"type": "array", "elementType": struct(column("x"), column("x")),
                          "containsNull": True}),),
            (column("m", {"type": "map", "keyType": "string", "valueType":
                          struct(column("x"), column("X")), "valueContainsNull": True}),),
        ],
    )  # fmt: skip
    def test_column_names_that_differ_only_in_case_raise(
        self, columns: tuple[dict[str, Any], ...]
    ) -> None:
        assert_invalid(table(*columns), "two columns")

    def test_different_structs_may_use_the_same_names(self) -> None:
        check(table(column("a", struct(column("x"))), column("b", struct(column("x")))))

    @pytest.mark.parametrize("character", list(" ,;{}()\n\t="))
    def test_column_name_with_a_character_invalid_in_parquet_raises(self, character: str) -> None:
        name = f"a{character}b"
        assert assert_invalid(table(column(name)), "Parquet does not allow").found == name
        assert_invalid(table(column("s", struct(column(name)))), "Parquet does not allow")
        check(table(mapped(name, 1), properties=BY_NAME), None, MAPPED)
        check(table(column(name), column("more")), table(column(name)))

    def test_empty_column_name_raises(self) -> None:
        assert_invalid(table(column("")), "no name")

    def test_column_name_with_a_nul_character_raises(self) -> None:
        for columns in (column("a\0b"), column("s", struct(column("\0")))):
            with pytest.raises(InvalidMetadataError, match="NUL"):
                check(table(columns, properties=BY_NAME), None, MAPPED)

    @pytest.mark.parametrize("type_", ["interval year", "char(3)", "decimal(39,1)", "decimal(4,5)"])
    def test_unknown_column_type_raises(self, type_: str) -> None:
        assert assert_invalid(table(column("x", type_)), "type").column == "x"
        check(table(column("x", type_), column("y")), table(column("x", type_)))

    def test_invalid_partition_columns_raise(self) -> None:
        assert assert_invalid(table(by=["day"]), "not in the schema").found == "day"
        assert assert_invalid(table(by=["NAME"]), "not in the schema").expected == "name"
        assert_invalid(table(by=["id", "id"]), "occurs twice")
        assert_invalid(table(by=["id", "name"]), "all columns")

    @pytest.mark.parametrize("type_", [struct(column("x")), "variant", "void"])
    def test_partition_column_of_a_type_without_text_form_raises(self, type_: Any) -> None:
        with pytest.raises(InvalidMetadataError, match="partitioned by"):
            check(table(column("id"), column("p", type_), by=["p"]))

    def test_only_new_or_changed_properties_are_checked(self) -> None:
        unknown = {"delta.fromTheFuture": "1"}
        with pytest.raises(InvalidPropertyError):
            check(table(properties=unknown))
        check(table(properties={**unknown, "owner": "us"}), table(properties=unknown))
        with pytest.raises(InvalidPropertyError):
            check(table(properties={"delta.fromTheFuture": "2"}), table(properties=unknown))

    def test_enabled_feature_that_the_protocol_lacks_raises(self) -> None:
        feed = table(properties={"delta.enableChangeDataFeed": "true"})
        check(feed, None, Protocol(1, 4))
        with pytest.raises(InvalidProtocolError, match="changeDataFeed") as refused:
            check(feed)
        assert refused.value.expected == "changeDataFeed"
        check(table(properties={**feed.configuration, "owner": "us"}), feed)
        check(
            table(column("t", "timestamp_ntz")),
            None,
            DELTA.protocol_rules.upgrade(None, ["timestampNtz"]),
        )
        with pytest.raises(InvalidProtocolError, match="timestampNtz"):
            check(table(column("t", "timestamp_ntz")))

    def test_preview_feature_supports_the_property_of_its_feature(self) -> None:
        wide = table(properties={"delta.enableTypeWidening": "true"})
        check(wide, None, DELTA.protocol_rules.upgrade(None, ["typeWidening-preview"]))

    def test_column_name_reserved_by_the_change_data_feed_raises(self) -> None:
        feed = {"delta.enableChangeDataFeed": "true"}
        columns = column("id"), column("_Commit_Version")
        assert_invalid(table(*columns, properties=feed), "change data feed", Protocol(1, 4))
        check(table(*columns), None, Protocol(1, 4))

    def test_clustered_and_partitioned_table_raises(self) -> None:
        clustered = DELTA.protocol_rules.upgrade(None, ["clustering"])
        check(table(), None, clustered)
        assert_invalid(BY_DAY, "clustered", clustered)

    def test_constraint_added_without_reading_the_rows_raises(self) -> None:
        ruled = table(properties={"delta.constraints.positive": "id > 0"})
        check(ruled, None, Protocol(1, 3))
        check(table(properties={**ruled.configuration, "a": "b"}), ruled, Protocol(1, 3))
        check(table(), ruled, Protocol(1, 3))
        with pytest.raises(UnsupportedFeatureError, match="CHECK constraint is added"):
            check(ruled, table(), Protocol(1, 3))
        check_metadata(TableConfiguration(DELTA, Protocol(1, 3), ruled), table(), replaced=True)

    def test_schema_evolution_is_checked_against_the_previous_metadata(self) -> None:
        with pytest.raises(SchemaEvolutionError):
            check(table(column("id")), table())


class TestMapping:
    @pytest.mark.parametrize(
        ("columns", "why"),
        [
            ((column("a"),), "no id"),
            ((column("a", meta={"delta.columnMapping.id": 1}),), "no physical name"),
            ((column("a", meta={"delta.columnMapping.id": "1"}),), "no id"),
            ((mapped("a", 1), mapped("b", 1)), "the same id"),
            ((mapped("a", 1), mapped("b", 2, physical="col-1")), "the same physical name"),
            ((mapped("a", 1), mapped("b", 2, physical="COL-1")), "the same physical name"),
            ((mapped("a", 1), mapped("s", 2, struct(column("x")))), "no id"),
            ((mapped("a", 3),), "maxColumnId"),
        ],
    )
    def test_invalid_column_mapping_raises(
        self, columns: tuple[dict[str, Any], ...], why: str
    ) -> None:
        assert_invalid(table(*columns, properties=BY_NAME), why, MAPPED)

    def test_physical_names_of_another_writer_may_differ_in_case(self) -> None:
        lower, upper = mapped("a", 1, physical="x"), mapped("b", 2, physical="X")
        old = table(lower, upper, properties=BY_NAME)
        check(old, old, MAPPED)
        first = table(lower, properties=BY_NAME)
        with pytest.raises(InvalidMetadataError, match="the same physical name"):
            check(old, first, MAPPED)

    def test_mapped_table_is_valid_and_nested_physical_names_are_independent(self) -> None:
        check(table(mapped("a", 1), mapped("b", 2), properties=BY_NAME), None, MAPPED)
        inner = struct(mapped("x", 2, physical="p"))
        nested = table(mapped("s", 1, inner, physical="p"), properties=BY_NAME)
        check(nested, None, MAPPED)

    def test_max_column_id_is_required_and_must_not_decrease(self) -> None:
        without = {"delta.columnMapping.mode": "name"}
        assert_invalid(table(mapped("a", 1), properties=without), "maxColumnId", MAPPED)
        old = table(mapped("a", 1), properties={**BY_NAME, "delta.columnMapping.maxColumnId": "7"})
        with pytest.raises(InvalidMetadataError, match="decreases"):
            check(table(mapped("a", 1), properties=BY_NAME), old, MAPPED)


class TestRowTracking:
    TRACKED = DELTA.protocol_rules.upgrade(None, ["rowTracking"])
    ON: dict[str, str] = {  # noqa: RUF012 - read only
        "delta.enableRowTracking": "true",
        row_tracking.MATERIALIZED[0]: "_row-id",
        row_tracking.MATERIALIZED[1]: "_row-version",
    }

    def test_materialized_column_names_are_required_and_unique(self) -> None:
        check(table(properties=self.ON), None, self.TRACKED)
        assert_invalid(
            table(properties={"delta.enableRowTracking": "true"}), "no name", self.TRACKED
        )
        taken = {**self.ON, row_tracking.MATERIALIZED[0]: "ID"}
        assert_invalid(table(properties=taken), "name of another", self.TRACKED)
        same = {**self.ON, row_tracking.MATERIALIZED[0]: "_row-version"}
        assert_invalid(table(properties=same), "name of another", self.TRACKED)

    def test_changed_materialized_column_name_raises(self) -> None:
        new = table(properties={**self.ON, row_tracking.MATERIALIZED[0]: "_other"})
        with pytest.raises(InvalidMetadataError, match="must not change"):
            check(new, table(properties=self.ON), self.TRACKED)


class TestFields:
    @pytest.mark.parametrize(
        ("row", "missing"),
        [
            (add(path=None), "path"),
            (add(partitionValues=None), "partitionValues"),
            (add(size=None), "size"),
            (add(modificationTime=None), "modificationTime"),
            (add(dataChange=None), "dataChange"),
            (remove(dataChange=None), "dataChange"),
            (cdc(size=None), "size"),
        ],
    )
    def test_missing_required_field_raises(self, row: dict[str, Any], missing: str) -> None:
        for frame in (rows(add("other"), row), rows(row).drop(missing)):
            with pytest.raises(InvalidTransactionError, match="lacks a required field") as refused:
                check_files(frame, TableConfiguration(DELTA, V12, table()))
            assert refused.value.expected == missing
        with pytest.raises(InvalidTransactionError) as refused:
            check_actions(add("other"), row)
        assert refused.value.found == {"row": 1}

    @pytest.mark.parametrize(
        "name",
        ["size", "modificationTime", "baseRowId", "defaultRowCommitVersion", "footerEndOffset"],
    )
    def test_negative_number_raises(self, name: str) -> None:
        with pytest.raises(
            InvalidTransactionError, match=f"{name} must not be negative"
        ) as refused:
            check_actions(add("a"), add("b", **{name: -1}))
        assert refused.value.found == {"row": 1, name: -1}
        assert refused.value.path == "b"

    def test_remove_with_only_a_path_is_valid(self) -> None:
        check_actions(remove("s3://elsewhere/a.parquet"), remove("/abs"), remove("_x/../y"))

    def test_cdc_with_data_change_raises(self) -> None:
        check_actions(cdc())
        with pytest.raises(InvalidTransactionError, match="must have dataChange false"):
            check_actions(cdc(dataChange=True))

    def test_action_without_a_file_raises(self) -> None:
        with pytest.raises(InvalidTransactionError, match="not a file action"):
            check_actions({"actionType": "metaData", "path": "a"})

    def test_empty_frame_is_valid(self) -> None:
        check_files(rows(), TableConfiguration(DELTA, V12, table()))


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        ["a.parquet", "p=1/q=a b/x%2F.parquet", "..a", "a..", "a/.b/c", ".hidden.parquet",
         "_x.parquet", "p=12:00/x", "ü/é", "a/b:c"],
    )  # fmt: skip
    def test_path_below_the_table_is_valid(self, path: str) -> None:
        check_actions(add(path))

    @pytest.mark.parametrize(
        "path",
        ["", "/a", "s3://b/a", "C:a", "file:/a", "../a", "a/../b", "a/..", ".", "./a", "a/./b",
         "a//b", "a/", "a\x00b", "_delta_log/a", "_transaction_log/a", "_x/a", "p=1/_x/a",
         "_change_data/a"],
    )  # fmt: skip
    def test_path_outside_the_table_or_hidden_raises(self, path: str) -> None:
        with pytest.raises(InvalidPathError) as refused:
            check_actions(add("fine"), add(path))
        assert refused.value.path == path
        assert refused.value.found == {"row": 1}

    def test_path_inside_the_log_folder_raises(self) -> None:
        with pytest.raises(InvalidPathError, match="inside the log folder"):
            check_actions(add("_delta_log/0.json"))

    def test_folder_of_a_partition_column_with_an_underscore_is_not_hidden(self) -> None:
        by = table(column("id"), column("_p.q"), by=["_p.q"])
        check_actions(add("_p.q=1/a", partitionValues={"_p.q": "1"}), metadata=by)
        with pytest.raises(InvalidPathError):
            check_actions(add("_pxq=1/a", partitionValues={"_p.q": "1"}), metadata=by)

    def test_file_outside_the_table_is_valid_only_with_its_remove(self) -> None:
        clone = "s3://elsewhere/_x/a.parquet"
        check_actions(remove(clone), add(clone, **vector()))
        with pytest.raises(InvalidPathError, match="not relative"):
            check_actions(remove("other"), add(clone))


class TestIdentities:
    def test_duplicate_path_in_actions_of_one_type_raises(self) -> None:
        for row in (add, remove, cdc):
            paths = ["a/x", "a/y", "a/y"] if row is not cdc else ["_change_data/y"] * 2
            with pytest.raises(DuplicateFileError, match=r"two \w+ actions") as refused:
                check_actions(*map(row, paths))
            assert refused.value.path in {"a/y", "_change_data/y"}
        with pytest.raises(DuplicateFileError):
            check_actions(add("a"), add("a", **vector()))

    def test_add_remove_and_cdc_of_one_path_are_valid(self) -> None:
        check_actions(remove("a"), add("a", **vector()), cdc("a"))
        check_actions(remove("a", **vector()), add("a", **vector(offset=None)))

    def test_add_and_remove_of_the_same_file_raise(self) -> None:
        with pytest.raises(DuplicateFileError, match="adds and removes the same") as refused:
            check_actions(add("b"), remove("a"), add("a"))
        assert (refused.value.path, refused.value.found) == ("a", {"row": 1})
        with pytest.raises(DuplicateFileError):
            check_actions(remove("a", **vector()), add("a", **vector()))


class TestPartitions:
    @pytest.mark.parametrize(
        "values", [{}, {"Day": "2024-01-01"}, {"day": "2024-01-01", "x": "1"}, {"x": "1"}]
    )
    def test_missing_or_extra_partition_values_raise(self, values: dict[str, str]) -> None:
        with pytest.raises(PartitionMismatchError, match="do not match") as refused:
            check_actions(add("a", partitionValues=values), metadata=BY_DAY)
        assert refused.value.expected == ["day"]
        assert refused.value.found == {"row": 0, "partitionValues": values}

    def test_partition_values_of_an_unpartitioned_table_raise(self) -> None:
        check_actions(add())
        with pytest.raises(PartitionMismatchError):
            check_actions(add(partitionValues={"day": "2024-01-01"}))

    @pytest.mark.parametrize(
        ("type_", "good", "bad"),
        [
            ("date", ["2024-01-31", "", None], ["2024-02-30", "31.1.2024", "x"]),
            ("long", ["-9223372036854775808", "7"], ["9223372036854775808", "1.5", "x"]),
            ("byte", ["-128", "127"], ["128"]),
            ("double", ["1.5", "NaN", "1e10", "Infinity"], ["x"]),
            ("boolean", ["true", "FALSE"], ["1", "yes"]),
            ("decimal(4,2)", ["12.34", "1", "0E-2"], ["123.45", "1.234", "x"]),
            ("timestamp", ["2024-01-01 10:20:30", "2024-01-01T10:20:30.5Z"], ["noon"]),
            ("string", ["anything", "__HIVE_DEFAULT_PARTITION__"], []),
            ("binary", ["\u0001", "é"], []),
        ],
    )
    def test_partition_value_of_the_wrong_type_raises(
        self, type_: str, good: list[str | None], bad: list[str]
    ) -> None:
        by = table(column("id"), column("p", type_), by=["p"])
        for number, value in enumerate(good):
            check_actions(add(f"f{number}", partitionValues={"p": value}), metadata=by)
        for value in bad:
            with pytest.raises(PartitionMismatchError, match="has the wrong type") as refused:
                check_actions(
                    remove("removed"), add("a", partitionValues={"p": good[0]}),
                    add("b", partitionValues={"p": value}), metadata=by,
                )  # fmt: skip
            assert refused.value.found == {"row": 2, "partitionValues": {"p": value}}

    def test_null_partition_value_of_a_not_null_column_raises(self) -> None:
        by = table(column("id"), column("p", nullable=False), by=["p"])
        check_actions(add(partitionValues={"p": "1"}), metadata=by)
        for value in (None, ""):
            with pytest.raises(PartitionMismatchError, match="is null"):
                check_actions(add(partitionValues={"p": value}), metadata=by)

    def test_partition_values_of_mapped_columns_use_physical_names(self) -> None:
        by = table(mapped("id", 1), mapped("p", 2), properties=BY_NAME, by=["p"])
        check_actions(add(partitionValues={"col-2": "1"}), metadata=by, protocol=MAPPED)
        with pytest.raises(PartitionMismatchError) as refused:
            check_actions(add(partitionValues={"p": "1"}), metadata=by, protocol=MAPPED)
        assert refused.value.expected == ["col-2"]

    def test_hive_null_is_valid_only_for_indextables(self) -> None:
        null = {"day": "__HIVE_DEFAULT_PARTITION__"}
        check_actions(add(partitionValues=null), metadata=BY_DAY, format_="indextables")
        with pytest.raises(PartitionMismatchError):
            check_actions(add(partitionValues=null), metadata=BY_DAY)

    def test_partition_values_of_removes_are_not_checked(self) -> None:
        check_actions(remove(partitionValues={"old": "1"}), metadata=BY_DAY)


USUAL = '{"numRecords":3,"minValues":{"id":1,"s":{"x":{"y":"é"}}},"nullCount":{"id":0}'


class TestStatistics:
    @pytest.mark.parametrize(
        "text",
        [None, "{}", '{"numRecords":0}', USUAL + "}", USUAL + ',"tightBounds":true}',
         ' {"numRecords" : 1} ', '{"numRecords":null}', '{"a":[1]}',
         '{"numRecords":1,"x":"\\u00e9"}'],
    )  # fmt: skip
    def test_json_object_is_valid(self, text: str | None) -> None:
        check_actions(add("a", stats=text), add("b", stats=None))

    @pytest.mark.parametrize(
        "text",
        ["", "null", "[]", "1", "{", '{"numRecords":1', '{"numRecords":01}', '{"numRecords":1,}',
         '{"numRecords":1,"minValues":{"a":NaN}}', '{"numRecords":1}x', USUAL, "{'a':1}",
         '{"numRecords":-1}', '{"numRecords":1.0}', '{"numRecords":"1"}', '{"numRecords":true}',
         '{"numRecords":9223372036854775808}', '{"numRecords":1,"numRecords":-1}',
         '{"numRecords":1,"minValues":{"a":"\n"}}', '{"numRecords":1,"tightBounds":1,}'],
    )  # fmt: skip
    def test_invalid_statistics_raise(self, text: str) -> None:
        with pytest.raises(InvalidTransactionError, match=r"statistics|numRecords") as error:
            check_actions(add("a"), add("b", stats=text))
        assert error.value.found == {"row": 1, "stats": text}
        check_actions(remove("b", stats=text))

    @settings(max_examples=share_of(200))
    @given(st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["numRecords", "minValues", "a", 'q"\\', "é"]), inner),
        max_leaves=8,
    ), st.data())  # fmt: skip
    def test_statistics_that_match_the_pattern_are_accepted_by_the_parser(
        self, value: Any, data: st.DataObject
    ) -> None:
        text = json.dumps(
            {"numRecords": 1, "minValues": value, "nullCount": value},
            separators=(",", ":"),
            ensure_ascii=data.draw(st.booleans()),
        )
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(["", ",", "}", '"', "\\", "0"])) + text[at:]
        matches = pl.Series([text]).str.contains(file_rules._USUAL_STATISTICS)[0]
        assert not matches or file_rules.problem_of_statistics(text) is None


class TestVectors:
    @pytest.mark.parametrize(
        "fields",
        [vector(), vector(offset=None), vector("xy" + "v" * 20), vector("/abs/dv.bin", "p"),
         vector("bytes", "i", None)],
    )  # fmt: skip
    def test_complete_deletion_vector_is_valid(self, fields: dict[str, Any]) -> None:
        check_actions(add(**fields))
        check_actions(remove(**fields))

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"dvStorageType": None}, "lacks a required field"),
            ({"dvPathOrInline": None}, "lacks a required field"),
            ({"dvSizeInBytes": None}, "lacks a required field"),
            ({"dvCardinality": None}, "lacks a required field"),
            ({"dvStorageType": "x"}, "storage type"),
            ({"dvPathOrInline": "short"}, "has no location"),
            ({"dvStorageType": "p", "dvPathOrInline": ""}, "has no location"),
            ({"dvStorageType": "i"}, "not have an offset"),
            ({"dvOffset": -1}, "negative"),
            ({"dvCardinality": -1}, "negative"),
        ],
    )
    def test_incomplete_deletion_vector_raises(self, change: dict[str, Any], why: str) -> None:
        for row in (add("b", **{**vector(), **change}), remove("b", **{**vector(), **change})):
            with pytest.raises(InvalidTransactionError, match=why) as refused:
                check_actions(add("a"), row)
            assert refused.value.path == "b"


PARTITIONS = {"day": ("date", True), "n": ("long", False)}
METADATA = table(column("id"), column("day", "date"), column("n", nullable=False), by=["day", "n"])

paths = st.sampled_from(
    ["a", "b", "d/a", "", "/a", "s3://x/a", "../a", "a//b", "_x/a", "_change_data/a", "n=1/a", "é"]
)
values = st.fixed_dictionaries(
    {"day": st.sampled_from(["2024-01-01", None, "", "2024-13-01"]),
     "n": st.sampled_from(["1", "-5", None, "", "x"])},
    optional={"more": st.just("1")},
)  # fmt: skip
good_values = st.just({"day": "2024-01-01", "n": "1"})
vectors = st.sampled_from(
    [{}, {}, {}, vector(), vector(offset=2), vector(kind="i"), vector(kind="i", offset=None),
     {"dvStorageType": "u"}, {**vector(), "dvCardinality": -1}],
)  # fmt: skip


@st.composite
def actions_of_files(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["add", "add", "remove", "cdc"]))
    path = draw(st.sampled_from(["a", "b", "c", "d/a", "d/b"]) | paths)
    if kind == "remove":
        row = remove(path, size=draw(st.sampled_from([None, 1, -1])))
    else:
        row = (add if kind == "add" else cdc)(path)
        row["partitionValues"] = draw(good_values | values)
        row["size"] = draw(st.sampled_from([1, 1, 1, 0, -1, None]))
        if kind == "add":
            texts = [None, '{"numRecords":1}', USUAL + "}", "x", '{"numRecords":-1}', "[]"]
            row["stats"] = draw(st.sampled_from([None, *texts]))
    if kind != "cdc":
        row |= draw(vectors)
    if draw(st.integers(0, 9)) == 0:
        row["dataChange"] = draw(st.sampled_from([True, False, None]))
    return row


def verdict(given_rows: list[dict[str, Any]]) -> str | None:
    """The kind of the error of these rows."""
    try:
        check_files(rows(*given_rows), TableConfiguration(DELTA, V12, METADATA))
    except InvalidTransactionError as error:
        return error.kind
    return None


@settings(max_examples=share_of(400))
@given(st.lists(actions_of_files(), max_size=6))
def test_check_of_files_agrees_with_the_plain_model(given_rows: list[dict[str, Any]]) -> None:
    expected = problems(given_rows, PARTITIONS)
    found = verdict(given_rows)
    assert found in expected if found else not expected


def test_adds_are_checked_without_a_loop_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Usual statistics are not parsed, so the time depends on their size in bytes."""

    def never(text: str) -> str:
        raise AssertionError(text)

    monkeypatch.setattr(file_rules, "problem_of_statistics", never)
    days = [{"day": f"2024-01-{day:02}"} for day in range(1, 29)]

    def check(count: int) -> Callable[[], None]:
        number = pl.int_range(count, eager=True)
        frame = pl.select(
            actionType=pl.lit("add").repeat_by(count).explode(),
            path=pl.format("day=2024-01-01/part-{}-8f2b2c1e.parquet", number),
            partitionValues=pl.Series(days, dtype=pl.Map(pl.String, pl.String)).gather(number % 28),
            size=number,
            modificationTime=number,
            dataChange=pl.repeat(True, count),
            stats=pl.concat_str(
                pl.lit('{"numRecords":'), number.cast(pl.String), pl.lit(',"minValues":{"id":'),
                number.cast(pl.String), pl.lit("}}"),
            ),
        )  # fmt: skip
        return lambda: check_files(frame, TableConfiguration(DELTA, V12, BY_DAY))

    assert_columnar(check)
