"""Detects the historic format of a log from the contents of its files."""

from __future__ import annotations

from collections.abc import Sequence

from lakelog.errors import InvalidInputError
from lakelog.wal.frames import SEGMENT_MAGIC
from lakelog.wal.historic import spec002, spec003
from lakelog.wal.historic.log import FORMATS, HistoricFormat
from lakelog.wal.historic.spans import Bytes
from lakelog.wal.segments import NUMBERED_NAME, SINGLE_NAME

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


def check_named(files: Sequence[tuple[str, Bytes]], format: HistoricFormat) -> None:
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
