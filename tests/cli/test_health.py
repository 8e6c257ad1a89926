"""`lakelog doctor`."""

from __future__ import annotations

import json
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


def test_report_writes_the_page(lakelog: Any, table: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    outcome = lakelog("report", table, "--out", page, "--output", "json")
    assert outcome.code == 0
    assert json.loads(outcome.text) == [{"path": str(page), "size_bytes": page.stat().st_size}]
    assert page.read_text("utf-8").startswith("<!doctype html>")
