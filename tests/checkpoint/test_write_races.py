"""Two checkpoint writers and a committer on one table: readers never fail or see a wrong state."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.checkpoint.verify import verify_one
from lakelog.checkpoint.write import write_checkpoint
from lakelog.dialects.delta import parquet
from lakelog.errors import LakelogError
from lakelog.storage.local import LocalStore
from tests.budget import share_of
from tests.checkpoint.tables import (
    CLASSIC,
    FLATTENED,
    JSON,
    LATEST,
    MULTIPART,
    V2_JSON,
    Kind,
    log_at,
    make,
)
from tests.concurrency import run_concurrently

ROUNDS = share_of(4, 2)


@pytest.mark.parametrize("kind", [CLASSIC, MULTIPART, V2_JSON, JSON, FLATTENED], ids=str)
def test_two_checkpoint_writers_of_one_version_do_not_affect_readers(
    kind: Kind, tmp_path: Path
) -> None:
    root = make(kind, tmp_path / "t")
    expected = sorted(lakelog.open(root).snapshot().files().select("path").collect()["path"])
    done = threading.Event()

    def checkpoint() -> None:
        for _ in range(ROUNDS):
            write_checkpoint(
                log_at(root, kind.dialect), layout=kind.layout, options=kind.options, verify=True
            )

    def read() -> None:
        while not done.is_set():
            found = lakelog.open(root).snapshot(version=LATEST).files().select("path").collect()
            assert sorted(found["path"]) == expected

    def write() -> None:
        try:
            run_concurrently(checkpoint, checkpoint)
        finally:
            done.set()

    run_concurrently(write, read)
    log = log_at(root, kind.dialect)
    for found in log.list_all().checkpoints:
        assert verify_one(log, found).is_proved


def test_checkpoint_writers_do_not_affect_a_committer_and_the_pointer_is_valid(
    tmp_path: Path,
) -> None:
    root = make(CLASSIC, tmp_path / "t")

    def commit() -> None:
        table = lakelog.open(root)
        for number in range(8):
            with table.transaction() as tx:
                tx.add(path=f"p=9/new-{number}", partitionValues={"p": "9"}, size=1)

    def checkpoint() -> None:
        for _ in range(ROUNDS):
            write_checkpoint(log_at(root, CLASSIC.dialect))

    run_concurrently(commit, checkpoint, checkpoint)
    snapshot = lakelog.open(root).snapshot()
    assert snapshot.version == LATEST + 8
    assert snapshot.num_files() == 19 + 8
    log = log_at(root, CLASSIC.dialect)
    listed = log.list_all().checkpoints
    for found in listed:
        assert verify_one(log, found).is_proved
    pointer = log.dialect.pointed_version(log.store.read("_delta_log/_last_checkpoint"))
    assert pointer in {found.version for found in listed}


def test_failed_checkpoint_writer_does_not_affect_another(tmp_path: Path) -> None:
    root = make(MULTIPART, tmp_path / "t")

    def fail() -> None:
        with pytest.raises(LakelogError):
            write_checkpoint(log_at(root, MULTIPART.dialect), layout="v2-json")

    def checkpoint() -> None:
        write_checkpoint(log_at(root, MULTIPART.dialect), layout="multipart")

    run_concurrently(fail, checkpoint, fail)
    assert lakelog.open(root).verify().is_proved


def test_checkpoint_replaced_during_a_read_is_read_as_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(CLASSIC, tmp_path / "t")
    write_checkpoint(log_at(root, CLASSIC.dialect))
    log = log_at(root, CLASSIC.dialect)
    found = log.list_all().checkpoints[-1]
    path = Path(root) / found.paths[0]
    bodies = itertools.cycle([_rewritten(path, tmp_path), path.read_bytes()])
    monkeypatch.setattr(parquet, "_MANY_ROWS", 1)  # like a large file: in parallel parts
    monkeypatch.setattr(parquet, "_FEW_PROMISED", 1)

    def read() -> list[pl.DataFrame]:
        reader = log.dialect.open_checkpoint(log.store, found)
        return [reader.read_meta(), *reader.iter_files(("path", "size", "stats"))]

    def replacing(store: LocalStore, name: str, size_bytes: int | None = None) -> Any:
        source = inner(store, name, size_bytes)
        if name == found.paths[0]:
            other = tmp_path / "other"
            other.write_bytes(next(bodies))
            other.replace(path)
        return source

    expected = read()
    inner = LocalStore.open
    monkeypatch.setattr(LocalStore, "open", replacing)
    for _ in range(4):
        assert all(one.equals(other) for one, other in zip(read(), expected, strict=True))


def _rewritten(path: Path, folder: Path) -> bytes:
    """The same rows in another file, with pages at other offsets."""
    other = folder / "rewritten"
    pq.write_table(pq.read_table(path), other, compression="none", use_dictionary=False)
    return other.read_bytes()
