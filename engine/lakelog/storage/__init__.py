"""Stores: where log bytes live. Knows nothing of what the bytes mean."""

from lakelog.storage.base import FileEntry, LogStore
from lakelog.storage.resolve import open_store

__all__ = ["FileEntry", "LogStore", "open_store"]
