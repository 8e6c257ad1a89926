"""`lakelog doctor`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import polars as pl

import lakelog as library


def test_doctor_shows_findings_with_their_commands(lakelog: Any, table: str) -> None:
    outcome = lakelog("doctor", table)
    assert outcome.code == 0
    assert "info     no retained version needs 40 log files" in outcome.text
    assert f"\n         lakelog cleanup {table} --apply --quarantine\n" in outcome.text


def test_doctor_exits_with_1_if_there_are_findings(lakelog: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = library.create(path, {"id": pl.Int64}, upkeep=False)
    assert lakelog("doctor", path).code == 0
    for number in range(20):
        table.append(pl.DataFrame({"id": [number]}))
    outcome = lakelog("doctor", path, "--output", "json")
    assert outcome.code == 1
    (found,) = json.loads(outcome.text)
    assert found["severity"] == "warning"
    assert found["kind"] == "checkpoint-missing"
    assert found["remedy"] == f"lakelog checkpoint {path}"
    assert "checkpoint" in lakelog("doctor", path).text


def test_doctor_exits_with_3_if_the_table_cannot_be_examined(lakelog: Any, tmp_path: Path) -> None:
    missing = lakelog("doctor", tmp_path / "missing")
    assert (missing.code, missing.text) == (3, "")
    assert lakelog("info", tmp_path / "missing").code == 1
    assert lakelog("doctor").code == 2
    path = tmp_path / "t"
    table = library.create(path, {"id": pl.Int64}, upkeep=False)
    table.append(pl.DataFrame({"id": [1]}))
    (path / "_delta_log" / f"{0:020}.json").unlink()
    damaged = lakelog("doctor", path, "--output", "json")
    assert damaged.code == 3
    assert [found["kind"] for found in json.loads(damaged.text)] == ["log-damaged"]


def test_files_of_a_clone_are_checked_if_its_source_is_allowed(
    lakelog: Any, tmp_path: Path
) -> None:
    source, clone = tmp_path / "source", tmp_path / "clone"
    library.write(source, pl.DataFrame({"id": [1]}), upkeep=False)
    library.open(source).clone(clone)
    plain = lakelog("doctor", clone)
    assert plain.code == 0
    assert "nothing needs doing in the log; the data files were not checked" in plain.text
    unchecked = lakelog("doctor", clone, "--files", "--output", "json")
    assert unchecked.code == 1
    (found,) = json.loads(unchecked.text)
    assert (found["kind"], found["num_files"]) == ("external-unchecked", 1)
    assert "1 live file outside of the table's folder was not checked" in found["problem"]
    assert found["problem"][:40] in lakelog("doctor", clone, "--files").text
    unchecked = lakelog("repair", clone, "--check-files", "--output", "json")
    assert unchecked.code == 1
    (row,) = json.loads(unchecked.text)
    assert (row["kind"], row["action"], row["num_files"]) == ("external-unchecked", "check", 1)
    allowed = ("--allow-external", source)
    checked = lakelog("doctor", clone, "--files", *allowed)
    assert checked.code == 0
    assert checked.text.rstrip().endswith(
        "nothing needs doing; the row counts of data files were not compared with the log"
    )
    assert lakelog("repair", clone, "--check-files", *allowed).code == 0
    next(source.glob("*.parquet")).unlink()
    (found,) = json.loads(lakelog("doctor", clone, "--files", *allowed, "-o", "json").text)
    assert found["kind"] == "data-missing"
    (row,) = json.loads(lakelog(*shlex.split(found["remedy"])[1:], "-o", "json").text)
    assert (row["kind"], row["action"]) == ("data-missing", "refuse")


def test_report_writes_the_page(lakelog: Any, table: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    outcome = lakelog("report", table, "--out", page, "--output", "json")
    assert outcome.code == 0
    assert json.loads(outcome.text) == [{"path": str(page), "size_bytes": page.stat().st_size}]
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_each_hint_about_a_missing_data_file_leads_on(lakelog: Any, tmp_path: Path) -> None:
    path = tmp_path / "orders"
    library.write(path, pl.DataFrame({"id": [1]}))
    for file in path.glob("*.parquet"):
        file.unlink()
    assert "lakelog repair --check-files" in lakelog("rows", path).errors
    assert f"lakelog repair {path} --check-files" in lakelog("doctor", path, "--files").text
    assert "--remove-missing" in lakelog("repair", path, "--check-files").text
    assert lakelog("repair", path, "--remove-missing", "--apply").code == 0
    assert lakelog("rows", path).code == 0
