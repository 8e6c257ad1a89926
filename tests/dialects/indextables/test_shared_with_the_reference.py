"""Tables that lakelog and IndexTables' own writer share: content that neither may lose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.errors import ConflictError, UnsupportedError, UnsupportedFeatureError
from tests.dialects.indextables.writing import (
    PROTOCOL,
    SCHEMA_STRING,
    Log,
    add,
    lines,
    metadata,
    skip,
)

_FIRST, _SECOND = (f"manifests/manifest-{n:08x}.avro" for n in (1, 2))


def _table(root: Path, commits: int = 3) -> lakelog.Table:
    table = lakelog.create(str(root), SCHEMA_STRING, format="indextables", upkeep=False)
    for number in range(1, commits + 1):
        _add(table, f"f{number}")
    return table


def _add(table: lakelog.Table, path: str) -> None:
    with table.transaction() as tx:
        tx.add(path=path, size=10, modificationTime=5, dataChange=True, partitionValues={})


def _states(root: Path, first: int, last: int) -> None:
    """A checkpoint of version `first` by IndexTables, and adds up to `last`."""
    log = Log.__new__(Log)
    log.root, log.folder = root, root / "_transaction_log"
    entries = [add(f"f{n}")["add"] for n in range(1, last + 1)]
    log.manifest(_FIRST, entries[:first])
    log.state(first, {_FIRST: first}, createdAt=first)
    for version in range(first + 1, last + 1):
        name = f"manifests/manifest-{version:08x}.avro"
        log.manifest(name, entries[first:version])
        log.state(version, {_FIRST: first, name: version - first}, createdAt=version)


def _paths(snapshot: lakelog.Snapshot) -> list[str]:
    return sorted(snapshot.files().collect()["path"].to_list())


@pytest.mark.parametrize("last", [3, 4])
def test_commit_to_a_table_with_states_is_refused(tmp_path: Path, last: int) -> None:
    kept = _table(tmp_path / "t")
    _states(tmp_path / "t", 3, last)
    for table in (kept, lakelog.open(str(tmp_path / "t"), upkeep=False)):
        with pytest.raises(UnsupportedFeatureError) as caught:
            _add(table, "lost")
        assert caught.value.found == "avroState"
        assert table.snapshot().version == last
        assert table.snapshot().protocol.min_writer_version == 4
    assert not (tmp_path / "t/_transaction_log" / f"{last + 1:020d}.json").exists()


def test_transaction_that_is_open_when_states_appear_is_refused(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    tx = table.transaction()
    tx.add(path="lost", size=10, modificationTime=5, dataChange=True, partitionValues={})
    _states(tmp_path / "t", 3, 4)
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    assert caught.value.rule == "avro_states"
    assert not (tmp_path / "t/_transaction_log" / f"{4:020d}.json").exists()


def test_error_after_a_checkpoint_that_raised_the_protocol_names_the_cause(
    tmp_path: Path,
) -> None:
    _table(tmp_path / "t", 1)
    log = tmp_path / "t/_transaction_log"
    raised = {"protocol": {"minReaderVersion": 4, "minWriterVersion": 4}}
    (log / f"{1:020d}.checkpoint.json").write_bytes(lines([raised, metadata(), add("f1")]))
    with pytest.raises(UnsupportedFeatureError) as caught:
        _add(lakelog.open(str(tmp_path / "t"), upkeep=False), "x")
    message = str(caught.value)
    assert "the table's protocol 4/4" in message
    assert "a checkpoint of IndexTables raises a table to this protocol" in message
    assert "the table has the feature" not in message
    assert "spark.indextables.state.format" in message


def test_separately_numbered_skips_do_not_change_the_version(tmp_path: Path) -> None:
    log = Log(tmp_path / "t")
    log.commit(0, [PROTOCOL, metadata()])
    names = [f"manifests/manifest-{n:08x}.avro" for n in range(1, 7)]
    for version in range(1, 6):
        log.manifest(names[version - 1], [add(f"a{version}")["add"]])
        log.state(version, dict.fromkeys(names[:version], 1), createdAt=version)
    table = lakelog.open(str(log.root), upkeep=False)
    held = table.snapshot()
    for version in range(1, 9):
        log.commit(version, [skip(f"s{version}")])
    assert [table.snapshot(v).num_files() for v in range(6)] == list(range(6))
    for snapshot in (table.snapshot(), held.update()):
        assert snapshot.version == 5
        assert snapshot.skips().collect().height == 8
    log.manifest(names[5], [add("a6")["add"]])
    log.state(6, dict.fromkeys(names, 1), createdAt=6)
    for snapshot in (table.snapshot(), held.update()):
        assert (snapshot.version, snapshot.num_files()) == (6, 6)


def test_update_over_a_state_reads_the_files_of_the_state(tmp_path: Path) -> None:
    held = _table(tmp_path / "t").snapshot()
    log = Log.__new__(Log)
    log.root, log.folder = tmp_path / "t", tmp_path / "t/_transaction_log"
    _states(log.root, 3, 4)
    log.commit(4, [skip("s")])
    assert _paths(held.update()) == ["f1", "f2", "f3", "f4"]


def test_states_that_omit_the_commits_are_refused(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    log = Log.__new__(Log)
    log.root, log.folder = tmp_path / "t", tmp_path / "t/_transaction_log"
    log.manifest(_FIRST, [add("new")["add"]])
    log.state(1, {_FIRST: 1})
    for opened in (table, lakelog.open(str(log.root), upkeep=False)):
        with pytest.raises(UnsupportedError, match="two histories"):
            opened.snapshot()
        with pytest.raises(UnsupportedError, match="two histories"):
            _add(opened, "x")
    assert _paths(table.snapshot(0)) == []


_MAPPING = '[{"name":"a","type":"text"},{"name":"b","type":"u64"}]'
_EQUAL_MAPPINGS = (
    '[ {"type": "u64", "name": "b"}, {"name": "a", "type": "text"} ]',
    '[{"name":"a","type":"text"},{"name":"b","type":"u64"},{"name":"o","type":"object"}]',
    '[{"name":"o","type":"object","field_mappings":[]},' + _MAPPING[1:],
)


def _checkpoint(log: Log, mapping: str | None, **fields: Any) -> lakelog.Table:
    log.commit(0, [PROTOCOL, metadata(), add("f", docMappingJson=_MAPPING)])
    rows = fields.pop("rows", [PROTOCOL, metadata()])
    held = add("f", docMappingJson=mapping, dataChange=False, **fields)
    log.write(f"{0:020d}.checkpoint.json", lines([*rows, held]))
    return lakelog.open(str(log.root), upkeep=False)


@pytest.mark.parametrize("equal_mapping", _EQUAL_MAPPINGS)
def test_checkpoint_with_an_equal_mapping_in_other_json_text_is_proved(
    tmp_path: Path, equal_mapping: str
) -> None:
    report = _checkpoint(Log(tmp_path / "t"), equal_mapping, hasFooterOffsets=False).verify()
    assert (report.verdict, report.reason) == ("proved", None)


@pytest.mark.parametrize(
    "mapping",
    [
        None,
        "[]",
        _MAPPING.replace("text", "u64"),
        _MAPPING.replace('"b"', '"c"'),
        _MAPPING[:-1] + ',{"name":"o","type":"object","field_mappings":[{"name":"x"}]}]',
        "not valid JSON",
    ],
)
def test_checkpoint_with_a_different_document_mapping_is_wrong(
    tmp_path: Path, mapping: str | None
) -> None:
    report = _checkpoint(Log(tmp_path / "t"), mapping).verify()
    assert report.verdict == "wrong"
    assert "docMappingJson" in (report.reason or "")


def test_checkpoint_that_keeps_mappings_by_reference_is_proved(tmp_path: Path) -> None:
    properties = {"docMappingSchema.h": _EQUAL_MAPPINGS[0], "own": "1"}
    rows = [
        {"protocol": {"minReaderVersion": 4, "minWriterVersion": 4}},
        metadata(configuration=properties),
    ]
    log = Log(tmp_path / "t")
    log.commit(0, [PROTOCOL, metadata(configuration={"own": "1"})])
    log.commit(1, [add("f", docMappingJson=_MAPPING)])
    body = lines([*rows, add("f", docMappingRef="h", dataChange=False)])
    log.write(f"{1:020d}.checkpoint.json", body)
    report = lakelog.open(str(log.root), upkeep=False).verify()
    assert report.verdict == "proved"
    assert "protocol" in (report.reason or "")


def test_checkpoint_that_lost_a_registered_mapping_is_wrong(tmp_path: Path) -> None:
    log = Log(tmp_path / "t")
    log.commit(0, [PROTOCOL, metadata(configuration={"docMappingSchema.h": _MAPPING}), add("f")])
    log.write(f"{0:020d}.checkpoint.json", lines([PROTOCOL, metadata(), add("f")]))
    report = lakelog.open(str(log.root), upkeep=False).verify()
    assert report.verdict == "wrong"
    assert "docMappingSchema.h" in (report.reason or "")


@pytest.mark.parametrize(
    "protocol",
    [
        {"minReaderVersion": 1, "minWriterVersion": 2},
        {"minReaderVersion": 4, "minWriterVersion": 1},
        {"minReaderVersion": 4, "minWriterVersion": 4, "readerFeatures": ["skippedFiles"]},
    ],
)
def test_checkpoint_with_a_lower_or_different_protocol_is_wrong(
    tmp_path: Path, protocol: dict[str, Any]
) -> None:
    rows = [{"protocol": protocol}, metadata()]
    assert _checkpoint(Log(tmp_path / "t"), _MAPPING, rows=rows).verify().verdict == "wrong"


def test_actions_and_history_have_the_same_times_below_a_state(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    _states(tmp_path / "t", 3, 4)
    times = dict(table.history().select("version", pl.col("timestamp").dt.epoch("ms")).iter_rows())
    assert max(times.values()) < 10  # the state says so, not the files
    found = (
        table.actions(end=3)
        .select("version", "timestamp")
        .unique("version")
        .sort("version")
        .collect()
    )
    assert list(found.iter_rows()) == [(version, times[version]) for version in range(4)]
