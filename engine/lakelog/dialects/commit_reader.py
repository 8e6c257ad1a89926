"""Reads the bytes of commits in order, ahead of decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import BinaryIO

from lakelog.dialects.commit_chunks import count_lines
from lakelog.dialects.commit_info import why_copied
from lakelog.dialects.log_content import Actions, CommitContent, CommitFile
from lakelog.dialects.strict_decoder import Blob
from lakelog.errors import MalformedLogError, NotFoundError, UnavailableError
from lakelog.storage import LogStore

ACTIONS = "lakelogActions"
"""Field of a commitInfo: the number of other actions in the commit."""


def read_commits(
    store: LogStore,
    commits: Sequence[CommitFile],
    unframe: Callable[[bytes, CommitFile], bytes] | None = None,
) -> Iterator[Blob]:
    """Read commits in order, as far ahead as the store reads."""
    contents = iter(store.read_many([commit.path for commit in commits]))
    for commit in commits:
        try:
            data = next(contents)
        except NotFoundError as cause:
            # The store reads ahead: the missing file may be that of a later commit.
            raise _missing_commit(
                next((c for c in commits if c.path == cause.path), commit)
            ) from cause
        if unframe is not None:
            data = unframe(data, commit)
        yield Blob(commit.version, commit.path, data)


def with_count(content: CommitContent) -> CommitContent:
    """A commit whose commitInfo, if any, records the number of its other actions."""
    if not content.info:
        return content
    encoded = content.file_lines.count(b"\n")
    count = content.meta.height + content.files.height + encoded
    return replace(content, info={**content.info, ACTIONS: count})


class OwnCommits:
    """Detects damaged commits of lakelog by their commitInfo: those truncated at a line end by the
    number of actions, and copies of other versions by transaction and read version.
    """

    def __init__(self, *, info_own_line: bool) -> None:
        self._info_own_line = info_own_line
        self._lines: dict[int | None, int] = {}
        self._expected: dict[int, tuple[int, int]] = {}
        self._transactions: dict[str, int] = {}
        self._copies: dict[int, str] = {}

    def counted(self, blobs: Iterable[Blob]) -> Iterator[Blob]:
        """The same blobs; counts their lines."""
        for blob in blobs:
            data = bytes(blob.data)
            lines = count_lines(data, 0, len(data)) + (not data.endswith(b"\n"))
            self._lines[blob.version] = self._lines.get(blob.version, 0) + lines
            yield blob

    def learn(self, decoded: Actions) -> Actions:
        """Remove the numbers from commitInfos, because no other code needs them."""
        for info in decoded.commit_infos:
            recorded = info.body.pop(ACTIONS, None)
            if info.version is not None and type(recorded) is int and recorded >= 0:
                own = 1 if self._info_own_line or not recorded else 0
                self._expected[info.version] = (recorded, recorded + own)
                reason = why_copied(info, self._transactions)
                if info.version and info.body.get("readVersion") is None:
                    reason = reason or "a commit without readVersion, as only version 0 is"
                if reason is not None:
                    self._copies[info.version] = reason
        return decoded

    def check(self, commits: Sequence[CommitFile]) -> None:
        """Raise for a damaged one, after all of the commits were read."""
        for version, (actions, lines) in self._expected.items():
            found = self._lines.get(version, lines)
            if found != lines:
                raise MalformedLogError(
                    "the number of actions in the commit differs from its header",
                    path=_path_of(version, commits),
                    version=version,
                    expected=f"{actions} actions on {lines} lines",
                    found=f"{found} lines",
                    hint="the file is truncated or damaged: restore it from a copy",
                )
        for version, reason in self._copies.items():
            raise MalformedLogError(
                "the file of a commit was overwritten with that of another version",
                path=_path_of(version, commits),
                version=version,
                expected=f"the transaction of version {version}",
                found=reason,
                hint="restore the file that was overwritten from a copy",
            )


def _path_of(version: int, commits: Sequence[CommitFile]) -> str | None:
    return next((c.path for c in commits if c.version == version), None)


def group_commits(commits: Sequence[CommitFile], piece_bytes: int) -> Iterator[list[CommitFile]]:
    """Groups of commits of at most `piece_bytes` by their listed sizes; a larger commit alone."""
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
    """Read commits in pieces of about `piece_bytes`, cut at line ends."""
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
        raise _missing_commit(commit) from cause
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
    if is_blank:  # a commit without an action raises later
        yield Blob(commit.version, commit.path, b"\n")


def _read(source: BinaryIO, size: int, commit: CommitFile) -> bytes:
    try:
        return source.read(size)
    except OSError as cause:
        if isinstance(cause, UnavailableError):
            raise
        raise UnavailableError(f"the commit cannot be read: {cause}", path=commit.path) from cause


def _missing_commit(commit: CommitFile) -> MalformedLogError:
    return MalformedLogError(
        "a commit was deleted while the log was being read",
        path=commit.path,
        version=commit.version,
        hint="open the table again",
    )
