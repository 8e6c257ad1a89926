"""The live files as a lazy frame: its reads, its derived columns, and its rows."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.dialects.delta import DIALECT as DELTA
from lakelog.dialects.delta.checkpoint import DeltaCheckpointReader
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.log_content import STRUCT_STATISTICS
from lakelog.errors import CheckpointCorruptionError, InvalidInputError, UnsupportedFeatureError
from lakelog.log import files as module
from lakelog.log.files import file_columns
from lakelog.model import actions
from lakelog.skipping.statistics import stats_from_json
from tests.handmade import Handmade, add, field, metadata, protocol, remove, vector

COLUMNS = (field("id"), field("name", "string"), field("day", "date"))


def stats(low: int, high: int, rows: int = 10) -> str:
    body = {"numRecords": rows, "minValues": {"id": low}, "maxValues": {"id": high}}
    return json.dumps({**body, "nullCount": {"id": 0}})


def parsed(low: int, high: int, rows: int = 10) -> dict[str, Any]:
    bounds = {"minValues": {"id": low}, "maxValues": {"id": high}}
    return {"numRecords": rows, **bounds, "nullCount": {"id": 0, "name": None}}


def day(value: str | None) -> dict[str, Any]:
    return {"partitionValues": {"day": value}}


@pytest.fixture
def made(tmp_path: Path) -> Handmade:
    """A checkpoint of version 1 with text and struct statistics, and a commit above it."""
    log = Handmade(tmp_path / "t")
    log.checkpoint(
        1,
        protocol(),
        metadata(*COLUMNS, partitioned=["day"]),
        add("a", 1, stats=stats(0, 9), **day("2024-01-01")),
        add("b", 2, stats_parsed=parsed(10, 19), **day("2024-01-02")),
        add("c", 4, **day(None)),
        add("d", 8, stats=stats(30, 39), stats_parsed=parsed(30, 39), **day("2024-01-04")),
        remove("z"),
    )
    log.commit(2, remove("d"), add("e", 16, stats=stats(40, 49), **day("2024-01-05")))
    return log


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The columns that each read of the live files' rows requested."""
    seen: list[tuple[str, ...]] = []
    iter_files = DeltaCheckpointReader.iter_files

    def spy(
        self: DeltaCheckpointReader,
        columns: Sequence[str],
        kinds: Sequence[str] = actions.FILE_ACTIONS,
    ) -> Iterator[pl.DataFrame]:
        if "add" in kinds:
            seen.append(tuple(columns))
        return iter_files(self, columns, kinds)

    monkeypatch.setattr(DeltaCheckpointReader, "iter_files", spy)
    return seen


@pytest.fixture
def no_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the parsing of any row's statistics fail."""

    def never(values: pl.Series, *rest: Any, **more: Any) -> Any:
        assert not values.len(), "statistics were parsed"
        return stats_from_json(values, *rest, **more)

    monkeypatch.setattr(module, "stats_from_json", never)
    monkeypatch.setattr(module, "stats_from_struct", lambda *_, **__: pytest.fail("parsed"))


def names(frame: pl.LazyFrame) -> list[str]:
    return sorted(frame.select("path").collect()["path"])


# --- what is read --------------------------------------------------------------------------------


def test_projection_reads_its_own_columns_only(
    made: Handmade, requested: list[tuple[str, ...]], no_statistics: None
) -> None:
    frame = made.table.snapshot().files().select("path", "size").collect()
    assert frame.columns == ["path", "size"]
    assert dict(frame.rows()) == {"a": 1, "b": 2, "c": 4, "e": 16}
    assert [set(columns) for columns in requested] == [{"path", "size", "dvId"}]


def test_nothing_is_read_before_collect(made: Handmade, requested: list[tuple[str, ...]]) -> None:
    frame = made.table.snapshot().files(stats=True, flatten=True).select("min")
    assert frame.collect_schema().names() == ["min"]
    assert requested == []


def test_filter_reads_the_column_that_it_needs(
    made: Handmade, requested: list[tuple[str, ...]]
) -> None:
    frame = made.table.snapshot().files().filter(pl.col("size") > 2).select("path")
    assert names(frame) == ["c", "e"]
    assert [set(columns) for columns in requested] == [{"path", "size", "dvId"}]


def test_flattened_partitions_read_the_values_and_no_statistics(
    made: Handmade, requested: list[tuple[str, ...]], no_statistics: None
) -> None:
    frame = made.table.snapshot().files(flatten=True, stats=True).select("partition.day").collect()
    assert frame.schema == {"partition.day": pl.Date}
    assert frame["partition.day"].null_count() == 1
    assert [set(columns) for columns in requested] == [{"path", "partitionValues", "dvId"}]


def test_json_statistics_are_read_only_for_files_without_typed_statistics(
    made: Handmade, requested: list[tuple[str, ...]]
) -> None:
    made.table.snapshot().files(stats=True).select("min").collect()
    typed = {"path", STRUCT_STATISTICS, "dvId"}
    assert [set(columns) for columns in requested] == [typed, typed | {"stats"}]


