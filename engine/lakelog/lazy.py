"""Names of a package that load the module they stand in when they are first asked for.

Polars, pyarrow and fsspec then load with the first thing that needs them, not with the package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_of(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """What a package calls its ``__getattr__``.

    Type checkers see the names where ``if TYPE_CHECKING:`` imports them.

    Args:
        package: Its ``__name__``.
        modules: The module of each name.

    Returns:
        A function that gives what a name stands for.

    Raises:
        AttributeError: There is no such name.

    Example:
        >>> names_of("lakelog", {"Snapshot": "lakelog.log.snapshot"})("Snapshot")
        <class 'lakelog.log.snapshot.Snapshot'>
    """

    def found(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # not asked for again
        return value

    return found
