"""A package loads its modules when their names are first used, and no sooner."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

import lakelog
import lakelog.wal
from lakelog import lazy
from tests.handmade import Handmade, add

OPENING = {
    "": "arrow_arrays display errors input_validation lazy redaction snapshot table "
    "table_functions telemetry threads version",
    "dialects": "arrow_json base commit_chunks commit_info commit_reader exact_json features "
    "gc_pause json_layout log_content log_folders ndjson properties protocol_rules registry "
    "row_validation strict_decoder truncation_marks",
    "dialects.delta": "dialect last_checkpoint names paths properties protocol",
    "log": "base_checkpoint cache checksum_conflicts context files opening properties "
    "repeated_files replay segment snapshot state",
    "model": "actions column_names contract durations metadata reconcile",
    "skipping": "intervals json_texts prune statistics values",
    "sql": "condition",
    "storage": "base bounded containment durable local ranged resolve upload",
}
"""Packages that the first answer from a small Delta table imports.

None that writes, maintains, compares or exports, no other dialect, and no code for checkpoints.
"""
SLOW_TO_IMPORT = ("pandas", "fsspec", "adlfs", "gcsfs", "pyarrow.dataset", "pyarrow.parquet")


def test_lazy_name_is_imported_from_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("package")
    monkeypatch.setitem(sys.modules, "package", package)
    found = lazy.lazy_exports("package", {"dumps": "json"})
    assert not hasattr(package, "dumps")
    assert found("dumps") is package.dumps is __import__("json").dumps


def test_missing_name_raises_pythons_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module 'lakelog\.wal' has no attribute 'Walrus'$"):
        lakelog.wal.Walrus  # noqa: B018 - the access raises


@pytest.mark.parametrize("package", [lakelog, lakelog.wal], ids=lambda package: package.__name__)
def test_type_checking_imports_equal_the_lazy_names(package: ModuleType) -> None:
    declared: dict[str, str] = {}
    for node in ast.parse(inspect.getsource(package)).body:
        if isinstance(node, ast.If):
            for line in node.body:
                assert isinstance(line, ast.ImportFrom), "TYPE_CHECKING imports"
                declared |= {alias.name: line.module or "" for alias in line.names}
    assert declared
    for name, module in declared.items():
        assert getattr(package, name) is getattr(sys.modules[module], name)
        assert name in dir(package)
    assert all(hasattr(package, name) for name in package.__all__)


def test_subpackages_are_attributes_and_dir_omits_error_classes() -> None:
    code = (
        "import sys, lakelog\n"
        "assert 'lakelog.wal' not in sys.modules\n"
        "print(lakelog.wal.WriteAheadLog, lakelog.data.__name__, lakelog.spark.__name__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    listed = dir(lakelog)
    assert {"Table", "open", "write", "errors", "wal", "spark", "data", "LakelogError"} <= {*listed}
    assert "ConflictError" not in listed
    assert "ConflictError" in dir(lakelog.errors)
    assert lakelog.ConflictError is lakelog.errors.ConflictError


def test_first_read_of_a_small_table_imports_only_reading_modules(tmp_path: Path) -> None:
    Handmade(tmp_path / "t").start(add("a"))
    code = (
        "import sys, lakelog\n"
        "files = lakelog.open(sys.argv[1]).snapshot().files().collect()\n"
        "assert files.height == 1\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "t")]
    found = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    allowed = {"lakelog"}
    for package, modules in OPENING.items():
        below = f"lakelog.{package}".rstrip(".")
        allowed |= {below, *(f"{below}.{module}" for module in modules.split())}
    assert {name for name in found if name.split(".")[0] == "lakelog"} - allowed == set()
    assert found.isdisjoint(SLOW_TO_IMPORT)


def test_cached_property_is_computed_once_per_instance_without_blocking_others() -> None:
    released = threading.Event()
    computing = threading.Event()
    calls: list[str] = []

    class Slow:
        def __init__(self, name: str) -> None:
            self.name = name

        @lazy.cached_property
        def value(self) -> str:
            """Its name."""
            calls.append(self.name)
            if self.name == "hangs":
                computing.set()
                released.wait()
            return self.name

    hanging = Slow("hangs")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(lambda: hanging.value) for _ in range(3)]
        computing.wait()
        try:
            assert pool.submit(lambda: Slow("answers").value).result(timeout=30) == "answers"
        finally:
            released.set()
        assert [each.result() for each in waiting] == ["hangs"] * 3
    assert calls.count("hangs") == 1
    assert vars(hanging)["value"] == "hangs"
    assert not lazy._turns
    assert Slow.value.__doc__ == "Its name."


def test_a_property_that_failed_is_computed_again() -> None:
    class Fails:
        calls = 0

        @lazy.cached_property
        def value(self) -> int:
            self.calls += 1
            return 1 // (self.calls - 1)

    fails = Fails()
    with pytest.raises(ZeroDivisionError):
        fails.value  # noqa: B018 - raises
    assert fails.value == 1
    assert not lazy._turns


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork a process")
def test_forked_process_does_not_wait_for_threads_of_its_parent() -> None:
    """A thread computes a property, and another lists a table in memory, while the process forks;
    the fork is made inside of another property, which both processes then complete.
    """
    script = """
import os, signal, threading
import fsspec
from lakelog.lazy import cached_property
from lakelog.storage import open_store

released = threading.Event()
started = [threading.Event(), threading.Event()]


class Slow:
    @cached_property
    def value(self):
        started[0].set()
        released.wait()
        return 1

    @cached_property
    def fork(self):
        return os.fork()


def ls(*args, **options):
    started[1].set()
    released.wait()
    return []


slow, store = Slow(), open_store("memory://forked")
store.put("file", b"1")
listed, store._filesystem.ls = store._filesystem.ls, ls
threads = [
    threading.Thread(target=lambda: slow.value),
    threading.Thread(target=lambda: store.list_from("")),
]
for thread, start in zip(threads, started):
    thread.start()
    start.wait()
store._filesystem.ls = listed
child = slow.fork
if child == 0:
    signal.alarm(20)
    released.set()
    print(slow.value, [entry.name for entry in store.list_from("")], flush=True)
    os._exit(0)
status = os.waitpid(child, 0)[1]
released.set()
assert status == 0, f"the child ended with status {status}"
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1 ['file']\n", "")


def test_verbs_for_rows_do_not_import_pandas(tmp_path: Path) -> None:
    """Arrow's conversions from and to numpy and Python's lists would, for a quarter of a second."""
    script = """
import sys
import lakelog
import polars as pl

rows = pl.DataFrame({"i": range(100), "x": [0.5] * 100, "p": ["a", "b"] * 50})
for vectors in ("false", "true"):
    path = f"{sys.argv[1]}/{vectors}"
    properties = {"delta.enableDeletionVectors": vectors}
    table = lakelog.create(path, rows.schema, partition_by=["p"], configuration=properties)
    table.append(rows)
    table.append(rows)
    table.delete("i = 5")
    table.update({"x": "x + 1"}, "i > 97")
    table.upsert(rows.head(2).with_columns(x=2.5), on=["i", "p"])
    table.checkpoint()
    table.compact()
    assert table.snapshot().scan("p = 'a' AND i < 3").collect().height == 4
    assert table.changes(1).collect().height
    assert lakelog.open(path).snapshot().files(pl.col("p") == "a").collect().height
print("pandas" in sys.modules)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
