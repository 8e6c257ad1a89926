"""Avro containers: records read through fastavro, every failure told in lakelog's errors."""

from __future__ import annotations

from collections.abc import Collection
from io import BytesIO
from typing import Any

import orjson

from lakelog.errors import MalformedLogError, MissingDependencyError


def read_records(
    data: bytes, path: str, version: int, fields: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Every record of an Avro container file.

    Args:
        data: The whole file.
        path: Its name, for errors.
        version: Table version, for errors.
        fields: Top-level fields wanted, None for all; a field that the file lacks is left out.

    Raises:
        MalformedLogError: Not an Avro container of records, or broken.
        MissingDependencyError: fastavro, or the codec that the file needs, is not installed.
    """
    try:
        import fastavro
    except ImportError as cause:
        raise _missing("fastavro", path, version) from cause
    codec = "of the file"
    try:
        reader = fastavro.reader(BytesIO(data))
        codec = reader.codec
        schema = orjson.loads(reader.metadata["avro.schema"])
        if fields is not None:
            wanted = [field for field in schema["fields"] if field["name"] in fields]
            reader = fastavro.reader(BytesIO(data), reader_schema={**schema, "fields": wanted})
        records: list[Any] = list(reader)
    except Exception as cause:
        # fastavro raises what its C code happens to meet in damaged bytes: EOFError, ValueError,
        # KeyError, UnicodeDecodeError, the codec's own errors and more. None may reach the caller.
        if isinstance(cause, ValueError) and "need to install" in str(cause):
            raise _missing(f"the Avro codec {codec}", path, version) from cause
        raise MalformedLogError(
            "the file is not a whole Avro container",
            path=path,
            version=version,
            found=f"{type(cause).__name__}: {cause}"[:200],
            hint="restore the file from a copy; no state is read from it",
        ) from cause
    if not all(isinstance(record, dict) for record in records):
        raise MalformedLogError(
            "the Avro file does not hold records", path=path, version=version, expected="records"
        )
    return records


def _missing(what: str, path: str, version: int) -> MissingDependencyError:
    return MissingDependencyError(
        f"reading an Avro state needs {what}",
        path=path,
        version=version,
        hint="pip install 'lakelog[avro]'",
    )
