"""Ingestion: rows made durable in a local write-ahead log, and committed to a table exactly once.

| module | owns |
|---|---|
| `ingestor` | the public `Ingestor`: writers, when to commit and to compact, back-pressure |
| `background` | the threads that commit and compact |
| `asynchronous` | `AsyncIngestor`: awaitable calls |
| `files` | rows of files and standard input, with positions |
| `committer` | records to commits; readers' view of table and log |
| `rows` | rows checked, encoded as records, and decoded |
| `texts` | JSON, and the texts of CSV, in the table's types |
| `records` | records as columns |
| `joined_records` | records of several threads |
| `state` | ``ingest.json``, diverted rows; which records are committed |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakelog import lazy

if TYPE_CHECKING:
    from lakelog.ingest.asynchronous import AsyncIngestor
    from lakelog.ingest.ingestor import Ingestor
    from lakelog.ingest.state import IngestStatus

__all__ = ["AsyncIngestor", "IngestStatus", "Ingestor"]

__getattr__ = lazy.lazy_exports(
    __name__,
    {
        "AsyncIngestor": "lakelog.ingest.asynchronous",
        "IngestStatus": "lakelog.ingest.state",
        "Ingestor": "lakelog.ingest.ingestor",
    },
)
