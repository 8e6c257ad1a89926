"""Arrow's JSON reader with a schema of only those fields that occur."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.json as pj

from lakelog.dialects.decoder_fallback import NotProvenError
from lakelog.dialects.json_layout import FILE_WRAPPERS, Leaf, Node, Wire
from lakelog.model import contract

_MAX_KEYS = 64

Keys = dict[tuple[str, ...], set[str]]
"""Path of wrapper key and field names to the fields, or map keys, met below it; the empty path has
the wrapper keys."""
RECENT = ("",)  # the actions in the chunk before, for no action is called so


def parse(text: bytes, schema: pa.Schema, unexpected: str) -> pa.Table:
    """Parse one chunk; `unexpected` is what to do with fields that `schema` lacks."""
    # One block a chunk: a block that begins with a null row crashes Arrow's reader, and `prepare`
    # has made sure that a chunk begins with an object.
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def parse_with_keys(text: bytes, wire: Wire, keys: Keys) -> pa.Table:
    """Parse with the fields and map keys seen so far; again whenever a new one turns up.

    Declaring only what occurs is what makes the parse quick: every declared field costs a null in
    every row that lacks it.
    """
    if not keys:
        head = text[: text.find(b"\n", min(len(text), 1 << 16)) + 1] or text
        if len(head) < len(text):
            _learn(parse(head, _wire_schema(wire, {}), "infer"), wire, {}, keys)
    # Other threads add to `keys` meanwhile: a parse is judged by what it was given itself.
    given = dict(keys)
    # Protocol and metaData are in few chunks, txn in all or none. A wrong guess costs a second
    # parse; to look for them would cost what it saves.
    likely = keys.get(RECENT, keys.get((), set()))
    given[()] = {w for w in keys.get((), ()) if w in FILE_WRAPPERS or w in likely}
    while True:
        table = parse(text, _wire_schema(wire, given), "infer")
        if not _learn(table, wire, given, keys):
            there = (n for n in table.column_names if table[n].null_count < table.num_rows)
            keys[RECENT] = set(there)
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
    """Add to `keys` the known fields and map keys that a parse met next to those it was given; say
    if there are any.
    """
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
    """How deep the types of a schema nest."""
    depth = 0
    level = list(schema.types)
    while level:
        depth += 1
        level = [type_.field(i).type for type_ in level for i in range(type_.num_fields)]
    return depth
