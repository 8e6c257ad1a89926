"""Encodes flattened rows as NDJSON actions, without a loop over rows.

Rows of one action type that lack the same fields are encoded as one struct by Polars' JSON writer,
column by column; there are few such patterns. Unknown fields (``extra``) are inserted as text, at
their original level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import orjson
import polars as pl

from lakelog.dialects.json_layout import Leaf, Node, Wire
from lakelog.dialects.log_content import CHECKPOINT_META, CommitContent
from lakelog.dialects.row_validation import ACTION_TYPE, EXTRA, by_type, conform_rows, parse_extra
from lakelog.errors import InvalidTransactionError
from lakelog.model.actions import PATH_TEXT
from lakelog.threads import WORKERS, Pool

SLICE_ROWS = 1 << 16

Spell = Callable[[pl.DataFrame], pl.Series]
"""Encodes the decoded paths of file actions."""


def require_content(content: CommitContent) -> None:
    """Raise for a commit without actions, which readers treat as a torn write."""
    rows = content.meta.height + content.files.height
    if not content.info and not rows and not content.file_lines:
        raise InvalidTransactionError("a commit must contain at least one action")


def ordered_content(content: CommitContent, dialect: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The meta and file rows of a commit, conformed by `conform_rows`, meta rows in order."""
    meta = conform_rows(content.meta, dialect)
    if meta.height > 1:
        rank = meta[ACTION_TYPE].replace_strict(
            list(CHECKPOINT_META), range(len(CHECKPOINT_META)), default=len(CHECKPOINT_META)
        )
        meta = meta if rank.is_sorted() else meta.sort(rank, maintain_order=True)
    return meta, conform_rows(content.files, dialect)


def encode_rows(
    rows: pl.DataFrame, dialect: str, spell: Spell | None = None, *, ahead: bool = True
) -> Iterator[bytes]:
    """The lines of some rows, in order, a slice of 64 Ki rows at a time."""
    wire = Wire.of(dialect)
    slices = list(rows.iter_slices(SLICE_ROWS)) if rows.height else []
    if not ahead or len(slices) < 2:
        yield from (_encode_slice(part, wire, spell) for part in slices)
        return
    with Pool(WORKERS, thread_name_prefix="lakelog-encode") as pool:
        yield from pool.map(lambda part: _encode_slice(part, wire, spell), slices)


def _encode_slice(rows: pl.DataFrame, wire: Wire, spell: Spell | None) -> bytes:
    if spell is not None and "path" in rows.columns:
        rows = rows.with_columns(spell(rows).alias("path")).drop(PATH_TEXT, strict=False)
    return _as_bytes(lines_of(rows, wire))


def _as_bytes(lines: pl.Series) -> bytes:
    ended = pl.select(pl.concat_str(lines, pl.lit("\n"))).to_series()
    # In Arrow's plain layout, the texts are contiguous: the buffer is the file.
    array = ended.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    data: bytes = array.buffers()[2].to_pybytes()
    return data


def lines_of(rows: pl.DataFrame, wire: Wire) -> pl.Series:
    """One JSON text per row, in row order; paths are already encoded."""
    numbered = rows.with_row_index("__row")
    groups: list[tuple[pl.Series, pl.Series]] = []
    for kind, typed in by_type(numbered):
        node = wire.wrappers.get(kind)
        if node is None:
            groups.append((typed["__row"], _unknown(kind, typed)))
            continue
        part, levels = _split_extra(typed, node, kind)
        columns = [leaf.column for _, leaf in node.leaves() if leaf.column in part.columns]
        columns += [_extra_column(level) for level in levels]
        for present, group in _by_pattern(part, list(dict.fromkeys(columns))):
            here = {level for level in levels if _extra_column(level) in present}
            groups.append((group["__row"], _known(kind, group, node, present, here)))
    return _in_order(groups)


def _in_order(groups: Sequence[tuple[pl.Series, pl.Series]]) -> pl.Series:
    if len(groups) == 1:
        return groups[0][1]
    order = pl.concat([rows for rows, _ in groups])
    lines = pl.concat([texts for _, texts in groups])
    return lines if order.is_sorted() else lines.gather(order.arg_sort())


