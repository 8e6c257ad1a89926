"""Checkpoints that both add and remove a file: evidence decides which action counts."""

from __future__ import annotations

import datetime as dt
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import lakelog
from lakelog import Table
from lakelog.errors import CheckpointCorruptionError, LakelogWarning
from lakelog.snapshot import Snapshot
from tests import handmade
from tests.handmade import Action, Handmade, add, field, metadata, protocol

NOW = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
HEAD = [protocol(), metadata(field("x"))]


def remove(path: str, at: int = NOW) -> Action:
    return handmade.remove(path, deletionTimestamp=at)


def commit(root: Path, version: int, *lines: Action) -> None:
    Handmade(root).commit(version, *lines)


def checkpoint(root: Path, version: int, *lines: Action) -> None:
    """A classic checkpoint of exactly these lines."""
    Handmade(root).checkpoint(version, *HEAD, *lines)


def live(snapshot: Snapshot) -> list[str]:
    """The live files; all queries about them give one answer."""
    found = sorted(snapshot.files().collect()["path"])
    assert snapshot.num_files() == len(found)
    assert snapshot.total_size() == len(found)
    removed = snapshot.tombstones().collect()["path"]
    assert not set(found) & set(removed)
    assert removed.is_unique().all()
    rows = pl.concat(snapshot.iter_state(["actionType", "path"]))
    for kind, paths in (("add", found), ("remove", sorted(removed))):
        assert sorted(rows.filter(rows["actionType"] == kind)["path"]) == paths
    return found


def opened(root: Path) -> Snapshot:
    return Table.snapshot(lakelog.open(root, upkeep=False))


QUERIES: dict[str, Callable[[Snapshot], object]] = {
    "files": lambda s: s.files().collect(),
    "num_files": lambda s: s.num_files(),
    "total_size": lambda s: s.total_size(),
    "tombstones": lambda s: s.tombstones().collect(),
    "scan": lambda s: s.scan().collect(),
}


@pytest.mark.parametrize("query", [name for name in QUERIES if name != "scan"])
def test_commits_prove_that_the_remove_is_the_later_action(query: str, tmp_path: Path) -> None:
    commit(tmp_path, 0, *HEAD, add("p/a"))
    commit(tmp_path, 1, remove("p/a"), add("p/b"))
    checkpoint(tmp_path, 1, add("p/a"), add("p/b"), remove("p/a"))
    snapshot = opened(tmp_path)
    with pytest.warns(LakelogWarning, match="more than once"):
        QUERIES[query](snapshot)
    assert live(snapshot) == ["p/b"]
    assert any("more than once" in note for note in snapshot.provenance.warnings)


DECIDED: dict[str, tuple[dict[int, list[Action]], list[Action], str]] = {
    "older commits are missing": (
        {7: [remove("a"), add("b")], 8: [add("a")], 9: [remove("a")]},
        [add("a"), add("b"), remove("a")],
        "1 by the commits",
    ),
    "below a change between known protocols": (
        {7: [protocol(), add("p=é/a")], 8: [remove("p=%C3%A9/a")], 9: [protocol(1, 4)]},
        [add("p=é/a"), add("b"), remove("p=%C3%A9/a")],
        "1 by the commits",
    ),
    # The tombstone of "old" has expired, so that nothing in the checkpoint shows its removal.
    "all, after which the checkpoint is ignored": (
        {
            0: [*HEAD, add("p=é/a"), add("p=é/old")],
            1: [remove("p=%C3%A9/old")],
            2: [remove("p=%C3%A9/a"), add("b")],
        },
        [add("p=é/a"), add("p=é/old"), add("b"), remove("p=%C3%A9/a")],
        "was ignored",
    ),
}


@pytest.mark.parametrize(("commits", "lines", "warning"), DECIDED.values(), ids=DECIDED)
def test_existing_commits_decide_files_of_a_checkpoint(
    tmp_path: Path, commits: dict[int, list[Action]], lines: list[Action], warning: str
) -> None:
    for version, actions in commits.items():
        commit(tmp_path, version, *actions)
    checkpoint(tmp_path, max(commits), *lines)
    with pytest.warns(LakelogWarning, match=warning):
        assert live(opened(tmp_path)) == ["b"]


