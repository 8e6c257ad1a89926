"""The functions that open, create and write a table by its location.

A function that writes imports its implementation, because most callers only open a table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from lakelog.dialects.registry import detect_dialect, named, registered, without_log_folder
from lakelog.errors import (
    ArgumentTypeError,
    InvalidInputError,
    MetadataChangedError,
    TableExistsError,
    TableNotFoundError,
    naming_table,
)
from lakelog.input_validation import as_names, checked, require_choice
from lakelog.log.context import Log
from lakelog.model.contract import Struct
from lakelog.storage import LogStore
from lakelog.storage.bounded import (
    DEFAULT_LIMITS,
    DEFAULT_TIMEOUT_S,
    BoundedStore,
    ReadLimits,
    open_bounded,
)
from lakelog.storage.containment import Allowed, External
from lakelog.table import Table

if TYPE_CHECKING:
    import polars as pl

    from lakelog.data.convert import ConvertReport
    from lakelog.data.row_commit import SchemaMode, WriteReport
    from lakelog.log.disk_cache import DiskCache
    from lakelog.transaction.operations import CommitArguments
    from lakelog.transaction.schema_conversion import SchemaLike

_CACHE_VARIABLE = "LAKELOG_CACHE"
"""Environment variable that names the folder of the disk cache."""


@checked
def open(  # noqa: A001 - the public name
    path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    store: LogStore | None = None,
    parallelism: int | None = None,
    read_timeout: float | None = DEFAULT_TIMEOUT_S,
    upkeep: bool = True,
    allow_external: Allowed = False,
    cache: str | os.PathLike[str] | None = None,
) -> Table:
    """Open a table. The dialect is detected from the log folder.

    Args:
        path: The table's folder, on local disk or as any fsspec URL. The log folder itself
            (``_delta_log``, ``_transaction_log``) is accepted too.
        storage_options: Passed to the fsspec filesystem.
        store: The table's folder as a `lakelog.storage.LogStore`, in place of `path` and
            `storage_options`. Log, data files and deletion vectors are read and written through it.
            Such a table cannot be pickled. `lakelog.testing.StoreContract` tests a store.
        parallelism: Number of log files that are read concurrently; None uses the table's
            ``spark.indextables.checkpoint.parallelism``, else the default of the store.
        read_timeout: Seconds without progress after which a listing or read raises
            `ReadTimeoutError`, which names the missing files. Each file, range or page of a listing
            that arrives is progress; a large file gets one more second per MiB. None disables the
            limit. The table's ``spark.indextables.checkpoint.read.timeoutSeconds`` overrides the
            default once it has been read. On local disk the default applies only to network and
            FUSE mounts.
        upkeep: Whether commits through this handle are followed by checkpoints and log cleanup in
            the background, as the table's properties specify (``delta.checkpointInterval``, default
            10; ``delta.enableExpiredLogCleanup``, default true).
        allow_external: Data files, change data files and deletion vectors outside of the table's
            folder that may be opened, such as those of a shallow clone. False: none; opening one
            raises `ExternalPathError`. A list of folders (URLs or paths): the files below them.
            True: all, including files of this machine. `storage_options` are used only for the
            table's own bucket, container or host. A path that contains ``..`` is always refused.
            Listing external files needs no permission.
        cache: A local folder that keeps decoded columns of checkpoints for later processes, which
            then read only the commits above: a path, or a `lakelog.DiskCache`, which also takes a
            limit in bytes (default 10 GiB). None uses the folder in the environment variable
            ``LAKELOG_CACHE``, if it is set; an empty text uses none. Columns are kept when all of a
            checkpoint's files are read, and conditions on a checkpoint without lakelog's records of
            row groups then read all of them once. A checkpoint is identified by location, paths,
            lengths and modification times. One that is seconds old is not kept.

    Raises:
        TableNotFoundError: No log folder exists at the location.
        InvalidInputError: The location is an empty string, a file, or has logs of two dialects; or
            both `path` and `store` are given, or neither; or other users can write to the folder of
            `cache`, or it cannot be created.
        UnavailableError: The store failed.
    """
    limits = ReadLimits(parallelism, read_timeout)
    external = External.of(allow_external)
    files = _opened(path, storage_options, store, limits)
    log = Log(files, detect_dialect(files), external=external, storage_options=storage_options)
    return Table(log, upkeep=upkeep, cache=_disk_cache(cache))


def _disk_cache(
    given: str | os.PathLike[str] | None,
) -> DiskCache | None:
    chosen = os.environ.get(_CACHE_VARIABLE) if given is None else given
    if not chosen:
        return None
    from lakelog.log.disk_cache import DiskCache

    return chosen if isinstance(chosen, DiskCache) else DiskCache(chosen)


@checked
def create(
    path: str | os.PathLike[str] | None,
    schema: SchemaLike,
    partition_by: str | Sequence[str] = (),
    format: str = "delta",
    configuration: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    store: LogStore | None = None,
    name: str | None = None,
    description: str | None = None,
    mode: Literal["error", "ignore", "overwrite"] = "error",
    upkeep: bool = True,
) -> Table:
    """Create an empty table and open it.

    With mode ``overwrite``, an existing table gets the new schema, partitioning, properties, name
    and description, and all its files are removed, in one commit. Earlier versions stay readable.
    Table id, table features, column ids, and the properties of column mapping, row tracking and
    in-commit timestamps stay; other properties that `configuration` lacks are removed.

    Args:
        path: The table's folder, on local disk or as any fsspec URL; created if it does not exist.
            None with `store`.
        schema: The columns: a Polars schema (or a dict of names to Polars dtypes), a schema or
            fields of pyarrow, deltalake or another Arrow library, StructType JSON as text or
            parsed, or `lakelog.model.contract.Struct`. Metadata of Arrow fields is not taken.
        partition_by: The partition column, or several in order.
        format: ``delta`` or ``indextables``.
        configuration: Table properties. The protocol is the lowest that these and the schema
            require.
        storage_options: Passed to the fsspec filesystem.
        store: As `open`.
        name: Name of the table.
        description: Description of the table.
        mode: If a table exists: ``error`` raises an error, ``ignore`` opens it as it is,
            ``overwrite`` replaces it.
        upkeep: As `open`.

    Raises:
        TableExistsError: A table exists, possibly created concurrently, and `mode` is ``error``;
            or it is ``overwrite``, and the table has another format.
        InvalidTransactionError: The metadata is invalid; subclasses give the reason. Or an
            append-only table would be overwritten.
        ConflictError: Another writer committed while the table was overwritten.
        InvalidInputError: The format or the schema is unknown; a constraint, a generation
            expression, a default or an identity column is invalid; the location is a file; or both
            `path` and `store` are given, or neither.
        UnsupportedFeatureError: The table would need a writer feature that lakelog lacks, or has
            such an expression that lakelog does not evaluate.
        UnsupportedStoreError: The store has no atomic put-if-absent.
        CommitOutcomeUnknown: The table may have been created, and cannot be read back.
        UnavailableError: The store failed; nothing was written.
    """
    require_choice("mode", mode, ("error", "ignore", "overwrite"))
    dialect = named(format)
    files = _opened(path, storage_options, store, DEFAULT_LIMITS)
    log = Log(files, dialect, storage_options=storage_options)
    from lakelog.data.row_rules import require_valid_rules
    from lakelog.transaction.create import NewTable, TableDefinition, configured, replace_table
    from lakelog.transaction.runtime import Runtime

    definition = TableDefinition(schema, as_names(partition_by), configuration, name, description)
    try:
        new = NewTable(log, Runtime(), registered(), definition)
        require_valid_rules(new.table)
        new.commit()
    except TableExistsError:
        found = detect_dialect(files)
        if mode == "error" or (mode == "overwrite" and found != dialect):
            raise
        log = Log(files, found, storage_options=storage_options)
        table = Table(log, upkeep=upkeep)
        if mode == "overwrite":
            require_valid_rules(configured(log, Runtime(), definition))
            replace_table(table.transaction, definition)
        return table
    return Table(log, upkeep=upkeep)


WriteMode = Literal["append", "overwrite", "overwrite_partitions", "error", "ignore"]


@checked
def write(
    path: str | os.PathLike[str] | None,
    df: Any,
    mode: WriteMode = "append",
    partition_by: str | Sequence[str] | None = None,
    *,
    where: pl.Expr | str | None = None,
    schema_mode: SchemaMode | None = None,
    configuration: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    store: LogStore | None = None,
    target_file_bytes: int | None = None,
    compression: str | None = None,
    version: int | None = None,
    upkeep: bool = True,
    **commit: Unpack[CommitArguments],
) -> WriteReport:
    """Write rows to a Delta table, which is created if it does not exist.

    By default, rows are appended to an existing table (``write_deltalake`` raises an error).
    A new table is created with the columns and the rows of `df`, in one commit; columns of Arrow
    data that are not nullable are NOT NULL. If another writer creates the table at the same time,
    the rows are written again, as to an existing table.

    Args:
        path: The table's folder, as `create`. None with `store`.
        df: The rows, as `Table.append`.
        mode: For an existing table: ``append`` adds the rows, ``overwrite`` replaces all rows, or
            those of `where`, ``overwrite_partitions`` those of the partitions that have rows in
            `df`, ``error`` raises an error, ``ignore`` writes nothing.
        partition_by: Partition column or columns of a new table. An existing one must have the
            same, unless `mode` and `schema_mode` are ``overwrite``. None accepts those of the
            table.
        where: As `Table.overwrite`.
        schema_mode: As `Table.append` and `Table.overwrite`.
        configuration: Properties of a new table.
        name: Name of a new table.
        description: Description of a new table.
        storage_options: As `open`.
        store: As `open`.
        target_file_bytes: As `Table.append`.
        compression: As `Table.append`.
        version: As `Table.append`, `Table.overwrite` and `Table.overwrite_partitions`.
        upkeep: As `open`.
        commit: As `Table.append`.

    Returns:
        The version, and the rows and files written and removed; its version is None with ``ignore``
        if the table exists.

    Raises:
        TableExistsError: The table exists, and `mode` is ``error``.
        TableNotFoundError: The table does not exist, and `version` is given.
        InvalidInputError: As `create`, `Table.append` and `Table.overwrite`; or `where` is given
            and `mode` is not ``overwrite``.
        UnsupportedFeatureError: As `Table.append`.
        ConflictError: As `Table.append`; or another writer created the table at the same time, and
            `df` is a stream, which cannot be read again.
        CommitOutcomeUnknown: As `Table.append`.
        UnavailableError: As `Table.append`.

    Memory: as `Table.append`.

    Example:
        >>> import polars as pl
        >>> rows = pl.DataFrame({"id": [1, 2], "day": ["a", "b"]})
        >>> write("orders", rows, partition_by=["day"]).version
        0
    """
    from lakelog.data.append import create_with_rows, require_partitioning
    from lakelog.data.conform import Incoming, merged_schema
    from lakelog.data.row_commit import WriteOptions, WriteReport
    from lakelog.transaction.create import NewTable, TableDefinition
    from lakelog.transaction.operations import CommitArguments, require_arguments
    from lakelog.transaction.runtime import Runtime

    require_arguments("write", commit, CommitArguments)
    partition_by = as_names(partition_by)
    require_choice("mode", mode, get_args(WriteMode))
    if where is not None and mode != "overwrite":
        raise InvalidInputError("where needs mode 'overwrite'", expected="overwrite", found=mode)
    rows = Incoming.of(df)  # before a table is created
    table = None
    if mode in {"append", "overwrite", "overwrite_partitions"}:
        table = _existing(path, storage_options, store, upkeep=upkeep)
    if table is None and version is None:
        log = new_log(path, storage_options, store)
        schema = merged_schema(None, rows.schema)
        definition = TableDefinition(schema, partition_by or (), configuration, name, description)
        options = WriteOptions(schema_mode, target_file_bytes, compression, commit=commit)
        try:
            new = NewTable(log, Runtime(), registered(), definition)
            return create_with_rows(new, rows, mode, where, options)
        except TableExistsError as cause:
            if mode == "error":
                raise
            if mode == "ignore":
                return WriteReport(None)
            if rows.is_stream:
                raise MetadataChangedError(
                    "another writer created the table while its first rows were written",
                    path=log.table,
                    version=0,
                    rule="metadata_changed",
                    hint="call write again with the rows; nothing was written",
                ) from cause
            rows = Incoming.of(rows.again)
    if table is None:
        table = open(path, storage_options, store=store, upkeep=upkeep)
    more: Any = {
        "schema_mode": schema_mode,
        "target_file_bytes": target_file_bytes,
        "compression": compression,
        "version": version,
    }
    if mode == "overwrite":
        return table.overwrite(rows, where, partition_by=partition_by, **more, **commit)
    require_partitioning(table.snapshot(version), partition_by)
    verb = table.overwrite_partitions if mode == "overwrite_partitions" else table.append
    return verb(rows, **more, **commit)


@checked
def convert(
    path: str | os.PathLike[str] | None,
    partition_by: str | Sequence[str] | Mapping[str, Any] | None = None,
    *,
    plan: bool = False,
    mode: Literal["error", "ignore"] = "error",
    configuration: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    store: LogStore | None = None,
    **commit: Unpack[CommitArguments],
) -> ConvertReport:
    """Make a Delta table of a folder of Parquet files, in place and in one commit.

    The footers of the files are read; no file is modified, moved or copied. No other process may
    write to the folder during the call: files that it adds may be left out, or be taken into the
    table before they are committed, and files that it removes are not noticed.

    The schema has the columns of all files. A column of different types gets the widest, if these
    are byte, short, integer and long, or float and double. A column without a type, because a file
    holds nulls only, has the type of the other files; it is left out with a `LakelogWarning` if no
    file has one. All columns are nullable. The statistics of a file are what its footer shows for
    certain.

    Folders ``name=value`` are partitions; values are percent-decoded, and
    ``__HIVE_DEFAULT_PARTITION__`` is null. A column of a file with the name of a partition column
    is ignored. Files and folders whose name begins with ``_`` or ``.`` are ignored, except folders
    of partition columns, and so are files whose name does not end with ``.parquet``.

    Args:
        path: The folder. None with `store`.
        partition_by: The partition column, or several in the order of the folders, or a schema
            with their types as `create` takes one. None takes the names of the folders. Without
            types, a column is ``long`` or ``date`` if all values have the usual form of one, else a
            string.
        plan: Read the footers and return the report, but write nothing.
        mode: If a table exists: ``error`` raises an error, ``ignore`` does nothing.
        configuration: As `create`.
        name: As `create`.
        description: As `create`.
        storage_options: As `open`.
        store: As `open`.
        commit: As `Table.append`.

    Returns:
        The version, files, rows, bytes, schema and partition columns; the version is None with
        `plan`, and with ``ignore`` if a table exists.

    Raises:
        TableExistsError: A Delta or IndexTables table exists, and `mode` is ``error``.
        NotFoundError: The folder has no Parquet file.
        UnsupportedFeatureError: A file (``path``) has a column whose type differs from that of
            other files, whose name differs from another in case only, or that has nanoseconds.
        InvalidInputError: A column has a type that a Delta table cannot have; a part of a nested
            column, or every column, has no type in any file; or the folders of a file are not those
            of `partition_by`, or a value is not of the column's type.
        InvalidTransactionError: The schema is invalid, as for `create`.
        CorruptionError: A file is not valid Parquet.
        UnsupportedStoreError: The store has no atomic put-if-absent.
        CommitOutcomeUnknown: The table may have been created.
        UnavailableError: The store failed; nothing was written.

    IndexTables tables cannot be made of Parquet files, because their rows are in search indexes.

    Memory: the schema and statistics of every file, about one kilobyte per file.

    Source: Delta Lake, CONVERT TO DELTA.
    """
    from lakelog.data.convert import ConvertReport
    from lakelog.data.convert import convert as convert_folder
    from lakelog.transaction.create import TableDefinition
    from lakelog.transaction.operations import CommitArguments, require_arguments
    from lakelog.transaction.runtime import Runtime

    require_arguments("convert", commit, CommitArguments)
    if not isinstance(partition_by, Mapping):
        partition_by = as_names(partition_by)
    require_choice("mode", mode, ("error", "ignore"))
    log = new_log(path, storage_options, store)
    definition = TableDefinition(Struct(()), (), configuration, name, description)
    try:
        with naming_table(log.table):
            return convert_folder(
                log, Runtime(), registered(), partition_by, definition, commit, plan=plan
            )
    except TableExistsError:
        if mode == "error":
            raise
        return ConvertReport(None)


def new_log(
    path: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    store: LogStore | None = None,
) -> Log:
    """The log of a Delta table that may not exist yet; errors as `open`."""
    files = _opened(path, storage_options, store, DEFAULT_LIMITS)
    return Log(files, named("delta"), storage_options=storage_options)


def _existing(
    path: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    store: LogStore | None,
    *,
    upkeep: bool,
) -> Table | None:
    """The table, if it has a version."""
    try:
        table = open(path, storage_options, store=store, upkeep=upkeep)
        table.version()
    except TableNotFoundError:
        return None
    return table


def _opened(
    path: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    store: object,
    limits: ReadLimits,
) -> BoundedStore:
    """The store of a location, or the store that the caller passed."""
    if store is None:
        if path is None:
            raise InvalidInputError("pass path or store")
        return open_bounded(without_log_folder(os.fspath(path)), storage_options, limits)
    if path is not None or storage_options is not None:
        raise InvalidInputError("pass either path and storage_options, or store")
    if isinstance(store, type) or not isinstance(store, LogStore):
        raise ArgumentTypeError(
            f"store must be a lakelog.storage.LogStore, got {type(store).__name__}",
            expected="an object with the methods of lakelog.storage.LogStore",
            found=type(store).__name__,
        )
    return BoundedStore(store, limits)
