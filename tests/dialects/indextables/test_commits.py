"""JSON commits: wrappers, defaults, framings, unknown and malformed content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

import lakelog
from lakelog.dialects.indextables import DIALECT, doc_mapping_hash
from lakelog.dialects.log_content import Actions
from lakelog.errors import InvalidActionError, MalformedLogError
from lakelog.model import actions
from tests.dialects.indextables.writing import PROTOCOL, Log, add, lines, metadata, remove, skip

_EXTENDED = {
    "stats": '{"numRecords":3}',
    "tags": {"k": "v"},
    "minValues": {"id": "1"},
    "maxValues": {"id": "9"},
    "numRecords": 3,
    "footerStartOffset": 100,
    "footerEndOffset": 200,
    "hotcacheStartOffset": 110,
    "hotcacheLength": 20,
    "hasFooterOffsets": True,
    "splitTags": ["a", "b"],
    "deleteOpstamp": 4,
    "numMergeOps": 2,
    "docMappingJson": "[]",
    "docMappingRef": "abc",
    "uncompressedSizeBytes": 999,
    "companionSourceFiles": ["p.parquet"],
    "companionDeltaVersion": 12,
    "companionFastFieldMode": "HYBRID",
}
_ROWS = [
    [PROTOCOL, metadata()],
    [add("a", **_EXTENDED), add("b", dataChange=False), remove("z", dataChange=False)],
    [remove("a"), skip("b", operation="merge", retryAfter=9, skipCount=2), skip("b")],
]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "t")


def _decode(log: Log, *, files: bool = True) -> Actions:
    listing = DIALECT.list_log(log.store, hint=False)
    return DIALECT.decode(log.store, listing.commits, files=files)


def _row(frame: pl.DataFrame, column: str, value: object) -> dict[str, Any]:
    (row,) = frame.filter(pl.col(column) == value).to_dicts()
    return row


def test_every_extended_field_of_an_add_is_kept(log: Log) -> None:
    log.commit(0, [add("a", **_EXTENDED, timeRangeStart="2024-01-01T00:00:00Z")])
    row = _decode(log).files.to_dicts()[0]
    for name, value in _EXTENDED.items():
        assert row[name] == value, name
    assert row["timeRangeStart"] == "2024-01-01T00:00:00Z"
    assert (row["version"], row["position"], row["actionType"]) == (0, 0, "add")


def test_time_range_may_be_a_number(log: Log) -> None:
    log.commit(0, [add("a", timeRangeStart=1704067200000, timeRangeEnd="x"), add("b")])
    log.commit(1, [add("c", timeRangeStart="2024", timeRangeEnd=5)])
    files = _decode(log).files
    assert files["timeRangeStart"].to_list() == ["1704067200000", None, "2024"]
    assert files["timeRangeEnd"].to_list() == ["x", None, "5"]


def test_absent_fields_get_the_defaults_of_the_format(log: Log) -> None:
    log.commit(0, [add("a"), remove("b"), skip("c"), add("d", dataChange=False)])
    decoded = _decode(log)
    assert decoded.files["dataChange"].to_list() == [True, True, False]
    row = decoded.meta.to_dicts()[0]
    assert (row["skipCount"], row["skipOperation"]) == (1, "")


def test_defaults_of_skips_do_not_leak_into_other_rows(log: Log) -> None:
    log.commit(0, [PROTOCOL, skip("c")])
    row = _row(_decode(log).meta, "actionType", "protocol")
    assert row["skipCount"] is None
    assert row["skipOperation"] is None


def test_explicit_nulls_equal_absent_fields(tmp_path: Path) -> None:
    nulls = dict.fromkeys((*_EXTENDED, "timeRangeStart", "dataChange"))
    with_nulls, without = Log(tmp_path / "scala"), Log(tmp_path / "rust")
    skip_nulls: dict[str, Any] = dict.fromkeys(
        ("operation", "partitionValues", "size", "retryAfter", "skipCount")
    )
    remove_nulls = dict.fromkeys(("extendedFileMetadata", "partitionValues", "size", "tags"))
    features: dict[str, Any] = {"readerFeatures": None, "writerFeatures": None}
    with_nulls.commit(
        0,
        [
            {"protocol": PROTOCOL["protocol"] | features},
            add("a", **nulls),
            remove("b", **remove_nulls),
            skip("c", **skip_nulls),
        ],
    )
    without.commit(0, [PROTOCOL, add("a"), remove("b"), skip("c")])
    for kind in ("files", "meta"):
        assert_frame_equal(
            actions.conform(getattr(_decode(with_nulls), kind)),
            actions.conform(getattr(_decode(without), kind)),
        )


def test_commit_info_line_is_kept_completely(log: Log) -> None:
    log.commit(4, [PROTOCOL, {"commitInfo": {"operation": "WRITE", "n": 1}}])
    (row,) = DIALECT.decode_commit_infos(_decode(log).commit_infos).to_dicts()
    assert (row["version"], row["position"], row["actionType"]) == (4, 1, "commitInfo")
    assert (row["operation"], json.loads(row["extra"])) == ("WRITE", {"n": 1})


def test_decoding_without_files_returns_only_other_actions(log: Log) -> None:
    for version, rows in enumerate(_ROWS):
        log.commit(version, rows)
    decoded = _decode(log, files=False)
    assert decoded.files.is_empty()
    assert_frame_equal(
        actions.conform(decoded.meta), actions.conform(_decode(log).meta), check_row_order=True
    )


def test_references_are_resolved_with_table_properties(log: Log) -> None:
    mapping = '[{"name":"id"}]'
    ref = doc_mapping_hash(mapping)
    log.commit(0, [metadata(configuration={f"docMappingSchema.{ref}": mapping})])
    log.commit(1, [add("a", docMappingRef=ref), add("b", docMappingRef="unregistered"), add("c")])
    files = _decode(log).files
    assert files["docMappingJson"].to_list() == [mapping, None, None]
    assert files["docMappingRef"].to_list() == [ref, "unregistered", None]


def test_error_of_invalid_json_has_path_version_and_line(log: Log) -> None:
    log.commit(0, [PROTOCOL])
    log.write("00000000000000000001.json", b'{"add":{"path":"a"\n')
    with pytest.raises(MalformedLogError) as caught:
        _decode(log)
    assert caught.value.path == "_transaction_log/00000000000000000001.json"
    assert (caught.value.version, caught.value.line) == (1, 1)


def test_missing_required_field_is_named_in_the_error(log: Log) -> None:
    log.commit(0, [{"add": {"size": 1}}])
    with pytest.raises(InvalidActionError) as caught:
        _decode(log)
    assert caught.value.expected == "path"


def test_error_of_a_truncated_gzip_commit_has_its_version(log: Log) -> None:
    target = log.commit(3, [PROTOCOL], "scala")
    target.write_bytes(target.read_bytes()[:-5])
    with pytest.raises(MalformedLogError) as caught:
        _decode(log)
    assert caught.value.version == 3


def test_commit_deleted_after_the_listing_raises_malformed_log_error(log: Log) -> None:
    target = log.commit(0, [PROTOCOL])
    listing = DIALECT.list_log(log.store)
    target.unlink()
    with pytest.raises(MalformedLogError, match="deleted"):
        DIALECT.decode(log.store, listing.commits)


@pytest.mark.parametrize("padding", [0, 30_000])
@pytest.mark.parametrize("info", [{}, {"commitInfo": {"operation": "X"}}])
@pytest.mark.parametrize("is_live", [True, False])
def test_actions_on_the_line_of_the_commit_info_keep_their_order(
    log: Log, padding: int, info: dict[str, Any], is_live: bool
) -> None:
    removed, added = remove("p"), add("p", size=99, tags={"x": "y" * padding})
    log.commit(0, [PROTOCOL, metadata()])
    log.commit(1, [add("p")])
    log.commit(2, [info | (removed | added if is_live else added | removed)])
    files = lakelog.open(str(log.root)).snapshot().files().collect()
    assert files["size"].to_list() == ([99] if is_live else [])


_NUMBERS = '"big":123456789012345678901234567890,"fraction":0.1000000000000000000001'


@pytest.mark.parametrize("padding", [0, 30_000])
@pytest.mark.parametrize("info", ["", '"commitInfo":{"operation":"X"},'])
@pytest.mark.parametrize("layout", ["json", "flattened"])
def test_numbers_that_are_kept_as_text_keep_their_digits(
    log: Log, padding: int, info: str, layout: str
) -> None:
    log.commit(0, [PROTOCOL, metadata()])
    body = (
        f'{{"path":"p","partitionValues":{{}},"size":-9223372036854775808,"modificationTime":1,'
        f'"minValues":{{{_NUMBERS},"d":1.10}},"timeRangeStart":12345678901234567890123,'
        f'"tags":{{"x":"{"y" * padding}"}},{_NUMBERS}}}'
    )
    log.write(f"{1:020d}.json", f'{{{info}"add":{body}}}\n'.encode())
    table = lakelog.open(str(log.root), upkeep=False)
    for _ in range(2):
        (row,) = lakelog.open(str(log.root)).snapshot().files().collect().to_dicts()
        assert row["extra"] == f"{{{_NUMBERS}}}"
        assert row["timeRangeStart"] == "12345678901234567890123"
        assert row["minValues"] == {
            "big": "123456789012345678901234567890",
            "d": "1.10",
            "fraction": "0.1000000000000000000001",
        }
        table.checkpoint(layout=layout)


def test_numbers_of_a_checkpoint_of_one_object_keep_their_digits(log: Log) -> None:
    log.commit(0, [PROTOCOL, metadata()])
    body = f'{{"path":"p","partitionValues":{{}},"size":1,"modificationTime":1,{_NUMBERS}}}'
    text = f'{{"version":0,"metaData":[{json.dumps(metadata()["metaData"])}],"add":[{body}]}}'
    log.write(f"{0:020d}.checkpoint.json", text.encode())
    files = lakelog.open(str(log.root)).snapshot().files().collect()
    assert files.select("path", "extra").rows() == [("p", f"{{{_NUMBERS}}}")]


@pytest.mark.parametrize("layout", ["json", "flattened"])
@pytest.mark.parametrize("format_", [None, {}, {"options": {"a": "b"}}])
def test_metadata_without_a_format_has_that_of_the_dialect(
    log: Log, layout: str, format_: dict[str, Any] | None
) -> None:
    log.commit(0, [PROTOCOL, metadata(format=format_)])
    table = lakelog.open(str(log.root), upkeep=False)
    for _ in range(2):
        found = lakelog.open(str(log.root)).snapshot().metadata
        assert found.format_provider == "indextables"
        table.checkpoint(layout=layout)
    with table.transaction() as tx:
        tx.set_metadata(description="changed")
    decoded = DIALECT.decode(log.store, DIALECT.list_log(log.store).commits)
    assert decoded.meta["formatProvider"].to_list() == [None, "indextables", "indextables"]


def test_checkpoints_of_earlier_versions_and_other_writers_are_proved(log: Log) -> None:
    parquet = {"provider": "parquet", "options": {}}  # by lakelog, for a metaData without a format
    skips = [skip("p", skipCount=5, retryAfter=90), skip("p", skipCount=2, retryAfter=80)]
    log.commit(0, [PROTOCOL, metadata(format=None), skips[0]])
    log.commit(1, [skips[1]])
    for own in ([], skips[1:]):  # the last record of a path, or none
        log.write(f"{1:020d}.checkpoint.json", lines([PROTOCOL, metadata(format=parquet), *own]))
        table = lakelog.open(str(log.root), upkeep=False)
        assert table.verify().verdict == "proved"
        assert table.snapshot().skips().collect()["skipCount"].to_list() == [2]


def test_flattened_checkpoint_without_a_format_provider_is_proved(log: Log) -> None:
    log.commit(0, [PROTOCOL, metadata(format=None)])
    table = lakelog.open(str(log.root), upkeep=False)
    table.checkpoint(layout="flattened")
    (path,) = log.folder.rglob("*.parquet")
    content = pq.read_table(path)
    at = content.schema.get_field_index("formatProvider")
    nulls = pa.nulls(content.num_rows, content.schema.field(at).type)
    pq.write_table(content.set_column(at, content.schema.field(at), nulls), path)
    assert table.verify().verdict == "proved"
