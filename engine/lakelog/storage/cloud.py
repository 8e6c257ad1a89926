"""`CloudStore`: the `LogStore` of object stores with conditional writes (S3, Azure, GCS).

Each of the three has a `Cloud`: one write attempt, the meaning of errors, and listing from a key.
All three are strongly consistent, so nothing is cached here, and the driver's own caches are
bypassed. Requests name the exact key: the paths of drivers have further syntax, such as
``?versionId=``. A large file is a `PartedUpload`, which is invisible until it completes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeVar

from fsspec.asyn import sync

from lakelog.errors import (
    LakelogError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.storage.base import IN_FLIGHT, Deleted, FileEntry, TreePart, Upload, require_content
from lakelog.storage.conditional import (
    Verdict,
    deadline_s,
    describe,
    replace_until_certain,
    write_until_certain,
)
from lakelog.storage.fsspec_store import FsspecStore, unavailable
from lakelog.storage.ranged import Content, Range
from lakelog.storage.upload import BufferedUpload

T = TypeVar("T")

_LARGE_DELETIONS = 4  # number of concurrent requests that delete many files each


class Names(NamedTuple):
    """Files below a prefix, by the rest of their keys, and names of the folders directly below."""

    files: list[FileEntry]
    folders: list[str]


class Page(NamedTuple):
    """One response of a recursive listing, and the token of the next; a name ending in ``/`` is
    a folder.
    """

    files: list[FileEntry]
    token: str | None


class Cloud(Protocol):
    """One kind of object store, through its fsspec driver. Stateless."""

    @property
    def refusal(self) -> str | None:
        """Why this installation of the driver cannot write conditionally, or None."""
        ...

    async def read(self, filesystem: Any, bucket: str, key: str, span: Range | None) -> Content:
        """Read one object, or a range of it, in one request; FileNotFoundError without it."""
        ...

    async def write(
        self, filesystem: Any, bucket: str, key: str, data: bytes, *, exclusive: bool
    ) -> None:
        """Write one object, in one conditional request if `exclusive`."""
        ...

    def parts(self, filesystem: Any, bucket: str, key: str) -> Parts:
        """An upload of an object in parts, which replaces an existing object."""
        ...

    async def copy(
        self, filesystem: Any, bucket: str, source: str, target: str, size_bytes: int
    ) -> None:
        """Copy one object inside the store, replacing an existing one."""
        ...

    def judge(self, error: BaseException) -> Verdict:
        """The outcome of a failed `write`, `copy`, or end of an upload."""
        ...

    @property
    def deleted_at_once(self) -> int:
        """Number of objects that one request deletes."""
        ...

    async def delete_many(
        self, filesystem: Any, bucket: str, keys: Sequence[str]
    ) -> Mapping[str, str | None]:
        """Delete up to `deleted_at_once` objects; return the errors of those that remain, and None
        for those that did not exist, if the store reports it.
        """
        ...

    async def list_page(self, filesystem: Any, bucket: str, prefix: str, token: str | None) -> Page:
        """The first page below `prefix`, or that of a token; FileNotFoundError without a bucket."""
        ...

    async def list_names(
        self, filesystem: Any, bucket: str, prefix: str, start: str, limit: int | None
    ) -> Names:
        """Names directly below `prefix` (a trailing ``/`` ends a folder's name). May omit names
        below `start` and names beyond `limit`; raises FileNotFoundError if the bucket does not
        exist.
        """
        ...


class CloudStore(FsspecStore):
    """A folder of an object store."""

    _is_literal = True

    def __init__(self, filesystem: Any, base: str, root: str, cloud: Cloud) -> None:
        base = base.strip("/")
        super().__init__(filesystem, base, root)
        self._cloud = cloud
        # The ARN of an access point has slashes, and the driver knows where it ends.
        is_arn = base.startswith("arn:")
        self._bucket = filesystem.split_path(f"{base}/-")[0] if is_arn else base.partition("/")[0]

    @property
    def refusal(self) -> str | None:
        """None, unless the installed driver is too old to write conditionally."""
        return self._cloud.refusal

    def _names(self, folder: str, start: str = "") -> Names:
        return self._run(self._names_once(folder, start), folder)

    async def _names_once(self, folder: str, start: str = "", limit: int | None = None) -> Names:
        bucket, key = self._split(folder)
        return await self._names_of(bucket, f"{key}/" if key else "", start, limit)

    async def _names_of(self, bucket: str, prefix: str, start: str, limit: int | None) -> Names:
        try:
            return await self._cloud.list_names(self._filesystem, bucket, prefix, start, limit)
        except FileNotFoundError:
            return Names([], [])

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """Files directly in `folder` named `start` or later; names before it are not listed."""
        # A store may begin earlier, or support no start (Azurite), or no order (S3 directory
        # buckets).
        entries = [e for e in self._names(folder, start).files if e.name and e.name >= start]
        return sorted(entries, key=lambda e: e.name)

    def list_folders(self, folder: str) -> list[str]:
        """Names of the folders directly in `folder`, sorted."""
        return sorted(set(self._names(folder).folders))

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        """Whether each of these folders contains anything; one request each, concurrently."""

        async def list_all() -> list[Names]:
            return await asyncio.gather(*(self._names_once(folder, "", 1) for folder in folders))

        return [bool(n.files or n.folders) for n in self._run(list_all(), ", ".join(folders))]

    def stat(self, path: str) -> FileEntry | None:
        """Size and time of one file, or None; from a listing, which is not cached."""
        bucket, key = self._split(path)
        name = path.rsplit("/", 1)[-1]
        for entry in self._run(self._names_of(bucket, key, "", 1), path).files:
            if not entry.name:  # an empty rest is the key itself
                return entry._replace(name=name)
        return None

    async def _fetch(self, path: str, span: Range | None = None) -> Content:
        # Not by the driver's `_cat_file`, which takes a part of some keys for a version.
        bucket, key = self._split(path)
        return await self._cloud.read(self._filesystem, bucket, key, span)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file if its name is free; the request is retried at most nine times."""
        require_content(path, data)
        bucket, key = self._split_writable(path)
        cloud, filesystem = self._cloud, self._filesystem
        return self._wait(
            write_until_certain(
                lambda: cloud.write(filesystem, bucket, key, data, exclusive=True),
                cloud.judge,
                path,
                len(data),
            )
        )

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file, by one request, which is retried as in `put_if_absent`."""
        bucket, key = self._split_writable(path)
        cloud, filesystem = self._cloud, self._filesystem
        self._wait(
            replace_until_certain(
                lambda: cloud.write(filesystem, bucket, key, data, exclusive=False),
                cloud.judge,
                path,
                len(data),
            )
        )

    def upload(self, path: str) -> Upload:
        """Create or replace a file in parts, or as in `put` if it is small; see `PartedUpload`. A
        killed process leaves invisible parts: S3 stores and charges them until a lifecycle rule of
        the bucket ends incomplete uploads; Azure and GCS discard them after a week.
        """
        bucket, key = self._split_writable(path)
        parts = self._cloud.parts(self._filesystem, bucket, key)
        return PartedUpload(path, self._loop, parts, self._cloud.judge, self.put)

    def move(self, source: str, target: str) -> None:
        """Copy a file inside the store, then delete it."""
        bucket, old = self._split_writable(source)
        new = self._split(target)[1]
        found = self.stat(source)
        if found is None:
            raise NotFoundError("the file was not found", path=source)
        if old == new:
            return
        cloud, filesystem, size = self._cloud, self._filesystem, found.size_bytes
        self._wait(
            replace_until_certain(
                lambda: cloud.copy(filesystem, bucket, old, new, size), cloud.judge, source, size
            )
        )
        try:
            self.delete(source)
        except UnavailableError as cause:
            raise OutcomeUnknownError(
                "the file was copied, and may still exist under its old name",
                path=source,
                hint=f"the copy is {target}: delete the old file if it exists",
            ) from cause

    def delete(self, path: str) -> None:
        """Delete a file."""
        for error in self.delete_many([path]):
            raise error

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        """Delete files, 64 concurrently; on S3 in requests of a thousand, 4 concurrently."""
        return self.delete_existing(paths).errors

    def delete_existing(self, paths: Sequence[str]) -> Deleted:
        """As `delete_many`, and the files that did not exist, which S3 does not report."""
        if self.refusal is not None:
            raise self._refused(", ".join(paths[:3]))
        most = self._cloud.deleted_at_once
        permits = asyncio.Semaphore(IN_FLIGHT if most == 1 else _LARGE_DELETIONS)

        async def delete(share: Sequence[str]) -> Deleted:
            async with permits:
                return await self._delete_share(share)

        async def delete_all() -> Deleted:
            shares = (paths[i : i + most] for i in range(0, len(paths), most))
            found = await asyncio.gather(*(delete(share) for share in shares))
            return Deleted(
                [error for part in found for error in part.errors],
                [path for part in found for path in part.missing],
            )

        return self._wait(delete_all())

    async def _delete_share(self, paths: Sequence[str]) -> Deleted:
        keys = {self._split(path)[1]: path for path in paths}
        request = self._cloud.delete_many(self._filesystem, self._bucket, list(keys))
        try:
            failed = await asyncio.wait_for(request, deadline_s(0))
        except Exception as cause:  # noqa: BLE001 - any driver's
            return Deleted([unavailable(path, cause) for path in paths])
        errors: list[LakelogError] = [
            UnavailableError(
                f"the store did not delete it: {why}",
                path=keys[key],
                hint="check permissions, and locks on the file",
            )
            for key, why in failed.items()
            if why is not None
        ]
        return Deleted(errors, [keys[key] for key, why in failed.items() if why is None])

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        """Every file below `folder`; a batch is a page of the store's listing."""
        bucket, key = self._split(folder)
        prefix = f"{key}/" if key else ""
        token: str | None = None
        while True:
            try:
                request = self._cloud.list_page(self._filesystem, bucket, prefix, token)
                page = self._run(request, folder, deadline_s(0) * 2)
            except NotFoundError:
                return
            files = [entry for entry in page.files if entry.name and entry.name[-1] != "/"]
            if files:
                yield files
            token = page.token
            if not token:
                return

    def tree(self, folder: str = "", *, files: bool = True) -> Iterator[TreePart]:
        """As `walk`: an object store has no links."""
        yield from map(TreePart, self.walk(folder) if files else ())

    def _split_writable(self, path: str) -> tuple[str, str]:
        if self.refusal is not None:
            raise self._refused(path)
        return self._split(path)

    def _split(self, path: str) -> tuple[str, str]:
        return self._bucket, self._absolute(path)[len(self._bucket) + 1 :]

    def _run(self, coroutine: Coroutine[Any, Any, T], path: str, most_s: float | None = None) -> T:
        try:
            return self._wait(coroutine, most_s or deadline_s(0) * 10)
        except UnavailableError:
            raise
        except FileNotFoundError as cause:
            raise NotFoundError("the location was not found in the store", path=path) from cause
        except Exception as cause:
            raise unavailable(path, cause) from cause


class DeletesOneByOne:
    """One request per deletion: not all Azure endpoints have batches, and GCS charges the same."""

    @property
    def deleted_at_once(self) -> int:
        """One object per request."""
        return 1

    async def delete_many(
        self, filesystem: Any, bucket: str, keys: Sequence[str]
    ) -> Mapping[str, str | None]:
        """Delete each; see `Cloud.delete_many`."""
        missing: dict[str, str | None] = {}
        for key in keys:
            try:
                await self.delete(filesystem, bucket, key)
            except FileNotFoundError:
                missing[key] = None
        return missing

    async def delete(self, filesystem: Any, bucket: str, key: str) -> None:
        """Delete one object; FileNotFoundError without it."""
        raise NotImplementedError


PART_BYTES = 8 << 20  # a multiple of 256 KiB, for GCS; S3 takes 10,000 of at least 5 MiB


class Parts(Protocol):
    """An upload of one object in parts, which is not visible yet."""

    @property
    def in_flight(self) -> int:
        """Number of parts that may be sent concurrently."""
        ...

    async def begin(self) -> None:
        """Announce the upload; called before the first part."""
        ...

    async def send(self, number: int, data: bytes, *, last: bool) -> None:
        """Send part `number` (from 0) of `PART_BYTES` bytes, retrying transient failures; the
        `last` one may be shorter, and buffered for `finish`.
        """
        ...

    async def finish(self) -> None:
        """Create the object from the parts; may be repeated, with the same result."""
        ...

    async def abort(self) -> None:
        """Discard the parts."""
        ...


class PartedUpload(BufferedUpload):
    """An upload in parts, or one request if small. Memory: the parts in flight, and two."""

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

    def _send(self, piece: memoryview) -> None:
        self._send_part(bytes(piece), last=False)

    def _send_part(self, piece: bytes, *, last: bool) -> None:
        if not self._begun:
            self._begun = True
            self._wait(self._surely(self._parts.begin))
        while len(self._sent) >= self._parts.in_flight:
            self._sent.popleft().result()
        number, self._count = self._count, self._count + 1
        step = self._surely(lambda: self._parts.send(number, piece, last=last), len(piece))
        self._sent.append(asyncio.run_coroutine_threadsafe(step, self._loop))

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
            # If the object may exist, there is nothing to discard, or not yet.
            with contextlib.suppress(Exception):
                self._wait(asyncio.wait_for(self._parts.abort(), deadline_s(PART_BYTES)))

    async def _surely(self, step: Callable[[], Awaitable[None]], size_bytes: int = 0) -> None:
        """Run a step before the last one, with retries, because it has no visible effect."""
        try:
            await replace_until_certain(step, self._judge, self._path, size_bytes)
        except LakelogError as failure:
            cause = failure.__cause__ or failure  # the driver's
            raise UnavailableError(
                f"nothing was written: {describe(cause)}",
                path=self._path,
                hint="check the location, credentials and network, then upload the file again",
            ) from cause

    def _wait(self, step: Coroutine[Any, Any, T]) -> T:
        result: T = sync(self._loop, lambda: step)
        return result
