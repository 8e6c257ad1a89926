"""Writes flattened Parquet checkpoints: temporary names, rows, pointer.

Several files share the rows by the CRC-32 of the path. Their names contain only version, number and
count, so two writers of one version may replace each other's files: as each row belongs to one
file, any mixture of their files is the same checkpoint.

Source: ``schemas/checkpoint.md``, Flattened Parquet.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.digest import Digest
from lakelog.dialects.indextables.columnar import arrow_field, dictionary_columns
from lakelog.dialects.indextables.docmapping import registry_of_meta, without_registered
from lakelog.dialects.indextables.flattened import FILES_KEY
from lakelog.dialects.indextables.listing import (
    CHECKPOINT_FOLDER,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    RANK,
    metadata_path,
    pointer_body,
)
from lakelog.dialects.indextables.protocol import STATE_PROTOCOL, has_flattened_checkpoints
from lakelog.dialects.indextables.text_bounds import TextBoundsRecorder
from lakelog.dialects.log_content import (
    CHECKPOINT_META,
    Checkpoint,
    CheckpointPart,
    CheckpointPlan,
    CheckpointWriter,
    StagedCheckpoint,
    StagedFile,
    WrittenPart,
    require_part,
)
from lakelog.dialects.row_group_records import RECORD_KEY
from lakelog.errors import InvalidInputError, LakelogError, NotFoundError, UnavailableError
from lakelog.model import actions
from lakelog.storage import LogStore
from lakelog.storage.base import Upload
from lakelog.storage.durable import temporary_path
from lakelog.storage.upload import UploadSink


@dataclass(eq=False)
class Staging:
    """The complete files of a checkpoint in the order of their renames."""

    store: LogStore
    plan: CheckpointPlan
    files: list[StagedFile] = field(default_factory=list)
    num_adds: int = 0
    records: list[str] = field(default_factory=list)
    registry: dict[str, str] = field(default_factory=dict)
    configuration: dict[str, str | None] = field(default_factory=dict)
    _reader_version: int = 1
    _reader_features: tuple[str, ...] = ()
    _open: list[Upload] = field(default_factory=list)

    def learn(self, meta: pl.DataFrame) -> None:
        """Read the properties that the encoding depends on from the non-file actions."""
        self.registry = registry_of_meta(meta)
        for row in meta.iter_rows(named=True):  # a few rows, and skips
            if row["actionType"] == "metaData":
                self.configuration = dict(row.get("configuration") or {})
            elif row["actionType"] == "protocol":
                self._reader_version = row.get("minReaderVersion") or 1
                self._reader_features = tuple(row.get("readerFeatures") or ())

    def begin(self, path: str) -> Upload:
        """Begin a file; `abandon` deletes it."""
        upload = self.store.upload(path)
        self._open.append(upload)
        return upload

    def put(self, target: str, data: bytes) -> StagedFile:
        """Write a small file without actions."""
        staged = StagedFile(temporary_path(LOG_FOLDER), target, len(data), 0)
        # Recorded before writing, because a write with an unknown outcome may have created the
        # file.
        self.files.append(staged)
        self.store.put(staged.path, data)
        return staged

    def close(self, upload: Upload, staged: StagedFile) -> None:
        """Close a complete file."""
        self.files.append(staged)
        upload.close()

    def abandon(self) -> None:
        """Delete the written files, if the store allows it."""
        for upload in self._open:
            try:
                upload.abandon()
            except LakelogError:
                continue
        try:
            self.store.delete_many([file.path for file in self.files])
        except LakelogError:
            return

    def pointer(self, **more: Any) -> tuple[str, bytes] | None:
        """``_last_checkpoint``, or None if other readers of the table must not follow it.

        Readers of Avro states expect a state folder and would fail. Readers without support for
        flattened Parquet would lose the JSON checkpoint that it referred to before, and their
        cleanup would delete the commits below a checkpoint that they cannot read.
        """
        if self._reader_version >= STATE_PROTOCOL or self._points_to_state():
            return None
        if self.plan.layout == "flattened" and not has_flattened_checkpoints(self._reader_features):
            return None
        body = {
            "version": self.plan.version,
            "size": self.num_actions,
            "sizeInBytes": self.size_bytes,
            "numFiles": self.num_adds,
            "createdTime": self.plan.created_ms,
            **more,
        }
        return LAST_CHECKPOINT, orjson.dumps(body)

    @property
    def num_actions(self) -> int:
        """Number of actions in all files."""
        return sum(file.num_actions for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Total length of all files, in bytes."""
        return sum(file.size_bytes for file in self.files)

    def _points_to_state(self) -> bool:
        try:
            data = self.store.read(LAST_CHECKPOINT)
        except NotFoundError:
            return False
        except UnavailableError:
            return True  # unknown; leaving the pointer unchanged only costs time
        body = pointer_body(data)
        return body.get("format") == "avro-state" or body.get("stateDir") is not None


