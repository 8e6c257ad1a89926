"""`InjectingStore`: a `LogStore` for tests that adds latency, failures, lost responses and kills.

For tests: a write path is tested by failing its first operation, then its second, and so on until
it succeeds. It wraps any store, and its faults raise the errors that `LogStore` documents.

>>> from lakelog.storage import open_store
>>> store = InjectingStore(open_store("memory://doc"), [Rule("lost", "put_if_absent", nth=2)])
>>> store.put_if_absent("log/1", b"x")
True
>>> store.put_if_absent("log/2", b"y")
Traceback (most recent call last):
lakelog.errors.OutcomeUnknownError: the response was lost (injected) [path=log/2] Next: check ...
>>> store.read("log/2"), store.operations[-1]
(b'y', ('read', 'log/2'))
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal, NoReturn, cast, get_args

from lakelog.errors import (
    InvalidInputError,
    LakelogError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.storage.base import (
    IN_FLIGHT,
    Deleted,
    FileEntry,
    LogStore,
    StoreWrapper,
    TreePart,
    Upload,
    delete_files,
    tree_of,
)
from lakelog.storage.ranged import Range, RangedFile
from lakelog.storage.upload import ClosedOrAbandoned

Kind = Literal[
    "list", "walk", "read", "open", "stat", "put_if_absent", "put", "upload", "move", "delete"
]
Fault = Literal["fail", "unknown", "lost", "lost_taken", "late", "kill_before", "kill_after"]

KINDS: tuple[Kind, ...] = get_args(Kind)
FAULTS: tuple[str, ...] = get_args(Fault)
WRITES: tuple[Kind, ...] = ("put_if_absent", "put", "upload", "move", "delete")


@dataclass(frozen=True)
class Rule:
    """A fault, and the operations that it applies to.

    Attributes:
        fault: What happens:

            - ``fail``: nothing is done, and `UnavailableError` is raised.
            - ``unknown``: nothing is done, and `OutcomeUnknownError` is raised: the request was
              lost, which the caller cannot know.
            - ``lost``: the operation is done, and `OutcomeUnknownError` is raised: the response was
              lost.
            - ``lost_taken``: the operation is done, and `put_if_absent` returns False: a driver
              lost the response, repeated the request, and found its own file.
            - ``late``: `OutcomeUnknownError` is raised now, and the operation is done just before
              the next write, or at `InjectingStore.arrive`: the request was still on its way.
            - ``kill_before``, ``kill_after``: the process gets SIGKILL before or after the
              operation.

            Reads and `delete` have no unknown outcome: ``unknown``, ``lost`` and ``late`` raise
            `UnavailableError` there, and when an upload is opened, which has no effect.
            ``lost_taken`` applies only to `put_if_absent`.
        kinds: Kinds of operations, or one kind; empty means all.
        nth: Number of the first operation with the fault, from 1. Each `InjectingStore` counts,
            for each rule, the operations that match `kinds` and `path`.
        times: Number of operations with the fault, from that one on; None means all.
        path: Pattern of paths, as in `fnmatch`; ``*`` also matches ``/``.

    Raises:
        InvalidInputError: The fault or a kind is unknown, `nth` is below 1, or `times` below 0.
    """

    fault: Fault
    kinds: Sequence[Kind] | Kind = ()
    nth: int = 1
    times: int | None = 1
    path: str = "*"

    def __post_init__(self) -> None:
        if isinstance(self.kinds, str):
            object.__setattr__(self, "kinds", (self.kinds,))
        is_known = self.fault in FAULTS and set(self.kinds) <= set(KINDS)
        if not is_known or self.nth < 1 or (self.times is not None and self.times < 0):
            raise InvalidInputError(
                "invalid fault rule",
                expected=f"fault of {', '.join(FAULTS)}; kinds of {', '.join(KINDS)}; "
                "nth >= 1; times >= 0",
                found=self,
            )

    def fits(self, kind: str, path: str) -> bool:
        """Whether an operation counts for this rule."""
        return (not self.kinds or kind in self.kinds) and fnmatch.fnmatchcase(path, self.path)


class InjectingStore(StoreWrapper):
    """A store with faults and latency. Safe to use from several threads.

    Every call is one operation, with these exceptions. `read_many` is one ``read`` per file, and 64
    files share a round trip. A large opened file is one ``read`` per fetched range. `list_folders`
    is a ``list``. Opening takes one round trip, and a second one without `size_bytes`, which is not
    checked. `upload` is one ``upload`` when it is opened, and another when it is closed, which
    creates the file. `delete_many` is one ``delete`` per path, in order; a fault of one does not
    affect the others. The path of a ``move`` is its source.

    Args:
        store: The inner store.
        rules: Faults; for each operation the first rule that applies decides.
        latency_s: Seconds that each round trip takes.
        sleep: Waits for a number of seconds; `time.sleep` by default.

    Attributes:
        operations: Kind and path of every operation so far, in order.
        bytes_read: Bytes of all files and ranges read so far.
    """

    def __init__(
        self,
        store: LogStore,
        rules: Iterable[Rule] = (),
        latency_s: float = 0.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(store)
        self.operations: list[tuple[str, str]] = []
        self.bytes_read = 0
        self.latency_s = latency_s
        self._rules = tuple(rules)
        self._counts = [0] * len(self._rules)
        self._sleep = sleep
        self._late: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def arrive(self) -> None:
        """Execute the late writes."""
        with self._lock:
            late, self._late = self._late, []
        for effect in late:
            with contextlib.suppress(LakelogError):  # no caller is left to receive the error
                effect()

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """As the inner store, or a fault."""
        with self._operation("list", folder):
            return self._store.list_from(folder, start)

    def list_folders(self, folder: str) -> list[str]:
        """As the inner store, or a fault."""
        with self._operation("list", folder):
            return self._store.list_folders(folder)

    def has_folders(self, folders: Sequence[str]) -> list[bool]:
        """As the inner store, or a fault; one ``list`` per folder, in one round trip."""
        for index, folder in enumerate(folders):
            with self._operation("list", folder, trips=int(index == 0)):
                pass
        return self._store.has_folders(folders)

    def read(self, path: str) -> bytes:
        """As the inner store, or a fault."""
        with self._operation("read", path):
            return self._counted(self._store.read(path))

    def read_many(self, paths: Sequence[str]) -> Iterator[bytes]:
        """As the inner store, or a fault when the affected file is reached."""
        contents = iter(self._store.read_many(paths))
        for index, path in enumerate(paths):
            with self._operation("read", path, trips=int(index % IN_FLIGHT == 0)):
                data = self._counted(next(contents))
            yield data

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """As the inner store, or a fault, also in the reads of a large file."""
        with self._operation("open", path, trips=1 if size_bytes is not None else 2):
            below = self._store.open(path, size_bytes)
            lock = threading.Lock()
            opening = True

            def fetch(ranges: Sequence[Range]) -> list[bytes]:
                found: list[bytes] = []
                for index, (start, end) in enumerate(ranges):
                    if not opening:
                        self._begin("read", path, trips=int(index % IN_FLIGHT == 0))
                    with lock:
                        below.seek(start)
                        found.append(self._counted(below.read(end - start)))
                return found

            # Other readers may share the fetched blocks, so it is closed with the last of them.
            weakref.finalize(fetch, below.close)
            file = RangedFile(fetch, size_bytes or below.seek(0, os.SEEK_END))
            opening = False
            return cast("BinaryIO", file)

    def stat(self, path: str) -> FileEntry | None:
        """As the inner store, or a fault."""
        with self._operation("stat", path):
            return self._store.stat(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """As the inner store, or a fault."""
        won = self._write("put_if_absent", path, lambda: self._store.put_if_absent(path, data))
        return bool(won)

    def put(self, path: str, data: bytes) -> None:
        """As the inner store, or a fault."""
        self._write("put", path, lambda: self._store.put(path, data))

    def upload(self, path: str) -> Upload:
        """As the inner store, or a fault, also when it is closed."""
        fault = self._begin("upload", path)
        below = self._store.upload(path)
        try:
            with _Operation(fault, path):
                return _Upload(below, path, self._write)
        except UnavailableError:
            below.abandon()
            raise

    def move(self, source: str, target: str) -> None:
        """As the inner store, or a fault."""
        self._write("move", source, lambda: self._store.move(source, target))

    def delete(self, path: str) -> None:
        """As the inner store, or a fault."""
        self._write("delete", path, lambda: self._store.delete(path))

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        """As the inner store, or faults: one ``delete`` per path."""
        return self.delete_existing(paths).errors

    def delete_existing(self, paths: Sequence[str]) -> Deleted:
        """As `delete_many`, and the files that did not exist."""
        errors: list[LakelogError] = []
        missing: list[str] = []
        for index, path in enumerate(paths):
            try:
                effect = functools.partial(delete_files, self._store, [path])
                found = self._write("delete", path, effect, trips=int(index % IN_FLIGHT == 0))
                if found:
                    deleted = cast("Deleted", found)
                    errors += deleted.errors
                    missing += deleted.missing
            except UnavailableError as error:
                errors.append(error)
        return Deleted(errors, missing)

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        """As the inner store, or a fault before the first batch or after the last."""
        with self._operation("walk", folder):
            yield from self._store.walk(folder)

    def tree(self, folder: str = "", *, files: bool = True) -> Iterator[TreePart]:
        """As `walk`; without files, without faults."""
        with self._operation("walk", folder) if files else contextlib.nullcontext():
            yield from tree_of(self._store, folder, files=files)

    def _counted(self, data: bytes) -> bytes:
        with self._lock:
            self.bytes_read += len(data)
        return data

    def _write(
        self,
        kind: Kind,
        path: str,
        effect: Callable[[], object],
        *,
        give_up: Callable[[], object] = lambda: None,
        trips: int = 1,
    ) -> object:
        """Run `effect` according to the fault; `give_up` instead if it will never run."""
        try:
            fault = self._begin(kind, path, trips)
        except UnavailableError:
            give_up()
            raise
        if fault == "unknown":
            give_up()
        if fault == "late":
            with self._lock:
                self._late.append(effect)
        result = effect() if fault not in {"unknown", "late"} else None
        if fault == "kill_after":
            _die()
        if fault in {"unknown", "lost", "late"}:
            raise _lost(kind, path)
        return False if fault == "lost_taken" else result

    def _operation(self, kind: Kind, path: str, trips: int = 1) -> _Operation:
        return _Operation(self._begin(kind, path, trips), path)

    def _begin(self, kind: Kind, path: str, trips: int = 1) -> Fault | None:
        """Log an operation, advance the clock, and return its fault; raises for ``fail``."""
        with self._lock:
            self.operations.append((kind, path))
            fault = self._strike(kind, path)
        for _ in range(trips):
            if self.latency_s:
                self._sleep(self.latency_s)
        if kind in WRITES:
            self.arrive()
        if fault == "kill_before":
            _die()
        if fault == "fail":
            raise UnavailableError("the store failed before the operation (injected)", path=path)
        return fault

    def _strike(self, kind: Kind, path: str) -> Fault | None:
        struck: Fault | None = None
        for index, rule in enumerate(self._rules):
            if not rule.fits(kind, path):
                continue
            self._counts[index] += 1
            past = self._counts[index] - rule.nth
            if struck is None and past >= 0 and (rule.times is None or past < rule.times):
                struck = rule.fault
        return struck


class _Operation:
    """The end of an operation without an unknown outcome."""

    def __init__(self, fault: Fault | None, path: str) -> None:
        self._fault = fault
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, error: object, *_: object) -> None:
        if self._fault == "kill_after":
            _die()
        if error is None and self._fault in {"unknown", "lost", "late"}:
            raise UnavailableError("the response was lost (injected)", path=self._path)


class _Upload(ClosedOrAbandoned):
    """An upload whose closing is a write."""

    def __init__(self, below: Upload, path: str, write: Callable[..., object]) -> None:
        self._below = below
        self._path = path
        self._write = write
        self._closed = False

    def write(self, data: bytes | memoryview) -> int:
        return self._below.write(data)

    def tell(self) -> int:
        return self._below.tell()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._write("upload", self._path, self._below.close, give_up=self._below.abandon)

    def abandon(self) -> None:
        if not self._closed:
            self._closed = True
            self._below.abandon()

    @property
    def closed(self) -> bool:
        return self._closed or self._below.closed


def _lost(kind: Kind, path: str) -> OutcomeUnknownError | UnavailableError:
    error = UnavailableError if kind == "delete" else OutcomeUnknownError
    return error(
        "the response was lost (injected)",
        path=path,
        hint="check the store before repeating the operation",
    )


def _die() -> NoReturn:
    if hasattr(signal, "SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()  # the signal may be delivered after the next line
    os._exit(137)
