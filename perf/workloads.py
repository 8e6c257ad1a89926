"""The workloads, named by shape, and what issue 2 promises for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to measure on one table.

    Attributes:
        name: The shape, in words.
        table: The table it reads (a key of `perf.generate.TABLES`).
        faster: How many times faster than deltalake it has to be; None where nothing is promised.
        raw: How many times the time of the fastest raw decode it may take.
        memory: The share of deltalake's peak memory that it may use.
        peers: The contenders beside lakelog.
        rows: The fact of the table that counts the rows it handles.
    """

    name: str
    table: str
    faster: float | None = None
    raw: float | None = None
    memory: float | None = None
    peers: tuple[str, ...] = ("deltalake", "raw_polars", "raw_pyarrow")
    rows: str = "files"

    @property
    def contenders(self) -> tuple[str, ...]:
        """Everyone who is measured, lakelog first."""
        return ("lakelog", *self.peers)


WORKLOADS = (
    Workload(
        "state_1m_files_classic_plus_100_commits",
        "classic_checkpoint",
        faster=6,
        raw=1.3,
        memory=0.6,
    ),
    Workload("stats_typed_1m", "classic_checkpoint", faster=2),
    Workload("protocol_metadata_1m", "classic_checkpoint", faster=100),
    Workload(
        "update_by_one_commit_1m",
        "classic_checkpoint",
        faster=40,
        peers=("deltalake", "raw_polars"),
    ),
    Workload("update_then_state_1m", "classic_checkpoint", peers=("deltalake",)),
    Workload("state_1m_adds_200_commits", "large_commits", faster=3.5, raw=1.3),
    Workload("state_10k_small_commits", "small_commits", faster=12),
    Workload("history_10k_commits", "small_commits", faster=8, rows="commits"),
    Workload(
        "state_10m_multipart_projected",
        "multipart_checkpoint",
        peers=("raw_polars", "raw_pyarrow"),
    ),
)
"""In the order in which they are measured and shown. Those without a promise inform."""


def find(name: str) -> Workload:
    """The workload called `name`.

    Raises:
        KeyError: There is none.
    """
    return {w.name: w for w in WORKLOADS}[name]
