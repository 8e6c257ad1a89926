"""What dialects read and write: listings, decoded actions, checkpoints, their readers and writers.

Plain values, and the two interfaces of one checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import polars as pl
import pyarrow as pa

from lakelog.errors import MalformedLogError
from lakelog.model import actions
from lakelog.model.contract import Struct

if TYPE_CHECKING:
    from lakelog.dialects.digest import Digest

PART_ACTIONS = 100_000
"""Actions of one part of a checkpoint, unless the properties or the layout say otherwise."""

STRUCT_STATISTICS = "stats_parsed"
"""Name under which `CheckpointReader.iter_files` hands out statistics that are kept as a struct;
no column of the flattened table."""

TYPED_STATISTICS = "stats_typed"
"""Name of statistics that were read from their texts for what is written, as a struct of the
columns of `lakelog.skipping.statistics`; no column of the flattened table."""

NOT_IN_REMOVES = frozenset(("stats", "tags", STRUCT_STATISTICS))
"""Columns of an add that a checkpoint does not keep of a remove."""

NO_TEXTS = pl.DataFrame(schema={"path": pl.String, actions.PATH_TEXT: pl.String})
"""The empty result of `Dialect.path_texts`."""

CHECKPOINT_META = ("protocol", "metaData", "domainMetadata", "txn", "mergeskip")
"""Action types of a state that are not file actions, in the order in which they are written."""


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
    """The pointer's counts of a checkpoint: actions, live files, length of its files, and whether a
    checksum covers them; None is not recorded.
    """

    actions: int | None = None
    adds: int | None = None
    size_bytes: int | None = None
    is_checked: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint in a listing; the greatest in order is the best to start from.

    Attributes:
        version: Table version whose state it holds.
        layout: ``classic``, ``multipart``, ``v2-json``, ``v2-parquet`` (Delta); ``json``,
            ``json-multipart``, ``avro-state``, ``flattened`` (IndexTables).
        rank: Preference among checkpoints of the same version; higher is better.
        paths: Files, relative to the table root, in order. A V2 manifest names its sidecars
            inside, so they are not listed here.
        sizes_bytes: Their listed lengths, or empty; a hint, which spares a remote store a question.
        recorded: The counts that the pointer records, if it was read.
        checksum_path: The version checksum of its version, if one is listed.
        pointer_path: The pointer, if it is listed, may name this checkpoint, and was not read.
    """

    version: int
    layout: str
    rank: int
    paths: tuple[str, ...]
    sizes_bytes: tuple[int, ...] = field(default=(), compare=False, repr=False)
    recorded: RecordedCounts | None = field(default=None, compare=False, repr=False)
    checksum_path: str | None = field(default=None, compare=False, repr=False)
    pointer_path: str | None = field(default=None, compare=False, repr=False)

    def without_records(self) -> Checkpoint:
        """The checkpoint, to be read without a comparison with what other files record of it."""
        return replace(self, recorded=None, checksum_path=None, pointer_path=None)


class RecordMismatchError(MalformedLogError):
    """A checkpoint holds something else than a hint records; `accepted` is the checkpoint to use if
    no older files give its version, None if the evidence is against it.
    """

    accepted: Checkpoint | None = None


