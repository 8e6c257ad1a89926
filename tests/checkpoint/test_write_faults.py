"""Checkpoints under faults: after any failure, at any operation, the table reads as before, no
checkpoint is incomplete, and the next attempt succeeds. Each layout is written repeatedly, failing
at the first operation of the store, then at the second, and so on until it succeeds.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from lakelog.checkpoint.verify import verify_one
from lakelog.checkpoint.write import write_checkpoint
from lakelog.errors import CheckpointWriteError, LakelogError, UnavailableError
from lakelog.snapshot import Snapshot
from lakelog.storage import LogStore, open_store
from lakelog.storage.base import StoreWrapper
from lakelog.testing import WRITES, Fault, InjectingStore, Rule
from lakelog.testing import Kind as Operation
from tests.budget import points
from tests.checkpoint.tables import (
    CLASSIC,
    EARLIER,
    FLATTENED_PARTS,
    JSON,
    JSON_PARTS,
    KINDS,
    LATEST,
    MULTIPART,
    V2_JSON,
    Kind,
    log_at,
    make,
    over,
    state_of,
)

HIDDEN = re.compile(r"(.*/)?\.lakelog-[0-9a-f]{32}\.tmp")
ORPHAN = re.compile(
    r"_sidecars/[0-9a-f-]{36}\.parquet"  # that no manifest names
    r"|\d{20}\.checkpoint\.\d{10}\.\d{10}\.parquet"  # parts, not all of them
    r"|\d{20}\.checkpoint\.[0-9a-f]{12}\.\d{5}\.json"
    r"|_checkpoints/\d{20}\.checkpoint\.(json|\d{10}\.\d{10}\.parquet)"
)
RUNS: list[tuple[Fault, Sequence[Operation], int | None]] = [
    ("fail", (), 1),
    ("fail", WRITES, None),
    ("unknown", WRITES, 1),
    ("unknown", ("move",), None),
    ("lost", WRITES, 1),
    ("lost", ("move", "put"), None),
    ("late", WRITES, 1),
    ("late", ("move", "put"), None),
]


FIRST = (CLASSIC, RUNS[0])
"""Every operation of the simplest layout, including reads; the others begin with the writes."""


def names(root: Path, kind: Kind) -> set[str]:
    folder = root / kind.dialect.log_folder
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def contents(root: Path, kind: Kind) -> dict[str, bytes]:
    folder = root / kind.dialect.log_folder
    return {name: (folder / name).read_bytes() for name in names(root, kind)}


Shape = tuple[tuple[str, bytes], ...]
RANDOM = rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{12}"
_checked: set[tuple[Kind, bool, Shape]] = set()
_retried: set[tuple[Kind, Shape]] = set()


def shape(root: Path, kind: Kind) -> Shape:
    """Every file of the log, without random names and texts. Many faults leave the same state,
    which is checked only once.
    """
    found = contents(root, kind).items()
    return tuple(
        sorted(
            (re.sub(RANDOM, b"*", name.encode()).decode(), re.sub(RANDOM, b"*", content))
            for name, content in found
        )
    )


def check(root: Path, kind: Kind, before: Any, earlier: dict[str, bytes], report: Any) -> None:
    """The table is unchanged, and each visible checkpoint is correct."""
    if report is None and contents(root, kind) == earlier:
        return
    assert report is None or report.version == LATEST
    checked = (kind, report is None, shape(root, kind))
    if checked in _checked:
        return
    log = log_at(root, kind.dialect)
    assert state_of(log) == before
    listing = log.list_all()
    for checkpoint in (c for c in listing.checkpoints if c.version == LATEST):
        verdict = verify_one(log, checkpoint)
        assert verdict.verdict == "proved", verdict
    folder = root / kind.dialect.log_folder
    for name, content in earlier.items():
        if name != "_last_checkpoint":
            assert (folder / name).read_bytes() == content
    pointed = kind.dialect.pointed_version((folder / "_last_checkpoint").read_bytes())
    seen = {c.version for c in listing.checkpoints}
    assert pointed in {EARLIER, LATEST} & seen
    if report is not None:
        assert LATEST in seen
    named = {p for c in listing.checkpoints for p in c.paths}
    for name in names(root, kind) - set(earlier):
        if name == f"{LATEST:020d}.crc":
            compared = Snapshot.open(log, LATEST).version_checksum()
            assert compared is not None
            assert compared["agrees"].all()
            continue
        path = f"{kind.dialect.log_folder}/{name}"
        assert path in named or HIDDEN.fullmatch(name) or ORPHAN.fullmatch(name), name
    _checked.add(checked)


def write_again(root: Path, kind: Kind, before: Any, earlier: dict[str, bytes]) -> None:
    """The next attempt succeeds, whatever state the last one left."""
    left = (kind, shape(root, kind))
    if names(root, kind) == set(earlier) or left in _retried:
        return
    again = write_checkpoint(log_at(root, kind.dialect), layout=kind.layout, options=kind.options)
    assert again.verified
    check(root, kind, before, earlier, again)
    _retried.add(left)


def attempt(store: LogStore, kind: Kind) -> Any:
    try:
        return write_checkpoint(over(store, kind.dialect), layout=kind.layout, options=kind.options)
    except UnavailableError:
        return None


CASES = [
    pytest.param(kind, *run, id=f"{kind}-{run[0]}-{'-'.join(run[1]) or 'all'}-{run[2]}")
    for kind in KINDS
    for run in RUNS
    # Faults can differ only for several files, and for files that name other files.
    if (kind in (MULTIPART, V2_JSON, FLATTENED_PARTS) and run != RUNS[0])
    or run == RUNS[4]
    or (kind, run) == FIRST
]


@pytest.mark.sampled(6, keep=("kind",))
@pytest.mark.parametrize(("kind", "fault", "operations", "times"), CASES)
def test_table_is_the_same_after_any_failure(
    kind: Kind, fault: Fault, operations: Sequence[Operation], times: int | None, tmp_path: Path
) -> None:
    whole = make(kind, tmp_path / "whole")
    before = state_of(log_at(whole, kind.dialect))
    earlier = contents(whole, kind)
    faultless = InjectingStore(open_store(str(shutil.copytree(whole, tmp_path / "faultless"))))
    attempt(faultless, kind)
    for nth in points(
        each for each in faultless.operations if not operations or each[0] in operations
    ):
        root = tmp_path / str(nth)
        shutil.copytree(whole, root)
        rule = Rule(fault, operations, nth, times)
        store = InjectingStore(open_store(str(root)), [rule])
        report = attempt(store, kind)
        store.arrive()
        check(root, kind, before, earlier, report)
        if report is None:
            write_again(root, kind, before, earlier)
        shutil.rmtree(root)
        done = sum(1 for name, _ in store.operations if not operations or name in operations)
        if done < nth:
            assert report is not None
            assert nth > 1
            return
    pytest.fail("no attempt succeeds")


class ProcessDiedError(BaseException):
    """The process has ended."""


class DyingStore(InjectingStore):
    """A store whose process dies before or after its nth write; no later operation runs."""

    def __init__(self, store: LogStore, nth: int, *, after: bool) -> None:
        super().__init__(store)
        self._left = nth
        self._after = after
        self.died = False

    def _begin(self, kind: Operation, path: str, trips: int = 1) -> Fault | None:
        if self.died:
            raise ProcessDiedError
        if kind in WRITES:
            self._left -= 1
            if self._left == 0 and not self._after:
                self._die()
            if self._left < 0:
                self._die()
        return super()._begin(kind, path, trips)

    def _die(self) -> NoReturn:
        self.died = True
        raise ProcessDiedError


@pytest.mark.sampled(4, keep=("kind",))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", [CLASSIC, MULTIPART, V2_JSON, FLATTENED_PARTS], ids=str)
def test_killed_process_leaves_nothing_visible(kind: Kind, after: bool, tmp_path: Path) -> None:
    whole = make(kind, tmp_path / "whole")
    before = state_of(log_at(whole, kind.dialect))
    earlier = contents(whole, kind)
    faultless = InjectingStore(open_store(str(shutil.copytree(whole, tmp_path / "faultless"))))
    attempt(faultless, kind)
    for nth in points(each for each in faultless.operations if each[0] in WRITES):
        root = tmp_path / str(nth)
        shutil.copytree(whole, root)
        store = DyingStore(open_store(str(root)), nth, after=after)
        report = None
        with contextlib.suppress(ProcessDiedError):
            report = attempt(store, kind)
        check(root, kind, before, earlier, report)
        if report is None:
            write_again(root, kind, before, earlier)
        if not store.died:
            assert nth > 1
            return
    pytest.fail("no attempt succeeds")


def test_failed_removal_does_not_hide_the_first_error(tmp_path: Path) -> None:
    root = make(CLASSIC, tmp_path / "t")
    rules = [Rule("fail", "move", times=None), Rule("fail", "delete", times=None)]
    store = InjectingStore(open_store(str(root)), rules)
    with pytest.raises(CheckpointWriteError, match="could not be renamed into place") as failed:
        write_checkpoint(over(store, CLASSIC.dialect))
    assert isinstance(failed.value.__cause__, UnavailableError)
    assert ("delete", failed.value.path) not in store.operations
    left = names(root, CLASSIC)
    assert any(map(HIDDEN.fullmatch, left))


@pytest.mark.parametrize("kind", [MULTIPART, FLATTENED_PARTS], ids=str)
def test_failed_writer_keeps_the_parts_of_a_checkpoint_that_another_writer_completed(
    kind: Kind, tmp_path: Path
) -> None:
    root = make(kind, tmp_path / "t")

    class Overtaken(StoreWrapper):
        def move(self, path: str, target: str) -> None:
            if ".checkpoint.0000000002." not in target:
                return super().move(path, target)
            write_checkpoint(
                log_at(root, kind.dialect), layout=kind.layout, options=kind.options, verify=False
            )
            raise UnavailableError("no response", path=path)

    with pytest.raises(CheckpointWriteError, match="no response"):
        write_checkpoint(
            over(Overtaken(open_store(str(root))), kind.dialect),
            layout=kind.layout,
            options=kind.options,
        )
    log = log_at(root, kind.dialect)
    (found,) = [c for c in log.list_all().checkpoints if c.version == LATEST]
    assert found.layout == kind.layout
    assert verify_one(log, found).is_proved


@pytest.mark.parametrize("kind", [CLASSIC, V2_JSON, JSON], ids=str)
def test_checkpoint_is_published_even_if_its_pointer_cannot_be_written(
    kind: Kind, tmp_path: Path
) -> None:
    root = make(kind, tmp_path / "t")
    rule = Rule("fail", "put", times=None, path="*_last_checkpoint")
    store = InjectingStore(open_store(str(root)), [rule])
    report = write_checkpoint(over(store, kind.dialect), layout=kind.layout, options=kind.options)
    assert not report.pointer_moved
    assert any("pointer" in note for note in report.notes)
    assert log_at(root, kind.dialect).list_all().checkpoints[-1].version == LATEST


def test_unreadable_pointer_is_not_replaced(tmp_path: Path) -> None:
    root = make(CLASSIC, tmp_path / "t")
    pointer = root / "_delta_log" / "_last_checkpoint"
    before = pointer.read_bytes()
    rule = Rule("fail", "read", 2, None, path="*_last_checkpoint")  # opening reads it first
    store = InjectingStore(open_store(str(root)), [rule])
    report = write_checkpoint(over(store, CLASSIC.dialect))
    assert not report.pointer_moved
    assert pointer.read_bytes() == before


def test_read_only_store_raises_its_error(tmp_path: Path) -> None:
    root = make(JSON_PARTS, tmp_path / "t")

    class ReadOnly(InjectingStore):
        def upload(self, path: str) -> NoReturn:
            raise LakelogError("read only", path=path)

    with pytest.raises(LakelogError, match="read only"):
        write_checkpoint(over(ReadOnly(open_store(str(root))), JSON_PARTS.dialect))
