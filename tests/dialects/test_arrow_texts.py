"""Texts from Polars to Arrow: without a copy if possible, and always equal."""

from __future__ import annotations

import io

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.delta.paths import text_array, text_bytes
from tests.budget import share_of

TEXTS = st.lists(st.one_of(st.none(), st.text(max_size=30)), max_size=20)


def from_parquet(texts: list[str | None]) -> pl.Series:
    file = io.BytesIO()
    pq.write_table(pa.table({"t": pa.array(texts, pa.string())}), file)
    return pl.Series("t", pq.read_table(file).column("t").combine_chunks())


@settings(max_examples=share_of(60))
@given(TEXTS, st.integers(0, 20), st.integers(0, 20), st.booleans(), st.data())
def test_column_is_converted_without_change(
    texts: list[str | None], start: int, length: int, long: bool, data: st.DataObject
) -> None:
    if long:
        texts = [None if t is None else t + "0123456789abc" for t in texts]
    column = from_parquet(texts).slice(start, length)
    kept = data.draw(st.lists(st.booleans(), min_size=column.len(), max_size=column.len()))
    for series in (column, column.filter(pl.Series(kept, dtype=pl.Boolean)), pl.Series(column)):
        assert text_array(series).to_pylist() == series.to_list()
        joined = "".join(text or "" for text in series)
        assert text_bytes(series) == joined.encode()


def test_contiguous_texts_are_shared_without_a_copy() -> None:
    column = from_parquet([f"a long text, number {n}" for n in range(1000)])
    whole, part = text_array(column), text_array(column[200:700])
    data = column.to_arrow(compat_level=pl.CompatLevel.newest()).buffers()[2]
    assert whole.buffers()[2].address == part.buffers()[2].address == data.address
    assert whole.type == part.type == pa.string()
    assert part.to_pylist() == column[200:700].to_list()
    part.validate(full=True)


@pytest.mark.parametrize("rows", [[0, 2], [2, 1]])
def test_texts_with_gaps_between_them_are_copied(rows: list[int]) -> None:
    column = from_parquet([f"a long text, number {n}" for n in range(3)])[rows]
    assert text_array(column).to_pylist() == column.to_list()
