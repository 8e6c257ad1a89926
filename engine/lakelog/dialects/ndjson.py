"""The columnar NDJSON decoder: many commits in one parse.

Commits are joined into chunks of some megabytes, which Arrow's JSON reader parses in parallel.
`lakelog.dialects.strict_decoder` decodes chunks that the parse cannot decide: bytes on which
Arrow's reader is lenient or fails (NUL, invalid UTF-8, NaN, deep nesting, a file that does not
begin with an object), a row count other than the line count, a line without an action, a field of
several types, a null in a map that may be an entry or an absent key, or a missing required field. A
property test compares both decoders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain, islice

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute  # used by is_valid, take and filter; not during the first read

from lakelog.arrow_arrays import as_int64, valid_mask
from lakelog.dialects.arrow_json import (
    Keys,
    NotProvenError,
    depth,
    map_array,
    null_entries,
    parse,
    parse_with_keys,
)
from lakelog.dialects.commit_chunks import Prepared, chunked, prepare
from lakelog.dialects.exact_json import exact_object, has_double, json_text
from lakelog.dialects.gc_pause import gc_paused
from lakelog.dialects.json_layout import ALIASES, FILE_WRAPPERS, META_WRAPPERS, Leaf, Node, Wire
from lakelog.dialects.log_content import Actions, CommitInfo
from lakelog.dialects.strict_decoder import Blob, decode_exact
from lakelog.model import actions
from lakelog.model.contract import MAX_DEPTH
from lakelog.threads import WORKERS, Pool

__all__ = ["Blob", "decode_lines", "decode_pieces", "merge"]

_FEW_BYTES = 1 << 14  # so few bytes cost a multiple by columns, because each column needs a call


def decode_lines(blobs: Iterable[Blob], wire: Wire, *, files: bool = True) -> Actions:
    """Decode NDJSON actions, many files in one parse; about ten chunks of 8 MB are in memory."""
    with gc_paused():
        return merge(_decode_chunks(chunked(blobs), wire, {}, files=files))


def decode_pieces(
    pieces: Iterable[Sequence[Blob]], wire: Wire, *, files: bool = True
) -> Iterator[Actions]:
    """As `decode_lines`, in pieces, each decoded while the previous one is used."""
    keys: Keys = {}  # learned once: a piece with unknown keys is parsed twice

    def decode(blobs: Sequence[Blob]) -> Actions:
        with gc_paused():
            return merge(_decode_chunks(chunked(blobs), wire, keys, files=files))

    with Pool(1, thread_name_prefix="lakelog-pieces") as pool:
        ahead: Future[Actions] | None = None
        for blobs in pieces:
            following = pool.submit(decode, blobs)
            if ahead is not None:
                yield ahead.result()
            ahead = following
        if ahead is not None:
            yield ahead.result()


def _decode_chunks(
    chunks: Iterator[list[Blob]], wire: Wire, keys: Keys, *, files: bool
) -> list[Actions]:
    first = list(islice(chunks, 2))
    if len(first) < 2:
        return [_decode_chunk(chunk, wire, keys, files) for chunk in first] or [Actions()]
    decoded: list[Actions] = []
    with Pool(WORKERS, thread_name_prefix="lakelog-decode") as pool:
        pending: deque[Future[Actions]] = deque()
        for chunk in chain(first, chunks):
            pending.append(pool.submit(_decode_chunk, chunk, wire, keys, files))
            if len(pending) > 2 * WORKERS:
                decoded.append(pending.popleft().result())
        decoded.extend(future.result() for future in pending)
    return decoded


def merge(parts: Sequence[Actions]) -> Actions:
    """Concatenate decoded actions in the given order."""
    if len(parts) == 1:
        return parts[0]
    return Actions(
        actions.concat(p.files for p in parts),
        actions.concat(p.meta for p in parts),
        actions.concat(p.other for p in parts),
        tuple(info for p in parts for info in p.commit_infos),
    )


def _decode_chunk(chunk: list[Blob], wire: Wire, keys: Keys, files: bool) -> Actions:
    if sum(len(blob.data) for blob in chunk) < _FEW_BYTES:
        return decode_exact(chunk, wire, files=files)
    try:
        prepared = prepare(chunk)
        if files:
            return _decode_all(prepared, wire, keys)
        return _decode_meta(prepared, wire)
    except (NotProvenError, pa.ArrowException, UnicodeDecodeError, orjson.JSONDecodeError):
        return decode_exact(chunk, wire, files=files)


def _decode_meta(prepared: Prepared, wire: Wire) -> Actions:
    """Find the few lines that are not file actions, and decode only those."""
    if not prepared.rows:
        return Actions(commit_infos=tuple(prepared.commit_infos))
    schema = pa.schema(
        [
            (wrapper, pa.struct([("__absent", pa.null())]))
            for wrapper in (*META_WRAPPERS, "commitInfo")
        ]
    )
    table = parse(prepared.text, schema, "ignore")
    if table.num_rows != prepared.rows:
        raise NotProvenError
    hit = np.zeros(table.num_rows, bool)
    for column in table.columns:
        if column.null_count < len(column):
            hit |= valid_mask(column.combine_chunks())
    rows = np.flatnonzero(hit).tolist()
    files = np.repeat(np.arange(len(prepared.counts)), prepared.counts)
    starts = np.cumsum([0, *prepared.counts])
    selected = [
        Blob(
            prepared.versions[files[row]],
            prepared.paths[files[row]],
            line,
            prepared.first_lines[files[row]] + row - int(starts[files[row]]),
            whole=False,
        )
        for row, line in zip(rows, prepared.lines(rows), strict=True)
    ]
    decoded = decode_exact(selected, wire, files=False)
    infos = _sorted((*prepared.commit_infos, *decoded.commit_infos))
    return Actions(meta=decoded.meta, commit_infos=tuple(infos))


def _sorted(infos: Iterable[CommitInfo]) -> list[CommitInfo]:
    return sorted(infos, key=lambda i: (i.version or 0, i.position))


def _decode_all(prepared: Prepared, wire: Wire, keys: Keys) -> Actions:
    if not prepared.rows:
        return Actions(commit_infos=tuple(prepared.commit_infos))
    table = parse_with_keys(prepared.text, wire, keys)
    if table.num_rows != prepared.rows:
        raise NotProvenError
    table.validate()  # Arrow's reader miscounts some lists that begin with a null
    if depth(table.schema) > MAX_DEPTH - 2:
        raise NotProvenError
    present = [n for n in table.column_names if table[n].null_count < table.num_rows]
    _require_one_action(table, present)
    entries = null_entries(table, wire, prepared.text)
    order = prepared.order()
    groups: dict[str, list[pl.DataFrame]] = {"files": [], "meta": [], "other": []}
    commit_infos = prepared.commit_infos
    for wrapper in present:
        column = table[wrapper].combine_chunks()
        rows = None if column.null_count == 0 else np.flatnonzero(valid_mask(column))
        if wrapper == "commitInfo":
            inner = _inner_commit_infos(prepared, rows, order)
            commit_infos = _sorted([*commit_infos, *inner])
            continue
        node = wire.wrappers.get(wrapper)
        if node is None:
            frame = _unknown_actions(prepared, wrapper, rows)
        else:
            frame = _flatten(column, wrapper, node, prepared, entries, rows)
        action_type = ALIASES.get(wrapper, wrapper)
        # Columns side by side, which needs no query.
        kinds = pl.Series("actionType", [action_type]).new_from_index(0, frame.height)
        columns_behind = [kinds]
        if order is not None:
            own_order = order if rows is None else order[pl.Series(as_int64(rows))]
            columns_behind += own_order.get_columns()
        frame = frame.hstack(columns_behind)
        for required in wire.required.get(action_type, ()):
            if required not in frame.columns or frame[required].null_count():
                raise NotProvenError
        group = (
            "files" if wrapper in FILE_WRAPPERS else "meta" if wrapper in META_WRAPPERS else "other"
        )
        groups[group].append(frame)
    return Actions(
        _ordered(groups["files"]),
        _ordered(groups["meta"]),
        _ordered(groups["other"]),
        tuple(commit_infos),
    )


def _ordered(frames: list[pl.DataFrame]) -> pl.DataFrame:
    stacked = actions.concat(frames)
    if len(frames) < 2 or "version" not in stacked.columns:
        return stacked
    return stacked.sort(actions.ORDER, maintain_order=True)


def _require_one_action(table: pa.Table, present: Sequence[str]) -> None:
    """Raise for a line without an action, or with both an add and a remove, whose order is lost."""
    nulls = [table[name].null_count for name in present]
    if len(present) == 1 and nulls[0] == 0:
        return
    if not present:
        raise NotProvenError
    hits = np.zeros(table.num_rows, np.int8)
    for name in present:
        hits += valid_mask(table[name].combine_chunks()).view(np.int8)
    if hits.min() < 1 or hits.max() > 1:
        raise NotProvenError


def _inner_commit_infos(
    prepared: Prepared, rows: np.ndarray | None, order: pl.DataFrame | None
) -> Iterator[CommitInfo]:
    numbers = list(range(prepared.rows)) if rows is None else rows.tolist()
    for row, line in zip(numbers, prepared.lines(numbers), strict=True):
        version, position = (None, row) if order is None else order.row(row)
        body = orjson.loads(line)["commitInfo"]
        if not isinstance(body, dict):
            raise NotProvenError
        yield CommitInfo(version, position, body)


def _unknown_actions(prepared: Prepared, wrapper: str, rows: np.ndarray | None) -> pl.DataFrame:
    # The types of these fields are unknown, so the line itself is kept.
    numbers = list(range(prepared.rows)) if rows is None else rows.tolist()
    texts = [
        json_text(orjson.loads(line)[wrapper], lambda: exact_object(line)[wrapper])  # noqa: B023
        for line in prepared.lines(numbers)
    ]
    return pl.DataFrame({"extra": texts})


def _flatten(
    column: pa.StructArray,
    wrapper: str,
    node: Node,
    prepared: Prepared,
    entries: frozenset[str],
    rows: np.ndarray | None,
) -> pl.DataFrame:
    if rows is not None:
        first, count = int(rows[0]), len(rows)
        # A slice copies nothing, but keeps the whole column.
        if rows[-1] - first + 1 == count and 2 * count > len(column):
            column = column.slice(first, count)
        else:
            column = column.take(as_int64(rows))
    series: dict[str, pl.Series] = {}
    if _collect(column, node, entries, series):
        series["extra"] = _extras(prepared, wrapper, node, rows)
    if not series:  # a row without fields is a row
        series["extra"] = pl.Series([None] * len(column), dtype=pl.String)
    return pl.DataFrame(series)


def _collect(
    column: pa.StructArray,
    node: Node,
    entries: frozenset[str],
    series: dict[str, pl.Series],
) -> bool:
    """Collect the known leaves of a struct; return whether an unknown one has a value."""
    unknown = False
    type_ = column.type
    for name, child in zip(
        (type_.field(i).name for i in range(type_.num_fields)), column.flatten(), strict=True
    ):
        if child.null_count == len(child):
            continue
        known = node.fields.get(name)
        if known is None:
            unknown = True
        elif isinstance(known, Leaf):
            array = map_array(child, entries) if known.is_map else child
            series[known.column] = pl.Series(known.column, array)
        else:
            unknown |= _collect(child, known, entries, series)
    return unknown


def _extras(prepared: Prepared, wrapper: str, node: Node, rows: np.ndarray | None) -> pl.Series:
    """The unknown fields of each row as JSON text, from the original lines."""
    numbers = list(range(prepared.rows)) if rows is None else rows.tolist()
    texts = []
    for line in prepared.lines(numbers):
        extra = _unknown_of(orjson.loads(line)[wrapper], node)
        if has_double(extra):
            extra = _unknown_of(exact_object(line)[wrapper], node)
        texts.append(orjson.dumps(extra).decode() if extra else None)
    return pl.Series("extra", texts, dtype=pl.String)


def _unknown_of(body: Mapping[str, object], node: Node) -> dict[str, object]:
    extra: dict[str, object] = {}
    for name, value in body.items():
        known = node.fields.get(name)
        if value is None or isinstance(known, Leaf):
            continue
        if known is None:
            extra[name] = value
        elif isinstance(value, dict) and (inner := _unknown_of(value, known)):
            extra[name] = inner
    return extra
