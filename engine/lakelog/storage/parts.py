"""`PartedUpload`: a multi-part upload to an object store, invisible until it completes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from fsspec.asyn import sync

from lakelog.errors import UnavailableError
from lakelog.storage.conditional import Verdict, deadline_s, describe, replace_until_certain
from lakelog.storage.upload import BufferedUpload

T = TypeVar("T")

PART_BYTES = 8 << 20  # a multiple of 256 KiB, for GCS; S3 takes 10,000 of at least 5 MiB


class Parts(Protocol):
    """What an object store has received of one object that is not there yet."""

    @property
    def in_flight(self) -> int:
        """How many parts may be sent at the same time."""
        ...

    async def begin(self) -> None:
        """Announce it; before the first part."""
        ...

    async def send(self, number: int, data: bytes, *, last: bool) -> None:
        """Send a part; again, where that failed in a way that may pass.

        Args:
            number: 0 and on.
            data: `PART_BYTES`, or fewer and not none in the last.
            last: There is none after it; it may be kept for `finish`.
        """
        ...

    async def finish(self) -> None:
        """Make the object appear; once, or as often as it takes, for it is the same again."""
        ...

    async def abort(self) -> None:
        """Throw away what was sent."""
        ...


class PartedUpload(BufferedUpload):
    """An upload that is one request if it fits in a part.

    Memory: `PART_BYTES`, and as much for each part that may be in flight, and one more.
    """

    def __init__(
        self,
        path: str,
        loop: asyncio.AbstractEventLoop,
        parts: Parts,
        judge: Callable[[BaseException], Verdict],
        put: Callable[[str, bytes], None],
    ) -> None:
        super().__init__(path, PART_BYTES)
        self._loop = loop
        self._parts = parts
        self._judge = judge
        self._put = put
        self._sent: deque[Future[None]] = deque()
        self._count = 0
        self._begun = False
        self._appeared = False

    def _send(self, piece: bytes) -> None:
        self._send_part(piece, last=False)

    def _send_part(self, piece: bytes, *, last: bool) -> None:
        if not self._begun:
            self._begun = True
            self._wait(self._surely(self._parts.begin()))
        while len(self._sent) >= self._parts.in_flight:
            self._sent.popleft().result()
        number, self._count = self._count, self._count + 1
        sending = replace_until_certain(
            lambda: self._parts.send(number, piece, last=last), self._judge, self._path, len(piece)
        )
        step = asyncio.run_coroutine_threadsafe(self._surely(sending), self._loop)
        self._sent.append(step)

    def _finish(self, rest: bytes) -> None:
        if not self._count:
            self._put(self._path, rest)
            return
        self._send_part(rest, last=True)
        while self._sent:
            self._sent.popleft().result()
        self._wait(replace_until_certain(self._parts.finish, self._judge, self._path, len(rest)))
        self._appeared = True

    def _discard(self) -> None:
        while self._sent:
            self._sent.popleft().cancel()
        if self._begun and not self._appeared:
            # Where it may have appeared nothing is left to throw away, or it has not yet.
            with contextlib.suppress(Exception):
                self._wait(self._surely(self._parts.abort()))

    async def _surely(self, step: Coroutine[Any, Any, None]) -> None:
        """A step before the last, which shows nothing, however it ends."""
        try:
            async with asyncio.timeout(deadline_s(PART_BYTES)):
                await step
        except Exception as cause:
            raise UnavailableError(
                f"nothing was written: {describe(cause)}",
                path=self._path,
                hint="check the location, credentials and network, then upload the file again",
            ) from cause

    def _wait(self, step: Coroutine[Any, Any, T]) -> T:
        result: T = sync(self._loop, lambda: step)
        return result
