"""`Table.clone`: a table whose first version names the files of another table."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pytest

import lakelog
from lakelog import Table
from lakelog.errors import (
    ExternalPathError,
    InvalidInputError,
    LakelogError,
    NotFoundError,
    TableExistsError,
    UnsupportedFeatureError,
)
from lakelog.storage import open_store
from lakelog.storage.base import FileEntry
from lakelog.storage.local import LocalStore
from lakelog.testing import InjectingStore, Rule
from lakelog.transaction.row_tracking import ROW_ID_COLUMN, ROW_VERSION_COLUMN
from tests.data.rows import commit_info
from tests.handmade import Handmade, add, field, metadata, protocol

ROWS = pl.DataFrame(
    {"id": [1, 2, 3, 4], "p": ["a b", "a b", "50%", None], "x": [1.5, 2.5, 3.5, 4.5]}
)


def new_table(root: Path, **properties: str) -> Table:
    configuration = {key.replace("__", "."): value for key, value in properties.items()}
    lakelog.write(root, ROWS, partition_by=["p"], configuration=configuration, upkeep=False)
    return lakelog.open(root, upkeep=False)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def rows(table: Table) -> pl.DataFrame:
    return table.to_polars().sort("id")


@pytest.mark.parametrize("folder", ["plain", "odd é 50%20_x"])
def test_clone_has_rows_metadata_and_protocol_of_the_source(tmp_path: Path, folder: str) -> None:
    table = new_table(
        tmp_path / folder, delta__enableChangeDataFeed="true", delta__columnMapping__mode="name"
    )
    before = contents(tmp_path / folder)
    clone = table.clone(tmp_path / "clone", user_name="ann")
    assert rows(clone).equals(ROWS)
    assert contents(tmp_path / folder) == before
    assert not list((tmp_path / "clone").rglob("*.parquet"))
    ours, theirs = clone.snapshot(), table.snapshot()
    assert (ours.version, ours.protocol, ours.schema) == (0, theirs.protocol, theirs.schema)
    assert ours.metadata.configuration == theirs.metadata.configuration
    assert ours.metadata.partition_columns == ("p",)
    assert ours.metadata.id != theirs.metadata.id
    info = commit_info(tmp_path / "clone", 0)
    assert (info["operation"], info["userName"]) == ("CLONE", "ann")
    assert info["operationParameters"]["sourceVersion"] == "0"
    assert info["operationMetrics"]["sourceNumOfFiles"] == "3"


def test_clone_has_features_in_the_lists_where_they_belong(tmp_path: Path) -> None:
    source = Handmade(tmp_path / "t")
    lists = {"readerFeatures": [], "writerFeatures": ["columnMapping"]}  # as by Delta Lake 3.1
    source.commit(0, protocol(3, 7, **lists), metadata())
    found = lakelog.open(tmp_path / "t").clone(tmp_path / "clone").snapshot().protocol
    assert found.reader_features == found.writer_features == ("columnMapping",)


def test_clone_ignores_properties_that_the_protocol_of_its_source_ignores(tmp_path: Path) -> None:
    source = Handmade(tmp_path / "t")
    ignored = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    source.commit(0, protocol(), metadata(field("id"), properties=ignored))
    table = lakelog.open(tmp_path / "t")
    table.append(pl.DataFrame({"id": [1]}))
    clone = table.clone(tmp_path / "clone")
    assert clone.to_polars()["id"].to_list() == [1]
    assert clone.snapshot().protocol == table.snapshot().protocol
    assert clone.snapshot().metadata.configuration == ignored


def test_deltalake_reads_a_clone(tmp_path: Path) -> None:
    new_table(tmp_path / "t").clone(tmp_path / "clone")
    theirs = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(tmp_path / "clone")))
    found = pl.DataFrame(theirs.execute("SELECT id, p, x FROM t ORDER BY id").read_all())
    assert found.equals(ROWS)


def test_clone_is_reopened_only_with_its_source_allowed(tmp_path: Path) -> None:
    clone = new_table(tmp_path / "t").clone(tmp_path / "clone")
    assert rows(pickle.loads(pickle.dumps(clone))).equals(ROWS)
    with pytest.raises(ExternalPathError):
        lakelog.open(tmp_path / "clone").to_polars()
    assert rows(lakelog.open(tmp_path / "clone", allow_external=tmp_path / "t")).equals(ROWS)


def test_clone_uses_the_deletion_vectors_of_its_source(tmp_path: Path) -> None:
    many = pl.DataFrame({"id": range(20_000)})
    lakelog.write(tmp_path / "t", many, configuration={"delta.enableDeletionVectors": "true"})
    table = lakelog.open(tmp_path / "t", upkeep=False)
    table.delete("id % 7 = 0")  # too many for the log: in a file
    clone = table.clone(tmp_path / "clone")
    assert clone.snapshot().files().collect()["dvStorageType"].to_list() == ["p"]
    expected = many.filter(pl.col("id") % 7 != 0)
    assert rows(clone).equals(expected)
    clone.delete("id % 7 = 1")
    assert rows(clone).equals(expected.filter(pl.col("id") % 7 != 1))
    assert rows(table).equals(expected)
    again = clone.clone(tmp_path / "again")
    assert rows(again).equals(rows(clone))
    assert clone.restore(0).version == 2
    assert rows(clone).equals(expected)


def problems(table: Table) -> dict[str, tuple[int | None, tuple[str, ...]]]:
    """Number of files and their names by kind, of the doctor's findings of files."""
    found = table.doctor(files=True).findings
    return {
        f.kind: (f.num_files, tuple(path.rsplit("/", 1)[-1] for path in f.paths))
        for f in found
        if f.num_files
    }


