"""Stores: read and write the files of a table. Does not interpret their contents.

| module | owns |
|---|---|
| `base` | the `LogStore` and `Upload` interfaces, the errors of each call, progress, wrappers |
| `resolve` | the store of a location |
| `containment` | access to files outside the table's folder |
| `local`, `durable` | local disk; atomic and durable file creation |
| `fsspec_store` | any fsspec filesystem, read-only, and ``memory://`` |
| `cloud`, `conditional` | object stores with conditional writes, and multi-part uploads |
| `s3`, `azure`, `gcs` | the three clouds |
| `upload` | code shared by uploads; an upload as a file object for pyarrow |
| `ranged`, `bounded` | range reads; concurrency limits and time-outs |
| `scratch` | temporary local files for data that exceeds memory |
"""

from lakelog.storage.base import FileEntry, LogStore, StoreWrapper
from lakelog.storage.resolve import open_store

__all__ = ["FileEntry", "LogStore", "StoreWrapper", "open_store"]
