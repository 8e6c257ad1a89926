"""Tables that the Java Delta Kernel writes and checkpoints, read and continued by lakelog."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import LakelogWarning
from tests.handmade import Handmade, add, remove
from tests.kernel.compare import assert_same, assert_same_changes, our_rows, sorted_rows
from tests.kernel.engine import Kernel
from tests.kernel.tables import HOSTILE, TABLES, TYPED, make
from tests.spark.reference import our_state

pytestmark = pytest.mark.reference

NOW_MS = 4_000_000_000_000


def struct(*fields: tuple[str, Any]) -> dict[str, Any]:
    """A schema of nullable columns."""
    return {
        "type": "struct",
        "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields],
    }


def parquet(path: Path, rows: pl.DataFrame) -> Path:
    rows.write_parquet(path)
    return path


def test_rows_of_hostile_partitions_are_equal_in_both_engines(
    kernel: Kernel, tmp_path: Path
) -> None:
    root = tmp_path / "t"
    kernel.create(root, struct(("id", "long"), ("p", "string")), ["p"])
    for number, value in enumerate(HOSTILE):
        rows = pl.DataFrame({"id": [number], "p": [value]}, schema={"id": pl.Int64, "p": pl.String})
        kernel.append(root, parquet(tmp_path / "in.parquet", rows), {"p": value})
    state = assert_same(kernel, root)
    assert len(state["files"]) == len(HOSTILE)
    assert sorted_rows(our_rows(root)) == sorted_rows(
        [{"id": number, "p": value} for number, value in enumerate(HOSTILE)]
    )
    assert_same_changes(kernel, root, 0, state["version"])
    table = lakelog.open(root, upkeep=False)
    replaced = [value for value in HOSTILE[2::3] if value is not None]
    for value in replaced:
        rows = pl.DataFrame({"id": [1000], "p": [value]})
        table.overwrite(rows, where=pl.col("p") == value)
    after = assert_same(kernel, root)
    assert len(after["files"]) == len(HOSTILE)
    assert table.snapshot().scan().collect()["id"].to_list().count(1000) == len(replaced)
    kernel.checkpoint(root)
    assert_same(kernel, root)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"delta.enableRowTracking": "true"},
        {"delta.enableInCommitTimestamps": "true"},
        {"delta.feature.domainMetadata": "supported"},
        {"delta.enableDeletionVectors": "true", "delta.checkpointPolicy": "v2"},
    ],
    ids=lambda properties: ", ".join(properties) or "plain",
)
def test_table_created_by_the_kernel_is_written_by_both_engines_in_turn(
    kernel: Kernel, tmp_path: Path, properties: dict[str, str]
) -> None:
    root = tmp_path / "t"
    columns = [(n, "string") for n in ("text",)] + [("long", "long"), ("date", "date")]
    rows = TYPED.select("text", "long", "date")
    kernel.create(root, struct(*columns), properties=properties)
    table = lakelog.open(root, upkeep=False)
    file = parquet(tmp_path / "in.parquet", rows)
    for turn in range(3):
        domain = ("example", f'{{"turn":{turn}}}') if "Metadata" in repr(properties) else None
        kernel.append(root, file, app=("kernel", turn), domain=domain)
        table.append(rows, app_id="lakelog", app_version=turn)
        state = assert_same(kernel, root)
        if turn % 2:
            table.checkpoint()
        else:
            kernel.checkpoint(root)
        assert_same(kernel, root)
    assert state["txns"].keys() == {"kernel", "lakelog"}
    assert len(state["files"]) == 6
    kernel.write_checksum(root, state["version"])
    assert table.snapshot().version_checksum() is not None
    assert table.verify().verdict == "proved"


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", TABLES)
def test_kernel_checkpoint_without_earlier_commits_gives_the_same_state(
    kernel: Kernel, tmp_path: Path, name: str
) -> None:
    root = tmp_path / "t"
    table = make(name, root)
    before = our_state(str(root))
    kernel.checkpoint(root)
    for file in (root / "_delta_log").glob("*.json"):
        if int(file.name[:20]) < before["version"]:
            file.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after = assert_same(kernel, root)
    assert after["files"].keys() == before["files"].keys()
    assert table.checkpoint(layout="classic") is not None


def test_file_added_again_stays_live_after_a_kernel_checkpoint(
    kernel: Kernel, tmp_path: Path
) -> None:
    made = Handmade(tmp_path).start(add("a"), add("b"))
    made.commit(1, remove("a", deletionTimestamp=NOW_MS))
    made.commit(2, add("a", size=2))
    made.commit(3, add("c"))
    kernel.checkpoint(tmp_path)
    for commits_deleted in (False, True):
        if commits_deleted:
            made.forget(0, 1, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LakelogWarning)
            files = made.table.snapshot().files().sort("path").collect()
        assert files["path"].to_list() == ["a", "b", "c"]
        assert files["size"].to_list() == [2, 1, 1]
    # lakelog's own checkpoint does not contain the older remove.
    table = made.table
    with table.transaction() as tx:
        tx.set_txn(appId="app", version=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        table.checkpoint()
        assert table.verify().verdict in {"proved", "unprovable"}
    made.forget(3)
    assert {path for path, _ in kernel.state(tmp_path)["files"]} == {"a", "b", "c"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lakelog.open(tmp_path).snapshot()
        assert found.files().collect()["path"].sort().to_list() == ["a", "b", "c"]
        assert found.tombstones().collect().is_empty()
