"""The IndexTables dialect: listing, decoding and checkpoints of ``_transaction_log/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from lakelog.dialects.base import (
    AUTO,
    CheckpointDefaults,
    CheckpointDifference,
    Dialect,
    LayoutRequest,
)
from lakelog.dialects.commit_info import flatten_commit_infos
from lakelog.dialects.indextables import listing
from lakelog.dialects.indextables.avro_state import AvroStateReader
from lakelog.dialects.indextables.checkpoint_writer import checkpoint_writer
from lakelog.dialects.indextables.commits import (
    DEFAULT_PROTOCOL_VERSION,
    decode_commits,
    encode_commit,
    wire,
)
from lakelog.dialects.indextables.docmapping import (
    lost_mapping,
    registry_of_meta,
    resolve_references,
    same_files,
    without_registry,
)
from lakelog.dialects.indextables.flattened import FlattenedReader
from lakelog.dialects.indextables.json_checkpoint import JsonCheckpointReader
from lakelog.dialects.indextables.protocol import (
    INDEXTABLES_PROTOCOL,
    LISTS_FROM,
    OWN_FEATURE,
    STATE_PROTOCOL,
    has_flattened_checkpoints,
    is_raised,
)
from lakelog.dialects.log_content import (
    PART_ACTIONS,
    Actions,
    Checkpoint,
    CheckpointPart,
    CheckpointPlan,
    CheckpointReader,
    CheckpointWriter,
    CommitContent,
    CommitFile,
    CommitInfo,
    LogListing,
    PartFiles,
    RecordedCounts,
    StagedCheckpoint,
    WrittenPart,
    count_held,
)
from lakelog.dialects.properties import SPARK_INDEXTABLES, PropertyRules
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.dialects.row_validation import columns_of
from lakelog.errors import InvalidPropertyError
from lakelog.model import actions
from lakelog.model.metadata import Protocol
from lakelog.storage import LogStore

if TYPE_CHECKING:
    from lakelog.dialects.clients import Client


class IndexTablesProperties(PropertyRules):
    """IndexTables' rules for table properties."""

    def check_one(self, key: str, lower: str, value: str | None) -> None:
        """Reject keys of ``delta.*``, which readers of such tables ignore."""
        if lower.startswith("delta."):
            raise InvalidPropertyError(
                "properties of Delta have no effect on an IndexTables table",
                path=key,
                expected=f"{SPARK_INDEXTABLES}* or a key of your own",
                found=value,
            )
        super().check_one(key, lower, value)


