"""Measures a table for `lakelog.health.findings`.

Everything is read from the log; only with `files`, the data is listed. Of the live files, sizes,
partition values and deletion vectors are read, and row counts only if a file has a deletion vector.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import polars as pl

from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.data.file_records import refused_records
from lakelog.data.layout import SIZE_PROPERTY, size_of
from lakelog.data.row_rules import RowRules
from lakelog.dialects.clients import compatibility
from lakelog.errors import (
    CorruptionError,
    InvalidActionError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from lakelog.health.findings import (
    BLOCKED,
    COMPACTION,
    INCOMPLETE,
    UNCHECKED,
    Damage,
    HealthReport,
    Refusal,
    TableFacts,
    findings,
)
from lakelog.log.context import Log
from lakelog.log.snapshot import LogSnapshot
from lakelog.log.version_checksum import compare_checksum_file
from lakelog.maintenance.cleanup import Request, plan_cleanup
from lakelog.maintenance.diagnose import (
    REFUSE,
    Finding,
    diagnose_files,
    diagnose_next_version,
    diagnose_pointer,
)
from lakelog.maintenance.vacuum import Listing, Vacuum
from lakelog.model.contract import column_named
from lakelog.redaction import redact, redact_path
from lakelog.skipping.values import partition_key
from lakelog.storage.base import is_denied

_PARTITION = "partition."
_EXAMPLES = 3
_DAMAGED_GATES = ("missing-commits", "checkpoint-broken")


def examine(
    log: Log, opened: Callable[[], LogSnapshot], *, files: bool = False
) -> tuple[HealthReport, pl.DataFrame]:
    """Measure a table and report what should be done, with `partition_sizes` (empty if the log
    cannot be read, which is a finding); see `lakelog.table.Table.doctor`.
    """
    version = log.latest_version()
    try:
        snapshot = opened()
        snapshot.num_files()
    except (CorruptionError, NotFoundError, UnsupportedError) as error:
        where = f"{error.path}: " if error.path else ""
        why = error.hint or "restore the file from a copy"
        damage = Damage("log", f"{where}{error.message}", why)
        damages = (damage, *_of_pointer(log, is_damaged=True))
        facts, sizes = TableFacts(log.table, version, damages), pl.DataFrame()
    else:
        facts, sizes = _survey(log, snapshot, files=files)
    return HealthReport(log.table, facts.version, tuple(findings(facts)), facts), sizes


def _survey(log: Log, snapshot: LogSnapshot, *, files: bool) -> tuple[TableFacts, pl.DataFrame]:
    """The measurements of a version, and its `partition_sizes`; `files` also lists the data."""
    metadata = snapshot.metadata
    damage: list[Damage] = []
    options = CheckpointOptions()
    more: dict[str, Any] = {}
    listed: Listing | None = None
    if files:
        listed = Listing(log)
        of_data = list(_of_data(log, listed))
        damage += of_data
        more["unchecked_files"] = sum(d.num_files or 0 for d in of_data if d.kind == UNCHECKED)
        more["external_folders"] = tuple(redact(str(each)) for each in log.external.folders)
    target = size_of(None)
    try:
        target = size_of(metadata.configuration.get(SIZE_PROPERTY))
        options = CheckpointOptions.of(metadata.configuration, log.dialect)
        cleanup = plan_cleanup(log, Request())
        blocked = cleanup.gate in _DAMAGED_GATES
        more |= {
            "cleanup_files": cleanup.deletable.height,
            "cleanup_bytes": cleanup.size_bytes,
            "cleanup_blocked": cleanup.why if blocked else None,
        }
        if listed is not None and log.dialect.has_rows:
            try:
                vacuum = Vacuum(log).plan_of(listed)
                more |= {"vacuum_files": vacuum.files.height, "vacuum_bytes": vacuum.size_bytes}
            except (UnsupportedError, InvalidActionError, UnavailableError) as error:
                # Of a table that only others write, or with an invalid deletion vector or files in
                # an unreadable folder, found above.
                if isinstance(error, UnavailableError) and not is_denied(error):
                    raise
    except InvalidInputError as error:
        damage.append(Damage("property", f"{error.path}: {error.message}", "correct the property"))
    small_bytes = target * 3 // 4
    retention_ms = options.deleted_file_retention_ms
    removed = snapshot.tombstones().select("deletionTimestamp").collect()["deletionTimestamp"]
    expired = (removed.fill_null(0) <= log.clock() - retention_ms).sum()
    sizes = partition_sizes(snapshot, small_bytes)
    live = _live(snapshot, sizes)
    damage = [*_of_log(log, snapshot), *damage]  # after the reads, which find damaged checkpoints
    checkpoint = snapshot.provenance.checkpoint
    tail = snapshot.read_state(lambda state: state.segment.commits)
    facts = TableFacts(
        table=log.table,
        version=snapshot.version,
        damage=tuple(damage),
        checkpoint_version=None if checkpoint is None else checkpoint.version,
        tail_commits=len(tail),
        tail_bytes=sum(c.size_bytes for c in tail),
        checkpoint_interval=options.interval,
        writes_checkpoints=bool(log.dialect.layouts) and log.store.refusal is None,
        small_bytes=small_bytes,
        compacts=log.dialect.has_rows and log.store.refusal is None,
        tombstones=removed.len(),
        expired_tombstones=int(expired),
        deleted_file_retention_ms=retention_ms,
        refusals=tuple(_refusals(snapshot)),
        ambiguous_rules=tuple(_ambiguous_rules(snapshot)),
        feature_removal=log.dialect.feature_removal,
        **live,
        **more,
    )
    return facts, sizes


def partition_sizes(snapshot: LogSnapshot, small_bytes: int = 0) -> pl.DataFrame:
    """One row per partition, the largest first: a column per partition column (as the schema has
    it, named ``partition.<column>``), ``files``, ``size_bytes``, and the number and size of files
    below `small_bytes`. A table without partitions has one row.
    """
    keys = [f"{_PARTITION}{name}" for name in snapshot.metadata.partition_columns]
    size = pl.col("size").fill_null(0)
    is_small = size < small_bytes
    aggregates = (
        pl.len().cast(pl.Int64).alias("files"),
        size.sum().alias("size_bytes"),
        is_small.sum().cast(pl.Int64).alias("small_files"),
        size.filter(is_small).sum().alias("small_bytes"),
    )
    rows = snapshot.files(flatten=True).select(*keys, "size")
    if not keys:
        return rows.select(*aggregates).collect()
    types = rows.collect_schema()
    values = [column_named(key) for key in keys]
    own = [partition_key(column_named(key), types[key]).alias(f"{key} key") for key in keys]
    found = rows.group_by(own).agg(*(value.first() for value in values), *aggregates)
    order = [True, *(False for _ in keys)]
    found = found.sort("size_bytes", *values, descending=order)
    return found.drop(f"{key} key" for key in keys).collect()


def partition_texts(sizes: pl.DataFrame) -> list[pl.Series]:
    """The partition columns of `partition_sizes` as text; years may exceed Python's range."""
    columns = [column for column in sizes.get_columns() if column.name.startswith(_PARTITION)]
    return [_as_text(c).fill_null("null").alias(c.name.removeprefix(_PARTITION)) for c in columns]


