"""Damage: every file of a log truncated, flipped, deleted, emptied, duplicated, swapped.

Each time lakelog either raises one of its errors, or returns exactly the state of the plain
sequential replay for the same bytes. Two readings of damaged Parquet may differ and both be right.
If lakelog detects a broken checkpoint that the model can still read, it may ignore it, and then the
state is that of the model without that checkpoint. If the damage is in bytes that lakelog does not
need (a column of nulls, the magic at the front), the state is that of the undamaged log.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lakelog
from lakelog.errors import LakelogError, LakelogWarning
from tests.budget import IS_WHOLE, seed_of
from tests.conftest import REPOSITORY
from tests.loggen import Options, generate
from tests.model import replay
from tests.model.compare import differences, normal, rows_of
from tests.model.observe import disagreements, replay_from_its_base
from tests.model.replay import State
from tests.model.statistics import with_statistics
from tests.model.strict_json import RefusedError

pytestmark = pytest.mark.timeout(240)

SCALE = int(os.environ.get("LAKELOG_DAMAGE", "1"))
"""Amount of damage, as a multiple of the default."""

TABLES = {
    "json": Options(commits=3, layouts=(), noise=False, odd=False, actions=2),
    "odd-json": Options(commits=3, layouts=(), noise=False, actions=3),
    "classic": Options(commits=4, layouts=("classic",), forced=(1, 2), checkpoints=0, actions=3),
    "truncated": Options(
        commits=4, layouts=("classic",), forced=(2,), checkpoints=0, truncate=1, actions=3
    ),
    "multipart": Options(commits=4, layouts=("multipart",), forced=(2,), checkpoints=0),
    "v2-json": Options(commits=4, layouts=("v2-json",), forced=(2,), checkpoints=0),
    "v2-parquet": Options(commits=4, layouts=("v2-parquet",), forced=(2,), checkpoints=0),
}
SEED = 20_240_601

Damage = Callable[[Path, random.Random], Iterator[str]]
"""Damages one file repeatedly, and describes each damage; the caller restores it in between."""


def _steps(size: int, count: int) -> list[int]:
    """About `count` lengths below `size`, including its ends."""
    step = max(1, size // count)
    return sorted({0, 1, 2, *range(0, size, step), size - 2, size - 1} & set(range(size)))


def _few(path: Path) -> int:
    """Number of cases per file: reading damaged Parquet costs more than damaged JSON."""
    return (30 if path.suffix == ".json" else 5) * SCALE


def truncate(path: Path, rng: random.Random) -> Iterator[str]:
    data = path.read_bytes()
    lines = [i + 1 for i, byte in enumerate(data) if byte == 0x0A] if path.suffix == ".json" else []
    for length in sorted({*_steps(len(data), _few(path)), *lines}):
        path.write_bytes(data[:length])
        yield f"truncated to {length} of {len(data)}"


def flip(path: Path, rng: random.Random) -> Iterator[str]:
    data = path.read_bytes()
    for start in _steps(len(data), 2 * _few(path)):
        at = min(len(data) - 1, start + rng.randrange(8))
        mask = rng.choice([0x01, 0x02, 0x08, 0x20, 0x80, 0xFF])
        path.write_bytes(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
        yield f"byte {at} xor {mask:#x}"


def overwrite(path: Path, rng: random.Random) -> Iterator[str]:
    data = path.read_bytes()
    fills = [b"\0", b"\xff", b"\n", b" ", b'"', b"}", b"\\", b"0", b"null"]
    for start in _steps(len(data), _few(path)):
        fill = rng.choice(fills)
        length = rng.randrange(1, 12)
        path.write_bytes(data[:start] + (fill * length)[:length] + data[start + length :])
        yield f"{length} bytes at {start} are {fill!r}"


def replace_whole(path: Path, rng: random.Random) -> Iterator[str]:
    data = path.read_bytes()
    contents = {
        "empty": b"",
        "blank": b"\n \n",
        "zeros": b"\0" * len(data),
        "twice": data + data,
        "an object": b"{}",
        "null": b"null\n",
        "null first": b"null\n" + data,
        "null line in an object": b'{"add":null}\n' + data,
        "BOM": b"\xef\xbb\xbf" + data,
        "garbage after": data + b"garbage",
        "NUL after": data + b"\0",
        "array": b"[" + data.replace(b"\n", b",") + b"null]",
        "joined lines": data.replace(b"\n", b" "),
        "reversed lines": b"\n".join(reversed(data.split(b"\n"))),
        "no newlines": data.replace(b"}\n{", b"}{"),
        "Parquet magic": b"PAR1" + data[4:-4] + b"PAR1",
    }
    for name, content in contents.items():
        path.write_bytes(content)
        yield f"replaced by {name}"
    path.unlink()
    yield "deleted"


def copy_elsewhere(path: Path, rng: random.Random) -> Iterator[str]:
    """The same bytes under other names of the log, existing ones included."""
    log = next(p for p in path.parents if p.name == replay.LOG)
    uid = "00000000-0000-0000-0000-00000000000a"
    names = [f"{v:020d}.json" for v in (0, 1, 3, 4, 5)]
    names += [f"{v:020d}.checkpoint.parquet" for v in (1, 2, 3, 4)]
    names += [f"{v:020d}.checkpoint.{uid}.{s}" for v in (2, 3, 4) for s in ("json", "parquet")]
    names += [f"{2:020d}.checkpoint.{p:010d}.{n:010d}.parquet" for n in (1, 2, 3) for p in (1, 2)]
    if b'"commitInfo"' in path.read_bytes():
        # Without a commitInfo, only the name of a copy shows that it is not a compaction.
        names += [f"{0:020d}.{3:020d}.compacted.json", f"{1:020d}.{2:020d}.compacted.json"]
    names += [f"_sidecars/{p.name}" for p in (log / "_sidecars").glob("*")]
    names += ["_last_checkpoint", f"{2:020d}.crc"]
    for name in rng.sample(names, min(len(names), 14 * SCALE)):
        target = log / name
        before = target.read_bytes() if target.exists() else None
        if target == path:
            continue
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
        yield f"copied to {name}"
        if before is None:
            target.unlink()
        else:
            target.write_bytes(before)


DAMAGES: dict[str, Damage] = {
    "truncated": truncate,
    "flipped": flip,
    "overwritten": overwrite,
    "replaced": replace_whole,
    "copied": copy_elsewhere,
}


def log_files(root: Path) -> list[Path]:
    """The files to damage: the checkpoint's and the last commit, or else every commit."""
    found = [p for p in sorted((root / replay.LOG).rglob("*")) if p.is_file()]
    checkpoints = [p for p in found if "checkpoint" in p.name or p.parent.name == "_sidecars"]
    commits = [p for p in found if p.suffix == ".json" and p not in checkpoints]
    return [*checkpoints, *(commits[-1:] if checkpoints else commits)]


