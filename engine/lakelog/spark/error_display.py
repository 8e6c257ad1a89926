"""Error messages of the data source and of Spark's jobs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from lakelog import errors
from lakelog.errors import LakelogError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def job_failure(cause: Exception) -> str:
    """The line of Spark's message about a failed job that has the error of the task."""
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    first = lines[0] if lines else type(cause).__name__
    return next((line for line in reversed(lines) if "Error" in line), first)[:300]


_RAISED = re.compile(
    rf"^{re.escape(errors.__name__)}\.(\w+): (.+?)\s*?(?=\n\s*SQLSTATE|\n\s*at |\n\n|\Z)",
    re.MULTILINE | re.DOTALL,
)


def raised_by_python(text: str) -> LakelogError | None:
    """The last error of lakelog that a Python process of Spark raised, from Spark's message."""
    for name, shown in reversed(_RAISED.findall(text)):
        class_ = getattr(errors, name, None)
        if isinstance(class_, type) and issubclass(class_, LakelogError):
            message, _, hint = shown.partition(" Next: ")
            return class_(message, hint=hint or None)
    return None


def readable(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise lakelog's errors without causes, whose tracebacks Spark would print first."""

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except LakelogError as error:
            raise error.with_traceback(None) from None

    return wrapped
