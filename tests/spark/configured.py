"""Sessions for tests: with temporary settings, and as a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for short queries on few rows, where compilation costs more than it saves."""


def serve(spark: Any) -> str:
    """Start a Spark Connect server in the JVM of a session; returns its address."""
    service = getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    service = getattr(service, "MODULE$")
    service.start(spark.sparkContext._jsc.sc())
    return f"sc://127.0.0.1:{service.localPort()}"


@contextmanager
def configured(spark: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Spark with these settings, which are restored afterwards."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, known in before.items():
            if known is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, known)
