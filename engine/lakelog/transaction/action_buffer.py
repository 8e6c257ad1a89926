"""`ActionBuffer`: the actions of a transaction, validated one by one.

Whether the whole may be written, and behind which commit, is decided when it is committed: by
``checking`` and ``writing``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from lakelog.dialects.json_layout import Wire
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import InvalidInputError, InvalidTransactionError, UnsupportedFeatureError
from lakelog.log.context import Log
from lakelog.log.replay import live_domains
from lakelog.model import actions
from lakelog.model.metadata import Metadata, Protocol
from lakelog.transaction import metadata_changes, skipped_files
from lakelog.transaction.action_input import rows_frame, stage_one, stage_table
from lakelog.transaction.metadata_changes import only_one
from lakelog.transaction.metadata_rows import (
    fill_row,
    metadata_row,
    protocol_row,
    with_file_defaults,
)
from lakelog.transaction.runtime import Runtime


class ActionBuffer:
    """The actions of a transaction, as they are given.

    Its methods take a table of actions or the fields of one, and raise `InvalidInputError` where a
    name is unknown, or a value is not of its field's type.
    """

    def __init__(self, log: Log, table: TableConfiguration) -> None:
        self._log = log
        self._dialect, self._fields = log.dialect, log.dialect.contract_key
        self._protocol, self._metadata = table.protocol, table.metadata
        self._new_protocol: Protocol | None = None
        self._new_metadata: Metadata | None = None
        self._files: list[pl.DataFrame] = []
        self._single: list[dict[str, Any]] = []
        self._meta: list[dict[str, Any]] = []
        self._skips: list[pl.DataFrame] = []

    def put_files(self, kind: str, table: Any, fields: Mapping[str, Any]) -> None:
        """Take file actions of a kind."""
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

    def put_metadata(self, table: Any, fields: Mapping[str, Any], **changed: Any) -> None:
        """Take other metadata, as `metadata_changes.change_metadata` makes it."""
        self._new_metadata = metadata_changes.change_metadata(
            self._new_metadata or self._metadata, self._dialect, table, fields, **changed
        )

    def put_protocol(self, table: Any, fields: Mapping[str, Any], features: Sequence[str]) -> None:
        """Take another protocol, as `metadata_changes.change_protocol` makes it."""
        self._new_protocol = metadata_changes.change_protocol(
            self._new_protocol or self._protocol, self._dialect, table, fields, features
        )

    def put_txns(self, table: Any, fields: Mapping[str, Any]) -> None:
        """Take versions of applications."""
        for row in self._rows("txn", table, fields, ("appId", "txnVersion")):
            row.setdefault("lastUpdated", self._log.clock())
            self._meta.append(row)

    def put_domains(self, table: Any, fields: Mapping[str, Any]) -> None:
        """Take metadata domains."""
        for row in self._rows("domainMetadata", table, fields, ("domain", "domainConfiguration")):
            row.setdefault("domainRemoved", False)
            self._meta.append(row)

    def drop_domain(self, domain: str, meta: pl.DataFrame) -> None:
        """Take the removal of a domain."""
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
        # The removal keeps the last configuration, as the protocol asks.
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
        """Take records of files that could not be processed."""
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
        wait = skipped_files.cooldown_ms(configuration) if cooldown is None else cooldown
        self._skips.append(skipped_files.with_times(rows, self._log.clock(), wait))

    def singles(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]] | None:
        """The rows of the file actions if they came one by one, and those of applications and
        domains; None where there are other actions.
        """
        if not self._single or self._files or self._skips:
            return None
        if self._new_protocol is not None or self._new_metadata is not None:
            return None
        return self._single, self._meta

    def gathered(self, runtime: Runtime) -> tuple[pl.DataFrame, pl.DataFrame]:
        """File actions, and the others, as rows to be written."""
        self._flush()
        files = actions.concat(self._files)
        rows: list[dict[str, Any]] = []
        protocol, metadata = self._changed_pair(runtime)
        if protocol is not None:
            rows.append({"actionType": "protocol", **protocol_row(protocol)})
        if metadata is not None:
            rows.append({"actionType": "metaData", **metadata_row(metadata)})
        rows += self._meta
        frames = [rows_frame(rows)] if rows else []
        return files, actions.concat([*frames, *self._skips])

    def _changed_pair(self, runtime: Runtime) -> tuple[Protocol | None, Metadata | None]:
        """Protocol and metadata where they change; the protocol knows what the metadata needs."""
        protocol, metadata = self._new_protocol, self._new_metadata
        if metadata is not None and metadata != self._metadata:
            rules = self._dialect.protocol_rules
            protocol = rules.upgrade(protocol or self._protocol, rules.needed(metadata))
            metadata = metadata_changes.settled_metadata(metadata, self._metadata, runtime)
        if protocol == self._protocol:
            protocol = None
        if metadata == self._metadata:
            metadata = None
        return protocol, metadata
