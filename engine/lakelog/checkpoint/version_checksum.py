"""Writes version checksums (``.crc``): counts and sums of a version, by which readers detect
damage.

Every number is computed by replay, never from an earlier checksum, because an error would propagate
to all later ones. The replayed state is counted twice, by two implementations that share only the
decoding, and nothing is written unless they agree. An existing checksum is never replaced.

Source: Delta protocol, Version Checksum File.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import polars as pl

from lakelog import telemetry
from lakelog.checkpoint.plan import check_writers
from lakelog.checkpoint.publish import put_unless_exists
from lakelog.checkpoint.state_source import StateSource
from lakelog.checkpoint.verify import independent_state, verify_one
from lakelog.dialects.commit_info import in_commit_timestamp
from lakelog.dialects.log_content import CommitContent, CommitFile, CommitInfo
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.display import Displayed
from lakelog.errors import (
    CheckpointValidationError,
    CorruptionError,
    NotFoundError,
    UnsupportedError,
)
from lakelog.log.context import Log
from lakelog.log.properties import transaction_retention_ms
from lakelog.log.snapshot import LogSnapshot
from lakelog.log.state import State
from lakelog.log.version_checksum import (
    SizeCounts,
    compare_checksum,
    count_deleted,
    recorded_fields,
)
from lakelog.model import actions

_MOST_TRANSACTIONS = 100
_MOST_DOMAINS = 100
_LONG = 1 << 63
_SHOWN = ("numFiles", "tableSizeBytes", "numDeletionVectorsOpt", "numDeletedRecordsOpt")
_PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class ChecksumReport(Displayed):
    """A version checksum.

    Attributes:
        version: The version.
        path: Path of the file, relative to the table root.
        written: Whether this call wrote the file; False if it existed.
        disagreements: If it existed: fields whose values differ from replay. The file is unchanged,
            because the protocol forbids to replace it; no result of lakelog depends on it.
        body: The checksum that results from replay.
    """

    _title = "Version checksum"

    version: int
    path: str
    written: bool
    disagreements: tuple[str, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        return [
            ("version", str(self.version)),
            ("path", self.path),
            ("written", "yes" if self.written else "no, it existed"),
            ("differs in", ", ".join(name or "all" for name in self.disagreements) or "nothing"),
            *((name, str(self.body[name])) for name in _SHOWN if name in self.body),
        ]


def write_checksum(
    log: Log, version: int | None = None, *, memory_limit: int | None = None
) -> ChecksumReport:
    """See `Table.checksum`. Without a memory limit, the state is counted twice independently."""
    with telemetry.span("checksum.write", path=log.table):
        snapshot = LogSnapshot.open(log, version)
        _require_path(log, snapshot.version)
        body = snapshot.read_state(lambda state: build_checksum(state, memory_limit=memory_limit))
        if memory_limit is None:
            _require_agreement(snapshot, body)
        _require_right_source(log, snapshot, body, memory_limit)
        return put_checksum(log, snapshot.version, body)


def build_checksum(state: State, *, memory_limit: int | None = None) -> dict[str, Any]:
    """The body of a version's checksum from replay; errors as `write_checksum`."""
    counts = FileCounts()
    with StateSource(state, memory_limit=memory_limit, now_ms=state.log.clock()) as source:
        for frame in source.files(FileCounts.COLUMNS):
            counts.add(frame)
        return checksum_of(state, source, counts)


def checksum_of(state: State, source: StateSource, counts: FileCounts) -> dict[str, Any]:
    """The body of a checksum; optional fields only if they are complete, and their lists short."""
    log = state.log
    protocol, metadata = source.protocol, source.metadata
    table = TableConfiguration(log.dialect, protocol, metadata)
    check_writers(table, log.table)
    bodies = _spell(log, source.meta)
    properties = {k.lower(): v for k, v in metadata.configuration.items()}
    info = _commit_info(state)
    body: dict[str, Any] = {
        "txnId": _transaction_id(info),
        "tableSizeBytes": counts.size_bytes,
        "numFiles": counts.files,
        "numMetadata": 1,
        "numProtocol": 1,
    }
    if (properties.get("delta.enableincommittimestamps") or "").lower() == "true":
        body["inCommitTimestampOpt"] = _in_commit_time(state, info)
    if transaction_retention_ms(metadata.configuration) is None:
        body["setTransactions"] = _few(bodies, "txn", _MOST_TRANSACTIONS)
    body["domainMetadata"] = _few(bodies, "domainMetadata", _MOST_DOMAINS)
    body["metadata"] = bodies["metaData"][0]
    body["protocol"] = bodies["protocol"][0]
    body["fileSizeHistogram"] = counts.sizes.histogram()
    if table.supports("deletionVectors") and counts.vectors_are_counted:
        body["numDeletedRecordsOpt"] = counts.deleted_rows
        body["numDeletionVectorsOpt"] = counts.vectors
        body["deletedRecordCountsHistogramOpt"] = {"deletedRecordCounts": counts.deleted}
    if counts.size_bytes >= _LONG or counts.deleted_rows >= _LONG:
        raise UnsupportedError(
            "the sum of the file sizes does not fit in a version checksum",
            path=log.table,
            found=counts.size_bytes,
        )
    return {name: value for name, value in body.items() if value is not None}


