"""Random sequences of writes, compared with a frame in memory, read by lakelog and deltalake."""

from __future__ import annotations

import datetime as dt
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
from lakelog import Table
from tests.budget import rng_of, share_of

SCHEMA: dict[str, Any] = {
    "id": pl.Int64,
    "p": pl.String,
    "q": pl.Int32,
    "x": pl.Float64,
    "s": pl.String,
    "d": pl.Date,
    "m": pl.Decimal(9, 2),
    "l": pl.List(pl.Int64),
}
CONFIGURATIONS = [
    (vectors, feed, mapped)
    for vectors in (False, True)
    for feed in (False, True)
    for mapped in (False, True)
]
Rows = Counter[str]


def new_table(path: Path, vectors: bool, feed: bool, mapped: bool, by: list[str]) -> Table:
    configuration = {
        "delta.enableDeletionVectors": str(vectors).lower(),
        "delta.enableChangeDataFeed": str(feed).lower(),
        "delta.dataSkippingNumIndexedCols": "3" if mapped else "32",
    }
    if mapped:
        configuration["delta.columnMapping.mode"] = "name"
    return lakelog.create(path, SCHEMA, by, configuration=configuration, upkeep=False)


def some_rows(rng: random.Random, count: int) -> pl.DataFrame:
    """Rows with nulls, NaN and extreme values."""

    def one(kind: str) -> Any:
        if rng.random() < 0.15:
            return None
        makers: dict[str, Callable[[], Any]] = {
            "id": lambda: rng.choice([rng.randrange(60), -(1 << 62)]),
            "p": lambda: rng.choice("abc"),  # deltalake finds no change data of encoded folders
            "q": lambda: rng.randrange(3),
            "x": lambda: rng.choice([float("nan"), 0.0, -1.5, rng.random() * 50]),
            "s": lambda: rng.choice(["", "s", "long " * 12 + "text", "\U0001f600"]),
            "d": lambda: dt.date(2026, 1, 1) + dt.timedelta(rng.randrange(40)),
            "m": lambda: Decimal(rng.randrange(-500, 500)) / 4,
            "l": lambda: [rng.randrange(3) for _ in range(rng.randrange(3))],
        }
        return makers[kind]()

    return pl.DataFrame({name: [one(name) for _ in range(count)] for name in SCHEMA}, schema=SCHEMA)


def condition(rng: random.Random) -> pl.Expr | str:
    """A condition over partition columns, data columns, or both."""
    number = rng.randrange(50)
    simple: list[pl.Expr] = [
        pl.col("id") < number,
        pl.col("id") % 7 == number % 7,
        pl.col("p") == rng.choice("abc"),
        pl.col("p").is_null(),
        pl.col("q") >= rng.randrange(4),
        pl.col("x") > number,
        pl.col("x").is_null() | (pl.col("s") == "s"),
        pl.col("d") <= dt.date(2026, 1, 1) + dt.timedelta(number),
        pl.col("m") < Decimal(number - 25),
        pl.col("id").is_in([1, 2, 3, number]),
        ~(pl.col("x") <= number),
    ]
    chosen = rng.choice(simple)
    match rng.randrange(6):
        case 0:
            return chosen & rng.choice(simple)
        case 1:
            return chosen | rng.choice(simple)
        case 2:
            return f"id > {number} AND (p = 'b' OR d < '2026-01-15')"
    return chosen


