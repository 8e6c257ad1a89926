"""`Table.merge` and `Table.upsert`: the rows equal those of deltalake's merge; and errors."""

from __future__ import annotations

import cProfile
import datetime as dt
import json
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pytest

import lakelog
from lakelog import ConflictError, LakelogWarning
from lakelog.errors import InvalidInputError
from tests.budget import rng_of, share_of
from tests.data.rows import changes_of, commit_info, data_files
from tests.data.test_append import ROWS, SCHEMA, frame, new_table

VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
ON = "target.id = source.id"
FURTHER = [
    "",
    " AND target.p = 'a'",
    " AND source.x > 10",
    " AND (target.x < source.x OR target.p IS NULL)",
    " AND target.p IN ('a', 'c') AND target.x > 5 AND source.id < 40",
]
ALL: list[tuple[str, dict[str, Any]]] = [
    ("when_matched_update", {"updates": {"x": "source.x + target.x"}}),
    ("when_matched_update", {"updates": {"p": "'m'"}, "predicate": "source.x > 20"}),
    ("when_matched_update_all", {"predicate": "target.p = 'a'"}),
    ("when_matched_update_all", {"except_cols": ["p"]}),
    ("when_matched_delete", {"predicate": "source.x < target.x"}),
    ("when_matched_delete", {}),
    ("when_not_matched_insert", {"updates": {"id": "source.id", "x": "source.x * 2"}}),
    ("when_not_matched_insert_all", {"predicate": "source.id > 30"}),
    ("when_not_matched_insert_all", {}),
    (
        "when_not_matched_by_source_update",
        {"updates": {"x": "target.x - 1"}, "predicate": "target.x > 9"},
    ),
    ("when_not_matched_by_source_update", {"updates": {"p": "'n'"}, "predicate": "target.p = 'b'"}),
    ("when_not_matched_by_source_delete", {"predicate": "target.id > 40"}),
]


def some_rows(rng: random.Random, ids: list[int | None]) -> pl.DataFrame:
    xs = [rng.choice([None, rng.randrange(50) / 2]) for _ in ids]
    ps = [rng.choice(["a", "b", "c", None]) for _ in ids]
    return pl.DataFrame({"p": ps, "id": ids, "x": xs}, schema=SCHEMA)


def bag(rows: pl.DataFrame) -> Counter[Any]:
    return Counter(rows.select("p", "id", "x").rows())


def batched(rows: pl.DataFrame, batch_rows: int) -> pa.RecordBatchReader:
    table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    batches = table.to_batches(max_chunksize=batch_rows)
    return pa.RecordBatchReader.from_batches(table.schema, batches)


def peer_rows(path: Path) -> pl.DataFrame:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    return pl.DataFrame(pa.table(query.execute("select * from t")))


def with_clauses(merge: Any, clauses: list[tuple[str, dict[str, Any]]]) -> Any:
    for name, arguments in clauses:
        merge = getattr(merge, name)(**arguments)
    return merge


@pytest.mark.parametrize("vectors", [False, True])
def test_random_merges_give_the_rows_of_deltalake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    rng = rng_of(f"merges {vectors}")
    for round_ in range(share_of(80)):
        monkeypatch.setattr("lakelog.data.rewrite._COPIED_BYTES", rng.choice([0, 1 << 20]))
        by = rng.choice([(), ("p",)])
        feed = rng.choice([FEED, {}])  # without one, replaced columns are not read
        ours = new_table(tmp_path / f"ours {round_}", by=by, **feed, **(VECTORS if vectors else {}))
        peer = new_table(tmp_path / f"peer {round_}", by=by)
        for _ in range(2):
            rows = some_rows(rng, [rng.choice([rng.randrange(50), None]) for _ in range(20)])
            ours.append(rows)
            peer.append(rows)
        clauses = sorted(
            rng.sample(ALL, rng.randrange(1, 5)), key=lambda each: ALL.index(each) // 6
        )
        before = ours.snapshot().scan().collect()
        source = some_rows(rng, [*rng.sample(range(60), rng.randrange(25)), None])
        limit = rng.choice([None, 1])  # with 1, rows of the source are mapped from a file
        given = batched(source, rng.randrange(1, 9))
        on = ON + rng.choice(FURTHER)
        report = with_clauses(ours.merge(given, on, memory_limit=limit), clauses).execute()
        merged = deltalake.DeltaTable(peer.path).merge(
            source.to_arrow(), on, source_alias="source", target_alias="target"
        )
        with_clauses(merged, clauses).execute()
        after = ours.snapshot().scan().collect()
        assert bag(after) == bag(peer.snapshot().scan().collect()), (on, clauses)
        assert bag(after) == bag(peer_rows(Path(ours.path))), (on, clauses)
        if report.version is None:
            assert bag(after) == bag(before), clauses
        if report.version is None or not feed:
            continue
        changes = ours.changes(report.version, report.version).collect()
        kinds = Counter(changes["_change_type"].to_list())
        counts = {
            "insert": report.num_rows,
            "delete": report.num_deleted_rows,
            "update_preimage": report.num_updated_rows,
            "update_postimage": report.num_updated_rows,
        }
        assert kinds == Counter({kind: count for kind, count in counts.items() if count})
        removed = changes.filter(pl.col("_change_type").is_in(["delete", "update_preimage"]))
        new = changes.filter(pl.col("_change_type").is_in(["insert", "update_postimage"]))
        assert bag(before) + bag(new) == bag(after) + bag(removed), clauses


