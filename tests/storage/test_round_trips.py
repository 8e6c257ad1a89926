"""Requests to the server: listings start at a key, and few round trips are sequential."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.storage.chaos_proxy import ChaosProxy, Seen
from tests.storage.conftest import CLOUDS, BackendOf, ProxyOf

pytestmark = pytest.mark.sampled(4)

# Azurite returns 5,000 names per page, and slows down with each stored name.
NAMES = {"moto": 2000, "ministack": 2000, "gcs": 2000, "azurite": 500}
PAGE = 1000
QUIET_S = 0.4
COMMITS = 100
ATTEMPTS = 5

# The parameter for the start of a listing in each service. That of S3 is exclusive, the others
# inclusive.
START_KEYS = {
    "moto": "start-after",
    "ministack": "start-after",
    "gcs": "startOffset",
    "azurite": "startFrom",
}


def fewest_round_trips(proxy: ChaosProxy, act: Callable[[], None], expected: int) -> int:
    """The round trips of the best of several attempts: on a busy machine, requests that are sent
    together may arrive too far apart to be counted as one.
    """
    counts: list[int] = []
    while len(counts) < ATTEMPTS and min(counts, default=expected + 1) > expected:
        with proxy.doing(quiet_s=QUIET_S):
            act()
        counts.append(proxy.round_trips)
    return min(counts)


def query(seen: Seen) -> Mapping[str, str]:
    return dict(parse_qsl(urlsplit(seen.target).query))


@pytest.mark.parametrize("backend_name", CLOUDS)
def test_listing_of_the_end_of_a_long_log_is_one_request(
    backend_of: BackendOf, proxy_of: ProxyOf, backend_name: str
) -> None:
    backend, proxy = backend_of(backend_name), proxy_of(backend_name)
    location = backend.fresh()
    wanted = [f"{version:020d}.json" for version in range(NAMES[backend_name])]
    start = len(wanted) - 10
    backend.seed(location, {f"log/{name}": b"x" for name in wanted})
    store = backend.through(proxy.url).open(location)
    store.list_from("nowhere")  # connects
    with proxy.doing() as requests:
        found = store.list_from("log", f"{start:020d}")
    assert [entry.name for entry in found] == wanted[start:]
    (only,) = requests
    assert START_KEYS[backend_name] in query(only)
    if backend_name != "azurite":  # which ignores the start
        with proxy.doing() as requests:
            assert len(store.list_from("log")) == len(wanted)
        assert len(requests) == len(wanted) / PAGE


@pytest.mark.parametrize("backend_name", CLOUDS)
def test_many_files_are_requested_in_parallel(
    backend_of: BackendOf, proxy_of: ProxyOf, backend_name: str
) -> None:
    backend, proxy = backend_of(backend_name), proxy_of(backend_name)
    location = backend.fresh()
    backend.seed(location, {f"log/{i}": b"%d" % i for i in range(COMMITS)})
    store = backend.through(proxy.url).open(location)
    store.read("log/0")  # connects

    def read_all() -> None:
        found = list(store.read_many([f"log/{i}" for i in range(COMMITS)]))
        assert found == [b"%d" % i for i in range(COMMITS)]

    assert fewest_round_trips(proxy, read_all, COMMITS // 20) <= COMMITS // 20
    with proxy.doing() as requests:
        read_all()
    assert len(requests) == COMMITS  # one request each
