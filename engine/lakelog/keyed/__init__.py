"""The keyed store: keys and values durable through the write-ahead log, flushed to sorted Parquet.

| module | owns |
|---|---|
| `store` | the public `KeyedStore` |
| `view` | the immutable view that readers use |
| `opening` | manifest, files and log validated together |
| `memtable` | records that are not yet in a file |
| `sorted_file` | the Parquet format of a file |
| `manifest` | the list of current files |
| `publish` | files created and removed durably |
| `plan` | flush and compaction decisions |
| `rows` | record layout and key ranges |
| `input_validation` | arguments of callers |
| `shared_lock` | a lock that many writers share, or one caller holds alone |
"""

from lakelog.keyed.store import FileReport, KeyedStore

__all__ = ["FileReport", "KeyedStore"]
