"""Parquet footers, which replay on Spark reads on the driver, and damage in any of them."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.errors import CorruptionError
from lakelog.log.opening import open_state
from lakelog.spark.footers import read_footers
from tests.checkpoint import tables


def test_footer_with_any_flipped_byte_is_read_or_refused(tmp_path: Path) -> None:
    root = tables.make(tables.CLASSIC, tmp_path / "t")
    state = open_state(lakelog.open(root, upkeep=False).log)
    assert state.base is not None
    file = root / state.base.checkpoint.paths[0]
    data = file.read_bytes()
    whole = read_footers(state)
    length = int.from_bytes(data[-8:-4], "little")
    refused = 0
    for at in range(len(data) - 8 - length, len(data) - 8, 17):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x02]) + data[at + 1 :])
        try:
            assert read_footers(state).paths == whole.paths
        except CorruptionError:
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("type_", "obstacle"),
    [
        (pa.int64(), None),
        (pa.uint64(), "Spark cannot read its typed statistics"),
        (pa.timestamp("ns"), "Spark cannot read its typed statistics"),
    ],
)
def test_typed_statistics_that_spark_cannot_read_are_an_obstacle(
    tmp_path: Path, type_: pa.DataType, obstacle: str | None
) -> None:
    table = lakelog.create(tmp_path, {"n": pl.Int64}, upkeep=False)
    table.append(pl.DataFrame({"n": [1]}))
    (path,) = table.checkpoint(layout="classic").paths
    rows = pq.read_table(tmp_path / path)
    adds = rows["add"].combine_chunks()
    names = [field.name for field in adds.type if field.name not in {"stats", "stats_parsed"}]
    bounds = pa.array(
        [{"maxValues": {"n": None}}] * len(adds),
        pa.struct([("maxValues", pa.struct([("n", type_)]))]),
    )
    fields = [*(adds.field(name) for name in names), bounds]
    adds = pa.StructArray.from_arrays(fields, [*names, "stats_parsed"], mask=adds.is_null())
    rows = rows.set_column(rows.column_names.index("add"), "add", adds)
    pq.write_table(rows, tmp_path / path)
    (tmp_path / "_delta_log" / "_last_checkpoint").unlink()
    assert read_footers(open_state(lakelog.open(tmp_path, upkeep=False).log)).obstacle == obstacle


def test_unknown_column_of_a_flattened_checkpoint_is_an_obstacle(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"n": pl.Int64}, format="indextables", upkeep=False)
    paths = table.checkpoint(layout="flattened").paths
    (path,) = (path for path in paths if path.endswith(".parquet"))

    def obstacle() -> str | None:
        return read_footers(open_state(lakelog.open(tmp_path, upkeep=False).log)).obstacle

    assert obstacle() is None
    recorded = pq.read_metadata(tmp_path / path).metadata
    rows = pq.read_table(tmp_path / path)
    rows = rows.append_column("later", pa.array(["x"] * len(rows)))
    with pq.ParquetWriter(tmp_path / path, rows.schema, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(recorded)
    assert str(obstacle()).endswith("later is an unknown field")
