"""A historic log is upgraded in place: no crash loses anything, and no weakness comes along."""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog.errors import (
    InternalError,
    InvalidInputError,
    LakelogError,
    LogLockedError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    WalCorruptionError,
)
from lakelog.wal.disk import Bytes, LocalDisk
from lakelog.wal.historic import upgrade as module
from lakelog.wal.historic.log import HistoricFormat
from lakelog.wal.historic.read import read_historic
from lakelog.wal.historic.upgrade import MARKER_NAME, UpgradeReport, upgrade
from lakelog.wal.log import WriteAheadLog
from tests.wal.historic_model import Writer002, file_003, record_002

BATCH = [("PUT", b"a", b"1"), ("DELETE", b"b", b""), ("PUT", b"c", b"3")]
PAIRS = [(b"key-%d" % n, b"value-%d" % n if n % 3 else b"") for n in range(20)]
ROUNDS = int(os.environ.get("LAKELOG_ROUNDS", "2"))
SECTOR_BYTES = 16  # small, so that small logs have many


def log_002(*, marks_batches: bool = True, first_seq: int = 1) -> dict[str, bytes]:
    writer = Writer002(marks_batches=marks_batches, rotate_bytes=150, first_seq=first_seq)
    for n in range(3):
        writer.append("PUT", b"single-%d" % n, b"v")
        writer.append_batch(BATCH)
        writer.append("CHECKPOINT")
    return writer.named()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def rows(table: pa.Table) -> list[dict[str, object]]:
    op = table["op"].cast(pa.string())
    found: list[dict[str, object]] = table.set_column(1, "op", op).to_pylist()
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


LOGS = [
    pytest.param(log_002(), id="002"),
    pytest.param(log_002(marks_batches=False), id="002 without BEGIN"),
    pytest.param(log_002(first_seq=5_000_000_000), id="002, truncated before"),
    pytest.param({"wal.log": file_003(PAIRS, is_checked=False)}, id="003"),
    pytest.param({"wal.log": file_003(PAIRS, is_checked=True)}, id="003 with checksums"),
]


@pytest.mark.parametrize("files", LOGS)
@pytest.mark.parametrize("keep_old", [True, False])
def test_an_upgraded_log_replays_as_the_old_one_and_goes_on(
    tmp_path: Path, files: dict[str, bytes], keep_old: bool
) -> None:
    old = read_historic(write(tmp_path, files))
    with pytest.raises(UnsupportedError, match="earlier program"):
        WriteAheadLog(tmp_path)
    report = upgrade(tmp_path, keep_old=keep_old)
    assert (report.format, report.records) == (old.format, old.records.num_rows)
    assert (report.last_seq, report.findings) == (old.last_seq, ())
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is None
        for after_seq in (0, old.last_seq - 4):
            assert rows(log.replay(after_seq)) == rows(old.replay(after_seq))
        assert log.append("PUT", b"new", b"v") == old.last_seq + 1
    kept = [f"{name}.upgraded" for name in sorted(files)] if keep_old else []
    assert sorted(report.old_files) == [str(tmp_path / name) for name in kept]
    first = old.records["seqNum"][0].as_py()
    assert names(tmp_path) == sorted([f"{first:020d}.wal", "wal.lock", *kept])
    for name in kept:
        assert (tmp_path / name).read_bytes() == files[name.removesuffix(".upgraded")]


def test_upgrading_twice_changes_nothing(tmp_path: Path) -> None:
    upgrade(write(tmp_path, log_002()))
    before = names(tmp_path)
    report = upgrade(tmp_path)
    assert (report.format, report.records, report.old_files) == (None, None, ())
    assert names(tmp_path) == before


def test_an_empty_log_becomes_an_empty_log(tmp_path: Path) -> None:
    report = upgrade(write(tmp_path, {"wal.log": b""}))
    assert (report.records, report.last_seq) == (0, 0)
    with WriteAheadLog(tmp_path) as log:
        assert (log.replay().num_rows, log.append("PUT", b"k", b"v")) == (0, 1)


