"""Cleanup of a log: what is planned, what is refused, and that every promised version survives."""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from lakelog import (
    CorruptionError,
    InvalidInputError,
    LakelogError,
    LakelogWarning,
    Table,
    UnsafeRetentionError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lakelog.retention.cleanup import FILES_SCHEMA, CleanupPlan, CleanupReport
from lakelog.retention.horizon import GATES
from tests.retention.logs import DAY_MS, NOW_MS, MadeLog, content, fresh, gates

PROMISED, CUTOFF = 29, 20
"""Of `aged`: the cut-off commit, and the cut-off checkpoint below it."""


def plan(table: Table, **options: Any) -> CleanupPlan:
    found = table.cleanup(**options)
    assert isinstance(found, CleanupPlan)
    return found


def clean(table: Table, **options: Any) -> CleanupReport:
    found = table.cleanup(plan=False, **options)
    assert isinstance(found, CleanupReport)
    return found


def aged(tmp_path: Path, layout: str = "classic", at: tuple[int, ...] = (5, 10, 20, 30)) -> MadeLog:
    """Forty commits, one a day, the youngest 21 days old, with checkpoints."""
    features = ("v2Checkpoint",) if layout.startswith("v2") else ()
    made = MadeLog(tmp_path / "table", writer_features=features)
    made.commits(60 - i for i in range(40))
    for version in at:
        made.checkpoint(version, 60 - version, layout)
    return made


def contents(table: Table, versions: range) -> list[Any]:
    return [content(table, version) for version in versions]


# --- planning ------------------------------------------------------------------------------------


def test_a_plan_has_one_row_a_file_that_may_go(tmp_path: Path) -> None:
    made = aged(tmp_path)
    found = plan(made.table())
    assert found.files.schema == FILES_SCHEMA
    assert set(found.files["action"]) == {"delete"}
    assert sorted(found.files.filter(pl.col("kind") == "commit")["version"]) == [*range(CUTOFF)]
    assert sorted(found.files.filter(pl.col("kind") == "checkpoint")["version"]) == [5, 10]
    (covered,) = found.files["covered_by"].unique()
    assert covered == found.checkpoint == f"_delta_log/{CUTOFF:020d}.checkpoint.parquet"
    assert (found.oldest_now, found.oldest_promised) == (0, PROMISED)
    assert found.size_bytes == sum(
        (made.root / path).stat().st_size for path in found.files["path"]
    )


def test_planning_writes_and_deletes_nothing(tmp_path: Path) -> None:
    made = aged(tmp_path)
    table, store = made.over()
    before = made.names()
    plan(table, keep=True)
    assert made.names() == before
    assert {kind for kind, _ in store.operations} <= {"list", "read", "open", "stat", "walk"}


def test_with_keep_every_file_has_its_row_and_its_reason(tmp_path: Path) -> None:
    made = aged(tmp_path)
    made.put("notes.txt", b"x", 50)
    found = plan(made.table(), keep=True).files
    assert {path.split("/", 1)[1] for path in found["path"]} == made.names()
    assert set(found["gate"]) <= set(GATES)
    assert found["why"].null_count() == 0
    assert gates(found)["notes.txt"] == "unknown"
    assert gates(found)["_last_checkpoint"] == "pointer"


def test_a_plan_and_a_report_show_themselves(tmp_path: Path) -> None:
    made = aged(tmp_path)
    found = plan(made.table())
    assert "22 files" in str(found)
    assert "oldest version promised" in found._repr_html_()
    done = found.apply()
    assert "proved" in str(done)
    assert "22 files" in done._repr_html_()


def test_a_young_table_keeps_everything(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "table")
    made.commits(20 - i for i in range(20))
    made.checkpoint(10, 10)
    found = plan(made.table())
    assert (found.gate, found.files.height) == ("no-cut-off-commit", 0)
    assert found.apply().files.height == 0


def test_a_table_without_checkpoints_keeps_everything(tmp_path: Path) -> None:
    made = aged(tmp_path, at=())
    found = plan(made.table())
    assert (found.gate, found.files.height) == ("no-cut-off-checkpoint", 0)


def test_leftovers_of_writers_go_even_where_nothing_else_may(tmp_path: Path) -> None:
    made = aged(tmp_path, at=())
    made.put(f".lakelog-{'a' * 32}.tmp", b"x", 2)
    made.put(f".lakelog-{'b' * 32}.tmp", b"x", 0.5)
    before = made.names()
    clean(made.table())
    assert before - made.names() == {f".lakelog-{'a' * 32}.tmp"}


def test_a_shorter_retention_than_the_tables_own_must_be_forced(tmp_path: Path) -> None:
    made = aged(tmp_path)
    with pytest.raises(UnsafeRetentionError, match="shorter than the table's own"):
        made.table().cleanup(retention=DAY_MS)
    forced = plan(made.table(), retention=DAY_MS, force=True)
    assert forced.oldest_promised == 39
    assert forced.checkpoint_version == 30


def test_a_longer_retention_keeps_more(tmp_path: Path) -> None:
    assert plan(aged(tmp_path).table(), retention=45 * DAY_MS).checkpoint_version == 10


def test_wrong_calls_are_told(tmp_path: Path) -> None:
    table = aged(tmp_path).table()
    with pytest.raises(InvalidInputError):
        table.cleanup(retention=-1)
    with pytest.raises(InvalidInputError):
        table.cleanup(failure_policy="hope")


def test_a_table_that_switches_cleanup_off_is_left_alone(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "t", configuration={"delta.enableExpiredLogCleanup": "false"})
    made.commits(60 - i for i in range(40))
    made.checkpoint(20, 40)
    assert plan(made.table()).gate == "cleanup-disabled"
    assert clean(made.table()).files.height == 0
    assert plan(made.table(), force=True).gate is None


def test_the_tables_own_retention_counts(tmp_path: Path) -> None:
    own = {"delta.logRetentionDuration": "interval 50 days"}
    made = MadeLog(tmp_path / "t", configuration=own)
    made.commits(60 - i for i in range(40))
    for version in (5, 20):
        made.checkpoint(version, 40)
    assert plan(made.table()).checkpoint_version == 5


def test_a_catalog_managed_table_is_refused(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "t", writer_features=("catalogManaged",))
    made.commits([60])
    first = made.file(f"{0:020d}.json")
    listed = first.read_text().replace(
        '"writerFeatures"', '"readerFeatures": ["catalogManaged"], "writerFeatures"'
    )
    first.write_text(listed.replace('"minReaderVersion": 1', '"minReaderVersion": 3'))
    with pytest.raises(UnsupportedFeatureError, match="catalogManaged"):
        made.table().snapshot()
    made.commits([59, 58])
    made.put("_last_checkpoint", b"{}", 1)
    made._states[2][0] = {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["catalogManaged"],
            "writerFeatures": ["catalogManaged"],
        }
    }
    made.checkpoint(2, 58)
    with pytest.raises(UnsupportedFeatureError, match="catalogManaged"):
        made.table().cleanup()


