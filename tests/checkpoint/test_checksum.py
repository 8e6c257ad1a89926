"""Version checksums equal the plain replay, or are not written."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lakelog
from lakelog.checkpoint.version_checksum import build_checksum, write_checksum
from lakelog.checkpoint.write import write_checkpoint
from lakelog.errors import (
    CheckpointValidationError,
    CorruptionError,
    LakelogWarning,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedError,
)
from lakelog.log.context import Log
from lakelog.log.opening import open_state
from lakelog.testing import Fault, InjectingStore, Kind, Rule
from tests import handmade
from tests.handmade import Handmade
from tests.loggen import Options, generate
from tests.model import replay

pytestmark = pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")

EXAMPLES = int(os.environ.get("LAKELOG_EXAMPLES", "6"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_checksum_equals_the_plain_replay(seed: int, tmp_path: Path) -> None:
    root = generate(tmp_path / "t", seed, Options(noise=False))
    table = lakelog.open(root)
    for version in replay.list_log(root).rebuildable():
        state = replay.replay(root, version)
        size = sum(row["size"] for row in state.files.values())
        if size >= 1 << 63:
            with pytest.raises(UnsupportedError):
                write_checksum(table.log, version)
            continue
        if _lacks_its_commit_time(root, state):
            with pytest.raises(CorruptionError, match="in-commit timestamps"):
                write_checksum(table.log, version)
            continue
        report = write_checksum(table.log, version)
        assert report.written
        body = json.loads((root / report.path).read_bytes())
        assert body == report.body
        assert (body["numFiles"], body["tableSizeBytes"]) == (len(state.files), size)
        assert (body["numMetadata"], body["numProtocol"]) == (1, 1)
        _check_meta(body, state)
        _check_files(body, state)
        checked = table.snapshot(version).version_checksum()
        assert checked is not None
        assert checked["agrees"].all(), (seed, version, checked)


def _lacks_its_commit_time(root: Path, state: replay.State) -> bool:
    assert state.metadata is not None
    timed = state.metadata["configuration"].get("delta.enableInCommitTimestamps") == "true"
    return timed and not (root / replay.LOG / f"{state.version:020d}.json").exists()


def _check_meta(body: dict[str, Any], state: replay.State) -> None:
    assert state.metadata is not None
    assert state.protocol is not None
    assert body["metadata"]["id"] == state.metadata["metadataId"]
    assert body["metadata"]["schemaString"] == state.metadata["schemaString"]
    assert body["protocol"]["minReaderVersion"] == state.protocol["minReaderVersion"]
    assert {t["appId"]: t["version"] for t in body["setTransactions"]} == {
        app: row["txnVersion"] for app, row in state.transactions.items()
    }
    assert {d["domain"]: d["configuration"] for d in body["domainMetadata"]} == {
        name: row["domainConfiguration"] for name, row in state.domains.items()
    }
    assert not any(d["removed"] for d in body["domainMetadata"])


def _check_files(body: dict[str, Any], state: replay.State) -> None:
    sizes = [row["size"] for row in state.files.values()]
    if "fileSizeHistogram" in body:
        histogram = body["fileSizeHistogram"]
        ends = [*histogram["sortedBinBoundaries"][1:], 1 << 63]
        bins = list(zip(histogram["sortedBinBoundaries"], ends, strict=True))
        inside = [[s for s in sizes if a <= s < b] for a, b in bins]
        assert histogram["fileCounts"] == [len(own) for own in inside]
        assert histogram["totalBytes"] == [sum(own) for own in inside]
    vectors = [r["dvCardinality"] for r in state.files.values() if r["dvId"] is not None]
    features = (state.protocol or {}).get("readerFeatures") or ()
    assert ("numDeletionVectorsOpt" in body) == ("deletionVectors" in features)
    if "numDeletionVectorsOpt" in body:
        assert body["numDeletionVectorsOpt"] == len(vectors)
        assert body["numDeletedRecordsOpt"] == sum(vectors)
        counts = body["deletedRecordCountsHistogramOpt"]["deletedRecordCounts"]
        assert len(counts) == 10
        assert sum(counts) == len(sizes)
        assert counts[1] == sum(1 <= v <= 9 for v in vectors)


@pytest.mark.corpus
def test_checksums_equal_those_written_by_spark(corpus: Path) -> None:
    compared = 0
    names = [
        *("numFiles", "tableSizeBytes", "metadata", "protocol", "inCommitTimestampOpt"),
        *("numDeletedRecordsOpt", "numDeletionVectorsOpt", "txnId", "domainMetadata"),
    ]
    for path in sorted(corpus.glob("delta/*/_delta_log/[0-9]*.crc"))[::3]:
        theirs = _read(path)
        version = int(path.name[:20])
        if theirs is None or path.parent.parent.name == "kernel-rs__crc-full":  # made by hand
            continue
        try:
            ours = build_checksum(open_state(lakelog.open(path.parent.parent).log, version))
        except (lakelog.LakelogError, LakelogWarning):
            continue
        for name in names:
            if theirs.get(name) is not None and name in ours:
                assert _normal(ours[name]) == _normal(theirs[name]), (path, name)
                compared += 1
        histogram = theirs.get("histogramOpt") or theirs.get("fileSizeHistogram")
        if histogram is not None:
            assert ours["fileSizeHistogram"] == histogram, path
            compared += 1
    assert compared > 100


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("metadata"), dict) else None


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _normal(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return sorted((_normal(v) for v in value), key=str)
    return value


def _simple(root: Path, **properties: str) -> Handmade:
    log = Handmade(root)
    return log.start(handmade.add("a", 5), handmade.add("b", 9000), properties=properties)


def test_existing_checksum_is_never_replaced(tmp_path: Path) -> None:
    log = _simple(tmp_path / "t")
    wrong = json.dumps({"numFiles": 3, "tableSizeBytes": 9005}).encode()
    path = log.write(f"{0:020d}.crc", wrong)
    report = write_checksum(log.context())
    assert (report.written, report.disagreements) == (False, ("numFiles",))
    assert path.read_bytes() == wrong
    path.unlink()
    assert write_checksum(log.context()).written
    again = write_checksum(log.context())
    assert (again.written, again.disagreements) == (False, ())


def test_wrong_earlier_checksum_does_not_affect_a_later_one(tmp_path: Path) -> None:
    log = _simple(tmp_path / "t")
    log.write(f"{0:020d}.crc", json.dumps({"numFiles": 30, "tableSizeBytes": 1}).encode())
    log.commit(1, handmade.info(), handmade.add("c", 1))
    assert write_checksum(log.context()).body["numFiles"] == 3


def test_expiring_transactions_are_omitted(tmp_path: Path) -> None:
    log = _simple(tmp_path / "t", **{"delta.setTransactionRetentionDuration": "interval 1 week"})
    assert "setTransactions" not in write_checksum(log.context()).body


@pytest.mark.parametrize("checkpointed", [False, True])
def test_in_commit_timestamp_is_recorded(tmp_path: Path, checkpointed: bool) -> None:
    log = Handmade(tmp_path / "t")
    features = ["inCommitTimestamp"]
    actions = (
        handmade.protocol(1, 7, writerFeatures=features),
        handmade.metadata(properties={"delta.enableInCommitTimestamps": "true"}),
    )
    commit = log.commit(0, handmade.info(inCommitTimestamp=77), *actions)
    if checkpointed:
        log.checkpoint(0, *actions)
    assert build_checksum(open_state(log.context()))["inCommitTimestampOpt"] == 77
    assert log.table.snapshot().timestamp_ms == 77
    if checkpointed:
        commit.unlink()
        with pytest.raises(CorruptionError, match="in-commit timestamps"):
            write_checksum(log.context())


def test_format_without_checksums_raises_unsupported_error(tmp_path: Path) -> None:
    table = lakelog.create(tmp_path / "t", {"id": pl.Int64}, format="indextables")
    with pytest.raises(UnsupportedError, match="no version checksums"):
        write_checksum(table.log)


def test_checksum_within_a_memory_limit_is_the_same(tmp_path: Path) -> None:
    log = _simple(tmp_path / "t")
    state = open_state(log.context())
    assert build_checksum(state, memory_limit=8 << 30) == build_checksum(state)


def test_checksum_with_different_counts_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakelog.checkpoint import version_checksum

    log = _simple(tmp_path / "t")
    real = version_checksum.build_checksum
    monkeypatch.setattr(
        version_checksum, "build_checksum", lambda *a, **k: {**real(*a, **k), "numFiles": 7}
    )
    with pytest.raises(CheckpointValidationError, match="numFiles"):
        write_checksum(log.context())
    assert not list(log.log.glob("*.crc"))


@pytest.mark.parametrize("fault", ["fail", "unknown", "lost", "lost_taken", "late"])
def test_checksum_is_correct_or_absent_after_any_failure(fault: Fault, tmp_path: Path) -> None:
    log = _simple(tmp_path / "t")
    expected = build_checksum(open_state(log.context()))
    for nth in range(1, 50):
        context = log.context()
        kinds: tuple[Kind, ...] = ("put_if_absent",) if fault == "lost_taken" else ()
        store = InjectingStore(context.store, [Rule(fault, kinds, nth=nth)])
        written = None
        with contextlib.suppress(UnavailableError, OutcomeUnknownError, CorruptionError):
            written = write_checksum(Log(store, context.dialect, context.clock)).written
        store.arrive()
        found = list(log.log.glob("*.crc"))
        assert all(json.loads(path.read_bytes()) == expected for path in found)
        assert found or not written
        assert not [p for p in log.log.iterdir() if p.name.startswith(".")]
        for path in found:
            path.unlink()
        if not any(store.operations[nth - 1 :]) or len(store.operations) < nth:
            return
    raise AssertionError("no attempt succeeds")


@pytest.mark.parametrize("fault", [None, "fail"])
def test_checkpoint_writes_a_checksum_but_does_not_depend_on_it(
    fault: Fault | None, tmp_path: Path
) -> None:
    log = _simple(tmp_path / "t")
    context = log.context()
    rules = [] if fault is None else [Rule(fault, "put_if_absent", path="*.crc")]
    store = InjectingStore(context.store, rules)
    report = write_checkpoint(Log(store, context.dialect, context.clock))
    assert report.verified
    assert bool(report.notes) == (fault is not None)
    found = log.table.snapshot().version_checksum()
    assert (found is None) == (fault is not None)
    assert found is None or found["agrees"].all()
    assert not (log.log / f"{0:020d}.crc").exists() or fault is None


def _sized(root: Path, sizes: list[int]) -> lakelog.Table:
    table = lakelog.create(root, {"id": pl.Int64}, format="delta")
    with table.transaction() as tx:
        for number, size in enumerate(sizes):
            tx.add(path=f"{number}.parquet", partitionValues={}, size=size)
    return table


@pytest.mark.parametrize("recorded", ["nothing", "right", "wrong", "malformed"])
def test_files_are_counted_by_size(recorded: str, tmp_path: Path) -> None:
    table = _sized(tmp_path, [1, 8191, 8192, 300 << 30])
    table.write_checksum()
    path = tmp_path / f"_delta_log/{1:020d}.crc"
    body = json.loads(path.read_bytes())
    if recorded == "nothing":
        path.unlink()
    elif recorded == "wrong":  # in the counts, or for another state
        body["fileSizeHistogram"]["fileCounts"][0] += 1
        path.write_text(json.dumps(body))
    elif recorded == "malformed":
        body["fileSizeHistogram"]["totalBytes"] = [None]
        path.write_text(json.dumps(body))
    assert lakelog.open(tmp_path).snapshot().size_histogram().rows() == [
        (0, 8192, 2, 8192),
        (8192, 16384, 1, 8192),
        (256 << 30, None, 1, 300 << 30),
    ]


def test_sizes_are_not_read_if_the_checksum_has_a_histogram(tmp_path: Path) -> None:
    table = _sized(tmp_path, [5] * 20)
    table.write_checksum()
    path = tmp_path / f"_delta_log/{1:020d}.crc"
    body = json.loads(path.read_bytes())
    body["fileSizeHistogram"]["fileCounts"][:2] = [19, 1]  # with the totals of the log
    path.write_text(json.dumps(body))
    rows = lakelog.open(tmp_path).snapshot().size_histogram().rows()
    assert rows == [(0, 8192, 19, 100), (8192, 16384, 1, 0)]
