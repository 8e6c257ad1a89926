"""One version of a table: metadata, state, and conversion for other libraries."""

from __future__ import annotations

import datetime as dt
import sys
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from lakelog.errors import CorruptionError, MissingDependencyError
from lakelog.snapshot import Snapshot
from tests.handmade import (
    FIRST_MS,
    Handmade,
    add,
    field,
    info,
    metadata,
    protocol,
    remove,
    schema,
    vector,
)


def struct_of(*names: str) -> dict[str, Any]:
    """A struct type with fields of these names."""
    return {"type": "struct", "fields": [field(name) for name in names]}


def test_protocol_and_metadata_are_those_of_the_last_commit_that_set_them(made: Handmade) -> None:
    made.start()
    more: dict[str, Any] = {"name": "n", "description": "d", "createdTime": 5}
    made.commit(1, protocol(1, 4), metadata(partitioned=["id"], properties={"k": "v"}, **more))
    made.commit(2, add("a"))
    snapshot = made.table.snapshot()
    found = snapshot.protocol
    assert (found.min_reader_version, found.min_writer_version) == (1, 4)
    assert (found.reader_features, found.writer_features) == (None, None)
    meta = snapshot.metadata
    assert (meta.id, meta.name, meta.description, meta.created_time) == ("id-0", "n", "d", 5)
    assert (meta.format_provider, meta.format_options) == ("parquet", {})
    assert (meta.partition_columns, meta.configuration) == (("id",), {"k": "v"})
    assert snapshot.schema.names == ("id", "name")
    assert (snapshot.path, snapshot.format, snapshot.version) == (str(made.root), "delta", 2)


@pytest.mark.parametrize("text", [None, "{", '{"type":"long"}', "[]"])
def test_missing_or_invalid_schema_fails_only_reads_of_the_schema(
    made: Handmade, text: str | None
) -> None:
    made.start(add("a", 5), schemaString=text)
    snapshot = made.table.snapshot()
    with pytest.raises(CorruptionError, match="schema"):
        _ = snapshot.schema
    assert snapshot.metadata.id == "id-0"


@pytest.mark.parametrize(
    "columns",
    [
        (field("a"), field("a", "string")),
        (field("s", {"type": "struct", "fields": [field("x"), field("x")]}),),
        (field("l", {"type": "array", "elementType": struct_of("x", "x")}),),
        (field("m", {"type": "map", "keyType": "string", "valueType": struct_of("x", "x")}),),
    ],
    ids=["top", "struct", "array", "map"],
)
def test_duplicate_column_name_fails_only_reads_of_the_schema(
    made: Handmade, columns: tuple[dict[str, Any], ...]
) -> None:
    made.start(add("a", 5, stats='{"numRecords":1}'), schemaString=schema(*columns))
    snapshot = made.table.snapshot()
    assert snapshot.num_files() == snapshot.files().collect().height == 1
    for read in (lambda: snapshot.schema, lambda: snapshot.files(stats=True).collect()):
        with pytest.raises(CorruptionError, match="two columns"):
            read()


def test_different_structs_may_have_equal_field_names(made: Handmade) -> None:
    made.start(schemaString=schema(field("a", struct_of("x")), field("b", struct_of("x", "X"))))
    assert made.table.snapshot().schema.names == ("a", "b")


DAY = dt.timedelta(days=1)


def test_tombstones_are_those_newer_than_the_retention(made: Handmade) -> None:
    made.start(add("a"), add("b"), add("c"), add("back"))
    ages = {"a": 1, "b": 3}
    removes = [
        remove(p, deletionTimestamp=FIRST_MS - days * 86_400_000) for p, days in ages.items()
    ]
    made.commit(1, *removes, remove("c"), remove("back"))
    made.commit(2, add("back"))
    snapshot = Snapshot.open(made.context(FIRST_MS))

    def kept(retention: dt.timedelta | None) -> list[str]:
        return sorted(snapshot.tombstones(retention).collect()["path"])

    assert kept(None) == ["a", "b", "c"]
    assert kept(2 * DAY) == ["a"]
    assert kept(DAY) == []
    assert kept(DAY + dt.timedelta(milliseconds=1)) == ["a"]
    assert kept(dt.timedelta(days=100_000)) == ["a", "b", "c"]


def test_tombstones_have_their_columns_and_no_data_change(made: Handmade) -> None:
    made.start(add("a", **vector("v")))
    made.commit(1, remove("a", size=7, extendedFileMetadata=True, **vector("v")))
    (row,) = made.table.snapshot().tombstones().collect().rows(named=True)
    assert (row["path"], row["dvId"], row["size"], row["version"]) == ("a", "uv@1", 7, 1)
    assert (row["dataChange"], row["extendedFileMetadata"]) == (False, True)


