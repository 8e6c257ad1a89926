"""The `Dialect` interface: decoded actions, listings, checkpoint readers and writers.

A dialect (`lakelog.dialects.delta`, `lakelog.dialects.indextables`) knows file names, codecs and
pointers. It knows nothing of replay: it never decides which action wins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import polars as pl
import pyarrow as pa

from lakelog.dialects.properties import PropertyRules
from lakelog.dialects.protocol_rules import ProtocolRules, TableConfiguration
from lakelog.errors import InternalError, InvalidInputError
from lakelog.model import actions
from lakelog.model.contract import Struct
from lakelog.model.metadata import Protocol as TableProtocol
from lakelog.storage import LogStore

if TYPE_CHECKING:
    from lakelog.dialects.digest import Digest

AUTO = "auto"
"""The checkpoint layout that suits the table."""

STRUCT_STATISTICS = "stats_parsed"
"""Name under which `CheckpointReader.iter_files` hands out statistics that are kept as a struct;
no column of the flattened table."""

NO_TEXTS = pl.DataFrame(schema={"path": pl.String, actions.PATH_TEXT: pl.String})
"""What `Dialect.path_texts` gives where there is nothing to give."""

CHECKPOINT_META = ("protocol", "metaData", "domainMetadata", "txn", "mergeskip")
"""Action types of a state that are not file actions, in the order in which they are written."""


class CommitFile(NamedTuple):
    """One commit in a listing; a tuple, for a log has tens of thousands.

    Attributes:
        version: Table version that the commit makes.
        path: File, relative to the table root.
        size_bytes: Listed length in bytes.
        modified_ms: Modification time, milliseconds since the Unix epoch.
    """

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
    """The counts that the pointer records of a checkpoint.

    Attributes:
        actions: Actions of all types.
        adds: Live files among them.
    """

    actions: int
    adds: int


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
    """

    version: int
    layout: str
    rank: int
    paths: tuple[str, ...]
    sizes_bytes: tuple[int, ...] = field(default=(), compare=False, repr=False)
    recorded: RecordedCounts | None = field(default=None, compare=False, repr=False)
    checksum_path: str | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class LogListing:
    """What a log folder holds, parsed from names alone; other files are left out.

    Attributes:
        commits: Every commit file, by version ascending; one per version.
        checkpoints: Every complete checkpoint, by (version, rank) ascending.
        compactions: Every log compaction file, by (start, end) ascending.
        notes: Incomplete checkpoints and similar, one sentence each, for provenance.
        apart: Files named like commits that make no version of the table, by number ascending:
            skips that IndexTables numbers apart from its Avro states.
        checksums: Versions that have a version checksum.
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
    """One commitInfo as parsed JSON: most reads never need it flattened. A tuple, for a log has
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
    """One sidecar as a V2 manifest names it.

    Attributes:
        path: File, relative to the table root.
        size_bytes: Its length.
        modified_ms: Its modification time, milliseconds since the Unix epoch.
        tags: What the manifest keeps with it.
    """

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
        created_ms: The present, milliseconds since the Unix epoch, where the layout records it.
        kept: V2 only: sidecars of an earlier checkpoint whose file actions stay as they are; the
            manifest names them next to the new ones.
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
    created_ms: int = 0
    part_actions: int = 100_000
    kept: tuple[SidecarFile, ...] = ()


