"""Flattened Parquet checkpoints: lakelog's schema, and plain entries of specification 004."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakelog.dialects.indextables.flattened import FlattenedReader
from lakelog.errors import InvalidActionError, MalformedLogError
from lakelog.model import actions
from tests.dialects.indextables.writing import (
    PROTOCOL,
    SCHEMA_STRING,
    Log,
    flat_rows,
    metadata,
    paths,
    read_files,
    skip,
)

_VERSION = 10
_SINGLE = f"{_VERSION:020d}.checkpoint.parquet"
_PART = f"{_VERSION:020d}.checkpoint.{{:010d}}.{{:010d}}.parquet"
_TEXT_MAP = pl.Map(pl.String, pl.String)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "t")


def _lakelog_rows() -> pl.DataFrame:
    return flat_rows(
        [
            {"actionType": "protocol", "minReaderVersion": 4, "minWriterVersion": 4},
            {
                "actionType": "metaData",
                "metadataId": "flat",
                "schemaString": SCHEMA_STRING,
                "configuration": {"docMappingSchema.h": "mapping"},
                "partitionColumns": ["p"],
                "version": 2,
            },
            {"actionType": "mergeskip", "path": "s", "skipTimestamp": 1, "skipCount": 3},
            {
                "actionType": "add",
                "path": "a",
                "size": 1,
                "partitionValues": {"p": None},
                "version": 3,
                "position": 1,
                "docMappingRef": "h",
                "splitTags": ["x"],
            },
            {"actionType": "add", "path": "b", "size": 2, "version": 4, "position": 0},
            {"actionType": "remove", "path": "z", "deletionTimestamp": 8, "version": 5},
        ]
    )


def _spec_rows() -> pl.DataFrame:
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "path": pl.String,
        "partitionValues": _TEXT_MAP,
        "size": pl.Int64,
        "numRecords": pl.Int64,
        "minValues": _TEXT_MAP,
        "maxValues": _TEXT_MAP,
        "metadataId": pl.String,
        "schemaString": pl.String,
        "partitionColumns": pl.List(pl.String),
        "format": _TEXT_MAP,
        "actionType": pl.String,
    }
    rows: list[dict[str, Any]] = [
        {"actionType": "add", "path": "a", "size": 1, "minValues": {"id": "0"}},
        {"actionType": "add", "path": "b", "size": 2, "partitionValues": {"p": "1"}},
        {"actionType": "remove", "path": "z"},
        {
            "actionType": "metadata",
            "metadataId": "plain",
            "schemaString": SCHEMA_STRING,
            "format": {"provider": "indextables", "k": "v"},
            "partitionColumns": ["p"],
        },
    ]
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_rows_written_by_lakelog_are_read_back(log: Log) -> None:
    log.flattened(_SINGLE, _lakelog_rows())
    reader = log.checkpoint(_VERSION)
    assert isinstance(reader, FlattenedReader)
    columns = [c for c in actions.schema() if c != "actionType"]
    files = read_files(reader, columns)
    expected = _lakelog_rows().filter(pl.col("actionType").is_in(["add", "remove"]))
    assert actions.conform(files).drop("docMappingJson").equals(expected.drop("docMappingJson"))
    assert files["docMappingJson"].to_list() == ["mapping", None, None]
    meta = reader.read_meta()
    assert meta["actionType"].to_list() == ["protocol", "metaData", "mergeskip"]
    assert meta["metadataId"].drop_nulls().to_list() == ["flat"]
    assert meta["skipCount"].drop_nulls().to_list() == [3]
    assert reader.struct_statistics() is None


def test_rows_written_by_lakelog_need_no_earlier_commit(log: Log) -> None:
    log.write(f"{3:020d}.json", b"damaged")
    log.flattened(_SINGLE, _lakelog_rows())
    assert log.checkpoint(_VERSION).read_meta().height == 3


def test_entries_of_the_specification_are_completed_from_the_commits(log: Log) -> None:
    log.commit(0, [PROTOCOL, metadata(id="old")])
    log.commit(2, [skip("s")])
    log.flattened(_SINGLE, _spec_rows())
    reader = log.checkpoint(_VERSION)
    files = read_files(reader, ["path", "size", "partitionValues", "minValues"], ["add"])
    assert files.drop("actionType").rows() == [
        ("a", 1, None, {"id": "0"}),
        ("b", 2, {"p": "1"}, None),
    ]
    assert paths(read_files(reader, kinds=["remove"])) == ["z"]
    meta = reader.read_meta()
    assert meta["actionType"].to_list() == ["protocol", "metaData", "mergeskip"]
    row = meta.to_dicts()[1]
    assert row["metadataId"] == "plain"
    assert row["formatProvider"] == "indextables"
    assert row["formatOptions"] == {"k": "v"}
    assert row["partitionColumns"] == ["p"]
    assert meta["minReaderVersion"][0] == 2
    below = [f"_transaction_log/{version:020d}.json" for version in (0, 2)]
    assert reader.files_read() == (*reader.checkpoint.paths, *below)


def test_protocol_defaults_to_1_without_commits(log: Log) -> None:
    log.flattened(_SINGLE, _spec_rows())
    meta = log.checkpoint(_VERSION).read_meta(("protocol",))
    assert meta.select("minReaderVersion", "minWriterVersion").rows() == [(1, 1)]


def test_parts_are_one_checkpoint(log: Log) -> None:
    rows = _lakelog_rows()
    for number, part in enumerate((rows[:2], rows[2:4], rows[4:]), 1):
        log.flattened(_PART.format(number, 3), part)
    log.write(f"_checkpoints/{_VERSION:020d}.checkpoint.json", b'{"version":10,"parts":3}')
    reader = log.checkpoint(_VERSION)
    assert paths(read_files(reader)) == ["a", "b", "z"]
    assert reader.read_meta().height == 3
    assert len(reader.files_read()) == 3


def test_metadata_is_found_in_any_row_group(log: Log) -> None:
    target = log.flattened(_SINGLE, _lakelog_rows())
    adds = flat_rows([{"actionType": "add", "path": str(n), "size": n} for n in range(50)])
    pl.concat(
        [adds, _lakelog_rows(), adds.with_columns(path="path" + pl.col("path"))]
    ).write_parquet(target, row_group_size=7)
    reader = log.checkpoint(_VERSION)
    assert reader.read_meta().height == 3
    assert read_files(reader).height == 103


def test_only_requested_columns_and_action_types_are_returned(log: Log) -> None:
    log.flattened(_SINGLE, _lakelog_rows())
    (frame,) = log.checkpoint(_VERSION).iter_files(["size", "docMappingJson"], ["add"])
    assert set(frame.columns) == {"actionType", "path", "size", "docMappingJson"}
    assert paths(frame) == ["a", "b"]


def test_narrower_integers_are_widened(log: Log) -> None:
    frame = pl.DataFrame(
        {"actionType": ["add"], "path": ["a"], "size": pl.Series([3], dtype=pl.Int32)}
    )
    log.flattened(_SINGLE, frame)
    (row,) = read_files(log.checkpoint(_VERSION)).to_dicts()
    assert row["size"] == 3


def test_unknown_columns_are_kept_in_extra(log: Log) -> None:
    added = _lakelog_rows().with_columns(
        pl.when(pl.col("actionType").is_in(["add", "metaData"])).then(pl.lit("x")).alias("later")
    )
    log.flattened(_SINGLE, added)
    reader = log.checkpoint(_VERSION)
    files = read_files(reader, ("path", "extra"), ("add",))
    assert [json.loads(text)["later"] for text in files["extra"]] == ["x"] * files.height
    assert json.loads(reader.read_meta(("metaData",))["extra"][0])["later"] == "x"
    assert read_files(reader, ("path",)).columns == ["actionType", "path"]


_NUMBERS = pl.DataFrame({"actionType": ["add"], "path": ["a"], "size": [1]})


def test_columns_of_another_type_are_converted_if_that_is_exact(log: Log) -> None:
    rows = _NUMBERS.with_columns(
        pl.lit(1).cast(pl.Decimal(20, 0)).alias("size"),
        pl.lit(5).cast(pl.Datetime("ms")).alias("modificationTime"),
        pl.lit(3.0).alias("numRecords"),
        pl.lit(1, pl.Int8).alias("hasFooterOffsets"),
        pl.Series("partitionValues", [[{"key": "p", "value": "x"}]]),
    )
    log.flattened(_SINGLE, rows)
    columns = ("size", "modificationTime", "numRecords", "hasFooterOffsets", "partitionValues")
    (row,) = read_files(log.checkpoint(_VERSION), columns, ("add",)).select(columns).rows()
    assert row == (1, 5, 3, True, {"p": "x"})


@pytest.mark.parametrize(
    "frame",
    [
        _NUMBERS.with_columns(pl.lit(5.7).alias("size")),
        _NUMBERS.with_columns(pl.lit(float("nan")).alias("size")),
        _NUMBERS.with_columns(pl.lit(2.0**63).alias("size")),
        _NUMBERS.with_columns(pl.lit("5.7").cast(pl.Decimal(20, 1)).alias("size")),
        _NUMBERS.with_columns(pl.lit("5").alias("size")),
        _NUMBERS.with_columns(pl.lit(1).cast(pl.Datetime("us")).alias("size")),
        _NUMBERS.with_columns(pl.lit(1 << 63, pl.UInt64).alias("size")),
        pl.DataFrame({"path": ["a"], "size": [1]}),
        pl.DataFrame({"actionType": [None, "add"], "path": ["a", "b"], "size": [1, 1]}),
        pl.DataFrame({"actionType": ["add"], "path": ["a"], "size": ["ten"]}),
        pl.DataFrame({"actionType": ["add"], "path": [None], "size": [1]}),
        pl.DataFrame({"actionType": ["add"], "size": [1]}),
        pl.DataFrame({"actionType": ["add"], "path": ["a"]}),
        pl.DataFrame({"actionType": ["add", "remove"], "path": ["a", "b"], "size": [None, 1]}),
        pl.DataFrame({"actionType": ["aed"], "path": ["a"], "size": [1]}),
    ],
)
def test_rows_that_violate_the_contract_are_refused(log: Log, frame: pl.DataFrame) -> None:
    log.flattened(_SINGLE, frame)
    reader = log.checkpoint(_VERSION)
    with pytest.raises(InvalidActionError) as caught:
        read_files(reader)
    assert caught.value.path == f"_transaction_log/_checkpoints/{_SINGLE}"


def test_protocol_without_its_version_is_refused(log: Log) -> None:
    rows = _lakelog_rows().drop("minReaderVersion")
    log.flattened(_SINGLE, rows)
    with pytest.raises(InvalidActionError, match="protocol lacks a required field"):
        log.checkpoint(_VERSION).read_meta()


def test_text_that_is_not_utf8_is_refused(log: Log) -> None:
    target = log.flattened(_SINGLE, _spec_rows())
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    pq.write_table(pa.table({"actionType": ["add"], "path": bad}), target)
    with pytest.raises(MalformedLogError):
        read_files(log.checkpoint(_VERSION))


def test_missing_part_is_named_in_the_error(log: Log) -> None:
    target = log.flattened(_SINGLE, _lakelog_rows())
    reader = log.checkpoint(_VERSION)
    target.unlink()
    reads: list[Callable[[], object]] = [reader.read_meta, lambda: read_files(reader)]
    for read in reads:
        with pytest.raises(MalformedLogError) as caught:
            read()
        assert caught.value.path == f"_transaction_log/_checkpoints/{_SINGLE}"
