"""Tags that compaction sets on files: compacted, or unreadable.

Delta has no action for skipped files (IndexTables: ``mergeskip``), and metadata domains are a
feature that a table may lack, written whole at every change. Tags are part of every file's action,
in every table: they travel through checkpoints, go when the file goes, and no reader minds them.
A skip adds the file again as it is, with ``dataChange`` false and these tags:

- ``lakelog.skip``: JSON of ``reason``, ``operation``, ``skippedAt``, ``retryAfter`` (milliseconds)
  and ``count``, as specification 001, 3.6 has them. The file stays in the table; until
  ``retryAfter`` compaction leaves it alone, then it tries again, and counts on.
- ``lakelog.compacted``: the size that was aimed at. Compacted files are rewritten again only
  together with others that are not, or to another, larger size: so that a second run finds nothing.

Pure.

Source: Delta protocol, Add File and Remove File (``tags``).
"""

from __future__ import annotations

import orjson
import polars as pl

SKIP, COMPACTED = "lakelog.skip", "lakelog.compacted"
OPERATION = "compact"
_MAP = pl.Map(pl.String, pl.String)
_LONGEST_REASON = 500


def with_marks(files: pl.DataFrame) -> pl.DataFrame:
    """Files with what their tags say."""
    skip = pl.col("tags").map.get(SKIP)
    number = {"retryAfter": "retryAfter", "count": "skipCount"}
    told = [
        skip.str.extract(rf'"{key}"\s*:\s*(\d{{1,18}})').cast(pl.Int64).fill_null(0).alias(name)
        for key, name in number.items()
    ]
    compacted = pl.col("tags").map.get(COMPACTED).cast(pl.Int64, strict=False).fill_null(0)
    return files.with_columns(compacted.alias("compactedTo"), *told)


def skipped(
    files: pl.DataFrame, reasons: pl.DataFrame, now_ms: int, cooldown_ms: int
) -> pl.DataFrame:
    """Files as they are added again once they could not be read."""
    why = dict(zip(reasons["path"], reasons["reason"], strict=True))
    tags = []
    for path, before, count in files.select("path", "tags", "skipCount").iter_rows():
        record = {
            "reason": why[path][:_LONGEST_REASON],
            "operation": OPERATION,
            "skippedAt": now_ms,
            "retryAfter": now_ms + cooldown_ms,
            "count": count + 1,
        }
        tags.append({**(before or {}), SKIP: orjson.dumps(record).decode()})
    return files.drop("compactedTo", "retryAfter", "skipCount").with_columns(
        pl.Series("tags", tags, dtype=_MAP)
    )
