"""Exit codes and error messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog as engine
from lakelog.errors import LakelogWarning
from tests.cli.conftest import COMMITS


def fail_with(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_a_missing_table_is_refused_with_a_hint(lakelog: Any, tmp_path: Path) -> None:
    outcome = lakelog("info", tmp_path)
    assert (outcome.code, outcome.raw) == (1, b"")
    assert outcome.errors.startswith("lakelog: the folder does not exist or is empty\n")
    assert "table_not_found" in outcome.errors
    assert "_delta_log or _transaction_log" in outcome.errors
    assert "Next: pass the table's own folder" in outcome.errors
    assert "Traceback" not in outcome.errors


def test_folder_of_parquet_files_without_a_log_is_referred_to_convert(
    lakelog: Any, tmp_path: Path
) -> None:
    (tmp_path / "day=1").mkdir()
    pl.DataFrame({"id": [1]}).write_parquet(tmp_path / "day=1" / "a.parquet")
    outcome = lakelog("info", tmp_path)
    assert outcome.errors.startswith("lakelog: log folder not found\n")
    assert "Parquet files without a log" in outcome.errors
    assert "lakelog convert" in outcome.errors


def test_control_characters_in_a_path_are_escaped_in_errors(lakelog: Any, tmp_path: Path) -> None:
    outcome = lakelog("info", tmp_path / "a\x1b[2J\nb")
    assert outcome.code == 1
    assert "\x1b" not in outcome.errors
    assert "a\\x1b[2J\\nb" in outcome.errors


REFUSED: dict[tuple[str | int, ...], tuple[int, str]] = {
    ("files", "TABLE", "--version", 1000): (1, "0 to 59"),
    ("files", "TABLE", "--columns", "pth"): (2, "did you mean path?"),
    ("files", "TABLE", "--where", "dya = 1"): (2, "did you mean day?"),
    ("files", "TABLE", "--to", "no/such.csv"): (1, "such.csv"),
    ("blame", "TABLE", "nowhere.parquet"): (1, "nowhere.parquet"),
    ("convert", "nowhere"): (1, "Next: check the path"),
    ("vacuum", "TABLE", "--retention", "0d"): (2, "--force"),
    ("cleanup", "TABLE", "--retention", "0d"): (2, "--force"),
    ("compact", "TABLE", "--target-bytes", "9" * 5000): (2, "write 134217728, 128MB or 1G"),
    ("demo", "--dir", "file"): (2, "the location is a file"),
    ("replay", "TABLE", "--out", "file"): (2, "directory is a file"),
}


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: f"{words[0]} {str(words[-1])[:20]}")
def test_error_has_the_reason_or_the_next_step(
    lakelog: Any, table: str, words: tuple[Any, ...], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("existing content")
    outcome = lakelog(*(table if word == "TABLE" else word for word in words))
    code, part = REFUSED[words]
    assert (outcome.code, part in outcome.errors) == (code, True), outcome.errors
    assert Path("file").read_text() == "existing content"


@pytest.mark.parametrize(
    "words",
    [
        ("files", "TABLE", "--no-such-option"),
        ("files", "TABLE", "--version", "-1"),
        ("files", "TABLE", "--version", "new"),
        ("files", "TABLE", "--output", "xml"),
        ("files", "TABLE", "--version", "1", "--timestamp", "2026-01-01"),
        ("files", "TABLE", "--timestamp", "yesterday"),
        ("files", "TABLE", "--columns", "pth"),
        ("files", "TABLE", "--where", "dya = 1"),
        ("files", "TABLE", "--where", "amount >"),
        ("files", "TABLE", "--storage-option", "anon"),
        ("files",),
        ("actions", "TABLE", "--start", "9", "--end", "3"),
        ("actions", "TABLE", "--start", "-1"),
        ("undo", "TABLE", "yesterday"),
        ("diff", "TABLE", "a", "b"),
        ("replay", "TABLE"),
        ("replay", "TABLE", "--out", "x", "--max-part-bytes", "0"),
        ("replay", "TABLE", "--out", "x", "--max-part-bytes", "many"),
        ("blame", "TABLE"),
        ("demo", "--commits", "3"),
        ("wal", "replay", ""),
        ("wal", "truncate", "", "3", "--apply"),
        ("no-such-command",),
    ],
    ids=" ".join,
)
def test_usage_error_exits_with_2_and_prints_the_reason(
    lakelog: Any, table: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = lakelog(*(table if word == "TABLE" else word for word in words))
    assert (outcome.code, outcome.raw) == (2, b"")
    assert outcome.errors.strip()
    assert "Traceback" not in outcome.errors


def test_damage_is_reported_with_file_and_byte_offset(lakelog: Any, tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    (log / f"{0:020d}.json").write_text('{"add":\n')
    outcome = lakelog("files", tmp_path)
    assert outcome.code == 1
    assert f"{0:020d}.json" in outcome.errors
    assert "byte offset" in outcome.errors


@pytest.mark.parametrize("words", [("--debug", "info", "X"), ("info", "X", "--debug")])
def test_debug_shows_the_traceback(lakelog: Any, tmp_path: Path, words: tuple[str, ...]) -> None:
    outcome = lakelog(*(tmp_path if word == "X" else word for word in words))
    assert outcome.code == 1
    assert "Traceback (most recent call last)" in outcome.errors
    assert "lakelog: the folder does not exist or is empty" in outcome.errors


def test_unexpected_error_is_short_and_refers_to_debug(
    lakelog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "open", fail_with(RuntimeError("a wheel\ncame off")))
    outcome = lakelog("info", "x")
    assert outcome.code == 1
    assert "RuntimeError: a wheel\n" in outcome.errors
    assert "--debug" in outcome.errors
    assert "Traceback" not in outcome.errors
    assert "Traceback" in lakelog("info", "x", "--debug").errors


def test_panic_of_a_library_prints_no_traceback(
    lakelog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    monkeypatch.setattr(engine, "open", fail_with(PanicException("oh")))
    outcome = lakelog("info", "x")
    assert outcome.code == 1
    assert "PanicException: oh" in outcome.errors


def test_an_interruption_exits_with_130(lakelog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "open", fail_with(KeyboardInterrupt()))
    outcome = lakelog("info", "x")
    assert outcome.code == 130
    assert "Traceback" not in outcome.errors


def test_an_interruption_of_the_imports_exits_with_130(repository: Path) -> None:
    code = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'lakelog.cli.table': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from lakelog.cli import main\n"
        "main()\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(repository / "engine")},
    )
    assert (outcome.returncode, outcome.stderr) == (130, "interrupted\n")


def test_a_memory_limit_below_the_minimum_names_it(lakelog: Any, table: str) -> None:
    outcome = lakelog("checkpoint", table, "--memory-limit", "1kb")
    assert re.search(r"expected  at least [\d,]+ MiB\n *found +1.0 KiB\n", outcome.errors)


@pytest.mark.parametrize("command", ["actions", "changes"])
def test_an_empty_range_of_versions_shows_its_ends(lakelog: Any, table: str, command: str) -> None:
    outcome = lakelog(command, table, "--start", 5, "--end", 3)
    assert "0 <= start <= 3" in outcome.errors
    assert "start=5, end=3" in outcome.errors
    outcome = lakelog(command, table, "--start", 999)
    assert f"start=999, end={COMMITS - 1}" in outcome.errors


def test_repeated_warning_is_printed_as_one_note(
    lakelog: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = engine.open

    def warn(*arguments: Any, **options: Any) -> engine.Table:
        for _time in range(2):
            warnings.warn("the checkpoint was skipped", LakelogWarning, stacklevel=1)
        warnings.warn("not for users", DeprecationWarning, stacklevel=1)
        return plain(*arguments, **options)

    monkeypatch.setattr(engine, "open", warn)
    outcome = lakelog("info", table)
    assert outcome.code == 0
    assert outcome.errors == "note: the checkpoint was skipped\n"


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_binary_output_to_a_terminal_is_refused(
    lakelog: Any, table: str, form: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    outcome = lakelog("files", table, "--output", form)
    assert (outcome.code, outcome.raw) == (2, b"")
    assert "--to FILE" in outcome.errors
    assert lakelog("files", table, "--output", form, "--to", tmp_path / "x").code == 0


def test_a_full_output_folder_is_refused(lakelog: Any, table: str, tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    outcome = lakelog("replay", table, "--out", tmp_path)
    assert outcome.code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["something"]


def test_a_closed_pipe_is_quiet(table: str, repository: Path) -> None:
    command = f"{sys.executable} -m lakelog actions {table} -o json | head -c 1"
    outcome = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(repository / "engine")},
    )
    assert (outcome.stdout, outcome.stderr) == ("[", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_under_the_output_is_reported_with_its_reason(
    table: str, repository: Path
) -> None:
    def outcome(command: str) -> tuple[int, str]:
        found = subprocess.run(
            f"{sys.executable} -m lakelog {command}",
            shell=True,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(repository / "engine")},
        )
        return found.returncode, found.stderr.splitlines()[0] if found.stderr else ""

    full = "lakelog: the output cannot be written: [Errno 28] No space left on device"
    assert outcome(f"info {table} > /dev/full") == (1, full)
    assert outcome(f"doctor {table} > /dev/full") == (3, full)
    assert outcome("--help > /dev/full") == (1, full)
    assert outcome(f"info {table} >&-") == (0, "")


def test_limit_that_no_frame_can_have_is_refused(lakelog: Any, table: str) -> None:
    for limit, code in ((2**32 - 1, 0), (2**32, 2), (10**30, 2)):
        assert lakelog("history", table, "--limit", limit, "--output", "json").code == code


@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_column_that_is_named_twice_is_refused(lakelog: Any, table: str, output: str) -> None:
    outcome = lakelog("files", table, "--columns", "path,size,path", "--output", output)
    assert (outcome.code, "a column is requested twice" in outcome.errors) == (2, True)


def test_unknown_action_type_is_reported(lakelog: Any, table: str) -> None:
    outcome = lakelog("actions", table, "--type", "metadata", "--output", "json")
    assert (outcome.code, outcome.text.strip()) == (0, "[]")
    assert "no actions of type metadata, only of add, cdc," in outcome.errors
