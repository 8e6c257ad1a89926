"""Protocol and metadata as flattened rows, and default values of file actions."""

from __future__ import annotations

from typing import Any

import polars as pl

from lakelog.model import actions
from lakelog.model.metadata import Metadata, Protocol
from lakelog.transaction.map_columns import MAP


def protocol_row(protocol: Protocol) -> dict[str, Any]:
    """The columns of a ``protocol`` row; `Protocol.from_row` reads them back."""
    lists = (protocol.reader_features, protocol.writer_features)
    readers, writers = (None if names is None else list(names) for names in lists)
    return {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": readers,
        "writerFeatures": writers,
    }


def metadata_row(metadata: Metadata) -> dict[str, Any]:
    """The columns of a ``metaData`` row; `Metadata.from_row` reads them back."""
    return {
        "metadataId": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "formatProvider": metadata.format_provider,
        "formatOptions": dict(metadata.format_options),
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "createdTime": metadata.created_time,
    }


def fill_row(row: dict[str, Any], now_ms: int) -> None:
    """`with_file_defaults` for one row, in place."""
    kind = row["actionType"]
    row.setdefault("dataChange", kind != "cdc")
    if kind != "remove":
        row.setdefault("partitionValues", {})
    if kind == "add":
        row.setdefault("modificationTime", now_ms)
    elif kind == "remove":
        row.setdefault("deletionTimestamp", now_ms)
        if "partitionValues" in row and "size" in row:
            row.setdefault("extendedFileMetadata", True)


def with_file_defaults(files: pl.DataFrame, now_ms: int) -> pl.DataFrame:
    """Fill in what file actions have unless they say otherwise.

    ``dataChange`` is true (of a cdc, false), an add's ``modificationTime`` and a remove's
    ``deletionTimestamp`` are the present, an add without partition values has none, and a remove
    that knows its partition values and size says so (``extendedFileMetadata``).
    """
    kinds = files["actionType"]
    is_remove = kinds == "remove"
    columns = {
        "dataChange": _filled(files, "dataChange", kinds != "cdc"),
    }
    some_removes = bool(is_remove.any())
    if not some_removes or not is_remove.all():
        is_add = kinds == "add"
        columns["partitionValues"] = _with_empty_maps(files, ~is_remove)
        columns["modificationTime"] = _filled(files, "modificationTime", _where(is_add, now_ms))
    if some_removes:
        columns["deletionTimestamp"] = _filled(
            files, "deletionTimestamp", _where(is_remove, now_ms)
        )
        known = actions.conform(files, ("partitionValues", "size")).get_columns()
        extended = is_remove & known[0].is_not_null() & known[1].is_not_null()
        yes = pl.Series([True, None], dtype=pl.Boolean).gather((~extended).cast(pl.UInt32))
        columns["extendedFileMetadata"] = _filled(files, "extendedFileMetadata", yes)
    return files.with_columns(series.alias(name) for name, series in columns.items())


def _where(mask: pl.Series, value: int) -> pl.Series:
    pair = pl.Series([None, value], dtype=pl.Int64)
    return pair.gather(mask.cast(pl.UInt32))


def _filled(files: pl.DataFrame, column: str, default: pl.Series) -> pl.Series:
    if column not in files.columns:
        return default
    given = files[column]
    return given if not given.null_count() else given.zip_with(given.is_not_null(), default)


def _with_empty_maps(files: pl.DataFrame, wanted: pl.Series) -> pl.Series:
    if "partitionValues" in files.columns:
        given = files["partitionValues"]
        if not given.null_count():
            return given
    else:
        given = pl.Series([None], dtype=MAP).new_from_index(0, files.height)
    # Behind the maps that are there are one empty map and one null, to gather from.
    pool = pl.concat([given, pl.Series([{}, None], dtype=MAP)])
    own = pl.int_range(files.height, eager=True)
    empty, null = files.height, files.height + 1
    index = own.zip_with(
        given.is_not_null(), pl.Series([null, empty]).gather(wanted.cast(pl.UInt32))
    )
    return pool.gather(index)
