"""Amazon S3 and what speaks like it, through s3fs: ``If-None-Match: *`` on PutObject.

s3fs retries on its own, and so does botocore under it, and the last error says nothing of the
attempts before. So botocore's own events before and after each attempt are recorded, and a write
counts as not carried out only if every one of them was refused, or never connected.

A server that ignores the condition cannot be told from one that honours it. Amazon S3, MinIO,
Cloudflare R2 and Ceph (since Squid) document that they honour it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from importlib import metadata
from typing import Any

from lakelog.storage.base import FileEntry
from lakelog.storage.cloud import Names
from lakelog.storage.conditional import (
    BUSY,
    LOST,
    REFUSED,
    TAKEN,
    UNKNOWN,
    Verdict,
    class_names,
    deadline_s,
    judge_status,
)

_CONFIG: Mapping[str, Any] = {
    "max_pool_connections": 64,
    "connect_timeout": 5,
    "read_timeout": 15,
    "retries": {"mode": "standard", "max_attempts": 3},
}
_BOTOCORE = (1, 35, 20)
_NEVER_SENT = {"ConnectTimeoutError", "EndpointConnectionError", "ProxyConnectionError"}
_BEFORE = "before-send.s3.PutObject"
_AFTER = "needs-retry.s3.PutObject"
_HOOK = "lakelog-attempts"

# Outcome of each attempt of the write that the current task carries out.
_ATTEMPTS: ContextVar[list[Verdict] | None] = ContextVar("lakelog_s3_attempts", default=None)


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Storage options with time-outs and a pool of connections where the caller names none."""
    config = {**_CONFIG, **(options.get("config_kwargs") or {})}
    return {**options, "config_kwargs": config}


class S3:
    """S3; see `lakelog.storage.cloud.Cloud`."""

    @property
    def refusal(self) -> str | None:
        """Botocore before 1.35.20 drops the condition without a word."""
        installed = metadata.version("botocore")
        if tuple(int(part) for part in installed.split(".")[:3] if part.isdigit()) < _BOTOCORE:
            needed = ".".join(map(str, _BOTOCORE))
            return (
                f"botocore {installed} cannot create a file only if it is absent, but {needed} "
                "and newer can"
            )
        return None

    def read_options(self, filesystem: Any) -> dict[str, Any]:
        """One GET: with more concurrency, s3fs asks for the size first."""
        known = inspect.signature(type(filesystem)._cat_file).parameters  # noqa: SLF001 - fsspec's async name
        return {"max_concurrency": 1} if "max_concurrency" in known else {}

    async def write(
        self, filesystem: Any, bucket: str, key: str, data: bytes, *, exclusive: bool
    ) -> None:
        """One PutObject, whatever the size: up to 5 GB."""
        condition = {"IfNoneMatch": "*"} if exclusive else {}
        await filesystem.set_session()
        client = await filesystem.get_s3(bucket)
        client.meta.events.register(_BEFORE, _begin_attempt, unique_id=f"{_HOOK}-begin")
        client.meta.events.register(_AFTER, _end_attempt, unique_id=f"{_HOOK}-end")
        attempts: list[Verdict] = []
        token = _ATTEMPTS.set(attempts)
        try:
            await filesystem._call_s3(  # noqa: SLF001 - the documented way to other calls, as coroutine
                "put_object", Bucket=bucket, Key=key, Body=data, **condition
            )
        except Exception as error:
            raise _PutFailed(tuple(attempts)) from error
        finally:
            _ATTEMPTS.reset(token)

    def judge(self, error: BaseException) -> Verdict:
        """By the attempts that were made; without one, the request was never sent."""
        if not isinstance(error, _PutFailed):
            return UNKNOWN
        if TAKEN in error.attempts:
            return TAKEN
        if any(not attempt.certain for attempt in error.attempts):
            return UNKNOWN  # s3fs has tried often enough
        return BUSY if BUSY in error.attempts[-1:] else REFUSED

    async def list_names(
        self, filesystem: Any, bucket: str, prefix: str, start: str, limit: int | None
    ) -> Names:
        """ListObjectsV2 with ``StartAfter``, page by page."""
        names = Names([], [])
        page: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
        if limit is None:
            page["Delimiter"] = "/"
        else:
            page["MaxKeys"] = limit
        if len(start) > 1:
            # It is exclusive: the start without its last character is the nearest key before.
            page["StartAfter"] = prefix + start[:-1]
        while True:
            request = filesystem._call_s3("list_objects_v2", **page)  # noqa: SLF001 - as above
            answer = await asyncio.wait_for(request, deadline_s(0))
            for item in answer.get("Contents", ()):
                modified = int(item["LastModified"].timestamp() * 1000)
                names.files.append(
                    FileEntry(item["Key"].removeprefix(prefix), int(item["Size"]), modified)
                )
            for item in answer.get("CommonPrefixes", ()):
                names.folders.append(item["Prefix"].removeprefix(prefix).rstrip("/"))
            token = answer.get("NextContinuationToken")
            if not token or (limit is not None and len(names.files) >= limit):
                return names
            page["ContinuationToken"] = token


class _PutFailed(Exception):  # noqa: N818 - it carries the cause, and goes no further than `judge`
    """A PutObject failed, with the verdicts on its attempts."""

    def __init__(self, attempts: tuple[Verdict, ...]) -> None:
        super().__init__(attempts)
        self.attempts = attempts

    def __str__(self) -> str:
        cause = self.__cause__
        return f"{type(cause).__name__}: {cause}" if cause is not None else "no cause"


def _begin_attempt(**_: Any) -> None:
    attempts = _ATTEMPTS.get()
    if attempts is not None:
        # Until there is word of it: an answer that cannot be parsed ends without any.
        attempts.append(LOST)


def _end_attempt(
    response: tuple[Any, dict[str, Any]] | None = None,
    caught_exception: BaseException | None = None,
    **_: Any,
) -> None:
    attempts = _ATTEMPTS.get()
    if not attempts:
        return
    if caught_exception is not None:
        attempts[-1] = _judge_connection(caught_exception)
    elif response is not None:
        code = str(response[1].get("Error", {}).get("Code", ""))
        attempts[-1] = _judge_answer(int(response[0].status_code), code)


def _judge_answer(status: int, code: str) -> Verdict:
    if status == 412:
        return TAKEN
    if 300 <= status < 400:
        return REFUSED  # to another region, where the next attempt goes
    if status == 409:
        # ConditionalRequestConflict: another request for the key was under way, and this one
        # wrote nothing, though there may be nothing there in the end.
        return BUSY
    return BUSY if code == "SlowDown" else judge_status(status)


def _judge_connection(error: BaseException) -> Verdict:
    return REFUSED if _NEVER_SENT & class_names(error) else LOST
