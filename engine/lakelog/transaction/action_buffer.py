"""`ActionBuffer`: the actions of a transaction, validated one by one.

A skipped file remains in the table; merges ignore it until its cooldown has passed.

The actions are validated together on commit (`validation`, `conflicts`).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from lakelog.dialects.json_layout import Wire
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    InvalidInputError,
    InvalidPropertyError,
    InvalidTransactionError,
    UnsupportedFeatureError,
)
from lakelog.log.context import Log
from lakelog.log.replay import live_domains
from lakelog.model import actions
from lakelog.model.durations import property_ms
from lakelog.model.metadata import Metadata, Protocol, in_any_case
from lakelog.transaction import metadata_changes
from lakelog.transaction.action_input import rows_frame, stage_one, stage_table
from lakelog.transaction.metadata_changes import (
    fill_row,
    metadata_row,
    only_one,
    protocol_row,
    settled_metadata,
    with_file_defaults,
)
from lakelog.transaction.runtime import Runtime

COOLDOWN_PROPERTY = "spark.indextables.skippedFiles.cooldownDuration"
_DEFAULT_COOLDOWN_MS = 24 * 3_600_000

_HOUR_MS = 3_600_000
_MOST_SKIPS = (1 << 31) - 1


def cooldown_ms(configuration: Mapping[str, str | None]) -> int:
    """Cooldown of a skipped file, by default 24 hours; the property has hours or an interval."""
    value = in_any_case(configuration, COOLDOWN_PROPERTY)
    if value is None:
        return _DEFAULT_COOLDOWN_MS
    if re.fullmatch(r"\s*\d{1,9}\s*", value, re.ASCII):
        return int(value) * _HOUR_MS
    try:
        return property_ms(value)
    except InvalidInputError as cause:
        raise InvalidPropertyError(
            f"the value of {COOLDOWN_PROPERTY} is not a valid duration",
            found=value,
            expected="hours as an integer, or an interval such as '90 minutes'",
        ) from cause


def _with_times(rows: pl.DataFrame, now_ms: int, cooldown: int | dt.timedelta) -> pl.DataFrame:
    """Add the time when each file was skipped, and the end of its cooldown."""
    if isinstance(cooldown, dt.timedelta):
        cooldown = cooldown // dt.timedelta(milliseconds=1)
    names = ("skipTimestamp", "skipOperation", "retryAfter")
    at, operation, until = actions.conform(rows, names).get_columns()
    at = at.fill_null(now_ms)
    return rows.with_columns(
        at, operation.fill_null(""), until.zip_with(until.is_not_null(), at + cooldown)
    )


def counted(meta: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """Set missing counts of ``mergeskip`` rows to the file's last count plus one, if it fits."""
    is_skip = meta["actionType"] == "mergeskip"
    rows = meta.filter(is_skip)
    known = actions.conform(
        before.filter(before["actionType"] == "mergeskip"), ("path", "skipCount")
    )
    last = known.with_columns(pl.col("skipCount").fill_null(1).alias("__last")).select(
        "path", "__last"
    )
    joined = rows.select("path").join(last, on="path", how="left", maintain_order="left")
    count = actions.conform(rows, ("skipCount",))["skipCount"]
    following = joined["__last"].fill_null(0).clip(upper_bound=_MOST_SKIPS - 1) + 1
    count = count.zip_with(count.is_not_null(), following)
    return actions.concat([meta.filter(~is_skip), rows.with_columns(count.alias("skipCount"))])


