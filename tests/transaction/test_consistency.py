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
from lakelog.transaction import file_rules
from lakelog.transaction.validation import MATERIALIZED, check_files, check_metadata
from tests.budget import share_of
from tests.model.consistency import problems
from tests.steps import assert_columnar
from tests.transaction.making import (
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


def refuse(new: Metadata, why: str, protocol: Protocol = V12) -> InvalidMetadataError:
    with pytest.raises(InvalidMetadataError, match=why) as refused:
        check(new, None, protocol)
    return refused.value


def files(*given_rows: dict[str, Any], metadata: Metadata | None = None, **more: Any) -> None:
    protocol = more.get("protocol", V12)
    check_files(
        rows(*given_rows),
        TableConfiguration(named(more.get("format_", "delta")), protocol, metadata or table()),
    )


class TestMetadata:
    def test_a_plain_table_passes(self) -> None:
        check(table())
        check(BY_DAY)
        check(table(schema_string='{"type":"struct","fields":[]}'))
        check(table(), table(properties={"owner": "us"}))

    def test_the_id_is_there_and_stays(self) -> None:
        refuse(table(id=None), "no table id")
        with pytest.raises(InvalidMetadataError, match="id must not change") as refused:
            check(table(id="id-1"), table())
        assert (refused.value.expected, refused.value.found) == ("id-0", "id-1")

    @pytest.mark.parametrize("text", [None, "", "{", "[]", '{"type":"struct"}', '"long"'])
    def test_the_schema_can_be_parsed(self, text: str | None) -> None:
        assert refuse(table(schema_string=text), "schema").path == "schemaString"

    def test_the_provider_is_the_formats_or_the_one_that_was(self) -> None:
        refuse(table(format_provider="orc"), "provider")
        refuse(table(format_provider=None), "provider")
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
    def test_names_are_unique_regardless_of_case(self, columns: tuple[dict[str, Any], ...]) -> None:
        refuse(table(*columns), "two columns")

    def test_structs_side_by_side_may_use_the_same_names(self) -> None:
        check(table(column("a", struct(column("x"))), column("b", struct(column("x")))))

    @pytest.mark.parametrize("character", list(" ,;{}()\n\t="))
    def test_a_name_holds_no_character_that_parquet_refuses(self, character: str) -> None:
        name = f"a{character}b"
        assert refuse(table(column(name)), "Parquet does not allow").found == name
        refuse(table(column("s", struct(column(name)))), "Parquet does not allow")
        check(table(mapped(name, 1), properties=BY_NAME), None, MAPPED)
        check(table(column(name), column("more")), table(column(name)))

    def test_a_column_has_a_name(self) -> None:
        refuse(table(column("")), "no name")

    @pytest.mark.parametrize("type_", ["interval year", "char(3)", "decimal(39,1)", "decimal(4,5)"])
    def test_a_type_is_one_of_the_formats(self, type_: str) -> None:
        assert refuse(table(column("x", type_)), "type").column == "x"
        check(table(column("x", type_), column("y")), table(column("x", type_)))

    def test_partition_columns_are_columns(self) -> None:
        assert refuse(table(by=["day"]), "not in the schema").found == "day"
        assert refuse(table(by=["NAME"]), "not in the schema").expected == "name"
        refuse(table(by=["id", "id"]), "occurs twice")
        refuse(table(by=["id", "name"]), "all columns")

    @pytest.mark.parametrize("type_", [struct(column("x")), "variant", "void"])
    def test_values_of_a_partition_column_are_written_as_text(self, type_: Any) -> None:
        with pytest.raises(InvalidMetadataError, match="partitioned by"):
            check(table(column("id"), column("p", type_), by=["p"]))

    def test_properties_count_where_they_are_new_or_changed(self) -> None:
        unknown = {"delta.fromTheFuture": "1"}
        with pytest.raises(InvalidPropertyError):
            check(table(properties=unknown))
        check(table(properties={**unknown, "owner": "us"}), table(properties=unknown))
        with pytest.raises(InvalidPropertyError):
            check(table(properties={"delta.fromTheFuture": "2"}), table(properties=unknown))

    def test_the_protocol_supports_what_the_metadata_switches_on(self) -> None:
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

    def test_a_preview_supports_what_its_feature_does(self) -> None:
        wide = table(properties={"delta.enableTypeWidening": "true"})
        check(wide, None, DELTA.protocol_rules.upgrade(None, ["typeWidening-preview"]))

    def test_columns_of_the_change_data_feed_have_their_own_names(self) -> None:
        feed = {"delta.enableChangeDataFeed": "true"}
        columns = column("id"), column("_Commit_Version")
        refuse(table(*columns, properties=feed), "change data feed", Protocol(1, 4))
        check(table(*columns), None, Protocol(1, 4))

    def test_a_clustered_table_is_not_partitioned(self) -> None:
        clustered = DELTA.protocol_rules.upgrade(None, ["clustering"])
        check(table(), None, clustered)
        refuse(BY_DAY, "clustered", clustered)

    def test_a_constraint_is_added_by_who_sees_the_rows(self) -> None:
        ruled = table(properties={"delta.constraints.positive": "id > 0"})
        check(ruled, None, Protocol(1, 3))
        check(table(properties={**ruled.configuration, "a": "b"}), ruled, Protocol(1, 3))
        check(table(), ruled, Protocol(1, 3))
        with pytest.raises(UnsupportedFeatureError, match="CHECK constraint is added"):
            check(ruled, table(), Protocol(1, 3))
        check_metadata(TableConfiguration(DELTA, Protocol(1, 3), ruled), table(), replaced=True)

    def test_evolution_is_judged_against_the_metadata_before(self) -> None:
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
            ((mapped("a", 1), mapped("s", 2, struct(column("x")))), "no id"),
            ((mapped("a", 3),), "maxColumnId"),
        ],
    )
    def test_a_mapped_column_has_an_id_and_a_physical_name(
        self, columns: tuple[dict[str, Any], ...], why: str
    ) -> None:
        refuse(table(*columns, properties=BY_NAME), why, MAPPED)

    def test_a_mapped_table_passes_and_nested_names_stand_by_themselves(self) -> None:
        check(table(mapped("a", 1), mapped("b", 2), properties=BY_NAME), None, MAPPED)
        inner = struct(mapped("x", 2, physical="p"))
        nested = table(mapped("s", 1, inner, physical="p"), properties=BY_NAME)
        check(nested, None, MAPPED)

    def test_the_greatest_id_is_kept_and_never_falls(self) -> None:
        without = {"delta.columnMapping.mode": "name"}
        refuse(table(mapped("a", 1), properties=without), "maxColumnId", MAPPED)
        old = table(mapped("a", 1), properties={**BY_NAME, "delta.columnMapping.maxColumnId": "7"})
        with pytest.raises(InvalidMetadataError, match="decreases"):
            check(table(mapped("a", 1), properties=BY_NAME), old, MAPPED)


