"""Deletion vectors written value by value from the format's specification, to test the decoder."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
MAGIC = 1681511377
EARLY_MAGIC = 1681511376

Kind = Callable[[int, list[int]], str]
"""Chooses a container's encoding by its key: ``plain`` (array or bitmap) or ``run``."""


def z85(data: bytes) -> str:
    """Bytes as Z85, padded to a multiple of four."""
    data += bytes(-len(data) % 4)
    out = ""
    for at in range(0, len(data), 4):
        word = int.from_bytes(data[at : at + 4], "big")
        out += "".join(Z85[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return out


def split(values: Iterable[int], bits: int) -> dict[int, list[int]]:
    """Lower `bits` bits by upper bits, both ascending."""
    parts: dict[int, list[int]] = {}
    for value in sorted(set(values)):
        parts.setdefault(value >> bits, []).append(value & ((1 << bits) - 1))
    return parts


def runs(values: list[int]) -> list[tuple[int, int]]:
    """First values and lengths of runs without gaps."""
    found: list[tuple[int, int]] = []
    for value in values:
        if found and value == sum(found[-1]):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((value, 1))
    return found


def container(values: list[int], kind: str) -> bytes:
    """One container of 16-bit values."""
    if kind == "run":
        pairs = [n for first, length in runs(values) for n in (first, length - 1)]
        return struct.pack(f"<{1 + len(pairs)}H", len(pairs) // 2, *pairs)
    if len(values) <= 4096:
        return struct.pack(f"<{len(values)}H", *values)
    bits = bytearray(8192)
    for value in values:
        bits[value // 8] |= 1 << value % 8
    return bytes(bits)


def bitmap(values: Iterable[int], kind: Kind = lambda _key, _values: "plain") -> bytes:
    """A 32-bit Roaring bitmap."""
    parts = split(values, 16)
    kinds = [kind(key, values_of_key) for key, values_of_key in parts.items()]
    bodies = [
        container(values_of_key, k) for values_of_key, k in zip(parts.values(), kinds, strict=True)
    ]
    if "run" in kinds:
        flags = sum(1 << n for n, k in enumerate(kinds) if k == "run")
        head = struct.pack("<HH", 12347, len(parts) - 1)
        head += flags.to_bytes(-(-len(parts) // 8), "little")
    else:
        head = struct.pack("<II", 12346, len(parts))
    for key, values_of_key in parts.items():
        head += struct.pack("<HH", key, len(values_of_key) - 1)
    if "run" not in kinds or len(parts) >= 4:
        at = len(head) + 4 * len(parts)
        for body in bodies:
            head += struct.pack("<I", at)
            at += len(body)
    return head + b"".join(bodies)


def serialised(values: Iterable[int], kind: Kind = lambda _key, _values: "plain") -> bytes:
    """A set of 64-bit values, serialised as in a deletion vector."""
    parts = split(values, 32)
    data = struct.pack("<IQ", MAGIC, len(parts))
    for key, values_of_key in parts.items():
        data += struct.pack("<I", key) + bitmap(values_of_key, kind)
    return data


def serialised_early(values: Iterable[int]) -> bytes:
    """A set of values in the older serialisation, before the portable one."""
    parts = split(values, 32)
    data = struct.pack("<II", EARLY_MAGIC, max(parts, default=-1) + 1)
    for key in range(max(parts, default=-1) + 1):
        body = bitmap(parts.get(key, []))
        data += struct.pack("<I", len(body)) + body
    return data


def framed(data: bytes) -> bytes:
    """A vector as stored in a file."""
    return struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))


def inline(values: Iterable[int]) -> dict[str, Any]:
    """The descriptor of a vector in the log."""
    ordered = sorted(set(values))
    data = serialised(ordered)
    return {
        "storageType": "i",
        "pathOrInlineDv": z85(data),
        "sizeInBytes": len(data),
        "cardinality": len(ordered),
    }


def vector_file(
    table: Path, vectors: Mapping[str, Iterable[int]], prefix: str = "", absolute: bool = False
) -> dict[str, dict[str, Any]]:
    """Write vectors to one file; return the descriptor of each by its name."""
    name = uuid.UUID(int=len(vectors) << 64 | len(prefix))
    path = table / prefix / f"deletion_vector_{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"\x01"
    found: dict[str, dict[str, Any]] = {}
    for key, values in vectors.items():
        ordered = sorted(set(values))
        data = serialised(ordered)
        found[key] = {
            "storageType": "p" if absolute else "u",
            "pathOrInlineDv": str(path) if absolute else prefix + z85(name.bytes),
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(ordered),
        }
        content += framed(data)
    path.write_bytes(content)
    return found
