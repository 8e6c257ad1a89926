"""Delta Lake on Spark and lakelog maintain one table in turns.

Each commits, checkpoints, cleans up and vacuums. Both see the same state at all times, and at the
end every row exists.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import lakelog
from tests.spark.configured import configured
from tests.spark.data_files import data_file, ids
from tests.spark.reference import assert_same_state, delta_log

pytestmark = pytest.mark.reference

DAY_S = 86_400.0
SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    # Number of tasks of a vacuum: the default of 10,000 takes minutes.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
TABLES: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "mapped": ({"delta.columnMapping.mode": "name"}, ("classic", "multipart")),
    "vectors, tracked, v2": (
        {
            "delta.checkpointPolicy": "v2",
            "delta.enableDeletionVectors": "true",
            "delta.enableRowTracking": "true",
        },
        ("v2-json", "v2-parquet"),
    ),
}


def rows(spark: Any, path: str) -> list[Any]:
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return sorted((tuple(r) for r in spark.read.format("delta").load(path).collect()), key=repr)


def append(path: str, number: int) -> None:
    """A commit of lakelog with a real data file."""
    table = lakelog.open(path)
    fields = {
        f.name: f.metadata.get("delta.columnMapping.physicalName", f.name)
        for f in table.snapshot().schema.fields
    }
    frame = ids(number).rename({"id": fields["id"]})
    values = {fields["p"]: "ü 50%"}
    with table.transaction() as tx:
        tx.add(**data_file(path, f"of lakelog {number} 50%.parquet", frame, values))


def grow_old(path: str) -> None:
    """Set the times of all files to days ago, of the newest commit to two days ago."""
    now = time.time()
    commits = sorted(Path(path, "_delta_log").glob("[0-9]*[0-9].json"))
    for age, file in enumerate(reversed(commits)):
        os.utime(file, (now - (2 + age) * DAY_S,) * 2)
    oldest = now - (2 + len(commits)) * DAY_S
    for file in Path(path).rglob("*"):
        if file.is_file() and file not in commits:
            os.utime(file, (oldest, oldest))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TABLES)
def test_both_engines_maintain_one_table_in_turn(delta: Any, tmp_path: Path, name: str) -> None:
    properties, layouts = TABLES[name]
    path = str(tmp_path / "a table 50% ü")
    kept = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
    retained = dict.fromkeys(kept, "interval 1 day")
    listed = ", ".join(f"'{k}' = '{v}'" for k, v in (properties | retained).items())
    own = f"delta.`{path}`"
    delta.sql(
        f"create table {own} (id long, p string) using delta partitioned by (p) "
        f"tblproperties ({listed})"
    )
    expected: set[int] = set()

    def spark_inserts(number: int) -> None:
        delta.sql(f"insert into {own} select /*+ coalesce(1) */ id + {number}, 'a b' from range(9)")
        expected.update(range(number, number + 9))

    def spark_deletes(number: int) -> None:
        delta.sql(f"delete from {own} where id = {number}")
        expected.remove(number)

    def lakelog_adds(number: int) -> None:
        append(path, number)
        expected.add(number)

    def agree() -> None:
        assert_same_state(delta, path)
        assert lakelog.open(path).verify().verdict in {"proved", "unprovable"}

    with configured(delta, SETTINGS):
        for turn, layout in enumerate(layouts):
            spark_inserts(turn * 100)
            spark_deletes(turn * 100 + 3)
            lakelog_adds(turn * 100 + 50)
            assert lakelog.open(path).checkpoint(layout=layout).verified
            agree()
            spark_inserts(turn * 100 + 60)
            delta_log(delta, path).checkpoint()
            agree()
            lakelog_adds(turn * 100 + 80)
            lakelog.open(path).checkpoint(layout=layout)
            grow_old(path)
            by_lakelog = bool(turn % 2)
            _clean(delta, path, by_lakelog=by_lakelog)
            agree()
            if by_lakelog:
                _vacuum(delta, path)
            else:
                delta.sql(f"vacuum {own} retain 0 hours")
            agree()
        # Reading is slow, so it is done once at the end.
        assert sorted(row[0] for row in rows(delta, path)) == sorted(expected)


def _clean(spark: Any, path: str, *, by_lakelog: bool) -> None:
    """Clean up the log by one of the two; Spark does so with a checkpoint."""
    if not by_lakelog:
        delta_log(spark, path).checkpoint()
        return
    report: Any = lakelog.open(path).cleanup(plan=False)
    assert not report.errors
    assert report.files.height


def _vacuum(spark: Any, path: str) -> None:
    """Let lakelog delete data files, and assert that Spark would delete them too."""
    plan: Any = lakelog.open(path).vacuum(retention=dt.timedelta(0), force=True)
    dry_run = spark.sql(f"vacuum delta.`{path}` retain 0 hours dry run").collect()
    theirs = {row[0].removeprefix("file:").removeprefix(path).lstrip("/") for row in dry_run}
    ours = set(plan.files["path"])
    assert ours or any(Path(path).rglob("deletion_vector_*.bin"))  # which spare the files
    assert ours <= {*map(unquote, theirs)} | theirs, "Spark would keep what we delete"
    assert not plan.apply().errors
