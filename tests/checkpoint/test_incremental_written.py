"""Incremental checkpoints of `Table.checkpoint`: verified, readable elsewhere, and harmless on
failure.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.checkpoint.verify import verify_checkpoint
from lakelog.checkpoint.write import write_checkpoint
from lakelog.dialects.delta import DIALECT
from lakelog.dialects.delta.sidecar_fingerprints import FINGERPRINT_TAG
from lakelog.errors import (
    CheckpointCorruptionError,
    CheckpointWriteError,
    LakelogError,
    LakelogWarning,
    UnavailableError,
)
from lakelog.log.context import Log
from lakelog.storage import open_store
from lakelog.testing import Fault, InjectingStore, Rule
from tests.budget import points, rng_of, share_of
from tests.checkpoint.incremental_tables import (
    DAY_MS,
    NOW_MS,
    Table,
    names,
    old_remove,
    random_commit,
)
from tests.handmade import add, field, metadata
from tests.model import replay
from tests.model.compare import differences

SMALL = {"delta.checkpointPolicy": "v2", "spark.indextables.checkpoint.actionsPerPart": "8"}
TYPED = {"delta.checkpoint.writeStatsAsStruct": "true"}
TYPED_ONLY = TYPED | {"delta.checkpoint.writeStatsAsJson": "false"}
TEXT_ONLY = {"delta.checkpoint.writeStatsAsStruct": "false"}


@pytest.mark.sampled(2, keep=("statistics",))
@pytest.mark.parametrize("layout", ["v2-json", "v2-parquet"])
@pytest.mark.parametrize(
    "statistics", [TEXT_ONLY, TYPED, TYPED_ONLY], ids=["text", "both", "typed"]
)
def test_chain_is_proved_from_the_commits(
    layout: str, statistics: dict[str, str], tmp_path: Path
) -> None:
    rng = rng_of(f"{layout}{statistics}")
    table = Table(tmp_path / "t")
    known: dict[str, list[str | None]] = {}
    table.create(*random_commit(rng, known), **SMALL, **statistics)
    checkpoints, reused = 0, 0
    while checkpoints < share_of(8, 2) or not reused:
        for _ in range(rng.randrange(1, 4)):
            table.commit(*random_commit(rng, known))
        report = lakelog.open(table.root).checkpoint(layout=layout)
        assert report.verified
        checkpoints += 1
        reused += report.reused_files
        assert checkpoints < 50, "no checkpoint kept a sidecar"
    assert lakelog.open(table.root).verify().verdict == "proved"
    expected = replay.replay(table.root, excluded=replay.list_log(table.root).candidates)
    found = lakelog.open(table.root).snapshot().files().select("path", "dvId").collect()
    keys = [[{"path": p, "dvId": d} for p, d in rows] for rows in (expected.files, found.rows())]
    assert differences(keys[0], keys[1], ("path", "dvId")) == []


def make(root: Path, **properties: str) -> Table:
    """Thirty files in four sidecars."""
    table = Table(root)
    table.create(*(add(path) for path in names("base", 30)), **SMALL, **properties)
    assert lakelog.open(root).checkpoint().parts == 5
    return table


def sidecars(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "_delta_log/_sidecars").iterdir()}


def test_kept_expired_tombstones_do_not_fail_verification(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    table.commit(*(old_remove(path, 6.5) for path in names("base", 30)[:2]))
    store = open_store(str(table.root))
    write_checkpoint(Log(store, DIALECT, lambda: NOW_MS))
    table.commit(add("new"))
    later = Log(store, DIALECT, lambda: NOW_MS + DAY_MS)
    report = write_checkpoint(later)
    assert (report.reused_files, report.num_adds, report.num_removes) == (4, 29, 2)
    assert verify_checkpoint(later).verdict == "proved"
    whole = write_checkpoint(later, layout="classic")
    assert (whole.num_adds, whole.num_removes) == (29, 0)
    assert verify_checkpoint(later).verdict == "proved"


def test_report_counts_the_kept_sidecars(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    table.commit(add("new"))
    report = lakelog.open(table.root).checkpoint()
    assert (report.reused_files, report.parts, report.num_adds) == (4, 6, 31)
    assert report.size_bytes == sum((table.root / path).stat().st_size for path in report.paths)


def test_only_sidecars_that_may_contain_a_changed_path_are_opened(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    paths = [f"base {number:02}" for number in range(32)]
    table.create(*(add(path) for path in paths), **SMALL, **TYPED)
    lakelog.open(table.root).checkpoint()
    before = sidecars(table.root)
    store = InjectingStore(open_store(str(table.root)))
    table.commit(add("new"), old_remove(paths[20]))
    assert lakelog.open(store=store).checkpoint().reused_files == 3
    operations = {
        (kind, Path(path).name) for kind, path in store.operations if Path(path).name in before
    }
    # The changed sidecar is rewritten. One other is opened for the columns and the types of the
    # recorded bounds.
    assert {kind for kind, _ in operations} == {"open"}
    assert len(operations) == 2
    # A sidecar that is not opened must exist as well.
    unopened = min(before.keys() - {name for _, name in operations})
    (table.root / "_delta_log/_sidecars" / unopened).unlink()
    table.commit(add("newer"))
    with pytest.warns(LakelogWarning, match="was not found"):
        assert lakelog.open(table.root).checkpoint().reused_files == 0
    assert lakelog.open(table.root).snapshot().num_files() == 33


def test_sidecar_replaced_by_one_of_equal_length_is_refused(tmp_path: Path) -> None:
    properties = {**SMALL, **TYPED, "spark.indextables.checkpoint.compression": "uncompressed"}
    table = Table(tmp_path / "t")
    table.create(*(add(f"base {number:02}") for number in range(32)), **properties)
    lakelog.open(table.root).checkpoint()
    folder = table.root / "_delta_log/_sidecars"
    by_size: dict[int, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        by_size.setdefault(path.stat().st_size, []).append(path)
    source, target = next(paths for paths in by_size.values() if len(paths) > 1)[:2]
    shutil.copyfile(source, target)
    with pytest.warns(LakelogWarning, match="a sidecar was replaced by another file"):
        files = lakelog.open(table.root).snapshot().files().collect()
    assert files["path"].sort().to_list() == [f"base {number:02}" for number in range(32)]
    (table.root / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(CheckpointCorruptionError, match="a sidecar was replaced by another file"):
        lakelog.open(table.root).snapshot().files().collect()


def test_unverified_sidecars_are_not_recorded(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    table.commit(add("new"))
    lakelog.open(table.root).checkpoint(verify=False)
    manifest = replay.list_log(table.root).candidates[-1].paths[0]
    tags = [
        body["sidecar"].get("tags") or {}
        for line in (table.root / manifest).read_text().splitlines()
        if "sidecar" in (body := json.loads(line))
    ]
    assert [FINGERPRINT_TAG in tag for tag in tags] == [True] * 4 + [False]
    table.commit(add("newer"))
    assert lakelog.open(table.root).checkpoint().reused_files == 0
    table.commit(add("newest"))
    assert lakelog.open(table.root).checkpoint().reused_files


@pytest.mark.parametrize(
    ("statistics", "kept"), [(TEXT_ONLY, 4), (TYPED, 0)], ids=["text", "typed"]
)
def test_new_column_requires_a_full_checkpoint_if_statistics_are_typed(
    statistics: dict[str, str], kept: int, tmp_path: Path
) -> None:
    table = make(tmp_path / "t", **statistics)
    more = metadata(field("id"), field("b", "string"), properties={**SMALL, **statistics})
    table.commit(more, add("new"))
    assert lakelog.open(table.root).checkpoint().reused_files == kept


def test_other_indexed_columns_require_a_full_checkpoint(tmp_path: Path) -> None:
    table = make(tmp_path / "t", **TYPED)
    properties = {**SMALL, **TYPED, "delta.dataSkippingNumIndexedCols": "1"}
    table.commit(metadata(properties=properties), add("new"))
    assert lakelog.open(table.root).checkpoint().reused_files == 0
    schemas = {str(pq.read_schema(p).remove_metadata()) for p in newest_sidecars(table.root)}
    assert len(schemas) == 1


def newest_sidecars(root: Path) -> list[Path]:
    snapshot = lakelog.open(root).snapshot()
    return [root / path for path in snapshot.provenance.files if "_sidecars" in path]


DAMAGES = ("missing", "truncated", "copied", "one row less")


def damage(root: Path, how: str) -> None:
    first, second, *_ = newest_sidecars(root)
    if how == "missing":
        first.unlink()
    elif how == "truncated":
        first.write_bytes(first.read_bytes()[:-7])
    elif how == "copied":
        first.write_bytes(second.read_bytes())
    else:
        pq.write_table(pq.read_table(first)[1:], first)


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_sidecar_leads_to_a_full_checkpoint_from_the_commits(
    how: str, tmp_path: Path
) -> None:
    table = make(tmp_path / "t")
    damage(table.root, how)
    table.commit(add("new"), old_remove(names("base", 30)[7]))
    with pytest.warns(LakelogWarning, match="was ignored"):
        report = lakelog.open(table.root).checkpoint()
    assert (report.reused_files, report.num_adds, report.verified) == (0, 30, True)
    assert lakelog.open(table.root).snapshot().num_files() == 30


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_sidecar_without_commits_fails_the_checkpoint(how: str, tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    damage(table.root, how)
    table.commit(add("new"))
    (table.root / "_delta_log" / f"{0:020d}.json").unlink()
    before = sorted((table.root / "_delta_log").glob("*.checkpoint.*"))
    with pytest.raises(CheckpointCorruptionError):
        lakelog.open(table.root).checkpoint()
    assert sorted((table.root / "_delta_log").glob("*.checkpoint.*")) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ["fail", "lost"])
def test_previous_checkpoint_and_sidecars_are_kept_after_any_failure(
    fault: Fault, tmp_path: Path
) -> None:
    template = make(tmp_path / "template")
    template.commit(add("new"), old_remove(names("base", 30)[7]))
    before = sidecars(template.root)
    faultless = InjectingStore(
        open_store(str(shutil.copytree(template.root, tmp_path / "faultless")))
    )
    write_checkpoint(Log(faultless, DIALECT, lambda: NOW_MS))
    for nth in points(faultless.operations):
        root = shutil.copytree(template.root, tmp_path / f"t{nth}")
        rule = Rule(fault, nth=nth)
        store = InjectingStore(open_store(str(root)), [rule])
        done = None
        try:
            done = write_checkpoint(Log(store, DIALECT, lambda: NOW_MS))
        except (CheckpointWriteError, UnavailableError, CheckpointCorruptionError):
            pass
        except LakelogError as error:
            pytest.fail(f"{fault} at operation {nth}: {error!r}")
        assert sidecars(root).items() >= before.items()
        fresh = lakelog.open(root)
        assert fresh.snapshot().num_files() == 30
        assert fresh.verify().verdict == "proved"
        if len(store.operations) < nth:
            assert done is not None
            assert done.reused_files == 3
            return
    pytest.fail("no attempt succeeds")
