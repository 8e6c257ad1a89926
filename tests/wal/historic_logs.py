"""Logs of earlier programs: written and read by the tests of upgrades."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.wal.historic_model import Writer002, file_003

BATCH = [("PUT", b"a", b"1"), ("DELETE", b"b", b""), ("PUT", b"c", b"3")]
PAIRS = [(b"key-%d" % n, b"value-%d" % n if n % 3 else b"") for n in range(20)]


def log_002(*, marks_batches: bool = True, first_seq: int = 1) -> dict[str, bytes]:
    writer = Writer002(marks_batches=marks_batches, rotate_bytes=150, first_seq=first_seq)
    for n in range(3):
        writer.append("PUT", b"single-%d" % n, b"v")
        writer.append_batch(BATCH)
        writer.append("CHECKPOINT")
    return writer.named()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def rows(table: pa.Table) -> list[dict[str, object]]:
    op = table["op"].cast(pa.string())
    found: list[dict[str, object]] = table.set_column(1, "op", op).to_pylist()
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


LOGS = {
    "002": log_002(),
    "002 without BEGIN": log_002(marks_batches=False),
    "002, truncated before": log_002(first_seq=5_000_000_000),
    "003": {"wal.log": file_003(PAIRS, is_checked=False)},
    "003 with checksums": {"wal.log": file_003(PAIRS, is_checked=True)},
}
"""Names and contents of the files of each."""
