"""Shared fixtures: the corpus of real logs, the sample of cases of a run, and the rule that CI
reports every skip.
"""

from __future__ import annotations

import gc
import os
import tempfile
import zlib
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

pytest.register_assert_rewrite("lakelog.testing")

REPOSITORY = Path(__file__).resolve().parent.parent

CI = os.environ.get("CI", "").lower() in {"1", "true"}

ALLOWED_SKIPS_IN_CI: dict[str, str] = {
    # Start of a skip's reason, and why CI may lack what it names.
    "corpus not found": "a separate clone has no corpus next to it",
    "no build of IndexTables": "CI has no access to its sources; tables that it wrote are tested",
}

# Shared machines stall at times, so no example is held to a deadline. A failure prints the seed
# (`@reproduce_failure`) that replays it.
settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=100 if os.environ.get("LAKELOG_SAMPLE") == "all" else 25,
)
settings.load_profile("default")


def find_corpus() -> Path | None:
    """The folder of real logs: LAKELOG_CORPUS, else ../shared/corpus next to the checkout. None if
    the default does not exist. A LAKELOG_CORPUS that does not exist is an error, because its tests
    were requested.
    """
    named = os.environ.get("LAKELOG_CORPUS")
    root = Path(named) if named else REPOSITORY.parent / "shared" / "corpus"
    if root.is_dir():
        return root
    if named:
        raise pytest.UsageError(f"LAKELOG_CORPUS is not a folder: {named}")
    return None


def missing_corpus_reason() -> str:
    return "corpus not found: set LAKELOG_CORPUS, or place it at ../shared/corpus"


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Root of the corpus of real logs, read-only (`delta/`, `indextables/`)."""
    root = find_corpus()
    if root is None:
        pytest.skip(missing_corpus_reason())
    return root


class HasFileno(Protocol):
    """Argument type of fsync in addition to a number."""

    def fileno(self) -> int: ...


NEEDS_FSYNC = frozenset(("perf", "races"))
"""Folders of tests that depend on the disk's speed."""


@pytest.fixture(autouse=True, scope="module")
def _fsync_does_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """In other folders, fsync does nothing: a killed process loses nothing that it has written, and
    tests of a power loss simulate their disk. Processes that a test starts sync as usual.
    """
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    if folder in NEEDS_FSYNC:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _checked_only)
        yield


def _checked_only(descriptor: int | HasFileno) -> None:
    """Only check that the file is open, as the system would."""
    os.fstat(descriptor if isinstance(descriptor, int) else descriptor.fileno())


@pytest.fixture(scope="session")
def _worker_python() -> Iterator[str]:
    """The Python of Spark's workers."""
    from tests.spark.warm_python import warm_python

    # The path of a socket is short, and that of a test's folder may be long.
    with tempfile.TemporaryDirectory() as folder, warm_python(Path(folder)) as program:
        yield os.fspath(program)


