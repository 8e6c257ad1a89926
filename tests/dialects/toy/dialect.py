"""``_toy_log/``: commits ``<version>.ndjson``, checkpoints ``<version>.state``, a file ``latest``.

Actions have the fields of Delta's JSON. A checkpoint is one file of the lines of its state, and a
last line with their number, without which it is truncated.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from lakelog.dialects.base import Dialect
from lakelog.dialects.commit_info import flatten_commit_infos
from lakelog.dialects.commit_reader import OwnCommits, read_commits
from lakelog.dialects.encode import encode_rows, ordered_content, require_content
from lakelog.dialects.features import Feature, Stance
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.log_content import (
    CHECKPOINT_META,
    Actions,
    Checkpoint,
    CheckpointPlan,
    CheckpointReader,
    CheckpointWriter,
    CommitContent,
    CommitFile,
    CommitInfo,
    LogListing,
    StagedCheckpoint,
    StagedFile,
)
from lakelog.dialects.ndjson import Blob, decode_lines
from lakelog.dialects.protocol_rules import ProtocolRules
from lakelog.dialects.row_validation import conform_rows, encode_info
from lakelog.errors import MalformedLogError, UnsupportedFeatureError
from lakelog.model import actions
from lakelog.model.metadata import Protocol
from lakelog.storage import LogStore

FOLDER = "_toy_log"
FIELDS = "delta"  # the key in schemas/actions.json
WIRE = Wire.of(FIELDS)
NAME = re.compile(r"([0-9]{8})\.(ndjson|state)")
POINTER = re.compile(rb"[0-9]{1,8}")


class ToyProtocol(ProtocolRules):
    """One version; the feature ``shiny`` must be listed."""

    features: Mapping[str, Feature] = {"shiny": Feature("shiny", Stance.HONOURED, "nothing")}
    default = Protocol(1, 1)
    last_versions = (1, 1)

    def implies(self, protocol: Protocol, feature: Feature) -> bool:
        del protocol, feature
        return False

    def with_features(
        self, base: Protocol, added: list[Feature], supported: frozenset[str]
    ) -> Protocol:
        names = tuple(sorted(supported | {feature.name for feature in added}))
        return Protocol(base.min_reader_version, base.min_writer_version, (), names)

    def check_readable(self, protocol: Protocol, table: str) -> None:
        if protocol.min_reader_version != 1:
            raise UnsupportedFeatureError(
                "the table needs a newer reader",
                path=table,
                expected="minReaderVersion 1",
                found=protocol.min_reader_version,
            )


class ToyDialect(Dialect):
    """See the module docstring."""

    name = "toy"
    log_folder = FOLDER
    pointer_path = f"{FOLDER}/latest"
    contract_key = FIELDS
    protocol_rules = ToyProtocol()
    layouts = ("state",)
    file_kinds = (
        ("pointer", "^latest()$"),
        ("commit", "^([0-9]{8})[.]ndjson$"),
        ("checkpoint", "^([0-9]{8})[.]state$"),
    )

    def list_log(self, store: LogStore, hint: bool = True, start: int = 0) -> LogListing:
        del hint
        commits, checkpoints = [], []
        for entry in store.list_from(FOLDER):
            match = NAME.fullmatch(entry.name)
            if match is None:
                continue
            version, path = int(match[1]), f"{FOLDER}/{entry.name}"
            if match[2] == "state":
                checkpoints.append(Checkpoint(version, "state", 1, (path,), (entry.size_bytes,)))
            elif version >= start:
                commits.append(CommitFile(version, path, entry.size_bytes, entry.modified_ms))
        return LogListing(tuple(commits), tuple(checkpoints))

    def decode(
        self, store: LogStore, commits: Sequence[CommitFile], *, files: bool = True
    ) -> Actions:
        counts = OwnCommits(info_own_line=True)
        lines = counts.counted(read_commits(store, commits))
        decoded = counts.learn(decode_lines(lines, WIRE, files=files))
        counts.check(commits)
        return decoded

    def commit_path(self, version: int) -> str:
        return f"{FOLDER}/{version:08d}.ndjson"

    def encode(
        self,
        content: CommitContent,
        *,
        columnar_above: int | None = None,
        configuration: Mapping[str, str | None] | None = None,
    ) -> bytes:
        del columnar_above, configuration
        require_content(content)
        meta, files = ordered_content(content, FIELDS)
        info = [b'{"commitInfo":', encode_info(content.info), b"}\n"] if content.info else []
        rows = [*encode_rows(meta, FIELDS), *encode_rows(files, FIELDS)]
        return b"".join([*info, *rows, content.file_lines])

    def open_checkpoint(
        self, store: LogStore, checkpoint: Checkpoint, batch_bytes: int | None = None
    ) -> ToyCheckpointReader:
        del batch_bytes
        return ToyCheckpointReader(store, checkpoint)

    def checkpoint_writer(self, store: LogStore, plan: CheckpointPlan) -> ToyCheckpointWriter:
        return ToyCheckpointWriter(store, plan)

    def pointed_version(self, pointer: bytes) -> int | None:
        return int(pointer) if POINTER.fullmatch(pointer) else None

    def pointer_to(
        self, store: LogStore, checkpoint: Checkpoint, created_ms: int
    ) -> tuple[str, bytes]:
        del store, created_ms
        return self.pointer_path, str(checkpoint.version).encode()

    def decode_commit_infos(self, infos: Sequence[CommitInfo]) -> pl.DataFrame:
        return flatten_commit_infos(infos, WIRE)


def last_line(lines: bytes) -> bytes:
    """The last line of a checkpoint with these lines."""
    return b'{"lines":%d}' % lines.count(b"\n")


class ToyCheckpointReader(CheckpointReader):
    """The lines of one checkpoint."""

    def __init__(self, store: LogStore, checkpoint: Checkpoint) -> None:
        self.checkpoint, self._store = checkpoint, store

    def _decoded(self) -> Actions:
        path = self.checkpoint.paths[0]
        data = self._store.read(path)
        lines, _, last = data.removesuffix(b"\n").rpartition(b"\n")
        if last != last_line(lines + b"\n"):
            raise MalformedLogError(
                "the checkpoint is truncated",
                path=path,
                version=self.checkpoint.version,
                expected="the number of its lines on the last one",
                found=f"{len(data)} bytes",
            )
        return decode_lines([Blob(None, path, lines)], WIRE)

    def read_meta(self, kinds: Sequence[str] = CHECKPOINT_META) -> pl.DataFrame:
        return actions.of_type(self._decoded().meta, *kinds)

    def iter_files(
        self, columns: Sequence[str], kinds: Sequence[str] = actions.FILE_ACTIONS
    ) -> Iterator[pl.DataFrame]:
        rows = actions.of_type(self._decoded().files, *kinds)
        wanted = {"actionType", "path", *columns}
        yield rows.select(name for name in rows.columns if name in wanted)

    def files_read(self) -> tuple[str, ...]:
        return self.checkpoint.paths


class ToyCheckpointWriter(CheckpointWriter):
    """Collects the lines of one checkpoint, and writes them at the end."""

    columns: tuple[str, ...] = (
        "path",
        "partitionValues",
        "size",
        "modificationTime",
        "stats",
        "tags",
        "deletionTimestamp",
        "extendedFileMetadata",
    )

    def __init__(self, store: LogStore, plan: CheckpointPlan) -> None:
        self._store, self._plan = store, plan
        self._lines: list[bytes] = []
        self._path = f"{FOLDER}/.{uuid.uuid4().hex}.tmp"

    def write_meta(self, meta: pl.DataFrame) -> None:
        rows, _ = ordered_content(CommitContent(meta=meta), FIELDS)
        self._lines += encode_rows(rows, FIELDS)

    def write_files(self, files: pl.DataFrame) -> None:
        rows = conform_rows(files.with_columns(dataChange=pl.lit(value=False)), FIELDS)
        self._lines += encode_rows(rows, FIELDS)

    def finish(self) -> StagedCheckpoint:
        lines, version = b"".join(self._lines), self._plan.version
        data = lines + last_line(lines) + b"\n"
        self._store.put(self._path, data)
        target = f"{FOLDER}/{version:08d}.state"
        file = StagedFile(self._path, target, len(data), lines.count(b"\n"))
        checkpoint = Checkpoint(version, "state", 1, (self._path,), (len(data),))
        return StagedCheckpoint(checkpoint, (file,), (f"{FOLDER}/latest", str(version).encode()))

    def abandon(self) -> None:
        self._store.delete_many([self._path])
