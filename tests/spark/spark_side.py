"""Spark's side of a write, without Spark.

It calls the same methods in the same order, and pickles the same objects. Failures that cost
seconds in Spark are cheap here.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StringType, StructType

import lakelog
from lakelog import LakelogError, Table
from lakelog.spark.options import parse_options
from lakelog.spark.stream_sink import StreamWriter, stream_writer
from lakelog.spark.writing import BatchWriter, Message, batch_writer

SCHEMA = StructType().add("id", LongType()).add("day", StringType())


def new_table(where: Path, *, partition_by: Sequence[str] = ("day",), **kwargs: Any) -> Table:
    return lakelog.create(
        where, {"id": pl.Int64, "day": pl.String}, partition_by, upkeep=False, **kwargs
    )


def rows(*ids: int) -> pa.RecordBatch:
    """Rows of two days."""
    return pa.record_batch(
        {"id": pa.array(ids, pa.int64()), "day": [f"d{number % 2}" for number in ids]}
    )


def writer(where: Path | str, *, overwrite: bool = False, **options: Any) -> BatchWriter:
    return batch_writer(parse_options({"path": str(where), **options}, "write"), SCHEMA, overwrite)


def sink(where: Path | str, *, overwrite: bool = False, **options: Any) -> StreamWriter:
    return stream_writer(parse_options({"path": str(where), **options}, "sink"), SCHEMA, overwrite)


def task(made: BatchWriter | StreamWriter, *batches: pa.RecordBatch) -> Message:
    """One attempt of one task, which gets its own copy of the writer."""
    copy = pickle.loads(cloudpickle.dumps(made))
    message = copy.write(iter(batches))
    assert isinstance(message, Message)
    sent: Message = pickle.loads(cloudpickle.dumps(message))
    return sent


def finish(made: BatchWriter, messages: Sequence[Message | None]) -> LakelogError | None:
    """Spark's steps after the tasks; returns the error that the user sees."""
    made = pickle.loads(cloudpickle.dumps(made))
    if None not in messages:
        try:
            made.commit(list(messages))
        except LakelogError as error:
            made.abort(list(messages))
            return error
        return None
    made.abort(list(messages))
    return None


def ids(where: Path | str) -> list[int]:
    """The table's rows, each read from its file."""
    frame = lakelog.open(where).snapshot().scan().collect()
    assert frame.filter(pl.col("day") != pl.format("d{}", pl.col("id") % 2)).is_empty()
    return sorted(frame["id"])


def on_disk(where: Path | str) -> set[str]:
    """All data files on disk, hidden ones included."""
    found = set()
    for folder, folders, files in os.walk(where):
        folders[:] = [name for name in folders if name != "_delta_log"]
        found |= {os.path.relpath(os.path.join(folder, name), where) for name in files}
    return found


def named(where: Path | str) -> set[str]:
    """Data files in the latest version."""
    return set(lakelog.open(where).snapshot().files().select("path").collect()["path"])


def orphans(where: Path | str) -> set[str]:
    """Files that are in no version.

    Asserts that no file is missing, and that vacuum would delete exactly the others.
    """
    table = lakelog.open(where)
    ever = set(table.actions().filter(pl.col("actionType") == "add").collect()["path"])
    there = on_disk(where)
    assert ever <= there, "a file that the log names is missing"
    return there - ever
