"""The write-ahead log: small writes made durable on local disk, replayed as Arrow tables.

| module | owns |
|---|---|
| `log` | `WriteAheadLog`: what callers see |
| `turns`, `group` | who writes when, and for whom; what is written together |
| `writer` | the end of the log: writes, syncs, rotation, truncation, and what a failure means |
| `opening` | a log brought in order for its next writer |
| `survey`, `judge` | segments read; what they amount to: whole, torn or damaged |
| `scan`, `chain`, `crc` | frames found and proved |
| `segments`, `frames` | names and bytes on the disk |
| `encode`, `decode` | records in, Arrow out |
| `payload`, `repeated` | a frame's payload; frames that differ in their records alone |
| `records`, `reading` | records as callers give and get them |
| `threads`, `handle`, `disk` | side by side; opened and closed; what a filesystem is asked for |
| `inspect` | a report of any log |
| `historic` | logs of earlier programs, read and upgraded |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakelog import lazy

if TYPE_CHECKING:
    from lakelog.wal.historic.read import read_historic
    from lakelog.wal.historic.upgrade import upgrade
    from lakelog.wal.log import WriteAheadLog

__all__ = ["WriteAheadLog", "read_historic", "upgrade"]

__getattr__ = lazy.names_of(
    __name__,
    {
        "WriteAheadLog": "lakelog.wal.log",
        "read_historic": "lakelog.wal.historic.read",
        "upgrade": "lakelog.wal.historic.upgrade",
    },
)
