"""`Snapshot`: one version of a table, immutable, lazily read; its state and its rows."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.errors import InvalidInputError, LakelogError, MissingDependencyError
from lakelog.input_validation import checked_methods, require_version
from lakelog.log.display import described, table_html, table_text
from lakelog.log.export import ExportManifest, write_state
from lakelog.log.opening import update_state
from lakelog.log.snapshot import LogSnapshot
from lakelog.log.version_checksum import compare_checksum_file
from lakelog.model.metadata import Metadata
from lakelog.redaction import redact

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    import pyarrow as pa


@checked_methods()
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

    def scan(self, where: pl.Expr | str | None = None) -> pl.LazyFrame:
        """The rows of the table, read from its data files.

        Args:
            where: A Polars expression over the table's columns or SQL text, as `files`; only
                matching rows are returned. A filter on the returned frame has the same effect.

        Returns:
            A lazy frame with the columns and types of the schema. Column selection, filters and
            slices are pushed down: files and row groups that cannot contain a matching row are not
            read. Rows deleted by deletion vectors are left out, columns are resolved by column
            mapping, and partition values are added. The order is undefined.

        Raises:
            UnsupportedFeatureError: The rows are not in Parquet files (IndexTables); on collect: a
                selected column has a type that lakelog does not support.
            InvalidInputError: `where` names an unknown column, or is not a row-wise condition.
            NotFoundError: On collect: a file that the log names does not exist.
            CorruptionError: On collect: a data file, a deletion vector or the log is damaged; or
                the length, row count or columns of a data file differ from the log's record.

        Memory: a few batches of rows (`lakelog.data.read.read_files`), and the paths, partition
        values and statistics of the matching files.
        """
        from lakelog.data.scan import scan_rows

        return scan_rows(self, where)

    def version_checksum(self) -> pl.DataFrame | None:
        """The version's ``.crc`` file, compared with replay.

        Returns:
            One row per field: ``field``, ``recorded``, ``found`` (JSON text), ``agrees`` (Boolean);
            None if the version has no readable checksum file.
        """
        return compare_checksum_file(self)

    # --- as a dataframe ----------------------------------------------------------------------

    def to_polars(self) -> pl.DataFrame:
        """`files` as a Polars frame."""
        return self.files().collect()

    def to_arrow(self) -> pa.Table:
        """`files` as an Arrow table, with Arrow maps."""
        return self.to_polars().to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """`files` as a pandas frame; maps become dicts, integers use nullable dtypes.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as cause:
            raise MissingDependencyError(
                "to_pandas needs pandas", hint="pip install 'lakelog[pandas]'"
            ) from cause
        import pyarrow as pa

        nullable = {
            pa.int64(): pd.Int64Dtype(),
            pa.int32(): pd.Int32Dtype(),
            pa.bool_(): pd.BooleanDtype(),
        }
        return self.to_arrow().to_pandas(types_mapper=nullable.get, maps_as_pydicts="strict")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface: DuckDB and pyarrow accept a snapshot directly."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    # --- onward ------------------------------------------------------------------------------

    def update(self, version: int | None = None) -> Snapshot:
        """A later version (None: the latest). Reads only the commits in between.

        Returns this snapshot itself if it has that version.

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

        See `lakelog.log.export.write_state` for the layout, errors and memory.
        """
        at = self.timestamp_ms
        return self.read_state(lambda state: write_state(state, directory, max_part_bytes, at))

    # --- display -----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return table_text("Snapshot", self._described())

    def _repr_html_(self) -> str:
        return table_html("Snapshot", self._described())

    def _described(self) -> list[tuple[str, str]]:
        try:
            return described(self.facts() | {"path": redact(self.path)})
        except LakelogError as error:  # a display says what is wrong, and does not raise it
            return [
                ("path", redact(self.path)),
                ("version", str(self.version)),
                ("error", error.message),
            ]

    def facts(self) -> dict[str, Any]:
        """Version, time, schema, protocol and properties as plain data. Reads no file actions."""
        metadata, protocol = self.metadata, self.protocol
        at = self.timestamp_ms
        return {
            "path": self.path,
            "format": self.format,
            "version": self.version,
            "timestamp": None if at is None else dt.datetime.fromtimestamp(at / 1000, dt.UTC),
            "id": metadata.id,
            "name": metadata.name,
            "partitionColumns": list(metadata.partition_columns),
            "columns": _column_names(metadata),
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            "readerFeatures": list(protocol.reader_features or ()),
            "writerFeatures": list(protocol.writer_features or ()),
            "configuration": dict(metadata.configuration),
        }


def _column_names(metadata: Metadata) -> list[str]:
    return list(metadata.schema.names) if metadata.schema_string is not None else []
