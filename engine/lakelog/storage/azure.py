"""Azure Blob Storage through adlfs: ``If-None-Match: *`` on Put Blob.

Uploads use the SDK's client with one attempt each, so that the outcome of each attempt is known;
`lakelog.storage.conditional` repeats them. The SDK's own policy waits 15 seconds and more before it
repeats a request, so its pauses are shortened for other requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

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

_TIMEOUTS: Mapping[str, Any] = {"connection_timeout": 10, "read_timeout": 20}
_ONE_REQUEST_BYTES = 64 << 20  # the SDK sends longer content in blocks, and commits them at the end
_LOOKS_AT_COPY_S = 0.5
_FILE_MARK: Mapping[str, str] = {"is_directory": "false"}  # the mark of folders for adlfs
_FIRST_PAUSE_S, _PAUSE_BASE, _JITTER_S = 0.2, 1.6, 0.1

# No connection was established, or no token was received.
_NEVER_SENT = frozenset(
    ("ClientAuthenticationError", "ClientConnectorError", "ServiceRequestTimeoutError")
)
_TAKEN_CODES = frozenset(
    (
        *("BlobAlreadyExists", "PathAlreadyExists", "ResourceAlreadyExists"),
        *("ConditionNotMet", "TargetConditionNotMet"),
        # The blob exists, and the caller may create but not replace it, or it is immutable.
        *("UnauthorizedBlobOverwrite", "BlobImmutableDueToPolicy"),
    )
)


def with_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Storage options with time-outs; not ``timeout``, which the SDK uses for the server only."""
    return {**_TIMEOUTS, **options}


def shorten_pauses(filesystem: Any) -> None:
    """Make the SDK repeat a request after a fraction of a second; adlfs has no option for it."""
    client = getattr(filesystem, "service_client", None)
    policies = getattr(getattr(client, "_pipeline", None), "_impl_policies", ())
    for policy in policies:
        if hasattr(policy, "initial_backoff") and hasattr(policy, "increment_base"):
            policy.initial_backoff = _FIRST_PAUSE_S
            policy.increment_base = _PAUSE_BASE
            policy.random_jitter_range = _JITTER_S


class Azure(DeletesOneByOne):
    """Azure Blob Storage; see `lakelog.storage.cloud.Cloud`."""

    @property
    def refusal(self) -> str | None:
        """None: every SDK that adlfs supports writes conditionally."""
        return None

    async def read(self, filesystem: Any, bucket: str, key: str, span: Range | None) -> Content:
        """One GET at a time, of up to 32 MB."""
        start, end = span or (0, None)
        part = {} if end is None else {"offset": start, "length": end - start}
        options = {**_timeouts(filesystem), **part}
        async with filesystem.service_client.get_blob_client(container=bucket, blob=key) as blob:
            with _converting(key):
                stream = await blob.download_blob(max_concurrency=1, **options)
                return bytes(await stream.readall()), stream.properties.etag

    async def delete(self, filesystem: Any, bucket: str, key: str) -> None:
        """One Delete Blob."""
        async with filesystem.service_client.get_blob_client(container=bucket, blob=key) as blob:
            with _converting(key):
                await blob.delete_blob(**_timeouts(filesystem))

    async def write(
        self, filesystem: Any, bucket: str, key: str, data: bytes, *, exclusive: bool
    ) -> None:
        """One Put Blob; above 64 MB, blocks, which are invisible until they are committed."""
        options = _timeouts(filesystem)
        if len(data) <= _ONE_REQUEST_BYTES:
            options["retry_total"] = 0
        async with filesystem.service_client.get_blob_client(container=bucket, blob=key) as blob:
            await blob.upload_blob(
                data=bytes(data),
                overwrite=not exclusive,
                metadata=dict(_FILE_MARK),
                **options,
            )

    def parts(self, filesystem: Any, bucket: str, key: str) -> _Blocks:
        """Blocks, which become the blob when their list is committed."""
        return _Blocks(filesystem, bucket, key)

    async def copy(
        self,
        filesystem: Any,
        bucket: str,
        source: str,
        target: str,
        size_bytes: int,  # noqa: ARG002 - any
    ) -> None:
        """One Copy Blob, which usually completes immediately within one account; otherwise wait,
        because the target is empty until then.
        """
        client, options = filesystem.service_client, _timeouts(filesystem)
        async with (
            client.get_blob_client(container=bucket, blob=source) as old,
            client.get_blob_client(container=bucket, blob=target) as new,
        ):
            answer = await new.start_copy_from_url(old.url, retry_total=0, **options)
            status = answer.get("copy_status")
            while status == "pending":
                await asyncio.sleep(_LOOKS_AT_COPY_S)
                status = (await new.get_blob_properties(**options)).copy.status
            if status != "success":
                raise OSError(f"the copy ended with status {status}")

    def judge(self, error: BaseException) -> Verdict:
        """By the error code, else the HTTP status; without a response, by whether it connected."""
        names = class_names(error)
        status = getattr(error, "status_code", None)
        if "HttpResponseError" in names and status is not None:
            code = getattr(error, "error_code", None)  # text or an enum member
            return _judge_answer(int(status), str(getattr(code, "value", code) or ""))
        if names & _NEVER_SENT or _NEVER_SENT & class_names(
            getattr(error, "inner_exception", None)
        ):
            return BUSY
        if "AzureError" in names:
            return LOST
        return UNKNOWN

    async def list_page(self, filesystem: Any, bucket: str, prefix: str, token: str | None) -> Page:
        """List Blobs without a delimiter."""
        options = _timeouts(filesystem)
        options.pop("timeout", None)
        names = Names([], [])
        async with filesystem.service_client.get_container_client(container=bucket) as container:
            listed = container.list_blobs(name_starts_with=prefix, include=["metadata"], **options)
            pages = listed.by_page(continuation_token=token)
            page = await _next_page(pages, bucket)
            if page is None:
                return Page([], None)
            async for item in page:
                _sort_in(item, prefix, names)
            return Page(names.files, pages.continuation_token or None)

    async def list_names(
        self, filesystem: Any, bucket: str, prefix: str, start: str, limit: int | None
    ) -> Names:
        """List Blobs with ``startFrom``, which Azurite and older SDKs ignore, page by page."""
        options = _timeouts(filesystem)
        options.pop("timeout", None)
        if start:
            options["start_from"] = prefix + start
        try:
            return await self._list(filesystem, bucket, prefix, limit, options)
        except TypeError:
            if "start_from" not in options:
                raise
            del options["start_from"]
            return await self._list(filesystem, bucket, prefix, limit, options)

    async def _list(
        self, filesystem: Any, bucket: str, prefix: str, limit: int | None, options: dict[str, Any]
    ) -> Names:
        names = Names([], [])
        async with filesystem.service_client.get_container_client(container=bucket) as container:
            options = {**options, "name_starts_with": prefix, "include": ["metadata"]}
            if limit is None:
                pages = container.walk_blobs(delimiter="/", **options).by_page()
            else:
                pages = container.list_blobs(results_per_page=limit, **options).by_page()
            while True:
                page = await _next_page(pages, bucket)
                if page is None:
                    return names
                report_progress()
                async for item in page:
                    _sort_in(item, prefix, names)
                if limit is not None and len(names.files) + len(names.folders) >= limit:
                    return names


