"""Selects the sidecars of an earlier V2 checkpoint that can be kept. Pure.

Small sidecars are merged as they pile up, so that each is more than twice as large as the next
smaller one: there are few, and a row is written a logarithmic number of times before it rests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import SidecarFile

MOST_SMALL = 16
"""How many sidecars of fewer than half of the target may be kept."""

_MERGE_RATIO = 2


@dataclass(frozen=True)
class Sidecar:
    """One sidecar of the earlier checkpoint, and what the commits above it do to it.

    Attributes:
        file: As its manifest names it.
        adds: Live files in it.
        removes: Tombstones in it.
        digest: Digest of its rows.
        superseded: Rows in it of logical files that later commits speak of.
        expired: Tombstones in it that certainly have expired.
    """

    file: SidecarFile
    adds: int
    removes: int
    digest: Digest
    superseded: int = 0
    expired: int = 0

    @property
    def rows(self) -> int:
        """Actions in it."""
        return self.adds + self.removes


@dataclass(frozen=True)
class Reuse:
    """Which sidecars stay.

    Attributes:
        kept: Those that the new manifest names too.
        rewritten: Those whose remaining rows are written again.
        parts: New sidecars to write: for those rows, and for what the commits brought.
        part_rows: Rows of each but the last, which has at most as many.
    """

    kept: tuple[Sidecar, ...]
    rewritten: tuple[Sidecar, ...]
    parts: int
    part_rows: int


def plan_reuse(sidecars: Sequence[Sidecar], incoming_rows: int, target_rows: int) -> Reuse:
    """Decide which sidecars are kept and which are written again.

    A sidecar is written again if a row of it is superseded, if at least half of its rows are
    expired tombstones, or if it is to be merged. With `target_rows` as the measure, a sidecar of
    fewer than half of that is small. What is written anyway takes in the smallest small ones, for
    as long as one has at most twice as many rows as what has come together; and all of them where
    more than 16 would be left.
    """
    rewritten = {
        index
        for index, sidecar in enumerate(sidecars)
        if sidecar.superseded or sidecar.expired * 2 >= sidecar.rows
    }
    pool = incoming_rows + sum(
        max(0, sidecars[i].rows - sidecars[i].superseded - sidecars[i].expired) for i in rewritten
    )
    small = sorted(
        (
            index
            for index, sidecar in enumerate(sidecars)
            if index not in rewritten and sidecar.rows * 2 < target_rows
        ),
        key=lambda index: (sidecars[index].rows, index),
    )
    crowded = len(small) > MOST_SMALL
    while small and (crowded or sidecars[small[0]].rows <= _MERGE_RATIO * pool):
        index = small.pop(0)
        rewritten.add(index)
        pool += sidecars[index].rows
    parts = max(1, round(pool / target_rows)) if pool else 0
    return Reuse(
        tuple(s for i, s in enumerate(sidecars) if i not in rewritten),
        tuple(s for i, s in enumerate(sidecars) if i in rewritten),
        parts,
        -(-pool // parts) if parts else 1,
    )
