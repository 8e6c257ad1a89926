"""Help is fast and complete, and its examples are valid calls."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from lakelog.cli.app import app

READING = "actions blame cache changes demo diff files history info replay rows".split()
UPKEEP = "checkpoint checksum cleanup repair replicate simulate undo vacuum verify".split()
ROWS = ["clone", "compact", "compact-log", "convert", "delete", "ingest", "restore"]
COMMANDS = tuple(sorted([*READING, *UPKEEP, *ROWS, "spark", "wal"]))
HEAVY = ("polars", "pyarrow", "fsspec", "numpy", "orjson", "rich", "asyncio")


def examples(name: str) -> list[str]:
    epilog = app.commands[name].epilog or ""
    return [line.strip() for line in epilog.splitlines() if line.startswith("  ")]


def test_the_commands_are_those_of_the_design() -> None:
    assert sorted(app.commands) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_parse(name: str, lakelog: Any) -> None:
    found = examples(name)
    assert found
    for example in found:
        program, command, *words = shlex.split(example)
        assert (program, command) == ("lakelog", name)
        app.commands[name].make_context(name, words)  # raises a usage error if it is none


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_examples_and_describes_every_option(name: str, lakelog: Any) -> None:
    outcome = lakelog(name, "--help")
    assert outcome.code == 0
    for example in examples(name):
        assert example in outcome.text
    for parameter in app.commands[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_no_word_at_all_shows_help(lakelog: Any) -> None:
    outcome = lakelog()
    assert outcome.code == 2
    assert "replay" in outcome.text + outcome.errors


def test_the_version_is_told(lakelog: Any) -> None:
    assert lakelog("--version").text.startswith("lakelog ")


@pytest.mark.parametrize("words", [["--help"], ["files", "--help"], ["files", "--bad"]])
def test_help_and_usage_errors_import_nothing_heavy(repository: Path, words: list[str]) -> None:
    code = (
        "import sys\n"
        "from lakelog.cli import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit:\n"
        f"    print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(repository / "engine")},
    )
    assert outcome.stderr.splitlines()[-1] == "[]"


def test_the_package_runs_as_a_module(repository: Path) -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "lakelog", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(repository / "engine")},
    )
    assert outcome.stdout.startswith("lakelog ")
