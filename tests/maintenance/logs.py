"""Logs of a known age, written directly, for the tests of cleanup."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog import Table
from lakelog.log.context import Log
from lakelog.maintenance.cleanup import CleanupPlan, CleanupReport
from lakelog.storage import open_store
from lakelog.testing import InjectingStore, Rule
from tests.transaction.tables import DIALECTS, runtime

DAY_MS = 86_400_000
NOW_MS = 21_900 * DAY_MS + 12 * 3_600_000  # noon
FOLDER = {"delta": "_delta_log", "indextables": "_transaction_log"}
SCHEMA_STRING = json.dumps(
    {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
)
_MAP = pa.map_(pa.string(), pa.string())
_FIELDS = {
    "protocol": pa.struct(
        {
            "minReaderVersion": pa.int32(),
            "minWriterVersion": pa.int32(),
            "readerFeatures": pa.list_(pa.string()),
            "writerFeatures": pa.list_(pa.string()),
        }
    ),
    "metaData": pa.struct(
        {
            "id": pa.string(),
            "format": pa.struct({"provider": pa.string(), "options": _MAP}),
            "schemaString": pa.string(),
            "partitionColumns": pa.list_(pa.string()),
            "configuration": _MAP,
        }
    ),
    "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
    "add": pa.struct(
        {
            "path": pa.string(),
            "partitionValues": _MAP,
            "size": pa.int64(),
            "modificationTime": pa.int64(),
            "dataChange": pa.bool_(),
            "stats": pa.string(),
        }
    ),
    "remove": pa.struct(
        {
            "path": pa.string(),
            "deletionTimestamp": pa.int64(),
            "dataChange": pa.bool_(),
            "extendedFileMetadata": pa.bool_(),
            "partitionValues": _MAP,
            "size": pa.int64(),
        }
    ),
    "sidecar": pa.struct(
        {"path": pa.string(), "sizeInBytes": pa.int64(), "modificationTime": pa.int64()}
    ),
    "checkpointMetadata": pa.struct({"version": pa.int64()}),
}


@dataclass
class Clock:
    """A clock that is constant until a test changes it."""

    now_ms: int = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class MadeLog:
    """A log that is written commit by commit.

    Attributes:
        root: The table's folder.
        form: ``delta`` or ``indextables``.
        configuration: Table properties.
        writer_features: Writer features; none keeps the protocol at 1, 2.
        clock: The clock with which the table is opened.
    """

    root: Path
    form: str = "delta"
    configuration: dict[str, str] = field(default_factory=dict)
    writer_features: tuple[str, ...] = ()
    clock: Clock = field(default_factory=Clock)
    in_commit: Callable[[int], int | None] | None = None
    states: list[list[dict[str, Any]]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.root / FOLDER[self.form]

    def file(self, name: str) -> Path:
        return self.folder / name

    def age(self, path: Path, days: float) -> None:
        at = self.clock.now_ms / 1000 - days * 86_400
        os.utime(path, (at, at))

    def put(self, name: str, data: bytes, days: float) -> Path:
        path = self.file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.age(path, days)
        return path

    # --- commits

    def commit(self, days: float, *actions: dict[str, Any]) -> int:
        """Write the next commit, of that age in days.

        Without actions it adds a file and, every third time, removes one.
        """
        version = len(self.states)
        state = list(self.states[-1]) if self.states else []
        lines = list(actions) or self._usual(version, state, days)
        if version == 0:
            lines = [{"protocol": self.protocol()}, {"metaData": self.metadata()}, *lines]
        for line in lines:
            state = _applied(state, line)
        self.states.append(state)
        info: dict[str, Any] = {"operation": "WRITE", "timestamp": version}
        if self.in_commit is not None and (at := self.in_commit(version)) is not None:
            info["inCommitTimestamp"] = at
        text = "".join(json.dumps(line) + "\n" for line in [{"commitInfo": info}, *lines])
        if self.form == "indextables":
            text = "".join(json.dumps(line) + "\n" for line in lines)
        self.put(f"{version:020d}.json", text.encode(), days)
        return version

    def commits(self, ages: Iterable[float]) -> None:
        for days in ages:
            self.commit(days)

    def _usual(
        self, version: int, state: list[dict[str, Any]], days: float
    ) -> list[dict[str, Any]]:
        at = self.clock.now_ms - int(days * DAY_MS)
        lines: list[dict[str, Any]] = [
            {"add": add(f"f{version}.parquet", at)},
            {"add": add(f"g{version}.parquet", at)},
        ]
        if version % 3 == 2:
            path = f"f{version - 1}.parquet"
            removed = {"path": path, "deletionTimestamp": at, "dataChange": True, "size": 10}
            if self.form == "indextables":
                removed |= {"partitionValues": {}}
            else:
                removed |= {"extendedFileMetadata": True, "partitionValues": {}}
            lines.append({"remove": removed})
        if version % 4 == 1 and self.form == "delta":
            lines.append({"txn": {"appId": "app", "version": version}})
        return lines

    def protocol(self) -> dict[str, Any]:
        names = list(self.writer_features)
        if self.form == "indextables":
            features = {"readerFeatures": names, "writerFeatures": names} if names else {}
            return {"minReaderVersion": 3, "minWriterVersion": 3, **features}
        if not self.writer_features:
            return {"minReaderVersion": 1, "minWriterVersion": 2}
        readers = [n for n in self.writer_features if n in {"v2Checkpoint", "deletionVectors"}]
        return {
            "minReaderVersion": 3 if readers else 1,
            "minWriterVersion": 7,
            **({"readerFeatures": readers} if readers else {}),
            "writerFeatures": list(self.writer_features),
        }

    def metadata(self) -> dict[str, Any]:
        return {
            "id": "table-of-tests",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": SCHEMA_STRING,
            "partitionColumns": [],
            "configuration": self.configuration,
        }

    # --- checkpoints

    def state(self, version: int) -> list[dict[str, Any]]:
        """The actions of a version's state; file actions last, without dataChange."""
        return [_settled(action) for action in self.states[version]]

    def checkpoint(
        self,
        version: int,
        days: float,
        layout: str = "classic",
        *,
        parts: int = 2,
        without: str | None = None,
        pointer: bool = True,
    ) -> list[Path]:
        """Write a checkpoint; `without` omits a file from it."""
        rows = self.state(version)
        if without is not None:
            rows = [a for a in rows if a.get("add", {}).get("path") != without]
        if self.form == "indextables":
            written = [self._ndjson(version, rows, days)]
        else:
            written = self._delta(version, rows, days, layout, parts)
        if pointer:
            body = {"version": version, "size": len(rows)}
            self.put("_last_checkpoint", json.dumps(body).encode(), days)
        return written

    def _ndjson(self, version: int, rows: list[dict[str, Any]], days: float) -> Path:
        kept = [row for row in rows if "remove" not in row]
        text = "".join(json.dumps(row) + "\n" for row in kept)
        return self.put(f"{version:020d}.checkpoint.json", text.encode(), days)

    def _delta(
        self, version: int, rows: list[dict[str, Any]], days: float, layout: str, parts: int
    ) -> list[Path]:
        stem = f"{version:020d}.checkpoint"
        meta = [row for row in rows if not row.keys() & {"add", "remove"}]
        files = [row for row in rows if row.keys() & {"add", "remove"}]
        if layout == "classic":
            return [self.parquet(f"{stem}.parquet", rows, days)]
        shares = [files[i::parts] for i in range(parts)]
        if layout == "multipart":
            shares[0] = meta + shares[0]
            names = [f"{stem}.{i + 1:010d}.{parts:010d}.parquet" for i in range(parts)]
            return [self.parquet(n, s, days) for n, s in zip(names, shares, strict=True)]
        sidecars = [self.parquet(f"_sidecars/{uuid.uuid4()}.parquet", s, days) for s in shares]
        top: list[dict[str, Any]] = [{"checkpointMetadata": {"version": version}}, *meta]
        top += [
            {"sidecar": {"path": s.name, "sizeInBytes": s.stat().st_size, "modificationTime": 1}}
            for s in sidecars
        ]
        name = f"{stem}.{uuid.uuid4()}"
        if layout == "v2-json":
            text = "".join(json.dumps(row) + "\n" for row in top)
            return [self.put(f"{name}.json", text.encode(), days), *sidecars]
        return [self.parquet(f"{name}.parquet", top, days), *sidecars]

    def parquet(self, name: str, rows: list[dict[str, Any]], days: float) -> Path:
        present = {kind for row in rows for kind in row} or {"add"}
        schema = pa.schema([(kind, type_) for kind, type_ in _FIELDS.items() if kind in present])
        table = pa.Table.from_pylist([_with_pairs(row) for row in rows], schema)
        path = self.put(name, b"-", days)
        pq.write_table(table, path)
        self.age(path, days)
        return path

    # --- the table

    def table(self, *rules: Rule) -> Table:
        """The table, over a store that follows rules."""
        return self.over(*rules)[0]

    def over(self, *rules: Rule) -> tuple[Table, InjectingStore]:
        store = InjectingStore(open_store(str(self.root)), rules)
        return Table(Log(store, DIALECTS[self.form], self.clock), runtime()), store

    def names(self) -> set[str]:
        """Files of the log folder, relative to it, without quarantines."""
        return {
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and ".lakelog-quarantine" not in path.parts
        }


