"""Write support: which tables lakelog writes, and which actions each feature allows."""

from __future__ import annotations

from typing import Any

import pytest

from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.features import Stance
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.dialects.registry import named
from lakelog.errors import CorruptionError, InvalidTransactionError, UnsupportedFeatureError
from lakelog.model.metadata import Metadata, Protocol
from lakelog.transaction.write_support import check_actions, check_writable
from tests.transaction.builders import V12, add, cdc, column, remove, rows, table, vector

RULES = DELTA.protocol_rules
INDEXTABLES_RULES = INDEXTABLES.protocol_rules

COUNTED = {"stats": '{"numRecords":3}'}


def gate(
    *files: dict[str, Any],
    protocol: Protocol = V12,
    metadata: Metadata | None = None,
    meta: tuple[dict[str, Any], ...] = (),
    format_: str = "delta",
) -> None:
    check_actions(
        TableConfiguration(named(format_), protocol, metadata or table()),
        rows(*files),
        rows(*meta),
        "t",
    )


def writable(protocol: Protocol, metadata: Metadata | None = None, format_: str = "delta") -> None:
    check_writable(TableConfiguration(named(format_), protocol, metadata or table()), "t")


def featured(*names: str) -> Protocol:
    return RULES.upgrade(None, names)


@pytest.mark.parametrize("version", range(1, 7))
def test_tables_with_legacy_versions_are_writable(version: int) -> None:
    writable(Protocol(1, version))


@pytest.mark.parametrize(
    "name", sorted(f.name for f in RULES.features.values() if f.stance is not Stance.REFUSED)
)
def test_table_with_a_supported_feature_is_writable(name: str) -> None:
    writable(featured(name))


@pytest.mark.parametrize(
    "name",
    [
        *sorted(f.name for f in RULES.features.values() if f.stance is Stance.REFUSED),
        "fromTheFuture",
    ],
)
def test_unsupported_feature_raises_and_is_named(name: str) -> None:
    readers = (name,) if name in RULES.features and RULES.features[name].reader else ()
    with pytest.raises(UnsupportedFeatureError) as refused:
        writable(Protocol(3, 7, readers, (name,)))
    assert (refused.value.found, refused.value.path) == (name, "t")
    assert repr(name) in refused.value.message


@pytest.mark.parametrize("version", [0, 8, 99])
def test_writer_version_out_of_range_raises(version: int) -> None:
    with pytest.raises(UnsupportedFeatureError, match="newer writer"):
        writable(Protocol(1, version))


@pytest.mark.parametrize(
    "protocol",
    [Protocol(1, None), Protocol(1, 7), Protocol(3, 7, (), None), Protocol(3, 6, (), None)],
)
def test_incomplete_protocol_raises_corruption_error(protocol: Protocol) -> None:
    with pytest.raises(CorruptionError):
        writable(protocol)


@pytest.mark.parametrize("number", ["1", "2"])
def test_iceberg_compatibility_prevents_writes_only_while_enabled(number: str) -> None:
    protocol = featured(f"icebergCompatV{number}")
    writable(protocol)
    on = table(properties={f"delta.enableIcebergCompatV{number}": "true"})
    with pytest.raises(UnsupportedFeatureError, match="Iceberg requirements"):
        writable(protocol, on)


@pytest.mark.parametrize("protocol", [Protocol(1, 1), Protocol(2, 2), Protocol(3, 3)])
def test_indextables_are_writable_up_to_version_3(protocol: Protocol) -> None:
    writable(protocol, format_="indextables")
    columnar = INDEXTABLES_RULES.upgrade(protocol, ["columnarCommits"])
    writable(columnar, format_="indextables")


def test_indextables_with_state_directories_raise() -> None:
    with pytest.raises(UnsupportedFeatureError, match="state directories") as refused:
        writable(Protocol(4, 4), format_="indextables")
    assert refused.value.found == "avroState"


def test_unknown_indextables_feature_raises_and_is_named() -> None:
    names = ("fromTheFuture",)
    for protocol in (Protocol(3, 3, names, names), Protocol(3, 3, None, names)):
        with pytest.raises(UnsupportedFeatureError) as refused:
            writable(protocol, format_="indextables")
        assert refused.value.found == "fromTheFuture"


APPEND_ONLY = table(properties={"delta.appendOnly": "true"})


def test_append_only_table_accepts_adds_and_rearrangements() -> None:
    gate(add(), metadata=APPEND_ONLY)
    gate(add("b", dataChange=False), remove("a", dataChange=False), metadata=APPEND_ONLY)


