"""The replayed state as Parquet: complete or absent."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from lakelog.errors import (
    CheckpointCorruptionError,
    InternalError,
    InvalidInputError,
    LakelogWarning,
    UnavailableError,
)
from lakelog.log import export
from lakelog.model import actions, contract
from lakelog.snapshot import Snapshot
from tests.handmade import Handmade, add, metadata, protocol, remove, vector
from tests.loggen import Options, generate


@pytest.fixture
def made(tmp_path: Path) -> Handmade:
    log = Handmade(tmp_path / "t")
    log.checkpoint(
        1,
        protocol(),
        metadata(properties={"p": "1"}),
        add("a b", 1, stats='{"numRecords":3,"minValues":{"id":1}}', tags={"k": "v"}),
        add("b", 2, **vector("v")),
        remove("z", deletionTimestamp=5),
        {"txn": {"appId": "x", "version": 9}},
    )
    domains = [
        {"domainMetadata": {"domain": name, "configuration": "c", "removed": removed}}
        for name, removed in (("kept", False), ("gone", True))
    ]
    log.commit(2, remove("b", **vector("v")), add("c", 4, partitionValues={"q": None}), *domains)
    return log


def snapshot_of(made: Handmade) -> Snapshot:
    return made.table.snapshot()


def read(directory: Path) -> pl.DataFrame:
    parts = sorted(directory.glob("part-*.parquet"))
    return pl.concat([pl.DataFrame(pq.read_table(p)) for p in parts])


def test_exported_rows_equal_the_state(made: Handmade, tmp_path: Path) -> None:
    snapshot = snapshot_of(made)
    out = tmp_path / "out"
    snapshot.write_parquet(out)
    rows = read(out)
    assert rows["actionType"].to_list() == [
        *("protocol", "metaData", "domainMetadata", "txn"),
        *("add", "add", "remove", "remove"),
    ]
    files = snapshot.files().collect().sort("path")
    back = actions.conform(rows.filter(pl.col("actionType") == "add"), files.columns)
    assert back["path"].to_list() == ["c", "a b"]  # of these only one has statistics
    assert back.sort("path").to_dicts() == files.to_dicts()
    removed = snapshot.tombstones().collect().sort("path")
    back = actions.conform(rows.filter(pl.col("actionType") == "remove"), removed.columns)
    assert back.to_dicts() == removed.to_dicts()
    txn = rows.row(by_predicate=pl.col("actionType") == "txn", named=True)
    assert (txn["appId"], txn["txnVersion"]) == ("x", 9)
    assert rows.filter(pl.col("domain").is_not_null())["domain"].to_list() == ["kept"]


def test_manifest_describes_the_written_files(made: Handmade, tmp_path: Path) -> None:
    snapshot = snapshot_of(made)
    out = tmp_path / "out"
    manifest = snapshot.write_parquet(out)
    body = json.loads((out / "_manifest.json").read_text())
    assert (body.pop("format"), body.pop("formatVersion")) == ("lakelog-state", 1)
    assert contract.parse_schema(json.dumps(body.pop("schema"))) == contract.load("actions")
    assert (body["table"], body["tableFormat"], body["version"]) == (snapshot.path, "delta", 2)
    assert (body["numFiles"], body["totalSize"], body["numTombstones"]) == (2, 5, 2)
    assert (body["numRows"], body["timestampMs"]) == (8, snapshot.timestamp_ms)
    assert body["provenance"] == list(snapshot.provenance.files)
    assert body["warnings"] == []
    (part,) = body["parts"]
    assert part["sizeBytes"] == (out / part["path"]).stat().st_size
    assert json.loads(manifest.to_json())["parts"] == body["parts"]


def test_every_part_has_the_schema_of_the_contract_in_parquet_types(
    made: Handmade, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()  # an empty directory is accepted
    assert snapshot_of(made).write_parquet(tmp_path / "out").num_rows == 8
    (part,) = (tmp_path / "out").glob("part-*.parquet")
    schema = pq.read_schema(part)
    assert schema.names == list(actions.schema())
    assert schema.metadata is None
    assert schema.field("tags").type == pa.map_(pa.string(), pa.string())
    rows = pq.read_table(part, columns=["path", "tags"]).to_pylist()
    assert {"path": "a b", "tags": [("k", "v")]} in rows


@pytest.mark.parametrize("max_part_bytes", [1, 5000])
def test_parts_are_closed_when_they_are_full(
    made: Handmade, tmp_path: Path, max_part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_GROUP_ROWS", 1)
    snapshot = snapshot_of(made)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    snapshot.write_parquet(whole)
    manifest = snapshot.write_parquet(parts, max_part_bytes=max_part_bytes)
    assert len(manifest.parts) > (4 if max_part_bytes == 1 else 0)
    assert [p.path for p in manifest.parts] == [
        f"part-{n:05d}.parquet" for n in range(len(manifest.parts))
    ]
    assert sum(p.num_rows for p in manifest.parts) == manifest.num_rows == 8
    for part in manifest.parts[:-1]:
        assert part.size_bytes >= max_part_bytes
    assert read(parts).to_dicts() == read(whole).to_dicts()


def test_statistics_in_a_struct_become_text_and_maps(tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t")
    bounds = {"minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": {"id": 0}}
    parsed = {"numRecords": 5, **bounds}
    files = (add("a", stats_parsed=parsed), add("b"))
    log.checkpoint(0, protocol(), metadata(), *files, without=["stats"])
    log.table.snapshot().write_parquet(tmp_path / "out")
    rows = read(tmp_path / "out")
    a = rows.row(by_predicate=pl.col("path") == "a", named=True)
    assert json.loads(a["stats"]) == parsed
    assert a["numRecords"] == 5
    assert a["minValues"] == {"id": "1"}
    assert rows.row(by_predicate=pl.col("path") == "b", named=True)["stats"] is None


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("ignore::lakelog.errors.LakelogWarning")
def test_random_states_are_read_back(seed: int, tmp_path: Path) -> None:
    table = Handmade.__new__(Handmade)
    table.root = generate(tmp_path / "t", seed, Options(commits=12))
    snapshot = table.table.snapshot()
    manifest = snapshot.write_parquet(tmp_path / "out", max_part_bytes=1)
    rows = read(tmp_path / "out")
    for kind, expected in (("add", snapshot.files()), ("remove", snapshot.tombstones())):
        frame = expected.collect()
        back = actions.conform(rows.filter(pl.col("actionType") == kind), frame.columns)
        key = lambda row: (row["path"], str(row["dvId"]))
        assert sorted(back.to_dicts(), key=key) == sorted(frame.to_dicts(), key=key), f"seed {seed}"
    assert manifest.num_files == snapshot.num_files()


def test_sizes_beyond_64_bits_are_summed_exactly(tmp_path: Path) -> None:
    log = Handmade(tmp_path / "t").start(add("a", 2**63 - 1), add("b", 2**63 - 1))
    manifest = log.table.snapshot().write_parquet(tmp_path / "out")
    assert manifest.total_size == 2**64 - 2
    assert json.loads((tmp_path / "out" / "_manifest.json").read_text())["totalSize"] == 2**64 - 2


def test_iter_state_returns_the_requested_columns(made: Handmade) -> None:
    batches = list(snapshot_of(made).iter_state(["actionType", "path"]))
    assert {tuple(b.columns) for b in batches} == {("actionType", "path")}
    assert sum(b.height for b in batches) == 8


# --- refusals ------------------------------------------------------------------------------------


def test_non_empty_directory_is_refused_and_not_changed(made: Handmade, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("x")
    with pytest.raises(InvalidInputError, match="not empty"):
        snapshot_of(made).write_parquet(out)
    assert [p.name for p in out.iterdir()] == ["precious"]
    with pytest.raises(InvalidInputError, match="is a file"):
        snapshot_of(made).write_parquet(out / "precious")


@pytest.mark.parametrize("size", [0, -1])
def test_invalid_max_part_bytes_is_refused(made: Handmade, tmp_path: Path, size: int) -> None:
    with pytest.raises(InvalidInputError, match="max_part_bytes"):
        snapshot_of(made).write_parquet(tmp_path / "out", max_part_bytes=size)
    assert not (tmp_path / "out").exists()


def test_directory_that_cannot_be_created_raises_unavailable_error(
    made: Handmade, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnavailableError, match="writing the output failed"):
        snapshot_of(made).write_parquet(tmp_path / "file" / "out")


class FailingFile:
    """A file that fails after a number of operations."""

    def __init__(self, file: Any, filesystem: FailingFileSystem) -> None:
        self._file = file
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: Any) -> Any:
        self._filesystem.spend()
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()
        self._filesystem.spend()  # a buffer is written


class FailingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A disk in memory that is full after a number of operations."""

    protocol = "failing"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False
    left: int | None = None

    def spend(self) -> None:
        cls = type(self)
        if cls.left is not None:
            if not cls.left:
                raise OSError(28, "No space left on device")
            cls.left -= 1

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        if mode != "wb":
            return super()._open(path, mode, **more)
        self.spend()
        return FailingFile(super()._open(path, mode, **more), self)


