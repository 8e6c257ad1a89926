"""The HTML report of a table: one page that needs no network and no other file.

The plotting library is inlined once, figures are JSON data, and every figure has its numbers as a
table, which is all that a reader without scripts sees. Text of the table is escaped. In addition,
the page has a content security policy that loads nothing and runs only its own two scripts, by
their hashes: a script in the name of a column would not run even if it were not escaped.
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import html
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import orjson
import polars as pl

from lakelog.display import Displayed, plain, size_text
from lakelog.errors import InvalidInputError, LakelogError, UnavailableError
from lakelog.health.activity import Activity, bucket, in_buckets, main_values, read_activity
from lakelog.health.findings import INFO, HealthReport
from lakelog.health.survey import examine, partition_labels
from lakelog.input_validation import local_path
from lakelog.log.context import Log, utc_time
from lakelog.log.segment import rebuildable
from lakelog.log.snapshot import LogSnapshot
from lakelog.maintenance.retention_simulation import simulate
from lakelog.model.durations import duration_text
from lakelog.redaction import redact
from lakelog.report import charts
from lakelog.storage.durable import replaced
from lakelog.version import __version__

_MOST_ROWS = 100
_MOST_TEXT = 300


@dataclass(frozen=True)
class ReportFile(Displayed):
    """A report that was written.

    Attributes:
        path: The HTML file.
        size_bytes: Its size.
        health: What should be done; see `lakelog.table.Table.doctor`.
    """

    _title = "Report"

    path: str
    size_bytes: int
    health: HealthReport

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        problems, found = len(self.health.problems), len(self.health.findings)
        unchecked = self.health.measures.unchecked_files
        return [
            ("path", self.path),
            ("size", size_text(self.size_bytes)),
            ("needs doing", f"{problems:,} of {found:,} findings" if problems else "nothing"),
            *([("data files", "not checked")] if unchecked is None else []),
        ]


def write_report(
    log: Log, snapshot: LogSnapshot, path: str | os.PathLike[str], *, files: bool = False
) -> ReportFile:
    """Write the report of a snapshot; see `lakelog.table.Table.report`."""
    charts.require_altair()
    health, sizes = examine(log, lambda: snapshot, files=files)
    page = render(log, snapshot, health, sizes).encode()
    target = os.fspath(path)
    try:
        target = local_path(target)
        with replaced(target) as file:
            file.write(page)
    except OSError as cause:
        raise UnavailableError(
            f"the report cannot be written: {cause.strerror or cause}",
            path=target,
            hint="check the folder, its permissions and the free space",
        ) from cause
    except ValueError as cause:  # a null byte, or a lone surrogate
        raise InvalidInputError(
            f"the path of the report is invalid: {cause}", found=repr(target)
        ) from cause
    return ReportFile(target, len(page), health)


def render(log: Log, snapshot: LogSnapshot, health: HealthReport, sizes: pl.DataFrame) -> str:
    """The page as text; `sizes` as `partition_sizes` returns them."""
    activity = read_activity(log, snapshot)
    page = _Page()
    parts = [
        _header(log, snapshot),
        _tiles(activity, health),
        _health(health),
        _omitted(activity),
        '<div class="grid">',
        *_figures(page, log, snapshot, activity, sizes),
        _deletions(activity),
        _people(activity),
        _schema(activity),
        "</div>",
    ]
    return page.text(redact(snapshot.path), "".join(parts))


class _Page:
    """Figures and scripts of the page."""

    def __init__(self) -> None:
        self._specs: list[str] = []

    def figure(self, chart: Any) -> str:
        """Add a chart; returns its place."""
        spec = chart.to_dict()
        spec.pop("config", None)  # the page's own colours, light or dark
        name = f"spec-{len(self._specs)}"
        self._specs.append(_data_block(name, spec))
        return f'<div class="chart" data-spec="{name}"></div>'

    def text(self, title: str, body: str) -> str:
        """The whole page."""
        scripts = [_plotting_library(), _resource("page.js")]
        hashes = " ".join(f"'sha256-{_sha256(each)}'" for each in scripts)
        policy = (
            f"default-src 'none'; script-src {hashes} 'unsafe-eval'; "
            "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
        )
        colours = _data_block("colours", charts.CATEGORIES)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<title>{_text(title)} · lakelog report</title><link rel="icon" href="data:,">'
            f"<style>{_resource('page.css')}</style></head>\n<body><main>{body}"
            f"<footer>Written by lakelog {__version__}. This page loads nothing from a network."
            f"</footer></main>\n{colours}{''.join(self._specs)}"
            f"{''.join(f'<script>{each}</script>' for each in scripts)}</body></html>\n"
        )


@cache  # a bundle takes one to two seconds
def _plotting_library() -> str:
    """The script that draws the figures, for the version of Altair's specifications."""
    import altair as alt
    import vl_convert

    version = "_".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", f"v{version}")
    return str(library.replace("</script", "<\\/script"))


