"""PUT records without a value: no call writes them, and logs that have them are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.cli.app import app, run
from lakelog.errors import InvalidInputError
from lakelog.wal.encode import Framing, pack_records
from lakelog.wal.frames import Seal, SegmentHeader
from lakelog.wal.historic.upgrade import upgrade
from lakelog.wal.log import WriteAheadLog
from tests.wal import plain_reading
from tests.wal.damage import LOG_ID
from tests.wal.historic_logs import write
from tests.wal.historic_model import Writer002

RECORDS = [
    (1, "PUT", b"a", None),
    (2, "PUT", b"b", b"2"),
    (3, "DELETE", b"b", None),
    (4, "PUT", b"c", None),
]


def old_log(directory: Path) -> None:
    """A log of `RECORDS` as earlier versions wrote it: one frame, then one of a single record."""
    framing = Framing(Seal.of(LOG_ID), "none", 1 << 20)
    ops, keys, values = b"\1\1\2", [b"a", b"b", b"b"], [None, b"2", None]
    directory.mkdir(exist_ok=True)
    (directory / f"{1:020}.wal").write_bytes(
        b"".join(
            (
                SegmentHeader(LOG_ID, 1, 1, 0, 0).pack(),
                *pack_records(ops, keys, values, 1, 0, framing),
                *pack_records(b"\1", [b"c"], [None], 4, 0, framing),
            )
        )
    )


CALLS: dict[str, Callable[[WriteAheadLog], Any]] = {
    "append": lambda log: log.append("PUT", "k", None),
    "append, no argument": lambda log: log.append("PUT", "k"),
    "append_batch": lambda log: log.append_batch([("PUT", "fine", ""), ("PUT", "k", None)]),
    "append_table": lambda log: log.append_table(
        pa.table({"op": ["DELETE", "PUT"], "key": ["k", "k"], "value": pa.array(["v", None])})
    ),
    "append_table, null column": lambda log: log.append_table(
        pl.DataFrame({"op": ["PUT"], "key": ["k"], "value": [None]})
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_put_without_a_value_is_refused_and_nothing_is_written(
    tmp_path: Path, call: Callable[[WriteAheadLog], Any]
) -> None:
    with WriteAheadLog(tmp_path) as log:
        with pytest.raises(InvalidInputError, match="a PUT record must have a value"):
            call(log)
        assert log.current_seq_num() == 0


def test_only_the_rows_of_a_slice_must_have_values(tmp_path: Path) -> None:
    ops, values = ["PUT", "PUT", "DELETE", "PUT"], [None, "", None, None]
    table = pa.table({"op": ops, "key": ["k"] * 4, "value": pa.array(values, pa.string())})
    with WriteAheadLog(tmp_path) as log:
        assert log.append_table(table.slice(1, 2)) == 3
        with pytest.raises(InvalidInputError, match="a PUT record must have a value"):
            log.append_table(table.slice(2))


def test_log_with_puts_without_value_is_read_and_continued(tmp_path: Path) -> None:
    old_log(tmp_path)
    assert [tuple(record) for record in plain_reading.read(tmp_path).records] == RECORDS
    with WriteAheadLog(tmp_path) as log:
        assert [tuple(record) for record in log.records()] == RECORDS
        assert [tuple(row.values()) for row in log.replay().to_pylist()] == RECORDS
        assert log.state().to_pylist() == [
            {"key": b"a", "value": None, "seqNum": 1},
            {"key": b"c", "value": None, "seqNum": 4},
        ]
        assert log.recovery is None
        assert log.append("PUT", "d", "") == 5


def test_wal_replay_command_shows_null(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    old_log(tmp_path)
    assert run(app, ["wal", "replay", str(tmp_path), "--state", "--text", "-o", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [(row["key"], row["value"]) for row in found] == [("a", None), ("c", None)]


def test_a_keyed_store_reads_an_empty_value_before_and_after_its_flush(tmp_path: Path) -> None:
    expected = [(b"a", b"", 1), (b"c", b"", 4)]
    old_log(tmp_path / "wal")
    with lakelog.KeyedStore(tmp_path, read_only=True) as reader:
        assert reader.scan().rows() == expected
    with lakelog.KeyedStore(tmp_path) as store:
        assert (store.get("a"), store.get("b"), store.get("c")) == (b"", None, b"")
        store.flush()
        assert store.scan().rows() == expected
    with lakelog.KeyedStore(tmp_path) as store:
        assert store.scan().rows() == expected


def test_a_historic_put_without_bytes_is_upgraded_to_an_empty_value(tmp_path: Path) -> None:
    writer = Writer002(marks_batches=True)
    writer.append("PUT", b"a")
    writer.append_batch([("PUT", b"b", b""), ("DELETE", b"a", b"")])
    upgrade(write(tmp_path, writer.named()))
    with WriteAheadLog(tmp_path, read_only=True) as log:
        assert [tuple(row.values()) for row in log.replay().to_pylist()] == [
            (1, "PUT", b"a", b""),
            (3, "PUT", b"b", b""),
            (4, "DELETE", b"a", None),
        ]
