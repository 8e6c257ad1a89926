"""The line-by-line decoder: every rule of a commit's text, and every error with its position."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.strict_decoder import Blob, Line, decode_exact, parse_object, text_of
from lakelog.errors import InvalidActionError, MalformedLogError
from lakelog.model.contract import MAX_DEPTH

DELTA = Wire.of("delta")
ADD = {"add": {"path": "a%20b", "size": 1}}


def blob(*lines: str | bytes, version: int | None = 7) -> Blob:
    data = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
    return Blob(version, "7.json", data)


def test_rows_have_the_version_and_line_of_their_action() -> None:
    decoded = decode_exact([blob("", json.dumps(ADD), " \t\r", json.dumps(ADD))], DELTA)
    assert decoded.files.select("version", "position", "actionType", "path").rows() == [
        (7, 1, "add", "a%20b"),
        (7, 3, "add", "a%20b"),
    ]


def test_rows_without_a_version_have_no_position() -> None:
    decoded = decode_exact([blob(json.dumps(ADD), version=None)], DELTA)
    assert decoded.files.columns == ["actionType", "path", "size"]


def test_actions_are_grouped_into_files_meta_other_and_commit_info() -> None:
    lines = [
        {"commitInfo": {"x": 1}},
        {"protocol": {"minReaderVersion": 1}},
        ADD,
        {"remove": {"path": "r"}},
        {"cdc": {"path": "c"}},
        {"newAction": [1]},
        {"txn": {"appId": "t", "version": 1}},
        {"sidecar": {"path": "s"}},
    ]
    decoded = decode_exact([blob(*map(json.dumps, lines))], DELTA)
    assert decoded.files["actionType"].to_list() == ["add", "remove"]
    assert decoded.meta["actionType"].to_list() == ["protocol", "txn", "sidecar"]
    assert decoded.other["actionType"].to_list() == ["cdc", "newAction"]
    assert decoded.other["extra"].to_list() == [None, "[1]"]
    (info,) = decoded.commit_infos
    assert (info.version, info.position, info.body) == (7, 0, {"x": 1})


def test_unknown_fields_are_kept_at_every_depth_and_nulls_are_not() -> None:
    vector = {"storageType": "u", "pathOrInlineDv": "p", "new": 1, "none": None}
    body = {"path": "a", "size": 1, "deletionVector": vector, "x": {"y": None}, "z": None}
    extra = decode_exact([blob(json.dumps({"add": body}))], DELTA).files["extra"].item()
    assert json.loads(extra) == {"deletionVector": {"new": 1}, "x": {"y": None}}


def test_maps_keep_null_values_sort_their_keys_and_take_any_json_as_text() -> None:
    tags = {"z": None, "b": 1.5, "a": {"k": [True]}, "c": ""}
    line = json.dumps({"add": {"path": "a", "size": 1, "tags": tags}})
    (found,) = decode_exact([blob(line)], DELTA).files.rows(named=True)
    assert list(found["tags"].items()) == [
        ("a", '{"k":[true]}'),
        ("b", "1.5"),
        ("c", ""),
        ("z", None),
    ]


def test_statistics_given_as_an_object_are_read_as_json_text() -> None:
    line = '{"add":{"path":"a","size":1,"stats":{"numRecords":3}}}'
    assert decode_exact([blob(line)], DELTA).files["stats"].to_list() == ['{"numRecords":3}']


def test_null_actions_are_ignored_but_a_file_of_null_actions_is_torn() -> None:
    decoded = decode_exact([blob('{"add":null,"remove":{"path":"a"}}')], DELTA)
    assert decoded.files["actionType"].to_list() == ["remove"]
    with pytest.raises(MalformedLogError, match="contains no action"):
        decode_exact([blob('{"add":null}', "{}")], DELTA)


def test_part_of_a_file_may_contain_no_action() -> None:
    decoded = decode_exact([Blob(7, "7.json", b"\n\n", whole=False)], DELTA)
    assert decoded.files.height == 0


def test_error_position_counts_bytes_and_lines_from_the_start_of_the_file() -> None:
    good = json.dumps({"add": {"path": "é", "size": 1}}, ensure_ascii=False)
    torn = '{"add":{"path":"é","size":!}}'
    piece = Blob(7, "7.json", f"{good}\n{torn}\n".encode(), first_line=10, offset=1000)
    with pytest.raises(MalformedLogError) as refused:
        decode_exact([piece], DELTA)
    error = refused.value
    assert (error.path, error.version, error.line) == ("7.json", 7, 12)
    at = 1000 + len(good.encode()) + 1 + len(torn[: torn.index("!")].encode())
    assert error.byte_offset == at
    assert "!" in str(error.found)


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ('{"add":{"path":1,"size":1}}', "path"),
        ('{"add":{"path":"a","size":true}}', "size"),
        ('{"add":{"path":"a","size":1.0}}', "size"),
        ('{"add":{"path":"a","size":9223372036854775808}}', "size"),
        ('{"add":{"path":"a","size":1,"dataChange":1}}', "dataChange"),
        ('{"add":{"path":"a","size":1,"tags":[]}}', "tags"),
        ('{"metaData":{"partitionColumns":["a",1]}}', "partitionColumns"),
        ('{"metaData":{"partitionColumns":{}}}', "partitionColumns"),
        ('{"protocol":{"minReaderVersion":2147483648}}', "minReaderVersion"),
        ('{"add":{"size":1}}', "path"),
        ('{"add":{"path":null,"size":1}}', "path"),
        ('{"txn":{"appId":"a"}}', "txnVersion"),
    ],
)
def test_wrong_or_missing_field_is_named_in_the_error(line: str, column: str) -> None:
    with pytest.raises(InvalidActionError) as refused:
        decode_exact([blob(json.dumps(ADD), line)], DELTA)
    assert str(refused.value.expected).startswith(column)
    assert (refused.value.line, refused.value.byte_offset) == (2, len(json.dumps(ADD)) + 1)


@pytest.mark.parametrize(
    "line",
    [
        '{"a":1,"a":2}',
        '{"a":{"b":1,"b":1}}',
        '{"a":[{"b":1,"b":2}]}',
        '{"a":1,"\\u0061":2}',
        '{ "a" : 1 , "a" : 2 }',
    ],
)
def test_duplicate_key_is_named_in_the_error(line: str) -> None:
    with pytest.raises(MalformedLogError, match="twice") as refused:
        parse_object(Line(line.encode(), "p", 1, 0, 0))
    assert refused.value.found in {"a", "b"}


@pytest.mark.parametrize(
    "line",
    [
        '{"a":"\\":"}',
        '{"a\\":":1}',
        '{"a" :1}',
        '{"a":{"a":{"a":[]}}}',
        '{"a":"x\\\\":"b":1}'.replace(':"b"', ',"b"'),
        '{"k":"{\\"a\\":1,\\"a\\":2}"}',
    ],
)
def test_text_that_looks_like_a_key_is_not_a_key(line: str) -> None:
    assert parse_object(Line(line.encode(), "p", 1, 0, 0)) == json.loads(line)


def test_nesting_is_accepted_up_to_its_limit() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert parse_object(Line(nested(MAX_DEPTH), "p", 1, 0, 0))["a"] != []
    for depth in (MAX_DEPTH + 1, 900, 100_000):
        with pytest.raises(MalformedLogError):
            parse_object(Line(nested(depth), "p", 1, 0, 0))


@pytest.mark.parametrize("line", [b"[]", b"1", b"null", b'"x"', b"", b"{", b"\xff", b"\0"])
def test_line_that_is_not_an_object_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedLogError):
        parse_object(Line(line, "p", 1, 0, 0))


@pytest.mark.parametrize("form", ["delta", "indextables"])
@pytest.mark.parametrize("first", [0, 1])
def test_action_over_several_lines_is_reported_as_such(
    tmp_path: Path, form: str, first: int
) -> None:
    lakelog.create(tmp_path, {"id": pl.Int64}, format=form, upkeep=False)
    (commit,) = tmp_path.glob(f"_*_log/{0:020}.json")
    lines = [json.loads(line) for line in commit.read_bytes().splitlines()]
    plain = [json.dumps(each) for each in lines[:first]]
    formatted = [json.dumps(each, indent=2) for each in lines[first:]]
    commit.write_text("\n".join(plain + formatted))
    with pytest.raises(MalformedLogError) as caught:
        lakelog.open(tmp_path).snapshot().files().collect()
    error = caught.value
    breaks = formatted[0].count("\n")
    assert error.message == f"a JSON value is written over {breaks + 1} lines"
    assert (error.line, error.byte_offset) == (first + 1, sum(len(each) + 1 for each in plain))
    assert "one JSON object without line breaks" in str(error.expected)
    # A line that is cut off is still reported as one that is not JSON.
    commit.write_text(formatted[0][:-5])
    with pytest.raises(MalformedLogError, match="the line is not valid JSON"):
        lakelog.open(tmp_path).snapshot().files().collect()


def test_text_of_a_value_is_the_string_itself_or_its_json() -> None:
    assert [text_of(v) for v in (None, "é", 1, True, [1], {"é": 1.0})] == [
        None,
        "é",
        "1",
        "true",
        "[1]",
        '{"é":1.0}',
    ]
