"""Columnar commits: the same actions as the lines, smaller, and rejected if damaged."""

from __future__ import annotations

import json
import random
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from lakelog.dialects.indextables import DIALECT, columnar
from lakelog.dialects.log_content import Actions, CommitContent
from lakelog.errors import (
    CorruptionError,
    InvalidActionError,
    InvalidTransactionError,
    MalformedLogError,
)
from lakelog.model import actions
from tests.budget import share_of
from tests.dialects import commit_rows
from tests.dialects.commit_rows import FILE_KINDS, META_KINDS, content, decode, frame
from tests.dialects.indextables.writing import PROTOCOL, Log, add

INFO = {"operation": "WRITE", "txnId": "t", "operationParameters": {"n": 1, "mode": None}}
PROTOCOL_ROW = {"actionType": "protocol", "minReaderVersion": 3, "minWriterVersion": 3}


def adds(count: int) -> CommitContent:
    rng = random.Random(7)
    numbers = range(count)
    maps = pl.Map(pl.String, pl.String)
    files = pl.DataFrame(
        {
            "actionType": ["add"] * count,
            "path": [f"d={n % 30}/part-{n:05}-{rng.getrandbits(128):032x}.split" for n in numbers],
            "partitionValues": pl.Series([{"d": str(n % 30)} for n in numbers], dtype=maps),
            "size": [rng.randrange(10**9) for _ in numbers],
            "modificationTime": [1_700_000_000_000 + n for n in numbers],
            "dataChange": [True] * count,
            "numRecords": [rng.randrange(10**6) for _ in numbers],
            "minValues": pl.Series([{"id": str(n * 10)} for n in numbers], dtype=maps),
            "maxValues": pl.Series([{"id": str(n * 10 + 9)} for n in numbers], dtype=maps),
            "footerStartOffset": [rng.randrange(10**9) for _ in numbers],
            "hasFooterOffsets": [True] * count,
        }
    )
    return CommitContent(INFO, frame([PROTOCOL_ROW]), files)


def rows(found: Actions) -> list[Any]:
    """The content of a commit without positions, which count rows in one form, lines in the
    other.
    """
    frames = (found.files, found.meta, found.other)
    plain = [commit_rows.plain(part.drop("position", strict=False)) for part in frames]
    return [*plain, [info.body for info in found.commit_infos]]


@settings(max_examples=share_of(60), deadline=None)
@given(data=st.data())
def test_columnar_commit_has_the_content_of_the_json_commit(data: st.DataObject) -> None:
    meta = data.draw(commit_rows.kinds_of(META_KINDS["indextables"], "indextables"), "meta")
    files = data.draw(commit_rows.kinds_of(FILE_KINDS["indextables"], "indextables"), "files")
    commit = content(INFO, meta, files)
    lines = DIALECT.encode(commit)
    encoded = DIALECT.encode(commit, columnar_above=0)
    assert encoded.startswith(b"PAR1")
    assert rows(decode(DIALECT, encoded)) == rows(decode(DIALECT, lines))
    without, from_lines = (decode(DIALECT, d, files=False) for d in (encoded, lines))
    assert rows(without) == rows(from_lines)
    assert without.files.is_empty()


def test_positions_count_the_rows_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "_GROUP_ROWS", 16)
    found = decode(DIALECT, DIALECT.encode(adds(50), columnar_above=0))
    assert [info.position for info in found.commit_infos] == [0]
    assert found.meta["position"].to_list() == [1]
    assert found.files["position"].to_list() == list(range(2, 52))
    assert found.files["version"].unique().to_list() == [7]
    paths = adds(50).files["path"].to_list()
    assert found.files["path"].to_list() == paths
    assert "minReaderVersion" not in found.files.columns
    assert set(adds(50).files.columns) <= set(found.files.columns)


def test_only_a_commit_above_the_size_is_columnar_and_five_times_smaller() -> None:
    commit = adds(100)
    size = len(DIALECT.encode(commit))
    assert DIALECT.encode(commit, columnar_above=size) == DIALECT.encode(commit)
    assert DIALECT.encode(commit, columnar_above=size - 1).startswith(b"PAR1")
    commit = adds(20_000)
    assert len(DIALECT.encode(commit)) > 5 * len(DIALECT.encode(commit, columnar_above=0))


def test_lines_and_columnar_commits_mix_in_one_log(tmp_path: Path) -> None:
    log = Log(tmp_path / "t")
    log.commit(0, [PROTOCOL], "scala")
    log.write(f"{1:020}.json", DIALECT.encode(adds(3), columnar_above=0))
    log.commit(2, [add("x")], "rust")
    log.write(f"{3:020}.json", DIALECT.encode(adds(2)))
    log.write(f"{4:020}.json", DIALECT.encode(adds(1), columnar_above=0))
    listing = DIALECT.list_log(log.store, hint=False)
    found = DIALECT.decode(log.store, listing.commits)
    assert found.files["version"].to_list() == [1, 1, 1, 2, 3, 3, 4]
    assert found.meta["version"].to_list() == [0, 1, 3, 4]
    assert [(info.version, info.position) for info in found.commit_infos] == [
        (1, 0),
        (3, 0),
        (4, 0),
    ]
    assert_frame_equal(found.files, found.files.sort(actions.ORDER))


