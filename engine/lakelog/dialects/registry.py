"""The registered dialects.

Register your own dialect once, before its tables are opened: `register` (MyDialect()).
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from lakelog.dialects.base import Dialect
from lakelog.dialects.log_folders import FOLDERS
from lakelog.errors import InvalidInputError, LakelogError, TableNotFoundError, naming_table
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
    with naming_table(store.root):
        there = store.has_folders([*FOLDERS.values()])
    found = [name for name, is_there in zip(FOLDERS, there, strict=True) if is_there]
    if not found:
        raise _not_found(store, " or ".join(FOLDERS.values()))
    if len(found) > 1:
        raise InvalidInputError(
            "the location contains logs of two dialects",
            path=store.root,
            found=", ".join(FOLDERS[name] for name in found),
            hint="move one of them to another location",
        )
    return named(found[0])


def _not_found(store: LogStore, expected: str) -> TableNotFoundError:
    """The error for a location without a log: files without one, or nothing."""
    names: list[str] = []
    with suppress(LakelogError):  # the missing log is the error
        names = [entry.name for entry in next(iter(store.walk()), [])]
    found, hint = None, _OTHER_FOLDER
    if any(name.endswith(".parquet") for name in names):
        found = "Parquet files without a log"
        hint = "lakelog.convert, or the command lakelog convert, makes a table of these files"
    return TableNotFoundError(
        "log folder not found" if names else "the folder does not exist or is empty",
        path=store.root,
        expected=expected,
        found=found,
        hint=hint,
    )


_OTHER_FOLDER = (
    "pass the table's own folder; in Python, lakelog.create and lakelog.write make a table"
)


def without_log_folder(location: str) -> str:
    """The table's folder, if the location is its log folder."""
    trimmed = location.rstrip("/")
    for folder in FOLDERS.values():
        if trimmed == folder:
            return "."
        if trimmed.endswith("/" + folder):
            above = trimmed[: -len(folder) - 1]
            return above if above and above[-1] != "/" else f"{above}/"  # the root
    return location
