"""What the linter cannot see: short files, nothing unfinished, nothing of one machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

LONGEST_FILE_LINES = 600  # lower it when the longest file shrinks; never raise it

UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|NotImplementedError\(\))")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp)/\w")


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((REPOSITORY / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def test_a_module_is_short_finished_and_says_what_it_owns() -> None:
    found: dict[str, list[str]] = {}
    for path in sources("engine"):
        text = path.read_text("utf-8")
        problems = {
            f"longer than {LONGEST_FILE_LINES} lines": text.count("\n") > LONGEST_FILE_LINES,
            "unfinished": UNFINISHED.search(text) is not None,
            "no docstring": not text.startswith('"""'),
        }
        if any(problems.values()):
            found[relative(path)] = [name for name, is_there in problems.items() if is_there]
    assert found == {}


ROOMS = sorted(path.parent for path in (REPOSITORY / "engine/lakelog").glob("*/**/__init__.py"))


def test_a_room_says_what_each_of_its_modules_is_for() -> None:
    assert ROOMS
    missing: dict[str, set[str]] = {}
    for room in ROOMS:
        text = ast.get_docstring(ast.parse((room / "__init__.py").read_text("utf-8"))) or ""
        modules = {path.stem for path in room.glob("*.py")} - {"__init__"}
        modules |= {path.parent.name for path in room.glob("*/__init__.py")}
        missing[relative(room)] = {name for name in modules if f"`{name}`" not in text}
    assert {room: names for room, names in missing.items() if names} == {}


def test_nothing_names_a_path_of_one_machine() -> None:
    others = [REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "Makefile")]
    found = [
        f"{relative(path)}: {match[0]}"
        for path in [*sources("engine", "tests", "perf"), *others]
        for match in MACHINE_PATH.finditer(path.read_text("utf-8"))
        if path != Path(__file__)
    ]
    assert found == []


def test_every_exception_from_lint_or_types_names_its_rule() -> None:
    bare = re.compile(r"#\s*(?:noqa(?!:)|type:\s*ignore(?!\[))")
    found = [
        relative(path)
        for path in sources("engine", "tests", "perf")
        if bare.search(path.read_text("utf-8")) and path != Path(__file__)
    ]
    assert found == []
