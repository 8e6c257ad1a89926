"""An IndexTables JSON checkpoint saves reading the commits below it; truncation is detected."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import lakelog
from lakelog.checkpoint.write import write_checkpoint
from lakelog.dialects.indextables import DIALECT
from lakelog.errors import CorruptionError, LakelogWarning
from lakelog.log.context import Log as OpenLog
from lakelog.snapshot import Snapshot
from lakelog.testing import InjectingStore, Rule
from tests.dialects.indextables.writing import Log, add, lines, metadata, remove, skip

COMMITS = 40
PROTOCOL = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 3}}
COMMIT = re.compile(r"_transaction_log/\d{20}\.json")
LAYOUTS = ("json", "json-multipart")
QUERIES: dict[str, Callable[[Snapshot], object]] = {
    "files": lambda s: s.files().collect(),
    "where": lambda s: s.files(pl.col("id") > 3).collect(),
    "num_files": Snapshot.num_files,
    "total_size": Snapshot.total_size,
    "skips": lambda s: s.skips().collect(),
    "transactions": lambda s: s.transactions().collect(),
    "domains": lambda s: s.domains().collect(),
    "tombstones": lambda s: s.tombstones().collect(),
    "metadata": lambda s: s.metadata,
    "protocol": lambda s: s.protocol,
    "provenance": lambda s: s.provenance,
    "update": Snapshot.update,
}


def write_table(root: Path, commits: int = COMMITS) -> Log:
    log = Log(root)
    log.commit(0, [PROTOCOL, metadata()])
    for version in range(1, commits):
        rows = [add(f"f{version}.split", size=version), skip(f"s{version}.split")]
        log.commit(version, [*rows, remove("f3.split")] if version == 5 else rows)
    return log


def counted(log: Log) -> tuple[InjectingStore, OpenLog]:
    store = InjectingStore(log.store)
    return store, OpenLog(store, DIALECT)


def commits_read(store: InjectingStore) -> set[str]:
    return {path for kind, path in store.operations if kind != "list" and COMMIT.fullmatch(path)}


def answers(log: Log) -> tuple[list[str], list[str]]:
    """Files and skips as a new reader finds them."""
    snapshot = Snapshot.open(OpenLog(log.store, DIALECT))
    return sorted(snapshot.files().collect()["path"]), sorted(snapshot.skips().collect()["path"])


def foreign_checkpoint(log: Log, version: int, pointer: bool = True) -> Path:
    """A checkpoint like those of the reference: without skips and tombstones."""
    files = sorted(Snapshot.open(OpenLog(log.store, DIALECT)).files().collect()["path"])
    rows = [PROTOCOL, metadata(), *(add(path, size=int(path[1:-6])) for path in files)]
    path = log.write(f"{version:020d}.checkpoint.json", lines(rows))
    if pointer:
        body = {"version": version, "size": len(rows), "sizeInBytes": 1, "numFiles": len(files)}
        log.write("_last_checkpoint", json.dumps(body | {"createdTime": 1}).encode())
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("query", QUERIES)
def test_query_reads_only_the_checkpoint_and_later_commits(
    tmp_path: Path, layout: str, query: str
) -> None:
    log = write_table(tmp_path / "t")
    expected = answers(log)
    write_checkpoint(OpenLog(log.store, DIALECT), layout=layout)
    log.commit(COMMITS, [add("last.split")])
    store, counting = counted(log)
    QUERIES[query](Snapshot.open(counting))
    assert commits_read(store) <= {f"_transaction_log/{COMMITS:020d}.json"}
    files, skips = answers(log)
    assert (files, skips) == (sorted([*expected[0], "last.split"]), expected[1])


@pytest.mark.parametrize("query", [name for name in QUERIES if name != "skips"])
def test_only_skips_need_commits_below_a_checkpoint_of_another_writer(
    tmp_path: Path, query: str
) -> None:
    log = write_table(tmp_path / "t")
    expected = answers(log)
    foreign_checkpoint(log, COMMITS - 1)
    store, counting = counted(log)
    QUERIES[query](Snapshot.open(counting))
    assert commits_read(store) == set()
    assert answers(log) == expected


def test_references_need_no_second_read_of_the_metadata(tmp_path: Path) -> None:
    log = write_table(tmp_path / "t", 4)
    log.write(f"{3:020d}.checkpoint.json", lines([PROTOCOL, add("f1.split")]))
    store, counting = counted(log)
    assert Snapshot.open(counting).files().collect().height == 1
    read = [path for kind, path in store.operations if kind != "list" and COMMIT.fullmatch(path)]
    assert sorted(read) == sorted(set(read))


def test_pointer_that_cannot_be_read_is_ignored(tmp_path: Path) -> None:
    log = write_table(tmp_path / "t", 4)
    foreign_checkpoint(log, 3)
    store = InjectingStore(
        log.store, [Rule("fail", kinds="read", times=None, path="*_last_checkpoint")]
    )
    assert Snapshot.open(OpenLog(store, DIALECT)).num_files() == 3


def test_next_checkpoint_reads_no_commit_below_the_previous_one(tmp_path: Path) -> None:
    log = write_table(tmp_path / "t")
    write_checkpoint(OpenLog(log.store, DIALECT), layout="json")
    log.commit(COMMITS, [add("last.split")])
    expected = answers(log)
    store, counting = counted(log)
    write_checkpoint(counting, layout="json")
    assert commits_read(store) == {f"_transaction_log/{COMMITS:020d}.json"}
    assert len(store.operations) < 40
    assert answers(log) == expected


def cuts(data: bytes) -> list[int]:
    """Lengths at which a truncated file ends with a complete line, except its own length."""
    return [match.end() for match in re.finditer(b"\n", data)][:-1]


def outcome_of(log: Log, expected: tuple[list[str], list[str]]) -> str:
    """The outcome of opening a damaged table: never another state."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = answers(log)
    except CorruptionError:
        return "refused"
    assert found == expected
    return "warned" if any(w.category is LakelogWarning for w in caught) else "silent"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("pointed", [True, False])