@dataclass(frozen=True)
class StagedFile:
    """One file of a checkpoint that is written but not yet seen.

    Attributes:
        path: Its current path, relative to the table root. Equal to `target` where no reader
            looks at it before another file names it (a sidecar).
        target: Its path after publication.
        size_bytes: Its length.
        num_actions: Rows in it.
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
    """Writes the files of one checkpoint under names that no reader looks at.

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
    """Reads one checkpoint, column by column. Errors: `CorruptionError`, `NotFoundError`,
    `UnavailableError`, `UnsupportedError`.
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
class CheckpointDefaults:
    """Settings of checkpoints and retention where a table's properties say nothing.

    Attributes:
        compression: Parquet codec, as pyarrow spells it.
        part_actions: Actions that one file of a checkpoint should hold at most; None leaves it
            whole.
        checkpoint_retention_ms: How long a checkpoint stays that a later one has replaced.
        retain_versions: Versions below the newest checkpoint whose commits stay, whatever their
            age; None where age alone decides.
    """

    compression: str = "zstd"
    part_actions: int | None = None
    checkpoint_retention_ms: int = 2 * 86_400_000
    retain_versions: int | None = None


@dataclass(frozen=True)
class LayoutRequest:
    """What decides the layout of a checkpoint, besides the table's protocol.

    Attributes:
        path: Location of the table, for errors.
        layout: The layout asked for, or `AUTO`.
        format: ``json`` or ``parquet`` where the table's properties choose one.
        policy: ``classic`` or ``v2``, by the table's properties.
        files: File actions.
        others: Other actions.
        in_parts: Whether one file would be too long, and several are allowed.
        part_actions: Actions of a file that the table's properties allow at most, if any.
        bounded: Whether memory is limited, so that no layout may hold all actions at once.
    """

    path: str
    layout: str = AUTO
    format: str | None = None
    policy: str = "classic"
    files: int = 0
    others: int = 0
    in_parts: bool = False
    part_actions: int | None = None
    bounded: bool = False

    def known(self, layout: str, dialect: Dialect, *more: str) -> str:
        """`layout`, if the dialect writes it.

        Raises:
            InvalidInputError: It does not.
        """
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
    """How a checkpoint may differ from what the commits say.

    Attributes:
        wrong: Why the checkpoint is wrong all the same; None where it is not.
        ignored: Action types whose rows need not agree.
        note: What a report says of them.
    """

    wrong: str | None = None
    ignored: frozenset[str] = frozenset()
    note: str | None = None


class Dialect(ABC):
    """One log format. Implementations are modules' singletons, stateless and thread-safe.

    What most formats have or lack in common has a default; the abstract methods are the least that
    a log which is read, committed to, checkpointed and cleaned up needs.
    """

    name: str
    """Name under which the dialect is registered, as in ``lakelog.create(format=)``."""

    log_folder: str
    """Folder of the log, relative to the table root."""

    pointer_path: str
    """The pointer, relative to the table root."""

    contract_key: str
    """Key of the columns' metadata in ``schemas/actions.json`` that gives the position of each in a
    JSON line of this dialect."""

    protocol_rules: ProtocolRules
    """Features, versions, and how a protocol is raised."""

    properties: PropertyRules = PropertyRules()
    """The table properties that are accepted."""

    provider: str = "parquet"
    """``format.provider`` of a new table."""

    has_rows: bool = True
    """Whether data files are Parquet files of rows, which lakelog reads and writes."""

    checkpoint_defaults: CheckpointDefaults = CheckpointDefaults()
    """Settings of checkpoints and retention where a table's properties say nothing."""

    default_protocol: tuple[int, int] | None = None
    """(minReaderVersion, minWriterVersion) of a log without a protocol action; None refuses such a
    log."""

    reconciled_checkpoints: bool = True
    """Whether a checkpoint holds each logical file at most once, so that a repeat is damage; False
    where repeats occur in valid logs and the last one counts."""

    states_folder: str | None = None
    """Folder that exists once other writers have committed by other files than commits, which a
    commit of the same version does not keep out; None where no writer does."""

    names_parquet_columns: bool = True
    """Whether column names must be valid in Parquet files where columns are not mapped."""

    hive_null: bool = False
    """Whether the partition value ``__HIVE_DEFAULT_PARTITION__`` is null."""

    map_statistics: bool = False
    """Whether statistics are the maps ``minValues`` and ``maxValues``, not the text ``stats``."""

    layouts: tuple[str, ...] = ()
    """Checkpoint layouts that are written; the first where nothing else is asked for."""

    distributed_layouts: tuple[str, ...] = ()
    """Those of `layouts` that Spark's executors write, the usual one first."""

    flattened_checkpoints: bool = False
    """Whether columns of Parquet checkpoints are those of the flattened action table."""

    checkpoints_keep_all_fields: bool = False
    """Whether checkpoints keep all fields of tombstones, and those that the contract lacks."""

    checkpoints_are_complete: bool = True
    """Whether a checkpoint holds all that the commits below it say of its version."""

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
    """By action type, the columns of actions that a small commit writes line by line; empty where
    each commit is encoded as a whole."""

    @property
    def has_deletion_vectors(self) -> bool:
        """Whether a logical file is (path, dvId), and not the path alone."""
        return "deletionVectors" in self.protocol_rules.features

    def choose_layout(self, table: TableConfiguration, request: LayoutRequest) -> str:
        """The layout of a checkpoint.

        Raises:
            InvalidInputError: The layout asked for is unknown, or the table's readers would not
                understand it. `LayoutRequest.refused` makes the error of the latter.
        """
        del table
        return request.known(self.layouts[0] if request.layout == AUTO else request.layout, self)

    def seen_by_all_readers(
        self,
        table: TableConfiguration | None,
        checkpoints: Sequence[Checkpoint],
        pointed: int | None,
    ) -> frozenset[Checkpoint] | None:
        """The checkpoints that every reader of the table finds; None where all are.

        Args:
            table: Its configuration, if it is known.
            checkpoints: All complete checkpoints.
            pointed: The version that the pointer names, if any.
        """
        del table, checkpoints, pointed
        return None

    def may_be_pointed_to(self, checkpoint: Checkpoint, protocol: TableProtocol | None) -> bool:
        """Whether every reader of a table with `protocol` understands a pointer to `checkpoint`."""
        del checkpoint, protocol
        return True

    def comparable(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of one action type in one spelling for all that readers take for the same."""
        return rows

    def checkpoint_difference(
        self, found: TableConfiguration, expected: TableConfiguration
    ) -> CheckpointDifference:
        """How protocol and metadata of a checkpoint may differ from those of the commits."""
        del found, expected
        return CheckpointDifference()

    def encode_paths(self, paths: pl.Series) -> pl.Series:
        """As `encode_path`, of many."""
        return paths

    def encode_path(self, path: str) -> str:
        """A path as this dialect's writer puts it in an action."""
        return path

    def decode_path(self, text: str) -> str:
        """The path that an action's text names."""
        return text

    def is_varying(self, path: str) -> bool:  # noqa: ARG002 - paths are written as they are
        """Whether writers of the format encode a path in different ways."""
        return False

    @abstractmethod
    def list_log(self, store: LogStore, hint: bool = True, start: int = 0) -> LogListing:
        """List the log folder and parse its names.

        Args:
            store: Store of the table.
            hint: Use the pointer file to start listing near the end (the answer for the latest
                version must be the same).
            start: With ``hint=False``, the least commit version of interest.
        """

    @abstractmethod
    def decode(
        self, store: LogStore, commits: Sequence[CommitFile], *, files: bool = True
    ) -> Actions:
        """Read and decode many commits in as few parses as possible.

        Args:
            store: Store of the table.
            commits: Commits by version, ascending.
            files: False leaves out the file actions: `Actions.files` and `Actions.other` are
                empty, and the lines are checked only if this is needed to find the others.

        Raises:
            MalformedLogError: Not JSON; with file, line and byte offset.
            InvalidActionError: A required field is missing, or of the wrong type.
        """

    @abstractmethod
    def decode_pieces(
        self,
        store: LogStore,
        commits: Sequence[CommitFile],
        piece_bytes: int,
        *,
        files: bool = True,
    ) -> Iterator[Actions]:
        """As `decode`, piece by piece in order: stacked, the pieces are what `decode` gives.

        Args:
            store: Store of the table.
            commits: Commits by version, ascending.
            piece_bytes: Text of one piece, about. A commit that is longer is cut at line ends,
                where its framing allows.
            files: As `decode`.

        Memory: one piece, decoded; never all commits.
        """

    def decode_compaction(self, store: LogStore, compaction: CompactionFile) -> Actions:
        """Read and decode a log compaction file; rows have null ``version`` and ``position``.

        Raises:
            CorruptionError: It cannot be decoded, or does not prove that it is whole.
        """
        raise InternalError(
            f"the {self.name} format has no log compaction files",
            path=f"{store.root}/{compaction.path}",
        )

    def varying_paths(self, paths: pl.Series) -> pl.Series:
        """The paths, decoded, that writers of the format encode in different ways, once each."""
        return paths.clear()

    def path_texts(
        self,
        store: LogStore,
        reader: CheckpointReader | None,
        commits: Sequence[CommitFile],
        paths: pl.Series | None = None,
    ) -> pl.DataFrame:
        """How the log has the paths that writers encode in different ways.

        Writers compare the paths of an add and a remove as text, and do not all encode alike: a
        path has to be written again with the text that it has.

        Args:
            store: Store of the table.
            reader: The checkpoint to look in; None for none.
            commits: The commits above it.
            paths: The paths to look for, decoded; None for all.

        Returns:
            Columns ``path`` and `PATH_TEXT`, one row for each path that the log has: its last
            text, or null where this dialect's writer gives the same. Paths that all writers encode
            alike are left out, and nothing is read for them.

        Raises:
            CorruptionError: A file cannot be read.

        Memory: the rows that are returned, and one decoded batch or piece of commits.
        """
        del store, reader, commits, paths
        return NO_TEXTS

    @abstractmethod
    def commit_path(self, version: int) -> str:
        """File of the commit that makes `version`, relative to the table root."""

    @abstractmethod
    def encode(
        self,
        content: CommitContent,
        *,
        columnar_above: int | None = None,
        configuration: Mapping[str, str | None] | None = None,
    ) -> bytes:
        """The whole file of one commit; decoding it gives the actions back.

        A null is an absent field, except in a map. What the contract says is ``written`` where an
        action lacks it comes back as that. Columns that no action has (``version``, ``dvId`` and
        similar) are not written.

        Args:
            content: The actions.
            columnar_above: Length in bytes, as JSON, above which the commit is one Parquet file
                instead; only for a table whose protocol has the feature for it. None: never.
            configuration: The table's properties, for those that say how commits are written.

        Raises:
            InvalidTransactionError: An action lacks a required field, or carries one that the
                dialect cannot spell; nothing else would read as what was given.

        Memory: the file, and the texts of some 64 Ki rows at a time.
        """

    @abstractmethod
    def open_checkpoint(
        self, store: LogStore, checkpoint: Checkpoint, batch_bytes: int | None = None
    ) -> CheckpointReader:
        """A reader over one checkpoint; opens files only when asked to read.

        Args:
            store: Store of the table.
            checkpoint: The checkpoint.
            batch_bytes: Bytes of columns, about, that a batch of `CheckpointReader.iter_files`
                holds at most; no column is then read whole. None reads as is quickest.
        """

    @abstractmethod
    def checkpoint_writer(self, store: LogStore, plan: CheckpointPlan) -> CheckpointWriter:
        """A writer of one checkpoint.

        Raises:
            InvalidInputError: The dialect does not write that layout.
        """

    @abstractmethod
    def pointed_version(self, pointer: bytes) -> int | None:
        """The version that a pointer's content names; None where no sense can be made of it."""

    @abstractmethod
    def pointer_to(
        self, store: LogStore, checkpoint: Checkpoint, created_ms: int
    ) -> tuple[str, bytes] | None:
        """The pointer's path and the content that names an existing checkpoint; None
        where the table's readers would take it for another thing.

        Args:
            store: Store of the table.
            checkpoint: The checkpoint; all of it is counted.
            created_ms: When it was made, milliseconds since the Unix epoch, where a pointer says.

        Raises:
            CorruptionError: The checkpoint cannot be read.
            UnavailableError: The store failed.
        """

    def state_time(self, store: LogStore, checkpoint: Checkpoint) -> int | None:
        """Commit time, in milliseconds, of a version that exists only as this checkpoint; None
        where checkpoints carry no commit time.
        """
        del store, checkpoint
        return None

    def resolve_references(self, files: pl.DataFrame, meta: pl.DataFrame) -> pl.DataFrame:
        """Fill columns of file actions that refer to table properties, from ``configuration`` in
        the metaData rows of `meta`.
        """
        del meta
        return files

    def version_checksum(self, store: LogStore, version: int) -> dict[str, Any] | None:
        """The body of a version's checksum file; None where there is none that can be read."""
        del store, version
        return None

    def checksum_path(self, version: int) -> str | None:
        """File of a version's checksum, relative to the table root; None where there are none."""
        del version
        return None

    def compaction_path(self, start: int, end: int) -> str | None:
        """File of the log compaction of commits `start` to `end`, relative to the table root; None
        where there are none.
        """
        del start, end
        return None

    @abstractmethod
    def decode_commit_infos(self, infos: Sequence[CommitInfo]) -> pl.DataFrame:
        """Flatten commitInfo bodies to rows (``actionType`` = ``commitInfo``), in order;
        fields that the contract does not name go to ``extra``.
        """

    @abstractmethod
    def check_readable(self, protocol: dict[str, object], table: str) -> None:
        """Refuse a protocol that this dialect's reader does not honour.

        Raises:
            UnsupportedFeatureError: With the version or the feature's name in ``found``.
        """
