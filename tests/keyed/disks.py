"""A disk in memory that fails, kills and crashes as it is told."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from lakelog.errors import LogLockedError
from lakelog.wal.disk import Bytes

SECTOR_BYTES = 512


class Killed(BaseException):
    """The process is dead: nothing it does has an effect any more."""


@dataclass
class Inode:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


Change = Callable[[dict[str, Inode]], None]


class MemoryDisk:
    """Files in memory, with what a crash would keep of them.

    Args:
        fault: Told the number and the name of each operation before it is done; raises to stop it,
            or looks at what a crash would leave if it were stopped.
    """

    def __init__(self, fault: Callable[[int, str], None] = lambda number, name: None) -> None:
        self.fault = fault
        self.operations = 0
        self._names: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._pending: list[tuple[str, Change]] = []
        self._directories = {""}
        self._locks: set[str] = set()
        self._halfway: tuple[Inode, bytes] | None = None  # a write that may stop halfway
        self.is_dead = False

    def step(self, name: str) -> None:
        if self.is_dead:
            raise Killed
        self.operations += 1
        try:
            self.fault(self.operations, name)
        except Killed:
            self.is_dead = True
            raise

    def write_step(self, inode: Inode, half: bytes) -> None:
        """The step of a write, of which half is done if it is stopped."""
        self._halfway = (inode, half)
        try:
            self.step("write")
        finally:
            self._halfway = None

    def crashed(self, rng: random.Random | None, *, keep: bool = False) -> MemoryDisk:
        """The disk after a power failure, or, with `keep`, after the mere end of the process.

        Args:
            rng: Decides about what was not synced; None drops all of it.
            keep: Keep all that was written.
        """
        clone = MemoryDisk()
        names = dict(self._durable)
        for _, change in self._pending:
            if keep or (rng is not None and rng.random() < 0.5):
                change(names)
        inodes = {
            id(inode): _after(self._if_stopped(inode), rng, keep=keep) for inode in names.values()
        }
        clone._names = {name: inodes[id(inode)] for name, inode in names.items()}
        clone._durable = dict(clone._names)
        clone._directories = set(self._directories)
        return clone

    def _if_stopped(self, inode: Inode) -> Inode:
        if self._halfway is None or self._halfway[0] is not inode:
            return inode
        return Inode(inode.data + self._halfway[1], inode.synced)

    def files(self) -> dict[str, bytes]:
        return {name: bytes(inode.data) for name, inode in self._names.items()}

    def damage(self, path: str, data: bytes | None) -> None:
        """Put other bytes in a file's place; None removes it."""
        if data is None:
            del self._names[path]
        else:
            self._names[path] = Inode(bytearray(data), data)

    def _change(self, directory: str, change: Change) -> None:
        change(self._names)
        self._pending.append((directory, change))

    def _inode(self, path: str) -> Inode:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._names[path]

    def list(self, directory: str) -> list[str]:
        self.step("list")
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        return [os.path.basename(name) for name in self._names if _folder(name) == directory]

    def size(self, path: str) -> int:
        self.step("size")
        return len(self._inode(path).data)

    def read(self, path: str, *, mapped: bool = False) -> pa.Buffer:
        self.step("read")
        return pa.py_buffer(bytes(self._inode(path).data))

    def open_append(self, path: str, *, create: bool = False) -> MemoryFile:
        self.step("create" if create else "open")
        if create:
            if path in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            assert _folder(path) in self._directories
            inode = Inode()
            self._change(_folder(path), lambda names: names.__setitem__(path, inode))
        return MemoryFile(self, self._inode(path))

    def rewrite(self, path: str, offset: int, data: Bytes) -> None:
        self.step("rewrite")
        assert self._inode(path).data[offset : offset + len(data)] == bytes(data)

    def rename(self, source: str, target: str) -> None:
        self.step("rename")
        inode = self._inode(source)

        def change(names: dict[str, Inode]) -> None:
            names.pop(source, None)
            names[target] = inode

        self._change(_folder(source), change)

    def remove(self, path: str) -> None:
        self.step("remove")
        self._inode(path)
        self._change(_folder(path), lambda names: names.__delitem__(path))

    def make_directory(self, path: str) -> None:
        self.step("make_directory")
        while path:
            self._directories.add(path)
            path = _folder(path)

    def sync_directory(self, path: str) -> None:
        self.step("sync_directory")
        assert path in self._directories
        later = []
        for directory, change in self._pending:
            if directory == path:
                change(self._durable)
            else:
                later.append((directory, change))
        self._pending = later

    def lock(self, path: str, owner: str) -> MemoryLock:
        self.step("lock")
        if path in self._locks:
            raise LogLockedError("another writer has locked this log", path=path)
        self._locks.add(path)
        return MemoryLock(self._locks, path)


class MemoryFile:
    def __init__(self, disk: MemoryDisk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode

    def write(self, data: Bytes) -> int:
        before = self._disk.operations
        taken = bytes(data)
        half = taken[: len(taken) // 2]
        try:
            self._disk.write_step(self._inode, half)
        except BaseException:
            if self._disk.operations > before:  # it stopped halfway
                self._inode.data += half
            raise
        self._inode.data += taken
        return len(taken)

    def size(self) -> int:
        return len(self._inode.data)

    def truncate(self, size_bytes: int) -> None:
        self._disk.step("truncate")
        del self._inode.data[size_bytes:]

    def sync(self) -> None:
        self._disk.step("sync")
        self._inode.synced = bytes(self._inode.data)

    def close(self) -> None:
        pass


class MemoryLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self.was_left_well = False
        self._locks = locks
        self._path = path

    def release(self, *, well: bool = False) -> None:
        self._locks.discard(self._path)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _after(inode: Inode, rng: random.Random | None, *, keep: bool) -> Inode:
    """What a crash keeps of a file: what was synced, and of the rest any sectors."""
    if keep:
        return Inode(bytearray(inode.data), bytes(inode.data))
    synced, data = inode.synced, bytes(inode.data)
    if rng is None or data == synced:
        return Inode(bytearray(synced), synced)
    kept = bytearray(data[: rng.randint(min(len(synced), len(data)), len(data))])
    for start in range(0, len(kept), SECTOR_BYTES):
        sector = slice(start, min(start + SECTOR_BYTES, len(kept)))
        old = synced[sector].ljust(sector.stop - start, b"\0")
        if bytes(kept[sector]) != old and rng.random() < 0.3:
            kept[sector] = old
    return Inode(kept, bytes(kept))
