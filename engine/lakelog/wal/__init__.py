"""The write-ahead log: small writes made durable on local disk, replayed as Arrow tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakelog.wal.historic.read import read_historic
    from lakelog.wal.historic.upgrade import upgrade
    from lakelog.wal.log import WriteAheadLog

__all__ = ["WriteAheadLog", "read_historic", "upgrade"]

# Loaded when they are asked for: a program that only appends needs none of what reads old logs.
_LAZY = {
    "WriteAheadLog": "lakelog.wal.log",
    "read_historic": "lakelog.wal.historic.read",
    "upgrade": "lakelog.wal.historic.upgrade",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'lakelog.wal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
