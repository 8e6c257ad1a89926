"""The registered dialects.

Register your own dialect once, before its tables are opened: `register` (MyDialect()).
"""

from __future__ import annotations

from importlib import import_module

from lakelog.dialects.base import Dialect
from lakelog.dialects.log_folders import FOLDERS
from lakelog.errors import InvalidInputError, TableNotFoundError
from lakelog.storage import LogStore

_LOADED: dict[str, Dialect] = {}
"""Dialects by name; a built-in dialect is imported for the first table that needs it."""


def register(dialect: Dialect) -> None:
    """Register a dialect, replacing one of its name; raises if another has its log folder."""
    for name, folder in FOLDERS.items():
        if name != dialect.name and folder == dialect.log_folder:
            raise InvalidInputError(
                f"the dialect {name!r} has the same log folder",
                expected="a log folder of its own",
                found=dialect.log_folder,
            )
    FOLDERS[dialect.name] = dialect.log_folder
    _LOADED[dialect.name] = dialect


def unregister(name: str) -> None:
    """Remove the dialect `name`; does nothing if it is unknown."""
    FOLDERS.pop(name, None)
    _LOADED.pop(name, None)


def log_folders() -> dict[str, str]:
    """The log folder of every registered dialect by its name, in the order of registration."""
    return dict(FOLDERS)


def registered() -> tuple[Dialect, ...]:
    """Every registered dialect, in the order of registration."""
    return tuple(map(named, FOLDERS))


def named(name: str) -> Dialect:
    """The dialect called `name`; raises InvalidInputError for an unknown one."""
    if name not in FOLDERS:
        raise InvalidInputError("unknown table format", expected=" or ".join(FOLDERS), found=name)
    if name not in _LOADED:
        _LOADED[name] = import_module(f"lakelog.dialects.{name}").DIALECT
    return _LOADED[name]


def detect_dialect(store: LogStore) -> Dialect:
    """The dialect of the log folder; TableNotFoundError for none, InvalidInputError for several."""
    folders = log_folders()
    there = store.has_folders([*folders.values()])
    found = [name for name, is_there in zip(folders, there, strict=True) if is_there]
    if not found:
        raise TableNotFoundError(
            "log folder not found",
            path=store.root,
            expected=" or ".join(folders.values()),
            hint="pass the table's own folder; lakelog.create creates a table",
        )
    if len(found) > 1:
        raise InvalidInputError(
            "the location contains logs of two dialects",
            path=store.root,
            found=", ".join(folders[name] for name in found),
            hint="move one of them to another location",
        )
    return named(found[0])


def without_log_folder(location: str) -> str:
    """The table's folder, if the location is its log folder."""
    trimmed = location.rstrip("/")
    for folder in log_folders().values():
        if trimmed == folder:
            return "."
        if trimmed.endswith("/" + folder):
            above = trimmed[: -len(folder) - 1]
            return above if above and above[-1] != "/" else f"{above}/"  # the root
    return location
