"""Small hand-written Delta logs: each action as the JSON object in a commit."""

from __future__ import annotations

import datetime as dt
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakelog import Table
from lakelog.dialects.base import Dialect
from lakelog.dialects.delta import DIALECT
from lakelog.log.context import Log
from lakelog.storage import open_store
from lakelog.transaction.log_tail import LogTails
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.transaction import LogTransaction
from tests.checkpoint_writer import FIELDS

Action = dict[str, Any]

FIRST_MS = 1_700_000_000_000  # when commit 0 was made; each later commit, a minute after
MINUTE_MS = 60_000


def time_of(version: int) -> dt.datetime:
    """The time of a commit."""
    return dt.datetime.fromtimestamp((FIRST_MS + version * MINUTE_MS) / 1000, dt.UTC)


def field(name: str, type_: Any = "long", **metadata: Any) -> dict[str, Any]:
    """One column of a schema."""
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata}


def schema(*fields: dict[str, Any]) -> str:
    """A schemaString."""
    return json.dumps({"type": "struct", "fields": list(fields)})


ID_NAME = (field("id"), field("name", "string"))


def protocol(reader: int = 1, writer: int = 2, **lists: Sequence[str]) -> Action:
    """A protocol; `lists` are readerFeatures and writerFeatures."""
    return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **lists}}


def metadata(
    *fields: dict[str, Any],
    table_id: str = "id-0",
    partitioned: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    **more: Any,
) -> Action:
    """A metaData of the columns `fields` (default: id and name)."""
    body = {
        "id": table_id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema(*(fields or ID_NAME)),
        "partitionColumns": list(partitioned),
        "configuration": dict(properties or {}),
    }
    return {"metaData": body | more}


def add(path: str, size: int = 1, **more: Any) -> Action:
    """An add."""
    body = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1}
    return {"add": {**body, "dataChange": True, **more}}


def remove(path: str, **more: Any) -> Action:
    """A remove."""
    return {"remove": {"path": path, "dataChange": True, **more}}


def vector(name: str, cardinality: int = 1) -> dict[str, Any]:
    """A deletion vector; its identity is ``u<name>@1``."""
    where = {"storageType": "u", "pathOrInlineDv": name, "offset": 1}
    return {"deletionVector": {**where, "sizeInBytes": 4, "cardinality": cardinality}}


def info(operation: str = "WRITE", **more: Any) -> Action:
    """A commitInfo."""
    return {"commitInfo": {"operation": operation, **more}}


def close_compaction(data: bytes) -> bytes:
    """The closing line of lakelog's log compactions, for the lines before it."""
    marks = {"lines": data.count(b"\n"), "crc32": zlib.crc32(data)}
    return json.dumps({"lakelogEnd": marks}, separators=(",", ":")).encode() + b"\n"


class Handmade:
    """A log below `root`, written file by file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "_delta_log"
        self.log.mkdir(parents=True, exist_ok=True)

    @property
    def table(self) -> Table:
        """The table from `lakelog.open`."""
        return Table(self.context())

    def context(self, now_ms: int = FIRST_MS, dialect: Dialect = DIALECT) -> Log:
        """The table's log, with a fixed clock."""
        return Log(open_store(self.root), dialect, lambda: now_ms)

    def write(self, name: str, data: bytes, at_ms: int = FIRST_MS) -> Path:
        """One file of the log folder."""
        path = self.log / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
        return path

    def commit(self, version: int, *actions: Action, at_ms: int | None = None) -> Path:
        """One commit, one action per line."""
        data = "".join(json.dumps(a, ensure_ascii=False) + "\n" for a in actions).encode()
        at = FIRST_MS + version * MINUTE_MS if at_ms is None else at_ms
        return self.write(f"{version:020d}.json", data, at)

    def start(self, *actions: Action, **more: Any) -> Handmade:
        """Commit 0: protocol, metadata and `actions`."""
        self.commit(0, info("CREATE TABLE"), protocol(), metadata(**more), *actions)
        return self

    def compaction(self, start: int, end: int, *actions: Action, closed: bool = True) -> Path:
        """One log compaction file; `closed` adds the line that marks a complete one for lakelog."""
        data = "".join(json.dumps(a) + "\n" for a in actions).encode()
        data += close_compaction(data) if closed else b""
        return self.write(f"{start:020d}.{end:020d}.compacted.json", data)

    def checkpoint(
        self, version: int, *actions: Action, without: Sequence[str] = (), suffix: str = ""
    ) -> Path:
        """One Parquet checkpoint; `without` names fields of ``add`` without a column."""
        path = self.log / f"{version:020d}.checkpoint{suffix}.parquet"
        write_parquet(path, actions, without)
        return path

    def sidecar(self, name: str, *actions: Action) -> Action:
        """One sidecar, and its action."""
        path = self.log / "_sidecars" / name
        path.parent.mkdir(exist_ok=True)
        write_parquet(path, actions)
        return {"sidecar": {"path": name, "sizeInBytes": 1, "modificationTime": 1}}

    def forget(self, *versions: int) -> None:
        """Delete commits, as cleanup does."""
        for version in versions:
            (self.log / f"{version:020d}.json").unlink()


def write_parquet(path: Path, actions: Sequence[Action], without: Sequence[str] = ()) -> None:
    """Actions as in a checkpoint: one struct column per action type, and ``add``."""
    columns = {}
    for kind in dict.fromkeys([*(kind for action in actions for kind in action), "add"]):
        fields = [f for f in FIELDS[kind] if kind != "add" or f[0] not in without]
        bodies = [_fit(action.get(kind), fields) for action in actions]
        columns[kind] = pa.array(bodies, pa.struct(fields))
    pq.write_table(pa.table(columns), path)


def _fit(body: Any, fields: Sequence[tuple[str, pa.DataType]]) -> Any:
    if body is None:
        return None
    fitted = {name: body.get(name) for name, _ in fields}
    for name, type_ in fields:
        if pa.types.is_map(type_) and fitted[name] is not None:
            fitted[name] = list(fitted[name].items())
    if fitted.get("format") is not None:
        fitted["format"] = {**fitted["format"], "options": []}
    return fitted


def set_in_commit(path: Path, version: int, kind: str, **fields: Any) -> None:
    """Set fields of all actions of a kind in a commit of the table at a path."""
    commit = path / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in commit.read_text("utf-8").splitlines()]
    for action in actions:
        if kind in action:
            action[kind] |= fields
    commit.write_text("\n".join(map(json.dumps, actions)), "utf-8")


def set_unchecked_metadata(table: Table, **changes: Any) -> None:
    """Change the metadata as another engine, whose expressions lakelog does not check."""
    runtime = Runtime()
    tx = LogTransaction(table.log, LogTails(table.log, runtime), runtime)
    if "schema" in changes:
        tx.replace_rows()
    tx.set_metadata(**changes)
    tx.declare_constraints_hold()
    tx.commit()
