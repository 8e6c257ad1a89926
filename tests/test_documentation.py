"""Every code block of README.md, CONTRIBUTING.md and docs/ runs: each page in order, in a folder of
its own. The pages are complete: commands, public methods, properties, extras, links."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import lakelog
from lakelog.checkpoint.plan import CheckpointOptions
from lakelog.cli.app import app
from lakelog.dialects.delta.properties import DELTA_PROPERTIES
from lakelog.dialects.properties import (
    CHECKPOINT_FAMILIES,
    INDEXTABLES_PROPERTIES,
    LAKELOG_PROPERTIES,
)
from lakelog.dialects.registry import named
from lakelog.model.durations import parse_interval_ms

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "SECURITY.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
TEXTS = {page.relative_to(REPOSITORY).as_posix(): page.read_text("utf-8") for page in PAGES}
README = TEXTS["README.md"]
PROPERTIES = TEXTS["docs/properties.md"]


class Block(NamedTuple):
    language: str
    line: int
    text: str


def blocks(markdown: str) -> list[Block]:
    """Fenced blocks with their language and the line of their first line of code, 1-based."""
    fence = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(match[1], markdown.count("\n", 0, match.start(2)) + 1, match[2])
        for match in fence.finditer(markdown)
    ]


def commands(block: Block) -> list[str]:
    """Command lines of a shell block, without comments."""
    lines = (line.removeprefix("$ ") for line in block.text.splitlines())
    return [line for line in lines if shlex.split(line, comments=True)]


@pytest.fixture
def shell(_quick_spark: None, tmp_path: Path) -> dict[str, str]:
    """An environment whose `lakelog` command is this checkout's."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    script = binaries / "lakelog"
    script.write_text(f"#!{sys.executable}\nfrom lakelog.cli import main\nmain()\n")
    script.chmod(0o755)
    return os.environ | {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY / "engine"),
    }


OWN_PROCESS = {"docs/monitoring.md", "docs/spark.md"}
"""Pages that configure the process: logging and OpenTelemetry's providers, which are set once, and
Spark, whose working folder is that of the first session.
"""


@pytest.mark.parametrize("page", TEXTS)
def test_every_block_of_a_page_runs(
    page: str, tmp_path: Path, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if page in OWN_PROCESS:
        script = f"from tests.test_documentation import run; run({page!r}, {str(tmp_path)!r})"
        searched = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "engine")))
        outcome = subprocess.run(
            [sys.executable, "-c", script],
            env=shell | {"PYTHONPATH": searched},
            capture_output=True,
            text=True,
            check=False,
        )
        assert outcome.returncode == 0, f"{outcome.stdout}\n{outcome.stderr}"
        return
    monkeypatch.chdir(tmp_path)
    run(page, tmp_path, shell)


def run(page: str, folder: str | Path, shell: dict[str, str] | None = None) -> None:
    """Run the blocks of a page in a new working folder, with the environment `shell` (None: that of
    this process).
    """
    work = Path(folder) / "work"
    work.mkdir()
    os.chdir(work)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(TEXTS[page]):
        if block.language == "python":
            # The line breaks give an error the line number of the page.
            exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), names)
        elif block.language == "py":  # needs a service that the tests do not have
            compile(block.text, page, "exec")
        elif block.language != "text":
            assert block.language == "sh", f"{page}, line {block.line}: unknown language"
            for command in commands(block):
                run_or_check(command, work, dict(os.environ) if shell is None else shell)


OTHER_PROGRAMS = {"opentelemetry-sdk", "jupyterlab"}  # other programs that the pages install


DEMO = ["lakelog", "demo", "--directory", "demo"]


@cache
def demo() -> Path:
    """A copy of the folder that the first `DEMO` made, for the other pages that begin with it."""
    return Path(tempfile.mkdtemp(), "demo")


def run_or_check(command: str, work: Path, shell: dict[str, str]) -> None:
    """Run a command; one that changes the machine is compared with what the project defines."""
    words = shlex.split(command, comments=True)
    if words == DEMO and demo().exists():
        shutil.copytree(demo(), work / "demo")
        return
    if words[0] == "make":
        assert set(words[1:]) <= make_targets(), command
        return
    if words[:2] == ["pip", "install"]:
        for requirement in words[2:]:
            if requirement in OTHER_PROGRAMS:
                continue
            match = re.fullmatch(r"lakelog(?:\[([\w,]+)\])?", requirement)
            assert match, command
            assert set((match[1] or "").split(",")) <= {"", *extras()}, command
        return
    if words[0] == "lakelog" and not {"|", "||"} & set(words):
        # In this process, since a process costs a second, and one of Spark ten.
        called = CliRunner().invoke(app, words[1:])
        code, printed, errors = called.exit_code, called.stdout, f"{called.stderr}{called.exc_info}"
    else:
        done = subprocess.run(
            command, shell=True, cwd=work, env=shell, capture_output=True, text=True, check=False
        )
        code, printed, errors = done.returncode, done.stdout, done.stderr
    assert code == 0, f"{command}\n{printed}\n{errors}"
    assert printed.strip(), f"{command} prints nothing"
    if words == DEMO:
        shutil.copytree(work / "demo", demo())


