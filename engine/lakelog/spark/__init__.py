"""lakelog on Spark: sessions, and the data source ``lakelog``.

The log stays lakelog's, the work is Spark's. The only part of lakelog that imports PySpark
(``pip install 'lakelog[spark]'``), and not before it is used.

>>> import lakelog.spark
>>> callable(lakelog.spark.session)
True

| module | owns |
|---|---|
| `session`, `java`, `ship` | a session; a Java to run it on; the package, sent to executors |
| `source`, `options`, `catalog` | the data source; its options; SQL's tables |
| `told` | what users are told of errors |
| `reading`, `writing`, `landing` | batches out and in; rows of many tasks as one commit |
| `backlog`, `offsets` | what a stream has still to read; how far it has come |
| `stream_source`, `stream_sink` | streams, out and in |
| `replay`, `strategy` | a state as a DataFrame, and how it comes to be one |
| `exchange`, `state_rows` | by executors with lakelog's readers; by Spark alone |
| `footers`, `checkpoint`, `parts` | checkpoints: their footers; written by executors |
| `functions`, `types` | Spark's functions and types |
| `pipeline` | pipelines: a table filled and looked after |
"""

from __future__ import annotations

from lakelog.spark.checkpoint import checkpoint
from lakelog.spark.pipeline import Pipeline
from lakelog.spark.replay import Replay, plan_replay, replay
from lakelog.spark.session import register, session
from lakelog.spark.ship import ship

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
