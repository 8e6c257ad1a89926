"""Restricts the files that a log may refer to: the table's folder, and locations that the caller
allows.

A path in a log is relative to the table, or absolute: a URL, or a path on the table's store, as in
a shallow clone. ``..`` is rejected. An absolute path into the folder equals the relative one. Every
other path is external: it is opened only if the caller allows it, and never with the
`storage_options` of another store, which may contain credentials.

Source: Delta protocol, Add File and Remove File; Deletion Vectors.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

from lakelog.errors import ExternalPathError, InvalidInputError
from lakelog.input_validation import local_path, path_text

LOCAL = "file://"
"""`Address.store` of local disk."""

Allowed: TypeAlias = bool | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Type of ``allow_external`` of `lakelog.open`."""

_SEPARATORS = re.compile(r"[/\\]" if os.name == "nt" else "/")
_ENCODED_DOT = re.compile("%2e", re.IGNORECASE)
_ENCODED_SEPARATOR = re.compile(r"\\|%5c|%2f", re.IGNORECASE)
_OWN_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "az": "abfs"}
_HINT = (
    "if you trust the location, pass lakelog.open(…, allow_external=[…]) with its URL "
    "or path, or allow_external=True for all locations; on the command line, --allow-external"
)

_FILE_URL = re.compile("file:|(?i:file)://")
_SCHEME_NAME = "[A-Za-z][A-Za-z0-9+.-]*"
_URL = re.compile(f"({_SCHEME_NAME}):/")

SCHEME = f"{_SCHEME_NAME}:"
"""Pattern of the beginning of an absolute URL."""

ABSOLUTE = rf"^({SCHEME})?/"
"""Pattern of the paths in a log that are absolute."""


class Address(NamedTuple):
    """Location of a file or folder: canonical store, path without outer slashes, and root."""

    store: str
    path: str
    root: str

    def __str__(self) -> str:
        return f"{self.store}/{self.path}"

    def name_of(self, other: Address) -> str | None:
        """The path of another address below this folder, by whole parts, or None."""
        if self.store != other.store:
            return None
        below = f"{self.path}/" if self.path else ""
        return other.path[len(below) :] or None if other.path.startswith(below) else None


@dataclass(frozen=True)
class External:
    """The files that may be opened outside a table's folder; created with `of`."""

    everything: bool = False
    folders: tuple[Address, ...] = ()

    @staticmethod
    def of(allow_external: Allowed) -> External:
        """From the argument of `lakelog.open`."""
        if isinstance(allow_external, bool):
            return External(allow_external)
        given: Any = allow_external
        if isinstance(given, str | os.PathLike):
            given = [given]
        is_valid = isinstance(given, list | tuple | set | frozenset) and all(
            isinstance(each, str | os.PathLike) for each in given
        )
        texts = [path_text("allow_external", each) for each in given] if is_valid else [""]
        if not all(texts):
            raise InvalidInputError(
                "allow_external is invalid",
                expected="True, False, or a list of URLs or paths of folders",
                found=repr(allow_external)[:200],
            )
        try:
            folders = [a for each in texts for a in _addresses_of(local_path(each))]
        except InvalidInputError:
            raise
        except ValueError as cause:  # a NUL character or a lone surrogate
            raise InvalidInputError(
                "allow_external contains a folder that cannot exist",
                expected="URLs or paths of folders",
                found=repr(allow_external)[:200],
            ) from cause
        return External(folders=tuple(folders))

    def and_below(self, location: str) -> External:
        """These files, and those below a location."""
        return replace(self, folders=(*self.folders, *_addresses_of(location)))

    def allows(self, address: Address) -> bool:
        """Whether a file may be opened."""
        return self.everything or any(folder.name_of(address) for folder in self.folders)


NOTHING = External()
"""No file outside the table's folder."""


