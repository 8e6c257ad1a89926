"""Encoded rows decode to the same rows, and equal the output of the model's encoder."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.dialects import encode as encode_module
from lakelog.dialects import ndjson
from lakelog.dialects.base import Dialect
from lakelog.dialects.delta.dialect import DIALECT as DELTA
from lakelog.dialects.indextables import DIALECT as INDEXTABLES
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.log_content import CommitContent
from lakelog.dialects.ndjson import decode_lines
from lakelog.dialects.strict_decoder import Blob, decode_exact
from lakelog.errors import InternalError, InvalidTransactionError
from lakelog.model import actions
from lakelog.model.contract import MAX_DEPTH
from tests.budget import share_of
from tests.dialects import commit_rows
from tests.dialects.commit_rows import FILE_KINDS, META_KINDS, content, decode, frame, plain
from tests.model import encode as model

DIALECTS: dict[str, Dialect] = {"delta": DELTA, "indextables": INDEXTABLES}
INFO = {"operation": "WRITE", "txnId": "t", "operationParameters": {"mode": '"é"'}}
for_each_dialect = pytest.mark.parametrize("name", DIALECTS)


def parsed(data: bytes) -> list[dict[str, Any]]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data[:-1].split(b"\n")]


@for_each_dialect
@settings(max_examples=share_of(60), deadline=None)
@given(data=st.data())
def test_random_commits_equal_the_model_encoder_and_are_read_back(
    name: str, data: st.DataObject
) -> None:
    meta = data.draw(commit_rows.kinds_of(META_KINDS[name], name), "meta")
    files = data.draw(commit_rows.kinds_of(FILE_KINDS[name], name), "files")
    info = data.draw(st.sampled_from([INFO, {}]), "info")
    if not info and not meta and not files:
        return
    encoded = DIALECTS[name].encode(content(info, meta, files))
    assert parsed(encoded) == model.encode(info, meta, files, name)

    found = decode(DIALECTS[name], encoded)
    start = 1 if info and name == "delta" else 0
    rows = commit_rows.expected([dict(row) for row in (*model.in_order(meta), *files)], name, start)
    read = sorted(
        (row for part in (found.meta, found.files, found.other) for row in plain(part)),
        key=lambda row: row["position"],
    )
    assert read == rows
    assert [info.body for info in found.commit_infos] == ([info] if info else [])

    blob = Blob(7, "x", encoded)
    wire = Wire.of(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ndjson, "_FEW_BYTES", 0)
        columnar, exact = decode_lines([blob], wire), decode_exact([blob], wire)
    for a, b in ((columnar.files, exact.files), (columnar.meta, exact.meta)):
        assert actions.conform(a).to_dicts() == actions.conform(b).to_dicts()


@for_each_dialect
def test_many_rows_are_encoded_in_order_over_several_slices(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode_module, "SLICE_ROWS", 7)
    files: list[dict[str, Any]] = [
        {"actionType": ("add", "remove")[i % 3 == 0], "path": f"f {i}", "size": i}
        | ({"tags": {"k": str(i)}} if i % 2 else {})
        | ({"extra": f'{{"n":{i}}}'} if i % 5 == 0 else {})
        for i in range(100)
    ]
    encoded = DIALECTS[name].encode(content(INFO, [], files))
    assert parsed(encoded) == model.encode(INFO, [], files, name)


def test_fields_have_the_order_of_the_contract_and_commit_info_is_first() -> None:
    add = {
        "actionType": "add",
        "baseRowId": 4,
        "stats": '{"numRecords":1}',
        "dvStorageType": "u",
        "dvPathOrInline": "x",
        "dvOffset": 1,
        "size": 2**63 - 1,
        "path": "p",
        "dataChange": False,
    }
    protocol = {"actionType": "protocol", "minReaderVersion": 1, "minWriterVersion": 2}
    metadata = {"actionType": "metaData", "metadataId": "i", "schemaString": "{}"}
    lines = DELTA.encode(content({"txnId": "t"}, [metadata, protocol], [add])).decode().splitlines()
    assert lines == [
        '{"commitInfo":{"txnId":"t"}}',
        '{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}',
        (
            '{"metaData":{"id":"i","format":{"provider":"parquet","options":{}},'
            '"schemaString":"{}","partitionColumns":[],"configuration":{}}}'
        ),
        (
            '{"add":{"path":"p","partitionValues":{},"size":9223372036854775807,'
            '"dataChange":false,"stats":"{\\"numRecords\\":1}",'
            '"deletionVector":{"storageType":"u","pathOrInlineDv":"x","offset":1},"baseRowId":4}}'
        ),
    ]


def test_indextables_puts_commit_info_on_the_line_of_the_first_action() -> None:
    protocol = {"actionType": "protocol", "minReaderVersion": 1}
    encoded = INDEXTABLES.encode(content({"txnId": "t"}, [protocol], []))
    assert encoded == b'{"commitInfo":{"txnId":"t"},"protocol":{"minReaderVersion":1}}\n'
    assert INDEXTABLES.encode(content({"txnId": "t"}, [], [])) == b'{"commitInfo":{"txnId":"t"}}\n'


def test_unknown_fields_are_written_back_at_their_level() -> None:
    line = (
        b'{"add":{"path":"p","partitionValues":{},"size":1,"dataChange":true,'
        b'"deletionVector":{"storageType":"u","pathOrInlineDv":"x","future":[1]},"more":{"a":null}}}\n'
    )
    found = decode(DELTA, line)
    assert DELTA.encode(CommitContent({}, found.meta, found.files)) == line


@for_each_dialect
def test_derived_columns_are_not_written(name: str) -> None:
    files = frame([{"actionType": "add", "path": "p", "size": 1}]).with_columns(
        version=pl.lit(3), position=pl.lit(1, pl.Int32), dvId=pl.lit("u"), timestamp=pl.lit(9)
    )
    (line,) = parsed(DIALECTS[name].encode(CommitContent({}, files=files)))
    assert set(line["add"]) == {"path", "size", "partitionValues", "dataChange"}


def one(**row: Any) -> CommitContent:
    return CommitContent({}, files=frame([{"actionType": "add", "path": "p", "size": 1} | row]))


REFUSED: dict[str, tuple[CommitContent, str]] = {
    "no action": (CommitContent(), "one action"),
    "no size": (one(size=None), "required"),
    "no type": (one(actionType=None), "no action type"),
    "a column of another action": (one(schemaString="{}"), "no field"),
    "extra that is not JSON": (one(extra="{"), "not valid JSON"),
    "extra that is not an object": (one(extra="[1]"), "not an object"),
    "extra with a known field": (one(extra='{"stats":"{}"}'), "own column"),
    "extra with a known inner field": (one(extra='{"deletionVector":{"offset":1}}'), "own column"),
    "extra in place of an inner object": (one(extra='{"deletionVector":1}'), "not an object"),
    "deep extra": (one(extra='{"a":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}"), "too deep"),
    "commit info as a row": (one(actionType="commitInfo"), "cannot store"),
    "a mergeskip": (one(actionType="mergeskip"), "cannot store"),
    "an unknown action without a body": (
        CommitContent({}, files=frame([{"actionType": "zzz", "path": None, "extra": None}])),
        "no content",
    ),
    "an unknown column": (
        CommitContent({}, files=one().files.with_columns(pl.lit(1).alias("colour"))),
        "unknown column",
    ),
    "a column of another type": (
        CommitContent({}, files=one().files.with_columns(pl.lit("x").alias("size"))),
        "type",
    ),
    "info that is not JSON": (CommitContent({"a": object()}), "not valid JSON"),
    "info with a lone surrogate": (CommitContent({"a": "\ud800"}), "not valid JSON"),
    "info with a number beyond 64 bits": (CommitContent({"a": 2**64}), "not valid JSON"),
    "a key twice": (
        CommitContent(
            {},
            files=one().files.with_columns(
                pl.Series("tags", pa.MapArray.from_arrays([0, 3], ["a", "b", "a"], ["1", "2", "3"]))
            ),
        ),
        "key twice",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_content_that_cannot_be_read_back_is_refused(case: str) -> None:
    refused, message = REFUSED[case]
    with pytest.raises(InvalidTransactionError, match=message):
        DELTA.encode(refused)


def test_actions_of_the_other_dialect_are_refused() -> None:
    txn = frame([{"actionType": "txn", "appId": "a", "txnVersion": 1}])
    with pytest.raises(InvalidTransactionError, match="cannot store"):
        INDEXTABLES.encode(CommitContent({}, meta=txn))


def test_polars_refuses_a_lone_surrogate() -> None:
    with pytest.raises((UnicodeEncodeError, pl.exceptions.PolarsError)):
        pl.Series(["\ud800"])


def test_delta_has_no_columnar_commits() -> None:
    with pytest.raises(InternalError):
        DELTA.encode(one(), columnar_above=0)
