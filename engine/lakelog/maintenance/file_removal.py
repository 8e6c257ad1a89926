"""Removing files of a log, in an order in which every state in between is valid.

First what only speeds reading up (compactions, leftovers, staged commits), then commits from the
oldest, each with its checksum, then of each old checkpoint the file without which it is not
complete, then its other files, then sidecars that no checkpoint names any more, looked up again.

Whenever that stops, what is left is a table with all promised versions: commits below the cut-off
checkpoint are needed by none of them, a checkpoint is either whole or seen to be incomplete, and a
sidecar goes after every manifest that named it.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from lakelog.errors import LakelogError, UnavailableError
from lakelog.log.context import Log
from lakelog.maintenance.inventory import ListedStore, inventory, walk_log
from lakelog.maintenance.log_survey import Request, Survey, named_sidecars
from lakelog.maintenance.quarantine import Quarantine
from lakelog.telemetry import Progress

_CHUNK = 1000


class Removal:
    """Deletes or moves away, phase by phase; a phase begins only when all before it are done."""

    def __init__(self, log: Log, request: Request, seen: Survey, tell: Progress) -> None:
        self.quarantine: Quarantine | None = None
        self.errors: list[LakelogError] = []
        self.size_bytes = 0
        self._log = log
        self._request = request
        self._seen = seen
        self._tell = tell
        self._gone: list[str] = []

    def remove(self, doomed: pl.DataFrame) -> None:
        """Remove files, from what no process needs to what must go last."""
        total = doomed.height
        if not total:
            return
        if self._request.quarantine:
            self.quarantine = Quarantine.begin(self._log, doomed, "cleanup")
        sizes = dict(doomed.select("path", "size_bytes").iter_rows())
        for phase in phases(doomed):
            wanted = self._still_unnamed(phase) if _is_last(phase) else phase["path"].to_list()
            for begin in range(0, len(wanted), _CHUNK):
                chunk = wanted[begin : begin + _CHUNK]
                errors = self._remove(chunk)
                failed = {error.path for error in errors}
                done = [path for path in chunk if path not in failed]
                self._gone += done
                self.size_bytes += sum(sizes[path] for path in done)
                self.errors += errors
                self._tell("delete", len(self._gone), total)
                if errors and self._seen.policy == "fail":
                    raise errors[0]
            if self.errors:
                # What goes later may only go once this has: commits before the checkpoints under
                # them, a manifest before what it names.
                return

    def gone(self, doomed: pl.DataFrame) -> pl.DataFrame:
        """The rows of the files that are gone, in that order."""
        order = pl.DataFrame({"path": pl.Series(self._gone, dtype=pl.String)})
        rows = doomed.select("path", "kind", "version", "size_bytes")
        return order.join(rows, on="path", how="left", maintain_order="left")

    def _remove(self, paths: list[str]) -> list[LakelogError]:
        if self.quarantine is not None:
            return self.quarantine.take(paths)
        return self._log.store.delete_many(paths)

    def _still_unnamed(self, phase: pl.DataFrame) -> list[str]:
        """Sidecars that are named by no checkpoint now that old ones are gone: one may have been
        written since.
        """
        store = self._log.store
        entries = walk_log(self._log)
        folder = self._log.dialect.log_folder
        now = replace(self._log, store=ListedStore(store, folder, entries))
        files = inventory(entries, self._log.dialect)
        if self.quarantine is not None:
            # What has just been moved there takes its sidecars along.
            files = files.filter(~pl.col("path").str.starts_with(f"{self.quarantine.folder}/"))
        kept = files.with_columns(pl.lit("keep").alias("action"))
        try:
            named = named_sidecars(now, kept, now.list_all().checkpoints)
        except UnavailableError:
            named = None
        if named is None:
            return []
        return [path for path in phase["path"] if path not in named]


def phases(doomed: pl.DataFrame) -> list[pl.DataFrame]:
    """The files in the order in which they may go; within a phase the order is free."""
    kind = pl.col("kind")
    is_history = kind.is_in(["commit", "checksum"])
    is_checkpoint = kind == "checkpoint"
    parts = (
        ~(is_history | is_checkpoint | (kind == "sidecar")),
        is_history,
        is_checkpoint & pl.col("leads"),
        is_checkpoint & ~pl.col("leads"),
        kind == "sidecar",
    )
    ordered = doomed.sort("version", "path", nulls_last=True)
    return [phase for part in parts if (phase := ordered.filter(part)).height]


def _is_last(phase: pl.DataFrame) -> bool:
    return bool((phase["kind"] == "sidecar").all())
