"""Google Cloud Storage through gcsfs: ``ifGenerationMatch=0`` on uploads.

gcsfs repeats requests, and the last error does not describe earlier attempts. An upload therefore
calls gcsfs's function for a single request, and `lakelog.storage.conditional` repeats it. Tested
against a test double that implements preconditions, not against Google's servers.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import io
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from lakelog.storage.base import FileEntry, report_progress
from lakelog.storage.cloud import DeletesOneByOne, Names, Page
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

_CONNECT_S, _READ_S = 10, 20
_MANY = 1000
_INCOMPLETE = 308  # status of an upload that expects more bytes


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with a default time-out, which gcsfs lacks, and without generations in keys."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S)
    return {"requests_timeout": timeout, **options, "version_aware": False}


class Gcs(DeletesOneByOne):
    """Google Cloud Storage; see `lakelog.storage.cloud.Cloud`."""

    @property
    def refusal(self) -> str | None:
        """Set if this version of gcsfs lacks the function for a single request."""
        import gcsfs

        if not hasattr(gcsfs.GCSFileSystem._request, "__wrapped__"):
            return f"lakelog does not support writes with gcsfs {gcsfs.__version__}"
        return None

    async def read(self, filesystem: Any, bucket: str, key: str, span: Range | None) -> Content:
        """One GET."""
        part = {} if span is None else {"Range": f"bytes={span[0]}-{span[1] - 1}"}
        url = filesystem.url(f"{bucket}/{key}")
        headers, content = await filesystem._call("GET", url, headers=part)
        return content, headers.get("ETag")

    async def delete(self, filesystem: Any, bucket: str, key: str) -> None:
        """Objects: delete."""
        await filesystem._call("DELETE", "b/{}/o/{}", bucket, key)

    async def write(
        self, filesystem: Any, bucket: str, key: str, data: bytes, *, exclusive: bool
    ) -> None:
        """One simple upload, whatever the size."""
        condition = {"ifGenerationMatch": "0"} if exclusive else {}
        await _request_once(
            filesystem,
            "POST",
            _upload_url(filesystem, bucket),
            headers={"Content-Type": "application/octet-stream"},
            data=io.BytesIO(data),  # aiohttp sends large bytes objects in one blocking call
            uploadType="media",
            name=key,
            **condition,
        )

    def parts(self, filesystem: Any, bucket: str, key: str) -> _Session:
        """A resumable upload."""
        return _Session(filesystem, bucket, key)

    async def copy(
        self,
        filesystem: Any,
        bucket: str,
        source: str,
        target: str,
        size_bytes: int,  # noqa: ARG002 - any
    ) -> None:
        """Objects: rewrite, repeated until it is done; the target appears with the last request."""
        names = (bucket, source, bucket, target)
        token: dict[str, str] = {}
        while True:
            _, _, _, content = await _request_once(
                filesystem,
                "POST",
                "b/{}/o/{}/rewriteTo/b/{}/o/{}",
                *names,
                headers={"Content-Type": "application/json"},
                **token,
            )
            answer = json.loads(content)
            if answer["done"]:
                return
            token = {"rewriteToken": answer["rewriteToken"]}

    def judge(self, error: BaseException) -> Verdict:
        """By gcsfs's error; without a response, by whether it connected."""
        names = class_names(error)
        if isinstance(error, FileExistsError):
            return TAKEN  # 412
        if isinstance(error, FileNotFoundError):
            return REFUSED  # 404: no such bucket
        if "HttpError" in names:
            code = str(getattr(error, "code", None) or "")
            return judge_status(int(code)) if code.isdigit() else LOST
        if names & {"ClientConnectorError", "GoogleAuthError"}:
            return BUSY  # no connection was established, or no token was received
        if names & {"ClientError", "RequestException", "TimeoutError"}:
            return LOST
        if type(error) is OSError and str(error).startswith("Forbidden"):
            return REFUSED  # 403
        return UNKNOWN

    async def list_page(self, filesystem: Any, bucket: str, prefix: str, token: str | None) -> Page:
        """Objects: list without a delimiter."""
        page: dict[str, Any] = {"prefix": prefix, "maxResults": _MANY}
        if token is not None:
            page["pageToken"] = token
        answer = await filesystem._call("GET", "b/{}/o", bucket, json_out=True, **page)
        files = [_entry(item, prefix) for item in answer.get("items", ())]
        return Page(files, answer.get("nextPageToken") or None)

    async def list_names(
        self, filesystem: Any, bucket: str, prefix: str, start: str, limit: int | None
    ) -> Names:
        """Objects: list with ``startOffset``, page by page."""
        names = Names([], [])
        page: dict[str, Any] = {"prefix": prefix, "maxResults": limit or _MANY}
        if limit is None:
            page["delimiter"] = "/"
        if start:
            page["startOffset"] = prefix + start  # inclusive
        while True:
            request = filesystem._call("GET", "b/{}/o", bucket, json_out=True, **page)
            answer = await asyncio.wait_for(request, deadline_s(0) * 2)
            names.files.extend(_entry(item, prefix) for item in answer.get("items", ()))
            report_progress()
            for folder in answer.get("prefixes", ()):
                names.folders.append(folder.removeprefix(prefix).rstrip("/"))
            token = answer.get("nextPageToken")
            if not token or (limit is not None and len(names.files) >= limit):
                return names
            page["pageToken"] = token