def test_upsert_updates_known_keys_and_inserts_the_others(tmp_path: Path) -> None:
    table = new_table(tmp_path, **VECTORS)
    table.append(frame(("a", 1, 0.5), ("b", 2, 1.5)))
    report = table.upsert(pl.DataFrame({"id": [2, 3], "x": [9.0, 9.5]}), "id")
    assert (report.num_rows, report.num_updated_rows) == (1, 1)
    found = table.snapshot().scan().sort("id").collect()
    assert found.rows() == [("a", 1, 0.5), ("b", 2, 9.0), (None, 3, 9.5)]
    info = commit_info(tmp_path, 2)
    assert info["operation"] == "MERGE"
    assert info["operationParameters"] == {
        "predicate": '["(target.`id` = source.`id`)"]',
        "matchedPredicates": '[{"actionType":"update"}]',
        "notMatchedPredicates": '[{"actionType":"insert"}]',
        "notMatchedBySourcePredicates": "[]",
    }
    metrics = info["operationMetrics"]
    assert (metrics["numTargetRowsInserted"], metrics["numTargetRowsUpdated"]) == ("1", "1")
    assert metrics["numSourceRows"] == "2"


def test_two_source_rows_that_change_one_row_raise(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(("a", 1, 0.5), ("b", 2, 1.5)))
    files = data_files(tmp_path)
    twice = frame(("a", 1, 7.0), ("a", 1, 8.0), ("c", 3, 0.0), ("c", 3, 0.0))
    with pytest.raises(InvalidInputError, match="several rows of the merge's source") as caught:
        table.upsert(twice, ["id"])
    assert caught.value.found == {"rows": 2, "id": 1}
    assert data_files(tmp_path) == files
    one = table.merge(twice, "id").when_matched_update_all("source.x > 7.5")
    assert one.execute().num_updated_rows == 1
    only_delete = table.merge(twice, "id").when_matched_delete(pl.col("source").struct["x"] < 0)
    assert only_delete.execute().version is None
    # An unconditional delete does the same for every source row; both others are inserted.
    merge = table.merge(twice, "id").when_matched_delete().when_not_matched_insert_all()
    report = merge.execute()
    assert (report.num_deleted_rows, report.num_rows) == (1, 2)


