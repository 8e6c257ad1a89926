"""`Source`: one version's rows as a checkpoint holds them.

Source: Delta protocol, Action Reconciliation; Checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import polars as pl

from lakelog import actions
from lakelog.formats.base import STRUCT_STATISTICS
from lakelog.log import properties
from lakelog.log.replay import is_expired, live_domains, retained_tombstones
from lakelog.log.state import State

_META_ORDER = ("protocol", "metaData", "domainMetadata", "txn", "mergeskip")
_BATCH_ROWS = 1 << 16
_NOT_IN_REMOVES = ("stats", "tags", STRUCT_STATISTICS)


class Source:
    """The rows of a checkpoint of one version.

    Args:
        state: The version's state.
        memory_limit: Bytes that the process may take at most; None for no bound.
        now_ms: The present, in milliseconds since the Unix epoch: what the table's retentions are
            counted from.
    """

    def __init__(self, state: State, *, memory_limit: int | None, now_ms: int) -> None:
        self._state = state
        self._memory_limit = memory_limit
        self._now_ms = now_ms

    @cached_property
    def meta(self) -> pl.DataFrame:
        """Rows that are no file actions: protocol, metaData, live domains, transaction identifiers
        that still count, skips; narrow.

        Raises:
            CorruptionError: The log is damaged.
            InvalidInputError: A retention among the table's properties cannot be parsed.
        """
        meta = self._state.meta
        kinds = {kind: meta.filter(pl.col("actionType") == kind) for kind in _META_ORDER}
        kinds["domainMetadata"] = live_domains(meta)
        retention = properties.transaction_retention_ms(self._state.metadata.configuration)
        if retention is not None:
            counts = ~is_expired(self._now_ms - retention)
            txns = kinds["txn"]
            last_updated = actions.conform(txns, ("lastUpdated",))
            kinds["txn"] = txns.filter(last_updated.select(counts).to_series())
        return actions.concat(kinds[kind] for kind in _META_ORDER)

    def files(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """File actions, each logical file once: adds, then the tombstones that are still retained.

        Args:
            columns: Columns wanted, beside the key; one that is null throughout may be left out.
                `STRUCT_STATISTICS` gives typed statistics where a checkpoint keeps them.

        Yields:
            Narrow rows of one kind, 65,536 at most; ``dataChange`` is false. A tombstone is kept
            while its ``deletionTimestamp`` is later than the present less
            ``delta.deletedFileRetentionDuration``, a missing one counting as 0.

        Raises:
            CorruptionError: The log is damaged, or the checkpoint repeats a file.
            InvalidInputError: A retention among the table's properties cannot be parsed.
        """
        configuration = self._state.metadata.configuration
        minimum = self._now_ms - properties.deleted_file_retention_ms(configuration)
        wanted = list(dict.fromkeys((*actions.KEY, "actionType", *columns)))
        removed = [*dict.fromkeys((*wanted, "deletionTimestamp"))]
        if self._state.log.dialect.name == "delta":
            removed = [c for c in removed if c not in _NOT_IN_REMOVES]
        read = self._state.iter_live if self._state.base_is_unique else self._state.live
        for frame in read("add", wanted):
            yield from _batches(frame, wanted)
        for frame in read("remove", removed):
            yield from _batches(retained_tombstones(frame, minimum), removed)


def _batches(frame: pl.DataFrame, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    kept = frame.select(c for c in frame.columns if c in columns)
    if "dataChange" in columns:
        kept = kept.with_columns(dataChange=pl.lit(value=False))
    if kept.height:
        yield from kept.iter_slices(_BATCH_ROWS)
