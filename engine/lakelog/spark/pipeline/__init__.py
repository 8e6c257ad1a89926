"""Pipelines: rows into a table, small files into large ones, the log looked after; all on Spark.

Every step can be run again at any time, after a failure too: what is done is found done. A file
that cannot be read is left alone for a while, and the job continues; see `tags`.

>>> Pipeline("clicks", Target(path="clicks"), vacuum=Vacuum()).steps
('vacuum',)

| module | owns |
|---|---|
| `description`, `steps`, `report` | `Pipeline`; the settings and the report of each step |
| `run` | runs the steps in order |
| `ingest`, `lines` | rows from any Spark source; strict NDJSON |
| `compact`, `bins`, `rewrite` | compaction: the step, its plan, the work of executors |
| `upkeep`, `listing` | checkpoint, cleanup and vacuum; folders listed by executors |
| `tags` | tags of compacted and of unreadable files |
"""

from __future__ import annotations

from lakelog.spark.pipeline.description import Pipeline
from lakelog.spark.pipeline.report import PipelineReport, StepReport
from lakelog.spark.pipeline.steps import (
    Checkpoint,
    Cleanup,
    Compact,
    Ingest,
    Target,
    Vacuum,
)

__all__ = [
    "Checkpoint",
    "Cleanup",
    "Compact",
    "Ingest",
    "Pipeline",
    "PipelineReport",
    "StepReport",
    "Target",
    "Vacuum",
]
