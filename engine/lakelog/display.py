"""Tables, snapshots and reports as text and HTML, and sizes from text."""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

_SHOWN_COLUMNS = 8
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SIZE = re.compile(r"([0-9]{1,30})\s*([kmgtp]?)i?b?")

LOG_ONLY = " in the log; the data files were not checked"
ROWS_NOT_COUNTED = "; the row counts of data files were not compared with the log"
"""What `doctor` and `repair` did not check, after "nothing was found"."""


def plain(text: str) -> str:
    r"""The text with control characters escaped, which could control the terminal.

    >>> plain("a\x1b[31m")
    'a\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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


def parse_size(text: str) -> int | None:
    """Bytes of a size, with or without a binary unit; None if it is invalid, or 0.

    >>> parse_size("100 mb"), parse_size("1 KiB"), parse_size("7"), parse_size("0")
    (104857600, 1024, 7, None)
    """
    match = _SIZE.fullmatch(text.strip().lower())
    return None if match is None else int(match[1]) << 10 * " kmgtp".index(match[2] or " ") or None


def argument(location: str) -> str:
    """A location as an argument of a shell's command line, which does not begin as an option does.

    >>> argument("my orders"), argument("-x")
    ("'my orders'", './-x')
    """
    return shlex.quote(f"./{location}" if location.startswith("-") else location)


def path_text(names: Sequence[str], *, quote: bool = False) -> str:
    """A column as SQL and `lakelog` take it: names with dots between them, in backquotes if they
    have a dot or a backquote, or all of them.

    >>> path_text(("address", "zip.code"))
    'address.`zip.code`'
    """
    return ".".join(
        "`" + name.replace("`", "``") + "`" if quote or "." in name or "`" in name else name
        for name in names
    )


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
    """A text of several lines for a terminal, one per fact."""
    width = max(len(label) for label, _ in facts)
    return "\n".join([title, *(f"  {label:<{width}}  {plain(text)}" for label, text in facts)])


def table_html(title: str, facts: Sequence[tuple[str, str]]) -> str:
    """An HTML table for a notebook."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for label, text in facts
    )
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"


class Displayed:
    """Displays itself as a small table: text in a terminal, HTML in a notebook. The title is the
    name of the class, and the table of a dataclass its fields, unless a subclass overrides them.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in cls.__dict__:
            # A dataclass would generate one, which shows all fields in one line.
            cls.__repr__ = cls.__repr__  # type: ignore[method-assign] # the inherited one, kept

    @property
    def _title(self) -> str:
        return _CAPITAL.sub(" ", type(self).__name__).capitalize()

    @property
    def facts(self) -> Sequence[tuple[str, str]]:
        """Labels and values for display."""
        names = [field.name for field in fields(self)]  # type: ignore[arg-type] # a dataclass
        found = ((name, getattr(self, name)) for name in names)
        return [
            (name.removesuffix("_bytes").replace("_", " "), _fact_text(name, value))
            for name, value in found
            if value is not None and value != ()
        ]

    def __str__(self) -> str:
        return table_text(self._title, self.facts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return table_html(self._title, self.facts)


def _fact_text(name: str, value: Any) -> str:
    """A value for display.

    >>> _fact_text("size_bytes", 2048), _fact_text("rows", 1200), _fact_text("files", ("a", "b"))
    ('2.0 KiB', '1,200', 'a, b')
    """
    if isinstance(value, tuple):
        return ", ".join(str(each) for each in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return size_text(value) if name.endswith("_bytes") else f"{value:,}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