@pytest.mark.parametrize(
    ("feature", "gate"), [("managedCommit-preview", "catalog"), ("tomorrow", "unknown-feature")]
)
def test_features_that_bind_cleanup_keep_everything(
    tmp_path: Path, feature: str, gate: str
) -> None:
    made = MadeLog(tmp_path / "t", writer_features=(feature,))
    made.commits(60 - i for i in range(40))
    made.checkpoint(20, 40)
    assert plan(made.table()).gate == gate
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match="nothing was cleaned up"):
        made.table().cleanup(plan=False)
    assert made.names() == before


@pytest.mark.parametrize(("before", "kept"), [(15, False), (20, False), (25, True)])
def test_protected_checkpoints_go_all_at_once(tmp_path: Path, before: int, kept: bool) -> None:
    made = MadeLog(
        tmp_path / "t",
        configuration={"delta.requireCheckpointProtectionBeforeVersion": str(before)},
        writer_features=("checkpointProtection",),
    )
    made.commits(60 - i for i in range(40))
    for version in (5, 20):
        made.checkpoint(version, 40)
    found = plan(made.table())
    assert (found.gate == "checkpoint-protection") is kept
    assert clean(made.table()).files.height == (0 if kept else 21)


def test_in_commit_timestamps_decide_what_is_old(tmp_path: Path) -> None:
    made = MadeLog(
        tmp_path / "t",
        configuration={"delta.enableInCommitTimestamps": "true"},
        writer_features=("inCommitTimestamp",),
        in_commit=lambda version: NOW_MS - (60 - version) * DAY_MS,
    )
    made.commits([1] * 40)  # copied yesterday
    made.checkpoint(20, 40)
    assert plan(made.table()).oldest_promised == PROMISED
    assert clean(made.table()).verdict == "proved"