def test_files_without_a_key_of_the_source_are_not_opened(tmp_path: Path) -> None:
    table = new_table(tmp_path, by=())
    for start in range(0, 500, 100):
        table.append(frame(*(("a", start + n, 0.5) for n in range(100))))
    files = sorted(tmp_path.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    for number in (0, 2, 3):
        files[number].unlink()
    # More keys than a condition lists, from 100 to 450, but none from 200 to 399.
    keys = [*range(100, 200), *range(410, 451)]
    report = table.upsert(frame(*(("b", key, 1.0) for key in keys)), "id")
    assert (report.num_updated_rows, report.num_removed_files) == (141, 2)


def test_columns_of_other_names_and_types_are_compared(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(("a", 1, 0.5), ("b", 2, 1.5)))
    source = pl.DataFrame({"key": pl.Series([2, 7], dtype=pl.Int16), "part": ["b", "b"]})
    merge = table.merge(source, {"id": "key", "p": "part"})
    merge.when_matched_update({"x": pl.col("source").struct.field("key")})
    merge.when_not_matched_insert({"id": pl.col("key"), "p": "part", "x": 0.25})
    merge.execute()
    found = table.snapshot().scan().sort("id").collect()
    assert found.rows() == [("a", 1, 0.5), ("b", 2, 2.0), ("b", 7, 0.25)]


def test_additional_conditions_filter_pairs_and_skip_files(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(("a", 1, 0.5), ("b", 2, 1.5), ("c", 3, 2.5)))
    (unread,) = tmp_path.glob("p=c/*.parquet")
    moved = unread.rename(tmp_path / "moved")
    new = frame(("a", 1, 7.0), ("b", 2, 1.0), ("c", 3, 9.0))
    on = "target.id = source.id AND target.p IN ('a', 'b') AND target.x < source.x"
    merge = table.merge(new, on).when_matched_update({"x": "source.x"})
    report = merge.when_not_matched_insert({"id": "source.id"}, "source.id > 2").execute()
    assert (report.num_updated_rows, report.num_rows) == (1, 1)
    assert commit_info(tmp_path, 2)["operationParameters"]["predicate"] == json.dumps([on])
    moved.rename(unread)
    rows = [("a", 1, 7.0), ("b", 2, 1.5), ("c", 3, 2.5), (None, 3, None)]
    assert bag(table.to_polars()) == Counter(rows)


@pytest.mark.parametrize(("least", "updated"), [("-Infinity", 3), ("1e308", 1), ("NaN", 0)])
def test_condition_of_a_merge_may_have_numbers_that_json_lacks(
    tmp_path: Path, least: str, updated: int
) -> None:
    table = new_table(tmp_path)
    table.append(frame(("a", 1, 0.5), ("b", 2, 1.5), ("c", 3, float("nan"))))
    on = f"target.id = source.id AND target.x > CAST('{least}' AS DOUBLE)"
    merge = table.merge(frame(("a", 1, 7.0), ("b", 2, 7.0), ("c", 3, 7.0)), on)
    assert merge.when_matched_update({"x": "source.x"}).execute().num_updated_rows == updated


def test_names_of_a_condition_are_found_in_any_case_and_quotes(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(("a", 1, 1.0), ("a", 2, 2.0)))
    new = pl.DataFrame({"o`ne": [1], "y": [5.0]})
    merge = table.merge(new, 'TARGET."ID" = Source.`O``NE` AND Target.X < SOURCE.Y')
    assert merge.when_matched_delete().execute().num_deleted_rows == 1
    table.merge(new, {"id": "o`ne"}).when_not_matched_insert({"id": "SOURCE.`o``ne`"}).execute()
    predicate = commit_info(tmp_path, 3)["operationParameters"]["predicate"]
    assert json.loads(predicate) == ["(target.`id` = source.`o``ne`)"]


@pytest.mark.parametrize("on", ["ID", ["ID"], {"Id": "iD"}, "target.ID = source.id"])
def test_names_of_clauses_and_keys_are_found_in_any_case(tmp_path: Path, on: Any) -> None:
    table = new_table(tmp_path)
    table.append(frame(("a", 1, 0.5), ("b", 2, 1.5)))
    source = pl.DataFrame({"ID": [1, 3], "X": pl.Series([7, 8], dtype=pl.Int32), "P": ["a", "c"]})
    merge = table.merge(source, on).when_matched_update_all(except_cols=["p"])
    merge.when_not_matched_insert_all().execute()
    assert table.to_polars().sort("id").rows() == [("a", 1, 7.0), ("b", 2, 1.5), ("c", 3, 8.0)]
    merge = table.merge(source, on).when_matched_update({"X": "source.x + 1", "P": "'z'"})
    merge.when_not_matched_by_source_update({"X": 0.0}).execute()
    assert table.to_polars().sort("id").rows() == [("z", 1, 8.0), ("b", 2, 0.0), ("z", 3, 9.0)]
    for values in ({"x": 1.0, "X": 2.0}, {"X": 1.0, "x": 1.0}):
        with pytest.raises(InvalidInputError, match="'x' has two new values"):
            table.merge(source, on).when_matched_update(values).execute()
    with pytest.raises(InvalidInputError, match="compared twice"):
        table.merge(source, {"id": "ID", "ID": "X"}).when_matched_delete().execute()


def test_column_that_is_compared_twice_must_equal_both_values(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(("a", 1, 1.0), ("a", 2, 2.0)))
    new = pl.DataFrame({"one": [1, 2], "two": [1, 3]})
    on = "target.id = source.one AND target.id = source.two"
    assert table.merge(new, on).when_matched_delete().execute().num_deleted_rows == 1
    assert table.to_polars()["id"].to_list() == [2]


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("nope", "the condition of the merge cannot be used"),
        ("target.id = source.id AND p = 'a'", "the condition of the merge cannot be used"),
        ("target.id = source.id AND target.x > 'a'", "the string 'a' as double"),
        ("target.id = source.id AND target.x", "target.x as a condition"),
        ("target.id > source.id", "the condition of the merge cannot be used"),
        ("target.id = source.id OR target.p = source.p", "the condition of the merge cannot"),
        (["y"], "the target of the merge has no column 'y'"),
        ({"id": "y"}, "the source of the merge has no column 'y'"),
        ([], "needs a column to compare"),
    ],
)
def test_condition_without_an_equality_raises(tmp_path: Path, on: Any, message: str) -> None:
    table = new_table(tmp_path)
    with pytest.raises(InvalidInputError, match=message):
        table.merge(frame(("a", 1, 0.5)), on).when_matched_delete().execute()