def test_checkpoint_truncated_at_a_line_end_is_ignored_or_refused(
    tmp_path: Path, layout: str, cleaned: bool, pointed: bool
) -> None:
    log = write_table(tmp_path / "t", 12)
    expected = answers(log)
    state = OpenLog(log.store, DIALECT)
    write_checkpoint(state, layout=layout)
    if not pointed:
        (log.folder / "_last_checkpoint").unlink()
    if cleaned:
        for version in range(12):
            (log.folder / f"{version:020d}.json").unlink()
    for file in log.folder.glob("*.checkpoint*.json"):
        data = file.read_bytes()
        for length in cuts(data):
            file.write_bytes(data[:length])
            assert outcome_of(log, expected) == ("refused" if cleaned else "warned"), (file, length)
        file.write_bytes(data)
    assert outcome_of(log, expected) == "silent"


@pytest.mark.parametrize("cleaned", [False, True])
def test_checkpoint_of_another_writer_is_compared_with_the_pointer(
    tmp_path: Path, cleaned: bool
) -> None:
    log = write_table(tmp_path / "t", 12)
    expected = answers(log)
    file = foreign_checkpoint(log, 11)
    if cleaned:
        for version in range(12):
            (log.folder / f"{version:020d}.json").unlink()
        expected = (expected[0], [])
    data = file.read_bytes()
    for length in cuts(data):
        file.write_bytes(data[:length])
        assert outcome_of(log, expected) == ("refused" if cleaned else "warned"), length
    file.write_bytes(data)
    assert outcome_of(log, expected) == "silent"


def test_pointer_that_counts_a_repeated_file_twice_is_accepted(tmp_path: Path) -> None:
    """The reference counts files before it drops repeats, and actions after."""
    log = write_table(tmp_path / "t", 12)
    expected = answers(log)
    foreign_checkpoint(log, 11)
    pointer = log.folder / "_last_checkpoint"
    body = json.loads(pointer.read_bytes())
    pointer.write_text(json.dumps(body | {"numFiles": body["numFiles"] + 1}))
    for version in range(12):
        (log.folder / f"{version:020d}.json").unlink()
    assert outcome_of(log, (expected[0], [])) == "silent"


def test_part_copied_over_another_part_is_ignored(tmp_path: Path) -> None:
    log = write_table(tmp_path / "t", 12)
    expected = answers(log)
    log.commit(12, [metadata(configuration={"spark.indextables.checkpoint.actionsPerPart": "4"})])
    write_checkpoint(OpenLog(log.store, DIALECT), layout="json-multipart")
    parts = sorted(log.folder.glob("*.checkpoint.*.json"))
    assert len(parts) > 2
    parts[1].write_bytes(parts[2].read_bytes())
    assert outcome_of(log, expected) == "warned"


def test_any_changed_byte_of_a_checkpoint_is_detected(tmp_path: Path) -> None:
    log = write_table(tmp_path / "t", 4)
    expected = answers(log)
    write_checkpoint(OpenLog(log.store, DIALECT), layout="json")
    (file,) = log.folder.glob("*.checkpoint.json")
    data = file.read_bytes()
    for at in range(0, len(data), 7):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert outcome_of(log, expected) == "warned", at


def test_first_line_of_a_lakelog_checkpoint_has_its_name(tmp_path: Path) -> None:
    log = write_table(tmp_path / "t", 4)
    lakelog.open(log.root).checkpoint(layout="json")
    (file,) = log.folder.glob("*.checkpoint.json")
    first, *_, last = map(json.loads, file.read_bytes().splitlines())
    assert list(first) == ["lakelogBegin", "protocol"]
    assert first["lakelogBegin"] == {"name": f"{3:020d}.checkpoint"}
    assert list(last) == ["lakelogEnd", "add"]
    assert last["lakelogEnd"]["lines"] == len(file.read_bytes().splitlines())
