"""Builds the demonstration table's log: commits, checkpoint and pointer, as bytes, from a seed.

Pure: `build_log` reads no clock and no disk; only `make_table` writes. The data files that the log
names do not exist, because reading a log does not need them. The classic checkpoint is as
`lakelog.dialects.delta` writes it.

Source: Delta protocol, Checkpoint Schema; Last Checkpoint File Schema.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.demo import schedule
from lakelog.demo.schedule import Calendar, append_files, commit_ms, file_lifetimes
from lakelog.dialects.delta.checkpoint_manifest import FileActionCounts, pointer_bytes
from lakelog.dialects.delta.checkpoint_rows import action_rows, encoded
from lakelog.dialects.delta.checkpoint_schema import classic_schema, file_columns
from lakelog.dialects.delta.names import classic_name
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.log_content import CheckpointPlan, StagedFile
from lakelog.dialects.ndjson import Blob, decode_lines
from lakelog.errors import InvalidInputError, UnavailableError
from lakelog.model import contract

SCHEMA = classic_schema(file_columns())
"""The columns of a classic checkpoint with JSON statistics only."""


def _build_checkpoint(
    version: int, state: Sequence[Mapping[str, object]], adds: pl.DataFrame, removes: pl.DataFrame
) -> tuple[bytes, bytes]:
    """The Parquet of a classic checkpoint, and its pointer."""
    name = classic_name(version)
    lines = b"".join(orjson.dumps(action) + b"\n" for action in state)
    meta = decode_lines([Blob(None, name, lines)], Wire.of("delta")).meta
    kinds = meta["actionType"].unique(maintain_order=True)
    tables = [action_rows(meta.filter(pl.col("actionType") == k), k, SCHEMA) for k in kinds]
    removed_files = removes.with_columns(pl.lit(value=True).alias("extendedFileMetadata"))
    tables += [
        action_rows(encoded(_with_partitions(files)), kind, SCHEMA)
        for kind, files in (("add", adds), ("remove", removed_files))
    ]
    table = pa.concat_tables(tables)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True, store_schema=False)
    plan = CheckpointPlan(version, "classic", 1, contract.Struct(()), ("day", "region"))
    file = StagedFile(name, name, len(buffer.getvalue()), table.num_rows)
    counts = FileActionCounts(adds.height, removes.height)
    return buffer.getvalue(), pointer_bytes(plan, [file], counts, SCHEMA)


def _with_partitions(files: pl.DataFrame) -> pl.DataFrame:
    """Files with ``partitionValues`` instead of one column per partition column."""
    names = ["day", "region"]
    values = files.select(pl.concat_list(names).alias("values")).explode("values")["values"]
    offsets = pa.array(np.arange(files.height + 1, dtype=np.int32) * len(names))
    keys = pa.array(names * files.height, pa.string())
    maps = pa.MapArray.from_arrays(offsets, keys, values.to_arrow().cast(pa.string()))
    return files.drop(names).with_columns(pl.Series("partitionValues", maps))


_TABLE_ID = "0d0c9f7e-5d0b-4f0a-9c43-6a1f4c1f6a11"
_STREAM_ID = "8c2f1f0e-orders-stream"
_ENGINE = "lakelog demo"

_COLUMNS = (
    ("order_id", "long"),
    ("customer", "string"),
    ("amount", "decimal(10,2)"),
    ("quantity", "integer"),
    ("placed_at", "timestamp"),
    ("day", "date"),
    ("region", "string"),
)
_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
_PROPERTIES = {"delta.checkpointInterval": "100"}
_LATER_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 14 days",
    "delta.logRetentionDuration": "interval 60 days",
}


@dataclass(frozen=True)
class DemoLog:
    """A complete Delta log.

    Attributes:
        commits: The NDJSON bytes of each commit; the index is the version.
        times_ms: Commit time of each, in milliseconds since the Unix epoch.
        checkpoint_version: Version of the one checkpoint.
        checkpoint: Its Parquet bytes.
        last_checkpoint: The pointer to it.
    """

    commits: tuple[bytes, ...]
    times_ms: tuple[int, ...]
    checkpoint_version: int
    checkpoint: bytes
    last_checkpoint: bytes


def make_table(directory: str | os.PathLike[str], commits: int = 300, seed: int = 7) -> str:
    """Write the demonstration table into a folder of the local disk, and return its path.

    A Delta table of orders, partitioned by ``day`` and ``region``, with JSON statistics: appends
    by a stream (with a txn) and a nightly batch, compactions, deletions, one of them restored, a
    column added, properties set, and a classic checkpoint at two thirds. The data files that its
    log mentions do not exist.

    >>> import lakelog
    >>> lakelog.open(make_table("orders", commits=60)).version()
    59
    """
    root = Path(directory)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InvalidInputError(
            "the folder for the table is not empty",
            path=str(root),
            hint="use a new folder",
        )
    log = build_log(commits, seed)
    try:
        _write_log(root / "_delta_log", log)
    except OSError as cause:
        raise UnavailableError(
            f"the table cannot be written: {cause.strerror or cause}",
            path=str(root),
            hint="use another folder, or free disk space",
        ) from cause
    return str(root)


def append_commit(directory: str | os.PathLike[str], version: int, seed: int = 7) -> int:
    """Write one more append, as `version`, to a table of `make_table`; returns how many files it
    adds.
    """
    data = next_commit(version, seed)
    _write_commit(Path(directory) / "_delta_log", version, data)
    return data.count(b'{"add":')


def _write_log(folder: Path, log: DemoLog) -> None:
    folder.mkdir(parents=True)
    for version, data in enumerate(log.commits):
        _write_commit(folder, version, data)
    name = f"{log.checkpoint_version:020d}.checkpoint.parquet"
    written = log.times_ms[log.checkpoint_version] + 5_000
    _write(folder / name, log.checkpoint, written)
    _write(folder / "_last_checkpoint", log.last_checkpoint, written)


def _write_commit(folder: Path, version: int, data: bytes) -> None:
    _write(folder / f"{version:020d}.json", data, commit_ms(version))


def _write(path: Path, data: bytes, modified_ms: int) -> None:
    with path.open("xb") as file:
        file.write(data)
    os.utime(path, (modified_ms / 1000, modified_ms / 1000))


def build_log(commits: int = 300, seed: int = 7) -> DemoLog:
    """The log of the demonstration table; see `make_table`.

    Memory: the whole log, about a kilobyte per action.
    """
    calendar = schedule.plan(commits)
    files = _with_stats(file_lifetimes(calendar, seed), calendar.schema_version)
    adds, removes = _file_actions(files, calendar)
    lines = _joined(adds, removes)
    metrics = _metrics(adds, removes)
    texts = []
    for version, operation in calendar.operations.iter_rows():
        first = [_commit_info(version, operation, calendar, metrics.get(version, {}))]
        first += _other_actions(version, operation, calendar)
        texts.append(b"\n".join([*first, *lines.get(version, [])]) + b"\n")
    version = calendar.checkpoint_version
    checkpoint, pointer = _checkpoint(files, calendar)
    times = tuple(commit_ms(v) for v in range(commits))
    return DemoLog(tuple(texts), times, version, checkpoint, pointer)


def next_commit(version: int, seed: int = 7) -> bytes:
    """The bytes of one more append by the stream, as `version`, to a table of `build_log`."""
    versions = pl.DataFrame({"version": [version]})
    random = np.random.default_rng([seed, version])
    files = _with_stats(append_files(versions, None, random), schema_version=0)
    adds = files.select(
        pl.lit(version).alias("version"),
        "size",
        "numRecords",
        pl.lit(True).alias("dataChange"),
        _add_line(pl.lit(True)),
    )
    operation = schedule.STREAM
    info = _commit_info(version, operation, None, _metrics(adds, adds.clear()).get(version, {}))
    lines = [info, *_other_actions(version, operation, None)]
    return b"\n".join([*lines, *(line.encode() for line in adds["line"])]) + b"\n"


# --- file actions --------------------------------------------------------------------------------


def _with_stats(files: pl.DataFrame, schema_version: int) -> pl.DataFrame:
    """Add ``stats``: JSON text over the columns that the schema had when the file was written."""

    def instant(column: str) -> pl.Expr:
        time = pl.from_epoch(column, time_unit="ms").dt.to_string("%Y-%m-%dT%H:%M:%S.000Z")
        return time.alias("placed_at")

    def text(*, coupon: bool) -> pl.Expr:
        names = [name for name, _ in _COLUMNS[:5]]
        nulls = [pl.lit(0).alias(name) for name in names]
        if coupon:
            nulls.append((pl.col("numRecords") * 9 // 10).alias("coupon"))
        least = pl.struct(
            pl.col("firstId").alias("order_id"),
            pl.col("firstCustomer").alias("customer"),
            pl.col("minAmount").alias("amount"),
            pl.lit(1).alias("quantity"),
            instant("firstTime"),
        )
        most = pl.struct(
            pl.col("lastId").alias("order_id"),
            pl.col("lastCustomer").alias("customer"),
            pl.col("maxAmount").alias("amount"),
            pl.col("maxQuantity").alias("quantity"),
            instant("lastTime"),
        )
        return pl.struct(
            "numRecords",
            least.alias("minValues"),
            most.alias("maxValues"),
            pl.struct(nulls).alias("nullCount"),
        ).struct.json_encode()

    newer = pl.col("added") > schema_version
    return files.with_columns(
        day=pl.col("day").dt.to_string("%Y-%m-%d"),
        stats=pl.when(newer).then(text(coupon=True)).otherwise(text(coupon=False)),
    )


def _file_actions(files: pl.DataFrame, calendar: Calendar) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The add and remove actions: ``version``, ``size``, ``numRecords``, ``dataChange``, ``line``.

    Actions of a compaction have ``dataChange`` false.
    """
    changes = ~pl.col("version").is_in(calendar.versions(schedule.OPTIMIZE)["version"].implode())
    common = ("version", "size", "numRecords", "dataChange")
    born = files.with_columns(version="added")
    again = files.filter(pl.col("restored").is_not_null()).with_columns(version="restored")
    adds = pl.concat([born, again]).with_columns(dataChange=changes)
    removed_files = files.filter(pl.col("removed").is_not_null()).with_columns(version="removed")
    removes = removed_files.with_columns(dataChange=changes)
    return (
        adds.select(*common, _add_line(pl.col("dataChange"))),
        removes.select(*common, _remove_line()),
    )


