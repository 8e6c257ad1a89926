"""The type of a case, and writable table copies for update workloads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.tables import Table

Answer = dict[str, int | float | str]
ONE_DATE = "2024-03-05"
"""A value of the partition column ``date``, of one file in 365."""


def paths_answer(paths: list[str]) -> Answer:
    """The number of found files, and their paths."""
    import polars as pl

    from perf import answers

    frame = pl.DataFrame({"path": paths}, schema={"path": pl.String})
    return {"found": frame.height, "found_paths": answers.hash_rows(frame)}


def _path(table: Table, _: ExitStack) -> Any:
    return table.path


@dataclass(frozen=True, slots=True)
class Case:
    """The implementation of one workload by one contender.

    Attributes:
        run: The measured function; its argument is the result of `prepare`.
        answer: Converts the result to an answer (`perf.answers`); not measured.
        prepare: Runs before the measurement, with the table and a stack for resources to close
            at the end; returns the table's path by default.
        size_bytes: The size of the result in memory, if requested.
    """

    run: Callable[[Any], Any]
    answer: Callable[[Any], Answer]
    prepare: Callable[[Table, ExitStack], Any] = _path
    size_bytes: Callable[[Any], int] | None = None


class WritableCopy:
    """A copy of a table with hard links, next to the original; deleted when `stack` is closed."""

    def __init__(self, table: Table, stack: ExitStack) -> None:
        folder = tempfile.TemporaryDirectory(dir=table.path.parent, prefix="copy-")
        self._next = table.next_commit
        self._version = table.facts["last_version"] + 1
        self.path = Path(stack.enter_context(folder))
        log = self.path / "_delta_log"
        log.mkdir()
        for file in (table.path / "_delta_log").iterdir():
            os.link(file, log / file.name)

    def commit(self) -> None:
        """Write the next commit to the log."""
        os.link(self._next, self.path / "_delta_log" / f"{self._version:020d}.json")
