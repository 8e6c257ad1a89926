"""A Spark session for one run, the same for every contender."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import lakelog.spark
from lakelog.spark.java import make_home, packaged_java
from tests.spark.delta_jars import delta_jars, write_trust_store

CORES = min(4, os.cpu_count() or 1)
TWO_EXECUTORS = "local-cluster[2,1,3072]"
"""Two executor processes with one core and 3 GiB each, in addition to the driver."""


def start(scratch: str, master: str = f"local[{CORES}]") -> Any:
    """A warm local session with lakelog's data source and Delta Lake: Spark has run a query, and a
    Python worker was started.

    Args:
        scratch: A folder for the temporary files of the session.
        master: Spark's master, if no session is active.

    Raises:
        JarsUnavailableError: Delta's jars are not installed and cannot be downloaded.
    """
    warnings.simplefilter("ignore")
    folder = Path(scratch) / "session"
    home = folder / "java"
    home.mkdir(parents=True)
    trust = folder / "trust.jks"
    option = [f"-Djavax.net.ssl.trustStore={trust}"] if write_trust_store(trust) else []
    make_home(home, packaged_java().home, option)
    os.environ["JAVA_HOME"] = os.fspath(home)
    delta = "org.apache.spark.sql.delta"
    spark = lakelog.spark.session(
        "lakelog bench",
        master=master,
        config={
            "spark.driver.memory": "6g",
            "spark.executor.memory": "3g",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.warehouse.dir": os.fspath(folder / "warehouse"),
            "spark.sql.shuffle.partitions": str(CORES),
            "spark.jars": ",".join(map(os.fspath, delta_jars(home))),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": f"{delta}.catalog.DeltaCatalog",
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(100, numPartitions=CORES).mapInArrow(lambda rows: rows, "id long").count()
    return spark
