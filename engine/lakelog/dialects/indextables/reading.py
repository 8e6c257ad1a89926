"""Shared by the checkpoint readers: selects and orders the rows of a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import polars as pl

from lakelog.errors import MalformedLogError, NotFoundError
from lakelog.model import actions

_COMPOSED = ("protocol", "metaData", "mergeskip")

DEFAULT_PROTOCOL_VERSION = 1
"""Least reader and writer version of a table whose log holds no protocol action."""


def one_protocol(version: int = DEFAULT_PROTOCOL_VERSION) -> pl.DataFrame:
    """A protocol row with both least versions at `version`."""
    schema = actions.schema()
    columns = ("actionType", "minReaderVersion", "minWriterVersion")
    return pl.DataFrame(
        {"actionType": ["protocol"], columns[1]: [version], columns[2]: [version]},
        schema={column: schema[column] for column in columns},
    )


def compose_meta(
    own: pl.DataFrame,
    kinds: Sequence[str],
    below: Callable[[], pl.DataFrame],
    protocol: pl.DataFrame,
    *,
    skips_complete: bool = False,
) -> pl.DataFrame:
    """The non-file state of a checkpoint that may hold only part of it."""
    lacking = {kind for kind in ("protocol", "metaData") if not holds_type(own, kind)}
    if not skips_complete:
        lacking.add("mergeskip")
    both = actions.concat([below(), own]) if lacking & {*kinds} else own
    rows = []
    if "protocol" in kinds:
        found = actions.of_type(both, "protocol").tail(1)
        rows.append(found if found.height else protocol)
    if "metaData" in kinds:
        rows.append(actions.of_type(both, "metaData").tail(1))
    if "mergeskip" in kinds and holds_type(both, "mergeskip"):
        skips = actions.of_type(both, "mergeskip")
        rows.append(skips.unique("path", keep="last", maintain_order=True).sort("path"))
    rows.extend(actions.of_type(own, kind) for kind in kinds if kind not in _COMPOSED)
    return actions.concat(rows)


def holds_type(frame: pl.DataFrame, kind: str) -> bool:
    """Whether `frame` has a row of one action type."""
    return bool((frame["actionType"] == kind).any())


def project(
    frames: Iterable[pl.DataFrame], columns: Sequence[str], kinds: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """Keep the rows of `kinds`; of the columns, ``actionType``, ``path`` and those in `columns`
    that are there.
    """
    wanted = {"actionType", "path", *columns}
    for frame in frames:
        rows = actions.of_type(frame, *kinds)
        yield rows.select(column for column in rows.columns if column in wanted)


def last_by_path(frames: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Drop all but the last row of each path over all frames, keeping order.

    A writer of the reference lists a path twice when it was added again. Memory: the paths once
    more, and only while looking.
    """
    paths = pl.concat([frame.select("path") for frame in frames]) if frames else None
    if paths is None or paths["path"].n_unique() == paths.height:
        return frames
    kept: list[pl.DataFrame] = []
    last = paths.with_row_index().unique("path", keep="last")["index"].sort()
    start = 0
    for frame in frames:
        inside = last.filter((last >= start) & (last < start + frame.height)) - start
        kept.append(frame[inside.cast(pl.Int64).to_list()])
        start += frame.height
    return kept


def missing_file(message: str, path: str, version: int, cause: NotFoundError) -> MalformedLogError:
    """The error for a file that a checkpoint names and that is not there."""
    error = MalformedLogError(
        message,
        path=path,
        version=version,
        expected="the file",
        found="nothing",
        hint="restore the file, or read another version",
    )
    error.__cause__ = cause
    return error
