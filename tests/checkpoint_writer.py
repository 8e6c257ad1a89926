"""Test-only checkpoints of every layout, written by pyarrow from the model's state.

Varied where the protocol permits it (omitted columns, statistics as text, struct, both or neither,
row order, codecs, inline file actions or sidecars), and deliberately simple.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.model.flatten import wire
from tests.model.replay import LOG, State

MAP = pa.map_(pa.string(), pa.string())
STATS = pa.struct(
    [
        ("numRecords", pa.int64()),
        ("minValues", pa.struct([("id", pa.int64()), ("name", pa.string())])),
        ("maxValues", pa.struct([("id", pa.int64()), ("name", pa.string())])),
        ("nullCount", pa.struct([("id", pa.int64()), ("name", pa.int64())])),
    ]
)
VECTOR = [
    ("storageType", pa.string()),
    ("pathOrInlineDv", pa.string()),
    ("offset", pa.int32()),
    ("sizeInBytes", pa.int32()),
    ("cardinality", pa.int64()),
]
FIELDS: dict[str, list[tuple[str, pa.DataType]]] = {
    "protocol": [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ],
    "metaData": [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", MAP)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", MAP),
        ("createdTime", pa.int64()),
    ],
    "txn": [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())],
    "domainMetadata": [
        ("domain", pa.string()),
        ("configuration", pa.string()),
        ("removed", pa.bool_()),
    ],
    "add": [
        ("path", pa.string()),
        ("partitionValues", MAP),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("tags", MAP),
        ("deletionVector", pa.struct(VECTOR)),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
        ("clusteringProvider", pa.string()),
        ("stats_parsed", STATS),
        ("partitionValues_parsed", pa.struct([("p", pa.string()), ("q", pa.int32())])),
    ],
    "remove": [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", MAP),
        ("size", pa.int64()),
        ("deletionVector", pa.struct(VECTOR)),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
    ],
    "checkpointMetadata": [("version", pa.int64()), ("tags", MAP)],
    "sidecar": [
        ("path", pa.string()),
        ("sizeInBytes", pa.int64()),
        ("modificationTime", pa.int64()),
        ("tags", MAP),
    ],
}
OPTIONAL = {
    "metaData": ("name", "description", "createdTime"),
    "txn": ("lastUpdated",),
    "domainMetadata": ("removed",),
    "add": (
        "tags",
        "deletionVector",
        "baseRowId",
        "defaultRowCommitVersion",
        "clusteringProvider",
        "dataChange",
        "modificationTime",
    ),
    "remove": (
        "dataChange",
        "deletionTimestamp",
        "extendedFileMetadata",
        "partitionValues",
        "size",
        "deletionVector",
        "baseRowId",
        "defaultRowCommitVersion",
    ),
}


def wrap(row: dict[str, Any]) -> dict[str, Any]:
    """The action object of a flattened row; paths as URIs."""
    body: dict[str, Any] = json.loads(row["extra"] or "{}")
    for slot in wire("delta")[row["actionType"]]:
        value = row.get(slot.column)
        if value is None:
            continue
        inner = body
        for key in slot.keys[:-1]:
            inner = inner.setdefault(key, {})
        if slot.column == "path":
            value = quote(value, safe="/:=+")
        inner[slot.keys[-1]] = value
    return {row["actionType"]: body}


def state_actions(state: State) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The state's actions as objects: non-file actions, and file actions."""
    assert state.protocol is not None
    assert state.metadata is not None
    meta = [state.protocol, state.metadata]
    meta += [*state.transactions.values(), *state.domains.values()]
    files = [*state.files.values(), *state.tombstones.values()]
    return [wrap(row) for row in meta], [wrap(row) for row in files]


def write(root: Path, state: State, layout: str, rng: random.Random) -> list[Path]:
    """Write a checkpoint of `state`, and return its files.

    Args:
        root: Table root.
        state: Content of the checkpoint.
        layout: ``classic``, ``classic-v2``, ``multipart``, ``v2-json`` or ``v2-parquet``.
        rng: Chooses among the permitted variants.
    """
    meta, files = state_actions(state)
    if rng.random() < 0.5:
        rng.shuffle(files)
    columns = _choose_columns(files, rng, _has_vectors(state))
    stem = root / LOG / f"{state.version:020d}.checkpoint"
    if layout == "classic":
        path = Path(f"{stem}.parquet")
        _write_parquet(path, _mixed(meta, files, rng), columns, rng)
        return [path]
    if layout == "multipart":
        parts = rng.randrange(1, 4)
        chunks: list[list[dict[str, Any]]] = [[] for _ in range(parts)]
        for action in files:
            rng.choice(chunks).append(action)
        chunks[rng.randrange(parts)] += meta
        paths = [Path(f"{stem}.{i + 1:010d}.{parts:010d}.parquet") for i in range(parts)]
        for path, chunk in zip(paths, chunks, strict=True):
            _write_parquet(path, chunk, columns, rng)
        return paths
    return _write_v2(root, state, layout, meta, files, rng)


