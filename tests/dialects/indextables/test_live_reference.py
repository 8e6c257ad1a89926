"""lakelog and IndexTables' own transaction log on the same tables, if its build is configured."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakelog
from lakelog.errors import LakelogError
from tests.dialects.indextables.reference import (
    JSON,
    MISSING,
    SCHEMA,
    SHARED,
    VARIABLE,
    Reference,
    RefusedError,
    add,
    differences,
    remove,
)

pytestmark = [
    pytest.mark.reference,
    pytest.mark.skipif(VARIABLE not in os.environ, reason=MISSING),
]

_STEPS = 12


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    with (tmp_path_factory.mktemp("indextables") / "errors").open("wb") as errors:
        reference = Reference(Path(os.environ[VARIABLE]), errors)
        yield reference
        reference.close()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "t")


def _created(root: str) -> lakelog.Table:
    return lakelog.create(root, SCHEMA, format="indextables", upkeep=False)


def _assert_equal_states(real: Reference, root: str, *handles: lakelog.Table) -> None:
    answer = real("state", root)
    for table in (lakelog.open(root, upkeep=False), *handles):
        assert differences(answer, table.snapshot()) == []


def _commit(table: lakelog.Table, adds: list[str], removes: list[str]) -> None:
    with table.transaction() as tx:
        for path in adds:
            tx.add(**add(path))
        for path in removes:
            tx.remove(path=path)


@pytest.mark.parametrize("seed", range(3))
def test_alternating_writers_of_json_commits_agree(real: Reference, root: str, seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    table = _created(root)
    live: set[str] = set()
    history = [set(live)]
    held = table.snapshot()
    for number in range(_STEPS):
        adds = [f"{number}-{n}" for n in range(rng.randint(1, 3))]
        removed = rng.sample(sorted(live), min(len(live), rng.randint(0, 2)))
        writer = rng.choice(("lakelog", "reference", "overwrite", "skip"))
        if writer == "lakelog":
            _commit(table, adds, removed)
        elif writer == "reference":
            real(
                "merge",
                root,
                SHARED,
                removes=[remove(p) for p in removed],
                adds=list(map(add, adds)),
            )
        elif writer == "overwrite":
            real("overwrite", root, SHARED, adds=list(map(add, adds)))
            removed = sorted(live)
        else:
            real.skip(root, adds[0])
            adds, removed = [], []
        live = live - set(removed) | set(adds)
        history.append(set(live))
        if rng.random() < 0.2:
            table.checkpoint()
        _assert_equal_states(real, root, table)
        held = held.update()
        assert set(held.files().collect()["path"]) == live
    for version, files in enumerate(history):
        assert set(table.snapshot(version).files().collect()["path"]) == files


@pytest.mark.parametrize("seed", range(3))
def test_states_with_skips_between_them_agree(real: Reference, root: str, seed: int) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    real("init", root, schema=SCHEMA)
    table = lakelog.open(root, upkeep=False)
    live: set[str] = set()
    history = [set(live)]
    held = table.snapshot()
    skips: set[str] = set()
    for number in range(_STEPS):
        adds = [f"{number}-{n}" for n in range(rng.randint(1, 3))]
        removed = rng.sample(sorted(live), min(len(live), rng.randint(0, 2)))
        what = rng.choice(("merge", "merge", "skip", "overwrite"))
        if what == "skip":
            real.skip(root, adds[0])
            skips.add(adds[0])
        else:
            if what == "merge":
                removes = [remove(p) for p in removed]
                real("merge", root, removes=removes, adds=list(map(add, adds)))
            else:
                real("overwrite", root, adds=list(map(add, adds)))
                removed = sorted(live)
            live = live - set(removed) | set(adds)
            history.append(set(live))
        if len(history) > 1:
            _assert_equal_states(real, root, table)
        held = held.update()
        assert set(held.files().collect()["path"]) == live
        assert set(held.skips().collect()["path"]) == skips
    for version, files in enumerate(history):
        assert set(table.snapshot(version).files().collect()["path"]) == files


@pytest.mark.parametrize("options", [{}, JSON], ids=["states", "json"])
def test_table_written_only_by_the_reference_is_read_alike(
    real: Reference, root: str, options: dict[str, str]
) -> None:
    real("init", root, options, schema=SCHEMA)
    for number in range(12):  # with JSON, the reference writes a checkpoint
        fields = {
            "docMappingJson": '[ {"name": "a", "type": "text"}, {"name":"o","type":"object"}]'
        }
        real("add", root, options, adds=[add(f"f{number}", **fields)])
        _assert_equal_states(real, root)
    real("checkpoint", root, options)
    real("removeFile", root, options, path="f3")
    _assert_equal_states(real, root)


def test_reference_reads_a_lakelog_checkpoint_that_follows_its_own(
    real: Reference, root: str
) -> None:
    table = _created(root)
    for number in range(3):
        _commit(table, [f"f{number}"], [])
    real("checkpoint", root, JSON)
    assert lakelog.open(root, upkeep=False).verify().verdict == "proved"
    lakelog.open(root, upkeep=False).checkpoint()
    _assert_equal_states(real, root)
    real("add", root, SHARED, adds=[add("f3")])
    lakelog.open(root, upkeep=False).checkpoint()
    assert real("state", root)["checkpoint"] is not None
    _assert_equal_states(real, root)


def test_reference_reads_a_table_after_cleanup_by_lakelog(real: Reference, root: str) -> None:
    table = _created(root)
    for number in range(6):
        if number % 2:
            real("add", root, SHARED, adds=[add(f"f{number}")])
        else:
            _commit(table, [f"f{number}"], [])
    table.checkpoint()
    before = sorted(os.listdir(f"{root}/_transaction_log"))
    table.cleanup(plan=False, retention="0 seconds", force=True)
    assert sorted(os.listdir(f"{root}/_transaction_log")) != before
    _assert_equal_states(real, root, table)
    real("add", root, SHARED, adds=[add("g")])
    _commit(table, ["h"], ["f1"])
    _assert_equal_states(real, root, table)


@pytest.mark.parametrize("seed", range(6))
def test_writers_of_mixed_formats_agree_or_lakelog_refuses_the_table(
    real: Reference, root: str, seed: int
) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    table = _created(root)
    for number in range(12):
        options = rng.choice(({}, JSON, SHARED))
        path = f"f{number}"
        checkpoint = real("state", root)["checkpoint"]
        if checkpoint is not None and checkpoint["format"] == "avro-state":
            options = {}  # the reference does not list what it commits as JSON above a state
        try:
            what = rng.choice(("lakelog", "lakelog", "add", "checkpoint", "skip"))
            print(number, what, options)
            match what:
                case "lakelog":
                    _commit(table, [path], [])
                case "add":
                    real("add", root, options, adds=[add(path)])
                case "checkpoint":
                    real("checkpoint", root, options)
                case _:
                    real.skip(root, path)
        except (LakelogError, RefusedError) as error:
            print(number, error)
        try:
            snapshot = lakelog.open(root, upkeep=False).snapshot()
            snapshot.files().collect()
        except LakelogError as error:
            print(number, error)
            return
        wrong = differences(real("state", root), snapshot)
        assert wrong == []
