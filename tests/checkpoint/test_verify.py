"""Verification of existing checkpoints: the conditions and the report of each verdict."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakelog
from lakelog.checkpoint.compare import Comparison
from lakelog.checkpoint.verify import VerifyReport, verify_checkpoint
from lakelog.checkpoint.write import write_checkpoint
from lakelog.errors import CheckpointCorruptionError, CheckpointValidationError, NotFoundError
from lakelog.log.context import Log
from lakelog.model import contract
from tests import handmade
from tests.checkpoint.tables import (
    CLASSIC,
    EARLIER,
    FLATTENED,
    JSON,
    KINDS,
    LATEST,
    NOW_MS,
    V2_JSON,
    Kind,
    log_at,
    make,
)
from tests.handmade import Handmade
from tests.replaced_tables import WRITERS, replaced
from tests.transaction import builders


def written(kind: Kind, tmp_path: Path) -> tuple[Path, Log, tuple[str, ...]]:
    root = make(kind, tmp_path / "t")
    log = log_at(root, kind.dialect)
    report = write_checkpoint(log, layout=kind.layout, options=kind.options)
    return root, log, report.paths


def rewrite(file: Path, change: pl.Expr | None = None, keep: pl.Expr | None = None) -> None:
    """Write a flattened checkpoint with other values, or other rows, as valid Parquet."""
    table = pq.read_table(file)
    frame = pl.DataFrame(pl.from_arrow(table))
    if change is not None:
        frame = frame.with_columns(change)
    if keep is not None:
        frame = frame.filter(keep)
    pq.write_table(frame.to_arrow().cast(table.schema), file)


def delete_commits(root: Path, kind: Kind, below: int) -> None:
    for version in range(below):
        (root / kind.dialect.log_folder / f"{version:020d}.json").unlink()


@pytest.mark.parametrize("writer", WRITERS)
def test_checkpoint_of_a_replaced_table_is_proved(tmp_path: Path, writer: str) -> None:
    table = replaced(tmp_path, writer)
    for version in (2, 3):  # from the commits, and from the checkpoint below
        table.checkpoint(version)
        assert table.verify(version).verdict == "proved"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_valid_checkpoint_is_proved(kind: Kind, tmp_path: Path) -> None:
    _, log, paths = written(kind, tmp_path)
    report = verify_checkpoint(log)
    assert (report.verdict, report.version, report.is_proved) == ("proved", LATEST, True)
    assert report.expected == report.found
    assert report.replayed
    assert set(report.files) <= {*paths}
    report.raise_for_verdict(unprovable=True)


def test_earlier_checkpoint_is_proved_from_its_commits(tmp_path: Path) -> None:
    root, log, _ = written(CLASSIC, tmp_path)
    report = verify_checkpoint(log, EARLIER)
    assert report.is_proved
    assert all(f"{EARLIER:020d}.checkpoint" not in path for path in report.replayed)
    # The later checkpoint is proved with the earlier one.
    delete_commits(root, CLASSIC, EARLIER)
    assert verify_checkpoint(log, LATEST).is_proved


def test_checkpoint_without_commits_is_unprovable(tmp_path: Path) -> None:
    root, log, _ = written(CLASSIC, tmp_path)
    delete_commits(root, CLASSIC, EARLIER)
    report = verify_checkpoint(log, EARLIER)
    assert report.verdict == "unprovable"
    assert "are missing" in str(report.reason)
    assert report.found.counts["add"] == 10
    report.raise_for_verdict()
    with pytest.raises(CheckpointValidationError, match="unprovable"):
        report.raise_for_verdict(unprovable=True)


def test_checkpoint_of_damaged_commits_is_unprovable(tmp_path: Path) -> None:
    root, log, _ = written(CLASSIC, tmp_path)
    (root / "_delta_log" / f"{1:020d}.json").write_text('{"add":')
    report = verify_checkpoint(log, EARLIER)
    assert report.verdict == "unprovable"
    assert "damaged" in str(report.reason)


def test_checkpoint_with_missing_files_is_wrong_and_the_report_names_them(tmp_path: Path) -> None:
    root, log, paths = written(FLATTENED, tmp_path)
    file = next(root / path for path in paths if path.endswith(".parquet"))
    rewrite(file, keep=~pl.col("path").fill_null("").str.contains("2-1", literal=True))
    report = verify_checkpoint(log)
    assert report.verdict == "wrong"
    assert "18 add where replay gives 19" in str(report.reason)
    rows = report.differences.rows(named=True)
    assert [(r["side"], r["actionType"]) for r in rows] == [("missing", "add")]
    assert "2-1" in rows[0]["path"]
    with pytest.raises(CheckpointValidationError) as refused:
        report.raise_for_verdict()
    assert "19 add" in str(refused.value.expected)


def test_checkpoint_with_wrong_values_is_reported_with_the_column(tmp_path: Path) -> None:
    root, log, paths = written(FLATTENED, tmp_path)
    file = next(root / path for path in paths if path.endswith(".parquet"))
    rewrite(file, change=pl.col("modificationTime") + 1)
    report = verify_checkpoint(log)
    assert report.verdict == "wrong"
    assert report.reason == "add differs in modificationTime"
    assert report.differences.height == 2 * 19


def test_checkpoint_with_other_paths_is_reported_with_the_path_alone(tmp_path: Path) -> None:
    root, log, paths = written(FLATTENED, tmp_path)
    file = next(root / path for path in paths if path.endswith(".parquet"))
    is_add = pl.col("actionType") == "add"
    rewrite(file, change=pl.when(is_add).then(pl.col("path") + "x").otherwise("path").alias("path"))
    report = verify_checkpoint(log)
    assert (report.verdict, report.reason) == ("wrong", "add differs in path")


def test_checkpoint_with_other_blanks_in_the_schema_is_proved(tmp_path: Path) -> None:
    root, log, paths = written(FLATTENED, tmp_path)
    file = next(root / path for path in paths if path.endswith(".parquet"))
    rewrite(file, change=pl.col("schemaString").str.replace_all(",", " ,  ", literal=True))
    assert verify_checkpoint(log).verdict == "proved"
    rewrite(file, change=pl.col("schemaString").str.replace("long", "string", literal=True))
    report = verify_checkpoint(log)
    assert (report.verdict, report.reason) == ("wrong", "metaData differs")


def test_checkpoint_with_features_in_another_order_is_proved(tmp_path: Path) -> None:
    features = ["invariants", "appendOnly", "deletionVectors", "timestampNtz", "v2Checkpoint"]
    lists = {"readerFeatures": features[2:], "writerFeatures": features}
    log = Handmade(tmp_path / "t").start(handmade.protocol(3, 7, **lists))
    metadata = handmade.metadata()
    log.commit(1, metadata, handmade.add("a"))
    reordered = {name: names[::-1] for name, names in lists.items()}
    log.checkpoint(1, handmade.protocol(3, 7, **reordered), metadata, handmade.add("a"))
    assert log.table.verify(1).verdict == "proved"
    fewer = {**reordered, "writerFeatures": features[1:]}
    log.checkpoint(1, handmade.protocol(3, 7, **fewer), metadata, handmade.add("a"))
    assert log.table.verify(1).reason == "protocol differs"


def test_checkpoint_that_cannot_be_read_is_broken(tmp_path: Path) -> None:
    root, log, paths = written(CLASSIC, tmp_path)
    file = root / paths[0]
    file.write_bytes(file.read_bytes()[:-9])
    report = verify_checkpoint(log)
    assert report.verdict == "broken"
    with pytest.raises(CheckpointCorruptionError) as refused:
        report.raise_for_verdict()
    assert refused.value.__cause__ is report.error


def test_checkpoint_with_a_missing_sidecar_is_broken(tmp_path: Path) -> None:
    root, log, paths = written(V2_JSON, tmp_path)
    next(root / path for path in paths if "_sidecars" in path).unlink()
    report = verify_checkpoint(log)
    assert report.verdict == "broken"
    assert "not found" in str(report.reason)


def test_checkpoint_with_a_duplicate_file_is_broken(tmp_path: Path) -> None:
    root, log, paths = written(CLASSIC, tmp_path)
    table = pq.read_table(root / paths[0])
    adds = table.filter(pa.compute.is_valid(pa.compute.struct_field(table["add"], "path")))
    pq.write_table(pa.concat_tables([table, adds[:1]]), root / paths[0])
    report = verify_checkpoint(log)
    assert report.verdict == "broken"
    assert "twice" in str(report.reason)


def test_reformatted_statistics_are_equal(tmp_path: Path) -> None:
    root, log, paths = written(CLASSIC, tmp_path)
    table = pq.read_table(root / paths[0])
    index = table.schema.get_field_index("add")
    rows = table["add"].to_pylist(maps_as_pydicts="strict")
    for row in rows:
        if row is not None:
            row["stats"] = json.dumps(json.loads(row["stats"]), indent=1)
    changed = pa.array(rows, table.schema.field("add").type)
    pq.write_table(table.set_column(index, table.schema.field("add"), changed), root / paths[0])
    report = verify_checkpoint(log)
    assert report.is_proved
    assert "encoded differently" in str(report.reason)


def test_checkpoint_without_statistics_is_proved_with_a_note(tmp_path: Path) -> None:
    from lakelog.checkpoint.plan import CheckpointOptions

    root = make(CLASSIC, tmp_path / "t")
    log = log_at(root, CLASSIC.dialect)
    options = CheckpointOptions(stats_as_json=False, stats_as_struct=False)
    assert write_checkpoint(log, options=options).verified
    report = verify_checkpoint(log)
    assert (report.verdict, report.reason) == ("proved", "it has no statistics")


@pytest.mark.parametrize("as_json", [True, False])
def test_tombstones_that_expire_later_do_not_make_a_checkpoint_wrong(
    as_json: bool, tmp_path: Path
) -> None:
    kind = JSON if as_json else CLASSIC
    _, log, _ = written(kind, tmp_path)
    later = Log(log.store, log.dialect, clock=lambda: NOW_MS + 365 * 86_400_000)
    report = verify_checkpoint(later)
    assert report.is_proved
    assert "remove" not in report.found.counts


def test_empty_tags_equal_no_tags(tmp_path: Path) -> None:
    _, log, _ = written(CLASSIC, tmp_path)
    proof = Comparison(log.dialect, ("path", "tags"), contract.Struct(()), empty_tags=False)
    row = {"actionType": "add", "path": "a"}
    empty: dict[str, object] = {**row, "tags": {}}
    none: dict[str, object] = {**row, "tags": None}
    full = {**row, "tags": {"k": "v"}}
    sums = [proof.digest(builders.rows(each)) for each in (empty, none, full)]
    assert sums[0] == sums[1] != sums[2]
    assert verify_checkpoint(log).is_proved


def test_clock_set_back_does_not_make_a_checkpoint_wrong(tmp_path: Path) -> None:
    root = make(CLASSIC, tmp_path / "t")
    log = log_at(root, CLASSIC.dialect)
    today = Log(log.store, log.dialect)
    report = write_checkpoint(today)
    assert report.num_removes == 0  # they have expired long ago
    assert verify_checkpoint(log).is_proved


def test_error_for_a_version_without_a_checkpoint_names_the_checkpoints(tmp_path: Path) -> None:
    _, log, _ = written(CLASSIC, tmp_path)
    with pytest.raises(NotFoundError) as refused:
        verify_checkpoint(log, 2)
    assert refused.value.expected == f"{EARLIER}, {LATEST}"


def test_verify_and_checkpoint_return_printable_reports(tmp_path: Path) -> None:
    root, _, _ = written(CLASSIC, tmp_path)
    report = lakelog.open(root).verify()
    assert isinstance(report, VerifyReport)
    assert "verdict" in str(report)
    assert "<table>" in report._repr_html_()
    checkpoint = lakelog.open(root).checkpoint(2)
    assert checkpoint.verified
    assert not checkpoint.pointer_moved
    assert "live files" in str(checkpoint)
    assert "<table>" in checkpoint._repr_html_()
