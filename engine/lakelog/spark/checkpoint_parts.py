"""The executor's side of a checkpoint: writes the rows of a partition to files with the dialect's
`PartFiles`, and reads each file back.

File names have an identifier of the attempt, so that repeated or concurrent attempts of a task
never collide; cleanup deletes unused files. A task returns names, lengths,
counts and two digests.

Source: Delta protocol, Checkpoints; Sidecar Files; ``schemas/checkpoint.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace

import orjson
import polars as pl
import pyarrow as pa

from lakelog.checkpoint.compare import Comparison, check_written_file
from lakelog.dialects.base import Dialect
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import (
    CHECKPOINT_META,
    Checkpoint,
    CheckpointPart,
    CheckpointPlan,
    StagedFile,
    WrittenPart,
)
from lakelog.errors import LakelogError
from lakelog.log.file_order import FileOrder, in_order
from lakelog.model import actions
from lakelog.model.actions import PATH_TEXT
from lakelog.spark.shuffle_replay import TableLocation, frames_of
from lakelog.storage import LogStore

_WRITTEN_ROWS = 1 << 16


@dataclass(frozen=True)
class Written:
    """A file that a task wrote and read back: digests of the replayed rows (`expected`) and of the
    file's (`found`), `tags` for the manifest (JSON), and the `problem`, or an empty text.
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
    def part(self) -> WrittenPart:
        """The file, for publishing."""
        file = StagedFile(self.path, self.target, self.size_bytes, self.num_actions)
        return WrittenPart(file, Digest.of_text(self.expected), orjson.loads(self.tags))


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
    """Writes one partition from Spark's batches; `meta` are non-file actions, for one part."""

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
        dialect, store = self.place.dialect, self.place.store()
        digest_of = self.comparison.digest if self.verify else None
        part = CheckpointPart(store, self.plan, number, self.meta, digest_of)
        work = dialect.part_files(part)
        try:
            order = FileOrder.of_plan(self.plan, self.meta, dialect)
            for rows in in_order(_by_kind(batches, dialect), order):
                work.write_files(rows)
            return [self.report(number, store, part, work.has_meta) for part in work.finish()]
        except BaseException:
            with suppress(Exception):  # the earlier error is raised
                work.abandon()
            raise

    def report(self, number: int, store: LogStore, part: WrittenPart, has_meta: bool) -> Written:
        """The report of a file, which is read back."""
        file, expected = part.file, part.digest.to_text()
        written = Written(
            number,
            file.path,
            file.target,
            file.size_bytes,
            file.num_actions,
            expected,
            expected,
            orjson.dumps(dict(part.tags)).decode(),
        )
        return self._read_back(store, written, has_meta) if self.verify else written

    def _read_back(self, store: LogStore, written: Written, has_meta: bool) -> Written:
        comparison = self.comparison
        layout = "flattened" if self.plan.layout == "flattened" else "multipart"
        alone = Checkpoint(self.plan.version, layout, 1, (written.path,), (written.size_bytes,))
        try:
            reader = self.place.dialect.open_checkpoint(store, alone)
            found = Digest()
            if has_meta:
                found += comparison.digest(reader.read_meta(CHECKPOINT_META))
            changing = False
            columns = tuple(dict.fromkeys(("dataChange", *comparison.columns)))
            for frame in reader.iter_files(columns):
                found += comparison.digest(frame)
                changing |= "dataChange" in frame.columns and bool(frame["dataChange"].any())
            check = check_written_file(
                store, written.path, written.size_bytes, written.num_actions, comparison
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


def read_written(table: pa.Table) -> list[Written]:
    """The results of the tasks, by partition."""
    found = [Written(**row) for row in table.to_pylist()]
    return sorted(found, key=lambda each: (each.partition, each.path))


def _by_kind(batches: Iterable[pa.RecordBatch], dialect: Dialect) -> Iterator[pl.DataFrame]:
    """Rows of one kind each, about 65,536 at a time; tombstones after all live files."""
    waiting: list[pl.DataFrame] = []
    removes: list[pl.DataFrame] = []
    height = 0
    for frame in (_with_other_texts(rows, dialect) for rows in frames_of(batches)):
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


def _with_other_texts(rows: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Rows with `PATH_TEXT` only where it differs from the text that the dialect writes."""
    if PATH_TEXT not in rows.columns:
        return rows
    same = rows[PATH_TEXT] == dialect.encode_paths(rows["path"])
    return rows.with_columns(rows[PATH_TEXT].set(same, None))


def _narrow(rows: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Rows without all-null columns, and without columns that the format omits for tombstones."""
    kept = [s for s in rows.get_columns() if s.null_count() < s.len()]
    if not dialect.checkpoints_keep_all_fields and rows["actionType"][0] == "remove":
        kept = [s for s in kept if s.name not in {"stats", "tags"}]
    return pl.DataFrame(kept)


def carried(columns: Sequence[str]) -> tuple[str, ...]:
    """Columns that must be sent to the writers of `columns`."""
    wanted = {*columns, "actionType", *actions.KEY, PATH_TEXT, "deletionTimestamp"} - {"dataChange"}
    return tuple(name for name in actions.fields() if name in wanted)