class ActionBuffer:
    """The actions of a transaction, from tables or from the fields of one action."""

    def __init__(self, log: Log, table: TableConfiguration) -> None:
        self._log = log
        self._dialect, self._fields = log.dialect, log.dialect.contract_key
        self._protocol, self._metadata = table.protocol, table.metadata
        self._new_protocol: Protocol | None = None
        self._new_metadata: Metadata | None = None
        self._named_as: Metadata | None = None
        self._ignored: frozenset[str] = frozenset()
        self._asked: set[str] = set()
        self._files: list[pl.DataFrame] = []
        self._single: list[dict[str, Any]] = []
        self._meta: list[dict[str, Any]] = []
        self._skips: list[pl.DataFrame] = []

    def put_files(self, kind: str, table: Any, fields: Mapping[str, Any]) -> None:
        """Add file actions of a kind."""
        if table is None:
            row = stage_one(self._fields, kind, fields)
            if "path" not in row:
                raise InvalidInputError(f"{kind} needs a path", expected="path")
            fill_row(row, self._log.clock())
            self._single.append(row)
            return
        frame = stage_table(self._fields, kind, table, fields)
        self._flush()
        if frame.height:
            self._files.append(with_file_defaults(frame, self._log.clock()))

    def _flush(self) -> None:
        if self._single:
            self._files.append(rows_frame(self._single))
            self._single = []

    def put_metadata(
        self, table: Any, fields: Mapping[str, Any], *, after_rows: bool = False, **changed: Any
    ) -> None:
        """Set the metadata, as `metadata_changes.change_metadata` derives it; `after_rows` refuses
        changes that concern rows, which were written and checked under the present metadata.
        """
        present = self._new_metadata or self._metadata
        new = metadata_changes.change_metadata(present, self._dialect, table, fields, **changed)
        if after_rows and self._facts_of_rows(new) != self._facts_of_rows(present):
            raise InvalidInputError(
                "schema, partitioning, constraints and table features cannot be changed after rows "
                "were written in the same transaction",
                path=self._log.table,
                hint="commit the change of the metadata first",
            )
        self._new_metadata = new

    def _facts_of_rows(self, metadata: Metadata) -> tuple[object, ...]:
        needed = self._dialect.protocol_rules.needed(metadata)
        schema = metadata_changes.without_comments(metadata.schema)
        return schema, metadata.partition_columns, metadata.constraints, needed

    def restore_as(self, named_as: Metadata, ignored: frozenset[str]) -> None:
        """Take the physical names of columns from the metadata of the files that are restored; the
        features that the restored version ignored are not added.
        """
        self._named_as, self._ignored = named_as, ignored

    def ask_for(self, properties: Iterable[str]) -> None:
        """Add the features of properties, also if the metadata have these values already."""
        self._asked.update(properties)

    def put_identity_marks(self, marks: Mapping[str, int]) -> None:
        """Take new high water marks of identity columns."""
        schema = (self._new_metadata or self._metadata).schema if marks else None
        if schema is not None:
            self.put_metadata(None, {}, schema=metadata_changes.with_identity_marks(schema, marks))

    @property
    def configuration(self) -> Mapping[str, str | None]:
        """The properties, with those that were set."""
        return (self._new_metadata or self._metadata).configuration

    @property
    def changes_metadata(self) -> bool:
        """Whether the metadata differ from those that were read."""
        return self._new_metadata is not None and self._new_metadata != self._metadata

    def put_protocol(self, table: Any, fields: Mapping[str, Any], features: Sequence[str]) -> None:
        """Set the protocol, as `metadata_changes.change_protocol` derives it."""
        self._new_protocol = metadata_changes.change_protocol(
            self._new_protocol or self._protocol, self._dialect, table, fields, features
        )

    def put_txns(self, table: Any, fields: Mapping[str, Any]) -> None:
        """Add versions of applications."""
        for row in self._rows("txn", table, fields, ("appId", "txnVersion")):
            row.setdefault("lastUpdated", self._log.clock())
            self._meta.append(row)

    def put_domains(self, table: Any, fields: Mapping[str, Any]) -> None:
        """Add metadata domains."""
        for row in self._rows("domainMetadata", table, fields, ("domain", "domainConfiguration")):
            row.setdefault("domainRemoved", False)
            self._meta.append(row)

    def drop_domain(self, domain: str, meta: pl.DataFrame) -> None:
        """Add the removal of a domain."""
        row = stage_one(self._fields, "domainMetadata", {"domain": domain})
        live = actions.conform(live_domains(meta), ("domain", "domainConfiguration"))
        found = live.filter(pl.col("domain") == domain)
        if not found.height:
            raise InvalidTransactionError(
                "metadata domain not found",
                path=self._log.table,
                found=domain,
                expected=", ".join(live["domain"].sort().to_list()) or "no domain is set",
            )
        # The removal repeats the last configuration, as the protocol requires.
        before = found["domainConfiguration"][-1]
        self._meta.append(row | {"domainConfiguration": before or "", "domainRemoved": True})

    def _rows(
        self, kind: str, table: Any, fields: Mapping[str, Any], required: Sequence[str]
    ) -> list[dict[str, Any]]:
        if table is None:
            rows = [stage_one(self._fields, kind, fields)]
        else:
            only_one(table, fields)
            named = stage_table(self._fields, kind, table).rows(named=True)
            rows = [{k: v for k, v in row.items() if v is not None} for row in named]
        for row in rows:
            for column in required:
                if column not in row:
                    raise InvalidInputError(f"{kind} lacks a required field", expected=column)
        return rows

    def put_skips(
        self, table: Any, fields: Mapping[str, Any], cooldown: dt.timedelta | None
    ) -> None:
        """Add records of files that could not be processed."""
        if "mergeskip" not in Wire.of(self._fields).wrappers:
            raise UnsupportedFeatureError(
                f"the {self._dialect.name} format does not record skipped files",
                path=self._log.table,
                expected="a table of the indextables format",
                found="mergeskip",
            )
        if table is None:
            rows = rows_frame([stage_one(self._fields, "mergeskip", fields)])
        else:
            only_one(table, fields)
            rows = stage_table(self._fields, "mergeskip", table)
        if not rows.height:
            return
        for column in ("path", "skipReason"):
            if column not in rows.columns or rows[column].null_count():
                raise InvalidInputError("a skip lacks a required field", expected=column)
        configuration = (self._new_metadata or self._metadata).configuration
        wait = cooldown_ms(configuration) if cooldown is None else cooldown
        self._skips.append(_with_times(rows, self._log.clock(), wait))

    def singles(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]] | None:
        """Rows of file actions added one by one, applications and domains; None with others."""
        if not self._single or self._files or self._skips:
            return None
        if self._new_protocol is not None or self._new_metadata is not None:
            return None
        return self._single, self._meta

    def gathered(
        self, runtime: Runtime, is_replaced: Callable[[pl.DataFrame], bool] = lambda _: False
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        """File actions and other actions as rows to write; `is_replaced` says whether the file
        actions leave none of the table's files.
        """
        self._flush()
        files = actions.concat(self._files)
        rows: list[dict[str, Any]] = []
        protocol, metadata = self._changed_pair(runtime, lambda: is_replaced(files))
        if protocol is not None:
            rows.append({"actionType": "protocol", **protocol_row(protocol)})
        if metadata is not None:
            rows.append({"actionType": "metaData", **metadata_row(metadata)})
        rows += self._meta
        frames = [rows_frame(rows)] if rows else []
        return files, actions.concat([*frames, *self._skips])

    def _changed_pair(
        self, runtime: Runtime, is_replaced: Callable[[], bool]
    ) -> tuple[Protocol | None, Metadata | None]:
        """Changed protocol, with the features that the metadata need, and metadata."""
        old = TableConfiguration(self._dialect, self._protocol, self._metadata)
        new = old.changed(self._new_protocol, self._new_metadata)
        if new.metadata != old.metadata or self._asked:
            needed = old.needed_by(new.metadata, self._asked) - self._ignored
            new = new.changed(new.rules.upgrade(new.protocol, needed))
        before = old.metadata_before(new)
        if new.metadata != before:
            settled = settled_metadata(new, before, runtime, is_replaced, self._named_as)
            new = new.changed(metadata=settled)
        return (
            None if new.protocol == old.protocol else new.protocol,
            None if new.metadata == before else new.metadata,
        )
