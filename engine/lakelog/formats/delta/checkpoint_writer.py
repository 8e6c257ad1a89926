"""Writing Delta checkpoints: classic, multi-part, and V2 with a JSON or Parquet manifest.

Files are written under names that no reader looks at; sidecars stand under their final names at
once, for nobody looks at them before a manifest names them. Rows that are no file actions come
first, where readers find them soonest.

Source: Delta protocol, Checkpoints; Sidecar Files; Last Checkpoint File Schema.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from lakelog import actions
from lakelog.errors import InvalidInputError, LakelogError
from lakelog.formats.base import Checkpoint, CheckpointPlan, StagedCheckpoint
from lakelog.formats.delta.checkpoint_files import ParquetFile
from lakelog.formats.delta.checkpoint_rows import action_rows, columns_of, encoded
from lakelog.formats.delta.checkpoint_schema import classic_schema, file_columns, spark_schema
from lakelog.formats.delta.hints import checksum
from lakelog.formats.delta.names import LAST_CHECKPOINT, LOG_FOLDER, classic_name, rank_of
from lakelog.storage import LogStore

LAYOUTS = ("classic",)
_FIRST = ("protocol", "metaData", "domainMetadata", "txn")
_LONGEST_SCHEMA = 20_000
"""Characters of a schema that the pointer still repeats; as Spark decides it."""


class DeltaCheckpointWriter:
    """Writes one checkpoint; see `lakelog.formats.base.CheckpointWriter`.

    Args:
        store: Store of the table.
        plan: What the checkpoint is to look like.
        unique: Gives UUIDs for the names.

    Raises:
        InvalidInputError: The layout is none of Delta's.
    """

    def __init__(
        self,
        store: LogStore,
        plan: CheckpointPlan,
        unique: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        if plan.layout not in LAYOUTS:
            raise InvalidInputError(
                "Delta has no such checkpoint layout",
                found=plan.layout,
                expected=", ".join(LAYOUTS),
            )
        self._store = store
        self._plan = plan
        self._unique = unique
        self._schema = classic_schema(file_columns(stats_as_json=plan.stats_as_json))
        wanted = {c for kind in actions.FILE_ACTIONS for c in columns_of(kind, self._schema)}
        self.columns = tuple(name for name in actions.schema() if name in wanted)
        self._file = self._new_file(classic_name(plan.version))
        self._staged: list[str] = []

    def _new_file(self, name: str) -> ParquetFile:
        staged = f"{LOG_FOLDER}/.lakelog-{self._unique().hex}.tmp"
        return ParquetFile(
            self._store,
            staged,
            f"{LOG_FOLDER}/{name}",
            self._schema,
            self._plan.compression,
            self._plan.row_group_rows,
        )

    def write_meta(self, meta: pl.DataFrame) -> None:
        """All rows that are no file actions, once, before the files.

        Raises:
            InvalidInputError: A row is of a type that no checkpoint holds.
            UnavailableError: The store failed.
        """
        for rows in meta_tables(meta, self._schema):
            self._file.append(rows)

    def write_files(self, files: pl.DataFrame) -> None:
        """File actions of one kind, some 65,536 rows at a time.

        Raises:
            UnavailableError: The store failed.

        Memory: the rows of a row group, once more.
        """
        if not files.height:
            return
        kind = files["actionType"][0]
        self._file.append(action_rows(encoded(files), kind, self._schema))
        if kind == "add":
            self._file.num_adds += files.height

    def finish(self) -> StagedCheckpoint:
        """Close the file.

        Raises:
            OutcomeUnknownError: The file may have been written.
            UnavailableError: It certainly was not.
        """
        staged = self._file.close()
        self._staged.append(staged.path)
        version = self._plan.version
        checkpoint = Checkpoint(
            version, "classic", rank_of("classic"), (staged.path,), (staged.size_bytes,)
        )
        pointer = {
            "version": version,
            "size": staged.num_actions,
            "sizeInBytes": staged.size_bytes,
            "numOfAddFiles": self._file.num_adds,
        }
        return StagedCheckpoint(
            checkpoint, (staged,), (LAST_CHECKPOINT, pointer_bytes(pointer, self._schema))
        )

    def abandon(self) -> None:
        """Delete what was written, as far as the store lets us."""
        try:
            self._file.abandon()
            self._store.delete_many(self._staged)
        except LakelogError:
            return


def meta_tables(meta: pl.DataFrame, schema: pa.Schema) -> list[pa.Table]:
    """The rows that are no file actions, a table for each type, protocol and metaData first.

    Raises:
        InvalidInputError: A row is of a type that no checkpoint holds.
    """
    if not meta.height:
        return []
    kinds = meta["actionType"].unique(maintain_order=True).to_list()
    if unknown := [kind for kind in kinds if kind not in _FIRST]:
        raise InvalidInputError(
            "no Delta checkpoint holds such an action",
            found=unknown[0],
            expected=", ".join(_FIRST),
        )
    return [
        action_rows(meta.filter(pl.col("actionType") == kind), kind, schema)
        for kind in _FIRST
        if kind in kinds
    ]


def pointer_bytes(pointer: Mapping[str, Any], schema: pa.Schema | None) -> bytes:
    """The content of ``_last_checkpoint``, with its checksum.

    Source: Delta protocol, Last Checkpoint File Schema; JSON checksum.
    """
    content = dict(pointer)
    if schema is not None:
        repeated = spark_schema(schema)
        if len(json.dumps(repeated, separators=(",", ":"))) <= _LONGEST_SCHEMA:
            content["checkpointSchema"] = repeated
    return json.dumps(
        content | {"checksum": checksum(content)}, separators=(",", ":"), ensure_ascii=False
    ).encode()
