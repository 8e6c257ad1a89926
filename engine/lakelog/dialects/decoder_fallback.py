"""The exception by which the columnar decoder hands over to the strict decoder."""

from __future__ import annotations


class NotProvenError(Exception):
    """The columnar parse cannot prove that it has understood the chunk."""