@pytest.fixture
def disk() -> Iterator[type[FailingFileSystem]]:
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    FailingFileSystem.store.clear()
    yield FailingFileSystem
    FailingFileSystem.left = None
    FailingFileSystem.store.clear()


def test_full_disk_at_any_write_leaves_no_file(
    made: Handmade, disk: type[FailingFileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_GROUP_ROWS", 3)
    snapshot = snapshot_of(made)
    failures = 0
    messages: set[str] = set()
    left_behind: set[str] = set()
    for operations in (*range(12), *range(12, 10_000, 29)):
        disk.left = operations
        try:
            manifest = snapshot.write_parquet("failing://out", max_part_bytes=1)
        except UnavailableError as error:
            failures += 1
            messages.add(error.message)
            left_behind |= set(disk.store)
            continue
        break
    assert len(messages) == 1
    assert "No space left" in messages.pop()
    assert left_behind == set()
    assert failures > 10
    assert len(manifest.parts) > 1
    names = {name.rsplit("/", 1)[-1] for name in disk.store}
    assert names == {"_manifest.json", *(p.path for p in manifest.parts)}


def test_incomplete_part_is_detected(
    made: Handmade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pq, "read_metadata", lambda _: type("M", (), {"num_rows": 7})())
    with pytest.raises(InternalError):
        snapshot_of(made).write_parquet(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


# --- damage during the export --------------------------------------------------------------------


def damaged(made: Handmade) -> Path:
    """A checkpoint whose metadata is readable and whose last file rows are not."""
    rng = random.Random(1)
    # Paths that do not compress, so that there is a page to damage far into the file.
    many = [add(f"{rng.getrandbits(400):0100x}-{n}") for n in range(3000)]
    made.start(*many)
    made.commit(1, add("last"))
    path = made.checkpoint(1, protocol(), metadata(), *many, add("last"))
    data = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0)
    names = [column.column(i).path_in_schema for i in range(column.num_columns)]
    page = column.column(names.index("add.path"))
    offset = page.data_page_offset
    data[offset : offset + 60] = b"\xff" * 60
    path.write_bytes(bytes(data))
    return path


def test_damaged_checkpoint_restarts_the_export_from_the_commits(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t")
    damaged(made)
    snapshot = made.table.snapshot()
    with pytest.warns(LakelogWarning, match="was ignored"):
        manifest = snapshot.write_parquet(tmp_path / "out", max_part_bytes=1)
    assert manifest.num_files == 3001
    assert manifest.warnings
    assert not any("checkpoint" in name for name in manifest.provenance)
    rows = read(tmp_path / "out")
    assert rows.filter(pl.col("actionType") == "add")["path"].n_unique() == 3001


def test_damage_without_commits_raises_and_leaves_no_file(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t")
    damaged(made)
    made.forget(0)
    snapshot = made.table.snapshot()
    with pytest.raises(CheckpointCorruptionError):
        snapshot.write_parquet(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_duplicate_file_in_a_checkpoint_raises_corruption_error(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t")
    made.checkpoint(0, protocol(), metadata(), add("a"), add("a"))
    with pytest.raises(CheckpointCorruptionError, match="twice"):
        made.table.snapshot().write_parquet(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_file_that_a_checkpoint_removes_twice_is_written_once(tmp_path: Path) -> None:
    made = Handmade(tmp_path / "t")
    made.checkpoint(0, protocol(), metadata(), add("a"), remove("b"), remove("b"))
    with pytest.warns(LakelogWarning, match="more than once, such as b"):
        made.table.snapshot().write_parquet(tmp_path / "out")
    written = pl.read_parquet(tmp_path / "out" / "*.parquet")
    rows = written.select("actionType", "path").filter(pl.col("path").is_not_null()).rows()
    assert sorted(rows) == [("add", "a"), ("remove", "b")]
