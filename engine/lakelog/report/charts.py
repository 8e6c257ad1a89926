"""Figures of a table as Altair charts, of frames that are aggregated before.

Sizes are divided by one unit per chart, which the axis names. Text of the table (partition values,
operations) is only ever a value in the data, never part of an expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from lakelog.display import size_text
from lakelog.errors import MissingDependencyError
from lakelog.health.activity import Activity, bucket, in_buckets, main_values
from lakelog.health.survey import partition_labels, partition_texts

if TYPE_CHECKING:
    import altair as alt

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_HEIGHT = 200
_SHOWN_PARTITIONS = 25
_HEAT_COLUMNS, _HEAT_ROWS = 60, 20

_MOST_POINTS = 500

CATEGORIES = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8c8c8c",
    "#b5a400",
)
"""Colours that people with a colour vision deficiency can distinguish (Okabe and Ito), legible on
light and dark.
"""


def require_altair() -> None:
    """Raise MissingDependencyError unless Altair is installed; all functions that draw need it."""
    try:
        import altair as alt  # noqa: F401 - the extra has both
        import vl_convert  # noqa: F401
    except ImportError as cause:
        raise MissingDependencyError(
            "figures need Altair", found=str(cause), hint="pip install 'lakelog[plot]'"
        ) from cause


def styled(chart: alt.TopLevelMixin) -> Any:
    """A chart for a notebook: colours, legend and title of every figure."""
    ranged = chart.configure_range(category=list(CATEGORIES)).configure_title(anchor="start")
    return ranged.configure_legend(columns=3)


def files_over_time(activity: Activity) -> alt.Chart:
    """Live files after each commit of `_drawn`."""
    rows = _drawn(activity.commits, "files").select("time", "version", "files")
    return _line(rows, "files", "live files", ",.0f")


def size_over_time(activity: Activity) -> alt.Chart:
    """Size of the live files after each commit of `_drawn`."""
    unit, divisor = _unit(activity.commits["size_bytes"].max())
    rows = _drawn(activity.commits, "size_bytes").select(
        "time", "version", (pl.col("size_bytes") / divisor).alias("size")
    )
    return _line(rows, "size", f"size of live files ({unit})", ",.3~f")


def commits_by(commits: pl.DataFrame, name: str) -> alt.Chart:
    """Number of commits per bucket and ``operation`` or ``userName``, stacked."""
    kind = {"userName": "user"}.get(name, name)
    rows = (
        in_buckets(main_values(commits, name).rename({name: kind}))
        .group_by("bucket", kind)
        .agg(pl.len().alias("commits"))
        .sort("bucket", kind)
    )
    totals = rows.group_by(kind).agg(pl.col("commits").sum())
    order = totals.sort("commits", kind, descending=[True, False])[kind]
    return _bars(rows, commits, "commits", kind, "commits", order.to_list())


def written_and_removed(activity: Activity) -> alt.Chart:
    """Bytes added and removed per bucket: new data, rewritten files, removed files (below 0)."""
    sums = (
        in_buckets(activity.commits)
        .group_by("bucket")
        .agg(
            (pl.col("added_bytes") - pl.col("rewritten_bytes")).sum().alias("new data"),
            pl.col("rewritten_bytes").sum().alias("rewritten, same rows"),
            (-pl.col("removed_bytes").sum()).alias("removed"),
        )
    )
    long = sums.unpivot(index="bucket", variable_name="kind", value_name="bytes").filter(
        pl.col("bytes") != 0
    )
    unit, divisor = _unit(long["bytes"].abs().max())
    rows = long.select("bucket", "kind", pl.col("bytes") / divisor).sort("bucket", "kind")
    title, order = f"added and removed ({unit})", ["new data", "rewritten, same rows", "removed"]
    return _bars(rows, activity.commits, "bytes", "kind", title, order)


def size_histogram(bins: pl.DataFrame) -> alt.Chart:
    """Live files by size: of `LogSnapshot.size_histogram`, in bins of powers of two."""
    import altair as alt

    rows = by_powers(bins)
    labels = rows["bin"].to_list()
    chart: alt.Chart = (
        alt.Chart(_data(rows), height=_HEIGHT, width="container")
        .mark_bar()
        .encode(
            x=alt.X("bin:N", sort=labels, title="size of a file", axis=alt.Axis(labelAngle=-40)),
            y=alt.Y("files:Q", title="files", axis=alt.Axis(format="~s")),
            tooltip=[
                alt.Tooltip("bin:N", title="size of a file"),
                alt.Tooltip("files:Q", format=",", title="files"),
                alt.Tooltip("total:N", title="together"),
            ],
        )
    )
    return chart


def by_powers(bins: pl.DataFrame) -> pl.DataFrame:
    """A histogram in bins of powers of two, ascending: ``bin``, ``files``, ``total`` (text)."""
    counted: dict[int, list[int]] = {}
    bottom = -1
    for low, high, files, size in bins.iter_rows():
        # The first bin begins at 0 and has no power; it is put below its end.
        if not low:
            bottom = max((high or 2).bit_length() - 2, 0)
        power = low.bit_length() - 1 if low else bottom
        sums = counted.setdefault(power, [0, 0])
        sums[0] += files
        sums[1] += size
    rows = [
        (_bin_text(power, power == bottom), *counted.get(power, (0, 0)))
        for power in range(min(counted, default=0), max(counted, default=-1) + 1)
    ]
    return pl.DataFrame(
        [(text, files, size_text(size)) for text, files, size in rows],
        schema={"bin": pl.String, "files": pl.Int64, "total": pl.String},
        orient="row",
    )


def _bin_text(power: int, is_first: bool) -> str:
    low, high = (size_text(1 << p).replace(".0 ", " ") for p in (power, power + 1))
    return f"below {high}" if is_first else f"{low} to {high}"


def partition_figure(sizes: pl.DataFrame) -> alt.Chart | None:
    """A heat map of the first two partition columns, or bars of the largest partitions, or None."""
    import altair as alt

    texts = partition_texts(sizes)
    if not texts or not sizes.height:
        return None
    tooltip = [
        alt.Tooltip("partition:N", title="partition"),
        alt.Tooltip("files:Q", format=",", title="files"),
        alt.Tooltip("size_text:N", title="size"),
    ]
    if len(texts) > 1:
        cells = (
            sizes.with_columns(texts[0].alias("x"), texts[1].alias("y"))
            .group_by("x", "y")
            .agg(pl.col("files").sum(), pl.col("size_bytes").sum())
        )
        xs, ys = _largest(cells, "x", _HEAT_COLUMNS), _largest(cells, "y", _HEAT_ROWS)
        cells = cells.filter(pl.col("x").is_in(xs), pl.col("y").is_in(ys)).sort("x", "y")
        unit, divisor = _unit(cells["size_bytes"].max())
        rows = cells.with_columns(
            (pl.col("size_bytes") / divisor).alias("size"),
            pl.Series("size_text", [size_text(s) for s in cells["size_bytes"]], dtype=pl.String),
            pl.format("{}, {}", "x", "y").alias("partition"),
        ).drop("size_bytes")
        heat: alt.Chart = (
            alt.Chart(_data(rows), width="container", height=20 * len(ys))
            .mark_rect(stroke=None)
            .encode(
                x=alt.X(
                    "x:N", title=texts[0].name, axis=alt.Axis(labelAngle=-40, labelOverlap=True)
                ),
                y=alt.Y("y:N", title=texts[1].name),
                color=alt.Color(
                    "size:Q", title=f"size ({unit})", scale=alt.Scale(scheme="viridis", domainMin=0)
                ),
                tooltip=tooltip,
            )
        )
        return heat
    top = sizes.head(_SHOWN_PARTITIONS)
    unit, divisor = _unit(top["size_bytes"].max())
    rows = top.select(
        "files",
        (pl.col("size_bytes") / divisor).alias("size"),
        pl.Series("size_text", [size_text(s) for s in top["size_bytes"]], dtype=pl.String),
        partition_labels(top),
    )
    chart: alt.Chart = (
        alt.Chart(_data(rows), width="container", height=16 * rows.height)
        .mark_bar()
        .encode(
            x=alt.X("size:Q", title=f"size ({unit})"),
            y=alt.Y("partition:N", sort=None, title=None, axis=alt.Axis(labelLimit=260)),
            tooltip=tooltip,
        )
    )
    return chart


def retention_figure(spans: pl.DataFrame) -> alt.Chart:
    """Spans of time (``what``, ``start``, ``end``) on one time axis."""
    import altair as alt

    chart: alt.Chart = (
        alt.Chart(_data(spans), width="container", height=26 * spans.height)
        .mark_bar(cornerRadius=3, height=14)
        .encode(
            x=alt.X("start:T", title="time (UTC)", scale=alt.Scale(type="utc")),
            x2="end:T",
            y=alt.Y("what:N", sort=None, title=None, axis=alt.Axis(labelLimit=320)),
            color=alt.Color("what:N", legend=None, sort=None),
            tooltip=[
                alt.Tooltip("what:N", title="what"),
                _time("start", "from"),
                _time("end", "to"),
            ],
        )
    )
    return chart


def _largest(cells: pl.DataFrame, name: str, count: int) -> list[str]:
    """The values with the largest size; of a column with few values, all."""
    sizes = cells.group_by(name).agg(pl.col("size_bytes").sum())
    top = sizes.sort("size_bytes", name, descending=[True, False]).head(count)
    return sorted(top[name].to_list())


def is_thinned(commits: pl.DataFrame) -> bool:
    """Whether a line has only some of the commits with a time."""
    return commits["timestamp"].count() > _MOST_POINTS


def _drawn(commits: pl.DataFrame, name: str) -> pl.DataFrame:
    """The commits with a ``time``; of many, those with the lowest, the highest and the last value
    of each bucket, so that a short change is visible.
    """
    rows = in_buckets(commits).drop_nulls("timestamp").sort("version")
    if is_thinned(commits):
        by_value = pl.col("version").sort_by(name)
        kept = (
            rows.group_by("bucket")
            .agg(low=by_value.first(), high=by_value.last(), end=pl.last("version"))
            .drop("bucket")
            .unpivot()["value"]
        )
        rows = rows.filter(pl.col("version").is_in(kept.implode()))
    return rows.rename({"timestamp": "time"})


def _line(rows: pl.DataFrame, name: str, title: str, form: str) -> alt.Chart:
    import altair as alt

    mark: Mapping[str, Any] = {"interpolate": "step-after", "opacity": 0.25, "line": True}
    chart: alt.Chart = (
        alt.Chart(_data(rows), height=_HEIGHT, width="container")
        .mark_area(**mark, point={"size": 18, "opacity": 1})
        .encode(
            x=alt.X(
                "time:T",
                title="time (UTC)",
                scale=alt.Scale(type="utc"),
                axis=alt.Axis(tickCount=6),  # more labels overlap, and only noons are left
            ),
            y=alt.Y(
                f"{name}:Q",
                title=title,
                axis=alt.Axis(format="~s") if name == "files" else alt.Axis(),
            ),
            tooltip=[
                _time("time", "time"),
                alt.Tooltip("version:Q", format=",", title="version"),
                alt.Tooltip(f"{name}:Q", format=form, title=title),
            ],
        )
    )
    return chart


def _bars(
    rows: pl.DataFrame,
    commits: pl.DataFrame,
    name: str,
    kind: str,
    title: str,
    order: list[str],
) -> alt.Chart:
    """Stacked bars over time; `order` is that of the colours."""
    import altair as alt

    every, words = bucket(commits)
    ends = rows.with_columns(pl.col("bucket").dt.offset_by(every).alias("end"))
    chart: alt.Chart = (
        alt.Chart(_data(ends), height=_HEIGHT, width="container")
        .mark_bar(binSpacing=1)
        .encode(
            x=alt.X(
                "bucket:T",
                bin="binned",
                title=f"time (UTC), per {words}",
                scale=alt.Scale(type="utc"),
            ),
            x2="end:T",
            y=alt.Y(f"{name}:Q", title=title),
            color=alt.Color(
                f"{kind}:N",
                sort=order,
                title=None,
                legend=alt.Legend(orient="bottom", labelLimit=150),
            ),
            tooltip=[
                _time("bucket", "from"),
                alt.Tooltip(f"{kind}:N", title=kind),
                alt.Tooltip(f"{name}:Q", format=",.3~f", title=title),
            ],
        )
    )
    return chart


def _time(name: str, title: str) -> Any:
    import altair as alt

    return alt.Tooltip(f"utcyearmonthdatehoursminutesseconds({name}):T", title=title)


def _data(rows: pl.DataFrame) -> Any:
    """Rows as inline data, with times as ISO 8601 in UTC; no file and no limit."""
    times = pl.selectors.datetime()
    texts = rows.with_columns(times.dt.replace_time_zone(None).dt.strftime("%Y-%m-%dT%H:%M:%SZ"))
    import altair as alt

    return alt.InlineData(values=texts.to_dicts())


def _unit(largest: Any) -> tuple[str, int]:
    """The unit of an axis of sizes, and its bytes."""
    power = min((max(int(largest or 0), 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return _UNITS[power], 1 << 10 * power
