"""The executor's side of a checkpoint: writes the rows of a partition to files with the dialect's
writers, and reads each file back.

File names have an identifier of the attempt, so that repeated or concurrent attempts of a task
never collide; cleanup deletes unused files. A task returns names, lengths,
counts and two digests.

Source: Delta protocol, Checkpoints; Sidecar Files; ``schemas/checkpoint.md``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa

from lakelog.checkpoint.compare import Comparison, check_written_file
from lakelog.dialects.base import Dialect
from lakelog.dialects.delta.checkpoint_files import ParquetFile
from lakelog.dialects.delta.checkpoint_rows import file_action_columns
from lakelog.dialects.delta.checkpoint_schema import classic_schema, sidecar_schema
from lakelog.dialects.delta.murmur3 import part_of, part_of_others
from lakelog.dialects.delta.names import LOG_FOLDER, SIDECAR_FOLDER, part_name
from lakelog.dialects.delta.path_filters import filter_options
from lakelog.dialects.delta.paths import other_texts, spell_paths
from lakelog.dialects.delta.sidecar_fingerprints import SidecarRecord, shape_of
from lakelog.dialects.digest import Digest
from lakelog.dialects.indextables.docmapping import registry_of_meta, without_registered
from lakelog.dialects.indextables.flattened_writer import (
    ParquetPart,
    Staging,
    part_schema,
    part_target,
)
from lakelog.dialects.log_content import (
    CHECKPOINT_META,
    Checkpoint,
    CheckpointPlan,
    SidecarFile,
    StagedFile,
)
from lakelog.dialects.row_group_records import RECORD_KEY
from lakelog.errors import InternalError, LakelogError
from lakelog.lazy import cached_property
from lakelog.log.file_order import FileOrder, in_order
from lakelog.model import actions
from lakelog.model.actions import PATH_TEXT
from lakelog.spark.shuffle_replay import TableLocation, frames_of
from lakelog.storage import LogStore

_WRITTEN_ROWS = 1 << 16


@dataclass(frozen=True)
class Written:
    """A file that a task wrote and read back: digests of the rows from replay (`expected`) and in
    the file (`found`), `tags` for the manifest (JSON), and the `problem` found, or an empty text.
    """

    partition: int
    path: str
    target: str
    size_bytes: int
    num_actions: int
    expected: str
    found: str
    tags: str = "{}"
    plain_bytes: int = 0
    problem: str = ""

    @property
    def staged(self) -> StagedFile:
        """The file, for publishing."""
        return StagedFile(self.path, self.target, self.size_bytes, self.num_actions)


WRITTEN_SCHEMA = (
    "partition int, path string, target string, size_bytes long, num_actions long, "
    "expected string, found string, tags string, plain_bytes long, problem string"
)
"""`Written` as a Spark schema."""

_ARROW = pa.schema(
    [(f.name, pa.string() if f.type == "str" else pa.int64()) for f in fields(Written)]
).set(0, pa.field("partition", pa.int32()))


@dataclass(frozen=True)
class TaskWriter:
    """Writes the rows of one partition; Spark calls it with their batches. `meta` are the non-file
    actions, for the part that contains them.
    """

    place: TableLocation
    plan: CheckpointPlan
    comparison: Comparison
    meta: pl.DataFrame = field(repr=False)
    verify: bool = True

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row per file. Memory: `lakelog.log.file_order.in_order`, tombstones, a row group."""
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        answers = [asdict(each) for each in self.write(number, batches)]
        yield pa.RecordBatch.from_pylist(answers, schema=_ARROW)

    def write(self, number: int, batches: Iterable[pa.RecordBatch]) -> list[Written]:
        """The files of a partition by its number, from 0."""
        match self.plan.layout:
            case "multipart":
                work: _Part = _DeltaPart(self, number)
            case "flattened":
                work = _FlattenedPart(self, number)
            case _:
                work = _Sidecars(self, number)
        try:
            order = FileOrder.of_plan(self.plan, self.meta, self.place.dialect)
            for rows in in_order(_by_kind(batches, self.place.dialect), order):
                work.take(rows)
            return work.finish()
        except BaseException:
            with suppress(Exception):  # the earlier error is raised
                work.abandon()
            raise


