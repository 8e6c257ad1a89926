"""Repairs the damage that `diagnose` found, from the remaining files.

Files of a broken checkpoint are quarantined first (`Table.undo_cleanup` restores them). The version
is then replayed from older files, which `diagnose` found valid. The new checkpoint is verified
before publication, and the pointer is written last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl

from lakelog import telemetry
from lakelog.checkpoint.publish import point_at
from lakelog.checkpoint.verify import independent_state
from lakelog.checkpoint.version_checksum import write_checksum
from lakelog.checkpoint.write import write_checkpoint
from lakelog.dialects.log_content import Checkpoint, LogListing
from lakelog.display import LOG_ONLY, ROWS_NOT_COUNTED, Displayed
from lakelog.errors import (
    LakelogError,
    UnrepairableError,
    UnsupportedStoreError,
)
from lakelog.log.context import Log
from lakelog.log.opening import with_stable_listing
from lakelog.log.segment import latest_version
from lakelog.maintenance.diagnose import (
    CHECK,
    DELETE,
    KEEP,
    REFUSE,
    REMOVE,
    WRITE,
    Finding,
    diagnose_checkpoints,
    diagnose_checksums,
    diagnose_files,
    diagnose_log,
    diagnose_next_version,
    diagnose_pointer,
    diagnose_records,
)
from lakelog.maintenance.inventory import inventory
from lakelog.maintenance.quarantine import Quarantine
from lakelog.maintenance.vacuum import Listing
from lakelog.storage.base import FileEntry
from lakelog.telemetry import Progress

_FINDINGS_SCHEMA = pl.Schema(
    {
        "kind": pl.String(),
        "path": pl.String(),
        "version": pl.Int64(),
        "problem": pl.String(),
        "action": pl.String(),
        "why": pl.String(),
        "num_files": pl.Int64(),
    }
)
"""Columns of `RepairPlan.findings`; see `lakelog.maintenance.diagnose.Finding`."""

_OPERATION = "FSCK"


@dataclass(frozen=True)
class RepairReport(Displayed):
    """Result of a repair.

    Attributes:
        table: Location of the table.
        repaired: Repaired findings; columns as `RepairPlan.findings`.
        left: Findings that were not repaired: refused, failed (``why`` is the error), or not
            checked.
        quarantine: Id of the quarantine that contains files of broken checkpoints; None if no file
            was moved.
        version: Version that removed missing files from the table; None if there is none.
    """

    _title = "Repair"

    table: str
    repaired: pl.DataFrame
    left: pl.DataFrame
    quarantine: str | None = None
    version: int | None = None

    @property
    def unchecked_files(self) -> int:
        """Number of files outside of the table's folder that were not checked."""
        return _unchecked(self.left)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        rows = [("path", self.table), ("repaired", _counted(self.repaired))]
        rows.append(("left", _counted(self.left)))
        if self.quarantine is not None:
            rows.append(("quarantine", self.quarantine))
        if self.version is not None:
            rows.append(("removed in version", str(self.version)))
        if self.unchecked_files:
            rows.append(("not checked", f"{self.unchecked_files:,} files outside of the table"))
        return rows


