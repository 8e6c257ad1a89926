"""Text output: units, times, clipping, summaries; on a terminal and in a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
import pytest
from rich.cells import cell_len

import lakelog as engine
from lakelog.cli import rendering

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(
    repository: Path,
    *words: str,
    columns: int = 100,
    errors: bool = False,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The output, or error output, of a command on a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    chosen = {"PYTHONPATH": str(repository / "engine"), "TERM": "xterm-256color"}
    hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    environment |= chosen | dict(environ)
    null_device = subprocess.DEVNULL
    with subprocess.Popen(
        [sys.executable, "-m", "lakelog", *words],
        stdout=null_device if errors else theirs,
        stderr=theirs if errors else null_device,
        env=environment,
    ):
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65_536):
                shown += chunk
        except OSError:
            pass  # Linux raises this when the other side has closed.
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def test_files_are_shown_in_readable_units_with_a_count(lakelog: Any, table: str) -> None:
    lines = lakelog("files", table, "--limit", 5).text.splitlines()
    assert lines[0].split() == ["path", "size", "modificationTime", "version"]
    assert re.search(r"day=2026-01-01/region=apac/part-.*\.parquet +[\d.]+ [KM]iB ", lines[1])
    assert re.search(r"2026-01-\d\dT\d\d:00:00Z", lines[1])
    total = engine.open(table).snapshot().num_files()
    assert lines[6].startswith(f"5 of {total} files shown · --limit {total} shows all · ")
    assert lines[6].endswith("KiB · version 59")


def test_table_output_is_limited_to_50_rows_by_default(lakelog: Any, table: str) -> None:
    assert len(lakelog("history", table).text.splitlines()) == 52
    assert len(lakelog("history", table, "--limit", 60).text.splitlines()) == 62


def test_the_disk_cache_is_shown_and_cleared(
    lakelog: Any, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, cache = tmp_path / "orders", str(tmp_path / "cache")
    shutil.copytree(table, root)
    for file in root.rglob("*.checkpoint.*"):
        os.utime(file, (0, 0))
    assert lakelog("cache").code == 2
    monkeypatch.setenv("LAKELOG_CACHE", cache)
    assert lakelog("cache").text.splitlines()[-1].startswith("0 checkpoints")
    files = lakelog("files", root).text
    (row,) = json.loads(lakelog("cache", "--output", "json").text)
    assert (row["table"], row["version"]) == (str(root), 40)
    assert row["size_bytes"] == engine.DiskCache(cache).size_bytes > 0
    assert lakelog("files", root).text == files
    assert "1 checkpoint" in lakelog("cache", "--clear", "--directory", cache).text
    assert not engine.DiskCache(cache).entries().height


def test_summary_of_pruned_files_has_the_total_number(lakelog: Any, table: str) -> None:
    total = engine.open(table).snapshot().num_files()
    text = lakelog("files", table, "--where", "day = '2026-01-01' and region = 'eu'").text
    assert f"of {total} files in the table" in text


def test_flattened_partitions_and_statistics_are_columns(lakelog: Any, table: str) -> None:
    text = lakelog("files", table, "--stats", "--flatten", "-n", 2).text
    for name in ("partition.day", "partition.region", "numRecords", "min", "max"):
        assert name in text.splitlines()[0]
    assert "quantity=1" in text


def test_history_shows_user_operation_and_metrics_in_words(lakelog: Any, table: str) -> None:
    text = lakelog("history", table, "--limit", 13).text
    assert "STREAMING UPDATE  stream" in text
    assert "OPTIMIZE          housekeeping" in text
    assert "2026-01-03T11:00:00Z" in text
    assert re.search(r"output rows [\d,]+, files \d+, output bytes [\d.]+ [KM]iB", text)
    assert text.splitlines()[-1].startswith("13 commits")


def test_diff_counts_what_changed(lakelog: Any, table: str) -> None:
    text = lakelog("diff", table, 19, 31, "--limit", 3).text
    assert "1 schema field added" in text
    assert "2 properties added" in text
    assert "1 txn changed" in text
    assert text.splitlines()[-1].endswith("from version 19 to 31")


def test_blame_shows_when_a_file_may_be_vacuumed(lakelog: Any, table: str) -> None:
    path = engine.open(table).diff(40, 50).filter(pl.col("change") == "removed")["name"][0]
    lines = lakelog("blame", table, path).text.splitlines()
    assert " add " in lines[1]
    assert " remove " in lines[2]
    # 14 days after the compaction at 23:00 on the second day.
    assert lines[-1] == "2 events · removed; may be vacuumed after 2026-01-16T23:00:00Z"


def test_info_shows_the_facts(lakelog: Any, table: str) -> None:
    text = lakelog("info", table).text
    for fact in (
        r"path +\S+orders",
        r"format +delta",
        r"version +59, committed 2026-01-03T11:00:00Z",
        r"columns +order_id long, customer string, amount decimal\(10,2\)",
        r"partitioned by +day, region",
        r"properties +.*delta.checkpointInterval=100",
        r"protocol +reader 1, writer 2",
        r"files +\d+ files, [\d.]+ KiB",
        r"tombstones +\d+",
        r"read from +the classic checkpoint at 40 \(1 file\) and 19 commits",
        r"can be rebuilt +versions 0 to 59",
    ):
        assert re.search(f"^{fact}", text, re.MULTILINE), fact


def test_info_shows_the_types_inside_nested_columns(lakelog: Any, tmp_path: Path) -> None:
    nested = {"l": pl.List(pl.Int64), "s": pl.Struct({"a": pl.List(pl.Date)})}
    engine.create(tmp_path / "t", nested, upkeep=False)
    assert "l array<long>, s struct<a:array<date>>" in lakelog("info", tmp_path / "t").text
    (facts,) = json.loads(lakelog("info", tmp_path / "t", "--output", "json").text)
    assert facts["columns"][0] == {"name": "l", "type": "array<long>"}


def test_info_of_an_indextables_table(lakelog: Any, corpus: Path) -> None:
    text = lakelog("info", corpus / "indextables" / "16_with_skip_actions").text
    assert re.search(r"^format +indextables", text, re.MULTILINE)
    assert "avro-state checkpoint" in text


def test_clone_is_read_and_changed_with_files_of_its_source(lakelog: Any, tmp_path: Path) -> None:
    source, clone = tmp_path / "the source", tmp_path / "clone"
    engine.write(source, pl.DataFrame({"id": [1, 2, 3]}))
    engine.open(source).append(pl.DataFrame({"id": [4]}))
    made = lakelog("clone", source, clone)
    printed = next(line for line in made.text.splitlines() if "lakelog rows" in line)
    name, *words = shlex.split(printed[printed.index("lakelog rows") :])
    assert (name, lakelog(*words, "--output", "csv").text.split()) == (
        "lakelog",
        ["id", "1", "2", "3", "4"],
    )
    ndjson = tmp_path / "more.ndjson"
    ndjson.write_text('{"id": 2}\n{"id": 9}\n')
    for command, *more in (
        ("delete", "--where", "id = 1", "--apply"),
        ("changes", "--start", 1),
        ("restore", "--version", 0, "--apply"),
        ("compact", "--order-by", "id"),
        ("restore", "--version", 0, "--apply"),
        ("ingest", ndjson, "--key", "id", "--directory", tmp_path / "wal", "--resume"),
    ):
        if command != "restore":  # which then checks that the files exist
            refused = lakelog(command, clone, *more)
            assert refused.code > 0, command
            assert "--allow-external" in refused.text + refused.errors, command
        allowed = lakelog(command, clone, *more, "--allow-external", source)
        assert allowed.code == 0, (command, allowed.errors)
    assert sorted(engine.open(clone, allow_external=source).to_polars()["id"]) == [1, 2, 3, 4, 9]


def test_replay_prints_a_summary_of_the_output(lakelog: Any, table: str, tmp_path: Path) -> None:
    text = lakelog("replay", table, "--out", tmp_path / "state").text
    for fact in (
        rf"written to +{tmp_path}/state",
        r"version +59",
        r"files +\d+ files",
        r"Parquet +[\d,]+ rows in 1 part, [\d.]+ KiB, and _manifest.json",
        r"cost +\d.*; \d+ log files read",
    ):
        assert re.search(f"^{fact}", text, re.MULTILINE), fact


def test_error_has_no_colour_if_colours_are_disabled(repository: Path, tmp_path: Path) -> None:
    missing = os.fspath(tmp_path)
    coloured = on_a_terminal(repository, "info", missing, errors=True)
    assert ANSI.search(coloured)
    for asked in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"CLICOLOR": "0"}):
        plain = on_a_terminal(repository, "info", missing, errors=True, environ=asked)
        assert plain == ANSI.sub("", coloured), asked


def test_colours_can_be_forced_in_a_pipe(
    lakelog: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert ANSI.search(lakelog("history", table).text)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not ANSI.search(lakelog("history", table).text)


def test_narrow_terminal_shows_complete_times_and_names_the_hidden_columns(
    table: str, repository: Path
) -> None:
    text = ANSI.sub("", on_a_terminal(repository, "history", table, columns=60))
    lines = text.splitlines()
    assert lines[0].split() == ["version", "timestamp", "operation"]
    assert re.search(r"2026-01-\d\dT\d\d:00:00Z ", lines[2])
    assert "--columns shows userName, operationMetrics" in " ".join(text.split())


def test_sizes_of_a_diff_are_numbers_for_machines_and_have_units_in_a_table(
    lakelog: Any, table: str
) -> None:
    (first, *_others) = json.loads(lakelog("diff", table, 40, 41, "--output", "json").raw)
    assert first["kind"] == "file"
    assert first["after"].isdigit()
    assert re.search(r"\d KiB", lakelog("diff", table, 40, 41).text)


def test_limited_history_shows_that_there_is_more(lakelog: Any, table: str) -> None:
    text = lakelog("history", table, "--limit", 3).text
    assert text.endswith("3 commits · the newest; --limit shows more\n")
    assert lakelog("history", table, "--limit", 0).text.endswith("0 commits · --limit shows more\n")
    assert "shows more" not in lakelog("history", table, "--limit", 999).text


def test_limited_history_of_a_cleaned_log_does_not_promise_more(
    lakelog: Any, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    engine.write(str(path), pl.DataFrame({"id": [1]}))
    table = engine.open(str(path))
    table.append(pl.DataFrame({"id": [2]}))
    table.checkpoint()
    (path / f"_delta_log/{0:020d}.json").unlink()
    assert lakelog("history", path, "--limit", 1).text.endswith("1 commit\n")


def test_pipe_gets_complete_texts_without_colour(lakelog: Any, table: str) -> None:
    text = lakelog("files", table, "--limit", 3).text
    assert "…" not in text
    assert "\x1b" not in text
    path = lakelog("files", table, "-o", "csv", "--columns", "path").text.splitlines()[1]
    assert path in lakelog("files", table, "--limit", 1000).text


@pytest.mark.parametrize(
    ("words", "columns"),
    [
        *((("files",), columns) for columns in (60, 120)),
        (("history",), 60),
        (("actions",), 80),
        (("diff", "10", "30"), 60),
    ],
)
def test_terminal_lines_fit_the_width(
    table: str, repository: Path, words: tuple[str, ...], columns: int
) -> None:
    command, *rest = words
    shown = on_a_terminal(repository, command, table, *rest, columns=columns)
    assert "\x1b[" in shown
    lines = ANSI.sub("", shown).splitlines()
    assert len(lines) > 10
    assert max(map(cell_len, lines)) <= columns


def test_paths_are_clipped_in_their_common_part(table: str, repository: Path) -> None:
    shown = ANSI.sub("", on_a_terminal(repository, "files", table, "-n", "5", columns=80))
    paths = [line.split()[0] for line in shown.splitlines()[1:6]]
    assert all("…" in path and not path.endswith("parquet") for path in paths)
    assert len(set(paths)) == 5


def test_control_characters_in_a_path_are_escaped(lakelog: Any, tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    metadata = (
        '{"metaData":{"id":"i","format":{"provider":"parquet","options":{}},"schemaString":'
        '"{\\"type\\":\\"struct\\",\\"fields\\":[]}","partitionColumns":[],"configuration":{}}}'
    )
    add = (
        '{"add":{"path":"a%1B%5B31m.parquet","partitionValues":{},"size":1,"modificationTime":0,'
        '"dataChange":true}}'
    )
    protocol = '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}'
    (log / f"{0:020d}.json").write_text(f"{protocol}\n{metadata}\n{add}\n")
    text = lakelog("files", tmp_path).text
    assert r"a\x1b[31m.parquet" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("width", range(1, 30))
def test_clipped_text_fits_and_keeps_both_ends(width: int) -> None:
    text = "part-00000-abc-c000.parquet"
    for middle in (True, False):
        clipped = rendering.clip(text, width, middle=middle)
        assert cell_len(clipped) <= width
        if width >= len(text):
            assert clipped == text
        elif width > 4:
            assert clipped.startswith("pa")
            assert clipped.endswith("et" if middle else "…")
