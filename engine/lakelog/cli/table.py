"""The commands that read a table. Imports nothing heavy.

The help of every command ends with examples.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from lakelog.cli import options
from lakelog.cli.options import Output, Target
from lakelog.cli.output import (
    TABLE_ROWS,
    View,
    chosen_columns,
    collect,
    emit,
    write,
    write_facts,
    write_frames,
    write_report,
)
from lakelog.cli.text import count, seconds_text, time_text
from lakelog.cli.watch import Meter, Watch, open_metered, open_with_progress, progress
from lakelog.errors import LakelogWarning, UnsupportedFeatureError
from lakelog.redaction import redact

if TYPE_CHECKING:
    import polars as pl

    from lakelog.log.export import ExportManifest
    from lakelog.snapshot import Snapshot
    from lakelog.table import Table

_FILES = "path partitionValues size modificationTime numRecords version dvCardinality".split()

_FILES_STATS = "path partitionValues size numRecords version min max".split()

_HISTORY = "version timestamp operation userName operationMetrics operationParameters".split()

_ACTIONS = (
    "version position actionType path size dvCardinality operation appId txnVersion domain "
    "skipReason"
).split()

_DIFF = "version operation kind change name before after".split()

_DIFF_NOUNS = {
    "schema": "schema field",
    "deletionVector": "deletion vector",
    "metadata": "metadata entry",
    "protocol": "protocol entry",
    "skip": "skipped file",
}

_BLAME = (
    "version timestamp actionType operation userName size dvCardinality "
    "deletionTimestamp vacuumAfter"
).split()

_REPLAY = "part rows size".split()


@options.command("lakelog info orders", "lakelog info orders --version 10 --output json")
@options.target
@options.travel
@options.output
def info(target: Target, version: int | None, timestamp: str | None, output: Output) -> None:
    """Show facts about a table: schema, protocol, sizes.

    Also shows the log files that were read, and the versions that can be rebuilt.
    """
    import polars as pl

    with open_with_progress(target, "reading the log") as (table, _):
        facts = _table_facts(table, table.snapshot(version, timestamp))
    if output.format == "table":
        write_facts(_info_lines(facts), output)
    else:
        emit(pl.LazyFrame([facts], schema=_info_schema()), output, View("table", ()))


def _info_schema() -> dict[str, pl.DataType]:
    """Columns of ``lakelog info``, in its machine-readable forms."""
    import polars as pl

    return {
        "path": pl.String(),
        "format": pl.String(),
        "version": pl.Int64(),
        "timestamp": pl.Datetime("ms", "UTC"),
        "id": pl.String(),
        "name": pl.String(),
        "description": pl.String(),
        "created": pl.Datetime("ms", "UTC"),
        "columns": pl.List(pl.Struct({"name": pl.String(), "type": pl.String()})),
        "partitionColumns": pl.List(pl.String()),
        "configuration": pl.Map(pl.String(), pl.String()),
        "minReaderVersion": pl.Int64(),
        "minWriterVersion": pl.Int64(),
        "readerFeatures": pl.List(pl.String()),
        "writerFeatures": pl.List(pl.String()),
        "numFiles": pl.Int64(),
        "totalSize": pl.Int64(),
        "numTombstones": pl.Int64(),
        "checkpointVersion": pl.Int64(),
        "checkpointLayout": pl.String(),
        "checkpointFiles": pl.List(pl.String()),
        "compactionsReplayed": pl.Int64(),
        "commitsReplayed": pl.Int64(),
        "warnings": pl.List(pl.String()),
        "rebuildable": pl.List(pl.Struct({"first": pl.Int64(), "last": pl.Int64()})),
        "refusal": pl.String(),
    }


def _table_facts(table: Table, snapshot: Snapshot) -> dict[str, Any]:
    """The facts of ``lakelog info``, by the names of `_info_schema`."""
    import polars as pl

    from lakelog.log.context import utc_time
    from lakelog.model import contract

    metadata, protocol = snapshot.metadata, snapshot.protocol
    schema = metadata.schema.fields
    tombstones = snapshot.tombstones().select(pl.len()).collect().item()
    # Evaluated last: reading the files may have skipped a broken checkpoint.
    counts = {"numFiles": snapshot.num_files(), "totalSize": snapshot.total_size()}
    provenance = snapshot.provenance
    checkpoint = provenance.checkpoint
    return {
        "path": redact(snapshot.path),
        "format": snapshot.format,
        "version": snapshot.version,
        "timestamp": utc_time(snapshot.timestamp_ms),
        "id": metadata.id,
        "name": metadata.name,
        "description": metadata.description,
        "created": utc_time(metadata.created_time),
        "columns": [{"name": f.name, "type": contract.type_text(f.type)} for f in schema],
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": _listed(protocol.reader_features),
        "writerFeatures": _listed(protocol.writer_features),
        **counts,
        "numTombstones": tombstones,
        "checkpointVersion": checkpoint.version if checkpoint else None,
        "checkpointLayout": checkpoint.layout if checkpoint else None,
        "checkpointFiles": list(provenance.checkpoint_files),
        "compactionsReplayed": len(provenance.compactions),
        "commitsReplayed": len(provenance.commits),
        "warnings": list(provenance.warnings),
        "rebuildable": [{"first": a, "last": b} for a, b in table.versions()],
        "refusal": table.refusal,
    }


def _listed(features: tuple[str, ...] | None) -> list[str] | None:
    return None if features is None else list(features)


def _info_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    from lakelog.display import size_text

    columns = ", ".join(f"{c['name']} {c['type']}" for c in facts["columns"])
    features = dict.fromkeys([*(facts["readerFeatures"] or ()), *(facts["writerFeatures"] or ())])
    lines = [
        ("path", facts["path"]),
        ("format", facts["format"]),
        ("version", f"{facts['version']}, committed {time_text(facts['timestamp'])}"),
        ("id", facts["id"] or "none"),
        ("name", facts["name"]),
        ("description", facts["description"]),
        ("created", time_text(facts["created"]) if facts["created"] else None),
        ("columns", columns or "none recorded"),
        ("partitioned by", ", ".join(facts["partitionColumns"]) or "nothing"),
        ("properties", ", ".join(f"{k}={v}" for k, v in facts["configuration"].items())),
        ("protocol", _protocol_text(facts)),
        ("features", ", ".join(features)),
        ("files", f"{count(facts['numFiles'], 'file')}, {size_text(facts['totalSize'])}"),
        ("tombstones", f"{facts['numTombstones']:,}"),
        ("read from", _provenance_text(facts)),
        ("can be rebuilt", "versions " + _ranges(facts["rebuildable"])),
        ("read only", facts["refusal"]),
        *(("warning", text) for text in facts["warnings"]),
    ]
    return [(label, str(value)) for label, value in lines if value]


def _protocol_text(facts: dict[str, Any]) -> str:
    writer = facts["minWriterVersion"]
    return f"reader {facts['minReaderVersion']}" + ("" if writer is None else f", writer {writer}")


def _provenance_text(facts: dict[str, Any]) -> str:
    parts = []
    if facts["checkpointVersion"] is not None:
        files = count(len(facts["checkpointFiles"]), "file")
        parts.append(
            f"the {facts['checkpointLayout']} checkpoint at {facts['checkpointVersion']} ({files})"
        )
    if facts["compactionsReplayed"]:
        parts.append(count(facts["compactionsReplayed"], "log compaction file"))
    if facts["commitsReplayed"] or not parts:
        parts.append(count(facts["commitsReplayed"], "commit"))
    return " and ".join(parts)


def _ranges(ranges: Sequence[dict[str, int]]) -> str:
    texts = [
        f"{r['first']}" if r["first"] == r["last"] else f"{r['first']} to {r['last']}"
        for r in ranges
    ]
    return ", ".join(texts) or "none"


@options.command(
    "lakelog files orders",
    "lakelog files orders --where \"day >= '2026-01-05' and amount > 1000\" --stats",
    "lakelog files orders --where \"day = '2026-01-05'\" --explain",
    "lakelog files orders --version 10 --columns path,size --output csv",
    "lakelog files orders --output parquet --to files.parquet",
)
@options.target
@options.travel
@click.option(
    "--where",
    metavar="SQL",
    help="SQL condition over the table's columns. Skips files that cannot contain a matching "
    "row, by partition values and statistics.",
)
@click.option(
    "--stats", is_flag=True, help="Add typed statistics: numRecords, min, max, nullCount."
)
@click.option("--flatten", is_flag=True, help="Add one typed column per partition column.")
@click.option(
    "--explain",
    is_flag=True,
    help="List no files. Show how much of the checkpoint --where has to read, and why.",
)
@options.rows
def files(
    target: Target,
    version: int | None,
    timestamp: str | None,
    where: str | None,
    stats: bool,
    flatten: bool,
    explain: bool,
    output: Output,
) -> None:
    """List the live files, one row per file.

    The version of a file is that of the commit that added it, if the log still contains it.
    """
    from lakelog.display import size_text

    with open_with_progress(target, "replaying") as (table, watch):
        snapshot = table.snapshot(version, timestamp)
        _expect_checkpoint(watch, table, snapshot)
        if explain:
            if where is None:
                raise click.UsageError("--explain needs --where")
            plan = snapshot.plan(where)
            write_report(plan, plan.facts, _PLAN, output)
            return
        live = snapshot.files(where=where, stats=stats, flatten=flatten)
        known = live.collect_schema().names()
        names = _FILES_STATS if stats else _FILES
        columns = tuple(c for name in names for c in _spread(name, known))
        facts = [f"version {snapshot.version}"]
        if where is not None and output.format == "table":
            facts.append(f"of {count(snapshot.num_files(), 'file')} in the table")

        def summary(kept: pl.DataFrame) -> list[str]:
            return [size_text(int(kept["size"].sum())), *facts]

        shown = View("file", columns, ("path",), summary, _redundant_with_path)
        rows = collect(live, output, shown)
    write(rows, output, shown)


@options.command(
    "lakelog rows orders",
    "lakelog rows orders --where \"day >= '2026-01-05' and amount > 1000\" --columns id,amount",
    "lakelog rows orders --version 10 --limit 1000 --output csv",
    "lakelog rows orders --output parquet --to orders.parquet",
)
@options.target
@options.external
@options.travel
@click.option(
    "--where",
    metavar="SQL",
    help="SQL condition over the table's columns. Files that cannot contain a matching row are "
    "not opened.",
)
@options.rows
def rows(
    target: Target, version: int | None, timestamp: str | None, where: str | None, output: Output
) -> None:
    """Show rows of a table.

    On a terminal, shows the first rows that are read, 50 without --limit; the order is undefined.
    Other formats contain all rows, a few of which are in memory at a time.
    """
    table, meter = open_metered(target)
    if output.format != "table":
        frames = _row_frames(table.snapshot(version, timestamp), where, output)
        on_terminal = output.to is None and sys.stdout.isatty()
        with nullcontext() if on_terminal else progress("reading", meter):
            write_frames(frames, output)
        return
    with progress("reading", meter):
        snapshot = table.snapshot(version, timestamp)
        facts = [f"version {snapshot.version}"]
        if where is None:
            facts.insert(0, f"of {count(snapshot.num_rows(), 'row')} in the table")
        lazy = snapshot.scan(where).head(TABLE_ROWS if output.limit is None else output.limit)
        names = tuple(snapshot.schema.names)
        shown = View("row", names, summary=lambda _: facts, exact=True)
        found = collect(lazy, output, shown)
    write(found, output, shown)


def _row_frames(snapshot: Snapshot, where: str | None, output: Output) -> Iterator[pl.DataFrame]:
    """The rows in batches, the first of them empty."""
    import polars as pl

    from lakelog.data.scan import read_rows

    columns = chosen_columns(snapshot.schema.names, output)
    reader = read_rows(snapshot, where, columns or None)
    left = sys.maxsize if output.limit is None else output.limit
    yield pl.DataFrame(reader.schema.empty_table())
    while left and (batch := next(reader, None)) is not None:
        yield pl.DataFrame(pl.from_arrow(batch)).head(left)
        left -= min(left, batch.num_rows)


_PLAN = (
    "version checkpoint_files checkpoint_files_read row_groups row_groups_read actions "
    "actions_read size_bytes bytes_read commits reason seconds"
)


def _redundant_with_path(shown: pl.DataFrame) -> tuple[str, ...]:
    """Whether each path contains the partition values, so that they need no column."""
    if not {"path", "partitionValues"} <= set(shown.columns):
        return ()
    pairs = zip(shown["path"], shown["partitionValues"].to_list(), strict=True)
    is_redundant = all(
        f"{k}={v}/" in path for path, values in pairs for k, v in (values or {}).items()
    )
    return ("partitionValues",) if is_redundant else ()


def _spread(name: str, known: Sequence[str]) -> list[str]:
    """The column, or the columns that replace it if partition values are flattened."""
    if name == "partitionValues" and name not in known:
        return [c for c in known if c.startswith("partition.")]
    return [name]


@options.command("lakelog history orders --limit 5", "lakelog history orders --output json")
@options.target
@options.rows
def history(target: Target, output: Output) -> None:
    """List the commits, newest first: time, operation, user."""
    with open_with_progress(target, "reading commits") as (table, _):
        # One more, to know whether there is one.
        rows = table.history(None if output.limit is None else output.limit + 1)
    kept = rows.head(rows.height if output.limit is None else output.limit)

    def summary(shown: pl.DataFrame) -> list[str]:
        if rows.height == kept.height:
            return []
        return ["the newest; --limit shows more" if shown.height else "--limit shows more"]

    emit(kept.lazy(), output, View("commit", tuple(_HISTORY), (), summary))


def _action_types() -> list[str]:
    """The action types of all table formats."""
    from lakelog.dialects.json_layout import Wire

    return sorted({kind for form in ("delta", "indextables") for kind in Wire.of(form).wrappers})


@options.command(
    "lakelog actions orders --start 10 --end 20",
    "lakelog actions orders --type remove --type add --columns version,actionType,path",
    "lakelog actions orders --output parquet --to actions.parquet",
)
@options.target
@click.option(
    "--start", type=click.IntRange(min=0), default=0, show_default=True, help="First version."
)
@click.option(
    "--end", type=click.IntRange(min=0), help="Last version, inclusive; the latest by default."
)
@click.option(
    "--type",
    "kinds",
    multiple=True,
    metavar="TYPE",
    shell_complete=options.completed(_action_types),
    help="Only actions of this type, such as add or txn; repeatable.",
)
@options.rows
def actions(
    target: Target,
    start: int,
    end: int | None,
    kinds: tuple[str, ...],
    output: Output,
) -> None:
    """List every action of a range of commits.

    The actions of all types, of both table formats, have one schema.
    """
    import polars as pl

    table, meter = open_metered(target)
    rows = table.actions(start, end)
    _warn_of_unknown_types(kinds)
    if kinds:
        rows = rows.filter(pl.col("actionType").is_in(list(kinds)))

    shown = View("action", tuple(_ACTIONS), (), partial(_tally, "actionType"))
    with progress("reading commits", meter):
        found = collect(rows, output, shown)
    write(found, output, shown)


def _tally(column: str, rows: pl.DataFrame) -> list[str]:
    """Number of rows by the values of a column, the most frequent first."""
    return [f"{number:,} {value}" for value, number in Counter(rows[column]).most_common()]


def _warn_of_unknown_types(kinds: Sequence[str]) -> None:
    """Report action types that no table format has; they are probably misspelled."""
    known = _action_types()
    for kind in sorted({*kinds}.difference(known)):
        note = f"lakelog knows no actions of type {kind}, only of {', '.join(known)}"
        warnings.warn(note, LakelogWarning, stacklevel=2)


@options.command(
    "lakelog changes orders --start 10 --end 20",
    "lakelog changes orders --start 2026-01-05 --where \"_change_type = 'delete'\"",
    "lakelog changes orders --start 10 --output parquet --to changes.parquet",
)
@options.target
@options.external
@click.option(
    "--start",
    type=options.VersionOrTime(),
    required=True,
    help="First version; or a time: the first version committed at or after it.",
)
@click.option(
    "--end",
    type=options.VersionOrTime(),
    help="Last version, inclusive, or a time; the latest version by default.",
)
@click.option(
    "--where",
    metavar="SQL",
    help="SQL condition over the columns of the output. Skips commits and files that cannot "
    "contain a matching change.",
)
@options.rows
def changes(
    target: Target, start: int | str, end: int | str | None, where: str | None, output: Output
) -> None:
    """List the rows that a range of commits inserted, updated or deleted.

    Reads the change data feed. Without one, an update is a delete and an insert.
    """
    table, meter = open_metered(target)
    rows = table.changes(start, end, where)

    names = rows.collect_schema().names()
    columns, summary = (*names[-3:], *names[:-3]), partial(_tally, "_change_type")
    shown = View("change", columns, ("_commit_version",), summary, exact=True)
    with progress("reading changes", meter):
        found = collect(rows, output, shown)
    write(found, output, shown)


@options.command("lakelog diff orders 10 20", "lakelog diff orders 10 --output csv")
@options.target
@click.argument("a", type=click.IntRange(min=0), metavar="A")
@click.argument("b", type=click.IntRange(min=0), metavar="[B]", required=False)
@options.rows
def diff(target: Target, a: int, b: int | None, output: Output) -> None:
    """Compare version A with version B.

    Shows changed files, deletion vectors, schema, properties, protocol and txns, each with its
    commit. B is the latest version by default.
    """
    import polars as pl

    with open_with_progress(target, "comparing") as (table, _):
        to = table.version() if b is None else b
        rows = table.diff(a, to)
    if output.format == "table":
        is_file = pl.col("kind") == "file"
        rows = rows.with_columns(
            pl.when(is_file).then(pl.format("{} bytes", name)).otherwise(name).alias(name)
            for name in ("before", "after")
        )

    def summary(shown: pl.DataFrame) -> list[str]:
        tally = Counter(zip(shown["kind"], shown["change"], strict=True))
        parts = [
            f"{count(n, _DIFF_NOUNS.get(kind, kind))} {change}"
            for (kind, change), n in sorted(tally.items())
        ]
        return [*parts, f"from version {a} to {to}"]

    emit(rows.lazy(), output, View("difference", tuple(_DIFF), (), summary))


@options.command(
    "lakelog blame orders day=2026-01-05/region=eu/part-00003.parquet",
    'lakelog blame orders "$(lakelog files orders -o csv --columns path | tail -1)"',
)
@options.target
@click.argument("path", metavar="PATH")
@options.rows
def blame(target: Target, path: str, output: Output) -> None:
    """Show the history of one data file, commit by commit.

    For a removed file, shows when vacuum may delete it. PATH is the path as in the log, or as
    `lakelog files` shows it.
    """
    with open_with_progress(target, "reading commits") as (table, _):
        rows = table.blame(path)

    def summary(shown: pl.DataFrame) -> list[str]:
        until = shown["vacuumAfter"].drop_nulls()
        if until.len():
            return [f"removed; may be vacuumed after {time_text(until[-1])}"]
        return ["live" if shown["actionType"][-1] == "add" else "removed"]

    emit(rows.lazy(), output, View("event", tuple(_BLAME), (), summary))


@options.command(
    "lakelog replay orders --out state",
    "lakelog replay orders --version 10 --out state-10 --max-part-bytes 64MB",
)
@options.target
@options.travel
@click.option(
    "--out",
    shell_complete=options.paths,
    required=True,
    metavar="DIR",
    help="New or empty folder, or any fsspec URL.",
)
@click.option(
    "--max-part-bytes",
    type=options.Size(),
    default="128MiB",
    show_default=True,
    help="Start a new part when a part has reached this size.",
)
@options.output
def replay(
    target: Target,
    version: int | None,
    timestamp: str | None,
    out: str,
    max_part_bytes: int,
    output: Output,
) -> None:
    """Write the replayed state as Parquet.

    The folder contains flattened Parquet in parts, and a manifest. Spark, Polars and DuckDB read
    it directly.
    """
    import polars as pl

    table, meter = open_metered(target)
    begin = time.perf_counter()
    with progress("replaying", meter) as watch:
        snapshot = table.snapshot(version, timestamp)
        _expect_checkpoint(watch, table, snapshot)
        manifest = snapshot.write_parquet(out, max_part_bytes)
    seconds = time.perf_counter() - begin
    if output.format == "table":
        facts = _replay_lines(manifest, seconds, meter)
        write_facts(facts, output)
        return
    parts = pl.DataFrame(
        {
            "path": [f"{manifest.directory.rstrip('/')}/{p.path}" for p in manifest.parts],
            "numRows": [p.num_rows for p in manifest.parts],
            "size": [p.size_bytes for p in manifest.parts],
            "version": [manifest.version] * len(manifest.parts),
        }
    )
    emit(parts.lazy(), output, View("part", tuple(_REPLAY)))


def _replay_lines(manifest: ExportManifest, seconds: float, meter: Meter) -> list[tuple[str, str]]:
    """The result of ``lakelog replay`` as text."""
    from lakelog.display import size_text
    from lakelog.log.context import utc_time

    size = size_text(sum(p.size_bytes for p in manifest.parts))
    parts = f"{count(manifest.num_rows, 'row')} in {count(len(manifest.parts), 'part')}, {size}"
    read = f"{count(meter.files, 'log file')} read, {size_text(meter.size_bytes)}"
    return [
        ("written to", redact(manifest.directory)),
        ("version", f"{manifest.version}, committed {time_text(utc_time(manifest.timestamp_ms))}"),
        ("files", f"{count(manifest.num_files, 'file')}, {size_text(manifest.total_size)}"),
        ("tombstones", f"{manifest.num_tombstones:,}"),
        ("Parquet", f"{parts}, and _manifest.json"),
        ("cost", f"{seconds_text(seconds)}; {read}"),
    ]


def _expect_checkpoint(watch: Watch, table: Table, snapshot: Snapshot) -> None:
    """Set the total of the progress bar to the checkpoint's bytes; the commits were read before."""
    store = table.log.store
    sizes = (store.stat(path) for path in snapshot.provenance.checkpoint_files)
    watch.expect(watch.done_bytes + sum(s.size_bytes for s in sizes if s is not None))


