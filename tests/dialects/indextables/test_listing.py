"""Files of the log folder, by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lakelog
from lakelog.dialects.indextables import DIALECT
from lakelog.dialects.log_content import CompactionFile
from lakelog.errors import InternalError, UnavailableError
from lakelog.storage import LogStore
from lakelog.testing import InjectingStore, Rule
from tests.dialects.indextables.writing import PROTOCOL, Log, add, flat_rows, lines, metadata, skip


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "t")


def _pointer(version: object) -> bytes:
    return json.dumps({"version": version, "size": 1}).encode()


def _layouts(log: Log) -> list[tuple[int, str]]:
    return [(c.version, c.layout) for c in log.checkpoints()]


def test_other_files_are_ignored(log: Log) -> None:
    log.commit(0, [PROTOCOL])
    for name in (
        ".00000000000000000000.json.crc",
        "00000000000000000001.json.tmp",
        "1.json",
        "0000000000000000000002.json",
        "99999999999999999999.json",
        "_commits/00000000000000000003.json",
        "manifests/manifest-0123abcd.avro",
        "state-v1/_manifest.avro",
        "state-v00000000000000000004/.tmp",
    ):
        log.write(name, b"noise")
    listing = DIALECT.list_log(log.store)
    assert [c.version for c in listing.commits] == [0]
    assert listing.checkpoints == ()
    assert listing.notes == ("state-v00000000000000000004 has no _manifest.avro: not committed",)


def test_missing_folder_is_listed_as_empty(tmp_path: Path) -> None:
    log = Log(tmp_path / "t")
    log.folder.rmdir()
    assert DIALECT.list_log(log.store).commits == ()


def test_commits_have_path_size_and_time(log: Log) -> None:
    target = log.commit(7, [PROTOCOL])
    (commit,) = DIALECT.list_log(log.store).commits
    assert commit.path == "_transaction_log/00000000000000000007.json"
    assert commit.size_bytes == target.stat().st_size
    assert commit.modified_ms == target.stat().st_mtime_ns // 1_000_000


def test_best_checkpoint_of_a_version_is_listed_last(log: Log) -> None:
    log.commit(3, [PROTOCOL])
    log.state(3, {})
    log.write("00000000000000000003.checkpoint.json", lines([PROTOCOL]))
    log.flattened("00000000000000000003.checkpoint.parquet", flat_rows([]))
    log.state(4, {})
    log.commit(4, [add("a")])
    assert _layouts(log) == [(3, "avro-state"), (3, "json"), (3, "flattened"), (4, "avro-state")]


def test_state_written_after_later_states_is_ignored(log: Log) -> None:
    log.commit(0, [PROTOCOL])
    log.commit(2, [skip("a")])
    for version, created in ((2, 60), (3, 70), (4, 40), (5, 50)):
        log.state(version, {}, createdAt=created)
    assert _layouts(log) == [(v, "avro-state") for v in (4, 5)]
    assert len(DIALECT.list_log(log.store).notes) == 2


def test_state_with_the_version_of_the_last_commit_is_listed_if_later_states_are_newer(
    log: Log,
) -> None:
    for version in range(5):
        log.commit(version, [skip(f"f{version}") if version else PROTOCOL])
    for version in range(1, 6):
        log.state(version, {}, createdAt=version)
    assert _layouts(log) == [(v, "avro-state") for v in range(1, 6)]
    assert DIALECT.list_log(log.store).notes == ()


def test_late_state_0_is_ignored_even_if_commit_0_is_missing(log: Log) -> None:
    log.state(0, {}, createdAt=2)
    log.state(1, {}, createdAt=1)
    assert _layouts(log) == [(1, "avro-state")]


def test_skips_at_the_end_of_a_log_with_states_are_not_versions(log: Log) -> None:
    log.commit(0, [PROTOCOL])
    for version in range(1, 5):
        log.commit(version, [skip(f"s{version}")], framing=("plain", "scala", "rust")[version % 3])
    assert len(DIALECT.list_log(log.store).commits) == 5
    log.state(2, {})
    for start in (0, 2, 3):
        listing = DIALECT.list_log(log.store, hint=False, start=start)
        assert [c.version for c in listing.commits] == [0][start:]
        assert [c.version for c in listing.apart] == list(range(max(1, start), 5))


def test_skip_with_a_long_reason_is_not_a_version(log: Log) -> None:
    log.state(1, {})
    log.commit(2, [skip("s", reason="x" * 100_000)])
    assert DIALECT.list_log(log.store).commits == ()


def test_skips_below_another_commit_are_versions(log: Log) -> None:
    log.state(1, {})
    log.commit(2, [skip("s")])
    log.commit(3, [add("f")])
    log.commit(4, [skip("t")])
    listing = DIALECT.list_log(log.store)
    assert [c.version for c in listing.commits] == [2, 3]
    assert [c.version for c in listing.apart] == [4]


def test_skips_above_a_json_checkpoint_are_versions(log: Log) -> None:
    log.state(1, {})
    log.write("00000000000000000002.checkpoint.json", lines([PROTOCOL]))
    log.commit(3, [skip("s")])
    for start in (0, 3):
        listing = DIALECT.list_log(log.store, hint=False, start=start)
        assert [c.version for c in listing.commits] == [3]


@pytest.mark.parametrize("data", [b"", b"\n", b"{", b"[]", b'{"mergeskip":{}}\n{"add":{}}'])
def test_commit_that_may_contain_more_than_skips_is_a_version(log: Log, data: bytes) -> None:
    log.state(1, {})
    log.write("00000000000000000002.json", data)
    assert [c.version for c in DIALECT.list_log(log.store).commits] == [2]


def test_only_state_at_the_version_of_the_last_commit_is_listed(log: Log) -> None:
    log.commit(0, [PROTOCOL, metadata()])
    log.state(0, {})
    assert _layouts(log) == [(0, "avro-state")]


def test_multipart_json_needs_every_part_that_its_manifest_names(log: Log) -> None:
    base = "00000000000000000009.checkpoint"
    names = [f"{base}.0123456789ab.{n:05d}.json" for n in (1, 2)]
    body = {"version": 9, "checkpointId": "0123456789ab", "parts": names, "format": "json"}
    log.write(f"{base}.json", json.dumps(body).encode())
    for name in names:
        log.write(name, lines([add(name)]))
    log.write(f"{base}.ffffffffffff.00001.json", lines([add("orphan of a lost race")]))
    (checkpoint,) = log.checkpoints()
    assert checkpoint.layout == "json-multipart"
    assert [p.rsplit("/", 1)[1] for p in checkpoint.paths] == [f"{base}.json", *names]

    (log.folder / names[1]).unlink()
    listing = DIALECT.list_log(log.store)
    assert listing.checkpoints == ()
    assert names[1] in listing.notes[0]


def test_parts_without_a_manifest_are_not_a_checkpoint(log: Log) -> None:
    log.write("00000000000000000009.checkpoint.0123456789ab.00001.json", lines([PROTOCOL]))
    assert log.checkpoints() == ()


def test_flattened_parts_are_complete_only_together(log: Log) -> None:
    name = "00000000000000000005.checkpoint.{:010d}.0000000002.parquet"
    log.flattened(name.format(2), flat_rows([]))
    assert log.checkpoints() == ()
    assert "1 of 2 parts" in DIALECT.list_log(log.store).notes[0]
    log.flattened(name.format(1), flat_rows([]))
    (checkpoint,) = log.checkpoints()
    assert [p.rsplit("/", 1)[1] for p in checkpoint.paths] == [name.format(1), name.format(2)]


def test_spark_folder_is_a_checkpoint_once_it_contains_success(log: Log) -> None:
    folder = "00000000000000000005.checkpoint.parquet"
    log.flattened(f"{folder}/part-00000-x.snappy.parquet", flat_rows([]))
    log.flattened(f"{folder}/part-00001-x.snappy.parquet", flat_rows([]))
    assert log.checkpoints() == ()
    log.write(f"_checkpoints/{folder}/_SUCCESS", b"")
    (checkpoint,) = log.checkpoints()
    assert len(checkpoint.paths) == 2


def _log_of_six_commits(log: Log) -> None:
    for version in range(6):
        log.commit(version, [add(f"f{version}")])
    log.write("00000000000000000003.checkpoint.json", lines([PROTOCOL]))


def test_listing_starts_at_the_checkpoint_of_the_hint(log: Log) -> None:
    _log_of_six_commits(log)
    log.write("_last_checkpoint", _pointer(3))
    listing = DIALECT.list_log(log.store)
    assert [c.version for c in listing.commits] == [3, 4, 5]
    assert [c.version for c in listing.checkpoints] == [3]


@pytest.mark.parametrize(
    "pointer",
    [
        *(b"", b"{", b"[]", b"null", b'"3"', b"\x1f\x8b", b"\xff\xfe"),
        *(_pointer(version) for version in (4, 99, "3", -1, 2**70)),
    ],
)
def test_wrong_hint_does_not_change_the_listing(log: Log, pointer: bytes) -> None:
    _log_of_six_commits(log)
    log.write("_last_checkpoint", pointer)
    assert DIALECT.list_log(log.store) == DIALECT.list_log(log.store, hint=False)


def test_start_excludes_earlier_versions(log: Log) -> None:
    _log_of_six_commits(log)
    log.state(2, {})
    listing = DIALECT.list_log(log.store, hint=False, start=4)
    assert [c.version for c in listing.commits] == [4, 5]
    assert listing.checkpoints == ()


def test_compaction_files_are_not_supported(log: Log) -> None:
    with pytest.raises(InternalError):
        DIALECT.decode_compaction(log.store, CompactionFile(0, 1, "x", 1))


@pytest.mark.parametrize(
    "path",
    ["*state-v*1/_manifest.avro", "*state-v*3/_manifest.avro", "*00005.json"],
)
def test_answer_does_not_depend_on_a_store_that_fails_now_and_then(log: Log, path: str) -> None:
    log.commit(0, [PROTOCOL, metadata()])
    log.commit(1, [skip("s")])
    log.commit(5, [skip("t")])
    for version, created in ((1, 90), (2, 20), (3, 30)):
        log.state(version, {}, createdAt=created)
    expected = _answer(log.store)
    for nth in range(1, 9):
        store = InjectingStore(log.store, [Rule("fail", "read", nth=nth, path=path)])
        try:
            found = _answer(store)
        except UnavailableError:
            continue
        assert found == expected


def _answer(store: LogStore) -> tuple[int, list[int], list[int]]:
    listing = DIALECT.list_log(store, hint=False)
    return (
        lakelog.open(store=store).version(),
        [c.version for c in listing.commits],
        [c.version for c in listing.checkpoints],
    )


def test_pointer_that_cannot_be_read_does_not_hide_a_second_history(log: Log) -> None:
    log.commit(0, [PROTOCOL, metadata()])
    log.state(1, {}, createdAt=50)
    log.write("_last_checkpoint", json.dumps({"version": 0, "createdTime": 51}).encode())
    store = InjectingStore(log.store, [Rule("fail", "read", times=None, path="*_last_checkpoint")])
    with pytest.raises(UnavailableError):
        lakelog.open(store=store).snapshot().files().collect()
