"""The asyncio interface of an `Ingestor`: its calls run in threads, which share fsyncs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import polars as pl

from lakelog.ingest.ingestor import Ingestor
from lakelog.ingest.state import IngestStatus
from lakelog.input_validation import require_int
from lakelog.threads import Pool

_T = TypeVar("_T")


class AsyncIngestor:
    """Awaitable calls of an `Ingestor`, for programs with an event loop.

    Each call runs in a thread, so that the loop continues while a row becomes durable. Concurrent
    calls share one fsync. If an awaiting task is cancelled, its call still ends and writes.
    A call that waits for a full backlog occupies its thread; more than `threads` calls queue up.

    Args:
        ingestor: The Ingestor. It is closed by `close`, and can be used directly too.
        threads: Number of calls that run at a time.

    Example:
        >>> async def record(table, row):
        ...     async with AsyncIngestor(Ingestor(table, "events-ingest")) as ingestor:
        ...         return await ingestor.write(row)
    """

    def __init__(self, ingestor: Ingestor, *, threads: int = 16) -> None:
        self._ingestor = ingestor
        threads = require_int("threads", threads, 1, 1024)
        self._pool = Pool(threads, thread_name_prefix="lakelog-ingest-call")
        self._closing: Future[None] | None = None
        self._outcome: asyncio.Future[None] | None = None

    @property
    def ingestor(self) -> Ingestor:
        """The Ingestor."""
        return self._ingestor

    async def write(
        self, rows: Any, *, source: str | None = None, offset: int | None = None
    ) -> int:
        """`Ingestor.write`."""
        return await self._call(partial(self._ingestor.write, rows, source=source, offset=offset))

    async def delete(self, keys: Any) -> int:
        """`Ingestor.delete`."""
        return await self._call(partial(self._ingestor.delete, keys))

    async def flush(self) -> int:
        """`Ingestor.flush`."""
        return await self._call(self._ingestor.flush)

    async def read_your_writes(self) -> pl.LazyFrame:
        """`Ingestor.read_your_writes`; collect the frame with ``collect_async``."""
        return await self._call(self._ingestor.read_your_writes)

    async def offsets(self) -> dict[str, int]:
        """`Ingestor.offsets`."""
        return await self._call(self._ingestor.offsets)

    def status(self) -> IngestStatus:
        """`Ingestor.status`, which does not wait."""
        return self._ingestor.status()

    async def close(self, *, flush: bool = True) -> None:
        """`Ingestor.close`, after the calls that are in progress. If the awaiting task is
        cancelled, the Ingestor is closed nevertheless. Another call waits for that, and raises its
        error.
        """
        if self._closing is None:
            if self._ingestor.is_closed:
                return
            self._ingestor._begin_closing()  # noqa: SLF001 - else calls that wait would delay it
            self._closing = self._pool.submit(partial(self._ingestor.close, flush=flush))
        # One future for all calls: asyncio logs its error only if it was raised in none of them.
        if self._outcome is None or self._outcome.get_loop() is not asyncio.get_running_loop():
            self._outcome = asyncio.wrap_future(self._closing)
        try:
            await asyncio.shield(self._outcome)
        finally:
            if self._closing.done():
                self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(self, function: Callable[[], _T]) -> _T:
        if self._ingestor.is_closed:
            return function()  # it raises
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, function)
