"""Values that dialects read and write: listings, actions, checkpoints, their readers and writers.

Plain values, and the two interfaces of one checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import polars as pl
import pyarrow as pa

from lakelog.errors import InternalError, MalformedLogError
from lakelog.model import actions
from lakelog.model.contract import Struct
from lakelog.skipping.statistics import stats_text_from_struct

if TYPE_CHECKING:
    from lakelog.dialects.digest import Digest
    from lakelog.storage import LogStore

PART_ACTIONS = 100_000
"""Default number of actions per part of a checkpoint."""

STRUCT_STATISTICS = "stats_parsed"
"""Name of statistics stored as a struct, in frames of `CheckpointReader.iter_files`; not a column
of the flattened table.
"""

TYPED_STATISTICS = "stats_typed"
"""Name of statistics parsed from text for writing, as a struct of the columns of
`lakelog.skipping.statistics`; not a column of the flattened table.
"""

NOT_IN_REMOVES = frozenset(("stats", "tags", STRUCT_STATISTICS))
"""Columns of an add that a checkpoint does not keep for a remove."""

_UNREADABLE = re.compile(r"^the checkpoint (?:of version \d+ )?cannot be read: ")

NO_TEXTS = pl.DataFrame(schema={"path": pl.String, actions.PATH_TEXT: pl.String})
"""The empty result of `Dialect.path_texts`."""

CHECKPOINT_META = ("protocol", "metaData", "domainMetadata", "txn", "mergeskip")
"""Non-file action types of a state, in the order in which they are written."""


class CommitFile(NamedTuple):
    """One commit in a listing (time in ms); a tuple, because a log has tens of thousands."""

    version: int
    path: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class CompactionFile:
    """One log compaction file: the reconciled actions of commits `start` to `end`, inclusive."""

    start: int
    end: int
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RecordedCounts:
    """The pointer's counts of a checkpoint; `is_checked`: a checksum covers them."""

    actions: int | None = None
    adds: int | None = None
    size_bytes: int | None = None
    is_checked: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint in a listing; the greatest in order is the best to start from.

    Attributes:
        rank: Preference among checkpoints of the same version; higher is better.
        paths: Files, relative to the table root, in order; without the sidecars of a V2 manifest.
        sizes_bytes: Their listed lengths, or empty; a hint, which saves requests.
        recorded: The counts that the pointer records, if it was read.
        checksum_path: The version checksum of its version, if one is listed.
        pointer_path: The pointer, if it is listed, may refer to this checkpoint, and was not read.
    """

    version: int
    layout: str
    rank: int
    paths: tuple[str, ...]
    sizes_bytes: tuple[int, ...] = field(default=(), compare=False, repr=False)
    recorded: RecordedCounts | None = field(default=None, compare=False, repr=False)
    checksum_path: str | None = field(default=None, compare=False, repr=False)
    pointer_path: str | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of_files(version: int, layout: str, rank: int, files: Sequence[StagedFile]) -> Checkpoint:
        """The checkpoint of some written files, in order."""
        paths, sizes = tuple(f.path for f in files), tuple(f.size_bytes for f in files)
        return Checkpoint(version, layout, rank, paths, sizes)

    @property
    def size_bytes_by_path(self) -> dict[str, int]:
        """The listed lengths; empty if they are unknown."""
        return dict(zip(self.paths, self.sizes_bytes, strict=False))

    def without_records(self) -> Checkpoint:
        """The checkpoint, to be read without comparing it with other files' records of it."""
        return replace(self, recorded=None, checksum_path=None, pointer_path=None)


class RecordMismatchError(MalformedLogError):
    """A checkpoint differs from a hint; `accepted` is the checkpoint to use if no older files give
    its version, None if the evidence is against it.
    """

    accepted: Checkpoint | None = None


