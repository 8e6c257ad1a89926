"""`session`: a Spark session configured for lakelog."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lakelog.errors import MissingDependencyError
from lakelog.spark.java import prepare_java
from lakelog.spark.package_upload import is_connect, ship

_EVERYWHERE = {
    # Times are written with Parquet's own type, with statistics, and displayed in UTC.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The default of later Spark versions: a state is a union, and a query on it one loop.
    "spark.sql.codegen.wholeStage.union.enabled": "true",
    # Spark's default, and the options of the store, which plans of writes contain.
    "spark.sql.redaction.options.regex": "(?i)url|^storage[.]",
}
_ON_ONE_MACHINE = {
    "spark.ui.showConsoleProgress": "false",
    # The machine's host name may not be resolvable.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def session(
    name: str = "lakelog", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> Any:
    """A Spark session that reads and writes ``format("lakelog")``.

    An existing session, classic or Connect, is used unchanged; `name`, `master` and `config` are
    then ignored. Otherwise a session is started: on the Connect server that the environment names
    (``SPARK_REMOTE``), else with the system's Java, or with a packaged one if the system's is not
    suitable (``JAVA_HOME`` of this process is then set). If Spark runs on one machine,
    ``PYSPARK_PYTHON`` is set, unless it is set already.

    Args:
        name: Name of the application.
        master: The Spark master; ``local[*]`` is this machine with all its cores.
        config: Settings of Spark; they override those of lakelog, which are UTC, Parquet
            timestamps in microseconds, Arrow, and plans without the options of the store. Spark
            logs errors only, unless its log is configured (``log4j2.properties`` in its ``conf``
            folder) or `config` has ``spark.log.level``.

    Returns:
        The session, with the data source registered and the package shipped.

    Raises:
        MissingDependencyError: PySpark, or a Java that it can run on, is not installed.
    """
    # lakelog is tested with pandas 3; PySpark warns of it in every process that converts a frame.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    spark = active_session()
    if spark is None:
        spark = _start(name, master, config or {})
    register(spark)
    return spark


def active_session() -> Any | None:
    """The existing session, classic or Connect, or None; MissingDependencyError without PySpark."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as cause:
        raise MissingDependencyError(
            "PySpark is not installed", hint="pip install 'lakelog[spark]'"
        ) from cause
    active = SparkSession.getActiveSession()
    if active is None and SparkSession._instantiatedSession is not None:  # noqa: SLF001 - public nowhere
        # A session of another thread: the builder returns the session of the process.
        active = SparkSession.builder.getOrCreate()
    return active


@contextmanager
def errors_unlogged() -> Iterator[None]:
    """In this block, PySpark does not log the errors that it raises, with their Java stack."""
    from pyspark.logger import PySparkLogger

    names = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
    loggers = [PySparkLogger.getLogger(name) for name in names]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def register(spark: Any) -> None:
    """Register the data source ``lakelog`` with a session, and ship the package to its executors.

    If lakelog is installed on the driver and on the executors, Spark finds the source without this
    call. Registration also sets the number of concurrent tasks of the session, by which the source
    divides small tables.

    If the thread has no active session, this one becomes active: without one, Spark finds no Python
    data source to write to.

    Args:
        spark: A session, classic or Connect.
    """
    from lakelog.spark.source import LakelogDataSource

    ship(spark)
    if not is_connect(spark) and type(spark).getActiveSession() is None:
        # PySpark has no public function to make a session the active one.
        sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession  # noqa: SLF001
        sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
    spark.dataSource.register(LakelogDataSource.for_session(parallelism(spark)))


def parallelism(spark: Any) -> int | None:
    """The number of concurrent tasks of a session; None if it is unknown (Connect)."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    for key in ("spark.sql.leafNodeDefaultParallelism", "spark.default.parallelism"):
        value = spark.conf.get(key, None)
        if value is not None:
            return int(value)
    return None


def _start(name: str, master: str, config: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    settings = dict(_EVERYWHERE)
    builder = SparkSession.builder.appName(name)
    place = os.environ.get("SPARK_REMOTE")
    if place is None and not is_remote():
        place = master
        builder = builder.master(master)
        if master.startswith("local"):
            settings |= _ON_ONE_MACHINE
    if place is not None and not place.startswith("sc://"):  # this process starts a JVM
        prepare_java()
        if place.startswith("local"):
            # Tasks run on this machine, so they can use the Python of this process.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _log_settings(config.get("spark.driver.extraJavaOptions", "")):
        return builder.config(map=settings | dict(config)).getOrCreate()


@contextmanager
def _log_settings(java_options: str) -> Iterator[None]:
    """A JVM that starts in this block logs errors only, unless Spark's log is configured."""
    before = os.environ.get("SPARK_SUBMIT_OPTS")
    folder = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    ours = Path(__file__).with_name("log4j2.properties")
    is_configured = "log4j" in f"{before} {java_options}" or any(Path(folder).glob("log4j2.*"))
    if is_configured or not ours.is_file():
        yield
        return
    option = f"-Dlog4j2.configurationFile={ours.as_uri()}"
    os.environ["SPARK_SUBMIT_OPTS"] = f"{before} {option}" if before else option
    try:
        yield
    finally:
        if before is None:
            del os.environ["SPARK_SUBMIT_OPTS"]
        else:
            os.environ["SPARK_SUBMIT_OPTS"] = before
