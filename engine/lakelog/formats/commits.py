"""Reading the bytes of commits, in order, ahead of their decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import BinaryIO

from lakelog.errors import MalformedLogError, NotFoundError, UnavailableError
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
            # The store reads ahead: it may have been the turn of another one.
            raise _gone(next((c for c in commits if c.path == cause.path), commit)) from cause
        if unframe is not None:
            data = unframe(data, commit)
        yield Blob(commit.version, commit.path, data)


def group_commits(commits: Sequence[CommitFile], piece_bytes: int) -> Iterator[list[CommitFile]]:
    """Commits in runs whose listed sizes sum up to `piece_bytes` at most; a larger one alone."""
    run: list[CommitFile] = []
    size = 0
    for commit in commits:
        if run and size + commit.size_bytes > piece_bytes:
            yield run
            run, size = [], 0
        run.append(commit)
        size += commit.size_bytes
    if run:
        yield run


def read_pieces(
    store: LogStore, commits: Sequence[CommitFile], piece_bytes: int
) -> Iterator[list[Blob]]:
    """Read commits of plain lines, some `piece_bytes` at a time; a longer one is cut at line ends.

    Raises:
        MalformedLogError: A commit that was listed is gone.

    Memory: one piece, and the longest line.
    """
    for run in group_commits(commits, piece_bytes):
        if len(run) > 1 or run[0].size_bytes <= piece_bytes:
            yield list(read_commits(store, run))
        else:
            yield from ([blob] for blob in _cut(store, run[0], piece_bytes))


def _cut(store: LogStore, commit: CommitFile, piece_bytes: int) -> Iterator[Blob]:
    line = offset = 0
    is_blank = True
    rest = b""
    try:
        source = store.open(commit.path)
    except NotFoundError as cause:
        raise _gone(commit) from cause
    with closing(source):
        while True:
            read = _read(source, piece_bytes, commit)
            data = rest + read if rest else read
            end = data.rfind(b"\n") + 1 if read else len(data)
            piece, rest = data[:end], data[end:]
            if piece:
                yield Blob(commit.version, commit.path, piece, line, offset, whole=False)
                is_blank = is_blank and piece.isspace()
                line += piece.count(b"\n")
                offset += len(piece)
            if not read:
                break
    if is_blank:  # a commit without an action is refused as a whole
        yield Blob(commit.version, commit.path, b"\n")


def _read(source: BinaryIO, size: int, commit: CommitFile) -> bytes:
    try:
        return source.read(size)
    except OSError as cause:
        if isinstance(cause, UnavailableError):
            raise
        raise UnavailableError(f"the commit cannot be read: {cause}", path=commit.path) from cause


def _gone(commit: CommitFile) -> MalformedLogError:
    return MalformedLogError(
        "a commit was deleted while the log was being read",
        path=commit.path,
        version=commit.version,
        hint="open the table again",
    )
