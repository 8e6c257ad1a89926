"""What the columnar decoder raises to itself when the plain one has to decide."""

from __future__ import annotations


class NotProvenError(Exception):
    """The columnar parse cannot prove that it has understood the chunk."""
