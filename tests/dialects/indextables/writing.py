"""Writes IndexTables logs byte by byte, for cases that the corpus lacks."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import polars as pl

from lakelog.dialects.indextables import DIALECT
from lakelog.dialects.log_content import Checkpoint, CheckpointReader
from lakelog.model import actions
from lakelog.storage import LogStore, open_store

SCHEMA_STRING = json.dumps(
    {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
)
PROTOCOL = {"protocol": {"minReaderVersion": 2, "minWriterVersion": 2}}
FRAMINGS = ("plain", "scala", "rust")

JsonObject = dict[str, Any]

_OPTIONAL_TEXT = {"type": ["null", "string"], "default": None}
_OPTIONAL_LONG = {"type": ["null", "long"], "default": None}
_OPTIONAL_MAP = {"type": ["null", {"type": "map", "values": "string"}], "default": None}
ENTRY_FIELDS: list[JsonObject] = [
    {"name": "path", "type": "string"},
    {"name": "partitionValues", "type": {"type": "map", "values": "string"}},
    {"name": "size", "type": "long"},
    {"name": "modificationTime", "type": "long"},
    {"name": "dataChange", "type": "boolean"},
    {"name": "stats", **_OPTIONAL_TEXT},
    {"name": "minValues", **_OPTIONAL_MAP},
    {"name": "maxValues", **_OPTIONAL_MAP},
    {"name": "numRecords", **_OPTIONAL_LONG},
    {"name": "hasFooterOffsets", "type": "boolean", "default": False},
    {"name": "docMappingRef", **_OPTIONAL_TEXT},
    {"name": "addedAtVersion", "type": "long"},
    {"name": "addedAtTimestamp", "type": "long"},
]
_STATE_FIELDS: list[JsonObject] = [
    {"name": "formatVersion", "type": "int"},
    {"name": "stateVersion", "type": "long"},
    {"name": "createdAt", "type": "long"},
    {"name": "numFiles", "type": "long"},
    {"name": "totalBytes", "type": "long"},
    {
        "name": "manifests",
        "type": {
            "type": "array",
            "items": {
                "type": "record",
                "name": "ManifestInfoItem",
                "fields": [
                    {"name": "path", "type": "string"},
                    {"name": "numEntries", "type": "long"},
                ],
            },
        },
    },
    {"name": "tombstones", "type": {"type": "array", "items": "string"}, "default": []},
    {"name": "schemaRegistry", "type": {"type": "map", "values": "string"}, "default": {}},
    {"name": "protocolVersion", "type": "int", "default": 4},
    {"name": "metadata", **_OPTIONAL_TEXT},
]


def metadata(**fields: Any) -> JsonObject:
    body: JsonObject = {
        "id": "table-1",
        "name": None,
        "description": None,
        "format": {"provider": "indextables", "options": {}},
        "schemaString": SCHEMA_STRING,
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 1_700_000_000_000,
    }
    return {"metaData": body | fields}


def add(path: str, **fields: Any) -> JsonObject:
    body = {"path": path, "partitionValues": {}, "size": 10, "modificationTime": 5}
    return {"add": body | fields}


def remove(path: str, **fields: Any) -> JsonObject:
    return {"remove": {"path": path, "deletionTimestamp": 7, **fields}}


def skip(path: str, *, wrapper: str = "mergeskip", **fields: Any) -> JsonObject:
    body = {"path": path, "skipTimestamp": 100, "reason": "broken footer"}
    return {wrapper: body | fields}


def lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def frame_bytes(data: bytes, framing: str) -> bytes:
    if framing == "plain":
        return data
    packed = gzip.compress(data, mtime=0)
    return b"\x01\x01" + packed if framing == "scala" else packed


class Log:
    """One table on local disk, written file by file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "_transaction_log"
        self.folder.mkdir(parents=True)

    @property
    def store(self) -> LogStore:
        return open_store(str(self.root))

    def write(self, name: str, data: bytes) -> Path:
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return target

    def commit(
        self, version: int, rows: Iterable[Mapping[str, Any]], framing: str = "plain"
    ) -> Path:
        return self.write(f"{version:020d}.json", frame_bytes(lines(rows), framing))

    def manifest(
        self,
        name: str,
        entries: Sequence[JsonObject],
        fields: list[JsonObject] | None = None,
        codec: str = "zstandard",
    ) -> Path:
        """Entries are bodies of adds; required fields of an entry are added."""
        schema = {"type": "record", "name": "FileEntry", "fields": fields or ENTRY_FIELDS}
        base = {"dataChange": True, "addedAtVersion": 0, "addedAtTimestamp": 77}
        return self.write(name, _avro(schema, [base | entry for entry in entries], codec))

    def state(
        self,
        version: int,
        manifests: Mapping[str, int],
        *,
        codec: str = "zstandard",
        folder: int | None = None,
        **fields: Any,
    ) -> Path:
        record = {
            "formatVersion": 1,
            "stateVersion": version,
            "createdAt": 1,
            "numFiles": sum(manifests.values()),
            "totalBytes": 10 * sum(manifests.values()),
            "manifests": [{"path": p, "numEntries": n} for p, n in manifests.items()],
        }
        schema = {"type": "record", "name": "StateManifest", "fields": _STATE_FIELDS}
        number = version if folder is None else folder
        name = f"state-v{number:020d}/_manifest.avro"
        return self.write(name, _avro(schema, [record | fields], codec))

    def flattened(self, name: str, frame: pl.DataFrame) -> Path:
        target = self.folder / "_checkpoints" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        frame.write_parquet(target)
        return target

    def checkpoint(self, version: int, layout: str | None = None) -> CheckpointReader:
        """Opens the best checkpoint of a version, or the one of a layout."""
        found = [c for c in self.checkpoints() if c.version == version]
        chosen = [c for c in found if layout in {None, c.layout}][-1]
        return DIALECT.open_checkpoint(self.store, chosen)

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return DIALECT.list_log(self.store, hint=False).checkpoints


def _avro(schema: JsonObject, records: Sequence[JsonObject], codec: str) -> bytes:
    out = io.BytesIO()
    # A fixed marker keeps the bytes the same from run to run.
    fastavro.writer(out, schema, records, codec=codec, sync_marker=b"0123456789abcdef")
    return out.getvalue()


def read_files(
    reader: CheckpointReader,
    columns: Sequence[str] = ("path", "size"),
    kinds: Sequence[str] = actions.FILE_ACTIONS,
) -> pl.DataFrame:
    frames = list(reader.iter_files(columns, kinds))
    return actions.conform(actions.concat(frames), ["actionType", *columns])


def paths(frame: pl.DataFrame) -> list[str]:
    return sorted(frame["path"].to_list())


def flat_rows(rows: Sequence[JsonObject]) -> pl.DataFrame:
    """Rows of the flattened action table, every column in the contract's dtype."""
    return pl.DataFrame(list(rows), schema=dict(actions.schema()), orient="row")
