"""The meaning of an object store's answers, and which writes are retried; without a server."""

from __future__ import annotations

import asyncio
import gc
import types
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import adlfs
import aiohttp
import fsspec
import gcsfs
import polars as pl
import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
    ServiceResponseError,
)
from gcsfs.retry import HttpError
from google.auth.exceptions import RefreshError
from requests.exceptions import ProxyError

import lakelog
from lakelog.errors import OutcomeUnknownError, UnavailableError, UnsupportedStoreError
from lakelog.storage import azure, gcs, open_store, s3
from lakelog.storage import conditional as conditional_module
from lakelog.storage.azure import Azure
from lakelog.storage.cloud import CloudStore
from lakelog.storage.conditional import (
    ATTEMPTS,
    BUSY,
    LOST,
    REFUSED,
    TAKEN,
    UNKNOWN,
    Verdict,
    judge_status,
    write_until_certain,
)
from lakelog.storage.fsspec_store import FsspecStore
from lakelog.storage.gcs import Gcs
from lakelog.storage.local import LocalStore
from lakelog.storage.resolve import store_of
from lakelog.storage.s3 import S3


class Answer(Exception):  # noqa: N818 - it represents an error of a driver
    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


def run(answers: Sequence[Verdict | None]) -> tuple[bool, int, list[float]]:
    """The outcome of a write whose attempts end like this (None: success), attempts and pauses."""
    pauses: list[float] = []
    made = [0]

    async def attempt() -> None:
        answer = answers[min(made[0], len(answers) - 1)]
        made[0] += 1
        if answer is not None:
            raise Answer(answer)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def judge(error: BaseException) -> Verdict:
        assert isinstance(error, Answer)
        return error.verdict

    won = asyncio.run(write_until_certain(attempt, judge, "log/1", pause=pause, chance=lambda: 1.0))
    return won, made[0], pauses


@pytest.mark.parametrize(
    ("answers", "won", "attempts"),
    [
        ([None], True, 1),
        ([TAKEN], False, 1),
        ([BUSY, None], True, 2),
        ([LOST, None], True, 2),
        ([LOST, BUSY, TAKEN], False, 3),
        ([BUSY] * (ATTEMPTS - 1) + [None], True, ATTEMPTS),
    ],
)
def test_transient_failures_are_retried(
    answers: list[Verdict | None], won: bool, attempts: int
) -> None:
    assert run(answers)[:2] == (won, attempts)


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([REFUSED], UnavailableError),
        ([BUSY], UnavailableError),
        ([BUSY, REFUSED], UnavailableError),
        ([LOST], OutcomeUnknownError),
        ([UNKNOWN], OutcomeUnknownError),
        ([LOST, REFUSED], OutcomeUnknownError),
        ([LOST, BUSY], OutcomeUnknownError),
    ],
)
def test_possibly_executed_attempt_raises_outcome_unknown_error(
    answers: list[Verdict | None], error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        run(answers)
    assert isinstance(refused.value.__cause__, Answer)
    assert "log/1" in str(refused.value)


def test_pauses_grow_and_are_bounded() -> None:
    assert run([BUSY] * (ATTEMPTS - 1) + [None])[2] == [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2, 2]


def test_hanging_write_times_out_with_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conditional_module, "_DEADLINE_S", 0.05)
    with pytest.raises(OutcomeUnknownError):
        asyncio.run(write_until_certain(lambda: asyncio.sleep(60), lambda _: REFUSED, "log/1"))


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *((status, REFUSED) for status in (400, 401, 403, 404, 405, 411, 413)),
        (429, BUSY),
        *((status, LOST) for status in (408, 500, 502, 503, 504)),
        *((status, UNKNOWN) for status in (200, 409, 412)),
    ],
)
def test_http_status_has_the_common_verdict(status: int, verdict: Verdict) -> None:
    assert judge_status(status) == verdict


# --- S3 ------------------------------------------------------------------------------------------


