"""Delta's log: names, paths, features, commits and checkpoints.

| module | owns |
|---|---|
| `dialect` | what the layers above are given |
| `names`, `paths`, `features` | file names; paths and identities of files; reader features |
| `commits`, `hints` | commits written; ``_last_checkpoint`` and ``.crc`` |
| `checkpoint`, `parquet` | checkpoints of every kind read; their Parquet as frames |
| `footers`, `plain_types` | footers that can be believed; Arrow's other layouts of text |
| `checkpoint_writer`, `checkpoint_lanes` | checkpoints written, side by side with reading |
| `checkpoint_files` | their files, whole or not at all |
| `checkpoint_rows`, `checkpoint_schema` | their rows and schemas |
| `checkpoint_columns` | columns whose absence is damage |
| `checkpoint_typed` | typed copies of statistics and partition values |
| `checkpoint_manifest`, `fingerprints` | what a V2 manifest records of itself and of sidecars |
| `inspection`, `path_filters` | what a sidecar says unread; which paths it may hold |
| `deletion_vectors`, `murmur3` | where vectors stand; Spark's hash of text |
"""

from lakelog.formats.delta.dialect import DIALECT

__all__ = ["DIALECT"]
