"""Writes incremental V2 checkpoints, which keep unchanged sidecars of the newest checkpoint.

- A sidecar that contains a logical file of a later commit is rewritten without it, because readers
  treat every add of every sidecar as live. The other actions of the commits are written to new
  sidecars.
- Small sidecars are merged so that each is more than twice as large as the next smaller one: a row
  is rewritten a logarithmic number of times (`plan_reuse`).
- The content of sidecars is known from the fingerprints in the manifest
  (`lakelog.dialects.delta.sidecar_fingerprints`). Without fingerprints of this form, the plan is
  `Unfit`, and a complete checkpoint is written.
- A sidecar is opened only if it has tombstones, or if the recorded bounds of its paths do not
  exclude every path of the commits. Its path filters then decide; a match is confirmed by reading
  the paths.
- Only the newest checkpoint is used, because cleanup may delete the sidecars of an older one at any
  time.
- Expired tombstones are dropped when their sidecar is rewritten, or if they are at least half of
  it. Others may be kept: only vacuum reads them, by their time (Delta protocol, Action
  Reconciliation).

New sidecars are read back and compared with their recorded digest. A kept sidecar must have the
recorded length, and the recorded counts and filter checksum if it was opened; all recorded digests
must sum to the total in the manifest. Its other columns are protected by Parquet's page checksums,
and `Table.verify` reads them. The new total is the old one, minus the rows that were read and
omitted, plus those of the commits.

Source: Delta protocol, V2 Spec; Sidecar Files; Sidecar File Information; Action Reconciliation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import polars as pl
import pyarrow as pa

from lakelog.checkpoint.compare import Comparison, differs_from_replay
from lakelog.checkpoint.sidecar_ranges import SidecarCuts, SidecarRanges
from lakelog.dialects.delta.checkpoint_rows import file_action_columns
from lakelog.dialects.delta.names import SIDECAR_FOLDER
from lakelog.dialects.delta.path_filters import Hashes, PathFilter, hash_paths
from lakelog.dialects.delta.paths import decode_path
from lakelog.dialects.delta.sidecar_fingerprints import (
    Fingerprint,
    check_inspection,
    inspect_sidecar,
    read_sidecar_schema,
    recognise_sidecar,
    require_listed,
    shape_of,
    total_of_tags,
)
from lakelog.dialects.digest import Digest
from lakelog.dialects.log_content import (
    NOT_IN_REMOVES,
    STRUCT_STATISTICS,
    Checkpoint,
    CheckpointPlan,
    CheckpointReader,
    SidecarFile,
    StagedCheckpoint,
)
from lakelog.dialects.parquet_footers import child_type
from lakelog.errors import CheckpointValidationError, MalformedLogError
from lakelog.log import properties
from lakelog.log.base_checkpoint import broken_checkpoint, path_condition
from lakelog.log.context import Log
from lakelog.log.file_order import FileOrder
from lakelog.log.replay import exclude, retained_tombstones
from lakelog.log.state import State
from lakelog.model import actions
from lakelog.threads import Pool

MOST_SMALL = 16
"""Maximum number of kept sidecars with fewer than half of the target rows."""

_MERGE_RATIO = 2


@dataclass(frozen=True)
class Sidecar:
    """A sidecar of the earlier checkpoint, its overridden rows and its expired tombstones."""

    file: SidecarFile
    adds: int
    removes: int
    digest: Digest
    superseded: int = 0
    expired: int = 0

    @property
    def rows(self) -> int:
        """Number of its actions."""
        return self.adds + self.removes

    @property
    def remaining(self) -> int:
        """Number of its actions that remain after rewriting."""
        return max(0, self.rows - self.superseded - self.expired)


@dataclass(frozen=True)
class Reuse:
    """The sidecars to keep and to rewrite, and the number and rows of new ones."""

    kept: tuple[Sidecar, ...]
    rewritten: tuple[Sidecar, ...]
    parts: int
    part_rows: int


def plan_reuse(sidecars: Sequence[Sidecar], incoming_rows: int, target_rows: int) -> Reuse:
    """Decide which sidecars are kept. One is rewritten if a row is overridden, or if at least half
    of its rows are expired tombstones. Those below half of `target_rows` are merged, smallest
    first, while the next has at most twice the rows collected so far; all of them if more than 16
    would remain.
    """
    rewritten = {
        index
        for index, sidecar in enumerate(sidecars)
        if sidecar.superseded or sidecar.expired * 2 >= sidecar.rows
    }
    pool = incoming_rows + sum(sidecars[i].remaining for i in rewritten)
    small = sorted(
        (
            index
            for index, sidecar in enumerate(sidecars)
            if index not in rewritten and sidecar.rows * 2 < target_rows
        ),
        key=lambda index: (sidecars[index].rows, index),
    )
    crowded = len(small) > MOST_SMALL
    while small and (crowded or sidecars[small[0]].rows <= _MERGE_RATIO * pool):
        index = small.pop(0)
        rewritten.add(index)
        pool += sidecars[index].rows
    parts = max(1, round(pool / target_rows)) if pool else 0
    return Reuse(
        tuple(s for i, s in enumerate(sidecars) if i not in rewritten),
        tuple(s for i, s in enumerate(sidecars) if i in rewritten),
        parts,
        -(-pool // parts) if parts else 1,
    )


_MOST_PROBES = 1 << 16
"""More keys would match nearly every filter, and are compared with the paths directly."""
_READERS = 16
_QUICK_S = 0.004


@dataclass(frozen=True)
class SidecarManifest:
    """The sidecars of a V2 manifest, in order, and the recorded digest of all rows, or None."""

    files: tuple[SidecarFile, ...]
    total: Digest | None


def _read_manifest(reader: CheckpointReader) -> SidecarManifest:
    """The sidecars of a manifest; errors as `CheckpointReader.read_meta`."""
    meta = reader.read_meta(("sidecar", "checkpointMetadata"))
    meta = actions.conform(meta, ("actionType", "path", "size", "modificationTime", "tags"))
    files: list[SidecarFile] = []
    total: Digest | None = None
    for kind, path, size, modified, tags in meta.iter_rows():
        if kind == "checkpointMetadata":
            total = total_of_tags(tags)
        elif path is not None:
            name = decode_path(path).rsplit("/", 1)[-1]
            files.append(
                SidecarFile(f"{SIDECAR_FOLDER}/{name}", size or 0, modified or 0, tags or {})
            )
    return SidecarManifest(tuple(files), total)


def _known_sidecars(
    manifest: SidecarManifest, checkpoint: Checkpoint, shape: str
) -> list[tuple[SidecarFile, Fingerprint]] | str:
    """The sidecars with their fingerprints, or the reason why none can be kept."""
    if not manifest.files:
        return "the previous checkpoint has no sidecars"
    known: list[tuple[SidecarFile, Fingerprint]] = []
    for file in manifest.files:
        fingerprint = Fingerprint.of_tags(file.tags)
        if fingerprint is None:
            return f"no record of {file.path} was found"
        if fingerprint.shape != shape:
            return "the table's columns, or the format of their statistics, have changed"
        known.append((file, fingerprint))
    if manifest.total is None:
        return "the previous checkpoint does not record the content of its sidecars"
    total = sum((fingerprint.digest for _, fingerprint in known), Digest())
    if total != manifest.total:
        raise MalformedLogError(
            "the sidecars of the manifest differ from those that were written with it",
            path=checkpoint.paths[0],
            version=checkpoint.version,
            expected=_counts_of(manifest.total),
            found=_counts_of(total),
            hint="restore the file, or remove the checkpoint's files if its commits exist",
        )
    return known


def _listed_sizes(log: Log) -> dict[str, int]:
    """Length in bytes of each file in the sidecars' folder, by its path."""
    listed = log.store.list_from(SIDECAR_FOLDER)
    return {f"{SIDECAR_FOLDER}/{each.name}": each.size_bytes for each in listed}


