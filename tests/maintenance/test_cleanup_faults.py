"""Cleanup that fails, loses answers or is killed at each of its operations.

Every retained version reads as before, no version reads wrongly, and the next cleanup completes the
work.
"""

from __future__ import annotations

import datetime as dt
import shutil
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from lakelog import LakelogError, LakelogWarning, OutcomeUnknownError, Table, UnavailableError
from lakelog.log.context import Log
from lakelog.maintenance.cleanup import CleanupPlan, CleanupReport
from lakelog.storage import open_store
from lakelog.testing import Fault, InjectingStore, Kind, Rule
from tests.budget import points
from tests.maintenance.logs import MadeLog, content
from tests.transaction.tables import DIALECTS, runtime

PROMISED = range(6, 9)
SEEN = (1, 2, 4, 5, *PROMISED)
WRITES: tuple[Kind, ...] = ("put", "put_if_absent", "move", "delete")


_judged: set[tuple[tuple[str, bytes], ...]] = set()
"""Logs that have been checked: failures at many points leave the same files."""


class PowerCut(BaseException):
    """Ends the process; no code catches it."""


class KilledStore(InjectingStore):
    """A store whose process ends at an operation, before or after it is done."""

    def __init__(self, store: Any, nth: int, *, after: bool) -> None:
        super().__init__(store)
        self.left = nth
        self.after = after

    def _write(self, kind: Kind, path: str, effect: Any, **options: Any) -> object:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self.after):
            raise PowerCut
        done = super()._write(kind, path, effect, **options)
        if self.left == 0:
            raise PowerCut
        return done


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> MadeLog:
    """Nine commits: an old multi-part checkpoint, an old and a new V2 one, unrelated files."""
    root = tmp_path_factory.mktemp("prepared") / "table"
    made = MadeLog(root, writer_features=("v2Checkpoint",))
    made.commits(60 - i for i in range(9))
    made.checkpoint(2, 50, "multipart")
    made.checkpoint(4, 50, "v2-json")
    made.checkpoint(6, 50, "v2-parquet")
    made.put(f"{1:020d}.{3:020d}.compacted.json", _compacted(made), 50)
    made.put(f"{1:020d}.checkpoint.0000000002.0000000003.parquet", b"orphan", 50)
    made.put(f".lakelog-{'a' * 32}.tmp", b"x", 5)
    return made


def _compacted(made: MadeLog) -> bytes:
    """The actions of commits 1 to 3 in sequence: not reconciled, so readers ignore the file."""
    return b"".join(made.file(f"{v:020d}.json").read_bytes() for v in (1, 2, 3))


class Trial:
    """A copy of the prepared log, and its expected content."""

    def __init__(self, prepared: MadeLog, where: Path, before: dict[int, Any] | None) -> None:
        self.made = MadeLog(where, clock=prepared.clock)
        shutil.copytree(prepared.root, where)
        self.before = self.read() if before is None else before
        self.names = self.made.names()

    def over(self, store: Any) -> Table:
        return Table(Log(store, DIALECTS["delta"], self.made.clock), runtime())

    def plain(self) -> Table:
        return self.over(open_store(str(self.made.root)))

    def read(self) -> dict[int, Any]:
        """The content of each version, or the kind of the error if it cannot be read."""
        found: dict[int, Any] = {}
        for version in SEEN:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", LakelogWarning)
                    found[version] = content(self.plain(), version)
            except LakelogError as error:
                found[version] = error
        return found

    def check(self) -> None:
        """Assert that retained versions are unchanged; others too, or reported as deleted."""
        names = sorted(self.made.names())
        seen = tuple((name, self.made.file(name).read_bytes()) for name in names)
        if seen in _judged:
            return
        now = self.read()
        for version, held in now.items():
            if version in PROMISED:
                assert held == self.before[version]
            else:
                assert held == self.before[version] or isinstance(held, LakelogError)
        _judged.add(seen)
        theirs = DeltaTable(str(self.made.root))
        assert theirs.version() == 8
        paths = pl.DataFrame(theirs.get_add_actions())["path"]
        assert sorted(paths) == [row[0] for row in now[8][1:] if len(row) == 3]

    def finish(self) -> None:
        """The next cleanup completes the work, once no quarantine waits for sidecars."""
        self.plain().purge_quarantines(dt.timedelta(0))
        report = self.plain().cleanup(plan=False)
        assert isinstance(report, CleanupReport)
        assert not report.errors
        self.check()
        assert self.made.names() == {
            *(f"{v:020d}.json" for v in PROMISED),
            "_last_checkpoint",
            *(n for n in self.names if f"{6:020d}.checkpoint" in n),
            *self.sidecars_of_the_cutoff(),
        }

    def sidecars_of_the_cutoff(self) -> set[str]:
        log = self.plain().log
        [kept] = [c for c in log.list_all().checkpoints if c.version == 6]
        files = log.dialect.open_checkpoint(log.store, kept).files_read()
        return {path.removeprefix("_delta_log/") for path in files}


@pytest.fixture
def trials(prepared: MadeLog, tmp_path: Path) -> Callable[[], Trial]:
    numbers = count()
    before = Trial(prepared, tmp_path / "first" / "table", None).before

    def trial() -> Trial:
        number = next(numbers)
        return Trial(prepared, tmp_path / f"trial-{number}" / "table", before)

    return trial


