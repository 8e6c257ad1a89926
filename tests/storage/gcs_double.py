"""A double of Google Cloud Storage: the part of its JSON API that file systems use.

No emulator in the registries supports preconditions, so this one exists. Precondition and write run
without an ``await`` between them, so one of two creations wins. It verifies the requests of lakelog
and gcsfs and how they handle the answers; it verifies nothing about Google's service.

Objects: insert (media, multipart, resumable), get, media with ranges, list (prefix, delimiter,
startOffset, endOffset, maxResults, pageToken), rewrite, delete, and delete in a batch.
Preconditions: ifGenerationMatch and ifGenerationNotMatch.
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import datetime as dt
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import google_crc32c
from aiohttp import web

from tests.storage.loop_server import serving

_LARGEST_PAGE = 1000
_LARGEST_BODY_BYTES = 1 << 30
_FIRST_GENERATION = 1_700_000_000_000_000


@dataclass(frozen=True)
class Blob:
    """One generation of an object."""

    bucket: str
    name: str
    data: bytes
    generation: int
    content_type: str
    updated: dt.datetime

    @property
    def crc32c(self) -> str:
        """The checksum in Google's encoding."""
        checksum: bytes = google_crc32c.value(self.data).to_bytes(4, "big")
        return base64.b64encode(checksum).decode()

    def resource(self) -> dict[str, Any]:
        """The object's metadata."""
        stamp = self.updated.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "kind": "storage#object",
            "id": f"{self.bucket}/{self.name}/{self.generation}",
            "bucket": self.bucket,
            "name": self.name,
            "generation": str(self.generation),
            "metageneration": "1",
            "contentType": self.content_type,
            "size": str(len(self.data)),
            "md5Hash": base64.b64encode(hashlib.md5(self.data).digest()).decode(),
            "crc32c": self.crc32c,
            "etag": str(self.generation),
            "timeCreated": stamp,
            "updated": stamp,
            "storageClass": "STANDARD",
        }


@dataclass
class _Upload:
    """A resumable upload; once it is complete, its answer is the object."""

    bucket: str
    name: str
    content_type: str
    query: Mapping[str, str]
    data: bytearray = field(default_factory=bytearray)
    resource: dict[str, Any] | None = None