class IndexTablesDialect(Dialect):
    """IndexTables' log; see `lakelog.dialects.base.Dialect`."""

    name = "indextables"
    log_folder = listing.LOG_FOLDER
    pointer_path = listing.LAST_CHECKPOINT

    default_protocol: tuple[int, int] | None = (DEFAULT_PROTOCOL_VERSION, DEFAULT_PROTOCOL_VERSION)
    reconciled_checkpoints = False
    contract_key = "indextables"
    protocol_rules = INDEXTABLES_PROTOCOL
    file_kinds = listing.FILE_KINDS
    properties = IndexTablesProperties()

    @property
    def clients(self) -> tuple[Client, ...]:
        """As in `Dialect`: the reference implementation has all features but lakelog's own."""
        from lakelog.dialects.clients import Client

        known = {name: name != OWN_FEATURE for name in self.protocol_rules.features}
        source = "https://github.com/indextables/indextables_spark"
        return (Client("IndexTables on Spark 0.5.3", known, known, source),)

    provider = "indextables"
    checkpoint_defaults = CheckpointDefaults(
        compression="snappy",
        part_actions=PART_ACTIONS,
        checkpoint_retention_ms=2 * 3_600_000,
        retain_versions=30,
    )
    has_rows = False
    names_parquet_columns = False
    layouts = ("json", "json-multipart", "flattened")
    distributed_layouts = ("flattened",)
    flattened_checkpoints = True
    checkpoints_keep_all_fields = True
    checkpoints_are_complete = False
    checkpoints_keep_tombstones = False
    every_version_has_a_commit = False
    commits_may_be_compressed = True
    hive_null = True
    map_statistics = True
    small_commit_columns: Mapping[str, frozenset[str]] = {
        "add": columns_of("add", "indextables"),
        "remove": columns_of("remove", "indextables"),
    }
    states_folder: str | None = listing.MANIFEST_FOLDER

    def choose_layout(self, table: TableConfiguration, request: LayoutRequest) -> str:
        """Flattened Parquet if all readers support it or a property requests it; else JSON."""
        protocol = table.protocol
        reader = protocol.min_reader_version or 1
        if request.layout == "json-multipart" and reader < LISTS_FROM:
            raise request.refused(
                "readers of this protocol would read the manifest as the whole checkpoint",
                "json, flattened",
                f"raise the protocol to {LISTS_FROM}, or use layout flattened",
            )
        if request.layout != AUTO:
            return request.known(request.layout, self)
        own = has_flattened_checkpoints(protocol.reader_features)
        if request.format == "parquet" or (own and request.format is None):
            return "flattened"
        if request.files + request.others < PART_ACTIONS:
            return "json"
        known = LISTS_FROM <= reader < STATE_PROTOCOL
        is_json = request.format == "json"
        if known and request.part_actions is not None and (is_json or not request.bounded):
            return "json-multipart"
        return "json" if is_json else "flattened"

    def seen_by_all_readers(
        self,
        table: TableConfiguration | None,
        checkpoints: Sequence[Checkpoint],
        pointed: int | None,
    ) -> frozenset[Checkpoint] | None:
        """IndexTables' own readers read only JSON. They begin at the checkpoint in the pointer, and
        assume that every commit above it exists; without a pointer, they begin at the first commit.
        """
        if table is not None and has_flattened_checkpoints(table.protocol.reader_features):
            return None
        in_json = [c for c in checkpoints if c.layout in {"json", "json-multipart"}]
        if pointed not in {c.version for c in in_json}:
            return frozenset()
        return frozenset(c for c in in_json if c.version <= pointed)

    def may_be_pointed_to(self, checkpoint: Checkpoint, protocol: Protocol | None) -> bool:
        """A flattened checkpoint only if every reader supports it."""
        features = None if protocol is None else protocol.reader_features
        return checkpoint.layout != "flattened" or has_flattened_checkpoints(features)

    def comparable(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Document mappings parsed and normalised, without their registry; a ``parquet`` or null
        provider is that of a metaData without a format, in checkpoints by earlier versions of
        lakelog or by other writers.
        """
        if rows.height and rows["actionType"][0] == "add":
            return rows.with_columns(same_files(rows))
        if "formatProvider" in rows.columns:
            provider = pl.col("formatProvider").replace("parquet", self.provider)
            rows = rows.with_columns(provider.fill_null(self.provider))
        return without_registry(rows)

    def checkpoint_difference(
        self, found: TableConfiguration, expected: TableConfiguration
    ) -> CheckpointDifference:
        """IndexTables' writer raises the protocol of checkpoints; a mapping must not be lost."""
        lost = lost_mapping(expected.metadata.configuration, found.metadata.configuration)
        if lost is not None:
            return CheckpointDifference(f"metaData lacks the document mapping {lost}")
        if not is_raised(found.protocol, expected.protocol):
            return CheckpointDifference()
        note = (
            "its protocol is higher than that of the commits, because IndexTables' writer raises it"
        )
        return CheckpointDifference(None, frozenset({"protocol"}), note)

    def list_log(self, store: LogStore, hint: bool = True, start: int = 0) -> LogListing:
        """See `Dialect.list_log`. Versions are those of commits and checkpoints: for the v0.5.4
        writer, an Avro state is also the commit of its version.
        """
        return listing.list_log(store, hint=hint, start=start)

    def decode(
        self, store: LogStore, commits: Sequence[CommitFile], *, files: bool = True
    ) -> Actions:
        """Read and decode commits, of any framing or columnar; see `Dialect.decode`."""
        return decode_commits(store, commits, files=files)

    def commit_path(self, version: int) -> str:
        """File of the commit of `version`."""
        return f"{listing.LOG_FOLDER}/{version:020d}.json"

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
        batch_bytes: int | None = None,
    ) -> CheckpointReader:
        """A reader over one checkpoint."""
        if checkpoint.layout == "avro-state":
            return AvroStateReader(store, checkpoint)
        if checkpoint.layout == "flattened":
            return FlattenedReader(store, checkpoint, batch_bytes)
        return JsonCheckpointReader(store, checkpoint)

    def checkpoint_writer(self, store: LogStore, plan: CheckpointPlan) -> CheckpointWriter:
        """A writer of ``json``, ``json-multipart`` or ``flattened``."""
        return checkpoint_writer(store, plan)

    def part_files(self, part: CheckpointPart) -> PartFiles:
        """A part of a flattened checkpoint."""
        from lakelog.dialects.indextables.flattened_writer import FlattenedPart

        return FlattenedPart(part)

    def stage_parts(
        self,
        store: LogStore,
        plan: CheckpointPlan,
        parts: Sequence[WrittenPart],
        meta: pl.DataFrame,
    ) -> StagedCheckpoint:
        """A flattened checkpoint."""
        from lakelog.dialects.indextables.flattened_writer import Staging, stage_parts
        from lakelog.dialects.row_group_records import RECORD_KEY

        adds = sum(part.digest.counts.get("add", 0) for part in parts)
        files, records = [p.file for p in parts], [p.tags[RECORD_KEY] for p in parts]
        staging = Staging(store, plan, files=files, num_adds=adds, records=records)
        staging.learn(meta)
        return stage_parts(staging)

    def pointed_version(self, pointer: bytes) -> int | None:
        """The version in ``_last_checkpoint``."""
        return listing.parse_pointer(pointer)

    def pointer_counts(self, pointer: bytes, checkpoint: Checkpoint) -> RecordedCounts | None:
        """The counts in ``_last_checkpoint``."""
        return listing.recorded_counts(pointer, checkpoint.version)

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
        if is_flattened and not any(
            map(has_flattened_checkpoints, protocol["readerFeatures"].to_list())
        ):
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
            # Other readers recognise a manifest by the id.
            checkpoint_id = parts[0].rpartition("/")[2].split(".")[2]
            body |= {"parts": len(parts), "checkpointId": checkpoint_id}
        return listing.LAST_CHECKPOINT, orjson.dumps(body)

    def state_time(self, store: LogStore, checkpoint: Checkpoint) -> int | None:
        """Creation time of an Avro state; None for other checkpoints, whose commits have times."""
        reader = self.open_checkpoint(store, checkpoint)
        return reader.created_ms() if isinstance(reader, AvroStateReader) else None

    def decode_commit_infos(self, infos: Sequence[CommitInfo]) -> pl.DataFrame:
        """Flatten commitInfo bodies, in order; only lakelog writes them."""
        return flatten_commit_infos(infos, wire())

    def resolve_references(self, files: pl.DataFrame, meta: pl.DataFrame) -> pl.DataFrame:
        """Fill ``docMappingJson``; decoding knows only registrations in the same commits."""
        return resolve_references(files, registry_of_meta(meta))


DIALECT = IndexTablesDialect()