class TestRowTracking:
    TRACKED = DELTA.protocol_rules.upgrade(None, ["rowTracking"])
    ON: dict[str, str] = {  # noqa: RUF012 - read only
        "delta.enableRowTracking": "true",
        MATERIALIZED[0]: "_row-id",
        MATERIALIZED[1]: "_row-version",
    }

    def test_the_columns_that_keep_ids_have_names_of_their_own(self) -> None:
        check(table(properties=self.ON), None, self.TRACKED)
        refuse(table(properties={"delta.enableRowTracking": "true"}), "no name", self.TRACKED)
        taken = {**self.ON, MATERIALIZED[0]: "ID"}
        refuse(table(properties=taken), "name of another", self.TRACKED)
        same = {**self.ON, MATERIALIZED[0]: "_row-version"}
        refuse(table(properties=same), "name of another", self.TRACKED)

    def test_the_columns_that_keep_ids_keep_their_names(self) -> None:
        new = table(properties={**self.ON, MATERIALIZED[0]: "_other"})
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
    def test_a_required_field_is_there(self, row: dict[str, Any], missing: str) -> None:
        for frame in (rows(add("other"), row), rows(row).drop(missing)):
            with pytest.raises(InvalidTransactionError, match="lacks a required field") as refused:
                check_files(frame, TableConfiguration(DELTA, V12, table()))
            assert refused.value.expected == missing
        with pytest.raises(InvalidTransactionError) as refused:
            files(add("other"), row)
        assert refused.value.found == {"row": 1}

    @pytest.mark.parametrize(
        "name",
        ["size", "modificationTime", "baseRowId", "defaultRowCommitVersion", "footerEndOffset"],
    )
    def test_a_number_is_not_negative(self, name: str) -> None:
        with pytest.raises(
            InvalidTransactionError, match=f"{name} must not be negative"
        ) as refused:
            files(add("a"), add("b", **{name: -1}))
        assert refused.value.found == {"row": 1, name: -1}
        assert refused.value.path == "b"

    def test_a_remove_needs_little(self) -> None:
        files(remove("s3://elsewhere/a.parquet"), remove("/abs"), remove("_x/../y"))

    def test_change_data_files_change_no_data(self) -> None:
        files(cdc())
        with pytest.raises(InvalidTransactionError, match="must have dataChange false"):
            files(cdc(dataChange=True))

    def test_other_actions_are_no_files(self) -> None:
        with pytest.raises(InvalidTransactionError, match="not a file action"):
            files({"actionType": "metaData", "path": "a"})

    def test_nothing_at_all_passes(self) -> None:
        check_files(rows(), TableConfiguration(DELTA, V12, table()))


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        ["a.parquet", "p=1/q=a b/x%2F.parquet", "..a", "a..", "a/.b/c", ".hidden.parquet",
         "_x.parquet", "p=12:00/x", "ü/é", "a/b:c"],
    )  # fmt: skip
    def test_a_path_below_the_table_passes(self, path: str) -> None:
        files(add(path))

    @pytest.mark.parametrize(
        "path",
        ["", "/a", "s3://b/a", "C:a", "file:/a", "../a", "a/../b", "a/..", ".", "./a", "a/./b",
         "a//b", "a/", "a\x00b", "_delta_log/a", "_transaction_log/a", "_x/a", "p=1/_x/a",
         "_change_data/a"],
    )  # fmt: skip
    def test_a_path_that_leaves_the_table_or_hides_is_refused(self, path: str) -> None:
        with pytest.raises(InvalidPathError) as refused:
            files(add("fine"), add(path))
        assert refused.value.path == path
        assert refused.value.found == {"row": 1}

    def test_the_folder_of_the_log_is_named(self) -> None:
        with pytest.raises(InvalidPathError, match="inside the log folder"):
            files(add("_delta_log/0.json"))

    def test_a_folder_of_a_partition_column_is_not_hidden(self) -> None:
        by = table(column("id"), column("_p.q"), by=["_p.q"])
        files(add("_p.q=1/a", partitionValues={"_p.q": "1"}), metadata=by)
        with pytest.raises(InvalidPathError):
            files(add("_pxq=1/a", partitionValues={"_p.q": "1"}), metadata=by)

    def test_a_file_that_stands_elsewhere_is_added_only_anew(self) -> None:
        clone = "s3://elsewhere/_x/a.parquet"
        files(remove(clone), add(clone, **vector()))
        with pytest.raises(InvalidPathError, match="not relative"):
            files(remove("other"), add(clone))


