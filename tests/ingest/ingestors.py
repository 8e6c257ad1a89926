"""A table for ingestors, ingestors that commit on request, and a table whose store fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

import lakelog
from lakelog.errors import UnavailableError
from lakelog.testing import InjectingStore

SCHEMA = {"id": pl.Int64, "name": pl.String, "at": pl.Datetime("us", "UTC")}


def quiet(table: lakelog.Table, directory: Path, **options: Any) -> lakelog.Ingestor:
    """An Ingestor that commits only on request."""
    return lakelog.Ingestor(table, directory, **{"max_seconds": 3600, "sync": "none", **options})


def ids(rows: pl.LazyFrame | pl.DataFrame) -> list[int]:
    return sorted(rows.lazy().select("id").collect()["id"].to_list())


class FailingTable:
    """A table whose store fails while `fails` is true."""

    def __init__(self, table: lakelog.Table) -> None:
        self.fails = False
        owner = self

        class Store(InjectingStore):
            def __getattribute__(self, name: str) -> Any:
                if owner.fails and name in {"list_from", "read", "put_if_absent", "read_many"}:
                    raise UnavailableError("the store is down")
                return super().__getattribute__(name)

        self.table = lakelog.open(store=Store(table.log.store), upkeep=False)
