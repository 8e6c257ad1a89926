"""Shared by open handles: context manager, ownership checks, error translation."""

from __future__ import annotations

import contextlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, SupportsIndex

from lakelog.errors import InvalidInputError, LakelogError, NotFoundError, UnavailableError
from lakelog.input_validation import require_path


class Closing(ABC):
    """Closed where a ``with`` statement ends. What writes cannot be copied or pickled: a copy that
    goes away would close files that are not its own.
    """

    _access: Access

    @abstractmethod
    def close(self) -> None:
        """Let go of it. Twice does no harm."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        access = self._access
        if not access.is_read_only:
            raise InvalidInputError(
                f"the {access.what} cannot be copied or pickled",
                path=access.path,
                hint="open it in the other process; use read_only=True if a writer has it open",
            )
        return super().__reduce_ex__(protocol)


@dataclass(slots=True)
class Access:
    """Who may use what is open: no process once it is closed, and no process but one that opened
    it.

    Attributes:
        what: What it is called in errors.
        path: Where it is.
        is_read_only: Whether it was opened for reading only.
        pid: The process whose it is; None where a fork may use it as well.
        is_closed: Whether it is closed.
    """

    what: str
    path: str
    is_read_only: bool
    pid: int | None
    is_closed: bool = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether it belongs to another process: a fork has copies of its locks, which no process
        lets go of.
        """
        return self.pid is not None and self.pid != os.getpid()

    def check(self, *, to_write: bool = False) -> None:
        """Refuse who may not use it."""
        if self.is_closed or self.is_elsewhere or (to_write and self.is_read_only):
            raise self._refusal()  # made apart: every append comes by here

    def _refusal(self) -> InvalidInputError:
        if self.is_closed:
            what, hint = "is closed", "open it again"
        elif self.is_elsewhere:
            what = "belongs to another process"
            hint = (
                "an open log cannot be used after a fork; open it again, with "
                "read_only=True if the other process writes"
            )
        else:
            what, hint = "was opened for reading only", "open it without read_only"
        return InvalidInputError(f"the {self.what} {what}", path=self.path, hint=hint)


def local_directory(directory: str | os.PathLike[str]) -> str:
    """A directory of the operating system, wherever the process may go.

    Example:
        >>> local_directory("/var/log/../lib")
        '/var/lib'
    """
    require_path("directory", directory)
    name = os.fsdecode(directory)
    if _ADDRESS.match(name) or "\0" in name or not _is_a_name(name):
        raise InvalidInputError(
            "invalid location of a write-ahead log: it must be on local disk",
            expected="the path of a directory",
            found=repr(name),
        )
    return os.path.abspath(name)


def _is_a_name(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, or a name whose bytes are not UTF-8
        return False
    return True


_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@contextlib.contextmanager
def disk_errors(
    message: str, path: str, *, hint: str | None = None, missing: str | None = None
) -> Iterator[None]:
    """Errors of the operating system as ours; ours as they are.

    Example:
        >>> with disk_errors("the file cannot be read", "nowhere"):
        ...     open("nowhere")
        Traceback (most recent call last):
            ...
        lakelog.errors.UnavailableError: the file cannot be read: No such file ... [path=nowhere]
    """
    try:
        yield
    except LakelogError:
        raise
    except OSError as cause:
        where = cause.filename if isinstance(cause.filename, str) else path
        if missing is not None and isinstance(cause, FileNotFoundError | NotADirectoryError):
            raise NotFoundError(missing, path=where) from cause
        raise UnavailableError(
            f"{message}: {cause.strerror or cause}", path=where, hint=hint
        ) from cause