def test_invalid_clauses_raise_before_anything_is_written(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(frame(("a", 1, 0.5)))
    rows = frame(("a", 1, 7.0))
    files = data_files(tmp_path)
    merges: list[tuple[Callable[[], Any], str]] = [
        (lambda: table.merge(rows, "id"), "at least one clause"),
        (lambda: table.merge(rows, "id").when_matched_delete("y > 1"), "does not have"),
        (lambda: table.merge(rows, "id").when_matched_update({"y": 1}), "no column 'y'"),
        (
            lambda: table.merge(rows, "id").when_not_matched_by_source_update({"x": "source.x"}),
            "does not have",
        ),
        (
            lambda: table.merge(rows.with_columns(y=1), "id").when_matched_update_all(),
            "no column 'y'",
        ),
    ]
    for merge, message in merges:
        with pytest.raises(InvalidInputError, match=message):
            merge().execute()
    done = table.merge(rows, "id").when_matched_delete()
    done.execute()
    with pytest.raises(InvalidInputError, match="runs once"):
        done.execute()
    assert files <= data_files(tmp_path)


@pytest.mark.parametrize(
    ("clause", "given", "name"),
    [
        ("when_matched_update", {"updates": {"v": "v"}}, "v"),
        ("when_matched_update", {"updates": {"v": "coalesce(V, 0) + n"}}, "V"),
        ("when_matched_update", {"updates": {"v": "s.x"}}, "s"),
        ("when_matched_update", {"updates": {"v": "1"}, "predicate": "n > 1 AND `v` > 1"}, "v"),
        ("when_matched_update_all", {"predicate": "v > 1"}, "v"),
        ("when_matched_delete", {"predicate": "id = 1"}, "id"),
        ("when_matched_update", {"updates": {"v": "source.v + n + TARGET.s.x"}}, None),
        ("when_matched_update", {"updates": {"v": pl.col("v") * 10}}, None),
        ("when_matched_delete", {"predicate": "n > 1 AND source.v > target.v"}, None),
        ("when_not_matched_by_source_update", {"updates": {"v": "v + 1"}}, None),
        ("when_not_matched_by_source_delete", {"predicate": "v < 2"}, None),
        ("when_not_matched_insert", {"updates": {"id": "id", "v": "v"}}, None),
        ("when_not_matched_insert_all", {"predicate": "v > 1"}, None),
    ],
)
def test_name_that_both_sides_have_is_refused_in_sql_text_of_matched_rows(
    tmp_path: Path, clause: str, given: dict[str, Any], name: str | None
) -> None:
    rows = pl.DataFrame({"id": [1, 2], "v": [1, 2], "n": [5, 6], "s": [{"x": 1}, {"x": 2}]})
    lakelog.write(tmp_path, rows)
    source = pl.DataFrame({"id": [2, 3], "v": [20, 30], "s": [{"x": 7}, {"x": 8}]})
    merge = getattr(lakelog.open(tmp_path).merge(source, "id"), clause)(**given)
    if name is None:
        assert merge.execute().version == 1
        return
    with pytest.raises(InvalidInputError, match=f"'{name}' is ambiguous") as raised:
        merge.execute()
    assert raised.value.column == name
    assert raised.value.hint == f"write source.{name} or target.{name}"
    assert lakelog.open(tmp_path).to_polars().equals(rows)


TEXTS = pl.DataFrame({"id": [2, 3], "v": ["20", "x"], "w": [1, 2]})


@pytest.mark.parametrize(
    ("clause", "given", "expected"),
    [
        ("when_matched_update", {"updates": {"v": "CAST(source.v AS INT)"}}, [1, 20]),
        (
            "when_matched_update",
            {"updates": {"v": pl.col("source").struct.field("v").cast(pl.Int32)}},
            [1, 20],
        ),
        ("when_matched_update", {"updates": {"v": "w"}, "predicate": "w > 0"}, [1, 1]),
        ("when_matched_update", {"updates": {"v": pl.col("w") + pl.col("v")}}, [1, 3]),
        ("when_matched_delete", {"predicate": "W = 1 AND source.v > '19'"}, [1]),
        ("when_not_matched_insert", {"updates": {"id": "id", "v": "length(v)"}}, [1, 2, 1]),
        ("when_not_matched_insert_all", {"except_cols": ["v", "w"]}, [1, 2, None]),
    ],
)
def test_source_column_that_no_clause_takes_as_it_is_keeps_its_type(
    tmp_path: Path, clause: str, given: dict[str, Any], expected: list[int | None]
) -> None:
    lakelog.write(
        tmp_path, pl.DataFrame({"id": [1, 2], "v": [1, 2]}, schema_overrides={"v": pl.Int32})
    )
    getattr(lakelog.open(tmp_path).merge(TEXTS, "id"), clause)(**given).execute()
    assert lakelog.open(tmp_path).to_polars().sort("id")["v"].to_list() == expected


def test_source_columns_that_no_table_can_have_are_left_out_unless_they_are_assigned(
    tmp_path: Path,
) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"id": [1], "x": [10]}))
    odd = {"took": pl.duration(days=1), "at": pl.time(1), "none": pl.lit(None)}
    source = pl.DataFrame({"id": [1, 2], "x": [7, 8], "*": 0, "^x$": 1}).with_columns(**odd)
    table = lakelog.open(tmp_path)
    given = {"x": "source.x + `*`"}
    table.merge(source, "id").when_matched_update(given, "`^x$` = 1").execute()
    source = source.select("id", "x", *odd)
    with pytest.warns(LakelogWarning, match="none"):
        table.upsert(source.drop("took", "at"), "id", schema_mode="merge")
    assert table.to_polars().sort("id").rows() == [(1, 7), (2, 8)]
    with pytest.raises(InvalidInputError, match="'took'"):
        table.upsert(source.drop("at", "none"), "id", schema_mode="merge")


@pytest.mark.parametrize("value", ["y", pl.col("y"), "source.y"])
def test_name_of_a_column_that_the_merge_adds_is_the_source_column(
    tmp_path: Path, value: Any
) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"id": [1, 3], "x": [10, 30]}))
    source = pl.DataFrame({"id": [1, 2, 3], "x": 0, "y": [5, 6, 7]})
    condition = "y = 7" if isinstance(value, str) else pl.col("y") == 7
    merge = lakelog.open(tmp_path).merge(source, "id", schema_mode="merge")
    merge.when_matched_delete(condition).when_matched_update({"x": value})
    merge.when_not_matched_insert_all().execute()
    rows = lakelog.open(tmp_path).to_polars().sort("id")
    assert rows.rows() == [(1, 5, None), (2, 0, 6)]