def clone_with_vectors(tmp_path: Path) -> Table:
    """A clone of 4 files in two partitions, of which two share a file of deletion vectors."""
    many = pl.DataFrame({"id": range(20_000), "p": [0, 1] * 10_000})
    features = {"delta.enableDeletionVectors": "true"}
    lakelog.write(tmp_path / "t", many, partition_by=["p"], configuration=features, upkeep=False)
    table = lakelog.open(tmp_path / "t", upkeep=False)
    table.delete("id % 7 > 3")
    table.append(many.head(2))
    return table.clone(tmp_path / "clone", upkeep=False)


def test_files_of_a_source_are_checked_if_they_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = clone_with_vectors(tmp_path)
    looked_up: list[str] = []
    stat = LocalStore.stat

    def counted(store: LocalStore, path: str) -> FileEntry | None:
        looked_up.append(path)
        return stat(store, path)

    monkeypatch.setattr(LocalStore, "stat", counted)
    for table in (clone, lakelog.open(tmp_path / "clone", allow_external=True)):
        report, plan = table.doctor(files=True), table.repair(check_files=True)
        assert (report.measures.unchecked_files, plan.unchecked_files) == (0, 0)
        assert problems(table) == {}
        assert plan.is_clean
        assert "not checked" not in str(plan)
    assert not [p for p in looked_up if p.endswith((".parquet", ".bin"))]  # listings show them
    first, other = sorted((tmp_path / "t" / "p=0").glob("*.parquet"))
    first.unlink()
    other.write_bytes(other.read_bytes()[:-1])
    (vector,) = (tmp_path / "t").rglob("*.bin")
    vector.write_bytes(vector.read_bytes()[:-1])
    assert problems(clone) == {
        "data-missing": (1, (first.name,)),
        "data-length": (1, (other.name,)),
        "vector-length": (1, (vector.name,)),
    }
    remedies = [f.remedy for f in clone.doctor(files=True).findings if f.severity == "error"]
    allowed = f"--allow-external=file:///{str(tmp_path / 't').strip('/')}"
    assert remedies == [f"lakelog repair {tmp_path / 'clone'} --check-files {allowed}"] * 3
    vector.unlink()
    assert problems(clone)["vector-missing"] == (1, (vector.name,))
    found = clone.repair(check_files=True).findings
    kinds = ["data-missing", "data-length", "vector-missing"]
    assert found["kind"].to_list() == kinds
    done = clone.repair(plan=False, remove_missing=True)
    assert done.repaired["kind"].to_list() == ["data-missing"]
    assert done.left["kind"].to_list() == kinds[1:]
    assert clone.snapshot().num_files() == 3


