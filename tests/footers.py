"""Changes the encoded footers of Parquet files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lakelog.dialects.thrift_compact import Value, read_struct, write_struct


def rewritten_footer(file: Path, change: Callable[[dict[int, Value]], object]) -> None:
    """Change the fields of a file's footer."""
    data = file.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    fields = read_struct(data[-8 - length : -8])
    change(fields)
    footer = write_struct(fields)
    file.write_bytes(data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
