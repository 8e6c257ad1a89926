"""Compares two sets of actions by digest, lists their differences, and checks written files.

Two checkpoints of one state are equal if their actions agree in every column that both contain:

- All columns that the layout writes are compared. A ``remove`` of Delta has neither statistics nor
  tags. Of ``extra``, Delta's layouts contain only ``deletionVector.maxRowIndex``.
- Statistics are compared as the committed text if both contain it, as typed values under the
  table's schema if a checkpoint has only those, and not at all if a checkpoint has neither.
- ``dataChange`` is false in every action. The origin of an action is compared only if the layout
  contains it (flattened Parquet has ``version`` and ``position``).

Source: Delta protocol, Checkpoints; Action Reconciliation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from lakelog.dialects.base import Dialect
from lakelog.dialects.digest import Digest, digest, kept_columns, row_hashes
from lakelog.dialects.log_content import (
    CHECKPOINT_META,
    NOT_IN_REMOVES,
    STRUCT_STATISTICS,
    CheckpointPlan,
    statistics_text,
)
from lakelog.dialects.parquet_footers import child_type
from lakelog.errors import CheckpointValidationError
from lakelog.lazy import cached_property
from lakelog.log.replay import last_of
from lakelog.model import actions, contract
from lakelog.model.metadata import canonical_json
from lakelog.skipping.statistics import (
    stats_from_either,
    stats_from_json,
    stats_text_from_struct,
)
from lakelog.storage import LogStore

TYPED = ("numRecords", "tightBounds", "min", "max", "nullCount")
"""Columns under which typed statistics are compared."""

COPIES_DIFFER = "typed statistics differ from the JSON statistics"
"""The problem of a file whose two forms of statistics differ."""

_FEATURES = ("readerFeatures", "writerFeatures")
_SAMPLE_ROWS = 2_048
_PARQUET_MAGIC = b"PAR1"
_TYPED_PREFIX = "typed "
_MAX_ROW_INDEX = "deletionVector.maxRowIndex"

Frames = Callable[[], Iterable[pl.DataFrame]]


@dataclass(frozen=True)
class Comparison:
    """The columns to compare, and their canonical form. `typed`: statistics are compared typed,
    limited to the fields of `kept`; `tombstone`: the compared columns of tombstones; `empty_tags`:
    empty tags differ from none; `alike`: spellings that the dialect's readers treat as equal are
    equal.
    """

    dialect: Dialect
    columns: tuple[str, ...]
    schema: contract.Struct
    mapping: str = "none"
    typed: bool = False
    kept: pl.DataType | None = None
    tombstone: tuple[str, ...] | None = None
    empty_tags: bool = True
    alike: bool = False

    @staticmethod
    def of(plan: CheckpointPlan, dialect: Dialect, columns: Sequence[str]) -> Comparison:
        """The comparison of the rows given to a plan's writer with the rows that it wrote."""
        wanted = dict.fromkeys(columns)
        typed = False
        if not dialect.map_statistics:
            typed = plan.stats_as_struct and not plan.stats_as_json
            for column in ("stats", STRUCT_STATISTICS):
                wanted.pop(column, None)
            if plan.stats_as_json or typed:
                wanted["stats"] = None
            if typed:
                wanted[STRUCT_STATISTICS] = None
        return Comparison(dialect, tuple(wanted), plan.schema, plan.mapping, typed)

    def limited_to(self, type_: pa.DataType | None) -> Comparison:
        """The same, with typed statistics limited to the fields of this struct type."""
        if not self.typed or type_ is None:
            return self
        return replace(self, kept=pl.Series(pa.array([], type=type_)).dtype)

    @cached_property
    def counted(self) -> Mapping[str, tuple[str, ...]]:
        """Columns to compare, by action type, for `digest`."""
        found: dict[str, tuple[str, ...]] = {}
        keeps_all = self.dialect.checkpoints_keep_all_fields
        for kind in actions.FILE_ACTIONS:
            names = dict.fromkeys(c for c in self.columns if c != STRUCT_STATISTICS)
            if not keeps_all and kind == "remove":
                names = {c: None for c in names if c not in NOT_IN_REMOVES}
            elif self.typed:
                names.pop("stats", None)
                names |= dict.fromkeys(_TYPED_PREFIX + column for column in TYPED)
            if not keeps_all:
                names.pop("extra", None)
                names[_MAX_ROW_INDEX] = None
            found[kind] = tuple(names)
        if self.tombstone is not None:
            found["remove"] = self.tombstone
        for kind in CHECKPOINT_META:
            kept = kept_columns(kind)
            found[kind] = tuple(sorted(kept | {"extra"} if keeps_all else kept))
        return found

    def digest(self, frame: pl.DataFrame) -> Digest:
        """The digest of rows of one kind, or of non-file actions."""
        return digest(self.prepared(frame), self.counted)

    def prepared(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows with derived columns; file actions must be of one kind."""
        if not frame.height:
            return frame
        kind = frame["actionType"][0]
        if self.alike:
            # Another writer may space the JSON of a schema, and order features, in another way.
            frame = with_sorted_json(self.dialect.comparable(frame), "schemaString")
            features = [name for name in _FEATURES if name in frame.columns]
            frame = frame.with_columns(pl.col(features).list.unique().list.sort())
        if self.dialect.map_statistics:
            return frame
        made = _max_row_index(frame) if kind in actions.FILE_ACTIONS else []
        if kind == "add" and self.typed:
            made += self._typed(frame)
        elif kind == "add" and STRUCT_STATISTICS in frame.columns:
            made.append(statistics_text(frame))
        if not self.empty_tags and "tags" in frame.columns:
            made.append(_without_empty(frame["tags"]))
        return frame.with_columns(made) if made else frame

    def _typed(self, frame: pl.DataFrame) -> list[pl.Series]:
        """Statistics under the table's schema: from the struct if present, else from the text."""
        texts = actions.conform(frame, ("stats",)).to_series()
        if STRUCT_STATISTICS not in frame.columns:
            found = stats_from_json(texts, self.schema, mapping=self.mapping)
        else:
            structs = frame[STRUCT_STATISTICS]
            found = stats_from_either(structs, texts, self.schema, mapping=self.mapping)
        named = [found[column].alias(_TYPED_PREFIX + column) for column in TYPED]
        if self._places is None:
            return named
        return [_limited(*both) for both in zip(named, self._places, strict=True)]

    @cached_property
    def _places(self) -> list[pl.Series] | None:
        """Typed statistics of one row with every field of `kept`; None if nothing is omitted."""
        if self.kept is None:
            return None
        there = pl.DataFrame([_one_of_each(self.kept).alias(STRUCT_STATISTICS)])
        return replace(self, kept=None)._typed(there)  # noqa: SLF001 - of the same class

    def typed_copies_differ(self, frame: pl.DataFrame) -> bool:
        """Whether typed statistics of adds differ from their text, which may be less exact."""
        structs = frame[STRUCT_STATISTICS]
        is_same = stats_text_from_struct(structs).eq_missing(frame["stats"])
        sample = frame.filter(structs.is_not_null() & ~is_same)
        own = replace(self, kept=sample.schema[STRUCT_STATISTICS])
        both = [
            pl.DataFrame([sample["actionType"], *own._typed(form)])  # noqa: SLF001 - the same
            for form in (sample.drop("stats"), sample.drop(STRUCT_STATISTICS))
        ]
        counted = [_TYPED_PREFIX + column for column in TYPED]
        return digest(both[0], counted) != digest(both[1], counted)


def _one_of_each(dtype: pl.DataType) -> pl.Series:
    """One non-null value of a type."""
    if isinstance(dtype, pl.Struct):
        fields = [_one_of_each(cast("pl.DataType", f.dtype)).alias(f.name) for f in dtype.fields]
        return pl.DataFrame(fields).to_struct()
    if dtype == pl.String:
        return pl.Series([""])
    return pl.Series([0], dtype=pl.Int32).cast(dtype)


def _limited(values: pl.Series, there: pl.Series) -> pl.Series:
    """Values without the leaves that are null in the one value of `there`."""
    if isinstance(values.dtype, pl.Struct):
        fields = zip(values.struct.unnest(), there.struct.unnest(), strict=True)
        kept = [_limited(*both) for both in fields]
        return pl.DataFrame(kept).to_struct(values.name) if kept else values
    if there[0] is not None:
        return values
    return pl.Series(values.name, [None], values.dtype).new_from_index(0, values.len())


def with_sorted_json(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """The rows with equal texts for equal JSON in a column, if they have it."""
    if column not in frame.columns:
        return frame
    texts = frame[column]
    known = texts.unique().drop_nulls().to_list()
    return frame.with_columns(texts.replace(known, list(map(canonical_json, known))))


def _without_empty(maps: pl.Series) -> pl.Series:
    frame = maps.to_frame()
    return frame.select(pl.when(pl.col(maps.name).map.len() > 0).then(maps.name)).to_series()


def with_protocol(meta: pl.DataFrame, default: tuple[int, int] | None) -> pl.DataFrame:
    """Non-file actions, with the default protocol if the log has none."""
    if default is None or last_of(meta, "protocol").height:
        return meta
    names = ("actionType", "minReaderVersion", "minWriterVersion")
    schema = actions.schema()
    values: tuple[Any, ...] = ("protocol", *default)
    row = pl.DataFrame(
        [pl.Series(n, [v], dtype=schema[n]) for n, v in zip(names, values, strict=True)]
    )
    return actions.concat([row, meta])


def _max_row_index(frame: pl.DataFrame) -> list[pl.Series]:
    """The field of ``extra`` that Delta's checkpoints contain; empty if no row has it."""
    if "extra" not in frame.columns:
        return []
    texts = frame["extra"]
    named = texts.str.contains('"maxRowIndex"', literal=True).fill_null(value=False)
    if not named.any():
        return []
    found = texts.set(~named, None).str.json_path_match(f"$.{_MAX_ROW_INDEX}")
    return [found.cast(pl.Int64, strict=False).alias(_MAX_ROW_INDEX)]


def find_differences(
    comparison: Comparison, expected: Frames, found: Frames, most: int = 100
) -> pl.DataFrame:
    """File actions that only one side has. Memory: eight bytes per row of both."""
    sides = {"missing": (expected, found), "unexpected": (found, expected)}
    hashes = {id(frames): _all_hashes(comparison, frames) for frames in (expected, found)}
    rows: list[pl.DataFrame] = []
    left = most
    for side, (own, other) in sides.items():
        for kind, frame in _by_kind(own()):
            if left <= 0:
                break
            theirs = hashes[id(other)].get(kind, pl.Series(dtype=pl.UInt64))
            alone = frame.filter(~_hashed(comparison, frame, kind).is_in(theirs.implode()))
            alone = actions.conform(alone.head(left), ("actionType", "path", "dvId"))
            rows.append(alone.select(pl.lit(side).alias("side"), pl.all()))
            left -= alone.height
    return pl.concat([_NO_DIFFERENCES, *rows])


_NO_DIFFERENCES = pl.DataFrame(
    schema={"side": pl.String, "actionType": pl.String, "path": pl.String, "dvId": pl.String}
)


def no_differences() -> pl.DataFrame:
    """The empty result of `find_differences`."""
    return _NO_DIFFERENCES.clone()


def _all_hashes(comparison: Comparison, frames: Frames) -> Mapping[str, pl.Series]:
    found: dict[str, list[pl.Series]] = {}
    for kind, frame in _by_kind(frames()):
        found.setdefault(kind, []).append(_hashed(comparison, frame, kind))
    return {kind: pl.concat(parts) for kind, parts in found.items()}


def _hashed(comparison: Comparison, frame: pl.DataFrame, kind: str) -> pl.Series:
    return row_hashes(comparison.prepared(frame), kind, comparison.counted[kind])["high"]


def _by_kind(frames: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
    for frame in frames:
        if frame.height:
            yield frame["actionType"][0], frame


def differs_from_replay(
    what: str, path: str, version: int, expected: object = None, found: object = None
) -> CheckpointValidationError:
    """The error for a written checkpoint that is not published."""
    return CheckpointValidationError(
        f"the checkpoint that was just written differs from replay: {what}",
        path=path,
        version=version,
        expected=expected,
        found=found,
        hint="nothing was published, and the previous checkpoint is unchanged; report a bug",
    )


class FileCheck(NamedTuple):
    """A check of a Parquet file: uncompressed bytes, problem (or empty), expected and found."""

    plain_bytes: int = 0
    problem: str = ""
    expected: str | None = None
    found: str | None = None


def check_written_file(
    store: LogStore, path: str, size_bytes: int, rows: int, comparison: Comparison
) -> FileCheck:
    """Compare the footer's row count, and sampled typed statistics with their text. The footer is
    read independently of the row reader, so that an error of that reader cannot hide one of the
    writer.
    """
    with store.open(path, size_bytes) as source:
        if source.read(len(_PARQUET_MAGIC)) != _PARQUET_MAGIC:
            return FileCheck()
        file = pq.ParquetFile(source, page_checksum_verification=True)
        differ = any(map(comparison.typed_copies_differ, _sample_statistics(file)))
    footer = file.metadata
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    plain = sum(group.total_byte_size for group in groups)
    if footer.num_rows != rows:
        what = "a file does not contain the rows that were written to it"
        return FileCheck(plain, what, f"{rows} rows", f"{footer.num_rows} rows")
    if differ:
        return FileCheck(plain, COPIES_DIFFER)
    return FileCheck(plain)


def _sample_statistics(file: pq.ParquetFile) -> Iterator[pl.DataFrame]:
    """Both forms of statistics for some rows of the first, middle and last row group."""
    leaves = ("stats", STRUCT_STATISTICS)
    if any(child_type(file.schema_arrow, "add", leaf) is None for leaf in leaves):
        return
    last = file.num_row_groups - 1
    for group in sorted({0, last // 2, last}) if last >= 0 else ():
        rows = file.iter_batches(
            _SAMPLE_ROWS, row_groups=[group], columns=[f"add.{leaf}" for leaf in leaves]
        )
        for batch in islice(rows, 1):
            adds = batch.column(0).filter(batch.column(0).is_valid())
            fields = dict(zip((f.name for f in adds.type), adds.flatten(), strict=True))
            yield pl.DataFrame(
                [
                    pl.Series("actionType", ["add"] * len(adds)),
                    *(pl.Series(leaf, fields[leaf]) for leaf in leaves),
                ]
            )
