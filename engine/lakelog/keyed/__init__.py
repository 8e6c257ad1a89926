"""The keyed store: keys and values, durable in the write-ahead log, flushed to sorted Parquet
files.

| module | owns |
|---|---|
| `store` | the public `KeyedStore` |
| `opening` | manifest, files and log validated together; the immutable view that readers use |
| `memtable` | records that are not yet in a file |
| `sorted_file` | the Parquet format of a file; flush and compaction decisions |
| `manifest` | the list of current files, created and removed durably |
| `rows` | record layout and key ranges; arguments of callers |
"""

from lakelog.keyed.store import FileReport, KeyedStore

__all__ = ["FileReport", "KeyedStore"]