def make_targets() -> set[str]:
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    return set(re.findall(r"^(\w+):(?!=)", makefile, re.MULTILINE))


def extras() -> set[str]:
    return set(PROJECT["optional-dependencies"])


def test_every_command_is_documented() -> None:
    help_text = CliRunner().invoke(app, ["--help"]).stdout
    offered = set(re.findall(r"^  ([a-z][a-z-]*)  ", help_text, re.MULTILINE))
    page = TEXTS["docs/command-line.md"]
    described = set(re.findall(r"^\| `lakelog ([a-z-]+)", page, re.MULTILINE))
    assert described == offered


INTERNAL_METHODS = {"open", "read_state"}  # of Snapshot, for the layers of lakelog itself


@pytest.mark.parametrize("kind", ["Table", "Snapshot"])
def test_every_public_method_is_documented(kind: str) -> None:
    pages = "\n".join(TEXTS.values())
    for name in dir(getattr(lakelog, kind)):
        if not name.startswith("_") and name not in INTERNAL_METHODS:
            assert re.search(rf"\b{name}\b", pages), f"no page mentions {kind}.{name}"


def properties() -> list[list[str]]:
    """Rows of the table of properties: Delta's name, IndexTables', the defaults, the meaning."""
    rows = PROPERTIES.partition("| `delta.` |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in rows]


def test_every_property_of_checkpoints_and_cleanup_is_documented() -> None:
    named = {f"delta.{row[0]}" for row in properties() if row[0]}
    named |= {f"spark.indextables.{row[1]}" for row in properties() if row[1]}
    below = PROPERTIES.partition("| `delta.` |")[2].partition("## ")[0]
    for key in (*DELTA_PROPERTIES, *INDEXTABLES_PROPERTIES, *LAKELOG_PROPERTIES):
        if key.lower().startswith(CHECKPOINT_FAMILIES):
            short = key.removeprefix("spark.indextables.")
            assert key in named or f"`{short}`" in below, key


@pytest.mark.parametrize("row", properties(), ids=lambda row: row[0] or row[1])
def test_documented_default_is_correct(row: list[str]) -> None:
    keys = {"delta": [f"delta.{row[0]}", f"spark.indextables.{row[1]}"]}
    keys["indextables"] = keys["delta"][1:]
    for form, default in zip(("delta", "indextables"), row[2:4], strict=True):
        for key in keys[form]:
            if key.endswith(".") or default in {"", "none"} or default.startswith("as "):
                continue
            value = f"interval {default}" if default[-1] in "ks" and " " in default else default
            if value != default and key.startswith("spark."):
                value = str(parse_interval_ms(value))
            assert CheckpointOptions.of({key: value}, named(form)) == CheckpointOptions.of(
                {}, named(form)
            ), key
            if value.isdecimal():
                other = CheckpointOptions.of({key: str(int(value) + 1)}, named(form))
                assert other != CheckpointOptions.of({}, named(form)), key


PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
IN_THE_REPOSITORY = re.compile(re.escape(PROJECT["urls"]["Source"]) + r"/(?:blob|tree)/main/")


@pytest.mark.parametrize("page", TEXTS)
def test_links_of_a_page_point_at_files(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXTS[page]):
        path, there = IN_THE_REPOSITORY.subn("", target)
        if there or "://" not in target:
            folder = REPOSITORY if there else (REPOSITORY / page).parent
            assert (folder / path.partition("#")[0]).exists(), target


def test_links_of_the_readme_are_absolute() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert any(IN_THE_REPOSITORY.match(target) for target in targets)


def test_the_readme_is_short() -> None:
    assert len(README.encode()) < 8_000


def cells(table: str) -> list[list[str]]:
    lines = (line for line in table.splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_figures_of_the_readme_equal_those_of_the_scale_page() -> None:
    scale = TEXTS["docs/scale.md"].partition("| operation | files |")[2].partition("\n\n")[0]
    measured = [row[2:3] + row[4:] for row in cells(scale) if row[1] == "10M"]
    shown = cells(README.partition("## Measured")[2].partition("\n## ")[0])[1:]
    assert len(shown) == 4
    for row in shown:
        assert row[1:] in measured, row[0]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    # mkdocs --strict checks that each file of the navigation exists.
    navigation = (REPOSITORY / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    listed = set(re.findall(r"[\w./-]+\.md$", navigation, re.MULTILINE))
    contract = (REPOSITORY / "schemas").glob("*.md")
    pages = {page.removeprefix("docs/") for page in TEXTS} - {"README.md"}
    assert listed >= pages | {f"schemas/{page.name}" for page in contract}


def test_list_of_layers_equals_the_import_contract() -> None:
    config = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["tool"]
    layers = config["importlinter"]["contracts"][0]["layers"]
    floor = {room: -n for n, layer in enumerate(layers) for room in layer.split(" | ")}
    page = TEXTS["CONTRIBUTING.md"].partition("lowest layer first: ")[2].partition(";")[0]
    listed = re.findall("`([a-z_]+)`", page)
    assert set(listed) == set(floor)
    assert listed == sorted(listed, key=floor.__getitem__)


def test_every_extra_for_users_is_in_the_readme() -> None:
    for extra in extras() - {"dev", "docs"}:
        assert f"lakelog[{extra}]" in README
