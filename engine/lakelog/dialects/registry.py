"""The dialects that tables are opened with.

A dialect of your own is registered once, before its tables are opened:
`register` (MyDialect()). Nothing else names a dialect.
"""

from __future__ import annotations

from lakelog.dialects import delta, indextables
from lakelog.dialects.base import Dialect
from lakelog.errors import InvalidInputError

_DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (delta.DIALECT, indextables.DIALECT)
}


def register(dialect: Dialect) -> None:
    """Make a dialect known to `lakelog.open` and `lakelog.create`.

    Args:
        dialect: A stateless instance; one of the same name is replaced.

    Raises:
        InvalidInputError: Another dialect has the same log folder.
    """
    for other in _DIALECTS.values():
        if other.name != dialect.name and other.log_folder == dialect.log_folder:
            raise InvalidInputError(
                f"the dialect {other.name!r} has the same log folder",
                expected="a log folder of its own",
                found=dialect.log_folder,
            )
    _DIALECTS[dialect.name] = dialect


def unregister(name: str) -> None:
    """Forget the dialect `name`; nothing where there is none."""
    _DIALECTS.pop(name, None)


def registered() -> tuple[Dialect, ...]:
    """Every known dialect, in the order in which they were registered."""
    return tuple(_DIALECTS.values())


def named(name: str) -> Dialect:
    """The dialect called `name`; raises InvalidInputError for an unknown one."""
    dialect = _DIALECTS.get(name)
    if dialect is None:
        raise InvalidInputError("unknown table format", expected=" or ".join(_DIALECTS), found=name)
    return dialect
