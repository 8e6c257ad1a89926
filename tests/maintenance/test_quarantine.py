"""Quarantine: moved files return unchanged, and never overwrite a file."""

from __future__ import annotations

import datetime as dt
import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakelog import CorruptionError, ExternalPathError, InvalidInputError, LakelogError, Table
from lakelog.log.context import Log
from lakelog.maintenance.cleanup import CleanupPlan, CleanupReport
from lakelog.maintenance.quarantine import QUARANTINES_SCHEMA
from lakelog.maintenance.undo import UNDONE_SCHEMA
from lakelog.storage import open_store
from lakelog.storage.base import Deleted, FileEntry, LogStore, StoreWrapper
from tests.maintenance.logs import DAY_MS, MadeLog, content, fresh
from tests.transaction.tables import DIALECTS, runtime

AT_ONCE = dt.timedelta(0)


@pytest.fixture
def made(tmp_path: Path) -> MadeLog:
    log = MadeLog(tmp_path / "table", writer_features=("v2Checkpoint",))
    log.commits(60 - i for i in range(30))
    log.checkpoint(5, 50, "multipart")
    log.checkpoint(10, 50, "v2-json")
    log.checkpoint(15, 45, "v2-json")
    return log


def quarantined(made: MadeLog) -> CleanupReport:
    report = made.table().cleanup(plan=False, quarantine=True)
    assert isinstance(report, CleanupReport)
    assert report.quarantine is not None
    return report


def times(made: MadeLog) -> dict[str, int]:
    return {name: made.file(name).stat().st_mtime_ns for name in made.names()}


def test_undo_restores_every_file_unchanged(made: MadeLog) -> None:
    before = times(made)
    versions = [content(made.table(), v) for v in range(30)]
    report = quarantined(made)
    assert fresh(made).versions() == [(15, 29)]
    undone = report.undo()
    assert undone.schema == UNDONE_SCHEMA
    assert set(undone["outcome"]) == {"back"}
    assert sorted(undone["path"]) == sorted(report.files["path"])
    assert times(made) == before
    assert [content(fresh(made), v) for v in range(30)] == versions
    assert made.table().quarantines().height == 0


def test_quarantines_are_listed_until_they_are_purged(made: MadeLog) -> None:
    report = quarantined(made)
    listed = made.table().quarantines()
    assert listed.schema == QUARANTINES_SCHEMA
    [row] = listed.iter_rows(named=True)
    assert row["id"] == report.quarantine
    assert (row["files"], row["size_bytes"]) == (report.files.height, report.size_bytes)
    assert (row["oldest_version"], row["newest_version"]) == (0, 14)
    assert row["by"] == "cleanup"
    made.clock.now_ms += 3 * DAY_MS
    table = made.table()
    assert table.purge_quarantines(dt.timedelta(days=4)).height == 0
    assert table.purge_quarantines(dt.timedelta(days=3))["id"].to_list() == [report.quarantine]
    assert table.quarantines().height == 0
    assert not [p for p in (made.folder / ".lakelog-quarantine").rglob("*") if p.is_file()]
    with pytest.raises(InvalidInputError, match="quarantine not found"):
        report.undo()


def test_undo_never_overwrites_an_existing_file(made: MadeLog) -> None:
    report = quarantined(made)
    other = made.put(f"{3:020d}.json", b"another's", 1)
    outcomes = dict(report.undo().select("path", "outcome").iter_rows())
    assert outcomes.pop(f"_delta_log/{3:020d}.json") == "kept"
    assert set(outcomes.values()) == {"back"}
    assert other.read_bytes() == b"another's"
    [left] = made.table().quarantines()["files"]
    assert left == 1  # the file stays in quarantine


def test_missing_quarantined_file_is_reported(made: MadeLog) -> None:
    report = quarantined(made)
    (made.folder / ".lakelog-quarantine" / str(report.quarantine) / f"{3:020d}.json").unlink()
    outcomes = dict(report.undo().select("path", "outcome").iter_rows())
    assert outcomes.pop(f"_delta_log/{3:020d}.json") == "missing"
    assert set(outcomes.values()) == {"back"}


