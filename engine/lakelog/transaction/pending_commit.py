"""The frozen content and reads of a transaction, and the commits that came first. Plain data.

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
"""Writes are serializable among themselves; a blind append may be put before what read past it."""

SERIALIZABLE = "Serializable"
"""Every read and write is serializable in the order of the log."""

ISOLATION_LEVELS = (WRITE_SERIALIZABLE, SERIALIZABLE)
"""Values of the table property ``delta.isolationLevel``, the default first."""


@dataclass(frozen=True)
class Reads:
    """What a transaction has declared that it read.

    Attributes:
        whole_table: Every file of the table was read.
        where: Predicates over table columns (logical names), each the condition of one read: a
            file was read if one of them may hold for one of its rows.
        app_ids: Applications whose transaction identifier was read.
    """

    whole_table: bool = False
    where: tuple[pl.Expr, ...] = ()
    app_ids: frozenset[str] = frozenset()

    @property
    def nothing(self) -> bool:
        """Whether no files were read."""
        return not self.whole_table and not self.where


@dataclass(frozen=True)
class PendingCommit:
    """A transaction's actions and reads, against the state that it depends on.

    Attributes:
        reads: What was declared read.
        staged: Narrow ``add`` and ``remove`` rows to be written, or a few of them on the fast path;
            paths decoded, ``dvId`` where there are deletion vectors.
        meta: Narrow ``protocol``, ``metaData``, ``domainMetadata``, ``txn`` and ``mergeskip`` rows
            to be written.
        isolation: One of `ISOLATION_LEVELS`.
        table: Protocol and metadata of the snapshot that was read.
        texts: How the log has paths of `staged`; see `lakelog.dialects.base.Dialect.path_texts`.
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
        """The file actions on the fast path; None where they take the general path."""
        return self.staged if isinstance(self.staged, SmallCommit) else None


@dataclass(frozen=True)
class Winner:
    """One commit that was written after the snapshot that a transaction read.

    Attributes:
        version: Its version.
        actions: All its actions, decoded by the dialect from that one commit.
    """

    version: int
    actions: Actions = field(default_factory=Actions)
