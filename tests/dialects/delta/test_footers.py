"""Inconsistent footers are rejected before they crash pyarrow."""

from __future__ import annotations

import io
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.dialects.parquet_footers import require_valid_chunks


def _written() -> bytes:
    kind = pa.struct({"version": pa.int32(), "names": pa.list_(pa.string())})
    rows = pa.table({"protocol": pa.array([{"version": 1, "names": ["a"]}, None], kind)})
    file = io.BytesIO()
    pq.write_table(rows, file, row_group_size=1)
    return file.getvalue()


def _read_all_statistics(metadata: pq.FileMetaData) -> int:
    groups, leaves = range(metadata.num_row_groups), range(metadata.num_columns)
    require_valid_chunks(metadata, groups, leaves)
    chunks = [metadata.row_group(group).column(leaf) for group in groups for leaf in leaves]
    for statistics in (chunk.statistics for chunk in chunks):
        assert statistics is None or isinstance(statistics.has_null_count, bool)
        assert statistics is None or not statistics.has_min_max or repr(statistics.max)
    return sum(chunk.num_values for chunk in chunks)


def test_valid_footer_is_accepted() -> None:
    metadata = pq.ParquetFile(io.BytesIO(_written())).metadata
    assert _read_all_statistics(metadata) == 4
    require_valid_chunks(metadata, [], [0])
    require_valid_chunks(metadata, [0], [])


def test_chunks_are_not_read_for_the_check() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"n": range(1_000_000)}), file, use_dictionary=False)
    metadata = pq.ParquetFile(file).metadata
    tracemalloc.start()
    require_valid_chunks(metadata, [0], [0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < metadata.row_group(0).column(0).total_compressed_size // 10


@pytest.mark.parametrize("mask", [0x02, 0x04, 0xFF])
def test_process_survives_any_flipped_byte_of_a_footer(mask: int) -> None:
    data = _written()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    refused: list[str] = []
    for at in range(start, len(data) - 8):
        damaged = data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]
        try:
            metadata = pq.ParquetFile(io.BytesIO(damaged)).metadata
        except (pa.ArrowException, OSError, ValueError):
            continue
        try:
            _read_all_statistics(metadata)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            refused.append(str(error))
    if mask == 0x02:  # an optional field that has become a required one
        assert any("level histogram" in text for text in refused)
