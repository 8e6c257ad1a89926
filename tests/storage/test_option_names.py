"""Storage options by the names of object_store and deltalake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pytest

import lakelog
from lakelog.errors import InvalidInputError, UnavailableError
from lakelog.redaction import redact
from lakelog.storage import open_store

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "s3://b/t",
        {
            "AWS_ACCESS_KEY_ID": "k",
            "aws_secret_access_key": "s",
            "AWS_SESSION_TOKEN": "t",
            "AWS_REGION": "eu-west-1",
            "AWS_ENDPOINT_URL": "http://localhost:1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
            "aws_skip_signature": "false",
        },
        {
            "key": "k",
            "secret": "s",
            "token": "t",
            "client_kwargs": {"region_name": "eu-west-1"},
            "endpoint_url": "http://localhost:1",
            "anon": False,
        },
    ),
    (
        "s3a://b/t",
        {"region": "us-east-1", "client_kwargs": {"verify": False}, "key": "k"},
        {"client_kwargs": {"region_name": "us-east-1", "verify": False}, "key": "k"},
    ),
    (
        "abfs://c@acc.dfs.core.windows.net/t",
        {
            "azure_storage_account_name": "acc",
            "AZURE_STORAGE_SAS_KEY": "sig=1",
            "azure_tenant_id": "i",
        },
        {"account_name": "acc", "sas_token": "sig=1", "tenant_id": "i"},
    ),
    ("gs://b/t", {"google_service_account": __file__}, {"token": __file__}),
    (
        "gs://b/t",
        {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "p"}'},
        {"token": {"private_key": "p"}},
    ),
    (
        "gs://b/t",
        {"google_service_account_key": {"private_key": "p"}},
        {"token": {"private_key": "p"}},
    ),
    ("gs://b/t", {"google_skip_signature": "true"}, {"token": "anon"}),
]


class PassedError(ValueError):
    """Ends the opening once the driver's options are known."""


@pytest.mark.parametrize(("url", "given", "passed"), CASES, ids=[str(n) for n in range(len(CASES))])
def test_options_are_translated_to_the_names_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, url: str, given: dict[str, Any], passed: dict[str, Any]
) -> None:
    seen: dict[str, Any] = {}

    def url_to_fs(_url: str, **options: Any) -> None:
        seen.update(options)
        raise PassedError

    monkeypatch.setattr(fsspec.core, "url_to_fs", url_to_fs)
    before = dict(given)
    with pytest.raises(InvalidInputError, match="cannot be opened"):
        open_store(url, given)
    assert seen.items() >= passed.items()
    assert not [name for name in seen if name.lower().startswith(("aws_", "azure_", "google_"))]
    assert given == before
    if url == "s3://b/t":
        assert seen["config_kwargs"]["s3"] == {"addressing_style": "path"}


@pytest.mark.parametrize(
    "given",
    [
        {"AWS_ACCESS_KEY_ID": "a", "key": "b"},
        {"AWS_REGION": "a", "aws_default_region": "b"},
        {"AWS_REGION": "a", "client_kwargs": {"region_name": "b"}},
    ],
)
def test_options_with_the_same_meaning_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="same meaning"):
        open_store("s3://b/t", given)


def test_secrets_are_redacted_under_every_option_name() -> None:
    with pytest.raises(InvalidInputError):
        open_store(
            "abfs://c/t",
            {"azure_storage_sas_key": "s3cr3t-signature", "nonsense://": 1, "account_name": ""},
        )
    assert "s3cr3t" not in redact("failed with s3cr3t-signature")


S3: dict[str, Any] = {
    "key": "k",
    "secret": "s",
    "endpoint_url": "http://127.0.0.1:9",
    "region": "us-east-1",
    "config_kwargs": {"retries": {"max_attempts": 0}},
}


@pytest.mark.parametrize(
    ("location", "options", "reason"),
    [
        ("s3://b/t", S3 | {"regoin": "x"}, "'regoin'"),
        ("s3://b/t", S3 | {"client_kwargs": {"regoin": "x"}}, "'regoin'"),
        ("s3://b/t", S3 | {"endpoint_url": "127.0.0.1:9"}, "Invalid endpoint: 127.0.0.1:9"),
        ("s3://b/t", S3 | {"secret": None}, "missing: aws_secret_access_key"),
        ("s3://b/t", S3 | {"profile": "nope"}, r"profile \(nope\)"),
        ("gs://b/t", {"google_service_account_key": '{"a": "b"}'}, "missing fields .*client_email"),
        ("gs://b/t", {"google_service_account_key": "{"}, "google_service_account_key is not"),
        (
            "gs://b/t",
            {"google_application_credentials": "/no/such.json"},
            "option google_application_credentials is not valid: .* existing file",
        ),
    ],
    ids=["name", "nested name", "endpoint", "no secret", "profile", "account", "JSON", "path"],
)
def test_wrong_name_or_value_of_an_option_is_invalid_input(
    location: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason) as caught:
        lakelog.open(location, storage_options=options)
    assert caught.value.path == location
    assert "storage_options" in str(caught.value.hint)


def test_valid_options_of_a_store_that_does_not_answer_are_not_invalid_input() -> None:
    with pytest.raises(UnavailableError, match="EndpointConnectionError"):
        lakelog.open("s3://b/t", storage_options=S3)


@pytest.mark.parametrize("verb", ["clone", "replicate"])
def test_failure_of_a_destination_without_options_names_it_and_the_options(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    table = lakelog.create(str(tmp_path / "orders"), {"id": pl.Int64}, upkeep=False)
    table.checkpoint()
    with pytest.raises(UnavailableError, match="NoCredentialsError") as caught:
        getattr(table, verb)(f"s3://b/{verb}")
    assert caught.value.table == f"s3://b/{verb}"
    assert re.search(r"storage_options=.*--to-option", str(caught.value.hint))