@pytest.mark.parametrize("clause", ["when_matched_update_all", "when_not_matched_insert_all"])
def test_unknown_names_in_except_cols_are_refused(tmp_path: Path, clause: str) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"id": [1], "x": [10]}))
    merge = lakelog.open(tmp_path).merge(pl.DataFrame({"id": [1], "y": [5]}), "id")
    with pytest.raises(InvalidInputError, match="have no column 'typo'") as error:
        getattr(merge, clause)(except_cols=["X", "Y", "typo"]).execute()
    assert error.value.column == "typo"


@pytest.mark.parametrize(
    ("clause", "given"),
    [
        ("when_matched_update_all", {"except_cols": ["w"]}),
        ("when_matched_update", {"updates": {"v": "source.v"}}),
        ("when_not_matched_insert", {"updates": {"id": "id", "v": "v"}}),
    ],
)
def test_source_column_of_another_type_is_not_assigned(
    tmp_path: Path, clause: str, given: dict[str, Any]
) -> None:
    lakelog.write(
        tmp_path, pl.DataFrame({"id": [1, 2], "v": [1, 2]}, schema_overrides={"v": pl.Int32})
    )
    merge = getattr(lakelog.open(tmp_path).merge(TEXTS, "id"), clause)(**given)
    with pytest.raises(InvalidInputError, match="the column 'v' has another type"):
        merge.execute()


def test_whole_keys_that_the_target_cannot_have_match_nothing(tmp_path: Path) -> None:
    types = {"a": pl.Int64(), "b": pl.Int16(), "v": pl.Int64()}
    table = lakelog.create(tmp_path, types, upkeep=False)
    table.append(pl.DataFrame({"a": [7, 100_000], "b": [7, 8], "v": [0, 0]}, schema=types))
    source = pl.DataFrame({"b": [7, 100_000], "x": [7, 100_000], "v": [1, 2]})
    for on in ("b", {"b": "x"}, {"a": "x", "b": "x"}, "target.b = source.x"):
        table.update({"v": 0})
        merge = table.merge(source, on).when_matched_update({"v": "source.v"})
        assert merge.execute().num_updated_rows == 1
        assert table.to_polars().sort("a")["v"].to_list() == [1, 0]
    upsert = table.merge(source.select("b", "v"), "b").when_matched_update_all()
    assert upsert.execute().num_updated_rows == 1
    with pytest.raises(InvalidInputError, match="without loss"):
        table.upsert(source.select("b", "v"), "b")
    table.upsert(source.select("b", "v")[:1], "b")


@pytest.mark.parametrize("on", ["k", "target.k = source.k AND source.v > 0"])
@pytest.mark.parametrize(
    ("type_", "key", "given"),
    [
        (pl.Int64(), 2, pa.array([2.0, 1.5, float("nan"), 1e300, None])),
        (pl.Int64(), 2, pa.array([Decimal("2.00"), Decimal("1.50")])),
        (pl.Int64(), 2, pa.array([2, (1 << 64) - 1], pa.uint64())),
        (pl.Int8(), 2, pa.array([2, 300], pa.uint64()).dictionary_encode()),
        (pl.Decimal(5, 2), Decimal("1.50"), pa.array([Decimal("1.5000"), Decimal("1.5001")])),
        (pl.Decimal(5, 2), Decimal("2.00"), pa.array([2, 100_000])),
        (pl.Decimal(5, 2), Decimal("0.10"), pa.array([0.1, 0.101, float("nan"), 1e300])),
        (pl.Decimal(38, 18), Decimal("0.1"), pa.array([0.1, 0.25, 1e300])),
        (pl.Float64(), 0.1, pa.array([Decimal("0.10"), Decimal("0.11")])),
        (pl.Float32(), 0.5, pa.array([Decimal("0.5"), Decimal("0.1")])),
        (pl.Int64(), (1 << 53) + 1, pa.array([float(1 << 53), 0.5, 1e300])),
        (pl.Float32(), 0.5, pa.array([0.5, 0.1])),
        (pl.Float64(), float(1 << 53), pa.array([(1 << 53) + 1])),
    ],
)
def test_keys_that_the_target_cannot_have_match_nothing(
    tmp_path: Path, type_: pl.DataType, key: Any, given: pa.Array, on: str
) -> None:
    schema = {"k": type_, "v": pl.Int64()}
    table = lakelog.create(tmp_path, schema, upkeep=False)
    table.append(pl.DataFrame({"k": [key, type(key)(1)], "v": [0, 0]}, schema))
    source = pa.table({"k": given, "v": range(1, len(given) + 1)})
    merge = table.merge(source, on).when_matched_update({"v": "source.v"})
    merge.when_not_matched_insert({"v": "source.v"}).execute()
    assert table.to_polars()["v"].sort().to_list() == [0, *range(1, len(given) + 1)]
    assert table.to_polars().filter(v=1)["k"].to_list() == [key]