def _add_line(data_change: pl.Expr) -> pl.Expr:
    body = pl.struct(
        "path",
        pl.struct("day", "region").alias("partitionValues"),
        "size",
        "modificationTime",
        data_change.alias("dataChange"),
        "stats",
    )
    return pl.struct(body.alias("add")).struct.json_encode().alias("line")


def _remove_line() -> pl.Expr:
    body = pl.struct(
        "path",
        _deleted_ms().alias("deletionTimestamp"),
        "dataChange",
        pl.lit(True).alias("extendedFileMetadata"),
        pl.struct("day", "region").alias("partitionValues"),
        "size",
    )
    return pl.struct(body.alias("remove")).struct.json_encode().alias("line")


def _deleted_ms() -> pl.Expr:
    return schedule.FIRST_MS + pl.col("removed") * schedule.HOUR_MS - 1_000


def _joined(*frames: pl.DataFrame) -> dict[int, list[bytes]]:
    """The lines of each version."""
    lines = pl.concat([f.select("version", "line") for f in frames])
    texts = lines.group_by("version").agg(pl.col("line").str.join("\n"))
    return {version: [text.encode()] for version, text in texts.iter_rows()}


def _metrics(adds: pl.DataFrame, removes: pl.DataFrame) -> dict[int, dict[str, str]]:
    """Operation metrics of each version, as text, as Spark writes them."""
    added = adds.group_by("version").agg(
        pl.len().alias("numAddedFiles"),
        pl.col("size").sum().alias("numAddedBytes"),
        pl.col("numRecords").sum().alias("numOutputRows"),
    )
    removed = removes.group_by("version").agg(
        pl.len().alias("numRemovedFiles"), pl.col("size").sum().alias("numRemovedBytes")
    )
    both = added.join(removed, on="version", how="full", coalesce=True)
    return {
        row.pop("version"): {name: str(value) for name, value in row.items() if value is not None}
        for row in both.iter_rows(named=True)
    }


