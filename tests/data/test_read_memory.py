"""Data files with repeated values, which need far more memory than bytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.handmade import Handmade, add, field, metadata, protocol
from tests.limited import outcomes

_ROWS = 400_000


def _table(root: Path, text: str, rows: int) -> None:
    """A table of one file, in which one text repeats."""
    handmade = Handmade(root)
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [text])
    path = handmade.root / "a.parquet"
    pq.write_table(pa.table({"c": repeated}), path, store_schema=False)
    stats = json.dumps({"numRecords": rows})
    size = path.stat().st_size
    handmade.commit(
        0, protocol(), metadata(field("c", "string")), add("a.parquet", size, stats=stats)
    )


def test_small_file_of_many_rows_is_read_in_pieces(tmp_path: Path) -> None:
    _table(tmp_path / "t", "y" * 2_000, _ROWS)  # 800 MB of text
    assert (tmp_path / "t/a.parquet").stat().st_size < 1 << 20
    assert outcomes({"t": tmp_path / "t"}, "count", 1_000) == {"t": str(_ROWS)}


def test_rows_that_exceed_the_memory_raise_unavailable_error(tmp_path: Path) -> None:
    _table(tmp_path / "t", "y" * 20_000, _ROWS)
    assert outcomes({"t": tmp_path / "t"}, "rows", 400) == {"t": "UnavailableError"}


def test_constant_column_of_ten_million_rows_is_read(tmp_path: Path) -> None:
    _table(tmp_path / "t", "x", 10_000_000)
    assert outcomes({"t": tmp_path / "t"}, "count", 1_500) == {"t": "10000000"}