@dataclass(frozen=True)
class AllowedLocations:
    """The locations that the paths in a table's log may refer to."""

    location: str
    external: External = NOTHING
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    _folders: tuple[Address, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_folders", _addresses_of(self.location))

    def resolve(self, path: str) -> str | Address:
        """Resolve a path of the log to one relative to the table, or to an allowed address."""
        if _is_relative(path):
            return path
        require_contained(path)
        address = self._address(path)
        for folder in self._folders:
            if (name := folder.name_of(address)) is not None:
                return name
        if self.external.allows(address):
            return address
        raise ExternalPathError(
            (
                "a file that the table's log refers to is outside the table's folder, and "
                "was not opened"
            ),
            path=path,
            expected=f"a file below {self.location}",
            found=str(address),
            hint=_HINT,
        )

    def absolute(self, path: str) -> str:
        """The unencoded URL of a path in the log; a local one has a single slash
        (``file:/data/t``), the spelling that Delta on Spark finds again.
        """
        require_contained(path)
        own = self._folders[0]
        if _is_relative(path):
            address = own._replace(path=f"{own.path}/{path}".strip("/"))
        else:
            address = self._address(path)
        return f"{'file:' if address.store == LOCAL else address.root}/{address.path}"

    def options_for(self, address: Address) -> Mapping[str, Any] | None:
        """Storage options for an allowed address: empty unless it is on the table's own store."""
        own = address.store == self._folders[0].store and address.store != LOCAL
        return self.storage_options if own else None

    def _address(self, path: str) -> Address:
        own = self._folders[0]
        if _URL.match(path) or own.store == LOCAL:
            return _address(path)
        return Address(own.store, path.lstrip("/"), own.root)


def _addresses_of(location: str) -> tuple[Address, ...]:
    """The addresses of an allowed folder; of a local one also with links resolved."""
    path = path_of_file_url(location)
    if path is not None:
        location = path
    elif "::" in location:  # a chain of drivers: paths in a log are never below it
        return (Address(location, "", location),)
    elif "://" in location:
        require_contained(location)
        return (_address(location),)
    found = dict.fromkeys((os.path.abspath(location), os.path.realpath(location)))
    return tuple(_address(each) for each in found)


def path_of_file_url(text: str) -> str | None:
    """The decoded path of a ``file:`` URL, None for another location. Raises InvalidInputError for
    a URL whose path is not certain: programs differ in the meaning of ``#`` and ``?``.
    """
    if _FILE_URL.match(text) is None:
        return None
    host, path = "", text[len("file:") :]
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        path = slash + path
    found = {"a host": host.lower() not in {"", "localhost"}, "no path": not path}
    found |= {"the character #": "#" in path, "the character ?": "?" in path}
    problem = next((name for name, is_found in found.items() if is_found), None)
    if problem is not None:
        raise InvalidInputError(
            "the file: URL is not valid",
            path=text,
            expected="file:///path, with %23 for # and %3F for ?",
            found=problem,
            hint="pass the path without file:",
        )
    return os.fsdecode(unquote_to_bytes(os.fsencode(path)))


def _is_relative(path: str) -> bool:
    if path.startswith("/") or (":/" in path and _URL.match(path)):
        return False
    return os.name != "nt" or not (path.startswith("\\") or os.path.splitdrive(path)[0])


def _address(text: str) -> Address:
    """Address of an absolute path on local disk, or of a URL; neither is decoded."""
    url = _URL.match(text)
    if url is None:
        return Address(LOCAL, _normalised(text), "/")
    scheme, rest = url[1].lower(), text[url.end() - 1 :]
    authority = ""
    if rest.startswith("//"):
        authority, _, rest = rest[2:].partition("/")
    if scheme == "file":
        return Address(LOCAL, _normalised(f"/{rest}"), "/")
    store = f"{_OWN_SCHEMES.get(scheme, scheme)}://{authority}"
    return Address(store, rest.strip("/"), f"{scheme}://{authority}")


def _normalised(path: str) -> str:
    # POSIX allows a special meaning of two leading slashes, and abspath keeps them.
    return os.path.abspath("/" + path.lstrip("/") if path.startswith("/") else path).strip("/")


def require_contained(path: str, *, remote: bool = False, decoded: bool = False) -> None:
    """Raise for a path with a part ``..``, and if `decoded` for one that leads out of its folder
    on a server that decodes it once more.
    """
    text = _ENCODED_DOT.sub(".", path) if remote and "%" in path else path
    has_dots = ".." in text and ".." in _SEPARATORS.split(text)
    if has_dots or (decoded and _leads_out(text)):
        raise ExternalPathError(
            "a path has a part '..', which leads out of the table's folder; it was not opened",
            path=path,
            expected="a path below the table's folder, without '..'",
            hint="write the file into the table, and remove this path from it",
        )
    if "\0" in path:
        raise ExternalPathError(
            "a path contains a NUL character",
            path=path.replace("\0", "\\0"),
            expected="a path below the table's folder",
            hint="remove this path from the table",
        )


def _leads_out(path: str) -> bool:
    depth = 0
    for part in _ENCODED_SEPARATOR.sub("/", path).split("/") if ".." in path else ():
        depth += -1 if part == ".." else part not in {"", "."}
        if depth < 0:
            return True
    return False


def require_no_links(root: str, path: str) -> None:
    """Raise if a folder between the table's folder and a file to change is a symbolic link."""
    at = path.find("/")
    while at != -1:
        folder = f"{root}/{path[:at]}"
        try:
            is_link = stat.S_ISLNK(os.lstat(folder).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError:  # the change itself reports it
            return
        if is_link:
            raise ExternalPathError(
                "a folder inside the table is a symbolic link, and nothing is written, moved or "
                "deleted through it",
                path=path,
                found=f"{folder} -> {os.path.realpath(folder)}",
                hint="use a real folder, or a mount, instead of the link",
            )
        at = path.find("/", at + 1)
