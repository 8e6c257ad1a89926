"""`Calendar`: dates and timestamps that Spark wrote in the Julian calendar.

Before version 3, Spark counted days before 15 October 1582 in the Julian calendar. Later versions
do so if they are configured to, as Databricks is, and record it in the footer. Footers of the
earliest versions have Spark's schema, but not its version. In such a file, 1 January of the year 1
would be read as 30 December of the year before. Other writers do not use the Julian calendar.

Source: Apache Spark, SPARK-31404 and the properties spark.sql.parquet.datetimeRebaseModeInRead and
int96RebaseModeInRead; JDN algorithms as in the Explanatory Supplement to the Astronomical Almanac.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakelog.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from numpy.typing import NDArray


_VERSION = b"org.apache.spark.version"
_SCHEMA, _SPARK_WRITER = b"org.apache.spark.sql.parquet.row.metadata", "parquet-mr "
_DATES = b"org.apache.spark.legacyDateTime"
_INT96 = b"org.apache.spark.legacyINT96"
_ZONE = b"org.apache.spark.timeZone"

_CUT_DAYS = -141_427  # 15 October 1582
_EVEN_US = -2_208_988_800_000_000  # 1900: from then on zones have no local mean times
_DAY_US = 86_400_000_000
_UNIX_JDN = 2_440_588
_UTC_ZONES = frozenset(("UTC", "Z", "Etc/UTC", "GMT", "Etc/GMT", "UCT", "+00:00", "GMT0"))


@dataclass(frozen=True)
class Calendar:
    """Which values of a file use the Julian calendar, and the zone of its timestamps."""

    dates: bool = False
    int96: bool = False
    zone: str = "UTC"

    @staticmethod
    def of(footer: pq.FileMetaData) -> Calendar:
        """The calendar that a file's footer records."""
        known = footer.metadata or {}
        found = re.match(rb"(\d+)\.(\d+)", known.get(_VERSION, b""))
        has_none = _SCHEMA in known and (footer.created_by or "").startswith(_SPARK_WRITER)
        unknown = (2, 0) if has_none else (99, 0)
        version = (int(found[1]), int(found[2])) if found else unknown
        zone = known.get(_ZONE, b"UTC").decode("utf-8", "replace")
        dates = version < (3, 0) or _DATES in known
        return Calendar(dates, version < (3, 1) or _INT96 in known, zone)

    def rebased(self, source: pa.DataType, array: pa.Array) -> pa.Array:
        """Dates, or timestamps in microseconds, as those of today's calendar."""
        if pa.types.is_date32(source):
            return _rebased_days(array) if self.dates else array
        if not pa.types.is_timestamp(source):
            return array
        if not (self.int96 if source.tz is None else self.dates):
            return array
        numbers = array.cast(pa.int64())
        least = pc.min(numbers).as_py()
        if least is None or least >= _EVEN_US:
            return array
        if self.zone not in _UTC_ZONES:
            raise UnsupportedFeatureError(
                "times before 1900 use the Julian calendar and an unknown time zone",
                expected="UTC",
                found=self.zone,
                hint="rewrite the file with spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED",
            )
        if least >= _CUT_DAYS * _DAY_US:
            return array
        values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        days, rest = np.divmod(values, _DAY_US)
        moved = _gregorian(days) * _DAY_US + rest
        return pa.array(moved, pa.int64(), mask=_nulls(array)).cast(array.type)

    @property
    def is_old(self) -> bool:
        """Whether any value may have to be moved."""
        return self.dates or self.int96

    def known_bounds(self, bounds: pa.Array) -> pa.Array:
        """Bounds, also in structs, with null where the calendars may differ."""
        if not self.is_old:
            return bounds
        type_ = bounds.type
        if pa.types.is_struct(type_):
            children = [self.known_bounds(bounds.field(i)) for i in range(type_.num_fields)]
            fields = [type_.field(i) for i in range(type_.num_fields)]
            return pa.StructArray.from_arrays(children, fields=fields, mask=bounds.is_null())
        if pa.types.is_date32(type_):
            early = pc.less(bounds.cast(pa.int32()), _CUT_DAYS)
        elif pa.types.is_timestamp(type_):
            early = pc.less(bounds.cast(pa.timestamp("us", type_.tz)).cast(pa.int64()), _EVEN_US)
        else:
            return bounds
        return pc.if_else(early, None, bounds)


def _rebased_days(array: pa.Array) -> pa.Array:
    numbers = array.cast(pa.int32())
    least = pc.min(numbers).as_py()
    if least is None or least >= _CUT_DAYS:
        return array
    days = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    moved = _gregorian(days).astype(np.int32)
    return pa.array(moved, pa.int32(), mask=_nulls(array)).cast(array.type)


def _nulls(array: pa.Array) -> NDArray[np.bool_] | None:
    if not array.null_count:
        return None
    found: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _gregorian(days: NDArray[np.int64]) -> NDArray[np.int64]:
    """Days since 1970; dates before 1582 keep year, month and day of the Julian calendar."""
    # The Julian date, with years that begin in March so that the leap day comes last.
    shifted = days + _UNIX_JDN + 32_082
    year = (4 * shifted + 3) // 1461
    day_of_year = shifted - 1461 * year // 4
    # The same date in the Gregorian calendar, which leaves out leap days at most centuries.
    moved = 365 * year + year // 4 - year // 100 + year // 400 + day_of_year - 32_044 - _UNIX_JDN
    found: NDArray[np.int64] = np.where(days < _CUT_DAYS, moved, days)
    return found