def test_second_cleanup_keeps_the_first_quarantine(made: MadeLog) -> None:
    first = quarantined(made)
    made.clock.now_ms += 10 * DAY_MS
    made.checkpoint(25, 3, "v2-json")
    second = quarantined(made)
    assert made.table().quarantines()["id"].to_list() == [first.quarantine, second.quarantine]
    second.undo()
    first.undo()
    assert fresh(made).versions() == [(0, 29)]


def test_sidecar_referenced_by_a_quarantined_manifest_is_kept(made: MadeLog) -> None:
    sidecars = [made.put(f"_sidecars/{uuid.uuid4()}.parquet", b"x", 50) for _ in range(2)]
    body = {"sidecar": {"path": sidecars[0].name, "sizeInBytes": 1, "modificationTime": 1}}
    lines = [{"checkpointMetadata": {"version": 3}}, *made.state(3)[:2], body]
    folder = ".lakelog-quarantine/20290101T000000Z-01234567"
    text = "\n".join(map(json.dumps, lines))
    made.put(f"{folder}/{3:020d}.checkpoint.{uuid.uuid4()}.json", text.encode(), 50)
    made.table().cleanup(plan=False)
    assert [path.exists() for path in sidecars] == [True, False]


def test_cleanup_without_quarantine_cannot_be_undone(made: MadeLog) -> None:
    report = made.table().cleanup(plan=False)
    assert isinstance(report, CleanupReport)
    with pytest.raises(InvalidInputError, match="no quarantine was found"):
        report.undo()


@pytest.mark.parametrize("id_", ["", "../..", "20300101T000000Z-00000000"])
def test_invalid_or_unknown_id_is_refused(made: MadeLog, id_: str) -> None:
    with pytest.raises(InvalidInputError):
        made.table().undo_cleanup(id_)


def test_damaged_record_raises_corruption_error_and_its_files_are_listed(made: MadeLog) -> None:
    report = quarantined(made)
    record = made.folder / ".lakelog-quarantine" / str(report.quarantine) / "quarantine.json"
    record.write_text("{torn")
    with pytest.raises(CorruptionError, match="by hand"):
        report.undo()
    [row] = made.table().quarantines().iter_rows(named=True)
    assert (row["files"], row["by"]) == (report.files.height, None)


@pytest.mark.parametrize("text", ["[]", '{"files": []}', '{"by": 1}', None])
def test_record_without_by_is_listed_with_null(made: MadeLog, text: str | None) -> None:
    report = quarantined(made)
    record = made.folder / ".lakelog-quarantine" / str(report.quarantine) / "quarantine.json"
    if text is None:
        record.unlink()
    else:
        record.write_text(text)
    assert made.table().quarantines()["by"].to_list() == [None]


def test_record_lists_its_files(made: MadeLog) -> None:
    planned = made.table().cleanup(quarantine=True)
    assert isinstance(planned, CleanupPlan)
    report = planned.apply()
    record = made.folder / ".lakelog-quarantine" / str(report.quarantine) / "quarantine.json"
    body = json.loads(record.read_text())
    assert {file["path"] for file in body["files"]} == set(report.files["path"])


def test_a_negative_age_is_refused(made: MadeLog) -> None:
    with pytest.raises(InvalidInputError):
        made.table().purge_quarantines(-dt.timedelta(days=1))


def test_quarantine_on_an_object_store_copies_and_deletes(made: MadeLog) -> None:
    """In memory, as on object stores, a move is a copy and a deletion; copies have new times."""
    store = open_store("memory://quarantine-test/table")
    for name in sorted(made.names()):
        store.put(f"_delta_log/{name}", made.file(name).read_bytes())
    later = store.stat(f"_delta_log/{0:020d}.json")
    assert later is not None
    log = Log(store, DIALECTS["delta"], lambda: later.modified_ms + 90 * DAY_MS)
    table = Table(log, runtime())
    before = [content(table, v) for v in range(30)]
    report = table.cleanup(plan=False, quarantine=True)
    assert isinstance(report, CleanupReport)
    assert report.files.height > 15
    assert [content(table, v) for v in range(15, 30)] == before[15:]
    assert set(report.undo()["outcome"]) == {"back"}
    assert [content(table, v) for v in range(30)] == before


