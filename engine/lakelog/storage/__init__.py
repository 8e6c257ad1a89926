"""Stores: where log bytes live. Knows nothing of what the bytes mean.

| module | owns |
|---|---|
| `base` | the contract: `LogStore`, `Upload`, and what each call may raise |
| `resolve` | from a location to a store |
| `containment` | which files outside the table's folder may be opened, and changed |
| `local`, `durable` | local disk; files that appear whole, once, and survive a crash |
| `memory` | fsspec's ``memory://`` |
| `remote` | any fsspec store, read |
| `cloud`, `conditional` | object stores; what an answer of theirs tells |
| `s3`, `azure`, `gcs` | the three clouds |
| `upload`, `parts`, `sink` | writing in pieces: what uploads share, in parts, for pyarrow |
| `ranged`, `bounded`, `progress` | ranges; limits and time-outs of reads; what is progress |
| `wrapper`, `inject` | a store around another one; one that is slow, fails, lies or dies |
| `scratch` | what memory has no room for |
"""

from lakelog.storage.base import FileEntry, LogStore
from lakelog.storage.resolve import open_store
from lakelog.storage.wrapper import StoreWrapper

__all__ = ["FileEntry", "LogStore", "StoreWrapper", "open_store"]