@dataclass(frozen=True)
class LogListing:
    """A log folder, parsed from names: commits, complete checkpoints, compactions, each ascending.
    `notes` describes incomplete checkpoints; `apart` are files named like commits that are not
    versions (skips next to Avro states); `checksums` are versions.
    """

    commits: tuple[CommitFile, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    compactions: tuple[CompactionFile, ...] = ()
    notes: tuple[str, ...] = ()
    apart: tuple[CommitFile, ...] = ()
    checksums: frozenset[int] = frozenset()

    def up_to(self, version: int) -> LogListing:
        """The listing as it was when `version` was the latest."""
        return replace(
            self,
            commits=tuple(c for c in self.commits if c.version <= version),
            checkpoints=tuple(c for c in self.checkpoints if c.version <= version),
            compactions=tuple(c for c in self.compactions if c.end <= version),
        )


class CommitInfo(NamedTuple):
    """A parsed commitInfo; a tuple, because a log has tens of thousands."""

    version: int | None
    position: int
    body: dict[str, Any]


@dataclass(frozen=True)
class Actions:
    """Decoded actions, grouped by use. Frames are narrow and in `actions.ORDER`.

    Attributes:
        files: ``add`` and ``remove`` rows; ``path`` decoded, ``dvId`` derived (the column exists
            only with deletion vectors).
        meta: Rows of the other types of a state: protocol, metaData, txn, domainMetadata,
            mergeskip; and sidecar, checkpointMetadata in a checkpoint.
        other: ``cdc`` rows and rows of unknown types (body in ``extra``); history, never state.
        commit_infos: commitInfo lines, by (version, position).
    """

    files: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    meta: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    other: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    commit_infos: tuple[CommitInfo, ...] = ()


@dataclass(frozen=True)
class CommitContent:
    """The content of one commit.

    Attributes:
        info: Body of the commitInfo, in JSON types; empty for none.
        meta: Narrow flattened non-file actions. They are written in the order of `CHECKPOINT_META`,
            those of one type in the given order.
        files: Narrow flattened rows of ``add``, ``remove`` and ``cdc``, paths decoded, in the order
            to write.
        file_lines: File actions already encoded as lines; written last.
        texts: Texts with which the paths of `files` are written; see `Dialect.path_texts`.
    """

    info: Mapping[str, Any] = field(default_factory=dict)
    meta: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    files: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    file_lines: bytes = b""
    texts: pl.DataFrame | None = None


@dataclass(frozen=True)
class SidecarFile:
    """A sidecar in a V2 manifest: path, length, time (ms) and tags."""

    path: str
    size_bytes: int
    modified_ms: int
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointPlan:
    """The plan of a checkpoint, made before writing.

    Attributes:
        parts: Number of files that contain file actions (parts, sidecars); 1 for a layout of one
            file. 0 for V2: file actions are in the manifest. Layouts with a manifest of parts
            (``json-multipart``, V2) use `part_actions` instead.
        schema: The table's schema, for typed copies of statistics and partition values.
        configuration: The table's properties, which name the columns with statistics.
        mapping: The table's column mapping mode: ``none``, ``name`` or ``id``.
        compression: Parquet codec, by pyarrow's name.
        batch_rows: Number of rows to convert at a time, if more than a row group.
        kept: V2 only: unchanged sidecars of an earlier checkpoint; the manifest lists them together
            with the new ones.
        sidecar_starts: V2 only: number of actions of new sidecars, by the number of live files
            before the first of them; filled before the first live file is written. Empty if
            `part_actions` decides.
    """

    version: int
    layout: str
    parts: int
    schema: Struct
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str | None] = field(default_factory=dict)
    mapping: str = "none"
    deletion_vectors: bool = False
    stats_as_json: bool = True
    stats_as_struct: bool = False
    compression: str = "zstd"
    row_group_rows: int = 50_000
    batch_rows: int = 0
    created_ms: int = 0
    part_actions: int = PART_ACTIONS
    kept: tuple[SidecarFile, ...] = ()
    sidecar_starts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StagedFile:
    """A written file; `path` equals `target` if only a manifest refers to it (a sidecar)."""

    path: str
    target: str
    size_bytes: int
    num_actions: int


@dataclass(frozen=True)
class StagedCheckpoint:
    """A written, unpublished checkpoint; renaming the last of `files` completes it. The pointer
    (path, content) is written after the files, never backward; None leaves it unchanged, because
    other readers of the table would misinterpret it.
    """

    checkpoint: Checkpoint
    files: tuple[StagedFile, ...]
    pointer: tuple[str, bytes] | None