@dataclass(frozen=True)
class RepairPlan(Displayed):
    """Problems of a log, and their repairs; nothing is changed before `apply`.

    Attributes:
        table: Location of the table.
        findings: One row per finding: ``kind``, ``path`` (String), ``version`` (Int64),
            ``problem``, ``action``, ``why`` (String), ``num_files`` (Int64); see
            `lakelog.maintenance.diagnose.Finding`.
    """

    _title = "Repair plan"

    table: str
    findings: pl.DataFrame
    _repair: Repair = field(repr=False, compare=False)
    _found: tuple[Finding, ...] = field(repr=False, compare=False, default=())

    @property
    def unchecked_files(self) -> int:
        """Number of files outside of the table's folder that were not checked."""
        return _unchecked(self.findings)

    @property
    def is_clean(self) -> bool:
        """Whether there is nothing to repair, and no requested check was left out."""
        return not self.findings.filter(pl.col("action") != KEEP).height

    def apply(self, *, strict: bool = False) -> RepairReport:
        """Diagnose again, then repair. A failed repair is reported, and the others continue.

        With `strict`, UnrepairableError is raised before any change if a finding has no correct
        repair. UnsupportedStoreError is raised for a read-only store, UnavailableError if the
        diagnosis fails.
        """
        return self._repair.apply(strict=strict)

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Labels and values for display."""
        rows = [("path", self.table)]
        if self.is_clean:
            scope = ROWS_NOT_COUNTED if self._repair.is_of_files else LOG_ONLY
            kept = (
                self.findings.height > 0
            )  # such as a checkpoint below which the log was cleaned up
            result = "nothing needs repair" if kept else "no problem was found"
            rows.append(("result", f"{result}{scope}"))
        if self.findings.height:
            rows.append(("findings", _counted(self.findings)))
        rows += [
            (f"{row['action']} {row['kind']}", f"{row['path']}: {row['problem']}")
            for row in self.findings.head(10).iter_rows(named=True)
        ]
        return rows


@dataclass(frozen=True)
class Repair:
    """Parameters of a repair. `refused` returns the live files that reading refuses because of what
    the log records of them. `remove` creates the transaction that removes missing files, if
    `remove_missing`; `files` replaces the listing of the table's folder, if `check_files`.
    """

    log: Log
    refused: Callable[[], Iterable[LakelogError]]
    remove: Callable[[Sequence[str]], int | None]
    check_files: bool = False
    remove_missing: bool = False
    files: Any = None
    progress: Progress | None = None

    @property
    def is_of_files(self) -> bool:
        """Whether the data files are checked too."""
        return self.check_files or self.remove_missing

    def plan(self) -> RepairPlan:
        """Diagnose the log; changes nothing."""
        found = tuple(self._look())
        return RepairPlan(self.log.table, _frame(found), self, found)

    def _look(self) -> list[Finding]:
        """The findings; diagnosed again if files of the log were deleted during the diagnosis."""
        return with_stable_listing(
            self.log, self._diagnosed, lambda found: all(f.action == KEEP for f in found)
        )

    def _diagnosed(self, listing: LogListing) -> list[Finding]:
        notify = self.progress or (lambda _step, _done, _total: None)
        found = list(diagnose_log(self.log))
        found += diagnose_next_version(self.log, latest_version(listing, self.log.table))
        checkpoints, doubtful = diagnose_checkpoints(self.log, listing, notify)
        undecided = {f.checkpoint for f in checkpoints if f.is_undecided and f.checkpoint}
        bad = [f for f in checkpoints if f.action != KEEP and not f.is_undecided]
        lost = {f.checkpoint for f in bad if f.action == REFUSE and f.checkpoint}
        wrong = {f.checkpoint for f in bad if f.checkpoint}
        found += checkpoints
        found += diagnose_pointer(self.log, listing, lost, wrong, undecided)
        doubtful |= {f.checkpoint for f in checkpoints if f.checkpoint}
        proved = {c.version for c in listing.checkpoints if c not in doubtful}
        found += diagnose_checksums(self.log, listing, wrong, proved)
        if any(f.kind == "log" for f in found):
            return found
        found += diagnose_records(self.refused())
        if self.is_of_files:
            listed = Listing(self.log, self.files)
            found += diagnose_files(self.log, listed, remove=self.remove_missing)
        return found

    def apply(self, *, strict: bool) -> RepairReport:
        """Repair; see `RepairPlan.apply`."""
        log = self.log
        if log.store.refusal is not None:
            raise UnsupportedStoreError(log.store.refusal, path=log.table)
        found = self._look()
        refused = [f for f in found if f.action == REFUSE]
        if strict and refused:
            first = refused[0]
            raise UnrepairableError(
                f"{first.kind} cannot be repaired: {first.problem}",
                path=first.path,
                version=first.version,
                found=first.problem,
                hint=first.why,
            )
        work = _Work(self)
        with telemetry.span("repair.apply", path=log.table):
            work.prepare([f for f in found if f.action == WRITE and not _own_source(log, f)])
            # Oldest first: a newer checkpoint may be replayed from an older one.
            for finding in reversed([f for f in found if f.kind == "checkpoint"]):
                if finding.action == WRITE:
                    work.attempt(finding, work.rewrite)
            unrepaired = [f for f in (*work.failed, *refused) if f.kind == "checkpoint"]
            broken = {f.checkpoint for f in unrepaired if f.checkpoint and not f.is_undecided}
            for finding in found:
                if finding.kind == "pointer" and finding.action in {WRITE, DELETE}:
                    work.attempt(finding, partial(work.point, broken=broken))
                if finding.kind == "checksum" and finding.action == WRITE:
                    work.attempt(finding, work.record)
            work.record_written()
            work.remove([f for f in found if f.action == REMOVE])
        left = [*work.failed, *(f for f in found if f.action in {REFUSE, CHECK})]
        telemetry.event("repair.done", path=log.table, repaired=len(work.repaired), left=len(left))
        return RepairReport(
            log.table, _frame(work.repaired), _frame(left), work.quarantine_id, work.version
        )


class _Work:
    def __init__(self, repair: Repair) -> None:
        self.repaired: list[Finding] = []
        self.failed: list[Finding] = []
        self.version: int | None = None
        self._repair = repair
        self._log = repair.log
        self._quarantine: Quarantine | None = None

    @property
    def quarantine_id(self) -> str | None:
        return self._quarantine.id if self._quarantine is not None else None

    def attempt(self, finding: Finding, repair_one: Callable[[Finding], None]) -> None:
        """Run one repair; its error is recorded, and the next repair continues."""
        try:
            repair_one(finding)
        except LakelogError as error:
            self.failed.append(finding._replace(action=REFUSE, why=str(error)))
        else:
            self.repaired.append(finding)

    def prepare(self, findings: Sequence[Finding]) -> None:
        """Begin the quarantine of the files that will be replaced."""
        log, folder = self._log, self._log.dialect.log_folder
        entries: list[FileEntry] = []
        leads: dict[str, bool] = {}
        for path, is_first in _replaced(findings):
            entry = log.store.stat(path)
            if entry is not None:
                name = path.removeprefix(f"{folder}/")
                entries.append(FileEntry(name, entry.size_bytes, entry.modified_ms))
                leads[path] = is_first
        if entries:
            files = inventory(entries, log.dialect)
            leading = pl.col("path").replace_strict(leads, return_dtype=pl.Boolean)
            files = files.with_columns(leads=leading)
            self._quarantine = Quarantine.begin(log, files, "repair")

    def record_written(self) -> None:
        """Record what was written in the place of moved files, so that undo can replace it."""
        if self._quarantine is not None:
            paths = [path for path, _ in _replaced([f for f in self.repaired if f.action == WRITE])]
            with suppress(LakelogError):  # the files are repaired; undo then keeps them
                self._quarantine.record_written(paths)

    def _set_aside(self, paths: Sequence[str]) -> None:
        if self._quarantine is not None:
            errors, _ = self._quarantine.take(paths)
            if errors:
                raise errors[0]

    def rewrite(self, finding: Finding) -> None:
        """Move a broken checkpoint to quarantine, and write it again."""
        checkpoint = finding.checkpoint
        assert checkpoint is not None
        if not _own_source(self._log, finding):
            self._set_aside(checkpoint.paths)
        write_checkpoint(self._log, checkpoint.version, layout=checkpoint.layout)

    def point(self, finding: Finding, broken: Collection[Checkpoint]) -> None:
        """Name the newest checkpoint that is not broken in the pointer, or delete the pointer."""
        log = self._log
        if finding.action == WRITE:
            names = (c for c in log.list_all().checkpoints if c.version <= (finding.version or 0))
            if any(point_at(log, c) for c in reversed(list(names)) if c not in broken):
                return
        log.store.delete(log.dialect.pointer_path)

    def record(self, finding: Finding) -> None:
        """Write a version checksum again."""
        self._set_aside([finding.path])
        write_checksum(self._log, finding.version)

    def remove(self, findings: Sequence[Finding]) -> None:
        """Remove missing files from the table in one commit."""
        if not findings:
            return
        try:
            self.version = self._repair.remove([f.path for f in findings])
        except LakelogError as error:
            self.failed += [f._replace(action=REFUSE, why=str(error)) for f in findings]
        else:
            self.repaired += findings


def _own_source(log: Log, finding: Finding) -> bool:
    """Whether a checkpoint is rewritten from itself, so that it must stay until replaced."""
    checkpoint = finding.checkpoint
    if finding.kind != "checkpoint" or checkpoint is None:
        return False
    return independent_state(log, checkpoint.version) is None


def _replaced(findings: Sequence[Finding]) -> Iterator[tuple[str, bool]]:
    """Files that will be replaced, and whether each is the first of its checkpoint."""
    for finding in findings:
        if finding.kind == "checkpoint" and finding.checkpoint is not None:
            yield from ((path, not n) for n, path in enumerate(finding.checkpoint.paths))
        elif finding.kind == "checksum":
            yield finding.path, True


def _frame(findings: Sequence[Finding]) -> pl.DataFrame:
    return pl.DataFrame(
        [f[: len(_FINDINGS_SCHEMA)] for f in findings], schema=_FINDINGS_SCHEMA, orient="row"
    )


def _unchecked(findings: pl.DataFrame) -> int:
    return int(findings.filter(pl.col("action") == CHECK)["num_files"].sum())


def _counted(findings: pl.DataFrame) -> str:
    kinds = findings.group_by("kind").len().sort("kind")
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.iter_rows()) or "nothing"