def _inspect_sidecars(
    log: Log,
    known: Sequence[tuple[SidecarFile, Fingerprint]],
    keys: pl.DataFrame,
    minimum_ms: int,
    candidates: Collection[str] | None,
) -> list[Sidecar]:
    """The effect of later commits on each sidecar. Only those with tombstones, or among the
    `candidates` (None: all), are read, and verified by their fingerprint.
    """
    few = 0 < keys.height <= _MOST_PROBES
    hashes = hash_paths(keys["path"]) if few else None
    sizes = _listed_sizes(log)

    def inspect(pair: tuple[SidecarFile, Fingerprint]) -> Sidecar:
        file, recorded = pair
        require_listed(file, sizes.get(file.path))
        if candidates is not None and not recorded.removes and file.path not in candidates:
            return Sidecar(file, recorded.adds, 0, recorded.digest)
        found = None
        if recorded.footer is not None:
            held = (recorded.adds, recorded.removes)
            found = recognise_sidecar(log.store, file.path, file.size_bytes, held, recorded.footer)
        if found is None:
            found = inspect_sidecar(log.store, file.path)
        check_inspection(found, file, recorded)
        # Without a recorded digest of the filters, they are not used.
        paths = found.filter if recorded.filters else None
        suspects = _keys_that_may_be_in(paths, keys, hashes)
        superseded = 0
        if suspects.height:
            for frame in _read_sidecar(log, file, actions.KEY):
                superseded += frame.height - exclude(frame, suspects).height
        last = found.last_deletion_ms
        expired = recorded.removes if last is not None and last <= minimum_ms else 0
        counts = (recorded.adds, recorded.removes, recorded.digest)
        return Sidecar(file, *counts, superseded, expired)

    return at_once(inspect, known)


