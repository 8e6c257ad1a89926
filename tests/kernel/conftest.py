"""One JVM with the Java Delta Kernel for all tests of a worker."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator

import pytest

from lakelog.spark.java import packaged_java
from tests.kernel.engine import Kernel
from tests.spark.conftest import java_home
from tests.spark.delta_jars import JarsUnavailableError, delta_jars


@pytest.fixture(scope="session")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """The Kernel; skips if its jars are neither cached nor downloadable."""
    try:
        jars = delta_jars(java_home(tmp_path_factory.mktemp("java")))
    except JarsUnavailableError as error:
        pytest.skip(f"Delta's jars are not here and cannot be fetched: {error}")
    with warnings.catch_warnings():
        # PySpark's converters load this module, which keeps a warning about pandas as the reason
        # why Spark Connect is unavailable, where warnings are errors.
        warnings.simplefilter("ignore")
        importlib.import_module("pyspark.testing.utils")
    started = Kernel.start(packaged_java().home / "bin" / "java", jars)
    yield started
    started.stop()
