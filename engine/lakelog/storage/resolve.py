"""Opens the store of a location. Storage options have the names of the fsspec driver, or those of
object_store and deltalake.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lakelog.errors import (
    InvalidInputError,
    LakelogError,
    MissingDependencyError,
    UnavailableError,
)
from lakelog.input_validation import local_path, path_text, require_folder
from lakelog.redaction import redact, register_location, register_secrets, scrub
from lakelog.storage.base import LogStore
from lakelog.storage.containment import path_of_file_url
from lakelog.storage.local import LocalStore

if TYPE_CHECKING:
    from lakelog.storage.cloud import Cloud


# Names of the errors, and of their bases, that drivers raise for options when they are opened.
_OPTION_ERRORS = frozenset(
    ("ValueError", "TypeError", "LookupError", "PartialCredentialsError", "ProfileNotFound")
)


class _Driver(NamedTuple):
    """The module of an object store, imported on first use."""

    with_defaults: Callable[[dict[str, Any]], dict[str, Any]]
    cloud: Callable[[], Cloud]
    prepare: Callable[[Any], None] = lambda _filesystem: None


def _load_s3() -> _Driver:
    from lakelog.storage import s3

    return _Driver(s3.with_defaults, s3.S3, s3.make_session)


def _load_azure() -> _Driver:
    from lakelog.storage import azure

    return _Driver(azure.with_defaults, azure.Azure, azure.shorten_pauses)


def _load_gcs() -> _Driver:
    from lakelog.storage import gcs

    return _Driver(gcs.with_defaults, gcs.Gcs)


class _Alias(NamedTuple):
    """An object_store option for fsspec: name (dots for mappings), and conversion or omission."""

    option: str
    convert: Callable[[Any], Any] = lambda value: value


def _is_on(value: Any) -> bool:
    return str(value).strip().lower() in {"true", "1", "yes", "y", "on", "t"}


def _spelled(aliases: Mapping[str, _Alias], *prefixes: str) -> dict[str, _Alias]:
    return {prefix + name: alias for name, alias in aliases.items() for prefix in ("", *prefixes)}


def _existing_path(value: Any) -> str:
    """The path of a file: gcsfs sends one that does not exist to Google, as an access token."""
    path: str = local_path(value)
    if not os.path.isfile(path):
        raise ValueError("it is not the path of an existing file")
    return path


def _as_json(value: Any) -> Any:
    """A JSON text, or the mapping that the command line parsed from one."""
    return value if isinstance(value, Mapping) else json.loads(value)


_UNUSED = _Alias("", lambda _value: None)  # the driver needs no such setting
_TOKEN, _REGION = _Alias("token"), _Alias("client_kwargs.region_name")
_CREDENTIALS = _Alias("token", _existing_path)
_S3 = _spelled(
    {
        "access_key_id": _Alias("key"),
        "secret_access_key": _Alias("secret"),
        "session_token": _TOKEN,
        "token": _TOKEN,
        "region": _REGION,
        "default_region": _REGION,
        "endpoint": _Alias("endpoint_url"),
        "endpoint_url": _Alias("endpoint_url"),
        "skip_signature": _Alias("anon", _is_on),
        "virtual_hosted_style_request": _Alias(
            "config_kwargs.s3",
            lambda value: {"addressing_style": "virtual" if _is_on(value) else "path"},
        ),
        "allow_http": _UNUSED,
        "conditional_put": _UNUSED,
        "s3_allow_unsafe_rename": _UNUSED,
    },
    "aws_",
)
_AZURE = _spelled(
    {
        "account_name": _Alias("account_name"),
        "account_key": _Alias("account_key"),
        "access_key": _Alias("account_key"),
        "sas_token": _Alias("sas_token"),
        "sas_key": _Alias("sas_token"),
        "tenant_id": _Alias("tenant_id"),
        "authority_id": _Alias("tenant_id"),
        "client_id": _Alias("client_id"),
        "client_secret": _Alias("client_secret"),
        "connection_string": _Alias("connection_string"),
        "skip_signature": _Alias("anon", _is_on),
    },
    "azure_storage_",
    "azure_",
)
_GCS = _spelled(
    {
        "service_account": _CREDENTIALS,
        "service_account_path": _CREDENTIALS,
        "application_credentials": _CREDENTIALS,
        "service_account_key": _Alias("token", _as_json),
        "skip_signature": _Alias("token", lambda value: "anon" if _is_on(value) else None),
    },
    "google_",
)


class _Kind(NamedTuple):
    """A kind of object store: `driver` (package, class), options by object_store's names."""

    protocols: tuple[str, ...]
    driver: tuple[str, str]
    load: Callable[[], _Driver]
    aliases: Mapping[str, _Alias]
    extra: str | None = None

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Storage options by the names of the driver; unknown ones are kept."""
        found = {name: v for name, v in given.items() if str(name).lower() not in self.aliases}
        names: dict[str, str] = {}
        for name in given.keys() - found.keys():
            option, convert = self.aliases[name.lower()]
            try:
                value = convert(given[name])
            except (TypeError, ValueError) as cause:
                # The value may be a secret, and is not part of the text.
                scrub(cause)
                raise InvalidInputError(
                    f"the value of the storage option {name} is not valid: {cause}",
                    hint="check the names and values of storage_options",
                ) from cause
            if value is None:
                continue
            outer, _, inner = option.partition(".")
            place = found
            if inner:
                place = found[outer] = dict(found.get(outer) or {})
            if (inner or outer) in place:
                raise InvalidInputError(
                    "two storage options have the same meaning",
                    expected="one of them",
                    found=" and ".join(sorted((name, names.get(option, option)))),
                )
            names[option] = name
            place[inner or outer] = value
        return found


_KINDS = (
    _Kind(("s3", "s3a"), ("s3fs", "S3FileSystem"), _load_s3, _S3, "s3"),
    _Kind(("abfs", "abfss", "az"), ("adlfs", "AzureBlobFileSystem"), _load_azure, _AZURE),
    _Kind(("gs", "gcs"), ("gcsfs", "GCSFileSystem"), _load_gcs, _GCS),
)


def open_store(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> LogStore:
    """The store of a location: a local path, a ``file:`` URL, or any fsspec URL.

    Args:
        location: Path or URL of the table, not of its log folder; ``~`` is the home folder.
        storage_options: Passed to the fsspec filesystem; not used on local disk. Options of S3,
            Azure and Google Cloud Storage may have the names that object_store and deltalake use
            (``AWS_REGION``, ``azure_storage_account_name``), in upper or lower case.

    Raises:
        InvalidInputError: The location is empty or a file, its protocol is unknown, a ``file:``
            URL has a host, ``#`` or ``?``, two options have the same meaning, or the driver rejects
            the name or value of an option.
        MissingDependencyError: The protocol's driver is not installed.
        UnavailableError: The driver failed for another reason, such as the network.
    """
    text = path_text("location", location)
    register_location(text)
    register_secrets(storage_options)
    require_location(text)
    path = path_of_file_url(text)
    if path is not None:
        require_location(path)
        return _open_local(path)
    # A colon alone is legal in a local path; only ://, or a chained URL, indicates a protocol.
    if "://" not in text and "::" not in text:
        return _open_local(local_path(text))
    return _open_remote(text, dict(storage_options or {}))


def _open_local(path: str) -> LocalStore:
    require_folder(
        path,
        "the folder of a table, or one to be created",
        "pass the folder; lakelog.write makes a table of a frame, and lakelog.convert of a folder "
        "of Parquet files",
    )
    return LocalStore(path)


def require_location(text: str) -> None:
    """Raise InvalidInputError for an empty text, or one with NUL or a lone surrogate."""
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
        os.fsencode(location)  # file names that are not UTF-8 are represented with surrogates
    except UnicodeEncodeError:
        return False
    return True


def _open_remote(url: str, options: dict[str, Any]) -> LogStore:
    import fsspec

    protocol = url.split("://", 1)[0].split("::", 1)[0]
    # Otherwise gcsfs queries the bucket type over gRPC, and hangs if that is blocked.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    kind = next((each for each in _KINDS if protocol in each.protocols), None)
    try:
        if kind is not None:
            # Default time-outs; options of the caller take precedence.
            options = kind.load().with_defaults(kind.options(options))
            register_secrets(options)
        filesystem, base = fsspec.core.url_to_fs(url, **options)
        return store_of(filesystem, base, url)
    except ImportError as cause:
        if kind is None:
            package = f"{protocol}fs"
        else:
            package = kind.driver[0] if kind.extra is None else f"'lakelog[{kind.extra}]'"
        raise MissingDependencyError(
            f"no driver for {protocol}:// is installed",
            path=url,
            found=str(cause),
            hint=f"pip install {package}",
        ) from cause
    except LakelogError as error:
        error.path = error.path or redact(url)
        raise
    except Exception as cause:
        from lakelog.storage.conditional import class_names, describe

        if class_names(cause) & _OPTION_ERRORS:
            # gcsfs tries a second format of credentials: the first error has the reason.
            reason = cause.__context__ if isinstance(cause, KeyError) else None
            raise InvalidInputError(
                f"the location cannot be opened: {describe(reason or cause)}",
                path=url,
                expected="a protocol that fsspec knows, and options that its driver takes",
                hint="check the names and values of storage_options",
            ) from cause
        raise UnavailableError(
            f"the store cannot be opened: {describe(cause)}",
            path=url,
            hint="check storage_options and credentials",
        ) from cause


def store_of(filesystem: Any, base: str, root: str) -> LogStore:
    """The store over an fsspec filesystem, by the real driver, which need not be the protocol's."""
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
            driver.prepare(filesystem)
            return CloudStore(filesystem, base, root, driver.cloud())
    return FsspecStore(filesystem, base, root)
