"""Single values as text for the terminal. Imports nothing heavy."""

from __future__ import annotations

import datetime as dt
import os


def colour_wanted() -> bool | None:
    """False if the user asked for plain text (NO_COLOR, TERM=dumb, CLICOLOR=0), True for colours
    in a pipe too (CLICOLOR_FORCE); None: terminals get colours.
    """
    get = os.environ.get
    if get("NO_COLOR") or get("TERM") == "dumb":
        return False
    if get("CLICOLOR_FORCE", "0") != "0":
        return True
    return False if get("CLICOLOR") == "0" else None


def count(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "file"), count(1200, "commit"), count(2, "property"), count(2, "day")
    ('1 file', '1,200 commits', '2 properties', '2 days')
    """
    if number != 1:
        changes = noun.endswith("y") and noun[-2] not in "aeiou"
        noun = noun[:-1] + "ies" if changes else noun + "s"
    return f"{number:,} {noun}"


def time_text(moment: dt.datetime | None) -> str:
    """A time in UTC, ISO 8601, with the digits after the second that are not zero."""
    if moment is None:
        return "unknown"
    spec = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    if not moment.microsecond:
        spec = "seconds"
    return moment.replace(tzinfo=None).isoformat(timespec=spec) + "Z"


def seconds_text(seconds: float) -> str:
    """A duration as text.

    >>> seconds_text(0.0042), seconds_text(3.21), seconds_text(600), seconds_text(9000)
    ('4 ms', '3.2 s', '10 minutes', '2.5 hours')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    units = (("days", 86_400), ("hours", 3_600), ("minutes", 60))
    for name, length in units:
        if seconds >= 2 * length:
            return f"{round(seconds / length, 1):g} {name}"
    return f"{seconds:.1f} s"
