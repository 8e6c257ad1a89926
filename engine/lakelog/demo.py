"""The demonstration table: orders of a shop that does not exist, with a commit per hour.

A stream appends orders, a nightly load adds a batch, housekeeping compacts small files, privacy
requests delete the orders of a customer, and one deletion is a mistake that is restored. All
commits are lakelog's own; the clock is simulated.
"""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from lakelog.dialects.registry import named, registered
from lakelog.errors import InvalidInputError
from lakelog.input_validation import require_int
from lakelog.log.context import Log
from lakelog.storage import open_store
from lakelog.storage.local import LocalStore
from lakelog.table import Table
from lakelog.transaction.create import NewTable, TableDefinition
from lakelog.transaction.runtime import Runtime

__all__ = [
    "MIN_COMMITS",
    "Calendar",
    "append_commit",
    "commit_ms",
    "local_folder",
    "make_table",
    "plan",
    "set_times",
]

MIN_COMMITS = 40
"""The least number of commits that includes a compaction, a restored deletion and a checkpoint."""

_CREATE, _ADD_COLUMNS, _SET_PROPERTIES = "CREATE TABLE", "ADD COLUMNS", "SET TBLPROPERTIES"
_STREAM, _BATCH = "STREAMING UPDATE", "WRITE"
_OPTIMIZE, _DELETE, _RESTORE = "OPTIMIZE", "DELETE", "RESTORE"
_OPTIMIZE_EVERY, _DELETE_EVERY, _BATCH_EVERY = 24, 17, 12

_USERS = {_STREAM: "stream", _BATCH: "nightly", _OPTIMIZE: "housekeeping", _DELETE: "privacy"}
_OWNER = "dana"
_STREAM_ID = "8c2f1f0e-orders-stream"

_FIRST = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_HOUR_MS = 3_600_000
_DAY = dt.timedelta(days=1)

_SCHEMA = {
    "order_id": pl.Int64(),
    "customer": pl.String(),
    "amount": pl.Decimal(10, 2),
    "quantity": pl.Int32(),
    "placed_at": pl.Datetime("us", "UTC"),
    "day": pl.Date(),
    "region": pl.String(),
}
_REGIONS, _SHARES = ("apac", "eu", "us"), (0.2, 0.4, 0.4)
_CUSTOMERS = 500
_PROPERTIES = {"delta.checkpointInterval": "100"}
_LATER_PROPERTIES = {
    "delta.deletedFileRetentionDuration": "interval 14 days",
    "delta.logRetentionDuration": "interval 60 days",
}


@dataclass(frozen=True)
class Calendar:
    """The schedule of commits.

    Attributes:
        operations: The operation of each commit; the index is the version.
        mistake_version: The deletion that the next commit restores.
        checkpoint_version: Version of the checkpoint.
    """

    operations: tuple[str, ...]
    mistake_version: int
    checkpoint_version: int


def commit_ms(version: int) -> int:
    """Commit time of a version, in milliseconds since the Unix epoch: one per hour."""
    return int(_FIRST.timestamp() * 1000) + version * _HOUR_MS