def test_record_of_a_quarantine_whose_files_are_missing_is_purged(made: MadeLog) -> None:
    report = quarantined(made)
    folder = made.folder / ".lakelog-quarantine" / str(report.quarantine)
    for path in [p for p in folder.rglob("*") if p.is_file() and p.name != "quarantine.json"]:
        path.unlink()
    assert made.table().quarantines().height == 0
    assert made.table().purge_quarantines(AT_ONCE).height == 0
    assert not [p for p in folder.rglob("*") if p.is_file()]


def test_recent_temporary_files_are_not_purged(made: MadeLog) -> None:
    report = quarantined(made)
    folder = made.folder / ".lakelog-quarantine" / str(report.quarantine)
    writing = folder / f".lakelog-{uuid.uuid4().hex}.tmp"
    writing.write_bytes(b"half")
    now_s = made.clock.now_ms / 1000
    os.utime(writing, (now_s, now_s))
    assert made.table().purge_quarantines(AT_ONCE).height == 1
    assert [p for p in folder.rglob("*") if p.is_file()] == [writing]
    made.clock.now_ms += 2 * DAY_MS
    assert made.table().purge_quarantines(AT_ONCE).height == 1
    assert not writing.exists()


class Interleaved(StoreWrapper):
    """A store in which another writer acts immediately after a call of one kind."""

    def __init__(self, store: LogStore, call: str, action: Callable[[], object]) -> None:
        super().__init__(store)
        self._call = call
        self._action: Callable[[], object] | None = action

    def _after(self, call: str) -> None:
        if call == self._call and self._action is not None:
            action, self._action = self._action, None
            action()

    def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
        yield from list(self._store.walk(folder))
        self._after("walk")

    def delete_many(self, paths: Sequence[str]) -> list[LakelogError]:
        errors = self._store.delete_many(paths)
        self._after("delete_many")
        return errors


def interleaved(made: MadeLog, call: str, action: Callable[[], object]) -> Table:
    log = made.table().log
    return Table(replace(log, store=Interleaved(log.store, call, action)), runtime())


@pytest.mark.parametrize("call", ["walk", "delete_many"])
def test_concurrent_purges_are_allowed(made: MadeLog, call: str) -> None:
    first = quarantined(made)
    made.clock.now_ms += 10 * DAY_MS
    made.checkpoint(25, 3, "v2-json")
    second = quarantined(made)
    table = interleaved(made, call, lambda: made.table().purge_quarantines(AT_ONCE))
    purged = table.purge_quarantines(AT_ONCE)
    assert purged["id"].to_list() == [first.quarantine, second.quarantine]
    assert made.table().quarantines().height == 0
    assert not [p for p in (made.folder / ".lakelog-quarantine").rglob("*") if p.is_file()]


def test_files_restored_during_a_purge_are_kept(made: MadeLog) -> None:
    before = times(made)
    report = quarantined(made)
    interleaved(made, "walk", report.undo).purge_quarantines(AT_ONCE)
    assert times(made) == before
    assert fresh(made).versions() == [(0, 29)]


def test_files_purged_during_an_undo_are_reported_as_missing(made: MadeLog) -> None:
    report = quarantined(made)
    assert report.quarantine is not None
    table = interleaved(made, "walk", lambda: made.table().purge_quarantines(AT_ONCE))
    assert set(table.undo_cleanup(report.quarantine)["outcome"]) == {"missing"}
    assert fresh(made).versions() == [(15, 29)]


def test_concurrent_undos_are_allowed(made: MadeLog) -> None:
    before = times(made)
    report = quarantined(made)
    assert report.quarantine is not None
    undone = interleaved(made, "walk", report.undo).undo_cleanup(report.quarantine)
    assert set(undone["outcome"]) == {"back"}
    assert times(made) == before


