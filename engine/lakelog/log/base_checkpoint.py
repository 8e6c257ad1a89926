"""`Base`: the checkpoint that a state is built on, its counts, and the handling of its damage.

Counts keep 24 bytes per file: two hashes of (path, dvId) and the size, from which overridden files
are subtracted. Two files with equal hashes would be counted as one; among a billion files, the
probability is below 1 in 10^19.

File columns are cached, within a limit, from their second read on, for updates and other versions
with the same checkpoint.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import polars as pl

from lakelog.dialects.log_content import (
    Checkpoint,
    CheckpointReader,
    FileCondition,
    MatchingReader,
    RowGroups,
    SkippingReader,
    cause_text,
)
from lakelog.errors import CheckpointCorruptionError, CorruptionError, MissingActionError
from lakelog.lazy import cached_property
from lakelog.model import actions
from lakelog.threads import Pool

if TYPE_CHECKING:
    from lakelog.log.disk_cache import CachedColumns
    from lakelog.log.repeated_files import ResolvedFiles


Transform = Callable[[pl.DataFrame], pl.DataFrame]

_WORKERS = min(4, os.cpu_count() or 1)
_SEEDS = {"one": 0x5EED, "two": 0xD1CE}


@dataclass(frozen=True)
class Tally:
    """Hashes and sizes of a checkpoint's live files, and whether paths may repeat."""

    hashes: pl.DataFrame
    paths_repeat: bool

    @staticmethod
    def of(batches: Iterable[pl.DataFrame]) -> Tally:
        """Tally batches of live files; columns path, size and, if there are any, dvId."""
        frames: list[pl.DataFrame] = []
        paths: list[pl.Series] = []
        for batch in batches:
            sizes = actions.conform(batch, ("size",)).to_series()
            paths.append(hash_paths(batch))
            frames.append(pl.DataFrame([*_hashes(batch, paths[-1]), sizes]))
        if not frames:
            return Tally(pl.DataFrame([*_hashes(_NOTHING), _NOTHING["size"]]), False)
        return Tally(pl.concat(frames), may_repeat(paths))

    def without(self, keys: pl.DataFrame) -> tuple[int, int]:
        """Number and total size in bytes of the files that are not in `keys`."""
        hashed = pl.DataFrame(_hashes(keys)).unique()
        # One hash decides nearly every row; the few remaining rows are compared exactly.
        suspects = self.hashes.filter(self.hashes["one"].is_in(hashed["one"].implode()))
        hidden = suspects.join(hashed, on=list(_SEEDS), how="semi")
        files = self.hashes.height - hidden.height
        return files, sum_sizes(self.hashes) - sum_sizes(hidden)

    def holds_any(self, keys: pl.DataFrame) -> bool:
        """Whether it may contain a file of `keys`; False is certain."""
        return bool(self.hashes["one"].is_in(hash_identities(keys).implode()).any())


def may_overlap(hashes: Sequence[pl.Series], others: pl.Series) -> bool:
    """Whether one of the hashed files may be among `others`; False is certain."""
    if not hashes or not len(others):
        return False
    return bool(pl.concat(hashes).is_in(others.implode()).any())


def hash_paths(files: pl.DataFrame) -> pl.Series:
    """Hashes of the paths, in order (UInt64)."""
    return files["path"].hash(_SEEDS["one"])


def hash_identities(
    files: pl.DataFrame, paths: pl.Series | None = None, seed: int = _SEEDS["one"]
) -> pl.Series:
    """Hashes of (path, dvId), in order (UInt64)."""
    hashes = files["path"].hash(seed) if paths is None else paths
    if "dvId" in files.columns and files["dvId"].null_count() < files.height:
        vectors = files["dvId"]
        hashes = hashes ^ vectors.hash(seed + 1) * vectors.is_not_null().cast(pl.UInt64)
    return hashes


def may_repeat(hashes: Sequence[pl.Series]) -> bool:
    """Whether two of the hashed paths may be equal; False is certain."""
    if not hashes:
        return False
    every = pl.concat(hashes)
    return every.n_unique() < len(every)