@pytest.mark.parametrize(
    "files",
    [
        (remove("a"),),
        (add("b"), remove("a")),
        (remove("a", dataChange=None),),
        (remove("a", dataChange=False),),
        (add("b"), remove("a", dataChange=False)),
        (add("c", dataChange=False), remove("b", dataChange=False), remove("a")),
    ],
)
def test_remove_of_data_from_an_append_only_table_raises(files: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(InvalidTransactionError, match="append-only") as refused:
        gate(*files, metadata=APPEND_ONLY)
    assert refused.value.path == "t"


def test_append_only_is_ignored_if_the_protocol_lacks_it() -> None:
    gate(remove(), metadata=APPEND_ONLY, protocol=Protocol(1, 1))
    gate(remove(), metadata=APPEND_ONLY, protocol=Protocol(1, 7, None, ()))


RULED = {
    "invariants": table(column("id", meta={"delta.invariants": "{}"})),
    "checkConstraints": table(properties={"delta.constraints.positive": "id > 0"}),
    "generatedColumns": table(column("id", meta={"delta.generationExpression": "1"})),
    "identityColumns": table(column("id", meta={"delta.identity.start": 1})),
}


@pytest.mark.parametrize("name", RULED)
def test_add_with_unchecked_rows_raises(name: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="cannot check the rows") as refused:
        gate(add(), metadata=RULED[name], protocol=featured(name))
    assert refused.value.found == name


@pytest.mark.parametrize("name", RULED)
def test_removes_rearrangements_and_metadata_pass_a_rule_on_rows(name: str) -> None:
    protocol = featured(name)
    gate(remove(), metadata=RULED[name], protocol=protocol)
    gate(add(dataChange=False), remove("b"), metadata=RULED[name], protocol=protocol)
    gate(meta=({"actionType": "metaData"},), metadata=RULED[name], protocol=protocol)


def test_add_to_a_table_with_materialized_partition_columns_raises() -> None:
    protocol = featured("materializePartitionColumns")
    gate(add(), protocol=protocol)
    by_name = table(by=["name"])
    gate(remove(), protocol=protocol, metadata=by_name)
    with pytest.raises(UnsupportedFeatureError, match="must be stored in its files"):
        gate(add(dataChange=False), protocol=protocol, metadata=by_name)


CHANGES = table(properties={"delta.enableChangeDataFeed": "true"})
EXTENDED = {"partitionValues": {}, "size": 1, "extendedFileMetadata": True}


@pytest.mark.parametrize(
    "files",
    [
        (add("a"), add("b")),
        (remove("a", **EXTENDED), remove("b", **EXTENDED)),
        (add("b"), remove("a"), cdc()),
        (add("b", dataChange=False), remove("a", dataChange=False)),
    ],
)
def test_change_data_feed_accepts_changes_that_it_can_report(
    files: tuple[dict[str, Any], ...],
) -> None:
    gate(*files, metadata=CHANGES, protocol=Protocol(1, 4))


def test_change_data_feed_rejects_changed_rows_without_cdc_files() -> None:
    with pytest.raises(UnsupportedFeatureError, match="change data feed") as refused:
        gate(add("b"), remove("a"), metadata=CHANGES, protocol=Protocol(1, 4))
    assert refused.value.found == "changeDataFeed"
    gate(add("b"), remove("a"), metadata=table(), protocol=Protocol(1, 4))


def test_change_data_feed_rejects_removes_without_extended_metadata() -> None:
    for fields in (
        {},
        {"partitionValues": {}, "size": 1},
        EXTENDED | {"extendedFileMetadata": False},
    ):
        files = (remove("a", **EXTENDED), remove("b", **fields))
        with pytest.raises(InvalidTransactionError, match="change data feed") as refused:
            gate(*files, metadata=CHANGES, protocol=Protocol(1, 4))
        assert refused.value.found == {"row": 1, "path": "b"}
        gate(*files, metadata=table(), protocol=Protocol(1, 4))


def test_change_data_files_need_the_feature() -> None:
    gate(cdc(), protocol=Protocol(1, 4))
    with pytest.raises(InvalidTransactionError, match="change data files"):
        gate(cdc(), protocol=V12)


VECTORS = table(properties={"delta.enableDeletionVectors": "true"})


def test_deletion_vector_is_accepted_if_enabled() -> None:
    gate(add(**vector(), **COUNTED), remove(), metadata=VECTORS,
         protocol=featured("deletionVectors"))  # fmt: skip


@pytest.mark.parametrize("row", [add(**vector(), **COUNTED), remove(**vector())])
def test_deletion_vector_needs_the_feature(row: dict[str, Any]) -> None:
    with pytest.raises(InvalidTransactionError, match="deletion vectors"):
        gate(row, metadata=VECTORS)


def test_new_deletion_vector_needs_the_property_and_an_old_one_does_not() -> None:
    protocol = featured("deletionVectors")
    gate(add(**vector(), **COUNTED, dataChange=False), protocol=protocol)
    gate(remove(**vector()), protocol=protocol)
    with pytest.raises(InvalidTransactionError, match="new deletion vectors"):
        gate(add(**vector(), **COUNTED), protocol=protocol)


@pytest.mark.parametrize("stats", [None, "{}", '{"numRecords":-1}', '{"numRecords":"3"}', "x"])
def test_deletion_vector_without_num_records_raises(stats: str | None) -> None:
    with pytest.raises(InvalidTransactionError, match="numRecords") as refused:
        gate(add("z", **COUNTED), add("a", **vector(), stats=stats), metadata=VECTORS,
             protocol=featured("deletionVectors"))  # fmt: skip
    assert refused.value.found == {"row": 1, "path": "a"}


def test_row_tracking_requires_num_records_or_row_ids() -> None:
    protocol = featured("rowTracking")
    gate(add(**COUNTED), protocol=protocol)
    gate(add(baseRowId=0, defaultRowCommitVersion=0), protocol=protocol)
    gate(remove(), protocol=protocol)
    for row in (add(), add(baseRowId=0), add(dataChange=False)):
        with pytest.raises(InvalidTransactionError, match="row tracking is on"):
            gate(row, protocol=protocol)


def test_suspended_row_tracking_requires_nothing() -> None:
    gate(add(), protocol=featured("rowTracking"),
         metadata=table(properties={"delta.rowTrackingSuspended": "true"}))  # fmt: skip


def test_files_without_row_ids_are_refused_while_row_tracking_is_on_and_suspended() -> None:
    both = {"delta.enableRowTracking": "true", "delta.rowTrackingSuspended": "true"}
    protocol, metadata = featured("rowTracking"), table(properties=both)
    gate(remove(), protocol=protocol, metadata=metadata)
    tracked = add(baseRowId=0, defaultRowCommitVersion=0)
    gate(tracked, protocol=protocol, metadata=metadata)
    with pytest.raises(InvalidTransactionError, match="both on and suspended") as error:
        gate(add(**COUNTED), protocol=protocol, metadata=metadata)
    assert error.value.hint == "set delta.rowTrackingSuspended to false"


def test_clustered_table_requires_statistics() -> None:
    gate(add(**COUNTED, clusteringProvider="liquid"), protocol=featured("clustering"))
    gate(add(dataChange=False), protocol=featured("clustering"))
    with pytest.raises(InvalidTransactionError, match="no statistics"):
        gate(add(), protocol=featured("clustering"))


def domain(name: str) -> dict[str, Any]:
    return {"actionType": "domainMetadata", "domain": name, "domainConfiguration": "{}"}


def test_user_domain_requires_the_domain_metadata_feature() -> None:
    gate(meta=(domain("com.example.jobs"),), protocol=featured("domainMetadata"))
    with pytest.raises(InvalidTransactionError, match="metadata domains"):
        gate(meta=(domain("com.example.jobs"),))


def test_system_domain_raises() -> None:
    with pytest.raises(InvalidTransactionError, match="reserved for the system") as refused:
        gate(meta=(domain("a"), domain("delta.clustering")), protocol=featured("domainMetadata"))
    assert refused.value.found == "delta.clustering"


@pytest.mark.parametrize(
    ("row", "other"),
    [
        ({"actionType": "metaData"}, {"actionType": "metaData"}),
        ({"actionType": "protocol"}, {"actionType": "protocol"}),
        ({"actionType": "txn", "appId": "a"}, {"actionType": "txn", "appId": "a"}),
        (domain("a"), domain("a")),
    ],
)
def test_two_actions_with_the_same_reconciliation_key_raise(
    row: dict[str, Any], other: dict[str, Any]
) -> None:
    with pytest.raises(InvalidTransactionError, match="exclude each other"):
        gate(meta=(row, other), protocol=featured("domainMetadata"))


def test_txn_actions_of_different_applications_are_valid_in_one_commit() -> None:
    txns = ({"actionType": "txn", "appId": "a"}, {"actionType": "txn", "appId": "b"})
    gate(meta=txns)


def test_action_that_the_format_lacks_raises() -> None:
    skip = {"actionType": "mergeskip", "path": "a"}
    gate(meta=(skip,), format_="indextables")
    with pytest.raises(InvalidTransactionError, match="mergeskip"):
        gate(meta=(skip,))
    with pytest.raises(InvalidTransactionError, match="cdc"):
        gate(cdc(), format_="indextables")
    with pytest.raises(InvalidTransactionError, match="commitInfo"):
        gate(meta=({"actionType": "commitInfo"},))


def test_field_that_the_format_lacks_raises() -> None:
    gate(add(footerStartOffset=5), format_="indextables")
    with pytest.raises(InvalidTransactionError, match="footerStartOffset"):
        gate(add(footerStartOffset=5))
    with pytest.raises(InvalidTransactionError, match="has no field for 'dv"):
        gate(add(**vector()), format_="indextables")
    gate(add(footerStartOffset=None), remove("b", baseRowId=3))


def test_empty_commit_is_valid() -> None:
    gate()
