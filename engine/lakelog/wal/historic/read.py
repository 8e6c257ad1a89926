"""Detects the format of a historic log from its contents, and reads it in place."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from functools import partial

import numpy as np

from lakelog.errors import InvalidInputError, NotFoundError
from lakelog.wal.disk import Disk, LocalDisk, disk_errors
from lakelog.wal.frames import SEGMENT_MAGIC
from lakelog.wal.historic import spec002, spec003
from lakelog.wal.historic.log import FORMATS, Bytes, HistoricFormat, HistoricLog
from lakelog.wal.segments import NUMBERED_NAME, SINGLE_NAME, in_threads

_LOOK_BYTES = 1 << 20  # evidence is sought in so much of a file's beginning first


def historic_names(names: Sequence[str]) -> list[str]:
    """Of the names in a folder, those of a historic log, in the log's order.

    Example:
        >>> historic_names(["000010.wal", "000009.wal", "notes.txt", "00000000000000000001.wal"])
        ['000009.wal', '000010.wal']
    """
    numbered: dict[int, str] = {}
    for name in sorted(names):
        match = NUMBERED_NAME.fullmatch(name)
        if match is None:
            continue
        other = numbered.setdefault(int(match[1]), name)
        if other != name:
            raise InvalidInputError(
                "two files of a historic log have the same number",
                found=f"{other}, {name}",
                hint="keep the file that belongs to the log, under a name of six digits",
            )
    if SINGLE_NAME not in names:
        return [numbered[number] for number in sorted(numbered)]
    if numbered:
        raise InvalidInputError(
            f"two logs were found: {SINGLE_NAME} and numbered files",
            found=f"{SINGLE_NAME}, {numbered[min(numbered)]}",
            hint=f"rename the file to {SINGLE_NAME}, or move the two logs to separate folders",
        )
    return [SINGLE_NAME]


def detect(files: Sequence[tuple[str, Bytes]]) -> HistoricFormat:
    """The format of a log.

    A format is taken where the files begin with records that it can prove: by checksum, or, for
    003 without checksums, by lengths and spelling up to the end of the file or to a cut append,
    with no sign of the others. An empty log is of the format that its name speaks of.
    """
    filled = [(path, data) for path, data in files if len(data)]
    if not filled:
        path = files[0][0] if files else ""
        return "003" if path.endswith(SINGLE_NAME) else "002"
    path, data = filled[0]
    if data[: len(SEGMENT_MAGIC)].tobytes() == SEGMENT_MAGIC:
        raise InvalidInputError(
            "this file is a segment of a log of the current format, which is a folder",
            path=path,
            hint="pass the folder that contains it",
        )
    head = data[:_LOOK_BYTES]
    if len(spec002.read_run(head, 0).seqs):
        return "002"
    if spec003.covered(head, is_checked=True)[0]:
        return "003-crc"
    is_proved = [
        any(spec002.next_record(data, 0) is not None for _, data in filled),
        spec003.next_checked(data, 0) is not None,
    ]
    records, end = spec003.covered(data, is_checked=False)
    is_plain = len(filled) == 1 and records > 0 and end > 0 and _has_keys(data)
    if is_plain and not any(is_proved):
        return "003"
    if not is_plain and any(is_proved) and not all(is_proved):
        return "002" if is_proved[0] else "003-crc"
    raise InvalidInputError(
        "the format of the log cannot be determined",
        path=path,
        expected="a write-ahead log of specification " + ", ".join(FORMATS),
        hint="pass the format, such as format='003', if you know it",
    )


def _check_named(files: Sequence[tuple[str, Bytes]], format: HistoricFormat) -> None:
    """Refuse a named format that no record was found of, where the bytes prove another one."""
    try:
        proved = detect(files)
    except InvalidInputError:
        return
    if proved != format:
        raise InvalidInputError(
            "the log does not have the requested format",
            path=files[0][0],
            expected=f"a write-ahead log of specification {format}",
            found=f"one of specification {proved}",
            hint="omit format, or pass the detected one",
        )


def _has_keys(data: Bytes) -> bool:
    """Whether the first record of specification 003 has a key; zero bytes look like none."""
    return bool(data[:4].any())


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
        _check_named(files, format)
    return log


def _decode(files: list[tuple[str, Bytes]], format: HistoricFormat) -> HistoricLog:
    if format == "002":
        return spec002.decode(files)
    if len(files) != 1:
        raise InvalidInputError(
            "a log of specification 003 is one file",
            found=f"{len(files)} files",
            hint="pass one file, or the format 002",
        )
    return spec003.decode(*files[0], is_checked=format == "003-crc")
