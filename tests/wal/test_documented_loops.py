"""The loops that specifications 002 and 003 document work unchanged."""

from __future__ import annotations

import pickle
import zlib
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog import KeyedStore, WriteAheadLog
from lakelog.errors import InvalidInputError, NotFoundError
from lakelog.wal import read_historic


@pytest.fixture
def log(tmp_path: Path) -> WriteAheadLog:
    log = WriteAheadLog(tmp_path / "log")
    log.append("PUT", "a", "1")
    log.append_batch([("PUT", "b", "2"), ("DELETE", "a", None)])
    log.checkpoint()
    log.append("PUT", "c", b"\xff")
    return log


def test_the_recovery_loop_of_specification_002_restores_the_store(
    log: WriteAheadLog, tmp_path: Path
) -> None:
    with KeyedStore(tmp_path / "store") as store:
        records = log.replay(after_seq=1)
        for rec in records:
            if rec.op_type == "PUT":
                assert rec.value is not None
                store.put(rec.key, rec.value)
            elif rec.op_type == "DELETE":
                store.delete(rec.key)
        store.flush()
        log.checkpoint()
        assert store.scan().select("key", "value").rows() == [(b"b", b"2"), (b"c", b"\xff")]


def test_the_replay_loop_of_specification_003_restores_a_memtable(tmp_path: Path) -> None:
    memtable: dict[bytes, bytes | None] = {}
    for record in read_historic(tmp_path / "wal.log", missing_ok=True).replay():
        memtable[record.key] = record.value
    assert memtable == {}
    entry = b"\0\0\0\x01k\0\0\0\x05value"
    (tmp_path / "wal.log").write_bytes(entry)
    for record in read_historic(tmp_path / "wal.log", "003").replay():
        memtable[record.key] = record.value
    assert memtable == {b"k": b"value"}


def test_a_replayed_record_has_the_fields_of_specification_002(log: WriteAheadLog) -> None:
    first, *_, last = log.replay()
    assert (first.op_type, first.key, first.value, first.seq_num) == ("PUT", b"a", b"1", 1)
    assert first.checksum == zlib.crc32(b"\x01a1")
    assert (last.op_type, last.key, last.value, last.seq_num) == ("PUT", b"c", b"\xff", 6)


def test_replay_result_is_a_sequence_of_records(log: WriteAheadLog) -> None:
    found = log.replay()
    records = list(found)
    assert len(found) == len(records) == 4
    assert [r.seq_num for r in records] == [1, 2, 3, 6]
    assert found[0] == records[0]
    assert found[-1] == records[-1]
    assert found[1:3] == records[1:3]
    assert found[::-2] == records[::-2]
    assert found == records
    assert found == log.replay()
    assert found != log.replay(1)
    assert records[2] in found
    with pytest.raises(IndexError):
        found[4]
    assert not log.replay(6)
    assert [*log.replay(6)] == []


def test_replay_result_is_an_arrow_table(log: WriteAheadLog) -> None:
    found = log.replay()
    assert isinstance(found.table, pa.Table)
    assert found.num_rows == 4
    assert found["seqNum"].to_pylist() == [1, 2, 3, 6]
    assert found.column_names == ["seqNum", "op", "key", "value"]
    assert found == pa.table(found)
    assert pl.DataFrame(found)["key"].to_list() == [b"a", b"b", b"a", b"c"]
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(AttributeError):
        _ = found.no_such_attribute


@pytest.mark.parametrize("made", [False, True])
def test_missing_log_is_empty_with_missing_ok(tmp_path: Path, made: bool) -> None:
    where = tmp_path / "log"
    if made:
        where.mkdir()
    with pytest.raises(NotFoundError):
        WriteAheadLog(where, read_only=True)
    with WriteAheadLog(where, read_only=True, missing_ok=True) as reader:
        assert list(reader.replay()) == []
        assert reader.state().num_rows == 0
        assert reader.current_seq_num() == 0
        assert where.exists() == made
        with WriteAheadLog(where) as writer:
            writer.append("PUT", "k", "v")
        assert [r.key for r in reader.replay()] == [b"k"]


def test_missing_historic_log_is_empty_with_missing_ok(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(NotFoundError):
            read_historic(path)
        for format in (None, "002", "003", "003-crc"):
            found = read_historic(path, format, missing_ok=True)
            assert len(found.replay()) == 0
            assert found.findings == ()


def test_a_memtable_flushes_at_a_number_of_entries(tmp_path: Path) -> None:
    with KeyedStore(tmp_path / "store", memtable_entries=10) as store:
        for number in range(9):
            store.put(f"k{number}", b"v")
        assert not list((tmp_path / "store").glob("*.parquet"))
        store.put("k9", b"v")
        assert list((tmp_path / "store").glob("*.parquet"))
        store.put("k9", b"w")
        assert store.get("k9") == b"w"
    with pytest.raises(InvalidInputError, match="memtable_entries"):
        KeyedStore(tmp_path / "other", memtable_entries=0)
    assert lakelog.KeyedStore(tmp_path / "store", read_only=True).get("k3") == b"v"