def test_in_commit_timestamps_that_do_not_increase_are_refused(tmp_path: Path) -> None:
    def wrong(version: int) -> int:
        return NOW_MS - (60 - version) * DAY_MS + (100 * DAY_MS if version == 3 else 0)

    made = MadeLog(
        tmp_path / "t",
        configuration={"delta.enableInCommitTimestamps": "true"},
        writer_features=("inCommitTimestamp",),
        in_commit=wrong,
    )
    made.commits([70 - i for i in range(40)])
    made.checkpoint(20, 40)
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match="do not increase"):
        made.table().cleanup(plan=False)
    assert made.names() == before


# --- cleaning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["classic", "multipart", "v2-json", "v2-parquet"])
def test_every_promised_version_reads_the_same_afterwards(tmp_path: Path, layout: str) -> None:
    made = aged(tmp_path, layout)
    kept = range(CUTOFF, 40)
    before, names = contents(made.table(), kept), made.names()
    report = clean(made.table())
    assert report.verdict == "proved"
    assert names - made.names() == {path.split("/", 1)[1] for path in report.files["path"]}
    assert contents(fresh(made), kept) == before
    assert fresh(made).versions() == [(CUTOFF, 39)]
    with pytest.raises(VersionNotFoundError):
        fresh(made).snapshot(CUTOFF - 1)


@pytest.mark.parametrize("layout", ["classic", "multipart", "v2-json", "v2-parquet"])
def test_deltalake_reads_the_same_before_and_after(tmp_path: Path, layout: str) -> None:
    made = aged(tmp_path, layout)

    def theirs(version: int | None) -> tuple[int, list[str]]:
        table = DeltaTable(str(made.root), version=version)
        paths = pl.DataFrame(table.get_add_actions())["path"]
        return table.version(), sorted(paths)

    versions = (None, CUTOFF, PROMISED, 35)
    before = [theirs(version) for version in versions]
    clean(made.table(), quarantine=True)
    assert [theirs(version) for version in versions] == before
    made.table().purge_quarantines(older_than=dt.timedelta(0))
    assert [theirs(version) for version in versions] == before


def test_a_second_cleanup_finds_nothing_and_a_later_one_goes_on(tmp_path: Path) -> None:
    made = aged(tmp_path)
    clean(made.table())
    assert plan(made.table()).files.height == 0
    made.clock.now_ms += 5 * DAY_MS
    latest = content(made.table())
    later = clean(made.table())
    assert later.verdict == "proved"  # from the checkpoint of the first cleanup
    assert fresh(made).versions() == [(30, 39)]
    assert content(fresh(made)) == latest


def test_what_cannot_be_proved_any_more_is_read_whole(tmp_path: Path) -> None:
    made = aged(tmp_path, at=(20,))
    for version in range(7):
        made.file(f"{version:020d}.json").unlink()
    latest = content(made.table())
    report = clean(made.table())
    assert report.verdict == "unprovable"
    assert sorted(report.files["version"]) == [*range(7, 20)]
    assert content(fresh(made)) == latest


def test_what_cannot_be_proved_and_is_not_what_the_checksum_counts_is_refused(
    tmp_path: Path,
) -> None:
    made = aged(tmp_path, at=())
    made.checkpoint(20, 40, without="g3.parquet")
    for version in range(7):
        made.file(f"{version:020d}.json").unlink()
    true = sum("add" in action for action in made.state(20))
    body = {"numFiles": true, "tableSizeBytes": true * 10, "numMetadata": 1, "numProtocol": 1}
    made.put(f"{20:020d}.crc", json.dumps(body).encode(), 40)
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match="broken"):
        made.table().cleanup(plan=False)
    assert made.names() == before


