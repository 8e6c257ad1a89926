"""Small tables that lakelog writes, one of each kind in the protocol."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import polars as pl

import lakelog
from tests.data.vector_writer import inline, vector_file
from tests.spark.data_files import data_file, ids

HOSTILE = [
    "plain", " ", "a b", "50%", "%2F", "%", "a/b=c", "../x", "é", "e\u0301", "雪", "😀", "\u05d0b",
    "x'y\"z", "a+b", "#?:[{*", "\\", "\x01\x1f\x7f", "line\nbreak", "tab\t", "\ue000", "~", None,
]  # fmt: skip
"""Partition values that a path must escape, of every class of characters, and null."""

MOMENT = dt.datetime(2026, 3, 29, 1, 30, 0, 123456)
NO_UPKEEP = {"spark.indextables.checkpoint.enabled": "false"}
ID: dict[str, Any] = {"id": pl.Int64}

TYPED = pl.DataFrame(
    {
        "byte": pl.Series([-128, None], dtype=pl.Int8),
        "short": pl.Series([-32768, None], dtype=pl.Int16),
        "int": pl.Series([2**31 - 1, None], dtype=pl.Int32),
        "long": pl.Series([-(2**63), None], dtype=pl.Int64),
        "float": pl.Series([1.5, None], dtype=pl.Float32),
        "double": pl.Series([-1.5e-7, None], dtype=pl.Float64),
        "truth": [True, None],
        "text": ["ü😀\n", None],
        "date": [dt.date(1582, 10, 3), None],
        "ntz": pl.Series([MOMENT, None], dtype=pl.Datetime("us")),
        "instant": pl.Series([MOMENT, None], dtype=pl.Datetime("us", "UTC")),
        "money": pl.Series([decimal.Decimal("-1234567.89"), None], dtype=pl.Decimal(12, 2)),
    }
)
"""A value and a null of each type that a partition column can have in both engines."""

NESTED = pl.DataFrame(
    {
        "bytes": [b"\x00\xff", None],
        "list": [[1, None], None],
        "struct": [{"a": 1, "b": ["x"]}, None],
    }
)


def create(
    root: Path, schema: Any, partition_by: list[str] | None = None, **properties: str
) -> lakelog.Table:
    configuration = {f"delta.{name.replace('_', '.')}": v for name, v in properties.items()}
    return lakelog.create(
        root, schema, partition_by or [], configuration=configuration | NO_UPKEEP, upkeep=False
    )


def hostile_partitions(root: Path) -> lakelog.Table:
    table = create(root, {**ID, "p": pl.String}, ["p"])
    table.append(pl.DataFrame({"id": range(len(HOSTILE)), "p": HOSTILE}))
    table.overwrite(pl.DataFrame({"id": [100], "p": ["é"]}), where=pl.col("p") == "é")
    table.overwrite(pl.DataFrame({"id": [101], "p": ["%2F"]}), where=pl.col("p") == "%2F")
    return table


def hostile_file_names(root: Path) -> lakelog.Table:
    table = create(root, ID)
    with table.transaction() as tx:
        for number, text in enumerate(HOSTILE):
            if text is not None and "../" not in text:
                # Hadoop's local file system parses a colon as the end of a scheme.
                name = f"{number}{text.replace('/', '_').replace(':', '')}.parquet"
                tx.add(**data_file(str(root), name, ids(number)), tags={"k": text})
    with table.transaction() as tx:
        tx.remove(tx.read().filter(pl.col("path").str.contains("[雪#%]")))
    return table


def partitions_of_every_type(root: Path) -> lakelog.Table:
    rows = TYPED.with_columns(id=pl.Series([1, 2]))
    table = create(root, dict(rows.schema), TYPED.columns)
    table.append(rows)
    return table


def columns_of_every_type(root: Path) -> lakelog.Table:
    rows = pl.concat([TYPED, NESTED], how="horizontal")
    table = create(root, dict(rows.schema))
    table.append(rows)
    return table


def mapped(root: Path, mode: str) -> lakelog.Table:
    schema: Any = {"id": pl.Int64, "odd name": pl.String, "s": pl.Struct({"x y": pl.Int32})}
    table = create(root, {**schema, "p q": pl.String}, ["p q"], columnMapping_mode=mode)
    for number, p in enumerate(["é", None, "b"]):
        rows = {"id": [number], "odd name": ["x"], "s": [{"x y": number}], "p q": [p]}
        table.append(pl.DataFrame(rows, schema={**schema, "p q": pl.String}))
    return table


def deletion_vectors(root: Path) -> lakelog.Table:
    table = create(root, ID, enableDeletionVectors="true")
    vectors = vector_file(root, {"0": [0, 3], "1": [1]})
    with table.transaction() as tx:
        for number in range(4):
            file = data_file(
                str(root), f"{number}.parquet", ids(*range(number * 10, 5 + number * 10))
            )
            vector = vectors.get(str(number)) or (inline([2, 4]) if number == 2 else None)
            tx.add(**_loose(file, vector))
    with table.transaction() as tx:
        again = tx.read().filter(pl.col("path") == "0.parquet")
        file = data_file(str(root), "0.parquet", ids(*range(5)))
        tx.remove(again)
        tx.add(**_loose(file, inline([0, 1, 3])))
    return table


def _loose(file: dict[str, Any], vector: dict[str, Any] | None) -> dict[str, Any]:
    """An add with a vector, whose statistics are no longer exact."""
    if vector is None:
        return file
    stats = json.dumps(json.loads(file["stats"]) | {"tightBounds": False})
    return file | {"stats": stats, "deletionVector": vector}


def many_kinds_of_actions(root: Path) -> lakelog.Table:
    """Row tracking, in-commit timestamps, a change feed, transactions, domains, new columns."""
    table = create(
        root,
        {**ID, "p": pl.String},
        ["p"],
        enableRowTracking="true",
        enableInCommitTimestamps="true",
        enableChangeDataFeed="true",
    )
    for number in range(3):
        rows = pl.DataFrame({"id": [number, 10 + number], "p": ["a", "b"]})
        table.append(rows, app_id="app ü", app_version=number)
    with table.transaction(app_id="other", app_version=7) as tx:
        tx.set_protocol(features=["domainMetadata"])
        tx.set_domain(domain="kept", configuration='{"ü": 1}')
        tx.set_domain(domain="removed", configuration="{}")
    with table.transaction() as tx:
        tx.remove_domain(domain="removed")
    table.overwrite(pl.DataFrame({"id": [50], "p": ["a"]}), where=pl.col("p") == "a")
    table.append(pl.DataFrame({"id": [60], "p": ["c"], "new": [1.5]}), schema_mode="merge")
    with table.transaction() as tx:
        tx.set_metadata(name="näme", description="a\nb", configuration={"owner": "ü"})
    return table


def typed_statistics(root: Path) -> lakelog.Table:
    table = create(
        root,
        dict(TYPED.schema),
        checkpoint_writeStatsAsStruct="true",
        checkpoint_writeStatsAsJson="false",
    )
    for _ in range(3):
        table.append(TYPED)
    return table


def compacted_commits(root: Path) -> lakelog.Table:
    table = many_kinds_of_actions(root)
    table.compact_log(2, 5)
    return table


def changed_rows(root: Path, **properties: str) -> lakelog.Table:
    """Rows appended, deleted, updated and moved to other partitions."""
    table = create(root, {**ID, "p": pl.String, "x": pl.Float64}, ["p"], **properties)
    count = 3_000
    rows = {"id": range(count), "p": ["a", "b", None] * (count // 3), "x": [0.5] * count}
    table.append(pl.DataFrame(rows))
    table.delete("id = 7")
    table.delete(pl.col("id") % 5 == 0)
    table.update({"x": "id * 2.0", "p": "'c'"}, "id % 7 = 0 AND id > 100")
    table.delete("p IS NULL OR id < 30")
    table.delete("p = 'c' OR id BETWEEN 1000 AND 2000")
    return table


def copied_columns(root: Path) -> lakelog.Table:
    """Files of more than a megabyte, of which updates copy encoded columns."""
    rows = pl.concat([pl.concat([TYPED, NESTED], how="horizontal")] * 50)
    blobs = [random.Random(n).randbytes(1 << 14) for n in range(rows.height)]
    rows = rows.with_columns(id=pl.int_range(pl.len()), blob=pl.Series(blobs))
    schema = dict(rows.schema)
    table = create(root, schema, columnMapping_mode="id", enableRowTracking="true")
    table.append(rows)
    table.update({"text": "text || '!'", "double": 0.5}, "id % 3 = 0")
    table.update({"struct": None, "money": "money * 2"}, "id % 5 = 0")
    return table


TABLES: dict[str, Callable[[Path], lakelog.Table]] = {
    "hostile partitions": hostile_partitions,
    "hostile file names": hostile_file_names,
    "partitions of every type": partitions_of_every_type,
    "columns of every type": columns_of_every_type,
    "mapped by name": lambda root: mapped(root, "name"),
    "mapped by id": lambda root: mapped(root, "id"),
    "deletion vectors": deletion_vectors,
    "many kinds of actions": many_kinds_of_actions,
    "typed statistics": typed_statistics,
    "compacted commits": compacted_commits,
    "rows copied": changed_rows,
    "columns copied": copied_columns,
    "rows marked": lambda root: changed_rows(
        root, enableDeletionVectors="true", enableChangeDataFeed="true"
    ),
}


def make(name: str, root: Path) -> lakelog.Table:
    """Create the table of that name in a new folder."""
    shutil.copytree(_made(name), root)
    return lakelog.open(root, upkeep=False)


@cache
def _made(name: str) -> Path:
    root = Path(mkdtemp()) / "t"
    TABLES[name](root)
    return root


LAYOUTS = ("classic", "multipart", "v2-json", "v2-parquet")
