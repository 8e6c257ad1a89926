"""The replayed state as multi-part flattened Parquet with a manifest.

Layout of the directory::

    part-00000.parquet …   rows in the flattened schema of schemas/actions.json
    _manifest.json         written last; without it, the output is incomplete

Spark, Polars and DuckDB read the folder directly (they ignore names that begin with ``_``).
The format is described in ``schemas/log.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.log_content import CHECKPOINT_META, STRUCT_STATISTICS, statistics_text
from lakelog.dialects.log_folders import require_outside_tables
from lakelog.display import Displayed, size_text
from lakelog.errors import InternalError, InvalidInputError, UnavailableError
from lakelog.log.file_order import FileOrder, in_order
from lakelog.log.history import with_derived_statistics
from lakelog.log.replay import live_domains
from lakelog.log.state import State
from lakelog.model import actions, contract
from lakelog.storage.resolve import require_location

_MANIFEST = "_manifest.json"
FORMAT = "lakelog-state"
FORMAT_VERSION = 1

_GROUP_ROWS = 1 << 16
_LEAST_GROUP_ROWS = 256


@dataclass(frozen=True)
class Part:
    """One Parquet file of the output: name in the directory, number of rows, and size in bytes."""

    path: str
    num_rows: int
    size_bytes: int


@dataclass(frozen=True)
class ExportManifest(Displayed):
    """Description of the output; ``_manifest.json`` contains the same fields, except the directory.

    Attributes:
        directory: Output directory.
        table: Location of the table.
        table_format: Dialect of its log.
        version: Version of the state.
        timestamp_ms: Commit time of the version, in milliseconds since the Unix epoch; None if
            unknown.
        num_files: Number of live files.
        total_size: Total size of the live files, in bytes.
        num_tombstones: Number of removed files that are still in the log.
        num_rows: Number of rows in all parts.
        parts: The parts, in order.
        provenance: Files of the log that the state depends on.
        warnings: Warnings about damage that was found and avoided, one sentence each.
    """

    directory: str
    table: str
    table_format: str
    version: int
    timestamp_ms: int | None
    num_files: int
    total_size: int
    num_tombstones: int
    num_rows: int
    parts: tuple[Part, ...]
    provenance: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        size_bytes = sum(part.size_bytes for part in self.parts)
        return [
            ("written to", self.directory),
            ("version", str(self.version)),
            ("live files", f"{self.num_files:,}, {size_text(self.total_size)}"),
            ("tombstones", f"{self.num_tombstones:,}"),
            ("rows", f"{self.num_rows:,}"),
            ("parts", f"{len(self.parts):,}, {size_text(size_bytes)}"),
            *(("warning", text) for text in self.warnings),
        ]

    def to_json(self) -> bytes:
        """The manifest's bytes."""
        body = {
            "format": FORMAT,
            "formatVersion": FORMAT_VERSION,
            "table": self.table,
            "tableFormat": self.table_format,
            "version": self.version,
            "timestampMs": self.timestamp_ms,
            "numFiles": self.num_files,
            "totalSize": self.total_size,
            "numTombstones": self.num_tombstones,
            "numRows": self.num_rows,
            "parts": [
                {"path": p.path, "numRows": p.num_rows, "sizeBytes": p.size_bytes}
                for p in self.parts
            ],
            "provenance": self.provenance,
            "warnings": self.warnings,
            "schema": contract.to_json(contract.load("actions")),
        }
        # Not orjson: sums of sizes may exceed 64 bits.
        return json.dumps(body, ensure_ascii=False, indent=2).encode()


def iter_state(
    state: State, columns: Sequence[str] | None = None, *, exact_times: bool = False
) -> Iterator[pl.DataFrame]:
    """The whole state in batches of the flattened action table; see `Snapshot.iter_state`, and
    `statistics_text` for `exact_times`.
    """
    full = actions.schema()
    wanted = list(columns) if columns is not None else list(full)
    meta = state.meta
    domains = live_domains(meta)
    for kind in CHECKPOINT_META:
        rows = domains if kind == "domainMetadata" else actions.of_type(meta, kind)
        if rows.height:
            yield actions.conform(rows, wanted)
    derived = not state.log.dialect.map_statistics
    structs = state.base is not None and state.base.has_struct_statistics
    sources = [c for c in full if c not in ("dataChange", "timestamp")]

    def finish(batch: pl.DataFrame) -> pl.DataFrame:
        if STRUCT_STATISTICS in batch.columns:
            text = statistics_text(batch, exact_times=exact_times)
            batch = batch.with_columns(text).drop(STRUCT_STATISTICS)
        if derived:
            batch = with_derived_statistics(batch)
        return actions.conform(batch.with_columns(dataChange=pl.lit(False)), wanted)

    unique = state.base_is_unique
    for kind in actions.FILE_ACTIONS:
        extra = (STRUCT_STATISTICS,) if structs and kind == "add" else ()
        read = state.iter_live if unique else state.live
        yield from read(kind, [*sources, *extra], finish)


