"""The rules of the doctor: each has a case at its threshold, and one below."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from lakelog.cli.app import app
from lakelog.health.findings import Damage, HealthReport, Refusal, TableFacts, findings

HEALTHY = TableFacts("my orders", version=500, num_files=1000, size_bytes=8 << 30)
TOMBSTONES = {"tombstones": 20_000, "expired_tombstones": 15_000}
SKEW = {
    "partitions": 10,
    "largest_partition": "day=1",
    "largest_partition_bytes": 1 << 30,
    "median_partition_bytes": 100 << 20,
}
CASES: list[tuple[dict[str, Any], dict[str, Any], str, str, str | None]] = [
    ({"damage": (Damage("checkpoint", "x"),)}, {}, "error", "checkpoint-damaged", "repair"),
    ({"damage": (Damage("log", "x", "y"),)}, {}, "error", "log-damaged", None),
    ({"damage": (Damage("pointer", "x"),)}, {}, "warning", "pointer-damaged", "repair"),
    *(
        ({"damage": (Damage(kind, "x", "y", 1, ("p",)),)}, {}, "error", kind, "repair")
        for kind in ("data-missing", "data-length", "vector-missing", "vector-length")
    ),
    (
        {"damage": (Damage("external-unchecked", "x", "y", 1, ("p",)),)},
        {},
        "warning",
        "external-unchecked",
        None,
    ),
    ({"tail_commits": 20}, {"tail_commits": 19}, "warning", "checkpoint-missing", "checkpoint"),
    (
        {"tail_commits": 3, "tail_bytes": 64 << 20, "checkpoint_version": 9},
        {"tail_bytes": 1},
        "warning",
        "checkpoint-overdue",
        "checkpoint",
    ),
    ({"small_files": 500}, {"small_files": 99}, "warning", "small-files", "compact"),
    ({"small_files": 499}, {"small_files": 99}, "info", "small-files", "compact"),
    ({"small_files": 500, "compacts": False}, {"small_files": 0}, "info", "small-files", None),
    (
        {"deleted_rows": 10, "stored_rows": 100},
        {"deleted_rows": 0},
        "warning",
        "deleted-rows",
        "compact",
    ),
    ({"deleted_rows": 9, "stored_rows": 100}, {"deleted_rows": 0}, "info", "deleted-rows", None),
    (TOMBSTONES, {"tombstones": 9_999}, "warning", "tombstones", "checkpoint"),
    (TOMBSTONES | {"expired_tombstones": 0}, {"tombstones": 9_999}, "info", "tombstones", None),
    ({"cleanup_files": 1_000}, {"cleanup_files": 0}, "warning", "log-files", "cleanup"),
    ({"cleanup_files": 999}, {"cleanup_files": 0}, "info", "log-files", "cleanup"),
    ({"cleanup_blocked": "x"}, {}, "warning", "cleanup-blocked", "repair"),
    (
        {"vacuum_files": 9, "vacuum_bytes": 2 << 30},
        {"vacuum_files": 0},
        "warning",
        "data-files",
        "vacuum",
    ),
    (
        {"vacuum_files": 9, "vacuum_bytes": 1 << 30},
        {"vacuum_files": None},
        "info",
        "data-files",
        "vacuum",
    ),
    (SKEW, {"partitions": 9}, "info", "partition-skew", None),
    (
        {"ambiguous_rules": ("x",)},
        {"ambiguous_rules": ()},
        "warning",
        "rule-ambiguous",
        None,
    ),
    (
        {"refusals": (Refusal("x", "read", ("y",)),)},
        {"refusals": ()},
        "info",
        "client-features",
        "compat",
    ),
]


def test_a_table_without_problems_has_no_finding() -> None:
    assert findings(HEALTHY) == []


@pytest.mark.parametrize(
    ("measured", "below", "severity", "kind", "command"), CASES, ids=lambda v: str(v)[:40]
)
def test_a_finding_has_a_threshold_and_a_command(
    measured: dict[str, Any], below: dict[str, Any], severity: str, kind: str, command: str | None
) -> None:
    (found,) = findings(replace(HEALTHY, **measured))
    assert (found.severity, found.kind) == (severity, kind)
    if command is None:
        assert found.remedy is None
    else:
        assert found.remedy is not None
        program, name, table, *words = shlex.split(found.remedy)
        assert (program, name, table) == ("lakelog", command, "my orders")
        app.commands[name].make_context(name, [table, *words])  # raises if it is not a valid call
    if below:
        assert findings(replace(HEALTHY, **measured | below)) == []


def test_the_most_severe_finding_is_first() -> None:
    facts = replace(HEALTHY, small_files=100, tail_commits=50, damage=(Damage("log", "x", "y"),))
    found = findings(facts)
    assert [each.severity for each in found] == ["error", "warning", "info"]
    report = HealthReport(facts.table, facts.version, tuple(found), facts)
    assert report.problems == tuple(found[:2])
    assert report.to_polars().rows() == [
        (each.severity, each.kind, each.problem, each.remedy, each.num_files, list(each.paths))
        for each in found
    ]


def test_no_checkpoint_is_proposed_if_lakelog_cannot_write_the_table() -> None:
    assert findings(replace(HEALTHY, tail_commits=500, writes_checkpoints=False)) == []


def test_secret_in_the_location_is_redacted() -> None:
    facts = replace(HEALTHY, table="s3://key:s3cr3tpassw0rd@bucket/orders", cleanup_files=1)
    (found,) = findings(facts)
    assert "s3cr3tpassw0rd" not in str(found.remedy)
    report = HealthReport(facts.table, 1, (found,), facts)
    assert "s3cr3tpassw0rd" not in str(report)
