"""Resolves deletion vector descriptors of file actions to files.

Source: Delta protocol, Deletion Vector Descriptor Schema; Derived Fields. Z85: ZeroMQ RFC 32.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from lakelog.dialects.delta.paths import decode_paths
from lakelog.errors import InvalidActionError

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_CHARS = 20
_NO_DIGIT = 255
_DIGITS = np.full(256, _NO_DIGIT, np.uint8)
_DIGITS[np.frombuffer(_Z85, np.uint8)] = np.arange(len(_Z85), dtype=np.uint8)
_POWERS = 85 ** np.arange(4, -1, -1, dtype=np.uint64)
_GROUPS = (8, 4, 4, 4, 12)


def vector_paths(files: pl.DataFrame) -> pl.Series:
    """The file of each deletion vector.

    >>> vector_paths(
    ...     pl.DataFrame({"dvStorageType": ["u"], "dvPathOrInline": ["ab^-aqEH.-t@S}K{vb[*k^"]})
    ... ).to_list()
    ['ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin']
    """
    if "dvStorageType" not in files.columns:
        return pl.Series("path", dtype=pl.String).extend_constant(None, files.height)
    types, texts = files["dvStorageType"], files["dvPathOrInline"]
    strange = types.filter(~types.is_in(["u", "p", "i"])).drop_nulls()
    if strange.len():
        raise InvalidActionError(
            "unknown storage type of a deletion vector",
            expected="storageType u, p or i",
            found=strange[0],
        )
    paths = pl.Series("path", dtype=pl.String).extend_constant(None, files.height)
    for kind, spell in (("u", _relative), ("p", decode_paths)):
        rows = (types == kind).fill_null(False).arg_true()
        if rows.len():
            paths = paths.scatter(rows, spell(texts.gather(rows)))
    return paths


def decode_z85(text: str) -> bytes | None:
    """Decode Z85; None if the text is invalid. The last group may have fewer than four bytes, with
    a ``#`` for each missing one, as Rust's crate z85 writes it; no group of four begins with that.

    >>> decode_z85("HelloWorld").hex(), decode_z85("Hello##093").hex()
    ('864fd26fb559f75b', '864fd26f0300')
    """
    try:
        raw = np.frombuffer(text.encode("ascii"), np.uint8)
    except UnicodeEncodeError:
        return None
    digits = _DIGITS[raw]
    if len(digits) % 5 or (digits == _NO_DIGIT).any():
        return None
    missing = int((digits[-5:-2] == _Z85.index(b"#")).cumprod().sum())
    digits[-5:][:missing] = 0
    words = (digits.reshape(-1, 5).astype(np.uint64) * _POWERS).sum(axis=1, dtype=np.uint64)
    if (words > np.uint64(0xFFFF_FFFF)).any():
        return None
    data = bytes(words.astype(">u4").tobytes())
    whole = len(data) - 4 if missing else len(data)
    if any(data[whole : whole + missing]):
        return None
    return data[:whole] + data[whole + missing :]


def encode_z85(data: bytes) -> str:
    """Bytes as Z85, padded with zeros to a multiple of four.

    >>> encode_z85(bytes.fromhex("864fd26fb559f75b"))
    'HelloWorld'
    """
    words = np.frombuffer(data + bytes(-len(data) % 4), ">u4").astype(np.uint64)
    digits = words[:, None] // _POWERS % 85
    return np.frombuffer(_Z85, np.uint8)[digits.astype(np.intp)].tobytes().decode("ascii")


def _relative(texts: pl.Series) -> pl.Series:
    distinct = texts.unique()  # several vectors share a file
    identifiers = distinct.str.slice(-_UUID_CHARS)
    prefixes = distinct.str.head(-_UUID_CHARS)
    uuids = _uuids(identifiers)
    folders = pl.select(pl.when(prefixes == "").then(prefixes).otherwise(prefixes + "/"))
    paths = folders.to_series() + "deletion_vector_" + uuids + ".bin"
    return texts.replace_strict(distinct, paths, return_dtype=pl.String)


def _uuids(identifiers: pl.Series) -> pl.Series:
    lengths = identifiers.str.len_bytes()
    if identifiers.null_count() or not bool((lengths == _UUID_CHARS).all()):
        raise _not_z85(identifiers.filter((lengths != _UUID_CHARS).fill_null(True))[0])
    raw = np.frombuffer("".join(identifiers.to_list()).encode(), np.uint8)
    digits = _DIGITS[raw].reshape(-1, _UUID_CHARS)
    words = (digits.reshape(-1, 4, 5).astype(np.uint64) * _POWERS).sum(axis=2, dtype=np.uint64)
    wrong = (digits == _NO_DIGIT).any(axis=1) | (words > np.uint64(0xFFFF_FFFF)).any(axis=1)
    if wrong.any():
        raise _not_z85(identifiers[int(wrong.argmax())])
    hexes = words.astype(">u4").tobytes().hex()
    whole = pl.Series([hexes[i : i + 32] for i in range(0, len(hexes), 32)], dtype=pl.String)
    parts: list[pl.Series] = []
    start = 0
    for length in _GROUPS:
        parts.append(whole.str.slice(start, length))
        start += length
    return pl.select(pl.concat_str(parts, separator="-")).to_series()


def _not_z85(found: object) -> InvalidActionError:
    return InvalidActionError(
        "a deletion vector's identifier cannot be decoded",
        expected=f"{_UUID_CHARS} characters of Z85",
        found=found,
    )
