"""Damaged or missing data files and deletion vectors: an error names them, and rows are never
omitted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog.data.files import ReadPlan
from lakelog.data.read import read_files
from lakelog.errors import CorruptionError, LakelogError, NotFoundError, UnavailableError
from lakelog.snapshot import Snapshot
from lakelog.storage import StoreWrapper, open_store
from lakelog.storage.base import FileWrapper
from tests.data.rows import data_file, rows, snapshot_of
from tests.data.vector_writer import inline, vector_file
from tests.handmade import field

COUNT = 5000
LARGE = 250_000


def table(count: int = COUNT) -> pa.Table:
    numbers = random.Random(7).choices(range(1 << 60), k=count)
    return pa.table({"n": pa.array(numbers, pa.int64()), "s": pa.array(map(str, numbers))})


def new_snapshot(root: Path, count: int = COUNT) -> Snapshot:
    """Three files, of which the second has a stored deletion vector."""
    data = table(count)
    vector = vector_file(root, {"v": range(0, count, 7)})["v"]
    adds = [
        data_file(root, "a.parquet", data.slice(0, 10)),
        data_file(root, "b.parquet", data, deletionVector=vector, parquet={"row_group_size": 1000}),
        data_file(root, "c.parquet", data.slice(0, 10)),
    ]
    return snapshot_of(root, (field("n"), field("s", "string")), *adds)


def read_until_it_fails(snapshot: Snapshot, columns: Any = None) -> tuple[int, LakelogError]:
    plan = ReadPlan.of(snapshot, columns)
    found: list[int] = []
    batches = read_files(plan, snapshot.files().sort("path").collect(), batch_rows=100)
    with pytest.raises(LakelogError) as caught:
        found.extend(batch.num_rows for batch in batches)
    return sum(found), caught.value


@pytest.mark.parametrize("count", [COUNT, LARGE])
def test_missing_data_file_raises_not_found_error(tmp_path: Path, count: int) -> None:
    snapshot = new_snapshot(tmp_path, count)
    (tmp_path / "b.parquet").unlink()
    read, error = read_until_it_fails(snapshot)
    assert isinstance(error, NotFoundError)
    assert (error.path, error.version) == ("b.parquet", 0)
    assert "vacuum" in (error.hint or "")
    assert read <= 10
    read, error = read_until_it_fails(snapshot, [])
    assert isinstance(error, NotFoundError)


@pytest.mark.parametrize("kept", [0, 3, 8, 100, 0.5, -1])
@pytest.mark.parametrize("columns", [None, []])
def test_truncated_data_file_raises_with_both_lengths(
    tmp_path: Path, kept: float, columns: Any
) -> None:
    snapshot = new_snapshot(tmp_path)
    path = tmp_path / "b.parquet"
    content = path.read_bytes()
    length = int(len(content) * kept) if 0 < kept < 1 else int(kept) % len(content)
    path.write_bytes(content[:length])
    read, error = read_until_it_fails(snapshot, columns)
    assert isinstance(error, CorruptionError)
    assert (error.path, error.version) == ("b.parquet", 0)
    assert error.expected == f"{len(content)} bytes of Parquet"
    assert error.found == f"{length} bytes"
    assert read <= 10


def test_large_data_file_that_is_truncated_or_damaged_raises(tmp_path: Path) -> None:
    snapshot = new_snapshot(tmp_path, LARGE)
    path = tmp_path / "b.parquet"
    content = path.read_bytes()
    assert len(content) > 4 << 20
    path.write_bytes(content[:-100_000])
    assert isinstance(read_until_it_fails(snapshot)[1], CorruptionError)
    # The footer is intact, and a page in the middle is damaged.
    path.write_bytes(content[:3_000_000] + bytes(500_000) + content[3_500_000:])
    read, error = read_until_it_fails(snapshot)
    assert isinstance(error, CorruptionError)
    assert error.path == "b.parquet"
    assert read < LARGE


@pytest.mark.parametrize("seed", range(3))
def test_footer_with_a_changed_byte_never_changes_the_number_of_rows(
    tmp_path: Path, seed: int
) -> None:
    random.seed(seed)
    snapshot = new_snapshot(tmp_path)
    expected = len(rows(snapshot))
    path = tmp_path / "b.parquet"
    content = path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little")
    for at in random.sample(range(len(content) - 8 - footer, len(content)), 25):
        changed = bytearray(content)
        changed[at] ^= random.randrange(1, 256)
        path.write_bytes(changed)
        try:
            found = len(rows(snapshot))
        except CorruptionError as error:
            reported = error.path
        else:
            reported = "b.parquet"
            assert found == expected, f"seed {seed}, byte {at}"
        assert reported == "b.parquet"


def test_damaged_deletion_vector_raises_with_its_file(tmp_path: Path) -> None:
    snapshot = new_snapshot(tmp_path)
    (path,) = tmp_path.glob("deletion_vector_*.bin")
    content = path.read_bytes()
    expected = len(rows(snapshot))
    for at in (0, 3, 10, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[at] ^= 4
        path.write_bytes(changed)
        read, error = read_until_it_fails(snapshot, ["n"])
        assert isinstance(error, CorruptionError)
        assert (error.path, error.version) == (path.name, 0)
        assert error.byte_offset is not None
        assert read <= 10
    path.write_bytes(content[:-2])
    assert isinstance(read_until_it_fails(snapshot)[1], CorruptionError)
    path.unlink()
    error = read_until_it_fails(snapshot)[1]
    assert isinstance(error, NotFoundError)
    assert (error.path, error.version) == (path.name, 0)
    assert "deletion vector" in error.message
    path.write_bytes(content)
    assert len(rows(snapshot)) == expected


def test_file_that_is_live_with_two_deletion_vectors_raises(tmp_path: Path) -> None:
    # As after a remove without the vector of the file: both adds stay.
    adds = [
        data_file(tmp_path, "a.parquet", table(10), deletionVector=inline(deleted))
        for deleted in ([0], [0, 1])
    ]
    snapshot = snapshot_of(tmp_path, (field("n"), field("s", "string")), *adds)
    reads: list[Callable[[], Any]] = [
        snapshot.to_polars,
        snapshot.num_rows,
        lambda: snapshot.scan(pl.col("n") >= 0).collect(),
    ]
    for read in reads:
        with pytest.raises(CorruptionError, match="more than once") as caught:
            read()
        assert (caught.value.path, caught.value.version) == ("a.parquet", 0)
    opened = lakelog.open(tmp_path)
    source = pl.DataFrame({"n": [1, 2]})
    writes: list[Callable[[], Any]] = [
        lambda: opened.delete("n >= 0"),
        lambda: opened.update({"n": "n + 1"}, "n >= 0"),
        lambda: opened.merge(source, "n").when_not_matched_insert_all().execute(),
        lambda: opened.overwrite(source, "n >= 0"),
        lambda: opened.alter.add_constraint("c", "n >= 0"),
        lambda: opened.compact(order_by="n"),
        lambda: opened.clone(tmp_path.parent / "clone"),
    ]
    for write in writes:
        with pytest.raises(CorruptionError, match="more than once"):
            write()
        assert opened.version() == 0
    found = opened.doctor().findings[0]
    assert (found.severity, found.kind) == ("error", "files-damaged")
    assert "a.parquet" in found.problem
    with opened.transaction() as tx:
        tx.remove(snapshot.files().filter(pl.col("dvCardinality") == 1))
    assert opened.snapshot().num_rows() == opened.to_polars().height == 8


def test_cardinality_that_differs_from_the_log_raises(tmp_path: Path) -> None:
    snapshot = new_snapshot(tmp_path)
    files = snapshot.files().sort("path").collect()
    wrong = files.with_columns(pl.col("dvCardinality") + 1)
    with pytest.raises(CorruptionError, match="differs from the log") as caught:
        list(read_files(ReadPlan.of(snapshot), wrong))
    assert caught.value.path == "b.parquet" or str(caught.value.path).endswith(".bin")


class FailingAt(FileWrapper):
    """A reader whose nth read fails."""

    def __init__(self, file: BinaryIO, nth: int) -> None:
        super().__init__(file)
        self.nth = nth

    def read(self, size: int = -1, /) -> bytes:
        self.nth -= 1
        if not self.nth:
            raise UnavailableError("the store failed")
        return super().read(size)


class FailingStore(StoreWrapper):
    """A store where one file cannot be opened (nth 0), or fails at its nth read."""

    def __init__(self, root: Path, nth: int) -> None:
        super().__init__(open_store(str(root)))
        self.nth = nth

    def open(self, path: str, size_bytes: int | None = None) -> BinaryIO:
        if path != "b.parquet":
            return super().open(path, size_bytes)
        if not self.nth:
            raise UnavailableError("the store failed")
        return cast("BinaryIO", FailingAt(super().open(path, size_bytes), self.nth))


def test_store_failure_at_any_read_is_not_reported_as_corruption(tmp_path: Path) -> None:
    snapshot = new_snapshot(tmp_path)
    files = snapshot.files().sort("path").collect()
    plan = ReadPlan.of(snapshot)
    whole = sum(b.num_rows for b in read_files(plan, files))
    for nth in range(100):
        try:
            found = sum(
                b.num_rows for b in read_files(plan, files, store=FailingStore(tmp_path, nth))
            )
        except UnavailableError as error:
            reported = error
        else:
            break
        assert (reported.path, reported.version) == ("b.parquet", 0)
    assert nth > 5, "the footer and each row group are read"
    assert found == whole


def test_failed_read_is_closed(tmp_path: Path) -> None:
    snapshot = new_snapshot(tmp_path, LARGE)
    (tmp_path / "a.parquet").unlink()
    for _ in range(5):
        assert isinstance(read_until_it_fails(snapshot)[1], NotFoundError)
