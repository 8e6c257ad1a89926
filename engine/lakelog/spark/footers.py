"""Reads the footers of a checkpoint: whether it is complete, its size, and whether Spark can read
it directly.

Spark matches column names case-insensitively, accepts similar types, and may skip files silently.
If that could change the result, there is an *obstacle*, and lakelog's own readers decode the
checkpoint. A missing or invalid part is damage.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.checkpoint_sources import (
    CheckpointParquet,
    FileTotals,
    unreadable_is_malformed,
)
from lakelog.dialects.delta.checkpoint import refuse_other_actions
from lakelog.dialects.delta.checkpoint_schema import PARTITIONS_PARSED, spark_schema
from lakelog.dialects.delta.recorded_counts import RecordedContent
from lakelog.dialects.delta.sidecar_fingerprints import count_values
from lakelog.dialects.indextables.flattened_writer import FOOTER_KEY
from lakelog.dialects.json_layout import Leaf, Node, Wire
from lakelog.dialects.log_content import STRUCT_STATISTICS, Checkpoint
from lakelog.dialects.ndjson import Blob, decode_lines
from lakelog.dialects.parquet_files import open_parquet
from lakelog.dialects.parquet_footers import child_type, require_valid_chunks
from lakelog.errors import InternalError
from lakelog.log.base_checkpoint import broken_checkpoint
from lakelog.log.state import State
from lakelog.model import contract
from lakelog.model.actions import FILE_ACTIONS, of_type
from lakelog.storage import LogStore

_READERS = 16
_WIRE = Wire.of("delta")
_DERIVED = frozenset((("add", STRUCT_STATISTICS), ("add", PARTITIONS_PARSED)))
_NO_PARQUET = ("json", "json-multipart", "avro-state")
_TEXT_OF_ACTION = 150  # approximate text per action of a state, in bytes
_HIDDEN = ("_", ".")
_IN_HADOOP = {"s3": "s3a", "s3a": "s3a", "abfs": "abfs", "abfss": "abfss", "gs": "gs"}
_GLOB = re.compile(r"([\[\]{}*?\\])")
_PLAIN_LEAVES = frozenset(
    contract.to_arrow(contract.Primitive(name))
    for name in "string long integer short byte boolean".split()
)
"""Types whose JSON in Spark equals that of `lakelog.skipping.statistics`. Spark truncates the
maximum of times, and a setting of the session changes the calendar of dates and times.
"""

_KINDS = tuple(f"{kind}." for kind in FILE_ACTIONS)
_ALWAYS_READ = frozenset((("add", "path"), ("add", "size")))
_PLAIN_EXTRA = frozenset((pa.int32(), pa.int64(), pa.bool_(), pa.string()))

Path = tuple[str, ...]


@dataclass(frozen=True)
class Footers:
    """Facts from a checkpoint's footers. `obstacle` is why Spark cannot read it as lakelog does;
    `unknown` are fields with values that the contract lacks (they become ``extra``); `absent` are
    fields without values; `may_repeat`: two files may be copies.
    """

    paths: tuple[str, ...] = ()
    rows: int = 0
    size_bytes: int = 0
    obstacle: str | None = None
    unknown: tuple[tuple[Path, pa.DataType], ...] = ()
    statistics: pa.StructType | None = None
    plain_statistics: bool = True
    absent: frozenset[Path] = frozenset()
    may_repeat: bool = False


@dataclass(frozen=True)
class _File:
    """One file's footer."""

    path: str
    size_bytes: int
    schema: pa.Schema
    footer: pq.FileMetaData

    def columns(self) -> Iterator[dict[str, pq.ColumnChunkMetaData]]:
        """The column chunks of each row group, by name."""
        for group in map(self.footer.row_group, range(self.footer.num_row_groups)):
            chunks = (group.column(index) for index in range(group.num_columns))
            yield {chunk.path_in_schema: chunk for chunk in chunks}