@pytest.mark.parametrize(("last", "is_decided"), [("id-0", True), ("another", False)])
def test_commits_below_the_one_that_replaced_the_table_decide_files(
    tmp_path: Path, last: str, is_decided: bool
) -> None:
    commit(tmp_path, 6, metadata(field("x"), table_id="id-before"), add("p=é/a"))
    commit(tmp_path, 7, remove("p=%C3%A9/a"))
    commit(tmp_path, 8, metadata(field("x"), table_id=last), add("b"))
    checkpoint(tmp_path, 8, add("p=é/a"), add("b"), remove("p=%C3%A9/a"))
    if is_decided:
        with pytest.warns(LakelogWarning, match="1 by the commits"):
            assert live(opened(tmp_path)) == ["b"]
    else:
        with pytest.raises(CheckpointCorruptionError, match="an add and a remove"):
            opened(tmp_path).num_files()


@pytest.mark.parametrize("is_listed", [True, False])
def test_commits_under_a_dropped_unknown_feature_decide_no_file(
    tmp_path: Path, is_listed: bool
) -> None:
    """Without the commit of the feature, the protocol of the one above it is unknown."""
    unknown = protocol(3, 7, readerFeatures=["other"], writerFeatures=["other"])
    if is_listed:
        commit(tmp_path, 7, unknown)
    commit(tmp_path, 8, remove("p=%C3%A9/a"))
    commit(tmp_path, 9, protocol())
    checkpoint(tmp_path, 9, add("p=é/a"), add("b"), remove("p=%C3%A9/a"))
    for query in QUERIES.values():
        with pytest.raises(CheckpointCorruptionError, match="an add and a remove"):
            query(opened(tmp_path))


def test_add_and_remove_with_equal_path_texts_and_no_commit_mean_a_live_file(
    tmp_path: Path,
) -> None:
    checkpoint(tmp_path, 3, add("a"), add("b"), remove("a"), remove("c"), remove("c", NOW + 1))
    with pytest.warns(LakelogWarning, match="the path.s text"):
        assert live(opened(tmp_path)) == ["a", "b"]
    kept = opened(tmp_path)
    with pytest.warns(LakelogWarning, match="the path.s text"):
        assert kept.tombstones().collect()["deletionTimestamp"].to_list() == [NOW + 1]


def test_add_and_remove_with_different_path_texts_and_no_commit_are_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, 3, add("p=é/a"), add("b"), remove("p=%C3%A9/a"))
    for query in QUERIES.values():
        with pytest.raises(CheckpointCorruptionError, match="an add and a remove") as caught:
            query(opened(tmp_path))
        assert caught.value.found == "p=é/a"
        assert "restore" in str(caught.value.hint)


def test_reconciled_mark_in_a_rewritten_checkpoint_is_not_trusted(
    tmp_path: Path,
) -> None:
    commit(tmp_path, 0, *HEAD, add("a"), add("b"))
    commit(tmp_path, 1, remove("a"))
    lakelog.open(tmp_path, upkeep=False).checkpoint(layout="classic")
    (file,) = tmp_path.glob("_delta_log/*.checkpoint.parquet")
    written = pq.read_table(file)
    mark = written.schema.metadata[b"lakelog.reconciled"]
    assert mark.startswith(b"1 4 ")
    # The same mark and number of rows: b is added, and removed with the path text %62.
    rows = written.to_pylist()
    for row in rows:
        if row["remove"] is not None:
            row["remove"]["path"] = "%62"
    changed = pa.Table.from_pylist(rows, schema=written.schema)
    pq.write_table(changed, file, compression="zstd", compression_level=1)
    assert pq.ParquetFile(file).metadata.metadata[b"lakelog.reconciled"] == mark
    for version in (0, 1):
        (tmp_path / f"_delta_log/{version:020}.json").unlink()
    commit(tmp_path, 2, add("c"))
    for query in QUERIES.values():
        with pytest.raises(CheckpointCorruptionError, match="an add and a remove"):
            query(opened(tmp_path))


