"""`State`: one version's state, read on demand.

A state depends on at most one checkpoint and on the layers of the commits above it. Creating it
reads nothing; protocol and metadata never read file actions; a projection reads only its columns.
An update creates a new state that shares the checkpoint and the layers below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from lakelog.dialects.log_content import (
    STRUCT_STATISTICS,
    Actions,
    Checkpoint,
    CommitFile,
    CommitInfo,
    CompactionFile,
    FileCondition,
)
from lakelog.dialects.protocol_rules import TableConfiguration
from lakelog.errors import (
    CorruptionError,
    MissingActionError,
)
from lakelog.lazy import cached_property
from lakelog.log.base_checkpoint import (
    Base,
    RowGroupChoice,
    Transform,
    broken_checkpoint,
    hash_identities,
    hash_paths,
    map_ahead,
    may_overlap,
    may_repeat,
    path_condition,
    sum_sizes,
)
from lakelog.log.checksum_conflicts import compare_with_checksum, may_be_cut
from lakelog.log.context import Log
from lakelog.log.repeated_files import repeat_error
from lakelog.log.replay import Layers, exclude, last_of, reconcile_files, reconcile_meta
from lakelog.log.segment import LogSegment
from lakelog.model import actions
from lakelog.model.metadata import Metadata, Protocol
from lakelog.storage.bounded import on_local_disk
from lakelog.threads import Pool

_FEW_TAIL_BYTES = 1 << 20
_SMALL_SHARE = 0.125  # of a checkpoint's file actions
_SMALL_TAIL_BYTES = 16 << 20


@dataclass(frozen=True)
class Provenance:
    """The files that a result depends on.

    Attributes:
        version: Version of the result.
        checkpoint: Checkpoint that replay started from, or None.
        checkpoint_files: Paths of its files (parts, manifest, sidecars), relative to the table
            root.
        compactions: Paths of the log compaction files that replaced commits.
        commits: Paths of the replayed commit files.
        warnings: Warnings about damage that was found and avoided, one sentence each.
    """

    version: int
    checkpoint: Checkpoint | None
    checkpoint_files: tuple[str, ...]
    compactions: tuple[str, ...]
    commits: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files: checkpoint, compactions, commits."""
        return (*self.checkpoint_files, *self.compactions, *self.commits)


