"""Reads a historic log in place, without writing."""

from __future__ import annotations

import os
import posixpath
from functools import partial

import numpy as np

from lakelog.errors import InvalidInputError, NotFoundError
from lakelog.wal.disk import Disk, LocalDisk
from lakelog.wal.handle import disk_errors
from lakelog.wal.historic import continuity, spec003
from lakelog.wal.historic.detect import check_named, detect, historic_names
from lakelog.wal.historic.log import FORMATS, HistoricFormat, HistoricLog
from lakelog.wal.historic.spans import Bytes
from lakelog.wal.threads import in_threads


def read_historic(
    path: str | os.PathLike[str],
    format: HistoricFormat | None = None,
    *,
    strict: bool = True,
    missing_ok: bool = False,
    disk: Disk | None = None,
) -> HistoricLog:
    """Read a log that one of the programs of specifications 002 and 003 wrote.

    Args:
        path: Its folder (files ``000001.wal`` and so on, or ``wal.log``), or one file of any name.
        format: ``002``, ``003`` (without checksums) or ``003-crc``; None shows them apart by
            what the files hold, and refuses where they cannot be distinguished for sure.
        strict: Refuse a log that is damaged before its end. False takes what is before the damage,
            and ``findings`` says what was left.
        missing_ok: Take a file or folder that does not exist, or a folder without a log, for an
            empty log, as both programs do.
        disk: Where it is; the local disk by default.

    Returns:
        Its records and what is to be said about them. A cut append at the end, and a batch that
        was not finished, are no damage: they are left out and reported. All of the log is in
        memory, about twice while it is read.

    Raises:
        NotFoundError: The file does not exist, or no historic log in the folder, and `missing_ok`
            is false.
        InvalidInputError: The format cannot be determined, is unknown, or is not the one that is
            named.
        WalCorruptionError: The log is damaged, and `strict`.
        UnavailableError: A file cannot be read.
        UnsupportedError: A record has 2 GiB or more.
    """
    if format is not None and format not in FORMATS:
        expected = ", ".join(FORMATS)
        raise InvalidInputError("unknown format", expected=expected, found=format)
    disk = disk or LocalDisk()
    try:
        files = in_threads(partial(_read, disk), _paths(disk, os.fspath(path)))
    except NotFoundError:
        if not missing_ok:
            raise
        return _decode([(os.fspath(path), np.zeros(0, np.uint8))], format or "003")
    log = decode(files, format)
    if strict:
        log.check()
    return log


def names_in(disk: Disk, path: str) -> list[str] | None:
    """The names in a folder; None where it is a file.

    Raises:
        NotFoundError: There is neither.
        UnavailableError: It cannot be read.
    """
    with disk_errors("the folder cannot be read", path, missing="file or folder not found"):
        try:
            return disk.list(path)
        except NotADirectoryError:
            return None


def _paths(disk: Disk, path: str) -> list[str]:
    """The files of a historic log, in its order."""
    names = names_in(disk, path)
    if names is None:
        return [path]
    found = historic_names(names)
    if not found:
        raise NotFoundError(
            "historic log not found", path=path, expected="000001.wal and so on, or wal.log"
        )
    return [posixpath.join(path, name) for name in found]


def _read(disk: Disk, path: str) -> tuple[str, Bytes]:
    """Path and bytes of a file."""
    with disk_errors("the file cannot be read", path, missing="file not found"):
        return path, np.frombuffer(disk.read(path), dtype=np.uint8)


def decode(files: list[tuple[str, Bytes]], format: HistoricFormat | None) -> HistoricLog:
    """The log that files hold.

    Raises:
        InvalidInputError: The format is not named and cannot be determined, or is not the one that
            is named, or is of a single file and there are more.
    """
    if format is None:
        return _decode(files, detect(files))
    log = _decode(files, format)
    if not log.records.num_rows and any(len(data) for _, data in files):
        check_named(files, format)
    return log


def _decode(files: list[tuple[str, Bytes]], format: HistoricFormat) -> HistoricLog:
    if format == "002":
        return continuity.decode(files)
    if len(files) != 1:
        raise InvalidInputError(
            "a log of specification 003 is one file",
            found=f"{len(files)} files",
            hint="pass one file, or the format 002",
        )
    return spec003.decode(*files[0], is_checked=format == "003-crc")
