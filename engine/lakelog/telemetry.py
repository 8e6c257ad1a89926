"""Structured log lines, and OpenTelemetry spans and metrics if the program has configured them.

Log lines are written to the logger ``lakelog``, one per event, as ``name key=value key=value``:
events at level INFO, durations and measurements at level DEBUG. A record also has them as
``record.event`` and ``record.fields``, for handlers that write JSON.

OpenTelemetry gets spans and metrics, all named ``lakelog.…``. It is imported only if the program
has imported it, or if the environment names a provider; otherwise nothing is recorded. Metrics have
few attributes (a format, a kind); versions and paths are attributes of spans and log lines.

| metric | kind, unit | attributes |
|---|---|---|
| ``load.duration`` | histogram, s | ``source``, ``stage``, ``format`` |
| ``cache.lookups`` | counter | ``cache``, ``hit`` |
| ``checkpoint.created`` | counter | ``layout``, ``format`` |
| ``checkpoint.duration`` | histogram, s | ``layout``, ``format`` |
| ``checkpoint.size`` | histogram, By | ``layout``, ``format`` |
| ``checkpoint.compression_ratio`` | histogram, 1 | ``layout``, ``format`` |
| ``cleanup.files`` | counter | ``kind`` |
| ``cleanup.bytes`` | counter, By | ``kind`` |
| ``ingest.rows`` | counter | |
| ``ingest.rows_diverted`` | counter | |
| ``ingest.commit.duration`` | histogram, s | |
| ``ingest.flush.duration`` | histogram, s | |
| ``ingest.lag`` | histogram, s | |
| ``vacuum.files`` | counter | |
| ``vacuum.bytes`` | counter, By | |

The ``source`` of a load is ``checkpoint`` or ``json``; the ``stage`` is ``open`` (protocol and
metadata) or ``files``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from lakelog.redaction import redact, redacted, scrub

Progress = Callable[[str, int, int | None], None]
"""Called with a step, its progress, and the total (None: unknown)."""

_LOGGER = logging.getLogger("lakelog")
_LOGGER.addHandler(logging.NullHandler())  # without a handler of the program, nothing is printed

_PLAIN = re.compile(r"[^\s\"=]+")
_API = {
    "trace": ("opentelemetry.trace", "OTEL_PYTHON_TRACER_PROVIDER"),
    "metrics": ("opentelemetry.metrics", "OTEL_PYTHON_METER_PROVIDER"),
}


def event(name: str, /, level: int = logging.INFO, **fields: object) -> None:
    """Write one log line, with `fields` in order, the unit last in each name; None is omitted."""
    if _LOGGER.isEnabledFor(level):
        shown = {key: redacted(value) for key, value in fields.items() if value is not None}
        extra = {"event": name, "fields": shown}
        _LOGGER.log(level, "%s", line(name, shown), extra=extra, stacklevel=2)


def line(name: str, fields: dict[str, object]) -> str:
    """An event as one line of text; a value with spaces, quotes or ``=`` is written as JSON text.

    >>> line("cleanup.done", {"files": 3, "seconds": 0.25, "path": "a b"})
    'cleanup.done files=3 seconds=0.25 path="a b"'
    """
    return " ".join([name, *(f"{key}={_text(value)}" for key, value in fields.items())])


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


class Span:
    """A timed operation, made by `span`; `seconds` is 0.0 until it has ended."""

    __slots__ = ("_begin", "_fields", "_listener", "_name", "seconds")

    def __init__(self, name: str, fields: dict[str, object]) -> None:
        self._name = name
        self._fields = fields
        self._listener: AbstractContextManager[Any] | None = None
        self._begin = 0.0
        self.seconds = 0.0

    def set(self, **attributes: object) -> None:
        """Add attributes that became known during the operation."""
        self._fields.update(attributes)

    def __enter__(self) -> Self:
        if _listens("trace"):
            self._listener = _tracer().start_as_current_span(f"lakelog.{self._name}")
            self._listener.__enter__()
        self._begin = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._begin
        if self._listener is not None:
            current = import_module(_API["trace"][0]).get_current_span()
            current.set_attributes(_attributes(self._fields))
            if error is not None:
                scrub(error)  # the exporter records its text and traceback
            self._listener.__exit__(kind, error, trace)
            self._listener = None
        outcome = None if kind is None else getattr(error, "kind", kind.__name__)
        event(self._name, logging.DEBUG, **self._fields, seconds=self.seconds, error=outcome)


def span(name: str, /, **attributes: object) -> Span:
    """Time an operation: an OpenTelemetry span, and a log line at level DEBUG when it ends."""
    return Span(name, attributes)


def count(name: str, value: int = 1, /, **attributes: object) -> None:
    """Add to a counter of this module's table; attributes need few distinct values."""
    if _listens("metrics"):
        unit = "By" if name.endswith("bytes") else "1"
        _instrument("create_counter", name, unit).add(value, _attributes(attributes))
    event(name, logging.DEBUG, value=value, **attributes)


def record(name: str, value: float, unit: str, /, **attributes: object) -> None:
    """Record a measurement in a histogram of this module's table; `unit` in UCUM: ``s``, ``By``."""
    if _listens("metrics"):
        _instrument("create_histogram", name, unit).record(value, _attributes(attributes))
    event(name, logging.DEBUG, value=value, unit=unit, **attributes)


def _listens(part: str) -> bool:
    """Whether OpenTelemetry may be in use, by its import or the environment."""
    module, variable = _API[part]
    return module in sys.modules or (variable in os.environ and _is_importable(module))


@cache
def _is_importable(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True


@cache
def _tracer() -> Any:
    # A proxy until the program sets a provider, so it can be kept.
    return import_module(_API["trace"][0]).get_tracer("lakelog")


@cache
def _instrument(kind: str, name: str, unit: str) -> Any:
    meter = import_module(_API["metrics"][0]).get_meter("lakelog")
    return getattr(meter, kind)(f"lakelog.{name}", unit=unit)


def _attributes(fields: dict[str, object]) -> dict[str, str | bool | int | float]:
    return {
        key: value if isinstance(value, bool | int | float) else redact(str(value))
        for key, value in fields.items()
        if value is not None
    }