def write_state(
    state: State,
    directory: str | Path,
    max_part_bytes: int = 134_217_728,
    timestamp_ms: int | None = None,
) -> ExportManifest:
    """Write a state to an empty directory (path or URL) in parts, in the order of
    `Snapshot.iter_state`; the manifest is the last file. Written files are deleted after an error.
    Memory: the rows of one kind while sorting, at most 1 GiB, and the layers above the checkpoint.
    """
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    if max_part_bytes <= 0:
        raise InvalidInputError(
            "invalid max_part_bytes", expected="max_part_bytes > 0", found=max_part_bytes
        )
    target = str(directory)
    require_location(target)
    filesystem, root = fsspec.core.url_to_fs(target)
    if isinstance(filesystem, LocalFileSystem):
        require_outside_tables(root, "output directory")
    try:
        if filesystem.exists(root):
            is_file = filesystem.isfile(root)
            if is_file or filesystem.ls(root):
                what = "a file" if is_file else "not empty"
                raise InvalidInputError(
                    f"the output directory is {what}",
                    path=target,
                    hint="use a new directory, so that parts of different states are not mixed",
                )
        filesystem.makedirs(root, exist_ok=True)
    except OSError as cause:
        if isinstance(cause, UnavailableError):
            raise
        raise _unwritable(target, cause) from cause

    writer = _PartWriter(filesystem, root, max_part_bytes)
    try:
        for batch in _sorted_state(state):
            writer.write(batch)
        writer.close()
        manifest = writer.manifest(target, state, timestamp_ms)
        with filesystem.open(f"{root}/{_MANIFEST}", "wb") as file:
            file.write(manifest.to_json())
    except BaseException as cause:
        writer.remove()
        if isinstance(cause, OSError) and not isinstance(cause, UnavailableError):
            raise _unwritable(target, cause) from cause
        raise
    return manifest


def _sorted_state(state: State) -> Iterator[pl.DataFrame]:
    order = FileOrder.of_state(state)
    batches = (batch for batch in iter_state(state) if batch.height)
    for kind, same in groupby(batches, key=lambda each: str(each["actionType"][0])):
        if kind in actions.FILE_ACTIONS:
            yield from in_order(same, order)
        else:
            yield from same


def _unwritable(target: str, cause: OSError) -> UnavailableError:
    return UnavailableError(
        f"writing the output failed: {cause}",
        path=target,
        hint="free disk space or check permissions; the written files were removed",
    )


class _PartWriter:
    def __init__(self, filesystem: Any, root: str, max_part_bytes: int) -> None:
        self._filesystem = filesystem
        self._root = root
        self._max_part_bytes = max_part_bytes
        self._schema = pa.schema(list(contract.to_arrow(contract.load("actions"))))
        self._file: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0
        self._parts: list[Part] = []
        self._waiting: list[pl.DataFrame] = []
        self._counts = {"add": 0, "remove": 0}
        self._total_size = 0

    def write(self, batch: pl.DataFrame) -> None:
        for kind in self._counts:
            rows = batch.filter(pl.col("actionType") == kind)
            self._counts[kind] += rows.height
            if kind == "add":
                self._total_size += int(rows["size"].cast(pl.Int128).sum())
        self._waiting.append(batch)
        if sum(b.height for b in self._waiting) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pl.concat(self._waiting)
        self._waiting = []
        # A row group is the smallest unit of a part, so small parts need small groups. Memory size
        # represents the size on disk, which is less.
        share = rows.height * self._max_part_bytes // max(1, int(rows.estimated_size()))
        for group in rows.iter_slices(max(_LEAST_GROUP_ROWS, min(_GROUP_ROWS, share))):
            self._write_group(group)

    def _write_group(self, rows: pl.DataFrame) -> None:
        if self._writer is None:
            path = f"{self._root}/{self._name()}"
            self._file = self._filesystem.open(path, "wb")
            # Without Arrow's own schema, every reader sees the same plain Parquet types.
            self._writer = pq.ParquetWriter(
                self._file, self._schema, compression="zstd", store_schema=False
            )
        # Polars exports large strings and views.
        columns = [rows[field.name].to_arrow().cast(field.type) for field in self._schema]
        table = pa.table(columns, schema=self._schema)
        self._writer.write_table(table, row_group_size=_GROUP_ROWS)
        self._rows += rows.height
        if self._file.tell() >= self._max_part_bytes:
            self._close_part()

    def _name(self) -> str:
        return f"part-{len(self._parts):05d}.parquet"

    def _close_part(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        size = self._file.tell()
        self._file.close()
        self._parts.append(Part(self._name(), self._rows, size))
        self._writer, self._file, self._rows = None, None, 0

    def close(self) -> None:
        """Finish the last part, and compare each part's footer with the written rows."""
        self._flush()
        self._close_part()
        for part in self._parts:
            with self._filesystem.open(f"{self._root}/{part.path}", "rb") as file:
                found = pq.read_metadata(file).num_rows
            if found != part.num_rows:
                raise InternalError(
                    "a written part differs from its content in memory",
                    path=part.path,
                    expected=part.num_rows,
                    found=found,
                )

    def remove(self) -> None:
        """Delete the written files, if the store allows it."""
        if self._file is not None:
            with suppress(OSError):  # of a full disk, again
                self._file.close()
        names = [p.path for p in self._parts] + [self._name(), _MANIFEST]
        for name in names:
            path = f"{self._root}/{name}"
            with suppress(OSError):
                if self._filesystem.exists(path):
                    self._filesystem.rm_file(path)

    def manifest(self, target: str, state: State, timestamp_ms: int | None) -> ExportManifest:
        provenance = state.provenance
        return ExportManifest(
            target,
            state.log.table,
            state.log.dialect.name,
            state.version,
            timestamp_ms,
            self._counts["add"],
            self._total_size,
            self._counts["remove"],
            sum(p.num_rows for p in self._parts),
            tuple(self._parts),
            provenance.files,
            provenance.warnings,
        )
