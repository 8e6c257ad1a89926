"""The changes between two versions, each with the commit that made it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
import polars as pl

from lakelog.dialects.log_content import Actions, LogListing
from lakelog.display import path_text
from lakelog.log.context import Log, state_times
from lakelog.log.history import as_time, times_of
from lakelog.log.opening import with_stable_listing
from lakelog.log.replay import Layers
from lakelog.log.snapshot import LogSnapshot, latest_stamped_from
from lakelog.model import actions, contract
from lakelog.model.metadata import Metadata, Protocol

DIFF_SCHEMA = {
    "kind": pl.String(),
    "change": pl.String(),
    "name": pl.String(),
    "before": pl.String(),
    "after": pl.String(),
    "version": pl.Int64(),
    "timestamp": pl.Datetime("ms", "UTC"),
    "operation": pl.String(),
}
_K = TypeVar("_K")
_FILE_FACTS = ("size", "modificationTime", "stats", "partitionValues", "tags")


def diff(
    log: Log, a: int, b: int, open_version: Callable[[int], LogSnapshot] | None = None
) -> pl.DataFrame:
    """See `Table.diff`. Memory: paths of both versions if commits between them are missing."""
    low, high = sorted((a, b))
    open_version = open_version or (lambda version: LogSnapshot.open(log, version))
    older, newer = open_version(low), open_version(high)
    between = with_stable_listing(log, lambda listing: _Between.read(log, listing, older, newer))
    rows = [
        *_files(older, newer, between),
        *_schema(older.metadata, newer.metadata, between),
        *_properties(older.metadata, newer.metadata, between),
        *_protocol(older.protocol, newer.protocol, between),
        *_keyed("txn", older.transactions(), newer.transactions(), "appId", "txnVersion", between),
        *_keyed(
            "domain", older.domains(), newer.domains(), "domain", "domainConfiguration", between
        ),
        *_keyed("skip", older.skips(), newer.skips(), "path", "skipCount", between),
    ]
    if a > b:
        rows = [_reverse(row) for row in rows]
    frame = pl.DataFrame(
        [(r.kind, r.change, r.name, r.before, r.after, r.version) for r in rows],
        schema={c: DIFF_SCHEMA[c] for c in list(DIFF_SCHEMA)[:6]},
        orient="row",
    )
    return (
        frame.join(between.commits, on="version", how="left")
        .select(list(DIFF_SCHEMA))
        .sort("kind", "version", "name", maintain_order=True)
    )


@dataclass(frozen=True)
class _Difference:
    kind: str
    change: str
    name: str
    before: str | None
    after: str | None
    version: int | None


def _reverse(row: _Difference) -> _Difference:
    change = {"added": "removed", "removed": "added"}.get(row.change, row.change)
    name = row.before if row.change == "renamed" and row.before is not None else row.name
    return _Difference(row.kind, change, name, row.after, row.before, row.version)


@dataclass(frozen=True)
class _Between:
    """The commits after the older version, up to the newer one; `complete` if none is missing."""

    complete: bool
    decoded: Actions
    commits: pl.DataFrame

    @staticmethod
    def read(log: Log, listing: LogListing, older: LogSnapshot, newer: LogSnapshot) -> _Between:
        low, high = older.version, newer.version
        commits = [c for c in listing.commits if low < c.version <= high]
        decoded = log.dialect.decode(log.store, commits) if commits else Actions()
        infos = actions.conform(
            log.dialect.decode_commit_infos(decoded.commit_infos), ("version", "operation")
        ).unique("version", keep="first")
        times = times_of(
            state_times(log, listing),
            decoded.commit_infos,
            lambda: latest_stamped_from(newer, listing),
        ).with_columns(as_time("timestamp"))
        return _Between(
            len(commits) == high - low, decoded, times.join(infos, on="version", how="left")
        )

    def meta(self, kind: str) -> list[dict[str, Any]]:
        """Rows of one non-file action type, in order."""
        rows = actions.of_type(self.decoded.meta, kind)
        return list(rows.iter_rows(named=True))

    def blame(
        self, first: Mapping[_K, Any], steps: Iterable[tuple[int, Mapping[_K, Any]]], key: _K
    ) -> int | None:
        """The last of `steps` at which the value of `key` changed."""
        found: int | None = None
        current = first.get(key)
        for version, values in steps:
            if values.get(key) != current:
                found, current = version, values.get(key)
        return found


def _files(older: LogSnapshot, newer: LogSnapshot, between: _Between) -> list[_Difference]:
    touched: pl.DataFrame | None = None
    if between.complete:
        layers = Layers().push(between.decoded.files)
        touched = layers.keys()
        if not touched.height:
            return []
    before, after = _live(older, touched), _live(newer, touched)
    by = _last_version(between.decoded.files)
    key = list(actions.KEY)
    joined = before.join(
        after, on=key, how="full", suffix="_after", coalesce=True, nulls_equal=True
    ).join(by, on=key, how="left", nulls_equal=True)
    removed_files = joined.filter(pl.col("size_after").is_null())
    come = joined.filter(pl.col("size").is_null())
    same = joined.filter(pl.col("size").is_not_null() & pl.col("size_after").is_not_null())
    # A new deletion vector of the same data file is one change, not a removal and an addition.
    swapped = removed_files.join(come, on="path", how="inner", suffix="_new")
    turns = _last_turns(between.decoded.files)
    removed_files, come = (
        rows.join(swapped, on="path", how="anti").drop("version").join(turns, on="path", how="left")
        for rows in (removed_files, come)
    )
    other = pl.any_horizontal(pl.col(c).ne_missing(pl.col(f"{c}_after")) for c in ("size", "facts"))
    return [
        *(
            _Difference(
                "deletionVector",
                _dv_change(row["dvId"], row["dvId_new"]),
                row["path"],
                row["dvId"],
                row["dvId_new"],
                row["version_new"],
            )
            for row in swapped.iter_rows(named=True)
        ),
        *_file_rows("removed", removed_files),
        *_file_rows("added", come),
        *_file_rows("changed", same.filter(other)),
    ]


def _file_rows(change: str, rows: pl.DataFrame) -> list[_Difference]:
    return [
        _Difference(
            "file",
            change,
            row["path"],
            _size(row["size"]),
            _size(row["size_after"]),
            row["version"],
        )
        for row in rows.iter_rows(named=True)
    ]


def _dv_change(before: str | None, after: str | None) -> str:
    return "added" if before is None else "removed" if after is None else "changed"


def _size(size: int | None) -> str | None:
    return None if size is None else str(size)


def _live(snapshot: LogSnapshot, touched: pl.DataFrame | None) -> pl.DataFrame:
    """(path, dvId, size, facts) of the live files, or of those in `touched`."""
    columns = ("path", "dvId", *_FILE_FACTS)

    def finish(batch: pl.DataFrame) -> pl.DataFrame:
        rows = actions.conform(batch, columns)
        if touched is not None:
            rows = rows.filter(pl.col("path").is_in(touched["path"].implode()))
        facts = pl.struct(_FILE_FACTS[1:]).hash().alias("facts")
        return rows.select("path", "dvId", "size", facts)

    frames = snapshot.read_state(lambda state: state.live("add", columns, finish))
    if not frames:
        return finish(actions.empty(columns))
    return pl.concat(frames)


def _last_version(files: pl.DataFrame) -> pl.DataFrame:
    rows = actions.conform(files, (*actions.KEY, "version"))
    return rows.unique(subset=list(actions.KEY), keep="last", maintain_order=True)


def _last_turns(files: pl.DataFrame) -> pl.DataFrame:
    """For each path, the commit since which it is live, with any deletion vector, or is not."""
    rows = actions.conform(files, ("path", "actionType", "version"))
    is_live, version = pl.col("is_live"), pl.col("version")
    commits = rows.group_by("path", "version").agg(
        (pl.col("actionType") == "add").any().alias("is_live")
    )
    ends = commits.group_by("path", "is_live").agg(version.max())
    return (
        commits.join(
            ends.with_columns(~is_live), on=["path", "is_live"], how="left", suffix="_of_other"
        )
        .filter(version > pl.col("version_of_other").fill_null(-1))
        .group_by("path")
        .agg(version.min())
    )


_Columns = dict[tuple[object, str], tuple[str, str, str]]


def _schema(older: Metadata, newer: Metadata, between: _Between) -> list[_Difference]:
    # With column mapping, the id identifies a column: an unchanged id with another name is a
    # rename, and another id is another column, even with an existing name.
    by_id = bool(_ids(older)) and bool(_ids(newer))
    before, after = _columns(older, by_id), _columns(newer, by_id)
    metas = [(row["version"], Metadata.from_row(row)) for row in between.meta("metaData")]
    steps = [(version, _columns(m, by_id)) for version, m in metas]
    rows: list[_Difference] = []
    for key in sorted({*before, *after}, key=str):
        old, new = before.get(key), after.get(key)
        if old and new and old[2] != new[2]:
            by = between.blame({key: old[2]}, _each(steps, 2), key)
            rows.append(_Difference("schema", "renamed", new[0], old[0], new[0], by))
        texts = (old[1] if old else None, new[1] if new else None)
        if texts[0] != texts[1]:
            change = "added" if not old else "removed" if not new else "changed"
            by = between.blame({key: texts[0]}, _each(steps, 1), key)
            name = (new or old or ("",))[0]
            rows.append(_Difference("schema", change, name, *texts, by))
    return rows


def _each(
    steps: Iterable[tuple[int, _Columns]], fact: int
) -> list[tuple[int, dict[tuple[object, str], str]]]:
    return [(version, {k: v[fact] for k, v in columns.items()}) for version, columns in steps]


def _columns(metadata: Metadata, by_id: bool) -> _Columns:
    """Path, type and nullability, and name of every field, by its id; or by its path, below the id
    of its top-level column if that has one.
    """
    schema, ids = metadata.schema, _ids(metadata) if by_id else {}
    found: _Columns = {}
    for at, (name, text) in zip(
        contract.fields_of(schema), contract.walk_fields(schema), strict=True
    ):
        top, number = at.path[0], at.field.metadata.get(contract.COLUMN_ID)
        below: tuple[object, str] = ids.get(top, top), path_text(at.path[1:])
        key = (number, "") if top in ids and number is not None else below
        found[key] = (name, text, at.field.name)
    return found


def _ids(metadata: Metadata) -> dict[str, object]:
    """Column mapping ids of the top-level columns, by name."""
    if metadata.column_mapping_mode == "none":
        return {}
    return {
        child.name: child.metadata[contract.COLUMN_ID]
        for child in metadata.schema.fields
        if contract.COLUMN_ID in child.metadata
    }


def _properties(older: Metadata, newer: Metadata, between: _Between) -> list[_Difference]:
    rows = between.meta("metaData")
    metas = [(row["version"], Metadata.from_row(row)) for row in rows]
    return [
        *_compare(
            "property",
            older.configuration,
            newer.configuration,
            [(version, m.configuration) for version, m in metas],
            between,
        ),
        *_compare(
            "metadata",
            _identity(older),
            _identity(newer),
            [(version, _identity(m)) for version, m in metas],
            between,
        ),
    ]


def _identity(metadata: Metadata) -> dict[str, str | None]:
    facts = {
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "format.provider": metadata.format_provider,
        "partitionColumns": orjson.dumps(list(metadata.partition_columns)).decode(),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _protocol(older: Protocol, newer: Protocol, between: _Between) -> list[_Difference]:
    steps = [
        (row["version"], _requirements(Protocol.from_row(row))) for row in between.meta("protocol")
    ]
    return _compare("protocol", _requirements(older), _requirements(newer), steps, between)


def _requirements(protocol: Protocol) -> dict[str, str]:
    facts = {"minReaderVersion": str(protocol.min_reader_version)}
    if protocol.min_writer_version is not None:
        facts["minWriterVersion"] = str(protocol.min_writer_version)
    facts |= {f"readerFeatures.{name}": "supported" for name in protocol.reader_features or ()}
    facts |= {f"writerFeatures.{name}": "supported" for name in protocol.writer_features or ()}
    return facts


def _compare(
    kind: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    steps: Sequence[tuple[int, Mapping[str, Any]]],
    between: _Between,
) -> list[_Difference]:
    rows: list[_Difference] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new and (name in before) == (name in after):
            continue
        change = (
            "changed"
            if name in before and name in after
            else ("removed" if name in before else "added")
        )
        version = between.blame(before, steps, name)
        rows.append(_Difference(kind, change, name, old, new, version))
    return rows


def _keyed(
    kind: str,
    before: pl.LazyFrame,
    after: pl.LazyFrame,
    key: str,
    value: str,
    between: _Between,
) -> list[_Difference]:
    columns = (pl.col(key), pl.col(value).cast(pl.String))
    old = dict(before.select(columns).collect().iter_rows())
    new = dict(after.select(columns).collect().iter_rows())
    wrapper = {"txn": "txn", "domain": "domainMetadata", "skip": "mergeskip"}[kind]
    touched = {row[key]: row["version"] for row in between.meta(wrapper)}
    rows = _compare(kind, old, new, (), between)
    return [
        _Difference(r.kind, r.change, r.name, r.before, r.after, touched.get(r.name)) for r in rows
    ]