def put_checksum(log: Log, version: int, body: Mapping[str, Any]) -> ChecksumReport:
    """Write a checksum unless there is one; errors as `write_checksum`."""
    path = _require_path(log, version)
    data = (json.dumps(body, separators=(",", ":")) + "\n").encode()
    written = put_unless_exists(log.store, path, data)
    disagreements: tuple[str, ...] = ()
    if not written:
        there = log.dialect.version_checksum(log.store, version)
        disagreements = ("",) if there is None else _disagreements(body, there)
    return ChecksumReport(version, path, written, disagreements, body)


def _require_path(log: Log, version: int) -> str:
    path = log.dialect.checksum_path(version)
    if path is None:
        raise UnsupportedError(
            "this format has no version checksums", path=log.table, found=log.dialect.name
        )
    return path


@dataclass
class FileCounts:
    """Counts and sums of live files for a checksum."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("size", "dvCardinality")

    files: int = 0
    size_bytes: int = 0
    vectors: int = 0
    deleted_rows: int = 0
    vectors_are_counted: bool = True
    sizes: SizeCounts = field(default_factory=SizeCounts)
    deleted: list[int] = field(default_factory=lambda: count_deleted(()))

    def add(self, rows: pl.DataFrame) -> None:
        """Count file actions of one kind, with `COLUMNS`; tombstones are ignored."""
        if rows["actionType"][0] != "add":
            return
        (sizes,) = actions.conform(rows, ("size",)).get_columns()
        self.files += rows.height
        self.size_bytes += int(sizes.cast(pl.Int128).sum())
        self.sizes.add(sizes)
        if not {"dvId", "dvCardinality"} & set(rows.columns):
            self.deleted[0] += rows.height
            return
        rows = actions.conform(rows, ("dvId", "dvCardinality"))
        deleted = rows["dvCardinality"]
        self.vectors += rows["dvId"].count()
        self.deleted_rows += int(deleted.cast(pl.Int128).sum())
        self.vectors_are_counted &= bool((rows["dvId"].is_null() == deleted.is_null()).all())
        here = count_deleted((deleted,))
        self.deleted = [a + b for a, b in zip(self.deleted, here, strict=True)]


def _spell(log: Log, meta: pl.DataFrame) -> dict[str, list[Any]]:
    """The bodies of the actions as JSON types, by wrapper."""
    found: dict[str, list[Any]] = {}
    for line in log.dialect.encode(CommitContent(meta=meta)).splitlines():
        for wrapper, body in json.loads(line).items():
            found.setdefault(wrapper, []).append(body)
    return found


def _few(bodies: Mapping[str, list[Any]], wrapper: str, most: int) -> list[Any] | None:
    """All actions or None: readers assume that the list is complete."""
    there = bodies.get(wrapper, [])
    return there if len(there) <= most else None


def _commit_info(state: State) -> CommitInfo | None:
    """The commitInfo of the version's commit, read in pieces; None if it has none."""
    store, dialect = state.log.store, state.log.dialect
    path = dialect.commit_path(state.version)
    there = store.stat(path)
    if there is None:
        return None
    commit = CommitFile(state.version, path, there.size_bytes, there.modified_ms)
    for piece in dialect.decode_pieces(store, [commit], _PIECE_BYTES, files=False):
        if piece.commit_infos:
            return piece.commit_infos[0]
    return None


def _transaction_id(info: CommitInfo | None) -> str | None:
    found = None if info is None else info.body.get("txnId")
    return found if isinstance(found, str) else None


def _in_commit_time(state: State, info: CommitInfo | None) -> int:
    at = None if info is None else in_commit_timestamp(info)
    if at is None:
        raise CorruptionError(
            "the table uses in-commit timestamps, and that of this version cannot be read",
            path=state.log.dialect.commit_path(state.version),
            version=state.version,
            expected="commitInfo.inCommitTimestamp",
            hint="restore the commit",
        )
    return at


def _require_agreement(snapshot: LogSnapshot, body: Mapping[str, Any]) -> None:
    wrong = compare_checksum(snapshot, body).filter(~pl.col("agrees"))
    if wrong.height:
        raise CheckpointValidationError(
            f"two counts of the replayed state differ: {', '.join(wrong['field'])}",
            path=snapshot.path,
            version=snapshot.version,
            expected=wrong["found"][0],
            found=wrong["recorded"][0],
            hint="nothing was written; the log may have changed during the call",
        )


def _require_right_source(
    log: Log, snapshot: LogSnapshot, body: Mapping[str, Any], memory_limit: int | None
) -> None:
    """Raise if the counts are those of a wrong checkpoint of the same version: the checksum would
    confirm it.
    """
    version = snapshot.version
    source = snapshot.read_state(lambda state: state.segment.checkpoint)
    if source is None or source.version != version:
        return
    other = independent_state(log, version)
    if other is None:
        return
    try:
        replayed = build_checksum(other, memory_limit=memory_limit)
    except (CorruptionError, NotFoundError):
        return  # nothing proves either
    if _disagreements(body, replayed):
        verify_one(log, source, memory_limit).raise_for_verdict()


def _disagreements(body: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields that differ between two checksums; histograms only if their bins are equal."""
    ours, theirs = recorded_fields(body), recorded_fields(there)
    differ = [n for n, v in theirs.items() if v is not None and ours.get(n) not in (None, v)]
    bins = [f.get("fileSizeHistogram") or {} for f in (ours, theirs)]
    if bins[0].get("sortedBinBoundaries") != bins[1].get("sortedBinBoundaries"):
        differ = [name for name in differ if name != "fileSizeHistogram"]
    return tuple(differ)
