"""`lakelog.open(cache=)`: a later process reads decoded columns, and gets the same answers."""

from __future__ import annotations

import datetime as dt
import errno
import logging
import multiprocessing
import os
import pickle
import resource
import shutil
import stat
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from unittest.mock import ANY

import fsspec
import polars as pl
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

import lakelog
from lakelog.cli.metered_store import MeteredStore
from lakelog.cli.watch import Meter
from lakelog.demo import make_table
from lakelog.storage import open_store
from tests.budget import rng_of, share_of

LAYOUTS = ("classic", "multipart", "v2")
CONDITION = (pl.col("day") >= pl.date(2026, 1, 3)) & (pl.col("quantity") > 3)
KEYS = ["path"]


def set_old_times(root: Path) -> None:
    """Set the times of the log's files to an hour ago: newer files are not cached."""
    then = time.time() - 3600
    for file in root.rglob("_delta_log/**/*"):
        os.utime(file, (then, then))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with a classic checkpoint without records of row groups, as other programs write."""
    return made(tmp_path / "table")


def made(root: Path, layout: str = "classic", *, records: bool = False) -> Path:
    """A copy of a table that is written once for each layout."""
    return Path(shutil.copytree(_written(layout, records), root))


@cache
def _written(layout: str, records: bool) -> Path:
    root = Path(mkdtemp()) / "table"
    make_table(root, commits=40)
    t = lakelog.open(root, upkeep=False)
    properties: dict[str, str | None] = {}
    if not records:
        properties["delta.checkpoint.writeStatsAsStruct"] = "false"
    if layout == "v2":
        properties["delta.checkpointPolicy"] = "v2"
    with t.transaction() as tx:
        tx.set_metadata(configuration=properties)
    t.checkpoint(layout=layout)
    set_old_times(root)
    return root


def newest(root: Path) -> list[Path]:
    """The files of the newest checkpoint."""
    found = sorted(root.glob("_delta_log/*.checkpoint.*"))
    return [path for path in found if path.name[:20] == found[-1].name[:20]]


Answer = dict[str, pl.DataFrame | int]


def answers(root: Path, cache: Path | str | lakelog.DiskCache = "") -> Answer:
    """The answers of a new handle about a table."""
    s = lakelog.open(root, cache=cache, upkeep=False).snapshot()
    return {
        "files": s.files().collect().sort(KEYS),
        "typed": s.files(stats=True, flatten=True).collect().sort(KEYS),
        "matching": s.files(where=CONDITION).collect().sort(KEYS),
        "tombstones": s.tombstones().collect().sort(KEYS),
        "num_files": s.num_files(),
        "total_size": s.total_size(),
    }


def require_equal(found: Answer, expected: Answer) -> None:
    for name, value in expected.items():
        if isinstance(value, pl.DataFrame):
            assert_frame_equal(found[name], value)  # type: ignore[arg-type]
        else:
            assert found[name] == value, name


def arrow_files(cache: Path) -> list[Path]:
    return sorted(cache.glob("*/*.arrow"))


def bytes_read(root: Path, cache: Path | str, columns: Sequence[str] = ()) -> int:
    """Number of bytes that a listing reads, in addition to those of opening."""
    meter = Meter()
    store = MeteredStore(open_store(str(root)), meter)
    s = lakelog.open(store=store, cache=cache, upkeep=False).snapshot()
    opened = meter.size_bytes
    files = s.files()
    (files.select(columns) if columns else files).collect()
    return meter.size_bytes - opened


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("records", [True, False])
def test_answers_equal_those_without_a_cache(tmp_path: Path, layout: str, records: bool) -> None:
    root = made(tmp_path / "table", layout, records=records)
    plain = answers(root)
    for _ in ("empty", "filled"):
        require_equal(answers(root, tmp_path / "cache"), plain)
    # Commits above the checkpoint, which remove and add files.
    t = lakelog.open(root, upkeep=False)
    with t.transaction() as tx:
        tx.remove(t.snapshot().files().select("path").collect().head(5))
    require_equal(answers(root, tmp_path / "cache"), answers(root))


@pytest.mark.corpus
def test_answers_of_real_logs_equal_those_without_a_cache(corpus: Path, tmp_path: Path) -> None:
    def listed(root: Path, cache: Path | str) -> pl.DataFrame | str:
        try:
            s = lakelog.open(root, cache=cache, upkeep=False).snapshot()
            return s.files().collect()
        except lakelog.LakelogError as error:
            return str(error)

    cache = tmp_path / "cache"
    logs = sorted([*corpus.rglob("_delta_log"), *corpus.rglob("_transaction_log")])
    warnings.simplefilter("ignore", lakelog.LakelogWarning)  # real logs cause many warnings
    for log in rng_of("disk cache").sample(logs, share_of(len(logs), 3)):
        plain = listed(log.parent, "")
        for _ in ("empty", "filled"):
            found = listed(log.parent, cache)
            if isinstance(plain, pl.DataFrame) and isinstance(found, pl.DataFrame):
                assert_frame_equal(found, plain, check_row_order=False)
            else:
                assert type(found) is type(plain), (log, found, plain)
    assert lakelog.DiskCache(cache).entries().height > 5


@pytest.mark.parametrize("columns", [["path", "size"], []])
def test_later_process_does_not_read_the_file_actions(tmp_path: Path, columns: list[str]) -> None:
    root, cache = tmp_path / "table", tmp_path / "cache"
    t = lakelog.create(root, {"id": pl.Int64}, upkeep=False)
    names = pl.Series("path", range(50_000)).hash(1).cast(pl.String)
    with t.transaction() as tx:
        tx.add(pl.DataFrame({"path": names, "size": 1, "modificationTime": 0}))
    t.checkpoint()
    set_old_times(root)
    plain = bytes_read(root, "", columns)
    assert bytes_read(root, cache, columns) == plain
    assert bytes_read(root, cache, columns) < plain / 3
    assert bytes_read(root, cache, ["path"]) < plain / 3  # which are cached now


def test_reads_answered_by_the_cache_are_counted(table: Path, tmp_path: Path) -> None:
    def counted(cache: Path | str) -> tuple[int, int]:
        t = lakelog.open(table, cache=cache, upkeep=False)
        t.snapshot().files().select("path", "size").collect()
        stats = t.cache_stats()
        assert stats.to_polars().row(-1) == ("disk", stats.disk.hits, stats.disk.misses, ANY)
        return stats.disk.hits, stats.disk.misses

    first, second = counted(tmp_path / "cache"), counted(tmp_path / "cache")
    assert first[0] == second[1] == 0
    assert first[1] == second[0] > 0
    assert counted("") == (0, 0)


def test_another_checkpoint_of_the_same_name_and_length_is_another_entry(
    table: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    before = answers(table, cache)
    for path in newest(table):
        content = bytearray(path.read_bytes())
        group = pq.ParquetFile(path).metadata.row_group(0)
        columns = map(group.column, range(group.num_columns))
        paths = next(column for column in columns if column.path_in_schema == "add.path")
        content[paths.data_page_offset + paths.total_compressed_size // 2] ^= 255
        path.write_bytes(content)
        os.utime(path, (time.time() - 60, time.time() - 60))
    with pytest.warns(lakelog.LakelogWarning, match="checkpoint"):
        again = answers(table, cache)  # from the commits
    paths = [found["files"]["path"] for found in (before, again)]  # type: ignore[index]
    assert paths[0].to_list() == paths[1].to_list()


def test_checkpoint_that_is_seconds_old_is_not_cached(table: Path, tmp_path: Path) -> None:
    for path in newest(table):
        os.utime(path)
    answers(table, tmp_path / "cache")
    assert not arrow_files(tmp_path / "cache")


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_damaged_file_is_dropped_and_written_again(
    table: Path, tmp_path: Path, damage: str
) -> None:
    cache = tmp_path / "cache"
    plain = answers(table, cache)
    files = arrow_files(cache)
    for number, file in enumerate(files):
        content = bytearray(file.read_bytes())
        if damage == "flip":
            content[(number * 7919) % len(content)] ^= 1 << number % 8
        elif damage == "cut":
            del content[(number * 7919) % len(content) :]
        elif damage == "empty":
            content.clear()
        else:
            content[:] = files[(number + 1) % len(files)].read_bytes()
        file.unlink()  # `plain` has mapped it
        file.write_bytes(content)
    require_equal(answers(table, cache), plain)
    require_equal(answers(table, cache), plain)
    assert arrow_files(cache) == files


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_only_regular_files_are_read(table: Path, tmp_path: Path, kind: str) -> None:
    cache = tmp_path / "cache"
    plain = answers(table, cache)
    for file in arrow_files(cache):
        kept = tmp_path / file.name
        file.rename(kept)
        if kind == "link":
            file.symlink_to(kept)
        elif kind == "fifo":
            os.mkfifo(file)
        else:
            file.mkdir()
    require_equal(answers(table, cache), plain)


def test_folder_that_others_can_write_to_is_refused(table: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(lakelog.InvalidInputError, match="other users can write") as caught:
        lakelog.open(table, cache=cache)
    assert caught.value.path == str(cache)


def test_folder_that_cannot_be_created_is_refused(table: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(lakelog.InvalidInputError, match="cannot be created"):
        lakelog.open(table, cache=tmp_path / "file" / "cache")


def test_entries_are_private(table: Path, tmp_path: Path) -> None:
    answers(table, tmp_path / "cache")
    for path in [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_deleted_folder_is_created_again_for_this_user_alone(table: Path, tmp_path: Path) -> None:
    cache = lakelog.DiskCache(tmp_path / "cache")
    shutil.rmtree(tmp_path / "cache")
    before = os.umask(0o002)
    try:
        answers(table, cache)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert lakelog.DiskCache(tmp_path / "cache").entries().height == 1


def test_password_of_a_location_is_not_kept(tmp_path: Path) -> None:
    location = "memory://user:disk-cache-pw@host/cached"
    lakelog.write(location, pl.DataFrame({"n": [1]}))
    lakelog.open(location).checkpoint()
    for file in fsspec.filesystem("memory").store.values():  # newer files are not cached
        file.created = file.modified = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    cache = lakelog.DiskCache(tmp_path / "cache")
    lakelog.open(location, cache=cache).snapshot().files().collect()
    (table,) = cache.entries()["table"]
    assert table == "memory://[redacted]@host/cached"
    assert not any(b"disk-cache-pw" in f.read_bytes() for f in tmp_path.rglob("*.json"))


def test_least_recently_used_entries_are_deleted(tmp_path: Path) -> None:
    roots = [made(tmp_path / name) for name in ("one", "two", "three")]
    cache = tmp_path / "cache"
    for number, root in enumerate(roots[:2]):
        answers(root, cache)
        (entry,) = [e for e in cache.iterdir() if str(root) in (e / "checkpoint.json").read_text()]
        os.utime(entry, (number, number))
    size = lakelog.DiskCache(cache).size_bytes
    answers(roots[0], cache)  # used now
    answers(roots[2], lakelog.DiskCache(cache, max_bytes=size * 5 // 4))
    left = lakelog.DiskCache(cache).entries()
    assert left["table"].to_list() == [str(roots[2]), str(roots[0])]
    assert left["version"].to_list() == [lakelog.open(r).snapshot().version for r in roots[::-2]]
    assert left["size_bytes"].sum() <= size * 5 // 4


def test_columns_larger_than_the_cache_are_not_kept(table: Path, tmp_path: Path) -> None:
    cache = lakelog.DiskCache(tmp_path / "cache", max_bytes=1000)
    require_equal(answers(table, cache), answers(table))
    assert not arrow_files(tmp_path / "cache")


def test_full_disk_does_not_fail_a_read(table: Path, tmp_path: Path) -> None:
    plain = answers(table)

    children = in_processes(_compare_on_a_full_disk, (table, tmp_path / "cache", plain))
    assert children == [0]
    assert not list((tmp_path / "cache").rglob("*.tmp"))
    require_equal(answers(table, tmp_path / "cache"), plain)


def test_failed_write_is_reported(
    table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    plain = answers(table, cache)
    (entry,) = cache.iterdir()
    lakelog.DiskCache(cache).clear()
    entry.write_text("a file in place of the folder")
    with caplog.at_level(logging.WARNING, logger="lakelog"):
        require_equal(answers(table, cache), plain)
    assert any("cache.write_failed" in line for line in caplog.messages)


def _compare_on_a_full_disk(table: Path, cache: Path, plain: Answer) -> None:
    # Python would write truncated bytecode of modules that are imported from now on, and later
    # processes could not read it.
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    require_equal(answers(table, cache), plain)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.ENOENT])
def test_failure_of_any_cache_operation_does_not_fail_a_read(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    plain = answers(table)
    cache = tmp_path / "0"
    operations = ("open", "makedirs", "replace", "unlink", "utime", "scandir", "rmdir")
    calls = 0
    failing = 0

    def fails(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            nonlocal calls
            if str(path).startswith(f"{cache}{os.sep}"):
                calls += 1
                if calls == failing:
                    raise OSError(error, os.strerror(error), str(path))
            return real(path, *args, **options)

        return call

    for name in operations:
        monkeypatch.setattr(os, name, fails(getattr(os, name)))
    answers(table, cache)
    answers(table, cache)
    every, rng = calls, rng_of(f"disk cache {error}")
    assert every > 100
    for failing in rng.sample(range(1, every + 1), share_of(every, 20)):
        cache = tmp_path / str(failing)
        calls = 0
        for _ in ("empty", "filled"):
            require_equal(answers(table, cache), plain)
        assert calls >= failing


def test_files_of_killed_processes_do_not_change_answers(table: Path, tmp_path: Path) -> None:
    plain, cache, rng = answers(table), tmp_path / "cache", rng_of("killed disk cache")
    spawn = multiprocessing.get_context("spawn")
    for _ in range(share_of(40)):
        started = spawn.Event()
        child = spawn.Process(target=_fill, args=(table, cache, started))
        child.start()
        assert started.wait(60)
        time.sleep(rng.random() * 0.3)
        child.kill()
        child.join()
        require_equal(answers(table, cache), plain)
        lakelog.DiskCache(cache).clear()


def _fill(table: Path, cache: Path, started: Event) -> None:
    started.set()
    while True:
        answers(table, cache)
        lakelog.DiskCache(cache).clear()


def in_processes(
    work: Callable[..., None], arguments: tuple[object, ...], count: int = 1
) -> list[int | None]:
    """Call a function in several new processes at the same time; returns their exit codes."""
    spawn = multiprocessing.get_context("spawn")
    children = [spawn.Process(target=work, args=arguments) for _ in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    return [child.exitcode for child in children]


def test_processes_fill_one_cache_concurrently(table: Path, tmp_path: Path) -> None:
    plain = answers(table)
    assert in_processes(_compare, (table, tmp_path / "cache", plain), 3) == [0, 0, 0]
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def _compare(table: Path, cache: Path, plain: Answer) -> None:
    for _ in range(3):
        require_equal(answers(table, cache), plain)
        lakelog.DiskCache(cache).clear()


def test_temporary_files_of_killed_processes_are_deleted(table: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    plain = answers(table, cache)
    (entry,) = cache.iterdir()
    left = entry / "add-path.0123456789abcdef.tmp"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    arrow_files(cache)[0].unlink()
    require_equal(answers(table, cache), plain)
    assert not left.exists()


def test_cache_folder_is_read_from_the_environment(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKELOG_CACHE", str(tmp_path / "cache"))
    named = lakelog.open(table).disk_cache
    assert named is not None
    assert named.directory == str(tmp_path / "cache")
    assert lakelog.open(table, cache="").disk_cache is None
    monkeypatch.delenv("LAKELOG_CACHE")
    assert lakelog.open(table).disk_cache is None


def test_pickled_table_keeps_its_cache(table: Path, tmp_path: Path) -> None:
    t = lakelog.open(table, cache=lakelog.DiskCache(tmp_path / "cache", max_bytes=12345))
    again = pickle.loads(pickle.dumps(t)).disk_cache
    assert (again.directory, again.max_bytes) == (str(tmp_path / "cache"), 12345)


def test_verification_reads_the_checkpoint_itself(table: Path, tmp_path: Path) -> None:
    t = lakelog.open(table, cache=tmp_path / "cache", upkeep=False)
    t.snapshot().files().collect()
    (path,) = newest(table)
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not t.verify().is_proved
