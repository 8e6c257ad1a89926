"""`StateSource`: yields the rows of one version for a checkpoint, in bounded memory.

Without a limit, the commits above the checkpoint are held in memory, and the checkpoint is read in
batches. With a limit, commits that exceed it are partitioned on disk by a hash of the path,
together with the checkpoint's rows that they may affect, and reconciled partition by partition; all
other rows of the checkpoint pass through.

Source: Delta protocol, Action Reconciliation; Checkpoints.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum
from typing import Self

import polars as pl

from lakelog.checkpoint.bounded_memory import (
    Budget,
    PathMask,
    Repeats,
    Spill,
    hashes_of,
    release,
    resident_bytes,
    stack,
)
from lakelog.dialects.log_content import (
    CHECKPOINT_META,
    NOT_IN_REMOVES,
    Actions,
    Checkpoint,
    CheckpointReader,
)
from lakelog.errors import InvalidInputError
from lakelog.lazy import cached_property
from lakelog.log import properties
from lakelog.log.base_checkpoint import broken_checkpoint
from lakelog.log.context import Log
from lakelog.log.repeated_files import repeat_error
from lakelog.log.replay import (
    Layers,
    exclude,
    is_expired,
    live_domains,
    reconcile_files,
    reconcile_meta,
    retained_tombstones,
    with_path_texts,
)
from lakelog.log.state import Past, State
from lakelog.model import actions
from lakelog.model.actions import PATH_TEXT
from lakelog.model.metadata import Metadata, Protocol
from lakelog.storage.bounded import on_local_disk

_BATCH_ROWS = 1 << 16
_NEAR_BATCH_BYTES = 7 << 20
_FREE_BATCH_BYTES = 32 << 20  # without a memory limit: size of buffered rows to sort, in bytes
_READ_WHOLE = ("v2-json", "json", "json-multipart", "avro-state")
_DECODED_PER_BYTE = 1  # approximate bytes of decoded rows per byte of a commit's text
_COMPRESSED = 8  # maximum compression ratio of a framed commit
_ROW_BYTES = 512  # approximate memory of a row that is compared with others, in bytes


class ReplayMode(Enum):
    """How the commits above a checkpoint are reconciled with it."""

    FREE = "free"
    """In memory, the fastest way."""
    LAYERS = "layers"
    """In memory, decoded in pieces."""
    SPILL = "spill"
    """On disk, by partition."""


def choose_replay_mode(budget: Budget | None, tail_bytes: int, repeats: bool) -> ReplayMode:
    """Choose how to reconcile."""
    if budget is None:
        return ReplayMode.FREE
    return ReplayMode.SPILL if repeats or tail_bytes > budget.tail else ReplayMode.LAYERS


def count_partitions(tail_bytes: int, partition_bytes: int) -> int:
    """Number of partitions of `tail_bytes` of commits, each of about `partition_bytes`."""
    return max(1, -(-tail_bytes * _DECODED_PER_BYTE // partition_bytes))


class StateSource:
    """The rows of a checkpoint of one version; the context manager frees its disk space."""

    def __init__(
        self,
        state: State,
        *,
        memory_limit: int | None,
        now_ms: int,
        budget: Budget | None = None,
    ) -> None:
        if budget is None and memory_limit is not None:
            budget = Budget.of(memory_limit, resident_bytes())
        self._state = state
        self._now_ms = now_ms
        self._budget = budget
        self._open = ExitStack()
        self._varying: list[pl.Series] = []  # paths of commits with several encodings of one path
        weakref.finalize(self, self._open.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the disk space. Later calls read again."""
        self._open.close()
        for name in ("_spilled", "_layers"):
            vars(self).pop(name, None)

    @property
    def protocol(self) -> Protocol:
        """The protocol; errors as `meta`."""
        return self._meta_state.protocol

    @property
    def metadata(self) -> Metadata:
        """The metadata; errors as `meta`."""
        return self._meta_state.metadata

    @cached_property
    def meta(self) -> pl.DataFrame:
        """Narrow non-file actions, without removed domains and expired identifiers."""
        meta = self._meta_state.meta
        kinds = {kind: actions.of_type(meta, kind) for kind in CHECKPOINT_META}
        kinds["domainMetadata"] = live_domains(meta)
        retention = properties.transaction_retention_ms(self.metadata.configuration)
        if retention is not None:
            counts = ~is_expired(self._now_ms - retention)
            last_updated = actions.conform(kinds["txn"], ("lastUpdated",))
            kinds["txn"] = kinds["txn"].filter(last_updated.select(counts).to_series())
        return actions.concat(kinds.values())

    @cached_property
    def _meta_state(self) -> State:
        """The state without the files above the checkpoint."""
        if self.replay_mode is ReplayMode.FREE:
            return self._state
        tail = self._spilled[1] if self.replay_mode is ReplayMode.SPILL else self._layers[1]
        return replace(self._state, past=Past(Layers(), tail, (), (), (), False), new_commits=())

    @cached_property
    def replay_mode(self) -> ReplayMode:
        """How the rows are reconciled."""
        return choose_replay_mode(self._budget, self._tail_bytes, repeats=bool(len(self._repeated)))

    @property
    def held_bytes(self) -> int | None:
        """Bytes of rows that may be in memory for sorting; None without a memory limit."""
        return None if self._budget is None else self._budget.flush

    @cached_property
    def _tail_bytes(self) -> int:
        plain = not self._state.log.dialect.commits_may_be_compressed
        listed = sum(c.size_bytes for c in self._state.segment.commits)
        return listed if plain else listed * _COMPRESSED

    @cached_property
    def _base(self) -> CheckpointReader | None:
        checkpoint = self._state.segment.checkpoint
        if checkpoint is None:
            return None
        log = self._state.log
        if self._budget is None:
            return open_in_batches(log, checkpoint, near_batch_bytes=_FREE_BATCH_BYTES)
        _require_batches(log, checkpoint, self._budget)
        return log.dialect.open_checkpoint(log.store, checkpoint, self._budget.batch)

    def files(self, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """File actions, each logical file once: adds, then retained tombstones."""
        configuration = self.metadata.configuration
        minimum = self._now_ms - properties.deleted_file_retention_ms(configuration)
        adds = list(dict.fromkeys((*actions.KEY, "actionType", *columns)))
        adds.append(PATH_TEXT)
        removes = list(dict.fromkeys((*adds, "deletionTimestamp")))
        if not self._state.log.dialect.checkpoints_keep_all_fields:
            removes = [c for c in removes if c not in NOT_IN_REMOVES]
        if self.replay_mode is ReplayMode.SPILL:
            rows = self._partitioned(adds, removes, minimum)
        else:
            rows = self._streamed(adds, removes)
        for kind, frame in rows:
            if kind == "add":
                yield from _batches(frame, adds)
            else:
                yield from _batches(retained_tombstones(frame, minimum), removes)
            if self._budget is not None:
                release()

    def _streamed(
        self, adds: Sequence[str], removes: Sequence[str]
    ) -> Iterator[tuple[str, pl.DataFrame]]:
        """The checkpoint's rows that no layer overrides, then those of the layers, kind by kind."""
        is_reconciled = self._state.log.dialect.reconciled_checkpoints
        if (
            self.replay_mode is ReplayMode.FREE
            and not is_reconciled
            and not self._state.base_is_unique
        ):
            for kind, columns in (("add", adds), ("remove", removes)):
                for frame in self._state.live(kind, columns):
                    yield kind, frame
            return
        layers = self._state.layers if self.replay_mode is ReplayMode.FREE else self._layers[0]
        keys = layers.keys()
        texts = self._state.path_texts(keys["path"])
        with Repeats(None if self._budget is None else self._budget.hashes) as seen:
            for kind, columns in (("add", adds), ("remove", removes)):
                for frame in self._read_base(columns, (kind,)):
                    if is_reconciled:
                        seen.add(hashes_of(frame["path"]))
                    yield kind, exclude(frame, keys)
                above = self._resolved(layers.live(kind, columns), columns)
                yield kind, with_path_texts(above, texts)
            self._refuse_repeats(seen)

    def _partitioned(
        self, adds: Sequence[str], removes: Sequence[str], minimum_ms: int
    ) -> Iterator[tuple[str, pl.DataFrame]]:
        """Checkpoint rows without later changes, then the partitions' adds, then tombstones."""
        assert self._budget is not None
        above, _, mask = self._spilled
        texts = self._texts
        flush = self._budget.flush // 2
        is_reconciled = self._state.log.dialect.reconciled_checkpoints
        with (
            Repeats(self._budget.hashes) as seen,
            Spill(above.partitions, flush) as below,
            Spill(1, flush) as kept_tombstones,
        ):

            def without_tombstones(rows: pl.DataFrame) -> pl.DataFrame:
                removed = rows.filter(pl.col("actionType") == "remove")
                kept_tombstones.append(retained_tombstones(removed, minimum_ms))
                return rows.filter(pl.col("actionType") == "add")

            wanted = [c for c in (*adds, "deletionTimestamp") if c != PATH_TEXT]
            for frame in self._read_base(wanted, actions.FILE_ACTIONS):
                hashes = hashes_of(frame["path"])
                if is_reconciled:
                    seen.add(hashes)
                suspect = mask.may_hold(hashes)
                below.append(frame.filter(suspect))
                yield "add", with_path_texts(without_tombstones(frame.filter(~suspect)), texts)
            for number in range(above.partitions):
                rows = stack([*below.frames(number), *above.frames(number)])
                if rows.height:
                    rows = self._resolved(without_tombstones(reconcile_files(rows)), adds)
                    yield "add", with_path_texts(rows, texts)
            for frame in kept_tombstones.frames(0):
                yield "remove", with_path_texts(self._resolved(frame, removes), texts)
            self._refuse_repeats(seen)

    @cached_property
    def _layers(self) -> tuple[Layers, pl.DataFrame]:
        """The commits above the checkpoint, reconciled in memory: file actions, and the others."""
        layers, meta = self._state.settled, reconcile_meta([])
        for piece in self._pieces():
            layers = layers.push(piece.files)
            meta = reconcile_meta([meta, piece.meta])
        return layers, meta

    @cached_property
    def _spilled(self) -> tuple[Spill, pl.DataFrame, PathMask]:
        """The commits' file actions by partition, other actions, and a mask of affected paths."""
        assert self._budget is not None
        partitions = count_partitions(
            self._tail_bytes + _ROW_BYTES * len(self._repeated), self._budget.partition
        )
        log = self._state.log
        spill = self._open.enter_context(Spill(partitions, self._budget.flush))
        mask = PathMask(self._budget.filter)
        mask.add(self._repeated)
        meta = reconcile_meta([])
        for settled in self._state.settled.frames:
            mask.add(hashes_of(settled["path"]))
            spill.append(settled)
        for piece in self._pieces():
            if piece.files.height:
                mask.add(hashes_of(piece.files["path"]))
                self._varying.append(log.dialect.varying_paths(piece.files["path"]))
                spill.append(piece.files)
            meta = reconcile_meta([meta, piece.meta])
        spill.flush()
        return spill, meta, mask

    @cached_property
    def _texts(self) -> pl.DataFrame:
        """See `State.path_texts`: for the checkpoint's paths, and the spilled ones."""
        log = self._state.log
        below = log.dialect.path_texts(log.store, self._base, ())
        above = self._state.path_texts(pl.concat(self._varying)) if self._varying else below.clear()
        return pl.concat([below, above]).unique("path", keep="last", maintain_order=True)

    def _pieces(self) -> Iterator[Actions]:
        assert self._budget is not None
        log, commits = self._state.log, self._state.segment.commits
        for piece in log.dialect.decode_pieces(log.store, commits, self._budget.chunk):
            yield piece
            release()

    def _resolved(self, files: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        # `_meta_state` itself reads paths of the checkpoint.
        if "docMappingJson" not in columns or not files.height:
            return files
        return self._state.log.dialect.resolve_references(files, self._meta_state.references)

    def _read_base(self, columns: Sequence[str], kinds: Sequence[str]) -> Iterator[pl.DataFrame]:
        if self._base is None:
            return
        with broken_checkpoint(self._base.checkpoint):
            for frame in self._base.iter_files(columns, kinds):
                if frame.height:
                    yield self._resolved(frame, columns)

    @cached_property
    def _repeated(self) -> pl.Series:
        """Hashes of the paths that the checkpoint may correctly contain more than once."""
        if self._budget is None or self._state.log.dialect.reconciled_checkpoints:
            return pl.Series(dtype=pl.UInt64)
        with Repeats(self._budget.hashes) as seen:
            for frame in self._read_base(("path",), actions.FILE_ACTIONS):
                seen.add(hashes_of(frame["path"]))
            return seen.repeated()

    def _refuse_repeats(self, seen: Repeats) -> None:
        """Raise for a repeated (path, dvId) in the checkpoint; see `State.live`."""
        repeated = seen.repeated()
        if self._base is None or not len(repeated):
            return
        budget = self._budget
        partitions, flush = 1, 1 << 62
        if budget is not None:
            partitions = -(-len(repeated) * _ROW_BYTES // budget.partition)
            flush = budget.flush
        with Spill(partitions, flush) as keys:
            for frame in self._read_base(actions.KEY, actions.FILE_ACTIONS):
                again = hashes_of(frame["path"]).is_in(repeated.implode())
                found = actions.conform(frame.filter(again), ("actionType", *actions.KEY))
                keys.append(exclude(found, self._state.settled.keys()))
            for number in range(keys.partitions):
                rows = keys.read(number)
                if not rows.height:
                    continue
                twice = rows.filter(rows.select(actions.KEY).is_duplicated())
                if twice.height:
                    with broken_checkpoint(self._base.checkpoint):
                        raise repeat_error(self._base.checkpoint, twice)


def _require_batches(log: Log, checkpoint: Checkpoint, budget: Budget) -> None:
    """Raise for a file that can only be read whole, and does not fit in the limit."""
    if checkpoint.layout not in _READ_WHOLE:
        return
    found = [log.store.stat(path) for path in checkpoint.paths]
    size = sum(entry.size_bytes for entry in found if entry is not None)
    text = size if checkpoint.layout == "v2-json" else size * _COMPRESSED
    if text > budget.whole:
        raise InvalidInputError(
            (
                "a checkpoint of this layout is read as a whole, and does not fit in the "
                "memory limit"
            ),
            path=checkpoint.paths[0],
            version=checkpoint.version,
            expected=f"at most {budget.whole} bytes",
            found=text,
            hint="raise memory_limit, or omit it",
        )


def open_in_batches(
    log: Log,
    checkpoint: Checkpoint,
    batch_bytes: int | None = None,
    *,
    near_batch_bytes: int = _NEAR_BATCH_BYTES,
) -> CheckpointReader:
    """A reader for one pass; small batches of a local file halve the memory."""
    if batch_bytes is None and on_local_disk(log.store):
        batch_bytes = near_batch_bytes
    return log.dialect.open_checkpoint(log.store, checkpoint, batch_bytes)


def _batches(frame: pl.DataFrame, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    kept = frame.select(c for c in frame.columns if c in columns)
    if "dataChange" in columns:
        kept = kept.with_columns(dataChange=pl.lit(value=False))
    if kept.height:
        yield from kept.iter_slices(_BATCH_ROWS)