class CheckpointWriter(Protocol):
    """Writes one checkpoint under names that readers ignore; rows are flattened, paths decoded."""

    digest_of: Callable[[pl.DataFrame], Digest] | None = None
    """Computes the digest of file actions that is recorded with them, if the layout supports it;
    None records none.
    """

    columns: tuple[str, ...]
    """Flattened columns of file actions that it writes; includes `STRUCT_STATISTICS` if existing
    typed statistics are copied.
    """

    typed_statistics: pa.StructType | None = None
    """Arrow type of the typed statistics that it derives from their text; None: it derives none."""

    def write_meta(self, meta: pl.DataFrame) -> None:
        """Write all non-file actions; called once, before the files."""
        ...

    def write_files(self, files: pl.DataFrame) -> None:
        """Write file actions of one kind, about 65,536 rows at a time."""
        ...

    def finish(self) -> StagedCheckpoint:
        """Close the files."""
        ...

    def abandon(self) -> None:
        """Delete the written files, if the store allows it; never raises `LakelogError`."""
        ...


@dataclass(frozen=True)
class WrittenPart:
    """A file of a distributed checkpoint, and the `tags` of its entry in a manifest."""

    file: StagedFile
    digest: Digest
    tags: Mapping[str, str]


@dataclass(frozen=True)
class CheckpointPart:
    """Input of one part of a distributed checkpoint; numbers start at 0, `plan` is of the whole."""

    store: LogStore
    plan: CheckpointPlan
    number: int
    meta: pl.DataFrame
    digest_of: Callable[[pl.DataFrame], Digest] | None

    @property
    def meta_by_type(self) -> list[pl.DataFrame]:
        """The non-file actions, by type in the order of a checkpoint."""
        found = (actions.of_type(self.meta, kind) for kind in CHECKPOINT_META)
        return [rows for rows in found if rows.height]

    def digest(self, files: pl.DataFrame) -> Digest:
        """The digest of file actions of one kind, or their number only."""
        from lakelog.dialects.digest import Digest

        if self.digest_of is not None:
            return self.digest_of(files)
        return Digest({files["actionType"][0]: files.height})


class PartFiles(Protocol):
    """Writes one part of a distributed checkpoint, in a task."""

    has_meta: bool
    """Whether the part contains the non-file actions."""

    def write_files(self, files: pl.DataFrame) -> None:
        """Write file actions of one kind; raises InternalError for rows of another part."""
        ...

    def finish(self) -> list[WrittenPart]:
        """Close the files: one, or as many sidecars as the rows fill."""
        ...

    def abandon(self) -> None:
        """Delete the written files, closed or not."""
        ...


def require_part(parts: pl.Series, number: int) -> None:
    """Raise InternalError if a row was not assigned to the part that the format requires."""
    others = parts.filter(parts != number)
    if others.len():
        raise InternalError(
            "a row of a checkpoint was assigned to the wrong part",
            expected=int(others[0]),
            found=number,
        )


class CheckpointReader(Protocol):
    """Reads one checkpoint; raises CorruptionError, NotFoundError or UnavailableError."""

    checkpoint: Checkpoint

    def read_meta(self, kinds: Sequence[str] = CHECKPOINT_META) -> pl.DataFrame:
        """The non-file actions of the types in `kinds`, narrow; never reads file actions."""
        ...

    def iter_files(
        self, columns: Sequence[str], kinds: Sequence[str] = actions.FILE_ACTIONS
    ) -> Iterator[pl.DataFrame]:
        """File actions in batches, in the order of the checkpoint's files. A column that it lacks
        is missing; ``actionType`` and ``path`` are always included. `STRUCT_STATISTICS` returns
        stored typed statistics, `PATH_TEXT` the paths as written.
        """
        ...

    def files_read(self) -> tuple[str, ...]:
        """Files that a full read of this checkpoint depends on (manifest, parts, sidecars)."""
        ...

    def references(self) -> pl.DataFrame:
        """Rows of metaData, besides those of `read_meta`, to whose properties files may refer."""
        return actions.concat([])

    def is_reconciled(self) -> bool:
        """Whether its writer proved that it contains no file both added and removed."""
        return False

    def struct_statistics(self) -> pa.DataType | None:
        """Arrow type of ``add.stats_parsed``, or None if statistics are not stored as a struct."""
        return None


