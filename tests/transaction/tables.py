"""Tables that tests write to, on stores that can fail on request."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog import Table
from lakelog.dialects import delta, indextables
from lakelog.dialects.base import Dialect
from lakelog.log.context import Log
from lakelog.storage import open_store
from lakelog.storage.base import StoreWrapper
from lakelog.testing import InjectingStore, Rule
from lakelog.transaction.runtime import Runtime

DIALECTS: dict[str, Dialect] = {"delta": delta.DIALECT, "indextables": indextables.DIALECT}
SCHEMA = {"id": pl.Int64, "day": pl.String}
NOW_MS = 1_800_000_000_000

each_format = pytest.mark.parametrize("form", list(DIALECTS))
each_store = pytest.mark.parametrize("kind", ["local", "memory"])

NO_CHECKPOINTS = {
    "delta": {"delta.checkpointInterval": "1000000"},
    "indextables": {"spark.indextables.checkpoint.interval": "1000000"},
}
"""Properties, by format, of a table that gets no checkpoint by itself."""

_names, _seeds = itertools.count(), itertools.count()


def location(kind: str, tmp_path: Path) -> str:
    """A new location for a table: ``local`` or ``memory``."""
    if kind == "memory":
        return f"memory://commit-tests-{next(_names)}/table"
    return f"{tmp_path}/table-{next(_names)}"


def runtime(waits: list[float] | None = None) -> Runtime:
    """A runtime that never waits, with predictable identifiers."""

    def sleep(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)

    return Runtime(sleep, random.Random(next(_seeds)))


def new_table(
    where: str,
    form: str = "delta",
    *,
    partition_by: Sequence[str] = (),
    configuration: dict[str, str] | None = None,
    schema: Any = None,
) -> Table:
    """A table of columns id and day."""
    return lakelog.create(
        where,
        SCHEMA if schema is None else schema,
        partition_by=partition_by,
        format=form,
        configuration=configuration or {},
    )


def open_with_rules(
    where: str, form: str, rules: Iterable[Rule] = ()
) -> tuple[Table, InjectingStore]:
    """The table at a location, over a store that applies fault rules; each has its own log tail."""
    store = InjectingStore(open_store(where), rules)
    return Table(Log(store, DIALECTS[form]), runtime()), store


class ReadOnly(StoreWrapper):
    """A store without safe commits."""

    refusal = "it has no conditional requests"


def paths(table: Table, version: int | None = None) -> list[str]:
    """Paths of the live files, sorted."""
    files = table.snapshot(version).files().select("path").collect()
    return sorted(files["path"].to_list())


def append(table: Table, *names: str, **options: Any) -> int | None:
    """Add files in one transaction; its version."""
    with table.transaction(**options) as tx:
        for name in names:
            tx.add(path=name, size=1)
    return tx.version


def infos(table: Table) -> list[dict[str, Any]]:
    """commitInfo bodies, by version."""
    log = table.log
    found = log.dialect.decode(log.store, log.list_all().commits, files=False).commit_infos
    return [info.body for info in found]
