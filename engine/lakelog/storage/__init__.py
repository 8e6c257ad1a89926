"""Stores: where log bytes live. Knows nothing of what the bytes mean."""

from lakelog.storage.base import FileEntry, LogStore
from lakelog.storage.resolve import open_store
from lakelog.storage.wrapper import StoreWrapper

__all__ = ["FileEntry", "LogStore", "StoreWrapper", "open_store"]
