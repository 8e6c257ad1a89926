"""The IndexTables dialect: framings, commits, checkpoints of every generation, document mappings.

| module | owns |
|---|---|
| `dialect` | the `Dialect` of IndexTables; table properties |
| `listing` | files of the log folder by name |
| `protocol` | supported protocol versions |
| `framing` | compression framings; decompression limits |
| `commits`, `columnar` | commits as NDJSON and as Parquet |
| `json_checkpoint`, `checkpoint_writer` | reads and writes JSON checkpoints |
| `avro`, `avro_state` | Avro containers; Avro states |
| `flattened`, `flattened_writer` | reads and writes flattened Parquet checkpoints |
| `text_bounds` | bounds of row groups, from maps of texts |
| `docmapping` | document mappings: hashes and references |
"""

from lakelog.dialects.indextables.dialect import DIALECT
from lakelog.dialects.indextables.docmapping import doc_mapping_hash
from lakelog.dialects.indextables.framing import MAX_DECOMPRESSED_BYTES

__all__ = ["DIALECT", "MAX_DECOMPRESSED_BYTES", "doc_mapping_hash"]
