"""The operation, parameters and metrics in commitInfo: validation and defaults.

Names are those that Delta writes. Pure.

Source: Delta protocol, Commit Provenance Information; Delta's DeltaOperations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import orjson
import polars as pl

from lakelog.dialects.strict_decoder import text_of
from lakelog.errors import InvalidInputError
from lakelog.model import actions
from lakelog.model.metadata import Metadata, Protocol
from lakelog.skipping.statistics import num_records
from lakelog.transaction.metadata_changes import protocol_row


class CommitDescription(TypedDict, total=False):
    """Arguments that describe a commit, as `lakelog.Table.transaction`."""

    operation: str | None
    user_name: str | None
    user_metadata: str | None
    commit_info: Mapping[str, Any] | None


class CommitArguments(CommitDescription, total=False):
    """Arguments of the calls that write rows, as `lakelog.Table.transaction`."""

    app_id: str | None
    app_version: int | None
    isolation: str | None
    max_attempts: int | None


def require_arguments(function: str, given: Mapping[str, Any], known: type) -> None:
    """Raise for a keyword argument that a typed dict lacks, as Python does for a signature."""
    for name in given:
        if name not in known.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def application(app_id: str | None, app_version: int | None) -> tuple[str, int] | None:
    """Application id and version, which must be given together."""
    if app_id is None and app_version is None:
        return None
    if app_id is None or app_version is None:
        raise InvalidInputError(
            "pass app_id and app_version together",
            expected="app_id and app_version",
            found=f"app_id={app_id!r}, app_version={app_version!r}",
        )
    return app_id, int(app_version)


_OWN_FIELDS = frozenset(
    "version timestamp inCommitTimestamp operation operationParameters operationMetrics "
    "readVersion isolationLevel isBlindAppend engineInfo txnId userName userMetadata tags".split()
)
"""Fields of commitInfo that lakelog writes."""
_TEXT_FIELDS = frozenset(("userId", "clusterId"))
_OBJECT_FIELDS = frozenset(("job", "notebook"))


class Operation(NamedTuple):
    """An operation's name and parameters."""

    name: str
    parameters: dict[str, Any]


def check_description(
    operation: object,
    parameters: object,
    metrics: object,
    user_name: object,
    user_metadata: object,
    commit_info: object,
) -> None:
    """Raise for a description that would make the history unreadable for Delta's readers."""
    texts = {"operation": operation, "user_name": user_name, "user_metadata": user_metadata}
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise InvalidInputError(
                f"{name} must be a string",
                expected="a string, such as JSON",
                found=repr(value)[:200],
            )
    for name, values in (("parameters", parameters), ("metrics", metrics)):
        if values is None:
            continue
        for key, value in _mapping(name, values).items():
            try:
                text_of(value)
            except TypeError as cause:
                raise InvalidInputError(
                    f"{key!r} of {name} cannot be converted to a string",
                    expected="a string, or a value that JSON can represent",
                    found=repr(value)[:200],
                ) from cause

    if commit_info is not None:
        _check_fields(_mapping("commit_info", commit_info))


def _mapping(name: str, values: object) -> Mapping[str, Any]:
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InvalidInputError(
            f"{name} must map strings to values", expected="a mapping", found=repr(values)[:200]
        )
    return values