@options.command("lakelog compat orders", "lakelog compat orders --output json")
@options.target
@options.rows
def compat(target: Target, output: Output) -> None:
    """Show which readers and writers can open a table.

    A client refuses a table with a feature that it does not support. The answers come from the
    documentation of the clients, and from lakelog's tests with their current releases.
    """
    import polars as pl

    with open_with_progress(target, "reading the log") as (table, _):
        found = table.compatibility()
        try:
            protocol = table.snapshot().protocol
        except UnsupportedFeatureError as error:
            facts = [error.message]
        else:
            names = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())})
            listed = ", ".join(names) or "those of its protocol versions"
            facts = [f"features of the table: {listed}"]
    if output.format == "table":
        words = {True: "yes", False: "no"}
        found = found.with_columns(
            pl.col("reads", "writes").replace_strict(
                words, default="unknown", return_dtype=pl.String
            ),
            unsupported=pl.concat_list("unsupported_to_read", "unsupported_to_write")
            .list.unique(maintain_order=True)
            .list.join(", ")
            .replace("", None),
            unknown=pl.col("unknown").list.join(", ").replace("", None),
        )
        remedy = table.log.dialect.feature_removal
        if remedy is not None and found["unsupported"].null_count() < found.height:
            facts.append(remedy)
    columns = ("client", "reads", "writes", "release", "unsupported", "unknown", "source")
    emit(found.lazy(), output, View("client", columns, (), lambda _: facts))


COMMANDS = (info, rows, files, history, actions, changes, diff, blame, replay, compat)
"""The commands of this module."""
