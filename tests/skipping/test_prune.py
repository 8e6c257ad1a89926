"""Pruning: a file with a matching row is always kept, and simple predicates do prune."""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.errors import InvalidInputError
from lakelog.model import contract
from lakelog.skipping.prune import keep_mask, referenced_columns
from lakelog.skipping.statistics import stats_from_json
from lakelog.skipping.values import TypedPartitions, typed_partitions
from tests.budget import share_of

MAP = pl.Map(pl.String, pl.String)
_BERLIN = ZoneInfo("Europe/Berlin")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = "isfgtdmbx"
TYPES: dict[str, Any] = {
    "p": "date",
    "q": "integer",
    "i": "long",
    "s": "string",
    "f": "double",
    "g": "float",
    "t": "timestamp",
    "d": "date",
    "m": "decimal(10,2)",
    "b": "boolean",
    "n": {
        "type": "struct",
        "fields": [{"name": "x", "type": "integer", "nullable": True, "metadata": {}}],
    },
    "l": {"type": "array", "elementType": "long", "containsNull": True},
}
SCHEMA = contract.parse_schema(
    json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in TYPES.items()
            ],
        }
    )
)
PARTITIONS = ("p", "q")
ROWS = pl.Schema({f.name: contract.to_polars(f.type) for f in SCHEMA.fields})
NO_ROWS = pl.DataFrame(schema=ROWS)
i, s, f, g, t, d, m, b, p, q = (pl.col(c) for c in "isfgtdmbpq")
x = pl.col("n").struct.field("x")

# Few distinct values, so that predicates often hit the bounds of files.
long_text = st.sampled_from(
    ["k" * 31, "k" * 32, "k" * 33, "k" * 32 + "z", "k" * 31 + "😈", "k" * 40]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-3, 3) | st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63 - 1]),
    "s": st.text("abk?", max_size=2) | long_text,
    "f": st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 0.1, 2.0, math.inf, math.nan]),
    "g": st.sampled_from([-1.5, 0.0, 0.1, 0.3, 16777216.0, math.nan]),
    "t": st.integers(-3000, 3000).map(lambda us: EPOCH + timedelta(microseconds=us)),
    "d": st.integers(-2, 2).map(lambda days: date(1970, 1, 1) + timedelta(days=days)),
    "m": st.integers(-300, 300).map(lambda cents: Decimal(cents).scaleb(-2)),
    "b": st.booleans(),
    "x": st.integers(-2, 2),
    "q": st.integers(-2, 2),
}
VALUES["p"] = VALUES["d"]
NUMBERS: list[Any] = [
    *(0, 0.5, 0.1, 0.3, 2**24 + 1, 2**53, 2**53 + 1, float(2**53), 1e16, Decimal("0.25")),
    *(pl.lit(value, dtype) for value in (0.1, 0.3, 2.0) for dtype in (pl.Float32, pl.Float64)),
    *(pl.lit(2**53, dtype) for dtype in (pl.Int64, pl.UInt64, pl.Int128)),
    *(i, f, g, m, q, x, pl.lit(None)),
]
MOMENTS: list[Any] = [
    *(date(1970, 1, 1), date(1970, 1, 2), EPOCH, EPOCH.replace(tzinfo=None), p, d, t, pl.lit(None)),
    *(pl.lit(EPOCH + timedelta(milliseconds=1)).dt.cast_time_unit(u) for u in ("ns", "us", "ms")),
    *(p.cast(pl.Datetime(u, zone)) for u in ("us", "ms") for zone in (None, "UTC")),
]
OPERANDS = {**dict.fromkeys("ifgmqx", NUMBERS), **dict.fromkeys("tdp", MOMENTS)}
"""Values of other types that a column is compared with."""