def test_files_that_appear_after_the_plan_was_made_stay(tmp_path: Path) -> None:
    made = aged(tmp_path)
    found = plan(made.table())
    made.put(f"{7:020d}.checkpoint.parquet", b"x", 50)
    made.put(f"{3:020d}.json", made.file(f"{3:020d}.json").read_bytes(), 56)
    report = found.apply()
    left = made.names()
    assert f"{7:020d}.checkpoint.parquet" in left
    assert f"{3:020d}.json" in left  # written anew since, so not what was planned
    assert report.files.height == 21


def test_a_plan_that_is_no_longer_allowed_is_not_carried_out(tmp_path: Path) -> None:
    made = aged(tmp_path)
    found = plan(made.table())
    made.clock.now_ms -= 20 * DAY_MS
    report = found.apply()
    assert set(report.files["version"]) == {0, 1, 2, 3, 4}
    assert fresh(made).versions() == [(5, 39)]


def test_commits_go_oldest_first_and_before_the_checkpoints_under_them(tmp_path: Path) -> None:
    made = aged(tmp_path, "multipart")
    made.put(f"{3:020d}.{8:020d}.compacted.json", b"{}", 50)
    made.put(f"{3:020d}.crc", b"{}", 50)
    order = clean(made.table()).files
    assert order["kind"].to_list()[0] == "compaction"
    commits = order.filter(pl.col("kind") == "commit")
    assert commits["version"].is_sorted()
    kinds = order["kind"].to_list()
    assert kinds.index("checkpoint") > max(i for i, k in enumerate(kinds) if k == "commit")
    parts = [p.split(".")[2] for p in order.filter(pl.col("kind") == "checkpoint")["path"]]
    assert parts == ["0000000001", "0000000001", "0000000002", "0000000002"]


def test_the_pointed_checkpoint_stays_however_old(tmp_path: Path) -> None:
    made = aged(tmp_path)
    made.put("_last_checkpoint", b'{"version":5,"size":1}', 40)
    before = content(made.table())
    clean(made.table())
    assert fresh(made).versions() == [(5, 5), (CUTOFF, 39)]
    assert content(fresh(made)) == before
    assert DeltaTable(str(made.root)).version() == 39


# --- what must survive ---------------------------------------------------------------------------


def test_an_orphan_part_is_never_taken_for_a_checkpoint(tmp_path: Path) -> None:
    made = aged(tmp_path, at=())
    made.checkpoint(25, 35, "multipart", parts=3, pointer=False)
    parts = sorted(made.folder.glob("*.checkpoint.*"))
    parts[1].unlink()
    before = contents(made.table(), range(40))
    assert clean(made.table()).files.height == 0
    assert contents(fresh(made), range(40)) == before


def test_an_orphan_part_above_old_commits_survives_with_them(tmp_path: Path) -> None:
    made = aged(tmp_path, at=(10,))
    for orphan in (25, 15, 8):
        written = made.checkpoint(orphan, 35, "multipart", parts=2, pointer=False)
        written[0].unlink()
    before = contents(made.table(), range(10, 40))
    report = clean(made.table())
    assert report.checkpoint == f"_delta_log/{10:020d}.checkpoint.parquet"
    assert [p for p in report.files["path"] if "checkpoint" in p] == [
        f"_delta_log/{8:020d}.checkpoint.0000000002.0000000002.parquet"
    ]
    assert contents(fresh(made), range(10, 40)) == before


@pytest.mark.parametrize(
    "pointer",
    [b"", b'{"version":', b'{"version":17,"size":3}', b'{"version":999,"size":3}', b"[]", None],
    ids=["empty", "torn", "dangling", "beyond", "no object", "missing"],
)
def test_a_pointer_never_decides_what_goes(tmp_path: Path, pointer: bytes | None) -> None:
    made = aged(tmp_path)
    made.file("_last_checkpoint").unlink()
    if pointer is not None:
        made.put("_last_checkpoint", pointer, 30)
    before = contents(made.table(), range(CUTOFF, 40))
    assert clean(made.table()).verdict == "proved"
    assert contents(fresh(made), range(CUTOFF, 40)) == before


@pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")
@pytest.mark.parametrize("cut", [0.2, 0.6, 0.99])
def test_a_truncated_checkpoint_keeps_all_the_commits_below_it(tmp_path: Path, cut: float) -> None:
    made = aged(tmp_path, at=())
    (path,) = made.checkpoint(20, 40)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut)])
    made.age(path, 40)
    found = plan(made.table())
    assert (found.gate, found.files.height) == ("checkpoint-broken", 0)
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match="nothing was cleaned up"):
        found.apply()
    assert made.names() == before
    with pytest.warns(LakelogWarning, match="passed over"):
        assert len(content(made.table())) > 40


def test_an_empty_checkpoint_file_is_no_checkpoint(tmp_path: Path) -> None:
    made = aged(tmp_path, at=())
    made.put(f"{20:020d}.checkpoint.parquet", b"", 40)
    assert plan(made.table()).gate == "no-cut-off-checkpoint"


@pytest.mark.parametrize("layout", ["classic", "multipart", "v2-json"])
def test_a_checkpoint_that_lacks_a_file_is_refused(tmp_path: Path, layout: str) -> None:
    made = aged(tmp_path, layout, at=())
    made.checkpoint(20, 40, layout, without="g3.parquet")
    assert plan(made.table()).gate is None  # it reads well
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match="wrong") as refused:
        made.table().cleanup(plan=False)
    assert refused.value.version == 20
    assert made.names() == before


def test_the_worse_of_two_checkpoints_of_a_version_is_refused(tmp_path: Path) -> None:
    made = aged(tmp_path, "v2-json", at=(20,))
    made.checkpoint(20, 40, "classic", without="g3.parquet")
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match="wrong"):
        made.table().cleanup(plan=False)
    assert made.names() == before


@pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")
def test_a_missing_sidecar_keeps_all_the_commits(tmp_path: Path) -> None:
    made = aged(tmp_path, "v2-json", at=())
    _, sidecar, _ = made.checkpoint(20, 40, "v2-json")
    sidecar.unlink()
    found = plan(made.table())
    assert found.gate == "checkpoint-broken"
    assert "sidecar" in found.why
    with pytest.raises(UnsafeRetentionError):
        found.apply()
    with pytest.warns(LakelogWarning, match="passed over"):
        content(made.table())


def test_sidecars_that_kept_checkpoints_share_with_old_ones_stay(tmp_path: Path) -> None:
    made = aged(tmp_path, "v2-json", at=(10,))
    old = sorted((made.folder / "_sidecars").iterdir())
    manifest, *_ = made.checkpoint(20, 40, "v2-json")
    # The new manifest names one of the old sidecars in place of a copy of it.
    lines = manifest.read_text().splitlines()
    named = [i for i, line in enumerate(lines) if '"sidecar"' in line]
    shared = old[0]
    extra = made._parquet(f"_sidecars/{uuid.uuid4()}.parquet", _rest(made, shared), 40)
    lines = [line for i, line in enumerate(lines) if i not in named]
    for path in (shared, extra):
        size = path.stat().st_size
        body = {"path": path.name, "sizeInBytes": size, "modificationTime": 1}
        lines.append(json.dumps({"sidecar": body}))
    manifest.write_text("\n".join(lines) + "\n")
    made.age(manifest, 40)
    before = contents(made.table(), range(20, 40))
    report = clean(made.table())
    gone = {Path(p).name for p in report.files.filter(pl.col("kind") == "sidecar")["path"]}
    assert shared.name not in gone
    assert old[1].name in gone
    assert contents(fresh(made), range(20, 40)) == before


def _rest(made: MadeLog, shared: Path) -> list[dict[str, Any]]:
    """File actions of version 20 that are not in a sidecar; what is in it and no longer live is
    taken out of it, so that it can be shared."""
    import pyarrow.parquet as pq

    now = {
        body["path"]: (kind, body)
        for action in made.state(20)
        for kind, body in action.items()
        if kind in {"add", "remove"}
    }
    kept: list[dict[str, Any]] = [
        {kind: now.pop(row[kind]["path"])[1]}
        for row in pq.read_table(shared).to_pylist()
        for kind in ("add", "remove")
        if row.get(kind) and now.get(row[kind]["path"], ("",))[0] == kind
    ]
    shared.unlink()
    made._parquet(f"_sidecars/{shared.name}", kept, 50)
    return [{kind: body} for kind, body in now.values()]