def test_files_of_a_source_that_is_not_allowed_are_counted_as_unchecked(tmp_path: Path) -> None:
    clone_with_vectors(tmp_path)
    for path in (tmp_path / "t").rglob("*"):
        if path.is_file():
            path.unlink()
    table = lakelog.open(tmp_path / "clone", upkeep=False)
    health = table.doctor(files=True)
    (found,) = (f for f in health.problems if f.kind == "external-unchecked")
    assert (found.severity, found.num_files, health.measures.unchecked_files) == ("warning", 5, 5)
    text = "4 live files and 1 deletion vector file outside of the table's folder were not checked"
    assert text in found.problem
    assert text in str(health)
    assert "allow_external" in found.problem
    plan = table.repair(check_files=True)
    assert (plan.is_clean, plan.unchecked_files) == (False, 5)
    assert plan.findings.select("kind", "action", "num_files").rows() == [
        ("external-unchecked", "check", 5)
    ]
    assert text in str(plan)
    for strict in (False, True):
        report = table.repair(plan=False, remove_missing=True, strict=strict)
        assert (report.version, report.repaired.height, report.unchecked_files) == (None, 0, 5)
        assert report.left["kind"].to_list() == ["external-unchecked"]
        assert "5 files outside of the table" in str(report)
    assert table.version() == 0


def test_restore_counts_the_files_of_a_source_that_it_may_not_check(tmp_path: Path) -> None:
    allowed = clone_with_vectors(tmp_path)
    allowed.delete("id >= 0")
    closed = lakelog.open(tmp_path / "clone", upkeep=False)
    plans = [table.restore(0, plan=True) for table in (allowed, closed)]
    assert [plan.num_restored_files for plan in plans] == [4, 4]
    assert [plan.unchecked_files for plan in plans] == [0, 5]  # with the file of two vectors
    assert ["files not checked" in str(plan) for plan in plans] == [False, True]
    (vector,) = (tmp_path / "t").rglob("*.bin")
    vector.unlink()
    with pytest.raises(NotFoundError, match="1 of its files"):
        allowed.restore(0)
    assert closed.restore(0).unchecked_files == 5


def test_missing_files_are_not_removed_if_their_folder_may_not_be_reachable(
    tmp_path: Path,
) -> None:
    clone = clone_with_vectors(tmp_path)
    first, _ = (tmp_path / "t" / "p=0").glob("*.parquet")
    first.unlink()
    (tmp_path / "t" / "p=1").rename(tmp_path / "elsewhere")  # as a mount that is not there
    report = clone.repair(plan=False, remove_missing=True)
    assert [p.rsplit("/", 1)[-1] for p in report.repaired["path"]] == [first.name]
    assert report.left["kind"].to_list() == ["data-missing"] * 2
    assert all("may not be reachable" in why for why in report.left["why"])
    (tmp_path / "elsewhere").rename(tmp_path / "t" / "p=1")
    assert clone.repair(check_files=True).is_clean
    assert clone.snapshot().num_files() == 3


def test_absolute_paths_into_the_own_folder_are_checked_and_paths_out_of_it_are_not(
    tmp_path: Path,
) -> None:
    root = tmp_path / "t"
    (tmp_path / "x").write_bytes(b"x")
    made = Handmade(root).start(add(f"file:{root}/a"), add(f"{root}/d/b"), add("../x"))
    (root / "a").write_bytes(b"x")
    (root / "d").mkdir()
    (root / "d" / "b").write_bytes(b"x")
    for allowed in (False, True):
        table = lakelog.open(root, allow_external=allowed, upkeep=False)
        assert problems(table) == {"external-unchecked": (1, ("x",))}
    (root / "d" / "b").write_bytes(b"xx")
    (root / "a").unlink()
    assert problems(made.table) == {
        "data-missing": (1, ("a",)),
        "data-length": (1, ("b",)),
        "external-unchecked": (1, ("x",)),
    }
    report = table.repair(plan=False, remove_missing=True)
    assert report.repaired["path"].to_list() == [f"file:{root}/a"]
    assert sorted(table.snapshot().files().collect()["path"]) == ["../x", f"{root}/d/b"]


