"""Serializability: transactions that pass the checker give the same result as a serial execution.

The transactions are functions of a table of rows. The checker sees only their actions and
predicates, with statistics that are exact, wide, partly missing, or absent.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from lakelog.transaction.conflicts import find_conflict
from lakelog.transaction.pending_commit import ISOLATION_LEVELS
from tests.budget import share_of
from tests.handmade import Action, info, metadata
from tests.handmade import field as column
from tests.model.conflicts import OPERATORS, Predicate, holds
from tests.transaction.conflict_cases import pending, winner
from tests.transaction.test_conflicts_model import as_expr

METADATA = metadata(column("p", "string"), column("x", "long"), partitioned=("p",))
PARTITIONS = ("a", "b", "50% / ü", None)
VALUES = (1, 2, 5, 9, None)

Row = tuple[str | None, int | None]


@dataclass(frozen=True)
class File:
    """A data file: its rows, and the rows (by position) that a deletion vector hides."""

    part: str | None
    values: tuple[int | None, ...]
    statistics: str
    hidden: frozenset[int] = frozenset()
    vector: str | None = None

    @property
    def visible(self) -> dict[int, int | None]:
        return {i: x for i, x in enumerate(self.values) if i not in self.hidden}

    def action(self, kind: str, path: str, *, data_change: bool, complete: bool = True) -> Action:
        body: dict[str, Any] = {"path": path, "dataChange": data_change}
        if complete:
            body["partitionValues"] = {"p": self.part}
        if kind == "add":
            body |= {"size": 1, "modificationTime": 1}
        if complete and self.statistics != "none":
            body["stats"] = json.dumps(self._stats())
        if self.vector is not None:
            where = {"storageType": "u", "pathOrInlineDv": self.vector, "offset": 1}
            body["deletionVector"] = {**where, "sizeInBytes": 4, "cardinality": len(self.hidden)}
        return {kind: body}

    def _stats(self) -> dict[str, Any]:
        known = [x for x in self.values if x is not None]
        stats: dict[str, Any] = {"numRecords": len(self.values)}
        if self.statistics == "count":
            return stats
        stats["nullCount"] = {"x": len(self.values) - len(known)}
        if known:
            wide = 3 if self.statistics == "wide" else 0
            stats["minValues"] = {"x": min(known) - wide}
            if self.statistics != "low":
                stats["maxValues"] = {"x": max(known) + wide}
        if self.statistics == "wide":
            stats["tightBounds"] = False
        return stats


@dataclass(frozen=True)
class State:
    """A table: its files by path, and its transaction identifiers."""

    files: dict[str, File] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)

    def rows(self) -> Counter[Row]:
        return Counter((f.part, x) for f in self.files.values() for x in f.visible.values())


@dataclass
class Run:
    """The reads and actions of a transaction on one state; `name` makes its new paths unique."""

    state: State
    name: str
    statistics: str
    complete: bool
    removed: list[tuple[str, File]] = field(default_factory=list)
    added: list[tuple[str, File]] = field(default_factory=list)
    txns: dict[str, int] = field(default_factory=dict)
    where: list[Predicate] = field(default_factory=list)
    app_ids: set[str] = field(default_factory=set)
    data_change: bool = True

    def read(self, predicate: Predicate) -> dict[str, set[int]]:
        """The matching rows, by position, of every file that has some."""
        self.where.append(predicate)
        found = {
            path: {i for i, x in f.visible.items() if holds(predicate, {"p": f.part, "x": x})}
            for path, f in self.state.files.items()
        }
        return {path: rows for path, rows in found.items() if rows}

    def append(self, part: str | None, values: Sequence[int | None]) -> None:
        if values:
            path = f"{self.name}-{len(self.added)}"
            self.added.append((path, File(part, tuple(values), self.statistics)))

    def remove(self, path: str) -> File:
        file = self.state.files[path]
        self.removed.append((path, file))
        return file

    def actions(self) -> list[Action]:
        changes = self.data_change
        return [
            *(
                f.action("remove", path, data_change=changes, complete=self.complete)
                for path, f in self.removed
            ),
            *(f.action("add", path, data_change=changes) for path, f in self.added),
            *({"txn": {"appId": a, "version": v}} for a, v in self.txns.items()),
        ]

    @property
    def blind(self) -> bool:
        return not self.where and not self.removed

    @property
    def changes_no_rows(self) -> bool:
        wrote = bool(self.added or self.removed or self.txns)
        return not (wrote and (self.data_change or self.txns))

    def applied_to(self, state: State) -> State:
        """The state after these actions; they must be valid in it."""
        files = dict(state.files)
        for path, file in self.removed:
            assert path in files, f"{path} is removed but not in the table"
            assert files.pop(path).vector == file.vector, (
                f"{path} is removed with another deletion vector"
            )
        for path, file in self.added:
            assert path not in files, f"{path} is added twice"
            files[path] = file
        return State(files, {**state.txns, **self.txns})


Body = Callable[[Run], None]


def appends(part: str | None, values: Sequence[int | None]) -> Body:
    return lambda run: run.append(part, values)


def rewrites_without(predicate: Predicate) -> Body:
    def body(run: Run) -> None:
        for path, rows in run.read(predicate).items():
            file = run.remove(path)
            run.append(file.part, [x for i, x in file.visible.items() if i not in rows])

    return body


def hides(predicate: Predicate) -> Body:
    """Deletes by deletion vector: the path stays, the logical file changes."""

    def body(run: Run) -> None:
        for path, rows in run.read(predicate).items():
            file = run.remove(path)
            if left := file.visible.keys() - rows:
                hidden = frozenset(range(len(file.values))) - left
                vector = f"{run.name}-{len(run.added)}"
                run.added.append((path, replace(file, hidden=hidden, vector=vector)))

    return body


def sums_into(predicate: Predicate, part: str | None) -> Body:
    def body(run: Run) -> None:
        found = run.read(predicate)
        values = [run.state.files[p].values[i] for p, rows in found.items() for i in rows]
        run.append(part, [sum(x for x in values if x is not None)])

    return body


def overwrites(part: str | None, values: Sequence[int | None]) -> Body:
    def body(run: Run) -> None:
        for path in run.read(_in_partition(part)):
            run.remove(path)
        run.append(part, values)

    return body


def compacts(part: str | None) -> Body:
    def body(run: Run) -> None:
        run.data_change = False
        files = [run.remove(path) for path in run.read(_in_partition(part))]
        run.append(part, [x for f in files for x in f.visible.values()])

    return body


def appends_once(app_id: str, part: str | None, values: Sequence[int | None]) -> Body:
    def body(run: Run) -> None:
        run.app_ids.add(app_id)
        if app_id not in run.state.txns:
            run.txns[app_id] = 1
            run.append(part, values)

    return body


def _in_partition(part: str | None) -> Predicate:
    return ("is_null", "p", None) if part is None else ("==", "p", part)


parts = st.sampled_from(PARTITIONS)
values = st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)
leaves = st.one_of(
    parts.map(_in_partition),
    st.tuples(st.sampled_from(sorted(OPERATORS)), st.just("x"), st.sampled_from([1, 2, 5, 9])),
    st.just(("is_null", "x", None)),
)
predicates = st.one_of(
    leaves,
    st.tuples(st.just("and"), parts.map(_in_partition), leaves),
    st.tuples(st.just("or"), leaves, leaves),
)
bodies = st.one_of(
    st.builds(appends, parts, values),
    st.builds(rewrites_without, predicates),
    st.builds(hides, predicates),
    st.builds(sums_into, predicates, parts),
    st.builds(overwrites, parts, values),
    st.builds(compacts, parts),
    st.builds(appends_once, st.sampled_from(["app", "other"]), parts, values),
)
statistics = st.sampled_from(["exact", "exact", "wide", "low", "count", "none"])
states = st.lists(st.tuples(parts, values, statistics), max_size=4).map(
    lambda files: State({f"s{i}": File(p, tuple(v), s) for i, (p, v, s) in enumerate(files)})
)


@dataclass(frozen=True)
class Transaction:
    """A function of the table, and how its writer fills the optional fields of the log."""

    body: Body
    statistics: str
    complete: bool

    def run(self, state: State, name: str) -> Run:
        run = Run(state, name, self.statistics, self.complete)
        self.body(run)
        return run


transactions = st.builds(Transaction, bodies, statistics, st.sampled_from([True, True, False]))


def passes(run: Run, won: Run, isolation: str) -> bool:
    """Whether the checker allows `run` to be committed after `won`."""
    tx = pending(
        *run.actions(),
        where=[as_expr(p) for p in run.where],
        app_ids=run.app_ids,
        isolation=isolation,
        read_metadata=METADATA,
    )
    theirs = winner(info("WRITE", isBlindAppend=won.blind), *won.actions())
    return find_conflict(tx, theirs) is None


@pytest.mark.parametrize("isolation", ISOLATION_LEVELS)
@settings(max_examples=share_of(250))
@given(start=states, first=transactions, second=transactions)
def test_two_transactions_without_conflict_are_equivalent_to_a_serial_execution(
    isolation: str, start: State, first: Transaction, second: Transaction
) -> None:
    won = first.run(start, "first")
    ours = second.run(start, "second")
    between = won.applied_to(start)
    if not passes(ours, won, isolation):
        event("conflict")
        return
    after = ours.applied_to(between)

    sequential = second.run(between, "again").applied_to(between)
    serial = [(sequential.rows(), sequential.txns)]
    if ours.changes_no_rows or (isolation == "WriteSerializable" and won.blind):
        # A blind append may be ordered after the transaction that did not read it, and any
        # transaction after one that changes no rows.
        before = ours.applied_to(start)
        last = first.run(before, "last").applied_to(before)
        serial.append((last.rows(), last.txns))
    event("passes, and both write" if won.actions() and ours.actions() else "passes")
    assert (after.rows(), after.txns) in serial


@settings(max_examples=share_of(150))
@given(start=states, winners=st.lists(transactions, max_size=3), last=transactions)
def test_serializable_transaction_without_conflict_is_equivalent_to_a_serial_execution(
    start: State, winners: list[Transaction], last: Transaction
) -> None:
    ours = last.run(start, "ours")
    state = start
    for number, transaction in enumerate(winners):
        won = transaction.run(state, f"winner{number}")
        if not passes(ours, won, "Serializable"):
            event("conflict")
            return
        state = won.applied_to(state)
    sequential = last.run(state, "again").applied_to(state)
    after = ours.applied_to(state)
    if ours.changes_no_rows:
        # It may be ordered first: the winners give the same result after it.
        sequential = state
    assert (after.rows(), after.txns) == (sequential.rows(), sequential.txns)
