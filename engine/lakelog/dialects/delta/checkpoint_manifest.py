"""Checkpoint metadata of V2 manifests, and the contents of the pointer.

All keys that Delta Lake on Spark writes are written, in its spelling, so that it need not read the
manifest and the sidecars' footers.

Source: Delta protocol, Sidecar File Information; Checkpoint Metadata; Last Checkpoint File Schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from lakelog.dialects.delta.checkpoint_schema import spark_schema
from lakelog.dialects.delta.last_checkpoint import checksum
from lakelog.dialects.delta.sidecar_fingerprints import (
    Fingerprint,
    Inspection,
    inspect_sidecar,
    total_tags,
)
from lakelog.dialects.encode import encode_rows
from lakelog.dialects.log_content import CheckpointPlan, SidecarFile, StagedFile
from lakelog.errors import MalformedLogError
from lakelog.model import actions
from lakelog.storage import LogStore

META_ORDER = ("protocol", "metaData", "domainMetadata", "txn")
"""Non-file actions of a state, in the order in which they are written."""

ACTIONS_TAG = "lakelog.actions"
"""Key, among the tags of the checkpointMetadata action, for the number of the manifest's other
rows.
"""

_LONGEST_SCHEMA = 20_000
"""Maximum length of a schema that is repeated in the pointer, in characters; as in Spark."""
_MOST_REPEATED = 30
"""Maximum number of actions, and of sidecars, that are repeated in the pointer; as in Spark."""


@dataclass(frozen=True)
class FileActionCounts:
    """Number of file actions in some sidecars."""

    adds: int = 0
    removes: int = 0

    @property
    def total(self) -> int:
        """Number of file actions."""
        return self.adds + self.removes

    def __add__(self, other: FileActionCounts) -> FileActionCounts:
        return FileActionCounts(self.adds + other.adds, self.removes + other.removes)


def checkpoint_metadata(version: int, tags: dict[str, str]) -> pl.DataFrame:
    """The one checkpointMetadata action of a manifest, as a flattened row."""
    row = {"actionType": "checkpointMetadata", "extra": json.dumps({"version": version})}
    return _frame([row | {"tags": tags}])


def require_whole(meta: pl.DataFrame, others: int, path: str, version: int) -> int | None:
    """Compare a manifest with the counts in its own tags."""
    rows = actions.conform(meta, ("actionType", "size", "tags"))
    own = rows.filter(pl.col("actionType") == "checkpointMetadata")
    tags = (own["tags"][0] if own.height else None) or {}
    held = int(rows.filter(pl.col("actionType") == "sidecar")["size"].sum())
    found = {ACTIONS_TAG: others, "sidecarSizeInBytes": held}
    for key, value in found.items():
        text = tags.get(key) or ""
        if text.isascii() and text.isdigit() and text.lstrip("0") != str(value).lstrip("0"):
            raise MalformedLogError(
                "the manifest's content differs from its tags",
                path=path,
                version=version,
                expected=f"{key} {text:.30}",
                found=value,
                hint="the file is truncated or damaged: restore it from a copy, or remove "
                "the checkpoint's files if its commits exist",
            )
    text = tags.get("sidecarNumActions") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def sidecar_rows(sidecars: Sequence[SidecarFile]) -> pl.DataFrame:
    """The sidecar actions of a manifest, as flattened rows; paths are file names."""
    return _frame(
        [
            {
                "actionType": "sidecar",
                "path": _name(sidecar),
                "size": sidecar.size_bytes,
                "modificationTime": sidecar.modified_ms,
                "tags": dict(sidecar.tags) or None,
            }
            for sidecar in sidecars
        ]
    )


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    columns = ("actionType", "path", "size", "modificationTime", "tags", "extra")
    schema = actions.schema()
    return pl.DataFrame(rows, schema={name: schema[name] for name in columns})


def _name(sidecar: SidecarFile) -> str:
    return sidecar.path.rsplit("/", 1)[-1]


def count_actions(store: LogStore, sidecars: Sequence[SidecarFile]) -> FileActionCounts:
    """Number of file actions in sidecars, from their records or footers."""
    total = FileActionCounts()
    for sidecar in sidecars:
        found: Fingerprint | Inspection | None = Fingerprint.of_tags(sidecar.tags)
        if found is None:
            found = inspect_sidecar(store, sidecar.path)  # its recorded length may be wrong
        if found.adds is None or found.removes is None:
            raise MalformedLogError(
                "the footer of a sidecar does not record its number of actions", path=sidecar.path
            )
        total += FileActionCounts(found.adds, found.removes)
    return total


def manifest_tags(
    sidecars: Sequence[SidecarFile], held: FileActionCounts, schema: pa.Schema
) -> dict[str, str]:
    """The tags of the checkpointMetadata action."""
    tags = {
        "sidecarNumActions": str(held.total),
        "sidecarSizeInBytes": str(sum(sidecar.size_bytes for sidecar in sidecars)),
        "numOfAddFiles": str(held.adds),
    }
    if repeated := _short(schema):
        tags["sidecarFileSchema"] = repeated
    return tags | total_tags(sidecar.tags for sidecar in sidecars)


def pointer_bytes(
    plan: CheckpointPlan,
    files: Sequence[StagedFile],
    held: FileActionCounts,
    schema: pa.Schema | None,
    sidecars: Sequence[SidecarFile] = (),
    meta: Sequence[pl.DataFrame] = (),
) -> bytes:
    """The content of ``_last_checkpoint``, with its checksum."""
    sidecar_actions = held.total if sidecars else 0
    pointer: dict[str, Any] = {
        "version": plan.version,
        "size": sidecar_actions + sum(file.num_actions for file in files),
    }
    if plan.layout == "multipart":
        pointer["parts"] = len(files)
    pointer["sizeInBytes"] = sum(f.size_bytes for f in files) + sum(s.size_bytes for s in sidecars)
    pointer["numOfAddFiles"] = held.adds
    if plan.layout.startswith("v2-"):
        pointer["v2Checkpoint"] = _repeated(plan, files[0], sidecars, meta)
    if schema is not None and (repeated := _short(schema)):
        pointer["checkpointSchema"] = orjson.loads(repeated)
    return orjson.dumps(pointer | {"checksum": checksum(pointer)})


def _repeated(
    plan: CheckpointPlan,
    manifest: StagedFile,
    sidecars: Sequence[SidecarFile],
    meta: Sequence[pl.DataFrame],
) -> dict[str, Any]:
    """The content of the manifest, if it is small enough to be repeated."""
    content: dict[str, Any] = {
        "path": manifest.target.rsplit("/", 1)[-1],
        "sizeInBytes": manifest.size_bytes,
        "modificationTime": plan.created_ms,
    }
    if sum(rows.height for rows in meta) <= _MOST_REPEATED:
        content["nonFileActions"] = _lines(meta)
    if len(sidecars) <= _MOST_REPEATED:
        # Without tags: opening a table does not need them, and every reader reads the pointer.
        plain = [replace(sidecar, tags={}) for sidecar in sidecars]
        rows = [sidecar_rows(plain)] if plain else []
        content["sidecarFiles"] = [line["sidecar"] for line in _lines(rows)]
    return content


def _lines(frames: Sequence[pl.DataFrame]) -> list[dict[str, Any]]:
    content = []
    for frame in frames:
        own = frame["actionType"][0] == "checkpointMetadata"
        rows = frame if own else frame.drop("extra", strict=False)
        text = b"".join(encode_rows(rows, "delta", ahead=False))
        content += [orjson.loads(line) for line in text.splitlines()]
    return content


def _short(schema: pa.Schema) -> str:
    """The schema as Spark's JSON, or empty if that is long."""
    text = json.dumps(spark_schema(schema), separators=(",", ":"))
    return text if len(text) <= _LONGEST_SCHEMA else ""
