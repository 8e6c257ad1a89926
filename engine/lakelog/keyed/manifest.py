"""The manifest: the current sorted files and the last sequence number that they include.

One small JSON file, replaced as a whole: written under another name, fsynced, renamed, and the
directory fsynced. Its first field is the CRC-32C of the file with the field's digits as zeros.
What the manifest does not name is not a part of the store. `schemas/keyed.md` has every field.

Owns: the manifest's text and its checks. Leaves to others: disks, and the files that it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import google_crc32c
import orjson

from lakelog.errors import CorruptionError, UnsupportedError
from lakelog.keyed.sorted_file import FileFacts

NAME = "manifest.json"
FORMAT_VERSION = 1
DATA_NAME = re.compile(r"(\d{20})\.parquet")
_CHECKSUM = re.compile(rb'\{"crc32c":"([0-9a-f]{8})",')
_ZEROS = b'{"crc32c":"00000000",'
_INTEGERS = ("rows", "tombstones", "sizeBytes", "minSeqNum", "maxSeqNum", "footerCrc32c")


def data_name(number: int) -> str:
    """The name of a sorted file.

    >>> data_name(7)
    '00000000000000000007.parquet'
    """
    return f"{number:020}.parquet"


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """The state of the files.

    Attributes:
        generation: Greater than that of the manifest before, and than the number of any file that
            was ever named; 0 where none was published.
        flushed_seq_num: All records up to it, inclusive, are in the files, and none after it.
        files: The files by name, oldest first: sequence numbers ascend from file to file.
    """

    generation: int = 0
    flushed_seq_num: int = 0
    files: tuple[tuple[str, FileFacts], ...] = ()

    def encode(self) -> bytes:
        """The bytes of the file."""
        told = {
            "crc32c": "00000000",
            "format": "lakelog keyed store",
            "version": FORMAT_VERSION,
            "generation": self.generation,
            "flushedSeqNum": self.flushed_seq_num,
            "files": [_file(name, facts) for name, facts in self.files],
        }
        data = orjson.dumps(told) + b"\n"
        return data.replace(b"00000000", b"%08x" % google_crc32c.value(data), 1)


def decode(data: bytes, path: str) -> StoreManifest:
    """The manifest of a file's bytes."""
    match = _CHECKSUM.match(data)
    if match is None:
        found = data[:32]
        raise _corrupt("has an invalid header", path, found=found, expected=_ZEROS.decode())
    found_crc = google_crc32c.value(_ZEROS + data[match.end() :])
    if found_crc != int(match[1], 16):
        raise _corrupt("is damaged", path, found=f"{found_crc:08x}", expected=match[1].decode())
    told = orjson.loads(data)
    if told["version"] != FORMAT_VERSION:
        raise UnsupportedError(
            "The keyed store was written by a later version of lakelog.",
            path=path,
            expected=f"format version {FORMAT_VERSION}",
            found=told["version"],
            hint="upgrade lakelog",
        )
    files = tuple((file["name"], _facts(file)) for file in told["files"])
    manifest = StoreManifest(told["generation"], told["flushedSeqNum"], files)
    _check_order(manifest, path)
    return manifest


def _file(name: str, facts: FileFacts) -> dict[str, Any]:
    return {
        "name": name,
        "rows": facts.rows,
        "tombstones": facts.tombstones,
        "sizeBytes": facts.size_bytes,
        "minKey": facts.min_key.hex(),
        "maxKey": facts.max_key.hex(),
        "minSeqNum": facts.min_seq_num,
        "maxSeqNum": facts.max_seq_num,
        "footerCrc32c": facts.footer_crc32c,
    }


def _facts(file: Mapping[str, Any]) -> FileFacts:
    rows, tombstones, size_bytes, min_seq_num, max_seq_num, footer_crc32c = (
        int(file[name]) for name in _INTEGERS
    )
    return FileFacts(
        rows=rows,
        tombstones=tombstones,
        size_bytes=size_bytes,
        min_key=bytes.fromhex(file["minKey"]),
        max_key=bytes.fromhex(file["maxKey"]),
        min_seq_num=min_seq_num,
        max_seq_num=max_seq_num,
        footer_crc32c=footer_crc32c,
    )


def _check_order(manifest: StoreManifest, path: str) -> None:
    """A get stops at the newest file that has the key, so their order is checked before use."""
    for (older, before), (newer, after) in pairwise(manifest.files):
        if not before.max_seq_num < after.min_seq_num:
            raise _corrupt(
                f"has {newer} after {older}",
                path,
                found=f"sequence numbers from {after.min_seq_num}",
                expected=f"sequence numbers above {before.max_seq_num}",
            )
    if manifest.files and manifest.files[-1][1].max_seq_num > manifest.flushed_seq_num:
        raise _corrupt(
            "names a file with records after flushedSeqNum",
            path,
            found=manifest.files[-1][1].max_seq_num,
            expected=f"at most {manifest.flushed_seq_num}",
        )


def _corrupt(what: str, path: str, *, found: object, expected: object) -> CorruptionError:
    return CorruptionError(
        f"The manifest of the keyed store {what}.",
        path=path,
        expected=expected,
        found=found,
        hint="restore it from a copy that was made together with the files and the log; any "
        "Parquet reader can read the files (see schemas/keyed.md)",
    )
