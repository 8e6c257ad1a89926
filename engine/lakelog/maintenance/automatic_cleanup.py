"""Cleanup that follows checkpoints by itself: not after each one, but now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lakelog.log.context import Log

if TYPE_CHECKING:
    from lakelog.maintenance.cleanup import CleanupReport

PAUSE_S = 3600.0
"""Seconds from one cleanup to the next: what may go changes at midnight, and with age."""


class HourlyCleanup:
    """Cleans a log up, at most once an hour; fits `Scheduler`'s ``cleanup``."""

    def __init__(self, log: Log, monotonic: Callable[[], float]) -> None:
        self._log = log
        self._monotonic = monotonic
        self._not_before_s = float("-inf")

    def __call__(self, version: int) -> CleanupReport | None:  # noqa: ARG002 - the scheduler gives it
        """Delete what the table's properties let go; None where it is too soon, or nothing is."""
        from lakelog.maintenance.cleanup import Request, plan_cleanup

        if self._monotonic() < self._not_before_s:
            return None
        self._not_before_s = self._monotonic() + PAUSE_S
        plan = plan_cleanup(self._log, Request())
        return plan.apply() if plan.files.height else None
