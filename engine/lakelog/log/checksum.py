"""A version checksum beside what replay finds; it can only ever tell, never decide.

Source: Delta protocol, Version Checksum File, State Validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

if TYPE_CHECKING:
    from lakelog.log.snapshot import Snapshot

CHECKSUM_SCHEMA = {
    "field": pl.String(),
    "recorded": pl.String(),
    "found": pl.String(),
    "agrees": pl.Boolean(),
}


def compare_checksum(snapshot: Snapshot, recorded: Mapping[str, Any]) -> pl.DataFrame:
    """Compare a version checksum with the replayed state.

    Args:
        snapshot: The state.
        recorded: Body of the checksum file of the same version.

    Returns:
        One row for each field that is recorded and that replay can give, with both values as JSON
        text, in the order of `CHECKSUM_SCHEMA`.
    """
    found = _found(snapshot)
    rows = [
        (name, _text(value), _text(found[name]), value == found[name])
        for name, value in _recorded(recorded).items()
        if value is not None and name in found
    ]
    return pl.DataFrame(rows, schema=CHECKSUM_SCHEMA, orient="row")


def _recorded(body: Mapping[str, Any]) -> dict[str, Any]:
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
    recorded["metadata.id"] = _member(body.get("metadata"), "id")
    for name in ("minReaderVersion", "minWriterVersion"):
        recorded[f"protocol.{name}"] = _member(body.get("protocol"), name)
    recorded["setTransactions"] = _pairs(body.get("setTransactions"), "appId", "version")
    recorded["domainMetadata"] = _pairs(body.get("domainMetadata"), "domain", "configuration")
    recorded["allFiles"] = len(body["allFiles"]) if isinstance(body.get("allFiles"), list) else None
    return recorded


def _found(snapshot: Snapshot) -> dict[str, Any]:
    vectors = (
        snapshot.files()
        .select(pl.col("dvCardinality").sum(), pl.col("dvCardinality").count().alias("vectors"))
        .collect()
        .row(0)
        if snapshot.format == "delta"
        else (0, 0)
    )
    protocol = snapshot.protocol
    return {
        "numFiles": snapshot.num_files(),
        "tableSizeBytes": snapshot.total_size(),
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": snapshot.timestamp_ms,
        "numDeletedRecordsOpt": vectors[0],
        "numDeletionVectorsOpt": vectors[1],
        "metadata.id": snapshot.metadata.id,
        "protocol.minReaderVersion": protocol.min_reader_version,
        "protocol.minWriterVersion": protocol.min_writer_version,
        "setTransactions": dict(
            snapshot.transactions().select("appId", "txnVersion").collect().iter_rows()
        ),
        "domainMetadata": dict(
            snapshot.domains().select("domain", "domainConfiguration").collect().iter_rows()
        ),
        "allFiles": snapshot.num_files(),
    }


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _pairs(value: Any, key: str, member: str) -> dict[str, Any] | None:
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        return None
    return {str(v.get(key)): v.get(member) for v in value}


def _text(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
