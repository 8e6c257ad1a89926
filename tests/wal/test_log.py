"""The log from a caller's view."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.errors import InvalidInputError, NotFoundError, UnsupportedError
from lakelog.wal.log import WriteAheadLog


def rows(log: WriteAheadLog, after_seq: int = 0) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in log.replay(after_seq).to_pylist()]


def segments(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.wal"))


def test_records_are_read_in_order_with_their_sequence_numbers(tmp_path: Path) -> None:
    with lakelog.WriteAheadLog(tmp_path) as log:
        assert log.current_seq_num() == 0
        assert log.append("PUT", "city", "Ghent") == 1
        assert log.append("DELETE", b"city") == 2
        assert log.append_batch([("PUT", "river", b"Leie"), ("PUT", "ä", "")]) == 5
        assert log.checkpoint() == 6
        assert log.current_seq_num() == 6
        expected = [
            (1, "PUT", b"city", b"Ghent"),
            (2, "DELETE", b"city", None),
            (3, "PUT", b"river", b"Leie"),
            (4, "PUT", "ä".encode(), b""),
        ]
        assert rows(log) == expected
        assert rows(log, 2) == expected[2:]
        assert [record.op_type for record in log.records()] == [
            *("PUT", "DELETE", "PUT", "PUT", "COMMIT", "CHECKPOINT")
        ]
        assert [record.seq_num for record in log.records(4)] == [5, 6]
    with WriteAheadLog(tmp_path) as log:
        assert rows(log) == expected
        assert log.recovery is None
        assert log.append("PUT", "x", b"") == 7
        assert rows(log, 6) == [(7, "PUT", b"x", b"")]


def test_a_records_checksum_is_that_of_the_specification(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", "k", "v")
        (record,) = log.records()
    # The example record of specification 002: seq 1, k=v.
    assert record.checksum.to_bytes(4, "little").hex() == "40d5ecc1"


def test_replay_gives_the_documented_columns(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        empty = log.replay()
        log.append("PUT", "k", "v")
        full = log.replay()
    assert empty.num_rows == 0
    assert empty.schema == full.schema
    assert full.schema.names == ["seqNum", "op", "key", "value"]
    types = [pa.int64(), pa.dictionary(pa.int8(), pa.string()), pa.binary(), pa.binary()]
    assert full.schema.types == types
    frame = pl.from_arrow(full.table)
    assert isinstance(frame, pl.DataFrame)
    assert frame.equals(pl.DataFrame(full))
    assert frame.filter(pl.col("op") == "PUT")["key"].to_list() == [b"k"]


TABLES = {
    "arrow": pa.table({"op": ["PUT", "DELETE"], "key": ["a", "b"], "value": ["1", None]}),
    "polars": pl.DataFrame({"op": ["PUT", "DELETE"], "key": ["a", "b"], "value": ["1", None]}),
    "lazy": pl.LazyFrame({"key": [b"a", b"b"], "value": [b"1", None], "op": ["PUT", "DELETE"]}),
    "batch": pa.record_batch({"op": ["PUT", "DELETE"], "key": [b"a", b"b"], "value": [b"1", None]}),
    "dictionary": pa.table(
        {
            "op": pa.array(["PUT", "DELETE"]).dictionary_encode(),
            "key": pa.array(["a", "b"], pa.large_string()).dictionary_encode(),
            "value": pa.array([b"1", None], pa.binary_view()),
        }
    ),
    "chunks": pa.concat_tables(
        [
            pa.table({"op": ["PUT"], "key": ["a"], "value": ["1"]}),
            pa.table({"op": pa.array([], pa.string()), "key": [""][:0], "value": [""][:0]}),
            pa.table(
                {"op": ["no", "DELETE"], "key": ["", "b"], "value": pa.array([None, None], "str")}
            ).slice(1),
        ],
        promote_options="permissive",
    ),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_table_is_appended_as_a_batch(tmp_path: Path, table: Any) -> None:
    with WriteAheadLog(tmp_path) as log:
        assert log.append_table(table) == 3
        assert rows(log) == [(1, "PUT", b"a", b"1"), (2, "DELETE", b"b", None)]
        assert [record.op_type for record in log.records(2)] == ["COMMIT"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize(
    "ops", [["PUT"] * 5, ["DELETE"] * 5, ["PUT", "DELETE", "PUT", "PUT", "DELETE"]], ids=len
)
def test_operations_of_a_table_are_validated(
    tmp_path: Path, ops: list[str], kind: pa.DataType
) -> None:
    column = pa.array(["DELETE", *ops], kind).slice(1)
    with WriteAheadLog(tmp_path) as log:
        log.append_table(pa.table({"op": column, "key": ["k"] * 5, "value": ["v"] * 5}))
        assert log.replay()["op"].to_pylist() == ops
        for wrong in (["PU", "TPUT"], ["PUTPUT", ""], ["put", "PUT"]):
            with pytest.raises(InvalidInputError):
                log.append_table(
                    pa.table({"op": pa.array(wrong, kind), "key": ["k"] * 2, "value": ["v"] * 2})
                )


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"op": ["PUT"], "key": ["a"]}),
        pa.table({"op": ["PUT"], "key": ["a"], "value": ["1"], "more": [1]}),
        pa.table({"op": ["COMMIT"], "key": ["a"], "value": ["1"]}),
        pa.table({"op": [None], "key": ["a"], "value": ["1"]}),
        pa.table({"op": pa.array([None], pa.string()), "key": ["a"], "value": ["1"]}),
        pa.table({"op": ["PUT"], "key": pa.array([None], pa.string()), "value": ["1"]}),
        pa.table({"op": ["PUT"], "key": ["a"], "value": [1]}),
        {"op": ["PUT"], "key": ["a"], "value": ["1"]},
    ],
    ids=["too few", "too many", "COMMIT", "null type", "null op", "null key", "number", "no table"],
)
def test_invalid_table_is_refused(tmp_path: Path, table: Any) -> None:
    with WriteAheadLog(tmp_path) as log:
        with pytest.raises(InvalidInputError):
            log.append_table(table)
        assert log.current_seq_num() == 0


@pytest.mark.parametrize(
    "record",
    [
        ("put", "k", "v"),
        ("PUT", 1, "v"),
        ("PUT", "k", 1.5),
        ("PUT", None, "v"),
        ("PUT", "\ud800", "v"),
    ],
    ids=["op", "key", "value", "no key", "surrogate"],
)
def test_invalid_record_is_refused(tmp_path: Path, record: tuple[Any, ...]) -> None:
    with WriteAheadLog(tmp_path) as log:
        with pytest.raises(InvalidInputError):
            log.append(*record)
        with pytest.raises(InvalidInputError):
            log.append_batch([("PUT", "fine", "fine"), record])
        assert log.current_seq_num() == 0


@pytest.mark.parametrize(
    "setting",
    [{"sync": "always"}, {"compression": "gzip"}, {"segment_bytes": 0}, {"batch_appends": 0}],
    ids=str,
)
def test_invalid_setting_is_refused(tmp_path: Path, setting: Any) -> None:
    with pytest.raises(InvalidInputError):
        WriteAheadLog(tmp_path, **setting)
    assert list(tmp_path.iterdir()) == []


def test_log_rotates_segments_and_reads_all_of_them(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path, segment_bytes=1000) as log:
        for n in range(100):
            log.append("PUT", f"key {n}", "v" * 40)
        numbers = segments(tmp_path)
        assert len(numbers) > 5
        assert [row[0] for row in rows(log)] == list(range(1, 101))
        assert [row[0] for row in rows(log, 50)] == list(range(51, 101))
        assert [table["seqNum"][0].as_py() for table in log.iterate()] == numbers
    with WriteAheadLog(tmp_path) as log:
        assert [row[0] for row in rows(log)] == list(range(1, 101))


def test_truncation_removes_whole_segments_and_hides_the_rest(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path, segment_bytes=1000) as log:
        for n in range(100):
            log.append("PUT", f"key {n}", "v" * 40)
        before = segments(tmp_path)
        report = log.truncate(50)
        assert report.truncated_to == 50
        assert [int(Path(path).stem) for path in report.removed] == [
            seq for seq, following in pairwise(before) if following <= 51
        ]
        assert [row[0] for row in rows(log)] == list(range(51, 101))
        assert log.truncate(30).removed == ()
        assert [row[0] for row in rows(log)] == list(range(51, 101))
    with WriteAheadLog(tmp_path) as log:
        assert [row[0] for row in rows(log)] == list(range(51, 101))
        assert log.state().num_rows == 50


def test_truncated_to_is_the_highest_truncated_sequence_number(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path, segment_bytes=1000) as log:
        assert log.truncated_to == 0
        for n in range(30):
            log.append("PUT", f"key {n}", "v" * 40)
        for up_to, expected in ((12, 12), (5, 12), (30, 30)):
            log.truncate(up_to)
            assert log.truncated_to == expected
            with WriteAheadLog(tmp_path, read_only=True) as reader:
                assert reader.truncated_to == expected
    with WriteAheadLog(tmp_path) as log:
        assert log.truncated_to == 30


@pytest.mark.parametrize(
    ("up_to_seq", "message"),
    [
        (4, "cannot be truncated after its last record"),
        (1 << 80, "cannot be truncated after its last record"),
    ],
)
def test_truncation_beyond_the_log_is_refused(tmp_path: Path, up_to_seq: int, message: str) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append_batch([("PUT", "a", b""), ("PUT", "b", b"")])
        with pytest.raises(InvalidInputError, match=message):
            log.truncate(up_to_seq)
        assert len(rows(log)) == 2


def test_compressed_frames_are_smaller_and_have_the_same_records(tmp_path: Path) -> None:
    batch = [("PUT", f"key {n}", f"value {n % 7} " * 5) for n in range(1000)]
    sizes = {}
    choices: list[Any] = ["none", "zstd"]
    for compression in choices:
        directory = tmp_path / compression
        with WriteAheadLog(directory, compression=compression, frame_bytes=10_000) as log:
            log.append_batch(batch)
            log.append("PUT", "small", "value")
            log.append("PUT", "random", os.urandom(400))
            sizes[compression] = sum(path.stat().st_size for path in directory.glob("*.wal"))
            assert [row[1:] for row in rows(log)][:-1] == [
                *((op, key.encode(), value.encode()) for op, key, value in batch),
                ("PUT", b"small", b"value"),
            ]
    assert sizes["zstd"] * 4 < sizes["none"]


def test_closed_log_refuses_calls_and_can_be_closed_twice(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path)
    log.append("PUT", "k", b"")
    log.close()
    log.close()
    for use in (
        lambda: log.append("PUT", "k", b""),
        lambda: log.append_batch([]),
        log.replay,
        log.state,
        log.sync,
        log.checkpoint,
        log.current_seq_num,
        lambda: log.truncated_to,
        lambda: log.truncate(0),
        lambda: list(log.iterate()),
    ):
        with pytest.raises(InvalidInputError, match="closed"):
            use()


def test_historic_log_is_not_opened(tmp_path: Path) -> None:
    for name in ("000001.wal", "1000000.wal", "wal.log"):
        directory = tmp_path / name.replace(".", "-")
        directory.mkdir()
        (directory / name).write_bytes(b"\0" * 20)
        for read_only in (False, True):
            with pytest.raises(UnsupportedError, match="earlier program") as caught:
                WriteAheadLog(directory, read_only=read_only)
            assert caught.value.hint == "lakelog wal upgrade"
        assert (directory / name).read_bytes() == b"\0" * 20


def test_missing_log_raises_not_found_error(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(NotFoundError):
            WriteAheadLog(directory, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_parent_directories_are_created(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path / "a" / "b") as log:
        assert log.append("PUT", "k", b"") == 1
        assert log.directory == str(tmp_path / "a" / "b")
        assert repr(log) == f"WriteAheadLog({str(tmp_path / 'a' / 'b')!r})"


def test_replayed_table_outlives_its_segment(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append_table(pa.table({"op": ["PUT"] * 999, "key": ["k"] * 999, "value": ["v"] * 999}))
        table = log.replay()
        log.truncate(log.current_seq_num())
    assert table["value"].to_pylist() == [b"v"] * 999


def test_batch_larger_than_a_segment_stays_in_one_segment(tmp_path: Path) -> None:
    batch = [("PUT", str(n), "v" * 50) for n in range(500)]
    with WriteAheadLog(tmp_path, segment_bytes=1000, frame_bytes=900) as log:
        assert log.append_batch(batch) == 501
        assert log.append("PUT", "next", b"") == 502
        assert segments(tmp_path) == [1, 502]
        assert len(rows(log)) == 501


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_iterate_maps_no_segment_that_was_read(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path, segment_bytes=1) as log:
        for number in range(4):
            log.append("PUT", str(number), bytes(1 << 17))
        tables = log.iterate()
        for read in range(4):
            records = next(tables)
            assert records["key"].to_pylist() == [str(read).encode()]
            maps = Path("/proc/self/maps").read_text(encoding="utf-8")
            found = [maps.count(str(each)) for each in sorted(tmp_path.glob("*.wal"))]
            assert found == [0] * read + [1] * (4 - read)
