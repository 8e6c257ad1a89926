"""Opens the store of a location."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from lakelog.errors import InvalidInputError, MissingDependencyError, UnavailableError
from lakelog.redaction import register_secrets, scrub
from lakelog.storage.base import LogStore
from lakelog.storage.local import LocalStore

if TYPE_CHECKING:
    from lakelog.storage.cloud import Cloud


class _Driver(NamedTuple):
    """What lakelog brings for an object store's driver; loaded only for who needs it."""

    with_defaults: Callable[[dict[str, Any]], dict[str, Any]]
    cloud: Callable[[], Cloud]
    tune: Callable[[Any], None] = lambda _filesystem: None


def _load_s3() -> _Driver:
    from lakelog.storage import s3

    return _Driver(s3.with_defaults, s3.S3)


def _load_azure() -> _Driver:
    from lakelog.storage import azure

    return _Driver(azure.with_defaults, azure.Azure, azure.shorten_pauses)


def _load_gcs() -> _Driver:
    from lakelog.storage import gcs

    return _Driver(gcs.with_defaults, gcs.Gcs)


class _Kind(NamedTuple):
    """A kind of object store: protocols, package and class of its fsspec driver, loader of
    lakelog's store, and the extra that installs the driver.
    """

    protocols: tuple[str, ...]
    driver: tuple[str, str]
    load: Callable[[], _Driver]
    extra: str | None = None


_KINDS = (
    _Kind(("s3", "s3a"), ("s3fs", "S3FileSystem"), _load_s3, "s3"),
    _Kind(("abfs", "abfss", "az"), ("adlfs", "AzureBlobFileSystem"), _load_azure),
    _Kind(("gs", "gcs"), ("gcsfs", "GCSFileSystem"), _load_gcs),
)


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
    register_secrets(storage_options)
    require_location(text)
    if text.startswith("file:"):
        return LocalStore(unquote(urlsplit(text).path))
    # A colon alone is legal in a local path; only ://, or a chained URL, names a protocol.
    if "://" not in text and "::" not in text:
        return LocalStore(text)
    return _open_remote(text, dict(storage_options or {}))


def require_location(text: str) -> None:
    """Raise InvalidInputError for a text that cannot be a path or a URL: empty, with NUL or a lone
    surrogate.
    """
    if not text:
        raise InvalidInputError("the location must not be empty", expected="a path or a URL")
    if "\0" in text or not _is_text(text):
        raise InvalidInputError(
            "the location is not valid text",
            expected="a path or a URL without NUL characters and lone surrogates",
            found=repr(text)[:200],
        )


def _is_text(location: str) -> bool:
    try:
        os.fsencode(location)  # names of files that are not UTF-8 are spelled with surrogates
    except UnicodeEncodeError:
        return False
    return True


def _open_remote(url: str, options: dict[str, Any]) -> LogStore:
    import fsspec

    protocol = url.split("://", 1)[0].split("::", 1)[0]
    # gcsfs looks the bucket type up over gRPC unless configured not to, and stalls where that is
    # closed.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    kind = next((each for each in _KINDS if protocol in each.protocols), None)
    try:
        if kind is not None:
            # The time-outs that a driver lacks; what the caller gives wins.
            options = kind.load().with_defaults(options)
        filesystem, base = fsspec.core.url_to_fs(url, **options)
    except ImportError as cause:
        extra = kind.extra if kind is not None else None
        raise MissingDependencyError(
            f"no driver for {protocol}:// is installed",
            path=url,
            found=str(cause),
            hint=f"pip install 'lakelog[{extra}]'" if extra else f"pip install {protocol}fs",
        ) from cause
    except ValueError as cause:
        scrub(cause)
        raise InvalidInputError(
            f"the location cannot be opened: {cause}",
            path=url,
            expected="a protocol that fsspec knows, and options that its driver takes",
        ) from cause
    except Exception as cause:
        scrub(cause)
        raise UnavailableError(
            f"the store cannot be opened: {type(cause).__name__}: {cause}",
            path=url,
            hint="check storage_options and credentials",
        ) from cause
    return store_of(filesystem, base, url)


def store_of(filesystem: Any, base: str, root: str) -> LogStore:
    """The store over an fsspec filesystem, chosen by the real driver: another driver that checks
    before writing may be registered for a protocol.
    """
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem

    from lakelog.storage.fsspec_store import FsspecStore, MemoryStore

    if type(filesystem) is LocalFileSystem:
        return LocalStore(base)
    if type(filesystem) is MemoryFileSystem:
        return MemoryStore(filesystem, base, root)
    drivers = {(each.__module__.split(".")[0], each.__name__) for each in type(filesystem).__mro__}
    for kind in _KINDS:
        if kind.driver in drivers:
            from lakelog.storage.cloud import CloudStore

            driver = kind.load()
            driver.tune(filesystem)
            return CloudStore(filesystem, base, root, driver.cloud())
    return FsspecStore(filesystem, base, root)
