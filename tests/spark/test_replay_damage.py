"""An incomplete checkpoint is refused on Spark too, with any session settings about files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lakelog
from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.checkpoint.write import write_checkpoint
from lakelog.errors import CheckpointCorruptionError, LakelogWarning
from lakelog.spark.replay import plan_replay
from lakelog.spark.strategy import BROADCAST, HASH, POLARS, STRATEGIES
from tests import handmade
from tests.checkpoint import tables
from tests.handmade import add
from tests.log.test_repeated_files import checkpoint, commit, remove
from tests.spark.configured import configured
from tests.spark.replayed import comparable, local_state, out_of_spark

COLUMNS = ("actionType", "path", "size")


@pytest.fixture(scope="module", params=["spark", "connect"])
def lenient(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A session of either kind, configured to ignore missing or damaged files."""
    spark = request.getfixturevalue(request.param)
    names = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    with configured(spark, dict.fromkeys(names, "true")):
        yield spark


def without_commits(root: Path) -> Path:
    """The table without the commits below its checkpoint: no fallback is possible."""
    for version in range(tables.EARLIER + 1):
        (root / "_delta_log" / f"{version:020d}.json").unlink()
    return root


@pytest.fixture
def sidecars(tmp_path: Path) -> list[Path]:
    """The sidecars of a table that depends on them."""
    root = without_commits(tables.make(tables.V2_PARQUET, tmp_path / "t"))
    found = sorted((root / "_delta_log" / "_sidecars").glob("*.parquet"))
    assert found
    return found


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """The parts of a multi-part checkpoint that a table depends on."""
    root = tables.make(tables.MULTIPART, tmp_path / "t")
    log = tables.log_at(root, tables.MULTIPART.dialect)
    few = CheckpointOptions(part_actions=5)
    write_checkpoint(log, tables.EARLIER, layout="multipart", options=few)
    (root / "_delta_log" / f"{tables.EARLIER:020d}.checkpoint.parquet").unlink()
    without_commits(root)
    found = sorted((root / "_delta_log").glob("*.checkpoint.*.parquet"))
    assert len(found) == 4
    return found


def table_of(file: Path) -> Path:
    return next(p.parent for p in file.parents if p.name == "_delta_log")


@pytest.mark.parametrize("damage", ["missing", "truncated", "empty", "another"])
def test_incomplete_sidecar_is_refused_before_spark_reads_it(
    damage: str, lenient: Any, sidecars: list[Path]
) -> None:
    victim = sidecars[-1]
    content = victim.read_bytes()
    match damage:
        case "missing":
            victim.unlink()
        case "truncated":
            victim.write_bytes(content[: len(content) // 2])
        case "empty":
            victim.write_bytes(b"")
        case _:
            other = tables.make(tables.CLASSIC, table_of(victim).parent / "other") / "_delta_log"
            shutil.copy(next(other.glob("*.checkpoint.parquet")), victim)
    for strategy in (BROADCAST, HASH, "auto"):
        with pytest.raises(CheckpointCorruptionError):
            plan_replay(lenient, table_of(victim), strategy=strategy)


def test_part_copied_over_another_is_refused(lenient: Any, parts: list[Path]) -> None:
    shutil.copy(parts[0], parts[1])  # the third has the rows that are no file actions
    for recorded in (parts[0].parent / "_last_checkpoint", *parts[0].parent.glob("*.crc")):
        recorded.unlink()  # the number of files shows it earlier
    with pytest.raises(CheckpointCorruptionError, match="same file twice"):
        plan_replay(lenient, table_of(parts[0]), strategy=BROADCAST, verify=False)
    with pytest.raises(Exception, match="same file twice"):  # by the plan, if it has a tombstone
        plan_replay(lenient, table_of(parts[0]), strategy=HASH, columns=COLUMNS).frame.collect()


def test_damage_after_planning_fails_the_query(lenient: Any, parts: list[Path]) -> None:
    frame = plan_replay(lenient, table_of(parts[0]), strategy=BROADCAST, columns=COLUMNS).frame
    content = parts[1].read_bytes()
    damaged = bytearray(content)
    for offset in range(100, 160):  # in the first pages
        damaged[offset] ^= 0xFF
    parts[1].write_bytes(bytes(damaged))
    with pytest.raises(Exception, match=r"FAILED_READ_FILE|CANNOT_READ"):
        frame.collect()
    parts[1].unlink()
    with pytest.raises(Exception, match=r"FAILED_READ_FILE|does not exist|NOT_EXIST"):
        frame.collect()


def test_broken_checkpoint_is_ignored_if_the_commits_exist(lenient: Any, tmp_path: Path) -> None:
    root = tables.make(tables.CLASSIC, tmp_path / "t")
    broken = root / "_delta_log" / f"{tables.EARLIER:020d}.checkpoint.parquet"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.warns(lakelog.LakelogWarning, match="was ignored"):
        planned = plan_replay(lenient, root, strategy=HASH, columns=COLUMNS)
    assert "was ignored" in planned.warnings[-1]
    (root / "_delta_log" / "_last_checkpoint").unlink()
    broken.unlink()
    expected = local_state(lakelog.open(root, upkeep=False).snapshot(), COLUMNS)
    assert comparable(out_of_spark(planned.frame)) == comparable(expected)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_file_added_and_removed_by_a_checkpoint_is_reconciled_before_tasks_run(
    spark: Any, strategy: str, tmp_path: Path
) -> None:
    checkpoint(tmp_path, 3, add("a"), add("b"), add("c"), remove("a"))
    commit(tmp_path, 4, remove("c"))
    with pytest.warns(LakelogWarning, match="more than once"):
        planned = plan_replay(spark, tmp_path, strategy=strategy, columns=COLUMNS)
    files = planned.frame.where("actionType = 'add'").toArrow()
    assert sorted(files["path"].to_pylist()) == ["a", "b"]


@pytest.mark.parametrize("removed", ["_last_checkpoint", "00000000000000000001.crc"])
def test_checkpoint_is_compared_with_the_recorded_number_of_files(
    spark: Any, tmp_path: Path, removed: str
) -> None:
    made = handmade.Handmade(tmp_path / "t")
    made.start(handmade.add("a"))
    made.commit(1, handmade.add("b"))
    made.table.checkpoint(layout="classic")
    made.checkpoint(1, handmade.protocol(), handmade.metadata(), handmade.add("a"))
    (made.log / removed).unlink()
    for strategy in (POLARS, HASH, "auto"):
        with pytest.warns(LakelogWarning, match="in the checkpoint differs"):
            found = plan_replay(spark, tmp_path / "t", strategy=strategy, columns=COLUMNS)
        rows = found.frame.where("path is not null").select("path").collect()
        assert sorted(row.path for row in rows) == ["a", "b"]
