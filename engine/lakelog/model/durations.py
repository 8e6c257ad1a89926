"""Durations: calendar intervals as Spark writes them, timedeltas, and milliseconds."""

from __future__ import annotations

import datetime as dt
import re

from lakelog.errors import InvalidInputError

_UNITS_MS = {
    "millisecond": 1,
    "second": 1_000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}
_PART = re.compile(
    r"(?P<count>[+-]?\d+)\s+(?P<unit>microsecond|millisecond|second|minute|hour|day|week)s?",
    re.IGNORECASE,
)

Duration = dt.timedelta | int | str
"""A duration: a timedelta, whole milliseconds, or a text such as ``30 days``."""


def parse_interval_ms(text: str) -> int:
    """Parse a calendar interval to milliseconds; months and years have no fixed length.

    >>> parse_interval_ms("interval 1 week 2 days")
    777600000
    """
    body = re.sub(r"^\s*interval\s+", "", text.strip(), flags=re.IGNORECASE)
    total = 0
    position = 0
    while position < len(body) or not body:  # an empty text has no part and is invalid
        match = _PART.match(body, position)
        if not match:
            raise InvalidInputError(
                "the interval cannot be parsed",
                found=text,
                expected="interval <n> weeks|days|hours|minutes|seconds|milliseconds",
            )
        unit = match["unit"].lower()
        count = int(match["count"])
        total += count // 1000 if unit == "microsecond" else count * _UNITS_MS[unit]
        position = match.end()
        while position < len(body) and body[position] in " ,":
            position += 1
    return total


LONGEST_MS = 60_000_000_000_000
"""About 1,900 years: subtracting it from the current time gives a valid date."""


def property_ms(text: str) -> int:
    """The interval of a table property, at most `LONGEST_MS`: it may be longer, to mean for ever.

    >>> property_ms("interval 7 days"), property_ms("interval 1000000 days")
    (604800000, 60000000000000)
    """
    return min(parse_interval_ms(text), LONGEST_MS)


def to_duration_ms(value: Duration) -> int:
    """A duration in milliseconds.

    >>> to_duration_ms("interval 1 week"), to_duration_ms(dt.timedelta(hours=1)), to_duration_ms(5)
    (604800000, 3600000, 5)
    """
    if isinstance(value, str):
        found = parse_interval_ms(value)
    elif isinstance(value, dt.timedelta):
        found = value // dt.timedelta(milliseconds=1)
    else:
        found = value
    if type(found) is not int or not 0 <= found <= LONGEST_MS:
        raise InvalidInputError(
            "invalid duration",
            expected="milliseconds, a timedelta, or a text such as '30 days'",
            found=repr(value),
        )
    return found


def duration_text(duration_ms: int) -> str:
    """A duration for display, which `to_duration_ms` can parse.

    >>> duration_text(604_800_000), duration_text(5_400_000), duration_text(0)
    ('7 days', '1 hour 30 minutes', '0 milliseconds')
    """
    parts: list[str] = []
    rest = duration_ms
    for unit in ("day", "hour", "minute", "second", "millisecond"):
        count, rest = divmod(rest, _UNITS_MS[unit])
        if count:
            parts.append(f"{count} {unit}" + "s" * (count != 1))
    return " ".join(parts) or "0 milliseconds"