@pytest.mark.parametrize("others", [[], [1.0, 2.0]])
def test_keys_are_equal_as_in_conditions(tmp_path: Path, others: list[float]) -> None:
    nan = float("nan")
    table = lakelog.create(tmp_path, {"id": pl.Int64, "x": pl.Float64}, upkeep=False)
    for number, key in enumerate((nan, 0.0)):
        table.append(pl.DataFrame({"id": number, "x": [key, *others]}))
    for key in (nan, -0.0):
        table.upsert(pl.DataFrame({"id": [5], "x": [key]}), on="x")
    rows = table.to_polars(pl.col("x").is_nan() | (pl.col("x") == 0))
    assert rows["id"].to_list() == [5, 5]


KEYS: dict[str, tuple[Any, list[Any]]] = {
    "integers": (pl.Int64(), [-(1 << 62) - 1, -(1 << 62), *range(-9, 9), (1 << 62) - 1, 1 << 62]),
    "texts": (pl.String(), ["", "a", "B", "b", "\u00df", "\uffff", "\U0001f600", "a\0", "zz"]),
    "dates": (pl.Date(), [dt.date(2026, 1, day) for day in range(1, 20)]),
    "times": (
        pl.Datetime("us", "UTC"),
        [dt.datetime(2026, 1, d, tzinfo=dt.UTC) for d in range(1, 9)],
    ),
    "floats": (pl.Float64(), [-1.5, 0.0, 0.25, 2.0, 1e300, float("inf")]),
    "booleans": (pl.Boolean(), [False, True]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_random_upserts_give_the_rows_of_a_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    dtype, values = KEYS[kind]
    rng = rng_of(f"upserts {kind}")
    others = {"key": dtype, "z": pl.String(), "n": pl.Struct({"x": pl.Int64()}), "by": pl.String()}

    def rows(keys: list[Any]) -> pl.DataFrame:
        given = [(key, *(str(rng.random()) for _ in "az")) for key in keys]
        columns = [[k, z, {"x": rng.randrange(9)}, by[-1]] for k, z, by in given]
        return pl.DataFrame(columns, schema=others, orient="row")

    for round_ in range(share_of(8, 4)):
        monkeypatch.setattr("lakelog.data.rewrite._COPIED_BYTES", rng.choice([0, 1 << 20]))
        properties = rng.choice([VECTORS, {}, FEED])
        properties |= rng.choice([{}, {"delta.enableRowTracking": "true"}])
        table = lakelog.create(
            tmp_path / str(round_),
            others,
            rng.choice([(), ("by",)]),
            configuration=properties,
            upkeep=False,
        )
        model: dict[Any, tuple[Any, ...]] = {}
        for _ in range(5):
            source = rows(rng.sample(values, rng.randrange(len(values) + 1)))
            table.upsert(source, on="key")
            model |= {row[0]: row for row in source.rows()}
            lone = rows([None])  # matches no row
            table.append(lone)
        found = table.to_polars().filter(pl.col("key").is_not_null())
        assert Counter(map(str, found.rows())) == Counter(map(str, model.values()))


def test_insert_only_merge_is_allowed_on_an_append_only_table(tmp_path: Path) -> None:
    table = new_table(tmp_path, **{"delta.appendOnly": "true"}, **FEED)
    table.append(frame(("a", 1, 0.5)))
    new = frame(("a", 1, 7.0), ("b", 2, 7.0))
    assert table.merge(new, "id").when_not_matched_insert_all().execute().num_rows == 1
    assert changes_of(tmp_path, 2) == [("insert", 2)]
    assert table.merge(new, "id").when_not_matched_insert_all().execute().version is None


def test_merges_of_the_same_rows_conflict_and_of_others_do_not(tmp_path: Path) -> None:
    table = new_table(tmp_path, **VECTORS)
    table.append(frame(("a", 1, 0.5), ("a", 2, 0.5), ("b", 7, 1.5), ("b", 8, 1.5)))
    table.upsert(frame(("a", 1, 3.0)), "id")
    assert table.upsert(frame(("b", 7, 3.0)), "id", version=1).version == 3
    kept = data_files(tmp_path)
    with pytest.raises(ConflictError):
        table.upsert(frame(("a", 1, 4.0)), "id", version=1)
    assert data_files(tmp_path) == kept


def test_columns_named_source_and_target_are_merged(tmp_path: Path) -> None:
    old = pl.DataFrame({"id": [1, 2], "source": ["a", "b"], "target": [0.5, 1.5]})
    lakelog.write(tmp_path, old)
    table = lakelog.open(tmp_path, upkeep=False)
    new = pl.DataFrame({"id": [2, 3], "source": ["y", "z"], "target": [7.0, 8.0]})
    merge = table.merge(new, "id").when_matched_update(
        {"source": "source.source", "target": "target.target + source.target"},
        predicate="target.source = 'b'",
    )
    merge.when_not_matched_insert_all().execute()
    merge = table.merge(new[:1], "source").when_matched_delete()
    merge.when_not_matched_by_source_update({"target": 0.0}, "source = 'a'").execute()
    assert table.scan().sort("id").collect().rows() == [(1, "a", 0.0), (3, "z", 8.0)]


@pytest.mark.parametrize("partition_by", [(), ("^a$",)])
def test_columns_named_like_patterns_are_merged_by_their_names(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    times = [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in range(1, 5)]

    schema = pa.schema({"*": pa.int64(), "^a$": pa.timestamp("us", "UTC"), "a": pa.int64()})

    def rows(days: list[int], a: int) -> pa.Table:
        columns = {"*": days, "^a$": [times[day] for day in days], "a": [a] * len(days)}
        return pa.table(columns, schema)

    configuration = {"delta.checkpoint.writeStatsAsStruct": "true"}
    configuration |= {"delta.checkpoint.writeStatsAsJson": "false"}
    table = lakelog.create(
        tmp_path, schema, partition_by, configuration=configuration, upkeep=False
    )
    table.append(rows([0, 1], 7))
    table.append(rows([2], 7))
    table.upsert(rows([1, 2], 8), on="*")
    table.upsert(rows([2, 3], 9), on="^a$")
    table.checkpoint()
    table = lakelog.open(tmp_path, upkeep=False)
    found = table.to_arrow().sort_by("*").select(["*", "^a$", "a"]).to_pylist()
    assert found == [{"*": day, "^a$": times[day], "a": a} for day, a in enumerate([7, 8, 9, 9])]
    bounds = [json.loads(text) for text in table.snapshot().files().collect()["stats"]]
    assert {each["minValues"]["a"] for each in bounds} <= {7, 8, 9}
    assert {each["minValues"].get("*") for each in bounds} <= {0, 1, 2, 3}
    assert table.to_polars().columns == ["*", "^a$", "a"]


WITH_NEW = pl.DataFrame({"id": [2, 3, 9], "new": [20, None, 90], "x": [2.5, 3.5, 9.5]})


@pytest.mark.parametrize(
    "clauses",
    [
        [("when_matched_update_all", {}), ("when_not_matched_insert_all", {})],
        [("when_matched_update", {"updates": {"new": "source.new"}})],
        [("when_not_matched_insert", {"updates": {"id": "source.id", "new": "source.new"}})],
        [("when_matched_update_all", {"except_cols": ["x"]}), ("when_matched_delete", {})],
        [("when_not_matched_by_source_delete", {}), ("when_matched_update_all", {})],
    ],
)
def test_merge_with_schema_mode_adds_the_columns_that_deltalake_adds(
    tmp_path: Path, clauses: list[tuple[str, dict[str, Any]]]
) -> None:
    rows = ROWS
    table = new_table(tmp_path / "ours")
    table.append(rows)
    deltalake.write_deltalake(str(tmp_path / "theirs"), rows.to_arrow(), partition_by=["p"])
    merge = table.merge(WITH_NEW, on="id", schema_mode="merge")
    theirs = deltalake.DeltaTable(str(tmp_path / "theirs")).merge(
        WITH_NEW.to_arrow(), ON, "source", "target", merge_schema=True
    )
    for name, arguments in clauses:
        getattr(merge, name)(**arguments)
        getattr(theirs, name)(**arguments)
    merge.execute()
    theirs.execute()
    expected = pl.DataFrame(deltalake.DeltaTable(str(tmp_path / "theirs")).to_pyarrow_table())
    assert set(table.snapshot().schema.names) == {"p", "id", "x", "new"}
    assert bag(table.to_polars().select("id", "p", "x", "new")) == bag(
        expected.select("id", "p", "x", "new")
    )
    again = pl.DataFrame(deltalake.DeltaTable(str(tmp_path / "ours")).to_pyarrow_table())
    assert bag(again.select("id", "p", "x", "new")) == bag(expected.select("id", "p", "x", "new"))


@pytest.mark.parametrize(
    "configuration",
    [
        VECTORS,
        FEED,
        {"delta.columnMapping.mode": "name"},
        {"delta.enableRowTracking": "true"},
    ],
    ids=lambda configuration: next(iter(configuration)),
)
def test_new_columns_of_a_merge_are_in_tables_with_features(
    tmp_path: Path, configuration: dict[str, str]
) -> None:
    table = new_table(tmp_path, **configuration)
    table.append(ROWS)
    table.upsert(WITH_NEW, on="id", schema_mode="merge")
    table.checkpoint()
    found = lakelog.open(tmp_path).to_polars().sort("id")
    assert found["new"].to_list() == [None, 20, None, None, 90]
    assert found["x"].to_list()[1:3] == [2.5, 3.5]
    assert found["p"].to_list()[:4] == ROWS["p"].to_list()
    if configuration is FEED:
        changes = table.changes(2).collect()
        assert changes.filter(_change_type="update_preimage")["new"].null_count() == 2
        assert changes.filter(pl.col("new") == 20)["_change_type"].to_list() == ["update_postimage"]


def test_merge_with_schema_mode_widens_types_with_type_widening(tmp_path: Path) -> None:
    widens = {"delta.enableTypeWidening": "true"}
    schema = {"id": pl.Int32, "n": pl.Int32, "other": pl.Int32}
    table = lakelog.create(tmp_path, schema, configuration=widens, upkeep=False)
    table.append(pl.DataFrame({"id": [1, 2], "n": [1, 2], "other": [1, 2]}, schema))
    source = pl.DataFrame({"id": [2, 3], "n": [1 << 40, 3], "other": [1 << 40, 0]})
    merge = table.merge(source, "id", schema_mode="merge")
    merge.when_matched_update({"n": "source.n"}).when_not_matched_insert({"id": "source.id"})
    merge.execute()
    # The clauses do not assign `other`.
    assert table.scan().collect_schema() == {"id": pl.Int64, "n": pl.Int64, "other": pl.Int32}
    assert table.to_polars().sort("id").rows() == [(1, 1, 1), (2, 1 << 40, 2), (3, None, None)]


def test_new_columns_of_a_merge_conflict_with_other_changes_of_the_schema(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(ROWS)
    version = table.snapshot().version
    table.alter.add_columns({"new": pl.Int64})
    with pytest.raises(ConflictError):
        table.merge(
            WITH_NEW, on="id", schema_mode="merge", version=version
        ).when_matched_update_all().execute()


def test_merge_adds_only_columns_that_are_assigned_by_their_name(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.append(ROWS)
    source = WITH_NEW.rename({"id": "key"})
    with table.transaction() as tx:
        merge = tx.merge(source, on={"id": "key"}, schema_mode="merge")
        merge.when_matched_update({"x": pl.col("source").struct.field("new")}).execute()
    assert table.snapshot().schema.names == ("p", "id", "x")
    with pytest.raises(InvalidInputError, match="no column 'new'"):
        table.upsert(WITH_NEW, on="id")
    with pytest.raises(InvalidInputError, match="does not replace them"):
        table.upsert(WITH_NEW, on="id", schema_mode="overwrite")


@pytest.mark.parametrize("spelled", [str, str.upper])
def test_calls_of_an_upsert_grow_linearly_with_the_columns(
    spelled: Callable[[str], str], tmp_path: Path
) -> None:
    def calls(columns: int) -> int:
        rows = pl.DataFrame({f"c{n}": [n, n + 1] for n in range(columns)})
        location = tmp_path / str(columns)
        lakelog.write(location, rows)
        table = lakelog.open(location, upkeep=False)
        with cProfile.Profile() as profile:
            table.upsert(rows.rename(spelled), on="c0")
        return sum(entry.callcount for entry in profile.getstats())

    calls(2)  # imports
    assert calls(160) < 4 * calls(40)


def test_columns_of_the_source_are_added_also_if_no_row_changes(tmp_path: Path) -> None:
    lakelog.write(tmp_path, pl.DataFrame({"key": ["A"]}))
    table = lakelog.open(tmp_path, upkeep=False)
    source = pl.DataFrame({"key": ["B"], "value": [4]})
    merge = table.merge(source, "key", schema_mode="merge").when_matched_update_all()
    assert merge.execute().version == 1
    assert table.to_polars().to_dict(as_series=False) == {"key": ["A"], "value": [None]}
    merge = table.merge(source, "key", schema_mode="merge").when_matched_update_all()
    assert merge.execute().version is None


def test_assigned_columns_may_be_named_as_those_of_the_target(tmp_path: Path) -> None:
    rows = pl.DataFrame({"k": [1], "value": [1], "s": [{"a": 1, "b": 2}]})
    lakelog.write(tmp_path / "t", rows)
    table = lakelog.open(tmp_path / "t", upkeep=False)
    source = pl.DataFrame({"k": [1, 2], "value": [7, 8], "new": [3, 4]})
    merge = table.merge(source, "k", schema_mode="merge")
    merge.when_matched_update(
        {"target.value": "source.value", "Target.s.a": "5", "target.new": "source.new"}
    )
    merge.when_not_matched_insert({"target.k": "source.k"}).execute()
    found = table.to_polars().sort("k").to_dicts()
    assert found == [
        {"k": 1, "value": 7, "s": {"a": 5, "b": 2}, "new": 3},
        {"k": 2, "value": None, "s": None, "new": None},
    ]
    own = rows.select("k", target=pl.struct(value=pl.lit(1)))
    lakelog.write(tmp_path / "own", own)
    other = lakelog.open(tmp_path / "own", upkeep=False)
    other.merge(source, "k").when_matched_update({"target.value": "2"}).execute()
    assert other.to_polars().to_dicts() == [{"k": 1, "target": {"value": 2}}]


def test_an_assigned_column_is_named_once_and_a_name_with_a_dot_is_kept(tmp_path: Path) -> None:
    rows = pl.DataFrame({"k": [1], "v": [1]})
    lakelog.write(tmp_path / "t", rows)
    table = lakelog.open(tmp_path / "t", upkeep=False)
    for other in ("v", "V", "`v`", "TARGET.v", "`target`.v"):
        for names in (("target.v", other), (other, "target.v")):
            merge = table.merge(rows, "k").when_matched_update(dict.fromkeys(names, "2"))
            with pytest.raises(InvalidInputError, match="'v' has two new values"):
                merge.execute()
    dotted = rows.with_columns(pl.lit(1).alias("target.v"))
    lakelog.write(tmp_path / "own", dotted)
    own = lakelog.open(tmp_path / "own", upkeep=False)
    own.merge(rows, "k").when_matched_update({"target.v": "2", "v": "3"}).execute()
    assert own.to_polars().to_dicts() == [{"k": 1, "v": 3, "target.v": 2}]