def read_footers(state: State) -> Footers:
    """Read the footers of a state's checkpoint."""
    if state.base is None:
        return Footers()
    checkpoint, store = state.base.checkpoint, state.log.store
    with broken_checkpoint(checkpoint):
        if checkpoint.layout in _NO_PARQUET:
            size = sum(checkpoint.sizes_bytes)
            obstacle = f"Spark cannot read a checkpoint of this layout ({checkpoint.layout})"
            return Footers(rows=size // _TEXT_OF_ACTION, size_bytes=size, obstacle=obstacle)
        every, own = state.base.files, len(checkpoint.paths)
        if checkpoint.layout == "flattened":
            return _survey(_open_all(store, checkpoint, checkpoint.paths, ()), _flattened_obstacle)
        inline = adds = lines = size_bytes = 0
        if checkpoint.layout == "v2-json":
            data = store.read(every[0])
            lines, size_bytes = sum(bool(line.strip()) for line in data.split(b"\n")), len(data)
            own_files = decode_lines([Blob(None, every[0], data)], _WIRE).files
            inline, adds = own_files.height, of_type(own_files, "add").height
            every = every[1:]
            own = 0
        files = _open_all(store, checkpoint, every, every[own:])
        recorded = RecordedContent(store, checkpoint)
        held = FileTotals(
            lines + sum(file.footer.num_rows for file in files),
            size_bytes + sum(file.size_bytes for file in files),
        )
        recorded.require_actions(held)
        counts = [count_values(file.columns(), "add.path")[0] for file in files]
        if None not in counts:
            recorded.require_files(adds + sum(count for count in counts if count is not None), held)
        found = _survey(files, _delta_obstacle)
    if inline:
        obstacle = "a JSON manifest contains file actions"
        found = replace(found, rows=found.rows + inline, obstacle=obstacle)
    return found


def spark_path(root: str, path: str) -> str | None:
    r"""A file's path for Spark; None if Spark cannot address it or ignores such names.

    >>> print(spark_path("/data/t[1]", "_delta_log/x.parquet"))
    file:/data/t\[1\]/_delta_log/x.parquet
    """
    if path.rsplit("/", 1)[-1].startswith(_HIDDEN):
        return None
    protocol, found, rest = root.partition("://")
    if not found:
        whole = f"file:{root}/{path}"
    elif protocol in _IN_HADOOP:
        whole = f"{_IN_HADOOP[protocol]}://{rest.rstrip('/')}/{path}"
    else:
        return None
    return _GLOB.sub(r"\\\1", whole)


def _open_all(
    store: LogStore, checkpoint: Checkpoint, paths: Sequence[str], sidecars: Sequence[str]
) -> list[_File]:
    sizes = checkpoint.size_bytes_by_path
    sidecar_paths = frozenset(sidecars)

    def read(path: str) -> _File:
        with (
            unreadable_is_malformed(path, checkpoint.version),
            store.open(path, sizes.get(path)) as source,
        ):
            file: CheckpointParquet = open_parquet(source, CheckpointParquet)
            footer = file.metadata
            require_valid_chunks(footer, range(footer.num_row_groups), range(footer.num_columns))
            if path in sidecar_paths:
                refuse_other_actions(file, path)
            return _File(path, source.seek(0, os.SEEK_END), file.schema_arrow, footer)

    with ThreadPoolExecutor(_READERS, thread_name_prefix="lakelog-footers") as pool:
        return list(pool.map(read, paths))


def _survey(files: Sequence[_File], obstacle_of: Callable[[_File], str | None]) -> Footers:
    rows = sum(file.footer.num_rows for file in files)
    size = sum(file.size_bytes for file in files)
    found = Footers(tuple(file.path for file in files), rows, size)
    for file in files:
        obstacle = obstacle_of(file)
        if obstacle is not None:
            return replace(found, obstacle=f"{file.path}: {obstacle}")
    if obstacle_of is _flattened_obstacle:
        return replace(found, may_repeat=_look_alike(files))
    unknown: dict[Path, pa.DataType] = {}
    statistics: pa.DataType | None = None
    for file in files:
        for position, type_ in _unknown_fields(file):
            if unknown.setdefault(position, type_) != type_ or type_ not in _PLAIN_EXTRA:
                obstacle = f"{file.path}: {'.'.join(position)} is an unknown field"
                return replace(found, obstacle=obstacle)
        type_ = child_type(file.schema, "add", STRUCT_STATISTICS)
        if type_ is None or not pa.types.is_struct(type_) or _text_is_everywhere(file):
            continue
        if statistics is not None and not _spark_equal(statistics, type_):
            return replace(found, obstacle="its files have different types of statistics")
        if not _spark_reads(type_):
            return replace(found, obstacle="Spark cannot read its typed statistics")
        statistics = type_
    return replace(
        found,
        unknown=tuple(unknown.items()),
        statistics=statistics,
        plain_statistics=statistics is None or _is_plain(statistics),
        absent=_absent(files),
        may_repeat=_look_alike(files),
    )


def _delta_obstacle(file: _File) -> str | None:
    for kind in FILE_ACTIONS:
        type_ = child_type(file.schema, kind)
        if type_ is None:
            continue
        if not pa.types.is_struct(type_):
            return f"{kind} is not a struct"
        obstacle = _node_obstacle(type_, _WIRE.wrappers[kind], kind)
        if obstacle is not None:
            return obstacle
    return _ambiguous(file.schema.names)


def _node_obstacle(type_: pa.StructType, node: Node, name: str) -> str | None:
    """Why Spark would read known fields of a struct differently from the contract, or None."""
    fields = [type_.field(index) for index in range(type_.num_fields)]
    obstacle = _ambiguous([*(field.name for field in fields), *node.fields])
    if obstacle is not None:
        return obstacle
    for field in fields:
        known = node.fields.get(field.name)
        inner = None
        if isinstance(known, Node):
            if not pa.types.is_struct(field.type):
                return f"{name}.{field.name} is not a struct"
            inner = _node_obstacle(field.type, known, f"{name}.{field.name}")
        elif known is not None and not _reads_as(field.type, known):
            inner = f"{name}.{field.name} is {field.type}"
        if inner is not None:
            return inner
    return None


def _reads_as(type_: pa.DataType, leaf: Leaf) -> bool:
    wanted = contract.to_arrow(leaf.type)
    if pa.types.is_map(wanted):
        both = pa.types.is_map(type_) and (type_.key_type, type_.item_type)
        return bool(both == (wanted.key_type, wanted.item_type))
    if pa.types.is_list(wanted):
        return bool(pa.types.is_list(type_) and type_.value_type == wanted.value_type)
    return bool(type_ == wanted)


def _flattened_obstacle(file: _File) -> str | None:
    if FOOTER_KEY.encode() not in (file.footer.metadata or {}):
        return "another writer wrote it, and may have repeated files"
    leaves = {f.name: Leaf(f.name, f.type, False) for f in contract.load("actions").fields}
    for name, leaf in leaves.items():
        index = file.schema.get_field_index(name)
        if index < 0 or not _reads_as(file.schema.field(index).type, leaf):
            return f"{name} has another type than the contract"
    if unknown := [name for name in file.schema.names if name not in leaves]:
        return f"{unknown[0]} is an unknown field"
    return _ambiguous(file.schema.names)


def _ambiguous(names: Iterable[str]) -> str | None:
    """Names that differ only in case: Spark confuses them."""
    seen: dict[str, str] = {}
    for name in names:
        if seen.setdefault(name.lower(), name) != name:
            return f"{name} occurs twice, in different letter case"
    return None


def _unknown_fields(file: _File) -> Iterator[tuple[Path, pa.DataType]]:
    """Fields of file actions that are not in the contract and may have values."""
    groups = list(file.columns())

    def below(type_: pa.DataType, node: Node, above: Path) -> Iterator[tuple[Path, pa.DataType]]:
        for field in (type_.field(index) for index in range(type_.num_fields)):
            known, position = node.fields.get(field.name), (*above, field.name)
            if isinstance(known, Node):
                yield from below(field.type, known, position)
            elif known is None and position not in _DERIVED:
                nested = pa.types.is_nested(field.type)  # an empty map looks like a missing one
                if nested or not _is_null(groups, position):
                    yield position, field.type

    for kind in FILE_ACTIONS:
        type_ = child_type(file.schema, kind)
        if type_ is not None:
            yield from below(type_, _WIRE.wrappers[kind], (kind,))


def _absent(files: Sequence[_File]) -> frozenset[Path]:
    """Known leaves of file actions without values in any file."""
    held = {
        tuple(name.split("."))
        for file in files
        for group in file.columns()
        for name, chunk in group.items()
        if name.startswith(_KINDS) and _nulls(chunk) != chunk.num_values
    }
    leaves = (pair for kind in FILE_ACTIONS for pair in _WIRE.wrappers[kind].leaves((kind,)))
    # For maps and lists the footer counts elements: an empty one looks like a missing one.
    plain = {p for p, leaf in leaves if not isinstance(leaf.type, contract.Map | contract.Array)}
    return frozenset(plain) - held - _ALWAYS_READ


def _is_null(groups: Iterable[dict[str, pq.ColumnChunkMetaData]], position: Path) -> bool:
    """Whether the footer shows that a field without nesting has no value."""
    name = ".".join(position)
    chunks = (group[name] for group in groups if name in group)
    return all(_nulls(chunk) == chunk.num_values for chunk in chunks)


def _nulls(chunk: pq.ColumnChunkMetaData) -> int | None:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_null_count:
        return None
    return int(statistics.null_count)


def _text_is_everywhere(file: _File) -> bool:
    """Whether the footer shows that each live file has its statistics as text, or none."""
    for group in file.columns():
        path, text = group.get("add.path"), group.get("add.stats")
        if path is None:
            continue
        lacking = None if text is None else _nulls(text)
        if lacking is None or lacking != _nulls(path):
            return False
    return True


def _spark_reads(type_: pa.StructType) -> bool:
    try:
        spark_schema(pa.schema([("statistics", type_)]))
    except InternalError:
        return False
    return _unambiguous(type_)


def _unambiguous(type_: pa.StructType) -> bool:
    fields = [type_.field(index) for index in range(type_.num_fields)]
    if not fields or _ambiguous(field.name for field in fields) is not None:
        return False
    return all(_unambiguous(field.type) for field in fields if pa.types.is_struct(field.type))


def _spark_equal(one: pa.StructType, other: pa.StructType) -> bool:
    return bool(spark_schema(pa.schema([("s", one)])) == spark_schema(pa.schema([("s", other)])))


def _is_plain(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return all(_is_plain(type_.field(index).type) for index in range(type_.num_fields))
    return type_ in _PLAIN_LEAVES


def _look_alike(files: Sequence[_File]) -> bool:
    """Whether two files have equally many rows, and columns of equal lengths and bounds."""
    seen: set[object] = set()
    for file in files:
        if not file.footer.num_rows:
            continue
        signs = tuple(
            (name, chunk.total_compressed_size, _bounds(chunk))
            for group in file.columns()
            for name, chunk in group.items()
            if name.endswith(("path", "size"))
        )
        if (file.footer.num_rows, signs) in seen:
            return True
        seen.add((file.footer.num_rows, signs))
    return False


def _bounds(chunk: pq.ColumnChunkMetaData) -> str:
    found = chunk.statistics
    if found is None or not found.has_min_max:
        return ""
    return repr((found.min_raw, found.max_raw, found.null_count))
