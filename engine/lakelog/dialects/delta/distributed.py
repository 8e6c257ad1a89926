"""Writes the parts of a distributed checkpoint: multi-part files and sidecars.

Names have an identifier of the attempt, so that repeated or concurrent attempts of a task never
collide.

Source: Delta protocol, Checkpoints; Sidecar Files.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import polars as pl

from lakelog.dialects.delta.checkpoint_files import ParquetFile, new_sidecar
from lakelog.dialects.delta.checkpoint_manifest import FileActionCounts, pointer_bytes
from lakelog.dialects.delta.checkpoint_rows import file_action_columns
from lakelog.dialects.delta.checkpoint_schema import classic_schema
from lakelog.dialects.delta.murmur3 import part_of, part_of_others
from lakelog.dialects.delta.names import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    part_name,
    rank_of,
)
from lakelog.dialects.delta.paths import spell_paths
from lakelog.dialects.delta.sidecar_fingerprints import SidecarRecord, shape_of
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import (
    Checkpoint,
    CheckpointPart,
    CheckpointPlan,
    SidecarFile,
    StagedCheckpoint,
    StagedFile,
    WrittenPart,
    require_part,
)
from lakelog.dialects.row_group_records import RECORD_KEY
from lakelog.storage.durable import temporary_path


class _Files:
    """The files of one part."""

    def __init__(self, part: CheckpointPart) -> None:
        self._part = part
        self._store, self._plan = part.store, part.plan
        self._columns, self._typed = file_action_columns(part.plan)
        self._digest = Digest()


class MultipartFile(_Files):
    """One file of a multi-part checkpoint; rows without a path are assigned by the hash too."""

    def __init__(self, part: CheckpointPart) -> None:
        super().__init__(part)
        plan = part.plan
        target = f"{LOG_FOLDER}/{part_name(plan.version, part.number + 1, plan.parts)}"
        self._file = ParquetFile(
            part.store,
            temporary_path(LOG_FOLDER),
            target,
            classic_schema(self._columns),
            plan.compression,
            plan.row_group_rows,
            self._typed,
        )
        self._is_closed = False
        self.has_meta = part.number == part_of_others(plan.parts)
        for rows in part.meta_by_type if self.has_meta else ():
            self._file.append(self._file.prepare(rows, rows["actionType"][0]))

    def write_files(self, files: pl.DataFrame) -> None:
        """Add rows of one kind, all of this part."""
        plan = self._plan
        keys = files.with_columns(spell_paths(files).alias("path"))
        require_part(part_of(keys, plan.parts, plan.deletion_vectors), self._part.number)
        self._digest += self._part.digest(files)
        self._file.append(self._file.prepare(files, files["actionType"][0]))

    def finish(self) -> list[WrittenPart]:
        """The file."""
        self._is_closed = True
        return [WrittenPart(self._file.close(), self._digest, {})]

    def abandon(self) -> None:
        """Also deletes a closed file."""
        self._file.abandon()
        if self._is_closed:
            self._store.delete_many([self._file.path])


class Sidecars(_Files):
    """The sidecars of a range of files: as many as its rows fill."""

    has_meta = False

    def __init__(self, part: CheckpointPart) -> None:
        super().__init__(part)
        self._closed: list[WrittenPart] = []
        self._file: ParquetFile | None = None
        self._record: SidecarRecord | None = None
        self._paths: list[str] = []

    def write_files(self, files: pl.DataFrame) -> None:
        """Add rows of one kind."""
        # Ranges are determined from a sample of the rows, and may be somewhat larger than a part.
        most = max(1, self._plan.part_actions * 5 // 4)
        rest = files
        while rest.height:
            file = self._file or self._begin()
            taken, rest = rest[: most - file.num_actions], rest[most - file.num_actions :]
            if self._record is not None:
                self._record.add(taken)
            else:
                self._digest += self._part.digest(taken)
            file.append(file.prepare(taken, taken["actionType"][0]))
            if file.num_actions >= most:
                self._close(file)

    def _begin(self) -> ParquetFile:
        self._file = new_sidecar(self._store, self._plan, uuid.uuid4(), self._columns, self._typed)
        self._paths.append(self._file.path)
        if self._part.digest_of is not None:
            shape = shape_of(self._plan, self._columns)
            self._record = SidecarRecord(shape, self._part.digest_of)
        return self._file

    def _close(self, file: ParquetFile) -> None:
        staged = file.close()
        tags: Mapping[str, str] = {}
        if self._record is not None:
            sidecar = SidecarFile(staged.path, staged.size_bytes, self._plan.created_ms)
            tags = self._record.tags(self._store, sidecar) | {RECORD_KEY: file.record}
            self._digest = self._record.digest
        self._closed.append(WrittenPart(staged, self._digest, tags))
        self._file, self._record, self._digest = None, None, Digest()

    def finish(self) -> list[WrittenPart]:
        """The files; none without rows."""
        if self._file is not None:
            self._close(self._file)
        return self._closed

    def abandon(self) -> None:
        """Delete the sidecars, which are in no manifest yet."""
        if self._file is not None:
            self._file.abandon()
        self._store.delete_many(self._paths)


def stage_multipart(plan: CheckpointPlan, parts: Sequence[WrittenPart]) -> StagedCheckpoint:
    """A multi-part checkpoint of finished files."""
    files: list[StagedFile] = [part.file for part in parts]
    counts = sum((part.digest for part in parts), Digest()).counts
    counted = FileActionCounts(counts.get("add", 0), counts.get("remove", 0))
    columns, _ = file_action_columns(plan)
    pointer = pointer_bytes(plan, files, counted, classic_schema(columns))
    rank = rank_of(plan.layout, len(files))
    made = Checkpoint.of_files(plan.version, plan.layout, rank, files)
    return StagedCheckpoint(made, tuple(files), (LAST_CHECKPOINT, pointer))
