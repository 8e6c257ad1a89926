"""Partition folders, file names, compression and dictionaries of new data files; rows grouped by
partition.

Pure. Partition values are serialised once per partition, never per row.

Readers of the log ignore folder names. They are percent-encoded to ASCII, as deltalake does: then
all engines write the paths of the log in one spelling.

Source: Delta protocol, Partition Value Serialization; Table Properties.
"""

from __future__ import annotations

import decimal
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.dialects.parquet_files import leaf_paths
from lakelog.display import parse_size
from lakelog.errors import InvalidInputError, InvalidPropertyError
from lakelog.model import contract
from lakelog.skipping.values import HIVE_NULL

CODEC_PROPERTY = "delta.parquet.compression.codec"
SIZE_PROPERTY = "delta.targetFileSize"
_TARGET_FILE_BYTES = 128 << 20
"""Default target length of data files."""

IN_MEMORY = 4
"""Estimated bytes of rows in memory per byte in a file."""

_MOST_NAME_BYTES = 255  # limit of common filesystems for a folder's name


@dataclass(frozen=True)
class Codec:
    """Compression of data pages: pyarrow's name, its part of file names, the level or None."""

    name: str
    extension: str
    level: int | None = None


CODECS: Mapping[str, Codec] = {
    "snappy": Codec("snappy", ".snappy.parquet"),
    "zstd": Codec("zstd", ".zstd.parquet", 1),
    "gzip": Codec("gzip", ".gz.parquet"),
    # LZ4 with Hadoop's framing is deprecated in Parquet, and replaced by LZ4_RAW.
    "lz4": Codec("lz4", ".lz4raw.parquet"),
    "lz4_raw": Codec("lz4", ".lz4raw.parquet"),
    "none": Codec("none", ".parquet"),
    "uncompressed": Codec("none", ".parquet"),
}
"""Codecs by their names in `CODEC_PROPERTY`."""

DEFAULT_CODEC = "snappy"


def codec_of(name: str | None) -> Codec:
    """The codec of a name, in any case; None is the default."""
    found = CODECS.get((name or DEFAULT_CODEC).lower())
    if found is None:
        raise InvalidPropertyError(
            "unsupported compression codec for data files",
            path=CODEC_PROPERTY,
            expected=", ".join(CODECS),
            found=name,
        )
    return found


_RANGES = 16  # of consecutive rows, which form a sample
_MOST_DISTINCT = 0.75  # share of a sample's values
_SAMPLES = ((1 << 12, 0.3, 0.96), (1 << 15, _MOST_DISTINCT, _MOST_DISTINCT))
"""Sizes of samples in rows; the shares of distinct values up to which values repeat, and from which
they do not. Few rows decide the clear cases.
"""


def dictionary_paths(rows: pa.Table) -> list[str]:
    """Parquet paths of columns with repeated values, by a sample, and of all nested columns."""
    found: list[str] = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_nested(field.type):
            found += leaf_paths(field.name, field.type)
        elif _repeats(column):
            found.append(field.name)
    return found


