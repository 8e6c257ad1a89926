"""Pipelines on Spark: ingest, compaction, and maintenance of the log.

Every step can be repeated at any time, also after a failure: completed work is detected. A file
that cannot be read is skipped for a cooldown, and the job continues; see `tags`.

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