@pytest.mark.parametrize("tail", [False, True])
def test_typed_statistics_of_every_file_are_read_without_their_text(
    tmp_path: Path, requested: list[tuple[str, ...]], tail: bool
) -> None:
    schema = {"id": pl.Int64}
    table = lakelog.create(tmp_path / "t", schema, upkeep=False)

    def add(number: int) -> None:
        with table.transaction() as tx:
            tx.add(path=f"{number}.parquet", size=1, stats=stats(number, number + 9))

    add(0)
    table.checkpoint()
    if tail:
        add(1)
    requested.clear()
    snapshot = lakelog.open(tmp_path / "t").snapshot()
    frame = snapshot.files(stats=True).select("path", "min").sort("path").collect()
    assert frame["min"].struct.field("id").to_list() == [0, 1][: frame.height]
    assert frame.height == 1 + tail
    assert all("stats" not in columns for columns in requested)
    assert any(STRUCT_STATISTICS in columns for columns in requested)
    kept = snapshot.files(where=pl.col("id") > 9).select("path").collect()
    assert kept["path"].to_list() == ["1.parquet"][: int(tail)]


# --- what is given -------------------------------------------------------------------------------


def test_columns_have_the_types_and_order_of_the_contract(made: Handmade) -> None:
    frame = made.table.snapshot().files().collect()
    full = actions.schema()
    assert dict(frame.schema) == {c: full[c] for c in file_columns(DELTA)}
    assert frame["dataChange"].to_list() == [False] * 4
    row = frame.row(by_predicate=pl.col("path") == "e", named=True)
    assert (row["version"], row["size"], row["modificationTime"]) == (2, 16, 1)
    assert frame.row(by_predicate=pl.col("path") == "a", named=True)["version"] is None


def test_typed_statistics_are_returned_as_text_if_there_is_no_text(made: Handmade) -> None:
    frame = made.table.snapshot().files().select("path", "stats").collect()
    found = {path: text and json.loads(text) for path, text in frame.rows()}
    assert found["a"] == json.loads(stats(0, 9))
    assert found["b"] == json.loads(stats(10, 19))
    assert found["c"] is None


def test_typed_statistics_are_read_from_text_and_struct(made: Handmade) -> None:
    frame = made.table.snapshot().files(stats=True).sort("path").collect()
    assert "stats" not in frame.columns
    assert frame["numRecords"].to_list() == [10, 10, None, 10]
    assert frame["min"].struct.field("id").to_list() == [0, 10, None, 40]
    assert frame["max"].struct.field("id").to_list() == [9, 19, None, 49]
    typed = {"id": pl.Int64, "name": pl.String, "day": pl.Date}
    assert frame.schema["min"] == pl.Struct(typed)


def test_flattened_partitions_are_typed(made: Handmade) -> None:
    frame = made.table.snapshot().files(flatten=True).sort("path").collect()
    assert "partitionValues" not in frame.columns
    assert frame["partition.day"].to_list() == [
        dt.date(2024, 1, 1),
        dt.date(2024, 1, 2),
        None,
        dt.date(2024, 1, 5),
    ]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        (pl.col("id") < 5, ["a", "c"]),
        (pl.col("id") == 15, ["b", "c"]),
        (pl.col("id") > 39, ["c", "e"]),
        (pl.col("id") > 49, ["c"]),
        (pl.col("day") == dt.date(2024, 1, 2), ["b"]),
        (pl.col("day").is_null(), ["c"]),
        ((pl.col("id") > 39) & (pl.col("day") < dt.date(2024, 1, 3)), []),
        ((pl.col("id") < 5) | (pl.col("id") > 39), ["a", "c", "e"]),
    ],
    ids=str,
)
def test_where_prunes_by_statistics_of_every_source_and_by_partition(
    made: Handmade, where: pl.Expr, kept: list[str]
) -> None:
    snapshot = made.table.snapshot()
    assert names(snapshot.files(where=where)) == kept
    assert names(snapshot.files(where=where, stats=True, flatten=True)) == kept


def test_where_stats_flatten_and_a_filter_can_be_combined(made: Handmade) -> None:
    frame = made.table.snapshot().files(where=pl.col("id") < 20, stats=True, flatten=True)
    found = (
        frame.filter(pl.col("min").struct.field("id") >= 0)
        .select("path", "partition.day", "numRecords")
        .sort("path")
        .collect()
    )
    assert found.rows() == [("a", dt.date(2024, 1, 1), 10), ("b", dt.date(2024, 1, 2), 10)]


def test_where_with_an_unknown_column_is_refused_immediately(made: Handmade) -> None:
    with pytest.raises(InvalidInputError):
        made.table.snapshot().files(where=pl.col("nothing") == 1)


def test_lazy_frame_is_limited_filtered_counted_and_collected_again(made: Handmade) -> None:
    frame = made.table.snapshot().files()
    for n in (0, 1, 3, 100):
        assert frame.head(n).collect().height == min(n, 4)
    assert frame.filter(pl.col("size") > 1).head(2).collect().height == 2
    assert frame.select(pl.len()).collect().item() == 4
    assert frame.collect().equals(frame.collect())


