"""Reading the bytes of commits, in order, ahead of their decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lakelog.errors import MalformedLogError, NotFoundError
from lakelog.formats.base import CommitFile
from lakelog.formats.exact import Blob
from lakelog.storage import LogStore


def read_commits(
    store: LogStore,
    commits: Sequence[CommitFile],
    unframe: Callable[[bytes, CommitFile], bytes] | None = None,
) -> Iterator[Blob]:
    """Read commits one after another, as far ahead as the store reads.

    Args:
        store: Store of the table.
        commits: Commits by version, ascending.
        unframe: Takes a commit's bytes out of their framing; None where they have none.

    Raises:
        MalformedLogError: A commit that was listed is gone.
    """
    contents = iter(store.read_many([commit.path for commit in commits]))
    for commit in commits:
        try:
            data = next(contents)
        except NotFoundError as cause:
            raise MalformedLogError(
                "a commit was deleted while the log was being read",
                path=commit.path,
                version=commit.version,
                hint="open the table again",
            ) from cause
        if unframe is not None:
            data = unframe(data, commit)
        yield Blob(commit.version, commit.path, data)