FOOTER_KEY = "lakelog.checkpoint"
"""Key of the footer with the number of the part and its checkpoint, as JSON."""

_LAYOUT = "flattened"
_TYPE = "actionType"
_PENDING_ROWS = 1 << 17  # over all files, to limit the memory of many files
_UNLIKE = frozenset({"position"})  # differs from row to row


class FlattenedWriter(CheckpointWriter):
    """Writes flattened rows. Memory: a row group, or about 131,072 rows with several files."""

    columns = tuple(name for name in actions.schema() if name not in {_TYPE, "timestamp", "dvId"})

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._schema = _part_schema()
        plan = staging.plan
        count = max(1, plan.parts)
        self._parts = [
            ParquetPart(
                staging, _part_target(plan.version, number, count), number, count, self._schema
            )
            for number in range(1, count + 1)
        ]

    def write_meta(self, meta: pl.DataFrame) -> None:
        """Write all non-file actions; called once, before the files."""
        self._staging.learn(meta)
        kinds = meta[_TYPE].unique().to_list() if meta.height else []
        if unknown := sorted(set(kinds) - set(CHECKPOINT_META)):
            raise InvalidInputError(
                "a checkpoint cannot contain this action",
                found=unknown[0],
                expected=", ".join(CHECKPOINT_META),
            )
        for kind in CHECKPOINT_META:
            self._parts[0].append(actions.of_type(meta, kind))

    def write_files(self, files: pl.DataFrame) -> None:
        """Write about 65,536 file actions of one kind, with ``dataChange`` false."""
        if not files.height:
            return
        self._staging.num_adds += int((files[_TYPE] == "add").sum())
        for part, share in zip(self._parts, self._shares(files), strict=True):
            part.append_files(share)
        while sum(part.pending for part in self._parts) > _PENDING_ROWS:
            max(self._parts, key=lambda part: part.pending).flush()

    def finish(self) -> StagedCheckpoint:
        """Close the files; the last one to be renamed completes the checkpoint."""
        for part in self._parts:
            part.close()
        return stage_parts(self._staging)

    def abandon(self) -> None:
        """Delete the written files, if the store allows it."""
        for part in self._parts:
            part.drop()
        self._staging.abandon()

    def _shares(self, rows: pl.DataFrame) -> list[pl.DataFrame]:
        count = len(self._parts)
        if count == 1:
            return [rows]
        numbers = _part_numbers(rows["path"], count)
        return [rows.filter(numbers == number) for number in range(count)]


def _part_numbers(paths: pl.Series, count: int) -> pl.Series:
    """The part of each path, from 0."""
    # One call per path, because no library has this checksum for whole columns.
    encoded = paths.cast(pl.Binary).to_list()
    numbers = np.fromiter(map(crc32, encoded), np.uint32, len(encoded))
    return pl.Series(numbers % np.uint32(count))


def _part_schema() -> pa.Schema:
    """Schema of a flattened file."""
    return pa.schema([arrow_field(name) for name in actions.schema()])


def stage_parts(staging: Staging) -> StagedCheckpoint:
    """The checkpoint of complete parts, in order; writes the metadata next to them."""
    plan = staging.plan
    data = tuple(staging.files)
    more = {"parts": len(data)} if len(data) > 1 else {}
    body = {
        "version": plan.version,
        "size": staging.num_adds,
        **more,
        "createdTime": plan.created_ms,
        "numActions": staging.num_actions,
        "sizeInBytes": staging.size_bytes,
        FILES_KEY: [
            {"sizeInBytes": file.size_bytes, RECORD_KEY: record}
            for file, record in zip(data, staging.records, strict=True)
        ],
    }
    pointer = staging.pointer(**more, format=_LAYOUT)
    manifest = staging.put(metadata_path(plan.version), orjson.dumps(body))
    checkpoint = Checkpoint.of_files(plan.version, _LAYOUT, RANK[_LAYOUT], data)
    return StagedCheckpoint(checkpoint, (manifest, *data), pointer)


def _part_target(version: int, number: int, count: int) -> str:
    """Path of part `number` (from 1) of `count`."""
    stem = f"{CHECKPOINT_FOLDER}/{version:020d}.checkpoint"
    return f"{stem}.parquet" if count == 1 else f"{stem}.{number:010d}.{count:010d}.parquet"


