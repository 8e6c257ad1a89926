"""lakelog: an Arrow/Parquet-native columnar log engine for lake tables.

>>> import lakelog
>>> lakelog.__version__
'0.1.0'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakelog import errors, lazy
from lakelog.errors import (
    ArgumentTypeError,
    CheckpointCorruptionError,
    CheckpointError,
    CheckpointValidationError,
    CheckpointWriteError,
    CommitOutcomeUnknown,
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentDomainError,
    ConcurrentTransactionError,
    ConflictError,
    ConstraintViolationError,
    CorruptionError,
    DuplicateFileError,
    ExternalPathError,
    InternalError,
    InvalidActionError,
    InvalidInputError,
    InvalidMetadataError,
    InvalidPathError,
    InvalidPropertyError,
    InvalidProtocolError,
    InvalidTransactionError,
    KeyNotFoundError,
    LakelogError,
    LakelogWarning,
    LogGapError,
    LogLockedError,
    LogPoisonedError,
    MalformedLogError,
    MetadataChangedError,
    MissingActionError,
    MissingDependencyError,
    NotFoundError,
    NotRegularFileError,
    OutcomeUnknownError,
    PartitionMismatchError,
    ProtocolChangedError,
    ReadTimeoutError,
    SchemaEvolutionError,
    StreamMismatchError,
    TableExistsError,
    TableNotFoundError,
    TooManyConflictsError,
    UnavailableError,
    UnrepairableError,
    UnsafeRetentionError,
    UnsupportedError,
    UnsupportedFeatureError,
    UnsupportedStoreError,
    VersionNotFoundError,
    WalCorruptionError,
)
from lakelog.version import __version__

if TYPE_CHECKING:
    from lakelog import data as data
    from lakelog import plot as plot
    from lakelog import spark as spark
    from lakelog import wal as wal
    from lakelog.ingest.asynchronous import AsyncIngestor
    from lakelog.ingest.ingestor import Ingestor
    from lakelog.keyed.store import KeyedStore
    from lakelog.log.disk_cache import DiskCache
    from lakelog.snapshot import Snapshot
    from lakelog.table import Table
    from lakelog.table_functions import convert, create, open, write
    from lakelog.table_transaction import Transaction
    from lakelog.wal.log import WriteAheadLog

__all__ = [
    "ArgumentTypeError",
    "AsyncIngestor",
    "CheckpointCorruptionError",
    "CheckpointError",
    "CheckpointValidationError",
    "CheckpointWriteError",
    "CommitOutcomeUnknown",
    "ConcurrentAppendError",
    "ConcurrentDeleteDeleteError",
    "ConcurrentDeleteReadError",
    "ConcurrentDomainError",
    "ConcurrentTransactionError",
    "ConflictError",
    "ConstraintViolationError",
    "CorruptionError",
    "DiskCache",
    "DuplicateFileError",
    "ExternalPathError",
    "Ingestor",
    "InternalError",
    "InvalidActionError",
    "InvalidInputError",
    "InvalidMetadataError",
    "InvalidPathError",
    "InvalidPropertyError",
    "InvalidProtocolError",
    "InvalidTransactionError",
    "KeyNotFoundError",
    "KeyedStore",
    "LakelogError",
    "LakelogWarning",
    "LogGapError",
    "LogLockedError",
    "LogPoisonedError",
    "MalformedLogError",
    "MetadataChangedError",
    "MissingActionError",
    "MissingDependencyError",
    "NotFoundError",
    "NotRegularFileError",
    "OutcomeUnknownError",
    "PartitionMismatchError",
    "ProtocolChangedError",
    "ReadTimeoutError",
    "SchemaEvolutionError",
    "Snapshot",
    "StreamMismatchError",
    "Table",
    "TableExistsError",
    "TableNotFoundError",
    "TooManyConflictsError",
    "Transaction",
    "UnavailableError",
    "UnrepairableError",
    "UnsafeRetentionError",
    "UnsupportedError",
    "UnsupportedFeatureError",
    "UnsupportedStoreError",
    "VersionNotFoundError",
    "WalCorruptionError",
    "WriteAheadLog",
    "__version__",
    "convert",
    "create",
    "open",
    "write",
]

__getattr__ = lazy.lazy_exports(
    __name__,
    {
        "AsyncIngestor": "lakelog.ingest.asynchronous",
        "DiskCache": "lakelog.log.disk_cache",
        "Ingestor": "lakelog.ingest.ingestor",
        "KeyedStore": "lakelog.keyed.store",
        "Snapshot": "lakelog.snapshot",
        "Table": "lakelog.table",
        "Transaction": "lakelog.table_transaction",
        "WriteAheadLog": "lakelog.wal.log",
        "convert": "lakelog.table_functions",
        "data": "lakelog.data",
        "plot": "lakelog.plot",
        "spark": "lakelog.spark",
        "wal": "lakelog.wal",
        "create": "lakelog.table_functions",
        "open": "lakelog.table_functions",
        "write": "lakelog.table_functions",
    },
)


_ERROR_BASES = {"LakelogError", "LakelogWarning"}


def __dir__() -> list[str]:
    """The API. `lakelog.errors` lists the classes of errors, of which only the bases are here."""
    classes = {name for name in __all__ if hasattr(errors, name)} - _ERROR_BASES
    return sorted({*__all__, "data", "errors", "plot", "spark", "wal"} - classes)