def test_an_upgraded_log_may_be_compressed(tmp_path: Path) -> None:
    pairs = [(b"key-%d" % n, b"value" * 20) for n in range(500)]
    write(tmp_path, {"wal.log": file_003(pairs, is_checked=True)})
    report = upgrade(tmp_path, compression="zstd")
    assert Path(report.segment).stat().st_size < 20_000
    with WriteAheadLog(tmp_path, read_only=True) as log:
        assert log.state().num_rows == 500


# --- the weaknesses do not come along -------------------------------------------------------------


def test_the_last_number_survives_truncating_an_upgraded_log(tmp_path: Path) -> None:
    # The program began at 1 again, so that replay(after_seq) hid what was new.
    report = upgrade(write(tmp_path, log_002()))
    assert report.last_seq is not None
    with WriteAheadLog(tmp_path) as log:
        log.truncate(report.last_seq)
    with WriteAheadLog(tmp_path) as log:
        assert log.replay().num_rows == 0
        seq = log.append("PUT", b"new", b"v")
        assert seq == report.last_seq + 1
        assert log.replay(report.last_seq)["key"].to_pylist() == [b"new"]


def test_an_unfinished_batch_keeps_its_numbers_and_is_never_replayed(tmp_path: Path) -> None:
    data = b"".join(
        [
            record_002(1, "PUT", b"k", b"v"),
            record_002(2, "BEGIN"),
            record_002(3, "PUT", b"half", b"a batch"),
            record_002(4, "DELETE", b"half"),
        ]
    )
    report = upgrade(write(tmp_path, {"000001.wal": data + b"torn"}))
    assert [finding.kind for finding in report.findings] == ["unfinished_batch", "torn_tail"]
    with WriteAheadLog(tmp_path) as log:
        # A reader of the old log may have seen up to 4: what is new must come behind.
        assert log.append("PUT", b"new", b"v") == 5
        for after_seq in range(6):
            expected = [seq for seq in (1, 5) if seq > after_seq]
            assert log.replay(after_seq)["seqNum"].to_pylist() == expected
        assert [record.op_type for record in log.records()] == ["PUT", *["COMMIT"] * 3, "PUT"]


def test_an_append_behind_a_torn_tail_is_upgraded(tmp_path: Path) -> None:
    one, two = record_002(1, "PUT", b"a", b"1"), record_002(2, "PUT", b"b", b"2")
    report = upgrade(write(tmp_path, {"000001.wal": one + two[:-3] + two}))
    assert [finding.kind for finding in report.findings] == ["torn_append"]
    with WriteAheadLog(tmp_path) as log:
        assert log.replay()["key"].to_pylist() == [b"a", b"b"]


def test_an_upgraded_log_is_checked_where_the_old_one_was_not(tmp_path: Path) -> None:
    report = upgrade(write(tmp_path, {"wal.log": file_003(PAIRS, is_checked=False)}))
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", b"new", b"v")
    data = Path(report.segment).read_bytes()
    # The header of the segment, that of the frame with length and sequence number, and records.
    for at in (*range(96), 300):
        for bit in (1, 0x80):
            damaged = bytearray(data)
            damaged[at] ^= bit
            Path(report.segment).write_bytes(damaged)
            with pytest.raises(WalCorruptionError):
                WriteAheadLog(tmp_path)


def test_a_torn_tail_of_an_upgraded_log_is_trimmed_and_swallows_nothing(tmp_path: Path) -> None:
    report = upgrade(write(tmp_path, log_002()))
    last = report.last_seq or 0
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", b"new", b"v")
    path = Path(report.segment)
    whole = path.read_bytes()
    for cut in (1, 8, 30):
        path.write_bytes(whole[:-cut])
        with WriteAheadLog(tmp_path) as log:
            assert log.recovery is not None
            assert log.append("PUT", b"again", b"v") == last + 1
        with WriteAheadLog(tmp_path) as log:
            assert log.recovery is None
            assert log.replay(last)["key"].to_pylist() == [b"again"]


def test_a_torn_segment_of_an_upgraded_log_is_not_walked_over(tmp_path: Path) -> None:
    report = upgrade(write(tmp_path, log_002()))
    with WriteAheadLog(tmp_path, segment_bytes=1) as log:
        for _ in range(3):
            log.append("PUT", b"new", b"v")
    path = Path(report.segment)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WalCorruptionError):
        WriteAheadLog(tmp_path)


