"""Compares a version checksum with the replayed state, which never depends on it.

Source: Delta protocol, File Size Histogram Schema; Deleted Record Counts Histogram Schema. Delta
protocol, Version Checksum File, State Validation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from lakelog.errors import InvalidInputError
from lakelog.log.snapshot import LogSnapshot
from lakelog.model.metadata import canonical_json

_LOW = (1 << 32) - 1
_EXACT_ROWS = 1 << 21
_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30

_SIZE_BOUNDS: tuple[int, ...] = (
    0,
    *(_KB << n for n in range(3, 13)),
    *range(8 * _MB, 41 * _MB, 4 * _MB),
    *range(48 * _MB, 121 * _MB, 8 * _MB),
    *range(124 * _MB, 145 * _MB, 4 * _MB),
    *range(160 * _MB, 577 * _MB, 16 * _MB),
    *range(640 * _MB, 1409 * _MB, 64 * _MB),
    *range(1536 * _MB, 2049 * _MB, 128 * _MB),
    *range(2304 * _MB, 4097 * _MB, 256 * _MB),
    *(_GB << n for n in range(3, 9)),
)
"""Lower bounds of Spark's bins, in bytes: Spark compares histograms only over the same bins."""

_DELETED_BOUNDS: tuple[int, ...] = (0, *(10**n for n in range(8)), (1 << 31) - 1)
"""Lower bounds of the ten bins of deleted rows; fixed by the protocol."""


class SizeCounts:
    """Counts files for a file size histogram."""

    def __init__(self, bounds: Sequence[int] = _SIZE_BOUNDS) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * len(bounds)
        self._totals = [0] * len(bounds)
        self._is_sound = True

    def add(self, sizes: pl.Series) -> None:
        """Count live files, by their sizes in bytes."""
        if not sizes.len():
            return
        least = sizes.min()
        if sizes.null_count() or (isinstance(least, int) and least < self._bounds[0]):
            self._is_sound = False
            return
        every = sizes.to_numpy()
        for start in range(0, len(every), _EXACT_ROWS):
            values = every[start : start + _EXACT_ROWS]
            bins = np.searchsorted(self._bounds, values, side="right") - 1
            counts = np.bincount(bins, minlength=len(self._bounds))
            # The sums are floating-point numbers; sums of 32 bits at a time are exact.
            low = np.bincount(bins, values & _LOW, len(self._bounds))
            high = np.bincount(bins, values >> 32, len(self._bounds))
            for number in np.flatnonzero(counts).tolist():
                self._counts[number] += int(counts[number])
                self._totals[number] += int(low[number]) + (int(high[number]) << 32)

    def histogram(self) -> dict[str, Any] | None:
        """The checksum's fields; None if a file fits no bin or a sum exceeds 64 bits."""
        if not self._is_sound or max(self._totals) >= 1 << 63:
            return None
        return {
            "sortedBinBoundaries": self._bounds,
            "fileCounts": self._counts,
            "totalBytes": self._totals,
        }


def count_deleted(cardinalities: Iterable[pl.Series]) -> list[int]:
    """Number of files by number of deleted rows, in the bins `_DELETED_BOUNDS`."""
    counts = [0] * len(_DELETED_BOUNDS)
    starts = pl.Series(_DELETED_BOUNDS, dtype=pl.Int64)
    for batch in cardinalities:
        if batch.null_count() == batch.len():
            counts[0] += batch.len()
            continue
        values = batch.cast(pl.Int64).fill_null(0).clip(0)
        bins = starts.search_sorted(values, side="right").cast(pl.Int64) - 1
        for number, count in bins.value_counts().iter_rows():
            counts[number] += count
    return counts


_SCHEMA = "metadata.schemaString"

_CHECKSUM_SCHEMA = {
    "field": pl.String(),
    "recorded": pl.String(),
    "found": pl.String(),
    "agrees": pl.Boolean(),
}


def compare_checksum_file(snapshot: LogSnapshot) -> pl.DataFrame | None:
    """Compare the version's checksum file with the replayed state, if it has a readable one."""
    recorded = snapshot.read_state(lambda s: s.log.dialect.version_checksum(s.log.store, s.version))
    return None if recorded is None else compare_checksum(snapshot, recorded)


def compare_checksum(snapshot: LogSnapshot, recorded: Mapping[str, Any]) -> pl.DataFrame:
    """Compare the content of a version checksum with the replayed state."""
    found = _found(snapshot, recorded)
    rows = [
        (name, _text(value), _text(found[name]), value == found[name])
        for name, value in recorded_fields(recorded).items()
        if value is not None and name in found
    ]
    return pl.DataFrame(rows, schema=_CHECKSUM_SCHEMA, orient="row")


def contradicts_itself(body: Mapping[str, Any]) -> bool:
    """Whether the histogram of a checksum has other totals than the checksum."""
    totals = _totals(_histogram_of(body))
    return totals is not None and totals != (body.get("numFiles"), body.get("tableSizeBytes"))