def test_rows_of_a_clone_are_inserts_of_its_change_feed(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    table.append(ROWS)
    table.compact()
    clone = table.clone(tmp_path / "clone", upkeep=False)
    kinds = clone.changes(0).collect()["_change_type"].to_list()
    assert kinds == ["insert"] * 8
    assert [changes.collect().height for _, changes in clone.follow(0, stop=lambda: True)] == [8]


@pytest.mark.parametrize("stats", [True, False])
def test_clustered_table_is_cloned_with_its_clustering(tmp_path: Path, stats: bool) -> None:
    file = tmp_path / "t" / "a.parquet"
    features = ["appendOnly", "invariants", "domainMetadata", "clustering"]
    clustering = {"clusteringColumns": [["n"]]}
    domain = {
        "domain": "delta.clustering",
        "configuration": json.dumps(clustering),
        "removed": False,
    }
    made = Handmade(tmp_path / "t")
    pl.DataFrame({"n": [1, 2]}).write_parquet(file)
    text = {"stats": '{"numRecords":2}'} if stats else {}
    made.commit(
        0,
        protocol(1, 7, writerFeatures=features),
        metadata(field("n")),
        {"domainMetadata": domain},
        add("a.parquet", file.stat().st_size, **text),
    )
    clone = lakelog.open(tmp_path / "t", upkeep=False).clone(tmp_path / "clone", upkeep=False)
    clone.append(pl.DataFrame({"n": [3]}))
    assert sorted(clone.to_polars()["n"]) == [1, 2, 3]
    domains = clone.snapshot().domains().select("domain", "domainConfiguration").collect()
    assert [(name, json.loads(text)) for name, text in domains.iter_rows()] == [
        ("delta.clustering", clustering)
    ]


def test_earlier_version_is_cloned(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    table.delete("id > 2")
    assert rows(table.clone(tmp_path / "a", version=0)).equals(ROWS)
    assert rows(table.clone(tmp_path / "b")).equals(ROWS.head(2))
    at = table.history()["timestamp"][1]
    assert rows(table.clone(tmp_path / "c", timestamp=at)).equals(ROWS)
    with pytest.raises(InvalidInputError, match="not both"):
        table.clone(tmp_path / "d", 0, at)


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_no_verb_and_no_maintenance_of_a_clone_changes_the_source(
    tmp_path: Path, vectors: str
) -> None:
    table = new_table(tmp_path / "t", delta__enableDeletionVectors=vectors)
    table.append(ROWS.with_columns(pl.col("id") + 10))
    table.delete("id = 2")
    before, expected = contents(tmp_path / "t"), rows(table)
    clone = table.clone(tmp_path / "clone", upkeep=False)
    clone.update({"x": 0.0}, "id = 1")
    clone.delete("id = 11")
    clone.upsert(ROWS.head(3), "id")
    clone.compact()
    clone.checkpoint()
    clone.overwrite(ROWS.head(2), "id < 3")
    time.sleep(0.01)
    clone.vacuum(plan=False, retention=0, force=True)
    clone.cleanup(plan=False, retention=0, checkpoint_retention=0, force=True)
    assert set(rows(clone)["id"]) == {1, 2, 3, 4, 12, 13, 14}
    clone.overwrite(ROWS)
    clone.vacuum(plan=False, retention=0, force=True)
    clone.repair(plan=False, check_files=True, remove_missing=True)
    assert rows(clone).equals(ROWS)
    assert contents(tmp_path / "t") == before
    assert rows(table).equals(expected)


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.enableRowTracking": "true"},
        {"delta.enableInCommitTimestamps": "true"},
        {"delta.enableTypeWidening": "true", "delta.checkpointPolicy": "v2"},
    ],
    ids=["tracked", "timestamps", "v2"],
)
def test_tables_with_features_are_cloned(tmp_path: Path, properties: dict[str, str]) -> None:
    table = lakelog.create(tmp_path / "t", ROWS.schema, ["p"], configuration=properties)
    table.alter.upgrade(["domainMetadata"])
    with table.transaction() as tx:
        tx.set_domain(domain="team", configuration="red")
    table.append(ROWS)
    clone = table.clone(tmp_path / "clone")
    assert rows(clone).equals(ROWS)
    assert "team" in clone.snapshot().domains().collect()["domain"].to_list()
    clone.append(ROWS)
    clone.checkpoint()
    assert clone.to_polars().height == 8
    assert clone.verify().verdict == "proved"


