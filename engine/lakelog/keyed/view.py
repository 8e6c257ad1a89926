"""The immutable view that readers use: memtables above files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import polars as pl

from lakelog.keyed import rows
from lakelog.keyed.manifest import StoreManifest
from lakelog.keyed.memtable import Memtable
from lakelog.keyed.sorted_file import SortedFile


@dataclass(frozen=True, slots=True)
class View:
    """Where the records are.

    Attributes:
        active: Takes new records; above all that follows.
        frozen: Takes none any more, and is not in a file yet; oldest first.
        frozen_seq_num: Up to it, records are in `frozen` or in the files; above it in `active`.
        files: Oldest first; the manifest's.
        manifest: The one that names the files.
    """

    active: Memtable
    frozen: tuple[Memtable, ...]
    frozen_seq_num: int
    files: tuple[SortedFile, ...]
    manifest: StoreManifest

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None where it is not there."""
        places: Iterator[Memtable | SortedFile] = chain(
            (self.active,), reversed(self.frozen), reversed(self.files)
        )
        for place in places:
            found = place.get(key)
            if found is not None:
                return found[1]
        return None

    def scan(self, start: bytes | None, end: bytes | None) -> pl.DataFrame:
        """Keys with ``start <= key < end``, sorted by key, without tombstones: `rows.SCHEMA`."""
        frames = [file.between(start, end) for file in self.files]
        for memtable in (*self.frozen, self.active):
            frames += memtable.between(start, end)
        return rows.live(rows.newest(frames))
