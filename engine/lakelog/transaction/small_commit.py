"""A shorter commit path for transactions that only add and remove a few files, without special
table features.

Most commits of a busy table have one or two files, for which the dozens of queries over frames cost
as much as for thousands. Here rows are processed one by one, at a tenth of the cost. Actions that
are not clearly valid are left to the general path, which reports errors; property tests compare
both, byte by byte.

Source: Delta protocol, Add File and Remove File; Partition Value Serialization; Transaction
Identifiers.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
import polars as pl

from lakelog.dialects.base import Dialect
from lakelog.dialects.json_layout import Leaf, Wire
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import LakelogError
from lakelog.lazy import cached_property
from lakelog.model import actions, contract
from lakelog.model.actions import FILE_ACTIONS
from lakelog.model.metadata import Metadata
from lakelog.skipping.statistics import count_of
from lakelog.skipping.values import HIVE_NULL
from lakelog.transaction import file_rules, operations, write_support
from lakelog.transaction.action_input import rows_frame

MOST_ROWS = 64
"""Maximum number of actions of a transaction on the fast path."""

_SUSPECT = re.compile(file_rules.SUSPECT)
_NOTHING = actions.concat([])

_RULED_BY_ROWS = (
    "appendOnly",
    "changeDataFeed",
    "inCommitTimestamp",
    *write_support.UNCHECKED_FEATURES,
)
"""Features that constrain file actions or their order while they are active."""

_RULED_BY_SUPPORT = (
    "rowTracking",
    "clustering",
    "materializePartitionColumns",
    "columnarCommits",
)
"""Features that constrain file actions or their order as soon as they are supported."""


def _is_date(text: str) -> bool:
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
        return False
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _digits(most: int) -> Callable[[str], bool]:
    """Matches whole numbers of at most this many digits, which always fit the type."""
    pattern = re.compile(rf"-?\d{{1,{most}}}", re.ASCII)
    return lambda text: pattern.fullmatch(text) is not None


_FITS: Mapping[str, Callable[[str], bool]] = {
    "string": lambda _: True,
    "date": _is_date,
    "boolean": lambda text: text in {"true", "false"},
    "byte": _digits(2),
    "short": _digits(4),
    "integer": _digits(9),
    "long": _digits(18),
}
"""Check for clearly valid partition values of a type. Values of other types take the
general path.
"""


@dataclass(frozen=True)
class PlainTable:
    """An ordinary table: type and nullability of each partition column."""

    dialect: Dialect
    partitions: Mapping[str, tuple[Callable[[str], bool], bool]]

    @staticmethod
    def of(configured: TableConfiguration) -> PlainTable | None:
        """The table of a configuration that lakelog may write; None if it is not plain."""
        try:
            dialect = configured.dialect
            configured.rules.check_lists_of_table(configured.protocol, "")
            if not dialect.small_commit_columns or _has_rules(configured):
                return None
            metadata, partitions = configured.metadata, {}
            for column in metadata.partition_columns:
                field = metadata.schema.field(column)
                if field is None or field.name != column:
                    return None
                if not isinstance(field.type, contract.Primitive):
                    return None
                fits = _FITS.get(field.type.name)
                if fits is None:
                    return None
                partitions[column] = fits, field.nullable
        except LakelogError:
            return None
        return PlainTable(dialect, partitions)

    def _admits(self, values: object) -> bool:
        """Whether an add's partition values are clearly valid for the partition columns."""
        if not isinstance(values, dict) or len(values) != len(self.partitions):
            return False
        hive = self.dialect.hive_null
        for column, (fits, nullable) in self.partitions.items():
            if column not in values:
                return False
            text = values[column]
            is_null = text is None or text == "" or (hive and text == HIVE_NULL)
            if not (nullable if is_null else fits(text)):
                return False
        return True

    def take(
        self, rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]] = ()
    ) -> SmallCommit | None:
        """Rows on the fast path; None if they need the general path."""
        if not 0 < len(rows) <= MOST_ROWS:
            return None
        if others and [row["actionType"] for row in others] != ["txn"]:
            return None
        paths = frozenset(row["path"] for row in rows)
        if len(paths) < len(rows) or not all(map(self._is_plain, rows)):
            return None
        try:
            lines = b"".join(_spelled(self.dialect, row) for row in (*others, *rows))
        except TypeError:  # a lone surrogate
            return None
        return SmallCommit(tuple(rows), paths, lines, tuple(others))

    def _is_plain(self, row: Mapping[str, Any]) -> bool:
        kind = row["actionType"]
        if kind not in FILE_ACTIONS:
            return False
        if not row.keys() - {"actionType"} <= self.dialect.small_commit_columns[kind]:
            return False
        if _SUSPECT.search(row["path"]):
            return False
        if any(row.get(column, 0) < 0 for column in file_rules.NOT_NEGATIVE):
            return False
        if self.dialect.is_varying(row["path"]):
            return False  # the log's text of the path has to be looked up
        if kind == "remove":
            return True
        if "size" not in row or not self._admits(row["partitionValues"]):
            return False
        stats = row.get("stats")
        return stats is None or file_rules.problem_of_statistics(stats) is None


