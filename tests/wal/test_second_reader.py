"""A reader written from the format's page alone gives the same result, on damaged logs too."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lakelog.errors import WalCorruptionError
from lakelog.wal.encode import RECORD_BYTES, columns_of
from lakelog.wal.group_commit import Entry
from lakelog.wal.log import WriteAheadLog
from lakelog.wal.records import code_of
from tests.wal import plain_reading
from tests.wal.damage import settings
from tests.wal.plain import Record

SEEDS = range(8)
DAMAGES = 10


def data_of(rng: random.Random) -> bytes:
    return rng.choice([b"", b"same bytes", rng.randbytes(rng.randint(0, 40)), b"z" * 400])


def rows_of(rng: random.Random, count: int) -> list[tuple[str, bytes, bytes | None]]:
    return [
        (rng.choice(["PUT", "DELETE"]), data_of(rng), rng.choice([None, data_of(rng), b""]))
        for _ in range(count)
    ]


def fill(directory: Path, rng: random.Random) -> list[Record]:
    """A random log, opened a few times, and its content. As in logs of earlier versions, a PUT
    record may have no value, so the records do not pass the calls that refuse it.
    """
    model: list[Record] = []
    truncated_to = 0
    for _ in range(rng.randint(1, 3)):
        how = settings(
            sync=rng.choice(["sync", "none"]),
            segment_bytes=rng.choice([700, 4_000, 1 << 20]),
            frame_bytes=rng.choice([300, 1 << 20]),
            compression=rng.choice(["none", "zstd"]),
        )
        with WriteAheadLog(directory, **how) as log:
            for _ in range(rng.randint(0, 12)):
                kind, first = rng.randrange(5), log.current_seq_num() + 1
                rows = rows_of(rng, rng.choice([0, 1, 3, 30]))
                ops = b"".join(code_of(op) for op, _, _ in rows)
                keys, values = [key for _, key, _ in rows], [value for _, _, value in rows]
                if kind == 0:
                    for op, key, value in rows:
                        size = len(key) + len(value or b"") + RECORD_BYTES
                        log._write(Entry(code_of(op), (key,), (value,), size))
                elif kind == 1:
                    log._write(Entry.batch(ops, keys, values, how["frame_bytes"]))
                elif kind == 2:
                    log._write(Entry.of_columns([columns_of(ops, keys, values)]))
                elif kind == 3:
                    rows = [("CHECKPOINT", b"", None)]
                    log.checkpoint()
                else:
                    rows, truncated_to = [], max(truncated_to, rng.randint(0, first - 1))
                    log.truncate(truncated_to)
                if kind in {1, 2}:
                    rows = [*rows, ("COMMIT", b"", None)]
                model += [Record(seq, *row) for seq, row in enumerate(rows, first)]
                assert log.current_seq_num() == first + len(rows) - 1
    return [each for each in model if each.seq > truncated_to]


def damage(rng: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """The same with damage, missing or additional bytes."""
    names = sorted(files)
    name = rng.choice([*names, names[-1], names[-1]])
    data = bytearray(files[name])
    at = rng.randrange(len(data))
    kind = rng.randrange(8)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        size = rng.choice([1, 8, 512, 1 << 30])
        data[at : at + size] = bytes(len(data[at : at + size]))
    elif kind == 3:
        data += data[at // 8 * 8 :][:300]
    elif kind == 4:
        data += rng.choice([rng.randbytes(50), bytes(rng.randint(1, 900))])
    elif kind == 5:
        data = bytearray(files[rng.choice(names)])
    elif kind == 6:
        del data[at // 8 * 8 : (at // 8 + rng.randint(1, 30)) * 8]
    changed = {**files, name: bytes(data)}
    if kind == 7:
        del changed[name]
    return changed


def put(directory: Path, files: dict[str, bytes]) -> None:
    for path in directory.glob("*.wal*"):
        path.unlink()
    for name, data in files.items():
        (directory / name).write_bytes(data)


def found_in(log: WriteAheadLog) -> tuple[list[Record], int]:
    return [Record(*each) for each in log.records()], log.current_seq_num() + 1


def check_prefix(found: list[Record], model: list[Record]) -> None:
    """Truncated records may exist again, if the record of the truncation is lost."""
    kept = [each for each in found if model and each.seq >= model[0].seq]
    assert kept == model[: len(kept)]


@pytest.mark.parametrize("seed", [3016, 3210, 3248, 3249])
def test_log_continues_after_repeated_damage(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    fill(tmp_path, rng)
    for _ in range(8):
        files = {path.name: path.read_bytes() or b"x" for path in tmp_path.glob("*.wal")}
        put(tmp_path, damage(rng, files) or files)
        how = settings(strict=False, sync="none", segment_bytes=rng.choice([700, 9_000]))
        with WriteAheadLog(tmp_path, **how) as log:
            for _ in range(rng.randint(0, 8)):
                log.append("PUT", data_of(rng), data_of(rng))
            if rng.random() < 0.3:
                log.truncate(rng.randint(0, log.current_seq_num()))
            now = found_in(log)
        plain = plain_reading.read(tmp_path)
        assert (plain.records, plain.next_seq) == now
        with WriteAheadLog(tmp_path) as log:
            assert log.recovery is None
            assert found_in(log) == now


@pytest.mark.parametrize("seed", SEEDS)
def test_reader_written_from_the_format_page_agrees_with_lakelog(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    model = fill(tmp_path, rng)
    assert plain_reading.read(tmp_path).records == model
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.wal")}
    for number in range(DAMAGES):
        print("seed", seed, "damage", number)
        damaged = damage(rng, files)
        put(tmp_path, damaged)
        if not damaged:
            continue
        try:
            plain = plain_reading.read(tmp_path)
        except plain_reading.DamagedError:
            with pytest.raises(WalCorruptionError):
                list(WriteAheadLog(tmp_path, read_only=True).records())
            with pytest.raises(WalCorruptionError):
                WriteAheadLog(tmp_path)
            with WriteAheadLog(tmp_path, sync="none", strict=False) as log:
                safe, _ = found_in(log)
                seq = log.append("PUT", b"new", b"")
            after = plain_reading.read(tmp_path).records
            assert after == [*safe, Record(seq, "PUT", b"new", b"")]
            check_prefix(safe, model)
            continue
        if any(len(data) for data in damaged.values()):
            with WriteAheadLog(tmp_path, sync="none") as log:
                assert found_in(log) == (plain.records, plain.next_seq)
                torn = log.recovery.dropped_bytes if log.recovery else 0
            assert plain.torn_bytes in {0, torn}
            check_prefix(plain.records, model)
