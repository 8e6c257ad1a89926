"""A table that another writer wrote to an object store is opened by its URL and read correctly."""

from __future__ import annotations

import contextlib
import functools
import pickle
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import lakelog
from lakelog.data.files import ReadPlan
from lakelog.data.read import read_files
from lakelog.errors import LakelogError, ReadTimeoutError
from lakelog.storage import open_store
from tests.handmade import Handmade, add, metadata, protocol
from tests.hostile_names import VALUES, named_table, partitioned_table
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


class Requests(SimpleHTTPRequestHandler):
    """Serves a folder; the log of requests is not printed."""

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The URL of a web server of the test's folder."""
    handler = functools.partial(Requests, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with contextlib.closing(server.socket):
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_names_are_encoded_in_urls_and_decoded_in_listings_of_the_web(
    tmp_path: Path, web: str
) -> None:
    here = partitioned_table(tmp_path / "values")
    assert_frame_equal(
        lakelog.open(f"{web}/values").to_polars().sort("x"), here.to_polars().sort("x")
    )
    assert here.to_polars().height == len(VALUES)
    here = named_table(tmp_path / "names")
    there = lakelog.open(f"{web}/names")
    assert_frame_equal(there.to_polars().sort("x"), here.to_polars().sort("x"))
    store, local = open_store(f"{web}/names"), open_store(tmp_path / "names")
    found = [{e.name for batch in each.walk() for e in batch} for each in (store, local)]
    assert found[0] == found[1]
    odd = "x%41y.parquet"
    entry = store.stat(odd)
    assert entry is not None
    assert entry.name == odd


def test_path_of_the_log_that_is_encoded_twice_leads_to_no_other_folder_of_the_web(
    tmp_path: Path, web: str
) -> None:
    private = lakelog.create(tmp_path / "private", {"x": pl.Int64}, upkeep=False)
    private.append(pl.DataFrame({"x": [4242]}))
    (path,) = private.snapshot().files().collect()["path"]
    size = (tmp_path / "private" / path).stat().st_size
    made = Handmade(tmp_path / "public/t")
    made.commit(0, protocol(), metadata(), add(f"..%252F..%252Fprivate/{path}", size=size))
    with pytest.raises(LakelogError):
        lakelog.open(f"{web}/public/t").to_polars()


def test_presigned_url_of_the_log_keeps_its_query(
    tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets: list[str] = []
    translate = Requests.translate_path

    def recording(self: Requests, path: str) -> str:
        targets.append(path)
        return translate(self, path)

    monkeypatch.setattr(Requests, "translate_path", recording)
    rows = pl.DataFrame({"id": [7], "name": ["a"]})
    rows.write_parquet(tmp_path / "a b%41.parquet")
    size = (tmp_path / "a b%41.parquet").stat().st_size
    made = Handmade(tmp_path / "t")
    query = "sig=a%2Bb/c%3D&e=2026-01-01"
    made.commit(0, protocol(), metadata(), add(f"{web}/a%20b%2541.parquet?{query}", size=size))
    assert lakelog.open(made.root, allow_external=[web]).to_polars()["id"].to_list() == [7]
    # The log has the URL decoded: the value of one parameter ends with =.
    assert {target.replace("%3D", "=") for target in targets} == {
        f"/a%20b%2541.parquet?{query}".replace("%3D", "=")
    }


def test_time_out_of_the_caller_applies_to_files_of_other_stores(
    tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pl.DataFrame({"id": [7], "name": ["a"]})
    rows.write_parquet(tmp_path / "x.parquet")
    size = (tmp_path / "x.parquet").stat().st_size
    made = Handmade(tmp_path / "t")
    made.commit(0, protocol(), metadata(), add(f"{web}/x.parquet", size=size))
    table = lakelog.open(made.root, allow_external=[web], read_timeout=0.3)
    files = table.snapshot().files().collect()
    plan = pickle.loads(pickle.dumps(ReadPlan.of(table.snapshot())))
    answer = threading.Event()
    get = Requests.do_GET

    def waiting(self: Requests) -> None:
        answer.wait()
        get(self)

    monkeypatch.setattr(Requests, "do_GET", waiting)
    try:
        for read in (table.to_polars, lambda: list(read_files(plan, files))):
            with pytest.raises(ReadTimeoutError, match=r"0\.3 s"):
                read()
    finally:
        answer.set()
