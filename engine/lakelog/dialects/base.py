"""The `Dialect` interface: decoded actions, listings, checkpoint readers and writers.

A dialect (`lakelog.dialects.delta`, `lakelog.dialects.indextables`) defines file names, codecs and
pointers. It is independent of replay: it never decides which action wins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.dialects.commit_reader import group_commits
from lakelog.dialects.log_content import (
    NO_TEXTS,
    Actions,
    Checkpoint,
    CheckpointPart,
    CheckpointPlan,
    CheckpointReader,
    CheckpointWriter,
    CommitContent,
    CommitFile,
    CommitInfo,
    CompactionFile,
    LogListing,
    PartFiles,
    RecordedCounts,
    StagedCheckpoint,
    WrittenPart,
)
from lakelog.dialects.properties import PropertyRules
from lakelog.dialects.protocol_rules import ProtocolRules, TableConfiguration
from lakelog.errors import InternalError, InvalidInputError
from lakelog.model.metadata import Protocol as TableProtocol
from lakelog.storage import LogStore

if TYPE_CHECKING:
    from lakelog.dialects.clients import Client

AUTO = "auto"
"""The checkpoint layout that suits the table."""


@dataclass(frozen=True)
class CheckpointDefaults:
    """Default settings of checkpoints and retention; None for no limit."""

    compression: str = "zstd"
    part_actions: int | None = None
    checkpoint_retention_ms: int = 2 * 86_400_000
    retain_versions: int | None = None


@dataclass(frozen=True)
class LayoutRequest:
    """Inputs for the choice of a checkpoint layout, in addition to the protocol."""

    path: str
    layout: str = AUTO
    format: str | None = None
    policy: str = "classic"
    files: int = 0
    others: int = 0
    in_parts: bool = False  # several files are needed and allowed
    part_actions: int | None = None
    bounded: bool = False

    def known(self, layout: str, dialect: Dialect, *more: str) -> str:
        """`layout`; raises InvalidInputError if the dialect does not write it."""
        if layout not in dialect.layouts:
            raise InvalidInputError(
                "unknown checkpoint layout",
                path=self.path,
                expected=", ".join((AUTO, *dialect.layouts, *more)),
                found=self.layout,
            )
        return layout

    def refused(self, reason: str, expected: str, hint: str) -> InvalidInputError:
        """The error for a layout that the table does not allow."""
        return InvalidInputError(
            f"checkpoint layout {self.layout} is not allowed here: {reason}",
            path=self.path,
            expected=expected,
            found=self.layout,
            hint=hint,
        )


@dataclass(frozen=True)
class CheckpointDifference:
    """Action types in which a checkpoint may differ from the commits, or why it is `wrong`."""

    wrong: str | None = None
    ignored: frozenset[str] = frozenset()
    note: str | None = None


class Dialect(ABC):
    """One log format; implementations are stateless, thread-safe singletons of their modules."""

    name: str
    """Registered name of the dialect, as in ``lakelog.create(format=)``."""

    log_folder: str
    """Folder of the log, relative to the table root."""

    pointer_path: str
    """The pointer, relative to the table root."""

    contract_key: str
    """Key of the columns' metadata in ``schemas/actions.json`` with the position of each column in
    a JSON line of this dialect.
    """

    protocol_rules: ProtocolRules
    """Features, versions, and upgrades of the protocol."""

    @property
    def clients(self) -> tuple[Client, ...]:
        """Other readers and writers of its tables, with the features that they support."""
        return ()

    feature_removal: str | None = None
    """How a feature is removed from a table, which admits clients without it; None if it cannot."""

    properties: PropertyRules = PropertyRules()
    """The table properties that are accepted."""

    provider: str = "parquet"
    """``format.provider`` of a new table."""

    has_rows: bool = True
    """Whether data files are Parquet files of rows, which lakelog reads and writes."""

    checkpoint_defaults: CheckpointDefaults = CheckpointDefaults()
    """Default settings of checkpoints and retention."""

    default_protocol: tuple[int, int] | None = None
    """(minReaderVersion, minWriterVersion) of a log without a protocol action; with None, such a
    log raises.
    """

    reconciled_checkpoints: bool = True
    """Whether a checkpoint contains each logical file at most once, so that a repeat is damage;
    False if repeats occur in valid logs, and the last one wins.
    """

    states_folder: str | None = None
    """Folder that exists if other writers commit by files other than commits, which put-if-absent
    of a commit does not exclude; None if there are no such writers.
    """

    names_parquet_columns: bool = True
    """Whether column names must be valid in Parquet files if columns are not mapped."""

    hive_null: bool = False
    """Whether the partition value ``__HIVE_DEFAULT_PARTITION__`` is null."""

    map_statistics: bool = False
    """Whether statistics are the maps ``minValues`` and ``maxValues``, not the text ``stats``."""

    file_kinds: tuple[tuple[str, str], ...] = ()
    """Every kind of file in the log folder with a pattern of its names, relative to the folder:
    ``commit``, ``checkpoint`` (each file of one, parts and manifests alike), ``pointer``, and other
    kinds of the dialect. The first group is the version, or empty; the second group of
    ``compaction`` is its last version. A file of no kind is never removed.
    """

    layouts: tuple[str, ...] = ()
    """Checkpoint layouts that can be written; the first is the default."""

    distributed_layouts: tuple[str, ...] = ()
    """The `layouts` that Spark's executors can write, the default first."""

    flattened_checkpoints: bool = False
    """Whether columns of Parquet checkpoints are those of the flattened action table."""

    checkpoints_keep_all_fields: bool = False
    """Whether checkpoints keep all fields of tombstones, and fields that the contract lacks."""

    checkpoints_are_complete: bool = True
    """Whether a checkpoint contains the complete state of the commits below it."""

    checkpoints_keep_tombstones: bool = True
    """Whether a checkpoint without tombstones that are still retained is wrong."""

    checkpoints_at_multiples: bool = False
    """Whether checkpoints are due at versions that are multiples of the interval."""

    every_version_has_a_commit: bool = True
    """Whether a version without a commit file, between two others, is a gap in the log."""

    commits_may_be_compressed: bool = False
    """Whether commits may be much longer than their files."""

    retention_to_midnight: bool = False
    """Whether the retention of commits ends at the UTC midnight before."""

    small_commit_columns: Mapping[str, frozenset[str]] = {}
    """Columns of actions that a small commit writes line by line, by action type; empty if each
    commit is encoded as a whole.
    """

    @property
    def has_deletion_vectors(self) -> bool:
        """Whether a logical file is (path, dvId), and not the path alone."""
        return "deletionVectors" in self.protocol_rules.features

    def choose_layout(self, table: TableConfiguration, request: LayoutRequest) -> str:
        """The layout of a checkpoint; raises InvalidInputError if the table does not allow it."""
        del table
        return request.known(self.layouts[0] if request.layout == AUTO else request.layout, self)

    def seen_by_all_readers(
        self,
        table: TableConfiguration | None,
        checkpoints: Sequence[Checkpoint],
        pointed: int | None,
    ) -> frozenset[Checkpoint] | None:
        """Of the complete checkpoints, those that every reader of the table finds; None: all."""
        del table, checkpoints, pointed
        return None

    def may_be_pointed_to(self, checkpoint: Checkpoint, protocol: TableProtocol | None) -> bool:
        """Whether every reader of a table with `protocol` understands a pointer to `checkpoint`."""
        del checkpoint, protocol
        return True

    def comparable(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of one action type, so that rows that readers treat as equal are equal."""
        return rows

    def checkpoint_difference(
        self, found: TableConfiguration, expected: TableConfiguration
    ) -> CheckpointDifference:
        """How a checkpoint's protocol and metadata may differ from those of the commits."""
        del found, expected
        return CheckpointDifference()

    def encode_paths(self, paths: pl.Series) -> pl.Series:
        """As `encode_path`, for a column."""
        return paths

    def encode_path(self, path: str) -> str:
        """A path as this dialect's writer encodes it in an action."""
        return path

    def decode_path(self, text: str) -> str:
        """The path from an action's text."""
        return text

    def is_varying(self, path: str) -> bool:  # noqa: ARG002 - paths are written as they are
        """Whether writers of the format encode a path in different ways."""
        return False

    @abstractmethod
    def list_log(self, store: LogStore, hint: bool = True, start: int = 0) -> LogListing:
        """List the log folder. With `hint`, the listing may start at the pointer, but must find the
        same latest version; otherwise `start` is the lowest commit version to list.
        """

    @abstractmethod
    def decode(
        self, store: LogStore, commits: Sequence[CommitFile], *, files: bool = True
    ) -> Actions:
        """Decode commits, by version ascending, in as few parses as possible. Without `files`,
        `Actions.files` and `Actions.other` are empty, and their lines are checked only if needed.
        Raises MalformedLogError (with line and byte offset) and InvalidActionError.
        """

    def decode_pieces(
        self,
        store: LogStore,
        commits: Sequence[CommitFile],
        piece_bytes: int,
        *,
        files: bool = True,
    ) -> Iterator[Actions]:
        """As `decode`, in pieces of about `piece_bytes` of text, which bound memory; a longer
        commit is one piece, or split at line ends.
        """
        for run in group_commits(commits, piece_bytes):
            yield self.decode(store, run, files=files)

    def decode_compaction(self, store: LogStore, compaction: CompactionFile) -> Actions:
        """Decode a log compaction file, with null ``version`` and ``position``; raises
        CorruptionError unless it proves that it is complete.
        """
        raise InternalError(
            f"the {self.name} format has no log compaction files",
            path=f"{store.root}/{compaction.path}",
        )

    def varying_paths(self, paths: pl.Series) -> pl.Series:
        """The distinct decoded paths that writers of the format encode in different ways."""
        return paths.clear()

    def path_texts(
        self,
        store: LogStore,
        reader: CheckpointReader | None,
        commits: Sequence[CommitFile],
        paths: pl.Series | None = None,
    ) -> pl.DataFrame:
        """Columns ``path`` and `PATH_TEXT`: the last text in `reader` and `commits` of each path
        that writers encode in different ways, null if this dialect encodes it so; `paths` None is
        all.

        Writers compare the paths of an add and a remove as text, so a path must be written again
        with its existing text.
        """
        del store, reader, commits, paths
        return NO_TEXTS

    @abstractmethod
    def commit_path(self, version: int) -> str:
        """Path of the commit file of `version`, relative to the table root."""

    @abstractmethod
    def encode(
        self,
        content: CommitContent,
        *,
        columnar_above: int | None = None,
        configuration: Mapping[str, str | None] | None = None,
    ) -> bytes:
        """The file of one commit; decoding it returns the same actions. A null is an absent field,
        except in a map. If the protocol has the feature, a commit of more than `columnar_above`
        bytes of JSON is one Parquet file. Raises InvalidTransactionError for an action that cannot
        be encoded.

        Memory: the file, and the texts of 64 Ki rows at a time.
        """

    @abstractmethod
    def open_checkpoint(
        self, store: LogStore, checkpoint: Checkpoint, batch_bytes: int | None = None
    ) -> CheckpointReader:
        """A reader that opens files only to read; `batch_bytes`: no column is read whole."""

    @abstractmethod
    def checkpoint_writer(self, store: LogStore, plan: CheckpointPlan) -> CheckpointWriter:
        """A writer of one checkpoint; raises InvalidInputError for an unknown layout."""

    def part_files(self, part: CheckpointPart) -> PartFiles:
        """A writer of a part of a checkpoint in one of the `distributed_layouts`."""
        raise self._not_distributed(part.plan)

    def stage_parts(
        self,
        store: LogStore,
        plan: CheckpointPlan,
        parts: Sequence[WrittenPart],
        meta: pl.DataFrame,
    ) -> StagedCheckpoint:
        """The checkpoint of the finished parts in order, for a layout without a manifest; a
        manifest is written by `checkpoint_writer`, with the sidecars as `kept`.
        """
        del store, parts, meta
        raise self._not_distributed(plan)

    def _not_distributed(self, plan: CheckpointPlan) -> InternalError:
        return InternalError(f"the {self.name} format has no distributed layout {plan.layout}")

    @abstractmethod
    def pointed_version(self, pointer: bytes) -> int | None:
        """The version in a pointer's content; None if it is malformed."""

    def pointer_counts(
        self,
        pointer: bytes,  # noqa: ARG002 - as the others
        checkpoint: Checkpoint,  # noqa: ARG002 - as the others
    ) -> RecordedCounts | None:
        """The counts of a checkpoint in a pointer's content; None if there are none."""
        return None

    def pointer_contradiction(
        self,
        store: LogStore,  # noqa: ARG002 - as the others
        checkpoint: Checkpoint,  # noqa: ARG002 - as the others
        pointer: bytes,  # noqa: ARG002 - as the others
    ) -> str | None:
        """How a pointer differs from its version's checkpoint, or None; reads all of it."""
        return None

    @abstractmethod
    def pointer_to(
        self, store: LogStore, checkpoint: Checkpoint, created_ms: int
    ) -> tuple[str, bytes] | None:
        """Path and content of a pointer to an existing checkpoint, all of which is counted; None if
        the table's readers would misinterpret it.
        """

    def state_time(self, store: LogStore, checkpoint: Checkpoint) -> int | None:
        """Commit time in ms of a version that is only a checkpoint; None if it is not recorded."""
        del store, checkpoint
        return None

    def resolve_references(self, files: pl.DataFrame, meta: pl.DataFrame) -> pl.DataFrame:
        """Fill columns of file actions that refer to properties in the metaData rows of `meta`."""
        del meta
        return files

    def version_checksum(self, store: LogStore, version: int) -> dict[str, Any] | None:
        """The body of a version's checksum file; None if there is none that can be read."""
        del store, version
        return None

    def checksum_path(self, version: int) -> str | None:
        """Path of a version's checksum, relative to the table root; None if there is none."""
        del version
        return None

    def compaction_path(self, start: int, end: int) -> str | None:
        """Path of the compaction file of commits `start` to `end`; None if the dialect has none."""
        del start, end
        return None

    @abstractmethod
    def decode_commit_infos(self, infos: Sequence[CommitInfo]) -> pl.DataFrame:
        """Flatten commitInfo bodies to rows, in order; unknown fields are stored in ``extra``."""
