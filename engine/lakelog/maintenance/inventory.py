"""All files of a log folder as one frame, with their kinds; and stores that show a log as it was
listed, or without some of its files.

Names are matched exactly. A file of unknown kind is never changed or deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

import polars as pl

from lakelog.dialects.base import Dialect
from lakelog.errors import NotFoundError
from lakelog.input_validation import is_unicode
from lakelog.log.context import Log
from lakelog.storage.base import FileEntry, LogStore, StoreWrapper
from lakelog.storage.durable import TEMPORARY

QUARANTINE = ".lakelog-quarantine"
"""Folder in the log folder that files are moved to; readers ignore it, because its name begins with
a dot.
"""

_PLAIN_COMMIT = (
    "^0[0-9]{19}[.]json$"  # a name with twenty digits is a version only if it begins with 0
)
# Kind, and a pattern of names relative to the log folder; the first group is the version.
_COMMON = (
    ("quarantine", rf"^{QUARANTINE.replace('.', '[.]')}/()"),
    ("temporary", rf"(?:^|/){TEMPORARY.pattern}()$"),
)

SCHEMA = pl.Schema(
    {
        "path": pl.String,
        "kind": pl.String,
        "version": pl.Int64,
        "end": pl.Int64,
        "size_bytes": pl.Int64,
        "modified_ms": pl.Int64,
    }
)
"""Columns of `inventory`: ``path`` is relative to the table root; ``end`` is the last version of a
compaction; ``version`` is null for names without one.
"""


def walk_log(log: Log) -> list[FileEntry]:
    """All files below the log folder, sorted by name; names are relative to the folder. Those that
    are not valid Unicode are left out: no file of a log has one.
    """
    batches = log.store.walk(log.dialect.log_folder)
    entries = [entry for batch in batches for entry in batch if is_unicode(entry.name)]
    entries.sort()
    return entries


def inventory(entries: Sequence[FileEntry], dialect: Dialect) -> pl.DataFrame:
    """One row per file, sorted by path, with the columns `SCHEMA`."""
    folder = dialect.log_folder
    name = pl.Series("name", [entry[0] for entry in entries], dtype=pl.String)
    frame = pl.DataFrame(
        {
            "name": name,
            "size_bytes": pl.Series([entry[1] for entry in entries], dtype=pl.Int64),
            "modified_ms": pl.Series([entry[2] for entry in entries], dtype=pl.Int64),
        }
    )
    # Most files are commits, which one pattern finds; the other patterns run on the rest.
    plain = name.str.contains(_PLAIN_COMMIT)
    commits = frame.filter(plain).with_columns(
        pl.lit("commit").alias("kind"),
        pl.col("name").str.head(20).cast(pl.Int64).alias("version"),
        pl.lit(None, dtype=pl.Int64).alias("end"),
    )
    others = _by_patterns(frame.filter(~plain), (*_COMMON, *dialect.file_kinds))
    columns = list(SCHEMA)
    found = pl.concat([others.select("name", *columns[1:]), commits.select("name", *columns[1:])])
    return found.select(pl.format(f"{folder}/{{}}", "name").alias("path"), *columns[1:]).sort(
        "path"
    )


def _by_patterns(frame: pl.DataFrame, patterns: Sequence[tuple[str, str]]) -> pl.DataFrame:
    """Add ``kind``, ``version`` and ``end``, by the first pattern that a name matches."""
    column = pl.col("name")
    found = frame.with_columns(
        pl.coalesce(
            *(
                pl.when(column.str.contains(pattern)).then(pl.lit(kind))
                for kind, pattern in patterns
            )
        ).alias("kind"),
        # A number of twenty digits can exceed Int64; such a name is of unknown kind.
        pl.coalesce(*(column.str.extract(pattern) for _, pattern in patterns)).alias("digits"),
        pl.coalesce(
            pl.lit(None, pl.String),
            *(column.str.extract(pattern, 2) for kind, pattern in patterns if kind == "compaction"),
        ).alias("last"),
    ).with_columns(
        pl.col("digits").cast(pl.Int64, strict=False).alias("version"),
        pl.col("last").cast(pl.Int64, strict=False).alias("end"),
    )
    is_version = pl.col("digits").str.len_chars() > 0
    impossible = (is_version & pl.col("version").is_null()) | (
        (pl.col("kind") == "compaction")
        & ((pl.col("end") <= pl.col("version")) | pl.col("end").is_null())
    )
    return found.with_columns(
        pl.when(impossible.fill_null(value=False))
        .then(pl.lit("unknown"))
        .otherwise(pl.col("kind").fill_null("unknown"))
        .alias("kind")
    )


class ListedStore(StoreWrapper):
    """A store with the log folder of one walk, so that all checks see the same files."""

    def __init__(self, store: LogStore, folder: str, entries: Iterable[FileEntry]) -> None:
        super().__init__(store)
        self._folders: dict[str, list[FileEntry]] = {}
        own = self._folders.setdefault(folder, [])
        for entry in entries:
            name = entry.name
            if name[0] != "." and "/" not in name:
                own.append(entry)
                continue
            within, _, name = name.rpartition("/")
            key = f"{folder}/{within}" if within else folder
            if not (name[:1] == "." and TEMPORARY.fullmatch(name)):
                bare = entry if not within else entry._replace(name=name)
                self._folders.setdefault(key, []).append(bare)

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """Files directly in `folder`, as the walk found them."""
        entries = self._folders.get(folder, [])
        return [entry for entry in entries if entry.name >= start] if start else entries

    def list_folders(self, folder: str) -> list[str]:
        """Folders directly in `folder` that contain a file, at any depth."""
        below = f"{folder}/"
        return sorted(
            {key[len(below) :].split("/", 1)[0] for key in self._folders if key.startswith(below)}
        )


class RenamedStore(StoreWrapper):
    """A store in which files are read from other places: its state after they were moved.

    Args:
        store: The inner store.
        places: The present path of each file, by its name after the move.
    """

    def __init__(self, store: LogStore, places: Mapping[str, str]) -> None:
        super().__init__(store)
        self._places = places

    def read(self, path: str) -> bytes:
        """As the inner store."""
        return self._store.read(self._places.get(path, path))

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """As the inner store."""
        return self._store.read_many([self._places.get(path, path) for path in paths])

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """As the inner store."""
        return self._store.open(self._places.get(path, path), size_bytes)

    def stat(self, path: str) -> FileEntry | None:
        """As the inner store."""
        return self._store.stat(self._places.get(path, path))


class HidingStore(StoreWrapper):
    """A store without some of its files: the state of the table after their deletion."""

    def __init__(self, store: LogStore, hidden: Collection[str]) -> None:
        super().__init__(store)
        self._hidden = frozenset(hidden)

    def list_from(self, folder: str, start: str = "") -> list[FileEntry]:
        """Files of the inner store, without the hidden ones."""
        hidden = self._hidden
        return [
            entry
            for entry in self._store.list_from(folder, start)
            if f"{folder}/{entry.name}" not in hidden
        ]

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        """Files of the inner store, without the hidden ones."""
        prefix = f"{folder}/" if folder else ""
        for batch in self._store.walk(folder):
            yield [entry for entry in batch if prefix + entry.name not in self._hidden]

    def read(self, path: str) -> bytes:
        """As the inner store; hidden files do not exist."""
        self._look(path)
        return self._store.read(path)

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        """As the inner store; hidden files do not exist."""
        for path in paths:
            self._look(path)
        return self._store.read_many(paths)

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        """As the inner store; hidden files do not exist."""
        self._look(path)
        return self._store.open(path, size_bytes)

    def stat(self, path: str) -> FileEntry | None:
        """As the inner store; hidden files do not exist."""
        return None if path in self._hidden else self._store.stat(path)

    def _look(self, path: str) -> None:
        if path in self._hidden:
            raise NotFoundError("the file was not found", path=path)