# --- states --------------------------------------------------------------------------------------


def test_checkpoint_with_a_duplicate_file_raises_corruption_error(tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t")
    log.checkpoint(0, protocol(), metadata(), add("a", 1), add("b", 2), add("a", 1))
    snapshot = log.table.snapshot()
    with pytest.raises(CheckpointCorruptionError, match="twice"):
        snapshot.files().collect()
    with pytest.raises(CheckpointCorruptionError, match="twice"):
        snapshot.num_files()


def test_path_with_and_without_a_deletion_vector_is_two_files(tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t")
    log.checkpoint(0, protocol(), metadata(), add("a", 1), add("a", 2, **vector("v")))
    snapshot = log.table.snapshot()
    frame = snapshot.files().select("path", "dvId", "size").sort("path", "dvId").collect()
    assert frame.rows() == [("a", None, 1), ("a", "uv@1", 2)]
    assert (snapshot.num_files(), snapshot.total_size()) == (2, 3)


def test_table_without_files_has_count_and_size_0(tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t").start()
    snapshot = log.table.snapshot()
    assert (snapshot.num_files(), snapshot.total_size()) == (0, 0)
    frame = snapshot.files(stats=True, flatten=True, where=pl.col("id") > 0).collect()
    assert frame.height == 0
    assert frame.schema["min"] == pl.Struct({"id": pl.Int64, "name": pl.String})


def test_statistics_are_found_by_physical_column_names(tmp_path: Path) -> None:
    names_of = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    columns = [{**field("id"), "metadata": names_of}]
    log = Handmade(tmp_path / "t")
    mode = {"delta.columnMapping.mode": "name"}
    text = '{"numRecords":1,"minValues":{"col-1":3},"maxValues":{"col-1":4}}'
    log.commit(0, protocol(2, 5), metadata(*columns, properties=mode), add("a", stats=text))
    snapshot = log.table.snapshot()
    assert snapshot.files(stats=True).collect()["min"].to_list() == [{"id": 3}]
    assert names(snapshot.files(where=pl.col("id") > 4)) == []
    assert names(snapshot.files(where=pl.col("id") > 3)) == ["a"]


def test_columns_of_each_dialect_are_defined_by_the_contract() -> None:
    delta, index = file_columns(DELTA), file_columns(INDEXTABLES)
    assert {"dvId", "baseRowId", "clusteringProvider"} <= set(delta)
    assert {"minValues", "docMappingJson", "footerStartOffset"} <= set(index)
    assert delta[-2:] == index[-2:] == ("version", "extra")
    assert "dvId" not in index


@pytest.mark.parametrize(
    ("read", "honoured"),
    [
        (protocol(1, 2), False),
        (protocol(2, 5), True),
        (protocol(3, 7, readerFeatures=[], writerFeatures=[]), False),
        (protocol(3, 7, readerFeatures=["columnMapping"], writerFeatures=["columnMapping"]), True),
        (protocol(3, 7, readerFeatures=[], writerFeatures=["columnMapping"]), True),
    ],
    ids=["legacy without", "legacy", "lists without", "lists", "writers' list only"],
)
def test_names_in_the_log_are_physical_if_the_protocol_supports_column_mapping(
    tmp_path: Path, read: dict[str, Any], honoured: bool
) -> None:
    log = Handmade(tmp_path / "t")
    mapped = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "col-1"}
    columns = (
        field("id", **mapped),
        field("p", **{**mapped, "delta.columnMapping.physicalName": "col-2"}),
    )
    name, partition = ("col-1", "col-2") if honoured else ("id", "p")
    other = "id" if honoured else "col-1"
    bounds = {name: 5, other: 99}
    text = json.dumps({"numRecords": 1, "minValues": bounds, "maxValues": bounds})
    log.commit(
        0,
        read,
        metadata(*columns, partitioned=["p"], properties={"delta.columnMapping.mode": "name"}),
        add("a", stats=text, partitionValues={partition: "7"}),
    )
    snapshot = log.table.snapshot()
    found = snapshot.files(stats=True, flatten=True).collect()
    assert found["partition.p"].to_list() == [7]
    assert found["min"].struct.field("id").to_list() == [5]
    kept = [snapshot.files(pl.col("id") == value).collect().height for value in (5, 99)]
    assert kept == [1, 0]


def test_unknown_column_mapping_mode_is_refused_if_names_are_needed(tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t")
    mode = {"delta.columnMapping.mode": "letter"}
    log.commit(0, protocol(2, 5), metadata(*COLUMNS, properties=mode), add("a", 5))
    snapshot = log.table.snapshot()
    assert snapshot.files().collect()["path"].to_list() == ["a"]
    reads: list[Callable[[], object]] = [
        lambda: snapshot.files(stats=True).collect(),
        lambda: snapshot.files(where=pl.col("id") == 1).collect(),
        lambda: snapshot.scan().collect(),
    ]
    for read in reads:
        with pytest.raises(UnsupportedFeatureError, match="unknown column mapping mode") as refused:
            read()
        assert refused.value.found == "letter"