def _write_v2(
    root: Path,
    state: State,
    layout: str,
    meta: list[dict[str, Any]],
    files: list[dict[str, Any]],
    rng: random.Random,
) -> list[Path]:
    stem = root / LOG / f"{state.version:020d}.checkpoint"
    columns = _choose_columns(files, rng, _has_vectors(state))
    tags = {"numOfAddFiles": str(len(state.files))} if rng.random() < 0.5 else {}
    top = [{"checkpointMetadata": {"version": state.version, "tags": tags}}, *meta]
    written: list[Path] = []
    if rng.random() < 0.25:
        top += files
    else:
        for chunk in _split(files, rng.randrange(1, 4)):
            name = f"{uuid.UUID(int=rng.getrandbits(128))}.parquet"
            if rng.random() < 0.2:
                name = f"{state.version:020d}.checkpoint.0000000001.0000000001.{name}"
            path = root / LOG / "_sidecars" / name
            path.parent.mkdir(exist_ok=True)
            _write_parquet(path, chunk, columns, rng, wrappers=("add", "remove"))
            written.append(path)
            size = path.stat().st_size if rng.random() < 0.8 else 1
            top.append(
                {"sidecar": {"path": name, "sizeInBytes": size, "modificationTime": 1, "tags": {}}}
            )
    if rng.random() < 0.5:
        rng.shuffle(top)
    name = "" if layout == "classic-v2" else f".{uuid.UUID(int=rng.getrandbits(128))}"
    if layout == "v2-json":
        path = Path(f"{stem}{name}.json")
        path.write_text("".join(json.dumps(a, ensure_ascii=False) + "\n" for a in top))
    else:
        path = Path(f"{stem}{name}.parquet")
        _write_parquet(path, top, columns, rng)
    return [path, *written]


def _split(actions: list[dict[str, Any]], parts: int) -> list[list[dict[str, Any]]]:
    return [actions[i::parts] for i in range(parts)]


def _mixed(
    meta: list[dict[str, Any]], files: list[dict[str, Any]], rng: random.Random
) -> list[dict[str, Any]]:
    actions = [*meta, *files]
    if rng.random() < 0.5:
        rng.shuffle(actions)
    return actions


def _has_vectors(state: State) -> bool:
    """Whether the protocol lists deletion vectors, whose column no writer omits then."""
    lists = ("readerFeatures", "writerFeatures")
    protocol = state.protocol or {}
    return any("deletionVectors" in (protocol.get(name) or ()) for name in lists)


def _choose_columns(
    files: Sequence[dict[str, Any]], rng: random.Random, vectors: bool
) -> dict[str, list[tuple[str, pa.DataType]]]:
    """The fields of each action's struct; omitted fields are read as null."""
    # A deletion vector is part of a file's identity: it is never omitted if there is one.
    vectors |= any("deletionVector" in body for action in files for body in action.values())
    dropped = {
        (wrapper, name)
        for wrapper, names in OPTIONAL.items()
        for name in names
        if rng.random() < 0.1 and not (vectors and name == "deletionVector")
    }
    form = rng.choice(["json", "json", "struct", "both", "neither"])
    if form in {"struct", "neither"}:
        dropped.add(("add", "stats"))
    if form in {"json", "neither"}:
        dropped |= {("add", "stats_parsed"), ("add", "partitionValues_parsed")}
    return {
        wrapper: [f for f in fields if (wrapper, f[0]) not in dropped]
        for wrapper, fields in FIELDS.items()
    }


def _write_parquet(
    path: Path,
    actions: Sequence[dict[str, Any]],
    columns: dict[str, list[tuple[str, pa.DataType]]],
    rng: random.Random,
    wrappers: Iterable[str] | None = None,
) -> None:
    present = {wrapper for action in actions for wrapper in action}
    names = list(wrappers or ("txn", "add", "remove", "metaData", "protocol", "domainMetadata"))
    # Readers must treat a missing column as nulls; different writers omit different columns.
    names = [n for n in names if n in present or rng.random() < 0.7 or n == "add"]
    names += [n for n in sorted(present) if n not in names]
    if not names:
        names = ["add"]
    arrays = [
        pa.array([_fit(a.get(n), columns[n]) for a in actions], pa.struct(columns[n]))
        for n in names
    ]
    pq.write_table(
        pa.table(dict(zip(names, arrays, strict=True))),
        path,
        compression=rng.choice(["snappy", "zstd", "none", "gzip"]),
        row_group_size=rng.choice([1, 3, 1000]),
        use_dictionary=rng.random() < 0.7,
        data_page_version=rng.choice(["1.0", "2.0"]),
    )


def _fit(
    body: dict[str, Any] | None, fields: list[tuple[str, pa.DataType]]
) -> dict[str, Any] | None:
    """The body with the struct forms of its statistics and partition values, next to the texts."""
    if body is None:
        return None
    fitted: dict[str, Any] = {name: body.get(name) for name, _ in fields}
    for name, type_ in fields:
        if pa.types.is_map(type_) and fitted[name] is not None:
            fitted[name] = list(fitted[name].items())
    if fitted.get("format") is not None:
        fitted["format"] = {**fitted["format"], "options": []}
    if "stats_parsed" in fitted:
        fitted["stats_parsed"] = _parse_stats(body.get("stats"))
        values = body.get("partitionValues") or {}
        q = values.get("q")
        fitted["partitionValues_parsed"] = {"p": values.get("p"), "q": q and int(q)}
    return fitted


def _parse_stats(text: str | None) -> Any:
    try:
        stats = json.loads(text or "null")
    except ValueError:
        return None
    return stats or None