def _repeats(column: pa.ChunkedArray) -> bool:
    count = len(column)
    for size, few, many in _SAMPLES:
        if size >= count:
            break
        chunks = [
            chunk
            for start in range(0, count, max(1, count // _RANGES))
            for chunk in column.slice(start, size // _RANGES).chunks
        ]
        sample = pa.chunked_array(chunks, type=column.type)
        share = len(pc.unique(sample)) / len(sample)  # faster than count_distinct
        if share <= few or share > many:
            return share <= few
    return len(pc.unique(column)) <= _MOST_DISTINCT * count


def size_of(text: str | None) -> int:
    """Bytes of a size such as ``128mb``; None is `_TARGET_FILE_BYTES`."""
    if text is None:
        return _TARGET_FILE_BYTES
    size = parse_size(text)
    if size is None:
        raise InvalidPropertyError(
            "invalid file size", path=SIZE_PROPERTY, expected="a size such as '128mb'", found=text
        )
    return size


_MOST_DAYS = 94_600_000  # from 1970, which Polars can format
_DAY_UNITS = {"date": 1, "timestamp": 86_400_000_000, "timestamp_ntz": 86_400_000_000}


def partition_texts(values: pl.Series, type_: contract.DataType) -> pl.Series:
    """Values of a partition column as the log writes them."""
    column, values = values.name, values.alias("")  # Polars reads some names as patterns
    if isinstance(type_, contract.Decimal):
        texts = [None if v is None else format(v, "f") for v in values.to_list()]
        return pl.Series(values.name, texts, dtype=pl.String)
    name = type_.name if isinstance(type_, contract.Primitive) else ""
    if name in _DAY_UNITS:
        days = values.to_physical() // _DAY_UNITS[name]
        if (far := ~days.is_between(-_MOST_DAYS, _MOST_DAYS)).any():
            raise InvalidInputError(
                f"a value of the partition column {column!r} is too far from the present",
                column=column,
                expected="a year between -257,000 and 261,000",
                found=f"{days.filter(far)[0]} days since 1970",
            )
    match name:
        case "float" | "double":
            spelled = [None if v is None else _float_text(v, name) for v in values.to_list()]
            return pl.Series(values.name, spelled, dtype=pl.String)
        case "long" | "integer" | "short" | "byte" | "boolean":
            return values.cast(pl.String)
        case "date":
            return values.dt.strftime("%Y-%m-%d")
        case "timestamp":
            return values.dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ")
        case "timestamp_ntz":
            return _trimmed(values.dt.strftime("%Y-%m-%d %H:%M:%S%.6f"))
        case "binary":
            return _no_empty(_utf8(values, column))
    if name.startswith(("string", "char", "varchar")):
        return _no_empty(values.cast(pl.String))
    raise InvalidInputError(
        f"a table cannot be partitioned by the column {column!r}",
        expected="a type that can be a partition column",
        found=contract.type_text(type_),
    )


def _no_empty(texts: pl.Series) -> pl.Series:
    return texts.set(texts == "", None)


def _utf8(values: pl.Series, column: str) -> pl.Series:
    try:
        return values.cast(pl.String)
    except pl.exceptions.PolarsError as cause:
        raise InvalidInputError(
            f"a value of the partition column {column!r} is not valid UTF-8, and "
            "the log cannot store it",
            expected="UTF-8",
            found=str(cause).split("\n", 1)[0],
        ) from cause


def _trimmed(texts: pl.Series) -> pl.Series:
    """Times without trailing zeros of the fraction."""
    return texts.str.replace(r"\.?0+$", "").zip_with(texts.str.contains(r"\.\d*$"), texts)


def _float_text(value: float, type_name: str) -> str:
    """A number as Java writes it, so that all writers write a value alike."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    shortest = repr(value)
    if type_name == "float":
        import numpy as np

        shortest = np.format_float_scientific(np.float32(value))
    sign, digits, exponent = decimal.Decimal(shortest).normalize().as_tuple()
    assert isinstance(exponent, int)
    figures = "".join(map(str, digits))
    power = len(figures) + exponent - 1
    minus = "-" if sign else ""
    if -3 <= power < 7:
        plain = format(decimal.Decimal(shortest), "f")
        return plain if "." in plain else f"{plain}.0"
    return f"{minus}{figures[0]}.{figures[1:] or '0'}E{power}"


def partition_folder(names: Sequence[str], texts: Sequence[str | None]) -> str:
    """The folder of a partition, ``name=value`` for each column. A name that is too long for a
    filesystem is cut, with a digest: the add has the value, not the path.

    >>> partition_folder(["day", "kind"], ["2024-01-31", None])
    'day=2024-01-31/kind=__HIVE_DEFAULT_PARTITION__'
    >>> partition_folder(["p"], ["a b/c=50%"])
    'p=a%20b%2Fc%3D50%25'
    """
    return "/".join(
        _folder(f"{_escape(name)}={HIVE_NULL if text is None else _escape(text)}")
        for name, text in zip(names, texts, strict=True)
    )


def _escape(text: str) -> str:
    return quote(text, safe="")


def _folder(name: str) -> str:
    data = name.encode()
    if len(data) <= _MOST_NAME_BYTES:
        return name
    digest = hashlib.sha256(data).hexdigest()[:16]
    kept = data[: _MOST_NAME_BYTES - len(digest) - 1].decode(errors="ignore")
    return f"{kept}-{digest}"


def file_name(
    number: int, token: str, attempt: str, index: int, codec: Codec, kind: str = "part"
) -> str:
    """The name of a data file, unique among all files of all writes."""
    return f"{kind}-{number:05d}-{token}-{attempt}.c{index:03d}{codec.extension}"


@dataclass(frozen=True)
class Groups:
    """The partitions of rows, and `order`, which sorts the rows by partition, stably."""

    texts: list[tuple[str | None, ...]]
    counts: list[int]
    order: pa.Array

    def __len__(self) -> int:
        return len(self.texts)


def group_rows(table: pa.Table, fields: Sequence[contract.Field]) -> Groups:
    """The rows of each partition; zero and negative zero differ, and all NaN are one."""
    columns = [pl.Series(str(i), table.column(key.name)) for i, key in enumerate(fields)]
    names = [series.name for series in columns]
    # Polars groups 0.0 and -0.0 together.
    signs = [(each == 0) & (1 / each < 0) for each in columns if each.dtype.is_float()]
    signs = [sign.alias(f"sign {i}") for i, sign in enumerate(signs)]
    grouped = (
        pl.DataFrame([*columns, *signs])
        .with_row_index("row")
        .group_by([*names, *(sign.name for sign in signs)], maintain_order=True)
        .agg(pl.col("row"))
    )
    texts = [
        partition_texts(grouped[name].alias(key.name), key.type).to_list()
        for name, key in zip(names, fields, strict=True)
    ]
    return Groups(
        list(zip(*texts, strict=True)),
        grouped["row"].list.len().to_list(),
        grouped["row"].explode().to_arrow(),
    )