@dataclass(frozen=True)
class Tail:
    """Decoded actions above the checkpoint, oldest part first, and the files with them."""

    parts: tuple[Actions, ...]
    compactions: tuple[CompactionFile, ...] = ()
    commits: tuple[CommitFile, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Past:
    """The parts of an older state that an update reuses."""

    layers: Layers
    meta: pl.DataFrame
    compactions: tuple[CompactionFile, ...]
    commits: tuple[CommitFile, ...]
    warnings: tuple[str, ...]
    commits_may_be_cut: bool


@dataclass(frozen=True)
class State:
    """The state of one version, over the checkpoint `base` and its commits, or over a `past` state
    and `new_commits`. `excluded` are damaged checkpoints; `settled` are decided actions of repeated
    files; `last_resort` is the state to use if this one is damaged, although a hint contradicts it.
    """

    log: Log
    segment: LogSegment
    base: Base | None
    past: Past | None = None
    new_commits: tuple[CommitFile, ...] = ()
    notes: tuple[str, ...] = ()
    excluded: tuple[Checkpoint, ...] = ()
    settled: Layers = field(default_factory=Layers)
    last_resort: State | None = field(default=None, repr=False)

    @staticmethod
    def of(
        log: Log,
        segment: LogSegment,
        notes: tuple[str, ...] = (),
        excluded: tuple[Checkpoint, ...] = (),
    ) -> State:
        """The state of a segment, with nothing read yet."""
        checkpoint = segment.checkpoint
        base = Base(log.dialect.open_checkpoint(log.store, checkpoint)) if checkpoint else None
        return State(log, segment, base, None, segment.commits, notes, excluded)

    @property
    def version(self) -> int:
        """The version."""
        return self.segment.version

    @cached_property
    def tail(self) -> Tail:
        """Every action that this state decodes itself."""
        decode = self.log.dialect.decode
        store = self.log.store
        if self.past is not None:
            return Tail((decode(store, self.new_commits),), commits=self.new_commits)
        parts: list[Actions] = []
        used: list[CompactionFile] = []
        read: list[CommitFile] = []
        notes: list[str] = []
        waiting = list(self.segment.commits)
        for compaction in self.segment.compactions:
            compacted, problem = self._valid_compaction(compaction)
            if compacted is None:
                notes.append(f"{compaction.path} was ignored: {problem}")
                continue
            before = [c for c in waiting if c.version < compaction.start]
            waiting = [c for c in waiting if c.version > compaction.end]
            if before:
                parts.append(decode(store, before))
            parts.append(compacted)
            read += before
            used.append(compaction)
        if waiting:
            parts.append(decode(store, waiting))
        return Tail(tuple(parts), tuple(used), (*read, *waiting), tuple(notes))

    def decoded(self, commits: Sequence[CommitFile]) -> Actions | None:
        """The actions of commits, if this state has decoded them."""
        tail: Tail | None = vars(self).get("tail")
        if tail is None or len(tail.parts) != 1 or not set(commits) <= set(tail.commits):
            return None
        (part,) = tail.parts
        if len(commits) == len(tail.commits):
            return part
        versions = {commit.version for commit in commits}
        files, meta, other = (
            frame.filter(pl.col("version").is_in(list(versions))) if frame.height else frame
            for frame in (part.files, part.meta, part.other)
        )
        infos = tuple(info for info in part.commit_infos if info.version in versions)
        return Actions(files, meta, other, infos)

    def _valid_compaction(self, compaction: CompactionFile) -> tuple[Actions | None, str]:
        """A compaction's actions, or the reason not to use it: some writers concatenate commits,
        newest first, which is visible as duplicate keys.
        """
        try:
            decoded = self.log.dialect.decode_compaction(self.log.store, compaction)
        except CorruptionError as error:
            return None, error.message
        if decoded.commit_infos:
            return None, "it contains commitInfo, so it is a commit and not reconciled"
        if reconcile_files(decoded.files).height != decoded.files.height:
            return None, "it contains the same file twice, so it is not reconciled"
        if reconcile_meta([decoded.meta]).height != decoded.meta.height:
            return None, "it contains the same action twice, so it is not reconciled"
        return decoded, ""

    @cached_property
    def layers(self) -> Layers:
        """Reconciled file actions above the checkpoint."""
        layers = self.past.layers if self.past is not None else self.settled
        for part in self.tail.parts:
            layers = layers.push(part.files)
        return layers

    @cached_property
    def tail_meta(self) -> pl.DataFrame:
        """Reconciled non-file actions above the checkpoint."""
        past = [self.past.meta] if self.past is not None else []
        return reconcile_meta([*past, *(part.meta for part in self.meta_parts)])

    @cached_property
    def meta_parts(self) -> tuple[Actions, ...]:
        """Decoded actions, with or without the file actions, whichever is available or cheap."""
        if "tail" in self.__dict__ or self.is_cheap or self.segment.compactions:
            return self.tail.parts
        return (self.log.dialect.decode(self.log.store, self.new_commits, files=False),)

    @cached_property
    def meta(self) -> pl.DataFrame:
        """Reconciled non-file actions of the state, including removed domains."""
        self.ensure_readable()
        base = self.base
        below = [base.pair, base.rest, base.skips] if base is not None else []
        return reconcile_meta([*below, self.tail_meta])

    def meta_of(self, kind: str) -> pl.DataFrame:
        """Reconciled actions of one type only, because skips may require all commits below."""
        if self.base is None or "meta" in vars(self):
            return actions.of_type(self.meta, kind)
        self.ensure_readable()
        below = {"mergeskip": "skips", "protocol": "pair", "metaData": "pair"}
        base: pl.DataFrame = getattr(self.base, below.get(kind, "rest"))
        own = [actions.of_type(frame, kind) for frame in (base, self.tail_meta)]
        return reconcile_meta(own)

    @cached_property
    def is_cheap(self) -> bool:
        """Whether protocol and metadata cost little to read; many commits do not."""
        return sum(c.size_bytes for c in self.new_commits) <= _SMALL_TAIL_BYTES

    def ensure_readable(self) -> None:
        """Raise unless protocol and metadata exist, and lakelog supports the protocol."""
        _ = self._readable

    @cached_property
    def _readable(self) -> bool:
        self._read_together()
        self.log.dialect.protocol_rules.check_readable(self._protocol, self.log.table)
        self.compare_with_checksum(metadata=self._metadata)
        return True

    @cached_property
    def recorded(self) -> dict[str, Any] | None:
        """The version checksum, if one is listed and can be read."""
        if not self.segment.has_checksum:
            return None
        return self.log.dialect.version_checksum(self.log.store, self.version)

    def compare_with_checksum(self, **found: object) -> None:
        """Compare the replayed state with the version checksum, if any; each field once."""
        if self.segment.has_checksum and not found.keys() <= self._compared:
            self._compared.update(found)
            try:
                compare_with_checksum(self, found)
            except BaseException:
                self._compared.difference_update(found)
                raise

    @cached_property
    def _compared(self) -> set[str]:
        return set()

    def _read_together(self) -> None:
        """Read the checkpoint's protocol and metadata while commits and checksum are read."""
        tail_bytes = sum(c.size_bytes for c in self.new_commits)
        is_near = on_local_disk(self.log.store)  # local disk has no round trips
        concurrently: list[Callable[[], object]] = []
        if self.segment.has_checksum and not is_near:
            concurrently.append(lambda: self.recorded)
        base = self.base if self.base is not None and "pair" not in vars(self.base) else None
        if (
            base is not None
            and self.new_commits
            and not (is_near and tail_bytes <= _FEW_TAIL_BYTES)
        ):
            concurrently.append(lambda: self.meta_parts)
        if not concurrently:
            return
        with Pool(len(concurrently), thread_name_prefix="lakelog-tail") as pool:
            # An error is raised again by the later read, in the usual order.
            for read in concurrently:
                pool.submit(read)
            _ = base.pair if base is not None else self.meta_parts

    @property
    def table_configuration(self) -> TableConfiguration:
        """Protocol and metadata under the rules of the dialect."""
        return TableConfiguration(self.log.dialect, self.protocol, self.metadata)

    @property
    def stated_configuration(self) -> TableConfiguration:
        """As `table_configuration`, also if lakelog does not support the protocol."""
        return TableConfiguration(self.log.dialect, self._protocol, self._metadata)

    @property
    def protocol(self) -> Protocol:
        """The protocol; errors as `ensure_readable`."""
        self.ensure_readable()
        return self._protocol

    @property
    def metadata(self) -> Metadata:
        """The metadata; errors as `ensure_readable`."""
        self.ensure_readable()
        return self._metadata

    @cached_property
    def _protocol(self) -> Protocol:
        row = self._single("protocol")
        if row is None:
            default = self.log.dialect.default_protocol
            if default is None:
                raise self._missing("protocol")
            return Protocol(*default)
        return Protocol.from_row(row)

    @cached_property
    def _metadata(self) -> Metadata:
        row = self._single("metaData")
        if row is None:
            raise self._missing("metaData")
        return Metadata.from_row(row)

    def _single(self, kind: str) -> dict[str, object] | None:
        base = actions.concat([]) if self.base is None else last_of(self.base.pair, kind)
        required = kind == "metaData" or self.log.dialect.default_protocol is None
        if self.base is not None and not base.height and required:
            # Even if a later commit has one: a checkpoint without it is incomplete.
            raise self._missing(kind)
        row = last_of(self.tail_meta, kind)
        row = row if row.height else base
        return row.row(0, named=True) if row.height else None

    def _missing(self, kind: str) -> MissingActionError:
        where = self.base.checkpoint.paths[0] if self.base is not None else self.log.table
        return MissingActionError(
            f"{kind} action not found" + (" in the checkpoint" if self.base else " in the log"),
            path=where,
            version=self.version,
            expected=kind,
            hint="the log is incomplete; restore it from a copy",
        )

    @cached_property
    def last_commit_info(self) -> CommitInfo | None:
        """The commitInfo of the version's own commit, or None if it has none."""
        if (decoded := self.decoded_commit_info) is not None:
            return decoded
        last = self.segment.commits[-1:]
        if last and self.segment.compactions and last[0] not in self.tail.commits:
            infos = self.log.dialect.decode(self.log.store, last, files=False).commit_infos
            return infos[0] if infos else None
        if not self.segment.commits:
            return self._info_under_checkpoint()
        return None

    @cached_property
    def decoded_commit_info(self) -> CommitInfo | None:
        """The commitInfo that was decoded with the version's own commit, if that was decoded."""
        self.ensure_readable()
        for part in reversed(self.meta_parts):
            for info in part.commit_infos[::-1]:
                if info.version == self.version:
                    return info
        return None

    def _info_under_checkpoint(self) -> CommitInfo | None:
        """The commitInfo of the checkpoint's version, if that commit still exists."""
        path = self.log.dialect.commit_path(self.version)
        try:
            commit = CommitFile(self.version, path, 0, 0)
            infos = self.log.dialect.decode(self.log.store, [commit], files=False).commit_infos
        except CorruptionError:
            return None
        return infos[0] if infos else None

    def iter_live(
        self,
        kind: str,
        columns: Sequence[str],
        transform: Transform = lambda frame: frame,
        chosen: Mapping[str, Sequence[int]] | None = None,
        condition: FileCondition | None = None,
        seen: Callable[[pl.DataFrame], None] = lambda _: None,
    ) -> Iterator[pl.DataFrame]:
        """Live file actions of one kind in batches, the checkpoint's first. `chosen` limits the row
        groups, `condition` the files; `seen` receives batches of all live files with ``path`` (and
        ``dvId``). Memory: a few batches and the layers.
        """
        layers = self.layers  # first, because the check would decode it separately
        self.ensure_readable()
        keys = layers.keys()
        wanted = [*columns, *(("dvId",) if keys.height else ())]
        resolved = self._resolver(columns)
        if resolved is not None and "docMappingRef" not in columns:
            wanted.append("docMappingRef")

        def finish(batch: pl.DataFrame) -> pl.DataFrame:
            live = exclude(batch, keys)
            if resolved is not None:
                live = resolved(live)
            # With a condition alone, the reader has called `seen` and filtered.
            if condition is None or chosen is not None:
                seen(live)
                live = _matching(live, condition)
            return transform(live)

        def seen_of_all(batch: pl.DataFrame) -> None:
            seen(exclude(batch.select(c for c in actions.KEY if c in batch.columns), keys))

        if self.base is not None:
            with broken_checkpoint(self.base.checkpoint):
                if chosen is not None:
                    frames = self.base.iter_row_groups(wanted, chosen, kind)
                elif condition is not None:
                    frames = self.base.iter_matching(wanted, condition, seen_of_all)
                else:
                    frames = iter(self.base.iter_files(wanted, (kind,)))
                for frame in map_ahead(finish, frames):
                    if frame.height:
                        yield frame
        live = self._layered(kind, columns)
        if live.height:
            seen(live)
            yield transform(_matching(live, condition))

    def _layered(self, kind: str, columns: Sequence[str]) -> pl.DataFrame:
        live, resolved = self.layers.live(kind), self._resolver(columns)
        return live if resolved is None else resolved(live)

    def _resolver(self, columns: Sequence[str]) -> Transform | None:
        """Resolves references of files with the columns, or None if they need none."""
        if "docMappingJson" not in columns:
            return None
        known = self.references
        return lambda files: self.log.dialect.resolve_references(files, known)

    @cached_property
    def references(self) -> pl.DataFrame:
        """All metaData up to this version, to whose properties files may refer: an older or a newer
        one than that of a file's checkpoint or commit may contain them.
        """
        below = () if self.base is None else (self.base.references,)
        return actions.concat([*below, self.meta_of("metaData")])

    @cached_property
    def base_is_unique(self) -> bool:
        """Whether the checkpoint has each logical file once; memory: eight bytes per file."""
        if self.base is None:
            return True
        with broken_checkpoint(self.base.checkpoint):
            hashes = [f["path"].hash() for f in self.base.read_files(("path",))]
        if not may_repeat(hashes):
            return True
        if self.log.dialect.reconciled_checkpoints:
            self._refuse_repeats()
            return True
        return False

    def _refuse_repeats(self) -> None:
        """Raise for a repeated logical file: if a part was copied over another, the number of rows
        may be equal, and the other part's files are missing.
        """
        assert self.base is not None
        with broken_checkpoint(self.base.checkpoint):
            columns = ("actionType", *actions.KEY)
            rows = [actions.conform(f, columns) for f in self.base.reader.iter_files(actions.KEY)]
            files = pl.concat([actions.empty(columns), *rows])
            repeated = files.filter(files.select(actions.KEY).is_duplicated())
            repeated = exclude(repeated, self.settled.keys())
            if repeated.height:
                raise repeat_error(self.base.checkpoint, repeated)

    def require_settled(self) -> None:
        """Raise for a file both added and removed in the checkpoint, unless that was decided."""
        if self.base is None or not self.log.dialect.reconciled_checkpoints:
            return
        if exclude(self.base.clashes, self.settled.keys()).height:
            self._refuse_repeats()

    def choose(self, condition: FileCondition) -> RowGroupChoice:
        """The checkpoint's row groups that may contain matching live files. All are read if
        completeness depends on it: repeated files, or a commit short of files with a checksum to
        compare.
        """
        if self.base is None:
            return RowGroupChoice(None, "the state has no checkpoint: all commits are read")
        if self.settled.height:
            return RowGroupChoice(None, "the checkpoint contains files more than once")
        if self.segment.has_checksum and self.commits_may_be_cut:
            return RowGroupChoice(
                None,
                "a commit records more files than it contains, which is compared with the version "
                "checksum, or a compaction replaces commits that record nothing",
            )
        return self.base.choose(condition)

    @cached_property
    def commits_may_be_cut(self) -> bool:
        """Whether metrics of a commit above the checkpoint record more files than it has."""
        below = self.past.commits_may_be_cut if self.past is not None else False
        return below or bool(self.tail.compactions) or any(map(may_be_cut, self.tail.parts))

    def live(
        self,
        kind: str,
        columns: Sequence[str],
        transform: Transform = lambda frame: frame,
        condition: FileCondition | None = None,
    ) -> list[pl.DataFrame]:
        """Live file actions of one kind, each logical file once; see `iter_live`.

        Hashes of paths are compared, because a damaged checkpoint (a part copied over another) may
        repeat files. Repeats are damage, or reconciled if the dialect's writers repeat files.
        Memory: the columns.
        """
        base = self.base
        chosen = self.choose(condition).chosen if condition is not None else None
        if chosen is not None and base is not None and condition is not None:
            # With many row groups, the condition's columns are read first.
            is_path = condition.columns == ("path",)
            chosen = None if is_path and base.share_of(chosen) > _SMALL_SHARE else chosen
        hashes: list[pl.Series] = []
        counts: list[int] = []
        identities: list[pl.Series] = []
        removes = base.removed_hashes if base is not None else pl.Series(dtype=pl.UInt64)
        wanted = (*columns, "dvId") if len(removes) else columns

        def seen(frame: pl.DataFrame) -> None:
            counts.append(frame.height)
            if base is not None:
                paths = hash_paths(frame)
                hashes.append(paths)
                if len(removes) and kind == "add":
                    identities.append(hash_identities(frame, paths))

        frames = list(self.iter_live(kind, wanted, transform, chosen, condition, seen))
        if base is not None and (
            may_overlap(identities, removes) or (kind == "remove" and len(removes))
        ):
            if self.log.dialect.reconciled_checkpoints:
                self.require_settled()
            elif base.clashes.height:
                return self._live_reconciled(kind, columns, transform, condition)
        if base is None or not may_repeat(hashes):
            if kind == "add" and chosen is None:
                self.compare_with_checksum(numFiles=sum(counts))
            elif (
                base is not None
                and not self.layers.height
                and (recorded := base.recorded("adds")) is not None
            ):
                self.compare_with_checksum(numFiles=recorded)
            return frames
        if self.log.dialect.reconciled_checkpoints:
            self._refuse_repeats()
            return frames
        return self._live_reconciled(kind, columns, transform, condition)

    def _live_reconciled(
        self,
        kind: str,
        columns: Sequence[str],
        transform: Transform,
        condition: FileCondition | None,
    ) -> list[pl.DataFrame]:
        assert self.base is not None
        with broken_checkpoint(self.base.checkpoint):
            wanted = [*columns, "dvId"]
            if STRUCT_STATISTICS in wanted:
                rows = pl.concat(self.base.reader.iter_files(wanted), how="diagonal_relaxed")
            else:
                rows = actions.concat(self.base.reader.iter_files(wanted))
        rows = reconcile_files(rows).filter(pl.col("actionType") == kind)
        frames = [exclude(rows, self.layers.keys()), self._layered(kind, columns)]
        return [transform(_matching(frame, condition)) for frame in frames if frame.height]

    @cached_property
    def totals(self) -> tuple[int, int]:
        """Number and size in bytes of live files (missing: 0); the checkpoint's share is kept."""
        layers = self.layers
        self.ensure_readable()
        above = layers.live("add", (*actions.KEY, "size"))
        files, size = above.height, sum_sizes(above)
        if (recorded := self._recorded_below()) is not None:
            files, size = files + recorded[0], size + recorded[1]
        elif self.base is not None:
            tally = self.base.tally
            removed = exclude(self.base.removed, layers.keys())
            clash = removed.height > 0 and tally.holds_any(removed)
            if (clash or tally.paths_repeat) and not self.log.dialect.reconciled_checkpoints:
                frames = self.live("add", ("path", "size"))
                return sum(f.height for f in frames), sum(map(sum_sizes, frames))
            if tally.paths_repeat:
                self._refuse_repeats()
            if clash:
                self.require_settled()
            below = tally.without(layers.keys())
            files, size = files + below[0], size + below[1]
        self.compare_with_checksum(numFiles=files, tableSizeBytes=size)
        return files, size

    @property
    def num_files(self) -> int:
        """Number of live files; the checkpoint's recorded number if it has no commits above."""
        base = self.base
        if base is None or "totals" in vars(self) or self.layers.height:
            return self.totals[0]
        self.ensure_readable()
        if (found := base.recorded("adds")) is None:
            return self.totals[0]
        self.compare_with_checksum(numFiles=found)
        return found

    @property
    def num_rows(self) -> int | None:
        """Number of rows that are not deleted, if the checkpoint records it and is the state."""
        if self.base is None or self.layers.height or not self._is_settled:
            return None
        self.ensure_readable()
        return self.base.recorded("numRows")

    @property
    def _is_settled(self) -> bool:
        """Whether checkpoint and commits are the state, without repeated or doubtful files."""
        return not self.settled.height and not (
            self.segment.has_checksum and self.commits_may_be_cut
        )

    def _recorded_below(self) -> tuple[int, int] | None:
        """Number and total size of the checkpoint's live files that no later commit overrides, from
        its records; None if these do not decide it, or counting costs less.
        """
        base = self.base
        if base is None or "tally" in vars(base) or not self._is_settled:
            return None
        files, size = base.recorded("adds"), base.recorded("sizeInBytes")
        if files is None or size is None:
            return None
        keys = self.layers.keys()
        if not keys.height:
            return files, size
        hidden = self._found_below(keys)
        return None if hidden is None else (files - hidden.height, size - sum_sizes(hidden))

    def _found_below(self, keys: pl.DataFrame) -> pl.DataFrame | None:
        """Live files of the checkpoint by (path, dvId); None if in many of its row groups."""
        assert self.base is not None
        condition = path_condition(keys["path"])
        chosen = self.base.choose(condition).chosen
        if chosen is None or self.base.share_of(chosen) > _SMALL_SHARE:
            return None
        columns = (*actions.KEY, "size")
        with broken_checkpoint(self.base.checkpoint):
            frames = [
                actions.conform(frame.filter(condition.may_match(frame)), columns)
                for frame in self.base.iter_row_groups(columns, chosen, "add")
            ]
        found = pl.concat([actions.empty(columns), *frames])
        return found.join(keys.unique(), on=actions.KEY, how="semi", nulls_equal=True)

    def path_texts(self, paths: pl.Series | None = None) -> pl.DataFrame:
        """See `lakelog.dialects.base.Dialect.path_texts`."""
        base, segment = self.base, self.segment
        reader = base.reader if base is not None else None
        with broken_checkpoint(base.checkpoint) if base is not None else nullcontext():
            return self.log.dialect.path_texts(self.log.store, reader, segment.commits, paths)

    @property
    def provenance(self) -> Provenance:
        """The files that this state depends on."""
        past = self.past
        return Provenance(
            self.version,
            self.base.checkpoint if self.base is not None else None,
            self.base.files if self.base is not None else (),
            tuple(c.path for c in (*(past.compactions if past else ()), *self.tail.compactions)),
            tuple(c.path for c in (*(past.commits if past else ()), *self.tail.commits)),
            (*self.notes, *(past.warnings if past else ()), *self.tail.warnings),
        )


def _matching(files: pl.DataFrame, condition: FileCondition | None) -> pl.DataFrame:
    return files if condition is None else files.filter(condition.may_match(files))
