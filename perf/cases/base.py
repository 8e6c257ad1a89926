"""The shape of a case, and the table copies that update workloads may write to."""

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


def _path(table: Table, _: ExitStack) -> Any:
    return table.path


@dataclass(frozen=True, slots=True)
class Case:
    """How one contender does one workload.

    Attributes:
        run: What is measured; takes what `prepare` returned.
        answer: The result as an answer (`perf.answers`); outside the measurement.
        prepare: What comes before the clock starts, given the table and a stack for what has to
            be closed at the end; by default the table's path.
        size_bytes: The result's own size in memory, where that is asked for.
    """

    run: Callable[[Any], Any]
    answer: Callable[[Any], Answer]
    prepare: Callable[[Table, ExitStack], Any] = _path
    size_bytes: Callable[[Any], int] | None = None


class WritableCopy:
    """A table of hard links beside the original, gone when `stack` is closed."""

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
        """Put the next commit into the log."""
        os.link(self._next, self.path / "_delta_log" / f"{self._version:020d}.json")
