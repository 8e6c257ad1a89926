"""The workloads of checkpoints and cleanup, their contenders and targets."""

from __future__ import annotations

from perf.writing.workloads import Limit, Ratio, WriteWorkload

COMMITS = (10, 100, 1_000, 10_000)
"""Lengths of history in the table of speed-ups of specification 004."""
_PROJECTED = (1.1, 10, 90, 833)
PACKAGE = "perf.checkpoints"
"""Package of their contenders."""
CHECKER = "perf.checkpoints.check"
_BOTH = ("lakelog", "deltalake")
_EVERY = ("lakelog", "lakelog_unverified", "lakelog_typed", "lakelog_typed_unverified", "deltalake")


def _history(prefix: str, *, promised: bool) -> tuple[Ratio, ...]:
    return tuple(
        Ratio(
            f"{count:,} commits: {label}, then from a checkpoint",
            "seconds",
            (f"{prefix}checkpoint_{count}",),
            (f"{prefix}{reader}_{count}",),
            projected if promised and reader == "one_by_one" else None,
        )
        for reader, label in (("one_by_one", "a file at a time"), ("replay", "replay"))
        for count, projected in zip(COMMITS, _PROJECTED, strict=True)
    )


def _histories(prefix: str) -> dict[str, str | None]:
    return {
        f"{prefix}{reader}_{count}": f"commits_{count}"
        for count in COMMITS
        for reader in ("one_by_one", "replay", "checkpoint")
    }


CHECKPOINT_WORKLOADS = (
    WriteWorkload(
        "checkpoint_1m_files",
        dict.fromkeys(_EVERY, "classic_checkpoint"),
        size=1_000_000,
        least=1_000,
        comparisons=(
            Ratio("verified", "seconds", ("lakelog",), ("deltalake",), 2.5),
            Ratio("not verified", "seconds", ("lakelog_unverified",), ("deltalake",), 4),
            Ratio("peak memory, verified", "peak_mb", ("lakelog",), ("deltalake",), 4),
            Ratio("bytes on disk", "bytes", ("lakelog",), ("deltalake",), 10),
            Ratio("typed copies too, verified", "seconds", ("lakelog_typed",), ("deltalake",)),
            Ratio(
                "typed copies too, not verified",
                "seconds",
                ("lakelog_typed_unverified",),
                ("deltalake",),
            ),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "checkpoint_after_one_commit_1m",
        dict.fromkeys(_BOTH, "classic_checkpoint"),
        size=1_000_000,
        least=1_000,
        comparisons=(
            Ratio("open and checkpoint", "seconds", ("lakelog",), ("deltalake",), 50),
            Ratio("checkpoint, table open", "open_table_s", ("lakelog",), ("deltalake",)),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "stats_typed_from_own_checkpoint_1m",
        dict.fromkeys(_BOTH, "classic_checkpoint"),
        size=1_000_000,
        least=1_000,
        comparisons=(
            Ratio("open, all statistics typed", "seconds", ("lakelog",), ("deltalake",), 6),
        ),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "checkpoint_10m_files_512mb",
        {"lakelog": "multipart_checkpoint"},
        size=10_000_000,
        least=1_000,
        comparisons=(Limit("peak memory", "peak_mb", ("lakelog",), 512, "MB"),),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "spec004_local_disk",
        _histories(""),
        size=1,
        least=1,
        comparisons=_history("", promised=False),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "spec004_5ms_a_request",
        _histories("far_"),
        size=1,
        least=1,
        comparisons=_history("far_", promised=True),
        package=PACKAGE,
        checker=CHECKER,
    ),
    WriteWorkload(
        "cleanup_plan_100k_commits",
        {"lakelog": "commits_100000"},
        size=100_000,
        least=20,
        comparisons=(Limit("open and plan", "seconds", ("lakelog",), 2, "s"),),
        package=PACKAGE,
        checker=CHECKER,
    ),
)
"""The workloads in order of measurement. deltalake stores statistics only as text, so that is
compared; lakelog_typed also stores typed copies, as Delta on Spark does.
"""
