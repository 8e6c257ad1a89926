"""Damage that must be detected before publication: between writing and reading back, and by writers
that write other rows than given. Nothing is published.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from lakelog.checkpoint.write import write_checkpoint
from lakelog.dialects.log_content import CheckpointWriter, StagedCheckpoint
from lakelog.errors import CheckpointValidationError, LakelogError, LakelogWarning
from lakelog.model.actions import PATH_TEXT
from lakelog.storage import LogStore, open_store
from lakelog.storage.base import StoreWrapper, Upload
from tests.checkpoint.tables import (
    CLASSIC,
    FLATTENED,
    FLATTENED_PARTS,
    JSON,
    JSON_PARTS,
    KINDS,
    MULTIPART,
    V2_JSON,
    V2_PARQUET,
    Kind,
    log_at,
    make,
    over,
    state_of,
)

Damage = Callable[[Path], None]


class DamagingStore(StoreWrapper):
    """Changes written files just before the first of them is read back."""

    def __init__(self, store: LogStore, root: Path, damage: Callable[[list[Path]], None]) -> None:
        super().__init__(store)
        self._root = root
        self._damage: Callable[[list[Path]], None] | None = damage
        self.written: list[Path] = []

    def upload(self, path: str) -> Upload:
        self.written.append(self._root / path)
        return super().upload(path)

    def open(self, path: str, size_bytes: int | None = None) -> Any:
        self._damage_once(path)
        return super().open(path, size_bytes)

    def read(self, path: str) -> bytes:
        self._damage_once(path)
        return super().read(path)

    def _damage_once(self, path: str) -> None:
        if self._damage is not None and self._root / path in self.written:
            damage, self._damage = self._damage, None
            damage([file for file in self.written if file.exists()])


def assert_refused(
    kind: Kind, tmp_path: Path, damage: Callable[[list[Path]], None]
) -> LakelogError:
    """Write a checkpoint whose files get `damage`; it is rejected, and nothing is published."""
    root = make(kind, tmp_path / "t")
    log = log_at(root, kind.dialect)
    before, listed = state_of(log), log.list_all()
    pointer = (root / kind.dialect.log_folder / "_last_checkpoint").read_bytes()
    store = DamagingStore(open_store(str(root)), root, damage)
    with pytest.raises(CheckpointValidationError) as refused:
        write_checkpoint(over(store, kind.dialect), layout=kind.layout, options=kind.options)
    assert "nothing was published" in str(refused.value)
    assert_unchanged(root, kind, before, listed, pointer)
    return refused.value


def assert_unchanged(root: Path, kind: Kind, before: Any, listed: Any, pointer: bytes) -> None:
    log = log_at(root, kind.dialect)
    assert state_of(log) == before
    assert log.list_all() == listed
    assert (root / kind.dialect.log_folder / "_last_checkpoint").read_bytes() == pointer
    assert not list(root.rglob(".lakelog-*"))


def flip(file: Path, at: float) -> None:
    data = bytearray(file.read_bytes())
    data[int(len(data) * at)] ^= 0x10
    file.write_bytes(bytes(data))


PARQUET = [CLASSIC, MULTIPART, V2_PARQUET, V2_JSON, FLATTENED, FLATTENED_PARTS]


@pytest.mark.parametrize("at", [0.03, 0.2, 0.5, 0.999])
@pytest.mark.parametrize("kind", [CLASSIC, FLATTENED, V2_JSON], ids=str)
def test_flipped_bit_is_detected_or_has_no_effect(kind: Kind, at: float, tmp_path: Path) -> None:
    root = make(kind, tmp_path / "t")
    log = log_at(root, kind.dialect)
    before = state_of(log)
    store = DamagingStore(open_store(str(root)), root, lambda files: flip(files[0], at))
    try:
        write_checkpoint(over(store, kind.dialect), layout=kind.layout, options=kind.options)
    except CheckpointValidationError:
        assert not list(root.rglob(".lakelog-*"))
    # Some bytes of a footer are not read.
    assert state_of(log) == before
    assert log.dialect.name


@pytest.mark.parametrize("kind", PARQUET, ids=str)
def test_lost_row_group_is_detected(kind: Kind, tmp_path: Path) -> None:
    def lose(files: list[Path]) -> None:
        for file in files:
            if file.read_bytes()[:4] == b"PAR1":
                table = pq.read_table(file)
                if table.num_rows > 1:
                    pq.write_table(table[: table.num_rows // 2], file)
                    return
        raise AssertionError("no file to damage")

    assert_refused(kind, tmp_path, lose)


@pytest.mark.parametrize("kind", [MULTIPART, FLATTENED_PARTS, JSON_PARTS], ids=str)
def test_part_in_place_of_another_is_detected(kind: Kind, tmp_path: Path) -> None:
    def copy(files: list[Path]) -> None:
        files[1].write_bytes(files[0].read_bytes())

    assert_refused(kind, tmp_path, copy)


def test_torn_file_is_detected(tmp_path: Path) -> None:
    def tear(files: list[Path]) -> None:
        files[0].write_bytes(files[0].read_bytes()[:-100])

    assert_refused(CLASSIC, tmp_path, tear)


def test_missing_file_is_detected(tmp_path: Path) -> None:
    error = assert_refused(JSON_PARTS, tmp_path, lambda files: files[0].unlink())
    assert "cannot be read back" in error.message


def test_lost_lines_are_detected(tmp_path: Path) -> None:
    def lose(files: list[Path]) -> None:
        lines = files[0].read_bytes().splitlines(keepends=True)
        files[0].write_bytes(b"".join(lines[:-1]))

    error = assert_refused(JSON, tmp_path, lose)
    assert "differs from its checksum" in error.message


RowChange = Callable[[pl.DataFrame], pl.DataFrame]


class RowChangingWriter:
    """A writer that changes the rows."""

    def __init__(
        self, writer: CheckpointWriter, change: Callable[[pl.DataFrame], pl.DataFrame]
    ) -> None:
        self._writer, self._change = writer, change
        self.columns = writer.columns
        self.typed_statistics = writer.typed_statistics

    def write_meta(self, meta: pl.DataFrame) -> None:
        self._writer.write_meta(self._change(meta))

    def write_files(self, files: pl.DataFrame) -> None:
        changed = self._change(files)
        if changed.height:
            self._writer.write_files(changed)

    def finish(self) -> StagedCheckpoint:
        return self._writer.finish()

    def abandon(self) -> None:
        self._writer.abandon()


def use_row_changing_writer(monkeypatch: pytest.MonkeyPatch, kind: Kind, change: RowChange) -> None:
    dialect = type(kind.dialect)
    original = dialect.checkpoint_writer
    monkeypatch.setattr(
        dialect, "checkpoint_writer", lambda *given: RowChangingWriter(original(*given), change)
    )


def only(kind: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> Any:
    return lambda rows: change(rows) if rows.height and rows["actionType"][0] == kind else rows


def _path(change: str) -> pl.Expr:
    return pl.lit(change) + pl.col("path")


ROW_CHANGES: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
    "an add is lost": only("add", lambda rows: rows[1:]),
    "all tombstones are lost": only("remove", lambda rows: rows.clear()),
    "an add is written twice": only("add", lambda rows: pl.concat([rows, rows[:1]])),
    "a size is wrong": only("add", lambda rows: rows.with_columns(pl.col("size") + 1)),
    "sizes are swapped": only("add", lambda rows: rows.with_columns(pl.col("size").reverse())),
    "paths are escaped twice": only(
        "add",
        lambda rows: rows.with_columns(pl.col("path").str.replace_all(" ", "%20")).drop(
            PATH_TEXT, strict=False
        ),
    ),
    "a column is lost": only("add", lambda rows: rows.drop("modificationTime")),
    "partition values are lost": only(
        "add",
        lambda rows: rows.with_columns(
            partitionValues=pl.lit(None, dtype=rows.schema["partitionValues"])
        ),
    ),
    "a tombstone has another time": only(
        "remove", lambda rows: rows.with_columns(pl.col("deletionTimestamp") - 1)
    ),
    "the metadata is wrong": lambda rows: (
        rows.with_columns(
            metadataId=pl.when(pl.col("actionType") == "metaData").then(pl.lit("other"))
        )
        if "metadataId" in rows.columns
        else rows
    ),
}


DISTINCT = (CLASSIC, V2_JSON, JSON_PARTS, FLATTENED_PARTS)
"""Kinds that keep different columns; the others differ only in the division and names of files."""
ANYWHERE = ("an add is lost", "sizes are swapped", "the metadata is wrong")


@pytest.mark.sampled(8, keep=("change",))
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param(kind, change, id=f"{kind}-{change}")
        for kind in KINDS
        for change in (ROW_CHANGES if kind in DISTINCT else ANYWHERE)
    ],
)
def test_writer_of_wrong_rows_is_detected(
    kind: Kind, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(kind, tmp_path / "t")
    log = log_at(root, kind.dialect)
    before, listed = state_of(log), log.list_all()
    pointer = (root / kind.dialect.log_folder / "_last_checkpoint").read_bytes()
    use_row_changing_writer(monkeypatch, kind, ROW_CHANGES[change])
    with pytest.raises((CheckpointValidationError, LakelogError)) as refused:
        write_checkpoint(log, layout=kind.layout, options=kind.options)
    assert isinstance(refused.value, CheckpointValidationError)
    assert_unchanged(root, kind, before, listed, pointer)


def test_difference_is_reported_with_counts_and_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(CLASSIC, tmp_path / "t")
    lost: list[str] = []

    def change(rows: pl.DataFrame) -> pl.DataFrame:
        if rows["actionType"][0] != "add" or lost:
            return rows
        lost.append(rows["path"][0])
        return rows[1:]

    use_row_changing_writer(monkeypatch, CLASSIC, change)
    with pytest.raises(CheckpointValidationError) as refused:
        write_checkpoint(log_at(root, CLASSIC.dialect))
    error = refused.value
    assert lost[0] in error.message
    assert (error.version, error.expected, error.found) == (6, "19 add", "18 add")


def test_wrong_checkpoint_is_published_without_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(CLASSIC, tmp_path / "t")
    log = log_at(root, CLASSIC.dialect)
    change = ROW_CHANGES["an add is lost"]
    use_row_changing_writer(monkeypatch, CLASSIC, change)
    report = write_checkpoint(log, verify=False)
    assert not report.verified
    monkeypatch.undo()
    # The next checkpoint detects and replaces it.
    again = write_checkpoint(log)
    assert again.verified
    assert not again.reused
    assert len(state_of(log)["files"]) == 19


def test_wrong_typed_copy_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(CLASSIC, tmp_path / "t")
    from lakelog.dialects.delta.checkpoint_rows import TypedCopies

    original = TypedCopies.columns

    def other(copies: TypedCopies, files: pl.DataFrame) -> Any:
        shifted = files.with_columns(pl.col("stats").str.replace('"id":', '"id":1'))
        return original(copies, shifted)

    monkeypatch.setattr(TypedCopies, "columns", other)
    with pytest.raises(CheckpointValidationError, match="typed statistics differ"):
        write_checkpoint(log_at(root, CLASSIC.dialect))


def test_wrong_checkpoint_of_the_same_name_is_replaced(tmp_path: Path) -> None:
    root = make(CLASSIC, tmp_path / "t")
    log = log_at(root, CLASSIC.dialect)
    before = state_of(log)
    report = write_checkpoint(log)
    file = root / report.paths[0]
    table = pq.read_table(file)
    rows = [
        n for n, row in enumerate(table["add"].to_pylist()) if row is None or row["size"] != 201
    ]
    assert len(rows) == table.num_rows - 1
    pq.write_table(table.take(rows), file)
    with pytest.warns(LakelogWarning, match="number of actions in the checkpoint differs"):
        again = write_checkpoint(log)
    assert (again.reused, again.verified) == (False, True)
    assert state_of(log) == before
    kept = write_checkpoint(log)
    assert kept.reused
    assert kept.num_adds == again.num_adds


def test_broken_v2_checkpoint_is_deleted_after_a_valid_one_is_written(tmp_path: Path) -> None:
    root = make(V2_JSON, tmp_path / "t")
    log = log_at(root, V2_JSON.dialect)
    report = write_checkpoint(log, layout="v2-json", options=V2_JSON.options)
    sidecar = next(root / path for path in report.paths if "_sidecars" in path)
    sidecar.write_bytes(sidecar.read_bytes()[:-7])
    again = write_checkpoint(log, layout="v2-json", options=V2_JSON.options)
    assert again.verified
    present = [c for c in log.list_all().checkpoints if c.version == report.version]
    assert [c.paths[0] for c in present] == [again.paths[-1 - again.reused_files]]
