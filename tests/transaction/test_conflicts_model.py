"""Conflicts between random transactions and commits.

The checker reports the rules that the plain model reports, in the same order.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from lakelog.transaction.conflicts import RULES, broken_rules, find_conflict
from lakelog.transaction.pending_commit import ISOLATION_LEVELS
from tests.budget import share_of
from tests.handmade import Action, field, info, metadata, protocol
from tests.model import conflicts as model
from tests.transaction.conflict_cases import changed, pending, winner

TYPES: dict[str, type] = {"p": str, "q": int}
PLAIN = {name: name for name in "pqx"}
MAPPED = {name: f"col-{name}" for name in "pqx"}
P_VALUES = ("a", "b", "ü / %20=", "1")
X_VALUES = (0, 3, 5, 9)
PATHS = ("f0", "p=a/f 1", "ü", "deep/er/f%2")
WIRE_PATHS = ("f0", "p=a/f%201", "%C3%BC", "deep/er/f%252")

# A writer may replace any of them by any other.
PROTOCOLS = (
    protocol(1, 2),
    protocol(2, 5),
    protocol(1, 4),
    protocol(3, 7, readerFeatures=["deletionVectors"], writerFeatures=["deletionVectors"]),
    protocol(
        3,
        7,
        readerFeatures=["columnMapping", "deletionVectors", "v2Checkpoint"],
        writerFeatures=[
            *("appendOnly", "invariants", "columnMapping", "deletionVectors"),
            *("v2Checkpoint", "domainMetadata", "rowTracking", "inCommitTimestamp"),
        ],
    ),
    protocol(1, 7, writerFeatures=["appendOnly", "invariants", "clustering"]),
)
PROPERTIES: tuple[dict[str, str], ...] = (
    {},
    {"delta.enableDeletionVectors": "true"},
    {"delta.enableDeletionVectors": "false"},
    {"delta.checkpointPolicy": "v2"},
    {"delta.checkpointPolicy": "classic"},
    {"delta.enableInCommitTimestamps": "true", "delta.inCommitTimestampEnablementVersion": "3"},
    {"delta.inCommitTimestampEnablementVersion": "4"},
    {
        "delta.enableRowTracking": "true",
        "delta.rowTracking.materializedRowIdColumnName": "r",
        "delta.rowTracking.materializedRowCommitVersionColumnName": "v",
    },
    {"delta.rowTracking.materializedRowIdColumnName": "r"},
    {"delta.constraints.c": "x > 0"},
    {"owner": "me"},
)


def columns(*, mapped: bool, high_water_mark: int | None = None) -> list[dict[str, Any]]:
    more = {} if high_water_mark is None else {"delta.identity.highWaterMark": high_water_mark}
    names = {n: {"delta.columnMapping.physicalName": MAPPED[n]} if mapped else {} for n in "pqx"}
    return [
        field("p", "string", **names["p"]),
        field("q", "integer", **names["q"]),
        field("x", "long", **names["x"], **more),
    ]


def applies_mapping(protocol: dict[str, Any]) -> bool:
    """Whether readers apply a column mapping."""
    if protocol["minReaderVersion"] < 3:
        return bool(protocol["minReaderVersion"] == 2)
    return "columnMapping" in protocol["writerFeatures"]


@st.composite
def metadatas(draw: st.DrawFn, *, mapped: bool) -> Action:
    properties = draw(st.sampled_from(PROPERTIES))
    if mapped:
        properties = {**properties, "delta.columnMapping.mode": "name"}
    fields = columns(mapped=mapped, high_water_mark=draw(st.sampled_from([None, None, 1, 2])))
    if draw(st.integers(0, 9)) == 0:
        keys = {"delta.columnMapping.physicalName": "col-y"} if mapped else {}
        fields.append(field("y", "long", **keys))
    partitioned = draw(st.sampled_from([("p", "q")] * 5 + [("q", "p")]))
    name = draw(st.sampled_from([None] * 5 + ["renamed"]))
    return metadata(*fields, partitioned=partitioned, properties=properties, name=name)


@st.composite
def bodies(draw: st.DrawFn, *, mapped: bool, complete: bool) -> dict[str, Any]:
    """Partition values and statistics of a file, with random optional parts missing."""
    names = MAPPED if mapped else PLAIN
    body: dict[str, Any] = {"dataChange": draw(st.sampled_from([True, True, False]))}
    values: dict[str, Any] = {
        names["p"]: draw(st.sampled_from([*P_VALUES, None, ""])),
        names["q"]: draw(st.sampled_from(["1", "2", None, "two"])),
    }
    if draw(st.integers(0, 9)) == 0:
        del values[names[draw(st.sampled_from("pq"))]]
    if complete or draw(st.integers(0, 4)):
        body["partitionValues"] = values
    if draw(st.booleans()):
        low = draw(st.sampled_from(X_VALUES))
        high = draw(st.sampled_from([v for v in X_VALUES if v >= low]))
        nulls = draw(st.sampled_from([None, 0, 0, 1, 4]))
        stats: dict[str, Any] = {"numRecords": 4}
        x = names["x"]
        if nulls is not None:
            stats["nullCount"] = {x: nulls}
        if nulls != 4 and draw(st.integers(0, 3)):
            stats["minValues"] = {x: low}
        if nulls != 4 and draw(st.integers(0, 3)):
            stats["maxValues"] = {x: high}
        body["stats"] = json.dumps(stats)
    return body


@st.composite
def file_actions(draw: st.DrawFn, *, mapped: bool, most: int) -> list[Action]:
    """At most one remove and one add of each of a few paths."""
    actions: list[Action] = []
    paths = draw(st.lists(st.sampled_from(WIRE_PATHS), unique=True, max_size=most))
    for path in paths:
        kinds = draw(st.sampled_from([("add",), ("add",), ("remove",), ("remove", "add")]))
        for kind in kinds:
            body = draw(bodies(mapped=mapped, complete=kind == "add"))
            body |= {"path": path}
            if kind == "add":
                body |= {"size": 1, "modificationTime": 1}
            if len(kinds) == 2:
                vector = {"storageType": "u", "pathOrInlineDv": kind, "offset": 1}
                body["deletionVector"] = {**vector, "sizeInBytes": 4, "cardinality": 1}
            actions.append({kind: body})
    return actions


@st.composite
def other_actions(draw: st.DrawFn, *, mapped: bool, read: Action) -> list[Action]:
    """Protocol, metadata (mostly the one that was read, with more properties), domains and txns."""
    actions: list[Action] = []
    if draw(st.integers(0, 7)) == 0:
        actions.append(draw(st.sampled_from(PROTOCOLS)))
    match draw(st.integers(0, 15)):
        case 0:
            actions.append(draw(metadatas(mapped=mapped)))
        case 1 | 2:
            more = draw(st.sampled_from(PROPERTIES))
            before = read["metaData"]["configuration"]
            actions.append(changed(read, configuration={**before, **more}))
    names = ("delta.rowTracking", "delta.clustering", "mine")
    domains = draw(st.sampled_from([()] * 9 + [names[:1], names[1:2], names[2:], names]))
    apps = draw(st.sampled_from([()] * 9 + [("app",), ("other",), ("app", "other")]))
    return [
        *actions,
        *(
            {"domainMetadata": {"domain": d, "configuration": "", "removed": False}}
            for d in domains
        ),
        *({"txn": {"appId": app, "version": 1}} for app in apps),
    ]


LEAVES = st.one_of(
    st.tuples(st.sampled_from(["==", "!=", "<", ">="]), st.just("p"), st.sampled_from(P_VALUES)),
    st.tuples(st.sampled_from(["==", "<=", ">"]), st.just("q"), st.sampled_from([0, 1, 2])),
    st.tuples(st.sampled_from(sorted(model.OPERATORS)), st.just("x"), st.sampled_from(X_VALUES)),
    st.tuples(st.just("is_null"), st.sampled_from("pqx"), st.none()),
)
PREDICATES = st.recursive(
    LEAVES, lambda inner: st.tuples(st.sampled_from(["and", "or"]), inner, inner), max_leaves=3
)


def as_expr(predicate: model.Predicate) -> pl.Expr:
    kind, left, right = predicate
    if kind == "and":
        return as_expr(left) & as_expr(right)
    if kind == "or":
        return as_expr(left) | as_expr(right)
    if kind == "is_null":
        return pl.col(left).is_null()
    expr: pl.Expr = model.OPERATORS[kind](pl.col(left), right)
    return expr


@pytest.mark.parametrize("isolation", ISOLATION_LEVELS)
@settings(max_examples=share_of(200))
@given(data=st.data(), mapped=st.booleans())
def test_broken_rules_equal_those_of_the_plain_model(
    isolation: str, data: st.DataObject, mapped: bool
) -> None:
    read = data.draw(metadatas(mapped=mapped), "metadata")
    ours: dict[str, Any] = {
        "isolation": isolation,
        "whole": data.draw(st.sampled_from([False] * 5 + [True]), "whole"),
        "predicates": data.draw(st.lists(PREDICATES, max_size=2), "predicates"),
        "appIds": data.draw(st.sampled_from([(), (), ("app",)]), "appIds"),
        "actions": [
            *data.draw(other_actions(mapped=mapped, read=read), "our other actions"),
            *data.draw(file_actions(mapped=mapped, most=2), "our files"),
        ],
        "protocol": data.draw(st.sampled_from(PROTOCOLS), "protocol"),
        "metadata": read,
    }
    theirs: list[Action] = [
        *data.draw(
            st.sampled_from(
                [
                    [],
                    [info("WRITE")],
                    [info("WRITE", isBlindAppend=True)],
                    [info("DELETE", isBlindAppend=False)],
                    [info("ROW TRACKING BACKFILL", isBlindAppend=False)],
                ]
            ),
            "commitInfo",
        ),
        *data.draw(other_actions(mapped=mapped, read=read), "their other actions"),
        *data.draw(file_actions(mapped=mapped, most=4), "their files"),
    ]
    tx = pending(
        *ours["actions"],
        where=[as_expr(p) for p in ours["predicates"]],
        whole=ours["whole"],
        app_ids=ours["appIds"],
        isolation=isolation,
        read_protocol=ours["protocol"],
        read_metadata=ours["metadata"],
    )
    expected = model.broken_rules(
        {
            **ours,
            "protocol": ours["protocol"]["protocol"],
            "metadata": ours["metadata"]["metaData"],
        },
        theirs,
        TYPES,
        MAPPED if mapped and applies_mapping(ours["protocol"]["protocol"]) else PLAIN,
    )
    won = winner(*theirs)

    assert [rule for rule, _ in broken_rules(tx, won)] == expected

    error = find_conflict(tx, won)
    event(f"{expected[0] if expected else 'none'}")
    if not expected:
        assert error is None
        return
    assert error is not None
    assert (error.rule, type(error).__name__) == (expected[0], model.ERRORS[expected[0]])
    if RULES[expected[0]].reason.startswith(("added a file", "removed a file", "added again")):
        assert error.found in PATHS


def test_model_has_the_rules_of_the_checker() -> None:
    assert {name: rule.error.__name__ for name, rule in RULES.items()} == model.ERRORS