class EndpointConnectionError(Exception):
    """An exception with the name of botocore's."""


class ReadTimeoutError(Exception):
    """An exception with the name of botocore's."""


Attempt = tuple[int, str] | Exception | None


class S3Driver:
    """The part of s3fs that a write uses: each attempt ends in an answer, an error, or silence."""

    def __init__(self, attempts: Sequence[Attempt], final: Exception | None) -> None:
        self.hooks: dict[str, Callable[..., object]] = {}
        self.sent: list[dict[str, Any]] = []
        self._attempts, self._final = attempts, final
        events = types.SimpleNamespace(register=self._register)
        self._client = types.SimpleNamespace(meta=types.SimpleNamespace(events=events))

    def _register(self, event: str, hook: Callable[..., object], unique_id: str) -> None:
        assert unique_id.startswith("lakelog")
        self.hooks[event.split(".", maxsplit=1)[0]] = hook

    async def set_session(self) -> None:
        return None

    async def get_s3(self, bucket: str) -> object:
        return self._client

    async def _call_s3(self, operation: str, **arguments: Any) -> None:
        self.sent.append({"operation": operation, **arguments})
        for attempt in self._attempts:
            assert self.hooks["before-send"](request=object()) is None
            if isinstance(attempt, Exception):
                self.hooks["needs-retry"](response=None, caught_exception=attempt, attempts=1)
            elif attempt is not None:
                status, code = attempt
                response = (types.SimpleNamespace(status_code=status), {"Error": {"Code": code}})
                self.hooks["needs-retry"](response=response, caught_exception=None, attempts=1)
        if self._final is not None:
            raise self._final


REFUSED_403 = (403, "AccessDenied")
UNREACHABLE = EndpointConnectionError("no route")
SLOW = ReadTimeoutError("15 s")


@pytest.mark.parametrize(
    ("attempts", "verdict"),
    [
        ([(412, "PreconditionFailed")], TAKEN),
        ([SLOW, (412, "")], TAKEN),
        ([REFUSED_403], REFUSED),
        ([], REFUSED),  # no credentials: nothing was sent
        ([UNREACHABLE, UNREACHABLE], BUSY),
        ([(301, "PermanentRedirect"), REFUSED_403], REFUSED),
        ([(409, "ConditionalRequestConflict")], BUSY),
        ([(503, "SlowDown")], BUSY),
        ([SLOW, REFUSED_403], UNKNOWN),
        ([SLOW, UNREACHABLE], LOST),
        ([SLOW, (409, "ConditionalRequestConflict")], LOST),
        ([(500, "InternalError")], LOST),
        ([(503, "ServiceUnavailable")], LOST),
        ([None], LOST),  # an answer that could not be parsed
        ([REFUSED_403, None], LOST),
        ([(200, "InternalError")], UNKNOWN),
    ],
    ids=str,
)
def test_s3_write_is_judged_by_all_its_attempts(attempts: list[Attempt], verdict: Verdict) -> None:
    driver = S3Driver(attempts, OSError("the last one's error"))
    with pytest.raises(Exception) as failed:  # noqa: PT011 - `judge` reads it
        asyncio.run(S3().write(driver, "b", "k", b"x", exclusive=True))
    assert S3().judge(failed.value) == verdict


def test_s3_request_has_the_condition_only_if_exclusive() -> None:
    for exclusive in (True, False):
        driver = S3Driver([(200, "")], None)
        asyncio.run(S3().write(driver, "b", "k", b"x", exclusive=exclusive))
        (sent,) = driver.sent
        assert sent.get("IfNoneMatch") == ("*" if exclusive else None)
        assert (sent["operation"], sent["Bucket"], sent["Key"]) == ("put_object", "b", "k")


def test_s3_unrelated_error_has_an_unknown_outcome() -> None:
    assert S3().judge(AttributeError("meta")) == UNKNOWN


