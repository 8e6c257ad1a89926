"""The data source ``lakelog``: name, schema, its readers and writers, and tables by name.

Spark stores the schema of an SQL table, but passes neither location nor options to readers.
Therefore both are stored in the schema, as metadata of its columns; schemas of dataframes loaded by
path have no such metadata. Writers receive the schema of the query, possibly with another table's
location, so writes by an SQL name are not supported.

Spark creates an instance per load and save, in a Python process next to the driver. Readers and
writers are imported on demand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

import lakelog
from lakelog.errors import InvalidInputError, LakelogError
from lakelog.spark.error_display import readable
from lakelog.spark.options import STORAGE, Use, parse_options

KEY = "lakelog.options"
"""Key of column metadata: JSON of the options with which the table was created."""

_CREATED = "provider"
_OPTION = "option."


def _created_with(options: Mapping[str, str]) -> dict[str, str]:
    """The source's options of a table that is being created, without the catalog's properties."""
    if "location" not in options:
        raise InvalidInputError(
            "the folder of the catalog's table contains no table",
            expected="CREATE TABLE … USING lakelog LOCATION '…'",
            hint="create the table with lakelog.create",
        )
    own = {k.removeprefix(_OPTION): v for k, v in options.items() if k.startswith(_OPTION)}
    secret = sorted(key for key in own if key.startswith(STORAGE))
    if secret:
        raise InvalidInputError(
            (
                "a catalog's table cannot have options of the store: every user of the "
                "catalog could read them"
            ),
            path=options.get("path"),
            found=", ".join(secret),
            hint=(
                "create a temporary view with the options, or let the store find its credentials"
            ),
        )
    return own | {"path": options["location"]}


def _store_schema(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A schema with options in the metadata of its columns."""
    text = json.dumps(dict(options), sort_keys=True)
    return StructType(
        [
            StructField(f.name, f.dataType, f.nullable, {**f.metadata, KEY: text})
            for f in schema.fields
        ]
    )


def _recalled(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """The options; without a path, also those in the metadata of the schema's columns."""
    if "path" in options:
        return dict(options)
    for field in schema.fields:
        if KEY in field.metadata:
            return {**json.loads(field.metadata[KEY]), **options}
    return dict(options)


def _restored(archive: str, pickled: bytes) -> DataSource:
    """A data source from its class and attributes, with the package on the search path."""
    import pickle
    import sys

    if archive not in sys.path:
        sys.path.insert(1, archive)
    cls, attributes = pickle.loads(pickled)  # noqa: S301 - made by `__reduce_ex__`
    made: DataSource = cls.__new__(cls)
    made.__dict__.update(attributes)
    return made


_restored.__module__ = "-"  # so that it is pickled by value, not by a module's name


class LakelogDataSource(DataSource):
    """The data source; see `schemas/spark.md` for its options. A dataframe is the version that was
    the latest when it was loaded or, if the user passed a schema, when it was first used. A table
    created in SQL is read at its latest version in each query.
    """

    parallelism: ClassVar[int | None] = None
    """Number of concurrent tasks of the session; None if unknown."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.pinned: int | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """By reference: Spark's stream reader starts without the session's file folder."""
        archive = getattr(lakelog.__loader__, "archive", None)
        if archive is None:  # the package is installed
            return super().__reduce_ex__(protocol)
        from pyspark import cloudpickle

        return _restored, (archive, cloudpickle.dumps((type(self), self.__dict__)))

    @classmethod
    def for_session(cls, parallelism: int | None) -> type[LakelogDataSource]:
        """The source for a session with this number of concurrent tasks."""
        if parallelism is None:
            return cls
        # Created here, so that it is pickled by value, not by a module's name.
        return type("SessionDataSource", (cls,), {"parallelism": parallelism, "__module__": "-"})

    @classmethod
    def name(cls) -> str:
        """The name in ``format`` and ``USING``."""
        return "lakelog"

    @readable
    def schema(self) -> StructType:
        """The schema for the options; also determines the version."""
        from lakelog.spark.reading import schema_of

        given = dict(self.options)
        if _CREATED in given:
            given = _created_with(given)
            return _store_schema(schema_of(parse_options(given, "read"))[0], given)
        schema, self.pinned = schema_of(parse_options(given))
        return schema

    @readable
    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader."""
        from lakelog.spark.reading import reader_of

        return reader_of(self._parsed("read", schema), schema, self.pinned, self.parallelism)

    @readable
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer."""
        from lakelog.spark.writing import batch_writer

        return batch_writer(self._parsed("write", schema), schema, overwrite)

    @readable
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream reader that reports errors on first use; Spark hides errors raised here."""
        from lakelog.spark.stream_source import RefusedStream, stream_reader

        try:
            options = self._parsed("stream", schema)
            # Spark asks for the schema unless the user passed one.
            whole = self.pinned is not None and "columns" not in options.values
            return stream_reader(options, schema, self.parallelism, whole=whole)
        except LakelogError as error:
            return RefusedStream(error)

    @readable
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A stream's writer."""
        from lakelog.spark.stream_sink import stream_writer

        return stream_writer(self._parsed("sink", schema), schema, overwrite)

    def _parsed(self, use: Use, schema: StructType) -> Any:
        given = dict(self.options)
        # The schema of a write is the query's, which may contain the location of a table that it
        # reads.
        return parse_options(_recalled(schema, given) if use in {"read", "stream"} else given, use)