@pytest.fixture
def _quick_spark(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, _worker_python: str
) -> None:
    """Settings for Spark sessions of documentation and notebooks, which start without any."""
    from tests.spark.configured import QUICK  # not if a copy of this file is tested by itself

    folder = tmp_path_factory.mktemp("conf")
    chosen = QUICK | {"spark.sql.shuffle.partitions": "2"}
    lines = [f"{name} {value}\n" for name, value in chosen.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    monkeypatch.setenv("SPARK_CONF_DIR", os.fspath(folder))
    monkeypatch.setenv("PYSPARK_PYTHON", _worker_python)


class SkipsAreFailures:
    """Under CI: collects every skip, and fails the run for each one that is not allowed. Skips of
    whole modules are only visible to the workers of a parallel run, which send theirs to the main
    process.
    """

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(tuple(ALLOWED_SKIPS_IN_CI)):
            self.refused[report.nodeid] = reason

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.refused |= getattr(node, "workeroutput", {}).get("refused", {})

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["refused"] = self.refused
        elif self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            terminalreporter.section("skipped in CI, which counts as failed", red=True)
            for nodeid, reason in self.refused.items():
                terminalreporter.line(f"{nodeid}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Tests raise KeyboardInterrupt on purpose. One that escapes fails its test; in a worker of a
    parallel run, which does not receive the user's Ctrl-C, it would end the whole run.
    """
    try:
        return (yield)
    except KeyboardInterrupt as escaped:
        if "PYTEST_XDIST_WORKER" in os.environ:
            raise AssertionError("a KeyboardInterrupt escaped the test") from escaped
        raise


SAMPLE = "LAKELOG_SAMPLE"
"""``all`` runs every case of `sampled` tests; a number is the seed of the sample."""


ON_SPARK = "tests/spark/*"
ON_ONE_WORKER = (ON_SPARK, "tests/kernel/*", "tests/storage/*")
"""Folders of tests with a JVM or servers in common, which every other worker would start too."""
LONG = (
    ON_SPARK,
    "tests/test_notebooks.py",
    "tests/test_documentation.py",
    "tests/storage/*",
    "tests/kernel/*",
    "tests/checkpoint/*",
    "tests/faults/*",
    "tests/conformance/*",
)
"""They run first, so that no worker is left with a long file when the others have finished."""


class SharedFixtures(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Distributes tests by files, so that one worker makes a module's fixtures, and those of
    `ON_ONE_WORKER` together.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((files for files in ON_ONE_WORKER if fnmatchcase(file, files)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than the cores, because tests wait for a third of their time."""
    given = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return int(given) if given else (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # the order is that of `LONG`
    return SharedFixtures(config, log)


def pytest_report_header() -> str:
    return (
        f"sampled tests: {SAMPLE}={os.environ[SAMPLE]} repeats this choice, {SAMPLE}=all runs all"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases that are not in the sample, and run those of `LONG` first."""
    named = any("[" in argument for argument in config.args)
    if os.environ[SAMPLE] != "all" and not named:
        left_out = _not_sampled(items, os.environ[SAMPLE])
        if left_out:
            config.hook.pytest_deselected(items=[i for i in items if i in left_out])
            items[:] = [i for i in items if i not in left_out]
    items.sort(key=_turn)


def pytest_collection_finish() -> None:
    """Take what pytest has collected, half a million objects, out of garbage collection: each of
    sixty collections that tests and benchmarks request took a third of a second.
    """
    gc.freeze()


def _turn(item: pytest.Item) -> int:
    """Position of a test's file in the run; tests of equal position stay in order."""
    file = item.nodeid.partition("::")[0]
    return next((n for n, files in enumerate(LONG) if fnmatchcase(file, files)), len(LONG))


def _not_sampled(items: list[pytest.Item], seed: str) -> set[pytest.Item]:
    """Cases that the marker `sampled(share, keep=(), of="test")` omits. Of the cases of one test
    (or class) with equal parameters `keep`, one in `share` is kept, rounded up, so that each value
    of these parameters is always tested.
    """
    groups: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is None:
            continue
        (share,) = marker.args
        owner = item.nodeid.partition("[")[0]
        if marker.kwargs.get("of") == "class":
            owner = owner.rpartition("::")[0]
        parameters: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
        kept = [
            repr(parameters[name]) for name in marker.kwargs.get("keep", ()) if name in parameters
        ]
        groups.setdefault((share, owner, *kept), []).append(item)
    left_out: set[pytest.Item] = set()
    for (share, *_), cases in groups.items():
        assert isinstance(share, int)
        cases.sort(key=lambda item: zlib.crc32(f"{seed} {item.nodeid}".encode()))
        left_out.update(cases[-(-len(cases) // share) :])
    return left_out


def pytest_configure(config: pytest.Config) -> None:
    # The workers of a parallel run inherit it. The sample changes from day to day.
    os.environ.setdefault(SAMPLE, datetime.now(UTC).strftime("%Y%m%d"))
    if CI:
        config.pluginmanager.register(SkipsAreFailures(), "skips-are-failures")