def partition_labels(sizes: pl.DataFrame) -> pl.Series:
    """The values of each row of `partition_sizes` as one text."""
    # Without their names, which Polars may read as patterns.
    texts = [f"{column.name}=" + column.alias("") for column in partition_texts(sizes)]
    return pl.select(pl.concat_str(texts, separator=", ").alias("partition")).to_series()


def _as_text(values: pl.Series) -> pl.Series:
    if isinstance(values.dtype, pl.Datetime):
        return values.dt.to_string("%Y-%m-%d %H:%M:%S%.f" + ("%:z" * bool(values.dtype.time_zone)))
    return values.cast(pl.String, strict=False)


def _live(snapshot: LogSnapshot, sizes: pl.DataFrame) -> dict[str, Any]:
    # A partition's only small file has no other to be merged with.
    mergeable = sizes.filter(pl.col("small_files") > 1)
    vectors = pl.Series(dtype=pl.Int64)
    if snapshot.table_configuration.dialect.has_deletion_vectors:
        column = snapshot.files().select("dvCardinality").drop_nulls().collect()
        vectors = column["dvCardinality"]
    found = {
        "num_files": int(sizes["files"].sum()),
        "size_bytes": int(sizes["size_bytes"].sum()),
        "small_files": int(mergeable["small_files"].sum()),
        "small_total_bytes": int(mergeable["small_bytes"].sum()),
        "vector_files": vectors.len(),
        "deleted_rows": int(vectors.sum()),
    }
    if vectors.len():
        rows = snapshot.files(stats=True).select(pl.col("numRecords").sum()).collect()
        found["stored_rows"] = int(rows.item() or 0)
    if snapshot.metadata.partition_columns and sizes.height:
        found |= {
            "partitions": sizes.height,
            "largest_partition_bytes": int(sizes["size_bytes"][0]),
            "median_partition_bytes": int(sizes["size_bytes"].median() or 0),  # type: ignore[arg-type] # a number
        }
        return found | {"largest_partition": partition_labels(sizes.head(1))[0]}
    return found


