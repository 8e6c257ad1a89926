"""IndexTables' log: framings, commits, the checkpoints of every generation, document mappings.

| module | owns |
|---|---|
| `dialect` | what the layers above are given |
| `listing`, `protocol` | what stands in the folder, by name; which tables are honoured |
| `framing`, `expansion` | framings of a file; how far a compressed one may expand |
| `commits`, `columnar` | commits as lines, and as Parquet |
| `reading`, `json_checkpoint` | what readers of checkpoints share; JSON ones |
| `avro`, `avro_state` | Avro containers; states in them |
| `flattened`, `flattened_writer` | flattened Parquet read and written |
| `staging`, `checkpoint_writer` | what writers share; JSON checkpoints written |
| `docmapping` | document mappings: their hash and references |
"""

from lakelog.formats.indextables.dialect import DIALECT
from lakelog.formats.indextables.docmapping import doc_mapping_hash
from lakelog.formats.indextables.expansion import MAX_DECOMPRESSED_BYTES

__all__ = ["DIALECT", "MAX_DECOMPRESSED_BYTES", "doc_mapping_hash"]
