"""Each cloud driver through a proxy that loses answers, refuses, hangs and truncates.

The driver repeats requests on its own, so the number of requests is not tested. The tests verify
that no result is wrong: True and False are returned only if they are certain, a write raises
`UnavailableError` only if nothing was written, and every call ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest

from lakelog.errors import LakelogError, NotFoundError, OutcomeUnknownError, UnavailableError
from lakelog.storage import LogStore, azure, conditional, fsspec_store
from lakelog.storage.base import Upload
from lakelog.storage.cloud import PART_BYTES
from tests.storage.backends import Backend
from tests.storage.chaos_proxy import ChaosProxy, Fault, Rule, Seen
from tests.storage.conftest import CLOUDS, BackendOf, ProxyOf

pytestmark = pytest.mark.sampled(8, keep=("fault",))

OWN, OTHER = b"own content " * 100, b"the other's content"
PATH = "log/00000000000000000007.json"
ON_PATH = r"log(/|%2F)00000000000000000007\.json"
WRITES = "PUT|POST"
# More than the driver repeats a request: s3fs up to ten times in these tests, the others never.
FAULTS_OF_AN_OUTAGE = {"moto": 18, "ministack": 18, "azurite": 8, "gcs": 8}
ALWAYS = 1_000_000

READ_TIMEOUT_S = 2.0
DEADLINE_S = 3.0  # of a call whose every attempt fails; outside of tests, a minute or more
LIMIT_S = 40.0
"""Well below the untested deadline, and long enough for a busy machine."""

FEW_RETRIES = {"retries": {"max_attempts": 1}}
S3_CONFIG = {"connect_timeout": 1, "read_timeout": READ_TIMEOUT_S, **FEW_RETRIES}
OWN_TIMEOUTS: dict[str, dict[str, Any]] = {
    "moto": {"config_kwargs": FEW_RETRIES},
    "ministack": {"config_kwargs": FEW_RETRIES},
    "azurite": {},
    "gcs": {},
}
SHORT_TIMEOUTS: dict[str, dict[str, Any]] = {
    "moto": {"config_kwargs": S3_CONFIG},
    "ministack": {"config_kwargs": S3_CONFIG},
    "azurite": {"read_timeout": READ_TIMEOUT_S, "connection_timeout": 1},
    "gcs": {"requests_timeout": READ_TIMEOUT_S},
}

T = TypeVar("T")

PAUSE_S = 0.01
"""The longest pause of a driver before it repeats a request; without tests it is seconds."""

BEFORE = (Fault.FAILED, Fault.BUSY, Fault.TOO_MANY, Fault.RESET, Fault.HANG)
AFTER = (Fault.BUSY_AFTER, Fault.RESET_AFTER, Fault.HANG_AFTER)


@pytest.fixture(params=CLOUDS)
def backend_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@dataclass(frozen=True)
class Cloud:
    """A store of one kind, reached through a proxy.

    Attributes:
        name: Of its backend.
        proxy: Applies rules to its requests.
        direct: Opens the store without the proxy.
        location: The location of the store.
        store: The store through the proxy. Its time-outs are short only where requests hang: on a
            busy machine, other requests may pass a short one.
    """

    name: str
    proxy: ChaosProxy
    direct: Backend
    location: str
    store: LogStore

    @contextlib.contextmanager
    def failing(self, rule: Rule) -> Iterator[list[Seen]]:
        """Apply a rule to every request, and shorten the deadline until which drivers repeat them.

        What must succeed is called outside of the block, because a busy machine needs longer.
        """
        with (
            pytest.MonkeyPatch.context() as patch,
            self.proxy.doing(replace(rule, times=ALWAYS)) as requests,
        ):
            patch.setattr(conditional, "_DEADLINE_S", DEADLINE_S)
            patch.setattr(fsspec_store, "_WHOLE_DEADLINE_S", DEADLINE_S)
            yield requests

    def without_proxy(self) -> LogStore:
        """The same store without the proxy."""
        return self.direct.open(self.location)

    def content(self) -> bytes | None:
        """The actual content."""
        try:
            return self.without_proxy().read(PATH)
        except NotFoundError:
            return None


@pytest.fixture
def cloud(
    proxy_of: ProxyOf,
    backend_of: BackendOf,
    backend_name: str,
    request: pytest.FixtureRequest,
) -> Cloud:
    proxy, direct = proxy_of(backend_name), backend_of(backend_name)
    location = direct.fresh()
    fault = request.node.callspec.params.get("fault")
    options = SHORT_TIMEOUTS if fault in {Fault.HANG, Fault.HANG_AFTER} else OWN_TIMEOUTS
    store = direct.through(proxy.url, **options[backend_name]).open(location)
    assert answered(lambda: store.list_from("log")) == []  # connects
    return Cloud(backend_name, proxy, direct, location, store)


def answered(call: Callable[[], T]) -> T:
    """The result of a call that no rule concerns. It is repeated while a busy machine needs longer
    than a short time-out.
    """
    until = time.monotonic() + 120
    while True:
        try:
            return call()
        except (OutcomeUnknownError, UnavailableError):
            if time.monotonic() > until:
                raise


class ShortPauses:
    """The module `asyncio` as a driver sees it, with short pauses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(min(delay_s, PAUSE_S))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten pauses: the requests that a driver repeats are tested, not the time between them."""
    for module in ("aiobotocore.endpoint", "gcsfs.retry", "s3fs.core"):
        monkeypatch.setattr(importlib.import_module(module), "asyncio", ShortPauses())
    monkeypatch.setattr(azure, "_FIRST_PAUSE_S", PAUSE_S)
    monkeypatch.setattr(azure, "_JITTER_S", PAUSE_S)
    monkeypatch.setattr(azure, "_PAUSE_BASE", 0.0)
    monkeypatch.setattr(conditional, "_FIRST_PAUSE_S", PAUSE_S)
    monkeypatch.setattr(conditional, "_LONGEST_PAUSE_S", PAUSE_S)


def outcome(call: Callable[[], bool]) -> bool | type[LakelogError]:
    """The outcome of a write."""
    try:
        return call()
    except (OutcomeUnknownError, UnavailableError) as error:
        return type(error)


def effects(requests: list[Seen]) -> int:
    """Number of write requests that the server carried out."""
    return sum(
        r.method in {"PUT", "POST"} and r.status is not None and r.status < 300 for r in requests
    )


# --- answers that are lost after the effect ------------------------------------------------------


@pytest.mark.parametrize("fault", AFTER, ids=lambda f: f.value)
def test_creation_with_a_lost_answer_is_not_reported_as_failed(cloud: Cloud, fault: Fault) -> None:
    with cloud.proxy.doing(Rule(fault, WRITES, ON_PATH)) as requests:
        result = outcome(lambda: cloud.store.put_if_absent(PATH, OWN))
    assert requests[0].fault is fault
    # This call wrote it, as the content shows, even if the driver assumes another writer.
    assert cloud.content() == OWN
    assert effects(requests) == 1
    assert result in {True, False, OutcomeUnknownError}


@pytest.mark.parametrize("fault", AFTER, ids=lambda f: f.value)
def test_creation_without_any_answer_raises_outcome_unknown_error(
    cloud: Cloud, fault: Fault
) -> None:
    started = time.monotonic()
    with cloud.failing(Rule(fault, WRITES, ON_PATH)) as requests:
        assert outcome(lambda: cloud.store.put_if_absent(PATH, OWN)) is OutcomeUnknownError
    assert time.monotonic() - started < LIMIT_S
    assert cloud.content() == OWN
    assert effects(requests) == 1


@pytest.mark.parametrize("fault", AFTER, ids=lambda f: f.value)
def test_existing_name_is_never_reported_as_created_after_a_lost_answer(
    cloud: Cloud, fault: Fault
) -> None:
    assert cloud.without_proxy().put_if_absent(PATH, OTHER) is True
    with cloud.proxy.doing(Rule(fault, WRITES, ON_PATH)) as requests:
        result = outcome(lambda: cloud.store.put_if_absent(PATH, OWN))
    assert result in {False, OutcomeUnknownError}
    assert cloud.content() == OTHER
    assert effects(requests) == 0


@pytest.mark.parametrize("fault", AFTER, ids=lambda f: f.value)
def test_replacement_with_a_lost_answer_is_repeated_or_of_unknown_outcome(
    cloud: Cloud, fault: Fault
) -> None:
    cloud.without_proxy().put(PATH, OTHER)
    with cloud.proxy.doing(Rule(fault, WRITES, ON_PATH)), contextlib.suppress(OutcomeUnknownError):
        cloud.store.put(PATH, OWN)
    assert cloud.content() == OWN


# --- faults before the effect --------------------------------------------------------------------


@pytest.mark.parametrize("fault", BEFORE, ids=lambda f: f.value)
def test_a_creation_survives_one_fault(cloud: Cloud, fault: Fault) -> None:
    with cloud.proxy.doing(Rule(fault, WRITES, ON_PATH)) as requests:
        assert cloud.store.put_if_absent(PATH, OWN) is True
    assert cloud.content() == OWN
    assert effects(requests) == 1


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.RESET], ids=lambda f: f.value)
def test_a_write_survives_more_faults_than_its_driver_repeats_it(
    cloud: Cloud, fault: Fault
) -> None:
    faults = FAULTS_OF_AN_OUTAGE[cloud.name]
    for write in (cloud.store.put_if_absent, cloud.store.put):
        with cloud.proxy.doing(Rule(fault, WRITES, ON_PATH, faults)) as requests:
            assert write(PATH, OWN) in {True, None}
        assert sum(r.fault is not None for r in requests) == faults
        assert cloud.content() == OWN
        cloud.without_proxy().delete(PATH)


@pytest.mark.parametrize("fault", BEFORE, ids=lambda f: f.value)
def test_creation_ends_with_an_error_under_permanent_faults(cloud: Cloud, fault: Fault) -> None:
    started = time.monotonic()
    with cloud.failing(Rule(fault, WRITES, ON_PATH)):
        result = outcome(lambda: cloud.store.put_if_absent(PATH, OWN))
    assert time.monotonic() - started < LIMIT_S
    assert result in {OutcomeUnknownError, UnavailableError}
    if fault in {Fault.RESET, Fault.HANG}:
        # The client cannot know whether the server received it.
        assert result is OutcomeUnknownError
    assert cloud.content() is None
    answered(lambda: cloud.store.put_if_absent(PATH, OWN))
    assert cloud.content() == OWN  # the store is still usable


@pytest.mark.parametrize("backend_name", ["moto", "ministack"], indirect=True)
def test_s3_conflict_with_a_concurrent_request_is_retried(cloud: Cloud) -> None:
    with cloud.proxy.doing(Rule(Fault.CONFLICT, WRITES, ON_PATH)):
        assert cloud.store.put_if_absent(PATH, OWN) is True
    assert cloud.content() == OWN


@pytest.mark.parametrize("backend_name", ["moto", "ministack"], indirect=True)
def test_s3_conflict_with_a_completed_request_returns_false(cloud: Cloud) -> None:
    cloud.without_proxy().put(PATH, OTHER)
    with cloud.proxy.doing(Rule(Fault.CONFLICT, WRITES, ON_PATH)):
        assert cloud.store.put_if_absent(PATH, OWN) is False
    assert cloud.content() == OTHER


@pytest.mark.parametrize("backend_name", ["moto", "ministack"], indirect=True)
def test_permanent_s3_conflicts_are_not_reported_as_an_existing_name(cloud: Cloud) -> None:
    with cloud.failing(Rule(Fault.CONFLICT, WRITES, ON_PATH)):
        result = outcome(lambda: cloud.store.put_if_absent(PATH, OWN))
    assert result in {UnavailableError, OutcomeUnknownError}
    assert cloud.content() is None


# --- reading -------------------------------------------------------------------------------------


def read_whole(store: LogStore) -> bytes:
    return store.read(PATH)


def read_among_many(store: LogStore) -> bytes:
    first, second = store.read_many([PATH, PATH])
    assert first == second
    return first


def read_opened(store: LogStore) -> bytes:
    with store.open(PATH) as file:
        return file.read()


READERS = (read_whole, read_among_many, read_opened)
GETS = "GET"


@pytest.fixture
def large(cloud: Cloud) -> bytes:
    data = bytes(range(256)) * 2000
    cloud.without_proxy().put(PATH, data)
    return data


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("always", [False, True])
def test_truncated_answer_is_never_returned_as_the_content(
    cloud: Cloud, large: bytes, read: Callable[[LogStore], bytes], always: bool
) -> None:
    rule = Rule(Fault.TRUNCATED, GETS, ON_PATH)
    with cloud.failing(rule) if always else cloud.proxy.doing(rule) as requests:
        try:
            found = read(cloud.store)
        except UnavailableError:
            found = None
    assert any(r.fault is Fault.TRUNCATED for r in requests)
    assert found in ((None,) if always else (large, None))
    assert read(cloud.store) == large


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.RESET, Fault.HANG], ids=lambda f: f.value)
def test_read_raises_unavailable_error_under_permanent_faults(
    cloud: Cloud, large: bytes, fault: Fault
) -> None:
    started = time.monotonic()
    with cloud.failing(Rule(fault, "GET|HEAD")), pytest.raises(UnavailableError):
        cloud.store.read(PATH)
    assert time.monotonic() - started < LIMIT_S
    assert answered(lambda: cloud.store.read(PATH)) == large


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.RESET], ids=lambda f: f.value)
def test_reading_and_listing_survive_one_fault(cloud: Cloud, large: bytes, fault: Fault) -> None:
    with cloud.proxy.doing(Rule(fault, "GET|HEAD")):
        assert cloud.store.read(PATH) == large
    with cloud.proxy.doing(Rule(fault, "GET|HEAD")):
        assert [e.size_bytes for e in cloud.store.list_from("log")] == [len(large)]
    with cloud.proxy.doing(Rule(fault, "GET|HEAD")):
        found = cloud.store.stat(PATH)
    assert found is not None
    assert found.size_bytes == len(large)


def test_failed_listing_raises_an_error_instead_of_being_empty(cloud: Cloud, large: bytes) -> None:
    with cloud.failing(Rule(Fault.BUSY)), pytest.raises(UnavailableError):
        cloud.store.list_from("log")
    assert len(cloud.store.list_from("log")) == 1


def test_write_to_a_stopped_server_raises_unavailable_error(
    backend_of: BackendOf, backend_name: str
) -> None:
    direct = backend_of(backend_name)
    stopped = direct.through("http://127.0.0.1:9", **SHORT_TIMEOUTS[backend_name])
    store = stopped.open(direct.fresh())
    with pytest.raises(UnavailableError):
        store.put_if_absent(PATH, OWN)


# --- uploads -------------------------------------------------------------------------------------

PARTED = bytes(range(256)) * ((PART_BYTES >> 8) + 1)  # two parts
BEGINS = {
    "moto": ("POST", r"\?uploads"),
    "ministack": ("POST", r"\?uploads"),
    "gcs": ("POST", "uploadType=resumable"),
}
PARTS = {
    "moto": ("PUT", "partNumber="),
    "ministack": ("PUT", "partNumber="),
    "azurite": ("PUT", "comp=block&"),
    "gcs": ("PUT", "upload_id="),
}
ENDS = {
    "moto": ("POST", "uploadId="),
    "ministack": ("POST", "uploadId="),
    "azurite": ("PUT", "comp=blocklist"),
    "gcs": ("PUT", "upload_id="),  # after the first part
}


def unfinished_upload(cloud: Cloud) -> Upload:
    """An upload whose first part has arrived, so that its last part and its end follow."""
    method, target = PARTS[cloud.name]
    with cloud.proxy.doing() as requests:
        upload = cloud.store.upload(PATH)
        upload.write(PARTED)
        wanted = lambda r: r.method == method and target in r.target and r.status is not None
        until = time.monotonic() + 120
        while not any(map(wanted, requests)):
            assert time.monotonic() < until
            time.sleep(0.01)
        time.sleep(0.05)  # for the answer to be read
    return upload


def closing(upload: Upload) -> Callable[[], bool]:
    def close() -> bool:
        upload.close()
        return True

    return close


@pytest.mark.parametrize("fault", AFTER, ids=lambda f: f.value)
def test_upload_with_a_lost_last_answer_is_not_reported_as_failed(
    cloud: Cloud, fault: Fault
) -> None:
    upload = unfinished_upload(cloud)
    with cloud.proxy.doing(Rule(fault, *ENDS[cloud.name])) as requests:
        result = outcome(closing(upload))
    assert any(r.fault is fault for r in requests)
    assert cloud.content() == PARTED
    # Only S3 cannot report the outcome of an upload that has ended.
    assert result is True or (result is OutcomeUnknownError and cloud.name in {"moto", "ministack"})


@pytest.mark.parametrize("fault", BEFORE, ids=lambda f: f.value)
def test_an_upload_survives_one_fault_at_its_end(cloud: Cloud, fault: Fault) -> None:
    upload = unfinished_upload(cloud)
    with cloud.proxy.doing(Rule(fault, *ENDS[cloud.name])):
        assert outcome(closing(upload)) is True
    assert cloud.content() == PARTED


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.RESET], ids=lambda f: f.value)
def test_upload_that_cannot_be_completed_raises_and_leaves_no_parts(
    cloud: Cloud, fault: Fault
) -> None:
    cloud.without_proxy().put(PATH, OTHER)
    upload = unfinished_upload(cloud)
    with cloud.failing(Rule(fault, *ENDS[cloud.name])):
        result = outcome(closing(upload))
    assert result in {OutcomeUnknownError, UnavailableError}
    assert cloud.content() == OTHER
    assert cloud.direct.unfinished(cloud.location) == 0


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER], ids=lambda f: f.value)
def test_an_upload_survives_one_fault_of_a_part(cloud: Cloud, fault: Fault) -> None:
    with (
        cloud.proxy.doing(Rule(fault, *PARTS[cloud.name])) as requests,
        cloud.store.upload(PATH) as upload,
    ):
        upload.write(PARTED)
    assert any(r.fault is fault for r in requests)
    assert cloud.content() == PARTED


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.RESET], ids=lambda f: f.value)
def test_an_upload_survives_more_faults_than_its_driver_repeats_a_step(
    cloud: Cloud, fault: Fault
) -> None:
    faults = FAULTS_OF_AN_OUTAGE[cloud.name]
    for step in {steps[cloud.name] for steps in (BEGINS, PARTS, ENDS) if cloud.name in steps}:
        with (
            cloud.proxy.doing(Rule(fault, *step, faults)) as requests,
            cloud.store.upload(PATH) as upload,
        ):
            upload.write(PARTED)
        assert sum(r.fault is not None for r in requests) == faults
        assert cloud.content() == PARTED
        cloud.without_proxy().delete(PATH)
    assert cloud.direct.unfinished(cloud.location) == 0


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.RESET_AFTER], ids=lambda f: f.value)
def test_upload_with_failing_parts_raises_unavailable_error(cloud: Cloud, fault: Fault) -> None:
    upload = cloud.store.upload(PATH)
    with cloud.failing(Rule(fault, *PARTS[cloud.name])):

        def write_all() -> None:
            with upload:
                for _ in range(5):
                    upload.write(PARTED)

        with pytest.raises(UnavailableError) as failed:
            write_all()
    assert "OutcomeUnknownError" not in failed.value.message
    assert upload.closed
    assert cloud.content() is None
    assert cloud.direct.unfinished(cloud.location) == 0


# --- moving, deleting, walking -------------------------------------------------------------------

ASIDE = "aside/00000000000000000007.json"
COPIES = r"(aside(/|%2F)00000000000000000007\.json)"


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER], ids=lambda f: f.value)
def test_a_move_survives_one_fault_of_its_copy(cloud: Cloud, fault: Fault) -> None:
    cloud.store.put(PATH, OWN)
    with cloud.proxy.doing(Rule(fault, WRITES, COPIES)) as requests:
        cloud.store.move(PATH, ASIDE)
    assert any(r.fault is fault for r in requests)
    assert cloud.content() is None
    assert cloud.without_proxy().read(ASIDE) == OWN


@pytest.mark.parametrize("fault", BEFORE, ids=lambda f: f.value)
def test_move_that_cannot_copy_keeps_the_source(cloud: Cloud, fault: Fault) -> None:
    cloud.store.put(PATH, OWN)
    with (
        cloud.failing(Rule(fault, WRITES, COPIES)),
        pytest.raises((OutcomeUnknownError, UnavailableError)),
    ):
        cloud.store.move(PATH, ASIDE)
    assert cloud.content() == OWN
    assert cloud.without_proxy().stat(ASIDE) is None


def test_move_that_cannot_delete_keeps_both_files_and_has_an_unknown_outcome(cloud: Cloud) -> None:
    cloud.store.put(PATH, OWN)
    with (
        cloud.proxy.doing(Rule(Fault.BUSY, "DELETE", ON_PATH, times=ALWAYS)),
        pytest.raises(OutcomeUnknownError, match=ASIDE),
    ):
        cloud.store.move(PATH, ASIDE)
    assert cloud.content() == OWN
    assert cloud.without_proxy().read(ASIDE) == OWN


def test_failed_deletions_are_reported_and_the_others_are_done(cloud: Cloud) -> None:
    paths = [PATH, *(f"log/{i}" for i in range(20))]
    for path in paths:
        cloud.store.put(path, OWN)
    in_bulk = cloud.name in {"moto", "ministack"}
    rule = (
        Rule(Fault.BUSY, "POST", r"\?delete", times=ALWAYS)
        if in_bulk
        else Rule(Fault.BUSY, "DELETE", ON_PATH, times=ALWAYS)
    )
    with cloud.proxy.doing(rule):
        errors = cloud.store.delete_many(paths)
    assert all(isinstance(error, UnavailableError) for error in errors)
    assert [error.path for error in errors] == (paths if in_bulk else [PATH])
    left = [f"log/{e.name}" for e in cloud.without_proxy().list_from("log")]
    assert sorted(left) == sorted(str(error.path) for error in errors)
    assert cloud.store.delete_many(paths) == []
    assert cloud.without_proxy().list_from("log") == []


def test_walk_survives_one_fault_and_raises_under_permanent_faults(cloud: Cloud) -> None:
    cloud.store.put(PATH, OWN)
    with cloud.proxy.doing(Rule(Fault.BUSY, "GET")):
        assert [e.name for batch in cloud.store.walk("log") for e in batch] == [PATH.split("/")[1]]
    with cloud.failing(Rule(Fault.BUSY)), pytest.raises(UnavailableError):
        list(cloud.store.walk("log"))
