"""A store that counts its reads. Separate from `watch`, so that help imports no storage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, cast

from lakelog.cli.watch import Meter
from lakelog.storage import LogStore, StoreWrapper
from lakelog.storage.base import FileWrapper


class MeteredStore(StoreWrapper):
    """A `LogStore` that counts the reads through it."""

    def __init__(self, store: LogStore, meter: Meter) -> None:
        super().__init__(store)
        self._meter = meter

    def read(self, path: str) -> bytes:
        """As the inner store, counted."""
        data = self._store.read(path)
        self._meter.add(files=1, size_bytes=len(data))
        return data

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """As the inner store, counted."""
        for data in self._store.read_many(paths):
            self._meter.add(files=1, size_bytes=len(data))
            yield data

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """As the inner store, counted."""
        file = self._store.open(path, size_bytes)
        self._meter.add(files=1)
        return cast("BinaryIO", _MeteredFile(file, self._meter))


class _MeteredFile(FileWrapper):
    """A seekable reader that counts."""

    def __init__(self, file: BinaryIO, meter: Meter) -> None:
        super().__init__(file)
        self._meter = meter

    def read(self, size: int = -1, /) -> bytes:
        data = super().read(size)
        self._meter.add(size_bytes=len(data))
        return data
