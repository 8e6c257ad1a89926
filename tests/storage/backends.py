"""The stores under test: how each is reached, over a real server on loopback if there is one."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import hmac
import http.client
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from lakelog.storage import LogStore, open_store
from tests.storage import servers
from tests.storage.gcs_double import GcsDouble, gcs_double

# gcsfs reads this on import: its class for zonal buckets queries the type of a bucket over gRPC,
# and stalls for a minute if no server answers.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

BUCKET = "tables"

# Azurite's account, which is the same everywhere and published with it.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

_SEEDERS = 4

Options = dict[str, Any]


@dataclass(frozen=True)
class Backend:
    """One kind of store.

    Attributes:
        name: Its name, for messages.
        location: URL or folder that contains the tables.
        endpoint: URL of its server, or empty.
        options_of: Storage options of an endpoint.
        seed: Puts many files at once below a table's location: names to contents.
        log: Output file of its server, if it is a process.
    """

    name: str
    location: str
    endpoint: str
    options_of: Callable[[str], Options]
    seed: Callable[[str, Mapping[str, bytes]], None]
    log: servers.Server | None = field(default=None, compare=False)

    def fresh(self) -> str:
        """A location that no other test uses."""
        return f"{self.location}/{uuid.uuid4().hex}"

    @property
    def options(self) -> Options:
        """Storage options that reach the server."""
        return self.options_of(self.endpoint)

    def open(self, location: str) -> LogStore:
        """The store of a location."""
        return open_store(location, self.options)

    def unfinished(self, location: str) -> int:
        """Number of uploads whose parts the server still stores, if it can be queried."""
        filesystem: Any = getattr(self.open(location), "_filesystem", None)
        if hasattr(filesystem, "call_s3"):
            answer = filesystem.call_s3("list_multipart_uploads", Bucket=BUCKET)
            key = location.removeprefix(f"s3://{BUCKET}/")
            return sum(each["Key"].startswith(key) for each in answer.get("Uploads", ()))
        return 0

    def through(self, endpoint: str, **options: Any) -> Backend:
        """The same store through another address, such as a proxy, with further options."""
        options_of = self.options_of
        return replace(self, endpoint=endpoint, options_of=lambda url: options_of(url) | options)


# --- without a server ----------------------------------------------------------------------------


def local(folder: Path) -> Backend:
    """Local disk."""

    def seed(location: str, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            path = Path(location, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    return Backend("local", str(folder), "", lambda _: {}, seed)


def memory() -> Backend:
    """fsspec's ``memory://``."""

    def seed(location: str, files: Mapping[str, bytes]) -> None:
        store = open_store(location)
        for name, data in files.items():
            store.put(name, data)

    return Backend("memory", "memory://tables", "", lambda _: {}, seed)


# --- S3 ------------------------------------------------------------------------------------------


def s3_options(endpoint: str) -> Options:
    """Storage options of an S3 emulator."""
    return {
        "key": "testing",
        "secret": "testing",
        "endpoint_url": endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
    }


def s3(server: servers.Server) -> Backend:
    """An S3 emulator, with a bucket."""
    _request(server.url, "PUT", f"/{BUCKET}", b"", {})

    def seed(location: str, files: Mapping[str, bytes]) -> None:
        prefix = location.removeprefix("s3:/")
        _put_all(server.url, lambda name: f"{quote(f'{prefix}/{name}')}", files, {})

    return Backend(server.name, f"s3://{BUCKET}", server.url, s3_options, seed, server)


# --- Azure ---------------------------------------------------------------------------------------


def azure_options(endpoint: str) -> Options:
    """Storage options of Azurite."""
    parts = {
        "DefaultEndpointsProtocol": "http",
        "AccountName": AZURE_ACCOUNT,
        "AccountKey": AZURE_KEY,
        "BlobEndpoint": f"{endpoint}/{AZURE_ACCOUNT}",
    }
    return {"connection_string": "".join(f"{k}={v};" for k, v in parts.items())}


