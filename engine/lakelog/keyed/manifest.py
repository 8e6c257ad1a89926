"""The manifest of a keyed store, its current files, and the order of operations that publishes
them.

The manifest is one small JSON file. Its first field is the CRC-32C of the file with the field's
digits as zeros (`schemas/keyed.md`). Files that are not in it are not part of the store.

Every file is written under a temporary name, fsynced, renamed, and its directory fsynced. A crash
leaves a temporary file or a file that is in no manifest; `StoreDirectory.take_over` deletes them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO, TypeVar, cast

import google_crc32c
import orjson
import polars as pl

from lakelog.errors import CorruptionError, UnsupportedError
from lakelog.keyed import sorted_file
from lakelog.keyed.sorted_file import FileFacts, GroupCache, SortedFile
from lakelog.wal.disk import Disk, WritableFile, disk_errors
from lakelog.wal.placement import STORE_FILE, STORE_FORMAT

NAME = STORE_FILE
FORMAT_VERSION = 1
DATA_NAME = re.compile(r"(\d{20})\.parquet")
_CHECKSUM = re.compile(rb'\{"crc32c":"([0-9a-f]{8})",')
_ZEROS = b'{"crc32c":"00000000",'
_FIELDS = {
    "rows": "rows",
    "tombstones": "tombstones",
    "size_bytes": "sizeBytes",
    "min_key": "minKey",
    "max_key": "maxKey",
    "min_seq_num": "minSeqNum",
    "max_seq_num": "maxSeqNum",
    "footer_crc32c": "footerCrc32c",
}
"""Facts about a file, and their names in the manifest; keys are in hexadecimal."""


def data_name(number: int) -> str:
    """The name of a sorted file."""
    return f"{number:020}.parquet"


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """The files of a store, oldest first, with all records up to `flushed_seq_num` inclusive.
    `generation` exceeds that of the previous manifest and the number of any file in one (0: none
    published).
    """

    generation: int = 0
    flushed_seq_num: int = 0
    files: tuple[tuple[str, FileFacts], ...] = ()

    def encode(self) -> bytes:
        """Encode the manifest."""
        fields = {
            "crc32c": "00000000",
            "format": STORE_FORMAT,
            "version": FORMAT_VERSION,
            "generation": self.generation,
            "flushedSeqNum": self.flushed_seq_num,
            "files": [_file(name, facts) for name, facts in self.files],
        }
        data = orjson.dumps(fields) + b"\n"
        return data.replace(b"00000000", b"%08x" % google_crc32c.value(data), 1)


def decode(data: bytes, path: str) -> StoreManifest:
    """Decode a manifest."""
    match = _CHECKSUM.match(data)
    if match is None:
        found = data[:32]
        raise _corrupt("has an invalid header", path, found=found, expected=_ZEROS.decode())
    found_crc = google_crc32c.value(_ZEROS + data[match.end() :])
    if found_crc != int(match[1], 16):
        raise _corrupt("is damaged", path, found=f"{found_crc:08x}", expected=match[1].decode())
    fields = orjson.loads(data)
    if fields["version"] != FORMAT_VERSION:
        raise UnsupportedError(
            "the keyed store was written by a later version of lakelog",
            path=path,
            expected=f"format version {FORMAT_VERSION}",
            found=fields["version"],
            hint="upgrade lakelog",
        )
    files = tuple((file["name"], _facts(file)) for file in fields["files"])
    manifest = StoreManifest(fields["generation"], fields["flushedSeqNum"], files)
    _check_order(manifest, path)
    return manifest


def _file(name: str, facts: FileFacts) -> dict[str, Any]:
    values = {field: getattr(facts, own) for own, field in _FIELDS.items()}
    return {"name": name} | {k: v.hex() if isinstance(v, bytes) else v for k, v in values.items()}


def _facts(file: Mapping[str, Any]) -> FileFacts:
    values: dict[str, Any] = {
        own: bytes.fromhex(value) if isinstance(value := file[field], str) else int(value)
        for own, field in _FIELDS.items()
    }
    return FileFacts(**values)


def _check_order(manifest: StoreManifest, path: str) -> None:
    """The order of files is verified, because a get stops at the newest file with the key."""
    for (older, before), (newer, after) in pairwise(manifest.files):
        if not before.max_seq_num < after.min_seq_num:
            raise _corrupt(
                f"has {newer} after {older}",
                path,
                found=f"sequence numbers from {after.min_seq_num}",
                expected=f"sequence numbers above {before.max_seq_num}",
            )
    if manifest.files and manifest.files[-1][1].max_seq_num > manifest.flushed_seq_num:
        raise _corrupt(
            "names a file with records after flushedSeqNum",
            path,
            found=manifest.files[-1][1].max_seq_num,
            expected=f"at most {manifest.flushed_seq_num}",
        )


def _corrupt(what: str, path: str, *, found: object, expected: object) -> CorruptionError:
    return CorruptionError(
        f"the manifest of the keyed store {what}",
        path=path,
        expected=expected,
        found=found,
        hint="restore it from a copy that was made together with the files and the log; any "
        "Parquet reader can read the files (see schemas/keyed.md)",
    )


_Made = TypeVar("_Made")

_TEMPORARY = re.compile(r"(\d{20})\.tmp")


class StoreDirectory:
    """The directory of a store's files, for the thread that holds the store's log. `check_lock`
    raises if another process may write to the store; files are replaced and deleted only after it.
    """

    def __init__(
        self, directory: str, disk: Disk, cache: GroupCache, check_lock: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._cache = cache
        self._check_lock = check_lock
        self._last_number = 0
        self._unnamed: list[str] = []  # written, and possibly in the current manifest
        self._unused: list[str] = []  # no longer in the manifest, oldest first

    @property
    def manifest_path(self) -> str:
        """Path of the manifest."""
        return self._path(NAME)

    def manifest(self) -> StoreManifest:
        """The current manifest; an empty one if there is none."""
        with store_errors("be opened", self._directory):
            try:
                data = self._disk.read(self.manifest_path)
            except FileNotFoundError:
                return StoreManifest()
        return decode(data.to_pybytes(), self.manifest_path)

    def opened(
        self, found: StoreManifest, known: Iterable[SortedFile] = ()
    ) -> tuple[SortedFile, ...]:
        """The files of a manifest, opened."""
        there = {(file.name, file.facts): file for file in known}
        with store_errors("be opened", self._directory):
            return tuple(
                there.get((name, facts)) or self._opened(name, facts) for name, facts in found.files
            )

    def take_over(self, found: StoreManifest) -> None:
        """Before the first write: find used names, and delete files left by crashes. The manifest
        must be the latest: files that an older one lacks may contain the records.
        """
        with store_errors("be opened", self._directory):
            names = [
                name
                for name in self._disk.list(self._directory)
                if DATA_NAME.fullmatch(name) or _TEMPORARY.fullmatch(name)
            ]
        numbers = [int(name.partition(".")[0]) for name in names]
        self._last_number = max([found.generation, *numbers])
        self._unused = sorted(set(names) - {name for name, _ in found.files})
        self.remove(())

    def write(self, chunks: Iterable[pl.DataFrame]) -> SortedFile | None:
        """Write a sorted file durably, and open it. It is in no manifest yet."""
        number = self._number()
        self._unnamed.append(data_name(number))
        with store_errors("write a sorted file", self._directory):
            facts = self._durably(
                number, data_name(number), lambda sink: sorted_file.write(sink, chunks)
            )
            return None if facts is None else self._opened(data_name(number), facts)

    def publish(self, flushed_seq_num: int, files: Sequence[SortedFile]) -> StoreManifest:
        """Publish a manifest with files that are already durable."""
        number = self._number()
        manifest = StoreManifest(
            number, flushed_seq_num, tuple((file.name, file.facts) for file in files)
        )

        def write(sink: BinaryIO) -> StoreManifest:
            sink.write(manifest.encode())
            return manifest

        with store_errors("publish the manifest", self.manifest_path):
            self._durably(number, NAME, write)
        # Only now it is certain that files of a failed attempt are in no manifest.
        named = {name for name, _ in manifest.files}
        self._unused += [name for name in self._unnamed if name not in named]
        self._unnamed = []
        return manifest

    def remove(self, files: Iterable[SortedFile]) -> None:
        """Delete files that are no longer in the manifest, oldest first: for a process that lists
        the directory without the manifest, a record must not outlive its later tombstone.
        """
        self._unused += [file.name for file in files]
        if self._unused:
            self._check_lock()
        with store_errors("remove an old file", self._directory):
            while self._unused:
                with contextlib.suppress(FileNotFoundError):  # never created, or deleted before
                    self._disk.remove(self._path(self._unused[0]))
                self._disk.sync_directory(self._directory)
                del self._unused[0]

    def _durably(
        self, number: int, name: str, write: Callable[[BinaryIO], _Made | None]
    ) -> _Made | None:
        temporary = self._path(f"{number:020}.tmp")
        file = self._disk.open_append(temporary, create=True)
        try:
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
            self._check_lock()
            self._disk.rename(temporary, self._path(name))
        except BaseException:
            # Frees disk space; if this fails too, the next opening deletes it.
            with contextlib.suppress(OSError):
                self._disk.remove(temporary)
            raise
        self._disk.sync_directory(self._directory)
        return made

    def _number(self) -> int:
        """A number that no file ever had: after a failure, it is unknown which names exist, and a
        reader may have an older manifest.
        """
        self._last_number += 1
        return self._last_number

    def _opened(self, name: str, facts: FileFacts) -> SortedFile:
        path = self._path(name)
        try:
            data = self._disk.read(path, mapped=True)
        except FileNotFoundError as cause:
            raise CorruptionError(
                "a sorted file of the keyed store is missing",
                path=path,
                expected=f"{facts.size_bytes} bytes",
                hint="restore the file from a copy; its records are no longer in the log",
            ) from cause
        return SortedFile(name, path, data, facts, self._cache)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


class _Sink(io.RawIOBase):
    """A file of the disk with the interface of Python's files."""

    def __init__(self, file: WritableFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        taken = self._file.write(memoryview(data))
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return taken


def store_errors(what: str, path: str) -> AbstractContextManager[None]:
    """Convert errors of the operating system."""
    return disk_errors(
        f"The keyed store failed to {what}",
        path,
        hint="acknowledged records are safe in the log and the files; free disk space or "
        "repair the disk, and try again",
    )