def add(path: str, at: int, size: int = 10) -> dict[str, Any]:
    return {
        "path": path,
        "partitionValues": {},
        "size": size,
        "modificationTime": at,
        "dataChange": True,
        "stats": '{"numRecords":1}',
    }


def _key(action: dict[str, Any]) -> tuple[str, Any]:
    ((kind, body),) = action.items()
    if kind in {"add", "remove"}:
        return "file", body["path"]
    return kind, body.get("appId")


def _applied(state: list[dict[str, Any]], action: dict[str, Any]) -> list[dict[str, Any]]:
    return [*(a for a in state if _key(a) != _key(action)), action]


def _settled(action: dict[str, Any]) -> dict[str, Any]:
    ((kind, body),) = action.items()
    return {kind: body | {"dataChange": False}} if kind in {"add", "remove"} else action


def _with_pairs(row: dict[str, Any]) -> dict[str, Any]:
    """Maps as lists of pairs, as pyarrow takes them."""
    ((kind, body),) = row.items()
    fixed = dict(body)
    for name in ("partitionValues", "configuration"):
        if name in fixed:
            fixed[name] = list(fixed[name].items())
    if "format" in fixed:
        fixed["format"] = {**fixed["format"], "options": []}
    return {kind: fixed}


def content(table: Table, version: int | None = None) -> list[tuple[Any, ...]]:
    """The content of a version, for comparisons."""
    snapshot = table.snapshot(version)
    files = snapshot.files().select("path", "size", "modificationTime").collect()
    txns = snapshot.transactions().select("appId", "txnVersion").collect()
    return [
        (snapshot.version, snapshot.metadata.id),
        *sorted(files.iter_rows()),
        *sorted(txns.iter_rows()),
    ]


