"""A table that another writer wrote to an object store is opened by its URL and read correctly."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import lakelog
from tests.storage.backends import Backend
from tests.storage.conftest import CLOUDS, BackendOf

COMMITS = 14  # deltalake's commits behind its checkpoint and after it


@pytest.fixture(params=["memory", *CLOUDS])
def backend(backend_of: BackendOf, request: pytest.FixtureRequest) -> Backend:
    return backend_of(request.param)


def write_with_deltalake(uri: str, storage_options: dict[str, str] | None = None) -> None:
    """Commits with partition values that need encoding, a removal, and a checkpoint at 10."""
    for i in range(COMMITS):
        rows = pl.DataFrame({"day": ["1/2 %é", f"d{i}"], "n": [i, i]})
        mode: Any = "overwrite" if i == 5 else "append"
        deltalake.write_deltalake(
            uri, rows, partition_by=["day"], mode=mode, storage_options=storage_options
        )
        if i == 10:
            deltalake.DeltaTable(uri, storage_options=storage_options).create_checkpoint()


def upload(root: Path, backend: Backend, location: str) -> None:
    found = (path for path in root.rglob("*") if path.is_file())
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in found}
    backend.seed(location, files)


def check_same_table(there: lakelog.Table, here: lakelog.Table) -> None:
    """Assert equal state at every version, and equal history at the newest."""
    assert there.format == here.format
    assert there.versions() == here.versions()
    for version in range(here.version() + 1):
        theirs, ours = there.snapshot(version), here.snapshot(version)
        assert theirs.metadata == ours.metadata
        assert theirs.protocol == ours.protocol
        assert_frame_equal(rows(theirs.files()), rows(ours.files()))
    assert_frame_equal(without_times(there.history()), without_times(here.history()))


def rows(frame: pl.LazyFrame) -> pl.DataFrame:
    return frame.collect().sort("path")


def without_times(history: pl.DataFrame) -> pl.DataFrame:
    return history.drop("timestamp")  # file times, if a commit has no timestamp


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of deltalake on local disk, to be copied."""
    root = tmp_path_factory.mktemp("local")
    write_with_deltalake(str(root))
    return root


def test_copied_table_of_deltalake_is_read(backend: Backend, local: Path) -> None:
    location = backend.fresh()
    upload(local, backend, location)
    there = lakelog.open(location, storage_options=backend.options)
    assert there.path == location
    check_same_table(there, lakelog.open(local))
    newest = there.snapshot()
    assert newest.version == COMMITS - 1
    assert newest.provenance.checkpoint is not None
    assert newest.num_files() == 2 * (COMMITS - 5)


def deltalake_options(backend: Backend) -> dict[str, str]:
    options: dict[str, Any] = backend.options
    return {
        "aws_access_key_id": options["key"],
        "aws_secret_access_key": options["secret"],
        "aws_region": "us-east-1",
        "aws_endpoint_url": backend.endpoint,
        "allow_http": "true",
        "conditional_put": "etag",
    }


# Not Azurite, on which deltalake does not find its own second commit: it lists from a key.
@pytest.mark.parametrize("backend_name", ["moto", "ministack"])
def test_table_written_by_deltalake_is_read(
    backend_of: BackendOf, backend_name: str, tmp_path: Path
) -> None:
    backend = backend_of(backend_name)
    location = backend.fresh()
    options = deltalake_options(backend)
    write_with_deltalake(location, options)
    peer = deltalake.DeltaTable(location, storage_options=options)
    table = lakelog.open(location, storage_options=backend.options)
    newest = table.snapshot()
    assert newest.version == peer.version() == COMMITS - 1
    assert newest.metadata.id == str(peer.metadata().id)  # typed as a number
    ours = dict(newest.files().collect().select("path", "size").iter_rows())
    adds = pl.DataFrame(peer.get_add_actions(flatten=True))
    assert ours == {unquote(path): size for path, size in adds["path", "size_bytes"].iter_rows()}
    store = backend.open(location)
    for path, size in ours.items():
        found = store.stat(path)
        assert found is not None
        assert found.size_bytes == size


def test_location_without_a_table_raises_table_not_found_error(backend: Backend) -> None:
    with pytest.raises(lakelog.TableNotFoundError):
        lakelog.open(backend.fresh(), storage_options=backend.options)
