"""Compaction: merges small files by partition, drops deleted rows, and sorts.

Candidates are small files, and files with a large share of deleted rows. Within a partition they
are grouped in order of age, so that rows of similar age stay together. A bin is rewritten if this
reduces the number of files or removes deleted rows. A bin of compacted files only is not
rewritten; otherwise compaction would never finish. With an order, all files of a partition that do
not have it yet are candidates, and rows are sorted within a bin.

A planner decides one commit at a time from the latest version. The caller's `RunBins` rewrites the
bins, in this process (`compact`) or in executors, and the new files are committed with
``dataChange`` false, as Delta's OPTIMIZE does. This repeats until no candidate is left. If another
commit removed files of a bin, the bin is dropped and its new files are deleted. The other bins are
committed after that commit; the dropped ones are planned again.

Delta has no action for skipped files (IndexTables: ``mergeskip``), and metadata domains are a
feature that a table may lack. Tags are part of every file's action: they are kept in checkpoints
and removed with the file, and other readers ignore them. A skip adds the file again as it is, with
``dataChange`` false and the first of these tags:

- ``lakelog.skip``: JSON of ``reason``, ``operation``, ``skippedAt``, ``retryAfter`` (milliseconds)
  and ``count``, as specification 001, 3.6 has them. The file stays in the table; compaction skips
  it until ``retryAfter``.
- ``lakelog.compacted``: the target size. Compacted files are rewritten again only together with
  others that are not, or to another, larger size.
- ``lakelog.sorted``: the order of the rows (`RowOrder.text`).

Source: Delta protocol, Add File and Remove File (``tags``, ``dataChange``); Delta's OPTIMIZE.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl

from lakelog.data.bin_rewrite import BinResult, BinRewriter, RowOrder
from lakelog.data.files import ReadPlan, pack, require_single
from lakelog.data.row_commit import discard_unnamed
from lakelog.data.targets import recorded_rows
from lakelog.data.write import WritePlan, discard
from lakelog.data.write_plan import clustering_columns
from lakelog.display import Displayed, path_text, size_text
from lakelog.errors import (
    ConflictError,
    InvalidInputError,
    LakelogError,
    LakelogWarning,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.log.context import Log
from lakelog.log.snapshot import LogSnapshot
from lakelog.model import actions, contract
from lakelog.model.column_names import struct_path
from lakelog.model.metadata import honoured_mapping
from lakelog.sql.sql_text import sql_text
from lakelog.transaction.file_rules import added_again
from lakelog.transaction.operations import CommitDescription
from lakelog.transaction.transaction import LogTransaction

if TYPE_CHECKING:
    from lakelog.telemetry import Progress


SKIP, COMPACTED, SORTED = "lakelog.skip", "lakelog.compacted", "lakelog.sorted"
_OPERATION = "compact"
_MAP = pl.Map(pl.String, pl.String)
_LONGEST_REASON = 500
_MARKS = ("compactedTo", "sortedBy", "retryAfter", "skipCount")


def with_marks(files: pl.DataFrame) -> pl.DataFrame:
    """Files with the columns `_MARKS`, from their tags."""
    skip = pl.col("tags").map.get(SKIP)
    number = {"retryAfter": "retryAfter", "count": "skipCount"}
    recorded = [
        skip.str.extract(rf'"{key}"\s*:\s*(\d{{1,18}})').cast(pl.Int64).fill_null(0).alias(name)
        for key, name in number.items()
    ]
    compacted = pl.col("tags").map.get(COMPACTED).cast(pl.Int64, strict=False).fill_null(0)
    in_order = pl.col("tags").map.get(SORTED).alias("sortedBy")
    return files.with_columns(compacted.alias("compactedTo"), in_order, *recorded)


def skipped(
    files: pl.DataFrame, reasons: pl.DataFrame, now_ms: int, cooldown_ms: int
) -> pl.DataFrame:
    """Unreadable files as they are added again, with the tag `SKIP`."""
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
    return files.drop(_MARKS, strict=False).with_columns(pl.Series("tags", tags, dtype=_MAP))


_BIN = "bin"
_PARTITION = "\x00partition"  # no column has this name
_DELETED = "\x00deleted"


@dataclass(frozen=True)
class Sizes:
    """Target size of files, the sizes and shares of deleted rows that make one a candidate."""

    target_bytes: int
    small_bytes: int
    deleted_share: float
    sort_bytes: int = 0


def find_bins(
    files: pl.DataFrame,
    keys: tuple[str, ...],
    sizes: Sizes,
    now_ms: int,
    order: RowOrder | None = None,
) -> pl.DataFrame:
    """The files to rewrite, with their bins."""
    share = pl.col("dvCardinality").fill_null(0) / pl.col("numRecords")
    # An unknown row count may hide any share of deleted rows.
    deleted = pl.col("dvStorageType").is_not_null() & (
        share.fill_null(1.0).fill_nan(1.0) > sizes.deleted_share
    )
    found = files.with_columns(deleted.alias(_DELETED)).filter(
        pl.col("retryAfter") <= now_ms,
        (pl.col("size") < sizes.small_bytes) | pl.col(_DELETED)
        if order is None
        else pl.col("sortedBy").ne_missing(order.text) | pl.col("dvStorageType").is_not_null(),
    )
    values = [
        pl.col("partitionValues").map.get(key).replace("", None).alias(str(number))
        for number, key in enumerate(keys)
    ]
    partition = pl.struct(values).rank("dense") if values else pl.lit(0)
    found = found.with_columns(partition.cast(pl.UInt32).alias(_PARTITION))
    fresh = pl.col("compactedTo") < sizes.target_bytes
    if order is None:  # a cheap check, which omits most partitions
        found = found.filter(_worth(fresh, _PARTITION))
    found = found.sort(_PARTITION, "modificationTime", "path")
    if not found.height:
        return found.drop(_DELETED, _PARTITION).with_columns(pl.lit(0, pl.UInt32).alias(_BIN))
    packed, begin = [], 0
    bin_bytes = sizes.target_bytes if order is None else max(sizes.target_bytes, sizes.sort_bytes)
    for part in found.partition_by(_PARTITION, maintain_order=True):
        bins = pack(part["size"], target_bytes=bin_bytes, open_cost_bytes=0) + begin
        begin = int(bins[-1]) + 1
        packed.append(bins)
    found = found.with_columns(pl.concat(packed).alias(_BIN))
    worth = found if order is not None else found.filter(_worth(fresh, _BIN))
    worth = worth.drop(_PARTITION, _DELETED)
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


_FRUITLESS_ROUNDS = 5
_ATTEMPTS = 20
_SHOWN = 5
_DAY_MS = 86_400_000

RunBins = Callable[[BinRewriter, Sequence[tuple[int, pl.DataFrame]]], Mapping[int, BinResult]]
"""Rewrites numbered bins of files."""

Begin = Callable[..., LogTransaction]


@dataclass(frozen=True)
class Compaction:
    """The arguments of `Table.compact`, and the bytes sorted together, and rewritten per commit."""

    target_bytes: int | None = None
    small_bytes: int | None = None
    deleted_share: float = 0.05
    where: pl.Expr | str | None = None
    cooldown_ms: int = _DAY_MS
    commit_bytes: int = 4 << 30
    sort_by: tuple[str, ...] = ()
    is_zorder: bool = False
    sort_bytes: int = 256 << 20
    storage_options: Mapping[str, Any] | None = None
    workers: int = 1
    commit: CommitDescription = field(default_factory=CommitDescription)


@dataclass(frozen=True)
class CompactReport(Displayed):
    """The result of `Table.compact`.

    Attributes:
        version: The last version that was committed; None if there was nothing to do.
        num_commits: Commits.
        num_rows: Rows that were rewritten.
        num_files: Data files that were added.
        num_bytes: Their length.
        num_removed_files: Data files that were removed.
        skipped: Files that could not be read, with the reasons; they stay in the table.
        was_overtaken: Whether other writers kept removing the files that were rewritten.
        is_complete: Whether no candidate is left but damaged files.
    """

    version: int | None
    num_commits: int
    num_rows: int
    num_files: int
    num_bytes: int
    num_removed_files: int
    skipped: Mapping[str, str]
    was_overtaken: bool
    is_complete: bool

    _title = "Compaction"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        version = "nothing to do" if self.version is None else str(self.version)
        return [
            ("version", version),
            ("commits", f"{self.num_commits:,}"),
            ("rows", f"{self.num_rows:,}"),
            ("files", f"{self.num_files:,}, {size_text(self.num_bytes)}"),
            ("removed files", f"{self.num_removed_files:,}"),
            *(("skipped", f"{path}: {reason}") for path, reason in self.skipped.items()),
            *((("left", "files that other writers kept changing"),) * self.was_overtaken),
        ]


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
    version: int | None = None


@dataclass(frozen=True)
class _Round:
    """The bins of one commit: their files, all new files, and the results of the rewrite."""

    snapshot: LogSnapshot
    order: RowOrder | None
    files: pl.DataFrame
    adds: pl.DataFrame
    unread: pl.DataFrame
    rows: Mapping[int, int]

    @property
    def removed_files(self) -> pl.DataFrame:
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
    log: Log, begin: Begin, request: Compaction, progress: Progress | None = None
) -> CompactReport:
    """Compact in this process; see `lakelog.table.Table.compact`."""

    def run(
        rewriter: BinRewriter, parts: Sequence[tuple[int, pl.DataFrame]]
    ) -> Mapping[int, BinResult]:
        done: dict[int, BinResult] = {}
        try:
            for number, files in parts:
                done[number] = rewriter.rewrite(number, files, log.store, log.clock)
        except BaseException:
            _discard_results(log, done)
            raise
        return done

    report = compact_bins(log, begin, replace(request, workers=os.cpu_count() or 1), run, progress)
    for path, reason in report.skipped.items():
        warnings.warn(f"{path} was not compacted: {reason}", LakelogWarning, stacklevel=3)
    return report


def compact_bins(
    log: Log, begin: Begin, request: Compaction, run: RunBins, progress: Progress | None = None
) -> CompactReport:
    """Rewrite the current candidates until none is left; the live files are in memory."""
    total = _Total()
    fruitless = 0
    expected = 0
    while fruitless < _FRUITLESS_ROUNDS:
        snapshot = begin(**request.commit).snapshot
        order = _row_order(snapshot, request)
        target = WritePlan.of(
            snapshot,
            request.storage_options,
            target_file_bytes=request.target_bytes,
            data_change=False,
        )
        bins = _planned(snapshot, request, order, target.target_file_bytes, log.clock(), total)
        if not bins.height:
            break
        expected = max(expected, total.removed + bins.height)
        if progress is not None:
            progress("compact", total.removed, expected)
        source = ReadPlan.of(snapshot, storage_options=request.storage_options, row_ids=True)
        copies = target.with_row_ids(source.row_ids)
        rewriter = BinRewriter(source, copies, order, request.workers)
        made = _rewritten(log, rewriter, snapshot, first_bins(bins, request.commit_bytes), run)
        before = (total.commits, len(total.left))
        _committed(log, begin, made, request, target.target_file_bytes, total)
        fruitless = 0 if (total.commits, len(total.left)) != before else fruitless + 1
        if progress is not None:
            progress("compact", total.removed, expected)
    return CompactReport(
        total.version,
        total.commits,
        total.rows,
        total.files,
        total.bytes,
        total.removed,
        total.skips,
        was_overtaken=fruitless == _FRUITLESS_ROUNDS,
        is_complete=fruitless < _FRUITLESS_ROUNDS and not total.left,
    )


def _row_order(snapshot: LogSnapshot, request: Compaction) -> RowOrder | None:
    """The requested order, by columns of the table; refuses those that rows cannot be sorted by."""
    if not request.sort_by:
        return None
    path, version = snapshot.path, snapshot.version
    found = [struct_path(snapshot.schema, given) for given in request.sort_by]
    columns = tuple(tuple(field.name for field in fields) for fields in found)
    mapping = honoured_mapping(snapshot.protocol, snapshot.metadata)
    physical = tuple(tuple(contract.physical_name(f, mapping) for f in fields) for fields in found)
    if request.is_zorder and clustering_columns(snapshot):
        raise InvalidInputError(
            "the files of a clustered table cannot be sorted along a Z-order curve",
            path=path,
            version=version,
            expected="a table that is not clustered",
            found="clustering columns",
            hint="leave zorder_by out",
        )
    names = [*map(path_text, columns)]
    if len(set(columns)) < len(columns):
        raise InvalidInputError("a column is requested twice", found=", ".join(names))
    for name, fields in zip(names, found, strict=True):
        expected, problem = "a column of the table that is not a partition column", None
        if fields[0].name in snapshot.metadata.partition_columns:
            problem = "a partition column"
        elif contract.is_nested(contract.stored(type_ := fields[-1].type)):
            expected, problem = "a column of a primitive type", contract.type_text(type_)
        if problem is not None:
            raise InvalidInputError(
                "rows cannot be sorted by this column",
                path=path,
                version=version,
                column=name,
                expected=expected,
                found=problem,
            )
    return RowOrder(columns, physical, request.is_zorder)


def _planned(
    snapshot: LogSnapshot,
    request: Compaction,
    order: RowOrder | None,
    target_bytes: int,
    now_ms: int,
    total: _Total,
) -> pl.DataFrame:
    metadata = snapshot.metadata
    counts = snapshot.files(request.where, stats=True).select("path", "numRecords").unique("path")
    joined = snapshot.files(request.where).join(
        counts, on="path", how="left", maintain_order="left"
    )
    files = with_marks(joined.collect())
    require_single(files, snapshot.version)
    if total.begin is None:
        total.begin = snapshot.version
    # New files are left to the next run; otherwise a run on a busy table would never end.
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
    if request.small_bytes is not None:
        small = request.small_bytes
    sizes = Sizes(target_bytes, small, request.deleted_share, request.sort_bytes)
    return find_bins(files, keys, sizes, now_ms, order)


def _rewritten(
    log: Log, rewriter: BinRewriter, snapshot: LogSnapshot, files: pl.DataFrame, run: RunBins
) -> _Round:
    parts = [(int(p[_BIN][0]), p) for p in files.partition_by(_BIN, maintain_order=True)]
    answers = run(rewriter, parts)
    try:
        done = {number: made for number, made in answers.items() if made.adds is not None}
        adds = [
            made.adds.with_columns(pl.lit(number, pl.UInt32).alias(_BIN))
            for number, made in done.items()
            if made.adds is not None
        ]
        made = _Round(
            snapshot,
            rewriter.order,
            files,
            pl.concat(adds) if adds else _no_adds(),
            pl.concat([made.unread for made in answers.values()]),
            {number: made.rows for number, made in done.items()},
        )
        return _counted(made)
    except BaseException:  # such as an interrupt
        _discard_results(log, answers)
        raise


def _counted(made: _Round) -> _Round:
    """The round, in which bins with another row count than the log are unread."""
    left = pl.col("numRecords")
    files = made.removed_files.select(_BIN, recorded_rows(made.removed_files).alias("numRecords"))
    recorded = files.group_by(_BIN).agg(
        pl.when(left.is_null().any()).then(None).otherwise(left.sum()).alias("recorded")
    )
    found = pl.DataFrame(
        {_BIN: list(made.rows), "found": list(made.rows.values())},
        schema={_BIN: pl.UInt32, "found": pl.Int64},
    )
    wrong = recorded.join(found, on=_BIN).filter(pl.col("recorded") != pl.col("found"))
    if not wrong.height:
        return made
    reason = pl.format("{} rows in its group of files, {} by the statistics", "found", "recorded")
    unread = made.removed_files.join(wrong, on=_BIN).select(
        "path", reason.alias("reason"), pl.lit(value=False).alias("lasting")
    )
    rows = {n: rows for n, rows in made.rows.items() if n not in wrong[_BIN]}
    return replace(made, unread=pl.concat([made.unread, unread]), rows=rows)


def _no_adds() -> pl.DataFrame:
    return pl.DataFrame(schema={"path": pl.String, "size": pl.Int64, _BIN: pl.UInt32})


def _committed(
    log: Log,
    begin: Begin,
    made: _Round,
    request: Compaction,
    target_bytes: int,
    total: _Total,
) -> None:
    """Commit a round, without bins of which another commit removed files."""
    first, version = made, made.snapshot.version
    tx: LogTransaction | None = None
    is_committed = False
    try:
        left = made.unread.filter(~pl.col("lasting"))
        total.left |= set(left["path"])
        total.skips |= dict(zip(left["path"], left["reason"], strict=True))
        for _ in range(_ATTEMPTS):
            if not made.removed_files.height and not made.marked.height:
                break
            try:
                tx = _transaction(log, begin, made, version, request, target_bytes)
                total.version = tx.commit()
            except ConflictError:
                tx = None
                made, version = _still_there(begin, made)
                continue
            is_committed = True
            break
    except BaseException as error:  # such as an interrupt
        is_known = isinstance(error, LakelogError)
        may_appear = not is_known or isinstance(error, OutcomeUnknownError | UnavailableError)
        if tx is None or not may_appear:
            _discard(log, first, None)
        raise
    if is_committed:
        total.commits += 1
        total.rows += sum(made.rows.values())
        total.files += made.new.height
        total.bytes += int(made.new["size"].sum())
        total.removed += made.removed_files.height
        lasting = made.unread.filter("lasting")
        total.skips |= dict(zip(lasting["path"], lasting["reason"], strict=True))
    _discard(log, first, made if is_committed else None)


def _transaction(
    log: Log,
    begin: Begin,
    made: _Round,
    version: int,
    request: Compaction,
    target_bytes: int,
) -> LogTransaction:
    """The transaction of a round, before its commit."""
    removed_files, new, marked = made.removed_files, made.new, made.marked
    order = made.order
    predicate = None if request.where is None else sql_text(request.where)
    parameters = {
        "predicate": [] if predicate is None else [predicate],
        "zOrderBy": [*map(path_text, order.columns)] if order and order.is_zorder else [],
        "clusterBy": [],
        "auto": False,
    }
    tags = {COMPACTED: str(target_bytes)}
    if order is not None:
        tags[SORTED] = order.text
    tx = begin(
        **{"operation": "OPTIMIZE", **request.commit},
        version=version,
        parameters=parameters,
        metrics=_metrics(new, removed_files),
    )
    if removed_files.height:
        tx.remove(_plain(removed_files), dataChange=False)
        tx.declare_row_ids_kept(removed_files["path"].to_list())
    if new.height:
        tx.add(new.drop(_BIN, "dataChange"), dataChange=False, tags=tags)
    if marked.height:
        reasons = made.unread.filter("lasting")
        again = skipped(marked.drop(_BIN, "numRecords"), reasons, log.clock(), request.cooldown_ms)
        tx.add(added_again(again, made.snapshot.table_configuration), dataChange=False)
    return tx


def _plain(files: pl.DataFrame) -> pl.DataFrame:
    return files.drop(_BIN, "numRecords", *_MARKS)


def _still_there(begin: Begin, made: _Round) -> tuple[_Round, int]:
    """The bins whose files are all live and unchanged, and the version of this check."""
    now = begin().snapshot
    before = made.snapshot
    if now.metadata != before.metadata or now.protocol != before.protocol:
        return made.without(made.files[_BIN]), now.version
    live = now.files().select(*actions.KEY, *actions.ROW_IDS).collect()
    lost = made.files.join(live, on=actions.KEY, how="anti", nulls_equal=True)
    left = made.without(lost[_BIN].unique())
    # A file may have been added again with row ids.
    files = left.files.drop(actions.ROW_IDS).join(
        live, on=actions.KEY, how="left", nulls_equal=True, maintain_order="left"
    )
    return replace(left, files=files.select(made.files.columns)), now.version


def _discard_results(log: Log, results: Mapping[int, BinResult]) -> None:
    """Delete the new files of bins that are in no round yet."""
    for made in results.values():
        discard(log.store, [] if made.adds is None else made.adds["path"].to_list())


def _discard(log: Log, first: _Round, kept: _Round | None) -> None:
    """Delete the new files of bins that were not committed."""
    adds = first.adds
    if kept is not None:
        adds = adds.filter(~pl.col("path").is_in(kept.new["path"].implode()))
    if adds.height:
        discard_unnamed(log, adds["path"].to_list(), first.snapshot.version)


def _metrics(adds: pl.DataFrame, removed_files: pl.DataFrame) -> dict[str, Any]:
    """Operation metrics, as Delta's OPTIMIZE reports them."""
    found = {
        "numRemovedFiles": removed_files.height,
        "numRemovedBytes": int(removed_files["size"].sum()),
        "numDeletionVectorsRemoved": removed_files.height
        - removed_files["dvStorageType"].null_count(),
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
