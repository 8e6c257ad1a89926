"""Interval arithmetic over the values that a file may contain.

`Values` over-approximates the values of an expression in each file by an interval; `Truth` the
outcomes of a predicate. Every operation is conservative: an outcome that some row may have is never
excluded. Terms are Polars expressions over one row per file, so a bound is compared by the same
operator, with the same casts, that would compare the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import polars as pl

TRUE = pl.lit(True)
FALSE = pl.lit(False)

_TRUNCATED_BYTES = 32
"""Writers truncate strings to 32 characters or more, which have at least as many bytes."""

_DOUBLE_DIGITS = 15
_DOUBLE_ERROR = 2.0**-48
"""Decimal digits that a double represents exactly, and the relative error of more digits, including
a margin for a writer's arithmetic.
"""

_TIMESTAMP_SLACK_US = 999
_SECOND_US = 1_000_000
_ZONE_SLACK_US = 60_000_000
_LAST_ODD_ZONE_US = 63_676_800_000_000
"""Delta Lake 3.2 and 3.3 wrote times with their zone's offset, without its seconds. The last zone
whose offset had seconds was that of Monrovia, until 1972-01-07.
"""
_SAFE_TIMESTAMP_US = 1 << 62


@dataclass(frozen=True)
class Truth:
    """Possible outcomes of a predicate on the rows of each file; null terms count as True."""

    may_true: pl.Expr
    may_false: pl.Expr
    may_null: pl.Expr

    def not_(self) -> Truth:
        """Outcomes of the negation."""
        return Truth(self.may_false, self.may_true, self.may_null)

    def and_(self, other: Truth) -> Truth:
        """Outcomes of the conjunction, in Kleene's logic."""
        return Truth(
            self.may_true & other.may_true,
            self.may_false | other.may_false,
            (self.may_null & (other.may_null | other.may_true)) | (other.may_null & self.may_true),
        )

    def or_(self, other: Truth) -> Truth:
        """Outcomes of the disjunction."""
        return self.not_().and_(other.not_()).not_()

    def within(self, other: Truth) -> Truth:
        """Outcomes that two estimates of the same predicate both allow."""
        return Truth(
            self.may_true & other.may_true,
            self.may_false & other.may_false,
            self.may_null & other.may_null,
        )

    def either(self, other: Truth) -> Truth:
        """Outcomes that one of two estimates allows."""
        return Truth(
            self.may_true | other.may_true,
            self.may_false | other.may_false,
            self.may_null | other.may_null,
        )


ANYTHING = Truth(TRUE, TRUE, TRUE)


@dataclass(frozen=True)
class Values:
    """Bounds of an expression's values in each file. `low` and `high` are null if unknown; NaN
    (`may_nan`) and values that begin with the prefix `cut` may exceed `high`; `unknown` marks files
    without any known bounds.
    """

    low: pl.Expr | None
    high: pl.Expr | None
    may_null: pl.Expr
    may_value: pl.Expr
    may_nan: bool = False
    cut: pl.Expr | None = None
    dtype: pl.DataType | None = None
    unknown: pl.Expr = FALSE

    def rising(self, function: Callable[[pl.Expr], pl.Expr], dtype: pl.DataType) -> Values:
        """The values of a monotonically non-decreasing function."""
        return replace(
            self,
            low=None if self.low is None else function(self.low),
            high=None if self.high is None or self.cut is not None else function(self.high),
            cut=None,
            dtype=dtype,
        )

    def with_nulls(self) -> Values:
        """The same values, some of which may have become null."""
        return replace(self, may_null=TRUE)


