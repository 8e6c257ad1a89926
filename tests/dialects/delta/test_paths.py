"""Paths are percent-decoded exactly once; deletion vectors have one identity."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_series_equal

from lakelog.dialects.delta.paths import decode_path, decode_paths, encode_path, encode_paths
from lakelog.errors import InvalidActionError
from lakelog.model.actions import with_dv_id
from tests.model.encode import percent_encoded

CASES = {
    "plain": "plain",
    "a%20b": "a b",
    "%252F": "%2F",
    "%25252F": "%252F",
    "x+y": "x+y",
    "p=a%2Fb/c%3D": "p=a/b/c=",
    "p=a%2fb": "p=a/b",
    "%C3%A9": "é",
    "%c3%a9%20": "é ",
    "%F0%9F%98%80": "😀",
    "100%": "100%",
    "%zz%2": "%zz%2",
    "%%20": "% ",
    "%2%35": "%25",
    "%FF": "%FF",
    "a%20%FF": "a%20%FF",
    "%00": "\0",
    "%7F": "\x7f",
    "s3://b/a%20b": "s3://b/a b",
    "": "",
}


def both(convert: Callable[[pl.Series], pl.Series], paths: pl.Series) -> pl.Series:
    """Convert by queries, as for long columns, and one by one, as for short ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lakelog.dialects.delta.paths._FEW", -1)
        found = convert(paths)
        patch.setattr("lakelog.dialects.delta.paths._FEW", len(paths))
        assert_series_equal(convert(paths), found)
    return found


@pytest.mark.parametrize(("encoded", "decoded"), CASES.items())
def test_path_is_decoded_exactly_once(encoded: str, decoded: str) -> None:
    assert decode_path(encoded) == decoded


def test_column_is_decoded_like_single_paths_and_nulls_stay_null() -> None:
    found = both(decode_paths, pl.Series("path", [*CASES, None]))
    assert found.to_list() == [*CASES.values(), None]


@given(st.lists(st.none() | st.text("%0123456789abcdefABCDEF/+ é", max_size=12)))
def test_column_and_single_path_decode_any_text_alike(paths: list[str | None]) -> None:
    found = both(decode_paths, pl.Series("path", paths, dtype=pl.String)).to_list()
    assert found == [None if p is None else decode_path(p) for p in paths]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_decoding_undoes_encoding(path: str) -> None:
    assert decode_path(quote(path, safe="")) == path
    assert both(decode_paths, pl.Series([quote(path)])).to_list() == [path]


def test_column_without_escapes_is_returned_unchanged() -> None:
    paths = pl.Series("path", ["a", "b"])
    assert decode_paths(paths) is paths
    assert both(decode_paths, paths) is paths


def files(**columns: list[object]) -> pl.DataFrame:
    height = len(next(iter(columns.values())))
    return pl.DataFrame({"path": [f"f{n}" for n in range(height)], **columns})


def test_identity_is_storage_path_and_offset() -> None:
    found = with_dv_id(
        files(
            dvStorageType=["u", "u", "i", None],
            dvPathOrInline=["ab", "ab", "x", None],
            dvOffset=[1, None, 0, None],
        )
    )
    assert found["dvId"].to_list() == ["uab@1", "uab", "ix@0", None]


def test_identity_without_an_offset_column_has_no_offset() -> None:
    found = with_dv_id(files(dvStorageType=["u"], dvPathOrInline=["ab"]))
    assert found["dvId"].to_list() == ["uab"]


def test_files_without_deletion_vectors_are_returned_unchanged() -> None:
    frame = files(size=[1, 2])
    assert with_dv_id(frame) is frame


@pytest.mark.parametrize(
    "columns",
    [
        {"dvStorageType": ["u"]},
        {"dvPathOrInline": ["x"]},
        {"dvOffset": [0]},
        {"dvCardinality": [3]},
        {"dvStorageType": [None], "dvPathOrInline": ["x"]},
        {"dvStorageType": ["u"], "dvPathOrInline": [None]},
    ],
    ids=str,
)
def test_deletion_vector_without_its_identity_is_refused(
    columns: dict[str, list[object]],
) -> None:
    with pytest.raises(InvalidActionError, match="deletion vector") as refused:
        with_dv_id(files(**columns))
    assert refused.value.found == "f0"


ENCODED = {
    "plain/a-b_c.d!e~f*g'h(i)": "plain/a-b_c.d!e~f*g'h(i)",
    "p=a b/x+y@z&w;v,u$": "p=a%20b/x+y@z&w;v,u$",
    "100%/%41": "100%25/%2541",
    'q"<>#?[]^`{|}\\': "q%22%3C%3E%23%3F%5B%5D%5E%60%7B%7C%7D%5C",
    "é/日本/😀": "é/日本/😀",
    "a\u00a0b\u2028\x85": "a%C2%A0b%E2%80%A8%C2%85",
    "\0\n\x7f": "%00%0A%7F",
    "a:b/c:d": "a%3Ab/c:d",
    "s3://bucket/a b:c": "s3://bucket/a%20b:c",
    "file:/x y": "file:/x%20y",
    "/abs/x:y": "/abs/x:y",
    "": "",
}


@pytest.mark.parametrize(("path", "encoded"), ENCODED.items())
def test_path_is_encoded_as_spark_does(path: str, encoded: str) -> None:
    assert encode_path(path) == encoded
    assert both(encode_paths, pl.Series([path])).to_list() == [encoded]


PATHS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.text(
    "%:/2aA \u2003é", max_size=8
)


@given(st.lists(st.none() | PATHS, max_size=8))
def test_every_path_is_decoded_from_its_encoding(paths: list[str | None]) -> None:
    column = pl.Series("path", paths, dtype=pl.String)
    encoded = both(encode_paths, column)
    assert encoded.to_list() == [None if p is None else percent_encoded(p) for p in paths]
    assert both(decode_paths, encoded).to_list() == paths
    assert [p and decode_path(encode_path(p)) for p in paths] == paths