@dataclass(frozen=True)
class SmallCommit:
    """A few checked file actions of one commit: rows, paths, lines, also those of `others`."""

    rows: tuple[Mapping[str, Any], ...]
    paths: frozenset[str]
    lines: bytes
    others: tuple[Mapping[str, Any], ...] = ()

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The same rows as a narrow frame, for checks of several commits."""
        return rows_frame(self.rows)

    @cached_property
    def meta(self) -> pl.DataFrame:
        """The other actions as a narrow frame."""
        return rows_frame(self.others) if self.others else _NOTHING

    @property
    def adds_only(self) -> bool:
        """Whether none of them is a remove."""
        return all(row["actionType"] == "add" for row in self.rows)

    def operation(self, metadata: Metadata) -> operations.Operation:
        """As `operations.infer`."""
        return operations.of_files(
            any(row["actionType"] == "add" for row in self.rows),
            self.adds_only,
            any(row["dataChange"] for row in self.rows),
            metadata,
        )

    def metrics(self) -> dict[str, int]:
        """As `operations.metrics`."""
        adds = [row for row in self.rows if row["actionType"] == "add"]
        removes = [row for row in self.rows if row["actionType"] == "remove"]
        found: dict[str, int] = {}
        if adds:
            found |= {"numFiles": len(adds), "numOutputBytes": sum(row["size"] for row in adds)}
            if any("numRecords" in row for row in adds):
                counts = [row.get("numRecords") for row in adds]
            else:
                counts = [count_of(row.get("stats")) for row in adds]
            counted = [count for count in counts if count is not None]
            if len(counted) == len(adds):
                found["numOutputRows"] = sum(counted)
        if removes:
            lost = sum(row.get("size", 0) for row in removes)
            found |= {"numRemovedFiles": len(removes), "numRemovedBytes": lost}
        return found


def _has_rules(configured: TableConfiguration) -> bool:
    """Whether a feature of the table constrains file actions."""
    return (
        configured.supports(*_RULED_BY_SUPPORT)
        or any(configured.is_active(name) for name in _RULED_BY_ROWS)
        or configured.column_mapping != "none"
    )


@cache
def _order(dialect: Dialect, kind: str) -> tuple[tuple[str, str], ...]:
    """JSON names of an action's fields with their columns, in the order of the contract."""
    fields = Wire.of(dialect.contract_key).wrappers[kind].fields
    return tuple(
        (name, child.column)
        for name, child in fields.items()
        if isinstance(child, Leaf) and child.column in dialect.small_commit_columns[kind]
    )


def _spelled(dialect: Dialect, row: Mapping[str, Any]) -> bytes:
    """One line of JSON; fields in the order of the contract."""
    kind = row["actionType"]
    body = {name: row[column] for name, column in _order(dialect, kind) if column in row}
    if "path" in body:
        body["path"] = dialect.encode_path(body["path"])
    return orjson.dumps({kind: body}, option=orjson.OPT_APPEND_NEWLINE)