# --- the other actions ---------------------------------------------------------------------------


def _commit_info(
    version: int, operation: str, calendar: Calendar | None, metrics: Mapping[str, str]
) -> bytes:
    info = {
        "timestamp": commit_ms(version),
        "userName": schedule.USERS.get(operation, schedule.OWNER),
        "operation": operation,
        "operationParameters": _parameters(version, operation, calendar),
        "isolationLevel": "Serializable",
        "isBlindAppend": operation in {schedule.STREAM, schedule.BATCH},
        "operationMetrics": dict(metrics),
        "engineInfo": _ENGINE,
        "txnId": f"00000000-0000-4000-8000-{version:012d}",
    }
    return orjson.dumps({"commitInfo": info})


def _parameters(version: int, operation: str, calendar: Calendar | None) -> dict[str, str]:
    match operation:
        case schedule.CREATE:
            return {"partitionBy": '["day","region"]', "properties": _text(_PROPERTIES)}
        case schedule.ADD_COLUMNS:
            return {"columns": '[{"column":{"name":"coupon","type":"string","nullable":true}}]'}
        case schedule.SET_PROPERTIES:
            return {"properties": _text(_LATER_PROPERTIES)}
        case schedule.STREAM:
            return {"outputMode": "Append", "queryId": _STREAM_ID, "epochId": str(version)}
        case schedule.BATCH:
            return {"mode": "Append", "partitionBy": '["day","region"]'}
        case schedule.DELETE:
            return {"predicate": '["customer IN (SELECT customer FROM requests)"]'}
        case schedule.RESTORE:
            assert calendar is not None
            return {"version": str(calendar.mistake_version - 1)}
        case _:
            return {"predicate": "[]", "zOrderBy": "[]"}


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def _other_actions(version: int, operation: str, calendar: Calendar | None) -> list[bytes]:
    """Lines of the actions that are neither commitInfo nor about files."""
    match operation:
        case schedule.CREATE:
            assert calendar is not None
            return [
                orjson.dumps({"protocol": _PROTOCOL}),
                orjson.dumps({"metaData": _metadata(version, calendar)}),
            ]
        case schedule.ADD_COLUMNS | schedule.SET_PROPERTIES:
            assert calendar is not None
            return [orjson.dumps({"metaData": _metadata(version, calendar)})]
        case schedule.STREAM:
            return [orjson.dumps({"txn": _txn(version)})]
        case _:
            return []


