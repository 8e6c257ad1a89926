"""Decodes and encodes commits, with the defaults of the format; the order of a state's rows.

Paths are not percent-encoded in an IndexTables log: writers store the file's name on disk (whose
partition folders may contain Hive's ``%XX`` escapes), and readers use it unchanged. Decoding it
would give another file.

The commitInfo is on the line of the first other action, not on its own line. Readers of the
reference implementation read one action per line and ignore unknown keys; older ones reject a line
with only unknown keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby

import orjson
import polars as pl

from lakelog.dialects.commit_reader import OwnCommits, read_commits
from lakelog.dialects.encode import encode_rows, ordered_content, require_content
from lakelog.dialects.exact_json import exact_object, has_double
from lakelog.dialects.indextables.columnar import decode_columnar, encode_columnar, is_columnar
from lakelog.dialects.indextables.docmapping import registry_of_meta, resolve_references
from lakelog.dialects.indextables.framing import frame_as, unframe
from lakelog.dialects.indextables.listing import commits_apart, list_commits
from lakelog.dialects.json_layout import Wire
from lakelog.dialects.log_content import Actions, CommitContent, CommitFile
from lakelog.dialects.ndjson import Blob, decode_lines, merge
from lakelog.dialects.row_validation import encode_info
from lakelog.dialects.strict_decoder import Line, parse_object
from lakelog.errors import CorruptionError, MalformedLogError, NotFoundError
from lakelog.model import actions
from lakelog.storage import LogStore

_COMPOSED = ("protocol", "metaData", "mergeskip")

DEFAULT_PROTOCOL_VERSION = 1
"""Minimum reader and writer version of a table whose log has no protocol action."""


def one_protocol(version: int = DEFAULT_PROTOCOL_VERSION) -> pl.DataFrame:
    """A protocol row with both minimum versions at `version`."""
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
    """The non-file state of a checkpoint that may contain only part of it."""
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
    """Rows of `kinds`, with ``actionType``, ``path`` and existing columns of `columns`."""
    wanted = {"actionType", "path", *columns}
    for frame in frames:
        rows = actions.of_type(frame, *kinds)
        yield rows.select(column for column in rows.columns if column in wanted)


def last_by_path(frames: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Keep the last row of each path: the reference implementation lists a path that was added
    again twice. Memory: a copy of the paths.
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
    """The error for a missing file of a checkpoint."""
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


_FILE_DEFAULTS: dict[str, object] = {"dataChange": True}
_SKIP_DEFAULTS: dict[str, object] = {"skipCount": 1, "skipOperation": ""}
_INDEXTABLES = "indextables"
_FORMAT_DEFAULTS: dict[str, object] = {"formatProvider": _INDEXTABLES}
_INFO = b'{"commitInfo":'


def wire() -> Wire:
    """The JSON names of IndexTables."""
    return Wire.of(_INDEXTABLES)


def encode_commit(
    content: CommitContent,
    *,
    columnar_above: int | None = None,
    configuration: Mapping[str, str | None] | None = None,
) -> bytes:
    """See `Dialect.encode`. Actions that are already encoded as lines remain lines, at any size."""
    require_content(content)
    meta, files = ordered_content(content, _INDEXTABLES)
    info = encode_info(content.info) if content.info else b""
    pieces: list[bytes | memoryview] = []
    size = 0
    # Slice by slice if the size decides, so that content that is too large is not encoded
    # completely.
    for piece in _pieces(info, (meta, files), content.file_lines, ahead=columnar_above is None):
        pieces.append(piece)
        size += len(piece)
        if columnar_above is not None and size > columnar_above and not content.file_lines:
            return encode_columnar(info, meta, files)
    return frame_as(b"".join(pieces), configuration or {})


def _pieces(
    info: bytes, frames: Sequence[pl.DataFrame], file_lines: bytes, *, ahead: bool
) -> Iterator[bytes | memoryview]:
    """The lines of a commit; the commitInfo opens the line of the first action."""
    encoded = (encode_rows(frame, _INDEXTABLES, ahead=ahead) for frame in frames)
    rows = chain(chain.from_iterable(encoded), (file_lines,) if file_lines else ())
    if info:
        first = next(rows, None)
        yield _INFO + info
        if first is None:
            yield b"}\n"
        else:
            yield b","
            yield memoryview(first)[1:]
    yield from rows


def decode_commits(
    store: LogStore, commits: Sequence[CommitFile], *, files: bool = True
) -> Actions:
    """See `Dialect.decode`; references are resolved if these commits register the mapping."""
    own = OwnCommits(info_own_line=False)
    blobs = read_commits(store, commits, lambda data, c: unframe(data, c.path, c.version))
    decoded = own.learn(decode_blobs(_counted(blobs, own), files=files))
    own.check(commits)
    return decoded


def _counted(blobs: Iterable[Blob], own: OwnCommits) -> Iterator[Blob]:
    """Count the lines of NDJSON commits; a columnar one has a checksum."""
    for blob in blobs:
        yield from (blob,) if is_columnar(blob.data) else own.counted((blob,))


def decode_blobs(blobs: Iterable[Blob], *, files: bool = True) -> Actions:
    """Decode unframed commits, with the format's defaults for absent fields."""
    parts: list[Actions] = []
    for columnar, run in groupby(blobs, key=lambda blob: is_columnar(blob.data)):
        if columnar:
            parts.extend(decode_columnar(blob, files=files) for blob in run)
        else:
            lines = (piece for blob in run for piece in _without_info(blob))
            parts.append(decode_lines(lines, wire(), files=files))
    decoded = merge(parts)
    meta = _fill_meta(decoded.meta, "mergeskip", _SKIP_DEFAULTS)
    meta = _fill_meta(meta, "metaData", _FORMAT_DEFAULTS)
    rows = _fill(decoded.files, _FILE_DEFAULTS)
    rows = resolve_references(rows, registry_of_meta(meta))
    return Actions(rows, meta, decoded.other, decoded.commit_infos)


