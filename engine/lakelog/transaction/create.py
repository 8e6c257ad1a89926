"""Creates a table by committing version 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from lakelog.dialects.base import Dialect
from lakelog.dialects.properties import with_plain_constraints
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import InvalidTransactionError, TableExistsError
from lakelog.log.context import Log
from lakelog.model import actions
from lakelog.model.column_names import spelled
from lakelog.model.metadata import Metadata
from lakelog.storage import LogStore
from lakelog.storage.bounded import unbounded
from lakelog.storage.local import LocalStore
from lakelog.transaction import operations, write_support
from lakelog.transaction.action_buffer import ActionBuffer
from lakelog.transaction.action_input import rows_frame
from lakelog.transaction.commit_content import Description
from lakelog.transaction.commit_loop import CommitLoop, Plan, Retry
from lakelog.transaction.log_tail import LogTails
from lakelog.transaction.metadata_changes import (
    CHECKPOINT_PROTECTION,
    metadata_row,
    protocol_row,
    settled_metadata,
)
from lakelog.transaction.operations import CommitArguments, Operation
from lakelog.transaction.pending_commit import PendingCommit, Reads
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.schema_conversion import SchemaLike, schema_text, struct_of
from lakelog.transaction.transaction import (
    COLUMNAR_ABOVE_BYTES,
    LogTransaction,
    isolation_level,
    refuse_unsafe_store,
)
from lakelog.transaction.validation import check_files, check_metadata
from lakelog.version import __version__
from lakelog.wal.placement import require_no_log


@dataclass(frozen=True)
class TableDefinition:
    """The definition of a table; `has_files`: its first files have the names of the schema, which
    column mapping then keeps.
    """

    schema: SchemaLike
    partition_by: Sequence[str] = ()
    configuration: Mapping[str, str] | None = None
    name: str | None = None
    description: str | None = None
    has_files: bool = False


class NewTable:
    """A table that does not exist yet; validated, but not written before `commit`."""

    def __init__(
        self,
        log: Log,
        runtime: Runtime,
        dialects: Sequence[Dialect],
        table: TableDefinition | TableConfiguration,
    ) -> None:
        refuse_unsafe_store(log)
        refuse_existing(log.store, dialects)
        self.log, self.runtime = log, runtime
        self._is_copied = isinstance(table, TableConfiguration)
        if isinstance(table, TableDefinition):
            table = configured(log, runtime, table)
        self.table = table
        table.rules.check_change(None, table.protocol)
        check_metadata(table, None, restored=self._is_copied)
        write_support.check_writable(table, log.table)

    def commit(
        self,
        adds: pl.DataFrame | None = None,
        *,
        operation: Operation | None = None,
        metrics: Mapping[str, Any] | None = None,
        commit: CommitArguments | None = None,
        domains: pl.DataFrame | None = None,
        external: bool = False,
        rows_checked: bool = False,
    ) -> None:
        """Write version 0; `external` allows absolute paths, `rows_checked` rows are valid."""
        log, table, given = self.log, self.table, commit or CommitArguments()
        configuration = table.metadata.configuration
        isolation = isolation_level(given.get("isolation"), table.metadata)
        name, user_name = given.get("operation"), given.get("user_name")
        user_metadata, fields = given.get("user_metadata"), given.get("commit_info")
        operations.check_description(name, None, None, user_name, user_metadata, fields)
        buffer = ActionBuffer(log, table)
        if adds is not None:
            buffer.put_files("add", adds, {})
        app = operations.application(given.get("app_id"), given.get("app_version"))
        if app is not None:
            buffer.put_txns(None, {"appId": app[0], "version": app[1]})
        if domains is not None and domains.height:
            buffer.put_domains(domains, {})
        files, others = buffer.gathered(self.runtime)
        first = [
            {"actionType": "protocol", **protocol_row(table.protocol)},
            {"actionType": "metaData", **metadata_row(table.metadata)},
        ]
        meta = actions.concat([rows_frame(first), others])
        check_files(files, table, external=external)
        checked = files["path"] if rows_checked and files.height else None
        write_support.check_actions(
            table, files, meta, log.table, restored=self._is_copied, checked=checked
        )
        done = operation or operations.infer(files, meta, None, table.metadata, table.protocol)
        plan = Plan(
            log,
            PendingCommit(Reads(), files, meta, isolation, table),
            Description(
                name or done.name,
                done.parameters,
                metrics or {},
                self.runtime.new_id(),
                f"lakelog/{__version__}",
                blind_append=True,
                read_version=None,
                isolation=isolation,
                user_name=user_name,
                user_metadata=user_metadata,
                fields=dict(fields or {}),
            ),
            lambda _: None,
            columnar_above=COLUMNAR_ABOVE_BYTES if table.supports("columnarCommits") else None,
            retry=Retry.of(configuration, given.get("max_attempts")),
        )
        CommitLoop(plan, None, LogTails(log, self.runtime), self.runtime).run()


def configured(log: Log, runtime: Runtime, definition: TableDefinition) -> TableConfiguration:
    """The lowest protocol, and the metadata, of a table that is defined so."""
    rules = log.dialect.protocol_rules
    metadata = Metadata(
        runtime.new_id(),
        definition.name,
        definition.description,
        log.dialect.provider,
        {},
        schema_text(definition.schema),
        tuple(spelled(definition.partition_by, struct_of(definition.schema).names)),
        with_plain_constraints(definition.configuration or {}, {}),
        log.clock(),
    )
    protocol = rules.upgrade(None, rules.needed(metadata))
    before = replace(metadata, configuration={}) if definition.has_files else None
    table = TableConfiguration(log.dialect, protocol, metadata)
    return table.changed(metadata=settled_metadata(table, before, runtime))


_KEPT = (
    "delta.columnMapping.",
    "delta.rowTracking.",
    "delta.enableRowTracking",
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablement",
    CHECKPOINT_PROTECTION,
)
"""Properties that earlier versions of the table still need."""


def replace_table(begin: Callable[..., LogTransaction], definition: TableDefinition) -> None:
    """Replace all files and the definition of a table in one commit. Table id, protocol features
    and the properties `_KEPT` are kept, because earlier versions need them.
    """
    configuration, partition_by = dict(definition.configuration or {}), definition.partition_by
    parameters = operations.created(definition.description, partition_by, configuration)
    tx = begin(operation="CREATE OR REPLACE TABLE", parameters=parameters)
    if tx.snapshot.table_configuration.is_active("appendOnly"):
        raise InvalidTransactionError(
            "the table is append-only, and would be overwritten",
            path=tx.snapshot.path,
            hint="set delta.appendOnly to false first, if the table's owner agrees",
        )
    before = tx.snapshot.metadata.configuration
    kept = {key: before[key] for key in before if key.startswith(_KEPT)}
    tx.remove(tx.read().collect())
    tx.set_metadata(
        schema=definition.schema,
        partition_by=list(partition_by),
        configuration=dict.fromkeys(before) | kept | configuration,
        name=definition.name,
        description=definition.description,
    )
    tx.remove_clustering()
    tx.replace_rows()
    tx.commit()


def refuse_existing(store: LogStore, dialects: Sequence[Dialect]) -> None:
    """Raise if the location contains a table of any dialect, or a write-ahead log, whose files
    vacuum would delete.
    """
    for dialect in dialects:
        listing = dialect.list_log(store, hint=False)
        if listing.commits or listing.checkpoints:
            raise TableExistsError(
                f"a {dialect.name} table exists at this location",
                path=store.root,
                found=dialect.log_folder,
                hint="open it, or use another location",
            )
    local = unbounded(store)
    if isinstance(local, LocalStore):
        require_no_log(local.absolute_root)
