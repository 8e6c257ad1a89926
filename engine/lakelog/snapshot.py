"""`Snapshot`: one version of a table, immutable, lazily read; its state and its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.display import described, table_html, table_text
from lakelog.errors import (
    InvalidInputError,
    LakelogError,
    MissingDependencyError,
    UnsupportedFeatureError,
)
from lakelog.input_validation import as_names, checked_methods, require_version
from lakelog.log.context import utc_time
from lakelog.log.opening import update_state
from lakelog.log.snapshot import LogSnapshot
from lakelog.redaction import redact

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import pyarrow as pa

    from lakelog.log.export import ExportManifest


@checked_methods(location_of=attrgetter("path"))
class Snapshot(LogSnapshot):
    """One version of a table, immutable.

    Protocol and metadata are read when the snapshot is created, or with the first query if there
    are many megabytes of commits above the checkpoint. Every query first checks that lakelog
    supports the protocol. Files, tombstones and other state are read when a query needs them, only
    the columns that it uses.

    If the checkpoint is damaged and older files give the same version, these are used, with a
    `LakelogWarning` and a note in `provenance`; else `CheckpointCorruptionError` is raised.

    Create one with `Table.snapshot`.
    """

    def scan(self, where: pl.Expr | str | None = None, *, row_ids: bool = False) -> pl.LazyFrame:
        """The rows of the table, read from its data files.

        Args:
            where: A Polars expression over the table's columns or SQL text, as `files`; only
                matching rows are returned. A filter on the returned frame has the same effect.
            row_ids: Add the columns ``_row_id`` and ``_row_commit_version`` (Int64) of row
                tracking: a row's id, which updates and compaction keep, and the version that
                inserted or last updated it. Filters over them read all rows.

        Returns:
            A lazy frame with the columns and types of the schema. Column selection, filters and
            slices are pushed down: files and row groups that cannot contain a matching row are not
            read. Rows deleted by deletion vectors are left out, columns are resolved by column
            mapping, and partition values are added. The order is undefined.

        Raises:
            UnsupportedFeatureError: The rows are not in Parquet files (IndexTables); on collect: a
                selected column has a type that lakelog does not support.
            InvalidInputError: `where` names an unknown column, or is not a row-wise condition; with
                `row_ids`: the table has no row tracking, or a column of one of these names.
            NotFoundError: On collect: a file that the log names does not exist.
            CorruptionError: On collect: a data file, a deletion vector or the log is damaged; or
                the length, row count or columns of a data file differ from the log's record.

        Memory: a few batches of rows, and the paths, partition values and statistics of the
        matching files.
        """
        from lakelog.data.scan import scan_rows

        return scan_rows(self, where, row_ids=row_ids)

    def version_checksum(self) -> pl.DataFrame | None:
        """The version's ``.crc`` file, compared with replay.

        Returns:
            One row per field: ``field``, ``recorded``, ``found`` (JSON text), ``agrees`` (Boolean);
            None if the version has no readable checksum file.
        """
        from lakelog.log.version_checksum import compare_checksum_file

        return compare_checksum_file(self)

    def num_rows(self) -> int:
        """Number of rows.

        Taken from the log for files whose statistics have ``numRecords``, less the rows that their
        deletion vectors delete. Only the footers of other files are read.

        Raises:
            UnsupportedFeatureError: A file has no ``numRecords``, and the rows are not in Parquet
                files (IndexTables).
            NotFoundError: A file without ``numRecords`` does not exist.
            CorruptionError: Such a file or the log is damaged.

        Memory: 16 bytes per live file, and the paths of those that are opened.
        """
        from lakelog.data.scan import num_rows

        return num_rows(self)

    def to_polars(
        self, where: pl.Expr | str | None = None, columns: str | Sequence[str] | None = None
    ) -> pl.DataFrame:
        """The rows of the table as a Polars frame; for the live files, see `state`.

        Args:
            where: As `scan`.
            columns: The column, or several in order; None is all.

        Raises:
            InvalidInputError: As `scan`; a column is unknown, or named twice.
            UnsupportedFeatureError: As `scan`.
            NotFoundError: As `scan`.
            CorruptionError: As `scan`.

        Memory: the rows.
        """
        from lakelog.data.scan import scan_rows

        return scan_rows(self, where, as_names(columns)).collect()

    def to_arrow(
        self, where: pl.Expr | str | None = None, columns: str | Sequence[str] | None = None
    ) -> pa.Table:
        """The rows of the table as an Arrow table, as `to_polars`.

        Timestamps are microseconds in UTC, those without a time zone microseconds without one.
        """
        from lakelog.data.scan import read_rows

        return read_rows(self, where, as_names(columns)).read_all()

    def to_pandas(
        self, where: pl.Expr | str | None = None, columns: str | Sequence[str] | None = None
    ) -> pd.DataFrame:
        """The rows of the table as a pandas frame, as `to_polars`; maps become dicts, integers and
        Booleans use nullable dtypes.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return _to_pandas(lambda: self.to_arrow(where, columns))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows of the table as a stream of batches (Arrow PyCapsule interface): DuckDB, Polars
        and pyarrow accept a snapshot directly.

        Memory: a few batches.
        """
        from lakelog.data.scan import read_rows

        return read_rows(self).__arrow_c_stream__(requested_schema)

    @property
    def state(self) -> SnapshotState:
        """The live files as a dataframe, one row per file."""
        return SnapshotState(self)

    def update(self, version: int | None = None) -> Snapshot:
        """A later version (None: the latest). Reads only the commits in between.

        Returns this snapshot itself if it has that version. If the table was deleted and created
        again, or replaced by a copy, the version is read again, and the latest one may be lower.

        Raises:
            InvalidInputError: `version` is lower than this version.
        """
        require_version(version)
        if version is not None and version < self.version:
            raise InvalidInputError(
                "update cannot go to an older version",
                version=version,
                expected=f"version {self.version} or later",
                found=version,
                hint="use Table.snapshot(version) to go back",
            )
        state = self._state
        later = self.read_state(lambda state: update_state(state, version))
        return self if later is state else Snapshot(later)

    def write_parquet(
        self, directory: str | Path, max_part_bytes: int = 134_217_728
    ) -> ExportManifest:
        """Write the state as several flattened Parquet files with a manifest.

        Rows are those of `iter_state`, with the files in the order of checkpoints. The manifest
        ``_manifest.json`` is the last file.

        Args:
            directory: An empty folder, as a path or an fsspec URL; it is created.
            max_part_bytes: Size of a part in bytes, about.

        Returns:
            The manifest: version, parts, and numbers of rows, files and tombstones.

        Raises:
            InvalidInputError: The folder is not empty, or `max_part_bytes` is not positive.
            UnavailableError: The folder cannot be written; written files are deleted.
            CorruptionError: The log is damaged.

        Memory: the rows of one kind while sorting, at most 1 GiB, and the commits above the
        checkpoint.

        Source: ``schemas/actions.json``.
        """
        at = self.timestamp_ms
        from lakelog.log.export import write_state

        return self.read_state(lambda state: write_state(state, directory, max_part_bytes, at))

    def __repr__(self) -> str:
        return table_text("Snapshot", self._described())

    def _repr_html_(self) -> str:
        return table_html("Snapshot", self._described())

    def _described(self) -> list[tuple[str, str]]:
        try:
            return described(self.facts() | {"path": redact(self.path)})
        except LakelogError as error:  # a display shows the error, and does not raise it
            return [
                ("path", redact(self.path)),
                ("version", str(self.version)),
                ("error", error.message),
            ]

    def facts(self) -> dict[str, Any]:
        """Version, time, schema, protocol and properties as plain data. Reads no file actions."""
        metadata, protocol = self.metadata, self.protocol
        return {
            "path": self.path,
            "format": self.format,
            "version": self.version,
            "timestamp": utc_time(self.timestamp_ms),
            "id": metadata.id,
            "name": metadata.name,
            "partitionColumns": list(metadata.partition_columns),
            "columns": list(metadata.schema.names),
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            "readerFeatures": list(protocol.reader_features or ()),
            "writerFeatures": list(protocol.writer_features or ()),
            "configuration": dict(metadata.configuration),
        }


@checked_methods()
class SnapshotState:
    """The live files of a snapshot as a dataframe, one row per file; see `Snapshot.files`.

    Memory: all columns of every live file. `Snapshot.files` reads only the columns that a query
    uses.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def to_polars(self) -> pl.DataFrame:
        """`Snapshot.files` as a Polars frame."""
        return self._snapshot.files().collect()

    def to_arrow(self) -> pa.Table:
        """`Snapshot.files` as an Arrow table, with Arrow maps."""
        return self.to_polars().to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """`Snapshot.files` as a pandas frame; maps become dicts, integers and Booleans use nullable
        dtypes.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return _to_pandas(self.to_arrow)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface: DuckDB, Polars and pyarrow accept it directly."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        snapshot = self._snapshot
        return f"SnapshotState({redact(snapshot.path)!r}, version={snapshot.version})"


def _to_pandas(read: Callable[[], pa.Table]) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as cause:
        raise MissingDependencyError(
            "to_pandas needs pandas", hint="pip install 'lakelog[pandas]'"
        ) from cause
    import pyarrow as pa

    nullable = {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    rows = read()

    def convert(rows: pa.Table) -> pd.DataFrame:
        try:
            # Integers of nested values next to nulls would otherwise be floats.
            return rows.to_pandas(
                types_mapper=nullable.get, integer_object_nulls=True, maps_as_pydicts="strict"
            )
        except (pa.ArrowException, ValueError, OverflowError) as cause:
            # Such as a map with a key twice, or a date beyond the year 9999.
            is_one = rows.num_columns == 1
            for number in range(0 if is_one else rows.num_columns):
                convert(rows.select([number]))
            raise UnsupportedFeatureError(
                f"the rows cannot be converted to pandas: {cause}",
                column=rows.column_names[0] if is_one else None,
                found=", ".join(f"{field.name}: {field.type}" for field in rows.schema)[:200],
                hint="read them by to_arrow or to_polars",
            ) from cause

    return convert(rows)
