"""The activity of a table: what each commit did, over time. Columnar, from the commits in the log.

The sizes before a commit are computed from the current ones, less what the later commits changed,
so that the latest version is exact. A file that a commit adds is counted as new unless an earlier
commit in the log added it; if it was live already (a writer that added statistics), older numbers
of files are too low by one. A file that a commit both removes and adds, such as with a new deletion
vector, is neither written nor deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import polars as pl

from lakelog.dialects.log_content import CommitInfo, LogListing
from lakelog.errors import LakelogError
from lakelog.log.context import Log
from lakelog.log.history import (
    by_size,
    decoded_commits,
    history_of,
    read_above_damage,
)
from lakelog.log.opening import with_stable_listing
from lakelog.log.snapshot import LogSnapshot, latest_stamped_from
from lakelog.model import actions, contract
from lakelog.model.metadata import Metadata

_FILES = ("add", "remove")
_READ = (
    "version",
    "position",
    "actionType",
    "path",
    "dvId",
    "size",
    "dataChange",
    "metadataId",
    "schemaString",
    "partitionColumns",
    "configuration",
)
_BUCKETS = (
    (1, "1s", "second"),
    (10, "10s", "10 seconds"),
    (60, "1m", "minute"),
    (300, "5m", "5 minutes"),
    (900, "15m", "15 minutes"),
    (3_600, "1h", "hour"),
    (21_600, "6h", "6 hours"),
    (86_400, "1d", "day"),
    (604_800, "1w", "week"),
    (2_592_000, "1mo", "month"),
)
_MOST_BUCKETS = 90
_MOST_SCHEMAS = 200
_SHOWN_VALUES = 7


@dataclass(frozen=True)
class Activity:
    """What the commits in the log did.

    Attributes:
        commits: One row per commit, in ascending order: the columns of `Table.history`, and
            ``added_files``, ``added_bytes``, ``removed_files``, ``removed_bytes``;
            ``rewritten_bytes``, added without a change of data; ``deleted_files`` and
            ``deleted_bytes``, removed with a change of data; ``files`` and ``size_bytes`` of the
            table after the commit.
        schemas: One row per commit that wrote metadata: ``version``, ``timestamp``, ``userName``,
            ``operation``, ``changes`` (String).
        omitted: Why the activity begins above a commit that cannot be read; None if all were read.
    """

    commits: pl.DataFrame
    schemas: pl.DataFrame
    omitted: str | None = None

    @property
    def rewrite_amplification(self) -> float | None:
        """Bytes written for each byte of new data; None without new data."""
        written = int(self.commits["added_bytes"].sum())
        new = written - int(self.commits["rewritten_bytes"].sum())
        return written / new if new else None


def read_activity(log: Log, snapshot: LogSnapshot) -> Activity:
    """The activity up to a snapshot's version; commits that the snapshot has decoded are not
    decoded again. Memory: about 100 bytes per file action of the commits in the log, and their
    paths. If commits below the snapshot's checkpoint cannot be read, the activity begins above
    them, with a `LakelogWarning`.
    """

    def read(above: int) -> Activity:
        return with_stable_listing(log, partial(_activity, log, snapshot, above))

    found, omitted = read_above_damage(log, snapshot.version, read, "the history begins")
    return replace(found, omitted=omitted)


def _activity(log: Log, snapshot: LogSnapshot, above: int, listing: LogListing) -> Activity:
    """The activity from the commit after `above` on."""
    listed = [commit for commit in listing.commits if above < commit.version <= snapshot.version]
    wanted = pl.col("actionType").is_in([*_FILES, "metaData"])
    parts: list[pl.DataFrame] = []
    infos: list[CommitInfo] = []
    replayed = set(snapshot.read_state(lambda state: state.segment.commits))
    older = by_size([commit for commit in listed if commit not in replayed])
    newer = by_size([commit for commit in listed if commit in replayed])
    for chunk in chain(older, newer):
        decoded = decoded_commits(log, snapshot, chunk)
        found = actions.concat((decoded.files, decoded.meta))
        parts.append(actions.conform(found, _READ).filter(wanted).sort(actions.ORDER))
        infos += decoded.commit_infos
    rows = pl.concat(parts) if parts else actions.empty(_READ)
    commits = history_of(log, listing, infos, lambda: latest_stamped_from(snapshot, listing))
    commits = commits.filter(
        pl.col("version").is_between(above, snapshot.version, closed="right")
    ).sort("version")
    begins = bool(listed) and listed[0].version == 0
    changed = _per_commit(rows.filter(pl.col("actionType").is_in(_FILES)), begins=begins)
    total = snapshot.num_files(), snapshot.total_size()
    commits = commits.join(changed, on="version", how="left", maintain_order="left")
    commits = commits.with_columns(pl.col(changed.columns).fill_null(0)).with_columns(
        (now - pl.col(net).sum() + pl.col(net).cum_sum()).clip(lower_bound=0).alias(name)
        for now, net, name in zip(
            total, ("net_files", "net_bytes"), ("files", "size_bytes"), strict=True
        )
    )
    users = commits.select("version", "timestamp", "userName", "operation")
    schemas = _schema_changes(rows.filter(pl.col("actionType") == "metaData"))
    return Activity(
        commits.drop("net_files", "net_bytes"),
        schemas.join(users, on="version", how="left", maintain_order="left"),
    )


def _per_commit(files: pl.DataFrame, *, begins: bool) -> pl.DataFrame:
    """The file actions of each commit, added up; `begins` if they are all of the table's."""
    is_add = pl.col("actionType") == "add"
    # Before its first action, a file that is removed was live, unless the log has its beginning.
    first = pl.lit(value=False) if begins else ~pl.col("_add")
    was_add = pl.col("_add").shift(1).over("_key").fill_null(first)
    # A remove may not record the size of its file, which the earlier add does.
    size = pl.coalesce("size", pl.col("size").forward_fill().over("_key")).fill_null(0)
    # Such as with another deletion vector: the file itself is not written again.
    is_kept = is_add.any().over("version", "path") & ~is_add.all().over("version", "path")
    events = (
        files.select(
            "version",
            is_add.alias("_add"),
            is_kept.alias("_kept"),
            pl.struct("path", "dvId").hash().alias("_key"),
            pl.col("size").cast(pl.Int64),
            pl.col("dataChange").fill_null(value=True).cast(pl.Boolean).alias("_data"),
        )
        .with_columns(size.alias("size"), was_add.alias("_was"))
        .with_columns(
            pl.when(pl.col("_add") == pl.col("_was"))
            .then(0)
            .when("_add")
            .then(1)
            .otherwise(-1)
            .cast(pl.Int64)
            .alias("_net")
        )
    )
    added, removed = pl.col("_add") & ~pl.col("_kept"), ~pl.col("_add") & ~pl.col("_kept")
    sums = {
        "added": added,
        "removed": removed,
        "rewritten": added & ~pl.col("_data"),
        "deleted": removed & pl.col("_data"),
    }
    return (
        events.group_by("version")
        .agg(
            *(
                pl.col("_add").filter(c).len().cast(pl.Int64).alias(f"{n}_files")
                for n, c in sums.items()
            ),
            *(pl.col("size").filter(c).sum().alias(f"{n}_bytes") for n, c in sums.items()),
            pl.col("_net").sum().alias("net_files"),
            (pl.col("_net") * pl.col("size")).sum().alias("net_bytes"),
        )
        .drop("rewritten_files")
    )


