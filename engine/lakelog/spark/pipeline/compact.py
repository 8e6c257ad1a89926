"""The step ``compact``: merges small files by partition.

Delta has no action for skipped files (IndexTables: ``mergeskip``), and metadata domains are a
feature that a table may lack, written whole at every change. Tags are part of every file's action,
in every table: they travel through checkpoints, go when the file goes, and no reader minds them.
A skip adds the file again as it is, with ``dataChange`` false and these tags:

- ``lakelog.skip``: JSON of ``reason``, ``operation``, ``skippedAt``, ``retryAfter`` (milliseconds)
  and ``count``, as specification 001, 3.6 has them. The file stays in the table; until
  ``retryAfter`` compaction leaves it alone, then it tries again, and counts on.
- ``lakelog.compacted``: the size that was aimed at. Compacted files are rewritten again only
  together with others that are not, or to another, larger size: so that a second run finds nothing.

Candidates are small files, and files with a large share of deleted rows. Within a partition they
are grouped in order of age, so that rows of similar age stay together. A bin is rewritten if this
reduces the number of files or removes deleted rows. A bin of compacted files only is not
rewritten; otherwise no run would find its work done.

The driver plans one commit at a time from the latest version. Executors rewrite the bins, and the
driver commits the new files with ``dataChange`` false, as Delta's OPTIMIZE does. It repeats this
until no candidate is left. A killed run leaves complete commits, and files that no commit names,
which vacuum deletes; the next run plans from the latest version.

If another commit removed files of a bin, the bin is dropped and its new files are deleted. The
other bins are committed after that commit; the dropped ones are planned again.

Source: Delta protocol, Add File and Remove File (``tags``). Delta protocol, Add File and Remove
File (``dataChange``); Delta's OPTIMIZE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl
import pyarrow as pa

from lakelog.data.files import FILE_COLUMNS, ReadPlan, pack
from lakelog.data.write import WritePlan
from lakelog.errors import (
    ConflictError,
    LakelogError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedFeatureError,
)
from lakelog.model import contract
from lakelog.model.durations import to_duration_ms
from lakelog.model.metadata import honoured_mapping, is_on
from lakelog.snapshot import Snapshot
from lakelog.spark.pipeline.rewrite import REWRITTEN_SCHEMA, Rewriter
from lakelog.spark.pipeline.steps import Compact, Status, StepReport, to_bytes
from lakelog.spark.reading import serialize_frame, unpack
from lakelog.spark.task_commit import discard
from lakelog.table import Table
from lakelog.transaction.row_tracking import ENABLED

if TYPE_CHECKING:
    from lakelog.telemetry import Progress


SKIP, COMPACTED = "lakelog.skip", "lakelog.compacted"
_OPERATION = "compact"
_MAP = pl.Map(pl.String, pl.String)
_LONGEST_REASON = 500


def with_marks(files: pl.DataFrame) -> pl.DataFrame:
    """Files with what their tags say."""
    skip = pl.col("tags").map.get(SKIP)
    number = {"retryAfter": "retryAfter", "count": "skipCount"}
    recorded = [
        skip.str.extract(rf'"{key}"\s*:\s*(\d{{1,18}})').cast(pl.Int64).fill_null(0).alias(name)
        for key, name in number.items()
    ]
    compacted = pl.col("tags").map.get(COMPACTED).cast(pl.Int64, strict=False).fill_null(0)
    return files.with_columns(compacted.alias("compactedTo"), *recorded)


def skipped(
    files: pl.DataFrame, reasons: pl.DataFrame, now_ms: int, cooldown_ms: int
) -> pl.DataFrame:
    """Files as they are added again once they could not be read."""
    why = dict(zip(reasons["path"], reasons["reason"], strict=True))
    tags = []
    for path, before, count in files.select("path", "tags", "skipCount").iter_rows():
        record = {
            "reason": why[path][:_LONGEST_REASON],
            "operation": _OPERATION,
            "skippedAt": now_ms,
            "retryAfter": now_ms + cooldown_ms,
            "count": count + 1,
        }
        tags.append({**(before or {}), SKIP: orjson.dumps(record).decode()})
    return files.drop("compactedTo", "retryAfter", "skipCount").with_columns(
        pl.Series("tags", tags, dtype=_MAP)
    )


_BIN = "bin"
_PARTITION = "\x00partition"  # no column has this name
_DELETED = "\x00deleted"


@dataclass(frozen=True)
class Sizes:
    """Target size of compacted files, the size below which files are small, and the share of
    deleted rows that makes a larger file a candidate.
    """

    target_bytes: int
    small_bytes: int
    deleted_share: float


def find_bins(
    files: pl.DataFrame, keys: tuple[str, ...], sizes: Sizes, now_ms: int
) -> pl.DataFrame:
    """The files to rewrite, with their bins."""
    share = pl.col("dvCardinality").fill_null(0) / pl.col("numRecords")
    # An unknown row count may hide any share of deleted rows.
    deleted = pl.col("dvStorageType").is_not_null() & (
        share.fill_null(1.0).fill_nan(1.0) > sizes.deleted_share
    )
    found = files.with_columns(deleted.alias(_DELETED)).filter(
        pl.col("retryAfter") <= now_ms,
        (pl.col("size") < sizes.small_bytes) | pl.col(_DELETED),
    )
    values = [
        pl.col("partitionValues").map.get(key).replace("", None).alias(str(number))
        for number, key in enumerate(keys)
    ]
    partition = pl.struct(values).rank("dense") if values else pl.lit(0)
    found = found.with_columns(partition.cast(pl.UInt32).alias(_PARTITION))
    fresh = pl.col("compactedTo") < sizes.target_bytes
    # Most partitions need no work; this check is cheap.
    found = found.filter(_worth(fresh, _PARTITION)).sort(_PARTITION, "modificationTime", "path")
    if not found.height:
        return found.drop(_DELETED, _PARTITION).with_columns(pl.lit(0, pl.UInt32).alias(_BIN))
    packed, begin = [], 0
    for part in found.partition_by(_PARTITION, maintain_order=True):
        bins = pack(part["size"], target_bytes=sizes.target_bytes, open_cost_bytes=0) + begin
        begin = int(bins[-1]) + 1
        packed.append(bins)
    found = found.with_columns(pl.concat(packed).alias(_BIN))
    worth = found.filter(_worth(fresh, _BIN)).drop(_PARTITION, _DELETED)
    return worth.with_columns((pl.col(_BIN).rank("dense") - 1).cast(pl.UInt32))


def _worth(fresh: pl.Expr, group: str) -> pl.Expr:
    """Whether rewriting the group may reduce its files or remove deleted rows."""
    fewer = (pl.len().over(group) > 1) & fresh.any().over(group)
    return fewer | pl.col(_DELETED).any().over(group)


def first_bins(bins: pl.DataFrame, commit_bytes: int) -> pl.DataFrame:
    """The bins of the next commit: about `commit_bytes` bytes, and at least one bin."""
    sizes = bins["size"].fill_null(0)
    begin = bins.select(_BIN, begin=sizes.cum_sum() - sizes)
    return bins.filter(begin.select(pl.col("begin").first().over(_BIN) < commit_bytes).to_series())


STEP = "compact"
_FRUITLESS_ROUNDS = 5
_ATTEMPTS = 20
_SHOWN = 5

_PARAMETERS = {"predicate": [], "zOrderBy": [], "clusterBy": [], "auto": False}


@dataclass
class _Total:
    """The results of the rounds so far, and the version at which the first one started."""

    begin: int | None = None
    rows: int = 0
    files: int = 0
    bytes: int = 0
    removed: int = 0
    skips: dict[str, str] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    commits: int = 0


@dataclass(frozen=True)
class _Round:
    """The bins of one commit: the planned files (with ``bin``), new files, unreadable files, and
    the rows to commit.
    """

    snapshot: Snapshot
    files: pl.DataFrame
    adds: pl.DataFrame
    unread: pl.DataFrame
    rows: Mapping[int, int]

    @property
    def gone(self) -> pl.DataFrame:
        """The files that new ones replace."""
        read = self.files.filter(~pl.col("path").is_in(self.unread["path"].implode()))
        return read.filter(pl.col(_BIN).is_in(list(self.rows)))

    @property
    def new(self) -> pl.DataFrame:
        """The new files to commit."""
        return self.adds.filter(pl.col(_BIN).is_in(list(self.rows)))

    @property
    def marked(self) -> pl.DataFrame:
        """The files that are skipped for a cooldown."""
        lasting = self.unread.filter("lasting")
        return self.files.filter(pl.col("path").is_in(lasting["path"].implode()))

    def without(self, bins: pl.Series) -> _Round:
        """The round without some bins."""
        lost = set(bins.to_list())
        files = self.files.filter(~pl.col(_BIN).is_in(bins.implode()))
        adds = self.adds.filter(~pl.col(_BIN).is_in(bins.implode()))
        rows = {number: rows for number, rows in self.rows.items() if number not in lost}
        unread = self.unread.filter(pl.col("path").is_in(files["path"].implode()))
        return replace(self, files=files, adds=adds, unread=unread, rows=rows)


def compact(
    spark: Any,
    table: Table,
    step: Compact,
    storage_options: Mapping[str, Any],
    progress: Progress | None = None,
) -> StepReport:
    """Rewrite the small files until no candidate is left. Memory: the live files on the driver; a
    reader and a writer per task.
    """
    total = _Total()
    wanted = None if step.target_bytes is None else to_bytes(step.target_bytes)
    commit_bytes, cooldown_ms = to_bytes(step.commit_bytes), to_duration_ms(step.cooldown)
    status: Status = "done"
    fruitless = 0
    expected = 0
    while True:
        snapshot = table.snapshot()
        _require_compactable(snapshot)
        target = WritePlan.of(
            snapshot, storage_options, target_file_bytes=wanted, data_change=False
        )
        bins = _planned(snapshot, step, target.target_file_bytes, table.log.clock(), total)
        if not bins.height:
            break
        expected = max(expected, total.removed + bins.height)
        chosen = first_bins(bins, commit_bytes)
        source = ReadPlan.of(snapshot, storage_options=storage_options)
        made = _rewritten(spark, Rewriter(source, target), snapshot, chosen)
        before = (total.commits, len(total.left))
        _committed(table, made, target.target_file_bytes, cooldown_ms, total)
        fruitless = 0 if (total.commits, len(total.left)) != before else fruitless + 1
        if progress is not None:
            progress(STEP, total.removed, expected)
        if fruitless == _FRUITLESS_ROUNDS:
            status = "incomplete"
            break
    if total.left:
        status = "incomplete"
    return StepReport(
        STEP,
        "nothing to do" if status == "done" and not total.commits else status,
        rows=total.rows,
        files=total.files,
        bytes=total.bytes,
        removed=total.removed,
        skips=len(total.skips),
        version=table.version(),
        notes=_notes(total, overtaken=fruitless == _FRUITLESS_ROUNDS),
    )


def _notes(total: _Total, *, overtaken: bool) -> tuple[str, ...]:
    notes = [f"{path}: {reason}" for path, reason in list(total.skips.items())[:_SHOWN]]
    if len(total.skips) > _SHOWN:
        notes.append(f"and {len(total.skips) - _SHOWN} more skipped files")
    if overtaken:
        notes.append("other writers kept changing the remaining files; the next run continues")
    return tuple(notes)


def _require_compactable(snapshot: Snapshot) -> None:
    if is_on(snapshot.metadata.configuration, ENABLED):
        raise UnsupportedFeatureError(
            "the table has row tracking, and rewritten rows would lose their row ids",
            path=snapshot.path,
            version=snapshot.version,
            expected=f"{ENABLED} false",
            found="rowTracking",
            hint="compact it with an engine that preserves row ids",
        )


def _planned(
    snapshot: Snapshot, step: Compact, target_bytes: int, now_ms: int, total: _Total
) -> pl.DataFrame:
    metadata = snapshot.metadata
    counts = snapshot.files(step.where, stats=True).select("path", "numRecords").unique("path")
    joined = snapshot.files(step.where).join(counts, on="path", how="left", maintain_order="left")
    files = with_marks(joined.collect())
    if total.begin is None:
        total.begin = snapshot.version
    # New files are left for the next run: otherwise a busy table would keep this run from ending.
    theirs = (pl.col("compactedTo") < target_bytes) | pl.col("dvStorageType").is_not_null()
    files = files.filter(~(theirs & (pl.col("version") > total.begin)).fill_null(value=False))
    if total.left:
        files = files.filter(~pl.col("path").is_in(list(total.left)))
    fields = {f.name: f for f in metadata.schema.fields}
    mapping = honoured_mapping(snapshot.protocol, metadata)
    keys = tuple(
        contract.physical_name(fields[name], mapping) for name in metadata.partition_columns
    )
    small = max(1, target_bytes * 3 // 4)
    if step.small_bytes is not None:
        small = to_bytes(step.small_bytes)
    sizes = Sizes(target_bytes, small, step.deleted_share)
    return find_bins(files, keys, sizes, now_ms)


def _rewritten(spark: Any, rewriter: Rewriter, snapshot: Snapshot, files: pl.DataFrame) -> _Round:
    """Run the rewrite on executors with one Spark action: a second action would repeat it."""
    parts = files.partition_by(_BIN, maintain_order=True)
    work = pa.table(
        {
            _BIN: pa.array([int(part[_BIN][0]) for part in parts], pa.int32()),
            "files": pa.array(
                [serialize_frame(part.select(FILE_COLUMNS)) for part in parts], pa.binary()
            ),
        }
    )
    order = pa.array(range(len(parts)), pa.int32())
    frame = spark.createDataFrame(work.append_column("part", order))
    dealt = frame.repartitionById(len(parts), "part").drop("part")
    answers = dealt.mapInArrow(rewriter, REWRITTEN_SCHEMA).toArrow().to_pylist()
    done = [answer for answer in answers if answer["done"]]
    adds = [
        unpack(answer["adds"]).with_columns(pl.lit(answer[_BIN], pl.UInt32).alias(_BIN))
        for answer in done
    ]
    made = _Round(
        snapshot,
        files,
        pl.concat(adds) if adds else _no_adds(),
        pl.concat([unpack(answer["unread"]) for answer in answers]),
        {answer[_BIN]: answer["rows"] for answer in done},
    )
    return _counted(made)


def _counted(made: _Round) -> _Round:
    """The round; bins whose row count differs from the log count as unread, because committing them
    could lose rows.
    """
    left = pl.col("numRecords") - pl.col("dvCardinality").fill_null(0)
    recorded = made.gone.group_by(_BIN).agg(
        pl.when(left.is_null().any()).then(None).otherwise(left.sum()).alias("told")
    )
    found = pl.DataFrame(
        {_BIN: list(made.rows), "found": list(made.rows.values())},
        schema={_BIN: pl.UInt32, "found": pl.Int64},
    )
    wrong = recorded.join(found, on=_BIN).filter(pl.col("told") != pl.col("found"))
    if not wrong.height:
        return made
    reason = pl.format("{} rows in its group of files, and {} by the statistics", "found", "told")
    unread = made.gone.join(wrong, on=_BIN).select(
        "path", reason.alias("reason"), pl.lit(value=False).alias("lasting")
    )
    rows = {n: rows for n, rows in made.rows.items() if n not in wrong[_BIN]}
    return replace(made, unread=pl.concat([made.unread, unread]), rows=rows)


def _no_adds() -> pl.DataFrame:
    return pl.DataFrame(schema={"path": pl.String, "size": pl.Int64, _BIN: pl.UInt32})


def _committed(
    table: Table, made: _Round, target_bytes: int, cooldown_ms: int, total: _Total
) -> None:
    """Commit a round, without bins of which another commit removed files."""
    left = made.unread.filter(~pl.col("lasting"))
    total.left |= set(left["path"])
    total.skips |= dict(zip(left["path"], left["reason"], strict=True))
    begin, version = made, made.snapshot.version
    for _ in range(_ATTEMPTS):
        if not made.gone.height and not made.marked.height:
            break
        try:
            _commit(table, made, version, target_bytes, cooldown_ms)
        except ConflictError:
            made, version = _still_there(table, made)
            continue
        except (OutcomeUnknownError, UnavailableError):
            raise  # the commit may still appear: nothing is deleted
        except LakelogError:
            _discard(table, begin, None)
            raise
        total.commits += 1
        total.rows += sum(made.rows.values())
        total.files += made.new.height
        total.bytes += int(made.new["size"].sum())
        total.removed += made.gone.height
        lasting = made.unread.filter("lasting")
        total.skips |= dict(zip(lasting["path"], lasting["reason"], strict=True))
        _discard(table, begin, made)
        return
    _discard(table, begin, None)


def _commit(table: Table, made: _Round, version: int, target_bytes: int, cooldown_ms: int) -> None:
    gone, new, marked = made.gone, made.new, made.marked
    with table.transaction(
        version=version,
        operation="OPTIMIZE",
        parameters=_PARAMETERS,
        metrics=_metrics(new, gone),
    ) as tx:
        if gone.height:
            tx.remove(_plain(gone), dataChange=False)
        if new.height:
            tags = {COMPACTED: str(target_bytes)}
            tx.add(new.drop(_BIN, "dataChange"), dataChange=False, tags=tags)
        if marked.height:
            reasons = made.unread.filter("lasting")
            again = skipped(
                marked.drop(_BIN, "numRecords"), reasons, table.log.clock(), cooldown_ms
            )
            tx.add(again, dataChange=False)


def _plain(files: pl.DataFrame) -> pl.DataFrame:
    return files.drop(_BIN, "numRecords", "compactedTo", "retryAfter", "skipCount")


def _still_there(table: Table, made: _Round) -> tuple[_Round, int]:
    """The bins whose files are all live and unchanged, and the version of this check."""
    now = table.snapshot()
    before = made.snapshot
    if now.metadata != before.metadata or now.protocol != before.protocol:
        return made.without(made.files[_BIN]), now.version
    live = now.files().select("path", "dvId").collect()
    lost = made.files.join(live, on=["path", "dvId"], how="anti", nulls_equal=True)
    return made.without(lost[_BIN].unique()), now.version


def _discard(table: Table, begin: _Round, kept: _Round | None) -> None:
    """Delete the new files of bins that were not committed."""
    adds = begin.adds
    if kept is not None:
        adds = adds.filter(~pl.col("path").is_in(kept.new["path"].implode()))
    if adds.height:
        discard(table, [adds], begin.snapshot.version)


def _metrics(adds: pl.DataFrame, gone: pl.DataFrame) -> dict[str, Any]:
    """Operation metrics, as Delta's OPTIMIZE reports them."""
    found = {
        "numRemovedFiles": gone.height,
        "numRemovedBytes": int(gone["size"].sum()),
        "numDeletionVectorsRemoved": gone.height - gone["dvStorageType"].null_count(),
        "numAddedFiles": adds.height,
        "numAddedBytes": int(adds["size"].sum()),
    }
    if adds.height:
        sizes = adds["size"].sort()
        for name, share in _QUANTILES.items():
            found[name] = int(sizes[min(adds.height - 1, int(share * adds.height))])
    return found


_QUANTILES = {
    "minFileSize": 0.0,
    "p25FileSize": 0.25,
    "p50FileSize": 0.5,
    "p75FileSize": 0.75,
    "maxFileSize": 1.0,
}
