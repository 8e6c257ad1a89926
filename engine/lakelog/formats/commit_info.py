"""commitInfo bodies to flattened rows.

A commitInfo is free-form JSON: the fields that the contract names get their columns if their type
fits, everything else goes to ``extra``. One row a commit, so a loop over commits is in order.

Source: Delta protocol, Commit Provenance Information.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from lakelog import actions, contract
from lakelog.formats.base import CommitInfo
from lakelog.formats.exact import text_of
from lakelog.formats.wire import Leaf, Wire


def flatten_commit_infos(infos: Sequence[CommitInfo], wire: Wire) -> pl.DataFrame:
    """Flatten commitInfo bodies.

    Args:
        infos: Bodies, in order.
        wire: Spelling of the dialect.

    Returns:
        One row a body, narrow, ``actionType`` = ``commitInfo``, in the order given. A known field
        whose value has another type than the contract's is kept in ``extra``.
    """
    node = wire.wrappers.get("commitInfo")
    known = node.fields if node is not None else {}
    columns: dict[str, list[Any]] = {
        leaf.column: [] for leaf in known.values() if isinstance(leaf, Leaf)
    }
    extras: list[str | None] = []
    for info in infos:
        extra: dict[str, Any] = {}
        row: dict[str, Any] = {}
        for name, value in info.body.items():
            if value is None:
                continue
            leaf = known.get(name)
            taken = _take(value, leaf) if isinstance(leaf, Leaf) else None
            if isinstance(leaf, Leaf) and taken is not None:
                row[leaf.column] = taken
            else:
                extra[name] = value
        for column, values in columns.items():
            values.append(row.get(column))
        extras.append(orjson.dumps(extra).decode() if extra else None)
    schema = actions.schema()
    return pl.DataFrame(
        {
            "version": pl.Series([i.version for i in infos], dtype=pl.Int64),
            "position": pl.Series([i.position for i in infos], dtype=pl.Int32),
            "actionType": pl.Series(["commitInfo"] * len(infos), dtype=pl.String),
            **{c: _series(v, schema[c]) for c, v in columns.items()},
            "extra": pl.Series(extras, dtype=pl.String),
        }
    )


def in_commit_timestamp(info: CommitInfo) -> int | None:
    """The in-commit timestamp of a body, in milliseconds; None where it has none.

    Source: Delta protocol, In-Commit Timestamps.
    """
    value = info.body.get("inCommitTimestamp")
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _take(value: Any, leaf: Leaf) -> Any:
    match leaf.type:
        case contract.Primitive("string"):
            return value if isinstance(value, str) else None
        case contract.Primitive("boolean"):
            return value if isinstance(value, bool) else None
        case contract.Primitive():
            return value if type(value) is int and abs(value) < 1 << 63 else None
        case contract.Map():
            if isinstance(value, dict):
                return {name: text_of(value[name]) for name in sorted(value)}
    return None


def _series(values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    if not isinstance(dtype, pl.Map):
        return pl.Series(values, dtype=dtype, strict=True)
    # Polars builds a column of maps value by value; through Arrow it takes all entries at once.
    maps = [v for v in values if v is not None]
    lengths = pl.Series([0, *(len(v) if v is not None else 0 for v in values)], dtype=pl.Int32)
    array = pa.MapArray.from_arrays(
        lengths.cum_sum().to_arrow(),
        _texts([name for entries in maps for name in entries]),
        _texts([text for entries in maps for text in entries.values()]),
        mask=pl.Series([v is None for v in values], dtype=pl.Boolean).to_arrow(),
    )
    return pl.Series(array).cast(dtype)


def _texts(values: Sequence[str | None]) -> pa.Array:
    return pl.Series(values, dtype=pl.String).to_arrow().cast(pa.string())
