"""Checks where logs may be: not in the directory of a keyed store or an Ingestor, and not in the
folder of a table.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from itertools import islice

from lakelog.errors import InvalidInputError
from lakelog.wal.disk import Disk, LocalDisk
from lakelog.wal.segments import LOCK_NAME, is_historic, named_seq

LOG_FOLDER = "wal"
"""The folder of the log in the directory of a keyed store or an Ingestor."""

STORE_FILE, INGEST_FILE = "manifest.json", "ingest.json"
"""The state files of a keyed store and of an Ingestor."""

STORE_FORMAT, INGEST_FORMAT = "lakelog keyed store", "lakelog ingest directory"
"""The field ``format`` of each state file: other programs have files of the same names."""

_OWNERS = {
    STORE_FILE: ("a keyed store", STORE_FORMAT),
    INGEST_FILE: ("an Ingestor", INGEST_FORMAT),
}

_MOST_NAMES = 100_000
_LISTINGS = 3
"""A listing while a writer replaces a segment may have neither."""


def names_in(disk: Disk, directory: str) -> list[str]:
    """The names of the files in a directory; none if it does not exist."""
    try:
        return disk.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def segments_in(names: list[str]) -> list[str]:
    """The names that are segments of a log, of a historic one too."""
    return sorted(name for name in names if named_seq(name) is not None or is_historic(name))


def has_segments(disk: Disk, log_directory: str) -> bool:
    """Whether a directory has a segment of a log, also if another process writes to the log."""
    for _ in range(_LISTINGS):
        if any(named_seq(name) is not None for name in names_in(disk, log_directory)):
            return True
    return False


def require_owner(disk: Disk, directory: str, state_file: str) -> None:
    """Refuse the directory of another owner of a log, which would read the records as its own, and
    delete those that it has stored elsewhere.
    """
    names = names_in(disk, directory)
    for name, (owner, format_text) in _OWNERS.items():
        path = f"{directory}/{name}"
        if name != state_file and name in names and _has_format(disk, path, format_text):
            raise InvalidInputError(
                f"the directory belongs to {owner}, whose log is in its folder {LOG_FOLDER}",
                path=directory,
                expected=f"a new directory, or the one of {_OWNERS[state_file][0]}",
                found=name,
                hint="choose another directory",
            )


def _has_format(disk: Disk, path: str, format_text: str) -> bool:
    try:
        data = disk.read(path).to_pybytes()
    except FileNotFoundError:
        return False
    return f'"{format_text}"'.encode() in data


def require_own_directory(disk: Disk, directory: str) -> None:
    """Before a log is created: refuse a directory whose folder ``wal`` is another log. A keyed
    store with the segments of two logs cannot be opened.
    """
    if segments_in(names_in(disk, directory)):
        return
    log_folder = f"{directory}/{LOG_FOLDER}"
    if segments_in(names_in(disk, log_folder)):
        raise InvalidInputError(
            "the directory belongs to a keyed store or an Ingestor",
            path=directory,
            expected="a new directory, or the one of a write-ahead log",
            found=f"their log, in its folder {LOG_FOLDER}",
            hint="choose another directory; KeyedStore or Ingestor opens this one, and "
            f"WriteAheadLog({log_folder!r}, read_only=True) reads its log",
        )


def require_no_log(folder: str) -> None:
    """Before a table is created: refuse a local folder with a log, a keyed store or an Ingestor in
    it or in a folder below. lakelog's vacuum keeps them, other engines' deletes them.
    """
    near = (folder, os.path.join(folder, LOG_FOLDER))
    for directory, names in _files_below(folder):
        found = segments_in(names)
        if directory not in near and LOCK_NAME not in names:
            # Names of historic segments are too short to be no other program's.
            found = [name for name in found if not is_historic(name)]
        if found:
            raise InvalidInputError(
                "the folder contains a write-ahead log: vacuum of a table would delete its files",
                path=folder,
                expected="a folder without a log, keyed store or Ingestor",
                found=f"{directory}/{found[0]}",
                hint="choose another folder for the table",
            )


def _files_below(folder: str) -> Iterator[tuple[str, list[str]]]:
    """A folder and those below, nearest first, with the names of their files: `_MOST_NAMES` in all,
    because the folder may be large. A link is followed only where the log of a keyed store or an
    Ingestor is. A folder that cannot be listed is skipped: creating the table fails if it is the
    table's own.
    """
    folders, left = deque([folder]), _MOST_NAMES
    while folders and left > 0:
        directory, names = folders.popleft(), []
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in islice(entries, left):
                left -= 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    names.append(entry.name)
        yield directory, names
        if LOG_FOLDER in names:
            log_folder = os.path.join(directory, LOG_FOLDER)
            with contextlib.suppress(OSError):
                yield log_folder, names_in(LocalDisk(), log_folder)
