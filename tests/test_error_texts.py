"""The texts of errors that users meet, as one file, so that a change of wording is seen in review.

``LAKELOG_REWRITE=1`` writes the file again.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

import lakelog
from lakelog.errors import LakelogError, LakelogWarning
from tests.handmade import Handmade, add, metadata, protocol

TEXTS = Path(__file__).with_name("error_texts.txt")

Calls = dict[str, Callable[[], Any]]


def of_tables(root: Path) -> Calls:
    """Incorrect calls of a table, or without one."""
    table = lakelog.create(root / "t", {"id": pl.Int64, "day": pl.Date}, ["day"], upkeep=False)
    snapshot = table.snapshot()
    pair = pl.Struct({"a": pl.Int64, "b": pl.Int64})
    nested = lakelog.create(root / "nested", {"id": pl.Int64, "pair": pair}, upkeep=False)
    half = pl.struct(a=1)
    odd: Any = object()
    sql: Any = "day = ="
    (root / "landing/p=1").mkdir(parents=True)
    pl.DataFrame({"id": [1]}).write_parquet(root / "landing/p=1/a.parquet")
    pl.DataFrame({"id": ["x"]}).write_parquet(root / "landing/p=1/b.parquet")
    return {
        "convert: no file": lambda: lakelog.convert(root / "none"),
        "convert: another type": lambda: lakelog.convert(root / "landing"),
        "convert: other folders": lambda: lakelog.convert(root / "landing", ["day"]),
        "convert: a table exists": lambda: lakelog.convert(root / "t"),
        "clone: a table exists": lambda: table.clone(root / "t"),
        "open: no table": lambda: lakelog.open(root / "none"),
        "open: a file": lambda: lakelog.open(root / "landing/p=1/a.parquet"),
        "open: empty location": lambda: lakelog.open(""),
        "open: parallelism": lambda: lakelog.open(root / "t", parallelism=0),
        "create: a table exists": lambda: lakelog.create(root / "t", {"id": pl.Int64}),
        "create: format": lambda: lakelog.create(root / "u", {"id": pl.Int64}, format="iceberg"),
        "create: partition column": lambda: lakelog.create(root / "u", {"id": pl.Int64}, ["day"]),
        "upgrade: feature as text": lambda: table.alter.upgrade("deletionVectors"),
        "write: only nulls": lambda: lakelog.write(root / "u", pl.DataFrame({"n": [None]})),
        "write: interval": lambda: lakelog.write(
            root / "u", pa.table({"c": pa.array([[pa.MonthDayNano([1, 2, 3])]])})
        ),
        "create: property": lambda: lakelog.create(
            root / "u", {"id": pl.Int64}, configuration={"delta.checkpointInterval": "0"}
        ),
        "snapshot: version of a wrong type": lambda: table.snapshot("5"),  # type: ignore[arg-type]
        "snapshot: negative version": lambda: table.snapshot(-1),
        "snapshot: later version": lambda: table.snapshot(7),
        "snapshot: time before the table": lambda: table.snapshot(timestamp="2001-01-01"),
        "snapshot: version and time": lambda: table.snapshot(0, timestamp="2026-01-01"),
        "files: column of the condition": lambda: snapshot.files(where=pl.col("nope") == 1),
        "files: SQL": lambda: snapshot.files(where=sql),
        "scan: condition of a wrong type": lambda: snapshot.scan(where=odd),
        "append: unknown column": lambda: table.append(pl.DataFrame({"id": [1], "x": [1]})),
        "append: value of a wrong type": lambda: table.append(pl.DataFrame({"id": ["a"]})),
        "append: text for a date": lambda: table.append(pl.DataFrame({"day": ["2026-01-05"]})),
        "append: times for a date": lambda: table.append(
            pl.DataFrame({"day": [dt.datetime(2026, 1, 5)]})
        ),
        "append: numbers for text": lambda: lakelog.create(
            root / "texts", {"s": pl.String}, upkeep=False
        ).append(pl.DataFrame({"s": [5]})),
        "write: mode": lambda: lakelog.write(root / "t", pl.DataFrame({"id": [1]}), mode="replace"),  # type: ignore[arg-type]
        "append: rows of a wrong type": lambda: table.append(odd),
        "overwrite: row outside of the condition": lambda: table.overwrite(
            pl.DataFrame({"id": [1]}), where=pl.col("id") == 2
        ),
        "upsert: field of a struct": lambda: nested.upsert(pl.select(id=1, pair=half), "id"),
        "merge: field of a key": lambda: nested.upsert(pl.select(id=1, pair=half), "pair"),
        "update: field of a struct": lambda: nested.update({"pair": half}),
        "update: choice of structs": lambda: nested.update(
            {"pair": pl.when(pl.col("id") > 1).then(half).otherwise("pair")}
        ),
        "checkpoint: layout": lambda: table.checkpoint(layout="zip"),
        "checkpoint: layout that the protocol forbids": lambda: table.checkpoint(layout="v2"),
        "checkpoint: memory": lambda: table.checkpoint(memory_limit=1),
        "verify: no checkpoint": table.verify,
        "compact_log: range": lambda: table.compact_log(3, 1),
        "cleanup: retention": lambda: table.cleanup(retention="-3 days"),
        "vacuum: retention": lambda: table.vacuum(retention="1 hour"),
        "vacuum: duration": lambda: table.vacuum(retention="soon"),
        "write_parquet: folder in use": lambda: snapshot.write_parquet(root / "landing"),
    }


def of_damage(root: Path) -> Calls:
    """Logs that are damaged, or with a feature that lakelog does not support."""

    def reading(
        name: str, damage: Callable[[Handmade], Any], version: int | None = None
    ) -> Callable[[], Any]:
        made = Handmade(root / name).start(add("a"))
        made.commit(1, add("b"))
        damage(made)
        return lambda: made.table.snapshot(version).files().collect()

    def without_commits(made: Handmade) -> None:
        made.checkpoint(1, protocol(), metadata(), add("a")).write_bytes(b"PAR1 and no more")
        made.forget(0, 1)

    def without_a_commit(made: Handmade) -> None:
        made.commit(2)
        made.forget(1)

    def without_metadata(made: Handmade) -> None:
        made.forget(0, 1)
        made.commit(0, protocol(), add("a"))

    future = {"readerFeatures": ["holograms"], "writerFeatures": ["holograms"]}
    return {
        "a commit is not JSON": reading("json", lambda made: made.write(f"{1:020d}.json", b"{add")),
        "a commit is missing": reading("gap", without_a_commit),
        "the first commit is missing": reading("start", lambda made: made.forget(0)),
        "no version can be rebuilt": reading("first", lambda made: made.forget(0), 1),
        "a field is missing": reading("field", lambda made: made.commit(2, {"add": {"size": 1}})),
        "a checkpoint is damaged": reading("checkpoint", without_commits),
        "a feature is unknown": reading(
            "feature", lambda made: made.commit(2, protocol(3, 7, **future))
        ),
        "no metadata": reading("metadata", without_metadata),
    }


def of_stores(root: Path) -> Calls:
    """Incorrect calls of the write-ahead log and the keyed store."""
    lakelog.WriteAheadLog(root / "wal").close()
    return {
        "WriteAheadLog: no log": lambda: lakelog.WriteAheadLog(root / "none", read_only=True),
        "WriteAheadLog: operation": lambda: _appended(root / "wal", "MERGE", "k"),
        "WriteAheadLog: key": lambda: _appended(root / "wal", "PUT", 5),
        "WriteAheadLog: no value": lambda: _appended(root / "wal", "PUT", "k", None),
        "KeyedStore: a log is there": lambda: lakelog.KeyedStore(root / "wal"),
    }


def of_ingestors(root: Path) -> Calls:
    """Incorrect calls of an Ingestor."""
    table = lakelog.create(root / "ingested", {"id": pl.Int64, "day": pl.Date}, upkeep=False)
    other = lakelog.create(root / "other", {"id": pl.Int64}, upkeep=False)

    def writing(rows: Any, directory: str = "plain", **options: Any) -> Callable[[], Any]:
        def call() -> None:
            with lakelog.Ingestor(table, root / directory, **options) as ingestor:
                ingestor.write(rows)

        return call

    def deleting(row: dict[str, Any], directory: str, **options: Any) -> Callable[[], Any]:
        def call() -> None:
            with lakelog.Ingestor(table, root / directory, **options) as ingestor:
                ingestor.delete(row)

        return call

    return {
        "Ingestor: no table": lambda: lakelog.Ingestor(root / "none", root / "i"),
        "Ingestor: key column": writing({"id": 1}, "keyed", key="nope"),
        "Ingestor: key": writing({"id": 1}, "keyed", key=[]),
        "Ingestor: seconds": writing({"id": 1}, max_seconds=-1),
        "Ingestor: unknown column": writing({"id": 1, "x": 1}),
        "Ingestor: value of a wrong type": writing({"id": "a"}),
        "Ingestor: values of several types": writing([{"id": 1}, {"id": "a"}]),
        "Ingestor: rows of a wrong type": writing(7),
        "Ingestor: rows as text": writing('{"id": 1}'),
        "Ingestor: a row of a wrong type": writing([7]),
        "Ingestor: lines": writing(b'{"id": 1'),
        "Ingestor: null key": writing({"day": None}, "keyed", key="id"),
        "Ingestor: delete without a key": deleting({"id": 1}, "plain"),
        "Ingestor: delete by more than the key": deleting(
            {"id": 1, "day": None}, "keyed", key="id"
        ),
        "Ingestor: another key": writing({"id": 1}, key="id"),
        "Ingestor: another table": lambda: lakelog.Ingestor(other, root / "plain"),
    }


def _appended(folder: Path, operation: Any, key: Any, value: str | None = "v") -> None:
    with lakelog.WriteAheadLog(folder) as log:
        log.append(operation, key, value)


def text_of(call: Callable[[], Any], root: Path) -> str:
    """The text of the error that a call raises, without parts that vary between runs."""
    try:
        call()
    except LakelogError as error:
        found = f"{type(error).__name__}: {error}".replace(os.fspath(root), "<folder>")
        found = re.sub(r"0x[0-9a-f]+", "0x…", found)
        found = re.sub(r"at least [\d,]{3,} MiB", "at least <n> MiB", found)
        found = re.sub(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>", found)
        return re.sub(r"20\d\d-\d\d-\d\d[T ][\d:.]+(Z|\+00:00)?", "<time>", found)
    raise AssertionError("the call raised no error")


def test_error_texts_equal_the_golden_file(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        calls = of_tables(tmp_path) | of_damage(tmp_path) | of_stores(tmp_path)
        calls |= of_ingestors(tmp_path)
        lines = [f"{name}\n    {text_of(call, tmp_path)}\n" for name, call in calls.items()]
    found = "\n".join(lines)
    if os.environ.get("LAKELOG_REWRITE"):
        TEXTS.write_text(found, "utf-8")
    assert found == TEXTS.read_text("utf-8"), "LAKELOG_REWRITE=1 writes the file again"
