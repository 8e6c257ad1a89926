"""The workloads, named by shape, and the targets of issue 2."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """One measurement on one table.

    Attributes:
        name: Name of the shape.
        table: The table it reads (a key of `perf.generate.TABLES`).
        faster: Minimum speed-up over deltalake; None without a target.
        raw: Maximum ratio of its time to that of the fastest raw decode.
        memory: Maximum ratio of its peak memory to that of deltalake.
        peers: The contenders in addition to lakelog.
        rows: The fact of the table that counts the processed rows.
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
        """All contenders, lakelog first."""
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
    Workload("state_1m_files_disk_cache", "classic_checkpoint", faster=30, peers=("deltalake",)),
    Workload("files_of_one_date_1m_classic", "classic_checkpoint", peers=("deltalake",)),
    Workload("files_of_one_date_1m_disk_cache", "classic_checkpoint", peers=("deltalake",)),
    Workload("files_of_one_date_1m", "own_checkpoint_1m_files", faster=80, peers=("deltalake",)),
    Workload("files_of_one_date_1m_30_ms_a_request", "own_checkpoint_1m_files", peers=()),
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
"""The workloads in order of measurement. Those without a target are informative."""


def find(name: str) -> Workload:
    """The workload called `name`.

    Raises:
        KeyError: No workload has this name.
    """
    return {w.name: w for w in WORKLOADS}[name]
