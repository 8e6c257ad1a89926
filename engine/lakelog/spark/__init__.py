"""lakelog on Spark: sessions, and the data source ``lakelog``.

The log stays lakelog's, the work is Spark's. The only part of lakelog that imports PySpark
(``pip install 'lakelog[spark]'``), and not before it is used.

>>> import lakelog.spark
>>> callable(lakelog.spark.session)
True
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
