"""IndexTables' log: framings, commits, the checkpoints of every generation, document mappings."""

from lakelog.formats.indextables.dialect import DIALECT
from lakelog.formats.indextables.docmapping import doc_mapping_hash
from lakelog.formats.indextables.framing import MAX_DECOMPRESSED_BYTES

__all__ = ["DIALECT", "MAX_DECOMPRESSED_BYTES", "doc_mapping_hash"]
