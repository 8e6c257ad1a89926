"""A state machine of concurrent transactions, compared with the plain model of a table.

It includes lost responses, checkpoints, cleanup, time travel and reopened tables.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import polars as pl
import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import lakelog
from lakelog import ConflictError, Snapshot, Table, Transaction, UnavailableError
from lakelog.dialects.delta import DIALECT
from lakelog.log.context import Log
from lakelog.storage import LogStore, open_store
from lakelog.testing import Fault, InjectingStore
from lakelog.transaction.runtime import Runtime
from tests import checkpoint_writer
from tests.budget import share_of
from tests.handmade import field, schema
from tests.model import replay
from tests.model import table as model
from tests.model.compare import rows_of
from tests.model.conflicts import ERRORS
from tests.model.observe import disagreements, replay_from_its_base

EXAMPLES = int(os.environ.get("LAKELOG_EXAMPLES", share_of(20, 5)))
SCHEMA = schema(field("p", "string"), field("x", "long"))
PROPERTIES = {"delta.enableDeletionVectors": "true", "delta.feature.domainMetadata": "supported"}
PATHS = ("f0", "f 1", "é%2", "d/f3", "f4")
PARTITIONS = ("a", "b", None)
VECTORS = ("ab^-aqEH.-t@S}K{vb[*k^", "zz^-aqEH.-t@S}K{vb[*k^")
APPS = ("app", "other")
DOMAINS = ("mine", "yours")
FAULTS: tuple[Fault | None, ...] = (None, None, "lost", "lost_taken", "late", "unknown", "fail")
STATS = '{"numRecords":9}'
SESSIONS = 2
A_WHILE_S = 120.0

KINDS = "add add remove remove vector read read-all txn domain property".split()
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4
)
"""The action, and two numbers that select its arguments."""

LAYOUTS = ("classic", "multipart", "v2-json", "v2-parquet")
SESSION = st.integers(0, SESSIONS - 1)
APP = st.none() | st.tuples(st.sampled_from(APPS), st.integers(0, 4))


class Armed(InjectingStore):
    """Applies a fault to the next file that is created, once it is armed."""

    def __init__(self, store: LogStore) -> None:
        super().__init__(store)
        self.armed: Fault | None = None

    def _begin(self, kind: Any, path: str, trips: int = 1) -> Fault | None:
        fault = super()._begin(kind, path, trips)
        if kind != "put_if_absent" or self.armed is None:
            return fault
        fault, self.armed = self.armed, None
        if fault == "fail":
            raise UnavailableError("the store failed before the operation (injected)", path=path)
        return fault


class Clock:
    """Seconds that advance only when a caller waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Session:
    """A table that a client has opened."""

    def __init__(self, root: Path, clock: Clock, seed: int) -> None:
        self.store = Armed(open_store(root))
        runtime = Runtime(clock.sleep, random.Random(seed), clock)
        self.table = Table(Log(self.store, DIALECT), runtime)
        self.snapshot: Snapshot = self.table.snapshot()


