"""Points in time: from what callers give to milliseconds since the Unix epoch, and to text."""

from __future__ import annotations

import datetime as dt
import re

from lakelog.errors import InvalidInputError
from lakelog.input_validation import require_int

Timestamp = int | str | dt.datetime | dt.date

_MOST_MS = 1 << 62
_MILLISECONDS = re.compile(r"-?[0-9]{5,18}")


def to_ms(timestamp: Timestamp) -> int:
    """A point in time as milliseconds since the Unix epoch; without a zone it is UTC.

    >>> to_ms("1970-01-02"), to_ms("1970-01-01T01:00:00+01:00"), to_ms(5)
    (86400000, 0, 5)
    """
    if isinstance(timestamp, bool) or timestamp is None:
        raise InvalidInputError("invalid timestamp", found=timestamp)
    if isinstance(timestamp, int):
        return require_int("timestamp", timestamp, -_MOST_MS, _MOST_MS)
    if isinstance(timestamp, str):
        if _MILLISECONDS.fullmatch(timestamp):
            return int(timestamp)
        try:
            timestamp = dt.datetime.fromisoformat(timestamp)
        except ValueError as cause:
            raise InvalidInputError(
                "the timestamp cannot be parsed",
                found=timestamp,
                expected="ISO 8601, or milliseconds since 1970-01-01 with at least five digits",
            ) from cause
    if isinstance(timestamp, dt.datetime):
        aware = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)
        return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    if isinstance(timestamp, dt.date):
        return to_ms(dt.datetime.combine(timestamp, dt.time(), dt.UTC))
    raise InvalidInputError(
        "invalid timestamp", found=repr(timestamp), expected="int, str, date or datetime"
    )


def iso_text(at_ms: int) -> str:
    """A point in time as ISO 8601; in milliseconds if it is beyond the years 1 to 9999.

    >>> iso_text(1_700_000_000_123), iso_text(1 << 60)
    ('2023-11-14T22:13:20.123Z', '1152921504606846976 ms')
    """
    try:
        at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