def _check_fields(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if name in _OWN_FIELDS:
            raise InvalidInputError(
                f"commit_info cannot set {name!r}, which lakelog writes itself",
                expected="other names",
                found=name,
                hint="use the argument of that name, such as operation, user_name or user_metadata",
            )
        is_valid = name not in _TEXT_FIELDS or isinstance(value, str)
        if name in _OBJECT_FIELDS:
            is_valid = isinstance(value, Mapping) and all(
                isinstance(text, str) for part in value.items() for text in part
            )
        try:
            orjson.dumps({name: value})
            json.dumps(value, allow_nan=False, default=str)  # orjson writes NaN as null
        except (TypeError, ValueError):
            is_valid = False
        if not is_valid:
            raise InvalidInputError(
                f"{name!r} of commit_info cannot be written",
                expected="a value that JSON can represent; userId and clusterId are strings, job "
                "and notebook map strings to strings",
                found=repr(value)[:200],
            )


def infer(
    files: pl.DataFrame,
    meta: pl.DataFrame,
    before: Metadata | None,
    metadata: Metadata,
    protocol: Protocol,
) -> Operation:
    """The operation name for a transaction's actions."""
    if before is None:
        facts = (metadata.description, metadata.partition_columns, metadata.configuration)
        return Operation("CREATE TABLE", created(*facts))
    if files.height:
        is_add = files["actionType"] == "add"
        changes = actions.conform(files, ("dataChange",))["dataChange"].fill_null(True)
        return of_files(bool(is_add.any()), bool(is_add.all()), bool(changes.any()), metadata)
    kinds = set(meta["actionType"].to_list())
    if "metaData" in kinds:
        return _of_metadata(before, metadata)
    if "protocol" in kinds:
        return Operation("UPGRADE PROTOCOL", {"newProtocol": _json(_protocol(protocol))})
    if kinds == {"mergeskip"}:
        return Operation("SKIP", {})
    return Operation("Manual Update", {})


def created(
    description: str | None, partition_by: Sequence[str], properties: Mapping[str, str | None]
) -> dict[str, Any]:
    """The parameters of CREATE TABLE."""
    return {
        "isManaged": "false",
        "description": description,
        "partitionBy": _json(list(partition_by)),
        "properties": _json(dict(properties)),
    }


def of_files(adds: bool, adds_only: bool, changes_data: bool, metadata: Metadata) -> Operation:
    """The operation name for file actions."""
    if not adds:
        return Operation("DELETE", {"predicate": "[]"})
    partition_by = _json(list(metadata.partition_columns))
    if adds_only:
        return Operation("WRITE", {"mode": "Append", "partitionBy": partition_by})
    if not changes_data:
        return Operation("OPTIMIZE", {"predicate": "[]"})
    return Operation("WRITE", {"partitionBy": partition_by})


def _of_metadata(before: Metadata, metadata: Metadata) -> Operation:
    if before.schema_string != metadata.schema_string:
        return Operation("REPLACE COLUMNS", {"columns": metadata.schema_string})
    old, new = before.configuration, metadata.configuration
    if removed := sorted(set(old) - set(new)):
        return Operation("UNSET TBLPROPERTIES", {"properties": _json(removed), "ifExists": "true"})
    changed = {k: v for k, v in new.items() if old.get(k) != v or k not in old}
    return Operation("SET TBLPROPERTIES", {"properties": _json(changed)})


def _protocol(protocol: Protocol) -> dict[str, Any]:
    return {k: v for k, v in protocol_row(protocol).items() if v is not None}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def metrics(files: pl.DataFrame) -> dict[str, int]:
    """Number and bytes of added and removed files; rows if every added file has the number."""
    if not files.height:
        return {}
    kinds = files["actionType"]
    is_add, is_remove = kinds == "add", kinds == "remove"
    sizes = files["size"] if "size" in files.columns else None
    found: dict[str, int] = {}
    if adds := int(is_add.sum()):
        found |= {"numFiles": adds, "numOutputBytes": _sum(sizes, is_add)}
        rows = _rows(files, is_add)
        if rows is not None:
            found["numOutputRows"] = rows
    if removes := int(is_remove.sum()):
        found |= {"numRemovedFiles": removes, "numRemovedBytes": _sum(sizes, is_remove)}
    return found


def _sum(sizes: pl.Series | None, chosen: pl.Series) -> int:
    return 0 if sizes is None else _total(sizes.filter(chosen))


def _total(numbers: pl.Series) -> int:
    """Their sum, which may exceed 64 bits."""
    most = numbers.max()
    if isinstance(most, int) and most * len(numbers) >= 1 << 63:
        return sum(numbers.drop_nulls().to_list())
    return int(numbers.sum())


def _rows(files: pl.DataFrame, is_add: pl.Series) -> int | None:
    if "numRecords" in files.columns:
        counts = files["numRecords"].filter(is_add)
    elif "stats" in files.columns:
        counts = num_records(files["stats"].filter(is_add))
    else:
        return None
    return None if counts.null_count() else _total(counts)


def app_versions(meta: pl.DataFrame, app_id: str) -> Sequence[dict[str, Any]]:
    """The ``txn`` rows of one application: ``txnVersion`` and ``lastUpdated``."""
    if "appId" not in meta.columns:
        return []
    rows = actions.of_type(meta, "txn")
    rows = rows.filter(rows["appId"] == app_id)
    return actions.conform(rows, ("txnVersion", "lastUpdated")).rows(named=True)
