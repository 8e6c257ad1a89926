"""Writes JSON checkpoints of IndexTables, in one file or in parts.

A JSON checkpoint has the lines of a commit: protocol, metaData, skips, adds, and retained
tombstones. The reference implementation omits skips and tombstones, so that they are lost when the
commits below are deleted; its readers accept both lines.

Parts are written under their final names, which contain an identifier of the attempt: readers open
them only after they are in a manifest, and two writers never use the same name.

Source: ``schemas/checkpoint.md``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import orjson
import polars as pl

from lakelog.dialects.encode import encode_rows, ordered_content
from lakelog.dialects.indextables.docmapping import without_registered
from lakelog.dialects.indextables.flattened_writer import FlattenedWriter, Staging
from lakelog.dialects.indextables.framing import Framer, checkpoint_level
from lakelog.dialects.indextables.listing import LOG_FOLDER, RANK
from lakelog.dialects.log_content import (
    Checkpoint,
    CheckpointPlan,
    CheckpointWriter,
    CommitContent,
    StagedCheckpoint,
    StagedFile,
)
from lakelog.dialects.row_validation import EXTRA, columns_of, conform_rows
from lakelog.dialects.truncation_marks import Marker
from lakelog.errors import InvalidInputError
from lakelog.model import actions
from lakelog.storage import LogStore
from lakelog.storage.base import Upload
from lakelog.storage.durable import temporary_path

LAYOUTS = ("json", "json-multipart", "flattened")
"""Layouts that can be written; an Avro state, which is also a commit, can only be read."""

_DIALECT = "indextables"
_ID_DIGITS = 12
_SLICE_ROWS = 1 << 14
_SLICE_BYTES = 32 << 20
_PART_BYTES = 256 << 20  # far below the limit of a reader for one decompressed file


def checkpoint_writer(store: LogStore, plan: CheckpointPlan) -> CheckpointWriter:
    """A writer of one checkpoint; see `lakelog.dialects.base.Dialect.checkpoint_writer`."""
    staging = Staging(store, plan)
    if plan.layout == "flattened":
        return FlattenedWriter(staging)
    if plan.layout in LAYOUTS:
        return JsonCheckpointWriter(staging)
    raise InvalidInputError(
        "unknown checkpoint layout of IndexTables",
        found=plan.layout,
        expected=", ".join(LAYOUTS),
    )


class JsonCheckpointWriter(CheckpointWriter):
    """Writes lines to one file or to parts. Memory: the lines of about 16,384 rows."""

    columns = tuple(
        name
        for name in actions.schema()
        if name in columns_of("add", _DIALECT) | columns_of("remove", _DIALECT) | {EXTRA}
    )

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        plan = staging.plan
        self._id = uuid.uuid4().hex[:_ID_DIGITS] if plan.layout == "json-multipart" else None
        self._level: int | None = None
        self._file: _LinesFile | None = None

    def write_meta(self, meta: pl.DataFrame) -> None:
        """Write all non-file actions; called once, before the files."""
        self._staging.learn(meta)
        self._level = checkpoint_level(self._staging.configuration)
        rows, _ = ordered_content(CommitContent(meta=meta), _DIALECT)
        self._write(rows)

    def write_files(self, files: pl.DataFrame) -> None:
        """Write about 65,536 file actions of one kind, with ``dataChange`` false."""
        if not files.height:
            return
        self._staging.num_adds += int((files["actionType"] == "add").sum())
        rows = files.with_columns(dataChange=pl.lit(value=False))
        self._write(conform_rows(without_registered(rows, self._staging.registry), _DIALECT))

    def finish(self) -> StagedCheckpoint:
        """Close the files; the manifest is written last."""
        self._close(self._current())
        plan, staging = self._staging.plan, self._staging
        target = f"{LOG_FOLDER}/{plan.version:020d}.checkpoint.json"
        more = {}
        if self._id is not None:
            parts = [file.target.removeprefix(f"{LOG_FOLDER}/") for file in staging.files]
            manifest = {
                "version": plan.version,
                "checkpointId": self._id,
                "parts": parts,
                "createdTime": plan.created_ms,
                "format": "json",
            }
            staging.put(target, orjson.dumps(manifest))
            more = {"parts": len(parts), "checkpointId": self._id}
        files = tuple(staging.files)
        # The reader opens the manifest first.
        read = [files[-1], *files[:-1]]
        checkpoint = Checkpoint.of_files(plan.version, plan.layout, RANK[plan.layout], read)
        return StagedCheckpoint(checkpoint, files, staging.pointer(**more))

    def abandon(self) -> None:
        """Delete the written files, if the store allows it."""
        self._staging.abandon()

    def _write(self, rows: pl.DataFrame) -> None:
        most = self._staging.plan.part_actions
        for part in _slices(rows):
            rest = part
            while rest.height:
                file = self._current()
                if self._id is not None and file.num_actions >= max(1, most):
                    file = self._next(file)
                room = rest.height if self._id is None else max(1, most) - file.num_actions
                taken, rest = rest[:room], rest[room:]
                lines = b"".join(encode_rows(taken, _DIALECT, ahead=False))
                if self._id is not None and file.plain_bytes + len(lines) > _PART_BYTES:
                    file = self._next(file)
                file.write(lines, taken.height)

    def _current(self) -> _LinesFile:
        if self._file is None:
            number = len(self._staging.files) + 1
            version = self._staging.plan.version
            name = f"{version:020d}.checkpoint"
            if self._id is None:
                target = f"{LOG_FOLDER}/{name}.json"
                path = temporary_path(LOG_FOLDER)
            else:
                target = path = f"{LOG_FOLDER}/{name}.{self._id}.{number:05d}.json"
            upload = self._staging.begin(path)
            marker = Marker(target.rpartition("/")[2].removesuffix(".json"))
            self._file = _LinesFile(path, target, upload, Framer(self._level), marker)
        return self._file

    def _next(self, file: _LinesFile) -> _LinesFile:
        if not file.num_actions:
            return file
        self._close(file)
        return self._current()

    def _close(self, file: _LinesFile) -> None:
        self._file = None
        file.finish()
        size_bytes = file.upload.tell()
        staged = StagedFile(file.path, file.target, size_bytes, file.num_actions)
        self._staging.close(file.upload, staged)


@dataclass(eq=False)
class _LinesFile:
    """A file of lines that is appended to."""

    path: str
    target: str
    upload: Upload
    framer: Framer
    marker: Marker
    num_actions: int = 0

    @property
    def plain_bytes(self) -> int:
        return self.framer.plain_bytes

    def write(self, lines: bytes, num_actions: int) -> None:
        self._require_room(len(lines))
        self.upload.write(self.framer.add(self.marker.add(lines)))
        self.num_actions += num_actions

    def finish(self) -> None:
        self.upload.write(self.framer.add(self.marker.end()))
        self.upload.write(self.framer.end())
        self._require_room(0)

    def _require_room(self, more_bytes: int) -> None:
        most = self.framer.most_bytes
        if most is not None and self.plain_bytes + more_bytes > most:
            raise InvalidInputError(
                "the checkpoint is too large for one compressed file",
                path=self.target,
                expected=f"at most {most} bytes before compression",
                hint="use layout json-multipart or flattened",
            )


def _slices(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Slices of rows with a limited length of their lines."""
    if rows.height:
        row_bytes = max(1, int(rows.estimated_size()) // rows.height)
        yield from rows.iter_slices(max(1, min(_SLICE_ROWS, _SLICE_BYTES // row_bytes)))