def test_transactions_expire_after_the_configured_retention(made: Handmade) -> None:
    txns = [
        {"txn": {"appId": "old", "version": 1, "lastUpdated": FIRST_MS - 86_400_000}},
        {"txn": {"appId": "new", "version": 2, "lastUpdated": FIRST_MS - 86_399_999}},
        {"txn": {"appId": "timeless", "version": 3}},
    ]
    made.start(*txns)
    frame = Snapshot.open(made.context(FIRST_MS)).transactions().collect()
    assert frame.columns == ["appId", "txnVersion", "lastUpdated", "version", "expired"]
    assert frame["expired"].to_list() == [False] * 3
    retention = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    made.commit(1, metadata(properties=retention))
    frame = Snapshot.open(made.context(FIRST_MS)).transactions().collect()
    expired = dict(frame.select("appId", "expired").rows())
    assert expired == {"old": True, "new": False, "timeless": True}


def test_invalid_transaction_retention_does_not_fail_the_read(made: Handmade) -> None:
    made.start({"txn": {"appId": "a", "version": 3}})
    made.commit(1, metadata(properties={"delta.setTransactionRetentionDuration": "a while"}))
    frame = made.table.snapshot().transactions().collect()
    assert frame.select("appId", "txnVersion", "expired").rows() == [("a", 3, False)]


def test_delta_table_has_no_skips(made: Handmade) -> None:
    frame = made.start().table.snapshot().skips().collect()
    assert frame.height == 0
    assert {"path", "skipCount", "retryAfter", "inCooldown"} <= set(frame.columns)


# --- as a dataframe ------------------------------------------------------------------------------


@pytest.fixture
def filled(made: Handmade) -> Snapshot:
    made.start(add("a", 1, tags={"k": None}, baseRowId=2**60), add("b", 2))
    return made.table.snapshot()


def test_polars_and_arrow_contain_the_files(filled: Snapshot) -> None:
    frame = filled.state.to_polars()
    assert frame.equals(filled.files().collect())
    table = filled.state.to_arrow()
    assert isinstance(table, pa.Table)
    assert pa.types.is_map(table.schema.field("tags").type)
    assert pl.DataFrame(table).select("path", "size").equals(frame.select("path", "size"))


def test_pandas_keeps_integers_as_integers_and_maps_as_dicts(filled: Snapshot) -> None:
    frame = filled.state.to_pandas()
    assert frame["size"].tolist() == [1, 2]
    assert frame["baseRowId"].iloc[0] == 2**60
    assert str(frame.dtypes["baseRowId"]) == "Int64"
    assert frame["tags"].iloc[0] == {"k": None}


def test_error_without_pandas_names_the_install_command(
    filled: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError) as refused:
        filled.state.to_pandas()
    assert "lakelog[pandas]" in str(refused.value.hint)


def test_duckdb_and_pyarrow_read_the_state_directly(filled: Snapshot) -> None:
    assert pa.table(filled.state).num_rows == 2
    reader = pa.RecordBatchReader.from_stream(filled.state)
    assert reader.read_all()["path"].to_pylist() == ["a", "b"]
    with duckdb.connect() as connection:
        connection.register("files", pa.RecordBatchReader.from_stream(filled.state))
        assert connection.execute("select sum(size) from files").fetchall() == [(3,)]


# --- display -------------------------------------------------------------------------------------


def test_snapshot_repr_shows_protocol_metadata_and_time(made: Handmade) -> None:
    made.commit(
        0,
        protocol(3, 7, readerFeatures=["deletionVectors"], writerFeatures=["deletionVectors"]),
        metadata(partitioned=["id"], name="<orders>"),
    )
    snapshot = made.table.snapshot()
    text = repr(snapshot)
    for fact in (
        "delta",
        "id-0",
        "id, name",
        "reader 3, writer 7",
        "deletionVectors",
        "2023-11-14",
    ):
        assert fact in text
    html = snapshot._repr_html_()
    assert "deletionVectors" in html
    assert "<script" not in html


def test_time_that_no_datetime_can_represent_is_shown_as_unknown(made: Handmade) -> None:
    features = ["inCommitTimestamp"]
    enabled = {"delta.enableInCommitTimestamps": "true"}
    made.commit(
        0,
        info("CREATE TABLE", inCommitTimestamp=400_000_000_000_000),
        protocol(3, 7, readerFeatures=[], writerFeatures=features),
        metadata(configuration=enabled),
    )
    snapshot = made.table.snapshot()
    assert snapshot.timestamp_ms == 400_000_000_000_000
    assert snapshot.facts()["timestamp"] is None
    assert "unknown" in repr(snapshot)
    assert "unknown" in snapshot._repr_html_()
    pytest.importorskip("altair")
    page = made.root.parent / "page.html"
    made.table.report(page)
    assert "unknown" in page.read_text("utf-8")


def test_snapshot_repr_shows_why_the_schema_cannot_be_read(made: Handmade) -> None:
    made.start(schemaString="{")
    snapshot = made.table.snapshot()
    assert "schema cannot be parsed" in repr(snapshot)
    assert "schema cannot be parsed" in snapshot._repr_html_()
