"""Each worker starts each server once, when a test first needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator

import pytest

from tests.storage.backends import Backend, starting
from tests.storage.chaos_proxy import ChaosProxy, proxying

BACKENDS = ("local", "memory", "moto", "ministack", "azurite", "gcs")
CLOUDS = ("moto", "ministack", "azurite", "gcs")

BackendOf = Callable[[str], Backend]
ProxyOf = Callable[[str], ChaosProxy]

_RUNNING = pytest.StashKey[dict[str, Backend]]()


@pytest.fixture(scope="session")
def backend_of(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[BackendOf]:
    """The backend of a name, started on first use."""
    running: dict[str, Backend] = {}
    request.config.stash[_RUNNING] = running
    with contextlib.ExitStack() as stack:

        def backend(name: str) -> Backend:
            if name not in running:
                folder = tmp_path_factory.mktemp(name)
                running[name] = stack.enter_context(starting(name, folder))
            return running[name]

        yield backend


@pytest.fixture(scope="session")
def proxy_of(backend_of: BackendOf) -> Iterator[ProxyOf]:
    """A proxy in front of the server of a backend, started on first use."""
    proxies: dict[str, ChaosProxy] = {}
    with contextlib.ExitStack() as stack:

        def proxy(name: str) -> ChaosProxy:
            if name not in proxies:
                proxies[name] = stack.enter_context(proxying(backend_of(name).endpoint))
            return proxies[name]

        yield proxy


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure report contains the output of the servers."""
    report = yield
    if report.failed:
        for backend in item.config.stash.get(_RUNNING, {}).values():
            if backend.log is not None:
                report.sections.append((f"log of {backend.name}", backend.log.log_tail()))
    return report