@pytest.mark.filterwarnings("ignore::lakelog.LakelogWarning")
def test_a_manifest_that_cannot_be_read_stops_the_deletion_of_sidecars(tmp_path: Path) -> None:
    made = aged(tmp_path, "v2-json", at=(10, 20))
    made.put(f"{30:020d}.checkpoint.{uuid.uuid4()}.json", b"{torn", 30)
    stray = made.put(f"_sidecars/{uuid.uuid4()}.parquet", b"x", 50)
    found = plan(made.table(), keep=True)
    assert set(found.files.filter(pl.col("kind") == "sidecar")["gate"]) == {"manifest-unreadable"}
    clean(made.table())
    assert stray.exists()


def test_a_manifest_written_while_cleaning_protects_its_sidecars(tmp_path: Path) -> None:
    made = aged(tmp_path, "v2-json", at=(10, 20))
    found = plan(made.table())
    stale = [p for p in found.files["path"] if "_sidecars/" in p]
    assert len(stale) == 2

    def then(stage: str, done: int, total: int | None) -> None:
        if stage == "delete" and done and not list(made.folder.glob(f"{39:020d}.checkpoint.*")):
            names = [
                json.dumps({"sidecar": {"path": Path(p).name, "sizeInBytes": 1}}) for p in stale
            ]
            top = [{"checkpointMetadata": {"version": 39}}, *made.state(39)[:2]]
            text = "\n".join([*map(json.dumps, top), *names])
            made.put(f"{39:020d}.checkpoint.{uuid.uuid4()}.json", text.encode(), 0)

    report = found.apply(progress=then)
    assert not report.files.filter(pl.col("kind") == "sidecar").height
    assert all((made.root / path).exists() for path in stale)


def test_clocks_that_jump_back_never_widen_what_goes(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "table")
    made.commits([60, 59, 900, 899, 20, 19, 18])
    for version in (1, 3, 5):
        made.checkpoint(version, 15)
    found = plan(made.table())
    assert (found.oldest_promised, found.checkpoint_version) == (1, 1)


def test_a_forged_future_file_keeps_all_that_follows(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "table")
    made.commits([60, 59, -365, 58, 57, 56])
    for version in (1, 4):
        made.checkpoint(version, 50)
    assert plan(made.table()).oldest_promised == 1


def test_a_gap_in_the_log_is_refused(tmp_path: Path) -> None:
    made = aged(tmp_path)
    made.checkpoint(38, 22)
    made.file(f"{24:020d}.json").unlink()
    found = plan(made.table())
    assert found.gate == "missing-commits"
    with pytest.raises(UnsafeRetentionError):
        found.apply()


# --- IndexTables ---------------------------------------------------------------------------------


def indextables(tmp_path: Path, **configuration: str) -> MadeLog:
    properties = {f"spark.indextables.{k.replace('_', '.')}": v for k, v in configuration.items()}
    made = MadeLog(tmp_path / "table", form="indextables", configuration=properties)
    made.commits(60 - i / 2 for i in range(80))
    for version in (10, 20, 40, 70):
        made.checkpoint(version, 60 - version / 2)
    return made


def test_an_indextables_log_is_cleaned_up_below_its_checkpoint(tmp_path: Path) -> None:
    made = indextables(tmp_path)
    found = plan(made.table())
    # 30 days are version 60 (not strictly older) less one; 30 versions below 70 are version 40.
    assert (found.oldest_promised, found.checkpoint_version) == (40, 40)
    before = contents(made.table(), range(40, 80))
    assert found.apply().verdict == "proved"
    assert contents(fresh(made), range(40, 80)) == before
    assert fresh(made).versions() == [(40, 79)]


