"""Arithmetic of decimals, with the types and the rounding of Spark SQL.

Source: Spark SQL reference, Decimal precision and scale of arithmetic operations.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import polars as pl

from lakelog.model.contract import Decimal, to_polars
from lakelog.sql.values import (
    DECIMAL_DIGITS,
    MOST_DIGITS,
    RowError,
    UnsupportedExpressionError,
    Value,
    common_type,
    constant,
    division_by_zero,
    type_name,
    typed,
    unscaled,
)

if TYPE_CHECKING:
    from lakelog.sql.translation import Translation

ARITHMETIC: Mapping[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}
COMPARISONS: Mapping[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "EQ": lambda a, b: a == b,
    "NEQ": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LTE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GTE": lambda a, b: a >= b,
    "NullSafeEQ": lambda a, b: a.eq_missing(b),
    "NullSafeNEQ": lambda a, b: a.ne_missing(b),
}
_MIRRORED = {"LT": "GT", "LTE": "GTE", "GT": "LT", "GTE": "LTE"}
_EXACT = decimal.Context(prec=2 * MOST_DIGITS, rounding=decimal.ROUND_FLOOR)


def compared_with_literal(operator: str, a: Value, b: Value) -> pl.Expr | None:
    """The comparison of a decimal with a literal, if their common type has over 38 digits; None of
    others.
    """
    if a.is_literal:
        a, b, operator = b, a, _MIRRORED.get(operator, operator)
    number, type_ = b.literal, a.type
    if a.is_literal or not isinstance(type_, Decimal) or type(number) not in {int, decimal.Decimal}:
        return None
    number = decimal.Decimal(number)
    if common_type(constant(number).type, type_) is not None:
        return None
    most = decimal.Decimal((0, (9,) * type_.precision, -type_.scale))
    least = most.copy_negate()
    if least <= number:  # the last decimal of the type that is not greater
        limit, less, greater = min(number.quantize(most, context=_EXACT), most), "LTE", "GT"
    else:
        limit, less, greater = least, "LT", "GTE"
    value = typed(limit, type_).expr
    if limit == number:
        return COMPARISONS[operator](a.expr, value)
    if operator in _MIRRORED:
        return COMPARISONS[less if operator in {"LT", "LTE"} else greater](a.expr, value)
    found = pl.lit(operator in {"NEQ", "NullSafeNEQ"})
    is_null_safe = operator in {"NullSafeEQ", "NullSafeNEQ"}
    return found if is_null_safe else pl.when(a.expr.is_not_null()).then(found)


def combined(self: Translation, operator: str, a: Value, b: Value) -> Value:
    """A + b, a - b, a * b."""
    (a, left), (b, right) = _as_decimal(self, a), _as_decimal(self, b)
    if operator == "*":
        type_ = Decimal(left.precision + right.precision + 1, left.scale + right.scale)
        most, scales = type_.precision + right.scale, (type_.scale, right.scale)
        if most > MOST_DIGITS and not self.exact:  # rounded to the places of Spark, or more
            places = MOST_DIGITS - (type_.precision - type_.scale)
            type_ = Decimal(MOST_DIGITS, max(places, left.scale, right.scale))
            scales = (type_.scale, right.scale)
    else:
        type_ = _sum_type(left, right)
        most, scales = type_.precision, (type_.scale, type_.scale)
    if most > MOST_DIGITS and self.exact:
        raise UnsupportedExpressionError(
            f"{type_name(left)} {operator} {type_name(right)}, of over {MOST_DIGITS} digits"
        )
    type_ = Decimal(min(type_.precision, MOST_DIGITS), type_.scale)
    lost = left.scale + right.scale - type_.scale if operator == "*" else 0
    wide = [pl.Decimal(MOST_DIGITS, scale) for scale in scales]
    if most <= MOST_DIGITS:
        x, y = (v.expr.cast(dtype) for v, dtype in zip((a, b), wide, strict=True))
        return Value(ARITHMETIC[operator](x, y).cast(to_polars(type_)), type_)
    # Null where the result has too many digits, because Polars refuses it in any row.
    x, y = (v.expr.cast(dtype, strict=False) for v, dtype in zip((a, b), wide, strict=True))
    if operator == "*":
        m, n = unscaled(a.expr, left.scale), unscaled(b.expr, right.scale)
    else:
        m, n = (each.reinterpret(dtype=pl.Int128) for each in (x, y))
    fits = _fits(operator, m, n, lost)
    if lost:
        fits &= x.is_not_null() & y.is_not_null()
        product = ARITHMETIC[operator](pl.when(fits).then(x), y).cast(to_polars(type_))
        number = _ties_away(product, m, n, lost)
    else:
        number = pl.when(fits).then(ARITHMETIC[operator](m, n))
    is_given = a.expr.is_not_null() & b.expr.is_not_null()
    self.refuse_if(RowError(is_given & number.is_null(), f"an overflow of {type_name(type_)}"))
    return Value(number.reinterpret(dtype=to_polars(type_)), type_)


def _fits(operator: str, m: pl.Expr, n: pl.Expr, lost: int) -> pl.Expr:
    """Whether the result of unscaled numbers, less some places, has at most 38 digits."""
    most = pl.lit(10**MOST_DIGITS - 1, pl.Int128)
    if lost:  # such a product may exceed 128 bits; the last ones that fit are not accepted
        product = m.abs().cast(pl.Float64) * n.abs().cast(pl.Float64)
        return product < 10.0 ** (MOST_DIGITS + lost) * (1 - 2.0**-40)
    if operator == "*":
        return (n == 0) | (m.abs() <= most // pl.when(n != 0).then(n.abs()))
    signs = m.sign() * n.sign()
    is_larger = signs > 0 if operator == "+" else signs < 0
    return ~is_larger | (m.abs() <= most - n.abs())


def _ties_away(product: pl.Expr, x: pl.Expr, y: pl.Expr, places: int) -> pl.Expr:
    """A product of unscaled numbers that Polars rounded by some places, with halves to even."""
    number, sign = product.reinterpret(dtype=pl.Int128), x.sign() * y.sign()
    # Each product may wrap around, but their difference is at most half of the last place.
    difference = (x * y - number * pl.lit(10**places, pl.Int128)) * sign
    is_tie = difference == pl.lit(5 * 10 ** (places - 1), pl.Int128)
    return number + pl.when(is_tie).then(sign).otherwise(pl.lit(0, pl.Int128))


def divided(self: Translation, a: Value, b: Value) -> Value:
    """A / b."""
    if self.exact:
        raise UnsupportedExpressionError("a division of decimals")
    (a, left), (b, right) = _as_decimal(self, a), _as_decimal(self, b)
    whole_digits = left.precision - left.scale + right.scale
    scale = min(max(6, left.scale + right.precision + 1), max(6, MOST_DIGITS - whole_digits))
    type_ = Decimal(MOST_DIGITS, scale)
    self.refuse_if(division_by_zero(a.expr, b.expr))
    # The quotient of the unscaled numbers, because Polars rounds the dividend first.
    more = right.scale - left.scale + scale
    x, y = unscaled(a.expr, left.scale), unscaled(b.expr, right.scale)
    fits = x.abs() < pl.lit(10 ** max(0, MOST_DIGITS - more), pl.Int128)
    reason = f"a division of decimals whose dividend has over {MOST_DIGITS} digits with the places "
    self.refuse_if(RowError(~fits & y.is_not_null(), f"{reason}of the quotient ({scale})"))
    x = pl.when(fits).then(x * pl.lit(10 ** min(MOST_DIGITS, more), pl.Int128))
    y = pl.when(y != 0).then(y)
    whole, size = x.abs() // y.abs(), y.abs()
    left_over = x.abs() - whole * size
    whole += (left_over >= size - left_over).cast(pl.Int128)
    return Value((whole * x.sign() * y.sign()).reinterpret(dtype=to_polars(type_)), type_)


def rest(self: Translation, operator: str, a: Value, b: Value) -> Value:
    """``%`` and ``pmod``; null if the divisor is 0, which Polars refuses in any row."""
    (a, left), (b, right) = _as_decimal(self, a), _as_decimal(self, b)
    self.refuse_if(division_by_zero(a.expr, b.expr))
    scale = max(left.scale, right.scale)
    digits = min(left.precision - left.scale, right.precision - right.scale) + scale
    wide = pl.Decimal(MOST_DIGITS, scale)
    x, y = a.expr.cast(wide), b.expr.cast(wide)
    rest = x.abs() % pl.when(y != 0).then(y.abs())
    negative = pl.lit(0, wide) - rest
    if operator == "pmod":
        negative = pl.when((rest > 0) & (y > 0)).then(y - rest).otherwise(negative)
    rest = pl.when(x < 0).then(negative).otherwise(rest)
    return Value(rest.cast(pl.Decimal(digits, scale)), Decimal(digits, scale))


def _sum_type(a: Decimal, b: Decimal) -> Decimal:
    """The type of a sum or difference of decimals, which may have too many digits."""
    whole_digits = max(a.precision - a.scale, b.precision - b.scale)
    return Decimal(whole_digits + max(a.scale, b.scale) + 1, max(a.scale, b.scale))


def _as_decimal(self: Translation, value: Value) -> tuple[Value, Decimal]:
    if isinstance(value.type, Decimal):
        return value, value.type
    digits = DECIMAL_DIGITS[value.type.name]  # type: ignore[union-attr]
    if value.literal is not None:
        digits = len(str(abs(value.literal)))
    type_ = Decimal(digits, 0)
    return self.cast(value, type_), type_