def azure(server: servers.Server) -> Backend:
    """Azurite, with a container."""
    token = _account_token()
    target = f"/{AZURE_ACCOUNT}/{BUCKET}?restype=container&{token}"
    _request(server.url, "PUT", target, b"", {})

    def seed(location: str, files: Mapping[str, bytes]) -> None:
        prefix = f"/{AZURE_ACCOUNT}/{location.removeprefix('az://')}"
        _put_all(
            server.url,
            lambda name: f"{quote(f'{prefix}/{name}')}?{token}",
            files,
            {"x-ms-blob-type": "BlockBlob"},
        )

    return Backend("azurite", f"az://{BUCKET}", server.url, azure_options, seed, server)


def _account_token() -> str:
    """A shared access signature with all permissions, so that plain HTTP requests can seed."""
    expiry = (dt.datetime.now(dt.UTC) + dt.timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    version = "2021-06-08"
    fields = {"sp": "rwdlac", "ss": "b", "srt": "sco", "se": expiry, "sv": version}
    # Account, permissions, services, resource types, start, expiry, addresses, protocol, version,
    # encryption scope: each on its line.
    text = f"{AZURE_ACCOUNT}\nrwdlac\nb\nsco\n\n{expiry}\n\n\n{version}\n\n"
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    return urlencode({**fields, "sig": base64.b64encode(digest).decode()})


# --- GCS -----------------------------------------------------------------------------------------


def gcs_options(endpoint: str) -> Options:
    """Storage options of the GCS double."""
    return {"endpoint_url": endpoint, "token": "anon"}


def gcs(double: GcsDouble) -> Backend:
    """The GCS double, with a bucket."""
    _request(double.url, "POST", "/storage/v1/b", b'{"name": "%s"}' % BUCKET.encode(), {})

    def seed(location: str, files: Mapping[str, bytes]) -> None:
        prefix = location.removeprefix(f"gs://{BUCKET}/")
        double.fill(BUCKET, {f"{prefix}/{name}": data for name, data in files.items()})

    return Backend("gcs double", f"gs://{BUCKET}", double.url, gcs_options, seed)


# --- starting ------------------------------------------------------------------------------------


@contextlib.contextmanager
def starting(name: str, folder: Path) -> Iterator[Backend]:
    """The backend of that name; its server runs until the block ends."""
    with contextlib.ExitStack() as stack:
        if name == "local":
            yield local(folder)
        elif name == "memory":
            yield memory()
        elif name == "moto":
            yield s3(stack.enter_context(servers.moto(folder)))
        elif name == "ministack":
            yield s3(stack.enter_context(servers.ministack(folder)))
        elif name == "azurite":
            yield azure(stack.enter_context(servers.azurite(folder)))
        else:
            assert name == "gcs"
            yield gcs(stack.enter_context(gcs_double()))


def _put_all(
    endpoint: str,
    target: Callable[[str], str],
    files: Mapping[str, bytes],
    headers: Mapping[str, str],
) -> None:
    items = list(files.items())

    def put(share: list[tuple[str, bytes]]) -> None:
        with contextlib.closing(_connect(endpoint)) as connection:
            for name, data in share:
                _send(connection, "PUT", target(name), data, headers)

    with ThreadPoolExecutor(_SEEDERS) as pool:
        list(pool.map(put, [items[i::_SEEDERS] for i in range(_SEEDERS)]))


def _connect(endpoint: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=30)


def _request(
    endpoint: str, method: str, target: str, data: bytes, headers: Mapping[str, str]
) -> None:
    with contextlib.closing(_connect(endpoint)) as connection:
        _send(connection, method, target, data, headers)


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    data: bytes,
    headers: Mapping[str, str],
) -> None:
    content_type = {"Content-Type": "application/octet-stream"}
    connection.request(method, target, data, {**content_type, **headers})
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status in {200, 201}, (method, target, answer.status, body)
