"""Decodes commitInfo actions to flattened rows.

A commitInfo is free-form JSON: fields of the contract are stored in their columns if their type
matches, other fields in ``extra``. There is one per commit, so a loop over commits is acceptable.

Source: Delta protocol, Commit Provenance Information.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from lakelog.dialects.json_layout import Leaf, Wire
from lakelog.dialects.log_content import CommitInfo
from lakelog.dialects.strict_decoder import text_of
from lakelog.model import actions, contract


def flatten_commit_infos(infos: Sequence[CommitInfo], wire: Wire) -> pl.DataFrame:
    """Flatten commitInfo bodies."""
    node = wire.wrappers.get("commitInfo")
    known = node.fields if node is not None else {}
    bodies = [info.body for info in infos]
    extras: list[dict[str, Any]] = [{} for _ in bodies]
    taken: dict[str, pl.Series] = {}
    schema = actions.schema()
    names = dict.fromkeys([*known, *(name for body in bodies for name in body)])
    for name in names:
        values = [body.get(name) for body in bodies]
        leaf = known.get(name)
        if not isinstance(leaf, Leaf):
            _keep(extras, name, values)
            continue
        if not _fits(values, leaf):
            fitting = [v if _fits([v], leaf) else None for v in values]
            odd = [v if f is None else None for v, f in zip(values, fitting, strict=True)]
            _keep(extras, name, odd)
            values = fitting
        taken[leaf.column] = _series(values, schema[leaf.column])
    texts = [orjson.dumps(extra).decode() if extra else None for extra in extras]
    return pl.DataFrame(
        {
            "version": pl.Series([i.version for i in infos], dtype=pl.Int64),
            "position": pl.Series([i.position for i in infos], dtype=pl.Int32),
            "actionType": pl.Series(["commitInfo"] * len(infos), dtype=pl.String),
            **taken,
            "extra": pl.Series(texts, dtype=pl.String),
        }
    )


def _keep(extras: list[dict[str, Any]], name: str, values: list[Any]) -> None:
    for extra, value in zip(extras, values, strict=True):
        if value is not None:
            extra[name] = value


def in_commit_timestamp(info: CommitInfo) -> int | None:
    """The in-commit timestamp of a body in ms, or None (Delta protocol, In-Commit Timestamps)."""
    value = info.body.get("inCommitTimestamp")
    return value if type(value) is int and abs(value) < 1 << 63 else None


def why_copied(info: CommitInfo, transactions: dict[str, int]) -> str | None:
    """Why the commit of a version is a copy of that of another one, or None; `transactions` are the
    versions of the transactions that were read before, to which its own is added.
    """
    transaction, read, version = info.body.get("txnId"), info.body.get("readVersion"), info.version
    if version is None:
        return None
    if isinstance(transaction, str):
        earlier = transactions.setdefault(transaction, version)
        if earlier != version:
            return f"commits {earlier} and {version} have the same txnId"
    if type(read) is int and read >= version:
        return f"commit {version} has the readVersion {read}"
    return None


def _fits(values: Sequence[Any], leaf: Leaf) -> bool:
    """Whether all of some values are null or of the contract's type."""
    found = set(map(type, values)) - {type(None)}
    match leaf.type:
        case contract.Primitive("string"):
            return found <= {str}
        case contract.Primitive("boolean"):
            return found <= {bool}
        case contract.Primitive():
            return found <= {int} and all(v is None or abs(v) < 1 << 63 for v in values)
        case contract.Map():
            return found <= {dict}
    return False


def _series(values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    if not isinstance(dtype, pl.Map):
        return pl.Series(values, dtype=dtype, strict=True)
    # Polars builds a column of maps value by value; Arrow converts all entries at once.
    lengths = pl.Series([0, *(len(v) if v is not None else 0 for v in values)], dtype=pl.Int32)
    entries = [entry for v in values if v for entry in sorted(v.items())]
    array = pa.MapArray.from_arrays(
        lengths.cum_sum().to_arrow(),
        _texts([name for name, _ in entries]),
        _texts([v if type(v) is str else text_of(v) for _, v in entries]),
        mask=pl.Series([v is None for v in values], dtype=pl.Boolean).to_arrow(),
    )
    return pl.Series(array).cast(dtype)


def _texts(values: Sequence[str | None]) -> pa.Array:
    return pl.Series(values, dtype=pl.String).to_arrow().cast(pa.string())