class OpenTransaction:
    """An open transaction, in lakelog and in the model."""

    def __init__(self, session: Session, plain: model.Table, isolation: str, app: Any) -> None:
        self.session = session
        self.real: Transaction = session.table.transaction(*(app or ()), isolation=isolation)
        self.pending = model.Pending(plain.version, isolation, app=app)
        self.before = plain.state()
        self.metadata = plain.metadata(plain.version)
        if app is not None:
            self._write("txn", {"appId": app[0], "version": app[1]})

    def _write(self, kind: str, body: dict[str, Any]) -> None:
        self.pending.actions.append({kind: body})

    def _has(self, kind: str, **fields: Any) -> bool:
        wanted = fields.items()
        return any(kind in a and wanted <= a[kind].items() for a in self.pending.actions)

    def _touches(self, path: str) -> bool:
        return any(self._has(kind, path=quote(path)) for kind in ("add", "remove"))

    def _pick(self, number: int) -> tuple[model.Key, dict[str, Any]] | None:
        """A live file that this transaction has not touched, and its identifying fields."""
        live = [key for key in sorted(self.before.files, key=str) if not self._touches(key[0])]
        if not live:
            return None
        path, where = live[number % len(live)]
        return (path, where), {"path": path} | ({} if where is None else vector(where))

    def do(self, what: str, i: int, j: int) -> None:
        """One step; invalid ones are skipped."""
        getattr(self, "do_" + what.replace("-", "_"))(i, j)

    def do_add(self, i: int, j: int) -> None:
        path = PATHS[i % len(PATHS)]
        if self._touches(path) or any(path == p and dv for p, dv in self.before.files):
            return
        self._add({"path": path, "size": 10 * i + j, "partitionValues": {"p": PARTITIONS[j % 3]}})

    def _add(self, body: dict[str, Any]) -> None:
        self.real.add(**body, stats=STATS)
        self._write(
            "add", {**body, "path": quote(body["path"]), "stats": STATS, "dataChange": True}
        )

    def do_remove(self, i: int, j: int) -> None:
        picked = self._pick(i)
        if picked is not None:
            size, values = self.before.files[picked[0]]
            known = {"size": size, "partitionValues": values} if j % 2 else {}
            self._remove(picked[1] | known)

    def _remove(self, body: dict[str, Any]) -> None:
        self.real.remove(**body)
        self._write("remove", {**body, "path": quote(body["path"]), "dataChange": True})

    def do_vector(self, i: int, j: int) -> None:
        picked = self._pick(i)
        if picked is None or picked[0][1] == VECTORS[j % 2]:
            return
        size, values = self.before.files[picked[0]]
        new = {"path": picked[0][0], "size": size, "partitionValues": values}
        self._remove(picked[1])
        self._add(new | vector(VECTORS[j % 2]))

    def do_read(self, i: int, _: int) -> None:
        value = PARTITIONS[i % 2]
        found = self.real.read(pl.col("p") == value).select("path", "dvPathOrInline").collect()
        expected = {k for k, (_, values) in self.before.files.items() if values["p"] == value}
        assert set(found.rows()) == expected
        self.pending.predicates.append(("==", "p", value))

    def do_read_all(self, _: int, __: int) -> None:
        self.real.read()
        self.pending.whole = True

    def do_txn(self, i: int, j: int) -> None:
        if not self._has("txn", appId=APPS[i % 2]):
            self.real.set_txn(appId=APPS[i % 2], version=j)
            self._write("txn", {"appId": APPS[i % 2], "version": j})

    def do_domain(self, i: int, j: int) -> None:
        domain = DOMAINS[i % 2]
        if self._has("domainMetadata", domain=domain):
            return
        if domain in self.before.domains and j % 2:
            self.real.remove_domain(domain)
            text = self.before.domains[domain]
        else:
            text = f"value {j}"
            self.real.set_domain(domain=domain, configuration=text)
        removed = domain in self.before.domains and bool(j % 2)
        body = {"domain": domain, "configuration": text, "removed": removed}
        self._write("domainMetadata", body)

    def do_property(self, i: int, _: int) -> None:
        before = self.metadata["configuration"]
        if before.get("owner") == str(i) or self._has("metaData"):
            return
        self.real.set_metadata(configuration={"owner": str(i)})
        self._write("metaData", {**self.metadata, "configuration": {**before, "owner": str(i)}})


def vector(where: str) -> dict[str, Any]:
    body = {"storageType": "u", "pathOrInlineDv": where, "offset": 1}
    return {"deletionVector": {**body, "sizeInBytes": 4, "cardinality": 1}}


