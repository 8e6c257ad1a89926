"""Quarantine: log files that were moved instead of deleted, and can be restored.

A quarantine is a folder ``<log folder>/.lakelog-quarantine/<time>-<id>/``. It contains the files
under their names and a record, ``quarantine.json``, which is written before the first file is
moved, so that an interrupted cleanup can be undone. Readers ignore names that begin with a dot.

Restoring never replaces an existing file, except on request one that the repair itself wrote in the
place of a file that it moved: the record has the digest of what it wrote, and a file that was
changed since is kept. Local files keep their modification times. Object stores
copy, so a restored commit has a new time: without in-commit timestamps, the times of later versions
increase too, and a cleanup keeps more.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import orjson
import polars as pl

from lakelog import telemetry
from lakelog.errors import (
    CorruptionError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from lakelog.log.context import Log
from lakelog.maintenance.inventory import QUARANTINE
from lakelog.storage.base import IN_FLIGHT
from lakelog.storage.durable import TEMPORARY
from lakelog.threads import Pool

_RECORD = "quarantine.json"
_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}", re.ASCII)
_COMMIT = re.compile(r"(0[0-9]{19})\.json")  # no version has twenty significant digits
_LOCAL_MOVES = 4
_DAY_MS = 86_400_000
_FIRST_BACK = ("sidecar", "checkpoint", "commit", "checksum")

UNDONE_SCHEMA = pl.Schema(
    {"path": pl.String, "kind": pl.String, "size_bytes": pl.Int64, "outcome": pl.String}
)
"""Columns of `undo`: ``outcome`` is ``back`` (restored), ``kept`` (another file has the name; the
file remains in quarantine), ``there`` (the file was never moved) or ``missing`` (the file is in
neither folder).
"""

QUARANTINES_SCHEMA = pl.Schema(
    {
        "id": pl.String(),
        "created": pl.Datetime("ms", "UTC"),
        "by": pl.String(),
        "files": pl.Int64(),
        "size_bytes": pl.Int64(),
        "oldest_version": pl.Int64(),
        "newest_version": pl.Int64(),
    }
)
"""Columns of `quarantines`: ``by`` is the operation that created it, ``cleanup`` or ``repair``;
null if the record cannot be read or lacks it; ``files`` and ``size_bytes`` count the remaining
files; the versions are those of the commits among them.
"""


@dataclass(frozen=True)
class Quarantine:
    """A quarantine that is being filled."""

    log: Log
    id: str

    @staticmethod
    def begin(log: Log, files: pl.DataFrame, by: Literal["cleanup", "repair"]) -> Quarantine:
        """Write the record of a new quarantine for `files` before any is moved."""
        now_ms = log.clock()
        at = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        begun = Quarantine(log, f"{at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}")
        columns = ("path", "kind", "version", "size_bytes", "leads")
        held = files.select(columns).to_dicts()
        record = {"id": begun.id, "createdMs": now_ms, "by": by, "files": held}
        try:
            log.store.put(f"{begun.folder}/{_RECORD}", orjson.dumps(record))
        except OutcomeUnknownError as error:
            raise UnavailableError(
                "the record of the quarantine could not be written; nothing was moved",
                path=begun.folder,
            ) from error
        return begun

    @property
    def folder(self) -> str:
        """Folder of the quarantine, relative to the table root."""
        return f"{self.log.dialect.log_folder}/{QUARANTINE}/{self.id}"

    def place_of(self, path: str) -> str:
        """Path in quarantine of a log file."""
        return f"{self.folder}/{path.removeprefix(self.log.dialect.log_folder + '/')}"

    def record_written(self, paths: Sequence[str]) -> None:
        """Add the digests of the files that now have the names of moved ones to the record."""
        store, path = self.log.store, f"{self.folder}/{_RECORD}"
        written = {each: found for each in paths if (found := _digest(self.log, each)) is not None}
        store.put(path, orjson.dumps(orjson.loads(store.read(path)) | {"written": written}))

    def take(self, paths: Sequence[str]) -> list[LakelogError]:
        """Move files in, except missing ones; returns the errors of those not moved."""

        def move(path: str) -> LakelogError | None:
            return _moved(self.log, path, self.place_of(path))

        errors = _all(self.log, move, paths)
        return [e for e in errors if e is not None and not isinstance(e, NotFoundError)]


def _digest(log: Log, path: str) -> str | None:
    """SHA-256 of a file; None if it does not exist."""
    try:
        return hashlib.sha256(log.store.read(path)).hexdigest()
    except NotFoundError:
        return None


def _all(
    log: Log, move: Callable[[str], LakelogError | None], paths: Sequence[str]
) -> list[LakelogError | None]:
    workers = _LOCAL_MOVES if "://" not in log.table else IN_FLIGHT
    with Pool(workers, thread_name_prefix="lakelog-move") as pool:
        return list(pool.map(move, paths))


def _moved(log: Log, source: str, target: str) -> LakelogError | None:
    try:
        log.store.move(source, target)
    except OutcomeUnknownError as error:
        # If the file was only copied, it is in both folders, and one copy is enough to undo.
        return None if log.store.stat(source) is None else _with_path(error, source)
    except LakelogError as error:
        return _with_path(error, source)
    return None


class _TakenError(LakelogError):
    """Another file has the name: it was written after the log was listed."""


def _moved_back(held: Quarantine, path: str) -> LakelogError | None:
    place = held.place_of(path)
    stat = held.log.store.stat
    if stat(path) is not None and stat(place) is not None:  # not moved back by another undo
        return _TakenError("a file with this name exists", path=path)
    return _moved(held.log, place, path)


def _with_path(error: LakelogError, path: str) -> LakelogError:
    error.path = path
    return error


_FILE = {
    "path": pl.String,
    "kind": pl.String,
    "version": pl.Int64,
    "size_bytes": pl.Int64,
    "leads": pl.Boolean,
}
"""Fields of a file in a record."""


def undo(log: Log, quarantine: str, *, replace: bool = False) -> pl.DataFrame:
    """Move the files of a quarantine back, also after an interruption. Existing files are never
    replaced, except with `replace` those that the repair wrote. The order is reversed (sidecars,
    then checkpoints, then commits from the newest), so that no intermediate state shows an
    incomplete checkpoint or log.
    """
    files = _recorded(log, quarantine)
    held = Quarantine(log, quarantine)
    folder = log.dialect.log_folder
    names = {f"{folder}/{e.name}" for batch in log.store.walk(folder) for e in batch}
    written = _written(log, quarantine) if replace else {}
    outcomes: dict[str, str] = {}
    for phase in _restore_order(files):
        waiting = []
        for path in phase:
            is_kept = held.place_of(path) in names
            if path in names and is_kept and path in written:
                if _digest(log, path) == written[path]:
                    error = _moved(log, held.place_of(path), path)
                    if error is not None:
                        raise error
                    outcomes[path] = "back"
                else:
                    outcomes[path] = "kept"
            elif path in names:
                outcomes[path] = "kept" if is_kept else "there"
            elif is_kept:
                waiting.append(path)
            else:
                outcomes[path] = "missing"
        errors = _all(log, lambda path: _moved_back(held, path), waiting)
        for path, error in zip(waiting, errors, strict=True):
            if isinstance(error, _TakenError):
                outcomes[path] = "kept"
                continue
            if error is not None and not isinstance(error, NotFoundError):
                raise error
            # Another process has moved it back, or has purged it.
            is_back = error is None or log.store.stat(path) is not None
            outcomes[path] = "back" if is_back else "missing"
    if "kept" not in outcomes.values():
        log.store.delete(f"{held.folder}/{_RECORD}")
    telemetry.event("cleanup.undone", quarantine=quarantine, files=len(outcomes))
    outcome = pl.Series([outcomes[path] for path in files["path"]], dtype=pl.String)
    return files.select("path", "kind", "size_bytes").with_columns(outcome.alias("outcome"))


def _restore_order(files: pl.DataFrame) -> list[list[str]]:
    """Paths in the order of restoring; within a phase the order is free."""
    kind = pl.col("kind")
    is_checkpoint = kind == "checkpoint"
    parts = (
        kind == "sidecar",
        is_checkpoint & ~pl.col("leads"),
        is_checkpoint & pl.col("leads"),
        kind.is_in(["commit", "checksum"]),
        ~kind.is_in(list(_FIRST_BACK)),
    )
    ordered = files.sort("version", descending=True, nulls_last=True)
    return [ordered.filter(part)["path"].to_list() for part in parts]


def quarantines(log: Log) -> pl.DataFrame:
    """The quarantines of a table, oldest first, in `QUARANTINES_SCHEMA`, without empty ones."""
    return _described(log, _listed(log))


def _described(log: Log, listed: Mapping[str, list[tuple[str, int]]]) -> pl.DataFrame:
    rows = []
    for id_, entries in listed.items():
        created = _created(id_)
        commits = [int(m[1]) for e in entries if (m := _COMMIT.fullmatch(e[0]))]
        sizes = [size for _, size in entries]
        first, last = (min(commits), max(commits)) if commits else (None, None)
        rows.append((id_, created, _creator(log, id_), len(entries), sum(sizes), first, last))
    rows.sort(key=lambda row: row[0])
    return pl.DataFrame(rows, schema=QUARANTINES_SCHEMA, orient="row")


def _created(quarantine: str) -> dt.datetime | None:
    """Creation time of a quarantine, from its id; None if the id is invalid."""
    if not _ID.fullmatch(quarantine):
        return None
    try:
        return dt.datetime.strptime(quarantine[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    except ValueError:  # a date that does not exist
        return None


def _written(log: Log, quarantine: str) -> dict[str, str]:
    """Digests of the files that a repair wrote, by path; empty if they were not recorded."""
    record = orjson.loads(log.store.read(f"{Quarantine(log, quarantine).folder}/{_RECORD}"))
    written = record.get("written")
    return written if isinstance(written, dict) else {}


def _creator(log: Log, quarantine: str) -> str | None:
    """The operation that created a quarantine, from its record; None if unknown."""
    try:
        record = orjson.loads(log.store.read(f"{Quarantine(log, quarantine).folder}/{_RECORD}"))
    except (NotFoundError, orjson.JSONDecodeError):
        return None
    by = record.get("by") if isinstance(record, dict) else None
    return by if isinstance(by, str) else None


def _listed(log: Log) -> dict[str, list[tuple[str, int]]]:
    """Names and sizes of the files in each quarantine, without its record and temporary files."""
    found: dict[str, list[tuple[str, int]]] = {}
    abandoned_ms = log.clock() - _DAY_MS
    for batch in log.store.walk(f"{log.dialect.log_folder}/{QUARANTINE}"):
        for entry in batch:
            id_, _, name = entry.name.partition("/")
            if TEMPORARY.fullmatch(name.rpartition("/")[2]) and entry.modified_ms > abandoned_ms:
                continue
            if name and _created(id_) is not None:
                files = found.setdefault(id_, [])
                if name != _RECORD:
                    files.append((name, entry.size_bytes))
    return {id_: files for id_, files in found.items() if files}


def purge(log: Log, older_than_ms: int) -> pl.DataFrame:
    """Delete quarantines that are at least `older_than_ms` old, and return them. With an age below
    the duration of a cleanup, a quarantine that is being filled is deleted too.
    """
    if older_than_ms < 0:
        raise InvalidInputError(
            "an age must be a duration >= 0", expected=">= 0", found=older_than_ms
        )
    before_ms = log.clock() - older_than_ms
    listed = _listed(log)  # listed once: another purge or undo may run at the same time
    old = _described(log, listed).filter(pl.col("created").dt.epoch("ms") <= before_ms)
    for id_ in old["id"]:
        folder = Quarantine(log, id_).folder
        errors = log.store.delete_many([f"{folder}/{name}" for name, _ in listed[id_]])
        if errors:
            raise errors[0]
        # Last, so that remaining files are still reported after an error.
        log.store.delete(f"{folder}/{_RECORD}")
    telemetry.event("cleanup.purged", quarantines=old.height, files=int(old["files"].sum()))
    return old


def _recorded(log: Log, quarantine: object) -> pl.DataFrame:
    """The files of a quarantine from its record, in the columns `_FILE`."""
    if not isinstance(quarantine, str) or _created(quarantine) is None:
        raise InvalidInputError(
            "the id of the quarantine is invalid",
            expected="an id from `t.quarantines()`, or from `lakelog undo` without an id",
            found=quarantine,
        )
    path = f"{Quarantine(log, quarantine).folder}/{_RECORD}"
    try:
        record = orjson.loads(log.store.read(path))
        files = pl.DataFrame([dict(file) for file in record["files"]], schema=_FILE)
    except NotFoundError as cause:
        raise InvalidInputError(
            "quarantine not found",
            path=path,
            expected=", ".join(quarantines(log)["id"]) or "no quarantine exists",
            found=quarantine,
        ) from cause
    except (ValueError, KeyError, TypeError, OverflowError, pl.exceptions.PolarsError) as cause:
        raise _malformed(path, str(cause)) from cause
    wrong = files.filter(~_is_log_path(log).fill_null(value=False))
    if wrong.height:
        raise _malformed(path, f"not a file of the log: {wrong['path'][0]}")
    return files


def _is_log_path(log: Log) -> pl.Expr:
    """Whether a path is a valid log file: below the log folder, in normal form."""
    folder, path = log.dialect.log_folder, pl.col("path")
    return (
        path.str.starts_with(f"{folder}/")
        & ~path.str.starts_with(f"{folder}/{QUARANTINE}")
        & ~path.str.contains(r"//|(^|/)\.{1,2}(/|$)|/$|\x00")
    )


def _malformed(path: str, found: str) -> CorruptionError:
    return CorruptionError(
        "the record of the quarantine is malformed; no file was moved",
        path=path,
        expected="the moved files, each below the log folder",
        found=found[:200],
        hint="move its files back by hand: they are in its folder under their original names",
    )
