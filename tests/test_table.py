"""The facade: detecting the dialect, versions, and time travel by version, time or text."""

from __future__ import annotations

import datetime as dt
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest

import lakelog
from lakelog.cli import main
from lakelog.dialects.registry import detect_dialect, without_log_folder
from lakelog.errors import (
    ArgumentTypeError,
    InvalidInputError,
    TableNotFoundError,
    UnavailableError,
    VersionNotFoundError,
)
from lakelog.log.context import to_ms
from lakelog.storage import open_store
from lakelog.storage.base import StoreWrapper
from lakelog.storage.fsspec_store import FsspecStore
from lakelog.table import Table
from tests.handmade import FIRST_MS, MINUTE_MS, Handmade, add, field, metadata, protocol, remove


@pytest.fixture
def made(tmp_path: Path) -> Handmade:
    log = Handmade(tmp_path / "t").start(add("a"))
    log.commit(1, add("b"))
    log.commit(2, remove("a"))
    return log


@pytest.mark.parametrize("suffix", ["", "/", "/_delta_log", "/_delta_log/"])
def test_a_table_opens_by_its_folder_or_its_log_folder(made: Handmade, suffix: str) -> None:
    table = lakelog.open(f"{made.root}{suffix}")
    assert (table.format, table.version(), table.versions()) == ("delta", 2, [(0, 2)])
    assert table.snapshot().num_files() == 1


def test_a_path_object_and_a_url_open_the_same_table(made: Handmade) -> None:
    assert lakelog.open(made.root).version() == 2
    assert lakelog.open(made.root.as_uri()).version() == 2


def test_relative_log_folder_opens_its_table(
    made: Handmade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made.root)
    assert lakelog.open("_delta_log").version() == 2
    assert lakelog.open(".").version() == 2


def test_path_object_of_bytes_is_refused(made: Handmade) -> None:
    class OfBytes:
        def __fspath__(self) -> bytes:
            return os.fsencode(made.root)

    path: Any = OfBytes()
    calls: list[Callable[[], object]] = [
        lambda: lakelog.open(path),
        lambda: lakelog.write(path, pl.DataFrame({"x": [1]})),
        lambda: lakelog.open(made.root, allow_external=[path]),
        lambda: open_store(path),
    ]
    for call in calls:
        with pytest.raises(ArgumentTypeError, match="must be a str or a path"):
            call()


def test_path_object_of_a_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("s3://bucket/t", "abfss://c@account.dfs.core.windows.net/t"):
        with pytest.raises(InvalidInputError, match="must be a str if it is a URL"):
            lakelog.write(Path(url), pl.DataFrame({"x": [1]}))
    assert os.listdir(tmp_path) == []
    lakelog.write(Path(f"file://{tmp_path}/t"), pl.DataFrame({"x": [1]}))
    assert lakelog.open(tmp_path / "t").to_polars().height == 1


@pytest.mark.parametrize(
    ("location", "folder"),
    [("/_delta_log", "/"), ("file:///_delta_log/", "file:///"), ("s3://b/_delta_log", "s3://b")],
)
def test_log_folder_of_a_root_is_the_root(location: str, folder: str) -> None:
    assert without_log_folder(location) == folder


def test_folder_without_a_log_raises_table_not_found_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(TableNotFoundError) as refused:
            lakelog.open(path)
        assert refused.value.path == str(path)
        assert "_delta_log or _transaction_log" in str(refused.value.expected)


def test_a_location_with_two_logs_is_refused(made: Handmade) -> None:
    (made.root / "_transaction_log").mkdir()
    with pytest.raises(InvalidInputError, match="two dialects"):
        lakelog.open(made.root)


def test_indextables_log_is_detected_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / "_transaction_log").mkdir()
    assert lakelog.open(tmp_path).format == "indextables"


def test_dialect_is_detected_through_any_driver(made: Handmade) -> None:
    store = FsspecStore(fsspec.filesystem("file"), str(made.root), str(made.root))
    assert detect_dialect(store).name == "delta"


def test_an_empty_log_folder_has_no_version(tmp_path: Path) -> None:
    table = Handmade(tmp_path / "t").table
    with pytest.raises(TableNotFoundError):
        table.version()
    assert table.versions() == []


def test_snapshot_is_selected_by_version_number(made: Handmade) -> None:
    assert [made.table.snapshot(v).num_files() for v in (0, 1, 2)] == [1, 2, 1]
    assert made.table.snapshot(version=1).version == 1
    with pytest.raises(VersionNotFoundError) as refused:
        made.table.snapshot(3)
    assert refused.value.expected == "0 to 2"


@pytest.mark.parametrize("version", [-1, 1.0, "1", True])
def test_invalid_version_is_refused(made: Handmade, version: object) -> None:
    with pytest.raises(InvalidInputError, match="version must be an int"):
        made.table.snapshot(version)  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "last"), [(-1, 1), (0, -1), (True, 2)])
