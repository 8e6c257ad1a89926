"""Values that are computed on first use.

`lazy_exports` loads the modules of a package's names, so that Polars, pyarrow and fsspec load with
the first function that needs them. `cached_property` caches the result of a method.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")

_MISSING = object()


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Create the ``__getattr__`` of a package from the module of each name; a name whose module is
    the submodule of that name is the submodule itself.
    """

    def found(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(modules[name])
        value = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)  # the next access does not call this function
        return value

    return found


class cached_property(Generic[T]):  # noqa: N801 - replaces functools.cached_property
    """A property that is computed once per instance and then kept in its ``__dict__``. Threads that
    need it wait for the one that computes it; an error is not cached. `functools.cached_property`
    of Python 3.11 has one lock per class, so one table with a hanging store would block every
    table.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        values = instance.__dict__
        key = id(instance), self._name
        with _turns_lock:
            turn = _turns.setdefault(key, _Turn())
            turn.threads += 1
        try:
            with turn.lock:
                found: Any = values.get(self._name, _MISSING)
                if found is _MISSING:
                    found = values[self._name] = self._function(instance)
                return found  # type: ignore[no-any-return] # the function's result
        finally:
            with _turns_lock:
                turn.threads -= 1
                if not turn.threads and _turns.get(key) is turn:  # not after a fork meanwhile
                    del _turns[key]


class _Turn:
    """The threads that need one property of one instance while it is computed."""

    __slots__ = ("lock", "threads")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.threads = 0


# Not in the instance, because a lock would have to be excluded from copying and pickling.
_turns: dict[tuple[int, str], _Turn] = {}
_turns_lock = threading.Lock()


def _after_fork() -> None:
    """A forked process has none of its parent's threads, and may inherit their locked locks."""
    global _turns_lock  # noqa: PLW0603 - the lock is the process's
    _turns_lock = threading.Lock()
    _turns.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