def _keys_that_may_be_in(
    paths: PathFilter | None, keys: pl.DataFrame, hashes: Hashes | None
) -> pl.DataFrame:
    """The `keys` that a sidecar may contain."""
    if hashes is None or paths is None:
        return keys
    hits = paths.may_hold(hashes)
    return keys.filter(pl.Series(hits)) if hits.any() else keys.clear()


def _read_sidecar(
    log: Log,
    file: SidecarFile,
    columns: Sequence[str],
    kinds: Sequence[str] = actions.FILE_ACTIONS,
) -> Iterator[pl.DataFrame]:
    """The rows of one sidecar, read as a checkpoint of one part."""
    alone = Checkpoint(0, "multipart", 1, (file.path,), (file.size_bytes,))
    return log.dialect.open_checkpoint(log.store, alone).iter_files(columns, kinds)


_T = TypeVar("_T")
_R = TypeVar("_R")


def at_once(function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """Apply `function` to each item, in order; in parallel if one call takes long."""
    start = time.perf_counter()
    found = [function(item) for item in items[:1]]
    rest = items[1:]
    if time.perf_counter() - start < _QUICK_S:
        # For files in the page cache, threads cost more than they save.
        return [*found, *map(function, rest)]
    with Pool(_READERS, thread_name_prefix="lakelog-sidecar") as pool:
        return [*found, *pool.map(function, rest)]


def _counts_of(held: Digest) -> str:
    """Counts and sums of a digest, for a message."""
    parts = [f"{held.counts[kind]} {kind} of {held.sums[kind]:032x}" for kind in held.counts]
    return ", ".join(sorted(parts)) or "nothing"


_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Unfit:
    """An earlier checkpoint of which nothing can be kept, with the reason."""

    reason: str


def plan_incremental(
    log: Log,
    state: State,
    previous: Checkpoint,
    plan: CheckpointPlan,
    *,
    now_ms: int,
) -> Incremental | Unfit:
    """Plan a V2 checkpoint that keeps sidecars; memory: layers, and paths of a few sidecars."""
    if not plan.layout.startswith("v2-"):
        return Unfit("only V2 checkpoints share sidecars")
    if not previous.layout.startswith("v2-"):
        return Unfit("the previous checkpoint is not a V2 checkpoint")
    if state.base is None or state.base.checkpoint != previous:
        return Unfit("the version was not derived from that checkpoint")
    if log.list_since(previous.version + 1).checkpoints:
        return Unfit(
            "a later checkpoint exists, so this one may be deleted by a concurrent cleanup"
        )
    configuration = state.metadata.configuration
    keys = state.layers.keys().unique()
    if state.path_texts(keys["path"]).drop_nulls().height:
        return Unfit(
            "a path has the encoding of another writer, and the fingerprints cannot find it"
        )
    minimum = now_ms - properties.deleted_file_retention_ms(configuration)
    columns, _ = file_action_columns(plan)
    with broken_checkpoint(previous):
        manifest = _read_manifest(state.base.reader)
        known = _known_sidecars(manifest, previous, shape_of(plan, columns))
        if isinstance(known, str):
            return Unfit(known)
        candidates = state.base.choose(path_condition(keys["path"])).chosen
        seen = _inspect_sidecars(log, known, keys, minimum, candidates)
    adds = state.layers.live("add")
    removes = retained_tombstones(state.layers.live("remove"), minimum)
    incoming = {"add": adds, "remove": removes}
    reuse = plan_reuse(seen, adds.height + removes.height, plan.part_actions)
    if not reuse.kept:
        return Unfit("every sidecar has changed, or is small enough to be merged")
    order = FileOrder.of_plan(plan, state.meta, log.dialect)
    ranges = SidecarRanges.of(state.base.row_groups, order)
    if ranges.overlap_too_much():
        return Unfit("the key ranges of the sidecars overlap too much")
    large = [s.file.path for s in reuse.rewritten if s.remaining * 2 >= plan.part_actions]
    order = replace(order, ranges=ranges.to_keep(large, [s.file.path for s in reuse.kept]))
    kept = tuple(sidecar.file for sidecar in reuse.kept)
    num_removes = removes.height + sum(s.removes for s in reuse.rewritten)
    cuts = SidecarCuts(order, plan.part_actions, num_removes)
    decided = replace(
        plan,
        parts=reuse.parts,
        part_actions=reuse.part_rows,
        kept=kept,
        sidecar_starts=cuts.starts,
    )
    with broken_checkpoint(previous):
        schema = read_sidecar_schema(log.store, kept[0].path)
    return Incremental(log, previous, decided, reuse, keys, incoming, minimum, schema, order, cuts)


class Incremental:
    """A planned V2 checkpoint: write `files`, sorted and cut, as `plan`, then `verify` it."""

    def __init__(
        self,
        log: Log,
        previous: Checkpoint,
        plan: CheckpointPlan,
        reuse: Reuse,
        keys: pl.DataFrame,
        incoming: dict[str, pl.DataFrame],
        minimum_ms: int,
        schema: pa.Schema,
        order: FileOrder,
        cuts: SidecarCuts,
    ) -> None:
        self.previous = previous
        self.plan = plan
        self.reuse = reuse
        self.order = order
        self.cuts = cuts
        self._log = log
        self._keys = keys
        self._incoming = incoming
        self._minimum_ms = minimum_ms
        self._schema = schema
        self._comparison = Comparison.of(plan, log.dialect, ())
        self._expected = Digest()

    @property
    def expected(self) -> Digest:
        """Digest of the whole checkpoint; available after `files` is exhausted."""
        return sum((s.digest for s in self.reuse.kept), self._expected)

    def files(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """File actions for the new sidecars: adds, then tombstones; those of sidecars first."""
        comparison = Comparison.of(self.plan, self._log.dialect, columns)
        self._comparison = comparison.limited_to(child_type(self._schema, "add", STRUCT_STATISTICS))
        self._expected = Digest()
        found = dict.fromkeys((s.file.path for s in self.reuse.rewritten), Digest())
        read = (*actions.KEY, "actionType", *columns, *self._comparison.columns)
        wanted = list(dict.fromkeys(read))
        for kind in actions.FILE_ACTIONS:
            own = [c for c in wanted if kind == "add" or c not in NOT_IN_REMOVES]
            if kind == "remove" and "deletionTimestamp" not in own:
                own.append("deletionTimestamp")
            for sidecar in self.reuse.rewritten:
                if not (sidecar.adds if kind == "add" else sidecar.removes):
                    continue
                path = sidecar.file.path
                with broken_checkpoint(self.previous):
                    for frame in _read_sidecar(self._log, sidecar.file, own, (kind,)):
                        held = self._comparison.digest(frame)
                        found[path] += held
                        rows = self._remaining(frame, kind)
                        yield from self._counted_in(rows, own, held if rows is frame else None)
            yield from self._counted_in(self._incoming[kind], own)
        with broken_checkpoint(self.previous):
            for sidecar in self.reuse.rewritten:
                self._check_rewritten(sidecar, found[sidecar.file.path])

    def _remaining(self, frame: pl.DataFrame, kind: str) -> pl.DataFrame:
        rows = exclude(frame, self._keys)
        return retained_tombstones(rows, self._minimum_ms) if kind == "remove" else rows

    def _counted_in(
        self, rows: pl.DataFrame, columns: Sequence[str], known: Digest | None = None
    ) -> Iterator[pl.DataFrame]:
        if not rows.height:
            return
        kept = rows.select(c for c in rows.columns if c in columns)
        self._expected += self._comparison.digest(kept) if known is None else known
        if "dataChange" in columns:
            kept = kept.with_columns(dataChange=pl.lit(value=False))
        yield from kept.iter_slices(_BATCH_ROWS)

    def _check_rewritten(self, sidecar: Sidecar, found: Digest) -> None:
        """Raise if the rows of a sidecar to rewrite differ from those recorded."""
        if found != sidecar.digest:
            raise MalformedLogError(
                "a sidecar does not contain the rows that its manifest records",
                path=sidecar.file.path,
                version=self.previous.version,
                expected=_counts_of(sidecar.digest),
                found=_counts_of(found),
                hint="restore the file, or remove the checkpoint's files if its commits exist",
            )

    def verify(
        self,
        staged: StagedCheckpoint,
        reader: CheckpointReader | None = None,
        check: Callable[[pl.DataFrame], object] | None = None,
    ) -> Digest:
        """Verify the staged checkpoint: the manifest refers to each kept and new sidecar once; new
        ones match their fingerprints and `files`, without repeats; kept ones exist with their
        length; the total is `expected`. Memory: the keys of the new sidecars.
        """
        if reader is None:
            reader = self._log.dialect.open_checkpoint(self._log.store, staged.checkpoint)
        manifest = _read_manifest(reader)
        written = {f.target: f for f in staged.files if f.target.startswith(f"{SIDECAR_FOLDER}/")}
        kept = {file.path: file for file in self.plan.kept}
        self._same(
            "sidecars of the manifest",
            sorted([*kept, *written]),
            sorted(f.path for f in manifest.files),
        )
        new = Digest()
        keys: list[pl.DataFrame] = []
        for file in manifest.files:
            if file.path in kept:
                self._same(f"the action of {file.path}", kept[file.path].tags, file.tags)
                continue
            fingerprint = self._inspected(file)
            found = Digest()
            for frame in self._read_back(file):
                if check is not None:
                    check(frame)
                found += self._comparison.digest(frame)
                keys.append(actions.conform(frame, actions.KEY))
            self._same_digest(file.path, fingerprint.digest, found)
            new += found
        every = pl.concat(keys) if keys else actions.empty(actions.KEY)
        repeated = every.filter(every.is_duplicated())
        if repeated.height:
            raise self._wrong(
                "the new sidecars contain a file twice", "each file once", repeated["path"][0]
            )
        self._same_digest("the new sidecars", self._expected, new)
        self._same_digest("the recorded total", self.expected, manifest.total or Digest())
        sizes = _listed_sizes(self._log)
        for kept_file in self.plan.kept:
            self._same(
                f"bytes of {kept_file.path}", kept_file.size_bytes, sizes.get(kept_file.path)
            )
        return self.expected

    def _inspected(self, file: SidecarFile) -> Fingerprint:
        fingerprint = Fingerprint.of_tags(file.tags)
        if fingerprint is None:
            raise self._wrong(f"{file.path} has no fingerprint", "one", dict(file.tags))
        found = inspect_sidecar(self._log.store, file.path)
        check_inspection(found, file, fingerprint)
        if found.schema != self._schema:
            raise self._wrong("sidecars differ in their columns", self._schema, found.schema)
        return fingerprint

    def _read_back(self, file: SidecarFile) -> Iterator[pl.DataFrame]:
        return _read_sidecar(self._log, file, ("dataChange", *self._comparison.columns))

    def _same(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            raise self._wrong(f"{what} differ", expected, found)

    def _same_digest(self, what: str, expected: Digest, found: Digest) -> None:
        if expected != found:
            raise self._wrong(
                f"{what} has unexpected content", _counts_of(expected), _counts_of(found)
            )

    def _wrong(self, what: str, expected: object, found: object) -> CheckpointValidationError:
        return differs_from_replay(what, self._log.table, self.plan.version, expected, found)
