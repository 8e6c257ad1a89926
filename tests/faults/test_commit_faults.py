"""Commits under faults: after any failure, at any operation, a table reads as before or as after.
Every way to write (`commit_cases`) is run repeatedly, failing at its first operation, then at its
second, and so on until it succeeds. Each time the table is opened and read again, the writer's
result is compared with its content, and another writer commits.
"""

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest

import lakelog
from lakelog import CommitOutcomeUnknown, ConflictError, Transaction, UnavailableError
from lakelog.storage import LogStore
from lakelog.testing import WRITES, Fault, InjectingStore, Kind, Rule
from tests.faults.commit_cases import (
    FOLDERS,
    RUN_IDS,
    RUNS,
    Case,
    Expected,
    State,
    commit_again,
    copy_to,
    expect,
    read,
    store_replaced,
)
from tests.faults.faulty_os import CALLS, FaultyOs, os_replaced

Location = Callable[[], str]
Verdict = int | None | BaseException

FAULTS: dict[Fault, tuple[Kind, ...]] = {
    "fail": (),
    "unknown": WRITES,
    "lost": WRITES,
    "lost_taken": ("put_if_absent",),
    "late": WRITES,
}
"""Faults, and the operations that have them; none means all."""


BASIC = ("create delta", "create indextables", "append", "app id", "rebased")
"""Cases that represent the others for kinds of faults or stores that add little."""

STORE_RUNS = [
    (store, times, case, form)
    for store, times in (("local", 1), ("local", None), ("memory", 1))
    for case, form in RUNS
    if (store, times) == ("local", 1) or case.name in BASIC
]
STORE_RUN_IDS = [
    f"{store}-{'once' if times else 'from then on'}-{case}-{form}"
    for store, times, case, form in STORE_RUNS
]


def locations(kind: str, folder: Path) -> Location:
    """Yields unused locations."""
    numbers = count()
    space = uuid.uuid4().hex
    base = f"memory://{space}" if kind == "memory" else str(folder)
    return lambda: f"{base}/{next(numbers)}/t"


@pytest.fixture(autouse=True)
def _stores_count_as_local_disk() -> Iterator[None]:
    """A faulty store counts as local disk: writers check names before they list."""
    with mock.patch("lakelog.transaction.log_tail.on_local_disk", return_value=True):
        yield


class FaultyStoreFactory:
    """Wraps the opened store in a faulty store, and keeps that."""

    def __init__(self, kind: Callable[..., InjectingStore], *args: Any) -> None:
        self._kind, self._args = kind, args
        self.store: InjectingStore

    def __call__(self, store: LogStore) -> LogStore:
        self.store = self._kind(store, *self._args)
        return self.store


def attempt(write: Callable[[str], int | None], location: str) -> Verdict:
    """The version that a writer reports, or its error."""
    try:
        return write(location)
    except (ConflictError, UnavailableError, CommitOutcomeUnknown) as verdict:
        return verdict


def check(expected: Expected, verdict: Verdict, found: State, what: str) -> None:
    """The table reads as before or as after, in agreement with the writer."""
    possible = [*expected.befores, expected.after]
    assert found in possible, f"{what}: the state is neither before nor after: {found}"
    if isinstance(verdict, CommitOutcomeUnknown):
        return
    if isinstance(verdict, BaseException):
        assert found in expected.befores, f"{what}: was written, though {verdict!r}"
    else:
        assert found == expected.after, f"{what}: was not written, though acknowledged"
        assert expected.after is not None
        assert verdict == expected.after["version"]


def count_commits_with_app_id(location: str) -> int:
    """Number of commits that record version 5 of the application."""
    actions = lakelog.open(location).actions().collect()
    if "appId" not in actions.columns:
        return 0
    return actions.filter((actions["appId"] == "app") & (actions["txnVersion"] == 5)).height


