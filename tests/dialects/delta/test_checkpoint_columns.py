"""A renamed column in a checkpoint's footer is damage, not a column of nulls."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.errors import (
    CheckpointCorruptionError,
    CorruptionError,
    LakelogWarning,
)
from tests import handmade
from tests.faults.mutations import rename_column
from tests.handmade import Handmade

FEATURES = ["deletionVectors", "domainMetadata", "v2Checkpoint"]
VECTOR = {"storageType": "u", "pathOrInlineDv": "ab", "offset": 1, "sizeInBytes": 3}
ACTIONS = (
    handmade.protocol(
        3, 7, readerFeatures=["deletionVectors", "v2Checkpoint"], writerFeatures=FEATURES
    ),
    handmade.metadata(properties={"a": "b"}, partitioned=["name"]),
    {"txn": {"appId": "app", "version": 3, "lastUpdated": 1}},
    {"domainMetadata": {"domain": "d", "configuration": "x", "removed": False}},
    handmade.add("f0", size=5),
    handmade.add("f1", size=5, deletionVector={**VECTOR, "cardinality": 2}),
    handmade.remove("f2", deletionTimestamp=handmade.FIRST_MS * 2),
)
META = {"protocol", "metaData", "txn", "minReaderVersion", "minWriterVersion", "appId"}
META |= {"readerFeatures", "writerFeatures", "schemaString", "partitionColumns", "configuration"}
META |= {"domainMetadata", "provider", "createdTime"}
FILES = {"add", "remove", "path", "partitionValues", "size", "modificationTime", "numRecords"}
FILES |= {"deletionVector", "storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality"}
LAYOUTS = {
    "classic": (META | FILES, "*.checkpoint.parquet"),
    "v2-parquet": (META | {"checkpointMetadata", "sidecar"}, "*.checkpoint.*.parquet"),
    "sidecar": (FILES, "_sidecars/*.parquet"),
}
CASES = [(layout, name) for layout, (names, _) in LAYOUTS.items() for name in sorted(names)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tables")
    made = {}
    for layout in LAYOUTS:
        log = Handmade(folder / layout)
        log.commit(0, *ACTIONS)
        log.commit(1, handmade.add("f3", size=5))
        written = "classic" if layout == "classic" else "v2-parquet"
        lakelog.open(folder / layout).checkpoint(1, layout=written)
        made[layout] = folder / layout
    return made


def state(root: Path) -> tuple[object, ...]:
    snapshot = lakelog.open(root).snapshot()
    files = snapshot.files().drop("version", "timestamp", strict=False)
    return (
        files.collect().sort("path", "dvId").to_dicts(),
        snapshot.tombstones().select("path").collect().to_dicts(),
        snapshot.transactions().select("appId", "txnVersion").collect().to_dicts(),
        snapshot.domains().select("domain").collect().to_dicts(),
        snapshot.metadata,
        snapshot.protocol,
    )


@pytest.mark.sampled(4, keep=("name",))
@pytest.mark.parametrize(("layout", "name"), CASES)
def test_checkpoint_with_a_renamed_column_is_ignored_or_refused(
    tables: dict[str, Path], tmp_path: Path, layout: str, name: str
) -> None:
    root = tmp_path / "t"
    shutil.copytree(tables[layout], root)
    expected = state(root)
    (file,) = (root / "_delta_log").glob(LAYOUTS[layout][1])
    rename_column(file, name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert state(root) == expected
    assert any(w.category is LakelogWarning for w in caught)
    for version in (0, 1):
        (root / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises((CheckpointCorruptionError, CorruptionError)):
        state(root)


def test_checkpoint_without_partition_values_of_a_partitioned_table_is_refused(
    tmp_path: Path,
) -> None:
    log = Handmade(tmp_path / "t")
    log.checkpoint(1, *ACTIONS, without=["partitionValues"])
    with pytest.raises(CheckpointCorruptionError, match=r"add\.partitionValues"):
        log.table.snapshot().files().collect()


def test_columns_that_real_writers_omit_are_optional(tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t")
    log.checkpoint(
        1,
        handmade.protocol(),
        handmade.metadata(),
        handmade.add("f0", size=5),
        without=["stats", "stats_parsed", "tags", "deletionVector", "baseRowId"],
    )
    assert log.table.snapshot().files().select(pl.len()).collect().item() == 1


def without_rows(table: pa.Table) -> pa.Table:
    return table.slice(0, 0)


def without_one_row(table: pa.Table) -> pa.Table:
    return table.slice(0, len(table) - 1)


def other_columns(table: pa.Table) -> pa.Table:
    return pa.table({"id": range(len(table))})


def all_nulls(table: pa.Table) -> pa.Table:
    return pa.table([pa.nulls(len(table), field.type) for field in table.schema], table.schema)


def only_null_removes(table: pa.Table) -> pa.Table:
    return all_nulls(table).select(["remove"])


REPLACED: list[tuple[str, Callable[[pa.Table], pa.Table]]] = [
    *(("multipart", change) for change in (other_columns, all_nulls, only_null_removes)),
    *(("v2-json", change) for change in (other_columns, all_nulls, only_null_removes)),
    *(("v2-json", change) for change in (without_rows, without_one_row)),
]
"""The number of rows is recorded only for sidecars."""


@pytest.mark.parametrize(("layout", "replaced"), REPLACED)
def test_checkpoint_with_a_file_that_lost_its_actions_is_not_used(
    tmp_path: Path, layout: str, replaced: Callable[[pa.Table], pa.Table]
) -> None:
    policy = {"delta.checkpointPolicy": "v2"} if layout == "v2-json" else {}
    schema = {"id": pl.Int64, "p": pl.Int64}
    table = lakelog.create(tmp_path, schema, partition_by=["p"], configuration=policy, upkeep=False)
    table.append(pl.DataFrame({"id": range(20), "p": range(20)}))
    table.checkpoint(layout=layout)
    table.append(pl.DataFrame({"id": [20], "p": [20]}))  # the version that is read has no checksum
    parts = sorted(tmp_path.glob("_delta_log/*.checkpoint.*.parquet"))
    # The first part has the protocol, without which the log is refused even with all commits.
    holding = [*parts[1:], *sorted(tmp_path.glob("_delta_log/_sidecars/*.parquet"))][0]
    pq.write_table(replaced(pq.read_table(holding)), holding)
    with pytest.warns(LakelogWarning, match="was ignored"):
        rows = lakelog.open(tmp_path).snapshot().scan().collect()
    assert sorted(rows["id"]) == list(range(21))
    for commit in tmp_path.glob(f"_delta_log/{'[0-9]' * 20}.json"):
        if int(commit.stem) < 2:
            commit.unlink()
    with pytest.raises(CheckpointCorruptionError):
        lakelog.open(tmp_path).snapshot().files().collect()
