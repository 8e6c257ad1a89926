"""Creates a table: version 0, written by the same loop as every other version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakelog.dialects.base import Dialect
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import TableExistsError
from lakelog.log.context import Log
from lakelog.model import actions
from lakelog.model.metadata import Metadata
from lakelog.storage import LogStore
from lakelog.transaction import operations, write_support
from lakelog.transaction.action_input import rows_frame
from lakelog.transaction.commit_content import Description
from lakelog.transaction.commit_loop import CommitLoop, Plan, Retry
from lakelog.transaction.log_tail import LogTails
from lakelog.transaction.metadata_changes import metadata_row, protocol_row, settled_metadata
from lakelog.transaction.pending_commit import WRITE_SERIALIZABLE, PendingCommit, Reads
from lakelog.transaction.runtime import Runtime
from lakelog.transaction.schema_conversion import SchemaLike, schema_text
from lakelog.transaction.transaction import refuse_unsafe_store
from lakelog.transaction.validation import check_metadata
from lakelog.version import __version__


def create_table(
    log: Log,
    runtime: Runtime,
    dialects: Sequence[Dialect],
    *,
    schema: SchemaLike,
    partition_by: Sequence[str] = (),
    configuration: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
) -> None:
    """Write version 0 of a table."""
    refuse_unsafe_store(log)
    _refuse_existing(log.store, dialects)
    dialect, rules = log.dialect, log.dialect.protocol_rules
    asked = Metadata(
        runtime.new_id(),
        name,
        description,
        dialect.provider,
        {},
        schema_text(schema),
        tuple(partition_by),
        dict(configuration or {}),
        log.clock(),
    )
    protocol = rules.upgrade(None, rules.needed(asked))
    metadata = settled_metadata(asked, None, runtime)
    rules.check_change(None, protocol)
    table = TableConfiguration(dialect, protocol, metadata)
    check_metadata(table, None)
    write_support.check_writable(table, log.table)
    meta = rows_frame(
        [
            {"actionType": "protocol", **protocol_row(protocol)},
            {"actionType": "metaData", **metadata_row(metadata)},
        ]
    )
    files = actions.concat([])
    operation = operations.infer(files, meta, None, metadata, protocol)
    plan = Plan(
        log,
        PendingCommit(Reads(), files, meta, WRITE_SERIALIZABLE, table),
        Description(
            operation.name,
            operation.parameters,
            {},
            runtime.new_id(),
            f"lakelog/{__version__}",
            blind_append=True,
            read_version=None,
            isolation=WRITE_SERIALIZABLE,
        ),
        lambda _: None,
        retry=Retry(),
    )
    CommitLoop(plan, None, LogTails(log, runtime), runtime).run()


def _refuse_existing(store: LogStore, dialects: Sequence[Dialect]) -> None:
    """Refuse a place where a table is, of any dialect."""
    for dialect in dialects:
        listing = dialect.list_log(store, hint=False)
        if listing.commits or listing.checkpoints:
            raise TableExistsError(
                f"a {dialect.name} table exists at this location",
                path=store.root,
                found=dialect.log_folder,
                hint="open it, or use another location",
            )
