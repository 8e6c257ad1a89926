"""Conflicts with another commit: lakelog and Delta on Spark decide the same.

Both begin a transaction on the same state, the same commit comes first, and both try to commit the
same actions. Delta is called through its own `OptimisticTransaction`, so timing has no effect.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import ConflictError
from tests.spark.reference import delta_log

pytestmark = pytest.mark.reference

Action = tuple[str, dict[str, Any]]
COMMITTED = "committed"


def add(name: str, p: str, *, change: bool = True) -> Action:
    body = {"path": name, "partitionValues": {"p": p}, "size": 1, "modificationTime": 1}
    return "add", body | {"dataChange": change}


def remove(name: str, p: str, *, change: bool = True) -> Action:
    body = {"path": name, "partitionValues": {"p": p}, "deletionTimestamp": 1}
    return "remove", body | {"extendedFileMetadata": True, "size": 1, "dataChange": change}


def owner(name: str) -> Action:
    return "metadata", {"owner": name}


@dataclass(frozen=True)
class Case:
    """The reads and actions of a transaction, and the commit that comes first.

    `reads` are values of the partition column; None is the whole table. Files `a1`, `a2` (partition
    a) and `b1` (partition b) exist.
    """

    ours: tuple[Action, ...]
    theirs: tuple[Action, ...]
    reads: tuple[str | None, ...] = ()
    they_read: bool = False
    app_id: str | None = None

    @property
    def domain(self) -> bool:
        return self.ours[0][0] == "domain"


NEW_A, NEW_B = add("new-a", "a"), add("new-b", "b")
OURS = (add("ours", "c"),)

BOTH_LEVELS = {
    "append after reading a, append to a": Case(OURS, (NEW_A,), ("a",)),
    "append after reading a, append to b": Case(OURS, (NEW_B,), ("a",)),
    "append after reading all, append": Case(OURS, (NEW_B,), (None,)),
    "append after reading a, append to a by one that has read": Case(
        OURS, (NEW_A,), ("a",), they_read=True
    ),
    "delete in a after reading a, append to a": Case((remove("a1", "a"),), (NEW_A,), ("a",)),
    "rearrange a after reading a, append to a": Case(
        (remove("a1", "a", change=False), add("a1c", "a", change=False)), (NEW_A,), ("a",)
    ),
    "metadata after reading all, append": Case((owner("us"),), (NEW_A,), (None,)),
}
ONE_LEVEL = {
    "blind append, blind append": Case(OURS, (NEW_A,)),
    "delete a1, delete a1": Case((remove("a1", "a"),), (remove("a1", "a"),)),
    "delete a1, delete a2": Case((remove("a1", "a"),), (remove("a2", "a"),)),
    "append after reading a, delete a1": Case(OURS, (remove("a1", "a"),), ("a",)),
    "append after reading b, delete a1": Case(OURS, (remove("a1", "a"),), ("b",)),
    "rearrange a, delete a1": Case(
        (remove("a1", "a", change=False), add("a1c", "a", change=False)), (remove("a1", "a"),)
    ),
    "delete a1, rearrange a": Case(
        (remove("a1", "a"),), (remove("a1", "a", change=False), add("a1c", "a", change=False))
    ),
    "metadata, blind append": Case((owner("us"),), (NEW_A,)),
    "blind append, metadata": Case(OURS, (owner("them"),)),
    "metadata, metadata": Case((owner("us"),), (owner("them"),)),
    "append after asking for an app, the app": Case(
        OURS, (("txn", {"appId": "app", "version": 1}),), app_id="app"
    ),
    "append after asking for an app, another app": Case(
        OURS, (("txn", {"appId": "other", "version": 1}),), app_id="app"
    ),
    "domain, the same domain": Case(
        (("domain", {"domain": "d", "configuration": "us"}),),
        (("domain", {"domain": "d", "configuration": "them"}),),
    ),
    "domain, another domain": Case(
        (("domain", {"domain": "d", "configuration": "us"}),),
        (("domain", {"domain": "e", "configuration": "them"}),),
    ),
}

_turns = itertools.count()


class Bench:
    """One table with separate files per case, so that every case starts from the same state."""

    def __init__(self, spark: Any, path: str, isolation: str) -> None:
        self.spark, self.path = spark, path
        self.table = lakelog.create(
            path,
            {"id": pl.Int64, "p": pl.String},
            ["p"],
            configuration={
                "delta.isolationLevel": isolation,
                "delta.feature.domainMetadata": "supported",
            },
        )

    def outcome(self, case: Case, begin: Callable[[Case, str], Callable[[], str]]) -> str:
        """The outcome of a transaction that begins before the case's other commit."""
        turn = f"-{next(_turns)}"
        with self.table.transaction() as tx:
            for action in (add("a1", "a"), add("a2", "a"), add("b1", "b")):
                stage(tx, action, turn)
        commit = begin(case, turn)
        with self.table.transaction() as tx:
            if case.they_read:
                tx.read()
            for action in case.theirs:
                stage(tx, action, turn)
        assert tx.committed
        return commit()

    def lakelog(self, case: Case, turn: str) -> Callable[[], str]:
        tx = self.table.transaction(
            app_id=case.app_id and case.app_id + turn, app_version=1 if case.app_id else None
        )
        for value in case.reads:
            tx.read(None if value is None else pl.col("p") == value + turn)

        def commit() -> str:
            for action in case.ours:
                stage(tx, action, turn)
            try:
                tx.commit()
            except ConflictError as error:
                return type(error).__name__
            # Its application's version came first: nothing is written, and nothing was lost.
            return "ConcurrentTransactionError" if tx.duplicate else COMMITTED

        return commit

    def delta(self, case: Case, turn: str) -> Callable[[], str]:
        from py4j.protocol import Py4JJavaError

        jvm = self.spark._jvm
        log = delta_log(self.spark, self.path)
        tx = log.startTransaction()
        parser = self.spark._jsparkSession.sessionState().sqlParser()
        for value in case.reads:
            if value is None:
                tx.readWholeTable()
            else:
                tx.filterFiles(self._seq(parser.parseExpression(f"p = '{value}{turn}'")), False)
        if case.app_id is not None:
            tx.txnVersion(case.app_id + turn)

        def commit() -> str:
            actions = []
            for action in case.ours:
                kind, body = of_turn(action, turn)
                if kind == "metadata":
                    metadata = json.loads(log.unsafeVolatileSnapshot().metadata().json())
                    metadata["metaData"]["configuration"] |= body
                    tx.updateMetadata(self._action(metadata), False)
                elif kind == "domain":
                    actions.append(self._action({"domainMetadata": body | {"removed": False}}))
                else:
                    actions.append(self._action({kind: body}))
            try:
                tx.commit(self._seq(*actions), manual_update(jvm))
            except Py4JJavaError as error:
                name = error.java_exception.getClass().getSimpleName()
                return str(name).replace("Exception", "Error")
            return COMMITTED

        return commit

    def _action(self, body: dict[str, Any]) -> Any:
        text = json.dumps(body)
        return self.spark._jvm.org.apache.spark.sql.delta.actions.Action.fromJson(text)

    def _seq(self, *items: Any) -> Any:
        jvm = self.spark._jvm
        held = jvm.java.util.ArrayList()
        for item in items:
            held.add(item)
        return jvm.scala.jdk.javaapi.CollectionConverters.asScala(held).toSeq()