def _of_next_version(log: Log, snapshot: LogSnapshot) -> Iterator[Damage]:
    """Something other than a file at the name of the next commit."""
    for found in diagnose_next_version(log, snapshot.version):
        yield Damage(BLOCKED, f"{found.path}: {found.problem}", found.why)


def _of_files(snapshot: LogSnapshot) -> Iterator[Damage]:
    """Live files whose rows cannot be read because of what the log records of them."""
    for error in refused_records(snapshot):
        yield Damage("files", f"{error.path}: {error.message}", error.hint)


def _of_data(log: Log, listed: Listing) -> Iterator[Damage]:
    """Live data files and deletion vectors with a problem, one damage per kind."""
    for kind, group in groupby(diagnose_files(log, listed, remove=False), lambda each: each.kind):
        first, *others = group
        paths = tuple(redact_path(each.path) for each in (first, *others[: _EXAMPLES - 1]))
        count = sum(each.num_files or 1 for each in (first, *others))
        more = f" ({count:,} in all, also {', '.join(paths[1:])})" if others else ""
        text = f"{paths[0]}: {first.problem}{more}"
        if kind == UNCHECKED:
            text = f"{first.problem}, such as {paths[0]}"
        yield Damage(kind, text, first.why, count, paths)


def _refusals(snapshot: LogSnapshot) -> Iterator[Refusal]:
    """The clients of which a source says that they do not support a feature of the table."""
    found = compatibility(snapshot.table_configuration)
    for action in ("read", "write"):
        for client, features in found.select("client", f"unsupported_to_{action}").rows():
            if features:
                yield Refusal(client, action, tuple(features))


def _ambiguous_rules(snapshot: LogSnapshot) -> Iterator[str]:
    """The rules of rows that engines read differently, with their texts."""
    try:
        rules = RowRules.of(snapshot.table_configuration)
    except (UnsupportedError, CorruptionError):  # of rules that every write refuses by name
        return
    for rule in rules.ambiguous:
        yield f"{rule.name} ({rule.text})"


def _of_log(log: Log, snapshot: LogSnapshot) -> Iterator[Damage]:
    """Damage of log files: checkpoints that a read of the snapshot avoided, and what it checks."""
    pointer = os.path.basename(log.dialect.pointer_path)
    refused = [*_of_next_version(log, snapshot), *_of_checksum(snapshot), *_of_files(snapshot)]
    avoided = [text for text in snapshot.provenance.warnings if pointer not in text]
    kinds = dict.fromkeys(log.list_all().notes, INCOMPLETE)
    for compaction in snapshot.read_state(lambda state: state.segment.compactions):
        named = [text for text in avoided if text.startswith(compaction.path)]
        kinds |= dict.fromkeys(named, COMPACTION)
    found = [Damage(kinds.get(text, "checkpoint"), text) for text in avoided]
    yield from found
    yield from _of_pointer(log, is_damaged=any(each.kind == "checkpoint" for each in found))
    yield from refused


def _of_pointer(log: Log, *, is_damaged: bool) -> Iterator[Damage]:
    """Damage of the pointer, and of its checkpoint if no other was found before."""
    try:
        problems: list[Finding] = []
        for _ in range(2):  # another program may write a checkpoint at this moment
            problems = list(diagnose_pointer(log, log.list_all(), (), (), is_verified=False))
            if not problems:
                return
        for found in problems:
            why = found.why if found.action == REFUSE else None
            yield Damage("pointer", f"{found.path}: {found.problem}", why)
    except LakelogError as error:
        if is_damaged:
            return
        if isinstance(error, CorruptionError):  # of the checkpoint, which repair writes again
            yield Damage("checkpoint", f"{error.path}: {error.message}")
        else:
            yield Damage("pointer", error.message, error.hint)


def _of_checksum(snapshot: LogSnapshot) -> Iterator[Damage]:
    """The checksum of the version, if there is one and it differs from replay."""
    state = snapshot.read_state(lambda state: state)
    path = state.log.dialect.checksum_path(snapshot.version)
    if path is None or snapshot.version not in state.log.list_latest().checksums:
        return
    compared = compare_checksum_file(snapshot)
    if compared is None:
        yield Damage("checksum", f"{path}: it is damaged")
        return
    for field, recorded, found in (
        compared.filter(~pl.col("agrees")).select("field", "recorded", "found").rows()
    ):
        yield Damage("checksum", f"{path}: it records {field} {recorded}, replay has {found}")
        return
