"""Statistics of data files: every rule, compared with a scan of all rows."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakelog
from lakelog.data.conform import Conform
from lakelog.data.stats import FileStats, StatsPlan, cut_above
from lakelog.errors import InvalidPropertyError
from lakelog.model import contract
from lakelog.skipping.statistics import stats_from_json
from lakelog.transaction.schema_conversion import struct_of

NUM_COLUMNS = "delta.dataSkippingNumIndexedCols"
COLUMNS = "delta.dataSkippingStatsColumns"
PREFIX = "delta.dataSkippingStringPrefixLength"


def stats_text(
    schema: contract.Struct,
    groups: Sequence[pa.Table],
    configuration: dict[str, str | None] | None = None,
    mapping: str = "none",
) -> str:
    """Statistics of a file with these row groups."""
    stats = FileStats(StatsPlan.of(schema.fields, configuration or {}, mapping))
    tables = [Conform(schema.fields).table(group) for group in groups]
    footers: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        io.BytesIO(),
        tables[0].schema,
        store_decimal_as_integer=True,
        metadata_collector=footers,
    ) as writer:
        for table in tables:
            stats.see(table)
            writer.write_table(table)
    return stats.json(footers[0])


def stats_of(frame: pl.DataFrame, **configuration: str | None) -> dict[str, Any]:
    """Statistics of a file with the rows of a frame, in one row group."""
    found: dict[str, Any] = json.loads(
        stats_text(struct_of(frame.schema), [frame.to_arrow()], configuration)
    )
    return found


def bounds(values: list[Any], dtype: Any = None) -> tuple[Any, Any]:
    """Minimum and maximum of one column, as in JSON."""
    found = stats_of(pl.DataFrame({"c": pl.Series(values, dtype=dtype)}))
    assert found["nullCount"]["c"] == sum(value is None for value in values)
    return found["minValues"].get("c"), found["maxValues"].get("c")


def test_statistics_have_count_bounds_and_null_counts() -> None:
    frame = pl.DataFrame({"a": [3, None, 1], "b": ["x", "y", None]})
    assert stats_of(frame) == {
        "numRecords": 3,
        "minValues": {"a": 1, "b": "x"},
        "maxValues": {"a": 3, "b": "y"},
        "nullCount": {"a": 1, "b": 1},
        "tightBounds": True,
    }


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Int16, pl.Int32, pl.Int64])
def test_whole_numbers_are_bounded_by_their_extremes(dtype: Any) -> None:
    least, greatest = dtype.min(), dtype.max()
    low, high = pl.select(a=least, b=greatest).row(0)
    assert bounds([0, low, None, high], dtype) == (low, high)


def test_column_of_nulls_has_no_bounds() -> None:
    assert bounds([None, None], pl.Int64) == (None, None)
    found = stats_of(pl.DataFrame({"c": pl.Series([None], dtype=pl.Struct({"a": pl.Int64}))}))
    assert (found["minValues"], found["nullCount"]) == ({"c": {}}, {"c": {"a": 1}})


def test_nan_is_the_maximum_and_also_the_minimum_if_it_is_the_only_value() -> None:
    nan = float("nan")
    assert bounds([1.0, nan, -2.0]) == (-2.0, "NaN")
    assert bounds([nan, None]) == ("NaN", "NaN")
    assert bounds([nan, 1.0], pl.Float32) == (1.0, "NaN")
    assert bounds([float("inf"), float("-inf")]) == ("-Infinity", "Infinity")


def test_bounds_of_zero_have_both_signs() -> None:
    for values in ([0.0, -0.0], [-0.0, 0.0], [0.0], [-0.0]):
        low, high = bounds(values)
        assert (low, high) == (0, 0)
        assert (str(low), str(high)) == ("-0.0", "0.0")


def test_single_precision_floats_have_their_shortest_text() -> None:
    assert bounds([0.1, 1e20], pl.Float32) == (0.1, 1e20)


def test_timestamp_minimum_is_rounded_down_and_maximum_up() -> None:
    zone = dt.UTC
    early = dt.datetime(1960, 1, 1, 0, 0, 0, 1, tzinfo=zone)
    late = dt.datetime(2024, 1, 31, 10, 20, 30, 456001, tzinfo=zone)
    assert bounds([early, late]) == ("1960-01-01T00:00:00.000Z", "2024-01-31T10:20:30.457Z")
    whole = dt.datetime(2024, 1, 31, 10, 20, 30, 456000)
    assert bounds([whole]) == ("2024-01-31T10:20:30.456", "2024-01-31T10:20:30.456")


def test_timestamps_and_dates_beyond_year_9999_have_no_maximum() -> None:
    far = pl.Series([10**18, 0]).cast(pl.Datetime("us", "UTC"))
    found = stats_of(pl.DataFrame({"c": far, "d": pl.Series([3_000_000, 0]).cast(pl.Date)}))
    assert found["minValues"] == {"c": "1970-01-01T00:00:00.000Z", "d": "1970-01-01"}
    assert found["maxValues"] == {}


def test_decimals_of_every_width_keep_their_digits() -> None:
    for precision in (5, 12, 20, 38):
        dtype = pl.Decimal(precision, 3)
        values = [Decimal("-1.250"), Decimal("0.001"), None, Decimal("12.000")]
        frame = pl.DataFrame({"c": pl.Series(values, dtype=dtype)})
        text = stats_text(struct_of(frame.schema), [frame.to_arrow()])
        assert '"minValues":{"c":-1.250}' in text, precision
        assert '"maxValues":{"c":12.000}' in text, precision


def test_booleans_binaries_lists_and_maps_have_nulls_and_no_bounds() -> None:
    frame = pl.DataFrame(
        {
            "flag": [True, None, False],
            "bin": [b"a", None, None],
            "list": [[1, None], None, []],
            "map": pl.Series([None, None, {"k": None}], dtype=pl.Map(pl.String, pl.Int64)),
        }
    )
    found = stats_of(frame)
    assert found["nullCount"] == {"flag": 1, "bin": 2, "list": 1, "map": 2}
    assert "minValues" not in found
    assert "maxValues" not in found


def test_fields_of_structs_count_the_nulls_of_their_parents() -> None:
    frame = pl.DataFrame(
        {
            "s": [
                {"a": 1, "in": {"x": "p", "l": [1]}},
                None,
                {"a": None, "in": None},
                {"a": 5, "in": {"x": None, "l": None}},
            ]
        }
    )
    found = stats_of(frame)
    assert found["minValues"] == {"s": {"a": 1, "in": {"x": "p"}}}
    assert found["maxValues"] == {"s": {"a": 5, "in": {"x": "p"}}}
    assert found["nullCount"] == {"s": {"a": 2, "in": {"x": 3, "l": 3}}}


def test_only_the_first_32_leaves_are_counted() -> None:
    frame = pl.DataFrame({"s": [{f"f{i:02}": i for i in range(30)}], "l": [[1]], "a": 1, "b": 2})
    found = stats_of(frame)
    assert list(found["nullCount"]) == ["s", "l", "a"]
    assert list(found["minValues"]) == ["s", "a"]


def test_property_limits_the_number_of_columns_with_statistics() -> None:
    frame = pl.DataFrame({"a": [1], "b": [2], "c": [3]})
    assert list(stats_of(frame, **{NUM_COLUMNS: "2"})["nullCount"]) == ["a", "b"]
    assert len(stats_of(frame, **{NUM_COLUMNS: "-1"})["nullCount"]) == 3
    assert stats_of(frame, **{NUM_COLUMNS: "0"}) == {"numRecords": 1, "tightBounds": True}


def test_property_chooses_the_columns_with_statistics() -> None:
    frame = pl.DataFrame({"a": [1], "S": [{"x": 1, "y": 2}], "o.d": ["q"], "t": [{"u": 3}]})
    found = stats_of(frame, **{COLUMNS: "s.Y, `o.d` ,t", NUM_COLUMNS: "1"})
    assert found["minValues"] == {"S": {"y": 2}, "o.d": "q", "t": {"u": 3}}


def test_property_that_is_not_a_number_raises() -> None:
    with pytest.raises(InvalidPropertyError, match="not an integer"):
        stats_of(pl.DataFrame({"a": [1]}), **{NUM_COLUMNS: "many"})


def test_texts_are_truncated_to_32_characters_and_remain_bounds() -> None:
    long = "a" * 40
    assert bounds([long]) == ("a" * 32, "a" * 32 + "\x7f")
    assert bounds(["é" * 40]) == ("é" * 32, "é" * 32 + "\U0010ffff")
    assert bounds(["a" * 32]) == ("a" * 32, "a" * 32)
    assert bounds(["", None]) == ("", "")
    top = "\U0010ffff"
    assert bounds([top * 100])[1] is None
    assert stats_of(pl.DataFrame({"c": [long]}), **{PREFIX: "3"})["maxValues"] == {"c": "aaa\x7f"}


def test_truncation_never_splits_a_character() -> None:
    text = "a" * 31 + "😀" * 10
    low, high = bounds([text])
    assert low == "a" * 31 + "😀"
    assert high == "a" * 31 + "😀" + "\U0010ffff"


@given(st.text(st.characters(codec="utf-8"), max_size=90), st.integers(1, 40))
def test_truncated_maximum_is_not_below_the_text(text: str, length: int) -> None:
    above = cut_above(text, length)
    if above is not None:
        assert above.encode() >= text.encode()
        assert len(above.encode("utf-16-le")) // 2 <= 2 * length + 4
    assert text[:length].encode() <= text.encode()


def test_texts_that_are_too_long_for_the_footer_are_bounded() -> None:
    schema = struct_of({"c": pl.String})
    groups = [pa.table({"c": values}) for values in (["b"], ["a" * 5000, "z" * 5000], ["c", None])]
    found = json.loads(stats_text(schema, groups))
    assert found["minValues"] == {"c": "a" * 32}
    assert found["maxValues"] == {"c": "z" * 32 + "\x7f"}
    assert found["nullCount"] == {"c": 1}


def test_statistics_of_row_groups_are_combined() -> None:
    schema = struct_of({"x": pl.Float64, "l": pl.List(pl.Int64), "n": pl.Int64})
    groups = [
        pa.table({"x": [1.0], "l": [[1]], "n": [None]}),
        pa.table({"x": [float("nan")], "l": [None], "n": [7]}),
        pa.table({"x": [None], "l": [[]], "n": [-7]}),
    ]
    found = json.loads(stats_text(schema, [g.cast(_nullable(schema)) for g in groups]))
    assert found["numRecords"] == 3
    assert found["minValues"] == {"x": 1.0, "n": -7}
    assert found["maxValues"] == {"x": "NaN", "n": 7}
    assert found["nullCount"] == {"x": 1, "l": 1, "n": 1}


def _nullable(schema: contract.Struct) -> pa.Schema:
    return pa.schema(list(contract.to_arrow(schema)))


def test_mapped_columns_have_their_physical_names() -> None:
    inner = contract.Field(
        "b", contract.Primitive("long"), metadata={"delta.columnMapping.physicalName": "col-2"}
    )
    outer = contract.Field(
        "a", contract.Struct((inner,)), metadata={"delta.columnMapping.physicalName": "col-1"}
    )
    table = pa.table({"a": [{"b": 4}]})
    found = json.loads(stats_text(contract.Struct((outer,)), [table], {COLUMNS: "a.b"}, "name"))
    assert found["minValues"] == {"col-1": {"col-2": 4}}


def random_frame(rng: random.Random) -> pl.DataFrame:
    """A few rows of every kind of column, including nulls."""
    count = rng.randrange(1, 12)

    def column(value: Any) -> list[Any]:
        return [None if rng.random() < 0.3 else value() for _ in range(count)]

    return pl.DataFrame(
        {
            "i": pl.Series(column(lambda: rng.randrange(-9, 9)), dtype=pl.Int32),
            "x": pl.Series(
                column(lambda: rng.choice([0.0, -0.0, 1.5, float("nan"), -3.25])), dtype=pl.Float64
            ),
            "t": pl.Series(
                column(lambda: "".join(rng.choices("aé😀\U0010ffff\x7f", k=rng.randrange(70)))),
                dtype=pl.String,
            ),
            "d": pl.Series(
                column(lambda: dt.date(1969, 1, 1) + dt.timedelta(rng.randrange(800))),
                dtype=pl.Date,
            ),
            "at": pl.Series(column(lambda: rng.randrange(-(10**12), 10**12)), dtype=pl.Int64).cast(
                pl.Datetime("us", "UTC")
            ),
            "n": pl.Series(
                column(lambda: Decimal(rng.randrange(-999, 999)) / 100), dtype=pl.Decimal(20, 2)
            ),
        }
    )


@pytest.mark.parametrize("seed", range(40))
def test_bounds_hold_for_every_row_and_nulls_are_counted(seed: int) -> None:
    frame = random_frame(random.Random(seed))
    schema = struct_of(frame.schema)
    cut = random.Random(seed).randrange(1, frame.height + 1)
    parts = [part.to_arrow() for part in (frame[:cut], frame[cut:]) if part.height]
    typed = stats_from_json(pl.Series([stats_text(schema, parts)]), schema)
    low, high = typed["min"].struct.unnest(), typed["max"].struct.unnest()
    assert typed["nullCount"].struct.unnest().row(0) == frame.null_count().row(0)
    for name in frame.columns:
        values = frame[name].drop_nulls()
        if name == "x":
            values = values.filter(values.is_not_nan())
        if not values.len():
            continue
        assert low[name].null_count() == 0, name
        assert (values >= low[name][0]).all(), name
        if high[name].null_count():
            # No text is above it, or the maximum is NaN, by which no reader skips a file.
            assert name == "t" or (name == "x" and frame["x"].is_nan().any())
            continue
        above = high[name][0]
        assert (values <= above).all(), name


def test_columns_named_like_patterns_have_their_own_statistics(tmp_path: Path) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"*": [1], "^a$": [20], "a": [300]}))
    table = lakelog.open(tmp_path, upkeep=False)
    table.append(pl.DataFrame({"*": [4], "^a$": [500], "a": [60]}))
    table.checkpoint()
    assert table.verify().verdict == "proved"
    table = lakelog.open(tmp_path, upkeep=False)
    assert table.to_arrow().sort_by("a").to_pydict() == {
        "*": [4, 1],
        "^a$": [500, 20],
        "a": [60, 300],
    }
    assert table.snapshot().files("a > 100").collect().height == 1
    assert table.to_arrow("a > 100")["^a$"].to_pylist() == [20]
    for where in ('"*" = 1', "`^a$` = 20"):
        assert table.to_arrow(where)["a"].to_pylist() == [300]
