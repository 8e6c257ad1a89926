"""From a location to a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from lakelog.errors import InvalidInputError, MissingDependencyError, UnavailableError
from lakelog.storage.base import LogStore
from lakelog.storage.local import LocalStore

_EXTRAS = {"s3": "s3", "s3a": "s3"}


def open_store(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> LogStore:
    """The store of a location: a local path, a ``file:`` URL, or any fsspec URL.

    Args:
        location: Path or URL of the table, not of its log folder.
        storage_options: Passed to the fsspec filesystem; not used on local disk.

    Raises:
        InvalidInputError: The location is empty, or its protocol is unknown.
        MissingDependencyError: The protocol's driver is not installed.
        UnavailableError: The driver refuses the options.
    """
    text = os.fspath(location)
    if not text:
        raise InvalidInputError("the location is empty", expected="a path or a URL")
    if text.startswith("file:"):
        return LocalStore(unquote(urlsplit(text).path))
    # A colon alone is legal in a local path; only ://, or a chained URL, names a protocol.
    if "://" not in text and "::" not in text:
        return LocalStore(text)
    return _open_remote(text, dict(storage_options or {}))


def _open_remote(url: str, options: dict[str, Any]) -> LogStore:
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    from lakelog.storage.memory import MemoryStore
    from lakelog.storage.remote import FsspecStore

    protocol = url.split("://", 1)[0].split("::", 1)[0]
    # gcsfs looks the bucket type up over gRPC unless told not to, and stalls where that is closed.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    try:
        filesystem, base = fsspec.core.url_to_fs(url, **options)
    except ImportError as cause:
        extra = _EXTRAS.get(protocol)
        raise MissingDependencyError(
            f"no driver for {protocol}:// is installed",
            path=url,
            found=str(cause),
            hint=f"pip install 'lakelog[{extra}]'" if extra else f"pip install {protocol}fs",
        ) from cause
    except ValueError as cause:
        raise InvalidInputError(
            f"the location cannot be opened: {cause}",
            path=url,
            expected="a protocol that fsspec knows, and options that its driver takes",
        ) from cause
    except Exception as cause:
        raise UnavailableError(
            f"the store cannot be opened: {type(cause).__name__}: {cause}",
            path=url,
            hint="check storage_options and credentials",
        ) from cause
    if type(filesystem) is MemoryFileSystem:
        return MemoryStore(filesystem, base, url)
    return FsspecStore(filesystem, base, url)