def read_written(table: pa.Table) -> list[Written]:
    """The results of the tasks, by partition."""
    found = [Written(**row) for row in table.to_pylist()]
    return sorted(found, key=lambda each: (each.partition, each.path))


def _by_kind(batches: Iterable[pa.RecordBatch], dialect: Dialect) -> Iterator[pl.DataFrame]:
    """Rows of one kind each, about 65,536 at a time; tombstones after all live files."""
    waiting: list[pl.DataFrame] = []
    removes: list[pl.DataFrame] = []
    height = 0
    for frame in map(_with_other_texts, frames_of(batches)):
        is_add = frame["actionType"] == "add"
        if not is_add.all():
            removes.append(_narrow(frame.filter(~is_add), dialect))
            frame = frame.filter(is_add)  # noqa: PLW2901 - what is left of it
        if frame.height:
            waiting.append(frame)
            height += frame.height
        if height >= _WRITTEN_ROWS:
            yield _narrow(pl.concat(waiting), dialect)
            waiting, height = [], 0
    if waiting:
        yield _narrow(pl.concat(waiting), dialect)
    if removes:
        yield from pl.concat(removes, how="diagonal").iter_slices(_WRITTEN_ROWS)


def _with_other_texts(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with `PATH_TEXT` only where it differs from `encode_paths`."""
    if PATH_TEXT not in rows.columns:
        return rows
    texts = other_texts(rows[PATH_TEXT], rows["path"])
    return rows.with_columns(pl.lit(None, pl.String).alias(PATH_TEXT) if texts is None else texts)


def _narrow(rows: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Rows without all-null columns, and without columns that the format omits for tombstones."""
    kept = [s for s in rows.get_columns() if s.null_count() < s.len()]
    if not dialect.checkpoints_keep_all_fields and rows["actionType"][0] == "remove":
        kept = [s for s in kept if s.name not in {"stats", "tags"}]
    return pl.DataFrame(kept)


class _Part:
    """The files of one partition."""

    def __init__(self, job: TaskWriter, number: int) -> None:
        self.job = job
        self.number = number
        self.expected = Digest()
        self.store: LogStore = job.place.store()

    def take(self, rows: pl.DataFrame) -> None:
        """Add rows of one kind."""
        raise NotImplementedError

    def finish(self) -> list[Written]:
        """Close the files, and read them back."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Delete the written files, if the store allows it."""
        raise NotImplementedError

    def counted(self, rows: pl.DataFrame) -> Digest:
        """Digest of replayed rows."""
        if self.job.verify:
            return self.job.comparison.digest(rows)
        return Digest({rows["actionType"][0]: rows.height})

    def written(self, file: StagedFile, expected: Digest, **more: Any) -> Written:
        """The report of a file."""
        written = Written(
            self.number,
            file.path,
            file.target,
            file.size_bytes,
            file.num_actions,
            expected.to_text(),
            expected.to_text(),
            **more,
        )
        return self._read_back(written) if self.job.verify else written

    def _read_back(self, written: Written) -> Written:
        job = self.job
        layout = "flattened" if job.plan.layout == "flattened" else "multipart"
        alone = Checkpoint(job.plan.version, layout, 1, (written.path,), (written.size_bytes,))
        try:
            reader = job.place.dialect.open_checkpoint(self.store, alone)
            found = Digest()
            if self.holds_meta:
                found += job.comparison.digest(reader.read_meta(CHECKPOINT_META))
            changing = False
            columns = tuple(dict.fromkeys(("dataChange", *job.comparison.columns)))
            for frame in reader.iter_files(columns):
                found += job.comparison.digest(frame)
                changing |= "dataChange" in frame.columns and bool(frame["dataChange"].any())
            check = check_written_file(
                self.store, written.path, written.size_bytes, written.num_actions, job.comparison
            )
            problem = check.problem
            if check.expected is not None:
                problem += f" (expected {check.expected}, found {check.found})"
            if changing:
                problem = "a file action has dataChange true"
        except (LakelogError, pa.ArrowException, OSError, ValueError) as error:
            # Reported instead of raised: a retry would not help, and the driver has more context.
            return replace(written, problem=f"it cannot be read back: {error}"[:500])
        return replace(
            written, found=found.to_text(), problem=problem, plain_bytes=check.plain_bytes
        )

    @property
    def holds_meta(self) -> bool:
        """Whether the file of this partition contains the non-file actions."""
        return False


class _Delta(_Part):
    """Code shared by Delta's files."""

    @cached_property
    def columns(self) -> tuple[list[pa.Field], Any]:
        """Columns of file actions, and the typed copies."""
        return file_action_columns(self.job.plan)

    def parquet(
        self, path: str, target: str, schema: pa.Schema, options: Mapping[str, Any] | None = None
    ) -> ParquetFile:
        """A file that is appended to."""
        plan, (_, typed) = self.job.plan, self.columns
        return ParquetFile(
            self.store,
            path,
            target,
            schema,
            plan.compression,
            plan.row_group_rows,
            typed,
            options or {},
        )


class _DeltaPart(_Delta):
    """One part of a multi-part checkpoint."""

    def __init__(self, job: TaskWriter, number: int) -> None:
        super().__init__(job, number)
        plan = job.plan
        hidden = f"{LOG_FOLDER}/.lakelog-{uuid.uuid4().hex}.tmp"
        target = f"{LOG_FOLDER}/{part_name(plan.version, number + 1, plan.parts)}"
        self.file = self.parquet(hidden, target, classic_schema(self.columns[0]))
        self.closed = False
        if self.holds_meta:
            for rows in _each_kind(job.meta):
                self.file.append(self.file.prepare(rows, rows["actionType"][0]))

    @property
    def holds_meta(self) -> bool:
        """Rows without a path are assigned by the hash too."""
        return self.number == part_of_others(self.job.plan.parts)

    def take(self, rows: pl.DataFrame) -> None:
        """Add rows of one kind, all of this part."""
        plan = self.job.plan
        keys = rows.with_columns(spell_paths(rows).alias("path"))
        parts = part_of(keys, plan.parts, plan.deletion_vectors)
        _require_dealt(parts.to_numpy(), self.number)
        self.expected += self.counted(rows)
        self.file.append(self.file.prepare(rows, rows["actionType"][0]))

    def finish(self) -> list[Written]:
        """The file."""
        self.closed = True
        return [self.written(self.file.close(), self.expected)]

    def abandon(self) -> None:
        """Also deletes closed files."""
        self.file.abandon()
        if self.closed:
            self.store.delete_many([self.file.path])


class _Sidecars(_Delta):
    """The sidecars of a partition: as many as its rows fill."""

    def __init__(self, job: TaskWriter, number: int) -> None:
        super().__init__(job, number)
        self.files: list[Written] = []
        self.file: ParquetFile | None = None
        self.record: SidecarRecord | None = None
        self.paths: list[str] = []

    def take(self, rows: pl.DataFrame) -> None:
        """Add rows of one kind."""
        # Ranges are determined from a sample of the rows, and may be somewhat larger than a part.
        most = max(1, self.job.plan.part_actions * 5 // 4)
        rest = rows
        while rest.height:
            file = self.file or self._begin()
            taken, rest = rest[: most - file.num_actions], rest[most - file.num_actions :]
            self.expected += self.counted(taken)
            if self.record is not None:
                self.record.add(taken)
            file.append(file.prepare(taken, taken["actionType"][0]))
            if file.num_actions >= most:
                self._close(file)

    def _begin(self) -> ParquetFile:
        path = f"{SIDECAR_FOLDER}/{uuid.uuid4()}.parquet"
        options = filter_options(self.job.plan.row_group_rows)
        self.file = self.parquet(path, path, sidecar_schema(self.columns[0]), options)
        self.paths.append(path)
        if self.job.verify:
            shape = shape_of(self.job.plan, self.columns[0])
            self.record = SidecarRecord(shape, self.job.comparison.digest)
        return self.file

    def _close(self, file: ParquetFile) -> None:
        staged = file.close()
        tags: Mapping[str, str] = {}
        if self.record is not None:
            created = self.job.plan.created_ms
            sidecar = SidecarFile(staged.path, staged.size_bytes, created)
            tags = self.record.tags(self.store, sidecar) | {RECORD_KEY: file.record}
        written = self.written(staged, self.expected, tags=orjson.dumps(tags).decode())
        self.files.append(written)
        self.file, self.record, self.expected = None, None, Digest()

    def finish(self) -> list[Written]:
        """The files; none for an empty partition."""
        if self.file is not None:
            self._close(self.file)
        return self.files

    def abandon(self) -> None:
        """Delete the sidecars, which are in no manifest yet."""
        if self.file is not None:
            self.file.abandon()
        self.store.delete_many(self.paths)


class _FlattenedPart(_Part):
    """One part of a flattened checkpoint of IndexTables."""

    def __init__(self, job: TaskWriter, number: int) -> None:
        super().__init__(job, number)
        plan = job.plan
        self.staging = Staging(self.store, plan)
        target = part_target(plan.version, number + 1, plan.parts)
        self.file = ParquetPart(self.staging, target, number + 1, plan.parts, part_schema())
        self.kind = ""
        self.registry = registry_of_meta(job.meta)
        if self.holds_meta:
            for rows in _each_kind(job.meta):
                self.file.append(rows)
            self.file.flush()

    @property
    def holds_meta(self) -> bool:
        """The first part contains them."""
        return self.number == 0

    def take(self, rows: pl.DataFrame) -> None:
        """Add rows of one kind, all of this part; a row group has one kind."""
        _require_dealt(_part_by_crc(rows["path"], self.job.plan.parts), self.number)
        if rows["actionType"][0] != self.kind:
            self.file.flush()
            self.kind = rows["actionType"][0]
        self.expected += self.counted(rows)
        unchanging = rows.with_columns(pl.lit(value=False).alias("dataChange"))
        self.file.append(without_registered(unchanging, self.registry))

    def finish(self) -> list[Written]:
        """The file."""
        self.file.close()
        tags = orjson.dumps({RECORD_KEY: self.file.record}).decode()
        return [self.written(self.staging.files[-1], self.expected, tags=tags)]

    def abandon(self) -> None:
        """Also deletes closed files."""
        self.file.drop()
        self.staging.abandon()


def _part_by_crc(paths: pl.Series, parts: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Number of the part of a flattened checkpoint for each path, from 0."""
    from zlib import crc32

    texts = paths.cast(pl.Binary).to_list()
    return np.fromiter(map(crc32, texts), np.uint32, len(texts)) % np.uint32(parts)


def _require_dealt(parts: np.ndarray[tuple[int], Any], number: int) -> None:
    """Raise if a row was not assigned to the part that the format requires."""
    if (parts != number).any():
        raise InternalError(
            "a row of a checkpoint was assigned to the wrong part",
            expected=int(parts[parts != number][0]),
            found=number,
        )


def _each_kind(meta: pl.DataFrame) -> Iterator[pl.DataFrame]:
    for kind in CHECKPOINT_META:
        rows = actions.of_type(meta, kind)
        if rows.height:
            yield rows


def carried(columns: Sequence[str]) -> tuple[str, ...]:
    """Columns that must be sent to the writers of `columns`."""
    wanted = {*columns, "actionType", *actions.KEY, PATH_TEXT, "deletionTimestamp"} - {"dataChange"}
    return tuple(name for name in actions.fields() if name in wanted)