def test_row_ids_and_row_commit_versions_of_a_clone_are_new(tmp_path: Path) -> None:
    tracked = {"delta.enableRowTracking": "true", "delta.enableDeletionVectors": "true"}
    table = lakelog.create(tmp_path / "t", ROWS.schema, configuration=tracked)
    table.append(ROWS)
    table.update({"x": 0.5}, "id = 2")  # the new file has row ids and row commit versions
    clone = table.clone(tmp_path / "clone")
    found = clone.scan(row_ids=True).collect().sort("id")
    assert found.select(ROWS.columns).equals(rows(table))
    assert found["_row_id"].is_unique().all()
    assert set(found["_row_commit_version"]) == {0}
    clone.update({"x": 1.5}, "id = 1")
    later = clone.scan(row_ids=True).collect().sort("id")
    assert later["_row_id"].equals(found["_row_id"])
    assert later.filter(pl.col("_row_commit_version") > 0)["id"].to_list() == [1]
    for key in (ROW_ID_COLUMN, ROW_VERSION_COLUMN):
        names = [t.snapshot().metadata.configuration[key] for t in (table, clone)]
        assert names[0] != names[1]


@pytest.mark.parametrize("place", ["source/clone", "source/a/../clone", "."])
def test_clone_inside_or_around_its_source_raises(tmp_path: Path, place: str) -> None:
    source = new_table(tmp_path / "outer" / "source")
    before = contents(tmp_path)
    with pytest.raises(InvalidInputError, match="must not contain"):
        source.clone(f"{tmp_path}/outer/{place}")
    assert contents(tmp_path) == before


def test_clone_over_a_table_or_of_indextables_raises(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    other = new_table(tmp_path / "other")
    with pytest.raises(TableExistsError):
        table.clone(tmp_path / "other")
    assert other.version() == 0
    index = lakelog.create(tmp_path / "i", ROWS.schema, format="indextables")
    with pytest.raises(UnsupportedFeatureError):
        index.clone(tmp_path / "j")
    stored = lakelog.open(store=open_store(str(tmp_path / "t")))
    with pytest.raises(InvalidInputError, match="location"):
        stored.clone(tmp_path / "k")
    with pytest.raises(TypeError, match=r"Table\.clone\(\) got an unexpected .* 'app_id'"):
        table.clone(tmp_path / "k", app_id="x")  # type: ignore[call-arg] # the point


@pytest.mark.parametrize("fault", ["fail", "lost"])
def test_source_is_unchanged_after_a_failure_of_any_operation(
    tmp_path: Path, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path / "t")
    before = contents(tmp_path / "t")
    for nth in range(1, 40):
        root = tmp_path / str(nth)
        store = InjectingStore(open_store(str(root)), [Rule(fault, nth=nth)])
        with monkeypatch.context() as patched:
            patched.setattr("lakelog.table.open_bounded", lambda *_, s=store: s)
            try:
                table.clone(root)
            except (LakelogError, OSError):
                assert not (root / "_delta_log").exists() or not list(root.rglob("*.json"))
                continue
            finally:
                assert contents(tmp_path / "t") == before
        assert rows(lakelog.open(root, allow_external=True)).equals(ROWS)
        if len(store.operations) < nth:
            return
    pytest.fail("a clone has fewer operations")
