"""Conditional writes: interprets responses, and decides which attempts are retried.

Every attempt ends with a `Verdict`. Repeating a conditional write is safe: at worst, the name is
taken by an earlier attempt whose response was lost. The only state between attempts is therefore
whether one of them may have succeeded.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from lakelog.errors import LakelogError, OutcomeUnknownError, UnavailableError
from lakelog.redaction import redact, scrub

ATTEMPTS = 10
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_DEADLINE_S = 60.0
_SLOWEST_BYTES_A_SECOND = 1 << 20


class Verdict(NamedTuple):
    """Result of a failed write attempt: the name is `taken`, perhaps by an earlier attempt of the
    call; nothing was or will be written (`certain`); another attempt may succeed (`retry`).
    """

    taken: bool
    certain: bool
    retry: bool


TAKEN = Verdict(True, True, False)
REFUSED = Verdict(False, True, False)
BUSY = Verdict(False, True, True)
LOST = Verdict(False, False, True)
UNKNOWN = Verdict(False, False, False)

_REFUSED_STATUS = frozenset(range(400, 500)) - {408, 409, 412, 429, 499}


def judge_status(status: int) -> Verdict:
    """The verdict on an HTTP status; a proxy may send 408 and 5xx after the store has written."""
    if status in _REFUSED_STATUS:
        return REFUSED
    if status == 429:
        return BUSY
    return LOST if status in {408, 499} or status >= 500 else UNKNOWN


def deadline_s(size_bytes: int) -> float:
    """Maximum duration in seconds of a request that transfers `size_bytes`, including retries."""
    return _DEADLINE_S + size_bytes / _SLOWEST_BYTES_A_SECOND


async def write_until_certain(
    attempt: Callable[[], Awaitable[object]],
    judge: Callable[[BaseException], Verdict],
    path: str,
    size_bytes: int = 0,
    *,
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    chance: Callable[[], float] = random.random,
) -> bool:
    """Write, with at most ten attempts in about a minute; return False if the name is taken.

    Raises OutcomeUnknownError if an attempt may have succeeded, UnavailableError if none did.
    """
    doubt: Exception | None = None
    error: Exception | None = None
    try:
        async with asyncio.timeout(deadline_s(size_bytes)):
            for number in range(ATTEMPTS):
                if number:
                    longest = min(_FIRST_PAUSE_S * 2 ** (number - 1), _LONGEST_PAUSE_S)
                    await pause(longest * (0.5 + chance() / 2))
                try:
                    await attempt()
                    return True
                except LakelogError:
                    raise
                except Exception as failure:  # noqa: BLE001 - any driver's; `judge` knows them
                    verdict = judge(failure)
                    if verdict.taken:
                        return False
                    error = failure
                    if not verdict.certain:
                        doubt = failure
                    if not verdict.retry:
                        break
    except TimeoutError as late:
        doubt = late
    assert error is not None or doubt is not None
    if doubt is not None:
        raise OutcomeUnknownError(
            f"the store did not report whether the write succeeded: {describe(doubt)}",
            path=path,
            hint="read the file back before writing it again",
        ) from doubt
    assert error is not None
    raise UnavailableError(
        f"nothing was written: {describe(error)}",
        path=path,
        hint="check the location, credentials and network, then try again",
    ) from error


async def replace_until_certain(
    attempt: Callable[[], Awaitable[object]],
    judge: Callable[[BaseException], Verdict],
    path: str,
    size_bytes: int = 0,
) -> None:
    """As `write_until_certain`, for a replacement; UnavailableError if it is refused."""
    if not await write_until_certain(attempt, judge, path, size_bytes):
        raise UnavailableError(
            "nothing was written: the store does not allow the file to be replaced",
            path=path,
            hint="check for a retention policy, a lease or a lock on the file",
        )


def class_names(error: BaseException | None) -> frozenset[str]:
    """Names of an error's class and bases; drivers' libraries, and their classes, are optional."""
    return frozenset(each.__name__ for each in type(error).__mro__)


def describe(error: BaseException) -> str:
    """An error's type and first line, with the next one if that is only its heading; its
    credentials are removed, there and in the error.
    """
    scrub(error)
    text = redact(str(error))
    first, _, rest = text.partition("\n")
    if first.rstrip().endswith(":"):
        first = " ".join((first, *rest.split("\n", 1)[0].split()))
    first = first.strip()[:300]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
