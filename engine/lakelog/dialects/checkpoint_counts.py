"""Counts the actions of an existing checkpoint, for its pointer."""

from __future__ import annotations

from typing import NamedTuple

from lakelog.dialects.log_content import CheckpointReader
from lakelog.storage import LogStore


class CheckpointCounts(NamedTuple):
    """Counts of a checkpoint: actions of all types, live files, and bytes of its files."""

    actions: int
    adds: int
    size_bytes: int


def count_held(store: LogStore, reader: CheckpointReader) -> CheckpointCounts:
    """Count a checkpoint's actions and bytes. Memory: a batch of paths."""
    files = adds = 0
    for frame in reader.iter_files(("path",)):
        files += frame.height
        adds += int((frame["actionType"] == "add").sum())
    entries = (store.stat(path) for path in reader.files_read())
    size_bytes = sum(entry.size_bytes for entry in entries if entry is not None)
    return CheckpointCounts(files + reader.read_meta().height, adds, size_bytes)
