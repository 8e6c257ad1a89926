"""lakelog: an Arrow/Parquet-native columnar log engine for lake tables.

>>> import lakelog
>>> lakelog.__version__
'0.1.0'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakelog.errors import (
    CheckpointCorruptionError,
    CommitOutcomeUnknown,
    ConcurrentAppendError,
    ConcurrentDeleteDeleteError,
    ConcurrentDeleteReadError,
    ConcurrentDomainError,
    ConcurrentTransactionError,
    ConflictError,
    CorruptionError,
    DuplicateFileError,
    InternalError,
    InvalidActionError,
    InvalidInputError,
    InvalidMetadataError,
    InvalidPathError,
    InvalidPropertyError,
    InvalidProtocolError,
    InvalidTransactionError,
    LakelogError,
    LakelogWarning,
    LogGapError,
    MalformedLogError,
    MetadataChangedError,
    MissingActionError,
    MissingDependencyError,
    NotFoundError,
    OutcomeUnknownError,
    PartitionMismatchError,
    ProtocolChangedError,
    SchemaEvolutionError,
    TableExistsError,
    TableNotFoundError,
    TooManyConflictsError,
    UnavailableError,
    UnsupportedError,
    UnsupportedFeatureError,
    UnsupportedStoreError,
    VersionNotFoundError,
)

if TYPE_CHECKING:
    from lakelog.log.snapshot import Snapshot
    from lakelog.table import Table, open

__version__ = "0.1.0"

__all__ = [
    "CheckpointCorruptionError",
    "CommitOutcomeUnknown",
    "ConcurrentAppendError",
    "ConcurrentDeleteDeleteError",
    "ConcurrentDeleteReadError",
    "ConcurrentDomainError",
    "ConcurrentTransactionError",
    "ConflictError",
    "CorruptionError",
    "DuplicateFileError",
    "InternalError",
    "InvalidActionError",
    "InvalidInputError",
    "InvalidMetadataError",
    "InvalidPathError",
    "InvalidPropertyError",
    "InvalidProtocolError",
    "InvalidTransactionError",
    "LakelogError",
    "LakelogWarning",
    "LogGapError",
    "MalformedLogError",
    "MetadataChangedError",
    "MissingActionError",
    "MissingDependencyError",
    "NotFoundError",
    "OutcomeUnknownError",
    "PartitionMismatchError",
    "ProtocolChangedError",
    "SchemaEvolutionError",
    "Snapshot",
    "Table",
    "TableExistsError",
    "TableNotFoundError",
    "TooManyConflictsError",
    "UnavailableError",
    "UnsupportedError",
    "UnsupportedFeatureError",
    "UnsupportedStoreError",
    "VersionNotFoundError",
    "open",
]

# Polars, pyarrow and fsspec load when the first table is opened, not when lakelog is imported.
_LAZY = {"open": "lakelog.table", "Table": "lakelog.table", "Snapshot": "lakelog.log.snapshot"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'lakelog' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
