"""An aiohttp application on a free port of loopback, in a thread of the test process.

So a test can set faults and read requests directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

from aiohttp import web

_START_SECONDS = 120.0


@contextlib.contextmanager
def serving(make: Callable[[], web.Application]) -> Iterator[str]:
    """Serve the application of `make` until the block ends; yields ``http://127.0.0.1:PORT``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="loop-server", daemon=True)
    thread.start()

    async def start() -> tuple[web.AppRunner, int]:
        # Handlers of closed connections are cancelled, so that a hang ends with its client.
        runner = web.AppRunner(
            make(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=512).start()
        return runner, int(runner.addresses[0][1])

    try:
        runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(_START_SECONDS)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(_START_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_START_SECONDS)
        loop.close()
