"""`lakelog wal`: output, effect and exit codes."""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import polars as pl
import pytest

from lakelog import WriteAheadLog
from lakelog.cli.app import app, run
from tests.cli.conftest import Call
from tests.wal.historic_model import Writer002, file_003, record_002

GROUP = app.commands["wal"]
assert isinstance(GROUP, click.Group)
NAMES = sorted(GROUP.commands)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Nine records, three files, the first six records truncated."""
    folder = tmp_path / "events"
    with WriteAheadLog(folder, segment_bytes=250) as made:
        for n in range(9):
            made.append("PUT", f"key-{n % 4}", f"value-{n}")
        made.append("DELETE", "key-0")
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A log of specification 002 with a torn tail."""
    folder = tmp_path / "old"
    folder.mkdir()
    writer = Writer002(marks_batches=True)
    writer.append_batch([("PUT", b"a", b"1"), ("PUT", b"b", b"2"), ("DELETE", b"a", b"")])
    (folder / "000001.wal").write_bytes(bytes(writer.files[0]) + b"torn")
    return folder


def rows(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def damage(folder: Path) -> Path:
    path = sorted(folder.glob("*.wal"))[1]
    data = bytearray(path.read_bytes())
    data[-90] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_help_describes_every_option_and_its_examples_parse(lakelog: Call, name: str) -> None:
    assert isinstance(GROUP, click.Group)
    command = GROUP.commands[name]
    text = lakelog("wal", name, "--help").text
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
    examples = [line for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    assert examples
    for example in examples:
        assert example in text
        program, group, called, *words = shlex.split(example)
        assert (program, group, called) == ("lakelog", "wal", name)
        command.make_context(name, words)


def test_the_commands_are_those_of_the_design() -> None:
    assert NAMES == ["inspect", "replay", "truncate", "upgrade"]


# --- inspect --------------------------------------------------------------------------------------


def test_valid_log_is_shown_with_one_row_per_file(lakelog: Call, log: Path) -> None:
    before = contents(log)
    outcome = lakelog("wal", "inspect", log)
    assert outcome.code == 0
    assert "10 records" in outcome.text
    assert "safe up to sequence number 10" in outcome.text
    assert "problem" not in outcome.text
    found = rows(lakelog("wal", "inspect", log, "-o", "json").text)
    assert [row["path"] for row in found] == [str(path) for path in sorted(log.glob("*.wal"))]
    assert sum(row["records"] for row in found) == 10
    assert {row["status"] for row in found} == {"live"}
    assert found[0]["created"].endswith("Z")
    assert (found[0]["first_seq"], found[-1]["last_seq"], found[0]["findings"]) == (1, 10, [])
    assert contents(log) == before


@pytest.mark.parametrize("form", ["csv", "parquet", "arrow"])
def test_files_are_listed_in_every_format(lakelog: Call, log: Path, form: str) -> None:
    raw = lakelog("wal", "inspect", log, "-o", form).raw
    read: dict[str, Callable[[io.BytesIO], pl.DataFrame]] = {
        "csv": pl.read_csv,
        "parquet": pl.read_parquet,
        "arrow": pl.read_ipc_stream,
    }
    frame = read[form](io.BytesIO(raw))
    assert frame["records"].sum() == 10


def test_a_torn_tail_is_a_finding(lakelog: Call, old: Path) -> None:
    outcome = lakelog("wal", "inspect", old)
    assert outcome.code == 1
    for words in ("specification 002", "torn tail", "the file ends within a record", "4 B not"):
        assert words in outcome.text
    (row,) = rows(lakelog("wal", "inspect", old, "-o", "json").text)
    (finding,) = row["findings"]
    assert (row["problem"], finding["kind"], finding["size_bytes"]) == ("torn tail", "torn_tail", 4)
    assert finding["byte_offset"] == (old / "000001.wal").stat().st_size - 4
    # A finding and a doubt have a line each.
    *_, summary, found, doubt = outcome.text.splitlines()
    assert summary.endswith("safe up to sequence number 5")
    assert (found.startswith("torn tail: "), doubt.startswith("in doubt: ")) == (True, True)


def test_control_characters_in_a_path_are_escaped(lakelog: Call, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m\nb"
    path.write_bytes(file_003([(b"k", b"v"), (b"l", b"w")], is_checked=True)[:-1])
    outcome = lakelog("wal", "inspect", path)
    assert outcome.code == 1
    assert "\x1b" not in outcome.text + outcome.errors


def test_damage_is_a_finding_with_the_safe_segments(lakelog: Call, log: Path) -> None:
    path = damage(log)
    outcome = lakelog("wal", "inspect", log)
    assert outcome.code == 1
    assert f"({path.name} at byte" in outcome.text
    found = rows(lakelog("wal", "inspect", log, "-o", "json").text)
    assert [row["status"] for row in found][:2] == ["live", "damaged"]
    assert [row["problem"] for row in found if row["problem"]] == ["damage"]


def test_an_interrupted_upgrade_is_a_finding(lakelog: Call, old: Path) -> None:
    (old / "wal.upgrade").write_bytes(b"")
    found = rows(lakelog("wal", "inspect", old, "-o", "json").text)
    assert [row["problem"] for row in found] == ["torn tail", "unfinished upgrade"]


def test_path_that_is_not_a_log_is_refused(lakelog: Call, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not a log of any format, and long enough to detect that")
    assert lakelog("wal", "inspect", tmp_path / "nowhere").code == 1
    outcome = lakelog("wal", "inspect", tmp_path / "notes")
    assert (outcome.code, "cannot be determined" in outcome.errors) == (2, True)
    assert lakelog("wal", "inspect", tmp_path, "--format", "004").code == 2


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A log of specification 003 without checksums."""
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "wal.log").write_bytes(file_003([(b"k", b"v"), (b"l", b"w")], is_checked=False))
    return folder


def test_doubts_are_reported_and_are_not_findings(lakelog: Call, plain: Path) -> None:
    outcome = lakelog("wal", "inspect", plain)
    assert (outcome.code, "in doubt: without checksums" in outcome.text) == (0, True)
    (row,) = rows(lakelog("wal", "inspect", plain, "-o", "json").text)
    assert "without checksums" in row["doubts"][0]
    outcome = lakelog("wal", "replay", plain, "-o", "json")
    assert (outcome.code, len(rows(outcome.text))) == (0, 2)
    assert "note: in doubt: without checksums" in outcome.errors
    outcome = lakelog("wal", "upgrade", plain)
    assert (outcome.code, "in doubt" in outcome.text) == (0, True)


def test_hints_name_command_line_options(
    lakelog: Call, log: Path, plain: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("not a log of any format, and long enough to detect that")
    assert "--format 003" in lakelog("wal", "inspect", tmp_path / "notes").errors
    outcome = lakelog("wal", "replay", plain, "--format", "003-crc")
    assert (outcome.code, "one of specification 003" in outcome.errors) == (2, True)
    damage(log)
    errors = lakelog("wal", "replay", log).errors
    assert "--safe" in errors
    assert "strict" not in errors


@pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")
def test_named_pipe_is_refused_without_waiting(lakelog: Call, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("inspect", "replay"):
        outcome = lakelog("wal", name, tmp_path / "pipe")
        assert (outcome.code, "neither a file nor a folder" in outcome.errors) == (2, True)


def test_single_file_can_be_inspected_and_replayed_but_not_changed(
    lakelog: Call, plain: Path
) -> None:
    file = plain / "wal.log"
    assert lakelog("wal", "inspect", file).code == 0
    assert lakelog("wal", "replay", file).code == 0
    for name, code, *more in (("upgrade", 1), ("truncate", 2, 1)):
        outcome = lakelog("wal", name, file, *more)
        assert (outcome.code, "the path is a file" in outcome.errors) == (code, True)
        assert "pass the folder" in outcome.errors


def test_folder_named_like_a_segment_is_refused(lakelog: Call, tmp_path: Path) -> None:
    (tmp_path / "000001.wal").mkdir()
    for name, *more in (("inspect",), ("replay",), ("upgrade",), ("truncate", 1)):
        assert lakelog("wal", name, tmp_path, *more).code == 1


@pytest.mark.parametrize("form", ["table", "json", "csv", "parquet", "arrow"])
def test_closed_output_pipe_exits_with_141(
    log: Path, form: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert run(app, ["wal", "replay", str(log), "-o", form]) == 141
    assert capfd.readouterr().err == ""


# --- replay ---------------------------------------------------------------------------------------


def test_records_are_replayed_as_text_and_as_bytes(lakelog: Call, log: Path) -> None:
    outcome = lakelog("wal", "replay", log)
    assert outcome.code == 0
    assert "value-8" in outcome.text
    assert "10 records" in outcome.text
    found = rows(lakelog("wal", "replay", log, "--text", "--after", 8, "-o", "json").text)
    assert found == [
        {"seqNum": 9, "op": "PUT", "key": "key-0", "value": "value-8"},
        {"seqNum": 10, "op": "DELETE", "key": "key-0", "value": None},
    ]
    (row,) = rows(lakelog("wal", "replay", log, "--after", 9, "-o", "json").text)
    assert row["key"] == "a2V5LTA="
    frame = pl.read_parquet(io.BytesIO(lakelog("wal", "replay", log, "-o", "parquet").raw))
    assert frame.schema["key"] == pl.Binary()
    assert frame["seqNum"].to_list() == list(range(1, 11))


def test_the_state_is_each_keys_last_value(lakelog: Call, log: Path, old: Path) -> None:
    found = rows(lakelog("wal", "replay", log, "--state", "--text", "-o", "json").text)
    assert {row["key"]: row["value"] for row in found} == {
        "key-1": "value-5",
        "key-2": "value-6",
        "key-3": "value-7",
    }
    found = rows(lakelog("wal", "replay", old, "--state", "--text", "-o", "json").text)
    assert [(row["key"], row["value"]) for row in found] == [("b", "2")]
    assert lakelog("wal", "replay", log, "--state", "--after", 3).code == 2


def test_a_historic_log_is_replayed_without_its_torn_tail(lakelog: Call, old: Path) -> None:
    outcome = lakelog("wal", "replay", old, "--text", "-o", "json")
    assert outcome.code == 0
    assert [row["seqNum"] for row in rows(outcome.text)] == [2, 3, 4]
    (old.parent / "copy").write_bytes(file_003([(b"k", b"v")], is_checked=False))
    outcome = lakelog("wal", "replay", old.parent / "copy", "--format", "003")
    assert (outcome.code, "1 record" in outcome.text) == (0, True)


def test_text_option_refuses_bytes_that_are_not_utf8(lakelog: Call, tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path / "log") as log:
        log.append("PUT", b"\xff", b"v")
    assert "xff" in lakelog("wal", "replay", tmp_path / "log").text
    outcome = lakelog("wal", "replay", tmp_path / "log", "--text")
    assert (outcome.code, "UTF-8" in outcome.errors) == (2, True)


@pytest.mark.parametrize("which", ["log", "old"])
def test_damaged_log_is_replayed_only_with_safe(
    lakelog: Call, which: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(which)
    if which == "log":
        damage(folder)
    else:
        path = folder / "000001.wal"
        path.write_bytes(path.read_bytes()[:-4] + record_002(9, "PUT", b"late", b"v"))
    outcome = lakelog("wal", "replay", folder)
    assert outcome.code == 1
    assert "safe seq" in outcome.errors
    outcome = lakelog("wal", "replay", folder, "--safe", "-o", "json")
    assert outcome.code == 1
    assert 0 < len(rows(outcome.text)) < 10
    assert "note: damage:" in outcome.errors


# --- upgrade --------------------------------------------------------------------------------------


def test_upgrade_reports_changes_and_findings(lakelog: Call, old: Path) -> None:
    outcome = lakelog("wal", "upgrade", old)
    assert outcome.code == 1  # the torn tail
    for words in ("specification 002", "000001.wal.upgraded", "torn tail"):
        assert words in outcome.text
    assert lakelog("wal", "inspect", old).code == 0
    outcome = lakelog("wal", "upgrade", old)
    assert (outcome.code, "earlier" in outcome.text) == (0, True)


def test_upgrade_removes_the_old_files_with_remove_old(lakelog: Call, tmp_path: Path) -> None:
    (tmp_path / "wal.log").write_bytes(file_003([(b"k", b"v")], is_checked=True))
    outcome = lakelog("wal", "upgrade", tmp_path, "--remove-old", "-o", "json")
    assert outcome.code == 0
    (row,) = rows(outcome.text)
    assert (row["format"], row["records"], row["old_files"]) == ("003-crc", 1, [])
    assert sorted(contents(tmp_path)) == ["00000000000000000001.wal", "wal.lock"]


def test_damaged_log_is_upgraded_only_with_safe(lakelog: Call, old: Path) -> None:
    path = old / "000001.wal"
    path.write_bytes(path.read_bytes()[:-4] + record_002(9, "PUT", b"late", b"v"))
    assert lakelog("wal", "upgrade", old).code == 1
    assert path.exists()
    outcome = lakelog("wal", "upgrade", old, "--safe")
    assert outcome.code == 1
    assert "damage: " in outcome.text
    assert not path.exists()


# --- truncate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("relative", [False, True])
def test_a_truncation_is_planned_first(
    lakelog: Call, log: Path, monkeypatch: pytest.MonkeyPatch, *, relative: bool
) -> None:
    if relative:
        monkeypatch.chdir(log.parent)
        log = Path(log.name)
    before = contents(log)
    outcome = lakelog("wal", "truncate", log, 10)
    assert outcome.code == 0
    assert "nothing is changed without --apply" in outcome.text
    assert "10 records would be truncated" in outcome.text
    assert contents(log) == before
    planned = rows(lakelog("wal", "truncate", log, 10, "-o", "json").text)
    done = rows(lakelog("wal", "truncate", log, 10, "--apply", "-o", "json").text)
    assert planned
    assert [row["path"] for row in done] == [row["path"] for row in planned]
    assert {row["outcome"] for row in done} == {"removed"}
    with WriteAheadLog(log) as made:
        assert made.append("PUT", "k", "v") == 11


def test_truncation_of_a_damaged_log_is_neither_planned_nor_applied(
    lakelog: Call, log: Path
) -> None:
    damage(log)
    before = contents(log)
    for more in ((), ("--apply",)):
        outcome = lakelog("wal", "truncate", log, 1, *more)
        assert (outcome.code, "safe seq" in outcome.errors) == (1, True)
    assert contents(log) == before


def test_a_truncation_keeps_files_with_other_records(lakelog: Call, log: Path) -> None:
    outcome = lakelog("wal", "truncate", log, 5, "--apply")
    assert outcome.code == 0
    for words in ("truncated up to sequence number 5", "5 records left"):
        assert words in outcome.text
    assert "truncated up to sequence number 5" in lakelog("wal", "inspect", log).text
    found = rows(lakelog("wal", "replay", log, "-o", "json").text)
    assert [row["seqNum"] for row in found] == [6, 7, 8, 9, 10]


def test_invalid_truncation_is_a_usage_error(lakelog: Call, log: Path, old: Path) -> None:
    before = contents(log)
    for more in ((), ("--apply",)):
        outcome = lakelog("wal", "truncate", log, 11, *more)
        assert (outcome.code, "0 to 10" in outcome.errors) == (2, True)
    assert contents(log) == before
    outcome = lakelog("wal", "truncate", old, 1)
    assert (outcome.code, "lakelog wal upgrade" in outcome.errors) == (2, True)
    assert lakelog("wal", "truncate", log, -1).code == 2