@pytest.mark.parametrize("wrong", [5, None, b"x", 1.5, "20301332T256199Z-01234567", "\0", "é" * 9])
def test_an_id_of_a_wrong_type_or_date_is_refused(made: MadeLog, wrong: Any) -> None:
    with pytest.raises(InvalidInputError):
        made.table().undo_cleanup(wrong)


def test_folder_with_an_invalid_date_is_not_a_quarantine(made: MadeLog) -> None:
    made.put(".lakelog-quarantine/20301332T256199Z-01234567/x.json", b"x", 50)
    made.put(".lakelog-quarantine/00000101T000000Z-01234567/x.json", b"x", 50)
    report = quarantined(made)
    table = made.table()
    assert table.quarantines()["id"].to_list() == [report.quarantine]
    assert table.purge_quarantines(AT_ONCE).height == 1


MALFORMED = [
    *(b"[]", b"5", b"null", b"{}", b'{"files":5}', b'{"files":[5]}', b"\xff", b""),
    *(b'{"files":[]}', b'{"files":{}}'),
    *(b'{"files":[{}]}', b'{"files":[{"path":null}]}', b'{"files":[{"path":5}]}'),
    b'{"files":[{"path":"_delta_log/x","version":1e300}]}',
    b'{"files":[{"path":"_delta_log/x","version":99999999999999999999}]}',
    b'{"files":[{"path":"_delta_log/x","leads":"yes"}]}',
    b'{"files":[{"path":"_delta_log/../x"}]}',
    b'{"files":[{"path":"/etc/passwd"}]}',
    b'{"files":[{"path":"_delta_log/.lakelog-quarantine/x"}]}',
    b'{"files":[{"path":"_delta_log/a\\u0000"}]}',
]


def test_malformed_record_raises_corruption_error_and_moves_nothing(made: MadeLog) -> None:
    report = quarantined(made)
    folder = made.folder / ".lakelog-quarantine" / str(report.quarantine)
    before = made.names()
    for record in MALFORMED:
        (folder / "quarantine.json").write_bytes(record)
        with pytest.raises(CorruptionError, match="by hand"):
            report.undo()
        assert made.names() == before, record
        made.table().quarantines()


def test_record_with_a_data_file_replaces_nothing(made: MadeLog) -> None:
    report = quarantined(made)
    folder = made.folder / ".lakelog-quarantine" / str(report.quarantine)
    live = made.folder.parent / "part-0.parquet"
    live.write_bytes(b"rows")
    (folder / live.name).write_bytes(b"others")
    record = json.loads((folder / "quarantine.json").read_text())
    record["files"].append(record["files"][0] | {"path": live.name})
    (folder / "quarantine.json").write_text(json.dumps(record))
    with pytest.raises(CorruptionError, match="not a file of the log"):
        report.undo()
    assert live.read_bytes() == b"rows"


def test_file_written_after_the_listing_is_kept(made: MadeLog) -> None:
    report = quarantined(made)
    path = made.folder / f"{3:020d}.json"

    class Listed(StoreWrapper):
        """Another writer acts after the listing."""

        def walk(self, folder: str = "") -> Iterator[list[FileEntry]]:
            yield from super().walk(folder)
            path.write_bytes(b"another's")

    table = Table(replace(made.table().log, store=Listed(made.table().log.store)))
    outcomes = dict(table.undo_cleanup(str(report.quarantine)).select("path", "outcome").rows())
    assert outcomes.pop(f"_delta_log/{3:020d}.json") == "kept"
    assert set(outcomes.values()) == {"back"}
    assert path.read_bytes() == b"another's"


def test_quarantine_folder_that_is_a_symbolic_link_is_not_purged(
    made: MadeLog, tmp_path: Path
) -> None:
    report = quarantined(made)
    folder = made.folder / ".lakelog-quarantine"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    before = sorted((tmp_path / "elsewhere").rglob("*"))
    with pytest.raises(ExternalPathError, match="symbolic link"):
        made.table().purge_quarantines(AT_ONCE)
    with pytest.raises(ExternalPathError, match="symbolic link"):
        report.undo()
    assert sorted((tmp_path / "elsewhere").rglob("*")) == before