class _Session:
    """A resumable upload; after a failed attempt, asks the server what it has received."""

    in_flight = 1  # bytes are sent in order

    def __init__(self, filesystem: Any, bucket: str, key: str) -> None:
        self._filesystem = filesystem
        self._bucket, self._key = bucket, key
        self._url = ""
        self._sent_bytes = 0
        self._in_doubt = False
        self._rest = b""

    async def begin(self) -> None:
        headers, _ = await self._filesystem._call(
            "POST",
            _upload_url(self._filesystem, self._bucket),
            headers={"X-Upload-Content-Type": "application/octet-stream"},
            uploadType="resumable",
            name=self._key,
        )
        self._url = headers["Location"]

    async def send(self, number: int, data: bytes, *, last: bool) -> None:  # noqa: ARG002 - in order
        if last:
            self._rest = data
            return
        await self._push(data, "*")
        self._sent_bytes += len(data)

    async def finish(self) -> None:
        await self._push(self._rest, str(self._sent_bytes + len(self._rest)))

    async def abort(self) -> None:
        if self._url:
            await _request_once(self._filesystem, "DELETE", self._url)

    async def _push(self, data: bytes, total: str) -> None:
        """Send until the session has all of `data`, or creates an object of known length."""
        start, end = self._sent_bytes, self._sent_bytes + len(data)
        at: int | None = start
        if self._in_doubt:
            at = await self._put(b"", f"bytes */{total}")
        self._in_doubt = True
        while at is not None and (at < end or total != "*"):
            if not start <= at < end:
                raise OSError(f"the upload is at byte {at}, not from {start} to {end}")
            before = at
            at = await self._put(data[at - start :], f"bytes {at}-{end - 1}/{total}")
            if at is not None and at <= before:
                raise OSError(f"the upload does not proceed beyond byte {at}")
        self._in_doubt = False

    async def _put(self, data: bytes, content_range: str) -> int | None:
        """Number of bytes that the session has received; None if the object was created."""
        status, headers, _, _ = await _request_once(
            self._filesystem,
            "PUT",
            self._url,
            headers={"Content-Range": content_range, "Content-Type": "application/octet-stream"},
            data=io.BytesIO(data),
        )
        if status != _INCOMPLETE:
            return None
        held = headers.get("Range")  # byte range from 0, both ends inclusive
        return int(held.rpartition("-")[2]) + 1 if held else 0


async def _request_once(filesystem: Any, method: str, url: str, *names: str, **rest: Any) -> Any:
    """One request, below gcsfs's retries: status, headers, request, content."""
    once = type(filesystem)._request.__wrapped__
    return await once(filesystem, method, url, *names, **rest)


def _upload_url(filesystem: Any, bucket: str) -> str:
    return f"{filesystem._location}/upload/storage/v1/b/{quote(bucket, safe='')}/o"


def _entry(item: Mapping[str, Any], prefix: str) -> FileEntry:
    at = dt.datetime.fromisoformat(item.get("updated") or item["timeCreated"])
    name, size = item["name"].removeprefix(prefix), int(item.get("size", 0))
    return FileEntry(name, size, int(at.timestamp() * 1000))