# --- damage ---------------------------------------------------------------------------------------


def test_a_damaged_log_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    files = log_002()
    files["000001.wal"] = files["000001.wal"][:30] + b"\xff" + files["000001.wal"][31:]
    write(tmp_path, files)
    with pytest.raises(WalCorruptionError):
        upgrade(tmp_path)
    assert names(tmp_path) == sorted([*files, "wal.lock"])
    for name, data in files.items():
        assert (tmp_path / name).read_bytes() == data


def test_what_is_safe_of_a_damaged_log_is_upgraded_and_the_rest_kept(tmp_path: Path) -> None:
    files = log_002()
    whole = read_historic(write(tmp_path, files))
    data = bytearray(files["000002.wal"])
    data[8] ^= 1  # a sequence number
    (tmp_path / "000002.wal").write_bytes(data)
    safe = read_historic(tmp_path, strict=False)
    report = upgrade(tmp_path, strict=False, keep_old=False)
    assert [finding.kind for finding in report.findings] == ["damage"]
    assert len(report.old_files) == len(files)  # kept all the same
    with WriteAheadLog(tmp_path) as log:
        assert rows(log.replay()) == rows(safe.replay())
        assert log.append("PUT", b"new", b"v") > whole.last_seq
        assert log.current_seq_num() < 2 * whole.last_seq + 20
    with WriteAheadLog(tmp_path) as log:
        assert log.recovery is None


@pytest.mark.parametrize("form", ["002", "003-crc"])
def test_files_with_bytes_that_no_record_holds_are_kept(tmp_path: Path, form: str) -> None:
    # A torn tail may be the last record, changed: nobody may remove the only copy of it.
    if form == "002":
        name, data = "000001.wal", b"".join(record_002(n, "PUT", b"k", b"v") for n in (1, 2, 3))
    else:
        name, data = "wal.log", file_003(PAIRS, is_checked=True)
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    report = upgrade(write(tmp_path, {name: damaged}), keep_old=False)
    assert [finding.kind for finding in report.findings] == ["torn_tail"]
    assert any("may have been a whole record" in doubt for doubt in report.doubts)
    assert (tmp_path / f"{name}.upgraded").read_bytes() == damaged


@pytest.mark.parametrize("form", ["002", "003-crc"])
def test_a_format_that_is_named_wrongly_removes_nothing(
    tmp_path: Path, form: HistoricFormat
) -> None:
    files = {"wal.log": file_003(PAIRS, is_checked=False)}
    write(tmp_path, files)
    for strict in (True, False):
        with pytest.raises(InvalidInputError, match="not of the format that was named"):
            upgrade(tmp_path, form, keep_old=False, strict=strict)
    assert (tmp_path / "wal.log").read_bytes() == files["wal.log"]


def test_a_sequence_number_beyond_reason_is_not_taken_for_one(tmp_path: Path) -> None:
    one = record_002(1, "PUT", b"a", b"1")
    far = record_002((1 << 63) - 1, "PUT", b"b", b"2")
    upgrade(write(tmp_path, {"000001.wal": one + far}), strict=False)
    with WriteAheadLog(tmp_path) as log:
        assert 2 < log.append("PUT", b"new", b"v") < 10


# --- what is refused ------------------------------------------------------------------------------


def test_a_new_log_beside_the_old_one_is_not_taken_for_its_upgrade(tmp_path: Path) -> None:
    with WriteAheadLog(tmp_path) as log:
        log.append("PUT", b"k", b"v")
    write(tmp_path, log_002())
    before = names(tmp_path)
    with pytest.raises(InvalidInputError, match="not made of it"):
        upgrade(tmp_path)
    write(tmp_path, {MARKER_NAME: b"an upgrade of something else"})
    with pytest.raises(InvalidInputError, match="not made of it"):
        upgrade(tmp_path)
    assert names(tmp_path) == sorted([*before, MARKER_NAME])


