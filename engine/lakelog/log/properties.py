"""Table properties that reading needs, parsed as Spark writes them.

Source: Delta Lake table properties.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakelog.errors import InvalidInputError, InvalidPropertyError
from lakelog.model.durations import property_ms
from lakelog.model.metadata import in_any_case
from lakelog.storage.base import IN_FLIGHT
from lakelog.storage.bounded import ReadLimits

_READ_PARALLELISM = "spark.indextables.checkpoint.parallelism"
_MAX_CONCURRENT_READS = "spark.indextables.transaction.maxConcurrentReads"
_READ_TIMEOUT = "spark.indextables.checkpoint.read.timeoutSeconds"
_DELETED_FILE_RETENTION = "delta.deletedFileRetentionDuration"
_TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"
_MOST_DIGITS = 18
DELETED_FILE_RETENTION_MS = 7 * 86_400_000


def deleted_file_retention_ms(configuration: Mapping[str, str | None]) -> int:
    """Retention of tombstones, in milliseconds (default: one week)."""
    value = in_any_case(configuration, _DELETED_FILE_RETENTION)
    found = _interval_ms(_DELETED_FILE_RETENTION, value)
    return DELETED_FILE_RETENTION_MS if found is None else found


def transaction_retention_ms(configuration: Mapping[str, str | None]) -> int | None:
    """Retention of transaction identifiers, in milliseconds; None: unlimited."""
    return _interval_ms(_TRANSACTION_RETENTION, configuration.get(_TRANSACTION_RETENTION))


def stated_transaction_retention_ms(configuration: Mapping[str, str | None]) -> int | None:
    """As `transaction_retention_ms`, but None for a malformed value, which prevents no read."""
    try:
        return transaction_retention_ms(configuration)
    except InvalidPropertyError:
        return None


def _interval_ms(name: str, value: str | None) -> int | None:
    try:
        return None if value is None else property_ms(value)
    except InvalidInputError as cause:
        raise InvalidPropertyError(
            "invalid value of a table property", path=name, expected=cause.expected, found=value
        ) from cause


def read_limits(configuration: Mapping[str, str | None]) -> ReadLimits:
    """The read limits in the table's properties; malformed values are ignored, and a table does
    not have more files read at a time than a store without limits.
    """
    names = (_READ_PARALLELISM, _MAX_CONCURRENT_READS)  # the first property that is set
    found = (in_any_case(configuration, name) for name in names)
    parallelism = _positive(next((value for value in found if value), ""))
    timeout = in_any_case(configuration, _READ_TIMEOUT) or ""
    return ReadLimits(parallelism and min(parallelism, IN_FLIGHT), _positive(timeout))


def _positive(text: str) -> int | None:
    """A positive number of few digits; None for any other text."""
    return (int(text) or None) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
