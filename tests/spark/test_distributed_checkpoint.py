"""Checkpoints that executors write in parts equal those of lakelog alone, or are not published."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
import lakelog.spark
from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.checkpoint.write import write_checkpoint
from lakelog.dialects.digest import Digest
from lakelog.errors import CheckpointValidationError, CheckpointWriteError, InvalidInputError
from lakelog.log.state import State
from lakelog.spark import checkpoint_parts as spark_parts
from lakelog.spark.strategy import BROADCAST, HASH, POLARS
from tests.checkpoint import tables
from tests.spark.configured import configured
from tests.spark.reference import delta_log, our_state, reference_state

CASES = [
    pytest.param(tables.MULTIPART, "multipart", BROADCAST, id="multipart"),
    pytest.param(tables.V2_JSON, "v2-json", HASH, id="v2-json"),
    pytest.param(tables.V2_PARQUET, "auto", BROADCAST, id="v2"),
    pytest.param(tables.FLATTENED, "auto", HASH, id="flattened"),
]


def log_of(root: Path) -> Path:
    (found,) = (
        root / name for name in ("_delta_log", "_transaction_log") if (root / name).is_dir()
    )
    return found


def staged(root: Path) -> list[Path]:
    return sorted(log_of(root).rglob(".lakelog-*"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("kind", "layout", "strategy"), CASES)
def test_checkpoint_by_executors_equals_the_local_one(
    kind: tables.Kind, layout: str, strategy: str, either: Any, tmp_path: Path
) -> None:
    root = tables.make(kind, tmp_path / "t")
    table = lakelog.Table(tables.log_at(root, kind.dialect))
    report = lakelog.spark.checkpoint(either, table, layout=layout, parts=3, strategy=strategy)
    assert report.verified
    assert report.version == tables.LATEST
    assert report.pointer_moved == (kind is not tables.FLATTENED)
    assert report.notes[0].startswith(f"version {tables.LATEST} by {strategy}")
    assert set(report.paths) == {p for p in report.paths if (root / p).is_file()}
    assert report.size_bytes == sum((root / p).stat().st_size for p in report.paths)
    assert staged(root) == []

    verified = table.verify(tables.LATEST)
    assert verified.is_proved
    assert verified.layout == report.layout
    before = tables.state_of(table.log, tables.LATEST - 1)
    shutil.copytree(root, tmp_path / "alone")
    for path in report.paths:
        (tmp_path / "alone" / path).unlink()
    alone = tables.log_at(tmp_path / "alone", kind.dialect)
    most = -(-report.num_actions // 3)
    few = CheckpointOptions(part_actions=most, max_file_bytes=256 * most)
    own = write_checkpoint(alone, tables.LATEST, layout=report.layout, options=few)
    assert own.digest == report.digest
    assert (own.num_adds, own.num_removes) == (report.num_adds, report.num_removes)
    assert tables.state_of(alone) == tables.state_of(table.log)
    assert tables.state_of(table.log, tables.LATEST - 1) == before
    assert schemas(tmp_path / "alone", own.paths) == schemas(root, report.paths)
    if report.layout in {"multipart", "flattened"}:
        assert len(report.paths) == 3 + (report.layout == "flattened")
        theirs, ours = (
            rows_by_name(where, paths)
            for where, paths in ((tmp_path / "alone", own.paths), (root, report.paths))
        )
        assert sorted(chain(*theirs.values())) == sorted(chain(*ours.values()))
        if report.layout == "multipart":
            assert theirs == ours
            for path in report.paths:
                kinds = ["add", "remove"]
                theirs_in_order = pq.read_table(tmp_path / "alone" / path, columns=kinds)
                assert pq.read_table(root / path, columns=kinds).equals(theirs_in_order)

    again = lakelog.spark.checkpoint(either, table, layout=layout, parts=3)
    assert again.reused
    assert again.verified
    assert again.num_adds == report.num_adds


def parquet(root: Path, paths: Iterable[str]) -> Iterator[pq.ParquetFile]:
    for path in sorted(paths):
        if path.endswith(".parquet"):
            yield pq.ParquetFile(root / path)


def schemas(root: Path, paths: Iterable[str]) -> set[str]:
    return {str(file.schema_arrow.remove_metadata()) for file in parquet(root, paths)}


def rows_by_name(root: Path, paths: Iterable[str]) -> dict[str, list[str]]:
    """The rows of each file, keyed by the number in its name."""
    return {
        path: sorted(map(str, pq.read_table(root / path).to_pylist()))
        for path in paths
        if path.endswith(".parquet")
    }


@pytest.mark.parametrize("strategy", [BROADCAST, HASH, POLARS])
def test_typed_statistics_of_times_are_kept_exactly(
    spark: Any, tmp_path: Path, strategy: str
) -> None:
    root = tmp_path / "t"
    only_typed = {"delta.checkpoint.writeStatsAsJson": "false"}
    columns = {"at": pl.Datetime("us", "UTC"), "local": pl.Datetime("us"), "day": pl.Date}
    table = lakelog.create(root, columns, configuration=only_typed, upkeep=False)
    times = ["1582-10-10T00:00:00.123456", "2026-12-31T23:59:59.123456"]
    bounds = {"at": f"{times[0]}Z", "local": times[0], "day": times[0][:10]}
    upper = {"at": f"{times[1]}Z", "local": times[1], "day": times[1][:10]}
    stats = {"numRecords": 2, "minValues": bounds, "maxValues": upper}
    with table.transaction() as tx:
        tx.add(path="a", size=1, stats=stats)
    table.checkpoint()
    with table.transaction() as tx:
        tx.add(path="b", size=1)
    # With this setting, Spark writes dates and times in another calendar.
    with configured(spark, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}):
        report = lakelog.spark.checkpoint(
            spark, table, layout="multipart", parts=2, strategy=strategy
        )
        rows = lakelog.spark.replay(
            spark, root, 1, strategy=strategy, columns=["path", "stats"]
        ).where("path = 'a'")
        (text,) = [row["stats"] for row in rows.collect()]
    assert table.verify().is_proved
    added = pl.concat(
        pl.DataFrame(pl.from_arrow(pq.read_table(root / path, columns=["add"])))
        for path in report.paths
    )
    kept = added["add"].struct.unnest().filter(path="a")["stats_parsed"].struct.unnest()
    for name, wanted in (("minValues", times[0]), ("maxValues", times[1])):
        found = kept[name].struct.unnest()
        assert found["at"].dt.strftime("%FT%T.%6f").item() == wanted
        assert found["local"].dt.strftime("%FT%T.%6f").item() == wanted
        assert str(found["day"].item()) == wanted[:10]
    # As text, times have milliseconds, which contain the exact ones.
    assert json.loads(text)["minValues"]["local"] == "1582-10-10T00:00:00.123"
    assert json.loads(text)["maxValues"]["local"] == "2026-12-31T23:59:59.124"


@pytest.mark.reference
def test_delta_lake_reads_the_same_state_from_distributed_checkpoints(
    delta: Any, tmp_path: Path
) -> None:
    for kind in (tables.MULTIPART, tables.V2_PARQUET, tables.V2_JSON):
        root = tables.make(kind, tmp_path / kind.layout)
        table = lakelog.Table(tables.log_at(root, kind.dialect))
        expected = tables.state_of(table.log)
        lakelog.spark.checkpoint(delta, table, layout=kind.layout, parts=3, strategy=POLARS)
        for version in range(tables.LATEST + 1):  # it can only be read from the checkpoint
            (root / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=version < 3)
        last = {"commitInfo": {"timestamp": tables.NOW_MS, "operation": "TEST"}}
        (root / "_delta_log" / f"{tables.LATEST + 1:020d}.json").write_text(json.dumps(last))
        assert_same_files(delta, root)
        assert delta_log(delta, str(root)).unsafeVolatileSnapshot().version() == tables.LATEST + 1
        assert tables.state_of(table.log) == expected


def assert_same_files(spark: Any, root: Path) -> None:
    """Assert that both see the same state, except for tombstones, which expired long ago."""
    ours, theirs = our_state(str(root)), reference_state(spark, str(root))
    for part in ("version", "protocol", "metadata", "txns", "files"):
        assert ours[part] == theirs[part], part


@pytest.mark.reference
def test_delta_lake_and_executors_checkpoint_in_turn(delta: Any, tmp_path: Path) -> None:
    """Each uses the other's checkpoint in the middle of a table's life."""
    root = tables.make(tables.MULTIPART, tmp_path / "t")
    table = lakelog.Table(tables.log_at(root, tables.MULTIPART.dialect))
    delta_log(delta, str(root)).checkpoint()
    theirs = table.snapshot().provenance.checkpoint
    assert theirs is not None
    assert theirs.version == tables.LATEST
    with table.transaction() as tx:
        tx.add(path="later.parquet", partitionValues={"p": "9"}, size=1, modificationTime=1)
    report = lakelog.spark.checkpoint(delta, table, parts=2, strategy=BROADCAST)
    assert report.verified
    assert table.verify(report.version).is_proved
    with table.transaction() as tx:
        tx.remove(path="later.parquet", partitionValues={"p": "9"})
    assert_same_files(delta, root)


class LosesRows(spark_parts.TaskWriter):
    """Writes half of the rows of the replay."""

    def report(self, *given: Any) -> spark_parts.Written:
        written = super().report(*given)
        held = Digest.of_text(written.expected)
        return replace(written, expected=(held + held).to_text())


class FailsAtTheEnd(spark_parts.TaskWriter):
    """Writes its files, and fails before it reports them."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in super().__call__(batches):
            raise OSError("the machine has failed")
        yield from ()


