"""The Delta dialect: listing, decoding, commits and checkpoints of ``_delta_log/``.

Source: Delta protocol, Delta Log Entries; Commit Provenance Information; In-Commit Timestamps
(commitInfo comes first).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from lakelog.dialects.base import AUTO, Dialect, LayoutRequest
from lakelog.dialects.commit_info import flatten_commit_infos
from lakelog.dialects.commit_reader import OwnCommits, read_commits, read_pieces
from lakelog.dialects.delta.last_checkpoint import (
    checksum,
    parse_last_checkpoint,
    read_last_checkpoint,
    read_version_checksum,
)
from lakelog.dialects.delta.names import (
    FILE_KINDS,
    LAST_CHECKPOINT,
    LOG_FOLDER,
    checksum_name,
    commit_name,
    compaction_name,
    parse_listing,
)
from lakelog.dialects.delta.paths import (
    VARYING,
    decode_path,
    decode_paths,
    decode_with_texts,
    encode_path,
    encode_paths,
    spell_new_paths,
)
from lakelog.dialects.delta.properties import DELTA_PROPERTY_RULES
from lakelog.dialects.delta.protocol import DELTA_PROTOCOL
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.log_content import (
    NO_TEXTS,
    Actions,
    Checkpoint,
    CheckpointPart,
    CheckpointPlan,
    CheckpointReader,
    CommitContent,
    CommitFile,
    CommitInfo,
    CompactionFile,
    LogListing,
    PartFiles,
    RecordedCounts,
    RecordMismatchError,
    StagedCheckpoint,
    WrittenPart,
    count_held,
)
from lakelog.dialects.ndjson import Blob, decode_lines, decode_pieces
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.dialects.row_validation import columns_of, encode_info
from lakelog.dialects.truncation_marks import without_closing_line
from lakelog.errors import InternalError, InvalidActionError
from lakelog.model.actions import PATH_TEXT, with_dv_id
from lakelog.storage import LogStore

if TYPE_CHECKING:
    from lakelog.dialects.clients import Client
    from lakelog.dialects.delta.checkpoint import DeltaCheckpointReader
    from lakelog.dialects.delta.checkpoint_writer import DeltaCheckpointWriter

# Readers and writers of checkpoints, and the encoder of commits, are imported on demand: a process
# that opens a small table starts faster.

_DELTA = "delta"


_WIRE = Wire.of("delta")
_PIECE_BYTES = 4 << 20
_MANIFEST_ROWS = (
    10_000  # number of non-file actions above which Parquet is smaller and faster to read
)
_VARYING = re.compile(VARYING)


class DeltaDialect(Dialect):
    """Delta's log; see `lakelog.dialects.base.Dialect`."""

    name = "delta"
    log_folder = LOG_FOLDER
    pointer_path = LAST_CHECKPOINT
    contract_key = "delta"
    protocol_rules = DELTA_PROTOCOL
    file_kinds = FILE_KINDS
    layouts = ("classic", "multipart", "v2-json", "v2-parquet")
    distributed_layouts = ("multipart", "v2-json", "v2-parquet")
    checkpoints_at_multiples = True
    retention_to_midnight = True
    feature_removal = "Delta Lake on Spark removes a feature: ALTER TABLE ... DROP FEATURE name"

    properties = DELTA_PROPERTY_RULES

    @property
    def clients(self) -> tuple[Client, ...]:
        """As in `Dialect`."""
        from lakelog.dialects.delta.clients import CLIENTS

        return CLIENTS

    small_commit_columns: Mapping[str, frozenset[str]] = {
        "add": frozenset("path partitionValues size modificationTime dataChange stats".split()),
        "remove": frozenset(
            "path partitionValues size deletionTimestamp dataChange extendedFileMetadata".split()
        ),
        "txn": columns_of("txn", "delta"),
    }

    def choose_layout(self, table: TableConfiguration, request: LayoutRequest) -> str:
        """V2 if the protocol has it and policy or size require it, otherwise by size. A checkpoint
        needs the table's id, by which readers find the metadata in Parquet.
        """
        if table.metadata.id is None:
            raise InvalidActionError(
                "the table's metaData has no id, which a checkpoint requires",
                path=request.path,
                expected="metaData.id",
                found=None,
                hint="set one: with table.transaction() as tx: tx.set_metadata(id=str(uuid4()))",
            )
        v2 = table.supports("v2Checkpoint")
        either = "v2-json" if request.others <= _MANIFEST_ROWS else "v2-parquet"
        if request.layout == AUTO:
            if v2 and (request.policy == "v2" or request.in_parts):
                return either
            return "multipart" if request.in_parts else "classic"
        found = either if request.layout == "v2" else request.layout
        if found == "multipart" and v2:
            raise request.refused(
                "the table supports v2Checkpoint, which forbids checkpoints in parts",
                "classic, v2-json, v2-parquet",
                "omit layout, or use v2-json, which splits the checkpoint into sidecars",
            )
        if found.startswith("v2-") and not v2:
            raise request.refused(
                "the table's protocol lacks the feature v2Checkpoint",
                "classic, multipart",
                "set delta.checkpointPolicy to v2, which adds the feature",
            )
        return request.known(found, self, "v2")

    def encode_paths(self, paths: pl.Series) -> pl.Series:
        """URLs, percent-encoded."""
        return encode_paths(paths)

    def encode_path(self, path: str) -> str:
        """A URL, percent-encoded."""
        return encode_path(path)

    def decode_path(self, text: str) -> str:
        """Percent-decoded."""
        return decode_path(text) if "%" in text else text

    def is_varying(self, path: str) -> bool:
        """Whether it has a character that some writers encode and others do not."""
        return _VARYING.search(path) is not None

    def list_log(self, store: LogStore, hint: bool = True, start: int = 0) -> LogListing:
        """See `Dialect.list_log`; a missing, invalid or stale pointer costs only time."""
        notes: tuple[str, ...] = ()
        if hint:
            pointer = read_last_checkpoint(store)
            if pointer.version:
                listing = parse_listing(store.list_from(LOG_FOLDER, f"{pointer.version:020d}"))
                if any(c.version >= pointer.version for c in listing.checkpoints):
                    checkpoints = (
                        replace(c, recorded=pointer.counts_of(c), pointer_path=None)
                        for c in listing.checkpoints
                    )
                    return replace(listing, checkpoints=tuple(checkpoints))
                missing = f"no complete checkpoint was found at or above version {pointer.version}"
                notes = (f"{LAST_CHECKPOINT} is invalid: {missing}",)
            elif pointer.note:
                notes = (pointer.note,)
        listing = parse_listing(store.list_from(LOG_FOLDER, f"{start:020d}" if start else ""))
        return replace(listing, notes=(*notes, *listing.notes))

    def decode(
        self, store: LogStore, commits: Sequence[CommitFile], *, files: bool = True
    ) -> Actions:
        """Read and decode commits; see `Dialect.decode`."""
        own = OwnCommits(info_own_line=True)
        lines = own.counted(read_commits(store, commits))
        decoded = own.learn(decode_lines(lines, _WIRE, files=files))
        own.check(commits)
        return _finish(decoded)

    def decode_pieces(
        self,
        store: LogStore,
        commits: Sequence[CommitFile],
        piece_bytes: int,
        *,
        files: bool = True,
    ) -> Iterator[Actions]:
        """Read and decode commits piece by piece; see `Dialect.decode_pieces`."""
        own = OwnCommits(info_own_line=True)
        pieces = (list(own.counted(p)) for p in read_pieces(store, commits, piece_bytes))
        for piece in decode_pieces(pieces, _WIRE, files=files):
            yield _finish(own.learn(piece))
        own.check(commits)

    def decode_compaction(self, store: LogStore, compaction: CompactionFile) -> Actions:
        """Read and decode a log compaction file with a closing line."""
        data = without_closing_line(store.read(compaction.path), compaction.path)
        return _finish(decode_lines([Blob(None, compaction.path, data)], _WIRE))

    def varying_paths(self, paths: pl.Series) -> pl.Series:
        """See `Dialect.varying_paths`."""
        return paths.filter(paths.str.contains(VARYING)).unique()

    def path_texts(
        self,
        store: LogStore,
        reader: CheckpointReader | None,
        commits: Sequence[CommitFile],
        paths: pl.Series | None = None,
    ) -> pl.DataFrame:
        """See `Dialect.path_texts`."""
        found = [NO_TEXTS]
        if paths is not None:
            paths = self.varying_paths(paths)
            if not len(paths):
                return NO_TEXTS

        def keep(files: pl.DataFrame) -> None:
            own = files["path"]
            known = own.str.contains(VARYING) if paths is None else own.is_in(paths.implode())
            if PATH_TEXT not in files.columns:
                files = files.with_columns(pl.lit(None, pl.String).alias(PATH_TEXT))
            found.append(files.filter(known).select("path", PATH_TEXT))

        for frame in reader.iter_files((PATH_TEXT,)) if reader is not None else ():
            keep(frame)
        pieces = (list(piece) for piece in read_pieces(store, commits, _PIECE_BYTES))
        for piece in decode_pieces(pieces, _WIRE):
            if "path" in piece.files.columns:
                keep(decode_with_texts(piece.files.select("path")))
        return pl.concat(found).unique("path", keep="last", maintain_order=True)

    def commit_path(self, version: int) -> str:
        """File of the commit of `version`."""
        return f"{LOG_FOLDER}/{commit_name(version)}"

    def encode(
        self,
        content: CommitContent,
        *,
        columnar_above: int | None = None,
        configuration: Mapping[str, str | None] | None = None,  # noqa: ARG002 - as the protocol gives it; no Delta property changes the spelling
    ) -> bytes:
        """NDJSON, the commitInfo first; see `Dialect.encode`."""
        if columnar_above is not None:
            raise InternalError("a Delta log has no columnar commits")
        from lakelog.dialects.encode import encode_rows, ordered_content, require_content

        require_content(content)
        meta, files = ordered_content(content, _DELTA)
        info = [b'{"commitInfo":', encode_info(content.info), b"}\n"] if content.info else []
        spell = partial(spell_new_paths, texts=content.texts)
        rows = [*encode_rows(meta, _DELTA), *encode_rows(files, _DELTA, spell)]
        return b"".join([*info, *rows, content.file_lines])

    def open_checkpoint(
        self, store: LogStore, checkpoint: Checkpoint, batch_bytes: int | None = None
    ) -> DeltaCheckpointReader:
        """A reader over one checkpoint."""
        from lakelog.dialects.delta.checkpoint import DeltaCheckpointReader

        return DeltaCheckpointReader(store, checkpoint, batch_bytes)

    def checkpoint_writer(self, store: LogStore, plan: CheckpointPlan) -> DeltaCheckpointWriter:
        """A writer of one checkpoint."""
        from lakelog.dialects.delta.checkpoint_writer import DeltaCheckpointWriter

        return DeltaCheckpointWriter(store, plan)

    def part_files(self, part: CheckpointPart) -> PartFiles:
        """A file of a multi-part checkpoint, or the sidecars of a part."""
        from lakelog.dialects.delta.distributed import MultipartFile, Sidecars

        return MultipartFile(part) if part.plan.layout == "multipart" else Sidecars(part)

    def stage_parts(
        self,
        store: LogStore,  # noqa: ARG002 - as the protocol gives it
        plan: CheckpointPlan,
        parts: Sequence[WrittenPart],
        meta: pl.DataFrame,  # noqa: ARG002 - the same
    ) -> StagedCheckpoint:
        """A multi-part checkpoint."""
        from lakelog.dialects.delta.distributed import stage_multipart

        return stage_multipart(plan, parts)

    def pointed_version(self, pointer: bytes) -> int | None:
        """The version in ``_last_checkpoint``."""
        return parse_last_checkpoint(pointer).version

    def pointer_counts(self, pointer: bytes, checkpoint: Checkpoint) -> RecordedCounts | None:
        """The counts in ``_last_checkpoint``."""
        return parse_last_checkpoint(pointer).counts_of(checkpoint)

    def pointer_contradiction(
        self, store: LogStore, checkpoint: Checkpoint, pointer: bytes
    ) -> str | None:
        """Different numbers of actions or files; see `Dialect.pointer_contradiction`."""
        recorded = parse_last_checkpoint(pointer).counts_of(checkpoint)
        alone = replace(checkpoint.without_records(), recorded=recorded)
        try:
            count_held(store, self.open_checkpoint(store, alone))
        except RecordMismatchError as error:
            return f"{error.message}: {error.expected}, but {error.found}"
        return None

    def pointer_to(
        self,
        store: LogStore,
        checkpoint: Checkpoint,
        created_ms: int,  # noqa: ARG002 - the protocol gives it; Delta's pointer has no time
    ) -> tuple[str, bytes]:
        """``_last_checkpoint``, with its checksum; see `Dialect.pointer_to`."""
        held = count_held(store, self.open_checkpoint(store, checkpoint.without_records()))
        body: dict[str, Any] = {"version": checkpoint.version, "size": held.actions}
        if checkpoint.layout == "multipart":
            body["parts"] = len(checkpoint.paths)
        body |= {"sizeInBytes": held.size_bytes, "numOfAddFiles": held.adds}
        return LAST_CHECKPOINT, orjson.dumps(body | {"checksum": checksum(body)})

    def version_checksum(self, store: LogStore, version: int) -> dict[str, Any] | None:
        """The body of ``<version>.crc``; None if there is none that can be read."""
        return read_version_checksum(store, version)

    def checksum_path(self, version: int) -> str:
        """File of a version's checksum."""
        return f"{LOG_FOLDER}/{checksum_name(version)}"

    def compaction_path(self, start: int, end: int) -> str:
        """File of a log compaction."""
        return f"{LOG_FOLDER}/{compaction_name(start, end)}"

    def decode_commit_infos(self, infos: Sequence[CommitInfo]) -> pl.DataFrame:
        """Flatten commitInfo bodies, in order."""
        return flatten_commit_infos(infos, _WIRE)


def _finish(decoded: Actions) -> Actions:
    """Decode paths and derive ``dvId``."""
    return replace(decoded, files=_paths(decoded.files), other=_paths(decoded.other))


def _paths(frame: pl.DataFrame) -> pl.DataFrame:
    if "path" not in frame.columns:
        return frame
    return with_dv_id(frame.with_columns(decode_paths(frame["path"])))


DIALECT = DeltaDialect()
