"""The Delta dialect: names, paths, features, commits and checkpoints of ``_delta_log/``.

| module | owns |
|---|---|
| `dialect` | the `Dialect` of Delta |
| `names`, `paths`, `features` | file names; paths and file identities; reader features |
| `commits`, `last_checkpoint` | commits written; ``_last_checkpoint`` and ``.crc`` |
| `checkpoint`, `parquet` | checkpoints of every layout read; their Parquet as frames |
| `footers`, `plain_types` | Parquet footers validated; Arrow's view and large types |
| `checkpoint_writer`, `checkpoint_pipeline` | checkpoints written; encoding in parallel |
| `checkpoint_files` | files written atomically |
| `checkpoint_rows`, `checkpoint_schema` | rows and Arrow schemas of a checkpoint |
| `checkpoint_columns` | required columns |
| `checkpoint_typed` | typed copies of statistics and partition values |
| `checkpoint_manifest`, `sidecar_fingerprints` | V2 manifests, and their record of each sidecar |
| `sidecar_inspection`, `path_filters` | sidecars checked by footer; Bloom filters of paths |
| `deletion_vectors`, `murmur3` | deletion vector descriptors; Spark's hash |
"""

from lakelog.dialects.delta.dialect import DIALECT

__all__ = ["DIALECT"]
