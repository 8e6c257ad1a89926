"""A version checksum next to what replay finds; it can only ever show, never decide.

Source: Delta protocol, Version Checksum File, State Validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from lakelog.log.histograms import SizeCounts, count_deleted

if TYPE_CHECKING:
    from lakelog.log.snapshot import Snapshot

CHECKSUM_SCHEMA = {
    "field": pl.String(),
    "recorded": pl.String(),
    "found": pl.String(),
    "agrees": pl.Boolean(),
}


def compare_checksum(snapshot: Snapshot, recorded: Mapping[str, Any]) -> pl.DataFrame:
    """Compare a version checksum with the replayed state."""
    found = _found(snapshot, recorded)
    rows = [
        (name, _text(value), _text(found[name]), value == found[name])
        for name, value in recorded_fields(recorded).items()
        if value is not None and name in found
    ]
    return pl.DataFrame(rows, schema=CHECKSUM_SCHEMA, orient="row")


def recorded_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a checksum's body says, by the names of `compare_checksum`; None where it says nothing,
    or nothing that can be compared.
    """
    plain = (
        "numFiles",
        "tableSizeBytes",
        "numMetadata",
        "numProtocol",
        "inCommitTimestampOpt",
        "numDeletedRecordsOpt",
        "numDeletionVectorsOpt",
    )
    recorded = {name: body.get(name) for name in plain}
    for name in ("id", "schemaString", "partitionColumns", "configuration"):
        recorded[f"metadata.{name}"] = _member(body.get("metadata"), name)
    for name in ("minReaderVersion", "minWriterVersion"):
        recorded[f"protocol.{name}"] = _member(body.get("protocol"), name)
    for name in ("readerFeatures", "writerFeatures"):
        recorded[f"protocol.{name}"] = _sorted(_member(body.get("protocol"), name))
    recorded["setTransactions"] = _pairs(body.get("setTransactions"), "appId", "version")
    recorded["domainMetadata"] = _pairs(body.get("domainMetadata"), "domain", "configuration")
    # Spark has written the histogram of sizes under another name than the protocol's.
    sizes = body.get("fileSizeHistogram") or body.get("histogramOpt")
    recorded["fileSizeHistogram"] = sizes if _bounds(sizes) else None
    recorded["deletedRecordCountsHistogramOpt"] = _member(
        body.get("deletedRecordCountsHistogramOpt"), "deletedRecordCounts"
    )
    recorded["allFiles"] = len(body["allFiles"]) if isinstance(body.get("allFiles"), list) else None
    return recorded


def _found(snapshot: Snapshot, recorded: Mapping[str, Any]) -> dict[str, Any]:
    vectors = snapshot.table_configuration.dialect.has_deletion_vectors
    files = snapshot.files().select("size", *(("dvCardinality",) if vectors else ())).collect()
    deleted = (
        files["dvCardinality"] if vectors else pl.Series([None] * files.height, dtype=pl.Int64)
    )
    bounds = _bounds(recorded.get("fileSizeHistogram") or recorded.get("histogramOpt"))
    protocol, metadata = snapshot.protocol, snapshot.metadata
    return {
        "numFiles": snapshot.num_files(),
        "tableSizeBytes": snapshot.total_size(),
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": snapshot.timestamp_ms,
        "numDeletedRecordsOpt": deleted.sum(),
        "numDeletionVectorsOpt": deleted.count(),
        "metadata.id": metadata.id,
        "metadata.schemaString": metadata.schema_string,
        "metadata.partitionColumns": list(metadata.partition_columns),
        "metadata.configuration": dict(metadata.configuration),
        "protocol.minReaderVersion": protocol.min_reader_version,
        "protocol.minWriterVersion": protocol.min_writer_version,
        "protocol.readerFeatures": _sorted(protocol.reader_features),
        "protocol.writerFeatures": _sorted(protocol.writer_features),
        "setTransactions": dict(
            snapshot.transactions().select("appId", "txnVersion").collect().iter_rows()
        ),
        "domainMetadata": dict(
            snapshot.domains().select("domain", "domainConfiguration").collect().iter_rows()
        ),
        "fileSizeHistogram": _size_histogram(files["size"], bounds),
        "deletedRecordCountsHistogramOpt": count_deleted([deleted]),
        "allFiles": snapshot.num_files(),
    }


def _size_histogram(sizes: pl.Series, bounds: list[int] | None) -> dict[str, Any] | None:
    if bounds is None:
        return None
    counts = SizeCounts(bounds)
    counts.add(sizes)
    return counts.histogram()


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _pairs(value: Any, key: str, member: str) -> dict[str, Any] | None:
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        return None
    return {str(v.get(key)): v.get(member) for v in value}


def _sorted(names: Any) -> list[str] | None:
    """Features, whose order says nothing."""
    return sorted(map(str, names)) if isinstance(names, list | tuple) else None


def _bounds(histogram: Any) -> list[int] | None:
    """Where the bins of a recorded histogram begin, if they can be counted."""
    bounds = _member(histogram, "sortedBinBoundaries")
    if not isinstance(bounds, list) or not all(type(b) is int for b in bounds):
        return None
    sound = bounds[:1] == [0] and all(a < b < 1 << 63 for a, b in pairwise(bounds))
    return bounds if sound else None


def _text(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
