"""`CloudStore`: the `LogStore` of an object store that writes conditionally (S3, Azure, GCS).

What differs between the three is their `Cloud`: how to write once, how to read an error, and how
to list from a key. All three list and read what was written at once (strong consistency), so
nothing is cached here, and the driver's own caches are passed by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from lakelog.errors import UnavailableError
from lakelog.storage.base import FileEntry, require_content
from lakelog.storage.conditional import Verdict, deadline_s, write_until_certain
from lakelog.storage.remote import FsspecStore, unavailable

T = TypeVar("T")


class Names(NamedTuple):
    """What stands below a prefix.

    Attributes:
        files: Files, by the rest of their keys after the prefix.
        folders: Names of the folders directly below.
    """

    files: list[FileEntry]
    folders: list[str]


class Cloud(Protocol):
    """One kind of object store, through its fsspec driver. Stateless."""

    @property
    def refusal(self) -> str | None:
        """Why this installation of the driver cannot write conditionally, or None."""
        ...

    def read_options(self, filesystem: Any) -> dict[str, Any]:
        """Arguments of the driver's ``_cat_file`` that make it one request."""
        ...

    async def write(
        self, filesystem: Any, bucket: str, key: str, data: bytes, *, exclusive: bool
    ) -> None:
        """Write one object, in one conditional request if `exclusive`."""
        ...

    def judge(self, error: BaseException) -> Verdict:
        """What an error of `write` tells."""
        ...

    async def list_names(
        self, filesystem: Any, bucket: str, prefix: str, start: str, limit: int | None
    ) -> Names:
        """What stands directly below `prefix`, from about `start` on.

        Args:
            filesystem: The driver.
            bucket: Bucket or container.
            prefix: Start of the keys; a ``/`` after it ends a folder's name.
            start: Names below it may be left out, and need not be.
            limit: Enough to know that there are so many.

        Raises:
            FileNotFoundError: There is no such bucket.
        """
        ...


class CloudStore(FsspecStore):
    """A folder of an object store.

    Args:
        filesystem: The fsspec driver.
        base: Bucket and prefix of the table.
        root: The location as the caller gave it, for messages.
        cloud: What kind of object store it is.
    """

    def __init__(self, filesystem: Any, base: str, root: str, cloud: Cloud) -> None:
        super().__init__(filesystem, base, root, cloud.read_options(filesystem))
        self._cloud = cloud

    @property
    def refusal(self) -> str | None:
        """None, unless the installed driver is too old to write conditionally."""
        return self._cloud.refusal

    # --- listing -----------------------------------------------------------------------------

    def _names(self, folder: str, start: str = "", limit: int | None = None) -> Names:
        return self._run(self._names_once(folder, start, limit), folder)

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
        # A store may begin earlier than asked, or know no start (Azurite), or no order (S3
        # directory buckets).
        entries = [e for e in self._names(folder, start).files if e.name and e.name >= start]
        return sorted(entries, key=lambda e: e.name)

    def list_folders(self, folder: str) -> list[str]:
        """Names of the folders directly in `folder`, sorted."""
        return sorted(set(self._names(folder).folders))

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        """Which of these folders hold anything; one request each, at the same time."""

        async def look() -> list[Names]:
            return await asyncio.gather(*(self._names_once(folder, "", 1) for folder in folders))

        return [bool(n.files or n.folders) for n in self._run(look(), ", ".join(folders))]

    def stat(self, path: str) -> FileEntry | None:
        """Size and time of one file, or None; asked of the listing, whose answer is not cached."""
        bucket, key = self._split(path)
        name = path.rsplit("/", 1)[-1]
        for entry in self._run(self._names_of(bucket, key, "", 1), path).files:
            if not entry.name:  # nothing after the prefix: the key itself
                return entry._replace(name=name)
        return None

    # --- writing -----------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create a file if nothing has its name, by one conditional request.

        A request that failed in a way that may pass is repeated, at most four times.
        """
        require_content(path, data)
        return self._write(path, data, exclusive=True)

    def put(self, path: str, data: bytes) -> None:
        """Create or replace a file, by one request, which is repeated as in `put_if_absent`."""
        self._write(path, data, exclusive=False)

    def _write(self, path: str, data: bytes, *, exclusive: bool) -> bool:
        if self.refusal is not None:
            raise self._refused(path)
        bucket, key = self._split(path)
        cloud, filesystem = self._cloud, self._filesystem
        coroutine = write_until_certain(
            lambda: cloud.write(filesystem, bucket, key, data, exclusive=exclusive),
            cloud.judge,
            path,
            len(data),
        )
        return self._wait(coroutine)

    def delete(self, path: str) -> None:
        """Delete a file."""
        if self.refusal is not None:
            raise self._refused(path)

        async def remove() -> None:
            try:
                await self._filesystem._rm_file(self._absolute(path))  # noqa: SLF001 - fsspec's async name
            except FileNotFoundError:
                return

        self._run(remove(), path)

    def _split(self, path: str) -> tuple[str, str]:
        bucket, _, key = self._absolute(path).lstrip("/").partition("/")
        return bucket, key

    def _run(self, coroutine: Coroutine[Any, Any, T], path: str) -> T:
        async def bounded() -> T:
            return await asyncio.wait_for(coroutine, deadline_s(0) * 10)

        try:
            return self._wait(bounded())
        except UnavailableError:
            raise
        except Exception as cause:
            raise unavailable(path, cause) from cause
