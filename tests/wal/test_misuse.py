"""Unusual calls: each is refused or done correctly, and harms no record."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.errors import (
    InvalidInputError,
    LogLockedError,
    LogPoisonedError,
    NotFoundError,
    OutcomeUnknownError,
)
from lakelog.keyed import KeyedStore
from lakelog.wal import placement
from lakelog.wal.disk import LocalDisk
from lakelog.wal.frames import MAX_SEQ, SegmentHeader
from lakelog.wal.log import WriteAheadLog
from lakelog.wal.segments import segment_name


@pytest.mark.parametrize("number", [2.0, 4.0, "2", None, True, np.True_, -1])
def test_truncate_requires_an_integer(tmp_path: Path, number: Any) -> None:
    with WriteAheadLog(tmp_path) as log:
        for n in range(4):
            log.append("PUT", str(n), b"")
        with pytest.raises(InvalidInputError, match="must be an int >= 0"):
            log.truncate(number)
        assert log.append("PUT", "continues", b"") == 5
        for up_to_seq in (3, 5):
            number = np.int64(up_to_seq)
            log.truncate(number)
            assert log.truncated_to == up_to_seq
    with WriteAheadLog(tmp_path) as log:
        assert log.truncated_to == log.current_seq_num() == 5


def test_log_is_not_created_in_the_directory_of_a_keyed_store_or_an_ingestor(
    tmp_path: Path,
) -> None:
    with KeyedStore(tmp_path / "store") as store:
        store.put("a", "1")
    table = lakelog.create(tmp_path / "t", {"n": pl.Int64}, upkeep=False)
    lakelog.Ingestor(table, tmp_path / "ingest").close()
    for directory in (tmp_path / "store", tmp_path / "ingest"):
        before = sorted(os.listdir(directory))
        with pytest.raises(InvalidInputError, match="belongs to a keyed store or an Ingestor"):
            WriteAheadLog(directory)
        assert sorted(os.listdir(directory)) == before
    with KeyedStore(tmp_path / "store") as store:
        assert store.get("a") == b"1"


def test_keyed_store_and_ingestor_refuse_the_directories_of_each_other(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"n": pl.Int64}, upkeep=False)
    with KeyedStore(tmp_path / "store") as store:
        store.put("a", "1")
        store.flush()
    ingestor = lakelog.Ingestor(table, tmp_path / "ingest", max_seconds=3600)
    ingestor.write({"n": 1})
    ingestor.close(flush=False)
    before = sorted(tmp_path.rglob("*"))
    for read_only in (False, True):
        with pytest.raises(InvalidInputError, match="belongs to an Ingestor") as raised:
            KeyedStore(tmp_path / "ingest", read_only=read_only)
        assert raised.value.found == "ingest.json"
    with pytest.raises(InvalidInputError, match="belongs to a keyed store") as raised:
        lakelog.Ingestor(table, tmp_path / "store")
    assert raised.value.found == "manifest.json"
    assert sorted(tmp_path.rglob("*")) == before
    lakelog.Ingestor(table, tmp_path / "ingest").close()
    assert table.to_polars()["n"].to_list() == [1]


def test_state_files_of_other_programs_do_not_make_a_directory_theirs(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"n": pl.Int64}, upkeep=False)
    for name in ("store", "ingest"):
        (tmp_path / name).mkdir()
    (tmp_path / "store" / "ingest.json").write_text("{}")
    (tmp_path / "ingest" / "manifest.json").write_text('{"name": "a web application"}')
    for _ in range(2):  # a new directory, and an existing one
        with KeyedStore(tmp_path / "store") as store:
            store.put("a", "1")
            store.flush()
        ingestor = lakelog.Ingestor(table, tmp_path / "ingest", max_seconds=3600)
        ingestor.write({"n": 1})
        ingestor.close(flush=False)
    with KeyedStore(tmp_path / "store", read_only=True) as store:
        assert store.get("a") == b"1"
    lakelog.Ingestor(table, tmp_path / "ingest").close()
    assert table.to_polars()["n"].to_list() == [1, 1]
    assert (tmp_path / "store" / "ingest.json").read_text() == "{}"


def test_directory_with_the_state_of_two_owners_is_refused_by_both(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"n": pl.Int64}, upkeep=False)
    with KeyedStore(tmp_path / "store") as store:
        store.put("a", "1")
        store.flush()
    lakelog.Ingestor(table, tmp_path / "ingest").close()
    shutil.copy(tmp_path / "store" / "manifest.json", tmp_path / "ingest")
    with pytest.raises(InvalidInputError, match="belongs to a keyed store"):
        lakelog.Ingestor(table, tmp_path / "ingest")
    with pytest.raises(InvalidInputError, match="belongs to an Ingestor"):
        KeyedStore(tmp_path / "ingest")


def test_files_that_vacuum_would_delete_are_not_written_into_a_table(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"n": pl.Int64}, upkeep=False)
    (tmp_path / "link").symlink_to(tmp_path / "t")
    before = sorted(os.listdir(tmp_path / "t"))
    writes: list[Callable[[Path], object]] = [
        WriteAheadLog,
        KeyedStore,
        lambda directory: lakelog.Ingestor(table, directory),
        table.snapshot().write_parquet,
    ]
    for directory in ("t", "t/a/b", "t/_delta_log", "link/a"):
        for write in writes:
            with pytest.raises(InvalidInputError, match="inside a table: vacuum would delete"):
                write(tmp_path / directory)
    assert sorted(os.listdir(tmp_path / "t")) == before


@pytest.mark.parametrize("kind", ["log", "store", "ingest"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_table_is_not_created_where_vacuum_would_delete_a_log(
    tmp_path: Path, kind: str, depth: int
) -> None:
    above, rows = tmp_path / "above", pl.DataFrame({"n": [1]})
    folder = above.joinpath(*"ab"[:depth])
    folder.parent.mkdir(parents=True, exist_ok=True)
    table = lakelog.create(tmp_path / "t", rows.schema, upkeep=False)
    if kind == "log":
        WriteAheadLog(folder).close()
    elif kind == "store":
        with KeyedStore(folder) as store:
            store.put("a", "1")
            store.flush()
    else:
        lakelog.Ingestor(table, folder).close()
    writes: list[Callable[[Path], object]] = [
        lambda path: lakelog.create(path, rows.schema),
        lambda path: lakelog.write(path, rows),
        lakelog.convert,
        table.clone,
    ]
    for write in writes:
        with pytest.raises(InvalidInputError, match="write-ahead log: vacuum"):
            write(above)
    assert not (above / "_delta_log").exists()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_table_is_not_created_above_a_store_whose_log_is_a_link(tmp_path: Path, depth: int) -> None:
    (tmp_path / "fast").mkdir()
    above = tmp_path / "above"
    store = above.joinpath(*"ab"[:depth])
    store.mkdir(parents=True)
    (store / "wal").symlink_to(tmp_path / "fast")
    with KeyedStore(store) as keyed:
        keyed.put("a", "1")
    with pytest.raises(InvalidInputError, match="write-ahead log: vacuum") as raised:
        lakelog.create(above, {"n": pl.Int64})
    assert str(raised.value.found).startswith(f"{store}/wal/0")


def test_table_is_created_above_links_and_files_of_other_programs(tmp_path: Path) -> None:
    other = tmp_path / "t" / "a" / "b"
    (other / "c").mkdir(parents=True)
    for name in ("wal.log", "000123.wal", "c/wal"):
        (other / name).touch()
    (other / "wal").symlink_to("..")
    (other / "elsewhere").symlink_to(tmp_path / "log")
    WriteAheadLog(tmp_path / "log").close()
    lakelog.create(tmp_path / "t", {"n": pl.Int64})


def test_table_is_created_above_more_folders_than_the_recursion_limit(tmp_path: Path) -> None:
    folders = [str(tmp_path / "t")]
    for _ in range(sys.getrecursionlimit()):
        folders.append(f"{folders[-1]}/d")
    for folder in folders:
        os.mkdir(folder)
    try:
        lakelog.create(folders[0], {"n": pl.Int64})
    finally:
        for folder in reversed(folders[1:]):  # pytest deletes by recursion
            os.rmdir(folder)


def test_nearest_files_of_a_large_folder_are_examined_before_a_table_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_MOST_NAMES", 20)
    for folder in ("many", "few"):
        WriteAheadLog(tmp_path / folder / "a" / "log").close()
    for number in range(50):
        (tmp_path / "many" / str(number)).touch()
        (tmp_path / "few" / "a" / "log" / str(number)).touch()
    for number in range(5):
        WriteAheadLog(tmp_path / "few" / str(number)).close()
    with pytest.raises(InvalidInputError, match="write-ahead log: vacuum"):
        lakelog.create(tmp_path / "few", {"n": pl.Int64})
    lakelog.create(tmp_path / "many", {"n": pl.Int64})


def test_table_is_not_created_above_a_historic_log_with_its_lock(tmp_path: Path) -> None:
    deep = tmp_path / "t" / "a" / "b"
    deep.mkdir(parents=True)
    for name in ("000001.wal", "wal.lock"):
        (deep / name).touch()
    with pytest.raises(InvalidInputError, match="write-ahead log: vacuum"):
        lakelog.create(tmp_path / "t", {"n": pl.Int64})


def test_a_location_that_cannot_be_listed_is_refused_by_the_store(tmp_path: Path) -> None:
    with pytest.raises(
        lakelog.LakelogError, match=r"File name too long.*Next: use a shorter location"
    ):
        lakelog.create(tmp_path / ("x" * 300), {"id": pl.Int64})


@pytest.mark.parametrize("kind", [WriteAheadLog, KeyedStore])
def test_file_instead_of_a_directory_is_an_incorrect_call(tmp_path: Path, kind: Any) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    for directory in (file, file / "deep" / "log"):
        for read_only in (False, True):
            with pytest.raises(InvalidInputError, match="the location is a file") as refused:
                kind(directory, read_only=read_only)
            assert refused.value.path == str(file)
    with pytest.raises(NotFoundError) as missing:
        kind(tmp_path / "none", read_only=True)
    assert "ithout read_only a new" in str(missing.value.hint)
    assert os.listdir(tmp_path) == ["file"]


def test_log_keeps_its_directory_after_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere" / "log").mkdir(parents=True)
    with WriteAheadLog("log", segment_bytes=100) as log:
        assert log.append("PUT", "here", "v" * 100) == 1
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert log.append("PUT", "and here", "v" * 100) == 2
        assert log.replay()["key"].to_pylist() == [b"here", b"and here"]
    assert len(list((tmp_path / "log").glob("*.wal"))) == 2
    assert list((tmp_path / "elsewhere" / "log").iterdir()) == []


def test_a_directory_is_given_as_text_bytes_or_path(tmp_path: Path) -> None:
    ways: list[Any] = [str(tmp_path), bytes(tmp_path), tmp_path]
    for n, directory in enumerate(ways, 1):
        with WriteAheadLog(directory) as log:
            assert log.append("PUT", "k", b"") == n


def test_log_with_exhausted_sequence_numbers_refuses_appends_and_stays_readable(
    tmp_path: Path,
) -> None:
    first = MAX_SEQ - 3
    header = SegmentHeader(bytes(range(16)), first, first, first - 1, 0)
    (tmp_path / segment_name(first)).write_bytes(header.pack())
    with WriteAheadLog(tmp_path) as log:
        assert log.append("PUT", "one of the last", b"") == first
        assert log.append_batch([("PUT", "the last", "v")]) == MAX_SEQ - 1
    for _ in range(2):
        with WriteAheadLog(tmp_path) as log:
            with pytest.raises(InvalidInputError, match="sequence numbers are exhausted"):
                log.append("PUT", "one too many", b"")
            assert log.replay()["seqNum"].to_pylist() == [first, first + 1]
            assert log.replay(MAX_SEQ - 1).num_rows == log.replay(1 << 80).num_rows == 0
            assert log.current_seq_num() == MAX_SEQ - 1


def test_rewrite_keeps_position_and_content(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    disk = LocalDisk()
    file = disk.open_append(path, create=True)
    file.write(b"some bytes")
    disk.rewrite(path, 5, b"bytes")
    file.write(b", and more")
    assert Path(path).read_bytes() == b"some bytes, and more"
    file.close()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_open_writer_cannot_be_copied_and_keeps_its_files(
    tmp_path: Path, duplicate: Callable[[Any], Any]
) -> None:
    with WriteAheadLog(tmp_path) as log:
        with pytest.raises(InvalidInputError, match="copied or pickled"):
            duplicate(log)
        gc.collect()
        with pytest.raises(LogLockedError):
            WriteAheadLog(tmp_path)
        assert log.append("PUT", "its files are open", b"") == 1
        with WriteAheadLog(tmp_path, read_only=True) as reader:
            assert duplicate(reader)


@pytest.mark.parametrize("number", [2.0, "2", None, True, np.True_, -1])
def test_replay_requires_an_integer(tmp_path: Path, number: Any) -> None:
    with WriteAheadLog(tmp_path) as log:
        for n in range(4):
            log.append("PUT", str(n), b"")
        for reader in (log, WriteAheadLog(tmp_path, read_only=True)):
            for read in (reader.replay, lambda n, of=reader: list(of.iterate(n))):
                with pytest.raises(InvalidInputError, match="must be an int >= 0"):
                    read(number)
            whole: list[Any] = [np.int64(3), np.uint64(3)]
            for same in whole:
                assert reader.replay(same)["seqNum"].to_pylist() == [4]
                assert [each.seq_num for each in reader.records(same)] == [4]


@pytest.mark.parametrize("address", ["s3://bucket/log", "file:///log", "a\0b"])
@pytest.mark.parametrize("kind", [WriteAheadLog, KeyedStore])
def test_url_is_refused_and_no_directory_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for read_only in (False, True):
        with pytest.raises(InvalidInputError, match="local disk"):
            kind(address, read_only=read_only)
    assert not list(tmp_path.iterdir())


def test_sync_mode_can_be_a_positional_argument(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path, "none") as log:
        assert log.append("PUT", "k", b"") == 1
    for wrong in ("fsync", ["sync"], None):
        with pytest.raises(InvalidInputError, match="sync must be"):
            WriteAheadLog(tmp_path, wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="compression must be"):
        WriteAheadLog(tmp_path, compression=["zstd"])  # type: ignore[arg-type]


def test_append_table_accepts_arrow_streams(tmp_path: Path) -> None:
    table = pa.table({"op": ["PUT", "DELETE"], "key": ["a", "b"], "value": [b"\xff", None]})
    ops = table.cast(pa.schema([("op", pa.binary()), ("key", pa.binary()), ("value", pa.binary())]))
    views = table.cast(
        pa.schema([("op", pa.binary_view()), ("key", pa.string_view()), ("value", pa.binary())])
    )
    with WriteAheadLog(tmp_path) as log:
        for each in (table, table.to_reader(), table.to_pandas(), ops, views):
            end = log.append_table(each)
            assert [tuple(r)[1:] for r in log.records(end - 3)] == [
                ("PUT", b"a", b"\xff"),
                ("DELETE", b"b", None),
                ("COMMIT", b"", None),
            ]
        end = log.current_seq_num()
        for wrong in (table.to_batches(), pa.array([1, 2]), pl.Series([1]), {"op": ["PUT"]}, None):
            with pytest.raises(InvalidInputError, match="an Arrow or a Polars table"):
                log.append_table(wrong)
        with pytest.raises(InvalidInputError, match="list of records"):
            log.append_batch(None)  # type: ignore[arg-type]
        assert log.current_seq_num() == end


def test_result_of_os_fsync_decides_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fails = False

    def fsync(descriptor: int) -> None:
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced.append(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with WriteAheadLog(tmp_path) as log:
        for n in range(3):
            before = len(synced)
            log.append("PUT", str(n), b"")
            assert len(synced) == before + 1
        fails = True
        with pytest.raises(OutcomeUnknownError):
            log.append("PUT", "it may be there", b"")
        fails = False
        with pytest.raises(LogPoisonedError):
            log.append("PUT", "it is refused", b"")
    with WriteAheadLog(tmp_path) as log:
        assert log.replay()["key"].to_pylist()[:3] == [b"0", b"1", b"2"]
        assert b"it is refused" not in log.replay()["key"].to_pylist()
        assert log.append("PUT", "usable", b"") > 3
