"""How the files of a keyed store come to be, durably and in one step, and how leftovers go.

Every file is written under a temporary name, fsynced, renamed, and its directory fsynced. A crash
before the rename leaves a temporary file, one after it a file that no manifest names: both are
leftovers, which `FileRoom.tidy` removes.

Owns: names on the disk and the order of operations. Leaves to others: what is in the files.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar, cast

import polars as pl

from lakelog.errors import CorruptionError, LakelogError, UnavailableError
from lakelog.keyed import manifest, sorted_file
from lakelog.keyed.manifest import Manifest
from lakelog.keyed.sorted_file import FileFacts, GroupCache, SortedFile
from lakelog.wal.disk import Disk, WritableFile

_Made = TypeVar("_Made")

_TEMPORARY = re.compile(r"(\d{20})\.tmp")


class FileRoom:
    """The directory of a store's files. One thread at a time, which holds the store's log.

    Args:
        directory: Of the files and the manifest; it is there.
        disk: What it is on.
        cache: Of the files that are opened.
    """

    def __init__(self, directory: str, disk: Disk, cache: GroupCache) -> None:
        self._directory = directory
        self._disk = disk
        self._cache = cache
        self._last_number = 0
        self._unnamed: list[str] = []  # written, and perhaps named by a manifest that is there
        self._doomed: list[str] = []  # named by no manifest any more, oldest first

    @property
    def manifest_path(self) -> str:
        """Where the manifest is."""
        return self._path(manifest.NAME)

    def open(self) -> tuple[Manifest, tuple[SortedFile, ...]]:
        """Read the manifest, and open its files. Changes nothing.

        Raises:
            CorruptionError: The manifest is damaged, or a file of it is missing or damaged.
            UnsupportedError: A later version of lakelog wrote the manifest.
            UnavailableError: The disk failed.
        """
        with _told("be opened", self._directory):
            names = self._disk.list(self._directory)
            found = Manifest()
            if manifest.NAME in names:
                data = self._disk.read(self.manifest_path).to_pybytes()
                found = manifest.decode(data, self.manifest_path)
            numbers = [int(match[1]) for name in names if (match := _ours(name))]
            self._last_number = max(numbers, default=0)
            files = tuple(self._opened(name, facts) for name, facts in found.files)
        kept = {name for name, _ in found.files}
        self._doomed = sorted(name for name in names if _ours(name) and name not in kept)
        return found, files

    def tidy(self) -> None:
        """Remove what crashes have left. The manifest that was opened is known to be the latest:
        of an older one, these would be the files that hold the records.

        Raises:
            UnavailableError: The disk failed.
        """
        self.remove(())

    def write(self, chunks: Iterable[pl.DataFrame]) -> SortedFile | None:
        """Write, make durable and open a sorted file. No manifest names it yet.

        Returns:
            None where there were no rows, and nothing is left.

        Raises:
            UnavailableError: The disk failed; at most a leftover is there.
        """
        number = self._number()
        self._unnamed.append(manifest.data_name(number))
        with _told("write a sorted file", self._directory):
            facts = self._durably(
                number, manifest.data_name(number), lambda sink: sorted_file.write(sink, chunks)
            )
            return None if facts is None else self._opened(manifest.data_name(number), facts)

    def publish(self, told: Manifest) -> None:
        """Make a manifest the one that counts. Its files are durable.

        Raises:
            UnavailableError: The disk failed; either manifest may be there, and each is true.
        """

        def write(sink: BinaryIO) -> Manifest:
            sink.write(told.encode())
            return told

        with _told("publish the manifest", self.manifest_path):
            self._durably(self._number(), manifest.NAME, write)
        # Only now it is known that no manifest names what an attempt before has left.
        named = {name for name, _ in told.files}
        self._doomed += [name for name in self._unnamed if name not in named]
        self._unnamed = []

    def remove(self, files: Iterable[SortedFile]) -> None:
        """Remove files that the manifest no longer names, oldest first, and what failures have
        left before; readers keep theirs.

        One after the other, also for a crash: for those who read the directory without the
        manifest, a record must not outlive the tombstone that came after it.

        Raises:
            UnavailableError: The disk failed; what is left goes the next time.
        """
        self._doomed += [file.name for file in files]
        with _told("remove an old file", self._directory):
            while self._doomed:
                with contextlib.suppress(FileNotFoundError):  # it never came to be, or is gone
                    self._disk.remove(self._path(self._doomed[0]))
                self._disk.sync_directory(self._directory)
                del self._doomed[0]

    def _durably(
        self, number: int, name: str, write: Callable[[BinaryIO], _Made | None]
    ) -> _Made | None:
        temporary = self._path(f"{number:020}.tmp")
        try:
            file = self._disk.open_append(temporary, create=True)
            try:
                sink = io.BufferedWriter(_Sink(file), 1 << 20)
                made = write(cast("BinaryIO", sink))
                sink.flush()
                if made is not None:
                    file.sync()
            finally:
                file.close()
            if made is None:
                self._disk.remove(temporary)
                return None
            self._disk.rename(temporary, self._path(name))
        except OSError:
            # On a full disk its room is needed; where that fails too, the next opening does it.
            with contextlib.suppress(OSError):
                self._disk.remove(temporary)
            raise
        self._disk.sync_directory(self._directory)
        return made

    def _number(self) -> int:
        """A number that no file has had: after a failure nobody knows which names are there."""
        self._last_number += 1
        return self._last_number

    def _opened(self, name: str, facts: FileFacts) -> SortedFile:
        path = self._path(name)
        try:
            data = self._disk.read(path, mapped=True)
        except FileNotFoundError as cause:
            raise CorruptionError(
                "A sorted file of the keyed store is missing.",
                path=path,
                expected=f"{facts.size_bytes} bytes",
                hint="restore the file from a copy; its records are no longer in the log",
            ) from cause
        return SortedFile(name, path, data, facts, self._cache)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


class _Sink(io.RawIOBase):
    """A file of the disk for those who write through Python's own interface."""

    def __init__(self, file: WritableFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        taken = self._file.write(memoryview(data))
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return taken


def _ours(name: str) -> re.Match[str] | None:
    return manifest.DATA_NAME.fullmatch(name) or _TEMPORARY.fullmatch(name)


@contextlib.contextmanager
def _told(what: str, path: str) -> Iterator[None]:
    """Errors of the operating system as ours."""
    try:
        yield
    except OSError as cause:
        if isinstance(cause, LakelogError):
            raise
        raise UnavailableError(
            f"The keyed store could not {what}: {cause.strerror or cause}.",
            path=path,
            hint="what was acknowledged is safe in the log and the files; make room or mend the "
            "disk, and try again",
        ) from cause
