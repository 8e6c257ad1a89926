"""Actions in their JSON form, converted to the input of the conflict checker.

The real decoder converts them, so that frames are as narrow, and paths as decoded, as those of a
commit that was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import polars as pl

from lakelog.dialects.base import Dialect
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.log_content import Actions, CommitFile
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.model.metadata import Metadata, Protocol
from lakelog.storage import LogStore
from lakelog.transaction.conflicts import RULES, find_conflict
from lakelog.transaction.pending_commit import PendingCommit, Reads, Winner
from tests.handmade import Action, field, info, metadata, protocol

DIALECTS: dict[str, Dialect] = {"delta": DELTA, "indextables": INDEXTABLES}
COLUMNS = (field("p", "string"), field("q", "integer"), field("x", "long"))
METADATA = metadata(*COLUMNS, partitioned=("p", "q"))
PROTOCOL = protocol()
p, q, x = pl.col("p"), pl.col("q"), pl.col("x")
SERIALIZABLE = "Serializable"
WRITE_SERIALIZABLE = "WriteSerializable"
BLIND = info("WRITE", isBlindAppend=True)
NOT_BLIND = info("MERGE", isBlindAppend=False)


class _OneCommit:
    """The part of a store that decoding one commit uses."""

    root = "made by a test"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_many(self, paths: Sequence[str]) -> Iterable[bytes]:
        return [self._data for _ in paths]


def decoded(actions: Iterable[Action], version: int = 1, format_: str = "delta") -> Actions:
    """Actions as the dialect decodes them from one commit."""
    actions = list(actions)
    if not actions:
        return Actions()  # a transaction may be empty, a commit's file may not
    data = "".join(json.dumps(a, ensure_ascii=False) + "\n" for a in actions).encode()
    commit = CommitFile(version, f"{version:020d}.json", len(data), 0)
    return DIALECTS[format_].decode(cast("LogStore", _OneCommit(data)), [commit])


def winner(*actions: Action, version: int = 7, format_: str = "delta") -> Winner:
    """A commit of `actions`."""
    return Winner(version, decoded(actions, version, format_))


def pending(
    *actions: Action,
    where: Sequence[pl.Expr] = (),
    whole: bool = False,
    app_ids: Iterable[str] = (),
    isolation: str = "WriteSerializable",
    read_protocol: Action = PROTOCOL,
    read_metadata: Action = METADATA,
    format_: str = "delta",
) -> PendingCommit:
    """A transaction of `actions` that read a table of `COLUMNS`."""
    own = decoded(actions, 1, format_)
    return PendingCommit(
        Reads(whole, tuple(where), frozenset(app_ids)),
        own.files,
        own.meta,
        isolation,
        TableConfiguration(
            DIALECTS[format_],
            protocol_of(read_protocol, format_),
            metadata_of(read_metadata, format_),
        ),
    )


def protocol_of(action: Action, format_: str = "delta") -> Protocol:
    """A protocol action as lakelog reads it."""
    return Protocol.from_row(decoded([action], 0, format_).meta.row(0, named=True))


def metadata_of(action: Action, format_: str = "delta") -> Metadata:
    """A metaData action as lakelog reads it."""
    return Metadata.from_row(decoded([action], 0, format_).meta.row(0, named=True))


def at(p: str | None, q: int | None = 1) -> dict[str, Any]:
    """Partition values of a file, for `add` and `remove`."""
    return {"partitionValues": {"p": p, "q": None if q is None else str(q)}}


def bounds(
    low: int | None, high: int | None, nulls: int | None = 0, rows: int = 9
) -> dict[str, Any]:
    """Statistics of column x, for `add` and `remove`."""
    body: dict[str, Any] = {"numRecords": rows}
    for name, value in (("minValues", low), ("maxValues", high), ("nullCount", nulls)):
        if value is not None:
            body[name] = {"x": value}
    return {"stats": json.dumps(body)}


def changed(action: Action, **more: Any) -> Action:
    """The action with fields of its body replaced."""
    [(kind, body)] = action.items()
    return {kind: {**body, **more}}


def with_properties(action: Action, **properties: str) -> Action:
    """Metadata with additional properties; ``__`` in a name means a dot."""
    own = {key.replace("__", "."): value for key, value in properties.items()}
    before: Mapping[str, str] = action["metaData"]["configuration"]
    return changed(action, configuration={**before, **own})


def conflict_of(tx: PendingCommit, won: Winner) -> tuple[str | None, Any]:
    """The rule by which `tx` conflicts with the winner, and what its error names, if any."""
    error = find_conflict(tx, won)
    if error is None:
        return None, None
    assert type(error) is RULES[str(error.rule)].error
    return error.rule, error.found


def rule_of(tx: PendingCommit, won: Winner) -> str | None:
    """The rule by which `tx` conflicts with the winner, if any."""
    return conflict_of(tx, won)[0]


def txn(app_id: str, version: int = 1) -> Action:
    return {"txn": {"appId": app_id, "version": version}}


def domain(name: str, configuration: str = "{}") -> Action:
    body = {"domain": name, "configuration": configuration, "removed": False}
    return {"domainMetadata": body}


def listed_protocol(*features: str) -> Action:
    """A protocol that lists features for writers, and reader features for readers too."""
    readers = [f for f in features if f in {"deletionVectors", "columnMapping", "v2Checkpoint"}]
    return protocol(3, 7, readerFeatures=readers, writerFeatures=list(features))
