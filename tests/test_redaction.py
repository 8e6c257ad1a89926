"""No credential reaches a message, a structured field, a log line, a span or a display."""

from __future__ import annotations

import asyncio
import logging
import pickle
import re
import time
import traceback
from collections.abc import Callable
from typing import Any

import fsspec
import fsspec.asyn
import pytest

import lakelog
from lakelog import redaction
from lakelog.errors import LakelogError, UnavailableError
from lakelog.redaction import REDACTED, redact, register_secrets
from lakelog.storage import LogStore, open_store
from lakelog.storage.base import FileEntry
from lakelog.storage.cloud import PART_BYTES, CloudStore, Names
from lakelog.storage.conditional import LOST, REFUSED, Verdict, write_until_certain
from lakelog.storage.resolve import store_of
from lakelog.telemetry import event

SECRET = "S3cr3tS3cr3t"
OWN = "an-opaque-value-of-the-caller"

TEXTS = [
    f"GET https://user:{SECRET}@host/b failed",
    f"GET ftp://user:p@{SECRET}@host/b failed",
    f"GET https://host/b?sp=r&sig={SECRET}%3D&se=1 failed",
    f"invalid access_token={SECRET}",
    f"https://host/b?X-Amz-Credential={SECRET}%2F2020&X-Amz-Signature={SECRET}&X-Amz-Date=2020",
    f"https://host/b?token={SECRET}",
    f"X-Amz-Security-Token: {SECRET}",
    f"headers {{'Authorization': 'Bearer {SECRET}', 'x': 'y'}}",
    f"Authorization: AWS4-HMAC-SHA256 Credential={SECRET}/2020, Signature={SECRET}",
    f"AccountName=a;AccountKey={SECRET}+/==;EndpointSuffix=core.windows.net",
    f"SharedAccessSignature=sv=2020&sig={SECRET}",
    f"aws_secret_access_key = {SECRET}",
    f'{{"client_secret": "{SECRET} {SECRET}"}}',
    f"X-Api-Key: {SECRET}",
    f"Cookie: session={SECRET}; id={SECRET}",
    f"{{'access-key': '{SECRET}', 'secret-key': '{SECRET}'}}",
    f"fs.s3a.secret.key={SECRET}",
    f"fs.azure.account.key.acct.dfs.core.windows.net={SECRET}",
    f"Server=x;User Id=u;Pwd={SECRET}",
    f"passphrase={SECRET}",
    f"the value {OWN} is refused",
    f"GET s3://user:pa/{SECRET}@host/b failed",
    f"GET s3://user:{SECRET}?a#b@{SECRET}@host/b failed",
    f"GET s3://user:12/{SECRET}@host/b@c failed",
    f"s3://minio:a/{SECRET}@host:9000/b",
    f"DRIVER=x;UID=u;PWD=/{SECRET}",
    f"UID=u; PWD=/{SECRET}",
    f"PWD=/{SECRET};UID=u",
    f"DB_PWD=/{SECRET}",
    f"pwd=/{SECRET}",
    f"PWD={SECRET}",
]


