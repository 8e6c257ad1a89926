"""Parquet footers, which replay on Spark reads on the driver, and damage in any of them."""

from __future__ import annotations

from pathlib import Path

import lakelog
from lakelog.errors import CorruptionError
from lakelog.log.opening import open_state
from lakelog.spark.footers import read_footers
from tests.checkpoint import tables


def test_footer_with_any_flipped_byte_is_read_or_refused(tmp_path: Path) -> None:
    root = tables.make(tables.CLASSIC, tmp_path / "t")
    state = open_state(lakelog.open(root, upkeep=False).log)
    assert state.base is not None
    file = root / state.base.checkpoint.paths[0]
    data = file.read_bytes()
    whole = read_footers(state)
    length = int.from_bytes(data[-8:-4], "little")
    refused = 0
    for at in range(len(data) - 8 - length, len(data) - 8, 17):
        file.write_bytes(data[:at] + bytes([data[at] ^ 0x02]) + data[at + 1 :])
        try:
            assert read_footers(state).paths == whole.paths
        except CorruptionError:
            refused += 1
    assert refused
