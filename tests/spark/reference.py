"""A table's state from Delta Lake on Spark and from lakelog, in one form for comparison."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import polars as pl

import lakelog

State = dict[str, Any]

_FILE = (
    "size modificationTime tags baseRowId defaultRowCommitVersion clusteringProvider stats".split()
)
_DV = {
    "storageType": "dvStorageType",
    "pathOrInlineDv": "dvPathOrInline",
    "offset": "dvOffset",
    "sizeInBytes": "dvSizeInBytes",
    "cardinality": "dvCardinality",
}


def delta_log(spark: Any, path: str) -> Any:
    """Delta's own `DeltaLog` of a table, up to date."""
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    none = spark._jvm.scala.Option.empty()
    log.update(False, none, none)
    return log


def reference_state(spark: Any, path: str, version: int | None = None) -> State:
    """The state that Delta replays from the log."""
    from pyspark.sql import DataFrame

    log = delta_log(spark, path)
    none = spark._jvm.scala.Option.empty()
    snapshot = (
        log.unsafeVolatileSnapshot()
        if version is None
        else log.getSnapshotAt(version, none, none, False)
    )
    kinds = ("protocol", "metaData", "txn", "domainMetadata", "add", "remove")
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for row in DataFrame(snapshot.stateDF(), spark).select(*kinds).collect():
        for kind, body in row.asDict(recursive=True).items():
            if body is not None:
                found[kind].append(body)
    (protocol,), (metadata,) = found["protocol"], found["metaData"]
    return {
        "version": snapshot.version(),
        "timestamp": snapshot.timestamp(),
        "protocol": _protocol(*protocol.values()),
        "metadata": metadata | {"schemaString": json.loads(metadata["schemaString"])},
        "txns": {t["appId"]: (t["version"], t["lastUpdated"]) for t in found["txn"]},
        "domains": {
            d["domain"]: d["configuration"] for d in found["domainMetadata"] if not d["removed"]
        },
        "files": {_key(body): _reference_file(body) for body in found["add"]},
        "tombstones": {_key(body): body["deletionTimestamp"] for body in found["remove"]},
    }


def our_state(path: str, version: int | None = None) -> State:
    """The state that lakelog replays from the log."""
    snapshot = lakelog.open(path).snapshot(version)
    protocol, metadata = snapshot.protocol, snapshot.metadata
    return {
        "version": snapshot.version,
        "timestamp": snapshot.timestamp_ms,
        "protocol": _protocol(
            protocol.min_reader_version,
            protocol.min_writer_version,
            protocol.reader_features,
            protocol.writer_features,
        ),
        "metadata": {
            "id": metadata.id,
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": metadata.format_provider, "options": metadata.format_options},
            "schemaString": json.loads(metadata.schema_string or ""),
            "partitionColumns": list(metadata.partition_columns),
            "configuration": dict(metadata.configuration),
            "createdTime": metadata.created_time,
        },
        "txns": {
            t["appId"]: (t["txnVersion"], t["lastUpdated"]) for t in _rows(snapshot.transactions())
        },
        "domains": {d["domain"]: d["domainConfiguration"] for d in _rows(snapshot.domains())},
        "files": {(f["path"], f["dvId"]): _our_file(f) for f in _rows(snapshot.files())},
        "tombstones": {
            (f["path"], f["dvId"]): f["deletionTimestamp"] for f in _rows(snapshot.tombstones())
        },
    }


def assert_same_state(spark: Any, path: str, version: int | None = None) -> State:
    """Assert that both engines see the same state; returns it."""
    ours, theirs = our_state(path, version), reference_state(spark, path, version)
    # A snapshot of Delta has the time of the file; its history, and lakelog, add a millisecond to a
    # commit that is not later than the one before.
    assert 0 <= ours["timestamp"] - theirs.pop("timestamp") <= theirs["version"]
    for part, of_theirs in theirs.items():
        assert ours[part] == of_theirs, f"{part} of version {theirs['version']}"
    return ours


def _rows(frame: pl.LazyFrame) -> list[dict[str, Any]]:
    return frame.collect().to_dicts()


def _protocol(reader: Any, writer: Any, readers: Any, writers: Any) -> tuple[Any, ...]:
    return reader, writer, *(None if f is None else sorted(f) for f in (readers, writers))


def _key(body: dict[str, Any]) -> tuple[str, str | None]:
    """The decoded path and, if there is a deletion vector, its identifier."""
    vector = body["deletionVector"]
    if vector is None:
        return unquote(body["path"]), None
    offset = "" if vector["offset"] is None else f"@{vector['offset']}"
    return unquote(body["path"]), vector["storageType"] + vector["pathOrInlineDv"] + offset


def _reference_file(body: dict[str, Any]) -> dict[str, Any]:
    vector = body["deletionVector"] or {}
    return {
        "partitionValues": body["partitionValues"],
        **{name: _plain(name, body[name]) for name in _FILE},
        **{ours: vector.get(theirs) for theirs, ours in _DV.items()},
    }


def _our_file(row: dict[str, Any]) -> dict[str, Any]:
    values = row["partitionValues"]
    return {
        "partitionValues": values,
        **{name: _plain(name, row[name]) for name in _FILE},
        **{name: row[name] for name in _DV.values()},
    }


def _plain(name: str, value: Any) -> Any:
    """A value for comparison: statistics parsed, absent tags equal to empty ones."""
    if name == "stats":
        return None if value is None else json.loads(value)
    return (value or None) if name == "tags" else value