@pytest.mark.parametrize(
    ("writer", "error"),
    [(LosesRows, CheckpointValidationError), (FailsAtTheEnd, CheckpointWriteError)],
)
def test_failed_task_publishes_nothing(
    writer: type, error: type[Exception], either: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    monkeypatch.setattr(sys.modules["lakelog.spark.checkpoint"], "TaskWriter", writer)
    root = tables.make(tables.V2_JSON, tmp_path / "t")
    table = lakelog.Table(tables.log_at(root, tables.V2_JSON.dialect))
    before = names_seen(root)
    try:
        with pytest.raises(error, match=r"differs from replay|the machine has failed"):
            lakelog.spark.checkpoint(either, table, parts=2, strategy=POLARS)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert names_seen(root) == before
    if error is CheckpointValidationError:
        assert staged(root) == []
        sidecars = set((root / "_delta_log" / "_sidecars").glob("*"))
        named = {p for p in table.snapshot().provenance.checkpoint_files if "_sidecars" in p}
        assert {f"_delta_log/_sidecars/{p.name}" for p in sidecars} == named


@pytest.mark.parametrize(
    ("strategy", "has_base"),
    [pytest.param(BROADCAST, True, id="checkpoint"), pytest.param(HASH, False, id="commits")],
)
def test_checkpoint_is_planned_again_if_cleanup_removes_its_files(
    strategy: str, has_base: bool, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tables.make(tables.MULTIPART, tmp_path / "t")
    if not has_base:
        for path in (root / "_delta_log").glob("*checkpoint*"):
            path.unlink()
    expected = tables.state_of(tables.log_at(root, tables.MULTIPART.dialect))
    cleaned: list[Path] = []

    def writer(*given: Any) -> spark_parts.TaskWriter:
        """Another process checkpoints the version and removes all files of the plan."""
        if not cleaned:
            other = tables.log_at(root, tables.MULTIPART.dialect)
            write_checkpoint(other, tables.LATEST, layout="classic")
            cleaned.extend((root / "_delta_log").glob("*.json"))
            cleaned.extend((root / "_delta_log").glob(f"{tables.EARLIER:020d}.checkpoint*"))
            for path in cleaned:
                path.unlink()
        return spark_parts.TaskWriter(*given)

    monkeypatch.setattr(sys.modules["lakelog.spark.checkpoint"], "TaskWriter", writer)
    table = lakelog.Table(tables.log_at(root, tables.MULTIPART.dialect))
    report = lakelog.spark.checkpoint(spark, table, layout="multipart", strategy=strategy)
    assert len(cleaned) > 1
    assert (report.version, report.layout) == (tables.LATEST, "multipart")
    assert not report.verified, "only the other checkpoint is left to compare with"
    assert any("copied from the classic checkpoint" in note for note in report.notes)
    assert staged(root) == []
    (root / "_delta_log" / f"{tables.LATEST:020d}.checkpoint.parquet").unlink()
    assert tables.state_of(tables.log_at(root, tables.MULTIPART.dialect)) == expected


def names_seen(root: Path) -> dict[str, bytes]:
    """The files that a reader of the log finds, except sidecars."""
    return {
        p.name: p.read_bytes() for p in log_of(root).iterdir() if p.is_file() and p.name[0] != "."
    }


@pytest.mark.parametrize(
    ("layout", "format", "feature"),
    [
        ("multipart", "delta", {}),
        ("v2-json", "delta", {"delta.checkpointPolicy": "v2"}),
        ("flattened", "indextables", {}),
    ],
)
def test_table_without_files_has_a_checkpoint(
    layout: str, format: Any, feature: dict[str, str], spark: Any, tmp_path: Path
) -> None:
    table = lakelog.create(
        tmp_path / "t", {"id": pl.Int64}, format=format, configuration=feature, upkeep=False
    )
    report = lakelog.spark.checkpoint(spark, table, layout=layout)
    assert (report.verified, report.num_adds) == (True, 0)
    assert table.verify(0).is_proved
    assert staged(tmp_path / "t") == []


def test_single_file_checkpoint_by_executors_is_refused(spark: Any, tmp_path: Path) -> None:
    root = tables.make(tables.MULTIPART, tmp_path / "t")
    for layout, message in (
        ("classic", "written by one process"),
        ("v2-json", "lacks the feature v2Checkpoint"),
        ("magic", "unknown checkpoint layout"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            lakelog.spark.checkpoint(spark, root, layout=layout)
    with pytest.raises(InvalidInputError, match="more parts"):
        lakelog.spark.checkpoint(spark, root, layout="multipart", parts=1)


def by_day(root: Path, properties: dict[str, str]) -> lakelog.Table:
    """A table of 400 files of twenty days, committed in random order."""
    table = lakelog.create(
        root,
        {"day": pl.Int32, "x": pl.Int64},
        partition_by=["day"],
        configuration={"spark.indextables.checkpoint.enabled": "false", **properties},
    )
    rows = {"size": 1, "modificationTime": 1}
    with table.transaction() as tx:
        for number in range(400):
            day = str(number * 7 % 20)
            tx.add(path=f"{number}.parquet", partitionValues={"day": day}, **rows)
    return table


def test_sidecars_are_ranges_of_partition_values(either: Any, tmp_path: Path) -> None:
    table = by_day(tmp_path / "t", {"delta.checkpointPolicy": "v2"})
    report = lakelog.spark.checkpoint(either, table, parts=5)
    assert report.parts >= 5
    snapshot = lakelog.open(tmp_path / "t").snapshot()
    for day in range(20):
        where = pl.col("day") == day
        assert snapshot.files(where=where).collect().height == 20
        plan = snapshot.plan(where)
        assert plan.reason is None
        assert plan.checkpoint_files_read <= 3


def test_executors_detect_duplicate_files(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["lakelog.spark.replay"], "_ROWS_OF_DRIVER", 0)
    root = tmp_path / "t"
    table = by_day(root, {})
    table.checkpoint(layout="multipart")
    with table.transaction() as tx:
        tx.add(path="new", partitionValues={"day": "1"}, size=1, modificationTime=1)
    never = mock.PropertyMock(side_effect=AssertionError("the driver reads all paths"))
    with mock.patch.object(State, "base_is_unique", never):
        report = lakelog.spark.checkpoint(spark, root, parts=3, strategy=BROADCAST)
    assert report.verified
    first, second = sorted(log_of(root).glob(f"{1:020d}.checkpoint.*.parquet"))
    shutil.copyfile(first, second)
    for path in log_of(root).glob(f"{2:020d}.checkpoint*"):
        path.unlink()
    (log_of(root) / f"{1:020d}.json").unlink()
    with pytest.raises(lakelog.CorruptionError):
        lakelog.spark.checkpoint(spark, root, parts=3, strategy=BROADCAST)
