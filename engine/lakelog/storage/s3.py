"""Amazon S3 and compatible stores through s3fs: ``If-None-Match: *`` on PutObject.

s3fs and botocore retry on their own, and the last error does not describe earlier attempts.
Therefore botocore's events record every attempt, and a write counts as not written only if each
attempt was rejected or never connected.

A server that ignores the condition cannot be detected. Amazon S3, MinIO, Cloudflare R2 and Ceph
(since Squid) document that they support it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from importlib import metadata
from typing import Any, cast

from fsspec.asyn import sync

from lakelog.storage.base import FileEntry, report_progress
from lakelog.storage.cloud import Names, Page
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
from lakelog.storage.ranged import Content, Range

_CONFIG: Mapping[str, Any] = {
    "max_pool_connections": 64,
    "connect_timeout": 5,
    "read_timeout": 15,
    "retries": {"mode": "standard", "max_attempts": 3},
}
_BOTOCORE = (1, 35, 20)
_NEVER_SENT = {"ConnectTimeoutError", "EndpointConnectionError", "ProxyConnectionError"}
_BEFORE = "before-send.s3"
_AFTER = "needs-retry.s3"  # botocore calls handlers of the more general name later
_HOOK = "lakelog-attempts"
_OUTCOMES = "lakelog_attempts"  # attribute of an error: outcomes of the attempts of its call
_MOST_DELETED = 1000
_COPIED_AT_ONCE_BYTES = 4 << 30  # S3 copies up to 5 GB in one request
_COPIED_PART_BYTES = 512 << 20

# Outcome of each attempt of the call in the current task.
_ATTEMPTS: ContextVar[list[Verdict] | None] = ContextVar("lakelog_s3_attempts", default=None)


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Storage options with default time-outs and connection pool."""
    config = {**_CONFIG, **(options.get("config_kwargs") or {})}
    return {**options, "config_kwargs": config}


def make_session(filesystem: Any) -> None:
    """Make the session and client, which s3fs defers to the first request: this checks the names
    and values of the options, without a request to the store.
    """
    sync(filesystem.loop, filesystem.set_session, timeout=deadline_s(0))


class S3:
    """S3; see `lakelog.storage.cloud.Cloud`."""

    @property
    def refusal(self) -> str | None:
        """Set for botocore before 1.35.20, which ignores the condition silently."""
        installed = metadata.version("botocore")
        if tuple(int(part) for part in installed.split(".")[:3] if part.isdigit()) < _BOTOCORE:
            needed = ".".join(map(str, _BOTOCORE))
            return f"botocore {installed} has no atomic put-if-absent; {needed} and newer have it"
        return None

    async def read(self, filesystem: Any, bucket: str, key: str, span: Range | None) -> Content:
        """One GetObject, repeated also if its response ends early."""
        from s3fs.core import _error_wrapper

        part = {} if span is None else {"Range": f"bytes={span[0]}-{span[1] - 1}"}

        async def get() -> Content:
            answer = await filesystem._call_s3("get_object", Bucket=bucket, Key=key, **part)
            with contextlib.closing(answer["Body"]) as body:
                return await body.read(), answer.get("ETag")

        return cast("Content", await _error_wrapper(get, retries=filesystem.retries))

    async def write(
        self, filesystem: Any, bucket: str, key: str, data: bytes, *, exclusive: bool
    ) -> None:
        """One PutObject, whatever the size: up to 5 GB."""
        condition = {"IfNoneMatch": "*"} if exclusive else {}
        await _call(filesystem, "put_object", Bucket=bucket, Key=key, Body=data, **condition)

    def parts(self, filesystem: Any, bucket: str, key: str) -> _Parts:
        """A multipart upload."""
        return _Parts(filesystem, bucket, key)

    async def copy(
        self, filesystem: Any, bucket: str, source: str, target: str, size_bytes: int
    ) -> None:
        """One CopyObject; above 4 GB, a multipart upload of which each part is copied."""
        copied = {"Bucket": bucket, "Key": source}
        if size_bytes <= _COPIED_AT_ONCE_BYTES:
            address = {"Bucket": bucket, "Key": target}
            await _call(filesystem, "copy_object", **address, CopySource=copied)
            return
        parts = _Parts(filesystem, bucket, target)
        await parts.begin()
        try:
            for number, first in enumerate(range(0, size_bytes, _COPIED_PART_BYTES)):
                last = min(first + _COPIED_PART_BYTES, size_bytes) - 1
                await parts.copy(number, copied, f"bytes={first}-{last}")
            await parts.finish()
        except BaseException:
            with contextlib.suppress(Exception):
                await parts.abort()
            raise

    def judge(self, error: BaseException) -> Verdict:
        """By the recorded attempts; without one, the request was never sent."""
        attempts: tuple[Verdict, ...] | None = getattr(error, _OUTCOMES, None)
        if attempts is None:
            return UNKNOWN
        if TAKEN in attempts:
            return TAKEN
        last = attempts[-1] if attempts else REFUSED
        if all(attempt.certain for attempt in attempts):
            return last
        # s3fs has exhausted its retries, of about 2 s.
        return LOST if last.retry else UNKNOWN

    @property
    def deleted_at_once(self) -> int:
        """The limit of DeleteObjects."""
        return _MOST_DELETED

    async def delete_many(
        self, filesystem: Any, bucket: str, keys: Sequence[str]
    ) -> Mapping[str, str | None]:
        """One DeleteObjects request; for one object DeleteObject, which every server supports."""
        if len(keys) == 1:
            with contextlib.suppress(FileNotFoundError):
                await filesystem._call_s3("delete_object", Bucket=bucket, Key=keys[0])
            return {}
        wanted = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = await filesystem._call_s3("delete_objects", Bucket=bucket, Delete=wanted)
        return {
            error["Key"]: f"{error.get('Code')}: {error.get('Message')}"
            for error in answer.get("Errors", ())
            if error.get("Code") != "NoSuchKey"
        }

    async def list_page(self, filesystem: Any, bucket: str, prefix: str, token: str | None) -> Page:
        """ListObjectsV2 without a delimiter."""
        page = {"Bucket": bucket, "Prefix": prefix}
        if token is not None:
            page["ContinuationToken"] = token
        answer = await filesystem._call_s3("list_objects_v2", **page)
        files = [_entry(item, prefix) for item in answer.get("Contents", ())]
        return Page(files, answer.get("NextContinuationToken") or None)

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
            # It is exclusive: the start without its last character is the nearest smaller key.
            page["StartAfter"] = prefix + start[:-1]
        while True:
            request = filesystem._call_s3("list_objects_v2", **page)
            answer = await asyncio.wait_for(request, deadline_s(0))
            names.files.extend(_entry(item, prefix) for item in answer.get("Contents", ()))
            report_progress()
            for item in answer.get("CommonPrefixes", ()):
                names.folders.append(item["Prefix"].removeprefix(prefix).rstrip("/"))
            token = answer.get("NextContinuationToken")
            if not token or (limit is not None and len(names.files) >= limit):
                return names
            page["ContinuationToken"] = token


