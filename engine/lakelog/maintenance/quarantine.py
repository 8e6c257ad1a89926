"""Quarantine: log files that were moved instead of deleted, and can be restored.

A quarantine is a folder ``<log folder>/.lakelog-quarantine/<time>-<id>/``. It contains the files
under their names and a record, ``quarantine.json``, which is written before the first file is
moved, so that an interrupted cleanup can be undone. Readers ignore names that begin with a dot.

Local files keep their modification times. Object stores copy, so a restored commit has a new time:
without in-commit timestamps, the times of later versions increase too, and a cleanup keeps more.
`lakelog.maintenance.undo` restores the files.
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
_CHANGED = "the file was changed by another process; nothing was moved"
_BY_HAND = "move its files back by hand: they are in its folder under their original names"

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
"""Columns of `quarantines`: ``by`` is the operation that created it, ``cleanup``, ``repair`` or
``undo``; null if the record cannot be read or lacks it; ``files`` and ``size_bytes`` count the
remaining files; the versions are those of the commits among them.
"""


@dataclass(frozen=True)
class Quarantine:
    """A quarantine that is being filled."""

    log: Log
    id: str

    @staticmethod
    def begin(
        log: Log,
        files: pl.DataFrame,
        by: Literal["cleanup", "repair", "undo"],
        written: Mapping[str, str] | None = None,
    ) -> Quarantine:
        """Write the record of a new quarantine for `files` before any is moved; `written`: digests
        of the files that will replace them, if known.
        """
        now_ms = log.clock()
        at = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        begun = Quarantine(log, f"{at:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}")
        columns = ("path", "kind", "version", "size_bytes", "leads")
        held = files.select(columns).to_dicts()
        record = {"id": begun.id, "createdMs": now_ms, "by": by, "files": held}
        if written is not None:
            record["written"] = written
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
        digests = ((each, file_digest(self.log, each)) for each in paths)
        written = {each: found for each, found in digests if found is not None}
        store.put(path, orjson.dumps(orjson.loads(store.read(path)) | {"written": written}))

    def copy(self, path: str, digest: str) -> None:
        """Copy a file in, which has that digest."""
        try:
            data = self.log.store.read(path)
        except NotFoundError as error:
            raise UnavailableError(_CHANGED, path=path) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise UnavailableError(_CHANGED, path=path)
        try:
            self.log.store.put(self.place_of(path), data)
        except OutcomeUnknownError as error:
            raise UnavailableError(
                "the file could not be copied to quarantine; nothing was moved", path=path
            ) from error

    def delete_record(self) -> None:
        """Delete the record, after all files were moved back or deleted."""
        self.log.store.delete(f"{self.folder}/{_RECORD}")

    def take(self, paths: Sequence[str]) -> tuple[list[LakelogError], set[str]]:
        """Move files in; returns the errors of those not moved, and the missing ones."""

        def move(path: str) -> LakelogError | None:
            return moved(self.log, path, self.place_of(path))

        results = move_all(self.log, move, paths)
        missing = {
            path
            for path, error in zip(paths, results, strict=True)
            if isinstance(error, NotFoundError)
        }
        return [e for e in results if e is not None and not isinstance(e, NotFoundError)], missing


def file_digest(log: Log, path: str) -> str | None:
    """SHA-256 of a file; None if it does not exist."""
    try:
        return hashlib.sha256(log.store.read(path)).hexdigest()
    except NotFoundError:
        return None


def move_all(
    log: Log, move: Callable[[str], LakelogError | None], paths: Sequence[str]
) -> list[LakelogError | None]:
    """The results of `move` for each path, in order, by several threads."""
    workers = _LOCAL_MOVES if "://" not in log.table else IN_FLIGHT
    with Pool(workers, thread_name_prefix="lakelog-move") as pool:
        return list(pool.map(move, paths))


def moved(log: Log, source: str, target: str) -> LakelogError | None:
    """Move a file; returns the error, with the path of the source."""
    try:
        log.store.move(source, target)
    except OutcomeUnknownError as error:
        # If the file was only copied, it is in both folders, and one copy is enough to undo.
        return None if log.store.stat(source) is None else _with_path(error, source)
    except LakelogError as error:
        return _with_path(error, source)
    return None


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


def quarantines(log: Log) -> pl.DataFrame:
    """The quarantines of a table, oldest first, in `QUARANTINES_SCHEMA`, without empty ones."""
    return _described(log, _listed(log)).filter(pl.col("files") > 0)


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


def _creator(log: Log, quarantine: str) -> str | None:
    """The operation that created a quarantine, from its record; None if unknown."""
    try:
        record = orjson.loads(log.store.read(f"{Quarantine(log, quarantine).folder}/{_RECORD}"))
    except (NotFoundError, orjson.JSONDecodeError):
        return None
    by = record.get("by") if isinstance(record, dict) else None
    return by if isinstance(by, str) else None


def _listed(log: Log) -> dict[str, list[tuple[str, int]]]:
    """Names and sizes of the files in each quarantine, without its record and temporary files; a
    quarantine may have its record alone.
    """
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
    return found


def purge(log: Log, older_than_ms: int) -> pl.DataFrame:
    """Delete quarantines that are at least `older_than_ms` old; returns those that had files. With
    an age below the duration of a cleanup, a quarantine that is being filled is deleted too.
    """
    if older_than_ms < 0:
        raise InvalidInputError(
            "an age must be a duration >= 0", expected=">= 0", found=older_than_ms
        )
    before_ms = log.clock() - older_than_ms
    listed = _listed(log)  # listed once: another purge or undo may run at the same time
    old = _described(log, listed).filter(pl.col("created").dt.epoch("ms") <= before_ms)
    for id_ in old["id"]:
        held = Quarantine(log, id_)
        errors = log.store.delete_many([f"{held.folder}/{name}" for name, _ in listed[id_]])
        if errors:
            raise errors[0]
        # Last, so that remaining files are still reported after an error.
        held.delete_record()
    old = old.filter(pl.col("files") > 0)
    telemetry.event("cleanup.purged", quarantines=old.height, files=int(old["files"].sum()))
    return old


def recorded_files(log: Log, quarantine: object) -> tuple[pl.DataFrame, dict[str, str]]:
    """The files of a quarantine from its record, in the columns `_FILE`; and the digests of the
    files that have the names of moved ones, by path, if they were recorded.
    """
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
        raise _without_record(log, quarantine, path) from cause
    except (ValueError, KeyError, TypeError, OverflowError, pl.exceptions.PolarsError) as cause:
        raise _malformed(path, str(cause)) from cause
    if files.is_empty():
        raise _malformed(path, "no file")
    wrong = files.filter(~_is_log_path(log).fill_null(value=False))
    if wrong.height:
        raise _malformed(path, f"not a file of the log: {wrong['path'][0]}")
    written = record.get("written")
    return files, written if isinstance(written, dict) else {}


def _is_log_path(log: Log) -> pl.Expr:
    """Whether a path is a valid log file: below the log folder, in normal form."""
    folder, path = log.dialect.log_folder, pl.col("path")
    return (
        path.str.starts_with(f"{folder}/")
        & ~path.str.starts_with(f"{folder}/{QUARANTINE}")
        & ~path.str.contains(r"//|(^|/)\.{1,2}(/|$)|/$|\x00")
    )


def _without_record(log: Log, quarantine: str, path: str) -> LakelogError:
    """The error for a quarantine that does not exist, or has files but no record."""
    listed = {id_: files for id_, files in _listed(log).items() if files}
    if quarantine not in listed:
        return InvalidInputError(
            "quarantine not found",
            path=path,
            expected=", ".join(sorted(listed)) or "no quarantine exists",
            found=quarantine,
        )
    count = len(listed[quarantine])
    return CorruptionError(
        "the record of the quarantine is missing; no file was moved",
        path=path,
        expected="the record, which has the place of each file",
        found=f"{count:,} file{'' if count == 1 else 's'} in {path.removesuffix(_RECORD)}",
        hint=_BY_HAND,
    )


def _malformed(path: str, found: str) -> CorruptionError:
    return CorruptionError(
        "the record of the quarantine is malformed; no file was moved",
        path=path,
        expected="the moved files, each below the log folder",
        found=found[:200],
        hint=_BY_HAND,
    )