@pytest.mark.parametrize(
    ("installed", "refused"),
    [("1.35.19", True), ("1.34.162", True), ("1.35.20", False), ("1.40.0", False)],
)
def test_s3_old_botocore_that_drops_the_condition_is_refused(
    monkeypatch: pytest.MonkeyPatch, installed: str, refused: bool
) -> None:
    monkeypatch.setattr("lakelog.storage.s3.metadata.version", lambda _: installed)
    assert (S3().refusal is not None) is refused
    if refused:
        store = CloudStore(S3Driver([], None), "b/t", "s3://b/t", S3())
        writes = (
            lambda: store.put_if_absent("f", b"x"),
            lambda: store.put("f", b"x"),
            lambda: store.delete("f"),
        )
        for write in writes:
            with pytest.raises(UnsupportedStoreError, match=installed):
                write()


def test_s3_options_of_the_caller_override_defaults() -> None:
    options = s3.with_defaults({"key": "k", "config_kwargs": {"read_timeout": 99}})
    assert options["key"] == "k"
    assert options["config_kwargs"]["read_timeout"] == 99
    assert options["config_kwargs"]["max_pool_connections"] == 64


# --- Azure ---------------------------------------------------------------------------------------


def azure_error(status: int, code: str, kind: type[HttpResponseError] = HttpResponseError) -> Any:
    error: Any = kind(message=code)
    error.status_code = status
    error.error_code = code
    return error


def connector_error() -> aiohttp.ClientConnectorError:
    return aiohttp.ClientConnectorError(Any, OSError("refused"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (azure_error(409, "BlobAlreadyExists", ResourceExistsError), TAKEN),
        (azure_error(412, "ConditionNotMet"), TAKEN),
        (azure_error(403, "UnauthorizedBlobOverwrite"), TAKEN),
        (azure_error(409, "ContainerBeingDeleted", ResourceExistsError), REFUSED),
        (azure_error(403, "AuthorizationFailure"), REFUSED),
        (azure_error(404, "ContainerNotFound"), REFUSED),
        (azure_error(429, "TooManyRequests"), BUSY),
        (azure_error(503, "ServerBusy"), LOST),
        (azure_error(500, "OperationTimedOut"), LOST),
        (ClientAuthenticationError("no token"), BUSY),
        (ServiceRequestTimeoutError("connect"), BUSY),
        (ServiceRequestError("dns", error=connector_error()), BUSY),
        (ServiceRequestError("reset", error=aiohttp.ServerDisconnectedError()), LOST),
        (ServiceResponseError("reset"), LOST),
        (ValueError("bug"), UNKNOWN),
    ],
    ids=repr,
)
def test_azure_error_is_judged_by_its_code(error: Exception, verdict: Verdict) -> None:
    assert Azure().judge(error) == verdict


def test_azure_options_of_the_caller_override_defaults() -> None:
    assert azure.with_defaults({"read_timeout": 99}) == {
        "connection_timeout": 10,
        "read_timeout": 99,
    }


def test_azure_retries_after_a_fraction_of_a_second() -> None:
    filesystem = adlfs.AzureBlobFileSystem("account", account_key="a2V5", skip_instance_cache=True)
    store = store_of(filesystem, "container/t", "az://container/t")
    assert isinstance(store, CloudStore)
    pauses = [
        policy.initial_backoff
        for policy in filesystem.service_client._pipeline._impl_policies
        if hasattr(policy, "initial_backoff")
    ]
    assert pauses == [0.2]


# --- GCS -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (FileExistsError("412"), TAKEN),
        (FileNotFoundError("no bucket"), REFUSED),
        (OSError("Forbidden: https://…"), REFUSED),
        (HttpError({"code": 401, "message": "Invalid Credentials"}), REFUSED),
        (HttpError({"code": 429, "message": "slow down"}), BUSY),
        (HttpError({"code": 503, "message": "busy"}), LOST),
        (HttpError({"message": "no code"}), LOST),
        (connector_error(), BUSY),
        (RefreshError("no token"), BUSY),  # type: ignore[no-untyped-call]
        (aiohttp.ServerDisconnectedError(), LOST),
        (ProxyError("502"), LOST),
        (TimeoutError("20 s"), LOST),
        (ValueError("Bad Request: invalid"), UNKNOWN),
        (OSError("something else"), UNKNOWN),
    ],
    ids=repr,
)
def test_gcs_error_of_gcsfs_is_judged(error: Exception, verdict: Verdict) -> None:
    assert Gcs().judge(error) == verdict


