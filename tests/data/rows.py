"""Tables with real data files and a hand-written log, and their rows as lakelog reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.data.files import ReadPlan
from lakelog.data.read import read_files
from lakelog.snapshot import Snapshot
from tests.handmade import Action, Handmade, add, metadata, protocol

FEATURES = ("columnMapping", "deletionVectors", "timestampNtz", "typeWidening")


def data_file(root: Path, path: str, table: pa.Table, **more: Any) -> Action:
    """Write a data file; its add action. `more` are fields of the action, and ``parquet``,
    arguments for its writer.
    """
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, target, **more.pop("parquet", {}))
    return add(quote(path, safe="/=+"), target.stat().st_size, **more)


def snapshot_of(
    root: Path,
    fields: Sequence[Mapping[str, Any]],
    *adds: Action,
    partitioned: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    features: Sequence[str] = FEATURES,
) -> Snapshot:
    """Version 0 of a table with these files."""
    handmade = Handmade(root)
    handmade.commit(
        0,
        protocol(3, 7, readerFeatures=features, writerFeatures=features),
        metadata(*map(dict, fields), partitioned=partitioned, properties=properties),
        *adds,
    )
    return handmade.table.snapshot()


def batches(
    snapshot: Snapshot, columns: Sequence[str] | None = None, **more: Any
) -> list[pa.RecordBatch]:
    """The result of `read_files` for all files, by path; each batch is compared with the plan."""
    plan = ReadPlan.of(snapshot, columns)
    files = snapshot.files().sort("path").collect()
    found = list(read_files(plan, files, **more))
    for batch in found:
        assert batch.schema.equals(plan.arrow_schema), batch.schema
        assert batch.num_rows
        batch.validate(full=True)
    return found


def rows(
    snapshot: Snapshot, columns: Sequence[str] | None = None, **more: Any
) -> list[dict[str, Any]]:
    """The rows of all files, by path."""
    return [row for batch in batches(snapshot, columns, **more) for row in batch.to_pylist()]


def sorted_rows(frame: pl.DataFrame | pa.Table) -> list[str]:
    """Rows as sorted texts, to compare two readers."""
    return sorted(
        map(repr, frame.to_dicts() if isinstance(frame, pl.DataFrame) else frame.to_pylist())
    )


def data_files(root: Path) -> list[str]:
    """The files of a table outside its log."""
    found = [path for path in root.rglob("*") if path.is_file() and "_delta_log" not in path.parts]
    return sorted(str(path.relative_to(root)) for path in found)


def commit_info(root: Path | str, version: int) -> dict[str, Any]:
    """The commitInfo of a commit."""
    lines = Path(root, "_delta_log", f"{version:020}.json").read_text("utf-8").splitlines()
    found: dict[str, Any] = next(
        action["commitInfo"] for action in map(json.loads, lines) if "commitInfo" in action
    )
    return found


def changes_of(path: Path, version: int) -> list[tuple[Any, ...]]:
    """The change data feed of one version, read by deltalake."""
    feed = deltalake.DeltaTable(path).load_cdf(starting_version=version, ending_version=version)
    found = pl.DataFrame(pa.table(feed.read_all()))
    return sorted(found.select("_change_type", "id").rows())
