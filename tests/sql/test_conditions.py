"""Conditions as SQL text: parsed with the schema's types, and written for commitInfo."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from decimal import Decimal
from functools import reduce
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lakelog
from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.sql.condition import condition
from lakelog.sql.sql_text import sql_text
from lakelog.transaction.schema_conversion import struct_of

n, f, s, b, day, at, local = map(pl.col, ("n", "f", "s", "b", "day", "at", "local"))
ROWS = pl.DataFrame(
    {
        "n": [0, 1, 2, 3, -7, None],
        "f": [0.0, 1.5, float("nan"), float("inf"), -1e300, None],
        "s": ["", "a", "eu", "it", "A", None],
        "b": [True, False, None, True, False, None],
        "day": [dt.date(2026, 1, 1 + k) for k in range(5)] + [None],
        "at": [dt.datetime(2026, 1, 1, k, 0, 0, k) for k in range(5)] + [None],
    }
).with_columns(pl.col("at").dt.replace_time_zone("UTC"), local=pl.col("at"))
SCHEMA = struct_of(ROWS.schema)
TIME = pl.Datetime("us", "UTC")
NOW_US = int(dt.datetime(2026, 1, 1, 10, 30, tzinfo=dt.UTC).timestamp() * 1e6)

WRITTEN = {
    "(`n` = 1)": n == 1,
    "(`f` > 1.5E0)": f > 1.5,
    "(`f` = CAST('NaN' AS DOUBLE))": f.is_nan(),
    "(`f` < CAST('-Infinity' AS DOUBLE))": f < float("-inf"),
    r"(NOT (`s` = 'it\'s a \\'))": ~(s == "it's a \\"),
    "(`a ``b` <=> NULL)": pl.col("a `b").eq_missing(None),
    "(NOT (`n` <=> 1))": n.ne_missing(1),
    "(`n` IN (1, 2))": n.is_in([1, 2, None]),
    "((`n` IN (1)) OR (`n` IS NULL))": n.is_in([1, None], nulls_equal=True),
    "((`n` IS NOT NULL) AND (`n` IN (1)))": n.is_in([1], nulls_equal=True),
    "((`n` >= 1) AND (`n` < 3))": n.is_between(1, 3, closed="left"),
    "(`day` >= DATE '2026-01-02')": day >= dt.date(2026, 1, 2),
    "(`at` < TIMESTAMP '2026-01-01 02:00:00.000500+00:00')": at
    < dt.datetime(2026, 1, 1, 2, 0, 0, 500, dt.UTC),
    "(`local` < TIMESTAMP_NTZ '2026-01-01 02:00:00')": local < dt.datetime(2026, 1, 1, 2),
    r"(`s` LIKE '50\\%\\_\\\\%')": s.str.starts_with("50%_\\"),
    "(`s` LIKE '%x%')": s.str.contains("x", literal=True),
    "(`x`.`y z` = 1.50)": pl.col("x").struct.field("y z") == Decimal("1.50"),
    "(`x` = X'00FF')": pl.col("x") == b"\x00\xff",
    "(PMOD(`n`, 3) = 1)": n % 3 == 1,
    "(CAST(`n` AS SMALLINT) = (- `n`))": n.cast(pl.Int16) == -n,
    "(NOT COALESCE(`b`, false))": b.fill_null(value=False).not_(),
    "(CASE WHEN (`n` > 1) THEN `b` ELSE NULL END)": pl.when(n > 1).then(b).otherwise(None),
    "(`b` OR (YEAR(`day`) = 2024))": pl.any_horizontal("b", day.dt.year() == 2024),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_expression_is_written_as_sql_that_spark_parses(text: str) -> None:
    assert sql_text(WRITTEN[text]) == text


@pytest.mark.parametrize(
    "where",
    [
        n.map_batches(lambda values: values == 1, return_dtype=pl.Boolean),
        s.str.contains("a.c"),
        n // 2 == 1,
        n % -3 == 1,
        at > pl.lit(1, dtype=pl.Datetime("ns", "UTC")),
        pl.col("d") == dt.timedelta(days=1),
        n.is_in([]),
        n.is_in(range(1001)),
    ],
)
def test_expression_without_sql_counterpart_returns_none(where: pl.Expr) -> None:
    assert sql_text(where) is None


def test_sql_text_is_kept_with_its_names_in_backquotes() -> None:
    assert sql_text("region='eu'  and day > '2026-01-01'") == "region='eu'  and day > '2026-01-01'"
    assert sql_text("n > 5L AND 1.5BD < n+2Y") == "n > 5L AND 1.5BD < n+2Y"
    assert sql_text("s = 'it''s \\'") == r"s = 'it\'s \\'"
    assert sql_text('"re`g""n" = \'"eu"\'') == '`re``g"n` = \'"eu"\''
    text = '/* it\'s "q" */ "n" = 1 -- don\'t "q"'
    assert sql_text(text) == text.replace('"n"', "`n`")
    assert sql_text("\"at\" < TIMESTAMP_NTZ '2026-01-01'") == "`at` < TIMESTAMP_NTZ '2026-01-01'"


@pytest.mark.parametrize("text", ["1", "n", "n + 1", "s", "day"])
def test_condition_that_is_not_boolean_raises(text: str) -> None:
    with pytest.raises(InvalidInputError, match="where must be a condition"):
        condition(text, SCHEMA, NOW_US)


@pytest.mark.parametrize(
    "text",
    [
        "b IS NOT TRUE",
        "NOT b IS FALSE",
        "n = 1 IS NOT TRUE AND s IS NOT NULL",
        "b IS DISTINCT FROM true AND n > 0",
        "n > 0 OR b IS NOT DISTINCT FROM NULL OR n = 0",
        "n IS DISTINCT FROM 1 AND b",
        "(b IS DISTINCT FROM (n > 0)) OR s = 'a IS TRUE or'",
        "n IS DISTINCT FROM CASE WHEN b AND n = 0 THEN 0 END AND b IS NOT NULL",
        "CASE WHEN n IS DISTINCT FROM 1 THEN b ELSE b AND n = 1 END",
        "n NOT IN (1, NULL)",
    ],
)
def test_null_is_compared_as_in_sql(text: str) -> None:
    where = condition(text, SCHEMA, NOW_US)
    assert where is not None
    with duckdb.connect() as connection:
        rows = connection.register("rows", ROWS.to_arrow())
        expected = rows.sql(f"SELECT n, s, b FROM rows WHERE {text}").fetchall()
    assert ROWS.filter(where).select("n", "s", "b").rows() == expected


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("LENGTH(s) - 3 > 0", [1]),
        ("-LENGTH(s) < 0", [0, 1]),
        ("MONTH(day) * 100 + DAY(day) = 1231", [0]),
        ('EXTRACT(day FROM day) - "day\'s" = 30', [0, 2]),
        ("small * 2 > 150 AND day > '2025-01-01'", [0]),
        ("- (small) > 100", [1]),
        ("small * small = 10000", [0]),
        ("t.small * 3 > 128 OR small + `t`.small < -128", [0, 1]),
        ("CAST(small AS INT) + big > 0", [0, 2]),
        ("small::bigint + 100 > 128", [0]),
        ("EXTRACT(epoch FROM CAST(day AS TIMESTAMP)) + 0.5 > 0", [0, 1]),
        ("CASE WHEN POSITION('b' IN s) - 2 < 0 THEN small + 1 > 100 ELSE true END", [0, 1, 3]),
        ("big * 2 > 0", [0, 2]),
        ("small IN (100) AND 1 - small < 0", [0]),
        ("t.`small` * 3 > 128", [0]),
        ('"small" * 2 > 150', [0]),
        ("CAST(small AS TINYINT) * 100 = 10000", [0]),
        ("small::INT * 100000000 > 2147483647", [0]),
        ("(CASE WHEN small > 0 THEN small ELSE 0 END) * 2 > 150 /* small - 1 */", [0]),
        ("2 * -(small - 1) > 250", [1]),
        ("100000 * 100000 = 10000000000 AND small > 1", [0]),
        ("ABS(small) > 100", [1]),
        ("POWER(small - 1, 3) + 1 < -1000000 OR pow(0 - small, 2) = 10000", [0, 1]),
        ("abs (t.small) = 128 OR ABS(small - 1) = 0", [1, 2]),
    ],
)
def test_arithmetic_of_whole_numbers_does_not_wrap_around(text: str, matching: list[int]) -> None:
    rows = pl.DataFrame(
        {
            "small": pl.Series([100, -128, 1, None], dtype=pl.Int8),
            "big": [2**62, -(2**62), 5, None],
            "s": ["a", "abcd", "", None],
            "day": [dt.date(2026, 12, 31), dt.date(2024, 1, 1), dt.date(1969, 1, 31), None],
            "day's": pl.Series([1, 1, 1, 1], dtype=pl.Int16),
        }
    ).with_columns(t=pl.struct("small"))
    where = condition(text, struct_of(rows.schema), NOW_US)
    assert where is not None
    assert rows.with_row_index().filter(where)["index"].to_list() == matching


@pytest.mark.parametrize("divisor", [1, -1, 3, -7, 300, 2**63 - 1, 1 - 2**63])
def test_rest_has_the_sign_of_the_dividend(divisor: int) -> None:
    numbers = [0, 1, -1, 99, -100, 2**63 - 1, -(2**63), None]
    rows = pl.DataFrame({"big": numbers, "n": range(8)}).with_columns(
        small=pl.col("n").cast(pl.Int8) - 4
    )
    for name in ("big", "small"):
        rests = [v and abs(v) % abs(divisor) * (1 if v > 0 else -1) for v in rows[name]]
        for number, rest in enumerate(rests):
            text = f"n = {number} AND {name} % {divisor} IS NOT DISTINCT FROM {rest or 0}"
            where = condition(text, struct_of(rows.schema), NOW_US)
            assert where is not None
            assert rows.filter(where)["n"].to_list() == ([] if rest is None else [number])


@pytest.mark.parametrize("part", [".", "(", "^a$", "a|b", "\\", "[x]", "''", "b"])
def test_strpos_searches_for_a_text_and_not_for_a_pattern(part: str) -> None:
    rows = pl.DataFrame({"s": ["a.b", "(x)", "^a$", "a|b", "a\\b", "[x]", "'", "", "x", None]})
    text = part.replace("''", "'")
    expected = [s for s in rows["s"].drop_nulls() if text in s]
    for sql in (f"STRPOS(s, '{part}') > 0", f"position('{part}' in s) - 1 >= 0"):
        where = condition(sql, struct_of(rows.schema), NOW_US)
        assert where is not None
        assert rows.filter(where)["s"].to_list() == expected
    with pytest.raises(InvalidInputError, match="not a literal"):
        condition("STRPOS('a.b', s) > 0", struct_of(rows.schema), NOW_US)


_numbers = st.sampled_from([n, n + 1, n * 2, -n, n.abs()])
_atoms = st.one_of(
    st.builds(lambda a, k: a > k, _numbers, st.integers(-8, 8)),
    st.builds(lambda a, k: a != k, _numbers, st.integers(-8, 8)),
    st.builds(lambda a, k: a.eq_missing(k), _numbers, st.none() | st.integers(-8, 3)),
    st.builds(n.is_in, st.lists(st.none() | st.integers(-8, 3), min_size=1).filter(any)),
    st.builds(lambda k: f <= k, st.floats()),
    st.builds(lambda k: s >= k, st.text(st.sampled_from("aeiu'"), max_size=3).map(str.strip)),
    st.builds(s.str.starts_with, st.text(st.sampled_from("aeiu"), max_size=2)),
    st.builds(lambda k: day < k, st.dates(dt.date(2025, 12, 30), dt.date(2026, 1, 7))),
    st.builds(lambda k: at > k, st.datetimes(timezones=st.just(dt.UTC))),
    st.builds(lambda k: local > k, st.datetimes()),
    st.sampled_from([b, b.is_null(), s.is_not_null(), f.is_not_nan(), b.fill_null(value=True)]),
)
_conditions = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds(lambda x: ~x, inner),
        st.builds(lambda x, y: x & y, inner, inner),
        st.builds(lambda x, y: x | y, inner, inner),
        st.builds(lambda xs: reduce(pl.any_horizontal, xs), st.lists(inner, min_size=1)),
    ),
    max_leaves=6,
)


@given(_conditions)
def test_sql_of_an_expression_parses_to_the_same_condition(where: pl.Expr) -> None:
    text = sql_text(where)
    assert text is not None
    # The parser reads '' as a quote inside a string literal, where Spark reads \\'.
    again = condition(text.replace("\\'", "''"), SCHEMA, NOW_US)
    assert again is not None
    assert ROWS.filter(again).equals(ROWS.filter(where)), text


def test_every_call_with_a_condition_accepts_sql_text(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", ROWS.schema, partition_by=["day"])
    table.append(ROWS)
    snapshot, text, where = table.snapshot(), "day = '2026-01-02'", day == dt.date(2026, 1, 2)

    def height(frame: pl.LazyFrame) -> int:
        return frame.collect().height

    assert height(snapshot.files(text)) == height(snapshot.files(where)) == 1
    assert height(snapshot.scan(text)) == height(snapshot.scan(where)) == 1
    assert snapshot.plan(text).commits == snapshot.plan(where).commits
    with table.transaction() as tx:
        assert height(tx.read(text)) == 1
    assert table.overwrite(ROWS.filter(where), text).num_removed_files == 1
    (log,) = (tmp_path / "t" / "_delta_log").glob("*02.json")
    assert f'"predicate":"{text}"' in log.read_text()


@pytest.mark.parametrize("text", ["nothing = 1", "n +", "n", "1", "2.5", "'x'", "sum(n) > 1"])
def test_sql_text_that_is_not_a_valid_condition_raises(tmp_path: Path, text: str) -> None:
    table = lakelog.create(tmp_path / "t", ROWS.schema)
    table.append(ROWS)
    for call in (table.snapshot().files, table.snapshot().plan, table.snapshot().scan):
        with pytest.raises(InvalidInputError):
            call(text)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("day = 5", "a comparison of date with int"),
        ("day - DATE '2026-01-01' > 5", "date - date"),
        ("n = DATE '2026-01-01'", "a comparison of bigint with date"),
        ("s < 1.5", r"a comparison of string with decimal\(2,1\)"),
        ("st = 1", "a comparison of struct with int"),
        ("b = 1", "a comparison of boolean with int"),
        ("n = 'x'", "the string 'x' as bigint"),
        (pl.col("x") == "1.5", "compares values of different kinds"),
        (~(pl.col("day") == 5), "compares values of different kinds"),
    ],
)
def test_comparison_of_values_of_different_kinds_raises(
    tmp_path: Path, where: str | pl.Expr, message: str
) -> None:
    table = lakelog.create(
        tmp_path, ROWS.schema | {"x": pl.Decimal(10, 2), "st": pl.Struct({"a": pl.Int64})}
    )
    with pytest.raises(InvalidInputError, match=message):
        table.to_polars(where)


def test_condition_that_polars_simplifies_to_a_literal_holds_for_every_row(tmp_path: Path) -> None:
    lakelog.write(tmp_path / "t", ROWS)
    table = lakelog.open(tmp_path / "t")
    for where in ("COALESCE('a', s) < 'b'", pl.coalesce(pl.lit("a"), s) < "b"):
        assert table.to_polars(where).height == ROWS.height
        assert table.delete(~pl.coalesce(pl.lit("a"), s).eq("a")).version is None


def test_literal_is_compared_as_text_with_a_string_column() -> None:
    rows = pl.DataFrame({"s": ["20260101", "7", "true"], "b": [True, False, None]})
    for text, found in {
        "s = 20260101": ["20260101"],
        "s IN (7)": ["7"],
        "s = true": ["true"],
        "b = 'true'": ["20260101"],
    }.items():
        where = condition(text, struct_of(rows.schema), NOW_US)
        assert where is not None
        assert rows.filter(where)["s"].to_list() == found


ODD = pl.DataFrame(
    {
        "id": [1, 2, 3],
        "n": [1, 0, None],
        "s": ["a_b", "7", None],
        "f32": pl.Series([0.1, 0.5, None], dtype=pl.Float32),
        "price": pl.Series([Decimal("1.50"), Decimal("2.00"), None], dtype=pl.Decimal(10, 2)),
        "at": pl.Series([dt.datetime(2026, 1, 1, 10), None, dt.datetime(2026, 1, 3)], dtype=TIME),
        "tags": [["x", "y"], [], None],
        "bin": [b"a", b"\x00\xff", None],
        "st": [{"X": 1}, {"X": None}, None],
        "Two Words": [1, 2, 3],
        "huge": [3 * 10**18, 0, None],
    }
)


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("n <> 0 AND 10 / n > 5", [1]),
        ("n = 0 OR 10 / n > 5", [1, 2]),
        ("CASE WHEN n = 0 THEN true ELSE 10 % n = 0 END", [1, 2]),
        ("COALESCE(n, CAST(s AS INT)) = 1", [1]),
        ("10 / NULLIF(n, 0) > 5", [1]),
        ("TRY_CAST(s AS INT) = 7", [2]),
        ("s LIKE 'a\\_%' AND NOT s LIKE 'a\\%'", [1]),
        ("s LIKE 'a!_b' ESCAPE '!'", [1]),
        ("s NOT LIKE 'a%'", [2]),
        ("s ILIKE 'A%' OR s RLIKE '^[0-9]$'", [1, 2]),
        ("huge * huge > 1 AND huge * 2 + huge > 1", [1]),
        ("reverse(concat('e\u0301', n)) = concat(n, '\u0301e')", [1, 2]),
        ("concat(f32, ' ', n = 1, ' ', n * 1e10) = f32 || ' true 1.0E10'", [1]),
        ("TRY_CAST(concat('\t', n, '\r\n') AS BIGINT) = n", [1, 2]),
        ("TRY_CAST(concat('\n1.', n, '\t') AS DOUBLE) = 1.1", [1]),
        ("TRY_CAST(concat('\u00a0', n) AS BIGINT) = n", []),
        ("TRY_CAST(concat(n, ' apples') AS DOUBLE) IS NULL AND n = 1", [1]),
        ("TRY_CAST(concat(n, '.') AS DOUBLE) = 1 OR TRY_CAST(concat('.', n) AS FLOAT) = 0", [1, 2]),
        ("f32 = 0.1", []),
        ("f32 = CAST(0.1 AS FLOAT) OR f32 = '0.5'", [1, 2]),
        ("price IN (1.5, 7) OR price = '2'", [1, 2]),
        ("price / 3 = 0.5 OR price * 1.5 = 3", [1, 2]),
        ("price % 0.4 = 0.3 OR floor(price) = 2 OR ceil(price) = 2", [1, 2]),
        ("CAST(round(price, 1) AS STRING) = '1.5' OR round(f32 + 0.005D, 2) = 0.11", [1]),
        ("coalesce(f32, 0) = 0 OR greatest(f32, 0.2) = 0.5", [2, 3]),
        ("lpad(s, 5, 'xy') = 'xya_b' OR rpad(s, 4, 'xy') = '7xyx'", [1, 2]),
        ("round(price, 1) = 1.5 AND sqrt(price * 6) = 3", [1]),
        ("at = '2026-01-01T10:00:00Z' OR at > TIMESTAMP_NTZ '2026-01-02'", [1, 3]),
        ("at = '2026-01-01 12:00+02:00'", [1]),
        ("'2026-01-02' < at AND '2026-01-02' < DATE(at)", [3]),
        ("tags[1] = 'y' OR array_contains(tags, 'x')", [1]),
        ("size(tags) = 0", [2]),
        ("bin = 'a' OR bin = X'00FF'", [1, 2]),
        ("bin = X'0FF'", [2]),
        ("ST.x IS NULL AND st IS NOT NULL", [2]),
        ('"Two Words" < 2 OR `two words` = 3', [1, 3]),
        ("n BETWEEN 0 AND NULL OR id = 3", [3]),
        ("NULL LIKE 'a' OR id = 3", [3]),
        ("at <= current_timestamp() - INTERVAL 30 MINUTES OR at > now() + INTERVAL 1 DAY", [1, 3]),
        ("DATE(at) = current_date", [1]),
        ("NULL", []),
        ("CAST(price * 1.5 AS DECIMAL(10,1)) = 2.3", [1]),
        ("TRY_CAST(concat(n, '.445') AS DECIMAL(10,2)) = 1.45", [1]),
        ("CAST(CAST(concat(n, '.125') AS DOUBLE) AS DECIMAL(10,2)) = 1.13", [1]),
        ("(price + 1) / 64 = 0.039063", [1]),
        ("CAST(concat(n, '0000000000000000002.5') AS DECIMAL(20,0)) = 10000000000000000003", [1]),
        ("CAST(concat(n, '{0}2.5') AS DECIMAL(38,0)) = 1{0}3".format("0" * 36), [1]),
        ("CAST(CAST(concat(n, '.125') AS DOUBLE) AS DECIMAL(38,2)) = 1.13", [1]),
        ("CAST(price AS DECIMAL(38,18)) * CAST(price * 10 AS DECIMAL(38,18)) = 22.5", [1]),
        ("price > -1.2345678901234567890123456789", [1, 2]),
        ("ln(n) IS NULL AND n IS NOT NULL", [2]),
        ("CAST(id AS DOUBLE) % 2 = 1", [1, 3]),
        ("initcap(s) = 'A_b' AND initcap('a-b cD') = 'A-b Cd'", [1]),
        ("EXTRACT(SECOND FROM at + INTERVAL 500 MILLISECONDS) = 0.5", [1, 3]),
        ("EXTRACT(week FROM at) = 1 AND date_part('dow', at) = 5", [1]),
        ("TRY_CAST('x' AS INT) IS NULL AND TRY_CAST('2026-02-30' AS DATE) IS NULL AND n = 1", [1]),
        (
            "TRY_CAST(concat('2026-01-0', n, 'T10:00:00+02:00') AS TIMESTAMP) = '2026-01-01 08:00'",
            [1],
        ),
        ("TRY_CAST(concat('12:30:0', id) AS TIMESTAMP_NTZ) IS NULL AND n = 1", [1]),
        ("trim(BOTH 'ab' FROM s) = '_' OR trim(TRAILING '7' FROM s) = ''", [1, 2]),
        ("trim(LEADING 'a' FROM concat(s, 'a')) = '_ba' AND trim(concat(' ', s, ' ')) = s", [1]),
        ("trim('' FROM s) = s AND ltrim(concat(' ', s)) = s", [1, 2]),
        ("position('_' IN (s || 'x')) = 2 OR position('x' IN ('a' || s || 'x')) = 3", [1, 2]),
        ("DATE(at) > '2026-1-2' AND DATE(at) > '2026' AND DATE(at) < DATE '2026-1-4'", [3]),
        ("NOT array_contains(tags, 'z')", [1, 2]),
        (" OR ".join(f"id = {k}" for k in range(3, 300)), [3]),
        (f"id IN ({', '.join(map(str, range(2, 3000)))}, NULL)", [2, 3]),
    ],
)
def test_condition_has_the_meaning_of_spark_sql(text: str, matching: list[int]) -> None:
    where = condition(text, struct_of(ODD.schema), NOW_US)
    assert where is not None
    assert ODD.filter(where)["id"].to_list() == matching


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10 / n > 5", "a division by zero"),
        ("CAST(s AS INT) = 7", "a string that cannot be cast to int"),
        ("n = 1; DROP TABLE t", "text that cannot be parsed"),
        ("n > 1) OR (1 = 1", "text that cannot be parsed"),
        ("DATE(at) > 'tomorrow'", "the string 'tomorrow' as date"),
        ("n IN (SELECT 1)", "evaluated: n IN"),
        ("n = = 1", "text that cannot be parsed, at line 1, column 5"),
        ("s LIKE 'a\\'", "has to be before %, _ or another"),
        ("s LIKE 'a' ESCAPE '!!'", "the escape character '!!'"),
        ("st.nothing = 1", "no column st.nothing"),
        ("n % 0 = 1", "a division by zero"),
        ("ltrim(s, 'a') = ''", "ltrim with 2 arguments"),
        ("CAST(s AS VARCHAR(3)) = 'a'", "the type varchar"),
        ("CAST(s AS STRING COLLATE UTF8_LCASE) = 'A_B'", "the type STRING COLLATE UTF8_LCASE"),
        ("s = 7.0", r"a comparison of string with decimal\(2,1\)"),
        ("s LIKE 'a' ESCAPE ''", "the escape character ''"),
        ("s LIKE 'a\\_\\b'", "has to be before %, _ or another"),
        ("s RLIKE '('", r"the regular expression '\('"),
        *[
            (f"s RLIKE '{pattern}'", "may match other texts than in Spark")
            for pattern in (
                *(
                    "a++",
                    "(?m)^a",
                    "a$b",
                    "[[:alpha:]]",
                    "[a--b]",
                    "[a&&[b]]",
                    r"a$|a\z",
                    "(a$)\n",
                    "(a$|b)c",
                    "a{2}{3}",
                    "(?i)[^k]",
                    r"\Qa",
                    r"\p{Lower}",
                ),
                *(
                    r"[^\D]",
                    r"\b{start}",
                    r"[\n-\s]",
                    "(?i)é",
                    r"(?i)\xe9",
                    r"(?i)\u00e9",
                    "(?=a)",
                    "[]a]",
                ),
            )
        ],
        ("huge * huge > 0.5", "an overflow of decimal"),
        ("CAST(huge AS DECIMAL(38,0)) > price", "whose common type has over 38 digits"),
        ("huge * huge * huge > 0", "an overflow of a whole number"),
        *[
            (f"TRY_CAST(concat({text}) AS DOUBLE) IS NULL", "may be a number to Spark")
            for text in ("n, 'd'", "'-.', n, 'e1F'", "'0x', n, 'p3'")
        ],
        ("huge * huge * huge < 0 OR n = 1", "an overflow of a whole number"),
        ("timestamp_seconds(huge * huge) > '2026-01-01'", "an overflow of bigint"),
        ("n < 1e400", "the number 1e400"),
        ("EXTRACT(upper FROM s) = 'A'", "the part upper of a time"),
        ("CAST(n AS DOUBLE) % 3 = 1", "a value other than 1, 2, 4"),
        ("CAST(n AS DOUBLE) % 0.25D = 0", "a value other than 1, 2, 4"),
        ("CAST(n * 5e-324 AS STRING) IS NULL", "so near to 0 that Java writes other digits"),
        ("TRY_CAST(n * 5e-324 AS STRING) IS NULL", "so near to 0 that Java writes other digits"),
        *[
            (f"TRY_CAST(concat({text}) IS NULL", "may be a date or a time to Spark")
            for text in ("'2026-1-', id) AS DATE", "'T12:30:0', id) AS TIMESTAMP")
        ],
        ("TRY_CAST(concat('0000-01-0', id) AS DATE) IS NULL", "may be a date or a time to Spark"),
        ("nothing = 1", "SQL text uses a column that the table does not have"),
        ("(" * 500 + "n = 1" + ")" * 500, "text that is nested too deeply"),
        (f"n = {' + '.join('1' * 3000)}", "text that is nested too deeply"),
        ("at < timestamp_micros(9223372036854775807)", "a year beyond 1 to 9999"),
        ("at > TIMESTAMP '9999-12-31' + INTERVAL 1 DAY", "a year beyond 1 to 9999"),
    ],
)
def test_condition_that_cannot_be_computed_is_refused_with_the_part(
    tmp_path: Path, text: str, message: str
) -> None:
    lakelog.write(tmp_path / "t", ODD.drop("Two Words"))
    with pytest.raises(InvalidInputError, match=message):
        lakelog.open(tmp_path / "t").to_polars(text)


def test_overflows_of_decimals_are_errors_only_where_the_value_is_used(tmp_path: Path) -> None:
    number = pl.Decimal(38, 2)
    wide = [Decimal("9" * 36 + ".99"), Decimal("3.00"), None]
    lakelog.write(
        tmp_path / "t", pl.DataFrame({"id": [1, 2, 3], "d": wide}, {"id": pl.Int64, "d": number})
    )
    table = lakelog.open(tmp_path / "t")
    for text, found in {
        "id = 2 AND d + d = 6": [2],
        "CASE WHEN id = 2 THEN d * d > 8 ELSE d IS NULL END": [2, 3],
        "id > 1 AND d - (-1 * d) = 6": [2],
        "d + 0 > 10": [1],
        "d - d = 0": [1, 2],
        "COALESCE(d - 1, d + d + d) > 5": [1],
    }.items():
        assert table.to_polars(text)["id"].to_list() == found, text
    for text in ("d + d > 0", "d + 1 > 0", "d - (-1 * d) > 0", "d * d > 0"):
        with pytest.raises(InvalidInputError, match=r"an overflow of decimal\(38,2\)"):
            table.to_polars(text)


LITERALS = ["0", "0.5", "-0.5", "1.0", "10.50", "-5", "9" * 38, "-0." + "9" * 38, "1." + "0" * 37]


@pytest.mark.parametrize("scale", [0, 2, 19, 38])
@pytest.mark.parametrize("literal", LITERALS)
def test_decimals_of_38_digits_are_compared_exactly_with_literals(literal: str, scale: int) -> None:
    most = Decimal("9" * 38).scaleb(-scale, decimal.Context(prec=38))
    step, other = Decimal(1).scaleb(-scale), Decimal(literal)
    values = [most, most.copy_negate(), Decimal(0), step, -step, min(Decimal(1), most)]
    rows = pl.DataFrame({"x": [*values, None]}, {"x": pl.Decimal(38, scale)}).with_row_index("k")
    for text, found in {
        f"x = {literal}": [v == other for v in values],
        f"NOT x <> {literal}": [v == other for v in values],
        f"x IS DISTINCT FROM {literal}": [*(v != other for v in values), True],
        f"x < {literal}": [v < other for v in values],
        f"{literal} >= x": [v <= other for v in values],
        f"x > {literal}": [v > other for v in values],
        f"NOT {literal} > x": [v >= other for v in values],
        f"x BETWEEN {literal} AND 3.25": [other <= v <= Decimal("3.25") for v in values],
        f"x IN (7, {literal}, 0.25)": [v in {other, 7, Decimal("0.25")} for v in values],
        f"NULLIF(x, {literal}) IS NULL": [*(v == other for v in values), True],
    }.items():
        where = condition(text, struct_of(rows.schema), NOW_US)
        assert where is not None
        assert rows.filter(where)["k"].to_list() == [k for k, hit in enumerate(found) if hit], text


TINY = pl.DataFrame(
    {"id": [1, 2, 3], "a": ["0.0000001", "1.5", None], "b": ["0.0000001", "-64", "0"]}
).with_columns(pl.col("a", "b").cast(pl.Decimal(38, 18)))


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("a / b = 1", [1]),
        ("a / b = -0.023438", [2]),  # the half of the last place is rounded away from zero
        ("id = 1 AND a * 0.000000000005 = 0.000000000000000001", [1]),
        ("id = 1 AND a * -0.000000000005 = -0.000000000000000001", [1]),
    ],
)
def test_arithmetic_of_decimals_rounds_the_exact_result(text: str, matching: list[int]) -> None:
    where = condition(text, struct_of(TINY.schema), NOW_US)
    assert where is not None
    assert TINY.filter(where)["id"].to_list() == matching


@pytest.mark.parametrize(("precision", "scale"), [(38, 38), (38, 3), (38, 19), (10, 2)])
def test_decimals_are_rounded_up_to_38_digits(tmp_path: Path, precision: int, scale: int) -> None:
    context = decimal.Context(prec=76)
    most = Decimal("9" * precision).scaleb(-scale, context)
    values = [most, most.copy_negate(), Decimal(0), *(Decimal(k).scaleb(-scale) for k in (5, -15))]
    rows = pl.DataFrame({"x": values}, {"x": pl.Decimal(precision, scale)}).with_row_index("k")
    lakelog.write(tmp_path, rows)
    for text, places, rounding in (
        ("round(x, 2)", 2, decimal.ROUND_HALF_UP),
        ("CAST(x AS DECIMAL(38, 1))", 1, decimal.ROUND_HALF_UP),
        ("floor(x)", 0, decimal.ROUND_FLOOR),
        ("ceil(x)", 0, decimal.ROUND_CEILING),
    ):
        step = Decimal(1).scaleb(-places)
        for k, value in enumerate(values):
            found = value.quantize(step, rounding=rounding, context=context)
            if len(found.as_tuple().digits) <= 38:
                where = f"k = {k} AND {text} = {found}"
                assert lakelog.open(tmp_path).to_polars(where).height == 1, where


def test_decimals_whose_quotient_needs_more_digits_are_refused(tmp_path: Path) -> None:
    rows = pl.DataFrame({"a": ["90000000000000000000", "1"], "b": ["3", "7"]})
    lakelog.write(tmp_path / "t", rows.cast(pl.Decimal(38, 18)))
    table = lakelog.open(tmp_path / "t")
    with pytest.raises(InvalidInputError, match="dividend has over 38 digits"):
        table.to_polars("a / b > 1")
    assert table.to_polars("a < 2 AND a / b > 0.1").height == 1


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Float64, pl.Decimal(10, 2)])
def test_null_divided_by_zero_is_null(dtype: pl.DataType) -> None:
    rows = pl.DataFrame({"a": [None, 4], "b": [0, 2]}, schema={"a": dtype, "b": dtype})
    texts = ["a / b = 2", "a % 2 = 0"]
    texts += ["a % b = 0"] * (dtype != pl.Float64) + ["a DIV b = 2"] * (dtype == pl.Int64)
    for text in texts:
        where = condition(text, struct_of(rows.schema), NOW_US)
        assert where is not None
        assert rows.filter(where).height == 1


def _as_in_java(number: float, text: str) -> str:
    """The text of a float in Java, from its fewest digits in Python."""
    if not math.isfinite(number) or number == 0:
        return text.replace("inf", "Infinity").replace("nan", "NaN")
    sign, digits, _ = Decimal(text).as_tuple()
    shown = "".join(map(str, digits)).rstrip("0")
    exponent = Decimal(text).adjusted()
    if -3 <= exponent < 7:
        plain = format(Decimal(text), "f")
        return plain if "." in plain else f"{plain}.0"
    return f"{'-' * sign}{shown[0]}.{shown[1:] or '0'}E{exponent}"


@given(st.floats(), st.floats(width=32))
@example(12345678.0, 1e-5)
@example(9999999.999999998, 0.0009999999310821295)
@example(-1e23, -0.0)
def test_floats_have_the_text_of_java(double: float, single: float) -> None:
    short = str(np.float32(single))
    rows = pl.DataFrame(
        {
            "f": double,
            "g": pl.Series([single], dtype=pl.Float32),
            "f_text": _as_in_java(double, repr(double)),
            "g_text": _as_in_java(single, short),
        }
    )
    for name, number, least in (("f", double, 1e-321), ("g", single, 1e-42)):
        if number != 0 and abs(number) < least:
            continue
        for cast in ("CAST", "TRY_CAST"):
            text = f"{name}_text = {cast}({name} AS STRING)"
            where = condition(text, struct_of(rows.schema), NOW_US)
            assert where is not None
            assert rows.filter(where).height == 1, rows


def test_try_cast_of_floats_to_text_loses_no_value(tmp_path: Path) -> None:
    days = [dt.date(1, 1, 1), dt.date(2026, 1, 1)]
    lakelog.write(tmp_path, pl.DataFrame({"g": [12345678.0, 1e-5], "s": ["", ""], "day": days}))
    table = lakelog.open(tmp_path)
    table.update({"s": "TRY_CAST(g AS STRING)"})
    assert table.to_polars()["s"].to_list() == ["1.2345678E7", "1.0E-5"]
    later = "TRY_CAST(date_add(day, 4000000) AS STRING)"
    assert table.to_polars(f"{later} IN ('+10952-08-18', '+12977-08-18')").height == 2
    assert table.delete(f"TRY_CAST(g AS STRING) IS NULL OR {later} IS NULL").num_deleted_rows == 0


FAR = pl.DataFrame(
    {"id": [1, 2], "day": [100_000_000, 0], "at": [2**63 - 1, 0], "utc": [-(2**63), 0]}
).with_columns(
    pl.col("day").cast(pl.Int32).cast(pl.Date),
    pl.col("at").cast(pl.Datetime("us")),
    pl.col("utc").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"),
)


@pytest.mark.parametrize(
    "value",
    [
        *[f"{part}(day)" for part in ("year", "quarter", "dayofyear", "weekofyear", "last_day")],
        *["month(at)", "hour(at)", "second(utc)", "EXTRACT(SECOND FROM at)", "hour(day)"],
        *["date_trunc('YEAR', at)", "date_trunc('HOUR', utc)", "trunc(day, 'MONTH')"],
        *["CAST(day AS STRING)", "TRY_CAST(at AS STRING)", "concat(utc, '')"],
        *["date_format(at, 'yyyy')", "from_unixtime(unix_seconds(utc))", "CAST(day AS TIMESTAMP)"],
        *["day + INTERVAL 1 MONTH", "at - INTERVAL 1 MONTH", "at + INTERVAL 292000 YEARS"],
        *["at + INTERVAL 1 DAY", "utc - INTERVAL 1 SECOND", "at - INTERVAL 200000000 DAYS"],
        *["date_add(day, 2147483647)", "day - INTERVAL 500000000 WEEKS"],
        "CASE WHEN day <= at THEN 1 END",
    ],
)
def test_times_that_polars_cannot_compute_are_errors_where_they_are_used(
    tmp_path: Path, value: str
) -> None:
    lakelog.write(tmp_path, FAR)
    table = lakelog.open(tmp_path)
    with pytest.raises(InvalidInputError, match="cannot be computed: a"):
        table.to_polars(f"{value} IS NULL")
    if "00 " not in value:
        assert table.to_polars(f"id = 2 AND {value} IS NOT NULL")["id"].to_list() == [2]


def test_largest_times_are_compared_and_moved(tmp_path: Path) -> None:
    lakelog.write(tmp_path, FAR)
    table = lakelog.open(tmp_path)
    for text in (
        "at > current_timestamp AND utc < current_timestamp",
        "CAST(at AS DATE) > '9999-12-31' AND date_sub(day, 100000000) = '1970-01-01'",
        "at - INTERVAL 106751990 DAYS < '1970-01-03' AND unix_seconds(utc) < 0",
        "year(CAST(at AS DATE) - INTERVAL 20000000 DAYS) = 239488",
    ):
        assert table.to_polars(text)["id"].to_list() == [1], text


@pytest.mark.parametrize("divisor", ["10", "3D", "nullif(7, 0)", "abs(-100)", "0.1D"])
def test_quotients_of_doubles_are_exact(divisor: str) -> None:
    numbers = [k / 100 for k in range(-1000, 1000, 7)]
    by = {"10": 10, "3D": 3, "nullif(7, 0)": 7, "abs(-100)": 100, "0.1D": 0.1}[divisor]
    rows = pl.DataFrame({"f": numbers, "quotient": [number / by for number in numbers]})
    where = condition(f"f / {divisor} = quotient", struct_of(rows.schema), NOW_US)
    assert where is not None
    assert rows.filter(where).height == rows.height


def test_columns_are_computed_alike_in_batches_of_any_size(tmp_path: Path) -> None:
    generated = contract.Field(
        "g", contract.Primitive("double"), metadata={"delta.generationExpression": "f / 10"}
    )
    schema = contract.Struct((contract.Field("f", contract.Primitive("double")), generated))
    table = lakelog.create(tmp_path / "t", schema)
    table.alter.add_constraint("small", "f / 10 <= 0.6D")
    table.append(pl.DataFrame({"f": [3.0]}))
    table.append(pl.DataFrame({"f": [3.0, 6.0], "g": [0.3, 0.6]}))
    table.append(pl.DataFrame({"f": [3.0, 6.0]}))
    assert table.to_polars()["g"].sort().to_list() == [0.3, 0.3, 0.3, 0.6, 0.6]
    assert table.delete("f / 10 > 0.3D AND f < 4").num_deleted_rows == 0


TEXTS = ["abc", "é", "a\n", "a\r\n", "٣", "\u00a0", "a\rb", "<b>", "a+", "ABC", "a\x85", "a-", ""]


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        (r"^\w+$", ["abc", "a\n", "a\r\n", "ABC", "a\x85"]),
        (r"^[^\w]$", ["é", "٣", "\u00a0"]),
        (r"^\W$", ["é", "٣", "\u00a0"]),
        (r"\d|\s$", ["a\n", "a\r\n"]),
        (r"^\S\D\z", ["a\n", "a+", "a\x85", "a-"]),
        ("^a$", ["a\n", "a\r\n", "a\x85"]),
        ("^(x|a$)", ["a\n", "a\r\n", "a\x85"]),
        (r"^\S\D$|^é$", ["é", "a\n", "a+", "a\x85", "a-"]),
        ("^a.b$", []),
        ("(?s)^a.b$", ["a\rb"]),
        ("(?i)^ABC$", ["abc", "ABC"]),
        (r"\<b\>", ["<b>"]),
        ("[*+?]$", ["a+"]),
        (r"^\p{L}\z", ["é"]),
        ("^$", [""]),
        (r"[\s-_]", ["a\n", "a\r\n", "a\rb", "a-"]),
        (r"[\p{L}-z\d][-\d]|[\w-.-/]-|-\d", ["a-"]),
    ],
)
def test_regular_expressions_have_the_meaning_of_java(pattern: str, matching: list[str]) -> None:
    rows = pl.DataFrame({"s": TEXTS})
    where = condition(f"s RLIKE '{pattern}'", struct_of(rows.schema), NOW_US)
    assert where is not None
    assert rows.filter(where)["s"].to_list() == matching


def test_list_with_nulls_that_lacks_a_value_may_contain_it() -> None:
    rows = pl.DataFrame({"id": [1, 2, 3], "tags": [["x", None], ["y"], []]})
    for text, found in {
        "array_contains(tags, 'x')": [1],
        "NOT array_contains(tags, 'y')": [3],
    }.items():
        where = condition(text, struct_of(rows.schema), NOW_US)
        assert where is not None
        assert rows.filter(where)["id"].to_list() == found


def test_values_of_maps_are_found_by_their_keys(tmp_path: Path) -> None:
    entries = pl.List(pl.Struct({"key": pl.String, "value": pl.Int64}))
    maps = [[{"key": "a", "value": 1}, {"key": "b", "value": None}], [{"key": "b", "value": 2}], []]
    rows = pl.DataFrame({"id": [1, 2, 3, 4], "m": pl.Series([*maps, None], dtype=entries)})
    lakelog.write(tmp_path, rows.with_columns(pl.col("m").cast(pl.Map(pl.String, pl.Int64))))
    table = lakelog.open(tmp_path)
    for text, found in {
        "m['a'] = 1": [1],
        "M['b'] IS NULL": [1, 3, 4],
        "m['b'] IN (2)": [2],
        "size(m) < 2": [2, 3],
        "m IS NULL": [4],
    }.items():
        assert table.to_polars(text)["id"].to_list() == found
    table.update({"id": "coalesce(m['b'], size(m), 7)"})
    assert sorted(table.to_polars()["id"]) == [0, 2, 2, 7]


@pytest.mark.parametrize("name", ["comment", "set", "begin", "use", "update", "date", "interval"])
def test_column_may_have_the_name_of_a_statement(name: str) -> None:
    where = condition(f"{name} > 1 AND {name.upper()} < 3", struct_of({name: pl.Int64()}), NOW_US)
    assert where is not None
    assert pl.DataFrame({name: [1, 2, 3]}).filter(where)[name].to_list() == [2]


@pytest.mark.parametrize(
    "text",
    [
        "n > 5.5",
        "tiny > 5",
        "tiny < 300 AND tiny > 5",
        "price > 5.555",
        "price > 5e0",
        "n IN (6, 7)",
        "day >= TIMESTAMP '2026-01-07'",
        "at >= '2026-01-07'",
        "s LIKE 'g%'",
        "n = 6 AND 1 / n > 0",
    ],
)
def test_files_are_skipped_by_a_condition_with_literals_of_other_types(
    tmp_path: Path, text: str
) -> None:
    rows = pl.DataFrame(
        {
            "n": range(8),
            "tiny": pl.Series(range(8), dtype=pl.Int8),
            "price": pl.Series(range(8), dtype=pl.Decimal(10, 2)),
            "day": [dt.date(2026, 1, 1 + k) for k in range(8)],
            "at": pl.Series([dt.datetime(2026, 1, 1 + k) for k in range(8)], dtype=TIME),
            "s": list("abcdefgh"),
        }
    )
    table = lakelog.create(tmp_path, rows.schema)
    with table.transaction() as tx:
        for k in range(8):
            tx.append(rows[k : k + 1])
    snapshot = table.snapshot()
    assert snapshot.files(text).collect().height == snapshot.scan(text).collect().height < 3
