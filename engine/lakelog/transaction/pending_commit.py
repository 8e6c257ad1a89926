"""The frozen content and reads of a transaction, and the concurrent commits. Plain data.

Owns no rule and does no I/O; `conflicts.find_conflict` checks one against the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from lakelog.dialects.log_content import Actions
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.lazy import cached_property
from lakelog.model.metadata import Metadata, Protocol
from lakelog.transaction.small_commit import SmallCommit

WRITE_SERIALIZABLE = "WriteSerializable"
"""Writes are serializable among themselves; a blind append may be ordered before a transaction that
did not read it.
"""

SERIALIZABLE = "Serializable"
"""Every read and write is serializable in the order of the log."""

ISOLATION_LEVELS = (WRITE_SERIALIZABLE, SERIALIZABLE)
"""Values of the table property ``delta.isolationLevel``, the default first."""


@dataclass(frozen=True)
class Reads:
    """The reads of a transaction; `where` over logical names, `app_ids` of applications."""

    whole_table: bool = False
    where: tuple[pl.Expr, ...] = ()
    app_ids: frozenset[str] = frozenset()

    @property
    def nothing(self) -> bool:
        """Whether no files were read."""
        return not self.whole_table and not self.where


@dataclass(frozen=True)
class PendingCommit:
    """Actions and reads against a snapshot. `staged` are add and remove rows with decoded paths,
    `meta` other rows, `table` the configuration that was read, `texts` as `Dialect.path_texts`.
    """

    reads: Reads
    staged: pl.DataFrame | SmallCommit
    meta: pl.DataFrame
    isolation: str
    table: TableConfiguration
    texts: pl.DataFrame | None = None

    @property
    def protocol(self) -> Protocol:
        """Protocol of the snapshot that was read."""
        return self.table.protocol

    @property
    def metadata(self) -> Metadata:
        """Metadata of the snapshot that was read."""
        return self.table.metadata

    @cached_property
    def files(self) -> pl.DataFrame:
        """The file actions as a frame."""
        return self.staged.frame if isinstance(self.staged, SmallCommit) else self.staged

    @property
    def small(self) -> SmallCommit | None:
        """The file actions on the fast path; None if they need the general path."""
        return self.staged if isinstance(self.staged, SmallCommit) else None


@dataclass(frozen=True)
class Winner:
    """A commit after the transaction's read version, decoded."""

    version: int
    actions: Actions = field(default_factory=Actions)