def from_statistics(
    low: pl.Expr | None,
    high: pl.Expr | None,
    may_null: pl.Expr,
    may_value: pl.Expr,
    dtype: pl.DataType,
) -> Values:
    """The interval that a file's ``min`` and ``max`` of a column of `dtype` guarantee."""
    cut = None
    if high is not None and dtype == pl.String:
        # A truncated character ends up as a question mark or a replacement character.
        whole = high.str.replace(r"[?\x{FFFD}]$", "")
        cut = pl.when(high.str.len_bytes() >= _TRUNCATED_BYTES).then(whole)
    if low is not None and dtype == pl.String:  # U+FFFD is greater than most characters
        whole = low.str.strip_suffix("\ufffd")
        low = pl.when(low.str.len_bytes() >= _TRUNCATED_BYTES).then(whole).otherwise(low)
    if isinstance(dtype, pl.Datetime):
        if high is not None:
            # Truncated to milliseconds, or by XTable to seconds. In every case to the end of the
            # second, so that the greatest of several bounds is one for all of them.
            rest = _SECOND_US - 1 - high.to_physical() % _SECOND_US
            near = high.to_physical() < _SAFE_TIMESTAMP_US
            high = pl.when(near).then(high + _slack(high, dtype, rest))
        if low is not None:
            # Truncated to milliseconds: downwards, or by some writers towards zero before 1970.
            exact = low.to_physical() > (_LAST_ODD_ZONE_US if dtype.time_zone else 0)
            near = low.to_physical() > -_SAFE_TIMESTAMP_US
            fraction = pl.lit(_TIMESTAMP_SLACK_US)
            low = pl.when(exact).then(low).when(near).then(low - _slack(low, dtype, fraction))
    return Values(low, high, may_null, may_value, dtype.is_float(), cut, dtype)


def _slack(bound: pl.Expr, dtype: pl.Datetime, fraction_us: pl.Expr) -> pl.Expr:
    """How far a time may be beyond a bound, if its fraction may be `fraction_us` beyond."""
    fraction = pl.duration(microseconds=fraction_us, time_unit="us")
    if dtype.time_zone is None:
        return fraction
    zone = pl.duration(microseconds=_ZONE_SLACK_US, time_unit="us")
    return pl.when(bound.to_physical() > _LAST_ODD_ZONE_US).then(fraction).otherwise(zone)


