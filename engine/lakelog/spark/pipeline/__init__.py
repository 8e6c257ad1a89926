"""Pipelines on Spark: ingest, compaction, and maintenance of the log.

Every step can be repeated at any time, also after a failure: completed work is detected. A file
that cannot be read is skipped for a cooldown, and the job continues; see `compact`.

>>> Pipeline("clicks", Target(path="clicks"), vacuum=Vacuum()).steps
('vacuum',)

| module | owns |
|---|---|
| `pipeline`, `steps` | `Pipeline`, which runs the steps; their settings and reports |
| `ingest` | rows from any Spark source; strict NDJSON |
| `compact` | compaction by executors |
| `upkeep` | checkpoint, cleanup and vacuum |
"""

from __future__ import annotations

from lakelog.spark.pipeline.pipeline import Pipeline
from lakelog.spark.pipeline.steps import (
    Checkpoint,
    Cleanup,
    Compact,
    Ingest,
    PipelineReport,
    StepReport,
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