def bucket(commits: pl.DataFrame) -> tuple[str, str]:
    """The width of the buckets of a time axis: as Polars writes it, and in words."""
    # Sorted: after a change of a clock, the last commit is not the newest.
    times = commits["timestamp"].drop_nulls().to_physical().sort()
    span_s = (times[-1] - times[0]) / 1000 if times.len() else 0
    fitting = (each for each in _BUCKETS if span_s / each[0] <= _MOST_BUCKETS)
    _, every, words = next(fitting, (0, "1y", "year"))
    return every, words


def in_buckets(commits: pl.DataFrame) -> pl.DataFrame:
    """The commits with ``bucket``, the start of their time."""
    every, _ = bucket(commits)
    return commits.with_columns(pl.col("timestamp").dt.truncate(every).alias("bucket"))


def main_values(commits: pl.DataFrame, name: str) -> pl.DataFrame:
    """The commits with a column as text: its frequent values, ``other``, or ``unknown``."""
    value = pl.col(name).fill_null("unknown")
    named = commits.with_columns(value)
    counts = named.group_by(name).len().sort("len", name, descending=[True, False])
    # One value more is shown by its own name, in the place of ``other``.
    few = _SHOWN_VALUES + (counts.height == _SHOWN_VALUES + 1)
    shown = counts[name].head(few).implode()
    kept = pl.when(pl.col(name).is_in(shown)).then(name).otherwise(pl.lit("other"))
    return named.with_columns(kept.alias(name))


def _schema_changes(metadata: pl.DataFrame) -> pl.DataFrame:
    """What each metadata action changed, as text; of the newest ones, if there are many."""
    found: list[tuple[int, str]] = []
    before: Metadata | None = None
    for row in metadata.sort("version", "position").tail(_MOST_SCHEMAS).iter_rows(named=True):
        after = Metadata.from_row(row)
        changes = "; ".join(_changes(before, after))
        if changes:
            found.append((row["version"], changes))
        before = after
    schema = {"version": pl.Int64(), "changes": pl.String()}
    return pl.DataFrame(found, schema=schema, orient="row")


def _changes(before: Metadata | None, after: Metadata) -> list[str]:
    new = _columns(after)
    if before is None:
        by = ", ".join(after.partition_columns)
        return [f"{len(new):,} columns" + (f", partitioned by {by}" if by else "")]
    old = _columns(before)
    texts = [f"column {name} added ({new[name]})" for name in new if name not in old]
    texts += [f"column {name} dropped" for name in old if name not in new]
    texts += [
        f"column {name}: {old[name]} to {new[name]}"
        for name in new
        if name in old and new[name] != old[name]
    ]
    if before.partition_columns != after.partition_columns:
        texts.append(f"partitioned by {', '.join(after.partition_columns) or 'nothing'}")
    texts += _property_changes(before.configuration, after.configuration)
    if before.id != after.id:
        texts.append("the table was replaced")
    return texts


def _columns(metadata: Metadata) -> dict[str, str]:
    """Columns and their types as text."""
    try:
        fields = metadata.schema.fields
    except LakelogError:
        return {}
    return {field.name: contract.type_text(field.type) for field in fields}


def _property_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    texts = [f"{key} = {new[key]}" for key in new if old.get(key) != new[key]]
    return texts + [f"{key} unset" for key in old if key not in new]
