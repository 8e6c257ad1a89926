"""Text and HTML displays of tables and snapshots."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

_SHOWN_COLUMNS = 8


def size_text(size_bytes: int) -> str:
    """A size for display, in binary units.

    >>> size_text(0), size_text(1536), size_text(5 << 30)
    ('0 B', '1.5 KiB', '5.0 GiB')
    """
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} PiB"


def described(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A snapshot's facts (`Snapshot.facts`) for display, as (label, text)."""
    when = facts["timestamp"]
    names = facts["columns"]
    shown = ", ".join(names[:_SHOWN_COLUMNS]) + (
        f", … ({len(names)} in all)" if len(names) > _SHOWN_COLUMNS else ""
    )
    features = sorted({*facts["readerFeatures"], *facts["writerFeatures"]})
    return [
        ("path", str(facts["path"])),
        ("format", str(facts["format"])),
        ("version", str(facts["version"])),
        ("committed", "unknown" if when is None else f"{when:%Y-%m-%d %H:%M:%S} UTC"),
        ("table id", str(facts["id"])),
        ("columns", shown or "none recorded"),
        ("partitioned by", ", ".join(facts["partitionColumns"]) or "nothing"),
        ("protocol", f"reader {facts['minReaderVersion']}, writer {facts['minWriterVersion']}"),
        ("features", ", ".join(features) or "none listed"),
    ]


def table_text(title: str, facts: Sequence[tuple[str, str]]) -> str:
    """A text of several lines for a terminal."""
    width = max(len(label) for label, _ in facts)
    return "\n".join([title, *(f"  {label:<{width}}  {text}" for label, text in facts)])


def table_html(title: str, facts: Sequence[tuple[str, str]]) -> str:
    """An HTML table for a notebook."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for label, text in facts
    )
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"


class Displayed:
    """Displays itself as a small table: text in a terminal, HTML in a notebook."""

    _title: ClassVar[str]

    def _facts(self) -> Sequence[tuple[str, str]]:
        raise NotImplementedError

    def __str__(self) -> str:
        return table_text(self._title, self._facts())

    def _repr_html_(self) -> str:
        return table_html(self._title, self._facts())