class Driver(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A driver that fails with a text."""

    protocol = "failing"
    cachable = False

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def fail(self, *_: Any, **__: Any) -> Any:
        raise PermissionError(self.text) from RuntimeError(self.text)

    ls = info = cat_file = open = fail


READS: dict[str, Callable[[LogStore], object]] = {
    "list_from": lambda store: store.list_from("a"),
    "list_folders": lambda store: store.list_folders("a"),
    "has_folders": lambda store: store.has_folders(["a"]),
    "walk": lambda store: list(store.walk("a")),
    "stat": lambda store: store.stat("a"),
    "read": lambda store: store.read("a"),
    "read_many": lambda store: list(store.read_many(["a", "b"])),
    "open": lambda store: store.open("a"),
}


def holds_secret(text: str) -> bool:
    return SECRET in text or OWN in text


@pytest.fixture(autouse=True)
def _own_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_secrets", {})  # other tests of the process register some too
    register_secrets({"anon": False, "client_kwargs": {"aws_session_token": OWN}})


def shown(error: BaseException) -> str:
    """All texts of an error that a person or a program sees."""
    fields = error.as_dict() if isinstance(error, LakelogError) else {}
    trace = "".join(traceback.format_exception(error))
    return f"{error} {error!r} {fields} {trace}"


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_redacted_idempotently(text: str) -> None:
    clean = redact(text)
    assert not holds_secret(clean)
    assert REDACTED in clean
    assert redact(clean) == clean


@pytest.mark.parametrize("secret", ["secret", "a b;c", "sig"])
def test_registered_secret_does_not_prevent_redaction_of_others(secret: str) -> None:
    register_secrets({"password": secret.ljust(6, "=")})
    for text in TEXTS:
        assert not holds_secret(redact(text))
    assert secret.ljust(6, "=") not in redact(f"token={secret.ljust(6, '=')} is refused")


@pytest.mark.parametrize(
    "text",
    [
        "the token was refused",
        "a=b, 3 files of 4",
        "s3://bucket/p=1/part-0.parquet?versionId=3",
        "expected: at most 5; see https://host/page?x=1",
        "GET http://127.0.0.1:9000/bucket/user=a@b/part-0.parquet",
        "GET http://localhost:9000/bucket/a@b and http://[::1]:80/a@b, https://s3.host:443?x=a@b",
        "s3://bucket/a:b/c@d/e",
        "file:///c:/a@b",
        "SHELL=/bin/sh PWD=/srv/data OLDPWD=/ LANG=C",
        "PWD=/srv/data",
    ],
)
def test_texts_without_secrets_are_unchanged(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("operation", READS)
def test_error_of_a_failed_read_contains_no_secret(operation: str, text: str) -> None:
    store = store_of(Driver(text), "base", "failing://base")
    with pytest.raises(LakelogError) as caught:
        READS[operation](store)
    assert not holds_secret(shown(caught.value))
    assert not holds_secret(shown(pickle.loads(pickle.dumps(caught.value))))


@pytest.mark.parametrize("verdict", [REFUSED, LOST], ids=["refused", "lost"])
@pytest.mark.parametrize("text", TEXTS)
def test_error_of_a_failed_write_contains_no_secret(text: str, verdict: Any) -> None:
    async def attempt() -> None:
        raise PermissionError(text)

    async def pause(_: float) -> None:
        return None

    with pytest.raises(LakelogError) as caught:
        asyncio.run(write_until_certain(attempt, lambda _: verdict, "x", pause=pause))
    assert not holds_secret(shown(caught.value))


class FailingCloud:
    """An object store of which every request except a listing fails with a text."""

    refusal = None
    deleted_at_once = 1
    in_flight = 1

    def __init__(self, text: str) -> None:
        self.text = text

    async def fail(self, *_: Any, **__: Any) -> Any:
        raise PermissionError(self.text) from RuntimeError(self.text)

    async def list_names(self, *_: Any) -> Names:
        return Names([FileEntry("", 1, 0)], [])

    async def abort(self) -> None:
        return None

    def judge(self, _: BaseException) -> Verdict:
        return REFUSED

    def parts(self, *_: Any) -> Any:
        return self

    read = write = copy = delete_many = list_page = begin = send = finish = fail


def uploaded(store: LogStore, size_bytes: int) -> None:
    with store.upload("a") as upload:
        upload.write(b"x" * size_bytes)


def deleted(store: LogStore) -> None:
    (error,) = store.delete_many(["a"])
    raise error


WRITES: dict[str, Callable[[LogStore], object]] = {
    "put_if_absent": lambda store: store.put_if_absent("a", b"x"),
    "put": lambda store: store.put("a", b"x"),
    "upload": lambda store: uploaded(store, 1),
    "upload in parts": lambda store: uploaded(store, 2 * PART_BYTES),
    "move": lambda store: store.move("a", "b"),
    "delete": lambda store: store.delete("a"),
    "delete_many": deleted,
}


@pytest.mark.parametrize("operation", WRITES)
def test_error_of_a_refused_request_contains_no_secret(operation: str) -> None:
    text = " ".join(TEXTS)
    driver = fsspec.asyn.AsyncFileSystem(skip_instance_cache=True)
    store = CloudStore(driver, "bucket/t", "s3://bucket/t", FailingCloud(text))
    with pytest.raises(LakelogError) as caught:
        WRITES[operation](store)
    assert not holds_secret(shown(caught.value))
    assert not holds_secret(shown(pickle.loads(pickle.dumps(caught.value))))


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "a.",
        "-token",
        "://",
        "://a:",
        "://a.b:1/",
        ":/",
        "token=",
        "PWD=/",
        "authorization:",
        "\t",
    ],
)
@pytest.mark.parametrize("start", ["", "://", "://u:", "authorization:"])
def test_time_of_redaction_is_linear_in_the_length_of_the_text(start: str, unit: str) -> None:
    text = f"{start}{unit * (20_000 // len(unit))};="
    begin = time.process_time()
    redact(text)
    assert time.process_time() - begin < 2  # several times as long if it is quadratic


def test_every_field_of_an_error_is_redacted_except_partition_values_in_paths() -> None:
    text = TEXTS[2]
    error = UnavailableError(
        text, path=f"s3://u:{SECRET}@b/t", expected=text, found=RuntimeError(text), hint=text
    )
    assert not holds_secret(f"{error} {error.as_dict()} {error.args}")
    path = "/t/token=a/pwd=b/f.parquet"
    for same in (path, path[3:], [path, path[3:]]):
        error = UnavailableError("m", path=path, expected=same, found=same)
        assert (error.path, error.expected, error.found) == (path, same, same)
    for text in (
        f"token={SECRET}/ab",
        f"/t/token={SECRET}",
        f"a/f.json?token={SECRET}",
        f"a/f.json token={SECRET}",
        f"/t/password:{SECRET}/f.json",
        f"s3://b/token={SECRET}/f.json",
        f"/t/{OWN}/f.json",
    ):
        error = UnavailableError("m", expected=text, found=[path, text])
        assert not holds_secret(f"{error} {error.as_dict()}")


def test_a_location_with_a_password_is_not_displayed(tmp_path: Any) -> None:
    memory = f"memory://user:{SECRET}@host/t"
    lakelog.create(memory, {"type": "struct", "fields": []}, upkeep=False)
    table = lakelog.open(memory, upkeep=False)
    snapshot = table.snapshot()
    for each in (table, snapshot, table.transaction()):
        assert not holds_secret(repr(each))
    assert not holds_secret(table._repr_html_() + snapshot._repr_html_())


@pytest.mark.parametrize("password", [SECRET, "S3cr3t%2BS3cr3t", "p@S3cr3t", "p/S3cr3t"])
def test_password_of_a_location_is_redacted_where_a_driver_repeats_it_without_the_scheme(
    password: str,
) -> None:
    location = f"s3://AK:{password}@tables/dn"
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    with pytest.raises(UnavailableError, match=r"Parameter validation failed: .*bucket") as caught:
        lakelog.open(location, storage_options=options)
    text = shown(caught.value)
    host = "" if "/" in password else "@tables"
    assert f'bucket name "{REDACTED}{host}"' in text
    assert not re.search("AK:|S3cr3t", text)


def test_log_lines_are_redacted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lakelog"):
        event("test.happened", path=TEXTS[0], error=TEXTS[2])
    record: Any = caplog.records[0]
    assert not holds_secret(f"{record.getMessage()} {record.fields}")


@pytest.mark.parametrize(
    "name", ["account_key", "secret-key", "fs.s3a.secret.key", "passphrase", "pwd"]
)
def test_options_of_a_store_are_registered_as_secrets(name: str) -> None:
    open_store("memory://x", {name: "Zm9vYmFyYmF6"})
    assert redact("refused: Zm9vYmFyYmF6!") == f"refused: {REDACTED}!"
