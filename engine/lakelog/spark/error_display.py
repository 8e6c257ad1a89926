"""Error messages of the data source."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from lakelog.errors import LakelogError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def readable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise lakelog's errors without causes, whose tracebacks Spark would print first."""

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except LakelogError as error:
            raise error.with_traceback(None) from None

    return wrapped
