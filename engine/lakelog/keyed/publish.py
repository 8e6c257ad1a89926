"""Creates and deletes the files of a keyed store, atomically and durably.

Every file is written under a temporary name, fsynced, renamed, and its directory fsynced. A crash
before the rename leaves a temporary file, one after it a file that no manifest names: both are
leftovers, which `FileRoom.take_over` removes.

Owns: names on the disk and the order of operations. Leaves to others: what is in the files.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, TypeVar, cast

import polars as pl

from lakelog.errors import CorruptionError
from lakelog.keyed import manifest, sorted_file
from lakelog.keyed.manifest import StoreManifest
from lakelog.keyed.sorted_file import FileFacts, GroupCache, SortedFile
from lakelog.wal.disk import Disk, WritableFile
from lakelog.wal.handle import disk_errors

_Made = TypeVar("_Made")

_TEMPORARY = re.compile(r"(\d{20})\.tmp")


class FileRoom:
    """The directory of a store's files. One thread at a time, which holds the store's log."""

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

    def manifest(self) -> StoreManifest:
        """The manifest that is there; an empty one where none is."""
        with store_errors("be opened", self._directory):
            try:
                data = self._disk.read(self.manifest_path)
            except FileNotFoundError:
                return StoreManifest()
        return manifest.decode(data.to_pybytes(), self.manifest_path)

    def opened(
        self, found: StoreManifest, known: Iterable[SortedFile] = ()
    ) -> tuple[SortedFile, ...]:
        """The files of a manifest, open."""
        there = {(file.name, file.facts): file for file in known}
        with store_errors("be opened", self._directory):
            return tuple(
                there.get((name, facts)) or self._opened(name, facts) for name, facts in found.files
            )

    def take_over(self, found: StoreManifest) -> None:
        """Before the first file is written: know which names were used, and remove what crashes
        have left. The manifest is known to be the latest, and all that it names to be there: of an
        older one, the leftovers would be the files that hold the records.
        """
        with store_errors("be opened", self._directory):
            names = [name for name in self._disk.list(self._directory) if _ours(name)]
        numbers = [int(name.partition(".")[0]) for name in names]
        self._last_number = max([found.generation, *numbers])
        self._doomed = sorted(set(names) - {name for name, _ in found.files})
        self.remove(())

    def write(self, chunks: Iterable[pl.DataFrame]) -> SortedFile | None:
        """Write, make durable and open a sorted file. No manifest names it yet."""
        number = self._number()
        self._unnamed.append(manifest.data_name(number))
        with store_errors("write a sorted file", self._directory):
            facts = self._durably(
                number, manifest.data_name(number), lambda sink: sorted_file.write(sink, chunks)
            )
            return None if facts is None else self._opened(manifest.data_name(number), facts)

    def publish(self, flushed_seq_num: int, files: Sequence[SortedFile]) -> StoreManifest:
        """Make a new manifest the one that counts. Its files are durable."""
        number = self._number()
        told = StoreManifest(
            number, flushed_seq_num, tuple((file.name, file.facts) for file in files)
        )

        def write(sink: BinaryIO) -> StoreManifest:
            sink.write(told.encode())
            return told

        with store_errors("publish the manifest", self.manifest_path):
            self._durably(number, manifest.NAME, write)
        # Only now it is known that no manifest names what an attempt before has left.
        named = {name for name, _ in told.files}
        self._doomed += [name for name in self._unnamed if name not in named]
        self._unnamed = []
        return told

    def remove(self, files: Iterable[SortedFile]) -> None:
        """Remove files that the manifest no longer names, oldest first, and what failures have
        left before; readers keep theirs.

        One after the other, also for a crash: for those who read the directory without the
        manifest, a record must not outlive the tombstone that came after it.
        """
        self._doomed += [file.name for file in files]
        with store_errors("remove an old file", self._directory):
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
        except BaseException:
            # Its room may be needed; where that fails too, the next opening does it.
            with contextlib.suppress(OSError):
                self._disk.remove(temporary)
            raise
        self._disk.sync_directory(self._directory)
        return made

    def _number(self) -> int:
        """A number that no file has had: after a failure it is unknown which names are there, and a
        reader may still have an older manifest.
        """
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


def store_errors(what: str, path: str) -> AbstractContextManager[None]:
    """Errors of the operating system as ours."""
    return disk_errors(
        f"The keyed store failed to {what}",
        path,
        hint="acknowledged records are safe in the log and the files; free disk space or "
        "repair the disk, and try again",
    )