def test_pyarrow_and_duckdb_read_a_columnar_commit_with_statistics(tmp_path: Path) -> None:
    path = tmp_path / "commit.parquet"
    path.write_bytes(DIALECT.encode(adds(40), columnar_above=0))
    table = pq.read_table(path, page_checksum_verification=True)
    assert table.num_rows == 42
    assert table.schema.field("partitionValues").type == pa.map_(pa.string(), pa.string())
    query = f"select count(*), sum(size) from '{path}' where actionType = 'add'"
    found = duckdb.sql(query)
    assert found is not None
    assert found.fetchall()[0] == (40, adds(40).files["size"].sum())
    metadata = pq.read_metadata(path)
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    column = metadata.row_group(1).column(names.index("modificationTime"))
    assert (column.compression, column.statistics.min) == ("ZSTD", 1_700_000_000_000)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2, 40]


def test_truncated_commit_is_refused_at_every_length() -> None:
    encoded = DIALECT.encode(adds(30), columnar_above=0)
    for length in range(4, len(encoded)):
        with pytest.raises(MalformedLogError):
            decode(DIALECT, encoded[:length])


def test_any_flipped_bit_is_refused() -> None:
    encoded = DIALECT.encode(adds(30), columnar_above=0)
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    ends = {*range(4, 200), *range(len(encoded) - 1500, len(encoded))}
    places = sorted(ends | set(rng.sample(range(4, len(encoded)), 1000)))
    read = []
    for at in places:
        damaged = bytearray(encoded)
        damaged[at] ^= 1 << rng.randrange(8)
        try:
            decode(DIALECT, bytes(damaged))
        except CorruptionError:
            continue
        read.append(at)
    assert read == [], f"seed {seed}"


def test_trailing_bytes_are_refused() -> None:
    encoded = DIALECT.encode(adds(3), columnar_above=0)
    for more in (b"\n", b"PAR1", encoded):
        with pytest.raises(MalformedLogError) as caught:
            decode(DIALECT, encoded + more)
        assert (caught.value.version, caught.value.path) == (7, DIALECT.commit_path(7))


def sealed(table: pa.Table) -> bytes:
    sink = BytesIO()
    pq.write_table(table, sink, store_schema=False)
    return columnar._sealed(sink.getvalue())


def test_parquet_without_the_checksum_is_refused() -> None:
    sink = BytesIO()
    pq.write_table(pa.table({"actionType": ["add"], "path": ["p"], "size": [1]}), sink)
    with pytest.raises(MalformedLogError, match="no checksum"):
        decode(DIALECT, sink.getvalue())


def test_skip_is_an_alias_of_mergeskip() -> None:
    rows = [("add", 1, None), ("skip", None, 100)]
    types, sizes, times = zip(*rows, strict=True)
    found = decode(
        DIALECT,
        sealed(
            pa.table(
                {"actionType": types, "path": ["p", "q"], "size": sizes, "skipTimestamp": times}
            )
        ),
    )
    assert found.meta.select("actionType", "path", "skipTimestamp").rows() == [
        ("mergeskip", "q", 100)
    ]


def test_column_of_a_later_contract_is_kept_in_extra() -> None:
    table = pa.table(
        {
            "actionType": ["add", "add"],
            "path": ["p", "q"],
            "size": [1, 2],
            "extra": ['{"a":1}', None],
            "later": [None, "x"],
        }
    )
    found = decode(DIALECT, sealed(table))
    assert [text and json.loads(text) for text in found.files["extra"]] == [
        {"a": 1},
        {"later": "x"},
    ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"actionType": ["add"], "path": ["p"]}, "required"),
        ({"actionType": ["add"], "path": [None], "size": [1]}, "required"),
        ({"actionType": ["add", None], "path": ["p", "q"], "size": [1, 2]}, "no action type"),
        ({"actionType": ["add"], "path": ["p"], "size": ["x"]}, "type"),
        ({"actionType": ["add"], "path": ["p"], "size": ["1"]}, "type"),
        ({"actionType": ["add"], "path": ["p"], "size": [5.7]}, "type"),
        ({"actionType": ["commitInfo"], "extra": [None]}, "no body"),
        ({"actionType": ["commitInfo"], "extra": ["[1]"]}, "no body"),
    ],
)
def test_rows_that_are_not_valid_actions_are_refused(
    columns: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(InvalidActionError, match=message):
        decode(DIALECT, sealed(pa.table(columns)))


@pytest.mark.parametrize(
    "table", [pa.table({"path": ["p"]}), pa.table({"actionType": pa.array([], pa.string())})]
)
def test_file_without_actions_is_refused(table: pa.Table) -> None:
    with pytest.raises(MalformedLogError, match="no action"):
        decode(DIALECT, sealed(table))


def test_extra_that_is_not_json_is_refused_before_writing() -> None:
    files = adds(3).files.with_columns(pl.Series("extra", [None, "{}", "{"]))
    with pytest.raises(InvalidTransactionError, match="not valid JSON"):
        DIALECT.encode(CommitContent({}, files=files), columnar_above=0)


def test_bodies_that_are_not_json_are_refused() -> None:
    table = pa.table({"actionType": ["commitInfo"], "extra": ["{"]})
    with pytest.raises(CorruptionError):
        decode(DIALECT, sealed(table))
