"""Reading Delta checkpoints of every kind: classic, multi-part, V2 with sidecars or inline.

Parquet is read leaf by leaf, so that two columns of a million-file checkpoint cost two columns.
Sizes that a manifest records for its sidecars are never trusted; the files' own lengths are.

Source: Delta protocol, Checkpoints; Checkpoint Schema; Sidecar Files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog import actions, contract
from lakelog.errors import InvalidActionError, LakelogError, MalformedLogError, NotFoundError
from lakelog.formats.base import CHECKPOINT_META, STRUCT_STATISTICS, Actions, Checkpoint
from lakelog.formats.delta.names import SIDECAR_FOLDER
from lakelog.formats.delta.paths import decode_path, decode_paths, with_dv_id
from lakelog.formats.ndjson import Blob, decode_lines
from lakelog.formats.wire import Leaf, Node, Wire
from lakelog.storage import LogStore

_BATCH_ROWS = 1 << 16
_MANY_ROWS = 1 << 17
_META_READERS = min(4, os.cpu_count() or 1)
_FILE_READERS = min(2, os.cpu_count() or 1)
_DV_COLUMNS = ("dvStorageType", "dvPathOrInline", "dvOffset")
_WIRE = Wire.of("delta")
_MANIFEST_ONLY = ("sidecar", "checkpointMetadata")


class DeltaCheckpointReader:
    """Reads one checkpoint; see `lakelog.formats.base.CheckpointReader`.

    Raises:
        MalformedLogError: A file is damaged, or a part or sidecar is gone.
        InvalidActionError: A row lacks a required field, or a column has an impossible type.
    """

    def __init__(self, store: LogStore, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._store = store

    @cached_property
    def _json_manifest(self) -> Actions | None:
        if self.checkpoint.layout != "v2-json":
            return None
        (path,) = self.checkpoint.paths
        decoded = decode_lines([Blob(None, path, self._store.read(path))], _WIRE)
        own = decoded.meta.filter(pl.col("actionType") == "checkpointMetadata")
        bodies = actions.conform(own, ["extra"])["extra"]
        self._check_versions([orjson.loads(body or "{}").get("version") for body in bodies])
        return Actions(_decoded(decoded.files), decoded.meta)

    @cached_property
    def _manifest_rows(self) -> pl.DataFrame:
        """The sidecar and checkpointMetadata actions of a Parquet manifest."""
        path = self.checkpoint.paths[0]
        with self._parquet(path) as file:
            if _child(file.schema_arrow, "checkpointMetadata", "version") is None:
                versions = []
            else:
                leaf = _batches(file, ["checkpointMetadata.version"])
                found = [batch.column(0) for batch in leaf]
                versions = [v["version"] for rows in found for v in rows.drop_null().to_pylist()]
        self._check_versions(versions)
        return self._read_parquet_meta(path, _MANIFEST_ONLY)

    def _check_versions(self, versions: Sequence[object]) -> None:
        """A V2 manifest says once which version it is of: one that does not is cut short, doubled,
        or another version's under a wrong name (Delta protocol, V2 Spec).
        """
        if not versions and not self.checkpoint.layout.startswith("v2-"):
            return
        if list(versions) != [self.checkpoint.version]:
            raise MalformedLogError(
                "the checkpoint does not say, once, which version it is of",
                path=self.checkpoint.paths[0],
                version=self.checkpoint.version,
                expected=f"one checkpointMetadata of version {self.checkpoint.version}",
                found=", ".join(map(str, versions)) or None,
                hint="restore the file, or remove the checkpoint's files if its commits are there",
            )

    @cached_property
    def _sidecars(self) -> tuple[str, ...]:
        """Sidecar files, relative to the table root, in the manifest's order."""
        if self._json_manifest is not None:
            meta = self._json_manifest.meta
        elif self.checkpoint.layout == "multipart":
            return ()
        else:
            meta = self._manifest_rows
        if "path" not in meta.columns:
            return ()
        paths = meta.filter(pl.col("actionType") == "sidecar")["path"]
        return tuple(_sidecar_path(path) for path in paths)

    @cached_property
    def _parquet_files(self) -> tuple[str, ...]:
        """Parquet files that may hold file actions."""
        own = () if self._json_manifest is not None else self.checkpoint.paths
        return (*own, *self._sidecars)

    def files_read(self) -> tuple[str, ...]:
        """Manifest or parts, then sidecars."""
        return (*self.checkpoint.paths, *self._sidecars)

    def read_meta(self, kinds: Sequence[str] = CHECKPOINT_META) -> pl.DataFrame:
        """The non-file actions of the types in `kinds`, narrow."""
        if self._json_manifest is not None:
            meta = self._json_manifest.meta.filter(pl.col("actionType").is_in(list(kinds)))
        else:
            if self.checkpoint.layout != "multipart":
                _ = self._manifest_rows
            meta = actions.concat(self._read_parquet_meta(p, kinds) for p in self.checkpoint.paths)
        self._refuse_repeats(meta)
        return meta

    def _refuse_repeats(self, meta: pl.DataFrame) -> None:
        """A checkpoint is reconciled; one that is not is two checkpoints in one."""
        keys = actions.conform(
            meta.filter(pl.col("actionType").is_in(list(CHECKPOINT_META))),
            ("actionType", "appId", "domain"),
        )
        repeated = keys.filter(keys.is_duplicated())
        if repeated.height:
            raise InvalidActionError(
                "the checkpoint holds the same action twice, so it is not reconciled",
                path=self.checkpoint.paths[0],
                version=self.checkpoint.version,
                expected=f"one {repeated['actionType'][0]}",
                found=repeated.height,
            )

    def struct_statistics(self) -> pa.DataType | None:
        """Arrow type of ``add.stats_parsed``; None where no file has it."""
        for path in self._parquet_files:
            with self._parquet(path) as file:
                type_ = _child(file.schema_arrow, "add", STRUCT_STATISTICS)
            if type_ is not None and pa.types.is_struct(type_):
                return type_
        return None

    def iter_files(
        self, columns: Sequence[str], kinds: Sequence[str] = actions.FILE_ACTIONS
    ) -> Iterator[pl.DataFrame]:
        """File actions in batches of at most 65,536 rows, decoded one batch ahead.

        The leaves of a large file are decoded in two shares, side by side.

        Memory: two batches of the columns asked for.
        """
        if self._json_manifest is not None:
            inline = self._json_manifest.files
            if inline.height:
                yield inline.filter(pl.col("actionType").is_in(list(kinds)))
        with ThreadPoolExecutor(_FILE_READERS, thread_name_prefix="lakelog-parquet") as pool:
            for path in self._parquet_files:
                yield from self._iter_parquet(path, columns, kinds, pool)

    def _iter_parquet(
        self, path: str, columns: Sequence[str], kinds: Sequence[str], pool: ThreadPoolExecutor
    ) -> Iterator[pl.DataFrame]:
        with ExitStack() as stack:
            file = stack.enter_context(self._parquet(path))
            if path in self._sidecars:
                _refuse_other_actions(file, path)
            shares = _shares(file, _leaf_columns(file.schema_arrow, columns, kinds))
            files = [file, *(stack.enter_context(self._parquet(path, file)) for _ in shares[1:])]
            readers = [_parts(*pair, path) for pair in zip(files, shares, strict=False)]
            ahead = [pool.submit(next, reader, None) for reader in readers]
            while parts := [part for f in ahead if (part := f.result()) is not None]:
                if len(parts) < len(readers):
                    raise pa.ArrowInvalid("the columns disagree on how many rows there are")
                ahead = [pool.submit(next, reader, None) for reader in readers]
                for kind in kinds:
                    frame = _assemble([p[kind] for p in parts if kind in p], kind, columns, path)
                    if frame.height:
                        yield frame

    def _read_parquet_meta(self, path: str, kinds: Sequence[str]) -> pl.DataFrame:
        with self._parquet(path) as file:
            present = [
                (kind, _WIRE.wrappers[kind], total)
                for kind in kinds
                if kind in _WIRE.wrappers and (total := _count_rows(file, kind))
            ]
            shares = {kind: _leaf_shares(file, kind) for kind, _, _ in present}
        tasks = [(kind, leaves, total) for kind, _, total in present for leaves in shares[kind]]

        def read(task: tuple[str, list[str], int]) -> pa.StructArray:
            kind, leaves, total = task
            with self._parquet(path) as file:
                return _rows_of(file, kind, leaves, total)

        if len(tasks) <= len(present):
            found = [read(task) for task in tasks]
        else:
            with ThreadPoolExecutor(_META_READERS, thread_name_prefix="lakelog-parquet") as pool:
                found = list(pool.map(read, tasks))
        rows: dict[str, list[pa.StructArray]] = {}
        for (kind, _, _), array in zip(tasks, found, strict=True):
            rows.setdefault(kind, []).append(array)
        return actions.concat(
            _flatten_meta(rows[kind], kind, node, path) for kind, node, _ in present
        )

    @contextmanager
    def _parquet(self, path: str, twin: pq.ParquetFile | None = None) -> Iterator[pq.ParquetFile]:
        """Open a file; `twin` is the same one, opened before, and spares its footer's parsing."""
        source: BinaryIO | None = None
        try:
            source = self._store.open(path)
            footer = twin.metadata if twin is not None else None
            yield pq.ParquetFile(source, metadata=footer, page_checksum_verification=True)
        except NotFoundError as cause:
            raise MalformedLogError(
                "a file of the checkpoint is gone",
                path=path,
                version=self.checkpoint.version,
                hint="restore the file, or remove the checkpoint's files if its commits are there",
            ) from cause
        except LakelogError:
            raise
        except (pa.ArrowException, OSError, ValueError, MemoryError) as cause:
            raise MalformedLogError(
                f"the checkpoint cannot be read: {str(cause).splitlines()[0][:200]}",
                path=path,
                version=self.checkpoint.version,
                expected="whole Parquet",
                hint="restore the file, or remove the checkpoint's files if its commits are there",
            ) from cause
        finally:
            if source is not None:
                source.close()


