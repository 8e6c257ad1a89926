"""What open things on a disk have in common: ``with`` closes them, and errors of the operating
system are told as lakelog's.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from lakelog.errors import LakelogError, NotFoundError, UnavailableError


class Closing(ABC):
    """Closed where a ``with`` statement ends."""

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


@contextlib.contextmanager
def disk_errors(
    message: str, path: str, *, hint: str | None = None, missing: str | None = None
) -> Iterator[None]:
    """Errors of the operating system as ours; ours as they are.

    Args:
        message: What could not be done; the error's own words are put behind.
        path: What it was to be done to; the error may name a file of it, which is told instead.
        hint: What to do next.
        missing: What to say where a file or folder is not there, which is another error then.

    Raises:
        NotFoundError: Something is not there, and `missing` was given.
        UnavailableError: The disk failed.

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
