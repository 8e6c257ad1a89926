"""Reads Delta checkpoints of every layout: classic, multi-part, V2 with sidecars or inline.

Writers omit the columns of action types without rows, so only ``add`` of a classic checkpoint is
required; a column is also reported as missing if a column with an unknown name has all of its
fields. Missing statistics, tags, times and origins do not change the state.

Parquet is read leaf by leaf, so that two columns of a million-file checkpoint cost two columns.
Several files are read concurrently, and from a remote store all ranges of a file at once.

Source: Delta protocol, Checkpoint Schema; Protocol Evolution (version 3 and 7 list features). Delta
protocol, Checkpoints; Checkpoint Schema; Sidecar Files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import BinaryIO

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.checkpoint_sources import (
    CheckpointParquet,
    CheckpointSources,
    FileTotals,
    add_up,
)
from lakelog.dialects.delta.names import SIDECAR_FOLDER
from lakelog.dialects.delta.parquet import (
    FILE_READERS,
    META_READERS,
    ONE_EACH,
    FileActionReader,
    checked_batches,
    find_rows,
    flatten_meta,
    groups_with,
    is_marked_reconciled,
    leaf_shares,
    plain_type,
    readers_of,
    rows_of,
)
from lakelog.dialects.delta.partition_dictionaries import partition_leaves
from lakelog.dialects.delta.paths import decode_path, decode_with_texts
from lakelog.dialects.delta.recorded_counts import RecordedContent
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.log_content import (
    CHECKPOINT_META,
    STRUCT_STATISTICS,
    Actions,
    Checkpoint,
    CheckpointReader,
    FileCondition,
    RowGroups,
)
from lakelog.dialects.ndjson import Blob, decode_lines
from lakelog.dialects.parquet_footers import Bound, child_type, require_valid_chunks
from lakelog.dialects.row_group_records import (
    RECORD_KEY,
    BoundsType,
    is_replaced,
    parse_records,
    require_held,
    require_row_groups,
)
from lakelog.errors import InvalidActionError, MalformedLogError
from lakelog.lazy import cached_property
from lakelog.model import actions
from lakelog.model.actions import PATH_TEXT, with_dv_id
from lakelog.storage import LogStore
from lakelog.threads import Pool

_FIELDS = {
    "protocol": ("minReaderVersion", "minWriterVersion"),
    "metaData": ("id", "format", "schemaString", "partitionColumns", "configuration"),
    "txn": ("appId", "version"),
    "domainMetadata": ("domain", "configuration"),
    "add": ("path", "size"),
    "remove": ("path",),
    "sidecar": ("path", "sizeInBytes"),
    "checkpointMetadata": ("version",),
}
_VECTOR = ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")
_PARTITIONED = "partition columns"
_FILE_FIELDS = {"path", "dataChange"}
_OF_FEATURES = {
    "deletionVectors": ("add", "deletionVector"),
    _PARTITIONED: ("add", "partitionValues"),
}
_LISTS = (("minReaderVersion", 3, "readerFeatures"), ("minWriterVersion", 7, "writerFeatures"))


def _check_columns(
    schema: pa.Schema, path: str, layout: str, features: Iterable[str] = (), *, sidecar: bool
) -> None:
    """Raise for a file of a checkpoint that lacks a column."""
    present = [name for name in _FIELDS if schema.get_field_index(name) >= 0]
    wanted = [
        *((name,) for name in _renamed(schema, present)),
        *((("add",),) if layout == "classic" and not sidecar else ()),
        *((name, field) for name in present for field in _FIELDS[name]),
        *(
            (name, "deletionVector", field)
            for name in ("add", "remove")
            if child_type(schema, name, "deletionVector") is not None
            for field in _VECTOR
        ),
        *(names for f in features if (names := _OF_FEATURES.get(f)) and names[0] in present),
    ]
    for names in wanted:
        if child_type(schema, *names) is None:
            raise InvalidActionError(
                "a column of the checkpoint is missing",
                path=path,
                expected=".".join(names),
                found=None,
                hint="restore the file, or remove the checkpoint's files if its commits exist",
            )


def _require_actions(file: pq.ParquetFile, path: str) -> None:
    """Raise if the footer shows rows without an action: the file has replaced another."""
    schema, rows = file.schema_arrow, file.metadata.num_rows
    present = [name for name in _FIELDS if schema.get_field_index(name) >= 0]
    if present and {*schema.names} - {*present}:
        return  # they may be of an unknown type
    wanted = {f"{name}.{_FIELDS[name][0]}" for name in present}
    leaves = [i for i in range(len(file.schema)) if file.schema.column(i).path in wanted]
    groups = range(file.num_row_groups)
    require_valid_chunks(file.metadata, groups, leaves)
    held = 0
    for group in map(file.metadata.row_group, groups):
        for statistics in (group.column(leaf).statistics for leaf in leaves):
            if statistics is None or not statistics.has_null_count:
                return
            held += group.num_rows - statistics.null_count
    if held < rows:
        raise InvalidActionError(
            "a file of the checkpoint has rows without an action",
            path=path,
            expected=f"{rows} actions",
            found=f"{held} actions",
            hint="restore the file, or remove the checkpoint's files if its commits exist",
        )


def _renamed(schema: pa.Schema, present: Sequence[str]) -> Iterator[str]:
    """Action types without a column, where a column of another name has their fields."""
    known = {*present, "cdc", "commitInfo"}
    unknown = [f.type for f in schema if f.name not in known and pa.types.is_struct(f.type)]
    held = [{type_.field(n).name for n in range(type_.num_fields)} for type_ in unknown]
    for name, fields in _FIELDS.items():
        wanted = _FILE_FIELDS if name == "remove" else {*fields}
        # A single common field could be a coincidence.
        if name not in present and len(wanted) > 1 and any(names >= wanted for names in held):
            yield name


def _features_of(meta: pl.DataFrame, path: str) -> frozenset[str] | None:
    """Table features, and whether the table is partitioned; None if `meta` has no protocol."""
    rows = actions.of_type(meta, "protocol")
    if not rows.height:
        return None
    versions = [version for version, _, _ in _LISTS]
    names = [features for _, _, features in _LISTS]
    row = actions.conform(rows, (*versions, *names)).row(-1, named=True)
    for version, least, features in _LISTS:
        if (row[version] or 0) >= least and row[features] is None:
            raise InvalidActionError(
                f"the checkpoint's protocol has {version} {row[version]} and no {features}",
                path=path,
                expected=f"protocol.{features}",
                found=None,
                hint="restore the file, or remove the checkpoint's files if its commits exist",
            )
    found = frozenset(feature for name in names for feature in row[name] or ())
    metadata = actions.conform(actions.of_type(meta, "metaData"), ("partitionColumns",))
    is_partitioned = any(columns for columns in metadata["partitionColumns"].to_list())
    return found | {_PARTITIONED} if is_partitioned else found


_WIRE = Wire.of("delta")
_MANIFEST_ONLY = ("sidecar", "checkpointMetadata")
_OPEN_FILES = 16  # number of files open at a time
_ROWS_AHEAD = 1 << 17  # number of rows in row groups of several files


class DeltaCheckpointReader(CheckpointReader):
    """Reads one checkpoint; see `lakelog.dialects.log_content.CheckpointReader`."""

    def __init__(
        self, store: LogStore, checkpoint: Checkpoint, batch_bytes: int | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self._batch_bytes = batch_bytes
        self._store = store
        self._sources = CheckpointSources(store, checkpoint, batch_bytes, _bounds_type)
        self._features: frozenset[str] | None = None  # features of the protocol, once it was read
        self._sidecar_actions: int | None = (
            None  # number of actions in all sidecars, from the manifest
        )
        self._counts: dict[str, int] = {}  # rows of each file that was opened for its file actions
        self._recorded = RecordedContent(store, checkpoint)

    @cached_property
    def _json_manifest(self) -> Actions | None:
        if self.checkpoint.layout != "v2-json":
            return None
        from lakelog.dialects.delta.checkpoint_manifest import require_whole

        (path,) = self.checkpoint.paths
        data = self._store.read(path)
        decoded = decode_lines([Blob(None, path, data)], _WIRE)
        own = actions.of_type(decoded.meta, "checkpointMetadata")
        bodies = actions.conform(own, ["extra"])["extra"]
        self._check_versions([orjson.loads(body or "{}").get("version") for body in bodies])
        lines = data.count(b"\n")
        rows = sum(bool(line.strip()) for line in data.split(b"\n"))
        self._sources.totals[path] = FileTotals(rows, len(data))
        self._sidecar_actions = require_whole(
            decoded.meta, lines - 1, path, self.checkpoint.version
        )
        return Actions(_decoded(decoded.files), decoded.meta)

    @cached_property
    def _manifest_rows(self) -> pl.DataFrame:
        """The sidecar and checkpointMetadata actions of a Parquet manifest."""
        from lakelog.dialects.delta.checkpoint_manifest import require_whole

        path = self.checkpoint.paths[0]
        with self._sources.opened(path) as (source, file):
            if self.checkpoint.layout.startswith("v2-"):
                self._require_columns(path, file)
            if child_type(file.schema_arrow, "checkpointMetadata", "version") is None:
                versions = []
            else:
                leaf = checked_batches(file, ["checkpointMetadata.version"])
                found = [batch.column(0) for batch in leaf]
                versions = [v["version"] for rows in found for v in rows.drop_null().to_pylist()]
            self._check_versions(versions)
            meta = self._meta_of(path, source, file, _MANIFEST_ONLY)
            others = file.metadata.num_rows - 1
            self._sidecar_actions = require_whole(meta, others, path, self.checkpoint.version)
            return meta

    def _check_versions(self, versions: Sequence[object]) -> None:
        """Raise unless a V2 manifest records its version once (Delta protocol, V2 Spec)."""
        if not versions and not self.checkpoint.layout.startswith("v2-"):
            return
        if list(versions) != [self.checkpoint.version]:
            raise MalformedLogError(
                "the checkpoint does not record its version exactly once",
                path=self.checkpoint.paths[0],
                version=self.checkpoint.version,
                expected=f"one checkpointMetadata with version {self.checkpoint.version}",
                found=", ".join(map(str, versions)) or None,
                hint="restore the file, or remove the checkpoint's files if its commits exist",
            )

    @cached_property
    def _sidecars(self) -> tuple[str, ...]:
        """Sidecar files, relative to the table root, in the manifest's order."""
        if "path" not in self._manifest_sidecars.columns:
            return ()
        rows = actions.conform(self._manifest_sidecars, ("path", "size"))
        paths = tuple(_sidecar_path(path) for path in rows["path"])
        self._sources.expect(dict(zip(paths, rows["size"].fill_null(0), strict=True)))
        return paths

    @cached_property
    def _manifest_sidecars(self) -> pl.DataFrame:
        """The sidecar actions of the manifest."""
        if self._json_manifest is not None:
            meta = self._json_manifest.meta
        elif self.checkpoint.layout == "multipart":
            return actions.concat([])
        else:
            meta = self._manifest_rows
        return actions.of_type(meta, "sidecar")

    @cached_property
    def _sidecar_tags(self) -> dict[str, dict[str, str | None]]:
        """The tags of each sidecar's action."""
        rows = actions.conform(self._manifest_sidecars, ("tags",))
        tags = (dict(found or {}) for found in rows["tags"].to_list())
        return dict(zip(self._sidecars, tags, strict=True))

    @cached_property
    def _parquet_files(self) -> tuple[str, ...]:
        """Parquet files that may contain file actions."""
        own = () if self._json_manifest is not None else self.checkpoint.paths
        return (*own, *self._sidecars)

    def files_read(self) -> tuple[str, ...]:
        """Manifest or parts, then sidecars."""
        return (*self.checkpoint.paths, *self._sidecars)

    def read_meta(self, kinds: Sequence[str] = CHECKPOINT_META) -> pl.DataFrame:
        """The non-file actions of the types in `kinds`, narrow."""
        if self._json_manifest is not None:
            meta = actions.of_type(self._json_manifest.meta, *kinds)
            features = _features_of(self._json_manifest.meta, self.checkpoint.paths[0])
            self._features = frozenset() if features is None else features
        else:
            if self.checkpoint.layout != "multipart":
                _ = self._manifest_rows
            meta = self._read_parquet_meta(kinds)
        self._refuse_repeats(meta)
        is_read = self.checkpoint.recorded is not None and not self._sidecars
        if is_read and _is_whole_state(meta, kinds):  # otherwise more files would have to be opened
            self._recorded.require_actions(add_up(self._sources.totals, self.checkpoint.paths))
        self._recorded.require_others(meta, kinds)
        return meta

    def _refuse_repeats(self, meta: pl.DataFrame) -> None:
        """Raise for a checkpoint that is not reconciled: it is a mix of two checkpoints."""
        keys = actions.conform(
            actions.of_type(meta, *CHECKPOINT_META), ("actionType", "appId", "domain")
        )
        if (again := keys.is_duplicated()).any():
            repeated = keys.filter(again)
            raise self._repeated(repeated["actionType"][0], repeated.height)

    def _repeated(self, kind: str, rows: int) -> InvalidActionError:
        return InvalidActionError(
            "the checkpoint contains the same action twice, so it is not reconciled",
            path=self.checkpoint.paths[0],
            version=self.checkpoint.version,
            expected=f"one {kind}",
            found=rows,
        )

    def is_reconciled(self) -> bool:
        """Whether lakelog wrote the checkpoint as one file, and compared all of its actions."""
        if self.checkpoint.layout != "classic":
            return False
        with self._sources.parquet(self.checkpoint.paths[0]) as file:
            return is_marked_reconciled(file, self.checkpoint.version)

    def struct_statistics(self) -> pa.DataType | None:
        """Arrow type of ``add.stats_parsed``; None if no file has it."""
        for path in self._parquet_files:
            with self._sources.parquet(path) as file:
                type_ = child_type(file.schema_arrow, "add", STRUCT_STATISTICS)
            if type_ is not None and pa.types.is_struct(type_):
                return plain_type(type_)
        return None

    def row_groups(self) -> tuple[RowGroups, ...]:
        """See `SkippingReader`; the row groups for which lakelog recorded bounds."""
        if self._json_manifest is not None and self._json_manifest.files.height:
            return ()
        by_manifest = self._sidecar_row_groups()
        found: list[RowGroups] = []
        for path in self._parquet_files:
            if path in by_manifest:
                found.append(by_manifest[path])
                continue
            with self._sources.parquet(path) as file:
                if file.record is None or "bounds" not in file.record.columns:
                    return ()
                found.append(RowGroups(path, file.size_bytes, file.record))
        self._require_sidecar_actions(
            sum(int(g.frame["rows"].sum()) for g in found if g.path in self._sidecars)
        )
        adds = sum(int(groups.frame["adds"].sum()) for groups in found)
        rows = {g.path: FileTotals(int(g.frame["rows"].sum()), g.size_bytes) for g in found}
        held = add_up(self._sources.totals | rows, self.files_read())
        self._recorded.require_files(adds, held)
        self._recorded.require_actions(held)
        return tuple(found)

    def _sidecar_row_groups(self) -> dict[str, RowGroups]:
        """The row groups of sidecars, if the manifest records all; opens one, for the schema."""
        if not self._sidecars:
            return {}
        from lakelog.dialects.delta.sidecar_fingerprints import Fingerprint

        tags = self._sidecar_tags
        fingerprints = [Fingerprint.of_tags(found) for found in tags.values()]
        shapes = {None if found is None else found.shape for found in fingerprints}
        if len(shapes) > 1 or None in shapes:
            return {}
        records = {path: str(found.get(RECORD_KEY)) for path, found in tags.items()}
        with self._sources.parquet(self._sidecars[0]) as file:
            frames = parse_records(records, _bounds_type(file.schema_arrow)) or {}
        rows = actions.conform(self._manifest_sidecars, ("size",))
        sizes = dict(zip(self._sidecars, rows["size"].fill_null(0), strict=True))
        return {path: RowGroups(path, sizes[path], frame) for path, frame in frames.items()}

    def iter_row_groups(
        self, columns: Sequence[str], chosen: Iterable[tuple[RowGroups, Sequence[int]]], kind: str
    ) -> Iterator[pl.DataFrame]:
        """See `SkippingReader`. Memory: as `iter_files`, or up to about 131,072 rows of several
        files.
        """
        wanted = list(chosen)
        if len(wanted) <= 1 or self._batch_bytes is not None:
            with self._pool() as pool:
                for recorded, groups in wanted:
                    yield from self._read_row_groups(columns, recorded, groups, kind, pool)
            return

        def read(recorded: RowGroups, groups: Sequence[int]) -> list[pl.DataFrame]:
            return list(self._read_row_groups(columns, recorded, groups, kind, None))

        ahead: deque[tuple[int, Future[list[pl.DataFrame]]]] = deque()
        with self._pool(min(len(wanted), _OPEN_FILES)) as pool:
            for recorded, groups in wanted:
                rows = int(recorded.frame["rows"].gather(list(groups)).sum())
                while ahead and rows + sum(held for held, _ in ahead) > _ROWS_AHEAD:
                    yield from ahead.popleft()[1].result()
                ahead.append((rows, pool.submit(read, recorded, groups)))
            while ahead:
                yield from ahead.popleft()[1].result()

    def _read_row_groups(
        self,
        columns: Sequence[str],
        recorded: RowGroups,
        groups: Sequence[int],
        kind: str,
        pool: Pool | None,
    ) -> Iterator[pl.DataFrame]:
        """File actions of some row groups of one file, in the calling thread without a `pool`."""
        held = 0
        rows = int(recorded.frame["rows"].gather(list(groups)).sum())
        with self._file_actions(recorded.path, pool, rows=rows) as (file, reader):
            require_row_groups(recorded, file, self.checkpoint.version)
            for _, frame in reader.read(columns, (kind,), groups):
                held += frame.height
                yield frame
        require_held(recorded, groups, kind, held, self.checkpoint.version)

    def iter_matching(
        self,
        columns: Sequence[str],
        condition: FileCondition,
        seen: Callable[[pl.DataFrame], None],
    ) -> Iterator[pl.DataFrame]:
        """See `MatchingReader`. Memory: matches of two row groups, 32 bytes per other file."""
        heights: list[int] = []

        def count(frame: pl.DataFrame) -> None:
            heights.append(frame.height)
            seen(frame)

        by_values = condition.columns == ("partitionValues",) and self._batch_bytes is None
        inline = self._inline(columns, ("add",))
        if inline.height:
            count(inline)
            yield inline.filter(condition.may_match(inline))
        with self._pool() as pool:
            self._recorded.load(pool)
            for path in self._parquet_files:
                with self._file_actions(path, pool, by_values=by_values) as (file, reader):
                    groups = groups_with(file, ("add",), file.record)
                    yield from reader.read_matching(columns, condition, groups, count)
        self._require_sidecar_actions(self._sidecar_rows)
        held = add_up(self._sources.totals, self.files_read())
        self._recorded.require_files(sum(heights), held)
        self._recorded.require_actions(held)

    def iter_files(
        self, columns: Sequence[str], kinds: Sequence[str] = actions.FILE_ACTIONS
    ) -> Iterator[pl.DataFrame]:
        """File actions in batches of up to 65,536 rows, decoded one ahead. Memory: two batches."""
        adds = size_bytes = 0
        inline = self._inline(columns, kinds)
        if inline.height:
            own = actions.of_type(inline, "add")
            adds, size_bytes = own.height, _sizes(own)
            yield inline
        with self._pool() as pool:
            self._recorded.load(pool)
            for path in self._parquet_files:
                with self._file_actions(path, pool) as (file, reader):
                    groups = groups_with(file, kinds, file.record)
                    for kind, frame in reader.read(columns, kinds, groups):
                        if kind == "add":
                            adds += frame.height
                            size_bytes += _sizes(frame)
                        yield frame
        self._require_sidecar_actions(self._sidecar_rows)
        held = add_up(self._sources.totals, self.files_read())
        if "add" in kinds:
            self._recorded.require_files(adds, held, size_bytes if "size" in columns else None)
        self._recorded.require_actions(held)

    @property
    def _sidecar_rows(self) -> int:
        """Number of rows of all sidecars, once each was opened for its file actions."""
        return sum(self._counts.get(path, 0) for path in self._sidecars)

    def _inline(self, columns: Sequence[str], kinds: Sequence[str]) -> pl.DataFrame:
        """File actions in a JSON manifest."""
        if self._json_manifest is None:
            return pl.DataFrame()
        inline = self._json_manifest.files
        if PATH_TEXT not in columns:
            inline = inline.drop(PATH_TEXT, strict=False)
        return actions.of_type(inline, *kinds)

    def _require_sidecar_actions(self, held: int) -> None:
        """Compare the number of rows of all sidecars with the manifest."""
        if self._sidecars and self._sidecar_actions not in {None, held}:
            raise MalformedLogError(
                "the number of actions in the sidecars differs from their manifest",
                path=self.checkpoint.paths[0],
                version=self.checkpoint.version,
                expected=f"sidecarNumActions {self._sidecar_actions}",
                found=held,
                hint="restore them, or remove the checkpoint's files if its commits exist",
            )

    @staticmethod
    def _pool(threads: int = FILE_READERS) -> Pool:
        return Pool(threads, thread_name_prefix="lakelog-parquet")

    @contextmanager
    def _file_actions(
        self,
        path: str,
        pool: Pool | None,
        *,
        rows: int | None = None,
        by_values: bool = False,
    ) -> Iterator[tuple[CheckpointParquet, FileActionReader]]:
        """Open a file for `rows` of its file actions, `by_values` to match partition values."""
        with ExitStack() as stack:
            source, file = stack.enter_context(self._sources.opened(path))
            bound = Bound(file.metadata, file.size_bytes)
            if path in self._sidecars:
                refuse_other_actions(file, path)
                self._require_recorded(file, path)
                if self._features is None:
                    self.read_meta(("protocol", "metaData"))
            self._require_columns(path, file)
            if path not in self._counts:
                if file.record is None:
                    _require_actions(file, path)
                self._counts[path] = file.metadata.num_rows
            twin = partial(self._sources.twin, path, source, file)
            readers = readers_of(file.metadata.num_rows if rows is None else rows) if pool else 1
            files = [file, *(stack.enter_context(twin()) for _ in range(1, readers))]
            encoded: list[pq.ParquetFile | None] = [None] * len(files)
            if by_values and (leaves := partition_leaves(file)):
                encoded = [stack.enter_context(twin(leaves)) for _ in files]
            yield (
                file,
                FileActionReader(
                    files, encoded, path, bound, pool, self._batch_bytes, file.prefetch
                ),
            )

    def _read_parquet_meta(self, kinds: Sequence[str]) -> pl.DataFrame:
        """The non-file actions of the types in `kinds`, of all parts, which are opened at once."""
        paths = self.checkpoint.paths

        def read(path: str) -> tuple[pa.Schema, pl.DataFrame]:
            with self._sources.opened(path) as (source, file):
                self._require_columns(path, file)
                return file.schema_arrow, self._meta_of(path, source, file, kinds)

        if len(paths) == 1:
            found = [read(path) for path in paths]
        else:
            with self._pool(min(len(paths), _OPEN_FILES)) as pool:
                found = list(pool.map(read, paths))
        for path, (_, meta) in zip(paths, found, strict=True):
            if (features := _features_of(meta, path)) is not None:
                self._features = features
        for path, (schema, _) in zip(paths, found, strict=True):
            _check_columns(
                schema, path, self.checkpoint.layout, self._features or (), sidecar=False
            )
        return actions.concat(meta for _, meta in found)

    def _require_recorded(self, file: pq.ParquetFile, path: str) -> None:
        """Raise for a sidecar that is not the one that its manifest describes."""
        if is_replaced(file, path, self._sidecar_tags[path].get(RECORD_KEY)):
            raise MalformedLogError(
                "a sidecar was replaced by another file",
                path=path,
                version=self.checkpoint.version,
                expected=f"{RECORD_KEY} as in the manifest",
                found="another record, or none",
                hint="restore it, or remove the checkpoint's files if its commits exist",
            )

    def _require_columns(self, path: str, file: pq.ParquetFile) -> None:
        sidecar = path not in self.checkpoint.paths
        features = self._features or ()
        layout = self.checkpoint.layout
        _check_columns(file.schema_arrow, path, layout, features, sidecar=sidecar)

    def _meta_of(
        self, path: str, source: BinaryIO, first: CheckpointParquet, kinds: Sequence[str]
    ) -> pl.DataFrame:
        known = [kind for kind in kinds if kind in _WIRE.wrappers]
        Bound(first.metadata, first.size_bytes)
        held = find_rows(first, known, first.record, first.prefetch)
        for kind in ONE_EACH:
            if (count := sum(held.get(kind, {}).values())) > 1:
                raise self._repeated(kind, count)
        present = [(k, _WIRE.wrappers[k], held[k]) for k in known if k in held]
        shares = {kind: leaf_shares(first, kind, groups) for kind, _, groups in present}
        tasks = [(kind, leaves, groups) for kind, _, groups in present for leaves in shares[kind]]

        def read(task: tuple[str, list[str], dict[int, int]]) -> pa.StructArray:
            kind, leaves, groups = task
            with self._sources.twin(path, source, first) as file:
                return rows_of(file, kind, leaves, groups)

        if len(tasks) <= len(present):
            found = [rows_of(first, *task) for task in tasks]
        else:
            with Pool(META_READERS, thread_name_prefix="lakelog-parquet") as pool:
                found = list(pool.map(read, tasks))
        rows: dict[str, list[pa.StructArray]] = {}
        for (kind, _, _), array in zip(tasks, found, strict=True):
            rows.setdefault(kind, []).append(array)
        return actions.concat(
            flatten_meta(rows[kind], kind, node, path) for kind, node, _ in present
        )