@pytest.mark.parametrize("quarantine", [True, False])
def test_file_deleted_by_a_concurrent_cleanup_is_not_an_error(
    made: MadeLog, quarantine: bool
) -> None:
    class Overtaken(StoreWrapper):
        def move(self, source: str, target: str) -> None:
            if source == f"_delta_log/{3:020d}.json":
                self._store.delete(source)
            self._store.move(source, target)

        def delete_existing(self, paths: Sequence[str]) -> Deleted:
            self._store.delete(f"_delta_log/{3:020d}.json")
            return super().delete_existing(paths)

    log = made.table().log
    table = Table(replace(log, store=Overtaken(log.store)), runtime())
    report = table.cleanup(plan=False, quarantine=quarantine)
    assert isinstance(report, CleanupReport)
    assert not report.errors
    assert f"_delta_log/{3:020d}.json" not in report.files["path"]
    assert report.size_bytes == report.files["size_bytes"].sum()
    assert fresh(made).versions() == [(15, 29)]
    if not quarantine:
        return
    [listed] = made.table().quarantines().select("files", "size_bytes").rows()
    assert listed == (report.files.height, report.size_bytes)


@pytest.mark.parametrize("damage", [b"", b"{}\n", None])
def test_undo_that_left_a_file_out_can_be_repeated(made: MadeLog, damage: bytes | None) -> None:
    before = made.names()
    report = quarantined(made)
    name = f"{3:020d}.json"
    held = made.folder / ".lakelog-quarantine" / str(report.quarantine) / name
    whole = held.read_bytes()
    if damage is None:
        held.unlink()
    else:
        held.write_bytes(damage)
    undone = {row["path"]: row for row in report.undo().iter_rows(named=True)}
    row = undone.pop(f"_delta_log/{name}")
    assert {each["outcome"] for each in undone.values()} == {"back"}
    assert made.names() == before - {name}
    if damage is None:
        assert row["outcome"] == "missing"
    else:
        assert row["outcome"] == "damaged"
        assert f"its length is {len(damage)} bytes" in row["why"]
        assert held.read_bytes() == damage
        assert made.table().quarantines()["files"].to_list() == [1]
    held.write_bytes(whole)
    again = dict(report.undo().select("path", "outcome").rows())
    assert again.pop(f"_delta_log/{name}") == "back"
    assert set(again.values()) == {"there"}
    assert made.names() == before
    assert not held.with_name("quarantine.json").exists()


def test_quarantine_without_its_record_names_the_folder_of_its_files(made: MadeLog) -> None:
    report = quarantined(made)
    folder = f"_delta_log/.lakelog-quarantine/{report.quarantine}/"
    (made.root / folder / "quarantine.json").unlink()
    with pytest.raises(CorruptionError, match="record of the quarantine is missing") as raised:
        report.undo()
    assert raised.value.found == f"{report.files.height} files in {folder}"
    assert "by hand" in str(raised.value.hint)


def test_checkpoint_that_is_damaged_and_needed_is_not_restored(made: MadeLog) -> None:
    """Its commits were deleted since: without it, its version is not offered to readers."""
    broken = made.file(f"{10:020d}.checkpoint.parquet")
    made.checkpoint(10, 50, pointer=False)
    needed = broken.read_bytes()
    broken.write_bytes(b"x" * len(needed))
    report = quarantined(made)
    folder = made.folder / ".lakelog-quarantine" / str(report.quarantine)
    for path in folder.glob("0*"):
        if path.name != broken.name:
            path.unlink()
    undone = report.undo().filter(outcome="kept")
    assert undone["path"].to_list() == [f"_delta_log/{broken.name}"]
    assert "version 10 could not be read" in undone["why"][0]
    assert fresh(made).versions() == [(15, 29)]
    (folder / broken.name).write_bytes(needed)
    assert report.undo().filter(outcome="back")["path"].to_list() == [f"_delta_log/{broken.name}"]
    assert fresh(made).versions() == [(10, 10), (15, 29)]
    assert content(fresh(made), 10)
