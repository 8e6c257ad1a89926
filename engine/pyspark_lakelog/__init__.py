"""Where Spark looks for the data source ``lakelog``.

Spark goes through the top-level modules called ``pyspark_<name>`` and registers what each calls
``DefaultSource``, so ``spark.read.format("lakelog")`` works where lakelog is installed.
"""

from __future__ import annotations

from lakelog.spark.source import LakelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