def test_a_file_in_place_of_a_folder_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"wal.log": file_003(PAIRS, is_checked=True)})
    with pytest.raises(NotFoundError, match="this is a file") as caught:
        upgrade(tmp_path / "wal.log")
    assert "folder" in (caught.value.hint or "")


def test_files_of_others_are_not_taken_for_leftovers(tmp_path: Path) -> None:
    others = {"copy.wal.tmp": b"somebody's", "000001.wal.tmp": b"somebody's, too"}
    left = {f"{9:020d}.wal.tmp": b"of an upgrade that a crash stopped"}
    upgrade(write(tmp_path, log_002() | others | left))
    assert set(others) <= set(names(tmp_path))
    assert not set(left) & set(names(tmp_path))


def test_nothing_to_upgrade_is_told(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotFoundError):
            upgrade(folder)
    assert names(tmp_path) == []


def test_an_upgrade_beside_a_writer_is_refused(tmp_path: Path) -> None:
    write(tmp_path, log_002())
    held = LocalDisk().lock(f"{tmp_path}/wal.lock", "somebody")
    with pytest.raises(LogLockedError):
        upgrade(tmp_path)
    held.release()
    upgrade(tmp_path)


def test_files_set_aside_earlier_are_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path, {"wal.log": file_003(PAIRS, is_checked=True), "wal.log.upgraded": b"older"})
    report = upgrade(tmp_path)
    assert report.old_files == (str(tmp_path / "wal.log.2.upgraded"),)
    assert (tmp_path / "wal.log.upgraded").read_bytes() == b"older"


def test_a_new_log_that_reads_otherwise_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_same", lambda found, records: False)
    write(tmp_path, log_002())
    with pytest.raises(InternalError):
        upgrade(tmp_path)
    assert names(tmp_path) == sorted([*log_002(), "wal.lock"])


# --- crashes and faults ---------------------------------------------------------------------------


class Crash(BaseException):
    """The machine stops."""


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


class CrashDisk:
    """One folder in memory that knows what would survive a crash.

    Args:
        files: What is there, durably.
        stop: Called with the number of each operation before it takes place.
    """

    def __init__(self, files: dict[str, bytes], stop: Callable[[int], None]) -> None:
        self._names = {name: _File(bytearray(data), data) for name, data in files.items()}
        self._durable_names = dict(self._names)
        self._pending: list[tuple[str | None, str | None, _File]] = []
        self._stop = stop
        self.operations = 0

    def _step(self) -> None:
        self.operations += 1
        self._stop(self.operations)

    def list(self, directory: str) -> list[str]:
        return sorted(self._names)

    def _at(self, path: str) -> _File:
        name = path.rpartition("/")[2]
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._names[name]

    def size(self, path: str) -> int:
        return len(self._at(path).data)

    def read(self, path: str, *, mapped: bool = False) -> pa.Buffer:
        return pa.py_buffer(bytes(self._at(path).data))

    def open_append(self, path: str, *, create: bool = False) -> _Handle:
        self._step()
        name = path.rpartition("/")[2]
        if create:
            assert name not in self._names
            self._change(None, name, _File())
        return _Handle(self, self._at(path))

    def _change(self, source: str | None, target: str | None, file: _File) -> None:
        self._pending.append((source, target, file))
        _apply(self._names, source, target, file)

    def rewrite(self, path: str, offset: int, data: Bytes) -> None:
        self._step()
        self._at(path).data[offset : offset + len(data)] = data

    def rename(self, source: str, target: str) -> None:
        self._step()
        file = self._at(source)
        self._change(source.rpartition("/")[2], target.rpartition("/")[2], file)

    def remove(self, path: str) -> None:
        self._step()
        self._change(path.rpartition("/")[2], None, self._at(path))

    def make_directory(self, path: str) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        self._step()
        self._durable_names = dict(self._names)
        self._pending = []

    def lock(self, path: str, owner: str) -> _Held:
        return _Held()

    def crashed(self, rng: random.Random) -> dict[str, bytes]:
        """What is there after a crash: of what was not durable, any part."""
        kept = dict(self._durable_names)
        for source, target, file in self._pending:
            if rng.random() < 0.5 and (source is None or kept.get(source) is file):
                _apply(kept, source, target, file)
        return {name: _torn(file, rng) for name, file in kept.items()}


