"""Retention without a store: promised versions and files, which no wrong clock can reduce."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.log_content import Checkpoint
from lakelog.maintenance.inventory import inventory
from lakelog.maintenance.retention_bounds import (
    DAY_MS,
    GATES,
    MUST_REFUSE,
    Commits,
    Facts,
    Horizon,
    Retention,
    contiguous_to,
    find_horizon,
    first_gap,
    judge,
    judge_sidecars,
    sidecar_bound_ms,
)
from lakelog.storage.base import FileEntry
from tests.budget import share_of

NOW_MS = 21_900 * DAY_MS + 12 * 3_600_000
MONTH = Retention(log_ms=30 * DAY_MS, checkpoint_ms=2 * DAY_MS)


def commits(ages_days: list[float], first: int = 0, **more: Any) -> Commits:
    times = [NOW_MS - int(days * DAY_MS) for days in ages_days]
    versions = np.arange(first, first + len(times), dtype=np.int64)
    return Commits(versions, np.array(times, dtype=np.int64), **more)


def classic(version: int) -> Checkpoint:
    return Checkpoint(version, "classic", 0, (f"_delta_log/{version:020d}.checkpoint.parquet",))


def test_cutoff_is_moved_back_to_midnight() -> None:
    assert MONTH.cutoff_ms(NOW_MS) == NOW_MS - 30 * DAY_MS - 12 * 3_600_000


def test_a_commit_at_midnight_is_an_acceptable_cutoff_commit() -> None:
    at = MONTH.cutoff_ms(NOW_MS)
    made = Commits(np.array([0, 1, 2]), np.array([at - 1, at, at + 1]))
    assert made.last_at_or_before(at) == 1


@given(
    ages=st.lists(st.floats(0, 100), min_size=1, max_size=20, unique=True),
    jumps=st.lists(st.tuples(st.integers(0, 19), st.floats(-200, 1000)), max_size=4),
)
@settings(max_examples=share_of(200))
def test_wrong_commit_time_never_deletes_more(
    ages: list[float], jumps: list[tuple[int, float]]
) -> None:
    """A commit appears older than the commit before it, or newer than it is."""
    true = sorted(ages, reverse=True)
    seen = list(true)
    for at, days in jumps:
        if 0 < at < len(seen) and not true[at] <= days < max(true[:at]) + 1:
            seen[at] = days
    correct = commits(true).last_at_or_before(MONTH.cutoff_ms(NOW_MS))
    affected = commits(seen).last_at_or_before(MONTH.cutoff_ms(NOW_MS))
    assert (affected if affected is not None else -1) <= (correct if correct is not None else -1)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(0, 45))
@settings(max_examples=share_of(200))
def test_cutoff_commit_equals_the_plain_model(times: list[int], bound: int) -> None:
    expected, last, highest = None, -1, -1
    waiting = False
    for version, time in enumerate(times):
        last = max(time, last + 1)
        waiting = time < highest
        highest = max(highest, time)
        if not waiting and last <= bound:
            expected = version
    made = Commits(np.arange(len(times)), np.array(times, dtype=np.int64))
    assert made.last_at_or_before(bound) == expected


def test_commit_without_a_required_in_commit_timestamp_counts_as_recent() -> None:
    old = commits([90, 80, 70, 60], timed_from=1, in_commit_ms=lambda _: None)
    assert old.last_at_or_before(MONTH.cutoff_ms(NOW_MS)) == 0


def test_file_times_are_used_before_in_commit_timestamps() -> None:
    young = commits([90, 80, 70, 60], timed_from=2, in_commit_ms=lambda _: NOW_MS)
    assert young.last_at_or_before(MONTH.cutoff_ms(NOW_MS)) == 1


def test_a_checkpoint_without_the_commit_of_its_version_covers_nothing_in_delta() -> None:
    log = commits([80, 70, 60], first=5)
    assert find_horizon(log, [classic(4)], MONTH, NOW_MS).gate == "no-cut-off-checkpoint"
    other = find_horizon(log, [classic(4)], MONTH, NOW_MS, own_commit=False)
    assert other.checkpoint == 4


def test_checkpoint_retention_counts_versions_below_the_newest_checkpoint() -> None:
    log = commits([90 - i for i in range(40)])
    retention = Retention(0, 0, versions=30)
    horizon = find_horizon(log, [classic(v) for v in (3, 9, 39)], retention, NOW_MS)
    assert (horizon.commit, horizon.checkpoint) == (9, 9)
    assert find_horizon(log, [classic(29)], retention, NOW_MS).gate == "no-cut-off-commit"


def test_contiguous_runs_end_at_the_first_gap() -> None:
    made = Commits(np.array([0, 1, 2, 4]), np.zeros(4, np.int64))
    assert [contiguous_to(made, v) for v in (-1, 0, 3, 4)] == [2, 2, 4, 4]


def test_a_version_that_would_be_lost_is_found() -> None:
    assert first_gap([(0, 5), (8, 9)], [(3, 5), (9, 9)], 3) == 8
    assert first_gap([(0, 5), (8, 9)], [(3, 9)], 3) is None
    assert first_gap([(0, 5)], [], 6) is None


# --- judging files -------------------------------------------------------------------------------


def files(*named: tuple[str, float]) -> pl.DataFrame:
    entries = [FileEntry(name, 10, NOW_MS - int(days * DAY_MS)) for name, days in named]
    return inventory(entries, DELTA)


def judged(*named: tuple[str, float], **facts: Any) -> dict[str, tuple[str, str]]:
    """Action and gate by name, for a cut-off checkpoint at 10 and a cut-off commit at 12."""
    horizon = Horizon(NOW_MS - 30 * DAY_MS, commit=12, checkpoint=10)
    given: dict[str, Any] = {"contiguous_to": 20, "checkpoints": (classic(10),), **facts}
    found = judge(files(*named), horizon, Facts(NOW_MS, MONTH, **given))
    rows = found.select("path", "action", "gate").iter_rows()
    return {path.removeprefix("_delta_log/"): (action, gate) for path, action, gate in rows}


def name(version: int, end: str = "json") -> str:
    return f"{version:020d}.{end}"


def test_files_at_or_above_the_cutoff_checkpoint_are_kept() -> None:
    found = judged(
        (name(9), 40),
        (name(10), 40),
        (name(11), 40),
        (name(12), 35),
        (name(9, "crc"), 40),
        (name(10, "crc"), 40),
        (name(10, "checkpoint.parquet"), 40),
    )
    assert found == {
        name(9): ("delete", "expired"),
        name(10): ("keep", "cut-off-checkpoint"),
        name(11): ("keep", "cut-off-checkpoint"),
        name(12): ("keep", "promised"),
        name(9, "crc"): ("delete", "expired"),
        name(10, "crc"): ("keep", "cut-off-checkpoint"),
        name(10, "checkpoint.parquet"): ("keep", "cut-off-checkpoint"),
    }


def test_unknown_files_are_kept() -> None:
    odd = [".00000000000000000001.json.crc", "_trino_meta/x", "1.json", "notes.txt"]
    odd += ["99999999999999999999.json", "_commits/00000000000000000001.json"]
    found = judged(*((n, 400) for n in odd))
    assert {gate for _, gate in found.values()} == {"unknown"}


def test_orphan_parts_are_deleted_if_covered_and_old() -> None:
    part = "checkpoint.0000000002.0000000003.parquet"
    found = judged((name(5, part), 40), (name(6, part), 0.5), (name(15, part), 40))
    assert found[name(5, part)] == ("delete", "orphan-part")
    assert found[name(6, part)][0] == "keep"
    assert found[name(15, part)] == ("keep", "promised")


def test_checkpoint_is_kept_while_one_of_its_files_is_recent() -> None:
    names = tuple(name(4, f"checkpoint.000000000{i}.0000000002.parquet") for i in (1, 2))
    whole = Checkpoint(4, "multipart", 2, tuple(f"_delta_log/{n}" for n in names))
    found = judged((names[0], 40), (names[1], 1), checkpoints=(whole, classic(10)))
    assert set(found.values()) == {("keep", "checkpoint-retention")}


def test_compactions_that_begin_below_the_cutoff_checkpoint_are_deleted() -> None:
    spans = [(3, 8), (8, 11), (9, 30), (10, 14), (11, 14)]
    found = judged(*((f"{a:020d}.{b:020d}.compacted.json", 40) for a, b in spans))
    decided = ["delete", "delete", "keep", "delete", "keep"]
    assert [action for action, _ in found.values()] == decided
    assert list(found.values())[2] == ("keep", "unlisted-commits")


def test_staged_commits_are_deleted_with_their_versions() -> None:
    uuid = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json"
    found = judged(*((f"_staged_commits/{name(v, uuid)}", 40) for v in (9, 10, 11)))
    assert [action for action, _ in found.values()] == ["delete", "delete", "keep"]


def test_sidecars_are_deleted_only_if_unreferenced_and_older_than_a_day() -> None:
    horizon = Horizon(0, commit=12, checkpoint=10)
    bound = sidecar_bound_ms(NOW_MS)
    assert bound == NOW_MS - 36 * 3_600_000
    entries = [
        FileEntry("_sidecars/named.parquet", 1, bound),
        FileEntry("_sidecars/old.parquet", 1, bound),
        FileEntry("_sidecars/young.parquet", 1, bound + 1),
    ]
    listed = judge(inventory(entries, DELTA), horizon, Facts(NOW_MS, MONTH))
    named = {"_delta_log/_sidecars/named.parquet"}
    assert judge_sidecars(listed, named, NOW_MS)["gate"].to_list() == [
        "named-by-checkpoint",
        "unnamed-sidecar",
        "young",
    ]
    unread = judge_sidecars(listed, None, NOW_MS)
    assert set(unread["gate"]) == {"manifest-unreadable"}
    assert set(unread["action"]) == {"keep"}


def test_protected_versions_are_kept_if_one_checkpoint_is_kept() -> None:
    held = judged(
        (name(3), 40),
        (name(4, "checkpoint.parquet"), 1),
        (name(5), 40),
        checkpoints=(classic(4), classic(10)),
        protected_before=8,
    )
    assert {action for action, _ in held.values()} == {"keep"}
    assert held[name(3)] == ("keep", "checkpoint-protection")


def test_closed_horizon_keeps_all_files_except_leftovers() -> None:
    closed = Horizon(0, gate="no-cut-off-checkpoint", why="")
    leftover = f".lakelog-{'a' * 32}.tmp"
    found = judge(files((name(1), 40), (leftover, 2)), closed, Facts(NOW_MS, MONTH))
    assert found["action"].to_list() == ["delete", "keep"]  # by path
    off = Horizon(0, gate="catalog", why="")
    assert set(judge(files((leftover, 2)), off, Facts(NOW_MS, MONTH))["action"]) == {"keep"}


def test_every_gate_has_a_description() -> None:
    assert all(text and not text.endswith(".") for text in GATES.values())
    assert set(GATES) >= MUST_REFUSE
