"""The IndexTables dialect: framings, commits, checkpoints of every generation, document mappings.

| module | owns |
|---|---|
| `dialect` | the `Dialect` of IndexTables |
| `listing`, `protocol` | files of the log folder by name; supported protocol versions |
| `framing`, `expansion` | compression framings; decompression limits |
| `commits`, `columnar` | commits as NDJSON and as Parquet |
| `reading`, `json_checkpoint` | code shared by checkpoint readers; JSON checkpoints |
| `avro`, `avro_state` | Avro containers; Avro states |
| `flattened`, `flattened_writer` | flattened Parquet checkpoints read and written |
| `staging`, `checkpoint_writer` | code shared by checkpoint writers; JSON checkpoints written |
| `docmapping` | document mappings: hashes and references |
"""

from lakelog.dialects.indextables.dialect import DIALECT
from lakelog.dialects.indextables.docmapping import doc_mapping_hash
from lakelog.dialects.indextables.expansion import MAX_DECOMPRESSED_BYTES

__all__ = ["DIALECT", "MAX_DECOMPRESSED_BYTES", "doc_mapping_hash"]