def rehearsed(
    trial: Trial, kinds: tuple[Kind, ...], *, quarantine: bool = False
) -> list[tuple[str, str]]:
    """The operations of these kinds that a cleanup without faults makes."""
    store = InjectingStore(open_store(str(trial.made.root)))
    trial.over(store).cleanup(plan=False, quarantine=quarantine)
    return [(kind, path) for kind, path in store.operations if kind in kinds]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("fault", "quarantine"), [("fail", False), ("fail", True), ("lost", True), ("unknown", False)]
)
def test_failed_write_at_any_point_leaves_retained_versions_intact(
    trials: Callable[[], Trial], fault: Fault, quarantine: bool
) -> None:
    operations = rehearsed(trials(), WRITES, quarantine=quarantine)
    for turn, nth in enumerate(points(operations)):
        policy = ("continue", "fail")[turn % 2]
        trial = trials()
        store = InjectingStore(open_store(str(trial.made.root)), [Rule(fault, WRITES, nth=nth)])
        try:
            report = trial.over(store).cleanup(
                plan=False, quarantine=quarantine, failure_policy=policy
            )
        except (UnavailableError, OutcomeUnknownError):
            trial.check()
        else:
            assert isinstance(report, CleanupReport)
            trial.check()
            writes = [kind for kind, _ in store.operations if kind in WRITES]
            assert policy == "continue" or not report.errors
            if len(writes) < nth:
                assert nth > 14
                return
        if turn % 4 == 0:
            trial.finish()
    pytest.fail("no run completed without a fault")


def test_failed_read_at_any_point_leaves_retained_versions_intact(
    trials: Callable[[], Trial],
) -> None:
    reads: tuple[Kind, ...] = ("list", "walk", "read", "open", "stat")
    for turn, nth in enumerate(points(rehearsed(trials(), reads))):
        trial = trials()
        store = InjectingStore(open_store(str(trial.made.root)), [Rule("fail", reads, nth=nth)])
        try:
            trial.over(store).cleanup(plan=False)
        except LakelogError:
            # Nothing is deleted before all reads, except those for sidecars at the end.
            deleted = trial.names - trial.made.names()
            assert not deleted or all("_sidecars" not in name for name in deleted)
        if sum(kind in reads for kind, _ in store.operations) < nth:
            assert nth > 14
            return
        if turn % 4 == 0:
            trial.check()
    pytest.fail("no run completed without a fault")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("quarantine", [False, True])
def test_cleanup_killed_at_any_point_leaves_retained_versions_intact(
    trials: Callable[[], Trial], after: bool, quarantine: bool
) -> None:
    operations = rehearsed(trials(), WRITES, quarantine=quarantine)
    for turn, nth in enumerate(points(operations)):
        trial = trials()
        store = KilledStore(open_store(str(trial.made.root)), nth, after=after)
        try:
            trial.over(store).cleanup(plan=False, quarantine=quarantine)
        except PowerCut:
            trial.check()
            if quarantine and turn % 2:
                _undo_all(trial)
            elif turn % 3 == 0:
                trial.finish()
        else:
            assert nth > 14
            return
    pytest.fail("no run completed without a fault")


def _undo_all(trial: Trial) -> None:
    """Undo every quarantine; afterwards every version reads as before."""
    table = trial.plain()
    for id_ in table.quarantines()["id"]:
        outcomes = set(table.undo_cleanup(id_)["outcome"])
        assert outcomes <= {"back", "there"}
    assert trial.made.names() == trial.names
    now = trial.read()
    assert {v: held for v, held in now.items() if not isinstance(held, LakelogError)} == {
        v: held for v, held in trial.before.items() if not isinstance(held, LakelogError)
    }


def test_undo_that_fails_at_any_point_can_be_repeated(trials: Callable[[], Trial]) -> None:
    trial = trials()
    moved = trial.plain().cleanup(plan=False, quarantine=True)
    assert isinstance(moved, CleanupReport)
    assert moved.quarantine is not None
    without_faults = InjectingStore(open_store(str(trial.made.root)))
    trial.over(without_faults).undo_cleanup(moved.quarantine)
    for nth in points(each for each in without_faults.operations if each[0] in WRITES):
        trial = trials()
        report = trial.plain().cleanup(plan=False, quarantine=True)
        assert isinstance(report, CleanupReport)
        assert report.quarantine is not None
        store = InjectingStore(open_store(str(trial.made.root)), [Rule("fail", WRITES, nth=nth)])
        try:
            trial.over(store).undo_cleanup(report.quarantine)
        except LakelogError:
            trial.check()
            trial.plain().undo_cleanup(report.quarantine)
            assert trial.made.names() == trial.names
        else:
            assert nth > 14
            assert trial.read() == trial.before
            return
    pytest.fail("no run completed without a fault")


def test_failed_deletion_stops_later_deletions(trials: Callable[[], Trial]) -> None:
    trial = trials()
    path = f"_delta_log/{3:020d}.json"
    store = InjectingStore(
        open_store(str(trial.made.root)), [Rule("fail", "delete", times=None, path=path)]
    )
    report = trial.over(store).cleanup(plan=False)
    assert isinstance(report, CleanupReport)
    assert [error.path for error in report.errors] == [path]
    left = trial.made.names()
    assert {f"{v:020d}.json" for v in range(6)} & left == {f"{3:020d}.json"}
    assert [n for n in left if f"{2:020d}.checkpoint" in n]  # commits before checkpoints
    assert path not in set(report.files["path"])
    trial.finish()


def test_a_read_only_store_is_refused(prepared: MadeLog) -> None:
    class Refusing(InjectingStore):
        refusal = "it is read only"

    table = Table(
        Log(Refusing(open_store(str(prepared.root))), DIALECTS["delta"], prepared.clock), runtime()
    )
    found = table.cleanup()
    assert isinstance(found, CleanupPlan)
    with pytest.raises(NotImplementedError, match="read only"):
        found.apply()
