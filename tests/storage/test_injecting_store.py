"""`InjectingStore`: every fault has its documented effect, at the operation that a rule names."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from lakelog.errors import InvalidInputError, NotFoundError, OutcomeUnknownError, UnavailableError
from lakelog.storage import LogStore, open_store
from lakelog.storage.ranged import WHOLE_BYTES
from lakelog.testing import KINDS, Fault, InjectingStore, Kind, Rule

Write = Callable[[LogStore], object]

PUT: Write = lambda store: store.put("log/1", b"x")
CREATE: Write = lambda store: store.put_if_absent("log/1", b"x")


@pytest.fixture
def below() -> LogStore:
    return open_store(f"memory://{uuid.uuid4().hex}/t")


@pytest.mark.parametrize("write", [PUT, CREATE], ids=["put", "put_if_absent"])
@pytest.mark.parametrize(
    ("fault", "error", "written"),
    [
        ("fail", UnavailableError, False),
        ("unknown", OutcomeUnknownError, False),
        ("lost", OutcomeUnknownError, True),
        ("late", OutcomeUnknownError, False),
    ],
)
def test_a_write_fails_before_or_after_its_effect(
    below: LogStore, write: Write, fault: Fault, error: type[Exception], written: bool
) -> None:
    with pytest.raises(error):
        write(InjectingStore(below, [Rule(fault)]))
    assert (below.stat("log/1") is not None) is written


def test_lost_taken_fault_writes_and_returns_false(below: LogStore) -> None:
    store = InjectingStore(below, [Rule("lost_taken", "put_if_absent")])
    assert not store.put_if_absent("log/1", b"x")
    assert below.read("log/1") == b"x"
    assert store.put_if_absent("log/2", b"x")


def test_a_late_write_arrives_before_the_next_one(below: LogStore) -> None:
    store = InjectingStore(below, [Rule("late", "put_if_absent")])
    with pytest.raises(OutcomeUnknownError):
        store.put_if_absent("log/1", b"early")
    with pytest.raises(NotFoundError):
        store.read("log/1")
    assert not store.put_if_absent("log/1", b"second")
    assert store.read("log/1") == b"early"


def test_a_late_write_may_find_its_name_taken(below: LogStore) -> None:
    store = InjectingStore(below, [Rule("late", "put_if_absent")])
    with pytest.raises(OutcomeUnknownError):
        store.put_if_absent("log/1", b"early")
    below.put_if_absent("log/1", b"other")
    store.arrive()
    assert below.read("log/1") == b"other"


@pytest.mark.parametrize("fault", ["fail", "lost", "late", "unknown"])
def test_failing_delete_and_reads_raise_unavailable_error(below: LogStore, fault: Fault) -> None:
    below.put("log/1", b"x")
    operations: list[Write] = [
        lambda s: s.delete("log/1"),
        lambda s: s.read("log/1"),
        lambda s: list(s.read_many(["log/1"])),
        lambda s: s.open("log/1"),
        lambda s: s.stat("log/1"),
        lambda s: s.list_from("log"),
        lambda s: s.list_folders(""),
    ]
    for operation in reversed(operations):
        with pytest.raises(UnavailableError):
            operation(InjectingStore(below, [Rule(fault)]))
    assert (below.stat("log/1") is None) is (fault == "lost")


def test_rule_applies_to_the_nth_operation_and_repeats_as_requested(
    below: LogStore,
) -> None:
    rule = Rule("fail", ("put", "put_if_absent"), nth=2, times=2, path="log/*.json")
    store = InjectingStore(below, [rule])
    failed = []
    for n in range(6):
        store.put("log/pointer", b"x")
        try:
            (store.put if n % 2 else store.put_if_absent)(f"log/{n}.json", b"x")
        except UnavailableError:
            failed.append(n)
    assert failed == [1, 2]


def test_first_matching_rule_applies_and_may_repeat_forever(below: LogStore) -> None:
    store = InjectingStore(below, [Rule("lost", "put"), Rule("fail", "put", times=None)])
    with pytest.raises(OutcomeUnknownError):
        store.put("log/1", b"x")
    for _ in range(3):
        with pytest.raises(UnavailableError):
            store.put("log/2", b"x")


def test_every_operation_is_logged_and_counted(below: LogStore) -> None:
    store = InjectingStore(below)
    for n in range(3):
        store.put_if_absent(f"log/{n}", b"x")
    store.put("log/p", b"x")
    store.list_from("log")
    store.list_folders("")
    list(store.read_many(["log/0", "log/1"]))
    store.read("log/2")
    store.open("log/2").read()
    store.stat("log/2")
    store.delete("log/2")
    with store.upload("log/3") as upload:
        upload.write(b"x")
    store.move("log/3", "log/4")
    assert [e.name for batch in store.walk("log") for e in batch]
    assert store.delete_many(["log/4", "log/5"]) == []
    assert store.operations == [
        *(("put_if_absent", f"log/{n}") for n in range(3)),
        ("put", "log/p"),
        ("list", "log"),
        ("list", ""),
        *(("read", f"log/{n}") for n in range(3)),
        ("open", "log/2"),
        ("stat", "log/2"),
        ("delete", "log/2"),
        ("upload", "log/3"),
        ("upload", "log/3"),
        ("move", "log/3"),
        ("walk", "log"),
        ("delete", "log/4"),
        ("delete", "log/5"),
    ]
    assert {kind for kind, _ in store.operations} == set(KINDS)


def test_one_of_many_reads_fails_at_its_position(below: LogStore) -> None:
    for n in range(5):
        below.put(f"log/{n}", str(n).encode())
    store = InjectingStore(below, [Rule("fail", "read", nth=3)])
    seen = []
    with pytest.raises(UnavailableError):
        seen += list(store.read_many([f"log/{n}" for n in range(5)]))
    contents = iter(InjectingStore(below, [Rule("fail", "read", nth=3)]).read_many(["log/0"] * 5))
    assert [next(contents), next(contents)] == [b"0", b"0"]


def upload(store: LogStore) -> None:
    with store.upload("log/1") as each:
        each.write(b"x")


@pytest.mark.parametrize(
    ("fault", "error", "written", "finally_written"),
    [
        ("fail", UnavailableError, False, False),
        ("unknown", OutcomeUnknownError, False, False),
        ("lost", OutcomeUnknownError, True, True),
        ("late", OutcomeUnknownError, False, True),
    ],
)
def test_upload_fails_at_opening_or_before_or_after_its_effect(
    tmp_path: Path, fault: Fault, error: type[Exception], written: bool, finally_written: bool
) -> None:
    below = open_store(tmp_path)
    with pytest.raises(UnavailableError):
        upload(InjectingStore(below, [Rule(fault, "upload", nth=1)]))
    assert list(below.walk()) == []
    store = InjectingStore(below, [Rule(fault, "upload", nth=2)])
    with pytest.raises(error):
        upload(store)
    assert (below.stat("log/1") is not None) is written
    store.arrive()
    found = [e.name for batch in below.walk() for e in batch]
    assert found == (["log/1"] if finally_written else [])


@pytest.mark.parametrize(
    ("fault", "error", "moved"),
    [
        ("fail", UnavailableError, False),
        ("unknown", OutcomeUnknownError, False),
        ("lost", OutcomeUnknownError, True),
        ("late", OutcomeUnknownError, False),
    ],
)
def test_a_move_fails_before_or_after_its_effect(
    below: LogStore, fault: Fault, error: type[Exception], moved: bool
) -> None:
    below.put("log/1", b"x")
    store = InjectingStore(below, [Rule(fault, "move", path="log/*")])
    with pytest.raises(error):
        store.move("log/1", "aside/1")
    assert (below.stat("log/1") is None) is moved
    assert (below.stat("aside/1") is not None) is moved


def test_late_move_of_a_deleted_file_has_no_effect(below: LogStore) -> None:
    below.put("log/1", b"x")
    store = InjectingStore(below, [Rule("late", "move")])
    with pytest.raises(OutcomeUnknownError):
        store.move("log/1", "aside/1")
    below.delete("log/1")
    store.put("log/2", b"x")
    assert [e.name for batch in below.walk() for e in batch] == ["log/2"]


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("fault", ["fail", "lost", "unknown", "late"])
def test_one_of_many_deletions_fails_and_the_others_are_done(
    below: LogStore, nth: int, fault: Fault
) -> None:
    paths = [f"log/{n}" for n in (1, 2, 3)]
    for path in paths:
        below.put(path, b"x")
    store = InjectingStore(below, [Rule(fault, "delete", nth=nth)])
    (error,) = store.delete_many(paths)
    assert isinstance(error, UnavailableError)
    assert error.path == f"log/{nth}"
    store.arrive()
    left = [f"log/{e.name}" for e in below.list_from("log")]
    assert left == ([error.path] if fault in {"fail", "unknown"} else [])


def test_a_walk_fails_before_its_first_batch_or_after_its_last(below: LogStore) -> None:
    below.put("log/1", b"x")
    walk = InjectingStore(below, [Rule("fail", "walk")]).walk()
    with pytest.raises(UnavailableError):
        next(walk)
    walk = InjectingStore(below, [Rule("lost", "walk")]).walk()
    assert [e.name for e in next(walk)] == ["log/1"]
    with pytest.raises(UnavailableError):
        next(walk)


def trips(store: LogStore, operation: Callable[[LogStore], object]) -> int:
    slept: list[float] = []
    operation(InjectingStore(store, latency_s=0.03, sleep=slept.append))
    assert set(slept) <= {0.03}
    return len(slept)


def test_requests_at_the_same_time_share_a_round_trip(below: LogStore) -> None:
    for n in range(3):
        below.put(f"log/{n}", b"x")
    assert trips(below, lambda s: list(s.read_many(["log/1"] * 64))) == 1
    assert trips(below, lambda s: list(s.read_many(["log/1"] * 65))) == 2
    assert trips(below, lambda s: [s.read("log/0"), s.read("log/1")]) == 2
    assert trips(below, lambda s: s.put_if_absent("log/9", b"x")) == 1
    assert trips(below, lambda s: s.delete_many([f"log/{n}" for n in range(65)])) == 2
    assert trips(below, upload) == 2


def test_a_small_file_is_opened_in_one_trip_if_its_size_is_known(below: LogStore) -> None:
    below.put("f", bytes(1000))
    assert trips(below, lambda s: s.open("f", 1000).read()) == 1
    assert trips(below, lambda s: s.open("f").read()) == 2


def test_a_large_file_is_fetched_in_ranges_that_can_fail(below: LogStore) -> None:
    size = WHOLE_BYTES + 1
    below.put("f", bytes(size))
    store = InjectingStore(below, [Rule("fail", "read")])
    with store.open("f", size) as file:
        file.seek(-8, os.SEEK_END)
        assert file.read() == bytes(8)
        file.seek(0)
        with pytest.raises(UnavailableError):
            file.read(8)
        assert file.read(8) == bytes(8)
    assert store.operations == [("open", "f"), ("read", "f"), ("read", "f")]


def _write_until_killed(root: str, fault: Fault, kind: Kind) -> None:
    store = InjectingStore(open_store(root), [Rule(fault, kind, nth=2)])
    store.put_if_absent("log/1", b"x")
    store.put("log/pointer", b"1")
    store.put_if_absent("log/2", b"x")
    store.put("log/pointer", b"2")
    store.delete_many(["log/1", "log/2"])
    with store.upload("log/uploaded") as each:
        each.write(b"x")
    os._exit(0)


@pytest.mark.parametrize(
    ("fault", "kind", "left"),
    [
        ("kill_before", "put_if_absent", ["1", "pointer"]),
        ("kill_after", "put_if_absent", ["1", "2", "pointer"]),
        ("kill_before", "put", ["1", "2", "pointer"]),
        ("kill_before", "delete", ["2", "pointer"]),
        ("kill_after", "delete", ["pointer"]),
        ("kill_after", "upload", ["pointer", "uploaded"]),
    ],
)
def test_process_is_killed_before_or_after_the_effect(
    tmp_path: Path, fault: Fault, kind: Kind, left: list[str]
) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_write_until_killed, args=(str(tmp_path), fault, kind))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [e.name for e in open_store(tmp_path).list_from("log")] == left
    assert sorted(os.listdir(tmp_path / "log")) == left


@pytest.mark.parametrize(
    "wrong",
    [
        {"fault": "explode"},
        {"fault": "fail", "kinds": "write"},
        {"fault": "fail", "nth": 0},
        {"fault": "fail", "times": -1},
    ],
)
def test_invalid_rule_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match="invalid fault rule"):
        Rule(**wrong)  # type: ignore[arg-type]


def test_root_and_refusal_are_those_of_the_wrapped_store(below: LogStore) -> None:
    store = InjectingStore(below)
    assert (store.root, store.refusal) == (below.root, below.refusal)