def recorded_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """The comparable fields of a checksum, by the names of `compare_checksum`, or None."""
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
    # Another writer may space the JSON of a schema in another way.
    recorded[_SCHEMA] = canonical_json(recorded[_SCHEMA])
    for name in ("minReaderVersion", "minWriterVersion"):
        recorded[f"protocol.{name}"] = _member(body.get("protocol"), name)
    for name in ("readerFeatures", "writerFeatures"):
        recorded[f"protocol.{name}"] = _sorted(_member(body.get("protocol"), name))
    recorded["setTransactions"] = _pairs(body.get("setTransactions"), "appId", "version")
    recorded["domainMetadata"] = _pairs(body.get("domainMetadata"), "domain", "configuration")
    sizes = _histogram_of(body)
    recorded["fileSizeHistogram"] = sizes if _bounds(sizes) else None
    recorded["deletedRecordCountsHistogramOpt"] = _member(
        body.get("deletedRecordCountsHistogramOpt"), "deletedRecordCounts"
    )
    recorded["allFiles"] = len(body["allFiles"]) if isinstance(body.get("allFiles"), list) else None
    return recorded


def _found(snapshot: LogSnapshot, recorded: Mapping[str, Any]) -> dict[str, Any]:
    vectors = snapshot.table_configuration.dialect.has_deletion_vectors
    files = snapshot.files().select("size", *(("dvCardinality",) if vectors else ())).collect()
    deleted = (
        files["dvCardinality"] if vectors else pl.Series([None] * files.height, dtype=pl.Int64)
    )
    bounds = _bounds(_histogram_of(recorded))
    protocol, metadata = snapshot.protocol, snapshot.metadata
    return {
        "numFiles": snapshot.num_files(),
        "tableSizeBytes": snapshot.total_size(),
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": snapshot.in_commit_timestamp,
        "numDeletedRecordsOpt": deleted.sum(),
        "numDeletionVectorsOpt": deleted.count(),
        "metadata.id": metadata.id,
        _SCHEMA: canonical_json(metadata.schema_string),
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


_HISTOGRAM_SCHEMA = {
    "min_bytes": pl.Int64(),
    "max_bytes": pl.Int64(),
    "num_files": pl.Int64(),
    "total_bytes": pl.Int64(),
}


def size_histogram(snapshot: LogSnapshot) -> pl.DataFrame:
    """See `LogSnapshot.size_histogram`."""
    recorded = snapshot.read_state(lambda s: s.log.dialect.version_checksum(s.log.store, s.version))
    body = recorded or {}
    found = _histogram_of(body)
    totals = (snapshot.num_files(), snapshot.total_size())
    if _bounds(found) != list(_SIZE_BOUNDS) or _totals(found) != totals:
        sizes = snapshot.files().select("size").filter(pl.col("size") >= 0).collect()["size"]
        found = _size_histogram(sizes, list(_SIZE_BOUNDS))
    if found is None:
        raise InvalidInputError("the sizes of the live files add up to more than 64 bits")
    columns = (
        _SIZE_BOUNDS,
        [*_SIZE_BOUNDS[1:], None],
        found["fileCounts"],
        found["totalBytes"],
    )
    frame = pl.DataFrame(columns, schema=_HISTOGRAM_SCHEMA, orient="col")
    return frame.filter(pl.col("num_files") > 0)


def _totals(histogram: Any) -> tuple[int, int] | None:
    """Files and bytes in all bins of a recorded histogram; None if it is malformed."""
    columns = [_member(histogram, name) for name in ("fileCounts", "totalBytes")]
    for values in columns:
        if not isinstance(values, list) or len(values) != len(histogram["sortedBinBoundaries"]):
            return None
        if not all(type(value) is int and 0 <= value < 1 << 63 for value in values):
            return None
    return sum(columns[0]), sum(columns[1])


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
    """Feature names, sorted, because their order has no meaning."""
    return sorted(map(str, names)) if isinstance(names, list | tuple) else None


def _histogram_of(checksum: Mapping[str, Any]) -> Any:
    """The recorded histogram of file sizes, of which Spark has written the key in two spellings."""
    return checksum.get("fileSizeHistogram") or checksum.get("histogramOpt")


def _bounds(histogram: Any) -> list[int] | None:
    """Lower bounds of the bins of a recorded histogram, if they are valid."""
    bounds = _member(histogram, "sortedBinBoundaries")
    if not isinstance(bounds, list) or not all(type(b) is int for b in bounds):
        return None
    is_valid = bounds[:1] == [0] and all(a < b < 1 << 63 for a, b in pairwise(bounds))
    return bounds if is_valid else None


def _text(value: Any) -> str:
    """JSON text. orjson rejects integers over 64 bits, which a damaged checksum may have."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
