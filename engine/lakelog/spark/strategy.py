"""Chooses the replay strategy from the sizes of log and checkpoint. Pure.

==============  ====================================================================================
strategy        execution
==============  ====================================================================================
``broadcast``   Spark reads the checkpoint's Parquet directly, with only the columns that a query
                needs. The driver replays the commits above it. The keys of their file actions are
                broadcast, and tasks drop the checkpoint's rows with these keys.
``hash``        Executors decode the checkpoint's files and the commits with lakelog's own readers.
                Rows are partitioned by a hash of their path and reconciled with Polars.
``polars``      The driver replays everything and passes the rows to Spark.
==============  ====================================================================================

``auto`` selects ``polars`` for small states, which one machine replays before Spark starts tasks.
Otherwise it selects ``broadcast`` if the commits above the checkpoint fit a broadcast, else
``hash``, which has no limit. If Spark would read the checkpoint differently than lakelog (an
*obstacle*), only ``polars`` and ``hash`` are possible.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakelog.errors import InvalidInputError

AUTO = "auto"
BROADCAST = "broadcast"
HASH = "hash"
POLARS = "polars"
STRATEGIES = (BROADCAST, HASH, POLARS)

FEW_ROWS = 100_000
"""Number of rows up to which the driver alone is fastest, for any layout."""

MOST_ROWS_OF_DRIVER = 1_000_000
"""Number of rows up to which the driver alone is faster than a shuffle; it keeps all of them in
memory.
"""

_MOST_TAIL_ROWS = 2_000_000
"""Maximum number of file actions above the checkpoint that are sent to every task."""

MOST_TAIL_BYTES = 512 << 20
"""Maximum text of the commits above the checkpoint that the driver decodes, in bytes."""

PARTITION_ROWS = 250_000
"""Approximate number of rows that one task reconciles; about 300 MB with all columns."""

_LEAST_PARTITIONS = 2
_MOST_PARTITIONS = 20_000
_TEXT_OF_ACTION = 300  # approximate bytes of a commit's text


@dataclass(frozen=True)
class Sizes:
    """Rows of the checkpoint, bytes of the commits above, layout, and the obstacle for Spark."""

    base_rows: int = 0
    tail_bytes: int = 0
    layout: str | None = None
    obstacle: str | None = None

    @property
    def tail_rows(self) -> int:
        """Approximate number of file actions above the checkpoint."""
        return self.tail_bytes // _TEXT_OF_ACTION

    @property
    def rows(self) -> int:
        """Approximate total number of rows."""
        return self.base_rows + self.tail_rows


@dataclass(frozen=True)
class Choice:
    """A strategy of `STRATEGIES`, the reason, and the number of partitions for ``hash``."""

    strategy: str
    reason: str
    partitions: int = 0

    def __str__(self) -> str:
        return f"{self.strategy}: {self.reason}"


def choose(sizes: Sizes, asked: str = AUTO) -> Choice:
    """The strategy for a replay of these sizes.

    >>> print(choose(Sizes(base_rows=5_000_000, tail_bytes=3_000_000, layout="classic")))
    broadcast: 5,000,000 rows in a checkpoint (classic), some 10,000 above it
    """
    partitions = count_partitions(sizes.rows)
    if asked != AUTO:
        if asked not in STRATEGIES:
            raise InvalidInputError(
                "unknown replay strategy",
                expected=", ".join((AUTO, *STRATEGIES)),
                found=asked,
            )
        obstacle = "no checkpoint" if sizes.layout is None else sizes.obstacle
        if asked == BROADCAST and obstacle is not None:
            raise InvalidInputError(
                f"Spark cannot read the checkpoint itself: {obstacle}",
                expected=f"{HASH}, {POLARS}",
                found=asked,
                hint="omit the strategy",
            )
        return Choice(asked, "it was requested", partitions if asked == HASH else 0)
    sizes_text = _sizes_text(sizes)
    tail_fits = sizes.tail_rows <= _MOST_TAIL_ROWS and sizes.tail_bytes <= MOST_TAIL_BYTES
    if sizes.rows <= FEW_ROWS:
        return Choice(POLARS, f"{sizes_text}: the driver alone is fastest")
    if sizes.layout is not None and sizes.obstacle is None and tail_fits:
        return Choice(BROADCAST, sizes_text)
    if sizes.layout is None:
        why = f"{sizes_text}, and no checkpoint"
    elif sizes.obstacle is not None:
        why = f"{sizes_text}; {sizes.obstacle}"
    else:
        why = f"{sizes_text}, too many to broadcast"
    if sizes.rows <= MOST_ROWS_OF_DRIVER:
        return Choice(POLARS, why)
    return Choice(HASH, why, partitions)


def count_partitions(rows: int) -> int:
    """The number of partitions for a number of rows."""
    return max(_LEAST_PARTITIONS, min(_MOST_PARTITIONS, -(-rows // PARTITION_ROWS)))


def _sizes_text(sizes: Sizes) -> str:
    above = f"some {sizes.tail_rows:,}"
    if sizes.layout is None:
        return f"{above} file actions in commits"
    return f"{sizes.base_rows:,} rows in a checkpoint ({sizes.layout}), {above} above it"
