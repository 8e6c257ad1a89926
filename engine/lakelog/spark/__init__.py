"""lakelog on Spark: sessions, and the data source ``lakelog``.

lakelog reads the log, Spark processes the rows. This is the only part of lakelog that imports
PySpark (``pip install 'lakelog[spark]'``), on first use.

>>> import lakelog.spark
>>> callable(lakelog.spark.session)
True

| module | owns |
|---|---|
| `session`, `java`, `package_upload` | sessions; a packaged Java; lakelog sent to executors |
| `source`, `options` | the data source, its options, SQL tables |
| `error_display` | error messages in Spark |
| `reading`, `writing`, `task_commit` | batch reads and writes; files of many tasks in one commit |
| `stream_planner` | the micro-batches of a stream, and their offsets |
| `stream_source`, `stream_sink` | streaming reads and writes |
| `replay`, `strategy` | a version's state as a DataFrame; the choice of strategy |
| `shuffle_replay`, `checkpoint_rows` | replay by executors; checkpoint Parquet read by Spark |
| `checkpoint`, `checkpoint_parts`, `footers` | checkpoints written by executors; Parquet footers |
| `sql_functions`, `types` | functions of classic and Connect sessions; type conversion |
| `pipeline` | pipelines: ingest, compaction, maintenance |
"""

from __future__ import annotations

from lakelog.spark.checkpoint import checkpoint
from lakelog.spark.package_upload import ship
from lakelog.spark.pipeline import Pipeline
from lakelog.spark.replay import Replay, plan_replay, replay
from lakelog.spark.session import register, session

__all__ = [
    "Pipeline",
    "Replay",
    "checkpoint",
    "plan_replay",
    "register",
    "replay",
    "session",
    "ship",
]
