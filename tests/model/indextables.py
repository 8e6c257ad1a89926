"""The plain, sequential replay of an IndexTables log that consists of JSON commits.

Files and skips are identified by their undecoded path; there are no deletion vectors. Checkpoints
are not read here: `tests/dialects/indextables` compares them with the commits that they replace.

Source: specification 001, transaction log; facts on the three framings.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.model.flatten import flatten
from tests.model.strict_json import RefusedError, parse_lines

LOG = "_transaction_log"
SCALA_MARK = b"\x01\x01"
GZIP_MAGIC = b"\x1f\x8b"

_COMMIT = re.compile(r"(\d{20})\.json")
_DEFAULTS: dict[str, dict[str, Any]] = {
    "add": {"dataChange": True},
    "remove": {"dataChange": True},
    "mergeskip": {"skipCount": 1, "skipOperation": ""},
}


@dataclass
class State:
    """The reconciled state of one version."""

    version: int
    protocol: tuple[int, int | None] = (1, 1)
    metadata: dict[str, Any] | None = None
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    tombstones: dict[str, dict[str, Any]] = field(default_factory=dict)
    skips: dict[str, dict[str, Any]] = field(default_factory=dict)

    def apply(self, row: dict[str, Any]) -> None:
        """Reconcile one action; the newest counts."""
        match row["actionType"]:
            case "protocol":
                self.protocol = (row["minReaderVersion"], row["minWriterVersion"])
            case "metaData":
                self.metadata = row
            case "mergeskip":
                self.skips[row["path"]] = row
            case "add":
                self.tombstones.pop(row["path"], None)
                self.files[row["path"]] = {**row, "dataChange": False}
            case "remove":
                self.files.pop(row["path"], None)
                self.tombstones[row["path"]] = {**row, "dataChange": False}


def unframe(data: bytes, where: str) -> bytes:
    """The text of a commit: plain, or gzip with or without the two bytes of the Scala writer."""
    body = data[2:] if data.startswith(SCALA_MARK) else data
    if not body.startswith(GZIP_MAGIC):
        if body is not data:
            raise RefusedError(f"{where}: marked as gzip, but is not gzip")
        return data
    try:
        return gzip.decompress(body)
    except (OSError, EOFError, zlib.error) as cause:
        raise RefusedError(f"{where}: {cause}") from cause


def commits(root: Path) -> dict[int, Path]:
    """Commit files by version."""
    found = {p.name: p for p in (root / LOG).iterdir()}
    return {int(m[1]): p for n, p in sorted(found.items()) if (m := _COMMIT.fullmatch(n))}


def decode_commit(path: Path, version: int) -> list[dict[str, Any]]:
    """Every action of a commit, flattened, with absent fields added."""
    rows = []
    for line, value in parse_lines(unframe(path.read_bytes(), path.name), path.name):
        for wrapper, body in value.items():
            if body is not None:
                row = flatten(wrapper, body, f"{path.name} line {line + 1}", "indextables")
                for column, default in _DEFAULTS.get(row["actionType"], {}).items():
                    row[column] = default if row[column] is None else row[column]
                rows.append({**row, "version": version, "position": line})
    if not rows:
        raise RefusedError(f"{path.name} contains no action")
    return rows


def replay(root: Path, version: int | None = None) -> State:
    """The state at `version` (default: the latest).

    Raises:
        RefusedError: A commit is missing or malformed, or there is no metadata.
    """
    found = commits(root)
    state = State(max(found, default=-1) if version is None else version)
    for wanted in range(state.version + 1):
        if wanted not in found:
            raise RefusedError(f"commit {wanted} is missing")
        for row in decode_commit(found[wanted], wanted):
            state.apply(row)
    if state.metadata is None:
        raise RefusedError("no metadata")
    if state.protocol[0] > 4:
        raise RefusedError(f"reader version {state.protocol[0]}")
    return state