class CheckpointCounts(NamedTuple):
    """Counts of a checkpoint: actions of all types, live files, and bytes of its files."""

    actions: int
    adds: int
    size_bytes: int


def count_held(store: LogStore, reader: CheckpointReader) -> CheckpointCounts:
    """Count an existing checkpoint's actions and bytes. Memory: a batch of paths."""
    files = adds = 0
    for frame in reader.iter_files(("path",)):
        files += frame.height
        adds += int((frame["actionType"] == "add").sum())
    entries = (store.stat(path) for path in reader.files_read())
    size_bytes = sum(entry.size_bytes for entry in entries if entry is not None)
    return CheckpointCounts(files + reader.read_meta().height, adds, size_bytes)


@dataclass(frozen=True)
class FileCondition:
    """A condition on live files, for readers that skip other files; both functions return Booleans.

    Attributes:
        columns: Flattened columns that `may_match` reads.
        may_match: For rows of live files; a column that the checkpoint lacks is missing.
        may_hold: For rows of `RowGroups.frame`: whether one may contain a matching file.
    """

    columns: tuple[str, ...]
    may_match: Callable[[pl.DataFrame], pl.Series]
    may_hold: Callable[[pl.DataFrame], pl.Series]


@dataclass(frozen=True)
class RowGroups:
    """The row groups of one file of a checkpoint, and the bounds of their live files.

    Attributes:
        path: File, relative to the table root.
        size_bytes: Length of the file, in bytes.
        frame: One row per row group, in order: ``rows``, ``adds`` (live files), ``removes``
            (tombstones), Int64, and ``bounds``, a struct as `STRUCT_STATISTICS` with bounds of all
            its live files, including partition columns. Checkpoints may also record ``firstPath``
            and ``lastPath`` (String), lower and upper bounds of the decoded paths of live files,
            and ``sizeInBytes`` and ``numRows`` (Int64), the total size and number of rows of live
            files, without deleted rows; null if one is unknown.
    """

    path: str
    size_bytes: int
    frame: pl.DataFrame


@runtime_checkable
class SkippingReader(CheckpointReader, Protocol):
    """A reader that can skip row groups."""

    def row_groups(self) -> tuple[RowGroups, ...]:
        """The row groups of every file with file actions, checked against recorded counts; empty
        unless the bounds of all of them are known for certain.
        """
        ...

    def iter_row_groups(
        self, columns: Sequence[str], chosen: Iterable[tuple[RowGroups, Sequence[int]]], kind: str
    ) -> Iterator[pl.DataFrame]:
        """File actions of one kind in chosen row groups, ascending, as from `iter_files`."""
        ...


@runtime_checkable
class MatchingReader(CheckpointReader, Protocol):
    """A reader that decodes the columns of a condition first."""

    def iter_matching(
        self,
        columns: Sequence[str],
        condition: FileCondition,
        seen: Callable[[pl.DataFrame], None],
    ) -> Iterator[pl.DataFrame]:
        """Live files that may match; `columns` include the condition's. A condition on
        ``partitionValues`` alone may be evaluated once per distinct value. `seen` is called from
        any thread with ``path`` and requested ``dvId`` of all live files.
        """
        ...


def statistics_text(files: pl.DataFrame, *, exact_times: bool = False) -> pl.Series:
    """``stats`` as text, encoded from the struct for rows that have only that; `exact_times` as
    `stats_text_from_struct`.
    """
    texts = actions.conform(files, ("stats",)).to_series()
    if STRUCT_STATISTICS not in files.columns:
        return texts
    rows = (texts.is_null() & files[STRUCT_STATISTICS].is_not_null()).arg_true()
    if not rows.len():
        return texts
    structs = files[STRUCT_STATISTICS].gather(rows)
    return texts.scatter(rows, stats_text_from_struct(structs, exact_times=exact_times))


def cause_text(message: str) -> str:
    """The message of an unreadable checkpoint without its first words, which the caller adds."""
    return _UNREADABLE.sub("", message)
