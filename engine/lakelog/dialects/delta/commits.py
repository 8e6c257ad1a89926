"""Encodes the commits of a Delta log.

Source: Delta protocol, Delta Log Entries; Commit Provenance Information; In-Commit Timestamps
(commitInfo comes first).
"""

from __future__ import annotations

from functools import partial

from lakelog.dialects.delta.names import LOG_FOLDER, commit_name
from lakelog.dialects.delta.paths import spell_new_paths
from lakelog.dialects.encode import encode_rows, ordered_content, require_content
from lakelog.dialects.log_content import CommitContent
from lakelog.dialects.row_validation import encode_info
from lakelog.errors import InternalError

_DELTA = "delta"


def commit_path(version: int) -> str:
    """File of the commit of `version`, relative to the table root.

    >>> commit_path(7)
    '_delta_log/00000000000000000007.json'
    """
    return f"{LOG_FOLDER}/{commit_name(version)}"


def encode_commit(content: CommitContent, *, columnar_above: int | None = None) -> bytes:
    """The NDJSON of one commit; see `lakelog.dialects.base.Dialect.encode`."""
    if columnar_above is not None:
        raise InternalError("a Delta log has no columnar commits")
    require_content(content)
    meta, files = ordered_content(content, _DELTA)
    info = [b'{"commitInfo":', encode_info(content.info), b"}\n"] if content.info else []
    spell = partial(spell_new_paths, texts=content.texts)
    rows = [*encode_rows(meta, _DELTA), *encode_rows(files, _DELTA, spell)]
    return b"".join([*info, *rows, content.spelled])
