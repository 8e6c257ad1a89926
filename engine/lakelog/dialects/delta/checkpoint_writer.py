"""Writes Delta checkpoints: classic, multi-part, and V2 with a JSON or Parquet manifest.

Files are written under temporary names that readers ignore. Sidecars are written under their final
names, because readers open them only after they are in a manifest. Non-file actions are written
first, where readers find them fastest; in a multi-part checkpoint they are in the part of a null
path, as in Spark.

Source: Delta protocol, Checkpoints; Sidecar Files; V2 Spec; Last Checkpoint File Schema.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import polars as pl
import pyarrow as pa

from lakelog.dialects.delta.checkpoint_files import (
    CheckpointFile,
    JsonFile,
    OrderedTasks,
    ParquetFile,
    new_sidecar,
)
from lakelog.dialects.delta.checkpoint_manifest import (
    ACTIONS_TAG,
    META_ORDER,
    FileActionCounts,
    checkpoint_metadata,
    count_actions,
    manifest_tags,
    pointer_bytes,
    sidecar_rows,
)
from lakelog.dialects.delta.checkpoint_rows import columns_of, file_action_columns
from lakelog.dialects.delta.checkpoint_schema import (
    classic_schema,
    file_columns,
    manifest_schema,
    sidecar_schema,
)
from lakelog.dialects.delta.murmur3 import part_of, part_of_others
from lakelog.dialects.delta.names import (
    LAST_CHECKPOINT,
    LOG_FOLDER,
    classic_name,
    manifest_name,
    part_name,
    rank_of,
)
from lakelog.dialects.delta.paths import spell_paths
from lakelog.dialects.delta.sidecar_fingerprints import SidecarRecord, shape_of
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import (
    STRUCT_STATISTICS,
    Checkpoint,
    CheckpointPlan,
    SidecarFile,
    StagedCheckpoint,
    StagedFile,
)
from lakelog.dialects.row_group_records import RECORD_KEY
from lakelog.errors import InvalidInputError, LakelogError
from lakelog.model import actions
from lakelog.storage import LogStore
from lakelog.storage.durable import temporary_path

LAYOUTS = ("classic", "multipart", "v2-json", "v2-parquet")

_WAITING_GROUPS = 4
"""Row groups of rows that may be buffered in all parts of a multi-part checkpoint together."""
_LEAST_GROUP_ROWS = 1_000


@dataclass(eq=False)
class _Sidecar:
    """A sidecar in progress."""

    file: ParquetFile
    record: SidecarRecord | None
    given: int = 0
    is_full: bool = False
    action: SidecarFile | None = None
    staged: StagedFile | None = None


class DeltaCheckpointWriter:
    """Writes one checkpoint; rows are encoded in threads while the caller produces the next.

    Memory: two row groups, or three batches of rows and a row group where batches are larger
    (`CheckpointPlan.batch_rows`); for a multi-part checkpoint, four row groups.
    """

    digest_of: Callable[[pl.DataFrame], Digest] | None = None
    """Digest of rows of one kind. If it is set before `write_meta`, the manifest records a
    fingerprint of each sidecar (`lakelog.dialects.delta.sidecar_fingerprints`), so that a later
    checkpoint can keep the sidecar.
    """

    def __init__(self, store: LogStore, plan: CheckpointPlan) -> None:
        _check(plan)
        self._store = store
        self._plan = plan
        self._held = FileActionCounts()
        self._meta: list[pl.DataFrame] = []
        self._batch_rows = max(plan.row_group_rows, plan.batch_rows)
        self._tasks = OrderedTasks(2 * self._batch_rows)
        self._tops: list[CheckpointFile] = []
        self._sidecars: list[_Sidecar] = []
        self._files, self._typed = file_action_columns(plan)
        self.typed_statistics = self._typed.statistics if self._typed is not None else None
        self._closed: list[str] = []
        self._part_actions = max(1, plan.part_actions)
        wanted = {
            column
            for kind in actions.FILE_ACTIONS
            for column in columns_of(kind, classic_schema(file_columns()))
        }
        if plan.stats_as_json or plan.stats_as_struct:
            wanted.add(STRUCT_STATISTICS)
        else:
            wanted.discard("stats")
        if plan.layout == "multipart" and plan.deletion_vectors:
            wanted.add("dvId")
        self.columns = tuple(c for c in (*actions.schema(), STRUCT_STATISTICS) if c in wanted)

    @property
    def _is_v2(self) -> bool:
        return self._plan.layout.startswith("v2-")

    @property
    def _has_sidecars(self) -> bool:
        return self._is_v2 and bool(self._plan.parts or self._plan.kept)

    def write_meta(self, meta: pl.DataFrame) -> None:
        """Write all non-file actions; called once, before the files."""
        kinds = meta["actionType"].unique().to_list() if meta.height else []
        if unknown := sorted(set(kinds) - set(META_ORDER)):
            raise InvalidInputError(
                "a Delta checkpoint cannot contain this action",
                found=unknown[0],
                expected=", ".join(META_ORDER),
            )
        self._meta = [actions.of_type(meta, kind) for kind in META_ORDER if kind in kinds]
        self._open()
        if not self._has_sidecars:
            top = self._tops[part_of_others(len(self._tops))]
            for rows in self._meta:
                self._put(top, rows)

    def _open(self) -> None:
        """Begin the files."""
        plan = self._plan
        version = plan.version
        match plan.layout:
            case "classic":
                self._tops = [self._parquet(classic_name(version), classic_schema(self._files))]
            case "multipart":
                names = (part_name(version, n + 1, plan.parts) for n in range(plan.parts))
                schema = classic_schema(self._files)
                self._tops = [self._parquet(name, schema) for name in names]
            case "v2-json":
                name = manifest_name(version, uuid.uuid4(), "json")
                target = f"{LOG_FOLDER}/{name}"
                self._tops = [
                    JsonFile(self._store, temporary_path(LOG_FOLDER), target, plan.stats_as_json)
                ]
            case _:
                name = manifest_name(version, uuid.uuid4(), "parquet")
                self._tops = [self._parquet(name, manifest_schema(self._files))]

    def _parquet(self, name: str, schema: pa.Schema) -> ParquetFile:
        plan = self._plan
        rows = plan.row_group_rows
        if plan.layout == "multipart":
            rows = min(rows, max(_LEAST_GROUP_ROWS, rows * _WAITING_GROUPS // plan.parts))
        return ParquetFile(
            self._store,
            temporary_path(LOG_FOLDER),
            f"{LOG_FOLDER}/{name}",
            schema,
            plan.compression,
            rows,
            self._typed,
            reconciled=plan.version if plan.layout == "classic" else None,
        )

    def _put(self, file: CheckpointFile, rows: pl.DataFrame) -> None:
        kind = rows["actionType"][0]
        for part in rows.iter_slices(self._batch_rows):
            self._tasks.put(file, part.height, partial(file.prepare, part, kind), file.append)

    def write_files(self, files: pl.DataFrame) -> None:
        """Write file actions of one kind, about 65,536 rows at a time, after `write_meta`."""
        if not files.height:
            return
        is_add = files["actionType"][0] == "add"
        if self._has_sidecars:
            starts = sorted(self._plan.sidecar_starts) if is_add else []
            first = self._held.adds
            cuts = [start for start in starts if first <= start < first + files.height]
            for cut, end in pairwise([first, *cuts, first + files.height]):
                if cut in cuts:
                    self._begin_sidecar(cut)
                self._write_sidecars(files[cut - first : end - first])
        elif self._plan.layout == "multipart":
            for number, rows in self._dealt(files):
                self._put(self._tops[number], rows)
        else:
            self._put(self._tops[0], files)
        if is_add:
            self._held += FileActionCounts(adds=files.height)
        else:
            self._held += FileActionCounts(removes=files.height)

    def _begin_sidecar(self, start: int) -> None:
        """Close the open sidecar, if any; see `CheckpointPlan.sidecar_starts`."""
        if self._sidecars and not self._sidecars[-1].is_full:
            self._close_sidecar(self._sidecars[-1])
        self._part_actions = self._plan.sidecar_starts[start]

    def _dealt(self, files: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
        """Rows by their part, in the order of the rows."""
        keys = files.with_columns(spell_paths(files).alias("path"))
        part = part_of(keys, self._plan.parts, self._plan.deletion_vectors)
        order = part.arg_sort()
        counts = part.value_counts().sort("part")
        start = 0
        for number, count in counts.iter_rows():
            yield number, files[order[start : start + count]]
            start += count

    def _write_sidecars(self, files: pl.DataFrame) -> None:
        most = self._part_actions
        start = 0
        while start < files.height:
            if not self._sidecars or self._sidecars[-1].is_full:
                self._sidecars.append(self._new_sidecar())
            sidecar = self._sidecars[-1]
            rows = files[start : start + most - sidecar.given]
            self._fill(sidecar, rows)
            start += rows.height
            if sidecar.given >= most:
                self._close_sidecar(sidecar)

    def _new_sidecar(self) -> _Sidecar:
        plan = self._plan
        file = new_sidecar(self._store, plan, uuid.uuid4(), self._files, self._typed)
        record = None
        if self.digest_of is not None:
            record = SidecarRecord(shape_of(plan, self._files), self.digest_of)
        return _Sidecar(file, record)

    def _fill(self, sidecar: _Sidecar, rows: pl.DataFrame) -> None:
        kind = rows["actionType"][0]
        sidecar.given += rows.height

        def append(part: pl.DataFrame, prepared: pa.Table) -> None:
            if sidecar.record is not None:
                sidecar.record.add(part)
            sidecar.file.append(prepared)

        for part in rows.iter_slices(self._batch_rows):
            prepare = partial(sidecar.file.prepare, part, kind)
            self._tasks.put(sidecar.file, part.height, prepare, partial(append, part))

    def _close_sidecar(self, sidecar: _Sidecar) -> None:
        sidecar.is_full = True

        def close(_: None) -> None:
            # Recorded before closing, because a close with an unknown outcome may have created the
            # file.
            self._closed.append(sidecar.file.path)
            staged = sidecar.file.close()
            file = SidecarFile(staged.path, staged.size_bytes, self._plan.created_ms)
            if sidecar.record is not None:
                tags = sidecar.record.tags(self._store, file)
                file = replace(file, tags=tags | {RECORD_KEY: sidecar.file.record})
            sidecar.action = file
            sidecar.staged = staged

        self._tasks.put(sidecar.file, 0, lambda: None, close)

    def finish(self) -> StagedCheckpoint:
        """Close the files."""
        if self._sidecars and not self._sidecars[-1].is_full:
            self._close_sidecar(self._sidecars[-1])
        self._tasks.wait()
        if self._is_v2:
            self._write_manifest()
        self._tasks.wait()
        tops = []
        for file in self._tops:
            self._closed.append(file.path)
            tops.append(file.close())
        self._tasks.stop()
        plan = self._plan
        rank = rank_of(plan.layout, len(tops))
        checkpoint = Checkpoint.of_files(plan.version, plan.layout, rank, tops)
        own = [sidecar.staged for sidecar in self._sidecars if sidecar.staged is not None]
        top = self._tops[0]
        pointer = pointer_bytes(
            plan,
            tops,
            self._held,
            top.schema if isinstance(top, ParquetFile) else None,
            self._named,
            self._meta,
        )
        return StagedCheckpoint(checkpoint, (*own, *tops), (LAST_CHECKPOINT, pointer))

    @property
    def _named(self) -> list[SidecarFile]:
        """Sidecars of the manifest: the kept ones, then the new ones."""
        new = [sidecar.action for sidecar in self._sidecars if sidecar.action is not None]
        return [*self._plan.kept, *new]

    def _write_manifest(self) -> None:
        """Write the rows of a V2 manifest that depend on all others."""
        (top,) = self._tops
        plan = self._plan
        others = [sidecar_rows(self._named)] if self._named else []
        others += self._meta
        count = sum(rows.height for rows in others)
        tags: dict[str, str] = {}
        if self._has_sidecars:
            self._held += count_actions(self._store, plan.kept)
            tags = manifest_tags(self._named, self._held, sidecar_schema(self._files))
        else:
            count += self._held.total
        first = checkpoint_metadata(plan.version, tags | {ACTIONS_TAG: str(count)})
        for rows in (first, *(others if self._has_sidecars else ())):
            self._put(top, rows)
        self._meta.insert(0, first)

    def abandon(self) -> None:
        """Delete the written files, if the store allows it."""
        self._tasks.stop()
        for file in (*self._tops, *(sidecar.file for sidecar in self._sidecars)):
            try:
                file.abandon()
            except LakelogError:
                continue
        try:
            self._store.delete_many(self._closed)
        except LakelogError:
            return


def _check(plan: CheckpointPlan) -> None:
    if plan.layout not in LAYOUTS:
        raise InvalidInputError(
            "unknown checkpoint layout of Delta", found=plan.layout, expected=", ".join(LAYOUTS)
        )
    least = {"classic": 1, "multipart": 2}.get(plan.layout, 0)
    if plan.parts < least:
        raise InvalidInputError(
            f"a checkpoint of this layout ({plan.layout}) needs more parts",
            found=plan.parts,
            expected=f"{least} or more",
        )
    if plan.kept and plan.layout in {"classic", "multipart"}:
        raise InvalidInputError("only V2 checkpoints have sidecars", found=plan.layout)