def refuse_other_actions(file: CheckpointParquet, path: str) -> None:
    """Raise for a sidecar with other than file actions (Delta protocol, Sidecar Files)."""
    for kind in find_rows(file, (*CHECKPOINT_META, *_MANIFEST_ONLY), file.record):
        raise InvalidActionError(
            "a sidecar contains an action that is not a file action",
            path=path,
            expected="add and remove",
            found=kind,
        )


def _is_whole_state(meta: pl.DataFrame, kinds: Sequence[str]) -> bool:
    """Whether protocol and metaData exist, if they were read; others raise later, by name."""
    return all(actions.of_type(meta, kind).height for kind in ONE_EACH if kind in kinds)


def _sizes(files: pl.DataFrame) -> int:
    """Total size of the data files in bytes, if their column was read."""
    if "size" not in files.columns:
        return 0
    return int(files["size"].cast(pl.Int128).sum())


def _sidecar_path(path: str) -> str:
    """Path of a sidecar: always in the table's own folder, whatever precedes its name."""
    return f"{SIDECAR_FOLDER}/{decode_path(path).rsplit('/', 1)[-1]}"


def _decoded(files: pl.DataFrame) -> pl.DataFrame:
    """File actions with their paths decoded, `PATH_TEXT`, and ``dvId`` derived."""
    if "path" not in files.columns:
        return files
    return with_dv_id(decode_with_texts(files))


def _bounds_type(schema: pa.Schema) -> BoundsType:
    """See `lakelog.dialects.delta.typed_bounds`."""
    from lakelog.dialects.delta.typed_bounds import bounds_type

    return lambda _: bounds_type(schema)