def _refuse_other_actions(file: pq.ParquetFile, path: str) -> None:
    """A sidecar holds file actions only; a file that holds others was copied over it, and the
    sidecar's own actions would be missing without a word (Delta protocol, Sidecar Files).
    """
    for kind in (*CHECKPOINT_META, *_MANIFEST_ONLY):
        if file.schema_arrow.get_field_index(kind) >= 0 and _count_rows(file, kind):
            raise InvalidActionError(
                "a sidecar holds what is not a file action",
                path=path,
                expected="add and remove",
                found=kind,
            )


def _sidecar_path(path: str) -> str:
    """A sidecar always lies in the table's own folder, whatever stands before its name."""
    return f"{SIDECAR_FOLDER}/{decode_path(path).rsplit('/', 1)[-1]}"


def _child(schema: pa.Schema, *names: str) -> pa.DataType | None:
    """Type of a nested field, or None where there is none."""
    type_: pa.DataType = pa.struct(list(schema))
    for name in names:
        if not pa.types.is_struct(type_) or type_.get_field_index(name) < 0:
            return None
        type_ = type_.field(name).type
    return type_


def _leaf_columns(schema: pa.Schema, columns: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Parquet leaves that hold `columns` for the action types in `kinds`."""
    wanted = {"path", *columns}
    if any(column.startswith("dv") for column in wanted):
        wanted |= set(_DV_COLUMNS)  # a deletion vector is checked whole, whatever is asked of it
    leaves: list[str] = []
    for kind in kinds:
        for position, leaf in _WIRE.wrappers[kind].leaves((kind,)):
            if leaf.column in wanted and _child(schema, *position) is not None:
                leaves.append(".".join(position))
        parsed = kind == "add" and STRUCT_STATISTICS in wanted
        if parsed and _child(schema, kind, STRUCT_STATISTICS) is not None:
            leaves.append(f"{kind}.{STRUCT_STATISTICS}")
    return leaves


@dataclass(frozen=True)
class _Part:
    """Some columns of the rows of one action type in a batch.

    Attributes:
        valid: Which rows of the batch are of this type; None means all.
        height: How many are.
        series: Flattened columns; those of nulls are left out.
    """

    valid: pa.BooleanArray | None
    height: int
    series: dict[str, pl.Series]


def _shares(file: pq.ParquetFile, leaves: Sequence[str]) -> list[list[str]]:
    """Leaves in shares of about equal weight, each of which can be decoded on its own.

    The leaves of one field (a map, a deletion vector) stay together.
    """
    if not leaves:
        return []
    if file.metadata.num_rows <= _MANY_ROWS or _FILE_READERS < 2:
        return [list(leaves)]
    group = file.metadata.row_group(0)
    chunks = (group.column(i) for i in range(group.num_columns))
    weights = {c.path_in_schema: c.total_uncompressed_size for c in chunks}
    fields: dict[str, list[str]] = {}
    for leaf in leaves:
        fields.setdefault(".".join(leaf.split(".")[:2]), []).append(leaf)
    weighed = [
        (sum(w for path, w in weights.items() if f"{path}.".startswith(f"{field}.")), own)
        for field, own in fields.items()
    ]
    shares: list[list[str]] = [[] for _ in range(_FILE_READERS)]
    loads = [0] * _FILE_READERS
    for weight, own in sorted(weighed, key=lambda pair: -pair[0]):
        lightest = loads.index(min(loads))
        loads[lightest] += weight
        shares[lightest] += own
    return [share for share in shares if share]


def _parts(file: pq.ParquetFile, leaves: Sequence[str], path: str) -> Iterator[dict[str, _Part]]:
    """For each batch, the columns that `leaves` hold, by action type."""
    for batch in _batches(file, leaves):
        yield {
            kind: _part(batch.column(index), kind, path)
            for index, kind in enumerate(batch.schema.names)
        }


def _part(column: pa.StructArray, kind: str, path: str) -> _Part:
    if column.null_count == len(column):
        return _Part(column.is_valid(), 0, {})
    valid: pa.BooleanArray | None = None
    if column.null_count:
        valid = column.is_valid()
        column = column.filter(valid)
    series = _collect(column, _WIRE.wrappers[kind], path)
    if "path" in series:
        series["path"] = decode_paths(series["path"])
    if (index := column.type.get_field_index(STRUCT_STATISTICS)) >= 0:
        series[STRUCT_STATISTICS] = pl.Series(STRUCT_STATISTICS, column.flatten()[index])
    return _Part(valid, len(column), series)


def _assemble(parts: Sequence[_Part], kind: str, columns: Sequence[str], path: str) -> pl.DataFrame:
    """The parts of one batch side by side, with their paths' required columns and ``dvId``."""
    if not parts:
        return actions.empty(("path",))
    first, *others = parts
    for other in others:
        if not _same(first.valid, other.valid):
            raise pa.ArrowInvalid(f"the columns disagree on which rows are of type {kind}")
    if not first.height:
        return actions.empty(("path",))
    frame = pl.DataFrame({name: s for part in parts for name, s in part.series.items()})
    for required in _WIRE.required[kind]:
        if required == "path" or required in columns:
            _require(frame, required, kind, path)
    frame = with_dv_id(frame).with_columns(pl.lit(kind).alias("actionType"))
    unwanted = [c for c in _DV_COLUMNS if c in frame.columns and c not in columns]
    return frame.drop(unwanted)


def _same(one: pa.BooleanArray | None, other: pa.BooleanArray | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(one.equals(other))


def _decoded(files: pl.DataFrame) -> pl.DataFrame:
    """File actions with their paths decoded and ``dvId`` derived."""
    if "path" not in files.columns:
        return files
    return with_dv_id(files.with_columns(decode_paths(files["path"])))


def _require(frame: pl.DataFrame, column: str, kind: str, path: str) -> None:
    if column not in frame.columns or frame[column].null_count():
        raise InvalidActionError(
            f"{kind} lacks a required field", path=path, expected=column, found=None
        )


def _count_rows(file: pq.ParquetFile, kind: str) -> int:
    """How many rows there are of one non-file action type, by its quickest leaf."""
    leaves = [c for c in _columns(file) if c.path.split(".", 1)[0] == kind]
    if not leaves:
        return 0
    probe = min(leaves, key=lambda c: (c.max_repetition_level, c.physical_type == "BYTE_ARRAY"))
    return sum(len(b) - b.column(0).null_count for b in _batches(file, [probe.path]))


def _leaf_shares(file: pq.ParquetFile, kind: str) -> list[list[str]]:
    """The leaves of one action type in shares to read side by side.

    Among a million files the one row that has a value costs the decoding of every leaf's nulls.
    A map's or list's leaves stay together.
    """
    fields: dict[str, list[str]] = {}
    for column in _columns(file):
        parts = column.path.split(".")
        if parts[0] == kind:
            fields.setdefault(".".join(parts[:2]), []).append(column.path)
    every = list(fields.values())
    count = _META_READERS if file.metadata.num_rows > _MANY_ROWS else 1
    shares = (every[n::count] for n in range(count))
    return [[leaf for field in share for leaf in field] for share in shares if share]


def _rows_of(file: pq.ParquetFile, kind: str, leaves: Sequence[str], total: int) -> pa.StructArray:
    """The `total` rows of one non-file action type, with the fields that `leaves` hold.

    A checkpoint holds few of them among its files, often at its beginning; so reading stops once
    all have been seen.
    """
    found: list[pa.Array] = []
    missing = total
    left = file.metadata.num_rows
    whole = True
    for batch in _batches(file, leaves):
        # A short batch may have lost rows, so the reading goes on to where they are counted.
        whole &= len(batch) == min(_BATCH_ROWS, left)
        left -= len(batch)
        column = batch.column(0)
        if column.null_count < len(column):
            rows = column.filter(column.is_valid())
            found.append(rows)
            missing -= len(rows)
            if missing <= 0 and whole:
                break
    if missing:
        raise pa.ArrowInvalid(f"the leaves of {kind} disagree on its rows")
    return pa.concat_arrays(found)


def _batches(file: pq.ParquetFile, leaves: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Batches of `leaves`, checked to hold every row that the footer promises.

    Arrow's reader ends a damaged column early without a word, and its rows would be missing.
    """
    rows = 0
    for batch in file.iter_batches(_BATCH_ROWS, columns=leaves):
        batch.validate()
        rows += len(batch)
        yield batch
    if rows != file.metadata.num_rows:
        raise pa.ArrowInvalid(f"{rows} rows of {file.metadata.num_rows} can be read")


def _columns(file: pq.ParquetFile) -> Iterator[pq.ColumnSchema]:
    return (file.schema.column(i) for i in range(len(file.schema)))


def _flatten_meta(
    shares: Sequence[pa.StructArray], kind: str, node: Node, path: str
) -> pl.DataFrame:
    series: dict[str, pl.Series] = {}
    for rows in shares:
        series |= _collect(rows, node, path)
    nothing = pl.Series("extra", [None] * len(shares[0]), dtype=pl.String)
    frame = pl.DataFrame(series or nothing)
    for required in _WIRE.required.get(kind, ()):
        _require(frame, required, kind, path)
    return frame.with_columns(pl.lit(kind).alias("actionType"))


def _collect(column: pa.StructArray, node: Node, path: str) -> dict[str, pl.Series]:
    """The known leaves of a struct, by flattened column; columns of nulls are left out."""
    series: dict[str, pl.Series] = {}
    type_ = column.type
    if not pa.types.is_struct(type_):
        raise InvalidActionError(
            "a column of the checkpoint is not a struct", path=path, found=str(type_)
        )
    for index, child in enumerate(column.flatten()):
        known = node.fields.get(type_.field(index).name)
        if known is None or child.null_count == len(child):
            continue
        if isinstance(known, Node):
            series |= _collect(child, known, path)
        else:
            series[known.column] = _series(child, known, path)
    return series


def _series(array: pa.Array, leaf: Leaf, path: str) -> pl.Series:
    array.validate(full=True)  # Arrow does not check that Parquet's text is UTF-8
    expected = contract.to_polars(leaf.type)
    series = pl.Series(leaf.column, array)
    if series.dtype == expected:
        return series
    try:
        if _family(series.dtype) != _family(expected):
            # A cast would read "1" and cut 1.5: a number that nobody wrote.
            raise pl.exceptions.InvalidOperationError("another kind of value")
        return series.cast(expected)
    except pl.exceptions.PolarsError as cause:
        raise InvalidActionError(
            f"a column of the checkpoint has an impossible type: {leaf.column}",
            path=path,
            expected=str(expected),
            found=str(array.type),
        ) from cause


def _family(dtype: pl.DataType) -> str:
    """Types between which a cast changes no value."""
    if dtype.is_integer():
        return "whole number"
    if dtype.is_nested():
        return "nested"
    return "text" if dtype in (pl.String, pl.Binary, pl.Categorical, pl.Enum) else str(dtype)