def sum_sizes(files: pl.DataFrame) -> int:
    """Total size of `files` in bytes, exact beyond 64 bits; a missing size counts as 0."""
    sizes = actions.conform(files, ("size",)).to_series()
    return int(sizes.cast(pl.Int128).sum())


_NOTHING = actions.empty(("path", "size"))


def _hashes(files: pl.DataFrame, paths: pl.Series | None = None) -> list[pl.Series]:
    one = hash_identities(files, paths).alias("one")
    return [one, hash_identities(files, seed=_SEEDS["two"]).alias("two")]


Key = tuple[weakref.ref[object], frozenset[str], tuple[str, ...]]


class Projections:
    """Cached file columns of checkpoints. Thread-safe."""

    def __init__(self, max_bytes: int, count: Callable[[bool], None]) -> None:
        self._max_bytes = max_bytes
        self._count = count
        self._lock = threading.Lock()
        self._asked: OrderedDict[Key, bool] = OrderedDict()  # False: too large to cache
        self._kept: OrderedDict[Key, tuple[list[pl.DataFrame], int]] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        """Size of the cached columns, in bytes."""
        with self._lock:
            self._purge()
            return sum(size for _, size in self._kept.values())

    def clear(self) -> None:
        """Remove all columns."""
        with self._lock:
            self._kept.clear()
            self._asked.clear()

    def iter_files(
        self,
        owner: object,
        columns: Sequence[str],
        kinds: tuple[str, ...],
        read: Callable[[], Iterable[pl.DataFrame]],
    ) -> Iterator[pl.DataFrame]:
        """The frames of `read`, or those cached by an earlier call (at most `max_bytes`)."""
        key = (weakref.ref(owner), frozenset(columns), kinds)
        wanted = self.keeps(owner, columns, kinds)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        if wanted:
            self._count(found is not None)
        if found is not None:
            yield from found[0]
            return
        frames: list[pl.DataFrame] | None = [] if wanted else None
        size = 0
        for frame in read():
            if frames is not None:
                frames.append(frame)
                size += int(frame.estimated_size())
                if size > self._max_bytes:
                    frames = None
                    self._asked[key] = False
            yield frame
        if frames is not None:
            self._keep(key, frames, size)

    def keeps(self, owner: object, columns: Sequence[str], kinds: tuple[str, ...]) -> bool:
        """Whether columns are cached, or will be by this second request; else counts a miss."""
        key = (weakref.ref(owner), frozenset(columns), kinds)
        with self._lock:
            wanted = key in self._kept or self._asked.get(key, False)
            self._asked.setdefault(key, True)
            while len(self._asked) > _REMEMBERED:
                self._asked.popitem(last=False)
        if not wanted:
            self._count(False)
        return wanted

    def _keep(self, key: Key, frames: list[pl.DataFrame], size: int) -> None:
        with self._lock:
            self._kept[key] = (frames, size)
            self._purge()
            total = sum(kept for _, kept in self._kept.values())
            while total > self._max_bytes:
                total -= self._kept.popitem(last=False)[1][1]

    def _purge(self) -> None:
        """Remove the columns of checkpoints that no state refers to."""
        for key in [key for key in self._kept if key[0]() is None]:
            del self._kept[key]


_REMEMBERED = 256


@dataclass(frozen=True)
class RowGroupChoice:
    """Numbers of the row groups to read, by file; None for all, with the reason."""

    chosen: Mapping[str, Sequence[int]] | None
    reason: str | None = None