def test_later_commits_are_applied_after_a_resolved_conflict(tmp_path: Path) -> None:
    checkpoint(tmp_path, 3, add("a"), add("b"), remove("a"))
    commit(tmp_path, 4, remove("b"))
    table = lakelog.open(tmp_path, upkeep=False)
    before = table.snapshot()
    with pytest.warns(LakelogWarning, match="the path.s text"):
        assert live(before) == ["a"]
    commit(tmp_path, 5, remove("a"), add("c"))
    assert live(before.update()) == ["c"]
    commit(tmp_path, 6, add("a"))
    assert live(before.update().update()) == ["a", "c"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        assert live(opened(tmp_path)) == ["a", "c"]


@pytest.mark.parametrize("memory_limit", [None, 8 << 30])
def test_checkpoint_replaces_a_conflicting_checkpoint_without_commits(
    memory_limit: int | None, tmp_path: Path
) -> None:
    checkpoint(tmp_path, 3, add("a"), add("b"), remove("a"), remove("c"))
    table = lakelog.open(tmp_path, upkeep=False)
    assert table.verify().verdict == "broken"
    with pytest.warns(LakelogWarning):
        table.checkpoint(memory_limit=memory_limit)
    assert table.verify().verdict != "broken"
    assert live(opened(tmp_path)) == ["a", "b"]  # and without a warning
    assert DeltaTable(tmp_path).version() == 3


def test_repair_plans_a_clean_checkpoint_and_writes_it(tmp_path: Path) -> None:
    checkpoint(tmp_path, 3, add("a"), add("b"), remove("a"))
    table = lakelog.open(tmp_path, upkeep=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        plan = table.repair()
        rows = plan.findings.filter(pl.col("kind") == "checkpoint")
        assert rows["action"].to_list() == ["write"]
        plan.apply()
    assert live(opened(tmp_path)) == ["a", "b"]


def test_files_overwritten_by_deltalake_are_not_live(tmp_path: Path) -> None:
    """A table of an earlier lakelog, or of Spark: the folder's name is not encoded in the log."""
    root = tmp_path / "t"
    table = lakelog.create(root, {"p": pl.String, "x": pl.Int64}, ["p"])
    (root / "p=é").mkdir()
    pl.DataFrame({"x": [1, 2]}).write_parquet(root / "p=é/f.parquet")
    size = (root / "p=é/f.parquet").stat().st_size
    with table.transaction() as tx:
        tx.add(path="p=é/f.parquet", size=size, partitionValues={"p": "é"})
    log = root / "_delta_log/00000000000000000001.json"
    log.write_bytes(log.read_bytes().replace(b"p=%C3%A9/", "p=é/".encode()))
    last = pa.table({"p": ["last"], "x": pa.array([9], pa.int64())})
    write_deltalake(root, last, mode="overwrite")
    DeltaTable(root).create_checkpoint()
    with pytest.warns(LakelogWarning):
        assert opened(root).scan().collect()["x"].to_list() == [9]
    with pytest.warns(LakelogWarning):
        assert opened(root).num_files() == 1


def test_random_conflicts_are_resolved_like_the_plain_replay(tmp_path: Path) -> None:
    """Checkpoints that match paths by text, with and without commits; the folder's name has the
    seed.
    """
    answered = 0
    for seed in range(30):
        rng = random.Random(seed)
        root = tmp_path / f"seed-{seed}"
        truth: dict[str, str] = {}
        by_text: dict[str, Action] = {}
        removes: list[Action] = []
        last = rng.randrange(1, 30)
        for version in range(last + 1):
            lines: list[Action] = list(HEAD) if version == 0 else [{"commitInfo": {}}]
            for number in rng.sample(range(6), rng.randrange(4)):
                name, other = f"é{number}", rng.random() < 0.08
                text = f"%C3%A9{number}" if other else name
                truth[name] = rng.choice(["add", "remove"])
                by_text[text] = add(text) if truth[name] == "add" else remove(text, NOW + version)
                if truth[name] == "remove":
                    removes.append(by_text[text])
                lines.append(by_text[text])
            commit(root, version, *lines)
        live_rows = [action for action in by_text.values() if "add" in action]
        if rng.random() < 0.5:  # not the Java Kernel, which keeps every remove
            removes = [action for action in by_text.values() if "remove" in action]
        rows = [*live_rows, *removes]
        checkpoint(root, last, *rng.sample(rows, len(rows)))
        for version in range(rng.randrange(last + 2)):
            (root / f"_delta_log/{version:020}.json").unlink()
        expected = sorted(name for name, kind in truth.items() if kind == "add")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LakelogWarning)
            try:
                assert live(opened(root)) == expected, seed
                answered += 1
            except CheckpointCorruptionError:
                live_paths = [action["add"]["path"] for action in live_rows]
                assert any(text.startswith("%") for text in (*by_text, *live_paths)), seed
    assert answered > 10
