"""IndexTables' table properties."""

from __future__ import annotations

from lakelog.dialects.properties import SPARK_INDEXTABLES, PropertyRules
from lakelog.errors import InvalidPropertyError


class IndexTablesProperties(PropertyRules):
    """IndexTables' rules for table properties."""

    def check_one(self, key: str, lower: str, value: str | None) -> None:
        """Reject keys of ``delta.*``, which readers of such tables ignore."""
        if lower.startswith("delta."):
            raise InvalidPropertyError(
                "properties of Delta have no effect on an IndexTables table",
                path=key,
                expected=f"{SPARK_INDEXTABLES}* or a key of your own",
                found=value,
            )
        super().check_one(key, lower, value)


INDEXTABLES_PROPERTY_RULES = IndexTablesProperties()