def _by_pattern(
    rows: pl.DataFrame, columns: Sequence[str]
) -> Iterator[tuple[frozenset[str], pl.DataFrame]]:
    """Groups of rows with values in the same of `columns`."""
    missing = {name: rows[name].null_count() for name in columns}
    always = {name for name, count in missing.items() if not count}
    varying = [name for name, count in missing.items() if 0 < count < rows.height]
    if not varying:
        yield frozenset(always), rows
        return
    flags = [pl.col(name).is_not_null().alias(f"__has{i}") for i, name in enumerate(varying)]
    names = [f"__has{i}" for i in range(len(varying))]
    for key, group in rows.with_columns(flags).group_by(names, maintain_order=True):
        found = {name for name, has in zip(varying, key, strict=True) if has}
        yield frozenset(always | found), group


def _known(
    kind: str,
    rows: pl.DataFrame,
    node: Node,
    present: frozenset[str],
    levels: set[tuple[str, ...]],
) -> pl.Series:
    if levels:
        body = _text(node, present, levels, ())
        line = pl.concat_str(pl.lit(f"{{{_quote(kind)}:"), body, pl.lit("}"))
    else:
        fields = _fields(node, present)
        if not fields:
            return pl.Series([f"{{{_quote(kind)}:{{}}}}"] * rows.height, dtype=pl.String)
        line = pl.struct(pl.struct(fields).alias(kind)).struct.json_encode()
    return rows.with_columns(line.alias("__line"))["__line"]


def _unknown(kind: str, rows: pl.DataFrame) -> pl.Series:
    # Their structure is unknown, so each is parsed, and encoded on one line.
    bodies = (parse_extra(text, None, kind) for text in rows[EXTRA])
    return pl.Series([orjson.dumps({kind: body}).decode() for body in bodies], dtype=pl.String)


def _fields(node: Node, present: frozenset[str]) -> list[pl.Expr]:
    fields = []
    for name, child in node.fields.items():
        if isinstance(child, Leaf):
            if child.column in present:
                fields.append(pl.col(child.column).alias(name))
        elif inner := _fields(child, present):
            fields.append(pl.struct(inner).alias(name))
    return fields


def _text(
    node: Node, present: frozenset[str], levels: set[tuple[str, ...]], at: tuple[str, ...]
) -> pl.Expr:
    """The JSON object of `node` with unknown fields put back at `levels`, as an expression."""
    pieces: list[pl.Expr] = []
    run: list[pl.Expr] = []

    def flush() -> None:
        if run:
            text = pl.struct(list(run)).struct.json_encode()
            pieces.append(text.str.strip_prefix("{").str.strip_suffix("}"))
            run.clear()

    for name, child in node.fields.items():
        inside = (*at, name)
        if isinstance(child, Leaf):
            if child.column in present:
                run.append(pl.col(child.column).alias(name))
        elif any(level[: len(inside)] == inside for level in levels):
            flush()
            below = _text(child, present, levels, inside)
            pieces.append(pl.concat_str(pl.lit(f"{_quote(name)}:"), below))
        elif fields := _fields(child, present):
            run.append(pl.struct(fields).alias(name))
    flush()
    if at in levels:
        pieces.append(pl.col(_extra_column(at)))
    return pl.concat_str(pl.lit("{"), pl.concat_str(pieces, separator=","), pl.lit("}"))


def _split_extra(
    rows: pl.DataFrame, node: Node, kind: str
) -> tuple[pl.DataFrame, list[tuple[str, ...]]]:
    """Add a column with the text of unknown fields, without braces, for each level of the body that
    has some; loops over distinct texts, because only parsing shows a field's level.
    """
    if EXTRA not in rows.columns or rows[EXTRA].null_count() == rows.height:
        return rows, []
    texts = rows[EXTRA].drop_nulls().unique()
    split: list[dict[tuple[str, ...], str]] = []
    for text in texts:
        found: dict[tuple[str, ...], str] = {}
        _collect(parse_extra(text, node, kind), node, (), found)
        split.append(found)
    levels = sorted({level for found in split for level in found})
    lookup = pl.DataFrame(
        [
            texts,
            *(
                pl.Series(_extra_column(level), [f.get(level) for f in split], dtype=pl.String)
                for level in levels
            ),
        ]
    )
    return rows.join(lookup, on=EXTRA, how="left", maintain_order="left"), levels


def _collect(
    extra: Mapping[str, object], node: Node, at: tuple[str, ...], found: dict[tuple[str, ...], str]
) -> None:
    own = {}
    for name, value in extra.items():
        child = node.fields.get(name)
        if isinstance(child, Node) and isinstance(value, dict):
            _collect(value, child, (*at, name), found)
        else:
            own[name] = value
    if own:
        found[at] = orjson.dumps(own).decode()[1:-1]


def _extra_column(level: tuple[str, ...]) -> str:
    return "__extra." + ".".join(level)


def _quote(name: str) -> str:
    return orjson.dumps(name).decode()