class Base:
    """A state's checkpoint, and the data read from it, which later states of the handle share."""

    def __init__(self, reader: CheckpointReader) -> None:
        self.reader = reader
        self.checkpoint = reader.checkpoint
        self.projections: Projections | None = None
        self.disk: CachedColumns | None = None
        self.settled: ResolvedFiles | None = None

    def iter_files(self, columns: Sequence[str], kinds: tuple[str, ...]) -> Iterable[pl.DataFrame]:
        """File actions in batches, as `CheckpointReader.iter_files`, or from the cache."""
        if self.projections is None:
            return self.read_files(columns, kinds)
        return self.projections.iter_files(
            self, columns, kinds, lambda: self.read_files(columns, kinds)
        )

    def read_files(
        self, columns: Sequence[str], kinds: Sequence[str] = actions.FILE_ACTIONS
    ) -> Iterator[pl.DataFrame]:
        """File actions from `CheckpointReader.iter_files` or the disk cache."""
        if self.disk is None:
            return self.reader.iter_files(columns, kinds)
        return self.disk.iter_files(columns, kinds, lambda: self.reader.iter_files(columns, kinds))

    def choose(self, condition: FileCondition) -> RowGroupChoice:
        """The row groups that may hold live files that match; see `State.choose`."""
        if not self.row_groups:
            return RowGroupChoice(
                None,
                "the checkpoint does not record the bounds of its row groups; lakelog records them "
                "in Parquet checkpoints, on Delta tables only with typed statistics",
            )
        chosen: dict[str, list[int]] = {}
        for _, rows in groupby(self.row_groups, key=lambda groups: groups.frame.schema):
            same = list(rows)
            kept = condition.may_hold(pl.concat(groups.frame for groups in same))
            start = 0
            for groups in same:
                own = kept[start : start + groups.frame.height] & (groups.frame["adds"] > 0)
                start += groups.frame.height
                if own.any():
                    chosen[groups.path] = own.arg_true().to_list()
        return RowGroupChoice(chosen)

    @cached_property
    def row_groups(self) -> tuple[RowGroups, ...]:
        """See `SkippingReader`."""
        if not isinstance(self.reader, SkippingReader):
            return ()
        with broken_checkpoint(self.checkpoint):
            return self.reader.row_groups()

    def share_of(self, chosen: Mapping[str, Sequence[int]]) -> float:
        """Share of the checkpoint's file actions that some row groups contain."""
        rows = {groups.path: groups.frame["rows"] for groups in self.row_groups}
        read = sum(int(rows[path].gather(list(groups)).sum()) for path, groups in chosen.items())
        return read / max(1, sum(int(each.sum()) for each in rows.values()))

    def recorded(self, column: str) -> int | None:
        """Sum of a recorded column over all live files; None if unknown, or with tombstones."""
        frames = [groups.frame for groups in self.row_groups]
        if not frames or any(frame["removes"].sum() for frame in frames):
            return None
        if any(column not in frame.columns or frame[column].null_count() for frame in frames):
            return None
        return sum(int(frame[column].sum()) for frame in frames)

    def iter_row_groups(
        self, columns: Sequence[str], chosen: Mapping[str, Sequence[int]], kind: str
    ) -> Iterator[pl.DataFrame]:
        """See `SkippingReader`; `chosen` by the path of the file."""
        assert isinstance(self.reader, SkippingReader)
        pairs = [(g, chosen[g.path]) for g in self.row_groups if g.path in chosen]
        return self.reader.iter_row_groups(columns, pairs, kind)

    def iter_matching(
        self,
        columns: Sequence[str],
        condition: FileCondition,
        seen: Callable[[pl.DataFrame], None],
    ) -> Iterator[pl.DataFrame]:
        """See `MatchingReader`; reads whole columns if they are cached, or for the disk cache."""

        def matching(frame: pl.DataFrame) -> pl.DataFrame:
            seen(frame)
            return frame.filter(condition.may_match(frame))

        kept = self.projections is not None and self.projections.keeps(self, columns, ("add",))
        if isinstance(self.reader, MatchingReader) and not kept and self.disk is None:
            return self.reader.iter_matching(columns, condition, seen)
        return map_ahead(matching, self.iter_files(columns, ("add",)))

    @cached_property
    def pair(self) -> pl.DataFrame:
        """The checkpoint's protocol and metaData."""
        return self._read(("protocol", "metaData"))

    @cached_property
    def rest(self) -> pl.DataFrame:
        """The checkpoint's transaction identifiers and domains."""
        return self._read(("txn", "domainMetadata"))

    @cached_property
    def skips(self) -> pl.DataFrame:
        """The checkpoint's skips, which other writers leave in the commits below it."""
        return self._read(("mergeskip",))

    @cached_property
    def references(self) -> pl.DataFrame:
        """All metaData of the checkpoint; see `CheckpointReader.references`."""
        with broken_checkpoint(self.checkpoint):
            apart = self.reader.references()
        return actions.concat([apart, actions.of_type(self.pair, "metaData")])

    def _read(self, kinds: Sequence[str]) -> pl.DataFrame:
        with broken_checkpoint(self.checkpoint):
            return self.reader.read_meta(kinds)

    @cached_property
    def has_struct_statistics(self) -> bool:
        """Whether the checkpoint has statistics as a struct."""
        with broken_checkpoint(self.checkpoint):
            return self.reader.struct_statistics() is not None

    @cached_property
    def tally(self) -> Tally:
        """Number and sizes of the checkpoint's files. Memory: 24 bytes per file."""
        with broken_checkpoint(self.checkpoint):
            return Tally.of(self.read_files(("path", "size", "dvId"), ("add",)))

    @cached_property
    def removed(self) -> pl.DataFrame:
        """(path, dvId) of tombstones whose file may also be added. Memory: their number."""
        with broken_checkpoint(self.checkpoint):
            if self.reader.is_reconciled():
                return actions.empty(actions.KEY)
            if self.row_groups:
                held = {g.path: g.frame["removes"].gt(0).arg_true() for g in self.row_groups}
                chosen = {path: rows.to_list() for path, rows in held.items() if len(rows)}
                frames = self.iter_row_groups(actions.KEY, chosen, "remove")
            else:
                frames = self.read_files(actions.KEY, ("remove",))
            return pl.concat(
                [actions.empty(actions.KEY), *(actions.conform(f, actions.KEY) for f in frames)]
            )

    @cached_property
    def removed_hashes(self) -> pl.Series:
        """`removed`, hashed by `hash_identities`."""
        return hash_identities(self.removed)

    @cached_property
    def clashes(self) -> pl.DataFrame:
        """(path, dvId) of files that the checkpoint both removes and adds, or removes twice."""
        removed = self.removed
        if not removed.height:
            return removed
        removed_once = self.removed_hashes.unique().implode()
        with broken_checkpoint(self.checkpoint):
            added = [
                actions.conform(
                    frame.filter(hash_identities(frame).is_in(removed_once)), actions.KEY
                )
                for frame in self.read_files(actions.KEY, ("add",))
            ]
        both = pl.concat([removed, *(f.unique() for f in added)])
        return both.filter(both.is_duplicated()).unique()

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Files that a full read depends on."""
        with broken_checkpoint(self.checkpoint):
            return self.reader.files_read()


def path_condition(paths: pl.Series) -> FileCondition:
    """The condition that a live file has one of some decoded paths."""
    wanted = paths.unique().sort()

    def may_hold(groups: pl.DataFrame) -> pl.Series:
        if "firstPath" not in groups.columns or not len(wanted):
            return pl.repeat(bool(len(wanted)), groups.height, dtype=pl.Boolean, eager=True)
        first, last = groups["firstPath"].fill_null(""), groups["lastPath"]
        at = wanted.search_sorted(first)
        follows = wanted.gather(at.clip(0, len(wanted) - 1))
        return (at < len(wanted)) & (last.is_null() | (follows <= last).fill_null(value=True))

    return FileCondition(("path",), lambda files: files["path"].is_in(wanted.implode()), may_hold)


def map_ahead(function: Transform, batches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Apply `function` to each batch in threads, a few ahead, keeping the order."""
    with Pool(_WORKERS, thread_name_prefix="lakelog-batch") as pool:
        pending: deque[Future[pl.DataFrame]] = deque()
        for batch in batches:
            pending.append(pool.submit(function, batch))
            if len(pending) > _WORKERS:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


class broken_checkpoint:  # noqa: N801 - a context manager, named as it reads
    """Turn damage found while reading a checkpoint into `CheckpointCorruptionError`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, CorruptionError) and not isinstance(
            error, CheckpointCorruptionError | MissingActionError
        ):
            raise CheckpointCorruptionError(
                f"the checkpoint of version {self.checkpoint.version} cannot be read: "
                f"{cause_text(error.message)}",
                path=error.path or self.checkpoint.paths[0],
                version=self.checkpoint.version,
                line=error.line,
                byte_offset=error.byte_offset,
                expected=error.expected,
                found=error.found,
                hint=error.hint,
            ) from error