@dataclass(eq=False)
class ParquetPart:
    """A Parquet file that is appended to; `record` describes its row groups once it is closed."""

    staging: Staging
    target: str
    number: int
    count: int
    schema: pa.Schema
    pending: int = 0
    num_actions: int = 0
    record: str = ""
    _frames: list[pl.DataFrame] = field(default_factory=list)
    _kind: str = ""
    _path: str = ""
    _sink: UploadSink | None = None
    _writer: pq.ParquetWriter | None = None
    _recorder: TextBoundsRecorder = field(init=False)

    def append(self, rows: pl.DataFrame) -> None:
        """Append rows; full row groups are written, the rest is buffered."""
        if not rows.height:
            return
        self._frames.append(rows)
        self.pending += rows.height
        most = max(1, self.staging.plan.row_group_rows)
        if self.pending >= most:
            self._write(self.pending - self.pending % most)

    def append_files(self, files: pl.DataFrame) -> None:
        """Append file actions of one kind; row groups have one, so that readers skip others."""
        if not files.height:
            return
        kind = files[_TYPE][0]
        if kind != self._kind:
            self.flush()
            self._kind = kind
        rows = files.with_columns(dataChange=pl.lit(value=False))
        self.append(without_registered(rows, self.staging.registry))

    def flush(self) -> None:
        """Write the buffered rows as a row group."""
        if self.pending:
            self._write(self.pending)

    def _write(self, rows: int) -> None:
        waiting = pl.concat(self._frames, how="diagonal")
        table = actions.conform(waiting[:rows]).to_arrow().cast(self.schema)
        most = max(1, self.staging.plan.row_group_rows)
        self._started().write_table(table, row_group_size=most)
        for group in waiting[:rows].iter_slices(most):
            self._recorder.add(group)
        rest = waiting[rows:]
        self.num_actions += rows
        self.pending = rest.height
        self._frames = [rest] if rest.height else []

    def _started(self) -> pq.ParquetWriter:
        if self._writer is None:
            self._path = temporary_path(LOG_FOLDER)
            self._sink = UploadSink(self.staging.begin(self._path))
            plan = self.staging.plan
            self._recorder = TextBoundsRecorder(plan.schema, plan.partition_columns)
            # Without Arrow's own schema, every reader sees the same plain Parquet types.
            self._writer = pq.ParquetWriter(
                self._sink,
                self.schema,
                compression=plan.compression,
                use_dictionary=[n for n in dictionary_columns(self.schema) if n not in _UNLIKE],
                store_schema=False,
                write_page_checksum=True,
            )
        return self._writer

    def close(self) -> None:
        """Write the buffered rows and the footer, and create the file."""
        self.flush()
        writer = self._started()
        content = {
            "version": self.staging.plan.version,
            "part": self.number,
            "parts": self.count,
            "numActions": self.num_actions,
        }
        assert self._sink is not None
        upload = self._sink.upload
        self.record = self._recorder.record(
            posixpath.basename(self.target), upload.tell(), self.schema
        )
        writer.add_key_value_metadata(
            {FOOTER_KEY: orjson.dumps(content).decode(), RECORD_KEY: self.record}
        )
        writer.close()
        staged = StagedFile(self._path, self.target, upload.tell(), self.num_actions)
        self.staging.close(upload, staged)
        self.staging.records.append(self.record)

    def drop(self) -> None:
        """Abandon an unfinished file, and discard the rest that the Parquet writer still has."""
        if self._sink is not None and self._writer is not None:
            self._sink.give_up(self._writer)


class FlattenedPart:
    """One part of a distributed checkpoint; the first part contains the non-file actions."""

    def __init__(self, part: CheckpointPart) -> None:
        self._part = part
        number, plan = part.number, part.plan
        self._staging = Staging(part.store, plan, registry=registry_of_meta(part.meta))
        target = _part_target(plan.version, number + 1, plan.parts)
        self._file = ParquetPart(self._staging, target, number + 1, plan.parts, _part_schema())
        self._digest = Digest()
        self.has_meta = number == 0
        for rows in part.meta_by_type if self.has_meta else ():
            self._file.append(rows)

    def write_files(self, files: pl.DataFrame) -> None:
        """Add rows of one kind, all of this part."""
        require_part(_part_numbers(files["path"], self._part.plan.parts), self._part.number)
        self._digest += self._part.digest(files)
        self._file.append_files(files)

    def finish(self) -> list[WrittenPart]:
        """The file."""
        self._file.close()
        tags = {RECORD_KEY: self._file.record}
        return [WrittenPart(self._staging.files[-1], self._digest, tags)]

    def abandon(self) -> None:
        """Also deletes a closed file."""
        self._file.drop()
        self._staging.abandon()
