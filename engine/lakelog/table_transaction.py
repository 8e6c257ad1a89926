"""`Transaction`: a set of actions that is committed atomically as the table's next version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lakelog.errors import InvalidInputError
from lakelog.input_validation import checked_methods
from lakelog.lazy import cached_property
from lakelog.snapshot import Snapshot
from lakelog.transaction.transaction import LogTransaction

if TYPE_CHECKING:
    import polars as pl

    from lakelog.data.merge import Merge
    from lakelog.data.row_commit import SchemaMode, WriteReport
    from lakelog.dialects.protocol_rules import TableConfiguration
    from lakelog.log.snapshot import LogSnapshot


@checked_methods(location_of=attrgetter("_log.table"))
class Transaction(LogTransaction):
    """A set of actions that is committed atomically as the table's next version.

    Create one with `Table.transaction` and use it as a context manager: leaving the block commits,
    an exception commits nothing. Without ``with``, call `commit`.

    A transaction reads the latest version when it starts (`snapshot`), or the given `version`. If
    other writers commit in between, it is rebased onto their commits, unless one of them changed
    a file that it removes, data that it read (`read`), the metadata, the protocol, or a domain or
    application version that it writes. Then a `ConflictError` names the commit and the rule.

    Rows are read by `scan` and written by `append`, `overwrite`, `overwrite_partitions`, `delete`,
    `update`, `merge` and `upsert`, in one commit: a commit of another writer that changed the rows
    read is a conflict. All calls see the version that the transaction reads, not each other's
    changes. Two calls that change the same file raise `DuplicateFileError` on commit. If one of
    these calls fails, the transaction has ended; if its error does not leave the block, leaving it
    raises `InvalidInputError`, because the other calls were not committed either.

    An empty transaction commits nothing, and its `version` stays None.

    A transaction is not thread-safe. Several transactions of one table can run concurrently.

    Source: Delta protocol, Actions; Delta's ConflictChecker.
    """

    @cached_property
    def snapshot(self) -> Snapshot:
        """The version that the transaction reads. Using it does not record a read: use `read` for
        data that the actions depend on.
        """
        return Snapshot(super().snapshot.read_state(lambda state: state))

    def scan(self, where: pl.Expr | str | None = None, *, row_ids: bool = False) -> pl.LazyFrame:
        """The rows of the version that the transaction reads, as `Snapshot.scan`; records the read
        of `where`, as `read`. A filter on the returned frame does not narrow what is recorded.
        """
        rows = self.snapshot.scan(where, row_ids=row_ids)
        self.read(where)
        return rows

    def append(
        self,
        df: Any,
        *,
        schema_mode: SchemaMode | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
    ) -> WriteReport:
        """Append rows, as `Table.append`. The files are written now, and deleted if nothing is
        committed.
        """
        from lakelog.data.append import append
        from lakelog.data.row_commit import WriteOptions

        options = WriteOptions(schema_mode, target_file_bytes, compression)
        return self._part(lambda: append(self._log, self._runtime, self, df, options))

    def overwrite(
        self,
        df: Any,
        where: pl.Expr | str | None = None,
        *,
        schema_mode: SchemaMode | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
    ) -> WriteReport:
        """Replace rows, as `Table.overwrite`; files as `append`."""
        from lakelog.data.append import overwrite
        from lakelog.data.row_commit import WriteOptions

        options = WriteOptions(schema_mode, target_file_bytes, compression)
        return self._part(lambda: overwrite(self._log, self._runtime, self, df, where, options))

    def overwrite_partitions(
        self,
        df: Any,
        *,
        schema_mode: SchemaMode | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
    ) -> WriteReport:
        """Replace partitions, as `Table.overwrite_partitions`; files as `append`."""
        from lakelog.data.append import overwrite_partitions
        from lakelog.data.row_commit import WriteOptions

        options = WriteOptions(schema_mode, target_file_bytes, compression)
        return self._part(lambda: overwrite_partitions(self._log, self._runtime, self, df, options))

    def delete(
        self,
        where: pl.Expr | str | None,
        *,
        target_file_bytes: int | None = None,
        compression: str | None = None,
    ) -> WriteReport:
        """Delete rows, as `Table.delete`; files as `append`."""
        from lakelog.data.row_commit import WriteOptions
        from lakelog.data.update import delete

        options = WriteOptions(None, target_file_bytes, compression)
        return self._part(lambda: delete(self._log, self._runtime, self, where, options))

    def update(
        self,
        values: Mapping[str, Any],
        where: pl.Expr | str | None = None,
        *,
        target_file_bytes: int | None = None,
        compression: str | None = None,
    ) -> WriteReport:
        """Assign new values to columns of rows, as `Table.update`; files as `append`."""
        from lakelog.data.row_commit import WriteOptions
        from lakelog.data.update import update

        options = WriteOptions(None, target_file_bytes, compression)
        return self._part(lambda: update(self._log, self._runtime, self, values, where, options))

    def merge(
        self,
        source: Any,
        on: str | Sequence[str] | Mapping[str, str],
        *,
        schema_mode: SchemaMode | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        memory_limit: int | None = None,
    ) -> Merge:
        """Compare the table with other rows, as `Table.merge`; `Merge.execute` writes the files,
        as `append`.
        """
        from lakelog.data.merge import Merge
        from lakelog.data.row_commit import WriteOptions

        options = WriteOptions(schema_mode, target_file_bytes, compression)
        return Merge(self._log, self._runtime, self, source, on, options, memory_limit, self._part)

    def upsert(
        self,
        df: Any,
        on: str | Sequence[str],
        *,
        schema_mode: SchemaMode | None = None,
        target_file_bytes: int | None = None,
        compression: str | None = None,
        memory_limit: int | None = None,
    ) -> WriteReport:
        """Update or insert rows by key, as `Table.upsert`; files as `append`."""
        merge = self.merge(
            df,
            on,
            schema_mode=schema_mode,
            target_file_bytes=target_file_bytes,
            compression=compression,
            memory_limit=memory_limit,
        )
        return merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _with_row_counts(self, snapshot: LogSnapshot, files: pl.DataFrame) -> pl.DataFrame:
        from lakelog.data.targets import with_row_counts

        return with_row_counts(snapshot, files, self._log.store)

    def _check_rules(self, table: TableConfiguration) -> None:
        from lakelog.data.row_rules import require_valid_rules

        require_valid_rules(table, self._table)

    def _part(self, write: Callable[[], WriteReport]) -> WriteReport:
        """One call that writes rows; if it fails, the transaction has ended."""
        self._require_open()
        if self.changes_metadata:
            raise InvalidInputError(
                "rows cannot be written after the metadata was changed in the same transaction",
                path=self._log.table,
                hint="commit the change of the metadata first",
            )
        self._is_writing = True
        try:
            return write()
        except BaseException as failure:
            self._over, self._failure = True, failure
            self._settle(None)
            raise
        finally:
            self._is_writing = False
