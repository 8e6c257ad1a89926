"""Delta checkpoints read plainly: every row of every file, as dictionaries.

`BrokenCheckpointError` means that the files cannot be read; a readable checkpoint that violates a
rule (no protocol, no metadata) is refused by the replay and never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.model.flatten import flatten, wire
from tests.model.strict_json import RefusedError, parse_lines

PARSED = ("stats_parsed", "partitionValues_parsed")


class BrokenCheckpointError(Exception):
    """The checkpoint cannot be read, or its parts are inconsistent."""


@dataclass(frozen=True, order=True)
class Candidate:
    """One complete checkpoint; the maximum is the best (version, then layout, then name)."""

    version: int
    rank: tuple[int, int]
    paths: tuple[str, ...]
    layout: str


def _plain(value: Any) -> Any:
    return value.to_pylist(maps_as_pydicts="strict")


def _stats_text(parsed: dict[str, Any] | None) -> str | None:
    """A statistics struct as JSON text, without nulls at any level."""

    def drop(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {k: drop(v) for k, v in value.items()}
            return {k: v for k, v in kept.items() if v is not None}
        return value

    return None if parsed is None else json.dumps(drop(parsed), default=str)


def _column(column: pa.ChunkedArray) -> list[Any]:
    """The rows of one action column; statistics kept only as a struct become JSON text."""
    if not pa.types.is_struct(column.type):
        return list(_plain(column))
    combined = column.combine_chunks()
    names = [field.name for field in column.type]
    kept = [n for n in names if n not in PARSED]
    rows = _plain(
        pa.StructArray.from_arrays(
            [combined.field(n) for n in kept],
            fields=[column.type.field(n) for n in kept],
            mask=combined.is_null(),
        )
    )
    if "stats_parsed" in names:
        texts = [_stats_text(parsed) for parsed in _plain(combined.field("stats_parsed"))]
        for row, text in zip(rows, texts, strict=True):
            if row is not None and row.get("stats") is None:
                row["stats"] = text
    return list(rows)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    table = pq.read_table(path)
    table.validate(full=True)
    values = [_column(table.column(i)) for i in range(table.num_columns)]
    for number in range(table.num_rows):
        yield {name: values[i][number] for i, name in enumerate(table.column_names)}


def _rows(path: Path, relative: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if relative.endswith(".json"):
        for line, row in parse_lines(path.read_bytes(), relative):
            yield f"{relative} line {line + 1}", row
    else:
        for number, row in enumerate(_parquet_rows(path)):
            yield f"{relative} row {number}", row


def read(root: Path, candidate: Candidate) -> list[dict[str, Any]]:
    """Every action of the checkpoint, flattened, including those of sidecars.

    Raises:
        BrokenCheckpointError: A file is missing or undecodable, or the rows contradict each other.
    """
    try:
        return _read(root, candidate)
    except (RefusedError, OSError, ValueError, pa.ArrowException, NotImplementedError) as cause:
        raise BrokenCheckpointError(f"{candidate.paths}: {cause}") from cause


def _read(root: Path, candidate: Candidate) -> list[dict[str, Any]]:
    found = [row for path in candidate.paths for row in _actions(root, path, candidate)]
    for sidecar in [row for row in found if row["actionType"] == "sidecar"]:
        relative = f"_delta_log/_sidecars/{sidecar['path'].rsplit('/', 1)[-1]}"
        for row in _actions(root, relative, candidate):
            if row["actionType"] not in {"add", "remove"}:
                raise RefusedError(f"{relative}: a sidecar with {row['actionType']}")
            found.append(row)
    _check(found, candidate)
    return found


def _actions(root: Path, relative: str, candidate: Candidate) -> Iterator[dict[str, Any]]:
    """The known actions of one file, flattened; Parquet has exactly one action per row."""
    parquet = relative.endswith(".parquet")
    for where, row in _rows(root / relative, relative):
        actions = {k: v for k, v in row.items() if v is not None}
        known = [k for k in actions if k in wire("delta")]
        if parquet and (not actions or len(known) > 1):
            raise RefusedError(f"{where}: a row contains one action, not {known}")
        for wrapper in known:
            body = actions[wrapper]
            if parquet and wrapper == "add":
                body = {k: v for k, v in body.items() if k not in PARSED}
            action = _action(wrapper, body, where, candidate)
            # Of Parquet's other actions, only the columns that the contract names are read.
            yield (
                action if not parquet or wrapper in {"add", "remove"} else {**action, "extra": None}
            )


def _action(wrapper: str, body: Any, where: str, candidate: Candidate) -> dict[str, Any]:
    if wrapper == "checkpointMetadata" and body.get("version") != candidate.version:
        raise RefusedError(f"{where}: checkpoint of version {body.get('version')}")
    return flatten(wrapper, body, where) | {"version": None, "position": None}


def _check(found: list[dict[str, Any]], candidate: Candidate) -> None:
    """Verify that a checkpoint is reconciled: no duplicates (Delta protocol, Checkpoints)."""
    kinds = [row["actionType"] for row in found]
    if candidate.layout.startswith("v2-") and kinds.count("checkpointMetadata") != 1:
        raise RefusedError("a V2 checkpoint contains one checkpointMetadata")
    if kinds.count("protocol") > 1 or kinds.count("metaData") > 1:
        raise RefusedError("more than one protocol or metaData in a checkpoint")
    for kind, columns in (
        (("add", "remove"), ("path", "dvId")),
        (("txn",), ("appId",)),
        (("domainMetadata",), ("domain",)),
    ):
        keys = [tuple(r[c] for c in columns) for r in found if r["actionType"] in kind]
        if len(keys) != len(set(keys)):
            raise RefusedError(f"{kind} twice in a checkpoint")