@pytest.mark.parametrize("layout", ["json", "json-multipart", "flattened"])
def test_checkpoints_of_every_layout_cover_an_indextables_log(tmp_path: Path, layout: str) -> None:
    made = MadeLog(
        tmp_path / "table",
        form="indextables",
        configuration={
            "spark.indextables.checkpoint.retention": "1",
            "spark.indextables.checkpoint.actionsPerPart": "10",
        },
        writer_features=("columnarCommits",) if layout == "flattened" else (),
    )
    made.commits(60 - i / 2 for i in range(80))
    for version in (10, 40, 70):
        made.table().checkpoint(version, layout=layout)
    for path in made.folder.rglob("*checkpoint*"):
        if path.is_file():
            made.age(path, 35)
    before = contents(made.table(), range(40, 80))
    report = clean(made.table())
    assert report.verdict == "proved"
    assert set(report.files.filter(pl.col("kind") == "commit")["version"]) == {*range(40)}
    assert set(report.files.filter(pl.col("kind") == "checkpoint")["version"]) == {10}
    assert not list(made.folder.rglob(f"{10:020d}.checkpoint*"))
    assert contents(fresh(made), range(40, 80)) == before


def flattened(tmp_path: Path, *features: str) -> MadeLog:
    """Eighty commits, with flattened checkpoints alone."""
    few = {"spark.indextables.checkpoint.retention": "1"}
    made = MadeLog(
        tmp_path / "table", form="indextables", configuration=few, writer_features=features
    )
    made.commits(60 - i / 2 for i in range(80))
    for version in (10, 40, 70):
        made.table().checkpoint(version, layout="flattened")
    for path in (made.folder / "_checkpoints").iterdir():
        made.age(path, 35)
    return made


def test_what_other_readers_do_not_know_covers_nothing(tmp_path: Path) -> None:
    found = plan(flattened(tmp_path).table())
    assert (found.gate, found.files.height) == ("foreign-readers", 0)
    assert "version 40" in found.why
    assert "columnarCommits" in found.why
    assert "layout json" in str(found)
    assert found.apply().gate == "foreign-readers"


def test_it_covers_where_lakelog_alone_reads_the_table(tmp_path: Path) -> None:
    made = flattened(tmp_path, "columnarCommits")
    found = plan(made.table())
    assert (found.gate, found.checkpoint_version, found.why) == (None, 40, "")
    before = contents(made.table(), range(59, 80))
    assert found.apply().verdict == "proved"
    assert contents(fresh(made), range(59, 80)) == before


def test_a_json_checkpoint_below_it_covers_what_it_can(tmp_path: Path) -> None:
    made = flattened(tmp_path)
    made.checkpoint(20, 35)
    found = plan(made.table(), keep=True)
    assert (found.gate, found.checkpoint_version) == (None, 20)
    assert "version 40" in found.why
    assert "more is kept" in str(found)
    told = gates(found.files)
    assert told[f"{19:020d}.json"] == "expired"
    assert told[f"{20:020d}.json"] == "pointed" or told[f"{20:020d}.json"] == "cut-off-checkpoint"
    assert {told[f"{v:020d}.json"] for v in range(21, 40)} == {"foreign-readers"}
    assert told[f"{40:020d}.json"] == "promised" or told[f"{40:020d}.json"] == "cut-off-checkpoint"
    because = found.files.filter(pl.col("gate") == "foreign-readers")["why"]
    assert all("version 40" in why for why in because)
    before = contents(made.table(), range(40, 80))
    found.apply()
    assert contents(fresh(made), range(40, 80)) == before
    assert json.loads(made.file("_last_checkpoint").read_bytes())["version"] == 20
    assert made.names() >= {f"{version:020d}.json" for version in range(21, 80)}


@pytest.mark.parametrize(
    ("pointer", "gate", "covering"),
    [
        (None, "foreign-readers", None),
        (b"torn", "foreign-readers", None),
        (b'{"version": 30}', "foreign-readers", None),
        (b'{"version": 20}', None, 20),
        (b'{"version": 70}', None, 40),
    ],
)
def test_other_readers_begin_at_the_checkpoint_that_the_pointer_names(
    tmp_path: Path, pointer: bytes | None, gate: str | None, covering: int | None
) -> None:
    made = indextables(tmp_path)
    made.file("_last_checkpoint").unlink()
    if pointer is not None:
        made.put("_last_checkpoint", pointer, 1)
    found = plan(made.table())
    assert (found.gate, found.checkpoint_version) == (gate, covering)
    assert gate is None or not found.files.height


