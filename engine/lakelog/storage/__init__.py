"""Stores: read and write the files of a table. Does not interpret their contents.

| module | owns |
|---|---|
| `base` | the `LogStore` and `Upload` interfaces, and the errors of each call |
| `resolve` | the store of a location |
| `containment` | files outside of the table's folder: allowed or refused |
| `local`, `durable` | local disk; atomic and durable file creation |
| `memory` | fsspec's ``memory://`` |
| `remote` | any fsspec filesystem, read-only |
| `cloud`, `conditional` | object stores with conditional writes |
| `s3`, `azure`, `gcs` | the three clouds |
| `upload`, `parts`, `sink` | uploads: shared code, multi-part, as a file object for pyarrow |
| `ranged`, `bounded`, `progress` | range reads; concurrency limits and time-outs; progress |
| `wrapper` | base classes of stores and files over another one |
| `scratch` | temporary local files for data that exceeds memory |
"""

from lakelog.storage.base import FileEntry, LogStore
from lakelog.storage.resolve import open_store
from lakelog.storage.wrapper import StoreWrapper

__all__ = ["FileEntry", "LogStore", "StoreWrapper", "open_store"]