class Transactions(RuleBasedStateMachine):
    """Each rule applies an operation to lakelog and to the model; both must have the same state."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.seeds = iter(range(1_000_000))
        self.checkpoints: set[int] = set()
        self.first_commit = 0
        self.steps = 0
        self.open_transactions: list[OpenTransaction] = []
        self.patch: Any = None

    @initialize(local=st.booleans(), timestamps=st.booleans())
    def create(self, local: bool, timestamps: bool) -> None:
        if local:
            # On local disk, the next commits are read instead of listed.
            self.patch = mock.patch("lakelog.transaction.log_tail.on_local_disk", return_value=True)
            self.patch.start()
        properties = PROPERTIES | ({"delta.enableInCommitTimestamps": "true"} if timestamps else {})
        made = lakelog.create(self.root, SCHEMA, ["p"], configuration=properties)
        protocol, metadata = made.snapshot().protocol, made.snapshot().metadata
        self.plain = model.Table(
            {
                "minReaderVersion": protocol.min_reader_version,
                "minWriterVersion": protocol.min_writer_version,
                "readerFeatures": list(protocol.reader_features or ()),
                "writerFeatures": list(protocol.writer_features or ()),
            },
            {
                "schemaString": SCHEMA,
                "partitionColumns": ["p"],
                "configuration": dict(metadata.configuration),
            },
            {"p": str},
            {"p": "p", "x": "x"},
        )
        self.sessions = [self.session() for _ in range(SESSIONS)]
        first = OpenTransaction(self.sessions[0], self.plain, "WriteSerializable", None)
        for number in range(3):
            first.do("add", number, number)
        self.commit(first, None)

    def session(self) -> Session:
        return Session(self.root, self.clock, next(self.seeds))

    def teardown(self) -> None:
        if self.patch is not None:
            self.patch.stop()
        try:
            if hasattr(self, "plain"):
                snapshot = lakelog.open(self.root).snapshot()
                state = replay_from_its_base(self.root, None, snapshot)
                assert disagreements(state, snapshot) == []
                self.check_state(snapshot, self.plain.version)
        finally:
            shutil.rmtree(self.root)

    # --- transactions

    @rule(
        session=SESSION,
        steps=STEPS,
        serializable=st.booleans(),
        app=APP,
        others=st.lists(STEPS, max_size=2),
        fault=st.sampled_from(FAULTS),
        stays_open=st.booleans(),
    )
    def run_transaction(
        self,
        session: int,
        steps: list[Any],
        serializable: bool,
        app: Any,
        others: list[list[Any]],
        fault: Fault | None,
        stays_open: bool,
    ) -> None:
        """One transaction, and others that commit first; it is committed now or much later."""
        transaction = self.begin(session, steps, serializable, app)
        for number, other in enumerate(others):
            self.commit(self.begin(number, other, serializable=False, app=None), None)
        if stays_open:
            self.open_transactions.append(transaction)
        else:
            self.commit(transaction, fault)

    @precondition(lambda self: self.open_transactions)
    @rule(number=st.integers(0, 100), fault=st.sampled_from(FAULTS), abandon=st.booleans())
    def finish(self, number: int, fault: Fault | None, abandon: bool) -> None:
        """End an open transaction; sometimes by an exception."""
        transaction = self.open_transactions.pop(number % len(self.open_transactions))
        if abandon and number < 20:
            with pytest.raises(KeyError), transaction.real:
                raise KeyError
            assert transaction.real.version is None
        else:
            self.commit(transaction, fault)

    def begin(
        self, session: int, steps: list[Any], serializable: bool, app: Any
    ) -> OpenTransaction:
        isolation = "Serializable" if serializable else "WriteSerializable"
        transaction = OpenTransaction(self.sessions[session], self.plain, isolation, app)
        for step in steps:
            transaction.do(*step)
        return transaction

    def commit(self, transaction: OpenTransaction, fault: Fault | None) -> None:
        store = transaction.session.store
        store.armed = fault
        before = list(self.plain.commits)
        verdict = self.plain.commit(transaction.pending)
        try:
            answer: Any = transaction.real.commit()
        except ConflictError as conflict:
            answer = conflict
        except UnavailableError as failure:
            answer = failure
        injected, store.armed = fault is not None and store.armed is None, None
        event(f"{answer.kind if isinstance(answer, lakelog.LakelogError) else type(answer)}")
        if isinstance(answer, UnavailableError):
            assert injected
            assert fault == "fail"
            self.plain.commits = before
        elif getattr(answer, "rule", None) == "commits_cleaned_up":
            assert transaction.pending.read_version < self.first_commit
            self.plain.commits = before
        elif isinstance(answer, ConflictError):
            assert answer.rule == verdict
            assert type(answer).__name__ == ERRORS[str(verdict)]
            assert transaction.real.version is None
        else:
            assert answer == verdict
            assert transaction.real.version == answer
            assert transaction.real.duplicate == (
                answer is None and bool(transaction.pending.actions)
            )
        if isinstance(answer, int):
            self.check_commit(answer)

    def check_commit(self, version: int) -> None:
        """Assert that every action is in its commit once."""
        lines = (self.root / f"_delta_log/{version:020d}.json").read_text().splitlines()
        written = [json.loads(line) for line in lines]
        assert list(written[0]) == ["commitInfo"]
        expected = self.plain.commits[version]
        assert (
            written[0]["commitInfo"]["isBlindAppend"]
            == (expected[0]["commitInfo"]["isBlindAppend"])
        )
        assert sorted(map(brief, written[1:])) == sorted(map(brief, expected[1:]))

    # --- other clients

    @rule(
        what=st.sampled_from(("reopen", *LAYOUTS)),
        number=st.integers(0, 100),
        seconds=st.sampled_from([0.0, 10.0, A_WHILE_S]),
        flag=st.booleans(),
    )
    def maintain(self, what: str, number: int, seconds: float, flag: bool) -> None:
        """Time advances, and a client opens the table again, or writes a checkpoint."""
        self.clock.sleep(seconds)
        if what == "reopen":
            self.sessions[number % SESSIONS] = self.session()
        else:
            self.checkpoint(number, what, point=flag, clean_up=number % 3 == 0)

    def checkpoint(self, number: int, layout: str, point: bool, clean_up: bool) -> None:
        versions = self.readable_versions()
        version = versions[number % len(versions)]
        if version not in self.checkpoints:
            self.checkpoints.add(version)
            state = replay.replay(self.root, version)
            # No two of them may choose the same names.
            rng = random.Random(1000 * version + number)
            checkpoint_writer.write(self.root, state, layout, rng)
            if point:
                hint = {"version": version, "size": len(state.files)}
                (self.root / "_delta_log/_last_checkpoint").write_text(json.dumps(hint))
        if clean_up:
            self.clean_up()

    def clean_up(self) -> None:
        """Delete the commits below the last checkpoint, long after they were written."""
        self.clock.sleep(A_WHILE_S)
        for version in range(self.first_commit, max(self.checkpoints)):
            (self.root / f"_delta_log/{version:020d}.json").unlink()
        self.first_commit = max(self.checkpoints)

    # --- reading

    def readable_versions(self) -> list[int]:
        return replay.list_log(self.root).rebuildable()

    @invariant()
    def table_equals_the_model(self) -> None:
        """Compares one of three views per step, because an error in a log persists."""
        self.steps += 1
        (self.check_latest, self.check_old, self.check_updated)[self.steps % 3]()

    def check_latest(self) -> None:
        self.check_state(lakelog.open(self.root).snapshot(), self.plain.version)

    def check_old(self) -> None:
        versions = self.readable_versions()
        version = versions[self.steps * 7 % len(versions)]
        table = lakelog.open(self.root)
        found = [v for first, last in table.versions() for v in range(first, last + 1)]
        assert found == versions
        self.check_state(table.snapshot(version), version)
        if self.first_commit == 0:
            timestamp = replay.commit_times(self.root)[version]
            assert table.snapshot(timestamp=timestamp).version == version

    def check_updated(self) -> None:
        session = self.sessions[self.steps // 3 % SESSIONS]
        session.snapshot = session.snapshot.update()
        self.check_state(session.snapshot, self.plain.version)

    def check_state(self, snapshot: Snapshot, version: int) -> None:
        expected = self.plain.state(version)
        assert snapshot.version == version
        names = ("path", "dvPathOrInline", "size", "partitionValues")
        files = rows_of(snapshot.files().select(names))
        assert len(files) == len(expected.files)
        assert {
            (f["path"], f["dvPathOrInline"]): (f["size"], f["partitionValues"]) for f in files
        } == expected.files
        tombstones = snapshot.tombstones().select(names[:2]).collect().rows()
        assert sorted(tombstones, key=str) == sorted(expected.tombstones, key=str)
        apps = snapshot.transactions().select("appId", "txnVersion").collect().rows()
        assert sorted(apps) == sorted(expected.apps.items())
        domains = snapshot.domains().select("domain", "domainConfiguration").collect().rows()
        assert sorted(domains) == sorted(expected.domains.items())
        assert snapshot.metadata.configuration == expected.configuration


def brief(action: dict[str, Any]) -> str:
    """The content of an action, without times."""
    [(kind, body)] = action.items()
    file = model.key_of(body) if "path" in body else None
    names = ("size", "appId", "version", "domain", "configuration", "removed")
    return f"{kind} {file} {json.dumps([body.get(name) for name in names], sort_keys=True)}"


def test_transactions_equal_the_plain_model() -> None:
    run_state_machine_as_test(
        Transactions, settings=settings(max_examples=EXAMPLES, stateful_step_count=25)
    )
