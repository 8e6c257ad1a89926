"""The options of the data source: their values, and the errors of wrong ones."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import InvalidInputError, TableNotFoundError
from lakelog.spark.options import OPTIONS, TABLES, SourceOptions, parse_options
from lakelog.spark.reading import open_table
from lakelog.spark.source import LakelogDataSource
from lakelog.spark.task_commit import kept_table


def parsed(use: Any = "read", **given: str) -> SourceOptions:
    return parse_options({"path": "/t", **given}, use)


def test_options_are_found_in_any_case_and_read() -> None:
    options = parse_options(
        {"PATH": "s3n://b/t", "Table": "FILES", "VERSION": "7", "columns": "path, size"}, "read"
    )
    assert options.path == "s3://b/t"
    assert options.table == "files"
    assert options.get("version") == 7
    assert options.get("columns") == ("path", "size")
    assert parsed(versionAsOf="3").get("version") == 3
    assert parsed(TIMESTAMPASOF="1970-01-02").get("timestamp") == 86_400_000
    assert parsed().table == "rows"
    assert parsed(path="t").path == os.path.abspath("t")
    assert parsed(path="file:/t%20t").path == "file:/t%20t"
    assert parsed(columns='["a,b", "c"]').get("columns") == ("a,b", "c")
    assert parsed(timestamp="1970-01-02").get("timestamp") == 86_400_000
    assert parsed("stream", skipChangeCommits="TRUE").get("skipChangeCommits") is True
    assert parsed("stream", maxBytesPerTrigger="2g").get("maxBytesPerTrigger") == 2 << 30
    assert parsed("sink", checkpointLocation="/c").values == {}


def test_options_of_the_store_are_passed_by_prefix_and_never_printed() -> None:
    options = parse_options(
        {
            "path": "/t",
            "storage.secret": "hush",
            "storage.anon": "false",
            "storage.client_kwargs": '{"endpoint_url": "http://e"}',
            "storage.key": "0123",
            "storage.token": "{not json",
        }
    )
    assert options.storage_options == {
        "secret": "hush",
        "anon": False,
        "client_kwargs": {"endpoint_url": "http://e"},
        "key": "0123",
        "token": "{not json",
    }
    assert "hush" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(InvalidInputError) as caught:
        parse_options({"storage.secret": "hush"})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("use", "given", "message"),
    [
        ("read", {"vresion": "1"}, "option vresion is unknown.*did you mean version"),
        ("read", {"zzz": "1"}, "option zzz is unknown.*remove it"),
        ("read", {"replaceWhere": "a = 1"}, "replaceWhere does not apply here.*option of: write"),
        ("write", {"version": "1"}, "version does not apply here"),
        ("read", {"version": "-1"}, "version is malformed.*found=-1"),
        ("read", {"version": "last"}, "version is malformed"),
        ("read", {"timestamp": "noon"}, "timestamp is malformed.*ISO 8601"),
        ("read", {"columns": "a,,b"}, "columns is malformed"),
        ("read", {"columns": "a,a"}, "columns is malformed"),
        ("read", {"columns": "[1]"}, "columns is malformed"),
        ("read", {"columns": "[a]"}, "columns is malformed"),
        ("read", {"table": "row"}, r"table is malformed.*rows \| files"),
        ("stream", {"skipChangeCommits": "yes"}, "skipChangeCommits is malformed.*true or false"),
        ("read", {"parallelism": "0"}, "parallelism is malformed"),
        ("stream", {"maxBytesPerTrigger": "0k"}, "maxBytesPerTrigger is malformed"),
        ("read", {"version": "1", "timestamp": "2026-01-01"}, "version or timestamp, not both"),
        ("read", {"version": "1", "versionAsOf": "1"}, "version is passed twice"),
        ("read", {"versionAsOf": "1", "timestampAsOf": "2026-01-01"}, "or timestamp, not both"),
        ("write", {"txnVersion": "1"}, "txnVersion needs txnAppId"),
        ("read", {"limit": "1"}, "limit does not apply to table rows.*history"),
        ("read", {"table": "history", "version": "1"}, "version does not apply to table history"),
        ("read", {"table": "diff"}, "startVersion is missing"),
        ("read", {"paths": '["/a", "/b"]'}, "several tables"),
        ("read", {"path": ""}, "path is missing"),
    ],
)
def test_invalid_option_is_reported_by_name(use: Any, given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_options({"path": "/t", **given}, use)


def test_error_of_a_missing_relative_path_shows_it_as_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lakelog.create("here", {"id": pl.Int64}, upkeep=False)
    for open_ in (open_table, kept_table):
        assert open_(parse_options({"path": "here"})).path == str(tmp_path / "here")
        with pytest.raises(
            TableNotFoundError, match=r"'a/b' was searched.*absolute path"
        ) as caught:
            open_(parse_options({"path": "a/b"}))
        assert caught.value.path == str(tmp_path / "a/b")
        for path in (str(tmp_path / "a/b"), f"file://{tmp_path}/a/b"):
            with pytest.raises(TableNotFoundError) as caught:
                open_(parse_options({"path": path}))
            assert "was searched" not in str(caught.value)


def test_sql_table_without_a_location_is_refused() -> None:
    source = LakelogDataSource({"provider": "lakelog", "owner": "me"})
    with pytest.raises(InvalidInputError, match="USING lakelog LOCATION"):
        source.schema()


def test_options_are_documented(repository: Any) -> None:
    page = (repository / "schemas" / "spark.md").read_text("utf-8")
    for option in OPTIONS:
        assert f"`{option.name}`" in page, option.name
    for table in TABLES:
        assert f"`{table}`" in page, table
