"""The bytes of each workload, decoded by Polars only: `scan_parquet` and `read_ndjson`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import polars as pl

from perf.cases import raw
from perf.cases.base import Answer, Case
from perf.tables import Table

_PARTITION = pl.Struct({"date": pl.String, "region": pl.String})
_ADD = pl.Struct(
    {
        "path": pl.String,
        "partitionValues": _PARTITION,
        "size": pl.Int64,
        "modificationTime": pl.Int64,
    }
)
_COMMIT: dict[str, pl.DataType] = {"add": _ADD, "remove": pl.Struct({"path": pl.String})}
# read_ndjson parses times one by one with a guessed format, ten times slower than as a column.
_BOUNDS = pl.Struct(
    {
        "id": pl.Int64,
        "name": pl.String,
        "ts": pl.String(),
        "price": pl.Float64,
        "quantity": pl.Int32,
    }
)
_STATS: dict[str, pl.DataType] = {
    "numRecords": pl.Int64(),
    "minValues": _BOUNDS,
    "maxValues": _BOUNDS,
    "nullCount": pl.Struct(dict.fromkeys(("id", "name", "ts", "price", "quantity"), pl.Int64)),
}
_INFO = pl.Struct(
    {
        "timestamp": pl.Int64,
        "operation": pl.String,
        "operationParameters": pl.Struct({"mode": pl.String, "partitionBy": pl.String}),
        "operationMetrics": pl.Struct({"numFiles": pl.String, "numOutputRows": pl.String}),
        "isBlindAppend": pl.Boolean,
        "engineInfo": pl.String,
        "txnId": pl.String,
    }
)


def _checkpoint(path: Path, *leaves: str) -> pl.DataFrame:
    add = pl.col("add").struct
    return pl.scan_parquet(raw.checkpoints(path)).select(add.field(*leaves)).collect()


def _json(path: Path) -> pl.DataFrame:
    return pl.read_ndjson(raw.commits(path), schema=_COMMIT)


def _both(path: Path) -> list[pl.DataFrame]:
    return [_checkpoint(path, *raw.LEAVES), _json(path)]


def _stats(path: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    files = _checkpoint(path, *raw.LEAVES, "stats")
    text = files["stats"].drop_nulls().str.join("\n").item().encode()
    return files.drop("stats"), pl.read_ndjson(text, schema=_STATS).with_columns(
        pl.col(side).struct.with_fields(
            pl.field("ts").str.to_datetime("%Y-%m-%dT%H:%M:%S%.fZ", time_unit="us", time_zone="UTC")
        )
        for side in ("minValues", "maxValues")
    )


def _protocol_metadata(path: Path) -> pl.DataFrame:
    return pl.scan_parquet(raw.checkpoints(path)).select("protocol", "metaData").collect()


def _history(path: Path) -> pl.DataFrame:
    return pl.read_ndjson(raw.commits(path), schema={"commitInfo": _INFO})


def _one_commit(path: Path) -> pl.DataFrame:
    return pl.read_ndjson(path.read_bytes(), schema=_COMMIT)


def _next_commit(table: Table, _: ExitStack) -> Path:
    return table.next_commit


def _adds(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Checkpoint leaves and decoded commits as one frame of add actions, for the fingerprint."""
    flat = []
    for frame in frames:
        unnested = frame["add"].struct.unnest() if "add" in frame.columns else frame
        values = pl.col("partitionValues")
        is_map = isinstance(unnested.schema["partitionValues"], pl.Map)
        get = values.map.get if is_map else values.struct.field
        flat.append(
            unnested.filter(pl.col("path").is_not_null()).select(
                "path",
                "size",
                "modificationTime",
                date=get("date"),
                region=get("region"),
            )
        )
    return pl.concat(flat)


def adds_answer(frames: list[pl.DataFrame]) -> Answer:
    """The answer for checkpoint leaves and decoded commits (also used for pyarrow)."""
    from perf import answers

    return answers.of_files(_adds(frames), "adds")


def narrow_answer(frame: pl.DataFrame) -> Answer:
    """The answer for path and size only; rows other than adds have no path."""
    from perf import answers

    return answers.of_files(frame.filter(pl.col("path").is_not_null()), "adds")


def _protocol_answer(frame: pl.DataFrame) -> Answer:
    protocol = frame["protocol"].drop_nulls().struct.unnest().row(0, named=True)
    metadata = frame["metaData"].drop_nulls().struct.unnest()
    row = metadata.select("id", "partitionColumns").row(0, named=True)
    configuration = metadata["configuration"].to_arrow().to_pylist()[0]
    return raw.protocol_answer(protocol, row | {"configuration": configuration})


def _history_answer(frame: pl.DataFrame) -> Answer:
    return {"commits": frame["commitInfo"].drop_nulls().len()}


CASES = {
    "state_1m_files_classic_plus_100_commits": Case(_both, adds_answer),
    "stats_typed_1m": Case(_stats, lambda r: {"checkpoint_stats": r[1].height}),
    "protocol_metadata_1m": Case(_protocol_metadata, _protocol_answer),
    "update_by_one_commit_1m": Case(_one_commit, lambda r: {"lines": r.height}, _next_commit),
    "state_1m_adds_200_commits": Case(lambda p: [_json(p)], adds_answer),
    "state_10k_small_commits": Case(lambda p: [_json(p)], adds_answer),
    "history_10k_commits": Case(_history, _history_answer),
    "state_10m_multipart_projected": Case(
        lambda p: _checkpoint(p, "path", "size"),
        narrow_answer,
        size_bytes=lambda frame: int(frame.estimated_size()),
    ),
}