VALUES: list[dict[str, Any]] = [
    {"x": pl.col("x") * 2, "s": "s || '!'"},
    {"p": pl.lit("moved")},
    {"q": "id % 3", "id": pl.col("id") // 2},
    {"m": None, "l": [7], "d": dt.date(2030, 1, 1)},
    {"x": "q", "p": pl.when(pl.col("s") == "s").then(pl.lit("")).otherwise("p")},
]


def polars_of(where: pl.Expr | str, table: Table) -> pl.Expr:
    found = table.snapshot().condition(where)
    assert found is not None
    return found.fill_null(value=False)


def assigned(rows: pl.DataFrame, values: dict[str, Any], by: list[str]) -> pl.DataFrame:
    """The model of an update: all values are computed from the old row."""

    def expr(value: Any) -> pl.Expr:
        if isinstance(value, pl.Expr):
            return value
        return pl.sql_expr(value) if isinstance(value, str) else pl.lit(value)

    return stored(
        rows.with_columns(expr(v).cast(SCHEMA[n]).alias(n) for n, v in values.items()), by
    )


def stored(rows: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """An empty text of a partition column is null in a Delta table."""
    return rows.with_columns(pl.when(pl.col("p") != "").then("p").alias("p")) if "p" in by else rows


def bag(rows: pl.DataFrame) -> Rows:
    return Counter(map(str, rows.select(*SCHEMA).rows()))


def peer_rows(path: Path) -> pl.DataFrame:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    found = pl.DataFrame(pa.table(query.execute("select * from t")))
    return found.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def changes_of(path: Path, version: int) -> Rows:
    feed = deltalake.DeltaTable(path).load_cdf(starting_version=version, ending_version=version)
    found = pl.DataFrame(pa.table(feed.read_all()))
    columns = [pl.col(name).cast(dtype) for name, dtype in SCHEMA.items()]
    return Counter(map(str, found.select(*columns, "_change_type").rows()))


def marked(rows: pl.DataFrame, kind: str) -> Rows:
    return Counter(map(str, rows.with_columns(pl.lit(kind)).rows()))


@pytest.mark.filterwarnings("ignore:empty values of the partition column")
@pytest.mark.parametrize(("vectors", "feed", "mapped"), CONFIGURATIONS)
def test_random_changes_give_the_rows_of_a_plain_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool, feed: bool, mapped: bool
) -> None:
    rng = rng_of(f"row changes {vectors} {feed} {mapped}")
    for round_ in range(share_of(16)):
        monkeypatch.setattr("lakelog.data.rewrite._COPIED_BYTES", rng.choice([0, 1 << 20]))
        path = tmp_path / str(round_)
        by = rng.choice([[], ["p"], ["q", "p"]])
        table = new_table(path, vectors, feed, mapped, by)
        model = pl.DataFrame(schema=SCHEMA)
        done: list[str] = []
        for _ in range(8):
            before, where = model, condition(rng)
            expr = polars_of(where, table)
            hit, rest = model.filter(expr), model.filter(~expr)
            deleted, updated, inserted = hit.clear(), (hit.clear(), hit.clear()), hit.clear()
            calls = ["append", "append", "delete", "delete", "update", "update", "replace"]
            match rng.choice([*calls, "partitions"] if by else calls):
                case "append":
                    inserted = stored(some_rows(rng, rng.randrange(1, 40)), by)
                    report = table.append(inserted, target_file_bytes=rng.choice([None, 1]))
                    model = pl.concat([model, inserted])
                    done.append("append")
                case "delete":
                    report = table.delete(where)
                    deleted, model = hit, rest
                    assert report.num_deleted_rows == hit.height, done
                    done.append(f"delete {where}")
                case "update":
                    values = rng.choice(VALUES)
                    report = table.update(values, where)
                    updated = hit, assigned(hit, values, by)
                    model = pl.concat([rest, updated[1]])
                    assert report.num_updated_rows == hit.height, done
                    done.append(f"update {values} {where}")
                case "partitions":
                    inserted = stored(some_rows(rng, rng.randrange(4)), by)
                    report = table.overwrite_partitions(inserted)
                    deleted, rest = (
                        model.join(inserted, by, how=how, nulls_equal=True)
                        for how in ("semi", "anti")
                    )
                    model = pl.concat([rest, inserted])
                    done.append("overwrite_partitions")
                case _:
                    report = table.overwrite(hit.head(1), where)
                    deleted, inserted = hit, hit.head(1)
                    model = pl.concat([rest, inserted])
                    done.append(f"overwrite {where}")
            assert bag(table.snapshot().scan().collect()) == bag(model), done
            if report.version is None:
                assert before.height == model.height, done
            elif feed and not mapped:  # deltalake reads no change data of mapped columns
                expected = marked(deleted, "delete") + marked(inserted, "insert")
                expected += marked(updated[0], "update_preimage")
                expected += marked(updated[1], "update_postimage")
                assert changes_of(path, report.version) == expected, done
        assert bag(peer_rows(path)) == bag(model), done


@pytest.mark.parametrize(("vectors", "feed", "mapped"), CONFIGURATIONS[::3])
def test_rows_keep_their_ids_and_updated_rows_get_the_version_of_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool, feed: bool, mapped: bool
) -> None:
    rng = rng_of(f"row ids {vectors} {feed} {mapped}")
    monkeypatch.setattr("lakelog.data.rewrite._COPIED_BYTES", rng.choice([0, 1 << 20]))
    configuration = {
        "delta.enableRowTracking": "true",
        "delta.enableDeletionVectors": str(vectors).lower(),
        "delta.enableChangeDataFeed": str(feed).lower(),
        "delta.columnMapping.mode": "name" if mapped else "none",
    }
    schema = {"p": pl.String, "key": pl.Int64, "n": pl.Int64}
    by = rng.choice([[], ["p"]])
    table = lakelog.create(tmp_path, schema, by, configuration=configuration, upkeep=False)
    keys = iter(range(1_000))

    def new(count: int) -> pl.DataFrame:
        rows = [(rng.choice("abc"), next(keys), 0) for _ in range(count)]
        return pl.DataFrame(rows, schema=schema, orient="row")

    def upserted() -> pl.DataFrame:
        old = table.to_polars().sample(2, seed=0)
        return pl.concat([new(2), old.with_columns(pl.col("n") + 1)])

    table.append(new(12))
    table.append(new(12))
    changes: list[Callable[[pl.Expr], Any]] = [
        lambda where: table.update({"n": "n + 1"}, where),
        lambda where: table.update({"n": "n + 1", "p": "'d'"}, where),
        lambda _: table.upsert(upserted(), "key"),
        lambda where: table.delete(where & (pl.col("key") % 2 == 0)),
        lambda where: table.overwrite(new(3), where | (pl.col("n") == 0)),
        lambda _: table.compact(),
        lambda _: table.compact(zorder_by=["n", "key"]),
    ]
    columns = ["key", "n", "_row_id", "_row_commit_version"]
    before = table.scan(row_ids=True).select(columns).collect()
    used = set(before["_row_id"])
    for change in [*rng.sample(changes, len(changes)), *rng.choices(changes, k=share_of(24))]:
        change(pl.col("key") % 3 == rng.randrange(3))
        version = table.version()
        rows = table.scan(row_ids=True).collect()
        assert rows.drop(columns[2:]).equals(table.to_polars())
        after = rows.select(columns)
        both = after.join(before, on="key")
        assert (both["_row_id"] == both["_row_id_right"]).all()
        since = both.select(
            pl.when(pl.col("n") == pl.col("n_right")).then("_row_commit_version_right")
        ).to_series()
        assert (both["_row_commit_version"] == since.fill_null(version)).all()
        inserted = after.join(before, on="key", how="anti")
        assert (inserted["_row_commit_version"] == version).all()
        assert not used & set(inserted["_row_id"])
        assert after["_row_id"].is_unique().all()
        used |= set(inserted["_row_id"])
        before = after
    assert '"delta.rowTracking.preserved":"false"' not in "".join(
        path.read_text() for path in Path(tmp_path, "_delta_log").glob("*.json")
    )
    assert "_row-" not in "".join(table.snapshot().files().collect()["stats"])
    peer = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(tmp_path))
    peer_found = pl.DataFrame(pa.table(peer.execute("select * from t")))
    assert peer_found.sort("key").equals(table.to_polars().sort("key"))


@pytest.mark.parametrize("vectors", ["true", "false"])
def test_rows_copied_while_another_writer_enables_row_tracking_are_not_marked(
    tmp_path: Path, vectors: str
) -> None:
    table = lakelog.create(
        tmp_path,
        {"id": pl.Int64},
        configuration={"delta.enableDeletionVectors": vectors},
        upkeep=False,
    )
    table.alter.upgrade(["rowTracking"])
    table.append(pl.DataFrame({"id": [1, 2, 3]}))
    with table.transaction() as tx:
        tx.update({"id": "id + 10"}, "id = 2")
        lakelog.open(tmp_path).alter.set_properties({"delta.enableRowTracking": "true"})
    commit = (tmp_path / f"_delta_log/{tx.version:020d}.json").read_text("utf-8")
    assert '"delta.rowTracking.preserved":"false"' in commit
    assert max(table.scan(row_ids=True).collect()["_row_id"].to_list()) > 2
