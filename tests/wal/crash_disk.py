"""A disk in memory that simulates crashes and fails on request.

Synced data survives a crash. A crash keeps any part of the rest: any sectors of a file, any length
of it, and any of the names that were created, renamed or removed. After a failed sync the disk
gives up the affected sectors: they can be read, no later sync writes them, and a crash loses them
unless they are written again first.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from lakelog.errors import LogLockedError
from lakelog.wal.disk import Bytes

SECTOR_BYTES = 512

CHANGES = frozenset(
    (
        *("open", "create", "write", "truncate", "sync", "rewrite"),
        *("rename", "remove", "sync_directory"),
    )
)
"""Operations that change data, make it durable, or begin to."""


class Crash(BaseException):
    """The machine stops."""


@dataclass
class Operation:
    """The next operation.

    Attributes:
        kind: Its kind.
        path: The file.
        size_bytes: Of a write, its size.
        taken: Of a write, how much is written, if not all; the watching function may set it.
        data: Of a write, its bytes.
    """

    kind: str
    path: str
    size_bytes: int = 0
    taken: int | None = None
    data: bytes = b""


def quiet(operation: Operation) -> None:
    """Watches nothing."""


@dataclass(eq=False)
class Node:
    """A file without its name.

    Attributes:
        data: The content that readers see.
        durable: The content of the last sync.
        given_up: Numbers of the sectors whose sync failed.
        sector_bytes: Unit of writing: a sector is written completely or not at all.
    """

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    given_up: set[int] = field(default_factory=set)
    sector_bytes: int = SECTOR_BYTES

    def write(self, offset: int, data: bytes) -> None:
        self.data[offset : offset + len(data)] = data
        last = (offset + len(data) - 1) // self.sector_bytes
        self.given_up -= set(range(offset // self.sector_bytes, last + 1))

    def truncate(self, size_bytes: int) -> None:
        del self.data[size_bytes:]
        self.given_up = {each for each in self.given_up if each * self.sector_bytes < size_bytes}

    def sync(self) -> None:
        synced = bytearray(self.data)
        for start in (each * self.sector_bytes for each in self.given_up):
            old = self.durable[start : start + self.sector_bytes]
            size = len(synced[start : start + self.sector_bytes])
            synced[start : start + self.sector_bytes] = old[:size].ljust(size, b"\0")
        self.durable = bytes(synced)

    def give_up(self) -> None:
        """Record a failed sync."""
        for start in range(0, len(self.data), self.sector_bytes):
            end = start + self.sector_bytes
            if self.data[start:end] != self.durable[start:end]:
                self.given_up.add(start // self.sector_bytes)

    def after_crash(self, rng: random.Random, stale: bytes) -> bytes:
        """The content after a crash.

        Args:
            rng: Random generator.
            stale: Former content of the space, from another file. It may show, but not at the start
                of a file, which would make it that other file.
        """
        if self.data == self.durable:
            return self.durable
        low, high = sorted((len(self.durable), len(self.data)))
        size = rng.choice([low, high, rng.randint(low, high)])
        keeps = rng.choice([0.0, 0.2, 0.5, 0.8, 1.0])
        prefix = rng.randint(0, high) if rng.random() < 0.3 else high
        left = bytearray()
        for start in range(0, size, self.sector_bytes):
            end = min(start + self.sector_bytes, size)
            is_kept = rng.random() < keeps and start <= prefix
            is_kept &= start // self.sector_bytes not in self.given_up
            part = (self.data if is_kept else self.durable)[start:end]
            if start and not part and stale and rng.random() < 0.3:
                part = stale[start % len(stale) :][: end - start]
            left += part.ljust(end - start, b"\0")
        return bytes(left)


class CrashDisk:
    """A disk that can be copied in the state after a crash.

    Args:
        files: Paths and contents of the initial, durable files.
        watch: Called before each operation; an exception that it raises replaces the operation.
        sector_bytes: Unit of which a crash keeps all or nothing.
    """

    def __init__(
        self,
        files: dict[str, bytes] | None = None,
        watch: Callable[[Operation], None] = quiet,
        *,
        sector_bytes: int = SECTOR_BYTES,
    ) -> None:
        self.names = {
            path: Node(bytearray(data), data, sector_bytes=sector_bytes)
            for path, data in (files or {}).items()
        }
        self.watch = watch
        self._durable_names = dict(self.names)
        self._pending: list[tuple[str | None, str | None, Node]] = []
        self._directories = {path.rpartition("/")[0] for path in self.names}
        self._locks: dict[str, str] = {}
        self._closed_cleanly: set[str] = set()
        self._guard = threading.RLock()
        self._sector_bytes = sector_bytes

    def clone(self, rng: random.Random | None, stale: bytes = b"") -> CrashDisk:
        """The state after a crash now, as a new disk that no process has locked.

        Without `rng`, only synced data survives.
        """
        with self._guard:
            names = dict(self._durable_names)
            if rng is None:
                return self._unlocked({path: node.durable for path, node in names.items()})
            keeps = rng.choice([0.0, 0.5, 0.9, 1.0])
            for source, target, node in self._pending:
                if rng.random() < keeps and (source is None or names.get(source) is node):
                    _apply(names, source, target, node)
            clone = self._unlocked(
                {path: node.after_crash(rng, stale) for path, node in names.items()}
            )
            # No process syncs the content of the lock file, so it may be of any time.
            clone._closed_cleanly = {
                f"{each}/wal.lock" for each in rng.choice([[], self._directories])
            }
            return clone

    def killed(self, operation: Operation) -> CrashDisk:
        """The state after the process ends before an operation, or halfway through a write."""
        files = self.contents()
        if operation.kind == "write" and operation.path in files:
            files[operation.path] += operation.data[: operation.size_bytes // 2]
        return self._unlocked(files)

    def _unlocked(self, files: dict[str, bytes]) -> CrashDisk:
        clone = CrashDisk(files, sector_bytes=self._sector_bytes)
        clone._directories |= self._directories
        return clone

    def unlock(self) -> None:
        """The process with the lock is killed."""
        self._locks.clear()

    def put(self, path: str, data: bytes | None) -> None:
        """Replace a file with durable bytes; None removes it."""
        for names in (self.names, self._durable_names):
            names.pop(path, None)
            if data is not None:
                names[path] = Node(bytearray(data), data, sector_bytes=self._sector_bytes)

    def contents(self) -> dict[str, bytes]:
        """The content that readers see."""
        return {path: bytes(node.data) for path, node in self.names.items()}

    def list(self, directory: str) -> list[str]:
        self.watch(Operation("list", directory))
        with self._guard:
            if directory not in self._directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
            front = f"{directory}/"
            return [path[len(front) :] for path in self.names if path.startswith(front)]

    def size(self, path: str) -> int:
        return len(self._at(path).data)

    def read(self, path: str, *, mapped: bool = False) -> pa.Buffer:
        self.watch(Operation("read", path))
        return pa.py_buffer(bytes(self._at(path).data))

    def open_append(self, path: str, *, create: bool = False) -> Handle:
        with self._guard:
            self.watch(Operation("create" if create else "open", path))
            if create:
                if path in self.names:
                    raise FileExistsError(errno.EEXIST, "the file is there", path)
                self._change(None, path, Node(sector_bytes=self._sector_bytes))
            return Handle(self, path, self._at(path))

    def rewrite(self, path: str, offset: int, data: Bytes) -> None:
        with self._guard:
            self.watch(Operation("rewrite", path, len(data)))
            node = self._at(path)
            assert node.data[offset : offset + len(data)] == bytes(data), "it changes nothing"
            node.write(offset, bytes(data))

    def rename(self, source: str, target: str) -> None:
        with self._guard:
            self.watch(Operation("rename", source))
            self._change(source, target, self._at(source))

    def remove(self, path: str) -> None:
        with self._guard:
            self.watch(Operation("remove", path))
            self._change(path, None, self._at(path))

    def make_directory(self, path: str) -> None:
        while path:
            self._directories.add(path)
            path = path.rpartition("/")[0]

    def sync_directory(self, path: str) -> None:
        with self._guard:
            self.watch(Operation("sync_directory", path))
            pending, self._pending = self._pending, []
            for source, target, node in pending:
                if (target or source or "").rpartition("/")[0] == path:
                    _apply(self._durable_names, source, target, node)
                else:
                    self._pending.append((source, target, node))

    def lock(self, path: str, owner: str) -> SimulatedLock:
        self.watch(Operation("lock", path))
        if path in self._locks:
            raise LogLockedError(
                "another writer has locked this log", path=path, found=self._locks[path]
            )
        self._locks[path] = owner
        was_closed_cleanly = path in self._closed_cleanly
        self._closed_cleanly.discard(path)
        return SimulatedLock(self, path, was_closed_cleanly=was_closed_cleanly)

    def _at(self, path: str) -> Node:
        node = self.names.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _change(self, source: str | None, target: str | None, node: Node) -> None:
        self._pending.append((source, target, node))
        _apply(self.names, source, target, node)


class Handle:
    """A file that is appended to."""

    def __init__(self, disk: CrashDisk, path: str, node: Node) -> None:
        self._disk = disk
        self._path = path
        self._node = node
        self._is_closed = False

    def write(self, data: Bytes) -> int:
        with self._disk._guard:
            operation = Operation("write", self._path, len(data), data=bytes(data))
            try:
                self._do(operation)
            except BaseException:
                self._node.write(len(self._node.data), bytes(data)[: operation.taken or 0])
                raise
            taken = len(data) if operation.taken is None else operation.taken
            self._node.write(len(self._node.data), bytes(data)[:taken])
            return taken

    def size(self) -> int:
        return len(self._node.data)

    def read_part(self, offset: int, size_bytes: int) -> bytes:
        self._do(Operation("read", self._path))
        return bytes(self._node.data[offset : offset + size_bytes])

    def is_at(self, path: str) -> bool:
        return self._disk.names.get(path) is self._node

    def truncate(self, size_bytes: int) -> None:
        with self._disk._guard:
            self._do(Operation("truncate", self._path))
            assert size_bytes <= len(self._node.data), "truncate must not lengthen a file"
            self._node.truncate(size_bytes)

    def sync(self) -> None:
        with self._disk._guard:
            try:
                self._do(Operation("sync", self._path))
            except OSError:
                self._node.give_up()
                raise
            self._node.sync()

    def close(self) -> None:
        self._is_closed = True

    def _do(self, operation: Operation) -> None:
        assert not self._is_closed, f"{operation} of a closed file"
        self._disk.watch(operation)


class SimulatedLock:
    """A lock."""

    def __init__(self, disk: CrashDisk, path: str, *, was_closed_cleanly: bool) -> None:
        self._disk = disk
        self._path = path
        self.was_closed_cleanly = was_closed_cleanly

    def is_held(self) -> bool:
        return True

    def release(self, *, cleanly: bool = False) -> None:
        if self._disk._locks.pop(self._path, None) is not None and cleanly:
            self._disk._closed_cleanly.add(self._path)


def _apply(names: dict[str, Node], source: str | None, target: str | None, node: Node) -> None:
    if source is not None:
        del names[source]
    if target is not None:
        names[target] = node


class Counting:
    """Watches a disk: counts changes, and acts on the n-th one.

    Args:
        at: The number of the first operation to act on, starting at 1; 0 for none.
        act: The action then and, if `times` allows, at the operations that follow.
        times: Number of operations to act on.
        kinds: Kinds of operations that count.
    """

    def __init__(
        self,
        at: int,
        act: Callable[[Operation], None],
        times: int = 1,
        kinds: frozenset[str] = CHANGES,
    ) -> None:
        self.at = at
        self.act = act
        self.times = times
        self.kinds = kinds
        self.count = 0

    @property
    def has_acted(self) -> bool:
        return 0 < self.at <= self.count

    def __call__(self, operation: Operation) -> None:
        if operation.kind not in self.kinds:
            return
        self.count += 1
        if 0 < self.at <= self.count < self.at + self.times:
            self.act(operation)


def crash(operation: Operation) -> None:
    raise Crash


def fail(error: int, share: float = 0.0) -> Callable[[Operation], None]:
    """Raise an error; a write is done in part first."""

    def act(operation: Operation) -> None:
        operation.taken = int(operation.size_bytes * share)
        raise OSError(error, f"{operation.kind} fails", operation.path)

    return act
