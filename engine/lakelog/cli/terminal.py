"""Escapes text from logs and file names for safe printing on a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    r"""The text with escaped control characters, which could control the terminal.

    >>> plain("a\x1b[31m")
    'a\\x1b[31m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
