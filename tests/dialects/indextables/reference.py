"""A client of IndexTables' own transaction log, and the comparison of its state with lakelog's.

LAKELOG_INDEXTABLES_BUILD names a folder that holds IndexTables, compiled (``src/target/classes``),
the jars that it needs (``classpath``, one line), and a driver (``oracle``) that reads one command
per line as JSON from standard input and answers each with one line, ``{"ok": ...}`` or ``{"error":
..., "message": ...}``. None of it is part of lakelog.

Known differences of the reference, which are not compared: it drops skips at checkpoints and
states; it adds the feature ``avroState`` for a state; it merges the properties of later metadata
into those of its checkpoint, so that a removed property reappears; it prefers the protocol of the
commits to that of a JSON checkpoint; version 0.5.3 does not list JSON commits above an Avro state,
not even its own, while its native successor and lakelog do.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import lakelog
from lakelog.dialects.indextables.docmapping import normalised

VARIABLE = "LAKELOG_INDEXTABLES_BUILD"
MISSING = f"no build of IndexTables: set {VARIABLE} to the folder of one"

JSON = {"spark.indextables.state.format": "json"}
"""Options that make the reference commit JSON; without them it commits Avro states."""

SHARED = JSON | {"spark.indextables.checkpoint.enabled": "false"}
"""Options for a table that lakelog commits to as well."""

PLAIN = {"spark.indextables.transaction.optimized.enabled": "false"}
"""Options for the older reader and writer, the only one that records skips."""

SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
)

_MAIN = "io.indextables.spark.transaction.Oracle"
_OPENED = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util"
    " java.util.concurrent java.util.concurrent.atomic sun.nio.ch sun.nio.cs sun.security.action"
    " sun.util.calendar"
).split()
_FIELDS = (
    "partitionValues size modificationTime stats tags minValues maxValues numRecords"
    " footerStartOffset footerEndOffset hasFooterOffsets splitTags deleteOpstamp numMergeOps"
    " docMappingJson uncompressedSizeBytes"
).split()
_MAPS = ("partitionValues", "minValues", "maxValues", "tags")


class RefusedError(Exception):
    """The reference returned an error."""


class Reference:
    """One process of the reference; each command sees the table as it is on disk."""

    def __init__(self, build: Path, errors: IO[bytes]) -> None:
        classpath = (build / "classpath").read_text(encoding="utf-8").strip()
        path = os.pathsep.join((f"{build}/oracle", f"{build}/src/target/classes", classpath))
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        self._process = subprocess.Popen(
            ["java", "-Xmx1g", *opens, "-cp", path, _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert self._answer() == {"ready": True}

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the reference process has ended; see its standard error"
        return json.loads(line)

    def __call__(
        self, op: str, table: str | Path, options: Mapping[str, str] | None = None, **rest: Any
    ) -> Any:
        command = {"op": op, "table": str(table), "options": dict(options or {}), **rest}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "ok" not in answer:
            raise RefusedError(f"{answer['error']}: {answer['message']}")
        return answer["ok"]

    def skip(self, table: str | Path, path: str) -> None:
        """Record that a merge could not read a file."""
        self("skip", table, PLAIN, path=path, reason="broken", operation="merge", hours=24)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def add(path: str, **fields: Any) -> dict[str, Any]:
    """An add for the reference."""
    body = {"path": path, "partitionValues": {}, "size": 100, "modificationTime": 1}
    return {**body, "dataChange": True, "numRecords": 3, **fields}


def remove(path: str) -> dict[str, Any]:
    """A remove for the reference."""
    return {"path": path, "deletionTimestamp": 1, "dataChange": True}


def differences(real: Mapping[str, Any], snapshot: lakelog.Snapshot) -> list[str]:
    """Where lakelog's snapshot and the reference's answer to ``state`` differ, one line each."""
    ours = {row["path"]: row for row in snapshot.files().collect().to_dicts()}
    theirs = {row["path"]: row for row in real["files"]}
    wrong = [f"only lakelog has {path}" for path in sorted(ours.keys() - theirs.keys())]
    wrong += [f"only the reference has {path}" for path in sorted(theirs.keys() - ours.keys())]
    for path in sorted(ours.keys() & theirs.keys()):
        for field in _FIELDS:
            own, other = (_plain(field, rows[path].get(field)) for rows in (ours, theirs))
            if own != other:
                wrong.append(f"{path}.{field}: lakelog {own!r}, reference {other!r}")
    own_metadata, metadata = snapshot.metadata, real["metadata"]
    pairs = [
        ("version", snapshot.version, _version(real)),
        ("id", own_metadata.id, metadata["id"]),
        ("schema", json.loads(own_metadata.schema_string or ""), _schema(metadata)),
        ("partitionColumns", list(own_metadata.partition_columns), metadata["partitionColumns"]),
        ("configuration", dict(own_metadata.configuration), metadata["configuration"]),
    ]
    protocol, checkpoint = real["protocol"], real["checkpoint"]
    if checkpoint is None or checkpoint["format"] is not None:
        both = (protocol["minReaderVersion"], protocol["minWriterVersion"])
        own_protocol = snapshot.protocol
        found = (own_protocol.min_reader_version, own_protocol.min_writer_version)
        pairs.append(("protocol", found, both))
    wrong += [f"{n}: lakelog {a!r}, reference {b!r}" for n, a, b in pairs if a != b]
    skipped = {row["path"] for row in snapshot.skips().collect().to_dicts()}
    lost = sorted({skip["path"] for skip in real["skips"]} - skipped)
    return wrong + [f"lakelog lacks the skip of {path}" for path in lost]


def _version(real: Mapping[str, Any]) -> int:
    checkpoint = real["checkpoint"]
    if checkpoint is not None and checkpoint["format"] == "avro-state":
        return int(checkpoint["version"])
    return int(max(real["versions"]))


def _schema(metadata: Mapping[str, Any]) -> Any:
    return json.loads(metadata["schemaString"])


def _plain(field: str, value: Any) -> Any:
    """A canonical form of values that both sides may encode differently."""
    if field == "hasFooterOffsets":
        return bool(value)
    if field in _MAPS:
        return dict(value or {})
    if field == "splitTags":
        return sorted(value or ())
    if field == "docMappingJson" and value is not None:
        return normalised(value)
    return value
