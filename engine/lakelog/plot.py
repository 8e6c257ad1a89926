"""Figures of a table as Altair charts (``pip install 'lakelog[plot]'``).

They are the figures of `Table.report`. A chart has at most some hundred points, also of a table
with a million files: long histories are aggregated before they are drawn. Times are in UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lakelog.errors import InvalidInputError
from lakelog.health.activity import Activity, read_activity
from lakelog.health.survey import partition_sizes
from lakelog.input_validation import require_choice
from lakelog.report import charts

if TYPE_CHECKING:
    import altair as alt

    from lakelog.table import Table

__all__ = ["churn", "commits", "file_sizes", "partitions", "size_and_files"]

_WIDTH = 640


def size_and_files(table: Table) -> alt.VConcatChart:
    """Number and size of the live files over time.

    Raises:
        MissingDependencyError: Altair is not installed.

    Memory: about 100 bytes per file action of the commits in the log, and their paths.
    """
    charts.require_altair()
    import altair as alt

    activity = _activity(table)
    parts = charts.size_over_time(activity), charts.files_over_time(activity)
    return charts.styled(alt.vconcat(*(part.properties(width=_WIDTH) for part in parts)))  # type: ignore[no-any-return] # Altair has no type for it


def commits(table: Table, by: Literal["operation", "user"] = "operation") -> alt.Chart:
    """Commits over time, by operation or by user.

    Args:
        table: The table.
        by: ``operation`` or ``user``: the most frequent ones have a colour each.

    Raises:
        InvalidInputError: `by` is not one of these.
        MissingDependencyError: Altair is not installed.
    """
    names = {"operation": "operation", "user": "userName"}
    require_choice("by", by, names)
    charts.require_altair()
    return _wide(charts.commits_by(table.history().sort("version"), names[by]))


def file_sizes(table: Table) -> alt.Chart:
    """Live files by size.

    Raises:
        MissingDependencyError: Altair is not installed.
    """
    charts.require_altair()
    return _wide(charts.size_histogram(table.snapshot().size_histogram()))


def partitions(table: Table) -> alt.Chart:
    """Sizes of partitions: a heat map of the first two partition columns, or bars of the largest
    partitions.

    Raises:
        MissingDependencyError: Altair is not installed.
        InvalidInputError: The table has no partitions.
    """
    charts.require_altair()
    found = charts.partition_figure(partition_sizes(table.snapshot()))
    if found is None:
        raise InvalidInputError("the table has no partitions", path=table.path)
    return _wide(found)


def churn(table: Table) -> alt.Chart:
    """Bytes of new data, of rewritten files and of removed files over time.

    Raises:
        MissingDependencyError: Altair is not installed.

    Memory: as `size_and_files`.
    """
    charts.require_altair()
    return _wide(charts.written_and_removed(_activity(table)))


def _activity(table: Table) -> Activity:
    return read_activity(table.log, table.snapshot())


def _wide(chart: alt.Chart) -> alt.Chart:
    return charts.styled(chart.properties(width=_WIDTH))  # type: ignore[no-any-return] # Altair has no type for it
