"""Which other readers and writers can open a table, by the features of its protocol.

A client refuses a table with a feature that it does not know. A feature of writers alone does not
concern readers (Delta protocol, Table Features).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import polars as pl

from lakelog.dialects.protocol_rules import TableConfiguration

Support: TypeAlias = bool | str
"""Whether a client supports a feature, or the first release that does."""

_SCHEMA = pl.Schema(
    {
        "client": pl.String(),
        "reads": pl.Boolean(),
        "writes": pl.Boolean(),
        "release": pl.String(),
        "unsupported_to_read": pl.List(pl.String()),
        "unsupported_to_write": pl.List(pl.String()),
        "unknown": pl.List(pl.String()),
        "source": pl.String(),
    }
)


@dataclass(frozen=True)
class Client:
    """A reader or writer of tables, with the features that it supports (True, or since a release)
    or refuses (False); others are unknown. `writes` None: it does not write. `source`: where this
    is documented, or ``tested``.
    """

    name: str
    reads: Mapping[str, Support]
    writes: Mapping[str, Support] | None
    source: str


def compatibility(table: TableConfiguration) -> pl.DataFrame:
    """The clients of the table's dialect, one row each; columns as in `Table.compatibility`."""
    rules = table.rules
    supported = sorted(rules.supported(table.protocol))
    listed = table.protocol.reader_features or ()
    to_read = [
        name
        for name in supported
        if name in listed or (name in rules.features and rules.features[name].reader)
    ]
    rows = []
    for client in table.dialect.clients:
        writes = client.writes
        can_read, refused, unknown, release = _support(client.reads, to_read)
        can_write, unwritten, unclear, written = _support(writes or {}, supported)
        rows.append(
            {
                "client": client.name,
                "reads": can_read,
                "writes": False if writes is None or can_read is False else can_write,
                "release": max(release, written, key=_release_key) or None,
                "unsupported_to_read": refused,
                "unsupported_to_write": unwritten,
                "unknown": unknown if writes is None else sorted({*unknown, *unclear}),
                "source": client.source,
            }
        )
    return pl.DataFrame(rows, _SCHEMA)


def _support(
    known: Mapping[str, Support], features: list[str]
) -> tuple[bool | None, list[str], list[str], str]:
    """Whether all features are supported, the refused and the unknown ones, the first release."""
    refused = [name for name in features if known.get(name) is False]
    unknown = [name for name in features if name not in known]
    releases = [text for name in features if isinstance(text := known.get(name), str)]
    verdict = False if refused else None if unknown else True
    return verdict, refused, unknown, max(releases, key=_release_key, default="")


def _release_key(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdecimal())
