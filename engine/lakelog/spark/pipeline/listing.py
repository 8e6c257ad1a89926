"""Lists the files of a table's folder in executors.

The driver lists the folders above the partition folders, and the files directly in them. Executors
list everything below the partition folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import pyarrow as pa

from lakelog.storage import LogStore, open_store
from lakelog.storage.base import FileEntry
from lakelog.storage.bounded import unbounded
from lakelog.storage.local import LocalStore

LISTED_SCHEMA = "path string, size_bytes long, modified_ms long"
_ARROW = pa.schema([("path", pa.string()), ("size_bytes", pa.int64()), ("modified_ms", pa.int64())])
_FOLDERS_A_TASK = 64
_MOST_TASKS = 1_000


@dataclass(frozen=True)
class Lister:
    """Lists folders; called by Spark with batches of their names.

    Attributes:
        location: Path or URL of the table; a local one is absolute.
        storage_options: Options of the store.
    """

    location: str
    storage_options: Mapping[str, Any] = field(repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Files, relative to the table. Memory: a batch of some thousand."""
        store = open_store(self.location, dict(self.storage_options))
        for batch in batches:
            for folder in batch.column(0).to_pylist():
                for entries in store.walk(folder):
                    yield _batch(entries, f"{folder}/")


def _batch(entries: Iterable[FileEntry], prefix: str) -> pa.RecordBatch:
    # A name that is not valid text cannot be in a log, and cannot be sent.
    rows = [(prefix + e.name, e.size_bytes, e.modified_ms) for e in entries if _is_text(e.name)]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)]
    return pa.record_batch(arrays, schema=_ARROW)


def _is_text(name: str) -> bool:
    return name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name)


def list_table(
    spark: Any, store: LogStore, depth: int, log_folder: str, storage_options: Mapping[str, Any]
) -> pl.DataFrame:
    """Every file of a table's folder, except those of its log.

    Memory: on the driver, about 150 bytes per file.
    """
    own = unbounded(store)
    leaves, above = _folders(own, depth, log_folder)
    listed = [
        pa.Table.from_batches([_batch(own.list_from(f), f"{f}/" if f else "")]) for f in above
    ]
    if leaves:
        location = os.path.abspath(own.root) if isinstance(own, LocalStore) else own.root
        frame = spark.createDataFrame(pa.table({"folder": pa.array(leaves, pa.string())}))
        tasks = min(_MOST_TASKS, -(-len(leaves) // _FOLDERS_A_TASK))
        found = frame.repartition(tasks).mapInArrow(
            Lister(location, dict(storage_options)), LISTED_SCHEMA
        )
        listed.append(found.toArrow().cast(_ARROW))
    return pl.DataFrame(pa.concat_tables(listed))


def _folders(store: LogStore, depth: int, log_folder: str) -> tuple[list[str], list[str]]:
    """Folders that executors list recursively, and the folders above them."""
    above, level = [], [""]
    for _ in range(max(1, depth)):
        above += level
        level = [
            path
            for folder in level
            for name in store.list_folders(folder)
            if (path := f"{folder}/{name}" if folder else name) != log_folder
            and not _is_link(store, path)
        ]
    return level, above


def _is_link(store: LogStore, folder: str) -> bool:
    """Whether a local folder is a symbolic link; links are never followed."""
    return isinstance(store, LocalStore) and os.path.islink(f"{store.root}/{folder}")