def test_gcs_options_of_the_caller_override_defaults() -> None:
    assert gcs.with_defaults({"requests_timeout": 4})["requests_timeout"] == 4
    assert gcs.with_defaults({})["requests_timeout"].sock_read == 20


def test_gcs_gcsfs_without_the_request_method_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Gcs().refusal is None
    monkeypatch.setattr(gcsfs.GCSFileSystem, "_request", lambda *_: None)
    assert "gcsfs" in str(Gcs().refusal)


# --- which store a driver gets -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("http://127.0.0.1:1/t", "http"),
        ("simplecache::memory://t", "simplecache"),
        ("data://t", "data"),
    ],
)
def test_driver_without_put_if_absent_refuses_writes(url: str, protocol: str) -> None:
    store = open_store(url)
    assert type(store) is FsspecStore
    assert f"{protocol}:// has no atomic put-if-absent" in str(store.refusal)
    writes: list[Callable[[], object]] = [
        lambda: store.put_if_absent("log/1", b"x"),
        lambda: store.put("log/1", b"x"),
        lambda: store.delete("log/1"),
        lambda: store.upload("log/1"),
        lambda: store.move("log/1", "log/2"),
        lambda: store.delete_many(["log/1"]),
    ]
    for write in writes:
        with pytest.raises(UnsupportedStoreError, match="no atomic put-if-absent"):
            write()


def test_read_only_store_can_be_walked(tmp_path: Any) -> None:
    names = ["t/a", "t/log/1", "t/log/deep/2", "other/3"]
    with zipfile.ZipFile(tmp_path / "tables.zip", "w") as archive:
        for name in names:
            archive.writestr(name, name)
    store = open_store(f"zip://t::{tmp_path}/tables.zip")
    found = {e.name: e.size_bytes for batch in store.walk() for e in batch}
    assert found == {"a": 3, "log/1": 7, "log/deep/2": 12}
    assert [e.name for batch in store.walk("log/deep") for e in batch] == ["2"]
    assert list(store.walk("nowhere")) == []


def test_modification_times_of_drivers_are_read_in_all_their_forms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("t/a", b"content")
    store: Any = open_store(f"zip://t::{tmp_path}/t.zip")
    at = 1_700_000_000_000
    for value, found in [
        ("2023-11-14T22:13:20Z", at),
        ("Tue, 14 Nov 2023 22:13:20 GMT", at),
        (1_700_000_000, at),
        ("yesterday", 0),
    ]:
        info = {"name": "t/a", "size": 7, "type": "file", "modified": value}
        monkeypatch.setattr(store._filesystem, "info", lambda _, info=info: info)
        assert store.stat("a").modified_ms == found


@pytest.mark.parametrize("name", ["", "t"])
def test_table_in_an_archive_is_read(tmp_path: Any, name: str) -> None:
    lakelog.write(tmp_path / "t", pl.DataFrame({"x": [1]}))
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        for path in (tmp_path / "t").rglob("*"):
            archive.write(path, Path(name) / path.relative_to(tmp_path / "t"))
    assert lakelog.open(f"zip://{name}::{tmp_path}/t.zip").to_polars().rows() == [(1,)]
    (files,) = open_store(f"zip://{name}::{tmp_path}/t.zip").walk("_delta_log")
    assert [file.name for file in files] == [f"{0:020d}.json"]