def judge(root: Path, whole: State | None = None) -> list[str]:
    """The errors of lakelog's answer for the damaged bytes; empty if there are none.

    Args:
        root: The damaged table.
        whole: The state of the undamaged table, if that is a correct answer too.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        try:
            snapshot = lakelog.open(root).snapshot()
            problems = _compare(root, snapshot)
            if problems and whole is not None and disagreements(whole, snapshot) == []:
                return []
            return problems
        except LakelogError as refusal:
            return [f"internal error: {refusal}"] if refusal.kind == "internal" else []
        except Exception as error:  # noqa: BLE001 - any other exception is the finding
            return [f"{type(error).__name__} escapes: {error}"]


def _compare(root: Path, snapshot: lakelog.Snapshot) -> list[str]:
    try:
        problems = disagreements(replay.replay(root), snapshot)
    except RefusedError as refusal:
        snapshot.files().collect()
        problems = [f"lakelog reads what the model refuses: {refusal}"]
    log = replay.list_log(root)
    best, used = log.base_of(log.latest), snapshot.provenance.checkpoint
    if not problems or best is None or (used is not None and used.paths == best.paths):
        return problems
    # lakelog ignored the best checkpoint as broken: then everything else must be correct.
    try:
        return disagreements(replay_from_its_base(root, None, snapshot), snapshot)
    except RefusedError:
        return problems


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tables to damage; a test works on a copy."""
    folder = tmp_path_factory.mktemp("tables")
    return {
        name: generate(folder / name, SEED + i, options)
        for i, (name, options) in enumerate(TABLES.items())
    }


