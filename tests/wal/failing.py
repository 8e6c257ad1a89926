"""A disk whose n-th operation fails."""

from __future__ import annotations

import errno
from typing import Any

import pyarrow as pa

from lakelog.wal.disk import Bytes, LocalDisk, LocalFile


class FailingDisk(LocalDisk):
    """Counts what changes something or makes it durable, and fails when told to.

    Args:
        fail_at: Number of the first operation to fail, from 1 on; 0 for none.
        times: How many fail from there on.
        error: With what.
        taken: Of a write that fails, how many bytes are taken before it does.
    """

    def __init__(
        self, fail_at: int = 0, times: int = 1, error: int = errno.ENOSPC, taken: int = 0
    ) -> None:
        self.fail_at = fail_at
        self.times = times
        self.error = error
        self.taken = taken
        self.done: list[str] = []

    def arm(self, fail_at: int, **settings: int) -> None:
        self.done = []
        self.fail_at = fail_at
        for name, value in settings.items():
            setattr(self, name, value)

    @property
    def failed(self) -> bool:
        return 0 < self.fail_at <= len(self.done)

    def step(self, what: str) -> None:
        self.done.append(what)
        if self.fail_at and self.fail_at <= len(self.done) < self.fail_at + self.times:
            raise OSError(self.error, f"{what} fails")

    def open_append(self, path: str, *, create: bool = False) -> LocalFile:
        self.step("create" if create else "open")
        file = super().open_append(path, create=create)
        return FailingFile(file, self)

    def rewrite(self, path: str, offset: int, data: Bytes) -> None:
        self.step("rewrite")
        super().rewrite(path, offset, data)

    def rename(self, source: str, target: str) -> None:
        self.step("rename")
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.step("remove")
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.step("sync_directory")
        super().sync_directory(path)

    def read(self, path: str, *, mapped: bool = False) -> pa.Buffer:
        return super().read(path, mapped=mapped)


class FailingFile(LocalFile):
    def __init__(self, file: LocalFile, disk: FailingDisk) -> None:
        super().__init__(file._descriptor)
        file._descriptor = -1
        self._disk = disk

    def write(self, data: Bytes) -> int:
        try:
            self._disk.step("write")
        except OSError:
            if self._disk.taken:
                super().write(data[: self._disk.taken])
            raise
        return super().write(data)

    def truncate(self, size_bytes: int) -> None:
        self._disk.step("truncate")
        super().truncate(size_bytes)

    def sync(self) -> None:
        self._disk.step("sync")
        # Nobody pulls the plug here, and a real fsync takes time.


def settings(**given: Any) -> dict[str, Any]:
    """Arguments of a log that is the same in each run."""
    return {"clock": lambda: 1_700_000_000_000, "new_id": lambda: bytes(range(16)), **given}