def around_floats(low: pl.Series, high: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Widen bounds of doubles so that they are valid for floats too: statistics encode a float with
    the fewest digits that distinguish it from other floats.

    >>> low, high = around_floats(pl.Series([0.1]), pl.Series([0.7]))
    >>> low.item(), high.item(), around_floats(high, low)[0].item()
    (0.1, 0.7, 0.699999988079071)
    """

    def single(bound: pl.Series) -> pl.Series:
        return bound.cast(pl.Float32).cast(pl.Float64)

    near_low, near_high = single(low), single(high)
    return low.zip_with(low <= near_low, near_low), high.zip_with(high >= near_high, near_high)


def around_doubles(low: pl.Series, high: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Widen bounds of decimals with more digits than doubles represent, so that they are valid for
    values that a writer converted to doubles, as deltalake does.

    >>> bound = pl.Series(["99999.25", "1234567.25"]).cast(pl.Decimal(38, 10))
    >>> low, high = around_doubles(bound, bound)
    >>> low.to_list()[1], high.to_list()[1], low[0] == bound[0] == high[0]
    (Decimal('1234567.2499999956'), Decimal('1234567.2500000044'), True)
    """

    def moved(bound: pl.Series, share: float) -> pl.Series:
        dtype, value = bound.dtype, pl.col("bound")
        assert isinstance(dtype, pl.Decimal), dtype
        near = value.cast(pl.Float64)
        far = near + near.abs() * share
        fits = far.abs() < 10.0 ** (dtype.precision - dtype.scale)
        is_exact = near.abs() < 10.0 ** (_DOUBLE_DIGITS - dtype.scale)
        wide = pl.when(is_exact).then(value).otherwise(pl.when(fits).then(far).cast(dtype))
        return bound.to_frame("bound").select(wide).to_series()

    return moved(low, -_DOUBLE_ERROR), moved(high, _DOUBLE_ERROR)


def same_kind(a: pl.DataType | None, b: pl.DataType | None) -> bool:
    """Whether both types compare without a cast that could change their order; not 32-bit floats,
    which callers round differently.
    """
    if a is None or b is None:
        return False
    if a.is_integer() and b.is_integer():
        return True
    if isinstance(a, pl.Decimal) and isinstance(b, pl.Decimal):
        return True
    return a == b and a in (pl.Float64, pl.String, pl.Date, pl.Boolean, pl.Datetime)


def comparable(a: Values, b: Values) -> bool:
    """Whether the order of the bounds' types is the order of the values."""
    return _ordered(a.dtype) and _ordered(b.dtype)


def _ordered(dtype: pl.DataType | None) -> bool:
    return dtype is not None and (
        dtype.is_numeric()
        or dtype in (pl.String, pl.Date, pl.Boolean, pl.Binary, pl.Null)
        or isinstance(dtype, pl.Datetime)
    )


def _above(x: pl.Expr | None, v: Values, *, or_equal: bool) -> pl.Expr:
    """Where `x` is certainly above (or equal to) every value of `v` except NaN."""
    if x is None or v.high is None:
        return FALSE
    certain = x >= v.high if or_equal else x > v.high
    if v.cut is not None:
        certain &= ~x.str.starts_with(v.cut).fill_null(False)
    return certain.fill_null(False)


def less(a: Values, b: Values, strict: bool) -> Truth:
    """``a < b`` or, unless `strict`, ``a <= b``."""
    both = a.may_value & b.may_value
    return Truth(
        both & ~_never_less(a, b, strict),
        # Not below means above or equal: the order is total.
        both & ~_never_less(b, a, not strict),
        a.may_null | b.may_null,
    )


def _never_less(a: Values, b: Values, strict: bool) -> pl.Expr:
    return FALSE if b.may_nan else _above(a.low, b, or_equal=strict)


def equal(a: Values, b: Values) -> Truth:
    """``a == b``."""
    both = a.may_value & b.may_value
    never_equal = never_unequal = FALSE
    if not (a.may_nan and b.may_nan):
        never_equal = _above(a.low, b, or_equal=False) | _above(b.low, a, or_equal=False)
    if not (a.may_nan or b.may_nan):
        never_unequal = _above(a.low, b, or_equal=True) & _above(b.low, a, or_equal=True)
    return Truth(both & ~never_equal, both & ~never_unequal, a.may_null | b.may_null)


def equal_or_both_null(a: Values, b: Values) -> Truth:
    """``a.eq_missing(b)``: null equals null, and the outcome is never null."""
    plain = equal(a, b)
    one_null = (a.may_null & b.may_value) | (b.may_null & a.may_value)
    return Truth(plain.may_true | (a.may_null & b.may_null), plain.may_false | one_null, FALSE)


def between(
    v: Values, low: Values, high: Values, *, strict_low: bool = False, strict_high: bool = False
) -> Truth:
    """``v.is_between(low, high)``, which Polars evaluates in one type of all three."""
    if not (comparable(v, low) and comparable(v, high)):
        return ANYTHING
    types = {values.dtype for values in (v, low, high)} - {pl.Null()}
    pairwise = _between(v, low, high, strict_low, strict_high)
    if len(types) > 1 and any(dtype is not None and dtype.is_float() for dtype in types):
        # A float makes doubles of the others, which may round; or it is rounded to a column of
        # floats, as in the two comparisons.
        v, low, high = (
            each.rising(lambda x: x.cast(pl.Float64), pl.Float64()) for each in (v, low, high)
        )
        return pairwise.either(_between(v, low, high, strict_low, strict_high))
    return pairwise if sum(isinstance(dtype, pl.Datetime) for dtype in types) < 2 else ANYTHING


def _between(v: Values, low: Values, high: Values, strict_low: bool, strict_high: bool) -> Truth:
    """``v.is_between(low, high)`` where each bound is compared on its own."""
    inside = less(low, v, strict_low).and_(less(v, high, strict_high))
    if v.may_nan and not high.may_nan:
        # NaN is above every number, so the upper bound excludes it from the lower test too.
        below = less(low, replace(v, may_nan=False), strict_low)
        inside = replace(inside, may_true=inside.may_true & below.may_true)
    # Polars gives null where a bound is a null literal, also if the other bound excludes the value.
    may_null = v.may_null | low.may_null | high.may_null
    return replace(inside, may_null=inside.may_null | may_null)


def starts_with(v: Values, prefix: pl.Expr) -> Truth:
    """``v.str.starts_with(prefix)``, `prefix` a literal."""
    if v.dtype != pl.String or v.low is None or v.high is None:
        return Truth(v.may_value, v.may_value, TRUE)
    low_has = v.low.str.starts_with(prefix).fill_null(False)
    top = v.high if v.cut is None else pl.coalesce(v.cut, v.high)
    high_has = top.str.starts_with(prefix).fill_null(False)
    # Texts with the prefix are at or above it, and below all greater texts without it.
    all_above = (v.low > prefix).fill_null(False) & ~low_has
    never = _above(prefix, v, or_equal=False) | all_above
    always = low_has & high_has
    return Truth(
        (v.may_value & ~never) | v.unknown, (v.may_value & ~always) | v.unknown, v.may_null
    )


def all_of(parts: Sequence[Truth]) -> Truth:
    """The conjunction of `parts`."""
    whole = Truth(TRUE, FALSE, FALSE)
    for part in parts:
        whole = whole.and_(part)
    return whole
