"""The bytes of each workload, decoded by pyarrow only: `iter_batches` and `pyarrow.json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from perf.cases import raw
from perf.cases.base import Answer, Case

if TYPE_CHECKING:
    import polars as pl

_BATCH_ROWS = 65_536
_BLOCK_BYTES = 4 << 20
_ADD = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": pa.struct({"date": pa.string(), "region": pa.string()}),
        "size": pa.int64(),
        "modificationTime": pa.int64(),
    }
)
_COMMIT = pa.schema({"add": _ADD, "remove": pa.struct({"path": pa.string()})})
_BOUNDS = pa.struct(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "ts": pa.timestamp("us", "UTC"),
        "price": pa.float64(),
        "quantity": pa.int32(),
    }
)
_COUNTS = pa.struct(dict.fromkeys(("id", "name", "ts", "price", "quantity"), pa.int64()))
_STATS = pa.schema(
    {"numRecords": pa.int64(), "minValues": _BOUNDS, "maxValues": _BOUNDS, "nullCount": _COUNTS}
)
_INFO = pa.schema(
    {
        "commitInfo": pa.struct(
            {
                "timestamp": pa.int64(),
                "operation": pa.string(),
                "operationParameters": pa.struct({"mode": pa.string(), "partitionBy": pa.string()}),
                "operationMetrics": pa.struct(
                    {"numFiles": pa.string(), "numOutputRows": pa.string()}
                ),
                "isBlindAppend": pa.bool_(),
                "engineInfo": pa.string(),
                "txnId": pa.string(),
            }
        )
    }
)


def _checkpoint(path: Path, *leaves: str) -> pa.Table:
    batches = []
    for file in raw.checkpoints(path):
        parquet = pq.ParquetFile(file)
        batches += parquet.iter_batches(_BATCH_ROWS, columns=[f"add.{leaf}" for leaf in leaves])
    return pa.Table.from_batches(batches)


def _parse(text: bytes, schema: pa.Schema) -> pa.Table:
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _json(path: Path) -> pa.Table:
    return _parse(raw.commits(path), _COMMIT)


def _both(path: Path) -> list[pa.Table]:
    return [_checkpoint(path, *raw.LEAVES), _json(path)]


def _stats(path: Path) -> tuple[pa.Table, pa.Table]:
    files = _checkpoint(path, *raw.LEAVES, "stats")
    add = files["add"]
    texts = (chunk.field("stats").drop_null().cast(pa.large_string()) for chunk in add.chunks)
    return files, _parse(b"".join(_lines(t) for t in texts if len(t)), _STATS)


def _lines(texts: pa.Array) -> pa.Buffer:
    """All values of a column as lines of one buffer."""
    ends = (pa.scalar(end, pa.large_string()) for end in ("", "\n"))
    return pc.binary_join_element_wise(texts, *ends).buffers()[2]


def _protocol_metadata(path: Path) -> pa.Table:
    batches = []
    for file in raw.checkpoints(path):
        batches += pq.ParquetFile(file).iter_batches(_BATCH_ROWS, columns=["protocol", "metaData"])
    return pa.Table.from_batches(batches)


def _adds_answer(tables: list[pa.Table]) -> Answer:
    from perf.cases import raw_polars

    return raw_polars.adds_answer([_frame(t) for t in tables])


def _narrow_answer(table: pa.Table) -> Answer:
    from perf.cases import raw_polars

    return raw_polars.narrow_answer(_frame(table))


def _frame(table: pa.Table) -> pl.DataFrame:
    import polars as pl

    frame = pl.DataFrame(table)
    return frame if "remove" in frame.columns else frame["add"].struct.unnest()


def _protocol_answer(table: pa.Table) -> Answer:
    protocol, metadata = (table[c].drop_null()[0].as_py() for c in ("protocol", "metaData"))
    return raw.protocol_answer(protocol, metadata)


CASES = {
    "state_1m_files_classic_plus_100_commits": Case(_both, _adds_answer),
    "stats_typed_1m": Case(_stats, lambda r: {"checkpoint_stats": r[1].num_rows}),
    "protocol_metadata_1m": Case(_protocol_metadata, _protocol_answer),
    "state_1m_adds_200_commits": Case(lambda p: [_json(p)], _adds_answer),
    "state_10k_small_commits": Case(lambda p: [_json(p)], _adds_answer),
    "history_10k_commits": Case(
        lambda p: _parse(raw.commits(p), _INFO),
        lambda r: {"commits": r["commitInfo"].length() - r["commitInfo"].null_count},
    ),
    "state_10m_multipart_projected": Case(
        lambda p: _checkpoint(p, "path", "size"),
        _narrow_answer,
        size_bytes=lambda table: int(table.nbytes),
    ),
}
