"""The keyed store: keys and values durable through the write-ahead log, flushed to sorted Parquet.

| module | owns |
|---|---|
| `store` | `KeyedStore`: the order of steps, and who may do them at the same time |
| `view` | what readers see of it |
| `opening` | manifest, files and log of one moment, or a refusal |
| `memtable` | records that no file holds yet |
| `sorted_file` | the bytes of a file |
| `manifest` | which files count |
| `publish` | names on the disk |
| `plan` | what to merge, in which pieces |
| `rows` | which record of a key counts |
| `given` | what callers give, checked |
| `latch` | a moment without writers |
"""

from lakelog.keyed.store import FileReport, KeyedStore

__all__ = ["FileReport", "KeyedStore"]
