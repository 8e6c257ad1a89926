"""Names of columns that callers give: exact, else in any case; errors with close names."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

import lakelog
from lakelog.cli.app import app
from lakelog.errors import InvalidInputError
from lakelog.model import contract
from tests.handmade import Handmade, field

ROWS = pl.DataFrame({"Id": [2, 1], "Day": ["a", "b"], "Up": [1, 2]})


def test_columns_are_named_in_any_case(tmp_path: Path) -> None:
    lakelog.write(tmp_path, ROWS, partition_by="dAY")
    table = lakelog.open(tmp_path)
    assert table.snapshot().metadata.partition_columns == ("Day",)
    lakelog.write(tmp_path, ROWS, partition_by="day")
    with pytest.raises(InvalidInputError, match="partitioned by other columns"):
        lakelog.write(tmp_path, ROWS, partition_by="up")
    assert table.to_polars(columns=["up", "ID"]).columns == ["Up", "Id"]
    assert table.to_arrow(columns="id").column_names == ["Id"]
    assert table.compact(zorder_by="id").num_files == 2
    table.compact(order_by=["ID", "UP"])
    assert table.alter.set_comment("x", "id") is not None
    assert table.alter.rename_column("DAY", "date", enable=True) is not None
    assert table.snapshot().metadata.partition_columns == ("date",)
    table.overwrite(ROWS, schema_mode="overwrite", partition_by="UP")
    assert table.snapshot().metadata.partition_columns == ("Up",)
    other = lakelog.create(tmp_path / "other", ROWS.schema, partition_by=["ID"])
    assert other.snapshot().metadata.partition_columns == ("Id",)
    shown = CliRunner().invoke(app, ["rows", str(tmp_path), "--columns", "up"])
    assert shown.exit_code == 0, shown.output
    assert "Up" in shown.output


def test_unknown_columns_raise_with_close_names(tmp_path: Path) -> None:
    lakelog.write(tmp_path / "t", ROWS)
    table = lakelog.open(tmp_path / "t")
    for call in (
        lambda: table.to_polars(columns="ud"),
        lambda: table.compact(zorder_by="ud"),
        lambda: table.alter.set_comment("x", "ud"),
        lambda: table.update({"ud": 1}),
        lambda: lakelog.create(tmp_path / "other", ROWS.schema, partition_by="ud"),
    ):
        with pytest.raises(InvalidInputError) as raised:
            call()
        assert raised.value.hint == "did you mean Up, Id?", raised.value
    with pytest.raises(InvalidInputError, match="twice"):
        table.to_polars(columns=["Id", "id"])


def test_name_that_fits_two_columns_in_other_cases_is_ambiguous(tmp_path: Path) -> None:
    made = Handmade(tmp_path)
    made.start(schemaString=json.dumps({"type": "struct", "fields": [field("Ab"), field("aB")]}))
    assert made.table.to_polars(columns="aB").columns == ["aB"]
    with pytest.raises(InvalidInputError, match="ambiguous") as raised:
        made.table.to_polars(columns="AB")
    assert raised.value.expected == "Ab or aB"
    assert (
        contract.parse_schema(made.table.snapshot().metadata.schema_string or "").field("AB")
        is None
    )


def test_column_with_a_dot_next_to_a_struct_with_such_a_field_is_merged(tmp_path: Path) -> None:
    rows = pl.DataFrame({"a.b": [1, 2], "a": [{"b": 3}, {"b": 4}]})
    lakelog.write(tmp_path, rows)
    table = lakelog.open(tmp_path, upkeep=False)
    table.upsert(rows.with_columns(pl.struct(b=9).alias("a")), on="a.b")
    assert table.to_polars().sort(pl.col("a.b")).rows() == [(1, {"b": 9}), (2, {"b": 9})]


def test_names_are_taken_in_backquotes_wherever_columns_are_named(tmp_path: Path) -> None:
    rows = pl.DataFrame({"a.b": [2, 1], "p q": ["x", "y"], "v": [1, 2]})
    mapping = {"delta.columnMapping.mode": "name"}
    lakelog.write(tmp_path, rows, partition_by="`p q`", configuration=mapping)
    lakelog.write(tmp_path, rows, partition_by="`P Q`")
    table = lakelog.open(tmp_path, upkeep=False)
    assert table.snapshot().metadata.partition_columns == ("p q",)
    assert table.to_polars(columns=["`a.b`", "`V`"]).columns == ["a.b", "v"]
    table.compact(order_by="`a.b`")
    table.compact(zorder_by=["`A.b`", "v"])
    table.upsert(rows.with_columns(v=9), on="`a.b`")
    assert set(table.to_polars()["v"]) == {9}
    merge = table.merge(rows.with_columns(pl.lit("z").alias("p q"), v=8), on=["`a.b`"])
    merge.when_matched_update_all(except_cols="`p q`").execute()
    assert set(table.to_polars().select("p q", "v").rows()) == {("x", 8), ("y", 8)}
    with pytest.raises(InvalidInputError, match="has no column '`a`'"):
        table.upsert(rows, on=["`a`"])
