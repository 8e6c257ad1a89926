"""The Delta dialect: names, paths, features, commits and checkpoints of ``_delta_log/``.

| module | owns |
|---|---|
| `dialect` | the `Dialect` of Delta; encoding of commits |
| `names`, `paths` | file names; paths and file identities |
| `protocol`, `properties` | table features; table properties |
| `last_checkpoint` | ``_last_checkpoint`` and ``.crc`` |
| `checkpoint`, `parquet` | reads checkpoints of every layout; their Parquet as frames |
| `checkpoint_writer`, `checkpoint_files` | writes checkpoints; encodes their files in parallel |
| `distributed` | the parts of a checkpoint that several processes write |
| `checkpoint_rows`, `checkpoint_schema` | rows and Arrow schemas of a checkpoint |
| `checkpoint_manifest`, `sidecar_fingerprints` | V2 manifests, and their record of each sidecar |
| `path_filters` | Bloom filters of paths |
| `typed_bounds` | bounds of row groups, from typed columns |
| `deletion_vectors`, `murmur3` | deletion vector descriptors; Spark's hash |
"""

from lakelog.dialects.delta.dialect import DIALECT

__all__ = ["DIALECT"]
