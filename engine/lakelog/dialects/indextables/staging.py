"""Shared by the checkpoint writers: temporary names, and the pointer.

Source: facts of the real writers, ``_last_checkpoint``; ``schemas/checkpoint.md``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import polars as pl

from lakelog.dialects.indextables.docmapping import registry_of_meta
from lakelog.dialects.indextables.framing import unframe
from lakelog.dialects.indextables.listing import LAST_CHECKPOINT, LOG_FOLDER
from lakelog.dialects.indextables.protocol import STATE_PROTOCOL, knows_flattened
from lakelog.dialects.log_content import CheckpointPlan, StagedFile
from lakelog.errors import CorruptionError, LakelogError, NotFoundError, UnavailableError
from lakelog.storage import LogStore
from lakelog.storage.base import Upload


@dataclass(eq=False)
class Staging:
    """The files of one checkpoint while it is written.

    Attributes:
        store: Store of the table.
        plan: What the checkpoint is to look like.
        unique: Gives UUIDs for the names.
        files: Files that are whole, in the order in which they are to get their names.
        num_adds: Live files among the actions.
        registry: Document mappings that the table's properties hold, by hash.
        configuration: The table's properties.
    """

    store: LogStore
    plan: CheckpointPlan
    unique: Callable[[], uuid.UUID] = uuid.uuid4
    files: list[StagedFile] = field(default_factory=list)
    num_adds: int = 0
    registry: dict[str, str] = field(default_factory=dict)
    configuration: dict[str, str | None] = field(default_factory=dict)
    _reader_version: int = 1
    _reader_features: tuple[str, ...] = ()
    _open: list[Upload] = field(default_factory=list)

    def learn(self, meta: pl.DataFrame) -> None:
        """Take from the rows that are no file actions what spelling the others depends on."""
        self.registry = registry_of_meta(meta)
        for row in meta.iter_rows(named=True):  # a few rows, and skips
            if row["actionType"] == "metaData":
                self.configuration = dict(row.get("configuration") or {})
            elif row["actionType"] == "protocol":
                self._reader_version = row.get("minReaderVersion") or 1
                self._reader_features = tuple(row.get("readerFeatures") or ())

    def hidden(self) -> str:
        """A new name that no reader looks at."""
        return f"{LOG_FOLDER}/.lakelog-{self.unique().hex}.tmp"

    def begin(self, path: str) -> Upload:
        """Start a file, which `abandon` would leave nothing of."""
        upload = self.store.upload(path)
        self._open.append(upload)
        return upload

    def put(self, target: str, data: bytes) -> StagedFile:
        """Write a small file that holds no actions."""
        staged = StagedFile(self.hidden(), target, len(data), 0)
        # Before it is there: where the answer is lost, it may be.
        self.files.append(staged)
        self.store.put(staged.path, data)
        return staged

    def close(self, upload: Upload, staged: StagedFile) -> None:
        """Make a file appear that is whole."""
        self.files.append(staged)
        upload.close()

    def abandon(self) -> None:
        """Delete what was written, if the store allows it."""
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
        """``_last_checkpoint``, or None where other readers of the table must not follow it.

        Those of an Avro state would look for a folder that is not there, and fail. Those that do
        not know flattened Parquet would lose the JSON checkpoint that it named before, and their
        cleanup would take the commits below what they cannot read.
        """
        if self._reader_version >= STATE_PROTOCOL or self._points_to_state():
            return None
        if self.plan.layout == "flattened" and not knows_flattened(self._reader_features):
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
        """Actions in all files."""
        return sum(file.num_actions for file in self.files)

    @property
    def size_bytes(self) -> int:
        """Length of all files."""
        return sum(file.size_bytes for file in self.files)

    def _points_to_state(self) -> bool:
        try:
            data = self.store.read(LAST_CHECKPOINT)
        except NotFoundError:
            return False
        except UnavailableError:
            return True  # it may; and leaving a pointer as it is only costs time
        try:
            body = orjson.loads(unframe(data, LAST_CHECKPOINT))
        except (CorruptionError, orjson.JSONDecodeError):
            return False
        return isinstance(body, dict) and (
            body.get("format") == "avro-state" or body.get("stateDir") is not None
        )
