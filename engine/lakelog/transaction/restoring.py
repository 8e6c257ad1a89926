"""The difference between a version and an earlier one that is restored.

The protocol is never downgraded, because versions in between need it. Properties that describe the
log, the greatest column id, the version up to which checkpoints are protected, the names of the
columns of row ids, and the last values of identity columns are kept.

Source: Delta Lake, RestoreTableCommand. Delta protocol, Protocol Evolution; In-Commit Timestamps;
Column Mapping; Checkpoint Protection; Row Tracking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import polars as pl

from lakelog.log.snapshot import LogSnapshot
from lakelog.model import actions, contract
from lakelog.model.metadata import CLUSTERING, MAX_COLUMN_ID, Metadata
from lakelog.transaction.commit_content import ENABLEMENT_TIMESTAMP, ENABLEMENT_VERSION
from lakelog.transaction.file_rules import added_again
from lakelog.transaction.metadata_changes import (
    CHECKPOINT_PROTECTION,
    HIGH_WATER_MARK,
    with_identity_marks,
)
from lakelog.transaction.row_tracking import MATERIALIZED
from lakelog.transaction.schema_conversion import schema_text

_OF_THE_LOG = (
    "delta.enableInCommitTimestamps",
    ENABLEMENT_VERSION,
    ENABLEMENT_TIMESTAMP,
)
_GREATEST = (MAX_COLUMN_ID, CHECKPOINT_PROTECTION)


class Restored(NamedTuple):
    """Files that a restore adds again and files that it removes, as `Snapshot.files`."""

    added: pl.DataFrame
    removed: pl.DataFrame


def file_differences(current: LogSnapshot, target: LogSnapshot) -> Restored:
    """The files of each version that the other lacks, by path and deletion vector."""
    now, then = current.files().collect(), target.files().collect()
    key = [name for name in actions.KEY if name in now.columns]

    def without(these: pl.DataFrame, those: pl.DataFrame) -> pl.DataFrame:
        return these.join(those, on=key, how="anti", nulls_equal=True, maintain_order="left")

    added = added_again(without(then, now), target.table_configuration)
    return Restored(_with_row_ids(added, now, current), without(now, then))


def _with_row_ids(added: pl.DataFrame, now: pl.DataFrame, current: LogSnapshot) -> pl.DataFrame:
    """The files with the row ids that they got after the version to restore (Delta protocol, Writer
    Requirements for Row Tracking: those of the last add of the path).
    """
    if not current.table_configuration.supports("rowTracking"):
        return added
    bare = added["path"].filter(added["baseRowId"].is_null())
    if not len(bare):
        return added
    columns = ("path", *actions.ROW_IDS)
    removed = current.tombstones().filter(pl.col("path").is_in(bare.implode())).collect()
    known = pl.concat([now.select(columns), removed.select(columns)])
    known = known.filter(pl.col("baseRowId").is_not_null()).unique("path", keep="first")
    return (
        added.join(known, on="path", how="left", suffix="_known", maintain_order="left")
        .with_columns(pl.coalesce(c, f"{c}_known") for c in actions.ROW_IDS)
        .select(added.columns)
    )


def metadata_changes_to(current: Metadata, target: Metadata) -> dict[str, Any] | None:
    """The arguments of `ActionBuffer.put_metadata`; None if nothing changes."""
    now, then = current.configuration, target.configuration
    configuration: dict[str, str | None] = dict.fromkeys(now) | dict(then)
    configuration |= {key: now.get(key, configuration.get(key)) for key in _OF_THE_LOG}
    configuration |= {key: now[key] for key in MATERIALIZED if key in now.keys() - then.keys()}
    for key in _GREATEST:
        found = [m.configuration.get(key) for m in (current, target)]
        if known := [int(text) for text in found if text and text.isdecimal()]:
            configuration[key] = str(max(known))
    set_, kept = {k: v for k, v in configuration.items() if v is not None}, dict(now)
    target = replace(target, schema_string=_with_last_marks(current, target))
    facts = ("schema_string", "partition_columns", "name", "description")
    if set_ == kept and all(getattr(current, f) == getattr(target, f) for f in facts):
        return None
    return {
        "fields": {"schemaString": target.schema_string},
        "partition_by": list(target.partition_columns),
        "configuration": {k: v for k, v in configuration.items() if v is not None or k in now},
        "name": target.name,
        "description": target.description,
    }


def naming_metadata(target: LogSnapshot, configuration: Mapping[str, str | None]) -> Metadata:
    """The metadata with the names that columns have in the files of a version; `configuration` is
    the one to commit.
    """
    mode = {"delta.columnMapping.mode": target.table_configuration.column_mapping}
    return replace(target.metadata, configuration={**configuration, **mode})


def _with_last_marks(current: Metadata, target: Metadata) -> str | None:
    """The schema to restore, in which identity columns do not generate a value again."""
    if HIGH_WATER_MARK not in (current.schema_string or ""):
        return target.schema_string
    now = _by_physical_name(current)
    marks = {}
    for name, field in _by_physical_name(target).items():
        if name in now and (step := field.metadata.get("delta.identity.step")):
            known = [f.metadata.get(HIGH_WATER_MARK) for f in (now[name], field)]
            if marked := [mark for mark in known if mark is not None]:
                marks[field.name] = (max if step > 0 else min)(marked)
    schema = with_identity_marks(target.schema, marks)
    return target.schema_string if schema == target.schema else schema_text(schema)


def _by_physical_name(metadata: Metadata) -> dict[str, contract.Field]:
    """The columns by the name that renaming keeps."""
    mode = metadata.column_mapping_mode
    return {contract.physical_name(field, mode): field for field in metadata.schema.fields}


def clustering_of(snapshot: LogSnapshot) -> str | None:
    """The configuration of the clustering domain, if it is set."""
    found = snapshot.domains().filter(pl.col("domain") == CLUSTERING).collect()
    return str(found["domainConfiguration"].item()) if found.height else None