def plan(commits: int) -> Calendar:
    """The calendar of a table with this number of commits."""
    require_int("commits", commits, MIN_COMMITS)
    operations = [_regular(version) for version in range(commits)]
    # The last deletion in the first half that no compaction follows directly.
    mistake = max(
        version
        for version in range(commits // 2 + 1)
        if operations[version] == _DELETE and operations[version + 1] != _OPTIMIZE
    )
    operations[0], operations[mistake + 1] = _CREATE, _RESTORE
    for first, operation in ((commits // 3, _ADD_COLUMNS), (commits // 2, _SET_PROPERTIES)):
        operations[operations.index(_STREAM, first)] = operation
    return Calendar(tuple(operations), mistake, commits * 2 // 3 // 10 * 10)


def _regular(version: int) -> str:
    if version % _OPTIMIZE_EVERY == _OPTIMIZE_EVERY - 1:
        return _OPTIMIZE
    if version % _DELETE_EVERY == _DELETE_EVERY - 1:
        return _DELETE
    return _BATCH if version % _BATCH_EVERY == 3 else _STREAM


def make_table(directory: str | os.PathLike[str], commits: int = 150, seed: int = 7) -> str:
    """Write the demonstration table into a folder of the local disk, and return its path.

    A Delta table of orders, partitioned by ``day`` and ``region``: appends by a stream (with a txn)
    and a nightly batch, compactions, deletions, one of them restored, a column added, properties
    set, and a checkpoint at two thirds. The same seed gives the same rows and commit times; the
    names of files differ.

    Raises:
        InvalidInputError: There are less than `MIN_COMMITS` commits, the seed is negative, or the
            folder is not empty, or not on the local disk.
        UnavailableError: The folder cannot be written.

    >>> import lakelog
    >>> lakelog.open(make_table("orders", commits=60)).version()
    59
    """
    calendar = plan(commits)
    require_int("seed", seed, 0)
    root = local_folder(directory)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InvalidInputError(
            "the folder for the table is not empty", path=str(root), hint="use a new folder"
        )
    shop = _Shop(root)
    for version, operation in enumerate(calendar.operations):
        shop.commit(version, operation, seed, is_mistake=version == calendar.mistake_version)
        if version == calendar.checkpoint_version:
            shop.table.checkpoint()
    set_times(root / "_delta_log", range(commits))
    return str(root)


def local_folder(location: str | os.PathLike[str]) -> Path:
    """The folder of a path, ``~`` allowed, or of a ``file:`` URL; else InvalidInputError."""
    store = open_store(location)
    if not isinstance(store, LocalStore):
        raise InvalidInputError(
            "the demonstration writes to the local disk only",
            expected="a path",
            found=os.fspath(location),
        )
    return Path(store.root)


def append_commit(directory: str | os.PathLike[str], version: int, seed: int = 7) -> int:
    """Write one more append by the stream, as `version`; returns the number of files."""
    shop = _Shop(local_folder(directory))
    shop.columns = list(shop.table.snapshot().schema.names)
    added = shop.append(version, _STREAM, np.random.default_rng([seed, version]))
    set_times(shop.root / "_delta_log", range(version, version + 1))
    return added


def set_times(log: Path, versions: range) -> None:
    """Set the modification times of log files, which are commit times, to those of the clock."""
    for file in log.iterdir():
        if file.name[:20].isdecimal() and int(file.name[:20]) in versions:
            seconds = commit_ms(int(file.name[:20])) / 1000
            os.utime(file, (seconds, seconds))


class _Shop:
    """Writes the commits of a table, each at its time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._version = 0
        self._log = Log(
            open_store(str(root)), named("delta"), clock=lambda: commit_ms(self._version)
        )
        self.table = Table(self._log)
        self.columns = list(_SCHEMA)

    def commit(self, version: int, operation: str, seed: int, *, is_mistake: bool) -> None:
        """Write a commit."""
        self._version = version
        random = np.random.default_rng([seed, version])
        user = _USERS.get(operation, _OWNER)
        alter = self.table.alter.described(user_name=user)
        match operation:
            case "CREATE TABLE":
                definition = TableDefinition(
                    _SCHEMA, ("day", "region"), _PROPERTIES, "orders", "orders of a shop"
                )
                new = NewTable(self._log, Runtime(), registered(), definition)
                new.commit(commit={"user_name": user})
            case "ADD COLUMNS":
                alter.add_columns({"coupon": pl.String})
                self.columns.append("coupon")
            case "SET TBLPROPERTIES":
                alter.set_properties(_LATER_PROPERTIES)
            case "OPTIMIZE":
                self.table.compact(user_name=user)
            case "DELETE":
                where = pl.col("quantity") > 1 if is_mistake else self._orders_of_customer(random)
                self.table.delete(where, user_name=user)
            case "RESTORE":
                self.table.restore(version - 2, user_name=user)
            case _:
                self.append(version, operation, random)

    def append(self, version: int, operation: str, random: np.random.Generator) -> int:
        """Append orders; returns the number of files."""
        self._version = version
        count = 300 if operation == _BATCH else int(random.integers(20, 60))
        is_stream = operation == _STREAM
        report = self.table.append(
            _orders(version, count, random).select(self.columns),
            operation=operation,
            user_name=_USERS[operation],
            app_id=_STREAM_ID if is_stream else None,
            app_version=version if is_stream else None,
        )
        return report.num_files

    def _orders_of_customer(self, random: np.random.Generator) -> pl.Expr:
        customers = self.table.scan().select(pl.col("customer").unique().sort()).collect()
        return pl.col("customer") == str(random.choice(customers["customer"].to_numpy()))


def _orders(version: int, count: int, random: np.random.Generator) -> pl.DataFrame:
    """The orders of an hour, of which a few of the day before arrive late now and then."""
    hour = _FIRST + dt.timedelta(hours=version)
    late = np.arange(count) < (2 if version > 24 and random.random() < 0.2 else 0)
    seconds = pl.lit(pl.Series(random.integers(0, 3_600, count)))
    placed = pl.lit(hour) + pl.duration(seconds=seconds)
    return pl.select(
        order_id=pl.int_range(count) + version * 1_000,
        customer=pl.format("c{}", pl.Series(random.integers(0, _CUSTOMERS, count))),
        amount=pl.Series(random.lognormal(5, 1, count)).cast(pl.Decimal(10, 2)),
        quantity=pl.Series(random.geometric(0.3, count)).cast(pl.Int32),
        placed_at=placed - pl.when(pl.Series(late)).then(_DAY).otherwise(dt.timedelta()),
        region=pl.Series(random.choice(_REGIONS, count, p=_SHARES)),
        coupon=pl.when(pl.Series(random.random(count) < 0.1)).then(pl.lit("WELCOME")),
    ).with_columns(day=pl.col("placed_at").dt.date())
