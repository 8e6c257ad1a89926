"""Storage options by the names of object_store and deltalake."""

from __future__ import annotations

from typing import Any

import fsspec
import pytest

from lakelog.errors import InvalidInputError
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
    ("gs://b/t", {"google_service_account": "/a.json"}, {"token": "/a.json"}),
    (
        "gs://b/t",
        {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"private_key": "p"}'},
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