@pytest.mark.sampled(4, keep=("case",))
@pytest.mark.parametrize(("store_kind", "times", "case", "form"), STORE_RUNS, ids=STORE_RUN_IDS)
def test_commit_under_store_faults_exists_completely_or_not_at_all(
    tmp_path: Path, store_kind: str, times: int | None, case: Case, form: str
) -> None:
    fresh = locations(store_kind, tmp_path)
    expected = expect(fresh(), case, form)
    for fault, kinds in FAULTS.items():
        for nth in count(1):
            location = fresh()
            copy_to(location, expected.files)
            made = FaultyStoreFactory(InjectingStore, [Rule(fault, kinds, nth=nth, times=times)])
            with store_replaced(made):
                verdict = attempt(case.write, location)
            store = made.store
            affected = [kind for kind, _ in store.operations if not kinds or kind in kinds][
                nth - 1 :
            ]
            what = f"{fault} at {nth} of {store.operations}"
            found = read(location)
            check(expected, verdict, found, what)
            if times and fault != "fail" and affected[:1] == ["put_if_absent"]:
                assert isinstance(verdict, int), f"{what}: a lost answer is read back: {verdict!r}"
            if fault == "late":
                store.arrive()
                found = read(location)
                check(expected, verdict, found, f"{what}, after all writes arrived")
            if case.app and not isinstance(verdict, int):
                again = case.write(location)
                assert (again is None) == (found == expected.after), what
                store.arrive()
                found = read(location)
            if case.app:
                assert count_commits_with_app_id(location) == 1, what
            commit_again(location, form, found)
            if not affected:
                assert found == expected.after, what
                break


@pytest.mark.sampled(4, keep=("case",))
@pytest.mark.parametrize("late", [False, True], ids=["never arrives", "arrives late"])
@pytest.mark.parametrize(("case", "form"), RUNS, ids=RUN_IDS)
def test_commit_whose_outcome_cannot_be_read_raises_commit_outcome_unknown(
    tmp_path: Path, case: Case, form: str, late: bool
) -> None:
    expected = expect(str(tmp_path / "clean"), case, form)
    location = str(tmp_path / "t")
    copy_to(location, expected.files)
    commits = f"{FOLDERS[form]}/*.json"
    stores: list[InjectingStore] = []

    def inject(store: LogStore) -> LogStore:
        stores.append(InjectingStore(store, [Rule("late" if late else "unknown", "put_if_absent")]))
        rules = [Rule("fail", "read", path=commits, times=None), Rule("fail", "put", times=None)]
        stores.append(AfterFirstPut(stores[-1], rules))
        return stores[-1]

    with store_replaced(inject), pytest.raises(CommitOutcomeUnknown) as raised:
        case.write(location)
    assert read(location) in expected.befores
    assert raised.value.version is not None
    assert raised.value.path
    assert "txnId" in str(raised.value.expected)
    stores[0].arrive()
    found = read(location)
    assert expected.after is not None
    # If another writer committed first, the late commit may conflict with its commit.
    arrives = late and raised.value.version == expected.after["version"]
    assert found == expected.after if arrives else found in expected.befores
    if case.app:
        case.write(location)
        assert count_commits_with_app_id(location) == 1


class AfterFirstPut(InjectingStore):
    """Its rules apply after the first creation of a file."""

    def _begin(self, kind: Kind, path: str, trips: int = 1) -> Fault | None:
        if not any(k == "put_if_absent" for k, _ in self.operations):
            self.operations.append((kind, path))
            return None
        return super()._begin(kind, path, trips)


class _Interrupting(InjectingStore):
    """Raises KeyboardInterrupt before or after its `nth` operation."""

    def __init__(self, store: LogStore, nth: int, after: bool) -> None:
        super().__init__(store)
        self._nth, self._after = nth, after

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name not in {"list_from", "list_folders", "read", "stat", "put_if_absent", "put"}:
            return attribute

        def interrupted(*args: Any) -> Any:
            now = len(self.operations) + 1 == self._nth
            if now and not self._after:
                self.operations.append((name, args[0]))
                raise KeyboardInterrupt
            result = attribute(*args)
            if now:
                raise KeyboardInterrupt
            return result

        return interrupted


