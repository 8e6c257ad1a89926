"""Points in time as callers give them, in milliseconds since the Unix epoch."""

from __future__ import annotations

import datetime as dt

from lakelog.errors import InvalidInputError

Timestamp = int | str | dt.datetime | dt.date


def to_ms(timestamp: Timestamp) -> int:
    """A point in time as milliseconds since the Unix epoch; without a zone it is UTC.

    Raises:
        InvalidInputError: It is no time.

    >>> to_ms("1970-01-02"), to_ms("1970-01-01T01:00:00+01:00"), to_ms(5)
    (86400000, 0, 5)
    """
    if isinstance(timestamp, bool) or timestamp is None:
        raise InvalidInputError("a timestamp is wanted", found=timestamp)
    if isinstance(timestamp, int):
        return timestamp
    if isinstance(timestamp, str):
        if timestamp.lstrip("-").isdigit() and len(timestamp.lstrip("-")) > 4:
            return int(timestamp)
        try:
            timestamp = dt.datetime.fromisoformat(timestamp)
        except ValueError as cause:
            raise InvalidInputError(
                "the timestamp cannot be parsed",
                found=timestamp,
                expected="ISO 8601, or milliseconds since 1970, of five digits or more",
            ) from cause
    if isinstance(timestamp, dt.datetime):
        aware = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)
        return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    if isinstance(timestamp, dt.date):
        return to_ms(dt.datetime.combine(timestamp, dt.time(), dt.UTC))
    raise InvalidInputError(
        "a timestamp is wanted", found=repr(timestamp), expected="int, str, date or datetime"
    )
