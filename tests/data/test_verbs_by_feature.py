"""Which verbs are supported on tables with which features, as `docs/rows.md` lists them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import Table
from tests.test_documentation import TEXTS

ROWS = pl.DataFrame(
    {"id": [1, 2, 3, 4], "x": [10, 20, 30, 40]}, schema={"id": pl.Int64, "x": pl.Int32}
)
NEW = ROWS.tail(1).with_columns(pl.col("id") + 1, pl.col("x") + 10)

VERBS: dict[str, Callable[[Table], Any]] = {
    "append": lambda t: t.append(NEW),
    "overwrite": lambda t: t.overwrite(ROWS[1:2], "id = 2"),
    "delete": lambda t: t.delete("id = 2"),
    "update": lambda t: t.update({"id": 5}, "id = 2"),
    "merge": lambda t: t.upsert(pl.concat([NEW, ROWS.head(1)]), "id"),
    "compact": lambda t: t.compact(order_by="x"),
    "restore": lambda t: t.restore(0),
    "clone": lambda t: t.clone(f"{t.path}-clone"),
    "changes": lambda t: t.changes(0).collect(),
}


def _generated(table: Table) -> None:
    """Declare x as generated, as another engine has done."""
    schema = json.loads(table.snapshot().metadata.schema_string or "")
    schema["fields"][1]["metadata"]["delta.generationExpression"] = "CAST(id * 10 AS INT)"
    path = Path(table.path, "_delta_log", f"{table.version() + 1:020}.json")
    metadata = json.loads(
        Path(table.path, "_delta_log", f"{0:020}.json").read_text().splitlines()[2]
    )
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}
    path.write_text("\n".join(map(json.dumps, (protocol, metadata))))


FEATURES: dict[str, dict[str, str] | Callable[[Table], Any]] = {
    "deletion vectors": {"delta.enableDeletionVectors": "true"},
    "change feed": {"delta.enableChangeDataFeed": "true"},
    "column mapping": lambda t: (
        t.alter.rename_column("x", "y", enable=True) and t.alter.rename_column("y", "x")
    ),
    "row tracking": {"delta.enableRowTracking": "true"},
    "row tracking, deletion vectors": {
        "delta.enableRowTracking": "true",
        "delta.enableDeletionVectors": "true",
    },
    "type widening": lambda t: t.alter.widen_column("x", "long", enable=True),
    "constraints": lambda t: t.alter.add_constraint("c", "id > 0"),
    "generated columns": _generated,
}


def new_table(root: Path, feature: dict[str, str] | Callable[[Table], Any]) -> Table:
    properties = feature if isinstance(feature, dict) else {}
    lakelog.write(root, ROWS.head(2), configuration=properties)
    table = lakelog.open(root, upkeep=False)
    table.append(ROWS.tail(2))
    if not isinstance(feature, dict):
        feature(table)
    return table


def cells() -> dict[str, list[str]]:
    """The table in the documentation: the cells of each verb."""
    page = TEXTS["docs/rows.md"].partition("## Verbs and features")[2].partition("\n## ")[0]
    rows = [line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    head, *lines = rows
    assert [name.strip() for name in head[1:]] == list(FEATURES)
    return {line[0].strip("`"): [cell.strip() for cell in line[1:]] for line in lines}


def test_documentation_has_a_row_for_each_verb() -> None:
    assert list(cells()) == list(VERBS)


@pytest.mark.parametrize("feature", FEATURES)
def test_verb_is_supported_as_the_documentation_lists(tmp_path: Path, feature: str) -> None:
    found = {}
    for verb, call in VERBS.items():
        root = tmp_path / verb
        table = new_table(root, FEATURES[feature])
        call(table)
        found[verb] = "yes"
        rows = table.to_polars().sort("id")
        assert rows.columns == ["id", "x"]
        assert set(rows["id"]) <= {1, 2, 3, 4, 5}
    column = list(FEATURES).index(feature)
    assert found == {verb: cells()[verb][column] for verb in VERBS}
