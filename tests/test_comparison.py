"""The table of README.md that compares lakelog with deltalake is correct for both libraries.

A new version of deltalake that can do more fails here, and then the table has to change.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

import lakelog

ROWS = pl.DataFrame({"n": [1, 2, 3]})
IDENTITY = {
    "type": "struct",
    "fields": [
        {
            "name": "id",
            "type": "long",
            "nullable": True,
            "metadata": {
                "delta.identity.start": 1,
                "delta.identity.step": 1,
                "delta.identity.allowExplicitInsert": False,
            },
        },
        {"name": "n", "type": "long", "nullable": True, "metadata": {}},
    ],
}


@pytest.fixture(scope="module")
def cells(repository: Path) -> dict[str, list[str]]:
    """Cells of the table by the name of their row: lakelog, deltalake, Delta on Spark, PyIceberg.

    A link is its text.
    """
    text = (repository / "README.md").read_text("utf-8").partition("## Compared")[2]
    table = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text.partition("\n## ")[0])
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def new(folder: Path, schema: Any = None, **configuration: str) -> tuple[lakelog.Table, str]:
    path = str(folder / "table")
    properties = {f"delta.{name.replace('_', '.')}": v for name, v in configuration.items()}
    table = lakelog.create(path, schema or {"n": pl.Int64}, configuration=properties)
    return table, path


def test_both_append_overwrite_delete_merge_and_compact(
    tmp_path: Path, cells: dict[str, list[str]]
) -> None:
    table, path = new(tmp_path)
    for mode in ("append", "overwrite", "append"):
        lakelog.write(path, ROWS, mode=mode)
        deltalake.write_deltalake(path, ROWS, mode=mode)
    peer = deltalake.DeltaTable(path)
    merge = peer.merge(ROWS, "target.n = source.n", source_alias="source", target_alias="target")
    merge.when_matched_delete("source.n = 1").when_not_matched_insert_all().execute()
    peer.delete("n = 2")
    peer.optimize.compact()
    table.merge(ROWS, on="n").when_matched_delete("source.n = 3").execute()
    table.delete("n = 2")
    table.compact()
    for name in ("append, overwrite, delete", "merge with clauses", "compact"):
        assert cells[name][:2] == ["yes", "yes"]


def test_deltalake_copies_rows_where_lakelog_writes_a_deletion_vector(
    tmp_path: Path, cells: dict[str, list[str]]
) -> None:
    table, path = new(tmp_path, enableDeletionVectors="true")
    table.append(ROWS)
    files = table.snapshot().files().collect()["path"]
    table.delete("n = 1")
    assert table.snapshot().files().collect()["path"].to_list() == files.to_list()
    assert deltalake.DeltaTable(path).delete("n = 2")["num_copied_rows"] == 1
    assert cells["delete without rewriting files"][:2] == ["yes", "no"]


def test_deltalake_has_changes_only_if_they_were_enabled(
    tmp_path: Path, cells: dict[str, list[str]]
) -> None:
    table, path = new(tmp_path)
    table.append(ROWS)
    with pytest.raises(DeltaError, match="does not have change data enabled"):
        deltalake.DeltaTable(path).load_cdf(0).read_all()
    assert table.changes(0).collect().height == ROWS.height
    assert cells["changes of any table"][:2] == ["yes (with copied rows)", "if enabled before"]


@pytest.mark.parametrize(
    ("row", "schema", "configuration", "own"),
    [
        ("write identity columns", IDENTITY, {}, "yes"),
        ("row tracking", None, {"enableRowTracking": "true"}, "yes"),
        (
            "liquid clustering",
            None,
            {"feature_clustering": "supported"},
            "writes, does not cluster",
        ),
    ],
)
def test_lakelog_appends_where_deltalake_refuses(
    row: str,
    schema: Any,
    configuration: dict[str, str],
    own: str,
    tmp_path: Path,
    cells: dict[str, list[str]],
) -> None:
    table, path = new(tmp_path, schema, **configuration)
    table.append(ROWS)
    with pytest.raises(CommitFailedError, match="Unsupported table features"):
        deltalake.write_deltalake(path, ROWS, mode="append", schema_mode="merge")
    assert table.to_polars()["n"].sort().to_list() == [1, 2, 3]
    assert cells[row][:2] == [own, "no"]


def test_deltalake_supports_sql_and_lakelog_needs_duckdb(
    tmp_path: Path, cells: dict[str, list[str]]
) -> None:
    import duckdb

    orders, path = new(tmp_path)
    orders.append(ROWS)
    builder = deltalake.QueryBuilder().register("peer", deltalake.DeltaTable(path))
    assert pl.DataFrame(builder.execute("select sum(n) from peer").read_all()).item() == 6
    relation = duckdb.query("select sum(n) from orders")
    assert relation is not None
    assert relation.fetchall() == [(6,)]
    assert not callable(getattr(lakelog, "sql", None))  # a package
    assert cells["SQL"][:2] == ["**no**: DuckDB or Spark reads it", "yes"]


def test_a_single_row_is_durable_before_it_is_committed(
    tmp_path: Path, cells: dict[str, list[str]]
) -> None:
    table, _ = new(tmp_path)
    with lakelog.Ingestor(table, tmp_path / "log") as ingestor:
        ingestor.write({"n": 1})
        assert table.version() == 0
    assert table.to_polars().height == 1
    assert cells["single rows, durable in milliseconds"][0] == "yes"