def _without_info(blob: Blob) -> Iterator[Blob]:
    """A commit with its first commitInfo on a line of its own, for the columnar decoder."""
    if bytes(blob.data[: len(_INFO)]) != _INFO:
        yield blob
        return
    data = bytes(blob.data)
    end = data.find(b"\n") + 1 or len(data)
    line = data[:end].rstrip(b"\n")
    try:
        parsed = orjson.loads(line)
    except orjson.JSONDecodeError:
        yield blob  # the decoder reports the error
        return
    # Several actions on one line keep their order only in the strict decoder.
    if len(parsed) != 2 or None in parsed.values():
        yield blob
        return
    parse_object(Line(line, blob.path, blob.version, blob.first_line, blob.offset))
    number, version, path = blob.first_line, blob.version, blob.path
    if has_double(parsed):
        parsed = exact_object(line)
    for wrapper, body in parsed.items():
        piece = orjson.dumps({wrapper: body})
        yield Blob(version, path, piece, number, blob.offset, whole=False)
    if end < len(data):
        rest = memoryview(data)[end:]
        yield Blob(version, path, rest, number + 1, blob.offset + end, whole=False)


def meta_at_or_below(store: LogStore, version: int, *, of_state: bool = False) -> pl.DataFrame:
    """Protocol, metaData and mergeskip rows of every existing JSON commit up to `version`, which
    checkpoints of other writers may omit; for an Avro state also skips in commits that are numbered
    independently. Cleanup may delete some during the read; the others are used.
    """

    def commits_below() -> list[CommitFile]:
        if not of_state:
            return list_commits(store, end=version)
        commits = list_commits(store)
        below = [c for c in commits if c.version <= version]
        return below + commits_apart(store, commits[len(below) :])

    commits = commits_below()
    while commits:
        try:
            return decode_commits(store, commits, files=False).meta
        except (CorruptionError, NotFoundError) as error:
            before, commits = len(commits), commits_below()
            # Commits are only deleted, never added, so this terminates.
            if len(commits) >= before or error.path in {commit.path for commit in commits}:
                raise
    return actions.concat([])


def _fill(frame: pl.DataFrame, defaults: dict[str, object]) -> pl.DataFrame:
    if not frame.height:
        return frame
    schema = actions.schema()
    return frame.with_columns(
        pl.col(column).fill_null(pl.lit(value, dtype=schema[column]))
        if column in frame.columns
        else pl.lit(value, dtype=schema[column]).alias(column)
        for column, value in defaults.items()
        if column not in frame.columns or frame[column].null_count()
    )


def _fill_meta(meta: pl.DataFrame, kind: str, defaults: dict[str, object]) -> pl.DataFrame:
    if not meta.height or not holds_type(meta, kind):
        return meta
    is_own = pl.col("actionType") == kind
    schema = actions.schema()
    return meta.with_columns(
        pl.when(is_own)
        .then(
            pl.coalesce(column, pl.lit(value, dtype=schema[column]))
            if column in meta.columns
            else pl.lit(value, dtype=schema[column])
        )
        .alias(column)
        for column, value in defaults.items()
    )
