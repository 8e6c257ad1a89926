"""The plain model of the conflict rules: dictionaries and loops over actions in their JSON
form. It shares no code with lakelog.

A transaction is ``{"isolation", "whole", "predicates", "appIds", "actions", "protocol",
"metadata"}``, a winning commit a list of actions. A predicate is a tuple: ``("and", a, b)``,
``("or", a, b)``, or ``(operator, column, value)``; see `holds`.

Source: Delta protocol, Domain Metadata, Transaction Identifiers, Action Reconciliation; the rules
of Delta's ConflictChecker, in its order, except for the files, where the most specific is first.
"""

from __future__ import annotations

import json
import operator
from typing import Any
from urllib.parse import unquote

Action = dict[str, Any]
Predicate = tuple[Any, ...]

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

ERRORS = {
    "protocol_changed_by_both": "ProtocolChangedError",
    "feature_dropped": "ProtocolChangedError",
    "feature_added": "ProtocolChangedError",
    "feature_drop_overtaken": "ProtocolChangedError",
    "metadata_changed_by_both": "MetadataChangedError",
    "metadata_changed": "MetadataChangedError",
    "domain_written_by_both": "ConcurrentDomainError",
    "app_id_written": "ConcurrentTransactionError",
    "deleted_by_both": "ConcurrentDeleteDeleteError",
    "deleted_file_added": "ConcurrentDeleteReadError",
    "file_added_by_both": "ConcurrentAppendError",
    "removed_file_added": "ConcurrentAppendError",
    "read_files_deleted": "ConcurrentDeleteReadError",
    "read_files_appended": "ConcurrentAppendError",
    "all_files_appended": "ConcurrentAppendError",
}

OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


def holds(predicate: Predicate, row: dict[str, Any]) -> bool | None:
    """Whether a predicate is true, false or null for one row."""
    kind, left, right = predicate
    if kind == "and":
        sides = (holds(left, row), holds(right, row))
        return False if False in sides else None if None in sides else True
    if kind == "or":
        sides = (holds(left, row), holds(right, row))
        return True if True in sides else None if None in sides else False
    value = row[left]
    if kind == "is_null":
        return value is None
    return None if value is None else bool(OPERATORS[kind](value, right))


def may_hold(
    predicate: Predicate, file: Action, types: dict[str, type], physical: dict[str, str]
) -> bool:
    """Whether a predicate may be true for a row of a file, according to the log.

    `types` are those of the partition columns; `physical` gives a column's name in the log.
    """
    kind, left, right = predicate
    if kind == "and":
        return all(may_hold(side, file, types, physical) for side in (left, right))
    if kind == "or":
        return any(may_hold(side, file, types, physical) for side in (left, right))
    name = physical[left]
    if left in types:
        values = file.get("partitionValues")
        if values is None or name not in values:
            return True
        text = values[name]
        if text in {None, "", HIVE_NULL}:
            return holds(predicate, {left: None}) is True
        try:
            return holds(predicate, {left: types[left](text)}) is True
        except ValueError:
            return True
    stats = json.loads(file.get("stats") or "{}")
    nulls = stats.get("nullCount", {}).get(name)
    if kind == "is_null":
        return bool(nulls != 0)
    if nulls is not None and nulls == stats.get("numRecords"):
        return False
    low, high = (stats.get(bound, {}).get(name) for bound in ("minValues", "maxValues"))
    if kind in {"<", "<="}:
        return low is None or bool(OPERATORS[kind](low, right))
    if kind in {">", ">="}:
        return high is None or bool(OPERATORS[kind](high, right))
    if kind == "==":
        return bool((low is None or low <= right) and (high is None or right <= high))
    return low is None or high is None or not low == high == right


def supported(protocol: dict[str, Any]) -> set[str]:
    """Features of a Delta protocol, by its lists or its legacy versions."""
    listed = {*(protocol.get("readerFeatures") or []), *(protocol.get("writerFeatures") or [])}
    writer = protocol["minWriterVersion"]
    if writer >= 7:
        return listed
    if writer >= 2:
        listed |= {"appendOnly", "invariants"}
    if writer >= 3:
        listed |= {"checkConstraints"}
    if writer >= 4:
        listed |= {"changeDataFeed", "generatedColumns"}
    if writer >= 5 and protocol["minReaderVersion"] >= 2:
        listed |= {"columnMapping"}
    if writer >= 6:
        listed |= {"identityColumns"}
    return listed


# TableFeature.failConcurrentTransactionsAtUpgrade
LENIENT = set(
    """appendOnly changeDataFeed columnMapping timestampNtz deletionVectors rowTracking
    domainMetadata icebergCompatV1 icebergCompatV2 icebergCompatV3 v2Checkpoint catalogManaged
    typeWidening typeWidening-preview inCommitTimestamp vacuumProtocolCheck""".split()
)


def protocol_rules(ours: dict[str, Any], theirs: list[Action]) -> list[str]:
    """checkProtocolCompatibility."""
    found = []
    read = supported(ours["protocol"])
    our_protocols = [a["protocol"] for a in ours["actions"] if "protocol" in a]
    for action in theirs:
        if "protocol" in action:
            new = supported(action["protocol"])
            if our_protocols:
                found.append("protocol_changed_by_both")
            if read - new:
                found.append("feature_dropped")
            if new - read - LENIENT:
                found.append("feature_added")
    uses = any(k in a for a in theirs for k in ("add", "remove", "metaData", "domainMetadata"))
    if our_protocols and read - supported(our_protocols[0]) and uses:
        found.append("feature_drop_overtaken")
    return found