def _data_block(name: str, value: Any) -> str:
    """JSON in the page; without ``<``, it cannot end its element."""
    text = orjson.dumps(value).decode().replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


def _resource(name: str) -> str:
    return resources.files("lakelog.report").joinpath(name).read_text("utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _header(log: Log, snapshot: LogSnapshot) -> str:
    path = redact(snapshot.path)
    name = snapshot.metadata.name or path.rstrip("/").rpartition("/")[2] or path
    committed, now = _moment(snapshot.timestamp_ms), _moment(log.clock())
    columns = len(_schema_fields(snapshot))
    by = ", ".join(snapshot.metadata.partition_columns)
    facts = [
        f"{snapshot.format} table, version {snapshot.version:,}, committed {committed}",
        f"{columns:,} columns" + (f", partitioned by {by}" if by else ", not partitioned"),
        f"examined {now}",
    ]
    return (
        f"<h1>{_text(name)}</h1><p class='path'>{_text(path)}</p>"
        f"<p class='note'>{_text(' · '.join(facts))}</p>"
    )


def _schema_fields(snapshot: LogSnapshot) -> Sequence[object]:
    try:
        return snapshot.schema.fields
    except LakelogError:
        return ()


def _tiles(activity: Activity, health: HealthReport) -> str:
    found = health.measures
    commits = activity.commits
    amplification = activity.rewrite_amplification
    average = found.size_bytes // found.num_files if found.num_files else 0
    tiles = [
        (f"{found.num_files:,}", "live files"),
        (size_text(found.size_bytes), "in live files"),
        (size_text(average), "average file"),
        (f"{commits.height:,}", "commits in the log"),
        (f"{found.tail_commits:,}", "commits above the checkpoint"),
        (f"{found.tombstones:,}", "removed files recorded"),
    ]
    if amplification is not None:
        tiles.append((f"{amplification:.2f}", "bytes written per byte of new data"))
    cells = (f"<div class='tile'><b>{_text(v)}</b><span>{k}</span></div>" for v, k in tiles)
    return f"<div class='tiles'>{''.join(cells)}</div>"


def _omitted(activity: Activity) -> str:
    """A line if the history does not begin with the oldest commit in the log."""
    text = activity.omitted
    return "" if text is None else f"<p class='note'>{_text(text[:1].upper() + text[1:])}</p>"


def _health(health: HealthReport) -> str:
    items = []
    for each in health.findings:
        command = (
            f"<div class='command'><code>{_text(each.remedy)}</code>"
            "<button type='button'>copy</button></div>"
            if each.remedy is not None
            else ""
        )
        label = "note" if each.severity == INFO else each.severity
        items.append(
            f"<li class='{each.severity}'><span class='severity'>{label}</span>"
            f"{_text(each.problem[:1].upper() + each.problem[1:])}.<br>{command}</li>"
        )
    if not health.problems:
        text = health.facts[-1][1]
        items.insert(
            0,
            "<li class='good'><span class='severity'>good</span>"
            f"{_text(text[:1].upper() + text[1:])}.</li>",
        )
    return f"<section><h2>Health</h2><ul class='findings'>{''.join(items)}</ul></section>"


def _figures(
    page: _Page, log: Log, snapshot: LogSnapshot, activity: Activity, sizes: pl.DataFrame
) -> Iterable[str]:
    commits = activity.commits
    if commits.height:
        per_time = _per_time(commits)
        _, words = bucket(commits)
        after = "after each commit"
        if charts.is_thinned(commits):
            after = f"after some commits: those with the lowest, highest and last value per {words}"
        after += f". The numbers are the last per {words}."
        growth = _table(per_time.select("time", "files", "size_bytes"))
        yield _section(
            "Size",
            f"Size of the live files {after}",
            page.figure(charts.size_over_time(activity)),
            growth,
        )
        yield _section(
            "Files",
            f"Live files {after}",
            page.figure(charts.files_over_time(activity)),
            growth,
        )
        for title, name in (("operation", "operation"), ("user", "userName")):
            yield _section(
                f"Commits by {title}",
                "Commits over time.",
                page.figure(charts.commits_by(commits, name)),
                _table(_counts(commits, name).rename({name: title})),
            )
        has_churn = commits.select(
            (pl.sum_horizontal("added_bytes", "removed_bytes") > 0).any()
        ).item()
        yield _section(
            "Churn",
            "Data that commits added, rewrote without changing rows, and removed (below zero).",
            page.figure(charts.written_and_removed(activity)) if has_churn else "",
            _table(per_time.select("time", "added_bytes", "rewritten_bytes", "removed_bytes")),
        )
    bins = charts.by_powers(histogram := snapshot.size_histogram())
    yield _section(
        "File sizes",
        "Live files by size.",
        page.figure(charts.size_histogram(histogram)) if bins.height else "",
        _table(bins),
    )
    partitions = charts.partition_figure(sizes)
    if partitions is not None:
        top = sizes.head(_MOST_ROWS)
        rows = top.select(partition_labels(top), "files", "size_bytes")
        yield _section(
            "Partitions",
            f"Number of partitions: {sizes.height:,}. Figure and table show the largest.",
            page.figure(partitions),
            _table(rows),
        )
    yield _retention(page, log, snapshot, activity)


def _counts(commits: pl.DataFrame, name: str) -> pl.DataFrame:
    sums = pl.col("added_files", "removed_files", "added_bytes", "removed_bytes").sum()
    counts = main_values(commits, name).group_by(name).agg(pl.len().alias("commits"), sums)
    return counts.sort("commits", name, descending=[True, False])


def _retention(page: _Page, log: Log, snapshot: LogSnapshot, activity: Activity) -> str:
    now_ms = log.clock()
    found = simulate(log, [], latest=snapshot).row(0, named=True)
    oldest = rebuildable(log.list_all())[0][0]
    times_ms = activity.commits["timestamp"].drop_nulls().to_physical()
    first_ms = times_ms[0] if times_ms.len() else None
    spans = [
        ("commits in the log", first_ms, now_ms),
        ("promised by the log retention", now_ms - int(found["log_retention_ms"]), now_ms),
        ("removed files are kept", now_ms - int(found["deleted_file_retention_ms"]), now_ms),
    ]
    drawn = [(what, start, end) for what, start, end in spans if start is not None]
    times = pl.Datetime("ms", "UTC")
    frame = pl.DataFrame(
        drawn, schema={"what": pl.String, "start": pl.Int64, "end": pl.Int64}, orient="row"
    ).with_columns(pl.col("start", "end").cast(times))
    feed = found["change_feed_from"]
    facts = [
        ("oldest version that can be read", f"{oldest:,}"),
        ("oldest version after a cleanup", f"{found['oldest_version']:,}"),
        ("time of that version", _moment(_ms(found["oldest_time"]))),
        ("log retention", duration_text(int(found["log_retention_ms"]))),
        ("retention of removed files", duration_text(int(found["deleted_file_retention_ms"]))),
        ("appends can be streamed from version", f"{found['stream_from']:,}"),
        ("change feed can be read from version", "no feed" if feed is None else f"{feed:,}"),
        ("data that vacuum could delete", size_text(int(found["data_bytes"] or 0))),
    ]
    rows = pl.DataFrame(facts, schema=["fact", "value"], orient="row")
    return _section(
        "Retention horizon",
        "How far back versions can be read, and for how long removed data files are kept.",
        page.figure(charts.retention_figure(frame)),
        _table(rows),
        is_open=True,
    )


def _per_time(commits: pl.DataFrame) -> pl.DataFrame:
    return (
        in_buckets(commits)
        .group_by("bucket", maintain_order=True)
        .agg(
            pl.col("files", "size_bytes").last(),
            pl.col("added_bytes", "rewritten_bytes", "removed_bytes").sum(),
        )
        .rename({"bucket": "time"})
    )


def _deletions(activity: Activity) -> str:
    deleted_rows = pl.col("operationMetrics").map.get("numDeletedRows").cast(pl.Int64, strict=False)
    commits = activity.commits.with_columns(deleted_rows.alias("deleted_rows"))
    rows = commits.filter((pl.col("deleted_files") > 0) | (pl.col("deleted_rows") > 0))
    total = rows.height
    top = rows.sort("deleted_bytes", "version", descending=True).head(_MOST_ROWS)
    shown = top.select(
        "version",
        pl.col("timestamp").alias("time"),
        pl.col("userName").alias("user"),
        "operation",
        pl.col("operationParameters").map.get("predicate").alias("where"),
        "deleted_files",
        "deleted_bytes",
        "deleted_rows",
    )
    note = f"{total:,} commits removed files with a change of data, or rows, the largest first."
    return _section("Who deleted what", note, "", _table(shown), is_open=True)


def _people(activity: Activity) -> str:
    rows = (
        activity.commits.group_by(pl.col("userName").alias("user"), "operation")
        .agg(
            pl.len().alias("commits"),
            pl.col("added_files", "removed_files").sum(),
            pl.col("added_bytes").sum(),
            pl.col("timestamp").max().alias("last"),
        )
        .sort("commits", "user", "operation", descending=[True, False, False])
        .head(_MOST_ROWS)
    )
    return _section(
        "Commits by user and operation",
        "Of the commits in the log.",
        "",
        _table(rows),
        is_open=True,
    )


def _schema(activity: Activity) -> str:
    rows = activity.schemas.sort("version", descending=True).select(
        "version",
        pl.col("timestamp").alias("time"),
        pl.col("userName").alias("user"),
        "operation",
        "changes",
    )
    note = "Changes of columns, partitioning and properties by the commits in the log."
    return _section("Schema timeline", note, "", _table(rows), is_open=True)


def _section(title: str, note: str, figure: str, table: str, *, is_open: bool = False) -> str:
    """A section; its table is folded unless `is_open`, which takes the whole width."""
    wide = " class='wide'" if is_open else ""
    body = table if is_open else f"<details><summary>numbers</summary>{table}</details>"
    return (
        f"<section{wide}><h2>{title}</h2><p class='note'>{_text(note)}</p>{figure}{body}</section>"
    )


def _table(rows: pl.DataFrame) -> str:
    """A table that sorts by value; columns without values are omitted."""
    rows = rows.select(c for c in rows if c.null_count() < rows.height)
    if not rows.height:
        return "<p class='note'>None.</p>"
    heads = []
    for name, dtype in rows.schema.items():
        label = name if name == "size_bytes" else name.replace("_bytes", "_size")
        label = label.removesuffix("_bytes").replace("_", " ")
        right = " class='n'" if dtype.is_numeric() else ""
        heads.append(f"<th scope='col'{right}><button type='button'>{label}</button></th>")
    body = []
    for row in rows.iter_rows(named=True):
        cells = "".join(_cell(name, value) for name, value in row.items())
        body.append(f"<tr>{cells}</tr>")
    return (
        f"<div class='scroll'><table><thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(name: str, value: Any) -> str:
    if isinstance(value, dt.datetime):
        return f"<td class='t' data-v='{value.timestamp():.3f}'>{value:%Y-%m-%d %H:%M:%S}</td>"
    if isinstance(value, int):
        text = size_text(value) if name.endswith("_bytes") else f"{value:,}"
        return f"<td class='n' data-v='{value}'>{text}</td>"
    return f"<td>{_text('' if value is None else str(value))}</td>"


def _text(value: str) -> str:
    """Text of the table, shortened and escaped; control characters become visible."""
    short = value if len(value) <= _MOST_TEXT else value[: _MOST_TEXT - 1] + "…"
    return html.escape(plain(short))


def _moment(at_ms: int | None) -> str:
    at = utc_time(at_ms)
    return "unknown" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _ms(moment: dt.datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)