@dataclass(frozen=True)
class LogListing:
    """A log folder, parsed from names: commits, complete checkpoints, compactions, each ascending.
    `notes` describes incomplete checkpoints; `apart` are files named like commits that make no
    version (skips next to Avro states); `checksums` are versions.
    """

    commits: tuple[CommitFile, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    compactions: tuple[CompactionFile, ...] = ()
    notes: tuple[str, ...] = ()
    apart: tuple[CommitFile, ...] = ()
    checksums: frozenset[int] = frozenset()

    def up_to(self, version: int) -> LogListing:
        """What it held when `version` was the latest."""
        return replace(
            self,
            commits=tuple(c for c in self.commits if c.version <= version),
            checkpoints=tuple(c for c in self.checkpoints if c.version <= version),
            compactions=tuple(c for c in self.compactions if c.end <= version),
        )


class CommitInfo(NamedTuple):
    """One commitInfo as parsed JSON, which most reads never flatten; a tuple, because a log has
    tens of thousands.
    """

    version: int | None
    position: int
    body: dict[str, Any]


@dataclass(frozen=True)
class Actions:
    """Decoded actions, grouped by what reads them. Frames are narrow and in `actions.ORDER`.

    Attributes:
        files: ``add`` and ``remove`` rows; ``path`` decoded, ``dvId`` derived (a column only where
            there are deletion vectors).
        meta: Rows of the other types that make state: protocol, metaData, txn, domainMetadata,
            mergeskip; and sidecar, checkpointMetadata where a checkpoint holds them.
        other: ``cdc`` rows and rows of unknown types (body in ``extra``); history, never state.
        commit_infos: commitInfo lines, by (version, position).
    """

    files: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    meta: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    other: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    commit_infos: tuple[CommitInfo, ...] = ()


@dataclass(frozen=True)
class CommitContent:
    """What one commit is to hold.

    Attributes:
        info: Body of the commitInfo, as JSON's own types; empty for none.
        meta: Narrow flattened rows that are no file actions. They are written in the order
            of `CHECKPOINT_META`, those of one type in the order given.
        files: Narrow flattened rows of ``add``, ``remove`` and ``cdc``, paths decoded, in the order
            to write.
        spelled: File actions that are lines of the dialect already; they are last.
        texts: See `Dialect.path_texts`; the paths of `files` are written so.
    """

    info: Mapping[str, Any] = field(default_factory=dict)
    meta: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    files: pl.DataFrame = field(default_factory=lambda: actions.concat([]))
    spelled: bytes = b""
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
    """What a checkpoint is to look like; decided before the first byte is written.

    Attributes:
        version: Table version whose state it holds.
        layout: As `Checkpoint.layout`; one that the dialect writes.
        parts: Files that the file actions are spread over (parts, sidecars); 1 for a layout of
            one file. 0 for V2: file actions are in the manifest itself. What names its parts in a
            manifest of its own (``json-multipart``, V2) goes by `part_actions` instead.
        part_actions: Actions after which a part is closed and the next begun, where the layout does
            not say in advance how many there are.
        schema: The table's schema, for typed copies of statistics and partition values.
        partition_columns: Its partition columns, in order.
        mapping: Its column mapping mode: ``none``, ``name`` or ``id``.
        deletion_vectors: Whether a logical file is (path, dvId), and not the path alone.
        stats_as_json: Whether statistics are written as text.
        stats_as_struct: Whether statistics and partition values are written typed.
        compression: Parquet codec, as pyarrow spells it.
        row_group_rows: Most rows of a row group.
        batch_rows: Rows that are converted at a time, where they are more than a row group.
        created_ms: The present, milliseconds since the Unix epoch, where the layout records it.
        kept: V2 only: sidecars of an earlier checkpoint whose file actions stay as they are; the
            manifest names them next to the new ones.
        sidecar_starts: V2 only: how many actions new sidecars have, by the number of live files
            before the first of them; filled before the first live file is written. Empty where
            `part_actions` decides.
    """

    version: int
    layout: str
    parts: int
    schema: Struct
    partition_columns: tuple[str, ...]
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
    """A written, unpublished file of a checkpoint; `path` equals `target` if readers find it only
    by its manifest (a sidecar).
    """

    path: str
    target: str
    size_bytes: int
    num_actions: int


@dataclass(frozen=True)
class StagedCheckpoint:
    """A checkpoint that is written but not yet seen.

    Attributes:
        checkpoint: It, over the files as they are now: `Dialect.open_checkpoint` reads it.
        files: Its files in the order in which they are to get their names; with the last one it is
            complete, and never before.
        pointer: The pointer file's path and content; written after them, forward only. None leaves
            the pointer as it is: other readers of the table would take this one for another thing.
    """

    checkpoint: Checkpoint
    files: tuple[StagedFile, ...]
    pointer: tuple[str, bytes] | None


class CheckpointWriter(Protocol):
    """Writes the files of one checkpoint under names that readers ignore.

    Rows come flattened and narrow, paths decoded, ``dvId`` where there are deletion vectors.
    """

    digest_of: Callable[[pl.DataFrame], Digest] | None
    """Gives the digest of file actions that is recorded with them, where the layout has a place for
    it; None records none."""

    columns: tuple[str, ...]
    """Flattened columns of file actions that it writes; `STRUCT_STATISTICS` among them where typed
    statistics are taken over as they are kept."""

    def write_meta(self, meta: pl.DataFrame) -> None:
        """All rows that are no file actions, once, before the files."""
        ...

    def write_files(self, files: pl.DataFrame) -> None:
        """File actions of one kind, some 65,536 rows at a time."""
        ...

    def finish(self) -> StagedCheckpoint:
        """Close the files."""
        ...

    def abandon(self) -> None:
        """Delete what was written, if the store allows it; never raises `LakelogError`."""
        ...


class CheckpointReader(Protocol):
    """Reads one checkpoint by columns; raises CorruptionError, NotFoundError, UnavailableError,
    UnsupportedError.
    """

    checkpoint: Checkpoint

    def read_meta(self, kinds: Sequence[str] = CHECKPOINT_META) -> pl.DataFrame:
        """The non-file actions of the types in `kinds`, narrow; never reads the files' rows."""
        ...

    def iter_files(
        self, columns: Sequence[str], kinds: Sequence[str] = actions.FILE_ACTIONS
    ) -> Iterator[pl.DataFrame]:
        """File actions in batches, in the order of the checkpoint's files.

        Args:
            columns: Flattened columns wanted; only these are read (a column that the checkpoint
                lacks is left out of the frames). ``actionType`` and ``path`` always come along.
                `STRUCT_STATISTICS` asks for the typed statistics as they are kept, `PATH_TEXT`
                for the paths as they are written.
            kinds: ``add``, ``remove`` or both.
        """
        ...

    def files_read(self) -> tuple[str, ...]:
        """Files that a full read of this checkpoint depends on (manifest, parts, sidecars)."""
        ...

    def is_reconciled(self) -> bool:
        """Whether its writer proved that it removes no file which it also adds."""
        ...

    def struct_statistics(self) -> pa.DataType | None:
        """Arrow type of ``add.stats_parsed``, or None where statistics are not kept as a struct."""
        ...


@dataclass(frozen=True)
class FileCondition:
    """A condition that live files may match, for readers that leave out the others.

    Attributes:
        columns: Flattened columns that `may_match` takes.
        may_match: Says of a frame of live files with these columns which rows may match; a column
            that the checkpoint lacks is left out.
        may_hold: Says of a `RowGroups` frame which row groups may have a file that matches.
    """

    columns: tuple[str, ...]
    may_match: Callable[[pl.DataFrame], pl.Series]
    may_hold: Callable[[pl.DataFrame], pl.Series]


@dataclass(frozen=True)
class RowGroups:
    """The row groups of one file of a checkpoint, and what their live files can contain.

    Attributes:
        path: File, relative to the table root.
        size_bytes: Its length.
        frame: One row per row group, in order: ``rows``, ``adds`` (live files), ``removes``
            (tombstones), Int64, and ``bounds``, a struct as `STRUCT_STATISTICS` has it, which
            holds for all of its live files together, partition columns included. Of checkpoints
            that record it, also ``firstPath`` and ``lastPath`` (String), which no decoded path of
            its live files is below or above, and their ``sizeInBytes`` and ``numRows`` (Int64),
            without deleted rows; null where one is unknown.
    """

    path: str
    size_bytes: int
    frame: pl.DataFrame


@runtime_checkable
class SkippingReader(CheckpointReader, Protocol):
    """A reader that can leave out row groups."""

    def row_groups(self) -> tuple[RowGroups, ...]:
        """The row groups of every file that holds file actions; empty where the bounds of one of
        them are not known for certain.

        Their numbers of actions are compared with those that the manifest, the pointer or the
        version checksum records.
        """
        ...

    def iter_row_groups(
        self, columns: Sequence[str], chosen: Iterable[tuple[RowGroups, Sequence[int]]], kind: str
    ) -> Iterator[pl.DataFrame]:
        """File actions of one kind as `iter_files` gives them, of some row groups alone.

        Args:
            columns: As `iter_files` takes them.
            chosen: Numbers of row groups, ascending, of `row_groups`.
            kind: ``add`` or ``remove``.
        """
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
        """Live files that may match, as `iter_files` gives them.

        Paths and the condition's columns are read of every live file, the other columns only in
        row groups where a file may match.

        Args:
            columns: As `iter_files` takes them; those of the condition among them.
            condition: What the files may match. On ``partitionValues`` alone, it may be asked only
                once of those that are the same.
            seen: Called with batches of all live files, whose columns are ``path`` and, if it is
                asked for, ``dvId``, among others; from any thread.
        """
        ...
