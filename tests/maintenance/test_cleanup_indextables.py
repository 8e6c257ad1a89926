"""Cleanup of IndexTables logs, which other readers must still be able to read."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from lakelog import LakelogError, UnsafeRetentionError
from tests.maintenance.logs import DAY_MS, NOW_MS, MadeLog, clean, contents, fresh, gates, plan


def indextables(tmp_path: Path, **configuration: str) -> MadeLog:
    properties = {f"spark.indextables.{k.replace('_', '.')}": v for k, v in configuration.items()}
    made = MadeLog(tmp_path / "table", form="indextables", configuration=properties)
    made.commits(60 - i / 2 for i in range(80))
    for version in (10, 20, 40, 70):
        made.checkpoint(version, 60 - version / 2)
    return made


def test_an_indextables_log_is_cleaned_up_below_its_checkpoint(tmp_path: Path) -> None:
    made = indextables(tmp_path)
    found = plan(made.table())
    # 30 days are version 60 (not strictly older) less one; 30 versions below 70 are version 40.
    assert (found.oldest_promised, found.checkpoint_version) == (40, 40)
    before = contents(made.table(), range(40, 80))
    assert found.apply().verdict == "proved"
    assert contents(fresh(made), range(40, 80)) == before
    assert fresh(made).versions() == [(40, 79)]


@pytest.mark.parametrize("layout", ["json", "json-multipart", "flattened"])
def test_checkpoints_of_every_layout_cover_an_indextables_log(tmp_path: Path, layout: str) -> None:
    made = MadeLog(
        tmp_path / "table",
        form="indextables",
        configuration={
            "spark.indextables.checkpoint.retention": "1",
            "spark.indextables.checkpoint.actionsPerPart": "10",
        },
        writer_features=("columnarCommits",) if layout == "flattened" else (),
    )
    made.commits(60 - i / 2 for i in range(80))
    for version in (10, 40, 70):
        made.table().checkpoint(version, layout=layout)
    for path in made.folder.rglob("*checkpoint*"):
        if path.is_file():
            made.age(path, 35)
    before = contents(made.table(), range(40, 80))
    report = clean(made.table())
    assert report.verdict == "proved"
    assert set(report.files.filter(pl.col("kind") == "commit")["version"]) == {*range(40)}
    assert set(report.files.filter(pl.col("kind") == "checkpoint")["version"]) == {10}
    assert not list(made.folder.rglob(f"{10:020d}.checkpoint*"))
    assert contents(fresh(made), range(40, 80)) == before


def flattened(tmp_path: Path, *features: str) -> MadeLog:
    """Eighty commits, with flattened checkpoints only."""
    few = {"spark.indextables.checkpoint.retention": "1"}
    made = MadeLog(
        tmp_path / "table", form="indextables", configuration=few, writer_features=features
    )
    made.commits(60 - i / 2 for i in range(80))
    for version in (10, 40, 70):
        made.table().checkpoint(version, layout="flattened")
    for path in (made.folder / "_checkpoints").iterdir():
        made.age(path, 35)
    return made


def test_checkpoint_that_other_readers_cannot_read_covers_nothing(tmp_path: Path) -> None:
    found = plan(flattened(tmp_path).table())
    assert (found.gate, found.files.height) == ("foreign-readers", 0)
    assert "version 40" in found.why
    assert "columnarCommits" in found.why
    assert "layout json" in str(found)
    assert found.apply().gate == "foreign-readers"


def test_flattened_checkpoint_covers_if_only_lakelog_reads_the_table(tmp_path: Path) -> None:
    made = flattened(tmp_path, "columnarCommits")
    found = plan(made.table())
    assert (found.gate, found.checkpoint_version, found.why) == (None, 40, "")
    before = contents(made.table(), range(59, 80))
    assert found.apply().verdict == "proved"
    assert contents(fresh(made), range(59, 80)) == before


def test_json_checkpoint_below_a_flattened_one_covers_older_versions(tmp_path: Path) -> None:
    made = flattened(tmp_path)
    made.checkpoint(20, 35)
    found = plan(made.table(), keep=True)
    assert (found.gate, found.checkpoint_version) == (None, 20)
    assert "version 40" in found.why
    assert "more is kept" in str(found)
    found_gates = gates(found.files)
    assert found_gates[f"{19:020d}.json"] == "expired"
    assert (
        found_gates[f"{20:020d}.json"] == "pointed"
        or found_gates[f"{20:020d}.json"] == "cut-off-checkpoint"
    )
    assert {found_gates[f"{v:020d}.json"] for v in range(21, 40)} == {"foreign-readers"}
    assert (
        found_gates[f"{40:020d}.json"] == "promised"
        or found_gates[f"{40:020d}.json"] == "cut-off-checkpoint"
    )
    because = found.files.filter(pl.col("gate") == "foreign-readers")["why"]
    assert all("version 40" in why for why in because)
    before = contents(made.table(), range(40, 80))
    found.apply()
    assert contents(fresh(made), range(40, 80)) == before
    assert json.loads(made.file("_last_checkpoint").read_bytes())["version"] == 20
    assert made.names() >= {f"{version:020d}.json" for version in range(21, 80)}


@pytest.mark.parametrize(
    ("pointer", "gate", "covering"),
    [
        (None, "foreign-readers", None),
        (b"torn", "foreign-readers", None),
        (b'{"version": 30}', "foreign-readers", None),
        (b'{"version": 20}', None, 20),
        (b'{"version": 70}', None, 40),
    ],
)
def test_covering_checkpoint_depends_on_the_pointer(
    tmp_path: Path, pointer: bytes | None, gate: str | None, covering: int | None
) -> None:
    made = indextables(tmp_path)
    made.file("_last_checkpoint").unlink()
    if pointer is not None:
        made.put("_last_checkpoint", pointer, 1)
    found = plan(made.table())
    assert (found.gate, found.checkpoint_version) == (gate, covering)
    assert gate is None or not found.files.height


def test_indextables_retention_excludes_the_exact_age(tmp_path: Path) -> None:
    made = indextables(tmp_path, checkpoint_retention="5")
    assert plan(made.table()).oldest_promised == 59


def test_indextables_keeps_a_checkpoint_for_two_hours(tmp_path: Path) -> None:
    made = indextables(tmp_path)
    made.checkpoint(20, 0.05, pointer=False)
    made.checkpoint(10, 0.1, pointer=False)
    found = gates(plan(made.table(), keep=True).files)
    assert found[f"{20:020d}.checkpoint.json"] == "checkpoint-retention"
    assert found[f"{10:020d}.checkpoint.json"] == "expired"


def test_indextables_cleanup_can_be_switched_off(tmp_path: Path) -> None:
    assert plan(indextables(tmp_path, cleanup_enabled="false").table()).gate == "cleanup-disabled"


@pytest.mark.parametrize("cooling", [True, False])
def test_active_skips_outside_checkpoints_prevent_cleanup(tmp_path: Path, cooling: bool) -> None:
    few = {"spark.indextables.checkpoint.retention": "1"}
    made = MadeLog(tmp_path / "table", form="indextables", configuration=few)
    made.commits([90, 89])
    skip = {
        "path": "g0.parquet",
        "skipTimestamp": 1,
        "reason": "damaged",
        "operation": "merge",
        "retryAfter": NOW_MS + (DAY_MS if cooling else -DAY_MS),
        "skipCount": 2,
    }
    made.commit(88, {"mergeskip": skip})
    made.states[2] = made.states[1]
    made.commits(80 - i for i in range(60))
    made.checkpoint(20, 60)
    made.checkpoint(50, 30)
    before = made.names()
    assert made.table().snapshot().skips().collect().height == 1
    if cooling:
        with pytest.raises(UnsafeRetentionError, match="would be lost"):
            made.table().cleanup(plan=False)
        assert made.names() == before
    else:
        assert clean(made.table()).files.height == 20


def test_log_of_avro_states_is_not_cleaned_up(corpus: Path) -> None:
    import lakelog

    logs = [p for p in sorted((corpus / "indextables").iterdir()) if p.is_dir()]
    seen = 0
    for where in logs:
        try:
            found = plan(lakelog.open(where), force=True, retention=0)
        except LakelogError:
            continue
        seen += found.gate == "avro-state"
        assert found.files.height == 0
    assert seen
