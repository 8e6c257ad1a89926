"""The columnar NDJSON decoder: many commits in one parse.

Commits are joined into chunks of some megabytes and each chunk is parsed once by Arrow's JSON
reader, several chunks at a time. What the parse cannot prove goes to `lakelog.formats.exact`,
which decides: the two give equal frames, and a property test holds them to it.

Why a chunk may be handed over: bytes that Arrow's reader passes over or trips on (a NUL, invalid
UTF-8, NaN, deep nesting, a file that does not begin with an object), a row count that differs from
the line count, a line without an action, a field whose type varies, a null in a map that may be
either an entry or an absent key, a required field that is missing.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.compute  # is_valid, take and filter need it: here, not amid the first read
import pyarrow.json as pj

from lakelog import actions, contract
from lakelog.formats.base import Actions, CommitInfo
from lakelog.formats.exact import MAX_DEPTH, Blob, decode_exact, parse_object
from lakelog.formats.wire import ALIASES, FILE_WRAPPERS, META_WRAPPERS, Leaf, Node, Wire

__all__ = ["Blob", "decode_lines", "merge"]

_CHUNK_BYTES = 8 << 20
_WORKERS = min(8, os.cpu_count() or 1)
_COUNT_BLOCK = 1 << 18
_MAX_KEYS = 64
_LONG_LINE_BYTES = 1 << 12
_COMMIT_INFO = b'{"commitInfo":'
_PLAIN_KEY = re.compile(r"[ !#-.0-\[\]-~]+")  # ASCII that JSON writers never escape

_Keys = dict[tuple[str, ...], set[str]]
_RECENT = ("",)  # the actions in the chunk before, for no action is called so


class _NotProvenError(Exception):
    """The columnar parse cannot prove that it has understood the chunk."""


def decode_lines(blobs: Iterable[Blob], wire: Wire, *, files: bool = True) -> Actions:
    """Decode NDJSON actions, many files in one parse.

    Args:
        blobs: Bytes by version, ascending; consumed as they are needed, so that reading ahead
            overlaps decoding.
        wire: Spelling of the dialect.
        files: False leaves file actions, cdc and unknown actions out, at a fraction of the cost.

    Returns:
        `Actions` with undecoded paths and no ``dvId``; rows by (version, position).

    Raises:
        MalformedLogError: A line is not one JSON object, or holds a key twice.
        InvalidActionError: A known field has the wrong type, or a required one is missing.

    Memory: the frames, and about ten chunks of 8 MB.
    """
    keys: _Keys = {}
    chunks = _chunks(blobs)
    first = next(chunks, None)
    if first is None:
        return Actions()
    decoded = [_decode_chunk(first, wire, keys, files)]
    second = next(chunks, None)
    if second is not None:
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="lakelog-decode") as pool:
            pending: deque[Future[Actions]] = deque()
            pending.append(pool.submit(_decode_chunk, second, wire, keys, files))
            for chunk in chunks:
                pending.append(pool.submit(_decode_chunk, chunk, wire, keys, files))
                if len(pending) > 2 * _WORKERS:
                    decoded.append(pending.popleft().result())
            decoded.extend(future.result() for future in pending)
    return merge(decoded)


def merge(parts: Sequence[Actions]) -> Actions:
    """Stack decoded actions in the order given."""
    if len(parts) == 1:
        return parts[0]
    return Actions(
        actions.concat(p.files for p in parts),
        actions.concat(p.meta for p in parts),
        actions.concat(p.other for p in parts),
        tuple(info for p in parts for info in p.commit_infos),
    )


def _chunks(blobs: Iterable[Blob]) -> Iterator[list[Blob]]:
    """Group files into chunks; a file larger than a chunk is cut at line ends."""
    chunk: list[Blob] = []
    size = 0
    for blob in blobs:
        for piece in _cut(blob):
            if chunk and size + len(piece.data) > _CHUNK_BYTES:
                yield chunk
                chunk, size = [], 0
            chunk.append(piece)
            size += len(piece.data)
    if chunk:
        yield chunk


def _cut(blob: Blob) -> Iterator[Blob]:
    data = bytes(blob.data)
    if len(data) <= _CHUNK_BYTES or data.isspace():
        yield blob  # of blanks alone, it has to be seen whole to be refused
        return
    start, line = 0, blob.first_line
    view = memoryview(data)
    while start < len(data):
        end = len(data)
        if end - start > _CHUNK_BYTES:
            end = data.rfind(b"\n", start, start + _CHUNK_BYTES) + 1
            end = end or data.find(b"\n", start) + 1 or len(data)
        yield Blob(blob.version, blob.path, view[start:end], line, blob.offset + start, False)
        line += data.count(b"\n", start, end)
        start = end


def _decode_chunk(chunk: list[Blob], wire: Wire, keys: _Keys, files: bool) -> Actions:
    try:
        prepared = _prepare(chunk)
        if files:
            return _decode_all(prepared, wire, keys)
        return _decode_meta(prepared, wire)
    except (_NotProvenError, pa.ArrowException, UnicodeDecodeError, orjson.JSONDecodeError):
        return decode_exact(chunk, wire, files=files)


@dataclass
class _Prepared:
    """A chunk ready to parse: its text, and which line of which file each row is.

    commitInfo lines are taken out at the head and tail of a file, where they usually stand: they
    are free-form, so that their types would never agree in one parse.
    """

    text: bytes = b""
    versions: list[int | None] = field(default_factory=list)
    first_lines: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    commit_infos: list[CommitInfo] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def order(self) -> pl.DataFrame | None:
        """``version`` and ``position`` of every row; None where the file does not say."""
        if not self.versions or self.versions[0] is None:
            return None
        counts = np.array(self.counts, np.int64)
        starts = np.cumsum(counts) - counts
        offsets = np.repeat(np.array(self.first_lines, np.int64) - starts, counts)
        return pl.DataFrame(
            {
                "version": pl.Series(_int64(np.repeat(np.array(self.versions, np.int64), counts))),
                "position": pl.Series(_int64(np.arange(len(offsets)) + offsets)).cast(pl.Int32),
            }
        )

    def lines(self, rows: Sequence[int]) -> list[bytes]:
        every = self.text.split(b"\n")
        return [every[row] for row in rows]


def _prepare(chunk: list[Blob]) -> _Prepared:
    out = _Prepared()
    pieces: list[bytes | memoryview] = []
    for blob in chunk:
        data = bytes(blob.data)
        if data[:1] != b"{" or b"\0" in data:
            raise _NotProvenError
        start, end = 0, len(data)
        first_line = blob.first_line
        if data.startswith(_COMMIT_INFO):
            start = data.find(b"\n") + 1 or end
            line = data[:start]
            out.commit_infos.append(_commit_info(line, blob, first_line, 0))
            first_line += 1
        if end and data[end - 1] == 0x0A:
            end -= 1
        last = data.rfind(b"\n", start, end) + 1
        infos: list[CommitInfo] = []
        if last > start and data.startswith(_COMMIT_INFO, last):
            number = first_line + data.count(b"\n", start, last)
            infos.append(_commit_info(data[last:end], blob, number, last))
            end = last - 1
        count = _count_newlines(data, start, end) + 1 if end > start else 0
        if count:
            # A view: a slice of some megabytes would be copied here and once more by the join.
            pieces.append(data if (start, end) == (0, len(data)) else memoryview(data)[start:end])
        out.versions.append(blob.version)
        out.first_lines.append(first_line)
        out.counts.append(count)
        out.paths.append(blob.path)
        out.commit_infos.extend(infos)
    out.text = b"\n".join(pieces)
    if not out.text.isascii():
        out.text.decode("utf-8")  # Arrow's reader does not check
    if any(_may_nest_deep(line) for line in _long_lines(out.text)):
        raise _NotProvenError  # Arrow's reader takes its stack a level at a time, and then crashes
    return out


def _long_lines(text: bytes) -> Iterator[bytes]:
    """Lines longer than `_LONG_LINE_BYTES`; looks at the ends of the others only."""
    start = 0
    while len(text) - start > _LONG_LINE_BYTES:
        end = text.rfind(b"\n", start, start + _LONG_LINE_BYTES + 1) + 1
        if not end:
            end = text.find(b"\n", start) + 1 or len(text)
            yield text[start:end]
        start = end


def _may_nest_deep(line: bytes) -> bool:
    """Whether a line has brackets enough for `MAX_DEPTH`."""
    brackets = line.count(b"{") + line.count(b"[")
    if brackets <= MAX_DEPTH:
        return False
    # Before a backslash a bracket stands in a text (schemaString has thousands), and an empty pair
    # nests nothing.
    brackets -= line.count(b"{\\") + line.count(b"[\\") + line.count(b"[{\\")
    return brackets - line.count(b"{}") - line.count(b"[]") > MAX_DEPTH - 2


def _count_newlines(data: bytes, start: int, end: int) -> int:
    if end - start < _COUNT_BLOCK:
        return data.count(b"\n", start, end)
    # NumPy counts a large buffer several times faster, in blocks that stay in the CPU's cache.
    view = np.frombuffer(data, np.uint8)[start:end]
    blocks = range(0, len(view), _COUNT_BLOCK)
    return sum(int(np.count_nonzero(view[at : at + _COUNT_BLOCK] == 0x0A)) for at in blocks)


def _commit_info(line: bytes, blob: Blob, number: int, offset: int) -> CommitInfo:
    parsed = parse_object(line.rstrip(b"\n"), blob.path, blob.version, number, blob.offset + offset)
    body = parsed.pop("commitInfo")
    if parsed or not isinstance(body, dict):
        raise _NotProvenError  # other actions stand on the same line
    return CommitInfo(blob.version, number, body)


def _parse(text: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    # One block a chunk: a block that begins with a null row crashes Arrow's reader, and `_prepare`
    # has made sure that a chunk begins with an object.
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def _decode_meta(prepared: _Prepared, wire: Wire) -> Actions:
    """Find the few lines that are not file actions, and decode just those."""
    if not prepared.rows:
        return Actions(commit_infos=tuple(prepared.commit_infos))
    schema = pa.schema(
        [
            (wrapper, pa.struct([("__absent", pa.null())]))
            for wrapper in (*META_WRAPPERS, "commitInfo")
        ]
    )
    table = _parse(prepared.text, schema, "ignore")
    if table.num_rows != prepared.rows:
        raise _NotProvenError
    hit = np.zeros(table.num_rows, bool)
    for column in table.columns:
        if column.null_count < len(column):
            hit |= _valid(column)
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
    return Actions(
        meta=decoded.meta, commit_infos=_sorted((*prepared.commit_infos, *decoded.commit_infos))
    )


def _sorted(infos: Iterable[CommitInfo]) -> tuple[CommitInfo, ...]:
    return tuple(sorted(infos, key=lambda i: (i.version or 0, i.position)))


def _decode_all(prepared: _Prepared, wire: Wire, keys: _Keys) -> Actions:
    if not prepared.rows:
        return Actions(commit_infos=tuple(prepared.commit_infos))
    table = _parse_with_keys(prepared.text, wire, keys)
    if table.num_rows != prepared.rows:
        raise _NotProvenError
    table.validate()  # Arrow's reader miscounts some lists that begin with a null
    if _depth(table.schema) > MAX_DEPTH - 2:
        raise _NotProvenError
    present = [n for n in table.column_names if table[n].null_count < table.num_rows]
    _require_one_action(table, present)
    entries = _null_entries(table, wire, prepared)
    order = prepared.order()
    groups: dict[str, list[pl.DataFrame]] = {"files": [], "meta": [], "other": []}
    commit_infos: list[CommitInfo] = list(prepared.commit_infos)
    for wrapper in present:
        column = table[wrapper].combine_chunks()
        rows = None if column.null_count == 0 else np.flatnonzero(_valid(column))
        if wrapper == "commitInfo":
            commit_infos.extend(_inner_commit_infos(prepared, rows, order))
            continue
        node = wire.wrappers.get(wrapper)
        if node is None:
            frame = _unknown_actions(prepared, wrapper, rows)
        else:
            frame = _flatten(column, wrapper, node, prepared, entries, rows)
        action_type = ALIASES.get(wrapper, wrapper)
        frame = frame.with_columns(pl.lit(action_type).alias("actionType"))
        if order is not None:
            frame = frame.hstack(order if rows is None else order[pl.Series(_int64(rows))])
        for required in wire.required.get(action_type, ()):
            if required not in frame.columns or frame[required].null_count():
                raise _NotProvenError
        group = (
            "files" if wrapper in FILE_WRAPPERS else "meta" if wrapper in META_WRAPPERS else "other"
        )
        groups[group].append(frame)
    return Actions(
        _ordered(groups["files"]),
        _ordered(groups["meta"]),
        _ordered(groups["other"]),
        _sorted(commit_infos),
    )


def _depth(schema: pa.Schema) -> int:
    depth = 0
    level = list(schema.types)
    while level:
        depth += 1
        level = [type_.field(i).type for type_ in level for i in range(type_.num_fields)]
    return depth


def _ordered(frames: list[pl.DataFrame]) -> pl.DataFrame:
    stacked = actions.concat(frames)
    if len(frames) < 2 or "version" not in stacked.columns:
        return stacked
    return stacked.sort(actions.ORDER, maintain_order=True)


def _require_one_action(table: pa.Table, present: Sequence[str]) -> None:
    """Refuse the chunk if a line has no action, or both an add and a remove (whose order the
    columns have lost).
    """
    nulls = [table[name].null_count for name in present]
    if len(present) == 1 and nulls[0] == 0:
        return
    if not present:
        raise _NotProvenError
    hits = np.zeros(table.num_rows, np.int8)
    for name in present:
        hits += _valid(table[name]).astype(np.int8)
    if hits.min() < 1 or hits.max() > 1:
        raise _NotProvenError


def _inner_commit_infos(
    prepared: _Prepared, rows: np.ndarray | None, order: pl.DataFrame | None
) -> Iterator[CommitInfo]:
    numbers = list(range(prepared.rows)) if rows is None else rows.tolist()
    for row, line in zip(numbers, prepared.lines(numbers), strict=True):
        version, position = (None, row) if order is None else order.row(row)
        body = orjson.loads(line)["commitInfo"]
        if not isinstance(body, dict):
            raise _NotProvenError
        yield CommitInfo(version, position, body)


def _unknown_actions(prepared: _Prepared, wrapper: str, rows: np.ndarray | None) -> pl.DataFrame:
    # Nobody knows these fields' types, so only the line itself keeps them whole.
    numbers = list(range(prepared.rows)) if rows is None else rows.tolist()
    bodies = [orjson.loads(line)[wrapper] for line in prepared.lines(numbers)]
    return pl.DataFrame({"extra": [orjson.dumps(body).decode() for body in bodies]})


def _parse_with_keys(text: bytes, wire: Wire, keys: _Keys) -> pa.Table:
    """Parse with the fields and map keys seen so far; again whenever a new one turns up.

    Declaring only what occurs is what makes the parse quick: every declared field costs a null in
    every row that lacks it.
    """
    if not keys:
        head = text[: text.find(b"\n", min(len(text), 1 << 16)) + 1] or text
        if len(head) < len(text):
            _learn(_parse(head, _wire_schema(wire, {}), "infer"), wire, {}, keys)
    # Other threads add to `keys` meanwhile: a parse is judged by what it was given itself.
    given = dict(keys)
    # Protocol and metaData stand in few chunks, txn in all or none. A wrong guess costs a second
    # parse; to look for them would cost what it saves.
    likely = keys.get(_RECENT, keys.get((), set()))
    given[()] = {w for w in keys.get((), ()) if w in FILE_WRAPPERS or w in likely}
    while True:
        table = _parse(text, _wire_schema(wire, given), "infer")
        if not _learn(table, wire, given, keys):
            there = (n for n in table.column_names if table[n].null_count < table.num_rows)
            keys[_RECENT] = set(there)
            return table
        given = dict(keys)


def _wire_schema(wire: Wire, keys: _Keys) -> pa.Schema:
    return pa.schema(
        [
            (wrapper, _wire_type(wire.wrappers[wrapper], (wrapper,), keys))
            for wrapper in sorted(keys.get((), ()))
        ]
    )


def _wire_type(node: Node, path: tuple[str, ...], keys: _Keys) -> pa.StructType:
    fields: list[pa.Field] = []
    seen = keys.get(path, ())
    for name, child in node.fields.items():
        if name not in seen:
            continue
        if isinstance(child, Node):
            fields.append(pa.field(name, _wire_type(child, (*path, name), keys)))
        elif child.is_map:
            known = sorted(keys.get((*path, name), ()))
            fields.append(pa.field(name, pa.struct([pa.field(k, pa.string()) for k in known])))
        else:
            fields.append(pa.field(name, contract.to_arrow(child.type)))
    return pa.struct(fields)


def _learn(table: pa.Table, wire: Wire, given: _Keys, keys: _Keys) -> bool:
    """Add to `keys` the known fields and map keys that a parse met beside those it was given; say
    if there are any.
    """
    fresh: _Keys = {}
    for column in table.schema:
        if column.name in wire.wrappers and column.name != "commitInfo":
            if column.name not in given.get((), ()):
                fresh.setdefault((), set()).add(column.name)
            _meet(column.type, wire.wrappers[column.name], (column.name,), given, fresh)
    for path, names in fresh.items():
        # A new set each time: other threads read the old one.
        keys[path] = keys.get(path, set()) | names
        if len(keys[path]) > _MAX_KEYS:
            raise _NotProvenError
    return bool(fresh)


def _meet(
    type_: pa.DataType, node: Node | Leaf, path: tuple[str, ...], keys: _Keys, fresh: _Keys
) -> None:
    if not pa.types.is_struct(type_):
        return
    for index in range(type_.num_fields):
        member = type_.field(index)
        child = node.fields.get(member.name) if isinstance(node, Node) else None
        if isinstance(node, Node) and child is None:
            continue  # a field that nobody knows
        if member.name not in keys.get(path, ()):
            fresh.setdefault(path, set()).add(member.name)
        if isinstance(child, Node) or (child is not None and child.is_map):
            _meet(member.type, child, (*path, member.name), keys, fresh)


def _flatten(
    column: pa.StructArray,
    wrapper: str,
    node: Node,
    prepared: _Prepared,
    entries: frozenset[str],
    rows: np.ndarray | None,
) -> pl.DataFrame:
    if rows is not None:
        column = column.take(_int64(rows))
    series: dict[str, pl.Series] = {}
    if _collect(column, node, entries, series):
        series["extra"] = _extras(prepared, wrapper, node, rows)
    if not series:  # a row without a field still is one
        series["extra"] = pl.Series([None] * len(column), dtype=pl.String)
    return pl.DataFrame(series)


def _collect(
    column: pa.StructArray,
    node: Node,
    entries: frozenset[str],
    series: dict[str, pl.Series],
) -> bool:
    """Collect the known leaves of a struct; say whether an unknown one holds a value."""
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
            array = _map_array(child, entries) if known.is_map else child
            series[known.column] = pl.Series(known.column, array)
        else:
            unknown |= _collect(child, known, entries, series)
    return unknown


def _extras(prepared: _Prepared, wrapper: str, node: Node, rows: np.ndarray | None) -> pl.Series:
    """The unknown fields of each row as JSON text, from the lines themselves: only they have them
    whole.
    """
    numbers = list(range(prepared.rows)) if rows is None else rows.tolist()
    bodies = (orjson.loads(line)[wrapper] for line in prepared.lines(numbers))
    extras = (_unknown_of(body, node) for body in bodies)
    return pl.Series(
        "extra", [orjson.dumps(e).decode() if e else None for e in extras], dtype=pl.String
    )


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


def _null_entries(table: pa.Table, wire: Wire, prepared: _Prepared) -> frozenset[str]:
    """Keys of maps whose nulls are entries with a null value, rather than absent keys.

    A struct has lost the difference, so the text decides: the key followed by null stands there as
    often as nulls were read (all are entries), or never (all are absent). Anything between, or a
    key that may be spelled in another way, is not proven.
    """
    nulls: dict[str, int] = {}
    keys: list[str] = []
    for path, leaf in (
        found
        for wrapper, node in wire.wrappers.items()
        if wrapper != "commitInfo" and wrapper in table.column_names
        for found in node.leaves((wrapper,))
    ):
        if not leaf.is_map:
            continue
        column = _descend(table[path[0]].combine_chunks(), path[1:])
        if column is None:
            continue
        for index, child in enumerate(column.flatten()):
            name = column.type.field(index).name
            keys.append(name)
            if missing := child.null_count - column.null_count:
                nulls[name] = nulls.get(name, 0) + missing
    entries: set[str] = set()
    names = _names(table.schema) if nulls else []
    for name, count in nulls.items():
        if name in wire.names or not _PLAIN_KEY.fullmatch(name) or b"\\u" in prepared.text:
            raise _NotProvenError
        if names.count(name) != keys.count(name):
            raise _NotProvenError  # a field that nobody knows is called the same
        pattern = b'"' + re.escape(name.encode()) + rb'"\s*:\s*null'
        spelled = sum(1 for _ in re.finditer(pattern, prepared.text))
        if spelled == count:
            entries.add(name)
        elif spelled:
            raise _NotProvenError
    return frozenset(entries)


def _names(schema: pa.Schema) -> list[str]:
    """Names of all fields, at every depth."""
    names: list[str] = []
    level = list(schema)
    while level:
        names += (field.name for field in level)
        level = [f.type.field(i) for f in level for i in range(f.type.num_fields)]
    return names


def _descend(column: pa.StructArray, names: Sequence[str]) -> pa.StructArray | None:
    """The struct at the end of `names`, or None where the parse met none."""
    for name in names:
        index = column.type.get_field_index(name)
        if index < 0 or not pa.types.is_struct(column.type.field(index).type):
            return None
        column = column.flatten()[index]
    return column


def _map_array(column: pa.StructArray, entries: frozenset[str]) -> pa.MapArray:
    """Turn a struct of texts back into the map that the JSON object was."""
    type_ = column.type
    names = [type_.field(i).name for i in range(type_.num_fields)]
    children = column.flatten()
    valid = _valid(column)
    present = np.repeat(valid[:, None], len(names), axis=1)
    for index, (name, child) in enumerate(zip(names, children, strict=True)):
        if name not in entries and child.null_count > column.null_count:
            present[:, index] &= _valid(child)
    row, key = np.nonzero(present)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(present.sum(axis=1), out=offsets[1:])
    texts = [child.cast(pa.string()) for child in children] or [pa.nulls(0, pa.string())]
    return pa.MapArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), len(offsets), [None, pa.py_buffer(offsets)]),
        pl.Series(names, dtype=pl.String).to_arrow().cast(pa.string()).take(_int64(key)),
        pa.concat_arrays(texts).take(_int64(key * len(column) + row)),
        mask=column.is_null(),
    )


def _valid(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    # Through Polars: Arrow's own to_numpy imports pandas, wherever it is installed.
    return pl.Series(column.is_valid()).to_numpy()


def _int64(values: np.ndarray) -> pa.Array:
    # pa.array would import pandas, wherever it is installed, to see whether this is one of its own,
    # and pl.Series numpy.ma.
    contiguous = np.ascontiguousarray(values, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(contiguous), [None, pa.py_buffer(contiguous)])