def _entry(item: Mapping[str, Any], prefix: str) -> FileEntry:
    modified = int(item["LastModified"].timestamp() * 1000)
    return FileEntry(item["Key"].removeprefix(prefix), int(item["Size"]), modified)


class _Parts:
    """A multipart upload; see `lakelog.storage.cloud.Parts`."""

    in_flight = 2

    def __init__(self, filesystem: Any, bucket: str, key: str) -> None:
        self._filesystem = filesystem
        self._address = {"Bucket": bucket, "Key": key}
        self._done: dict[int, dict[str, Any]] = {}

    async def begin(self) -> None:
        answer = await self._ask("create_multipart_upload")
        self._address["UploadId"] = answer["UploadId"]

    async def send(self, number: int, data: bytes, *, last: bool) -> None:  # noqa: ARG002 - as any other
        self._note(number, await self._ask("upload_part", PartNumber=number + 1, Body=data))

    async def copy(self, number: int, source: Mapping[str, str], byte_range: str) -> None:
        answer = await self._ask(
            "upload_part_copy",
            PartNumber=number + 1,
            CopySource=source,
            CopySourceRange=byte_range,
        )
        self._note(number, answer["CopyPartResult"])

    def _note(self, number: int, answer: Mapping[str, Any]) -> None:
        # A checksum must be reported only if the caller's options request one.
        kept = {name: answer[name] for name in ("ETag", "ChecksumSHA256") if name in answer}
        self._done[number] = {"PartNumber": number + 1, **kept}

    async def finish(self) -> None:
        parts = [self._done[number] for number in sorted(self._done)]
        await self._ask("complete_multipart_upload", MultipartUpload={"Parts": parts})

    async def abort(self) -> None:
        if "UploadId" in self._address:
            await self._ask("abort_multipart_upload")

    async def _ask(self, method: str, **arguments: Any) -> Any:
        return await _call(self._filesystem, method, **self._address, **arguments)


async def _call(filesystem: Any, method: str, **arguments: Any) -> Any:
    """One write request; the driver's error gets the outcome of each attempt, for `judge`."""
    await filesystem.set_session()
    client = await filesystem.get_s3(arguments["Bucket"])
    call = "".join(word.capitalize() for word in method.split("_"))
    for event, hook in ((_BEFORE, _begin_attempt), (_AFTER, _end_attempt)):
        name = f"{event}.{call}"
        client.meta.events.register(name, hook, unique_id=f"{_HOOK}-{name}")
    attempts: list[Verdict] = []
    token = _ATTEMPTS.set(attempts)
    try:
        return await filesystem._call_s3(method, **arguments)
    except Exception as error:
        setattr(error, _OUTCOMES, tuple(attempts))
        raise
    finally:
        _ATTEMPTS.reset(token)


def _begin_attempt(**_: Any) -> None:
    attempts = _ATTEMPTS.get()
    if attempts is not None:
        # Until an event replaces it: a response that cannot be parsed has no event.
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
        attempts[-1] = BUSY if _NEVER_SENT & class_names(caught_exception) else LOST
    elif response is not None:
        code = str(response[1].get("Error", {}).get("Code", ""))
        attempts[-1] = _judge_answer(int(response[0].status_code), code)


def _judge_answer(status: int, code: str) -> Verdict:
    if status == 412:
        return TAKEN
    if 300 <= status < 400:
        return REFUSED  # the next attempt is sent to another region
    if status == 409:
        # ConditionalRequestConflict: this request wrote nothing, because another one for the key
        # was in progress, which may fail in the end.
        return BUSY
    return BUSY if code == "SlowDown" else judge_status(status)