def test_invalid_versions_of_a_range_are_refused(made: Handmade, first: int, last: int) -> None:
    for read in (made.table.diff, made.table.changes):
        with pytest.raises(InvalidInputError, match="must be an int"):
            read(first, last)


def test_version_and_timestamp_together_are_refused(made: Handmade) -> None:
    with pytest.raises(InvalidInputError, match="not both"):
        made.table.snapshot(version=1, timestamp=FIRST_MS)


SECOND = dt.datetime.fromtimestamp((FIRST_MS + MINUTE_MS) / 1000, dt.UTC)


@pytest.mark.parametrize(
    "timestamp",
    [
        FIRST_MS + MINUTE_MS,
        str(FIRST_MS + MINUTE_MS),
        SECOND,
        SECOND.isoformat(),
        SECOND.replace(tzinfo=None),
        SECOND.replace(tzinfo=None).isoformat(sep=" "),
        SECOND.astimezone(dt.timezone(dt.timedelta(hours=5))),
        SECOND.strftime("%Y-%m-%dT%H:%M:%SZ"),
    ],
    ids=str,
)
def test_timestamp_is_accepted_in_several_forms(
    made: Handmade, timestamp: int | str | dt.datetime
) -> None:
    assert made.table.snapshot(timestamp=timestamp).version == 1


def test_date_is_its_first_millisecond(made: Handmade) -> None:
    day = dt.date(2023, 11, 14)
    assert to_ms(day) == to_ms("2023-11-14") == 1_699_920_000_000
    with pytest.raises(VersionNotFoundError):
        made.table.snapshot(timestamp=day)
    assert made.table.snapshot(timestamp=day + dt.timedelta(days=1)).version == 2


def test_fractions_of_a_millisecond_round_down() -> None:
    assert to_ms("1970-01-01T00:00:00.001999") == 1
    assert to_ms("1969-12-31T23:59:59.999999") == -1


@pytest.mark.parametrize("timestamp", ["", "yesterday", "2023-13-01", True, 1.5, [1]])
def test_invalid_timestamp_is_refused(made: Handmade, timestamp: object) -> None:
    with pytest.raises(InvalidInputError):
        made.table.snapshot(timestamp=timestamp)  # type: ignore[arg-type]


def test_methods_of_a_table_return_the_results_of_the_modules(made: Handmade) -> None:
    table = made.table
    assert table.history(1)["version"].to_list() == [2]
    assert table.actions(1, 1).collect()["path"].to_list() == ["b"]
    changed = table.diff(0, 2).select("change", "name").rows()
    assert changed == [("added", "b"), ("removed", "a")]
    assert table.blame("a")["version"].to_list() == [0, 2]


def test_table_has_repr_and_html(made: Handmade) -> None:
    assert repr(made.table) == f"Table({str(made.root)!r}, format='delta')"
    html = made.table._repr_html_()
    assert "<table>" in html
    assert str(made.root) in html


def test_control_characters_of_names_are_escaped_in_the_text_of_a_snapshot(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t").start()
    made.commit(1, metadata(field("a\x1b[2Jb", "string"), field("c\nd", "string")))
    assert "a\\x1b[2Jb, c\\nd" in str(made.table.snapshot())


def test_table_sees_later_commits(made: Handmade) -> None:
    table = made.table
    assert table.version() == 2
    made.commit(3, add("c"))
    assert (table.version(), table.snapshot().version) == (3, 3)
    made.checkpoint(3, protocol(), metadata(), add("b"), add("c"))
    made.forget(0, 1)
    assert table.versions() == [(3, 3)]


def test_table_on_a_read_only_store_is_shown_as_read_only(
    made: Handmade, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class ReadOnly(StoreWrapper):
        @property
        def refusal(self) -> str | None:
            return "no writes are accepted"

    table = Table(replace(made.table.log, store=ReadOnly(made.table.log.store)))
    assert made.table.refusal is None
    assert table.refusal == "no writes are accepted"
    assert repr(table).endswith("read only)")
    assert "no writes are accepted" in table._repr_html_()
    for opened, is_shown in ((table, True), (made.table, False)):
        monkeypatch.setattr(lakelog, "open", lambda *_, opened=opened, **__: opened)
        with pytest.raises(SystemExit):
            main(["info", str(made.root)])
        shown = capsys.readouterr().out
        assert ("read only" in shown, "no writes are accepted" in shown) == (is_shown, is_shown)


def test_folder_that_may_not_be_read_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakelog.create(tmp_path / "t", {"id": pl.Int64})
    stat = os.stat

    def refused(path: object, **options: object) -> os.stat_result:
        if str(path).startswith(f"{tmp_path / 't'}{os.sep}"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(UnavailableError, match="Permission denied"):
        lakelog.open(tmp_path / "t")