class _Handle:
    def __init__(self, disk: CrashDisk, file: _File) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: Bytes) -> int:
        self._disk._step()
        taken = bytes(data)[: max(1, len(data) * 2 // 3)]
        self._file.data += taken
        return len(taken)

    def size(self) -> int:
        return len(self._file.data)

    def truncate(self, size_bytes: int) -> None:
        self._disk._step()
        del self._file.data[size_bytes:]

    def sync(self) -> None:
        self._disk._step()
        self._file.durable = bytes(self._file.data)

    def close(self) -> None:
        pass


class _Held:
    was_left_well = False

    def release(self, *, well: bool = False) -> None:
        pass


def _apply(names: dict[str, _File], source: str | None, target: str | None, file: _File) -> None:
    if source is not None:
        del names[source]
    if target is not None:
        names[target] = file


def _torn(file: _File, rng: random.Random) -> bytes:
    data = bytearray(file.data)
    if bytes(data[: len(file.durable)]) != file.durable:
        return file.durable
    for at in range(len(file.durable), len(data), SECTOR_BYTES):
        if rng.random() < 0.3:
            data[at : at + SECTOR_BYTES] = bytes(len(data[at : at + SECTOR_BYTES]))
    return bytes(data[: rng.randint(len(file.durable), len(data))])


def never(_operation: int) -> None:
    pass


def stop_at(place: int, error: BaseException) -> Callable[[int], None]:
    def stop(operation: int) -> None:
        if operation == place:
            raise error

    return stop


def contents(disk: CrashDisk) -> list[dict[str, object]]:
    with WriteAheadLog("log", disk=disk) as log:
        assert log.recovery is None
        return rows(log.replay())


def old_contents(files: dict[str, bytes]) -> list[dict[str, object]]:
    return rows(read_historic("log", disk=CrashDisk(files, never)).replay())


def runs(
    files: dict[str, bytes], keep_old: bool, error: BaseException
) -> Iterator[tuple[int, CrashDisk]]:
    """The upgrade stopped at its first operation, its second one, until it is through."""
    for place in itertools.count(1):
        disk = CrashDisk(files, stop_at(place, error))
        try:
            upgrade("log", disk=disk, keep_old=keep_old)
        except (Crash, LakelogError):
            yield place, disk
            continue
        assert place > 10
        return


@pytest.mark.parametrize("files", [LOGS[0], LOGS[4]])
@pytest.mark.parametrize("keep_old", [True, False])
def test_a_crash_at_every_operation_loses_nothing(files: dict[str, bytes], keep_old: bool) -> None:
    expected = old_contents(files)
    for place, disk in runs(files, keep_old, Crash()):
        for seed in range(ROUNDS):
            rng = random.Random(f"{place} {seed}")
            left = disk.crashed(rng)
            # Once more, and once more stopped, before it may come to its end.
            second = CrashDisk(left, stop_at(rng.randint(1, 12), Crash()))
            try:
                upgrade("log", disk=second, keep_old=keep_old)
            except Crash:
                left = second.crashed(rng)
            else:
                left = {name: bytes(file.data) for name, file in second._names.items()}
            last = CrashDisk(left, never)
            upgrade("log", disk=last, keep_old=keep_old)
            assert contents(last) == expected, (place, seed)
            kept = [name for name in last.list("log") if name.endswith(".upgraded")]
            assert len(kept) == (len(files) if keep_old else 0), (place, seed)
            assert MARKER_NAME not in last.list("log")


CALL = st.one_of(
    st.tuples(st.sampled_from(["PUT", "DELETE", "CHECKPOINT"]), st.binary(max_size=5)),
    st.lists(st.binary(max_size=5), max_size=4),
)


@given(
    st.lists(CALL, max_size=25),
    st.booleans(),
    st.booleans(),
    st.integers(1, 1_000),
    st.binary(max_size=20),
    st.integers(1, 40),
)
@settings(max_examples=40, deadline=None)
def test_whatever_a_log_holds_its_upgrade_replays_the_same_after_a_crash(
    calls: list[tuple[str, bytes] | list[bytes]],
    marks_batches: bool,
    ends_in_a_batch: bool,
    first_seq: int,
    torn: bytes,
    place: int,
) -> None:
    writer = Writer002(marks_batches=marks_batches, rotate_bytes=80, first_seq=first_seq)
    for call in calls:
        if isinstance(call, tuple):
            writer.append(call[0], call[1], b"value")
        else:
            writer.append_batch([("PUT", key, b"") for key in call])
        writer.rotate()
    if ends_in_a_batch:
        writer.append_batch([("PUT", b"half", b"1")], is_finished=False)
    files = writer.named()
    if writer.records:  # without any, nobody can tell what a few bytes are of
        files[max(files)] += record_002(1 << 40, "PUT", torn)[: len(torn)]
    old = read_historic("log", "002", disk=CrashDisk(files, never))
    disk = CrashDisk(files, stop_at(place, Crash()))
    try:
        upgrade("log", "002", disk=disk)
    except Crash:
        disk = CrashDisk(disk.crashed(random.Random(place)), never)
        upgrade("log", "002", disk=disk)
    disk._stop = never
    assert contents(disk) == rows(old.replay())
    with WriteAheadLog("log", disk=disk) as log:
        assert log.append("PUT", b"new", b"v") == max(old.last_seq, 0) + 1


class FirstIsLost(random.Random):
    """Of all that was not durable, a crash takes what was done first, and nothing else."""

    def __init__(self) -> None:
        super().__init__(0)
        self._asked = 0

    def random(self) -> float:
        self._asked += 1
        return float(self._asked == 1)


@pytest.mark.parametrize("keep_old", [True, False])
def test_a_crash_after_the_process_was_killed_loses_nothing(keep_old: bool) -> None:
    # What the killed one did is seen by the next one, and need not be durable yet.
    files: dict[str, bytes] = LOGS[4].values[0]  # type: ignore[assignment]
    expected = old_contents(files)
    for place, killed in runs(files, keep_old, Crash()):
        for more in range(1, 5):
            disk = copy.deepcopy(killed)
            disk._stop = stop_at(disk.operations + more, Crash())
            with contextlib.suppress(Crash):
                upgrade("log", disk=disk, keep_old=keep_old)
            last = CrashDisk(disk.crashed(FirstIsLost()), never)
            upgrade("log", disk=last, keep_old=keep_old)
            assert contents(last) == expected, (place, more)


@pytest.mark.parametrize("files", [LOGS[0], LOGS[4]])
def test_at_every_crash_the_log_that_counts_is_whole_or_refused(files: dict[str, bytes]) -> None:
    expected = old_contents(files)
    refused = taken = 0
    for place, disk in runs(files, True, Crash()):
        for seed in range(ROUNDS):
            left = CrashDisk(disk.crashed(random.Random(f"{place} {seed}")), never)
            try:
                assert contents(left) == expected, (place, seed)
                taken += 1
            except UnsupportedError:
                refused += 1
    assert refused > 10
    assert taken > 0


@pytest.mark.parametrize("files", [LOGS[0], LOGS[3]])
def test_a_fault_at_every_operation_is_told_and_upgrading_again_goes_on(
    files: dict[str, bytes],
) -> None:
    expected = old_contents(files)
    for place, disk in runs(files, True, OSError(errno.EIO, "Input/output error")):
        disk._stop = never
        upgrade("log", disk=disk)
        assert contents(disk) == expected, place


def test_a_fault_says_that_nothing_is_lost() -> None:
    disk = CrashDisk(log_002(), stop_at(3, OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(UnavailableError, match="nothing is lost") as caught:
        upgrade("log", disk=disk)
    assert caught.value.hint is not None
    assert disk.list("log") == sorted(log_002())


def test_the_report_names_what_was_done() -> None:
    disk = CrashDisk(log_002(), never)
    report = upgrade("log", disk=disk, clock=lambda: 7, new_id=lambda: bytes(16))
    assert isinstance(report, UpgradeReport)
    assert report.directory == "log"
    assert report.segment == "log/00000000000000000001.wal"