class TestIdentities:
    def test_a_path_stands_once_among_the_actions_of_a_type(self) -> None:
        for row in (add, remove, cdc):
            with pytest.raises(DuplicateFileError, match=r"two \w+ actions") as refused:
                files(row("a/x"), row("a/y"), row("a/y")) if row is not cdc else files(
                    cdc("_change_data/y"), cdc("_change_data/y")
                )
            assert refused.value.path in {"a/y", "_change_data/y"}
        with pytest.raises(DuplicateFileError):
            files(add("a"), add("a", **vector()))

    def test_a_path_may_be_added_removed_and_changed_at_once(self) -> None:
        files(remove("a"), add("a", **vector()), cdc("a"))
        files(remove("a", **vector()), add("a", **vector(offset=None)))

    def test_the_same_file_is_not_added_and_removed(self) -> None:
        with pytest.raises(DuplicateFileError, match="adds and removes the same") as refused:
            files(add("b"), remove("a"), add("a"))
        assert (refused.value.path, refused.value.found) == ("a", {"row": 1})
        with pytest.raises(DuplicateFileError):
            files(remove("a", **vector()), add("a", **vector()))


class TestPartitions:
    @pytest.mark.parametrize(
        "values", [{}, {"Day": "2024-01-01"}, {"day": "2024-01-01", "x": "1"}, {"x": "1"}]
    )
    def test_values_are_given_for_each_partition_column_and_no_other(
        self, values: dict[str, str]
    ) -> None:
        with pytest.raises(PartitionMismatchError, match="do not match") as refused:
            files(add("a", partitionValues=values), metadata=BY_DAY)
        assert refused.value.expected == ["day"]
        assert refused.value.found == {"row": 0, "partitionValues": values}

    def test_a_table_without_partitions_takes_no_values(self) -> None:
        files(add())
        with pytest.raises(PartitionMismatchError):
            files(add(partitionValues={"day": "2024-01-01"}))

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
    def test_a_value_is_of_its_columns_type(
        self, type_: str, good: list[str | None], bad: list[str]
    ) -> None:
        by = table(column("id"), column("p", type_), by=["p"])
        for number, value in enumerate(good):
            files(add(f"f{number}", partitionValues={"p": value}), metadata=by)
        for value in bad:
            with pytest.raises(PartitionMismatchError, match="has the wrong type") as refused:
                files(
                    remove("gone"), add("a", partitionValues={"p": good[0]}),
                    add("b", partitionValues={"p": value}), metadata=by,
                )  # fmt: skip
            assert refused.value.found == {"row": 2, "partitionValues": {"p": value}}

    def test_null_is_refused_where_the_column_may_not_be_null(self) -> None:
        by = table(column("id"), column("p", nullable=False), by=["p"])
        files(add(partitionValues={"p": "1"}), metadata=by)
        for value in (None, ""):
            with pytest.raises(PartitionMismatchError, match="is null"):
                files(add(partitionValues={"p": value}), metadata=by)

    def test_mapped_columns_go_by_their_physical_names(self) -> None:
        by = table(mapped("id", 1), mapped("p", 2), properties=BY_NAME, by=["p"])
        files(add(partitionValues={"col-2": "1"}), metadata=by, protocol=MAPPED)
        with pytest.raises(PartitionMismatchError) as refused:
            files(add(partitionValues={"p": "1"}), metadata=by, protocol=MAPPED)
        assert refused.value.expected == ["col-2"]

    def test_indextables_spell_null_their_own_way(self) -> None:
        null = {"day": "__HIVE_DEFAULT_PARTITION__"}
        files(add(partitionValues=null), metadata=BY_DAY, format_="indextables")
        with pytest.raises(PartitionMismatchError):
            files(add(partitionValues=null), metadata=BY_DAY)

    def test_removes_keep_the_values_that_they_had(self) -> None:
        files(remove(partitionValues={"old": "1"}), metadata=BY_DAY)