class _RecordedTransaction(Transaction):
    """Records every transaction that was created."""

    created: ClassVar[list[Transaction]] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.created.append(self)


@pytest.mark.sampled(4, keep=("case",))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("case", "form"), RUNS, ids=RUN_IDS)
def test_interrupted_commit_exists_completely_or_not_at_all_and_is_reported(
    tmp_path: Path, case: Case, form: str, after: bool
) -> None:
    expected = expect(str(tmp_path / "clean"), case, form)
    for nth in count(1):
        location = str(tmp_path / str(nth))
        copy_to(location, expected.files)
        made = FaultyStoreFactory(_Interrupting, nth, after)
        _RecordedTransaction.created.clear()
        interrupt: KeyboardInterrupt | None = None
        with (
            store_replaced(made),
            mock.patch("lakelog.table_transaction.Transaction", _RecordedTransaction),
        ):
            try:
                case.write(location)
            except KeyboardInterrupt as raised:
                interrupt = raised
        what = f"interrupted at {nth} of {made.store.operations}"
        found = read(location)
        assert found in [*expected.befores, expected.after], what
        if interrupt is None:
            assert found == expected.after, what
            break
        written = found == expected.after
        notes = " ".join(getattr(interrupt, "__notes__", ()))
        assert ("committed as version" in notes) == written or not after, (what, notes)
        # Other writers have a store without faults.
        own = [
            tx for tx in _RecordedTransaction.created if isinstance(tx._log.store, _Interrupting)
        ]
        if own:
            assert (own[-1].version is not None) == written, what
        commit_again(location, form, found)


# --- faults of the operating system ---------------------------------------------------------------


@contextlib.contextmanager
def failing_os(calls: tuple[str, ...], nth: int, number: int, torn: bool) -> Iterator[FaultyOs]:
    def inject(_name: str) -> None:
        raise OSError(number, "injected")

    with os_replaced(FaultyOs(calls, nth, inject, torn=torn)) as faulty:
        yield faulty


OS_FAULTS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("disk full", ("write", "open", "mkdir", "link"), errno.ENOSPC),
    ("input or output fails", CALLS, errno.EIO),
    ("fsync fails", ("fsync",), errno.EIO),
    ("link fails", ("link",), errno.EIO),
    ("permissions", ("open", "mkdir", "link", "unlink"), errno.EACCES),
    ("hard links are missing", ("link",), errno.EPERM),
)
OS_RUNS = [
    (fault, case, form)
    for fault in OS_FAULTS
    for case, form in RUNS
    if case.name in BASIC[:3] or (fault[1] == CALLS and case.app)
]


@pytest.mark.parametrize(
    ("fault", "case", "form"), OS_RUNS, ids=[f"{fault[0]}-{c}-{f}" for fault, c, f in OS_RUNS]
)
def test_commit_under_disk_faults_exists_completely_or_not_at_all(
    tmp_path: Path, fault: tuple[str, tuple[str, ...], int], case: Case, form: str
) -> None:
    _, calls, number = fault
    expected = expect(str(tmp_path / "clean"), case, form)
    for torn in (False, True) if "write" in calls else (False,):
        for nth in count(1):
            location = str(tmp_path / f"{nth}-{torn}")
            copy_to(location, expected.files)
            with failing_os(calls, nth, number, torn) as faulty:
                verdict = attempt(case.write, location)
            what = f"{faulty.made[-1:]} failed at {nth} of {faulty.made}"
            found = read(location)
            check(expected, verdict, found, what)
            if case.app:
                case.write(location)
                assert count_commits_with_app_id(location) == 1, what
                found = read(location)
            commit_again(location, form, found)
            if len(faulty.made) < nth:
                break