def fresh(made: MadeLog) -> Table:
    """The table, opened again by its path."""
    return Table(lakelog.open(made.root).log, runtime())


def gates(files: pl.DataFrame) -> dict[str, str]:
    """Gate by name within the log folder."""
    names = [path.split("/", 1)[1] for path in files["path"]]
    return dict(zip(names, files["gate"], strict=True))


PROMISED, CUTOFF = 29, 20
"""Part of `aged`: the cut-off commit, and the cut-off checkpoint below it."""


def plan(table: Table, **options: Any) -> CleanupPlan:
    """The plan of a cleanup."""
    found = table.cleanup(**options)
    assert isinstance(found, CleanupPlan)
    return found


def clean(table: Table, **options: Any) -> CleanupReport:
    """The result of a cleanup."""
    found = table.cleanup(plan=False, **options)
    assert isinstance(found, CleanupReport)
    return found


def aged(tmp_path: Path, layout: str = "classic", at: tuple[int, ...] = (5, 10, 20, 30)) -> MadeLog:
    """Forty commits, one per day, the newest 21 days old, with checkpoints."""
    features = ("v2Checkpoint",) if layout.startswith("v2") else ()
    made = MadeLog(tmp_path / "table", writer_features=features)
    made.commits(60 - i for i in range(40))
    for version in at:
        made.checkpoint(version, 60 - version, layout)
    return made


def contents(table: Table, versions: range) -> list[Any]:
    """The contents of some versions: the first and the last ones, and every fifth between."""
    some = sorted({*versions[:3], *versions[::5], *versions[-3:]})
    return [content(table, version) for version in some]


def deny(monkeypatch: pytest.MonkeyPatch, denied: Path) -> None:
    """Take away the permissions of a folder, from root too."""

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(path: Any, *args: Any, **options: Any) -> Any:
            if isinstance(path, str) and f"{path}/".startswith(f"{denied}/"):
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return call(path, *args, **options)

        return refuse

    for name in ("scandir", "stat"):
        monkeypatch.setattr(f"lakelog.storage.local.os.{name}", refusing(getattr(os, name)))
