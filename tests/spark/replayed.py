"""Rows of a state, from Spark and from lakelog alone, in one form for comparison."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import polars as pl

from lakelog.model import actions
from lakelog.spark.sql_functions import functions_of
from tests.model.compare import rows_of


def comparable(frame: pl.DataFrame) -> list[str]:
    """Rows as texts without nulls, sorted; JSON in ``extra`` as JSON."""
    texts = []
    for row in rows_of(frame):
        kept = {name: value for name, value in row.items() if value is not None}
        if "extra" in kept:
            kept["extra"] = json.loads(kept["extra"])
        texts.append(json.dumps(kept, sort_keys=True))
    return sorted(texts)


def out_of_spark(frame: Any) -> pl.DataFrame:
    """A Spark frame of flattened columns, converted to Polars."""
    return pl.DataFrame(pl.from_arrow(frame.toArrow()))


def tagged(frames: Iterable[Any]) -> Any:
    """Several Spark frames as one, numbered by ``frame``: one query costs less than many."""
    whole = None
    for number, frame in enumerate(frames):
        with_number = frame.withColumn("frame", functions_of(frame).lit(number))
        whole = with_number if whole is None else whole.unionByName(with_number)
    return whole


def by_tag(frame: Any, count: int) -> list[pl.DataFrame]:
    """The frames of `tagged`, separated again."""
    whole = out_of_spark(frame)
    return [whole.filter(pl.col("frame") == n).drop("frame") for n in range(count)]


def local_state(snapshot: Any, columns: Iterable[str] | None = None) -> pl.DataFrame:
    """The state from lakelog without Spark."""
    wanted = tuple(columns) if columns is not None else tuple(actions.schema())
    frames: list[pl.DataFrame] = [actions.empty(wanted), *snapshot.iter_state(wanted)]
    return pl.concat(frames)
