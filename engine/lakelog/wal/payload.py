"""The payload layout of record frames, and its validation.

`lakelog.wal.encode` has what the parts are; `lakelog.wal.decode` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakelog.errors import WalCorruptionError
from lakelog.wal.frames import COMMIT, OPS

_Ops = npt.NDArray[np.uint8]
_Seqs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordColumns:
    """Records that lie together.

    Attributes:
        seqs: int64.
        ops: uint8, codes.
        keys: Arrow ``binary``.
        values: Arrow ``binary``.
    """

    seqs: _Seqs
    ops: _Ops
    keys: pa.BinaryArray
    values: pa.BinaryArray

    def __len__(self) -> int:
        return len(self.ops)

    def slice(self, start: int, length: int) -> RecordColumns:
        """Some of the records, where they lie."""
        end = start + length
        return RecordColumns(
            self.seqs[start:end],
            self.ops[start:end],
            self.keys.slice(start, length),
            self.values.slice(start, length),
        )

    def data_only(self) -> RecordColumns:
        """Without COMMIT and CHECKPOINT."""
        controls = np.flatnonzero(self.ops >= COMMIT)
        if not len(controls):
            return self
        if controls[0] == len(self) - len(controls):  # all of them at the end
            return self.slice(0, int(controls[0]))
        mask = self.ops < COMMIT
        arrow = mask_of(mask)
        return RecordColumns(
            self.seqs[mask], self.ops[mask], self.keys.filter(arrow), self.values.filter(arrow)
        )


def numbers_of(kind: pa.DataType, numbers: npt.NDArray[Any]) -> pa.Array:
    """An array of numpy as one of Arrow, whose own way imports pandas where that is installed."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)], 0)


def mask_of(which: npt.NDArray[np.bool_]) -> pa.BooleanArray:
    """The same of a mask, whose bits Arrow packs."""
    packed = pa.py_buffer(np.packbits(which, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(which), [None, packed], 0)


def layout_of(count: Any, key_bytes: Any, has_nulls: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Where the parts of a payload begin behind the first one: key offsets, value offsets, which
    values are there, keys, values. Of one frame or of many.
    """
    key_offsets = count + 7 & -8
    offsets_bytes = 4 * (count + 1) + 7 & -8
    value_offsets = key_offsets + offsets_bytes
    validity = value_offsets + offsets_bytes
    keys = validity + (count + 63 >> 6 << 3) * has_nulls
    return key_offsets, value_offsets, validity, keys, keys + (key_bytes + 7 & -8)


def check(
    ops: _Ops, key_ends: Any, value_ends: Any, key_bytes: int, room: int, place: tuple[str, int]
) -> None:
    """Refuse what would have Arrow read elsewhere than in the frame."""
    if (
        key_ends[0] == value_ends[0] == 0
        and key_ends[-1] == key_bytes
        and value_ends[-1] <= room
        and (key_ends[1:] >= key_ends[:-1]).all()
        and (value_ends[1:] >= value_ends[:-1]).all()
        and are_known(ops)
    ):
        return
    raise contradiction(*place, "ascending offsets and known operations", "others")


def are_known(ops: _Ops) -> bool:
    """Whether all codes are operations'."""
    return not len(ops) or bool(ops.min() >= 1 and ops.max() <= len(OPS))


def contradiction(path: str, offset: int, expected: str, found: str) -> WalCorruptionError:
    """What to raise where a whole frame's parts do not fit together."""
    return WalCorruptionError(
        "a frame of a write-ahead log is inconsistent",
        path=path,
        byte_offset=offset,
        expected=expected,
        found=found,
        hint="its checksum matches, so this is a bug of the program that wrote it",
    )
