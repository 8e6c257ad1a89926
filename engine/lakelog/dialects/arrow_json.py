"""Arrow's JSON reader with a schema of only those fields that occur, and with maps."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.json as pj

from lakelog.arrow_arrays import array_of, as_int64, valid_mask
from lakelog.dialects.json_layout import FILE_WRAPPERS, Leaf, Node, Wire
from lakelog.model import contract


class NotProvenError(Exception):
    """The columnar parse cannot prove that it decoded the chunk correctly."""


_PLAIN_KEY = re.compile(r"[ !#-.0-\[\]-~]+")  # ASCII that JSON writers never escape


def null_entries(table: pa.Table, wire: Wire, text: bytes) -> frozenset[str]:
    """Map keys whose nulls are entries, not absent keys. Only the text shows which: the key is
    followed by null as often as nulls were read, or never; otherwise raises NotProvenError.
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
    names = _nested_names(table.schema) if nulls else []
    for name, count in nulls.items():
        if name in wire.names or not _PLAIN_KEY.fullmatch(name) or b"\\u" in text:
            raise NotProvenError
        if names.count(name) != keys.count(name):
            raise NotProvenError  # an unknown field has the same name
        pattern = b'"' + re.escape(name.encode()) + rb'"\s*:\s*null'
        spelled = sum(1 for _ in re.finditer(pattern, text))
        if spelled == count:
            entries.add(name)
        elif spelled:
            raise NotProvenError
    return frozenset(entries)


def _nested_names(schema: pa.Schema) -> list[str]:
    """Names of all fields, at every depth."""
    names: list[str] = []
    level = list(schema)
    while level:
        names += (field.name for field in level)
        level = [f.type.field(i) for f in level for i in range(f.type.num_fields)]
    return names


def _descend(column: pa.StructArray, names: Sequence[str]) -> pa.StructArray | None:
    """The struct at the path `names`, or None if the parse found none."""
    for name in names:
        index = column.type.get_field_index(name)
        if index < 0 or not pa.types.is_struct(column.type.field(index).type):
            return None
        column = column.flatten()[index]
    return column


def map_array(column: pa.StructArray, entries: frozenset[str]) -> pa.MapArray:
    """Convert a struct of texts to the map that the JSON object was."""
    type_ = column.type
    names = [type_.field(i).name for i in range(type_.num_fields)]
    children = column.flatten()
    valid = valid_mask(column)
    present = np.repeat(valid[:, None], len(names), axis=1)
    for index, (name, child) in enumerate(zip(names, children, strict=True)):
        if name not in entries and child.null_count > column.null_count:
            present[:, index] &= valid_mask(child)
    row, key = np.nonzero(present)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(present.sum(axis=1), out=offsets[1:])
    texts = [child.cast(pa.string()) for child in children] or [pa.nulls(0, pa.string())]
    return pa.MapArray.from_arrays(
        array_of(pa.int32(), offsets),
        pl.Series(names, dtype=pl.String).to_arrow().cast(pa.string()).take(as_int64(key)),
        pa.concat_arrays(texts).take(as_int64(key * len(column) + row)),
        mask=column.is_null(),
    )


_MAX_KEYS = 64

Keys = dict[tuple[str, ...], set[str]]
"""Fields or map keys by the path of wrapper key and field names above them; the empty path has the
wrapper keys.
"""
_RECENT = ("",)  # wrapper keys of the previous chunk; no action has this name


def parse(text: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Parse one chunk; `unexpected` is what to do with fields that `schema` lacks."""
    # One block per chunk: a block that begins with a null row crashes Arrow's reader, and `prepare`
    # ensures that a chunk begins with an object.
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def parse_with_keys(text: bytes, wire: Wire, keys: Keys) -> pa.Table:
    """Parse with the keys seen so far, each a null per row without it, and again for new ones."""
    if not keys:
        head = text[: text.find(b"\n", min(len(text), 1 << 16)) + 1] or text
        if len(head) < len(text):
            _learn(parse(head, _wire_schema(wire, {}), "infer"), wire, {}, keys)
    # Other threads add to `keys` concurrently: use the keys that this parse was given.
    given = dict(keys)
    # Protocol and metaData are in few chunks, txn in all or none. A wrong guess costs a second
    # parse; searching for them would cost what it saves.
    likely = keys.get(_RECENT, keys.get((), set()))
    given[()] = {w for w in keys.get((), ()) if w in FILE_WRAPPERS or w in likely}
    while True:
        table = parse(text, _wire_schema(wire, given), "infer")
        if not _learn(table, wire, given, keys):
            there = (n for n in table.column_names if table[n].null_count < table.num_rows)
            keys[_RECENT] = set(there)
            return table
        given = dict(keys)


def _wire_schema(wire: Wire, keys: Keys) -> pa.Schema:
    return pa.schema(
        [
            (wrapper, _wire_type(wire.wrappers[wrapper], (wrapper,), keys))
            for wrapper in sorted(keys.get((), ()))
        ]
    )


def _wire_type(node: Node, path: tuple[str, ...], keys: Keys) -> pa.StructType:
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


def _learn(table: pa.Table, wire: Wire, given: Keys, keys: Keys) -> bool:
    """Add newly parsed fields and map keys to `keys`; return whether there were any."""
    fresh: Keys = {}
    for column in table.schema:
        if column.name in wire.wrappers and column.name != "commitInfo":
            if column.name not in given.get((), ()):
                fresh.setdefault((), set()).add(column.name)
            _meet(column.type, wire.wrappers[column.name], (column.name,), given, fresh)
    for path, names in fresh.items():
        # A new set each time: other threads read the old one.
        keys[path] = keys.get(path, set()) | names
        if len(keys[path]) > _MAX_KEYS:
            raise NotProvenError
    return bool(fresh)


def _meet(
    type_: pa.DataType, node: Node | Leaf, path: tuple[str, ...], keys: Keys, fresh: Keys
) -> None:
    if not pa.types.is_struct(type_):
        return
    for index in range(type_.num_fields):
        member = type_.field(index)
        child = node.fields.get(member.name) if isinstance(node, Node) else None
        if isinstance(node, Node) and child is None:
            continue  # an unknown field
        if member.name not in keys.get(path, ()):
            fresh.setdefault(path, set()).add(member.name)
        if isinstance(child, Node) or (child is not None and child.is_map):
            _meet(member.type, child, (*path, member.name), keys, fresh)


def depth(schema: pa.Schema) -> int:
    """Nesting depth of the types of a schema."""
    depth = 0
    level = list(schema.types)
    while level:
        depth += 1
        level = [type_.field(i).type for type_ in level for i in range(type_.num_fields)]
    return depth
