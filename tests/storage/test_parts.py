"""Uploads in parts: memory, parallel parts, and the particular requests of each store."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from functools import partial
from typing import Any

import pytest
from fsspec.asyn import get_loop

from lakelog.errors import UnavailableError
from lakelog.storage import LogStore, open_store, s3
from lakelog.storage.cloud import PART_BYTES, PartedUpload
from lakelog.storage.conditional import UNKNOWN, Verdict
from tests.concurrency import run_concurrently
from tests.storage.backends import Backend
from tests.storage.conftest import CLOUDS, BackendOf
from tests.storage.gcs_double import gcs_double

MIB = 1 << 20


class CountingParts:
    """Parts that are discarded, slowly."""

    in_flight = 2

    def __init__(self, fail_at: int | None = None) -> None:
        self.fail_at = fail_at
        self.sizes: dict[int, int] = {}
        self.most_in_flight = 0
        self.current = 0
        self.begun = self.finished = self.aborted = 0

    async def begin(self) -> None:
        self.begun += 1

    async def send(self, number: int, data: bytes, *, last: bool) -> None:
        self.current += 1
        self.most_in_flight = max(self.most_in_flight, self.current)
        await asyncio.sleep(0.01)
        self.current -= 1
        if number == self.fail_at:
            raise OSError("no")
        self.sizes[number] = len(data)

    async def finish(self) -> None:
        self.finished += 1

    async def abort(self) -> None:
        self.aborted += 1


def upload_to(parts: CountingParts) -> tuple[PartedUpload, dict[str, bytes]]:
    put: dict[str, bytes] = {}

    def judge(_: BaseException) -> Verdict:
        return UNKNOWN

    return PartedUpload("log/1", get_loop(), parts, judge, put.__setitem__), put


def test_parts_have_one_size_except_the_last_and_limited_parallelism() -> None:
    parts = CountingParts()
    upload, put = upload_to(parts)
    with upload:
        for _ in range(5 * PART_BYTES // MIB):
            upload.write(bytes(MIB))
        upload.write(b"x")
    assert parts.sizes == {**dict.fromkeys(range(5), PART_BYTES), 5: 1}
    assert parts.most_in_flight == parts.in_flight
    assert (parts.begun, parts.finished, parts.aborted) == (1, 1, 0)
    assert put == {}


def test_content_of_one_part_is_one_request() -> None:
    parts = CountingParts()
    upload, put = upload_to(parts)
    with upload:
        upload.write(bytes(PART_BYTES))
    assert put == {"log/1": bytes(PART_BYTES)}
    assert (parts.begun, parts.finished, parts.aborted) == (0, 0, 0)


def test_upload_holds_few_parts_in_memory() -> None:
    upload, _ = upload_to(CountingParts())
    step = bytes(MIB)
    tracemalloc.start()
    try:
        with upload:
            for _ in range(160):
                upload.write(step)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A part being filled, one being passed on, two in flight.
    assert peak < 6 * PART_BYTES


@pytest.mark.parametrize("fail_at", [0, 1, 4])
def test_failed_part_aborts_the_upload(fail_at: int) -> None:
    parts = CountingParts(fail_at)
    upload, _ = upload_to(parts)

    def write_all() -> None:
        with upload:
            for _ in range(4 * PART_BYTES // MIB + 1):
                upload.write(bytes(MIB))

    with pytest.raises(UnavailableError, match="nothing was written"):
        write_all()
    assert (parts.begun, parts.finished, parts.aborted) == (1, 0, 1)


@pytest.fixture(params=["moto", "ministack"])
def s3_backend(backend_of: BackendOf, request: pytest.FixtureRequest) -> Backend:
    return backend_of(request.param)


def test_s3_an_abandoned_upload_leaves_no_parts(s3_backend: Backend) -> None:
    location = s3_backend.fresh()
    upload = s3_backend.open(location).upload("log/1")
    upload.write(bytes(2 * PART_BYTES + 1))
    upload.abandon()
    assert s3_backend.unfinished(location) == 0


def test_s3_file_too_large_for_one_copy_is_copied_in_parts(
    s3_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_COPIED_AT_ONCE_BYTES", 6 * MIB)
    monkeypatch.setattr(s3, "_COPIED_PART_BYTES", 5 * MIB)
    location = s3_backend.fresh()
    store = s3_backend.open(location)
    for size in (6 * MIB + 1, 10 * MIB, 10 * MIB + 1):
        content = os.urandom(size)
        store.put("log/1", content)
        store.move("log/1", "aside/1")
        assert store.read("aside/1") == content
        assert store.stat("log/1") is None
    assert s3_backend.unfinished(location) == 0


def test_s3_denied_deletions_are_reported(
    s3_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = s3_backend.open(s3_backend.fresh())
    filesystem = store._filesystem
    real = type(filesystem)._call_s3

    async def call(self: Any, method: str, *rest: Any, **more: Any) -> Any:
        if method != "delete_objects":
            return await real(self, method, *rest, **more)
        denied, *allowed = more["Delete"]["Objects"]
        await real(self, method, *rest, **{**more, "Delete": {"Objects": allowed}})
        return {"Errors": [{**denied, "Code": "AccessDenied", "Message": "Access Denied"}]}

    for name in ("a", "b", "c"):
        store.put(f"log/{name}", b"x")
    monkeypatch.setattr(type(filesystem), "_call_s3", call)
    (error,) = store.delete_many(["log/a", "log/b", "log/c"])
    assert error.path == "log/a"
    assert "AccessDenied" in str(error)
    assert [e.name for e in store.list_from("log")] == ["a"]


def test_gcs_bytes_that_were_not_stored_are_sent_again_and_sessions_end() -> None:
    with gcs_double() as double:
        double.held_back_bytes = 256 << 10
        store = gcs_store(double.url)
        content = os.urandom(2 * PART_BYTES + 7)
        with store.upload("log/1") as upload:
            upload.write(content)
        assert store.read("log/1") == content
        upload = store.upload("log/2")
        upload.write(content)
        upload.abandon()
        assert double.unfinished_uploads == 0


def test_gcs_copy_is_repeated_until_it_is_done() -> None:
    with gcs_double() as double:
        double.rewrite_calls = 4
        store = gcs_store(double.url)
        store.put("log/a b%2F#1", b"content")
        store.move("log/a b%2F#1", "aside/é/1")
        assert store.read("aside/é/1") == b"content"
        assert [e.name for batch in store.walk() for e in batch] == ["aside/é/1"]


def test_gcs_name_with_a_number_is_not_a_generation_of_another_file() -> None:
    with gcs_double() as double:
        store = gcs_store(double.url, version_aware=True)
        store.put("log/1", b"live")
        store.put("log/1#2", b"other")
        assert store.read("log/1#2") == b"other"
        store.delete("log/1#2")
        assert [e.name for e in store.list_from("log")] == ["1"]


def gcs_store(url: str, **options: object) -> LogStore:
    import urllib.request

    request = urllib.request.Request(
        f"{url}/storage/v1/b", b'{"name": "tables"}', {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=10).close()
    return open_store("gs://tables/t", {"endpoint_url": url, "token": "anon", **options})


def test_concurrent_uploads_do_not_mix(s3_backend: Backend) -> None:
    store = s3_backend.open(s3_backend.fresh())

    def work(number: int) -> None:
        with store.upload(f"log/{number}") as upload:
            for _ in range(2 * PART_BYTES // MIB + 1):
                upload.write(bytes([number]) * MIB)

    run_concurrently(*(partial(work, number) for number in range(4)))
    for number in range(4):
        assert store.read(f"log/{number}") == bytes([number]) * (2 * PART_BYTES + MIB)


@pytest.mark.parametrize("backend", CLOUDS)
def test_file_that_is_replaced_while_it_is_read_is_not_mixed(
    backend_of: BackendOf, backend: str
) -> None:
    server = backend_of(backend)
    store = server.open(server.fresh())
    store.put("log/1", b"a" * (4 * MIB))
    with store.open("log/1", 4 * MIB) as file:
        assert file.read(10) == b"a" * 10
        file.seek(MIB)
        assert file.read(10) == b"a" * 10
        store.put("log/1", b"b" * (4 * MIB))
        file.seek(2 * MIB)
        with pytest.raises(UnavailableError, match="replaced while it was read") as failed:
            file.read(10)
        assert failed.value.path == "log/1"
    assert store.open("log/1").read(10) == b"b" * 10
