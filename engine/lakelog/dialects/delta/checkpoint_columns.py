"""Required columns of a checkpoint: if one is missing, the file is damaged, because nulls would
give another state.

Writers leave out the columns of action types that they have no row of, so of those only ``add`` of
a classic checkpoint is demanded; one is missing too where a column of an unknown name has all of
its fields. Absent statistics, tags, times and origins show less, and change no state.

Source: Delta protocol, Checkpoint Schema; Protocol Evolution (version 3 and 7 list features).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.delta.footers import require_sound_chunks
from lakelog.dialects.delta.parquet import child_type
from lakelog.errors import InvalidActionError
from lakelog.model import actions

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


def require_columns(
    schema: pa.Schema, path: str, layout: str, features: Iterable[str] = (), *, sidecar: bool
) -> None:
    """Refuse a file of a checkpoint that lacks a column."""
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


def require_actions(file: pq.ParquetFile, path: str) -> None:
    """Refuse a file with rows that hold no action: another file took its place, and the actions of
    its own would be missing without a word. Only the footer is read.
    """
    schema, rows = file.schema_arrow, file.metadata.num_rows
    present = [name for name in _FIELDS if schema.get_field_index(name) >= 0]
    if present and {*schema.names} - {*present}:
        return  # they may be of a type that is not known
    wanted = {f"{name}.{_FIELDS[name][0]}" for name in present}
    leaves = [i for i in range(len(file.schema)) if file.schema.column(i).path in wanted]
    groups = range(file.num_row_groups)
    require_sound_chunks(file.metadata, groups, leaves)
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
        # Of one field alone it would be chance.
        if name not in present and len(wanted) > 1 and any(names >= wanted for names in held):
            yield name


def features_of(meta: pl.DataFrame, path: str) -> frozenset[str] | None:
    """The table features of a checkpoint's protocol, and whether its table is partitioned; None
    where `meta` holds no protocol.
    """
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