class _RefusedError(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def answer(self) -> web.Response:
        """The answer in Google's form."""
        detail = {"domain": "global", "reason": self.reason, "message": self.message}
        error = {"code": self.status, "message": self.message, "errors": [detail]}
        return web.json_response({"error": error}, status=self.status)


class GcsDouble:
    """The service: buckets of blobs, by name. All handlers run in one event loop."""

    def __init__(self) -> None:
        self.url = ""
        self._buckets: dict[str, dict[str, Blob]] = {}
        self._uploads: dict[str, _Upload] = {}
        self._rewrites: dict[str, tuple[str, ...]] = {}
        self.rewrite_calls = 1  # number of calls until a rewrite is done
        self.held_back_bytes = 0  # of each chunk of an upload but the last, as Google may
        self._generations = itertools.count(_FIRST_GENERATION)
        self._upload_ids = itertools.count(1)

    def application(self) -> web.Application:
        """The service as an application."""
        app = web.Application(client_max_size=_LARGEST_BODY_BYTES, middlewares=[_errors])
        route = app.router.add_route
        route("POST", "/storage/v1/b", self._create_bucket)
        route("GET", "/storage/v1/b", self._list_buckets)
        route("GET", "/storage/v1/b/{bucket}", self._get_bucket)
        route("GET", "/storage/v1/b/{bucket}/o", self._list)
        route("GET", "/storage/v1/b/{bucket}/o/{name:.*}", self._get)
        route("DELETE", "/storage/v1/b/{bucket}/o/{name:.*}", self._delete)
        route("POST", "/storage/v1/b/{bucket}/o/{name:.*}", self._rewrite)
        route("GET", "/download/storage/v1/b/{bucket}/o/{name:.*}", self._download)
        route("POST", "/upload/storage/v1/b/{bucket}/o", self._upload)
        route("PUT", "/upload/storage/v1/b/{bucket}/o", self._upload)
        route("DELETE", "/upload/storage/v1/b/{bucket}/o", self._cancel_upload)
        route("POST", "/batch/storage/v1", self._batch)
        return app

    def fill(self, bucket: str, names: Mapping[str, bytes]) -> None:
        """Create many objects at once, without requests."""
        for name, data in names.items():
            self._put(bucket, name, data, "application/octet-stream")

    # --- state ---------------------------------------------------------------------------------

    def _bucket(self, bucket: str) -> dict[str, Blob]:
        try:
            return self._buckets[bucket]
        except KeyError:
            raise _RefusedError(404, "notFound", "The specified bucket does not exist.") from None

    def _blob(self, bucket: str, name: str) -> Blob:
        try:
            return self._bucket(bucket)[name]
        except KeyError:
            raise _RefusedError(404, "notFound", f"No such object: {bucket}/{name}") from None

    def _check(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        """Check the preconditions; generation 0 is that of a name without an object."""
        current = self._bucket(bucket).get(name)
        generation = current.generation if current else 0
        wanted, unwanted = query.get("ifGenerationMatch"), query.get("ifGenerationNotMatch")
        if (wanted is not None and int(wanted) != generation) or (
            unwanted is not None and int(unwanted) == generation
        ):
            text = "At least one of the pre-conditions you specified did not hold."
            raise _RefusedError(412, "conditionNotMet", text)

    def _put(self, bucket: str, name: str, data: bytes, content_type: str) -> Blob:
        now = dt.datetime.now(dt.UTC)
        blob = Blob(bucket, name, data, next(self._generations), content_type, now)
        self._bucket(bucket)[name] = blob
        return blob

    def _insert(
        self, bucket: str, name: str, data: bytes, content_type: str, query: Mapping[str, str]
    ) -> web.Response:
        # A plain function: no other handler runs between the check and the write.
        self._check(bucket, name, query)
        return web.json_response(self._put(bucket, name, data, content_type).resource())

    # --- buckets -------------------------------------------------------------------------------

    async def _create_bucket(self, request: web.Request) -> web.Response:
        name = (await request.json())["name"]
        if name in self._buckets:
            raise _RefusedError(409, "conflict", "You already own this bucket.")
        self._buckets[name] = {}
        return web.json_response(_bucket_resource(name))

    async def _list_buckets(self, _request: web.Request) -> web.Response:
        return web.json_response({"items": [_bucket_resource(name) for name in self._buckets]})

    async def _get_bucket(self, request: web.Request) -> web.Response:
        name = request.match_info["bucket"]
        self._bucket(name)
        return web.json_response(_bucket_resource(name))

    # --- objects -------------------------------------------------------------------------------

    async def _list(self, request: web.Request) -> web.Response:
        query = request.query
        blobs = self._bucket(request.match_info["bucket"])
        page = _page(
            sorted(blobs),
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            first=query.get("startOffset", ""),
            end=query.get("endOffset", ""),
            after=_decode_token(query.get("pageToken", "")),
            limit=min(_LARGEST_PAGE, int(query.get("maxResults", _LARGEST_PAGE))),
        )
        body: dict[str, Any] = {"kind": "storage#objects"}
        if page.names:
            body["items"] = [blobs[name].resource() for name in page.names]
        if page.prefixes:
            body["prefixes"] = page.prefixes
        if page.last is not None:
            body["nextPageToken"] = _encode_token(page.last)
        return web.json_response(body)

    async def _get(self, request: web.Request) -> web.Response:
        blob = self._blob(*_address(request))
        if request.query.get("alt") == "media":
            return _content(request, blob)
        return web.json_response(blob.resource())

    async def _download(self, request: web.Request) -> web.Response:
        return _content(request, self._blob(*_address(request)))

    async def _delete(self, request: web.Request) -> web.Response:
        bucket, name = _address(request)
        self._blob(bucket, name)
        self._check(bucket, name, request.query)
        del self._buckets[bucket][name]
        return web.Response(status=204)

    async def _rewrite(self, request: web.Request) -> web.Response:
        raw = request.raw_path.partition("?")[0].partition("/storage/v1/b/")[2]
        found = re.fullmatch("([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)", raw)
        if found is None:
            raise _RefusedError(404, "notFound", "Not Found")
        names = tuple(unquote(group) for group in found.groups())
        source_bucket, source, bucket, target = names
        blob = self._blob(source_bucket, source)
        token = request.query.get("rewriteToken")
        if token is not None and self._rewrites.pop(token, None) != names:
            raise _RefusedError(400, "invalid", "No such rewrite.")
        calls = int(token.rpartition("-")[2]) if token else 1
        if calls < self.rewrite_calls:
            token = f"{next(self._upload_ids)}-{calls + 1}"
            self._rewrites[token] = names
            return web.json_response({"done": False, "rewriteToken": token})
        self._check(bucket, target, request.query)
        copied = self._put(bucket, target, blob.data, blob.content_type)
        return web.json_response({"done": True, "resource": copied.resource()})

    @property
    def unfinished_uploads(self) -> int:
        """Number of resumable uploads that are neither complete nor cancelled."""
        return sum(upload.resource is None for upload in self._uploads.values())

    async def _batch(self, request: web.Request) -> web.Response:
        """Deletions, each a small HTTP request in one part of the body."""
        parts = (await request.read()).split(b"--" + _boundary(request))[1:-1]
        answers = []
        for part in parts:
            asked = re.search(rb"DELETE \S*?/storage/v1/b/([^/\s]+)/o/([^\s?]+)", part)
            if asked is None:
                raise _RefusedError(400, "invalid", "a batch supports only deletions")
            bucket, name = (unquote(group.decode()) for group in asked.groups())
            there = self._bucket(bucket).pop(name, None)
            content_id = re.search(rb"(?i)content-id:\s*<?([^>\r\n]+)", part)
            answers.append(
                "--answer\r\nContent-Type: application/http\r\n"
                f"Content-ID: <response-{content_id[1].decode() if content_id else ''}>\r\n\r\n"
                f"HTTP/1.1 {'204 No Content' if there else '404 Not Found'}\r\n"
                "Content-Length: 0\r\n\r\n\r\n"
            )
        return web.Response(
            text="".join(answers) + "--answer--",
            headers={"Content-Type": "multipart/mixed; boundary=answer"},
        )

    # --- uploads -------------------------------------------------------------------------------

    async def _upload(self, request: web.Request) -> web.Response:
        body = await request.read()  # the last await of every path below
        query = request.query
        bucket = request.match_info["bucket"]
        self._bucket(bucket)
        if "upload_id" in query:
            return self._continue_upload(request, body)
        kind = query.get("uploadType")
        if kind == "media":
            content_type = request.headers.get("Content-Type", "application/octet-stream")
            return self._insert(bucket, query["name"], body, content_type, query)
        if kind == "multipart":
            described, content_type, data = _multipart(body, _boundary(request))
            name = described.get("name") or query["name"]
            return self._insert(bucket, name, data, content_type, query)
        if kind == "resumable":
            return self._start_upload(request, body)
        raise _RefusedError(400, "invalid", f"unknown uploadType: {kind}")

    def _start_upload(self, request: web.Request, body: bytes) -> web.Response:
        query = request.query
        bucket = request.match_info["bucket"]
        name = json.loads(body or b"{}").get("name") or query["name"]
        self._check(bucket, name, query)
        upload_id = str(next(self._upload_ids))
        content_type = request.headers.get("X-Upload-Content-Type", "application/octet-stream")
        self._uploads[upload_id] = _Upload(bucket, name, content_type, dict(query))
        location = (
            f"{self.url}/upload/storage/v1/b/{quote(bucket)}/o"
            f"?uploadType=resumable&upload_id={upload_id}"
        )
        return web.Response(headers={"Location": location})

    def _continue_upload(self, request: web.Request, body: bytes) -> web.Response:
        upload_id = request.query["upload_id"]
        upload = self._uploads.get(upload_id)
        if upload is None:
            raise _RefusedError(404, "notFound", "No such upload.")
        if upload.resource is not None:
            return web.json_response(upload.resource)
        span, _, total = request.headers.get("Content-Range", "").partition(" ")[2].partition("/")
        first = 0 if not span else len(upload.data) if span == "*" else int(span.split("-")[0])
        if first > len(upload.data):
            raise _RefusedError(400, "invalid", "Bytes are missing before these.")
        new = body[len(upload.data) - first :]  # bytes that are already stored are ignored
        if total == "*" and len(new) > self.held_back_bytes:
            new = new[: len(new) - self.held_back_bytes]
        upload.data += new
        if total == "*" or (total and int(total) > len(upload.data)):
            held = {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}
            return web.Response(status=308, headers=held)
        self._check(upload.bucket, upload.name, upload.query)
        blob = self._put(upload.bucket, upload.name, bytes(upload.data), upload.content_type)
        upload.resource = blob.resource()
        return web.json_response(upload.resource)

    async def _cancel_upload(self, request: web.Request) -> web.Response:
        self._uploads.pop(request.query.get("upload_id", ""), None)
        return web.Response(status=499)


@dataclass
class _Page:
    """One page of a listing; `last` is the position of the next one."""

    names: list[str]
    prefixes: list[str]
    last: str | None = None


def _page(
    ordered: list[str], *, prefix: str, delimiter: str, first: str, end: str, after: str, limit: int
) -> _Page:
    """The names from `first` (included) to `end` (excluded), grouped at the delimiter.

    Names are ordered by their UTF-8 bytes, which is the order of their code points.
    """
    page = _Page([], [])
    last = ""
    for name in ordered[bisect.bisect_left(ordered, max(prefix, first)) :]:
        if not name.startswith(prefix) or (end and name >= end):
            break
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        shown = name[: cut + len(delimiter)] if cut >= 0 else name
        if (after and shown <= after) or shown == last:
            continue
        if len(page.names) + len(page.prefixes) == limit:
            page.last = last
            break
        (page.prefixes if cut >= 0 else page.names).append(shown)
        last = shown
    return page


def _content(request: web.Request, blob: Blob) -> web.Response:
    """The content, or the requested range."""
    data = blob.data
    headers = {
        "ETag": f'"{blob.generation}"',
        "x-goog-generation": str(blob.generation),
        "x-goog-hash": f"crc32c={blob.crc32c}",
    }
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("Range", ""))
    if asked is None:
        return web.Response(body=data, headers=headers, content_type=blob.content_type)
    first, last = asked.groups()
    if first:
        start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
    else:
        start, end = max(0, len(data) - int(last)), len(data)
    if start >= len(data):
        return web.Response(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
    return web.Response(
        status=206, body=data[start:end], headers=headers, content_type=blob.content_type
    )


def _multipart(body: bytes, boundary: bytes) -> tuple[dict[str, Any], str, bytes]:
    """Description, content type and content; gcsfs ends lines with LF, which is accepted."""
    start = re.compile(
        rb"\s*--" + re.escape(boundary) + rb"\r?\n(?P<head>.*?)\r?\n\r?\n(?P<json>.*?)\r?\n--"
        rb"" + re.escape(boundary) + rb"\r?\n(?P<type>.*?)\r?\n\r?\n",
        re.DOTALL,
    ).match(body)
    close = re.compile(rb"\r?\n--" + re.escape(boundary) + rb"--\s*\Z").search(
        body, max(0, len(body) - len(boundary) - 16)
    )
    if start is None or close is None:
        raise _RefusedError(400, "badContent", "Malformed multipart body.")
    found = re.search(rb"(?i)content-type:\s*([^\r\n]+)", start["type"])
    content_type = found[1].decode() if found else "application/octet-stream"
    return json.loads(start["json"]), content_type, body[start.end() : close.start()]


def _boundary(request: web.Request) -> bytes:
    found = re.search(r'boundary="?([^";]+)', request.headers.get("Content-Type", ""))
    if found is None:
        raise _RefusedError(400, "badContent", "No boundary.")
    return found[1].encode()


def _address(request: web.Request) -> tuple[str, str]:
    """Bucket and name, from the raw path.

    The router's own decoding differs from Google's if a name has an encoded slash or percent sign.
    """
    raw = request.raw_path.partition("?")[0]
    _, _, rest = raw.partition("/b/")
    bucket, _, name = rest.partition("/o/")
    return unquote(bucket), unquote(name)


def _encode_token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decode_token(token: str) -> str:
    return base64.urlsafe_b64decode(token).decode()


def _bucket_resource(name: str) -> dict[str, str]:
    stamp = "2026-01-01T00:00:00.000Z"
    common = {"kind": "storage#bucket", "id": name, "name": name, "storageClass": "STANDARD"}
    return {**common, "location": "US", "timeCreated": stamp, "updated": stamp}


@web.middleware
async def _errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        answer: web.StreamResponse = await handler(request)
    except _RefusedError as refused:
        return refused.answer()
    return answer


@contextlib.contextmanager
def gcs_double() -> Iterator[GcsDouble]:
    """The service on a free port of loopback, until the block ends."""
    double = GcsDouble()
    with serving(double.application) as url:
        double.url = url
        yield double
