"""The log folder of each registered dialect. Imports nothing heavy, unlike the registry."""

from __future__ import annotations

import os

from lakelog.errors import InvalidInputError

FOLDERS = {"delta": "_delta_log", "indextables": "_transaction_log"}
"""Log folders by dialect, in the order of registration."""


def require_outside_tables(directory: str, owner: str) -> None:
    """Refuse a local directory in the folder of a table, where vacuum would delete its files."""
    above = os.path.realpath(directory)
    while True:
        for folder in FOLDERS.values():
            if os.path.isdir(os.path.join(above, folder)):
                raise InvalidInputError(
                    f"the {owner} would be inside a table: vacuum would delete its files",
                    path=directory,
                    expected=f"a directory outside of {above}",
                    hint="choose a directory next to the table",
                )
        if above == os.path.dirname(above):
            return
        above = os.path.dirname(above)
