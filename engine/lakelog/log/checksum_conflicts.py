"""Decides whether the state or the version checksum is damaged, if they differ.

A commit that was truncated at a line end looks complete, and a version checksum is a hint that may
be wrong itself. Therefore a difference alone only issues a warning. If the commits confirm the
checksum, the state is rejected:

- the metrics of commitInfos record more files than their commits contain, and the missing files are
  exactly the difference between checksum and state; or
- the version's commit contains only its commitInfo, and the checksum has other metadata.

A checksum whose ``txnId`` differs from that of the version's commit belongs to another commit, and
is ignored. Metrics alone are no evidence, because writers count in different ways.

Source: Delta protocol, Version Checksum File, State Validation.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.dialects.log_content import Actions, CommitInfo
from lakelog.errors import LakelogWarning, MalformedLogError
from lakelog.model.metadata import Metadata, canonical_json

if TYPE_CHECKING:
    from lakelog.log.state import State

_ADDED = ("numAddedFiles", "numTargetFilesAdded", "num_added_files", "numFiles")
_REMOVED = ("numRemovedFiles", "numTargetFilesRemoved", "num_removed_files")


def compare_with_checksum(state: State, found: Mapping[str, Any]) -> None:
    """Compare the replayed state with the version checksum."""
    recorded = state.recorded
    if recorded is None:
        return
    recorded_values = {
        name: value for name in found if (value := _recorded_value(recorded, name)) is not None
    }
    differ = [n for n, value in recorded_values.items() if not _same(value, _plain(found[n]))]
    if not differ or _is_of_another_commit(state, recorded):
        return
    _refuse_cut(state, recorded_values, found)
    path = state.log.dialect.checksum_path(state.version)
    name = differ[0]
    warnings.warn(
        f"{path} differs from the log in {', '.join(differ)} (for {name} the checksum "
        f"has {recorded_values[name]!r:.100}, the log {_plain(found[name])!r:.100}); the checksum "
        "was ignored. If a commit or checkpoint lost actions, restore it; else the "
        "checksum is wrong: repair the table",
        LakelogWarning,
        stacklevel=2,
    )


def _is_of_another_commit(state: State, recorded: Mapping[str, Any]) -> bool:
    info = state.last_commit_info
    theirs, own = recorded.get("txnId"), info.body.get("txnId") if info is not None else None
    return theirs is not None and own is not None and theirs != own


def _recorded_value(recorded: Mapping[str, Any], name: str) -> Any:
    """The value of a field in the checksum, if it is valid."""
    value = recorded.get(name)
    if name != "metadata":
        return value if type(value) is int else None
    if not isinstance(value, dict) or not isinstance(value.get("id"), str):
        return None
    configuration = value.get("configuration")
    configuration = configuration if isinstance(configuration, dict) else {}
    return value["id"], value.get("schemaString"), configuration


def _plain(value: Any) -> Any:
    if isinstance(value, Metadata):
        return value.id, value.schema_string, dict(value.configuration)
    return value


def _same(recorded: Any, found: Any) -> bool:
    """Whether two values are equal; the schemas of metadata are compared as JSON."""
    if recorded == found or not isinstance(recorded, tuple):
        return bool(recorded == found)
    (id_, schema, configuration), (own_id, own_schema, own_configuration) = recorded, found
    if (id_, configuration) != (own_id, own_configuration):
        return False
    return bool(canonical_json(schema) == canonical_json(own_schema))


def _refuse_cut(state: State, recorded_values: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    commits = state.segment.commits
    if not commits:
        return
    decoded = state.log.dialect.decode(state.log.store, commits)
    if "numFiles" in recorded_values:
        cut, missing = _cut_by_metrics(decoded)
        if cut is not None and recorded_values["numFiles"] - found["numFiles"] == missing:
            raise _refusal(
                state,
                cut,
                "the commit has fewer files than its metrics and the version checksum record",
                f"{recorded_values['numFiles']} files in version {state.version}",
                f"{found['numFiles']} files",
            )
    if "metadata" in recorded_values and not _same(
        recorded_values["metadata"], _plain(found["metadata"])
    ):
        last = commits[-1].version
        frames = [f for f in (decoded.files, decoded.meta, decoded.other) if f.height]
        if not sum(frame.filter(pl.col("version") == last).height for frame in frames):
            raise _refusal(
                state,
                last,
                "the commit is empty, and the version checksum has other metadata",
                "the metadata that the checksum records",
                "only a commitInfo action",
            )


def may_be_cut(decoded: Actions) -> bool:
    """Whether the metrics of a commit record more files than the commit contains."""
    return _cut_by_metrics(decoded)[0] is not None


def _cut_by_metrics(decoded: Actions) -> tuple[int | None, int]:
    """The first commit with fewer files than its metrics record, and the files missing in all."""
    held: dict[tuple[int, str], int] = {}
    if decoded.files.height:
        counts = decoded.files.group_by("version", "actionType").len()
        held = {(version, kind): count for version, kind, count in counts.iter_rows()}
    cut: int | None = None
    missing = 0
    for info in decoded.commit_infos:
        if info.version is None:
            continue
        adds = max(0, _metric(info, _ADDED) - held.get((info.version, "add"), 0))
        removes = max(0, _metric(info, _REMOVED) - held.get((info.version, "remove"), 0))
        if adds or removes:
            cut = info.version if cut is None else cut
            missing += adds - removes
    return cut, missing


def _metric(info: CommitInfo, names: tuple[str, ...]) -> int:
    """The first of some metrics that exists; 0 without one."""
    metrics = info.body.get("operationMetrics")
    if not isinstance(metrics, dict):
        return 0
    for name in names:
        value = str(metrics.get(name))
        if value.isascii() and value.isdigit() and len(value) < 19:
            return int(value)
    return 0


def _refusal(
    state: State, version: int, message: str, expected: str, found: str
) -> MalformedLogError:
    return MalformedLogError(
        message,
        path=state.log.dialect.commit_path(version),
        version=version,
        expected=expected,
        found=found,
        hint="the file is truncated: restore it from a copy; if it is complete, delete the "
        f"checksum {state.log.dialect.checksum_path(state.version)}",
    )
