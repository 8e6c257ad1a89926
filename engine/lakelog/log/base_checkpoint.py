"""`Base`: the checkpoint that a state starts from, and the handling of its damage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import polars as pl

from lakelog.dialects.log_content import Checkpoint, CheckpointReader
from lakelog.errors import CheckpointCorruptionError, CorruptionError, MissingActionError
from lakelog.lazy import cached_property
from lakelog.log.file_counts import Tally, hash_identities
from lakelog.log.projections import Projections
from lakelog.model import actions

if TYPE_CHECKING:
    from lakelog.log.repeated_files import Settled


class Base:
    """The checkpoint under a state: its reader, and what was read from it, shared by updates.

    Attributes:
        projections: Keeps file columns that are asked for again; None keeps none.
        settled: What was decided of files that it holds more than once
            (`lakelog.log.repeated_files`).
    """

    def __init__(self, reader: CheckpointReader) -> None:
        self.reader = reader
        self.checkpoint = reader.checkpoint
        self.projections: Projections | None = None
        self.settled: Settled | None = None

    def iter_files(self, columns: Sequence[str], kinds: tuple[str, ...]) -> Iterable[pl.DataFrame]:
        """File actions in batches, as `CheckpointReader.iter_files`, or as they were kept."""
        if self.projections is None:
            return self.reader.iter_files(columns, kinds)
        return self.projections.iter_files(
            self, columns, kinds, lambda: self.reader.iter_files(columns, kinds)
        )

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

    def _read(self, kinds: Sequence[str]) -> pl.DataFrame:
        with broken_checkpoint(self.checkpoint):
            return self.reader.read_meta(kinds)

    @cached_property
    def has_struct_statistics(self) -> bool:
        """Whether the checkpoint keeps statistics as a struct."""
        with broken_checkpoint(self.checkpoint):
            return self.reader.struct_statistics() is not None

    @cached_property
    def tally(self) -> Tally:
        """Number and sizes of the checkpoint's files. Memory: 24 bytes per file."""
        with broken_checkpoint(self.checkpoint):
            return Tally.of(self.reader.iter_files(("path", "size", "dvId"), ("add",)))

    @cached_property
    def removed(self) -> pl.DataFrame:
        """(path, dvId) of tombstones that may be of files which it also adds. Memory: they."""
        with broken_checkpoint(self.checkpoint):
            if self.reader.is_reconciled():
                return actions.empty(actions.KEY)
            frames = self.reader.iter_files(actions.KEY, ("remove",))
            return pl.concat(
                [actions.empty(actions.KEY), *(actions.conform(f, actions.KEY) for f in frames)]
            )

    @cached_property
    def removed_hashes(self) -> pl.Series:
        """`removed`, as `hash_identities` gives them."""
        return hash_identities(self.removed)

    @cached_property
    def clashes(self) -> pl.DataFrame:
        """(path, dvId) of files that it removes, and that it adds or removes again.

        Memory: its tombstones.
        """
        removed = self.removed
        if not removed.height:
            return removed
        gone = self.removed_hashes.unique().implode()
        with broken_checkpoint(self.checkpoint):
            added = [
                actions.conform(frame.filter(hash_identities(frame).is_in(gone)), actions.KEY)
                for frame in self.reader.iter_files(actions.KEY, ("add",))
            ]
        both = pl.concat([removed, *(f.unique() for f in added)])
        return both.filter(both.is_duplicated()).unique()

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Files that a full read depends on."""
        with broken_checkpoint(self.checkpoint):
            return self.reader.files_read()


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
                f"{error.message}",
                path=error.path or self.checkpoint.paths[0],
                version=self.checkpoint.version,
                line=error.line,
                byte_offset=error.byte_offset,
                expected=error.expected,
                found=error.found,
                hint=error.hint,
            ) from error
