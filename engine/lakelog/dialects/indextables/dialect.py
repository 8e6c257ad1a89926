"""The IndexTables dialect: listing, decoding and checkpoints of ``_transaction_log/``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
import polars as pl

from lakelog.dialects.base import (
    NO_TEXTS,
    Actions,
    Checkpoint,
    CheckpointPlan,
    CheckpointReader,
    CheckpointWriter,
    CommitContent,
    CommitFile,
    CommitInfo,
    CompactionFile,
    LogListing,
)
from lakelog.dialects.checkpoint_counts import count_held
from lakelog.dialects.commit_info import flatten_commit_infos
from lakelog.dialects.commit_reader import group_commits
from lakelog.dialects.indextables import listing
from lakelog.dialects.indextables.avro_state import AvroStateReader
from lakelog.dialects.indextables.checkpoint_writer import checkpoint_writer
from lakelog.dialects.indextables.commits import commit_path, decode_commits, encode_commit, wire
from lakelog.dialects.indextables.docmapping import registry_of_meta, resolve_references
from lakelog.dialects.indextables.flattened import FlattenedReader
from lakelog.dialects.indextables.json_checkpoint import JsonCheckpointReader
from lakelog.dialects.indextables.protocol import STATE_PROTOCOL, check_readable, knows_flattened
from lakelog.dialects.indextables.reading import DEFAULT_PROTOCOL_VERSION
from lakelog.errors import InternalError
from lakelog.model import actions
from lakelog.storage import LogStore


class IndexTablesDialect:
    """IndexTables' log; see `lakelog.dialects.base.Dialect`."""

    name = "indextables"
    log_folder = listing.LOG_FOLDER
    pointer_path = listing.LAST_CHECKPOINT

    default_protocol: tuple[int, int] | None = (DEFAULT_PROTOCOL_VERSION, DEFAULT_PROTOCOL_VERSION)
    reconciled_checkpoints = False
    states_folder: str | None = listing.MANIFEST_FOLDER

    def list_log(self, store: LogStore, hint: bool = True, start: int = 0) -> LogListing:
        """List the log folder.

        An Avro state is a checkpoint of its version, and for the v0.5.4 writer also its commit:
        the versions of a table are those of its commits and of its checkpoints.

        With `hint`, the listing starts at the version that ``_last_checkpoint`` names, if a
        complete checkpoint is there; else at 0. The pointer never decides.
        """
        return listing.list_log(store, hint=hint, start=start)

    def decode(
        self, store: LogStore, commits: Sequence[CommitFile], *, files: bool = True
    ) -> Actions:
        """Read and decode commits, of any framing or columnar; see `Dialect.decode`."""
        return decode_commits(store, commits, files=files)

    def decode_pieces(
        self,
        store: LogStore,
        commits: Sequence[CommitFile],
        piece_bytes: int,
        *,
        files: bool = True,
    ) -> Iterator[Actions]:
        """Read and decode commits, some at a time; each is decoded whole, as its framing may need
        all of it. See `Dialect.decode_pieces`.
        """
        for run in group_commits(commits, piece_bytes):
            yield self.decode(store, run, files=files)

    def decode_compaction(self, store: LogStore, compaction: CompactionFile) -> Actions:
        """Never called: IndexTables has no log compaction files, so no listing holds one."""
        raise InternalError(
            "IndexTables has no log compaction files", path=f"{store.root}/{compaction.path}"
        )

    def varying_paths(self, paths: pl.Series) -> pl.Series:
        """None: paths are written as they are."""
        return paths.clear()

    def path_texts(
        self,
        store: LogStore,  # noqa: ARG002 - the dialect's
        reader: CheckpointReader | None,  # noqa: ARG002
        commits: Sequence[CommitFile],  # noqa: ARG002
        paths: pl.Series | None = None,  # noqa: ARG002
    ) -> pl.DataFrame:
        """None: paths are written as they are."""
        return NO_TEXTS

    def commit_path(self, version: int) -> str:
        """File of the commit of `version`."""
        return commit_path(version)

    def encode(
        self,
        content: CommitContent,
        *,
        columnar_above: int | None = None,
        configuration: Mapping[str, str | None] | None = None,
    ) -> bytes:
        """Lines, or one Parquet file above a size; see `Dialect.encode`."""
        return encode_commit(content, columnar_above=columnar_above, configuration=configuration)

    def open_checkpoint(
        self,
        store: LogStore,
        checkpoint: Checkpoint,
        batch_bytes: int | None = None,  # noqa: ARG002 - flattened batches are small, others come whole
    ) -> CheckpointReader:
        """A reader over one checkpoint."""
        if checkpoint.layout == "avro-state":
            return AvroStateReader(store, checkpoint)
        if checkpoint.layout == "flattened":
            return FlattenedReader(store, checkpoint)
        return JsonCheckpointReader(store, checkpoint)

    def checkpoint_writer(self, store: LogStore, plan: CheckpointPlan) -> CheckpointWriter:
        """A writer of ``json``, ``json-multipart`` or ``flattened``; see
        `Dialect.checkpoint_writer`.
        """
        return checkpoint_writer(store, plan)

    def pointed_version(self, pointer: bytes) -> int | None:
        """The version that ``_last_checkpoint`` names."""
        return listing.parse_pointer(pointer)

    def pointer_to(
        self, store: LogStore, checkpoint: Checkpoint, created_ms: int
    ) -> tuple[str, bytes] | None:
        """``_last_checkpoint``; see `Dialect.pointer_to`."""
        reader = self.open_checkpoint(store, checkpoint)
        held = count_held(store, reader)
        wanted = ("minReaderVersion", "readerFeatures")
        protocol = actions.conform(reader.read_meta(("protocol",)), wanted)
        is_flattened = checkpoint.layout == "flattened"
        if any(version >= STATE_PROTOCOL for version in protocol["minReaderVersion"] if version):
            return None
        if is_flattened and not any(map(knows_flattened, protocol["readerFeatures"].to_list())):
            return None
        body: dict[str, Any] = {
            "version": checkpoint.version,
            "size": held.actions,
            "sizeInBytes": held.size_bytes,
            "numFiles": held.adds,
            "createdTime": created_ms,
        }
        if is_flattened:
            body |= {"parts": len(checkpoint.paths)} if len(checkpoint.paths) > 1 else {}
            body["format"] = checkpoint.layout
        elif checkpoint.layout == "json-multipart":
            parts = checkpoint.paths[1:]
            # By the id other readers know that the file is a manifest.
            checkpoint_id = parts[0].rpartition("/")[2].split(".")[2]
            body |= {"parts": len(parts), "checkpointId": checkpoint_id}
        return listing.LAST_CHECKPOINT, orjson.dumps(body)

    def state_time(self, store: LogStore, checkpoint: Checkpoint) -> int | None:
        """When an Avro state was made; None for other checkpoints, whose commits have times."""
        reader = self.open_checkpoint(store, checkpoint)
        return reader.created_ms() if isinstance(reader, AvroStateReader) else None

    def version_checksum(self, store: LogStore, version: int) -> dict[str, Any] | None:  # noqa: ARG002 - as the protocol gives them
        """None: IndexTables keeps no version checksums."""
        return None

    def checksum_path(self, version: int) -> str | None:  # noqa: ARG002 - as the protocol gives it
        """None: IndexTables keeps no version checksums."""
        return None

    def compaction_path(self, start: int, end: int) -> str | None:  # noqa: ARG002 - as the protocol gives them
        """None: IndexTables has no log compaction files."""
        return None

    def decode_commit_infos(self, infos: Sequence[CommitInfo]) -> pl.DataFrame:
        """Flatten commitInfo bodies, in order; the reference writes none, lakelog does."""
        return flatten_commit_infos(infos, wire())

    def check_readable(self, protocol: dict[str, Any], table: str) -> None:
        """Refuse a protocol above 4, or a reader feature that lakelog does not know."""
        check_readable(protocol, table)

    def resolve_references(self, files: pl.DataFrame, meta: pl.DataFrame) -> pl.DataFrame:
        """Fill ``docMappingJson`` from ``docMappingRef`` through the properties in `meta`.

        Decoding resolves what is registered in the same commits; a mapping that an earlier
        commit registered is found here, once the table's metadata is known.
        """
        return resolve_references(files, registry_of_meta(meta))


DIALECT = IndexTablesDialect()