USUAL = '{"numRecords":3,"minValues":{"id":1,"s":{"x":{"y":"é"}}},"nullCount":{"id":0}'


class TestStatistics:
    @pytest.mark.parametrize(
        "text",
        [None, "{}", '{"numRecords":0}', USUAL + "}", USUAL + ',"tightBounds":true}',
         ' {"numRecords" : 1} ', '{"numRecords":null}', '{"a":[1]}',
         '{"numRecords":1,"x":"\\u00e9"}'],
    )  # fmt: skip
    def test_a_json_object_passes(self, text: str | None) -> None:
        files(add("a", stats=text), add("b", stats=None))

    @pytest.mark.parametrize(
        "text",
        ["", "null", "[]", "1", "{", '{"numRecords":1', '{"numRecords":01}', '{"numRecords":1,}',
         '{"numRecords":1,"minValues":{"a":NaN}}', '{"numRecords":1}x', USUAL, "{'a':1}",
         '{"numRecords":-1}', '{"numRecords":1.0}', '{"numRecords":"1"}', '{"numRecords":true}',
         '{"numRecords":9223372036854775808}', '{"numRecords":1,"numRecords":-1}',
         '{"numRecords":1,"minValues":{"a":"\n"}}', '{"numRecords":1,"tightBounds":1,}'],
    )  # fmt: skip
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidTransactionError, match=r"statistics|numRecords") as error:
            files(add("a"), add("b", stats=text))
        assert error.value.found == {"row": 1, "stats": text}
        files(remove("b", stats=text))

    @settings(max_examples=share_of(200))
    @given(st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["numRecords", "minValues", "a", 'q"\\', "é"]), inner),
        max_leaves=8,
    ), st.data())  # fmt: skip
    def test_what_passes_at_a_glance_is_what_the_parser_takes(
        self, value: Any, data: st.DataObject
    ) -> None:
        text = json.dumps(
            {"numRecords": 1, "minValues": value, "nullCount": value},
            separators=(",", ":"),
            ensure_ascii=data.draw(st.booleans()),
        )
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(["", ",", "}", '"', "\\", "0"])) + text[at:]
        glance = pl.Series([text]).str.contains(file_rules._USUAL_STATISTICS)[0]
        assert not glance or file_rules.problem_of_statistics(text) is None


class TestVectors:
    @pytest.mark.parametrize(
        "fields",
        [vector(), vector(offset=None), vector("xy" + "v" * 20), vector("/abs/dv.bin", "p"),
         vector("bytes", "i", None)],
    )  # fmt: skip
    def test_a_whole_deletion_vector_passes(self, fields: dict[str, Any]) -> None:
        files(add(**fields))
        files(remove(**fields))

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
    def test_half_a_deletion_vector_is_refused(self, change: dict[str, Any], why: str) -> None:
        for row in (add("b", **{**vector(), **change}), remove("b", **{**vector(), **change})):
            with pytest.raises(InvalidTransactionError, match=why) as refused:
                files(add("a"), row)
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
def test_files_are_judged_as_a_plain_loop_judges_them(given_rows: list[dict[str, Any]]) -> None:
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