def metadata_rules(ours: dict[str, Any], theirs: list[Action]) -> list[str]:
    """attemptToResolveMetadataConflicts."""
    for action in theirs:
        if "metaData" in action:
            if any("metaData" in a for a in ours["actions"]):
                return ["metadata_changed_by_both"]
            protocols = [a["protocol"] for a in theirs if "protocol" in a]
            features = supported(protocols[0] if protocols else ours["protocol"])
            if not resolvable(ours["metadata"], action["metaData"], features):
                return ["metadata_changed"]
    return []


def resolvable(old: dict[str, Any], new: dict[str, Any], features: set[str]) -> bool:
    """Whether all differences are irrelevant to a running transaction."""
    rest = {k: v for k, v in old.items() if k not in {"configuration", "schemaString"}}
    if rest != {k: v for k, v in new.items() if k not in {"configuration", "schemaString"}}:
        return False
    schemas = [json.loads(m["schemaString"]) for m in (old, new)]
    for schema in schemas:
        for field in schema["fields"]:
            field["metadata"].pop("delta.identity.highWaterMark", None)
    if schemas[0] != schemas[1]:
        return False
    before, after = old["configuration"], new["configuration"]
    allowed = {
        "delta.enableRowTracking": ("rowTracking", "true"),
        "delta.enableDeletionVectors": ("deletionVectors", "true"),
        "delta.enableInCommitTimestamps": ("inCommitTimestamp", "true"),
        "delta.checkpointPolicy": ("v2Checkpoint", "v2"),
    }
    for key in set(before) | set(after):
        if before.get(key) == after.get(key):
            continue
        if key not in after:
            return False
        if key in allowed:
            feature, value = allowed[key]
            if feature not in features or after[key] != value:
                return False
        elif key.startswith("delta.inCommitTimestampEnablement"):
            if key in before:
                return False
        elif key.startswith("delta.rowTracking.materialized"):
            if key in before or after.get("delta.enableRowTracking") != "true":
                return False
        else:
            return False
    return True


def file_rules(ours: list[Action], theirs: list[Action]) -> list[str]:
    """No two transactions may contain the same path."""

    def paths(actions: list[Action], kind: str) -> list[str]:
        return [unquote(a[kind]["path"]) for a in actions if kind in a]

    found = []
    if any(p in paths(theirs, "remove") for p in paths(ours, "remove")):
        found.append("deleted_by_both")
    if any(p in paths(theirs, "remove") for p in paths(ours, "add")):
        found.append("deleted_file_added")
    if any(p in paths(theirs, "add") for p in paths(ours, "add")):
        found.append("file_added_by_both")
    if any(
        p in paths(theirs, "add") and p not in paths(theirs, "remove")
        for p in paths(ours, "remove")
    ):
        found.append("removed_file_added")
    return found


def snapshot_isolation(ours: dict[str, Any]) -> bool:
    """canDowngradeToSnapshotIsolation."""
    for action in ours["actions"]:
        if "add" in action or "remove" in action:
            body = action.get("add") or action["remove"]
            if body["dataChange"]:
                return False
        elif action.get("domainMetadata", {}).get("domain") != "delta.rowTracking":
            return False
    return True


def read_rules(
    ours: dict[str, Any], theirs: list[Action], types: dict[str, type], physical: dict[str, str]
) -> list[str]:
    """The checks for added and for deleted files that the transaction reads."""
    info: Action = next((a["commitInfo"] for a in theirs if "commitInfo" in a), {})
    removed = [a["remove"] for a in theirs if "remove" in a]
    added = [a["add"] for a in theirs if "add" in a]
    new = [a["metaData"] for a in ours["actions"] if "metaData" in a]

    def is_read(file: Action) -> bool:
        return ours["whole"] or any(may_hold(p, file, types, physical) for p in ours["predicates"])

    found = []
    if any(is_read(f) for f in removed):
        found.append("read_files_deleted")
    blind = info.get("isBlindAppend") is True and not removed
    backfill = info.get("operation") in {"ROW TRACKING BACKFILL", "ROW TRACKING UNBACKFILL"}
    rearranges = not removed and not any(f["dataChange"] for f in added)
    exempt = [
        backfill and rearranges,
        snapshot_isolation(ours),
        ours["isolation"] == "WriteSerializable" and not new and blind,
    ]
    counted = [] if any(exempt) else added
    if any(is_read(f) for f in counted):
        found.append("read_files_appended")
    if new and added and tightens(ours["metadata"], new[0]):
        found.append("all_files_appended")
    return found


def tightens(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether new metadata affects files that exist."""
    if old["partitionColumns"] != new["partitionColumns"]:
        return True
    before, after = old["configuration"], new["configuration"]
    for key in after:
        if key.startswith("delta.constraints.") and before.get(key) != after[key]:
            return True
    tracking = "delta.enableRowTracking"
    return bool(after.get(tracking) == "true" and before.get(tracking) != "true")


def broken_rules(
    ours: dict[str, Any], theirs: list[Action], types: dict[str, type], physical: dict[str, str]
) -> list[str]:
    """Every rule that the commit `theirs` violates for the transaction `ours`, in order."""
    found = protocol_rules(ours, theirs) + metadata_rules(ours, theirs)
    domains = [a["domainMetadata"]["domain"] for a in theirs if "domainMetadata" in a]
    for action in ours["actions"]:
        domain = action.get("domainMetadata", {}).get("domain", "delta.rowTracking")
        if domain != "delta.rowTracking" and domain in domains:
            found.append("domain_written_by_both")
            break
    app_ids = set(ours["appIds"]) | {a["txn"]["appId"] for a in ours["actions"] if "txn" in a}
    if any(a["txn"]["appId"] in app_ids for a in theirs if "txn" in a):
        found.append("app_id_written")
    found += file_rules(ours["actions"], theirs)
    return found + read_rules(ours, theirs, types, physical)