def test_damaged_file_of_an_archive_raises_unavailable_error(tmp_path: Any) -> None:
    with zipfile.ZipFile(tmp_path / "tables.zip", "w") as archive:
        archive.writestr("t/a", b"content")
        at = archive.getinfo("t/a").header_offset + len(archive.getinfo("t/a").FileHeader())
    with open(tmp_path / "tables.zip", "r+b") as file:
        file.seek(at)
        file.write(b"C")
    store = open_store(f"zip://t::{tmp_path}/tables.zip")
    reads: list[Callable[[], object]] = [lambda: store.read("a"), lambda: store.open("a").read()]
    for read in reads:
        with pytest.raises(UnavailableError, match="Bad CRC-32") as failed:
            read()
        assert failed.value.path == "a"


@pytest.mark.parametrize(
    ("location", "bucket", "key"),
    [
        ("s3://bucket", "bucket", "log/1?versionId=2"),
        ("s3://bucket/a/t/", "bucket", "a/t/log/1?versionId=2"),
        (
            "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/point/a/t",
            "arn:aws:s3:us-west-2:123456789012:accesspoint/point",
            "a/t/log/1?versionId=2",
        ),
        (
            "s3://arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-1/accesspoint/point/t",
            "arn:aws:s3-outposts:us-west-2:123456789012:outpost/op-1/accesspoint/point",
            "t/log/1?versionId=2",
        ),
        (
            "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/point",
            "arn:aws:s3:us-west-2:123456789012:accesspoint/point",
            "log/1?versionId=2",
        ),
    ],
)
def test_s3_requests_have_the_bucket_or_access_point_of_the_location(
    monkeypatch: pytest.MonkeyPatch, location: str, bucket: str, key: str
) -> None:
    store: Any = open_store(location, {"key": "k", "secret": "s"})
    asked: list[tuple[str, str]] = []

    async def call(self: Any, method: str, **arguments: Any) -> Any:
        asked.append((arguments["Bucket"], str(arguments.get("Key", arguments.get("Prefix")))))
        return {}

    monkeypatch.setattr(type(store._filesystem), "_call_s3", call)
    store.put("log/1?versionId=2", b"x")
    store.stat("log/1?versionId=2")
    store.delete("log/1?versionId=2")
    assert asked == [(bucket, key)] * 3
    store.list_from("")
    assert asked[-1] == (bucket, key.removesuffix("log/1?versionId=2"))


def test_store_that_was_opened_before_a_fork_asks_for_a_new_one() -> None:
    store: Any = open_store("s3://bucket/t", {"key": "k", "secret": "s"})
    store._filesystem._pid += 1  # as in a forked process
    calls: list[Callable[[], object]] = [
        lambda: store.list_from("log"),
        lambda: store.has_folders(["log"]),
        lambda: list(store.walk()),
        lambda: store.stat("log/1"),
        lambda: store.read("log/1"),
        lambda: list(store.read_many(["log/1", "log/2"])),
        lambda: store.open("log/1", 10),
        lambda: store.put_if_absent("log/1", b"x"),
        lambda: store.put("log/1", b"x"),
        lambda: store.upload("log/1"),
        lambda: store.move("log/1", "log/2"),
        lambda: store.delete("log/1"),
    ]
    for call in calls:
        with pytest.raises(UnavailableError, match="before a fork") as failed:
            call()
        assert "open the table again" in str(failed.value.hint)
    gc.collect()  # a coroutine that was not awaited is a warning


def test_foreign_driver_with_the_s3_protocol_is_refused() -> None:
    class S3FileSystem(type(fsspec.filesystem("memory"))):  # type: ignore[misc]
        protocol = "s3"

    store = store_of(S3FileSystem(), "b/t", "s3://b/t")
    assert "s3:// has no atomic put-if-absent" in str(store.refusal)


def test_local_url_opens_a_local_store(tmp_path: Any) -> None:
    store = open_store(f"local://{tmp_path}/t")
    assert isinstance(store, LocalStore)
    assert store.put_if_absent("log/1", b"x")
    assert (tmp_path / "t" / "log" / "1").read_bytes() == b"x"