def test_age_is_strict_in_indextables(tmp_path: Path) -> None:
    made = indextables(tmp_path, checkpoint_retention="5")
    assert plan(made.table()).oldest_promised == 59


def test_indextables_keeps_a_checkpoint_for_two_hours(tmp_path: Path) -> None:
    made = indextables(tmp_path)
    made.checkpoint(20, 0.05, pointer=False)
    made.checkpoint(10, 0.1, pointer=False)
    found = gates(plan(made.table(), keep=True).files)
    assert found[f"{20:020d}.checkpoint.json"] == "checkpoint-retention"
    assert found[f"{10:020d}.checkpoint.json"] == "expired"


def test_indextables_cleanup_can_be_switched_off(tmp_path: Path) -> None:
    assert plan(indextables(tmp_path, cleanup_enabled="false").table()).gate == "cleanup-disabled"


@pytest.mark.parametrize("cooling", [True, False])
def test_skips_that_no_checkpoint_keeps_are_not_lost_while_they_count(
    tmp_path: Path, cooling: bool
) -> None:
    few = {"spark.indextables.checkpoint.retention": "1"}
    made = MadeLog(tmp_path / "table", form="indextables", configuration=few)
    made.commits([90, 89])
    skip = {
        "path": "g0.parquet",
        "skipTimestamp": 1,
        "reason": "damaged",
        "operation": "merge",
        "retryAfter": NOW_MS + (DAY_MS if cooling else -DAY_MS),
        "skipCount": 2,
    }
    made.commit(88, {"mergeskip": skip})
    made._states[2] = made._states[1]
    made.commits(80 - i for i in range(60))
    made.checkpoint(20, 60)
    made.checkpoint(50, 30)
    before = made.names()
    assert made.table().snapshot().skips().collect().height == 1
    if cooling:
        with pytest.raises(UnsafeRetentionError, match="would be lost"):
            made.table().cleanup(plan=False)
        assert made.names() == before
    else:
        assert clean(made.table()).files.height == 20


def test_a_log_of_avro_states_is_left_alone(corpus: Path) -> None:
    import lakelog

    logs = [p for p in sorted((corpus / "indextables").iterdir()) if p.is_dir()]
    seen = 0
    for where in logs:
        try:
            found = plan(lakelog.open(where), force=True, retention=0)
        except LakelogError:
            continue
        seen += found.gate == "avro-state"
        assert found.files.height == 0
    assert seen


# --- random logs ---------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32))
@settings(max_examples=12)
def test_any_log_reads_the_same_after_cleanup(tmp_path_factory: Any, seed: int) -> None:
    """Whatever a log holds: promised versions stay, and a refusal changes nothing."""
    rng = random.Random(seed)
    made = MadeLog(tmp_path_factory.mktemp("log") / "table", writer_features=("v2Checkpoint",))
    age = 75.0
    for _ in range(rng.randrange(5, 30)):
        age -= rng.choice([0, 0.5, 2, 5])
        made.commit(rng.choice([age, age, age, 900, -10, age + 3]))
    versions = len(made._states)
    for version in range(versions):
        if rng.random() < 0.3:
            layout = rng.choice(["classic", "multipart", "v2-json", "v2-parquet"])
            written = made.checkpoint(version, rng.choice([50, 1]), layout)
            if rng.random() < 0.2:
                path = rng.choice(written)
                if rng.random() < 0.5:
                    path.unlink()
                else:
                    path.write_bytes(path.read_bytes()[: rng.randrange(1, 300)])
                    made.age(path, 50)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LakelogWarning)
        before = {v: _read(made.table(), v) for v in range(versions)}
        names = made.names()
        try:
            found = plan(made.table())
            report = found.apply()
        except (UnsafeRetentionError, CorruptionError):
            assert made.names() == names
            return
        first = found.oldest_promised if found.oldest_promised is not None else 0
        assert {v: _read(fresh(made), v) for v in range(first, versions)} == {
            v: held for v, held in before.items() if v >= first
        }
        assert made.names() == names - {p.split("/", 1)[1] for p in report.files["path"]}


def _read(table: Table, version: int) -> Any:
    try:
        return content(table, version)
    except LakelogError as error:
        return type(error)
