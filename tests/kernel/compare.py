"""Compares the results of both engines for one table."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import lakelog
from tests.kernel.engine import Kernel, Row, State
from tests.spark.reference import our_state


def assert_same(kernel: Kernel, root: Path, version: int | None = None) -> State:
    """Assert that both engines give the same state and rows; returns lakelog's state."""
    ours, theirs = our_state(str(root), version), kernel.state(root, version)
    _assert_same_tombstones(root, ours, theirs)
    ours["schema"] = ours["metadata"]["schemaString"]
    typed_only = ours["metadata"]["configuration"].get("delta.checkpoint.writeStatsAsJson")
    for key, file in ours["files"].items():
        del file["clusteringProvider"]  # the Kernel does not read it
        other = theirs["files"].get(key, {"stats": None})
        file["stats"] = _numbers(file["stats"])
        other["stats"] = _numbers(other["stats"])
        if typed_only == "false" and other.get("stats") is None:
            other["stats"] = file["stats"]  # the Kernel reads no typed ones
    for part, of_theirs in theirs.items():
        assert ours[part] == of_theirs, f"{part} of version {theirs['version']}"
    assert sorted_rows(kernel.rows(root, version)) == sorted_rows(our_rows(root, version))
    return ours


def _assert_same_tombstones(root: Path, ours: State, theirs: State) -> None:
    """The Kernel keeps removes of files that are live again, and drops those of checkpoints."""
    found = theirs.pop("tombstones")
    expected = ours["tombstones"]
    live = ours["files"]
    assert {key: at for key, at in found.items() if key not in live}.items() <= expected.items()
    if not any((root / "_delta_log").glob("*.checkpoint*")):
        assert expected.keys() <= found.keys()


def _numbers(stats: Any) -> Any:
    """Statistics whose numbers have one type; bounds are tight unless stated otherwise."""
    if stats is None:
        return None
    numbers = json.loads(json.dumps(stats), parse_int=float)
    return numbers if numbers.pop("tightBounds", True) else numbers | {"tightBounds": False}


def our_rows(root: Path, version: int | None = None) -> list[Row]:
    """lakelog's rows in the form of `Kernel.rows`."""
    table = lakelog.open(str(root)).snapshot(version).scan().collect().to_arrow()
    return [
        {name: _plain(value) for name, value in row.items()}
        for row in table.to_pylist(maps_as_pydicts="strict")
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value


def sorted_rows(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


def assert_same_changes(kernel: Kernel, root: Path, start: int, end: int) -> None:
    """Assert that both engines give the same actions of each commit, in the same order."""
    theirs = kernel.changes(root, start, end)
    ours = lakelog.open(str(root)).actions(start, end).collect().sort("version", "position")
    lakelog_actions = [
        (row["version"], row["actionType"], _identity(row["actionType"], row))
        for row in ours.iter_rows(named=True)
    ]
    assert lakelog_actions == [
        (version, kind, _their_identity(kind, body)) for version, kind, body in theirs
    ]


def _identity(kind: str, row: Row) -> Any:
    match kind:
        case "add" | "remove":
            return row["path"], row["dvId"], row["dataChange"]
        case "cdc":
            return row["path"], row["size"]
        case "txn":
            return row["appId"], row["txnVersion"]
        case "domainMetadata":
            return row["domain"], row["domainConfiguration"], bool(row["domainRemoved"])
        case "commitInfo":
            return row["operation"], row["txnId"], row["inCommitTimestamp"]
        case "metaData":
            return row["metadataId"], row["schemaString"]
        case _:
            return row["minReaderVersion"], row["minWriterVersion"]


def _their_identity(kind: str, body: Row) -> Any:
    from tests.kernel.engine import key_of

    match kind:
        case "add" | "remove":
            return *key_of(body), body["dataChange"]
        case "cdc":
            return key_of(body)[0], body["size"]
        case "txn":
            return body["appId"], body["version"]
        case "domainMetadata":
            return body["domain"], body["configuration"], body["removed"]
        case "commitInfo":
            return body.get("operation"), body.get("txnId"), body.get("inCommitTimestamp")
        case "metaData":
            return body["id"], body["schemaString"]
        case _:
            return body["minReaderVersion"], body["minWriterVersion"]
