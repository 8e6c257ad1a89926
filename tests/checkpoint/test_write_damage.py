"""Damage that must be detected before publication: between writing and reading back, and by writers
that write other rows than given. Nothing is published.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.checkpoint.version_checksum import write_checksum
from lakelog.checkpoint.write import write_checkpoint
from lakelog.dialects.delta.checkpoint_rows import TypedCopies
from lakelog.dialects.log_content import (
    STRUCT_STATISTICS,
    TYPED_STATISTICS,
    CheckpointWriter,
    StagedCheckpoint,
)
from lakelog.errors import CheckpointValidationError, InvalidActionError, LakelogWarning
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
    made_once,
    make,
    over,
    state_of,
)
from tests.handmade import set_in_commit

Damage = Callable[[list[Path]], None]


class DamagingStore(StoreWrapper):
    """Changes written files just before the first of them is read back."""

    def __init__(self, store: LogStore, root: Path, damage: Damage) -> None:
        super().__init__(store)
        self._root = root
        self._damage: Damage | None = damage
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
    kind: Kind, tmp_path: Path, damage: Damage | None = None
) -> CheckpointValidationError:
    """Write a checkpoint whose files get `damage`; it is rejected, and nothing is published."""
    root = make(kind, tmp_path / "t")
    log = log_at(root, kind.dialect)
    pointer = root / kind.dialect.log_folder / "_last_checkpoint"
    before = state_of(log), log.list_all(), pointer.read_bytes()
    if damage is not None:
        store = DamagingStore(open_store(str(root)), root, damage)
        log = over(store, kind.dialect)
    with pytest.raises(CheckpointValidationError, match="nothing was published") as refused:
        write_checkpoint(log, layout=kind.layout, options=kind.options)
    log = log_at(root, kind.dialect)
    assert (state_of(log), log.list_all(), pointer.read_bytes()) == before
    assert not list(root.rglob(".lakelog-*"))
    return refused.value


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


def lose_row_group(files: list[Path]) -> None:
    for file in files:
        if file.read_bytes()[:4] == b"PAR1":
            table = pq.read_table(file)
            if table.num_rows > 1:
                pq.write_table(table[: table.num_rows // 2], file)
                return
    raise AssertionError("no file to damage")


def copy(files: list[Path]) -> None:
    files[1].write_bytes(files[0].read_bytes())


def tear(files: list[Path]) -> None:
    files[0].write_bytes(files[0].read_bytes()[:-100])


def delete(files: list[Path]) -> None:
    files[0].unlink()


def lose_line(files: list[Path]) -> None:
    lines = files[0].read_bytes().splitlines(keepends=True)
    files[0].write_bytes(b"".join(lines[:-1]))


@pytest.mark.parametrize(
    ("kind", "damage", "message"),
    [
        *[(kind, lose_row_group, "") for kind in PARQUET],
        *[(kind, copy, "") for kind in (MULTIPART, FLATTENED_PARTS, JSON_PARTS)],
        (CLASSIC, tear, ""),
        (JSON_PARTS, delete, "cannot be read back"),
        (JSON, lose_line, "differs from its checksum"),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_damaged_file_is_detected(kind: Kind, damage: Damage, message: str, tmp_path: Path) -> None:
    assert message in assert_refused(kind, tmp_path, damage).message


RowChange = Callable[[pl.DataFrame], pl.DataFrame]


class RowChangingWriter:
    """A writer that changes the rows."""

    def __init__(self, writer: CheckpointWriter, change: RowChange) -> None:
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
    made_once(kind)
    dialect = type(kind.dialect)
    original = dialect.checkpoint_writer
    monkeypatch.setattr(
        dialect, "checkpoint_writer", lambda *given: RowChangingWriter(original(*given), change)
    )


def only(kind: str, change: RowChange) -> Any:
    return lambda rows: change(rows) if rows.height and rows["actionType"][0] == kind else rows


ROW_CHANGES: dict[str, RowChange] = {
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
    use_row_changing_writer(monkeypatch, kind, ROW_CHANGES[change])
    assert_refused(kind, tmp_path)


def test_difference_is_reported_with_counts_and_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def change(rows: pl.DataFrame) -> pl.DataFrame:
        if rows["actionType"][0] != "add" or lost:
            return rows
        lost.append(rows["path"][0])
        return rows[1:]

    use_row_changing_writer(monkeypatch, CLASSIC, change)
    error = assert_refused(CLASSIC, tmp_path)
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
    # The next checkpoint detects it. The pointer agrees with it, so a person has to decide.
    with pytest.raises(CheckpointValidationError, match="18 add where replay gives 19") as raised:
        write_checkpoint(log)
    assert "the checkpoint or commits" in (raised.value.hint or "")
    for path in report.paths:
        (root / path).unlink()
    again = write_checkpoint(log)
    assert again.verified
    assert not again.reused
    assert len(state_of(log)["files"]) == 19


def test_a_wrong_checkpoint_is_not_confirmed_by_a_copy_in_another_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(MULTIPART, tmp_path / "t")
    log = log_at(root, MULTIPART.dialect)
    use_row_changing_writer(monkeypatch, MULTIPART, ROW_CHANGES["an add is lost"])
    wrong = write_checkpoint(log, layout="multipart", verify=False)
    monkeypatch.undo()
    (root / "_delta_log" / "_last_checkpoint").unlink()
    before = {file.name for file in (root / "_delta_log").iterdir()}
    for confirm in (partial(write_checkpoint, layout="classic"), write_checksum):
        with pytest.raises(CheckpointValidationError, match="18 add where replay gives 19"):
            confirm(log)
    assert {file.name for file in (root / "_delta_log").iterdir()} == before

    # Without the commits nothing proves it; the copy says so, and leaves no checksum.
    for commit in (root / "_delta_log").glob("0*.json"):
        commit.unlink()
    copy = write_checkpoint(log, layout="classic")
    assert (copy.num_adds, copy.verified, copy.reused) == (18, False, False)
    assert "copied from the multipart checkpoint" in copy.notes[0]
    assert not (root / "_delta_log" / f"{wrong.version:020}.crc").exists()


def test_a_broken_checkpoint_of_another_layout_is_replaced(tmp_path: Path) -> None:
    root = make(MULTIPART, tmp_path / "t")
    log = log_at(root, MULTIPART.dialect)
    broken = write_checkpoint(log, layout="multipart")
    (root / broken.paths[0]).write_bytes(b"damaged")
    with pytest.warns(LakelogWarning, match="was ignored"):
        report = write_checkpoint(log, layout="classic")
    assert report.verified
    assert report.num_adds == 19


def test_a_kept_checkpoint_gets_the_pointer_that_an_interrupted_call_left_out(
    tmp_path: Path,
) -> None:
    root = make(CLASSIC, tmp_path / "t")
    log = log_at(root, CLASSIC.dialect)
    write_checkpoint(log)
    pointer = root / "_delta_log" / "_last_checkpoint"
    written = json.loads(pointer.read_bytes())
    pointer.unlink()
    again = write_checkpoint(log)
    assert (again.reused, again.pointer_moved) == (True, True)
    restored = json.loads(pointer.read_bytes())
    assert {name: restored[name] for name in ("version", "size", "numOfAddFiles")} == {
        name: written[name] for name in ("version", "size", "numOfAddFiles")
    }
    assert not write_checkpoint(log).pointer_moved


def test_wrong_typed_copy_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_once(CLASSIC)
    original = TypedCopies.columns

    def other(copies: TypedCopies, files: pl.DataFrame) -> Any:
        texts = pl.col("stats").str.replace('"id":', '"id":1')
        without_typed = files.drop(STRUCT_STATISTICS, TYPED_STATISTICS, strict=False)
        return original(copies, without_typed.with_columns(texts))

    monkeypatch.setattr(TypedCopies, "columns", other)
    assert "typed statistics differ" in assert_refused(CLASSIC, tmp_path).message


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


def test_metadata_without_an_id_is_refused_by_name_until_it_has_one(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path, {"x": pl.Int64}, upkeep=False)
    set_in_commit(tmp_path, 0, "metaData", id=None)
    table = lakelog.open(tmp_path, upkeep=False)
    with pytest.raises(InvalidActionError, match="has no id") as caught:
        table.checkpoint()
    assert (caught.value.path, caught.value.expected) == (str(tmp_path), "metaData.id")
    with table.transaction() as tx:
        tx.set_metadata(id="5a2c")
    table.checkpoint()
    assert lakelog.open(tmp_path).snapshot().metadata.id == "5a2c"
