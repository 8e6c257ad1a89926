"""Fingerprints of answers: a ratio is printed only for equal answers.

An answer is a flat mapping from a name to a number or text; two contenders must agree on every
name that both give. Fingerprints do not depend on the order of rows. They are
computed after time and memory were measured.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

Answer = dict[str, int | float | str]


class WrongAnswerError(Exception):
    """Two contenders disagree, or one disagrees with what the generator wrote."""


def of_files(frame: pl.DataFrame, prefix: str = "files") -> Answer:
    """Count, bytes and a hash over path, size, time and partition values of `frame`'s rows.

    Args:
        frame: Columns path, size and, if requested, modificationTime, date and region (text).
        prefix: ``files`` for live files, ``adds`` for unreplayed add actions.
    """
    size = {"files": "bytes", "adds": "add_bytes"}[prefix]
    return {
        prefix: frame.height,
        size: int(frame["size"].sum()),
        f"{prefix}_paths": hash_rows(frame.select("path")),
        f"{prefix}_rows": hash_rows(frame),
    }


def of_stats(frame: pl.DataFrame) -> Answer:
    """Sums and a hash over numRecords, min, max and nullCount, with the types of the schema."""
    low, high, nulls = (frame[c].struct for c in ("min", "max", "nullCount"))
    names = pl.DataFrame({"low": low.field("name"), "high": high.field("name")})
    return {
        "records": int(frame["numRecords"].sum()),
        "id_bounds": int(low.field("id").sum()) + int(high.field("id").sum()),
        "price_bounds": float(low.field("price").sum()) + float(high.field("price").sum()),
        "quantity_bounds": int(low.field("quantity").cast(pl.Int64).sum()),
        "ts_bounds": sum(_microseconds(side.field("ts")) for side in (low, high)),
        "nulls": sum(int(nulls.field(c).sum()) for c in ("id", "name", "ts", "price", "quantity")),
        "name_bounds": hash_rows(names),
    }


def of_history(versions: pl.Series, operations: pl.Series, engines: pl.Series) -> Answer:
    """The commits of a history: version, operation and engine of each."""
    frame = pl.DataFrame(
        {"version": versions.cast(pl.Int64), "operation": operations, "engine": engines}
    )
    return {"commits": frame.height, "history_rows": hash_rows(frame)}


def hash_rows(frame: pl.DataFrame) -> str:
    """A hash of the rows as a bag: 64-bit row hashes, halves summed, columns in name order."""
    hashes = frame.select(sorted(frame.columns)).hash_rows(seed=7)
    low, high = hashes & 0xFFFF_FFFF, hashes // 2**32
    return f"{int(high.sum()):x}-{int(low.sum()):x}"


def check(answers: Iterable[tuple[str, Answer]]) -> None:
    """Compare named answers.

    Raises:
        WrongAnswerError: Two of them give different values for one name.
    """
    seen: dict[str, tuple[str, int | float | str]] = {}
    for contender, answer in answers:
        for name, value in answer.items():
            first, expected = seen.setdefault(name, (contender, value))
            if value != expected:
                raise WrongAnswerError(f"{name}: {contender} says {value}, {first} says {expected}")


def _microseconds(times: pl.Series) -> int:
    """The sum of `times` since 2024; a million of them do not overflow."""
    return int((times.dt.epoch("us") - 1_704_067_200_000_000).sum())