def nulls_or(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy | strategy


def floor_ms(value: datetime) -> datetime:
    return value - timedelta(microseconds=(value - EPOCH) // timedelta(microseconds=1) % 1000)


def bound(column: str, values: Sequence[Any], pick: Any) -> Any:
    """The bound that Spark writes into JSON for these values, none of them null."""
    if column in "fg":
        values = [v for v in values if not math.isnan(v)]
        if not values:
            return "NaN"
    value = pick(values)
    match value:
        case bool():
            return None
        case str():
            # Java cuts between UTF-16 units, and writes half a character as a question mark.
            units = value.encode("utf-16-le")[:64]
            return units.decode("utf-16-le", "replace").replace("\ufffd", "?")
        case datetime():
            text = floor_ms(value).strftime("%Y-%m-%dT%H:%M:%S.")
            return text + f"{floor_ms(value).microsecond // 1000:03d}Z"
        case date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
    return value


def spark_stats(rows: Sequence[dict[str, Any]], leave_out: str, tight: bool) -> str:
    """Statistics as Spark writes them; wide bounds make null counts other than 0 and all wrong."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for column in COLUMNS:
        if column in leave_out:
            continue
        values = [r["n"]["x"] if column == "x" else r[column] for r in rows]
        present = [v for v in values if v is not None]
        count = len(values) - len(present)
        if not tight and 0 < count < len(rows):
            count = len(rows) - 1 if len(rows) > 1 else count
        for target, pick in ((low, min), (high, max)):
            if present and (found := bound(column, present, pick)) is not None:
                target[column] = found
        nulls[column] = count
    for target in (low, high, nulls):
        if "x" in target:
            target["n"] = {"x": target.pop("x")}
    stats = {"numRecords": len(rows), "minValues": low, "maxValues": high, "nullCount": nulls}
    if not tight:
        stats["tightBounds"] = False
    return json.dumps(stats, ensure_ascii=False)


@st.composite
def files(
    draw: st.DrawFn, columns: str = COLUMNS, damaged: bool = True, most: int = 4
) -> tuple[pl.DataFrame, dict[str, str | None], str | None]:
    """Rows of one file, its partition values and its statistics; other columns are all null."""
    partition = {c: draw(nulls_or(VALUES[c])) for c in PARTITIONS}
    row = st.fixed_dictionaries({c: nulls_or(VALUES[c]) for c in columns})
    drawn = draw(st.lists(row, min_size=1, max_size=most))
    rows = [{**r, "n": {"x": r.get("x")}, "l": [1], **partition} for r in drawn]
    frame = pl.DataFrame(rows, schema=ROWS)
    # Statistics describe the stored values: single precision is rounded.
    stored = frame.to_dicts()
    left_out = draw(st.text(COLUMNS, max_size=2)) if damaged else ""
    stats = spark_stats(stored, left_out, draw(st.booleans()))
    text: str | None = stats
    match draw(st.sampled_from(["", "", "", "", "missing", "cut", "null"])) if damaged else "":
        case "missing":
            text = None
        case "cut":
            text = stats[: draw(st.integers(0, len(stats) - 1))]
        case "null":
            text = "null"
    texts = {c: None if v is None else str(v) for c, v in partition.items()}
    if damaged and draw(st.integers(0, 5)) == 0:
        texts.pop(draw(st.sampled_from(PARTITIONS)))
    return frame, texts, text


CLOSED: list[Literal["both", "left", "right", "none"]] = ["both", "left", "right", "none"]
COMPARE = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def compared(draw: st.DrawFn, one: Any, other: Any) -> pl.Expr:
    found: pl.Expr = draw(st.sampled_from(COMPARE))(one, other)
    return found


@st.composite
def terms(draw: st.DrawFn, columns: str = COLUMNS + "pq") -> pl.Expr:
    column = draw(st.sampled_from(columns))
    term = x if column == "x" else pl.col(column)
    value = draw(VALUES[column])
    other = draw(VALUES[column])
    kinds = ["compare"] * 4 + ["null", "between", "in", "missing", "nulls"]
    kinds += {"s": ["prefix"] * 3, "t": ["date"], "b": ["flag"], "i": ["column", "cast"]}.get(
        column, []
    ) + ["sum"] * (column == "q")
    match draw(st.sampled_from(kinds)):
        case "compare":
            if draw(st.booleans()):
                return compared(draw, pl.lit(value), term)
            return compared(draw, term, value)
        case "null":
            return term.is_null() if draw(st.booleans()) else term.is_not_null()
        case "nulls":
            return draw(with_nulls(column, term))
        case "between":
            closed = draw(st.sampled_from(CLOSED))
            return term.is_between(pl.lit(value), pl.lit(other), closed=closed)
        case "in":
            listed = pl.Series([value, other, draw(nulls_or(VALUES[column]))], dtype=_dtype(column))
            return term.is_in(listed.implode(), nulls_equal=draw(st.booleans()))
        case "missing":
            return term.eq_missing(value) if draw(st.booleans()) else term.ne_missing(value)
        case "prefix":
            return term.str.starts_with(value)
        case "date":
            return compared(draw, term.dt.date(), value.date())
        case "flag":
            return term
        case "column":
            return compared(draw, term, x)
        case "cast":
            return compared(draw, term.cast(pl.Float64), float(value))
        case _:
            return term + 1 > x


NULLS = [
    pl.lit(None),
    pl.lit(None),
    pl.lit(None, dtype=pl.Int8),
    pl.lit(None).cast(pl.Int64),
    pl.lit(None) + 1,
    pl.coalesce(pl.lit(None), pl.lit(None)),
    pl.lit(None, dtype=pl.String),
    pl.lit(None, dtype=pl.Boolean),
]


@st.composite
def with_nulls(draw: st.DrawFn, column: str, term: pl.Expr) -> pl.Expr:
    """A term with nulls among its operands, most of them of Polars' type Null."""
    null = draw(st.sampled_from(NULLS))
    value, other = (
        draw(st.sampled_from([null, pl.lit(draw(VALUES[column])), term])) for _ in range(2)
    )
    flag = draw(st.sampled_from([null, b, p.is_null()]))
    match draw(st.sampled_from(["compare", "missing", "between", "in", "value", "flags", "when"])):
        case "compare":
            one, another = draw(st.permutations([term, null]))
            outcome = compared(draw, one, another)
            return draw(
                st.sampled_from([outcome, outcome, outcome.is_null(), outcome.is_not_null()])
            )
        case "missing":
            return null.eq_missing(value) if draw(st.booleans()) else value.ne_missing(null)
        case "between":
            inside = draw(st.sampled_from([term, null]))
            return inside.is_between(value, other, closed=draw(st.sampled_from(CLOSED)))
        case "in":
            listed = draw(st.sampled_from([[None], [None, draw(VALUES[column])]]))
            return draw(st.sampled_from([term, null])).is_in(
                listed, nulls_equal=draw(st.booleans())
            )
        case "value":
            changed: list[pl.Expr] = [
                term.clip(value, other),
                term.fill_null(null),
                term.fill_null(value),
                pl.coalesce(null, term),
                pl.coalesce(term, other),
                pl.when(flag).then(null).otherwise(term),
            ]
            chosen = draw(st.sampled_from(changed))
            return draw(st.sampled_from([chosen.is_null(), compared(draw, chosen, value)]))
        case "flags":
            joined: list[Any] = [operator.and_, operator.or_, operator.xor]
            found: pl.Expr = draw(st.sampled_from(joined))(*draw(st.permutations([flag, null])))
            return found
        case _:
            return pl.when(flag).then(null).otherwise(term.is_null())


def _dtype(column: str) -> pl.DataType:
    return pl.Int32() if column == "x" else ROWS[column]


def predicates(columns: str = COLUMNS + "pq", leaves: int = 5) -> st.SearchStrategy[pl.Expr]:
    return st.recursive(
        terms(columns),
        lambda inner: (
            st.builds(operator.and_, inner, inner)
            | st.builds(operator.or_, inner, inner)
            | st.builds(operator.invert, inner)
        ),
        max_leaves=leaves,
    ).filter(is_condition)


def is_condition(where: pl.Expr) -> bool:
    """Whether it is not refused; some operands need a type, such as that of `~`."""
    try:
        referenced_columns(where, SCHEMA)
        return NO_ROWS.select(where.alias("outcome")).schema["outcome"] == pl.Boolean
    except (InvalidInputError, pl.exceptions.PolarsError):
        return False


def keep(
    where: pl.Expr,
    partitions: Sequence[dict[str, str | None]],
    texts: Sequence[str | None],
    *,
    satisfied: bool = True,
) -> list[bool]:
    mask = keep_mask(
        where,
        schema=SCHEMA,
        partition_columns=PARTITIONS,
        partitions=typed_partitions(pl.Series(partitions, dtype=MAP), SCHEMA, PARTITIONS),
        stats=stats_from_json(pl.Series(texts, dtype=pl.String), SCHEMA),
        satisfied=satisfied,
    )
    assert mask.null_count() == 0
    return mask.to_list()


Written = tuple[pl.DataFrame, dict[str, str | None], str | None]


def assert_files_with_matching_rows_are_kept(
    written: Sequence[Written], asked: Sequence[pl.Expr]
) -> None:
    frames, partitions, texts = zip(*written, strict=True)
    for where in asked:
        outcomes = [frame.select(where.alias("outcome"))["outcome"] for frame in frames]
        for satisfied in (True, False):
            kept = keep(where, partitions, texts, satisfied=satisfied)
            for frame, outcome, keeps, text in zip(frames, outcomes, kept, texts, strict=True):
                matching = frame.filter(outcome.fill_null(value=False) == satisfied)
                assert keeps or not matching.height, (str(where), matching.to_dicts(), text)


@settings(max_examples=share_of(150))
@given(st.lists(files(), min_size=1, max_size=4), st.lists(predicates(), min_size=1, max_size=4))
def test_file_with_a_matching_row_is_always_kept(
    written: list[Written], asked: list[pl.Expr]
) -> None:
    assert_files_with_matching_rows_are_kept(written, asked)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("column", COLUMNS)
@settings(max_examples=share_of(15))
@given(data=st.data())
def test_file_with_a_matching_row_in_one_column_is_always_kept(
    column: str, data: st.DataObject
) -> None:
    # One column at a time, so that values at its bounds are drawn often.
    written = data.draw(st.lists(files(column, damaged=False), min_size=8, max_size=16))
    asked = data.draw(st.lists(predicates(column, 2), min_size=6, max_size=12))
    assert_files_with_matching_rows_are_kept(written, asked)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("column", OPERANDS)
@settings(max_examples=share_of(15))
@given(data=st.data())
def test_file_with_a_value_between_operands_of_other_types_is_kept(
    column: str, data: st.DataObject
) -> None:
    one_row = files(column, damaged=False, most=1)
    written = data.draw(st.lists(one_row, min_size=8, max_size=16))
    term = x if column == "x" else pl.col(column)
    operands = st.sampled_from(OPERANDS[column]) | VALUES[column]
    inside = st.builds(term.is_between, operands, operands, closed=st.sampled_from(CLOSED))
    asked = data.draw(st.lists(inside.filter(is_condition), min_size=6, max_size=12))
    assert_files_with_matching_rows_are_kept(written, asked)


def stats_text(**columns: tuple[Any, Any, Any]) -> str:
    return json.dumps(
        {
            "numRecords": 10,
            "minValues": {c: v[0] for c, v in columns.items()},
            "maxValues": {c: v[1] for c, v in columns.items()},
            "nullCount": {c: v[2] for c, v in columns.items()},
        }
    )


TEXTS = [
    stats_text(
        i=(0, 9, 0),
        s=("a", "az", 0),
        f=(0.0, 1.0, 0),
        t=("2024-01-01T00:00:00.000Z", "2024-01-01T23:00:00.000Z", 0),
        d=("2024-01-01", "2024-01-02", 0),
        m=(1.00, 1.50, 0),
        b=(False, False, 0),
        n=({"x": 0}, {"x": 1}, {"x": 0}),
    ),
    stats_text(
        i=(10, 19, 3),
        s=("b", "b" * 32, 0),
        f=(2.0, 3.0, 0),
        t=("2024-01-02T00:00:00.000Z", "2024-01-02T23:00:00.000Z", 0),
        d=("2024-02-01", "2024-02-02", 0),
        m=(2.00, 2.50, 0),
        b=(True, True, 0),
        n=({"x": 5}, {"x": 6}, {"x": 10}),
    ),
]
PARTITION_VALUES: list[dict[str, str | None]] = [
    {"p": "2024-01-01", "q": "1"},
    {"p": "2025-01-01", "q": ""},
]


@pytest.mark.parametrize(
    ("where", "first", "second"),
    [
        (i > 9, False, True),
        (i >= 9, True, True),
        (i < 10, True, False),
        (pl.lit(10) > i, True, False),
        (i == 12, False, True),
        (i != 12, True, True),
        (~(i <= 9), False, True),
        (i.is_in([3, 50]), True, False),
        (i.is_in(list(range(100, 300))), False, False),
        (i.is_between(10, 12), False, True),
        (i.is_between(9, 10, closed="right"), False, True),
        (i.is_null(), False, True),
        (i.cast(pl.Float64) > 9.5, False, True),
        (x.is_not_null(), True, False),
        (x == 5, False, False),
        (x > i, True, False),
        ((i > 9) & (f < 1), False, False),
        ((i > 9) | (f < 1), True, True),
        (pl.all_horizontal(i > 9, f < 9), False, True),
        (pl.any_horizontal(i > 9, d > date(2024, 3, 1)), False, True),
        (s == "az", True, False),
        (s == "azz", False, False),
        (s == "b" * 40, False, True),
        (s > "b" * 33, False, True),
        (s.str.starts_with("az"), True, False),
        (s.str.starts_with("bbb"), False, True),
        (s.str.starts_with("c"), False, False),
        (f < 2, True, False),
        (f == 1.5, False, False),
        (f.is_between(1.5, 2.0), False, True),
        (i.is_between(9.5, 12), False, True),
        (t > datetime(2024, 1, 2, tzinfo=UTC), False, True),
        (t.dt.date() == date(2024, 1, 1), True, False),
        (t.dt.year() < 2024, False, False),
        (d >= date(2024, 1, 3), False, True),
        (m == Decimal("2.25"), False, True),
        (b, True, True),  # bounds of Booleans are ignored
        (~b, True, True),
        (p == date(2024, 1, 1), True, False),
        (p.dt.year().is_in([2025]), False, True),
        (q.is_null(), False, True),
        (q + 1 == 2, True, False),
        ((p > date(2024, 6, 1)) & (i > 0), False, True),
        (q == i, True, False),
        (pl.lit(value=False), False, False),
        (pl.lit(value=True), True, True),
    ],
    ids=str,
)
def test_simple_predicates_prune(where: pl.Expr, first: bool, second: bool) -> None:
    assert keep(where, PARTITION_VALUES, TEXTS) == [first, second]


@pytest.mark.parametrize(
    "where",
    [
        f > 100,  # a row may be NaN, which is greater than any number
        f != 0.5,
        s > "b" * 32,  # cut, not incremented
        t > datetime(2024, 1, 2, 23, 0, 0, 500, tzinfo=UTC),  # cut to milliseconds
        i * 2 > 1000,
        i.map_batches(lambda series: series > 1000, return_dtype=pl.Boolean, is_elementwise=True),
        pl.when(i > 1000).then(statement=True).otherwise(statement=False),
        pl.col("l").list.len() > 1000,
        s.str.contains("zzz"),
    ],
    ids=str,
)
def test_predicate_that_the_bounds_cannot_decide_never_prunes(where: pl.Expr) -> None:
    assert keep(where, PARTITION_VALUES, TEXTS)[1]


@pytest.mark.parametrize("bound", ["1970-01-01T00:00:00.000Z", "1969-12-31T23:59:59.999Z"])
def test_times_before_1970_that_were_truncated_towards_zero_never_prune(bound: str) -> None:
    before = datetime.fromisoformat(bound) - timedelta(microseconds=999)
    assert keep(t == before, [{}], [stats_text(t=(bound, bound, 0))]) == [True]
    earlier = before - timedelta(minutes=1)
    assert keep(t == earlier, [{}], [stats_text(t=(bound, bound, 0))]) == [False]


@pytest.mark.parametrize(
    ("bound", "offset"),
    [
        ("1850-01-01T01:01:01.000+00:53", timedelta(minutes=53, seconds=28)),  # Stockholm
        ("1972-01-06T23:59:59.000-00:44", -timedelta(minutes=44, seconds=30)),  # Monrovia
    ],
)
def test_old_times_whose_offsets_lack_their_seconds_never_prune(
    bound: str, offset: timedelta
) -> None:
    time = datetime.fromisoformat(bound).replace(tzinfo=timezone(offset))
    texts = [stats_text(t=(bound, bound, 0))]
    for where in (t == time, t <= time, t >= time, t.is_between(time, time)):
        assert keep(where, [{}], texts) == [True]
    far = timedelta(minutes=2)
    assert keep((t < time - far) | (t > time + far), [{}], texts) == [False]
    recent = "2024-01-02T03:04:05.000+01:00"
    later = datetime.fromisoformat(recent) + timedelta(seconds=1)
    assert keep(t == later, [{}], [stats_text(t=(recent, recent, 0))]) == [False]


@pytest.mark.parametrize("bound", ["2024-01-02 03:04:05", "1969-12-31 23:59:58"])
def test_times_that_were_truncated_to_seconds_never_prune(bound: str) -> None:
    """Apache XTable writes bounds without a fraction."""
    last = datetime.fromisoformat(bound).replace(tzinfo=UTC) + timedelta(microseconds=999_999)
    texts = [stats_text(t=(bound, bound, 0))]
    for where in (t == last, t >= last, t > last - timedelta(milliseconds=500)):
        assert keep(where, [{}], texts) == [True]
    # The greatest of several bounds is one for all of their files.
    assert keep(t == last, [{}], [stats_text(t=(bound, f"{bound}.3", 0))]) == [True]
    assert keep(t > last + timedelta(minutes=1), [{}], texts) == [False]


@pytest.mark.parametrize(
    "text", [None, "", "null", "{}", '{"numRecords":3,"minValues":{"i":', "[]"]
)
@pytest.mark.parametrize(
    "where", [i > 5, i.is_null(), i.is_not_null(), s == "x", b, x > 1], ids=str
)
def test_absent_or_damaged_statistics_never_prune(text: str | None, where: pl.Expr) -> None:
    assert keep(where, [{}], [text]) == [True]


def test_least_text_that_ends_in_half_a_character_never_prunes() -> None:
    cut = "k" * 31 + "\ufffd"
    for text, kept in (("k" * 31 + "é", True), ("k" * 30, False)):
        assert keep(s == text, [{}], [stats_text(s=(cut, cut, 0))]) == [kept]


def test_null_count_of_an_array_never_proves_that_all_arrays_are_null() -> None:
    arrays = pl.col("l")
    text = '{"numRecords":2,"nullCount":{"l":2}}'  # two null elements
    assert keep(arrays.is_not_null(), [{}], [text]) == [True]
    assert keep(~arrays.is_null(), [{}], [text]) == [True]
    text = '{"numRecords":2,"nullCount":{"l":0}}'
    assert keep(arrays.is_null(), [{}], [text]) == [False]


def test_unknown_partition_value_never_prunes_and_a_null_one_does() -> None:
    rows: list[dict[str, str | None]] = [{"p": "x"}, {}, {"p": ""}, {"p": None}]
    assert keep(p > date(2024, 1, 1), rows, [None] * 4) == [True, True, False, False]
    assert keep(p.is_null(), rows, [None] * 4) == [True, True, True, True]
    replaced = p.fill_null(date(2023, 1, 1))
    assert keep(replaced > date(2024, 1, 1), rows, [None] * 4) == [True, True, False, False]
    assert keep(replaced < date(2024, 1, 1), rows, [None] * 4, satisfied=False)[:2] == [True, True]


NULL_DATE = pl.lit(None, dtype=pl.Date)


@pytest.mark.parametrize(
    "where",
    [p < NULL_DATE, ~(p < NULL_DATE), (p < NULL_DATE).is_not_null(), p.is_between(NULL_DATE, p)],
    ids=str,
)
def test_comparison_with_null_prunes_also_where_the_partition_value_is_unknown(
    where: pl.Expr,
) -> None:
    assert keep(where, [{"p": "x"}, {}, {"p": "2024-01-01"}], [None] * 3) == [False] * 3


def test_expression_that_fails_on_a_partition_value_never_prunes() -> None:
    schema = contract.Struct((contract.Field("k", contract.Primitive("string")),))
    partitions = typed_partitions(pl.Series([{"k": "7"}, {"k": "seven"}], dtype=MAP), schema, ["k"])
    where = pl.col("k").cast(pl.Int64) == 1
    mask = keep_mask(where, schema=schema, partition_columns=["k"], partitions=partitions)
    assert mask.to_list() == [True, True]


def test_cast_that_wraps_around_never_prunes() -> None:
    text = json.dumps({"numRecords": 2, "minValues": {"i": -(2**31) - 1}, "maxValues": {"i": 0}})
    wrapped = i.cast(pl.Int32, wrap_numerical=True)
    assert pl.DataFrame({"i": [-(2**31) - 1, 0]}).filter(wrapped > 5).height == 1
    assert keep(wrapped > 5, [{}], [text]) == [True]
    assert keep(i.cast(pl.Int32, strict=False) > 5, [{}], [text]) == [False]


def test_partitions_alone_prune_without_statistics() -> None:
    partitions = typed_partitions(pl.Series(PARTITION_VALUES, dtype=MAP), SCHEMA, PARTITIONS)
    where = (q == 1) & (i > 5)
    mask = keep_mask(where, schema=SCHEMA, partition_columns=PARTITIONS, partitions=partitions)
    assert mask.to_list() == [True, False]


def test_mask_of_a_table_without_files_is_empty() -> None:
    none = TypedPartitions(pl.DataFrame(height=0), pl.DataFrame(height=0))
    stats = stats_from_json(pl.Series([], dtype=pl.String), SCHEMA)
    mask = keep_mask(i > 5, schema=SCHEMA, partition_columns=(), partitions=none, stats=stats)
    assert mask.dtype == pl.Boolean
    assert mask.len() == 0


def test_single_precision_value_is_found_by_its_double_literal() -> None:
    text = stats_text(g=(0.1, 0.1, 0))
    assert keep(g == 0.1, [{}], [text]) == [True]
    assert keep(g == 0.2, [{}], [text]) == [False]


@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, -0.1, 1e-40, 3.4e38, 0.5])
@pytest.mark.parametrize("nested", [False, True], ids=["column", "struct field"])
def test_float_value_is_found_after_its_column_was_widened_to_double(
    value: float, nested: bool
) -> None:
    changes = {"delta.typeChanges": [{"fromType": "float", "toType": "double"}]}
    inner = contract.Field("v", contract.Primitive("double"), True, changes)
    outer = contract.Field("s", contract.Struct((inner,)))
    schema = contract.Struct((outer if nested else inner,))
    column = pl.col("s").struct.field("v") if nested else pl.col("v")
    row = pl.Series([value], dtype=pl.Float32).cast(pl.Float64).item()
    # Spark writes the shortest text of a float, and the text is parsed as a double.
    stats: dict[str, Any] = {"numRecords": 1}
    for name in ("minValues", "maxValues"):
        stats[name] = {"s": {"v": value}} if nested else {"v": value}
    typed = stats_from_json(pl.Series([json.dumps(stats)]), schema)
    none = typed_partitions(pl.Series([{}], dtype=MAP), schema, ())

    def kept(where: pl.Expr) -> bool:
        return bool(
            keep_mask(
                where, schema=schema, partition_columns=(), partitions=none, stats=typed
            ).item()
        )

    assert kept(column == row)
    assert kept(column <= row)
    assert kept(column >= row)
    assert not kept(column < (row / 2 if row > 0 else row * 2))


