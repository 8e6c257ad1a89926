"""The write-ahead log: small writes made durable on local disk, replayed as Arrow tables.

| module | owns |
|---|---|
| `log` | the public `WriteAheadLog` |
| `group_commit` | group commit: one thread writes for all that wait |
| `writer` | the active segment: writes, syncs, rotation, truncation, failures |
| `opening` | recovery when a log is opened for writing |
| `recovery` | reads segments, and classifies their frames as valid, torn or damaged |
| `scan` | finds and verifies frames |
| `segments`, `frames` | segment names and headers; frame layout |
| `records`, `encode` | validates records, and encodes them as frames |
| `reading` | decodes frames to Arrow tables |
| `disk` | the filesystem seam; open handles |
| `inspect` | reports about logs of any format |
| `historic` | readers of historic formats |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakelog import lazy

if TYPE_CHECKING:
    from lakelog.wal.historic.reader import read_historic
    from lakelog.wal.historic.upgrade import upgrade
    from lakelog.wal.log import WriteAheadLog

__all__ = ["WriteAheadLog", "read_historic", "upgrade"]

__getattr__ = lazy.lazy_exports(
    __name__,
    {
        "WriteAheadLog": "lakelog.wal.log",
        "read_historic": "lakelog.wal.historic.reader",
        "upgrade": "lakelog.wal.historic.upgrade",
    },
)
