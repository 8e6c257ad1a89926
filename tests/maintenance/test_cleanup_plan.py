"""Plans of cleanup: planned files, and the conditions that keep all files."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

from lakelog import (
    InvalidInputError,
    InvalidPropertyError,
    UnsafeRetentionError,
    UnsupportedFeatureError,
)
from lakelog.maintenance.retention_bounds import GATES
from tests.maintenance.logs import (
    CUTOFF,
    DAY_MS,
    NOW_MS,
    PROMISED,
    MadeLog,
    aged,
    clean,
    gates,
    plan,
)


def test_plan_has_one_row_per_deletable_file(tmp_path: Path) -> None:
    made = aged(tmp_path)
    found = plan(made.table())
    columns = "path kind version size_bytes modified_ms action why gate covered_by".split()
    types = dict.fromkeys(columns, pl.String) | dict.fromkeys(columns[2:5], pl.Int64)
    assert dict(found.files.schema) == types
    assert found.files.columns == columns
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


def test_plan_with_keep_has_every_file_and_its_reason(tmp_path: Path) -> None:
    made = aged(tmp_path)
    made.put("notes.txt", b"x", 50)
    found = plan(made.table(), keep=True).files
    assert {path.split("/", 1)[1] for path in found["path"]} == made.names()
    assert set(found["gate"]) <= set(GATES)
    assert found["why"].null_count() == 0
    assert gates(found)["notes.txt"] == "unknown"
    assert gates(found)["_last_checkpoint"] == "pointer"


def test_plan_and_report_have_text_and_html(tmp_path: Path) -> None:
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


def test_leftovers_of_writers_are_deleted_even_if_all_other_files_are_kept(tmp_path: Path) -> None:
    made = aged(tmp_path, at=())
    old, young = (f".lakelog-{digit * 32}.tmp" for digit in "ab")
    for name, days in ((old, 2), (f"_sidecars/{old}", 2), (young, 0.9)):
        made.put(name, b"x", days)
    before = made.names()
    clean(made.table())
    assert before - made.names() == {old, f"_sidecars/{old}"}


def test_shorter_retention_than_the_tables_must_be_forced(tmp_path: Path) -> None:
    made = aged(tmp_path)
    with pytest.raises(UnsafeRetentionError, match="shorter than the table's own"):
        made.table().cleanup(retention=DAY_MS)
    forced = plan(made.table(), retention=DAY_MS, force=True)
    assert forced.oldest_promised == 39
    assert forced.checkpoint_version == 30


def test_a_longer_retention_keeps_more(tmp_path: Path) -> None:
    assert plan(aged(tmp_path).table(), retention=45 * DAY_MS).checkpoint_version == 10


def test_invalid_arguments_raise_invalid_input_error(tmp_path: Path) -> None:
    table = aged(tmp_path).table()
    with pytest.raises(InvalidInputError):
        table.cleanup(retention=-1)
    with pytest.raises(InvalidInputError):
        table.cleanup(failure_policy="hope")


def test_cleanup_disabled_by_the_table_deletes_nothing(tmp_path: Path) -> None:
    made = MadeLog(tmp_path / "t", configuration={"delta.enableExpiredLogCleanup": "false"})
    made.commits(60 - i for i in range(40))
    made.checkpoint(20, 40)
    assert plan(made.table()).gate == "cleanup-disabled"
    assert "the properties of the table disable cleanup" in str(plan(made.table()))
    assert clean(made.table()).files.height == 0
    assert plan(made.table(), force=True).gate is None


def test_retention_of_the_table_is_used(tmp_path: Path) -> None:
    own = {"delta.logRetentionDuration": "interval 50 days"}
    made = MadeLog(tmp_path / "t", configuration=own)
    made.commits(60 - i for i in range(40))
    for version in (5, 20):
        made.checkpoint(version, 40)
    assert plan(made.table()).checkpoint_version == 5


@pytest.mark.parametrize(
    ("form", "configuration"),
    [
        (
            "delta",
            {
                "delta.logRetentionDuration": "interval 1000000 days",
                "delta.deletedFileRetentionDuration": "interval 100000000000 weeks",
                "delta.setTransactionRetentionDuration": "interval 100000000000 weeks",
            },
        ),
        ("indextables", {"spark.indextables.logRetention.duration": f"{2**62}"}),
    ],
)
def test_retention_of_any_length_keeps_everything(
    tmp_path: Path, form: str, configuration: dict[str, str]
) -> None:
    made = MadeLog(tmp_path / "t", form, configuration)
    made.commits(60 - i for i in range(40))
    made.checkpoint(20, 40)
    table = made.table()
    assert str(table.cleanup())
    assert clean(table).files.height == 0
    assert table.doctor(files=True).table
    table.report(tmp_path / "report.html")
    if form == "delta":
        assert str(table.vacuum())
        assert table.checkpoint().version == 39


def test_names_that_are_not_utf8_are_kept_and_block_nothing(tmp_path: Path) -> None:
    made = aged(tmp_path)
    try:
        stray = made.put(os.fsdecode(b"caf\xe9.txt"), b"x", days=90)
    except OSError:  # a file system that accepts UTF-8 only
        pytest.skip("the file system accepts UTF-8 only")
    assert made.table().doctor(files=True).findings
    assert clean(made.table()).files.height > 0
    assert stray.exists()


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
    made.states[2][0] = {
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
    ("feature", "gate", "reason"),
    [
        ("managedCommit-preview", "catalog", "nothing was cleaned up"),
        ("tomorrow", "unknown-feature", "nothing was cleaned up"),
        (None, "unknown-feature", "minWriterVersion 8"),
    ],
)
def test_a_feature_that_restricts_cleanup_or_a_newer_version_keeps_everything(
    tmp_path: Path, feature: str | None, gate: str, reason: str
) -> None:
    made = MadeLog(tmp_path / "t", writer_features=(feature,) if feature else ())
    made.commits(60 - i for i in range(40))
    made.checkpoint(20, 40)
    if feature is None:
        assert plan(made.table()).gate is None
        made.commit(20, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 8}})
    assert plan(made.table()).gate == gate
    before = made.names()
    with pytest.raises(UnsafeRetentionError, match=reason):
        made.table().cleanup(plan=False)
    assert made.names() == before


@pytest.mark.parametrize(("before", "kept"), [(15, False), (20, False), (25, True)])
def test_protected_checkpoints_are_deleted_together_or_kept(
    tmp_path: Path, before: int, kept: bool
) -> None:
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


def test_an_invalid_version_of_checkpoint_protection_is_an_error(tmp_path: Path) -> None:
    made = MadeLog(
        tmp_path / "t",
        configuration={"delta.requireCheckpointProtectionBeforeVersion": "8 x"},
        writer_features=("checkpointProtection",),
    )
    made.commits(60 - i for i in range(40))
    made.checkpoint(20, 40)
    with pytest.raises(InvalidPropertyError, match="invalid value") as caught:
        plan(made.table())
    assert caught.value.found == "8 x"


def test_in_commit_timestamps_determine_the_age(tmp_path: Path) -> None:
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