@pytest.mark.parametrize(
    "where",
    [
        i.sum() > 1,
        i > i.mean(),
        i.shift() > 1,
        i.rank() > 1,
        i.max().over("q") > 1,
        i.cum_sum() > 1,
        i.sort() > 1,
        i.is_first_distinct(),
        i.first() > 1,
        i.fill_null(strategy="forward") > 1,
        pl.len() > 1,
        pl.int_range(pl.len()) > 1,
        pl.col("l").explode() > 1,
        i == pl.lit(pl.Series([1, 2])),
        (q == 1) & (i.max() > 1),
        (q == 1) & i.map_batches(lambda values: values > values.min(), return_dtype=pl.Boolean),
    ],
    ids=str,
)
def test_predicate_that_depends_on_other_rows_raises(where: pl.Expr) -> None:
    with pytest.raises(InvalidInputError, match="row by row"):
        referenced_columns(where, SCHEMA)


def test_unknown_column_raises_with_the_closest_names() -> None:
    schema = contract.Struct(
        tuple(contract.Field(n, contract.Primitive("long")) for n in ("event_id", "user_id"))
    )
    with pytest.raises(InvalidInputError, match="evnt_id") as caught:
        referenced_columns(pl.col("evnt_id") > 1, schema)
    assert caught.value.hint is not None
    assert "event_id" in caught.value.hint


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (i + 1, "Boolean"),
        (i > "x", "types that do not fit"),
        (s.dt.year() > 1, "schema"),
        (pl.all() > 1, "several columns"),
        (pl.col("^[id]$") > 1, "several columns"),
        ("i > 1", "expression"),
    ],
    ids=str,
)
def test_invalid_predicate_raises(where: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        referenced_columns(where, SCHEMA)


@pytest.mark.parametrize(
    ("where", "column", "hint"),
    [
        (t == datetime(2026, 3, 29, tzinfo=_BERLIN), "t", "astimezone(dt.UTC)"),
        (t.is_in([datetime(2026, 3, 29)]), "t", "replace(tzinfo=dt.UTC)"),
        (pl.lit(datetime(2026, 1, 1, tzinfo=_BERLIN)) < pl.col("z"), "z", "(tzinfo=None)"),
        (pl.col("z").is_null() & (s == 1), "s", "its own type"),
    ],
    ids=str,
)
def test_value_of_a_type_that_does_not_fit_raises_with_column_and_types(
    where: pl.Expr, column: str, hint: str
) -> None:
    types = {"t": "timestamp", "z": "timestamp_ntz", "s": "string"}
    fields = (contract.Field(name, contract.Primitive(type_)) for name, type_ in types.items())
    with pytest.raises(InvalidInputError, match=r"types that do not fit: .* and ") as raised:
        referenced_columns(where, contract.Struct(tuple(fields)))
    assert raised.value.column == column
    assert hint in (raised.value.hint or "")


def test_referenced_columns_are_in_schema_order_without_duplicates() -> None:
    where = functools.reduce(operator.and_, [x > 1, i > 1, p.is_null(), i < 9])
    assert referenced_columns(where, SCHEMA) == ("p", "i", "n")
