"""Errors of the operating system become lakelog's, and lakelog's own pass unchanged."""

from __future__ import annotations

import errno
import os

import pytest

from lakelog.errors import InvalidInputError, LogLockedError, NotFoundError, UnavailableError
from lakelog.wal.disk import Access, Closing, disk_errors


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR])
def test_missing_file_raises_not_found_error_if_a_message_is_given(number: int) -> None:
    cause = OSError(number, "not there", "some/file")
    with (
        pytest.raises(NotFoundError, match="no log") as caught,
        disk_errors("it cannot be read", "some", missing="there is no log"),
    ):
        raise cause
    assert caught.value.path == "some/file"
    assert caught.value.__cause__ is cause
    with pytest.raises(UnavailableError), disk_errors("it cannot be read", "some"):
        raise cause


def test_disk_message_follows_the_failed_operation() -> None:
    with (
        pytest.raises(UnavailableError, match=r"^it cannot be read: .*full") as caught,
        disk_errors("it cannot be read", "some/file", hint="make room"),
    ):
        raise OSError(errno.ENOSPC, "full")
    assert (caught.value.path, caught.value.hint) == ("some/file", "make room")


def test_path_in_the_disk_error_is_reported_once() -> None:
    with (
        pytest.raises(UnavailableError, match=r"^the log cannot be read: full ") as caught,
        disk_errors("the log cannot be read", "some"),
    ):
        raise OSError(errno.ENOSPC, "full", "some/file")
    assert caught.value.path == "some/file"
    with (
        pytest.raises(UnavailableError, match=r"^it cannot be read: no more is known ") as caught,
        disk_errors("it cannot be read", "some"),
    ):
        raise OSError("no more is known")
    assert caught.value.path == "some"


def test_lakelog_errors_pass_unchanged() -> None:
    own = LogLockedError("another process has it")
    with pytest.raises(LogLockedError) as caught, disk_errors("it cannot be read", "some"):
        raise own
    assert caught.value is own


def test_context_manager_closes_after_an_error() -> None:
    class Thing(Closing):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    thing = Thing()
    with thing as same:
        assert same is thing
    with pytest.raises(KeyError), thing:
        raise KeyError
    assert thing.closed == 2


def of_log(
    *, is_read_only: bool = False, pid: int | None = None, is_closed: bool = False
) -> Access:
    return Access("log", "some", is_read_only, pid, is_closed)


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        (of_log(is_closed=True), "the log is closed"),
        (of_log(is_closed=True, is_read_only=True), "the log is closed"),
        (of_log(pid=os.getpid() + 1), "the log belongs to another process"),
    ],
)
def test_closed_or_forked_log_refuses_all_access(access: Access, reason: str) -> None:
    for to_write in (False, True):
        with pytest.raises(InvalidInputError, match=reason) as caught:
            access.check(to_write=to_write)
        assert caught.value.path == "some"


def test_reader_must_not_write() -> None:
    of_log(pid=os.getpid()).check(to_write=True)
    reader = of_log(is_read_only=True)
    reader.check()
    with pytest.raises(InvalidInputError, match="for reading only"):
        reader.check(to_write=True)
