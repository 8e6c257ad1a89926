"""Errors of the operating system are told as lakelog's, and ours as they are."""

from __future__ import annotations

import errno

import pytest

from lakelog.errors import LogLockedError, NotFoundError, UnavailableError
from lakelog.wal.handle import Closing, disk_errors


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR])
def test_what_is_missing_is_told_as_missing_where_that_was_thought_of(number: int) -> None:
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


def test_what_the_disk_says_is_put_behind_what_could_not_be_done() -> None:
    with (
        pytest.raises(UnavailableError, match=r"^it cannot be read: .*full") as caught,
        disk_errors("it cannot be read", "some/file", hint="make room"),
    ):
        raise OSError(errno.ENOSPC, "full")
    assert (caught.value.path, caught.value.hint) == ("some/file", "make room")


def test_the_file_that_the_disk_names_is_told_once() -> None:
    with (
        pytest.raises(UnavailableError, match="^the log cannot be read: full ") as caught,
        disk_errors("the log cannot be read", "some"),
    ):
        raise OSError(errno.ENOSPC, "full", "some/file")
    assert caught.value.path == "some/file"
    with (
        pytest.raises(UnavailableError, match="^it cannot be read: no more is known ") as caught,
        disk_errors("it cannot be read", "some"),
    ):
        raise OSError("no more is known")
    assert caught.value.path == "some"


def test_errors_of_our_own_stay_what_they_are() -> None:
    own = LogLockedError("somebody has it")
    with pytest.raises(LogLockedError) as caught, disk_errors("it cannot be read", "some"):
        raise own
    assert caught.value is own


def test_with_closes_whatever_happens() -> None:
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