def _txn(version: int) -> dict[str, Any]:
    return {"appId": _STREAM_ID, "version": version, "lastUpdated": commit_ms(version)}


def _metadata(version: int, calendar: Calendar) -> dict[str, Any]:
    """The metadata as it is at a version."""
    columns = list(_COLUMNS)
    if version >= calendar.schema_version:
        columns.append(("coupon", "string"))
    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in columns
    ]
    later = _LATER_PROPERTIES if version >= calendar.property_version else {}
    return {
        "id": _TABLE_ID,
        "name": "orders",
        "description": "orders of a shop that does not exist",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": _text({"type": "struct", "fields": fields}),
        "partitionColumns": ["day", "region"],
        "configuration": _PROPERTIES | later,
        "createdTime": commit_ms(0),
    }


# --- checkpoint ----------------------------------------------------------------------------------


def _checkpoint(files: pl.DataFrame, calendar: Calendar) -> tuple[bytes, bytes]:
    """The checkpoint's Parquet and the pointer to it."""
    version = calendar.checkpoint_version
    added, removed, restored = (
        (pl.col(c) <= version).fill_null(False) for c in ("added", "removed", "restored")
    )
    live = files.filter(added & (~removed | restored))
    removed_files = files.filter(removed & ~restored).with_columns(deletionTimestamp=_deleted_ms())
    streamed = calendar.versions(schedule.STREAM).filter(pl.col("version") <= version)
    state = [
        {"protocol": _PROTOCOL},
        {"metaData": _metadata(version, calendar)},
        {"txn": _txn(int(streamed["version"][-1]))},
    ]
    columns = ("path", "day", "region", "size")
    return _build_checkpoint(
        version,
        state,
        live.select(*columns, "modificationTime", "stats"),
        removed_files.select(*columns, "deletionTimestamp"),
    )