class _Blocks:
    """Blocks of one blob; see `lakelog.storage.cloud.Parts`."""

    in_flight = 2

    def __init__(self, filesystem: Any, bucket: str, key: str) -> None:
        self._filesystem = filesystem
        self._bucket, self._key = bucket, key
        # Concurrent writers of a blob share the names of blocks, which must have equal length.
        self._mark = uuid.uuid4().hex
        self._count = 0

    async def begin(self) -> None:
        """Azure needs no announcement."""

    async def send(self, number: int, data: bytes, *, last: bool) -> None:  # noqa: ARG002 - as any other
        self._count = max(self._count, number + 1)
        options = _timeouts(self._filesystem)
        async with self._blob() as blob:
            await blob.stage_block(
                self._name(number), data, length=len(data), retry_total=0, **options
            )

    async def finish(self) -> None:
        names = [self._name(number) for number in range(self._count)]
        options = _timeouts(self._filesystem)
        async with self._blob() as blob:
            await blob.commit_block_list(names, metadata=dict(_FILE_MARK), retry_total=0, **options)

    async def abort(self) -> None:
        """Nothing to do: Azure discards the blocks after a week, or when the blob is written."""

    def _name(self, number: int) -> str:
        return f"{self._mark}{number:06d}"

    def _blob(self) -> Any:
        return self._filesystem.service_client.get_blob_client(
            container=self._bucket, blob=self._key
        )


def _timeouts(filesystem: Any) -> dict[str, Any]:
    return dict(getattr(filesystem, "_timeout_kwargs", None) or _TIMEOUTS)


async def _next_page(pages: Any, bucket: str) -> Any:
    """A page of a listing, or None after the last."""
    try:
        with _converting(bucket):
            return await asyncio.wait_for(anext(pages), deadline_s(0))
    except StopAsyncIteration:
        return None


@contextlib.contextmanager
def _converting(name: str) -> Iterator[None]:
    """Raise FileNotFoundError for the SDK's error of a missing blob or container."""
    try:
        yield
    except Exception as cause:
        if "ResourceNotFoundError" in class_names(cause):
            raise FileNotFoundError(name) from cause
        raise


def _sort_in(item: Any, prefix: str, names: Names) -> None:
    name = str(item.name).removeprefix(prefix)
    if name.endswith("/"):
        names.folders.append(name.rstrip("/"))
    elif _is_folder(getattr(item, "metadata", None)):
        # Folders in listings of hierarchical namespaces, and of adlfs on flat ones.
        names.folders.append(name)
    else:
        modified = int(item.last_modified.timestamp() * 1000)
        names.files.append(FileEntry(name, int(item.size or 0), modified))


def _is_folder(metadata: Mapping[str, str] | None) -> bool:
    marks = {name.lower(): value for name, value in (metadata or {}).items()}
    return marks.get("hdi_isfolder") == "true" or marks.get("is_directory") == "true"


def _judge_answer(status: int, code: str) -> Verdict:
    if code in _TAKEN_CODES or status == 412:
        return TAKEN
    if status == 409:
        return REFUSED  # a lease, or a container being deleted; not the condition
    return judge_status(status)
