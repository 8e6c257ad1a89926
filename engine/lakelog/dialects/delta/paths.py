"""Paths and deletion vector identities of file actions.

A path in the log is a URI, percent-encoded once; lakelog decodes it exactly once. ``+`` remains
``+``. Bytes that are not valid UTF-8 remain encoded.

Other writers compare the paths of an add and a remove as text, and do not encode alike. A path that
is already in the log is therefore written again with its existing text (`PATH_TEXT`; null if it
equals the result of `encode_paths`, which quotes the same characters as Delta on Spark, that is,
Java's ``URI``). The path of a new file is quoted as by deltalake (`_quote_paths`); Spark and the
kernels keep it.

Source: Delta protocol, Add File and Remove File; Deletion Vectors. RFC 2396, section 3.3.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import numpy as np
import polars as pl
import pyarrow as pa

from lakelog.model.actions import PATH_TEXT
from lakelog.storage.containment import SCHEME

_INLINE_BYTES = 12


def text_array(texts: pl.Series) -> pa.StringArray | pa.LargeStringArray:
    """Texts as an Arrow array. Memory: four bytes per row, or a copy."""
    whole = texts.rechunk()
    shared = _shared(whole.to_arrow(compat_level=pl.CompatLevel.newest()))
    return whole.to_arrow(compat_level=pl.CompatLevel.oldest()) if shared is None else shared


def text_bytes(texts: pl.Series) -> memoryview:
    """The UTF-8 bytes of all texts, concatenated. Memory: as `text_array`."""
    array = text_array(texts)
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return memoryview(b"")
    width = np.int32 if pa.types.is_string(array.type) else np.int64
    ends = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    start, end = int(ends[0]), int(ends[-1])
    return memoryview(data.slice(start, end - start)).cast("B")


def _shared(array: pa.Array) -> pa.StringArray | None:
    buffers = array.buffers()
    one_buffer = 3
    if not pa.types.is_string_view(array.type) or len(buffers) != one_buffer or array.null_count:
        return None
    views = np.frombuffer(buffers[1], np.int32).reshape(-1, 4)
    views = views[array.offset : array.offset + len(array)]
    lengths, starts = views[:, 0], views[:, 3]
    # Shorter texts are inlined in their views.
    if (
        not len(views)
        or lengths.min() <= _INLINE_BYTES
        or (starts[1:] != starts[:-1] + lengths[:-1]).any()
    ):
        return None
    ends = np.append(starts, starts[-1] + lengths[-1])
    return pa.StringArray.from_buffers(len(array), pa.py_buffer(ends), buffers[2])


_ASCII_ESCAPES = {f"%{code:02X}": chr(code) for code in range(0x80)}
_ASCII_ESCAPES |= {
    escape[:1] + escape[1:].lower(): text for escape, text in list(_ASCII_ESCAPES.items())
}
# Escapes such as %2f and %2F differ only in case; below 0x80, the first digit is 0 to 7, so only
# the second can be a letter.
_PATTERNS = list(_ASCII_ESCAPES)
_REPLACEMENTS = list(_ASCII_ESCAPES.values())
# Characters that java.net.URI does not quote in a path: letters, digits, marks, and the rest of
# pchar, ; and /.
_UNQUOTED = set("-_.!~*'():@&=+$,;/") | {chr(c) for c in range(128) if chr(c).isalnum()}
# Beyond ASCII, it quotes the characters of Character.isSpaceChar and isISOControl.
_SPACES = "\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_QUOTED = "".join(chr(c) for c in range(0x80) if chr(c) not in _UNQUOTED)
_QUOTED += "".join(map(chr, range(0x80, 0xA0))) + _SPACES
_ESCAPES = {char: "".join(f"%{byte:02X}" for byte in char.encode()) for char in _QUOTED}
_TRANSLATION = str.maketrans(_ESCAPES)
_NEEDS_QUOTING = "[" + "".join(f"\\x{{{ord(char):x}}}" for char in _QUOTED) + "]"
_PLAIN = "".join(_UNQUOTED - {":"}).encode()
_PIECE_BYTES = 1 << 16
VARYING = r"[^A-Za-z0-9\-_./= %]"
"""Pattern of the characters that writers encode in different ways, or not at all."""

# RFC 2396: a colon in the first segment of a relative path would end a scheme.
_COLON_FIRST = re.compile(r"^[^/:]*:")
_URL = re.compile(f"^{SCHEME}/")
_MULTIBYTE = re.compile(r"%[89a-fA-F][0-9a-fA-F]")
_FEW = 64  # a few paths are processed faster one by one than by queries on their column


def decode_path(path: str) -> str:
    """Percent-decode one path, exactly once.

    >>> decode_path("p=a%20b/x%252F+.parquet")
    'p=a b/x%2F+.parquet'
    """
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        return path


def decode_paths(paths: pl.Series) -> pl.Series:
    """Percent-decode paths once; Polars has no kernel for escapes above 0x7F."""
    if len(paths) <= _FEW:
        texts = paths.to_list()
        if not any(text is not None and "%" in text for text in texts):
            return paths
        few = [None if text is None else decode_path(text) for text in texts]
        return pl.Series(paths.name, few, pl.String)
    escaped = paths.str.contains("%", literal=True).fill_null(False)
    if not escaped.any():
        return paths
    multibyte = escaped & paths.str.contains(_MULTIBYTE.pattern).fill_null(False)
    # replace_many scans left to right and never rescans replacements, so this decodes exactly once.
    decoded = paths.str.replace_many(_PATTERNS, _REPLACEMENTS)
    if multibyte.any():
        rows = multibyte.arg_true()
        decoded = decoded.scatter(rows, [decode_path(p) for p in paths.gather(rows)])
    return decoded


def encode_path(path: str) -> str:
    """Percent-encode one path; `decode_path` is its inverse. The scheme of a URL is kept.

    >>> encode_path("p=a b/x%2F+.parquet")
    'p=a%20b/x%252F+.parquet'
    >>> encode_path("s3://bucket/é?.parquet")
    's3://bucket/é%3F.parquet'
    """
    encoded = path.translate(_TRANSLATION)
    if _URL.match(encoded) or not _COLON_FIRST.match(encoded):
        return encoded
    first, slash, rest = encoded.partition("/")
    return first.replace(":", "%3A") + slash + rest


def encode_paths(paths: pl.Series) -> pl.Series:
    """Percent-encode a column of paths; nulls stay null; `decode_paths` is the inverse."""
    if len(paths) <= _FEW:
        few = [None if path is None else encode_path(path) for path in paths.to_list()]
        return pl.Series(paths.name, few, pl.String)
    if _is_plain(paths):
        return paths
    encoded = paths
    if paths.str.contains(_NEEDS_QUOTING).any():
        encoded = paths.str.replace_many(list(_ESCAPES), list(_ESCAPES.values()))
    colon = encoded.str.contains(_COLON_FIRST.pattern)
    if colon.any():
        colon = colon.fill_null(False)
        rows = (colon & ~encoded.str.contains(_URL.pattern).fill_null(False)).arg_true()
        # In place, and the column may be the caller's.
        encoded = encoded.clone().scatter(rows, [encode_path(p) for p in paths.gather(rows)])
    return encoded


def decode_with_texts(files: pl.DataFrame) -> pl.DataFrame:
    """File actions with their paths decoded, and `PATH_TEXT` if `other_texts` returns any."""
    paths = decode_paths(files["path"])
    others = other_texts(files["path"], paths)
    return files.with_columns(paths, *(() if others is None else (others,)))


def other_texts(texts: pl.Series, paths: pl.Series) -> pl.Series | None:
    """Texts of paths that differ from `encode_paths`, else null; None if none differs."""
    if _is_plain(texts):
        return None
    differ = (encode_paths(paths) != texts).fill_null(False)
    if not differ.any():
        return None
    return texts.zip_with(differ, texts.clear(len(texts))).alias(PATH_TEXT)


def _quote_paths(paths: pl.Series) -> pl.Series:
    """Percent-encode paths of new files as deltalake does, including all non-ASCII bytes and ``*``,
    because it encodes again when it removes.
    """
    quoted = encode_paths(paths)
    data = bytes(text_bytes(quoted))
    if data.isascii() and b"*" not in data:
        return quoted
    beyond = quoted.str.extract_all(r"[^\x00-\x7f]|\*").explode().drop_nulls().unique().to_list()
    return quoted.str.replace_many(beyond, [quote(char, safe="") for char in beyond])


def spell_paths(files: pl.DataFrame) -> pl.Series:
    """Paths of file actions as in a checkpoint: `PATH_TEXT` if there is one."""
    spelled = encode_paths(files["path"])
    if PATH_TEXT not in files.columns:
        return spelled
    own = files[PATH_TEXT]
    return spelled.zip_with(own.is_null(), own).alias("path")


def spell_new_paths(files: pl.DataFrame, texts: pl.DataFrame | None) -> pl.Series:
    """Paths of file actions as in a commit."""
    paths = files["path"]
    quoted = _quote_paths(paths)
    if texts is None or not texts.height:
        return quoted
    known = spell_paths(texts).alias(PATH_TEXT)
    joined = paths.to_frame().join(
        pl.DataFrame([texts["path"], known]), on="path", how="left", maintain_order="left"
    )[PATH_TEXT]
    return quoted.zip_with(joined.is_null(), joined).alias("path")


def _is_plain(paths: pl.Series) -> bool:
    """Whether no path needs quoting; in pieces, because fresh memory for all costs more."""
    data = text_bytes(paths)
    pieces = (data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES))
    return not any(bytes(piece).translate(None, _PLAIN) for piece in pieces)
