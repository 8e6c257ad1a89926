"""A reverse proxy that understands HTTP, for faults, round trips, and a log of every request.

Only a proxy can lose an answer after the effect: the server commits, the client sees a broken
connection, and the automatic reaction of the client's driver is part of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from multidict import CIMultiDict
from yarl import URL

from tests.storage.loop_server import serving

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}
)
_HANG_SECONDS = 120.0
_LARGEST_BODY_BYTES = 1 << 30

# The answer of S3 to a conditional PUT while another one is in flight.
_CONFLICT_BODY = (
    "<?xml version='1.0' encoding='UTF-8'?><Error><Code>ConditionalRequestConflict</Code>"
    "<Message>The conditional request cannot succeed due to a conflicting operation against this "
    "resource.</Message><Condition>If-None-Match</Condition></Error>"
)


class Fault(enum.Enum):
    """The fault of one request; "after" means that the server has done its work."""

    TOO_MANY = "429"
    CONFLICT = "409"
    FAILED = "500"
    BUSY = "503"
    BUSY_AFTER = "503 after"
    RESET = "reset"
    RESET_AFTER = "reset after"
    HANG = "hang"
    HANG_AFTER = "hang after"
    TRUNCATED = "truncated"

    @property
    def status(self) -> int | None:
        """The HTTP status of the answer, if there is one."""
        code = self.value.split()[0]
        return int(code) if code.isdigit() else None

    @property
    def takes_effect(self) -> bool:
        """Whether the server sees the request."""
        return self in {Fault.BUSY_AFTER, Fault.RESET_AFTER, Fault.HANG_AFTER, Fault.TRUNCATED}


@dataclass
class Rule:
    """Which requests get a fault: the first `times` whose method and target match.

    Attributes:
        fault: The fault.
        method: Regular expression of the whole method.
        target: Regular expression, searched in the undecoded path and query.
        times: How many more requests get it.
    """

    fault: Fault
    method: str = ".*"
    target: str = ""
    times: int = 1

    def takes(self, method: str, target: str) -> bool:
        """Whether this request gets the fault; if so, counts it."""
        if self.times < 1 or not re.fullmatch(self.method, method):
            return False
        if not re.search(self.target, target):
            return False
        self.times -= 1
        return True


@dataclass
class Seen:
    """One request, as sent.

    Attributes:
        method: Its method.
        target: Path and query, undecoded.
        headers: Its headers.
        size_bytes: Length of its body.
        fault: Its fault, if any.
        status: Status of the server's answer; None if the server did not get the request.
    """

    method: str
    target: str
    headers: CIMultiDict[str]
    size_bytes: int
    fault: Fault | None = None
    status: int | None = None


@dataclass
class ChaosProxy:
    """A running proxy, and its rules.

    Attributes:
        upstream: URL of the server behind it.
        url: Its own URL.
        quiet_s: Each request waits until no other one arrived for this long; then all are
            forwarded.
        round_trips: Number of such groups of requests.
        rules: Future faults; the first rule that matches a request decides.
        requests: All requests so far, in order of arrival.
    """

    upstream: str
    url: str = ""
    quiet_s: float = 0.0
    round_trips: int = 0
    rules: list[Rule] = field(default_factory=list)
    requests: list[Seen] = field(default_factory=list)
    _session: ClientSession | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _gate: asyncio.Event | None = None
    _last_s: float = 0.0

    @contextlib.contextmanager
    def doing(self, *rules: Rule, quiet_s: float = 0.0) -> Iterator[list[Seen]]:
        """Apply these rules within the block; yields the list of its requests."""
        with self._lock:
            self.rules, self.requests = list(rules), []
            self.quiet_s, self.round_trips = quiet_s, 0
            seen = self.requests
        try:
            yield seen
        finally:
            with self._lock:
                self.rules, self.requests, self.quiet_s = [], [], 0.0

    def application(self) -> web.Application:
        """The proxy as an application."""
        app = web.Application(client_max_size=_LARGEST_BODY_BYTES)
        app.cleanup_ctx.append(self._upstream_session)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def _upstream_session(self, _app: web.Application) -> AsyncIterator[None]:
        async with ClientSession(
            connector=TCPConnector(limit=0),
            auto_decompress=False,
            cookie_jar=DummyCookieJar(),
            skip_auto_headers=["User-Agent", "Accept-Encoding", "Content-Type", "Accept"],
            timeout=ClientTimeout(total=None),
        ) as self._session:
            yield

    def _note(self, request: web.Request, size_bytes: int) -> Seen:
        with self._lock:
            rules = self.rules
            fault = next(
                (r.fault for r in rules if r.takes(request.method, request.raw_path)), None
            )
            headers = CIMultiDict(request.headers)
            seen = Seen(request.method, request.raw_path, headers, size_bytes, fault)
            self.requests.append(seen)
            return seen

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        seen = self._note(request, len(body))
        if self.quiet_s:
            await self._wait_for_the_others()
        fault = seen.fault
        if fault is None:
            return await self._forward(request, body, seen)
        answer = await self._forward(request, body, seen) if fault.takes_effect else web.Response()
        if fault is Fault.TRUNCATED:
            return await _truncated(request, answer)
        if fault in {Fault.HANG, Fault.HANG_AFTER}:
            await asyncio.sleep(_HANG_SECONDS)
        if fault is Fault.CONFLICT:
            return web.Response(status=409, text=_CONFLICT_BODY, content_type="application/xml")
        if fault.status is not None:
            return web.Response(status=fault.status, text="chaos")
        return _reset(request)

    async def _wait_for_the_others(self) -> None:
        """Counts round trips independently of the machine's speed, unlike a fixed latency.

        Requests that are sent without waiting for an answer count as one.
        """
        now = asyncio.get_running_loop().time
        self._last_s = now()
        if self._gate is not None:
            await self._gate.wait()
            return
        gate = self._gate = asyncio.Event()
        while True:
            rest = self._last_s + self.quiet_s - now()
            if rest <= 0:
                break
            await asyncio.sleep(rest)
        self._gate = None
        self.round_trips += 1
        gate.set()

    async def _forward(self, request: web.Request, body: bytes, seen: Seen) -> web.Response:
        assert self._session is not None
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP]
        async with self._session.request(
            request.method,
            URL(self.upstream + request.raw_path, encoded=True),
            headers=headers,
            data=body if body or request.method in {"PUT", "POST"} else None,
            allow_redirects=False,
        ) as answer:
            content = await answer.read()
            seen.status = answer.status
            kept = CIMultiDict(
                (k, v) for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP
            )
            if request.method != "HEAD":  # whose length is the file's
                kept.popall("Content-Length", None)
            if "Location" in kept:  # an upload session continues through the proxy
                kept["Location"] = kept["Location"].replace(self.upstream, self.url)
            return web.Response(status=answer.status, headers=kept, body=content or None)


def _reset(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _truncated(request: web.Request, whole: web.StreamResponse) -> web.StreamResponse:
    """The headers of the whole answer, half of its body, and the end of the connection."""
    body = whole.body if isinstance(whole, web.Response) else None
    content = bytes(body) if isinstance(body, bytes | bytearray) else b""
    headers = CIMultiDict(whole.headers)
    headers["Content-Length"] = str(len(content))
    half = web.StreamResponse(status=whole.status, headers=headers)
    await half.prepare(request)
    await half.write(content[: len(content) // 2])
    await asyncio.sleep(0.01)  # an immediate abort would discard unsent data
    if request.transport is not None:
        request.transport.abort()
    return half


@contextlib.contextmanager
def proxying(upstream: str) -> Iterator[ChaosProxy]:
    """A proxy in front of `upstream`, until the block ends."""
    proxy = ChaosProxy(upstream)
    with serving(proxy.application) as url:
        proxy.url = url
        yield proxy