@pytest.fixture
def table(request: pytest.FixtureRequest, tables: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the table that the test is parametrised with."""
    root = tmp_path / "t"
    shutil.copytree(tables[request.param], root)
    return root


def every_damage(root: Path, damage: Damage) -> Iterator[str]:
    """Apply the damages of one kind to every file, one at a time; yields descriptions. A run
    applies one in three of them, from a start that changes by day.
    """
    rng = random.Random(SEED)
    share = 1 if IS_WHOLE else 3
    start = seed_of(f"{root.name}")
    for path in log_files(root):
        whole = path.read_bytes()
        for number, how in enumerate(damage(path, rng)):
            if (number + start) % share == 0:
                yield f"{path.name} {how}"
            path.write_bytes(whole)


@pytest.mark.parametrize("table", TABLES, indirect=True)
def test_undamaged_log_is_read(table: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        assert disagreements(replay.replay(table), lakelog.open(table).snapshot()) == []


@pytest.mark.sampled(6, keep=("kind",))
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("table", TABLES, indirect=True)
def test_damaged_log_is_refused_or_read_like_the_model(table: Path, kind: str) -> None:
    whole = replay.replay(table) if kind in {"truncated", "flipped", "overwritten"} else None
    wrong = [
        (how, problems)
        for how in every_damage(table, DAMAGES[kind])
        if (problems := judge(table, whole if ".parquet " in how else None))
    ]
    assert wrong == []


@pytest.mark.sampled(4, keep=("kind",))
@pytest.mark.parametrize("kind", ["truncated", "flipped", "replaced"])
@pytest.mark.parametrize("table", ["json", "odd-json"], indirect=True)
def test_actions_of_a_damaged_log_are_refused_or_equal_its_lines(table: Path, kind: str) -> None:
    wrong: list[tuple[str, list[str]]] = []
    for how in every_damage(table, DAMAGES[kind]):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LakelogWarning)
                opened = lakelog.open(table)
                found = [normal(row) for row in rows_of(opened.actions())]
                assert opened.history().height <= 3
        except LakelogError:
            continue
        for row in found:
            row.pop("timestamp", None)
        try:
            expected = [normal(with_statistics(row)) for row in replay.decode_commits(table)]
        except RefusedError as refusal:
            wrong.append((how, [str(refusal)]))
            continue
        problems = differences(expected, found, ("version", "position", "actionType"))
        if problems:
            wrong.append((how, problems))
    assert wrong == []


_READ_ALL = """
import sys, warnings
warnings.simplefilter("ignore")
import lakelog
from lakelog.errors import LakelogError
for table in sys.argv[1:]:
    try:
        lakelog.open(table).snapshot().files().collect()
    except LakelogError as refusal:
        print(table, "refused", refusal.kind, flush=True)
"""
NULLS = (b"null\n", b"\nnull\n", b" null", b'{"add":null}\nnull\n', b"null\n" * 3, b"{}\nnull\n")


def test_null_in_place_of_an_object_does_not_crash_the_process(
    tables: dict[str, Path], tmp_path: Path
) -> None:
    """pyarrow's JSON reader segfaults on a block that begins with a null row."""
    roots = [tmp_path / str(number) for number in range(len(NULLS))]
    for root, head in zip(roots, NULLS, strict=True):
        shutil.copytree(tables["json"], root)
        commit = root / replay.LOG / f"{0:020d}.json"
        commit.write_bytes(head + commit.read_bytes())
    run = subprocess.run(
        [sys.executable, "-c", _READ_ALL, *map(str, roots)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "engine")},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    refused = [line.split()[:2] for line in run.stdout.splitlines()]
    assert refused == [[str(root), "refused"] for root in roots]
