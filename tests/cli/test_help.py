"""Help is fast and complete, and its examples are valid calls."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click_man.core import write_man_pages  # type: ignore[import-untyped]

from lakelog.cli.app import SECTIONS, app

READING = (
    "actions blame cache changes compat demo diff doctor files history info replay report rows top"
).split()
UPKEEP = "checkpoint checksum cleanup repair replicate simulate undo vacuum verify".split()
ROWS = ["clone", "compact", "compact-log", "convert", "delete", "ingest", "restore"]
COMMANDS = tuple(sorted([*READING, *UPKEEP, *ROWS, "spark", "wal", "completion", "help"]))
HEAVY = ("polars", "pyarrow", "fsspec", "numpy", "orjson", "rich", "asyncio")


def examples(name: str) -> list[str]:
    epilog = app.commands[name].epilog or ""
    return [line.strip() for line in epilog.splitlines() if line.startswith("  ")]


def test_commands_are_those_of_the_design() -> None:
    assert sorted(app.commands) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_parse(name: str, lakelog: Any) -> None:
    found = examples(name)
    assert found
    for example in found:
        program, command, *words = shlex.split(example)
        assert (program, command) == ("lakelog", name)
        app.commands[name].make_context(name, words)  # raises a usage error if the call is invalid


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_examples_and_describes_every_option(name: str, lakelog: Any) -> None:
    outcome = lakelog(name, "--help")
    assert outcome.code == 0
    for example in examples(name):
        assert example in outcome.text
    for parameter in app.commands[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_call_without_arguments_shows_help(lakelog: Any) -> None:
    outcome = lakelog()
    assert outcome.code == 2
    assert "replay" in outcome.text + outcome.errors


def test_version_option_prints_the_version(lakelog: Any) -> None:
    assert lakelog("--version").text.startswith("lakelog ")


def test_the_list_of_commands_has_sections(lakelog: Any) -> None:
    text = lakelog("--help").text
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", text, re.MULTILINE)
    assert sorted(listed) == sorted(app.commands)
    for title in (*SECTIONS, "Other commands"):
        assert f"{title}:\n" in text


@pytest.mark.parametrize("words", [(), ("history",), ("wal",), ("wal", "replay")])
def test_help_command_equals_help_option(lakelog: Any, words: tuple[str, ...]) -> None:
    assert lakelog("help", *words).text == lakelog(*words, "--help").text


def test_help_of_an_unknown_command_lists_the_valid_ones(lakelog: Any) -> None:
    outcome = lakelog("help", "wal", "walk")
    assert outcome.code == 2
    assert "unknown command: walk" in outcome.errors
    assert "truncate" in outcome.errors


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(
    lakelog: Any, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = lakelog("completion", shell).text
    assert "_LAKELOG_COMPLETE" in script
    monkeypatch.setenv("_LAKELOG_COMPLETE", f"{shell}_complete")
    asked = {"COMP_WORDS": "lakelog his", "COMP_CWORD": "his" if shell == "fish" else "1"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert "history" in lakelog().text


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("rows", "file,"),
        ("rows orders --to", "file,"),
        ("ingest orders first.csv", "file,"),
        ("report orders --out", "file,"),
        ("wal inspect", "file,"),
        ("checkpoint orders --layout", "plain,v2-parquet"),
        ("actions orders --type", "plain,commitInfo"),
        ("help", "plain,wal"),
        ("help wal", "plain,truncate"),
    ],
)
def test_a_shell_completes_values(
    lakelog: Any, words: str, completed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_LAKELOG_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"lakelog {words} ")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) + 1))
    assert completed in lakelog().text.splitlines()


@pytest.mark.filterwarnings("ignore:.*make_default_short_help:DeprecationWarning")
def test_every_command_has_a_manual_page(tmp_path: Path) -> None:
    write_man_pages("lakelog", app, version="1", target_dir=str(tmp_path))
    for name in app.commands:
        page = (tmp_path / f"lakelog-{name}.1").read_text()
        assert ".SH SYNOPSIS" in page
        for parameter in app.commands[name].params:
            assert max(parameter.opts, key=len) in page.replace("\\-", "-") or not parameter.opts[
                0
            ].startswith("-")


@pytest.mark.parametrize("words", [["--help"], ["files", "--help"], ["files", "--bad"]])
def test_help_and_usage_errors_import_no_heavy_package(repository: Path, words: list[str]) -> None:
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