def manual_update(jvm: Any) -> Any:
    """Delta's name for an operation of another program."""
    name = "org.apache.spark.sql.delta.DeltaOperations$ManualUpdate$"
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return jvm.java.lang.Class.forName(name, True, loader).getField("MODULE$").get(None)


def of_turn(action: Action, turn: str) -> Action:
    """The action with the turn in its names."""
    kind, body = action
    body = dict(body)
    for key in ("path", "appId", "domain"):
        if key in body:
            body[key] += turn
    if "partitionValues" in body:
        body["partitionValues"] = {"p": body["partitionValues"]["p"] + turn}
    if kind == "metadata":
        body = {"owner": body["owner"] + turn}
    return kind, body


def stage(tx: lakelog.Transaction, action: Action, turn: str) -> None:
    kind, body = of_turn(action, turn)
    if kind == "add":
        tx.add(**body)
    elif kind == "remove":
        tx.remove(**body)
    elif kind == "metadata":
        tx.set_metadata(configuration=body)
    elif kind == "txn":
        tx.set_txn(**body)
    else:
        tx.set_domain(**body)


@pytest.fixture(scope="module")
def benches(delta: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bench]:
    root = tmp_path_factory.mktemp("conflicts")
    return {
        level: Bench(delta, str(root / level), level)
        for level in ("WriteSerializable", "Serializable")
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("level", "name"),
    [
        *itertools.product(("WriteSerializable", "Serializable"), BOTH_LEVELS),
        *(("WriteSerializable", name) for name in ONE_LEVEL),
    ],
)
def test_both_engines_have_the_same_outcome(
    benches: dict[str, Bench], level: str, name: str
) -> None:
    bench, case = benches[level], (BOTH_LEVELS | ONE_LEVEL)[name]
    theirs = bench.outcome(case, bench.delta)
    ours = bench.outcome(case, bench.lakelog)
    if case.domain and theirs == "ConcurrentTransactionError":
        theirs = "ConcurrentDomainError"  # Delta has no class of its own for it
    assert ours == theirs
