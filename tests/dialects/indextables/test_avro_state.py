"""Avro states: cases that the corpus lacks, and cases that must be rejected."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.dialects.indextables import DIALECT
from lakelog.dialects.indextables.avro_state import AvroStateReader
from lakelog.dialects.log_content import CheckpointReader
from lakelog.errors import (
    CorruptionError,
    InvalidActionError,
    MalformedLogError,
    MissingDependencyError,
    UnsupportedError,
    UnsupportedFeatureError,
)
from tests.dialects.indextables.writing import (
    ENTRY_FIELDS,
    PROTOCOL,
    Log,
    add,
    metadata,
    paths,
    read_files,
    remove,
    skip,
)

_SHARED = "manifests/manifest-0123abcd.avro"
_SECOND = "manifests/manifest-0123456789abcdef.avro"


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "t")
    log.commit(0, [PROTOCOL, metadata()])
    return log


def _entries(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [add(name, **fields)["add"] for name in names]


def _state(log: Log, **fields: Any) -> CheckpointReader:
    """Version 1: entries a, b and c."""
    log.manifest(_SHARED, _entries("a", "b", "c"))
    log.state(1, {_SHARED: 3}, **fields)
    return log.checkpoint(1)


def test_state_returns_no_removes(log: Log) -> None:
    reader = _state(log, tombstones=["b"], numFiles=2)
    assert read_files(reader, kinds=["remove"]).is_empty()


@pytest.mark.parametrize(
    ("fields", "live"),
    [
        pytest.param({"tombstones": ["b"], "numFiles": 2}, "ac", id="a tombstone hides its entry"),
        # Writers count a tombstone without an entry, too.
        pytest.param(
            {"tombstones": ["b", "ended long ago"], "numFiles": 1},
            "ac",
            id="a tombstone without an entry",
        ),
        pytest.param({"totalBytes": 31}, "abc", id="too many bytes until compaction"),
    ],
)
def test_live_files_of_a_state(log: Log, fields: dict[str, Any], live: str) -> None:
    assert paths(read_files(_state(log, **fields))) == [*live]


@pytest.mark.parametrize(
    "fields", [{"numFiles": 2}, {"numFiles": 4}, {"totalBytes": 29}, {"tombstones": ["b"]}]
)
def test_wrong_counts_raise_corruption_error(log: Log, fields: dict[str, Any]) -> None:
    if "tombstones" in fields:
        fields |= {"numFiles": 3}
    reader = _state(log, **fields)
    with pytest.raises(CorruptionError) as caught:
        read_files(reader)
    assert caught.value.path == f"_transaction_log/state-v{1:020d}/_manifest.avro"


def test_path_in_a_block_of_zeros_raises_corruption_error(log: Log) -> None:
    log.manifest(_SHARED, _entries("a", "b\0", "c"))
    log.state(1, {_SHARED: 3})
    with pytest.raises(CorruptionError, match="NUL"):
        read_files(log.checkpoint(1))


def test_manifest_with_a_wrong_entry_count_raises_corruption_error(log: Log) -> None:
    log.manifest(_SHARED, _entries("a", "b"))
    log.state(1, {_SHARED: 3}, numFiles=2)
    with pytest.raises(CorruptionError) as caught:
        read_files(log.checkpoint(1))
    assert caught.value.path == f"_transaction_log/{_SHARED}"


@pytest.mark.parametrize("name", ["../m.avro", "manifests/../../m.avro"])
def test_manifest_outside_the_log_folder_is_not_read(log: Log, name: str) -> None:
    log.manifest(_SHARED, _entries("a", "b"))
    log.state(1, {name: 2}, numFiles=2)
    with pytest.raises(CorruptionError, match="outside the log folder") as caught:
        read_files(log.checkpoint(1))
    assert caught.value.found == name


def test_path_in_two_manifests_counts_once_with_its_last_entry(log: Log) -> None:
    log.manifest(_SHARED, _entries("a", "b"))
    log.manifest(_SECOND, _entries("a", size=99))
    log.state(1, {_SHARED: 2, _SECOND: 1}, totalBytes=119)
    files = read_files(log.checkpoint(1)).sort("path")
    assert files.select("path", "size").rows() == [("a", 99), ("b", 10)]


def test_removed_path_with_two_entries_raises_corruption_error(log: Log) -> None:
    log.manifest(_SHARED, _entries("a", "b"))
    log.manifest(_SECOND, _entries("a"))
    log.state(1, {_SHARED: 2, _SECOND: 1}, tombstones=["a"], numFiles=2)
    with pytest.raises(CorruptionError) as caught:
        read_files(log.checkpoint(1))
    assert caught.value.found == "a"


def test_manifest_paths_of_every_generation_are_resolved(log: Log) -> None:
    own = f"state-v{2:020d}/manifest-own.avro"
    older = f"state-v{1:020d}/manifest-old.avro"
    for name, file in ((_SHARED, "shared"), (older, "older"), (own, "own")):
        log.manifest(name, _entries(file))
    log.state(2, {_SHARED: 1, older: 1, "manifest-own.avro": 1})
    reader = DIALECT.open_checkpoint(log.store, log.checkpoints()[-1])
    assert paths(read_files(reader)) == ["older", "own", "shared"]
    assert reader.files_read()[1:-1] == tuple(
        f"_transaction_log/{p}" for p in (_SHARED, older, own)
    )


def test_state_without_manifests_is_an_empty_table(log: Log) -> None:
    log.state(1, {})
    assert read_files(log.checkpoint(1)).is_empty()


def test_empty_manifest_is_allowed(log: Log) -> None:
    log.manifest(_SHARED, [])
    log.manifest(_SECOND, _entries("a"))
    log.state(1, {_SHARED: 0, _SECOND: 1})
    assert paths(read_files(log.checkpoint(1), ["path", "numRecords"])) == ["a"]


def test_version_and_time_of_a_file_are_kept_in_extra_and_not_guessed(log: Log) -> None:
    log.manifest(_SHARED, _entries("a", addedAtVersion=1))
    log.state(1, {_SHARED: 1})
    (row,) = read_files(log.checkpoint(1), ["version", "timestamp", "extra"]).to_dicts()
    assert (row["version"], row["timestamp"]) == (None, None)
    assert json.loads(row["extra"]) == {"addedAtVersion": 1, "addedAtTimestamp": 77}


def test_unknown_entry_fields_are_kept(log: Log) -> None:
    fields = [*ENTRY_FIELDS, {"name": "colour", "type": "string"}]
    log.manifest(_SHARED, _entries("a", colour="red"), fields)
    log.state(1, {_SHARED: 1})
    (row,) = read_files(log.checkpoint(1), ["extra"]).to_dicts()
    assert json.loads(row["extra"])["colour"] == "red"


def test_values_without_a_column_of_their_type_are_kept_as_json(log: Log) -> None:
    record = {"type": "record", "name": "S", "fields": [{"name": "n", "type": "long"}]}
    fields = [
        {"name": "stats", "type": record} if f["name"] == "stats" else f for f in ENTRY_FIELDS
    ]
    fields.append({"name": "raw", "type": "bytes"})
    log.manifest(_SHARED, _entries("a", stats={"n": 1}, raw=b"\x00\xff"), fields)
    log.state(1, {_SHARED: 1})
    (row,) = read_files(log.checkpoint(1), ["stats", "extra"]).to_dicts()
    assert row["stats"] == '{"n":1}'
    assert json.loads(row["extra"])["raw"] == "\x00\xff"


def test_boolean_in_a_column_of_numbers_is_refused(log: Log) -> None:
    boolean = {"name": "numRecords", "type": "boolean"}
    fields = [boolean if f["name"] == "numRecords" else f for f in ENTRY_FIELDS]
    log.manifest(_SHARED, _entries("a", numRecords=True), fields)
    log.state(1, {_SHARED: 1})
    with pytest.raises(InvalidActionError, match="wrong type"):
        read_files(log.checkpoint(1), ["numRecords"])


def test_only_requested_columns_are_returned(log: Log) -> None:
    (frame,) = _state(log).iter_files(["numRecords", "dvId"])
    assert set(frame.columns) == {"actionType", "path", "numRecords"}


@pytest.mark.parametrize("prefix", ["", "docMappingSchema."])
def test_references_are_resolved_with_either_form_of_registry_key(log: Log, prefix: str) -> None:
    log.manifest(_SHARED, [*_entries("a", docMappingRef="h"), *_entries("b", docMappingRef="x")])
    log.state(1, {_SHARED: 2}, schemaRegistry={f"{prefix}h": "mapping"})
    files = read_files(log.checkpoint(1), ["path", "docMappingJson"]).sort("path")
    assert files["docMappingJson"].to_list() == ["mapping", None]
    (frame,) = log.checkpoint(1).iter_files(["docMappingJson"])
    assert "docMappingRef" not in frame.columns


@pytest.mark.parametrize("wrapped", [True, False])
def test_cached_metadata_takes_precedence_over_commits_with_or_without_wrapper(
    log: Log, wrapped: bool
) -> None:
    cached = metadata(id="cached", configuration={"k": "v"})
    text = json.dumps(cached if wrapped else cached["metaData"])
    meta = _state(log, metadata=text).read_meta()
    (row,) = meta.filter(pl.col("actionType") == "metaData").to_dicts()
    assert (row["metadataId"], row["configuration"]) == ("cached", {"k": "v"})


@pytest.mark.parametrize("cached", ["", " ", "null", '{"metaData":null}'])
def test_state_without_cached_metadata_has_that_of_the_commits(log: Log, cached: str) -> None:
    assert _state(log, metadata=cached).read_meta(("metaData",))["metadataId"].to_list() == [
        "table-1"
    ]


def test_metadata_that_is_not_cached_is_the_last_of_the_commits_up_to_the_state(log: Log) -> None:
    log.commit(1, [metadata(id="second")])
    log.commit(4, [metadata(id="later"), {"protocol": {"minReaderVersion": 4}}])
    log.state(3, {})
    log.state(5, {})
    for version, expected in ((3, ["second"]), (5, ["later"])):
        meta = log.checkpoint(version).read_meta()
        assert meta["metadataId"].drop_nulls().to_list() == expected


@pytest.mark.parametrize("cached", [None, json.dumps(metadata(id="", schemaString=""))])
def test_metadata_of_truncated_commits_is_that_of_the_last_lower_state(
    log: Log, cached: str | None
) -> None:
    for version, text in ((3, "first"), (4, "second"), (6, None)):
        log.state(version, {}, metadata=text and json.dumps(metadata(id=text)))
    log.state(7, {}, metadata=cached)
    for found in ("table-1", "second"):
        meta = log.checkpoint(7).read_meta(("metaData",))
        assert meta["metadataId"].to_list() == [found]
        (log.folder / f"{0:020d}.json").unlink(missing_ok=True)


@pytest.mark.parametrize(("state", "expected"), [(1, (2, 2)), (4, (4, 4))])
def test_protocol_is_the_higher_of_commits_and_state(
    log: Log, state: int, expected: tuple[int, int]
) -> None:
    meta = _state(log, protocolVersion=state).read_meta(("protocol",))
    assert meta.select("minReaderVersion", "minWriterVersion").rows() == [expected]
    (log.folder / f"{0:020d}.json").unlink()
    meta = log.checkpoint(1).read_meta()
    assert meta["actionType"].to_list() == ["protocol"]
    assert meta.select("minReaderVersion", "minWriterVersion").rows() == [(state, state)]


def test_skips_are_read_from_covered_commits_and_separately_numbered_commits(
    log: Log,
) -> None:
    log.commit(1, [skip("a"), skip("a", skipCount=2)])
    log.state(2, {})
    log.commit(9, [skip("apart")])
    skips = log.checkpoint(2).read_meta(("mergeskip",))
    assert skips.select("path", "skipCount").rows() == [("a", 2), ("apart", 1)]
    log.commit(10, [add("f")])
    skips = log.checkpoint(2).read_meta(("mergeskip",))
    assert skips.select("path", "skipCount").rows() == [("a", 2)]


def _first_state(log: Log, *names: str, **fields: Any) -> None:
    log.manifest(_SHARED, _entries(*names))
    log.state(1, {_SHARED: len(names)}, **fields)


def _refusal(log: Log, version: int) -> UnsupportedError:
    with pytest.raises(UnsupportedError, match="two histories") as caught:
        log.checkpoint(version).read_meta()
    with pytest.raises(UnsupportedError, match="two histories"):
        read_files(log.checkpoint(version))
    return caught.value


def test_states_that_omit_the_files_of_earlier_commits_are_refused(log: Log) -> None:
    for version in (1, 2):
        log.commit(version, [add(f"f{version}")])
    _first_state(log, "new")
    log.manifest(_SECOND, _entries("newer"))
    log.state(5, {_SHARED: 1, _SECOND: 1})
    for version in (1, 5):
        error = _refusal(log, version)
        assert error.found == "f1"
        assert "state-v" in str(error.path)
        assert "spark.indextables.state.format" in str(error.hint)


def test_first_state_that_adds_a_committed_file_again_is_refused(log: Log) -> None:
    for version in (1, 2):
        log.commit(version, [add(f"f{version}")])
    _first_state(log, "f1", "new")
    _refusal(log, 1)


def test_first_state_below_commits_with_files_is_refused(log: Log) -> None:
    log.commit(1, [metadata()])
    log.commit(2, [add("f2")])
    _first_state(log, "new")
    _refusal(log, 1)


@pytest.mark.parametrize(
    ("pointer", "refused"),
    [
        ({"version": 0, "createdTime": 51}, True),
        ({"version": 0, "createdTime": 51, "format": "json"}, True),
        ({"version": 0, "createdTime": 49}, False),
        ({"version": 0, "createdTime": 51, "format": "avro-state"}, False),
        ({"version": 1, "createdTime": 51}, False),
        ({"version": 0}, False),
        ([], False),
    ],
)
def test_state_replaced_by_a_later_json_checkpoint_of_a_lower_version_is_refused(
    log: Log, pointer: object, refused: bool
) -> None:
    _first_state(log, "a", createdAt=50)
    log.write("_last_checkpoint", json.dumps(pointer).encode())
    if refused:
        _refusal(log, 1)
    else:
        assert paths(read_files(log.checkpoint(1))) == ["a"]


def test_checkpoint_of_the_first_version_covers_its_commits(log: Log) -> None:
    log.commit(1, [add("a"), add("b")])
    log.commit(2, [add("c")])
    _first_state(log, "a", "b")
    assert paths(read_files(log.checkpoint(1))) == ["a", "b"]


def test_state_that_removes_the_files_of_the_commits_covers_them(log: Log) -> None:
    log.commit(1, [add("a"), add("b"), remove("b")])
    _first_state(log, "c", tombstones=["a"], numFiles=0)
    assert paths(read_files(log.checkpoint(1))) == ["c"]


def test_states_above_a_checkpoint_of_version_0_cover_it(log: Log) -> None:
    log.commit(0, [PROTOCOL, metadata(), add("a")])
    log.state(0, {}, createdAt=0)
    _first_state(log, "c")
    assert paths(read_files(log.checkpoint(1))) == ["c"]


def test_skips_with_the_versions_of_states_are_not_a_second_history(log: Log) -> None:
    for version in (1, 2, 3):
        log.commit(version, [skip("a")])
    _first_state(log, "a")
    assert paths(read_files(log.checkpoint(1))) == ["a"]


@pytest.mark.parametrize(
    ("fields", "found"),
    [({"formatVersion": 2}, "formatVersion 2"), ({"protocolVersion": 5}, "protocolVersion 5")],
)
def test_newer_state_is_refused(log: Log, fields: dict[str, Any], found: str) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        _state(log, **fields).read_meta()
    assert caught.value.found == found


def test_state_of_another_version_is_refused(log: Log) -> None:
    log.state(2, {}, folder=1)
    with pytest.raises(CorruptionError) as caught:
        log.checkpoint(1).read_meta()
    assert (caught.value.expected, caught.value.found) == (1, 2)


@pytest.mark.parametrize("depth", [None, 300, 1_000, 100_000])
def test_torn_or_deeply_nested_cached_metadata_is_refused(log: Log, depth: int | None) -> None:
    nested = '{"metaData":{"x":' + "[" * (depth or 0) + "]" * (depth or 0) + "}}"
    with pytest.raises(MalformedLogError):
        _state(log, metadata="{" if depth is None else nested).read_meta()


@pytest.mark.parametrize("name", [_SHARED, f"state-v{1:020d}/_manifest.avro"])
def test_missing_file_of_a_state_is_named_in_the_error(log: Log, name: str) -> None:
    _state(log)
    listed = log.checkpoint(1)
    (log.folder / name).unlink()
    with pytest.raises(MalformedLogError) as caught:
        read_files(listed)
    assert caught.value.path == f"_transaction_log/{name}"


def test_state_manifest_with_other_records_is_refused(log: Log) -> None:
    log.manifest(f"state-v{1:020d}/_manifest.avro", _entries("a"))
    with pytest.raises(MalformedLogError, match="lacks a field"):
        log.checkpoint(1).read_meta()
    log.manifest(f"state-v{1:020d}/_manifest.avro", [])
    with pytest.raises(MalformedLogError, match="one record"):
        log.checkpoint(1).read_meta()


def test_entries_of_the_wrong_type_are_refused(log: Log) -> None:
    fields = [f | {"type": "string"} if f["name"] == "size" else f for f in ENTRY_FIELDS]
    log.manifest(_SHARED, _entries("a", size="ten"), fields)
    log.state(1, {_SHARED: 1})
    with pytest.raises(InvalidActionError) as caught:
        read_files(log.checkpoint(1))
    assert caught.value.path == f"_transaction_log/{_SHARED}"


@pytest.mark.parametrize("name", ["path", "size"])
def test_entries_without_a_required_field_are_refused(log: Log, name: str) -> None:
    fields = [f for f in ENTRY_FIELDS if f["name"] != name]
    log.manifest(_SHARED, _entries("a"), fields)
    log.state(1, {_SHARED: 1})
    with pytest.raises(InvalidActionError) as caught:
        read_files(log.checkpoint(1))
    assert caught.value.expected == name


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "zstandard"])
def test_every_common_codec_is_read(log: Log, codec: str) -> None:
    log.manifest(_SHARED, _entries("a"), codec=codec)
    log.state(1, {_SHARED: 1}, codec=codec)
    assert paths(read_files(log.checkpoint(1))) == ["a"]


def test_error_without_fastavro_names_the_install_command(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = _state(log)
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "fastavro":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingDependencyError) as caught:
        reader.read_meta()
    assert caught.value.hint == "pip install 'lakelog[avro]'"


def test_error_without_zstandard_names_the_install_command(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = _state(log)
    for module in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError) as caught:
        reader.read_meta()
    assert caught.value.hint == "pip install 'lakelog[avro]'"


def test_reader_parses_its_state_manifest_once(log: Log) -> None:
    reader = _state(log)
    assert isinstance(reader, AvroStateReader)
    reader.read_meta()
    (log.folder / f"state-v{1:020d}/_manifest.avro").unlink()
    assert len(reader.files_read()) == 3


def test_state_returns_its_creation_time(log: Log) -> None:
    reader = _state(log, createdAt=1_775_007_203_644)
    assert isinstance(reader, AvroStateReader)
    assert reader.created_ms() == 1_775_007_203_644


def test_state_that_removes_a_file_of_the_commits_below_is_not_wrong(log: Log) -> None:
    log.commit(1, [add("a"), add("b")])
    log.manifest(_SHARED, _entries("a", "b"))
    log.state(1, {_SHARED: 2})
    log.state(2, {_SHARED: 2}, tombstones=["a"], numFiles=1, totalBytes=10)
    table = lakelog.open(str(log.root), upkeep=False)
    assert table.verify(2).verdict == "unprovable"
    table.checkpoint(2)
    files = lakelog.open(str(log.root)).snapshot(2).files().collect()
    assert files["path"].to_list() == ["b"]
